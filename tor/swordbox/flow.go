package swordbox

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
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

// held are the first and the last packet that is held of o; none.
func (o *op) held() (first, last int32) { return int32(uint32(o.out)) - 1, int32(o.out>>32) - 1 }

func (o *op) setHeld(first, last int32) { o.out = uint64(uint32(last+1))<<32 | uint64(uint32(first+1)) }

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

// fifo is a list of held frames.
type fifo struct{ first, last, n int32 }

// keep is one held frame.
type keep struct {
	x      *packet.Buf
	next   int32
	worker int32
}

// shelf is where frames are held: a fixed number of places.
type shelf struct {
	k    []keep
	free int32
	n    int
}

func newShelf(n int) shelf {
	s := shelf{k: make([]keep, n), free: none}
	for i := n - 1; i >= 0; i-- {
		s.k[i].next = s.free
		s.free = int32(i)
	}
	return s
}

// room reports whether n frames more can be held.
func (s *shelf) room(n int) bool { return len(s.k)-s.n >= n }

// roomy reports whether half of it is free: then frames may wait for better
// times.
func (s *shelf) roomy() bool { return len(s.k) != 0 && s.room(len(s.k)/2) }

func (s *shelf) put(q *fifo, x *packet.Buf, worker int) bool {
	i := s.free
	if i == none {
		return false
	}
	s.free = s.k[i].next
	s.n++
	s.k[i] = keep{x: x, next: none, worker: int32(worker)}
	if q.n == 0 {
		q.first = i
	} else {
		s.k[q.last].next = i
	}
	q.last = i
	q.n++
	return true
}

func (s *shelf) take(q *fifo) keep {
	i := q.first
	k := s.k[i]
	q.first = k.next
	q.n--
	s.k[i] = keep{next: s.free}
	s.free = i
	s.n--
	return k
}

// psnLess reports whether a is older than b.
func psnLess(a, b uint32) bool { return hdr.PSNDiff(a, b) < 0 }

func psnAdd(a, n uint32) uint32 { return (a + n) & hdr.PSNMask }
