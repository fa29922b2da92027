package hdr_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
)

// A frame written by the encoders alone is V04, byte for byte.
func TestEncodeVector(t *testing.T) {
	want, _ := frameOf(t, "V04")
	b := make([]byte, len(want))
	for i := range b {
		b[i] = 0xA5 // an encoder leaves nothing as it was
	}
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{
		Dst: [6]byte{0xec, 0x0d, 0x9a, 0x68, 0x21, 0xcc}, Src: [6]byte{0xec, 0x0d, 0x9a, 0x68, 0x21, 0xa0},
		EtherType: hdr.EtherIPv4,
	})
	hdr.IPv4(b[14:]).Encode(&hdr.IPv4Fields{
		TOS: 2, TotalLen: 72, ID: 0x533d, DF: true, TTL: 64, Protocol: hdr.ProtoUDP,
		Src: netip.MustParseAddr("192.168.1.17"), Dst: netip.MustParseAddr("192.168.1.13"),
	})
	hdr.UDP(b[34:]).Encode(&hdr.UDPFields{SrcPort: 0xeffd, DstPort: hdr.RoCEv2Port, Len: 52})
	hdr.BTH(b[42:]).Encode(&hdr.BTHFields{OpCode: hdr.CompareSwap, MigReq: true, PKey: 0xFFFF, DestQP: 0x5434, Ack: true, PSN: 0xc74})
	a := hdr.AtomicETH(b[54:])
	a.SetVA(0x557a46b7a500)
	a.SetRKey(0x57251)
	a.SetSwap(0x8f4910080800)
	a.SetCompare(0x800)
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE {
		t.Fatal(why)
	}
	hdr.SetICRC(b, &f)
	b[50] = want[50] // ConnectX leaves bits of its own in the reserved byte
	b[46] = want[46]
	if !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
}

var addr4 = rapid.Custom(func(t *rapid.T) netip.Addr {
	return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a")))
})

var addr16 = rapid.Custom(func(t *rapid.T) netip.Addr {
	return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a")))
})

func noise(t *rapid.T, n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "noise") }

