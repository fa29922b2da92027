// Package track describes the connections that network functions remember, in the form in which Linux' conntrack
// shows connections.
package track

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/hdr"
)

// Tuple has the addresses and ports of packets of one direction. SPort of an ICMP query is its identifier. A zero
// address stands for any address.
type Tuple struct {
	Src   netip.Addr `json:"src"`
	Dst   netip.Addr `json:"dst"`
	SPort uint16     `json:"sport"`
	DPort uint16     `json:"dport"`
}

// Reversed returns the tuple with source and destination exchanged.
func (t Tuple) Reversed() Tuple { return Tuple{t.Dst, t.Src, t.DPort, t.SPort} }

// Connection describes a connection that an app remembers.
type Connection struct {
	App   string `json:"app"`
	Proto uint8  `json:"proto"` // of IP
	// State is conntrack's word for the state, or "" if conntrack has none. It is MAPPING for a NAT's mapping of a
	// private end to a public end, which all peers share.
	State string `json:"state,omitempty"`
	// Left is the time without a packet after which the app forgets the connection.
	Left time.Duration `json:"-"`
	// Orig is the tuple of the opener's packets, Reply the tuple of the answers, each as the packets arrive. If the app
	// translates addresses or ports, Reply is not Orig reversed.
	Orig      Tuple `json:"orig"`
	Reply     Tuple `json:"reply"`
	Unreplied bool  `json:"unreplied,omitempty"` // nothing came back so far
	Assured   bool  `json:"assured,omitempty"`   // it keeps its place when there are too many
	Offload   bool  `json:"offload,omitempty"`   // its packets cross in the kernel
}

// Mapping is the state of a NAT's mapping.
const Mapping = "MAPPING"

var protos = map[uint8]string{hdr.ProtoTCP: "tcp", hdr.ProtoUDP: "udp", hdr.ProtoICMP: "icmp", hdr.ProtoICMPv6: "icmpv6", 132: "sctp", 47: "gre", 50: "esp", 51: "ah"}

// ProtoName returns conntrack's name of an IP protocol, or "unknown".
func ProtoName(p uint8) string {
	if s := protos[p]; s != "" {
		return s
	}
	return "unknown"
}

// ParseProto reads the name or the number of an IP protocol.
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

// States are the states that connections may have.
var States = []string{"ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT", "TIME_WAIT", "CLOSE", Mapping}

// ParseState reads the name of a state, in letters of either case.
func ParseState(s string) (string, error) {
	s = strings.ToUpper(s)
	if !slices.Contains(States, s) {
		return "", fmt.Errorf("state %q: want %s", s, strings.Join(States, ", "))
	}
	return s, nil
}

// String returns a line in the form of conntrack -L, with the app's name at the end.
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

// text returns the text of address a. If a is any address, it returns the zero address of the other's family.
func text(a, other netip.Addr) string {
	switch {
	case a.IsValid():
		return a.String()
	case other.Is6():
		return "::"
	}
	return "0.0.0.0"
}

// Filter selects connections. A zero field matches all connections.
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

// Has reports whether f selects c.
func (f *Filter) Has(c *Connection) bool {
	in := func(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }
	port := func(want, is uint16) bool { return want == 0 || want == is }
	return (f.App == "" || f.App == c.App) && (f.Proto == 0 || f.Proto == c.Proto) && (f.State == "" || f.State == c.State) &&
		in(f.Src, c.Orig.Src) && in(f.Dst, c.Orig.Dst) && in(f.ReplySrc, c.Reply.Src) && in(f.ReplyDst, c.Reply.Dst) &&
		port(f.SPort, c.Orig.SPort) && port(f.DPort, c.Orig.DPort) && port(f.ReplySPort, c.Reply.SPort) && port(f.ReplyDPort, c.Reply.DPort)
}
