package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/dag"
)

// A packet takes as long on a live board as on this one, to the nanosecond, when all that
// costs time is the tasks, one after the other and side by side. (How fast they are says when the
// next packet may come.)
func TestLiveBoardTakesAsLong(t *testing.T) {
	shorter := 0
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "tasks")
		text, run := fmt.Sprintf("regions: {count: 1, area: %d}\ntasks:\n", n), ""
		for i := range n {
			field := rapid.SampledFrom([]string{"none", "ports", "vlan", "payload", "ip-other"})
			text += fmt.Sprintf("  t%d: {kind: dummy, reads: [%s], writes: [%s], drops: %v, latency: %dns, throughput: %s}\n", i, field.Draw(rt, "reads"), field.Draw(rt, "writes"),
				rapid.Bool().Draw(rt, "drops"), rapid.IntRange(1, 3000).Draw(rt, "latency"), rapid.SampledFrom([]string{"10Mbit", "1Gbit", "100Gbit"}).Draw(rt, "throughput"))
			if i > 0 {
				run += " -> "
			}
			run += fmt.Sprintf("t%d", i)
		}
		text += "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: " + run + "}]\nrules: [{match: all, dag: 1}]\n"
		spec, err := dag.Parse([]byte(text))
		if err != nil {
			rt.Fatal(err)
		}
		d, err := snic.Check(spec, []graph.Kind{*dummy.Kind()}, nil)
		if err != nil {
			rt.Fatal(err)
		}
		var took [2]time.Duration
		for i, how := range []struct {
			parallel string
			branches int
		}{{"off", 1}, {"on", 0}} {
			chain := d.Stages(0, 1)[0][0]
			run, err := RunSNIC(context.Background(), SNICConfig{
				SNIC: SNIC{Beat: 64, Ports: 2, GbitPerSecond: 100, Store: 1 << 20, Packets: 16, Epoch: 20 * time.Microsecond}, Deployment: d, Branches: how.branches,
				Loaded:  [][]dag.TaskID{chain},
				Sources: []Source{{In: 0, Out: 1, Bytes: 64, Rates: []Rate{{Gbit: 0.005}}}}, Measure: time.Millisecond,
			})
			if err != nil {
				rt.Fatal(err)
			}
			took[i] = run.Sources[0].Core
			if live := live(t, text, how.parallel); live != took[i] || run.Sources[0].CoreMost != took[i] {
				rt.Fatalf("%sparallel=%s: %v on the live board, and %v here (most %v)", text, how.parallel, live, took[i], run.Sources[0].CoreMost)
			}
		}
		if took[1] > took[0] {
			rt.Fatalf("%s%v side by side, and %v one after the other", text, took[1], took[0])
		}
		if took[1] < took[0] {
			shorter++
		}
	})
	if shorter == 0 {
		t.Error("nothing ever ran side by side")
	}
}

// live is how long a frame is on a live board.
func live(t *testing.T, text, parallel string) (took time.Duration) {
	t.Run("", func(t *testing.T) { // which ends it
		x := graphtest.NewSmall(t, *snic.Kind(*dummy.Kind()), graph.Args{"deployment": text, "parallel": parallel, "epoch": "1ms", "flows": "64", "packets": "64"}, *dummy.Kind())
		x.Advance(10 * time.Millisecond) // its region is loaded
		at := x.Clock.Now()
		r := x.Push("p0", make([]byte, 64))
		for len(r.Out["p1"]) == 0 {
			if x.Clock.Now() > at.Add(time.Second) {
				t.Fatal("the frame does not come out")
			}
			r = x.Advance(x.Inst.NextTick().Sub(x.Clock.Now()))
		}
		took = x.Clock.Now().Sub(at)
	})
	return took
}