func TestHeadersReadBackWhatWasEncoded(t *testing.T) {
	u16 := rapid.Uint16()
	mac := func(t *rapid.T) [6]byte { return [6]byte(noise(t, 6)) }
	rapid.Check(t, func(t *rapid.T) {
		same := func(got, want any) {
			t.Helper()
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Fatal(d)
			}
		}
		e := hdr.EthernetFields{Dst: mac(t), Src: mac(t), EtherType: u16.Draw(t, "type")}
		eh := hdr.Ethernet(noise(t, hdr.EthernetLen))
		eh.Encode(&e)
		same(hdr.EthernetFields{Dst: eh.Dst(), Src: eh.Src(), EtherType: eh.EtherType()}, e)

		a := hdr.ARPFields{Op: u16.Draw(t, "op"), SHA: mac(t), THA: mac(t), SPA: addr4.Draw(t, "spa"), TPA: addr4.Draw(t, "tpa")}
		ah := hdr.ARP(noise(t, hdr.ARPLen))
		ah.Encode(&a)
		same(hdr.ARPFields{Op: ah.Op(), SHA: ah.SHA(), THA: ah.THA(), SPA: ah.SPA(), TPA: ah.TPA()}, a)
		same(ah.Valid() && !ah[:27].Valid(), true)
		ah[1]++
		same(ah.Valid(), false)

		p := hdr.IPv4Fields{
			TOS: rapid.Byte().Draw(t, "tos"), TotalLen: u16.Draw(t, "len"), ID: u16.Draw(t, "id"), DF: rapid.Bool().Draw(t, "df"),
			TTL: rapid.Byte().Draw(t, "ttl"), Protocol: rapid.Byte().Draw(t, "proto"), Src: addr4.Draw(t, "src"), Dst: addr4.Draw(t, "dst"),
		}
		ph := hdr.IPv4(noise(t, hdr.IPv4Len))
		ph.Encode(&p)
		same(hdr.IPv4Fields{TOS: ph.TOS(), TotalLen: ph.TotalLen(), ID: ph.ID(), DF: ph.DF(), TTL: ph.TTL(), Protocol: ph.Protocol(),
			Src: ph.Src(), Dst: ph.Dst()}, p)
		same([]any{ph.Version(), ph.HeaderLen(), ph.ChecksumOK(), ph.IsFragment(), len(ph.Options())}, []any{uint8(4), 20, true, false, 0})
		off := 8 * rapid.IntRange(0, 0x1FFF).Draw(t, "offset")
		ph.SetFragOffset(off)
		ph.SetMF(true)
		same([]any{ph.FragOffset(), ph.MF(), ph.DF(), ph.IsFragment()}, []any{off, true, p.DF, true})

		q := hdr.IPv6Fields{
			TrafficClass: rapid.Byte().Draw(t, "tc"), FlowLabel: rapid.Uint32Range(0, 0xFFFFF).Draw(t, "flow"), PayloadLen: u16.Draw(t, "len"),
			NextHeader: rapid.Byte().Draw(t, "next"), HopLimit: rapid.Byte().Draw(t, "hops"), Src: addr16.Draw(t, "src"), Dst: addr16.Draw(t, "dst"),
		}
		qh := hdr.IPv6(noise(t, hdr.IPv6Len))
		qh.Encode(&q)
		same(hdr.IPv6Fields{TrafficClass: qh.TrafficClass(), FlowLabel: qh.FlowLabel(), PayloadLen: qh.PayloadLen(), NextHeader: qh.NextHeader(),
			HopLimit: qh.HopLimit(), Src: qh.Src(), Dst: qh.Dst()}, q)
		g := hdr.GRH(noise(t, hdr.GRHLen))
		g.Encode(&q)
		same(hdr.IPv6Fields{TrafficClass: g.TClass(), FlowLabel: g.FlowLabel(), PayloadLen: g.PayLen(), NextHeader: g.NxtHdr(),
			HopLimit: g.HopLmt(), Src: g.SGID(), Dst: g.DGID()}, q)
		qh.SetTrafficClass(^q.TrafficClass)
		qh.SetFlowLabel(^q.FlowLabel)
		same([]any{qh.Version(), qh.TrafficClass(), qh.FlowLabel()}, []any{uint8(6), ^q.TrafficClass, ^q.FlowLabel & 0xFFFFF})

		u := hdr.UDPFields{SrcPort: u16.Draw(t, "sport"), DstPort: u16.Draw(t, "dport"), Len: u16.Draw(t, "len"), Checksum: u16.Draw(t, "sum")}
		uh := hdr.UDP(noise(t, hdr.UDPLen))
		uh.Encode(&u)
		same(hdr.UDPFields{SrcPort: uh.SrcPort(), DstPort: uh.DstPort(), Len: uh.Len(), Checksum: uh.Checksum()}, u)

		b := hdr.BTHFields{
			OpCode: hdr.Opcode(rapid.Byte().Draw(t, "op")), Solicited: rapid.Bool().Draw(t, "se"), MigReq: rapid.Bool().Draw(t, "m"),
			BECN: rapid.Bool().Draw(t, "becn"), FECN: rapid.Bool().Draw(t, "fecn"), Ack: rapid.Bool().Draw(t, "ack"), Pad: rapid.IntRange(0, 3).Draw(t, "pad"),
			PKey: u16.Draw(t, "pkey"), DestQP: rapid.Uint32Range(0, 0xFFFFFF).Draw(t, "qp"), PSN: rapid.Uint32Range(0, 0xFFFFFF).Draw(t, "psn"),
		}
		bh := hdr.BTH(noise(t, hdr.BTHLen))
		bh.Encode(&b)
		same(hdr.BTHFields{OpCode: bh.OpCode(), Solicited: bh.Solicited(), MigReq: bh.MigReq(), BECN: bh.BECN(), FECN: bh.FECN(), Ack: bh.AckReq(),
			Pad: bh.PadCount(), PKey: bh.PKey(), DestQP: bh.DestQP(), PSN: bh.PSN()}, b)
		bh.SetDestQP(1 << 24)
		bh.SetPSN(1 << 24)
		same([]any{bh.FECN(), bh.BECN(), bh.DestQP(), bh.AckReq(), bh.PSN(), bh.TVer()}, []any{b.FECN, b.BECN, uint32(0), b.Ack, uint32(0), uint8(0)})
	})
}

