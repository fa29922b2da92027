package figure

import (
	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/sim"
)

const nameFUSEE = "FUSEE"

// fuseeRack is a run like the published ones: one memory node and no replicas. Clients do one operation at a
// time, read buckets and object one after the other, have no cache, and insert as the public code does. Where
// nothing is published about values, a value fits into one unit of 256 bytes, as in the public server.
func fuseeRack() sim.FuseeConfig {
	return sim.FuseeConfig{Store: fusee.Layout{Unit: 256}, Library: fusee.Config{Cache: -1, Blind: true}, StoreLoad: sim.StoreLoad{Hosts: 8, Clients: 8, Zipf: 0.99}}
}

// fuseeOf returns a store as the text has it beside Clover's.
func fuseeOf(writes float64) func(par Params, clients int) sim.FuseeConfig {
	return func(par Params, clients int) sim.FuseeConfig {
		c := fuseeRack()
		c.Keys, c.Value, c.Clients, c.Writes, c.Kind, c.Zipf = textKeys, 128, clients, writes, fusee.Update, textZipf
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
		return c
	}
}

// fuseeLike returns a store as RCuckoo's figures have it: a table of many keys. The simulated one has fewer.
func fuseeLike(writes, zipf float64) func(par Params, clients int) sim.FuseeConfig {
	return func(_ Params, clients int) sim.FuseeConfig {
		c := fuseeRack()
		c.Keys, c.Value, c.Items, c.Clients, c.Writes, c.Kind, c.Zipf = 1<<17, 4, cuckooItems, clients, writes, fusee.Update, zipf
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
		c.Keys, c.Value, c.Items, c.Writes, c.Kind = 1<<17, 4, cuckooItems, 0.5, fusee.Insert
		return append(jobs, storeJob(par, nameFUSEE, c, sim.Fusee, func(m *sim.FuseeMeasured) []Value {
			var vs []Value
			for _, x := range []float64{10, 90} {
				vs = append(vs, Value{Series: "fusee read", X: x, Y: m.Read.P50}, Value{Series: "fusee insert", X: x, Y: m.Write.P50})
			}
			return vs
		})), nil
	}
}
