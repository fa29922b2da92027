package open

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// Packet sockets' ports change while the graph runs: another argument, another name, each other's interfaces; and who has none any more leaves its interface to others.
func TestAttack10PacketPortsChange(t *testing.T) {
	inVeth(t)
	parse := func(src string) *graph.Spec {
		spec, err := graph.ParseSpec([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	const first = "ports: {t: {kind: tap, args: {dev: tap0}}, x: {kind: afpacket, args: {dev: va}}, y: {kind: afpacket, args: {dev: vb}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"
	clk := clock.NewWall()
	for _, c := range []struct{ name, to string }{
		{"argument", "ports: {t: {kind: tap, args: {dev: tap0}}, x: {kind: afpacket, args: {dev: va, frames: 8192}}, y: {kind: afpacket, args: {dev: vb}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"},
		{"name", "ports: {t: {kind: tap, args: {dev: tap0}}, z: {kind: afpacket, args: {dev: va}}, y: {kind: afpacket, args: {dev: vb}}}\nlinks: [z.out -> y.in, y.out -> z.in]\n"},
		{"swap", "ports: {t: {kind: tap, args: {dev: tap0}}, x: {kind: afpacket, args: {dev: vb}}, y: {kind: afpacket, args: {dev: va}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"},
		{"gone", "ports: {t: {kind: tap, args: {dev: tap0}}}\nlinks: [t.out -> t.in]\n"},
	} {
		ports, err := Open(parse(first), Config{Filter: port.Filter{All: true}, Clock: clk})
		if err != nil {
			t.Fatal(c.name, err)
		}
		inst, err := graph.New(graph.Config{Spec: parse(first), Kinds: graph.Builtin(), Ports: ports.Queues(), Clock: clk, OpenPort: ports.Add, ClosedPort: ports.Closed})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- inst.Run(ctx) }()
		began := time.Now()
		p, err := inst.Plan(parse(c.to))
		if err == nil {
			err = inst.Apply(p)
		}
		if err != nil {
			t.Errorf("%s: after %v: %v", c.name, time.Since(began).Round(100*time.Millisecond), err)
		}
		cancel()
		if err := errors.Join(<-done, inst.Close(), ports.Close()); err != nil {
			t.Error(c.name, err)
		}
	}
}
