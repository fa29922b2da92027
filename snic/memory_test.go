package snic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/kvcache"
)

func memoryKinds() []graph.Kind { return append(peerKinds(), *dummy.Kind(), *kvcache.Kind()) }

// touching is a deployment of two tenants with a task each, with memory and arguments
// of their own.
const touching = `
regions: {count: 2, area: 1}
tasks:
  a: {kind: dummy, memory: %s, args: {touch: "64", memory: %[1]s%s}%s}
  b: {kind: dummy, memory: %s, args: {touch: "64", memory: %[4]s}}
tenants: {alice: {}, bob: {weight: 3}}
dags:
  - {uid: 7, tenant: alice, run: a}
  - {uid: 8, tenant: bob, run: b}
rules:
  - {match: "src:10.0.0.1", dag: 7}
  - {match: "src:10.0.0.2", dag: 8}
`

func onMemory(t testing.TB, deployment string, args ...string) *graphtest.Test {
	a := graph.Args{"deployment": deployment, "memory": "64k", "page": "4k"}
	for i := 0; i < len(args); i += 2 {
		a[args[i]] = args[i+1]
	}
	x := graphtest.NewOuter(t, memoryKinds(), a)
	x.Advance(12 * time.Millisecond)
	return x
}

func viewOf(x *graphtest.Test) View { return x.App().(*board).Report().(View) }

func taskOf(x *graphtest.Test, name string) TaskView {
	v := viewOf(x)
	return v.Tasks[slices.IndexFunc(v.Tasks, func(t TaskView) bool { return t.Task == name })]
}

// flows are frames of n flows from 10.0.0.src.
func flows(src byte, n int) (fs [][]byte) {
	for i := range n {
		f := frame(src, "-")
		f[32], f[33] = byte(i>>8), byte(i) // to another address each
		fs = append(fs, f)
	}
	return fs
}

func check(t *testing.T, x *graphtest.Test) {
	t.Helper()
	if err := x.App().(*board).memory.Check(); err != nil {
		t.Fatal(err)
	}
}

