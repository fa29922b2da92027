package graph_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
)

const inline = `ports:
  a: {kind: mem}
  b: {kind: mem, args: {depth: 64}}
apps:
  mark: {kind: stamp, args: {tag: m}}
  wire:
    kind: wire
links:
  - a.out -> mark.in
  - mark.out -> wire.a
  - wire.b -> b.in
  - b.out -> wire.b
  - wire.a -> a.in
`

func parse(t testing.TB, src string) *graph.Spec {
	t.Helper()
	s, err := graph.ParseSpec([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var specOpts = cmp.Options{cmpopts.IgnoreUnexported(graph.Spec{}), cmpopts.EquateEmpty()}

// TestUnlinked: outputs that frames can come out of, and that lead nowhere.
func TestUnlinked(t *testing.T) {
	for _, c := range []struct {
		spec string
		want []string
	}{
		{"ports: {a: {kind: mem}, b: {kind: mem}}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in]", nil},
		{"ports: {a: {kind: mem}, b: {kind: mem}}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, b.out -> w.b, w.a -> a.in]", []string{"w.b"}},
		{"ports: {a: {kind: mem}, b: {kind: mem}, c: {kind: mem}}\napps: {t: {kind: tee}, s: {kind: sink}}\nlinks: [a.out -> t.in, t.out -> b.in, b.out -> s.in]", []string{"t.copy", "c.out"}},
	} {
		s, err := graph.ParseSpec([]byte(c.spec))
		if err == nil {
			err = s.Validate(graph.Builtin(), nil)
		}
		if got := s.Unlinked(graph.Builtin()); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", c.spec, got, err)
		}
	}
}

func TestSpecErrors(t *testing.T) {
	portKinds := []graph.PortKind{{Name: "mem", Params: []graph.Param{{Name: "depth"}}}}
	if err := parse(t, inline).Validate(kinds(), portKinds); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"kind: stamp", "kind: stomp", `spec:5:16: app mark: unknown kind "stomp" (did you mean "stamp"?)`},
		{"kind: stamp", "kind: xylophone", `unknown kind "xylophone" (known: wire, tee, sink, stamp, fixed, hold, hoard, twin, beat, fork, delay, nest)`},
		{"tag: m", "tac: m", `spec:5:35: app mark: unknown argument "tac" (did you mean "tag"?)`},
		{"depth: 64", "deep: 64", `spec:3:31: port b: unknown argument "deep" (known: depth)`},
		{"a: {kind: mem}", "a: {kind: men}", `spec:2:13: port a: unknown kind "men" (did you mean "mem"?)`},
		{"a: {kind: mem}", "a: {sort: mem}", `spec:2:7: unknown field "sort"`},
		{"apps:", "aps:", `spec:4:1: unknown field "aps"`},
		{"wire.b -> b.in", "wire.c -> b.in", `spec:11:5: link "wire.c -> b.in": wire has no output "c" (known: a, b)`},
		{"wire.b -> b.in", "wire.b -> b.out", `link "wire.b -> b.out": b has no input "out"`},
		{"wire.b -> b.in", "wire.b -> bb.in", `no port or app is named "bb" (did you mean "b"?)`},
		{"wire.b -> b.in", "wire.b > b.in", `spec:11:5: link "wire.b > b.in" is not of the form "NAME.OUT -> NAME.IN"`},
		{"b.out -> wire.b", "a.out -> wire.b", `spec:12:5: link "a.out -> wire.b": a.out is linked already, by "a.out -> mark.in"; use a tee to copy`},
		{"  a: {kind: mem}", "  mark: {kind: mem}", `"mark" names a port and an app: rename one`},
		{"  a: {kind: mem}", "  a b: {kind: mem}", `port name "a b": use letters, digits, '_' and '-'`},
		{"kind: wire", "kind: [wire]", `spec:7:11: `},
		{"{kind: mem}", "{kind: mem", `spec:`},
	} {
		src := strings.Replace(inline, c.old, c.new, 1)
		if src == inline {
			t.Fatalf("%q is not in the spec", c.old)
		}
		s, err := graph.ParseSpec([]byte(src))
		if err == nil {
			err = s.Validate(kinds(), portKinds)
		}
		var e *graph.SpecError
		if !errors.As(err, &e) || !strings.Contains(e.Error(), c.want) || strings.Contains(e.Error(), "\n") {
			t.Errorf("%s:\n got %v\nwant %s", c.new, err, c.want)
			continue
		}
		if !strings.Contains(e.Excerpt, ">") {
			t.Errorf("%s: no excerpt: %q", c.new, e.Excerpt)
		}
	}
}

// Apps may be linked there and back; any other circle is refused.
func TestCircles(t *testing.T) {
	const circle = `ports: {a: {kind: mem}}
apps: {x: {kind: stamp}, y: {kind: stamp}, z: {kind: stamp}}
links:
  - x.out -> y.in
  - y.out -> z.in
  - z.out -> x.in
`
	err := parse(t, circle).Validate(kinds(), nil)
	if want := `spec:4:5: link "x.out -> y.in" closes a circle of apps: a circle must pass through a port`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	err = parse(t, strings.Replace(circle, "z.out -> x.in", "z.out -> z.alt", 1)).Validate(kinds(), nil)
	if want := `spec:6:5: link "z.out -> z.alt" leads from an app to itself: a circle must pass through a port`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	s := parse(t, strings.Replace(circle, "z.out -> x.in", "z.out -> y.alt", 1))
	if err := s.Validate(kinds(), nil); err != nil {
		t.Errorf("there and back: %v", err)
	}
}

