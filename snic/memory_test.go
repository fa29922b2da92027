package snic

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/resident"
	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/memory"
	"github.com/quillon/quillon/snic/vmem"
)

func memoryKinds() []graph.Kind { return append(peerKinds(), *dummy.Kind(), *kvcache.Kind()) }

// build makes a board.
func build(args graph.Args) error {
	s, err := newLibrary(declared()).parseArgs(args)
	if err == nil {
		_, err = newBoard(s)
	}
	return err
}

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
	// More of it, and the task goes on; with less it starts anew.
	running := func() *task { return &x.App().(*board).cat.tasks[x.App().(*board).cat.taskOf[0]] }
	for _, c := range []struct {
		declared string
		goesOn   bool
	}{{"9k", true}, {"12k", true}, {"60k", true}, {"56k", false}} {
		was := running().app
		if err := x.Set(graph.Args{"deployment": strings.Replace(alone, "memory: 8k,", "memory: "+c.declared+",", 1)}); err != nil {
			t.Fatal(err)
		}
		x.Advance(time.Millisecond)
		check(t, x)
		m := taskOf(x, "b").Memory
		if m.Reserved != 8<<10 || (m.Touched == 1) != c.goesOn || (running().app == was) != c.goesOn || running().space.Size() != (m.Declared+4095)/4096*4096 {
			t.Errorf("%s: %+v, %d bytes", c.declared, m, running().space.Size())
		}
	}
	if err := running().space.Reserve(8<<10, 48<<10, memory.Read); err != nil {
		t.Error(err)
	}
	if err := x.Set(graph.Args{"deployment": strings.Replace(alone, "memory: 8k,", "memory: 65k,", 1)}); err == nil || !strings.Contains(err.Error(), "there is room for") {
		t.Error(err)
	}
}

