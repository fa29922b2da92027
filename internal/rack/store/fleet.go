package store

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Work is the work of clients.
type Work struct {
	Mix   ycsb.Mix
	Theta float64
	// Deletes is the share of writes that delete a key, and Ranges the share of reads that read a range of
	// keys. Both are for stores that are Ordered.
	Deletes, Ranges float64
	// Keys is the number of keys to use, Value the bytes of a value; 0 = those of the memory node.
	Keys, Value int
	Seed        uint64
	// Patience is the time after which a client that does nothing counts as dead, in stores that repair; 0:
	// the store's own.
	Patience time.Duration
	// Keep records the answers that clients get.
	Keep bool
}

// Fleet is the clients of one store that are in this process. Its methods may be called from any goroutine.
// Steps of its clients exclude each other.
type Fleet struct {
	kind *Kind
	work Work

	mu      sync.Mutex
	clients []*Client
	log     Log
	running bool
	ending  bool
	most    int // operations that may begin in all; 0: no limit
	begun   int
	keys    int // of the memory node, as the memory node said
	broken  bool
	live    Meter
	meter   *Meter // of the window that is measured; nil: none is
	err     error
}

// Meter is what clients have done: operations that succeeded, those of them that did so at the first try,
// errors, and operations with an unknown end.
type Meter struct {
	Ops, First, Errors, Unknown uint64
	// Read and Write are latencies in ns; in Fleet.Live they are nil.
	Read, Write *hdrhistogram.Histogram
}

// longestLatency is the longest latency in ns that is recorded; longer ones count as this.
const longestLatency = int64(10 * time.Second)

// NewFleet makes a fleet without clients.
func NewFleet(k *Kind, w Work) *Fleet {
	f := &Fleet{kind: k, work: w}
	f.log.Keys.Off, f.log.Words.Off, f.log.Locks.Off = !w.Keep, !w.Keep, !w.Keep
	return f
}

// Client is the sessions of one machine. It implements host.App.
type Client struct {
	fleet     *Fleet
	dialer    *dialer
	lib       Library
	connected bool
	gens      []*ycsb.Generator
	ops       []Op
	ids       [][]int // the operation's IDs in the history, by session
	rng       *rand.Rand
	seq       []uint64
}

// mostSessions is the most sessions that a client may have.
const mostSessions = 1 << 12

// Add adds a client that works, by a NIC, on the memory node at an address. nonce must differ from that of
// all other clients of the memory node.
func (f *Fleet) Add(nic *rnic.NIC, ip netip.Addr, mac [6]byte, sessions int, nonce uint64) (*Client, error) {
	if sessions < 1 || sessions > mostSessions {
		return nil, fmt.Errorf("a client has 1 to %d sessions, not %d", mostSessions, sessions)
	}
	d, err := newDialer(f.kind, nic, ip, mac, sessions, nonce)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &Client{fleet: f, dialer: d, ops: make([]Op, sessions), ids: make([][]int, sessions), rng: rand.New(rand.NewPCG(f.work.Seed, nonce)), seq: make([]uint64, sessions)}
	f.clients = append(f.clients, c)
	return c, nil
}

// Step implements host.App.
func (c *Client) Step(now clock.Time) bool {
	f := c.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ending && !c.dialer.ending {
		c.dialer.end(now)
	}
	did := c.dialer.step(now)
	if err := c.dialer.err; err != nil {
		f.fail(err)
		return did
	}
	if c.lib == nil && c.dialer.told != nil {
		if err := c.learn(); err != nil {
			c.dialer.fail(err)
			f.fail(err)
			return true
		}
		c.dialer.fits, did = true, true
	}
	c.connected = c.connected || c.dialer.up == len(c.dialer.sessions)
	if c.connected && !f.ending {
		did = c.lib.Step(now) || did
		if err := c.lib.Err(); err != nil {
			f.fail(err)
		}
	}
	return did
}

