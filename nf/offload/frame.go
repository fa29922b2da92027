package offload

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/quillon/quillon/nf/hdr"
)

var (
	be = binary.BigEndian
	ne = binary.NativeEndian
)

// Key is what the frames of one direction of a flow have in common, as they come in.
type Key struct {
	Src, Dst         [16]byte // of IPv4 the first 4
	SrcPort, DstPort uint16
	VLAN             uint16 // 0: untagged; else its number, and Tagged
	Tunnel           uint16 // the number of the tunnel that it came in by; 0: by none
	Port             uint8  // the port that it came in at, as it is numbered in the Table
	Proto            uint8  // of IPv6 with Six
}

// Six is the bit of Key.Proto that marks an IPv6 flow.
const Six = 0x80

func (k *Key) six() bool { return k.Proto&Six != 0 }

// Tagged is the bit of Key.VLAN that marks a tagged frame.
const Tagged = 1 << 12

// KeyLen is the length in bytes of a key as the program has it (Key.Bytes).
const KeyLen = 18

// Bytes returns the key in the program's form, where an IPv6 address is folded into 4 bytes. Two IPv6 flows may
// thus have the same bytes; the program compares their Addrs, too.
func (k *Key) Bytes() (b [KeyLen]byte) {
	copy(b[0:], k.Src[:4])
	copy(b[4:], k.Dst[:4])
	if k.six() {
		ne.PutUint32(b[0:], folded(&k.Src))
		ne.PutUint32(b[4:], folded(&k.Dst))
	}
	be.PutUint16(b[8:], k.SrcPort)
	be.PutUint16(b[10:], k.DstPort)
	ne.PutUint16(b[12:], k.VLAN)
	ne.PutUint16(b[14:], k.Tunnel)
	b[16], b[17] = uint8(k.Port), k.Proto
	return b
}

func folded(a *[16]byte) uint32 {
	return ne.Uint32(a[0:]) ^ ne.Uint32(a[4:]) ^ ne.Uint32(a[8:]) ^ ne.Uint32(a[12:])
}

// Addrs are an IPv6 source address and, behind it, the destination address.
type Addrs [32]byte

// addrs returns the addresses of an IPv6 flow, or zero for an IPv4 flow.
func (k *Key) addrs() (a Addrs) {
	if k.six() {
		copy(a[:], k.Src[:])
		copy(a[16:], k.Dst[:])
	}
	return a
}

// framer parses frames and changes them as the program does. It knows the tunnels.
type framer struct {
	k       Kernel
	control *Control
	tunnels
}

// tunnels is a table of the known tunnels. Any goroutine may look up a tunnel while another one adds one.
type tunnels struct {
	all   [MaxTunnels]atomic.Pointer[Tunnel] // by number; 0 is none
	words [2 * MaxTunnels]atomic.Uint32      // numbers, by the hashes of keys (open addressing)
	n     int
	port  atomic.Uint32 // UDP; 0: there are none
}

// of returns the index in words where key k is, or would be added, and the tunnel's number; 0 if k is not known.
func (t *tunnels) of(k *tunnelKey) (at int, id uint16) {
	h := (uint64(k.VNI)<<32 ^ uint64(ne.Uint32(k.Remote[:]))) * 0x9E3779B97F4A7C15
	for at = int(h >> 51); ; at = (at + 1) % len(t.words) {
		id := uint16(t.words[at].Load())
		if id == 0 || t.all[id].Load().key() == *k {
			return at, id
		}
	}
}

func (x *Tunnel) key() tunnelKey {
	return tunnelKey{VNI: x.VNI, Remote: x.Remote, Local: x.Local, Port: x.Port}
}

// Frame is the Key of a frame, and the offsets of its headers.
type Frame struct {
	Key
	L2, L3 int // of the frame inside a tunnel
}

// Parse fills f from frame b, which came in at the port of that number, exactly as the program parses frames. It
// returns false if the frame is not plain: then the functions must treat it.
func (t *framer) Parse(b []byte, port int, f *Frame) bool { return t.parse(b, port, f, false) }

