package bed

import (
	"math/rand/v2"
	"slices"
	"time"
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
