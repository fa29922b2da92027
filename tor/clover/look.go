package clover

import (
	"encoding/binary"
	"unsafe"

	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/prefetch"
	"github.com/quillon/quillon/tor/conn"
)

// parsed holds what a worker finds out about a frame before its turn, and what it has to do with the
// frame after the turn. It takes two cache lines, and those of a batch are contiguous, so that they
// stay in the cache meanwhile.
type parsed struct {
	b    []byte
	ends conn.Ends
	f    hdr.Frame
	psn  uint32
	// The following fields pass on, for a frame whose connection is followed, what the worker finds out
	// in its turn at connections to its turn at keys.
	row   int32
	psns  uint32 // number of PSNs that a request takes; of a CAS in its turn, which takes one: MSN of the newest answer. Before the turn at connections, of a frame that is hdr.Frame.Plain: what conn.Lookout.Ahead returns
	acked uint32 // newest PSN that the server has answered
	slack uint16 // PSNs that a READ may take beyond psns
	order order

	as    as
	stays bool // the frame was dropped, or is held
	// unsteered: the frame may be an atomic, and goes to the address that its client chose.
	unsteered bool
	// The n bytes that begin at byte from were old before the app changed them; n is 0
	// when it did not.
	n uint8
	// A request to server asked is about an address in the set of address slots from set on;
	// nobody: that is not known.
	asked int8
	fl    hdr.OpFlags
	from  uint8
	// sure: a request in its turn that the server executes, if it executes one with this PSN; an answer that shows for the first time that answers
	// count, and does so itself.
	sure bool
	set  int32
	old  *[hdr.AtomicETHLen]byte
}

// nobody, as parsed.asked, stands for no known server.
const nobody = -1

// order is the position of a request or an answer in the sequence of its connection.
type order uint8

const (
	unfollowed order = iota // its connection is not followed
	unpaired                // the other direction of its connection is not known
	repeated
	early // ahead of the expected PSN
	next
	alone  // a CAS with the expected PSN, between two messages, when the server has answered all requests in front of it
	within // a READ with the expected PSN, or one that may continue an earlier READ whose number of PSNs was not known
	newer  // an answer to a newer PSN than all that the server had answered
)

// as says how a frame is treated.
type as uint8

const (
	asRequest      as = iota // a client's request
	asResponse               // a server's response
	asIs                     // passes unchanged
	asOther                  // not RoCE
	asForeign                // not a frame of a reliable connection between two hosts
	asBackRequest            // a request that comes from the servers' side
	asBackResponse           // a response that comes from the clients' side
	asBadChecksum
	asBadICRC
)

// lookout finds out what the frames of a batch are, and counts them, before its worker's turn: it reads
// nothing that other workers write. Push has it begin with each batch.
type lookout struct {
	// Of the batch at hand: whether nothing of it is steered, what responses (0) and requests (1)
	// are by the input that it came by, and the RoCE frames in it.
	off                     bool
	sides                   [2]as
	looked, requests, bytes uint64
	asked                   int8         // the server whose address slots are prefetched for requests
	seek                    conn.Lookout // of the connections: what conn.Table.Easily reads first is prefetched
	home                    addrTable    // memory.addrs, the part of it that never changes: a copy, because other workers write to the same cache line
}

// look finds out what it takes no state to know of a frame of the batch at hand. It is
// not part of its caller: the compiler makes one piece of a function and those that it
// calls only as long as the piece is small.
//
//go:noinline
func (s *lookout) look(p *parsed, x *packet.Buf) {
	b := x.Bytes()
	p.b, p.n, p.unsteered, p.asked = b, 0, false, nobody
	if s.off {
		s.glance(p, b)
		return
	}
	f := &p.f
	flaw := hdr.Examine(b, f)
	if !f.Plain || flaw != hdr.NoFlaw {
		s.study(p, b, flaw)
		return
	}
	op := f.Op.Info()
	fl := op.Flags
	p.fl, p.asked = fl, s.asked
	s.looked++
	s.requests += uint64(fl & hdr.IsRequest)
	s.bytes += uint64(len(b))
	p.psn = binary.BigEndian.Uint32((*[hdr.PlainBTH + hdr.BTHLen]byte)(b)[hdr.PlainBTH+8:]) & hdr.PSNMask
	if f.Op.Transport() != hdr.RC || !p.ends.OfPlain(b) {
		p.as = asForeign
		return
	}
	p.as = s.sides[fl&hdr.IsRequest]
	p.psns = s.seek.Ahead(&p.ends, b)
	at := s.seek.At(p.psns)
	if op.Ext&hdr.HasRETH == 0 {
		prefetch.Line(at)
		return
	}
	// Most likely it comes to that soon, and the memory may be far away.
	p.set = s.home.set(uint16(s.asked), binary.BigEndian.Uint64(b[hdr.PlainBTH+hdr.BTHLen:]))
	prefetch.Lines(at, uintptr(unsafe.Pointer(&s.home.e[p.set])))
}

