package bed

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/rack/rnic"
)

// fusees are stores of all sorts.
var fusees = map[string]Fusee{
	"one copy": {Layout: fusee.Layout{Nodes: 1}},
	"two":      {Layout: fusee.Layout{Nodes: 2, Replicas: 2}},
	"three":    {},
	"four":     {Layout: fusee.Layout{Nodes: 5, Replicas: 4, Subtables: 2}},
	"few keys": {Keys: 2, Kinds: [4]int{1, 2, 2, 2}, Ops: 24},
	"full":     {Keys: 60, Kinds: [4]int{1, 8, 1, 1}, Ops: 20},
	"no cache": {Cache: -1},
	"wide":     {Wide: true, Keys: 4, Ops: 24},
	"wide one": {Wide: true, Keys: 4, Ops: 24, Layout: fusee.Layout{Nodes: 1}},
	"anew":     {Layout: fusee.Layout{Nodes: 2, Replicas: 2, Blocks: 4}, FailAfter: 10 * time.Millisecond, Ops: 40, Keys: 6, Kinds: [4]int{1, 1, 4, 1}},
	"of 300":   {Value: 300},
}

// Every store is linearizable, and whole at the end, whatever happens to frames and machines.
func TestFusee(t *testing.T) {
	for name, mix := range map[string]fault.Mix{
		"calm":    {},
		"frames":  {Frames: 12, Within: 200},
		"clients": {Frames: 4, Within: 200, Machines: []string{"c0", "c1", "c2"}, Deaths: 3, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		"server":  {Frames: 4, Within: 200, Machines: []string{"s0"}, Deaths: 1, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
	} {
		for store, c := range fusees {
			t.Run(name+"/"+store, func(t *testing.T) {
				var sum FuseeResult
				for seed := range uint64(4) {
					c.Faults, c.Profile = mix, rnic.Profile(seed&1)
					r, _ := c.Try(t, seed)
					if t.Failed() {
						return
					}
					sum.Add(r.Stats)
					sum.Unknown += r.Unknown
				}
				t.Logf("%+v, %d unknown", sum.Stats, sum.Unknown)
			})
		}
	}
}

// fuseesThatDie are loads for crashes: few keys, so that others wait for the dead.
func fuseesThatDie() map[string]Fusee {
	c := Fusee{Clients: 2, Sessions: 2, Ops: 10, Keys: 4, Kinds: [4]int{1, 3, 4, 2}, FailAfter: 2 * time.Millisecond}
	all := map[string]Fusee{"three": c}
	c.Layout = fusee.Layout{Nodes: 1}
	all["one copy"] = c
	c.Layout = fusee.Layout{Nodes: 4, Replicas: 4, Subtables: 2}
	all["four"] = c
	return all
}

// A session may die before any request that changes something: what it leaves is recovered,
// and nothing is lost that anybody was told.
func TestFuseeDies(t *testing.T) {
	for name, c := range fuseesThatDie() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum FuseeResult
			phases := map[fusee.Phase]int{}
			for seed := range uint64(2) {
				if seed == 1 && c.Layout.Nodes == 4 {
					break
				}
				asked := 0
				c.Cut = func(n int, _ fusee.Phase) bool { asked = n; return false }
				if _, err := c.Run(seed, nil); err != nil {
					t.Fatal(err)
				}
				for at := 1; at <= asked; at++ {
					c.Cut = func(n int, p fusee.Phase) bool {
						if n == at {
							phases[p]++
						}
						return n == at
					}
					r, err := c.Run(seed, nil)
					if err != nil {
						t.Fatalf("seed %d, a session dies at request %d: %v", seed, at, err)
					}
					sum.Add(r.Stats)
					sum.Died += r.Died
				}
			}
			t.Logf("%d died, in phases %v, %+v", sum.Died, phases, sum.Stats)
			if sum.Taken == 0 || sum.Undone == 0 || c.Layout.Nodes != 1 && (sum.Redone == 0 || sum.Helped == 0) {
				t.Error("not all was recovered that can be")
			}
		})
	}
}

// Those who recover may die, too, one after the other, before any of their requests.
func TestFuseeRecoverersDie(t *testing.T) {
	for name, c := range fuseesThatDie() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum FuseeResult
			c.Sessions, c.Ops = 3, 7
			for seed := range uint64(2) {
				// In the middle of rounds, mostly.
				var kills []int
				last := fusee.Writing
				c.Cut = func(n int, p fusee.Phase) bool {
					if p == fusee.Proposing && last == p || p == fusee.Logging || p == fusee.Committing && n%4 == 0 {
						kills = append(kills, n)
					}
					last = p
					return false
				}
				if _, err := c.Run(seed, nil); err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(kills); i += len(kills)/6 + 1 {
					kill := kills[i]
					for first := 1; first <= 8; first++ {
						for second := 0; second <= 6; second += 2 {
							repairs, last := 0, 0
							c.Cut = func(n int, p fusee.Phase) bool {
								switch {
								case n == kill:
									return true
								case p == fusee.Repairing && repairs < first:
									repairs++
									return repairs == first
								case p == fusee.Repairing && last < second:
									last++
									return last == second
								}
								return false
							}
							r, err := c.Run(seed, nil)
							if err != nil {
								t.Fatalf("seed %d, a session dies at request %d, recoverers at their %d and %d: %v", seed, kill, first, second, err)
							}
							sum.Add(r.Stats)
							sum.Died += r.Died
						}
					}
				}
			}
			t.Logf("%d died, %+v", sum.Died, sum.Stats)
			if sum.Died < 300 || name == "three" && sum.Redone == 0 {
				t.Error("too few recoverers died, or there was nothing to finish")
			}
		})
	}
}

// A memory node may vanish at any moment: the master takes it out, and the store goes on, with
// nothing lost that anybody was told.
func TestFuseeVanishes(t *testing.T) {
	for name, c := range map[string]Fusee{
		"two":   {Layout: fusee.Layout{Nodes: 2, Replicas: 2, Subtables: 4}},
		"three": {Layout: fusee.Layout{Nodes: 4, Replicas: 3, Subtables: 4}},
		"few":   {Layout: fusee.Layout{Nodes: 3, Replicas: 3, Subtables: 4}, Keys: 4, Ops: 24, Kinds: [4]int{1, 2, 3, 1}},
	} {
		for _, faults := range []string{"calm", "clients"} {
			t.Run(name+"/"+faults, func(t *testing.T) {
				t.Parallel()
				c := c
				if faults == "clients" {
					c.Faults = fault.Mix{Frames: 4, Within: 200, Machines: []string{"c0", "c1"}, Deaths: 1, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond}
				}
				var sum FuseeResult
				for seed := range uint64(12) {
					c.Vanish, c.Node = 10+int(seed)*5, int(seed)%c.Layout.Nodes
					r, _ := c.Try(t, seed)
					if t.Failed() {
						return
					}
					if r.Out != 1 {
						t.Errorf("seed %d: %d nodes were taken out", seed, r.Out)
					}
					sum.Add(r.Stats)
					sum.Unknown += r.Unknown
				}
				t.Logf("%+v, %d unknown", sum.Stats, sum.Unknown)
			})
		}
	}
}
