package conn

import (
	"encoding/binary"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Ends are source and destination of a frame.
type Ends struct{ Src, Dst Addr }

// EndsOf are the ends of a frame that a table looks at, RoCEv2 over untagged
// Ethernet from one host to another; ok is false for others.
func EndsOf(b []byte, f *hdr.Frame) (e Ends, ok bool) {
	if f.Why != hdr.IsRoCE || f.Tags != 0 {
		return e, false
	}
	switch p := b[f.L3:]; f.Net {
	case hdr.NetIPv4:
		v := binary.BigEndian.Uint64(p[12:20])
		e.Src, e.Dst = Addr{0, mapped | v>>32}, Addr{0, mapped | v&0xFFFFFFFF}
		return e, e.Src.lo != e.Dst.lo
	case hdr.NetIPv6:
		p = p[8:hdr.IPv6Len]
		e.Src = Addr{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:])}
		e.Dst = Addr{binary.BigEndian.Uint64(p[16:]), binary.BigEndian.Uint64(p[24:])}
		// A mapped address does not travel (RFC 4038 4.2): it would be taken
		// for the IPv4 one.
		return e, !e.Src.Is4() && !e.Dst.Is4() && e.Src != e.Dst
	}
	return e, false
}

// As16 is a as 16 bytes, AddrOf the address of such bytes.
func (a Addr) As16() [16]byte { return a.Netip().As16() }

// AddrOf is the address that As16 gave.
func AddrOf(b [16]byte) Addr { return AddrFrom(netip.AddrFrom16(b)) }

// Target is the destination of any RoCE frame, tagged or of RoCE v1, too; zero
// when there is none.
func Target(b []byte, f *hdr.Frame) Addr {
	switch f.Net {
	case hdr.NetIPv4:
		return AddrFrom(f.IPv4Of(b).Dst())
	case hdr.NetIPv6:
		return AddrFrom(f.IPv6Of(b).Dst())
	case hdr.NetGRH:
		return AddrFrom(f.GRHOf(b).DGID().Unmap())
	}
	return Addr{}
}
