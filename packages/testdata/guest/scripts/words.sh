# What the scripts of all boots use.
crosses() { ip netns exec n1 ping -q -c 1 -W 5 10.9.0.2 >/dev/null; }
main() { systemctl show -p MainPID --value quillon@rack; }
seconds() { cut -d. -f1 /proc/uptime; }
# until_new waits until the instance is active in another process than $1.
until_new() {
	end=$(($(seconds) + 180))
	while [ $(seconds) -lt $end ]; do
		if [ "$(main)" != 0 ] && [ "$(main)" != "$1" ] && systemctl -q is-active quillon@rack; then return; fi
		sleep 0.2
	done
	false
}
# measure runs a command while frames are sent, and reports how long none came, and how long programs take here.
measure() {
	what=$1
	shift
	/trial/inside traffic $what >/run/said &
	traffic=$!
	sleep 2
	"$@"
	sleep 2
	kill $traffic
	wait $traffic
	cat /run/said
	/trial/inside took version-$what quillon --version
	begun=$(systemctl show -p ExecMainStartTimestampMonotonic --value quillon@rack)
	active=$(systemctl show -p ActiveEnterTimestampMonotonic --value quillon@rack)
	echo "report {\"What\": \"start-$what\", \"Took\": $(((active - begun) / 1000))}"
}
# interfaces is all that could be changed of the box's interfaces.
interfaces() {
	for i in ens16 ens18; do
		ip -o -d link show dev $i
		ethtool -k $i
		ethtool -c $i || true
		ethtool -l $i || true
		(cd /sys/class/net/$i && grep -H . flags mtu tx_queue_len gro_flush_timeout napi_defer_hard_irqs threaded)
	done
	ls /sys/fs/bpf
}
