package swordbox

import (
	"encoding/binary"
	"fmt"
	"strings"
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

// A client dies without a word, and its queue pair's number is its next one's, which the connection manager announces with another queue pair of the
// server's. The server knows nothing of the death, and keeps the old queue pair.
func TestAttack4NumberComesBack(t *testing.T) {
	for _, infer := range []string{"on", "off"} {
		for _, mode := range []string{"mux", "replace"} {
			for _, far := range []uint32{1, 100, 10_000, 50_000, 1 << 22} {
				t.Run(fmt.Sprintf("infer %s, %s, %d away", infer, mode, far), func(t *testing.T) {
					for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "infer": infer})} {
						s := newManagers(t, bed.SceneConfig{Box: x})
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						s.announce(a, 1)
						s.announce(b, 2)
						known(t, s.Scene, m, a, b)
						a.QP.Reset()
						s.Pause(time.Second)
						for range 3 {
							s.Pause(20 * time.Millisecond)
							warm(t, m, va, 1, b)
						}
						c := rnic.DefaultConn()
						c.SQPSN = (a.Here.ClientPSN + 20 + far) & hdr.PSNMask
						again := s.Peer(0, 1, bed.Link{PD: pd, Near: a.QP, Conn: c})
						s.announce(again, 7)
						for range 10 {
							s.Pause(20 * time.Millisecond)
							post(again, m, va, 2)
							post(b, m, va, 2)
							again.Await(b)
							if again.Status(again.Posted()-1) != rnic.Success {
								break
							}
						}
						healthy(t, again, b)
						if now := bed.WordAt(m, va); now != 40+3+40 {
							t.Errorf("83 additions make %d", now)
						}
						t.Logf("moved %d, bound %d", s.Count("moved"), s.Bound())
					}
				})
			}
		}
	}
}

// ported has the frames of clients' NICs come from another UDP source port each, as of a NIC that spreads its traffic over paths.
func ported() func(machine string, nic *rnic.NIC) host.Endpoint {
	n := uint16(0)
	return func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Out: func(_ clock.Time, b []byte) {
			var f hdr.Frame
			if machine == "s0" || hdr.Parse(b, &f) != hdr.IsRoCE || f.L4 == 0 {
				return
			}
			n++
			binary.BigEndian.PutUint16(b[f.L4:], 0xC000|n)
			hdr.SetICRC(b, &f)
		}}
	}
}

// Clients whose frames come from changing UDP source ports. A WRITE is lost once, and what others have behind it goes on.
func TestAttack4SourcePorts(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for lender := range 2 {
			for _, n := range []int{0, 1, 2, 3} {
				t.Run(fmt.Sprintf("%s/%d/%d", mode, lender, n), func(t *testing.T) {
					var lose func(b []byte) bool
					spread := ported()
					wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
						x := spread(machine, nic).(*bed.Spy)
						x.Lose = func(b []byte) bool { return machine == "s0" && lose != nil && lose(b) }
						return x
					}
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "0+ffffffffffff"}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
						lose = nil
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						p, q := a, b
						if lender == 1 {
							p, q = b, a
						}
						for range 20 {
							s.Pause(500 * time.Microsecond)
							p.Add(m, va, 1)
							p.Write(m, va+512, make([]byte, 64))
							q.Write(m, va+1024, make([]byte, 64))
							p.Write(m, va+2048, make([]byte, 8))
							q.Write(m, va+2056, make([]byte, 8))
							q.Add(m, va+8, 1)
						}
						moved := s.Count("moved")
						lost := 0
						lose = func(b []byte) bool {
							var f hdr.Frame
							if hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.WriteOnly && len(f.PayloadOf(b)) == 64 && lost == 0 {
								lost++
								return true
							}
							return false
						}
						p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 64)}, RemoteAddr: va + 512, RKey: m.RKey})
						post(q, m, va, n)
						a.Await(b)
						t.Logf("moved %d, %d; resent %d", moved, s.Count("moved"), s.Count("resent"))
						healthy(t, a, b)
						if d := p.Latency(p.Posted() - 1); d > time.Second {
							t.Errorf("it took %v", d)
						}
					})
				})
			}
		}
	}
}

// late is a NIC that gets one frame later.
type late struct {
	host.Endpoint
	pool  *packet.Pool
	is    func(b []byte) bool
	by    time.Duration
	frame []byte
	at    clock.Time
}

