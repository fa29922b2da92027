package hdr_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

// plainICRC is the rule written down once more, byte by byte: ones for the
// local route header, a copy with ones in the variant fields, CRC-32.
func plainICRC(b []byte, f *hdr.Frame) uint32 {
	c := append(bytes.Repeat([]byte{0xFF}, 8), b[f.L3:f.End]...)
	h := c[8:]
	ones := []int{int(f.BTH-f.L3) + 4}
	if f.Net == hdr.NetIPv4 {
		ones = append(ones, 1, 8, 10, 11)
	} else {
		h[0] |= 0x0F
		ones = append(ones, 1, 2, 3, 7)
	}
	if f.L4 != 0 {
		ones = append(ones, int(f.L4-f.L3)+6, int(f.L4-f.L3)+7)
	}
	for _, i := range ones {
		h[i] = 0xFF
	}
	return crc32.ChecksumIEEE(c)
}

func TestVectorsICRC(t *testing.T) {
	for _, v := range vectors(t) {
		var f hdr.Frame
		if why := hdr.Parse(v.frame, &f); why != hdr.IsRoCE {
			t.Errorf("%s: %v", v.id, why)
			continue
		}
		if int(f.End)+hdr.ICRCLen != len(v.frame) || !bytes.Equal(v.frame[f.End:], v.icrc) {
			t.Errorf("%s: ICRC found at %d of %d", v.id, f.End, len(v.frame))
			continue
		}
		if got := hdr.ICRC(v.frame, &f); got != binary.LittleEndian.Uint32(v.icrc) {
			t.Errorf("%s: ICRC %08x, carried %08x", v.id, got, hdr.StoredICRC(v.frame, &f))
		}
	}
}

// V06 is V05 after a real middlebox moved the address of its CAS.
func TestPatchVector(t *testing.T) {
	b, f := frameOf(t, "V05")
	want, _ := frameOf(t, "V06")
	h := f.AtomicETHOf(b)
	old := [8]byte(h)
	h.SetVA(0x557a46b7c500)
	hdr.PatchICRC(b, f, int(f.BTH)+hdr.BTHLen, old[:])
	if !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
}

// wrongICRC counts, per capture, the frames whose ICRC was spoilt on purpose.
var wrongICRC = map[string]int{
	"bad-icrc-request.server.pcap":  1,
	"bad-icrc-response.client.pcap": 1,
	"icrc-live-ipv4.server.pcap":    10,
	"icrc-live-ipv6.server.pcap":    8,
}

func TestCapturesICRC(t *testing.T) {
	total := 0
	for _, name := range captures() {
		wrong := 0
		for i, b := range readPcap(t, name) {
			var f hdr.Frame
			switch why := hdr.Parse(b, &f); {
			case why == hdr.NotRoCE && f.BTH == 0:
				continue
			case why != hdr.IsRoCE && why != hdr.BadVersion: // icrc-live-* has TVer 1 on purpose
				t.Errorf("%s frame %d: %v", name, i+1, why)
				continue
			}
			total++
			got := hdr.ICRC(b, &f)
			if got != plainICRC(b, &f) {
				t.Errorf("%s frame %d: %08x, plain rule %08x", name, i+1, got, plainICRC(b, &f))
			}
			if got != hdr.StoredICRC(b, &f) {
				wrong++
			}
		}
		if want := wrongICRC[filepath.Base(name)]; wrong != want {
			t.Errorf("%s: %d frames with a wrong ICRC, want %d", name, wrong, want)
		}
	}
	if total < 1500 {
		t.Errorf("only %d RoCE frames seen", total)
	}
}

