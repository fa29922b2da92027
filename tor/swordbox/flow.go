package swordbox

import (
	"time"

	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/hold"
)

var be, le = binary.BigEndian, binary.LittleEndian

// none is no index.
const none = int32(-1)

// kind of an operation.
type kind uint8

const (
	kSend        kind = iota // SEND and whatever else belongs to one queue pair alone
	kWrite                   // RDMA WRITE
	kRead                    // RDMA READ
	kCAS                     // COMPARE SWAP
	kFAA                     // FETCH ADD
	kMaskedCAS               // masked COMPARE SWAP
	kOtherAtomic             // an atomic whose effect is not computed here
	kOdd                     // ATOMIC WRITE, FLUSH: answered by an empty READ RESPONSE
)

func (k kind) atomic() bool { return k >= kCAS && k <= kOtherAtomic }

// effMTU is the most that one packet is known to carry.
func (f *flow) effMTU() uint32 {
	if f.mtu != 0 {
		return f.mtu
	}
	return f.mtuLow
}

// kindOf is the kind of an atomic.
func kindOf(op hdr.Opcode) kind {
	switch op {
	case hdr.CompareSwap:
		return kCAS
	case hdr.FetchAdd:
		return kFAA
	case hdr.MaskedCompSwap:
		return kMaskedCAS
	}
	return kOtherAtomic
}

// state of an operation.
type state uint8

const (
	sOpen   state = iota // sent to the server, not answered
	sDone                // answered
	sFailed              // answered with a NAK that its client must see
	sUnsent              // known not to have been executed; its retransmission is a new one
)

// flags of an operation.
const (
	fReplaced uint16 = 1 << iota // an atomic sent as a WRITE of eight bytes
	fAckReq                      // its client asked for an answer
	fRight                       // the server was seen to let its client do the like
	fOdd                         // of an odd generation of free operations (grace)
	fLoose                       // not in order with its word's other operations
	fProbe                       // its answer is to fill the word
	fBare                        // others of its client must stay behind it
	fGuest                       // on another's connection
	fOwn                         // must go over its client's own connection
	fForetold                    // it goes as it is, and its outcome is known
	fPrompt                      // its client must be told a NAK about it: more.syn
	fKept                        // its packets are held, to be sent again here
	fUnkept                      // only its client can send it again
	fAgain                       // a READ that was answered and is done again
	fOrphan                      // nobody waits for it
	fEarly                       // its answer is here, and one before it is missing
)

// op is a client's operation (IBTA: message), from its first packet on. It is
// as long as a line of the processor's cache.
type op struct {
	va    uint64 // first byte
	out   uint64 // operand: of a WRITE of eight bytes, a swap, an addend; replaced: what is written; of a READ: see held
	prior uint64 // answer of an atomic, until then a CAS's compare
	cpsn  uint32 // first PSN, as its client numbers
	spsn  uint32 // first PSN on the connection that carries it
	npsn  uint32
	len   uint32 // bytes of memory
	rkey  uint32
	got   uint32 // packets of a READ's answer that came
	lane  int32  // flow whose connection carries it
	next  int32  // op behind it there
	word  int32
	flags uint16
	kind  kind
	state state
}

// more is what few operations need, beside op.
type more struct {
	want uint64 // what an atomic must find in its word, with fForetold; with fProbe, its compare
	// Of a masked atomic, and with fProbe: the masks of its comparison and of its
	// swap.
	compareMask, swapMask uint64
	belief                uint32 // that want is of, with fForetold: the low bits of its number
	nak                   uint32 // with sFailed and fPrompt: syndrome of the NAK (8 bits), and the packet that it is about (24)
}

func (m *more) setNAK(syn hdr.Syndrome, packet uint32) {
	m.nak = uint32(syn)<<24 | packet&hdr.PSNMask
}

func (m *more) syndrome() hdr.Syndrome { return hdr.Syndrome(m.nak >> 24) }

// held are the packets that are held of o: of a READ's answer, or, with fKept, its
// own. With hold they are q.
func (o *op) held() hold.Queue { return hold.QueueOf(int32(o.out), int32(o.out>>32)) }

func (o *op) hold(q hold.Queue) { o.out = uint64(uint32(q.Last()))<<32 | uint64(uint32(q.First())) }

// holds reports whether packets are held of o: of a READ's answer, or, with
// fKept, its own.
func (o *op) holds() bool { return (o.kind == kRead || o.is(fKept)) && o.out != 0 }

func (o *op) is(f uint16) bool { return o.flags&f != 0 }

// asAtomic reports whether o is an atomic for the server, too.
func (o *op) asAtomic() bool { return o.kind.atomic() && !o.is(fReplaced) }

// wide reports whether o touches more than one aligned word, or a part of two.
func (o *op) wide() bool { return o.len > 8 || o.len != 0 && o.va&7 != 0 }

