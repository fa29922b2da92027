package hold

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// worker is one worker's pool, and what became of its frames.
type worker struct {
	t       *rapid.T
	pool    *packet.Pool
	dropped []string
}

func (w *worker) Get() *packet.Buf      { return w.pool.Get() }
func (w *worker) Discard(b *packet.Buf) { b.Put() }

func (w *worker) Drop(b *packet.Buf, _ graph.Reason) {
	if b.Pool() != w.pool {
		w.t.Fatal("a worker dropped another one's frame")
	}
	w.dropped = append(w.dropped, string(b.Bytes()))
	b.Put()
}

// A shelf is so many lists of names, whatever the workers do with it; no frame
// is lost, given back twice, or leaves by another worker than its own.
func TestShelf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const places, queues = 7, 3
		workers := make([]*worker, rapid.IntRange(1, 3).Draw(t, "workers"))
		for w := range workers {
			pool, err := packet.NewPool(rapid.IntRange(places, 2*places).Draw(t, "frames"), 256, nil)
			if err != nil {
				t.Fatal(err)
			}
			workers[w] = &worker{t: t, pool: pool}
		}
		s := New[string](places, len(workers))
		var q [queues]Queue
		var model [queues][]string
		held := 0
		for n := range 200 {
			at := rapid.IntRange(0, len(workers)-1).Draw(t, "worker")
			w := workers[at]
			s.Return(w, at, 0)
			i := rapid.IntRange(0, queues-1).Draw(t, "queue")
			switch rapid.IntRange(0, 5).Draw(t, "do") {
			case 0, 1, 2:
				x := w.pool.Get()
				if x == nil {
					break
				}
				name := fmt.Sprint(n)
				x.SetBytes([]byte(name))
				room := s.Room(1)
				place := s.Put(&q[i], x, at, name)
				if room != (place != 0) || room != (held < places) {
					t.Fatalf("room %v with %d held, place %d", room, held, place)
				}
				if place == 0 {
					x.Put()
					break
				}
				if *s.Note(place) != name || string(s.Frame(place).Bytes()) != name || q[i].Last() != place {
					t.Fatal("another frame is in the place")
				}
				model[i] = append(model[i], name)
				held++
			case 3:
				if q[i].Empty() {
					break
				}
				if x, note := s.Take(w, &q[i], at); note != model[i][0] {
					t.Fatalf("got %s, want %s", note, model[i][0])
				} else if x != nil {
					if x.Pool() != w.pool || string(x.Bytes()) != note {
						t.Fatalf("got a frame %q of pool %p for %s", x.Bytes(), x.Pool(), note)
					}
					x.Put()
				}
				model[i] = model[i][1:]
				held--
			case 4:
				if q[i].Empty() {
					break
				}
				x := s.Mine(w, &q[i], at)
				if x == nil {
					break
				}
				if x.Pool() != w.pool || string(x.Bytes()) != model[i][0] || s.Frame(q[i].First()) != x {
					t.Fatal("the first frame is another one")
				}
				if rapid.Bool().Draw(t, "and send it") {
					s.Remove(&q[i])
					x.Put()
					model[i] = model[i][1:]
					held--
				}
			case 5:
				before := len(w.dropped)
				s.Drop(w, &q[i], at, 0)
				if len(w.dropped)-before > len(model[i]) {
					t.Fatal("dropped more than was held")
				}
				held -= len(model[i])
				model[i] = nil
			}
			check(t, &s, q[:], model[:], held)
		}
		for i := range q {
			s.Drop(workers[0], &q[i], 0, 0)
		}
		away := 0
		for w := range workers {
			away += s.Held(w)
		}
		if s.Idle() != (away == 0) {
			t.Errorf("idle %v with %d frames to give back", s.Idle(), away)
		}
		for w, x := range workers {
			if s.Return(x, w, 0); s.Held(w) != 0 {
				t.Errorf("worker %d still has %d frames", w, s.Held(w))
			}
			if n := x.pool.InUse(); n != 0 {
				t.Errorf("worker %d misses %d frames", w, n)
			}
		}
	})
}

// check compares a shelf with the lists of names that it has to be.
func check(t *rapid.T, s *Shelf[string], q []Queue, model [][]string, held int) {
	sum := 0
	for _, n := range s.by {
		sum += n
	}
	if s.Len() != held || sum != held || s.Room(s.Cap()-held+1) || !s.Room(s.Cap()-held) {
		t.Fatalf("%d held, %d by worker, want %d", s.Len(), sum, held)
	}
	for i := range q {
		names := 0
		for at := q[i].First(); at != 0; at = s.Next(at) {
			if *s.Note(at) != model[i][names] {
				t.Fatalf("queue %d has %s, want %s", i, *s.Note(at), model[i][names])
			}
			names++
		}
		if names != len(model[i]) || q[i].Len() != names || q[i].Empty() != (names == 0) {
			t.Fatalf("queue %d has %d frames of %d", i, names, q[i].Len())
		}
	}
}

// What another worker takes comes as a copy; without a buffer for one nothing
// changes by Mine, and Take loses it.
func TestOtherWorker(t *testing.T) {
	mine, err := packet.NewPool(1, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := packet.NewPool(1, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := &worker{pool: mine}, &worker{pool: other}
	s := New[int](2, 2)
	var q Queue
	x := mine.Get()
	x.SetBytes([]byte("frame"))
	s.Put(&q, x, 0, 1)
	last := other.Get() // no buffer is left
	if s.Mine(b, &q, 1) != nil || s.Held(0) != 1 || q.Len() != 1 {
		t.Error("a frame without a buffer for its copy has moved")
	}
	if y, _ := s.Take(b, &q, 1); y != nil || s.Held(0) != 1 || s.Len() != 0 || !q.Empty() {
		t.Error("a frame without a buffer for its copy has been given")
	}
	last.Put()
	if s.Return(a, 0, 0); len(a.dropped) != 1 || s.Held(0) != 0 {
		t.Error("the frame has not come back to its worker")
	}
	x = mine.Get()
	x.SetBytes([]byte("again"))
	at := s.Put(&q, x, 0, 2)
	if r := QueueOf(q.First(), q.Last()); r.First() != at || r.Last() != at || r.Empty() {
		t.Error("a queue that was stored is another one")
	}
	y, note := s.Take(b, &q, 1)
	if y == nil || y.Pool() != other || string(y.Bytes()) != "again" || note != 2 {
		t.Fatal("the copy is wrong")
	}
	if s.Held(0) != 1 || s.Held(1) != 0 {
		t.Error("the original is not on its way back")
	}
}

// Nothing is allocated, however full the shelf is and whoever takes frames.
func TestNoAllocation(t *testing.T) {
	pool, err := packet.NewPool(64, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := &worker{pool: pool}, &worker{pool: pool}
	s := New[int](16, 2)
	var q Queue
	a.dropped = make([]string, 0, 1<<16)
	n := testing.AllocsPerRun(20, func() {
		for s.Room(1) {
			x := pool.Get()
			x.SetBytes(nil)
			s.Put(&q, x, 0, 7)
		}
		for !q.Empty() {
			x, _ := s.Take(b, &q, 1)
			x.Put()
		}
		s.Return(a, 0, 0)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
