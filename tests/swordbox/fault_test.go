package swordbox

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// Each test plays one scenario on a bare wire, which shows that it is no fault of
// the scenario's, and through swordbox: nothing may happen there that did not
// happen on the wire.

// ofSwordbox is a swordbox with its defaults, but for args.
func ofSwordbox(args graph.Args) *bed.Box {
	a := graph.Args{"conns": "64", "words": "1024", "hold": "256", "replace": "learnt"}
	maps.Copy(a, args)
	return &bed.Box{Kind: *tor.Kind(), Args: a}
}

const (
	va  = 0x10000
	all = rnic.RemoteRead | rnic.RemoteWrite | rnic.RemoteAtomic
)

// warm has peers do atomics on a word in turns, so that the box knows their
// connections and has put their operations together.
func warm(t *testing.T, m *rnic.MR, va uint64, rounds int, peers ...*bed.Peer) {
	t.Helper()
	for range rounds {
		for _, p := range peers {
			if _, st := p.Add(m, va, 1); st != rnic.Success {
				t.Fatalf("FETCH-ADD: %v", st)
			}
		}
	}
}

// Three frames of somebody who knows a client's address and its server's queue
// pair number, far from all PSNs in use, sent while the client is quiet: the
// client's WRITEs that are acknowledged are in memory all the same.
func TestFault01SpoofedFarAway(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		warm(t, m, va, 20, a, b)
		warm(t, m, va, 50, b) // over a's connection, if it is the shared one
		for _, victim := range []*bed.Peer{a, b} {
			s.Pause(110 * time.Millisecond)
			far := victim.Here.ClientPSN + 1<<20
			f := victim.Frame(far, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true})
			s.Send(10*time.Millisecond, f, f, f)
		}
		for i := range 100 {
			for k, p := range []*bed.Peer{a, b} {
				at := uint64(va + 1024 + 8*(2*i+k))
				p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, at)}, RemoteAddr: at, RKey: m.RKey})
			}
		}
		a.Await(b)
		lost, failed := 0, 0
		for i := range 100 {
			for k, p := range []*bed.Peer{a, b} {
				at := uint64(va + 1024 + 8*(2*i+k))
				switch done := p.Status(p.Posted() - 100 + i); {
				case done != rnic.Success:
					failed++
				case bed.WordAt(m, at) != at:
					lost++
				}
			}
		}
		if lost+failed > 0 {
			t.Errorf("of 200 WRITEs %d were acknowledged and are not in memory, and %d failed", lost, failed)
		}
	})
}

// A queue pair that allows READs does not WRITE over another one that allows more.
func TestFault02aRightsOfOneself(t *testing.T) {
	for name, c := range map[string]struct {
		gives rnic.Access
		do    func(p *bed.Peer, m *rnic.MR) rnic.Status
	}{
		"write": {rnic.RemoteRead, func(p *bed.Peer, m *rnic.MR) rnic.Status { return p.WriteWord(m, va, 666) }},
		"add":   {rnic.RemoteRead, func(p *bed.Peer, m *rnic.MR) rnic.Status { _, st := p.Add(m, va, 666); return st }},
		"cas":   {rnic.RemoteRead | rnic.RemoteWrite, func(p *bed.Peer, m *rnic.MR) rnic.Status { _, st := p.CAS(m, va, 0, 666); return st }},
		"read":  {rnic.RemoteWrite, func(p *bed.Peer, m *rnic.MR) rnic.Status { _, st := p.ReadWord(m, va); return st }},
	} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "10000+1000"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 4096, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					v := s.Peer(2, 0, bed.Link{PD: pd, Access: c.gives})
					warm(t, m, va, 10, a, b)
					for range 10 { // what it may do
						st := rnic.Success
						if c.gives&rnic.RemoteRead != 0 {
							_, st = v.ReadWord(m, va+64)
						} else {
							st = v.WriteWord(m, va+64, 7)
						}
						if st != rnic.Success {
							t.Fatalf("what is allowed: %v", st)
						}
						_ = a.WriteWord(m, va, 5)
						_, _ = b.ReadWord(m, va)
					}
					before := bed.WordAt(m, va)
					if st := c.do(v, m); st != rnic.RemoteInvalidRequestError {
						t.Errorf("status %v, want %v, as a queue pair without the right gives", st, rnic.RemoteInvalidRequestError)
					}
					if now := bed.WordAt(m, va); now != before {
						t.Errorf("the word was %d and is %d", before, now)
					}
				})
			})
		}
	}
}

