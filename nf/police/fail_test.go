package police

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// fail= says what the ports do with frames while no worker takes them, from the start and when it changes.
func TestFail(t *testing.T) {
	for _, k := range []struct {
		kind *graph.Kind
		args graph.Args
	}{{Kind(), graph.Args{"cir": "1Mbit"}}, {ShapeKind(), graph.Args{"rate": "1Mbit"}}} {
		for fail, want := range map[string]port.Filter{"": {All: true}, "open": {All: true}, "wait": {All: true, Waits: true}, "closed": {All: true, Closed: true}} {
			args := graph.Args{}
			for n, v := range k.args {
				args[n] = v
			}
			app, err := k.kind.New(graph.Env{}, args)
			if err != nil {
				t.Fatal(err)
			}
			if fail != "" {
				args["fail"] = fail
			}
			r := app.(graph.Reconfigurer)
			if !r.Takes(args) {
				t.Errorf("%s: fail=%s starts it anew", k.kind.Name, fail)
			} else if err := r.Reconfigure(args); err != nil {
				t.Error(err)
			}
			again, err := k.kind.New(graph.Env{}, args)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []graph.App{app, again} {
				if w, ok := a.(graph.Wanter); !ok || !same(w.Wants(), want) {
					t.Errorf("%s: fail=%s: %v", k.kind.Name, fail, ok)
				}
			}
		}
	}
}

func same(a, b port.Filter) bool {
	return a.All == b.All && a.Waits == b.Waits && a.Closed == b.Closed && !a.Bound && !a.Guarded
}