// Input implements host.Endpoint.
func (l *late) Input(now clock.Time, b *packet.Buf) {
	if l.is != nil && l.frame == nil && l.is(b.Bytes()) {
		l.frame, l.at = append([]byte(nil), b.Bytes()...), now.Add(l.by)
		b.Put()
		return
	}
	l.Endpoint.Input(now, b)
}

// Output implements host.Endpoint.
func (l *late) Output(now clock.Time, out *packet.Batch) {
	if l.at != 0 && now >= l.at {
		b := l.pool.Get()
		b.SetBytes(l.frame)
		l.at = 0
		l.Endpoint.Input(now, b)
	}
	l.Endpoint.Output(now, out)
}

// Deadline implements host.Endpoint.
func (l *late) Deadline() clock.Time {
	if at := l.Endpoint.Deadline(); l.at == 0 || at < l.at {
		return at
	}
	return l.at
}

// The first atomic of a connection is on the way to the server for some time (less than settle=). Meanwhile somebody sends a request out of turn in its client's
// name; the frame reaches no server. And another client changes the same word.
func TestAttack4UnfollowedUnderWay(t *testing.T) {
	for _, who := range []string{"nobody", "a stranger"} {
		for _, kind := range []rnic.Op{rnic.OpFetchAdd, rnic.OpWrite} {
			for _, order := range []string{"strict", "word"} {
				t.Run(fmt.Sprintf("%s/%v/%s", who, kind, order), func(t *testing.T) {
					for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "replace", "order": order, "writable": "assume"})} {
						var l *late
						g := &managers{}
						g.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
							x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
							if machine != "s0" {
								return x
							}
							g.server = x
							l = &late{Endpoint: x, pool: nic.Pool(), by: 300 * time.Microsecond}
							return l
						}})
						s := g
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						b, c := s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})
						s.announce(b, 2)
						s.announce(c, 3)
						known(t, s.Scene, m, b, c)
						a := s.Peer(0, 0, bed.Link{PD: pd})
						a.Receive(4, 64)
						s.announce(a, 1)
						l.is = func(b []byte) bool {
							var f hdr.Frame
							return hdr.Parse(b, &f) == hdr.IsRoCE && f.BTHOf(b).DestQP() == a.Here.ServerQPN
						}
						w := rnic.SendWR{Op: kind, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey, Swap: 1000}
						binary.LittleEndian.PutUint64(w.SGL[0], 1000)
						a.Post(w)
						s.Pause(20 * time.Microsecond)
						if who == "a stranger" {
							f := a.Frame(a.Here.ClientPSN+1000, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+1024, 0x55, 0), AckReq: true})
							f[5] ^= 0x55 // to nobody
							s.Send(time.Microsecond, f)
						}
						n := uint64(0)
						var read uint64
						for range 30 {
							warm(t, m, va, 1, b, c)
							n += 2
							s.Pause(10 * time.Microsecond)
							if a.Status(0) != bed.Pending && read == 0 {
								read = n
							}
						}
						a.Await(b, c)
						healthy(t, a, b, c)
						now := bed.WordAt(m, va)
						t.Logf("answered after %d; replaced %d; %d in memory", read, s.Count("replaced"), now)
						if kind == rnic.OpFetchAdd && now != 40+n+1000 {
							t.Errorf("%d additions and one of 1000 make %d", 40+n, now)
						}
						if kind == rnic.OpWrite && now < 1000 {
							t.Errorf("1000 was written, and %d is there after no more than %d additions", now, 40+n)
						}
					}
				})
			}
		}
	}
}

