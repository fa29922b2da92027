package figure

import (
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/sim"
)

const nameFUSEE = "FUSEE"

// fuseeRack is a run like the published ones: one memory node and no replicas. Clients insert and update as the public code does, and have its cache (src/client.cc:
// use_cache, miss_rate_threash). Objects fill a unit of 256 bytes, which is written and read whole.
func fuseeRack() sim.FuseeConfig {
	return sim.FuseeConfig{
		Store: fusee.Layout{Unit: 256, Groups: fuseeGroups}, Library: fusee.Config{Cache: fuseeCached, Wide: true, Blind: true, Eager: true}, Trace: fuseeTrace, Value: fuseeValue,
		StoreLoad: sim.StoreLoad{Hosts: 8, Clients: 8, Zipf: textZipf},
	}
}

const (
	// fuseeValue is what is left of 256 bytes for a value.
	fuseeValue = 208
	// fuseeGroups are those of a subtable: 34,000 main buckets (src/hashtable.h), two a group. So the table is nearly empty.
	fuseeGroups = 17_000
	// fuseeCached is more keys than a client asks for in a window.
	fuseeCached = 4096
	// fuseeTrace is how many operations a thread takes from its file, and repeats (ycsb-test/ycsb_test.cc). It does so for
	// fuseeTime (src/kv_utils.cc).
	fuseeTrace = 100_000
	fuseeTime  = 10 * time.Second
)

// Times of a run of few clients, which do few operations a millisecond, and of one of many, whose operations begin together and last for up to a
// millisecond: a window has several of their waves.
const (
	fewWarmup   = time.Millisecond
	fewMeasured = 40 * time.Millisecond

	manyWarmup   = 1500 * time.Microsecond
	manyMeasured = 6 * time.Millisecond
)

// Causes of deviations of FUSEE's curves.
const (
	// causeLone gives clients one operation at a time, which never sleep and have no time of their own.
	causeLone = "lone-operations"
	// causePunctual has threads that sleep woken in time, causeSlack as late as Linux' timer slack alone makes them.
	causePunctual = "punctual-threads"
	causeSlack    = "slack"
	// causeUncached takes the clients' cache away, as the texts have it: reads of two posts, updates of three.
	causeUncached = "no-cache"
	// causeCores gives each thread a processor's core of its own.
	causeCores = "whole-cores"
)

var fuseeCauses = []string{causeLone, causePunctual, causeSlack, causeUncached, causeCores}

// fuseeInputs are the points from which times of a client's thread come.
func fuseeInputs() []reason {
	return []reason{
		{series: nameFUSEE, from: 8, to: 8, text: "how late a thread of FUSEE's clients wakes comes from this point"},
		{series: nameFUSEE, from: 64, to: 64, text: "the time of a FUSEE client's thread for a post comes from this point"},
	}
}

// fuseeFibers are the clients of the public code (src/client.h): a coroutine sleeps 10 us before it looks for its
// completion. Late and Post are from two points of figure 2.13, which are inputs: an update of three posts takes 265 us with 8
// clients, and 10.3 us of the thread with 64. Of Late 50 us are Linux' timer slack (prctl(2)).
var fuseeFibers = fusee.Fibers{Nap: 10 * time.Microsecond, Late: 75 * time.Microsecond, Post: 3440 * time.Nanosecond}

const timerSlack = 50 * time.Microsecond

// fuseeCoroutines makes clients those of the published runs: each has as many operations under way as its host has
// clients (fuse_orchestrator.py, num_coroutines). There are at most 32768 in all, four times as many as in the largest
// published run.
func fuseeCoroutines(c *sim.FuseeConfig, cause string) {
	if cause == causeLone {
		return
	}
	c.Coroutines, c.Library.Fibers = max(min(c.Clients/c.Hosts, 1<<15/c.Clients), 1), fuseeFibers
	c.Slower = fuseeSlower
	switch cause {
	case causeCores:
		c.Slower = nil
	case causePunctual:
		c.Library.Fibers.Late = 0
	case causeSlack:
		c.Library.Fibers.Late = timerSlack
	}
	c.Past = c.Coroutines * int(fuseeTime/(2*(fuseeFibers.Nap+fuseeFibers.Late))) // two posts an operation; with many clients it is more, and all are repetitions
}

