package snic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/snic/region"
)

// Whatever DAGs there are and whatever they are sent all the time: while there are free regions,
// they are scaled out until no region has more than it can, and then nothing changes any more.
func TestScaleUntilServed(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			text := &strings.Builder{}
			fmt.Fprintln(text, "regions: {count: 24, area: 3}\ntenants: {u: {}}\ntasks:")
			tasks := "abcd"[:2+rng.IntN(3)]
			for _, l := range tasks {
				limit := ""
				if rng.IntN(3) > 0 {
					limit = fmt.Sprintf(", throughput: %dMbit, credits: 64", 100*(1+rng.IntN(2)))
				}
				fmt.Fprintf(text, "  %c: {kind: quick, args: {letter: %c}%s}\n", l, l, limit)
			}
			loads := make([]float64, 1+rng.IntN(3)) // of DAGs, in Mbit/s
			fmt.Fprintln(text, "dags:")
			for d := range loads {
				var run []string
				for _, k := range rng.Perm(len(tasks))[:1+rng.IntN(len(tasks))] {
					run = append(run, tasks[k:k+1])
				}
				fmt.Fprintf(text, "  - {uid: %d, tenant: u, run: %s}\n", d+1, strings.Join(run, " -> "))
				loads[d] = float64(10 + rng.IntN(250))
			}
			fmt.Fprintln(text, "rules:")
			for d := range loads {
				fmt.Fprintf(text, "  - {match: \"dst:10.%d.0.0/16\", dag: %d}\n", d+1, d+1)
			}
			x := scripted(t, text.String(), "fair", "off", "monitor", "5ms", "packets", "1024")
			x.Advance(20 * time.Millisecond)
			const (
				size = 1000
				step = 20 * time.Microsecond
			)
			long := strings.Repeat(".", size-payload-9)
			next := make([]float64, len(loads))
			drive := func(d time.Duration) {
				for ; d > 0; d -= step {
					for d, mbit := range loads {
						for next[d] += mbit / 8 * step.Seconds() * 1e6 / size; next[d] >= 1; next[d]-- {
							f := frameLong(byte(rng.IntN(256)), "00000000-"+long)
							f[31], f[33] = byte(d+1), byte(rng.IntN(4))
							x.Push("p0", f)
						}
					}
					x.Advance(step)
				}
			}
			drive(300 * time.Millisecond)
			b := x.App().(*board)
			was := b.fabric.Stats()
			drive(50 * time.Millisecond)
			wrong := ""
			for r := range b.fabric.Regions() {
				// The mean of a monitor period of few packets: some per cent are chance.
				if v := b.fabric.Region(r); v.State == region.Running && v.Load > 1.1 {
					wrong += fmt.Sprintf("region %d, %s: load %.3f\n", r, b.names(b.chains[v.Chain].tasks), v.Load)
				}
			}
			now := b.fabric.Stats()
			if now.ScaledOut != was.ScaledOut || now.ScaledIn != was.ScaledIn {
				wrong += fmt.Sprintf("it scales: %+v, %+v\n", was, now)
			}
			if wrong != "" {
				t.Errorf("%s%v Mbit/s\n%s%s", text, loads, wrong, timeline(b))
			}
		})
	}
}

// timeline is what became of a board's regions, and how its DAGs go now.
func timeline(b *board) (s string) {
	for _, e := range b.log {
		s += fmt.Sprintf("%8.2f ms  %v, region %d, chain %d, task %d\n", float64(e.At)/1e6, e.Kind, e.Region, e.Chain, e.Task)
	}
	for i := range b.chains {
		s += fmt.Sprintf("chain %d: %s in %v\n", i, b.names(b.chains[i].tasks), b.chains[i].running)
	}
	for i := range b.services {
		if b.services[i].UID != 0 {
			s += fmt.Sprintf("DAG %d: %v\n", b.services[i].UID, b.services[i].visits)
		}
	}
	return s
}
