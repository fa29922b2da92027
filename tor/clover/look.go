package clover

import (
	"unsafe"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
	"github.com/quillon/quillon/tor/prefetch"
)

// parsed is a frame as its worker sees it: what can be found out before the
// worker's turn, and what is left to do after it. It is two lines of the processor's
// cache, and a batch's lie in as few as can be, so that they stay there from one to the other.
type parsed struct {
	b    []byte
	ends conn.Ends
	f    hdr.Frame
	psn  uint32
	// Of a frame whose connection is followed, what the turn at connections finds
	// out for the turn at keys.
	row   int32
	psns  uint32 // that a request takes
	acked uint32 // newest PSN that the server has answered
	slack uint16 // PSNs that a READ may take beyond psns
	order order

	as    as
	stays bool // it was dropped, or is held
	// unsteered: it may be an atomic, and goes where its client sent it.
	unsteered bool
	fl        hdr.OpFlags
	// The n bytes that begin at byte from were old before the app changed them; n is 0
	// when it did not.
	n uint8
	// A request to server asked is about an address in the set of address slots from set on.
	asked int8
	from  uint16
	set   int32
	old   *[hdr.AtomicETHLen]byte
}

// order is where a request or an answer stands among those of its connection.
type order uint8

const (
	unfollowed order = iota // of no connection that is followed
	unpaired                // of one whose other direction is not known
	repeated
	early // ahead of the expected PSN
	next
	within // a READ that is the next request, or takes up one whose packets nobody could count in its middle
	newer  // an answer to a PSN behind all that the server had answered
)

// as is what a frame is treated as.
type as uint8

const (
	asIs           as = iota // it goes on
	asOther                  // no RoCE
	asForeign                // no frame of a reliable connection between two hosts
	asRequest                // a client's
	asResponse               // a server's
	asBackRequest            // comes from the servers' side
	asBackResponse           // comes from the clients' side
	asBadChecksum
	asBadICRC
)

// look finds out what it takes no state to know of a frame of the batch at hand. It is
// not part of its caller: the compiler makes one piece of a function and those that it
// calls only as long as the piece is small.
//
//go:noinline
func (s *Steer) look(p *parsed, b []byte) {
	f := &p.f
	p.b, p.n, p.unsteered = b, 0, false
	if hdr.Parse(b, f) != hdr.IsRoCE {
		p.as = asOther
		return
	}
	p.fl = f.Op.Info().Flags
	if p.fl&hdr.IsRequest != 0 {
		s.requests++
		if f.Op.Info().Ext&hdr.HasRETH != 0 && !s.off {
			// It comes to that soon, and the memory may be far away.
			p.asked = s.asked
			p.set = s.home.set(uint16(p.asked), f.RETHOf(b).VA())
			prefetch.Line(uintptr(unsafe.Pointer(&s.home.e[p.set])))
		}
	} else {
		s.responses++
	}
	s.bytes += uint64(len(b))
	switch {
	case s.off:
		p.as = asIs
	case !f.ChecksumOK(b):
		p.as = asBadChecksum
	case !hdr.GoodICRC(b, f):
		p.as = asBadICRC
	case f.Op.Transport() != hdr.RC || !p.ends.Of(b, f):
		p.as = asForeign
	case p.fl&hdr.IsRequest != 0:
		p.as, p.psn = asBackRequest, f.BTHOf(b).PSN()
		if s.input == fromClients {
			p.as = asRequest
		}
	default:
		p.as, p.psn = asBackResponse, f.BTHOf(b).PSN()
		if s.input == fromServers {
			p.as = asResponse
		}
	}
}

// changing keeps the n bytes of a frame that begin at byte from, and are about to change.
func (p *parsed) changing(b []byte, from, n int) {
	p.from, p.n = uint16(from), uint8(copy(p.old[:n], b[from:]))
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
