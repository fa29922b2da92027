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

// pendingWrite is an entry that was written over a connection and whose CAS
// has not been steered or acknowledged yet.
type pendingWrite struct {
	name    uint64 // the key
	va      uint64
	end     uint32 // PSN of its last packet
	slot    int32  // address slot; noSlot when its key is not tracked
	key     int32  // its slot
	size    uint32
	rkey    uint32
	region  uint16 // noRegion until the server has acknowledged a WRITE under its R_Key
	version uint8
	tries   uint8 // appends that may have linked it
}

// maxWrites is the number of written entries that a connection may have
// waiting for their CAS: one a thread that shares it, and a few that never
// get one (creations).
const maxWrites = 8

// traffic is the connections that are followed, and the requests on them: it finds where a request
// stands (rank), and its record (op). Which worker's turn owns what of it is said at state.
type traffic struct {
	conns *conn.Table
	rows  []row     // of the connections in conns
	ops   []op      // of the rows, window each
	open  []openOps // by worker
}

// row is what is known of a reliable connection beside its row in conn.Table,
// which has the same number: where its client's requests stand, in terms of
// PSNs, and what was done to them. Requests move the numbers on when they are
// the next in turn; anything else only when the server has answered it.
type row struct {
	sid    int16  // server number; noServer until both directions were seen
	region uint16 // of the newest WRITE; noRegion: not known
	ahead  uint8  // requests in a row that were ahead of epsn
	nw     uint8
	head   uint8  // newest record, modulo window
	unread bool   // an entry that was written waits for its acknowledgement
	due    bool   // in answers.due
	begun  bool   // a request was seen
	inside bool   // the next request may be inside a message: its first packets passed
	unmet  bool   // of inherited CASes; whether its ends are still each other's is not known
	epsn   uint32 // next PSN expected of the client
	slack  uint32 // PSNs that an earlier READ may have used beyond epsn
	acked  uint32 // newest PSN that the server answered
	// The requests that were ahead of epsn came in sequence from PSN aheadFrom
	// on, and the next would be aheadTo.
	aheadFrom, aheadTo uint32
	answered           clock.Time // newest answer
	count              standing   // whether answers count
	behind             uint8      // answers with an MSN before msn: late ones, or another connection's with these numbers; until answers count, messages behind mark
	strayed            uint8      // when (coarse) a request was ahead of its turn last, not longer ago than a frame is on its way; 0: none was: see strayFrom
	mark               uint32     // PSN of the last packet of the request whose answer is awaited; soft: it may be answered with later ones
	// MSN of the newest answer; of a connection that was on record, when that was written. Until answers count, what that to the newest message must have, or to mark
	// (askedAgain); less what the first answer, which is awaited, has (asked).
	msn    uint32
	q      hold.Queue // answers that are held, in their order
	heldTo uint32     // PSN of the last of them
	// The server has executed a CAS of this connection under R_Key proven, in a frame with these marks
	// (marksOf); 0: it has not, as far as is known.
	proven uint32
	writes [maxWrites]pendingWrite
	marks  uint64
	// start is how a steered CAS's frame began that had startMarks, at least up to the end of the
	// BTH: a CAS that is sent again begins with that. The frame's layout is startF.
	startMarks uint64
	start      [hdr.EthernetLen + hdr.MaxTags*hdr.VLANLen + hdr.IPv6Len + hdr.UDPLen + hdr.BTHLen]byte
	startF     hdr.Frame
	// Requests that were ahead of their turn had PSNs from strayFrom on, not more than strayLen (mostStray: any number). They may come to the server when it is their turn, before
	// what passes in its turn then: that does not count.
	strayLen  uint16
	strayFrom uint32
	// These are whole lines of the cache: another worker may have the next row.
}

const (
	mostStray = 1<<16 - 1
	soft      = 1 << 31 // in row.mark
)

// standing says whether the server executes what passes over a connection, as its count of messages (MSN) shows. What it has executed before it acknowledges, or
// answers from memory, without a look at R_Key, right or payload (IBTA 9.7.5.1.2), and whoever has requests executed that are not seen may begin with
// such. So no answer shows anything before the MSN has risen, from one answer to another, by the messages that passed between both, each of them once. Then nothing
// that passes in its turn was executed before: the server is nowhere ahead of what has passed.
type standing uint8

