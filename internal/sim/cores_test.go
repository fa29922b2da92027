package sim

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestScratch(t *testing.T) {
	for _, tasks := range []string{TasksNothing, TasksState, TasksChain} {
		for _, v := range []CoresConfig{{Dealt: true}, {Flows: 1000}, {Flows: 1000, Zipf: 1}, {Flows: 1}, {Flows: 4}, {Flows: 16}, {Flows: 64}, {Flows: 1000, Apart: true}, {Flows: 1000, Apart: true, Zipf: 1}} {
			one := 0.
			for _, n := range []int{1, 2, 4, 8, 16} {
				v.Costs, v.Cores, v.Tasks, v.Warmup, v.Measure, v.Seed = MeasuredCores(), n, tasks, time.Millisecond, 3*time.Millisecond, 1
				start := time.Now()
				r, err := RunCores(context.Background(), v)
				if err != nil {
					t.Errorf("%v: %v", v, err)
					continue
				}
				if n == 1 {
					one = r.Mpps
				}
				fmt.Printf("%-28s dealt=%v flows=%d zipf=%v apart=%v cores=%d: %.2f Mpps x%.2f work %.2f lines %.2f turns %.2f port %.2f idle %.2f busiest %.2f ingress %.2f handed %d sent %d lost %d dis %d  %v\n", tasks, v.Dealt, v.Flows, v.Zipf, v.Apart, n,
					r.Mpps, r.Mpps/one, r.Work, r.Lines, r.Turns, r.Port, r.Idle, r.Busiest, r.Ingress, r.Handed, r.Sent, r.Lost, r.Disordered, time.Since(start).Round(time.Millisecond))
			}
		}
	}
}
