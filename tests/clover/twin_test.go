package clover

import (
	"runtime"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	"github.com/quillon/quillon/tor/fence"
)

// twins is clover-steer in worlds that are compared with a bare wire, with waits as
// short as the worlds are.
func twins() bed.Twins {
	return bed.Twins{Limits: bed.Limits{Deep: true, Alive: 110 * time.Millisecond, Gone: 400 * time.Millisecond}, Front: []bed.Stage{{Name: "fence", Kind: *fence.Kind(), Args: graph.Args{}}}, Box: ofSteer(graph.Args{"settle": "60us", "pair": "60us", "repair": "1ms", "conns": "32", "keys": "16"})}
}

// ofStores is clover-steer in front of stores whose clients repeat after 131 us at most.
func ofStores() *bed.Box {
	return ofSteer(graph.Args{"settle": "700us", "pair": "700us", "repair": "200us"})
}

// TestTwins plays worlds of every sort on a bare wire and through clover-steer; see
// bed.Schedules for how many, and QUILLON_SEED for one.
func TestTwins(t *testing.T) {
	if seed, ok := bed.Seed(); ok {
		twins().Show(t, seed)
		return
	}
	bed.SweepTwins(t, twins(), 1<<32, bed.Schedules(200))
}

// TestTwoServers plays worlds with two NICs on the server's side, which have queue pairs and R_Keys of the same numbers.
func TestTwoServers(t *testing.T) {
	w := twins()
	w.Limits.Second = true
	if seed, ok := bed.Seed(); ok {
		w.Show(t, seed)
		return
	}
	bed.SweepTwins(t, w, 1<<33, bed.Schedules(100))
}

// TestSchedules does the same as TestTwins with Clover's store.
func TestSchedules(t *testing.T) {
	if seed, ok := bed.Seed(); ok {
		bed.SweepStores(t, ofStores(), seed, 1)
		return
	}
	bed.SweepStores(t, ofStores(), 0, bed.Schedules(200))
	bed.SweepStores(t, ofStores(), bed.LibraryStores, bed.Schedules(200))
}

// TestSoak plays worlds for as long as it is told; see make soak.
func TestSoak(t *testing.T) {
	w, box := twins(), ofStores()
	bed.Soak(t, "./tests/clover", runtime.GOMAXPROCS(0),
		bed.Work{Name: "TestTwins", Try: func(seed uint64) error { _, _, err := w.Try(seed); return err }},
		bed.Work{Name: "TestSchedules", Try: func(seed uint64) error { return bed.TryStore(seed, box, nil, map[string]uint64{}) }},
	)
}

// TestLongEntries: entries of several packets, whose READs are taken up again in their middle when one is lost.
func TestLongEntries(t *testing.T) {
	resumed := map[string]uint64{}
	for seed := range uint64(bed.Schedules(20)) {
		w := bed.RandomStore(seed)
		w.Store = bed.Store{Clients: 3, Sessions: 4, Ops: 200, Keys: 2, Slab: 2048}
		w.MTU, w.Conn.PathMTU, w.Profile = 256, 256, rnic.ConnectX
		w.Spoofs, w.Ends = nil, nil
		s := fault.Random(seed, fault.Mix{Links: []string{"in", "s0"}, Frames: 400, Within: 40000})
		r, err := w.Run(seed, ofStores(), s)
		if err != nil {
			t.Fatalf("seed %d: %v\n%+v\n%v", seed, err, w, s)
		}
		for _, c := range r.Counters {
			resumed[c.Name] += c.Value
		}
	}
	if resumed["steered-read"] == 0 || resumed["repeated"] == 0 {
		t.Errorf("%d READs were steered, %d requests repeated", resumed["steered-read"], resumed["repeated"])
	}
}
