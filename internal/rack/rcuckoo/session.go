package rcuckoo

import (
	"fmt"

	"github.com/quillon/quillon/internal/rack/onesided"
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
	stepThink        // time, until the client asks for something
	stepWait         // time, until extents may be used again
	stepPlan         // time, until the client has found a path
	stepLock         // masked CAS of locks, READ of the rows behind them
	stepHold         // time, until the client has looked at the rows that it has locked
	stepPlace        // time, until the client has found a path in these rows
	stepWrite        // WRITEs of rows, and the release of all locks
	stepRelease      // release of the locks that are held
	stepBase         // READ of leases, rows and places: an observation begins
	stepProve        // READ of the rows behind the lock, and of places: it ends
	stepShut         // time, until sessions that seem dead are shut out
	stepLease        // CAS of a lease
	stepScan         // READ of the rows behind a dead client's lock
	stepOthers       // READ of the other rows of their entries
	stepFix          // WRITE of a repaired row
	stepUnlock       // masked CAS of the dead client's lock
	stepGive         // CASes that give leases back
)

// after is what the session does after a release.
type after uint8

const (
	thenEnd after = iota
	thenRetry
	thenRepair
)

// session is a client thread with a queue pair. It has one operation and one post at a time.
type session struct {
	onesided.Session
	c     *Client
	grant Grant

	step step
	res  Result
	key  uint32

	// A read.
	two     [2]image // the rows, in the order of pair
	pair    [2]int   // the numbers of the key's rows
	sums    [2]uint64
	confirm bool
	tornAt  clock.Time // since when a row is torn; 0: no row is torn
	readAt  clock.Time
	byLock  bool // the read takes locks, since a row stays torn

	// A value in an extent.
	piece   piece
	has     bool // piece is allocated
	written bool
	rounds  int // how often it has looked for free extents
	old     cell
	free    bool // old's extent is to be freed

	// The locks and rows that the operation holds or wants.
	rows []int
	lockPlan
	held    int // groups whose locks the session holds
	started clock.Time
	find    *finder
	path    []hop    // the path that an insertion takes; none: it must try again
	guess   []hop    // the path that was guessed
	moves   []uint32 // the keys of its entries
	flushed bool
	writes  []write
	then    after

	rowCache
	inCache  func(int) row
	inLocked func(int) row

	mark
	sus suspect
	rep repair
}

// write is a part of a row that a WRITE will write.
type write struct {
	at  int // in the table
	buf []byte
}

var none [cellRow]byte

const cellRow = Slots*16 + 16

// maxWords is how many atomics a post can have, unless it releases more locks.
const maxWords = 130

func newSession(c *Client, i int) *session {
	l := &c.cfg.Layout
	s := &session{Session: onesided.NewSession(i, 1, maxWords), c: c, find: newFinder(l, c.cfg.Search, c.cfg.Seed<<16^uint64(i)), rowCache: newRowCache(l, c.cfg.Cache), lockPlan: lockPlan{l: l}}
	s.mark = newMark(&c.cfg, i)
	s.inCache, s.inLocked = s.rowInCache, s.rowLocked
	return s
}

// rowCache has some rows as they were when they were last read.
type rowCache struct {
	rowSize int
	cache   []byte
	cached  []int32       // by place: number of the row, plus 1; 0: empty
	known   map[int32]row // instead of both, where the cache has room for the whole table
	lore    *lore         // of rows that are not in known, where the session has filled the table (Table.Prime)
	saw     []uint32      // by row: number of the image that the session saw last; 0: none
	reach   bool          // the search has met rows of the cache only
}

func newRowCache(l *Layout, size int) rowCache {
	n := l.RowSize()
	if size >= l.Rows*n {
		return rowCache{rowSize: n, known: map[int32]row{}}
	}
	size /= n
	return rowCache{rowSize: n, cache: make([]byte, size*n), cached: make([]int32, size)}
}

