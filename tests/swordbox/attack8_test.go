package swordbox

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// losing is a scene in which the server's machine does not get the next WRITE of one packet while *lossy.
func losing(x *bed.Box, lossy *bool) bed.SceneConfig {
	return bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
			var f hdr.Frame
			if *lossy && machine == "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.WriteOnly {
				*lossy = false
				return true
			}
			return false
		}}
	}}
}

// A client's WRITE that was answered comes a second time (the network doubles it, a stranger makes it up, or its acknowledgement was late), and the next frame to the server is lost. On a bare wire that is the repetition, and nobody notes it; through the box it is
// its question, which nobody asks again: what the client sends next, and what others have there, waits without end.
func TestAttack8QuestionLost(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, who := range []string{"the client", "another"} {
			t.Run(mode+", "+who, func(t *testing.T) {
				lossy := false
				bed.Both(t, losing(ofSwordbox(graph.Args{"mode": mode, "shared": "1"}), &lossy), func(t *testing.T, s *bed.Scene) {
					l := bed.Link{PD: s.PD()}
					m := s.MR(l.PD, va, 1<<16, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					for range 5 {
						a.WriteWord(m, va+1024, 1)
					}
					if who == "another" && s.Instance() != nil {
						was := s.Count("moved")
						if a.Add(m, va, 1); s.Count("moved") != was {
							a, b = b, a
						}
					}
					_, psn := a.Pending()
					if st := a.WriteWord(m, va+1024, 2); st != rnic.Success {
						t.Fatal(st)
					}
					lossy = true
					s.Send(time.Microsecond, a.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+1024, m.RKey, 8), Payload: binary.LittleEndian.AppendUint64(nil, 2), AckReq: true, SrcMAC: a.Here.ClientMAC}))
					s.Pause(50 * time.Microsecond)
					if lossy && s.Instance() == nil {
						t.Fatal("nothing was lost")
					}
					lossy = false
					p := a
					if who == "another" {
						p = b
					}
					worst := time.Duration(0)
					for range 10 {
						if _, st := p.Add(m, va, 1); st != rnic.Success {
							t.Errorf("an addition: %v", st)
							break
						}
						worst = max(worst, p.Latency(p.Posted()-1))
					}
					t.Logf("the slowest addition took %v", worst)
					if worst > 20*time.Millisecond {
						t.Errorf("an addition took %v", worst)
					}
					healthy(t, p)
				})
			})
		}
	}
}

// All that the server answers to a client is lost for a while: a WRITE's acknowledgement, a READ's answer, and that the SEND behind them has no receive buffer. The client repeats all three. On a bare wire the READ is answered again at once;
// through the box it waits for the SEND, as the WRITE's repetition has put the connection in question.
func TestAttack8RereadBehindDoubted(t *testing.T) {
	for _, retries := range []int{1, 2, 3, 7} {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d retries, alone %v", retries, alone), func(t *testing.T) {
				lossy := false
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "shared": "1"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return lossy && machine != "s0" }}
				}}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 12, retries, 10, 7 // 17 ms; 0.32 ms, without end
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 1<<16, all)
					a := s.Peer(0, 0, l)
					known(t, s, m, a)
					for range 5 {
						a.ReadWord(m, va)
						a.WriteWord(m, va+1024, 1)
					}
					if !alone { // another, which may not READ there
						l.PD = s.PD()
						o := s.MR(l.PD, 1<<30, 1<<16, all)
						b := s.Peer(1, 0, l)
						warm(t, o, 1<<30, 10, b)
					}
					lossy = true
					a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 1024, RKey: m.RKey})
					s.Pause(20 * time.Microsecond)
					read := a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 512)}, RemoteAddr: va + 2048, RKey: m.RKey})
					s.Pause(20 * time.Microsecond)
					a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
					s.Pause(5 * time.Millisecond)
					lossy = false
					s.Pause(600 * time.Millisecond)
					t.Logf("READ %v after %v", a.Status(read), a.Latency(read))
					if a.State() == rnic.StateReady {
						if a.Latency(read) > 100*time.Millisecond {
							t.Errorf("the READ took %v", a.Latency(read))
						}
						if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
							t.Fatal(err)
						}
					}
					a.Await()
					healthy(t, a)
				})
			})
		}
	}
}

