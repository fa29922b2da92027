package snic

import (
	"fmt"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/merge"
)

// When branches of a stage run side by side (parallel=): when at least two of them have a
// task whose time is modelled, always, or never.
const (
	parallelAuto uint8 = iota
	parallelOn
	parallelOff
)

var parallels = [...]string{parallelAuto: "auto", parallelOn: "on", parallelOff: "off"}

// branch describes a packet in one of several branches. The branch has a copy, or the frame itself as long as the branch's tasks
// only look at it.
type branch struct {
	whole  bool         // the copy has the payload
	marked int8         // place in the DAG of the last task that marked it; -1: none has
	writes effect.Field // what the tasks that had the frame may have written
	was    remark       // the mark before the last task, if the branch has a copy
	mark   remark       // the mark of the last task that marked it
}

// remark is a mark of a task on a frame (graph.Ctx.Mark): verdict, app and reason.
type remark uint64

func remarkOf(x *packet.Buf) remark {
	return remark(x.Verdict) | remark(x.ReasonApp)<<8 | remark(x.Reason)<<24
}

// on has a frame bear the mark.
func (m remark) on(x *packet.Buf) {
	x.Verdict, x.ReasonApp, x.Reason = packet.Verdict(m), uint16(m>>8), uint16(m>>24)
}

// Records of a board's trace.
const (
	traceCopied uint16 = iota
	traceMerged
)

// describe says what became of a packet between tasks: graph.Kind.Describe.
func describe(_ graph.App, kind uint16, args [4]uint64) string {
	switch kind {
	case traceCopied:
		return fmt.Sprintf("%d branches, each on a copy", args[0])
	case traceMerged:
		return fmt.Sprintf("%d branches are back and merged", args[0])
	}
	return fmt.Sprintf("record %d %v", kind, args)
}

// canCopy reports whether there are frames for so many copies of x, beside those that
// other packets were promised. One in eight is left to ports and to tasks that make frames.
func (cg *cargo) canCopy(x *packet.Buf, n int) bool {
	p := x.Pool()
	if p.Free() >= p.Slots()/8+cg.promised+n {
		return true
	}
	cg.inLine++
	return false
}

// enter makes a packet ready for a stage: copies of the stage before are merged, and the new branches get the frame.
func (cg *cargo) enter(c *graph.Ctx, id, stage, branches int) {
	p := &cg.packets[id]
	if p.branches > 0 {
		cg.merge(c, id)
	}
	p.stage = uint8(stage)
	if branches > 1 && !p.failed {
		cg.fork(c, id, branches)
	}
}

// fork gives n branches a packet. All have the same frame: a branch has a copy of its headers from the first of its tasks on
// that does more than look at it.
func (cg *cargo) fork(c *graph.Ctx, id, n int) {
	p := &cg.packets[id]
	x := cg.lanes[id<<laneBits].buf
	for i := range n {
		cg.lanes[id<<laneBits+i].take(x)
	}
	cg.share(c, p, x, n)
}

// share notes that n branches of a packet have its frame x.
func (cg *cargo) share(c *graph.Ctx, p *inside, x *packet.Buf, n int) {
	p.original, p.branches, p.changed, p.was = x, uint8(n), false, remarkOf(x)
	cg.copied++
	c.Trace(x, traceCopied, uint64(n))
}

// change returns the branch of a lane, to be changed. A packet has no branches in memory before the first of them differs.
func (cg *cargo) change(id int32, p *inside) *branch {
	if !p.changed {
		p.changed = true
		all := cg.branches[id&^(maxLanes-1):][:p.branches]
		for i := range all {
			all[i].whole, all[i].marked, all[i].writes = true, -1, 0
		}
	}
	return &cg.branches[id]
}

// apart gives a branch a copy of the packet's headers. It reports false when there is no frame for it.
func (cg *cargo) apart(c *graph.Ctx, id int32, p *inside, l *lane) bool {
	x := p.original
	y := c.Copy(x)
	if y == nil {
		cg.copied--
		p.failed = true
		return false
	}
	var parts merge.Parts
	parts.Find(x.Bytes())
	parts.Copy(y.Bytes(), x.Bytes())
	l.buf, cg.change(id, p).whole = y, parts.Head == x.Len()
	cg.held++
	if p.promised > 0 {
		p.promised--
		cg.promised--
	}
	return true
}

// fetch gives a copy the payload, from the packet store. It reports false when the copy stays without: the packet's own frame
// went with a task that looked at it, and panicked.
func (cg *cargo) fetch(id int32, p *inside, l *lane) bool {
	b := &cg.branches[id]
	switch {
	case l.buf == p.original || b.whole:
		return true
	case p.original == nil:
		return false
	case l.buf.Len() != p.original.Len():
		return true
	}
	var parts merge.Parts
	parts.Find(p.original.Bytes())
	parts.Fetch(l.buf.Bytes(), p.original.Bytes())
	b.whole = true
	return true
}

