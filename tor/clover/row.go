package clover

import (
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/prefetch"
	"github.com/quillon/quillon/tor/conn"
)

// pendingWrite is an entry that was written over a connection, and whose CAS was not yet steered or
// acknowledged.
type pendingWrite struct {
	name    uint64 // the key
	va      uint64
	end     uint32 // PSN of its last packet
	slot    int32  // address slot; noSlot if its key is not tracked
	key     int32  // key slot
	size    uint32
	rkey    uint32
	region  uint16 // noRegion until the server has acknowledged a WRITE under its R_Key
	version uint8
	tries   uint8 // number of appends that may have linked it
}

// maxWrites is the number of written entries of a connection that may wait for their CAS: one for each thread
// that shares the connection, and a few that never get a CAS (creations).
const maxWrites = 8

// traffic holds the connections that are followed, and their requests. rank finds where a request stands in
// the sequence of its connection, and op finds its record. state says which worker's turn owns what of it.
type traffic struct {
	conns *conn.Table
	rows  []row     // of the connections in conns
	ops   []op      // of the rows, window for each
	open  []openOps // by worker
}

// row is what the app knows of a reliable connection, beside the row in conn.Table with the same number:
// where the client's requests stand, by PSN, and what was done to them. A request moves the expected PSN if
// it has that PSN. Any other request does so only when the server has answered it.
type row struct {
	sid    int16  // number of the server; noServer until both directions were seen
	region uint16 // of the newest WRITE; noRegion: not known
	ahead  uint8  // requests in a row that were ahead of epsn
	nw     uint8
	head   uint8  // number of the newest record; its place is head modulo window
	unread bool   // the server has not acknowledged all written entries
	due    bool   // in answers.due
	begun  bool   // a request was seen, or an answer showed where the server is
	inside bool   // the next request may continue a message whose first packets passed
	unmet  bool   // has inherited CASes, or its ends are in question: it is not known whether they still belong to each other
	epsn   uint32 // next expected PSN of the client
	slack  uint32 // PSNs that an earlier READ may have taken beyond epsn
	acked  uint32 // newest PSN that the server has answered
	// The requests that were ahead of epsn had consecutive PSNs from aheadFrom on; the next would have
	// aheadTo.
	aheadFrom, aheadTo uint32
	answered           clock.Time // time of the newest answer
	count              standing   // whether answers count
	behind             uint8      // answers with an MSN before msn: late ones, or those of another connection with the same numbers; in standing askedAgain, messages after mark
	strayed            uint8      // time (coarse) at which a request was last ahead of its turn, while that frame may still be under way; 0: there is none. See strayFrom
	mark               uint32     // PSN of the last packet of the request whose answer is awaited; with soft, its answer may come together with later ones
	// By standing: counted: MSN of the newest answer, or of that on record (inherit). asked: number of
	// messages that passed after mark. based: MSN that the answer to the newest message must have.
	// askedAgain: MSN that the answer to mark must have.
	msn    uint32
	q      hold.Queue // answers that are held, in order
	heldTo uint32     // PSN of the last held answer
	// R_Key of the newest CAS of this connection that the server is known to have executed; marks are those
	// of its frame (marksOf). 0: there is none.
	proven uint32
	writes [maxWrites]pendingWrite
	marks  uint64
	// start is the front of a steered CAS's frame with marks startMarks, at least up to the end of the BTH;
	// startF are its headers. A CAS that is sent again gets this front.
	startMarks uint64
	start      [hdr.EthernetLen + hdr.MaxTags*hdr.VLANLen + hdr.IPv6Len + hdr.UDPLen + hdr.BTHLen]byte
	startF     hdr.Frame
	// Requests that were ahead of their turn had PSNs in the range of strayLen from strayFrom on (mostStray:
	// any from there on). They may still reach the server when their turn has come, before the requests that
	// pass with these PSNs then. So the latter do not count.
	strayLen  uint16
	strayFrom uint32
	// A row is a whole number of cache lines, because another worker may have the next row.
}

const (
	mostStray = 1<<16 - 1
	soft      = 1 << 31 // flag in row.mark
)

// standing says whether the server executes the requests that pass over a connection, as its count of
// messages (MSN) shows. A server acknowledges a request that it has executed before, or answers it from
// memory, without a check of its R_Key, rights or payload (IBTA 9.7.5.1.2). Somebody who can have requests
// executed unseen may begin with such ones. So no answer proves anything until the MSN has risen, between two
// answers, by the number of messages that passed between both, each of them once. From then on no request
// that passes in its turn was executed before, because the server is nowhere ahead of what has passed.
type standing uint8

const (
	uncounted  standing = iota
	asked               // the answer to the first of two messages is awaited
	based               // this answer has come
	askedAgain          // the answer to the second message is awaited
	counted
)

const noServer = -1

