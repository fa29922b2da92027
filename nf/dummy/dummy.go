// Package dummy is a function that does nothing and takes a settable time for
// it: for experiments with what is around it.
package dummy

import (
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Kind declares dummy.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "dummy",
		Summary: "passes frames from a to b and from b to a, untouched, and takes a while",
		Doc: `The worker is busy for cost= a frame, by its clock, and does nothing else
meanwhile. Where time stands still while a breath lasts, as in replay and in
simulations, it costs nothing.

  quillon run --inline eth1,eth2 --nf dummy,cost=500ns`,
		In:     []string{"a", "b"},
		Out:    []string{"a", "b"},
		Params: []graph.Param{{Name: "cost", Default: "0s", Help: "time that a frame takes, at most 1ms; can be changed while running"}},
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			d := &dummy{clk: env.Clock}
			return d, d.Reconfigure(args)
		},
	}
}

type dummy struct {
	clk  clock.Clock
	cost time.Duration
}

// Reconfigure implements graph.Reconfigurer.
func (d *dummy) Reconfigure(args graph.Args) error {
	cost := time.Duration(0)
	r := arg.Read("dummy", args)
	r.Duration("cost", &cost, 0, time.Millisecond)
	if r.Err() == nil {
		d.cost = cost
	}
	return r.Err()
}

// Push implements graph.App.
func (d *dummy) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if d.clk != nil && d.cost > 0 {
		// A batch leaves the app as a whole: one wait for all is the same.
		for end := d.clk.Now().Add(d.cost * time.Duration(b.Len())); d.clk.Now() < end; {
		}
	}
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}
