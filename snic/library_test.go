package snic

import (
	"testing"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/napt"
)

// declared are functions of which the boards of tests know what they do to packets.
func declared() []graph.Kind {
	return []graph.Kind{*dummy.Kind(), *firewall.Kind(), *kvcache.Kind(), *napt.Kind(),
		{Name: "tally", Effects: func(graph.Args) effect.Effects { return effect.Unknown }}} // uses no memory
}

// A function of which nothing is declared may do anything, and use memory.
func TestUndeclared(t *testing.T) {
	l := newLibrary(append(declared(), graph.Kind{Name: "foreign"}))
	for kind, uses := range map[string]bool{"foreign": true, "dummy": false, "firewall": false, "kvcache": true} {
		if got := l.usesMemory(kind, nil); got != uses {
			t.Errorf("%s uses memory: %v, want %v", kind, got, uses)
		}
	}
	d, err := l.deployment(`
regions: {count: 1, area: 4}
tasks: {x: {kind: foreign}, d: {kind: dummy}, w: {kind: dummy, args: {touch: "64"}}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: x -> d -> w}]
rules: []
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range d.Tasks {
		want := effect.Effects{}
		switch x.Name {
		case "x":
			want = effect.Unknown
		case "w":
			want = effect.Effects{Drops: true, Answers: true, State: true}
		}
		if x.Effects != want {
			t.Errorf("%s: %+v, want %+v", x.Name, x.Effects, want)
		}
	}
}
