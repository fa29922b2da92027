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
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Sizes of the small tables.
const (
	maxServers = 64
	maxRegions = 1024
	maxBases   = 64
	maxOrphans = 256
	// trustedBase is how many acknowledged appends must agree on where a
	// slab class begins before handles are turned into addresses with it.
	trustedBase = 4
	// writeLife is how long a written entry may wait for its CAS: many times
	// a round trip. One that waits longer was created, not appended.
	writeLife = time.Second
	// maxAhead requests in a row that are not where they were expected mean
	// that the expectation is wrong.
	maxAhead = 32
	// maxRepairs is how often the control side sends a CAS again.
	maxRepairs = 5
)

// region is a memory region of a server: what an R_Key names.
type region struct {
	rkey uint32
	sid  uint16
}

// base says that the entry with handle LH of a slab class lies at
// va + LH*size; n appends agree on it.
type base struct {
	va     uint64
	size   uint32
	n      uint32
	region uint16
}

// orphan is an entry whose steered CAS failed while others may hang behind it.
type orphan struct {
	lh   uint32
	key  int32
	sid  uint16
	used bool
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
	settled clock.Time

	keys    keyTable
	addrs   addrTable
	conns   connTable
	servers []addr
	fixed   bool // servers are given, others pass
	regions []region
	bases   []base
	orphans [maxOrphans]orphan
	lost    int // orphans in use

	sketch  sketch
	cand    [candidates]candidate
	rehot   clock.Time
	sweep   clock.Time
	casq    []unanswered // ring
	casHead int
	casLen  int
	old     [hdr.AtomicETHLen]byte // scratch: bytes before a change
}

