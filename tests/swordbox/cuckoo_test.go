package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// RCuckoo's masked CASes of lock bits cross the box as they are, on shared connections, or
// as WRITEs; its tables stay linearizable, also when clients die with locks and others
// take leases and repair.
func TestCuckoo(t *testing.T) {
	crowded := bed.Cuckoo{Torn: true, FailAfter: 40 * time.Millisecond, Kinds: [4]int{2, 4, 4, 2}}
	wide := crowded
	wide.Layout = rcuckoo.Layout{Wide: true, Hashing: rcuckoo.HashCode, RowsPerLock: 1, LocksPerMessage: 4}
	for _, box := range []string{"off", "mux", "replace", "proven", "replace-word"} {
		for name, mix := range map[string]fault.Mix{
			"calm":   {},
			"frames": {Frames: 12, Within: 200},
			"deaths": {Frames: 4, Within: 200, Machines: []string{"c0", "c1"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
			"box":    {Frames: 4, Within: 200, Machines: []string{"box"}, Deaths: 1, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		} {
			t.Run(box+"/"+name, func(t *testing.T) {
				total := map[string]uint64{}
				var sum bed.CuckooResult
				for i, c := range []bed.Cuckoo{crowded, wide} {
					for seed := range uint64(2) {
						if testing.Short() && seed != uint64(i) {
							continue
						}
						var inst *graph.Instance
						c.Box = &bed.Box{Kind: *tor.Kind(), Args: boxes()[box], Connected: func(i *graph.Instance, _ bed.Connection) { inst = i }}
						c.Faults, c.Profile = mix, rnic.Profile(seed&1)
						r, ok := c.Try(t, seed+10*uint64(i))
						if t.Failed() {
							return
						}
						if !ok {
							continue // the checker needs too long
						}
						sum.Add(r.Stats)
						for _, x := range inst.Counters() {
							if x.Value != 0 && x.Node == "box" {
								total[x.Name] += x.Value
							}
						}
					}
				}
				t.Logf("%+v %v", sum.Stats, total)
				if name == "calm" && (box == "replace" || box == "replace-word") && total["replaced"] == 0 {
					t.Error("no masked CAS was replaced")
				}
				if name == "calm" && sum.Broken > 0 {
					t.Errorf("%d queue pairs failed, and nothing was wrong", sum.Broken)
				}
			})
		}
	}
}
