package mirror

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
)

// frame is a TCP segment to a port, with n bytes of payload, perhaps with a tag of VLAN 7 and priority 5.
func frame(t testing.TB, port uint16, n int, tagged bool) []byte {
	t.Helper()
	l := hdrtest.Stack()
	if tagged {
		l = append(l, &layers.Dot1Q{Priority: 5, VLANIdentifier: 7})
	}
	return hdrtest.Build(t, append(l, &layers.IPv4{TTL: 64, SrcIP: []byte{10, 1, 0, 1}, DstIP: []byte{10, 1, 0, 2}},
		&layers.TCP{SrcPort: 1000, DstPort: layers.TCPPort(port)}, gopacket.Payload(bytes.Repeat([]byte("p"), n)))...)
}

func far(six bool, more ...string) graph.Args {
	args := graph.Args{"local": "192.0.2.1", "remote": "192.0.2.9", "local-mac": "02:00:00:00:00:0a", "remote-mac": "02:00:00:00:00:0b"}
	if six {
		args["local"], args["remote"] = "2001:db8::1", "2001:db8::9"
	}
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return args
}

// push sends a frame in, which must come out untouched, and returns its copy, if there is one.
func push(t *testing.T, x *graphtest.Test, in, by string, f []byte) []byte {
	t.Helper()
	out := map[string]string{"a": "b", "b": "a"}[in]
	got := x.Push(in, f)
	var copies [][]byte
	passed := 0
	for name, list := range got.Out {
		for _, g := range list {
			if name == out && bytes.Equal(g.Bytes, f) && g.Reason != "copy" {
				passed++
			} else if name == by {
				copies = append(copies, g.Bytes)
			} else {
				t.Errorf("by %s came %x", name, g.Bytes)
			}
		}
	}
	if passed != 1 || len(copies) > 1 {
		t.Fatalf("passed %d times, %d copies", passed, len(copies))
	}
	if len(copies) == 0 {
		return nil
	}
	return copies[0]
}

func TestFrames(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"match": "proto:6+dport:80", "on": "a", "every": "2"})
	web, other := frame(t, 80, 10, false), frame(t, 81, 10, false)
	for i, c := range []struct {
		in   string
		f    []byte
		want bool
	}{{"a", web, false}, {"a", other, false}, {"b", web, false}, {"a", web, true}, {"a", web, false}, {"a", web, true}} {
		if got := push(t, x, c.in, "copy", c.f); c.want != (got != nil) || c.want && !bytes.Equal(got, c.f) {
			t.Errorf("%d: %x", i, got)
		}
	}
	x = graphtest.New(t, *Kind(), graph.Args{"snap": "60", "by": "b"})
	for _, in := range []string{"a", "b"} {
		f := frame(t, 80, 100, false)
		got := x.Push(in, f)
		n := 0
		for _, list := range got.Out {
			for _, g := range list {
				if g.Reason == "copy" && bytes.Equal(g.Bytes, f[:60]) {
					n++
				}
			}
		}
		if n != 1 {
			t.Errorf("from %s: %d copies", in, n)
		}
	}
	short := []byte{1, 2, 3}
	if got := push(t, graphtest.New(t, *Kind(), nil), "a", "copy", short); !bytes.Equal(got, short) {
		t.Errorf("of a short frame %x", got)
	}
}

func TestVXLAN(t *testing.T) {
	for _, six := range []bool{false, true} {
		x := graphtest.New(t, *Kind(), far(six, "to", "vxlan", "vni", "70000", "outer-vlan", "9", "dscp", "8", "mtu", "600"))
		for _, n := range []int{10, 1000} {
			f := frame(t, 80, n, true)
			p := gopacket.NewPacket(push(t, x, "a", "copy", f), layers.LayerTypeEthernet, gopacket.Default)
			v, ok := p.Layer(layers.LayerTypeVXLAN).(*layers.VXLAN)
			if !ok || v.VNI != 70000 || p.ErrorLayer() != nil && n == 10 {
				t.Fatalf("six %v: %v", six, p)
			}
			if tag, ok := p.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q); !ok || tag.VLANIdentifier != 9 {
				t.Errorf("outer tag: %v", tag)
			}
			want := f
			if n == 1000 {
				most := 600 - 20 - 16
				if six {
					most -= 20
				}
				want = f[:most]
			}
			if !bytes.Equal(v.Payload, want) {
				t.Errorf("six %v: %d bytes inside, want %d", six, len(v.Payload), len(want))
			}
		}
	}
}

