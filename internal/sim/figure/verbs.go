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

// rate returns v with the measured rate, in millions of requests a second.
func (v Value) rate(m sim.VerbsMeasured, err error) ([]Value, error) {
	if err != nil {
		return nil, err
	}
	if m.Errors > 0 {
		return nil, fmt.Errorf("%d requests failed", m.Errors)
	}
	v.Y = m.OpsPerSecond / 1e6
	return []Value{v}, nil
}

// verbsJob makes the job of one point.
func verbsJob(par Params, v Value, c sim.VerbsConfig) (job, error) {
	nic, err := par.nic()
	if err != nil {
		return job{}, err
	}
	c.NIC, c.Seed = nic, par.Seed
	c.Warmup, c.Measure = 100*time.Microsecond, 500*time.Microsecond
	if par.Quick {
		c.Measure = 100 * time.Microsecond
	}
	name := v.Name
	if name == "" {
		name = fmt.Sprint(v.X)
	}
	return job{
		name: v.Series + ", " + name,
		cost: float64(max(c.QPs, 1) * max(c.Outstanding, 1)),
		run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			c.Progress = progress
			return v.rate(sim.Verbs(ctx, c))
		},
	}, nil
}

// verbsJobs makes a job of every published point; config returns how a point is measured.
func verbsJobs(config func(q int, series string, at coord) sim.VerbsConfig) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		var jobs []job
		for q := range p.Quantities {
			for _, s := range p.Quantities[q].Series {
				for i, at := range s.Points {
					if par.Quick && !few(i, len(s.Points)) {
						continue
					}
					j, err := verbsJob(par, Value{Panel: q, Series: s.Name, X: at.x, Name: at.name}, config(q, s.Name, at))
					if err != nil {
						return nil, err
					}
					jobs = append(jobs, j)
				}
			}
		}
		return jobs, nil
	}
}

// few picks the points of a quick run: the first, the middle and the last.
func few(i, n int) bool { return i == 0 || i == n/2 || i == n-1 }

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
	for _, s := range p.Quantities[0].Series {
		for i, at := range s.Points {
			if par.Quick && !few(i, len(s.Points)) {
				continue
			}
			v := Value{Series: s.Name, X: at.x}
			c := sim.CASConfig{QPs: int(at.x), Replace: s.Name == "CAS → WRITE", NIC: nic, Seed: par.Seed}
			if par.Quick {
				c.Warmup, c.Measure = 500*time.Microsecond, 500*time.Microsecond
			}
			jobs = append(jobs, job{
				name: fmt.Sprintf("%s, %v queue pairs", s.Name, at.x), cost: 1,
				run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
					c.Progress = progress
					return v.rate(sim.CAS(ctx, c))
				},
			})
		}
	}
	return jobs, nil
}
