package hdr

import (
	"fmt"
	"hash/crc32"
	"testing"
)

func benchFrames() map[int][]byte {
	m := map[int][]byte{}
	for _, n := range []int{64, 128, 256, 1024, 4096} {
		b := make([]byte, 54+n+4)
		buildWrite(b, n)
		m[n] = b
	}
	return m
}

func buildWrite(b []byte, n int) {
	Ethernet(b).SetEtherType(EtherIPv4)
	b[14] = 0x45
	IPv4(b[14:]).SetTotalLen(uint16(len(b) - 14))
	b[23] = 17
	UDP(b[34:]).SetDstPort(RoCEv2Port)
	UDP(b[34:]).SetLen(uint16(len(b) - 34))
	BTH(b[42:]).Encode(&BTHFields{OpCode: SendOnly})
}

var sink uint32

func BenchmarkParse(b *testing.B) {
	fr := benchFrames()[128]
	var f Frame
	for b.Loop() {
		Parse(fr, &f)
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range []int{64, 128, 256, 1024, 4096} {
		fr := benchFrames()[n]
		var f Frame
		if Parse(fr, &f) != IsRoCE {
			b.Fatal(f)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = ICRC(fr, &f)
			}
		})
	}
}

func BenchmarkPatch8(b *testing.B) {
	for _, n := range []int{64, 128, 256, 1024, 4096} {
		fr := benchFrames()[n]
		var f Frame
		Parse(fr, &f)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var old [8]byte
				v := le.Uint64(fr[54:])
				le.PutUint64(old[:], v)
				le.PutUint64(fr[54:], v+0x10305)
				PatchICRC(fr, &f, 54, old[:])
			}
		})
	}
}

func BenchmarkX(b *testing.B) {
	c := uint32(0x12345)
	b.Run("mul", func(b *testing.B) {
		for b.Loop() {
			c = mul(c, 0x87654321)
		}
	})
	b.Run("crc8", func(b *testing.B) {
		for b.Loop() {
			c = crc8(c, 0x8765432187654321)
		}
	})
	b.Run("crc4", func(b *testing.B) {
		for b.Loop() {
			c = crc4(c)
		}
	})
	fr := make([]byte, 4096)
	for _, n := range []int{32, 64, 128, 1024, 4096} {
		b.Run(fmt.Sprint("std", n), func(b *testing.B) {
			for b.Loop() {
				c = crc32.Update(c, crc32.IEEETable, fr[:n])
			}
		})
	}
	sink = c
}
