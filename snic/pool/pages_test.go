package pool

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
)

const pageSize = 32

// keeper is a board with so many frames that it lends, and pages of its own elsewhere.
type keeper struct {
	*Pager
	node   int
	frames [][]byte // lent ones are there
	free   []int
	ops    map[uint64]*operation // under way
	away   map[uint64][]byte     // what its pages hold
	lost   map[uint64]bool
	op     uint64
	handle uint64
	lends  []Loan // asked for, and not answered yet
	dead   bool
	skew   time.Duration // of its clock
}

// at is a time by its clock.
func (k *keeper) at(now clock.Time) clock.Time { return now.Add(k.skew) }

type operation struct {
	handle uint64
	get    bool
	page   []byte
}

// segment carries messages of Pagers.
type segment struct {
	boards []*keeper
	from   int
	wire   []message
	full   bool
	bad    []string
}

type message struct {
	from, to int
	data     []byte
}

func (s *segment) Room(int) bool { return !s.full }
func (s *segment) Send(to int, m []byte) {
	s.wire = append(s.wire, message{s.from, to, m})
}

func newSegment(frames ...int) *segment {
	s := &segment{}
	for i, n := range frames {
		s.boards = append(s.boards, s.born(i, n, 1, 0))
	}
	return s
}

func (s *segment) born(i, frames int, now clock.Time, skew time.Duration) *keeper {
	k := &keeper{Pager: NewPager(i, 4, 10*time.Microsecond), node: i, frames: make([][]byte, frames), ops: map[uint64]*operation{}, away: map[uint64][]byte{}, lost: map[uint64]bool{}, skew: skew}
	for f := range frames {
		k.free = append(k.free, f)
	}
	k.Begin(k.at(now), pageSize)
	return k
}

// settle does what Pagers want of their boards; lend: also frames.
func (s *segment) settle(lend bool) {
	for i, k := range s.boards {
		for _, e := range k.Events() {
			switch e.Kind {
			case PageDone:
				o := k.ops[e.Op]
				if o == nil {
					s.bad = append(s.bad, fmt.Sprintf("board %d: operation %d is not under way", i, e.Op))
					continue
				}
				delete(k.ops, e.Op)
				want := k.away[o.handle]
				switch {
				case o.get && e.OK:
					if !bytes.Equal(o.page, want) {
						s.bad = append(s.bad, fmt.Sprintf("board %d: page %d holds %q, want %q", i, o.handle, o.page, want))
					}
					k.Drop(1, o.handle)
					delete(k.away, o.handle)
				case o.get: // lost
					k.lost[o.handle] = true
					delete(k.away, o.handle)
				case e.OK:
					k.away[o.handle] = bytes.Clone(o.page)
				}
			case PageLost:
				if k.getting(e.Handle) {
					continue
				}
				if k.away[e.Handle] == nil {
					s.bad = append(s.bad, fmt.Sprintf("board %d: page %d is lost, which is not away", i, e.Handle))
				}
				k.lost[e.Handle] = true
				delete(k.away, e.Handle)
			case PageLend:
				k.lends = append(k.lends, e.Loan)
			case PageReturn:
				if k.frames[e.Frame] == nil {
					s.bad = append(s.bad, fmt.Sprintf("board %d: frame %d comes back twice", i, e.Frame))
				}
				k.frames[e.Frame] = nil
				k.free = append(k.free, e.Frame)
			}
		}
		for lend && len(k.lends) > 0 {
			l := k.lends[0]
			k.lends = k.lends[1:]
			if len(k.free) == 0 {
				k.Lent(l, 0, nil, false)
				continue
			}
			f := k.free[0]
			k.free = k.free[1:]
			k.frames[f] = make([]byte, pageSize)
			k.Lent(l, f, k.frames[f], true)
		}
	}
}

func (k *keeper) getting(h uint64) bool {
	for _, o := range k.ops {
		if o.get && o.handle == h {
			return true
		}
	}
	return false
}

func (k *keeper) put(now clock.Time, to int) {
	k.op++
	k.handle++
	page := bytes.Repeat([]byte{byte(k.node)<<6 ^ byte(k.handle)}, pageSize)
	k.ops[k.op] = &operation{handle: k.handle, page: page}
	k.Put(k.at(now), k.op, k.handle, page, to)
}

