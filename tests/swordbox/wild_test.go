package swordbox

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
)

// wild are twins whose boxes have up to four workers, tables that are too small, and settings that are
// changed under traffic, the mode among them.
func wild() map[string]bed.Twins {
	out := map[string]bed.Twins{}
	for name, t := range twins() {
		b := *t.Box
		b.Reloads = []graph.Args{
			{"mode": "off"}, {"mode": "mux"}, {"mode": b.Args["mode"]}, {"mode": b.Args["mode"]}, {"shared": "3"}, {"shared": "1"}, {"order": "strict"},
			{"hold": "16"}, {"hold": "256"}, {"words": "8"}, {"verify": "1us"}, {"learn": "off"}, {"learn": "on"},
			{"guard": "drop"}, {"guard": "pass"}, {"bad": "drop"}, {"infer": "off"}, {"infer": "on"}, {"rdatomic": "1"}, {"rdatomic": "learnt"},
		}
		if name == "replace" || name == "word" {
			b.Reloads = append(b.Reloads, graph.Args{"track": "0+300000"}, graph.Args{"track": "none"}, graph.Args{"track": "100000+40"}, graph.Args{"track": "0+10"})
		}
		t.Box, t.Limits.Wilder = &b, true
		if name == "replace" || name == "word" {
			t.Limits.NoAlias = true
		}
		t.Args = func(seed uint64) graph.Args {
			rng := rand.New(rand.NewPCG(seed, 0x61726773))
			args := graph.Args{}
			some := func(name string, values ...string) {
				if rng.IntN(3) == 0 {
					args[name] = values[rng.IntN(len(values))]
				}
			}
			some("words", "1", "2", "3", "16")
			some("hold", "12", "16", "40")
			some("conns", "1", "2", "3", "4")
			some("window", "16", "32")
			some("shared", "1", "2", "5", "64")
			some("guard", "drop")
			some("bad", "drop")
			some("verify", "1us", "10us", "10ms")
			some("learn", "off")
			some("order", b.Args["order"])
			if args["order"] == "" {
				delete(args, "order")
			}
			some("rdatomic", "1")
			some("infer", "off", "on")
			return args
		}
		out[name] = t
	}
	return out
}

// TestWild plays them: QUILLON_WILD says how many, from the seed QUILLON_FIRST on.
func TestWild(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("QUILLON_WILD"))
	first, _ := strconv.ParseUint(os.Getenv("QUILLON_FIRST"), 10, 64)
	n = cmp.Or(n, bed.Schedules(20))
	all := wild()
	bed.Spread = os.Getenv("QUILLON_SPREAD") != ""
	for _, name := range []string{"mux", "replace", "word", "all", "crash"} {
		t.Run(name, func(t *testing.T) {
			if seed, ok := bed.Seed(); ok {
				all[name].Show(t, seed)
				return
			}
			sum := all[name].Sweep(first, n, 1000, func(seed uint64, err error) {
				fmt.Fprintf(os.Stderr, "FAIL %s %d: %.300v\n", name, seed, err)
				t.Errorf("seed %d: %v", seed, err)
			})
			t.Logf("%d worlds, %d undecided", sum.Worlds, sum.Undecided)
		})
	}
}
