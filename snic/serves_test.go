package snic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// Whatever DAGs there are and whatever they are sent all the time, by however many flows: while there are free regions,
// they are scaled out until no region has more than it can, and then nothing changes any more, and nothing is lost. Only a
// flow that alone is too much for a task with state stays so.
func TestScaleUntilServed(t *testing.T) {
	for seed := range uint64(160) {
		if testing.Short() && seed%10 != 0 {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			flows, effects := 1024, ""
			if seed >= 100 {
				few := rand.New(rand.NewPCG(seed, 2))
				flows = []int{1, 2, 3, 5, 8, 16}[few.IntN(6)]
				effects = []string{"", ", reads: [ports]"}[few.IntN(2)]
			}
			text := &strings.Builder{}
			fmt.Fprintln(text, "regions: {count: 24, area: 3}\ntenants: {u: {}}\ntasks:")
			tasks := "abcd"[:2+rng.IntN(3)]
			for _, l := range tasks {
				limit := ""
				if rng.IntN(3) > 0 {
					limit = fmt.Sprintf(", throughput: %dMbit, credits: 64", 100*(1+rng.IntN(2)))
				}
				fmt.Fprintf(text, "  %c: {kind: quick, args: {letter: %c}%s%s}\n", l, l, limit, effects)
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
			b := x.App().(*board)
			lost := 0
			done := make([][]uint64, b.placing.fabric.Regions()) // bytes, of each task in each region
			drive := func(d time.Duration) {
				for ; d > 0; d -= step {
					for d, mbit := range loads {
						for next[d] += mbit / 8 * step.Seconds() * 1e6 / size; next[d] >= 1; next[d]-- {
							flow := rng.IntN(flows)
							f := frameLong(byte(flow), "00000000-"+long)
							f[31], f[33] = byte(d+1), byte(flow>>8)
							lost += len(x.Push("p0", f).Dropped)
						}
					}
					x.Advance(step)
				}
			}
			drive(300 * time.Millisecond)
			was := b.placing.fabric.Stats()
			for r := range done {
				for i := range sched.MaxTasks {
					done[r] = append(done[r], b.runner.sched.Task(r, i).Bytes)
				}
			}
			alone := false
			lost = 0
			const last = 50 * time.Millisecond
			drive(last)
			wrong := ""
			for r := range done {
				v := b.placing.fabric.Region(r)
				if v.State != region.Running {
					continue
				}
				for i, n := range b.cat.chains[v.Chain].tasks {
					if b.cat.tasks[n].Throughput == 0 {
						continue
					}
					load := float64(b.runner.sched.Task(r, i).Bytes-done[r][i]) * 8 / last.Seconds() / float64(b.cat.tasks[n].Throughput)
					alone = alone || b.cat.single(&b.cat.tasks[n]) > 0
					// Some per cent are chance: each takes the flows that come.
					if load > 1.1 && b.cat.single(&b.cat.tasks[n]) == 0 {
						wrong += fmt.Sprintf("region %d, %s, task %d: load %.3f\n", r, b.cat.names(b.cat.chains[v.Chain].tasks), i, load)
					}
				}
			}
			if alone && (flows > 3 || effects != "") {
				wrong += "one flow is said to be too much\n"
			}
			if lost > 0 && !alone {
				wrong += fmt.Sprintf("%d frames are lost\n", lost)
			}
			now := b.placing.fabric.Stats()
			if now.ScaledOut != was.ScaledOut || now.ScaledIn != was.ScaledIn {
				wrong += fmt.Sprintf("it scales: %+v, %+v\n", was, now)
			}
			if wrong != "" {
				t.Errorf("%s%v Mbit/s, %d flows\n%s%s", text, loads, flows, wrong, timeline(b))
			}
		})
	}
}

// timeline is what became of a board's regions, and how its DAGs go now.
func timeline(b *board) (s string) {
	for _, e := range b.placing.log {
		s += fmt.Sprintf("%8.2f ms  %v, region %d, chain %d, task %d\n", float64(e.At)/1e6, e.Kind, e.Region, e.Chain, e.Task)
	}
	for i := range b.cat.chains {
		s += fmt.Sprintf("chain %d: %s in %v\n", i, b.cat.names(b.cat.chains[i].tasks), b.cat.chains[i].running)
	}
	for i := range b.cat.services {
		if b.cat.services[i].UID != 0 {
			s += fmt.Sprintf("DAG %d: %v\n", b.cat.services[i].UID, b.cat.services[i].visits)
		}
	}
	return s
}
