package kvcache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/memory"
)

// pages is memory of small pages, any of which may be away.
type pages struct {
	data     []byte
	reserved int64
	page     int
	away     map[int]memory.Outcome
	asked    int
}

func (s *pages) Size() int64    { return int64(len(s.data)) }
func (s *pages) PageBytes() int { return s.page }
func (s *pages) Reserve(va uint64, n int64, p memory.Perm) error {
	whole := (s.reserved + int64(s.page) - 1) / int64(s.page) * int64(s.page)
	if va != uint64(whole) || p != memory.Read|memory.Write || whole+n > s.Size() {
		return errors.New("no room")
	}
	s.reserved = whole + n
	return nil
}

func (s *pages) access(va uint64, n int, do func(i int, at []byte)) (int, memory.Outcome) {
	for i := range n {
		at := int(va) + i
		if int64(at) >= s.reserved {
			return i, memory.Fault
		}
		if o := s.away[at/s.page]; o != memory.OK {
			s.asked++
			return i, o
		}
		do(i, s.data[at:at+1])
	}
	return n, memory.OK
}

func (s *pages) Read(va uint64, p []byte) (int, memory.Outcome) {
	return s.access(va, len(p), func(i int, at []byte) { p[i] = at[0] })
}

func (s *pages) Write(va uint64, p []byte) (int, memory.Outcome) {
	return s.access(va, len(p), func(i int, at []byte) { at[0] = p[i] })
}

// given is a cache whose values are in so many bytes of pages.
func given(t *testing.T, bytes int, args graph.Args) (*test, *pages) {
	s := &pages{data: make([]byte, bytes), page: 16, away: map[int]memory.Outcome{}}
	x := &test{graphtest.New(t, *Kind(), args), t, 100}
	if err := x.App().(memory.User).UseMemory(s); err != nil {
		t.Fatal(err)
	}
	return settled(x), s
}

// Values are in the memory that the cache was given: as many as have room there, across
// pages.
func TestInMemory(t *testing.T) {
	x, s := given(t, 48, graph.Args{"entries": "100", "value": "20"})
	for k := range 3 {
		x.fill(1, uint64(k), fmt.Sprintf("the value of number %d", k)[:20])
	}
	if v := x.get(2, 0); v != "" {
		t.Errorf("%q: there is room for two", v)
	}
	for k := 1; k < 3; k++ {
		if v := x.get(2, uint64(k)); v != "the value of number " {
			t.Errorf("%d: %q", k, v)
		}
	}
	if !strings.Contains(string(s.data), "the value of number the value of number ") || s.reserved != 40 {
		t.Errorf("%d bytes reserved: %q", s.reserved, s.data)
	}
	if x.App().(*app).cache.values != nil {
		t.Error("it has taken memory of its own, too")
	}
	y := graphtest.New(t, *Kind(), graph.Args{"value": "20"})
	if err := y.App().(memory.User).UseMemory(&pages{data: make([]byte, 16), page: 16}); err == nil || !strings.Contains(err.Error(), "no room for a value, 20") {
		t.Error(err)
	}
}

// TestGrow: with more memory all pairs stay, in their order, and there is room for more of them, up to entries=.
func TestGrow(t *testing.T) {
	x, s := given(t, 48, graph.Args{"entries": "9", "value": "20"})
	value := func(k int) string { return fmt.Sprintf("the value of %07d", k) }
	has := func(when string, from, to int) {
		t.Helper()
		for k := range to + 3 {
			want := ""
			if k >= from && k < to {
				want = value(k)
			}
			if v := x.get(2, uint64(k)); v != want {
				t.Fatalf("%s: %d: %q, want %q", when, k, v, want)
			}
		}
	}
	next := 0
	fill := func(n int) {
		for range n {
			x.fill(1, uint64(next), value(next))
			next++
		}
	}
	fill(3)
	has("before", 1, 3)
	for _, c := range []struct{ bytes, room int }{{64, 3}, {64, 3}, {112, 5}, {128, 6}, {4096, 9}, {8192, 9}} {
		s.data = append(s.data, make([]byte, c.bytes-len(s.data))...)
		before := min(next, len(x.App().(*app).cache.entries))
		x.App().(memory.Grower).GrowMemory()
		has("grown", next-before, next)
		fill(c.room - before)
		has("filled", next-c.room, next)
		fill(2)
		has("replaced", next-c.room, next)
	}
	fill(1000) // what there is hangs together
	has("in the end", next-9, next)
	y, s := given(t, 48, graph.Args{"value": "20"})
	x = y
	next = 0
	fill(2)
	s.reserved = 1 << 20 // nobody has room
	s.data = append(s.data, make([]byte, 100)...)
	x.App().(memory.Grower).GrowMemory()
	s.reserved = 40
	fill(1)
	has("no room", 1, 3)
}

// A pair whose page is away is a miss with a reason of its own, and a hit when the page
// is back; what cannot be put there is not learnt, and nobody sees half of it.
func TestPageAway(t *testing.T) {
	x, s := given(t, 64, graph.Args{"entries": "2", "value": "32"})
	for i, o := range []memory.Outcome{memory.Wait, memory.Refused} {
		key := uint64(7 + i)
		x.fill(1, key, fmt.Sprintf("a value over two pages %d", i))
		s.away[1+2*i], s.asked = o, 0
		x.id++
		got := x.Push("b", ask(1, x.id, clio.Read, key, "", 0)).Out["a"]
		if len(got) != 1 || got[0].Reason != "away" || s.asked != 1 {
			t.Fatalf("%v: %v, asked %d times", o, got, s.asked)
		}
		s.away[1+2*i] = memory.OK
		if v := x.get(2, key); v != fmt.Sprintf("a value over two pages %d", i) {
			t.Errorf("%v: %q when it is back", o, v)
		}
	}
	// A write makes the pair invalid, also where its page is away.
	for page := range 4 {
		s.away[page] = memory.Wait
	}
	x.id++
	w := ask(1, x.id, clio.Update, 7, "new", 0)
	x.Push("b", w)
	x.Push("a", reply(w, clio.OK, ""))
	x.fill(1, 9, "another value, over two pages")
	clear(s.away)
	if v := x.get(1, 7) + x.get(1, 9); v != "" || x.Counter("unkept") != 2 {
		t.Errorf("%q, %d not learnt", v, x.Counter("unkept"))
	}
	if v := x.Counter("entries"); v != 1 || x.get(2, 8) != "a value over two pages 1" {
		t.Errorf("%d entries", v)
	}
	x.fill(1, 7, "new")
	x.Advance(time.Second)
	if v := x.get(2, 7); v != "new" {
		t.Errorf("%q", v)
	}
}