func newState(cfg settings) *state {
	s := &state{
		cfg: cfg, flush: true,
		keys: newKeyTable(cfg.keys), addrs: newAddrTable(cfg.addrs), conns: newConnTable(cfg.conns),
		servers: make([]addr, 0, maxServers), regions: make([]region, 0, maxRegions), bases: make([]base, 0, maxBases),
		casq: make([]unanswered, 4096),
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

	requests, responses, bytes uint64 // of the batch at hand
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	cfg, err := parseArgs(args)
	if err != nil {
		return nil, err
	}
	st := env.Share(func() any { return newState(cfg) }).(*state)
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
	if cfg.keys != s.cfg.keys || cfg.addrs != s.cfg.addrs || cfg.conns != s.cfg.conns || cfg.hot != s.cfg.hot {
		return fmt.Errorf("clover-steer: keys, addrs, conns and hot are fixed at start; stop and start to change them")
	}
	if fmt.Sprint(cfg.servers) != fmt.Sprint(s.cfg.servers) {
		return fmt.Errorf("clover-steer: servers are fixed at start; stop and start to change them")
	}
	if cfg.mode != s.cfg.mode && (cfg.mode == Off || s.cfg.mode == Off) {
		s.flush = true
	}
	if fmt.Sprint(cfg.only) != fmt.Sprint(s.cfg.only) {
		for k := range s.keys.s {
			if s.keys.s[k].used && !cfg.chosen(s.keys.s[k].key) {
				s.forget(int32(k))
			}
		}
	}
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
	s.requests, s.responses, s.bytes = 0, 0, 0
	for _, x := range b.Bufs() {
		if s.frame(c, in, x) {
			c.Emit(1-in, x)
		}
	}
	c.Count(ctrRequests, s.requests)
	c.Count(ctrResponses, s.responses)
	c.Count(ctrBytes, s.bytes)
	c.Set(ctrConns, uint64(s.conns.len()))
	c.Set(ctrKeys, uint64(s.keys.len()))
}

// forgetAll drops every tail and everything that tails rest on. What was done
// to requests that are still unanswered is kept: their retransmissions and
// answers must be treated alike.
func (s *Steer) forgetAll(c *graph.Ctx) {
	s.flush = false
	s.settled = c.Now().Add(s.cfg.settle)
	for k := range s.keys.s {
		if s.keys.s[k].used {
			s.keys.drop(int32(k))
			s.keys.s[k].orphans = 0
		}
	}
	s.addrs.clear()
	for i := range s.conns.rows {
		r := &s.conns.rows[i]
		r.nw, r.resync, r.slack = 0, true, 0
	}
	s.orphans, s.lost = [maxOrphans]orphan{}, 0
	s.casHead, s.casLen = 0, 0
	c.Count(ctrFlushes, 1)
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
	if f.Net == hdr.NetIPv4 && !hdr.IPv4(b[f.L3:]).ChecksumOK() {
		return s.bad(c, x, reasonBadChecksum)
	}
	if hdr.ICRC(b, f) != hdr.StoredICRC(b, f) {
		return s.bad(c, x, reasonBadICRC)
	}
	if f.Op.Transport() != hdr.RC {
		return true
	}
	if fl&hdr.IsRequest != 0 {
		s.request(c, in, x, b, fl)
	} else {
		s.response(c, x, b, fl)
	}
	return true
}

// ends are the frame's addresses.
func ends(b []byte, f *hdr.Frame) (src, dst addr) {
	h := b[f.L3:]
	if f.Net == hdr.NetIPv4 {
		return addr{0, 0xFFFF<<32 | uint64(binary.BigEndian.Uint32(h[12:]))}, addr{0, 0xFFFF<<32 | uint64(binary.BigEndian.Uint32(h[16:]))}
	}
	return addr{binary.BigEndian.Uint64(h[8:]), binary.BigEndian.Uint64(h[16:])}, addr{binary.BigEndian.Uint64(h[24:]), binary.BigEndian.Uint64(h[32:])}
}

func sport(b []byte, f *hdr.Frame) uint16 {
	if f.L4 == 0 {
		return 0
	}
	return binary.BigEndian.Uint16(b[f.L4:])
}

// server is the number of a memory node.
func (s *state) server(a addr) (uint16, bool) {
	for i := range s.servers {
		if s.servers[i] == a {
			return uint16(i), true
		}
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
	return k.known && k.tail == slot
}

// vacate empties an address slot; when it is a tail, its key is dropped.
func (s *state) vacate(c *graph.Ctx, slot int32) {
	if s.isTail(slot) {
		s.dropKey(c, s.addrs.e[slot].key())
	}
	s.addrs.e[slot] = entry{}
}

func (s *state) dropKey(c *graph.Ctx, k int32) {
	if s.keys.s[k].known {
		c.Count(ctrDropped, 1)
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

// request handles a request packet of a reliable connection.
func (s *Steer) request(c *graph.Ctx, in int, x *packet.Buf, b []byte, fl hdr.OpFlags) {
	f := &s.f
	src, dst := ends(b, f)
	bth := f.BTHOf(b)
	psn := bth.PSN()
	ri := s.conns.request(dst, bth.DestQP())
	if ri != noSlot && s.conns.rows[ri].client != src {
		s.conns.remove(ri) // the server gave the number to somebody else
		ri = noSlot
	}
	if ri == noSlot {
		if !s.trackable(b, fl) {
			return
		}
		sid, ok := s.server(dst)
		if !ok {
			return
		}
		if ri = s.conns.insert(dst, src, bth.DestQP()); ri == noSlot {
			if fl&hdr.IsAtomic != 0 {
				s.disturb(c, sid, f.AtomicETHOf(b).VA())
			}
			pass(c, x, reasonConnFull)
			return
		}
		r := &s.conns.rows[ri]
		r.sid, r.epsn, r.acked = sid, psn, (psn-1)&hdr.PSNMask
	}
	r := &s.conns.rows[ri]
	r.last = c.Now()
	r.sport = sport(b, f)

	d := hdr.PSNDiff(psn, r.epsn)
	if r.resync && d >= 0 {
		r.epsn, r.slack, d = psn, 0, 0
		r.resync = false
	}
	if d < 0 && d > -window {
		s.again(c, x, b, ri, fl)
		return
	}
	if d < 0 || d > int32(r.slack) {
		// The server is not going to execute it, unless we missed something.
		if r.ahead++; r.ahead < maxAhead {
			s.untracked(c, b, r, fl)
			pass(c, x, reasonPSNGap)
			return
		}
		r.nw = 0
	}
	r.ahead = 0
	n := uint32(1)
	r.slack = 0
	if fl&hdr.IsRead != 0 {
		size := f.RETHOf(b).DMALength()
		if r.mtu != 0 {
			n = max(1, (size+uint32(r.mtu)-1)/uint32(r.mtu))
		} else if size > 256 { // the smallest path MTU
			r.slack = (size+255)/256 - 1
		}
	}
	r.epsn = (psn + n) & hdr.PSNMask

	switch {
	case fl&hdr.IsWrite != 0 && fl&(hdr.IsOnly|hdr.IsFirst) != 0:
		s.write(c, x, b, r, fl)
	case fl&hdr.IsWrite != 0 && fl&hdr.IsMiddle != 0:
		r.mtu = uint16(len(f.PayloadOf(b)))
	case f.Op == hdr.CompareSwap:
		s.cas(c, in, x, b, ri)
	case fl&hdr.IsRead != 0:
		s.read(c, x, b, ri, n)
	case fl&hdr.IsAtomic != 0 || f.Op == hdr.AtomicWrite:
		s.untracked(c, b, r, fl)
		pass(c, x, reasonOtherAtomic)
	}
}

// trackable reports whether a request makes its connection worth a row.
func (s *Steer) trackable(b []byte, fl hdr.OpFlags) bool {
	f := &s.f
	if f.Op == hdr.CompareSwap {
		return true
	}
	if fl&(hdr.IsWrite|hdr.IsRead) != 0 && f.Op.Info().Ext&hdr.HasRETH != 0 {
		_, ok := wire.Class(f.RETHOf(b).DMALength())
		return ok
	}
	return false
}

// untracked notes what a request may change that is forwarded without being
// understood.
func (s *state) untracked(c *graph.Ctx, b []byte, r *row, fl hdr.OpFlags) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	switch ext := f.Op.Info().Ext; {
	case fl&hdr.IsAtomic != 0 && ext&hdr.HasAtomicETH != 0:
		s.disturb(c, r.sid, f.AtomicETHOf(b).VA())
	case fl&hdr.IsAtomic != 0:
		s.disturb(c, r.sid, f.MaskedAtomicETHOf(b).VA())
	case (fl&hdr.IsWrite != 0 || f.Op == hdr.AtomicWrite) && ext&hdr.HasRETH != 0:
		s.disturb(c, r.sid, f.RETHOf(b).VA())
	}
}

// write handles the first or only packet of a WRITE.
func (s *Steer) write(c *graph.Ctx, x *packet.Buf, b []byte, r *row, fl hdr.OpFlags) {
	f := &s.f
	reth := f.RETHOf(b)
	size := reth.DMALength()
	p := f.PayloadOf(b)
	packets := uint32(1)
	if fl&hdr.IsFirst != 0 && len(p) > 0 {
		r.mtu = uint16(len(p))
		packets = (size + uint32(len(p)) - 1) / uint32(len(p))
	}
	va := reth.VA()
	class, ok := wire.Class(size)
	if !ok || len(p) < 16 {
		s.disturb(c, r.sid, va)
		return
	}
	word := wire.Pointer(binary.LittleEndian.Uint64(p))
	if word != wire.Fresh(word.Version()) || word.Version() == 0 {
		s.disturb(c, r.sid, va)
		return
	}
	key := binary.LittleEndian.Uint64(p[8:])
	reg, ok := s.region(r.sid, reth.RKey())
	if !ok {
		s.disturb(c, r.sid, va)
		return
	}
	k := s.keys.find(r.sid, key)
	if k == noSlot && s.cfg.chosen(key) {
		if k = s.keys.insert(r.sid, key); k == noSlot && s.cfg.hot > 0 {
			s.offer(r.sid, key, s.sketch.add(r.sid, key))
		}
	}
	slot := noSlot
	if k == noSlot {
		if old := s.lookup(r.sid, va); old != noSlot {
			s.vacate(c, old)
		}
		pass(c, x, reasonKeyFull)
	} else {
		s.keys.s[k].hits++
		slot = s.remember(c, r.sid, va, packEntry(k, word.Version(), reg, class))
	}
	w := pendingWrite{at: c.Now(), va: va, end: (f.BTHOf(b).PSN() + packets - 1) & hdr.PSNMask, slot: slot, key: k, size: size, region: reg, version: word.Version()}
	for i := range r.writes[:r.nw] {
		if r.writes[i].va == va {
			r.writes[i] = w
			return
		}
	}
	if r.nw == maxWrites {
		r.take(0)
	}
	r.writes[r.nw] = w
	r.nw++
}

// current reports whether w still describes what its address slot holds.
func (s *state) current(w *pendingWrite) bool {
	if w.slot == noSlot {
		return false
	}
	e := &s.addrs.e[w.slot]
	return e.used() && e.va == w.va && e.key() == w.key
}

// entryOf finds the written entry that a CAS with swap word w links: the
// index in r.writes of the one whose address its handle names. When no handle
// can be turned into an address yet, learn is what a success would teach: the
// connection must have no other entry waiting for its CAS.
func (s *state) entryOf(r *row, w wire.Pointer, now clock.Time) (i int, learn base) {
	for i := range r.writes[:r.nw] {
		p := &r.writes[i]
		at := base{va: p.va - uint64(w.LH())*uint64(p.size), region: p.region, size: p.size}
		if p.version == w.NextVersion() && s.trusted(&at) {
			return i, base{}
		}
	}
	for r.nw > 0 && now.Sub(r.writes[0].at) > writeLife {
		r.take(0)
	}
	if r.nw != 1 || r.writes[0].version != w.NextVersion() {
		return -1, base{}
	}
	p := &r.writes[0]
	return -1, base{va: p.va - uint64(w.LH())*uint64(p.size), region: p.region, size: p.size, n: 1}
}

// trusted reports whether enough acknowledged appends agree on x: trustedBase
// of them, and a quarter of all of that slab class. (A CAS may be taken for
// that of another entry while a connection that threads share is new; such
// mistakes are few, and scatter.)
func (s *state) trusted(x *base) bool {
	var n, all uint32
	for i := range s.bases {
		if y := &s.bases[i]; y.region == x.region && y.size == x.size {
			all += y.n
			if y.va == x.va {
				n = y.n
			}
		}
	}
	return n >= trustedBase && 4*n >= all
}

// taught counts one more append that agrees on base x.
func (s *state) taught(x base) {
	least := 0
	for i := range s.bases {
		y := &s.bases[i]
		if y.va == x.va && y.region == x.region && y.size == x.size {
			if y.n++; y.n == 1<<30 {
				for j := range s.bases {
					s.bases[j].n >>= 1
				}
			}
			return
		}
		if y.n < s.bases[least].n {
			least = i
		}
	}
	if len(s.bases) == cap(s.bases) {
		s.bases[least] = x
		return
	}
	s.bases = append(s.bases, x)
}

// cas handles a compare-and-swap in its turn.
func (s *Steer) cas(c *graph.Ctx, in int, x *packet.Buf, b []byte, ri int32) {
	f := &s.f
	r := &s.conns.rows[ri]
	a := f.AtomicETHOf(b)
	psn := f.BTHOf(b).PSN()
	va, swap, cmp := a.VA(), wire.Pointer(a.Swap()), wire.Pointer(a.Compare())
	rec := s.conns.op(ri, psn)
	if rec.live && rec.kind == opCAS && rec.steered {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonWindowFull)
		return
	}
	*rec = op{kind: opCAS, live: true, psn: psn, npsn: 1, va: va, newVA: va, rkey: a.RKey(), newRKey: a.RKey(),
		swap: uint64(swap), compare: uint64(cmp), cliVer: cmp.Version(), newVer: cmp.Version(), key: noSlot, slot: noSlot, sent: c.Now()}
	if cmp != wire.Fresh(cmp.Version()) || swap.Version() != cmp.Version() || swap&0xF0000000080007FF != 0 {
		s.disturb(c, r.sid, va)
		pass(c, x, reasonOtherAtomic)
		return
	}
	i, learn := s.entryOf(r, swap, c.Now())
	if i < 0 {
		s.disturb(c, r.sid, va)
		if learn.n > 0 {
			rec.taught, rec.entry = learn, r.writes[0].va
		}
		pass(c, x, reasonUnattributed)
		return
	}
	w := &r.writes[i]
	if !s.current(w) {
		r.take(i)
		s.disturb(c, r.sid, va)
		pass(c, x, reasonKeyFull)
		return
	}
	k := &s.keys.s[w.key]
	k.hits++
	rec.key, rec.slot, rec.entry = w.key, w.slot, w.va
	switch {
	case !k.known:
		s.through(c, x, r, rec, reasonUnknownTail)
		return
	case !r.paired:
		s.through(c, x, r, rec, reasonUnpaired)
		return
	case hdr.PSNDiff(r.acked, w.end) < 0:
		// Linked before it is known to be written: it may be overwritten
		// after somebody was sent behind it.
		s.through(c, x, r, rec, reasonUnattributed)
		return
	}
	t := &s.addrs.e[k.tail]
	rec.newVA, rec.newVer, rec.newRKey = t.va, t.version(), s.regions[t.region()].rkey
	rec.steered, rec.epoch = true, k.epoch
	t.info |= entryTouched
	k.tail = w.slot
	r.take(i)
	c.Count(ctrAppends, 1)
	if s.cfg.repair > 0 && s.casLen < len(s.casq) {
		s.casq[(s.casHead+s.casLen)%len(s.casq)] = unanswered{ri, psn, c.Now()}
		s.casLen++
		r.headLen = uint8(copy(r.head[:], b[:int(f.BTH)+hdr.BTHLen]))
		r.headF = *f
		r.out = uint8(1 - in)
	}
	if s.rewriteCAS(x, b, rec) {
		c.Mark(x, packet.Rewritten, reasonSteeredCAS)
		c.Trace(x, traceCAS, uint64(psn), va, rec.newVA, k.key)
	}
}

// through forwards an attributed CAS as it is.
func (s *Steer) through(c *graph.Ctx, x *packet.Buf, r *row, rec *op, why graph.Reason) {
	s.disturb(c, r.sid, rec.va)
	rec.epoch = s.keys.s[rec.key].epoch
	pass(c, x, why)
}

// rewriteCAS applies a record to its request; false when nothing changes.
func (s *Steer) rewriteCAS(x *packet.Buf, b []byte, rec *op) bool {
	if rec.newVA == rec.va && rec.newRKey == rec.rkey && rec.newVer == rec.cliVer {
		return false
	}
	a := s.f.AtomicETHOf(b)
	n := 12 // VA and R_Key
	if rec.newRKey == rec.rkey {
		n = 8
	}
	if rec.newVer != rec.cliVer {
		n = hdr.AtomicETHLen
	}
	copy(s.old[:], a[:n])
	a.SetVA(rec.newVA)
	a.SetRKey(rec.newRKey)
	if rec.newVer != rec.cliVer {
		a.SetCompare(uint64(wire.Fresh(rec.newVer)))
		a.SetSwap(uint64(wire.Pointer(rec.swap).WithVersion(rec.newVer)))
	}
	hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen, s.old[:n])
	return true
}

// read handles a READ request in its turn.
func (s *Steer) read(c *graph.Ctx, x *packet.Buf, b []byte, ri int32, npsn uint32) {
	f := &s.f
	r := &s.conns.rows[ri]
	reth := f.RETHOf(b)
	class, ok := wire.Class(reth.DMALength())
	if !ok {
		return
	}
	psn := f.BTHOf(b).PSN()
	va, rkey := reth.VA(), reth.RKey()
	rec := s.conns.op(ri, psn)
	if !r.paired && (rec.kind != opCAS || !rec.live) { // its answer may pair the two directions
		*rec = op{kind: opRead, live: true, psn: psn, npsn: uint16(npsn), va: va, newVA: va, rkey: rkey, newRKey: rkey, key: noSlot, slot: noSlot}
	}
	if s.cfg.mode != ReadWrite {
		return
	}
	slot := s.lookup(r.sid, va)
	if slot == noSlot {
		pass(c, x, reasonReadMiss)
		return
	}
	e := &s.addrs.e[slot]
	k := &s.keys.s[e.key()]
	k.hits++
	switch {
	case !k.known:
		pass(c, x, reasonUnknownTail)
		return
	case k.tail == slot:
		return
	case !r.paired:
		pass(c, x, reasonUnpaired)
		return
	}
	t := &s.addrs.e[k.tail]
	if t.class() != class || e.class() != class {
		pass(c, x, reasonReadClass)
		return
	}
	if rec.kind == opCAS && rec.live && rec.steered {
		pass(c, x, reasonWindowFull)
		return
	}
	*rec = op{kind: opRead, live: true, steered: true, psn: psn, npsn: uint16(npsn), va: va, newVA: t.va, rkey: rkey,
		newRKey: s.regions[t.region()].rkey, cliVer: e.version(), newVer: t.version(), key: e.key(), slot: noSlot}
	s.rewriteRead(b, rec, va)
	c.Mark(x, packet.Rewritten, reasonSteeredRead)
	c.Trace(x, traceRead, uint64(psn), va, rec.newVA, k.key)
}

// rewriteRead sends a READ of va, somewhere in what rec asked for, to the same
// place of where rec was sent.
func (s *Steer) rewriteRead(b []byte, rec *op, va uint64) {
	reth := s.f.RETHOf(b)
	n := 12
	if rec.newRKey == rec.rkey {
		n = 8
	}
	copy(s.old[:], reth[:n])
	reth.SetVA(rec.newVA + (va - rec.va))
	reth.SetRKey(rec.newRKey)
	hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen, s.old[:n])
}

