# n1 is before the box (ens16), n2 behind it (ens18); n3 and n4 have a cable.
host() {
	for _ in $(seq 600); do
		[ ! -e /sys/class/net/$2 ] || break
		sleep 0.1
	done
	ip netns add $1
	ip link set $2 netns $1
	ip -n $1 addr add $3/24 dev $2
	ip -n $1 link set $2 up
}
host n1 ens17 10.9.0.1
host n2 ens19 10.9.0.2
host n3 ens20 10.8.0.1
host n4 ens21 10.8.0.2
