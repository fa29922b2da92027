package swordbox

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A client guesses its server's queue pair and sends its first requests before the ConnectReply has passed, and its ConnectRequest once more behind them, as one
// that was lost, or so many others before that nobody notes them. Then it repeats the first PSN with a WRITE to others' memory, which the server acknowledges unread, and its WRITEs there go over another's connection. On a bare wire the server refuses
// them.
func TestAttack7RightBeforeReply(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, how := range []string{"first", "again", "full", "infer=off", "in pieces"} { // first: the guess is seen as what came before the ConnectReply; the last three: it is not noted
			t.Run(mode+", "+how, func(t *testing.T) {
				args := graph.Args{"mode": mode}
				if how == "infer=off" {
					args["infer"] = "off"
				}
				for _, x := range []*bed.Box{nil, ofSwordbox(args)} {
					g := &grabber{managers: &managers{}}
					g.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Profile: rnic.RXE, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
						if machine == "s0" {
							g.server = x
							return &joining{Endpoint: x}
						}
						return x
					}})
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
					var frames [][]byte
					for k := range uint32(100) {
						made := *g.e
						made.Here.ServerQPN = 0x4000 + k
						frames = append(frames, made.Frame(k<<12, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true, SrcMAC: c.ClientMAC}))
					}
					if how == "full" {
						g.Send(time.Microsecond, frames...)
					}
					if how == "in pieces" {
						for range 3 {
							g.Send(5*time.Microsecond, fragments(g.e.Frame(c.ClientPSN+g.n, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(1<<30, g.own.RKey, 8), Payload: make([]byte, 8), AckReq: true, SrcMAC: c.ClientMAC}))...)
							g.n++
						}
					} else {
						for range 5 {
							g.write(t)
						}
					}
					if how == "again" {
						g.Send(10*time.Microsecond, req())
					}
					g.server.Send(g.Clock.Now(), datagram(g.e, false, hdr.CMFields{AttributeID: hdr.ConnectReply, TransactionID: uint64(id), LocalCommID: id | 1<<24, RemoteCommID: id, LocalQPN: c.ServerQPN, StartingPSN: c.ClientPSN,
						ResponderResources: 16, InitiatorDepth: 1, RNRRetryCount: 7}).Bytes())
					g.Pause(50 * time.Microsecond)
					g.Send(10*time.Microsecond, datagram(g.e, true, hdr.CMFields{AttributeID: hdr.ReadyToUse, TransactionID: uint64(id), LocalCommID: id, RemoteCommID: id | 1<<24}).Bytes())
					for k := range g.n {
						g.Send(5*time.Microsecond, g.made(c.ClientPSN+k, true))
					}
					if how == "in pieces" { // the frames were made up: what its NIC sends first takes the answers for its own
						for range 3 {
							g.e.WriteWord(g.own, 1<<30, 1)
						}
					}
					g.grab(t)
				}
			})
		}
	}
}

// The answer to a READ is lost behind the box, others' atomics go over its client's connection, more than the server has responder resources, and the client's SEND waits for a receive buffer. The server does not remember the READ any more, as it does on a
// bare wire: it is done again over a connection that may.
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
					for range 3 {
						b.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 512)}, RemoteAddr: va + 2048, RKey: m.RKey})
					}
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

// acker is a server whose queue pair, made anew, acknowledges what is old as Linux' soft RoCE does: with what it holds for the newest request that was no READ (ack_psn), which is of the queue pair's
// former connection where the same queue pair is reset, and is 0 in a new one.
type acker struct {
	host.Endpoint
	from, to uint32 // PSN of such acknowledgements
	on       bool
}

// Output implements host.Endpoint.
func (k *acker) Output(now clock.Time, out *packet.Batch) {
	before := out.Len()
	k.Endpoint.Output(now, out)
	for _, b := range out.Bufs()[before:] {
		var f hdr.Frame
		if p := b.Bytes(); k.on && hdr.Parse(p, &f) == hdr.IsRoCE && f.Op == hdr.Acknowledge && f.AETHOf(p).Syndrome().ACK() && f.BTHOf(p).PSN() == k.from {
			f.BTHOf(p).SetPSN(k.to)
			hdr.SetICRC(p, &f)
		}
	}
}

