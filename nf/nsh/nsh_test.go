package nsh

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/packet"
)

func args(more ...string) graph.Args {
	a := graph.Args{}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

func enter(more ...string) graph.Args {
	return args(append([]string{"spi", "0x1234", "si", "2", "dst", "02:00:00:00:00:22", "src", "02:00:00:00:00:fe"}, more...)...)
}

func bytesOf(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func one(t *testing.T, x *graphtest.Test, in string, frame []byte, reason string) []byte {
	t.Helper()
	out := map[string]string{"a": "b", "b": "a"}[in]
	r := x.Push(in, frame)
	if len(r.Out[out]) != 1 || len(r.Dropped) != 0 || r.Out[out][0].Reason != reason {
		t.Fatalf("want one frame from %s, %s: %+v", out, reason, r)
	}
	return r.Out[out][0].Bytes
}

func dropped(t *testing.T, x *graphtest.Test, in string, frame []byte, reason string) {
	t.Helper()
	r := x.Push(in, frame)
	if len(r.Dropped) != 1 || r.Dropped[0].Reason != reason || len(r.Out["a"])+len(r.Out["b"]) != 0 {
		t.Fatalf("want a drop for %s: %+v", reason, r)
	}
}

// TestAsClassifier compares with what the P4 program's own test file says of it,
// frame by frame.
func TestAsClassifier(t *testing.T) {
	file, err := os.ReadFile("../../tests/p4/nt_classifier/chain.stf")
	if err != nil {
		t.Fatal(err)
	}
	var in, out [][]byte // by packet; out is nil without one
	for _, l := range strings.Split(string(file), "\n") {
		w := strings.Fields(strings.TrimSuffix(l, "$"))
		switch {
		case len(w) > 2 && w[0] == "packet":
			in, out = append(in, bytesOf(t, strings.Join(w[2:], ""))), append(out, nil)
		case len(w) > 2 && w[0] == "expect":
			out[len(out)-1] = bytesOf(t, strings.Join(w[2:], ""))
		}
	}
	if len(in) != 14 {
		t.Fatalf("%d packets in the file", len(in))
	}
	match := []string{"match", "dst:10.0.0.1+proto:17+dport:4791", "exit", "0x1234:255"}
	classifier := graphtest.New(t, *Kind(), enter(match...))
	first := graphtest.New(t, *Kind(), args("role", "task", "dst", "02:00:00:00:00:fe", "src", "02:00:00:00:00:fe"))
	next := graphtest.New(t, *Kind(), args("role", "forwarder", "dst", "02:00:00:00:00:33", "src", "02:00:00:00:00:fe"))
	same := func(what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, want\n%x", what, got, want)
		}
	}
	same("enter", one(t, classifier, "a", in[0], "entered"), out[0])
	// The first task lowers the index, and returns the frame to the classifier;
	// that the TTL is not its matter is what the file says, too.
	same("task", one(t, first, "b", out[0], "passed"), in[1])
	same("forward", one(t, next, "a", in[1], "passed"), out[1])
	same("metadata", one(t, next, "a", in[2], "passed"), out[2])
	same("leave", one(t, classifier, "b", in[3], "left"), out[3])
	same("leave", out[3], in[0])
	dropped(t, next, "a", in[4], "no-ttl")
	dropped(t, next, "a", in[5], "no-index")
	dropped(t, first, "a", in[5], "no-index")
	same("other path", one(t, classifier, "b", in[6], "other-path"), in[6])
	dropped(t, next, "a", in[7], "bad-header")
	dropped(t, graphtest.New(t, *Kind(), enter()), "b", setNext(in[8], 5), "next-protocol")
	for _, i := range []int{9, 10, 11, 12, 13} {
		same("other flow", one(t, classifier, "a", in[i], "unmatched"), in[i])
	}
}

func setNext(b []byte, p uint8) []byte {
	b = bytes.Clone(b)
	hdr.NSH(b[14:]).SetNextProtocol(p)
	return b
}

// frame is one of UDP or TCP, by gopacket.
func frame(t testing.TB, six, tcp bool, sport, dport uint16, payload int, vlans ...uint16) []byte {
	t.Helper()
	l := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}}}
	for _, v := range vlans {
		l = append(l, &layers.Dot1Q{VLANIdentifier: v})
	}
	if six {
		l = append(l, &layers.IPv6{HopLimit: 65, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")})
	} else {
		l = append(l, &layers.IPv4{TTL: 65, SrcIP: net.IP{192, 168, 0, 1}, DstIP: net.IP{192, 168, 0, 2}})
	}
	if tcp {
		l = append(l, &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), SYN: true, Window: 9})
	} else {
		l = append(l, &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)})
	}
	l = append(l, gopacket.Payload(bytes.Repeat([]byte{0xA5}, payload)))
	return hdrtest.Build(t, l...)
}

