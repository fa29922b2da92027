package main

import (
	"os/exec"
	"testing"
)

// TestBalanceChecks makes a real backend end and come back: new connections go to the other backend, no
// connection to a backend that is well is lost, and only the backends' kernel has the box's own address.
func TestBalanceChecks(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is missing (apt-get install iperf3)")
	}
	inLab(t, `
mac=$(b cat /sys/class/net/*/address | grep -v 00:00:00:00:00:00 | head -1)
b ip addr add 10.0.0.3/24 dev $(b ip -o -4 addr show to 10.0.0.2 | awk '{print $2}')
a ip neigh replace 10.0.0.100 lladdr $mac dev $(a ip -o -4 addr show to 10.0.0.1 | awk '{print $2}')
serve() { b iperf3 -s -B $1 >/dev/null 2>&1 & }
serve 10.0.0.2; two=$!
serve 10.0.0.3; three=$!
until [ $(b ss -Hltn | grep -c :5201) = 2 ]; do sleep 0.1; done
quillon run --inline eth1,eth2 --nf balance,vip=10.0.0.100,port=5201,backends=10.0.0.2@$mac+10.0.0.3@$mac,check=tcp,check-from=10.0.0.99@02:00:00:00:00:99,check-interval=500ms,check-timeout=450ms,check-rise=2,check-fall=3
health() { # of a backend, until it is so
  i=0
  until quillon report balance --json | tr -d ' \n' | grep -q '"backend":"'$1'"[^}]*"health":"'$2'"[^}]*"last_check":"'"$3"'"'; do
    i=$((i + 1)); [ $i -lt 300 ] || { quillon report balance; return 1; }
    sleep 0.1
  done
}
health 10.0.0.2 up answered
health 10.0.0.3 up answered
[ "$(b ip neigh show 10.0.0.99 | grep -c 02:00:00:00:00:99)" = 1 ]
kill $two; wait $two || :
health 10.0.0.2 down refused
for i in 1 2 3 4 5 6 7 8; do a iperf3 -c 10.0.0.100 -n 10K >/dev/null; done
quillon report balance
serve 10.0.0.2; two=$!
health 10.0.0.2 up answered
kill $three; wait $three || :
health 10.0.0.3 down refused
for i in 1 2 3 4 5 6 7 8; do a iperf3 -c 10.0.0.100 -n 10K >/dev/null; done
kill $two; wait $two || :
quillon stop
`)
}