// A server's queue pair is reset and connected anew, with the client's that has its old number, too; or both are made anew, and the box was killed and started again before. Linux' soft RoCE acknowledges the box's question
// with a number that says nothing of the new connection (see acker), and the box takes it for the old one's: the new client hangs, or ends.
func TestAttack7NumbersComeBackSoftRoCE(t *testing.T) {
	for _, reset := range []bool{true, false} { // the queue pair, else there is a new one of its number
		for _, crash := range []bool{false, true} {
			for _, at := range []uint32{3185, 0xC00000} {
				for _, d := range []int32{-1 << 22, -100_000, 100_000, 1 << 20, 1 << 22} {
					t.Run(fmt.Sprintf("reset %v, crash %v, at %#x, %d", reset, crash, at, d), func(t *testing.T) {
						var k *acker
						bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Profile: rnic.RXE, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
							if machine == "s0" {
								k = &acker{Endpoint: nic}
								return k
							}
							return nic
						}}, func(t *testing.T, s *bed.Scene) {
							c := rnic.DefaultConn()
							c.Timeout, c.RetryCnt, c.SQPSN, c.RQPSN = 14, 7, at, at
							l := bed.Link{PD: s.PD(), Conn: c}
							m := s.MR(l.PD, va, 4096, all)
							a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
							known(t, s, m, a, b)
							if crash && s.Instance() != nil {
								s.Remove()
								s.Pause(time.Millisecond)
								s.Insert()
								s.Pause(time.Millisecond)
							}
							s.Pause(110 * time.Millisecond)
							warm(t, m, va, 1, b)
							begin := (at + uint32(d)) & hdr.PSNMask
							if k.on, k.from, k.to = true, (begin-1)&hdr.PSNMask, hdr.PSNMask; reset {
								k.to = (a.Far.Expected() - 1) & hdr.PSNMask
							}
							a.QP.Reset()
							a.Far.Reset()
							l.Near, l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.QP, a.Far, begin, begin
							again := s.Peer(0, 0, l)
							for i := range uint64(5) {
								again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+i)}, RemoteAddr: va + 1024, RKey: m.RKey})
							}
							for range 100 { // 1 s
								s.Pause(10 * time.Millisecond)
								warm(t, m, va, 1, b)
							}
							healthy(t, again)
						})
					})
				}
			}
		}
	}
}

// As TestAttack5ServersNumberAndPSN, at Linux' soft RoCE (see acker), whose queue pair is reset and connected anew, and writes where it wrote before. The box takes its WRITEs for repetitions of the former connection's, asks the server, is told what was the former
// connection's newest request, and acknowledges what was not executed.
func TestAttack7AcknowledgedOfFormer(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, d := range []uint32{1, 5, 20, 25, 30, 39} {
			t.Run(fmt.Sprintf("%s, %d", mode, d), func(t *testing.T) {
				var k *acker
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Profile: rnic.RXE, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					if machine == "s0" {
						k = &acker{Endpoint: nic}
						return k
					}
					return nic
				}}, func(t *testing.T, s *bed.Scene) {
					c := rnic.DefaultConn()
					c.Timeout, c.RetryCnt, c.SQPSN, c.RQPSN = 14, 7, 3185, 3185
					l := bed.Link{PD: s.PD(), Conn: c}
					m := s.MR(l.PD, va, 4096, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					for range 20 {
						a.WriteWord(m, va+1024, 1)
					}
					s.Pause(110 * time.Millisecond)
					warm(t, m, va, 1, b)
					begin := 3185 + d
					k.on, k.from, k.to = true, begin-1, (a.Far.Expected()-1)&hdr.PSNMask
					a.QP.Reset()
					a.Far.Reset()
					l.Near, l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.QP, a.Far, begin, begin
					again := s.Peer(0, 0, l)
					n := 0
					for i := range 15 {
						again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+uint64(i))}, RemoteAddr: va + 1024, RKey: m.RKey})
						s.Pause(5 * time.Millisecond)
						if again.Status(i) == rnic.Success && bed.WordAt(m, va+1024) != 0x700+uint64(i) {
							n++
						}
					}
					t.Logf("%v %v", again.Status(0), again.Status(14))
					if n > 0 {
						t.Errorf("%d WRITEs are acknowledged, and not in memory", n)
					}
				})
			})
		}
	}
}

