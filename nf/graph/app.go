package graph

import (
	"math/rand/v2"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/trace"
)

// App is one function of the graph. Push must dispose of every Buf of b: emit
// it, drop it with a reason, punt it, or hold it (and count it, see Holder).
// The batch itself stays the caller's. Push runs on the worker's goroutine;
// it does not block, log, allocate or start goroutines.
type App interface {
	Push(c *Ctx, in int, b *packet.Batch)
}

// The optional interfaces of an App. All are called by the worker, between
// pushes.

// Ticker has a timer: Tick runs in the first breath at or after the time that
// it last returned (first: in the first breath), and returns when it wants to
// run again; clock.Never for not any more.
type Ticker interface {
	Tick(c *Ctx) clock.Time
}

// Reconfigurer can take new arguments without losing its state. An error
// leaves it as it was. An app without it is rebuilt.
type Reconfigurer interface {
	Reconfigure(args Args) error
}

// Flusher is told when packets went past the graph unseen (see
// port.Bypasser): what it remembers of the traffic may be stale.
type Flusher interface {
	Flush(c *Ctx)
}

// Describer formats the trace records that the app wrote.
type Describer interface {
	Describe(kind uint16, args [4]uint64) string
}

// Reporter shows its state: a value for encoding/json, built for the caller.
type Reporter interface {
	Report() any
}

// Holder keeps Bufs between breaths.
type Holder interface {
	Held() int
}

// Wanter says which frames of its ports the app must see; what no app of the
// graph wants may cross in the kernel. An app without it wants everything.
type Wanter interface {
	Wants() port.Filter
}

// Args are an app's arguments, as written in a Spec: strings by name.
type Args map[string]string

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
	// New makes one instance for one worker. Errors name the argument.
	New func(env Env, args Args) (App, error)
}

// Param documents one argument of a Kind.
type Param struct {
	Name, Default, Help string
}

// Env is what an app may know of its surroundings when it is made.
type Env struct {
	Name            string // the app's name in the Spec
	Worker, Workers int
	// Share returns the value that make makes, made once for the app's
	// instances of all workers. What it holds must be safe to use from all of
	// them.
	Share func(make func() any) any
}

// Ctx is what an app sees of the breath that it runs in.
type Ctx struct {
	now   clock.Time
	rand  *rand.Rand
	trace *trace.Ring
	node  *node
}

// node is one app in one worker's graph.
type node struct {
	name     string
	index    uint16 // in the Spec, sorted by name: the same in all workers
	kind     *Kind
	app      App
	out      []*link
	counters *counter.Set
	reasons  *counter.Set // Kind.Reasons, then the framework's
	stats    *counter.Set // framework counters of the node
}

// Reasons of the framework; they follow the kind's own in node.reasons.
const (
	reasonLinkFull = iota
	reasonUnlinked
	numFrameworkReasons
)

var frameworkReasons = [numFrameworkReasons]counter.Def{
	reasonLinkFull: {Name: "link-full", Help: "the next app or port was too slow"},
	reasonUnlinked: {Name: "unlinked", Help: "emitted to an output that nothing is linked to"},
}

// Counters of every node.
const (
	statIn counter.ID = iota
	statOut
	statGenerated
	statDropped
	statPunted
	numStats
)

var nodeStats = [numStats]counter.Def{
	statIn:        {Name: "in", Help: "frames pushed into the app"},
	statOut:       {Name: "out", Help: "frames emitted"},
	statGenerated: {Name: "generated", Help: "of those emitted, frames that the app made"},
	statDropped:   {Name: "dropped", Help: "frames dropped, for all reasons"},
	statPunted:    {Name: "punted", Help: "frames given to the controller"},
}

// linkCap is the most frames that wait on a link. Eight batches: an app that
// turns one frame into several within a breath fits.
const linkCap = 8 * packet.MaxBatch

// link is the queue between an output and the next input.
type link struct {
	q  []*packet.Buf // cap linkCap
	to *node         // nil: a port
	in int
}

// Now is the time of the breath; it does not move while the breath lasts.
func (c *Ctx) Now() clock.Time { return c.now }

// Rand is the run's seeded source of randomness.
func (c *Ctx) Rand() *rand.Rand { return c.rand }

// Count adds n to the app's counter id.
func (c *Ctx) Count(id counter.ID, n uint64) { c.node.counters.Add(id, n) }

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
		c.Drop(b, Reason(len(n.kind.Reasons)+reasonUnlinked))
		return
	}
	if len(l.q) == cap(l.q) {
		c.Drop(b, Reason(len(n.kind.Reasons)+reasonLinkFull))
		return
	}
	l.q = append(l.q, b)
	n.stats.Add(statOut, 1)
	if b.Verdict == packet.Generated {
		n.stats.Add(statGenerated, 1)
	}
}

// Drop gives b back to its pool and counts reason r.
func (c *Ctx) Drop(b *packet.Buf, r Reason) {
	n := c.node
	n.reasons.Add(counter.ID(r), 1)
	n.stats.Add(statDropped, 1)
	if c.trace != nil && b.Trace != 0 {
		c.trace.Add(trace.Record{Packet: b.Trace, At: int64(c.now), App: n.index, Kind: TraceDrop, Args: [4]uint64{uint64(r)}})
	}
	b.Put()
}

// TraceDrop is the Kind of the framework's own record of a drop: Args[0] is
// the reason. Apps number theirs from 0.
const TraceDrop = 0xFFFF

// Traced reports whether b is traced: apps ask before they gather arguments.
func (c *Ctx) Traced(b *packet.Buf) bool { return b.Trace != 0 && c.trace != nil }

// Trace adds a record of the app's kind about b; nothing when b is not traced.
func (c *Ctx) Trace(b *packet.Buf, kind uint16, args ...uint64) {
	if !c.Traced(b) {
		return
	}
	r := trace.Record{Packet: b.Trace, At: int64(c.now), App: c.node.index, Kind: kind}
	copy(r.Args[:], args)
	c.trace.Add(r)
}