// genSpec draws a valid graph over ports a and b: apps in a line, each fed by
// a port or by an app before it.
func genSpec(t *rapid.T) *graph.Spec {
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{},
	}
	outs := map[string][]string{"stamp": {"out"}, "fixed": {"out"}, "hold": {"out"}, "fork": {"left", "right"}, "tee": {"out", "copy"}}
	ins := []string{"a.in", "b.in"}
	for i := rapid.IntRange(0, 5).Draw(t, "apps"); i > 0; i-- {
		name := fmt.Sprintf("n%d", rapid.IntRange(0, 6).Draw(t, "name"))
		if _, ok := s.Apps[name]; ok {
			continue
		}
		kind := rapid.SampledFrom([]string{"stamp", "fixed", "hold", "fork", "tee"}).Draw(t, "kind")
		a := graph.AppSpec{Kind: kind}
		if kind == "stamp" || kind == "fixed" {
			if tag := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "tag"); tag != "" {
				a.Args = graph.Args{"tag": tag}
			}
		}
		for _, o := range outs[kind] {
			if rapid.IntRange(0, 4).Draw(t, "linked") > 0 {
				s.Links = append(s.Links, name+"."+o+" -> "+rapid.SampledFrom(ins).Draw(t, "to"))
			}
		}
		s.Apps[name] = a
		ins = append(ins, name+".in")
	}
	for _, p := range []string{"a", "b"} {
		s.Links = append(s.Links, p+".out -> "+rapid.SampledFrom(ins).Draw(t, "from "+p))
	}
	return s
}

func TestSpecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpec(t)
		if err := s.Validate(kinds(), nil); err != nil {
			t.Fatal(err)
		}
		y, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := graph.ParseSpec(y)
		if err != nil {
			t.Fatalf("%v\n%s", err, y)
		}
		if d := cmp.Diff(s, back, specOpts); d != "" {
			t.Fatal(d)
		}
	})
}

// What would take long to read is refused at once (nf/yaml), and what aliases are
// for goes on.
func TestBounds(t *testing.T) {
	laughs := "links:\n  - &x0 [k]\n"
	for i := range 20 {
		laughs += fmt.Sprintf("  - &x%d [%s]\n", i+1, strings.Repeat(fmt.Sprintf("*x%d,", i), 8))
	}
	for want, src := range map[string]string{
		"spec:1:39: nested more than 32 deep":                "apps: " + strings.Repeat("[", 1<<17),
		"spec: more than 1048576 values, aliases followed":   laughs,
		"spec: 16777217 bytes of YAML, at most 16777216 are": strings.Repeat("#", 1<<24+1),
	} {
		var e *graph.SpecError
		if _, err := graph.ParseSpec([]byte(src)); !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	s := parse(t, "ports: {a: &p {kind: mem, args: {depth: 64}}, b: *p}\n")
	if s.Ports["b"].Args["depth"] != "64" {
		t.Errorf("%+v", s.Ports)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(inline))
	f.Add([]byte("ports: {a: {kind: mem}}\nlinks: [a.out -> a.in]\n"))
	f.Add([]byte("links: [&x a.out -> a.in, *x]\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := graph.ParseSpec(src)
		if err != nil {
			return
		}
		if s.Validate(kinds(), nil) != nil {
			return
		}
		y, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := graph.ParseSpec(y)
		if err != nil {
			t.Fatalf("%v\n%s", err, y)
		}
		if d := cmp.Diff(s, back, specOpts); d != "" {
			t.Fatal(d)
		}
	})
}

func TestDiff(t *testing.T) {
	old := parse(t, inline)
	p, err := graph.Diff(old, old.Clone())
	if err != nil || !p.Empty() || p.String() != "nothing to do\n" {
		t.Fatalf("%v, %v", p, err)
	}
	next := parse(t, `ports:
  a: {kind: mem}
  b: {kind: mem, args: {depth: 64}}
apps:
  mark: {kind: stamp, args: {tag: n}}
  hold: {kind: hold}
links:
  - a.out -> mark.in
  - mark.out -> hold.in
  - hold.out -> b.in
`)
	p, err = graph.Diff(old, next)
	if err != nil {
		t.Fatal(err)
	}
	want := `unlink b.out -> wire.b
unlink mark.out -> wire.a
unlink wire.a -> a.in
unlink wire.b -> b.in
stop wire: wire
start hold: hold
reconfigure mark: tag=n (was m)
link hold.out -> b.in
link mark.out -> hold.in
`
	if d := cmp.Diff(want, p.String()); d != "" {
		t.Error(d)
	}
	// An app of another kind takes its links with it, though they read the same.
	next = old.Clone()
	next.Apps["mark"] = graph.AppSpec{Kind: "fixed"}
	p, err = graph.Diff(old, next)
	if err != nil {
		t.Fatal(err)
	}
	want = `unlink a.out -> mark.in
unlink mark.out -> wire.a
stop mark: stamp
start mark: fixed
link a.out -> mark.in
link mark.out -> wire.a
`
	if d := cmp.Diff(want, p.String()); d != "" {
		t.Error(d)
	}
	p, err = graph.Diff(nil, old)
	if err != nil {
		t.Fatal(err)
	}
	want = `open-port a: mem
open-port b: mem,depth=64
start mark: stamp,tag=m
start wire: wire
link a.out -> mark.in
link b.out -> wire.b
link mark.out -> wire.a
link wire.a -> a.in
link wire.b -> b.in
`
	if d := cmp.Diff(want, p.String()); d != "" {
		t.Error(d)
	}
}
