package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/memory"
)

// undeclared lists the kinds that have the two sides of a task and no Effects, with the reason.
var undeclared = map[string]string{
	"clover-steer": "remembers a rack, of which it must see all",
	"swordbox":     "remembers a rack, of which it must see all",
	"arbiter":      "answers for a rack, all of whose clients it must hear",
	"fence":        "stands before a rack's memory servers, of which it must see all requests",
	"hop":          "one end of a cable",
}

// sided reports whether a kind has the two sides of a task.
func sided(k *graph.Kind) bool {
	two := []string{"a", "b"}
	return slices.Equal(k.In, two) && slices.Equal(k.Out, two)
}

// tried returns the arguments with which the effects of a kind are tested. Kinds without a row here are
// tested with the arguments of the command lines in their texts.
func tried(t *testing.T) map[string][]graph.Args {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("0x100 8d3c1ce01bff5dd62a3a4d9cc8b1c5c0a1b2c3d4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mac1, mac2 := "02:00:00:00:00:01", "02:00:00:00:00:02"
	tunnel := graph.Args{"local": "198.51.100.1", "remote": "203.0.113.1", "local-mac": mac1, "remote-mac": mac2}
	with := func(a graph.Args, more ...string) graph.Args {
		b := graph.Args{}
		for k, v := range a {
			b[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			b[more[i]] = more[i+1]
		}
		return b
	}
	lb := graph.Args{"vip": "10.0.0.100+fd00::100", "port": "80", "mac": mac1, "size": "101",
		"backends": "10.0.1.1@02:00:00:00:01:01+10.0.1.2@02:00:00:00:01:02+fd00::1:1@02:00:00:00:01:01"}
	meter := graph.Args{"cir": "8kbit", "cbs": "3000", "pbs": "3000", "green": "dscp:AF11", "yellow": "dscp:CS1"}
	path := graph.Args{"spi": "7", "dst": mac1, "src": mac2}
	all := map[string][]graph.Args{
		"wire":     {nil},
		"dummy":    {nil, {"cost": "1us"}, {"touch": "64"}},
		"police":   {meter, with(meter, "per", "flow", "flows", "8", "aware", "af"), with(meter, "per", "src", "on", "a", "full", "drop", "flows", "8")},
		"shape":    {{"rate": "5Mbit", "burst": "4000", "queue": "16", "queue-bytes": "4k"}, {"rate": "1kpps", "burst": "2", "queue": "4", "on": "a"}},
		"firewall": {{"rules": "allow+in:a", "rules6": "allow+in:a"}, {"rules": "allow+in:a+dport:80;allow+in:b+sport:443", "mode": "loose", "fragments": "drop", "non-ip": "drop"}},
		"napt":     {{"public": "198.51.100.1", "mac": mac1}, {"public": "198.51.100.1", "filter": "endpoint", "others": "drop", "ports": "1024-1040"}},
		"balance":  {lb, with(lb, "port", "4789"), with(lb, "backends", "none")},
		"aead":     {{"keys": keys, "out": "0x100@203.0.113.0/24", "iv": "sequence"}, {"keys": keys, "out": "0x100@203.0.113.0/24", "iv": "sequence", "mtu": "300"}},
		"vxlan":    {with(tunnel, "vni", "5", "mtu", "600"), with(tunnel, "tenants", "42:5"), with(tunnel, "vni", "4", "tenants", "42:5", "others", "drop", "ecn", "compatibility", "inner-tags", "keep")},
		"nsh": {path, with(path, "next", "ip", "match", "proto:17", "exit", "7", "oam", "pass", "mtu", "600"),
			{"role": "task"}, {"role": "forwarder", "dst": mac1}},
		"gobackn":   {nil},
		"kvcache":   {{"settle": "1us"}},
		"replicate": {{"replicas": "192.168.1.10@02:00:00:00:00:10+192.168.1.11@02:00:00:00:00:11"}},
	}
	for _, k := range kinds() {
		if k.Effects != nil && all[k.Name] == nil {
			all[k.Name] = written(t, &k)
		}
	}
	return all
}

// written returns the arguments in the command lines of a kind's text; the defaults if there are no command
// lines.
func written(t *testing.T, k *graph.Kind) (all []graph.Args) {
	t.Helper()
	for _, m := range regexp.MustCompile(`--nf +(`+regexp.QuoteMeta(k.Name)+`[^ \n]*)`).FindAllStringSubmatch(k.Doc, -1) {
		spec, err := chain([]string{m[1]})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range spec.Apps {
			all = append(all, a.Args)
		}
	}
	if all == nil {
		all = []graph.Args{nil}
	}
	return all
}

// Each kind that can be a task declares its effects, or undeclared says why not.
func TestEffectsOfEveryKind(t *testing.T) {
	args, known := tried(t), map[string]bool{}
	for _, k := range kinds() {
		known[k.Name] = true
		switch why := undeclared[k.Name]; {
		case (k.Effects != nil || !sided(&k)) && why != "":
			t.Errorf("%s declares its effects, or cannot be a task: take it out of undeclared", k.Name)
		case k.Effects == nil && sided(&k) && why == "":
			t.Errorf("%s has the two sides of a task: say in its Effects what it does to packets, or in undeclared why not", k.Name)
		}
	}
	for name := range undeclared {
		if !known[name] {
			t.Errorf("there is no kind %s", name)
		}
	}
	for name := range args {
		if k, err := kindByName(name); err != nil || k.Effects == nil {
			t.Errorf("%s is tried, and is no kind or declares no effects", name)
		}
	}
}

// Each kind that can be a task declares whether it can use memory of a board.
func TestMemoryOfEveryKind(t *testing.T) {
	args, users := tried(t), 0
	for _, k := range kinds() {
		for _, a := range args[k.Name] {
			app, err := k.New(graph.Env{Name: "x", Workers: 1, Share: func(make func() any) any { return make() }}, a)
			if err != nil {
				t.Fatal(k.Name, err)
			}
			_, uses := app.(memory.User)
			if uses {
				users++
			}
			if says := k.Memory != nil && k.Memory(a); says != uses {
				t.Errorf("%s with %v: uses memory %v, and declares %v", k.Name, a, uses, says)
			}
		}
	}
	if users == 0 {
		t.Error("nobody uses memory")
	}
}

// Functions do to packets what their Effects declare, and nothing else.
func TestEffects(t *testing.T) {
	args := tried(t)
	for _, k := range kinds() {
		if k.Effects == nil {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			e := k.Effects(args[k.Name][0])
			p := proof{k: k, Effects: e}
			for i, a := range args[k.Name] {
				if with := k.Effects(a); with != e { // it must do no more either; there is no board here whose memory it waits for
					some := proof{k: k, Effects: with}
					t.Run(fmt.Sprint(i), func(t *testing.T) { some.run(t, a) })
					continue
				}
				t.Run(fmt.Sprint(i), func(t *testing.T) { p.run(t, a) })
			}
			if more := e.Writes &^ p.wrote; more != 0 && e.Writes&effect.Length == 0 {
				t.Errorf("is said to write %v, and never did", more)
			}
			if e.Drops && !p.dropped {
				t.Error("is said to drop, and never did")
			}
			if e.Answers && !p.answered {
				t.Error("is said to answer or hold, and never did")
			}
			// Connections stay where the hash of their ends has led them as long as the backends do not
			// change.
			if e.State && !p.remembered && k.Name != "balance" {
				t.Error("is said to have state, and the order of frames made no difference")
			}
		})
	}
}

// proof tests the declared effects of a kind.
type proof struct {
	k graph.Kind
	effect.Effects
	wrote             effect.Field
	dropped, answered bool
	remembered        bool
}

// step is a frame that comes in, and its result.
type step struct {
	side  int
	frame []byte
	wait  time.Duration // before it
	graphtest.Result
}

var ports = [2]string{"a", "b"}

// through is the frame that came out at the other port; nil if anything else came out or was dropped.
func (s *step) through() []byte {
	if far := s.Out[ports[1-s.side]]; len(far) == 1 && len(s.Out[ports[s.side]]) == 0 && len(s.Dropped) == 0 {
		return far[0].Bytes
	}
	return nil
}

// fate is how many frames went where.
func (s *step) fate() string {
	return fmt.Sprintf("%d to a, %d to b, %d dropped, %d punted", len(s.Out["a"]), len(s.Out["b"]), len(s.Dropped), len(s.Punted))
}

// play pushes the frames that next makes until next makes none.
func (p *proof) play(t *testing.T, args graph.Args, next func(past []step) (step, bool)) (all []step) {
	x := graphtest.New(t, p.k, args)
	for {
		s, ok := next(all)
		if !ok {
			return all
		}
		if s.wait > 0 {
			r := x.Advance(s.wait)
			if n := len(r.Out["a"]) + len(r.Out["b"]); n > 0 && !p.Answers {
				t.Fatalf("%d frames came later: it is not said to hold or answer", n)
			} else if n > 0 {
				p.answered = true
			}
		}
		s.Result = x.Push(ports[s.side], s.frame)
		all = append(all, s)
	}
}

// again plays the frames of all once more, each changed by change.
func (p *proof) again(t *testing.T, args graph.Args, all []step, change func([]byte) []byte) []step {
	return p.play(t, args, func(past []step) (step, bool) {
		if len(past) == len(all) {
			return step{}, false
		}
		s := all[len(past)]
		return step{side: s.side, wait: s.wait, frame: change(s.frame)}, true
	})
}

func (p *proof) run(t *testing.T, args graph.Args) {
	const frames = 1500
	m := maker{rand.New(rand.NewPCG(uint64(len(p.k.Name)), uint64(len(args)))), p.Answers && p.Writes&effect.Length != 0, new(uint16)}
	all := p.play(t, args, func(past []step) (step, bool) {
		if len(past) == frames {
			return step{}, false
		}
		s := step{side: m.IntN(2)}
		if m.IntN(8) == 0 {
			s.wait = time.Duration(m.IntN(2_000_000))
		}
		if n := len(past); n > 0 && m.IntN(3) == 0 {
			from := past[n-1-m.IntN(min(n, 40))]
			side := m.IntN(2)
			if out := from.Out[ports[side]]; len(out) > 0 {
				if s.frame = m.response(out[m.IntN(len(out))].Bytes); s.frame != nil {
					s.side = side
					return s, true
				}
			}
		}
		s.frame = m.frame(s.side)
		return s, true
	})
	passed := 0
	for i := range all {
		p.look(t, i, &all[i])
		if all[i].through() != nil {
			passed++
		}
		if t.Failed() {
			return
		}
	}
	if passed < frames/50 {
		t.Errorf("%d of %d frames passed: that proves nothing", passed, frames)
	}
	if unread := effect.AllFields &^ p.Reads; unread != 0 {
		for i, s := range p.again(t, args, all, func(b []byte) []byte { return m.change(b, unread) }) {
			if p.same(t, i, &all[i], &s); t.Failed() {
				t.Fatalf("(what differs is not in %v)", p.Reads)
			}
		}
	}
	order := m.Perm(len(all))
	shuffled := make([]step, len(all))
	for i, j := range order {
		shuffled[i] = step{side: all[j].side, frame: all[j].frame, wait: all[i].wait}
	}
	for i, s := range p.again(t, args, shuffled, slices.Clone[[]byte]) {
		was := &all[order[i]]
		if s.fate() == was.fate() && bytes.Equal(s.through(), was.through()) {
			continue
		}
		if p.remembered = true; !p.State {
			t.Fatalf("is said to have no state, and in another order this frame fares otherwise: %s, was %s\n%x\nbecame %x\nand    %x",
				s.fate(), was.fate(), s.frame, was.through(), s.through())
		}
	}
}

// look checks what one frame can show: that the function did not write, drop or answer without declaring it.
func (p *proof) look(t *testing.T, i int, s *step) {
	if len(s.Dropped) > 0 {
		if p.dropped = true; !p.Drops {
			t.Errorf("frame %d was dropped (%s), which it is not said to do:\n%x", i, s.Dropped[0].Reason, s.frame)
		}
		if len(s.Out["a"])+len(s.Out["b"]) > 0 {
			if p.answered = true; !p.Answers {
				t.Errorf("frame %d was dropped, and another one sent, which it is not said to do:\n%x", i, s.frame)
			}
		}
		return
	}
	out := s.through()
	if out == nil {
		if p.answered = true; !p.Answers {
			t.Errorf("frame %d: %s, and it is not said to answer or hold:\n%x", i, s.fate(), s.frame)
		}
		return
	}
	if p.Writes&effect.Length != 0 {
		return
	}
	if len(out) != len(s.frame) {
		t.Errorf("frame %d: %d bytes became %d, and it is not said to change the length:\n%x\n%x", i, len(s.frame), len(out), s.frame, out)
		return
	}
	for at, f := range fieldsOf(s.frame) {
		if out[at] == s.frame[at] {
			continue
		}
		if p.wrote |= f; f&^p.Writes != 0 {
			t.Errorf("frame %d: byte %d, of %v, was written, and it is said to write %v:\n%x\n%x", i, at, f, p.Writes, s.frame, out)
			return
		}
	}
}

// same checks that two frames that differ only in fields that are not read went the same way and got the same
// bytes.
func (p *proof) same(t *testing.T, i int, x, y *step) {
	if x.fate() != y.fate() {
		t.Errorf("frame %d: %s; with other bytes where it does not read: %s\n%x\n%x", i, x.fate(), y.fate(), x.frame, y.frame)
		return
	}
	a, b := x.through(), y.through()
	if a == nil || p.Writes&effect.Length != 0 || len(b) != len(y.frame) {
		return
	}
	for at, f := range fieldsOf(x.frame) {
		left := a[at] == x.frame[at] && b[at] == y.frame[at]
		if f&p.Writes != 0 && a[at] != b[at] && !left {
			t.Errorf("frame %d: byte %d, of %v, became %#x and %#x:\n%x\n%x\n%x\n%x", i, at, f, a[at], b[at], x.frame, a, y.frame, b)
			return
		}
	}
}

// fieldsOf is the field of each byte of a well-formed frame; 0: the byte is derived from others.
func fieldsOf(b []byte) []effect.Field {
	of := make([]effect.Field, len(b))
	set := func(from, to int, f effect.Field) {
		for i := from; i < min(to, len(of)); i++ {
			of[i] = f
		}
	}
	var l hdr.Layers
	set(0, len(b), effect.Payload)
	if !hdr.Walk(b, &l) {
		return of
	}
	set(0, 12, effect.Ethernet)
	set(12, l.Net-2, effect.VLAN)
	set(l.Net-2, l.Net, effect.Ethernet)
	switch l.EtherType {
	case hdr.EtherARP:
		set(l.Net, len(b), effect.L4Other)
		return of
	case hdr.EtherNSH:
		at, next := nshOf(b, &l)
		set(l.Net, at, effect.Encap)
		copy(of[at:], inner(b[at:], next))
		return of
	}
	if l.L3 == 0 {
		return of
	}
	head := b[l.L3:]
	set(l.L3, l.End, effect.Payload)
	end := l.L4
	if end == 0 {
		end = l.End
		if l.EtherType == hdr.EtherIPv4 {
			end = l.L3 + hdr.IPv4(head).HeaderLen()
		} else if l.Fragment {
			end = l.L3 + hdr.IPv6Len + 8
		}
	}
	set(l.L3, end, effect.IPOther)
	if l.EtherType == hdr.EtherIPv4 {
		set(l.L3+12, l.L3+20, effect.IPAddresses)
		set(l.L3+2, l.L3+4, 0)
		set(l.L3+10, l.L3+12, 0)
	} else {
		set(l.L3+8, l.L3+40, effect.IPAddresses)
		set(l.L3+4, l.L3+6, 0)
	}
	if l.L4 == 0 {
		return of
	}
	p := b[l.L4:l.End]
	switch l.Proto {
	case hdr.ProtoTCP:
		set(l.L4, l.L4+4, effect.Ports)
		set(l.L4+4, l.L4+hdr.TCP(p).HeaderLen(), effect.L4Other)
		set(l.L4+16, l.L4+18, 0)
	case hdr.ProtoUDP:
		set(l.L4, l.L4+4, effect.Ports)
		set(l.L4+4, l.L4+8, 0)
		switch u := hdr.UDP(p); {
		case l.Fragment:
		case u.DstPort() == hdr.PortVXLAN:
			for i := l.L3; i < l.L4+16; i++ {
				if of[i] != 0 {
					of[i] = effect.Encap
				}
			}
			copy(of[l.L4+16:l.End], inner(p[16:], hdr.NSHNextEthernet))
		case u.DstPort() == hdr.RoCEv2Port:
			set(l.L4+8, l.L4+8+hdr.BTHLen, effect.L4Other)
			set(l.End-4, l.End, 0)
		}
	case hdr.ProtoICMP, hdr.ProtoICMPv6:
		set(l.L4, l.End, effect.L4Other)
		if echo(p[0], l.Proto) {
			set(l.L4+4, l.L4+6, effect.Ports)
			set(l.L4+8, l.End, effect.Payload)
		}
		set(l.L4+2, l.L4+4, 0)
	default:
		set(l.L4, l.L4+8, effect.L4Other)
	}
	return of
}

func echo(typ, proto uint8) bool {
	if proto == hdr.ProtoICMP {
		return typ == hdr.ICMPEcho || typ == hdr.ICMPEchoReply
	}
	return typ == hdr.ICMPv6Echo || typ == hdr.ICMPv6EchoReply
}

// inner is the field of each byte of a frame in a tunnel, or of an IP datagram.
func inner(b []byte, next uint8) []effect.Field {
	of := fieldsOf(framed(b, next))[len(framed(nil, next)):]
	for i, f := range of {
		if f == effect.Ethernet || f == effect.VLAN {
			of[i] = effect.Encap
		}
	}
	return of
}

// framed is b with an Ethernet header, if it has none.
func framed(b []byte, next uint8) []byte {
	switch next {
	case hdr.NSHNextIPv4:
		return append([]byte{12: 8, 13: 0}, b...)
	case hdr.NSHNextIPv6:
		return append([]byte{12: 0x86, 13: 0xdd}, b...)
	}
	return b
}

// nshOf is where an NSH ends, and the protocol behind it.
func nshOf(b []byte, l *hdr.Layers) (at int, next uint8) {
	h := hdr.NSH(b[l.Net:])
	return l.Net + h.HeaderLen(), h.NextProtocol()
}

// seal computes the derived fields of a frame from the rest: checksums, ICRC.
func seal(b []byte) {
	var l hdr.Layers
	if !hdr.Walk(b, &l) {
		return
	}
	if l.EtherType == hdr.EtherNSH && len(b) >= l.Net+hdr.NSHLen {
		if at, next := nshOf(b, &l); at <= len(b) {
			p := framed(b[at:], next)
			seal(p)
			copy(b[at:], p[len(p)-len(b)+at:])
		}
		return
	}
	if l.L3 == 0 {
		return
	}
	var src, dst netip.Addr
	if l.EtherType == hdr.EtherIPv4 {
		h := hdr.IPv4(b[l.L3:])
		h.UpdateChecksum()
		src, dst = h.Src(), h.Dst()
	} else {
		src, dst = hdr.IPv6(b[l.L3:]).Src(), hdr.IPv6(b[l.L3:]).Dst()
	}
	if l.L4 == 0 || l.Fragment {
		return
	}
	p, at := b[l.L4:l.End], 0
	switch {
	case l.Proto == hdr.ProtoTCP && len(p) >= 20:
		at = 16
	case l.Proto == hdr.ProtoUDP && len(p) >= 8:
		u := hdr.UDP(p)
		var f hdr.Frame
		if u.DstPort() == hdr.PortVXLAN && len(p) > 16 {
			seal(p[16:])
		} else if u.DstPort() == hdr.RoCEv2Port && hdr.Parse(b, &f) == 0 {
			hdr.SetICRC(b, &f)
		}
		if at = 6; u.Checksum() == 0 {
			return
		}
	case l.Proto == hdr.ProtoICMP && len(p) >= 8:
		binary.BigEndian.PutUint16(p[2:], 0)
		binary.BigEndian.PutUint16(p[2:], hdr.Checksum(p, 0))
		return
	case l.Proto == hdr.ProtoICMPv6 && len(p) >= 8:
		at = 2
	default:
		return
	}
	binary.BigEndian.PutUint16(p[at:], 0)
	sum := hdr.Checksum(p, hdr.PseudoSum(src, dst, l.Proto, len(p)))
	if sum == 0 && at == 6 {
		sum = 0xFFFF
	}
	binary.BigEndian.PutUint16(p[at:], sum)
}

// maker makes random frames.
type maker struct {
	*rand.Rand
	devices bool // half of the frames are for Clio's devices, and some of these are damaged
	id      *uint16
}

func pick[T any](m maker, of ...T) T { return of[m.IntN(len(of))] }

func (m maker) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(m.Uint32())
	}
	return b
}

