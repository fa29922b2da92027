package sched

import (
	"fmt"
	"math/bits"
)

// queues holds the credits of tasks and headers, and the headers that wait for credits: each task of a region has a
// queue, first come, first served. queues knows nothing of packets, flows and routes.
type queues struct {
	regions []region
	headers []header // 1<<shift for each packet, one for each branch
	links   []links  // of headers
	ready   ring     // headers that have credits, for Next
	panic   bool     // one credit at a time
}

// task is an instance of a task.
type task struct {
	total      int32 // credits
	free       int32 // below 0 after credits were taken away, or packets that were kept went on
	taken      int32 // credits out on the bulk road
	head, tail int32 // headers that wait, in their order
	waiting    int32
	packets    uint64 // wanted, from Place on
	bytes      uint64
}

type region struct {
	chain   int32 // none: nothing is placed
	n       int32 // tasks
	paused  bool
	queued  uint16  // tasks that headers wait for
	running int32   // headers that have left the scheduler, or are about to
	load    int32   // running headers, and those that wait here
	taken   int32   // packets on the bulk road
	work    float32 // recent work of the buckets that it has
	tasks   [MaxTasks]task
}

func regionOf(chain int32, credits []int) region {
	rg := region{chain: chain, n: int32(len(credits))}
	for i := range rg.tasks {
		t := &rg.tasks[i]
		t.head, t.tail = none, none
		if i < len(credits) {
			t.total, t.free = int32(credits[i]), int32(credits[i])
		}
	}
	return rg
}

// States of a header. A header that runs may have a place in a queue as well.
const (
	idle    uint8 = iota // nothing in this stage, or nothing any more
	held                 // waits for the packet before it in its flow
	parked               // waits for an instance of its chain
	waiting              // for a credit
	ready                // for Next
	running              // is in the region
)

// header is the copy of a packet's header in one branch of a stage. Four headers fill a line of the processor's
// cache.
type header struct {
	region  int16  // where it waits or runs
	rest    uint16 // tasks of the visit that it has no credit for yet
	credits uint16 // tasks that it is told to run, later those of them whose credits it has
	kept    uint8  // the task that keeps it, + 1; 0: none
	begun   bool   // a task of this stage has run
	queue   int8   // the task in whose queue it is; -1: in none
	state   uint8
	visit   uint8
	end     uint8 // of the branch's visits
	_       [3]byte
}

// links are the neighbours of a header in the queue of a task, or in a chain's list of parked headers.
type links struct{ next, prev int32 }

// reserve takes credits for the rest of a header's visit in region r, as far as
// possible, and puts the header into the queue of the first task without a credit.
// first: the header is the first in the queue of its first task, and leaves that queue.
func (q *queues) reserve(h, r int32, first bool) {
	x := &q.headers[h]
	rg := &q.regions[r]
	if first {
		q.dequeue(h)
	}
	m := x.rest
	for ; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		if t.free <= 0 || rg.queued&m&-m != 0 && !first {
			break
		}
		t.free--
		first = false
		if q.panic {
			m &= m - 1
			break
		}
	}
	got := x.rest &^ m
	x.rest = m
	if got == 0 {
		x.state = waiting
		q.enqueue(h, bits.TrailingZeros16(m))
		return
	}
	x.credits = got
	x.state = ready
	rg.running++
	x.begun = true
	q.ready.push(h)
	if m != 0 && !q.panic {
		q.enqueue(h, bits.TrailingZeros16(m))
	}
}

// serve gives credits of a task to headers that wait for it.
func (q *queues) serve(r int32, task int) {
	t := &q.regions[r].tasks[task]
	for t.free > 0 && t.head != none && q.headers[t.head].state == waiting {
		q.reserve(t.head, r, true)
	}
}

// enqueue puts a header at the end of the queue of a task.
func (q *queues) enqueue(h int32, task int) {
	x := &q.headers[h]
	rg := &q.regions[x.region]
	t := &rg.tasks[task]
	rg.queued |= 1 << task
	x.queue = int8(task)
	q.add(h, &t.head, &t.tail)
	t.waiting++
}

