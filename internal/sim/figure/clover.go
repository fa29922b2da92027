package figure

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/sim"
	"github.com/quillon/quillon/nf/graph"
	tor "github.com/quillon/quillon/tor/clover"
)

// technique is a way to run Clover, with the name of its curves.
type technique struct {
	name string
	mode tor.Mode
}

var techniques = []technique{{nameDefault, tor.Off}, {nameWrite, tor.Write}, {nameReadWrite, tor.ReadWrite}}

// rack is what all points of a figure about Clover share, as published.
type rack struct {
	hosts, keys int
	zipf        float64
	// measure is the virtual time for which operations are measured that conflict; calm is the least time for
	// others.
	measure, calm time.Duration
	// slab is the size of an entry; 0: 128.
	slab int
	// cores: the middlebox is a machine with DPDK and so many cores, not the switch.
	cores int
	// between is the time that a client spends between two operations, beside that of the library.
	between time.Duration
	// techniques are those that are run; nil: all.
	techniques []technique
}

// contendedTime is the virtual time for which operations that conflict are measured.
const contendedTime = 8 * time.Millisecond

// Keys and exponent of SwordBox's runs. The text of the dissertation has 1,024 keys and 0.99, and the
// authors' driver opens 1,000 keys. But workloads are read from files, and the authors' plot of these files
// (May 2022) has 128 keys, with exponents from 0 to 1.5. The driver takes the file of exponent 1, and calls
// 128 steered keys "all". See docs/SIMULATION.md, "Clover's runs".
const (
	fileKeys = 128
	fileZipf = 1.0
	textKeys = 1024
	textZipf = 0.99
)

var (
	// sevenHosts is the run of August 2022: figures 2.10 to 2.15.
	sevenHosts = rack{hosts: 7, keys: fileKeys, zipf: fileZipf, measure: contendedTime}
	// sixHosts is the run of June 2022: figure 2.4.
	sixHosts = rack{hosts: 6, keys: fileKeys, zipf: fileZipf, measure: contendedTime}
	// twoHosts is the rack of WORDS '21, which only had write steering. Entries and cores are those of the authors' repository
	// (wantonsolutions/warm) at commit 1aec2ea, a minute behind the numbers of the figure: control/throughput_driver.sh has
	// values of 1,000 bytes, and rmemc-dpdk/run.sh starts the middlebox on seven cores.
	twoHosts = rack{hosts: 2, keys: 1024, zipf: 0.75, measure: contendedTime, slab: 1024, cores: 7, techniques: techniques[:2]}
)

// usual returns the published parameters.
func (r rack) usual() Params {
	return Params{Hosts: r.hosts, Keys: r.keys, Zipf: &r.zipf, ObjectSize: cmp.Or(r.slab, 128), Threads: []int{fullHost}}
}

// fullHost is the number of threads of a host where a figure does not say it: that of the authors' driver.
const fullHost = 40

// shareOf returns the share of writes that was run, which is not always that of the text. Operations come
// from files, and the authors' generator of these (repository wantonsolutions/pDPM,
// clover/workload/ycsb_gen.cc) draws numbers from 0 to 99: those above 95 are writes where the text has 5 %,
// those above 50 where the text has 50 %. The bytes of six-host-run agree with that: see docs/SIMULATION.md.
func shareOf(par Params, m tor.Mode, text float64) float64 {
	if par.Cause == causeHalf && text == 1 && m == tor.Off {
		text = 0.5
	}
	switch {
	case par.Cause == causeMix:
	case text == 0.05:
		return 0.04
	case text == 0.5:
		return 0.49
	}
	return text
}

// queuePairsPerHost is how many queue pairs the threads of a host share: a constant of SwordBox's Clover.
const queuePairsPerHost = 32

// measured turns what was measured at one point into values of a figure.
type measured func(m *sim.CloverMeasured) []Value

