package demo

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// InNamespaces runs the demo in network namespaces: the endpoints in this process, on AF_XDP sockets of their
// machines, the middlebox (quillon run) in another process. Without privileges, or without AF_XDP, the error
// wraps port.ErrNotSupported. However the run ends, nothing is left behind.
func InNamespaces(ctx context.Context, clk clock.Clock, c Config, quillon Command, show func(clock.Time, Progress)) (_ *Result, err error) {
	show(clk.Now(), Progress{Step: "building the rack"})
	r, err := raise(ctx, clk, &c, quillon)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	breathe := func(ctx context.Context) error { return r.cables.breathe(ctx, clk, r.load.Workers()) }
	if runtime.NumCPU() > len(r.top.Nodes)+2 && r.cluster != nil {
		breathe = func(ctx context.Context) error { return r.cluster.Run(ctx, clk) }
	}
	res, err := drive(ctx, clk, c, r.load, r.box, breathe, show)
	if err != nil {
		return nil, err
	}
	res.Wire = r.cables.kind + " on veth pairs, Linux bridge, middlebox inline as a process"
	return res, nil
}

// rack is everything that runs in namespaces.
type rack struct {
	top     *topo.Topology
	cables  cables
	load    stage
	cluster *clover.Cluster // nil: the store is not Clover
	box     *outer
}

// raise builds a rack. The endpoints do nothing yet.
func raise(ctx context.Context, clk clock.Clock, c *Config, quillon Command) (_ *rack, err error) {
	r := &rack{}
	if r.top, err = topo.New(topo.Config{Compute: c.Nodes, MTU: c.MTU, IPv6: c.IPv6}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	var box *boxed
	if r.load, box, err = newLoad(clk, c, r.top.Nodes, func(n *topo.Node) (port.Port, error) { return r.cables.open(clk, n) }); err != nil {
		return nil, err
	}
	if s, ok := r.load.(*cluster); ok {
		r.cluster = s.Cluster
	}
	if r.box, err = startOuter(ctx, r.top, box, quillon); err != nil {
		return nil, fmt.Errorf("middlebox: %w", err)
	}
	return r, nil
}

// Close removes the rack.
func (r *rack) Close() error {
	var errs []error
	if r.box != nil {
		errs = append(errs, r.box.Close())
	}
	return errors.Join(append(errs, r.cables.Close(), r.top.Close())...)
}

// cables are the ports of the nodes in their namespaces.
type cables struct {
	kind  string // kind of the ports
	ports []port.Port
	close []func() error
}

// open binds a node's interface.
func (c *cables) open(clk clock.Clock, n *topo.Node) (port.Port, error) {
	var dev *afxdp.Device
	err := n.Space.Do(func() (err error) {
		dev, err = afxdp.Open(afxdp.Config{Name: n.Name, Interface: topo.Interface, Options: afxdp.Options{Clock: clk, Transient: true}})
		return err
	})
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, func() error { return n.Space.Do(dev.Close) })
	c.ports = append(c.ports, dev.Ports[0])
	c.kind = "AF_XDP"
	return dev.Ports[0], nil
}

// Close closes the ports, which restores the interfaces.
func (c *cables) Close() error {
	var errs []error
	for _, f := range c.close {
		errs = append(errs, f())
	}
	c.close = nil
	return errors.Join(errs...)
}

// breathe runs all endpoints in turn on one thread, which waits for all their ports together when there is
// nothing to do. On a machine with few cores, a thread for each endpoint would only take processor time from
// the middlebox.
func (c *cables) breathe(ctx context.Context, clk clock.Clock, workers []host.Worker) error {
	return host.SpinOn(ctx, clk, c.ports, workers...)
}
