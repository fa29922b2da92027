package figure

import (
	"strconv"
	"time"

	"github.com/quillon/quillon/internal/rack/herd"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/internal/sim"
)

const (
	nameHERD = "HERD"
	// causeServer is the cause of HERD's latencies under load.
	causeServer = "server-time"
)

// herdRack is a run like those of Clio's authors, with links of 40 Gb/s. The number of the server's cores is
// not published.
func herdRack() sim.HerdConfig {
	c := sim.HerdConfig{Cores: 1, Network: sim.Rack100G(), StoreLoad: sim.StoreLoad{Hosts: 1, Clients: 1}}
	c.Network.GbitPerSecond = 40
	return c
}

// herdServed is the time of a request, from a run that none of these figures shows: four hosts with 8 threads
// each. A latency there is 32 times what the server needs for one operation (Clio's data_ycsb_cn.tab, fourth
// row).
var herdServed = map[string]time.Duration{"A": 31931 * time.Nanosecond / 32, "B": 30124 * time.Nanosecond / 32, "C": 30011 * time.Nanosecond / 32}

const herdLacks = "how many cores HERD's server has is not published: one is taken; its NIC is a ConnectX-3 there"

// herds returns the figures of latency by size; only HERD's curve in them is run.
func herds() []*Figure {
	lacks := []string{"all curves but HERD's: published only", "HERD with 4096 bytes: a value is one datagram here, of at most 1024", herdLacks}
	return []*Figure{
		{ID: "4.10", data: "4.10", takes: takesNIC, jobs: herdSizes(0), lacks: lacks, ratios: herdGrows},
		{ID: "4.11", data: "4.11", takes: takesNIC, jobs: herdSizes(1), lacks: lacks, ratios: herdGrows},
	}
}

var herdGrows = []ratio{{"1024 B over 4", ref{0, nameHERD, "1024"}, ref{0, nameHERD, "4"}}}

// herdSizes makes a job of each published size.
func herdSizes(writes float64) func(*Published, Params) ([]job, error) {
	return herdJobs(func(at coord, c *sim.HerdConfig) error {
		size, err := strconv.Atoi(at.name)
		c.Value, c.Writes = size, writes
		return err
	}, func(m *sim.HerdMeasured) float64 { return m.Mean })
}

// withHERD adds HERD's jobs to those of figures of YCSB.
func withHERD(others func(*Published, Params) ([]job, error), value func(*sim.HerdMeasured) float64) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		jobs, err := others(p, par)
		if err != nil {
			return nil, err
		}
		more, err := herdJobs(func(at coord, c *sim.HerdConfig) error {
			mix, err := ycsb.MixNamed(at.name)
			c.Hosts = max(par.Hosts, 1)
			c.Value, c.Clients, c.Zipf, c.Writes, c.Keys = 1024, 8*c.Hosts, 0.99, mix.Writes, par.Keys
			if par.Cause == causeServer {
				c.Request = herdServed[at.name]
			}
			return err
		}, value)(p, par)
		return append(jobs, more...), err
	}
}

// herdJobs makes a job of each published point of HERD.
func herdJobs(config func(coord, *sim.HerdConfig) error, value func(*sim.HerdMeasured) float64) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) (jobs []job, err error) {
		par.Quick = false // a run is short as it is
		for _, v := range p.Quantities[0].runs(false) {
			if v.Series != nameHERD {
				continue
			}
			c := herdRack()
			c.Warmup, c.Measure = 200*time.Microsecond, time.Millisecond
			if err := config(v.coord(), &c); err != nil {
				return nil, err
			}
			if c.Value > herd.MostValue {
				continue
			}
			jobs = append(jobs, storeJob(par, v.name(), c, sim.Herd, func(m *sim.HerdMeasured) []Value { return v.of(value(m)) }))
		}
		return jobs, nil
	}
}

const reasonServed = "HERD's server does about a million operations a second in the published runs, with 8, 16, 24 or 32 threads, and its authors measured 6.69 million a core. What it does " +
	"for so long is not published; the experiment takes a request's time from the run with four hosts."