// TestBytes: into the path, through task and forwarder, and out again, byte for
// byte, and as tshark reads it.
func TestBytes(t *testing.T) {
	var all [][]byte
	want := ""
	for _, six := range []bool{false, true} {
		for tags := range 3 {
			for _, next := range []string{"ethernet", "ip"} {
				in := frame(t, six, false, 1, 2, 30, []uint16{100, 200}[:tags]...)
				x := graphtest.New(t, *Kind(), enter("next", next))
				on := one(t, x, "a", in, "entered")
				var expect []byte
				at, proto := 14, 3
				if next == "ethernet" {
					expect = append(bytesOf(t, "020000000022 0200000000fe 894f 0fc20203 00123402"), in...)
				} else {
					at, proto = 14+4*tags, 1
					if six {
						proto = 2
					}
					expect = append(bytesOf(t, "020000000022 0200000000fe"), in[12:at-2]...)
					expect = append(expect, bytesOf(t, fmt.Sprintf("894f 0fc202%02x 00123402", proto))...)
					expect = append(expect, in[at:]...)
				}
				if !bytes.Equal(on, expect) {
					t.Errorf("\n%x, want\n%x", on, expect)
				}
				y := graphtest.New(t, *Kind(), args("role", "forwarder"))
				z := graphtest.New(t, *Kind(), args("role", "task"))
				far := one(t, z, "b", one(t, y, "a", on, "passed"), "passed")
				expect[at+1] = 0x82 // TTL 62
				expect[at+7] = 1
				if !bytes.Equal(far, expect) {
					t.Errorf("\n%x, want\n%x", far, expect)
				}
				back := one(t, x, "b", far, "left")
				if next == "ip" {
					copy(back, in[:12]) // the addresses are those of the path
				}
				if !bytes.Equal(back, in) {
					t.Errorf("back\n%x, want\n%x", back, in)
				}
				all = append(all, on, far)
				want += fmt.Sprintf("4660\t2\t0x003f\t%d\t\n4660\t1\t0x003e\t%d\t\n", proto, proto)
			}
		}
	}
	tshark(t, all, want)
}

func tshark(t *testing.T, frames [][]byte, want string) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: its dissection is not compared")
	}
	name := filepath.Join(t.TempDir(), "frames.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(0xFFFF, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, b := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("tshark", "-r", name, "-o", "udp.check_checksum:TRUE", "-T", "fields", "-e", "nsh.spi", "-e", "nsh.si", "-e", "nsh.ttl", "-e", "nsh.nextproto", "-e", "_ws.expert.message", "-E", "occurrence=f")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || string(out) != want {
		t.Errorf("tshark: %v %s\n%s, want\n%s", err, stderr.String(), out, want)
	}
}