// ready makes the frame of a branch ready for a task. It reports false when there is none for it.
func (cg *cargo) ready(c *graph.Ctx, id int32, p *inside, l *lane, t *task) bool {
	if l.buf == p.original {
		if p.lent {
			p.failed = true // a task has kept the frame that has not said that it may
			return false
		}
		if t.looks {
			p.lent = true
			return true
		}
		if !cg.apart(c, id, p, l) {
			return false
		}
	}
	if t.NeedsPayload() {
		cg.fetch(id, p, l)
	}
	b := &cg.branches[id]
	b.writes |= t.Writes
	b.was = remarkOf(l.buf)
	return true
}

// returned notes that a task is done with the frame of a branch, and whether it has marked it.
func (cg *cargo) returned(id int32, p *inside, l *lane, t *task) {
	mark := remarkOf(l.buf)
	was := &p.was
	if l.buf == p.original {
		p.lent = false
	} else {
		was = &cg.branches[id].was
	}
	if mark == *was {
		return
	}
	*was = mark
	b := cg.change(id, p)
	b.marked, b.mark = max(b.marked, 0), mark
	d := &cg.cat.services[p.way.dag]
	if d.term != p.way.term {
		return
	}
	for i, n := range d.tasks {
		if &cg.cat.tasks[n] == t {
			if p.way.back {
				i = len(d.tasks) - 1 - i
			}
			b.marked = int8(i)
		}
	}
}

// merge makes one frame of a packet's copies, which are all back.
func (cg *cargo) merge(c *graph.Ctx, id int) {
	p := &cg.packets[id]
	x := p.original
	if !p.changed && !p.lent {
		c.Trace(x, traceMerged, uint64(p.branches))
		cg.sole(p)
		return
	}
	lanes, branches := cg.lanes[id<<laneBits:][:p.branches], cg.branches[id<<laneBits:][:p.branches]
	last, mark, copies := int8(-1), remark(0), false
	for i := range lanes {
		if b := &branches[i]; p.changed && b.marked > last {
			last, mark = b.marked, b.mark
		}
		copies = copies || lanes[i].buf != x
	}
	if copies {
		x = mergeCopies(x, lanes, branches)
	}
	if last >= 0 {
		mark.on(x)
	}
	c.Trace(x, traceMerged, uint64(p.branches))
	cg.keep(c, id, x)
}

// mergeCopies is a frame with what has become of copies of it: the frame itself, or one of them.
func mergeCopies(x *packet.Buf, lanes []lane, branches []branch) *packet.Buf {
	var copies [maxLanes]merge.Copy
	n := 0
	longer := x
	for i := range lanes {
		switch l, b := &lanes[i], &branches[i]; {
		case l.buf == x:
		case b.writes&effect.Length != 0:
			longer = l.buf // others look at no byte
		case l.buf.Len() == x.Len():
			copies[n] = merge.Copy{Bytes: l.buf.Bytes(), Writes: b.writes, Whole: b.whole}
			n++
		}
	}
	if longer == x {
		var parts merge.Parts
		parts.Find(x.Bytes())
		parts.Merge(x.Bytes(), copies[:n])
	}
	return longer
}

// scrap gives up the copies of a packet that goes no further.
func (cg *cargo) scrap(c *graph.Ctx, id int) {
	p := &cg.packets[id]
	x := p.original
	if p.lost {
		x = nil // a task had what counts as the frame
	}
	cg.keep(c, id, x)
}

// keep ends the copies of a packet. x, a copy or the original, becomes its frame. With x nil
// the packet has no frame: a task has dropped or taken a copy, and that copy counts for the
// packet.
func (cg *cargo) keep(c *graph.Ctx, id int, x *packet.Buf) {
	p := &cg.packets[id]
	give := func(y *packet.Buf) {
		if y != nil && y != x {
			c.Discard(y)
			cg.held--
		}
	}
	for i := range int(p.branches) {
		l := &cg.lanes[id<<laneBits+i]
		if l.buf != p.original && !l.lent {
			give(l.buf)
		}
		l.take(nil)
	}
	if !p.lent {
		give(p.original)
	}
	cg.lanes[id<<laneBits].buf = x
	cg.sole(p)
}

// sole ends the branches of a packet.
func (cg *cargo) sole(p *inside) {
	p.original, p.branches, p.lent = nil, 0, false
	cg.promised -= int(p.promised) // later stages have what this one gives back
	p.promised = 0
}