// again handles a retransmission.
func (s *Steer) again(c *graph.Ctx, x *packet.Buf, b []byte, ri int32, fl hdr.OpFlags) {
	f := &s.f
	r := &s.conns.rows[ri]
	psn := f.BTHOf(b).PSN()
	switch {
	case f.Op == hdr.CompareSwap:
		rec := s.conns.op(ri, psn)
		a := f.AtomicETHOf(b)
		if rec.kind != opCAS || rec.psn != psn || rec.va != a.VA() || rec.swap != a.Swap() || rec.compare != a.Compare() {
			s.untracked(c, b, r, fl)
			return
		}
		if rec.steered && s.rewriteCAS(x, b, rec) {
			c.Mark(x, packet.Rewritten, reasonRepeated)
			return
		}
		if !rec.steered {
			s.disturb(c, r.sid, rec.va)
		}
		pass(c, x, reasonRepeated)
	case fl&hdr.IsRead != 0:
		// A READ may be taken up again in its middle.
		for back := uint32(0); back < window; back++ {
			rec := s.conns.op(ri, (psn-back)&hdr.PSNMask)
			if rec.kind != opRead || rec.psn != (psn-back)&hdr.PSNMask {
				if back > 0 && rec.psn == (psn-back)&hdr.PSNMask && rec.kind != opNone {
					return
				}
				continue
			}
			if back >= uint32(rec.npsn) {
				return
			}
			va := f.RETHOf(b).VA()
			if rec.steered && f.RETHOf(b).RKey() == rec.rkey && va-rec.va < 1<<31 {
				s.rewriteRead(b, rec, va)
				c.Mark(x, packet.Rewritten, reasonRepeated)
			}
			return
		}
	case fl&hdr.IsAtomic != 0 || f.Op == hdr.AtomicWrite:
		s.untracked(c, b, r, fl)
	}
}