// rowInCache is a row as the cache has it. A row that is not in the cache counts as empty.
func (c *rowCache) rowInCache(i int) row {
	n := c.rowSize
	if k := len(c.cached); k > 0 {
		if p := i % k; c.cached[p] == int32(i)+1 {
			return c.cache[p*n : (p+1)*n]
		}
	} else if b, ok := c.known[int32(i)]; ok {
		return b
	} else if c.saw != nil && c.saw[i] != 0 {
		return c.lore.image(c.saw[i])
	}
	c.reach = false
	return none[:n]
}

func (c *rowCache) keep(i int, b []byte) {
	if k := len(c.cached); k > 0 {
		p := i % k
		c.cached[p] = int32(i) + 1
		copy(c.cache[p*len(b):], b)
	} else if c.known != nil {
		c.known[int32(i)] = append(c.known[int32(i)][:0], b...)
	}
}

func (c *rowCache) forget() {
	clear(c.cached)
	clear(c.known)
	clear(c.saw)
}

// begin asks for an operation's first step, when the client's own time for it is over.
func (s *session) begin(now clock.Time, op Op) {
	c := s.c
	s.res, s.Cost = Result{Session: s.Index, Op: op, Start: now.Add(-c.cfg.Work.of(op.Kind))}, onesided.Cost{}
	s.key, s.tornAt, s.byLock, s.confirm, s.flushed = uint32(op.Key), 0, false, false, false
	s.has, s.written, s.free, s.rounds = false, false, false, 0
	s.step, s.Busy = stepWait, true
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
			s.forget()
		}
		s.prepare(now)
	}
}

// inline reports whether values of a size are put into entries.
func (c *Client) inline(size int) bool { return size == c.cfg.InlineSize() && !c.cfg.Outside }

func (c *Client) fits(size int) bool {
	return c.inline(size) || c.cfg.Wide && c.cfg.Extents > 0 && size > 0 && size <= maxValue-extentHeader
}

// prepare finds memory for the value, and begins to take locks.
func (s *session) prepare(now clock.Time) {
	c := s.c
	if n := len(s.res.Value); s.res.Kind != Delete && s.res.Kind != Read && !s.has && !c.inline(n) {
		p, ok := c.slab.take(now, n, c.cfg.FailAfter)
		switch {
		case ok:
			s.piece, s.has = p, true
		case s.rounds <= c.slab.Owned()/16+1 && c.slab.Owned() > 0:
			s.rounds++
			s.do(now, stepCollect)
			return
		case c.slab.Late(func(int) bool { return true }):
			s.rounds = 0
			s.step, s.WakeAt = stepWait, now.Add(c.cfg.FailAfter)
			return
		default:
			s.end(now, ErrNoExtent)
			return
		}
	}
	s.attempt(now)
}

