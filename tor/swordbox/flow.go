package swordbox

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
)

var be, le = binary.BigEndian, binary.LittleEndian

// none stands for "no index" in fields that hold the index of an operation or a flow.
const none = int32(-1)

// psnLess reports whether PSN a is older than PSN b: at most 2^23 before it, modulo 2^24.
func psnLess(a, b uint32) bool { return (a-b)&(1<<23) != 0 }

func psnAdd(a, n uint32) uint32 { return (a + n) & hdr.PSNMask }

// noFlow is the value of a flow whose row has no connection, or one whose numbering is not taken over. It carries
// no operations. A word may still name such a flow as the one over which it was last reached.
var noFlow = flow{client: client{answerer: none, lane: none, cur: none}, carrier: carrier{oldest: none, newest: none}}

// flow is a connection. Its client (the requester) sends requests and gets answers in the client's numbering of
// PSNs. Its carrier (the server's end, the responder) executes requests of this client and of other clients in
// the server's numbering. The other fields serve both.
//
// A flow has no pointers, because it lies in memory that outlives the process (memory.go).
// The order of the fields keeps those that most frames need in few cache lines; see TestLines.
type flow struct {
	synced  bool // requests are on record, and both numberings are known
	seen    bool // not synced yet: arrived is known, and turns requests came in order
	trusted bool // synced, and the server has answered since: down and the MSN are known
	young   bool // followed lately, and both ends counted alike at that time: clients may still repeat requests from before start, which are not on record
	// onward is set when the server's PSNs are so far beyond start that they may wrap around to it.
	onward      bool
	bound       bool       // on record in memory that outlives the process: its two ends count differently
	quiet       bool       // quiet for so long that the server has to be asked whether its end is there; with lost: its end did not answer
	told        bool       // its client was told that it is lost
	start       uint32     // PSN of the first request on record
	shape       shape      // of frames to the server
	mtu, mtuLow uint32     // path MTU in bytes, 0: not known; and a lower bound of it
	lost        clock.Time // not 0: the connection was lost with another process, and its client is told of this at least until then

	client
	carrier

	late     hold.Queue // a duplicate that waits, at most one: of the client's oldest request in sUnsent, or of an answered READ
	notReady uint32     // with lags: PSN of the next packet that its client has to send again
	early    hold.Queue // requests behind a READ whose length is not known: see clientSide.wait
	proven   uint32     // bytes of the longest packet of a WRITE that the server acknowledged over this connection, if over leastProven: see unproven
	sumless  bool       // the first request on record had a wrong UDP checksum: its UDP checksums mean nothing
	unshared uint8      // operations of its client over its own connection since it last carried another client's READ or atomic, at most 255
	replayed uint16     // place on record, plus 1, of the READ that the server was last asked to answer again under its old PSNs: see order.replays
	msn      uint32     // not counted yet: with knownMSN, the server's MSN after operation number counts; counted: with newestMSN, the server's newest MSN
}

// mustRepeat reports whether f's client has to send requests again before new ones may go to the server: one for
// which the server had no receive buffer, and those behind it, which the server has dropped. If a new request came
// first, the server would send a NAK (PSN sequence error), which costs the client one of its retries.
func (f *flow) mustRepeat() bool { return f.lags && psnLess(f.acked, f.notReady) }

// catchesUp notes that f's client has sent packet off of o again (of a READ: the request from there on), which f
// carries. It returns true if that was the last request that the client had to send again (see mustRepeat).
func (f *flow) catchesUp(o *op, off uint32) bool {
	if !f.lags || psnAdd(o.spsn, off) != f.notReady {
		return false
	}
	if off++; o.kind == kRead {
		off = o.npsn
	}
	f.notReady = psnAdd(o.spsn, off)
	f.lags = psnLess(f.notReady, f.next)
	return !f.lags
}

// awaits reports whether the box holds requests of f's client that wait, in stall or late.
func (f *flow) awaits() bool { return !f.stall.Empty() || !f.late.Empty() }

// effMTU returns the path MTU in bytes, or the known lower bound if the path MTU is unknown.
func (f *flow) effMTU() uint32 {
	if f.mtu != 0 {
		return f.mtu
	}
	return f.mtuLow
}

// learnMTU learns the path MTU, or a lower bound, from the payload of b if b, with headers f, is a READ response.
func (fl *flow) learnMTU(f *hdr.Frame, b []byte) {
	switch f.Op {
	case hdr.ReadRespFirst, hdr.ReadRespMiddle:
		if fl.mtu == 0 {
			fl.mtu = uint32(len(f.PayloadOf(b)))
		}
	case hdr.ReadRespOnly:
		fl.mtuLow = max(fl.mtuLow, uint32(len(f.PayloadOf(b))))
	}
}

