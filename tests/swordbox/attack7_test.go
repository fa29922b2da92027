package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
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

// The answer to a READ is lost behind the box, others' atomics go over its client's connection, more than the server has responder resources, and the client's SEND waits for a receive buffer. The client asks again for the READ as often as it may, and is not
// answered: the server does not remember the READ any more. On a bare wire it does.
func TestAttack7RereadForgotten(t *testing.T) {
	for _, retries := range []int{1, 2, 3, 7} {
		for _, resources := range []int{1, 4, 16} {
			t.Run(fmt.Sprintf("%d retries, %d resources", retries, resources), func(t *testing.T) {
				lossy := false
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "shared": "1"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
						var f hdr.Frame
						if lossy && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.ReadRespOnly {
							lossy = false
							return true
						}
						return false
					}}
				}}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 12, retries, 10, 7 // 17 ms; 0.32 ms, without end
					k.MaxDestRdAtomic, k.MaxRdAtomic = resources, resources
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 1<<16, all)
					a := s.Peer(0, 0, l)
					known(t, s, m, a)
					for range 5 {
						a.ReadWord(m, va)
						a.WriteWord(m, va+1024, 1)
					}
					b := s.Peer(1, 0, l)
					known(t, s, m, b, a)
					lossy = true
					read := a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 512)}, RemoteAddr: va + 2048, RKey: m.RKey})
					s.Pause(20 * time.Microsecond)
					was := s.Count("moved")
					for range 30 {
						b.Add(m, va, 1)
					}
					t.Logf("moved %d", s.Count("moved")-was)
					a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
					s.Pause(400 * time.Millisecond)
					t.Logf("READ %v after %v", a.Status(read), a.Latency(read))
					if a.State() == rnic.StateReady {
						if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
							t.Fatal(err)
						}
					}
					a.Await(b)
					healthy(t, a, b)
				})
			})
		}
	}
}

// A malicious client has the server invalidate an R_Key of its own, and repeats an old READ under it while a WRITE of its own is under way, so that it goes to the server under its old PSN; another client's atomic comes over the same connection
// meanwhile. The server refuses the READ, which tells nothing of the atomic: its client is ended.
func TestAttack7RereadRefusedEndsGuest(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "shared": "1"})} {
				s := bed.NewScene(t, bed.SceneConfig{Box: x})
				l := bed.Link{PD: s.PD()}
				m, own := s.MR(l.PD, va, 1<<16, all), s.FastMR(l.PD, 1<<30, 4096, all)
				e, other := s.Peer(0, 0, l), s.Peer(0, 1, l)
				known(t, s, m, e)
				for range 5 {
					e.WriteWord(m, va+1024, 1)
				}
				b := s.Peer(1, 0, l)
				known(t, s, m, b, e)
				e.ReadWord(own, 1<<30)
				_, read := e.Pending()
				if _, st := e.ReadWord(own, 1<<30); st != rnic.Success {
					t.Fatal(st)
				}
				other.Receive(1, 64)
				if st := other.Do(rnic.SendWR{Op: rnic.OpSendInv, SGL: [][]byte{make([]byte, 8)}, RKey: own.RKey}); st != rnic.Success {
					t.Fatal(st)
				}
				s.Stall()
				e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 1024, RKey: m.RKey})
				s.Pause(10 * time.Microsecond)
				repeated, moved := s.Count("repeated"), s.Count("moved")
				s.Send(time.Microsecond, e.Frame(read, bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(1<<30, own.RKey, 8), AckReq: true, SrcMAC: e.Here.ClientMAC}))
				post(b, m, va, 1)
				s.Pause(10 * time.Microsecond)
				t.Logf("repeated %d, moved %d", s.Count("repeated")-repeated, s.Count("moved")-moved)
				s.Thaw()
				b.Await()
				healthy(t, b)
				post(b, m, va, 3)
				b.Await()
			}
		})
	}
}
