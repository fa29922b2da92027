package main

import (
	"github.com/quillon/quillon/nf/graph"
)

// Kinds of ports that a Spec may name.
const (
	kindAFXDP    = "afxdp"
	kindAFPacket = "afpacket"
	kindTAP      = "tap"
)

// portKinds documents the sorts of ports for specs.
func portKinds() []graph.PortKind {
	return []graph.PortKind{
		{Name: kindAFXDP, Summary: "an interface over AF_XDP", Params: []graph.Param{
			{Name: "dev", Help: "the interface"},
			{Name: "pair", Help: "the port that is the other side of the wire: what the graph does not want crosses to it in the kernel, and everything does when the process is gone"},
			{Name: "mode", Default: "auto", Help: "auto, native or generic XDP"},
			{Name: "frames", Default: "4096", Help: "frames of memory a queue"},
		}},
		{Name: kindAFPacket, Summary: "an interface over a packet socket", Params: []graph.Param{
			{Name: "dev", Help: "the interface"},
		}},
		{Name: kindTAP, Summary: "a TAP interface of the host", Params: []graph.Param{
			{Name: "dev", Help: "its name; it is made when it is not there"},
		}},
	}
}
