// Package memory declares the memory that an outer app gives to an app inside it: a range of
// addresses for this app alone, with more pages than may fit into the outer app's room at a time. An app
// without such memory keeps its data in Go's memory.
//
// An access never blocks, whatever the Outcome. Wait means that a page is on its way from another
// board or from another user, or is being cleared. The access has requested the page, and the app's
// Tick (graph.Ticker) runs when the page is there. The app passes the frame on without the data, or holds
// it until then. After a Fault the app gets no more frames, and need only dispose of the frame
// that it has.
//
// Package snic gives its tasks such memory.
package memory

// Outcome says how an access ended.
type Outcome uint8

// Outcomes.
const (
	OK      Outcome = iota // all of it
	Wait                   // a page is on its way: again in the next Tick, or with another frame
	Refused                // nobody has room for the page now
	Fault                  // nothing is reserved there, or not for this; or the page is lost
)

func (o Outcome) String() string { return [...]string{"ok", "wait", "refused", "fault"}[o&3] }

// Perm says which accesses to a range are allowed.
type Perm uint8

// Permissions.
const (
	Read  Perm = 1
	Write Perm = 2
)

// Space is a range of addresses, from 0, for one app in one worker. Read and Write allocate
// nothing.
type Space interface {
	// Size returns the length of the range in bytes, a multiple of PageBytes.
	Size() int64
	// PageBytes returns the size of a page in bytes, a power of two.
	PageBytes() int
	// Reserve makes the pages of a range usable. None of them may be reserved already. va is the address of a
	// page; length is rounded up to whole pages. The pages hold zeros. All reserved pages have room, on this
	// board or elsewhere.
	Reserve(va uint64, length int64, p Perm) error
	// Read copies from va to p, and Write copies from p to va. They return the number of bytes that were copied:
	// an access that crosses pages may end between two pages.
	Read(va uint64, p []byte) (int, Outcome)
	Write(va uint64, p []byte) (int, Outcome)
}

// User is an app that can keep things in a Space.
type User interface {
	// UseMemory gives the app its Space, before the first frame. No page is reserved yet. If UseMemory returns an
	// error, the app does not run.
	UseMemory(s Space) error
}

// Grower is a User that can use a Space that grows.
type Grower interface {
	User
	// GrowMemory tells the app, between two frames, that its Space has grown. The new pages are not reserved; the
	// old pages stay as they are.
	GrowMemory()
}
