package conn

import (
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
)

// Ends are source and destination of a frame that a table looks at; ok is false
// for others.
func Ends(b []byte, f *hdr.Frame) (src, dst Addr, ok bool) { return addrs(b, f) }

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
