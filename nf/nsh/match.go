package nsh

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/hdr"
)

// match says which frames enter: those for which every term holds.
type match struct {
	none           bool
	terms          uint8 // bits, by term
	vid, etherType uint16
	proto          uint8
	src, dst       prefix
	sport, dport   [2]uint16 // from, to
}

// Terms of a match.
const (
	hasVLAN = 1 << iota
	hasType
	hasProto
	hasSrc
	hasDst
	hasSport
	hasDport
)

// prefix is one of addresses as they stand in a header.
type prefix struct {
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

// addrs are the offsets of both addresses from an IP header.
func addrs(etherType uint16) (src, dst int) {
	if etherType == hdr.EtherIPv4 {
		return 12, 16
	}
	return 8, 24
}

func (m *match) holds(b []byte, l *hdr.Layers) bool {
	t := m.terms
	if m.none || t&hasVLAN != 0 && (l.Tags == 0 || l.VID != m.vid) || t&hasType != 0 && l.EtherType != m.etherType {
		return false
	}
	if t&^(hasVLAN|hasType) == 0 {
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
	if t&(hasSport|hasDport) == 0 {
		return true
	}
	if l.Proto != hdr.ProtoTCP && l.Proto != hdr.ProtoUDP || l.L4 == 0 || l.End < l.L4+4 {
		return false
	}
	sport, dport := l.PortsOf(b)
	return !(t&hasSport != 0 && (sport < m.sport[0] || sport > m.sport[1]) || t&hasDport != 0 && (dport < m.dport[0] || dport > m.dport[1]))
}

func parsePrefix(v string) (p prefix, err error) {
	x, err := netip.ParsePrefix(v)
	if a, e := netip.ParseAddr(v); e == nil && a.Zone() == "" {
		x, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || x != x.Masked() {
		return p, fmt.Errorf("want an address or a prefix without bits behind it")
	}
	p.etherType, p.n = hdr.EtherIPv6, 16
	if x.Addr().Is4() {
		p.etherType, p.n = hdr.EtherIPv4, 4
	}
	copy(p.addr[:], x.Addr().AsSlice())
	for i := range x.Bits() {
		p.mask[i/8] |= 0x80 >> (i % 8)
	}
	return p, nil
}

func parseMatch(v string) (m match, err error) {
	if v == "all" {
		return m, nil
	}
	if v == "none" {
		return match{none: true}, nil
	}
	number := func(s string, bits int) uint64 {
		n, e := strconv.ParseUint(s, 0, bits)
		if e != nil {
			err = fmt.Errorf("want a number of %d bits", bits)
		}
		return n
	}
	ports := func(s string) (r [2]uint16) {
		from, to, ok := strings.Cut(s, "-")
		if !ok {
			to = from
		}
		r = [2]uint16{uint16(number(from, 16)), uint16(number(to, 16))}
		if err == nil && r[1] < r[0] {
			err = fmt.Errorf("the range ends before it begins")
		}
		return r
	}
	for _, x := range strings.Split(v, "+") {
		name, s, _ := strings.Cut(x, ":")
		var term uint8
		switch name {
		case "vlan":
			term, m.vid = hasVLAN, uint16(number(s, 12))
		case "type":
			term, m.etherType = hasType, uint16(number(s, 16))
		case "proto":
			term, m.proto = hasProto, uint8(number(s, 8))
		case "src":
			term = hasSrc
			m.src, err = parsePrefix(s)
		case "dst":
			term = hasDst
			m.dst, err = parsePrefix(s)
		case "sport":
			term, m.sport = hasSport, ports(s)
		case "dport":
			term, m.dport = hasDport, ports(s)
		default:
			err = fmt.Errorf("want all, none, or vlan, type, proto, src, dst, sport and dport, each with a colon and a value, and + in between")
		}
		if err == nil && m.terms&term != 0 {
			err = fmt.Errorf("it is there twice")
		}
		if err != nil {
			return m, fmt.Errorf("match=%s: %s: %w", v, x, err)
		}
		m.terms |= term
	}
	return m, nil
}
