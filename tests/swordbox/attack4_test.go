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
