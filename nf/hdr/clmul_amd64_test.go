package hdr

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// way is one way to compute a CRC with products.
type way struct {
	name string
	crc  func(c uint32, p *byte, n int, ones *[128]byte) uint32
}

// ways are those that this processor has.
func ways(tb testing.TB) (w []way) {
	if !hasCLMUL {
		tb.Skip("this processor does not multiply polynomials (PCLMULQDQ, SSSE3, SSE4.1): the tables are all there is")
	}
	if !hasRows {
		tb.Log("no AVX-512 with VPCLMULQDQ here: rows of four blocks are not tested")
	}
	return []way{{"blocks", blocksCRC}, {"rows", clmulCRC}}
}

// noise is n bytes, the same ones each time.
func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestMulIsMulGaps(t *testing.T) {
	if !hasCLMUL {
		t.Skip("mul is mulGaps here")
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, v := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b"), rapid.Uint64().Draw(t, "v")
		if got, want := mul(a, b), mulGaps(a, b); got != want {
			t.Fatalf("%08x * %08x = %08x, want %08x", a, b, got, want)
		}
		if got, want := clmulMod(v, crcNear[4]), crc8(0, v); got != want {
			t.Fatalf("register after %016x: %08x, want %08x", v, got, want)
		}
	})
}

// Every length that one call may have, at every alignment, with every mask.
func TestEveryLength(t *testing.T) {
	b := noise(64 + 16*(clmulBlocks+1))
	masks := append(icrcOnes[NetIPv4:], noOnes)
	for _, w := range ways(t) {
		for n := 16; n < 16*(clmulBlocks+1); n++ {
			p := b[n%64 : n%64+n]
			for i := range masks {
				ones := &masks[i]
				m := bytes.Clone(p)
				for j := range min(n, len(ones)) {
					m[j] |= ones[j]
				}
				if got, want := w.crc(icrcSeed, &p[0], n, ones), crcBytes(icrcSeed, m); got != want {
					t.Fatalf("%s, %d bytes, mask %d: %08x, want %08x", w.name, n, i, got, want)
				}
			}
		}
	}
}

// Bytes outside of the range do not count, and need not be there: the range
// ends at, or begins with, a page that has none beside it.
func TestNothingOutside(t *testing.T) {
	const page = 4096
	m, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(m)
	for _, at := range []int{0, 2 * page} {
		if err := syscall.Mprotect(m[at:at+page], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	mid := m[page : 2*page]
	copy(mid, noise(page))
	for _, w := range ways(t) {
		for n := 16; n <= 200; n++ {
			for _, p := range [][]byte{mid[:n], mid[page-n:], mid[100 : 100+n]} {
				if got, want := w.crc(5, &p[0], n, &noOnes), crcBytes(5, p); got != want {
					t.Fatalf("%s, %d bytes: %08x, want %08x", w.name, n, got, want)
				}
			}
		}
	}
}

// layouts are frames without options whose BTH and payload are noise.
func layouts(n int) map[string]*Frame {
	fs := map[string]*Frame{
		"IPv4": {Net: NetIPv4, L3: 14, L4: 34, BTH: 42},
		"IPv6": {Net: NetIPv6, L3: 14, L4: 54, BTH: 62},
		"GRH":  {Net: NetGRH, L3: 14, BTH: 54},
		// Only the tables know these.
		"options":   {Net: NetIPv4, L3: 18, L4: 62, BTH: 70},
		"extension": {Net: NetIPv6, L3: 14, L4: 70, BTH: 78},
	}
	for _, f := range fs {
		f.End = f.BTH + BTHLen + uint16(n)
	}
	return fs
}

func TestICRCEveryPayload(t *testing.T) {
	if !hasCLMUL {
		t.Skip("ICRC is icrcTables here")
	}
	everyPayload(t)
	if hasRows {
		rows, step := hasRows, clmulStep
		t.Cleanup(func() { hasRows, clmulStep = rows, step })
		hasRows, clmulStep = false, 256
		everyPayload(t)
	}
}

func everyPayload(t *testing.T) {
	b := noise(9216)
	for n := 0; n <= 9000; n += 1 + n/300 {
		for name, f := range layouts(n) {
			before := crcBytes(0, b[:min(len(b), 256)])
			if got, want := ICRC(b, f), icrcTables(b, f); got != want {
				t.Fatalf("%s, %d bytes: %08x, tables %08x", name, n, got, want)
			}
			if crcBytes(0, b[:min(len(b), 256)]) != before {
				t.Fatalf("%s, %d bytes: the frame was written to", name, n)
			}
		}
	}
}

func TestPatchIsPatchTables(t *testing.T) {
	if !hasCLMUL {
		t.Skip("PatchICRC is patchTables here")
	}
	whole := noise(9216)
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom([]string{"IPv4", "IPv6", "GRH", "options", "extension"}).Draw(t, "layout")
		checkPatch(t, layouts(rapid.IntRange(0, 9000).Draw(t, "payload"))[f], whole,
			rapid.IntRange(0, 9100).Draw(t, "off"), rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "change"))
	})
	for name, f := range layouts(40) {
		for off := range int(f.End) + 4 {
			for n := range 40 {
				checkPatch(fataler{t, name}, f, whole, off, bytes.Repeat([]byte{0xFF}, n))
			}
		}
	}
}