// response handles a packet from a server.
func (s *Steer) response(c *graph.Ctx, x *packet.Buf, b []byte, fl hdr.OpFlags) {
	f := &s.f
	src, dst := ends(b, f)
	bth := f.BTHOf(b)
	ri := s.conns.response(dst, src, bth.DestQP())
	if ri == noSlot || !s.conns.rows[ri].paired {
		if ri = s.pair(b, ri, src, dst, bth); ri == noSlot {
			return
		}
	}
	r := &s.conns.rows[ri]
	psn := bth.PSN()
	up := psn // newest PSN that this answers
	if fl&hdr.IsAck != 0 {
		if syn := f.AETHOf(b).Syndrome(); !syn.ACK() {
			up = (psn - 1) & hdr.PSNMask
			if syn.NAK() {
				s.nak(c, ri, psn, syn)
				if syn != hdr.SynNAKSequence {
					return // the row is gone
				}
			}
		}
	}
	if hdr.PSNDiff(up, r.acked) > 0 {
		r.acked = up
	}
	if hdr.PSNDiff(up, (r.epsn+r.slack)&hdr.PSNMask) >= 0 {
		r.resync = true // it answers what we have not seen
	}
	if fl&hdr.IsAck != 0 {
		return
	}
	rec := s.conns.op(ri, psn)
	if rec.psn != psn {
		return
	}
	switch {
	case f.Op == hdr.AtomicAck && rec.kind == opCAS:
		s.casAck(c, x, b, r, rec)
	case fl&hdr.IsReadResp != 0 && rec.kind == opRead:
		rec.live = false
		if rec.steered && fl&(hdr.IsFirst|hdr.IsOnly) != 0 {
			s.restoreRead(c, x, b, rec)
		}
	}
}

