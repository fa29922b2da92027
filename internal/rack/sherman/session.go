package sherman

import (
	"slices"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// step is what a session waits for.
type step uint8

const (
	stepIdle     step = iota
	stepRoot          // READ of the root pointer
	stepRootPage      // READ of the root
	stepDown          // READ of an internal page on the way
	stepLeaf          // READ of the leaf, without its lock
	stepLeaves        // READs of leaves of a range, without locks
	stepWait          // another session of the client to release the lock
	stepLock          // CAS of the lock
	stepWhose         // READ of the lock after the queue pair failed
	stepPage          // READ of the locked page
	stepRight         // WRITE of the new right neighbour
	stepWrite         // WRITE of what changed, and of the lock unless it is handed over
	stepUnlock        // WRITE of the lock alone
	stepNewRoot       // WRITE of a new root
	stepRootCAS       // CAS of the root pointer
)

// link is what a session knows about its connection to a node.
type link struct {
	grant Grant
	conn  int // number of the connection in the history
}

// session is a client thread. It has one operation and one request under way at a time (or several requests
// chained in one post).
//
// An operation is an insertion into a leaf, or a search. After a split there follows an insertion into a page
// of the level above, and so on until no page splits.
type session struct {
	onesided.Session
	c     *Client
	tag   uint64 // of its locks
	links []link

	step   step
	before step // the step that is in doubt, because its queue pair failed
	lost   bool // the step was posted, and its queue pair failed
	node   int  // the node that the step talks to
	res    Result

	// The insertion that is under way: of a value into a leaf, or of a child into a page of this level.
	level int
	key   uint64
	to    uint64

	page   Addr // the page that the session works on
	parent Addr // the page from whose cached image the address came
	img    page // image of page
	right  page // image of the new neighbour, or of the new root
	at     Addr // address of right
	from   int  // offset of the part of img that is to be written
	length int
	split  bool
	sep    uint64 // lowest key of right
	handed bool   // the lock is handed to another session
	leaves []Addr // leaves of a range that are read together
	pages  []page // their images
	torn   int

	logged bool
	log    int
}

var zero [8]byte

func (s *session) begin(now clock.Time, op Op) {
	s.Busy = true
	s.res, s.Cost = Result{Session: s.Index, Op: op, Pairs: s.res.Pairs[:0], Start: now}, onesided.Cost{}
	s.level, s.key, s.to, s.torn = 0, op.Key, op.Value, 0
	if op.Key == 0 || op.Key == MaxKey || op.Kind > Range || op.Kind == Write && op.Value == 0 || op.Kind == Range && (op.To < op.Key || op.To == MaxKey) {
		s.end(now, ErrKey)
		return
	}
	s.descend(now)
}

func (s *session) end(now clock.Time, err error) {
	c := s.c
	s.step, s.Busy = stepIdle, false
	s.res.Err, s.res.End, s.res.Cost = err, now, s.Cost
	if err != nil {
		c.stats.Errors++
	} else {
		*[...]*uint64{Search: &c.stats.Searches, Write: &c.stats.Writes, Delete: &c.stats.Deletes, Range: &c.stats.Ranges}[s.res.Kind]++
	}
	if c.cfg.Done != nil {
		c.cfg.Done(&s.res)
	}
}

// descend goes from the root to the page of s.level where s.key belongs, as far as the cache has the pages.
func (s *session) descend(now clock.Time) {
	c := s.c
	if c.root == 0 || c.rootLevel < s.level {
		s.do(now, stepRoot)
		return
	}
	s.page, s.parent = c.root, 0
	for level := c.rootLevel; level > s.level; {
		p := c.cache[s.page]
		if p == nil {
			s.do(now, stepDown)
			return
		}
		if s.key >= p.highest() {
			s.page = p.sibling()
			continue
		}
		s.parent = s.page
		s.page = p.down(s.key)
		level--
	}
	s.arrive(now)
}

// arrive begins to work on the page that was found.
func (s *session) arrive(now clock.Time) {
	switch {
	case s.res.Kind == Range:
		s.choose()
		s.do(now, stepLeaves)
	case s.res.Kind == Search:
		s.do(now, stepLeaf)
	case s.c.enter(s):
		s.do(now, stepLock)
	default:
		s.step = stepWait
	}
}

// aside continues at the right neighbour, because the page was split after its parent was read.
func (s *session) aside(now clock.Time) {
	s.c.stats.Siblings++
	delete(s.c.cache, s.parent)
	s.page = s.img.sibling()
	s.arrive(now)
}

// do begins a step.
func (s *session) do(now clock.Time, x step) {
	s.step, s.lost = x, false
	s.fire(now)
}

// fire posts the requests of the step. Without a connection it does so later.
func (s *session) fire(now clock.Time) {
	s.node = s.page.Node()
	switch s.step {
	case stepRoot, stepRootCAS:
		s.node = 0
	case stepRight, stepNewRoot:
		s.node = s.at.Node()
	}
	ok := s.dial(now, s.node)
	if s.step == stepLeaves {
		for _, a := range s.leaves {
			ok = ok && s.dial(now, a.Node())
		}
	}
	if !ok {
		s.WakeAt = now.Add(onesided.RedialAfter)
		return
	}
	if s.lost && s.doubtful() {
		// The lock shows whether the step has happened.
		s.before, s.step, s.lost = s.step, stepWhose, false
	}
	s.lost = false
	s.post(now)
}

// dial connects the session to a node, if it is not connected.
func (s *session) dial(now clock.Time, node int) bool {
	l := &s.links[node]
	if s.QPs[node] != nil {
		return true
	}
	qp, g, err := s.c.cfg.Dial(now, s.Index, node)
	if err != nil {
		return false
	}
	s.QPs[node], l.grant = qp, g
	if s.c.cfg.WordLog != nil {
		l.conn = s.c.cfg.WordLog.NewClient()
	}
	return true
}

// doubtful reports whether a step cannot simply be repeated if its outcome is unknown.
func (s *session) doubtful() bool {
	switch s.step {
	case stepLock, stepUnlock:
		return true
	case stepWrite:
		return !s.handed
	}
	return false
}

// post sends the requests of the step.
func (s *session) post(now clock.Time) {
	c, l := s.c, &s.links[s.node]
	s.Begin()
	memory := func(op rnic.Op, off uint64, buf []byte) { s.Ask(op, s.node, l.grant.Memory, int(off), buf) }
	lock := func(op rnic.Op, swap uint64, buf []byte) {
		index := LockOf(s.page)
		s.Ask(op, s.node, l.grant.Locks, 8*index, buf).Swap = swap
		if h := c.cfg.WordLog; h != nil {
			s.log = h.Call(l.conn, now, history.Word{Op: op, Addr: LockAddr(s.page.Node(), index), Swap: swap})
			s.logged = true
		}
	}
	s.logged = false
	switch s.step {
	case stepRoot:
		memory(rnic.OpRead, c.cfg.RootAt, s.word())
	case stepRootPage, stepDown, stepLeaf, stepPage:
		memory(rnic.OpRead, s.page.Off(), s.img)
	case stepLeaves:
		for i, a := range s.leaves {
			s.Ask(rnic.OpRead, a.Node(), s.links[a.Node()].grant.Memory, int(a.Off()), s.image(i))
		}
	case stepLock:
		lock(rnic.OpCompareSwap, c.tag(s), s.word())
	case stepWhose:
		lock(rnic.OpRead, 0, s.word())
	case stepRight, stepNewRoot:
		memory(rnic.OpWrite, s.at.Off(), s.right)
	case stepWrite:
		memory(rnic.OpWrite, s.page.Off()+uint64(s.from), s.img[s.from:s.from+s.length])
		if !s.handed {
			lock(rnic.OpWrite, 0, zero[:])
		}
	case stepUnlock:
		lock(rnic.OpWrite, 0, zero[:])
	case stepRootCAS:
		s.AskSwap(0, l.grant.Memory, int(c.cfg.RootAt), uint64(s.page), uint64(s.at), s.word())
	}
	if _, _, err := s.Post(func(int, *rnic.SendWR) bool { return true }); err != nil {
		s.end(now, err)
	}
}

// word returns the buffer for the answer of a CAS or of a READ of a word.
func (s *session) word() []byte { return s.Words[0][:] }

// Next implements onesided.Thread.
func (s *session) Next(now clock.Time) bool {
	op, ok := s.c.cfg.Next(now, s.Index)
	if ok {
		s.begin(now, op)
	}
	return ok
}

// Wake implements onesided.Thread.
func (s *session) Wake(now clock.Time) { s.fire(now) }

// Lost implements onesided.Thread.
func (s *session) Lost(now clock.Time, node int) {
	if s.Pending() && slices.Contains(s.Nodes, node) {
		s.Drop()
		s.pages = nil // other nodes may still write into them
		s.lost = true
		s.fire(now)
	}
}

// Done implements onesided.Thread.
func (s *session) Done(now clock.Time) {
	if s.logged {
		s.logged = false
		s.c.cfg.WordLog.Return(s.log, now, le.Uint64(s.word()))
	}
	s.done(now)
}

// done continues after the step has happened.
func (s *session) done(now clock.Time) {
	c := s.c
	switch s.step {
	case stepRoot:
		s.page = Addr(le.Uint64(s.word()))
		s.do(now, stepRootPage)
	case stepRootPage:
		if !s.reread(now, s.img.whole()) {
			c.root, c.rootLevel = s.page, s.img.level()
			if c.rootLevel > 0 {
				c.keep(s.page, s.img)
			}
			if c.rootLevel < s.level {
				s.newRoot(now)
				return
			}
			s.descend(now)
		}
	case stepDown:
		if !s.reread(now, s.img.whole()) {
			c.keep(s.page, s.img)
			s.follow(now)
		}
	case stepLeaf:
		s.search(now)
	case stepLeaves:
		s.gather(now)
	case stepLock:
		if le.Uint64(s.word()) != 0 {
			c.stats.LockFailed++
			s.res.Retries++
			s.do(now, stepLock)
			return
		}
		s.do(now, stepPage)
	case stepWhose:
		s.found(now, le.Uint64(s.word()) == c.tag(s))
	case stepPage:
		s.insert(now)
	case stepRight:
		s.write(now, 0, PageSize)
	case stepWrite:
		s.release(now)
		s.up(now)
	case stepUnlock:
		s.release(now)
		s.unlocked(now)
	case stepNewRoot:
		s.do(now, stepRootCAS)
	case stepRootCAS:
		if le.Uint64(s.word()) != uint64(s.page) {
			// Another session's root is there, or, after the queue pair failed, this one's.
			c.root = 0
			s.descend(now)
			return
		}
		c.stats.NewRoots++
		c.root, c.rootLevel = s.at, s.level
		c.keep(s.at, s.right)
		s.end(now, nil)
	}
}

// reread reads the page again if what was read is not whole.
func (s *session) reread(now clock.Time, whole bool) bool {
	if whole {
		return false
	}
	s.c.stats.Torn++
	s.res.Retries++
	if s.torn++; s.torn > maxTorn {
		s.end(now, ErrTorn)
		return true
	}
	s.fire(now)
	return true
}

// follow continues below the internal page that was just read, whether the page is in the cache or not.
func (s *session) follow(now clock.Time) {
	if s.c.cache[s.page] != nil {
		s.descend(now)
		return
	}
	level := s.img.level()
	if s.key >= s.img.highest() {
		s.page = s.img.sibling()
	} else {
		s.page = s.img.down(s.key)
		level--
	}
	if level == s.level {
		s.parent = 0
		s.arrive(now)
		return
	}
	s.do(now, stepDown)
}

// search searches the key in the leaf that was read.
func (s *session) search(now clock.Time) {
	p := s.img
	if s.reread(now, p.whole()) {
		return
	}
	if s.key >= p.highest() {
		s.aside(now)
		return
	}
	i, found := p.find(s.key)
	if found {
		if s.reread(now, p.entry(i).whole()) {
			return
		}
		s.res.Found, s.res.Value = true, p.entry(i).value()
	}
	s.end(now, nil)
}

// insert changes the locked page that was read.
func (s *session) insert(now clock.Time) {
	p := s.img
	if s.key >= p.highest() {
		s.unlock(now)
		return
	}
	s.split = false
	if s.level == 0 {
		i, found := p.find(s.key)
		if s.res.Kind == Delete {
			if s.res.Found = found; !found {
				s.unlock(now)
				return
			}
		}
		if i >= 0 {
			p.entry(i).set(s.key, s.to)
			s.write(now, p.entryAt(i), entrySize)
			return
		}
	}
	all := p.pairs()
	i, there := slices.BinarySearchFunc(all, pair{key: s.key}, byKey)
	if there { // an internal page: a new root had the key already
		s.write(now, 0, PageSize)
		return
	}
	all = slices.Insert(all, i, pair{s.key, s.to})
	if len(all) <= p.capacity() {
		p.fill(all)
		p.touch()
		s.write(now, 0, PageSize)
		return
	}
	if s.at = s.c.alloc(); s.at == 0 {
		s.res.Err = ErrFull
		s.write(now, 0, PageSize) // unchanged: the WRITE of the page also releases the lock
		return
	}
	s.split = true
	s.sep = p.split(s.right, s.at, all)
	s.c.stats.Splits++
	s.do(now, stepRight)
}

// write writes a part of the page, and releases the lock or hands it over.
func (s *session) write(now clock.Time, from, length int) {
	s.from, s.length = from, length
	s.handed = s.c.nextHolder(s)
	s.do(now, stepWrite)
}

// unlock releases or hands over the lock of a page that is not changed: it is not the page of the key, or it
// does not have the key that is to be deleted.
func (s *session) unlock(now clock.Time) {
	if s.handed = s.c.nextHolder(s); s.handed {
		s.release(now)
		s.unlocked(now)
		return
	}
	s.do(now, stepUnlock)
}

func (s *session) unlocked(now clock.Time) {
	if s.key >= s.img.highest() {
		s.aside(now)
		return
	}
	s.end(now, nil)
}

// release lets the next session of the client have its turn with the lock.
func (s *session) release(now clock.Time) {
	next := s.c.leave(s, s.handed)
	switch {
	case next == nil:
	case s.handed:
		s.c.stats.HandedOver++
		next.do(now, stepPage)
	default:
		next.do(now, stepLock)
	}
}

// up ends the operation, or after a split inserts the new page into the level above.
func (s *session) up(now clock.Time) {
	if s.split {
		s.level++
		s.key, s.to, s.split = s.sep, uint64(s.at), false
		s.descend(now)
		return
	}
	s.end(now, s.res.Err)
}

// newRoot makes a root above the page s.page, which was just read. All other pages of that level are to the
// right of it, so the tree is right even if other sessions split it at the same time.
func (s *session) newRoot(now clock.Time) {
	if s.at = s.c.alloc(); s.at == 0 {
		s.end(now, ErrFull)
		return
	}
	r := s.right
	r.reset(s.level, 0, MaxKey)
	r.setLeftmost(s.page)
	r.fill([]pair{{s.key, s.to}})
	s.do(now, stepNewRoot)
}

// found continues after the lock was read: the step that was in doubt has happened, or never will.
func (s *session) found(now clock.Time, mine bool) {
	switch {
	case s.before == stepLock && mine:
		s.do(now, stepPage)
	case s.before == stepLock || mine:
		s.do(now, s.before)
	default:
		s.step = s.before
		s.done(now)
	}
}
