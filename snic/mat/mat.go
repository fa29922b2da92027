package mat

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/match"
)

// Road is where a frame goes next.
type Road uint8

const (
	Switch  Road = iota // out by a port, as it is
	Control             // to the control core
	Tasks               // through the tasks of a DAG
	Refuse              // nowhere: dropped
)

// Rule is a line of the table.
type Rule struct {
	Priority int
	In       int // the port that it is for; Any
	Match    match.Match
	Road     Road
	DAG      int // with Tasks: the owner's number of the DAG
}

// Parse reads a match as match.Parse does, with one more term: in:PORT, for frames that come in by that
// port. Without it, in is Any.
func Parse(s string) (in int, m match.Match, err error) {
	in = Any
	var rest []string
	for _, x := range strings.Split(s, "+") {
		v, ok := strings.CutPrefix(x, "in:")
		if !ok {
			rest = append(rest, x)
			continue
		}
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil || in != Any {
			return Any, m, fmt.Errorf("%s: want one port, a number of 16 bits", x)
		}
		in = int(n)
	}
	if rest == nil {
		return in, m, nil
	}
	m, err = match.Parse(strings.Join(rest, "+"))
	return in, m, err
}

// Any stands for all ports.
const Any = -1

// set holds four flows whose hashes have the low bits in common. tags has 16 bits for each: the top
// bit is set if there is a flow, and the other bits are 15 high bits of its hash.
type set struct {
	tags uint64
	next uint8 // which entry is given up next
}

// Flow is the result of a lookup.
type Flow struct {
	Rule int32  // index into Rules; -1: none holds
	Hash uint64 // the same for both directions of a flow that nothing translates
}

// key holds all fields of a frame that a rule can look at.
type key [6]uint64

type flow struct {
	key
	Flow
}

// Table holds the rules, and the flows that they decided. Only one goroutine may use it.
type Table struct {
	rules   []Rule
	reverse []match.Match // of each rule
	index   [2]index      // of the rules as they are written, and of their reverses
	sets    []set
	flows   []flow // four a set
	mask    uint64
	// Hits and Misses are lookups that found their flow, or did not.
	Hits, Misses uint64
}

// New makes a table without rules, which remembers at least so many flows: a power of two, at least 4.
func New(flows int) *Table {
	n := 1
	for n*4 < flows {
		n *= 2
	}
	return &Table{sets: make([]set, n), flows: make([]flow, 4*n), mask: uint64(n - 1)}
}

// Index holds rules, in the order in which they are tried, and finds those that may match a frame. It never
// changes, and tables may share it, because with thousands of rules it takes long to make.
type Index struct {
	rules   []Rule
	reverse []match.Match
	of      [2]index
}