// Who has another one's R_Key, but not a queue pair of its protection domain, is
// refused, also when the operation changes nothing.
func TestFault02bStrangersKey(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"writable": "assume"})}, func(t *testing.T, s *bed.Scene) {
		alice, mallory := s.PD(), s.PD()
		secret, own := s.MR(alice, va, 4096, all), s.MR(mallory, 0x90000, 4096, all)
		a, b := s.Peer(0, 0, bed.Link{PD: alice}), s.Peer(1, 0, bed.Link{PD: alice})
		x := s.Peer(2, 0, bed.Link{PD: mallory})
		warm(t, own, 0x90000, 10, x)
		if st := a.WriteWord(secret, va, 0x5ec1e7); st != rnic.Success {
			t.Fatal(st)
		}
		warm(t, secret, va, 10, a, b)
		s.Pause(250 * time.Millisecond)
		warm(t, own, 0x90000, 10, x)
		warm(t, secret, va, 10, a, b)
		switch v, st := x.Add(secret, va, 0); {
		case st == rnic.Success:
			t.Errorf("a stranger with the R_Key read %#x; memory has %#x", v, bed.WordAt(secret, va))
		case st != rnic.RemoteAccessError:
			t.Errorf("status %v, want %v", st, rnic.RemoteAccessError)
		}
		warm(t, secret, va, 3, a, b) // whom it does not concern
	})
}

// Queue pairs that allow READs and atomics, as ib_atomic_bw makes them, never see
// a WRITE that their clients did not send.
func TestFault02cNoRightToWrite(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for name, play := range map[string]func(t *testing.T, s *bed.Scene, m *rnic.MR, peers []*bed.Peer){
			// A CAS that fails changes nothing.
			"failing CAS": func(t *testing.T, s *bed.Scene, m *rnic.MR, peers []*bed.Peer) {
				for range 20 {
					for _, p := range peers {
						p.CAS(m, va, 1<<60, 1)
					}
				}
			},
			// The server pauses while operations are under way.
			"pause": func(t *testing.T, s *bed.Scene, m *rnic.MR, peers []*bed.Peer) {
				for range 3 {
					s.Freeze()
					for _, p := range peers {
						post(p, m, va, 4)
					}
					s.Pause(150 * time.Millisecond)
					for _, p := range peers {
						post(p, m, va, 4)
					}
					s.Pause(50 * time.Millisecond)
					s.Thaw()
					peers[0].Await(peers...)
				}
			},
			// Everybody is quiet, and then goes on.
			"quiet": func(t *testing.T, s *bed.Scene, m *rnic.MR, peers []*bed.Peer) {
				for range 3 {
					s.Pause(200 * time.Millisecond)
					for _, p := range peers {
						post(p, m, va, 4)
					}
					peers[0].Await(peers...)
				}
			},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode})}, func(t *testing.T, s *bed.Scene) {
					gives := bed.Link{PD: s.PD(), Access: rnic.RemoteRead | rnic.RemoteAtomic}
					m := s.MR(gives.PD, va, 4096, rnic.RemoteRead|rnic.RemoteAtomic)
					peers := []*bed.Peer{s.Peer(0, 0, gives), s.Peer(1, 0, gives), s.Peer(2, 0, gives)}
					warm(t, m, va, 10, peers...)
					// The box takes no word for known for the first 200 ms (settle=).
					for range 5 {
						s.Pause(50 * time.Millisecond)
						warm(t, m, va, 1, peers...)
					}
					play(t, s, m, peers)
					healthy(t, peers...)
				})
			})
		}
	}
}

// post posts n FETCH-ADDs.
func post(p *bed.Peer, m *rnic.MR, va uint64, n int) {
	for range n {
		p.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey, Swap: 1})
	}
}

// healthy fails the test when work of the peers did not succeed.
func healthy(t *testing.T, peers ...*bed.Peer) {
	t.Helper()
	for i, p := range peers {
		count := map[rnic.Status]int{}
		bad := 0
		for id := range p.Posted() {
			st := p.Status(id)
			count[st]++
			if st != rnic.Success {
				bad++
			}
		}
		if bad > 0 || p.State() != rnic.StateReady {
			t.Errorf("peer %d is %v; of its %d operations %d did not succeed: %v", i, p.State(), p.Posted(), bad, count)
		}
	}
}