// pair finds the row whose requests a response answers, when it can be but
// one; noSlot unless the two directions are trusted to belong together.
func (s *Steer) pair(b []byte, named int32, server, client addr, bth hdr.BTH) int32 {
	if s.conns.unpaired == 0 {
		return noSlot
	}
	f := &s.f
	kind := opNone
	switch f.Op {
	case hdr.AtomicAck:
		kind = opCAS
	case hdr.ReadRespOnly, hdr.ReadRespFirst:
		kind = opRead
	default:
		return noSlot
	}
	psn, port := bth.PSN(), sport(b, f)
	found, n := noSlot, 0
	samePort, nPort := noSlot, 0
	for i := range s.conns.rows {
		r := &s.conns.rows[i]
		if !r.used || r.paired || r.client != client || r.server != server {
			continue
		}
		if rec := s.conns.op(int32(i), psn); rec.kind != kind || rec.psn != psn || !rec.live {
			continue
		}
		found = int32(i)
		n++
		if r.sport == port {
			samePort = int32(i)
			nPort++
		}
	}
	if nPort == 1 {
		found = samePort
	} else if n != 1 {
		return noSlot
	}
	r := &s.conns.rows[found]
	if named != noSlot && named != found {
		s.conns.unname(named)
		named = noSlot
	}
	if r.cqpn != bth.DestQP() {
		s.conns.name(found, bth.DestQP())
	}
	r.matches++
	if r.matches < trustedMatches {
		rec := s.conns.op(found, psn)
		if kind == opRead {
			rec.live = false
		} else {
			return s.lateAck(found, b, rec)
		}
		return noSlot
	}
	r.paired = true
	s.conns.unpaired--
	return found
}

