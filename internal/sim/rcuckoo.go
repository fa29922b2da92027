package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// RCuckooConfig describes a run of RCuckoo on a rack: client hosts and a memory node
// with the table. Zero values take the defaults given with them.
type RCuckooConfig struct {
	// Table is the table; no Rows: 2^17, which are a million entries.
	Table rcuckoo.Layout
	// Fill is the share of entries that are used at first. With Primed the clients themselves have filled the table so far,
	// and know the rows that they met; Library.Cache must have room for the whole table.
	Fill   float64
	Primed bool
	StoreLoad
	// Kind is what operations that write do, or reads where that is Read.
	Kind rcuckoo.Kind
	// Value is the size of values in extents; 0: values lie in entries.
	Value int
	// Library is how the clients work: Search, Cache, Flush, Covering, Blind, FailAfter,
	// Work and Torn matter.
	Library rcuckoo.Config
	// Failures is how many clients fail in a second, each in the middle of what it
	// writes. Another takes its place at once.
	Failures float64
	// Until, when it is not 0: the run ends when so many operations are done, or the table is full, and all count.
	Until int
}

// RCuckooMeasured is what the clients did in the window.
type RCuckooMeasured struct {
	StoreMeasured
	// RoundTrips are percentiles of those of a write.
	RoundTrips struct{ P50, P99 float64 } `json:"round_trips_per_write"`
	// LockBytes are those that a write took for locks and the READs behind them.
	LockBytes float64 `json:"lock_bytes_per_write"`
	// SecondSearch is the share of paths that were none any more, in whose place the locked rows had another: of
	// the means of clients' failures for an insertion, as the authors' script has it.
	SecondSearch float64       `json:"second_search"`
	Failed       uint64        `json:"failed"` // clients
	Filled       float64       `json:"filled"`
	Stats        rcuckoo.Stats `json:"stats"`
}

// Check is StoreMeasured's, and lets a table be full: some runs are to fill it.
func (m *RCuckooMeasured) Check() error {
	s := m.StoreMeasured
	s.Full = false
	return s.Check()
}

func (c *RCuckooConfig) defaults() error {
	c.Table.Rows = cmp.Or(c.Table.Rows, 1<<17)
	if err := c.StoreLoad.defaults("RCuckoo"); err != nil {
		return err
	}
	switch {
	case c.Table.Rows > 1<<24:
		return errors.New("sim: a simulated table of RCuckoo has at most 2^24 rows")
	case !(c.Fill >= 0 && c.Fill <= 1) || !(c.Failures >= 0 && c.Failures <= 1e6):
		return errors.New("sim: a share of entries that are used is 0 to 1; failures are 0 to 10^6 in a second")
	case c.Until < 0 || c.Value < 0 || c.Value > 1<<20:
		return errors.New("sim: a run is until so many operations, and has values of at most 1 MiB")
	}
	return nil
}

// cuckooRun is a run's table and clients.
type cuckooRun struct {
	storeRun
	*RCuckooConfig
	m       RCuckooMeasured
	table   *rcuckoo.Table
	grant   rcuckoo.Grant
	keys    []uint64 // that are there at first
	next    uint32   // key that is inserted next
	trips   *hdrhistogram.Histogram
	per     []searched // by client
	locks   float64    // bytes
	failing rcuckooFailing
	all     []*rcuckoo.Client
	value   []byte
	turn    int
}

// searched is what a client's searches found in its insertions.
type searched struct{ insertions, firstFailed, secondFailed float64 }

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
	r := &cuckooRun{RCuckooConfig: &c, value: make([]byte, max(c.Value, 8)), trips: hdrhistogram.New(1, 1<<30, 3), per: make([]searched, c.Clients)}
	r.storeRun = newStoreRun(&c.StoreLoad, &r.m.StoreMeasured)
	if err := r.fill(); err != nil {
		return r.m, err
	}
	var until func() bool
	if c.Until > 0 {
		until = func() bool { return int(r.m.Ops) >= c.Until || r.m.Full || r.m.Errors > 0 }
	}
	err := r.run(ctx, r.attach, until)
	r.sum()
	return r.m, err
}