// Processors of a host: two E5-2650 of 2.2 GHz (text of figures 3.9 to 3.13; only the fourth version has that clock), with 12 cores each (data
// sheet). Linux numbers the second hardware threads of the cores behind the first ones. Both threads of a core together do up to 1.3
// times as much as one alone (Marr et al., Intel Technology Journal, 2002).
const (
	hostCores = 24
	bothDo    = 1.3
)

// fuseeSlower is by how much a client's thread is slower on the cores of its host. The public code binds client k to processor 2k, and the thread that
// polls for it, which never rests, to 2k+1 (ycsb-test/ycsb_test_multi_client.cc). Where there are no more processors, binding fails, which a
// release build does not notice, and these threads take turns with all others.
func fuseeSlower(k, n int) float64 {
	busy := 2 * n
	if busy > 2*hostCores {
		return 2 / bothDo * float64(busy) / (2 * hostCores)
	}
	if sibling := (2*k + hostCores) % (2 * hostCores); sibling < busy {
		return 2 / bothDo
	}
	return 1
}

// fuseeUncached takes the cache away if that is the cause.
func fuseeUncached(c *sim.FuseeConfig, cause string) {
	if cause == causeUncached {
		c.Library.Cache, c.Library.Wide = -1, false
	}
}

// fuseeKeys is the number of keys of the public code's workloads (ycsb-test/ycsb_test.cc).
const fuseeKeys = 100_000

// fuseeOf returns a store as the published runs had it. Figures 2.10 to 2.13 and 3.9 to 3.11 have one set of runs.
func fuseeOf(writes float64) func(par Params, clients int) sim.FuseeConfig {
	return func(par Params, clients int) sim.FuseeConfig {
		c := fuseeRack()
		c.Keys, c.Clients, c.Writes, c.Kind = fuseeKeys, clients, writes, fusee.Update
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
		fuseeUncached(&c, par.Cause)
		switch {
		case clients <= 32:
			c.Warmup, c.Measure = fewWarmup, fewMeasured
		case clients > 64:
			c.Warmup, c.Measure = manyWarmup, manyMeasured
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

// fuseeSync are calls that wait for their completion (micro-test/latency_test.cc). The time for a post is from 3.13's read, one post
// of 5.02 us; that read is input.
var fuseeSync = fusee.Fibers{Nap: 100 * time.Nanosecond, Post: 2100 * time.Nanosecond}

// withFUSEEsLatency adds to the jobs of figure 3.13's other curves one job for both of FUSEE's, which do not
// depend on how full a table is: one client, which reads the keys that it has inserted.
func withFUSEEsLatency(others func(*Published, Params) ([]job, error)) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		jobs, err := others(p, par)
		if err != nil {
			return nil, err
		}
		c := fuseeRack()
		c.Keys, c.Hosts, c.Clients, c.Writes, c.Kind = fuseeKeys, 1, 1, 0.5, fusee.Insert
		c.Past, c.Trace, c.Library.Fibers = fuseeTrace, 1, fuseeSync
		if par.Cause == causeLone {
			c.Library.Fibers = fusee.Fibers{}
		}
		fuseeUncached(&c, par.Cause)
		c.Warmup, c.Measure = time.Millisecond, 10*time.Millisecond
		return append(jobs, storeJob(par, nameFUSEE, c, sim.Fusee, func(m *sim.FuseeMeasured) []Value {
			var vs []Value
			for _, x := range []float64{10, 90} {
				vs = append(vs, Value{Series: "fusee read", X: x, Y: m.Read.P50}, Value{Series: "fusee insert", X: x, Y: m.Write.P50})
			}
			return vs
		})), nil
	}
}
