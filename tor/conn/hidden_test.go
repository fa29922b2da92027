package conn

import (
	"encoding/binary"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// A frame is hidden when a receiver may take it for the request of a reliable connection and hdr.Parse does not.
func TestHidden(t *testing.T) {
	be := binary.BigEndian
	v4 := func(change func(b []byte)) []byte {
		b := make([]byte, 14+20+8+12+16+4)
		b[12] = 8
		ip := hdr.IPv4(b[14:])
		ip[0], ip[9] = 0x45, hdr.ProtoUDP
		ip.SetTotalLen(uint16(len(b) - 14))
		be.PutUint16(b[36:], hdr.RoCEv2Port)
		be.PutUint16(b[38:], uint16(len(b)-34))
		b[42], b[49] = byte(hdr.WriteOnly), 0x77
		change(b)
		return b
	}
	v6 := func(next, inner byte, off uint16, n int) []byte {
		b := make([]byte, 14+40+8+n)
		b[12], b[13], b[14], b[20] = 0x86, 0xDD, 0x60, next
		be.PutUint16(b[18:], uint16(8+n))
		p := b[54:]
		p[0] = inner
		be.PutUint16(p[2:], off|1)
		if n >= 20 {
			be.PutUint16(p[10:], hdr.RoCEv2Port)
			p[16], p[23] = byte(hdr.WriteOnly), 0x77
		}
		return b
	}
	for name, c := range map[string]struct {
		b   []byte
		qpn uint32
		ok  bool
	}{
		"a request":                      {v4(func([]byte) {}), 0, false},
		"the first fragment":             {v4(func(b []byte) { b[20] = 0x20 }), 0x77, true},
		"the first one, of another port": {v4(func(b []byte) { b[20], b[36] = 0x20, 1 }), 0, false},
		"the first one, of TCP":          {v4(func(b []byte) { b[20], b[23] = 0x20, 6 }), 0, false},
		"the first one, of XRC":          {v4(func(b []byte) { b[20], b[42] = 0x20, 0xB3 }), 0x77, false},
		"the first one, of eight bytes":  {v4(func(b []byte) { b[20] = 0x20; be.PutUint16(b[16:], 28) }), 0, true},
		"the first one, of nothing":      {v4(func(b []byte) { b[20] = 0x20; be.PutUint16(b[16:], 20) }), 0, true},
		"a later one":                    {v4(func(b []byte) { b[21] = 3 }), 0, false},
		"a UDP length that is too short": {v4(func(b []byte) { b[39] -= 4 }), 0x77, true},
		"a UDP length that is too long":  {v4(func(b []byte) { b[38] = 9 }), 0, false},
		"no such opcode":                 {v4(func(b []byte) { b[42] = 0x1F }), 0x77, true},
		"an opcode of XRC":               {v4(func(b []byte) { b[42] = 0xB3 }), 0x77, false},
		"another version":                {v4(func(b []byte) { b[43] = 1 }), 0x77, true},
		"IPv6: the first one":            {v6(hdr.ProtoFragment, hdr.ProtoUDP, 0, 40), 0x77, true},
		"IPv6: a later one":              {v6(hdr.ProtoFragment, hdr.ProtoUDP, 8, 40), 0, false},
		"IPv6: of four bytes":            {v6(hdr.ProtoFragment, hdr.ProtoUDP, 0, 4), 0, true},
		"IPv6: with options behind":      {v6(hdr.ProtoFragment, hdr.ProtoDstOption, 0, 40), 0, true},
		"IPv6: of TCP":                   {v6(hdr.ProtoFragment, 6, 0, 40), 0, false},
	} {
		var f hdr.Frame
		why := hdr.Parse(c.b, &f)
		if why == hdr.IsRoCE {
			if c.ok {
				t.Errorf("%s: it is RoCE", name)
			}
			continue
		}
		if qpn, ok := Hidden(c.b, &f); ok != c.ok || ok && qpn != c.qpn {
			t.Errorf("%s (%v): queue pair %#x, %v", name, why, qpn, ok)
		}
	}
}

// Hidden looks into no frame further than it goes.
func FuzzHidden(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		var x hdr.Frame
		if hdr.Parse(b, &x) != hdr.IsRoCE {
			Hidden(b, &x)
		}
	})
}
