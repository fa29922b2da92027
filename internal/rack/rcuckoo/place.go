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

// mark is a session's place, and what it has written there.
type mark struct {
	on          bool // there are places, and the client has an IPv4 address: a fence knows no other ones
	number      int
	at          int    // in the table's memory
	after, none []byte // what is written, or was
	count       uint64
	marked      bool // the place names locks
	markedAt    clock.Time
	asking      bool // for an answer of who shuts out
}

func newMark(c *Config, session int) mark {
	b := make([]byte, 2*placeSize)
	m := mark{on: c.Places > 0 && c.Self.Is4(), number: c.Place + session, after: b[:placeSize:placeSize], none: b[placeSize:]}
	if m.on {
		m.at = c.placesAt() + placeSize*m.number
		ip := c.Self.As4()
		copy(m.after, ip[:])
		copy(m.none, ip[:])
	}
	return m
}

// placesAt is where places begin in the table's memory.
func (l *Layout) placesAt() int { return l.Rows * l.RowSize() }

// announce writes that the session is after the locks of some words; none: after no locks.
func (m *mark) announce(now clock.Time, s *onesided.Session, table Region, groups []group) {
	if !m.on {
		return
	}
	b := m.none
	if len(groups) > 0 {
		b = m.after
		le.PutUint32(b[16:], uint32(groups[0].word))
		le.PutUint32(b[20:], uint32(groups[len(groups)-1].word))
		le.PutUint64(b[24:], 1)
	}
	m.count++
	le.PutUint32(b[4:], s.QPs[0].Conn().DestQPN)
	le.PutUint64(b[8:], m.count)
	m.marked, m.markedAt = len(groups) > 0, now
	s.Ask(rnic.OpWrite, 0, table, m.at, b)
}

// holder is the session, in a lease.
func (m *mark) holder(qp *rnic.QP) uint64 {
	if m.on {
		return uint64(m.number)<<24 | uint64(qp.Conn().DestQPN)
	}
	return uint64(qp.QPN)
}

// watch asks for all places, if there are some.
func (r *repair) watch(s *onesided.Session, c *Config, table Region, into *[]byte) {
	*into = (*into)[:0]
	if c.Places > 0 && c.Shut != nil {
		*into = grow(*into, placeSize*c.Places)
		s.Ask(rnic.OpRead, 0, table, c.placesAt(), *into)
	}
}

// suspects finds who may hold the lock, or one of its leases, and has not moved for the whole of the observation.
func (r *repair) suspects(u *suspect, own int) {
	r.dead, r.verdicts = r.dead[:0], r.verdicts[:0]
	add := func(b []byte) {
		d := onesided.Dead{Addr: netip.AddrFrom4([4]byte(b)), QPN: le.Uint32(b[4:])}
		if !slices.Contains(r.dead, d) {
			r.dead, r.verdicts = append(r.dead, d), append(r.verdicts, verdict{})
		}
	}
	word := uint32(r.lock / 64)
	places := min(len(u.places), len(r.places)) / placeSize
	for i := range places {
		was, b := u.places[i*placeSize:(i+1)*placeSize], r.places[i*placeSize:(i+1)*placeSize]
		if i != own && le.Uint64(b[24:]) != 0 && le.Uint32(b[16:]) <= word && word <= le.Uint32(b[20:]) && bytes.Equal(was, b) {
			add(b)
		}
	}
	for _, w := range u.leases {
		holder := w >> 8 & (1<<48 - 1)
		if i := int(holder >> 24); leaseSet(w) && i < places && i != own {
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

// shut has the suspects shut out: since when, or from when on, they are; whether an answer is still to come; how many
// nobody shuts out.
func (r *repair) shut(now clock.Time, ask onesided.Shutter, keys ...uint32) (settled clock.Time, asked bool, not int) {
	for i, d := range r.dead {
		v := &r.verdicts[i]
		if v.how == onesided.Asked {
			v.settled, v.how = ask(now, d, keys)
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
	return settled, asked, not
}
