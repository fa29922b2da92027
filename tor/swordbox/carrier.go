package swordbox

import (
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// carrier is the responder's side of a connection, as seen from here: what was sent to
// the server over it, whoever's it is, and what the server has said of that. All PSNs
// are as the server numbers. What is open lies in a list, in the order of PSNs.
type carrier struct {
	// The first eight are looked at together: see is.
	dead    bool // of no use any more: its queue pair is in the error state, or the server's end is gone
	repair  bool // the server misses requests from PSN expect on: they are sent again
	timed   bool // the next answer tells of a round trip
	inDoubt bool // another process sent WRITEs in the place of atomics, and it is not known yet which of them the server executed (see inquire)
	gated   bool // the server was asked, with PSN gate, and the answer to that did not come (see inquire): nothing new goes over it
	claimed bool // its own client waits for it: nobody else may have it
	isLent  bool
	tries   uint8  // how often in a row something was sent again without an answer
	deep    int16  // READs and atomics of its client that were under way at once, and executed
	peak    int16  // that are or were under way at once
	lends   int16  // keys that it is lent for
	lags    bool   // the server waits for its client to send again what it had no receive buffer for, and what was behind that: see mustRepeat
	counted bool   // the server executes what its client sends: see count
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
	missed              uint32 // PSN of what was last sent again

	grants grants
	up     header // of frames to the server
	owed   uint8  // questions whose answer did not come yet, at most 255
	marked marked

	noRead  uint32     // with knownPSN: last PSN of the newest request that the server executed and that was no READ
	private clock.Time // when it last carried what does not go together with others' operations; 0: never
	asking  clock.Time // when its server was last asked whether it is there
	filled  uint32     // see fill: PSN of what comes next to fill
	echoes  uint8      // see judge: questions in a row that had no answer but the acknowledgement of what was known
	echoed  bool       // the last one had it
	misses  uint8      // how often in a row it was sent again from PSN missed on, though it was heard between
	// disputed: a request far from its numbers came, and the server was asked whose its end is: an answer is owed.
	disputed bool
}

// is reports whether one of the first fields of c is set that are set in some: eight bytes
// that are compared at once.
func (c *carrier) is(some uint64) bool { return firstOf(c)&some != 0 }

func firstOf(c *carrier) uint64 { return *(*uint64)(unsafe.Pointer(c)) }

// unwell are the states in which a connection carries nothing new.
var unwell = firstOf(&carrier{dead: true, repair: true, inDoubt: true, gated: true})

// oldest is the operation at the front of those that connection c carries, and
// behind the one behind o; nil when there is none.
func (r *record) oldest(c *flow) *op { return r.get(c.oldest) }

func (r *record) behind(o *op) *op { return r.get(o.next) }

// link puts op o at the end of what connection c carries.
func (r *record) link(c *flow, o *op, now clock.Time) {
	at := r.place(o)
	o.next = none
	if c.oldest == none {
		c.oldest, c.loaded, c.timed = at, now, true
		c.silent, c.tries = 0, 0
	} else {
		r.ops[c.newest].next = at
	}
	c.newest = at
}

// unlink takes o, which is the oldest, off its connection.
func (r *record) unlink(o *op) {
	c := &r.flows[o.lane]
	c.oldest = o.next
	if c.oldest == none {
		c.newest, c.suspect = none, 0
	}
	c.silent = 0
}

// mostAhead is how many operations are looked at to find one on a connection.
const mostAhead = 64

// carries is the operation that connection c carries under PSN psn; nil if there
// is none, or too many are ahead of it.
func (r *record) carries(c *flow, psn uint32) *op {
	o := r.oldest(c)
	for range mostAhead {
		if o == nil || psnLess(psn, psnAdd(o.spsn, o.npsn)) {
			return o
		}
		o = r.behind(o)
	}
	return nil
}

// isAwaited reports whether an answer with PSN psn may be to what connection c carries, or to what
// was just before that. A READ may take more PSNs than farOff.
//
//go:noinline
func (r *record) isAwaited(c *flow, psn uint32) bool {
	o := r.oldest(c)
	return o != nil && psnLess(psn, c.next) && hdr.PSNDiff(psn, o.spsn) >= -farOff
}

// part is the PSN of the last packet of o, which is not done, that the server has
// acknowledged, as its client numbers; false when there is none.
func (r *record) part(o *op) (psn uint32, ok bool) {
	if o.state != sOpen || o.kind != kWrite && o.kind != kSend || r.oldest(r.carrier(o)) != o {
		return 0, false
	}
	d := hdr.PSNDiff(r.carrier(o).acked, o.spsn)
	return psnAdd(o.cpsn, uint32(d)), d >= 0 && d < int32(o.npsn)
}

// handedOver reports whether the client of connection c will send again what the
// server misses: all that c carries is its own, and it still waits for it.
func (r *record) handedOver(c *flow) bool {
	o := &r.ops[c.oldest]
	return c.guests == 0 && !o.is(fAgain|fOrphan)
}

// ack notes that the server has executed all up to psn.
func (c *carrier) ack(psn uint32) {
	if psnLess(c.acked, psn) {
		c.acked = psn
	}
}

// hears notes that the server has answered.
func (c *carrier) hears(now clock.Time) {
	c.heard, c.silent, c.asked, c.tries, c.disputed = now, 0, 0, 0, false
	if !c.timed {
		return
	}
	c.timed = false
	if t := now.Sub(c.loaded); c.trip == 0 {
		c.trip = t
	} else {
		c.trip += (t - c.trip) / 8
	}
}

// stirred is when connection c was heard last, or began to carry something.
func (c *carrier) stirred() clock.Time {
	return max(c.loaded, c.heard)
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

// timeout is how long the server may be silent until its oldest request is
// sent again here: some round trips, and then twice as long, and four times each time after that, as the server may pause.
func (c *carrier) timeout(giveup time.Duration) clock.Duration {
	if c.trip == 0 {
		return min(clock.Duration(giveup)/5, 50e6)
	}
	return min(max(4*c.trip, leastPatience)<<max(2*int(min(c.tries, 5))-1, 0), max(clock.Duration(giveup)/2, leastPatience))
}

// leastPatience is the least of it: what is shorter than a queue that empties is
// no sign of a loss.
const leastPatience = clock.Duration(500e3)

// denied reports whether an acknowledgement b says, to a question (see query), that
// the server's end of flow f is of another connection: that it executed more than
// was sent, or expects something else next. What others make up for the queue pair
// changes neither. Answers of before, which came late, say nothing; there are none
// when it was quiet for alive=.
func (c *flow) denied(h *hdr.Frame, b []byte, psn uint32, now clock.Time, alive time.Duration) bool {
	if c.asked == 0 || c.oldest != none || c.gated || h.Op != hdr.Acknowledge || now.Sub(c.heard) < alive {
		return false
	}
	if h.AETHOf(b).Syndrome().ACK() {
		return psn != c.acked && !c.affirmed(h, b, psn) || !c.mayHave(h, b)
	}
	return psn != c.next
}

// affirmed reports whether such an acknowledgement says, with another PSN than that
// of the newest request, that the server's end is as it was. An end of another
// connection acknowledges the PSN before the one that it expects, or asks for that. Linux (rxe)
// acknowledges again the newest request that was no READ, and the PSN before 0 when there
// was none; of an end that was made anew it goes on to do so. The MSN tells these apart.
func (c *flow) affirmed(h *hdr.Frame, b []byte, psn uint32) bool {
	if c.asked == 0 || h.Op != hdr.Acknowledge || !h.AETHOf(b).Syndrome().ACK() || !c.mayHave(h, b) {
		return false
	}
	if c.noRead&knownPSN != 0 {
		return psn == c.noRead&hdr.PSNMask
	}
	return psnLess(psn, c.acked) || psn == hdr.PSNMask && !psnLess(psn, c.next)
}

// mayHave reports whether the MSN of answer b is one that the server's end of c may have come to. It is true while none is known.
func (c *flow) mayHave(h *hdr.Frame, b []byte) bool {
	if c.msn&newestMSN == 0 || h.Op.Info().Ext&hdr.HasAETH == 0 {
		return true
	}
	return (h.AETHOf(b).MSN()-c.msn)&0xFFFFFF < (c.next-c.acked)&hdr.PSNMask
}

// hearsMSN notes the MSN m of an answer, if it is the newest.
func (c *flow) hearsMSN(m uint32) {
	if c.counted && (c.msn&newestMSN == 0 || (m-c.msn)&0xFFFFFF < 1<<23) {
		c.msn = m | knownMSN | newestMSN
	}
}

// executes notes that the server executed o.
func (c *carrier) executes(o *op) {
	switch {
	case o.kind == kOdd:
		c.noRead = 0 // nobody says what it counts as
	case o.kind != kRead:
		c.noRead = psnAdd(o.spsn, o.npsn-1) | knownPSN
	}
}

// count counts o, which is open, among what it carries: d is 1, or -1 when it carries it
// no more. What o is in the counts for must not change meanwhile.
func (c *carrier) count(o *op, d int32) {
	if o.flags&fGuest != 0 {
		c.guests += d
	}
	if o.flags&fReplaced != 0 {
		if c.writes += d; c.writes == 0 {
			c.inDoubt = false // whichever answer told so
		}
	} else if o.answered() {
		c.rd += d
	}
	if o.flags&fUnkept != 0 {
		c.unkept += d
	}
}
