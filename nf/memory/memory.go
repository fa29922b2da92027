// Package memory is memory that an app is given by the app around it: a range of
// addresses of its own, with more pages than there may be room for at a time. An app that is given
// none keeps its data in Go's memory, as always.
//
// An access ends at once, whatever the Outcome. Wait means that a page is on its way,
// from another board or out of another's hands, or is being cleared: the access has asked for it, and
// the app's Tick (graph.Ticker) runs when it is there. A frame goes on without what was to be read, or is held until then.
// A Fault stops the app: it gets no more frames, and need only dispose of the one that
// it has.
//
// Package snic gives its tasks such memory.
package memory

// Outcome is how an access ended.
type Outcome uint8

// Outcomes.
const (
	OK      Outcome = iota // all of it
	Wait                   // a page is on its way: again in the next Tick, or with another frame
	Refused                // nobody has room for the page now
	Fault                  // nothing is reserved there, or not for this; or the page is lost
)

func (o Outcome) String() string { return [...]string{"ok", "wait", "refused", "fault"}[o&3] }

// Perm is what may be done with a range.
type Perm uint8

// Permissions.
const (
	Read  Perm = 1
	Write Perm = 2
)

// Space is a range of addresses, from 0. It is of one app and one worker. Read and Write allocate
// nothing.
type Space interface {
	// Size is how many bytes of addresses there are: whole pages.
	Size() int64
	// PageBytes is the size of a page, a power of two.
	PageBytes() int
	// Reserve makes the pages of a range usable, none of which is yet: va is that of a
	// page, and the last page counts whole. They hold zeros. There is room for all that is reserved, here or elsewhere.
	Reserve(va uint64, length int64, p Perm) error
	// Read copies from va to p, and Write from p to va. They return how much was copied before it ended:
	// where pages meet an access may be done in part.
	Read(va uint64, p []byte) (int, Outcome)
	Write(va uint64, p []byte) (int, Outcome)
}

// User is an app that can keep things in a Space.
type User interface {
	// UseMemory hands the Space over, before the first frame. It is empty: nothing is reserved. With an error the
	// app does not run.
	UseMemory(s Space) error
}

// Grower is a User that can do with more than it was given.
type Grower interface {
	User
	// GrowMemory says that the Space is longer now, between two frames. Nothing of the rest is reserved; what was
	// there before stays.
	GrowMemory()
}