// change returns b with other bytes in the fields, and correct checksums.
func (m maker) change(b []byte, fields effect.Field) []byte {
	out := slices.Clone(b)
	fields &= effect.Field(m.Uint32() | m.Uint32()) // a random part of them
	density := 1 + m.IntN(8)
	if fields&effect.Length != 0 {
		out = m.longer(out)
	}
	for at, f := range fieldsOf(out) {
		if f&fields != 0 && m.IntN(density) == 0 {
			out[at] = byte(m.Uint32())
		}
	}
	seal(out)
	return out
}

// longer returns b with more payload and more padding.
func (m maker) longer(b []byte) []byte {
	var l hdr.Layers
	if hdr.Walk(b, &l) && l.L4 > 0 && !l.Fragment && (l.Proto == hdr.ProtoTCP || l.Proto == hdr.ProtoUDP) && fieldsOf(b)[l.L4] == effect.Ports {
		n := 4 * m.IntN(100)
		b = slices.Insert(b, l.End-min(4, l.End-l.L4-hdr.UDPLen), m.bytes(n)...) // in front of an ICRC
		if u := hdr.UDP(b[l.L4:]); l.Proto == hdr.ProtoUDP {
			u.SetLen(u.Len() + uint16(n))
		}
		if l.EtherType == hdr.EtherIPv4 {
			h := hdr.IPv4(b[l.L3:])
			h.SetTotalLen(h.TotalLen() + uint16(n))
		} else {
			h := hdr.IPv6(b[l.L3:])
			h.SetPayloadLen(h.PayloadLen() + uint16(n))
		}
	}
	return append(b, m.bytes(m.IntN(8))...)
}

