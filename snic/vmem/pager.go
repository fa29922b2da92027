package vmem

// pager brings pages into frames and out of them. It knows which spaces wait for a frame and which pages are on
// their way to other boards and back, and chooses the pages that leave.
type pager struct {
	frames    frames
	shares    shares
	spaces    []space
	remote    Remote
	out, in   int   // operations under way
	promised  int   // reserved and untouched
	first     int32 // queue of spaces that want a frame
	last      int32
	wakeFirst int32 // list of spaces to be told
	wakeLast  int32
}

// pageState is where a virtual page is.
type pageState uint8

const (
	unreserved pageState = iota
	untouched
	resident
	leaving  // being swapped out of its frame
	arriving // being swapped into its frame
	swapped
)

type page struct {
	handle Handle // swapped, leaving, arriving
	frame  int32  // resident, leaving, arriving
	state  pageState
	perm   Perm
}

type space struct {
	table    []page // empty when stopped
	pages    []page
	newest   int32 // ring of resident pages; -1: none
	tenant   int32
	sibling  int32 // next space of the tenant
	want     int32 // page that waits for a frame; -1: none
	after    int32 // queue of those that want, -1: end
	before   int32
	wake     int32 // next to be told; -1: end, -2: not in the list
	open     bool
	stopped  bool
	fault    Fault
	counters Counters
}

func (pg *pager) spare() int {
	if pg.remote == nil {
		return 0
	}
	return spareFrames
}

// usable returns how many frames there are for pages of this board.
func (pg *pager) usable() int { return len(pg.frames.all) - pg.frames.lent - pg.spare() }

// want puts a space into the queue for a frame, for its page vpn.
func (pg *pager) want(id int, vpn int32) {
	s := &pg.spaces[id]
	s.want, s.before, s.after = vpn, pg.last, -1
	if pg.last >= 0 {
		pg.spaces[pg.last].after = int32(id)
	} else {
		pg.first = int32(id)
	}
	pg.last = int32(id)
	pg.shares.hold(s.tenant, 1)
}

// unwant takes a space out of the queue.
func (pg *pager) unwant(id int) {
	s := &pg.spaces[id]
	if s.want < 0 {
		return
	}
	if s.before >= 0 {
		pg.spaces[s.before].after = s.after
	} else {
		pg.first = s.after
	}
	if s.after >= 0 {
		pg.spaces[s.after].before = s.before
	} else {
		pg.last = s.before
	}
	s.want = -1
	pg.shares.hold(s.tenant, -1)
}

func (pg *pager) queueWake(id int) {
	if pg.spaces[id].wake != -2 {
		return
	}
	pg.spaces[id].wake = -1
	if pg.wakeLast >= 0 {
		pg.spaces[pg.wakeLast].wake = int32(id)
	} else {
		pg.wakeFirst = int32(id)
	}
	pg.wakeLast = int32(id)
}

// stop stops a space after a fault. Its pages stay.
func (pg *pager) stop(id int, f Fault) {
	s := &pg.spaces[id]
	s.counters.Faults++
	if s.stopped {
		return
	}
	s.stopped, s.fault, s.table = true, f, nil
	pg.unwant(id)
	pg.queueWake(id)
}

// settle makes a page resident in its frame.
func (pg *pager) settle(id int, vpn, f int32) {
	s := &pg.spaces[id]
	s.pages[vpn].state, s.pages[vpn].frame = resident, f
	e := &pg.frames.all[f]
	pg.frames.now++
	e.state, e.space, e.vpn, e.stamp = used, int32(id), vpn, pg.frames.now
	pg.frames.link(s, f)
	s.counters.Resident++
	pg.shares.tenants[s.tenant].has++
}

// lift takes a resident page out of the ring.
func (pg *pager) lift(s *space, f int32) {
	pg.frames.unlink(s, f)
	pg.frames.accessed(&pg.frames.all[f])
	s.counters.Resident--
	pg.shares.tenants[s.tenant].has--
}

// release frees a page of a space that is being closed.
func (pg *pager) release(s *space, vpn int) {
	e := &s.pages[vpn]
	if e.state > untouched {
		pg.shares.tenants[s.tenant].total--
	}
	switch e.state {
	case unreserved:
		return
	case untouched:
		pg.promised--
	case resident:
		pg.lift(s, e.frame)
		pg.shares.hold(s.tenant, -1)
		pg.frames.give(e.frame)
	case leaving:
		pg.frames.all[e.frame].space = -1 // Done gives it back
	case arriving:
		pg.frames.all[e.frame].space = -1
		pg.shares.hold(s.tenant, -1)
		s.counters.Swapped--
	case swapped:
		pg.remote.Drop(e.handle)
		s.counters.Swapped--
	}
	if e.state == leaving || e.state == arriving {
		// The operation's frame remembers the handle.
		pg.frames.all[e.frame].stamp = uint64(e.handle)
	}
	*e = page{}
	s.counters.Reserved--
}

// balance gives frames to spaces that want them, and swaps pages out while there are too few frames.
// If no operation is under way that could free a frame, it refuses all waiting spaces. Next returns
// these, except for the space asks, whose access returns Refused at once.
func (pg *pager) balance(asks int) {
	pg.serve()
	for pg.shares.held > pg.usable() {
		f := pg.victim()
		if f < 0 || !pg.evict(f) {
			break
		}
	}
	if pg.out == 0 && pg.in == 0 && pg.frames.fresh == 0 {
		if pg.urgent() {
			return // Scrub will help
		}
		for pg.first >= 0 {
			id := int(pg.first)
			pg.unwant(id)
			if id != asks {
				pg.queueWake(id)
			}
		}
	}
}

