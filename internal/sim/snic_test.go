package sim

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/region"
)

func runSNIC(t interface{ Fatal(...any) }, c SNICConfig) *SNICRun {
	r, err := RunSNIC(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSNICLatency: a packet alone takes the core's 196 ns, its tasks, 64 ns for
// each further pass through the scheduler, and 16 for the synchronisation
// buffer.
func TestSNICLatency(t *testing.T) {
	for _, c := range []struct {
		name   string
		run    string
		count  int // of regions
		area   int
		width  int
		panics bool
		want   time.Duration
	}{
		{"one task", "a", 1, 4, 0, false, 196 + 64},
		{"one chain", "a -> b -> c", 1, 4, 1, false, 196 + 64 + 128 + 256},
		{"two chains", "a -> b -> c", 2, 2, 1, false, 196 + 64 + 128 + 256 + 64},
		{"a task is skipped", "a -> b -> c}, {uid: 2, tenant: u, run: a -> c", 1, 4, 1, false, 196 + 64 + 256},
		{"back after each", "a -> b -> c", 1, 4, 1, true, 196 + 64 + 128 + 256 + 2*64},
		{"in parallel", "a -> b -> c", 3, 1, 0, false, 196 + 256 + 16},
		{"in two branches", "a -> b -> c", 2, 2, 2, false, 196 + 256 + 16},
		{"in parallel, then one", "a -> d; b -> d", 3, 1, 0, false, 196 + 128 + 16 + 64 + 32},
	} {
		d := fmt.Sprintf(`
regions: {count: %d, area: %d}
tasks:
  a: {kind: dummy, writes: [ports], latency: 64ns}
  b: {kind: dummy, reads: [ip-addresses], latency: 128ns}
  c: {kind: dummy, reads: [ethernet], latency: 256ns}
  d: {kind: dummy, reads: [ports], writes: [ip-addresses], latency: 32ns}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: %s}]
`, c.count, c.area, c.run)
		r := runSNIC(t, SNICConfig{
			SNIC: HTG9200(), Deployment: d, Branches: c.width, Panic: c.panics,
			Sources: []Source{{UID: uint32(1 + strings.Count(c.run, "uid")), Bytes: 64, Rates: []Rate{{Gbit: 0.05}}}}, Measure: 100 * time.Microsecond, Seed: 1,
		})
		s := r.Sources[0]
		if s.Core != c.want || s.CoreMost != c.want || s.Path != c.want+1104 || s.Left < 5 {
			t.Errorf("%s: %v (most %v) in the core, %v in all, %d packets; want %v and %v", c.name, s.Core, s.CoreMost, s.Path, s.Left, c.want, c.want+1104)
		}
	}
}

// TestSNICLimits: what limits a board is what should.
func TestSNICLimits(t *testing.T) {
	for _, c := range []struct {
		name, task string
		source     Source
		sources    int
		want       float64 // Gb/s
	}{
		{"the data path: 17 beats for 16", "credits: 64", Source{Bytes: 1024}, 1, 128 * 16. / 17},
		{"the data path of a port", "credits: 64", Source{Bytes: 64, Rates: []Rate{{Gbit: 90}}}, 1, 64},
		{"a decision a cycle", "credits: 64", Source{Bytes: 64}, 3, 128},
		{"a credit each 16 cycles", "credits: 1", Source{Bytes: 64}, 1, 8},
		{"two credits", "credits: 2", Source{Bytes: 64}, 1, 16},
		{"a task's latency and the scheduler", "credits: 1, latency: 64ns", Source{Bytes: 64}, 1, 4},
		{"a task's rate", "throughput: 40Gbit", Source{Bytes: 1024}, 1, 40},
		{"the port", "credits: 64", Source{Bytes: 1024, Rates: []Rate{{Gbit: 90}}}, 1, 90},
	} {
		d := fmt.Sprintf(`
regions: {count: 1, area: 1}
tasks: {nt: {kind: dummy, %s}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: nt}]
`, c.task)
		var sources []Source
		for i := range c.sources {
			c.source.UID, c.source.Port = 1, 2*i
			sources = append(sources, c.source)
		}
		r := runSNIC(t, SNICConfig{
			SNIC: HTG9200(), Deployment: d, Sources: sources,
			Warmup: 100 * time.Microsecond, Measure: 100 * time.Microsecond, Seed: 1,
		})
		got := 0.
		for _, s := range r.Sources {
			got += float64(s.Bytes) * 8 / 1e5
		}
		if math.Abs(got/c.want-1) > .01 {
			t.Errorf("%s: %.4g Gb/s, want %.4g", c.name, got, c.want)
		}
	}
}

// TestSNICPort: packets wait for a port that two sources share. What a port can
// send is a resource: tenants that want more are limited.
func TestSNICPort(t *testing.T) {
	const d = `
regions: {count: 1, area: 1}
tasks: {nt: {kind: dummy, credits: 64}}
tenants: {a: {}, b: {weight: 3}}
dags:
  - {uid: 1, tenant: a, run: nt}
  - {uid: 2, tenant: b, run: nt}
`
	for _, c := range []struct {
		a, b        float64 // Gb/s
		limited     bool
		least, most time.Duration // in wait for the port
	}{
		{5, 5, false, 0, 20},
		{45, 45, false, 20, 2 * time.Microsecond},
		{60, 60, false, 5 * time.Microsecond, 100 * time.Microsecond},
		{40, 80, true, 20, 20 * time.Microsecond},
	} {
		const measure = 400 * time.Microsecond
		r := runSNIC(t, SNICConfig{
			SNIC: HTG9200(), Deployment: d, Fair: c.limited,
			Sources: []Source{
				{UID: 1, Bytes: 1500, Rates: []Rate{{Gbit: c.a}}},
				{UID: 2, Bytes: 1500, Rates: []Rate{{Gbit: c.b}}},
			},
			Warmup: 100 * time.Microsecond, Measure: measure, Seed: 1,
		})
		if wait := r.Sources[0].Path - r.Sources[0].Core - 1104; wait < c.least || wait > c.most {
			t.Errorf("%v and %v Gb/s: %v in wait for the port, want %v to %v", c.a, c.b, wait, c.least, c.most)
		}
		if c.limited {
			for i, want := range []float64{25, 75} {
				if got := float64(r.Sources[i].Bytes) * 8 / float64(measure); math.Abs(got-want) > .8 {
					t.Errorf("tenant %d sends %.3g Gb/s, want %v", i, got, want)
				}
			}
		}
	}
}

// TestSNICFlood: with limits a flood costs the other tenant nothing of a task's
// rate; without them it does.
func TestSNICFlood(t *testing.T) {
	const d = `
regions: {count: 1, area: 1}
tasks: {nt: {kind: dummy, throughput: 50Gbit, latency: 64ns, credits: 32}}
tenants: {flood: {}, user: {}}
dags:
  - {uid: 1, tenant: flood, run: nt}
  - {uid: 2, tenant: user, run: nt}
`
	for _, limited := range []bool{true, false} {
		const measure = 500 * time.Microsecond
		r := runSNIC(t, SNICConfig{
			SNIC: HTG9200(), Deployment: d, Fair: limited,
			Sources: []Source{
				{UID: 1, Bytes: 512, Rates: []Rate{{Gbit: 95}}},
				{UID: 2, Port: 2, Bytes: 512, Rates: []Rate{{Gbit: 15}}},
			},
			Warmup: time.Millisecond, Measure: measure, Seed: 1,
		})
		user, flood := float64(r.Sources[1].Bytes)*8/float64(measure), float64(r.Sources[0].Bytes)*8/float64(measure)
		if limited != (user > 14.8) || math.Abs(user+flood-50) > 1 {
			t.Errorf("limited: %v; the user gets %.3g Gb/s of 15, the flood %.3g", limited, user, flood)
		}
		if limited && r.Sources[1].CoreMost > 20*time.Microsecond {
			t.Errorf("a packet waits %v behind what was let in", r.Sources[1].CoreMost)
		}
	}
}

// TestSNICScales: a task is scaled out under a load that stays, and in when it is
// gone; no packet is lost by either.
func TestSNICScales(t *testing.T) {
	const d = `
regions: {count: 2, area: 1}
tasks: {nt: {kind: dummy, throughput: 20Gbit, latency: 64ns}}
tenants: {user: {}}
dags: [{uid: 1, tenant: user, run: nt}]
`
	r := runSNIC(t, SNICConfig{
		SNIC: HTG9200(), Deployment: d, Fair: true, Monitor: 10 * time.Millisecond,
		Sources: []Source{{UID: 1, Bytes: 1500, Rates: []Rate{{Gbit: 10}, {From: time.Millisecond, Gbit: 35}, {From: 25 * time.Millisecond, Gbit: 8}, {From: 37 * time.Millisecond, Gbit: 35}}}},
		Measure: 45 * time.Millisecond, Window: time.Millisecond, Seed: 1,
	})
	gbit := func(ms int) float64 { return float64(r.Tasks[0]["nt"][ms]) * 8 / 1e6 }
	for ms, want := range map[int]float64{0: 10, 5: 20, 10: 20, 18: 35, 24: 35, 30: 8, 36: 8, 40: 20, 44: 20} {
		if got := gbit(ms); math.Abs(got-want) > .05*want {
			t.Errorf("at %d ms: %.3g Gb/s, want %.3g", ms, got, want)
		}
	}
	if most := r.Sources[0].CoreMost; most > 50*time.Microsecond {
		t.Errorf("a packet waits for %v", most)
	}
	var what []string
	for _, e := range r.Events {
		what = append(what, e.Kind.String())
		at := map[region.Kind]time.Duration{region.Load: 11 * time.Millisecond, region.Run: 16 * time.Millisecond, region.Stop: 34 * time.Millisecond}[e.Kind]
		if at > 0 && (e.At < at || e.At > at+2*time.Millisecond) {
			t.Errorf("%v at %v, want %v or a little later", e.Kind, e.At, at)
		}
	}
	if got := strings.Join(what, " "); !strings.Contains(got, "load run") || !strings.Contains(got, "stop") {
		t.Errorf("events: %s", got)
	}
}

// TestSideBySide: tasks side by side never take longer than one after the other, and sometimes less: that is what
// parallel=auto of a board goes by.
func TestSideBySide(t *testing.T) {
	shorter := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "tasks")
		text, run := fmt.Sprintf("regions: {count: 1, area: %d}\ntasks:\n", n), ""
		for i := range n {
			field := rapid.SampledFrom([]string{"none", "ports", "vlan", "payload", "ip-other"})
			text += fmt.Sprintf("  t%d: {kind: dummy, reads: [%s], writes: [%s], drops: %v, latency: %dns, throughput: %s}\n", i, field.Draw(t, "reads"), field.Draw(t, "writes"),
				rapid.Bool().Draw(t, "drops"), rapid.IntRange(1, 3000).Draw(t, "latency"), rapid.SampledFrom([]string{"10Mbit", "1Gbit", "100Gbit"}).Draw(t, "throughput"))
			if i > 0 {
				run += " -> "
			}
			run += fmt.Sprintf("t%d", i)
		}
		text += "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: " + run + "}]\n"
		var took [2]time.Duration
		for i, branches := range []int{1, 0} {
			r := runSNIC(t, SNICConfig{
				SNIC: SNIC{Beat: 64, Ports: 2, GbitPerSecond: 100, Store: 1 << 20, Packets: 64, Epoch: 20 * time.Microsecond}, Deployment: text, Branches: branches,
				Sources: []Source{{UID: 1, Bytes: 64, Rates: []Rate{{Gbit: 0.005}}}}, Measure: time.Millisecond,
			}).Sources[0]
			if took[i] = r.Core; r.CoreMost != r.Core {
				t.Fatalf("%s%v on average, and %v at most", text, r.Core, r.CoreMost)
			}
		}
		if took[1] > took[0] {
			t.Fatalf("%s%v side by side, and %v one after the other", text, took[1], took[0])
		}
		if took[1] < took[0] {
			shorter++
		}
	})
	if shorter == 0 {
		t.Error("nothing ever ran side by side")
	}
}

