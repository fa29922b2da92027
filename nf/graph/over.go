package graph

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/packet"
)

// Over reports that the instances of an app inside another one have ended because one of them panicked. The frames that
// the instances held have been dropped, with a reason of the framework, and Gone reports their tags. Frames that had been
// emitted must still be taken. The instances are not called any more. The next instance (Make, Anew, Apart) begins afresh.
//
// Some faults still end the whole program: a panic in a goroutine that an app has started, an access to an address that the
// program does not have, a stack or a heap that grows without bound, and errors that the runtime calls fatal, such as two
// goroutines that write to a map at once. Instance.Watch finds an app that does not return. If instances of several workers
// share state (Env.Share), a panic ends the whole Instance: the shared state may be half changed, and other workers may wait
// for their turn at it.
func (in *Inside) Over() bool { return in.over }

// Fault returns the latest panic of an instance, or nil if none panicked. It may be called from any goroutine.
func (in *Inside) Fault() *PanicError { return in.fault.Load() }

// Faults returns the latest panic of each inner app in each worker. These panics ended the inner app
// alone.
func (i *Instance) Faults() (all []*PanicError) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, g := range i.graphs {
		for _, n := range g.nodes {
			if n.inside == nil {
				continue
			}
			if f := n.inside.Fault(); f != nil {
				all = append(all, f)
			}
		}
	}
	return all
}

// Try runs f on the worker as code of an instance, for calls that no other method makes. It returns false if f
// panicked.
func (in *Inside) Try(f func()) (ok bool) {
	outer := in.enter(in.ctx)
	defer in.rescue(outer)
	f()
	in.ctx.node = outer
	return true
}

// Rescue, deferred, turns a panic into an error. It is for code of an app that is not called by the app's worker,
// and whose failure does not change the app.
func Rescue(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("it panicked: %v (%s)", v, panicAt())
	}
}

// rescue, deferred while code of an instance runs, ends the instances if it panics. outer is the app whose code goes on.
func (in *Inside) rescue(outer *node) {
	v := recover()
	if v == nil {
		return
	}
	if in.shares.Load() {
		panic(v)
	}
	c, n := in.ctx, in.node
	fault := &PanicError{App: n.name, Kind: n.kind.Name, Value: v, At: panicAt(), Stack: debug.Stack()}
	in.apps, in.spare, in.over = nil, nil, true
	c.node = n
	for _, l := range n.out {
		for _, x := range l.q {
			x.Owner = 0 // it has come out
		}
	}
	drop := func(x *packet.Buf) {
		fault.Frames++
		c.Drop(x, n.framework(reasonPanicked))
	}
	var done []*packet.Pool
	for _, p := range c.mover.graph.ports {
		for _, q := range p.queues {
			if pool := q.Pool(); pool != nil && !slices.Contains(done, pool) {
				done = append(done, pool)
				pool.Owned(n.owner, drop)
			}
		}
	}
	in.fault.Store(fault)
	c.Wake(c.now)
	c.node = outer
}

// refuse drops frames that are pushed into instances that are over.
func (in *Inside) refuse(c *Ctx, b *packet.Batch) {
	outer := in.enter(c)
	in.node.stats.Add(statIn, uint64(b.Len()))
	for _, x := range b.Bufs() {
		c.Drop(x, in.node.framework(reasonPanicked))
	}
	c.node = outer
}

// panicAt is the place of the code that has panicked, FILE:LINE; of several panics the first. The function that recovers
// calls it.
func panicAt() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	at := "?"
	for seen := false; ; {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "runtime."):
			seen = seen || f.Function == "runtime.gopanic"
		case seen:
			at, seen = fmt.Sprintf("%s:%d", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line), false
		}
		if !more {
			return at
		}
	}
}
