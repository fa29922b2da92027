package replay

import (
	"fmt"
	"net"
	"strconv"

	"github.com/quillon/quillon/nf/hdr"
)

// Field is one header field of a frame, for people to read.
type Field struct{ Name, Value string }

// fields collects what Decode finds.
type fields []Field

func (f *fields) add(name, format string, args ...any) {
	*f = append(*f, Field{name, fmt.Sprintf(format, args...)})
}

// Decode takes a frame apart, from Ethernet to the extended transport headers
// of RoCE, as far as it goes. Names are header.field, headers and fields named
// as their specifications do; a second VLAN tag is vlan2. The last fields say
// how long the payload is, and whether checksums and ICRC are right.
func Decode(b []byte) []Field {
	var f fields
	if len(b) < hdr.EthernetLen {
		f.add("frame.short", "%d bytes", len(b))
		return f
	}
	e := hdr.Ethernet(b)
	dst, src := e.Dst(), e.Src()
	f.add("eth.dst", "%v", net.HardwareAddr(dst[:]))
	f.add("eth.src", "%v", net.HardwareAddr(src[:]))
	f.add("eth.type", "0x%04x", e.EtherType())
	et, at := e.EtherType(), hdr.EthernetLen
	for n := 1; (et == hdr.EtherVLAN || et == hdr.EtherQinQ) && len(b) >= at+hdr.VLANLen; n++ {
		name := "vlan"
		if n > 1 {
			name += strconv.Itoa(n)
		}
		v := hdr.VLAN(b[at:])
		f.add(name+".vid", "%d", v.VID())
		f.add(name+".pcp", "%d", v.PCP())
		f.add(name+".dei", "%t", v.DEI())
		f.add(name+".type", "0x%04x", v.EtherType())
		et, at = v.EtherType(), at+hdr.VLANLen
	}
	rest := b[at:]
	switch {
	case et == hdr.EtherARP && len(rest) >= hdr.ARPLen && hdr.ARP(rest).Valid():
		f.arp(hdr.ARP(rest))
	case et == hdr.EtherIPv4 && len(rest) >= hdr.IPv4Len:
		f.ipv4(rest)
	case et == hdr.EtherIPv6 && len(rest) >= hdr.IPv6Len:
		f.ipv6("ipv6", rest)
	case et == hdr.EtherRoCEv1 && len(rest) >= hdr.GRHLen:
		f.ipv6("grh", rest)
	}
	f.roce(b)
	return f
}

func (f *fields) arp(a hdr.ARP) {
	sha, tha := a.SHA(), a.THA()
	f.add("arp.op", "%d", a.Op())
	f.add("arp.sha", "%v", net.HardwareAddr(sha[:]))
	f.add("arp.spa", "%v", a.SPA())
	f.add("arp.tha", "%v", net.HardwareAddr(tha[:]))
	f.add("arp.tpa", "%v", a.TPA())
}

func (f *fields) ipv4(b []byte) {
	h := hdr.IPv4(b)
	f.add("ipv4.version", "%d", h.Version())
	f.add("ipv4.ihl", "%d", h.HeaderLen())
	f.add("ipv4.tos", "0x%02x", h.TOS())
	f.add("ipv4.total-length", "%d", h.TotalLen())
	f.add("ipv4.id", "0x%04x", h.ID())
	f.add("ipv4.df", "%t", h.DF())
	f.add("ipv4.mf", "%t", h.MF())
	f.add("ipv4.fragment-offset", "%d", h.FragOffset())
	f.add("ipv4.ttl", "%d", h.TTL())
	f.add("ipv4.protocol", "%d", h.Protocol())
	n := h.HeaderLen()
	if n < hdr.IPv4Len || n > len(b) {
		f.add("ipv4.checksum", "0x%04x", h.Checksum())
		return
	}
	f.add("ipv4.checksum", "0x%04x %s", h.Checksum(), rightOrWrong(h.ChecksumOK()))
	f.add("ipv4.src", "%v", h.Src())
	f.add("ipv4.dst", "%v", h.Dst())
	if n > hdr.IPv4Len {
		f.add("ipv4.options", "%x", h.Options())
	}
	if h.FragOffset() == 0 {
		f.transport(h.Protocol(), b[n:])
	}
}

func (f *fields) ipv6(name string, b []byte) {
	h := hdr.IPv6(b)
	f.add(name+".version", "%d", h.Version())
	f.add(name+".traffic-class", "0x%02x", h.TrafficClass())
	f.add(name+".flow-label", "0x%05x", h.FlowLabel())
	f.add(name+".payload-length", "%d", h.PayloadLen())
	f.add(name+".next-header", "%d", h.NextHeader())
	f.add(name+".hop-limit", "%d", h.HopLimit())
	f.add(name+".src", "%v", h.Src())
	f.add(name+".dst", "%v", h.Dst())
	if name != "ipv6" {
		return
	}
	if proto, off, ok := h.Upper(); ok && off <= len(b) {
		f.transport(proto, b[off:])
	}
}

// IP protocol numbers (IANA).
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

