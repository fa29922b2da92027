package hdr

import (
	"testing"

	"pgregory.net/rapid"
)

// changing is an IPv4 RoCEv2 frame with an opcode and what follows the BTH.
func changing(op Opcode, qpn uint32, rest ...byte) []byte {
	n := IPv4Len + UDPLen + BTHLen + len(rest) + ICRCLen
	b := make([]byte, EthernetLen+n)
	Ethernet(b).SetEtherType(EtherIPv4)
	b[14], b[23] = 0x45, ProtoUDP
	IPv4(b[14:]).SetTotalLen(uint16(n))
	UDP(b[34:]).Encode(&UDPFields{SrcPort: 0xC000, DstPort: RoCEv2Port, Len: uint16(n - IPv4Len)})
	BTH(b[42:]).Encode(&BTHFields{OpCode: op, PKey: 0xFFFF, DestQP: qpn})
	copy(b[54:], rest)
	return b
}

func TestChangeOf(t *testing.T) {
	own := make([]byte, 12) // XRCETH, or RDETH and DETH
	reth := []byte{0, 0, 0, 0, 0, 0, 0x70, 0x20, 0, 0, 0x12, 0x34, 0, 1, 0, 0}
	atomic := append(reth[:12:12], make([]byte, 16)...)
	cat := func(a, b []byte) []byte { return append(a[:len(a):len(a)], b...) }
	set := func(b []byte, at int, v ...byte) []byte { copy(b[at:], v); return b }
	six := func(next byte, ext ...byte) []byte {
		b := changing(WriteOnly, 9, reth...)
		udp := b[34:]
		h := make([]byte, IPv6Len)
		h[0], h[6] = 0x60, next
		IPv6(h).SetPayloadLen(uint16(len(ext) + len(udp)))
		return append(append(append(set(b[:12:12], 12), 0x86, 0xDD), h...), cat(ext, udp)...)
	}
	write, word := Change{ReachRange, 0x7020, 0x10000}, Change{ReachRange, 0x7020, 8}
	none, rc, more, send, some := Change{}, Change{Reach: ReachRC}, Change{Reach: ReachMore}, Change{Reach: ReachSend}, Change{Reach: ReachAny}
	for name, x := range map[string]struct {
		b    []byte
		want Change
	}{
		"RC write":               {changing(WriteOnly, 9, reth...), rc},
		"RC ack":                 {changing(Acknowledge, 9, 0, 0, 0, 0), rc},
		"UC write":               {changing(UC|WriteOnly, 9, reth...), write},
		"UC write first":         {changing(UC|WriteFirst, 9, reth...), write},
		"UC write middle":        {changing(UC|WriteMiddle, 9), more},
		"UC send":                {changing(UC|SendOnly, 9), send},
		"XRC write":              {changing(xrc|WriteOnly, 9, cat(own[:4], reth)...), write},
		"XRC swap":               {changing(xrc|CompareSwap, 9, cat(own[:4], atomic)...), word},
		"XRC masked add":         {changing(xrc|MaskedFetchAdd, 9, cat(own[:4], cat(atomic, own[:4]))...), none},
		"XRC masked add, whole":  {changing(xrc|MaskedFetchAdd, 9, cat(own[:4], cat(atomic, make([]byte, 16)))...), word},
		"XRC atomic write":       {changing(xrc|AtomicWrite, 9, cat(own[:4], cat(reth, own[:8]))...), word},
		"XRC read":               {changing(xrc|ReadRequest, 9, cat(own[:4], reth)...), none},
		"XRC ack":                {changing(xrc|Acknowledge, 9, 0, 0, 0, 0), none},
		"XRC send":               {changing(xrc|SendOnly, 9, own[:4]...), send},
		"XRC, unknown":           {changing(xrc|0x1F, 9, own...), some},
		"XRC write, cut":         {changing(xrc|WriteOnly, 9, reth...), none},
		"RD swap":                {changing(RD|CompareSwap, 9, cat(own, atomic)...), word},
		"UD send":                {changing(UDSendOnly, 9, own[:8]...), send},
		"connection manager":     {changing(UDSendOnly, 1, own[:8]...), none},
		"CNP":                    {changing(CNP, 9, make([]byte, 16)...), none},
		"reserved":               {changing(0xC0, 9, reth...), some},
		"manufacturer":           {changing(MFR, 9, reth...), some},
		"RC, unknown":            {changing(0x1F, 9, reth...), some},
		"other transport":        {set(changing(WriteOnly, 9, reth...), 43, 1), some},
		"swap and more":          {changing(CompareSwap, 9, cat(atomic, own)...), word},
		"short UDP":              {set(changing(WriteOnly, 9, reth...), 38, 0, 32), some},
		"long UDP":               {set(changing(WriteOnly, 9, reth...), 38, 9, 0), none},
		"no UDP":                 {set(changing(WriteOnly, 9, reth...), 38, 0, 8), none},
		"options of IPv4":        {set(cat(cat(changing(WriteOnly, 9, reth...)[:34], own[:4]), changing(WriteOnly, 9, reth...)[34:]), 14, 0x46, 0, 0, 64), rc},
		"first fragment":         {set(changing(WriteOnly, 9, reth...), 20, 0x20), some},
		"first, of another port": {set(set(changing(WriteOnly, 9, reth...), 20, 0x20), 36, 9), none},
		"later fragment":         {set(set(changing(WriteOnly, 9, reth...), 20, 0x20, 9), 36, 9), some},
		"last fragment":          {set(changing(WriteOnly, 9, reth...), 20, 0, 9), some},
		"fragment of TCP":        {set(changing(WriteOnly, 9, reth...), 20, 0x20, 9, 64, ProtoTCP), none},
		"TCP":                    {set(changing(WriteOnly, 9, reth...), 23, ProtoTCP), none},
		"cut":                    {changing(WriteOnly, 9, reth...)[:60], none},
		"three tags":             {cat([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1}, changing(WriteOnly, 9, reth...)[12:]), some},
		"IPv6":                   {six(ProtoUDP), rc},
		"IPv6, options":          {six(ProtoDstOption, ProtoUDP, 0, 1, 4, 0, 0, 0, 0), rc},
		"IPv6, first fragment":   {six(ProtoFragment, ProtoUDP, 0, 0, 1, 0, 0, 0, 0), some},
		"IPv6, later fragment":   {six(ProtoFragment, ProtoUDP, 0, 0, 9, 0, 0, 0, 0), some},
		"IPv6, options within":   {six(ProtoFragment, ProtoDstOption, 0, 0, 1, 0, 0, 0, 0), some},
		"IPv6, fragment of TCP":  {six(ProtoFragment, ProtoTCP, 0, 0, 9, 0, 0, 0, 0), none},
		"IPv6, options, later":   {six(ProtoHopByHop, ProtoFragment, 0, 1, 4, 0, 0, 0, 0, ProtoUDP, 0, 1, 8, 0, 0, 0, 0), some},
		"IPv6, TCP":              {six(ProtoTCP), none},
		"nothing":                {nil, none},
	} {
		var f Frame
		Parse(x.b, &f)
		if got := ChangeOf(x.b, &f); got != x.want {
			t.Errorf("%s (%v): %+v, want %+v", name, f.Why, got, x.want)
		}
	}
}

// Any bytes at all have an answer.
func TestChangeOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := changing(Opcode(rapid.Byte().Draw(t, "op")), 9, rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "rest")...)
		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			b[rapid.IntRange(12, 60).Draw(t, "at")%len(b)] = rapid.Byte().Draw(t, "byte")
		}
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		var f Frame
		Parse(b, &f)
		if c := ChangeOf(b, &f); c.Reach > ReachAny || c.Reach != ReachRange && (c.VA != 0 || c.Len != 0) {
			t.Fatalf("%+v", c)
		}
	})
}

func BenchmarkChangeOf(b *testing.B) {
	for name, x := range map[string][]byte{"rc": changing(WriteOnly, 9, make([]byte, 16)...), "tcp": append(changing(WriteOnly, 9)[:23:23], append([]byte{ProtoTCP}, make([]byte, 40)...)...),
		"xrc": changing(xrc|WriteOnly, 9, make([]byte, 20)...), "fragment": append(changing(WriteOnly, 9)[:20:20], append([]byte{0x20, 9, 64, ProtoUDP}, make([]byte, 42)...)...)} {
		var f Frame
		Parse(x, &f)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ChangeOf(x, &f)
			}
		})
	}
}
