package vxlan

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/mtu"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/outer"
	"github.com/quillon/quillon/nf/packet"
)

// Ports: plain frames and the tunnel.
const (
	plain = iota
	tunnel
)

// Trace records.
const (
	traceEncapsulate uint16 = iota // VNI, source port
	traceDecapsulate               // VNI, source port
)

// app is one end of the tunnel.
type app struct {
	s       settings
	outer   *outer.Header
	local   []byte // addresses as they stand in a header
	remote  []byte
	vniOf   [4096]int32 // by VLAN; -1: none
	vlanOf  map[uint32]uint16
	teller  mtu.Teller
	tunnels map[uint32]*offload.Tunnel // by VNI, of those that had frames
	longest int                        // frame that fits, without a tag
}

func newApp(s settings) *app {
	a := &app{s: s, vlanOf: map[uint32]uint16{}, tunnels: map[uint32]*offload.Tunnel{}, local: s.local.AsSlice(), remote: s.remote.AsSlice()}
	for v := range a.vniOf {
		a.vniOf[v] = -1
	}
	for _, t := range s.tenants {
		a.vniOf[t.vid], a.vlanOf[t.vni] = int32(t.vni), t.vid
	}
	if s.vni >= 0 {
		a.vlanOf[uint32(s.vni)] = 0
	}
	a.outer = outer.New(outer.Config{
		LocalMAC: s.localMAC, RemoteMAC: s.remoteMAC, VLAN: s.outerVLAN, Local: s.local, Remote: s.remote, TTL: s.ttl,
		Proto: hdr.ProtoUDP, Port: s.port, ZeroSum: s.zero6,
	})
	a.longest = s.mtu - a.outer.IPLen() - hdr.VXLANLen
	return a
}

// Takes implements graph.Reconfigurer.
func (*app) Takes(graph.Args) bool { return true }

// Reconfigure implements graph.Reconfigurer. The only state is how many senders were told recently, and it stays.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parseArgs(args)
	if err == nil {
		teller := a.teller
		*a = *newApp(s)
		a.teller = teller
	}
	return err
}

func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	var on [packet.MaxBatch]*packet.Buf
	n := 0
	for _, x := range b.Bufs() {
		passes := false
		switch b := x.Bytes(); {
		case in == tunnel:
			passes = a.decapsulate(c, x)
		case a.usual(b):
			passes = a.wrap(c, x, uint32(a.s.vni), b[hdr.EthernetLen+1], outer.UsualFlow(b))
		default:
			passes = a.encapsulate(c, x)
		}
		if passes {
			on[n] = x
			n++
		}
	}
	c.EmitAll(1-in, on[:n])
}

// usual reports whether a frame needs nothing but outer headers: no tag to remove, no MSS to lower, and it fits.
func (a *app) usual(b []byte) bool {
	_, proto, ok := hdr.Usual(b)
	return ok && a.s.vni >= 0 && len(b) <= a.longest && (proto == hdr.ProtoUDP || len(b) >= hdr.UsualL4+hdr.TCPLen && hdr.TCP(b[hdr.UsualL4:]).Flags()&hdr.TCPSyn == 0)
}

// other drops a frame that does not belong in the tunnel, or marks it to pass, and reports whether it passes.
func (a *app) other(c *graph.Ctx, x *packet.Buf, r graph.Reason) bool {
	if a.s.dropOthers {
		c.Drop(x, r)
		return false
	}
	c.Mark(x, packet.Forwarded, r)
	return true
}

