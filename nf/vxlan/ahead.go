package vxlan

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// decide adds the tunnel's Part (package offload) to the draft of a frame that was encapsulated or decapsulated.
// The app remembers nothing of the flow.
func (a *app) decide(c *graph.Ctx, in int, x *packet.Buf, vni uint32) {
	if !a.s.offload || !a.s.local.Is4() || a.s.outerVLAN > 0 {
		return
	}
	p := offload.Part{In: in, Tunnel: a.tunnel(vni)}
	if in == plain {
		p.Longest = hdr.EthernetLen + a.s.mtu
	}
	c.Decide(x, p)
}

// tunnel returns the tunnel of a network, in the form that the kernel needs.
func (a *app) tunnel(vni uint32) *offload.Tunnel {
	if t := a.tunnels[vni]; t != nil {
		return t
	}
	t := &offload.Tunnel{VNI: vni, Local: a.s.local.As4(), Remote: a.s.remote.As4(), LocalMAC: a.s.localMAC, Port: a.s.port}
	b := t.Header[:]
	hdr.VXLAN(b[offload.TunnelLen-hdr.VXLANLen:]).Encode(vni)
	a.outer.Put(b, 0, 0)
	ip := hdr.IPv4(b[hdr.EthernetLen:])
	ip.SetTotalLen(0)
	ip.SetChecksum(0)
	u := hdr.UDP(b[hdr.EthernetLen+hdr.IPv4Len:])
	u.SetSrcPort(0)
	u.SetLen(0)
	if a.s.ecn == ecnNormal {
		t.Mask = 3
	}
	if a.s.dscp < 0 {
		t.Mask |= 0xFC
	} else {
		t.Base = uint8(a.s.dscp) << 2
	}
	a.tunnels[vni] = t
	return t
}

// flows is the number of flows that may be decided in a graph where no other function sets that number.
const flows = 65536

// decides implements graph.Kind.Decides.
func decides(args graph.Args) int {
	if s, err := parseArgs(args); err == nil && s.offload && s.local.Is4() && s.outerVLAN == 0 {
		return flows
	}
	return 0
}