const (
	uncounted  standing = iota
	asked               // the answer to the first of two messages is awaited
	based               // it came
	askedAgain          // that to the second is awaited
	counted
)

const noServer = -1

// take removes the i-th waiting entry.
func (r *row) take(i int) {
	r.nw--
	copy(r.writes[i:], r.writes[i+1:r.nw+1])
}

// linked removes the waiting entry at va, if there is one.
func (r *row) linked(va uint64) {
	for i := range r.writes[:r.nw] {
		if r.writes[i].va == va {
			r.take(i)
			return
		}
	}
}

// op kinds.
const (
	opNone uint8 = iota
	opRead
	opCAS
	opOther // another request passed with its PSN: nobody knows which of them was executed
)

// op is a request that was forwarded: what was done to it, so that its
// retransmission takes the same road and its answer can be turned back.
type op struct {
	va, newVA uint64
	swap      uint64     // CAS: as the client sent it; it compares with Fresh(cliVer)
	entry     uint64     // CAS: address of the new entry; 0: not known
	marks     uint64     // CAS: of the frames that brought it; 0: they differ
	sent      clock.Time // CAS: last sent to the server
	psn       uint32
	epoch     uint32 // of the key when the request passed
	n         uint32 // CAS: number of the append; READ: of the tail's
	rkey      uint32 // as the client sent it, and as it is sent
	key       int32  // key slot; noSlot: not attributed
	slot      int32  // CAS: address slot of the new entry
	// The list of steered CASes that are not answered, by how often they were
	// repeated: places+1; 0: none.
	before, after int32
	npsn          uint16
	booked        uint16 // places for its answer (answers.booked)
	note          int32  // its record in the journal+1; 0: none
	kind          uint8
	class         uint8 // READ: of the entry
	cliVer        uint8 // version that the client expects at va
	newVer        uint8 // version at newVA
	repairs       uint8
	sure          bool   // CAS: its answer says that it was executed: it passed when answers counted
	list          uint16 // worker+1 whose openOps it is in; 0: none
	live          bool   // not answered yet
	steered       bool
	asked         bool // a steered READ: its request passed since it was answered last. What comes besides may be to another connection of the client's queue pair, of which nothing is known
	linked        bool // CAS: the append, and all before it, are known to be linked
	heir          bool // it was on record: this process has not seen it
	past          bool // an heir: the server had executed a later request of its client when it was asked
	ask           bool // a steered CAS: another request with its PSN came, maybe over another connection with these numbers
}

// opList is a list of records, by their places+1; 0: none.
type opList struct{ first, last int32 }

// openOps are steered CASes that a worker met and that are not answered, by how often
// they were repeated, each list in the order of op.sent; and how many there are. A list of
// all workers' would be a line of memory that each CAS has to get from another worker, and
// so would be its neighbours in the list.
type openOps struct {
	lists [maxRepairs + 1]opList
	n     int
	_     [2*line - (maxRepairs+1)*8 - 8]byte
}

// compare is what a CAS compares with, as the client sent it.
func (o *op) compare() uint64 { return uint64(wire.Fresh(o.cliVer)) }

// window is the number of READs and atomics of a connection that are
// remembered: Clover's and rxe's usual limit of outstanding ones
// (max_rd_atomic).
const window = 16

// opsOf are the records of row i, a ring.
func (s *traffic) opsOf(i int32) []op { return s.ops[int(i)*window : (int(i)+1)*window] }

