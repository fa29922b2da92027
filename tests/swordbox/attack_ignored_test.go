package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A frame that the server throws away unseen, with the PSN that comes next, harms nobody on a
// wire: of another P_Key, or for another MAC.
func TestAttackIgnored(t *testing.T) {
	for name, bend := range map[string]func(b []byte){
		"P_Key":   func(b []byte) { b[14+20+8+2], b[14+20+8+3] = 0x80, 0x01 },
		"MAC":     func(b []byte) { b[5] ^= 0x40 },
		"version": func(b []byte) { b[14+20+8+1] |= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				known(t, s, m, a, b)
				f := a.Frame(a.Here.ClientPSN+20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true})
				bend(f)
				var h hdr.Frame
				if hdr.Parse(f, &h) == hdr.IsRoCE {
					hdr.SetICRC(f, &h)
				}
				s.Send(10*time.Microsecond, f)
				s.Pause(time.Millisecond)
				for range 3 {
					if _, st := a.Add(m, va, 1); st != rnic.Success {
						t.Fatal(st)
					}
					warm(t, m, va, 1, b)
				}
				healthy(t, a, b)
			})
		})
	}
}
