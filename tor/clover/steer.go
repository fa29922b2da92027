package clover

import (
	"cmp"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/prefetch"
	"github.com/quillon/quillon/tor/conn"
	"github.com/quillon/quillon/tor/index"
)

// Sizes of the small tables.
const (
	maxServers = 64
	maxRegions = 1024
	maxBases   = 64
	maxGaps    = 256
	// trustedBase is the number of acknowledged appends that must agree on a base before handles are turned
	// into addresses with it.
	trustedBase = 4
	// maxAhead is the number of requests in sequence, away from the expected PSN, after which the expected
	// PSN is wrong if the server does not answer these requests.
	maxAhead = 32
	// maxRepairs is how many times a CAS is sent again, each time after twice the time: about 10 s in all
	// with the default of repair=.
	maxRepairs = 9
)

// state is what all workers share. A worker with its own turn at connections owns, of its own connections
// (conn.Row.Owner), what conn.Table.Plain changes, and the fields of the row that follow PSNs: begun, inside,
// epsn, slack, acked, ahead, aheadFrom, aheadTo, answered, count, behind, mark, msn, strayed, strayLen and
// strayFrom. A worker with all turns at connections owns these fields of all connections. The worker with the
// turn at keys owns all else. What both turns read (row.sid, cfg, flush), and the set of connections, is
// changed by a worker that has all turns. A worker that takes several turns takes those at connections first.
//
// What most turns change is in few cache lines, because each of these lines comes from another worker's cache
// in each turn.
type state struct {
	turns

	// Fields that turns read.
	traffic
	passing atomic.Bool // mode=off: frames need not be looked at
	flush   bool        // forget everything before the next batch
	skipped bool        // some keys before choose that are not steered any more had appends under way: they are looked at again
	choose  int         // keys from this one on are not yet compared with the new only=; len(keys.s): all are
	settled clock.Time
	cfg     settings
	_       [line + 8]byte

	// The fields that most turns change are in one cache line: the end of chains (booked), in, ctx, and the
	// beginning of memory (addrs).
	chains
	in  *desk      // desk of the worker that has the turn at keys
	ctx *graph.Ctx // context of that worker
	memory
}

// line is the length of a cache line in bytes.
const line = 64

func newState(cfg settings, workers int) *state {
	s := &state{
		cfg: cfg, flush: true, choose: cfg.keys, turns: turns{atConns: make([]turn, workers)},
		traffic: traffic{rows: make([]row, cfg.conns), ops: make([]op, cfg.conns*window), open: make([]openOps, workers)},
	}
	s.chains = chains{answers: answers{
		traffic: &s.traffic, mem: &s.memory, shelf: hold.New[waiting](cfg.hold, workers), waits: index.New(cfg.hold + 1), due: make([]int32, 0, cfg.conns),
	}, gaps: make([]gap, 0, maxGaps)}
	s.memory = memory{
		cfg: &s.cfg, readers: &s.answers, keys: newKeyTable(cfg.keys), addrs: newAddrTable(cfg.addrs), handles: handles{bases: make([]base, 0, maxBases)},
		nodes: nodes{freeRegions: make([]uint16, 0, maxRegions), byKey: index.New(maxRegions)},
		gone:  leavers{keys: make([]int32, 0, cfg.keys), regions: make([]uint16, 0, maxRegions)},
	}
	s.keys.seed, s.addrs.seed = cfg.seed, uint32(cfg.seed)
	s.passing.Store(cfg.mode == Off)
	for i := maxRegions - 1; i >= 0; i-- {
		s.freeRegions = append(s.freeRegions, uint16(i))
	}
	for i := range s.rows {
		s.rows[i].sid = noServer
	}
	for _, a := range cfg.servers {
		s.given = append(s.given, conn.AddrFrom(a))
	}
	c := conn.Config{
		Rows: cfg.conns, Seed: cfg.seed, Infer: true, SamePort: true, Settle: cmp.Or(cfg.pair, conn.AtOnce), Idle: cfg.idle,
		OnRemove: func(i conn.Slot) { s.in.leave(int32(i)) },
		LetGo: func(i conn.Slot) bool {
			return s.mayLeave(int32(i)) || s.cfg.idle > 0 && s.ctx.Now().Sub(s.conns.Row(i).LastSeen) >= s.cfg.idle
		},
	}
	if cfg.idle == 0 {
		c.Idle = arg.Longest
	}
	var err error
	if s.conns, err = conn.New(c); err != nil {
		panic("clover-steer: " + err.Error()) // cannot happen: parseArgs checks the same limits
	}
	return s
}

