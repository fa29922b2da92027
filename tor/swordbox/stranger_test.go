package swordbox

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

const xrc hdr.Opcode = 0xA0 // transport: IBTA annex A14

// with is IPv4 frame b with more bytes behind its BTH, and lengths that say so.
func with(b []byte, op hdr.Opcode, more ...byte) []byte {
	b = slices.Insert(bytes.Clone(b), 14+hdr.IPv4Len+hdr.UDPLen+hdr.BTHLen, more...)
	b[14+hdr.IPv4Len+hdr.UDPLen] = byte(op)
	ip := hdr.IPv4(b[14 : 14+hdr.IPv4Len])
	ip.SetTotalLen(uint16(len(b) - 14))
	ip.UpdateChecksum()
	hdr.UDP(b[14+hdr.IPv4Len:]).SetLen(uint16(len(b) - 14 - hdr.IPv4Len))
	return b
}

// obscure are frames that change the word at va without being of a connection that
// can be followed.
func obscure(r *rig, x *party, va uint64) map[string][]byte {
	cas := x.made(hdr.CompareSwap, 7, atomicETH(va, testRKey, 42, 1), nil)
	write := x.made(hdr.WriteOnly, 7, reth(va, testRKey, 8), little(42))
	ip := func(b []byte, do func(ip hdr.IPv4)) []byte {
		b = bytes.Clone(b)
		do(hdr.IPv4(b[14 : 14+hdr.IPv4Len]))
		hdr.IPv4(b[14 : 14+hdr.IPv4Len]).UpdateChecksum()
		return b
	}
	options := slices.Insert(bytes.Clone(write), 14+hdr.IPv4Len, 1, 1, 1, 1)
	options = ip(options, func(ip hdr.IPv4) { ip[0] = 0x46; ip.SetTotalLen(uint16(len(options) - 14)) })
	hdr.IPv4(options[14 : 14+24]).UpdateChecksum()
	var f hdr.Frame
	hdr.Parse(options, &f)
	hdr.SetICRC(options, &f)
	tags := bytes.Clone(write)
	for range 3 {
		tags = slices.Insert(tags, 12, 0x81, 0, 0, 9)
	}
	other := *x
	server := r.server
	r.server = netip.MustParseAddr("10.9.0.77")
	elsewhere := other.made(hdr.WriteOnly, 7, reth(va, testRKey, 8), little(42))
	r.server = server
	short := with(write, hdr.WriteOnly)
	hdr.UDP(short[14+hdr.IPv4Len:]).SetLen(uint16(len(short) - 14 - hdr.IPv4Len - 4))
	return map[string][]byte{
		"a CAS over XRC":         with(cas, xrc|hdr.CompareSwap, 0, 0, 1, 2),
		"a WRITE over XRC":       with(write, xrc|hdr.WriteOnly, 0, 0, 1, 2),
		"a CAS over RD":          with(cas, hdr.RD|hdr.CompareSwap, make([]byte, 12)...),
		"an unknown transport":   with(cas, hdr.MFR|hdr.CompareSwap),
		"an unknown operation":   with(cas, 0x1F),
		"a WRITE over UC":        x.made(hdr.UC|hdr.WriteOnly, 7, reth(va, testRKey, 8), little(42)),
		"a WRITE's middle":       x.made(hdr.UC|hdr.WriteMiddle, 7, nil, make([]byte, 256)),
		"the first fragment":     ip(write, func(ip hdr.IPv4) { ip[6] = 0x20 }),
		"another fragment":       ip(write, func(ip hdr.IPv4) { ip[6], ip[7] = 0, 8 }),
		"a version of the BTH":   change(write, func(b []byte, f *hdr.Frame) { b[f.BTH+1] |= 1 }),
		"IPv4 options":           options,
		"a short UDP length":     short,
		"three tags":             tags,
		"another VLAN":           slices.Insert(bytes.Clone(write), 12, 0x81, 0, 0, 9),
		"the same MAC elsewhere": elsewhere,
	}
}

