package hdr_test

import (
	"math/rand/v2"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// TestUsual compares Usual with Walk, for frames that are nearly usual: bytes of their headers are changed.
func TestUsual(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	usual, ports := 0, 0
	for range 300_000 {
		b := make([]byte, 34+r.IntN(30))
		hdr.Ethernet(b).Encode(&hdr.EthernetFields{EtherType: hdr.EtherIPv4})
		b[14], b[17], b[20], b[23] = 0x45, byte(len(b)-14), 0x40, hdr.ProtoUDP
		if r.IntN(2) == 0 {
			b[23] = hdr.ProtoTCP
		}
		for range r.IntN(3) {
			b[12+r.IntN(12)] = byte(r.Uint32())
		}
		if r.IntN(4) == 0 {
			b[17] = byte(r.IntN(70))
		}
		var walked, l hdr.Layers
		ok := hdr.Walk(b, &walked)
		end, proto, is := hdr.Usual(b)
		// What Walk finds of a usual frame, and it alone has that.
		want := ok && walked.EtherType == hdr.EtherIPv4 && walked.Tags == 0 && walked.L3 == 14 && walked.L4 == 34 && !walked.Fragment &&
			(walked.Proto == hdr.ProtoTCP || walked.Proto == hdr.ProtoUDP) && walked.End >= 42
		if is != want {
			t.Fatalf("usual: %v, of %x, where Walk finds %+v", is, b, walked)
		}
		if !is {
			continue
		}
		usual++
		if l.Usual(end, proto); l != walked {
			t.Fatalf("%+v, and Walk finds %+v", l, walked)
		}
		if walked.Proto == hdr.ProtoTCP {
			ports++
		}
	}
	if usual < 10_000 || ports < usual/4 {
		t.Fatalf("%d usual frames, %d of TCP", usual, ports)
	}
}