// Steer is the app, with one instance for each worker. It takes a batch through the turns. requests,
// responses, repairs and legacy do what frames, ticks and records cause. They have no state of their own:
// each of them is the desk under another name.
type Steer struct {
	desk
	batch    []parsed
	together int // number of batches for which it takes all turns at connections
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	cfg, err := parseArgs(args)
	if err != nil {
		return nil, err
	}
	if env.Asked {
		return &Steer{desk: desk{state: &state{cfg: cfg}}}, nil
	}
	st := env.Share(func() any {
		cfg := cfg
		cfg.seed = env.Seed
		return newState(cfg, env.Workers)
	}).(*state)
	if err := st.journal.remember(env); err != nil {
		return nil, err
	}
	s := &Steer{desk: desk{state: st, lookout: lookout{home: st.addrs, seek: st.conns.Lookout()}, worker: env.Worker, workers: env.Workers, goes: make([]gone, 0, cfg.hold)}}
	s.batch = make([]parsed, 4*packet.MaxBatch)[:packet.MaxBatch] // an array of this size begins on a cache line
	old := make([][hdr.AtomicETHLen]byte, packet.MaxBatch+1)
	for i := range s.batch {
		s.batch[i].old = &old[i]
	}
	s.held.old = &old[packet.MaxBatch]
	s.parsed = &s.batch[0]
	return s, nil
}

// End makes the app steer no more CASes that would be guarded when the process has ended. As the server
// answers, ever fewer are on record. End is called by the app's worker.
func (s *Steer) End() { s.ending = true }

// Wants implements graph.Wanter.
func (s *Steer) Wants() port.Filter {
	return port.Filter{RoCE: true, Hosts: s.cfg.servers, Guarded: s.cfg.mode != Off}
}

// Takes implements graph.Reconfigurer. Reconfigure refuses changes that are not possible while the app runs.
func (*Steer) Takes(graph.Args) bool { return true }

// Reconfigure implements graph.Reconfigurer: everything can change, except keys, addrs, conns, hot, hold,
// idle and servers.
func (s *Steer) Reconfigure(args graph.Args) error {
	cfg, err := parseArgs(args)
	if err != nil {
		return err
	}
	s.lock()
	defer s.unlock()
	if cfg.keys != s.cfg.keys || cfg.addrs != s.cfg.addrs || cfg.conns != s.cfg.conns || cfg.hot != s.cfg.hot || cfg.hold != s.cfg.hold || cfg.idle != s.cfg.idle {
		return fmt.Errorf("clover-steer: keys, addrs, conns, hot, hold and idle are fixed at start; stop and start to change them")
	}
	if fmt.Sprint(cfg.servers) != fmt.Sprint(s.cfg.servers) {
		return fmt.Errorf("clover-steer: servers are fixed at start; stop and start to change them")
	}
	if cfg.mode != s.cfg.mode && (cfg.mode == Off || s.cfg.mode == Off) {
		s.flush = true
	}
	if !cfg.only.equal(&s.cfg.only) {
		s.choose = 0
	}
	s.cfg = cfg
	s.passing.Store(cfg.mode == Off)
	return nil
}

