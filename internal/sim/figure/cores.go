package figure

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/sim"
)

// The panels of snic-cores.
const (
	panelDealt = iota
	panelMpps
	panelNothing
	panelState
	panelParts
)

// cores returns the figure of a board whose work is spread over several cores.
func cores() *Figure {
	return &Figure{
		ID: "snic-cores", data: "snic-cores", strict: true, jobs: coreJobs,
		reasons: []reason{
			{series: sim.TasksState + " / far", text: reasonFar},
			{series: sim.TasksChain + " / far", text: reasonFar},
		},
	}
}

const reasonFar = "Of what two processors both write, only the line of each turn is simulated, and a line from far away takes 149 ns here: so many were measured on the day of the costs. On the day " +
	"of the ratios two-line had 210 to 290 ns."

// coreCurve is a curve: a board over cores.
type coreCurve struct {
	name  string
	panel int
	c     sim.CoresConfig
}

// coreCounts returns the numbers of cores that are run.
func coreCounts(quick bool) []int {
	if quick {
		return []int{1, 2, 4, 16}
	}
	return []int{1, 2, 4, 8, 16}
}

// coreCurves returns all curves that are run.
func coreCurves(quick bool) (all []coreCurve) {
	near, far := sim.NearCores(), sim.FarCores()
	for _, tasks := range []string{sim.TasksNothing, sim.TasksState, sim.TasksChain} {
		all = append(all,
			coreCurve{tasks + " / near", panelDealt, sim.CoresConfig{Costs: near, Tasks: tasks, Dealt: true}},
			coreCurve{tasks + " / far", panelDealt, sim.CoresConfig{Costs: far, Tasks: tasks, Dealt: true}})
	}
	for _, tasks := range []string{sim.TasksNothing, sim.TasksState, sim.TasksChain} {
		all = append(all,
			coreCurve{tasks + " / where they come in", panelMpps, sim.CoresConfig{Costs: near, Tasks: tasks, Flows: 1000}},
			coreCurve{tasks + " / handed over", panelMpps, sim.CoresConfig{Costs: near, Tasks: tasks, Flows: 1000, Apart: true}})
	}
	flows := []int{1, 4, 16, 64, 1000}
	if quick {
		flows = []int{1, 16, 1000}
	}
	for _, panel := range []int{panelNothing, panelState} {
		tasks := map[int]string{panelNothing: sim.TasksNothing, panelState: sim.TasksState}[panel]
		for _, n := range flows {
			c := sim.CoresConfig{Costs: near, Tasks: tasks, Flows: n}
			if n == 1 {
				all = append(all, coreCurve{"1 flow / alike", panel, c})
				continue
			}
			all = append(all, coreCurve{fmt.Sprintf("%d flows / alike", n), panel, c})
			c.Zipf = 1
			all = append(all, coreCurve{fmt.Sprintf("%d flows / Zipf", n), panel, c})
		}
	}
	return all
}

// coreJobs makes a job of each curve.
func coreJobs(_ *Published, par Params) (jobs []job, err error) {
	counts := coreCounts(par.Quick)
	for _, curve := range coreCurves(par.Quick) {
		jobs = append(jobs, job{name: curve.name, cost: 1, run: func(ctx context.Context, progress func(float64)) (vs []Value, err error) {
			c, one := curve.c, 0.
			c.Seed, c.Warmup, c.Measure = par.Seed, time.Millisecond, 5*time.Millisecond
			if par.Quick {
				c.Measure = time.Millisecond
			}
			for i, n := range counts {
				c.Cores = n
				c.Progress = func(done float64) { progress((float64(i) + done) / float64(len(counts))) }
				r, err := sim.RunCores(ctx, c)
				if err != nil {
					return nil, err
				}
				if r.Lost > 0 || r.Disordered > 0 {
					return nil, fmt.Errorf("of %d packets over %d cores %d are lost and %d late", r.Sent, n, r.Lost, r.Disordered)
				}
				if n == 1 {
					one = r.Mpps
				}
				y := r.Mpps
				switch curve.panel {
				case panelDealt:
					y /= one
				case panelNothing, panelState:
					y /= one * float64(n)
				}
				vs = append(vs, Value{Panel: curve.panel, Series: curve.name, X: float64(n), Y: y})
				if curve.panel == panelState && c.Flows == 1000 {
					vs = append(vs, coreParts(r, curve.name, n)...)
				}
			}
			return vs, nil
		}})
	}
	return jobs, nil
}

// coreParts returns the shares of what the cores spent their time on.
func coreParts(r *sim.CoresRun, name string, n int) (vs []Value) {
	which := "alike"
	if !strings.HasSuffix(name, which) {
		which = "Zipf"
	}
	for _, p := range []struct {
		name string
		y    float64
	}{{"work", r.Work}, {"lines of others", r.Lines}, {"turns of others", r.Turns}, {"nothing to do", r.Idle}} {
		vs = append(vs, Value{Panel: panelParts, Series: p.name + " / " + which, X: float64(n), Y: p.y})
	}
	return vs
}
