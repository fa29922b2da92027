package figure

import (
	"context"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/sim"
	"github.com/quillon/quillon/rack/rnic"
)

// verbsThreads is the number of threads, with a queue pair each, in the verbs' figures.
const verbsThreads = 24

// streamDepth keeps a queue pair busy whatever the round trip is.
const streamDepth = 64

// verbsJob makes the job of one point: the rate, in millions of requests a second, that run measures.
func verbsJob(v Value, cost int, run func(context.Context, func(float64)) (sim.VerbsMeasured, error)) job {
	return job{name: v.name(), cost: float64(cost), run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
		m, err := run(ctx, progress)
		if err == nil && m.Errors > 0 {
			err = fmt.Errorf("%d requests failed", m.Errors)
		}
		return v.of(m.OpsPerSecond / 1e6), err
	}}
}

// verbsJobs makes a job of every published point; config returns how a point is measured.
func verbsJobs(config func(q int, series string, at coord) sim.VerbsConfig) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		nic, err := par.nic()
		if err != nil {
			return nil, err
		}
		var jobs []job
		for q := range p.Quantities {
			for _, v := range p.Quantities[q].runs(par.Quick) {
				v.Panel = q
				c := config(q, v.Series, v.coord())
				c.NIC, c.Seed, c.Warmup, c.Measure = nic, par.Seed, 100*time.Microsecond, 500*time.Microsecond
				if par.Quick {
					c.Measure = 100 * time.Microsecond
				}
				jobs = append(jobs, verbsJob(v, max(c.QPs, 1)*max(c.Outstanding, 1), func(ctx context.Context, progress func(float64)) (sim.VerbsMeasured, error) {
					c.Progress = progress
					return sim.Verbs(ctx, c)
				}))
			}
		}
		return jobs, nil
	}
}

var (
	// inFlight makes the jobs of figure 1.1: 24 threads, each with one more request in flight from point to
	// point.
	inFlight = verbsJobs(func(_ int, series string, at coord) sim.VerbsConfig {
		op := map[string]rnic.Op{"Write": rnic.OpWrite, "Read": rnic.OpRead, "CAS": rnic.OpCompareSwap}[series]
		return sim.VerbsConfig{Op: op, QPs: verbsThreads, Outstanding: int(at.x) / verbsThreads}
	})
	// contended is figure 1.2.
	contended = verbsJobs(func(_ int, series string, at coord) sim.VerbsConfig {
		c := sim.VerbsConfig{Op: rnic.OpCompareSwap, QPs: verbsThreads, Outstanding: 15}
		if at.name == "Single address" {
			c.Addresses, c.Fails = 1, true
		}
		if series == "Device memory" {
			c.Device, c.Outstanding = true, 16
		}
		return c
	})
	// queuePairs is figure 2.1.
	queuePairs = verbsJobs(func(_ int, _ string, at coord) sim.VerbsConfig {
		return sim.VerbsConfig{Op: rnic.OpWrite, QPs: int(at.x), Outstanding: streamDepth, Stream: true}
	})
	// serialized is figure 2.3: CAS by many queue pairs, WRITEs by one, to one address.
	serialized = verbsJobs(func(_ int, series string, at coord) sim.VerbsConfig {
		c := sim.VerbsConfig{Op: rnic.OpCompareSwap, QPs: verbsThreads, Outstanding: 15, Addresses: 1, Fails: true, Device: series == "Device memory"}
		if at.name == "Write" {
			c.Op, c.QPs, c.Outstanding, c.Stream = rnic.OpWrite, 1, streamDepth, true
		}
		return c
	})
	// oneAddress is the lab's run single-key-verbs: host memory, then device memory.
	oneAddress = verbsJobs(func(q int, series string, at coord) sim.VerbsConfig {
		op := map[string]rnic.Op{"WRITE": rnic.OpWrite, "READ": rnic.OpRead, "CAS": rnic.OpCompareSwap, "FAA": rnic.OpFetchAdd}[series]
		return sim.VerbsConfig{Op: op, QPs: verbsThreads, Outstanding: int(at.x) / verbsThreads, Addresses: 1, Fails: true, Device: q == 1}
	})
)

// replaced makes the jobs of figure 2.9: CAS of one word through the middlebox, unchanged and as WRITEs on
// one connection.
func replaced(p *Published, par Params) ([]job, error) {
	nic, err := par.nic()
	if err != nil {
		return nil, err
	}
	var jobs []job
	for _, v := range p.Quantities[0].runs(par.Quick) {
		c := sim.CASConfig{QPs: int(v.X), Replace: v.Series == "CAS → WRITE", NIC: nic, Seed: par.Seed}
		if par.Quick {
			c.Warmup, c.Measure = 500*time.Microsecond, 500*time.Microsecond
		}
		jobs = append(jobs, verbsJob(v, 1, func(ctx context.Context, progress func(float64)) (sim.VerbsMeasured, error) {
			c.Progress = progress
			return sim.CAS(ctx, c)
		}))
	}
	return jobs, nil
}