// lateAck keeps the account of an unsteered CAS that is answered while its
// connection is being paired; nothing is concluded from it.
func (s *Steer) lateAck(ri int32, b []byte, rec *op) int32 {
	rec.live = false
	if s.f.AtomicAckETHOf(b).Original() == rec.compare {
		s.learn(&s.conns.rows[ri], rec)
	}
	return noSlot
}

// learn draws what a successful CAS teaches of handles, if it does.
func (s *state) learn(r *row, rec *op) {
	if rec.taught.n > 0 {
		s.taught(rec.taught)
		r.linked(rec.entry)
	}
}

// nak handles a NAK of psn: what was sent from there on was not executed.
func (s *Steer) nak(c *graph.Ctx, ri int32, psn uint32, syn hdr.Syndrome) {
	r := &s.conns.rows[ri]
	fatal := syn != hdr.SynNAKSequence
	for i := range s.conns.ops[int(ri)*window : (int(ri)+1)*window] {
		rec := &s.conns.ops[int(ri)*window+i]
		if rec.kind != opCAS || !rec.live || !rec.steered || hdr.PSNDiff(rec.psn, psn) < 0 {
			continue
		}
		if s.keys.s[rec.key].epoch == rec.epoch {
			s.dropKey(c, rec.key)
		}
		if fatal {
			s.orphaned(c, r.sid, rec)
			rec.live = false
		}
	}
	if fatal {
		s.conns.remove(ri)
	}
}

