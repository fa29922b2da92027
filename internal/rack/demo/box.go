package demo

import (
	"fmt"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/clover"
)

// steer is the steering app's name in the middlebox's graph: its kind's, as
// quillon run --nf names it.
const steer = "clover-steer"

// nf is the app as --nf takes it.
func nf(c *Config) string { return fmt.Sprintf("%s,mode=off,keys=%d", steer, c.Keys) }

// sum adds up what a graph counted.
func sum(counts []graph.Count, ports []graph.PortInfo) Totals {
	var t Totals
	for _, c := range counts {
		if c.Node != steer {
			continue
		}
		switch c.Group + " " + c.Name {
		case "counter requests", "counter responses":
			t.Packets += c.Value
		case "counter roce-bytes":
			t.Bytes += c.Value
		case "reason steered-cas", "reason steered-read":
			t.Steered += c.Value
		}
	}
	for _, p := range ports {
		for _, q := range p.Queues {
			t.Missed += q.Missed
		}
	}
	return t
}

// inner is a middlebox in this process: the graph of the other one, driven by
// whoever breathes it. It implements host.Worker.
type inner struct{ inst *graph.Instance }

// newInner puts the steering app between two ports.
func newInner(c *Config, a, b port.Port) (*inner, error) {
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"m1": {Kind: "mem"}, "n0": {Kind: "mem"}},
			Apps: map[string]graph.AppSpec{steer: {Kind: steer, Args: graph.Args{
				"mode": "off", "keys": fmt.Sprint(c.Keys),
			}}},
			Links: []string{
				"m1.out -> " + steer + ".a", steer + ".b -> n0.in",
				"n0.out -> " + steer + ".b", steer + ".a -> m1.in",
			},
		},
		Kinds: []graph.Kind{*clover.Kind()},
		Ports: map[string][]port.Port{"m1": {a}, "n0": {b}},
		Seed:  c.Seed,
	})
	if err != nil {
		return nil, err
	}
	return &inner{inst}, nil
}

// SetMode implements Box.
func (b *inner) SetMode(mode string) error {
	_, err := b.inst.Set(steer, graph.Args{"mode": mode})
	return err
}

// Totals implements Box.
func (b *inner) Totals() (Totals, error) { return sum(b.inst.Counters(), nil), nil }

// Breath implements host.Worker.
func (b *inner) Breath(now clock.Time) (int, error) { return b.inst.Step(now) }

// Deadline implements host.Worker.
func (b *inner) Deadline() clock.Time { return b.inst.NextTick() }