// Of metadata nothing is known but their length.
func TestMetadata(t *testing.T) {
	in := frame(t, false, false, 1, 2, 30)
	outer := "020000000001 020000000002 894f"
	x := graphtest.New(t, *Kind(), enter())
	for _, words := range []int{0, 1, 4, 61} {
		f := append(bytesOf(t, outer+fmt.Sprintf("0f%02x0203 00000709", 0xC0|2+words)+strings.Repeat("deadbeef", words)), in...)
		if got := one(t, x, "b", f, "left"); !bytes.Equal(got, in) {
			t.Errorf("%d words: %x", words, got)
		}
	}
	for reason, f := range map[string]string{
		"bad-md-type": "0fc50103 00000709" + strings.Repeat("00", 60), // type 1, 20 bytes
		"bad-header":  "4fc20203 00000709" + strings.Repeat("00", 60), // version 1
		"oam":         "2fc20203 00000709" + strings.Repeat("00", 60),
		"no-ttl":      "00420203 00000709" + strings.Repeat("00", 60),
		"no-index":    "0fc20203 00000700" + strings.Repeat("00", 60),
		"bad-inner":   "0fc20201 00000709" + strings.Repeat("00", 60), // IPv4 of version 0
	} {
		dropped(t, x, "b", bytesOf(t, outer+f), reason)
	}
	for _, cut := range []string{"0fc20203 000007", "0fff0203 00000709 00"} {
		dropped(t, x, "b", bytesOf(t, outer+cut), "bad-header")
	}
	for _, f := range []string{"0fc20000 00000709", "0fc20f03 00000709"} { // MD types 0, 15
		dropped(t, x, "b", bytesOf(t, outer+f), "bad-md-type")
	}
	for _, f := range []string{"0fc20203 00000709 020000000001", "0fc20202 00000709 60"} {
		dropped(t, x, "b", bytesOf(t, outer+f), "bad-inner")
	}
	y := graphtest.New(t, *Kind(), args("role", "task", "oam", "pass"))
	one(t, y, "a", bytesOf(t, outer+"2fc20203 00000709"), "passed")
	one(t, y, "a", bytesOf(t, outer+"00420203 00000709"), "passed") // the TTL is not a task's matter
	// A TTL of 0 is one of 64.
	z := graphtest.New(t, *Kind(), args("role", "forwarder"))
	if got := one(t, z, "a", bytesOf(t, outer+"00020203 00000709"), "passed"); hdr.NSH(got[14:]).TTL() != 63 {
		t.Errorf("%x", got)
	}
	one(t, z, "b", in, "no-nsh")
	one(t, z, "b", in[:13], "short")
	one(t, x, "a", bytesOf(t, outer+"0fc20203 00000709"), "on-path")
	one(t, graphtest.New(t, *Kind(), enter("next", "ip")), "a", append(bytesOf(t, "020000000001 020000000002 0806"), make([]byte, 46)...), "not-ip")
}

func TestMTU(t *testing.T) {
	for next, most := range map[string]int{"ethernet": 1500 - 22 - 28, "ip": 1500 - 8 - 28} {
		for _, tags := range [][]uint16{nil, {5}} {
			n := most
			if next == "ethernet" {
				n -= 4 * len(tags)
			}
			x := graphtest.New(t, *Kind(), enter("next", next))
			one(t, x, "a", frame(t, false, false, 1, 2, n, tags...), "entered")
			dropped(t, x, "a", frame(t, false, false, 1, 2, n+1, tags...), "too-big")
		}
	}
}

func TestArgs(t *testing.T) {
	for want, a := range map[string]graph.Args{
		"spi= is missing":           args(),
		"dst= and src=":             args("spi", "1"),
		"spi=16777216":              enter("spi", "16777216"),
		"si=0":                      enter("si", "0"),
		"ttl=64":                    enter("ttl", "64"),
		"role=boss":                 args("role", "boss"),
		"spi= is for role=edge":     args("role", "task", "spi", "1"),
		"mss= is for role=edge":     args("role", "task", "mss", "auto"),
		"mss=87":                    enter("mss", "87"),
		"want a MAC":                enter("dst", "here"),
		"exit=x":                    enter("exit", "x"),
		"exit=1:256":                enter("exit", "1:256"),
		"want all, none":            enter("match", "port:1"),
		"it is there twice":         enter("match", "proto:1+proto:2"),
		"ends before it begins":     enter("match", "dport:2-1"),
		"without bits behind it":    enter("match", "dst:10.0.0.1/8"),
		"want a number of 12 bits":  enter("match", "vlan:4096"),
		"no argument \"colour\"":    enter("colour", "red"),
		"next=udp: want ethernet o": enter("next", "udp"),
	} {
		if _, err := parseArgs(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", a, err, want)
		}
	}
	if _, err := parseArgs(args("match", "none")); err != nil {
		t.Error(err)
	}
	x := graphtest.New(t, *Kind(), enter("match", "none", "exit", "7"))
	f := frame(t, false, false, 1, 2, 8)
	one(t, x, "a", f, "unmatched")
	if err := x.Set(graph.Args{"match": "all"}); err != nil {
		t.Fatal(err)
	}
	one(t, x, "b", one(t, x, "a", f, "entered"), "other-path")
	if d := describe(nil, traceLeft, [4]uint64{5, 6}); d != "leaves path 5, index 6" {
		t.Error(d)
	}
}

