package mutant

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

const source = `package p

const limit = 8

type box[T any] struct{ last T }

// put is generic by its receiver.
func (b *box[T]) put(x T, _ int) { b.last = x }

func (box[T]) name(string, ...int) (s string) { s = "box"; return }

func first[T any](xs ...T) T { return xs[0] }

func join(a, b string) string { return a + "-" + b }
`

// TestWeave: mutants within functions of every form are compiled together, of which
// two are in one function and one changes a signature; what lies outside of functions
// is left.
func TestWeave(t *testing.T) {
	mutants := []Mutant{
		{Name: "nothing is put", Old: "b.last = x", New: ""},
		{Name: "another name", Old: `"box"`, New: `"cat"`},
		{Name: "the last is first", Old: "xs[0]", New: "xs[len(xs)-1]"},
		{Name: "no limit", Old: "limit = 8", New: "limit = 1 << 30"},
		{Name: "another separator", Old: `"-"`, New: `"+"`},
		{Name: "arguments change places", Old: "join(a, b string)", New: "join(b, a string)"},
	}
	woven, left, err := weave(source, mutants, []int{1, 2, 3, 4, 5, 6})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(left, []int{3}) {
		t.Errorf("left are %v", left)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, text := range []string{woven, "package p; var " + chosen + " int"} {
		f, err := parser.ParseFile(fset, "", text, 0)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		files = append(files, f)
	}
	if _, err := (&types.Config{}).Check("p", fset, files, nil); err != nil {
		t.Errorf("%v\n%s", err, woven)
	}
	for _, want := range []string{
		"(x T, mutantArg2 int) { if mutantChosen == 1 { b.put_mutant1(x, mutantArg2); return };",
		"func (mutantArg0 box[T]) name(mutantArg1 string, mutantArg2 ...int) (s string) { if mutantChosen == 2 { return mutantArg0.name_mutant2(mutantArg1, mutantArg2...) };",
		"if mutantChosen == 3 { return first_mutant3[T](xs...) };",
		"{ if mutantChosen == 5 { return join_mutant5(a, b) }; if mutantChosen == 6 { return join_mutant6(a, b) };",
		"//line another name:1\nfunc (box[T]) name_mutant2(string, ...int) (s string) { s = \"cat\"; return }\n",
		"func join_mutant6(b, a string) string { return a + \"-\" + b }\n",
	} {
		if !strings.Contains(woven, want) {
			t.Errorf("there is no %s in\n%s", want, woven)
		}
	}
}

// TestNotWoven: a change that makes another function, or none, is refused by its
// name.
func TestNotWoven(t *testing.T) {
	for _, m := range []Mutant{
		{Name: "no operator", Old: "+ b", New: "+"},
		{Name: "another function", Old: "func join", New: "func rejoin"},
		{Name: "two functions", Old: "func join", New: "func f() {}; func join"},
	} {
		if _, _, err := weave(source, []Mutant{m}, []int{1}); err == nil || !strings.HasPrefix(err.Error(), m.Name+": ") {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}
