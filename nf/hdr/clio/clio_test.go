package clio

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/hdr"
)

var (
	client = End{[6]byte{2, 0, 0, 0, 0, 1}, [4]byte{192, 168, 1, 1}, 8001}
	device = End{[6]byte{2, 0, 0, 0, 0, 2}, [4]byte{192, 168, 1, 2}, Port}
)

// update is a request to change key 0x0807060504030201 to "value", as session 3
// of the client, 7 of the device, and frame 0x11223344 of it.
func update(reliable, summed bool) []byte {
	n := LegoLen + RequestLen + 5
	if reliable {
		n += GBNLen
	}
	b := make([]byte, HeadersLen+n)
	Headers(b, &client, &device, n)
	f := Plain(reliable)
	if reliable {
		GBN(b[f.GBN:]).Encode(DATA, 0x11223344, 3, 7)
	}
	Lego(b[f.Lego:]).Encode(&Fields{PID: 0x1234, ID: 0xABCD, Opcode: Update, Replicate: true, Size: uint16(len(b) - f.Lego)})
	Request(b[f.Op:]).Encode(0x0807060504030201, 8, 5)
	copy(b[f.Op+RequestLen:], "value")
	f.Seal(b, len(b), summed)
	return b
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The bytes, by hand: little-endian from the go-back-N header on.
func TestGolden(t *testing.T) {
	want := unhex(t, `
		020000000002 020000000001 0800
		45 00 0045 0000 4000 40 11 b754 c0a80101 c0a80102
		1f41 04d2 0031 0000
		03 44332211 031c00
		3412 ab 64 20 cd 2100 0000 00 00 00000000
		00 08 0500 0102030405060708
		76616c7565`)
	if got := update(true, false); !bytes.Equal(got, want) {
		t.Errorf("got\n%x, want\n%x", got, want)
	}
	if got := update(false, false); !bytes.Equal(got[HeadersLen:], want[HeadersLen+GBNLen:]) {
		t.Errorf("got\n%x", got)
	}
	ack := make([]byte, GBNLen)
	GBN(ack).Encode(ACK, 1, 1023, 1023)
	if want := unhex(t, "01 01000000 ffff0f"); !bytes.Equal(ack, want) {
		t.Errorf("got %x, want %x", ack, want)
	}
	if g := GBN(ack); g.Src() != 1023 || g.Dst() != 1023 || g.Seq() != 1 {
		t.Error("an ACK is not read back")
	}
}

func TestParse(t *testing.T) {
	for _, reliable := range []bool{false, true} {
		b := update(reliable, true)
		var f Frame
		if k := Parse(b, reliable, &f); k != Message {
			t.Fatalf("kind %d", k)
		}
		h, q := Lego(b[f.Lego:]), Request(b[f.Op:])
		if h.Opcode() != Update || h.ID() != 0xABCD || h.PID() != 0x1234 || !h.Replicate() || h.Route() || h.Status() != OK {
			t.Errorf("%x", h[:LegoLen])
		}
		if q.Key() != 0x0807060504030201 || q.KeySize() != 8 || string(b[f.Data:f.Stop]) != "value" || !f.Sound(b) || !f.Summed(b) {
			t.Errorf("%x", q)
		}
		if f.Src(b) != client || f.Dst(b) != device {
			t.Error("ends")
		}
		q[1] = 3
		if q.Key() != 0x030201 {
			t.Errorf("a key of 3 bytes is %#x", q.Key())
		}
		if f.Sound(b) {
			t.Error("a damaged frame is sound")
		}
		f.Swap(b)
		if f.Src(b) != device || f.Dst(b) != client {
			t.Error("swapped ends")
		}
	}
	if Update.Answer() != 0x65 || !Update.Answer().IsAnswer() || Update.Answer().Request() != Update || !Delete.Writes() || Read.Writes() || Update.Answer().Writes() {
		t.Error("opcodes")
	}
}

func TestWrap(t *testing.T) {
	plain, reliable := update(false, true), update(true, true)
	var f Frame
	Parse(plain, false, &f)
	b := append(make([]byte, GBNLen), plain...)
	f.Wrap(b)
	GBN(b[f.GBN:]).Encode(DATA, 0x11223344, 3, 7)
	f.Seal(b, f.Stop, true)
	if !bytes.Equal(b, reliable) {
		t.Errorf("wrapped\n%x, want\n%x", b, reliable)
	}
	Parse(b, true, &f)
	f.Unwrap(b)
	f.Seal(b[GBNLen:], f.Stop, true)
	if !bytes.Equal(b[GBNLen:], plain) {
		t.Errorf("unwrapped\n%x, want\n%x", b[GBNLen:], plain)
	}
}

func TestRefused(t *testing.T) {
	var f Frame
	for _, c := range []struct {
		name string
		make func(b []byte) []byte
		want Kind
	}{
		{"another port", func(b []byte) []byte { b[37]++; return b }, NotClio},
		{"a fragment", func(b []byte) []byte { b[20] = 0x20; return b }, Fragment},
		{"TCP", func(b []byte) []byte { b[23] = 6; return b }, NotClio},
		{"IPv6", func(b []byte) []byte { b[12], b[13] = 0x86, 0xDD; return b }, NotClio},
		{"a short datagram", func(b []byte) []byte { b[39] = 12; return b }, Malformed},
		{"a long datagram", func(b []byte) []byte { b[39]++; return b }, Malformed},
		{"a wrong size", func(b []byte) []byte { b[56]--; return b }, Malformed},
		{"a wrong value size", func(b []byte) []byte { b[68]--; return b }, Malformed},
		{"a key of none", func(b []byte) []byte { b[67] = 0; return b }, Malformed},
		{"a key of 9 bytes", func(b []byte) []byte { b[67] = 9; return b }, Malformed},
		{"a type 7", func(b []byte) []byte { b[42] = 7; return b }, Malformed},
		{"an ACK", func(b []byte) []byte { b[42] = ACK; return b }, Control},
		{"a plain WRITE", func(b []byte) []byte { b[53] = 0x50; return b }, Other},
		{"nothing", func([]byte) []byte { return nil }, NotClio},
	} {
		b := c.make(update(true, false))
		if k := Parse(b, true, &f); k != c.want {
			t.Errorf("%s: kind %d, want %d", c.name, k, c.want)
		}
	}
}

// On the way between clients and devices a request and an answer have one side each
// that they come from, and one port that is a device's.
func TestParseKeys(t *testing.T) {
	var f Frame
	for _, c := range []struct {
		name     string
		make     func(b []byte)
		request  Kind // from a client's side
		answered Kind // from a device's
	}{
		{"a request", func([]byte) {}, Message, Other},
		{"an answer", func(b []byte) { f.Answer(b, OK, nil) }, Other, Message},
		{"an answer to a device", func(b []byte) { f.Answer(b, OK, nil); f.Swap(b) }, Other, Other},
		{"a request from a device", func(b []byte) { f.Swap(b) }, Other, Other},
		{"of a session", func(b []byte) { Lego(b[f.Lego:]).SetOpcode(OpenSession) }, Other, Other},
		{"a plain WRITE", func(b []byte) { Lego(b[f.Lego:]).SetOpcode(0x50) }, Other, Other},
		{"a wrong size", func(b []byte) { Lego(b[f.Lego:]).SetSize(3) }, Malformed, Malformed},
		{"a fragment", func(b []byte) { b[20] = 0x20 }, Fragment, Fragment},
		{"another port", func(b []byte) { b[37]++ }, NotClio, NotClio},
	} {
		b := update(false, true)
		Parse(b, false, &f)
		b = b[:f.AnswerEnd(0)+RequestLen-AnswerLen]
		Request(b[f.Op:]).Encode(7, 8, 0)
		Lego(b[f.Lego:]).SetSize(uint16(len(b) - f.Lego))
		f.Seal(b, len(b), true)
		c.make(b)
		for _, answers := range []bool{false, true} {
			want := c.request
			if answers {
				want = c.answered
			}
			if k := ParseKeys(b, answers, &f); k != want {
				t.Errorf("%s, answers %v: kind %d, want %d", c.name, answers, k, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(update(true, true), true)
	f.Add(update(false, false), false)
	tagged := update(false, true)
	f.Add(append(append(append([]byte{}, tagged[:12]...), 0x81, 0, 0, 7), tagged[12:]...), false)
	f.Fuzz(func(t *testing.T, b []byte, reliable bool) {
		var p Frame
		k := Parse(b, reliable, &p)
		if k != Message && k != Control {
			return
		}
		if p.Stop > len(b) || p.End > len(b) {
			t.Fatalf("the end %d is outside %d bytes", p.Stop, len(b))
		}
		if k == Control || reliable {
			_ = GBN(b[p.GBN:p.Stop]).Seq()
		}
		if k == Message && p.Data > p.Stop {
			t.Fatalf("data at %d, the end at %d", p.Data, p.Stop)
		}
		// Sealed, it is sound, and another decoder finds the same checksums.
		b = b[:p.Stop]
		p.Seal(b, p.Stop, true)
		if !p.Sound(b) {
			t.Fatal("sealed and not sound")
		}
		var again Frame
		if got := Parse(b, reliable, &again); got != k || again != p {
			t.Fatalf("%v became %v", p, again)
		}
		g := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		ip, ok1 := g.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		u, ok2 := g.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok1 || !ok2 {
			return // gopacket knows two VLAN tags of other kinds
		}
		ip.Options = nil
		if u.SetNetworkLayerForChecksum(ip) == nil && hdr.IPv4(b[p.L3:]).HeaderLen() == hdr.IPv4Len {
			out := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}, u, gopacket.Payload(u.Payload)); err == nil {
				want := hdr.UDP(out.Bytes()).Checksum()
				if got := hdr.UDP(b[p.L4:]).Checksum(); got != want && !(want == 0 && got == 0xFFFF) {
					t.Fatalf("checksum %#x, want %#x", got, want)
				}
			}
		}
	})
}

func TestAllocs(t *testing.T) {
	b := update(true, true)
	var f Frame
	if n := testing.AllocsPerRun(100, func() {
		Parse(b, true, &f)
		f.Seal(b, f.Stop, f.Sound(b))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	p := update(true, true)
	var f Frame
	for b.Loop() {
		Parse(p, true, &f)
	}
}