func TestNothingAllocates(t *testing.T) {
	in := frame(t, true, false, 1, 2, 30, 100)
	for _, next := range []string{"ethernet", "ip"} {
		a := enter("next", next, "match", "dst:fd00::/16+dport:2")
		on := one(t, graphtest.New(t, *Kind(), a), "a", in, "entered")
		bad := bytes.Clone(on)
		bad[len(bad)-len(in)+10]++
		if n := graphtest.Allocs(t, *Kind(), a, "a", in, in[:13], frame(t, false, false, 1, 2, 8)); n != 0 {
			t.Errorf("%v allocations into the path", n)
		}
		if n := graphtest.Allocs(t, *Kind(), a, "b", on, bad, in); n != 0 {
			t.Errorf("%v allocations out of the path", n)
		}
		if n := graphtest.Allocs(t, *Kind(), args("role", "task"), "b", on, bad, in); n != 0 {
			t.Errorf("%v allocations on the path", n)
		}
	}
}

// FuzzPath sends any frame into a path, along it, and out again, and any frame
// to what is on it.
func FuzzPath(f *testing.F) {
	for tags := range 3 {
		f.Add(frame(f, false, false, 1, 2, 20, []uint16{1, 2}[:tags]...), false)
		f.Add(frame(f, true, true, 1, 2, 20, []uint16{1, 2}[:tags]...), true)
	}
	f.Add(bytesOf(f, "0200000000fe 0200000000fe 894f 0fc60103 00123401 000102030405060708090a0b0c0d0e0f 020000000009 020000000001 0800 4500"), false)
	f.Fuzz(func(t *testing.T, b []byte, ip bool) {
		if len(b) > 2000 {
			return
		}
		next := map[bool]string{false: "ethernet", true: "ip"}[ip]
		x := graphtest.New(t, *Kind(), enter("next", next, "mtu", "2100"))
		roles := []*graphtest.Test{graphtest.New(t, *Kind(), args("role", "task")), graphtest.New(t, *Kind(), args("role", "forwarder"))}
		for _, y := range append(roles, x) {
			for _, got := range y.Push("b", b).Out["a"] {
				if got.Verdict == packet.Forwarded && !bytes.Equal(got.Bytes, b) || y != x && len(got.Bytes) != len(b) || len(got.Bytes) > len(b) {
					t.Fatalf("%x became %+v", b, got)
				}
			}
		}
		r := x.Push("a", b)
		if len(r.Out["b"]) != 1 {
			t.Fatalf("%+v", r)
		}
		on := r.Out["b"][0]
		if on.Verdict == packet.Forwarded {
			if !bytes.Equal(on.Bytes, b) {
				t.Fatalf("%x became %+v", b, on)
			}
			return
		}
		if grown := len(on.Bytes) - len(b); grown != 22 && !ip || grown != 8 && ip {
			t.Fatalf("%d bytes more", grown)
		}
		frame := on.Bytes
		for _, y := range roles {
			frame = y.Push("a", frame).Out["b"][0].Bytes
		}
		back := x.Push("b", frame).Out["a"]
		if len(back) != 1 {
			t.Fatalf("%x is lost", frame)
		}
		if ip {
			copy(back[0].Bytes, b[:12])
		}
		if !bytes.Equal(back[0].Bytes, b) {
			t.Fatalf("%x came back as %x", b, back[0].Bytes)
		}
	})
}

func benchmark(b *testing.B, in string, a graph.Args, f func(p uint16) []byte) {
	var frames [][]byte
	for p := range packet.MaxBatch {
		frames = append(frames, f(uint16(p)))
	}
	graphtest.Benchmark(b, *Kind(), a, in, frames...)
}

func plainFrame(b *testing.B) func(p uint16) []byte {
	return func(p uint16) []byte { return frame(b, false, false, p, 80, 22) }
}

func pathFrame(b *testing.B) func(p uint16) []byte {
	return func(p uint16) []byte {
		return append(bytesOf(b, "020000000022 0200000000fe 894f 0fc20203 00123402"), frame(b, false, false, p, 80, 22)...)
	}
}

func BenchmarkEnter(b *testing.B) {
	benchmark(b, "a", enter("match", "dst:192.168.0.0/16+proto:17+dport:80"), plainFrame(b))
}
func BenchmarkLeave(b *testing.B) { benchmark(b, "b", enter(), pathFrame(b)) }
func BenchmarkTask(b *testing.B)  { benchmark(b, "b", args("role", "task"), pathFrame(b)) }