// rank finds where a request of a connection, whose row is r, stands, and moves the expected
// PSN on if it is the next. Of one that is early nothing is noted.
func (s *traffic) rank(p *parsed, r *row, b []byte) {
	n, slack := uint32(1), uint32(0)
	if p.fl&hdr.IsRead != 0 && p.f.RETHOf(b).DMALength() > leastMTU {
		n, slack = s.psnsOf(p, b)
	}
	d := hdr.PSNDiff(p.psn, r.epsn)
	p.psns, p.slack, p.acked, p.order, p.sure = n, uint16(min(slack, 1<<15)), r.acked, next, false
	switch {
	case r.sid == noServer:
		// Only followed, until its other direction is known.
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
			r.count = uncounted // of two with this PSN one may have been executed
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

// tally notes a request in its turn while answers do not count, or not to all that passes, and reports whether they do to this one.
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
	firm := p.fl&(hdr.IsRead|hdr.IsAtomic) != 0 && p.slack == 0 // it has an answer of its own
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

// counts notes the MSN of an answer up to a PSN: p; newer: it is to more than was answered before.
func (r *row) counts(c *graph.Ctx, p *parsed, up uint32, newer bool) {
	h := p.f.AETHOf(p.b)
	switch r.count {
	case counted:
		switch d := int32((h.MSN() - r.msn) << 8); {
		case d > 0:
			r.msn = h.MSN()
		case d < 0:
			r.behind = min(r.behind+1, 1<<8-1)
			if newer {
				r.count = uncounted // of another connection with these numbers
			}
		}
	case asked, askedAgain:
		switch d := hdr.PSNDiff(up, r.mark); {
		case d < 0:
		case d > 0 || p.psn != r.mark&hdr.PSNMask: // not every request is answered by itself
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

// coarse is a time in units of 67 ms, not 0, and fleeting how long a frame is on its way at most, in these: a second.
func coarse(t clock.Time) uint8 { return max(1, uint8(t>>26)) }

const fleeting = 15

// heard notes that the server has answered requests of a connection up to a PSN. What it answers it has taken: requests that came in sequence with it, ahead of
// where they were expected, are where it is.
func (r *row) heard(c *graph.Ctx, p *parsed, up uint32) {
	r.answered = c.Now()
	p.order, p.acked, p.sure = repeated, r.acked, false
	if p.fl&(hdr.IsFirst|hdr.IsMiddle) != 0 {
		return // of a READ's answer: the last packet has the PSN before that of the next request
	}
	if !r.begun { // the server says where it is
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
	r.counts(c, p, up, r.acked != was)
}

// psnsOf is how many PSNs a READ takes, one a packet of its answer, and how many
// more it may take beyond them.
func (s *traffic) psnsOf(p *parsed, b []byte) (n, slack uint32) {
	size, mtu := p.f.RETHOf(b).DMALength(), uint32(s.conns.Row(conn.Slot(p.row)).MTU)
	switch {
	case size <= leastMTU || size > 1<<31: // or empty, or to be refused
		return 1, 0
	case mtu != 0:
		return (size-1)/mtu + 1, 0
	}
	return 1, (size - 1) / leastMTU
}

// quietBefore is how long a server has answered nothing on connection i that may be another
// one by now. Where a READ was led elsewhere, and its answer lost behind the app, the
// client may repeat it after a time-out of 17 s (IBTA 11.6.2: local ACK timeout 22).
func (s *traffic) quietBefore(i int32) time.Duration {
	ring := s.opsOf(i)
	for j := range ring {
		if o := &ring[j]; o.kind == opRead && o.steered {
			return 20 * time.Second
		}
	}
	return time.Second
}

// passed reports whether an inherited CAS has not been answered though the server is
// past it, and was asked: its client has had the answer, and went on.
func (s *traffic) passed(i int32, o *op) bool {
	r := &s.rows[i]
	return o.heir && o.repairs >= 2 && !r.unmet && hdr.PSNDiff(r.acked, o.psn) >= 0
}

// op is the record of the request of row i that used PSN psn; nil if there is
// none.
func (s *traffic) op(i int32, psn uint32) *op {
	ring := (*[window]op)(s.opsOf(i))
	for at, n := s.rows[i].head, 0; n < window; at, n = at-1, n+1 {
		o := &ring[at%window]
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

// ahead has the processor fetch the n-th place of row i, the next to be used: all of them
// are more than its caches keep beside all else.
func (s *traffic) ahead(i int32, n uint8) {
	o := uintptr(unsafe.Pointer(&s.ops[int(i)*window+int(n%window)]))
	prefetch.Line(o)
	prefetch.Line(o + unsafe.Sizeof(op{}) - 1)
}

// lookback is how far back a PSN may be and still be a retransmission; unacked is how many a client has
// outstanding at most that asks again when an atomic has no answer (rxe's
// RXE_MAX_UNACKED_PSNS).
const (
	lookback = 1 << 22
	unacked  = 128
)

// delist takes a record out of the list of those that are not answered.
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

// place is where the newest record of row i is among all, and placeOf where o is.
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