// Server queue pairs that remember one READ or atomic are given no more at once,
// whoever sends them: an answer that is lost can be given again.
func TestFault02dResponderResources(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for seed := range uint64(10) {
				mix := fault.Mix{Links: []string{"s0"}, Frames: 12, Within: 400}
				schedule := losses(fault.Random(seed, mix))
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Schedule: schedule, Seed: seed}, func(t *testing.T, s *bed.Scene) {
					conn := rnic.DefaultConn()
					conn.MaxRdAtomic, conn.MaxDestRdAtomic = 1, 1
					one := bed.Link{PD: s.PD(), Conn: conn}
					m := s.MR(one.PD, va, 4096, all)
					peers := []*bed.Peer{s.Peer(0, 0, one), s.Peer(1, 0, one), s.Peer(2, 0, one), s.Peer(0, 1, one), s.Peer(1, 1, one), s.Peer(2, 1, one)}
					for range 20 {
						for _, p := range peers {
							post(p, m, va, 2)
						}
						peers[0].Await(peers...)
					}
					healthy(t, peers...)
					if now := bed.WordAt(m, va); !t.Failed() && now != 240 {
						t.Errorf("240 additions make %d", now)
					}
				})
			}
		})
	}
}

// losses are the faults of a schedule, as losses.
func losses(s fault.Schedule) fault.Schedule {
	for i := range s {
		if s[i].Action.OfFrame() {
			s[i].Action = fault.Drop
		}
	}
	return s
}

// Frames with a client's address and PSNs of long ago end
// nobody's connection.
func TestFault06aSpoofedDuplicates(t *testing.T) {
	for name, op := range map[string]hdr.Opcode{"atomics": hdr.FetchAdd, "READs": hdr.ReadRequest, "WRITEs": hdr.WriteOnly} {
		t.Run(name, func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				warm(t, m, va, 300, a, b)
				var frames [][]byte
				for k := range uint32(89) {
					for _, victim := range []*bed.Peer{a, b} {
						ext := bed.RETH(va, m.RKey, 8)
						var data []byte
						switch op {
						case hdr.FetchAdd:
							ext = bed.AtomicETH(va, m.RKey, 1, 0)
						case hdr.WriteOnly:
							data = make([]byte, 8)
						}
						frames = append(frames, victim.Frame(victim.Here.ClientPSN+10+k, bed.Packet{Op: op, Ext: ext, Payload: data, AckReq: true}))
					}
				}
				s.Send(10*time.Microsecond, frames...)
				before := bed.WordAt(m, va)
				for range 50 {
					for _, p := range []*bed.Peer{a, b} {
						post(p, m, va, 1)
					}
					a.Await(b)
				}
				healthy(t, a, b)
				if now := bed.WordAt(m, va); !t.Failed() && (now-before != 100 || before != 600) {
					t.Errorf("700 additions make %d", now)
				}
			})
		})
	}
}

// One frame from another address to a queue pair, and a flood of them, are
// nothing to those whose it is.
func TestFault06bOtherAddress(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		warm(t, m, va, 20, a, b)
		s.Pause(120 * time.Millisecond)
		_, other := s.Sender()
		for round := range uint32(50) {
			var frames [][]byte
			for _, victim := range []*bed.Peer{a, b} {
				psn := victim.Here.ClientPSN + 20 + round // the one that comes next
				frames = append(frames, victim.Frame(psn, bed.Packet{Src: other, Op: hdr.FetchAdd, Ext: bed.AtomicETH(va, m.RKey, 1, 0), AckReq: true}))
			}
			s.Send(time.Microsecond, frames...)
			for _, p := range []*bed.Peer{a, b} {
				post(p, m, va, 1)
			}
			a.Await(b)
		}
		healthy(t, a, b)
		if now := bed.WordAt(m, va); !t.Failed() && now != 140 {
			t.Errorf("140 additions make %d", now)
		}
	})
}

// A SEND that waits for a receive buffer makes nobody else's operations fail,
// however long the clients are willing to wait.
func TestFault05aBehindASend(t *testing.T) {
	for name, timer := range map[string]int{"640us": 12, "655ms": 0} {
		t.Run(name, func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
				conn := rnic.DefaultConn()
				conn.MinRNRTimer = timer
				l := bed.Link{PD: s.PD(), Conn: conn}
				m := s.MR(l.PD, va, 4096, all)
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)}
				warm(t, m, va, 10, peers...)
				for _, sender := range peers {
					sender.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
					s.Pause(time.Millisecond)
					for range 20 {
						for _, p := range peers {
							post(p, m, va, 1)
						}
						s.Pause(40 * time.Millisecond)
					}
					sender.Receive(1, 64)
					peers[0].Await(peers...)
				}
				healthy(t, peers...)
			})
		})
	}
}