// Flush implements graph.Flusher: the next batch begins without what was learnt.
func (s *Steer) Flush(*graph.Ctx) {
	s.lock()
	s.flush = true
	s.unlock()
}

// turnSpins is how many times a worker looks for its turn before it yields its processor: longer than a turn
// that is not interrupted.
const turnSpins = 1 << 14

// turn is a lock that one worker has at a time, in a cache line of its own.
type turn struct {
	taken atomic.Bool
	_     [line - 4]byte
}

func (t *turn) take() {
	for n := 1; t.taken.Load() || !t.taken.CompareAndSwap(false, true); n++ {
		if n%turnSpins == 0 {
			runtime.Gosched()
		}
	}
}

func (t *turn) give() { t.taken.Store(false) }

// turns say which worker may change the state. A worker that handles frames takes the turns that it needs.
// Any other caller takes all.
type turns struct {
	atKeys  turn
	atConns []turn // by worker; a caller that takes all takes them in this order
}

// lock takes all turns. A single worker needs none.
func (s *turns) lock() {
	if len(s.atConns) > 1 {
		s.takeConns()
		s.atKeys.take()
	}
}

// takeConns takes all turns at connections.
func (s *turns) takeConns() {
	for i := range s.atConns {
		s.atConns[i].take()
	}
}

func (s *turns) giveConns() {
	for i := range s.atConns {
		s.atConns[i].give()
	}
}

func (s *turns) unlock() {
	if len(s.atConns) > 1 {
		s.atKeys.give()
		s.giveConns()
	}
}

// Push implements graph.App: frames that come by a leave by b, and the other way round. Where workers share
// the state, work that needs no turn is done before and after the worker's turn.
func (s *Steer) Push(c *graph.Ctx, in int, b *packet.Batch) {
	s.off, s.sides = s.passing.Load(), [2]as{asBackResponse, asRequest}
	if in == fromServers {
		s.sides = [2]as{asResponse, asBackRequest}
	}
	s.looked, s.requests, s.bytes = 0, 0, 0
	if s.workers == 1 {
		s.begin(c)
		// A frame is looked at before the frame in front of it is handled, so that the memory that it needs
		// is under way by then.
		n, bufs := 0, b.Bufs()
		p, q := &s.batch[0], &s.batch[1]
		if len(bufs) > 0 {
			s.look(p, bufs[0])
		}
		for i := range bufs {
			if i+1 < len(bufs) {
				s.look(q, bufs[i+1])
			}
			x := bufs[i]
			if s.parsed = p; s.keyed(c, in, x, p, s.plain(c, p, 0)) {
				if p.n != 0 {
					p.seal(p.b)
				}
				bufs[n] = x
				n++
			}
			p, q = q, p
		}
		s.release(c)
		s.gauge(c)
		c.EmitAll(1-in, bufs[:n])
	} else {
		s.inTurn(c, in, b)
	}
	s.send(c)
	c.Count(ctrRequests, s.requests)
	c.Count(ctrResponses, s.looked-s.requests)
	c.Count(ctrBytes, s.bytes)
}

// inTurn is Push where several workers share the state. Frames of known connections go through two turns, one
// after the other: this worker's own turn at connections, as long as they are of its connections, or else all
// turns at connections; and the turn at keys. From the first frame that is of no such connection on, the
// worker has all turns for the rest of the batch.
func (s *Steer) inTurn(c *graph.Ctx, in int, b *packet.Batch) {
	bufs := b.Bufs()
	n, looked := 0, 0
	if s.together > 0 {
		s.together--
	} else {
		n, looked = s.mine(c, in, bufs)
	}
	if n < len(bufs) {
		s.withAll(c, in, bufs, n, looked)
	}
	n = 0
	for i, x := range bufs {
		p := &s.batch[i]
		if p.stays {
			continue
		}
		if p.n != 0 {
			p.seal(p.b)
		}
		bufs[n] = x
		n++
	}
	c.EmitAll(1-in, bufs[:n])
}

