package graph

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// PanicError says that an app panicked. The instance has stopped, unless the app runs inside another one (Inside.Over).
type PanicError struct {
	App, Kind string
	Value     any
	At        string // FILE:LINE
	Frames    int    // frames that the app held, and that were dropped
	Stack     []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("app %s (%s) panicked: %v", e.App, e.Kind, e.Value)
}

// mover moves frames through one layout, a breath at a time. It has no thread of its own: either its worker calls it, or the caller
// of Step or Push does, never two at the same time.
type mover struct {
	index  int
	clk    clock.Clock
	timed  bool // clk moves while a breath lasts: batches can be timed
	ctx    Ctx
	pool   *packet.Pool
	graph  *layout
	punt   *ring
	ahead  *ahead // nil: no flow is run ahead of the graph
	batch  packet.Batch
	tick   clock.Time      // the earliest next of the nodes
	past   books           // sums of nodes that were removed
	err    error           // why the worker stopped
	tracer *tracer         // kept while ctx.tracer is off
	traced chan<- struct{} // gets a token when all frames of the trace job have come
	all    []*worker       // apps hand frames to each other through them
	staged []staged        // rings to others in this breath
	atEnd  atomic.Bool     // of the run: see allAtEnd
}

// recover turns an app's panic into the worker's error.
func (w *mover) recover() {
	v := recover()
	if v == nil {
		return
	}
	name, kind := "-", "framework"
	if n := w.ctx.node; n != nil {
		name, kind = n.name, n.kind.Name
	}
	if w.err == nil {
		w.err = &PanicError{App: name, Kind: kind, Value: v, At: panicAt(), Stack: debug.Stack()}
	}
}

// step takes one breath at time now, and turns a panic of an app into an error; see Instance.Step.
func (w *mover) step(now clock.Time) (moved int, err error) {
	if w.err != nil {
		return 0, w.err
	}
	defer func() { err = w.err }()
	defer w.recover()
	moved = w.breath(now)
	return moved, nil
}

// breath runs the timers that are due, moves one batch of every queue through the apps in their order, and sends
// the frames. It returns how many frames were received, sent, taken from other workers, or emitted by timers.
func (w *mover) breath(now clock.Time) (moved int) {
	c := &w.ctx
	c.now = now
	g := w.graph
	if w.ahead != nil {
		w.ahead.begin(now)
	}
	w.checkBypass()
	if w.tick <= now {
		moved += w.runTicks(now)
	}
	moved += w.take()
	for _, p := range g.ports {
		for i := range p.queues {
			if !p.eof[i] {
				moved += w.rx(p, i)
			}
		}
	}
	moved += w.drain()
	return moved
}

// drain moves the frames that wait on links to their ends, and publishes the counters.
func (w *mover) drain() (moved int) {
	g := w.graph
	for _, n := range g.nodes {
		w.deliverTo(n)
	}
	// Apps that are linked both ways: there and back, at most as often as
	// there are apps; what goes on from one to the other waits on its link.
	for pass := 0; g.back && pass < len(g.nodes); pass++ {
		some := false
		if pass%2 == 0 {
			for _, n := range slices.Backward(g.nodes) {
				some = w.deliverTo(n) || some
			}
		} else {
			for _, n := range g.nodes {
				some = w.deliverTo(n) || some
			}
		}
		if !some {
			break
		}
	}
	for _, p := range g.ports {
		for _, l := range p.in {
			if len(l.q) > 0 {
				moved += w.tx(p, l)
			}
		}
	}
	if t := w.ctx.tracer; t != nil && !w.tracing() && t.open == 0 {
		w.ctx.tracer = nil
	}
	w.publish()
	w.commit()
	w.ctx.node = nil
	return moved
}

// tracing reports whether a trace still waits for frames. It signals the instance (traced) when a port has had all frames
// of its job.
func (w *mover) tracing() bool {
	on := false
	for _, p := range w.graph.ports {
		if p.mark != nil {
			if p.mark.left.Load() > 0 {
				on = true
			} else {
				p.mark = nil
				select {
				case w.traced <- struct{}{}:
				default: // the token before was not taken yet
				}
			}
		}
	}
	return on
}

func (w *mover) commit() {
	for _, n := range w.graph.all {
		n.commit()
	}
	for _, l := range w.graph.links {
		l.stats.Commit()
	}
}

func (w *mover) runTicks(now clock.Time) (moved int) {
	c := &w.ctx
	w.tick = clock.Never
	for _, n := range w.graph.nodes {
		if n.inside != nil {
			continue // the outer app runs its timer
		}
		if n.next <= now {
			c.node = n
			out := n.stats.Live(statOut)
			n.next = n.ticker.Tick(c)
			if n.next <= now {
				n.next = now + 1
			}
			moved += int(n.stats.Live(statOut) - out)
		}
		w.tick = min(w.tick, n.next)
	}
	return moved
}

