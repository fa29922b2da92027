package bench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sort"

	"github.com/quillon/quillon/nf/classify"
	"github.com/quillon/quillon/nf/classify/classifytest"
	"github.com/quillon/quillon/nf/clock"
)

const (
	// MaxRules is how many rules bench acl-10000 takes.
	MaxRules = 1_000_000
	// aclKeys are the keys of packets of a round, and aclChanges how many rules are replaced in one. A walk of the list takes long: it
	// has aclWalks of the keys.
	aclKeys, aclChanges, aclWalks = 1 << 16, 20_000, 256
)

// ACLResult is what bench acl-10000 prints.
type ACLResult struct {
	Rules int          `json:"rules"`
	Seeds []aclFigures `json:"seeds"`
}

// aclFigures are those of one sort of rules, which came one by one in any order, as from a controller. In the place of the pass-through is a walk
// of the list.
type aclFigures struct {
	Result
	Filled  Spread  `json:"filled_ns_per_packet"` // among the same rules, which came all at once
	Hits    float64 `json:"hits"`                 // of the packets, the share that meets a rule
	Updates Spread  `json:"updates_per_s"`        // a rule taken out, and another put in, are two
	FillMs  Spread  `json:"fill_ms"`              // all rules at once
	MiB     float64 `json:"mib"`
}

// ACL measures how rules are searched and changed; progress is written what is measured.
func ACL(progress io.Writer, rounds, rules int) (*ACLResult, error) {
	clk := clock.NewWall()
	r := &ACLResult{Rules: rules}
	for _, seed := range classifytest.Seeds()[:3] {
		fmt.Fprintf(progress, "%s...\n", seed)
		f, err := aclSeed(clk, seed, rounds, rules)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", seed, err)
		}
		r.Seeds = append(r.Seeds, f)
	}
	return r, nil
}

func aclSeed(clk clock.Clock, seed string, rounds, rules int) (f aclFigures, err error) {
	rng := rand.New(rand.NewPCG(10, uint64(rules)))
	fields := classifytest.Fields()
	// Twice as many, so that what is put in is not what is taken out.
	all := classifytest.Rules(rng, seed, 2*rules)
	list := all[:rules]
	keys := make([][]uint64, aclKeys)
	for i := range keys {
		keys[i] = classifytest.Probe(rng, fields, list)
	}
	before := heapBytes()
	s := classify.New(fields)
	for _, at := range rng.Perm(rules) {
		e := &list[at]
		s.Insert(e.Number, e.Key, e.Mask, e.Order)
	}
	f.MiB = float64(heapBytes()-before) / (1 << 20)
	filled := classify.New(fields)
	filled.Fill(list)
	for _, key := range keys[:aclWalks] {
		if got, want := s.Find(key), classifytest.Walk(fields, list, nil, key); got != want || filled.Find(key) != want {
			return f, fmt.Errorf("the rule that %x meets is %d, and %d was found, or %d", key, want, got, filled.Find(key))
		}
	}
	hits := 0
	findIn := func(s *classify.Set) func() (int, error) {
		return func() (int, error) {
			hits = 0
			for _, key := range keys {
				if s.Find(key) != classify.None {
					hits++
				}
			}
			return len(keys), nil
		}
	}
	walk := func() (int, error) {
		for _, key := range keys[:aclWalks] {
			classifytest.Walk(fields, list, nil, key)
		}
		return aclWalks, nil
	}
	there := make([]uint32, rules) // numbers of the rules in the set, and of those that are not
	spare := make([]uint32, rules)
	for i := range there {
		there[i], spare[i] = uint32(i), uint32(rules+i)
	}
	changed := classify.New(fields) // another one: packets are for the rules of s
	changed.Fill(list)
	change := func() (int, error) {
		for range aclChanges {
			i, j := rng.IntN(rules), rng.IntN(rules)
			changed.Remove(there[i])
			there[i], spare[j] = spare[j], there[i]
			e := &all[there[i]]
			changed.Insert(e.Number, e.Key, e.Mask, e.Order)
		}
		return 2 * aclChanges, nil
	}
	fill := func() (int, error) {
		classify.New(fields).Fill(list)
		return 1, nil
	}
	var work, pass, among, changes, fills Side
	for n := -1; n < rounds; n++ { // the first is to warm up
		for _, x := range []struct {
			*Side
			run func() (int, error)
		}{{&work, findIn(s)}, {&pass, walk}, {&among, findIn(filled)}, {&changes, change}, {&fills, fill}} {
			if err := x.Side.round(func() (func() (int, error), error) { return x.run, nil }, nil, clk, n >= 0); err != nil {
				return f, err
			}
		}
	}
	f.Result = Result{Name: seed, About: fmt.Sprintf("%d rules as ClassBench's seed %s has them; in the place of pass-through: a walk of the list", rules, seed), Rounds: rounds,
		Work: work.Figures(0), PassThrough: pass.Figures(0)}
	f.Hits, f.Filled = float64(hits)/aclKeys, among.Figures(0).NsPerPacket
	f.Updates = perSecond(changes.ns)
	sort.Float64s(fills.ns)
	f.FillMs = Spread{Median: Median(fills.ns) / 1e6, Min: fills.ns[0] / 1e6, Max: fills.ns[len(fills.ns)-1] / 1e6}
	return f, nil
}

// perSecond is a spread of rates, of times for one in ns.
func perSecond(ns []float64) Spread {
	sort.Float64s(ns)
	return Spread{Median: 1e9 / Median(ns), Min: 1e9 / ns[len(ns)-1], Max: 1e9 / ns[0]}
}

// heapBytes are those of the objects that are in use.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Table prints it, in columns that tabs separate.
func (r *ACLResult) Table(w io.Writer) {
	fmt.Fprintf(w, "%d rules\tns/packet\tmin\tmax\tMpps\tallocs\tfilled\thits\tlist ns\tupdates/s\tmin\tmax\tfill ms\tMiB\n", r.Rules)
	for _, s := range r.Seeds {
		x := s.Work
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.2g\t%.1f\t%.0f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\n", s.Name, x.NsPerPacket.Median, x.NsPerPacket.Min, x.NsPerPacket.Max, x.Mpps,
			round3(x.Allocs), s.Filled.Median, 100*s.Hits, s.PassThrough.NsPerPacket.Median, s.Updates.Median, s.Updates.Min, s.Updates.Max, s.FillMs.Median, s.MiB)
	}
}
