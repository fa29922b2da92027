package onesided

import (
	"testing"

	"github.com/quillon/quillon/rack/rnic"
)

// TestPosts: a post has succeeded when it has a completion of each of its nodes. Completions of an earlier
// post do not count.
func TestPosts(t *testing.T) {
	s := NewSession(3, 2, 1)
	var told []uint64
	s.Put = func(_ int, w *rnic.SendWR) {
		if w.Signaled {
			told = append(told, w.ID)
		}
	}
	post := func() uint32 {
		told = nil
		s.Begin()
		for _, node := range []int{0, 1, 0} {
			s.Ask(rnic.OpRead, node, Region{}, 0, make([]byte, 8))
		}
		if _, ok, err := s.Post(func(int, *rnic.SendWR) bool { return true }); !ok || err != nil || len(told) != 2 || told[0] != told[1] || told[0]&0xFFFF != 3 {
			t.Fatalf("%v %v %#x", ok, err, told)
		}
		return uint32(told[0] >> 16)
	}
	first := post()
	if s.Completed(first) || !s.Completed(first) || s.Pending() || s.Completed(first) {
		t.Error("two nodes, and each says it once")
	}
	second := post()
	s.Drop()
	third := post()
	if s.Completed(first) || s.Completed(second) || s.Completed(second) || !s.Pending() || s.Completed(third) || !s.Completed(third) {
		t.Error("answers of posts before count")
	}
	if s.Messages != 9 {
		t.Errorf("%+v", s.Cost)
	}
}

func TestAdd(t *testing.T) {
	type stats struct {
		Totals
		Done [2]uint64
	}
	a, b := stats{Totals{1, 2, 3, 4}, [2]uint64{5, 6}}, stats{Totals{10, 20, 30, 40}, [2]uint64{50, 60}}
	if Add(&a, b); a != (stats{Totals{11, 22, 33, 44}, [2]uint64{55, 66}}) {
		t.Errorf("%+v", a)
	}
}
