package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// clioMTU is the MTU of the links: Clio's 1500 bytes, and room for what the last hop adds.
const clioMTU = 1600

// clioPlace is the ports of clients and devices, with or without a board between them.
type clioPlace struct {
	kind             string
	clients, devices []clioMachine
	// workers are those beside the endpoints; breathe runs workers until ctx is done.
	workers []host.Worker
	breathe func(ctx context.Context, workers []host.Worker) error
	counts  func() ([]graph.Count, []graph.PortInfo, error) // of the board; nil: there is no board
	close   func() error
}

// clioMachine is a port and the address of its machine.
type clioMachine struct {
	port port.Port
	end  wire.End
}

func endOf(n *topo.Node) wire.End { return wire.End{MAC: n.Addr.MAC, IP: n.Addr.IP.As4()} }

// clioInMemory makes a place in this process, on wires in memory.
func clioInMemory(clk clock.Clock, c *ClioConfig, v *clioVariant, kinds []graph.Kind) (*clioPlace, error) {
	nodes, err := topo.Plan(topo.Config{Compute: c.Clients, Memory: v.devices(c)})
	if err != nil {
		return nil, err
	}
	pool, err := packet.NewPool(2*1024*(2*len(nodes)+4)+8192, 128+14+clioMTU+64, nil)
	if err != nil {
		return nil, err
	}
	link := func(a, b string) (port.Port, port.Port) { return mem.NewWire(a, b, pool, 1024, clk) }
	p := &clioPlace{kind: "wires in memory, one process", close: func() error { return nil }}
	var front, back []port.Port
	for i := range nodes {
		n := &nodes[i]
		if n.Role == topo.Metadata {
			continue
		}
		near, far := link(n.Name, n.Name+"-sw")
		m := clioMachine{near, endOf(n)}
		switch {
		case n.Role == topo.Compute:
			p.clients, front = append(p.clients, m), append(front, far)
		default:
			p.devices, back = append(p.devices, m), append(back, far)
		}
	}
	if v.tasks == nil {
		p.workers = []host.Worker{host.NewBridge(append(front, back...)...)}
	} else {
		m0, m1 := link("m0", "m1")
		n0 := back[0]
		if len(back) > 1 {
			b0, x := link("b0", "n0")
			p.workers, n0 = append(p.workers, host.NewBridge(append(back, b0)...)), x
		}
		inst, err := graph.New(graph.Config{Spec: v.spec(c, p.devices, "mem"), Kinds: kinds, Ports: map[string][]port.Port{"m1": {m1}, "n0": {n0}}, Seed: c.Seed})
		if err != nil {
			return nil, err
		}
		p.workers = append(p.workers, host.NewBridge(append(front, m0)...), &inner{inst, nil})
		p.counts = func() ([]graph.Count, []graph.PortInfo, error) { return inst.Counters(), inst.Ports(), nil }
		p.close = inst.Close
	}
	p.breathe = func(ctx context.Context, workers []host.Worker) error { return host.Spin(ctx, clk, workers...) }
	return p, nil
}

// spec returns the graph of the board: its functions between the ports n0, to the devices, and m1, to the
// clients.
func (v *clioVariant) spec(c *ClioConfig, devices []clioMachine, kind string) *graph.Spec {
	var ends []wire.End
	for _, d := range devices {
		ends = append(ends, d.end)
	}
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{},
		Apps:  map[string]graph.AppSpec{"nic": {Kind: "snic", Args: graph.Args{"deployment": v.board(c, ends)}}},
		Links: []string{"m1.out -> nic.p1", "nic.p1 -> m1.in"},
	}
	for _, x := range [][2]string{{"n0", "m1"}, {"m1", "n0"}} {
		s.Ports[x[0]] = graph.PortSpec{Kind: kind}
		if kind == "afxdp" {
			s.Ports[x[0]] = graph.PortSpec{Kind: kind, Args: graph.Args{"dev": x[0], "pair": x[1]}}
		}
	}
	if v.hop {
		s.Apps["hop"] = graph.AppSpec{Kind: "hop", Args: graph.Args{"rate": "10Gbit", "timeout": hopTimeout.String()}}
		s.Links = append(s.Links, "nic.p0 -> hop.a", "hop.a -> nic.p0", "hop.b -> n0.in", "n0.out -> hop.b")
	} else {
		s.Links = append(s.Links, "n0.out -> nic.p0", "nic.p0 -> n0.in")
	}
	return s
}

// clioInNamespaces makes a place in network namespaces: endpoints in this process, the board in another one.
func clioInNamespaces(ctx context.Context, clk clock.Clock, c *ClioConfig, v *clioVariant, quillon Command) (_ *clioPlace, err error) {
	top, err := topo.New(topo.Config{Compute: c.Clients, Memory: v.devices(c), Flat: v.tasks == nil, MTU: clioMTU})
	if err != nil {
		return nil, err
	}
	var lines cables
	var board *outer
	p := &clioPlace{}
	p.close = func() error {
		var errs []error
		if board != nil {
			errs = append(errs, board.Close())
		}
		return errors.Join(append(errs, lines.Close(), top.Close())...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for i := range top.Nodes {
		n := &top.Nodes[i]
		if n.Role == topo.Metadata {
			continue
		}
		q, err := lines.open(clk, n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		if m := (clioMachine{q, endOf(n)}); n.Role == topo.Compute {
			p.clients = append(p.clients, m)
		} else {
			p.devices = append(p.devices, m)
		}
	}
	p.kind = lines.kind + " on veth pairs, Linux bridges, the board a process"
	p.breathe = func(ctx context.Context, workers []host.Worker) error { return lines.breathe(ctx, clk, workers) }
	if v.tasks == nil {
		return p, nil
	}
	if board, err = startBoard(ctx, top, v.spec(c, p.devices, "afxdp"), quillon); err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	p.counts = board.counts
	// The board's ports were down for a moment.
	return p, top.Forwards()
}

// startBoard starts a spec in the switch's namespace, and waits until the process answers.
func startBoard(ctx context.Context, top *topo.Topology, spec *graph.Spec, quillon Command) (_ *outer, err error) {
	text, err := spec.Marshal()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp("", "quillon-clio-*.yaml")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	b := &outer{space: top.Switch, cmd: quillon}
	b.cmd.Nice = niceness
	b.cmd.Args = append(slices.Clone(quillon.Args), "run", f.Name(), "--control", control, "--state", "none")
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// counts returns the board's counters and ports.
func (b *outer) counts() (counts []graph.Count, ports []graph.PortInfo, err error) {
	err = b.ask(func(c *admin.Client) error {
		var p admin.Ports
		if counts, err = c.Counters(); err == nil {
			p, err = c.Ports()
		}
		ports = p.Ports
		return err
	})
	return counts, ports, err
}
