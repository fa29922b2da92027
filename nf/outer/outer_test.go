package outer_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// TestChecksum puts headers with any TOS and length in front of frames: the IPv4 checksum holds.
func TestChecksum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		h := outer.New(outer.Config{Local: netip.AddrFrom4([4]byte{byte(r.Uint32()), 1, 2, 3}), Remote: netip.AddrFrom4([4]byte{9, byte(r.Uint32()), 255, 255}),
			TTL: uint8(r.Uint32()), VLAN: uint16(r.IntN(2)), Proto: hdr.ProtoUDP, Port: uint16(r.Uint32())})
		for range 50 {
			b := make([]byte, h.Len()+r.IntN(9000))
			h.Put(b, uint8(r.Uint32()), r.Uint32())
			ip := hdr.IPv4(b[h.Len()-h.IPLen():])
			if !ip.ChecksumOK() || int(ip.TotalLen()) != len(ip) {
				t.Fatalf("%x", []byte(ip[:20]))
			}
			sum := ip.Checksum()
			if ip.UpdateChecksum(); ip.Checksum() != sum {
				t.Fatalf("%#x, computed %#x", sum, ip.Checksum())
			}
		}
	}
}

// TestUsualFlow compares UsualFlow with Flow.
func TestUsualFlow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		b := make([]byte, 60)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		copy(b[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, []byte{hdr.ProtoUDP, hdr.ProtoTCP}[r.IntN(2)]})
		var l hdr.Layers
		if _, _, ok := hdr.Usual(b); !ok || !hdr.Walk(b, &l) {
			t.Fatalf("%x is not usual", b)
		}
		if got, want := outer.UsualFlow(b), outer.Flow(b, &l); got != want {
			t.Fatalf("%x: %#x, want %#x", b, got, want)
		}
	}
}
