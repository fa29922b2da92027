package graph

import "io"

// Mover is a Saver whose state is too large to be saved or loaded between two breaths. The state is
// saved in pieces, and read on another goroutine than the worker's.
type Mover interface {
	Saver
	// Saving begins to save. Each call of next, between two breaths, writes about n records, and returns
	// whether more are left, or an error. A record that changes between two calls is saved as it was before or
	// as it is after the change. A record that is added or deleted meanwhile may be left out.
	Saving(w io.Writer) (next func(n int) (more bool, err error))
	// Loading begins to load. read reads the whole saved state, and may be called from any goroutine while
	// the app goes on. put replaces the app's state by the state that was read. It is called between two breaths,
	// and takes little time. After an error the app has its old state.
	Loading() (read func(r io.Reader) (put func(), err error))
	// Inherit takes over the state of another app of the kind in the same worker, without copying it. It
	// returns false and changes nothing if the arguments do not allow that. If it returns true, from must not be
	// used any more. The instances of all workers must return the same.
	Inherit(from App) bool
}
