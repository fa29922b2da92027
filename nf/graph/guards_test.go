package graph_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// guarding is an app that guards words, but for tag=off.
type guarding struct{ off bool }

func (*guarding) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

func (g *guarding) Wants() port.Filter { return port.Filter{All: true, Guarded: !g.off} }

func (*guarding) Takes(graph.Args) bool { return true }
func (g *guarding) Reconfigure(a graph.Args) error {
	g.off = a["tag"] == "off"
	return nil
}

// TestOneGuards: a second app that guards words is refused when ports are asked for, when an instance is made and
// when one is changed, be the apps of the graph or inside of others.
func TestOneGuards(t *testing.T) {
	all := append(kinds(), nestKind(), graph.Kind{Name: "guard", In: []string{"in"}, Out: []string{"out"}, Params: []graph.Param{{Name: "tag"}},
		New: func(_ graph.Env, a graph.Args) (graph.App, error) { return &guarding{a["tag"] == "off"}, nil }})
	spec := func(x, y string) *graph.Spec {
		return parse(t, `
ports: {a: {kind: spring}, b: {kind: spring}}
apps: {x: `+x+`, y: `+y+`}
links: [a.out -> x.in, x.out -> y.in, y.out -> b.in]
`)
	}
	made := func(s *graph.Spec) (*graph.Instance, error) {
		return graph.New(graph.Config{Spec: s, Kinds: all, Clock: clock.NewManual(1),
			Ports: map[string][]port.Port{"a": {newSpring(t, "a", 1)}, "b": {newSpring(t, "b", 0)}}})
	}
	const plain, off = "{kind: guard}", "{kind: guard, args: {tag: off}}"
	inside := func(run string) string { return `{kind: nest, args: {run: "` + run + `"}}` }
	for _, c := range []struct{ x, y, want string }{
		{plain, off, ""}, {plain, inside("i=guard:off"), ""}, {inside("i=guard:off j=guard"), off, ""},
		{plain, plain, "apps x and y all guard"}, {plain, inside("i=guard"), "apps x and y/i all guard"},
		{inside("i=guard j=guard"), off, "apps x/i and x/j all guard"}, {inside("i=guard j=guard"), plain, "apps x/i, x/j and y all guard"},
	} {
		_, wants := graph.Wants(spec(c.x, c.y), all)
		inst, err := made(spec(c.x, c.y))
		for _, err := range []error{wants, err} {
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s, %s: %v, want %q", c.x, c.y, err, c.want)
			}
		}
		if err == nil {
			err = inst.Close()
		}
		if err != nil && c.want == "" {
			t.Error(err)
		}
	}
	inst, err := made(spec(plain, off))
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	change := func(x, y string) error {
		p, err := inst.Plan(spec(x, y))
		return errors.Join(err, inst.Apply(p))
	}
	for _, y := range []string{plain, inside("i=guard")} {
		if err := change(plain, y); err == nil || !strings.Contains(err.Error(), "all guard") {
			t.Errorf("y becomes %s: %v", y, err)
		}
		if a := inst.Spec().Apps["y"]; a.Kind != "guard" || !inst.App("y", 0).(*guarding).off {
			t.Errorf("refused, and y is %+v", a)
		}
	}
	if err := change(off, plain); err != nil {
		t.Error("the other one guards: ", err)
	}
}