// frame makes a frame that comes in at a side.
func (m maker) frame(side int) []byte {
	if m.devices && m.IntN(2) == 0 {
		return m.clio()
	}
	var b []byte
	switch m.IntN(20) {
	case 0:
		b = m.ethernet(hdr.EtherARP, m.arp())
	case 1:
		b = m.ethernet(0x88CC, m.bytes(46+m.IntN(20)))
	case 2, 3:
		next := pick(m, hdr.NSHNextEthernet, hdr.NSHNextIPv4, hdr.NSHNextIPv6)
		h := make([]byte, hdr.NSHLen)
		hdr.NSH(h).Encode(&hdr.NSHFields{TTL: uint8(m.IntN(64)), SPI: uint32(6 + m.IntN(3)), SI: uint8(m.IntN(4)), NextProtocol: next, OAM: m.IntN(10) == 0})
		p, v6 := m.datagram(side, 1, next == hdr.NSHNextIPv6)
		if next == hdr.NSHNextEthernet {
			p = m.ethernet(etherOf(v6), p)
		}
		b = m.ethernet(hdr.EtherNSH, append(h, p...))
	case 4:
		return m.clio()
	default:
		p, v6 := m.datagram(side, 0, m.IntN(3) == 0)
		b = m.ethernet(etherOf(v6), p)
	}
	if m.IntN(10) == 0 {
		b = append(b, m.bytes(m.IntN(8))...)
	}
	seal(b)
	return b
}

