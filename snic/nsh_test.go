package snic

import (
	"bytes"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// onPath puts a service header in front of a frame: of the whole frame, or of what follows
// its Ethernet header.
func onPath(uid uint32, next uint8, f []byte) []byte {
	b := append(bytes.Repeat([]byte{2}, 12), 0x89, 0x4f)
	h := make([]byte, hdr.NSHLen)
	hdr.NSH(h).Encode(&hdr.NSHFields{TTL: 63, NextProtocol: next, SPI: uid, SI: 255})
	b = append(b, h...)
	if next != hdr.NSHNextEthernet {
		f = f[14:]
	}
	return append(b, f...)
}

// Frames with a service header go to the DAG of their path, without it; what is malformed, or of nobody,
// is dropped.
func TestServicePaths(t *testing.T) {
	x := setup(t, three)
	x.Advance(20 * time.Millisecond)
	plain := frame(9, "-")
	for _, next := range []uint8{hdr.NSHNextEthernet, hdr.NSHNextIPv4} {
		for uid, want := range map[uint32]string{7: "-abc", 8: "-ac"} {
			r := x.Push("p0", onPath(uid, next, plain))
			out := r.Out["p1"]
			if len(out) != 1 || string(out[0].Bytes[payload:]) != want {
				t.Fatalf("path %d, next protocol %d: %v", uid, next, r)
			}
			if !bytes.Equal(out[0].Bytes[12:payload], plain[12:]) && !bytes.Equal(out[0].Bytes[12:payload], plain[12:payload]) {
				t.Errorf("path %d: % x", uid, out[0].Bytes)
			}
			if first := out[0].Bytes[0]; first != map[bool]byte{true: 0, false: 2}[next == hdr.NSHNextEthernet] {
				t.Errorf("next protocol %d: the Ethernet header begins with %d", next, first)
			}
		}
	}
	if r := x.Push("p1", onPath(7, hdr.NSHNextEthernet, back(9, "-"))); tail(r.Out["p0"]) != "-CBA" {
		t.Errorf("back: %v", r)
	}
	if n := x.Counter("off-path"); n != 5 {
		t.Errorf("%d came by a service path", n)
	}
	drop := func(reason string, f []byte) {
		t.Helper()
		if r := x.Push("p0", f); len(r.Dropped) != 1 || r.Dropped[0].Reason != reason {
			t.Errorf("not dropped as %s: %v", reason, r)
		}
	}
	drop("nobody", onPath(9, hdr.NSHNextEthernet, plain))
	bad := func(change func(h []byte)) []byte {
		f := onPath(7, hdr.NSHNextEthernet, plain)
		change(f[14:])
		return f
	}
	drop("bad-nsh", bad(func(h []byte) { h[0] |= 0x40 }))                                                    // version 1
	drop("bad-nsh", bad(func(h []byte) { h[0] |= 0x20 }))                                                    // OAM
	drop("bad-nsh", bad(func(h []byte) { h[1] &^= 63 }))                                                     // no length
	drop("bad-nsh", bad(func(h []byte) { h[1] |= 63 }))                                                      // longer than the frame
	drop("bad-nsh", bad(func(h []byte) { h[7] = 0 }))                                                        // at the end of its path
	drop("bad-nsh", bad(func(h []byte) { h[3] = 77 }))                                                       // of an unknown protocol
	drop("bad-nsh", bad(func(h []byte) { h[2] = 3 }))                                                        // of unknown metadata
	drop("bad-nsh", onPath(7, hdr.NSHNextIPv6, plain))                                                       // of another version than said
	drop("bad-nsh", onPath(7, hdr.NSHNextEthernet, plain[:13]))                                              // nothing that is a frame
	drop("bad-nsh", onPath(7, hdr.NSHNextIPv4, plain[:20]))                                                  // nor a packet
	if r := x.Push("p0", onPath(7, hdr.NSHNextEthernet, plain)[:20]); len(r.Out["p1"])+len(r.Dropped) != 1 { // cut short
		t.Errorf("%v", r)
	}
}

// Whatever bytes come, the board neither panics nor loses count.
func FuzzFrames(f *testing.F) {
	f.Add(frame(1, "00000000?b"), uint8(0))
	f.Add(onPath(7, hdr.NSHNextEthernet, frame(2, "00000000-.")), uint8(1))
	f.Add(onPath(8, hdr.NSHNextIPv6, frame(2, "00000000-.")), uint8(2))
	f.Add(onPath(7, hdr.NSHNextIPv4, make([]byte, 14)), uint8(3))
	f.Add([]byte{}, uint8(0))
	kinds := append(kinds()[:1], quiet("mark"))
	f.Fuzz(func(t *testing.T, b []byte, port uint8) {
		if len(b) > 2000 {
			return
		}
		x := graphtest.NewSmall(t, kinds[0], graph.Args{"deployment": three, "flows": "16", "packets": "64"}, kinds[1:]...)
		in := []string{"p0", "p1", "p6", "p15"}[port&3]
		x.Push(in, b, b)
		x.Advance(20 * time.Millisecond)
		x.Push(in, b, b)
		x.Advance(20 * time.Millisecond)
		if n := x.Inst.Held(); n != 0 {
			t.Errorf("%d frames are held", n)
		}
	})
}

// quiet is a kind that passes everything on.
func quiet(name string) graph.Kind {
	k := idle()
	k.Name, k.Params = name, []graph.Param{{Name: "letter"}}
	return k
}

// Whatever is deployed, it is taken or refused, and what runs goes on.
func FuzzDeployment(f *testing.F) {
	f.Add([]byte(three))
	f.Add([]byte("regions: {count: 2, area: 3}\ntasks: {a: {kind: mark, args: {letter: z}}}\ntenants: {}\n"))
	f.Add([]byte("regions: {count: 2, area: 3}\ntasks: {x: {kind: mark}, y: {kind: hold, throughput: 1bit}}\ntenants: {u: {weight: 0.01}}\ndags: [{uid: 7, tenant: u, run: y -> x}]\nrules: [{match: all, dag: 7}]"))
	f.Add([]byte("regions: {count: 1024, area: 1, bitstream: 1}\ntasks: {}\ntenants: {}\n"))
	ks := append(kinds()[:1], quiet("mark"), quiet("hold"))
	f.Fuzz(func(t *testing.T, text []byte) {
		x := graphtest.NewSmall(t, ks[0], graph.Args{"deployment": three, "flows": "16", "packets": "64"}, ks[1:]...)
		x.Advance(10 * time.Millisecond)
		x.Push("p0", frame(1, "-"), frame(2, "-"), frame(9, "-"))
		err := x.Set(graph.Args{"deployment": string(text)})
		x.Push("p1", back(1, "-"), back(2, "-"), back(9, "-"))
		x.Advance(20 * time.Millisecond)
		r := x.Push("p0", frame(1, "-"))
		if err != nil && len(r.Out["p1"]) != 1 {
			t.Errorf("refused (%v), and what ran does not: %v", err, r)
		}
	})
}
