package figure

import (
	"context"
	"strconv"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/tor/clover"
)

// The curves of words21-3: all memory that steering takes, and the part of it that corresponds to the
// paper's: a key and its tail.
const (
	nameMetadata = "metadata bytes"
	nameKeysOnly = "keys and tails alone"
)

// memoryJobs makes the jobs of words21-3: the sizes of clover-steer's tables.
func memoryJobs(p *Published, par Params) ([]job, error) {
	var jobs []job
	for _, c := range p.Quantities[0].Series[0].Points {
		keys := int(c.x)
		jobs = append(jobs, job{
			name: strconv.Itoa(keys) + " keys",
			cost: c.x + 1000,
			run: func(context.Context, func(float64)) ([]Value, error) {
				m, err := steeringMemory(keys)
				if err != nil {
					return nil, err
				}
				return []Value{
					{Series: nameMetadata, X: c.x, Y: float64(m.Keys + m.Addresses)},
					{Series: nameKeysOnly, X: c.x, Y: float64(m.Keys)},
				}, nil
			},
		})
	}
	return jobs, nil
}

// steeringMemory returns the memory that clover-steer reports when it is built for so many keys.
func steeringMemory(keys int) (clover.Memory, error) {
	const name = "clover-steer"
	clk := clock.NewManual(0)
	pool, err := packet.NewPool(packet.MaxBatch, 2048, nil)
	if err != nil {
		return clover.Memory{}, err
	}
	a, _ := mem.NewWire("a", "clients", pool, 1, clk)
	b, _ := mem.NewWire("b", "servers", pool, 1, clk)
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
			Apps:  map[string]graph.AppSpec{name: {Kind: name, Args: graph.Args{"keys": strconv.Itoa(keys)}}},
			Links: []string{"a.out -> " + name + ".a", name + ".b -> b.in", "b.out -> " + name + ".b", name + ".a -> a.in"},
		},
		Kinds: []graph.Kind{*clover.Kind()},
		Ports: map[string][]port.Port{"a": {a}, "b": {b}},
		Clock: clk,
		Seed:  1,
	})
	if err != nil {
		return clover.Memory{}, err
	}
	defer inst.Close()
	return inst.App(name, 0).(graph.Reporter).Report().(clover.Report).Memory, nil
}
