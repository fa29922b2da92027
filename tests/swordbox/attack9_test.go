package swordbox

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// TestAttack9TwoBoxes plays worlds through two boxes, one behind the other.
func TestAttack9TwoBoxes(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("QUILLON_WILD"))
	first, _ := strconv.ParseUint(os.Getenv("QUILLON_FIRST"), 10, 64)
	if n == 0 {
		t.Skip("QUILLON_WILD says how many")
	}
	for _, name := range []string{"mux", "replace", "all", "word"} {
		t.Run(name, func(t *testing.T) {
			w := twins()[name]
			b := *w.Box
			args := graph.Args{}
			maps.Copy(args, b.Args)
			b.Front = []bed.Stage{{Name: "front", Kind: *tor.Kind(), Args: args}}
			w.Box, w.Limits.NoRestart, w.Limits.Deep = &b, true, false // both would bind at the same ports, and there is no fence in front
			if seed, ok := bed.Seed(); ok {
				w.Show(t, seed)
				return
			}
			sum := w.Sweep(first, n, 1000, func(seed uint64, err error) {
				fmt.Fprintf(os.Stderr, "FAIL %s %d: %.400v\n", name, seed, err)
				t.Errorf("seed %d: %.400v", seed, err)
			})
			t.Logf("%d worlds, %d undecided, %v", sum.Worlds, sum.Undecided, sum.Ops)
		})
	}
}

// One client's SENDs, of which four frames are lost, through two boxes. The front one asks the server whether it is the same; the back one, to which that question is a request from far away, asks
// itself, takes the answer, and gives the front one none. So both ask without end, and the client, whose acknowledgement was lost, waits without end.
func TestAttack9TwoBoxesQuestion(t *testing.T) {
	for name, seed := range map[string]uint64{"mux": 900095, "all": 900230} {
		t.Run(name, func(t *testing.T) {
			w := twins()[name]
			b := *w.Box
			b.Front = []bed.Stage{{Name: "front", Kind: *tor.Kind(), Args: b.Args}}
			w.Box, w.Limits.NoRestart, w.Limits.Deep = &b, true, false // as they were drawn
			if _, _, err := w.Try(seed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAttack9OtherSettings plays worlds in which each box that takes another's place, after a crash or not, has other settings.
func TestAttack9OtherSettings(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("QUILLON_WILD"))
	first, _ := strconv.ParseUint(os.Getenv("QUILLON_FIRST"), 10, 64)
	if n == 0 {
		t.Skip("QUILLON_WILD says how many")
	}
	for _, name := range []string{"mux", "replace", "word", "crash"} {
		t.Run(name, func(t *testing.T) {
			w := twins()[name]
			w.Limits.Crashes, w.Limits.NoAlias = true, true
			try := func(seed uint64) error {
				rng := rand.New(rand.NewPCG(seed, 0x61747439))
				b := *w.Box
				b.Reloads = []graph.Args{{"bad": "drop"}, {"bad": "pass"}, {"settle": "61us"}, {"settle": "60us"}}
				conns, window, places := 32, 64, 2
				b.Configure = func(bb *bed.Bed) graph.Args {
					args := graph.Args{}
					maps.Copy(args, w.Box.Args)
					conns, window, places = conns<<rng.IntN(2)%1000, window<<rng.IntN(2)%4000, min(places+rng.IntN(2), 4)
					args["conns"], args["window"], args["discover"] = fmt.Sprint(min(conns, 64)), fmt.Sprint(min(window, 256)), fmt.Sprint(places)
					conns, window = min(conns, 64), min(window, 256)
					some := func(name string, values ...string) {
						if rng.IntN(2) == 0 {
							args[name] = values[rng.IntN(len(values))]
						}
					}
					some("mode", "off", "mux", "replace", "replace")
					some("shared", "1", "2", "5", "64")
					some("words", "1", "3", "16", "256")
					some("hold", "16", "256")
					some("infer", "off", "on")
					some("learn", "off", "on")
					some("rdatomic", "1", "learnt")
					some("servers", bb.Addr().String(), "any")
					some("verify", "1us", "10ms")
					some("order", args["order"], "strict")
					if args["order"] == "" {
						delete(args, "order")
					}
					return args
				}
				t := bed.Twins{Box: &b, Limits: w.Limits}
				_, _, err := t.Try(seed)
				return err
			}
			if seed, ok := bed.Seed(); ok {
				t.Error(try(seed))
				return
			}
			bad := 0
			for seed := first; seed < first+uint64(n); seed++ {
				if err := try(seed); err != nil {
					bad++
					fmt.Fprintf(os.Stderr, "FAIL %s %d: %.400v\n", name, seed, err)
					t.Errorf("seed %d: %.400v", seed, err)
				}
			}
			t.Logf("%d worlds, %d bad", n, bad)
		})
	}
}
