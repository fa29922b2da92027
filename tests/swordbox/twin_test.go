package swordbox

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
	"github.com/quillon/quillon/tor/fence"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// twins are the ways to run swordbox in worlds that are compared with a bare wire.
// The times that it waits are as short as the worlds are; how patient it is it has
// to find out itself. A client that went without a word is taken for living for alive= (100 ms), and what went over its
// connection has no answer for giveup= (300 ms) then, which are the app's own.
//
// A client whose new connection has the number of a queue pair of the server's that its old one had, without a connection manager, may be ended if it gives up
// sooner than the app has found that out (giveup=; of 10,000 worlds 2410 and 3368 with QUILLON_CROWDS=10; TestServersNumberComesBack has a client that
// does not).
func twins() map[string]bed.Twins {
	out := map[string]bed.Twins{}
	for name, a := range map[string]graph.Args{
		"mux":     {"mode": "mux"},
		"replace": {"mode": "replace"},
		"word":    {"mode": "replace", "order": "word", "shared": "2"},
		"all":     {"mode": "replace", "track": "0+ffffffffffffff", "shared": "2"},
		"crash":   {"mode": "replace", "replace": "learnt", "track": "0+ffffffffffffff", "shared": "1"},
	} {
		args := graph.Args{"settle": "60us", "pair": "60us", "verify": "100us", "conns": "32", "window": "64", "words": "256", "hold": "128"}
		maps.Copy(args, a)
		out[name] = bed.Twins{Front: []bed.Stage{{Name: "fence", Kind: *fence.Kind(), Args: graph.Args{}}}, Box: &bed.Box{Kind: *tor.Kind(), Args: args}, Limits: bed.Limits{NoCPU: name != "mux", NoAlias: name == "all" || name == "crash", Crashes: name == "crash", Passes: args["order"] == "word", Counted: true, Alive: 110 * time.Millisecond, Gone: 400 * time.Millisecond, Deep: true}}
	}
	return out
}

// TestTwins plays worlds of every sort on a bare wire and through swordbox; see
// bed.Schedules for how many, and QUILLON_SEED for one.
func TestTwins(t *testing.T) {
	all := twins()
	each := bed.Schedules(800) / len(all)
	for i, name := range []string{"mux", "replace", "word", "all", "crash"} {
		t.Run(name, func(t *testing.T) {
			if seed, ok := bed.Seed(); ok {
				all[name].Show(t, seed)
				return
			}
			bed.SweepTwins(t, all[name], uint64(i*each), each)
		})
	}
}

// TestFoundWorlds plays worlds, with connections that end and others that begin, in which faults were found.
func TestFoundWorlds(t *testing.T) {
	for _, c := range []struct {
		name   string
		seed   uint64
		crowds int
	}{{"mux", 908, 10}, {"crash", 9407, 10}, {"mux", 1131, 0}, {"word", 4550, 0}, {"word", 4200, 0}, {"word", 4970, 10}, {"all", 2651, 10}} {
		t.Run(fmt.Sprint(c.name, c.seed), func(t *testing.T) {
			w := twins()[c.name]
			w.Limits.Crowds, w.Limits.Deep = c.crowds, false
			if _, _, err := w.Try(c.seed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSoak plays worlds for as long as it is told; see make soak.
func TestSoak(t *testing.T) {
	var all []bed.Work
	for name, w := range twins() {
		all = append(all, bed.Work{Name: "TestTwins/" + name, Try: func(seed uint64) error { _, _, err := w.Try(seed); return err }})
	}
	slices.SortFunc(all, func(a, b bed.Work) int { return strings.Compare(a.Name, b.Name) })
	bed.Soak(t, "./tests/swordbox", runtime.GOMAXPROCS(0), all...)
}

// TestManaged: where the connection manager tells of all connections, each is followed from its first
// request on. So worlds with it are not played as if there was none.
func TestManaged(t *testing.T) {
	for seed := range uint64(20) {
		w := bed.RandomWorld(seed, bed.Limits{NoCPU: true, NoRestart: true})
		w.Managed, w.Events, w.Spoofs, w.Odd, w.Faults = true, nil, nil, nil, fault.Mix{}
		for i := range w.Queues {
			w.Queues[i].Unseen, w.Queues[i].Lost = false, [2][]int{}
		}
		w.Link.Tag.VID = 0 // in a VLAN a server has a place when it has answered there
		r, err := bed.Twin{World: w, Box: twins()["replace"].Box}.Run(seed, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Counts["stranger"] + r.Counts["unpaired"]; n != 0 || r.Counts["synced"] == 0 {
			t.Errorf("seed %d: %d requests were not followed, %d connections were", seed, n, r.Counts["synced"])
		}
	}
}
