package dag

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
)

// names writes chains as text: "a>b".
func names(d *Deployment, chains []Chain) []string {
	var s []string
	for _, c := range chains {
		s = append(s, show(d, []Stage{{c.Tasks}}))
	}
	return s
}

// The two DAGs of figure 5.7 in regions with room for two tasks.
func figure57(t testing.TB) *Deployment {
	d := deploy(t, "NT1 -> NT2 -> NT3 -> NT4",
		"NT1 ports/ports", "NT2 ports,ip-addresses/ip-addresses", "NT3 payload/payload", "NT4 all/payload")
	d.DAGs = append(d.DAGs, DAG{UID: 2, Tenant: 1, Tasks: []TaskID{1, 3}, Edges: [][2]TaskID{{1, 3}}})
	d.Tenants = []Tenant{{"user1", 1}, {"user2", 1}}
	for i := range d.Tasks {
		d.Tasks[i].Area = 1
		d.Tasks[i].Bitstream = 2_000_000
		d.Tasks[i].Throughput = []int64{10, 10, 7, 10}[i]
		d.Tasks[i].Latency = 64
	}
	d.Regions = Regions{Count: 3, Area: 2, Bitstream: 4_000_000}
	d.rank = ranks(d.Tasks, d.DAGs)
	return d
}

func TestChainsOfFigure57(t *testing.T) {
	d := figure57(t)
	chains, err := d.Chains(0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"NT1", "NT2", "NT3", "NT4", "NT1>NT2", "NT1>NT3", "NT1>NT4", "NT2>NT3", "NT2>NT4", "NT3>NT4"}
	if diff := cmp.Diff(want, names(d, chains)); diff != "" {
		t.Error(diff)
	}
	last := Chain{Tasks: []TaskID{2, 3}, Area: 2, Bitstream: 4_000_000, Throughput: 7, Latency: 128 * clock.Duration(1)}
	if diff := cmp.Diff(last, chains[9]); diff != "" {
		t.Error(diff)
	}
	// user2 runs through the chains that are launched for both, and through the
	// one that is launched when NT2 is overloaded.
	at := func(name string) Candidate {
		i := slices.Index(want, name)
		return Candidate{Chain: ChainID(i), Tasks: chains[i].Tasks}
	}
	launched := []Candidate{at("NT1>NT2"), at("NT3>NT4")}
	for _, c := range []struct {
		branch     Branch
		candidates []Candidate
		want       []Visit
	}{
		{Branch{0, 1}, launched, []Visit{{4, 3}}},
		{Branch{2}, launched, []Visit{{9, 1}}},
		{Branch{3}, launched, []Visit{{9, 2}}},
		{Branch{1, 3}, launched, []Visit{{4, 2}, {9, 2}}},
		{Branch{1, 3}, append(launched, at("NT2>NT4")), []Visit{{8, 3}}},
		// Of equal ways the one that goes furthest first.
		{Branch{0, 1, 2}, []Candidate{at("NT1"), at("NT2>NT3"), at("NT1>NT2"), at("NT3")}, []Visit{{4, 3}, {7, 2}}},
	} {
		if got, _ := Cover(c.branch, c.candidates); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.branch, got, c.want)
		}
	}
	_, err = d.Chains(3)
	const more = "more than 3 chains: there are 4 tasks, 4 of them in DAGs of 2 different orders, and up to 2 of those fit a region of area 2: deploy fewer, or make regions smaller"
	if err == nil || err.Error() != more {
		t.Errorf("%v", err)
	}
	if _, err := d.Chains(10); err != nil {
		t.Error(err)
	}
}