// parse is Parse. With leaves, the frame is one that leaves, and its tunnel is the one that it goes into.
func (t *framer) parse(b []byte, port int, f *Frame, leaves bool) bool {
	*f = Frame{Key: Key{Port: uint8(port)}}
	var l hdr.Layers
	if !plain(b, &l) {
		return false
	}
	if port := t.tunnels.port.Load(); port != 0 && l.Proto == hdr.ProtoUDP && l.EtherType == hdr.EtherIPv4 && be.Uint16(b[l.L4+2:]) == uint16(port) {
		id := t.inside(b, &l, leaves)
		if id == 0 {
			return false
		}
		outer := hdr.IPv4(b[l.L3:]).TOS() & 3
		f.Tunnel, f.L2 = id, TunnelLen
		b = b[TunnelLen:]
		if !plain(b, &l) {
			return false
		}
		// With these ECN fields the inner header would change, or the frame would be dropped (RFC 6040).
		if inner := tosOf(b[l.L3:]) & 3; outer != 0 && outer != inner && (inner != 0 || outer == 3) {
			return false
		}
	}
	f.L3 = f.L2 + l.L3
	if l.Tags > 0 {
		f.VLAN = l.VID | Tagged
	}
	if f.Proto = l.Proto; l.EtherType == hdr.EtherIPv6 {
		f.Proto |= Six
		f.Src, f.Dst = [16]byte(b[l.L3+8:]), [16]byte(b[l.L3+24:])
	} else {
		copy(f.Src[:], b[l.L3+12:l.L3+16])
		copy(f.Dst[:], b[l.L3+16:l.L3+20])
	}
	f.SrcPort, f.DstPort = be.Uint16(b[l.L4:]), be.Uint16(b[l.L4+2:])
	return true
}

// tosOf returns the TOS or traffic class of an IP header.
func tosOf(ip []byte) uint8 {
	if ip[0]>>4 == 6 {
		return hdr.IPv6(ip).TrafficClass()
	}
	return hdr.IPv4(ip).TOS()
}

const plainACK = 0x10

// plain reports whether a frame is a whole TCP or UDP datagram over IP without options or extension headers, behind at most one VLAN tag, and no segment that opens or
// ends a connection.
func plain(b []byte, l *hdr.Layers) bool {
	if !hdr.Walk(b, l) || l.L3 == 0 || l.Fragment || l.Tags > 1 {
		return false
	}
	switch l.EtherType {
	case hdr.EtherIPv4:
		if l.L4 != l.L3+hdr.IPv4Len {
			return false
		}
	case hdr.EtherIPv6:
		if l.L4 != l.L3+hdr.IPv6Len {
			return false
		}
	default:
		return false
	}
	if l.Tags == 1 && hdr.Ethernet(b).EtherType() != hdr.EtherVLAN {
		return false
	}
	p := b[l.L4:l.End]
	switch l.Proto {
	case hdr.ProtoUDP:
		return len(p) >= hdr.UDPLen
	case hdr.ProtoTCP:
		if len(p) < hdr.TCPLen {
			return false
		}
		n := hdr.TCP(p).HeaderLen()
		return n >= hdr.TCPLen && n <= len(p) && hdr.TCP(p).Flags()&0x17 == plainACK
	}
	return false
}

// inside returns the number of the tunnel that a datagram to the tunnels' UDP port came in by or, with leaves,
// goes into. It returns 0 if there is no such tunnel, or if the datagram is not plain.
func (t *framer) inside(b []byte, l *hdr.Layers, leaves bool) uint16 {
	p := b[l.L4:]
	if l.Tags > 0 || l.End != len(b) || len(p) < hdr.UDPLen+hdr.VXLANLen || int(hdr.UDP(p).Len()) != len(p) || hdr.UDP(p).Checksum() != 0 ||
		!hdr.IPv4(b[l.L3:]).ChecksumOK() || !hdr.VXLAN(p[hdr.UDPLen:]).HasVNI() {
		return 0
	}
	x := tunnelKey{VNI: hdr.VXLAN(p[hdr.UDPLen:]).VNI(), Port: be.Uint16(p[2:])}
	copy(x.Remote[:], b[l.L3+12:])
	copy(x.Local[:], b[l.L3+16:])
	if leaves {
		x.Remote, x.Local = x.Local, x.Remote
	}
	_, id := t.of(&x)
	if !leaves && id != 0 && hdr.Ethernet(b).Dst() != t.all[id].Load().LocalMAC {
		return 0
	}
	return id
}