// togetherFor is the number of batches for which a worker takes all turns at connections after it met another
// worker's connection. If frames are not divided among workers by connection, it does so all the time.
const togetherFor = 64

// mine handles the first frames of a batch with this worker's own turn at connections, and then the turn at
// keys, and returns their number. looked is the number of frames that were looked at.
func (s *Steer) mine(c *graph.Ctx, in int, bufs []*packet.Buf) (n, looked int) {
	own := &s.atConns[s.worker]
	own.take()
	s.off = s.passing.Load()
	if !s.flush && s.choose >= len(s.keys.s) {
		for n < len(bufs) {
			p := &s.batch[n]
			s.look(p, bufs[n])
			looked = n + 1
			if s.parsed = p; !s.plain(c, p, s.worker+1) {
				break
			}
			n++
		}
	}
	if n > 0 {
		s.atKeys.take()
	}
	own.give()
	if n > 0 {
		s.turn(c, in, bufs, 0, n, n)
		s.atKeys.give()
	}
	return n, looked
}

// withAll handles the rest of a batch, from frame first on, with all turns at connections. The frames before
// looked were looked at.
func (s *Steer) withAll(c *graph.Ctx, in int, bufs []*packet.Buf, first, looked int) {
	for i := looked; i < len(bufs); i++ {
		s.look(&s.batch[i], bufs[i])
	}
	s.takeConns()
	if off := s.passing.Load(); off != s.off { // the mode has changed meanwhile
		s.off = off
		looked, requests, bytes := s.looked, s.requests, s.bytes
		for i := first; i < len(bufs); i++ {
			s.look(&s.batch[i], bufs[i])
		}
		s.looked, s.requests, s.bytes = looked, requests, bytes // the frames were counted already
	}
	n := first
	if !s.flush && s.choose >= len(s.keys.s) {
		for n < len(bufs) {
			if s.parsed = &s.batch[n]; !s.plain(c, s.parsed, 0) {
				break
			}
			n++
		}
	}
	s.atKeys.take()
	both := n < len(bufs) || s.flush || s.choose < len(s.keys.s)
	if !both {
		s.giveConns()
	}
	s.turn(c, in, bufs, first, n, len(bufs))
	s.atKeys.give()
	if both {
		s.giveConns()
	}
}

// turn is this worker's turn at keys, with frames first to end of a batch. For the frames from n on the
// worker has all turns.
func (s *Steer) turn(c *graph.Ctx, in int, bufs []*packet.Buf, first, n, end int) {
	s.begin(c)
	for i := first; i < end; i++ {
		if k := i + fetchAhead; k < n {
			s.fetch(&s.batch[k])
		}
		p := &s.batch[i]
		s.parsed = p
		p.stays = !s.keyed(c, in, bufs[i], p, i < n)
	}
	s.parsed = &s.batch[0]
	s.release(c)
	s.gauge(c)
}