// modifies reports whether o changes memory.
func (o *op) modifies() bool { return o.len != 0 && o.kind != kRead && o.kind != kSend }

// answered reports whether the server answers o itself, not only acknowledges it
// with others, and needs one of its responder resources for that.
func (o *op) answered() bool { return o.kind == kRead || o.kind == kOdd || o.asAtomic() }

// last is the PSN of its last packet, as its client numbers.
func (o *op) last() uint32 { return (o.cpsn + o.npsn - 1) & hdr.PSNMask }

// header is a frame's front up to the end of the BTH.
type header struct {
	l3, l4, bth uint8
	net         uint8
	b           [14 + 2*4 + 40 + 8 + hdr.BTHLen]byte
}

func (h *header) known() bool { return h.bth != 0 }
func (h *header) len() int    { return int(h.bth) + hdr.BTHLen }

// learn takes the front of frame b; false when it has IP options or extension
// headers, which frames made from it would have to carry.
func (h *header) learn(b []byte, f *hdr.Frame) bool {
	n := int(f.BTH) + hdr.BTHLen
	l3 := hdr.IPv6Len
	if f.Net == hdr.NetIPv4 {
		l3 = hdr.IPv4Len
	}
	l4 := 0
	if f.L4 != 0 {
		l4 = hdr.UDPLen
	}
	if n > len(h.b) || n != int(f.L3)+l3+l4+hdr.BTHLen {
		return false
	}
	copy(h.b[:n], b)
	h.l3, h.l4, h.bth, h.net = uint8(f.L3), uint8(f.L4), uint8(f.BTH), f.Net
	noUDPSum(h.b[:], f)
	if f.ECNOf(b) == hdr.CE {
		f.SetECN(h.b[:], hdr.ECT0) // the mark is of this frame alone
	}
	return true
}

// frame says where the headers of frames that begin with h are.
func (h *header) frame() *hdr.Frame {
	return &hdr.Frame{Net: h.net, L3: uint16(h.l3), L4: uint16(h.l4), BTH: uint16(h.bth)}
}

// alike reports whether frames of two headers differ in field values alone.
func (h *header) alike(o *header) bool {
	return h.l3 == o.l3 && h.l4 == o.l4 && h.bth == o.bth && h.net == o.net
}

// fits reports whether h can be put on parsed frame f.
func (h *header) fits(f *hdr.Frame) bool {
	return uint16(h.l3) == f.L3 && uint16(h.l4) == f.L4 && uint16(h.bth) == f.BTH && h.net == f.Net
}

// address gives a frame that h fits on the addresses of h: Ethernet, VLAN, IP,
// UDP source port, P_Key and queue pair, and the treatment on the way that belongs
// to them: class of traffic, hops. An ECN mark stays with the frame. The ICRC is
// left.
func (h *header) address(b []byte) {
	if h.l3 == hdr.EthernetLen {
		*(*[hdr.EthernetLen]byte)(b) = [hdr.EthernetLen]byte(h.b[:])
	} else {
		copy(b[:h.l3], h.b[:h.l3])
	}
	to, from := b[h.l3:], h.b[h.l3:]
	if h.net == hdr.NetIPv4 {
		to[1] = from[1]&^3 | to[1]&3
		to[8] = from[8]
		hdr.IPv4(to[:hdr.IPv4Len]).SetEnds(from[12:])
	} else {
		to[0], to[1] = from[0], from[1]&^0x30|to[1]&0x30
		to[2], to[3], to[7] = from[2], from[3], from[7]
		*(*[32]byte)(to[8:]) = [32]byte(from[8:])
	}
	if h.l4 != 0 {
		*(*[2]byte)(b[h.l4:]) = [2]byte(h.b[h.l4:])
		*(*[2]byte)(b[h.l4+6:]) = [2]byte{}
	}
	to, from = b[h.bth:][:8], h.b[h.bth:][:8]
	*(*[2]byte)(to[2:]) = [2]byte(from[2:])
	to[5], to[6], to[7] = from[5], from[6], from[7]
}

// noUDPSum takes the UDP checksum off a frame that changes: RoCEv2 does without
// (IBTA A17.3.2).
func noUDPSum(b []byte, f *hdr.Frame) {
	if f.L4 != 0 {
		b[f.L4+6], b[f.L4+7] = 0, 0
	}
}

// plainLen is the length of a front over IPv4, without a VLAN tag.
const plainLen = hdr.EthernetLen + hdr.IPv4Len + hdr.UDPLen + hdr.BTHLen