// A server that pauses for 0.7 s loses nobody whose queue pair is that patient.
func TestFault05bPatience(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Profile: rnic.ConnectX}, func(t *testing.T, s *bed.Scene) {
				conn := rnic.DefaultConn()
				conn.Timeout = 16 // 268 ms, seven times
				l := bed.Link{PD: s.PD(), Conn: conn}
				m := s.MR(l.PD, va, 4096, all)
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)}
				warm(t, m, va, 10, peers...)
				for range 2 {
					for _, p := range peers {
						post(p, m, va, 2)
					}
					s.Freeze()
					for _, p := range peers {
						post(p, m, va, 2)
					}
					s.Pause(700 * time.Millisecond)
					s.Thaw()
					peers[0].Await(peers...)
				}
				healthy(t, peers...)
				if now := bed.WordAt(m, va); !t.Failed() && now != 54 {
					t.Errorf("54 additions make %d", now)
				}
			})
		})
	}
}

// Who uses an R_Key that a SEND has invalidated is refused; those over whose
// queue pair the operation went have done nothing wrong.
func TestFault05cInvalidated(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD()}
		m, lent := s.MR(l.PD, va, 4096, all), s.FastMR(l.PD, 0x80000, 4096, all)
		peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, l)}
		warm(t, m, va, 10, peers...)
		warm(t, lent, 0x80000, 10, peers...)
		user := peers[1]
		peers[2].Receive(1, 64)
		if st := peers[2].Do(rnic.SendWR{Op: rnic.OpSendInv, SGL: [][]byte{make([]byte, 16)}, RKey: lent.RKey}); st != rnic.Success {
			t.Fatalf("SEND with invalidate: %v", st)
		}
		if _, st := user.Add(lent, 0x80000, 1); st != rnic.RemoteAccessError {
			t.Errorf("status %v with an R_Key that is no more, want %v", st, rnic.RemoteAccessError)
		}
		for range 10 {
			for _, p := range []*bed.Peer{peers[0], peers[2]} {
				post(p, m, va, 1)
			}
			peers[0].Await(peers[2])
		}
		healthy(t, peers[0], peers[2])
	})
}

// A word that a client believes to hold has no second holder, whatever way its
// change came: what may write and is not understood leaves no word known.
func TestFault04Unseen(t *testing.T) {
	atomic := func(m *rnic.MR, swap, compare uint64) []byte { return bed.AtomicETH(va, m.RKey, swap, compare) }
	for name, c := range map[string]struct {
		ipv6   bool
		frames func(p *bed.Peer, m *rnic.MR) [][]byte // they make the word 42 that was 1
	}{
		"XRC CAS": {false, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{p.Frame(5, bed.Packet{Op: bed.XRC | hdr.CompareSwap, Ext: append(make([]byte, 4), atomic(m, 42, 1)...)})}
		}},
		"XRC FETCH-ADD": {false, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{p.Frame(5, bed.Packet{Op: bed.XRC | hdr.FetchAdd, Ext: append(make([]byte, 4), atomic(m, 41, 0)...)})}
		}},
		"XRC WRITE": {false, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{p.Frame(5, bed.Packet{Op: bed.XRC | hdr.WriteOnly, Ext: append(make([]byte, 4), bed.RETH(va, m.RKey, 8)...), Payload: []byte{42, 0, 0, 0, 0, 0, 0, 0}})}
		}},
		"DC CAS": {false, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{p.Frame(5, bed.Packet{Op: bed.DC | hdr.CompareSwap, Ext: append(make([]byte, 8), atomic(m, 42, 1)...)})}
		}},
		"fragments": {false, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return bed.Fragments(p.Frame(5, bed.Packet{Op: hdr.FetchAdd, Ext: atomic(m, 41, 0)}), 7, 24)
		}},
		"hop-by-hop options": {true, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{bed.Extended(p.Frame(5, bed.Packet{Op: hdr.FetchAdd, Ext: atomic(m, 41, 0)}), 0)}
		}},
		"destination options": {true, func(p *bed.Peer, m *rnic.MR) [][]byte {
			return [][]byte{bed.Extended(p.Frame(5, bed.Packet{Op: hdr.FetchAdd, Ext: atomic(m, 41, 0)}), 60)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var m *rnic.MR
			var odd *bed.Other
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil), IPv6: c.ipv6, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
				if machine != "s0" {
					return nic
				}
				odd = &bed.Other{Endpoint: nic, Regions: func() []*rnic.MR { return []*rnic.MR{m} }}
				return odd
			}}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m = s.MR(pd, va, 4096, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				for range 12 { // longer than settle=
					s.Pause(50 * time.Millisecond)
					warm(t, m, va, 1, a, b)
				}
				for _, p := range []*bed.Peer{a, b} {
					if st := p.WriteWord(m, va, 1); st != rnic.Success {
						t.Fatal(st)
					}
					if _, st := p.CAS(m, va, 7, 7); st != rnic.Success {
						t.Fatal(st)
					}
					s.Send(time.Microsecond, c.frames(s.Stranger(p), m)...)
					if odd.Done == 0 || bed.WordAt(m, va) != 42 {
						t.Fatalf("the word is %d: the frames were not executed", bed.WordAt(m, va))
					}
					if was, st := p.CAS(m, va, 1, 99); st != rnic.Success || was != 42 {
						t.Errorf("a CAS found %d (status %v), and memory held 42", was, st)
					}
					odd.Done = 0
				}
				healthy(t, a, b)
			})
		})
	}
}

