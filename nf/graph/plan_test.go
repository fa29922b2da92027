package graph_test

import (
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
)

// TestPlanOfLines: an action of a plan is one line, whatever an argument's value has, and says which of its lines
// change.
func TestPlanOfLines(t *testing.T) {
	spec := func(v string) *graph.Spec {
		return &graph.Spec{Apps: map[string]graph.AppSpec{"x": {Kind: "stamp", Args: graph.Args{"tag": v}}}}
	}
	many := strings.Repeat("more: {}\n", 20)
	for _, c := range []struct{ was, is, want string }{
		{"", "a\nb\n", "start x: stamp,tag=(2 lines)"},
		{"", "a b", "start x: stamp,tag=a b"},
		{"", "a\tb", `start x: stamp,tag="a\tb"`},
		{"a", "b", "reconfigure x: tag=b (was a)"},
		{"a\nb\nc\n", "a\nb2\nc\nd\n", `reconfigure x: tag=(4 lines) (was (3 lines): + "b2", + "d", - "b")`},
		{"a\n", "a\n  b: {\"c\": 1}\n", `reconfigure x: tag=(2 lines) (was a: + "b: {\"c\": 1}")`},
		{"a\nb\n", "b\na\n", "reconfigure x: tag=(2 lines) (was (2 lines): lines in another order or indented otherwise)"},
		{"a\nb\n", many, `+ "more: {}", and 14 more)`},
	} {
		old := spec(c.was)
		if c.was == "" {
			old = nil
		}
		p, err := graph.Diff(old, spec(c.is))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want) {
			t.Errorf("%q to %q: %q, want %q", c.was, c.is, got, c.want)
		}
	}
}

// TestBeside: an argument that names a file is relative to the directory of the spec, others stay.
func TestBeside(t *testing.T) {
	kinds := []graph.Kind{{Name: "k", Params: []graph.Param{{Name: "file", File: true}, {Name: "text"}}}}
	s := &graph.Spec{Apps: map[string]graph.AppSpec{
		"a": {Kind: "k", Args: graph.Args{"file": "x.json", "text": "x.json"}}, "b": {Kind: "k", Args: graph.Args{"file": "/x.json"}},
		"c": {Kind: "k", Args: graph.Args{"file": ""}}, "d": {Kind: "other", Args: graph.Args{"file": "x.json"}}, "e": {Kind: "k", Args: graph.Args{"file": "../x.json"}},
	}}
	was := s.Clone()
	s.Beside(kinds, "/etc/quillon")
	for app, want := range map[string]string{"a": "/etc/quillon/x.json", "b": "/x.json", "c": "", "d": "x.json", "e": "/etc/x.json"} {
		if got := s.Apps[app].Args["file"]; got != want {
			t.Errorf("%s: %q, want %q", app, got, want)
		}
	}
	if s.Apps["a"].Args["text"] != "x.json" || was.Apps["a"].Args["file"] != "x.json" {
		t.Error("more has changed")
	}
}