// Deadline implements host.App.
func (c *Client) Deadline() clock.Time {
	d := c.dialer.agent.Deadline()
	if c.dialer.told != nil && !c.dialer.ended() {
		d = min(d, c.dialer.beatAt)
	}
	if c.connected && !c.dialer.ending {
		d = min(d, c.lib.Deadline())
	}
	return d
}

func (f *Fleet) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// learn makes the client library from what the server announced.
func (c *Client) learn() error {
	f, h := c.fleet, &c.dialer.head
	keys := int(h.Keys)
	switch {
	case f.work.Keys > keys:
		return fmt.Errorf("the memory node holds %d keys, not %d", keys, f.work.Keys)
	case f.work.Value > 0 && f.work.Value != int(h.Value):
		return fmt.Errorf("the memory node's values have %d bytes, not %d", h.Value, f.work.Value)
	case f.work.Keys > 0:
		keys = f.work.Keys
	}
	f.keys = int(h.Keys)
	all := ycsb.Sequential(1, keys)
	for i := range c.ops {
		g, err := ycsb.New(ycsb.Config{Mix: f.work.Mix, Theta: f.work.Theta, Keys: all, Seed: f.work.Seed}, uint64(h.Number)<<16|uint64(i))
		if err != nil {
			return err
		}
		c.gens = append(c.gens, g)
	}
	var err error
	c.lib, err = f.kind.Client(ClientSpec{Announced: c.dialer.told, Number: int(h.Number), Sessions: len(c.ops), Value: int(h.Value), CQ: c.dialer.cq,
		Seed: f.work.Seed, Dial: c.dialer.dial, Self: c.dialer.nic.Config().IP, Patience: f.work.Patience, Shut: c.dialer.shut, Next: c.next, Done: c.done, Log: &f.log})
	return err
}

// next begins an operation of a session.
func (c *Client) next(now clock.Time, session int) (Op, bool) {
	f := c.fleet
	if !f.running || f.most > 0 && f.begun >= f.most {
		return Op{}, false
	}
	f.begun++
	if len(f.kind.Works) > 0 {
		f.begun = max(f.begun, f.log.Words.Len())
		return Op{}, true
	}
	y := c.gens[session].Next()
	op := Op{Key: y.Key, Write: y.Write}
	switch {
	case op.Write && f.work.Deletes > 0 && c.rng.Float64() < f.work.Deletes:
	case !op.Write && f.work.Ranges > 0 && c.rng.Float64() < f.work.Ranges:
		op.Last = min(op.Key+c.rng.Uint64N(mostRange), uint64(f.keys))
	case op.Write:
		c.seq[session]++
		op.Value = uint64(c.dialer.head.Number)<<44 | uint64(session)<<32 | c.seq[session]&(1<<32-1)
	}
	c.ops[session] = op
	c.ids[session] = c.ids[session][:0]
	for k := op.Key; k <= max(op.Key, op.Last); k++ {
		c.ids[session] = append(c.ids[session], f.log.Keys.Call(int(c.dialer.head.Number)<<12|session, now, history.Register{Key: k, Write: op.Write, Value: op.Value}))
	}
	return op, true
}

// mostRange is the most keys of a range.
const mostRange = 16

// told records the answer about one key, or about each key of a range.
func (c *Client) told(now clock.Time, d *Done) {
	op, log := &c.ops[d.Session], &c.fleet.log.Keys
	if op.Last == 0 {
		log.Return(c.ids[d.Session][0], now, d.Value)
		return
	}
	var values [mostRange]uint64
	for _, p := range d.Pairs {
		if p.Key < op.Key || p.Key > op.Last {
			c.fleet.fail(fmt.Errorf("a range of keys %d to %d has %d", op.Key, op.Last, p.Key))
			return
		}
		values[p.Key-op.Key] = p.Value
	}
	for i, id := range c.ids[d.Session] {
		log.Return(id, now, values[i])
	}
}

