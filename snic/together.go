package snic

import (
	"math"
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/sched"
)

// This file handles groups of packets on the full road: most packets begin together with others of their group,
// wait in the same tasks, and come back together. Simple loops handle all packets of a group at once. A packet
// that differs is handled alone from that point on (run.go).

// open has n packets of a route begin at once when they come to the scheduler, if they can and all tasks that
// they begin with take a modelled time. It returns their runs, for start.
func (rn *runner) open(d *service, route, n int) []sched.Run {
	if rn.set.pass > 0 || rn.work.n > 0 || d.aside != nil {
		return nil
	}
	runs := rn.sched.Open(route, n)
	for i := range runs {
		slot := runs[i].Region*sched.MaxTasks + bits.TrailingZeros16(runs[i].Mask)
		if t := &rn.cat.tasks[rn.wait[slot].task]; t.absent() || !t.modelled {
			rn.sched.Close()
			return nil
		}
	}
	return runs
}

// start has the packets that began since open wait in their first tasks.
func (rn *runner) start(c *graph.Ctx, runs []sched.Run) {
	if runs == nil {
		return
	}
	rn.sched.Close()
	if len(rn.began) == 0 {
		return
	}
	for k := range runs {
		slot := runs[k].Region*sched.MaxTasks + bits.TrailingZeros16(runs[k].Mask)
		d := &rn.wait[slot]
		rn.enqueue(c, slot, d, &rn.cat.tasks[d.task], int32(k), rn.began...)
	}
	rn.began = rn.began[:0]
}

// enqueue has lanes wait in task t, whose time is modelled, in d, the delay of number slot: those that lie by
// lanes' number after each of first.
func (rn *runner) enqueue(c *graph.Ctx, slot int, d *delay, t *task, after int32, first ...int32) {
	start := max(c.Now(), d.busy)
	if start > d.busy {
		d.rest = 0
	}
	d.busy = start
	if d.head == len(d.q) {
		rn.modelled = append(rn.modelled, int32(slot))
		c.Wake(start.Add(t.Latency)) // else that of the first of them counts
	}
	d.room(len(first))
	q := d.q
	if t.Throughput == 0 {
		at := start.Add(t.Latency)
		for _, id := range first {
			q = append(q, delayed{id + after, at})
		}
		d.q = q
		return
	}
	for _, id := range first {
		q = append(q, delayed{id + after, d.busy.Add(t.Latency)})
		size := int(rn.packets[id>>laneBits].size) // of a frame that another branch has ended
		if x := rn.lanes[id+after].buf; x != nil {
			size = x.Len()
		}
		ns := float64(size)*8e9/float64(t.Throughput) + d.rest
		d.busy = d.busy.Add(clock.Duration(ns))
		d.rest = ns - math.Floor(ns)
	}
	d.q = q
}

// feedAlike is feed for the first of the frames, as long as nothing is to be decided about any of them. It
// returns how many it fed.
func (rn *runner) feedAlike(c *graph.Ctx, t *task, frames []delayed) int {
	if len(frames) < 2 || rn.split.spent.clock != nil || !t.quiet || t.halted || t.absent() {
		return 0
	}
	batch := &rn.batches[rn.depth]
	batch.Reset()
	packets, lanes, fed := rn.packets, rn.lanes, rn.fed[:0]
	back := packets[frames[0].lane>>laneBits].way.back
	for i := range frames {
		id := frames[i].lane
		p, l := &packets[id>>laneBits], &lanes[id]
		x := l.buf
		if p.way.back != back || p.lost || p.failed || p.branches > 0 && (x != p.original || p.lent || !t.looks) {
			break
		}
		p.lent, l.lent = p.branches > 0, true
		x.Tag = uint64(id) + 1
		fed = append(fed, id)
		batch.Add(x)
	}
	rn.fed = fed
	if rn.held -= len(fed); len(fed) > 0 {
		rn.give(c, t, packets[fed[len(fed)-1]>>laneBits].way, batch)
	}
	return len(fed)
}

// passed does the work of sweep for the usual case: the frames that a task has let go are those that the task
// was given, in their order. It takes these frames. In other cases it does nothing and returns false.
func (rn *runner) passed(c *graph.Ctx, t *task, out int) bool {
	frames := t.in.Only(out)
	if t.holds || len(frames) != len(rn.fed) {
		return false
	}
	for i, id := range rn.fed {
		if rn.lanes[id].buf != frames[i] {
			return false
		}
	}
	t.in.TakeAll(c, out)
	rn.held += len(rn.fed)
	packets, lanes := rn.packets, rn.lanes
	over := rn.fed[:0]
	for i, id := range rn.fed {
		p, l := &packets[id>>laneBits], &lanes[id]
		l.lent = false
		if p.branches > 0 {
			if x := frames[i]; x == p.original && remarkOf(x) == p.was {
				p.lent = false
			} else {
				rn.returned(id, p, l, t)
			}
		}
		if l.mask != 0 || rn.set.sync > 0 && p.branches > 0 {
			rn.sched.Release(int(id), int(l.at))
			rn.work.push(id)
			continue
		}
		l.region, l.at = -1, -1
		over = append(over, id)
	}
	rn.sched.ReturnAll(over)
	return true
}