func (k *keeper) handles() (hs []uint64) {
	for h := range k.away {
		if !k.getting(h) {
			hs = append(hs, h)
		}
	}
	slices.Sort(hs)
	return hs
}

func (k *keeper) get(now clock.Time, h uint64) {
	k.op++
	o := &operation{handle: h, get: true, page: make([]byte, pageSize)}
	k.ops[k.op] = o
	k.Get(k.at(now), k.op, h, o.page)
}

// run lets everything arrive, for some time.
func (s *segment) run(t interface{ Fatal(...any) }, now *clock.Time, d time.Duration) {
	for end := now.Add(d); *now < end; *now = now.Add(5 * time.Microsecond) {
		for i, k := range s.boards {
			if s.from = i; !k.dead {
				k.Poll(k.at(*now), s)
			}
		}
		for _, m := range s.wire {
			if !s.boards[m.to].dead && !s.boards[m.from].dead {
				if err := s.boards[m.to].Input(s.boards[m.to].at(*now), m.data); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.wire = nil
		s.settle(true)
	}
	if s.bad != nil {
		t.Fatal(s.bad)
	}
}

// Pages go to another board, and come back as they were; where there is no room
// they stay; a board that is lost has lost them.
func TestPages(t *testing.T) {
	s := newSegment(0, 2, 1)
	now := clock.Time(1)
	a := s.boards[0]
	for range 3 {
		a.put(now, 1)
	}
	a.put(now, 2)
	s.run(t, &now, time.Millisecond)
	if a.Away() != 3 || s.boards[1].Kept() != 2 || len(a.ops) != 0 || a.away[3] != nil || a.Busy() || s.boards[1].Busy() {
		t.Fatalf("%d away, %d kept, %v", a.Away(), s.boards[1].Kept(), a.away)
	}
	a.get(now, 1)
	s.run(t, &now, time.Millisecond)
	if a.Away() != 2 || s.boards[1].Kept() != 1 || len(s.boards[1].free) != 1 {
		t.Fatalf("%d away, %d kept", a.Away(), s.boards[1].Kept())
	}
	a.get(now, 2)
	s.boards[1].dead = true
	a.Lost(now, 1)
	s.boards[2].Lost(now, 0) // it thinks so
	s.run(t, &now, time.Millisecond)
	if !a.lost[2] || a.Away() != 1 || len(s.boards[2].free) != 1 || a.lost[4] {
		t.Fatalf("lost %v, %d away", a.lost, a.Away())
	}
	a.get(now, 4)
	s.run(t, &now, time.Millisecond)
	if !a.lost[4] {
		t.Error("a page that its keeper has given up is not lost")
	}
	// Nothing is kept for who is not there: nobody would tell of its end.
	a.put(now, 2)
	s.run(t, &now, time.Millisecond)
	if s.boards[2].Kept() != 0 || len(a.ops) != 1 {
		t.Errorf("%d pages are kept for a board that is lost", s.boards[2].Kept())
	}
	s.boards[2].Met(now, 0)
	s.run(t, &now, time.Millisecond)
	if s.boards[2].Kept() != 1 || len(a.ops) != 0 {
		t.Errorf("%d pages are kept for a board that is there again", s.boards[2].Kept())
	}
	a.get(now, 5)
	s.run(t, &now, time.Millisecond)
	// What is agreed on anew has nothing of before.
	s.boards[1] = s.born(1, 1, now, -time.Hour)
	a.put(now, 1)
	a.put(now, 2)
	s.run(t, &now, time.Millisecond)
	if a.Away() != 2 || s.boards[1].Kept() != 1 {
		t.Errorf("%d away", a.Away())
	}
	// Another memory drops them all.
	a.Begin(now, pageSize)
	a.away = map[uint64][]byte{}
	s.run(t, &now, time.Millisecond)
	if s.boards[1].Kept()+s.boards[2].Kept() != 0 || a.Busy() {
		t.Error("kept for nobody")
	}
}

// A board that starts again, with a clock that has been set back, and before anybody has noticed that it was gone,
// is served like one that nobody knows: what was kept for it is given back.
func TestPagesClockSetBack(t *testing.T) {
	s := newSegment(0, 3)
	now := clock.Time(time.Hour)
	s.boards[0] = s.born(0, 0, now, 0)
	for range 2 {
		s.boards[0].put(now, 1)
	}
	s.run(t, &now, time.Millisecond)
	if s.boards[1].Kept() != 2 {
		t.Fatalf("%d pages are kept", s.boards[1].Kept())
	}
	for i, skew := range []time.Duration{-59 * time.Minute, time.Minute, -30 * time.Minute} {
		a := s.born(0, 0, now, skew)
		s.boards[0] = a
		for range 3 {
			a.put(now, 1)
			s.run(t, &now, 100*time.Microsecond)
		}
		for range 3 { // who was told that it is late has put none of them there
			for h := uint64(1); h <= a.handle; h++ {
				if a.away[h] == nil && len(a.away) < 3 && len(a.ops) == 0 {
					a.put(now, 1)
					s.run(t, &now, time.Millisecond)
				}
			}
		}
		if len(a.ops) != 0 || a.Busy() || a.Away() != 3 || s.boards[1].Kept() != 3 || len(s.boards[1].free) != 0 {
			t.Fatalf("start %d: %d operations, %d away, %d kept", i, len(a.ops), a.Away(), s.boards[1].Kept())
		}
		for _, h := range a.handles() {
			a.get(now, h)
		}
		s.run(t, &now, time.Millisecond)
		if len(a.lost) != 0 || len(a.away) != 0 || s.boards[1].Kept() != 0 {
			t.Fatalf("start %d: lost %v, %d kept", i, a.lost, s.boards[1].Kept())
		}
		a.put(now, 1) // for the next start
		s.run(t, &now, time.Millisecond)
	}
}

// A board that leaves has its pages move on, whatever is done with them meanwhile.
func TestEvacuate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSegment(0, 20, 20)
		now := clock.Time(1)
		a := s.boards[0]
		for range 12 {
			a.put(now, 1)
		}
		s.run(t, &now, time.Millisecond)
		for range 20 {
			a.Evacuate(now, 1, func() (int, bool) { return 2, true })
			if hs := a.handles(); len(hs) > 0 && rapid.Bool().Draw(t, "get") {
				a.get(now, rapid.SampledFrom(hs).Draw(t, "handle"))
			}
			s.run(t, &now, time.Duration(rapid.IntRange(5, 30).Draw(t, "us"))*time.Microsecond)
		}
		a.Evacuate(now, 1, func() (int, bool) { return 2, true })
		s.run(t, &now, time.Millisecond)
		if s.boards[1].Kept() != 0 || s.boards[2].Kept() != len(a.away) || len(a.lost) != 0 || a.Busy() {
			t.Fatalf("%d are left, %d moved of %d, lost %v", s.boards[1].Kept(), s.boards[2].Kept(), len(a.away), a.lost)
		}
		for _, h := range a.handles() {
			a.get(now, h)
		}
		s.run(t, &now, 10*time.Millisecond)
		if len(a.away) != 0 || len(a.lost) != 0 || s.boards[2].Kept() != 0 {
			t.Fatalf("%d away, lost %v", len(a.away), a.lost)
		}
	})
}

