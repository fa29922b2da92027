package swordbox

import (
	"maps"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// boxes are ways to run swordbox.
func boxes() map[string]graph.Args {
	base := graph.Args{"replace": "learnt", "writable": "assume", "settle": "60us", "pair": "60us", "verify": "100us", "giveup": "2ms", "conns": "32", "window": "64", "words": "256", "hold": "128"}
	out := map[string]graph.Args{}
	for name, a := range map[string]graph.Args{
		"off":          {"mode": "off"},
		"mux":          {"mode": "mux"},
		"replace":      {"mode": "replace"},
		"proven":       {"mode": "replace", "writable": "proven"},
		"replace-word": {"mode": "replace", "order": "word", "shared": "2"},
		"all":          {"mode": "replace", "track": "0+ffffffffffffff", "shared": "2"},
	} {
		m := maps.Clone(base)
		maps.Copy(m, a)
		out[name] = m
	}
	return out
}

// What clients see through swordbox is what memory that nobody shares a
// connection to would show them.
func TestSwordbox(t *testing.T) {
	for box, args := range boxes() {
		for name, mix := range mixes() {
			for _, work := range locks.Works() {
				t.Run(box+"/"+name+"/"+work.String(), func(t *testing.T) {
					var sum bed.Result
					total := map[string]uint64{}
					var inst *graph.Instance
					for seed := range seeds() {
						r, ok := bed.Trial{Work: work, Ops: ops(mix, work), Box: &bed.Box{Kind: *tor.Kind(), Args: args, Clean: name == "handover", Connected: func(i *graph.Instance, _ bed.Connection) { inst = i; total["dials"]++ }}, Faults: mix, ReleaseByCAS: seed&1 != 0, Profile: rnic.Profile(seed >> 1 & 1)}.Try(t, seed)
						if t.Failed() {
							return
						}
						if !ok {
							continue // the checker needs too long
						}
						if len(mix.Machines) == 0 && r.Broken != 0 {
							t.Errorf("seed %d: %d queue pairs failed, and nobody died", seed, r.Broken)
						}
						for _, c := range inst.Counters() {
							if c.Value != 0 && c.Node == "box" {
								total[c.Name] += c.Value
							}
						}
						sum.Done += r.Done
						sum.Failed += r.Failed
						sum.GaveUp += r.GaveUp
						sum.Struck += r.Struck
						sum.Broken += r.Broken
					}
					t.Logf("%d struck, %+v %v", sum.Struck, sum.Stats, total)
				})
			}
		}
	}
}

// TestSchedules runs loads of every sort under faults of every sort; see
// bed.Schedules for how many.
func TestSchedules(t *testing.T) {
	args := boxes()
	names := []string{"mux", "replace", "replace-word", "all"}
	each := bed.Schedules(800) / len(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			bed.Sweep(t, &bed.Box{Kind: *tor.Kind(), Args: args[name]}, uint64(i*each), each)
		})
	}
}

// TestRebooted has the box's machine be started anew in the middle of loads, with a disk that is slow: no connection that was shared
// goes on, and nothing that was acknowledged is lost.
func TestRebooted(t *testing.T) {
	args := boxes()
	names := []string{"mux", "replace", "replace-word", "all"}
	each := bed.Schedules(200) / len(names)
	for i, name := range names {
		for k, disk := range []time.Duration{time.Nanosecond, 20 * time.Microsecond, 300 * time.Microsecond} {
			t.Run(name+"/"+disk.String(), func(t *testing.T) {
				bed.Sweep(t, &bed.Box{Kind: *tor.Kind(), Args: args[name], Journal: disk, Killed: k == 1}, uint64(i*each), each)
			})
		}
	}
}

// TestKilled has the box die in the middle of loads: its clients' connections go on.
func TestKilled(t *testing.T) {
	args := boxes()
	names := []string{"mux", "replace", "replace-word", "all"}
	each := bed.Schedules(400) / len(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			bed.Sweep(t, &bed.Box{Kind: *tor.Kind(), Args: args[name], Killed: true}, uint64(i*each), each)
		})
	}
}

// mixes are what goes wrong, from nothing to everything.
func mixes() map[string]fault.Mix {
	return map[string]fault.Mix{
		"calm":    {},
		"frames":  {Frames: 12, Within: 120},
		"clients": {Frames: 6, Within: 120, Machines: []string{"c0", "c1", "c2"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
		// The box dies as in a crash: connections that it moved operations of are
		// lost, and their clients told. Or it hands over to the next one.
		"box":      {Frames: 6, Within: 120, Machines: []string{"box"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 200 * time.Microsecond},
		"handover": {Frames: 6, Within: 120, Machines: []string{"box"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 200 * time.Microsecond},
		"all":      {Frames: 6, Within: 120, Machines: []string{"c0", "c1", "box", "s0"}, Deaths: 3, Until: 400 * time.Microsecond, Absence: time.Millisecond},
		"server":   {Frames: 6, Within: 120, Machines: []string{"s0"}, Deaths: 2, Until: 400 * time.Microsecond, Absence: 4 * time.Millisecond},
	}
}

// seeds is how many schedules each case runs: QUILLON_SEEDS, or a few.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("QUILLON_SEEDS"), 10, 32); err == nil {
		return n
	}
	return uint64(bed.Schedules(20))
}

// ops is how many operations a session does: histories of machines that die have
// outcomes that nobody knows, which take the checker long. Those that wait for
// nobody do more, so that they are not done before the box knows the connections.
func ops(m fault.Mix, w locks.Work) int {
	n := 40
	if m.Deaths > 0 {
		n = 12
	}
	if w == locks.Count || w == locks.Open {
		n *= 4
	}
	return n
}
