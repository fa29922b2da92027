package napt

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// TestDecidedList: a mapping's list has just its sessions that were decided and have not ended, in whatever order they come and go; those of a host that has moved
// leave it, so many for a frame.
func TestDecidedList(t *testing.T) {
	set, err := parse(args())
	if err != nil {
		t.Fatal(err)
	}
	st := newState(&set, 1)
	s, r := &st.shards[0], rand.New(rand.NewPCG(1, 2))
	const mappings = 3
	var want [mappings][]int
	for i := range mappings {
		k := private{addr: uint32(i), class: classUDP}
		if at := s.mappings.Add(&k, k.hash(1)); at < 0 {
			t.Fatal("no place")
		}
	}
	var places []int
	for i := s.mappings.Next(0); i >= 0; i = s.mappings.Next(i + 1) {
		places = append(places, i)
	}
	check := func() {
		t.Helper()
		for n, i := range places {
			var got []int
			last := uint32(0)
			for at := s.mappings.At(i).Val.decided; at != 0; at = s.sessions.At(int(at - 1)).Val.next {
				x := s.sessions.At(int(at - 1))
				if !x.Val.listed || x.Val.last != last || int(x.Key.mapping) != i {
					t.Fatalf("session %d: %+v behind %d", at-1, x, last)
				}
				last = at
				got = append(got, int(at-1))
			}
			slices.Sort(got)
			if slices.Sort(want[n]); !slices.Equal(got, want[n]) {
				t.Fatalf("mapping %d has %v, want %v", i, got, want[n])
			}
		}
	}
	add := func(n int, addr uint32) {
		k := peer{mapping: uint32(places[n]), addr: addr, kind: mayAddress}
		if s.touch(&k, -1, clock.Time(0), 1) == nil {
			t.Fatal("no place")
		}
		i := s.sessions.Find(&k, k.hash(1))
		s.decided(i)
		s.decided(i) // again
		if !slices.Contains(want[n], i) {
			want[n] = append(want[n], i)
		}
	}
	for range 3000 {
		n := r.IntN(mappings)
		if len(want[n]) > 0 && r.IntN(2) == 0 {
			at := r.IntN(len(want[n]))
			s.end(want[n][at])
			want[n] = slices.Delete(want[n], at, at+1)
		} else {
			add(n, r.Uint32())
		}
	}
	check()
	for len(want[0]) < maxMoves+10 {
		add(0, r.Uint32())
	}
	check()
	m := &s.mappings.At(places[0]).Val
	s.moved(places[0])
	if !m.moving || m.decided == 0 {
		t.Error("all of too many are taken back for one frame")
	}
	s.moved(places[0])
	if want[0] = nil; m.moving || m.decided != 0 {
		t.Error("a second frame does not do the rest")
	}
	check()
}