// Two queue pairs of one host count in lockstep, and the box comes between while
// they talk: the answers of one, whose requests passed before, are not the other's.
func TestFault03Lockstep(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			box := ofSwordbox(graph.Args{"mode": mode})
			var lost fault.Schedule // a's first requests, behind the box
			for i := range 8 {
				lost = append(lost, fault.Fault{Where: "s0", Frame: 9 + i})
			}
			bed.Both(t, bed.SceneConfig{Box: box, Schedule: lost}, func(t *testing.T, s *bed.Scene) {
				conn := rnic.DefaultConn()
				conn.SQPSN = 3185 // as Clover and Sherman begin
				l := bed.Link{PD: s.PD(), Conn: conn}
				m := s.MR(l.PD, va, 4096, all)
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(0, 1, l), s.Peer(1, 0, l)}
				a, b := peers[0], peers[1]
				s.Remove()
				s.Stall()
				got := map[*bed.Peer][][]byte{}
				add := func(p *bed.Peer, at, n uint64) {
					buf := make([]byte, 8)
					got[p] = append(got[p], buf)
					p.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{buf}, RemoteAddr: at, RKey: m.RKey, Swap: n})
				}
				for range 8 {
					add(b, va+8, 1)
				}
				s.Pause(100 * time.Microsecond) // they wait at the server
				s.Insert()
				for range 8 {
					add(a, va, 1)
				}
				s.Pause(100 * time.Microsecond)
				s.Thaw()
				a.Await(b)
				for range 100 {
					for i, p := range peers {
						for range 2 {
							add(p, va+uint64(8*i), 1)
						}
					}
					a.Await(peers...)
				}
				healthy(t, peers...)
				for i, p := range peers {
					for k, buf := range got[p] {
						if v := binary.LittleEndian.Uint64(buf); v != uint64(k) {
							t.Fatalf("addition %d of peer %d found %d", k+1, i, v)
						}
					}
				}
			})
		})
	}
}