// front puts h on a new frame, all of b. Its lengths and checksums are then
// right; they stay in h, since most frames are as long as the one before.
func (h *header) front(b []byte) {
	if n := uint16(len(b) - int(h.l3)); h.net == hdr.NetIPv4 {
		if ip := hdr.IPv4(h.b[h.l3:][:hdr.IPv4Len]); ip.TotalLen() != n {
			ip.SetTotalLen(n)
			ip.UpdateChecksum()
			hdr.UDP(h.b[h.l4:]).SetLen(n - hdr.IPv4Len)
		}
	} else if ip := hdr.IPv6(h.b[h.l3:]); ip.PayloadLen() != n-hdr.IPv6Len {
		ip.SetPayloadLen(n - hdr.IPv6Len)
		if h.l4 != 0 {
			hdr.UDP(h.b[h.l4:]).SetLen(n - hdr.IPv6Len)
		}
	}
	if h.len() == plainLen {
		*(*[plainLen]byte)(b) = [plainLen]byte(h.b[:])
	} else {
		copy(b, h.b[:h.len()])
	}
}

// seal sets the ICRC of frame b, of that operation, with front h, whose extended
// headers, payload and pad end four bytes before the frame does.
func (h *header) seal(b []byte, opcode hdr.Opcode) {
	f := hdr.Frame{Net: h.net, Op: opcode, L3: uint16(h.l3), L4: uint16(h.l4), BTH: uint16(h.bth), End: uint16(len(b) - hdr.ICRCLen)}
	hdr.SetICRC(b, &f)
}

// noFlow is of a row without a connection, or whose numbering is not taken over: words may still
// name it as the one that they were last reached over, and it carries nothing.
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
	young   bool // start is the PSN from which on requests are on record; before, both ends counted alike
	// onward: the server's PSNs are far beyond start, and may come round to it.
	onward      bool
	bound       bool // on record in memory that outlives the process: its two ends count differently
	quiet       bool // for so long that it is time to see whether the server's end is there
	told        bool // its client was told that it is lost
	start       uint32
	turns       uint32
	mtu, mtuLow uint32     // path MTU, 0: not known; and what it is at least
	lost        clock.Time // of a connection lost with another process: until then its client is told, at least

	client
	carrier
}

// psnLess reports whether a is older than b.
func psnLess(a, b uint32) bool { return hdr.PSNDiff(a, b) < 0 }

func psnAdd(a, n uint32) uint32 { return (a + n) & hdr.PSNMask }

// same reports whether request b, with headers f, may be a repetition of o, from its
// packet k on.
func (o *op) same(f *hdr.Frame, b []byte, k, mtu uint32) bool {
	info := f.Op.Info().Flags
	switch o.kind {
	case kRead:
		if info&hdr.IsRead == 0 {
			return false
		}
		h := f.RETHOf(b)
		skip := k * mtu
		return h.RKey() == o.rkey && h.VA() == o.va+uint64(skip) && h.DMALength()+skip == o.len
	case kWrite:
		if info&hdr.IsWrite == 0 {
			return false
		}
		if f.Op.Info().Ext&hdr.HasRETH != 0 && k == 0 {
			h := f.RETHOf(b)
			whole := o.npsn > 1 || uint32(len(f.PayloadOf(b))) == o.len && (f.Op.Info().Ext&hdr.HasImmDt == 0 || o.is(fOwn))
			return h.VA() == o.va && h.RKey() == o.rkey && h.DMALength() == o.len && whole
		}
		return o.npsn > 1
	case kSend:
		return true
	case kOdd:
		return f.Op == hdr.AtomicWrite || f.Op == hdr.Flush
	}
	if info&hdr.IsAtomic == 0 {
		return false
	}
	a := hdr.AtomicETH(b[f.BTH+hdr.BTHLen:])
	return a.VA() == o.va && a.RKey() == o.rkey && kindOf(f.Op) == o.kind
}

// atomic fills frame b with h, as long as it must be, with atomic o.
func (h *header) atomic(b []byte, o *op, m *more, psn uint32) {
	code := [...]hdr.Opcode{kCAS: hdr.CompareSwap, kFAA: hdr.FetchAdd, kMaskedCAS: hdr.MaskedCompSwap, kOtherAtomic: hdr.MaskedFetchAdd}[o.kind]
	h.front(b)
	t := hdr.BTH(b[h.bth:])
	t[0], t[1] = byte(code), t[1]&0x40
	t.SetPSN(psn)
	t.SetAckReq(true)
	a := hdr.AtomicETH(b[h.len():])
	a.SetVA(o.va)
	a.SetRKey(o.rkey)
	a.SetSwap(o.out)
	a.SetCompare(o.prior)
	if o.kind == kMaskedCAS || o.kind == kOtherAtomic {
		a := hdr.MaskedAtomicETH(b[h.len():])
		a.SetSwapMask(m.swapMask)
		a.SetCompareMask(m.compareMask)
	}
	h.seal(b, code)
}