func etherOf(v6 bool) uint16 {
	if v6 {
		return hdr.EtherIPv6
	}
	return hdr.EtherIPv4
}

func (m maker) arp() []byte {
	p := make([]byte, 28)
	hdr.ARP(p).Encode(&hdr.ARPFields{Op: uint16(1 + m.IntN(2)), SHA: [6]byte{2, 5: 9}, SPA: netip.MustParseAddr("203.0.113.1"),
		TPA: netip.MustParseAddr(pick(m, "198.51.100.1", "10.0.0.1"))})
	return p
}

func (m maker) ethernet(etherType uint16, p []byte) []byte {
	b := make([]byte, 12, 64+len(p))
	b[0], b[5], b[6], b[11] = 2, byte(m.IntN(3)), 2, byte(m.IntN(3))
	for range max(0, m.IntN(5)-2) {
		b = binary.BigEndian.AppendUint32(b, uint32(pick(m, hdr.EtherVLAN, hdr.EtherQinQ))<<16|uint32(m.IntN(8))<<13|uint32(40+m.IntN(4)))
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), p...)
}

// datagram makes an IP datagram, sometimes with a tunnel that has another frame inside.
func (m maker) datagram(side, depth int, v6 bool) ([]byte, bool) {
	inside := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	outside := []string{"203.0.113.1", "203.0.113.2", "10.0.0.100", "10.0.1.1"}
	if v6 {
		inside, outside = []string{"fd00::1", "fd00::2"}, []string{"fd00::100", "fd00::1:1", "2001:db8::1"}
	}
	src, dst := pick(m, inside...), pick(m, outside...)
	if side == 1 {
		src, dst = dst, pick(m, append(inside, outside...)...)
		if !v6 && m.IntN(2) == 0 {
			dst = "198.51.100.1"
		}
	}
	proto, p := m.transport(side, depth, v6)
	return m.ip(netip.MustParseAddr(src), netip.MustParseAddr(dst), proto, p), v6
}

