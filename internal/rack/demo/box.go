package demo

import (
	"fmt"
	"maps"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/clover"
)

// steer is the name of the steering app in the middlebox's graph. It is the name of the app's kind, which
// quillon run --nf uses.
const steer = "clover-steer"

// boxed describes the middlebox between clients and memory node, for a store.
type boxed struct {
	app  string // name of the kind, and of the app
	args graph.Args
	kind *graph.Kind
}

// boxOf returns the middlebox for Clover.
func boxOf(c *Config) *boxed {
	return &boxed{steer, graph.Args{"mode": "off", "keys": fmt.Sprint(c.Keys)}, clover.Kind()}
}

// nf returns the app as --nf takes it.
func (b *boxed) nf() string {
	s := b.app
	for _, k := range slices.Sorted(maps.Keys(b.args)) {
		s += "," + k + "=" + b.args[k]
	}
	return s
}

// sum returns the totals of a graph's counters.
func (b *boxed) sum(counts []graph.Count, ports []graph.PortInfo) Totals {
	var t Totals
	for _, c := range counts {
		if c.Node != b.app {
			continue
		}
		switch c.Group + " " + c.Name {
		case "counter requests", "counter responses":
			t.Packets += c.Value
		case "counter roce-bytes":
			t.Bytes += c.Value
		case "reason steered-cas", "reason steered-read":
			t.Steered += c.Value
		case "counter moved":
			t.Moved += c.Value
		case "counter replaced":
			t.Replaced += c.Value
		}
	}
	for _, p := range ports {
		for _, q := range p.Queues {
			t.Missed += q.Missed
		}
	}
	return t
}

// inner is a middlebox in this process. It has the same graph as outer, and implements host.Worker.
type inner struct {
	inst *graph.Instance
	box  *boxed
}

// newInner makes a graph with the app between two ports.
func newInner(c *Config, x *boxed, a, b port.Port) (*inner, error) {
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"m1": {Kind: "mem"}, "n0": {Kind: "mem"}},
			Apps:  map[string]graph.AppSpec{x.app: {Kind: x.app, Args: x.args}},
			Links: []string{
				"m1.out -> " + x.app + ".a", x.app + ".b -> n0.in",
				"n0.out -> " + x.app + ".b", x.app + ".a -> m1.in",
			},
		},
		Kinds: []graph.Kind{*x.kind},
		Ports: map[string][]port.Port{"m1": {a}, "n0": {b}},
		Seed:  c.Seed,
	})
	if err != nil {
		return nil, err
	}
	return &inner{inst, x}, nil
}

// SetMode implements Box.
func (b *inner) SetMode(mode string) error {
	_, err := b.inst.Set(b.box.app, graph.Args{"mode": mode})
	return err
}

// Totals implements Box.
func (b *inner) Totals() (Totals, error) { return b.box.sum(b.inst.Counters(), nil), nil }

// Breath implements host.Worker.
func (b *inner) Breath(now clock.Time) (int, error) { return b.inst.Step(now) }

// Deadline implements host.Worker.
func (b *inner) Deadline() clock.Time { return b.inst.NextTick() }
