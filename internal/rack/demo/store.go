package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/rnic"
)

// mixes are the workloads by letter.
var mixes = map[string]ycsb.Mix{"A": ycsb.A, "B": ycsb.B, "C": ycsb.C, "W": ycsb.W}

// stage is a store with its clients, as a run drives them while the workers are run elsewhere.
type stage interface {
	Clients
	joiner
	Workers() []host.Worker
	// Verdict checks the store at rest; Walking describes that for the progress.
	Verdict() Integrity
	Walking() string
}

// joiner is what makes and ends connections, and works over them. Its methods may be called from any goroutine.
type joiner interface {
	Connected() bool
	Start()
	Stop()      // no operation begins any more
	Idle() bool // none is under way
	End()       // ends all connections
	Ended() bool
	Err() error
}

// await waits until so returns true, while other goroutines run the clients. It returns an error of failed at
// once.
func await(ctx context.Context, failed func() error, so func() bool) error {
	for !so() {
		if err := failed(); err != nil {
			return err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// leave stops clients, and ends their connections.
func leave(ctx context.Context, clients joiner) error {
	clients.Stop()
	if err := await(ctx, clients.Err, clients.Idle); err != nil {
		return err
	}
	clients.End()
	return await(ctx, clients.Err, clients.Ended)
}

// newLoad makes the store of a run and its clients on the nodes' ports, and returns the middlebox for them.
func newLoad(clk clock.Clock, c *Config, nodes []topo.Node, open func(n *topo.Node) (port.Port, error)) (stage, *boxed, error) {
	if c.Store != cloverName {
		return newOther(clk, c, nodes, open)
	}
	s, err := newCluster(c, nodes, open)
	if err != nil {
		return nil, nil, err
	}
	return &cluster{Cluster: s}, boxOf(c), nil
}

// newCluster makes a Clover store and its clients on the nodes' ports.
func newCluster(c *Config, nodes []topo.Node, open func(n *topo.Node) (port.Port, error)) (*clover.Cluster, error) {
	var rack clover.Rack
	for i := range nodes {
		n := &nodes[i]
		p, err := open(n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		m := clover.Machine{Name: n.Name, Port: p, MAC: n.Addr.MAC, IP: n.Addr.IP}
		switch n.Role {
		case topo.Compute:
			rack.Compute = append(rack.Compute, m)
		case topo.Memory:
			rack.Memory = append(rack.Memory, m)
		case topo.Metadata:
			rack.Metadata = m
		}
	}
	search, err := c.search()
	if err != nil {
		return nil, err
	}
	return clover.New(clover.Config{
		Keys: ycsb.Sequential(1, c.Keys), Slab: c.Entry, Sessions: c.Clients, Search: search,
		Mix: mixes[c.Workload], Theta: c.Zipf, Seed: c.Seed, LinkMTU: c.MTU, Profile: rnic.ConnectX, CM: c.CM,
	}, rack)
}

// cluster implements stage for Clover.
type cluster struct {
	*clover.Cluster
	window clover.Window
}

func (s *cluster) Live() Ops {
	v := s.Cluster.Live()
	return Ops{Done: v.Ops, FirstTry: v.FirstTry, Failed: v.Errors}
}

func (s *cluster) Begin() { s.window = s.Cluster.Begin() }

func (s *cluster) Measured(ctx context.Context) (Measured, error) {
	s.window.EndSoon()
	if err := await(ctx, s.Err, s.window.Ended); err != nil {
		return Measured{}, err
	}
	m := s.window.Measured()
	return Measured{
		Ops:     Ops{Done: m.Ops, FirstTry: m.FirstTry, Failed: m.Errors},
		Elapsed: m.Elapsed, Read: latency(m.Read), Write: latency(m.Write),
	}, nil
}

// latency returns percentiles of a histogram of nanoseconds.
func latency(h *hdrhistogram.Histogram) Latency {
	if h.TotalCount() == 0 {
		return Latency{None(), None(), None()}
	}
	at := func(q float64) Micros { return Micros(float64(h.ValueAtQuantile(q)) / float64(time.Microsecond)) }
	return Latency{at(50), at(99), at(99.9)}
}

func (s *cluster) Start() { s.Cluster.Start(clover.Load{}) }

func (s *cluster) Stop() { s.StopSoon() }

func (s *cluster) Idle() bool { return s.Stopped() }

func (s *cluster) Walking() string { return "walking the chains" }

func (s *cluster) Verdict() Integrity { return verdict(s.Integrity()) }

// verdict converts a verdict of Clover's. Walks of the metadata server that met a broken link count as broken
// links.
func verdict(v clover.Integrity) Integrity {
	return Integrity{Keys: v.Keys, AckedWrites: v.AckedWrites, Lost: v.Lost, BrokenLinks: v.BrokenLinks + v.BrokenWalks}
}