// done handles the end of an operation.
func (c *Client) done(now clock.Time, d *Done) {
	f := c.fleet
	switch {
	case d.Err != nil:
		f.fail(d.Err)
		f.each(func(m *Meter) { m.Errors++ })
		return
	case d.Unknown:
		f.each(func(m *Meter) { m.Unknown++ })
		return
	}
	if len(f.kind.Works) == 0 {
		c.told(now, d)
	}
	f.each(func(m *Meter) {
		m.Ops++
		if d.First {
			m.First++
		}
		h := m.Read
		if d.Write {
			h = m.Write
		}
		if h != nil {
			_ = h.RecordValue(min(max(int64(now.Sub(d.Start)), 1), longestLatency))
		}
	})
}

func (f *Fleet) each(count func(*Meter)) {
	count(&f.live)
	if f.meter != nil {
		count(f.meter)
	}
}

// Start lets sessions begin operations.
func (f *Fleet) Start() { f.set(func() { f.running = true }) }

// Stop lets no new operation begin; Idle reports when none is under way.
func (f *Fleet) Stop() { f.set(func() { f.running = false }) }

// End asks for the end of all connections. Sessions do nothing from then on.
func (f *Fleet) End() { f.set(func() { f.ending = true }) }

// Allow limits the number of operations that may begin, counted since NewFleet; 0: no limit.
func (f *Fleet) Allow(n int) { f.set(func() { f.most = n }) }

func (f *Fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// every reports whether so is true of all clients.
func (f *Fleet) every(so func(*Client) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.clients, func(c *Client) bool { return !so(c) })
}

// Connected reports whether all connections have been made.
func (f *Fleet) Connected() bool { return f.every(func(c *Client) bool { return c.connected }) }

// Idle reports whether no operation is under way.
func (f *Fleet) Idle() bool {
	return f.every(func(c *Client) bool { return c.lib == nil || c.lib.Idle() })
}

// Renew lets clients connect again after all connections have ended: as other clients, with other numbers,
// over other connections. Recorded answers stay.
func (f *Fleet) Renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = f.broke()
	f.ending = false
	for _, c := range f.clients {
		d := c.dialer
		d.hello.Client += 1 << 48
		d.told, d.fits, d.ending = nil, false, false
		c.lib, c.connected, c.gens = nil, false, nil
	}
}

// broke reports whether a connection has ended unexpectedly.
func (f *Fleet) broke() bool {
	for _, c := range f.clients {
		if c.lib == nil {
			continue
		}
		for _, x := range c.lib.Facts() {
			if x.Name == "connections-broken" && x.Count > 0 {
				return true
			}
		}
	}
	return f.broken
}

// Ended reports whether all connections have ended.
func (f *Fleet) Ended() bool { return f.every(func(c *Client) bool { return c.dialer.ended() }) }

// Spent reports whether as many operations have begun as Allow permits.
func (f *Fleet) Spent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most > 0 && f.begun >= f.most
}

// Err returns the first error.
func (f *Fleet) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Live returns what was done since NewFleet, without latencies.
func (f *Fleet) Live() Meter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live
}

// Keys returns how many keys the memory node holds, as it said.
func (f *Fleet) Keys() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys
}

// Begin begins a new measurement.
func (f *Fleet) Begin() {
	f.set(func() {
		f.meter = &Meter{Read: hdrhistogram.New(1, longestLatency, 3), Write: hdrhistogram.New(1, longestLatency, 3)}
	})
}

// Measured returns what was done since Begin, and ends the measurement.
func (f *Fleet) Measured() *Meter {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.meter
	f.meter = nil
	return m
}

// Facts returns the sums of the clients' counters.
func (f *Fleet) Facts() (all []Fact) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.clients {
		if c.lib == nil {
			continue
		}
		for i, x := range c.lib.Facts() {
			if i == len(all) {
				all = append(all, x)
			} else {
				all[i].Count += x.Count
			}
		}
	}
	return all
}

// Judge checks all recorded answers, and the memory m. Clients and memory must be at rest. A nil m is not
// checked: it is elsewhere.
func (f *Fleet) Judge(m Store) Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Judge(m, f.broke(), f.keys)
}
