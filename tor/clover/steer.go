package clover

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Sizes of the small tables.
const (
	maxServers = 64
	maxRegions = 1024
	maxBases   = 64
	maxGaps    = 256
	// trustedBase is how many acknowledged appends must agree on where a
	// slab class begins before handles are turned into addresses with it.
	trustedBase = 4
	// writeLife is how long a written entry may wait for its CAS: many times
	// a round trip. One that waits longer was created, not appended.
	writeLife = time.Second
	// maxAhead requests in a row that are not where they were expected mean
	// that the expectation is wrong.
	maxAhead = 32
	// maxRepairs is how often the control side sends a CAS again, each time
	// after twice as long: some 10 s with the default of repair=.
	maxRepairs = 9
	// gapLife is how long a client may take to link an entry that others
	// stand behind.
	gapLife = 10 * time.Second
)

// region is a memory region of a server: what an R_Key names.
type region struct {
	rkey uint32
	sid  uint16
}

// unanswered is a steered CAS that has not been answered, oldest first.
type unanswered struct {
	row  int32
	psn  uint32
	sent clock.Time
}

// state is what all workers share; the worker whose turn it is owns it.
type state struct {
	turn atomic.Bool

	cfg     settings
	flush   bool // forget everything before the next batch
	choose  bool // forget the keys that are not chosen any more
	settled clock.Time

	keys    keyTable
	addrs   addrTable
	conns   connTable
	servers []addr
	fixed   bool // servers are given, others pass
	regions []region
	bases   []base
	gap     [maxGaps]gap
	gaps    int // in use

	sketch  sketch
	cand    [candidates]candidate
	rehot   clock.Time
	sweep   clock.Time
	casq    []unanswered // ring
	casHead int
	casLen  int
	shelf   []held // answers that wait
	place   int32  // place+1 of the first free one; 0: none
	nheld   int
	due     bool                   // some of them may go
	heldBy  []int                  // by worker
	away    [][]*packet.Buf        // by worker: held frames that another one let go of
	old     [hdr.AtomicETHLen]byte // scratch: bytes before a change
}

func newState(cfg settings, workers int) *state {
	workers = max(workers, 1)
	s := &state{
		cfg: cfg, flush: true,
		keys: newKeyTable(cfg.keys), addrs: newAddrTable(cfg.addrs), conns: newConnTable(cfg.conns),
		servers: make([]addr, 0, maxServers), regions: make([]region, 0, maxRegions), bases: make([]base, 0, maxBases),
		casq: make([]unanswered, 4096), shelf: make([]held, cfg.hold), heldBy: make([]int, workers), away: make([][]*packet.Buf, workers),
	}
	for i := cfg.hold; i > 0; i-- {
		s.shelf[i-1].next, s.place = s.place, int32(i)
	}
	for w := range s.away {
		s.away[w] = make([]*packet.Buf, 0, cfg.hold)
	}
	for _, a := range cfg.servers {
		b := a.As16()
		s.servers = append(s.servers, addr{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])})
		s.fixed = true
	}
	return s
}

// Steer is the app; one instance a worker.
type Steer struct {
	*state
	worker, workers int
	f               hdr.Frame // of the frame at hand
	g               hdr.Frame // of one that was held

	requests, responses, bytes uint64 // of the batch at hand
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	cfg, err := parseArgs(args)
	if err != nil {
		return nil, err
	}
	st := env.Share(func() any { return newState(cfg, env.Workers) }).(*state)
	return &Steer{state: st, worker: env.Worker, workers: env.Workers}, nil
}

// Wants implements graph.Wanter.
func (s *Steer) Wants() port.Filter {
	return port.Filter{RoCE: true, Hosts: s.cfg.servers}
}

// Reconfigure implements graph.Reconfigurer: everything but table sizes and
// servers can change.
func (s *Steer) Reconfigure(args graph.Args) error {
	cfg, err := parseArgs(args)
	if err != nil {
		return err
	}
	s.lock()
	defer s.unlock()
	if cfg.keys != s.cfg.keys || cfg.addrs != s.cfg.addrs || cfg.conns != s.cfg.conns || cfg.hot != s.cfg.hot || cfg.hold != s.cfg.hold {
		return fmt.Errorf("clover-steer: keys, addrs, conns, hot and hold are fixed at start; stop and start to change them")
	}
	if fmt.Sprint(cfg.servers) != fmt.Sprint(s.cfg.servers) {
		return fmt.Errorf("clover-steer: servers are fixed at start; stop and start to change them")
	}
	if cfg.mode != s.cfg.mode && (cfg.mode == Off || s.cfg.mode == Off) {
		s.flush = true
	}
	s.choose = s.choose || !cfg.only.equal(&s.cfg.only)
	s.cfg = cfg
	return nil
}