// plain does what frame p does to its connection. It returns false, and has done nothing, if that needs all
// turns. With the number of a worker (from 1 on) it handles only that worker's connections. With 0 it handles
// any, and the connection is this worker's from then on. It is not inlined, so that the functions that it
// calls are inlined in it.
//
//go:noinline
func (s *Steer) plain(c *graph.Ctx, p *parsed, worker int) bool {
	if p.as > asResponse {
		// All other frames are of no followed connection.
		return p.as != asForeign && (p.as != asBackResponse || !s.cfg.anySide)
	}
	i, ok := conn.Elsewhere, true
	if p.f.Plain {
		i = s.conns.Easily(c.Now(), &p.ends, p.b, p.fl, uint16(worker), p.psns)
	}
	if i < 0 {
		if i == conn.NoSlot {
			ok = p.as == asResponse && s.conns.Unasked(&p.ends)
		} else {
			i, ok = s.conns.Plain(c.Now(), &p.ends, p.b, &p.f, uint16(worker))
		}
		if i == conn.NoSlot {
			p.row, p.order = noSlot, unfollowed
			return ok || p.as == asRequest && !s.trackable(p.b, p.fl)
		}
	}
	p.row = int32(i)
	r := &s.rows[i]
	if !ok || r.sid == noServer || r.unmet {
		if owner := s.conns.Row(i).Owner; worker != 0 && owner != 0 && int(owner) != worker {
			s.together = togetherFor
		}
		return false
	}
	if worker == 0 && s.workers > 1 {
		s.conns.Give(i, uint16(s.worker+1))
	}
	if p.as == asRequest {
		s.rank(p, r, p.b)
		return p.order != early || s.undone(p)
	}
	up := p.psn
	if p.fl&hdr.IsAck != 0 {
		if syn := p.aeth().Syndrome(); syn.NAK() {
			return false
		} else if !syn.ACK() {
			up = (up - 1) & hdr.PSNMask
		}
	}
	r.heard(c, p, up)
	return true
}

// undone sets p.psns of a frame to what look has set, because plain may be called again for the frame. It
// returns false.
//
//go:noinline
func (s *lookout) undone(p *parsed) bool {
	if p.f.Plain {
		p.psns = s.seek.Ahead(&p.ends, p.b)
	}
	return false
}

// fetchAhead is the number of frames by which memory is fetched ahead of its use.
const fetchAhead = 2

// fetch makes the processor fetch what the turn at keys needs of a frame that has gone through the turn at
// connections: the place of its record, and of the written entries.
func (s *Steer) fetch(p *parsed) {
	if p.as != asRequest && p.as != asResponse || p.row < 0 {
		return
	}
	r := &s.rows[p.row]
	at := r.head
	if p.as == asRequest {
		at++ // the place of a new record
		if p.fl&hdr.IsRead == 0 {
			prefetch.Line(uintptr(unsafe.Pointer(&r.writes[1])))
		}
	}
	o := uintptr(unsafe.Pointer(&s.ops[p.row*window+int32(at%window)]))
	prefetch.Line(o)
	prefetch.Line(o + line)
}

// keyed does what p, the frame at hand, causes in the worker's turn at keys. It returns false if the frame
// does not go on. If plain is true, it continues where Steer.plain ended; otherwise it handles the whole
// frame.
func (s *Steer) keyed(c *graph.Ctx, in int, x *packet.Buf, p *parsed, plain bool) bool {
	goes := true
	switch {
	case !plain || p.as > asResponse:
		goes = s.frame(c, in, x)
	case p.as == asRequest:
		goes = requests{&s.desk}.requested(c, x, p.b)
	default:
		goes = p.row < 0 || responses{&s.desk}.responded(c, in, x, p.b)
	}
	return goes && (!p.unsteered || !s.waits(c, x, p.b))
}

// gauge sets the counters of what is known; the first worker does it for all.
func (s *Steer) gauge(c *graph.Ctx) {
	if s.worker == 0 {
		c.Set(ctrConns, uint64(s.conns.Len()))
		c.Set(ctrKeys, uint64(s.keys.len()))
		c.Set(ctrHeld, uint64(s.shelf.Len()))
	}
}

// begin starts this worker's turn at keys.
func (s *Steer) begin(c *graph.Ctx) {
	s.in, s.ctx = &s.desk, c
	s.shelf.Return(c, s.worker, reasonUnheld)
	if s.flush {
		s.forgetAll(c)
		legacy{&s.desk}.inherit(c)
	}
	if s.choose < len(s.keys.s) {
		s.forgetOthers(c)
	}
}

