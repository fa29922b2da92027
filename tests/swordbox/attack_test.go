package swordbox

import (
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Long READs that somebody makes up for a connection that carries only its own
// operations, far from its numbers, do not make its later answers a proof that its
// queue pairs are another connection's.
func TestAttackFarRead(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"})}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 1<<20, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		known(t, s, m, a)
		s.Pause(110 * time.Millisecond)
		far := a.Here.ClientPSN + 70000
		s.Send(10*time.Microsecond, a.Frame(far, bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va, m.RKey, 1<<31)}))
		known(t, s, m, a, b)
		for range 80 {
			post(b, m, va, 3)
			if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1<<20)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
				t.Fatal(st)
			}
			a.Await(b)
		}
		healthy(t, a, b)
		if now := bed.WordAt(m, va); !t.Failed() && now != 300 {
			t.Errorf("300 additions make %d", now)
		}
	})
}

// A server's queue pair is connected anew, with another one of the same client's, and nobody says so. The server answers that one,
// whatever it is asked about the connection before. A client that is patient enough goes on.
func TestServersNumberComesBack(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"})}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD()}
		m := s.MR(l.PD, va, 4096, all)
		a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
		known(t, s, m, a, b)
		for range 5 {
			post(a, m, va, 3)
			post(b, m, va, 3)
			a.Await(b)
		}
		s.Pause(110 * time.Millisecond)
		l.Far = a.Far
		l.Conn = rnic.Conn{PathMTU: 1024, Timeout: 14, RetryCnt: 7} // 67 ms, eight times
		again := s.Peer(0, 0, l)
		for i := range uint64(20) {
			if st := again.WriteWord(m, va+1024, i); st != rnic.Success {
				t.Fatal(st)
			}
		}
		healthy(t, again, b)
	})
}

// A client that is allowed to write, and sends WRITEs whose lengths contradict
// each other, ends its own connection and nobody else's.
func TestAttackLengths(t *testing.T) {
	reth := func(m *rnic.MR, n uint32) []byte { return bed.RETH(va+1024, m.RKey, n) }
	type packets []bed.Packet
	for name, c := range map[string]func(m *rnic.MR) packets{
		"more than it says": func(m *rnic.MR) packets {
			return packets{{Op: hdr.WriteOnly, Ext: reth(m, 8), Payload: make([]byte, 16), AckReq: true}}
		},
		"less than it says": func(m *rnic.MR) packets {
			return packets{{Op: hdr.WriteOnly, Ext: reth(m, 16), Payload: make([]byte, 8), AckReq: true}}
		},
		"a READ with a payload": func(m *rnic.MR) packets {
			return packets{{Op: hdr.ReadRequest, Ext: reth(m, 8), Payload: make([]byte, 8), AckReq: true}}
		},
		"an atomic with a payload": func(m *rnic.MR) packets {
			return packets{{Op: hdr.FetchAdd, Ext: bed.AtomicETH(va+1024, m.RKey, 1, 0), Payload: make([]byte, 8), AckReq: true}}
		},
		"a short last packet": func(m *rnic.MR) packets {
			return packets{{Op: hdr.WriteFirst, Ext: reth(m, 2048), Payload: make([]byte, 1024)}, {Op: hdr.WriteLast, Payload: make([]byte, 8), AckReq: true}}
		},
		"an early last packet": func(m *rnic.MR) packets {
			return packets{{Op: hdr.WriteFirst, Ext: reth(m, 3072), Payload: make([]byte, 1024)}, {Op: hdr.WriteLast, Payload: make([]byte, 1024), AckReq: true}, {Op: hdr.WriteOnly, Ext: reth(m, 8), Payload: make([]byte, 8), AckReq: true}}
		},
		"a message that is not ended": func(m *rnic.MR) packets {
			x := bed.Packet{Op: hdr.WriteOnly, Ext: reth(m, 8), Payload: make([]byte, 8), AckReq: true}
			return packets{{Op: hdr.WriteFirst, Ext: reth(m, 3072), Payload: make([]byte, 1024)}, x, x, x}
		},
		"a message of SENDs": func(m *rnic.MR) packets {
			return packets{{Op: hdr.WriteFirst, Ext: reth(m, 2048), Payload: make([]byte, 1024)}, {Op: hdr.SendOnly, Payload: make([]byte, 8), AckReq: true}}
		},
	} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "10000+1000"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 4096, all)
					l := bed.Link{PD: pd}
					a, b, x := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)
					peers := []*bed.Peer{a, b, x}
					known(t, s, m, peers...)
					for range 5 {
						for _, p := range peers {
							if _, st := p.Add(m, va, 1); st != rnic.Success {
								t.Fatal(st)
							}
							if st := p.WriteWord(m, va+1024, 5); st != rnic.Success {
								t.Fatal(st)
							}
							if _, st := p.ReadWord(m, va+1024); st != rnic.Success {
								t.Fatal(st)
							}
						}
					}
					for range 3 {
						for _, p := range peers {
							for _, n := range []int{2048, 3072} {
								if st := p.Write(m, va+1024, make([]byte, n)); st != rnic.Success {
									t.Fatal(st)
								}
							}
						}
					}
					psn := x.Here.ClientPSN + 20 + 15 + 3*5
					var frames [][]byte
					for i, p := range c(m) {
						frames = append(frames, x.Frame(psn+uint32(i), p))
					}
					for range 3 {
						for _, p := range []*bed.Peer{a, b} {
							post(p, m, va, 3)
						}
						s.Send(time.Microsecond, frames...)
						s.Pause(time.Millisecond)
						a.Await(b)
					}
					s.Pause(400 * time.Millisecond)
					for _, p := range []*bed.Peer{a, b} {
						p.Receive(1, 64)
						post(p, m, va, 3)
						p.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
						p.Await()
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// rxe acknowledges a repetition with the PSN of its newest request that was no READ:
// a server that does so after a pause still has the connection.
func TestQuietAfterRead(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Profile: rnic.RXE}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		known(t, s, m, a, b)
		for range 5 {
			for _, p := range []*bed.Peer{a, b} {
				if _, st := p.ReadWord(m, va); st != rnic.Success {
					t.Fatal(st)
				}
			}
			s.Pause(300 * time.Millisecond)
			for _, p := range []*bed.Peer{b, a} {
				post(p, m, va, 3)
			}
			a.Await(b)
		}
		healthy(t, a, b)
		if now := bed.WordAt(m, va); !t.Failed() && now != 70 {
			t.Errorf("70 additions make %d", now)
		}
	})
}

