package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
)

// client is the requester's side of a connection: which requests the client has sent, which of them the box sent
// on to a server, and which answers the client got. All PSNs are in the client's numbering.
//
// The client's operations lie in a ring (record.op). They are numbered from 0 on, modulo 2^32:
//
//	first            head             tail
//	| answered       | not answered   | next
//
// The operation head has the oldest unacknowledged PSN (una). base + head is the client's MSN (released).
type client struct {
	gone      bool // a NAK that ends its queue pair was sent to it, or it left
	failed    bool // one of its operations failed: it gets such a NAK
	gapNAK    bool // it sent a PSN beyond the expected one: a NAK (PSN sequence error) is owed
	toldGap   bool // this NAK was sent
	tellPart  bool // the server acknowledged some packets of its oldest message: it is to be told
	mixed     bool // its open operations are on several connections
	isReady   bool // it is in order.ready
	waits     bool // it is in waits.all
	vague     bool // its newest request, which waits, is a READ of vagueLen bytes. It is not known how many PSNs this takes, as the path MTU is not known
	unsure    bool // its newest operation is such a READ, sent over its own connection: the answer will tell
	doomed    bool // no connection can carry its next request: it was sent a NAK, and will be gone
	doubted   bool // the answers from operation number again on are to be repeated when the server was heard
	owes      bool // it is owed an acknowledgement, which waits until no READ is done again
	misshapen bool // its requests contradict each other (see measure)
	// syn is the syndrome of the server's newest acknowledgement, with its credits.
	syn               hdr.Syndrome
	may               uint8      // accesses (bits 1 << access) to which its queue pair at the server was seen to have the right
	arrived, admitted uint32     // the expected PSN, and the PSN of the next request to be sent on
	head, tail        uint32     // numbers of the oldest operation without an answer, and of the next operation
	first             uint32     // number of the oldest operation on record
	span              uint32     // places of the ring: a power of two
	unsent            int32      // operations on record in state sUnsent
	open              int32      // operations that the server has not answered
	bare              int32      // open operations with fBare
	lane              int32      // connection of the youngest open operation
	cur               int32      // operation whose packets are still coming; none
	base              uint32     // MSN before the first operation on record: see released
	answerer          int32      // connection over which its newest answer came
	stall             hold.Queue // requests that wait
	rest, part        uint32     // of the WRITE at hand: bytes that are still to come, and bytes in each packet
	latest            grant      // the newest of carrier.grants; most requests need only this one

	down     header       // front of frames to the client
	ended    uint32       // PSN of the request that ended its queue pair
	rereads  int32        // number of READs that are done again
	again    uint32       // see doubted
	verdict  hdr.Syndrome // syndrome of the NAK that ended its queue pair; 0: an operational error
	turns    uint8        // see flow.seen
	vagueLen uint32       // see vague
	counts   uint32       // see flow.msn
	pastAt   uint32       // number of answers that were ever stored in past, modulo 2^32
	began    clock.Time   // when the message of cur began
	past     [16]past     // answers to the newest atomics that are not on record any more
}

// released returns the MSN of c: the number of messages that were answered, modulo 2^24.
func (c *client) released() uint32 { return (c.base + c.head) & 0xFFFFFF }

// una returns the oldest unacknowledged PSN of flow f's client, or the PSN of the next request if all are answered.
func (r *record) una(f *flow) uint32 {
	if f.head == f.tail {
		return f.admitted
	}
	o := r.op(f, f.head)
	if o.state == sFailed {
		return psnAdd(o.cpsn, r.beside(o).nak)
	}
	return o.cpsn
}

// op returns the place in the ring of operation number k (as flow.head counts) of flow f.
func (r *record) op(f *flow, k uint32) *op {
	return &r.ops[r.index(f)<<(r.shift&31)+int32(k&(f.span-1))]
}

