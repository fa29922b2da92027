package rcuckoo

// lore is what sessions that filled a table saw of its rows. Images of rows are kept once for all sessions: a session
// remembers only which image of a row it saw last.
type lore struct {
	rowSize int
	images  []byte
	now     []uint32 // by row: number of its present image, plus 1; 0: the row was never seen or written
}

// of is the number of a row's present image.
func (l *lore) of(t *Table, i int) uint32 {
	if l.now[i] == 0 {
		l.write(t, i)
	}
	return l.now[i]
}

// write adds a row's image as it is now.
func (l *lore) write(t *Table, i int) {
	l.images = append(l.images, t.row(i)...)
	l.now[i] = uint32(len(l.images) / l.rowSize)
}

func (l *lore) image(n uint32) row { return l.images[int(n-1)*l.rowSize : int(n)*l.rowSize] }

// Prime has clients' sessions, in turn, insert keys into the table until share of its entries are used, all at once and
// without requests: then they know of each row what they would know had they filled the table in a run. Their caches must
// have room for the whole table. next is the first key. Prime returns the key after the last.
func (t *Table) Prime(clients []*Client, next uint32, share float64, value []byte) (uint32, error) {
	var all []*session
	known := &lore{rowSize: t.RowSize(), now: make([]uint32, t.Rows)}
	for _, c := range clients {
		for _, s := range c.Sessions {
			s.lore, s.saw = known, make([]uint32, t.Rows)
			all = append(all, s)
		}
	}
	for i := range int(share*float64(t.Rows*Slots)) - t.Count() {
		if !prime(all[i%len(all)], t, next, value) {
			return next, ErrFull
		}
		next++
	}
	return next, nil
}

// prime inserts a key as an insertion does that finds every lock free.
func prime(s *session, t *Table, key uint32, value []byte) bool {
	s.key, s.flushed = key, false
	e := cell{Key: key}
	copy(e.inline[:], value)
	for range s.c.cfg.Tries {
		if !speculate(s) {
			return false
		}
		s.plan(s.rows, true, s.c.cfg.Covering, &s.Arena)
		for _, x := range s.spans {
			for i := x.first; i < x.first+x.n; i++ {
				copy(x.img[(i-x.first)*t.RowSize():], t.row(i))
				s.saw[i] = s.lore.of(t, i)
			}
		}
		path := s.guess
		if !s.stillThere() {
			if !s.find.find(key, s.inLocked) {
				continue
			}
			path = s.find.path
		}
		t.shift(path, e)
		for _, h := range path {
			s.lore.write(t, int(h.row))
			s.saw[h.row] = s.lore.of(t, int(h.row))
		}
		return true
	}
	return false
}