// encapsulate handles a frame from the plain side, and reports whether it goes on.
func (a *app) encapsulate(c *graph.Ctx, x *packet.Buf) bool {
	b := x.Bytes()
	var l hdr.Layers
	if !hdr.Walk(b, &l) {
		return a.other(c, x, reasonShort)
	}
	vni, tags, n := a.s.vni, int(l.Tags), len(b)
	strip := l.Tags > 0 && hdr.Ethernet(b).EtherType() == hdr.EtherVLAN && a.vniOf[l.VID] >= 0
	if strip {
		vni, tags, n = a.vniOf[l.VID], tags-1, n-hdr.VLANLen
	}
	switch {
	case tags > 0 && !a.s.keepTags:
		return a.other(c, x, reasonTagged)
	case vni < 0:
		return a.other(c, x, reasonNoVNI)
	case a.outer.IPLen()+hdr.VXLANLen+n > a.s.mtu:
		if l.L3 != 0 {
			a.teller.Tell(c, x, &l, a.s.inner()-hdr.VLANLen*tags, plain, reasonTold)
		}
		c.Drop(x, reasonTooBig)
		return false
	}
	a.lower(c, b, &l)
	var tos uint8
	if l.L3 != 0 {
		tos = tosOf(b, &l)
	}
	flow := outer.Flow(b, &l)
	if strip {
		copy(b[hdr.VLANLen:], b[:12])
		x.SetFrame(int(x.Off())+hdr.VLANLen, n)
	}
	return a.wrap(c, x, uint32(vni), tos, flow)
}

// wrap puts the outer headers in front of a frame with that inner TOS and flow hash, and reports whether it goes
// on.
func (a *app) wrap(c *graph.Ctx, x *packet.Buf, vni uint32, tos uint8, flow uint32) bool {
	n := a.outer.Len()
	b, ok := x.Prepend(n + hdr.VXLANLen)
	if !ok {
		c.Drop(x, reasonNoRoom)
		return false
	}
	outerTOS := tos & 3
	if a.s.ecn == ecnCompatibility {
		outerTOS = 0
	}
	if a.s.dscp < 0 {
		outerTOS |= tos &^ 3
	} else {
		outerTOS |= uint8(a.s.dscp) << 2
	}
	hdr.VXLAN(b[n:]).Encode(vni)
	port := a.outer.Put(b, outerTOS, flow)
	c.Mark(x, packet.Rewritten, reasonEncapsulated)
	if c.Drafted(x) {
		a.decide(c, plain, x, vni)
	}
	if c.Traced(x) {
		c.Trace(x, traceEncapsulate, uint64(vni), uint64(port))
	}
	return true
}

// lower reduces the MSS option of a TCP SYN to what mss= says.
func (a *app) lower(c *graph.Ctx, b []byte, l *hdr.Layers) {
	if a.s.mss.Lower(b, l) {
		c.Count(ctrMSS, 1)
	}
}

// ours reports whether a frame is a UDP datagram to the address and port of this end.
func (a *app) ours(b []byte, l *hdr.Layers) bool {
	if _, port := l.PortsOf(b); port != a.s.port || l.Proto != hdr.ProtoUDP || hdr.Ethernet(b).Dst() != a.s.localMAC {
		return false
	}
	if a.s.outerVLAN > 0 && (l.Tags == 0 || l.VID != a.s.outerVLAN) {
		return false
	}
	if l.EtherType == hdr.EtherIPv4 {
		return string(b[l.L3+16:l.L3+20]) == string(a.local)
	}
	return string(b[l.L3+24:l.L3+40]) == string(a.local)
}

// fault returns the reason why a datagram to this end must be dropped, or ok if there is none.
func (a *app) fault(b []byte, l *hdr.Layers) (r graph.Reason, ok bool) {
	var from []byte
	if l.EtherType == hdr.EtherIPv4 {
		if !hdr.IPv4(b[l.L3:]).ChecksumOK() {
			return reasonBadIPChecksum, false
		}
		from = b[l.L3+12 : l.L3+16]
	} else {
		from = b[l.L3+8 : l.L3+24]
	}
	if l.Fragment {
		return reasonFragment, false
	}
	if string(from) != string(a.remote) {
		return reasonOtherPeer, false
	}
	p := b[l.L4:l.End]
	if len(p) < hdr.UDPLen+hdr.VXLANLen+hdr.EthernetLen || int(hdr.UDP(p).Len()) != len(p) {
		return reasonBadLength, false
	}
	if hdr.UDP(p).Checksum() == 0 {
		if l.EtherType == hdr.EtherIPv6 && !a.s.zero6 {
			return reasonNoChecksum, false
		}
	} else if hdr.Checksum(p, a.outer.Pseudo()+uint32(len(p))) != 0 {
		return reasonBadChecksum, false
	}
	if !hdr.VXLAN(p[hdr.UDPLen:]).HasVNI() {
		return reasonBadFlags, false
	}
	return 0, true
}

