package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// board is a world without a machine: tasks are scripts.
func scripted(t testing.TB, deployment string, args ...string) *graphtest.Test {
	t.Helper()
	a := graph.Args{"deployment": deployment}
	for i := 0; i < len(args); i += 2 {
		a[args[i]] = args[i+1]
	}
	return graphtest.NewOuter(t, scripts(), a)
}

func marks(fs []graphtest.Frame) string {
	var out []string
	for _, f := range fs {
		out = append(out, string(f.Bytes[payload+8:]))
	}
	return strings.Join(out, " ")
}

// The worker does not read a deployment that was read before: who plans a change has.
func TestReadOnce(t *testing.T) {
	text := func(weight int) string {
		return fmt.Sprintf("regions: {count: 1, area: 1}\ntasks: {}\ntenants: {u: {weight: %d}}\n", weight)
	}
	x := scripted(t, text(1))
	for weight := 2; weight < 10; weight++ {
		if err := x.Set(graph.Args{"deployment": text(weight)}); err != nil {
			t.Fatal(err)
		}
		if d, err := x.App().(*board).library.deployment(text(weight)); err != nil || x.App().(*board).next.deployment != d || d.Tenants[0].Weight != float64(weight) {
			t.Errorf("weight %d: read again, or as another: %v", weight, err)
		}
	}
}

// A task that gets other arguments lets nobody past: neither those that it holds nor those
// that wait for it.
func TestChangedTaskIsNotPassed(t *testing.T) {
	text := func(time string) string {
		return `
regions: {count: 1, area: 3}
tasks:
  a: {kind: quick, args: {letter: a}}
  b: {kind: hold, args: {letter: b, time: ` + time + `}, latency: 1us, credits: 1}
  c: {kind: quick, args: {letter: c}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b -> c}]
rules: [{match: all, dag: 1}]
`
	}
	x := scripted(t, text("5ms"))
	x.Advance(10 * time.Millisecond)
	var frames [][]byte
	for i := range 5 {
		frames = append(frames, frame(byte(i+1), "00000000-."))
	}
	x.Push("p0", frames...)
	x.Advance(time.Millisecond)
	if err := x.Set(graph.Args{"deployment": text("2ms")}); err != nil {
		t.Fatal(err)
	}
	r := x.Advance(50 * time.Millisecond)
	if got := marks(r.Out["p1"]); got != "-.abc -.abc -.abc -.abc -.abc" {
		t.Errorf("%s", got)
	}
}

// Tasks that hold packets and go at the same time pass them on over each other, and over
// tasks that take the numbers of those.
func TestTasksGoTogether(t *testing.T) {
	x := scripted(t, `
regions: {count: 1, area: 3}
tasks:
  a: {kind: hold, args: {letter: a}}
  b: {kind: hold, args: {letter: b}}
  c: {kind: quick, args: {letter: c}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: b -> a -> c}]
rules: [{match: all, dag: 1}]
`)
	x.Advance(10 * time.Millisecond)
	// c answers: what comes back is held by a without credits.
	x.Push("p0", frame(1, "00000000?c"), frame(1, "00000000-."))
	x.Advance(2100 * time.Microsecond)
	x.Push("p0", frame(1, "00000000-."))
	if err := x.Set(graph.Args{"deployment": `
regions: {count: 1, area: 3}
tasks: {z: {kind: quick, args: {letter: z}}, y: {kind: quick, args: {letter: y}}, x: {kind: quick, args: {letter: x}}}
tenants: {u: {}}
dags: [{uid: 2, tenant: u, run: z -> y -> x}]
rules: [{match: all, dag: 2}]
`}); err != nil {
		t.Fatal(err)
	}
	r := x.Advance(20 * time.Millisecond)
	if got := marks(append(r.Out["p0"], r.Out["p1"]...)); got != "Acba*A -.b" {
		t.Errorf("%q, %v", got, r)
	}
	if r := x.Push("p0", frame(1, "00000000-.")); marks(r.Out["p1"]) != "-.zyx" {
		t.Errorf("after that: %v", r)
	}
}

// What a task answers leaves by where it came from, whatever else is in the task.
func TestHeldAnswersKeepTheirWay(t *testing.T) {
	x := scripted(t, `
regions: {count: 1, area: 3}
tasks:
  a: {kind: hold, args: {letter: a}}
  b: {kind: hold, args: {letter: b}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: u, run: b -> a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`)
	x.Advance(20 * time.Millisecond)
	x.Push("p0", frame(1, "00000001?b"))
	x.Push("p4", frame(2, "00000002?a"))
	x.Push("p7", back(1, "00000003?a"))
	got := graphtest.Result{Out: map[string][]graphtest.Frame{}}
	for range 100 {
		x.Push("p2", frame(2, "00000004-."))
		for name, fs := range x.Advance(50 * time.Microsecond).Out {
			got.Out[name] = append(got.Out[name], fs...)
		}
	}
	for name, want := range map[string]string{"p0": "Aba*A", "p4": "Aab*B", "p7": "AaB*b"} {
		if m := marks(got.Out[name]); m != want {
			t.Errorf("%s: %s, not %s", name, m, want)
		}
	}
	for _, name := range []string{"p1", "p2", "p5", "p6"} {
		if len(got.Out[name]) != 0 {
			t.Errorf("%s: %s", name, marks(got.Out[name]))
		}
	}
}