// Flush implements graph.Flusher.
func (s *Steer) Flush(*graph.Ctx) {
	s.lock()
	s.flush = true
	s.unlock()
}

func (s *Steer) lock() {
	if s.workers > 1 {
		for !s.turn.CompareAndSwap(false, true) {
			runtime.Gosched()
		}
	}
}

func (s *Steer) unlock() {
	if s.workers > 1 {
		s.turn.Store(false)
	}
}

// Push implements graph.App: frames of a leave by b and the other way round.
func (s *Steer) Push(c *graph.Ctx, in int, b *packet.Batch) {
	s.lock()
	defer s.unlock()
	if s.flush {
		s.forgetAll(c)
	}
	if s.choose {
		s.forgetOthers(c)
	}
	s.requests, s.responses, s.bytes = 0, 0, 0
	for _, x := range b.Bufs() {
		if s.frame(c, in, x) {
			c.Emit(1-in, x)
		}
	}
	s.release(c)
	s.returned(c)
	c.Count(ctrRequests, s.requests)
	c.Count(ctrResponses, s.responses)
	c.Count(ctrBytes, s.bytes)
	c.Set(ctrConns, uint64(s.conns.len()))
	c.Set(ctrKeys, uint64(s.keys.len()))
	c.Set(ctrHeld, uint64(s.nheld))
}

// forgetAll drops every tail and everything that tails rest on. What was done
// to requests that are still unanswered is kept: their retransmissions and
// answers must be treated alike.
func (s *Steer) forgetAll(c *graph.Ctx) {
	s.flush = false
	s.discardAll(c)
	s.settled = c.Now().Add(s.cfg.settle)
	for k := range s.keys.s {
		if s.keys.s[k].used {
			s.keys.drop(int32(k))
			s.keys.s[k].sure = s.keys.s[k].sent
		}
	}
	s.addrs.clear()
	for i := range s.conns.rows {
		r := &s.conns.rows[i]
		r.nw, r.resync, r.slack = 0, true, 0
	}
	s.gap, s.gaps = [maxGaps]gap{}, 0
	s.casHead, s.casLen = 0, 0
	c.Count(ctrFlushes, 1)
}

// forgetOthers drops keys that are not chosen.
func (s *Steer) forgetOthers(c *graph.Ctx) {
	s.choose = false
	for k := range s.keys.s {
		if s.keys.s[k].used && !s.cfg.only.has(s.servers[s.keys.s[k].server], s.keys.s[k].key) {
			s.forget(c, int32(k))
		}
	}
}

func (s *Steer) bad(c *graph.Ctx, x *packet.Buf, r graph.Reason) bool {
	if s.cfg.dropBad {
		c.Drop(x, r)
		return false
	}
	c.Mark(x, packet.Forwarded, r)
	return true
}

func pass(c *graph.Ctx, x *packet.Buf, r graph.Reason) { c.Mark(x, packet.Forwarded, r) }

// frame handles one frame; false when it was dropped.
func (s *Steer) frame(c *graph.Ctx, in int, x *packet.Buf) bool {
	b := x.Bytes()
	f := &s.f
	if why := hdr.Parse(b, f); why != hdr.IsRoCE {
		switch why {
		case hdr.Truncated, hdr.BadLength, hdr.BadIP:
			return s.bad(c, x, graph.Reason(why))
		}
		pass(c, x, graph.Reason(why))
		return true
	}
	fl := f.Op.Info().Flags
	if fl&hdr.IsRequest != 0 {
		s.requests++
	} else {
		s.responses++
	}
	s.bytes += uint64(len(b))
	if s.cfg.mode == Off {
		return true
	}
	if !f.ChecksumOK(b) {
		return s.bad(c, x, reasonBadChecksum)
	}
	if !hdr.GoodICRC(b, f) {
		return s.bad(c, x, reasonBadICRC)
	}
	if f.Op.Transport() != hdr.RC {
		return true
	}
	if fl&hdr.IsRequest != 0 {
		s.request(c, in, x, b, fl)
	} else {
		return s.response(c, in, x, b, fl)
	}
	return true
}

