package hdr

import "net/netip"

// Sizes of the link and network headers in bytes, without options.
const (
	EthernetLen = 14
	VLANLen     = 4
	ARPLen      = 28
	IPv4Len     = 20
	IPv6Len     = 40
	GRHLen      = 40
	UDPLen      = 8
	TCPLen      = 20
	ICMPLen     = 8
)

// Ethernet is a frame's first 14 bytes (IEEE 802.3):
//
//	0 destination | 6 source | 12 EtherType |
type Ethernet []byte

func (h Ethernet) Dst() [6]byte          { return [6]byte(h) }
func (h Ethernet) SetDst(a [6]byte)      { copy(h[:6], a[:]) }
func (h Ethernet) Src() [6]byte          { return [6]byte(h[6:]) }
func (h Ethernet) SetSrc(a [6]byte)      { copy(h[6:12], a[:]) }
func (h Ethernet) EtherType() uint16     { return be.Uint16(h[12:]) }
func (h Ethernet) SetEtherType(t uint16) { be.PutUint16(h[12:], t) }

// FromStation reports whether the source is a station's address: no group's, and not zero. Switches throw away what comes from another one (IEEE 802.1Q 8.7).
func (h Ethernet) FromStation() bool { return h[6]&1 == 0 && be.Uint64(h[6:])>>16 != 0 }

// EthernetFields are the fields of an Ethernet header, for Encode.
type EthernetFields struct {
	Dst, Src  [6]byte
	EtherType uint16
}

// Encode writes all 14 bytes.
func (h Ethernet) Encode(f *EthernetFields) {
	h.SetDst(f.Dst)
	h.SetSrc(f.Src)
	h.SetEtherType(f.EtherType)
}

// VLAN is what follows an EtherType of EtherVLAN or EtherQinQ, 4 bytes (IEEE
// 802.1Q 9.6):
//
//	0 PCP:3 DEI:1 VID:12 | 2 EtherType of what follows |
type VLAN []byte

func (h VLAN) PCP() uint8            { return h[0] >> 5 }
func (h VLAN) SetPCP(v uint8)        { h[0] = h[0]&0x1F | v<<5 }
func (h VLAN) DEI() bool             { return h[0]&0x10 != 0 }
func (h VLAN) SetDEI(v bool)         { setBit(h, 0, 0x10, v) }
func (h VLAN) VID() uint16           { return be.Uint16(h) & 0xFFF }
func (h VLAN) SetVID(v uint16)       { be.PutUint16(h, be.Uint16(h)&0xF000|v&0xFFF) }
func (h VLAN) EtherType() uint16     { return be.Uint16(h[2:]) }
func (h VLAN) SetEtherType(t uint16) { be.PutUint16(h[2:], t) }

// ARP is an address resolution packet for IPv4 over Ethernet, 28 bytes (RFC
// 826):
//
//	0 HType | 2 PType | 4 HLen PLen | 6 Op | 8 SHA | 14 SPA | 18 THA | 24 TPA |
type ARP []byte

// Operations of an ARP packet.
const (
	ARPRequest uint16 = 1
	ARPReply   uint16 = 2
)

// Valid reports whether the packet is long enough and is about IPv4 over
// Ethernet: the other getters hold only then.
func (h ARP) Valid() bool {
	return len(h) >= ARPLen && be.Uint64(h)>>16 == 0x000108000604
}

func (h ARP) Op() uint16      { return be.Uint16(h[6:]) }
func (h ARP) SHA() [6]byte    { return [6]byte(h[8:]) }
func (h ARP) SPA() netip.Addr { return netip.AddrFrom4([4]byte(h[14:])) }
func (h ARP) THA() [6]byte    { return [6]byte(h[18:]) }
func (h ARP) TPA() netip.Addr { return netip.AddrFrom4([4]byte(h[24:])) }

// ARPFields are the fields of an ARP packet, for Encode. SPA and TPA are IPv4.
type ARPFields struct {
	Op       uint16
	SHA, THA [6]byte
	SPA, TPA netip.Addr
}

// Encode writes all 28 bytes.
func (h ARP) Encode(f *ARPFields) {
	be.PutUint64(h, 0x000108000604<<16|uint64(f.Op))
	spa, tpa := f.SPA.As4(), f.TPA.As4()
	copy(h[8:14], f.SHA[:])
	copy(h[14:18], spa[:])
	copy(h[18:24], f.THA[:])
	copy(h[24:28], tpa[:])
}
