package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// wireDepth is the number of frames that a wire in memory holds in each direction.
const wireDepth = 4096

// InMemory runs the demo in this process: endpoints, bridge and middlebox take turns on one goroutine, on
// wires in memory.
func InMemory(ctx context.Context, clk clock.Clock, c Config, show func(clock.Time, Progress)) (*Result, error) {
	nodes, err := topo.Plan(topo.Config{Compute: c.Nodes, IPv6: c.IPv6})
	if err != nil {
		return nil, err
	}
	// Room for every wire full in both directions, and for what the endpoints hold.
	pool, err := packet.NewPool(2*wireDepth*(len(nodes)+1)+4096, 128+14+c.MTU+64, nil)
	if err != nil {
		return nil, err
	}
	wire := func(a, b string) (port.Port, port.Port) { return mem.NewWire(a, b, pool, wireDepth, clk) }
	m0, m1 := wire("m0", "m1")
	n0, mn := wire("n0", "mn")
	bridged := []port.Port{m0}
	l, box, err := newLoad(clk, &c, nodes, func(n *topo.Node) (port.Port, error) {
		if n.Role == topo.Memory {
			return mn, nil
		}
		in, out := wire(n.Name, n.Name+"-br")
		bridged = append(bridged, out)
		return in, nil
	})
	if err != nil {
		return nil, err
	}
	in, err := newInner(&c, box, m1, n0)
	if err != nil {
		return nil, err
	}
	workers := append(l.Workers(), host.NewBridge(bridged...), in)
	spin := func(ctx context.Context) error { return host.Spin(ctx, clk, workers...) }
	r, err := drive(ctx, clk, c, l, in, spin, show)
	if err != nil {
		return nil, err
	}
	r.Wire = "wires in memory, one process"
	return r, nil
}

// drive runs the phases while breathe runs the endpoints. Then it ends the operations and the connections,
// and checks the store.
func drive(ctx context.Context, clk clock.Clock, c Config, s stage, box Box, breathe func(context.Context) error, show func(clock.Time, Progress)) (_ *Result, err error) {
	// After an interrupt the endpoints must go on until the run has noticed it, but the run must not go on
	// without the endpoints.
	alive, dead := context.WithCancelCause(ctx)
	breathing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		err := breathe(breathing)
		if err == nil {
			err = errors.New("the endpoints stopped")
		}
		dead(err)
		ended <- err
	}()
	rest := func() {
		stop()
		<-ended
	}
	show(clk.Now(), Progress{Step: "connecting"})
	first, done := context.WithTimeout(alive, stuck)
	err = await(first, s.Err, s.Connected)
	done()
	if err != nil {
		rest()
		return nil, fmt.Errorf("connections are not made: %w", err)
	}
	s.Start()
	phases, err := Run(alive, clk, c, s, box, show)
	if err != nil {
		rest()
		return nil, err
	}
	show(clk.Now(), Progress{Step: "waiting for the last operations"})
	last, done := context.WithTimeout(alive, stuck)
	err = leave(last, s)
	done()
	rest()
	if err != nil {
		return nil, cmp.Or(s.Err(), fmt.Errorf("operations or connections do not end: %w", err))
	}
	show(clk.Now(), Progress{Step: s.Walking()})
	r := &Result{Setting: here(), Config: c, Phases: phases, Integrity: s.Verdict()}
	return r, s.Err()
}