// decapsulate handles a frame from the tunnel's side, and reports whether it goes on.
func (a *app) decapsulate(c *graph.Ctx, x *packet.Buf) bool {
	b := x.Bytes()
	var l hdr.Layers
	if !hdr.Walk(b, &l) {
		return a.other(c, x, reasonShort)
	}
	if !a.ours(b, &l) {
		if a.resolve(c, x, &l) {
			return false
		}
		return a.other(c, x, reasonNotTunnel)
	}
	if r, ok := a.fault(b, &l); !ok {
		c.Drop(x, r)
		return false
	}
	vni := hdr.VXLAN(b[l.L4+hdr.UDPLen:]).VNI()
	vid, ok := a.vlanOf[vni]
	if !ok {
		c.Drop(x, reasonUnknownVNI)
		return false
	}
	src, tos := hdr.UDP(b[l.L4:]).SrcPort(), tosOf(b, &l)
	at := l.L4 + hdr.UDPLen + hdr.VXLANLen
	inner := b[at:l.End]
	var li hdr.Layers
	if ok := hdr.Walk(inner, &li); !a.s.keepTags && li.Tags > 0 {
		c.Drop(x, reasonInnerTag)
		return false
	} else if !ok && !a.s.keepTags {
		c.Drop(x, reasonBadLength) // cut in a tag; kept tags are not looked into
		return false
	}
	if li.L3 != 0 {
		if !combineECN(inner, &li, tos&3) {
			c.Drop(x, reasonCongested)
			return false
		}
		a.lower(c, inner, &li)
	} else if tos&3 == ce {
		c.Count(ctrCELost, 1)
	}
	x.SetFrame(int(x.Off())+at, len(inner))
	if vid != 0 {
		f, _ := x.Prepend(hdr.VLANLen) // where the outer headers were
		copy(f[:12], f[hdr.VLANLen:])
		binary.BigEndian.PutUint32(f[12:], hdr.EtherVLAN<<16|uint32(vid))
	}
	c.Mark(x, packet.Rewritten, reasonDecapsulated)
	if c.Drafted(x) {
		a.decide(c, tunnel, x, vni)
	}
	if c.Traced(x) {
		c.Trace(x, traceDecapsulate, uint64(vni), uint64(src))
	}
	return true
}

// tosOf returns the TOS or traffic class of a frame with an IP header.
func tosOf(b []byte, l *hdr.Layers) uint8 {
	if l.EtherType == hdr.EtherIPv4 {
		return hdr.IPv4(b[l.L3:]).TOS()
	}
	return hdr.IPv6(b[l.L3:]).TrafficClass()
}

// Values of the ECN field (RFC 3168 5).
const (
	notECT = 0
	ect1   = 1
	ect0   = 2
	ce     = 3
)

// combineECN updates the ECN field of the inner header by the outer one (RFC 6040 figure 4). It returns false if
// the frame must be dropped.
func combineECN(b []byte, l *hdr.Layers, outer uint8) bool {
	tos := tosOf(b, l)
	inner := tos & 3
	switch {
	case inner == outer:
		return true // also the checksum stays, whatever it is
	case inner == notECT:
		return outer != ce
	case outer == ce:
		inner = ce
	case outer == ect1 && inner == ect0:
		inner = ect1
	default:
		return true
	}
	tos = tos&^3 | inner
	if l.EtherType == hdr.EtherIPv6 {
		hdr.IPv6(b[l.L3:]).SetTrafficClass(tos)
		return true
	}
	h := hdr.IPv4(b[l.L3:])
	old := binary.BigEndian.Uint16(h)
	h.SetTOS(tos)
	h.SetChecksum(hdr.PatchChecksum(h.Checksum(), old, binary.BigEndian.Uint16(h)))
	return true
}
