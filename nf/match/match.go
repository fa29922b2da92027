// Package match selects frames by an argument of an app, which is one line:
//
//	all                                     every frame
//	none                                    no frame
//	src:10.0.0.0/8+proto:6+dport:80-90      frames for which every term holds
//
// Terms are vlan, type (Ethernet type, behind the tags), proto, src, dst (an address or
// a prefix, IPv4 or IPv6), sport, dport (of TCP and UDP; a port or a range), vni (of
// VXLAN, UDP port 4789), qpn (the destination queue pair of RoCEv2, UDP port 4791), and nsh
// (the service path identifier). Numbers are decimal, or with 0x in front. A term on a field that a frame lacks does not match:
// fragments but the first have no ports.
package match

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/hdr"
)

// Match is a condition on frames. The zero value holds for all frames.
type Match struct {
	none           bool
	terms          term
	vid, etherType uint16
	proto          uint8
	src, dst       prefix
	sport, dport   [2]uint16 // from, to
	vni, qpn, nsh  uint32
}

type term uint16

const (
	hasVLAN term = 1 << iota
	hasType
	hasProto
	hasSrc
	hasDst
	hasSport
	hasDport
	hasVNI
	hasQPN
	hasNSH
	numTerms = iota
)

var names = [numTerms]string{"vlan", "type", "proto", "src", "dst", "sport", "dport", "vni", "qpn", "nsh"}

// prefix is one of addresses as they stand in a header.
type prefix struct {
	netip.Prefix
	etherType  uint16
	n          int
	addr, mask [16]byte
}

func (p *prefix) holds(b []byte, at int) bool {
	for i := range p.n {
		if b[at+i]&p.mask[i] != p.addr[i] {
			return false
		}
	}
	return true
}

// None reports whether m holds for no frame.
func (m *Match) None() bool { return m.none }

// All reports whether m holds for every frame.
func (m *Match) All() bool { return !m.none && m.terms == 0 }

// Exact returns the value, or the prefix of an address, that one field of a frame must have for m to
// hold. It chooses the field that tells frames apart best. It returns false if m has no such field.
func (m *Match) Exact() (f Field, ok bool) {
	t := m.terms
	switch {
	case m.none:
	case t&hasNSH != 0:
		return Field{Term: "nsh", Value: m.nsh}, true
	case t&hasVNI != 0:
		return Field{Term: "vni", Value: m.vni}, true
	case t&hasQPN != 0:
		return Field{Term: "qpn", Value: m.qpn}, true
	case t&hasSrc != 0:
		return Field{Term: "src", Prefix: m.src.Prefix}, true
	case t&hasDst != 0:
		return Field{Term: "dst", Prefix: m.dst.Prefix}, true
	case t&hasVLAN != 0:
		return Field{Term: "vlan", Value: uint32(m.vid)}, true
	}
	return f, false
}

// Field is the name and the value of a field. Indexes of many matches use it.
type Field struct {
	Term   string
	Value  uint32
	Prefix netip.Prefix // of src and dst
}

// Holds reports whether m holds for frame b, in which hdr.Walk found the layers l.
func (m *Match) Holds(b []byte, l *hdr.Layers) bool {
	t := m.terms
	if m.none || t&hasVLAN != 0 && (l.Tags == 0 || l.VID != m.vid) || t&hasType != 0 && l.EtherType != m.etherType {
		return false
	}
	if t&^(hasVLAN|hasType) == 0 {
		return true
	}
	if t&hasNSH != 0 && (l.EtherType != hdr.EtherNSH || len(b) < l.Net+hdr.NSHLen || hdr.NSH(b[l.Net:]).SPI() != m.nsh) {
		return false
	}
	if t&^(hasVLAN|hasType|hasNSH) == 0 {
		return true
	}
	if l.L3 == 0 || t&hasProto != 0 && l.Proto != m.proto {
		return false
	}
	src, dst := addrs(l.EtherType)
	if t&hasSrc != 0 && (l.EtherType != m.src.etherType || !m.src.holds(b, l.L3+src)) ||
		t&hasDst != 0 && (l.EtherType != m.dst.etherType || !m.dst.holds(b, l.L3+dst)) {
		return false
	}
	if t&(hasSport|hasDport|hasVNI|hasQPN) == 0 {
		return true
	}
	if l.Proto != hdr.ProtoTCP && l.Proto != hdr.ProtoUDP || l.L4 == 0 || l.End < l.L4+4 {
		return false
	}
	sport, dport := l.PortsOf(b)
	if t&hasSport != 0 && (sport < m.sport[0] || sport > m.sport[1]) || t&hasDport != 0 && (dport < m.dport[0] || dport > m.dport[1]) {
		return false
	}
	if t&(hasVNI|hasQPN) == 0 {
		return true
	}
	vni, isVXLAN := VNI(b, l)
	qpn, isRoCE := QPN(b, l)
	return (t&hasVNI == 0 || isVXLAN && vni == m.vni) && (t&hasQPN == 0 || isRoCE && qpn == m.qpn)
}

// addrs returns the offsets of both addresses from the beginning of an IP header.
func addrs(etherType uint16) (src, dst int) {
	if etherType == hdr.EtherIPv4 {
		return 12, 16
	}
	return 8, 24
}

// VNI returns the network identifier of a VXLAN frame, or false if b is no VXLAN frame with an identifier.
func VNI(b []byte, l *hdr.Layers) (uint32, bool) {
	p, ok := datagram(b, l, hdr.PortVXLAN, hdr.VXLANLen)
	if !ok || !hdr.VXLAN(p).HasVNI() {
		return 0, false
	}
	return hdr.VXLAN(p).VNI(), true
}

