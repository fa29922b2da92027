// Package track has the connections that functions remember, as Linux' conntrack shows its own.
package track

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/hdr"
)

// Tuple is who sends to whom. An ICMP query has its identifier in the place of the source port. A zero address is any.
type Tuple struct {
	Src   netip.Addr `json:"src"`
	Dst   netip.Addr `json:"dst"`
	SPort uint16     `json:"sport"`
	DPort uint16     `json:"dport"`
}

// Reversed is the tuple of what is sent back.
func (t Tuple) Reversed() Tuple { return Tuple{t.Dst, t.Src, t.DPort, t.SPort} }

// Connection is what a function knows of one.
type Connection struct {
	App   string `json:"app"`
	Proto uint8  `json:"proto"` // of IP
	// State is conntrack's word for it; "": there is none. A NAT's mapping of a private end to a public one, whoever the peers
	// are, is MAPPING.
	State string `json:"state,omitempty"`
	// Left is after how long without a packet it is forgotten.
	Left time.Duration `json:"-"`
	// Orig is of packets as they came from who opened it, Reply as the answers come: where something is translated, that is
	// not Orig reversed.
	Orig      Tuple `json:"orig"`
	Reply     Tuple `json:"reply"`
	Unreplied bool  `json:"unreplied,omitempty"` // nothing came back so far
	Assured   bool  `json:"assured,omitempty"`   // it keeps its place when there are too many
	Offload   bool  `json:"offload,omitempty"`   // its packets cross in the kernel
}

// Mapping is the state of a NAT's mapping.
const Mapping = "MAPPING"

var protos = map[uint8]string{hdr.ProtoTCP: "tcp", hdr.ProtoUDP: "udp", hdr.ProtoICMP: "icmp", hdr.ProtoICMPv6: "icmpv6", 132: "sctp", 47: "gre", 50: "esp", 51: "ah"}

// ProtoName is conntrack's name of a protocol.
func ProtoName(p uint8) string {
	if s := protos[p]; s != "" {
		return s
	}
	return "unknown"
}

// ParseProto reads a protocol, by name or number.
func ParseProto(s string) (uint8, error) {
	for p, name := range protos {
		if s == name {
			return p, nil
		}
	}
	var n uint8
	if _, err := fmt.Sscanf(s+"\n", "%d\n", &n); err != nil || n == 0 {
		return 0, fmt.Errorf("protocol %q: want tcp, udp, icmp, icmpv6 or a number", s)
	}
	return n, nil
}

// String is a line as of conntrack -L, and the app.
func (c *Connection) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %d %d ", ProtoName(c.Proto), c.Proto, int(c.Left.Seconds()))
	if c.State != "" {
		b.WriteString(c.State + " ")
	}
	tuple := func(t Tuple) {
		fmt.Fprintf(&b, "src=%s dst=%s ", text(t.Src, t.Dst), text(t.Dst, t.Src))
		switch c.Proto {
		case hdr.ProtoICMP, hdr.ProtoICMPv6:
			fmt.Fprintf(&b, "id=%d ", max(t.SPort, t.DPort))
		case hdr.ProtoTCP, hdr.ProtoUDP, 132:
			fmt.Fprintf(&b, "sport=%d dport=%d ", t.SPort, t.DPort)
		}
	}
	tuple(c.Orig)
	if c.Unreplied {
		b.WriteString("[UNREPLIED] ")
	}
	tuple(c.Reply)
	if c.Assured {
		b.WriteString("[ASSURED] ")
	}
	if c.Offload {
		b.WriteString("[OFFLOAD] ")
	}
	return b.String() + "app=" + c.App
}

// text is an address; of one that is any, that of the other's family.
func text(a, other netip.Addr) string {
	switch {
	case a.IsValid():
		return a.String()
	case other.Is6():
		return "::"
	}
	return "0.0.0.0"
}

// Filter says which connections are meant. What is zero of it is any.
type Filter struct {
	App        string       `json:"app,omitempty"`
	Proto      uint8        `json:"proto,omitempty"`
	State      string       `json:"state,omitempty"`
	Src        netip.Prefix `json:"src,omitzero"`
	Dst        netip.Prefix `json:"dst,omitzero"`
	ReplySrc   netip.Prefix `json:"reply_src,omitzero"`
	ReplyDst   netip.Prefix `json:"reply_dst,omitzero"`
	SPort      uint16       `json:"sport,omitempty"`
	DPort      uint16       `json:"dport,omitempty"`
	ReplySPort uint16       `json:"reply_sport,omitempty"`
	ReplyDPort uint16       `json:"reply_dport,omitempty"`
}

// Has reports whether c is meant.
func (f *Filter) Has(c *Connection) bool {
	in := func(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }
	port := func(want, is uint16) bool { return want == 0 || want == is }
	return (f.App == "" || f.App == c.App) && (f.Proto == 0 || f.Proto == c.Proto) && (f.State == "" || f.State == c.State) &&
		in(f.Src, c.Orig.Src) && in(f.Dst, c.Orig.Dst) && in(f.ReplySrc, c.Reply.Src) && in(f.ReplyDst, c.Reply.Dst) &&
		port(f.SPort, c.Orig.SPort) && port(f.DPort, c.Orig.DPort) && port(f.ReplySPort, c.Reply.SPort) && port(f.ReplyDPort, c.Reply.DPort)
}