// A client's SEND waits for a receive buffer, and its client sends something else under the SEND's PSN, which the server executes: a WRITE to a word, which others' atomics do not see and undo, or a SEND that invalidates an R_Key, under which another's request goes over the connection of
// somebody, whose connection its refusal ends. On a bare wire each is a request like any other.
func TestAttack7OtherThanTheSend(t *testing.T) {
	for _, what := range []string{"WRITE", "invalidate"} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(what+", "+mode, func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1", "writable": "assume", "verify": "1h", "settle": "100us"})}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.MinRNRTimer = 20 // 10 ms
					l := bed.Link{PD: s.PD(), Conn: k}
					m, fast := s.MR(l.PD, va, 1<<16, all), s.FastMR(l.PD, 1<<30, 4096, all)
					a, b, e := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)
					known(t, s, m, a, b, e)
					for range 20 {
						warm(t, fast, 1<<30, 1, a, b)
						warm(t, m, va, 1, a, b)
					}
					s.Pause(300 * time.Millisecond)
					warm(t, m, va, 20, a, b)
					warm(t, fast, 1<<30, 20, a, b)
					if was := s.Count("moved"); s.Instance() != nil {
						if a.Add(fast, 1<<30, 1); s.Count("moved") != was {
							a, b = b, a
						}
						was := s.Count("moved")
						b.Add(fast, 1<<30, 1)
						t.Logf("moved %d", s.Count("moved")-was)
					}
					replaced := s.Count("replaced-atomic")
					warm(t, m, va, 2, a, b)
					t.Logf("replaced %d", s.Count("replaced-atomic")-replaced)
					_, psn := e.Pending()
					send := e.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 8)}})
					s.Pause(200 * time.Microsecond)
					was := s.Count("repeated")
					now := bed.WordAt(m, va)
					if what == "WRITE" {
						s.Send(time.Microsecond, e.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 8), Payload: binary.LittleEndian.AppendUint64(nil, 1000), AckReq: true, SrcMAC: e.Here.ClientMAC}))
						if bed.WordAt(m, va) != 1000 {
							if s.Instance() == nil {
								t.Fatal("it is not executed")
							}
							return // through the box it is not: it has another one's PSN
						}
						x, st := b.Add(m, va, 1)
						t.Logf("repeated %d", s.Count("repeated")-was)
						t.Logf("the word was %d; SEND %v; b: %v, found %d", now, e.Status(send), st, x)
						if x != 1000 || bed.WordAt(m, va) != 1001 {
							t.Errorf("1000 was written; an addition found %d, and made it %d", x, bed.WordAt(m, va))
						}
						return
					}
					e.Receive(1, 64)
					inv := make([]byte, 4)
					binary.BigEndian.PutUint32(inv, fast.RKey)
					s.Send(time.Microsecond, e.Frame(psn, bed.Packet{Op: hdr.SendOnlyInv, Ext: inv, Payload: make([]byte, 8), AckReq: true, SrcMAC: e.Here.ClientMAC}))
					moved := s.Count("moved")
					post(b, fast, 1<<30, 1)
					b.Await()
					t.Logf("moved %d", s.Count("moved")-moved)
					t.Logf("SEND %v, b %v, a is %v", e.Status(send), b.Status(b.Posted()-1), a.State())
					a.Receive(3, 64)
					for range 3 {
						a.Do(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 8)}})
					}
					healthy(t, a)
				})
			})
		}
	}
}