// orphaned notes that the entry of a steered CAS is not linked; until it is,
// its key is left alone if somebody may hang behind it.
func (s *Steer) orphaned(c *graph.Ctx, sid uint16, rec *op) {
	e := &s.addrs.e[rec.slot]
	if e.used() && e.va == rec.entry && e.key() == rec.key && !e.touched() {
		return
	}
	s.dropKey(c, rec.key)
	for i := range s.orphans {
		if o := &s.orphans[i]; !o.used {
			*o = orphan{lh: wire.Pointer(rec.swap).LH(), key: rec.key, sid: sid, used: true}
			s.lost++
			s.keys.s[rec.key].orphans++
			c.Count(ctrOrphans, 1)
			return
		}
	}
	s.keys.s[rec.key].orphans++ // no room to notice its end: left alone for good
}

// linked notes that a CAS linked the entry with handle lh.
func (s *state) linked(sid uint16, lh uint32) {
	for i := range s.orphans {
		if o := &s.orphans[i]; o.used && o.lh == lh && o.sid == sid {
			s.keys.s[o.key].orphans--
			o.used = false
			s.lost--
		}
	}
}

// casAck handles the answer to a recorded CAS.
func (s *Steer) casAck(c *graph.Ctx, x *packet.Buf, b []byte, r *row, rec *op) {
	h := s.f.AtomicAckETHOf(b)
	orig := h.Original()
	if !rec.steered {
		if !rec.live {
			return
		}
		rec.live = false
		if orig != rec.compare {
			return
		}
		if s.lost > 0 {
			s.linked(r.sid, wire.Pointer(rec.swap).LH())
		}
		if rec.key == noSlot {
			s.learn(r, rec)
			return
		}
		s.confirm(c, r, rec)
		return
	}
	ok := orig == uint64(wire.Fresh(rec.newVer))
	if rec.live {
		rec.live = false
		if ok {
			c.Count(ctrConfirmed, 1)
		} else {
			c.Count(ctrFailed, 1)
			if s.keys.s[rec.key].epoch == rec.epoch {
				s.dropKey(c, rec.key)
			}
			s.orphaned(c, r.sid, rec)
		}
	}
	give := orig
	switch {
	case ok:
		give = rec.compare
	case orig == rec.compare:
		// A failure that would look like success to the client: an entry
		// version that it did not expect makes it ask again.
		give = uint64(wire.Pointer(orig).WithVersion(wire.NoVersion))
	}
	if give != orig {
		copy(s.old[:8], h)
		h.SetOriginal(give)
		hdr.PatchICRC(b, &s.f, int(s.f.BTH)+hdr.BTHLen+hdr.AETHLen, s.old[:8])
		c.Mark(x, packet.Rewritten, reasonRestoredAck)
	}
}

