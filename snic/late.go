package snic

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// lates are frames for another worker that wait for room in the ring, in their order. They waited in the packet store while their DAG
// was on its way to that worker, and may be more than fit into the ring. The packet store counts them until they leave.
type lates struct {
	q     []late
	head  int
	since clock.Time // when the last DAG went to that worker
}

type late struct {
	buf    *packet.Buf
	tenant int32
}

// lateFor is how long newer frames may queue behind frames that waited. After that they are dropped as long as the queue is not empty:
// the other worker takes frames more slowly than they come.
const lateFor = 10 * time.Millisecond

// waiting is how many frames there are.
func (l *lates) waiting() int { return len(l.q) - l.head }

// delay keeps a frame, which has its tag, for a worker whose ring has no room now. waited: the frame comes from the packet store. delay
// reports false when the frame must not wait.
func (gt *gates) delay(c *graph.Ctx, l *lates, tenant int, x *packet.Buf, waited bool) bool {
	if waited {
		l.since = c.Now()
	} else if l.waiting() == 0 || c.Now() >= l.since.Add(lateFor) {
		return false
	}
	return gt.keep(c, l, tenant, x, waited)
}

// fromPool is the tag of a frame that came by the pool's port and is on its way to the home of its DAG. No other bits are set.
const fromPool = 1 << 62

// pass gives a frame that came by the pool's port, unchanged, to the home of its DAG. If the ring has no room, a frame that has been at a
// peer waits in the packet store.
func (gt *gates) pass(c *graph.Ctx, to, tenant int, x *packet.Buf) {
	x.Tag = fromPool
	if l := &gt.lates[to]; !(l.waiting() == 0 && c.Hand(to, x)) && !gt.keep(c, l, tenant, x, false) {
		x.Tag = 0
		c.Drop(x, reasonCrowded)
	}
}

// keep keeps a frame in the packet store until another worker has room for it. It reports false if the store is full. waited: the frame was in
// the store before.
func (gt *gates) keep(c *graph.Ctx, l *lates, tenant int, x *packet.Buf, waited bool) bool {
	k := &gt.stock.kept[tenant]
	if l.waiting() == gt.stock.packets || !waited && gt.stock.full(k, x.Len()) {
		return false
	}
	gt.stock.inside++
	gt.stock.stored += int64(x.Len())
	k.packets++
	k.bytes += int64(x.Len())
	l.q = append(l.q, late{x, int32(tenant)})
	gt.late++
	c.Wake(c.Now().Add(transit))
	return true
}

// handLates hands over what waits for room, as far as there is some.
func (gt *gates) handLates(c *graph.Ctx) {
	for to := range gt.lates {
		l := &gt.lates[to]
		for l.waiting() > 0 {
			f := l.q[l.head]
			tag, size := f.buf.Tag, f.buf.Len()
			if !c.Hand(to, f.buf) {
				break
			}
			gt.forget(l, size)
			if tag == fromPool {
				continue
			}
			w := wayOf(tag)
			if s := &gt.cat.services[w.dag]; s.UID != 0 && s.term == w.term {
				s.lodge.handed++
			}
		}
	}
}

// forget takes the first of the frames that wait for a worker out of the books.
func (gt *gates) forget(l *lates, size int) {
	k := &gt.stock.kept[l.q[l.head].tenant]
	gt.stock.inside--
	gt.stock.stored -= int64(size)
	k.packets--
	k.bytes -= int64(size)
	gt.late--
	l.q[l.head] = late{}
	if l.head++; l.head == len(l.q) {
		l.q, l.head = l.q[:0], 0
	}
}

// stopLates drops what waits for other workers.
func (gt *gates) stopLates(c *graph.Ctx) {
	for to := range gt.lates {
		for l := &gt.lates[to]; l.waiting() > 0; {
			x := l.q[l.head].buf
			gt.forget(l, x.Len())
			x.Tag = 0
			c.Drop(x, reasonStopped)
		}
	}
}
