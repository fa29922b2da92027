package swordbox

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/tor/conn"
)

// A client that may change a region chooses which words of it are tracked (learn=). The cost of finding
// words, its own and others', does not depend on that choice.
func TestAttackChosenWords(t *testing.T) {
	const places = 1 << 16 // the default of words=
	// Words of a region of 256 MiB, half of all that may be tracked. The words of others are there, too.
	cost := func(chosen bool) time.Duration {
		w, guess := newWords(places), words{} // with the seed that everybody knows
		w.seed = 0x5EED
		var others []uint64
		for va := uint64(1) << 32; w.n < places/2 && va < 1<<32+1<<28; va += 8 {
			if h := guess.wordHash(va) & uint32(len(w.ix.E)-1); !chosen && va&0x7FF == 0 || chosen && h < 1<<12 {
				w.add(va, 1)
			}
		}
		t.Logf("chosen %v: %d words", chosen, w.n)
		for k := range uint64(1000) {
			others = append(others, 1<<40+4096*k)
			w.add(others[k], 2)
		}
		best := time.Hour
		for range 5 {
			begin := time.Now()
			for _, va := range others {
				w.find(va)
			}
			best = min(best, time.Since(begin)/time.Duration(len(others)))
		}
		return best
	}
	fair, chosen := cost(false), cost(true)
	t.Logf("to find another client's word takes %v, and %v", fair, chosen)
	if chosen > 20*fair+time.Microsecond {
		t.Errorf("to find another client's word takes %v; %v when somebody chose the words", fair, chosen)
	}
}

// servers= is changed so that two servers become one (servers=A=B), or one server becomes two, while there
// are connections on record whose two ends count differently. The app refuses to start: a record belongs to
// one server.
func TestAttackServersJoined(t *testing.T) {
	const two, one = "10.9.0.1+10.9.0.2", "10.9.0.1=10.9.0.2"
	for _, was := range []string{two, one} {
		for now, is := range map[string]string{two: two, "10.9.0.2+10.9.0.1": two, one: one, "10.9.0.2=10.9.0.1": one} {
			t.Run(was+" "+now, func(t *testing.T) {
				r, _ := keeping(t, graph.Args{"servers": was})
				a, b := r.join(), r.join()
				b.learn(a, 0x7000, 7)
				if r.server = netip.MustParseAddr("10.9.0.2"); was == two {
					r.serverMAC[5] = 2
					r.reach()
				}
				c, d := r.join(), r.join()
				if was == two {
					d.learn(c, 0x7100, 7)
				} else {
					d.cas(0x7100, 8, 8)
				}
				_, err := r.Inst.Set(graphtest.App, graph.Args{"servers": now})
				switch {
				case was == is && err != nil:
					t.Error(err)
				case was != is && (err == nil || !strings.Contains(err.Error(), "give servers= as it was")):
					t.Errorf("it starts: %v", err)
				}
			})
		}
	}
}

// Which clients share a counter of held frames (shelf.hosts) depends on a secret key: without the key nobody
// can compute it.
func TestAttackChosenHost(t *testing.T) {
	buckets := func(seed uint64) (all [64]uint8) {
		cfg, err := parseArgs(nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.seed = seed
		n, err := newNode(0, &memory{geometry: cfg.geometry()}, &cfg, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			at, err := n.conns.AddStatic(1, conn.StaticConn{Client: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 2)}), Server: netip.AddrFrom4([4]byte{10, 0, 0, 1}), ClientQPN: 7, ServerQPN: uint32(100 + i)})
			if err != nil {
				t.Fatal(err)
			}
			all[i] = n.shelf.host(&n.flows[at])
		}
		return all
	}
	if buckets(1) == buckets(2) {
		t.Error("frames of clients are counted in places that everybody can compute: who takes an address with another's place takes his room")
	}
}
