package swordbox

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// The answer to the first of some READs is lost behind the box, and the SEND behind them waits for a receive buffer (RNR NAK). The client takes the second answer for a NAK (implied), and
// repeats all READs at once, as often as it may: a server answers each again under its PSN.
func TestAttack6RereadsTogether(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, reads := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%v, %d READs", profile, reads), func(t *testing.T) {
				lossy := false
				bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(graph.Args{"mode": "mux"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
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
					k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 10, 5, 10, 7 // 4 ms, six times; 0.32 ms, without end
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 1<<16, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a)
					lossy = true
					first := a.Posted()
					for i := range reads {
						a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 512*uint64(i), RKey: m.RKey})
					}
					a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
					s.Pause(200 * time.Millisecond)
					for i := range reads {
						if st := a.Status(first + i); st != rnic.Success {
							t.Errorf("READ %d: %v; its client is %v", i, st, a.State())
						}
					}
					if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
						t.Fatal(err)
					}
					a.Await(b)
					healthy(t, a, b)
				})
			})
		}
	}
}

// As TestAttack5RereadStarves, and the client's repetition of the READ is lost, too, on its way from the box to the server. The client repeats it once more, in its time.
func TestAttack6RepetitionOfReadLost(t *testing.T) {
	resp, req := false, false
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
			var f hdr.Frame
			if hdr.Parse(b, &f) != hdr.IsRoCE {
				return false
			}
			switch {
			case resp && machine != "s0" && f.Op == hdr.ReadRespLast:
				resp, req = false, true
				return true
			case req && machine == "s0" && f.Op == hdr.ReadRequest:
				req = false
				return true
			}
			return false
		}}
	}}, func(t *testing.T, s *bed.Scene) {
		k := rnic.DefaultConn()
		k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 10, 5, 10, 7 // 4 ms, six times; 0.32 ms, without end
		l := bed.Link{PD: s.PD(), Conn: k}
		m := s.MR(l.PD, va, 1<<16, all)
		a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
		known(t, s, m, a)
		a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 2048)}, RemoteAddr: va, RKey: m.RKey}) // its path MTU is known then
		resp = true
		read := a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 2048)}, RemoteAddr: va, RKey: m.RKey})
		a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
		s.Pause(200 * time.Millisecond)
		t.Logf("READ %v after %v", a.Status(read), a.Latency(read))
		if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
			t.Fatal(err)
		}
		a.Await(b)
		healthy(t, a, b)
	})
}

// strangers are ways in which somebody who knows a client's queue pair has the box ask the server in doubt, when that was quiet (alive=): by a frame with an address of its own, which a server throws away, where guard=drop
// keeps such away from it; and by an old request in the client's name (any PSN from the first one that is followed to the newest), which a server acknowledges unread.
func strangers(s *bed.Scene) map[string]func(p *bed.Peer, m *rnic.MR) []byte {
	_, other := s.Sender()
	return map[string]func(p *bed.Peer, m *rnic.MR) []byte{
		"drop": func(p *bed.Peer, m *rnic.MR) []byte {
			_, psn := p.Pending()
			return p.Frame(psn+1000, bed.Packet{Src: other, Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true})
		},
		"pass": func(p *bed.Peer, m *rnic.MR) []byte {
			_, psn := p.Pending()
			return p.Frame(psn-5, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true, SrcMAC: p.Here.ClientMAC})
		},
	}
}

// Somebody has the box ask the server in doubt (strangers). Then the client sends a request, which the server has executed: the box's question from far ahead (PSN next+32768) is in front of it, and the NAK (PSN sequence error)
// to that is taken for one to the client's request. The client may not ask again (retry_cnt 0).
func TestAttack6QuestionAndRequest(t *testing.T) {
	for _, guard := range []string{"drop", "pass"} {
		for _, retries := range []int{0, 1, 7} {
			for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
				t.Run(fmt.Sprintf("guard %s, %v, retry_cnt %d", guard, profile, retries), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(graph.Args{"mode": "mux", "guard": guard})}, func(t *testing.T, s *bed.Scene) {
						k := rnic.DefaultConn()
						k.RetryCnt = retries
						l := bed.Link{PD: s.PD(), Conn: k}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						for range 10 {
							s.Pause(120 * time.Millisecond)
							s.Stall() // the server takes its time, 100 us
							s.Send(0, strangers(s)[guard](a, m))
							post(a, m, va, 1)
							s.Pause(50 * time.Microsecond)
							s.Thaw()
							if a.Await(); a.State() != rnic.StateReady {
								break
							}
						}
						healthy(t, a, b)
					})
				})
			}
		}
	}
}

