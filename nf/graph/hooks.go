package graph

import (
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/nf/track"
)

// Hooked is an app that does some of what Hooks lists.
type Hooked interface {
	// Hooks is called once, from any goroutine, before the app's first frame.
	Hooks() Hooks
}

// Hooks are what few apps do: functions of one app, nil where it does not do that. The app's worker calls them, between
// pushes, where nothing else is said. Those of an app inside another one are not called.
type Hooks struct {
	// Inside is for an app that runs other apps inside (Kind.Inside): it makes their instances, pushes frames into them, and takes
	// what they emit. They are nodes of the graph like others, named OUTER/NAME: they have counters, reasons and traces, and their
	// frames are in the books. Inside gets them in the order of Kind.Inside: before the first frame, and after each change
	// of the graph. An app that stays is the same *Inside as before. Of apps that are missing all instances must be
	// removed (Inside.Remove).
	Inside func(c *Ctx, apps []*Inside)
	// Taken is for an app whose instances hand frames to each other (Ctx.Hand), from one worker to another. It gets the frames
	// that were handed to this instance, in buffers of this worker. Frames of one sender come in the order in which it
	// handed them over. They keep their Meta, above all the Tag; a trace ends with the hand-over. Taken disposes of the frames as
	// Push does.
	Taken func(c *Ctx, b *packet.Batch)

	// Keeps is for an app that traffic may depend on: it returns why the app must not be taken out of a running graph now, nor
	// be linked to other ports; nil when it may. With succeeded an app of its name and kind, with other arguments, takes
	// its place. Keeps is called from any goroutine, also while all workers wait.
	Keeps func(succeeded bool) error

	// Join, Leave and Ahead are for an app that has something done with frames before they come to it, as by a program in the kernel.
	// Join tells the app its ports, before its first frame, and again, with first false, after each change of the graph. An error
	// at first ends the start.
	Join func(j Joined, first bool) error
	// Leave is called when the app is taken out of the graph, and when the instance closes: what Join began is at its end when
	// it returns.
	Leave func()
	// Ahead reports whether frames may come to their end before the graph. While somebody watches the graph
	// (port.Filter.Watched) they do not.
	Ahead func() bool

	// Scan and Remove are for an app with tables that show its state: those of Kind.Tables that are no settings, by their index
	// there. Scan looks at n places of table t, or a few more, from place from on, and calls yield with the entries that it
	// finds there, each of which is gone when yield returns. It returns the place to go on from; negative: there are none left.
	// It takes no longer than n places do, however many there are.
	Scan func(c *Ctx, t, from, n int, yield func(*table.Entry)) (next int)
	// Remove deletes the entry of that key from table t. Errors are *table.Error. It is called for tables that clients may delete from;
	// nil if there is none.
	Remove func(c *Ctx, t int, key []table.Cond) error
	// Counted adds to n what entry e of table t, which is a setting, has done in this worker.
	Counted func(t int, e *table.Entry, n *table.Counts)
	// Connections calls f with connections that this worker remembers, from place from on (0 is the first). It looks at about n
	// places and returns the place to go on from; negative: there are none left. f must not keep its argument. A
	// connection that lives all the time is shown once.
	Connections func(c *Ctx, from, n int, f func(*track.Connection)) (next int)
}

// HooksOf are the hooks of an app; none if it has none.
func HooksOf(a App) (h Hooks) {
	if x, ok := a.(Hooked); ok {
		h = x.Hooks()
	}
	return h
}

// Joined are the queues of the ports that an app is linked to, with no app between: by input those whose frames come in there, and by output those to
// which its frames go.
type Joined struct{ From, To map[int][]port.Port }
