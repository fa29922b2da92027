package rcuckoo

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// read begins, or begins again, to read a key without locks.
func (s *session) read(now clock.Time) {
	s.pair[0], s.pair[1] = s.c.cfg.RowsOf(s.key)
	s.do(now, stepRead)
}

// postRead asks for both rows, with one READ if they are near each other.
func (s *session) postRead(now clock.Time) {
	l := &s.c.cfg.Layout
	n := l.RowSize()
	s.readAt = now
	a, b := s.pair[0], s.pair[1]
	s.Reset()
	if s.c.cfg.Short {
		postShort(s, min(a, b), max(a, b))
		return
	}
	if lo, hi := min(a, b), max(a, b); (hi-lo)*n <= s.c.cfg.Covering {
		buf := s.Take((hi - lo + 1) * n)
		s.two[0], s.two[1] = l.image(buf[(a-lo)*n:(a-lo+1)*n]), l.image(buf[(b-lo)*n:(b-lo+1)*n])
		s.Ask(rnic.OpRead, 0, s.grant.Table, lo*n, buf)
		return
	}
	buf := s.Take(2 * n)
	s.two[0], s.two[1] = l.image(buf[:n]), l.image(buf[n:])
	s.Ask(rnic.OpRead, 0, s.grant.Table, a*n, buf[:n])
	s.Ask(rnic.OpRead, 0, s.grant.Table, b*n, buf[n:])
}

// readDone looks for the key in the rows.
//
// An entry that moves is in both of its rows for a while, and each READ sees one moment of one row. So an
// entry that moves from the row that was read last to the row that was read first may be seen in neither row.
// A key therefore counts as missing only when both rows have not changed between two readings.
func (s *session) readDone(now clock.Time) {
	c := s.c
	if c.cfg.Short {
		s.res.Found = true
		s.end(now, nil)
		return
	}
	torn := false
	for _, m := range s.two {
		if !m.whole() {
			torn = true
			continue
		}
		if i := m.find(s.key); i >= 0 {
			s.hit(now, m.get(i))
			return
		}
	}
	if torn {
		c.stats.Torn++
		s.res.Retries++
		s.confirm = false
		switch {
		case s.tornAt == 0:
			s.tornAt = now
		case now.Sub(s.tornAt) > c.cfg.FailAfter/4:
			// The writer may be dead. A session that waits for its lock finds out.
			s.byLock = true
			s.attempt(now)
			return
		}
		s.fire(now)
		return
	}
	s.tornAt = 0
	sums := [2]uint64{s.two[0].sum(), s.two[1].sum()}
	if s.pair[0] == s.pair[1] || s.confirm && sums == s.sums {
		s.end(now, nil)
		return
	}
	c.stats.Confirmed++
	s.confirm, s.sums = true, sums
	s.fire(now)
}

// hit goes on with the entry that was found.
func (s *session) hit(now clock.Time, e cell) {
	s.res.Found = true
	if !e.extent {
		s.old = e
		s.res.Got = s.old.inline[:s.c.cfg.InlineSize()]
		s.end(now, nil)
		return
	}
	s.old = e
	s.rep.img = grow(s.rep.img, e.size+extentHeader)
	s.do(now, stepExtent)
}

// gotExtent takes the value, unless its memory may have been used anew meanwhile.
func (s *session) gotExtent(now clock.Time) {
	v, err := getExtent(s.rep.img, s.key)
	if err != nil || now.Sub(s.readAt) > s.c.cfg.FailAfter/2 {
		s.res.Found, s.confirm, s.byLock = false, false, false
		if err != nil && now.Sub(s.res.Start) > 2*s.c.cfg.FailAfter {
			s.end(now, err)
			return
		}
		s.read(now)
		return
	}
	s.res.Got = v
	s.end(now, nil)
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// postShort asks for rows as the public code does (Config.Short).
func postShort(s *session, lo, hi int) {
	const each = Slots // bytes
	n := s.c.cfg.RowSize()
	if (hi-lo+1)*each <= s.c.cfg.Covering {
		s.Ask(rnic.OpRead, 0, s.grant.Table, lo*n, s.Take((hi-lo+1)*each))
		return
	}
	s.Ask(rnic.OpRead, 0, s.grant.Table, lo*n, s.Take(each))
	s.Ask(rnic.OpRead, 0, s.grant.Table, hi*n, s.Take(each))
}
