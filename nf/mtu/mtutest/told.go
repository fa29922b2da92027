package mtutest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// TooBig checks what a function did in the case name with a frame that came in by its port a and is longer than mtu allows: it dropped the frame, and
// answered with an ICMP error that says mtu, behind the frame's VLAN tags.
func TooBig(t testing.TB, name string, r graphtest.Result, frame []byte, mtu, tags int) {
	t.Helper()
	if len(r.Dropped) != 1 || r.Dropped[0].Reason != "too-big" || len(r.Out["a"]) != 1 || len(r.Out["b"]) != 0 {
		t.Fatalf("%s: want it dropped and answered: %+v", name, r)
	}
	got := r.Out["a"][0]
	p := gopacket.NewPacket(got.Bytes, layers.LayerTypeEthernet, gopacket.Default)
	said := 0
	if m, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
		said = int(m.Seq)
	} else if m, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
		said = int(binary.BigEndian.Uint32(m.Payload))
	}
	end := 14 + 4*tags
	if said != mtu || got.Verdict != packet.Generated || got.Reason != "told-too-big" || !bytes.Equal(got.Bytes[:12], swapped(frame)) || !bytes.Equal(got.Bytes[12:end], frame[12:end]) {
		t.Errorf("%s: said %d, want %d: %+v\n%v", name, said, mtu, got, p)
	}
}

// swapped is a frame's MAC addresses, the source first.
func swapped(frame []byte) []byte { return append(bytes.Clone(frame[6:12]), frame[:6]...) }