// write fills frame b with h, as long as it must be, with the WRITE that
// o is sent as.
func (h *header) write(b []byte, o *op, psn uint32) {
	h.front(b)
	t := hdr.BTH(b[h.bth:])
	t[0], t[1] = byte(hdr.WriteOnly), t[1]&0x40
	t.SetPSN(psn)
	t.SetAckReq(true)
	r := hdr.RETH(b[h.len():])
	r.SetVA(o.va)
	r.SetRKey(o.rkey)
	r.SetDMALength(0)
	if p := b[h.len()+hdr.RETHLen:]; len(p) > hdr.ICRCLen {
		r.SetDMALength(8)
		le.PutUint64(p, o.out)
	}
	h.seal(b, hdr.WriteOnly)
}

// confirmed reports whether answer b with PSN psn says that the server executed
// requests that were far from what is expected of flow fl. It says nothing where the
// two ends count differently: the server's numbers may reach those, too.
func (fl *flow) confirmed(f *hdr.Frame, b []byte, psn uint32) bool {
	if fl.bound || fl.strange == fl.strangeEnd || hdr.PSNDiff(psn, fl.strange) < 0 || hdr.PSNDiff(psn, fl.strangeEnd) >= 0 {
		return false
	}
	return f.Op != hdr.Acknowledge || f.AETHOf(b).Syndrome().ACK()
}

// inTurn follows the numbering of a flow that is not synced: it reports whether
// a request is the one that comes next, after others that were.
func (fl *flow) inTurn(f *hdr.Frame, b []byte, psn uint32) bool {
	d := hdr.PSNDiff(psn, fl.arrived)
	if fl.seen && d < 0 {
		return false // a repetition
	}
	if !fl.seen || d > 0 {
		fl.turns = 0
	}
	k := fl.packets(f, b)
	if f.Op == hdr.ReadRequest && fl.mtu == 0 && f.RETHOf(b).DMALength() > max(fl.mtuLow, 256) {
		fl.turns = 0
	}
	ok := fl.turns >= 2 && f.Op.Info().Flags&(hdr.IsMiddle|hdr.IsLast) == 0
	fl.turns++
	fl.arrived = psnAdd(psn, k)
	return ok
}

// packets is the number of PSNs that request b, with headers f, takes.
func (fl *flow) packets(f *hdr.Frame, b []byte) uint32 {
	info := f.Op.Info().Flags
	if fl.mtu == 0 && info&(hdr.IsFirst|hdr.IsMiddle) != 0 && info&(hdr.IsSend|hdr.IsWrite) != 0 {
		if p := uint32(len(f.PayloadOf(b))); full(p) {
			fl.mtu = p
		}
	}
	if info&hdr.IsRead == 0 {
		return 1
	}
	ln := f.RETHOf(b).DMALength()
	switch {
	case ln <= fl.mtuLow || ln > maxMessage:
		return 1
	case fl.mtu != 0:
		return (ln + fl.mtu - 1) / fl.mtu
	}
	return 1 // for the time being: see admit
}

// denied reports whether an acknowledgement b says, to a question (see query), that
// the server's end of flow f is of another connection: that it executed more than
// was sent, or expects something else next. What others make up for the queue pair
// changes neither. Answers of before, which came late, say nothing; there are none
// when it was quiet before the question.
func (f *flow) denied(h *hdr.Frame, b []byte, psn uint32, alive time.Duration) bool {
	if f.asked == 0 || f.oldest != none || h.Op != hdr.Acknowledge || f.asked.Sub(f.heard) < alive {
		return false
	}
	if h.AETHOf(b).Syndrome().ACK() {
		return psn != f.acked && !f.affirmed(h, b, psn)
	}
	return psn != f.next
}

// affirmed reports whether such an acknowledgement says, with another PSN than that
// of the newest request, that the server's end is as it was. An end of another
// connection that has had the repeated PSN acknowledges a later one (one that has not
// asks for what is missing). Linux (rxe) acknowledges again the newest request that
// was no READ, and the PSN before 0 when there was none.
func (f *flow) affirmed(h *hdr.Frame, b []byte, psn uint32) bool {
	return f.asked != 0 && h.Op == hdr.Acknowledge && h.AETHOf(b).Syndrome().ACK() &&
		(psnLess(psn, f.acked) || psn == hdr.PSNMask && !psnLess(psn, f.next))
}

// learnMTU learns a path MTU from packets of READ responses.
func (x *flow) learnMTU(f *hdr.Frame, b []byte) {
	switch f.Op {
	case hdr.ReadRespFirst, hdr.ReadRespMiddle:
		if x.mtu == 0 {
			x.mtu = uint32(len(f.PayloadOf(b)))
		}
	case hdr.ReadRespOnly:
		x.mtuLow = max(x.mtuLow, uint32(len(f.PayloadOf(b))))
	}
}
