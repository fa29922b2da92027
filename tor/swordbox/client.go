package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
)

// client is the requester's side of a connection: what its client has sent, what was
// sent on of that, and what it has been told. All PSNs are as the client numbers.
//
// Its operations are in a ring (record.op) and numbered from 0 on, modulo 2^32:
//
//	first            head             tail
//	| answered       | not answered   | next
//
// head is where its oldest unacknowledged PSN is (una), and with base its MSN.
type client struct {
	gone      bool // its queue pair was sent a NAK that ends it, or it left
	failed    bool // or will be sent one: an operation of its failed
	gapNAK    bool // it sent a PSN beyond the expected one: a NAK (PSN sequence error) is owed
	toldGap   bool // and sent
	tellPart  bool // the server acknowledged packets of its oldest message, not all: it is to be told
	mixed     bool // its open ops are on several connections
	isReady   bool // in order.ready
	waits     bool // in waits.all
	vague     bool // its newest request is a READ of vagueLen bytes that waits here. As the path MTU is not known, nor is how many PSNs it takes
	unsure    bool // its newest op is such a READ that was sent on, over its own connection: its answer tells
	doomed    bool // no connection can carry its next request: it was sent a NAK, and will be gone
	doubted   bool // from operation number again on answers are to be given once more, when the server was heard
	owes      bool // an acknowledgement is due when no READ is done again any more
	misshapen bool // its requests contradict themselves (see measure)
	// syn is the syndrome of an acknowledgement (with its credits), as the server gives it.
	syn               hdr.Syndrome
	may               uint8      // accesses (1 << access) that its queue pair at the server was seen to have the right to
	arrived, admitted uint32     // the expected PSN; and that of what is sent on next
	head, tail        uint32     // ops: oldest that is not answered, and next
	first             uint32     // oldest that is remembered
	span              uint32     // how many are remembered: the ring's places, a power of two
	unsent            int32      // ops on record with sUnsent
	open              int32      // ops that the server has not answered
	bare              int32      // of these, with fBare
	lane              int32      // connection of the youngest open op
	cur               int32      // op of a message whose packets are still coming; none
	base              uint32     // MSN before the first operation on record: see released
	answerer          int32      // connection that the newest answer came over
	stall             hold.Queue // requests that wait
	rest, part        uint32     // bytes of the WRITE at hand that are to come, and in each of its packets
	latest            grant      // the newest of carrier.grants: most requests need no other

	down     header       // of frames to it
	ended    uint32       // PSN of the request that ended its queue pair
	rereads  int32        // READs that are done again
	again    uint32       // see doubted
	verdict  hdr.Syndrome // of the NAK that ended its queue pair; 0: another one
	turns    uint8        // see flow.seen
	vagueLen uint32       // see vague
	counts   uint32       // see flow.msn
	pastAt   uint32       // of past, as often as it was filled
	began    clock.Time   // when the message of cur began
	past     [16]past     // answers to atomics that are not on record any more
}

// released is how many of its messages are answered, modulo 2^24 (IBTA: MSN).
func (c *client) released() uint32 { return (c.base + c.head) & 0xFFFFFF }

// una is the PSN of the oldest request of flow f that its client has no answer to
// (IBTA: oldest unacknowledged PSN).
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

// op is operation number k (as flow.head counts) of flow f.
func (r *record) op(f *flow, k uint32) *op {
	return &r.ops[r.index(f)<<(r.shift&31)+int32(k&(f.span-1))]
}

// find is the operation of flow fl that PSN psn belongs to; none if it is not on
// record.
func (r *record) find(fl *flow, psn uint32) (o *op, k uint32) {
	lo, hi := fl.first, fl.tail // the last one that begins at or before psn
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

// unsentBefore reports whether an operation of flow fl before number k waits to
// be sent by its client again.
func (r *record) unsentBefore(fl *flow, k uint32) bool {
	for j := fl.head; j != k; j++ {
		if o := r.op(fl, j); o.state == sUnsent {
			return true
		}
	}
	return false
}

// narrow is the number of operations of a connection that are remembered to
// begin with: what rxe has in flight at most (RXE_MAX_UNACKED_PSNS). Few of
// them stay in the processor's cache.
const narrow = 128

// grow makes room to remember twice as many operations of flow fl, when none of
// them is open: false while that is not so, or when there is no room.
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

// otherPlace is the place of the next operation of flow fl in a wider ring; nil when there is none, or it is taken, too.
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

// roomiest is the number (as flow.head counts) that operations of flow fl, of which none is on record, are to begin with: before the most places in a row that
// hold nothing of the connection that had the row before. That may go on over another's connection, and keeps its place meanwhile. Where that leaves
// few, more are remembered from the start (flow.span).
func (n *order) roomiest(fl *flow) (begin uint32) {
	for ; ; fl.span *= 2 {
		most := uint32(0)
		for k, free := uint32(0), uint32(0); k < 2*fl.span && most < fl.span; k++ { // twice, as the last place has the first one behind it
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

// mostUnacked is the most PSNs that a connection has under way when it takes one more
// request, and that are remembered of its client's: PSNs are compared within half of
// all there are, which is twice as many.
const mostUnacked = 1 << 22

// isFar reports whether its newest request is far beyond its operation o.
func (c *client) isFar(o *op) bool { return (c.admitted-o.cpsn)&hdr.PSNMask > mostUnacked }

// fade forgets the oldest requests of flow fl, which were answered, when the newest are
// far beyond.
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

// past is the answer to an atomic whose record was needed for another operation.
type past struct {
	va, prior uint64
	psn       uint32
	sum       uint32 // of the others, and not 0: a process may end while it writes them
}

func (p *past) check() uint32 { return hash(p.va^p.prior<<1^uint64(p.psn)<<40) | 1 }

// whole reports whether there is an answer.
func (p *past) whole() bool { return p.sum == p.check() }

// outlive keeps the answer to o, whose record is needed, when it is an atomic: a
// responder remembers as many as its client may have under way (16: what Linux
// and most devices offer at most), however many other operations came since.
func (c *client) outlive(o *op) {
	if o.kind.atomic() && o.state == sDone && !o.is(fOrphan) {
		p := past{va: o.va, prior: o.prior, psn: o.cpsn}
		p.sum = p.check()
		c.past[c.pastAt&15] = p
		c.pastAt++
	}
}

// measure follows the payloads of a client's WRITEs, packet by packet. The server
// refuses those that do not add up to the length that they say, and what is between
// the packets of one (IBTA 9.7.4.1): nothing of such a client goes over another's
// connection any more, which the refusal would end.
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

// settleLength notes that the READ of unknown length that flow fl sent last
// takes k packets.
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

// opens notes that its operation o was given to a carrier.
func (c *client) opens(o *op) {
	c.mixed = c.open > 0 && (c.mixed || c.lane != o.lane)
	c.open++
	c.lane = o.lane
	if o.is(fBare) {
		c.bare++
	}
}

// closes notes that its operation o is not open any more.
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