// TestSameTypes: what is simulated is of the types that run live: the board's, its tasks' and what they are declared by.
func TestSameTypes(t *testing.T) {
	b, err := newBoard(SNICConfig{SNIC: HTG9200(), Measure: 1, Sources: []Source{{UID: 1, Bytes: 64}}, Deployment: `
regions: {count: 1, area: 1}
tasks: {nt: {kind: dummy}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: nt}]
`})
	if err != nil {
		t.Fatal(err)
	}
	defer b.inst.Close()
	live := graphtest.NewSmall(t, *snic.Kind(*dummy.Kind()), graph.Args{"deployment": "regions: {count: 1, area: 1}"}, *dummy.Kind())
	if s, l := reflect.TypeOf(b.inst.App(appName, 0)), reflect.TypeOf(live.Inst.App(graphtest.App, 0)); s != l || s.Elem().PkgPath() != reflect.TypeOf(snic.View{}).PkgPath() {
		t.Errorf("a board is a %v here, and a %v live", s, l)
	}
	made, err := dummy.Kind().New(graph.Env{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := b.metered["nt"]; !ok || reflect.TypeOf(m.App) != reflect.TypeOf(made) {
		t.Errorf("a task is a %T here, and a %T live", m.App, made)
	}
}

// TestSNICAnything: whatever is deployed and sent, packets are conserved, no task
// is above its rate, and equal seeds give equal runs.
func TestSNICAnything(t *testing.T) {
	fields := []string{"ethernet", "ip-addresses", "ports", "payload"}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "tasks")
		var text strings.Builder
		fmt.Fprintf(&text, "regions: {count: %d, area: 2}\ntasks:\n", n)
		for i := range n {
			fmt.Fprintf(&text, "  t%d: {kind: dummy, reads: [%s], writes: [%s], latency: %dns, throughput: %dGbit, credits: %d}\n", i,
				rapid.SampledFrom(fields).Draw(t, "reads"), rapid.SampledFrom(fields).Draw(t, "writes"),
				rapid.IntRange(0, 300).Draw(t, "latency"), rapid.IntRange(5, 150).Draw(t, "rate"), rapid.IntRange(1, 16).Draw(t, "credits"))
		}
		dags := rapid.IntRange(1, 3).Draw(t, "DAGs")
		text.WriteString("tenants: {u0: {}, u1: {weight: 2}, u2: {}}\ndags:\n")
		for i := range dags {
			var order []string
			for k := range n {
				if k == i%n || rapid.Bool().Draw(t, "in") {
					order = append(order, fmt.Sprintf("t%d", k))
				}
			}
			fmt.Fprintf(&text, "  - {uid: %d, tenant: u%d, run: %s}\n", i+1, i, strings.Join(order, " -> "))
		}
		c := SNICConfig{
			SNIC: HTG9200(), Deployment: text.String(), Branches: rapid.IntRange(0, 3).Draw(t, "branches"), Panic: rapid.Bool().Draw(t, "PANIC"),
			Fair: rapid.Bool().Draw(t, "fair"), Measure: 200 * time.Microsecond, Window: 20 * time.Microsecond, Seed: 1,
		}
		for i := range dags {
			s := Source{UID: uint32(i + 1), Port: 2 * i, Bytes: rapid.IntRange(64, 1500).Draw(t, "bytes")}
			for k := range rapid.IntRange(0, 3).Draw(t, "rates") {
				s.Rates = append(s.Rates, Rate{From: time.Duration(k) * 50 * time.Microsecond, Gbit: rapid.Float64Range(0, 100).Draw(t, "Gb/s")})
			}
			c.Sources = append(c.Sources, s)
		}
		r, err := RunSNIC(t.Context(), c)
		if err != nil && strings.Contains(err.Error(), "no region runs it") {
			t.Skip("these DAGs need more regions than there are")
		}
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]*[12]int64{}
		for i := range c.Sources {
			for name, row := range r.Tasks[i] {
				if sums[name] == nil {
					sums[name] = &[12]int64{}
				}
				for w, v := range row {
					sums[name][w] += v
				}
			}
		}
		for _, task := range r.View.Tasks {
			if sums[task.Task] == nil {
				continue
			}
			for _, sum := range sums[task.Task] {
				if most := float64(task.Throughput)/8*c.Window.Seconds()*float64(task.Instances) + 1500; float64(sum) > most {
					t.Fatalf("task %s handles %d bytes in a window, %v at most", task.Task, sum, most)
				}
			}
		}
		if again := runSNIC(t, c); !reflect.DeepEqual(r, again) {
			t.Fatal("equal seeds give different runs")
		}
	})
}

func TestSNICRefuses(t *testing.T) {
	const d = `
regions: {count: 1, area: 1}
tasks: {a: {kind: dummy}, b: {kind: dummy}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
`
	good := []Source{{UID: 1, Bytes: 64}}
	two := strings.Replace(d, "run: a", "run: a -> b", 1)
	for want, c := range map[string]SNICConfig{
		"regions":            {Sources: good, Measure: 1},
		"sources":            {Deployment: d, Measure: 1},
		"time to measure":    {Deployment: d, Sources: good},
		"no region runs it":  {Deployment: two, Sources: good, Measure: 1},
		"packets of 0 bytes": {Deployment: d, Sources: []Source{{}}, Measure: 1},
		"port 8":             {Deployment: d, Sources: []Source{{Bytes: 64, Port: 8}}, Measure: 1},
		"DAG 2":              {Deployment: d, Sources: []Source{{UID: 2, Bytes: 64}}, Measure: 1},
	} {
		c.SNIC = HTG9200()
		if _, err := RunSNIC(context.Background(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := RunSNIC(ctx, SNICConfig{SNIC: HTG9200(), Deployment: d, Sources: good, Measure: time.Second}); err == nil {
		t.Error("runs on without its context")
	}
}
