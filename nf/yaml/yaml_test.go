package yaml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"
)

type paper struct {
	Things map[string]thing `yaml:"things"`
	Links  []string         `yaml:"links,omitempty"`
}

type thing struct {
	Kind string            `yaml:"kind"`
	Args map[string]string `yaml:"args,omitempty"`
	UID  uint32            `yaml:"uid,omitempty"`
	Area *int              `yaml:"area,omitempty"`
	Part *float64          `yaml:"part,omitempty"`
	On   bool              `yaml:"on,omitempty"`
}

const good = "things:\n  a: {kind: k, args: {x: y}}\n  b: {kind: l}\nlinks:\n  - one\n  - two\n"

func TestUnmarshal(t *testing.T) {
	var p paper
	if err := Unmarshal([]byte(good), &p); err != nil || p.Things["a"].Args["x"] != "y" || len(p.Links) != 2 {
		t.Fatalf("%v, %+v", err, p)
	}
	src, err := Marshal(&p)
	var q paper
	if err != nil || Unmarshal(src, &q) != nil || fmt.Sprint(q) != fmt.Sprint(p) {
		t.Errorf("%v, %s", err, src)
	}
	for _, c := range []struct{ old, new, want string }{
		{"kind: l", "sort: l", `3:7: unknown field "sort"`},
		{"  b:", "  a:", `3:3: mapping key "a" already defined at [2:3]`},
		{"{kind: l}", "{kind: l", "4:"},
		{"kind: l", "kind: l, uid: -5", "3:21: -5: want a whole number from 0 to 4294967295"},
		{"kind: l", "kind: l, uid: 4294967296", "3:21: 4294967296: want a whole number from 0 to 4294967295"},
		{"kind: l", "kind: l, uid: many", "3:21: many: want a whole number from 0 to 4294967295"},
		{"kind: l", "kind: l, area: 99999999999999999999", "3:22: 99999999999999999999: want a whole number of 64 bits"},
		{"kind: l", "kind: l, part: " + strings.Repeat("b", 50), "3:22: " + strings.Repeat("b", 40) + "...: want a number"},
		{"kind: l", "kind: l, on: maybe", "3:20: maybe: want true or false"},
		{"kind: l", "kind: l, on: {x: 1}", "3:20: a mapping: want true or false"},
		{"kind: l", "kind: l, on: [1]", "3:20: a list: want true or false"},
		{"kind: l", `kind: l, on: "may\nbe"`, "3:20: may be: want true or false"},
		{"kind: l", `kind: l, on: ""`, "3:20: an empty text: want true or false"},
		{"{kind: l}", "\n    on:\n      x: 1", "5:8: a mapping: want true or false"},
		{"{kind: l}", "\n    on:\n    - x", "5:5: a list: want true or false"},
		{"{kind: l}", "\n    on: |\n      x\n      y", "4:9: a text of several lines: want true or false"},
		{"  b:", "\tb:", "3:1: a tab: YAML is indented by spaces"},
		{"links:\n  - one\n  - two", "links: !!x", "this YAML cannot be read"},
	} {
		err := Unmarshal([]byte(strings.Replace(good, c.old, c.new, 1)), &paper{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%s: %v, want %s", c.new, err, c.want)
		} else if err.Line != 0 && !strings.Contains(err.Excerpt, ">") {
			t.Errorf("%s: no excerpt", c.new)
		}
	}
	// Only the first document would be read.
	for _, c := range []struct{ src, want string }{
		{"---\n" + good, ""}, {"%YAML 1.2\n# text\n---\n" + good + "...\n", ""}, {"# text\n", ""},
		{good + "---\n" + good, "7:1: another document begins: one is read"},
		{"---\n" + good + "---\n", "8:1: another document begins: one is read"},
		{good + "...\n" + good, "8:1: another document begins: one is read"},
	} {
		var p paper
		if err := Unmarshal([]byte(c.src), &p); (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.src, err, c.want)
		} else if err == nil && strings.Contains(c.src, good) && len(p.Things) != 2 {
			t.Errorf("%q: %+v", c.src, p)
		}
	}
	// A check of the user's text.
	err2 := Unmarshal([]byte(good), &p, func(f *ast.File) *Error { return On(f.Docs[0].Body, "not today") })
	if err2 == nil || !strings.HasSuffix(err2.Error(), ": not today") || err2.Line != 1 {
		t.Error(err2)
	}
}

