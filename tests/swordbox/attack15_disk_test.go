package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A client that asks twice more at most has a READ of four packets, of whose answers the first and the fifth are lost. The disk
// takes longer than the client asks. On a bare wire, and with a fast disk, the READ is done.
func TestAttack15ReadWaitsForTheDisk(t *testing.T) {
	lose, came := false, 0
	box := ofSwordbox(graph.Args{"settle": "60us", "pair": "60us"})
	box.Journal = 20 * time.Millisecond
	c := rnic.DefaultConn()
	c.Timeout, c.RetryCnt, c.SQPSN, c.RQPSN, c.PathMTU = 8, 2, 0xfffffa, 0xfffffa, 512
	bed.Both(t, bed.SceneConfig{Box: box, MTU: 512, Conn: c, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
		if machine != "c0" {
			return nic
		}
		return &bed.Spy{Endpoint: nic, Pool: nic.Pool(), Lose: func(b []byte) bool {
			var f hdr.Frame
			if !lose || hdr.Parse(b, &f) != hdr.IsRoCE {
				return false
			}
			came++
			return came == 1 || came == 5
		}}
	}}, func(t *testing.T, s *bed.Scene) {
		lose, came = false, 0
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		p := s.Peer(0, 0, bed.Link{PD: pd, Conn: c})
		for range 8 {
			if _, st := p.ReadWord(m, va); st != rnic.Success {
				t.Fatal(st)
			}
			s.Pause(140 * time.Microsecond)
		}
		lose = true
		if st := p.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1980)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
			t.Errorf("READ: %v", st)
		}
	})
}
