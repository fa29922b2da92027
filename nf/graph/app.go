package graph

import (
	"io"
	"math/rand/v2"
	"slices"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

// App is one function of the graph. Push must dispose of every Buf of b: emit
// it, drop it with a reason, punt it, or hold it (and count it, see Holder).
// The batch itself stays the caller's. Push runs on the worker's goroutine;
// it does not block, log, allocate or start goroutines.
type App interface {
	Push(c *Ctx, in int, b *packet.Batch)
}

// The optional interfaces of an App, and in Hooks what few apps do. All are called by the worker, between
// pushes.

// Ticker has a timer: Tick runs in the first breath at or after the time that
// it last returned (first: in the first breath), and returns when it wants to
// run again; clock.Never for not any more. Ctx.Wake has it run earlier.
type Ticker interface {
	Tick(c *Ctx) clock.Time
}

// Reconfigurer can take new arguments without losing its state. An app without it starts anew when its arguments change.
type Reconfigurer interface {
	// Takes reports whether the app can take these arguments while it runs; else it starts anew. It is called from any
	// goroutine.
	Takes(args Args) bool
	// Reconfigure takes them. An error leaves the app as it was.
	Reconfigure(args Args) error
}

// Flusher has its Flush called when packets went past the graph unseen (see
// port.Bypasser): what the app remembers of the traffic may be stale.
type Flusher interface {
	Flush(c *Ctx)
}

// Reporter shows the app's state as a value for encoding/json, which the caller may keep. The value is a *Gradual if the
// app must look at everything that it remembers to make it.
type Reporter interface {
	Report() any
}

// Gradual is a report that is made step by step, between breaths of the app's worker.
type Gradual struct {
	// Look looks at the next n places, or a few more; false: there are none left.
	Look func(n int) (more bool)
	// Value is the report, once Look has returned false.
	Value func() any
}

// Report makes an app's report at once. The caller owns the app's worker.
func Report(a Reporter) any {
	v := a.Report()
	if g, ok := v.(*Gradual); ok {
		for g.Look(lookPlaces) {
		}
		v = g.Value()
	}
	return v
}

// lookPlaces is how many places a Gradual looks at between two breaths: some microseconds.
const lookPlaces = 256

// Holder keeps Bufs between breaths.
type Holder interface {
	// Held is how many. A Buf that the app made by other means than Ctx.Get does not count as held before it was emitted.
	Held() int
	// Stop emits or drops every held Buf. It is called before the app is taken out of a running graph and when the
	// instance closes. An app that takes its place sees its first frame when all workers have stopped the old one.
	Stop(c *Ctx)
}

// Saver has a state that can be moved into another app of its kind, in another
// instance or on another machine. Times are saved as what is left of them. What
// the instances of all workers share is saved by each of them: one is enough.
type Saver interface {
	// Save writes the state.
	Save(w io.Writer) error
	// Load replaces the app's state by what Save has written. Remaining times count
	// from now, or from the app's first breath. After an error (the data are damaged,
	// or do not fit the arguments) the app has the state that it had before.
	Load(r io.Reader) error
}

// Wanter says which frames of its ports the app must see; what no app of the
// graph wants may cross in the kernel. An app without it wants everything.
type Wanter interface {
	Wants() port.Filter
}

// Reason is an index into a Kind's Reasons.
type Reason uint16

// Kind is a sort of app: what a Spec's "kind" names. Its declaration is also
// its documentation.
type Kind struct {
	Name    string
	Summary string // one line
	Doc     string // paragraphs
	In, Out []string
	Params  []Param
	// Counters and Reasons are the app's own; every app also has those of the
	// framework.
	Counters []counter.Def
	Reasons  []counter.Def
	// Describe words a trace record that an app of the kind wrote (Ctx.Trace); nil: its numbers are shown.
	Describe func(app App, kind uint16, args [4]uint64) string
	// Soft: apps of the kind can do without what they keep in Env.Memory. The graph asks Config.Memory
	// for NAME/record instead of NAME, so that a place for one app does not go to a soft one.
	Soft bool
	// Tables are the app's. Control is the control block of its P4 twin that has
	// them: what their names begin with in P4Info; "": the app's name.
	Tables  []table.Decl
	Control string
	// Declared, if not nil, takes the place of Tables: it returns the tables that an app has at the moment, for example those of the
	// program that it runs. None of them is a setting. Each has its present default action. Declared is called in the app's worker.
	// P4Runtime's native server does not show these tables.
	Declared func(App) []table.Decl
	// Inside, of a kind whose apps run others inside (Hooks.Inside), are the apps that run inside an app with
	// these arguments.
	Inside func(args Args) ([]InsideSpec, error)
	// Effects are what an app with these arguments does to packets, where it may be
	// a task of an app that runs others. nil: nothing is known of it.
	Effects func(args Args) effect.Effects
	// Memory reports whether an app with these arguments keeps anything in memory that
	// it is given (nf/memory); nil: it does not, if its effects are known.
	Memory func(args Args) bool
	// Decides, if not nil, is how many flows an app with these arguments may decide (Ctx.Decide); 0: it decides none.
	Decides func(args Args) int
	// Alone: instances do not share what they know. An outer app with several workers gives all frames of such an app inside to
	// the instance in the first worker. Env.Workers is 1 there.
	Alone bool
	// Note, if not nil, is what a user should know at start of an app with these
	// arguments, which are valid; "": nothing.
	Note func(args Args) string
	// New makes one instance for one worker. Errors name the argument.
	New func(env Env, args Args) (App, error)
	// Together, if not nil, checks all apps of the kind in one graph. It returns an error if they do not fit each other, or the
	// number of workers, though each app alone is right.
	Together func(apps map[string]Args, workers int) error
}

// Always is Kind.Effects of a kind whose effects do not depend on its arguments.
func Always(e effect.Effects) func(Args) effect.Effects {
	return func(Args) effect.Effects { return e }
}

// Param documents one argument of a Kind.
type Param = arg.Param

// Env is what a new app gets to know of its surroundings.
type Env struct {
	Name            string // the app's name in the Spec
	Worker, Workers int
	// Inside says that the app runs inside another one, where Ctx.Hand hands nothing over.
	Inside bool
	// Seed is the run's: what hashes are keyed with, so that nobody can choose what collides.
	Seed uint64
	// Clock is the graph's when it moves while a breath lasts; nil: time stands
	// still meanwhile, as in replay and in simulations.
	Clock clock.Clock
	// Share returns the value that make makes, made once for the app's
	// instances of all workers. The value must be safe to use from all of
	// them.
	Share func(make func() any) any
	// Memory, if not nil, yields so many bytes that outlive the process: the
	// app of the same name in the next process finds there what this one left,
	// whatever ended it. Zeros at first. One call an app, not one a worker.
	Memory func(size int) ([]byte, error)
	// Asked says that the app is only made to ask it what it wants (Wanter), and is then thrown away: it
	// may leave out what takes long to make.
	Asked bool
}

// Ctx is what an app sees of the breath that it runs in.
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

// Now is the time of the breath; it does not move while the breath lasts.
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

// Rebind is Bind for exactly these queue pairs: all others cross again.
func (c *Ctx) Rebind(q []port.QueuePair) error {
	return c.binders(func(b port.Binder) error { return b.Rebind(q) })
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

// Guards are the guards of the graph's ports, each once. An app that guards a word does so in
// all of them (port.Guarder; the app's Filter says Guarded). They may change when
// the app is flushed: it calls Guards then, and not on the packet path.
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

// Shared is what the instances of another app of the graph share (Env.Share), for apps that have something done by it: they agree on an
// interface. nil: there is no such app, or it shares nothing. Another value may take its place with each change of the graph, so that
// nobody keeps it beyond a breath.
func (c *Ctx) Shared(app string) any {
	if n := c.mover.graph.node(app); n != nil && n.share != nil {
		if v := n.share.v.Load(); v != nil {
			return *v
		}
	}
	return nil
}

// Rand is the run's seeded source of randomness.
func (c *Ctx) Rand() *rand.Rand { return c.rand }

// Count adds n to the app's counter id.
func (c *Ctx) Count(id counter.ID, n uint64) { c.node.counters.Add(id, n) }

// Set gives the app's counter id the value v: for gauges.
func (c *Ctx) Set(id counter.ID, v uint64) { c.node.counters.Set(id, v) }

// Get is an empty frame for the app to fill and emit, counted as generated;
// nil when the worker's pool (that of its first port) is empty.
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

// Copy is a frame as long as b, at the same place of its slot and with the same Meta, for the
// app to fill; counted as generated. It is nil when the pool of b is empty.
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

// Mark notes verdict and reason on a frame that goes on: the reason is
// counted as a drop's would be, and is shown by replay and trace.
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

// Room is how many frames output out takes before its link is full.
func (c *Ctx) Room(out int) int {
	if l := c.node.out[out]; l != nil {
		return cap(l.q) - len(l.q)
	}
	return linkCap
}

// EmitAll sends frames to output out, in their order, as Emit does each of them.
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

// Traced reports whether b is traced: apps ask before they gather arguments.
func (c *Ctx) Traced(b *packet.Buf) bool { return b.Trace != 0 && c.tracer != nil }

// Trace adds a record of the app's kind about b; nothing when b is not traced.
func (c *Ctx) Trace(b *packet.Buf, kind uint16, args ...uint64) {
	if c.Traced(b) {
		c.tracer.add(c, b, kind, args...)
	}
}
