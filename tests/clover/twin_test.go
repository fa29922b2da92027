package clover

import (
	"os"
	"strconv"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
)

// TestTwins plays worlds of every sort on a bare wire and through clover-steer; see
// bed.Schedules for how many, and QUILLON_SEED for one.
func TestTwins(t *testing.T) {
	w := bed.Twins{Box: ofSteer(graph.Args{"settle": "60us", "repair": "1ms", "conns": "32", "keys": "16"})}
	if seed, err := strconv.ParseUint(os.Getenv("QUILLON_SEED"), 10, 64); err == nil {
		w.Show(t, seed)
		return
	}
	bed.SweepTwins(t, w, 1<<32, bed.Schedules(200))
}

// TestSchedules does the same with Clover's store.
func TestSchedules(t *testing.T) {
	box := ofSteer(graph.Args{"settle": "700us", "repair": "200us"})
	if seed, err := strconv.ParseUint(os.Getenv("QUILLON_SEED"), 10, 64); err == nil {
		bed.SweepStores(t, box, seed, 1)
		return
	}
	bed.SweepStores(t, box, 0, bed.Schedules(200))
}
