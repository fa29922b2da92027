package graph_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// nest runs the apps of its argument, "NAME=KIND:TAG ...", one after the other,
// two instances of each, which get every other batch. What comes out by another
// output than the first leaves at once.
type nest struct {
	apps []*graph.Inside
	at   [][]graph.App
	turn int
	now  packet.Batch
	next packet.Batch
	gone []uint64
}

func nestKind() graph.Kind {
	return graph.Kind{
		Name: "nest", In: []string{"in"}, Out: []string{"out"}, Params: []graph.Param{{Name: "run"}},
		Inside: func(args graph.Args) (out []graph.InsideSpec, err error) {
			for _, f := range strings.Fields(args["run"]) {
				name, kind, ok := strings.Cut(f, "=")
				if !ok {
					return nil, fmt.Errorf("run=%s: want NAME=KIND", f)
				}
				kind, tag, ok := strings.Cut(kind, ":")
				s := graph.InsideSpec{Name: name, AppSpec: graph.AppSpec{Kind: kind}}
				if ok {
					s.Args = graph.Args{"tag": tag}
				}
				out = append(out, s)
			}
			return out, nil
		},
		New: func(graph.Env, graph.Args) (graph.App, error) { return &nest{}, nil },
	}
}

func (*nest) Takes(graph.Args) bool          { return true }
func (a *nest) Reconfigure(graph.Args) error { return nil }

func (a *nest) Hooks() graph.Hooks { return graph.Hooks{Inside: a.inside} }

func (a *nest) inside(c *graph.Ctx, apps []*graph.Inside) {
	at := make([][]graph.App, len(apps))
	for n, in := range apps {
		if old := slices.Index(a.apps, in); old >= 0 {
			at[n] = a.at[old]
			continue
		}
		for range 2 {
			app, err := in.Make()
			if err != nil {
				panic(err)
			}
			at[n] = append(at[n], app)
		}
	}
	for n, in := range a.apps {
		if !slices.Contains(apps, in) {
			a.empty(c, n)
		}
	}
	a.apps, a.at = apps, at
}

// empty gives up app n: what it held leaves.
func (a *nest) empty(c *graph.Ctx, n int) {
	for _, app := range a.at[n] {
		a.apps[n].Remove(c, app)
		a.apps[n].Remove(c, app) // no more than once
	}
	a.leave(c, n, 0)
}

func (a *nest) leave(c *graph.Ctx, n, from int) {
	for out := from; out < len(a.apps[n].Kind.Out); out++ {
		for a.apps[n].Emitted(out) > 0 {
			a.next.Reset()
			a.apps[n].Take(c, out, &a.next)
			for _, x := range a.next.Bufs() {
				c.Emit(0, x)
			}
		}
	}
}

func (a *nest) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	a.now.Reset()
	for _, x := range b.Bufs() {
		x.Tag = uint64(x.Bytes()[0])
	}
	a.now.Append(b.Bufs())
	a.turn++
	for n, in := range a.apps {
		if len(in.Kind.In) == 0 {
			continue
		}
		in.Push(c, a.at[n][a.turn%2], 0, &a.now)
		in.Gone(func(tag uint64) { a.gone = append(a.gone, tag) })
		a.leave(c, n, 1)
		a.now.Reset()
		in.Take(c, 0, &a.now)
	}
	for _, x := range a.now.Bufs() {
		c.Emit(0, x)
	}
}

func (a *nest) Tick(c *graph.Ctx) clock.Time {
	at := clock.Never
	for n, in := range a.apps {
		in.Woken()
		for _, app := range a.at[n] {
			at = min(at, in.Tick(c, app))
		}
		a.leave(c, n, 0)
	}
	return at
}

func (a *nest) Flush(c *graph.Ctx) {
	for n, in := range a.apps {
		for _, app := range a.at[n] {
			in.Flush(c, app)
		}
	}
}

func (*nest) Held() int { return 0 }
func (a *nest) Stop(c *graph.Ctx) {
	for n := range a.apps {
		a.empty(c, n)
	}
}

const nested = `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {nest: {kind: nest, args: {run: "s=stamp:m f=fork h=hold"}}}
links: [a.out -> nest.in, nest.out -> b.in]
`