// TestObscure: a frame that may change memory and that the box does not understand makes words unknown before
// it passes. It waits while an atomic is under way as a WRITE, which would undo its effect.
func TestObscure(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	names := obscure(r, r.party(50), va)
	for name := range names {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, graph.Args{"conns": "32"})
			a, b := r.join(), r.join()
			b.learn(a, va, 1)
			frame := obscure(r, r.party(50), va)[name]
			same(t, r.Push("a", frame).Out["b"], frame)
			// The word is 42 now, and a lock that seemed to be free is not.
			if got := opcode(t, one(t, b.cas(va, 1, 2).Out["b"])); got != hdr.CompareSwap {
				t.Fatalf("the next CAS went as %v", got)
			}
			one(t, a.atomicAck(42).Out["a"])
			b.msn++
			r.Clock.Advance(time.Millisecond)
			b.learn(a, va, 42)
			if !r.knows(va) {
				t.Fatal("the word is unknown for good")
			}
			// While an atomic is under way as a WRITE it waits.
			if got := opcode(t, one(t, b.cas(va, 42, 1).Out["b"])); got != hdr.WriteOnly {
				t.Fatalf("a CAS on a known word went as %v", got)
			}
			none0(t, r.Push("a", frame).Out["b"])
			same(t, a.ack().Out["b"], frame)
			if r.knows(va) {
				t.Error("the word is believed")
			}
		})
	}
}

// Frames of others leave words alone.
func TestHarmless(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	x := r.party(50)
	b.learn(a, va, 1)
	write := x.made(hdr.WriteOnly, 7, reth(va, testRKey, 8), little(42))
	udp := bytes.Clone(write)
	udp[14+hdr.IPv4Len+2] = 1
	fragment := bytes.Clone(write)
	fragment[14+6], fragment[14+9] = 0x20, hdr.ProtoTCP
	elsewhere := bytes.Clone(write)
	elsewhere[5], elsewhere[14+19] = 99, 99
	for name, f := range map[string][]byte{
		"UDP":                  udp,
		"a fragment of TCP":    fragment,
		"another server":       elsewhere,
		"a SEND over XRC":      with(write, xrc|hdr.SendOnly),
		"a READ over XRC":      with(write, xrc|hdr.ReadRequest, 0, 0, 0, 0),
		"an answer over XRC":   with(write, xrc|hdr.Acknowledge, 0, 0, 0, 0),
		"a SEND over UD":       x.made(hdr.UDSendOnly, 7, make([]byte, 8), little(1)),
		"a WRITE over XRC":     with(x.made(hdr.WriteOnly, 7, reth(va+8, testRKey, 64), little(42)), xrc|hdr.WriteOnly, 0, 0, 0, 0),
		"ARP":                  append(bytes.Clone(write[:12]), 8, 6, 0, 1),
		"a notice of crowding": x.made(hdr.CNP, 0, make([]byte, 16), nil),
	} {
		if one(t, r.Push("a", f).Out["b"]); !r.knows(va) {
			t.Errorf("%s: the word is unknown", name)
			r.Clock.Advance(time.Millisecond)
			b.learn(a, va, 1)
		}
	}
}

// TestLongStranger: the packets of a long WRITE that nobody follows keep the memory of that WRITE unknown for
// as long as they come, and no other memory. Packets that may belong to another WRITE make all words unknown.
func TestLongStranger(t *testing.T) {
	const va, far = 0x7008, 0x9000
	for _, x := range []struct {
		name    string
		between func(r *rig, x *party)
		far     bool // is still known
	}{
		{"alone", func(*rig, *party) {}, true},
		{"again", func(r *rig, x *party) {
			r.Push("a", x.made(hdr.UC|hdr.WriteFirst, 70, reth(va-256, testRKey, 1024), make([]byte, 256)))
		}, true},
		{"another one of the sender's", func(r *rig, x *party) {
			r.Push("a", x.made(hdr.UC|hdr.WriteFirst, 80, reth(0x3000, testRKey, 1024), make([]byte, 256)))
		}, false},
		{"late", func(r *rig, x *party) { r.Clock.Advance(time.Millisecond) }, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b := r.join(), r.join()
			y := r.party(50)
			b.learn(a, va, 1)
			b.learn(a, far, 1)
			r.Push("a", y.made(hdr.UC|hdr.WriteFirst, 70, reth(va-256, testRKey, 1024), make([]byte, 256)))
			x.between(r, y)
			for k := range uint32(4) {
				r.Clock.Advance(60 * time.Microsecond) // settle=100us
				r.Push("a", y.made(hdr.UC|hdr.WriteMiddle, 71+k, nil, make([]byte, 256)))
				b.learn(a, va, 1)
				if r.knows(va) {
					t.Fatal("a word is believed that a packet may change")
				}
			}
			if r.knows(far) != x.far {
				t.Errorf("the word far away is known: %v", !x.far)
			}
		})
	}
}
