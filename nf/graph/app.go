package graph

import (
	"io"
	"math/rand/v2"
	"slices"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

// App is one function of the graph. Push must dispose of every Buf of b: emit
// it, drop it with a reason, punt it, or hold it (and count it, see Holder).
// The caller owns the batch itself. Push runs on the worker's goroutine;
// it must not block, log, allocate or start goroutines.
type App interface {
	Push(c *Ctx, in int, b *packet.Batch)
}

// The optional interfaces of an App, and in Hooks what few apps do. All are called by the worker, between
// pushes.

// Ticker is an app with a timer. Tick runs in the app's first breath, and then in the first breath at or
// after the time that its last call returned. It returns the time of its next run, or clock.Never for
// none. Ctx.Wake makes Tick run earlier.
type Ticker interface {
	Tick(c *Ctx) clock.Time
}

// Reconfigurer is an app that can take new arguments without losing its state. Any other app starts anew when its
// arguments change.
type Reconfigurer interface {
	// Takes reports whether the app can take these arguments while it runs; otherwise the app starts anew. Takes is
	// called from any goroutine.
	Takes(args Args) bool
	// Reconfigure takes new arguments. After an error the app is as it was before.
	Reconfigure(args Args) error
}

// Flusher is an app whose Flush is called when packets went past the graph unseen (see
// port.Bypasser): the app's knowledge of the traffic may be stale.
type Flusher interface {
	Flush(c *Ctx)
}

// Reporter is an app that shows its state as a value for encoding/json, which the caller may keep. Report returns a
// *Gradual instead if the app must look at everything that it remembers to make the value.
type Reporter interface {
	Report() any
}

// Gradual is a report that is made step by step, between breaths of the app's worker.
type Gradual struct {
	// Look looks at the next n places, or a few more, and reports whether places are left.
	Look func(n int) (more bool)
	// Value returns the report. It may be called once Look has returned false.
	Value func() any
}

// Report makes an app's report in one go. Only the owner of the app's worker may call it.
func Report(a Reporter) any {
	v := a.Report()
	if g, ok := v.(*Gradual); ok {
		for g.Look(lookPlaces) {
		}
		v = g.Value()
	}
	return v
}

// lookPlaces is the number of places that a Gradual looks at between two breaths, which takes some microseconds.
const lookPlaces = 256

// Holder is an app that keeps Bufs between breaths.
type Holder interface {
	// Held returns the number of held Bufs, without those that the app made by other means than Ctx.Get and has not
	// emitted yet.
	Held() int
	// Stop emits or drops every held Buf. It is called before the app is removed from a running graph and when the
	// instance closes. A successor of the app gets its first frame after all workers have stopped the old app.
	Stop(c *Ctx)
}

// Saver is an app whose state can be moved into another app of its kind, in another
// instance or on another machine. Deadlines are saved as the time that remains. State that
// all workers share is saved by each worker's app: saving one of them is enough.
type Saver interface {
	// Save writes the state.
	Save(w io.Writer) error
	// Load replaces the app's state by what Save has written. Remaining times count
	// from now, or from the app's first breath. After an error (the data are damaged,
	// or do not fit the arguments) the app has the state that it had before.
	Load(r io.Reader) error
}

// Wanter is an app that says which frames it must see. Frames that no app of the
// graph wants may cross in the kernel. An app that is no Wanter wants all frames.
type Wanter interface {
	Wants() port.Filter
}

// Reason is an index into a Kind's Reasons.
type Reason uint16

// Kind declares a sort of app, which a Spec names as "kind". The declaration is also
// the documentation of the apps.
type Kind struct {
	Name    string
	Summary string // one line
	Doc     string // paragraphs
	In, Out []string
	Params  []Param
	// Counters and Reasons are those that the kind adds to the ones of the framework,
	// which every app has.
	Counters []counter.Def
	Reasons  []counter.Def
	// Describe returns the text of a trace record that an app of the kind wrote (Ctx.Trace). If it is nil, the record's
	// numbers are shown.
	Describe func(app App, kind uint16, args [4]uint64) string
	// Soft says that apps of the kind can do without Env.Memory. The graph asks Config.Memory for NAME/record
	// instead of NAME, so that memory for a single app does not go to a soft one.
	Soft bool
	// Tables are the tables of the app. Control is the control block that has them in the P4 twin: their
	// names in P4Info begin with it. If Control is "", they begin with the app's name.
	Tables  []table.Decl
	Control string
	// Declared, if not nil, takes the place of Tables: it returns the tables that an app has at the moment, for example those of the
	// program that it runs. None of them is a setting. Each has its present default action. Declared is called in the app's worker.
	// P4Runtime's native server does not show these tables.
	Declared func(App) []table.Decl
	// Inside is for a kind whose apps run other apps inside (Hooks.Inside): it returns the inner apps of an app
	// with these arguments.
	Inside func(args Args) ([]InsideSpec, error)
	// Effects returns what an app with these arguments does to packets, for apps that may be
	// tasks of an outer app. If it is nil, nothing is known of the effects.
	Effects func(args Args) effect.Effects
	// Memory reports whether an app with these arguments uses memory that it is given (nf/memory). If Memory
	// is nil, an app with known effects does not.
	Memory func(args Args) bool
	// Decides, if not nil, returns the largest number of flows that an app with these arguments decides (Ctx.Decide).
	Decides func(args Args) int
	// Alone says that the instances of an app do not share their state. An outer app with several workers therefore
	// gives all frames for such an inner app to the instance in the first worker, where Env.Workers is 1.
	Alone bool
	// Before names kinds whose apps change what an app of this kind goes by. Spec.Notes has a remark where frames from the last
	// output of such an app come to the first input of an app of this kind.
	Before []string
	// Note, if not nil, returns a remark for the user at the start of an app with these valid
	// arguments, or "".
	Note func(args Args) string
	// New makes one instance for one worker. Errors name the argument.
	New func(env Env, args Args) (App, error)
	// Together, if not nil, checks all apps of the kind in one graph. It returns an error if apps that are valid
	// alone do not fit each other or the number of workers.
	Together func(apps map[string]Args, workers int) error
}

// Always returns a Kind.Effects that returns e for all arguments.
func Always(e effect.Effects) func(Args) effect.Effects {
	return func(Args) effect.Effects { return e }
}

// Param documents one argument of a Kind.
type Param = arg.Param

// Env tells a new app about its surroundings.
type Env struct {
	Name            string // the app's name in the Spec
	Worker, Workers int
	// Inside says that the app runs inside another one, where Ctx.Hand hands nothing over.
	Inside bool
	// Seed is the seed of the run. Apps key hashes with it, so that no sender can choose keys that collide.
	Seed uint64
	// Clock is the clock of the graph. It is nil if time stands still during a breath, as in
	// replay and in simulations.
	Clock clock.Clock
	// Share calls make once for the instances of the app in all workers, and returns the
	// same value to each of them. The value must be safe for use by all workers at once.
	Share func(make func() any) any
	// Memory, if not nil, returns size bytes that outlive the process, all zero at first: the app of the
	// same name in the next process finds them as this process left them, however it ended. Memory may be
	// called once per app, not once per worker.
	Memory func(size int) ([]byte, error)
	// Journal, if not nil, opens the app's journal, which outlives the machine's boot, with so many slots; see
	// package journal. It is nil for an instance without one. Like Memory it may be called once per app.
	Journal func(slots int, arrange journal.Arrange) (journal.Journal, error)
	// Asked says that the app is made only to call its Wants (Wanter), and then thrown away: New may leave out
	// steps that take long.
	Asked bool
}

// Ctx gives an app access to its worker during a breath: the time, links, counters, buffers and traces.
type Ctx struct {
	now    clock.Time
	rand   *rand.Rand
	tracer *tracer // nil: no packet is traced
	node   *node
	mover  *mover
	onDrop func(b *packet.Buf)
}

// Reasons of the framework; they follow the kind's own in node.reasons.
const (
	reasonLinkFull = iota
	reasonUnlinked
	reasonPortClosed
	reasonNoController
	reasonPuntFull
	reasonStopped
	reasonTooLong
	reasonPanicked
	numFrameworkReasons
)

var frameworkReasons = [numFrameworkReasons]counter.Def{
	reasonLinkFull:     {Name: "link-full", Help: "the next app or port was too slow"},
	reasonUnlinked:     {Name: "unlinked", Help: "emitted to an output that nothing is linked to"},
	reasonPortClosed:   {Name: "port-closed", Help: "to be sent on a port that was closed"},
	reasonNoController: {Name: "no-controller", Help: "punted while no controller was listening"},
	reasonPuntFull:     {Name: "punt-full", Help: "punted faster than the controller listened"},
	reasonStopped:      {Name: "stopped", Help: "still on a link that was taken away, or when the instance was closed"},
	reasonTooLong:      {Name: "too-long", Help: "handed over by another worker, and longer than a buffer of this one"},
	reasonPanicked:     {Name: "panicked", Help: "the app, which runs inside another one, had it when it panicked, or was to get it afterwards"},
}

// Counters of every node.
const (
	statIn counter.ID = iota
	statOut
	statGenerated
	statDropped
	statPunted
	statHanded
	statTaken
	statCalls
	statSampledPackets
	statSampledNanos
	numStats
)

var nodeStats = [numStats]counter.Def{
	statIn:             {Name: "in", Help: "frames pushed into the app; of a port: received"},
	statOut:            {Name: "out", Help: "frames emitted; of a port: transmitted"},
	statGenerated:      {Name: "generated", Help: "frames that the app made"},
	statDropped:        {Name: "dropped", Help: "frames dropped, for all reasons"},
	statPunted:         {Name: "punted", Help: "frames given to the controller"},
	statHanded:         {Name: "handed", Help: "frames handed to the app's instance in another worker"},
	statTaken:          {Name: "taken", Help: "frames that the app's instance in another worker has handed over"},
	statCalls:          {Name: "calls", Help: "batches"},
	statSampledPackets: {Name: "sampled-packets", Help: "frames of the batches that were timed"},
	statSampledNanos:   {Name: "sampled-ns", Help: "time that they took"},
}

// sampleEvery: one batch of so many is timed, so that the two readings of the clock (about
// 100 ns) cost nothing.
const sampleEvery = 64

// linkCap is the most frames that wait on a link: eight batches, for apps that make
// several frames of one within a breath.
const linkCap = 8 * packet.MaxBatch

// Now returns the time of the breath. It stays the same during the breath.
func (c *Ctx) Now() clock.Time { return c.now }

// Wake makes the app's Tick run no later than at. Apps call it in Push, for a frame that needs a timer. It does nothing
// for an app that is no Ticker.
func (c *Ctx) Wake(at clock.Time) {
	n := c.node
	if n.inside != nil {
		n.next = min(n.next, at)
		n = n.inside.outer
	}
	if n.ticker != nil && at < n.next {
		n.next = at
		c.mover.tick = min(c.mover.tick, at)
	}
}

// Bind drops frames to queue pair q while no worker takes them, at all ports of the
// graph that know queue pairs (port.Binder); with on false it lets them cross again. The app's
// Filter says Bound. It is done when Bind returns.
func (c *Ctx) Bind(q port.QueuePair, on bool) error {
	return c.binders(func(b port.Binder) error { return b.Bind(q, on) })
}

// Rebind binds the queue pairs is; the frames of those of was that are not among them cross again. What other apps have
// bound stays bound.
func (c *Ctx) Rebind(was, is []port.QueuePair) error {
	return c.binders(func(b port.Binder) error { return b.Rebind(was, is) })
}

// binders calls f for each port.Binder, once an interface, because all queues of an interface share
// one set. It goes on after an error, and returns the first one.
func (c *Ctx) binders(do func(port.Binder) error) (err error) {
	for _, p := range c.mover.graph.ports {
		for _, q := range p.queues {
			if b, ok := q.(port.Binder); ok {
				if e := do(b); err == nil {
					err = e
				}
				break
			}
		}
	}
	return err
}

// Guards returns the guards of the graph's ports, each once. An app that guards a word does so in
// all of them (port.Guarder; the app's Filter says Guarded). The guards may change when the app is
// flushed: the app calls Guards again in Flush, and not on the packet path.
func (c *Ctx) Guards() (all []*port.Guard) {
	for _, p := range c.mover.graph.ports {
		for _, q := range p.queues {
			if b, ok := q.(port.Guarder); ok {
				if g, err := b.Guard(); err == nil && !slices.Contains(all, g) {
					all = append(all, g)
				}
				break
			}
		}
	}
	return all
}

// Shared returns the value that the instances of another app share (Env.Share), or nil if the graph has no such app
// or the app shares nothing. The caller and the other app must agree on the value's interface. The caller must not
// keep the value beyond the breath, because each change of the graph may replace it.
func (c *Ctx) Shared(app string) any {
	if n := c.mover.graph.node(app); n != nil && n.share != nil {
		if v := n.share.v.Load(); v != nil {
			return *v
		}
	}
	return nil
}

// Rand returns the worker's source of randomness, which the run's seed determines.
func (c *Ctx) Rand() *rand.Rand { return c.rand }

// Count adds n to the app's counter id.
func (c *Ctx) Count(id counter.ID, n uint64) { c.node.counters.Add(id, n) }

// Set gives the app's counter id the value v: for gauges.
func (c *Ctx) Set(id counter.ID, v uint64) { c.node.counters.Set(id, v) }

// Get returns an empty frame for the app to fill and emit, and counts it as generated. It returns
// nil if the worker's pool (the pool of its first port) is empty.
func (c *Ctx) Get() *packet.Buf {
	if c.mover.pool == nil {
		return nil
	}
	b := c.mover.pool.Get()
	if b == nil {
		return nil
	}
	b.Verdict, b.RxTime, b.Counted, b.Owner = packet.Generated, int64(c.now), true, c.node.owner
	c.node.stats.Add(statGenerated, 1)
	return b
}

// Copy returns a frame with the length and the Meta of b, at the same offset in its slot, and counts it
// as generated. The app must fill its bytes. Copy returns nil if the pool of b is empty.
func (c *Ctx) Copy(b *packet.Buf) *packet.Buf {
	x := b.Pool().Get()
	if x == nil {
		return nil
	}
	x.Meta = b.Meta
	x.Counted, x.Owner, x.Draft = true, c.node.owner, 0
	x.SetFrame(int(b.Off()), b.Len())
	c.node.stats.Add(statGenerated, 1)
	return x
}

// Discard gives back a frame from Get or Copy that the app does not need, and does not count it as
// generated any more. For a copy the app may give back the frame instead.
func (c *Ctx) Discard(b *packet.Buf) {
	b.Put() // before counting, because it may panic
	c.node.stats.Add(statGenerated, ^uint64(0))
}

// Mark sets verdict and reason of a frame that goes on. The reason is
// counted like the reason of a drop; replay and trace show it.
func (c *Ctx) Mark(b *packet.Buf, v packet.Verdict, r Reason) {
	b.Verdict, b.ReasonApp, b.Reason = v, c.node.index+1, uint16(r)
	c.node.reasons.Add(counter.ID(r), 1)
}

// Emit sends b to output out. When the link is full the frame is dropped and
// counted as link-full.
func (c *Ctx) Emit(out int, b *packet.Buf) {
	n := c.node
	l := n.out[out]
	if l == nil {
		c.drop(b, n.framework(reasonUnlinked))
		return
	}
	if len(l.q) == cap(l.q) {
		l.stats.Add(linkDrops, 1)
		c.drop(b, n.framework(reasonLinkFull))
		return
	}
	if !b.Counted {
		c.adopt(b)
	}
	if b.Draft != 0 {
		c.mover.ahead.pass(n, l, b)
	}
	k := len(l.q)
	l.q = l.q[:k+1]
	l.q[k] = b
	n.stats.Add(statOut, 1)
	if c.tracer != nil && b.Trace != 0 {
		c.tracer.add(c, b, TraceOut, uint64(out), 0)
	}
}

// Room returns the number of frames that output out takes before its link is full.
func (c *Ctx) Room(out int) int {
	if l := c.node.out[out]; l != nil {
		return cap(l.q) - len(l.q)
	}
	return linkCap
}

// EmitAll emits the frames to output out, in their order, as Emit would one by one.
func (c *Ctx) EmitAll(out int, bufs []*packet.Buf) {
	n := c.node
	l := n.out[out]
	if l == nil || c.tracer != nil || c.mover.ahead != nil || len(bufs) > cap(l.q)-len(l.q) {
		for _, b := range bufs {
			c.Emit(out, b)
		}
		return
	}
	for _, b := range bufs {
		if !b.Counted {
			c.adopt(b)
		}
	}
	l.q = append(l.q, bufs...)
	n.stats.Add(statOut, uint64(len(bufs)))
}

// adopt counts a frame that the app took from a pool by itself.
func (c *Ctx) adopt(b *packet.Buf) {
	b.Counted = true
	c.node.stats.Add(statGenerated, 1)
}

// Drop gives b back to its pool and counts reason r.
func (c *Ctx) Drop(b *packet.Buf, r Reason) { c.drop(b, r) }

func (c *Ctx) drop(b *packet.Buf, r Reason) {
	n := c.node
	if !b.Counted {
		c.adopt(b)
	}
	n.lost(b)
	if c.tracer != nil && b.Trace != 0 {
		c.tracer.end(c, b, TraceDrop, n.index+1, uint16(r))
	}
	if c.onDrop != nil {
		b.Verdict, b.ReasonApp, b.Reason = packet.Dropped, n.index+1, uint16(r)
		c.onDrop(b)
	}
	b.Put() // before counting, because it panics if the frame is free already
	n.reasons.Add(counter.ID(r), 1)
	n.stats.Add(statDropped, 1)
}

// Punt gives a copy of b to the controller and b back to its pool, and counts
// reason r. If there is no listener, or it is too slow, the frame is dropped and
// counted as no-controller or punt-full instead.
func (c *Ctx) Punt(b *packet.Buf, r Reason) {
	n := c.node
	ring := c.mover.punt
	if ring == nil {
		c.drop(b, n.framework(reasonNoController))
		return
	}
	if !b.Counted {
		c.adopt(b)
	}
	b.Verdict, b.ReasonApp, b.Reason = packet.Punted, n.index+1, uint16(r)
	if !ring.add(b, c.now, n.index) {
		c.drop(b, n.framework(reasonPuntFull))
		return
	}
	n.lost(b)
	if c.tracer != nil && b.Trace != 0 {
		c.tracer.end(c, b, TracePunt, n.index+1, uint16(r))
	}
	b.Put()
	n.reasons.Add(counter.ID(r), 1)
	n.stats.Add(statPunted, 1)
}

// Traced reports whether b is traced. Apps call it before they gather arguments for Trace.
func (c *Ctx) Traced(b *packet.Buf) bool { return b.Trace != 0 && c.tracer != nil }

// Trace adds a record about b to the trace; kind is a number that the app's kind defines. It does nothing if b is
// not traced.
func (c *Ctx) Trace(b *packet.Buf, kind uint16, args ...uint64) {
	if c.Traced(b) {
		c.tracer.add(c, b, kind, args...)
	}
}
