package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Clients whose SENDs find no receive buffer send on and on. What they send waits in the
// box. It may take no more of the room for frames than is left (hold=): nobody else
// loses a frame for want of it, or waits longer, and words stay known.
func TestHog(t *testing.T) {
	const rounds = 100
	alone := uint64(0)
	for hogs := range 3 {
		t.Run(fmt.Sprint(hogs), func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Clients: 5, Box: ofSwordbox(graph.Args{"writable": "assume", "hold": "128", "window": "64", "settle": "60us", "pair": "60us"}), Profile: rnic.RXE}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				var p []*bed.Peer
				for i := range 3 + hogs {
					p = append(p, s.Peer(i, 0, bed.Link{PD: pd}))
				}
				known(t, s, m, p...)
				for _, x := range p[3:] {
					psn := x.Here.ClientPSN + 20
					frames := [][]byte{x.Frame(psn, bed.Packet{Op: hdr.SendOnly, Payload: make([]byte, 8), AckReq: true})}
					for n := range uint32(300) {
						frames = append(frames, x.Frame(psn+1+n, bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va+2048, m.RKey, 8), AckReq: true}))
					}
					s.Send(100*time.Nanosecond, frames...)
				}
				before, full := s.Count("replaced-atomic"), s.Count("hold-full")
				worst := time.Duration(0)
				for n := range rounds {
					first := p[0].Posted()
					for _, q := range p[:3] {
						op := rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + uint64(n%2*8), RKey: m.RKey, Swap: 1}
						if n%5 == 4 {
							op = rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 24)}, RemoteAddr: va, RKey: m.RKey}
						}
						for range 4 {
							q.Post(op)
						}
					}
					p[0].Await(p[1], p[2])
					for id := first; id < p[0].Posted(); id++ {
						worst = max(worst, p[0].Latency(id))
					}
				}
				healthy(t, p[:3]...)
				if s.Instance() == nil {
					return
				}
				if gain := s.Count("replaced-atomic") - before; hogs == 0 {
					alone = gain
				} else if gain < alone*9/10 {
					t.Errorf("%d atomics were replaced, want about %d as without the others", gain, alone)
				}
				if n := s.Count("hold-full") - full; n != 0 || worst > time.Millisecond {
					t.Errorf("%d frames found no room, one took %v", n, worst)
				}
			})
		})
	}
}
