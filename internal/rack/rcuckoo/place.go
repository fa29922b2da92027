package rcuckoo

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// A lock does not say which session holds it. So that the holder can be found after its death, each session
// has a place in the table's memory, behind the rows. There it writes which locks it wants (section 3.3.4
// calls that a liveness data structure; its authors have none). A place is
//
//	client's IPv4 address u32 | server's queue pair u32 | count u64 | first word u32 | last word u32 | 1: wants their locks u64
//
// The session writes it in front of the masked CAS that asks for locks, and again while it waits for them,
// and clears it behind their release. So a session that died, or stands still, while it holds a lock has a
// place that names the lock and does not change.
const placeSize = 32

// maxPlaces keeps the numbers of places in 24 bits, and a READ of all places in 2 MiB.
const maxPlaces = 1 << 16

// mark is a session's place, and what the session has written there.
type mark struct {
	on          bool // there are places, and the client has an IPv4 address: a fence knows no other addresses
	number      int
	at          int    // in the table's memory
	after, none []byte // the place's bytes: wanting locks, and not
	count       uint64
	marked      bool // the place names locks
	markedAt    clock.Time
	asking      bool // for an answer of Config.Shut
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

// announce writes that the session wants locks of the words of groups; none: that it wants no locks.
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

// holder is what names the session in a lease.
func (m *mark) holder(qp *rnic.QP) uint64 {
	if m.on {
		return uint64(m.number)<<24 | uint64(qp.Conn().DestQPN)
	}
	return uint64(qp.QPN)
}

// watch asks for all places, if there are places and sessions can be shut out.
func (r *repair) watch(s *onesided.Session, c *Config, table Region, into *[]byte) {
	*into = (*into)[:0]
	if c.Places > 0 && c.Shut != nil {
		*into = grow(*into, placeSize*c.Places)
		s.Ask(rnic.OpRead, 0, table, c.placesAt(), *into)
	}
}

// suspects finds the sessions that may hold the lock, or one of its leases, and have not moved during the
// whole observation.
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
			// A session that has connected anew has no earlier requests under way.
			if b := r.places[i*placeSize:]; uint64(le.Uint32(b[4:])) == holder&0xFFFFFF {
				add(b)
			}
		}
	}
}

// verdict is the answer to a request that a session be shut out.
type verdict struct {
	how     onesided.Shut
	settled clock.Time
}

// shut asks that the suspects be shut out. settled is the latest time from which one of them is; asked: an
// answer is still to come; not is how many are not shut out.
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