// A client goes on over others' connections, as its own is dead, and dies without a word. Its queue pair's number is its next one's, with another queue pair of the
// server's.
func TestAttack4DeadNumberComesBack(t *testing.T) {
	for _, infer := range []string{"on", "off"} {
		for _, managed := range []bool{true, false} {
			for _, far := range []uint32{1, 1000, 1 << 22} {
				if !managed && infer == "off" {
					continue
				}
				t.Run(fmt.Sprintf("infer %s, managed %v, %d away", infer, managed, far), func(t *testing.T) {
					k := rnic.DefaultConn()
					k.Timeout = 8
					s := newManagers(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "infer": infer, "idle": "2s"}), Conn: k, Profile: rnic.RXE, Sessions: 3})
					pd := s.PD()
					m, gone := s.MR(pd, va, 1<<16, all), s.MR(pd, 1<<30, 1<<16, all)
					var peers []*bed.Peer
					for i := range 6 {
						peers = append(peers, s.Peer(i/2, i%2, bed.Link{PD: pd}))
						if managed {
							s.announce(peers[i], uint32(i+1))
						}
					}
					known(t, s.Scene, m, peers...)
					for range 5 {
						warm(t, gone, 1<<30, 1, peers...)
					}
					for _, p := range peers {
						p.Write(m, va+128, make([]byte, 8))
					}
					if err := gone.Dereg(); err != nil {
						t.Fatal(err)
					}
					peers[1].Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: gone.RKey, Swap: 1})
					peers[1].Await()
					for range 5 {
						warm(t, m, va, 1, peers[2:]...)
					}
					for i, p := range peers {
						if p.State() != rnic.StateReady || p.Far.State() == rnic.StateReady {
							continue
						}
						if _, st := p.Add(m, va, 1); st != rnic.Success {
							t.Logf("%d: %v at once", i, st)
							continue
						}
						next, _ := p.QP.Pending()
						p.QP.Reset()
						other := peers[5-i/5*2]
						for range 40 {
							s.Pause(100 * time.Millisecond)
							warm(t, m, va, 1, other)
						}
						c := k
						c.SQPSN = (next + far) & hdr.PSNMask
						again := s.Peer(i/2, 2, bed.Link{PD: pd, Near: p.QP, Conn: c})
						if managed {
							s.announce(again, 7)
						}
						for range 10 {
							s.Pause(20 * time.Millisecond)
							post(again, m, va, 2)
							post(other, m, va, 2)
							again.Await(other)
							if again.Status(again.Posted()-1) != rnic.Success {
								break
							}
						}
						healthy(t, again, other)
						return
					}
					t.Fatal("nobody's connection carried what was refused")
				})
			}
		}
	}
}

// Hosts whose frames have UDP checksums that say nothing (the ICRC is what counts), with NICs that do not look at them, work as on a wire.
func TestAttack4SumsThatSayNothing(t *testing.T) {
	for _, who := range []string{"c", "s0", ""} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(who+"/"+mode, func(t *testing.T) {
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Out: func(_ clock.Time, b []byte) {
						if _, at := udpSum(b); at != 0 && strings.HasPrefix(machine, who) {
							binary.BigEndian.PutUint16(b[at:], 0x1234)
						}
					}}
				}
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					for range 30 {
						s.Pause(500 * time.Microsecond)
						post(a, m, va, 1)
						post(b, m, va, 1)
						a.Await(b)
						if a.Status(a.Posted()-1) != rnic.Success {
							break
						}
					}
					t.Logf("synced %d, other shape %d", s.Count("synced"), s.Count("other-shape"))
					healthy(t, a, b)
				})
			})
		}
	}
}

// A request for the end of a connection that does not come to the server, and a reply to such a request that does not come there either, both in the client's name,
// end nobody.
func TestAttack4UnseenDisconnectAndReply(t *testing.T) {
	for _, reply := range []bool{false, true} {
		for _, args := range []graph.Args{{"mode": "mux"}, {"mode": "replace", "guard": "drop"}} {
			t.Run(fmt.Sprintf("reply %v, %s", reply, args["mode"]), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(args)} {
					s := newManagers(t, bed.SceneConfig{Box: x})
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					s.announce(a, 1)
					s.announce(b, 2)
					known(t, s.Scene, m, a, b)
					for _, what := range []hdr.CMAttr{hdr.DisconnectRequest, hdr.DisconnectReply} {
						if what == hdr.DisconnectReply && !reply {
							continue
						}
						k := datagram(b, true, hdr.CMFields{AttributeID: what, TransactionID: 2 | 8<<32, LocalCommID: 2, RemoteCommID: 2 | 1<<24, RemoteQPN: b.Here.ServerQPN})
						k.DstMAC, k.SrcMAC = [6]byte{2, 0, 0, 9, 9, 9}, [6]byte{2, 0, 0, 0, 0xee, 1}
						s.Send(10*time.Microsecond, k.Bytes())
					}
					for range 10 {
						s.Pause(100 * time.Millisecond)
						post(a, m, va, 1)
						post(b, m, va, 1)
						a.Await(b)
						if b.Status(b.Posted()-1) != rnic.Success {
							break
						}
					}
					t.Logf("moved %d, synced %d", s.Count("moved"), s.Count("synced"))
					healthy(t, a, b)
					if now := bed.WordAt(m, va); now != 40+20 {
						t.Errorf("60 additions make %d", now)
					}
				}
			})
		}
	}
}

