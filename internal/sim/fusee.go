package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/swordbox"
)

// FuseeConfig describes a run of FUSEE on a rack: client hosts and memory nodes. Zero
// values take the defaults given with them.
type FuseeConfig struct {
	// Store is the store; no Blocks: as many as the run needs. Its subtables have room for the
	// keys when Groups is 0.
	Store fusee.Layout
	// Keys are there at first; 0 = 100,000. Value is the size of values; 0 = 64.
	Keys, Value int
	// Hosts are client hosts; 0 = 8. Clients are spread over them; 0 = 8.
	Hosts, Clients int
	// Writes is the share of operations that write: Kind, or reads where that is Read.
	Writes float64
	Kind   fusee.Kind
	// Zipf is the exponent of the keys' popularity; 0 = all alike. Items is of how many
	// keys it is; 0 = those that are there. More than are there share their places.
	Zipf  float64
	Items int
	// Library is how the clients work: Cache, MissRate, Blind and FailAfter matter.
	Library fusee.Config

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

// FuseeMeasured is what the clients did in the window.
type FuseeMeasured struct {
	Ops, Writes   uint64
	OpsPerSecond  float64 `json:"ops_per_second"`
	Read          Micros  `json:"read_us"`
	Write         Micros  `json:"write_us"`
	ReadMessages  float64 `json:"messages_per_read"`
	WriteMessages float64 `json:"messages_per_write"`
	// Moved are CASes that the box sent on a shared connection, Replaced those of them that
	// it sent as WRITEs.
	Moved    uint64      `json:"moved"`
	Replaced uint64      `json:"replaced"`
	Errors   uint64      `json:"errors"`
	Full     bool        `json:"full"` // the index
	Events   uint64      `json:"events"`
	Stats    fusee.Stats `json:"stats"`
}

func (c *FuseeConfig) defaults() error {
	for _, x := range []struct {
		v *int
		d int
	}{{&c.Hosts, 8}, {&c.Clients, 8}, {&c.Keys, 100_000}, {&c.Value, 64}, {&c.Store.Nodes, 1}, {&c.Store.Subtables, 32}, {&c.Store.Unit, 256}, {&c.Store.Block, 64 << 10}} {
		if *x.v == 0 {
			*x.v = x.d
		}
	}
	c.Hosts = min(c.Hosts, c.Clients)
	if c.NIC == (NIC{}) {
		c.NIC = ConnectX5()
	}
	if c.Warmup == 0 {
		c.Warmup = 200 * time.Microsecond
	}
	if c.Measure == 0 {
		c.Measure = time.Millisecond
	}
	switch {
	case c.Hosts < 1 || c.Hosts > 1024 || c.Clients < 1 || c.Clients > 4096:
		return errors.New("sim: a run of FUSEE has 1 to 1024 hosts, and 1 to 4096 clients")
	case c.Keys < 1 || c.Keys > 1<<22 || c.Value < 1 || c.Value > 8192:
		return errors.New("sim: a simulated store of FUSEE has 1 to 2^22 keys, with values of 1 to 8192 bytes")
	case !(c.Writes >= 0 && c.Writes <= 1):
		return errors.New("sim: a share of writes is 0 to 1")
	case c.Box != "" && c.Box != "mux" && c.Box != "replace":
		return fmt.Errorf("sim: a box moves (mux) or replaces, and does not %q", c.Box)
	case c.Box != "" && c.Store.Nodes != 1:
		return errors.New("sim: a box is in front of one memory node: a store with a box has no other")
	case c.Kind > fusee.Delete:
		return errors.New("sim: clients read, insert, update or delete")
	case c.Warmup < 0 || c.Measure <= 0:
		return errors.New("sim: a run needs time to measure in")
	}
	c.sizes()
	return nil
}

// fuseeMost is more than clients of one memory node ever did a second.
const fuseeMost = 2e7

// sizes gives the store room for the keys, two thirds full, and blocks for what the run writes.
func (c *FuseeConfig) sizes() {
	written := int(fuseeMost*(c.Warmup+c.Measure).Seconds()*c.Writes) + 1
	slots := c.Keys
	if c.Kind == fusee.Insert {
		slots += written
	}
	if c.Store.Groups == 0 {
		c.Store.Groups = max(2, (slots*3/2/(21*c.Store.Subtables)+2)&^1)
	}
	if c.Store.Blocks == 0 {
		object := (c.Value + 64 + c.Store.Unit - 1) / c.Store.Unit * c.Store.Unit
		c.Store.Blocks = ((c.Keys+written)/(c.Store.Block/object)+2*c.Clients)/c.Store.Nodes + 2
	}
}

// fuseeRun is what the hosts share.
type fuseeRun struct {
	*FuseeConfig
	store  fusee.Cluster
	grants []fusee.Grant
	nodes  []*memoryNode
	next   uint64 // key that is inserted next
	open   bool
	m      FuseeMeasured
	read   *hdrhistogram.Histogram
	write  *hdrhistogram.Histogram
	sums   [2]struct{ messages, ops float64 } // of reads, of writes
	all    []*fusee.Client
	conns  []string // as tor/conn writes them
	box    *Box
	value  []byte
	turn   uint64
}

// Fusee measures a run of FUSEE: the state machines of rack/fusee on the modelled rack.
func Fusee(ctx context.Context, c FuseeConfig) (FuseeMeasured, error) {
	if err := c.defaults(); err != nil {
		return FuseeMeasured{}, err
	}
	r := &fuseeRun{
		FuseeConfig: &c, value: make([]byte, max(c.Value, 8)),
		read: hdrhistogram.New(1, int64(10*time.Second), 3), write: hdrhistogram.New(1, int64(10*time.Second), 3),
	}
	if err := r.fill(); err != nil {
		return r.m, err
	}
	w, err := New(Config{Seed: c.Seed, Slots: 1<<15 + 128*c.Clients})
	if err != nil {
		return r.m, err
	}
	if err := r.attach(w); err != nil {
		return r.m, err
	}
	open := w.Now() + From(c.Warmup)
	if err := w.Steps(ctx, open, nil); err != nil {
		return r.m, err
	}
	r.open = true
	if err := w.Steps(ctx, open+From(c.Measure), c.Progress); err != nil {
		return r.m, err
	}
	r.measured(w)
	return r.m, nil
}

func fuseeKey(k uint64) []byte { return binary.LittleEndian.AppendUint64(nil, k) }

// fill makes the store.
func (r *fuseeRun) fill() (err error) {
	if r.store, err = fusee.NewCluster(r.Store); err != nil {
		return err
	}
	r.Store = r.store[0].Layout
	f := r.store.Filler(1<<16 - 1)
	for k := 1; k <= r.Keys; k++ {
		if err := f.Insert(fuseeKey(uint64(k)), r.value[:r.Value]); err != nil {
			return fmt.Errorf("sim: filling the store: %w", err)
		}
	}
	r.next = uint64(r.Keys) + 1
	return nil
}

// attach puts the memory nodes and the hosts on the rack.
func (r *fuseeRun) attach(w *World) error {
	for i, mem := range r.store {
		m, err := w.Attach(fmt.Sprintf("memory%d", i), r.NIC)
		if err != nil {
			return err
		}
		x, err := w.rnicOn(m, r.Seed+uint64(i)<<32)
		if err != nil {
			return err
		}
		n := &memoryNode{m: m, nic: x, pd: x.AllocPD(), cq: x.CreateCQ(16)}
		g, err := mem.Serve(n.pd)
		if err != nil {
			return err
		}
		m.Drive(host.NewNode(m.Port(), x, nil))
		r.nodes, r.grants = append(r.nodes, n), append(r.grants, g)
	}
	keys := ycsb.Sequential(1, r.Keys)
	first := uint16(1)
	for i := range r.Hosts {
		n := (r.Clients + r.Hosts - 1 - i) / r.Hosts
		if err := r.host(w, i, n, first, keys); err != nil {
			return err
		}
		first += uint16(n)
	}
	if r.Box == "" {
		return nil
	}
	// All connections are known, and nothing was under way before.
	var err error
	r.box, err = w.Insert(Middlebox{Kind: *swordbox.Kind(), Args: graph.Args{
		"mode": r.Box, "replace": "learnt", "writable": "assume", "settle": "20us", "pair": "20us", "conns": fmt.Sprint(len(r.conns)), "window": "64",
		"hold": "65536", "rdatomic": fmt.Sprint(max(r.NIC.Outstanding, 1)), "static": strings.Join(r.conns, ";"),
	}}, r.nodes[0].m)
	return err
}

// host makes a client host with n clients, whose numbers begin at first.
func (r *fuseeRun) host(w *World, i, n int, first uint16, keys []uint64) error {
	m, err := w.Attach(fmt.Sprintf("host%d", i), r.NIC)
	if err != nil {
		return err
	}
	x, err := w.rnicOn(m, r.Seed+1+uint64(i))
	if err != nil {
		return err
	}
	pd, cq := x.AllocPD(), x.CreateCQ(64*n*r.Store.Nodes)
	gens := make([]*ycsb.Generator, n)
	for k := range gens {
		if gens[k], err = ycsb.New(ycsb.Config{Mix: ycsb.Mix{Writes: r.Writes}, Theta: r.Zipf, Items: r.Items, Keys: keys, Seed: r.Seed}, uint64(i*1000+k)); err != nil {
			return err
		}
	}
	qps := make([][]*rnic.QP, n)
	for k := range qps {
		for _, mem := range r.nodes {
			q, err := mem.joined(m, x, pd, cq, 256, max(r.NIC.Outstanding, 1))
			if err != nil {
				return err
			}
			m.Bind(mem.m, q.Conn().DestQPN, k)
			qps[k] = append(qps[k], q)
			r.conns = append(r.conns, fmt.Sprintf("%s/%d-%s/%d,psn=%d,mtu=1024", m.IP, q.QPN, mem.m.IP, q.Conn().DestQPN, q.Conn().SQPSN))
		}
	}
	c := r.Library
	c.Layout, c.Sessions, c.ID, c.CQ = r.Store, n, first, cq
	c.Dial = func(_ clock.Time, session, node int) (*rnic.QP, fusee.Grant, error) {
		if q := qps[session][node]; q != nil {
			qps[session][node] = nil
			return q, r.grants[node], nil
		}
		return nil, r.grants[node], errors.New("sim: the queue pair failed")
	}
	c.Alloc = func(_ clock.Time, owner uint16, region, units int) (int, error) {
		return r.store.Alloc(owner, region, units)
	}
	c.Next = func(_ clock.Time, session int) (fusee.Op, bool) {
		if r.m.Full {
			return fusee.Op{}, false
		}
		return r.op(gens[session].Next()), true
	}
	c.Done = r.done
	client, err := fusee.NewClient(c)
	if err != nil {
		return err
	}
	r.all = append(r.all, client)
	m.Drive(host.NewNode(m.Port(), x, client))
	return nil
}

// op makes an operation of what the workload has.
func (r *fuseeRun) op(o ycsb.Op) fusee.Op {
	if !o.Write {
		return fusee.Op{Kind: fusee.Read, Key: fuseeKey(o.Key)}
	}
	r.turn++ // another value each time
	binary.LittleEndian.PutUint64(r.value, r.turn)
	op := fusee.Op{Kind: r.Kind, Key: fuseeKey(o.Key), Value: r.value[:r.Value]}
	if r.Kind == fusee.Insert {
		op.Key = fuseeKey(r.next)
		r.next++
	}
	return op
}

// done counts an operation.
func (r *fuseeRun) done(o *fusee.Result) {
	switch {
	case errors.Is(o.Err, fusee.ErrFull) || errors.Is(o.Err, fusee.ErrNoMemory):
		r.m.Full = true
		return
	case o.Err != nil || r.Kind != fusee.Delete && o.Found == (o.Kind == fusee.Insert):
		r.m.Errors++
		return
	}
	if !r.open {
		return
	}
	r.m.Ops++
	h, s := r.read, &r.sums[0]
	if o.Kind != fusee.Read {
		r.m.Writes++
		h, s = r.write, &r.sums[1]
	}
	_ = h.RecordValue(max(int64(o.End.Sub(o.Start)), 1))
	s.messages += float64(o.Messages)
	s.ops++
}

// measured sums up.
func (r *fuseeRun) measured(w *World) {
	m := &r.m
	m.OpsPerSecond = float64(m.Ops) / r.Measure.Seconds()
	m.Read, m.Write = micros(r.read), micros(r.write)
	for i, to := range []*float64{&m.ReadMessages, &m.WriteMessages} {
		if s := r.sums[i]; s.ops > 0 {
			*to = s.messages / s.ops
		}
	}
	m.Events = w.Events()
	if r.box != nil {
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
	for _, c := range r.all {
		m.Stats.Add(c.Stats())
	}
}