// Two DAGs that want opposite orders share a chain of other tasks, not of those.
func TestChainsOfOpposites(t *testing.T) {
	d := deploy(t, "a -> b -> c", "a ports/ports", "b ports/ports", "c vlan/vlan", "other /")
	d.DAGs = append(d.DAGs, DAG{UID: 2, Tasks: []TaskID{1, 0}, Edges: [][2]TaskID{{1, 0}}})
	for i := range d.Tasks {
		d.Tasks[i].Area = 1
	}
	d.Regions.Area = 3
	d.rank = ranks(d.Tasks, d.DAGs)
	chains, err := d.Chains(0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a", "b", "c", "other", "a>b", "a>c", "b>a", "b>c", "a>b>c"}
	if diff := cmp.Diff(want, names(d, chains)); diff != "" {
		t.Error(diff)
	}
}

// Of many tasks that fit those next to each other in their DAG are chains, which takes
// milliseconds; all sets of them would be too many.
func TestChainsOfOneLongDAG(t *testing.T) {
	d := &Deployment{Regions: Regions{Area: 100}, DAGs: make([]DAG, 1)}
	g := &d.DAGs[0]
	for i := range 40 {
		d.Tasks = append(d.Tasks, Task{Name: fmt.Sprint("t", i), Area: 1})
		g.Tasks = append(g.Tasks, TaskID(i))
	}
	d.rank = ranks(d.Tasks, d.DAGs)
	chains, err := d.Chains(0)
	if err != nil || len(chains) != 16*40-15*16/2 {
		t.Errorf("%d chains, %v", len(chains), err)
	}
	_, err = d.Chains(500)
	if err == nil || !strings.Contains(err.Error(), "more than 500 chains: there are 40 tasks, 40 of them in DAGs of 1 different orders, and up to 16 of those fit a region of area 100") {
		t.Error(err)
	}
	// A chain has no more tasks than a mask has bits.
	d.Tasks, g.Tasks = d.Tasks[:17], g.Tasks[:17]
	chains, err = d.Chains(1 << 18)
	if err != nil || len(chains) != 1<<17-1-1 {
		t.Errorf("%d chains, %v", len(chains), err)
	}
}

// With fewer chains than there could be, each is one of those, all branches that fit are
// among them, and every DAG can run.
func TestFewerChains(t *testing.T) {
	fewer := 0
	rapid.Check(t, func(t *rapid.T) {
		d := genDeployment(t)
		all, err := d.Chains(0)
		if err != nil {
			t.Fatal(err)
		}
		most := rapid.IntRange(1, max(len(all), 1)).Draw(t, "most")
		some, err := d.Chains(most)
		if err != nil {
			return
		}
		if len(some) > most {
			t.Fatalf("%d chains, want at most %d", len(some), most)
		}
		if len(some) < len(all) {
			fewer++
		}
		is := func(chains []Chain, tasks []TaskID) bool {
			return slices.ContainsFunc(chains, func(c Chain) bool { return slices.Equal(c.Tasks, tasks) })
		}
		var candidates []Candidate
		for i, c := range some {
			if !is(all, c.Tasks) {
				t.Fatalf("%v is none of all: %v", names(d, some[i:i+1]), names(d, all))
			}
			candidates = append(candidates, Candidate{Chain: ChainID(i), Tasks: c.Tasks})
		}
		for i := range d.DAGs {
			for _, stage := range d.Stages(DAGID(i), 0) {
				for _, branch := range stage {
					if fits := d.ChainOf(branch...).Area <= d.Regions.Area; fits && !is(some, branch) {
						t.Fatalf("branch %v is no chain: %v", branch, names(d, some))
					}
					small := slices.DeleteFunc(slices.Clone(branch), func(id TaskID) bool { return d.Tasks[id].Area > d.Regions.Area })
					if _, missing := Cover(small, candidates); missing != nil {
						t.Fatalf("branch %v: %v cannot run", branch, missing)
					}
				}
			}
		}
	})
	if fewer == 0 && !testing.Short() { // few tries may not have it
		t.Error("there were never fewer")
	}
}

// Tasks that no DAG has together are in no chain together: many tenants that have nothing
// in common have as many chains as each has alone.
func TestChainsOfManyTenants(t *testing.T) {
	const tenants = 20
	d := &Deployment{Regions: Regions{Area: 4}}
	for i := range TaskID(tenants) {
		d.Tasks = append(d.Tasks, Task{Name: fmt.Sprint("a", i), Area: 1}, Task{Name: fmt.Sprint("b", i), Area: 1})
		d.DAGs = append(d.DAGs, DAG{UID: uint32(i + 1), Tasks: []TaskID{2 * i, 2*i + 1}, Edges: [][2]TaskID{{2 * i, 2*i + 1}}})
	}
	d.rank = ranks(d.Tasks, d.DAGs)
	chains, err := d.Chains(3 * tenants)
	if err != nil || len(chains) != 3*tenants {
		t.Fatalf("%d chains, %v", len(chains), err)
	}
	// A DAG that has tasks of two of them brings what it can use.
	d.DAGs = append(d.DAGs, DAG{UID: 100, Tasks: []TaskID{0, 1, 2}, Edges: [][2]TaskID{{0, 1}, {1, 2}}})
	d.rank = ranks(d.Tasks, d.DAGs)
	if chains, err = d.Chains(0); err != nil || len(chains) != 3*tenants+3 {
		t.Errorf("%d chains, %v", len(chains), err)
	}
}

func genDeployment(t *rapid.T) *Deployment {
	n := rapid.IntRange(1, 6).Draw(t, "tasks")
	d := &Deployment{Regions: Regions{Count: 1, Area: rapid.IntRange(1, 6).Draw(t, "area")}}
	field := rapid.SampledFrom([]effect.Field{0, effect.VLAN, effect.Ports, effect.Payload, effect.VLAN | effect.Ports, effect.Length})
	for i := range n {
		d.Tasks = append(d.Tasks, Task{
			Name: fmt.Sprint("t", i), Area: rapid.IntRange(0, 3).Draw(t, "area"),
			Effects: effect.Effects{Reads: field.Draw(t, "reads"), Writes: field.Draw(t, "writes"), Drops: rapid.Bool().Draw(t, "drops")},
		})
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "dags") {
		all := make([]TaskID, n)
		for i := range all {
			all[i] = TaskID(i)
		}
		line := rapid.Permutation(all).Draw(t, "line")[:rapid.IntRange(1, n).Draw(t, "length")]
		g := DAG{UID: uint32(i + 1), Tasks: line}
		for i := 1; i < len(line); i++ {
			g.Edges = append(g.Edges, [2]TaskID{line[i-1], line[i]})
		}
		d.DAGs = append(d.DAGs, g)
	}
	d.rank = ranks(d.Tasks, d.DAGs)
	return d
}

// permutations calls f with all orders of the tasks.
func permutations(tasks []TaskID, f func(p []TaskID)) {
	var rest func(k int)
	rest = func(k int) {
		if k == len(tasks) {
			f(tasks)
		}
		for i := k; i < len(tasks); i++ {
			tasks[k], tasks[i] = tasks[i], tasks[k]
			rest(k + 1)
			tasks[k], tasks[i] = tasks[i], tasks[k]
		}
	}
	rest(0)
}

// Chains are what a search through all sequences finds: for each set of tasks
// of a DAG that fits one order that all DAGs accept, or one for each that has all of it;
// and each branch that fits is a chain.
func TestChainsAreAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDeployment(t)
		chains, err := d.Chains(0)
		if err != nil {
			t.Fatal(err)
		}
		// accepts reports that a DAG has no two dependent tasks the other way round.
		accepts := func(g *DAG, seq []TaskID) bool {
			for i, b := range seq {
				for _, a := range seq[:i] {
					x, y := slices.Index(g.Tasks, a), slices.Index(g.Tasks, b)
					if x >= 0 && y >= 0 && x > y && !effect.Independent(&d.Tasks[a].Effects, &d.Tasks[b].Effects) {
						return false
					}
				}
			}
			return true
		}
		named := map[TaskID]bool{}
		for _, g := range d.DAGs {
			for _, id := range g.Tasks {
				named[id] = true
			}
		}
		bySet := map[uint64][][]TaskID{}
		setOf := func(tasks []TaskID) (m uint64) {
			for _, id := range tasks {
				m |= 1 << id
			}
			return m
		}
		for i, c := range chains {
			if i > 0 && (len(chains[i-1].Tasks) > len(c.Tasks) || len(chains[i-1].Tasks) == len(c.Tasks) && slices.Compare(chains[i-1].Tasks, c.Tasks) >= 0) {
				t.Fatalf("chains %d and %d are out of order: %v", i-1, i, names(d, chains))
			}
			if want := d.ChainOf(c.Tasks...); c.Area > d.Regions.Area || !cmp.Equal(c, want) {
				t.Fatalf("%v, want %v", c, want)
			}
			bySet[setOf(c.Tasks)] = append(bySet[setOf(c.Tasks)], c.Tasks)
		}
		for set := uint64(1); set < 1<<len(d.Tasks); set++ {
			var tasks []TaskID
			area, unused := 0, 0
			for i := range d.Tasks {
				if set&(1<<i) != 0 {
					tasks = append(tasks, TaskID(i))
					area += d.Tasks[i].Area
					if !named[TaskID(i)] {
						unused++
					}
				}
			}
			got := bySet[set]
			if area > d.Regions.Area || unused > 0 && len(tasks) > 1 {
				if got != nil {
					t.Fatalf("%v does not fit", got)
				}
				continue
			}
			owners := 0
			for i := range d.DAGs {
				if !slices.ContainsFunc(tasks, func(id TaskID) bool { return !slices.Contains(d.DAGs[i].Tasks, id) }) {
					owners++
				}
			}
			if owners == 0 && unused == 0 {
				if got != nil {
					t.Fatalf("%v is of no DAG", got)
				}
				continue
			}
			all := false // one order for all DAGs
			permutations(slices.Clone(tasks), func(p []TaskID) {
				ok := true
				for i := range d.DAGs {
					ok = ok && accepts(&d.DAGs[i], p)
				}
				all = all || ok
			})
			if all {
				if len(got) != 1 {
					t.Fatalf("%v: chains %v, want one", tasks, got)
				}
				for i := range d.DAGs {
					if !accepts(&d.DAGs[i], got[0]) {
						t.Fatalf("%v: not for DAG %d", got, i)
					}
				}
				continue
			}
			for i := range d.DAGs {
				if !slices.ContainsFunc(tasks, func(id TaskID) bool { return !slices.Contains(d.DAGs[i].Tasks, id) }) {
					if !slices.ContainsFunc(got, func(c []TaskID) bool { return accepts(&d.DAGs[i], c) }) {
						t.Fatalf("%v: none of %v for DAG %d", tasks, got, i)
					}
				}
			}
			if len(got) > owners {
				t.Fatalf("%v: %v for %d DAGs", tasks, got, owners)
			}
		}
		// Unless DAGs contradict each other, there is one order for all.
		byRank := func(a, b TaskID) int { return d.rank[a] - d.rank[b] }
		one := true
		line := make([]TaskID, len(d.Tasks))
		for i, r := range d.rank {
			line[r] = TaskID(i)
		}
		for i := range d.DAGs {
			one = one && accepts(&d.DAGs[i], line)
		}
		for _, c := range chains {
			if one && !slices.IsSortedFunc(c.Tasks, byRank) {
				t.Fatalf("chain %v, not in order %v", c.Tasks, line)
			}
		}
		width := rapid.IntRange(0, 2).Draw(t, "width")
		for i := range d.DAGs {
			for _, s := range d.Stages(DAGID(i), width) {
				for _, b := range s {
					if one && !slices.IsSortedFunc(b, byRank) {
						t.Fatalf("branch %v, not in order %v", b, line)
					}
					if c := d.ChainOf(b...); c.Area <= d.Regions.Area && !slices.ContainsFunc(bySet[setOf(b)], func(c []TaskID) bool { return slices.Equal(c, b) }) {
						t.Fatalf("DAG %d: no chain for branch %v among %v", i, b, bySet[setOf(b)])
					}
				}
			}
		}
	})
}

