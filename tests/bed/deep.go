package bed

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quillon/quillon/rack/rnic"
)

// deepen gives a world what RandomWorld and widen do not draw: a disk under the box, whose machine is started anew.
func (w *World) deepen(rng *rand.Rand, l Limits) {
	yes := func(of int) bool { return rng.IntN(of) == 0 }
	w.Journal = []time.Duration{time.Nanosecond, 5 * time.Microsecond, 50 * time.Microsecond, 300 * time.Microsecond, 2 * time.Millisecond}[rng.IntN(5)]
	if !l.NoRestart && !yes(3) {
		for range 1 + rng.IntN(3) {
			w.Events = append(w.Events, Event{At: time.Duration(rng.IntN(900)) * time.Microsecond, What: BoxReboots, For: time.Duration(10+rng.IntN(300)) * time.Microsecond})
		}
		slices.SortStableFunc(w.Events, func(a, b Event) int { return int(a.At - b.At) })
	}
}

// deepenFurther gives a world of a seed numbers of queue pairs that come back, a connection manager's datagrams in disorder, requests of
// the server's to clients, and a fence in front of the box. Each is drawn by itself.
func (w *World) deepenFurther(seed uint64) {
	of := func(what uint64, n int) (rng *rand.Rand, yes bool) {
		rng = rand.New(rand.NewPCG(seed, 0x6465657000+what))
		return rng, rng.IntN(n) == 0
	}
	if rng, yes := of(1, 2); yes {
		w.Recycle = true
		for i := range w.Queues {
			if rng.IntN(2) == 0 && len(w.Queues[i].Steps) > 1 {
				w.ends(rng, i)
			}
			if rng.IntN(3) > 0 {
				w.Queues[i].Again = [2]bool{}
			}
		}
	}
	if rng, yes := of(2, 2); yes {
		w.Chaos = rng.Uint64() | 1
	}
	if rng, yes := of(3, 3); yes {
		for i := range w.Queues {
			if q := &w.Queues[i]; rng.IntN(2) == 0 {
				at := time.Duration(0)
				for range 1 + rng.IntN(12) {
					at += time.Duration(rng.IntN(120)) * time.Microsecond
					q.Back = append(q.Back, Back{At: at, Op: []rnic.Op{rnic.OpSend, rnic.OpWrite, rnic.OpRead, rnic.OpFetchAdd}[rng.IntN(4)], Length: []int{8, 64, 300, 2000}[rng.IntN(4)]})
				}
			}
		}
	}
	if rng, yes := of(4, 3); yes {
		w.Front = true
		for range rng.IntN(4) {
			w.Events = append(w.Events, Event{At: time.Duration(rng.IntN(800)) * time.Microsecond, What: BoxFences, Region: rng.IntN(len(w.Queues)), Value: rng.Uint64(), For: time.Duration(1+rng.IntN(400)) * time.Microsecond})
		}
		slices.SortStableFunc(w.Events, func(a, b Event) int { return int(a.At - b.At) })
	}
}
