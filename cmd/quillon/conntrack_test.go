package main

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/quillon/quillon/nf/track"
)

// TestConntrack: a firewall has the connections for which Linux has sockets, with the same ends, and the
// filters of the command select what they name.
func TestConntrack(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is missing (apt-get install iperf3)")
	}
	inLab(t, `
quillon run --inline eth1,eth2 --nf firewall,rules=allow+in:a
quillon conntrack --count | grep -qx 0
b iperf3 -s >/dev/null & server=$!
until b ss -Hltn | grep -q :5201; do sleep 0.1; done
a iperf3 -c 10.0.0.2 -t 60 -b 1M -P 5 >/dev/null & client=$!
until [ $(a ss -Htn state established | wc -l) = 6 ]; do sleep 0.1; done
a ping -c 3 10.0.0.2 >/dev/null
a ss -Htn state established | awk '{print $3, $4}' | sort >linux
quillon conntrack -p tcp --state established >out
sed -E 's/.*ESTABLISHED src=(\S+) dst=(\S+) sport=(\S+) dport=(\S+) src=\2 dst=\1 sport=\4 dport=\3 \[ASSURED\]( \[OFFLOAD\])? app=firewall$/\1:\3 \2:\4/' out | sort >ours
diff linux ours
awk '$3 < 60 || $3 > 1000000 {exit 1}' out
quillon conntrack -p icmp >out; grep -q '^icmp     1 .* src=10.0.0.1 dst=10.0.0.2 id=.* app=firewall$' out
port=$(head -1 linux | sed 's/.*:\([0-9]*\) .*/\1/')
[ "$(quillon conntrack --sport $port --count)" = 1 ]
[ "$(quillon conntrack firewall -s 10.0.0.0/8 -p 6 --count)" = 6 ]
[ "$(quillon conntrack -s 10.0.0.2 --count)" = 0 ]
[ "$(quillon conntrack -d 10.0.0.2 -p tcp --json | grep -c '"sport":'$port',')" = 1 ]
if quillon conntrack nosuch 2>err; then exit 1; fi; grep -q 'no app is named "nosuch" (known: firewall)' err
kill $client $server; wait $client $server || :
quillon stop
quillon run --inline eth1,eth2 --nf police,cir=1Gbit
if quillon conntrack 2>err; then exit 1; fi; grep -q 'no app here remembers connections' err
`)
}

// TestPrefixFlag reads addresses and prefixes, protocols and states.
func TestPrefixFlag(t *testing.T) {
	for text, want := range map[string]string{"10.1.2.3": "10.1.2.3/32", "10.0.0.0/8": "10.0.0.0/8", "fd00::1": "fd00::1/128", "ten": "", "10.0.0.0/33": ""} {
		var p netip.Prefix
		err := prefixFlag{&p}.Set(text)
		if (err == nil) != (want != "") || err == nil && p.String() != want {
			t.Errorf("%s is %v, %v", text, p, err)
		}
	}
	for text, want := range map[string]uint8{"tcp": 6, "17": 17, "icmpv6": 58, "0": 0, "tpc": 0, "6x": 0, "300": 0} {
		if got, err := track.ParseProto(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%s is %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"established": "ESTABLISHED", "MAPPING": track.Mapping, "open": "", "": ""} {
		if got, err := track.ParseState(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
}
