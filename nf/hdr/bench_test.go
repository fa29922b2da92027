package hdr_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// sizes are the lengths of the benchmarks' frames, from Ethernet to ICRC.
var sizes = []int{64, 128, 256, 1024, 4096}

// sized is a SEND ONLY over IPv4 of n bytes in all, behind headroom as in a
// pool's slot.
func sized(tb testing.TB, n int) ([]byte, *hdr.Frame) {
	b := make([]byte, 128+n)[128:]
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{EtherType: hdr.EtherIPv4})
	a := netip.MustParseAddr("10.0.0.1")
	hdr.IPv4(b[14:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(n - 14), TTL: 64, Protocol: hdr.ProtoUDP, Src: a, Dst: a})
	hdr.UDP(b[34:]).Encode(&hdr.UDPFields{SrcPort: 0xC000, DstPort: hdr.RoCEv2Port, Len: uint16(n - 34)})
	hdr.BTH(b[42:]).Encode(&hdr.BTHFields{OpCode: hdr.SendOnly, PKey: 0xFFFF, DestQP: 17, PSN: 1})
	f := new(hdr.Frame)
	if why := hdr.Parse(b, f); why != hdr.IsRoCE {
		tb.Fatal(why)
	}
	hdr.SetICRC(b, f)
	return b, f
}

func perSize(b *testing.B, run func(b *testing.B, frame []byte, f *hdr.Frame)) {
	for _, n := range sizes {
		frame, f := sized(b, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			run(b, frame, f)
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, id := range []string{"V01", "V05", "V50"} {
		frame, f := frameOf(b, id)
		b.Run(fmt.Sprintf("%v/%s", f.Op, id), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hdr.Parse(frame, f)
			}
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	perSize(b, func(b *testing.B, frame []byte, f *hdr.Frame) {
		for b.Loop() {
			hdr.ICRC(frame, f)
		}
	})
}

// BenchmarkPatch8 changes eight bytes right behind the BTH, where an AtomicETH
// has its address, and patches; 64 has no room for that and changes PSN and
// neighbours.
func BenchmarkPatch8(b *testing.B) {
	perSize(b, func(b *testing.B, frame []byte, f *hdr.Frame) {
		at := min(int(f.BTH)+hdr.BTHLen, int(f.End)-8)
		var old [8]byte
		for b.Loop() {
			v := binary.BigEndian.Uint64(frame[at:])
			binary.BigEndian.PutUint64(old[:], v)
			binary.BigEndian.PutUint64(frame[at:], v+0x10001)
			hdr.PatchICRC(frame, f, at, old[:])
		}
		if hdr.ICRC(frame, f) != hdr.StoredICRC(frame, f) {
			b.Fatal("wrong ICRC")
		}
	})
}

// BenchmarkPatchAtomicETH changes all 28 bytes of an AtomicETH.
func BenchmarkPatchAtomicETH(b *testing.B) {
	frame, f := frameOf(b, "V05")
	at := int(f.BTH) + hdr.BTHLen
	for b.Loop() {
		h := f.AtomicETHOf(frame)
		old := [hdr.AtomicETHLen]byte(h)
		h.SetVA(h.VA() + 64)
		h.SetCompare(h.Compare() + 1)
		hdr.PatchICRC(frame, f, at, old[:])
	}
}

// BenchmarkCRC32 is the measure: hash/crc32 over as many bytes.
func BenchmarkCRC32(b *testing.B) {
	perSize(b, func(b *testing.B, frame []byte, _ *hdr.Frame) {
		for b.Loop() {
			crc32.ChecksumIEEE(frame)
		}
	})
}
