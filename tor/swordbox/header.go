package swordbox

import (
	"bytes"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// header is the front of a frame, from its first byte to the end of the BTH.
type header struct {
	shape
	b [14 + 2*4 + 40 + 8 + hdr.BTHLen]byte
}

// shape holds the offsets of a frame's headers, and which network header it has. Frames of one shape differ
// only in the values of fields.
type shape struct {
	l3, l4, bth uint8
	net         uint8
}

func (h *header) known() bool { return h.bth != 0 }
func (h *header) len() int    { return int(h.bth) + hdr.BTHLen }

// learn copies the front of frame b with headers f. It returns false if b has IP options or extension
// headers, because frames that are made from h would have to carry them, too.
func (h *header) learn(b []byte, f *hdr.Frame) bool {
	n := int(f.BTH) + hdr.BTHLen
	l3 := hdr.IPv6Len
	if f.Net == hdr.NetIPv4 {
		l3 = hdr.IPv4Len
	}
	l4 := 0
	if f.L4 != 0 {
		l4 = hdr.UDPLen
	}
	if n > len(h.b) || n != int(f.L3)+l3+l4+hdr.BTHLen {
		return false
	}
	copy(h.b[:n], b)
	h.l3, h.l4, h.bth, h.net = uint8(f.L3), uint8(f.L4), uint8(f.BTH), f.Net
	noUDPSum(h.b[:], f)
	if f.ECNOf(b) == hdr.CE {
		f.SetECN(h.b[:], hdr.ECT0) // a congestion mark belongs to one frame
	}
	return true
}

// frame stores in f the headers of frame b, which has front h and that opcode. The ICRC is the last four bytes of
// b. A returned copy of f would wait until the processor has stored its fields.
func (h *header) frame(f *hdr.Frame, b []byte, opcode hdr.Opcode) {
	*f = hdr.Frame{}
	f.Net, f.Op, f.L3, f.L4, f.BTH, f.End = h.net, opcode, uint16(h.l3), uint16(h.l4), uint16(h.bth), uint16(len(b)-hdr.ICRCLen)
}

// mac returns the destination MAC address of frames with front h.
func (h *header) mac() uint64 { return macOf(h.b[:]) }

// fits reports whether h has the shape of the parsed frame f, so that it can replace f's front.
func (h *header) fits(f *hdr.Frame) bool {
	return uint16(h.l3) == f.L3 && uint16(h.l4) == f.L4 && uint16(h.bth) == f.BTH && h.net == f.Net
}

// same reports whether the path and the server treat frame b, with headers f, as they do a frame with front
// h. So both must have the same shape, MAC addresses, tags, P_Key and TTL, and b no wrong UDP checksum.
func (h *header) same(b []byte, f *hdr.Frame) bool {
	pkey := int(h.bth) + 2
	return h.fits(f) && bytes.Equal(b[:h.l3], h.b[:h.l3]) && f.HopsOf(b) == h.hops() && be.Uint16(b[pkey:]) == be.Uint16(h.b[pkey:]) && udpSumOK(b, f)
}

// arrives reports whether the plain request b reaches the server's queue pair for certain. The client's
// requests have front h, also plain; row has what is known of the server. b must go to the MAC address that
// the server answers from, with the server's P_Key as a full member, from a station's MAC address, with at
// least the TTL of h and without a UDP checksum.
func (h *header) arrives(b *[plainLen]byte, row *conn.Row) bool {
	pkey := be.Uint16(b[plainBTH+2:])
	return be.Uint64(b[:])>>16 == be.Uint64(row.Server.L2[4:])&(1<<48-1) && pkey == row.PKey && pkey&0x8000 != 0 && hdr.Ethernet(b[:]).FromStation() &&
		b[plainL3+8] >= h.b[plainL3+8] && be.Uint16(b[plainL4+6:]) == 0
}

// hops returns the TTL, or hop limit, of frames with front h.
func (h *header) hops() uint8 { return *h.hopsAt() }

func (h *header) hopsAt() *uint8 {
	if h.net == hdr.NetIPv4 {
		return &h.b[h.l3+8]
	}
	return &h.b[h.l3+7]
}

// alike reports whether frame b, with headers f, has VLAN tags of the same types (TPIDs) as h, whatever their
// values, and no IP options. Or one of both has a single tag and the other has none, as with a priority tag.
func (h *header) alike(b []byte, f *hdr.Frame) bool {
	if h.fits(f) {
		for at := hdr.EthernetLen - 2; at < int(h.l3)-2; at += hdr.VLANLen {
			if be.Uint16(b[at:]) != be.Uint16(h.b[at:]) {
				return false
			}
		}
		return true
	}
	untagged := func(b []byte, l3 int) int { // number of bytes by which the tag moves what follows it; -1: there are other tags
		switch {
		case l3 == hdr.EthernetLen:
			return 0
		case l3 == hdr.EthernetLen+hdr.VLANLen && be.Uint16(b[hdr.EthernetLen-2:]) == hdr.EtherVLAN:
			return hdr.VLANLen
		}
		return -1
	}
	own, others := untagged(h.b[:], int(h.l3)), untagged(b, int(f.L3))
	return own >= 0 && others >= 0 && h.net == f.Net && int(h.bth)-own == int(f.BTH)-others
}

// udpSumOK reports whether frame b, with headers f, has a right UDP checksum or none.
func udpSumOK(b []byte, f *hdr.Frame) bool {
	if f.L4 == 0 || f.UDPOf(b).Checksum() == 0 {
		return true
	}
	n := int(f.UDPOf(b).Len())
	if f.Net == hdr.NetIPv4 {
		ip := f.IPv4Of(b)
		return hdr.Checksum(b[f.L4:int(f.L4)+n], hdr.PseudoSum(ip.Src(), ip.Dst(), hdr.ProtoUDP, n)) == 0
	}
	ip := f.IPv6Of(b)
	return hdr.Checksum(b[f.L4:int(f.L4)+n], hdr.PseudoSum(ip.Src(), ip.Dst(), hdr.ProtoUDP, n)) == 0
}

// address gives frame b, which h fits, the addresses of h: Ethernet, VLAN, IP, UDP source port, P_Key and
// queue pair. It also takes from h the treatment on the path: traffic class and TTL. The frame keeps its ECN
// mark. address does not change the ICRC.
func (h *header) address(b []byte) {
	if h.shape == plain { // as most frames are: all offsets are constants
		to, from := (*[plainLen]byte)(b), (*[plainLen]byte)(h.b[:])
		*(*[hdr.EthernetLen]byte)(to[:]) = [hdr.EthernetLen]byte(from[:])
		addressIPv4((*[hdr.IPv4Len]byte)(to[plainL3:]), (*[hdr.IPv4Len]byte)(from[plainL3:]))
		addressUDP((*[hdr.UDPLen]byte)(to[plainL4:]), (*[hdr.UDPLen]byte)(from[plainL4:]))
		addressBTH((*[hdr.BTHLen]byte)(to[plainBTH:]), (*[hdr.BTHLen]byte)(from[plainBTH:]))
		return
	}
	copy(b[:h.l3], h.b[:h.l3])
	to, from := b[h.l3:], h.b[h.l3:]
	if h.net == hdr.NetIPv4 {
		addressIPv4((*[hdr.IPv4Len]byte)(to), (*[hdr.IPv4Len]byte)(from))
	} else {
		to[0], to[1] = from[0], from[1]&^0x30|to[1]&0x30
		to[2], to[3], to[7] = from[2], from[3], from[7]
		*(*[32]byte)(to[8:]) = [32]byte(from[8:])
	}
	if h.l4 != 0 {
		addressUDP((*[hdr.UDPLen]byte)(b[h.l4:]), (*[hdr.UDPLen]byte)(h.b[h.l4:]))
	}
	addressBTH((*[hdr.BTHLen]byte)(b[h.bth:]), (*[hdr.BTHLen]byte)(h.b[h.bth:]))
}

// wear gives frame x, with headers f, the front h, although f has another shape: VLAN tags, IP options or an
// Ethernet trailer, which not every server accepts. The opcode, the PSN, the ECN mark and all that follows
// the BTH stay. wear computes the ICRC anew. It returns false if x has no room for h.
func (h *header) wear(x *packet.Buf, f *hdr.Frame) bool {
	b := x.Bytes()
	bth, ecn := [hdr.BTHLen]byte(b[f.BTH:]), f.ECNOf(b)
	longer := h.len() - int(f.BTH) - hdr.BTHLen
	if longer > int(x.Off()) {
		return false
	}
	x.SetFrame(int(x.Off())-longer, int(f.End)+hdr.ICRCLen+longer)
	b = x.Bytes()
	h.front(b)
	t := b[h.bth:]
	t[0], t[1], t[4] = bth[0], bth[1], bth[4]
	copy(t[8:hdr.BTHLen], bth[8:])
	if hdr.Parse(b, f) != hdr.IsRoCE {
		return false
	}
	f.SetECN(b, ecn)
	hdr.SetICRC(b, f)
	return true
}

func addressIPv4(to, from *[hdr.IPv4Len]byte) {
	to[1] = from[1]&^3 | to[1]&3
	to[8] = from[8]
	hdr.IPv4(to[:hdr.IPv4Len]).SetEnds(from[12:])
}

func addressUDP(to, from *[hdr.UDPLen]byte) {
	*(*[2]byte)(to[:]) = [2]byte(from[:])
	*(*[2]byte)(to[6:]) = [2]byte{}
}

func addressBTH(to, from *[hdr.BTHLen]byte) {
	*(*[2]byte)(to[2:]) = [2]byte(from[2:])
	to[5], to[6], to[7] = from[5], from[6], from[7]
}

// noUDPSum removes the UDP checksum of frame b, which is to be changed. RoCEv2 needs none (IBTA A17.3.2).
func noUDPSum(b []byte, f *hdr.Frame) {
	if f.L4 != 0 {
		b[f.L4+6], b[f.L4+7] = 0, 0
	}
}

// plain is the shape of a front over IPv4 without a VLAN tag; plainLen is its length in bytes.
const (
	plainL3  = hdr.EthernetLen
	plainL4  = plainL3 + hdr.IPv4Len
	plainBTH = plainL4 + hdr.UDPLen
	plainLen = plainBTH + hdr.BTHLen
)

var plain = shape{l3: plainL3, l4: plainL4, bth: plainBTH, net: hdr.NetIPv4}

// front writes h at the beginning of the new frame b, with lengths and an IP checksum for len(b). h keeps
// these values, because most frames have the length of the one before.
func (h *header) front(b []byte) {
	if n := uint16(len(b) - int(h.l3)); h.net == hdr.NetIPv4 {
		if ip := hdr.IPv4(h.b[h.l3:][:hdr.IPv4Len]); ip.TotalLen() != n {
			ip.SetTotalLen(n)
			ip.UpdateChecksum()
			hdr.UDP(h.b[h.l4:]).SetLen(n - hdr.IPv4Len)
		}
	} else if ip := hdr.IPv6(h.b[h.l3:]); ip.PayloadLen() != n-hdr.IPv6Len {
		ip.SetPayloadLen(n - hdr.IPv6Len)
		if h.l4 != 0 {
			hdr.UDP(h.b[h.l4:]).SetLen(n - hdr.IPv6Len)
		}
	}
	if h.len() == plainLen {
		*(*[plainLen]byte)(b) = [plainLen]byte(h.b[:])
	} else {
		copy(b, h.b[:h.len()])
	}
}

// write fills frame b with front h and with the WRITE that o is sent as, and stores the headers of b in f. The caller
// has given b its right length. The ICRC is not computed.
func (h *header) write(f *hdr.Frame, b []byte, o *op, psn uint32) {
	h.front(b)
	t := hdr.BTH(b[h.bth:])
	t[0], t[1] = byte(hdr.WriteOnly), t[1]&0x40
	t.SetPSN(psn)
	t.SetAckReq(true)
	r := hdr.RETH(b[h.len():])
	r.SetVA(o.va)
	r.SetRKey(o.rkey)
	r.SetDMALength(0)
	if p := b[h.len()+hdr.RETHLen:]; len(p) > hdr.ICRCLen {
		r.SetDMALength(8)
		le.PutUint64(p, o.out)
	}
	h.frame(f, b, hdr.WriteOnly)
}

// atomic fills frame b with front h and with atomic o, and stores the headers of b in f. The caller has given b its
// right length. The ICRC is not computed.
func (h *header) atomic(f *hdr.Frame, b []byte, o *op, m *more, psn uint32) {
	code := [...]hdr.Opcode{kCAS: hdr.CompareSwap, kFAA: hdr.FetchAdd, kMaskedCAS: hdr.MaskedCompSwap, kOtherAtomic: hdr.MaskedFetchAdd}[o.kind]
	h.front(b)
	t := hdr.BTH(b[h.bth:])
	t[0], t[1] = byte(code), t[1]&0x40
	t.SetPSN(psn)
	t.SetAckReq(true)
	a := hdr.AtomicETH(b[h.len():])
	a.SetVA(o.va)
	a.SetRKey(o.rkey)
	a.SetSwap(o.out)
	a.SetCompare(o.prior)
	if o.kind == kMaskedCAS || o.kind == kOtherAtomic {
		a := hdr.MaskedAtomicETH(b[h.len():])
		a.SetSwapMask(m.swapMask)
		a.SetCompareMask(m.compareMask)
	}
	h.frame(f, b, code)
}
