package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/swordbox"
)

// RCuckooConfig describes a run of RCuckoo on a rack: client hosts and a memory node
// with the table. Zero values take the defaults given with them.
type RCuckooConfig struct {
	// Table is the table; no Rows: 2^17, which are a million entries.
	Table rcuckoo.Layout
	// Fill is the share of entries that are used at first.
	Fill float64
	// Hosts are client hosts; 0 = 8. Clients are spread over them; 0 = 8.
	Hosts, Clients int
	// Writes is the share of operations that write: Kind, or reads where that is Read.
	Writes float64
	Kind   rcuckoo.Kind
	// Zipf is the exponent of the keys' popularity; 0 = all alike. Items is of how many
	// keys it is; 0 = those that are there. More than are there share their places.
	Zipf  float64
	Items int
	// Value is the size of values in extents; 0: values lie in entries.
	Value int
	// Library is how the clients work: Search, Cache, Flush, Covering, Blind, FailAfter
	// and Torn matter.
	Library rcuckoo.Config
	// Failures is how many clients fail in a second, each in the middle of what it
	// writes. Another takes its place at once.
	Failures float64

	// Box is the mode of a swordbox in the switch, at line rate, in front of the memory
	// node: mux or replace; "" = there is none.
	Box string

	NIC  NIC // zero: ConnectX5
	Seed uint64
	// Warmup and Measure are virtual time; 0 = 200 us and 1 ms. With Until the run ends
	// when so many operations are done, or the table is full, and all count.
	Warmup, Measure time.Duration
	Until           int
	// Progress is told the share of the run that is done.
	Progress func(done float64)
}

// RCuckooMeasured is what the clients did in the window.
type RCuckooMeasured struct {
	Ops, Writes  uint64
	OpsPerSecond float64 `json:"ops_per_second"`
	Read         Micros  `json:"read_us"`
	Write        Micros  `json:"write_us"`
	// Messages and bytes of an operation, as the authors count them.
	ReadMessages  float64 `json:"messages_per_read"`
	WriteMessages float64 `json:"messages_per_write"`
	ReadBytes     float64 `json:"bytes_per_read"`
	WriteBytes    float64 `json:"bytes_per_write"`
	// RoundTrips are percentiles of those of a write.
	RoundTrips struct{ P50, P99 float64 } `json:"round_trips_per_write"`
	// SecondSearch is the share of paths that were none any more, in whose place the
	// locked rows had another.
	SecondSearch float64 `json:"second_search"`
	Failed       uint64  `json:"failed"` // clients
	Errors       uint64  `json:"errors"`
	Full         bool    `json:"full"` // the table
	Filled       float64 `json:"filled"`
	Events       uint64  `json:"events"`
	// Moved are masked CASes that the box sent on a shared connection, Replaced those of
	// them that it sent as WRITEs.
	Moved    uint64        `json:"moved"`
	Replaced uint64        `json:"replaced"`
	Stats    rcuckoo.Stats `json:"stats"`
}

func (c *RCuckooConfig) defaults() error {
	for _, x := range []struct {
		v *int
		d int
	}{{&c.Hosts, 8}, {&c.Clients, 8}, {&c.Table.Rows, 1 << 17}} {
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
		return errors.New("sim: a run of RCuckoo has 1 to 1024 hosts, and 1 to 4096 clients")
	case c.Table.Rows > 1<<24:
		return errors.New("sim: a simulated table of RCuckoo has at most 2^24 rows")
	case !(c.Writes >= 0 && c.Writes <= 1) || !(c.Fill >= 0 && c.Fill <= 1) || !(c.Failures >= 0 && c.Failures <= 1e6):
		return errors.New("sim: a share of writes, or of entries that are used, is 0 to 1; failures are 0 to 10^6 in a second")
	case c.Box != "" && c.Box != "mux" && c.Box != "replace":
		return fmt.Errorf("sim: a box moves (mux) or replaces, and does not %q", c.Box)
	case c.Warmup < 0 || c.Measure <= 0 || c.Until < 0 || c.Value < 0 || c.Value > 1<<20:
		return errors.New("sim: a run needs time to measure in, and values of at most 1 MiB")
	}
	return nil
}