// filled are tables that were filled before: to fill one takes longer than most runs.
var filled struct {
	sync.Mutex
	tables map[string]*rcuckoo.Table
	next   map[string]uint32
}

// fill makes the table.
func (r *cuckooRun) fill() error {
	share := r.Fill
	if r.Primed {
		share = 0
	}
	name := fmt.Sprintf("%+v %v %d", r.Table, share, r.Value)
	filled.Lock()
	defer filled.Unlock()
	if filled.tables == nil || len(filled.tables) > 16 {
		filled.tables, filled.next = map[string]*rcuckoo.Table{}, map[string]uint32{}
	}
	t := filled.tables[name]
	if t == nil {
		l := r.Table
		n := int(share * float64(l.Rows*rcuckoo.Slots))
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
			next, err = t.Fill(next, share, func(uint32) []byte { return r.value[:t.InlineSize()] })
		}
		if err != nil {
			return fmt.Errorf("sim: filling the table: %w", err)
		}
		filled.tables[name], filled.next[name] = t, next
	}
	r.table, r.next = t.Clone(), filled.next[name]
	r.Table = r.table.Layout
	there := int(r.next) - 1
	if r.Primed {
		there = int(r.Fill * float64(r.Table.Rows*rcuckoo.Slots))
	}
	r.keys = ycsb.Sequential(1, max(there, 1))
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
	m, err := r.node(w, "memory", r.Seed, func(pd *rnic.PD) (err error) {
		r.grant, err = r.table.Serve(pd)
		return err
	})
	if err != nil {
		return err
	}
	m.DeviceMemory(r.grant.Locks.VA, r.table.LockBytes())
	if err := r.hosts(w, r.keys, 2048, r.client); err != nil || !r.Primed {
		return err
	}
	r.next, err = r.table.Prime(r.all, r.next, r.Fill, r.value[:r.table.InlineSize()])
	return err
}

// client makes the clients of a host.
func (r *cuckooRun) client(h *storeHost) (host.App, error) {
	c := r.Library
	if r.Value > 0 {
		var err error
		if c.Chunk, err = r.table.Chunk(h.clients * chunkOf(r.Value)); err != nil {
			return nil, err
		}
		c.Outside = true
	}
	c.Layout, c.Sessions, c.CQ, c.Seed = r.Table, h.clients, h.cq, r.Seed+uint64(h.number)
	c.Dial = func(_ clock.Time, session int) (*rnic.QP, rcuckoo.Grant, error) {
		q, err := h.dial(session, 0)
		return q, r.grant, err
	}
	c.Next = func(_ clock.Time, session int) (rcuckoo.Op, bool) {
		if r.m.Full {
			return rcuckoo.Op{}, false
		}
		o := h.gens[session].Next()
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
	c.Done = func(o *rcuckoo.Result) { r.done(&r.per[h.first+o.Session], o) }
	client, err := rcuckoo.NewClient(c)
	r.all = append(r.all, client)
	return client, err
}

// done counts an operation.
func (r *cuckooRun) done(p *searched, o *rcuckoo.Result) {
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
	if r.open && o.Kind != rcuckoo.Read {
		_ = r.trips.RecordValue(int64(o.RoundTrips))
		r.locks += float64(o.LockBytes)
		p.insertions++
		p.firstFailed += float64(o.FirstFailed)
		p.secondFailed += float64(o.SecondFailed)
	}
	r.did(o.Kind != rcuckoo.Read, o.Start, o.End, o.Cost)
}

// sum sums up what RCuckoo alone has.
func (r *cuckooRun) sum() {
	m := &r.m
	m.RoundTrips.P50, m.RoundTrips.P99 = float64(r.trips.ValueAtQuantile(50)), float64(r.trips.ValueAtQuantile(99))
	m.LockBytes = share(r.locks, float64(r.trips.TotalCount()))
	first, second := 0.0, 0.0
	for _, p := range r.per {
		first += share(p.firstFailed, p.insertions)
		second += share(p.secondFailed, p.insertions)
	}
	m.SecondSearch = share(first-second, first)
	m.Filled = float64(r.table.Count()) / float64(r.table.Rows*rcuckoo.Slots)
	for _, c := range r.all {
		m.Stats.Add(c.Stats())
	}
}
