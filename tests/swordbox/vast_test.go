package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A READ takes as many PSNs as its answer has packets: up to 2^23. That is more than requests
// and their repetitions are apart otherwise.
func TestVastRead(t *testing.T) {
	const size = 20 << 20
	for _, mode := range []string{"mux", "replace"} {
		for _, moved := range []bool{false, true} {
			for _, lost := range []int{0, 1000, 70000} {
				t.Run(fmt.Sprint(mode, moved, lost), func(t *testing.T) {
					sch := fault.Schedule{}
					if lost != 0 {
						sch = fault.Schedule{{Action: fault.Drop, Where: "c0", Dir: 1, Frame: lost}}
					}
					conn := rnic.DefaultConn()
					conn.PathMTU = 256
					bed.Both(t, bed.SceneConfig{MTU: 256, Conn: conn, Box: ofSwordbox(graph.Args{"mode": mode}), Schedule: sch}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, size, all)
						l := bed.Link{PD: pd, Conn: conn}
						a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
						known(t, s, m, a, b)
						if !moved {
							s.Pause(time.Second)
						}
						if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, size)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
							t.Errorf("READ: %v", st)
						}
						warm(t, m, va, 3, a, b)
						healthy(t, a, b)
					})
				})
			}
		}
	}
}
