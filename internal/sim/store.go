package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/swordbox"
)

// StoreLoad is what clients of a store whose memory nodes only execute verbs do on a rack, whichever store it is. Zero
// values take the defaults given with them.
type StoreLoad struct {
	// Hosts are client hosts; 0 = 8. Clients are spread over them; 0 = 8.
	Hosts, Clients int
	// Writes is the share of operations that write.
	Writes float64
	// Zipf is the exponent of the keys' popularity; 0 = all alike. Items is of how many
	// keys it is; 0 = those that are there. More than are there share their places.
	Zipf  float64
	Items int

	// Box is the mode of a swordbox in the switch, at line rate, in front of the only memory
	// node: mux or replace; "" = there is none.
	Box string

	NIC  NIC // zero: ConnectX5
	Seed uint64
	// Warmup and Measure are virtual time; 0 = 200 us and 1 ms.
	Warmup, Measure time.Duration
	// Progress is told the share of the run that is done.
	Progress func(done float64)
}

// StoreMeasured is what the clients did in the window.
type StoreMeasured struct {
	Ops, Writes  uint64
	OpsPerSecond float64 `json:"ops_per_second"`
	Read         Micros  `json:"read_us"`
	Write        Micros  `json:"write_us"`
	// Messages and bytes of an operation, as the authors of RCuckoo count them.
	ReadMessages  float64 `json:"messages_per_read"`
	WriteMessages float64 `json:"messages_per_write"`
	ReadBytes     float64 `json:"bytes_per_read"`
	WriteBytes    float64 `json:"bytes_per_write"`
	// Moved are CASes that the box sent on a shared connection, Replaced those of them that
	// it sent as WRITEs.
	Moved    uint64 `json:"moved"`
	Replaced uint64 `json:"replaced"`
	Errors   uint64 `json:"errors"`
	Full     bool   `json:"full"` // the store
	Events   uint64 `json:"events"`
}

// mostClients is the most clients that a load may have.
const mostClients = 1 << 14

// Load is l; configurations of stores have it.
func (l *StoreLoad) Load() *StoreLoad { return l }

// Check refuses a run in which operations failed or none ended, or the store was full.
func (m *StoreMeasured) Check() error {
	if m.Errors > 0 || m.Full || m.Ops == 0 {
		return fmt.Errorf("%d operations, and %d failed (full: %v)", m.Ops, m.Errors, m.Full)
	}
	return nil
}

func (l *StoreLoad) defaults(store string) error {
	l.Hosts = cmp.Or(l.Hosts, 8)
	l.Clients = cmp.Or(l.Clients, 8)
	l.Hosts = min(l.Hosts, l.Clients)
	l.NIC = cmp.Or(l.NIC, ConnectX5())
	l.Warmup = cmp.Or(l.Warmup, 200*time.Microsecond)
	l.Measure = cmp.Or(l.Measure, time.Millisecond)
	switch {
	case l.Hosts < 1 || l.Hosts > 1024 || l.Clients < 1 || l.Clients > mostClients:
		return fmt.Errorf("sim: a run of %s has 1 to 1024 hosts, and 1 to %d clients", store, mostClients)
	case !(l.Writes >= 0 && l.Writes <= 1):
		return errors.New("sim: a share of writes is 0 to 1")
	case l.Box != "" && l.Box != "mux" && l.Box != "replace":
		return fmt.Errorf("sim: a box moves (mux) or replaces, and does not %q", l.Box)
	case l.Warmup < 0 || l.Measure <= 0:
		return errors.New("sim: a run needs time to measure in")
	}
	return nil
}

// storeRun is what the hosts of a run share.
type storeRun struct {
	load        *StoreLoad
	m           *StoreMeasured
	nodes       []*memoryNode
	open        bool
	read, write *hdrhistogram.Histogram
	sums        [2]struct{ messages, bytes, ops float64 } // of reads, of writes
	conns       []string                                  // as tor/conn writes them
	box         *Box
	network     Network // zero: Rack100G
	apart       bool    // each client has a completion queue of its own
}

