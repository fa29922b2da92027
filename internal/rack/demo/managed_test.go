package demo

import (
	"context"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	steering "github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

// TestManaged: middleboxes learn every connection from the connection managers before its first request, and
// learn that it has ended.
func TestManaged(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c, clk := small(), clock.NewWall()
	c.Nodes, c.Clients = 2, 2
	nodes, err := topo.Plan(topo.Config{Compute: c.Nodes})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(16384, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire := func(a, b string) (port.Port, port.Port) { return mem.NewWire(a, b, pool, 1024, clk) }
	m0, m1 := wire("m0", "m1")
	n0, mn := wire("n0", "mn")
	bridged, server := []port.Port{m0}, ""
	cl, err := newCluster(&c, nodes, func(n *topo.Node) (port.Port, error) {
		if n.Role == topo.Memory {
			server = n.Addr.IP.String()
			return mn, nil
		}
		in, out := wire(n.Name, n.Name+"-br")
		bridged = append(bridged, out)
		return in, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"m1": {Kind: "mem"}, "n0": {Kind: "mem"}},
			Apps:  map[string]graph.AppSpec{steer: {Kind: steer}, "box": {Kind: "swordbox", Args: graph.Args{"mode": "mux", "infer": "off", "servers": server}}},
			Links: []string{"m1.out -> " + steer + ".a", steer + ".b -> box.a", "box.b -> n0.in", "n0.out -> box.b", "box.a -> " + steer + ".b", steer + ".a -> m1.in"},
		},
		Kinds: []graph.Kind{*steering.Kind(), *swordbox.Kind()}, Ports: map[string][]port.Port{"m1": {m1}, "n0": {n0}},
	})
	if err != nil {
		t.Fatal(err)
	}
	spinning, stop := context.WithCancel(ctx)
	spun := make(chan error, 1)
	go func() {
		spun <- host.Spin(spinning, clk, append(cl.Workers(), host.NewBridge(bridged...), &inner{inst, boxOf(&c)})...)
	}()
	defer func() {
		stop()
		if err := <-spun; err != nil {
			t.Error(err)
		}
	}()
	conns := 0
	for _, k := range cl.Connections() {
		if k.Memory {
			conns++
		}
	}
	known := func(from string, n int) {
		t.Helper()
		all, err := inst.Report("box")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all[0].(swordbox.Report).Servers {
			if s.Conns != n || n > 0 && len(s.Connections) == 0 {
				t.Errorf("%s: %d connections, want %d", s.Addr, s.Conns, n)
			}
			for _, k := range s.Connections {
				if k.From != from {
					t.Errorf("%+v", k)
				}
			}
		}
		// A bridge sends a frame to all ports while it does not know the address's port, so handshakes of
		// other machines begin here, too.
		for _, k := range inst.Counters() {
			if k.Node == steer && k.Name == "conns" && (k.Value < uint64(n) || n == 0 && k.Value > uint64(len(nodes))) {
				t.Errorf("%s: %d connections, want %d", steer, k.Value, n)
			}
		}
	}
	if err := await(ctx, cl.Err, cl.Connected); err != nil {
		t.Fatal(err)
	}
	known("cm", conns)
	cl.Start(clover.Load{MaxOps: 200})
	if err := await(ctx, cl.Err, cl.Stopped); err != nil {
		t.Fatal(err)
	}
	known("cm", conns)
	cl.End()
	if err := await(ctx, cl.Err, cl.Ended); err != nil {
		t.Fatal(err)
	}
	known("cm", 0)
	if err := cl.Err(); err != nil {
		t.Error(err)
	}
}
