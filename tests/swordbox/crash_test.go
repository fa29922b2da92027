package swordbox

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A box dies with additions of b under way that went as WRITEs, and the next one goes
// on with b's connection. While nobody is there a client that was never moved adds to
// the same word. Whether the server had executed b's additions by then or not, none is
// lost, and none done twice.
func TestCrashWithWritesUnderWay(t *testing.T) {
	for name, before := range map[string]func(s *bed.Scene){
		"never came": (*bed.Scene).Freeze,
		"unanswered": (*bed.Scene).Stall,
	} {
		for i, count := range []int{1, 5, 1, 5} {
			twice := i >= 2
			t.Run(fmt.Sprintf("%s/%d/twice=%v", name, count, twice), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"settle": "100us", "pair": "100us", "writable": "assume"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 4096, all)
					a, b, x := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})
					warm(t, m, va, 20, a, b)
					warm(t, m, va, 20, b)
					replaced := s.Count("replaced-atomic")
					from := bed.WordAt(m, va)
					var got [][]byte
					before(s)
					for range count {
						buf := make([]byte, 8)
						got = append(got, buf)
						b.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{buf}, RemoteAddr: va, RKey: m.RKey, Swap: 1})
					}
					s.Pause(30 * time.Microsecond)
					if s.Instance() != nil && s.Count("replaced-atomic") == replaced {
						t.Fatal("nothing was replaced")
					}
					s.Remove()
					s.Thaw()
					s.Pause(30 * time.Microsecond)
					if _, st := x.Add(m, va, 1000); st != rnic.Success {
						t.Fatal(st)
					}
					s.Insert()
					if twice { // and once more, before anything is answered
						s.Pause(5 * time.Microsecond)
						s.Remove()
						a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 77)}, RemoteAddr: va + 512, RKey: m.RKey})
						s.Pause(20 * time.Millisecond)
						s.Insert()
					}
					s.Pause(5 * time.Microsecond)
					if n := s.Bound(); s.Instance() != nil && n < 2 {
						t.Errorf("%d queue pairs are bound, want those of b at least", n)
					}
					b.Await(a)
					if v := bed.WordAt(m, va+512); twice && v != 77 {
						t.Error("a WRITE was acknowledged and is not in memory")
					}
					healthy(t, a, b, x)
					if v, want := bed.WordAt(m, va)-from, uint64(1000+count); v != want {
						t.Errorf("the word grew by %d, want %d", v, want)
					}
					last := from
					for _, buf := range got {
						v := binary.LittleEndian.Uint64(buf)
						if d := v - last; v != from && d != 1 && d != 1000 && d != 1001 {
							t.Errorf("an addition found %d, the one before %d", v-from, last-from)
						}
						last = v
					}
					warm(t, m, va, 20, a, b)
				})
			})
		}
	}
}