// A setter changes what its getter reads and nothing that another one reads.
func TestSettersStayInTheirField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, v := noise(t, 44), rapid.Uint64().Draw(t, "v")
		for name, set := range map[string]func(b []byte) (from, to int, got, want uint64){
			"VLAN.PCP": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.VLAN(b)
				h.SetPCP(uint8(v & 7))
				return 0, 3, uint64(h.PCP()), v & 7
			},
			"VLAN.VID": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.VLAN(b)
				h.SetVID(uint16(v))
				return 4, 16, uint64(h.VID()), v & 0xFFF
			},
			"VLAN.EtherType": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.VLAN(b)
				h.SetEtherType(uint16(v))
				return 16, 32, uint64(h.EtherType()), v & 0xFFFF
			},
			"TCP.Seq": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.TCP(b)
				h.SetSeq(uint32(v))
				return 32, 64, uint64(h.Seq()), v & 0xFFFFFFFF
			},
			"TCP.Ack": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.TCP(b)
				h.SetAck(uint32(v))
				return 64, 96, uint64(h.Ack()), v & 0xFFFFFFFF
			},
			"TCP.Flags": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.TCP(b)
				h.SetFlags(uint8(v))
				return 104, 112, uint64(h.Flags()), v & 0xFF
			},
			"TCP.Window": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.TCP(b)
				h.SetWindow(uint16(v))
				return 112, 128, uint64(h.Window()), v & 0xFFFF
			},
			"TCP.Checksum": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.TCP(b)
				h.SetChecksum(uint16(v))
				return 128, 144, uint64(h.Checksum()), v & 0xFFFF
			},
			"ICMP.ID": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.ICMP(b)
				h.SetID(uint16(v))
				return 32, 48, uint64(h.ID()), v & 0xFFFF
			},
			"ICMP.Seq": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.ICMP(b)
				h.SetSeq(uint16(v))
				return 48, 64, uint64(h.Seq()), v & 0xFFFF
			},
			"ICMP.Checksum": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.ICMP(b)
				h.SetChecksum(uint16(v))
				return 16, 32, uint64(h.Checksum()), v & 0xFFFF
			},
			"IPv4.TOS": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.IPv4(b)
				h.SetTOS(uint8(v))
				return 8, 16, uint64(h.TOS()), v & 0xFF
			},
			"IPv4.ID": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.IPv4(b)
				h.SetID(uint16(v))
				return 32, 48, uint64(h.ID()), v & 0xFFFF
			},
			"IPv6.FlowLabel": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.IPv6(b)
				h.SetFlowLabel(uint32(v))
				return 12, 32, uint64(h.FlowLabel()), v & 0xFFFFF
			},
			"IPv6.TrafficClass": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.IPv6(b)
				h.SetTrafficClass(uint8(v))
				return 4, 12, uint64(h.TrafficClass()), v & 0xFF
			},
			"BTH.DestQP": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.BTH(b)
				h.SetDestQP(uint32(v))
				return 40, 64, uint64(h.DestQP()), v & 0xFFFFFF
			},
			"BTH.PSN": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.BTH(b)
				h.SetPSN(uint32(v))
				return 72, 96, uint64(h.PSN()), v & 0xFFFFFF
			},
			"BTH.PadCount": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.BTH(b)
				h.SetPadCount(int(v & 3))
				return 10, 12, uint64(h.PadCount()), v & 3
			},
			"RETH.VA": func(b []byte) (int, int, uint64, uint64) { h := hdr.RETH(b); h.SetVA(v); return 0, 64, h.VA(), v },
			"RETH.RKey": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.RETH(b)
				h.SetRKey(uint32(v))
				return 64, 96, uint64(h.RKey()), v & 0xFFFFFFFF
			},
			"RETH.DMALength": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.RETH(b)
				h.SetDMALength(uint32(v))
				return 96, 128, uint64(h.DMALength()), v & 0xFFFFFFFF
			},
			"AtomicETH.Swap": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.AtomicETH(b)
				h.SetSwap(v)
				return 96, 160, h.Swap(), v
			},
			"AtomicETH.Compare": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.AtomicETH(b)
				h.SetCompare(v)
				return 160, 224, h.Compare(), v
			},
			"Masked.SwapMask": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.MaskedAtomicETH(b)
				h.SetSwapMask(v)
				return 224, 288, h.SwapMask(), v
			},
			"Masked.CompareMask": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.MaskedAtomicETH(b)
				h.SetCompareMask(v)
				return 288, 352, h.CompareMask(), v
			},
			"AETH.MSN": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.AETH(b)
				h.SetMSN(uint32(v))
				return 8, 32, uint64(h.MSN()), v & 0xFFFFFF
			},
			"AETH.Syndrome": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.AETH(b)
				h.SetSyndrome(hdr.Syndrome(v))
				return 0, 8, uint64(h.Syndrome()), v & 0xFF
			},
			"AtomicAck.Original": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.AtomicAckETH(b)
				h.SetOriginal(v)
				return 0, 64, h.Original(), v
			},
			"DETH.QKey": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.DETH(b)
				h.SetQKey(uint32(v))
				return 0, 32, uint64(h.QKey()), v & 0xFFFFFFFF
			},
			"ImmDt.Data": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.ImmDt(b)
				h.SetData(uint32(v))
				return 0, 32, uint64(h.Data()), v & 0xFFFFFFFF
			},
			"IETH.RKey": func(b []byte) (int, int, uint64, uint64) {
				h := hdr.IETH(b)
				h.SetRKey(uint32(v))
				return 0, 32, uint64(h.RKey()), v & 0xFFFFFFFF
			},
		} {
			b := bytes.Clone(n)
			from, to, got, want := set(b)
			if got != want {
				t.Fatalf("%s reads %x, set %x", name, got, want)
			}
			for i := range 8 * len(b) {
				if bit := byte(0x80 >> (i % 8)); (i < from || i >= to) && (b[i/8]^n[i/8])&bit != 0 {
					t.Fatalf("%s changed bit %d", name, i)
				}
			}
		}
	})
}