// QPN returns the destination queue pair of a RoCEv2 packet, or false if b is no RoCEv2 packet.
func QPN(b []byte, l *hdr.Layers) (uint32, bool) {
	p, ok := datagram(b, l, hdr.RoCEv2Port, hdr.BTHLen)
	if !ok {
		return 0, false
	}
	return hdr.BTH(p).DestQP(), true
}

// datagram returns the bytes after a UDP header with that destination port, or false if b has no such header
// or fewer bytes than atLeast after it.
func datagram(b []byte, l *hdr.Layers, port uint16, atLeast int) ([]byte, bool) {
	if l.Proto != hdr.ProtoUDP || l.L4 == 0 || l.End < l.L4+hdr.UDPLen+atLeast {
		return nil, false
	}
	if _, dport := l.PortsOf(b); dport != port {
		return nil, false
	}
	return b[l.L4+hdr.UDPLen : l.End], true
}

// Reverse returns m with source and destination exchanged, for frames of the other direction.
func (m Match) Reverse() Match {
	m.src, m.dst, m.sport, m.dport = m.dst, m.src, m.dport, m.sport
	swap := func(a, b term) {
		has := m.terms & (a | b)
		if has == a || has == b {
			m.terms ^= a | b
		}
	}
	swap(hasSrc, hasDst)
	swap(hasSport, hasDport)
	return m
}

// String returns m in the form that Parse reads.
func (m Match) String() string {
	if m.none {
		return "none"
	}
	if m.terms == 0 {
		return "all"
	}
	ports := func(r [2]uint16) string {
		if r[0] == r[1] {
			return strconv.Itoa(int(r[0]))
		}
		return fmt.Sprintf("%d-%d", r[0], r[1])
	}
	addr := func(p prefix) string {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.Prefix.String()
	}
	values := [numTerms]string{
		strconv.Itoa(int(m.vid)), fmt.Sprintf("0x%04x", m.etherType), strconv.Itoa(int(m.proto)), addr(m.src), addr(m.dst),
		ports(m.sport), ports(m.dport), strconv.Itoa(int(m.vni)), strconv.Itoa(int(m.qpn)), strconv.Itoa(int(m.nsh)),
	}
	var out []string
	for i, name := range names {
		if m.terms&(1<<i) != 0 {
			out = append(out, name+":"+values[i])
		}
	}
	return strings.Join(out, "+")
}

func parsePrefix(v string) (p prefix, err error) {
	x, err := netip.ParsePrefix(v)
	if a, e := netip.ParseAddr(v); e == nil && a.Zone() == "" {
		x, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || x != x.Masked() || x.Addr().Is4In6() {
		return p, errors.New("want an address or a prefix without bits behind it")
	}
	p.Prefix, p.etherType, p.n = x, hdr.EtherIPv6, 16
	if x.Addr().Is4() {
		p.etherType, p.n = hdr.EtherIPv4, 4
	}
	copy(p.addr[:], x.Addr().AsSlice())
	for i := range x.Bits() {
		p.mask[i/8] |= 0x80 >> (i % 8)
	}
	return p, nil
}

// number reads a decimal number, or one with 0x in front.
func number[T uint8 | uint16 | uint32](to *T, s string, bits int) error {
	digits, hex := strings.CutPrefix(s, "0x")
	base := 10
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, bits)
	if err != nil {
		return fmt.Errorf("want a number of %d bits", bits)
	}
	*to = T(n)
	return nil
}

func parsePorts(s string) (r [2]uint16, err error) {
	from, to, ok := strings.Cut(s, "-")
	if !ok {
		to = from
	}
	if err = number(&r[0], from, 16); err == nil {
		err = number(&r[1], to, 16)
	}
	if err == nil && r[1] < r[0] {
		err = errors.New("the range ends before it begins")
	}
	return r, err
}

// UnmarshalText implements encoding.TextUnmarshaler by Parse.
func (m *Match) UnmarshalText(text []byte) (err error) {
	*m, err = Parse(string(text))
	return err
}

// MarshalText implements encoding.TextMarshaler by String.
func (m *Match) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// Parse reads a match in the form that String writes, with the terms in any order. A line break
// may stand for +. Errors name the wrong term.
func Parse(v string) (Match, error) {
	switch v {
	case "all":
		return Match{}, nil
	case "none":
		return Match{none: true}, nil
	}
	var m Match
	for x := range strings.SplitSeq(strings.ReplaceAll(v, "\n", "+"), "+") {
		name, s, _ := strings.Cut(x, ":")
		t := term(1) << max(0, slices.Index(names[:], name))
		var err error
		switch name {
		case "vlan":
			err = number(&m.vid, s, 12)
		case "type":
			err = number(&m.etherType, s, 16)
		case "proto":
			err = number(&m.proto, s, 8)
		case "src":
			m.src, err = parsePrefix(s)
		case "dst":
			m.dst, err = parsePrefix(s)
		case "sport":
			m.sport, err = parsePorts(s)
		case "dport":
			m.dport, err = parsePorts(s)
		case "vni":
			err = number(&m.vni, s, 24)
		case "qpn":
			err = number(&m.qpn, s, 24)
		case "nsh":
			err = number(&m.nsh, s, 24)
		default:
			err = errors.New("want all, none, or " + strings.Join(names[:numTerms-1], ", ") + " and " + names[numTerms-1] +
				", each with a colon and a value, and + in between")
		}
		if err == nil && m.terms&t != 0 {
			err = errors.New("it is there twice")
		}
		if err != nil {
			return Match{}, fmt.Errorf("%s: %w", x, err)
		}
		m.terms |= t
	}
	return m, nil
}
