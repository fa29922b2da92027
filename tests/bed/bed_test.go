package bed

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
)

// wire is a box that passes everything.
func wire() *Box {
	for _, k := range graph.Builtin() {
		if k.Name == "wire" {
			return &Box{Kind: k}
		}
	}
	panic("no wire")
}

// mixes are what goes wrong, from nothing to everything.
func mixes() map[string]fault.Mix {
	return map[string]fault.Mix{
		"calm":    {},
		"frames":  {Frames: 12, Within: 120},
		"clients": {Frames: 6, Within: 120, Machines: []string{"c0", "c1", "c2"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		"servers": {Frames: 6, Within: 120, Machines: []string{"s0", "box"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
	}
}

// Endpoints that talk through nothing but a wire are right whatever happens to
// their frames and to themselves.
func TestWire(t *testing.T) {
	for name, mix := range mixes() {
		for _, work := range locks.Works() {
			t.Run(name+"/"+work.String(), func(t *testing.T) {
				var sum Result
				for seed := range uint64(Schedules(20)) {
					r, _ := Trial{Work: work, Box: wire(), Faults: mix, ReleaseByCAS: seed&1 != 0, Profile: rnic.Profile(seed >> 1 & 1)}.Try(t, seed)
					if t.Failed() {
						return
					}
					onesided.Add(&sum.Stats, r.Stats)
					sum.Struck += r.Struck
				}
				t.Logf("%d struck, %+v", sum.Struck, sum.Stats)
				if sum.Done == 0 {
					t.Error("nothing was done")
				}
			})
		}
	}
}

// QUILLON_SCHEDULES=10000 go test ./tests/bed -run TestSchedules
func TestSchedules(t *testing.T) {
	Sweep(t, wire(), 0, Schedules(300))
}

func TestTree(t *testing.T) {
	for name, mix := range mixes() {
		if name == "clients" {
			continue
		}
		for size, keys := range map[string]int{"small": 0, "two levels": 62 * 54} {
			t.Run(name+"/"+size, func(t *testing.T) {
				var sum TreeResult
				for seed := range uint64(Schedules(20)) {
					tree := Tree{Keys: keys, Box: wire(), Faults: mix, Profile: rnic.Profile(seed & 1), Theta: 0.9 * float64(seed>>1&1)}
					if seed&4 != 0 {
						tree.Deletes, tree.Ranges = 0.4, 0.3
					}
					r, _ := tree.Try(t, seed)
					if t.Failed() {
						return
					}
					sum.Add(r.Stats)
					sum.Struck += r.Struck
				}
				t.Logf("%d struck, %+v", sum.Struck, sum.Stats)
			})
		}
	}
}
