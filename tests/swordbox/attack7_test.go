package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tests/bed"
)

// A client guesses its server's queue pair and sends its first requests before the ConnectReply has passed, and its ConnectRequest once more behind them, as one
// that was lost. Then it repeats the first PSN with a WRITE to others' memory, which the server acknowledges unread, and its WRITEs there go over another's connection. On a bare wire the server refuses
// them.
func TestAttack7RightBeforeReply(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, again := range []bool{false, true} { // false: the guess is seen as what came before the ConnectReply
			t.Run(fmt.Sprintf("%s, again %v", mode, again), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
					g := &grabber{managers: newManagers(t, bed.SceneConfig{Box: x})}
					pd, other := g.PD(), g.PD()
					g.m, g.own = g.MR(pd, va, 1<<16, all), g.MR(other, 1<<30, 1<<16, all)
					g.a, g.b = g.Peer(0, 0, bed.Link{PD: pd}), g.Peer(1, 0, bed.Link{PD: pd})
					g.announce(g.a, 1)
					g.announce(g.b, 2)
					g.e = g.Peer(2, 0, bed.Link{PD: other})
					g.others(t)
					c, id := g.e.Here, uint32(3)
					req := func() []byte {
						return datagram(g.e, true, hdr.CMFields{AttributeID: hdr.ConnectRequest, TransactionID: uint64(id), LocalCommID: id, ServiceID: 0x106 << 16, TransportService: hdr.RC, PKey: 0xFFFF, PathMTU: c.MTU,
							LocalGID: c.ClientIP, RemoteGID: c.ServerIP, LocalACKTimeout: 14, RetryCount: 7, RNRRetryCount: 7, LocalQPN: c.ClientQPN, StartingPSN: c.ServerPSN, ResponderResources: 1, InitiatorDepth: 16}).Bytes()
					}
					g.Send(10*time.Microsecond, req())
					for range 5 {
						g.write(t)
					}
					if again {
						g.Send(10*time.Microsecond, req())
					}
					g.server.Send(g.Clock.Now(), datagram(g.e, false, hdr.CMFields{AttributeID: hdr.ConnectReply, TransactionID: uint64(id), LocalCommID: id | 1<<24, RemoteCommID: id, LocalQPN: c.ServerQPN, StartingPSN: c.ClientPSN,
						ResponderResources: 16, InitiatorDepth: 1, RNRRetryCount: 7}).Bytes())
					g.Pause(50 * time.Microsecond)
					g.Send(10*time.Microsecond, datagram(g.e, true, hdr.CMFields{AttributeID: hdr.ReadyToUse, TransactionID: uint64(id), LocalCommID: id, RemoteCommID: id | 1<<24}).Bytes())
					for k := range g.n {
						g.Send(5*time.Microsecond, g.made(c.ClientPSN+k, true))
					}
					g.grab(t)
				}
			})
		}
	}
}
