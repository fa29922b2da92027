package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// Locks go on while the box is killed, or handed over, again and again: nobody waits for
// ever, no queue pair breaks, and nobody else is in what a lock guards.
func TestTakenOverLocks(t *testing.T) {
	each := bed.Schedules(100)
	first := 0
	if seed, ok := bed.Seed(); ok {
		first, each = int(seed), int(seed)+1
	}
	for seed := first; seed < each; seed++ {
		mix := fault.Mix{Machines: []string{"box"}, Deaths: 6, Until: 10 * time.Millisecond, Absence: 300 * time.Microsecond}
		if seed%2 == 0 {
			mix.Frames, mix.Within = 20, 5000
		}
		k := rnic.DefaultConn()
		k.Timeout, k.PathMTU = 8, 1024
		args := graph.Args{"replace": "learnt", "writable": "assume", "settle": "60us", "pair": "60us", "conns": "32", "window": "64", "words": "256", "hold": "128"}
		r, ok := bed.Trial{
			Work: locks.Spin, Ops: 400, Words: 8, ReleaseByCAS: seed%3 != 0, Profile: rnic.Profile(seed >> 1 & 1), Conn: k, Outstanding: 4, Faults: mix,
			Box: &bed.Box{Kind: *tor.Kind(), Args: args, Killed: seed%4 != 3, Clean: seed%4 == 3},
		}.Try(t, uint64(seed))
		if ok && r.Broken != 0 {
			t.Errorf("seed %d: %d queue pairs broke", seed, r.Broken)
		}
		if t.Failed() {
			return
		}
	}
}