// What a task makes by itself goes on from it, forward or back; without a DAG it leaves as it is.
func TestMade(t *testing.T) {
	text := func(dags string) string {
		return `
regions: {count: 1, area: 3}
tasks:
  a: {kind: quick, args: {letter: a}}
  b: {kind: beat, args: {letter: b, time: 1ms}}
  c: {kind: quick, args: {letter: c}}
tenants: {u: {}}
` + dags
	}
	x := scripted(t, text(""))
	r := x.Advance(500 * time.Microsecond)
	if got := marks(r.Out["p1"]) + " " + marks(r.Out["p0"]); got != "-b -b" {
		t.Errorf("without a DAG: %s", got)
	}
	if err := x.Set(graph.Args{"deployment": text("dags: [{uid: 9, tenant: u, run: a -> b -> c}]")}); err != nil {
		t.Fatal(err)
	}
	r = x.Advance(time.Millisecond)
	if got := marks(r.Out["p1"]) + " " + marks(r.Out["p0"]); got != "-bc -bA" {
		t.Errorf("in a DAG: %s", got)
	}
	// The DAG goes, and its number and that of c.
	if err := x.Set(graph.Args{"deployment": strings.Replace(text("dags: [{uid: 10, tenant: u, run: a}]"), "  c:", "  d:", 1)}); err != nil {
		t.Fatal(err)
	}
	r = x.Advance(time.Millisecond)
	if got := marks(r.Out["p1"]) + " " + marks(r.Out["p0"]); got != "-b -b" {
		t.Errorf("without a DAG again: %s", got)
	}
}

// A deployment that is changed again and again in all its tasks is taken or
// refused, and never ends the board.
func TestManyTasksComeAndGo(t *testing.T) {
	text := func(round int) string {
		var b strings.Builder
		b.WriteString("regions: {count: 32, area: 2}\ntasks:\n")
		for i := range maxTasks {
			fmt.Fprintf(&b, "  t%d-%d: {kind: hold, args: {letter: a, time: 400ms}}\n", round, i)
		}
		b.WriteString("tenants: {u: {}}\ndags:\n")
		for i := range 8 {
			b.WriteString(fmt.Sprintf("  - {uid: %d, tenant: u, run: ", i+1))
			for k := range 8 {
				if k > 0 {
					b.WriteString(" -> ")
				}
				fmt.Fprintf(&b, "t%d-%d", round, 8*i+k)
			}
			b.WriteString("}\n")
		}
		b.WriteString("rules:\n")
		for i := range 8 {
			fmt.Fprintf(&b, "  - {match: 'src:10.0.0.%d', dag: %d}\n", i+1, i+1)
		}
		return b.String()
	}
	x := scripted(t, text(0), "monitor", "10ms", "pr-rate", "80G")
	taken, refused := 0, 0
	for i := range 12 {
		x.Advance(12 * time.Millisecond)
		for src := range 8 {
			x.Push("p0", frame(byte(src+1), "00000000-."))
		}
		if err := x.Set(graph.Args{"deployment": text(i + 1)}); err != nil {
			if !strings.Contains(err.Error(), "come and go") {
				t.Fatal(err)
			}
			refused++
			continue
		}
		taken++
	}
	if taken == 0 {
		t.Error("no deployment was taken")
	}
	t.Log(taken, refused)
	x.Advance(10 * time.Second)
}

// TestKeptFrames: frames that a task keeps for a time of its own have no credits, so that more than these come in meanwhile, in both directions. So it is
// with the credits of tasks behind it, whose turn has not come.
func TestKeptFrames(t *testing.T) {
	for _, model := range []string{"latency: 1us", "throughput: 10Gbit", ""} {
		for _, scheduler := range []string{"chain", "panic"} {
			x := scripted(t, strings.ReplaceAll(`
regions: {count: 1, area: 2}
tasks: {a: {kind: hold, args: {letter: a, time: 1ms}, MODEL, credits: 2}, b: {kind: quick, args: {letter: b}, MODEL, credits: 2}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a -> b}]
rules: [{match: all, dag: 1}]
`, "MODEL,", map[bool]string{true: model + ","}[model != ""]), "scheduler", scheduler, "packets", "1024")
			x.Advance(10 * time.Millisecond)
			for i := range 200 {
				x.Push("p0", frame(byte(i%5), fmt.Sprintf("%08d-.", i)))
				x.Push("p1", back(byte(i%5), fmt.Sprintf("%08d-.", i)))
				x.Advance(2 * time.Microsecond)
			}
			r := x.Advance(1200 * time.Microsecond)
			if there, back := len(r.Out["p1"]), len(r.Out["p0"]); there != 200 || back != 200 {
				t.Errorf("%s/%s: %d and %d of 200 have come out", model, scheduler, there, back)
			}
			if err := boardOf(x).runner.sched.Check(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Credits that are deployed anew hold at once, in regions that run.
func TestCreditsChange(t *testing.T) {
	text := func(credits int) string {
		return fmt.Sprintf(`
regions: {count: 1, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, latency: 1ms, credits: %d}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: a}]
rules: [{match: all, dag: 1}]
`, credits)
	}
	x := scripted(t, text(1))
	x.Advance(10 * time.Millisecond)
	for _, credits := range []int{1, 4, 2} {
		if err := x.Set(graph.Args{"deployment": text(credits)}); err != nil {
			t.Fatal(err)
		}
		x.Advance(0)
		var frames [][]byte
		for range 8 {
			frames = append(frames, frame(1, "00000000-."))
		}
		x.Push("p0", frames...)
		if out := x.Advance(1500 * time.Microsecond).Out["p1"]; len(out) != credits {
			t.Errorf("%d credits: %d came out after the time of one", credits, len(out))
		}
		x.Advance(20 * time.Millisecond)
	}
}