// ends are the frame's addresses.
func ends(b []byte, f *hdr.Frame) (src, dst addr) {
	h := b[f.L3:]
	if f.Net == hdr.NetIPv4 {
		v := binary.BigEndian.Uint64(h[12:])
		return addr{0, 0xFFFF<<32 | v>>32}, addr{0, 0xFFFF<<32 | v&0xFFFFFFFF}
	}
	return addr{binary.BigEndian.Uint64(h[8:]), binary.BigEndian.Uint64(h[16:])}, addr{binary.BigEndian.Uint64(h[24:]), binary.BigEndian.Uint64(h[32:])}
}

func sport(b []byte, f *hdr.Frame) uint16 {
	if f.L4 == 0 {
		return 0
	}
	return binary.BigEndian.Uint16(b[f.L4:])
}

// server is the number of a memory node that is known.
func (s *state) server(a addr) (uint16, bool) {
	for i := range s.servers {
		if s.servers[i] == a {
			return uint16(i), true
		}
	}
	return 0, false
}

// meet is the number of a memory node, new or not; false when there is no room
// for one more, or the user named those that there are.
func (s *state) meet(a addr) (uint16, bool) {
	if sid, ok := s.server(a); ok {
		return sid, true
	}
	if s.fixed || len(s.servers) == cap(s.servers) {
		return 0, false
	}
	s.servers = append(s.servers, a)
	return uint16(len(s.servers) - 1), true
}

// region is the number of a memory region.
func (s *state) region(sid uint16, rkey uint32) (uint16, bool) {
	for i := range s.regions {
		if s.regions[i] == (region{rkey, sid}) {
			return uint16(i), true
		}
	}
	if len(s.regions) == cap(s.regions) {
		return 0, false
	}
	s.regions = append(s.regions, region{rkey, sid})
	return uint16(len(s.regions) - 1), true
}

// lookup is the address slot of (server, va), or noSlot.
func (s *state) lookup(sid uint16, va uint64) int32 {
	i := s.addrs.set(sid, va)
	set := s.addrs.e[i : i+ways]
	for w := range set {
		if e := &set[w]; e.va == va && e.used() && s.regions[e.region()].sid == sid {
			return i + int32(w)
		}
	}
	return noSlot
}

// remember notes that an entry was written to (server, va): the address slot.
func (s *state) remember(c *graph.Ctx, sid uint16, va, info uint64) int32 {
	t := &s.addrs
	slot := s.lookup(sid, va)
	if slot != noSlot {
		s.vacate(c, slot)
	} else {
		i := t.set(sid, va)
		slot = i
		oldest, best := -1, -1
		for w := int32(0); w < ways; w++ {
			e := &t.e[i+w]
			if !e.used() {
				best, slot = 1<<10, i+w
				break
			}
			age := int(t.tick - e.age())
			if s.isTail(i + w) {
				if best < 0 && age > oldest {
					oldest, slot = age, i+w
				}
				continue
			}
			if age > best {
				best, slot = age, i+w
			}
		}
		s.vacate(c, slot)
	}
	t.n++
	if t.n >= uint32(len(t.e)/64) {
		t.n = 0
		t.tick++
	}
	t.e[slot] = entry{va, info&^(0xFF<<56) | uint64(t.tick)<<56}
	return slot
}

func (s *state) isTail(slot int32) bool {
	e := &s.addrs.e[slot]
	if !e.used() {
		return false
	}
	k := &s.keys.s[e.key()]
	return k.known() && k.tail == slot
}

// vacate empties an address slot; when it is a tail, its key is dropped.
func (s *state) vacate(c *graph.Ctx, slot int32) {
	if s.isTail(slot) {
		s.dropKey(c, s.addrs.e[slot].key())
	}
	s.addrs.e[slot] = entry{}
}

func (s *state) dropKey(c *graph.Ctx, k int32) {
	if s.keys.s[k].known() {
		c.Count(ctrDropped, 1)
	}
	if s.keys.s[k].waits > 0 {
		s.due = true // READs of a tail that is not believed any more
	}
	s.keys.drop(k)
}

// disturb notes that something that may change an entry's header goes
// untracked to (server, va).
func (s *state) disturb(c *graph.Ctx, sid uint16, va uint64) {
	slot := s.lookup(sid, va)
	if slot == noSlot {
		return
	}
	if s.isTail(slot) {
		s.dropKey(c, s.addrs.e[slot].key())
	}
	s.addrs.e[slot].info |= entryTouched
}
