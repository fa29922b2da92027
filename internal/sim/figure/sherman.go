package figure

import (
	"fmt"
	"slices"

	"github.com/quillon/quillon/internal/sim"
)

const nameSherman = "Sherman"

// Causes of Sherman's figures.
const (
	causeFlat = "flat-locks" // clients of a host do not hand locks to each other
	causeNode = "one-node"   // the tree lies on one memory node
)

// shermanRack is a run like the published ones: 8 hosts that are peers, so that the tree lies on 8 memory
// nodes (Grant, section 3.4: "requests are partitioned across machines").
func shermanRack(par Params) sim.ShermanConfig {
	c := sim.ShermanConfig{Nodes: 8, StoreLoad: sim.StoreLoad{Hosts: 8, Clients: 8, Zipf: 0.99, Items: cuckooItems}}
	c.Flat = par.Cause == causeFlat
	if par.Cause == causeNode {
		c.Nodes = 1
	}
	return c
}

// withShermans adds Sherman's jobs to the figures that have its curves: throughput by number of clients, and
// two latencies that do not depend on how full a table is.
func withShermans(fs []*Figure) []*Figure {
	writes := map[string]float64{"3.9": 0, "3.10": 0.05, "3.11": 0.5}
	for _, f := range fs {
		others := f.jobs
		share, byClients := writes[f.ID]
		if !byClients && f.ID != "3.13" {
			continue
		}
		f.causes = append(slices.Clone(f.causes), causeFlat, causeNode)
		f.lacks = append(f.lacks, "Sherman's tree has a million keys, scattered, on 8 memory nodes; its peers' memory has NICs of its own here")
		f.jobs = func(p *Published, par Params) ([]job, error) {
			jobs, err := others(p, par)
			if err != nil {
				return nil, err
			}
			own := shermanLatency
			if byClients {
				own = shermanClients(share)
			}
			more, err := own(p, par)
			return append(jobs, more...), err
		}
	}
	return fs
}

// shermanClients makes a job of every published point.
func shermanClients(writes float64) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) (jobs []job, err error) {
		for _, v := range p.Quantities[0].runs(par.Quick) {
			if v.Series != nameSherman {
				continue
			}
			c := shermanRack(par)
			c.Clients, c.Writes = int(v.X), writes
			jobs = append(jobs, shermanJob(par, v.name(), c, func(m *sim.ShermanMeasured) []Value { return v.of(m.OpsPerSecond / 1e6) }))
		}
		return jobs, nil
	}
}

// shermanLatency makes the job of a run of 8 clients; half of the operations are insertions.
func shermanLatency(_ *Published, par Params) ([]job, error) {
	c := shermanRack(par)
	c.Zipf, c.Items, c.Writes, c.Insert = 0, 0, 0.5, true
	return []job{shermanJob(par, nameSherman, c, func(m *sim.ShermanMeasured) (vs []Value) {
		for _, x := range []float64{10, 90} {
			vs = append(vs, Value{Series: "sherman read", X: x, Y: m.Read.P50}, Value{Series: "sherman write", X: x, Y: m.Write.P50})
		}
		return vs
	})}, nil
}

// shermanJob makes the job of one run on the rack.
func shermanJob(par Params, name string, c sim.ShermanConfig, values func(*sim.ShermanMeasured) []Value) job {
	if c.Writes > 0 && !c.Insert {
		c.Warmup, c.Measure = queuesFull, queuesMeasured
	}
	return storeJob(par, name, c, sim.Sherman, values)
}

// shermanBox returns an experiment that no paper has: Sherman's locks behind a swordbox.
func shermanBox() *Figure {
	return &Figure{
		ID: "sherman-box", data: "sherman-box", takes: []string{"keys", "zipf", "hosts", "threads", "nic"}, overThreads: true, jobs: shermanBoxed,
	}
}

// shermanBoxed makes a job of each point: by share of writes, by whether clients of a host hand locks over,
// and by what the box does.
func shermanBoxed(_ *Published, par Params) (jobs []job, err error) {
	threads := []int{1, 4, 10, 20, 40}
	if par.Quick {
		threads = []int{1, 10}
	}
	if len(par.Threads) > 0 {
		threads = par.Threads
	}
	for panel, writes := range []float64{0.05, 0.5, 1} {
		for _, flat := range []bool{false, true} {
			for _, box := range []string{"", "mux", "replace"} {
				name := map[string]string{"": "no box", "mux": "CAS moved", "replace": "CAS as WRITE"}[box]
				if name = "shared on a host / " + name; flat {
					name = "each client's own" + name[len("shared on a host"):]
				}
				for _, n := range threads {
					c := shermanRack(par)
					c.Nodes, c.Flat, c.Box, c.Writes, c.Keys = 1, flat, box, writes, par.Keys
					if par.Zipf != nil {
						c.Zipf = *par.Zipf
					}
					if c.Zipf >= 1 || c.Zipf == 0 {
						c.Items = 0
					}
					if par.Hosts != 0 {
						c.Hosts = par.Hosts
					}
					c.Clients = n * c.Hosts
					jobs = append(jobs, shermanJob(par, fmt.Sprintf("%s, %v %% writes, %d", name, 100*writes, c.Clients), c, func(m *sim.ShermanMeasured) []Value {
						return []Value{{Panel: panel, Series: name, X: float64(c.Clients), Y: m.OpsPerSecond / 1e6}}
					}))
				}
			}
		}
	}
	return jobs, nil
}
