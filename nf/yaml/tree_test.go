package yaml_test

import (
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/yaml"
)

func TestTree(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a: 1\nb: [2, 3]\n", ""},
		{"a: &x {c: 1}\nb: *x\n", ""},
		{"a: 1\na: 2\n", "f:2"},
		{"a: *x\n", "f:1: there is no anchor \"x\" above"},
		{"*\n0}\n\n:|\t", "f:1: there is no anchor"}, // the parser takes a name over lines
		{"a: &x [*x]\n", "f:1"},
		{"a: {\n", "f:"},
		{"a: !!binary x\n", "f:1"},
		{"a:\n  <<: {b: 1}\n", "f:2"},
		{"---\na: 1\n---\nb: 1\n", "another document"},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), "deep"},
		{"a: &a [1,1,1,1,1,1,1,1,1,1]\n" + bomb(), "more than"},
		{"a: |\n  b\n", ""},
		{"", ""},
	} {
		_, err := yaml.Tree("f", []byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%.40q: %v", c.text, err)
		}
	}
}

// bomb is lists of lists of lists by aliases.
func bomb() string {
	var b strings.Builder
	for c := 'b'; c < 'k'; c++ {
		b.WriteString(string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 10) + "]\n")
	}
	return b.String()
}

// FuzzTree: any text is refused in one line that names the file, or is a tree whose nodes have lines.
func FuzzTree(f *testing.F) {
	for _, s := range []string{"a: 1\nb: [2, {c: d}]\n", "a: &x {c: 1}\nb: *x\n", "a: |\n  b\n", "? x\n: y", "- !!binary x", "{a: 1, a: 2}", "a: *x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		root, err := yaml.Tree("f", []byte(s))
		if err != nil {
			if text := err.Error(); !strings.HasPrefix(text, "f:") || strings.ContainsAny(text, "\n\r") {
				t.Fatalf("%q", text)
			}
			return
		}
		var visit func(n *yaml.Node)
		visit = func(n *yaml.Node) {
			if n.File != "f" || n.Line < 1 || n.Kind == yaml.Mapping && len(n.Keys) != len(n.List) || n.Kind == yaml.Scalar && n.List != nil {
				t.Fatalf("%+v", n)
			}
			for _, x := range n.List {
				visit(x)
			}
		}
		visit(root)
	})
}
