package snic

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// bomb keeps keep frames, sends on what is more, and panics at frame number at, or where it is told to. It has a frame of its
// own, and a copy, in hand then. With twice it drops a frame a second time instead.
type bomb struct {
	at, keep, seen int
	where          string
	q              []*packet.Buf
	ins            []int
}

func (m *bomb) bang(where string) {
	if m.where == where {
		panic("bang in " + where)
	}
}

func (m *bomb) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if m.seen++; m.seen == m.at {
			switch m.where {
			case "push":
				c.Get()
				c.Copy(x)
				m.q[1000].Put()
			case "twice":
				c.Drop(x, 0)
				c.Drop(x, 0)
			}
		}
		m.q, m.ins = append(m.q, x), append(m.ins, in)
		if len(m.q) > m.keep {
			c.Emit(1-m.ins[0], m.q[0])
			m.q, m.ins = m.q[1:], m.ins[1:]
		}
	}
}

func (m *bomb) Tick(c *graph.Ctx) clock.Time {
	if m.seen >= m.at {
		m.bang("tick")
	}
	return c.Now().Add(100 * time.Microsecond)
}

func (m *bomb) Held() int {
	if m.seen >= m.at {
		m.bang("held")
	}
	return len(m.q)
}

func (m *bomb) Stop(c *graph.Ctx) {
	m.bang("stop")
	for i, x := range m.q {
		c.Emit(1-m.ins[i], x)
	}
	m.q = nil
}

func (m *bomb) Report() any { m.bang("report"); return m.seen }

func (m *bomb) Save(w io.Writer) error { m.bang("save"); return nil }
func (m *bomb) Load(r io.Reader) error {
	m.bang("load")
	_, err := io.ReadAll(r)
	return err
}

func bombs() []graph.Kind {
	two := []string{"a", "b"}
	return append(kinds(), graph.Kind{Name: "bomb", In: two, Out: two, Params: []graph.Param{{Name: "at"}, {Name: "keep"}, {Name: "where"}, {Name: "note"}},
		Reasons: []counter.Def{{Name: "bang"}},
		New: func(_ graph.Env, a graph.Args) (graph.App, error) {
			m := &bomb{where: a["where"]}
			m.bang("new")
			_, err := fmt.Sscan(a["at"]+" "+a["keep"], &m.at, &m.keep)
			return m, err
		}},
		graph.Kind{Name: "dud", In: two, Out: two, Params: []graph.Param{{Name: "at"}, {Name: "keep"}, {Name: "where"}}, Reasons: []counter.Def{{Name: "bang"}},
			New: func(_ graph.Env, a graph.Args) (graph.App, error) {
				m := &dud{bomb{where: a["where"]}}
				_, err := fmt.Sscan(a["at"]+" "+a["keep"], &m.m.at, &m.m.keep)
				return m, err
			}})
}

// dud is bomb that keeps nothing, so that it gets batches.
type dud struct{ m bomb }

func (d *dud) Push(c *graph.Ctx, in int, b *packet.Batch) { d.m.Push(c, in, b) }

func bombed(bomb string) string {
	return `
regions: {count: 4, area: 3}
tasks:
  a: {kind: mark, args: {letter: a}}
  b: ` + bomb + `
  c: {kind: mark, args: {letter: c}}
  d: {kind: hold, args: {letter: d}}
tenants: {alice: {}, bob: {}}
dags:
  - {uid: 7, tenant: alice, run: a -> b -> c}
  - {uid: 8, tenant: bob, run: a -> d -> c}
rules: [{match: "src:10.0.0.1", dag: 7}, {match: "src:10.0.0.2", dag: 8}]
`
}

// neighbours sends frames of both tenants, and reports how many of alice's came out; bob must have all of his.
func neighbours(t testing.TB, x *graphtest.Test, n int, port string) (out int, dropped map[string]int) {
	t.Helper()
	var frames [][]byte
	for range n {
		if port == "p1" {
			frames = append(frames, back(1, "-"), back(2, "+"))
		} else {
			frames = append(frames, frame(1, "-"), frame(2, "+"))
		}
	}
	dropped = map[string]int{}
	bobs := 0
	take := func(r graphtest.Result) {
		for _, frames := range r.Out {
			for _, f := range frames {
				if f.Bytes[payload] == '+' {
					bobs++
				} else {
					out++
				}
			}
		}
		for _, f := range r.Dropped {
			dropped[f.Reason]++
		}
	}
	take(x.Push(port, frames...))
	take(x.Advance(5 * time.Millisecond))
	if err := x.Inst.Conservation(); err != nil {
		t.Fatal(err)
	}
	if used, held := x.Pool.InUse(), x.Inst.Held(); used != held {
		t.Fatalf("%d buffers are in use and %d are held", used, held)
	}
	if bobs != n {
		t.Fatalf("%d of %d frames of another tenant came out", bobs, n)
	}
	return out, dropped
}