// A client's WRITE of a word is lost behind the box, and its program changes the buffer before its NIC sends it again: the server has what came the second time. Others' atomics find that.
func TestAttack7BufferChanges(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		t.Run(fmt.Sprint(profile), func(t *testing.T) {
			lossy := false
			bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(graph.Args{"shared": "1", "writable": "assume", "verify": "1h", "settle": "100us"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
				return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
					var f hdr.Frame
					if lossy && machine == "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.WriteOnly && len(f.PayloadOf(b)) == 8 {
						lossy = false
						return true
					}
					return false
				}}
			}}, func(t *testing.T, s *bed.Scene) {
				l := bed.Link{PD: s.PD()}
				m := s.MR(l.PD, va, 1<<16, all)
				a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
				known(t, s, m, a, b)
				s.Pause(300 * time.Millisecond)
				warm(t, m, va, 20, a, b)
				was := s.Count("moved")
				if a.Add(m, va, 1); s.Count("moved") != was {
					a, b = b, a
				}
				for k := range uint64(3) {
					a.WriteWord(m, va, k)
				}
				lossy = true
				buf := binary.LittleEndian.AppendUint64(nil, 500)
				a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{buf}, RemoteAddr: va, RKey: m.RKey})
				s.Pause(100 * time.Microsecond)
				binary.LittleEndian.PutUint64(buf, 1000)
				a.Await()
				now := bed.WordAt(m, va)
				x, _ := b.Add(m, va, 1)
				t.Logf("%d in memory, then %d; replaced %d", now, bed.WordAt(m, va), s.Count("replaced-atomic"))
				if x != now || bed.WordAt(m, va) != now+1 {
					t.Errorf("%d was there; an addition found %d, and made it %d", now, x, bed.WordAt(m, va))
				}
			})
		})
	}
}

// A client's queue pair and the server's are reset and connected anew at once, in less than alive= (100 ms), with a first PSN that is a little before where they had come to, and without a connection manager. What the client writes is taken for repetitions of the former
// connection's, and acknowledged; on a bare wire it is executed.
func TestAttack7ConnectedAnewAtOnce(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, mode := range []string{"mux", "replace"} {
			for _, d := range []int32{-60_000, -1000, -20, 0, 10, 20, 30, 39, 45} { // from where the former one began
				t.Run(fmt.Sprintf("%v, %s, %d", profile, mode, d), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Profile: profile}, func(t *testing.T, s *bed.Scene) {
						const at = 0x123456
						c := rnic.DefaultConn()
						c.SQPSN, c.RQPSN = at, at
						l := bed.Link{PD: s.PD(), Conn: c}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						for range 20 {
							a.WriteWord(m, va+1024, 1)
						}
						s.Pause(time.Millisecond)
						a.QP.Reset()
						a.Far.Reset()
						l.Near, l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.QP, a.Far, uint32(at+d), uint32(at+d)
						again := s.Peer(0, 0, l)
						n := 0
						for i := range 15 {
							again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+uint64(i))}, RemoteAddr: va + 1024, RKey: m.RKey})
							s.Pause(5 * time.Millisecond)
							if again.Status(i) == rnic.Success && bed.WordAt(m, va+1024) < 0x700+uint64(i) {
								n++
							}
						}
						s.Pause(time.Second)
						healthy(t, again)
						t.Logf("%v %v", again.Status(0), again.Status(14))
						if n > 0 {
							t.Errorf("%d WRITEs are acknowledged, and not in memory", n)
						}
					})
				})
			}
		}
	}
}

// As TestAttack6PlaceOfOrphanComesRound, and the former connection had more than a hundred operations over another's connection, which has no answer. The next connection that has its record goes on all the same, with fewer requests than window=.
func TestAttack7PlacesOfManyOrphans(t *testing.T) {
	for _, n := range []int{50, 100, 126} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "shared": "1"})} {
				s := newManagers(t, bed.SceneConfig{Box: x})
				k := rnic.DefaultConn()
				k.Timeout, k.RetryCnt = 13, 1 // 34 ms, twice
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a := s.Peer(0, 0, bed.Link{PD: pd})
				known(t, s.Scene, m, a)
				for range 5 {
					a.WriteWord(m, va, 1)
				}
				b := s.Peer(1, 0, bed.Link{PD: pd, Conn: k})
				s.announce(b, 2)
				warm(t, m, va, 1, b)
				for range 3 {
					b.WriteWord(m, va, 1)
				}
				a.QP.Reset()
				a.Far.Reset()
				for range n {
					b.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey})
				}
				s.Pause(100 * time.Microsecond)
				t.Logf("moved %d", s.Count("moved"))
				b.QP.Reset()
				s.Send(10*time.Microsecond, func() []byte {
					d := datagram(b, true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: 2 | 8<<32, LocalCommID: 2, RemoteCommID: 2 | 1<<24, RemoteQPN: b.Here.ServerQPN})
					return d.Bytes()
				}())
				d := datagram(b, false, hdr.CMFields{AttributeID: hdr.DisconnectReply, TransactionID: 2 | 8<<32, LocalCommID: 2 | 1<<24, RemoteCommID: 2})
				s.server.Send(s.Clock.Now(), d.Bytes())
				s.Pause(50 * time.Microsecond)
				c := s.Peer(2, 0, bed.Link{PD: pd, Conn: k, Recv: 256})
				c.Receive(200, 64)
				s.announce(c, 9)
				worst := time.Duration(0)
				for range 60 {
					if c.Do(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}}) != rnic.Success {
						break
					}
					worst = max(worst, c.Latency(c.Posted()-1))
				}
				t.Logf("c: %d requests, the slowest took %v", c.Posted(), worst)
				healthy(t, c)
			}
		})
	}
}

