package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// CASes of FUSEE's slots cross the box as they are, on shared connections, or as WRITEs; its
// store stays linearizable, and its copies alike, also when clients die and others recover them.
func TestFusee(t *testing.T) {
	crowded := bed.Fusee{Layout: fusee.Layout{Nodes: 1}, Keys: 4, Kinds: [4]int{2, 2, 6, 1}, FailAfter: 40 * time.Millisecond}
	copies := crowded
	copies.Layout = fusee.Layout{Nodes: 3, Replicas: 3}
	for _, box := range []string{"off", "mux", "replace", "proven", "replace-word"} {
		for name, mix := range map[string]fault.Mix{
			"calm":   {},
			"frames": {Frames: 12, Within: 200},
			"deaths": {Frames: 4, Within: 200, Machines: []string{"c0", "c1"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
			"box":    {Frames: 4, Within: 200, Machines: []string{"box"}, Deaths: 1, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		} {
			t.Run(box+"/"+name, func(t *testing.T) {
				total := map[string]uint64{}
				var sum bed.FuseeResult
				for i, c := range []bed.Fusee{crowded, copies} {
					for seed := range uint64(2) {
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
					t.Error("no CAS was replaced")
				}
				if name == "calm" && sum.Broken > 0 {
					t.Errorf("%d queue pairs failed, and nothing was wrong", sum.Broken)
				}
			})
		}
	}
}