// glance is look where nothing is steered.
func (s *lookout) glance(p *parsed, b []byte) {
	if p.as = asOther; hdr.Parse(b, &p.f) == hdr.IsRoCE {
		p.as = asIs
		s.count(p, b)
	}
}

// count counts a RoCE frame.
func (s *lookout) count(p *parsed, b []byte) {
	p.fl = p.f.Op.Info().Flags
	s.looked++
	s.requests += uint64(p.fl & hdr.IsRequest)
	s.bytes += uint64(len(b))
}

// study is the rest of look for the frames that few are like: those with a flaw, and those that are
// not hdr.Frame.Plain.
func (s *lookout) study(p *parsed, b []byte, flaw hdr.Flaw) {
	f := &p.f
	if f.Why != hdr.IsRoCE {
		p.as = asOther
		return
	}
	s.count(p, b)
	switch {
	case flaw == hdr.BadChecksum:
		p.as = asBadChecksum
	case flaw != hdr.NoFlaw:
		p.as = asBadICRC
	case f.Op.Transport() != hdr.RC || !p.ends.Of(b, f):
		p.as = asForeign
	default:
		p.as, p.psn = s.sides[p.fl&hdr.IsRequest], f.BTHOf(b).PSN()
	}
}

// aeth returns the AETH of an answer of a reliable connection, which is behind the BTH.
func (p *parsed) aeth() hdr.AETH {
	o := int(p.f.BTH + hdr.BTHLen)
	return hdr.AETH(p.b[o : o+hdr.AETHLen : o+hdr.AETHLen])
}

// changing keeps the n bytes of a frame that begin at byte from, and are about to change.
func (p *parsed) changing(b []byte, from, n int) {
	if p.from, p.n = uint8(from), uint8(n); n == 8 {
		*(*[8]byte)(p.old[:]) = [8]byte(b[from:]) // an address, as most often
		return
	}
	copy(p.old[:n], b[from:])
}

// seal brings the checksums of a frame up to date that was changed. RoCEv2 does
// without a UDP checksum (IBTA A17.3.2): one that was there is taken off.
func (p *parsed) seal(b []byte) {
	if f := &p.f; f.L4 != 0 {
		b[f.L4+6], b[f.L4+7] = 0, 0
	}
	hdr.PatchICRC(b, &p.f, int(p.from), p.old[:p.n])
	p.n = 0
}

// trackable reports whether a request makes its connection worth a row.
func (p *parsed) trackable(b []byte, fl hdr.OpFlags) bool {
	f := &p.f
	if f.Op == hdr.CompareSwap {
		return true
	}
	if fl&(hdr.IsWrite|hdr.IsRead) != 0 && f.Op.Info().Ext&hdr.HasRETH != 0 {
		_, ok := wire.Class(f.RETHOf(b).DMALength())
		return ok
	}
	return false
}

// rewriteCAS applies a record to its request; false when nothing changes.
func (p *parsed) rewriteCAS(b []byte, rec *op) bool {
	if rec.newVA == rec.va && rec.newVer == rec.cliVer {
		return false
	}
	a := p.f.AtomicETHOf(b)
	n := 8 // VA
	if rec.newVer != rec.cliVer {
		n = hdr.AtomicETHLen
	}
	p.changing(b, int(p.f.BTH)+hdr.BTHLen, n)
	a.SetVA(rec.newVA)
	if rec.newVer != rec.cliVer {
		a.SetCompare(uint64(wire.Fresh(rec.newVer)))
		a.SetSwap(uint64(wire.Pointer(rec.swap).WithVersion(rec.newVer)))
	}
	return true
}

// rewriteRead sends a READ of va, somewhere in what rec asked for, to the same
// place of where rec was sent.
func (p *parsed) rewriteRead(b []byte, rec *op, va uint64) {
	reth := p.f.RETHOf(b)
	p.changing(b, int(p.f.BTH)+hdr.BTHLen, 8)
	reth.SetVA(rec.newVA + (va - rec.va))
}
