package figure

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/internal/sim"
)

// clios returns the figures of YCSB on Clio's key/value store behind an sNIC.
func clios() []*Figure {
	plain, offload, cache := sim.ClioPlain.String(), sim.ClioOffload.String(), sim.ClioCache.String()
	over := func(what, a, b string, mixes ...string) (rs []ratio) {
		for _, m := range mixes {
			rs = append(rs, ratio{m + ", " + what, ref{0, a, m}, ref{0, b, m}})
		}
		return rs
	}
	compared := func() []ratio {
		return append(over("transport on the sNIC over Clio", offload, plain, "A", "B", "C"), over("with a cache over Clio", cache, plain, "A", "B", "C")...)
	}
	takes := []string{"keys", "hosts"}
	return []*Figure{
		{ID: "5.16", data: "5.16", takes: takes, Fitted: []string{cache}, ratios: compared(),
			jobs:   withHERD(stacks(func(m *sim.ClioMeasured) float64 { return m.Mean }), func(m *sim.HerdMeasured) float64 { return m.Mean }),
			lacks:  []string{"Clover, HERD-BF: published only; other systems, on RDMA hosts, without an sNIC", herdLacks},
			causes: []string{causeServer},
			reasons: []reason{
				{series: nameHERD, text: reasonServed, cause: causeServer},
				{ratio: true, series: "A, with a cache over Clio", text: reasonWrites},
			}},
		{ID: "5.17", data: "5.17", takes: takes, Fitted: []string{cache}, ratios: compared(),
			inputs: []reason{{text: "8 threads over 5.16's latencies: that figure in another unit, and no evidence of its own"}},
			jobs: withHERD(stacks(func(m *sim.ClioMeasured) float64 { return m.OpsPerSecond * 8000 / (1 << 30) }),
				func(m *sim.HerdMeasured) float64 { return m.OpsPerSecond * 8000 / (1 << 30) }),
			causes: []string{causeServer},
			lacks:  []string{"Clover, HERD-BF: published only, as in figure 5.16", herdLacks}},
		{ID: "5.18", data: "5.18", takes: takes,
			jobs:  stacks(func(m *sim.ClioMeasured) float64 { return m.Mean }),
			lacks: []string{"Clover, Clover-R: published only, as in figure 5.16"},
			ratios: append(over("copies by the client over none", plain+copied, plain, "A", "B"),
				over("copies by the sNIC over none", offload+copied, offload, "A", "B")...)},
	}
}

// copied ends the names of curves with writes to two devices.
const copied = "-R"

const reasonWrites = "Clio's SET is faster than its GET in the micro-benchmark that the model is made of, so A is Clio's fastest workload here. Published A is its slowest: " +
	"by A and C a write takes 8.1 µs there, and it is not said what delays it."

// stacks makes a job of each point of the curves that are Clio's; value picks the quantity. A quick run has a
// tenth of the keys and operations. Not so with a cache, because its hits depend on them.
func stacks(value func(*sim.ClioMeasured) float64) func(*Published, Params) ([]job, error) {
	return func(p *Published, par Params) ([]job, error) {
		var jobs []job
		stacks := []sim.ClioStack{sim.ClioPlain, sim.ClioOffload, sim.ClioCache}
		for _, v := range p.Quantities[0].runs(false) {
			name, twice := strings.CutSuffix(v.Series, copied)
			stack := slices.IndexFunc(stacks, func(s sim.ClioStack) bool { return s.String() == name })
			if stack < 0 {
				continue
			}
			mix, err := ycsb.MixNamed(v.Name)
			if err != nil {
				return nil, err
			}
			c := sim.ClioConfig{Keys: par.Keys, Clients: par.Hosts, Seed: par.Seed, Stack: stacks[stack], Mix: mix}
			if par.Quick && c.Stack != sim.ClioCache {
				c.Ops = 10_000
				c.Keys = cmp.Or(c.Keys, c.Ops)
			}
			if twice {
				c.Replicas = 2
			}
			jobs = append(jobs, job{name: v.Series + ", YCSB " + v.Name, cost: 1, run: func(ctx context.Context, _ func(float64)) ([]Value, error) {
				m, err := sim.Clio(ctx, c)
				if err != nil {
					return nil, err
				}
				return v.of(value(m)), nil
			}})
		}
		return jobs, nil
	}
}