// take removes the i-th written entry that waits for its CAS.
func (r *row) take(i int) {
	r.nw--
	copy(r.writes[i:], r.writes[i+1:r.nw+1])
}

// linked removes the written entry at va that waits for its CAS, if there is one.
func (r *row) linked(va uint64) {
	for i := range r.writes[:r.nw] {
		if r.writes[i].va == va {
			r.take(i)
			return
		}
	}
}

// Kinds of an op.
const (
	opNone uint8 = iota
	opRead
	opCAS
	opOther // another request with its PSN passed: it is not known which of them was executed
)

// op is the record of a request that was sent on. With it the app treats a retransmission like the original,
// and turns the answer back.
type op struct {
	va, newVA uint64
	swap      uint64     // CAS: swap operand that the client sent; the compare operand is Fresh(cliVer)
	entry     uint64     // CAS: address of the new entry; 0: not known
	marks     uint64     // CAS: marksOf of the frames that brought it; 0: they differ
	sent      clock.Time // CAS: when it was last sent to the server
	psn       uint32
	epoch     uint32 // epoch of the key when the request passed
	cuts      uint32 // a steered CAS: keyState.cuts when the request passed
	n         uint32 // CAS: number of the append; READ: number of the tail's append
	rkey      uint32 // the client's R_Key, which is not changed
	key       int32  // key slot; noSlot: not known
	slot      int32  // CAS: address slot of the new entry
	// Neighbours in the list of steered CASes that have no answer and were repeated as often (opList):
	// places+1; 0: none.
	before, after int32
	npsn          uint16
	booked        uint16 // places kept for its answer (answers.booked)
	note          int32  // number of its record in the journal, plus 1; 0: none
	kind          uint8
	class         uint8 // READ: slab class of the entry
	cliVer        uint8 // version that the client expects at va
	newVer        uint8 // version of the entry at newVA
	repairs       uint8
	sure          bool   // CAS: it passed when answers counted, so its answer proves that it was executed
	list          uint16 // worker+1 in whose openOps it is; 0: none
	live          bool   // has no answer yet
	steered       bool
	asked         bool // a steered READ: a request for it has passed since its last answer. Other answers may be to another, unknown connection of the client's queue pair
	linked        bool // CAS: the append and all before it are known to be linked
	heir          bool // taken over from the journal: this process has not seen it
	past          bool // an heir: when the server was asked, it had executed a later request of the same client
	ask           bool // a steered CAS: another request with its PSN came, perhaps over another connection with the same numbers
}

// opList is a list of records; first and last are places+1; 0: none.
type opList struct{ first, last int32 }

// openOps holds the steered CASes that one worker met and that have no answer, in a list for each number of
// repetitions, in the order of op.sent. n is their number. One list for all workers would be a cache line
// that each CAS fetches from another worker's cache, and so would its neighbours in the list.
type openOps struct {
	lists [maxRepairs + 1]opList
	n     int
	_     [2*line - (maxRepairs+1)*8 - 8]byte
}

// compare returns the compare operand of a CAS, as the client sent it.
func (o *op) compare() uint64 { return uint64(wire.Fresh(o.cliVer)) }

// window is the number of a connection's READs and atomics on record: the usual limit of Clover and rxe for
// outstanding ones (max_rd_atomic).
const window = 16

// opsOf returns the records of row i, a ring.
func (s *traffic) opsOf(i int32) []op { return s.ops[int(i)*window : (int(i)+1)*window] }

// rank finds where request b of the connection with row r stands (p.order), and moves the expected PSN if the
// request has it. It notes nothing of a request that is early.
func (s *traffic) rank(p *parsed, r *row, b []byte) {
	n, slack := uint32(1), uint32(0)
	if p.fl&hdr.IsRead != 0 && p.f.RETHOf(b).DMALength() > leastMTU {
		n, slack = s.psnsOf(p, b)
	}
	d := hdr.PSNDiff(p.psn, r.epsn)
	p.psns, p.slack, p.acked, p.order, p.sure = n, uint16(min(slack, 1<<15)), r.acked, next, false
	switch {
	case r.sid == noServer:
		// The connection is only followed until its other direction is known.
		p.order = unpaired
		if !r.begun || d <= -lookback {
			r.acked = (p.psn - 1) & hdr.PSNMask
		}
		if !r.begun || d >= 0 || d <= -lookback {
			r.epsn, r.slack, r.begun = (p.psn+n)&hdr.PSNMask, slack, true
		}
	case d < 0 && d > -lookback && r.begun:
		p.order = repeated
		if r.count < counted {
			r.count = uncounted // of two requests with this PSN either may have been executed
		}
	case d < 0 || d > int32(r.slack) || !r.begun:
		p.order = early
	default:
		if p.sure = r.count == counted && r.strayed == 0; !p.sure {
			p.sure = r.tally(p)
		}
		switch {
		case p.f.Op == hdr.CompareSwap:
			p.psns = r.msn
			if !r.inside && (r.acked+1)&hdr.PSNMask == p.psn {
				p.order = alone
			}
		case r.slack > 0 && p.fl&hdr.IsRead != 0:
			p.order = within
		}
		r.inside = p.fl&(hdr.IsFirst|hdr.IsMiddle) != 0
		r.ahead, r.slack = 0, slack
		r.epsn = (p.psn + n) & hdr.PSNMask
	}
}

