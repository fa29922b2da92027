package swordbox

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// The box's machine is started anew, and the journal names the connection. Its client has two WRITEs under way, and of what it sends
// twice the first is lost both times. The client may be told of the end, and not that the first WRITE was done, which no server ever saw.
func TestAttack15RebootAcknowledges(t *testing.T) {
	for name, profile := range map[string]rnic.Profile{"rxe": rnic.RXE, "ConnectX": rnic.ConnectX} {
		t.Run(name, func(t *testing.T) {
			lose, lost := false, 0
			box := ofSwordbox(graph.Args{"settle": "100us", "pair": "100us", "writable": "assume"})
			box.Journal = time.Nanosecond
			bed.Both(t, bed.SceneConfig{Box: box, Profile: profile, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
				if machine != "c1" {
					return nic
				}
				return &bed.Spy{Endpoint: nic, Pool: nic.Pool(), LoseOut: func(b []byte) bool {
					var f hdr.Frame
					if !lose || lost == 2 || hdr.Parse(b, &f) != hdr.IsRoCE || f.Op != hdr.WriteOnly || f.RETHOf(b).VA() != va+256 {
						return false
					}
					lost++
					return true
				}}
			}}, func(t *testing.T, s *bed.Scene) {
				lose, lost = false, 0
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				for range 60 {
					warm(t, m, va, 1, a, b)
					s.Pause(100 * time.Microsecond)
				}
				if s.Instance() != nil && s.Bound() < 4 {
					t.Fatalf("%d queue pairs are bound", s.Bound())
				}
				s.Reboot()
				lose = true
				write := func(at, v uint64) int {
					return b.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, v)}, RemoteAddr: at, RKey: m.RKey})
				}
				first, second := write(va+256, 7), write(va+512, 8)
				b.Await()
				if st := b.Status(first); st == rnic.Success && bed.WordAt(m, va+256) != 7 {
					t.Errorf("the first WRITE was acknowledged, and is not in memory (it was lost %d times; the second: %v)", lost, b.Status(second))
				}
			})
		})
	}
}