// find returns the operation of flow fl that has a packet with PSN psn, and its number k. It returns nil and 0 if no
// operation on record has one.
func (r *record) find(fl *flow, psn uint32) (o *op, k uint32) {
	lo, hi := fl.first, fl.tail // search for the last operation that begins at or before psn
	for lo != hi {
		m := lo + (hi-lo)/2
		if o := r.op(fl, m); psnLess(psn, o.cpsn) {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == fl.first {
		return nil, 0
	}
	if o = r.op(fl, lo-1); hdr.PSNDiff(psn, o.cpsn) >= int32(o.npsn) {
		return nil, 0
	}
	return o, lo - 1
}

// unsentBefore reports whether an unanswered operation of flow fl before number k is in state sUnsent: its client has
// to send it again.
func (r *record) unsentBefore(fl *flow, k uint32) bool {
	for j := fl.head; j != k; j++ {
		if o := r.op(fl, j); o.state == sUnsent {
			return true
		}
	}
	return false
}

// narrow is the number of places that a connection's ring of operations has at first. Linux rxe has no more packets in
// flight (RXE_MAX_UNACKED_PSNS). A small ring stays in the processor's cache.
const narrow = 128

// grow doubles flow fl's ring of operations. It returns false, and changes nothing, if the ring has its full width,
// if an operation of fl is unanswered or a READ is done again, or if a place that it needs is taken (isPlaced).
func (r *record) grow(fl *flow) bool {
	if fl.span == r.window || fl.open > 0 || fl.rereads > 0 || fl.head != fl.tail {
		return false
	}
	all := r.ops[r.index(fl)<<(r.shift&31):][:r.window:r.window]
	old := all[:fl.span]
	// The newer half of the places of the wider ring is behind the older: what
	// belongs there is copied, and stays where it was until the ring is wider.
	for k := fl.first; k != fl.tail; k++ {
		if to := k & (2*fl.span - 1); to != k&(fl.span-1) && all[to].isPlaced() {
			return false
		}
	}
	for k := fl.first; k != fl.tail; k++ {
		if to := k & (2*fl.span - 1); to != k&(fl.span-1) {
			all[to] = old[k&(fl.span-1)]
		}
	}
	fl.span *= 2
	return true
}

// otherPlace grows flow fl's ring and returns the place of fl's next operation in it, or nil if the ring does not
// grow or that place is taken, too.
//
//go:noinline
func otherPlace(r *record, fl *flow) *op {
	if !r.grow(fl) {
		return nil
	}
	if o := r.op(fl, fl.tail); !o.isPlaced() {
		return o
	}
	return nil
}

// roomiest returns the number (as flow.head counts) that the first operation of flow fl is to have; fl has none on
// record. At this number the longest run of free places begins. The others are taken by operations of the connection
// that had the row before, which other connections still carry. Where the run is short, roomiest widens the ring
// (flow.span).
func (n *order) roomiest(fl *flow) (begin uint32) {
	for ; ; fl.span *= 2 {
		most := uint32(0)
		for k, free := uint32(0), uint32(0); k < 2*fl.span && most < fl.span; k++ { // twice around, because the first place follows the last one
			if n.op(fl, k).isPlaced() {
				free = 0
			} else if free++; free > most {
				begin, most = (k+1-free)&(fl.span-1), free
			}
		}
		if most >= min(narrow, fl.span)/2 || fl.span >= n.window {
			return begin
		}
	}
}

// mostUnacked is the largest number of PSNs that a connection may have under way when it takes one more request, and
// that the record spans for its client. PSNs compare correctly within half of their range, which is twice as many.
const mostUnacked = 1 << 22

// isFar reports whether the next request of c is more than mostUnacked PSNs beyond c's operation o.
func (c *client) isFar(o *op) bool { return (c.admitted-o.cpsn)&hdr.PSNMask > mostUnacked }

// fade forgets the oldest answered operations of flow fl that the next request is far beyond (isFar).
func (r *record) fade(fl *flow) {
	for fl.first != fl.head {
		o := r.op(fl, fl.first)
		if !fl.isFar(o) || o.state == sOpen {
			return
		}
		fl.outlive(o)
		fl.first++
	}
}

// past is the answer to an atomic whose place on record was needed for another operation.
type past struct {
	va, prior uint64
	psn       uint32
	sum       uint32 // checksum of the other fields, never 0: the process may end while it stores them
}

func (p *past) check() uint32 { return hash(p.va^p.prior<<1^uint64(p.psn)<<40) | 1 }

// whole reports whether p holds an answer that was written completely.
func (p *past) whole() bool { return p.sum == p.check() }

// outlive keeps the answer to o in c.past if o is an answered atomic, before o's place on record is used again. A
// responder remembers the answers to as many atomics as its client may have under way, however many other operations
// came since. Linux and most devices offer 16 at most.
func (c *client) outlive(o *op) {
	if o.kind.atomic() && o.state == sDone && !o.is(fOrphan) {
		p := past{va: o.va, prior: o.prior, psn: o.cpsn}
		p.sum = p.check()
		c.past[c.pastAt&15] = p
		c.pastAt++
	}
}

// measure follows the payloads of a client's WRITEs, packet by packet, and sets misshapen if they do not add up to
// the length in the RETH, or if another request comes between the packets of a WRITE. The server refuses such
// requests (IBTA 9.7.4.1). The refusal ends the connection, so a misshapen client's operations stay on its own
// connection.
func (c *client) measure(b []byte, h *hdr.Frame) {
	info := h.Op.Info()
	p := uint32(len(h.PayloadOf(b)))
	isWrite, begins := info.Flags&hdr.IsWrite != 0, info.Flags&(hdr.IsMiddle|hdr.IsLast) == 0
	switch {
	case !isWrite:
		c.misshapen = c.misshapen || c.rest != 0
	case begins && info.Ext&hdr.HasRETH != 0:
		n := h.RETHOf(b).DMALength()
		if c.misshapen = c.misshapen || c.rest != 0; info.Flags&hdr.IsFirst == 0 {
			c.misshapen = c.misshapen || p != n
		} else if c.rest, c.part = n-p, p; n <= p || !full(p) {
			c.misshapen = true
		}
	case info.Flags&hdr.IsMiddle != 0 && p == c.part && p < c.rest:
		c.rest -= p
	case info.Flags&hdr.IsLast != 0 && p == c.rest && p != 0 && p <= c.part:
		c.rest = 0
	default:
		c.misshapen = true
	}
}

// settleLength notes that the newest operation of flow fl, a READ whose number of PSNs was unknown (unsure), takes k
// PSNs.
func (r *record) settleLength(fl *flow, k uint32) {
	o := &r.ops[fl.newest]
	fl.unsure = false
	o.npsn = k
	fl.next = psnAdd(o.spsn, k)
	fl.arrived = psnAdd(o.cpsn, k)
	fl.admitted = fl.arrived
	if k == 1 {
		fl.mtuLow = max(fl.mtuLow, o.len)
	}
	if !fl.early.Empty() {
		r.known = append(r.known, fl)
	}
}

// opens notes that operation o of c was given to a carrier.
func (c *client) opens(o *op) {
	c.mixed = c.open > 0 && (c.mixed || c.lane != o.lane)
	c.open++
	c.lane = o.lane
	if o.is(fBare) {
		c.bare++
	}
}

// closes notes that the server has answered operation o of c, or will not.
func (c *client) closes(o *op) {
	c.answerer = o.lane
	c.open--
	if o.is(fBare) {
		c.bare--
	}
	switch {
	case o.is(fAgain):
		o.flags &^= fAgain
		o.state = sDone
		c.rereads--
	case o.state == sUnsent:
		c.unsent++
	}
}
