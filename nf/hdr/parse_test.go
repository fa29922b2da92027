package hdr_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/hdr"
)

func TestParseFindsEverything(t *testing.T) {
	for _, c := range []struct {
		id   string
		want hdr.Frame
	}{
		{"V01", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.WriteOnly, L3: 14, L4: 34, BTH: 42, Payload: 70, End: 1094, Plain: true}},
		{"V05", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.CompareSwap, L3: 14, L4: 34, BTH: 42, Payload: 82, End: 82, Plain: true}},
		{"V07", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.AtomicAck, L3: 14, L4: 34, BTH: 42, Payload: 66, End: 66, Plain: true}},
		{"V20", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.MaskedCompSwap, L3: 14, L4: 34, BTH: 42, Payload: 98, End: 98, Plain: true}},
		{"V30", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.UDSendOnly, L3: 14, L4: 34, BTH: 42, Payload: 62, End: 318, Plain: true}},
		{"V40", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.CNP, L3: 14, L4: 34, BTH: 42, Payload: 54, End: 70, Plain: true}},
		{"V42", hdr.Frame{Net: hdr.NetIPv4, Op: hdr.UC | hdr.SendOnly, L3: 14, L4: 34, BTH: 42, Payload: 54, End: 74, Pad: 2, Plain: true}},
		{"V50", hdr.Frame{Net: hdr.NetIPv6, Op: hdr.UC | hdr.SendOnly, L3: 14, L4: 54, BTH: 62, Payload: 74, End: 94, Pad: 2}},
		{"V51", hdr.Frame{Net: hdr.NetGRH, Op: hdr.WriteOnly, L3: 14, BTH: 54, Payload: 82, End: 90, Pad: 3}},
		{"V52", hdr.Frame{Net: hdr.NetGRH, Op: hdr.Acknowledge, L3: 14, BTH: 54, Payload: 70, End: 70}},
	} {
		b, f := frameOf(t, c.id)
		if d := cmp.Diff(c.want, *f); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.id, d)
		}
		// Two tags move everything by eight bytes; a trailer moves nothing.
		tagged := append(bytes.Clone(b[:12]), 0x88, 0xA8, 0xE0, 0x01, 0x81, 0x00, 0x00, 0x64)
		tagged = append(append(tagged, b[12:]...), 0, 0, 0)
		w := c.want
		w.Plain = false
		w.Tags, w.L3, w.BTH, w.Payload, w.End = 2, w.L3+8, w.BTH+8, w.Payload+8, w.End+8
		if w.L4 != 0 {
			w.L4 += 8
		}
		var g hdr.Frame
		hdr.Parse(tagged, &g)
		if d := cmp.Diff(w, g); d != "" {
			t.Errorf("%s tagged (-want +got):\n%s", c.id, d)
			continue
		}
		if v, w := g.VLANOf(tagged, 0), g.VLANOf(tagged, 1); v.PCP() != 7 || v.VID() != 1 || v.EtherType() != hdr.EtherVLAN || w.VID() != 100 {
			t.Errorf("%s: tags %x %x", c.id, v, w)
		}
		if hdr.ICRC(tagged, &g) != hdr.StoredICRC(tagged, &g) {
			t.Errorf("%s: a VLAN tag changed the ICRC", c.id)
		}
	}
}

func TestParseFields(t *testing.T) {
	b, f := frameOf(t, "V05")
	a := f.AtomicETHOf(b)
	if h := f.BTHOf(b); h.DestQP() != 0x5435 || h.PSN() != 0xc72 || !h.AckReq() || !h.MigReq() || h.PKey() != 0xFFFF {
		t.Errorf("BTH %x", h)
	}
	if a.VA() != 0x557a46b7a500 || a.RKey() != 0x57251 || a.Swap() != 0x8f4800080800 || a.Compare() != 0x800 {
		t.Errorf("AtomicETH %x", a)
	}
	b, f = frameOf(t, "V29")
	if h := f.AETHOf(b); !h.Syndrome().NAK() || h.Syndrome() != hdr.SynNAKInvalidRequest || h.MSN() != 4 {
		t.Errorf("AETH %x", h)
	}
	b, f = frameOf(t, "V27")
	if f.AETHOf(b).MSN() != 4 || f.AtomicAckETHOf(b).Original() != 0x80 {
		t.Errorf("ATOMIC ACK %x", b)
	}
	b, f = frameOf(t, "V26")
	if m := f.MaskedAtomicETHOf(b); m.VA() != 0 || m.RKey() != 0x2521 || m.Swap() != 0 || m.Compare() != 0x80 || m.SwapMask() != 0x80 || m.CompareMask() != 0x80 {
		t.Errorf("masked atomic %x", m)
	}
	b, f = frameOf(t, "V51")
	if h := f.RETHOf(b); h.DMALength() != 5 || len(f.PayloadOf(b)) != 5 {
		t.Errorf("RETH %x, payload %x", h, f.PayloadOf(b))
	}
	b, f = frameOf(t, "V40")
	if h := f.BTHOf(b); !h.BECN() || h.FECN() || f.IPv4Of(b).TOS() != 0xC2 || f.UDPOf(b).Len() != 40 {
		t.Errorf("CNP %x", b)
	}
	b, f = frameOf(t, "V50")
	if h := f.IPv6Of(b); h.TrafficClass() != 0xe2 || h.FlowLabel() != 0x1face || h.HopLimit() != 0xff {
		t.Errorf("IPv6 %x", h)
	}
}