// mostOf returns the largest number of PSNs that the newest request of f can take. It is a READ of more bytes than
// mtuLow while the path MTU is unknown (see client.vague); the least path MTU is 256 bytes.
func (r *record) mostOf(f *flow) uint32 {
	n := f.vagueLen
	if f.unsure {
		n = r.ops[f.newest].len
	}
	return (n + 255) / 256
}

// leastProven is the payload in bytes that every path carries: the least path MTU of IBTA.
const leastProven = 256

// payload returns the length in bytes of the longest payload among the packets of WRITE o of flow f.
func (f *flow) payload(o *op) uint32 {
	if o.npsn > 1 {
		return min(o.len, f.effMTU())
	}
	return o.len
}

// unproven reports whether o, of flow f, is a WRITE with packets longer than all that the server has acknowledged over
// f. The path to the server may drop such packets, and the operations behind o would wait without end.
func (f *flow) unproven(o *op) bool {
	return o.kind == kWrite && o.len > leastProven && f.payload(o) > max(f.proven, leastProven)
}

// maxMessage is the length in bytes of the longest message (IBTA 9.7.2).
const maxMessage = 1 << 31

// full reports whether n bytes can be the payload of a packet that is not the last of its message: a path MTU of IBTA.
func full(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// learnPart learns the path MTU from request b, with headers f, if b is a first or middle packet of a SEND or WRITE.
// The PSN of b must be the expected one, because anybody can make up requests with other PSNs.
func (fl *flow) learnPart(f *hdr.Frame, b []byte) {
	info := f.Op.Info().Flags
	if fl.mtu == 0 && info&(hdr.IsFirst|hdr.IsMiddle) != 0 && info&(hdr.IsSend|hdr.IsWrite) != 0 {
		if p := uint32(len(f.PayloadOf(b))); full(p) {
			fl.mtu = p
		}
	}
}

// packets returns the number of PSNs that request b, with headers f, takes. Where a READ's is unknown, it returns 1.
func (fl *flow) packets(f *hdr.Frame, b []byte) uint32 {
	if f.Op.Info().Flags&hdr.IsRead == 0 {
		return 1
	}
	ln := f.RETHOf(b).DMALength()
	switch {
	case ln <= fl.mtuLow || ln > maxMessage:
		return 1
	case fl.mtu != 0:
		return (ln + fl.mtu - 1) / fl.mtu
	}
	return 1 // until the number is known: see client.vague
}

// inTurn follows the PSNs of a flow that is not synced. It reports whether request b, with headers f and PSN psn, has
// the expected PSN after at least two requests that had it, and begins a message.
func (fl *flow) inTurn(f *hdr.Frame, b []byte, psn uint32) bool {
	d := hdr.PSNDiff(psn, fl.arrived)
	if fl.seen && d < 0 {
		return false // a duplicate, or far away: the server may have executed requests with these PSNs
	}
	if !fl.seen || d > 0 {
		fl.turns = 0
	}
	k := fl.packets(f, b)
	if f.Op == hdr.ReadRequest && fl.mtu == 0 && f.RETHOf(b).DMALength() > max(fl.mtuLow, 256) {
		fl.turns = 0
	}
	ok := fl.turns >= 2 && f.Op.Info().Flags&(hdr.IsMiddle|hdr.IsLast) == 0
	fl.turns = min(fl.turns+1, 2)
	fl.arrived = psnAdd(psn, k)
	return ok
}

// confirmed reports whether an answer with PSN psn, or a NAK, shows that the server accepts the requests whose PSNs
// were far from the expected one (strange to strangeEnd). It returns false for a bound flow, whose two ends count
// differently: the server's own numbering may reach these PSNs.
func (fl *flow) confirmed(psn uint32) bool {
	return !fl.bound && fl.strange != fl.strangeEnd && hdr.PSNDiff(psn, fl.strange) >= 0 && hdr.PSNDiff(psn, fl.strangeEnd) < 0
}

// excuse moves the start of f's time-outs later by the time away in which the app did not run, but not beyond now,
// because the server could not be heard meanwhile.
func (f *flow) excuse(away clock.Duration, now clock.Time) {
	for _, t := range []*clock.Time{&f.began, &f.since, &f.silent, &f.loaded, &f.asked} {
		if *t != 0 {
			*t = min(t.Add(away), now)
		}
	}
}

// diverged reports whether the client and the server number the next request of f differently.
func (f *flow) diverged() bool { return f.next != f.admitted }
