package gobackn

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/clio"
)

var (
	client = clio.End{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: [4]byte{192, 168, 1, 1}, Port: 8001}
	device = clio.End{MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: [4]byte{192, 168, 1, 2}, Port: clio.Port}
)

// frame is a frame between the two, plain when typ is 0; tags are VLAN tags.
func frame(src, dst clio.End, op clio.Opcode, typ uint8, seq uint32, from, to uint16, value string, tags int) []byte {
	n := clio.LegoLen + clio.RequestLen + len(value)
	if op.IsAnswer() {
		n += clio.AnswerLen - clio.RequestLen
	}
	if op.OfSessions() {
		n = clio.LegoLen + clio.SessionLen
	}
	if typ != 0 {
		n += clio.GBNLen
	}
	if typ == clio.ACK || typ == clio.NACK {
		n = clio.GBNLen
	}
	b := make([]byte, clio.HeadersLen+n)
	clio.Headers(b, &src, &dst, n)
	f := clio.Plain(typ != 0)
	if typ != 0 {
		clio.GBN(b[f.GBN:]).Encode(typ, seq, from, to)
	}
	if typ == 0 || typ == clio.DATA {
		clio.Lego(b[f.Lego:]).Encode(&clio.Fields{PID: 7, ID: 9, Opcode: op, Size: uint16(len(b) - f.Lego)})
		switch {
		case op.OfSessions():
			clio.SetSession(b[f.Op:], uint32(from))
			clio.GBN(b[f.GBN:]).Encode(typ, 0, 0, 0)
		case op.IsAnswer():
			clio.Answer(b[f.Op:]).Encode(8, uint16(len(value)))
		default:
			clio.Request(b[f.Op:]).Encode(5, 8, uint16(len(value)))
		}
		copy(b[len(b)-len(value):], value)
	}
	f.Seal(b, len(b), true)
	for range tags {
		b = slices.Insert(b, 12, 0x81, 0, 0, 42)
	}
	return b
}

func open(x *graphtest.Test, t *testing.T, tags int) {
	t.Helper()
	got := x.Push("b", frame(client, device, clio.OpenSession, clio.DATA, 0, 3, 0, "", tags)).Out["b"]
	if len(got) != 1 || got[0].Reason != "opened" {
		t.Fatalf("%v", got)
	}
	var f clio.Frame
	p := got[0].Bytes
	if clio.Parse(p, true, &f) != clio.Message || clio.Session(p[f.Op:]) != 1 || !f.Sound(p) || f.Dst(p) != client {
		t.Fatalf("%x", p)
	}
}

// Byte for byte: a request in, its answer out, with VLAN tags and without.
func TestGolden(t *testing.T) {
	for tags := range 3 {
		x := graphtest.New(t, *Kind(), nil)
		open(x, t, tags)
		got := x.Push("b", frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", tags)).Out["a"]
		if want := frame(client, device, clio.Update, 0, 0, 0, 0, "value", tags); len(got) != 1 || !bytes.Equal(got[0].Bytes, want) || got[0].Reason != "delivered" {
			t.Fatalf("%d tags: got\n%v, want\n%x", tags, got, want)
		}
		got = x.Push("a", frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, "value", tags)).Out["b"]
		want := frame(device, client, clio.Read.Answer(), clio.DATA, 1, 1, 3, "value", tags)
		if len(got) != 1 || !bytes.Equal(got[0].Bytes, want) || got[0].Reason != "sent" {
			t.Fatalf("%d tags: got\n%v, want\n%x", tags, got, want)
		}
		// After the delay an ACK; after the timeout the answer again.
		got = x.Advance(time.Millisecond).Out["b"]
		if ack := frame(device, client, 0, clio.ACK, 1, 1, 3, "", tags); len(got) != 1 || !bytes.Equal(got[0].Bytes, ack) {
			t.Fatalf("%d tags: got\n%v, want\n%x", tags, got, ack)
		}
		got = x.Advance(4 * time.Millisecond).Out["b"]
		if len(got) != 1 || !bytes.Equal(got[0].Bytes, want) {
			t.Fatalf("%d tags: sent again: %v", tags, got)
		}
		if x.Inst.Held() != 1 {
			t.Errorf("%d held", x.Inst.Held())
		}
		if x.Push("b", frame(client, device, 0, clio.ACK, 1, 3, 1, "", tags)); x.Inst.Held() != 0 || x.Counter("ack") != 1 {
			t.Errorf("%d held after an ACK", x.Inst.Held())
		}
		// One ahead, one behind.
		got = x.Push("b", frame(client, device, clio.Read, clio.DATA, 5, 3, 1, "", tags), frame(client, device, clio.Read, clio.DATA, 1, 3, 1, "", tags)).Out["b"]
		if len(got) != 2 || !bytes.Equal(got[0].Bytes, frame(device, client, 0, clio.NACK, 1, 1, 3, "", tags)) || !bytes.Equal(got[1].Bytes, frame(device, client, 0, clio.ACK, 1, 1, 3, "", tags)) {
			t.Fatalf("%d tags: %v", tags, got)
		}
	}
}