func newStoreRun(l *StoreLoad, m *StoreMeasured) storeRun {
	return storeRun{load: l, m: m, read: hdrhistogram.New(1, int64(10*time.Second), 3), write: hdrhistogram.New(1, int64(10*time.Second), 3)}
}

// run plays the world that attach furnishes: for the time to measure in, or, when until is not nil, until that is so.
func (r *storeRun) run(ctx context.Context, attach func(*World) error, until func() bool) error {
	w, err := New(Config{Network: r.network, Seed: r.load.Seed, Slots: 1<<15 + 128*min(r.load.Clients, 4096)})
	if err != nil {
		return err
	}
	if err := attach(w); err != nil {
		return err
	}
	if until != nil {
		r.open = true
		from := w.Now()
		if err := w.Until(ctx, until, from+100*Second); err != nil {
			return err
		}
		r.measured(w, (w.Now() - from).Clock().Sub(0))
		return nil
	}
	open := w.Now() + From(r.load.Warmup)
	if err := w.Steps(ctx, open, nil); err != nil {
		return err
	}
	r.open = true
	if err := w.Steps(ctx, open+From(r.load.Measure), r.load.Progress); err != nil {
		return err
	}
	r.measured(w, r.load.Measure)
	return nil
}

// node puts a memory node on the rack, whose memory serve registers.
func (r *storeRun) node(w *World, name string, seed uint64, serve func(*rnic.PD) error) (*Machine, error) {
	m, err := w.Attach(name, r.load.NIC)
	if err != nil {
		return nil, err
	}
	x, err := w.rnicOn(m, seed)
	if err != nil {
		return nil, err
	}
	n := &memoryNode{m: m, nic: x, pd: x.AllocPD(), cq: x.CreateCQ(16)}
	r.nodes = append(r.nodes, n)
	m.Drive(host.NewNode(m.Port(), x, nil))
	return m, serve(n.pd)
}

// storeHost is a host with clients, whose numbers begin at first.
type storeHost struct {
	number, clients, first int
	m                      *Machine
	nic                    *rnic.NIC
	pd                     *rnic.PD
	cq                     *rnic.CQ
	cqs                    []*rnic.CQ // of each client, where clients do not share the host's
	gens                   []*ycsb.Generator
	qps                    [][]*rnic.QP // by client, and node
}

// stream is the number of the random numbers that the k-th client of a host draws its operations by. No two clients have the same one.
// Clients of a store with a server of its own are numbered through; those of other stores begin anew at 1000 on each host, or at more if a host has more.
func (r *storeRun) stream(h *storeHost, k int) uint64 {
	if len(r.nodes) == 0 {
		return uint64(h.first + k)
	}
	return uint64(h.number*max(1000, r.load.Clients/r.load.Hosts+1) + k)
}

// dial gives a client its connection, which it has once.
func (h *storeHost) dial(client, node int) (*rnic.QP, error) {
	q := h.qps[client][node]
	if q == nil {
		return nil, errors.New("sim: the queue pair failed")
	}
	h.qps[client][node] = nil
	return q, nil
}

// mostPosted is how many requests all queue pairs of a run have room for together: these take most of its memory.
const mostPosted = 1 << 20