// forgetAll forgets every tail, and everything from which tails were learnt. The records of requests without
// an answer stay, because their retransmissions and answers must be treated like the originals.
func (s *Steer) forgetAll(c *graph.Ctx) {
	s.flush = false
	s.discardAll(c)
	s.settled = c.Now().Add(s.cfg.settle)
	for i := range s.keys.s {
		if k := &s.keys.s[i]; k.used {
			s.keys.drop(int32(i))
			k.sure = k.sent
			k.cuts++
		}
	}
	s.addrs.clear()
	for i := range s.ops {
		o := &s.ops[i]
		o.note, o.sure = 0, false // it is found again: see inherit
		s.close(o)
		o.linked = true // if it was steered: no client is to be told
	}
	for i := range s.rows {
		r := &s.rows[i]
		r.nw, r.unread, r.marks, r.count = 0, false, 0, uncounted
	}
	s.gaps = s.gaps[:0]
	c.Count(ctrFlushes, 1)
}

// forgetOthers forgets keys that are not to be steered any more, some at a time. A key with appends under way
// is forgotten later, when the clients of these were told.
func (s *Steer) forgetOthers(c *graph.Ctx) {
	end := min(s.choose+sweepKeys, len(s.keys.s))
	for ; s.choose < end; s.choose++ {
		k := &s.keys.s[s.choose]
		if !k.used || s.cfg.only.has(s.servers[k.server].match, k.key) {
			continue
		}
		if s.dropKey(c, int32(s.choose)); k.unlinked() > 0 || k.waits != 0 {
			s.skipped = true // requests of other keys do not wait for its clients
			continue
		}
		s.forget(c, int32(s.choose))
	}
	if s.choose == len(s.keys.s) && s.skipped {
		s.choose, s.skipped = 0, false
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

// pass is not inlined, because it is rarely called, from many places.
//
//go:noinline
func pass(c *graph.Ctx, x *packet.Buf, r graph.Reason) { c.Mark(x, packet.Forwarded, r) }

// frame handles a frame that was looked at, in the worker's turn. It returns false if the frame does not go
// on.
func (s *Steer) frame(c *graph.Ctx, in int, x *packet.Buf) bool {
	b, f := s.b, &s.f
	switch s.as {
	case asIs:
	case asOther:
		if in == fromClients && s.hidden(b) {
			c.Drop(x, graph.Reason(f.Why))
			return false
		}
		s.foreign(c, b)
		switch f.Why {
		case hdr.Truncated, hdr.BadLength, hdr.BadIP:
			return s.bad(c, x, graph.Reason(f.Why))
		}
		pass(c, x, graph.Reason(f.Why))
	case asBadChecksum:
		return s.bad(c, x, reasonBadChecksum)
	case asBadICRC:
		return s.bad(c, x, reasonBadICRC)
	case asForeign:
		if !s.manage(c, in, b) {
			s.foreign(c, b)
		}
	case asRequest:
		return requests{&s.desk}.request(c, x, b)
	case asResponse:
		return responses{&s.desk}.response(c, in, x, b)
	case asBackRequest:
		s.untracked(c, b, s.server(s.ends.Dst), s.fl)
	case asBackResponse:
		return !s.cfg.anySide || responses{&s.desk}.response(c, in, x, b)
	}
	return true
}

// Inputs.
const (
	fromClients = iota
	fromServers
)

// manage handles a datagram of the connection manager. It returns false if the frame is none. A datagram
// counts only if it came from the side of the host that sent it.
func (s *Steer) manage(c *graph.Ctx, in int, b []byte) bool {
	m, ok := s.f.CMOf(b)
	if !ok || !s.ends.Of(b, &s.f) {
		return false
	}
	server := m.AttributeID() == hdr.ConnectReply || s.server(s.ends.Src) != noServer
	if server == (in == fromServers) && (s.serves(s.ends.Src) || s.serves(s.ends.Dst)) {
		if i, e := s.conns.CM(c.Now(), &s.ends, b, &s.f); i != conn.NoSlot {
			s.event(int32(i), e)
		}
	}
	return true
}
