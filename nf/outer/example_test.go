package outer_test

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// The headers of a tunnel are made once, and put in front of each frame.
func ExampleHeader() {
	h := outer.New(outer.Config{
		LocalMAC: [6]byte{2, 0, 0, 0, 0, 1}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Local: netip.MustParseAddr("192.0.2.1"), Remote: netip.MustParseAddr("192.0.2.2"),
		TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN,
	})
	frame := make([]byte, h.Len()+100)
	h.Put(frame, 0, 0)
	ip := hdr.IPv4(frame[hdr.EthernetLen:])
	fmt.Println(h.Len(), ip.Dst(), ip.TotalLen())
	// Output:
	// 42 192.0.2.2 128
}