// A task's memory is the board's, its tenant's, and taken when it is accessed.
func TestMemoryOfTasks(t *testing.T) {
	x := onMemory(t, fmt.Sprintf(touching, "16k", "", "", "8k"))
	if v := taskOf(x, "a"); v.Memory == nil || *v.Memory != (TaskMemory{Declared: 16 << 10, Reserved: 16 << 10}) || v.Fault != "" {
		t.Errorf("before the first frame: %+v", v)
	}
	if r := x.Push("p0", flows(1, 500)...); len(r.Out["p1"]) != 500 {
		t.Fatalf("%d frames, %v dropped", len(r.Out["p1"]), r.Dropped)
	}
	x.Push("p1", back(2, "-"))
	a, b := taskOf(x, "a").Memory, taskOf(x, "b").Memory
	if a.Resident != 16<<10 || a.Touched != 4 || b.Resident != 4<<10 {
		t.Errorf("%+v, %+v", a, b)
	}
	v := viewOf(x)
	if m := v.Board.Memory; m.Bytes != 64<<10 || m.Free != 44<<10 || m.Room != 40<<10 || m.Page != 4096 {
		t.Errorf("%+v", m)
	}
	if alice, bob := v.Tenants[0].Memory, v.Tenants[1].Memory; alice.Held != 16<<10 || alice.Share != 16<<10 || bob.Held != 4<<10 {
		t.Errorf("%+v, %+v", alice, bob)
	}
	// A task that both use is of neither; one that goes leaves nothing behind.
	both := strings.Replace(fmt.Sprintf(touching, "16k", "", "", "8k"), "run: b}", "run: a -> b}", 1)
	if err := x.Set(graph.Args{"deployment": both}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	check(t, x)
	if v := viewOf(x); v.Tenants[0].Memory != nil || v.Tenants[1].Memory.Held != 4<<10 || v.Board.Memory.Shared.Held != 16<<10 {
		t.Errorf("%+v, %+v", v.Tenants, v.Board.Memory)
	}
	if a := taskOf(x, "a").Memory; a.Touched != 4 {
		t.Errorf("its memory is another: %+v", a)
	}
	alone := strings.NewReplacer("  a: {kind: dummy, memory: 16k, args: {touch: \"64\", memory: 16k}}\n", "", "  - {uid: 7, tenant: alice, run: a}\n", "", "dag: 7", "road: switch").
		Replace(fmt.Sprintf(touching, "16k", "", "", "8k"))
	if err := x.Set(graph.Args{"deployment": alone}); err != nil {
		t.Fatal(err)
	}
	x.Advance(20 * time.Millisecond)
	check(t, x)
	if v := viewOf(x); v.Board.Memory.Shared.Held != 0 || v.Board.Memory.Free != 60<<10 || len(v.Tasks) != 1 {
		t.Errorf("%+v", v.Board.Memory)
	}
	// Another size is another memory.
	if err := x.Set(graph.Args{"deployment": strings.Replace(alone, "memory: 8k,", "memory: 60k,", 1)}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	check(t, x)
	if b := taskOf(x, "b").Memory; b.Declared != 60<<10 || b.Reserved != 8<<10 || b.Touched != 0 {
		t.Errorf("%+v", b)
	}
}

// What has no room is refused, and what runs stays; with a promise it may be more.
func TestMemoryRefused(t *testing.T) {
	build := func(args graph.Args) error {
		s, err := parseArgs(args)
		if err == nil {
			_, err = newBoard(s)
		}
		return err
	}
	big := fmt.Sprintf(touching, "48k", "", "", "20k")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"want 17 pages of memory more (memory: of a task), and there is room for 16", []string{"memory", "64k", "page", "4k"}},
		{"", []string{"memory", "64k", "page", "4k", "memory-promise", "4k"}},
		{"", []string{"memory", "68k", "page", "4k"}},
		{"", nil},
		{"page=12288: want a power of two", []string{"memory", "64k", "page", "12k"}},
		{"memory=65540: want whole pages", []string{"memory", "65540", "page", "4k"}},
		{"want a number from", []string{"page", "1k"}},
	} {
		a := graph.Args{"deployment": big}
		for i := 0; i < len(c.args); i += 2 {
			a[c.args[i]] = c.args[i+1]
		}
		err := build(a)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	x := onMemory(t, fmt.Sprintf(touching, "48k", "", "", "16k"))
	x.Push("p0", flows(1, 500)...)
	for text, fits := range map[string]bool{big: false, fmt.Sprintf(touching, "16k", "", "", "48k"): true, fmt.Sprintf(touching, "48k", "", "", "16k"): true} {
		err := x.Set(graph.Args{"deployment": text})
		x.Advance(time.Millisecond)
		check(t, x)
		if r := x.Push("p0", flows(1, 10)...); (err == nil) != fits || len(r.Out["p1"]) != 10 || taskOf(x, "a").Fault != "" {
			t.Errorf("%v, %v, %s", err, r.Dropped, taskOf(x, "a").Fault)
		}
	}
	if err := x.Set(graph.Args{"memory": "128k"}); err != nil {
		t.Error("another board with more memory:", err)
	}
}

// A task that accesses what is not its own is stopped, and no other: its packets are dropped, or
// pass; what the others get stays the same. It starts anew when it is told to.
func TestFaultStopsATask(t *testing.T) {
	for _, c := range []struct{ task, reason string }{{"", "task-faulted"}, {", fault: pass", ""}, {", throughput: 40Gbit", "task-faulted"}, {", latency: 2us, fault: pass", ""}} {
		text := fmt.Sprintf(touching, "16k", ", stray: \"40\"", c.task, "8k")
		x := onMemory(t, text)
		push := func(src byte, n int) (through int, why map[string]int) {
			r := x.Push("p0", flows(src, n)...)
			more := x.Advance(100 * time.Microsecond)
			why = map[string]int{}
			for _, f := range append(r.Dropped, more.Dropped...) {
				why[f.Reason]++
			}
			return len(r.Out["p1"]) + len(more.Out["p1"]), why
		}
		if n, why := push(1, 39); n != 39 || len(why) != 0 {
			t.Fatalf("%s: %d, %v", c.task, n, why)
		}
		// The 40th strays, and is the last that it gets.
		n, why := push(1, 1)
		if n != 0 || why["fault"] != 1 {
			t.Fatalf("%s: %d, %v", c.task, n, why)
		}
		check(t, x)
		n, why = push(1, 200)
		if want := 0; c.reason == "" {
			want = 200
			if n != want || len(why) != 0 {
				t.Errorf("%s: %d, %v", c.task, n, why)
			}
		} else if n != want || why[c.reason] != 200 {
			t.Errorf("%s: %d, %v", c.task, n, why)
		}
		if v := taskOf(x, "a"); v.Fault != "read at 0x4000000000000000: nothing is reserved there" || v.Memory != nil || taskOf(x, "b").Fault != "" {
			t.Errorf("%s: %+v", c.task, v)
		}
		if n, why := push(2, 100); n != 100 {
			t.Errorf("%s: the other: %d, %v", c.task, n, why)
		}
		if m := viewOf(x).Board.Memory; m.Free != 56<<10 || m.Room != 56<<10 {
			t.Errorf("%s: what it had: %+v", c.task, m)
		}
		// The deployment of others does not start it, nor what is refused.
		if err := x.Set(graph.Args{"deployment": strings.Replace(text, "bob: {weight: 3}", "bob: {}", 1)}); err != nil {
			t.Fatal(err)
		}
		if n, _ = push(1, 1); taskOf(x, "a").Fault == "" {
			t.Errorf("%s: started by another's deployment, %d", c.task, n)
		}
		again := strings.Replace(text, "a: {kind", "a: {restart: 1, kind", 1)
		if err := x.Set(graph.Args{"deployment": again}); err != nil {
			t.Fatal(err)
		}
		x.Advance(time.Millisecond)
		if n, why := push(1, 39); n != 39 || taskOf(x, "a").Fault != "" || taskOf(x, "a").Memory.Touched == 0 {
			t.Errorf("%s: started anew: %d, %v, %+v", c.task, n, why, taskOf(x, "a"))
		}
		check(t, x)
	}
}

// Shares: what a tenant gets does not change when another's task stops.
func TestFaultLeavesShares(t *testing.T) {
	// Both share a port of 8 Gbit/s.
	text := strings.Replace(fmt.Sprintf(touching, "16k", ", stray: \"12000\"", "", "8k"), "bob: {weight: 3}", "bob: {}", 1)
	x := graphtest.NewOuter(t, memoryKinds(), graph.Args{"deployment": text, "memory": "64k", "page": "4k", "burst": "8k", "port-rate": "8G"})
	x.Advance(20 * time.Millisecond)
	loads := []offer{{src: 1, mbit: 12000, burst: 1}, {src: 2, mbit: 4000, burst: 1}}
	before := serve(x, 10*time.Millisecond, loads...)
	if taskOf(x, "a").Fault != "" {
		t.Fatal("too early")
	}
	for i := 0; i < 1000 && taskOf(x, "a").Fault == ""; i++ {
		x.Push("p0", flows(1, 60)...)
		x.Advance(100 * time.Microsecond)
	}
	if taskOf(x, "a").Fault == "" {
		t.Fatal("no fault")
	}
	after := serve(x, 10*time.Millisecond, loads...)
	t.Logf("bob %.0f, then %.0f; alice %.0f, then %.0f Mbit/s", before[2].mbit, after[2].mbit, before[1].mbit, after[1].mbit)
	if b, a := before[2].mbit, after[2].mbit; b < 3800 || a < 3800 || after[1].mbit != 0 || before[1].mbit < 3500 {
		t.Error("bob has less than his share, or alice more than hers")
	}
}

// A task whose arguments do not go with its memory does not run, and says why.
func TestMemoryNotEnough(t *testing.T) {
	x := onMemory(t, strings.Replace(fmt.Sprintf(touching, "16k", "", "", "8k"), "memory: 16k}", "memory: 20k}", 1))
	if r := x.Push("p0", flows(1, 5)...); len(r.Dropped) != 5 || r.Dropped[0].Reason != "task-faulted" {
		t.Error(r)
	}
	if v := taskOf(x, "a"); v.Fault != "dummy: memory=20480: it is given 16384 bytes (memory: of the task)" || v.Memory != nil {
		t.Errorf("%+v", v)
	}
	check(t, x)
}

// Memory costs no allocation.
func TestMemoryNoAllocation(t *testing.T) {
	l := graphtest.NewOuterLoop(t, memoryKinds(), graph.Args{"deployment": fmt.Sprintf(touching, "16k", "", "", "8k"), "memory": "64k", "page": "4k", "packets": "256", "flows": "256"},
		"p0", append(flows(1, 10), flows(2, 10)...)...)
	l.Wait(12 * time.Millisecond)
	for range 1000 {
		l.Breath()
	}
	if n := testing.AllocsPerRun(500, l.Breath); n != 0 {
		t.Errorf("%v allocations a breath", n)
	}
}