// ip makes a datagram, sometimes with options or as a fragment.
func (m maker) ip(src, dst netip.Addr, proto uint8, p []byte) []byte {
	sort := m.IntN(12)
	if src.Is6() {
		h, next := make([]byte, hdr.IPv6Len), proto
		switch sort {
		case 0:
			h, next = append(h, proto, 0, 1, 4, 0, 0, 0, 0), hdr.ProtoHopByHop
		case 1:
			h, next = append(h, proto, 0, 0, byte(m.IntN(2)), 0, 0, 0, byte(m.IntN(4))), hdr.ProtoFragment
		}
		hdr.IPv6(h).Encode(&hdr.IPv6Fields{TrafficClass: uint8(m.Uint32()), FlowLabel: uint32(m.IntN(4)), PayloadLen: uint16(len(h) - hdr.IPv6Len + len(p)),
			NextHeader: next, HopLimit: uint8(2 + m.IntN(60)), Src: src, Dst: dst})
		return append(h, p...)
	}
	h := make([]byte, hdr.IPv4Len)
	if sort == 0 {
		h = append(h, 1, 1, 1, 0)
	}
	hdr.IPv4(h).Encode(&hdr.IPv4Fields{TOS: uint8(m.Uint32()), TotalLen: uint16(len(h) + len(p)), ID: uint16(m.IntN(4)), DF: sort > 6,
		TTL: uint8(2 + m.IntN(60)), Protocol: proto, Src: src, Dst: dst})
	h[0] = 4<<4 | byte(len(h)/4)
	if sort == 1 {
		hdr.IPv4(h).SetMF(m.IntN(2) == 0)
		hdr.IPv4(h).SetFragOffset(8 * m.IntN(3))
	}
	hdr.IPv4(h).UpdateChecksum()
	return append(h, p...)
}

