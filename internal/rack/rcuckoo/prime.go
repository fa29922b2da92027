package rcuckoo

// Prime has clients' sessions, in turn, insert keys into the table until share of its entries are used, all at once and
// without requests: then their caches are as after a run that filled the table. next is the first key. It returns the key
// after the last.
func (t *Table) Prime(clients []*Client, next uint32, share float64, value []byte) (uint32, error) {
	var all []*session
	for _, c := range clients {
		all = append(all, c.Sessions...)
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
			if s.reach && s.flushed {
				return false
			}
			s.forget()
			s.flushed = true
			continue
		}
		s.plan(s.rows, true, s.c.cfg.Covering, &s.Arena)
		for _, x := range s.spans {
			for i := range x.n {
				b := t.row(x.first + i)
				copy(x.img[i*len(b):], b)
				s.keep(x.first+i, b)
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
			s.keep(int(h.row), t.row(int(h.row)))
		}
		return true
	}
	return false
}
