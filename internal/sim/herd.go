package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/quillon/quillon/internal/rack/herd"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// HerdRequest is how long a core of a HERD server works on a request: 6.69 million a second and core without batches, as HERD's authors measured
// on an E5-2683 v3 (github.com/efficient/rdma_bench, herd/README.md).
const HerdRequest = 149 * time.Nanosecond

// HerdConfig describes a run of HERD on a rack: client hosts and a server. Zero values take the defaults given with them.
type HerdConfig struct {
	// Cores of the server; 0 = 1. Request is how long each works on a request; 0 = HerdRequest.
	Cores   int
	Request time.Duration
	// Keys are there at first; 0 = 100,000. Value is the size of values; 0 = 64.
	Keys, Value int
	StoreLoad
	Network Network // zero: Rack100G
}

// HerdMeasured is what the clients did in the window. Latencies of writes are those of PUTs.
type HerdMeasured struct {
	StoreMeasured
	// Mean is the mean latency of all operations.
	Mean  float64          `json:"mean_us"`
	Again uint64           `json:"again"` // requests that were written again
	Stats herd.ServerStats `json:"stats"`
}

func (c *HerdConfig) defaults() error {
	c.Cores = cmp.Or(c.Cores, 1)
	c.Keys = cmp.Or(c.Keys, 100_000)
	c.Value = cmp.Or(c.Value, 64)
	c.Request = cmp.Or(c.Request, HerdRequest)
	if err := c.StoreLoad.defaults("HERD"); err != nil {
		return err
	}
	switch {
	case c.Keys < 1 || c.Keys > 1<<22 || c.Request < 0:
		return errors.New("sim: a simulated server of HERD has 1 to 2^22 keys, and its cores take no negative time")
	case c.Box != "":
		return errors.New("sim: a box has nothing to do before HERD, which has no atomics")
	}
	return nil
}

// herdRun is a run's server and clients.
type herdRun struct {
	storeRun
	*HerdConfig
	m       HerdMeasured
	layout  herd.Layout
	server  *herd.Server
	machine *Machine
	nic     *rnic.NIC
	all     []*herd.Client
	keys    []uint64
	sum     time.Duration
}

// Herd measures a run of HERD: the state machines of rack/herd on the modelled rack.
func Herd(ctx context.Context, c HerdConfig) (HerdMeasured, error) {
	if err := c.defaults(); err != nil {
		return HerdMeasured{}, err
	}
	r := &herdRun{HerdConfig: &c, layout: herd.Layout{Cores: c.Cores, Sessions: c.Clients, Value: c.Value}, keys: ycsb.Sequential(1, c.Keys)}
	r.storeRun = newStoreRun(&c.StoreLoad, &r.m.StoreMeasured)
	r.network = c.Network
	err := r.run(ctx, r.attach, nil)
	if r.server != nil {
		r.m.Stats = r.server.Stats()
	}
	for _, c := range r.all {
		r.m.Again += c.Stats().Again
	}
	r.m.Mean = share(float64(r.sum)/1e3, float64(r.m.Ops))
	return r.m, err
}

// attach puts the server and the hosts on the rack.
func (r *herdRun) attach(w *World) (err error) {
	if r.machine, err = w.Attach("server", r.NIC); err != nil {
		return err
	}
	if r.nic, err = w.rnicOn(r.machine, r.Seed); err != nil {
		return err
	}
	if r.server, err = herd.NewServer(r.nic, herd.ServerConfig{Layout: r.layout, Keys: r.Keys, Request: r.Request}); err != nil {
		return err
	}
	value := make([]byte, r.Value)
	for _, k := range r.keys {
		binary.LittleEndian.PutUint16(value[:min(2, len(value))], uint16(k))
		if err := r.server.Put(k, value); err != nil {
			return err
		}
	}
	r.machine.Drive(host.NewNode(r.machine.Port(), r.nic, r.server))
	return r.hosts(w, r.keys, 0, r.client)
}

// client makes the clients of a host, with their queue pairs.
func (r *herdRun) client(h *storeHost) (host.App, error) {
	value, turn := make([]byte, r.Value), uint16(0)
	c, err := herd.NewClient(herd.Config{Layout: r.layout, Region: r.server.Region(), First: h.first, N: h.clients, CQ: h.cq, Again: 10 * time.Millisecond,
		Next: func(_ clock.Time, session int) (herd.Op, bool) {
			o := h.gens[session].Next()
			if !o.Write {
				return herd.Op{Key: o.Key}, true
			}
			turn++
			binary.LittleEndian.PutUint16(value[:min(2, len(value))], turn)
			return herd.Op{Kind: herd.Put, Key: o.Key, Value: value}, true
		}, Done: r.done})
	if err != nil {
		return nil, err
	}
	for k := range h.clients {
		q, err := herd.Requests(h.pd, h.nic, h.cq)
		if err != nil {
			return nil, err
		}
		p, err := r.server.Listen()
		if err != nil {
			return nil, err
		}
		ud, err := herd.Datagrams(h.pd, h.nic, h.cq)
		if err != nil {
			return nil, err
		}
		there, here := rnic.DefaultConn(), rnic.DefaultConn()
		there.RemoteMAC, there.RemoteIP, there.DestQPN = r.machine.MAC, r.machine.IP, p.QPN
		here.RemoteMAC, here.RemoteIP, here.DestQPN = h.m.MAC, h.m.IP, q.QPN
		if err := errors.Join(q.Connect(there), p.Connect(here), c.Connect(k, q, ud), r.server.Admit(h.first+k, rnic.AH{MAC: h.m.MAC, IP: h.m.IP, QPN: ud.QPN})); err != nil {
			return nil, err
		}
		h.m.Bind(r.machine, p.QPN, k)
	}
	r.all = append(r.all, c)
	return c, nil
}

// done counts an operation.
func (r *herdRun) done(o *herd.Result) {
	if o.Err != nil || !o.Found {
		r.m.Errors++
		return
	}
	if r.open {
		r.sum += time.Duration(o.End.Sub(o.Start))
	}
	r.did(o.Kind != herd.Get, o.Start, o.End, onesided.Cost{Messages: 2 * o.Asked})
}