// Whatever happens to messages, and whoever dies, pages hold what they held or are lost with a
// board; no frame is lent for ever.
func TestPagesProperty(t *testing.T) {
	gets, losses := 0, 0
	run := func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "boards")
		var frames []int
		for range n {
			frames = append(frames, rapid.IntRange(0, 6).Draw(t, "frames"))
		}
		s := newSegment(frames...)
		now := clock.Time(time.Hour)
		board := func(what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		deliver := func(t *rapid.T, keep bool) {
			if len(s.wire) == 0 {
				t.Skip()
			}
			at := rapid.IntRange(0, len(s.wire)-1).Draw(t, "message")
			m := s.wire[at]
			if err := s.boards[m.to].Input(s.boards[m.to].at(now), bytes.Clone(m.data)); err != nil {
				t.Fatal(err)
			}
			if !keep {
				s.wire = slices.Delete(s.wire, at, at+1)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				if a, b := board("from"), board("to"); a != b {
					s.boards[a].put(now, b)
				}
			},
			"get": func(t *rapid.T) {
				k := s.boards[board("board")]
				if hs := k.handles(); len(hs) > 0 {
					k.get(now, rapid.SampledFrom(hs).Draw(t, "handle"))
					gets++
				}
			},
			"poll": func(t *rapid.T) {
				s.full = rapid.IntRange(0, 5).Draw(t, "full") == 0
				s.from = board("board")
				s.boards[s.from].Poll(s.boards[s.from].at(now), s)
				s.full = false
			},
			"deliver": func(t *rapid.T) { deliver(t, false) },
			"round": func(t *rapid.T) {
				for range rapid.IntRange(1, 6).Draw(t, "rounds") {
					for i, k := range s.boards {
						s.from = i
						k.Poll(k.at(now), s)
					}
					wire := s.wire
					s.wire = nil
					for _, m := range wire {
						switch rapid.IntRange(0, 9).Draw(t, "fate") {
						case 0:
						case 1:
							s.wire = append(s.wire, m) // late, and again
							fallthrough
						default:
							if err := s.boards[m.to].Input(s.boards[m.to].at(now), bytes.Clone(m.data)); err != nil {
								t.Fatal(err)
							}
						}
					}
					s.settle(rapid.IntRange(0, 3).Draw(t, "lend") > 0)
					now = now.Add(3 * time.Microsecond)
				}
			},
			"leave": func(t *rapid.T) {
				a, b := board("board"), board("to")
				s.boards[a].Evacuate(s.boards[a].at(now), board("leaves"), func() (int, bool) { return b, a != b })
			},
			"repeat": func(t *rapid.T) { deliver(t, true) },
			"lose": func(t *rapid.T) {
				if len(s.wire) == 0 {
					t.Skip()
				}
				at := rapid.IntRange(0, len(s.wire)-1).Draw(t, "message")
				s.wire = slices.Delete(s.wire, at, at+1)
			},
			"time": func(t *rapid.T) { now = now.Add(7 * time.Microsecond) },
			"lend": func(t *rapid.T) { s.settle(true) },
			"suspect": func(t *rapid.T) {
				if a, b := board("board"), board("of"); a != b && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					s.boards[a].Lost(s.boards[a].at(now), b)
					losses++
				}
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
					t.Skip()
				}
				a := board("board")
				now = now.Add(time.Microsecond)
				s.boards[a] = s.born(a, frames[a], now, time.Duration(rapid.IntRange(-20, 20).Draw(t, "clock"))*time.Second)
				s.wire = slices.DeleteFunc(s.wire, func(m message) bool { return m.to == a })
				noticed := rapid.Bool().Draw(t, "noticed")
				for b := range n {
					if b != a && noticed {
						s.boards[b].Lost(s.boards[b].at(now), a)
					}
				}
				losses++
			},
			"": func(t *rapid.T) {
				s.settle(false)
				if s.bad != nil {
					t.Fatal(s.bad)
				}
			},
		})
		// All is well again: what is under way ends.
		for i, k := range s.boards {
			for j := range s.boards {
				if i != j {
					k.Met(k.at(now), j)
				}
			}
		}
		s.run(t, &now, 5*time.Millisecond)
		for i, k := range s.boards {
			if len(k.ops) > 0 || k.Busy() {
				t.Fatalf("board %d: %d operations never end", i, len(k.ops))
			}
			for _, h := range k.handles() {
				k.get(now, h)
			}
		}
		s.run(t, &now, 20*time.Millisecond)
		for i, k := range s.boards {
			if len(k.away) > 0 || k.Away() > 0 {
				t.Fatalf("board %d: pages %v do not come back", i, k.away)
			}
			if len(k.free) != len(k.frames) || k.Kept() != 0 {
				t.Fatalf("board %d: %d frames of %d are free, %d pages kept for nobody", i, len(k.free), len(k.frames), k.Kept())
			}
		}
	}
	for range 10 {
		rapid.Check(t, run)
	}
	t.Logf("%d gets, %d losses", gets, losses)
	if gets == 0 || losses == 0 {
		t.Errorf("%d gets, %d losses", gets, losses)
	}
}

func FuzzPageMessage(f *testing.F) {
	s := newSegment(1, 1)
	s.boards[0].put(1, 1)
	s.boards[0].Poll(1, s)
	f.Add(s.wire[0].data)
	f.Add([]byte("P\x01\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSegment(1, 1)
		now := clock.Time(1)
		for range 2 {
			_ = s.boards[1].Input(now, bytes.Clone(b))
			s.settle(true)
			s.from = 1
			s.boards[1].Poll(now, s)
		}
		if s.bad != nil || len(s.boards[1].free)+s.boards[1].Kept() != 1 {
			t.Fatal(s.bad)
		}
	})
}

// Away returns how many pages peers keep for the board.
func (p *Pager) Away() int { return len(p.where) }
