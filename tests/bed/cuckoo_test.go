package bed

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/rack/rnic"
)

// cuckoos are tables of all sorts.
var cuckoos = map[string]Cuckoo{
	"paper":       {},
	"code":        {Layout: rcuckoo.Layout{Form: rcuckoo.Code, Hashing: rcuckoo.HashCode}},
	"torn":        {Torn: true},
	"wide":        {Torn: true, Layout: rcuckoo.Layout{Wide: true, Hashing: rcuckoo.HashCode}, Search: rcuckoo.AStar},
	"extents":     {Torn: true, Value: 300, Keys: 12, Ops: 40},
	"virtual":     {Torn: true, Layout: rcuckoo.Layout{Rows: 200, RowsPerLock: 1}, Keys: 1200},
	"few a time":  {Layout: rcuckoo.Layout{LocksPerMessage: 2, RowsPerLock: 1, Independent: true}, Search: rcuckoo.DFS, Cache: 4 * 80},
	"full":        {Keys: 120, Kinds: [4]int{2, 6, 1, 1}, Ops: 24},
	"two regions": {Torn: true, Layout: rcuckoo.Layout{Rows: 16, RowsPerLock: 1, Regions: 16}, Keys: 100, Kinds: [4]int{2, 6, 2, 1}},
}

// Every table is linearizable, and whole at the end, whatever happens to frames and
// machines.
func TestCuckoo(t *testing.T) {
	for name, mix := range map[string]fault.Mix{
		"calm":    {},
		"frames":  {Frames: 12, Within: 200},
		"clients": {Frames: 4, Within: 200, Machines: []string{"c0", "c1", "c2"}, Deaths: 3, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		"server":  {Frames: 4, Within: 200, Machines: []string{"s0"}, Deaths: 1, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
	} {
		for table, c := range cuckoos {
			t.Run(name+"/"+table, func(t *testing.T) {
				var sum CuckooResult
				for seed := range uint64(min(Schedules(16), 4)) {
					c.Faults, c.Profile = mix, rnic.Profile(seed&1)
					r, _ := c.Try(t, seed)
					if t.Failed() {
						return
					}
					sum.Add(r.Stats)
				}
				t.Logf("%+v", sum.Stats)
			})
		}
	}
}

// shy are tables for crashes: small, and full enough that entries move.
func shy() map[string]Cuckoo {
	c := Cuckoo{Clients: 2, Sessions: 1, Ops: 14, Keys: 116, Kinds: [4]int{1, 6, 2, 1}, Torn: true, FailAfter: 2 * time.Millisecond, Layout: rcuckoo.Layout{RowsPerLock: 1, Regions: 4}}
	all := map[string]Cuckoo{"paper": c}
	x := c
	x.Torn = false
	all["whole"] = x
	x = c
	x.Layout.Hashing, x.Layout.RowsPerLock = rcuckoo.HashCode, 2
	all["code hash"] = x
	x.Layout.Form = rcuckoo.Code
	all["code"] = x
	x = c
	x.Layout.Wide, x.Layout.LocksPerMessage, x.Search = true, 2, rcuckoo.AStar
	all["wide"] = x
	return all
}

// A client may die before any request that changes something: what it leaves is repaired,
// and nothing is lost that anybody was told.
func TestCuckooDies(t *testing.T) {
	for name, c := range shy() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum CuckooResult
			for seed := range uint64(2) {
				// Every request that writes, and some of those that only lock.
				var ats []int
				c.Cut = func(n int, p rcuckoo.Phase) bool {
					if p == rcuckoo.Writing || n%16 == 0 {
						ats = append(ats, n)
					}
					return false
				}
				if _, err := c.Run(seed, nil); err != nil {
					t.Fatal(err)
				}
				for _, at := range ats {
					c.Cut = func(n int, _ rcuckoo.Phase) bool { return n == at }
					r, err := c.Run(seed, nil)
					if err != nil {
						t.Fatalf("seed %d, the client dies at request %d: %v", seed, at, err)
					}
					sum.Add(r.Stats)
					sum.Died += r.Died
				}
			}
			t.Logf("%d died, %+v", sum.Died, sum.Stats)
			for i, n := range sum.States {
				if n == 0 && (c.Torn && c.Layout.Form == rcuckoo.Paper || i == 1 || i == 3) {
					t.Errorf("nobody has left state %d", i+1)
				}
			}
			if sum.Repaired == 0 {
				t.Error("nothing was repaired")
			}
		})
	}
}

// Those who repair may die, too, one after the other, before any of their requests.
func TestCuckooRepairersDie(t *testing.T) {
	for _, name := range []string{"paper", "code", "wide"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum CuckooResult
			for seed := range uint64(2) {
				for first := 1; first <= 6; first++ {
					for second := 0; second <= 6; second++ {
						c := shy()[name]
						c.Clients, c.Ops = 4, 20
						writes, repairs, last := 0, 0, 0
						c.Cut = func(_ int, p rcuckoo.Phase) bool {
							switch {
							case p == rcuckoo.Writing:
								writes++
								return writes == 40+int(seed)
							case p == rcuckoo.Repairing && repairs < first:
								repairs++
								return repairs == first
							case p == rcuckoo.Repairing && last < second:
								last++
								return last == second
							}
							return false
						}
						r, err := c.Run(seed, nil)
						if err != nil {
							t.Fatalf("seed %d, repairers die at their requests %d and %d: %v", seed, first, second, err)
						}
						sum.Add(r.Stats)
						sum.Died += r.Died
					}
				}
			}
			t.Logf("%d died, %+v", sum.Died, sum.Stats)
			if sum.TookOver == 0 {
				t.Error("nobody took over a lease")
			}
		})
	}
}
