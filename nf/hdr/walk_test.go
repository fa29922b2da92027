package hdr_test

import (
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// FuzzWalkParse holds that what Walk finds lies in the frame, and that it and Parse
// find the same datagrams.
func FuzzWalkParse(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.frame)
		for n := 10; n < len(v.frame) && n < 80; n += 7 {
			f.Add(v.frame[:n])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d hdr.Layers
		ok := hdr.Walk(b, &d) && !d.Malformed()
		var fr hdr.Frame
		why := hdr.Parse(b, &fr)
		if ok && d.Family() != hdr.NetNone {
			if d.L3 < hdr.EthernetLen || d.L4 != 0 && d.L4 < d.L3+20 || d.End < d.L4 || d.End > len(b) {
				t.Fatalf("%+v of %d bytes", d, len(b))
			}
			if d.Family() != fr.Net || d.L3 != int(fr.L3) || d.Tags != fr.Tags {
				t.Fatalf("%+v, and Parse finds %+v", d, fr)
			}
			if d.Family() == hdr.NetIPv4 && d.Fragment != (why == hdr.Fragment) {
				t.Fatalf("fragment %v, and Parse says %v", d.Fragment, why)
			}
		}
		if fr.L4 != 0 && (!ok || d.L4 != int(fr.L4) || d.Proto != hdr.ProtoUDP) {
			t.Fatalf("%v %+v, and Parse finds UDP: %+v", ok, d, fr)
		}
		if !ok && (why == hdr.Fragment || why == hdr.NotRoCE && fr.Net != hdr.NetGRH) {
			t.Fatalf("not a whole frame, and Parse says %v", why)
		}
	})
}

func TestWalkFragments(t *testing.T) {
	head := append(make([]byte, 12), 0x86, 0xDD)
	ip := make([]byte, hdr.IPv6Len+8+3)
	hdr.IPv6(ip).Encode(&hdr.IPv6Fields{PayloadLen: 11, NextHeader: hdr.ProtoFragment, Src: netip.IPv6Loopback(), Dst: netip.IPv6Loopback()})
	ip[hdr.IPv6Len] = hdr.ProtoTCP
	frame := append(append(head, ip...), 0xEE) // a byte of padding
	var d hdr.Layers
	if !hdr.Walk(frame, &d) || d.Malformed() || !d.Fragment || d.Proto != hdr.ProtoTCP || d.L4 != 14+40+8 || d.End != len(frame)-1 {
		t.Errorf("%+v", d)
	}
	if hdr.Walk(frame[:len(frame)-2], &d) && !d.Malformed() {
		t.Errorf("cut short: %+v", d)
	}
}