// As TestAttack6QuestionAndRequest, and the client's requests come when the server's NAK (PSN sequence error) to the question has gone. The first of them is lost behind the box: the server, which sends one such NAK until the
// expected PSN comes, sends none when the second comes. On a wire the client is told at once; its own timeout is long, or there is none (0).
func TestAttack6QuestionAndLoss(t *testing.T) {
	for _, guard := range []string{"drop", "pass"} {
		for _, timeout := range []int{0, 18} { // without end; 1 s
			t.Run(fmt.Sprintf("guard %s, timeout %d", guard, timeout), func(t *testing.T) {
				lossy := false
				bed.Both(t, bed.SceneConfig{Profile: rnic.RXE, Box: ofSwordbox(graph.Args{"mode": "mux", "guard": guard}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
						var f hdr.Frame
						if lossy && machine == "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.FetchAdd {
							lossy = false
							return true
						}
						return false
					}}
				}}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.Timeout = timeout
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 4096, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					s.Pause(120 * time.Millisecond)
					s.Send(0, strangers(s)[guard](a, m))
					s.Pause(time.Millisecond)
					lossy = true
					first := a.Posted()
					post(a, m, va, 2)
					a.Await(b)
					if d := a.Latency(first); d > 100*time.Millisecond {
						t.Errorf("a request that was lost, with another one behind it, took %v (or has no answer)", d)
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// A client asks again for an answer that was lost (timeout 268 ms, longer than alive=), or somebody has the box ask the server in doubt (strangers), while the server pauses; and the box is killed. What went as a WRITE in an
// atomic's place waits at the server behind the question from far ahead. The next box takes the NAK to that question, which comes later than settle= after the kill, for the word that the WRITE was not executed, and has the
// client send the atomic again.
func TestAttack6QuestionAndCrash(t *testing.T) {
	const pause = 700 * time.Millisecond // of the server
	for _, settle := range []string{"100us", "200ms"} {
		for _, why := range []string{"drop", "pass", "own"} {
			for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
				t.Run(fmt.Sprintf("%v, %s, settle %s", profile, why, settle), func(t *testing.T) {
					lossy := false
					args := graph.Args{"settle": settle, "writable": "assume", "verify": "1h"}
					if why == "drop" {
						args["guard"] = why
					}
					bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(args), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
							var f hdr.Frame
							if lossy && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.AtomicAck {
								lossy = false
								return true
							}
							return false
						}}
					}}, func(t *testing.T, s *bed.Scene) {
						k := rnic.DefaultConn()
						k.Timeout = 16
						l := bed.Link{PD: s.PD(), Conn: k}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						s.Pause(300 * time.Millisecond)
						warm(t, m, va, 20, a, b)
						warm(t, m, va, 20, b)
						from, n := bed.WordAt(m, va), uint64(1)
						if why == "own" {
							lossy = true
							post(b, m, va, 1)
							n++
							s.Pause(260 * time.Millisecond)
							s.Stall()
							s.Pause(20 * time.Millisecond)
						} else {
							s.Pause(120 * time.Millisecond)
							s.Stall()
							s.Send(0, strangers(s)[why](b, m))
						}
						replaced := s.Count("replaced-atomic")
						post(b, m, va, 1)
						s.Pause(30 * time.Microsecond)
						if s.Instance() != nil {
							if s.Count("replaced-atomic") == replaced && why == "drop" { // else it waits for the server's word, behind what may be another connection's
								t.Fatal("nothing was replaced")
							}
							s.Remove()
							s.Pause(30 * time.Microsecond)
							s.Insert()
						}
						s.Pause(pause)
						s.Thaw()
						a.Await(b)
						healthy(t, a, b)
						if v := bed.WordAt(m, va) - from; v != n {
							t.Errorf("the word grew by %d, want %d: an addition that was acknowledged once is there twice", v, n)
						}
					})
				})
			}
		}
	}
}