func plainChecksum(b []byte) uint16 {
	var s uint32
	for i := range b {
		if i%2 == 0 {
			s += uint32(b[i]) << 8
		} else {
			s += uint32(b[i])
		}
		s = s>>16 + s&0xFFFF
	}
	return ^uint16(s)
}

func TestIPv4Checksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := hdr.IPv4Len + 4*rapid.IntRange(0, 10).Draw(t, "options")
		h := hdr.IPv4(rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte{0, 0xFF})), n, n).Draw(t, "header"))
		h[0] = 4<<4 | byte(n/4)
		check := func(what string) {
			got := h.Checksum()
			h.SetChecksum(0)
			if want := hdr.Checksum(h, 0); got != want {
				t.Fatalf("%s: %#x, want %#x", what, got, want)
			}
			h.SetChecksum(got)
		}
		h.UpdateChecksum()
		check("UpdateChecksum")
		if n == hdr.IPv4Len {
			ends := rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "ends")
			h.SetEnds(ends)
			if !bytes.Equal(h[12:20], ends) {
				t.Fatal("other addresses")
			}
			check("SetEnds")
		}
	})
}

func TestChecksum(t *testing.T) {
	for _, v := range vectors(t) {
		var f hdr.Frame
		if hdr.Parse(v.frame, &f); f.Net != hdr.NetIPv4 {
			continue
		}
		if h := f.IPv4Of(v.frame); !h.ChecksumOK() {
			t.Errorf("%s: IPv4 checksum taken for wrong", v.id)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "b")
		if rapid.Bool().Draw(t, "ones") {
			b = bytes.Repeat([]byte{0xFF}, len(b)*50)
		}
		if got, want := hdr.Checksum(b, 0), plainChecksum(b); got != want {
			t.Fatalf("%04x, want %04x", got, want)
		}
		if len(b) < 6 {
			return
		}
		i := 2 * rapid.IntRange(0, len(b)/2-2).Draw(t, "i")
		sum := hdr.Checksum(b, 0)
		old := binary.BigEndian.Uint32(b[i:])
		binary.BigEndian.PutUint16(b[i:], rapid.Uint16().Draw(t, "v"))
		sum = hdr.PatchChecksum(sum, uint16(old>>16), binary.BigEndian.Uint16(b[i:]))
		if got := hdr.Checksum(b, 0); got != sum && got^sum != 0xFFFF { // zero has two forms
			t.Fatalf("patched %04x, full %04x", sum, got)
		}
		old = binary.BigEndian.Uint32(b[i:])
		binary.BigEndian.PutUint32(b[i:], rapid.Uint32().Draw(t, "w"))
		sum = hdr.PatchChecksum32(sum, old, binary.BigEndian.Uint32(b[i:]))
		if got := hdr.Checksum(b, 0); got != sum && got^sum != 0xFFFF {
			t.Fatalf("patched %04x, full %04x", sum, got)
		}
	})
}

