package hdr_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

func TestVXLAN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, vni := noise(t, 8), rapid.Uint32().Draw(t, "vni")
		hdr.VXLAN(h).Encode(vni)
		var v layers.VXLAN
		if err := v.DecodeFromBytes(h, gopacket.NilDecodeFeedback); err != nil {
			t.Fatal(err)
		}
		if v.VNI != vni&0xFFFFFF || hdr.VXLAN(h).VNI() != v.VNI || !v.ValidIDFlag || !hdr.VXLAN(h).HasVNI() || h[0] != 8 || h[1]|h[2]|h[3]|h[7] != 0 {
			t.Fatalf("%x for %x", h, vni)
		}
	})
	if hdr.VXLAN([]byte{0xF7, 0, 0, 0, 0, 0, 0, 0}).HasVNI() {
		t.Error("a VNI without its flag")
	}
}

// RFC 8300 figures 2, 3 and 4, by hand: O, TTL 63, length 6, MD type 1, Ethernet,
// SPI 0x123456, SI 255.
func TestNSH(t *testing.T) {
	b, _ := hex.DecodeString("2fc60103123456ff" + "000102030405060708090a0b0c0d0e0f" + "aa")
	h := hdr.NSH(b)
	if h.Version() != 0 || !h.OAM() || h.TTL() != 63 || h.HeaderLen() != 24 || h.MDType() != 1 || h.NextProtocol() != hdr.NSHNextEthernet || h.SPI() != 0x123456 || h.SI() != 255 || len(h.Metadata()) != 16 || h.Metadata()[15] != 15 {
		t.Errorf("version %d, O %v, TTL %d, %d bytes, MD type %d, next %d, SPI %x, SI %d, metadata %x",
			h.Version(), h.OAM(), h.TTL(), h.HeaderLen(), h.MDType(), h.NextProtocol(), h.SPI(), h.SI(), h.Metadata())
	}
	h[0] |= 0x40
	if h.Version() != 1 {
		t.Errorf("version %d", h.Version())
	}
	rapid.Check(t, func(t *rapid.T) {
		h := hdr.NSH(noise(t, 8))
		f := hdr.NSHFields{OAM: rapid.Bool().Draw(t, "oam"), TTL: rapid.Uint8Range(0, 63).Draw(t, "ttl"), NextProtocol: rapid.Uint8().Draw(t, "next"),
			SPI: rapid.Uint32Range(0, 1<<24-1).Draw(t, "spi"), SI: rapid.Uint8().Draw(t, "si")}
		h.Encode(&f)
		got := hdr.NSHFields{OAM: h.OAM(), TTL: h.TTL(), NextProtocol: h.NextProtocol(), SPI: h.SPI(), SI: h.SI()}
		if got != f || h.Version() != 0 || h.HeaderLen() != 8 || h.MDType() != 2 || len(h.Metadata()) != 0 {
			t.Fatalf("%x is %+v, not %+v", []byte(h), got, f)
		}
		n := noise(t, 8)
		for i, set := range []struct {
			mask string
			do   func(h hdr.NSH)
		}{
			{"0fc0000000000000", func(h hdr.NSH) { h.SetTTL(f.TTL) }},
			{"2000000000000000", func(h hdr.NSH) { h.SetOAM(f.OAM) }},
			{"000000ff00000000", func(h hdr.NSH) { h.SetNextProtocol(f.NextProtocol) }},
			{"00000000ffffff00", func(h hdr.NSH) { h.SetSPI(f.SPI) }},
			{"00000000000000ff", func(h hdr.NSH) { h.SetSI(f.SI) }},
		} {
			mask, _ := hex.DecodeString(set.mask)
			got := bytes.Clone(n)
			set.do(got)
			for k := range got {
				if want := n[k]&^mask[k] | h[k]&mask[k]; got[k] != want {
					t.Fatalf("setter %d made %x of %x, with %+v", i, got, n, f)
				}
			}
		}
	})
}

// layersAgree compares Walk with gopacket's own walk, where gopacket finds no
// fault.
func layersAgree(t *testing.T, b []byte) {
	var l hdr.Layers
	if !hdr.Walk(b, &l) {
		return
	}
	if l.Net > len(b) || l.End > len(b) || l.L3 != 0 && l.L3 != l.Net || l.L4 > l.End || l.L3 == 0 && (l.L4 != 0 || l.End != 0) || l.Tags > hdr.MaxTags {
		t.Fatalf("%+v in %x", l, b)
	}
	src, dst := l.PortsOf(b)
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if p.ErrorLayer() != nil || p.Metadata().Truncated {
		return
	}
	var tags uint8
	for _, x := range p.Layers() {
		switch x := x.(type) {
		case *layers.Dot1Q:
			if tags == 0 && x.VLANIdentifier != l.VID {
				t.Fatalf("VLAN %d, gopacket %d", l.VID, x.VLANIdentifier)
			}
			tags++
			if tags > l.Tags {
				return // a third tag
			}
		case *layers.IPv4:
			if x.Version != 4 || b[l.Net+2]|b[l.Net+3] == 0 {
				return // gopacket takes any version, and a length of 0 for all there is
			}
			if l.L3 == 0 || tags != l.Tags || l.Proto != uint8(x.Protocol) || l.End-l.L3 != int(x.Length) {
				t.Fatalf("%+v, gopacket %v", l, x)
			}
			if (l.L4 == 0) != (x.FragOffset != 0) || l.Fragment != (x.FragOffset != 0 || x.Flags&layers.IPv4MoreFragments != 0) {
				t.Fatalf("%+v, gopacket %v", l, x)
			}
			goto transport
		case *layers.IPv6:
			if x.Version != 6 || x.HopByHop != nil {
				return // gopacket takes any version, and jumbograms
			}
			if l.L3 == 0 || tags != l.Tags {
				t.Fatalf("%+v, gopacket %v", l, x)
			}
			goto transport
		}
	}
	return
transport:
	if l.Fragment {
		return
	}
	switch x := p.TransportLayer().(type) {
	case *layers.UDP:
		if p.Layer(layers.LayerTypeVXLAN) == nil && (src != uint16(x.SrcPort) || dst != uint16(x.DstPort)) && l.Proto == hdr.ProtoUDP {
			t.Fatalf("ports %d, %d, gopacket %v", src, dst, x)
		}
	case *layers.TCP:
		if l.Proto == hdr.ProtoTCP && (src != uint16(x.SrcPort) || dst != uint16(x.DstPort)) {
			t.Fatalf("ports %d, %d, gopacket %v", src, dst, x)
		}
	}
}

