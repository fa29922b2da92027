package rcuckoo

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// A lock does not say whose it is. So that who dies with one can be named, each session has a place in the table's
// memory, behind the rows, where it writes which locks it is after (section 3.3.4 calls that a liveness data structure;
// its authors have none). A place is
//
//	client's IPv4 address u32 | server's queue pair u32 | count u64 | first word u32 | last word u32 | 1: after their locks u64
//
// It is written in front of the masked CAS that asks for locks, again while the session waits for them, and cleared behind
// their release. So a session that died, or stands still, while it holds a lock has a place that names the
// lock and does not change.
const placeSize = 32

// maxPlaces keeps their numbers in 24 bits, and a READ of all in 2 MiB.
const maxPlaces = 1 << 16

// mark is what a session has written to its place.
type mark struct {
	after, none []byte // what is written, or was
	count       uint64
	marked      bool // the place names locks
	markedAt    clock.Time
	asking      bool // for an answer of who shuts out
}

func newMark() mark {
	b := make([]byte, 2*placeSize)
	return mark{after: b[:placeSize:placeSize], none: b[placeSize:]}
}

func (c *Client) placed() bool { return c.cfg.Places > 0 }

// placesAt is where places begin in the table's memory.
func (l *Layout) placesAt() int { return l.Rows * l.RowSize() }

// place is the number of the session's own.
func (s *session) place() int { return s.c.cfg.Place + s.Index }

// announce writes the session's place: that it is after the locks of its plan, or after none.
func (s *session) announce(now clock.Time, after bool) {
	if !s.c.placed() {
		return
	}
	b := s.none
	if after {
		b = s.after
		le.PutUint32(b[16:], uint32(s.groups[0].word))
		le.PutUint32(b[20:], uint32(s.groups[len(s.groups)-1].word))
		le.PutUint64(b[24:], 1)
	}
	s.count++
	ip := s.c.cfg.Self.As4()
	copy(b, ip[:])
	le.PutUint32(b[4:], s.QPs[0].Conn().DestQPN)
	le.PutUint64(b[8:], s.count)
	s.marked, s.markedAt = after, now
	s.Ask(rnic.OpWrite, 0, s.grant.Table, s.c.cfg.placesAt()+placeSize*s.place(), b)
}

// postPlaces asks for all places.
func (s *session) postPlaces(into *[]byte) {
	if !s.c.placed() || s.c.cfg.Shut == nil {
		return
	}
	*into = grow(*into, placeSize*s.c.cfg.Places)
	s.Ask(rnic.OpRead, 0, s.grant.Table, s.c.cfg.placesAt(), *into)
}

// suspects finds who may hold the lock, or one of its leases, and has not moved for the whole of the observation.
func (s *session) suspects() {
	r, u := &s.rep, &s.sus
	r.dead, r.verdicts = r.dead[:0], r.verdicts[:0]
	if !s.c.placed() || s.c.cfg.Shut == nil {
		return
	}
	add := func(b []byte) {
		d := onesided.Dead{Addr: netip.AddrFrom4([4]byte(b)), QPN: le.Uint32(b[4:])}
		if !slices.Contains(r.dead, d) {
			r.dead, r.verdicts = append(r.dead, d), append(r.verdicts, verdict{})
		}
	}
	word := uint32(r.lock / 64)
	for i := range s.c.cfg.Places {
		was, b := u.places[i*placeSize:(i+1)*placeSize], r.places[i*placeSize:(i+1)*placeSize]
		if i != s.place() && le.Uint64(b[24:]) != 0 && le.Uint32(b[16:]) <= word && word <= le.Uint32(b[20:]) && bytes.Equal(was, b) {
			add(b)
		}
	}
	for _, w := range u.leases {
		holder := w >> 8 & (1<<48 - 1)
		if i := int(holder >> 24); leaseSet(w) && i < s.c.cfg.Places && i != s.place() {
			// Who is connected anew has nothing under way of before.
			if b := r.places[i*placeSize:]; uint64(le.Uint32(b[4:])) == holder&0xFFFFFF {
				add(b)
			}
		}
	}
}

// verdict is what became of a request that a session be shut out.
type verdict struct {
	how     onesided.Shut
	settled clock.Time
}

// shut has the suspects shut out, and begins the repair when they were throughout the observation. Otherwise the lock is
// observed anew: what they had sent before may have freed it, and another one may hold it.
func (s *session) shut(now clock.Time) {
	c, r := s.c, &s.rep
	s.step, s.asking = stepShut, false
	keys := [2]uint32{s.grant.Table.RKey, s.grant.Locks.RKey}
	settled, asked, not := clock.Time(0), false, 0
	for i, d := range r.dead {
		v := &r.verdicts[i]
		if v.how == onesided.Asked {
			v.settled, v.how = c.cfg.Shut(now, d, keys[:])
		}
		switch v.how {
		case onesided.ShutOut:
			settled = max(settled, v.settled)
		case onesided.Asked:
			asked = true
		default:
			not++
		}
	}
	switch {
	case asked:
		s.asking, s.WakeAt = true, now.Add(c.cfg.FailAfter/256+1)
		return
	case settled > now:
		s.WakeAt = settled
		return
	case settled > s.sus.base:
		s.giveUp(now)
		return
	}
	c.stats.NotShut += uint64(not)
	c.stats.ShutOut += uint64(len(r.dead) - not)
	s.do(now, stepLease)
}

// postWatched asks for what changes nothing, under both R_Keys: who shuts others out on request does that for those whom it
// sees write there.
func (s *session) postWatched(now clock.Time) {
	s.announce(now, false)
	s.AskMasked(0, s.grant.Locks, 8*(s.rep.lock/64), 0, 0, 0, s.Words[0][:])
}