// known has the peers do atomics for so long that the box knows their connections.
func known(t *testing.T, s *bed.Scene, m *rnic.MR, peers ...*bed.Peer) {
	t.Helper()
	for range 20 {
		s.Pause(500 * time.Microsecond)
		warm(t, m, va, 1, peers...)
	}
}

// Who is not followed, and waits while the server pauses, is not told that something
// was executed that still waits.
func TestAskedOfWaiting(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil), Profile: rnic.RXE}, func(t *testing.T, s *bed.Scene) {
		conn := rnic.DefaultConn()
		conn.Timeout = 19 // 2.1 s
		l := bed.Link{PD: s.PD(), Conn: conn}
		m := s.MR(l.PD, va, 4096, all)
		a, b, c := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)
		for range 12 { // longer than settle=
			s.Pause(50 * time.Millisecond)
			warm(t, m, va, 3, a, b)
			for _, p := range []*bed.Peer{a, b} {
				if st := p.WriteWord(m, va, 1); st != rnic.Success {
					t.Fatal(st)
				}
			}
		}
		s.Stall()
		post(a, m, va, 2)
		post(b, m, va, 2)
		s.Pause(100 * time.Microsecond)
		write := func(at uint64) int {
			return c.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{{42, 0, 0, 0, 0, 0, 0, 0}}, RemoteAddr: at, RKey: m.RKey})
		}
		first := write(va)
		write(va + 16)
		s.Pause(1500 * time.Millisecond)
		s.Thaw()
		s.Until(func() bool { return c.Status(first) != bed.Pending }, time.Second)
		if now := bed.WordAt(m, va); c.Status(first) == rnic.Success && (now < 42 || now > 46) {
			t.Errorf("a WRITE of 42 was acknowledged, and memory has %d", now)
		}
		a.Await(b, c)
		healthy(t, a, b, c)
	})
}

// Messages of more packets than a client sends without an answer come through.
func TestLongMessages(t *testing.T) {
	for _, size := range []int{100 << 10, 150 << 10, 300 << 10} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "track": "10000+100000", "hold": "1024"})}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m := s.MR(pd, va, 1<<20, all)
				l := bed.Link{PD: pd}
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)}
				known(t, s, m, peers...)
				for range 3 {
					for _, p := range peers {
						if st := p.Write(m, va, make([]byte, size)); st != rnic.Success {
							t.Fatalf("WRITE: %v", st)
						}
					}
				}
				for _, p := range peers {
					p.Receive(1, size)
					if st := p.Do(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, size)}}); st != rnic.Success {
						t.Fatalf("SEND: %v", st)
					}
				}
			})
		})
	}
}

// A client's queue pair may be connected to another queue pair of the server's at once, while its old
// connection is on record and has carried operations of others.
func TestClientConnectsElsewhere(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"})}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD()}
		m := s.MR(l.PD, va, 4096, all)
		a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
		known(t, s, m, a, b)
		for range 5 {
			post(a, m, va, 3)
			post(b, m, va, 3)
			a.Await(b)
		}
		l.Near = a.QP
		again := s.Peer(0, 0, l)
		for i := range uint64(20) {
			if st := again.WriteWord(m, va+1024, i); st != rnic.Success {
				t.Fatal(st)
			}
			if v, st := again.ReadWord(m, va+1024); st != rnic.Success || v != i {
				t.Fatal(st, v)
			}
		}
		healthy(t, again, b)
	})
}