// RFC 1624 section 4: the case in which equation 4 of RFC 1141 goes wrong.
func TestPatchChecksumExample(t *testing.T) {
	if got := hdr.PatchChecksum(0xDD2F, 0x5555, 0x3285); got != 0 {
		t.Errorf("%04x, want 0000", got)
	}
}

// The UDP checksum of a real frame that has one (V42, scapy's) is checked by
// gopacket in TestGopacketAgrees; here the sum over the pseudo-header is.
func TestPseudoSum(t *testing.T) {
	src, dst := netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::1")
	p := make([]byte, 40)
	a, b := src.As16(), dst.As16()
	copy(p, a[:])
	copy(p[16:], b[:])
	binary.BigEndian.PutUint32(p[32:], 0x12345)
	p[39] = hdr.ProtoUDP
	if got, want := hdr.Checksum(nil, hdr.PseudoSum(src, dst, hdr.ProtoUDP, 0x12345)), plainChecksum(p); got != want {
		t.Errorf("IPv6 %04x, want %04x", got, want)
	}
	p = append([]byte{10, 0, 0, 1, 10, 0, 0, 2, 0, hdr.ProtoTCP}, 0, 20)
	src, dst = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	if got, want := hdr.Checksum(nil, hdr.PseudoSum(src, dst, hdr.ProtoTCP, 20)), plainChecksum(p); got != want {
		t.Errorf("IPv4 %04x, want %04x", got, want)
	}
}

func TestIPv6Upper(t *testing.T) {
	h := make(hdr.IPv6, 40, 80)
	h[0] = 0x60
	h[6] = hdr.ProtoHopByHop
	h = append(h, hdr.ProtoDstOption, 0, 1, 4, 0, 0, 0, 0)
	h = append(h, append([]byte{hdr.ProtoUDP, 1}, make([]byte, 14)...)...)
	if p, off, ok := h.Upper(); p != hdr.ProtoUDP || off != 64 || !ok {
		t.Errorf("%d at %d, %v", p, off, ok)
	}
	for n := 40; n < 64; n++ {
		if _, _, ok := h[:n].Upper(); ok {
			t.Errorf("extension headers found complete in %d bytes", n)
		}
	}
	h[48] = hdr.ProtoFragment
	if p, off, ok := h.Upper(); p != hdr.ProtoFragment || off != 64 || !ok {
		t.Errorf("%d at %d, %v", p, off, ok)
	}
}

func TestPSNDiff(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		want int32
	}{{1, 0, 1}, {0, 1, -1}, {0, 0xFFFFFF, 1}, {0xFFFFFF, 0, -1}, {0x7FFFFF, 0, 0x7FFFFF}, {0x800000, 0, -0x800000}, {5, 5, 0}} {
		if got := hdr.PSNDiff(c.a, c.b); got != c.want {
			t.Errorf("PSNDiff(%x, %x) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