// The server's MAC address changes while a client is quiet (a bond, or a router that takes over), and its clients send there from then on. Somebody makes up a
// request of the quiet one's, or it is quiet for idle=. It goes on.
func TestAttack4ServerMoves(t *testing.T) {
	for _, who := range []string{"nobody", "a stranger", "idle"} {
		for quiet := range 2 {
			t.Run(fmt.Sprint(who, quiet), func(t *testing.T) {
				moved := false
				var was [6]byte
				now := [6]byte{2, 0, 0, 0x77, 0x77, 1}
				swap := func(at int, from, to *[6]byte) func(b []byte) []byte {
					return func(b []byte) []byte {
						if moved && [6]byte(b[at:at+6]) == *from {
							copy(b[at:], to[:])
						}
						return b
					}
				}
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					switch {
					case machine == "s0":
						return &bed.Spy{Endpoint: &retag{Endpoint: nic, out: swap(6, &was, &now), in: swap(0, &now, &was)}, Lose: func(b []byte) bool { return moved && [6]byte(b[:6]) != now }}
					case strings.HasPrefix(machine, "c"):
						return &retag{Endpoint: nic, out: swap(0, &was, &now), in: swap(6, &now, &was)}
					}
					return nic
				}
				args := graph.Args{"mode": "mux"}
				if who == "idle" {
					args["idle"] = "2s"
				}
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(args), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					moved = false
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					if quiet == 0 {
						a, b = b, a
					}
					was = a.Here.ServerMAC
					known(t, s, m, a, b)
					moved = true
					for range 40 {
						s.Pause(10 * time.Millisecond)
						warm(t, m, va, 1, a)
					}
					if who == "a stranger" {
						s.Send(time.Microsecond, b.Frame(b.Here.ClientPSN+20+1<<20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+1024, 0x55, 0), AckReq: true}))
					}
					for range 400 {
						s.Pause(10 * time.Millisecond)
						warm(t, m, va, 1, a)
					}
					for range 10 {
						post(b, m, va, 1)
						b.Await()
						if b.Status(b.Posted()-1) != rnic.Success {
							break
						}
					}
					t.Logf("moved %d, gone %d", s.Count("moved"), s.Count("connections-gone"))
					healthy(t, a, b)
					if now := bed.WordAt(m, va); now != 40+440+10 {
						t.Errorf("490 additions make %d", now)
					}
				})
			})
		}
	}
}

// A client repeats PSNs that the server has executed, as requests under another's R_Key: the server acknowledges them unread. That shows no right.
func TestAttack4RightByRepetition(t *testing.T) {
	for _, how := range []string{"bypass", "half around", "neither"} {
		for _, managed := range []bool{true, false} {
			for _, mode := range []string{"mux", "replace"} {
				t.Run(fmt.Sprintf("%s, managed %v, %s", how, managed, mode), func(t *testing.T) {
					for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
						s := newManagers(t, bed.SceneConfig{Box: x})
						pd, other := s.PD(), s.PD()
						m, own := s.MR(pd, va, 1<<16, all), s.MR(other, 1<<30, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						if managed {
							s.announce(a, 1)
							s.announce(b, 2)
						}
						known(t, s.Scene, m, a, b)
						for k := range uint64(5) {
							a.WriteWord(m, va+8, k)
							b.WriteWord(m, va+8, k)
							a.Add(m, va+8, 1)
							b.Add(m, va+8, 1)
						}
						e := s.Peer(2, 0, bed.Link{PD: other})
						if managed {
							s.announce(e, 3)
						}
						n := uint32(0)
						made := func(psn uint32, here bool) []byte {
							f := e.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+8, m.RKey, 8), Payload: make([]byte, 8), AckReq: true, SrcMAC: e.Here.ClientMAC})
							if !here {
								f[5] ^= 0x55 // to nobody
							}
							return f
						}
						far := func() { // half around, in two steps: what was executed is ahead then
							s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n+1<<22, false), made(e.Here.ClientPSN+n+1<<23+100, false))
						}
						for range 20 { // nobody knows their numbering
							s.Pause(500 * time.Microsecond)
							id := e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: own.RKey})
							if how == "half around" {
								s.Pause(time.Microsecond)
								far()
							}
							e.Await()
							if st := e.Status(id); st != rnic.Success {
								t.Fatal(st)
							}
							n++
						}
						switch how {
						case "bypass":
							s.Sleep(200 * time.Microsecond)
							s.Pause(100 * time.Microsecond)
							if st := e.WriteWord(own, 1<<30, 1); st != rnic.Success {
								t.Fatal(st)
							}
							n++
							s.Pause(time.Millisecond)
						case "half around":
							far()
						}
						synced := s.Count("synced")
						s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n-3, true), made(e.Here.ClientPSN+n-2, true), made(e.Here.ClientPSN+n-1, true))
						s.Pause(time.Millisecond)
						warm(t, m, va+8, 2, a, b)
						was := bed.WordAt(m, va+8)
						st := e.WriteWord(m, va+8, 0x666)
						now := bed.WordAt(m, va+8)
						t.Logf("%v; synced %d, %d; moved %d", st, synced, s.Count("synced"), s.Count("moved"))
						if st == rnic.Success || now != was {
							t.Errorf("a WRITE that the server refuses ended as %v, and %#x became %#x", st, was, now)
						}
						warm(t, m, va+8, 3, a, b)
						healthy(t, a, b)
					}
				})
			}
		}
	}
}