func (s *session) end(now clock.Time, err error) {
	c := s.c
	s.step, s.Busy = stepIdle, false
	s.res.Err, s.res.End, s.res.Cost = err, now, s.Cost
	if s.has {
		c.slab.Give(s.piece)
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

// linked connects the session if it is not connected; false: the session must wait.
func (s *session) linked(now clock.Time) bool {
	if s.QPs[0] != nil {
		return true
	}
	qp, g, err := s.c.cfg.Dial(now, s.Index)
	if err != nil {
		s.WakeAt = now.Add(onesided.RedialAfter)
		return false
	}
	if g.Layout != s.c.cfg.Layout {
		s.c.err = fmt.Errorf("rcuckoo: the server's table is not the client's: it is %+v, and not %+v", g.Layout, s.c.cfg.Layout)
		s.end(now, s.c.err)
		return false
	}
	s.QPs[0], s.grant = qp, g
	return true
}

// fire posts the step's requests. Without a connection it does so later.
func (s *session) fire(now clock.Time) {
	if !s.linked(now) {
		return
	}
	s.Begin()
	phase := numPhases
	switch s.step {
	case stepRead:
		s.postRead(now)
	case stepExtent:
		s.Ask(rnic.OpRead, 0, s.grant.Extents, int(s.old.at), s.rep.img)
	case stepCollect:
		s.rep.pieces = append(s.rep.pieces[:0], s.c.slab.Some(16)...)
		for i, p := range s.rep.pieces {
			s.Ask(rnic.OpRead, 0, s.grant.Extents, p.At, s.Words[i][:])
		}
	case stepLock:
		phase = Locking
		s.postLock(now)
	case stepWrite:
		phase = Writing
		s.postWrites(now)
	case stepRelease:
		phase = Releasing
		s.postRelease(now)
	default:
		phase = s.postRepair(now)
	}
	was := s.Bytes
	s.send(now, phase)
	if phase == Locking && s.step == stepLock {
		s.res.LockBytes += s.Bytes - was
	}
}

// send posts the requests.
func (s *session) send(now clock.Time, phase Phase) {
	c := s.c
	_, ok, err := s.Post(func(i int, w *rnic.SendWR) bool {
		return phase == numPhases || c.cfg.Cut == nil || w.Op == rnic.OpRead || !c.cfg.Cut(now, s.Index, phase, i)
	})
	switch {
	case err != nil:
		c.Broke(s, 0)
		s.Lost(now, 0)
	case !ok: // the session fails: the requests that it posted go on, and the locks that it holds stay
		s.Drop() // completions of these requests are not the session's any more
		s.Fresh()
		s.rep, s.sus, s.held, s.mark = repair{}, suspect{}, 0, newMark(&c.cfg, s.Index)
		if s.has {
			s.c.slab.Own(s.piece) // an entry may point there
			s.has = false
		}
		s.end(now, ErrDied)
	}
}

// Next implements onesided.Thread.
func (s *session) Next(now clock.Time) bool {
	op, ok := s.c.cfg.Next(now, s.Index)
	if !ok {
		return false
	}
	if d := s.c.cfg.Work.of(op.Kind); d > 0 {
		s.res.Op, s.step, s.Busy, s.WakeAt = op, stepThink, true, now.Add(d)
		return true
	}
	s.begin(now, op)
	return true
}

// Wake implements onesided.Thread.
func (s *session) Wake(now clock.Time) {
	switch s.step {
	case stepThink:
		s.begin(now, s.res.Op)
	case stepWait:
		s.prepare(now)
	case stepPlan:
		s.started = now
		s.do(now, stepLock)
	case stepHold:
		s.act(now)
	case stepPlace:
		place(s, now)
	case stepShut:
		if s.asking {
			s.fire(now)
		} else {
			s.repairDone(now)
		}
	default:
		s.fire(now)
	}
}

// Lost implements onesided.Thread. Locks that the session may hold are left for repair, since a lock does not
// say which session holds it.
func (s *session) Lost(now clock.Time, _ int) {
	c := s.c
	s.Drop()
	was := s.step
	if s.marked = false; was == stepIdle || was == stepThink || was == stepWait || was == stepPlan {
		return
	}
	s.WakeAt = clock.Never // of stepShut
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
			c.slab.Own(s.piece)
			s.has = false
		}
		s.end(now, ErrUnknown)
	case was == stepRelease && s.then == thenEnd:
		s.end(now, s.res.Err)
	default:
		s.resume(now)
	}
}

// Done implements onesided.Thread.
func (s *session) Done(now clock.Time) {
	switch s.step {
	case stepRead:
		s.readDone(now)
	case stepExtent:
		s.gotExtent(now)
	case stepCollect:
		for i, p := range s.rep.pieces {
			if s.Words[i][0]&1 == 0 {
				s.c.slab.Freed(now, p)
			}
		}
		s.prepare(now)
	case stepLock:
		s.lockDone(now)
	case stepWrite:
		s.released()
		if s.has {
			s.c.slab.Own(s.piece)
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