// A server that was slow for a while is quick again. The acknowledgement of a client's WRITE is lost, and so is what goes to the server when the client repeats it. On a bare wire the next repetition is acknowledged; the box does not ask again so soon, as
// it measured the time of an answer while the server was slow, and the client gives up.
func TestAttack8AsksTooSeldom(t *testing.T) {
	for _, retries := range []int{2, 3} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			lossy, deaf := false, false
			cfg := losing(ofSwordbox(graph.Args{"mode": "mux"}), &lossy)
			wrap := cfg.Wrap
			cfg.Wrap = func(machine string, nic *rnic.NIC) host.Endpoint {
				x := wrap(machine, nic)
				if machine == "s0" {
					return x
				}
				return &bed.Spy{Endpoint: nic, Lose: func([]byte) bool {
					was := deaf
					deaf = false
					return was
				}}
			}
			bed.Both(t, cfg, func(t *testing.T, s *bed.Scene) {
				k := rnic.DefaultConn()
				k.Timeout, k.RetryCnt = 10, retries // 4 ms
				l := bed.Link{PD: s.PD(), Conn: k}
				m := s.MR(l.PD, va, 1<<16, all)
				a := s.Peer(0, 0, l)
				known(t, s, m, a)
				for range 40 {
					s.Stall()
					a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 1024, RKey: m.RKey})
					s.Pause(time.Duration(retries) * 4200 * time.Microsecond)
					s.Thaw()
					a.Await()
				}
				healthy(t, a)
				s.Pause(20 * time.Millisecond)
				deaf = true
				w := a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 1024, RKey: m.RKey})
				s.Pause(100 * time.Microsecond)
				lossy = true
				a.Await()
				t.Logf("%v after %v; lost: %v", a.Status(w), a.Latency(w), !lossy)
				healthy(t, a)
			})
		})
	}
}

// A client's queue pair and the server's are reset and connected anew at once, without a connection manager, a little before where they had come to. What the client sends has PSNs of others of its requests: the box asks the server, but goes on to send
// others' atomics over that connection, whose end is another one's. Their client is ended.
func TestAttack8GuestsOverAnother(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, mode := range []string{"mux", "replace"} {
			for _, reads := range []bool{false, true} { // what the PSNs were of; WRITEs of the same place are repetitions, and put the connection in question
				t.Run(fmt.Sprintf("%v, %s, READs %v", profile, mode, reads), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1"}), Profile: profile}, func(t *testing.T, s *bed.Scene) {
						c := rnic.DefaultConn()
						c.Timeout, c.RetryCnt = 16, 7
						l := bed.Link{PD: s.PD(), Conn: c}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						for range 20 {
							if reads {
								a.ReadWord(m, va+1024)
							} else {
								a.WriteWord(m, va+1024, 1)
							}
						}
						s.Pause(time.Millisecond)
						begin := (a.Far.Expected() - 10) & hdr.PSNMask
						a.QP.Reset()
						a.Far.Reset()
						l.Near, l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.QP, a.Far, begin, begin
						again := s.Peer(0, 0, l)
						for i := range uint64(5) {
							again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+i)}, RemoteAddr: va + 1024, RKey: m.RKey})
						}
						for range 200 { // 2 s
							s.Pause(10 * time.Millisecond)
							if _, st := b.Add(m, va, 1); st != rnic.Success {
								break
							}
						}
						t.Logf("%v after %v", again.Status(4), again.Latency(4))
						healthy(t, again, b)
					})
				})
			}
		}
	}
}

