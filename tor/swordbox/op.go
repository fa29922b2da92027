package swordbox

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
)

// kind of an operation.
type kind uint8

const (
	kSend        kind = iota // SEND, and any other request that concerns one queue pair alone
	kWrite                   // RDMA WRITE
	kRead                    // RDMA READ
	kCAS                     // COMPARE SWAP
	kFAA                     // FETCH ADD
	kMaskedCAS               // masked COMPARE SWAP
	kOtherAtomic             // an atomic whose result the box cannot compute
	kOdd                     // ATOMIC WRITE, FLUSH: answered by an empty READ RESPONSE
)

func (k kind) atomic() bool { return k >= kCAS && k <= kOtherAtomic }

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
	sUnsent              // not executed, for certain; its client's duplicate counts as a new request
)

// flags of an operation.
const (
	fReplaced uint16 = 1 << iota // an atomic sent as a WRITE of eight bytes
	fAckReq                      // its client asked for an acknowledgement
	fRight                       // the server was seen to grant its client this access
	fOdd                         // a free operation of an odd generation (grace)
	fLoose                       // not in order with its word's other operations
	fProbe                       // its answer will tell the word's value
	fBare                        // its client's later operations must stay behind it
	fGuest                       // another client's connection carries it
	fOwn                         // only its client's own connection may carry it
	fForetold                    // an atomic that goes unchanged although its outcome is known
	fPrompt                      // its client is to be sent a NAK about it: more.nak
	fKept                        // its packets are held, so that the box can send them again
	fUnkept                      // only its client can send it again
	fAgain                       // a READ that was answered, and is done again
	fOrphan                      // its client is gone, and needs no answer
	fEarly                       // its answer has come, and that to an earlier operation is missing
)

// fReleased marks an atomic that goes as a WRITE, and that was taken out of the counts of words because its NIC is silent (silent.go).
// The next process does not count it, either. No such operation has fOwn otherwise.
const fReleased = fReplaced | fOwn

// op is a client's operation (IBTA: message), on record from its first packet on. Its size is a line of the
// processor's cache.
type op struct {
	va    uint64 // address of the first byte
	out   uint64 // operand: payload of a WRITE of eight bytes, swap, or addend; with fReplaced, what is written; held packets: see held
	prior uint64 // answer to an atomic, until then the compare value of a CAS; of a READ: the word that it accessed when it came; of a SEND: see sendOf
	cpsn  uint32 // first PSN, in its client's numbering
	spsn  uint32 // first PSN on the connection that carries it
	npsn  uint32
	len   uint32 // number of bytes of memory
	rkey  uint32
	got   uint32 // number of packets of a READ's answer that came
	lane  int32  // index of the flow whose connection carries it
	next  int32  // operation behind it on that connection; none
	word  int32  // word that counts it; none, or lapsed
	flags uint16
	kind  kind
	state state
}

// lapsed is the value of op.word of an open operation that was taken out of the counts of words: see order.lapse.
const lapsed = int32(-2)

// more has the fields that only few operations need. It lies beside the op (record.beside).
type more struct {
	want uint64 // with fForetold, the value that the atomic must find in its word; with fProbe, its compare value
	// The masks of the comparison and the swap: of a masked atomic, or, with fProbe, of any atomic.
	compareMask, swapMask uint64
	belief                uint32 // with fForetold: the low bits of word.belief when want was foretold
	nak                   uint32 // with sFailed or fPrompt: syndrome of the NAK (8 bits), and number of the packet that it is about (24 bits)
}

func (m *more) setNAK(syn hdr.Syndrome, packet uint32) {
	m.nak = uint32(syn)<<24 | packet&hdr.PSNMask
}

func (m *more) syndrome() hdr.Syndrome { return hdr.Syndrome(m.nak >> 24) }

// held returns the queue of the held packets of o: of a READ's answer, or, with fKept, o's own packets. hold sets this
// queue to q.
func (o *op) held() hold.Queue { return hold.QueueOf(int32(o.out), int32(o.out>>32)) }

func (o *op) hold(q hold.Queue) { o.out = uint64(uint32(q.Last()))<<32 | uint64(uint32(q.First())) }

// holds reports whether the queue of held packets of o is not empty.
func (o *op) holds() bool { return (o.kind == kRead || o.is(fKept)) && o.out != 0 }

func (o *op) is(f uint16) bool { return o.flags&f != 0 }

// asAtomic reports whether o is an atomic that goes to the server as an atomic.
func (o *op) asAtomic() bool { return o.kind.atomic() && !o.is(fReplaced) }

// isPlaced reports whether o is open and keeps its place on record, although its client has the answer or is gone.
func (o *op) isPlaced() bool { return o.state == sOpen && o.npsn != 0 && o.is(fAgain|fOrphan) }