// job makes the job of one point: a technique, a share of writes, and a number of threads on each host.
func (r rack) job(par Params, t technique, writes float64, threads int, values measured) (job, error) {
	nic, err := par.nic()
	if err != nil {
		return job{}, err
	}
	search, err := par.search()
	if err != nil {
		return job{}, err
	}
	if par.Cause == causeAnswers {
		nic.HoldAnswers = true
	}
	if par.Cause == causeKeys && r.cores == 0 {
		r.keys, r.zipf = textKeys, textZipf
	}
	if par.Hosts != 0 {
		r.hosts = par.Hosts
	}
	if par.Keys != 0 {
		r.keys = par.Keys
	}
	if par.Zipf != nil {
		r.zipf = *par.Zipf
	}
	c := sim.CloverConfig{
		Hosts: r.hosts, ThreadsPerHost: threads, WriteShare: shareOf(par, t.mode, writes), Keys: r.keys, Zipf: r.zipf,
		ObjectSize: cmp.Or(par.ObjectSize, r.slab), Mode: t.mode, Search: search, SteeredKeys: par.SteeredKeys,
		Args: graph.Args{"clients": "trusted"}, // as in the papers
		NIC:  nic, Seed: par.Seed,
	}
	c.Work, c.Request = sim.CloverLibrary()
	if par.Cause != causeAlone {
		request, write := crowd(threads)
		c.Request += request
		c.Work.Write += write
		if par.Cause == causeRounds {
			// A read has two requests in one round trip, and a write two round trips.
			c.Request -= request
			c.Work.Round = 2 * request
			c.Work.Write -= 2 * request
		}
	}
	if par.Cause != causeTiming {
		c.Work.Between = r.between
	}
	// Threads that share queue pairs cannot take turns on the simulated processors. If there are more threads
	// than processors, each thread has a queue pair of its own.
	if threads <= max(nic.Threads, 1) || nic.Threads == 0 {
		c.QPs = min(threads, queuePairsPerHost)
	}
	// Few threads need longer for the same number of operations.
	c.Measure = max(r.calm, time.Millisecond, 40*time.Millisecond/time.Duration(r.hosts*threads))
	if conflicts(t.mode, writes) {
		c.Measure = r.measure
	}
	c.Warmup = c.Measure / 2
	if r.cores > 0 {
		c.Middlebox = sim.DPDK(nic, sim.Rack100G())
		c.Middlebox.Cores = r.cores
		if par.Cause == causeOneCore {
			c.Middlebox.Cores = 1
		}
	}
	if par.Quick {
		c.Warmup, c.Measure = c.Warmup/4, c.Measure/4
	}
	return job{
		name: fmt.Sprintf("%s, %.0f %% writes, %d threads", t.name, 100*writes, r.hosts*threads),
		cost: float64(min(r.hosts*threads, 150)) * c.Measure.Seconds(),
		run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			c.Progress = progress
			m, err := sim.Clover(ctx, c)
			if err != nil {
				return nil, err
			}
			if m.Errors > 0 {
				return nil, fmt.Errorf("%d operations failed", m.Errors)
			}
			if m.Ops == 0 {
				return nil, fmt.Errorf("no operation ended in %v", c.Measure)
			}
			return values(&m), nil
		},
	}, nil
}

// Causes of deviations that Params.Cause switches in Clover's figures.
const (
	// causeKeys takes keys and exponent from the text of the dissertation, not from the workloads' files.
	causeKeys = "keys"
	// causeMix takes the shares of writes from the text, not from the workloads' generator.
	causeMix = "mix"
	// causeRounds has threads of a host cost each other time for each round trip, not for each request. The
	// curves from which the costs come do not say which is right: they are of reads with two requests side by
	// side.
	causeRounds = "rounds"
	// causeHalf runs default Clover with half writes where the figure has only writes.
	causeHalf = "half"
	// causeTiming lets clients begin the next operation at once, as in runs that take no latencies.
	causeTiming = "timing"
	// causeAlone lets threads of a host cost each other nothing.
	causeAlone = "alone"
	// causeAnswers has the memory node's NIC hold up answers, not requests that have not executed yet. The
	// sources of the delays, figure 2.2 and Clio's figure 4, are of answers and cannot tell which it is.
	causeAnswers = "held-answers"
	// causeOneCore gives the middlebox of WORDS '21 one core, as its script does on the day after the figure's numbers.
	causeOneCore = "one-core"
)

// The curves of six-host-run from which the costs come that threads of a host cause each other. They are
// inputs there.
const (
	crowdedReads  = "C / " + nameDefault
	crowdedWrites = "W / " + nameReadWrite
	// fullLink is the number of threads on a host from which on reads fill the memory node's link.
	fullLink = 32
)

// crowded is the time that so many threads on a host cost each other: for each request, and for each write in
// addition, in ns.
type crowded struct{ threads, request, write int }

// crowds was found by running the curves crowdedReads and crowdedWrites until they came out as published.
// Times that requests wait in the rack are part of the model, and not in here. TestCrowds runs these curves.
var crowds = []crowded{
	{1, 200, 500}, {2, 250, 1660}, {4, 280, 1320}, {8, 340, 1900}, {16, 430, 2770}, {24, 510, 3760}, {32, 590, 5500}, {40, 670, 7550},
}