// confirm: an unsteered append succeeded. Its entry is the key's tail, unless
// a CAS was sent behind it already.
func (s *Steer) confirm(c *graph.Ctx, r *row, rec *op) {
	r.linked(rec.entry)
	k := &s.keys.s[rec.key]
	e := &s.addrs.e[rec.slot]
	if !k.used || k.epoch != rec.epoch || k.orphans > 0 || c.Now() < s.settled ||
		!e.used() || e.va != rec.entry || e.key() != rec.key || e.touched() {
		return
	}
	if k.known { // two ends of one chain: one of them is wrong
		s.dropKey(c, rec.key)
		return
	}
	k.known, k.tail = true, rec.slot
	c.Count(ctrKnown, 1)
}

// restoreRead gives the answer to a steered READ the version of the entry
// that was asked for.
func (s *Steer) restoreRead(c *graph.Ctx, x *packet.Buf, b []byte, rec *op) {
	p := s.f.PayloadOf(b)
	if len(p) < 8 {
		return
	}
	w := wire.Pointer(binary.LittleEndian.Uint64(p))
	// When it is not the entry any more that the request was sent to, nobody
	// may take it for what was asked for.
	give := w.WithVersion(wire.NoVersion)
	if w.Version() == rec.newVer {
		give = w.WithVersion(rec.cliVer)
	}
	if give == w {
		return
	}
	copy(s.old[:8], p)
	binary.LittleEndian.PutUint64(p, uint64(give))
	hdr.PatchICRC(b, &s.f, int(s.f.Payload), s.old[:8])
	c.Mark(x, packet.Rewritten, reasonRestoredRead)
}
