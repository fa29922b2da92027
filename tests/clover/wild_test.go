package clover

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
)

// wild is clover-steer with tables that are too small, and settings that are changed under traffic.
func wild(seed uint64) *bed.Box {
	b := ofStores()
	rng := rand.New(rand.NewPCG(seed, 0x61726773))
	some := func(name string, values ...string) {
		if rng.IntN(3) == 0 {
			b.Args[name] = values[rng.IntN(len(values))]
		}
	}
	some("hold", "1", "2", "3", "8")
	some("keys", "1", "2", "3")
	some("conns", "1", "2", "4", "8")
	some("addrs", "1", "8", "64")
	some("ahead", "0", "1", "2", "16384")
	some("mode", "write", "off")
	some("recycled", "adjust")
	some("repair", "0", "20us", "5ms")
	some("hot", "1", "2")
	some("idle", "1ms", "10ms", "0")
	some("bad", "drop")
	if rng.IntN(8) == 0 {
		b.Args["only"] = []string{"0+1", "none", "0-2"}[rng.IntN(3)]
	}
	if b.Args["hot"] != "" {
		delete(b.Args, "keys")
	}
	b.Reloads = []graph.Args{
		{"mode": "off"}, {"mode": "write"}, {"mode": "read-write"}, {"mode": "read-write"}, {"mode": "read-write"}, {"ahead": "0"}, {"ahead": "8192"}, {"recycled": "pass"}, {"recycled": "adjust"},
		{"repair": "0"}, {"repair": "200us"}, {"bad": "drop"}, {"settle": "0"}, {"settle": "700us"},
	}
	return b
}

// TestWild plays wild worlds: QUILLON_WILD says how many, from the seed QUILLON_FIRST on.
func TestWild(t *testing.T) {
	if seed, ok := bed.Seed(); ok {
		var w bed.StoreWorld
		err := bed.TryWildStore(seed, wild(seed), &w, map[string]uint64{})
		t.Logf("%v\n%+v\n%v", err, w, wild(seed).Args)
		return
	}
	n, _ := strconv.Atoi(os.Getenv("QUILLON_WILD"))
	first, _ := strconv.ParseUint(os.Getenv("QUILLON_FIRST"), 10, 64)
	n = cmp.Or(n, 20)
	counts, undecided := map[string]uint64{}, 0
	for seed := first; seed < first+uint64(n); seed++ {
		err := bed.TryWildStore(seed, wild(seed), nil, counts)
		if errors.Is(err, history.ErrUndecided) {
			undecided++
		} else if errors.Is(err, bed.ErrLaw) {
			continue // of the bed
		} else if err != nil {
			fmt.Fprintf(os.Stderr, "FAIL %d: %.300v %v\n", seed, err, wild(seed).Args)
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	t.Logf("%d undecided; %v", undecided, counts)
}
