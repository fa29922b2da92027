package sim

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
)

const coresMeasured = 600 * time.Microsecond

// runCores is a short run, in which nothing is lost and flows keep their order.
func runCores(t testing.TB, c CoresConfig) *CoresRun {
	t.Helper()
	c.Warmup, c.Measure, c.Seed = 200*time.Microsecond, coresMeasured, 1
	r, err := RunCores(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost > 0 || r.Disordered > 0 || r.Sent == 0 {
		t.Fatalf("%d cores: of %d packets %d are lost and %d late", c.Cores, r.Sent, r.Lost, r.Disordered)
	}
	return r
}

// one is the most that a core of a board with so many can do, in Mpps: full batches of one DAG's frames, of flows that fit its caches,
// of which it handed over none, and no line of another.
func one(c *CoresConfig) float64 {
	m := &c.Costs
	batch := m.breath(1) + m.Group + packet.MaxBatch*m.Frame
	tasks := map[string][]string{TasksState: {"fw", "nat"}, TasksChain: {"fw", "nat", "vx"}}[c.Tasks]
	for _, name := range tasks {
		t := m.Tasks[name]
		batch += t.Push + packet.MaxBatch*(t.Frame[0])
		if t.State {
			batch -= packet.MaxBatch * m.Turn
		}
	}
	return packet.MaxBatch * float64(Microsecond) / float64(batch)
}

// TestCores: a board on several cores does no more than so many boards, nor than its port; with 1,000 flows each core helps; one flow is one core's;
// all of each core's time is accounted for.
func TestCores(t *testing.T) {
	for _, tasks := range []string{TasksNothing, TasksState, TasksChain} {
		for _, c := range []CoresConfig{
			{Flows: 1000}, {Flows: 1000, Zipf: 1}, {Flows: 1000, Apart: true}, {Flows: 64, Zipf: 1, Apart: true}, {Flows: 16}, {Flows: 1}, {Dealt: true},
		} {
			t.Run(fmt.Sprintf("%s/flows=%d,zipf=%v,apart=%v", tasks, c.Flows, c.Zipf, c.Apart), func(t *testing.T) {
				t.Parallel()
				c.Tasks, c.Costs = tasks, NearCores()
				if c.Zipf > 0 {
					c.Costs = FarCores()
				}
				before := 0.
				for _, c.Cores = range []int{1, 2, 4, 8, 16} {
					if testing.Short() && c.Cores == 8 {
						continue
					}
					r := runCores(t, c)
					most := one(&c) + packet.MaxBatch/float64(coresMeasured/time.Microsecond) // a batch may come out that went in before
					if r.Mpps > float64(c.Cores)*most {
						t.Errorf("%d cores: %v Mpps, and each alone at most %v", c.Cores, r.Mpps, most)
					}
					if r.Ingress > 1.001 || r.Mpps > float64(Microsecond)/float64(frameTime(coreBytes))*1.02 {
						t.Errorf("%d cores: %v Mpps, the port is busy for %v of the time", c.Cores, r.Mpps, r.Ingress)
					}
					if c.Flows == 1000 && c.Zipf == 0 && r.Mpps < before*.999 {
						t.Errorf("%d cores: %v Mpps, and half as many have %v", c.Cores, r.Mpps, before)
					}
					if c.Flows == 1 && r.Mpps > most {
						t.Errorf("one flow on %d cores: %v Mpps, and one core has at most %v", c.Cores, r.Mpps, most)
					}
					if sum := r.Work + r.Lines + r.Turns + r.Port + r.Idle; math.Abs(sum-1) > .05 || r.Busiest > 1.05 { // a breath that began before
						t.Errorf("%d cores: parts of the time add up to %v, the busiest core has %v", c.Cores, sum, r.Busiest)
					}
					if (r.Handed > 0) != (c.Apart && c.Cores > 1) {
						t.Errorf("%d cores: %d packets are handed over", c.Cores, r.Handed)
					}
					if want := tasks != TasksNothing && !c.Apart && c.Flows != 1 && c.Cores > 1; (r.Lines > 0) != (want || r.Handed > 0) {
						t.Errorf("%d cores: lines of others take %v", c.Cores, r.Lines)
					}
					before = r.Mpps
				}
			})
		}
	}
}

// TestCoresSeen: what the run says of loss and order is seen: a frame that is dropped by a task, and two that change places.
func TestCoresSeen(t *testing.T) {
	for _, apart := range []bool{false, true} {
		for name, spoil := range map[string]func(b *packet.Batch){
			"nothing": func(*packet.Batch) {},
			"lost":    func(b *packet.Batch) { b.PutAll() },
			"late":    func(b *packet.Batch) { bufs := b.Bufs(); bufs[0], bufs[len(bufs)-1] = bufs[len(bufs)-1], bufs[0] },
		} {
			c := CoresConfig{Costs: NearCores(), Cores: 2, Tasks: TasksNothing, Flows: 4, Apart: apart, Measure: 100 * time.Microsecond}
			x, err := newCores(c)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			x.spoil = func(b *packet.Batch) {
				if n++; n == 20 {
					spoil(b)
				}
			}
			r, err := x.play(t.Context())
			if name == "lost" {
				if err == nil && r.Lost == 0 {
					t.Errorf("apart=%v: nobody notices what was dropped: %+v", apart, r)
				}
				continue
			}
			if err != nil || r.Lost > 0 || (r.Disordered > 0) != (name == "late") {
				t.Errorf("apart=%v, %s: %v, %+v", apart, name, err, r)
			}
		}
	}
}

// TestCoresSame: equal seeds give equal runs, and what runs on cores is of the types that run live.
func TestCoresSame(t *testing.T) {
	c := CoresConfig{Costs: NearCores(), Cores: 4, Tasks: TasksState, Flows: 100, Apart: true}
	if a, b := runCores(t, c), runCores(t, c); *a != *b {
		t.Errorf("equal seeds give %+v and %+v", a, b)
	}
	c.Measure = time.Microsecond
	x, err := newCores(c)
	if err != nil {
		t.Fatal(err)
	}
	defer x.inst.Close()
	live := graphtest.NewSmall(t, *snic.Kind(*firewall.Kind()), graph.Args{"deployment": "regions: {count: 1, area: 1}"}, *firewall.Kind())
	for w := range c.Cores {
		if s, l := reflect.TypeOf(x.inst.App(appName, w)), reflect.TypeOf(live.Inst.App(graphtest.App, 0)); s != l {
			t.Errorf("a board is a %v here, and a %v live", s, l)
		}
	}
	kinds := map[string]graph.Kind{"fw": *firewall.Kind(), "nat": *napt.Kind()}
	for _, task := range x.tasks {
		k := kinds[map[bool]string{true: "fw", false: "nat"}[task.first]]
		args := map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "napt": {"public": "198.51.100.1"}}[k.Name]
		made, err := k.New(graph.Env{}, args)
		if err != nil {
			t.Fatal(err)
		}
		if reflect.TypeOf(task.App) != reflect.TypeOf(made) {
			t.Errorf("%s is a %T here, and a %T live", k.Name, task.App, made)
		}
	}
}

func TestCoresRefuse(t *testing.T) {
	good := CoresConfig{Costs: NearCores(), Cores: 2, Tasks: TasksNothing, Flows: 1, Measure: 1}
	for name, wrong := range map[string]func(c *CoresConfig){
		"no cores": func(c *CoresConfig) { c.Cores = 0 }, "too many": func(c *CoresConfig) { c.Cores = 17 }, "no flows": func(c *CoresConfig) { c.Flows = 0 },
		"no time": func(c *CoresConfig) { c.Measure = 0 }, "no tasks": func(c *CoresConfig) { c.Tasks = "" },
	} {
		c := good
		if wrong(&c); name != "" {
			if _, err := RunCores(t.Context(), c); err == nil {
				t.Errorf("%s: %+v is accepted", name, c)
			}
		}
	}
}