// As TestAttack4RightByRepetition, and it is a stranger who sends the repetitions, in the name of a client that has done nothing. Nothing of others goes over its connection,
// where the server refuses it.
func TestAttack4RightOfAnother(t *testing.T) {
	for _, managed := range []bool{true, false} {
		t.Run(fmt.Sprintf("managed %v", managed), func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "shared": "3"})} {
				s := newManagers(t, bed.SceneConfig{Box: x})
				pd, other := s.PD(), s.PD()
				m, own := s.MR(pd, va, 1<<16, all), s.MR(other, 1<<30, 1<<16, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				if managed {
					s.announce(a, 1)
					s.announce(b, 2)
				}
				known(t, s.Scene, m, a, b)
				write := func() {
					for k := range uint64(16) {
						a.WriteWord(m, va+256*k, k)
						b.WriteWord(m, va+256*k, k)
					}
				}
				warm(t, m, va+256*15, 2, a, b)
				write()
				e := s.Peer(2, 0, bed.Link{PD: other})
				if managed {
					s.announce(e, 3)
				}
				n := uint32(0)
				made := func(psn uint32, here bool) []byte {
					f := e.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 8), Payload: make([]byte, 8), AckReq: true})
					if !here {
						f[5] ^= 0x55 // to nobody
					}
					return f
				}
				for range 20 {
					s.Pause(500 * time.Microsecond)
					id := e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: own.RKey})
					s.Pause(time.Microsecond)
					s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n+1<<22, false), made(e.Here.ClientPSN+n+1<<23+100, false))
					e.Await()
					if st := e.Status(id); st != rnic.Success {
						t.Fatal(st)
					}
					n++
				}
				s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n-3, true), made(e.Here.ClientPSN+n-2, true), made(e.Here.ClientPSN+n-1, true))
				s.Pause(time.Millisecond)
				for range 3 {
					write()
					e.WriteWord(own, 1<<30, 1)
				}
				t.Logf("synced %d; moved %d", s.Count("synced"), s.Count("moved"))
				healthy(t, a, b, e)
			}
		})
	}
}

// Repetitions that the server acknowledges unread change no word, and nobody takes them for its value.
func TestAttack4ValueByRepetition(t *testing.T) {
	for _, managed := range []bool{true, false} {
		for _, last := range []time.Duration{0, 300 * time.Millisecond} {
			t.Run(fmt.Sprintf("managed %v, %v", managed, last), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "replace", "writable": "assume"})} {
					s := newManagers(t, bed.SceneConfig{Box: x})
					pd, other := s.PD(), s.PD()
					m, own := s.MR(pd, va, 1<<16, all), s.MR(other, 1<<30, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					if managed {
						s.announce(a, 1)
						s.announce(b, 2)
					}
					known(t, s.Scene, m, a, b)
					e := s.Peer(2, 0, bed.Link{PD: other})
					if managed {
						s.announce(e, 3)
					}
					n := uint32(0)
					made := func(psn uint32, here bool) []byte {
						f := e.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 8), Payload: binary.LittleEndian.AppendUint64(nil, 0x5000), AckReq: true})
						if !here {
							f[5] ^= 0x55 // to nobody
						}
						return f
					}
					for range 10 {
						s.Pause(500 * time.Microsecond)
						id := e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: own.RKey})
						s.Pause(time.Microsecond)
						s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n+1<<22, false), made(e.Here.ClientPSN+n+1<<23+100, false))
						e.Await()
						if st := e.Status(id); st != rnic.Success {
							t.Fatal(st)
						}
						n++
					}
					s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n-3, true), made(e.Here.ClientPSN+n-2, true))
					s.Pause(last)
					warm(t, m, va, 10, a, b)
					s.Send(2*time.Microsecond, made(e.Here.ClientPSN+n-1, true))
					warm(t, m, va, 10, a, b)
					t.Logf("synced %d; moved %d; replaced %d; mismatches %d", s.Count("synced"), s.Count("moved"), s.Count("replaced"), s.Count("mismatches"))
					healthy(t, a, b)
					if now := bed.WordAt(m, va); now != 80 {
						t.Errorf("80 additions make %#x", now)
					}
				}
			})
		}
	}
}