// An app inside another is counted, traced and in the books as any other, and
// may come and go while its outer app keeps what it has.
func TestInside(t *testing.T) {
	x := newBench(t, parse(t, nested), 256)
	if err := x.inst.AddTrace("a", 1, ""); err != nil {
		t.Fatal(err)
	}
	x.send("a", "2", "3", "p", "4") // even on, odd out at once, p is punted to nobody
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"3m"}) {
		t.Errorf("%q", got)
	}
	x.conserve()
	if x.count("nest/s", "stamps") != 4 || x.count("nest/f", "no-controller") != 1 || x.count("nest/f", "in") != 4 || x.count("nest", "out") != 4+4+2+1 {
		t.Error(x.inst.Counters())
	}
	app := x.inst.App("nest", 0).(*nest)
	if !slices.Equal(app.gone, []uint64{'p'}) {
		t.Errorf("gone: %v", app.gone)
	}
	if n := x.inst.Held(); n != 2 {
		t.Errorf("%d held", n)
	}
	if r, err := x.inst.Report("nest/s"); err != nil || fmt.Sprint(r) != "[[map[seen:0] map[seen:4]]]" {
		t.Errorf("%v %v", r, err)
	}
	if err := x.inst.Inject("nest/s", "in", 0, []byte("x")); err == nil {
		t.Error("a frame was given to an app inside")
	}
	// One goes with what it holds, one comes, and two stay as they are.
	s := x.inst.App("nest/s", 0)
	if _, err := x.inst.Set("nest", graph.Args{"run": "s=stamp:m f=fork n=stamp:n"}); err != nil {
		t.Fatal(err)
	}
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"2m", "4m"}) {
		t.Errorf("what was held: %q", got)
	}
	if x.inst.App("nest", 0) != app || x.inst.App("nest/s", 0) != s || x.inst.Held() != 0 {
		t.Error("what stayed is not the same")
	}
	x.send("a", "6")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"6mn"}) {
		t.Errorf("%q", got)
	}
	x.conserve()
	tr := x.inst.Trace()
	if len(tr) != 1 {
		t.Fatal(tr)
	}
	if d := cmp.Diff(`packet 1, 1970-01-01T00:00:01.000001Z
  a          +0s       received, 1 bytes
  nest       +0s       in in
  nest/s     +0s       in in
  nest/s     +0s       stamp m
  nest/s     +0s       out out
  nest/f     +0s       in in
  nest/f     +0s       out left
  nest/h     +0s       in in
  nest/h     +0s       out out
  nest       +0s       out out
  b          +0s       transmitted rewritten: nest/s.stamped
`, tr[0].String()); d != "" {
		t.Error(d)
	}
	// Bad arguments change nothing.
	for run, want := range map[string]string{
		"s=stomp":               `app nest: s: unknown kind "stomp" (did you mean "stamp"?)`,
		"s=stamp:xx":            `app nest: s: tag "xx" must be one character`,
		"s=fork:x":              `app nest: s: fork has no argument "tag"`,
		"s":                     "app nest: run=s: want NAME=KIND",
		"s=nest":                "app nest: s: nest runs other apps inside, and cannot run inside one",
		"s=stamp:m s=stamp:m":   `app nest: two apps inside are named "s"`,
		"s=stamp:m b/x=stamp:m": `app nest: an app inside is named "b/x": want letters, digits, _ and -`,
	} {
		if _, err := x.inst.Set("nest", graph.Args{"run": run}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", run, err)
		}
	}
	x.send("a", "8")
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"8mn"}) {
		t.Errorf("%q", got)
	}
	if err := x.inst.Close(); err != nil {
		t.Fatal(err)
	}
	x.conserve()
}

// Instances inside have their timers and are told of what passed unseen; what
// is inside one that goes leaves with it.
func TestInsideTimersAndFlush(t *testing.T) {
	s := newSpring(t, "a", 8)
	s.missEach = 1
	spec := parse(t, strings.Replace(nested, "f=fork h=hold", "b=beat h=hold", 1))
	sink := newSpring(t, "b", 1)
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: kinds(), Ports: map[string][]port.Port{"a": {s}, "b": {sink}}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if _, err := inst.Step(clock.Time(n) * 2e6); err != nil {
			t.Fatal(err)
		}
		if err := inst.Conservation(); err != nil {
			t.Fatal(err)
		}
	}
	made := uint64(0)
	for _, c := range inst.Counters() {
		if c.Node == "nest/b" && c.Name == "generated" {
			made = c.Value
		}
	}
	if made != 4 { // two instances, at 0 and at 4 ms
		t.Errorf("%d frames were made", made)
	}
	if n := inst.App("nest", 0).(*nest).at[0][0].(*stamp).flushed; n != 1 {
		t.Errorf("flushed %d times", n)
	}
	next := inst.Spec()
	next.Apps, next.Links = map[string]graph.AppSpec{}, nil
	p, err := inst.Plan(next)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Apply(p); err != nil {
		t.Fatal(err)
	}
	if err := inst.Conservation(); err != nil || inst.Held() != 0 {
		t.Errorf("%v, %d held", err, inst.Held())
	}
}

