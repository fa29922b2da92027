package match_test

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/match"
)

// A match holds for a frame if all of its terms do.
func ExampleMatch() {
	m, err := match.Parse("dst:10.0.0.0/8+proto:17")
	if err != nil {
		fmt.Println(err)
		return
	}
	frame := make([]byte, hdr.EthernetLen+hdr.IPv4Len+hdr.UDPLen)
	hdr.Ethernet(frame).SetEtherType(hdr.EtherIPv4)
	ip := hdr.IPv4(frame[hdr.EthernetLen:])
	ip.Encode(&hdr.IPv4Fields{TotalLen: hdr.IPv4Len + hdr.UDPLen, TTL: 64, Protocol: hdr.ProtoUDP, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("10.1.2.3")})
	var l hdr.Layers
	hdr.Walk(frame, &l)
	fmt.Println(m, m.Holds(frame, &l))
	r := m.Reverse()
	fmt.Println(r, r.Holds(frame, &l))
	// Output:
	// proto:17+dst:10.0.0.0/8 true
	// proto:17+src:10.0.0.0/8 false
}