// transport makes what is above IP, without its checksum.
func (m maker) transport(side, depth int, v6 bool) (proto uint8, p []byte) {
	from, to := uint16(1000+m.IntN(4)), pick[uint16](m, 80, 80, 443, 53)
	if side == 1 && m.IntN(2) == 0 {
		from, to = to, uint16(1000+m.IntN(60))
	}
	udp := func(to uint16, p []byte, sum uint16) (uint8, []byte) {
		h := make([]byte, hdr.UDPLen)
		hdr.UDP(h).Encode(&hdr.UDPFields{SrcPort: from, DstPort: to, Len: uint16(len(h) + len(p)), Checksum: sum})
		return hdr.ProtoUDP, append(h, p...)
	}
	icmp, first := hdr.ProtoICMP, []byte{hdr.ICMPEcho, hdr.ICMPEchoReply, hdr.ICMPUnreachable, hdr.ICMPTimeExceeded}
	if v6 {
		icmp, first = hdr.ProtoICMPv6, []byte{hdr.ICMPv6Echo, hdr.ICMPv6EchoReply, hdr.ICMPv6TooBig, hdr.ICMPv6NeighborSol}
	}
	switch n := m.IntN(12); {
	case n < 4:
		p = append(make([]byte, 20), m.bytes(m.IntN(200))...)
		binary.BigEndian.PutUint16(p, from)
		binary.BigEndian.PutUint16(p[2:], to)
		hdr.TCP(p).SetSeq(uint32(m.IntN(1000)))
		p[12], p[13], p[14] = 5<<4, pick[byte](m, 2, 2, 0x12, 0x10, 0x18, 0x11, 4), 0xFF
		return hdr.ProtoTCP, p
	case n < 7:
		return udp(to, m.bytes(m.IntN(900)), pick[uint16](m, 1, 1, 0))
	case n == 7 && depth == 0:
		in, six := m.datagram(side, 1, m.IntN(2) == 0)
		h := make([]byte, 8)
		hdr.VXLAN(h).Encode(uint32(4 + m.IntN(2)))
		return udp(hdr.PortVXLAN, append(h, m.ethernet(etherOf(six), in)...), pick[uint16](m, 1, 0))
	case n == 8:
		h := make([]byte, hdr.BTHLen)
		hdr.BTH(h).Encode(&hdr.BTHFields{OpCode: 4, PKey: 0xFFFF, DestQP: uint32(m.IntN(4)), PSN: uint32(m.IntN(99))})
		return udp(hdr.RoCEv2Port, append(append(h, m.bytes(4*m.IntN(20))...), 0, 0, 0, 0), 0)
	case n == 9:
		return 50, append([]byte{0, 0, 1, byte(m.IntN(2)), 0, 0, 0, byte(m.IntN(9))}, m.bytes(40)...)
	}
	p = append([]byte{pick(m, first...), 0, 0, 0, 0, byte(m.IntN(3)), 0, 1}, m.bytes(40)...)
	if !echo(p[0], uint8(icmp)) && p[0] != hdr.ICMPv6NeighborSol {
		q, _ := m.datagram(1-side, 1, v6)
		p = append(p[:8], q...)
	}
	return uint8(icmp), p
}