// checkBypass flushes the apps when frames went past them.
func (w *mover) checkBypass() {
	for _, p := range w.graph.ports {
		for i, b := range p.bypass {
			if b == nil {
				continue
			}
			if m := b.Missed(); m != p.missed[i] {
				p.missed[i] = m
				w.flush()
			}
		}
	}
}

func (w *mover) flush() {
	c := &w.ctx
	for _, n := range w.graph.nodes {
		if f, ok := n.app.(Flusher); ok {
			c.node = n
			f.Flush(c)
		}
	}
}

// rx receives a batch from queue i of port p, and delivers it over the port's link.
func (w *mover) rx(p *portNode, i int) int {
	b := &w.batch
	b.Reset()
	k, err := p.queues[i].Rx(b)
	if err != nil {
		p.eof[i] = true
		if !errors.Is(err, io.EOF) && w.err == nil {
			w.err = fmt.Errorf("port %s: receive: %w", p.queues[i].Name(), err)
		}
	}
	if k == 0 {
		return 0
	}
	// The bypass counter has all frames that crossed unseen before these by now.
	w.checkBypass()
	w.received(p, b)
	return k
}

// received carries a batch over the port's link.
func (w *mover) received(p *portNode, b *packet.Batch) {
	c := &w.ctx
	c.node = &p.node
	for _, x := range b.Bufs() {
		x.Counted = true
	}
	if p.mark != nil && c.tracer != nil {
		for _, x := range b.Bufs() {
			c.tracer.start(c, x, p.mark)
		}
	}
	if w.ahead != nil {
		w.ahead.draft(p, b)
	}
	k := b.Len()
	p.stats.Add(statIn, uint64(k))
	p.stats.Add(statCalls, 1)
	l := p.out[0]
	switch {
	case l == nil:
		for _, x := range b.Bufs() {
			c.drop(x, p.framework(reasonUnlinked))
		}
	case l.to != nil:
		if l.tap != nil {
			for _, x := range b.Bufs() {
				l.tap.add(x, c.now, p.index)
			}
		}
		l.stats.Add(linkPackets, uint64(k))
		w.push(l.to, l.to.app, l.in, b)
	default:
		room := cap(l.q) - len(l.q)
		l.q = append(l.q, b.Bufs()[:min(k, room)]...)
		for i := room; i < k; i++ {
			l.stats.Add(linkDrops, 1)
			c.drop(b.At(i), p.framework(reasonLinkFull))
		}
	}
	b.Reset()
}

// deliverTo pushes the frames that wait on an app's links into the app. It returns false if no frame waits.
func (w *mover) deliverTo(n *node) bool {
	some := false
	for _, l := range n.in {
		if len(l.q) > 0 {
			w.deliver(l)
			some = true
		}
	}
	return some
}

// deliver pushes the frames that wait on a link into the app at the link's end.
func (w *mover) deliver(l *link) {
	b := &w.batch
	if l.tap != nil {
		w.copyTo(l, 0)
	}
	l.stats.Add(linkPackets, uint64(len(l.q)))
	for at := 0; at < len(l.q); {
		b.Reset()
		at += b.Append(l.q[at:])
		w.push(l.to, l.to.app, l.in, b)
	}
	b.Reset()
	l.q = l.q[:0]
}

func (w *mover) copyTo(l *link, from int) {
	for _, x := range l.q[from:] {
		l.tap.add(x, w.ctx.now, l.fromNode.index)
	}
}

// push gives a batch to the app of node n, or to one of the instances that the node stands for.
func (w *mover) push(n *node, app App, in int, b *packet.Batch) {
	c := &w.ctx
	k := uint64(b.Len())
	n.stats.Add(statIn, k)
	n.stats.Add(statCalls, 1)
	c.node = n
	if c.tracer != nil {
		for _, x := range b.Bufs() {
			if x.Trace != 0 {
				c.tracer.add(c, x, TraceIn, uint64(in))
			}
		}
	}
	if n.calls++; n.calls%sampleEvery != 1 || !w.timed {
		app.Push(c, in, b)
		return
	}
	start := w.clk.Now()
	app.Push(c, in, b)
	n.stats.Add(statSampledNanos, uint64(w.clk.Now()-start))
	n.stats.Add(statSampledPackets, k)
}