func TestWalk(t *testing.T) {
	for _, b := range append(corpus(t), built(t)...) {
		layersAgree(t, b)
		var l hdr.Layers
		for n := range b {
			if hdr.Walk(b[:n], &l) {
				l.PortsOf(b[:n])
			}
		}
	}
	at := func(s string) (b []byte, l hdr.Layers, ok bool) {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		ok = hdr.Walk(b, &l)
		return b, l, ok
	}
	const macs = "020000000009020000000001"
	const v6 = "20010db8000000000000000000000001" + "20010db8000000000000000000000002"
	for _, c := range []struct {
		name, frame string
		want        hdr.Layers
		src, dst    uint16
	}{
		{"two tags, padding", macs + "88a80064" + "810000c8" + "0800" + "4500001c00004000401100000a0000090a000001" + "000112b700080000" + "0000",
			hdr.Layers{EtherType: 0x0800, VID: 100, Inner: 200, Tags: 2, Proto: 17, Net: 22, L3: 22, L4: 42, End: 50}, 1, 0x12b7},
		{"three tags", macs + "88a80064" + "810000c8" + "810000c9" + "0800", hdr.Layers{EtherType: 0x8100, VID: 100, Inner: 200, Tags: 2, Net: 22}, 0, 0},
		{"later IPv4 fragment", macs + "0800" + "4500001c00000001401100000a0000090a000001" + "000112b700080000",
			hdr.Layers{EtherType: 0x0800, Proto: 17, Fragment: true, Net: 14, L3: 14, End: 42}, 0, 0},
		{"first IPv6 fragment", macs + "86dd" + "6000000000102c40" + v6 + "1100000100000007" + "000112b700080000",
			hdr.Layers{EtherType: 0x86dd, Proto: 17, Fragment: true, Net: 14, L3: 14, L4: 62, End: 70}, 1, 0x12b7},
		{"later IPv6 fragment", macs + "86dd" + "6000000000102c40" + v6 + "1100000900000007" + "000112b700080000",
			hdr.Layers{EtherType: 0x86dd, Proto: 17, Fragment: true, Net: 14, L3: 14, End: 70}, 0, 0},
		{"cut IPv6 fragment header", macs + "86dd" + "6000000000042c40" + v6 + "11000009",
			hdr.Layers{EtherType: 0x86dd, Proto: 44, Fragment: true, Net: 14, L3: 14, End: 58}, 0, 0},
		{"total length too long", macs + "0800" + "4500001d00000000401100000a0000090a000001" + "000112b700080000", hdr.Layers{EtherType: 0x0800, Net: 14}, 0, 0},
		{"UDP of 3 bytes", macs + "0800" + "4500001700000000401100000a0000090a000001" + "000112b700080000",
			hdr.Layers{EtherType: 0x0800, Proto: 17, Net: 14, L3: 14, L4: 34, End: 37}, 0, 0},
		{"IPv6 that calls itself 4", macs + "86dd" + "4000000000081140" + v6 + "000112b700080000", hdr.Layers{EtherType: 0x86dd, Net: 14}, 0, 0},
	} {
		b, l, ok := at(c.frame)
		src, dst := l.PortsOf(b)
		if !ok || l != c.want || src != c.src || dst != c.dst {
			t.Errorf("%s: %v %+v, ports %d, %d", c.name, ok, l, src, dst)
		}
	}
	for frame, want := range map[string]uint32{"0800": 0, "8100e064" + "0800": 100, "88a8e064" + "8100f0c8" + "0800": 200<<12 | 100, "8100e000" + "8100f0c8" + "0800": 200 << 12} {
		if _, l, ok := at(macs + frame); !ok || l.VLANs() != want {
			t.Errorf("%s: VLANs %#x, want %#x", frame, l.VLANs(), want)
		}
	}
	if _, _, ok := at(macs + "8100" + "0064"); ok {
		t.Error("a tag that does not fit was found")
	}
	b := corpus(t)[0]
	var l hdr.Layers
	if n := testing.AllocsPerRun(10, func() { hdr.Walk(b, &l); l.PortsOf(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzWalk(f *testing.F) {
	for _, b := range built(f) {
		f.Add(b)
	}
	f.Fuzz(layersAgree)
}
