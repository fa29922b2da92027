// Package hold keeps frames that wait: a Shelf has a fixed number of places, and
// any number of Queues share them. A queue gives frames back in the order in
// which they came.
//
// A frame belongs to the buffer pool of the worker that received it, and only
// that worker may send or drop it. So each place records the frame's worker. When
// another worker takes the frame, the other worker gets a copy in a buffer of its own, and the
// frame itself goes back to its worker, which drops it in its next turn
// (Shelf.Return).
//
// Only one worker at a time may use a Shelf. Nothing is allocated after New. Each
// method takes constant time, except Drop and Return, whose time grows with the number of frames.
package hold

import (
	"slices"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Buffers provides buffers for copies, and drops frames. *graph.Ctx implements it.
type Buffers interface {
	Get() *packet.Buf
	Discard(*packet.Buf)
	Drop(*packet.Buf, graph.Reason)
}

// Queue is a list of held frames, the longest held one first. The zero value is
// empty. A Queue is used with one Shelf.
type Queue struct {
	first, last int32 // places; 0: none
	n           int32
}

// QueueOf returns the queue with these First and Last, for owners that store
// queues in fewer bytes. The Len of the queue is lost.
func QueueOf(first, last int32) Queue { return Queue{first: first, last: last} }

// Empty reports whether no frame waits, and Len returns the number of frames that wait.
func (q *Queue) Empty() bool { return q.first == 0 }
func (q *Queue) Len() int    { return int(q.n) }

// First and Last return the places at the two ends of a queue, or 0 if the queue is empty.
func (q *Queue) First() int32 { return q.first }
func (q *Queue) Last() int32  { return q.last }

// place holds one frame.
type place[T any] struct {
	note   T // first, where it takes no room when it has no length
	x      *packet.Buf
	next   int32 // behind it in its queue, or the next free place; 0: none
	worker int32
}

// Shelf has a fixed number of places for frames. Each place also has a T, the
// owner's note about the frame.
type Shelf[T any] struct {
	places []place[T]
	free   int32 // the first free place; 0: none
	used   int
	by     []int           // frames here, by their worker
	back   [][]*packet.Buf // frames that are not here any more and that their worker has to drop
}

// New returns a shelf with that many places, for that many workers.
func New[T any](places, workers int) Shelf[T] {
	s := Shelf[T]{places: make([]place[T], places), by: make([]int, max(workers, 1)), back: make([][]*packet.Buf, max(workers, 1))}
	for i := places; i > 0; i-- {
		s.places[i-1].next, s.free = s.free, int32(i)
	}
	// A worker's frames are here or on their way back to it, and it holds no
	// more before it has taken those back: never more than there are places.
	for w := range s.back {
		s.back[w] = make([]*packet.Buf, 0, places)
	}
	return s
}

// Cap returns the number of places, and Len the number of places in use.
func (s *Shelf[T]) Cap() int { return len(s.places) }
func (s *Shelf[T]) Len() int { return s.used }

// Room reports whether n more frames can be held.
func (s *Shelf[T]) Room(n int) bool { return len(s.places)-s.used >= n }

// Put adds x, a frame of this worker, to the end of q. It returns the place of x, or 0 if no
// place is free; the caller keeps x then.
func (s *Shelf[T]) Put(q *Queue, x *packet.Buf, worker int, note T) int32 {
	at := s.free
	if at == 0 {
		return 0
	}
	p := &s.places[at-1]
	s.free = p.next
	*p = place[T]{x: x, worker: int32(worker), note: note}
	s.used++
	s.by[worker]++
	if q.first == 0 {
		q.first = at
	} else {
		s.places[q.last-1].next = at
	}
	q.last = at
	q.n++
	return at
}

// Note returns the owner's note about the frame in place at.
func (s *Shelf[T]) Note(at int32) *T { return &s.places[at-1].note }

// Frame returns the frame in place at. The caller may only read it, because it may belong to
// another worker.
func (s *Shelf[T]) Frame(at int32) *packet.Buf { return s.places[at-1].x }

// Next returns the place after place at in the same queue, or 0 if at is the last.
func (s *Shelf[T]) Next(at int32) int32 { return s.places[at-1].next }

// Mine returns the first frame of q, as a frame of this worker: it replaces another worker's
// frame by a copy. The frame stays in q until Remove. If there is no buffer for a copy, Mine
// returns nil and changes nothing. The queue must not be empty.
func (s *Shelf[T]) Mine(c Buffers, q *Queue, worker int) *packet.Buf {
	p := &s.places[q.first-1]
	if int(p.worker) != worker {
		y := Copy(c, p.x)
		if y == nil {
			return nil
		}
		s.back[p.worker] = append(s.back[p.worker], p.x)
		s.by[p.worker]--
		s.by[worker]++
		p.x, p.worker = y, int32(worker)
	}
	return p.x
}

// Remove takes the first frame out of q. The caller must have got the frame from Mine, and have
// sent or dropped it.
func (s *Shelf[T]) Remove(q *Queue) {
	at := q.first
	p := &s.places[at-1]
	s.by[p.worker]--
	s.used--
	if q.first = p.next; q.first == 0 {
		*q = Queue{}
	} else {
		q.n--
	}
	*p = place[T]{next: s.free}
	s.free = at
}

// Take takes the first frame out of q and returns it, as a frame of this worker, with its note.
// The frame is nil, and lost, if it was another worker's and there is no buffer for a
// copy. The queue must not be empty.
func (s *Shelf[T]) Take(c Buffers, q *Queue, worker int) (*packet.Buf, T) {
	x, note := s.Mine(c, q, worker), s.places[q.first-1].note
	if p := &s.places[q.first-1]; x == nil {
		s.back[p.worker] = append(s.back[p.worker], p.x)
	}
	s.Remove(q)
	return x, note
}

// Drop drops all frames of q.
func (s *Shelf[T]) Drop(c Buffers, q *Queue, worker int, why graph.Reason) {
	for q.first != 0 {
		p := &s.places[q.first-1]
		if int(p.worker) == worker {
			c.Drop(p.x, why)
		} else {
			s.back[p.worker] = append(s.back[p.worker], p.x)
		}
		s.Remove(q)
	}
}

// Return drops frames of this worker that other workers took or dropped. Each worker must
// call it in each of its turns, before it holds more frames.
func (s *Shelf[T]) Return(c Buffers, worker int, why graph.Reason) {
	for i, x := range s.back[worker] {
		c.Drop(x, why)
		s.back[worker][i] = nil
	}
	s.back[worker] = s.back[worker][:0]
}

// Held returns the number of a worker's frames that are on the shelf or wait for its Return.
func (s *Shelf[T]) Held(worker int) int { return s.by[worker] + len(s.back[worker]) }

// Idle reports whether no frame is on the shelf, and none waits for a Return.
func (s *Shelf[T]) Idle() bool {
	return s.used == 0 && !slices.ContainsFunc(s.back, func(l []*packet.Buf) bool { return len(l) != 0 })
}

// Copy returns a copy of frame x in a buffer of this worker, or nil if no buffer is free or long enough.
func Copy(c Buffers, x *packet.Buf) *packet.Buf {
	y := c.Get()
	if y != nil && !y.SetBytes(x.Bytes()) {
		c.Discard(y)
		return nil
	}
	return y
}