// As TestAttack4NumberComesBack: a client dies without a word, and its queue pair's number is its next one's, which counts from a PSN on that is a little before where the old one came to. Its requests are lost on the way. Somebody
// sends a frame with an address of its own to the old queue pair of the server's, which is still there. The server's NAK (PSN sequence error) to the question from far ahead names the PSN that the old connection comes to next:
// it does not acknowledge what the new one has under way before that.
func TestAttack6QuestionOfFormer(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "guard": "drop"})} {
				deaf := uint32(0)
				s := newManagers(t, bed.SceneConfig{Box: x})
				s.server.Lose = func(b []byte) bool {
					var f hdr.Frame
					return deaf != 0 && hdr.Parse(b, &f) == hdr.IsRoCE && f.BTHOf(b).DestQP() == deaf
				}
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				s.announce(a, 1)
				s.announce(b, 2)
				known(t, s.Scene, m, a, b)
				_, next := a.Pending()
				if x != nil {
					next = a.Far.Expected()
				}
				old := a.Here.ServerQPN
				a.QP.Reset()
				s.Pause(time.Second)
				for range 3 {
					s.Pause(20 * time.Millisecond)
					warm(t, m, va, 1, b)
				}
				c := rnic.DefaultConn()
				c.SQPSN = (next - 20) & hdr.PSNMask
				again := s.Peer(0, 1, bed.Link{PD: pd, Near: a.QP, Conn: c})
				s.announce(again, 7)
				s.Pause(200 * time.Millisecond)
				deaf = again.Here.ServerQPN
				_, other := s.Sender()
				asked := s.Count("probes")
				k := *a
				k.Here.ServerQPN = old
				s.Stall() // the server takes its time, 100 us
				s.Send(time.Microsecond, k.Frame(5, bed.Packet{Src: other, Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true}))
				for i := range uint64(40) {
					again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+i)}, RemoteAddr: va + 1024, RKey: m.RKey})
				}
				s.Pause(50 * time.Microsecond)
				s.Thaw()
				s.Pause(time.Millisecond)
				n := 0
				for i := range 40 {
					if again.Status(i) == rnic.Success && bed.WordAt(m, va+1024) < 0x700+uint64(i) {
						n++
					}
				}
				t.Logf("asked %d times", s.Count("probes")-asked)
				if n > 0 {
					t.Errorf("%d WRITEs are acknowledged, and not in memory", n)
				}
				deaf = 0
				again.Await(b)
				healthy(t, again, b)
			}
		})
	}
}

// As TestAttack5RereadStarves, and the READ is of a word, and went over another's connection: its answer is lost behind the box, and the SEND behind it waits for a receive buffer. The READ is done again without the SEND.
func TestAttack6MovedRereadStarves(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			lossy := false
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "1"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
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
				k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 10, 5, 10, 7 // 4 ms, six times; 0.32 ms, without end
				l := bed.Link{PD: s.PD(), Conn: k}
				m := s.MR(l.PD, va, 1<<16, all)
				b := s.Peer(1, 0, l)
				known(t, s, m, b)
				a := s.Peer(0, 0, l)
				known(t, s, m, a, b)
				for range 5 {
					a.ReadWord(m, va)
				}
				for _, p := range []*bed.Peer{a, b} {
					p.WriteWord(m, va, 1)
				}
				was := s.Count("moved")
				if a.ReadWord(m, va); s.Count("moved") == was {
					a, b = b, a // the word is of a's connection
					for range 3 {
						a.ReadWord(m, va)
					}
				}
				moved := s.Count("moved")
				lossy = true
				read := a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey})
				a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
				s.Pause(200 * time.Millisecond)
				t.Logf("READ %v after %v; moved %d", a.Status(read), a.Latency(read), s.Count("moved")-moved)
				if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
					t.Fatal(err)
				}
				a.Await(b)
				healthy(t, a, b)
			})
		})
	}
}

// The answers to an atomic of a client's and to the atomic, or the WRITE, behind it are lost behind the box, and the client asks again for both at once, when its timeout is over, which is longer than alive=. It gets both answers, the first one first: with the
// second alone it has nothing to do but to wait for its next timeout.
func TestAttack6TwoAnswersLost(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, mode := range []string{"mux", "replace"} {
			for _, c := range []struct {
				timeout int // 14: 67 ms; 16: 268 ms; 18: 1.07 s
				then    rnic.Op
			}{{14, rnic.OpFetchAdd}, {16, rnic.OpFetchAdd}, {18, rnic.OpFetchAdd}, {18, rnic.OpWrite}} {
				t.Run(fmt.Sprintf("%v, %s, timeout %d, then %v", profile, mode, c.timeout, c.then), func(t *testing.T) {
					lose := 0
					bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
							var f hdr.Frame
							if lose > 0 && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && (f.Op == hdr.AtomicAck || f.Op == hdr.Acknowledge) {
								lose--
								return true
							}
							return false
						}}
					}}, func(t *testing.T, s *bed.Scene) {
						k := rnic.DefaultConn()
						k.Timeout = c.timeout
						l := bed.Link{PD: s.PD(), Conn: k}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						from := bed.WordAt(m, va)
						lose = 2
						first := a.Posted()
						post(a, m, va, 1)
						a.Post(rnic.SendWR{Op: c.then, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 64, RKey: m.RKey, Swap: 1})
						a.Await(b)
						if d, most := a.Latency(first+1), 2*4096*time.Nanosecond<<c.timeout; d > most {
							t.Errorf("%v and %v; the second took %v", a.Status(first), a.Status(first+1), d)
						}
						healthy(t, a, b)
						if v := bed.WordAt(m, va) - from; v != 1 {
							t.Errorf("the word grew by %d, want 1", v)
						}
					})
				})
			}
		}
	}
}

