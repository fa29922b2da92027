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
var noFlow = flow{answerer: none, lane: none, cur: none, oldest: none, newest: none}

// flow is a connection, seen from both sides: the requests of its client, and
// what its connection to the server carries, which may be operations of
// others.
type flow struct {
	// What most requests need, in a line of the processor's cache.
	synced bool // both numberings are known
	seen   bool // before that: arrived is known, and turns requests came in order
	// onward: the server's PSNs are far beyond start, and may come round to it.
	onward   bool
	young    bool // start is the PSN from which on requests are on record; before, both ends counted alike
	dead     bool // its connection to the server is of no use any more
	gone     bool // its client was reset, or left
	failed   bool // or will be: an operation of its failed
	trusted  bool // the server answered since it was synced
	gapNAK   bool // a packet of the client is missing: NAK owed
	toldGap  bool // and sent
	tellPart bool // packets of its oldest message are acknowledged: it is to be told
	mixed    bool // open ops are on several connections
	isReady  bool
	vague    bool // its newest request is a READ that waits, of vagueLen bytes: of how many packets is not known
	doomed   bool // a request of its has no way left: it will be ended
	unsure   bool // its newest op is a READ, on its own connection, of as many packets as its answer will have
	waits    bool // in node.waiting
	// misshapen: its client's requests contradict themselves (see measure).
	misshapen bool
	may       uint8 // accesses (1 << access) that its server's queue pair was seen to have the right to
	// Numbering of the client: what came, and what was sent on.
	arrived, admitted uint32
	first, head, tail uint32 // ops: oldest remembered, oldest not released, next; modulo span
	span              uint32 // ops that are remembered
	start             uint32
	unsent            int32 // ops on record with sUnsent
	open              int32 // ops that the server has not answered
	lane              int32 // connection of the youngest open op
	cur               int32 // op of a message whose packets are still coming; none

	// What most requests and answers need, in two lines more.
	base        uint32     // MSN before the first operation on record: see released
	answerer    int32      // connection that the newest answer of its client came over
	lost        clock.Time // of a connection lost with another process: until then its client is told, at least
	mtu, mtuLow uint32     // path MTU, 0: not known; and what it is at least
	bare        int32      // of the open ops, with fBare
	bound       bool       // on record: its two ends count differently
	// inDoubt: another process sent WRITEs in the place of atomics, and it is not known
	// yet which of them the server executed (see inquire).
	inDoubt bool
	gated   bool // requests from PSN gate on have to wait until then
	stall   fifo // requests that wait

	// Numbering of the server, for what the connection carries.
	syn     hdr.Syndrome // of an acknowledgement, as the server gives it
	repair  bool         // the server misses requests from PSN expect on
	timed   bool         // the next answer tells of a round trip
	doubted bool         // operation number again is to be answered once more, when the server was heard
	next    uint32       // PSN of the next request
	acked   uint32       // newest acknowledged PSN
	oldest  int32        // op at the front; none
	newest  int32
	guests  int32      // open ops of other flows
	rd      int32      // open READs and atomics
	heard   clock.Time // last answer
	loaded  clock.Time // when it began to carry something
	silent  clock.Time // when something was first sent again that has no answer yet; 0: there is no such thing
	asked   clock.Time // when its server was first asked whether it is there, since it was heard; 0: it was not
	// Requests with PSNs in [strange, strangeEnd) are far from what is expected,
	// and passed to the server for it to decide.
	strange, strangeEnd uint32
	suspect             uint32 // requests before this PSN may be lost, too
	writes              int32  // open atomics that go as WRITEs
	unkept              int32  // open ops that only its own client can send again
	claimed             bool   // its own client waits for it: nobody else may have it
	isLent              bool
	tries               uint8 // how often in a row something was sent again without an answer
	owes                bool  // an acknowledgement, when no READ is done again any more

	trip       clock.Duration // time until an answer, smoothed
	deep       int16          // READs and atomics of its client that were under way at once, and executed
	peak       int16          // that are or were under way at once
	lends      int16          // keys that it is lent for
	gate       uint32         // see gated
	pastAt     uint32
	rest, part uint32 // bytes of the WRITE at hand that are to come, and in each of its packets
	vagueLen   uint32 // see vague

	// What few need.
	asking clock.Time // when its server was last asked whether it is there
	since  clock.Time // when this app last began to send something again
	expect uint32     // PSN of what is sent again next
	goal   uint32     // and the one behind the last

	// From here on each begins a line, as long as its own part that is used most.
	grants grants
	up     header
	marked marked
	turns  uint32
	down   header

	ended   uint32       // PSN of the request that ended its client's queue pair
	verdict hdr.Syndrome // of the NAK that ended its client's queue pair; 0: another one
	told    bool         // its client was told that it is lost
	quiet   bool         // for so long that it is time to see whether the server's end is there
	rereads int32        // READs that are done again
	began   clock.Time   // of the message of cur
	private clock.Time   // when it last carried what does not go together with others' operations; 0: never
	again   uint32       // see doubted
	nudged  uint32       // PSN of the request that was last sent again for want of an answer
	past    [16]past     // answers to atomics that are not on record any more
}

// released is how many messages of its client are answered, modulo 2^24 (IBTA: MSN).
func (f *flow) released() uint32 { return (f.base + f.head) & 0xFFFFFF }

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
