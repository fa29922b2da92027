package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/table"
)

// TestRulesCount: each rule of a firewall has counted the packets that it decided, in all workers, and goes on where it was when others
// change.
func TestRulesCount(t *testing.T) {
	x := graphtest.NewGang(t, kindOf(t, "firewall"), 2, graph.Args{"rules": "deny+in:a+dport:50;allow+in:a+dport:51-60;allow+in:a+src:10.0.0.7", "conns": "65536", "half": "60000", "half-per-source": "60000"})
	// By priority, as rules in this order have them.
	rule := func(host byte, dport uint16) int32 {
		switch {
		case dport == 50:
			return 30
		case dport <= 60:
			return 20
		case host == 7:
			return 10
		}
		return 0
	}
	want := map[int32]table.Counts{}
	rnd := rand.New(rand.NewPCG(1, 2))
	known := map[string]bool{}
	push := func(n int) {
		for range n {
			host, dport, sport := byte(rnd.IntN(12)), uint16(50+rnd.IntN(15)), uint16(1000+rnd.IntN(40))
			f := packetOf(hdr.ProtoUDP, [4]byte{10, 0, 0, host}, [4]byte{192, 0, 2, 1}, sport, dport)
			p := rule(host, dport)
			if k := fmt.Sprint(host, dport, sport); !known[k] {
				c := want[p]
				want[p] = table.Counts{Packets: c.Packets + 1, Bytes: c.Bytes + uint64(len(f))}
				known[k] = p == 10 || p == 20 // what is denied is looked up again
			}
			x.Push(rnd.IntN(2), 0, [][]byte{f})
		}
	}
	check := func() {
		t.Helper()
		delete(want, 0) // by default: no rule
		got := map[int32]table.Counts{}
		if err := x.Inst.ReadTable(graphtest.App, "acl", func(e *table.Entry) error {
			got[e.Priority] = *e.Counts
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	push(5000)
	if len(want) != 4 {
		t.Fatalf("%v", want)
	}
	check()
	if _, err := x.Inst.Set(graphtest.App, graph.Args{"rules": "deny+in:a+dport:50+prio:30;allow+in:a+dport:51-60+prio:20;deny+in:a+src:10.0.0.7+prio:10"}); err != nil {
		t.Fatal(err)
	}
	want[10] = table.Counts{} // another action: another rule
	check()
}
