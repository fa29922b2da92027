package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// carrier is the responder's side of a connection, as seen from here: what was sent to
// the server over it, whoever's it is, and what the server has said of that. All PSNs
// are as the server numbers. What is open lies in a list, in the order of PSNs.
type carrier struct {
	// Few frames need these two; they fill a line that the client's part begins.
	private clock.Time // when it last carried what does not go together with others' operations; 0: never
	asking  clock.Time // when its server was last asked whether it is there

	dead    bool // of no use any more: its queue pair is in the error state, or the server's end is gone
	repair  bool // the server misses requests from PSN expect on: they are sent again
	timed   bool // the next answer tells of a round trip
	inDoubt bool // another process sent WRITEs in the place of atomics, and it is not known yet which of them the server executed (see inquire)
	gated   bool // requests from PSN gate on have to wait (see shut)
	claimed bool // its own client waits for it: nobody else may have it
	isLent  bool
	tries   uint8  // how often in a row something was sent again without an answer
	may     uint8  // accesses (1 << access) that its server's queue pair was seen to have the right to
	deep    int16  // READs and atomics of its client that were under way at once, and executed
	peak    int16  // that are or were under way at once
	lends   int16  // keys that it is lent for
	next    uint32 // PSN of the next request
	acked   uint32 // newest acknowledged PSN
	oldest  int32  // op at the front; none
	newest  int32
	guests  int32      // open ops of other flows
	rd      int32      // open READs and atomics: of the server's responder resources
	writes  int32      // open atomics that go as WRITEs
	unkept  int32      // open ops that only its own client can send again
	heard   clock.Time // last answer
	loaded  clock.Time // when it began to carry something

	silent clock.Time     // when something was first sent again that has no answer yet; 0: there is no such thing
	asked  clock.Time     // when its server was first asked whether it is there, since it was heard; 0: it was not
	trip   clock.Duration // time until an answer, smoothed
	since  clock.Time     // when this app last began to send something again
	// Requests with PSNs in [strange, strangeEnd) are far from what is expected,
	// and passed to the server for it to decide.
	strange, strangeEnd uint32
	suspect             uint32 // requests before this PSN may be lost, too
	expect              uint32 // PSN of what is sent again next
	goal                uint32 // and the one behind the last
	gate                uint32 // see gated
	nudged              uint32 // PSN of the request that was last sent again for want of an answer
	_                   uint32 // to the end of the line

	grants grants
	up     header // of frames to the server
	marked marked
}

// patience is how long the server may be silent until its oldest request is
// sent again here: some round trips, and twice as long each time.
func (c *carrier) patience(giveup time.Duration) clock.Duration {
	if c.trip == 0 {
		return min(clock.Duration(giveup)/5, 50e6)
	}
	return min(max(4*c.trip, leastPatience)<<min(c.tries, 10), max(clock.Duration(giveup)/2, leastPatience))
}

// tried notes that the server was sent something again, or asked.
func (c *carrier) tried(now clock.Time) {
	c.since, c.timed = now, false
	if c.silent == 0 {
		c.silent = now
	}
	if c.tries < 255 {
		c.tries++
	}
}
