package swordbox

import (
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// carrier is the responder's side of a connection, as the box sees it: the operations that were sent to the
// server over the connection, those of its own client and of others, and what the server answered. All PSNs
// are in the server's numbering. The open operations form a list in the order of their PSNs, from oldest to newest.
type carrier struct {
	// The first eight fields, of a byte each, are compared at once: see is.
	dead    bool // not to be used any more: its queue pair is in the error state, or the server's end is gone
	repair  bool // the server misses requests from PSN expect on: they are sent again
	timed   bool // the next answer measures a round trip
	inDoubt bool // another process sent WRITEs in the place of atomics, and it is not known yet which of them the server executed (see inquire)
	gated   bool // the server was asked, with PSN gate, and has not answered (see inquire): nothing new goes over it
	claimed bool // its own client waits for it: no other client may have it
	isLent  bool
	tries   uint8  // how many times in a row the box sent something again and got no answer
	deep    int16  // most READs and atomics of its client that were under way at once and were executed
	peak    int16  // most READs and atomics of its client that were under way at once
	lends   int16  // number of keys that it is lent for
	lags    bool   // its client has to send requests again: one that the server had no receive buffer for, and those behind it (see mustRepeat)
	counted bool   // the server was seen to execute its client's requests: see record.count
	next    uint32 // PSN of the next request
	acked   uint32 // newest acknowledged PSN
	oldest  int32  // the open operation that was sent first; none
	newest  int32
	guests  int32      // open operations of other clients
	rd      int32      // open READs and atomics, which take responder resources of the server
	writes  int32      // open atomics that go as WRITEs
	unkept  int32      // open operations that only their own client can send again
	heard   clock.Time // time of the newest answer
	loaded  clock.Time // when it began to carry operations

	silent clock.Time     // when the box first sent something again that has no answer yet; 0: nothing is in this state
	asked  clock.Time     // when the server was first asked, since it was last heard, whether it is there; 0: it was not
	trip   clock.Duration // round trip, smoothed
	since  clock.Time     // when the box last began to send something again
	// Requests with PSNs in [strange, strangeEnd) are far from the expected PSN. They were passed
	// to the server, whose answer shows whether they belong to its connection.
	strange, strangeEnd uint32
	suspect             uint32 // requests before this PSN may be lost, too
	expect              uint32 // PSN of the next packet to be sent again
	goal                uint32 // PSN behind the last packet to be sent again
	gate                uint32 // see gated
	nudged              uint32 // PSN of the request that was last sent again because its answer was late
	missed              uint32 // PSN from which requests were last sent again; of a lost flow: see heardAgain

	grants grants
	up     header // front of frames to the server
	owed   uint8  // questions without an answer so far, at most 255
	marked marked

	noRead  uint32     // with knownPSN: last PSN of the newest executed request that was no READ
	private clock.Time // when it last carried an operation that keeps other clients' operations away (see privacy); 0: never
	asking  clock.Time // when the server was last asked whether it is there
	filled  uint32     // PSN of the next WRITE that fills (see fill)
	echoes  uint8      // see judge: questions in a row whose only answer acknowledged a PSN that was known to be executed
	echoed  bool       // the last question had this answer
	misses  uint8      // how many times in a row requests were sent again from PSN missed on, although the server was heard in between; of a lost flow: see heardAgain
	// disputed is set when a request came whose PSN is far from the expected one: the server is asked whether
	// its end still belongs to this connection, and has not answered yet.
	disputed bool
}

// is reports whether at least one of the first eight fields of c is set that are set in the mask some (see firstOf).
func (c *carrier) is(some uint64) bool { return firstOf(c)&some != 0 }

func firstOf(c *carrier) uint64 { return *(*uint64)(unsafe.Pointer(c)) }

// unwell is the mask of the states in which a connection takes no new operations.
var unwell = firstOf(&carrier{dead: true, repair: true, inDoubt: true, gated: true})

// oldest returns the oldest operation that connection c carries, and behind the operation that follows o
// on o's connection. Both return nil if there is none.
func (r *record) oldest(c *flow) *op { return r.get(c.oldest) }

func (r *record) behind(o *op) *op { return r.get(o.next) }

// link appends operation o to the list of those that connection c carries.
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

// unlink removes o, the oldest operation of its connection, from the connection's list.
func (r *record) unlink(o *op) {
	c := &r.flows[o.lane]
	c.oldest = o.next
	if c.oldest == none {
		c.newest, c.suspect = none, 0
	}
	c.silent = 0
}

// mostAhead is the number of operations of a connection that carries looks at.
const mostAhead = 64

// carries returns the first operation of connection c that ends at or behind PSN psn; it may begin behind psn.
// The result is nil if there is none, or if mostAhead or more operations are ahead of it.
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

// isAwaited reports whether an answer with PSN psn may belong to an operation that connection c carries, or to one at
// most farOff PSNs before the oldest. The upper limit is c.next, because a READ may take more PSNs than farOff.
//
//go:noinline
func (r *record) isAwaited(c *flow, psn uint32) bool {
	o := r.oldest(c)
	return o != nil && psnLess(psn, c.next) && hdr.PSNDiff(psn, o.spsn) >= -farOff
}

// part returns the PSN, in the client's numbering, of the newest packet of o that the server has acknowledged.
// ok is false if there is none, or if o is not an open WRITE or SEND that is the oldest of its connection.
func (r *record) part(o *op) (psn uint32, ok bool) {
	if o.state != sOpen || o.kind != kWrite && o.kind != kSend || r.oldest(r.carrier(o)) != o {
		return 0, false
	}
	d := hdr.PSNDiff(r.carrier(o).acked, o.spsn)
	return psnAdd(o.cpsn, uint32(d)), d >= 0 && d < int32(o.npsn)
}

// handedOver reports whether the client of connection c will itself send again what the server misses:
// c carries only operations of this client, and the client still waits for the oldest.
func (r *record) handedOver(c *flow) bool {
	o := &r.ops[c.oldest]
	return c.guests == 0 && !o.is(fAgain|fOrphan)
}

// ack notes that the server has executed all requests up to PSN psn.
func (c *carrier) ack(psn uint32) {
	if psnLess(c.acked, psn) {
		c.acked = psn
	}
}

// hears notes that the server has answered at time now, and measures the round trip if it was timed.
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

// stirred returns the time when the server was last heard over connection c, or when c began to carry something, if
// later.
func (c *carrier) stirred() clock.Time {
	return max(c.loaded, c.heard)
}

// tried notes that a request was sent to the server again, or that the server was asked (see query), at time now.
func (c *carrier) tried(now clock.Time) {
	c.since, c.timed = now, false
	if c.silent == 0 {
		c.silent = now
	}
	if c.tries < 255 {
		c.tries++
	}
}

// timeout returns how long the server may be silent until the box sends the oldest request again: four round trips.
// The time doubles after the first try, and grows fourfold with each of the next four, because the server may pause.
func (c *carrier) timeout(giveup time.Duration) clock.Duration {
	if c.trip == 0 {
		return min(clock.Duration(giveup)/5, 50e6)
	}
	return min(max(4*c.trip, leastPatience)<<max(2*int(min(c.tries, 5))-1, 0), max(clock.Duration(giveup)/2, leastPatience))
}

// leastPatience is the least timeout. A shorter silence may come from a queue that empties, and is no sign of a loss.
const leastPatience = clock.Duration(500e3)

// denied reports whether acknowledgement b, with headers h and PSN psn, answers a question (see query) in a way that
// shows that the server's end belongs to another connection than c: the server executed more than was sent, or
// expects another PSN. Requests that a stranger makes up for the queue pair change neither. A late answer to an
// earlier request shows nothing; such answers cannot come when the server was silent on c for alive=.
func (c *flow) denied(h *hdr.Frame, b []byte, psn uint32, now clock.Time, alive time.Duration) bool {
	if c.asked == 0 || c.oldest != none || c.gated || h.Op != hdr.Acknowledge || now.Sub(c.heard) < alive {
		return false
	}
	if h.AETHOf(b).Syndrome().ACK() {
		return psn != c.acked && !c.affirmed(h, b, psn) || !c.mayHave(h, b)
	}
	return psn != c.next
}

// affirmed reports whether acknowledgement b, which answers a question (see denied), shows that the server's end
// still belongs to c although psn may not be that of the newest request. The end of another connection acknowledges
// the PSN before its expected PSN, or sends a NAK with the expected one. Linux (rxe) acknowledges the newest request
// that was no READ, or the PSN before 0 if there was none. An end that rxe made anew does the same, so its MSN has
// to tell it from the old one.
func (c *flow) affirmed(h *hdr.Frame, b []byte, psn uint32) bool {
	if c.asked == 0 || h.Op != hdr.Acknowledge || !h.AETHOf(b).Syndrome().ACK() || !c.mayHave(h, b) {
		return false
	}
	if c.noRead&knownPSN != 0 {
		return psn == c.noRead&hdr.PSNMask
	}
	return psnLess(psn, c.acked) || psn == hdr.PSNMask && !psnLess(psn, c.next)
}

// mayHave reports whether the server's end of c can have reached the MSN of answer b, with headers h.
// It returns true if b has no AETH or no MSN of c is known.
func (c *flow) mayHave(h *hdr.Frame, b []byte) bool {
	if c.msn&newestMSN == 0 || h.Op.Info().Ext&hdr.HasAETH == 0 {
		return true
	}
	return (h.AETHOf(b).MSN()-c.msn)&0xFFFFFF < (c.next-c.acked)&hdr.PSNMask
}

// hearsMSN notes the MSN m of an answer to c, if c is counted and m is not older than the MSN on record.
func (c *flow) hearsMSN(m uint32) {
	if c.counted && (c.msn&newestMSN == 0 || (m-c.msn)&0xFFFFFF < 1<<23) {
		c.msn = m | knownMSN | newestMSN
	}
}

// executes notes that the server executed operation o.
func (c *carrier) executes(o *op) {
	switch {
	case o.kind == kOdd:
		c.noRead = 0 // it is not specified whether a responder counts it as a READ
	case o.kind != kRead:
		c.noRead = psnAdd(o.spsn, o.npsn-1) | knownPSN
	}
}

// count adds d to the counts of c that the open operation o belongs to: 1 when c begins to carry o, -1 when c ends.
// The flags and the kind of o that select the counts must not change between the two calls.
func (c *carrier) count(o *op, d int32) {
	if o.flags&fGuest != 0 {
		c.guests += d
	}
	if o.flags&fReplaced != 0 {
		if c.writes += d; c.writes == 0 {
			c.inDoubt = false // whichever answer showed what was executed
		}
	} else if o.answered() {
		c.rd += d
	}
	if o.flags&fUnkept != 0 {
		c.unkept += d
	}
}
