package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Clients use more R_Keys at once than the box remembers rights of for a connection (16),
// so that one takes the other's place. What they do moves less; nothing else changes.
func TestManyKeys(t *testing.T) {
	const rounds, each = 60, 4
	for _, keys := range []int{16, 17, 64} {
		for _, order := range []string{"strict", "word"} {
			t.Run(fmt.Sprint(keys, "/", order), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Profile: rnic.RXE, Box: ofSwordbox(graph.Args{"writable": "assume", "settle": "60us", "pair": "60us", "order": order, "shared": "2"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					var ms []*rnic.MR
					for k := range keys {
						ms = append(ms, s.MR(pd, va+uint64(k)*4096, 4096, all))
					}
					p := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})}
					worst, want := time.Duration(0), map[int]uint64{}
					for r := range rounds {
						first := p[0].Posted()
						for i, q := range p {
							for j := range each {
								k := (r*each + j*(1+i)) % keys
								q.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: ms[k].VA, RKey: ms[k].RKey, Swap: 1})
								want[k]++
							}
						}
						p[0].Await(p[1], p[2])
						for id := first; id < p[0].Posted(); id++ {
							worst = max(worst, p[0].Latency(id))
						}
					}
					healthy(t, p...)
					for k, m := range ms {
						if v := bed.WordAt(m, m.VA); v != want[k] {
							t.Errorf("word %d is %d, want %d", k, v, want[k])
						}
					}
					if worst > 10*time.Millisecond {
						t.Errorf("one took %v", worst)
					}
					if s.Instance() != nil && (s.Count("moved") == 0 || keys > 16 && s.Count("keys-forgotten") == 0) {
						t.Errorf("%d moved, %d rights were forgotten", s.Count("moved"), s.Count("keys-forgotten"))
					}
				})
			})
		}
	}
}