func TestParseSaysWhyNot(t *testing.T) {
	set := func(at int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], v); return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for _, c := range []struct {
		name, id string
		change   func([]byte) []byte
		want     hdr.Why
	}{
		{"no Ethernet header", "V05", cut(13), hdr.Truncated},
		{"no IPv4 header", "V05", cut(33), hdr.Truncated},
		{"cut in the ICRC", "V05", cut(85), hdr.Truncated},
		{"another EtherType", "V05", set(12, 0x08, 0x06), hdr.NotRoCE},
		{"length field", "V05", set(12, 0x00, 0x48), hdr.NotRoCE},
		{"half a tag", "V05", func(b []byte) []byte { return append(b[:12], 0x81, 0, 0) }, hdr.Truncated},
		{"three tags", "V05", func(b []byte) []byte {
			return append(b[:12], 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x08, 0)
		}, hdr.DeepTags},
		{"IPv4 says 6", "V05", set(14, 0x65), hdr.BadIP},
		{"IPv4 header of 16 bytes", "V05", set(14, 0x44), hdr.BadIP},
		{"IPv4 shorter than its header", "V05", set(16, 0, 19), hdr.BadLength},
		{"IPv4 longer than the frame", "V05", set(16, 0, 73), hdr.Truncated},
		{"first fragment", "V05", set(20, 0x20, 0), hdr.Fragment},
		{"last fragment", "V05", set(20, 0, 1), hdr.Fragment},
		{"TCP", "V05", set(23, hdr.ProtoTCP), hdr.NotRoCE},
		{"another port", "V05", set(36, 0, 53), hdr.NotRoCE},
		{"UDP shorter than IP", "V05", set(38, 0, 51), hdr.BadLength},
		{"UDP longer than IP", "V05", set(38, 0, 53), hdr.BadLength},
		{"UDP length 7", "V05", set(38, 0, 7), hdr.BadLength},
		{"no room for a UDP header", "V05", set(16, 0, 27), hdr.Truncated},
		{"no room for BTH and ICRC", "V05", func(b []byte) []byte { b[17], b[39] = 20+8+15, 8+15; return b }, hdr.Truncated},
		{"no room for the AtomicETH", "V05", func(b []byte) []byte { b[17], b[39] = 71, 51; return b }, hdr.Truncated},
		{"payload where none may be", "V05", set(42, byte(hdr.ReadRequest)), hdr.BadLength},
		{"pad where no payload is", "V05", set(43, 0x10), hdr.Truncated},
		{"more pad than payload", "V51", set(45+12, 0x30), hdr.IsRoCE},
		{"unknown opcode", "V05", set(42, 0x15), hdr.UnknownOpcode},
		{"manufacturer's opcode", "V05", set(42, 0xE1), hdr.UnknownOpcode},
		{"transport version 1", "V05", set(43, 0x41), hdr.BadVersion},
		{"no IPv6 header", "V50", cut(53), hdr.Truncated},
		{"IPv6 says 4", "V50", set(14, 0x4E), hdr.BadIP},
		{"IPv6 longer than the frame", "V50", set(18, 0xFF, 0xFF), hdr.Truncated},
		{"IPv6 fragment", "V50", set(20, hdr.ProtoFragment), hdr.Fragment},
		{"ICMPv6", "V50", set(20, hdr.ProtoICMPv6), hdr.NotRoCE},
		{"extension header without end", "V50", func(b []byte) []byte { b[20], b[55] = hdr.ProtoHopByHop, 200; return b }, hdr.Truncated},
		{"no GRH", "V52", cut(53), hdr.Truncated},
		{"GRH says 4", "V52", set(14, 0x40), hdr.BadIP},
		{"GRH longer than the frame", "V52", set(18, 0, 21), hdr.Truncated},
		{"GRH with another next header", "V52", set(20, 17), hdr.NotRoCE},
		{"more than any datagram", "V05", func(b []byte) []byte { return append(b, make([]byte, 0x10000)...) }, hdr.BadLength},
	} {
		b, _ := frameOf(t, c.id)
		var f hdr.Frame
		if got := hdr.Parse(c.change(b), &f); got != c.want || f.Why != got {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The table once more, by hand: opcode, bytes of extended headers, name.
func TestOpcodeTable(t *testing.T) {
	rc := map[hdr.Opcode]struct {
		len  uint8
		name string
	}{
		0x00: {0, "SEND FIRST"}, 0x01: {0, "SEND MIDDLE"}, 0x02: {0, "SEND LAST"}, 0x03: {4, "SEND LAST IMM"},
		0x04: {0, "SEND ONLY"}, 0x05: {4, "SEND ONLY IMM"}, 0x06: {16, "WRITE FIRST"}, 0x07: {0, "WRITE MIDDLE"},
		0x08: {0, "WRITE LAST"}, 0x09: {4, "WRITE LAST IMM"}, 0x0A: {16, "WRITE ONLY"}, 0x0B: {20, "WRITE ONLY IMM"},
		0x0C: {16, "READ REQUEST"}, 0x0D: {4, "READ RESPONSE FIRST"}, 0x0E: {0, "READ RESPONSE MIDDLE"},
		0x0F: {4, "READ RESPONSE LAST"}, 0x10: {4, "READ RESPONSE ONLY"}, 0x11: {4, "ACK"}, 0x12: {12, "ATOMIC ACK"},
		0x13: {28, "COMPARE SWAP"}, 0x14: {28, "FETCH ADD"}, 0x16: {4, "SEND LAST INV"}, 0x17: {4, "SEND ONLY INV"},
		0x18: {44, "MASKED COMPARE SWAP"}, 0x19: {44, "MASKED FETCH ADD"}, 0x1C: {20, "FLUSH"}, 0x1D: {16, "ATOMIC WRITE"},
	}
	for i := range 256 {
		op := hdr.Opcode(i)
		want, wantLen := "", uint8(0)
		switch x := rc[op&0x1F]; {
		case op.Transport() == hdr.RC && x.name != "":
			want, wantLen = "RC "+x.name, x.len
		case op.Transport() == hdr.UC && op&0x1F <= 0x0B:
			want, wantLen = "UC "+x.name, x.len
		case op == 0x64 || op == 0x65:
			want, wantLen = "UD "+x.name, x.len+8
		case op == 0x81:
			want = "CNP"
		}
		i := op.Info()
		if i.Name != want || i.Len != wantLen {
			t.Errorf("%02x: %q with %d bytes, want %q with %d", uint8(op), i.Name, i.Len, want, wantLen)
		}
		if want == "" {
			if op.String() == "" || i.Flags != 0 || i.Ext != 0 {
				t.Errorf("%02x: %v %+v", uint8(op), op, i)
			}
			continue
		}
		parts := 0
		for _, fl := range []hdr.OpFlags{hdr.IsFirst, hdr.IsMiddle, hdr.IsLast, hdr.IsOnly} {
			if op.Has(fl) {
				parts++
			}
		}
		if parts != 1 || op.Has(hdr.IsRequest|hdr.IsResponse) || (op != hdr.CNP && !op.Any(hdr.IsRequest|hdr.IsResponse)) {
			t.Errorf("%v: flags %b", op, i.Flags)
		}
	}
}

// walk reads all that Parse says is there; it panics when that is not so.
func walk(t *testing.T, b []byte, f *hdr.Frame) {
	if f.BTH == 0 {
		return
	}
	if f.Net == hdr.NetNone || f.L3 < 14 || f.BTH <= f.L3 || int(f.End)+hdr.ICRCLen > len(b) || f.End < f.BTH+hdr.BTHLen {
		t.Fatalf("%+v of %d bytes", f, len(b))
	}
	switch f.Net {
	case hdr.NetIPv4:
		f.IPv4Of(b).Options()
	case hdr.NetIPv6:
		f.IPv6Of(b).Dst()
	default:
		f.GRHOf(b).DGID()
	}
	if f.L4 != 0 && f.UDPOf(b).DstPort() != hdr.RoCEv2Port {
		t.Fatal("not the port")
	}
	if f.BTHOf(b).OpCode() != f.Op {
		t.Fatal("not the opcode")
	}
	if f.Why != hdr.IsRoCE {
		return
	}
	n := 0
	for _, x := range []struct {
		bit hdr.Ext
		of  func([]byte) []byte
	}{
		{hdr.HasFETH, func(b []byte) []byte { return f.FETHOf(b) }},
		{hdr.HasDETH, func(b []byte) []byte { return f.DETHOf(b) }},
		{hdr.HasRETH, func(b []byte) []byte { return f.RETHOf(b) }},
		{hdr.HasAtomicETH, func(b []byte) []byte { return f.AtomicETHOf(b) }},
		{hdr.HasMaskedAtomicETH, func(b []byte) []byte { return f.MaskedAtomicETHOf(b) }},
		{hdr.HasAETH, func(b []byte) []byte { return f.AETHOf(b) }},
		{hdr.HasAtomicAckETH, func(b []byte) []byte { return f.AtomicAckETHOf(b) }},
		{hdr.HasImmDt, func(b []byte) []byte { return f.ImmDtOf(b) }},
		{hdr.HasIETH, func(b []byte) []byte { return f.IETHOf(b) }},
	} {
		if f.Op.Info().Ext&x.bit != 0 {
			n += len(x.of(b))
		}
	}
	if n != int(f.Op.Info().Len) || int(f.BTH)+hdr.BTHLen+n != int(f.Payload) {
		t.Fatalf("%v: %d bytes of extended headers, payload at %d", f.Op, n, f.Payload)
	}
	if p := f.PayloadOf(b); len(p)+int(f.Pad) != int(f.End-f.Payload) || len(p) != cap(p) {
		t.Fatalf("payload of %d, %+v", len(p), f)
	}
	if m, ok := f.CMOf(b); ok {
		walkCM(m)
	}
}

// Every prefix of every real frame, and every frame with one byte changed in
// its headers, parses without a panic into offsets that hold.
func TestParseIsTotal(t *testing.T) {
	for _, v := range vectors(t) {
		var f hdr.Frame
		for n := range v.frame {
			hdr.Parse(v.frame[:n:n], &f)
			walk(t, v.frame[:n:n], &f)
		}
		for i := 12; i < min(len(v.frame), 110); i++ {
			for x := range 256 {
				b := bytes.Clone(v.frame)
				b[i] = byte(x)
				hdr.Parse(b, &f)
				walk(t, b, &f)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.frame)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr hdr.Frame
		if hdr.Parse(b, &fr) >= hdr.NumWhy || fr.Why.String() == "why?" {
			t.Fatal(fr.Why)
		}
		walk(t, b, &fr)
		if fr.End != 0 {
			hdr.SetICRC(b, &fr)
			if binary.LittleEndian.Uint32(b[fr.End:]) != plainICRC(b, &fr) {
				t.Fatal("ICRC")
			}
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	frames := corpus(t)
	i := 0
	allocs := testing.AllocsPerRun(len(frames), func() {
		var f hdr.Frame
		b := frames[i%len(frames)]
		i++
		hdr.Parse(b, &f)
		if f.End == 0 {
			return
		}
		hdr.SetICRC(b, &f)
		at := int(f.BTH) + 5
		old := [7]byte(b[at:])
		f.BTHOf(b).SetDestQP(77)
		f.BTHOf(b).SetPSN(78)
		hdr.PatchICRC(b, &f, at, old[:])
		if f.Net == hdr.NetIPv4 {
			f.IPv4Of(b).SetDst(f.IPv4Of(b).Src())
			f.IPv4Of(b).UpdateChecksum()
		}
		if m, ok := f.CMOf(b); ok {
			walkCM(m)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a frame", allocs)
	}
	// Options and extension headers take another way through the ICRC.
	b, f := frameOf(t, "V05")
	long := append(bytes.Clone(b[:34]), make([]byte, 40)...)
	long = append(long, b[34:]...)
	long[14], long[17] = 0x4F, 72+40
	if why := hdr.Parse(long, f); why != hdr.IsRoCE {
		t.Fatal(why)
	}
	if n := testing.AllocsPerRun(10, func() { hdr.SetICRC(long, f) }); n != 0 {
		t.Errorf("%v allocations with options", n)
	}
}
