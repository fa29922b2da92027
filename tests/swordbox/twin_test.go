package swordbox

import (
	"maps"
	"os"
	"strconv"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// twins are the ways to run swordbox in worlds that are compared with a bare wire.
// The times that it waits are as short as the worlds are; how patient it is it has
// to find out itself.
func twins() map[string]bed.Twins {
	out := map[string]bed.Twins{}
	for name, a := range map[string]graph.Args{
		"mux":     {"mode": "mux"},
		"replace": {"mode": "replace"},
		"word":    {"mode": "replace", "order": "word", "shared": "2"},
		"all":     {"mode": "replace", "track": "0+ffffffffffffff", "shared": "2"},
	} {
		args := graph.Args{"settle": "60us", "verify": "100us", "conns": "32", "window": "64", "words": "256", "hold": "128"}
		maps.Copy(args, a)
		out[name] = bed.Twins{Box: &bed.Box{Kind: *tor.Kind(), Args: args, Closed: true, Clean: true}, Limits: bed.Limits{NoCPU: name != "mux"}}
	}
	return out
}

// TestTwins plays worlds of every sort on a bare wire and through swordbox; see
// bed.Schedules for how many, and QUILLON_SEED for one.
func TestTwins(t *testing.T) {
	all := twins()
	each := bed.Schedules(800) / len(all)
	for i, name := range []string{"mux", "replace", "word", "all"} {
		t.Run(name, func(t *testing.T) {
			if seed, err := strconv.ParseUint(os.Getenv("QUILLON_SEED"), 10, 64); err == nil {
				all[name].Show(t, seed)
				return
			}
			bed.SweepTwins(t, all[name], uint64(i*each), each)
		})
	}
}
