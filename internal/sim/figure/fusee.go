package figure

import (
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/sim"
)

const nameFUSEE = "FUSEE"

// fuseeRack is a run like the published ones: one memory node and no replicas. Clients read buckets and object one after the other, have no cache, and insert and update as the public code does. Where
// nothing is published about values, a value fits into one unit of 256 bytes, as in the public server.
func fuseeRack() sim.FuseeConfig {
	return sim.FuseeConfig{Store: fusee.Layout{Unit: 256}, Library: fusee.Config{Cache: -1, Blind: true, Eager: true}, StoreLoad: sim.StoreLoad{Hosts: 8, Clients: 8, Zipf: 0.99}}
}

// Times of a run of few clients, which do few operations a millisecond.
const (
	fewWarmup   = time.Millisecond
	fewMeasured = 10 * time.Millisecond
)

// Causes of deviations of FUSEE's curves.
const (
	// causeLone gives clients one operation at a time, which never sleep and have no time of their own.
	causeLone = "lone-operations"
	// causePunctual has threads that sleep woken in time.
	causePunctual = "punctual-threads"
)

var fuseeCauses = []string{causeLone, causePunctual}

// fuseeInput is the point of 64 clients, of figures that only read or only update.
func fuseeInput() reason { return reason{series: nameFUSEE, from: 64, to: 64, text: fuseeOwnTime} }

// fuseeFibers are the clients of the public code (src/client.h): a coroutine sleeps 10 us before it looks for its
// completion. Linux wakes a thread that sleeps 50 us late (timer slack, prctl(2)). The thread's own time is from two
// points, which are inputs: 64 clients that only read (5.32 us an operation of two posts) and only update (10.33 us, three).
var fuseeFibers = fusee.Fibers{Nap: 10 * time.Microsecond, Late: 50 * time.Microsecond, Read: 2660 * time.Nanosecond, Write: 3440 * time.Nanosecond}

const fuseeOwnTime = "the time of a client's thread comes from this point"

// fuseeCoroutines makes clients those of the published runs: each has as many operations under way as its host has
// clients (fuse_orchestrator.py, num_coroutines). There are at most 32768 in all, four times as many as in the largest
// published run.
func fuseeCoroutines(c *sim.FuseeConfig, cause string) {
	if cause == causeLone {
		return
	}
	c.Coroutines, c.Library.Fibers = max(min(c.Clients/c.Hosts, 1<<15/c.Clients), 1), fuseeFibers
	if cause == causePunctual {
		c.Library.Fibers.Late = 0
	}
}

// fuseeKeys is the number of keys of the public code's workloads (ycsb-test/ycsb_test.cc).
const fuseeKeys = 100_000

// fuseeOf returns a store as the published runs had it. Figures 2.10 to 2.13 and 3.9 to 3.11 have one set of runs.
func fuseeOf(writes float64) func(par Params, clients int) sim.FuseeConfig {
	return func(par Params, clients int) sim.FuseeConfig {
		c := fuseeRack()
		c.Keys, c.Value, c.Clients, c.Writes, c.Kind, c.Zipf = fuseeKeys, 128, clients, writes, fusee.Update, textZipf
		if par.Keys != 0 {
			c.Keys = par.Keys
		}
		if par.Zipf != nil {
			c.Zipf = *par.Zipf
		}
		if par.ObjectSize != 0 {
			c.Value = par.ObjectSize
		}
		if par.Hosts != 0 {
			c.Hosts = par.Hosts
		}
		fuseeCoroutines(&c, par.Cause)
		if clients <= 32 {
			c.Warmup, c.Measure = fewWarmup, fewMeasured
		}
		return c
	}
}

// withFUSEE adds FUSEE's jobs to those of a figure's other curves.
func withFUSEE(others func(*Published, Params) ([]job, error), config func(par Params, clients int) sim.FuseeConfig) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		jobs, err := others(p, par)
		if err != nil {
			return nil, err
		}
		var at []coord
		for _, s := range p.Quantities[0].Series {
			if s.Name == nameFUSEE {
				at = s.Points
			}
		}
		if len(par.Threads) > 0 && !p.own {
			at = nil
			for _, n := range par.Threads {
				at = append(at, coord{x: float64(n * config(par, n).Hosts)})
			}
		}
		for i, x := range at {
			if par.Quick && !few(i, len(at)) {
				continue
			}
			v := Value{Series: nameFUSEE, X: x.x}
			jobs = append(jobs, storeJob(par, v.name(), config(par, int(x.x)), sim.Fusee, func(m *sim.FuseeMeasured) []Value { return v.of(m.OpsPerSecond / 1e6) }))
		}
		return jobs, nil
	}
}

// withFUSEEsLatency adds to the jobs of figure 3.13's other curves one job for both of FUSEE's, which do not
// depend on how full a table is.
func withFUSEEsLatency(others func(*Published, Params) ([]job, error)) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		jobs, err := others(p, par)
		if err != nil {
			return nil, err
		}
		c := fuseeRack()
		c.Keys, c.Value, c.Writes, c.Kind = fuseeKeys, 4, 0.5, fusee.Insert
		c.Warmup, c.Measure = fewWarmup, fewMeasured
		return append(jobs, storeJob(par, nameFUSEE, c, sim.Fusee, func(m *sim.FuseeMeasured) []Value {
			var vs []Value
			for _, x := range []float64{10, 90} {
				vs = append(vs, Value{Series: "fusee read", X: x, Y: m.Read.P50}, Value{Series: "fusee insert", X: x, Y: m.Write.P50})
			}
			return vs
		})), nil
	}
}
