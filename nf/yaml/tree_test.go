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
		{"a: *x\n", "f:1: there is no anchor &x above"},
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