// One frame to a made-up address ends nothing: what the box gained it gains
// afterwards, too.
func TestFault07aMadeUpDestinations(t *testing.T) {
	for name, frames := range map[string]func(p *bed.Peer, n uint8) bed.Packet{
		"the server's MAC": func(p *bed.Peer, n uint8) bed.Packet { return bed.Packet{DstMAC: p.Here.ServerMAC} },
		"other MACs":       func(p *bed.Peer, n uint8) bed.Packet { return bed.Packet{DstMAC: [6]byte{2, 0, 0, 9, 9, n}} },
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/first=%v", name, first), func(t *testing.T) {
				s := bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"conns": "512", "window": "1024", "words": "65536", "writable": "assume"})})
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				flood := func() {
					var all [][]byte
					for n := range uint8(32) {
						k := frames(a, n)
						k.SrcMAC, k.Op, k.QPN, k.PSN = [6]byte{2, 0, 0, 0, 0xee, 1}, hdr.FetchAdd, 0x99, uint32(n)
						k.Src, k.Dst = a.Here.ClientIP, netip.AddrFrom4([4]byte{10, 9, 9, n})
						k.Ext = bed.AtomicETH(va, 1, 1, 0)
						all = append(all, k.Bytes())
					}
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					s.Send(time.Microsecond, all...)
					runtime.ReadMemStats(&after)
					if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
						t.Errorf("32 frames of a stranger had %d MB allocated on the packet path", n>>20)
					}
				}
				if first {
					flood()
				}
				warmed := func() uint64 {
					for range 12 {
						s.Pause(50 * time.Millisecond)
						warm(t, m, va, 1, a, b)
					}
					before := s.Count("replaced")
					warm(t, m, va, 500, a, b)
					return s.Count("replaced") - before
				}
				was := warmed()
				if was < 900 {
					t.Errorf("%d of 1000 atomics were replaced", was)
				}
				if !first {
					flood()
					if now := warmed(); now < was*9/10 {
						t.Errorf("%d of 1000 atomics were replaced, and %d after a stranger's frames", was, now)
					}
				}
				healthy(t, a, b)
			})
		}
	}
}

// Memory that is registered anew, and words that nobody uses any more, leave room
// for what comes.
func TestFault07bForgotten(t *testing.T) {
	rate := func(t *testing.T, s *bed.Scene, m *rnic.MR, va uint64, peers ...*bed.Peer) uint64 {
		for range 12 {
			s.Pause(50 * time.Millisecond)
			warm(t, m, va, 1, peers...)
		}
		before := s.Count("replaced")
		warm(t, m, va, 500, peers...)
		return s.Count("replaced") - before
	}
	t.Run("registered anew", func(t *testing.T) {
		s := bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"writable": "assume"})})
		l := bed.Link{PD: s.PD()}
		m := s.MR(l.PD, va, 4096, all)
		a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
		was := rate(t, s, m, va, a, b)
		m.Dereg()
		m = s.MR(l.PD, va, 4096, all)
		if now := rate(t, s, m, va, a, b); now < was*9/10 || was < 900 {
			t.Errorf("%d of 1000 atomics were replaced, and %d under the new R_Key", was, now)
		}
		healthy(t, a, b)
	})
	t.Run("words of others", func(t *testing.T) {
		s := bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"writable": "assume", "words": "64"})})
		l, theirs := bed.Link{PD: s.PD()}, bed.Link{PD: s.PD()}
		m, many := s.MR(l.PD, va, 4096, all), s.MR(theirs.PD, 0x90000, 4096, all)
		a, b, x := s.Peer(0, 0, l), s.Peer(1, 0, l), s.Peer(2, 0, theirs)
		for i := range uint64(200) {
			warm(t, many, 0x90000+8*i, 1, x)
		}
		s.Pause(2 * time.Second)
		if now := rate(t, s, m, va, a, b); now < 900 {
			t.Errorf("%d of 1000 atomics were replaced, after another client had used 200 words", now)
		}
		healthy(t, a, b, x)
	})
}

// A congestion mark stays with the request that met it, in whatever form that
// arrives, and the notification that the server answers it with goes to whose
// request it was.
func TestFault09Congestion(t *testing.T) {
	for _, c := range []struct {
		name  string
		first bool // the first request of all is marked, which templates are made of
		mode  string
	}{{"early/mux", true, "mux"}, {"early/replace", true, "replace"}, {"late/mux", false, "mux"}, {"late/replace", false, "replace"}} {
		t.Run(c.name, func(t *testing.T) {
			var mark string          // whose next request is marked
			marked := 0              // at the server
			told := map[string]int{} // of congestion
			wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
				spy := &bed.Spy{Endpoint: nic}
				if machine != "s0" {
					spy.Out = func(_ clock.Time, b []byte) {
						if machine == mark {
							bed.SetECN(b, 3)
							mark = ""
						}
					}
					spy.In = func(_ clock.Time, b []byte) {
						var f hdr.Frame
						if hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.CNP {
							told[machine]++
						}
					}
					return spy
				}
				spy.In = func(_ clock.Time, b []byte) {
					var f hdr.Frame
					if hdr.Parse(b, &f) != hdr.IsRoCE || bed.ECN(b) != 3 {
						return
					}
					marked++
				}
				return spy
			}
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": c.mode, "writable": "assume"}), Profile: rnic.ConnectX, Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
				marked, told = 0, map[string]int{}
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				peers := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})}
				want := map[string]int{}
				next := func(i int) {
					mark = fmt.Sprintf("c%d", i)
					want[mark]++
					warm(t, m, va, 1, peers[i])
				}
				if c.first {
					for k := range 12 {
						next(k % 3)
					}
				}
				for range 12 {
					s.Pause(50 * time.Millisecond)
					warm(t, m, va, 2, peers...)
				}
				for k := range 30 {
					next(k % 3)
					warm(t, m, va, 1, peers...)
				}
				total := 0
				for _, n := range want {
					total += n
				}
				if marked != total {
					t.Errorf("%d requests were marked on their way, %d marks came to the server", total, marked)
				}
				if !maps.Equal(told, want) {
					t.Errorf("of congestion were told %v, it befell %v", told, want)
				}
				healthy(t, peers...)
			})
		})
	}
}