// anyFrame draws a well-formed RoCE frame over any network layer, with
// options, extension headers, tags and payload, its ICRC right.
func anyFrame(t *rapid.T) ([]byte, *hdr.Frame) {
	var b []byte
	eth := make([]byte, 12)
	b = append(b, eth...)
	tag := func(et uint16) { b = binary.BigEndian.AppendUint16(b, et) }
	for range rapid.IntRange(0, hdr.MaxTags).Draw(t, "tags") {
		tag(hdr.EtherVLAN)
		b = append(b, rapid.SliceOfN(rapid.Byte(), 2, 2).Draw(t, "tci")...)
	}
	payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
	if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
		payload = bytes.Repeat(append(payload, 7), 30)
	}
	if rapid.IntRange(0, 99).Draw(t, "huge") == 0 {
		payload = make([]byte, rapid.IntRange(0, 65000).Draw(t, "size"))
	}
	net := rapid.SampledFrom([]uint8{hdr.NetIPv4, hdr.NetIPv6, hdr.NetGRH}).Draw(t, "net")
	n := hdr.BTHLen + len(payload) + hdr.ICRCLen
	if net != hdr.NetGRH {
		n += hdr.UDPLen
	}
	random := func(k int) []byte { return rapid.SliceOfN(rapid.Byte(), k, k).Draw(t, "bytes") }
	switch net {
	case hdr.NetIPv4:
		tag(hdr.EtherIPv4)
		words := rapid.IntRange(0, 10).Draw(t, "options")
		h := append(random(20), random(4*words)...)
		h[0], h[6], h[7], h[9] = 0x45+byte(words), h[6]&0xC0, 0, hdr.ProtoUDP
		if len(h)+n > 0xFFFF {
			t.Skip("too long")
		}
		hdr.IPv4(h).SetTotalLen(uint16(len(h) + n))
		b = append(b, h...)
	default:
		h := random(40)
		h[0] = 0x60 | h[0]&15
		h[6] = hdr.ProtoBTH
		if net == hdr.NetGRH {
			tag(hdr.EtherRoCEv1)
		} else {
			tag(hdr.EtherIPv6)
			h[6] = hdr.ProtoUDP
			for range rapid.IntRange(0, 3).Draw(t, "extensions") {
				x := random(8 * rapid.IntRange(1, 5).Draw(t, "words"))
				x[0], x[1] = h[6], byte(len(x)/8-1)
				h[6] = rapid.SampledFrom([]byte{hdr.ProtoHopByHop, hdr.ProtoRouting, hdr.ProtoDstOption}).Draw(t, "next")
				h = append(h[:40:40], append(x, h[40:]...)...)
			}
		}
		hdr.IPv6(h).SetPayloadLen(uint16(len(h) - 40 + n))
		b = append(b, h...)
	}
	if net != hdr.NetGRH {
		u := random(8)
		hdr.UDP(u).SetDstPort(hdr.RoCEv2Port)
		hdr.UDP(u).SetLen(uint16(n))
		b = append(b, u...)
	}
	h := random(hdr.BTHLen)
	h[0], h[1] = byte(hdr.SendOnly), h[1]&0xC0
	b = append(append(b, h...), payload...)
	b = append(b, 0, 0, 0, 0)
	b = append(b, make([]byte, rapid.IntRange(0, 20).Draw(t, "trailer"))...)
	f := new(hdr.Frame)
	if why := hdr.Parse(b, f); why != hdr.IsRoCE || f.Net != net {
		t.Fatalf("built %x: %v %+v", b, why, f)
	}
	hdr.SetICRC(b, f)
	return b, f
}

func TestICRCIsThePlainRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, f := anyFrame(t)
		if got, want := hdr.ICRC(b, f), plainICRC(b, f); got != want {
			t.Fatalf("ICRC %08x, plain %08x of %x", got, want, b)
		}
	})
}

// However a frame was changed, where, and however wrong its ICRC was.
// A frame with a byte changed anywhere is good when the byte is none of those
// that the ICRC is about; the header's checksum is right when it is not in the
// header.
func TestGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, f := anyFrame(t)
		if f.Net == hdr.NetIPv4 {
			f.IPv4Of(b).UpdateChecksum()
		}
		hdr.SetICRC(b, f)
		if !hdr.GoodICRC(b, f) || !f.ChecksumOK(b) {
			t.Fatalf("ICRC good %v, checksum right %v", hdr.GoodICRC(b, f), f.ChecksumOK(b))
		}
		at := rapid.IntRange(int(f.L3), int(f.End)+hdr.ICRCLen-1).Draw(t, "at")
		b[at] ^= rapid.ByteRange(1, 255).Draw(t, "change")
		if want := plainICRC(b, f) == hdr.StoredICRC(b, f); hdr.GoodICRC(b, f) != want {
			t.Fatalf("byte %d: ICRC good %v, want %v", at, !want, want)
		}
		if at == int(f.L3) {
			return // the header's length may be another one
		}
		if want := f.Net != hdr.NetIPv4 || at >= int(f.L4); f.ChecksumOK(b) != want {
			t.Fatalf("byte %d: checksum right %v, want %v", at, !want, want)
		}
	})
}

func TestPatchICRCIsFullICRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, f := anyFrame(t)
		wrong := rapid.Uint32().Draw(t, "wrong")
		binary.LittleEndian.PutUint32(b[f.End:], hdr.StoredICRC(b, f)^wrong)
		from := rapid.SampledFrom([]int{0, int(f.L3), int(f.L3) + 8, int(f.L4), int(f.BTH) + 5, int(f.BTH) + 8, int(f.Payload) - 3}).Draw(t, "from")
		off := rapid.IntRange(from, min(from+rapid.SampledFrom([]int{20, 0xFFFF}).Draw(t, "span"), int(f.End))).Draw(t, "off")
		n := rapid.IntRange(0, min(int(f.End)-off, rapid.SampledFrom([]int{16, 100}).Draw(t, "most"))).Draw(t, "n")
		old := bytes.Clone(b[off : off+n])
		for i := range n {
			b[off+i] ^= rapid.Byte().Draw(t, "change")
		}
		hdr.PatchICRC(b, f, off, old)
		if got, want := hdr.StoredICRC(b, f)^wrong, plainICRC(b, f); got != want {
			t.Fatalf("%d bytes at %d of %+v: patched %08x, full %08x", n, off, f, got, want)
		}
	})
}

// Every short range of one frame of each network layer, all bits turned.
func TestPatchICRCEveryRange(t *testing.T) {
	for _, id := range []string{"V05", "V42", "V50", "V51", "V52"} {
		b, f := frameOf(t, id)
		for off := range int(f.End) {
			for n := 1; n <= 24 && off+n <= int(f.End); n++ {
				c := bytes.Clone(b)
				for i := range n {
					c[off+i] ^= 0xFF
				}
				hdr.PatchICRC(c, f, off, b[off:off+n])
				if got, want := hdr.StoredICRC(c, f), plainICRC(c, f); got != want {
					t.Fatalf("%s: %d bytes at %d: patched %08x, full %08x", id, n, off, got, want)
				}
			}
		}
	}
}

func TestPatchICRCPastTheEnd(t *testing.T) {
	b, f := frameOf(t, "V42")
	b = append(b, 0, 0, 0)
	off := int(f.End) - 6
	old := bytes.Clone(b[off:])
	b[off], b[off+5] = 1, 2
	crc := hdr.ICRC(b, f)
	hdr.PatchICRC(b, f, off, old)
	if hdr.StoredICRC(b, f) != crc {
		t.Errorf("%08x, want %08x", hdr.StoredICRC(b, f), crc)
	}
	hdr.PatchICRC(b, f, int(f.End), []byte{1, 2, 3, 4, 5, 6})
	if hdr.StoredICRC(b, f) != crc {
		t.Error("bytes behind the ICRC counted")
	}
}

func FuzzPatchICRC(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.frame, uint16(54), []byte{1, 2, 3, 4, 5, 6, 7, 8})
		f.Add(v.frame, uint16(15), []byte{0xFF, 0, 0xFF})
	}
	f.Fuzz(func(t *testing.T, b []byte, off uint16, change []byte) {
		var fr hdr.Frame
		hdr.Parse(b, &fr)
		if fr.End == 0 || int(off) > len(b) {
			return
		}
		diff := hdr.StoredICRC(b, &fr) ^ plainICRC(b, &fr)
		n := min(len(change), len(b)-int(off), max(0, int(fr.End)-int(off)))
		old := bytes.Clone(b[off : int(off)+n])
		for i := range n {
			b[int(off)+i] ^= change[i]
		}
		hdr.PatchICRC(b, &fr, int(off), old)
		if got := hdr.StoredICRC(b, &fr) ^ plainICRC(b, &fr); got != diff {
			t.Fatalf("difference %08x became %08x: %d bytes at %d of %+v", diff, got, n, off, fr)
		}
		if hdr.ICRC(b, &fr) != plainICRC(b, &fr) {
			t.Fatal("ICRC is not the plain rule")
		}
	})
}