// An atomic that goes over another's connection, under another R_Key than its word's others, is lost, and its client disconnects. Those behind it go on.
func TestAttack4LostAtomicOfOneGone(t *testing.T) {
	for goes := range 2 {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(fmt.Sprintf("%s/%d", mode, goes), func(t *testing.T) {
				losing, key := false, uint32(0)
				g := &managers{}
				g.Scene = bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
					if machine == "s0" {
						g.server = x
						x.Lose = func(b []byte) bool {
							var f hdr.Frame
							return losing && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.FetchAdd && hdr.AtomicETH(b[f.BTH+hdr.BTHLen:]).RKey() == key
						}
					}
					return x
				}})
				s := g
				pd := s.PD()
				m, n := s.MR(pd, va, 1<<16, all), s.MR(pd, va, 1<<16, all)
				key = n.RKey
				peers := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})}
				for i, p := range peers {
					s.announce(p, uint32(i+1))
				}
				known(t, s.Scene, m, peers...)
				known(t, s.Scene, n, peers...)
				for _, p := range peers {
					p.Write(m, va+1024, make([]byte, 8))
					p.Write(n, va+1024, make([]byte, 8))
				}
				s.Pause(10 * time.Millisecond)
				known(t, s.Scene, m, peers...)
				losing = true
				b := peers[goes]
				loose := s.Count("out-of-order")
				moved := s.Count("moved")
				post(b, n, va, 1)
				s.Pause(5 * time.Microsecond)
				others := append(append([]*bed.Peer(nil), peers[:goes]...), peers[goes+1:]...)
				for _, p := range others {
					post(p, m, va, 1)
				}
				s.Pause(100 * time.Microsecond)
				t.Logf("moved %d, loose %d", s.Count("moved")-moved, s.Count("out-of-order")-loose)
				id := uint32(goes + 1)
				s.Send(10*time.Microsecond, func() []byte {
					k := datagram(b, true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: uint64(id) | 8<<32, LocalCommID: id, RemoteCommID: id | 1<<24, RemoteQPN: b.Here.ServerQPN})
					return k.Bytes()
				}())
				d := datagram(b, false, hdr.CMFields{AttributeID: hdr.DisconnectReply, TransactionID: uint64(id) | 8<<32, LocalCommID: id | 1<<24, RemoteCommID: id})
				g.server.Send(s.Clock.Now(), d.Bytes())
				b.QP.Reset()
				s.Pause(100 * time.Microsecond)
				losing = false
				for range 10 {
					s.Pause(10 * time.Millisecond)
					for _, p := range others {
						post(p, m, va, 1)
					}
					others[0].Await(others[1:]...)
				}
				t.Logf("conns %d, resent %d, repairs %d", s.Count("connections"), s.Count("resent"), s.Count("repairs"))
				healthy(t, others...)
				if s.Count("resent") > 1000 {
					t.Errorf("%d were sent again", s.Count("resent"))
				}
			})
		}
	}
}