// Somebody who knows a client's queue pair sends its old requests all the time. On a bare wire the server acknowledges them, and the client notes nothing.
func TestAttack8RepeatedWithoutEnd(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, who := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d", mode, who), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1"})}, func(t *testing.T, s *bed.Scene) {
					l := bed.Link{PD: s.PD()}
					m := s.MR(l.PD, va, 1<<16, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					_, psn := a.Pending()
					for range 5 {
						a.WriteWord(m, va+1024, 2)
					}
					p := []*bed.Peer{a, b}[who]
					was := p.Posted()
					start := s.Clock.Now()
					for k := range 300 {
						if k%3 == 0 {
							post(p, m, va, 1)
						}
						s.Send(time.Microsecond, a.Frame(psn+uint32(k%5), bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+1024, m.RKey, 8), Payload: binary.LittleEndian.AppendUint64(nil, 2), AckReq: true, SrcMAC: a.Here.ClientMAC}))
					}
					p.Await()
					worst := time.Duration(0)
					for k := was; k < p.Posted(); k++ {
						worst = max(worst, p.Latency(k))
					}
					t.Logf("%v for all; at worst %v", s.Clock.Now().Sub(start), worst)
					if worst > 5*time.Millisecond {
						t.Errorf("an addition took %v", worst)
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// Clients that send all sorts of requests, of all lengths, over a way that loses: what each NIC repeats is a repetition for the box, too.
func TestAttack8AllSortsRepeated(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, mode := range []string{"mux", "replace"} {
			for seed := range uint64(40) {
				t.Run(fmt.Sprintf("%v, %s, %d", profile, mode, seed), func(t *testing.T) {
					lossy := false
					var dice *rand.Rand
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1", "writable": "assume", "settle": "100us", "verify": "1h"}), Profile: profile, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return lossy && dice.IntN(12) == 0 }}
					}}, func(t *testing.T, s *bed.Scene) {
						dice = rand.New(rand.NewPCG(seed, 8))
						lossy = false
						k := rnic.DefaultConn()
						k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 10, 7, 5, 7
						l := bed.Link{PD: s.PD(), Conn: k, Recv: 4096}
						m := s.MR(l.PD, va, 1<<16, all)
						fast := s.FastMR(l.PD, 1<<30, 4096, all)
						a, b, c := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)
						known(t, s, m, a, b, c)
						crash := seed%2 == 1
						lossy = true
						sizes := []int{0, 1, 8, 8, 8, 16, 256, 1024, 1025, 4096, 5000, 12000}
						pick := rand.New(rand.NewPCG(seed, 9))
						bad := s.Count("bad-repeat")
						for round := range 40 {
							for _, p := range []*bed.Peer{a, b, c} {
								for range 4 {
									n := sizes[pick.IntN(len(sizes))]
									w := rnic.SendWR{SGL: [][]byte{make([]byte, n)}, RemoteAddr: va + 1024, RKey: m.RKey, Imm: 7}
									sort := pick.IntN(10)
									if seed%4 > 1 { // nothing that has its connection carry nothing of others
										sort = []int{3, 5, 6, 7, 9}[sort/2]
									}
									switch sort {
									case 0:
										w.Op = rnic.OpSend
									case 1:
										w.Op = rnic.OpSendImm
									case 2:
										w.Op = rnic.OpWriteImm
									case 3, 4:
										w.Op = rnic.OpWrite
									case 5:
										w.Op = rnic.OpRead
									case 6:
										w.Op, w.SGL, w.RemoteAddr, w.Compare, w.Swap = rnic.OpCompareSwap, [][]byte{make([]byte, 8)}, va, uint64(round), 3
									case 7:
										w.Op, w.SGL, w.RemoteAddr, w.CompareMask, w.SwapMask, w.Swap = rnic.OpMaskedCompareSwap, [][]byte{make([]byte, 8)}, va+8, 0xFF, 0xFF00, 0x1200
									case 8:
										if p == a && round == 20 {
											w.Op, w.RKey = rnic.OpSendInv, fast.RKey
										}
									default:
										w.Op, w.SGL, w.RemoteAddr, w.Swap = rnic.OpFetchAdd, [][]byte{make([]byte, 8)}, va, 1
									}
									p.Post(w)
								}
							}
							s.Pause(200 * time.Microsecond)
							if crash && round%7 == 5 && s.Instance() != nil {
								s.Remove()
								s.Pause(300 * time.Microsecond)
								s.Insert()
								s.Pause(300 * time.Microsecond)
							}
							for _, p := range []*bed.Peer{a, b, c} {
								p.Receive(6, 16384)
							}
							if round%4 == 3 {
								a.Await(b, c)
							}
						}
						a.Await(b, c)
						t.Logf("repeated %d, moved %d, bad repetitions %d", s.Count("repeated"), s.Count("moved"), s.Count("bad-repeat")-bad)
						if n := s.Count("bad-repeat") - bad; n > 0 {
							t.Errorf("%d repetitions are no repetitions", n)
						}
						healthy(t, a, b, c)
					})
				})
			}
		}
	}
}

// Worlds that TestSoak found.
func TestAttack8FoundWorlds(t *testing.T) {
	for _, c := range []struct {
		name   string
		crowds int
		seed   uint64
	}{{"crash", 10, 914600004281}, {"word", 3, 914500005159}, {"crash", 10, 914600008321}} {
		t.Run(fmt.Sprint(c.name, c.seed), func(t *testing.T) {
			w := twins()[c.name]
			w.Limits.Crowds, w.Limits.Deep = c.crowds, false // as they were drawn
			if _, _, err := w.Try(c.seed); err != nil {
				t.Error(err)
			}
		})
	}
}

// As TestAttack8GuestsOverAnother, and what the client sends is a little ahead of what is expected, or READs where it read before.
func TestAttack8GuestsOverAnotherAhead(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, ahead := range []bool{true, false} {
			for _, other := range []bool{true, false} { // there is another client
				t.Run(fmt.Sprintf("%v, ahead %v, another %v", profile, ahead, other), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "shared": "1"}), Profile: profile}, func(t *testing.T, s *bed.Scene) {
						c := rnic.DefaultConn()
						c.Timeout, c.RetryCnt = 16, 7
						l := bed.Link{PD: s.PD(), Conn: c}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						for range 20 {
							a.ReadWord(m, va+1024)
						}
						s.Pause(time.Millisecond)
						begin := (a.Far.Expected() - 10) & hdr.PSNMask
						w := rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 1024, RKey: m.RKey}
						if ahead {
							begin = (begin + 20) & hdr.PSNMask
							w.Op = rnic.OpWrite
						}
						a.QP.Reset()
						a.Far.Reset()
						l.Near, l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.QP, a.Far, begin, begin
						again := s.Peer(0, 0, l)
						for range 5 {
							again.Post(w)
						}
						for range 200 { // 2 s
							s.Pause(10 * time.Millisecond)
							if !other {
								continue
							}
							if _, st := b.Add(m, va, 1); st != rnic.Success {
								break
							}
						}
						t.Logf("%v after %v", again.Status(4), again.Latency(4))
						healthy(t, again, b)
					})
				})
			}
		}
	}
}