func TestAt(t *testing.T) {
	for _, c := range []struct {
		place        []any
		line, column int
	}{
		{[]any{"things", "b", "kind"}, 3, 13}, {[]any{"things", "b"}, 3, 7}, {[]any{"links", 1}, 6, 5}, {[]any{"rest"}, 0, 0},
		{[]any{"links", 7}, 5, 3}, {[]any{"things", "b", "args", "x"}, 3, 7}, // the nearest place around it
	} {
		e := At([]byte(good), c.place, "no\ngood")
		if e.Line != c.line || e.Column != c.column || e.Msg != "no good" || (e.Excerpt != "") != (c.line != 0) {
			t.Errorf("%v: %d:%d %q %q", c.place, e.Line, e.Column, e.Msg, e.Excerpt)
		}
	}
	if e := At(nil, []any{"things"}, "no"); e.Error() != "no" {
		t.Error(e)
	}
	if e := At([]byte("links: ["+strings.Repeat("x, ", 50000)+"]"), []any{"links", 30000}, "no"); e.Line != 1 || e.Column != 90009 || e.Excerpt != "" {
		t.Errorf("%v, with %d bytes around it", e, len(e.Excerpt))
	}
	if e := At([]byte("things: {"), []any{"things"}, "no"); e.Error() != "no" {
		t.Error(e)
	}
}

// A text whose aliases stand for more than anybody writes, or whose nesting is so deep that the library takes
// quadratic time for it, is refused at once.
func TestBombs(t *testing.T) {
	laughs := "things:\n  a:\n    kind: k\n    args:\n      a0: &x0 [k]\n"
	for i := range 20 {
		laughs += fmt.Sprintf("      a%d: &x%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*x%d,", i), 8))
	}
	wide := "things:\n  a: &x\n    kind: k\n    args:\n"
	for i := range 5000 {
		wide += fmt.Sprintf("      k%d: v\n", i)
	}
	for i := range 5000 {
		wide += fmt.Sprintf("  t%d: *x\n", i)
	}
	for name, c := range map[string]struct{ src, want string }{
		"laughs":   {laughs, "more than 1048576 values"},
		"wide":     {wide, "more than 1048576 values"},
		"long":     {strings.Repeat("#", maxSource+1), "16777217 bytes of YAML, at most 16777216 are read"},
		"brackets": {"tasks: " + strings.Repeat("[", 1<<17), "1:40: nested more than 32 deep"},
		"braces":   {"tasks: " + strings.Repeat("{a: ", 1<<17), "nested more than 32 deep"},
		"dashes":   {"dags:\n" + strings.Repeat("- ", 1<<17), "nested more than 32 deep"},
		"keys":     {"dags:\n" + strings.Repeat("? ", 1<<17), "nested more than 32 deep"},
		"docs":     {strings.Repeat("---\na: 1\n", 1<<18), "3:1: another document begins"},
		"ends":     {strings.Repeat("a: 1\n...\n", 1<<18), "another document begins"},
		"tags":     {"dags: " + strings.Repeat("!!a ", 1<<17), "nested more than 32 deep"},
	} {
		if err := Unmarshal([]byte(c.src), &paper{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// Errors are one line, and at a place of the source when they are at one.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("things: {a: &x {kind: k}, b: *x, c: {<<: *x}}\n"))
	f.Add([]byte("things: !!x\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		lines := strings.Count(string(src), "\n") + strings.Count(string(src), "\r") + 1
		err := Unmarshal(src, &paper{})
		for _, e := range []*Error{err, At(src, []any{"things", "a"}, "no")} {
			if e != nil && (strings.ContainsAny(e.Error(), "\r\n") || e.Line > lines+1) {
				t.Errorf("%q in %d lines", e, lines)
			}
		}
	})
}