// reversed returns the key of the answers to a frame that left, with key k, by a port.
func (k *Key) reversed(port int) Key {
	r := *k
	r.Src, r.Dst, r.SrcPort, r.DstPort, r.Port = k.Dst, k.Src, k.DstPort, k.SrcPort, uint8(port)
	return r
}

// Change is the difference that all functions together make to the frames of one direction of a flow.
type Change struct {
	InMAC, OutMAC    [12]byte // Destination and source: of frames that it is done to, and then
	Src, Dst         [4]byte  // of IPv4
	SrcPort, DstPort uint16
	Ops              uint8
	VLAN             uint16 // of OpTag
	Tunnel           uint16 // of OpInto
	OuterPort        uint16 // of OpInto
	Head             int    // bytes that are taken away in front; negative: that are put there
	IPDelta, L4Delta uint16 // what is added to the checksums, in the machine's order; 0: nothing
}

// Flags in Change.Ops: what a Change does beside writing MAC addresses.
const (
	OpRewrite   = 1 << iota // addresses and ports
	OpTagged                // the frame is tagged when it leaves
	OpTag                   // by this change
	OpInto                  // it goes into a tunnel
	OpSix                   // it is IPv6: nothing is rewritten
	OpDropNotes             // what the meter drops, functions have seen before
	OpDropUp                // what it would drop comes up
)

// difference returns the change that makes after of before, whose parts are at in and out. It returns false if
// the program cannot make such a change.
func (t *framer) difference(before, after []byte, in, out *Frame) (c Change, ok bool) {
	copy(c.InMAC[:], before[in.L2:])
	copy(c.OutMAC[:], after[out.L2:])
	same := in.Src == out.Src && in.Dst == out.Dst && in.SrcPort == out.SrcPort && in.DstPort == out.DstPort
	switch {
	case in.six():
		if !same {
			return c, false
		}
		c.Ops |= OpSix
	case !same:
		c.Ops |= OpRewrite
		c.deltas(in, out)
		fallthrough
	default:
		c.Src, c.Dst, c.SrcPort, c.DstPort = [4]byte(out.Src[:]), [4]byte(out.Dst[:]), out.SrcPort, out.DstPort
	}
	if out.VLAN != 0 {
		c.Ops |= OpTagged
		switch in.VLAN {
		case out.VLAN:
		case 0:
			c.Ops, c.VLAN = c.Ops|OpTag, out.VLAN&^Tagged
		default:
			return c, false
		}
	}
	if out.Tunnel != 0 {
		c.Ops, c.Tunnel = c.Ops|OpInto, out.Tunnel
		c.OuterPort = be.Uint16(after[34:])
	}
	c.Head = in.L3 - out.L3
	return c, in.Proto == out.Proto
}

// deltas sets what the new addresses and ports add to the checksums (RFC 1624 eqn. 3).
func (c *Change) deltas(in, out *Frame) {
	var ip, l4 uint32
	add := func(sum *uint32, old, new []byte) {
		for i := 0; i < len(old); i += 2 {
			*sum += uint32(^ne.Uint16(old[i:])) + uint32(ne.Uint16(new[i:]))
		}
	}
	a, b := in.Bytes(), out.Bytes()
	for _, at := range [2]int{0, 4} {
		if string(a[at:at+4]) != string(b[at:at+4]) {
			add(&ip, a[at:at+4], b[at:at+4])
		}
	}
	l4 = ip
	add(&l4, a[8:12], b[8:12])
	c.IPDelta, c.L4Delta = fold(ip), fold(l4)
}

func fold(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xFFFF + s>>16
	}
	return uint16(s)
}

// patch adds a delta to a checksum at the beginning of b.
func patch(b []byte, delta uint16) {
	if delta != 0 {
		ne.PutUint16(b, ^fold(uint32(^ne.Uint16(b))+uint32(delta)))
	}
}

