package swordbox

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/state"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A change of settings is refused (static= is no connection), behind one that would give the journal another size. What
// runs goes on as it was: with its journal. Afterwards connections are still shared, and a READ whose answer was lost
// is still done again.
func TestAttack15RefusedSettingKeepsTheJournal(t *testing.T) {
	j := state.NewJournals(filepath.Join(t.TempDir(), "j"), false)
	box := ofSwordbox(graph.Args{"settle": "100us", "pair": "100us", "conns": "32"})
	box.Journals = j.Open
	s := bed.NewScene(t, bed.SceneConfig{Clients: 4, Box: box})
	pd := s.PD()
	m := s.MR(pd, va, 4096, all)
	share := func(from int) {
		a, b := s.Peer(from, 0, bed.Link{PD: pd}), s.Peer(from+1, 0, bed.Link{PD: pd})
		for range 60 {
			for _, p := range []*bed.Peer{a, b} {
				if _, st := p.Add(m, va, 1); st != rnic.Success {
					t.Fatal(st)
				}
			}
			s.Pause(200 * time.Microsecond)
			time.Sleep(2 * time.Millisecond) // the disk
		}
	}
	share(0)
	if n := s.Bound(); n != 4 {
		t.Fatalf("%d queue pairs bound, want 4", n)
	}
	if _, err := s.Instance().Set("box", graph.Args{"conns": "64", "static": "nonsense"}); err == nil {
		t.Fatal("the setting was taken")
	}
	share(2)
	if n := s.Bound(); n != 8 {
		t.Errorf("%d queue pairs bound behind a setting that was refused, want 8", n)
	}
}