// An app asks in a Push for an earlier Tick, also from inside another one.
func TestWake(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {nest: {kind: nest, args: {run: "d=delay"}}, d: {kind: delay}}
links: [a.out -> nest.in, nest.out -> d.in, d.out -> b.in]
`), 256)
	x.step()
	x.send("a", "1")
	x.step()
	if got := x.recv("b"); got != nil || x.inst.NextTick() != x.clk.Now()+5000 {
		t.Errorf("%q, next tick in %v", got, x.inst.NextTick().Sub(x.clk.Now()))
	}
	for range 9 {
		x.step()
	}
	if got := x.recv("b"); got != nil {
		t.Errorf("too early: %q", got)
	}
	x.step()
	x.step()
	if got := x.recv("b"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%q", got)
	}
	if n := x.inst.NextTick(); n != clock.Never {
		t.Errorf("the next tick is at %v", n)
	}
}

func TestInsideNoAllocation(t *testing.T) {
	x := newBench(t, parse(t, nested), 1024)
	var b packet.Batch
	breath := func() {
		for _, f := range [][]byte{{'0'}, {'1'}, {'p'}, {'2'}} {
			p := x.pool.Get()
			p.SetBytes(f)
			b.Add(p)
		}
		if _, err := x.far["a"].Tx(&b); err != nil {
			t.Fatal(err)
		}
		x.step()
	}
	x.inst.App("nest", 0).(*nest).gone = make([]uint64, 0, 4096)
	if n := testing.AllocsPerRun(1000, breath); n != 0 {
		t.Errorf("%v allocations a breath", n)
	}
}

// closer keeps something beyond the process, and would rather have nothing cross
// than anything without it.
func closer() graph.Kind {
	return graph.Kind{Name: "closer", In: []string{"in"}, Out: []string{"out"}, New: func(env graph.Env, _ graph.Args) (graph.App, error) {
		if env.Memory != nil {
			m, err := env.Memory(1)
			if err != nil {
				return nil, err
			}
			m[0]++
		}
		return shut{}, nil
	}}
}

type shut struct{}

func (shut) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}
func (shut) Wants() port.Filter { return port.Filter{RoCE: true, Closed: true} }

// What an app inside needs of the process is there as for others: that nothing
// crosses in its place, and memory of its own.
func TestInsideClosedAndMemory(t *testing.T) {
	ks := append(kinds(), closer())
	pool, err := packet.NewPool(64, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]bool{"a=closer s=stamp:m": true, "s=stamp:m": false} {
		spec := parse(t, strings.Replace(nested, "s=stamp:m f=fork h=hold", run, 1))
		f, err := graph.Wants(spec, ks)
		if err != nil || !f.All || f.Closed != want {
			t.Errorf("run=%s: ports are to be opened for %+v, %v", run, f, err)
		}
		ports := map[string][]port.Port{}
		for n := range spec.Ports {
			near, _ := mem.NewWire(n, n+"-far", pool, 8, clock.NewManual(1))
			ports[n] = []port.Port{near}
		}
		var kept []byte
		inst, err := graph.New(graph.Config{Spec: spec, Kinds: ks, Ports: ports, Memory: func(app string, size int) ([]byte, error) {
			if app != "nest/a" || size != 1 {
				t.Errorf("%s wants %d bytes", app, size)
			}
			if kept == nil {
				kept = make([]byte, 1)
			}
			return kept, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if f := inst.Wants(); !f.All || f.Closed != want {
			t.Errorf("run=%s: the instance wants %+v", run, f)
		}
		if (kept != nil) != want {
			t.Errorf("run=%s: kept %v", run, kept)
		}
		if _, err := inst.Set("nest", graph.Args{"run": "a=closer"}); err != nil {
			t.Fatal(err)
		}
		if f := inst.Wants(); !f.Closed {
			t.Error("an app that came later is not minded")
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	}
}