// apply returns a new frame: b, whose parts are at f, changed by c as the program would change it.
func (t *framer) apply(c *Change, b []byte, f *Frame) []byte {
	ip := b[f.L3:]
	var out []byte
	if c.Ops&OpInto != 0 {
		x := t.all[c.Tunnel].Load()
		out = append(out, x.Header[:]...)
	}
	out = append(out, c.OutMAC[:]...)
	switch {
	case c.Ops&OpTag != 0:
		out = be.AppendUint32(out, hdr.EtherVLAN<<16|uint32(c.VLAN))
	case c.Ops&OpTagged != 0:
		out = append(out, b[f.L2+12:f.L2+16]...)
	}
	ether := uint16(hdr.EtherIPv4)
	if c.Ops&OpSix != 0 {
		ether = hdr.EtherIPv6
	}
	out = append(be.AppendUint16(out, ether), ip...)
	ip = out[len(out)-len(ip):]
	if c.Ops&OpRewrite != 0 {
		patch(ip[10:], c.IPDelta)
		copy(ip[12:], c.Src[:])
		copy(ip[16:], c.Dst[:])
		be.PutUint16(ip[20:], c.SrcPort)
		be.PutUint16(ip[22:], c.DstPort)
		if f.Proto == hdr.ProtoTCP {
			patch(ip[36:], c.L4Delta)
		} else if ne.Uint16(ip[26:]) != 0 {
			patch(ip[26:], c.L4Delta)
			if ne.Uint16(ip[26:]) == 0 {
				ne.PutUint16(ip[26:], 0xFFFF)
			}
		}
	}
	if c.Ops&OpInto != 0 {
		x := t.all[c.Tunnel].Load()
		o := hdr.IPv4(out[14:])
		o.SetTOS(tosOf(ip)&x.Mask | x.Base)
		o.SetTotalLen(uint16(len(out) - 14))
		o.UpdateChecksum()
		be.PutUint16(out[34:], c.OuterPort)
		be.PutUint16(out[38:], uint16(len(out)-34))
	}
	return out
}

// known reports whether a tunnel with the key of x is in the table, and whether it equals x in all fields (is).
func (t *framer) known(x *Tunnel) (is, known bool) {
	k := x.key()
	_, id := t.of(&k)
	return id != 0 && *t.all[id].Load() == *x, id != 0
}

// addTunnel adds x to the table and to the program. It returns false if x contradicts a tunnel with the same key,
// has another UDP port than the tunnels before it, or finds no room. The caller has the Table's turn.
func (t *framer) addTunnel(x *Tunnel) bool {
	k := x.key()
	at, id := t.of(&k)
	if id != 0 {
		return *t.all[id].Load() == *x
	}
	port := t.tunnels.port.Load()
	if port != 0 && port != uint32(x.Port) || t.n+1 == MaxTunnels {
		return false
	}
	id = uint16(t.n + 1)
	c := *x
	if t.k.PutTunnel(k.bytes(), id, x.LocalMAC, &Template{Header: x.Header, Mask: x.Mask, Base: x.Base, Sum: headerSum(x.Header)}) != nil {
		return false
	}
	t.n++
	t.all[id].Store(&c)
	t.words[at].Store(uint32(id))
	t.tunnels.port.Store(uint32(x.Port))
	var b [4]byte
	be.PutUint16(b[:], x.Port)
	atomic.StoreUint32(&t.control.TunnelPort, uint32(ne.Uint16(b[:])))
	return true
}

// headerSum returns Template.Sum of headers h.
func headerSum(h [TunnelLen]byte) uint16 {
	ip := hdr.IPv4(h[hdr.EthernetLen:])
	ip.SetTOS(0)
	ip.SetTotalLen(0)
	ip.SetChecksum(0)
	var sum uint32
	for i := 0; i < hdr.IPv4Len; i += 2 {
		sum += uint32(ne.Uint16(ip[i:]))
	}
	return fold(sum)
}

// forget removes all tunnels, because functions may have different ones after a change of the graph. A goroutine
// that has looked up a tunnel may continue to use it.
func (t *framer) forget() {
	for id := 1; id <= t.n; id++ {
		k := t.all[id].Load().key()
		t.k.DeleteTunnel(k.bytes())
	}
	for i := range t.words {
		t.words[i].Store(0)
	}
	t.n = 0
	t.tunnels.port.Store(0)
	atomic.StoreUint32(&t.control.TunnelPort, 0)
}