// wide reports whether o has more than eight bytes, or begins inside an aligned word.
func (o *op) wide() bool { return o.len > 8 || o.len != 0 && o.va&7 != 0 }

// modifies reports whether o changes memory.
func (o *op) modifies() bool { return o.len != 0 && o.kind != kRead && o.kind != kSend }

// answered reports whether the server sends a response for o alone, which takes one of its responder resources. It may
// acknowledge other operations together.
func (o *op) answered() bool { return o.kind == kRead || o.kind == kOdd || o.asAtomic() }

// last returns the PSN of o's last packet, in the client's numbering.
func (o *op) last() uint32 { return (o.cpsn + o.npsn - 1) & hdr.PSNMask }

// same reports whether request b, with headers f, may be a duplicate of o from packet k on. mtu is the path MTU. It
// does not compare a WRITE's payload, because the NIC reads it from memory again and it may have changed.
func (n *order) same(o *op, f *hdr.Frame, b []byte, k, mtu uint32) bool {
	info := f.Op.Info()
	is, begins := info.Flags, k == 0
	switch o.kind {
	case kRead:
		if is&hdr.IsRead == 0 {
			return false
		}
		h := f.RETHOf(b)
		skip := k * mtu
		return h.RKey() == o.rkey && h.VA() == o.va+uint64(skip) && h.DMALength()+skip == o.len
	case kWrite:
		if is&hdr.IsWrite == 0 || begins != (info.Ext&hdr.HasRETH != 0) || begins && info.Ext&hdr.HasImmDt != 0 && !o.is(fOwn) {
			return false
		}
		if !begins {
			return o.npsn > 1
		}
		h := f.RETHOf(b)
		whole := o.npsn > 1 || uint32(len(f.PayloadOf(b))) == o.len
		return h.VA() == o.va && h.RKey() == o.rkey && h.DMALength() == o.len && whole
	case kSend:
		if o.prior == 0 { // an older version of the program, which did not tell SENDs apart, made the record
			return is&hdr.IsSend != 0 && info.Ext&hdr.HasIETH == 0
		}
		if begins {
			return o.prior&^invalidates == sendOf(f, b) && (info.Ext&hdr.HasIETH == 0 || f.IETHOf(b).RKey() == o.rkey)
		}
		return is&hdr.IsSend != 0 && is&(hdr.IsMiddle|hdr.IsLast) != 0 && (info.Ext&hdr.HasIETH == 0 || o.prior&invalidates != 0 && f.IETHOf(b).RKey() == o.rkey)
	case kOdd:
		return (f.Op == hdr.AtomicWrite && o.len == 8 || f.Op == hdr.Flush && o.len == 0) && f.RETHOf(b).VA() == o.va && f.RETHOf(b).RKey() == o.rkey
	}
	if is&hdr.IsAtomic == 0 {
		return false
	}
	a := hdr.AtomicETH(b[f.BTH+hdr.BTHLen:])
	if a.VA() != o.va || a.RKey() != o.rkey || kindOf(f.Op) != o.kind {
		return false
	}
	if o.state != sOpen || o.is(fReplaced) { // the server does not get it as its client sends it
		return true
	}
	if info.Ext&hdr.HasAtomicETH == 0 {
		m, was := f.MaskedAtomicETHOf(b), n.beside(o)
		if m.CompareMask() != was.compareMask || m.SwapMask() != was.swapMask {
			return false
		}
	}
	return a.Swap() == o.out && (o.kind == kFAA || a.Compare() == o.prior)
}

// invalidates is a flag in op.prior of a SEND: its last packet makes the server invalidate the R_Key rkey.
const invalidates = 1 << 63

// sendOf returns a value that tells SENDs apart: opcode and payload length of the first packet b, with headers f.
func sendOf(f *hdr.Frame, b []byte) uint64 { return uint64(f.Op)<<32 | uint64(len(f.PayloadOf(b))) }

// makeable reports whether the box can send o again, from the record or from held packets.
func (o *op) makeable() bool {
	switch {
	case o.word == lapsed:
		return false
	case o.is(fReplaced|fKept) || o.kind == kRead || o.kind.atomic():
		return true
	case o.kind == kWrite:
		return o.npsn == 1 && (o.len == 0 || o.len == 8) && !o.is(fOwn)
	}
	return false
}

// executed reports whether the server has acknowledged o, which connection c carries, or has answered it early
// (fEarly). For operations that need an answer of their own, an acknowledgement does not suffice.
func (o *op) executed(c *carrier) bool {
	return o.is(fEarly) || !o.answered() && !psnLess(c.acked, psnAdd(o.spsn, o.npsn-1))
}