// NewIndex makes the index of rules.
func NewIndex(rules []Rule) *Index {
	x := &Index{rules: slices.Clone(rules)}
	slices.SortStableFunc(x.rules, func(a, b Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	for i, r := range x.rules {
		x.reverse = append(x.reverse, r.Match.Reverse())
		x.of[0].add(int32(i), &r.Match)
		x.of[1].add(int32(i), &x.reverse[i])
	}
	return x
}

// Set replaces the rules.
func (t *Table) Set(rules []Rule) { t.Use(NewIndex(rules)) }

// Use replaces the rules by those of an index.
func (t *Table) Use(x *Index) {
	t.rules, t.reverse, t.index = x.rules, x.reverse, x.of
	clear(t.sets)
}

// Rules returns the rules in the order in which they are tried. The slice belongs to the Index: callers
// must not change it.
func (t *Table) Rules() []Rule { return t.rules }

// Flags of a key: what the frame has.
const (
	tagged  = 1 << iota
	layered // has an IP header that fits
	ported
	vxlan
	roce
	service
)

// fields gathers the key of frame b, received on port in.
func (k *key) fields(b []byte, in uint16, l *hdr.Layers) {
	*k = key{}
	var flags, extra uint64
	if l.Tags > 0 {
		flags |= tagged
	}
	if l.L3 > 0 {
		flags |= layered
	}
	switch l.Family() {
	case hdr.NetIPv4:
		k[0] = binary.BigEndian.Uint64(b[l.L3+12:])
	case hdr.NetIPv6:
		p := b[l.L3+8 : l.L3+40]
		for i := range 4 {
			k[i] = binary.BigEndian.Uint64(p[8*i:])
		}
	}
	var ports uint64
	if l.L4 != 0 && l.End >= l.L4+4 && (l.Proto == hdr.ProtoTCP || l.Proto == hdr.ProtoUDP) {
		flags |= ported
		p := binary.BigEndian.Uint32(b[l.L4:])
		ports = uint64(p)
		if l.Proto == hdr.ProtoUDP {
			switch p & 0xFFFF {
			case hdr.PortVXLAN:
				if v, ok := match.VNI(b, l); ok {
					flags, extra = flags|vxlan, uint64(v)
				}
			case hdr.RoCEv2Port:
				if q, ok := match.QPN(b, l); ok {
					flags, extra = flags|roce, uint64(q)
				}
			}
		}
	}
	if l.EtherType == hdr.EtherNSH && len(b) >= l.Net+hdr.NSHLen {
		flags, extra = flags|service, uint64(hdr.NSH(b[l.Net:]).SPI())
	}
	k[4] = ports<<32 | uint64(l.VID)<<16 | uint64(in)
	k[5] = extra<<40 | flags<<32 | uint64(l.Proto)<<16 | uint64(l.EtherType)
}

// hash returns a hash of all fields. It has no secret: who knows it can choose keys that collide.
func (k *key) hash() uint64 {
	x := k[0]*0x9E3779B97F4A7C15 ^ bits.RotateLeft64(k[4]*0xD1B54A32D192ED03, 29) ^ k[5]*0xA24BAED4963EE407
	if k[1]|k[2]|k[3] != 0 {
		x ^= hdr.Fold(hdr.Fold(k[1], k[2]), k[3])
	}
	hi, lo := bits.Mul64(x^x>>32, 0x9FB21C651E98DF25)
	return hi ^ lo
}

func (k *key) equal(o *key) bool {
	return (k[0]^o[0])|(k[4]^o[4])|(k[5]^o[5])|(k[1]^o[1])|(k[2]^o[2])|(k[3]^o[3]) == 0
}

// both returns a hash that is the same for both directions of a flow: of the two ends, in any order,
// and the protocol.
func (k *key) both() uint64 {
	var src, dst uint64
	if k[5]&0xFFFF == hdr.EtherIPv6 {
		src, dst = hdr.Fold(k[0], k[1]), hdr.Fold(k[2], k[3])
	} else {
		src, dst = k[0]>>32, k[0]&(1<<32-1)
	}
	sum := hdr.Fold(src, k[4]>>48) + hdr.Fold(dst, k[4]>>32&0xFFFF)
	return hdr.Fold(sum, k[4]>>16&0xFFFF|k[5]&0xFFFFFFFF<<16)
}

// Lookup returns the flow of frame b, which came in by port in; l is what hdr.Walk found of it. If
// forward is false, source and destination of rules are exchanged.
func (t *Table) Lookup(b []byte, in uint16, forward bool, l *hdr.Layers) Flow {
	q := Ask{Layers: *l}
	t.Ahead(&q, b, in)
	t.Near(&q)
	return t.Find(&q, b, in, forward)
}

// Ask is a lookup in steps, for a batch of frames: the caller calls Ahead for all frames, then Near for all,
// then Find for each. So the memory for one frame is fetched while the processor works on others.
type Ask struct {
	hdr.Layers // of the frame, from hdr.Walk
	key        key
	hash       uint64
	tags       uint64 // of the set, as they were
	flow       Flow   // with found
	found      bool   // the table had it when Near was called
}

// Ahead begins to look for the flow of frame b, which came in by port in.
func (t *Table) Ahead(q *Ask, b []byte, in uint16) {
	q.key.fields(b, in, &q.Layers)
	q.hash = q.key.hash()
	q.tags = t.sets[q.hash&t.mask].tags
}

// Usual is Ahead for a usual frame (hdr.Usual), whose Layers it fills in.
func (t *Table) Usual(q *Ask, b []byte, in uint16, end int, proto uint8) {
	h := (*[hdr.UsualL4 + hdr.UDPLen]byte)(b)
	q.Layers.Usual(end, proto)
	ports := binary.BigEndian.Uint32(h[hdr.UsualL4:])
	if to := ports & 0xFFFF; to == hdr.PortVXLAN || to == hdr.RoCEv2Port {
		t.Ahead(q, b, in) // there may be a VNI, or a queue pair
		return
	}
	q.key = key{0: binary.BigEndian.Uint64(h[26:]), 4: uint64(ports)<<32 | uint64(in), 5: (layered|ported)<<32 | uint64(proto)<<16 | hdr.EtherIPv4}
	q.hash = q.key.hash()
	q.tags = t.sets[q.hash&t.mask].tags
}

// candidates returns the entries of a set that may have a flow, by their tags: for each, the top bit of its 16 bits.
func candidates(tags, hash uint64) uint64 {
	// An entry whose tag is equal has a zero byte. One above such a byte may be taken
	// for it, but none that is empty: its top bit is set.
	x := tags ^ (hash>>48|0x8000)*0x0001000100010001
	return (x - 0x0001000100010001) &^ x & 0x8000800080008000
}

// Near is the second step, after Ahead: it looks at the first entry that may have the flow.
func (t *Table) Near(q *Ask) {
	q.found = false
	if m := candidates(q.tags, q.hash); m != 0 {
		if f := &t.flows[q.hash&t.mask*4+uint64(bits.TrailingZeros64(m))/16]; f.key.equal(&q.key) {
			q.flow, q.found = f.Flow, true
		}
	}
}

// Known returns the flow of a frame if Near has found it; if not, the caller must call Find. Ahead and Near must have
// been called for q since the rules were set.
func (t *Table) Known(q *Ask) (Flow, bool) {
	if q.found {
		t.Hits++
	}
	return q.flow, q.found
}

// Find returns the flow of a frame. Ahead and Near must have been called for q since the rules were set. If
// forward is false, source and destination of rules are exchanged.
func (t *Table) Find(q *Ask, b []byte, in uint16, forward bool) Flow {
	if q.found {
		t.Hits++
		return q.flow
	}
	return t.find(q, b, in, forward)
}

// find looks at all entries of the set, because frames of the same batch may have added flows since Near. If none has
// the flow, it scans the rules and adds the flow.
func (t *Table) find(q *Ask, b []byte, in uint16, forward bool) Flow {
	s := &t.sets[q.hash&t.mask]
	for m := candidates(s.tags, q.hash); m != 0; m &= m - 1 {
		f := &t.flows[q.hash&t.mask*4+uint64(bits.TrailingZeros64(m))/16]
		if f.key.equal(&q.key) {
			t.Hits++
			return f.Flow
		}
	}
	t.Misses++
	f := Flow{t.scan(b, in, forward, &q.Layers), q.key.both()}
	at := uint64(s.next & 3)
	s.next++
	s.tags = s.tags&^(0xFFFF<<(16*at)) | (q.hash>>48|0x8000)<<(16*at)
	t.flows[q.hash&t.mask*4+at] = flow{q.key, f}
	return f
}

// Hash returns the hash that Lookup gives to the flow of a frame.
func Hash(b []byte, l *hdr.Layers) uint64 {
	var k key
	k.fields(b, 0, l)
	return k.both()
}

// scan returns the first rule that matches a frame, or -1. It looks only at rules that may match by
// the index.
func (t *Table) scan(b []byte, in uint16, forward bool, l *hdr.Layers) int32 {
	x := &t.index[0]
	if !forward {
		x = &t.index[1]
	}
	first := t.among(x.rest, -1, b, in, forward, l)
	look := func(f match.Field) {
		if rules := x.by[f]; rules != nil {
			first = t.among(rules, first, b, in, forward, l)
		}
	}
	if len(x.by) == 0 {
		return first
	}
	if l.Tags > 0 {
		look(match.Field{Term: "vlan", Value: uint32(l.VID)})
	}
	if l.EtherType == hdr.EtherNSH && len(b) >= l.Net+hdr.NSHLen {
		look(match.Field{Term: "nsh", Value: hdr.NSH(b[l.Net:]).SPI()})
	}
	if v, ok := match.VNI(b, l); ok {
		look(match.Field{Term: "vni", Value: v})
	}
	if q, ok := match.QPN(b, l); ok {
		look(match.Field{Term: "qpn", Value: q})
	}
	src, dst, bits := addrs(b, l)
	for _, n := range x.lengths[bits>>7] {
		p, _ := src.Prefix(int(n))
		look(match.Field{Term: "src", Prefix: p})
		p, _ = dst.Prefix(int(n))
		look(match.Field{Term: "dst", Prefix: p})
	}
	return first
}

// addrs returns the addresses of a frame and their length in bits, or 0 bits if it has no IP header.
func addrs(b []byte, l *hdr.Layers) (src, dst netip.Addr, bits int) {
	switch l.Family() {
	case hdr.NetIPv4:
		return netip.AddrFrom4([4]byte(b[l.L3+12:])), netip.AddrFrom4([4]byte(b[l.L3+16:])), 32
	case hdr.NetIPv6:
		return netip.AddrFrom16([16]byte(b[l.L3+8:])), netip.AddrFrom16([16]byte(b[l.L3+24:])), 128
	}
	return src, dst, 0
}

// among returns the first of some rules that matches, if it comes before rule first; otherwise first,
// which is -1 if no rule has matched so far.
func (t *Table) among(rules []int32, first int32, b []byte, in uint16, forward bool, l *hdr.Layers) int32 {
	for _, i := range rules {
		if first >= 0 && i >= first {
			break
		}
		r := &t.rules[i]
		if r.In != Any && r.In != int(in) {
			continue
		}
		m := &r.Match
		if !forward {
			m = &t.reverse[i]
		}
		if m.Holds(b, l) {
			return i
		}
	}
	return first
}

// index finds rules by one field that they look at.
type index struct {
	by      map[match.Field][]int32
	rest    []int32    // rules that look at none
	lengths [2][]uint8 // of prefixes, IPv4 and IPv6
}

func (x *index) add(i int32, m *match.Match) {
	f, ok := m.Exact()
	if !ok {
		x.rest = append(x.rest, i)
		return
	}
	if x.by == nil {
		x.by = map[match.Field][]int32{}
	}
	x.by[f] = append(x.by[f], i)
	if f.Prefix.IsValid() {
		of := &x.lengths[f.Prefix.Addr().BitLen()>>7]
		if n := uint8(f.Prefix.Bits()); !slices.Contains(*of, n) {
			*of = append(*of, n)
		}
	}
}
