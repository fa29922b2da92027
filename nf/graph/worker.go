package graph

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// maxSleep bounds a worker's sleep, so that ports are looked at, and orders from outside
// are done.
const maxSleep = 10_000_000 // ns

// shortSleep is what a sleep costs at the least, with the timer's slack: for a timer
// that is due before, the worker stays awake.
const shortSleep = 50_000 // ns

// mailSpin is how long a worker without frames stays awake after an order from outside: a
// caller with many orders gives one at a time.
const mailSpin = 200_000 // ns

// pollLook is how often a worker that never sleeps calls its ports' poll.Idler, which other workers call before they
// sleep.
const pollLook = 1_000_000 // ns

// A worker with frames gives work from outside (Work) one slice after another, in all a part in workShare of its
// time. A slice is the longest that a frame waits. Slices are longer when no frame has moved for workIdle.
const (
	workSlice     = 8_000     // ns
	workIdleSlice = 100_000   // ns
	workIdle      = 1_000_000 // ns
	workShare     = 5
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

// worker runs one layout. Who holds mu may use all fields; see do.
type worker struct {
	index  int
	clk    clock.Clock
	timed  bool // clk moves while a breath lasts: batches can be timed
	ctx    Ctx
	pool   *packet.Pool
	graph  *layout
	punt   *ring
	batch  packet.Batch
	tick   clock.Time // the earliest next of the nodes
	past   books      // sums of nodes that were removed
	err    error      // why the worker stopped
	spinNs clock.Duration
	poll   bool            // the worker never sleeps
	tracer *tracer         // kept while ctx.tracer is off
	traced chan<- struct{} // gets a token when all frames of the trace job have come
	waits  []port.Port     // reused by wait
	all    []*worker
	staged []staged // rings to others in this breath
	bell   *bell
	atEnd  atomic.Bool // of the run: see allAtEnd
	stays  stays

	// mu makes Step and do exclude each other. A running worker holds it for
	// its whole run and looks at mailed between breaths.
	mu     sync.Mutex
	mailMu sync.Mutex
	mail   []*letter
	mailed atomic.Bool
	live   bool         // guarded by mailMu: the worker reads its mail
	thread atomic.Int32 // of the run: the number of its thread

	// Of the run:
	works   []*letter  // begun and not done, in turns
	workDue clock.Time // not before, while there are frames
}

// letter is an order: fn is called, with a slice of time, again and again while it
// returns true. An order that is not long is called once.
type letter struct {
	fn   func(clock.Duration) bool
	long bool
	done chan struct{}
}

// do runs fn while the worker is between two breaths, and returns when it is
// done. The worker never waits for the caller.
func (w *worker) do(fn func()) {
	w.post(letter{fn: func(clock.Duration) bool {
		fn()
		return false
	}})
}

// post has the worker carry out an order, and returns when the order is done.
func (w *worker) post(l letter) {
	w.mailMu.Lock()
	if w.live {
		l.done = make(chan struct{})
		w.mail = append(w.mail, &l)
		w.mailed.Store(true)
		w.mailMu.Unlock()
		w.bell.ring()
		<-l.done
		return
	}
	// mu is locked before mailMu is unlocked: a run that begins in between would keep mu.
	w.mu.Lock()
	w.mailMu.Unlock()
	defer w.mu.Unlock()
	for w.begin(&l, workIdleSlice) {
	}
}

// begin gives an order a slice, and reports whether it needs more.
func (w *worker) begin(l *letter, slice clock.Duration) (more bool) {
	defer w.recover()
	return l.fn(slice)
}

// readMail carries out the orders of others.
func (w *worker) readMail(last bool) {
	w.mailMu.Lock()
	mail := w.mail
	w.mail = nil
	w.mailed.Store(false)
	if last {
		w.live = false
	}
	w.mailMu.Unlock()
	for _, l := range mail {
		if l.long {
			w.works = append(w.works, l)
			continue
		}
		for w.begin(l, workIdleSlice) {
		}
		close(l.done)
	}
	for last && len(w.works) > 0 {
		w.turn(workIdleSlice)
	}
}

// turn gives a slice to the order whose turn it is, and reports whether the order is done.
func (w *worker) turn(slice clock.Duration) (done bool) {
	l := w.works[0]
	w.works = append(w.works[:0], w.works[1:]...)
	if w.begin(l, slice) {
		w.works = append(w.works, l)
		return false
	}
	close(l.done)
	return true
}

// share gives orders from outside their share of the time, and reports whether one of
// them is done; moved is when a frame moved last.
func (w *worker) share(now, moved clock.Time) (done bool) {
	if now.Sub(moved) > workIdle {
		return w.turn(workIdleSlice)
	}
	if now < w.workDue {
		return false
	}
	start := w.clk.Now()
	done = w.turn(workSlice)
	end := w.clk.Now()
	w.workDue = end.Add((workShare - 1) * end.Sub(start))
	return done
}

// recover turns an app's panic into the worker's error.
func (w *worker) recover() {
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

// step is one breath in somebody else's time; see Instance.Step.
func (w *worker) step(now clock.Time) (moved int, err error) {
	if w.err != nil {
		return 0, w.err
	}
	defer func() { err = w.err }()
	defer w.recover()
	moved = w.breath(now)
	return moved, nil
}

// run breathes until stop is set, an error occurs, or every port is at its
// end and nothing is left to send.
func (w *worker) run(ctx context.Context, stop *atomic.Bool, cfg *Config) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.readMail(true)
	restore, err := cfg.settle(w.index)
	defer restore()
	if err != nil {
		return err
	}
	w.thread.Store(int32(threadID()))
	// The scheduler would take long to come back to a locked thread.
	alone := runtime.GOMAXPROCS(0) <= len(w.all)
	busy := w.clk.Now()
	moving, looked := busy.Add(-2*workIdle), busy
	// The last breath began at took and moved so many frames; they are counted at the next look at the clock.
	took, frames := clock.Time(0), 0
	for !stop.Load() && w.err == nil {
		if w.mailed.Load() {
			if frames > 0 {
				w.stays.add(w.clk.Now().Sub(took), frames)
				frames = 0
			}
			w.readMail(false)
			if alone {
				runtime.Gosched() // the caller whose order is done may wait for this core
			}
			busy = w.clk.Now() // the caller may have another order at once
		}
		now := w.clk.Now()
		if frames > 0 {
			w.stays.add(now.Sub(took), frames)
		}
		moved, err := w.step(now)
		if err != nil {
			return err
		}
		took, frames = now, moved
		if moved > 0 {
			moving = now
		}
		if len(w.works) > 0 {
			if frames > 0 {
				w.stays.add(w.clk.Now().Sub(took), frames)
				frames = 0
			}
			if w.share(now, moving) && alone {
				runtime.Gosched()
			}
			busy = w.clk.Now()
			continue
		}
		if moved > 0 {
			busy = max(busy, now)
			continue
		}
		if w.finished() {
			return nil
		}
		if now.Sub(busy) < w.spinNs || w.poll && now.Sub(looked) < pollLook {
			continue
		}
		if w.poll {
			looked = now
			if err := w.wait(ctx, stop, 0); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		d := clock.Duration(maxSleep)
		if until := w.tick.Sub(now); w.tick != clock.Never && until < d {
			if until < shortSleep {
				continue
			}
			d = until
		}
		if w.backlog() || w.handedOver() > 0 || w.atEnd.Load() {
			d = min(d, maxSleep/100)
		}
		if d > 0 {
			if err := w.wait(ctx, stop, d); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return w.err
}

// backlog reports whether a port has not taken all frames that it was given.
func (w *worker) backlog() bool {
	for _, l := range w.graph.links {
		if len(l.q) > 0 {
			return true
		}
	}
	return false
}

// finished reports whether no frame will come any more and none waits.
func (w *worker) finished() bool {
	if !w.drained() {
		w.goesOn()
		return false
	}
	return w.allAtEnd()
}

// drained reports whether no frame will come any more from a port and none waits.
func (w *worker) drained() bool {
	if len(w.graph.ports) == 0 {
		return false
	}
	for _, p := range w.graph.ports {
		for _, eof := range p.eof {
			if !eof {
				return false
			}
		}
	}
	if w.backlog() {
		return false
	}
	for _, n := range w.graph.nodes {
		if n.held() > 0 && w.tick != clock.Never {
			return false // a timer may emit the frames that the app holds
		}
	}
	return true
}

// wait sleeps until a port may have something to do, somebody rings, or for d.
func (w *worker) wait(ctx context.Context, stop *atomic.Bool, d clock.Duration) error {
	w.bell.asleep.Store(true)
	defer w.bell.awake()
	// Orders and frames may have come before anybody could know that the worker sleeps. Without a buffer for handed
	// frames it sleeps all the same.
	if w.mailed.Load() || stop.Load() || w.handedOver() > 0 && w.pool != nil && w.pool.Free() > 0 {
		return nil
	}
	return w.sleep(ctx, d)
}

// sleep waits for the ports and the bell. Ports that cannot be waited for together are waited for in turn, briefly.
func (w *worker) sleep(ctx context.Context, d clock.Duration) error {
	w.waits = w.waits[:0]
	for _, p := range w.graph.ports {
		for i, q := range p.queues {
			if !p.eof[i] {
				w.waits = append(w.waits, q)
			}
		}
	}
	queues := len(w.waits)
	if queues == 0 {
		w.bell.wait(ctx, d)
		return nil
	}
	first := w.waits[0]
	if w.bell.fd >= 0 {
		w.waits = append(w.waits, w.bell)
	}
	if m, ok := first.(port.MultiWaiter); ok && len(w.waits) > 1 {
		if ok, err := m.WaitAny(ctx, w.waits[1:], d); ok {
			return waitErr(nil, err)
		}
	}
	if len(w.graph.relays) > 0 {
		d = min(d, maxSleep/100) // nothing can wake the worker
	}
	if queues == 1 {
		return waitErr(first, first.Wait(ctx, d))
	}
	each := min(d, maxSleep/100) / clock.Duration(queues)
	for _, q := range w.waits[:queues] {
		if err := waitErr(q, q.Wait(ctx, each)); err != nil {
			return err
		}
	}
	runtime.Gosched()
	return nil
}

// waitErr is an error of waiting for q; q is nil when the worker waited for several ports, and err names
// the port.
func waitErr(q port.Port, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if q == nil {
		return err
	}
	return fmt.Errorf("port %s: %w", q.Name(), err)
}

// breath moves what waits: timers, then one batch of every queue through the
// apps in order, then out.
func (w *worker) breath(now clock.Time) (moved int) {
	c := &w.ctx
	c.now = now
	g := w.graph
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
func (w *worker) drain() (moved int) {
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
func (w *worker) tracing() bool {
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

func (w *worker) commit() {
	for _, n := range w.graph.all {
		n.commit()
	}
	for _, l := range w.graph.links {
		l.stats.Commit()
	}
}

func (w *worker) runTicks(now clock.Time) (moved int) {
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
func (w *worker) checkBypass() {
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

func (w *worker) flush() {
	c := &w.ctx
	for _, n := range w.graph.nodes {
		if f, ok := n.app.(Flusher); ok {
			c.node = n
			f.Flush(c)
		}
	}
}

// rx takes a batch from a queue, and delivers it over the port's link.
func (w *worker) rx(p *portNode, i int) int {
	c, b := &w.ctx, &w.batch
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
	c.node = &p.node
	for _, x := range b.Bufs() {
		x.Counted = true
	}
	if p.mark != nil && c.tracer != nil {
		for _, x := range b.Bufs() {
			c.tracer.start(c, x, p.mark)
		}
	}
	w.received(p, b)
	return k
}

// received carries a batch over the port's link.
func (w *worker) received(p *portNode, b *packet.Batch) {
	c := &w.ctx
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

// deliverTo pushes what waits on an app's links into it; false when nothing did.
func (w *worker) deliverTo(n *node) bool {
	some := false
	for _, l := range n.in {
		if len(l.q) > 0 {
			w.deliver(l)
			some = true
		}
	}
	return some
}

// deliver pushes what waits on a link into the app at its end.
func (w *worker) deliver(l *link) {
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

func (w *worker) copyTo(l *link, from int) {
	for _, x := range l.q[from:] {
		l.tap.add(x, w.ctx.now, l.fromNode.index)
	}
}

// push gives a batch to an app, that of node n or one of those that it stands for.
func (w *worker) push(n *node, app App, in int, b *packet.Batch) {
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
func (w *worker) tx(p *portNode, l *link) int {
	c, b := &w.ctx, &w.batch
	c.node = &p.node
	if l.tap != nil {
		w.copyTo(l, l.tapped)
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

// tracedTx notes which traced frames the port takes: they are the port's
// afterwards.
func (w *worker) tracedTx(p *portNode, b *packet.Batch) (int, error) {
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
func (w *worker) adopt(g *layout) {
	c := &w.ctx
	old := w.graph
	for _, o := range g.outers {
		c.node = o.node
		o.node.app.(Outer).Inside(c, o.apps)
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
	w.batch, w.waits = packet.Batch{}, nil
	w.pool = nil
	if len(g.ports) > 0 {
		w.pool = g.ports[0].queues[0].Pool()
	}
	w.tick = 0
	w.commit()
	c.node = nil
}

// stopApp stops an app: the frames that it held go over its links, or are dropped.
func (w *worker) stopApp(n *node) {
	w.endRelay(n)
	if h, ok := n.app.(Holder); ok {
		w.ctx.node = n
		h.Stop(&w.ctx)
		w.drain()
	}
}

// clear drops the frames that wait on a link: a port has not taken them yet, or apps that are linked
// both ways were still passing them on.
func (w *worker) clear(l *link) {
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

// sums are the worker's books.
func (w *worker) sums() books {
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