// serve gives free frames to spaces that want one, first come, first served. The last frame is only
// for a page that comes back.
func (pg *pager) serve() {
	for id := pg.first; id >= 0 && pg.frames.free > 0; {
		s := &pg.spaces[id]
		next, vpn := s.after, s.want
		e := &s.pages[vpn]
		if e.state == untouched && (pg.frames.free <= pg.spare() || !pg.frames.ready()) {
			id = next
			continue
		}
		pg.unwant(int(id))
		pg.shares.hold(s.tenant, 1)
		if e.state == untouched {
			pg.promised--
			s.counters.Touched++
			pg.shares.tenants[s.tenant].total++
			f := pg.frames.take(true)
			pg.settle(int(id), vpn, f)
			pg.frames.keep(f)
		} else {
			f := pg.frames.take(false)
			e.state, e.frame = arriving, f
			x := &pg.frames.all[f]
			x.state, x.space, x.vpn = in, id, vpn
			x.gen++
			pg.in++
			pg.remote.Get(pg.frames.op(f), e.handle, pg.frames.bytes(f))
		}
		pg.queueWake(int(id))
		id = next
	}
}

// victim returns the frame to take: that of the least recently accessed page of the tenant that is
// furthest above its share. It returns -1 if no tenant is above its share, or if all pages of that
// tenant are protected (frames.keep).
func (pg *pager) victim() int32 {
	if pg.remote == nil {
		return -1
	}
	if pg.shares.unfair {
		oldest := int32(-1)
		for t := range pg.shares.tenants {
			if pg.shares.tenants[t].has > 0 {
				oldest = pg.frames.older(oldest, pg.oldest(int32(t)))
			}
		}
		return oldest
	}
	who := pg.shares.most(pg.usable())
	if who < 0 {
		return -1
	}
	return pg.oldest(who)
}

// oldest returns the least recently accessed frame of a tenant that is not protected (frames.keep), or -1.
func (pg *pager) oldest(tenant int32) int32 {
	oldest := int32(-1)
	for id := pg.shares.tenants[tenant].spaces; id >= 0; id = pg.spaces[id].sibling {
		s := &pg.spaces[id]
		if s.newest < 0 {
			continue
		}
		f := pg.frames.all[s.newest].prev
		for n := s.counters.Resident; n > 0 && pg.frames.all[f].fresh == pg.frames.turn; n-- {
			pg.frames.now++
			pg.frames.all[f].stamp = pg.frames.now
			pg.frames.renew(s, f)
			f = pg.frames.all[s.newest].prev
		}
		if pg.frames.all[f].fresh == pg.frames.turn {
			continue
		}
		oldest = pg.frames.older(oldest, f)
	}
	return oldest
}

// evict begins to swap a page out. It returns false if the Remote has no room.
func (pg *pager) evict(f int32) bool {
	x := &pg.frames.all[f]
	x.gen++
	h, ok := pg.remote.Put(pg.frames.op(f), pg.frames.bytes(f))
	if !ok {
		return false
	}
	s := &pg.spaces[x.space]
	e := &s.pages[x.vpn]
	pg.lift(s, f)
	pg.shares.hold(s.tenant, -1)
	e.state, e.handle, x.state = leaving, h, out
	pg.out++
	return true
}

// orphan ends the operation of a frame whose space has been closed; moved says that the Remote has the page.
func (pg *pager) orphan(f int32, moved bool) {
	if moved {
		pg.remote.Drop(Handle(pg.frames.all[f].stamp))
	}
	pg.frames.give(f)
}

// done implements Memory.Done.
func (pg *pager) done(op Op, ok bool) bool {
	f := int32(uint32(op))
	if int(f) >= len(pg.frames.all) || f < 0 || pg.frames.op(f) != op {
		return false
	}
	x := &pg.frames.all[f]
	id := int(x.space)
	switch x.state {
	case out:
		pg.out--
		if id < 0 {
			pg.orphan(f, ok)
			break
		}
		s := &pg.spaces[id]
		if ok {
			s.pages[x.vpn].state = swapped
			s.counters.Swapped++
			s.counters.Out++
			pg.frames.give(f)
		} else {
			pg.settle(id, x.vpn, f)
			pg.shares.hold(s.tenant, 1)
		}
		pg.queueWake(id)
	case in:
		pg.in--
		if id < 0 {
			pg.orphan(f, ok)
			break
		}
		s := &pg.spaces[id]
		s.counters.Swapped--
		if ok {
			pg.remote.Drop(s.pages[x.vpn].handle)
			s.counters.In++
			pg.settle(id, x.vpn, f)
			pg.frames.keep(f)
		} else {
			pg.shares.hold(s.tenant, -1)
			pg.frames.give(f)
			pg.lose(id, x.vpn)
		}
		pg.queueWake(id)
	default:
		return false
	}
	pg.balance(-1)
	return true
}

// lose stops a space because its page vpn is lost.
func (pg *pager) lose(id int, vpn int32) {
	s := &pg.spaces[id]
	s.pages[vpn].state = untouched
	pg.shares.tenants[s.tenant].total--
	pg.promised++
	pg.stop(id, Fault{Space: id, VA: uint64(vpn) << pg.frames.shift, Why: Lost})
}

// urgent reports whether an access waits for Scrub.
func (pg *pager) urgent() bool {
	return pg.first >= 0 && pg.frames.free > pg.spare() && !pg.frames.ready()
}
