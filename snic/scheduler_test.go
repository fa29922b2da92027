package snic

import (
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// With scheduler=panic a packet is at the scheduler between any two tasks; otherwise once a
// chain, and not at all where tasks are not modelled.
func TestSchedulers(t *testing.T) {
	for _, c := range []struct {
		scheduler, model string
		runs             uint64 // a packet
	}{
		{"chain", ", latency: 1us", 1}, {"panic", ", latency: 1us", 4},
		{"chain", "", 0}, {"panic", "", 4},
	} {
		task := func(l string) string { return "  " + l + ": {kind: mark, args: {letter: " + l + "}" + c.model + "}\n" }
		text := "regions: {count: 1, area: 4}\ntasks:\n" +
			task("a") + task("b") + task("c") + task("d") +
			"tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: a -> b -> c -> d}]\nrules: [{match: all, dag: 1}]\n"
		x := graphtest.NewOuter(t, kinds(), graph.Args{"scheduler": c.scheduler, "deployment": text})
		x.Advance(20 * time.Millisecond) // the chain is loaded
		const packets = 40
		out := 0
		for i := range packets {
			r := x.Push("p0", frame(byte(i%5+1), "0"))
			late := x.Advance(time.Millisecond)
			for _, text := range []string{tail(r.Out["p1"]), tail(late.Out["p1"])} {
				if text == "0abcd" {
					out++
				} else if text != "" {
					t.Errorf("scheduler=%s%s: %q", c.scheduler, c.model, text)
				}
			}
		}
		b := x.App().(*board)
		if out != packets || b.runner.sched.Books().Runs != c.runs*packets {
			t.Errorf("scheduler=%s%s: %d packets, %d passes through the scheduler, want %d", c.scheduler, c.model, out, b.runner.sched.Books().Runs, c.runs*packets)
		}
		err := x.Set(graph.Args{"deployment": text, "scheduler": "other"})
		if err == nil || !strings.Contains(err.Error(), "scheduler=other: want chain or panic") {
			t.Error(err)
		}
	}
}
