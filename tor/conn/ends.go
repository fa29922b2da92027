package conn

import (
	"encoding/binary"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Ends are source and destination of a frame.
type Ends struct{ Src, Dst Addr }

// EndsOf is Ends.Of in a value of its own.
func EndsOf(b []byte, f *hdr.Frame) (e Ends, ok bool) {
	ok = e.Of(b, f)
	return e, ok
}

// Of sets e to the ends of a RoCE frame that a table looks at, from one host to
// another, in at most one VLAN; it is false for others: frames with the tags of
// two VLANs are a provider's (802.1ad), whose customers' networks are not ours to
// know.
func (e *Ends) Of(b []byte, f *hdr.Frame) bool {
	if f.Plain { // most are
		return e.OfPlain(b)
	}
	return e.ofAny(b, f)
}

// OfPlain is Of for a frame that is hdr.Frame.Plain.
func (e *Ends) OfPlain(b []byte) bool {
	v := binary.BigEndian.Uint64(b[hdr.EthernetLen+12:])
	e.Src, e.Dst = Addr{lo: mapped | v>>32}, Addr{lo: mapped | v&0xFFFFFFFF}
	return uint32(v>>32) != uint32(v)
}

// of4 sets e to the ends of an IPv4 header.
func (e *Ends) of4(p *[hdr.IPv4Len]byte, vlan uint64) bool {
	v := binary.BigEndian.Uint64(p[12:])
	src, dst := mapped|v>>32, mapped|v&0xFFFFFFFF
	e.Src, e.Dst = Addr{0, src, vlan}, Addr{0, dst, vlan}
	return src != dst
}

// ofAny is Of for any frame.
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
	// A mapped address does not travel in IPv6 (RFC 4038 4.2), where it would be
	// taken for the IPv4 one; in the GIDs of RoCE v1 it does.
	return e.Src != e.Dst && (f.Net == hdr.NetGRH || !e.Src.Is4() && !e.Dst.Is4())
}

// vlanOf is the VLAN of a frame; ok is false when it is in two.
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

// As16 is a as 16 bytes, without its VLAN, AddrOf the address of such bytes.
func (a Addr) As16() [16]byte { return a.Netip().As16() }

// AddrOf is the address that As16 gave.
func AddrOf(b [16]byte) Addr { return AddrFrom(netip.AddrFrom16(b)) }

// Target is the destination of any frame whose network header hdr.Parse found,
// in no VLAN, whatever its tags; zero when there is none.
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

// Hidden is the queue pair that a frame is for which hdr.Parse does not take for RoCE and a receiver may take for a request all the same: the first of an IP
// datagram's fragments, which receivers join (RoCEv2 has none, IBTA A17), or one of a wrong UDP length, transport version or opcode. ok: it is such a frame.
// A fragment that is too short to say for which queue pair is for 0: no sender needs such.
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