// Cover against a search through all ways.
func TestCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []TaskID{0, 1, 2, 3, 4, 5, 6}
		branch := rapid.Permutation(ids).Draw(t, "branch")[:rapid.IntRange(0, 6).Draw(t, "tasks")]
		var candidates []Candidate
		for i := range rapid.IntRange(0, 6).Draw(t, "candidates") {
			c := Candidate{
				Chain: ChainID(10 + i),
				Tasks: rapid.Permutation(ids).Draw(t, "chain")[:rapid.IntRange(0, 4).Draw(t, "length")],
				Cost:  rapid.Int64Range(0, 3).Draw(t, "cost"),
			}
			if rapid.Bool().Draw(t, "each") {
				c.Each = rapid.SliceOfN(rapid.Int64Range(0, 5), len(c.Tasks), len(c.Tasks)).Draw(t, "costs")
			}
			candidates = append(candidates, c)
		}
		type result struct {
			visits int
			cost   int64
		}
		var search func(i int) (result, bool)
		search = func(i int) (best result, ok bool) {
			if i == len(branch) {
				return result{}, true
			}
			for _, c := range candidates {
				for m := Mask(1); m < 1<<len(c.Tasks); m++ {
					var run []TaskID
					dearest := int64(0)
					for k, id := range c.Tasks {
						if m&(1<<k) != 0 {
							run = append(run, id)
							if c.Each != nil {
								dearest = max(dearest, c.Each[k])
							}
						}
					}
					if len(run) > len(branch)-i || !slices.Equal(run, branch[i:i+len(run)]) {
						continue
					}
					if r, could := search(i + len(run)); could {
						r = result{r.visits + 1, r.cost + c.Cost + dearest}
						if !ok || r.visits < best.visits || r.visits == best.visits && r.cost < best.cost {
							best, ok = r, true
						}
					}
				}
			}
			return best, ok
		}
		want, ok := search(0)
		visits, uncovered := Cover(branch, candidates)
		if ok != (uncovered == nil) {
			t.Fatalf("uncovered %v, could be covered: %v", uncovered, ok)
		}
		for _, id := range branch {
			has := slices.ContainsFunc(candidates, func(c Candidate) bool { return slices.Contains(c.Tasks, id) })
			if has == slices.Contains(uncovered, id) {
				t.Fatalf("task %d: uncovered %v", id, uncovered)
			}
		}
		if !ok {
			if visits != nil {
				t.Fatalf("visits %v, uncovered %v", visits, uncovered)
			}
			return
		}
		var got result
		var run []TaskID
		for _, v := range visits {
			c := candidates[v.Chain-10]
			got.visits++
			got.cost += c.Cost
			if v.Mask == 0 {
				t.Fatal("an empty visit")
			}
			dearest := int64(0)
			for k, id := range c.Tasks {
				if v.Mask&(1<<k) != 0 {
					run = append(run, id)
					if c.Each != nil {
						dearest = max(dearest, c.Each[k])
					}
				}
			}
			got.cost += dearest
		}
		if got != want || !slices.Equal(run, branch) {
			t.Fatalf("%v: %v runs %v, want %v", visits, got, run, want)
		}
	})
}
