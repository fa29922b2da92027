package graph

import (
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/nf/track"
)

// Hooked is an app that implements some of the functions of Hooks.
type Hooked interface {
	// Hooks is called once, from any goroutine, before the app's first frame.
	Hooks() Hooks
}

// Hooks are functions that only few apps implement; the fields of all others are nil. The app's worker calls
// them between pushes, unless a field says otherwise. The hooks of an app inside another app are not called.
type Hooks struct {
	// Inside is for an app that runs other apps inside (Kind.Inside). The outer app makes their instances, pushes
	// frames into them, and takes the frames that they emit. The inner apps are nodes of the graph, named
	// OUTER/NAME, with counters, reasons and traces; Conservation covers their frames. Inside gets the inner apps
	// in the order of Kind.Inside, before the first frame and after each change of the graph. An inner app that
	// stays has the same *Inside as before. The outer app must remove all instances of the inner apps that are
	// missing from the list (Inside.Remove).
	Inside func(c *Ctx, apps []*Inside)
	// Taken is for an app whose instances hand frames from worker to worker (Ctx.Hand). Taken gets the frames that
	// were handed to this instance, in buffers of this worker. Frames of one sender come in the order in which the
	// sender handed them over. The frames keep their Meta, above all the Tag; a trace ends with the hand-over.
	// Taken disposes of the frames as Push does.
	Taken func(c *Ctx, b *packet.Batch)

	// Keeps is for an app that traffic may depend on. Keeps returns an error that says why the app must not be
	// removed from the running graph or linked to other ports, or nil if it may be. If succeeded is true, an app of
	// the same name and kind, with other arguments, takes the app's place. Keeps is called from any goroutine, also
	// while all workers wait.
	Keeps func(succeeded bool) error
	// Bound is for an app whose memory (Env.Memory) says which queue pairs are bound (Ctx.Bind). Before the app's first
	// timer, Bound returns those that a process before this one has bound; more says that it may have bound others, too.
	Bound func() (known []port.QueuePair, more bool)

	// Join, Leave, Left and Ahead are for an app that lets, for example, a program in the kernel handle frames before the
	// app gets them. Join tells the app its ports, before the app's first frame (first is true) and after each
	// change of the graph (first is false). An error of the first call ends the start.
	Join func(j Joined, first bool) error
	// Leave is called when the app is removed from the graph, and when the instance closes. Before it returns,
	// Leave must end everything that Join began, but for what Left ends.
	Leave func()
	// Left, if there is one, is called after Leave, when all apps that take the place of others have joined. It ends what one of them may go on with.
	Left func()
	// Ahead reports whether frames may be finished before they reach the graph. While somebody watches the graph
	// (port.Filter.Watched), all frames must come to the graph.
	Ahead func() bool

	// Scan and Remove are for an app with tables that show its state: the tables of Kind.Tables that are no
	// settings. t is the index in Kind.Tables. Scan looks at about n places of table t, beginning with place from,
	// and calls yield with each entry that it finds. yield must not keep its argument. Scan returns the place to go
	// on from, or a negative number at the end. The time of a call depends on n, not on the size of the table.
	Scan func(c *Ctx, t, from, n int, yield func(*table.Entry)) (next int)
	// Remove deletes the entry with this key from table t. Errors are *table.Error. Remove is called for tables
	// from which clients may delete; it is nil if the app has no such table.
	Remove func(c *Ctx, t int, key []table.Cond) error
	// Counted adds to n the counts of entry e of table t, which is a setting, in this worker.
	Counted func(t int, e *table.Entry, n *table.Counts)
	// Connections calls f with connections that this worker remembers, beginning with place from (0 is the first).
	// It looks at about n places, and returns the place to go on from, or a negative number at the end. f must not
	// keep its argument. A connection that lives during the whole scan is shown once.
	Connections func(c *Ctx, from, n int, f func(*track.Connection)) (next int)
}

// HooksOf returns the hooks of app a. All are nil if a is not Hooked.
func HooksOf(a App) (h Hooks) {
	if x, ok := a.(Hooked); ok {
		h = x.Hooks()
	}
	return h
}

// Joined has the queues of the ports that are linked directly to an app. From has the ports that lead to an
// input, by input; To has the ports to which an output leads, by output.
type Joined struct{ From, To map[int][]port.Port }
