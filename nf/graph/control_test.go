package graph_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// sieve is a spring that is told a filter, unless it refuses.
type sieve struct {
	spring
	filter port.Filter
	refuse error
}

func (s *sieve) SetFilter(f port.Filter) error {
	if s.refuse == nil {
		s.filter = f
	}
	return s.refuse
}

// sieves is an instance whose ports are sieves, opened with what the apps want
// at the start.
func sieves(t *testing.T, src string) (*graph.Instance, map[string]*sieve, func(string) error) {
	t.Helper()
	spec := parse(t, src)
	first, err := graph.Wants(spec, kinds())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*sieve{}
	open := func(name string, _ graph.PortSpec) ([]port.Port, error) {
		all[name] = &sieve{spring: *newSpring(t, name, 1), filter: first}
		return []port.Port{all[name]}, nil
	}
	ports := map[string][]port.Port{}
	for name, p := range spec.Ports {
		ports[name], _ = open(name, p)
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: kinds(), Ports: ports, OpenPort: open})
	if err != nil {
		t.Fatal(err)
	}
	return inst, all, func(src string) error {
		p, err := inst.Plan(parse(t, src))
		if err != nil {
			t.Fatal(err)
		}
		return inst.Apply(p)
	}
}

// A port that is opened later is told what the apps want by then, also when
// that has not changed with it.
func TestApplyTellsNewPorts(t *testing.T) {
	inst, all, apply := sieves(t, "ports: {a: {kind: s}}\napps: {s: {kind: stamp, args: {tag: x}}}\nlinks: [a.out -> s.in]\n")
	for _, src := range []string{
		"ports: {a: {kind: s}}\napps: {s: {kind: stamp, args: {tag: y}}}\nlinks: [a.out -> s.in]\n",
		"ports: {a: {kind: s}, b: {kind: s}}\napps: {s: {kind: stamp, args: {tag: y}}}\nlinks: [a.out -> s.in]\n",
	} {
		if err := apply(src); err != nil {
			t.Fatal(err)
		}
		for name, s := range all {
			if got, want := fmt.Sprint(s.filter), fmt.Sprint(inst.Wants()); got != want {
				t.Errorf("port %s sees %s, the apps want %s", name, got, want)
			}
		}
	}
}

// A filter that a port refused is tried again with the next change.
func TestRefusedFilterIsTriedAgain(t *testing.T) {
	inst, all, apply := sieves(t, "ports: {a: {kind: s}}\napps: {s: {kind: stamp, args: {tag: x}}}\n")
	all["a"].refuse = errors.New("not now")
	if err := apply("ports: {a: {kind: s}}\napps: {s: {kind: stamp, args: {tag: y}}}\n"); !errors.Is(err, all["a"].refuse) {
		t.Errorf("%v", err)
	}
	all["a"].refuse = nil
	if err := apply("ports: {a: {kind: s}}\napps: {s: {kind: stamp, args: {tag: y}}}\nlinks: [a.out -> s.in]\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(all["a"].filter), fmt.Sprint(inst.Wants()); got != want {
		t.Errorf("the port sees %s, the apps want %s", got, want)
	}
}

// What a Plan that failed would have put in an app's place does not give its
// names to the reasons of the app that stays.
func TestFailedApplyKeepsReasons(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {m: {kind: stamp, args: {tag: m}}, n: {kind: stamp, args: {tag: n}}}
links: [a.out -> m.in, m.out -> b.in]
`), 8)
	next := parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {m: {kind: fork}, n: {kind: stamp, args: {tag: long}}}
links: [a.out -> m.in, m.left -> b.in]
`)
	p, err := x.inst.Plan(next)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.inst.Apply(p); err == nil {
		t.Fatal("the argument was accepted")
	}
	tap, err := x.inst.Tap("m.out")
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	x.send("a", "f")
	x.step()
	if f, _ := tap.Next(); f.App != "m" || f.Reason != "stamped" {
		t.Errorf("%s.%s", f.App, f.Reason)
	}
}

// A tap stays on its link when what is at the link's ends is made anew.
func TestTapOutlivesApply(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {m: {kind: fixed, args: {tag: m}}}
links: [a.out -> m.in, m.out -> b.in]
`), 64)
	for _, at := range []string{"a.out", "b.in"} {
		tap, err := x.inst.Tap(at)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tag := range []string{"x", "y"} {
			if _, err := x.inst.Set("m", graph.Args{"tag": tag}); err != nil {
				t.Fatal(err)
			}
			x.send("a", "f")
			x.step()
			x.recv("b")
			for f, ok := tap.Next(); ok; f, ok = tap.Next() {
				got = append(got, string(f.Data))
			}
		}
		tap.Close()
		want := map[string][]string{"a.out": {"f", "f"}, "b.in": {"fx", "fy"}}[at]
		if !slices.Equal(got, want) {
			t.Errorf("%s: tapped %q, want %q", at, got, want)
		}
		if tap, err = x.inst.Tap(at); err != nil {
			t.Errorf("%s is not free again: %v", at, err)
		} else {
			tap.Close()
		}
	}
}

// A frame that was traced before ClearTrace, and is still held, is forgotten,
// and does not disturb what is traced afterwards.
func TestClearTraceForgetsWhatIsHeld(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {h: {kind: hold}}
links: [a.out -> h.in, h.out -> b.in]
`), 64)
	for range 2 {
		if err := x.inst.AddTrace("a", 1, ""); err != nil {
			t.Fatal(err)
		}
		x.send("a", "f")
		x.step()
		if x.inst.Held() == 1 {
			x.inst.ClearTrace()
		}
	}
	x.send("a", "1", "2", "3", "4")
	x.step()
	tr := x.inst.Trace()
	if len(tr) != 1 || tr[0].Packet != 2 || len(tr[0].Lines) != 4 {
		t.Errorf("%v", tr)
	}
}

// TestTraceForgets: what is asked for anew is shown alone, unless frames are still waited for.
func TestTraceForgets(t *testing.T) {
	x := newBench(t, parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {s: {kind: stamp}}
links: [a.out -> s.in, s.out -> b.in, b.out -> s.in]
`), 64)
	for i, c := range []struct {
		n    int
		want []uint32 // packets
	}{
		{1, []uint32{1}},
		{1, []uint32{2}},
		{2, []uint32{3}}, // and one more
		{1, []uint32{3, 4}},
		{1, []uint32{5}},
	} {
		if err := x.inst.AddTrace("a", c.n, ""); err != nil {
			t.Fatal(err)
		}
		x.send("a", "f")
		x.step()
		var got []uint32
		for _, tr := range x.inst.Trace() {
			got = append(got, tr.Packet)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

func TestTracedColumns(t *testing.T) {
	got := graph.Traced{Packet: 3, Lines: []graph.TraceLine{
		{At: 1e9, Node: "eth1", Text: "received"},
		{At: 1e9 + 17747, Node: "clover-steer", Text: "in a"},
		{At: 2e9, Node: "eth2", Text: "transmitted"},
	}}.String()
	want := `packet 3, 1970-01-01T00:00:01.000000Z
  eth1         +0s       received
  clover-steer +17.747µs in a
  eth2         +1s       transmitted
`
	if got != want {
		t.Errorf("%q, not\n%q", got, want)
	}
}
