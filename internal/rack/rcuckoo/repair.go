package rcuckoo

import (
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// A lease is
//
//	63..57 its number | 56 set | 55..8 holder | 7..0 counter
//
// The holder is the number of its own queue pair. Where sessions have places, it is the number of its place
// (24 bits) and the number of the server's queue pair (24 bits).
const leaseBit = 1 << 56

func freeLease(region int) uint64 { return uint64(region) << 57 }

func leaseSet(w uint64) bool { return w&leaseBit != 0 }

// taken is a lease's word after a holder took the lease.
func taken(w, holder uint64) uint64 {
	return w&^(leaseBit-1) | leaseBit | holder<<8 | uint64(uint8(w)+1)
}

// suspect is a lock whose holder may be dead.
//
// At first the session only finds the lock held each time (since). Then it observes the lock: it reads the
// leases of the lock's region and the rows behind the lock once (base). They must not change while the lock
// is found held for the rest of the time. If a lease has changed, another session repairs or has repaired; if
// a row has changed, the holder lives. So the repair is safe even when another repair ended and the lock was
// taken anew: the leases are taken by a CAS that compares with the words that were read first.
type suspect struct {
	on      bool
	word    int
	bits    uint64 // lock bits that were held each time
	since   clock.Time
	last    clock.Time
	armed   bool
	base    clock.Time
	lock    int
	sum     uint64
	regions []int    // whose leases a repair needs
	leases  []uint64 // as they were at the base
	// also is another region, plus 1, that a repair of lock alsoFor was found to need; 0: none.
	also, alsoFor int
	places        []byte // as they were at the base
}

// observe notes that locks of a group are held. true: it has begun another step.
func (s *session) observe(now clock.Time, g *group, was uint64) bool {
	c, u := s.c, &s.sus
	wait := c.cfg.FailAfter
	if !u.on || u.word != g.word || u.bits&was&g.mask == 0 || now.Sub(u.last) > wait/4 {
		*u = suspect{on: true, word: g.word, bits: was & g.mask, since: now, last: now, regions: u.regions, leases: u.leases, places: u.places, also: u.also, alsoFor: u.alsoFor}
		return false
	}
	u.bits &= was & g.mask
	u.last = now
	if u.armed {
		switch {
		case u.bits>>(u.lock%64)&1 == 0:
			c.stats.Cleared++
			u.on = false
		case now.Sub(u.base) >= wait*3/4:
			s.release(now, thenRepair)
			return true
		}
		return false
	}
	if now.Sub(u.since) < wait/4 {
		return false
	}
	c.stats.Suspected++
	s.arm(now)
	return true
}

// arm begins to observe the lowest lock that was held each time.
func (s *session) arm(now clock.Time) {
	u := &s.sus
	for u.lock = u.word * 64; u.bits>>(u.lock%64)&1 == 0; u.lock++ {
	}
	u.armed, u.base = true, now
	u.regions, u.leases = append(u.regions[:0], s.c.cfg.regionOf(u.lock)), append(u.leases[:0], 0)
	if u.also > 0 && u.alsoFor == u.lock {
		u.regions, u.leases = append(u.regions, u.also-1), append(u.leases, 0)
		slices.Sort(u.regions)
	}
	s.do(now, stepBase)
}

// postRows asks for the rows behind the suspected lock that the session needs.
func (s *session) postRows() {
	l, r := &s.c.cfg.Layout, &s.rep
	r.first = 0
	for _, w := range s.wanted {
		if l.lockOf(w) == s.sus.lock {
			r.first = w * l.RowsPerLock
		}
	}
	r.img = grow(r.img, (min(r.first+l.RowsPerLock, l.Rows)-r.first)*l.RowSize())
	s.Ask(rnic.OpRead, 0, s.grant.Table, r.first*l.RowSize(), r.img)
}

// repair is the repair of the rows behind one dead client's lock. Meanwhile the session holds none of the
// locks that its own operation needs.
type repair struct {
	lock   int
	mine   []uint64 // leases that the session holds, in the order of suspect.regions
	part   int      // number of the logical lock that is repaired, of those that share the bit
	rounds int
	first  int // first row of the part
	img    []byte
	others []int // other rows of the entries in the part
	oimg   []byte
	fixed  write
	grown  bool // a lease of another region is needed
	failed bool
	asked  int     // others that were asked for
	pieces []piece // of stepCollect
	// The places at the end of the observation, and the sessions that are to be shut out before the repair.
	places   []byte
	dead     []onesided.Dead
	verdicts []verdict
}

// maxRounds is how often a part is repaired and read again. A dead client leaves only one torn row and one
// entry that is there twice.
const maxRounds = 16

// maxAsk is how many rows a repair reads at once.
const maxAsk = 32

func (s *session) beginRepair(now clock.Time) {
	r := &s.rep
	r.lock, r.mine, r.part, r.rounds, r.grown, r.failed = s.sus.lock, r.mine[:0], 0, 0, false, false
	s.do(now, stepProve)
}

// postRepair is the part of fire that posts the steps of repairs.
func (s *session) postRepair(now clock.Time) Phase {
	l, r, u := &s.c.cfg.Layout, &s.rep, &s.sus
	n := l.RowSize()
	switch s.step {
	case stepBase:
		for i, region := range u.regions {
			s.Ask(rnic.OpRead, 0, s.grant.Leases, 8*region, s.Words[i][:])
		}
		s.postRows()
		r.watch(&s.Session, &s.c.cfg, s.grant.Table, &u.places)
		return numPhases
	case stepProve:
		if s.marked {
			s.announce(now, &s.Session, s.grant.Table, nil) // the repair may take long
		}
		s.postRows()
		r.watch(&s.Session, &s.c.cfg, s.grant.Table, &r.places)
		return numPhases
	case stepShut:
		// These requests change nothing. They use both R_Keys, since a box that shuts sessions out on request
		// does so only for clients whose writing requests with these keys it sees.
		s.announce(now, &s.Session, s.grant.Table, nil)
		s.AskMasked(0, s.grant.Locks, 8*(r.lock/64), 0, 0, 0, s.Words[0][:])
		return numPhases
	case stepLease:
		i := len(r.mine)
		s.AskSwap(0, s.grant.Leases, 8*u.regions[i], u.leases[i], taken(u.leases[i], s.holder(s.QPs[0])), s.Words[0][:])
	case stepScan:
		logical := r.lock + r.part*l.Locks
		r.first = logical * l.RowsPerLock
		r.img = grow(r.img, (min(r.first+l.RowsPerLock, l.Rows)-r.first)*n)
		s.Ask(rnic.OpRead, 0, s.grant.Table, r.first*n, r.img)
	case stepOthers:
		for i := 0; i < maxAsk && r.asked < len(r.others); i++ {
			s.Ask(rnic.OpRead, 0, s.grant.Table, r.others[r.asked]*n, r.oimg[r.asked*n:(r.asked+1)*n])
			r.asked++
		}
	case stepFix:
		if l.Form == Paper && s.c.cfg.Torn && len(r.fixed.buf) > 16 {
			k := len(r.fixed.buf) - 16
			s.Ask(rnic.OpWrite, 0, s.grant.Table, r.fixed.at, r.fixed.buf[:k])
			s.Ask(rnic.OpWrite, 0, s.grant.Table, r.fixed.at+k, r.fixed.buf[k:])
			break
		}
		s.Ask(rnic.OpWrite, 0, s.grant.Table, r.fixed.at, r.fixed.buf)
	case stepUnlock:
		m := uint64(1) << (r.lock % 64)
		s.AskMasked(0, s.grant.Locks, 8*(r.lock/64), m, 0, m, s.Words[0][:])
	case stepGive:
		for i, w := range r.mine {
			s.AskSwap(0, s.grant.Leases, 8*u.regions[i], w, w&^leaseBit, s.Words[i][:])
		}
	}
	return Repairing
}

// repairDone is the part of Done for the steps of repairs.
func (s *session) repairDone(now clock.Time) {
	r, u := &s.rep, &s.sus
	switch s.step {
	case stepBase:
		for i := range u.leases {
			u.leases[i] = le.Uint64(s.Words[i][:])
		}
		u.last, u.sum = now, s.c.cfg.sumOf(r.img)
		s.do(now, stepLock)
	case stepProve:
		if s.c.cfg.sumOf(r.img) != u.sum {
			s.c.stats.Cleared++
			s.giveUp(now)
			return
		}
		r.suspects(u, s.number)
		s.step = stepShut
		s.repairDone(now)
	case stepShut:
		// If a session is shut out only now, the lock must be observed anew: requests that the session sent
		// before may have freed the lock, and another session may hold it.
		settled, asked, not := r.shut(now, s.c.cfg.Shut, s.grant.Table.RKey, s.grant.Locks.RKey)
		switch s.asking = asked; {
		case asked:
			s.WakeAt = now.Add(s.c.cfg.FailAfter/256 + 1)
		case settled > now:
			s.WakeAt = settled
		case settled > u.base:
			s.giveUp(now)
		default:
			s.c.stats.NotShut += uint64(not)
			s.c.stats.ShutOut += uint64(len(r.dead) - not)
			s.do(now, stepLease)
		}
	case stepLease:
		i := len(r.mine)
		if le.Uint64(s.Words[0][:]) != u.leases[i] {
			s.giveUp(now) // another session repairs
			return
		}
		if leaseSet(u.leases[i]) {
			s.c.stats.TookOver++
		}
		r.mine = append(r.mine, taken(u.leases[i], s.holder(s.QPs[0])))
		if len(r.mine) < len(u.regions) {
			s.fire(now)
			return
		}
		s.do(now, stepScan)
	case stepScan:
		s.scanned(now)
	case stepOthers:
		if r.asked < len(r.others) {
			s.fire(now)
			return
		}
		s.judge(now)
	case stepFix:
		s.do(now, stepScan)
	case stepUnlock:
		if m := uint64(1) << (r.lock % 64); le.Uint64(s.Words[0][:])&m == 0 {
			s.c.stats.Robbed++
		}
		s.c.stats.Repaired++
		s.do(now, stepGive)
	case stepGive:
		for i, w := range r.mine {
			if le.Uint64(s.Words[i][:]) != w {
				s.c.stats.Robbed++
			}
		}
		s.giveUp(now)
	}
}

// giveUp ends the repair, or the attempt to repair, and goes on with the operation.
func (s *session) giveUp(now clock.Time) {
	r := &s.rep
	if len(r.mine) > 0 && s.step != stepGive {
		s.do(now, stepGive)
		return
	}
	r.mine = r.mine[:0]
	s.sus.on = false
	if !r.grown {
		s.sus.also = 0
	}
	if r.failed {
		s.end(now, ErrTorn)
		return
	}
	s.resume(now)
}

// resume begins the operation anew.
func (s *session) resume(now clock.Time) {
	if s.res.Kind == Read && !s.byLock {
		s.read(now)
		return
	}
	s.attempt(now)
}

// scanned collects the other rows of all entries behind the lock.
func (s *session) scanned(now clock.Time) {
	l, r := &s.c.cfg.Layout, &s.rep
	n := l.RowSize()
	count := len(r.img) / n
	r.others, r.asked = r.others[:0], 0
	for i := range count {
		m := l.image(r.img[i*n : (i+1)*n])
		for k := range Slots {
			if key := m.key(k); key != 0 {
				o := l.other(key, r.first+i)
				if (o < r.first || o >= r.first+count) && !slices.Contains(r.others, o) {
					r.others = append(r.others, o)
				}
			}
		}
	}
	r.oimg = grow(r.oimg, len(r.others)*n)
	if len(r.others) == 0 {
		s.judge(now)
		return
	}
	s.do(now, stepOthers)
}

// seen is the image of a row that was read for the repair.
func (r *repair) seen(l *Layout, row int) image {
	n := l.RowSize()
	if i := row - r.first; i >= 0 && i < len(r.img)/n {
		return l.image(r.img[i*n : (i+1)*n])
	}
	i := slices.Index(r.others, row)
	return l.image(r.oimg[i*n : (i+1)*n])
}

// judge finds the state in which the dead client left the rows, and takes one step
// towards the one in which nothing is wrong:
//
//	1  an entry twice, one row torn   seal the torn row
//	2  an entry twice                 clear it in its second row
//	3  one row torn                   seal it
//	4                                 free the lock
func (s *session) judge(now clock.Time) {
	l, r := &s.c.cfg.Layout, &s.rep
	count := len(r.img) / l.RowSize()
	torn, twice, slot := -1, -1, 0
	for i := range count {
		m := l.image(r.img[i*l.RowSize() : (i+1)*l.RowSize()])
		if !m.whole() {
			torn = r.first + i
		}
		for k := range Slots {
			key := m.key(k)
			if key == 0 {
				continue
			}
			a, b := l.RowsOf(key)
			if a == b {
				continue
			}
			o := r.seen(l, l.other(key, r.first+i))
			if at := o.find(key); at >= 0 {
				if !o.whole() {
					torn = l.other(key, r.first+i)
				}
				twice, slot = b, k
				if b != r.first+i {
					slot = at
				}
			}
		}
	}
	state := 4
	switch {
	case torn >= 0 && twice >= 0:
		state = 1
	case twice >= 0:
		state = 2
	case torn >= 0:
		state = 3
	}
	s.c.stats.States[state-1]++
	if r.rounds++; r.rounds > maxRounds {
		r.failed, state = true, 0
	}
	switch state {
	case 1, 3:
		s.fix(now, torn, l.versionAt())
	case 2:
		m := r.seen(l, twice)
		m.put(slot, cell{})
		s.fix(now, twice, slot*l.EntrySize())
	case 0:
		s.giveUp(now)
	default:
		if r.part++; (r.lock + r.part*l.Locks) < l.logicals() {
			r.rounds = 0
			s.do(now, stepScan)
			return
		}
		s.do(now, stepUnlock)
	}
}

// fix writes a row from an offset on, if the session holds the lease of the row's region.
func (s *session) fix(now clock.Time, row, from int) {
	l, r, u := &s.c.cfg.Layout, &s.rep, &s.sus
	region := l.regionOf(l.lockOf(l.logical(row)))
	if !slices.Contains(u.regions, region) {
		// Observe anew, together with the lease of that region.
		u.also, u.alsoFor, r.grown = region+1, r.lock, true
		s.giveUp(now)
		return
	}
	m := r.seen(l, row)
	m.seal()
	end := l.RowSize()
	if l.Form == Code {
		end = from + l.EntrySize()
	}
	r.fixed = write{row*l.RowSize() + from, m.b[from:end]}
	s.do(now, stepFix)
}