// tally notes a request that passes in its turn while answers do not count, or do not count for all requests.
// It reports whether the answer to this request counts.
//
//go:noinline
func (r *row) tally(p *parsed) (sure bool) {
	if r.strayed != 0 {
		if d := hdr.PSNDiff(p.psn, r.strayFrom); d >= 0 && (d < int32(r.strayLen) || r.strayLen == mostStray) {
			if r.count < counted {
				r.count = uncounted
			}
			return false
		}
	}
	if r.count == counted || r.unmet || p.fl&(hdr.IsOnly|hdr.IsLast) == 0 {
		return r.count == counted
	}
	mark := (p.psn + p.psns - 1) & hdr.PSNMask
	firm := p.fl&(hdr.IsRead|hdr.IsAtomic) != 0 && p.slack == 0 // its answer cannot come together with later ones
	if !firm {
		mark |= soft
	}
	again := firm && r.mark&soft != 0
	switch r.count {
	case uncounted:
		r.msn = 0
		again = firm || p.f.BTHOf(p.b).AckReq()
	case asked:
		if r.msn++; again {
			r.msn = 0
		}
	case based:
		r.msn++
		again = firm || p.f.BTHOf(p.b).AckReq()
	case askedAgain:
		if r.behind++; again {
			r.msn += uint32(r.behind)
		} else if r.behind == 1<<8-1 {
			r.count = uncounted
		}
	}
	r.msn &= 0xFFFFFF
	if again {
		r.mark, r.behind = mark, 0
		r.count |= 1
	}
	return false
}

// stray notes that requests with n PSNs from psn on were ahead of their turn.
func (r *row) stray(now clock.Time, psn, n uint32) {
	lo, hi := psn, (psn+n)&hdr.PSNMask
	if r.strayed != 0 {
		if hdr.PSNDiff(r.strayFrom, lo) < 0 {
			lo = r.strayFrom
		}
		if end := r.strayFrom + uint32(r.strayLen); r.strayLen == mostStray || hdr.PSNDiff(end, hi) > 0 {
			hi = end & hdr.PSNMask
		}
	}
	r.strayFrom, r.strayLen, r.strayed = lo, uint16(min((hi-lo)&hdr.PSNMask, mostStray)), coarse(now)
}

// counts notes the MSN of answer p, which answers requests up to PSN up, where more is to do than to store the newest one
// (see heard). newer says that some of these requests were not answered before.
func (r *row) counts(c *graph.Ctx, p *parsed, up uint32, newer bool) {
	h := p.aeth()
	switch r.count {
	case counted:
		switch d := int32((h.MSN() - r.msn) << 8); {
		case d > 0:
			r.msn = h.MSN()
		case d < 0:
			r.behind = min(r.behind+1, 1<<8-1)
			if newer {
				r.count = uncounted // the answer is of another connection with the same numbers
			}
		}
	case asked, askedAgain:
		switch d := hdr.PSNDiff(up, r.mark); {
		case d < 0:
		case d > 0 || p.psn != r.mark&hdr.PSNMask: // not every request gets an answer of its own
			r.count = uncounted
		case r.count == asked:
			r.count, r.msn = based, (h.MSN()+r.msn)&0xFFFFFF
		case h.MSN() == r.msn:
			r.count, r.behind, p.sure = counted, 0, true
		default:
			r.count = uncounted
		}
	}
	if r.strayed != 0 && coarse(c.Now())-r.strayed > fleeting {
		r.strayed = 0
	}
}

// coarse returns t in units of 2^26 ns (67 ms), modulo 256 and never 0. fleeting is the longest time, in
// these units, for which a frame is under way: a second.
func coarse(t clock.Time) uint8 { return max(1, uint8(t>>26)) }

const fleeting = 15

