package conn

import (
	"encoding/binary"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Ends are source and destination of a frame.
type Ends struct{ Src, Dst Addr }

// EndsOf returns the Ends that Ends.Of finds, and its result.
func EndsOf(b []byte, f *hdr.Frame) (e Ends, ok bool) {
	ok = e.Of(b, f)
	return e, ok
}

// Of sets e to source and destination of frame b with headers f. It returns false for a
// frame that no table looks at: one that is not RoCE, that goes from a host to itself, or that
// has the tags of two VLANs. Two tags are a provider's (802.1ad), and the table cannot tell
// the networks of a provider's customers apart.
func (e *Ends) Of(b []byte, f *hdr.Frame) bool {
	if f.Plain { // as most frames are
		return e.OfPlain(b)
	}
	return e.ofAny(b, f)
}

// OfPlain does what Of does, for a frame that is hdr.Frame.Plain.
func (e *Ends) OfPlain(b []byte) bool {
	v := binary.BigEndian.Uint64((*[hdr.PlainBTH]byte)(b)[hdr.EthernetLen+12:])
	e.Src, e.Dst = Addr{lo: mapped | v>>32}, Addr{lo: mapped | v&0xFFFFFFFF}
	return uint32(v>>32) != uint32(v)
}

// of4 sets e to source and destination of IPv4 header p; it returns false if they are equal.
func (e *Ends) of4(p *[hdr.IPv4Len]byte, vlan uint64) bool {
	v := binary.BigEndian.Uint64(p[12:])
	src, dst := mapped|v>>32, mapped|v&0xFFFFFFFF
	e.Src, e.Dst = Addr{0, src, vlan}, Addr{0, dst, vlan}
	return src != dst
}

// ofAny does what Of does, for any frame.
func (e *Ends) ofAny(b []byte, f *hdr.Frame) bool {
	if f.Why != hdr.IsRoCE {
		return false
	}
	vlan, ok := vlanOf(b, f)
	if !ok {
		return false
	}
	if f.Net == hdr.NetIPv4 {
		return e.of4(f.PlainIPv4Of(b), uint64(vlan))
	}
	p := b[f.L3+8 : f.L3+hdr.IPv6Len]
	e.Src = Addr{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:]), uint64(vlan)}
	e.Dst = Addr{binary.BigEndian.Uint64(p[16:]), binary.BigEndian.Uint64(p[24:]), uint64(vlan)}
	// An IPv4-mapped address is not sent in an IPv6 header (RFC 4038 4.2), and would be
	// taken for the IPv4 address here. The GIDs of RoCE v1 may be such addresses.
	return e.Src != e.Dst && (f.Net == hdr.NetGRH || !e.Src.Is4() && !e.Dst.Is4())
}

// vlanOf returns the VLAN of a frame, 0 if it is in none; ok is false if it is in two.
func vlanOf(b []byte, f *hdr.Frame) (id uint16, ok bool) {
	for i := range int(f.Tags) {
		if v := f.VLANOf(b, i).VID(); v != 0 {
			if id != 0 {
				return 0, false
			}
			id = v
		}
	}
	return id, true
}

// As16 returns the 16 bytes of a, in network byte order, without its VLAN. AddrOf does the reverse.
func (a Addr) As16() [16]byte { return a.Netip().As16() }

// AddrOf returns the address whose bytes are b (see Addr.As16), in no VLAN.
func AddrOf(b [16]byte) Addr { return AddrFrom(netip.AddrFrom16(b)) }

// Target returns the destination address of frame b, RoCE or not, as an address in no VLAN
// whatever the frame's tags. It returns the zero Addr if hdr.Parse found no network header.
func Target(b []byte, f *hdr.Frame) Addr {
	p := b[f.L3:]
	switch {
	case f.Net == hdr.NetIPv4 && len(p) >= hdr.IPv4Len:
		return Addr{lo: mapped | uint64(binary.BigEndian.Uint32(p[16:]))}
	case f.Net > hdr.NetIPv4 && len(p) >= hdr.IPv6Len:
		return Addr{hi: binary.BigEndian.Uint64(p[24:]), lo: binary.BigEndian.Uint64(p[32:])}
	}
	return Addr{}
}

// Hidden finds frames that hdr.Parse does not take for RoCE, but that a receiver may take for a
// request: the first fragment of an IP datagram, because receivers join fragments (RoCEv2 has none,
// IBTA A17), or a frame with a wrong UDP length, transport version or opcode. For such a frame ok is
// true, and qpn is the destination's queue pair number; it is 0 if the fragment is too short to hold it
// (no genuine sender makes such fragments).
func Hidden(b []byte, f *hdr.Frame) (qpn uint32, ok bool) {
	switch {
	case f.Why != hdr.Fragment && hdr.ChangeOf(b, f).Reach == hdr.ReachNone, f.Net == 0:
		return 0, false
	case f.BTH != 0:
		return f.BTHOf(b).DestQP(), f.BTHOf(b).OpCode().Transport() == hdr.RC
	}
	p := b[f.L3:]
	switch {
	case f.L4 != 0:
		p = b[f.L4:]
	case f.Net == hdr.NetIPv4:
		ip := hdr.IPv4(p)
		if ip.FragOffset() != 0 || ip.Protocol() != hdr.ProtoUDP {
			return 0, false
		}
		p = p[ip.HeaderLen():max(ip.HeaderLen(), int(ip.TotalLen()))]
	default:
		_, at, whole := hdr.IPv6(p).Upper()
		p = p[:hdr.IPv6Len+int(hdr.IPv6(p).PayloadLen())]
		if !whole || len(p) < at+8 || binary.BigEndian.Uint16(p[at+2:])&^7 != 0 {
			return 0, false
		}
		if next := p[at]; next != hdr.ProtoUDP {
			return 0, next == hdr.ProtoHopByHop || next == hdr.ProtoRouting || next == hdr.ProtoDstOption
		}
		p = p[at+8:]
	}
	switch {
	case len(p) < hdr.UDPLen:
		return 0, true
	case hdr.UDP(p).DstPort() != hdr.RoCEv2Port:
		return 0, false
	case len(p) < hdr.UDPLen+hdr.BTHLen:
		return 0, true
	}
	h := hdr.BTH(p[hdr.UDPLen:])
	return h.DestQP(), h.OpCode().Transport() == hdr.RC
}
