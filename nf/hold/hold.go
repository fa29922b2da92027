// Package hold keeps frames that wait: a Shelf has a fixed number of places, and
// any number of Queues share them. A queue gives frames back in the order in
// which they came.
//
// A frame belongs to the buffer pool of the worker that received it, and only
// that worker may send or drop it. So a place knows the frame's worker. When
// another worker takes the frame, it gets a copy in a buffer of its own, and the
// frame itself goes back to its worker, which drops it in its next turn
// (Shelf.Return).
//
// A Shelf is for one worker at a time. Nothing is allocated after New, and each
// method takes constant time, but for Drop and Return, which take a step a frame.
package hold

import (
	"slices"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Buffers is where copies are made and frames are dropped: a *graph.Ctx.
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

// QueueOf is the queue that First and Last described, for owners that store
// queues in fewer bytes. Its Len is not kept.
func QueueOf(first, last int32) Queue { return Queue{first: first, last: last} }

// Empty reports whether nothing waits, and Len is how many frames wait.
func (q *Queue) Empty() bool { return q.first == 0 }
func (q *Queue) Len() int    { return int(q.n) }

// First and Last are the places at the two ends of a queue; 0 when it is empty.
func (q *Queue) First() int32 { return q.first }
func (q *Queue) Last() int32  { return q.last }

// place holds one frame.
type place[T any] struct {
	note   T // first, where it takes no room when it has no length
	x      *packet.Buf
	next   int32 // behind it in its queue, or the next free place; 0: none
	worker int32
}

// Shelf is a fixed number of places for frames. Beside each frame is a T, the
// owner's note about it.
type Shelf[T any] struct {
	places []place[T]
	free   int32 // the first free place; 0: none
	used   int
	by     []int           // frames here, by their worker
	back   [][]*packet.Buf // frames that are not here any more and that their worker has to drop
}

// New makes a shelf with so many places for so many workers.
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

// Cap is the number of places, Len how many are in use.
func (s *Shelf[T]) Cap() int { return len(s.places) }
func (s *Shelf[T]) Len() int { return s.used }

// Room reports whether n more frames can be held.
func (s *Shelf[T]) Room(n int) bool { return len(s.places)-s.used >= n }

// Put holds x, a frame of this worker's, at the end of q. It returns the place,
// or 0 when there is none free; then x is still the caller's.
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

// Note is what the owner noted about the frame in a place.
func (s *Shelf[T]) Note(at int32) *T { return &s.places[at-1].note }

// Frame is the frame in a place, to be read and no more: it may be another
// worker's.
func (s *Shelf[T]) Frame(at int32) *packet.Buf { return s.places[at-1].x }

// Next is the place behind another one of the same queue; 0 when that is the
// last.
func (s *Shelf[T]) Next(at int32) int32 { return s.places[at-1].next }

// Mine makes the first frame of q one of this worker's and returns it; it stays
// in q until Remove. nil, and nothing changes, when there is no buffer for a
// copy. The queue is not empty.
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

// Remove takes the first frame out of q, without a look at whose it is: the
// caller has it from Mine, and has sent or dropped it.
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

// Take takes the first frame out of q, as one of this worker's, with its note.
// The frame is nil when it was another worker's and there is no buffer for a
// copy: then it is lost, as on a wire. The queue is not empty.
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

// Return drops frames of this worker's that others took or dropped. Each worker
// calls it in each of its turns, before it holds more.
func (s *Shelf[T]) Return(c Buffers, worker int, why graph.Reason) {
	for i, x := range s.back[worker] {
		c.Drop(x, why)
		s.back[worker][i] = nil
	}
	s.back[worker] = s.back[worker][:0]
}

// Held is how many frames of a worker's are here, or wait for its Return.
func (s *Shelf[T]) Held(worker int) int { return s.by[worker] + len(s.back[worker]) }

// Idle reports whether no frame is here, and none waits for a Return.
func (s *Shelf[T]) Idle() bool {
	return s.used == 0 && !slices.ContainsFunc(s.back, func(l []*packet.Buf) bool { return len(l) != 0 })
}

// Copy is a copy of frame x in a buffer of this worker's; nil when there is none.
func Copy(c Buffers, x *packet.Buf) *packet.Buf {
	y := c.Get()
	if y != nil && !y.SetBytes(x.Bytes()) {
		c.Discard(y)
		return nil
	}
	return y
}