// A task that panics ends alone: what it had is dropped and counted, other tenants lose nothing, and it starts again.
func TestPanic(t *testing.T) {
	for _, c := range []struct {
		where    string
		port     string
		model    string
		at, keep int
		out      int // of 32, before it panics
		dropped  int // that it had, with those that it made
		later    int // dropped as they came to it
	}{
		{"push", "p0", "kind: dud, ", 20, 0, 19, 15, 0},                            // a batch: 13 were not emitted, and 2 were made
		{"push", "p1", "kind: dud, ", 20, 0, 19, 15, 0},                            // on the way back
		{"twice", "p0", "kind: dud, ", 20, 0, 19, 12, 0},                           // and one is dropped by itself
		{"push", "p0", "kind: dud, fault: pass, ", 20, 0, 19, 15, 0},               // and is passed by afterwards
		{"push", "p0", "kind: bomb, ", 20, 5, 14, 8, 12},                           // one by one: 5 were kept, one was pushed, and 2 were made
		{"push", "p1", "kind: bomb, throughput: 1Gbit, ", 20, 5, 14, 8, 12},        // some wait for it
		{"twice", "p0", "kind: bomb, ", 20, 5, 14, 5, 12},                          // and one is dropped by itself
		{"tick", "p0", "kind: bomb, ", 3, 7, 25, 7, 0},                             // by its timer
		{"held", "p0", "kind: bomb, ", 3, 7, 25, 7, 0},                             // as somebody asks
		{"push", "p1", "kind: bomb, latency: 10us, fault: pass, ", 3, 1, 25, 9, 0}, // a batch; those that wait for it pass it by
	} {
		t.Run(fmt.Sprint(c.where, c.port, c.model), func(t *testing.T) {
			pass := strings.Contains(c.model, "pass")
			text := func(restart int, where string) string {
				return bombed(fmt.Sprintf("{%srestart: %d, args: {where: %s, at: %d, keep: %d}}", c.model, restart, where, c.at, c.keep))
			}
			x := graphtest.NewOuter(t, bombs(), graph.Args{"deployment": text(0, c.where)})
			x.Advance(30 * time.Millisecond)
			out, dropped := neighbours(t, x, 32, c.port)
			if c.where == "held" {
				for _, f := range x.Advance(time.Millisecond).Dropped {
					dropped[f.Reason]++
				}
			}
			if out != c.out || dropped["panicked"] != c.dropped || dropped["task-faulted"] != c.later {
				t.Errorf("%d came out and %v were dropped, want %d, %d that it had, and %d later", out, dropped, c.out, c.dropped, c.later)
			}
			v := viewOf(x)
			if f := v.Tasks[1].Fault; !strings.HasPrefix(f, "it panicked: ") || !strings.Contains(f, ".go:") || !strings.Contains(f, fmt.Sprintf("held: %d", c.dropped)) {
				t.Errorf("its fault is %q", f)
			}
			if f := x.Inst.Faults(); len(f) != 1 || f[0].App != "app/b" || f[0].Frames != c.dropped {
				t.Errorf("what is told: %v", f)
			}
			if s := v.DAGs[0].State; (s == "stopped") == pass || v.DAGs[1].State != "ready" {
				t.Errorf("DAGs are %s and %s", s, v.DAGs[1].State)
			}
			out, dropped = neighbours(t, x, 10, c.port)
			if pass && (out != 10 || len(dropped) > 0) || !pass && (out != 0 || dropped["task-faulted"] != 10) {
				t.Errorf("afterwards %d came out, and %v were dropped", out, dropped)
			}
			if err := x.Set(graph.Args{"deployment": text(1, c.where)}); err != nil {
				t.Fatal(err)
			}
			x.Advance(30 * time.Millisecond)
			if f := viewOf(x).Tasks[1].Fault; f != "" {
				t.Errorf("started again it has a fault: %s", f)
			}
			if out, dropped = neighbours(t, x, c.at-1, c.port); out != max(c.at-1-c.keep, 0) || len(dropped) > 0 {
				t.Errorf("started again %d came out, and %v were dropped", out, dropped)
			}
		})
	}
}

// Code that is called seldom: at a change, a question, or a move.
func TestPanicSeldom(t *testing.T) {
	text := func(where, note string) string {
		return bombed("{kind: bomb, args: {where: " + where + ", at: 1000, keep: 3, note: " + note + "}}")
	}
	for where, halts := range map[string]bool{"stop": false, "save": false, "load": true, "report": true, "new": false} {
		t.Run(where, func(t *testing.T) {
			first := where
			if where == "new" {
				first = "none"
			}
			x := graphtest.NewOuter(t, bombs(), graph.Args{"deployment": text(first, "a")})
			x.Advance(30 * time.Millisecond)
			if out, dropped := neighbours(t, x, 8, "p0"); out != 5 || len(dropped) > 0 {
				t.Fatalf("%d came out, %v", out, dropped)
			}
			var err error
			switch where {
			case "report":
				x.Inst.Report("app/b")
			default:
				err = x.Set(graph.Args{"deployment": text(where, "b")})
			}
			if (err != nil) != (where == "new") {
				t.Errorf("the change: %v", err)
			}
			if where == "new" && !strings.Contains(fmt.Sprint(err), "panicked") {
				t.Errorf("the change: %v", err)
			}
			x.Advance(time.Millisecond)
			if f := viewOf(x).Tasks[1].Fault; (f != "") != halts {
				t.Errorf("its fault is %q", f)
			}
			out, dropped := neighbours(t, x, 8, "p0")
			if halts != (dropped["task-faulted"] == 8) || !halts && out == 0 {
				t.Errorf("afterwards %d came out, and %v were dropped", out, dropped)
			}
		})
	}
}