// A cache whose memory: grows goes on, with room for more.
func TestMemoryGrows(t *testing.T) {
	text := func(memory string) string {
		return strings.Replace(fmt.Sprintf(touching, "16k", "", "", "8k"), "tenants:", "  c: {kind: kvcache, memory: "+memory+"}\ntenants:", 1)
	}
	x := onMemory(t, text("8k"))
	app := func() graph.App { return x.App().(*board).cat.tasks[x.App().(*board).cat.taskOf[2]].app }
	was := app()
	if err := x.Set(graph.Args{"deployment": text("12k")}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	check(t, x)
	if c := taskOf(x, "c").Memory; c.Reserved != 12<<10 || app() != was {
		t.Errorf("%+v", c)
	}
}

// What has no room is refused, and what runs stays; with a promise it may be more.
func TestMemoryRefused(t *testing.T) {
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

// What cannot use memory takes none, whatever it declares.
func TestMemoryOfNobody(t *testing.T) {
	text := strings.Replace(fmt.Sprintf(touching, "48k", "", "", "16k"), "tenants:", "  fw: {kind: firewall, memory: 1G, args: {default: allow}}\n  idle: {kind: dummy, memory: 32k}\ntenants:", 1)
	x := onMemory(t, text)
	if m := viewOf(x).Board.Memory; m.Room != 0 || taskOf(x, "a").Memory == nil || taskOf(x, "fw").Memory != nil || taskOf(x, "idle").Memory != nil {
		t.Errorf("%+v", m)
	}
	if err := x.Set(graph.Args{"deployment": strings.Replace(text, "memory: 32k}", "memory: 64k}", 1)}); err != nil {
		t.Error(err)
	}
	if err := x.Set(graph.Args{"deployment": strings.Replace(text, "memory: 32k}", "memory: 4k, args: {touch: \"64\", memory: 4k}}", 1)}); err == nil {
		t.Error("a task that uses memory has none to use")
	}
	x.Advance(time.Millisecond)
	check(t, x)
}

// What a task declares is its own, though it has reserved less: nobody else gets it, so that the task can start anew.
func TestMemoryDeclared(t *testing.T) {
	text := strings.Replace(fmt.Sprintf(touching, "48k", "", "", "4k"), "memory: 48k}}", "memory: 8k}}", 1)
	x := onMemory(t, text)
	if a := taskOf(x, "a").Memory; a.Declared != 48<<10 || a.Reserved != 8<<10 {
		t.Fatalf("%+v", a)
	}
	for size, fits := range map[string]bool{"16k": false, "12k": true} {
		more := strings.Replace(text, "tenants:", "  c: {kind: dummy, memory: "+size+", args: {touch: \"64\", memory: 4k}}\ntenants:", 1)
		if err := x.Set(graph.Args{"deployment": more}); (err == nil) != fits {
			t.Errorf("%s more: %v", size, err)
		}
		x.Advance(time.Millisecond)
		for i := range 3 {
			again := text
			if fits {
				again = more
			}
			again = strings.Replace(again, "a: {kind", fmt.Sprintf("a: {restart: %d, kind", i+1), 1)
			if err := x.Set(graph.Args{"deployment": again}); err != nil {
				t.Errorf("with %s of another, started anew: %v", size, err)
			}
			x.Advance(time.Millisecond)
		}
		if err := x.Set(graph.Args{"deployment": text}); err != nil {
			t.Error(err)
		}
		x.Advance(time.Millisecond)
		check(t, x)
	}
}

// More memory than the machine has is refused in one line, at the start and later; what it has is taken
// when it is used.
func TestMemoryOfTheMachine(t *testing.T) {
	has := resident.May()
	if has < 1<<30 {
		t.Skipf("this machine has %d bytes", has)
	}
	text := fmt.Sprintf(touching, "64M", "", "", "64M")
	for memory, workers := range map[int64]int{1 << 40: 1, (has>>21 + 1) << 21: 1, (has/4>>21 + 1) << 21: 4} {
		s, err := newLibrary(declared()).parseArgs(graph.Args{"deployment": text, "memory": fmt.Sprint(memory)})
		if err != nil {
			t.Fatal(err)
		}
		s.workers = workers
		if _, err := newBoard(s); err == nil || !strings.Contains(err.Error(), "this machine has") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%d bytes for %d workers of %d: %v", memory, workers, has, err)
		}
	}
	if _, err := newRAM(1 << 60); err == nil {
		t.Error("an address space that is not there")
	}
	before := processMemory()
	var heap [2]runtime.MemStats
	runtime.ReadMemStats(&heap[0])
	x := onMemory(t, text, "memory", "512M", "page", "2M")
	runtime.ReadMemStats(&heap[1])
	m := viewOf(x).Board.Memory
	if n := heap[1].TotalAlloc - heap[0].TotalAlloc; m.Bytes != 512<<20 || m.Used != 0 || m.Process == 0 || m.Process-before > 256<<20 || n > 256<<20 {
		t.Errorf("%d bytes before, %d of Go's since; %+v", before, n, m)
	}
	x.Push("p0", flows(1, 100)...)
	if m := viewOf(x).Board.Memory; m.Used < 10<<20 || m.Used > 64<<20 {
		t.Errorf("%+v", m)
	}
	if err := x.Set(graph.Args{"memory": "1000G"}); err == nil || !strings.Contains(err.Error(), "this machine has") {
		t.Error(err)
	}
	if r := x.Push("p0", flows(1, 100)...); len(r.Out["p1"]) != 100 {
		t.Error("what runs does not go on:", r.Dropped)
	}
	check(t, x)
}

// TestBoardsOfTheMachine: what counts is what all boards of an instance have, at the start and later.
func TestBoardsOfTheMachine(t *testing.T) {
	has := resident.May()
	if has < 1<<30 {
		t.Skipf("this machine has %d bytes", has)
	}
	spec := func(a, b int64) *graph.Spec {
		s := &graph.Spec{Apps: map[string]graph.AppSpec{}}
		for name, percent := range map[string]int64{"a": a, "b": b} {
			s.Apps[name] = graph.AppSpec{Kind: "snic", Args: graph.Args{"deployment": "regions: {count: 1, area: 2}", "memory": fmt.Sprint(has / 100 * percent >> 21 << 21)}}
		}
		s.Apps["other"] = graph.AppSpec{Kind: "mark", Args: graph.Args{"letter": "x"}}
		return s
	}
	make := func(s *graph.Spec) (*graph.Instance, error) {
		return graph.New(graph.Config{Spec: s, Kinds: memoryKinds()})
	}
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "memory= of the boards a, b together is ") || !strings.Contains(err.Error(), "this machine has") || strings.Contains(err.Error(), "\n") {
			t.Error(err)
		}
	}
	_, err := make(spec(60, 60))
	refused(err)
	x, err := make(spec(60, 30))
	if err != nil {
		t.Fatal(err)
	}
	memory := func(percent int64) graph.Args { return graph.Args{"memory": spec(percent, 0).Apps["a"].Args["memory"]} }
	_, err = x.Set("b", memory(50))
	refused(err)
	for _, c := range []struct {
		app     string
		percent int64
	}{{"a", 40}, {"b", 50}, {"a", 45}} { // another board takes the place of one: they do not count twice
		if _, err := x.Set(c.app, memory(c.percent)); err != nil {
			t.Error(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// A page that another tenant had is cleared a little in each breath, and nobody has it before that is done.
func TestMemoryScrubbed(t *testing.T) {
	x := onMemory(t, fmt.Sprintf(touching, "3M", "", "", "1M"), "memory", "4M", "page", "1M")
	for range 5 {
		x.Push("p0", flows(1, 1000)...)
	}
	if a := taskOf(x, "a").Memory; a.Resident != 3<<20 {
		t.Fatalf("%+v", a)
	}
	if err := x.Set(graph.Args{"deployment": strings.Replace(fmt.Sprintf(touching, "1M", "", "", "3M"), `memory: 3M}`, `memory: 3M, hold: "2000"}`, 1)}); err != nil {
		t.Fatal(err)
	}
	x.Advance(0) // the deployment is put in force
	n := 0
	for _, f := range flows(2, 300) {
		n += len(x.Push("p0", f).Out["p1"])
	}
	if b := taskOf(x, "b").Memory; b.Resident != 1<<20 || n == 0 || n > 150 {
		t.Fatalf("%+v, %d frames: with the page that nobody had", b, n)
	}
	last, breaths := int64(1<<20), 0
	for ; last < 3<<20; breaths++ {
		at := x.Inst.NextTick()
		x.Clock.Set(at)
		if _, err := x.Inst.Step(at); err != nil {
			t.Fatal(err)
		}
		check(t, x)
		if breaths > 100 {
			t.Fatal("they do not come")
		}
		if b := taskOf(x, "b").Memory; b.Resident != last {
			if want := int(b.Resident>>20-1) << 20 / scrubSlice; breaths < want-2 {
				t.Errorf("%d pages after %d breaths: more than %d bytes in one", b.Resident>>20, breaths, scrubSlice)
			}
			last = b.Resident
		}
	}
	r := x.Advance(time.Millisecond)
	if n += len(r.Out["p1"]); n != 300 {
		t.Errorf("%d frames of 300, %v", n, r.Dropped[:min(3, len(r.Dropped))])
	}
	m := x.App().(*board).memory
	page, ones := make([]byte, 1<<20), 0
	for va := uint64(0); va < 3<<20; va += 1 << 20 {
		if _, st := m.Read(slices.IndexFunc(x.App().(*board).cat.tasks, func(t task) bool { return t.Name == "b" }), va, page); st != vmem.OK {
			t.Fatal(st)
		}
		for _, v := range page {
			ones += int(v)
		}
	}
	if ones != 64*300 {
		t.Errorf("%d, want %d: it has what another left", ones, 64*300)
	}
	if some, _ := m.Dirty(); some {
		x.Advance(time.Millisecond)
	}
	if some, _ := m.Dirty(); some {
		t.Error("there is more to clear")
	}
}

// What a tenant has of the board weighs by its mean: one that sends in bursts has as much of the memory as one
// that sends as much evenly. With fair=off nothing of it is left.
func TestMemoryWeighed(t *testing.T) {
	x := onMemory(t, strings.Replace(fmt.Sprintf(touching, "16k", "", "", "8k"), "{weight: 3}", "{}", 1), "port-rate", "8G", "burst", "64k")
	m := x.App().(*board).memory
	size := len(frameLong(1, "00000000-."+strings.Repeat(".", 900)))
	one := func(src byte, n int) (fs [][]byte) {
		for range n {
			fs = append(fs, frameLong(src, "00000000-."+strings.Repeat(".", 900)))
		}
		return fs
	}
	// 8 Gbit/s are 20 kB an epoch: a fifth of it is 4 frames, in each epoch or all in one of five.
	want := float64(4*size) / 20000
	x.Push("p0", flows(1, 500)...) // all of its memory, a quarter of the board's: that is not what weighs
	least, most := [3]float64{1: 1, 2: 1}, [3]float64{}
	for i := range 2000 {
		x.Push("p0", one(1, 4)...)
		if i%5 == 2 {
			x.Push("p0", one(2, 20)...)
		}
		x.Advance(20 * time.Microsecond)
		for o := 1; o < 3 && i > 1200; o++ {
			least[o], most[o] = min(least[o], m.others[o].mean), max(most[o], m.others[o].mean)
		}
	}
	for o := 1; o < 3; o++ {
		if least[o] < .75*want || most[o] > 1.25*want {
			t.Errorf("%s has %.3f to %.3f, want %.3f", m.owners[o], least[o], most[o], want)
		}
	}
	// Who sends nothing more for a monitor period is at 1/e of what was.
	was := m.others[1].mean
	for end := x.Clock.Now().Add(x.App().(*board).monitor); x.Clock.Now() < end; {
		x.Advance(20 * time.Microsecond)
	}
	if left := m.others[1].mean / was; left < .3 || left > .43 {
		t.Errorf("%.3f of the mean is left after a monitor period, want %.3f", left, 1/math.E)
	}
	if err := x.Set(graph.Args{"fair": "off"}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	for o := range m.others {
		if m.others[o] != (other{}) || m.Share(o) != 0 {
			t.Errorf("%s: %+v, share %g after fair=off", m.owners[o], m.others[o], m.Share(o))
		}
	}
	if v := viewOf(x).Tenants[0].Memory; v.Held == 0 || v.Share != 0 {
		t.Errorf("%+v", v)
	}
	if err := x.Set(graph.Args{"fair": "on"}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		x.Push("p0", one(1, 4)...)
		x.Advance(20 * time.Microsecond)
	}
	if v := viewOf(x).Tenants[0].Memory; m.others[1].mean <= 0 || m.others[1].mean > want || v.Share == 0 {
		t.Errorf("%+v, %+v after fair=on", m.others[1], v)
	}
}

// Memory is one of the resources that are shared: who has most of it has less of a port that is full.
func TestMemoryIsShared(t *testing.T) {
	text := strings.Replace(fmt.Sprintf(touching, "60k", "", "", "4k"), "{weight: 3}", "{}", 1)
	for _, c := range []struct {
		touch      bool
		alice, bob float64
	}{{true, 3100, 4900}, {false, 4000, 4000}} {
		x := onMemory(t, text, "port-rate", "8G", "burst", "8k")
		src := byte(1)
		for i := 0; c.touch && i < 40; i++ { // pages of alice's
			x.Push("p0", flows(src, 50)...)
			x.Advance(20 * time.Microsecond)
			if i == 20 {
				x.Push("p0", flows(src, 2000)...)
			}
		}
		if !c.touch {
			if err := x.Set(graph.Args{"deployment": strings.ReplaceAll(text, "60k", "4k")}); err != nil {
				t.Fatal(err)
			}
			x.Advance(12 * time.Millisecond)
		}
		got := serve(x, 20*time.Millisecond, offer{src: 1, mbit: 4800, burst: 1}, offer{src: 2, mbit: 9000, burst: 1})
		held := viewOf(x).Tenants[0].Memory.Held
		t.Logf("alice holds %d bytes: %.0f and %.0f Mbit/s", held, got[1].mbit, got[2].mbit)
		if c.touch != (held == 60<<10) || math.Abs(got[1].mbit-c.alice) > 250 || math.Abs(got[2].mbit-c.bob) > 250 {
			t.Errorf("alice, who holds %d bytes, has %.0f Mbit/s, want %.0f; bob %.0f, want %.0f", held, got[1].mbit, c.alice, got[2].mbit, c.bob)
		}
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