// crowd returns what n threads on a host cost each other. From fullLink threads on reads wait for the memory
// node's link, so the line through the points before is continued. For more threads than crowds has, a write
// costs as much as with the most threads.
func crowd(n int) (request, write time.Duration) {
	at := func(n int, of func(crowded) int, list []crowded) time.Duration {
		i := 1
		for i < len(list)-1 && list[i].threads < n {
			i++
		}
		a, b := list[i-1], list[i]
		return time.Duration(of(a)) + time.Duration((of(b)-of(a))*(n-a.threads)/(b.threads-a.threads))
	}
	calm := crowds
	for calm[len(calm)-1].threads >= fullLink {
		calm = calm[:len(calm)-1]
	}
	request = at(n, func(c crowded) int { return c.request }, calm)
	last := crowds[len(crowds)-1].threads
	return request, at(min(n, last), func(c crowded) int { return c.write }, crowds)
}

// conflicts reports whether operations conflict, so that queues of clients that retry take long to fill.
func conflicts(m tor.Mode, writes float64) bool {
	return writes > 0 && (m == tor.Off || m == tor.Write && writes < 1)
}

// threadsOf returns the numbers of threads on each host: those of Params, or the published ones, which are
// threads of all hosts together. own: the points come from a file of the user.
func (r rack) threadsOf(par Params, published []coord, own bool) ([]int, error) {
	if len(par.Threads) > 0 {
		return par.Threads, nil
	}
	hosts := r.hosts
	if par.Hosts != 0 && own {
		hosts = par.Hosts
	}
	var n []int
	for _, at := range published {
		k := int(at.x) / hosts
		if own && (float64(k*hosts) != at.x || k < 1 || k > mostThreads) {
			return nil, fmt.Errorf("x = %v: %d hosts have %d, %d … %d threads together", at.x, hosts, hosts, 2*hosts, mostThreads*hosts)
		}
		n = append(n, k)
	}
	slices.Sort(n)
	n = slices.Compact(n)
	if par.Quick && len(n) > 2 {
		// The first number, and the one nearest to eight.
		near := n[0]
		for _, x := range n {
			if x <= 8 {
				near = x
			}
		}
		n = []int{n[0], near}
	}
	return n, nil
}

// byThreads makes the jobs of a figure over threads, one for every technique and number of threads.
func (r rack) byThreads(writes float64, name func(technique) string, value func(m *sim.CloverMeasured, v Value) []Value) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		var jobs []job
		run := r.techniques
		if run == nil {
			run = techniques
		}
		for _, t := range run {
			hosts := r.hosts
			if par.Hosts != 0 {
				hosts = par.Hosts
			}
			var published []coord
			for q := range p.Quantities {
				if !p.own && q < len(p.Quantities)-1 {
					continue // in figure 2.4 only the last quantity has all techniques
				}
				for _, s := range p.Quantities[q].Series {
					if s.Name == name(t) {
						published = append(published, s.Points...)
					}
				}
			}
			counts, err := r.threadsOf(par, published, p.own)
			if err != nil {
				return nil, err
			}
			for _, n := range counts {
				v := Value{Series: name(t), X: float64(n * hosts)}
				j, err := r.job(par, t, writes, n, func(m *sim.CloverMeasured) []Value { return value(m, v) })
				if err != nil {
					return nil, err
				}
				jobs = append(jobs, j)
			}
		}
		return jobs, nil
	}
}

// throughput makes the jobs of figures 2.10 to 2.13.
func throughput(writes float64) func(*Published, Params) ([]job, error) {
	return sevenHosts.byThreads(writes, func(t technique) string { return t.name }, func(m *sim.CloverMeasured, v Value) []Value {
		v.Y = m.OpsPerSecond / 1e6
		return []Value{v}
	})
}

// writeRedirection makes the jobs of figure 2 of WORDS '21.
func writeRedirection() func(*Published, Params) ([]job, error) {
	return twoHosts.byThreads(0.5, func(t technique) string { return t.name }, func(m *sim.CloverMeasured, v Value) []Value {
		v.Y = m.OpsPerSecond / 1e3
		return []Value{v}
	})
}

