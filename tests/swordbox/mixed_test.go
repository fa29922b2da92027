package swordbox

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	steer "github.com/quillon/quillon/tor/clover"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// census counts the atomics that pass, by R_Key.
type census map[uint32]int

func (a census) kind(name string) graph.Kind {
	return graph.Kind{
		Name: name, In: []string{"a", "b"}, Out: []string{"a", "b"},
		New: func(graph.Env, graph.Args) (graph.App, error) { return a, nil },
	}
}

// Push implements graph.App.
func (a census) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		var f hdr.Frame
		if p := x.Bytes(); hdr.Parse(p, &f) == hdr.IsRoCE {
			switch f.Op {
			case hdr.CompareSwap, hdr.FetchAdd:
				a[f.AtomicETHOf(p).RKey()]++
			case hdr.MaskedCompSwap:
				a[f.MaskedAtomicETHOf(p).RKey()]++
			}
		}
		c.Emit(1-in, x)
	}
}

// Clover, Sherman and plain locks and counters share a server's NIC, and one
// chain of clover-steer and swordbox serves them all: each is right as if it were
// alone, and each gains.
func TestMixed(t *testing.T) {
	steering := graph.Args{"settle": "60us", "pair": "60us", "repair": "1ms"}
	base := graph.Args{"mode": "replace", "replace": "learnt", "writable": "proven", "settle": "60us", "pair": "60us", "verify": "100us", "giveup": "2ms", "conns": "64", "window": "64", "words": "4096", "hold": "256"}
	tracked := ""
	for i := range 3 {
		tracked += fmt.Sprintf("%x+2000000000:", bed.LocksVA(i))
	}
	tracked += "0+20000:10000000000+1000000:7f0000000000+100000" // Sherman's locks and pages, Clover's entries
	frames := fault.Mix{Frames: 40, Within: 400}
	death := fault.Mix{
		Frames: 10, Within: 400, Machines: []string{"c2", "c4", "g1"}, Deaths: 2,
		Until: 600 * time.Microsecond, Absence: 4 * time.Millisecond,
	}
	for _, c := range []struct {
		name    string
		args    graph.Args
		overlap bool
		faults  fault.Mix
	}{
		{"learnt/calm", nil, false, fault.Mix{}},
		{"learnt/frames", nil, false, frames},
		{"learnt/death", nil, false, death},
		{"tracked/calm", graph.Args{"track": tracked, "learn": "off", "writable": "assume"}, false, fault.Mix{}},
		{"tracked/frames", graph.Args{"track": tracked, "learn": "off", "writable": "assume"}, false, frames},
		{"overlap/frames", nil, true, frames},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := maps.Clone(base)
			maps.Copy(args, c.args)
			total, in, out := map[string]uint64{}, map[string]int{}, map[string]int{}
			var broken, struck, done uint64
			for seed := range min(seeds(), 5) {
				front, back := census{}, census{}
				r, ok := bed.Mixed{
					Tree:  bed.Tree{Clients: 2, Ops: 20, Keys: 54},
					Locks: []bed.Trial{{Work: locks.Spin, Clients: 2, Ops: 20}, {Work: locks.Table, Clients: 2, Ops: 20}, {Work: locks.Count, Clients: 2, Ops: 600}},
					Box: &bed.Box{
						Kind:  back.kind("servers"),
						Front: []bed.Stage{{Name: "clients", Kind: front.kind("clients")}, {Name: "steer", Kind: *steer.Kind(), Args: steering}, {Name: "swordbox", Kind: *tor.Kind(), Args: args}},
					},
					Overlap: c.overlap, Profile: rnic.Profile(seed & 1), Faults: c.faults,
				}.Try(t, seed)
				if t.Failed() {
					return
				}
				if !ok {
					continue // the checker needs too long
				}
				if b := r.Broken(); b != 0 && c.faults.Deaths == 0 {
					t.Errorf("seed %d: %d queue pairs failed, and nobody died", seed, b)
				}
				for name, rkey := range r.Words {
					in[name] += front[rkey]
					out[name] += back[rkey]
				}
				for _, x := range r.Counters {
					total[x.Node+" "+x.Name] += x.Value
				}
				broken += r.Broken()
				struck += uint64(r.Struck)
				done += r.Store.Reads + r.Store.Writes
			}
			maps.DeleteFunc(total, func(_ string, v uint64) bool { return v == 0 })
			t.Logf("%d struck, %d broken, store %d; atomics in %v, out %v; %v", struck, broken, done, in, out, total)
			for name := range in {
				// These words are never written: whether they may be is not known then.
				unproven := (name == locks.Count.String() || name == locks.Table.String()) && args["writable"] == "proven"
				if out[name] >= in[name] && !c.overlap && !unproven {
					t.Errorf("no atomic of %s was replaced: %d, and %d behind the box", name, in[name], out[name])
				}
			}
			for _, name := range []string{"steer steered-cas", "steer steered-read", "swordbox moved", "swordbox replaced"} {
				if total[name] == 0 {
					t.Errorf("%s: 0", name)
				}
			}
		})
	}
}