// parrot keeps each frame for a while, and sends it back.
type parrot struct{ bomb }

func (p *parrot) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		p.q, p.ins = append(p.q, x), append(p.ins, in)
	}
}

func (p *parrot) Tick(c *graph.Ctx) clock.Time {
	for i, x := range p.q {
		c.Emit(p.ins[i], x)
	}
	p.q, p.ins = nil, nil
	return c.Now().Add(100 * time.Microsecond)
}

// An answer is made of a copy of headers, and the frame that its payload is to come from went with a task beside it that panicked:
// there is no answer then, and all else goes on.
func TestPanicBesideAnswer(t *testing.T) {
	two := []string{"a", "b"}
	own := append(bombs(), graph.Kind{Name: "parrot", In: two, Out: two,
		New: func(graph.Env, graph.Args) (graph.App, error) { return &parrot{}, nil }})
	for at, want := range map[int]string{
		1: "0 answers, 3 task-faulted", // the answer to the first frame; the second one, which comes to a task that has been stopped, and its answer
		9: "2 answers, 0 task-faulted",
	} {
		x := graphtest.NewOuter(t, own, graph.Args{"parallel": "on", "deployment": fmt.Sprintf(`
regions: {count: 4, area: 3}
tasks:
  look: {kind: dud, latency: 20us, args: {where: push, at: %d, keep: 0}, reads: [length], writes: []}
  say: {kind: parrot, reads: [ethernet], writes: [], answers: true}
tenants: {alice: {}}
dags: [{uid: 7, tenant: alice, run: look -> say}]
rules: [{match: "src:10.0.0.1", dag: 7}]`, at)})
		x.Advance(30 * time.Millisecond)
		answers, faulted := 0, 0
		for range 2 {
			x.Push("p0", frame(1, "-"))
			r := x.Advance(5 * time.Millisecond)
			for _, f := range r.Out["p0"] {
				if bytes.Equal(f.Bytes, frame(1, "-")) {
					answers++
				}
			}
			for _, f := range r.Dropped {
				if f.Reason == "task-faulted" {
					faulted++
				}
			}
		}
		if got := fmt.Sprintf("%d answers, %d task-faulted", answers, faulted); got != want {
			t.Errorf("a panic at frame %d: %s, want %s", at, got, want)
		}
	}
}

// A task that panics when it pleases, with whatever it has, is started again and again: others lose nothing, and the
// books are right.
func TestPanicMachine(t *testing.T) {
	panics := 0
	rapid.Check(t, func(rt *rapid.T) {
		j := &judge{TB: t, rt: rt}
		restart := 0
		text := func() string {
			restart++
			model := rapid.SampledFrom([]string{"", "latency: 30us, ", "throughput: 100Mbit, credits: 3, "}).Draw(rt, "model")
			fault := rapid.SampledFrom([]string{"", "fault: pass, "}).Draw(rt, "fault")
			if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
				return bombed(fmt.Sprintf("{kind: dud, restart: %d, %sargs: {where: %s, at: %d, keep: 0}}", restart, fault,
					rapid.SampledFrom([]string{"push", "twice"}).Draw(rt, "where"), rapid.IntRange(1, 60).Draw(rt, "at")))
			}
			return bombed(fmt.Sprintf("{kind: bomb, restart: %d, %s%sargs: {where: %s, at: %d, keep: %d}}", restart, model, fault,
				rapid.SampledFrom([]string{"push", "push", "tick", "held", "stop", "twice"}).Draw(rt, "where"), rapid.IntRange(1, 60).Draw(rt, "at"), rapid.IntRange(0, 40).Draw(rt, "keep")))
		}
		x := graphtest.NewOuter(j, bombs(), graph.Args{"deployment": text(), "parallel": rapid.SampledFrom([]string{"on", "off"}).Draw(rt, "parallel")})
		defer func() {
			for _, f := range j.cleanups {
				f()
			}
		}()
		x.Advance(30 * time.Millisecond)
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "restart") == 0 {
				if err := x.Set(graph.Args{"deployment": text()}); err != nil {
					rt.Fatal(err)
				}
				x.Advance(30 * time.Millisecond)
			}
			neighbours(j, x, rapid.IntRange(1, 40).Draw(rt, "frames"), rapid.SampledFrom([]string{"p0", "p1"}).Draw(rt, "port"))
		}
		panics += len(x.Inst.Faults())
	})
	if panics == 0 {
		t.Error("nothing has panicked")
	}
}