// clio makes a request to one of Clio's devices, with or without its transport.
func (m maker) clio() []byte {
	value, typ := m.bytes(m.IntN(20)), pick[uint8](m, 0, 0, clio.DATA, clio.DATA, clio.ACK, clio.NACK)
	op := pick(m, clio.Read, clio.Read, clio.Update, clio.Create, clio.Delete, clio.OpenSession)
	n := clio.LegoLen + clio.RequestLen + len(value)
	if op.OfSessions() {
		n = clio.LegoLen + clio.SessionLen
	}
	if typ != 0 {
		n += clio.GBNLen
	}
	src := clio.End{MAC: [6]byte{2, 5: 7}, IP: [4]byte{192, 168, 1, byte(1 + m.IntN(2))}, Port: 8000}
	dst := clio.End{MAC: [6]byte{2, 5: 0x10}, IP: [4]byte{192, 168, 1, byte(10 + m.IntN(2))}, Port: clio.Port}
	*m.id++
	b, f := make([]byte, clio.HeadersLen+n), clio.Plain(typ != 0)
	clio.Headers(b, &src, &dst, n)
	clio.Lego(b[f.Lego:]).Encode(&clio.Fields{PID: 7, ID: *m.id, Opcode: op, Size: uint16(len(b) - f.Lego), Replicate: m.IntN(2) == 0})
	switch {
	case op.OfSessions():
		clio.SetSession(b[f.Op:], uint32(m.IntN(4)))
	default:
		clio.Request(b[f.Op:]).Encode(uint64(m.IntN(4)), 8, uint16(len(value)))
		copy(b[f.Op+clio.RequestLen:], value)
	}
	if typ != 0 {
		if op.OfSessions() {
			clio.GBN(b[f.GBN:]).Encode(typ, 0, 0, 0)
		} else {
			clio.GBN(b[f.GBN:]).Encode(typ, 1+uint32(m.IntN(4)), uint16(m.IntN(4)), 1)
		}
	}
	if f.Seal(b, len(b), true); m.devices && m.IntN(20) == 0 {
		b[len(b)-1]++
	}
	return b
}

