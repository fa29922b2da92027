package graph

import "io"

// Mover is a Saver whose state is so much that its worker cannot stand still until it is saved or
// loaded: it is saved a piece at a time, and read beside the worker.
type Mover interface {
	Saver
	// Saving begins to save. Each call of next, between two breaths, writes about n things that the
	// app remembers, and returns whether there is more, or an error. A record that changes between two calls
	// is saved as it was, or as it is then; one that has gone or has come may be left out.
	Saving(w io.Writer) (next func(n int) (more bool, err error))
	// Loading begins to load. read may be called from any goroutine, while the app goes on: it takes all of
	// what was saved. put, which is called between two breaths, has the app take that in place of its
	// state, in a moment. After an error the app is as it was.
	Loading() (read func(r io.Reader) (put func(), err error))
	// Inherit takes over the state of an app of the kind, in the same worker, as it is: in a moment, however much it
	// is. It reports false if the arguments do not allow that; then nothing has happened. Otherwise from is
	// not used any more. The instances of all workers do the same.
	Inherit(from App) bool
}
