package swordbox

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A server pauses now and then, for less than its clients wait, and loses nothing: over a bare
// wire nobody sends anything again. The box may ask once a pause whether the oldest request
// came; what is behind that it does not send again while answers come.
func TestFault10ServerPauses(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Clients: 2, Box: ofSwordbox(graph.Args{"mode": mode})}, func(t *testing.T, s *bed.Scene) {
				conn := rnic.DefaultConn()
				conn.Timeout = 14 // 67 ms
				l := bed.Link{PD: s.PD(), Conn: conn}
				m := s.MR(l.PD, va, 4096, all)
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(0, 1, l), s.Peer(1, 0, l), s.Peer(1, 1, l)}
				warm(t, m, va, 20, peers...)
				rng := rand.New(rand.NewPCG(1, 2))
				const pauses = 50
				for range pauses {
					for k, p := range peers {
						post(p, m, va+8*uint64(k/2), 16)
					}
					s.Pause(time.Duration(rng.IntN(20)) * time.Microsecond)
					s.Stall()
					s.Pause(time.Duration(rng.IntN(30_000)) * time.Microsecond)
					s.Thaw()
					peers[0].Await(peers...)
				}
				healthy(t, peers...)
				st := s.Server().Stats()
				most := uint64(0)
				if s.Instance() != nil {
					most = pauses
				}
				if n := st.Duplicates + st.DropDuplicate; n > most {
					t.Errorf("the server got %d of %d requests again, want %d at most", n, pauses*16*len(peers), most)
				}
			})
		})
	}
}