func (f *fields) transport(proto uint8, b []byte) {
	switch {
	case proto == protoUDP && len(b) >= hdr.UDPLen:
		h := hdr.UDP(b)
		f.add("udp.src", "%d", h.SrcPort())
		f.add("udp.dst", "%d", h.DstPort())
		f.add("udp.length", "%d", h.Len())
		f.add("udp.checksum", "0x%04x", h.Checksum())
	case proto == protoTCP && len(b) >= hdr.TCPLen:
		h := hdr.TCP(b)
		f.add("tcp.src", "%d", h.SrcPort())
		f.add("tcp.dst", "%d", h.DstPort())
		f.add("tcp.seq", "%d", h.Seq())
		f.add("tcp.ack", "%d", h.Ack())
		f.add("tcp.flags", "0x%02x", h.Flags())
		f.add("tcp.window", "%d", h.Window())
		f.add("tcp.checksum", "0x%04x", h.Checksum())
	case (proto == protoICMP || proto == protoICMPv6) && len(b) >= hdr.ICMPLen:
		h := hdr.ICMP(b)
		f.add("icmp.type", "%d", h.Type())
		f.add("icmp.code", "%d", h.Code())
		f.add("icmp.checksum", "0x%04x", h.Checksum())
	}
}

func (f *fields) roce(b []byte) {
	var p hdr.Frame
	why := hdr.Parse(b, &p)
	if why != hdr.IsRoCE {
		f.add("roce", "%v", why)
	}
	if p.BTH == 0 || int(p.BTH)+hdr.BTHLen > len(b) {
		return
	}
	h := p.BTHOf(b)
	f.add("bth.opcode", "%v", h.OpCode())
	f.add("bth.se", "%t", h.Solicited())
	f.add("bth.migreq", "%t", h.MigReq())
	f.add("bth.padcnt", "%d", h.PadCount())
	f.add("bth.tver", "%d", h.TVer())
	f.add("bth.pkey", "0x%04x", h.PKey())
	f.add("bth.fecn", "%t", h.FECN())
	f.add("bth.becn", "%t", h.BECN())
	f.add("bth.destqp", "0x%06x", h.DestQP())
	f.add("bth.ackreq", "%t", h.AckReq())
	f.add("bth.psn", "%d", h.PSN())
	if why != hdr.IsRoCE {
		return
	}
	ext := h.OpCode().Info().Ext
	if ext&hdr.HasFETH != 0 {
		x := p.FETHOf(b)
		f.add("feth.placement", "%d", x.Placement())
		f.add("feth.selectivity", "%d", x.Selectivity())
	}
	if ext&hdr.HasDETH != 0 {
		x := p.DETHOf(b)
		f.add("deth.qkey", "0x%08x", x.QKey())
		f.add("deth.srcqp", "0x%06x", x.SrcQP())
	}
	if ext&hdr.HasRETH != 0 {
		x := p.RETHOf(b)
		f.add("reth.va", "0x%016x", x.VA())
		f.add("reth.rkey", "0x%08x", x.RKey())
		f.add("reth.dmalen", "%d", x.DMALength())
	}
	if ext&hdr.HasAtomicETH != 0 {
		x := p.AtomicETHOf(b)
		f.add("atomiceth.va", "0x%016x", x.VA())
		f.add("atomiceth.rkey", "0x%08x", x.RKey())
		f.add("atomiceth.swap", "0x%016x", x.Swap())
		f.add("atomiceth.compare", "0x%016x", x.Compare())
	}
	if ext&hdr.HasMaskedAtomicETH != 0 {
		x := p.MaskedAtomicETHOf(b)
		f.add("maskedatomiceth.va", "0x%016x", x.VA())
		f.add("maskedatomiceth.rkey", "0x%08x", x.RKey())
		f.add("maskedatomiceth.swap", "0x%016x", x.Swap())
		f.add("maskedatomiceth.compare", "0x%016x", x.Compare())
		f.add("maskedatomiceth.swap-mask", "0x%016x", x.SwapMask())
		f.add("maskedatomiceth.compare-mask", "0x%016x", x.CompareMask())
	}
	if ext&hdr.HasAETH != 0 {
		x := p.AETHOf(b)
		f.add("aeth.syndrome", "%s", syndrome(x.Syndrome()))
		f.add("aeth.msn", "%d", x.MSN())
	}
	if ext&hdr.HasAtomicAckETH != 0 {
		f.add("atomicacketh.original", "0x%016x", p.AtomicAckETHOf(b).Original())
	}
	if ext&hdr.HasImmDt != 0 {
		f.add("immdt.data", "0x%08x", p.ImmDtOf(b).Data())
	}
	if ext&hdr.HasIETH != 0 {
		f.add("ieth.rkey", "0x%08x", p.IETHOf(b).RKey())
	}
	f.add("payload.length", "%d", len(p.PayloadOf(b)))
	f.add("icrc", "0x%08x %s", hdr.StoredICRC(b, &p), rightOrWrong(hdr.GoodICRC(b, &p)))
}

func syndrome(s hdr.Syndrome) string {
	name := "?"
	switch {
	case s.ACK():
		name = "ACK"
	case s.RNR():
		name = "RNR NAK"
	case s.NAK():
		name = "NAK"
		switch s {
		case hdr.SynNAKSequence:
			name = "NAK sequence error"
		case hdr.SynNAKInvalidRequest:
			name = "NAK invalid request"
		case hdr.SynNAKRemoteAccess:
			name = "NAK remote access error"
		case hdr.SynNAKRemoteOperation:
			name = "NAK remote operational error"
		}
	}
	return fmt.Sprintf("0x%02x %s", uint8(s), name)
}

func rightOrWrong(ok bool) string {
	if ok {
		return "(right)"
	}
	return "(wrong)"
}