// As TestAttack4SourcePorts, and what is lost is the first request of the connection that others have something behind.
func TestAttack4SourcePortsFirst(t *testing.T) {
	for _, same := range []bool{true, false} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(fmt.Sprintf("%s, one port %v", mode, same), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
					losing := false
					g := &managers{}
					spread := ported()
					g.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						x := spread(machine, nic).(*bed.Spy)
						if x.Pool = nic.Pool(); same {
							x.Out = nil
						}
						if machine == "s0" {
							g.server = x
							x.Lose = func(b []byte) bool {
								var f hdr.Frame
								if losing && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.WriteOnly && len(f.PayloadOf(b)) == 64 {
									losing = false
									return true
								}
								return false
							}
						}
						return x
					}})
					s := g
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					p, q := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					s.announce(p, 1)
					s.announce(q, 2)
					known(t, s.Scene, m, p)
					warm(t, m, va, 3, q)
					moved := s.Count("moved")
					losing = true
					p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 64)}, RemoteAddr: va + 512, RKey: m.RKey})
					post(q, m, va, 1)
					p.Await(q)
					d := p.Latency(p.Posted() - 1)
					t.Logf("moved %d, then %d; resent %d; it took %v, and the other's %v", moved, s.Count("moved"), s.Count("resent"), d, q.Latency(q.Posted()-1))
					healthy(t, p, q)
					if q.Latency(q.Posted()-1) > 20*time.Millisecond {
						t.Errorf("one loss costs another %v", q.Latency(q.Posted()-1))
					}
				}
			})
		}
	}
}

// The first request of a connection waits in the box, for WRITEs that are under way in the place of atomics. Somebody sends a request out of turn in its client's
// name, which reaches no server. A client that does not ask again (retry_cnt 0) has its answer all the same.
func TestAttack4UnfollowedWaiting(t *testing.T) {
	for _, who := range []string{"nobody", "a stranger"} {
		t.Run(who, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "replace", "writable": "assume"})} {
				s := newManagers(t, bed.SceneConfig{Box: x})
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				b, c := s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})
				s.announce(b, 2)
				s.announce(c, 3)
				known(t, s.Scene, m, b, c)
				k := rnic.DefaultConn()
				k.RetryCnt = 0
				a := s.Peer(0, 0, bed.Link{PD: pd, Conn: k})
				s.announce(a, 1)
				s.Stall()
				post(b, m, va, 2)
				post(c, m, va, 2)
				s.Pause(20 * time.Microsecond)
				post(a, m, va, 1)
				s.Pause(20 * time.Microsecond)
				if who == "a stranger" {
					f := a.Frame(a.Here.ClientPSN+1000, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+1024, 0x55, 0), AckReq: true})
					f[5] ^= 0x55 // to nobody
					s.Send(time.Microsecond, f)
				}
				held := s.Count("held")
				s.Pause(100 * time.Microsecond)
				s.Thaw()
				a.Await(b, c)
				t.Logf("held %d; replaced %d; %d in memory", held, s.Count("replaced"), bed.WordAt(m, va))
				healthy(t, a, b, c)
			}
		})
	}
}

// A made-up request with the very PSN that comes next, in a frame that something on the way to the server throws away (a router, for its TTL; a switch or a bridge, as no host
// has a group's address), takes no request's place.
func TestAttack4ExactUnseen(t *testing.T) {
	shapes := map[string]func(b []byte) []byte{
		"TTL": func(b []byte) []byte {
			ip := hdr.IPv4(b[14:][:20])
			ip.SetTTL(1)
			ip.UpdateChecksum()
			return b
		},
		"source MAC": func(b []byte) []byte { b[6] |= 1; return b },
		"no source":  func(b []byte) []byte { copy(b[6:12], make([]byte, 6)); return b },
	}
	for name, shape := range shapes {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
						return machine == "s0" && (b[22] < 2 || b[6]&1 != 0 || [6]byte(b[6:12]) == [6]byte{})
					}}
				}
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, a, b)
					x := a.Frame(a.Here.ClientPSN+20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+4096, m.RKey, 64), Payload: make([]byte, 64), AckReq: true})
					s.Send(10*time.Microsecond, shape(x))
					s.Pause(time.Millisecond)
					sent := 20
					for range 5 {
						if st := a.WriteWord(m, va+4096, uint64(sent)); st != rnic.Success {
							t.Fatalf("WRITE: %v", st)
						}
						if now := bed.WordAt(m, va+4096); now != uint64(sent) {
							t.Errorf("%d was written, %d is there", sent, now)
						}
						warm(t, m, va, 3, a, b)
						sent++
					}
					healthy(t, a, b)
					if now := bed.WordAt(m, va); now != 40+30 {
						t.Errorf("70 additions make %d", now)
					}
				})
			})
		}
	}
}
