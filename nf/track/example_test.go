package track_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/track"
)

// A connection is written as conntrack -L writes it. A filter chooses connections by any of its fields.
func ExampleConnection() {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	c := track.Connection{
		App: "firewall", Proto: hdr.ProtoTCP, State: "ESTABLISHED", Left: 5 * time.Minute, Assured: true,
		Orig:  track.Tuple{Src: a, Dst: b, SPort: 40000, DPort: 80},
		Reply: track.Tuple{Src: b, Dst: a, SPort: 80, DPort: 40000},
	}
	fmt.Println(&c)
	fmt.Println((&track.Filter{DPort: 80}).Has(&c), (&track.Filter{DPort: 443}).Has(&c))
	// Output:
	// tcp      6 300 ESTABLISHED src=10.0.0.1 dst=192.0.2.1 sport=40000 dport=80 src=192.0.2.1 dst=10.0.0.1 sport=80 dport=40000 [ASSURED] app=firewall
	// true false
}