// tx sends the frames that wait on a link. Those that the port does not take stay.
func (w *mover) tx(p *portNode, l *link) int {
	c, b := &w.ctx, &w.batch
	c.node = &p.node
	if l.tap != nil {
		w.copyTo(l, l.tapped)
	}
	if w.ahead != nil && w.ahead.n > 0 {
		w.ahead.leaves(p, l.q)
	}
	sent := 0
	for sent < len(l.q) && !p.txClosed {
		b.Reset()
		k := b.Append(l.q[sent:])
		var n int
		var err error
		if c.tracer == nil {
			n, err = p.queues[0].Tx(b)
		} else {
			n, err = w.tracedTx(p, b)
		}
		sent += n
		if err != nil {
			p.txClosed = true
			if !errors.Is(err, port.ErrClosed) && w.err == nil {
				w.err = fmt.Errorf("port %s: transmit: %w", p.queues[0].Name(), err)
			}
		}
		if n < k {
			break
		}
	}
	b.Reset()
	p.stats.Add(statOut, uint64(sent))
	l.stats.Add(linkPackets, uint64(sent))
	left := copy(l.q, l.q[sent:])
	l.q = l.q[:left]
	if p.txClosed {
		for _, x := range l.q {
			c.drop(x, p.framework(reasonPortClosed))
		}
		l.q = l.q[:0]
	}
	l.tapped = len(l.q)
	if d := uint64(len(l.q)); d != l.stats.Live(linkDepth) {
		l.stats.Set(linkDepth, d)
	}
	return sent
}

// tracedTx sends b, and ends the traces of the frames that the port takes. It copies their trace data before,
// because the port owns the frames afterwards.
func (w *mover) tracedTx(p *portNode, b *packet.Batch) (int, error) {
	type end struct {
		trace       uint32
		app, reason uint16
		verdict     packet.Verdict
	}
	var ends [packet.MaxBatch]end
	for i, x := range b.Bufs() {
		ends[i] = end{x.Trace, x.ReasonApp, x.Reason, x.Verdict}
	}
	n, err := p.queues[0].Tx(b)
	for _, e := range ends[:n] {
		if e.trace != 0 {
			w.ctx.tracer.finish(&w.ctx, e.trace, TraceTx, e.app, e.reason, e.verdict)
		}
	}
	return n, err
}

// adopt takes over a layout: frames on removed links are dropped, the sums of removed nodes go
// to past.
func (w *mover) adopt(g *layout) {
	c := &w.ctx
	old := w.graph
	for _, o := range g.outers {
		c.node = o.node
		o.node.hooks.Inside(c, o.apps)
	}
	if old != nil {
		w.drain() // frames that stopped apps have emitted
		for _, n := range old.all {
			if g.node(n.name) != n {
				w.stopApp(n)
			}
		}
		for _, l := range old.links {
			kept := false
			for _, k := range g.links {
				kept = kept || k == l
			}
			if !kept {
				w.clear(l)
				if next := g.link(l.edge); next != nil {
					next.tap = l.tap // the link was replaced: its tap goes on
				}
			}
		}
		for i, n := range old.all {
			if g.node(n.name) != n {
				w.past.held += uint64(n.held())
				n.commit()
				w.past.addNode(n, i >= len(old.nodes))
			}
		}
	}
	for i, n := range g.all {
		n.out, n.in = g.outs[i], g.ins[i]
	}
	w.graph = g
	w.staged = make([]staged, 0, len(g.relays)*len(w.all))
	// The old layout must not keep frames and memory alive.
	w.batch, w.pool = packet.Batch{}, nil
	if len(g.ports) > 0 {
		w.pool = g.ports[0].queues[0].Pool()
	}
	w.tick = 0
	w.commit()
	c.node = nil
}

// stopApp stops an app: the frames that it held go over its links, or are dropped.
func (w *mover) stopApp(n *node) {
	w.endRelay(n)
	if h, ok := n.app.(Holder); ok {
		w.ctx.node = n
		h.Stop(&w.ctx)
		w.drain()
	}
}

// clear drops the frames that wait on a link: a port has not taken them yet, or apps that are linked
// both ways were still passing them on.
func (w *mover) clear(l *link) {
	n := l.to
	if l.toPort != nil {
		n = &l.toPort.node
	}
	w.ctx.node = n
	if l.to != nil {
		n.stats.Add(statIn, uint64(len(l.q)))
	}
	for _, x := range l.q {
		w.ctx.drop(x, n.framework(reasonStopped))
	}
	l.q = l.q[:0]
}

// sums returns the sums of the worker's counters, with those of removed nodes.
func (w *mover) sums() books {
	b := w.past
	for i, n := range w.graph.all {
		b.held += uint64(n.held()) // if the app panics, the frames that it holds are dropped
		b.addNode(n, i >= len(w.graph.nodes))
	}
	for _, l := range w.graph.links {
		b.held += uint64(len(l.q))
	}
	return b
}