// As TestAttack6TwoAnswersLost, of READs and atomics in turns.
func TestAttack6AnswersLost(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, n := range []int{2, 3, 8} {
			for _, first := range []int{0, 1} {
				t.Run(fmt.Sprintf("%v, %d, READ first %v", profile, n, first == 0), func(t *testing.T) {
					lose := 0
					for k, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux"}), nil, ofSwordbox(graph.Args{"mode": "mux"})} {
						s := newManagers(t, bed.SceneConfig{Profile: profile, Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
							return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
								var f hdr.Frame
								if lose > 0 && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op.Has(hdr.IsResponse) {
									lose--
									return true
								}
								return false
							}}
						}})
						isAnnounced := k > 1
						k := rnic.DefaultConn()
						k.Timeout = 16
						l := bed.Link{PD: s.PD(), Conn: k}
						m := s.MR(l.PD, va, 4096, all)
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						if isAnnounced {
							s.announce(a, 1)
							s.announce(b, 2)
						}
						known(t, s.Scene, m, a, b)
						lose = n
						at := a.Posted()
						for i := range n {
							if i%2 == first {
								a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 64, RKey: m.RKey})
							} else {
								post(a, m, va, 1)
							}
						}
						a.Await(b)
						t.Logf("the last one took %v", a.Latency(at+n-1))
						healthy(t, a, b)
					}
				})
			}
		}
	}
}

// As TestAttack5PlaceOfOrphan, and the next connection does as many requests as its ring of operations has places, while the former one's orphan is still without an answer (giveup=).
func TestAttack6PlaceOfOrphanComesRound(t *testing.T) {
	for _, n := range []int{3, 100, 140} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "shared": "1"})} {
				s := newManagers(t, bed.SceneConfig{Box: x})
				k := rnic.DefaultConn()
				k.Timeout, k.RetryCnt = 9, 1 // 2 ms, twice
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a := s.Peer(0, 0, bed.Link{PD: pd})
				known(t, s.Scene, m, a)
				b := s.Peer(1, 0, bed.Link{PD: pd, Conn: k})
				s.announce(b, 2)
				warm(t, m, va, 3, b)
				a.QP.Reset()
				a.Far.Reset()
				post(b, m, va, 1)
				b.Await()
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
				for range n {
					if c.Do(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}}) != rnic.Success {
						break
					}
					worst = max(worst, c.Latency(c.Posted()-1))
				}
				t.Logf("b: %v, moved %d; c: %d requests, the slowest took %v", b.Status(b.Posted()-1), s.Count("moved"), c.Posted(), worst)
				healthy(t, c)
			}
		})
	}
}

// The answer to a READ is lost behind the box, and so are those to its repetitions, for longer than giveup=, while the server answers others: its packets go
// another way, or the server's processor is slow. The client is patient enough, and nobody else's is over its connection.
func TestRereadIsPatient(t *testing.T) {
	near, far := false, false
	for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "shared": "1"})} { // announced: else the server is asked at each repetition, and is heard
		s := newManagers(t, bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
			return &bed.Spy{Endpoint: nic, LoseOut: func(b []byte) bool {
				var f hdr.Frame
				return far && machine == "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op.Has(hdr.IsReadResp) && len(f.PayloadOf(b)) == 512
			}, Lose: func(b []byte) bool {
				var f hdr.Frame
				return near && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op.Has(hdr.IsReadResp) && len(f.PayloadOf(b)) == 512
			}}
		}})
		k := rnic.DefaultConn()
		k.Timeout, k.RetryCnt = 15, 7 // 134 ms, eight times
		l := bed.Link{PD: s.PD(), Conn: k}
		m, own := s.MR(l.PD, va, 1<<16, all), s.MR(l.PD, 1<<30, 4096, all)
		a, b, c := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)
		for i, p := range []*bed.Peer{a, b, c} {
			s.announce(p, uint32(i+1))
		}
		known(t, s.Scene, m, a, b, c)
		read := func() {
			a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 512)}, RemoteAddr: 1 << 30, RKey: own.RKey})
		}
		read()
		c.Await()
		near = true
		read()
		s.Pause(10 * time.Millisecond)
		near, far = false, true
		for range 70 {
			b.Add(m, va+8192, 1)
			s.Pause(10 * time.Millisecond)
		}
		far = false
		a.Await(b, c)
		healthy(t, a, b, c)
	}
}
