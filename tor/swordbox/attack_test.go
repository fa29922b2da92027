package swordbox

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A client that may change a region chooses which words of it are tracked (learn=). What it
// costs to find words, its own and others', does not grow with what it chose.
func TestAttackChosenWords(t *testing.T) {
	const places = 1 << 16 // the default of words=
	// Words of a region of 256 MiB, half of all that may be tracked; and others' words, which are there, too.
	cost := func(chosen bool) time.Duration {
		w, guess := newWords(places), words{} // which everybody knows
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

// Two servers are said to be one (servers=A=B), or one server to be two, from a start on. Connections whose two ends count differently
// go on, or their clients are told: nothing of theirs crosses as it is.
func TestAttackServersJoined(t *testing.T) {
	if os.Getenv("QUILLON_OPEN") == "" {
		t.Skip("Box.recover takes records of a server that is joined or parted off the record, and does not tell their clients")
	}
	for _, was := range []string{"10.9.0.1+10.9.0.2", "10.9.0.1=10.9.0.2"} {
		for _, now := range []string{"10.9.0.1+10.9.0.2", "10.9.0.1=10.9.0.2", "10.9.0.2=10.9.0.1", "10.9.0.2+10.9.0.1"} {
			for _, how := range []string{"clean", "crash", "set"} {
				t.Run(was+" "+now+" "+how, func(t *testing.T) {
					r, k := keeping(t, graph.Args{"servers": was})
					a, b := r.join(), r.join()
					b.learn(a, 0x7000, 7)
					r.server, r.serverMAC[5] = netip.MustParseAddr("10.9.0.2"), 2
					if was == "10.9.0.1=10.9.0.2" {
						r.serverMAC[5] = 1
					}
					if r.serverMAC[5] == 2 {
						r.reach()
					}
					c, d := r.join(), r.join()
					if r.serverMAC[5] == 2 {
						d.learn(c, 0x7100, 7)
					} else {
						one(t, d.cas(0x7100, 8, 8).Out["b"])
						r.server = netip.MustParseAddr("10.9.0.1")
						one(t, a.atomicAck(7).Out["a"])
						d.msn++
					}
					if n := r.box().recorded(); n != 4 && was == "10.9.0.1+10.9.0.2" {
						t.Fatalf("%d connections on record", n)
					}
					switch how {
					case "set":
						if _, err := r.Inst.Set(graphtest.App, graph.Args{"servers": now}); err != nil {
							t.Skip(err)
						}
					default:
						r.restart(k, how == "clean", time.Millisecond, graph.Args{"servers": now})
					}
					all := []*party{a, b, c, d}
					if was == "10.9.0.1=10.9.0.2" {
						all = []*party{a, b, d}
					}
					for i, p := range all {
						if r.server = netip.MustParseAddr("10.9.0.1"); i > 1 {
							r.server = netip.MustParseAddr("10.9.0.2")
						}
						if r.serverMAC[5] = 1; i > 1 && was != "10.9.0.1=10.9.0.2" {
							r.serverMAC[5] = 2
						}
						got := p.write(0x5000, 1)
						switch {
						case len(got.Out["b"]) == 0 && len(got.Out["a"]) == 1: // told
						case len(got.Out["b"]) == 0: // held
							t.Logf("client %d: held", i)
						default:
							var f hdr.Frame
							x := got.Out["b"][0].Bytes
							if hdr.Parse(x, &f); f.BTHOf(x).PSN() == (p.psn-1)&hdr.PSNMask && p.psn-1 != p.spsn {
								t.Errorf("client %d: its request crosses with PSN %#x; the server expects %#x; %v", i, f.BTHOf(x).PSN(), p.spsn, r.box().Report().(Report).State)
							}
						}
					}
				})
			}
		}
	}
}

// Whose frames are counted with whose (shelf.hosts) nobody finds out who does not know the key.
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
