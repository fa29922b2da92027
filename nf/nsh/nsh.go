package nsh

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/mtu"
	"github.com/quillon/quillon/nf/packet"
)

// Ports: plain frames and the service path.
const (
	plain = iota
	path
)

// Trace records: all have SPI and SI.
const (
	traceEntered uint16 = iota
	traceLeft
	tracePassed
)

type app struct {
	s      settings
	teller mtu.Teller
}

// Takes implements graph.Reconfigurer.
func (*app) Takes(graph.Args) bool { return true }

// Reconfigure implements graph.Reconfigurer. All arguments may change, because there is no state.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parseArgs(args)
	if err == nil {
		a.s = s
	}
	return err
}

func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		f := x.Bytes()
		var l hdr.Layers
		switch {
		case !hdr.Walk(f, &l):
			pass(c, in, x, reasonShort)
		case a.s.role == edge && in == plain:
			a.enter(c, x, f, &l)
		case l.EtherType != hdr.EtherNSH:
			pass(c, in, x, reasonNoNSH)
		default:
			a.onPath(c, in, x, f, &l)
		}
	}
}

// pass lets a frame through as it is.
func pass(c *graph.Ctx, in int, x *packet.Buf, r graph.Reason) {
	c.Mark(x, packet.Forwarded, r)
	c.Emit(1-in, x)
}

// enter puts a frame on the path.
func (a *app) enter(c *graph.Ctx, x *packet.Buf, b []byte, l *hdr.Layers) {
	switch {
	case l.EtherType == hdr.EtherNSH:
		pass(c, plain, x, reasonOnPath)
		return
	case !a.s.match.Holds(b, l):
		pass(c, plain, x, reasonUnmatched)
		return
	case a.s.nextIP && l.L3 == 0:
		pass(c, plain, x, reasonNotIP)
		return
	}
	h := hdr.NSHFields{TTL: a.s.ttl, NextProtocol: hdr.NSHNextEthernet, SPI: a.s.spi, SI: a.s.si}
	grow, outer := hdr.NSHLen+hdr.EthernetLen, hdr.EthernetLen
	if a.s.nextIP {
		grow, outer = hdr.NSHLen, l.Net
		h.NextProtocol = hdr.NSHNextIPv4
		if l.EtherType == hdr.EtherIPv6 {
			h.NextProtocol = hdr.NSHNextIPv6
		}
	}
	if len(b)+grow-outer > a.s.mtu {
		if l.L3 != 0 {
			a.teller.Tell(c, x, l, a.s.inner(int(l.Tags)), plain, reasonTold)
		}
		c.Drop(x, reasonTooBig)
		return
	}
	a.lower(c, b, l)
	b, ok := x.Prepend(grow)
	if !ok {
		c.Drop(x, reasonNoRoom)
		return
	}
	if a.s.nextIP {
		copy(b[:outer], b[grow:])
	}
	a.address(b)
	// The EtherType in front of the service header is behind the tags, if there are any.
	hdr.VLAN(b[outer-hdr.VLANLen:]).SetEtherType(hdr.EtherNSH)
	hdr.NSH(b[outer:]).Encode(&h)
	c.Mark(x, packet.Rewritten, reasonEntered)
	c.Trace(x, traceEntered, uint64(a.s.spi), uint64(a.s.si))
	c.Emit(path, x)
}

// lower reduces the MSS option of a TCP SYN to what mss= says.
func (a *app) lower(c *graph.Ctx, b []byte, l *hdr.Layers) {
	if a.s.mss.Lower(b, l) {
		c.Count(ctrMSS, 1)
	}
}

// address sets the outer MAC addresses, where they are given.
func (a *app) address(b []byte) {
	if a.s.hasDst {
		hdr.Ethernet(b).SetDst(a.s.dst)
	}
	if a.s.hasSrc {
		hdr.Ethernet(b).SetSrc(a.s.src)
	}
}

// onPath handles a frame with a service header: it lowers the SI or the TTL and passes the frame on, or takes it
// off its path.
func (a *app) onPath(c *graph.Ctx, in int, x *packet.Buf, b []byte, l *hdr.Layers) {
	if f := Check(b, l.Net); f != Good {
		c.Drop(x, faults[f])
		return
	}
	h := hdr.NSH(b[l.Net:])
	leaves := a.s.role == edge
	if leaves && !a.s.exits(h.SPI(), h.SI()) {
		pass(c, in, x, reasonOtherPath)
		return
	}
	if h.OAM() && !a.s.passOAM {
		c.Drop(x, reasonOAM)
		return
	}
	if a.s.role != task && h.TTL() == 1 {
		c.Drop(x, reasonNoTTL)
		return
	}
	if h.SI() == 0 {
		c.Drop(x, reasonNoIndex)
		return
	}
	if leaves {
		a.leave(c, x, l, h)
		return
	}
	if a.s.role == task {
		h.SetSI(h.SI() - 1)
	} else {
		h.SetTTL(h.TTL() - 1) // of 6 bits: 0 becomes 63
	}
	a.address(b)
	c.Mark(x, packet.Rewritten, reasonPassed)
	c.Trace(x, tracePassed, uint64(h.SPI()), uint64(h.SI()))
	c.Emit(1-in, x)
}

// leave takes the service header h off.
func (a *app) leave(c *graph.Ctx, x *packet.Buf, l *hdr.Layers, h hdr.NSH) {
	spi, si := h.SPI(), h.SI()
	if f := Strip(x, l.Net); f != Good {
		c.Drop(x, faults[f])
		return
	}
	if a.s.mss != (mtu.MSS{}) {
		var inner hdr.Layers
		if hdr.Walk(x.Bytes(), &inner) {
			a.lower(c, x.Bytes(), &inner)
		}
	}
	c.Mark(x, packet.Rewritten, reasonLeft)
	c.Trace(x, traceLeft, uint64(spi), uint64(si))
	c.Emit(plain, x)
}

// faults has the reason of each Fault.
var faults = [...]graph.Reason{BadHeader: reasonBadHeader, BadMetadata: reasonBadMDType, BadInner: reasonBadInner, NextProtocol: reasonNextProtocol}
