package fence

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// A client that is declared dead gets nothing into the server's memory, whichever transport its requests are of: clients of ConnectX have XRC (IBTA annex A14) and DC beside RC, over the same UDP port and with the same R_Keys,
// and Linux' rxe executes requests that come in IP fragments.
func TestAttack13OtherTransports(t *testing.T) {
	writes := about(frames(t), func(b []byte, f *hdr.Frame) bool { return from(16, false)(b, f) && f.Op == hdr.WriteOnly })
	if len(writes) == 0 {
		t.Fatal("no WRITE")
	}
	var f hdr.Frame
	hdr.Parse(writes[0], &f)
	// of makes of it a request of a transport whose own header is n bytes long.
	of := func(op hdr.Opcode, n int) []byte {
		b := slices.Insert(slices.Clone(writes[0]), int(f.BTH)+hdr.BTHLen, make([]byte, n)...)
		b[f.BTH] = byte(op)
		ip := hdr.IPv4(b[f.L3:])
		ip.SetTotalLen(uint16(len(b) - int(f.L3)))
		ip.UpdateChecksum()
		binary.BigEndian.PutUint16(b[f.L4+4:], uint16(len(b)-int(f.L4)))
		return b
	}
	fragments := func() [][]byte {
		const first = 40 // bytes of the datagram: headers of UDP, BTH and RETH, and no more
		var parts [][]byte
		for _, x := range []struct {
			from, to int
			at       uint16
		}{{0, first, 0x2000}, {first, len(writes[0]) - int(f.L4), first / 8}} {
			b := append(slices.Clone(writes[0][:f.L4]), writes[0][int(f.L4)+x.from:int(f.L4)+x.to]...)
			ip := hdr.IPv4(b[f.L3:])
			binary.BigEndian.PutUint16(ip[6:], x.at)
			ip.SetTotalLen(uint16(len(b) - int(f.L3)))
			ip.UpdateChecksum()
			parts = append(parts, b)
		}
		return parts
	}
	const xrc, dc = hdr.Opcode(0xA0), hdr.Opcode(0xC0)
	for name, all := range map[string][][]byte{
		"RC":                   writes[:1],
		"UC":                   {of(hdr.UC|hdr.WriteOnly, 0)},
		"XRC WRITE":            {of(xrc|hdr.WriteOnly, 4)},
		"XRC compare-and-swap": {of(xrc|hdr.CompareSwap, 16)},
		"DC WRITE":             {of(dc|hdr.WriteOnly, 8)},
		"a WRITE in fragments": fragments(),
		"a manufacturer's":     {of(hdr.MFR|hdr.WriteOnly, 0)},
	} {
		for _, fence := range []string{"10.9.0.16-10.9.0.1", "10.9.0.16-10.9.0.1@0x1234", "10.9.0.16-10.9.0.1/0x200"} {
			x := graphtest.New(t, *Kind(), graph.Args{"fence": fence})
			passed := 0
			for _, b := range all {
				passed += len(x.Push("a", b).Out["b"])
			}
			if passed == len(all) {
				t.Errorf("%s: %s: nothing of it is dropped", fence, name)
			}
		}
	}
}