func TestPasses(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"devices": "b"})
	other := frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0)
	hdr.UDP(other[34:]).SetDstPort(99)
	fragment := frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0)
	fragment[20] = 0x20
	for in, out := range map[string]string{"a": "b", "b": "a"} {
		for _, f := range [][]byte{other, fragment, {1, 2, 3}} {
			if got := x.Push(in, f).Out[out]; len(got) != 1 || !bytes.Equal(got[0].Bytes, f) {
				t.Errorf("%s: %v", in, got)
			}
		}
	}
	damaged := frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0)
	damaged[len(damaged)-1] ^= 4
	stranger := frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0)
	big := frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, strings.Repeat("x", 1500-20-8-16-4), 0)
	for _, c := range []struct {
		in    string
		frame []byte
		want  string
	}{{"a", damaged, "damaged"}, {"a", stranger, "no-session"}, {"b", big, "too-big"}} {
		if got := x.Push(c.in, c.frame); len(got.Dropped) != 1 || got.Dropped[0].Reason != c.want {
			t.Errorf("%s: %v", c.want, got)
		}
	}
	y := graphtest.New(t, *Kind(), graph.Args{"serve": "192.168.1.9+192.168.1.2"})
	open(y, t, 0)
	y = graphtest.New(t, *Kind(), graph.Args{"serve": "192.168.1.9"})
	if got := y.Push("b", stranger).Out["a"]; len(got) != 1 || got[0].Reason != "not-clio" {
		t.Errorf("%v", got)
	}
	// A device's frame of no session goes as one of session 0, and back.
	plain := frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, "value", 0)
	if got := x.Push("b", plain).Out["a"]; len(got) != 1 || !bytes.Equal(got[0].Bytes, frame(device, client, clio.Read.Answer(), clio.DATA, 0, 0, 0, "value", 0)) {
		t.Errorf("%v", got)
	}
}

func TestArguments(t *testing.T) {
	k := Kind()
	for _, a := range []graph.Args{{"window": "100"}, {"window": "0"}, {"devices": "c"}, {"sessions": "1024"}, {"timeout": "0s"}, {"ack-every": "129"}, {"ack-delay": "5ms"}, {"x": "1"}, {"mtu": "20"}, {"tick": "1s"}, {"serve": "x"}, {"serve": "::1"}, {"per-client": "0"}} {
		if _, err := k.New(graph.Env{Workers: 1}, a); err == nil {
			t.Errorf("%v is taken", a)
		}
	}
	if _, err := k.New(graph.Env{Workers: 1}, graph.Args{"window": "16", "hold": "100", "idle": "1s"}); err != nil {
		t.Error(err)
	}
}

func FuzzPush(f *testing.F) {
	f.Add(frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0), true)
	f.Add(frame(client, device, 0, clio.NACK, 1, 3, 1, "", 1), true)
	f.Add(frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, "value", 2), false)
	f.Fuzz(func(t *testing.T, p []byte, network bool) {
		if len(p) > 2000 {
			return
		}
		x := graphtest.NewSmall(t, *Kind(), graph.Args{"sessions": "4", "window": "16"})
		open(x, t, 0)
		in := "a"
		if network {
			in = "b"
		}
		var fr clio.Frame
		if k := clio.Parse(p, network, &fr); k >= clio.Control {
			p = p[:fr.Stop]
			fr.Seal(p, fr.Stop, true)
		}
		r := x.Push(in, p)
		if n := len(r.Out["a"]) + len(r.Out["b"]) + len(r.Dropped); n != 1 {
			t.Fatalf("%d frames", n)
		}
		for side, reliable := range map[string]bool{"a": false, "b": true} {
			for _, o := range r.Out[side] {
				if strings.HasPrefix(o.Reason, "not-") || strings.HasPrefix(o.Reason, "malformed") || o.Reason == "fragment" {
					continue
				}
				if k := clio.Parse(o.Bytes, reliable, &fr); k < clio.Control || !fr.Sound(o.Bytes) {
					t.Fatalf("%s left %x", o.Reason, o.Bytes)
				}
			}
		}
	})
}

func TestAllocs(t *testing.T) {
	for in, f := range map[string][]byte{"a": frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, "value", 0), "b": frame(client, device, clio.Update, clio.DATA, 9, 3, 1, "value", 0)} {
		if n := graphtest.Allocs(t, *Kind(), nil, in, f); n != 0 {
			t.Errorf("%s: %v allocations", in, n)
		}
	}
}

func BenchmarkStrangers(b *testing.B) {
	graphtest.Benchmark(b, *Kind(), nil, "b", frame(client, device, clio.Update, clio.DATA, 9, 3, 1, strings.Repeat("x", 1024), 0))
}

// The same addresses in another VLAN are other machines: neither can close, or
// write into, the other's session.
func TestVLANs(t *testing.T) {
	for _, tags := range []int{1, 2} {
		testVLANs(t, tags)
	}
}

