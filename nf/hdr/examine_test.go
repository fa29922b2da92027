package hdr_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

// TestExamine: Examine finds what Parse, ChecksumOK and GoodICRC find one by one, whatever was changed in
// a frame and wherever it was cut; and a frame is Plain just when it is RoCE over IPv4 with all in its usual place.
func TestExamine(t *testing.T) {
	var frames [][]byte
	for _, id := range []string{"V01", "V05", "V07", "V20", "V30", "V40", "V42", "V50", "V51", "V52"} {
		b, _ := frameOf(t, id)
		tagged := append(append(bytes.Clone(b[:12]), 0x81, 0x00, 0x00, 0x64), b[12:]...)
		frames = append(frames, b, tagged, append(bytes.Clone(b), 0, 0, 0), bytes.Repeat(b, 40))
	}
	b, _ := frameOf(t, "V05")
	for at, want := range map[int]hdr.Flaw{hdr.EthernetLen + 4: hdr.BadChecksum, hdr.PlainBTH + 9: hdr.BadICRC, 0: hdr.NoFlaw} {
		x, f := bytes.Clone(b), hdr.Frame{}
		x[at] ^= 1
		if got := hdr.Examine(x, &f); got != want || !f.Plain {
			t.Errorf("byte %d changed: flaw %d of %+v, want %d", at, got, f, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(rapid.SampledFrom(frames).Draw(t, "frame"))
		b = b[:len(b)-rapid.SampledFrom([]int{0, 0, 0, 1, 4, len(b) / 2}).Draw(t, "cut")]
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			at := rapid.OneOf(rapid.IntRange(0, len(b)-1), rapid.IntRange(0, min(len(b)-1, 60))).Draw(t, "at")
			b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		var f, g hdr.Frame
		want := hdr.NoFlaw
		switch why := hdr.Parse(b, &f); {
		case why != hdr.IsRoCE:
		case !f.ChecksumOK(b):
			want = hdr.BadChecksum
		case !hdr.GoodICRC(b, &f):
			want = hdr.BadICRC
		}
		if got := hdr.Examine(b, &g); got != want || f != g {
			t.Fatalf("%x: flaw %d of %+v, want %d of %+v", b, got, g, want, f)
		}
		usual := f.Why == hdr.IsRoCE && f.Net == hdr.NetIPv4 && f.L3 == hdr.EthernetLen && f.BTH == hdr.PlainBTH
		if f.Plain != usual {
			t.Fatalf("%x: %+v", b, f)
		}
	})
}

// TestExamineLengths: whatever the length of a frame, Examine takes its ICRC for right, and takes one for wrong
// after any bit has changed that it covers, and no other.
func TestExamineLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	write, _ := frameOf(t, "V01")
	ack, _ := frameOf(t, "V07")
	for n := range 5000 {
		b := append(bytes.Clone(write[:70]), make([]byte, n&^3+hdr.ICRCLen)...)
		if n == 1 {
			b = bytes.Clone(ack)
		}
		for i := range b[70:] {
			b[70+i] = byte(rnd.Uint32())
		}
		binary.BigEndian.PutUint16(b[hdr.EthernetLen+2:], uint16(len(b)-hdr.EthernetLen))
		binary.BigEndian.PutUint16(b[hdr.EthernetLen+hdr.IPv4Len+4:], uint16(len(b)-hdr.EthernetLen-hdr.IPv4Len))
		hdr.IPv4(b[hdr.EthernetLen:]).UpdateChecksum()
		var f hdr.Frame
		if hdr.Parse(b, &f) != hdr.IsRoCE || !f.Plain {
			t.Fatalf("%d bytes: %+v", len(b), f)
		}
		hdr.SetICRC(b, &f)
		if got := hdr.Examine(b, &f); got != hdr.NoFlaw {
			t.Fatalf("%d bytes: flaw %d", len(b), got)
		}
		for range 4 {
			// From the addresses to the end, but for the lengths, ports and opcode, which would make it another frame.
			at := hdr.PlainBTH + 4 + rnd.IntN(len(b)-hdr.PlainBTH-4)
			b[at] ^= 1 << rnd.IntN(8)
			want := hdr.BadICRC
			if at == hdr.PlainBTH+4 {
				want = hdr.NoFlaw // BTH resv8a may change on the way
			}
			if got := hdr.Examine(b, &f); got != want {
				t.Fatalf("%d bytes, byte %d changed: flaw %d", len(b), at, got)
			}
			hdr.SetICRC(b, &f)
		}
	}
}
