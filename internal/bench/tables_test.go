package bench

import (
	"fmt"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/table"
)

// TestTablesOfWorkers: tables are read and settings written while two workers
// carry traffic, for the race detector. What the workers share is shown once, and
// a setting is all workers'.
func TestTablesOfWorkers(t *testing.T) {
	var mixes []*mix
	for net := range byte(2) {
		m, err := recordMix(net)
		if err != nil {
			t.Fatal(err)
		}
		mixes = append(mixes, m)
	}
	for kind, write := range map[string]graph.TableChange{
		"clover-steer": {Change: table.Change{Table: "steered_keys", Entry: table.Entry{Priority: 2,
			Key: []table.Cond{{Any: true}, {V: table.Uint(5000), M: table.Uint(6000)}, {Any: true}}, Call: table.Call{Action: 1}}}},
		"swordbox": {Change: table.Change{Table: "tracked", Entry: table.Entry{Priority: 2, Key: []table.Cond{{V: table.Uint(1 << 40), M: table.Uint(1<<40 + 7)}}}}},
	} {
		t.Run(kind, func(t *testing.T) {
			var pools []*packet.Pool
			for range mixes {
				p, err := packet.NewPool(8192, 2048, nil)
				if err != nil {
					t.Fatal(err)
				}
				pools = append(pools, p)
			}
			settle := "1us" // the mix is shorter than a pairing by PSNs otherwise takes
			if kind == "clover-steer" {
				settle = "0" // three answers are enough
			}
			cfg := drained(kind, graph.Args{"settle": settle, "pair": settle, "conns": "2048"}, pools...)
			inst, err := graph.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			app := inst.Tables()[0].App
			var wg sync.WaitGroup
			var plays []*playback
			for n, m := range mixes {
				p := &playback{mix: m, inst: inst, worker: n, pool: pools[n]}
				// One after the other until they know their servers: a worker whose turn it is not to admit one waits for the next answer,
				// and these mixes are shorter than a worker may be off its processor.
				if _, err := p.play(len(m.batches) / 8); err != nil {
					t.Fatal(err)
				}
				plays = append(plays, p)
			}
			for _, p := range plays {
				wg.Go(func() {
					if _, err := p.play(len(p.mix.batches)); err != nil {
						t.Error(err)
					}
				})
			}
			count := func() map[string]int {
				sizes := map[string]int{}
				for _, d := range inst.Tables()[0].Tables {
					seen := map[string]bool{}
					if err := inst.ReadTable(app, d.Name, func(e *table.Entry) error {
						sizes[d.Name]++
						seen[fmt.Sprint(e.Key, e.Priority)] = true
						return nil
					}); err != nil {
						t.Error(err)
					}
					if len(seen) != sizes[d.Name] {
						t.Errorf("%s: %d rows, %d different ones", d.Name, sizes[d.Name], len(seen))
					}
				}
				return sizes
			}
			wg.Go(func() {
				for range 20 {
					for _, op := range []table.Ops{table.Insert, table.Delete} {
						c := write
						c.App, c.Op = app, op
						if err := inst.WriteTables([]graph.TableChange{c}, false)[0]; err != nil {
							t.Error(err)
						}
						count()
					}
				}
			})
			wg.Wait()
			sizes := count()
			t.Log(sizes)
			// Clients of both networks, whichever worker met them.
			conns := max(sizes["connections"], sizes["clients"])
			if words := max(sizes["tails"], sizes["words"]); conns < 2*3*mixClients || words < 100 {
				t.Errorf("%v: want %d connections; when half are missing, one network's server was not found: all of it passed", sizes, 2*3*mixClients)
			}
			if err := inst.Conservation(); err != nil {
				t.Error(err)
			}
			if err := inst.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
