package swordbox

import (
	"testing"

	"github.com/quillon/quillon/tests/bed"
)

// TestTwoServers plays worlds with two NICs on the server's side, which have queue pairs and R_Keys of the same numbers.
func TestTwoServers(t *testing.T) {
	all := twins()
	each := bed.Schedules(200) / len(all)
	for i, name := range []string{"mux", "replace", "word", "all", "crash"} {
		t.Run(name, func(t *testing.T) {
			w := all[name]
			w.Limits.Second, w.Limits.Joins = true, true
			if seed, ok := bed.Seed(); ok {
				w.Show(t, seed)
				return
			}
			bed.SweepTwins(t, w, uint64(i*each), each)
		})
	}
}