type fataler struct {
	*testing.T
	name string
}

func (f fataler) Fatalf(format string, args ...any) {
	f.T.Fatalf("%s: %s", f.name, fmt.Sprintf(format, args...))
}

// checkPatch changes bytes at off, as far as the frame's end, and patches in
// both ways.
func checkPatch(t interface{ Fatalf(string, ...any) }, f *Frame, whole []byte, off int, change []byte) {
	size := int(f.End) + ICRCLen
	if off > size {
		return
	}
	x := bytes.Clone(whole[:size])
	old := bytes.Clone(x[off:min(size, off+len(change))])
	for i := range old {
		if off+i < int(f.End) { // the ICRC itself is not patched for
			x[off+i] ^= change[i]
		}
	}
	y := bytes.Clone(x)
	PatchICRC(x, f, off, old)
	patchTables(y, f, off, old)
	if !bytes.Equal(x, y) {
		t.Fatalf("%d bytes at %d of %+v: ICRC %08x, tables %08x", len(old), off, f, StoredICRC(x, f), StoredICRC(y, f))
	}
}

func FuzzICRC(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint32(0), uint8(0))
	f.Add(bytes.Repeat([]byte{0xA5}, 200), uint32(0xFFFFFFFF), uint8(1))
	f.Add(noise(1500), uint32(icrcSeed), uint8(3))
	f.Fuzz(func(t *testing.T, p []byte, c uint32, net uint8) {
		ones := &icrcOnes[net%4]
		m := bytes.Clone(p)
		for i := range min(len(p), 64) {
			m[i] |= ones[i]
		}
		want := crcBytes(c, m)
		if len(p) < 16 || !hasCLMUL {
			return
		}
		if got := crcOnes(c, p, ones); got != want {
			t.Fatalf("%d bytes: %08x, want %08x", len(p), got, want)
		}
		for _, w := range ways(t) {
			if n := len(p); n < 16*(clmulBlocks+1) && w.crc(c, &p[0], n, ones) != want {
				t.Fatalf("%s, %d bytes: not %08x", w.name, n, want)
			}
		}
	})
}

// The ICRC that SetICRC stores is that of the tables, for each length of a short frame over IPv4, and with whatever
// bytes in what may change on the way.
func TestSetICRCOfEachLength(t *testing.T) {
	all := noise(EthernetLen + 200 + ICRCLen)
	for _, l3 := range []int{EthernetLen, EthernetLen + VLANLen} {
		for n := IPv4Len + UDPLen + BTHLen; n < 180; n++ {
			b := bytes.Clone(all[:l3+n+ICRCLen])
			f := Frame{Net: NetIPv4, L3: uint16(l3), L4: uint16(l3 + IPv4Len), BTH: uint16(l3 + IPv4Len + UDPLen), End: uint16(l3 + n)}
			SetICRC(b, &f)
			if got, want := StoredICRC(b, &f), icrcTables(b, &f); got != want {
				t.Fatalf("%d bytes from %d on: %08x, want %08x", n, l3, got, want)
			}
			if !bytes.Equal(b[:l3+n], all[:l3+n]) {
				t.Fatalf("%d bytes from %d on: other bytes changed", n, l3)
			}
		}
	}
}