// heard notes that the server has answered the requests of a connection up to PSN up. The server has taken
// the requests that it answers. So if requests that were ahead of the expected PSN came in sequence with one
// of them, the expected PSN is the one after this sequence.
func (r *row) heard(c *graph.Ctx, p *parsed, up uint32) {
	r.answered = c.Now()
	p.order, p.acked, p.sure = repeated, r.acked, false
	if p.fl&(hdr.IsFirst|hdr.IsMiddle) != 0 {
		return // of a READ's answer: only the last packet has the PSN before that of the next request
	}
	if !r.begun { // the server shows where it is
		r.begun, r.epsn, r.acked = true, up, (up-1)&hdr.PSNMask
	}
	was := r.acked
	if hdr.PSNDiff(up, (r.epsn+r.slack)&hdr.PSNMask) >= 0 {
		r.epsn, r.slack = (up+1)&hdr.PSNMask, 0
		if r.ahead > 0 && hdr.PSNDiff(up, r.aheadFrom) >= 0 && hdr.PSNDiff(r.aheadTo, up) > 0 {
			r.epsn = r.aheadTo
		}
		r.ahead = 0
		r.count = uncounted // what it answers has not passed in its turn
	}
	if hdr.PSNDiff(up, r.acked) > 0 {
		p.order, p.acked, r.acked = newer, up, up
	}
	if d := int32((p.aeth().MSN() - r.msn) << 8); r.count != counted || r.strayed != 0 || d < 0 {
		r.counts(c, p, up, r.acked != was)
	} else if d > 0 {
		r.msn = p.aeth().MSN() // as most often
	}
}

// psnsOf returns the number of PSNs that a READ takes, one for each packet of its answer, and how many more
// it may take if the path MTU is not known.
func (s *traffic) psnsOf(p *parsed, b []byte) (n, slack uint32) {
	size, mtu := p.f.RETHOf(b).DMALength(), uint32(s.conns.Row(conn.Slot(p.row)).MTU)
	switch {
	case size <= leastMTU || size > 1<<31: // one packet, or a length that the server refuses
		return 1, 0
	case mtu != 0:
		return (size-1)/mtu + 1, 0
	}
	return 1, (size - 1) / leastMTU
}

// quietBefore returns how long the server must have answered nothing on connection i before another
// connection may have its numbers. If a READ was steered, and its answer was lost after it passed the app,
// the client may repeat the READ after a time-out of 17 s (IBTA 11.6.2: local ACK timeout 22).
func (s *traffic) quietBefore(i int32) time.Duration {
	ring := s.opsOf(i)
	for j := range ring {
		if o := &ring[j]; o.kind == opRead && o.steered {
			return 20 * time.Second
		}
	}
	return time.Second
}

// passed reports whether the inherited CAS o has no answer although the server was asked and had executed it:
// its client has had the answer and went on.
func (s *traffic) passed(i int32, o *op) bool {
	r := &s.rows[i]
	return o.heir && o.repairs >= 2 && !r.unmet && hdr.PSNDiff(r.acked, o.psn) >= 0
}

// op returns the record of the request of row i that took PSN psn, or nil if there is none.
func (s *traffic) op(i int32, psn uint32) *op {
	ring := int(i) * window
	for at, n := s.rows[i].head, 0; n < window; at, n = at-1, n+1 {
		o := &s.ops[ring+int(at%window)]
		if o.kind == opNone {
			return nil
		}
		switch d := hdr.PSNDiff(psn, o.psn); {
		case d >= 0 && d < int32(o.npsn):
			return o
		case d > 0:
			return nil
		}
	}
	return nil
}

// ahead makes the processor fetch the n-th record of row i, which is used next. All records together are
// larger than the processor's caches.
func (s *traffic) ahead(i int32, n uint8) {
	o := uintptr(unsafe.Pointer(&s.ops[int(i)*window+int(n%window)]))
	prefetch.Line(o)
	prefetch.Line(o + unsafe.Sizeof(op{}) - 1)
}

// lookback is the largest distance of a retransmission's PSN behind the expected one. unacked is the largest
// number of outstanding PSNs of a client that repeats an atomic without an answer (rxe's
// RXE_MAX_UNACKED_PSNS).
const (
	lookback = 1 << 22
	unacked  = 128
)

// delist takes record o out of its list in openOps.
func (s *traffic) delist(o *op) {
	if o.list == 0 {
		return
	}
	open := &s.open[o.list-1]
	l := &open.lists[o.repairs]
	if o.before != 0 {
		s.ops[o.before-1].after = o.after
	} else {
		l.first = o.after
	}
	if o.after != 0 {
		s.ops[o.after-1].before = o.before
	} else {
		l.last = o.before
	}
	open.n--
	o.list, o.before, o.after = 0, 0, 0
}

// place returns the place of row i's newest record among all records, placeOf that of o.
func (s *traffic) place(i int32) int32 { return i*window + int32(s.rows[i].head%window) }

func (s *traffic) placeOf(i int32, o *op) int32 {
	ring := s.opsOf(i)
	for j := range ring {
		if &ring[j] == o {
			return i*window + int32(j)
		}
	}
	return noSlot
}

const (
	sizeofRow = int(unsafe.Sizeof(row{}))
	sizeofOp  = int(unsafe.Sizeof(op{}))
)