// slow is a machine whose link carries a frame a microsecond.
type slow struct {
	host.Endpoint
	pool  *packet.Pool
	queue [][]byte
	next  clock.Time
}

// Output implements host.Endpoint.
func (k *slow) Output(now clock.Time, out *packet.Batch) {
	if len(k.queue) == 0 {
		var x packet.Batch
		k.Endpoint.Output(now, &x)
		for _, b := range x.Bufs() {
			k.queue = append(k.queue, append([]byte(nil), b.Bytes()...))
			b.Put()
		}
	}
	for len(k.queue) > 0 && now >= k.next && !out.Full() {
		b := k.pool.Get()
		if b == nil {
			return
		}
		b.Verdict = packet.Generated
		b.SetBytes(k.queue[0])
		out.Add(b)
		k.queue, k.next = k.queue[1:], now.Add(time.Microsecond)
	}
}

// Deadline implements host.Endpoint.
func (k *slow) Deadline() clock.Time {
	if len(k.queue) > 0 {
		return k.next
	}
	return k.Endpoint.Deadline()
}

// A client READs long regions, as many at once as it may, at a server whose link is slow, and another one's atomics go over its connection, behind these READs' answers. On a bare wire the server answers both by turns.
func TestAttack7BehindLongReads(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, size := range []int{256 << 10, 16 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", mode, size), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					if machine == "s0" {
						return &slow{Endpoint: nic, pool: nic.Pool()}
					}
					return nic
				}}, func(t *testing.T, s *bed.Scene) {
					l := bed.Link{PD: s.PD()}
					l.Conn = rnic.DefaultConn()
					l.Conn.Timeout = 18 // a second
					m, big := s.MR(l.PD, va, 1<<16, all), s.MR(l.PD, 1<<30, size, all)
					e := s.Peer(0, 0, l)
					known(t, s, m, e)
					for range 5 {
						e.WriteWord(m, va, 1)
					}
					l.Conn.Timeout, l.Conn.RetryCnt = 10, 2 // 4 ms, three times
					b := s.Peer(1, 0, l)
					known(t, s, m, b, e)
					for range 3 {
						e.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 4096)}, RemoteAddr: 1 << 30, RKey: big.RKey})
					}
					was, worst, buf := s.Count("moved"), time.Duration(0), make([]byte, size)
					for range 2 {
						for range 4 {
							e.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{buf}, RemoteAddr: 1 << 30, RKey: big.RKey})
						}
						s.Pause(20 * time.Microsecond)
						if _, st := b.Add(m, va, 1); st != rnic.Success {
							break
						}
						worst = max(worst, b.Latency(b.Posted()-1))
						e.Await()
					}
					t.Logf("additions at worst %v; moved %d", worst, s.Count("moved")-was)
					if worst > 10*time.Millisecond {
						t.Errorf("an addition took %v", worst)
					}
					healthy(t, b)
				})
			})
		}
	}
}

// Worlds that TestSoak found, with one crowd in three: two clients are ended (the second with retry_cnt 0), and a client's new connection waits for giveup=, as the end of its old one, which is older than the box, is not understood.
func TestAttack7FoundWorlds(t *testing.T) {
	for _, c := range []struct {
		name string
		seed uint64
	}{{"replace", 31415933773}, {"replace", 31415939783}, {"word", 31415933479}} {
		t.Run(fmt.Sprint(c.name, c.seed), func(t *testing.T) {
			w := twins()[c.name]
			w.Limits.Crowds, w.Limits.Deep = 3, false // as they were drawn
			if _, _, err := w.Try(c.seed); err != nil {
				t.Error(err)
			}
		})
	}
}
