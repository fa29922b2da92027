# A fresh Debian: the package is installed, and the instance bears an upgrade, a kill, a reload and a stop.
cd /trial
test ! -e /usr/bin/quillon
interfaces >/var/lib/interfaces
apt-get install -y ./quillon_1.2.3_*.deb
cat >/etc/quillon/rack.yaml <<'Y'
ports:
  a: {kind: afxdp, args: {dev: ens16, pair: b}}
  b: {kind: afxdp, args: {dev: ens18, pair: a}}
apps:
  w: {kind: wire, args: {see: all}}
links: [a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in]
Y
if crosses; then exit 1; fi
quillon check /etc/quillon/rack.yaml
systemctl enable --now quillon@rack
crosses
measure calm sleep 3

upgraded() {
	pid=$(main)
	apt-get install -y ./quillon_1.2.4_*.deb
	until_new $pid
}
measure upgrade upgraded
test "$(dpkg-query -W -f='${Version}' quillon)" = 1.2.4

killed() {
	pid=$(main)
	systemctl kill -s KILL quillon@rack
	until_new $pid
}
measure kill killed

reloaded() {
	sed -i 's/see: all/see: none/' /etc/quillon/rack.yaml
	systemctl reload quillon@rack
	for _ in $(seq 100); do
		if quillon show graph --json | grep -q '"see": "none"'; then return; fi
		sleep 0.2
	done
	false
}
measure reload reloaded

stopped() {
	systemctl stop quillon@rack
	sleep 1
	test "$(systemctl is-active quillon@rack)" = inactive
	systemctl start quillon@rack
}
measure stop stopped