// successRate makes the jobs of figure 2.4: the authors' success rate for default Clover, and packets per
// operation for all techniques.
func successRate() func(*Published, Params) ([]job, error) {
	return sixHosts.byThreads(0.5, func(t technique) string { return t.name }, func(m *sim.CloverMeasured, v Value) []Value {
		packets := v
		packets.Panel, packets.Y = 1, m.PacketsPerOp
		if v.Series != nameDefault {
			return []Value{packets}
		}
		v.Y = 100 / (m.PacketsPerOp / 3)
		return []Value{v, packets}
	})
}

// workloads are YCSB's, by letter, with their shares of writes.
var workloads = []struct {
	letter string
	writes float64
}{{"C", 0}, {"B", 0.05}, {"A", 0.5}, {"W", 1}}

// sixHostRun makes the jobs of the run of June 2022: throughput, packets and bytes.
func sixHostRun(p *Published, par Params) ([]job, error) {
	var jobs []job
	for _, w := range workloads {
		j, err := sixHosts.byThreads(w.writes, func(t technique) string { return w.letter + " / " + t.name },
			func(m *sim.CloverMeasured, v Value) []Value {
				ops, packets, bytes := v, v, v
				ops.Y = m.OpsPerSecond / 1e6
				packets.Panel, packets.Y = 1, m.PacketsPerOp
				bytes.Panel, bytes.Y = 2, m.BytesPerOp
				return []Value{ops, packets, bytes}
			})(p, par)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j...)
	}
	return jobs, nil
}

// byWrites makes the jobs of a figure over the share of writes, with 40 threads on each host. The figure's
// categories are shares in percent.
func byWrites(r rack, value func(m *sim.CloverMeasured, t technique, v Value) []Value) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		threads := []int{fullHost}
		if len(par.Threads) > 0 {
			threads = par.Threads
		}
		if len(threads) != 1 {
			return nil, fmt.Errorf("threads: one number, since the abscissa is another")
		}
		var jobs []job
		for _, t := range techniques {
			for _, w := range workloads {
				v := Value{Name: fmt.Sprintf("%.0f", 100*w.writes)}
				j, err := r.job(par, t, w.writes, threads[0], func(m *sim.CloverMeasured) []Value { return value(m, t, v) })
				if err != nil {
					return nil, err
				}
				jobs = append(jobs, j)
			}
		}
		return jobs, nil
	}
}

// wireBytes makes the jobs of figure 2.14.
func wireBytes() func(*Published, Params) ([]job, error) {
	return byWrites(sevenHosts, func(m *sim.CloverMeasured, t technique, v Value) []Value {
		v.Series, v.Y = t.name, m.BytesPerOp
		return []Value{v}
	})
}

// timed is the least time that taking latencies costs a client for each operation. In the authors' runs of
// three hosts with 40 threads each (public repository wantonsolutions/warm, presentation 029, May 2022)
// clients that only read did 10.1977 million operations a second, one each 11.77 µs, and 99 % of the reads
// took at most 6.44 µs.
const timed = 5330 * time.Nanosecond

// tails makes the jobs of figure 2.15, with longer runs: default Clover's slowest operations take more than
// 10 ms, and with 5 % writes there are few of these.
func tails() func(*Published, Params) ([]job, error) {
	r := sevenHosts
	r.measure, r.calm, r.between = 50*time.Millisecond, 5*time.Millisecond, timed
	return byWrites(r, func(m *sim.CloverMeasured, t technique, v Value) []Value {
		var vs []Value
		for _, side := range []struct {
			name string
			p99  float64
		}{{" read", m.Read.P99}, {" write", m.Write.P99}} {
			if side.p99 > 0 {
				v.Series, v.Y = t.name+side.name, side.p99
				vs = append(vs, v)
			}
		}
		return vs
	})
}

// order makes the job of figure 2.2.
func order(_ *Published, par Params) ([]job, error) {
	nic, err := par.nic()
	if err != nil {
		return nil, err
	}
	c := sim.ReorderConfig{NIC: nic, Seed: par.Seed, Requests: 1_000_000}
	if par.Quick {
		c.Requests = 50_000
	}
	return []job{{
		name: fmt.Sprintf("%d requests", c.Requests),
		cost: 1,
		run: func(ctx context.Context, progress func(float64)) ([]Value, error) {
			c.Progress = progress
			m, err := sim.Reorder(ctx, c)
			if err != nil {
				return nil, err
			}
			var vs []Value
			for k := range 15 {
				v := Value{Series: "responses", X: float64(k), Y: m.Gap[k]}
				if k == 14 {
					v.Y += m.Gap[15]
				}
				vs = append(vs, v)
			}
			return vs, nil
		},
	}}, nil
}