// cuckooRun is what the hosts share.
type cuckooRun struct {
	*RCuckooConfig
	table   *rcuckoo.Table
	grant   rcuckoo.Grant
	keys    []uint64 // that are there at first
	next    uint32   // key that is inserted next
	last    uint32   // key that may be inserted last
	open    bool
	m       RCuckooMeasured
	read    *hdrhistogram.Histogram
	write   *hdrhistogram.Histogram
	trips   *hdrhistogram.Histogram
	sums    [2]struct{ messages, bytes, ops float64 } // of reads, of writes
	firsts  float64
	seconds float64
	failing rcuckooFailing
	all     []*rcuckoo.Client
	conns   []string // as tor/conn writes them
	box     *Box
	value   []byte
	turn    int
}

// rcuckooFailing chooses who fails when.
type rcuckooFailing struct {
	rng  *rand.Rand
	at   clock.Time // the next failure
	over time.Duration
}

// due reports whether the request that is about to be posted is where a client fails.
func (f *rcuckooFailing) due(now clock.Time) bool {
	if f.over == 0 || now < f.at || f.rng.IntN(4) != 0 {
		return false
	}
	f.at = f.at.Add(time.Duration(f.rng.ExpFloat64() * float64(f.over)))
	return true
}

// RCuckoo measures a run of RCuckoo: the state machines of rack/rcuckoo on the modelled
// rack.
func RCuckoo(ctx context.Context, c RCuckooConfig) (RCuckooMeasured, error) {
	if err := c.defaults(); err != nil {
		return RCuckooMeasured{}, err
	}
	r := &cuckooRun{
		RCuckooConfig: &c, value: make([]byte, max(c.Value, 8)),
		read: hdrhistogram.New(1, int64(10*time.Second), 3), write: hdrhistogram.New(1, int64(10*time.Second), 3), trips: hdrhistogram.New(1, 1<<30, 3),
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
	if c.Until > 0 {
		r.open = true
		from := w.Now()
		done := func() bool { return int(r.m.Ops) >= c.Until || r.m.Full || r.m.Errors > 0 }
		if err := w.Until(ctx, done, w.Now()+100*Second); err != nil {
			return r.m, err
		}
		r.measured(w, (w.Now() - from).Clock().Sub(0))
		return r.m, nil
	}
	open := w.Now() + From(c.Warmup)
	if err := w.Steps(ctx, open, nil); err != nil {
		return r.m, err
	}
	r.open = true
	if err := w.Steps(ctx, open+From(c.Measure), c.Progress); err != nil {
		return r.m, err
	}
	r.measured(w, c.Measure)
	return r.m, nil
}

// filled are tables that were filled before: to fill one takes longer than most runs.
var filled struct {
	sync.Mutex
	tables map[string]*rcuckoo.Table
	next   map[string]uint32
}

// fill makes the table.
func (r *cuckooRun) fill() error {
	name := fmt.Sprintf("%+v %v %d", r.Table, r.Fill, r.Value)
	filled.Lock()
	defer filled.Unlock()
	if filled.tables == nil || len(filled.tables) > 16 {
		filled.tables, filled.next = map[string]*rcuckoo.Table{}, map[string]uint32{}
	}
	t := filled.tables[name]
	if t == nil {
		l := r.Table
		n := int(r.Fill * float64(l.Rows*rcuckoo.Slots))
		if r.Value > 0 {
			l.Wide, l.Extents = true, 2*(n*rcuckoo.ExtentSize(r.Value)+r.Clients*chunkOf(r.Value))
		}
		var err error
		if t, err = rcuckoo.NewTable(l); err != nil {
			return err
		}
		next := uint32(1)
		if r.Value > 0 {
			next, err = t.FillExtents(next, n, r.Value, func(uint32) []byte { return r.value[:r.Value] })
		} else {
			next, err = t.Fill(next, r.Fill, func(uint32) []byte { return r.value[:t.InlineSize()] })
		}
		if err != nil {
			return fmt.Errorf("sim: filling the table: %w", err)
		}
		filled.tables[name], filled.next[name] = t, next
	}
	r.table, r.next = t.Clone(), filled.next[name]
	r.Table = r.table.Layout
	r.keys = ycsb.Sequential(1, max(int(r.next)-1, 1))
	r.last = 1<<32 - 1
	r.failing = rcuckooFailing{rng: rand.New(rand.NewPCG(r.Seed, 0xDEAD))}
	if r.Failures > 0 {
		r.failing.over = time.Duration(float64(time.Second) / r.Failures)
		r.failing.at = Start.Clock().Add(time.Duration(r.failing.rng.ExpFloat64() * float64(r.failing.over)))
	}
	return nil
}

// chunkOf is how much memory for values a client has.
func chunkOf(value int) int { return 512 * rcuckoo.ExtentSize(value) }

// attach puts the memory node and the hosts on the rack.
func (r *cuckooRun) attach(w *World) error {
	m, err := w.Attach("memory", r.NIC)
	if err != nil {
		return err
	}
	x, err := w.rnicOn(m, r.Seed)
	if err != nil {
		return err
	}
	server := &memoryNode{m: m, nic: x, pd: x.AllocPD(), cq: x.CreateCQ(16)}
	if r.grant, err = r.table.Serve(server.pd); err != nil {
		return err
	}
	m.DeviceMemory(r.grant.Locks.VA, r.table.LockBytes())
	m.Drive(host.NewNode(m.Port(), x, nil))
	for i := range r.Hosts {
		if err := r.host(w, server, i); err != nil {
			return err
		}
	}
	if r.Box == "" {
		return nil
	}
	// All connections are known, and nothing was under way before.
	r.box, err = w.Insert(Middlebox{Kind: *swordbox.Kind(), Args: graph.Args{
		"mode": r.Box, "replace": "learnt", "writable": "assume", "settle": "20us", "pair": "20us", "conns": fmt.Sprint(len(r.conns)), "window": "64",
		"hold": "65536", "rdatomic": fmt.Sprint(max(r.NIC.Outstanding, 1)), "static": strings.Join(r.conns, ";"),
	}}, m)
	return err
}

// host makes a client host.
func (r *cuckooRun) host(w *World, server *memoryNode, i int) error {
	m, err := w.Attach(fmt.Sprintf("host%d", i), r.NIC)
	if err != nil {
		return err
	}
	x, err := w.rnicOn(m, r.Seed+1+uint64(i))
	if err != nil {
		return err
	}
	n := (r.Clients + r.Hosts - 1 - i) / r.Hosts
	pd, cq := x.AllocPD(), x.CreateCQ(64*n)
	gens := make([]*ycsb.Generator, n)
	for k := range gens {
		mix := ycsb.Mix{Writes: r.Writes}
		if gens[k], err = ycsb.New(ycsb.Config{Mix: mix, Theta: r.Zipf, Items: r.Items, Keys: r.keys, Seed: r.Seed}, uint64(i*1000+k)); err != nil {
			return err
		}
	}
	c := r.Library
	if r.Value > 0 {
		if c.Chunk, err = r.table.Chunk(n * chunkOf(r.Value)); err != nil {
			return err
		}
		c.Outside = true
	}
	c.Layout, c.Sessions, c.CQ, c.Seed = r.Table, n, cq, r.Seed+uint64(i)
	qps := make([]*rnic.QP, n)
	for k := range qps {
		q, err := server.joined(m, x, pd, cq, 2048, max(r.NIC.Outstanding, 1))
		if err != nil {
			return err
		}
		m.Bind(server.m, q.Conn().DestQPN, k)
		qps[k] = q
		r.conns = append(r.conns, fmt.Sprintf("%s/%d-%s/%d,psn=%d,mtu=1024", m.IP, q.QPN, server.m.IP, q.Conn().DestQPN, q.Conn().SQPSN))
	}
	c.Dial = func(_ clock.Time, session int) (*rnic.QP, rcuckoo.Grant, error) {
		if q := qps[session]; q != nil {
			qps[session] = nil
			return q, r.grant, nil
		}
		return nil, r.grant, errors.New("sim: the queue pair failed")
	}
	c.Next = func(_ clock.Time, session int) (rcuckoo.Op, bool) {
		if r.m.Full {
			return rcuckoo.Op{}, false
		}
		o := gens[session].Next()
		op := rcuckoo.Op{Key: o.Key}
		if o.Write {
			binary.LittleEndian.PutUint32(r.value, uint32(r.turn)) // another value each time
			r.turn++
			op.Kind, op.Value = r.Kind, r.value[:r.table.InlineSize()]
			if r.Value > 0 {
				op.Value = r.value[:r.Value]
			}
			if r.Kind == rcuckoo.Insert {
				op.Key = uint64(r.next)
				r.next++
			}
		}
		return op, true
	}
	if r.Failures > 0 {
		c.Cut = func(now clock.Time, _ int, p rcuckoo.Phase, _ int) bool {
			if p != rcuckoo.Writing || !r.failing.due(now) {
				return false
			}
			r.m.Failed++
			return true
		}
	}
	c.Done = r.done
	client, err := rcuckoo.NewClient(c)
	if err != nil {
		return err
	}
	r.all = append(r.all, client)
	m.Drive(host.NewNode(m.Port(), x, client))
	return nil
}

// done counts an operation.
func (r *cuckooRun) done(o *rcuckoo.Result) {
	switch {
	case errors.Is(o.Err, rcuckoo.ErrDied):
		return
	case errors.Is(o.Err, rcuckoo.ErrFull):
		r.m.Full = true
		return
	case o.Err != nil || o.Kind != rcuckoo.Insert && !o.Found:
		r.m.Errors++
		return
	}
	if !r.open {
		return
	}
	r.m.Ops++
	h, s := r.read, &r.sums[0]
	if o.Kind != rcuckoo.Read {
		r.m.Writes++
		h, s = r.write, &r.sums[1]
		_ = r.trips.RecordValue(int64(o.RoundTrips))
		r.firsts += float64(o.FirstFailed)
		r.seconds += float64(o.SecondFailed)
	}
	_ = h.RecordValue(max(int64(o.End.Sub(o.Start)), 1))
	s.messages += float64(o.Messages)
	s.bytes += float64(o.Bytes)
	s.ops++
}

// measured sums up.
func (r *cuckooRun) measured(w *World, d time.Duration) {
	share := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	m := &r.m
	m.OpsPerSecond = float64(m.Ops) / d.Seconds()
	m.Read, m.Write = micros(r.read), micros(r.write)
	m.ReadMessages, m.ReadBytes = share(r.sums[0].messages, r.sums[0].ops), share(r.sums[0].bytes, r.sums[0].ops)
	m.WriteMessages, m.WriteBytes = share(r.sums[1].messages, r.sums[1].ops), share(r.sums[1].bytes, r.sums[1].ops)
	m.RoundTrips.P50, m.RoundTrips.P99 = float64(r.trips.ValueAtQuantile(50)), float64(r.trips.ValueAtQuantile(99))
	m.SecondSearch = share(r.firsts-r.seconds, r.firsts)
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
	m.Filled = float64(r.table.Count()) / float64(r.table.Rows*rcuckoo.Slots)
	for _, c := range r.all {
		m.Stats.Add(c.Stats())
	}
}