func testVLANs(t *testing.T, tags int) {
	in := func(vid byte, p []byte) []byte {
		p[11+4*tags] = vid // the innermost tag's
		return p
	}
	x := graphtest.New(t, *Kind(), nil)
	for vid := byte(1); vid <= 2; vid++ {
		got := x.Push("b", in(vid, frame(client, device, clio.OpenSession, clio.DATA, 0, 3, 0, "", tags))).Out["b"]
		var f clio.Frame
		if len(got) != 1 || clio.Parse(got[0].Bytes, true, &f) != clio.Message || clio.Session(got[0].Bytes[f.Op:]) != uint32(vid) {
			t.Fatalf("VLAN %d: %v", vid, got)
		}
	}
	if got := x.Push("b", in(2, frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "x", tags))); len(got.Dropped) != 1 || got.Dropped[0].Reason != "no-session" {
		t.Errorf("into another's session: %v", got)
	}
	for vid := byte(1); vid <= 2; vid++ {
		want := in(vid, frame(device, client, clio.Read.Answer(), clio.DATA, 1, uint16(vid), 3, "value", tags))
		if got := x.Push("a", in(vid, frame(device, client, clio.Read.Answer(), 0, 0, 0, 0, "value", tags))).Out["b"]; len(got) != 1 || !bytes.Equal(got[0].Bytes, want) {
			t.Errorf("VLAN %d: %v", vid, got)
		}
	}
}

// It sleeps when it waits for nothing.
func TestSleeps(t *testing.T) {
	x := graphtest.New(t, *Kind(), nil)
	open(x, t, 0)
	x.Advance(time.Millisecond)
	if at := x.Inst.NextTick(); at != clock.Never {
		t.Errorf("wakes at %d", at)
	}
	x.Push("b", frame(client, device, clio.Update, clio.DATA, 1, 3, 1, "value", 0))
	if at, want := x.Inst.NextTick(), x.Clock.Now().Add(100*time.Microsecond); at != want {
		t.Errorf("wakes at %d, want %d: an ACK is due", at, want)
	}
	if got := x.Advance(time.Millisecond).Out["b"]; len(got) != 1 || x.Inst.NextTick() != clock.Never {
		t.Errorf("%v", got)
	}
}

// Two workers have frames of one session: what one delivers goes ahead of what the other does, and frames that are kept
// go back to whose they are.
func TestTwoWorkers(t *testing.T) {
	x := graphtest.NewGang(t, *Kind(), 2, graph.Args{"window": "1", "ack-every": "1", "tick": "10us"})
	data := func(seq uint32) [][]byte {
		return [][]byte{frame(client, device, clio.Update, clio.DATA, seq, 3, 1, "value", 0)}
	}
	took := func(port, want int) {
		t.Helper()
		if got := x.Took(port); len(got) != want {
			t.Fatalf("%d frames leave, want %d: %x", len(got), want, got)
		}
	}
	x.Push(0, 1, [][]byte{frame(client, device, clio.OpenSession, clio.DATA, 0, 3, 0, "", 0)})
	took(1, 1)
	x.Push(0, 1, data(1))
	took(0, 1)
	x.Push(1, 1, data(2)) // the first may not have left yet
	took(0, 0)
	x.Now = x.Now.Add(20 * time.Microsecond)
	x.Push(0, 1, nil) // a breath without frames: now it has
	x.Push(1, 1, data(2))
	took(0, 1)
	x.Took(1) // ACKs
	// Answers by the first worker; their ACK by the second, which sends the one that waited.
	answer := frame(device, client, clio.Update.Answer(), 0, 0, 0, 0, "", 0)
	x.Push(0, 0, [][]byte{answer, answer})
	took(1, 1)
	x.Push(1, 1, [][]byte{frame(client, device, 0, clio.ACK, 1, 3, 1, "", 0)})
	took(1, 1)
	if n := x.Inst.Held(); n != 3 { // the second's copy, and two that go back to the first
		t.Errorf("%d frames are held", n)
	}
	x.Now = x.Now.Add(20 * time.Microsecond)
	x.Push(0, 1, nil)
	if n := x.Inst.Held(); n != 1 {
		t.Errorf("%d frames are held", n)
	}
	count := x.Close()
	if count["elsewhere"] != 1 || count["moved"] != 1 || count["delivered"] != 2 || count["sessions"] != 1 || count["kept"] != 1 {
		t.Errorf("%v", count)
	}
}

// BenchmarkWorkers: acknowledgements of nothing, the shortest way through a session, by one worker and by two.
func BenchmarkWorkers(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(string(rune('0'+workers)), func(b *testing.B) {
			x := graphtest.NewGang(b, *Kind(), workers, nil)
			x.Push(0, 1, [][]byte{frame(client, device, clio.OpenSession, clio.DATA, 0, 3, 0, "", 0)})
			stale := frame(client, device, 0, clio.ACK, 9, 3, 1, "", 0)
			x.Benchmark(b, 1, slices.Repeat([][]byte{stale}, 64))
		})
	}
}
