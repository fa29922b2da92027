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
	"extents":     {Torn: true, Value: 300, Keys: 24},
	"virtual":     {Torn: true, Layout: rcuckoo.Layout{Rows: 200, RowsPerLock: 1}, Keys: 60},
	"few a time":  {Layout: rcuckoo.Layout{LocksPerMessage: 2, RowsPerLock: 1, Independent: true}, Search: rcuckoo.DFS},
	"full":        {Keys: 80, Kinds: [4]int{2, 6, 1, 1}},
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
				for seed := range uint64(6) {
					c.Faults, c.Profile = mix, rnic.Profile(seed&1)
					r, _ := c.Try(t, seed)
					if t.Failed() {
						return
					}
					sum.add(r.Stats)
				}
				t.Logf("%+v", sum.Stats)
			})
		}
	}
}
