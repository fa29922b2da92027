package replay

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/hdr"
)

// Field is one header field of a frame, for people to read.
type Field struct{ Name, Value string }

// fields collects the result of Decode.
type fields []Field

// add adds fields of a header. The layout has a word NAME=FORMAT for each of the values.
func (f *fields) add(header, layout string, values ...any) {
	for i, word := range strings.Fields(layout) {
		name, format, _ := strings.Cut(word, "=")
		*f = append(*f, Field{header + "." + name, fmt.Sprintf(format, values[i])})
	}
}

// one adds one field.
func (f *fields) one(name, format string, args ...any) {
	*f = append(*f, Field{name, fmt.Sprintf(format, args...)})
}

// Decode decodes a frame, from Ethernet to the extended transport headers of RoCE, as far as it knows the
// headers. A field's name is header.field, with the names of the specifications; a second VLAN tag is vlan2.
// The checksum of an IPv4 header and the ICRC have (right) or (wrong) behind them. The last fields are the
// length of the payload and the ICRC.
func Decode(b []byte) []Field {
	var f fields
	if len(b) < hdr.EthernetLen {
		f.one("frame.short", "%d bytes", len(b))
		return f
	}
	e := hdr.Ethernet(b)
	dst, src := e.Dst(), e.Src()
	f.add("eth", "dst=%v src=%v type=0x%04x", net.HardwareAddr(dst[:]), net.HardwareAddr(src[:]), e.EtherType())
	et, at := e.EtherType(), hdr.EthernetLen
	for n := 1; (et == hdr.EtherVLAN || et == hdr.EtherQinQ) && len(b) >= at+hdr.VLANLen; n++ {
		name := "vlan"
		if n > 1 {
			name += strconv.Itoa(n)
		}
		v := hdr.VLAN(b[at:])
		f.add(name, "vid=%d pcp=%d dei=%t type=0x%04x", v.VID(), v.PCP(), v.DEI(), v.EtherType())
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
	f.add("arp", "op=%d sha=%v spa=%v tha=%v tpa=%v", a.Op(), net.HardwareAddr(sha[:]), a.SPA(), net.HardwareAddr(tha[:]), a.TPA())
}

func (f *fields) ipv4(b []byte) {
	h := hdr.IPv4(b)
	f.add("ipv4", "version=%d ihl=%d tos=0x%02x total-length=%d id=0x%04x df=%t mf=%t fragment-offset=%d ttl=%d protocol=%d",
		h.Version(), h.HeaderLen(), h.TOS(), h.TotalLen(), h.ID(), h.DF(), h.MF(), h.FragOffset(), h.TTL(), h.Protocol())
	n := h.HeaderLen()
	if n < hdr.IPv4Len || n > len(b) {
		f.one("ipv4.checksum", "0x%04x", h.Checksum())
		return
	}
	f.one("ipv4.checksum", "0x%04x %s", h.Checksum(), rightOrWrong(h.ChecksumOK()))
	f.add("ipv4", "src=%v dst=%v", h.Src(), h.Dst())
	if n > hdr.IPv4Len {
		f.one("ipv4.options", "%x", h.Options())
	}
	if h.FragOffset() == 0 {
		f.transport(h.Protocol(), b[n:])
	}
}

func (f *fields) ipv6(name string, b []byte) {
	h := hdr.IPv6(b)
	f.add(name, "version=%d traffic-class=0x%02x flow-label=0x%05x payload-length=%d next-header=%d hop-limit=%d src=%v dst=%v",
		h.Version(), h.TrafficClass(), h.FlowLabel(), h.PayloadLen(), h.NextHeader(), h.HopLimit(), h.Src(), h.Dst())
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
		f.add("udp", "src=%d dst=%d length=%d checksum=0x%04x", h.SrcPort(), h.DstPort(), h.Len(), h.Checksum())
	case proto == protoTCP && len(b) >= hdr.TCPLen:
		h := hdr.TCP(b)
		f.add("tcp", "src=%d dst=%d seq=%d ack=%d flags=0x%02x window=%d checksum=0x%04x",
			h.SrcPort(), h.DstPort(), h.Seq(), h.Ack(), h.Flags(), h.Window(), h.Checksum())
	case (proto == protoICMP || proto == protoICMPv6) && len(b) >= hdr.ICMPLen:
		h := hdr.ICMP(b)
		f.add("icmp", "type=%d code=%d checksum=0x%04x", h.Type(), h.Code(), h.Checksum())
	}
}

func (f *fields) roce(b []byte) {
	var p hdr.Frame
	why := hdr.Parse(b, &p)
	if why != hdr.IsRoCE {
		f.one("roce", "%v", why)
	}
	if p.BTH == 0 || int(p.BTH)+hdr.BTHLen > len(b) {
		return
	}
	h := p.BTHOf(b)
	f.add("bth", "opcode=%v se=%t migreq=%t padcnt=%d tver=%d pkey=0x%04x fecn=%t becn=%t destqp=0x%06x ackreq=%t psn=%d",
		h.OpCode(), h.Solicited(), h.MigReq(), h.PadCount(), h.TVer(), h.PKey(), h.FECN(), h.BECN(), h.DestQP(), h.AckReq(), h.PSN())
	if why != hdr.IsRoCE {
		return
	}
	ext := h.OpCode().Info().Ext
	if ext&hdr.HasFETH != 0 {
		x := p.FETHOf(b)
		f.add("feth", "placement=%d selectivity=%d", x.Placement(), x.Selectivity())
	}
	if ext&hdr.HasDETH != 0 {
		x := p.DETHOf(b)
		f.add("deth", "qkey=0x%08x srcqp=0x%06x", x.QKey(), x.SrcQP())
	}
	if ext&hdr.HasRETH != 0 {
		x := p.RETHOf(b)
		f.add("reth", "va=0x%016x rkey=0x%08x dmalen=%d", x.VA(), x.RKey(), x.DMALength())
	}
	if ext&hdr.HasAtomicETH != 0 {
		x := p.AtomicETHOf(b)
		f.add("atomiceth", "va=0x%016x rkey=0x%08x swap=0x%016x compare=0x%016x", x.VA(), x.RKey(), x.Swap(), x.Compare())
	}
	if ext&hdr.HasMaskedAtomicETH != 0 {
		x := p.MaskedAtomicETHOf(b)
		f.add("maskedatomiceth", "va=0x%016x rkey=0x%08x swap=0x%016x compare=0x%016x swap-mask=0x%016x compare-mask=0x%016x",
			x.VA(), x.RKey(), x.Swap(), x.Compare(), x.SwapMask(), x.CompareMask())
	}
	if ext&hdr.HasAETH != 0 {
		x := p.AETHOf(b)
		f.add("aeth", "syndrome=%s msn=%d", syndrome(x.Syndrome()), x.MSN())
	}
	if ext&hdr.HasAtomicAckETH != 0 {
		f.one("atomicacketh.original", "0x%016x", p.AtomicAckETHOf(b).Original())
	}
	if ext&hdr.HasImmDt != 0 {
		f.one("immdt.data", "0x%08x", p.ImmDtOf(b).Data())
	}
	if ext&hdr.HasIETH != 0 {
		f.one("ieth.rkey", "0x%08x", p.IETHOf(b).RKey())
	}
	f.one("payload.length", "%d", len(p.PayloadOf(b)))
	f.one("icrc", "0x%08x %s", hdr.StoredICRC(b, &p), rightOrWrong(hdr.GoodICRC(b, &p)))
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