// response is the answer to a frame: from the frame's other end, or an ICMP error.
func (m maker) response(b []byte) []byte {
	var l hdr.Layers
	if !hdr.Walk(b, &l) || l.L3 == 0 || l.L4 == 0 || l.Fragment {
		return nil
	}
	b = slices.Clone(b)
	var f clio.Frame
	if k := clio.Parse(b, false, &f); k == clio.Message && !clio.Lego(b[f.Lego:]).Opcode().IsAnswer() && clio.Lego(b[f.Lego:]).Opcode().OfKeys() {
		value := m.bytes(8)
		n := f.AnswerEnd(len(value))
		b = append(b, make([]byte, max(0, n-len(b)))...)[:n]
		f.Answer(b, clio.OK, value)
		return b
	}
	swap := func(at, n int) {
		x := slices.Clone(b[at : at+n])
		copy(b[at:], b[at+n:at+2*n])
		copy(b[at+n:], x)
	}
	swap(0, 6)
	if l.EtherType == hdr.EtherIPv4 && m.IntN(4) == 0 && !slices.Contains([]uint8{hdr.ProtoICMP}, l.Proto) {
		q := slices.Clone(b[l.L3:min(l.End, l.L4+20)])
		p := append([]byte{hdr.ICMPUnreachable, 1, 0, 0, 0, 0, 0, 0}, q...)
		out := append(slices.Clone(b[:l.L3]), m.ip(netip.MustParseAddr("203.0.113.9"), hdr.IPv4(q).Src(), hdr.ProtoICMP, p)...)
		seal(out)
		return out
	}
	if l.EtherType == hdr.EtherIPv4 {
		swap(l.L3+12, 4)
	} else {
		swap(l.L3+8, 16)
	}
	switch l.Proto {
	case hdr.ProtoTCP:
		swap(l.L4, 2)
		h := hdr.TCP(b[l.L4:])
		seq := h.Seq()
		h.SetSeq(h.Ack())
		h.SetAck(seq + 1)
		h.SetFlags(pick[byte](m, 0x12, 0x10, 0x18))
	case hdr.ProtoUDP:
		if hdr.UDP(b[l.L4:]).DstPort() < 4000 {
			swap(l.L4, 2)
		}
	case hdr.ProtoICMP:
		if b[l.L4] == hdr.ICMPEcho {
			b[l.L4] = hdr.ICMPEchoReply
		}
	}
	seal(b)
	return b
}
