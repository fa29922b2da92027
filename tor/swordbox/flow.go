package swordbox

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
)

var be, le = binary.BigEndian, binary.LittleEndian

// none is no index.
const none = int32(-1)

// psnLess reports whether a is older than b.
func psnLess(a, b uint32) bool { return (a-b)&(1<<23) != 0 }

func psnAdd(a, n uint32) uint32 { return (a + n) & hdr.PSNMask }

// noFlow is of a row without a connection, or whose numbering is not taken over: words
// may still name it as the one that they were last reached over, and it carries nothing.
var noFlow = flow{client: client{answerer: none, lane: none, cur: none}, carrier: carrier{oldest: none, newest: none}}

// flow is a connection: a client, which sends requests in its own numbering of PSNs
// and gets answers in it, and a carrier, the server's end, which executes requests in
// the server's numbering: its client's, and those of others. What both need of it is
// here.
//
// It has no pointers, since it lies in memory that outlives the process (memory.go).
// Its fields are in the order of the lines of the processor's cache that most frames
// need; see TestLines.
type flow struct {
	synced  bool // requests are on record, and both numberings are known
	seen    bool // before that: arrived is known, and turns requests came in order
	trusted bool // since then the server has answered: down, and the MSN, are known
	young   bool // followed lately: clients may still repeat requests from before start, which are not on record; then both ends counted alike
	// onward: the server's PSNs are far beyond start, and may come round to it.
	onward      bool
	bound       bool       // on record in memory that outlives the process: its two ends count differently
	quiet       bool       // for so long that it is time to see whether the server's end is there
	told        bool       // its client was told that it is lost
	start       uint32     // PSN of the first request on record
	shape       shape      // of frames to the server
	mtu, mtuLow uint32     // path MTU, 0: not known; and what it is at least
	lost        clock.Time // of a connection lost with another process: until then its client is told, at least

	client
	carrier

	late     hold.Queue // a repetition of its client's that waits: of the oldest request with sUnsent, or of a READ that was answered
	notReady uint32     // with lags: PSN that its client has to send again next
	early    hold.Queue // requests behind a READ whose length is not known: see clientSide.wait
	proven   uint32     // the longest payload of a WRITE's packet that the server acknowledged over this connection, if over leastProven: see unproven
	sumless  bool       // its UDP checksums say nothing: that of the first request on record was wrong
	unshared uint8      // operations of its client over its own connection since another's READ or atomic was sent over it, at most 255
	replayed uint16     // the READ that the server was last asked to answer again under its old PSNs: its place on record, plus 1; see order.replays
	msn      uint32     // until it is counted: with knownMSN the MSN that the server had after operation number counts; then, with newestMSN, the newest that it has said
}

// mustRepeat reports whether f's client has to send requests again before new ones may go: one for which the
// server had no receive buffer, and those behind it, which the server has thrown away. It asks for them when
// another one comes first, which costs the client a try.
func (f *flow) mustRepeat() bool { return f.lags && psnLess(f.acked, f.notReady) }

// catchesUp notes that f's client has sent o, which its own connection carries, again from its packet off
// on. True when that was the last of what it had to send again.
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

// awaits reports whether requests of f's client wait here.
func (f *flow) awaits() bool { return !f.stall.Empty() || !f.late.Empty() }

// effMTU is the most that one packet is known to carry.
func (f *flow) effMTU() uint32 {
	if f.mtu != 0 {
		return f.mtu
	}
	return f.mtuLow
}

// learnMTU learns a path MTU from packets of READ responses.
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

// mostOf is how many PSNs the newest request, a READ of unknown length, takes at the most.
func (r *record) mostOf(f *flow) uint32 {
	n := f.vagueLen
	if f.unsure {
		n = r.ops[f.newest].len
	}
	return (n + 255) / 256
}

// leastProven is the longest payload that each way carries (IBTA: the least path MTU).
const leastProven = 256

// payload is the longest payload of a packet of WRITE o of flow f.
func (f *flow) payload(o *op) uint32 {
	if o.npsn > 1 {
		return min(o.len, f.effMTU())
	}
	return o.len
}

// unproven reports whether the packets of o, of flow f, are longer than all that the server has acknowledged over its client's connection: the
// way to the server may not carry them, and then what is behind them would wait without end.
func (f *flow) unproven(o *op) bool {
	return o.kind == kWrite && o.len > leastProven && f.payload(o) > max(f.proven, leastProven)
}

// maxMessage is the longest message (IBTA 9.7.2: 2^31 bytes).
const maxMessage = 1 << 31

// full reports whether n bytes are the payload of a packet that is not its
// message's last.
func full(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// learnPart learns a path MTU from request b, with headers f, which comes in its turn: others
// anybody can make up.
func (fl *flow) learnPart(f *hdr.Frame, b []byte) {
	info := f.Op.Info().Flags
	if fl.mtu == 0 && info&(hdr.IsFirst|hdr.IsMiddle) != 0 && info&(hdr.IsSend|hdr.IsWrite) != 0 {
		if p := uint32(len(f.PayloadOf(b))); full(p) {
			fl.mtu = p
		}
	}
}

// packets is the number of PSNs that request b, with headers f, takes.
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
	return 1 // for the time being: see client.vague
}

// inTurn follows the numbering of a flow that is not synced: it reports whether
// a request is the one that comes next, after others that were.
func (fl *flow) inTurn(f *hdr.Frame, b []byte, psn uint32) bool {
	d := hdr.PSNDiff(psn, fl.arrived)
	if fl.seen && d < 0 {
		return false // a repetition, or one from far away: what the server has executed already may lie there
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

// confirmed reports whether an answer with PSN psn, also a refusal, says that the server has come to
// requests that were far from what is expected of flow fl. It says nothing where the
// two ends count differently: the server's numbers may reach those, too.
func (fl *flow) confirmed(psn uint32) bool {
	return !fl.bound && fl.strange != fl.strangeEnd && hdr.PSNDiff(psn, fl.strange) >= 0 && hdr.PSNDiff(psn, fl.strangeEnd) < 0
}

// excuse takes the time that this app was away for none of f's silence: nobody
// could be heard.
func (f *flow) excuse(away clock.Duration, now clock.Time) {
	for _, t := range []*clock.Time{&f.began, &f.since, &f.silent, &f.loaded, &f.asked} {
		if *t != 0 {
			*t = min(t.Add(away), now)
		}
	}
}

// diverged reports whether the two ends of the connection count differently.
func (f *flow) diverged() bool { return f.next != f.admitted }
