package balance

import (
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/track"
)

// Hooks implements graph.Hooked.
func (b *balance) Hooks() graph.Hooks { return graph.Hooks{Connections: b.connections} }

// connections are those that this worker remembers. What the backend answered is not known.
func (b *balance) connections(c *graph.Ctx, from, n int, f func(*track.Connection)) int {
	return b.conns.Some(from, n, func(i int) {
		p := b.conns.At(i)
		left := b.idle - c.Now().Sub(b.conns.since(b, i, c.Now(), b.idle))
		if left < 0 || int(p.Val.backend) >= len(b.backends) {
			return
		}
		client, vip := netip.AddrFrom16(p.Key.client), b.vip[1]
		if p.Key.net == hdr.NetIPv4 {
			client, vip = netip.AddrFrom4([4]byte(p.Key.client[:4])), b.vip[0]
		}
		f(&track.Connection{
			Proto: p.Key.proto, Left: left, Offload: p.Val.flows.Any(),
			Orig:  track.Tuple{Src: client, Dst: vip, SPort: p.Key.port, DPort: b.port},
			Reply: track.Tuple{Src: b.backends[p.Val.backend].addr, Dst: client, SPort: b.port, DPort: p.Key.port},
		})
	})
}
