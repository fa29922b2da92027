package conn

import "github.com/quillon/quillon/nf/clock"

// class is a group of rows that may have to make room for new rows.
type class uint8

const (
	guesses class = iota // half-open, inferred
	handshakes
	pairings // paired, inferred
	unused   // paired by the connection manager's datagrams; the server has not answered anything since
	numClasses
	kept // rows of other sorts, which stay
)

func (r *Row) class() class {
	switch {
	case r.Learnt == Inferred && r.State == HalfOpen:
		return guesses
	case r.Learnt == Inferred:
		return pairings
	case r.Learnt == Managed && r.State == HalfOpen:
		return handshakes
	case r.Learnt == Managed && r.State == Paired && r.PKey == 0 && !r.pinned:
		return unused
	}
	return kept
}

// quiet is a heap of the rows of one class, ordered by Row.since, the oldest at the top. Row.since
// is brought up to date only when its row is at the top and room is wanted, so that the frames
// of a connection do not pay for the heap.
type quiet []Slot

// byQuiet holds the rows that may have to make room, in one heap for each class, and counts the
// half-open rows of each client. It finds the row that was quiet longest; Table removes rows.
type byQuiet struct {
	*store
	quiet     [numClasses]quiet
	perClient [pairings][1024]int32 // half-open rows, by class
}

func (t *byQuiet) init(s *store) {
	t.store = s
	for c := range t.quiet {
		t.quiet[c] = make(quiet, 0, len(s.rows))
	}
}

// place puts row s into the heap of its class.
func (t *byQuiet) place(s Slot) {
	t.unplace(s)
	r := &t.rows[s]
	if c := r.class(); c < numClasses {
		r.placed, r.in, r.since, r.at = true, c, r.LastSeen, int32(len(t.quiet[c]))
		if c < pairings {
			*t.halves(c, r.Client.Addr)++
		}
		t.quiet[c] = append(t.quiet[c], s)
		t.rise(t.quiet[c], r.at)
	}
}

// unplace takes row s out of its heap.
func (t *byQuiet) unplace(s Slot) {
	r := &t.rows[s]
	if !r.placed {
		return
	}
	h := t.quiet[r.in]
	if r.in < pairings {
		*t.halves(r.in, r.Client.Addr)--
	}
	i, last := r.at, int32(len(h))-1
	t.swap(h, i, last)
	h = h[:last]
	t.quiet[r.in], r.placed, r.in, r.at, r.since = h, false, 0, 0, 0
	if i < last {
		t.rise(h, i)
		t.sink(h, i)
	}
}

// useful puts row s into the heap of the unused, or takes it out, if it has become one of them or is none any more.
func (t *byQuiet) useful(s Slot) {
	if r := &t.rows[s]; (r.placed && r.in == unused) != (r.class() == unused) {
		t.place(s)
	}
}

// halves returns the counter of the half-open rows of class c that client has. Clients with the same
// hash share a counter. Each class has its own, so that forged requests in the name of a client do
// not use up the room for its handshakes.
func (t *byQuiet) halves(c class, client Addr) *int32 {
	return &t.perClient[c][t.qps.hash(client, 0)&uint32(len(t.perClient[c])-1)]
}

// maxHalf returns the largest numbers of half-open rows: of all clients together, and of one client
// in one class.
func (t *byQuiet) maxHalf() (all, one int) {
	all = min(len(t.rows), max(len(t.rows)/4, 64))
	return all, max(all/4, 32, min(all/2, maxVoices))
}

// halfOpen reports whether client may have one more half-open row. If the half-open rows are at their
// limit, it removes one of them to make room.
func (t *Table) halfOpen(now clock.Time, learnt Source, client Addr) bool {
	all, one := t.maxHalf()
	c := guesses
	if learnt == Managed {
		c = handshakes
	}
	switch {
	case int(*t.halves(c, client)) >= one:
		return false
	case len(t.quiet[guesses])+len(t.quiet[handshakes]) < all:
		return true
	case learnt == Inferred:
		return t.spare(now, guesses, t.cfg.Yield)
	}
	return len(t.quiet[handshakes]) < max(1, all/2) && t.spare(now, guesses, 0) || t.spare(now, handshakes, t.cfg.Yield)
}

// makeRoom removes the row that can best be spared for a new row from source learnt. It returns false
// if no row can be spared.
func (t *Table) makeRoom(now clock.Time, learnt Source) bool {
	if learnt > Inferred {
		if t.spare(now, guesses, 0) || t.spare(now, handshakes, t.cfg.Yield) {
			return true
		}
	} else if t.spare(now, guesses, t.cfg.Yield) {
		return true
	}
	// A sender that makes up requests must not get every place.
	if len(t.quiet[guesses])+len(t.quiet[handshakes]) >= max(1, len(t.rows)/4) {
		return false
	}
	return learnt > Inferred && t.spare(now, unused, t.cfg.Yield) || t.spare(now, pairings, t.cfg.Yield)
}

// spare removes the row of class c that was quiet longest, if it was quiet for at least the duration
// least; it returns whether it removed one. A row at the top of the heap that was heard meanwhile
// moves down. One call moves at most reclaim rows.
func (t *Table) spare(now clock.Time, c class, least clock.Duration) bool {
	for range reclaim {
		h := t.quiet[c]
		if len(h) == 0 || now.Sub(t.rows[h[0]].since) < least {
			return false
		}
		s := h[0]
		switch r := &t.rows[s]; {
		case r.since < r.LastSeen:
			r.since = r.LastSeen
		case r.pinned && (t.cfg.LetGo == nil || !t.cfg.LetGo(s)):
			r.since = now
		default:
			t.Remove(s)
			t.displaced++
			return true
		}
		t.sink(h, 0)
	}
	return false
}

// Displaced returns the number of rows that made room for new rows since New.
func (t *Table) Displaced() uint64 { return t.displaced }

func (t *byQuiet) swap(h quiet, i, j int32) {
	h[i], h[j] = h[j], h[i]
	t.rows[h[i]].at, t.rows[h[j]].at = i, j
}

func (t *byQuiet) rise(h quiet, i int32) {
	for i > 0 && t.rows[h[i]].since < t.rows[h[(i-1)/2]].since {
		t.swap(h, i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (t *byQuiet) sink(h quiet, i int32) {
	for {
		k := 2*i + 1
		if k >= int32(len(h)) {
			return
		}
		if k+1 < int32(len(h)) && t.rows[h[k+1]].since < t.rows[h[k]].since {
			k++
		}
		if t.rows[h[i]].since <= t.rows[h[k]].since {
			return
		}
		t.swap(h, i, k)
		i = k
	}
}
