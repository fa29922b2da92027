package rcuckoo

import (
	"fmt"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// step is what a session waits for.
type step uint8

const (
	stepIdle    step = iota
	stepRead         // READ of a key's rows
	stepExtent       // READ of a value
	stepCollect      // READ of extents that may be free
	stepWait         // time, until extents may be used again
	stepLock         // masked CAS of locks, READ of the rows behind them
	stepWrite        // WRITEs of rows, and the release of all locks
	stepRelease      // release of the locks that are held
	stepBase         // READ of leases: the beginning of an observation
	stepProve        // READ of the rows behind the lock: its end
	stepLease        // CAS of a lease
	stepScan         // READ of rows behind a dead client's lock
	stepOthers       // READ of the other rows of their entries
	stepFix          // WRITE of a repaired row
	stepUnlock       // masked CAS of the dead client's lock
	stepGive         // CASes that give leases back
)

// after is what follows a release.
type after uint8

const (
	thenEnd after = iota
	thenRetry
	thenRepair
)

// session is a client thread with a queue pair: one operation at a time, one post at a
// time.
type session struct {
	c      *Client
	index  int
	qp     *rnic.QP
	grant  Grant
	posts  uint32 // number of the post that is under way
	wakeAt clock.Time

	step step
	res  Result
	key  uint32

	// A read.
	two     [2]image // the rows, in their order
	pair    [2]int   // their numbers
	sums    [2]uint64
	confirm bool
	tornAt  clock.Time // since when a row is torn; 0: it is not
	readAt  clock.Time
	byLock  bool // the read takes locks, since a row stays torn

	// A value in an extent.
	piece   piece
	has     bool // piece is allocated
	written bool
	rounds  int // of looking for free extents
	old     cell
	free    bool // old's extent is to be freed

	// What is locked, or will be.
	rows []int
	lockPlan
	held    int // groups whose locks are held
	started clock.Time
	find    *finder
	guess   []hop    // the path that was guessed, or is gone
	moves   []uint32 // its keys
	flushed bool
	writes  []write
	then    after

	rowCache
	inCache  func(int) row
	inLocked func(int) row

	sus suspect
	rep repair

	arena arena
	words [][8]byte // what atomics return
	post
}

// post is requests that are posted together.
type post struct {
	wrs  []rnic.SendWR
	bufs [][]byte
}

// arena is memory for the READs and WRITEs of one post. When a session fails the old one
// is left to what is under way.
type arena struct {
	b    []byte
	used int
}

func (a *arena) take(n int) []byte {
	if a.used+n > len(a.b) {
		a.b = make([]byte, max(2*len(a.b), n, 4096))
		a.used = 0
	}
	p := a.b[a.used : a.used+n : a.used+n]
	a.used += n
	return p
}

// write is a part of a row that is to be written.
type write struct {
	at  int // in the table
	buf []byte
}

var none [cellRow]byte

const cellRow = Slots*16 + 16

// maxWords is how many atomics a post has, if not more locks are released.
const maxWords = 130

func newSession(c *Client, i int) *session {
	l := &c.cfg.Layout
	n := c.cfg.Cache / l.RowSize()
	s := &session{c: c, index: i, wakeAt: clock.Never, find: newFinder(l, c.cfg.Search, c.cfg.Seed<<16^uint64(i)), rowCache: rowCache{rowSize: l.RowSize(), cache: make([]byte, n*l.RowSize()), cached: make([]int32, n)}, lockPlan: lockPlan{l: l}, words: make([][8]byte, maxWords)}
	s.inCache, s.inLocked = s.rowInCache, s.rowLocked
	return s
}

// rowCache has some rows as they were read last.
type rowCache struct {
	rowSize int
	cache   []byte
	cached  []int32 // by place: row+1
	reach   bool    // a search met rows of the cache only
}

// rowInCache is a row as the cache has it; rows that are not known count as empty.
func (c *rowCache) rowInCache(i int) row {
	n := c.rowSize
	if k := len(c.cached); k > 0 {
		if p := i % k; c.cached[p] == int32(i)+1 {
			return c.cache[p*n : (p+1)*n]
		}
	}
	c.reach = false
	return none[:n]
}

func (c *rowCache) keep(i int, b []byte) {
	if k := len(c.cached); k > 0 {
		p := i % k
		c.cached[p] = int32(i) + 1
		copy(c.cache[p*len(b):], b)
	}
}

// begin begins an operation.
func (s *session) begin(now clock.Time, op Op) {
	c := s.c
	s.res = Result{Session: s.index, Op: op, Start: now}
	s.key, s.tornAt, s.byLock, s.confirm, s.flushed = uint32(op.Key), 0, false, false, false
	s.has, s.written, s.free, s.rounds = false, false, false, 0
	s.step = stepWait
	switch {
	case c.err != nil:
		s.end(now, c.err)
	case op.Key == 0 || op.Key > 1<<32-1:
		s.end(now, ErrKey)
	case op.Kind > Delete:
		s.end(now, fmt.Errorf("rcuckoo: there is no operation %d", op.Kind))
	case op.Kind == Read:
		s.read(now)
	case op.Kind != Delete && !c.fits(len(op.Value)):
		s.end(now, ErrValue)
	default:
		if op.Kind == Insert && c.cfg.Flush {
			clear(s.cached)
		}
		s.prepare(now)
	}
}

// inline reports whether values of a size lie in entries.
func (c *Client) inline(size int) bool { return size == c.cfg.InlineSize() && !c.cfg.Outside }

func (c *Client) fits(size int) bool {
	return c.inline(size) || c.cfg.Wide && c.cfg.Extents > 0 && size > 0 && size <= maxValue-extentHeader
}

// prepare finds memory for the value, and begins to look for locks.
func (s *session) prepare(now clock.Time) {
	c := s.c
	if n := len(s.res.Value); s.res.Kind != Delete && s.res.Kind != Read && !s.has && !c.inline(n) {
		p, ok := c.slab.take(now, n, c.cfg.FailAfter)
		switch {
		case ok:
			s.piece, s.has = p, true
		case s.rounds <= len(c.slab.owned)/16+1 && len(c.slab.owned) > 0:
			s.rounds++
			s.do(now, stepCollect)
			return
		case len(c.slab.late) > 0:
			s.rounds = 0
			s.step, s.wakeAt = stepWait, now.Add(c.cfg.FailAfter)
			return
		default:
			s.end(now, ErrNoExtent)
			return
		}
	}
	s.attempt(now)
}

// collected looks which extents are free.
func (s *session) collected(now clock.Time) {
	for i, p := range s.rep.pieces {
		if s.words[i][0]&1 == 0 {
			s.c.slab.drop(now, p)
		}
	}
	s.prepare(now)
}

func (s *session) end(now clock.Time, err error) {
	c := s.c
	s.step = stepIdle
	s.res.Err, s.res.End = err, now
	if s.has {
		c.slab.give(s.piece)
		s.has = false
	}
	if err != nil {
		c.stats.Errors++
	} else {
		c.stats.Done[s.res.Kind]++
	}
	c.stats.Messages += uint64(s.res.Messages)
	c.stats.FirstFailed += uint64(s.res.FirstFailed)
	c.stats.SecondFailed += uint64(s.res.SecondFailed)
	if c.cfg.Done != nil {
		c.cfg.Done(&s.res)
	}
}

// do begins a step.
func (s *session) do(now clock.Time, x step) {
	s.step = x
	s.fire(now)
}

// linked connects the session if it is not; false: later.
func (s *session) linked(now clock.Time) bool {
	if s.qp != nil {
		return true
	}
	qp, g, err := s.c.cfg.Dial(now, s.index)
	if err != nil {
		s.wakeAt = now.Add(redialAfter)
		return false
	}
	if g.Layout != s.c.cfg.Layout {
		s.c.err = fmt.Errorf("rcuckoo: the server's table is not the client's: it is %+v, and not %+v", g.Layout, s.c.cfg.Layout)
		s.end(now, s.c.err)
		return false
	}
	s.qp, s.grant = qp, g
	return true
}

// fire posts what the step asks for; later, when there is no connection.
func (s *session) fire(now clock.Time) {
	if !s.linked(now) {
		return
	}
	s.wrs, s.bufs = s.wrs[:0], s.bufs[:0]
	phase := numPhases
	switch s.step {
	case stepRead:
		s.postRead(now)
	case stepExtent:
		s.ask(rnic.OpRead, s.grant.Extents, int(s.old.at), s.rep.img)
	case stepCollect:
		s.rep.pieces = append(s.rep.pieces[:0], s.c.slab.some(16)...)
		for i, p := range s.rep.pieces {
			s.ask(rnic.OpRead, s.grant.Extents, p.at, s.words[i][:])
		}
	case stepLock:
		phase = Locking
		s.postLock()
	case stepWrite:
		phase = Writing
		s.postWrites()
	case stepRelease:
		phase = Releasing
		s.postRelease()
	default:
		phase = s.postRepair()
	}
	s.send(now, phase)
}

// ask adds a READ or WRITE to the post.
func (p *post) ask(op rnic.Op, r Region, at int, buf []byte) {
	p.wrs = append(p.wrs, rnic.SendWR{Op: op, RemoteAddr: r.VA + uint64(at), RKey: r.RKey})
	p.bufs = append(p.bufs, buf)
}

// askMasked adds a masked CAS of lock bits.
func (p *post) askMasked(locks Region, word int, compare, swap, mask uint64, into []byte) {
	p.ask(rnic.OpMaskedCompareSwap, locks, 8*word, into)
	w := &p.wrs[len(p.wrs)-1]
	w.Compare, w.Swap, w.CompareMask, w.SwapMask = compare, swap, mask, mask
}

// askSwap adds a CAS of a lease.
func (p *post) askSwap(leases Region, region int, from, to uint64, into []byte) {
	p.ask(rnic.OpCompareSwap, leases, 8*region, into)
	w := &p.wrs[len(p.wrs)-1]
	w.Compare, w.Swap = from, to
}

// Sizes of frames, with Ethernet and without FCS: what requests and answers have
// besides data.
const (
	frameRead, frameReadResp   = 74, 62
	frameMasked, frameCAS      = 102, 86
	frameAtomicAck, frameWrite = 70, 74
	frameAck                   = 62
)

// send posts the requests.
func (s *session) send(now clock.Time, phase Phase) {
	c := s.c
	s.posts++
	id := uint64(s.posts)<<16 | uint64(s.index)
	for i := range s.wrs {
		w := &s.wrs[i]
		if phase < numPhases && c.cfg.Cut != nil && w.Op != rnic.OpRead && c.cfg.Cut(now, s.index, phase, i) {
			s.die(now)
			return
		}
		w.ID, w.SGL, w.Signaled = id, s.bufs[i:i+1], i == len(s.wrs)-1
		s.res.Messages++
		switch w.Op {
		case rnic.OpRead:
			s.res.Bytes += frameRead + frameReadResp + len(s.bufs[i])
		case rnic.OpWrite:
			s.res.Bytes += frameWrite + frameAck + len(s.bufs[i])
		case rnic.OpMaskedCompareSwap:
			s.res.Bytes += frameMasked + frameAtomicAck
		default:
			s.res.Bytes += frameCAS + frameAtomicAck
		}
		if err := s.qp.PostSend(w); err != nil {
			c.stats.Broken++
			s.qp.Fail()
			s.lost(now)
			return
		}
	}
}

// die makes the session fail: what it has posted goes on, what it holds stays.
func (s *session) die(now clock.Time) {
	s.posts++ // no completion of before is its own
	s.arena, s.wrs, s.bufs = arena{}, nil, nil
	s.words = make([][8]byte, maxWords)
	s.rep, s.sus, s.held = repair{}, suspect{}, 0
	if s.has {
		s.c.slab.own(s.piece) // an entry may point there
		s.has = false
	}
	s.end(now, ErrDied)
}

// lost goes on after the queue pair failed. Locks that may be held are left for repair:
// a lock does not say whose it is.
func (s *session) lost(now clock.Time) {
	c := s.c
	c.stats.Broken++
	s.qp = nil
	s.posts++
	was := s.step
	if was == stepIdle || was == stepWait {
		return
	}
	if was >= stepLock {
		c.stats.Abandoned++
	}
	s.held, s.written, s.sus.on, s.rep.mine = 0, false, false, nil
	switch {
	case was == stepRead || was == stepExtent:
		s.read(now)
	case was == stepCollect:
		s.prepare(now)
	case was == stepWrite:
		if s.has {
			c.slab.own(s.piece)
			s.has = false
		}
		s.end(now, ErrUnknown)
	case was == stepRelease && s.then == thenEnd:
		s.end(now, s.res.Err)
	default:
		s.resume(now)
	}
}

// done is called when the step's requests have succeeded.
func (s *session) done(now clock.Time) {
	switch s.step {
	case stepRead:
		s.readDone(now)
	case stepExtent:
		s.gotExtent(now)
	case stepCollect:
		s.collected(now)
	case stepLock:
		s.lockDone(now)
	case stepWrite:
		s.released()
		if s.has {
			s.c.slab.own(s.piece)
			s.has = false
		}
		s.end(now, nil)
	case stepRelease:
		s.released()
		switch s.then {
		case thenEnd:
			s.end(now, s.res.Err)
		case thenRetry:
			s.resume(now)
		case thenRepair:
			s.beginRepair(now)
		}
	default:
		s.repairDone(now)
	}
}