// With losses, what the box repeats costs the server little more than what
// clients repeat on a bare wire, and nobody waits much longer.
func TestFault10Repairs(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			bare, through := lossy(t, nil), lossy(t, ofSwordbox(graph.Args{"mode": mode}))
			t.Logf("wire %+v\nbox %+v", bare, through)
			if through.duplicates > bare.duplicates*12/10 {
				t.Errorf("%d duplicates at the server, %d on the bare wire", through.duplicates, bare.duplicates)
			}
			if through.worst > bare.worst*12/10 {
				t.Errorf("the slowest operation took %v, %v on the bare wire", through.worst, bare.worst)
			}
		})
	}
}

// cost is what losses lead to.
type cost struct {
	duplicates uint64 // requests that came to the server again
	worst      time.Duration
}

// lossy does FETCH-ADDs of several clients on one word where one frame of fifty
// is lost on the server's cable, in each direction; five times.
func lossy(t *testing.T, box *bed.Box) (sum cost) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 0x6c6f7373))
		var losses fault.Schedule
		for _, dir := range []fault.Dir{fault.Up, fault.Down} {
			for frame := range 100_000 {
				if rng.IntN(50) == 0 {
					losses = append(losses, fault.Fault{Where: "s0", Dir: dir, Frame: 1 + frame})
				}
			}
		}
		s := bed.NewScene(t, bed.SceneConfig{Clients: 4, Box: box, Schedule: losses, Seed: seed})
		conn := rnic.DefaultConn()
		conn.Timeout = 10 // 4 ms
		l := bed.Link{PD: s.PD(), Conn: conn}
		m := s.MR(l.PD, va, 4096, all)
		var peers []*bed.Peer
		for i := range 8 {
			peers = append(peers, s.Peer(i%4, i/4, l))
		}
		for range 100 {
			for _, p := range peers {
				post(p, m, va, 4)
			}
			peers[0].Await(peers...)
		}
		healthy(t, peers...)
		for _, p := range peers {
			for id := range p.Posted() {
				if p.Status(id) == rnic.Success {
					sum.worst = max(sum.worst, p.Latency(id))
				}
			}
		}
		st := s.Server().Stats()
		sum.duplicates += st.Duplicates + st.DropDuplicate
	}
	return sum
}

// A memory window of type 2B is the queue pair's that bound it: what goes through it
// does not go over another's.
func TestFault02eWindow(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all|rnic.MWBind)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		mw, err := pd.AllocMW(rnic.WindowType2B)
		if err != nil {
			t.Fatal(err)
		}
		bind := rnic.Bind{MW: mw, MR: m, VA: va, Length: 4096, Access: all, Key: 7}
		if err := b.Far.PostSend(&rnic.SendWR{Op: rnic.OpBindMW, Bind: &bind}); err != nil || !mw.Bound() {
			t.Fatal(err)
		}
		window := &rnic.MR{RKey: mw.RKey, VA: va}
		warm(t, m, va, 20, a, b)
		for range 50 {
			if _, st := b.Add(window, va, 1); st != rnic.Success {
				t.Errorf("status %v through its own window", st)
				break
			}
			warm(t, m, va, 1, a)
		}
		healthy(t, a, b)
		if _, st := a.Add(window, va, 1); st != rnic.RemoteAccessError {
			t.Errorf("status %v through another's window, want %v", st, rnic.RemoteAccessError)
		}
		warm(t, m, va, 1, b)
	})
}