// enqueueBehind puts a header into the queue that another one is in, next to that.
func (q *queues) enqueueBehind(h, other int32) {
	y := &q.headers[other]
	t := &q.regions[y.region].tasks[y.queue]
	q.headers[h].queue = y.queue
	next := q.links[other].next
	q.links[h] = links{next, other}
	q.links[other].next = h
	if next == none {
		t.tail = h
	} else {
		q.links[next].prev = h
	}
	t.waiting++
}

// dequeue takes a header out of the queue that it is in.
func (q *queues) dequeue(h int32) {
	x := &q.headers[h]
	rg := &q.regions[x.region]
	t := &rg.tasks[x.queue]
	q.cut(h, &t.head, &t.tail)
	if t.waiting--; t.waiting == 0 {
		rg.queued &^= 1 << x.queue
	}
	x.queue = -1
}

// add puts a header at the end of the list with this head and tail.
func (q *queues) add(h int32, head, tail *int32) {
	q.links[h] = links{none, *tail}
	if *tail == none {
		*head = h
	} else {
		q.links[*tail].next = h
	}
	*tail = h
}

// cut takes a header out of the list with this head and tail.
func (q *queues) cut(h int32, head, tail *int32) {
	x := &q.links[h]
	if x.prev == none {
		*head = x.next
	} else {
		q.links[x.prev].next = x.next
	}
	if x.next == none {
		*tail = x.prev
	} else {
		q.links[x.next].prev = x.prev
	}
	*x = links{none, none}
}

// doing returns the number of packets that the tasks in mask have, or that wait for them, summed over the tasks.
func (rg *region) doing(mask uint16) (n int32) {
	for m := mask; m != 0; m &= m - 1 {
		t := &rg.tasks[bits.TrailingZeros16(m)&(MaxTasks-1)]
		n += t.total - t.free + t.waiting
	}
	return n
}

func (q *queues) checkQueue(r, task int) error {
	rg := &q.regions[r]
	t := &rg.tasks[task]
	n, prev := int32(0), none
	for h := t.head; h != none; h = q.links[h].next {
		x := &q.headers[h]
		switch {
		case q.links[h].prev != prev || int(x.region) != r || int(x.queue) != task || bits.TrailingZeros16(x.rest) != task:
			return fmt.Errorf("sched: header %d is in the queue of region %d task %d by mistake", h, r, task)
		case x.state == waiting && x.credits != 0:
			return fmt.Errorf("sched: header %d waits and has credits %#x", h, x.credits)
		case x.state == waiting && rg.paused:
			return fmt.Errorf("sched: header %d waits in region %d, which is paused", h, r)
		case x.state < waiting:
			return fmt.Errorf("sched: header %d in state %d is in a queue", h, x.state)
		case prev == none && x.state == waiting && t.free > 0:
			return fmt.Errorf("sched: header %d waits for task %d of region %d, which has %d credits", h, task, r, t.free)
		}
		n++
		prev = h
	}
	if n != t.waiting || prev != t.tail || (n > 0) != (rg.queued&(1<<task) != 0) {
		return fmt.Errorf("sched: %d wait for task %d of region %d, not %d", n, task, r, t.waiting)
	}
	return nil
}

// ring is a queue of bounded size.
type ring struct {
	e    []int32
	at   uint32 // the first
	n    uint32
	mask uint32
}

func newRing(n int) ring {
	size := 1
	for size < n {
		size *= 2
	}
	return ring{e: make([]int32, size), mask: uint32(size - 1)}
}

func (r *ring) push(v int32) {
	r.e[(r.at+r.n)&r.mask] = v
	r.n++
}

func (r *ring) pop() int32 {
	v := r.e[r.at&r.mask]
	r.at++
	if r.n--; r.n == 0 {
		r.at = 0 // what is in use stays in the cache
	}
	return v
}
