package hdr

import (
	"syscall"
	"testing"
)

// A datagram that begins a page, or ends one, is checked without a look at the pages beside it, wherever its rows end; any flipped bit
// that the ICRC covers is found.
func TestGoodRowsNothingOutside(t *testing.T) {
	if !hasRows {
		t.Skip("no rows here")
	}
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
	whole := make([]byte, EthernetLen+256)
	for n := IPv4Len + UDPLen + BTHLen + ICRCLen; n <= 200; n++ {
		for at := 0; at <= page-n; at++ {
			if at == 70 {
				at = max(at, page-n-70)
			}
			p := mid[at:][:n]
			copy(p, noise(n))
			f := Frame{Net: NetIPv4, L3: EthernetLen, L4: EthernetLen + IPv4Len, BTH: EthernetLen + IPv4Len + UDPLen, End: uint16(EthernetLen + n - ICRCLen)}
			copy(whole[EthernetLen:], p)
			want := icrcTables(whole, &f)
			p[n-4], p[n-3], p[n-2], p[n-1] = byte(want), byte(want>>8), byte(want>>16), byte(want>>24)
			if !goodRows(&p[0], n) {
				t.Fatalf("%d bytes at %d: refused", n, at)
			}
			for i := range p {
				p[i] ^= 0x10
				copy(whole[EthernetLen:], p)
				got := uint32(p[n-4]) | uint32(p[n-3])<<8 | uint32(p[n-2])<<16 | uint32(p[n-1])<<24
				if good := icrcTables(whole, &f) == got; good != goodRows(&p[0], n) {
					t.Fatalf("%d bytes at %d, byte %d: %v", n, at, i, !good)
				}
				p[i] ^= 0x10
			}
		}
	}
}