// hosts puts the client hosts on the rack, with queue pairs to the memory nodes, and the box. A queue pair has so many requests under way,
// or fewer if there are thousands of clients.
func (r *storeRun) hosts(w *World, keys []uint64, depth int, library func(*storeHost) (host.App, error)) (err error) {
	depth = min(depth, mostPosted/r.load.Clients)
	first := 0
	for i := range r.load.Hosts {
		h := &storeHost{number: i, clients: (r.load.Clients + r.load.Hosts - 1 - i) / r.load.Hosts, first: first}
		if err := r.host(w, h, keys, depth, library); err != nil {
			return err
		}
		first += h.clients
	}
	if r.load.Box == "" {
		return nil
	}
	// All connections are known, and nothing was under way before.
	r.box, err = w.Insert(Middlebox{Kind: *swordbox.Kind(), Args: graph.Args{
		"mode": r.load.Box, "replace": "learnt", "writable": "assume", "settle": "20us", "pair": "20us", "conns": fmt.Sprint(len(r.conns)), "window": "64",
		"hold": "65536", "rdatomic": fmt.Sprint(max(r.load.NIC.Outstanding, 1)), "static": strings.Join(r.conns, ";"),
	}}, r.nodes[0].m)
	return err
}

func (r *storeRun) host(w *World, h *storeHost, keys []uint64, depth int, library func(*storeHost) (host.App, error)) error {
	m, err := w.Attach(fmt.Sprintf("host%d", h.number), r.load.NIC)
	if err != nil {
		return err
	}
	x, err := w.rnicOn(m, r.load.Seed+1+uint64(h.number))
	if err != nil {
		return err
	}
	pd := x.AllocPD()
	h.m, h.nic, h.pd, h.cq = m, x, pd, x.CreateCQ(64*h.clients*max(len(r.nodes), 1))
	for k := range h.clients {
		g, err := ycsb.New(ycsb.Config{Mix: ycsb.Mix{Writes: r.load.Writes}, Theta: r.load.Zipf, Items: r.load.Items, Keys: keys, Seed: r.load.Seed}, r.stream(h, k))
		if err != nil {
			return err
		}
		h.gens, h.qps = append(h.gens, g), append(h.qps, nil)
		cq := h.cq
		if r.apart {
			cq = x.CreateCQ(depth * len(r.nodes))
			h.cqs = append(h.cqs, cq)
		}
		for _, mem := range r.nodes {
			q, err := mem.joined(m, x, pd, cq, depth, max(r.load.NIC.Outstanding, 1))
			if err != nil {
				return err
			}
			m.Bind(mem.m, q.Conn().DestQPN, k)
			h.qps[k] = append(h.qps[k], q)
			r.conns = append(r.conns, fmt.Sprintf("%s/%d-%s/%d,psn=%d,mtu=1024", m.IP, q.QPN, mem.m.IP, q.Conn().DestQPN, q.Conn().SQPSN))
		}
	}
	app, err := library(h)
	if err != nil {
		return err
	}
	m.Drive(host.NewNode(m.Port(), x, app))
	return nil
}

// did counts an operation that has ended well.
func (r *storeRun) did(write bool, start, end clock.Time, c onesided.Cost) {
	if !r.open {
		return
	}
	r.m.Ops++
	h, s := r.read, &r.sums[0]
	if write {
		r.m.Writes++
		h, s = r.write, &r.sums[1]
	}
	_ = h.RecordValue(max(int64(end.Sub(start)), 1))
	s.messages += float64(c.Messages)
	s.bytes += float64(c.Bytes)
	s.ops++
}

// share is a part of all; 0 where there is nothing.
func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// measured sums up.
func (r *storeRun) measured(w *World, took time.Duration) {
	m := r.m
	m.OpsPerSecond = float64(m.Ops) / took.Seconds()
	m.Read, m.Write = micros(r.read), micros(r.write)
	m.ReadMessages, m.ReadBytes = share(r.sums[0].messages, r.sums[0].ops), share(r.sums[0].bytes, r.sums[0].ops)
	m.WriteMessages, m.WriteBytes = share(r.sums[1].messages, r.sums[1].ops), share(r.sums[1].bytes, r.sums[1].ops)
	m.Events = w.Events()
	if r.box == nil {
		return
	}
	for _, x := range r.box.inst.Counters() {
		switch {
		case x.Node != appName:
		case x.Name == "moved":
			m.Moved = x.Value
		case x.Name == "replaced":
			m.Replaced = x.Value
		}
	}
}