func TestERSPAN(t *testing.T) {
	x := graphtest.New(t, *Kind(), far(false, "to", "erspan", "session", "1023", "mtu", "600"))
	for i, c := range []struct {
		in     string
		n      int
		tagged bool
	}{{"a", 10, false}, {"b", 10, true}, {"a", 1000, true}} {
		f := frame(t, 80, c.n, c.tagged)
		p := gopacket.NewPacket(push(t, x, c.in, "copy", f), layers.LayerTypeEthernet, gopacket.Default)
		g, ok := p.Layer(layers.LayerTypeGRE).(*layers.GRE)
		if !ok || g.Protocol != layers.EthernetTypeERSPAN || !g.SeqPresent || g.Seq != uint32(i) {
			t.Fatalf("%d: %v", i, p)
		}
		e, ok := p.Layer(layers.LayerTypeERSPANII).(*layers.ERSPANII)
		if !ok {
			t.Fatalf("%d: %v", i, p)
		}
		want := layers.ERSPANII{Version: 1, SessionID: 1023}
		if c.tagged {
			want.VLANIdentifier, want.CoS, want.TrunkEncap = 7, 5, 3
		}
		if c.in == "b" {
			want.Index = 1
		}
		inside := f
		if want.IsTruncated = c.n == 1000; want.IsTruncated {
			inside = f[:600-20-hdr.GRESeqLen-hdr.ERSPANLen]
		}
		want.BaseLayer = e.BaseLayer
		if !reflect.DeepEqual(*e, want) || !bytes.Equal(e.Payload, inside) {
			t.Errorf("%d: %+v, want %+v; %d bytes inside, want %d", i, e, want, len(e.Payload), len(inside))
		}
	}
}

// Frames that are cut anywhere are copied as they are.
func TestCutAnywhere(t *testing.T) {
	whole := frame(t, 80, 10, true)
	for name, args := range map[string]graph.Args{"frames": nil, "vxlan": far(true, "to", "vxlan"), "erspan": far(false, "to", "erspan")} {
		x := graphtest.New(t, *Kind(), args)
		for n := 1; n <= len(whole); n++ {
			if got := push(t, x, "a", "copy", whole[:n]); !bytes.HasSuffix(got, whole[:n]) {
				t.Fatalf("%s: of %d bytes %x", name, n, got)
			}
		}
	}
}

// A frame for whose copy there is no buffer goes on.
func TestNoBuffer(t *testing.T) {
	x := graphtest.NewSmall(t, *Kind(), nil)
	f := frame(t, 80, 10, false)
	frames := make([][]byte, 40) // of 64 buffers 40 are the frames'
	for i := range frames {
		frames[i] = f
	}
	got := x.Push("a", frames...)
	if len(got.Out["b"]) != 40 || len(got.Out["copy"]) != 24 {
		t.Errorf("%d frames, %d copies", len(got.Out["b"]), len(got.Out["copy"]))
	}
}

func TestArguments(t *testing.T) {
	for want, args := range map[string]graph.Args{
		"vni= is for":            {"vni": "1"},
		"local= is missing":      {"to": "vxlan"},
		"not of the same family": far(true, "to", "erspan", "remote", "10.0.0.1"),
		"snap=13":                {"snap": "13"},
		"session=1024":           far(false, "to", "erspan", "session", "1024"),
		"every=0":                {"every": "0"},
	} {
		if _, err := Kind().New(graph.Env{}, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	x := graphtest.New(t, *Kind(), far(false, "to", "erspan"))
	f := frame(t, 80, 10, false)
	push(t, x, "a", "copy", f)
	if err := x.App().(graph.Reconfigurer).Reconfigure(far(false, "to", "erspan", "session", "5")); err != nil {
		t.Fatal(err)
	}
	p := gopacket.NewPacket(push(t, x, "a", "copy", f), layers.LayerTypeEthernet, gopacket.Default)
	if g := p.Layer(layers.LayerTypeGRE).(*layers.GRE); g.Seq != 1 {
		t.Errorf("after a change of arguments the number is %d", g.Seq)
	}
}

func TestNothingAllocates(t *testing.T) {
	f := frame(t, 80, 100, true)
	for _, args := range []graph.Args{nil, {"match": "vlan:8"}, far(true, "to", "vxlan"), far(false, "to", "erspan", "snap", "100")} {
		if n := graphtest.Allocs(t, *Kind(), args, "a", f, f[:13]); n != 0 {
			t.Errorf("%v: %v allocations", args, n)
		}
	}
}

func BenchmarkMirror(b *testing.B) {
	for name, args := range map[string]graph.Args{"none": {"match": "none"}, "frames": nil, "vxlan": far(false, "to", "vxlan"), "erspan": far(false, "to", "erspan")} {
		b.Run(name, func(b *testing.B) { graphtest.Benchmark(b, *Kind(), args, "a", frame(b, 80, 100, false)) })
	}
}
