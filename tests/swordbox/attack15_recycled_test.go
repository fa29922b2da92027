package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// The server refuses a request, which ends both queue pairs. Much later (alive= is over) both are reset and connected
// with each other anew, out of band, as applications do behind an error. On a bare wire the new connection works.
func TestAttack15AnewBehindRefusal(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"settle": "100us", "pair": "100us"})}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		p, o := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		for range 20 {
			p.Add(m, va+64, 1)
			o.Add(m, va+128, 1)
			s.Pause(200 * time.Microsecond)
		}
		if st := p.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey + 1}); st != rnic.RemoteAccessError {
			t.Fatal(st)
		}
		s.Pause(time.Second)
		n := s.Peer(0, 0, bed.Link{PD: pd, Near: p.QP, Far: p.Far})
		if st := n.WriteWord(m, va+64, 7); st != rnic.Success {
			t.Errorf("WRITE over the new connection: %v", st)
		}
	})
}
