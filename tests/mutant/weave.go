package mutant

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// chosen is the variable of a woven package that says which mutant runs: the number
// in the environment variable of the same meaning, or 0 for none.
const (
	chosen   = "mutantChosen"
	variable = "QUILLON_MUTANT"
)

// edit puts text in the place of the bytes from at to end.
type edit struct {
	at, end int
	text    string
}

// weave is the text of a file with all the mutants of it that lie within one
// function each: behind the text stands a copy of the function with the change, and
// the function begins by calling the copy when the mutant with the number n[i] is
// chosen. left are the places in mutants of those that lie elsewhere.
func weave(text string, mutants []Mutant, n []int) (woven string, left []int, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	var edits []edit
	var copies strings.Builder
	named := map[*ast.FuncDecl]bool{}
	for i, m := range mutants {
		at := strings.Index(text, m.Old)
		var f *ast.FuncDecl
		for _, d := range file.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && offset(d.Pos()) <= at && at+len(m.Old) <= offset(d.End()) {
				f = d
			}
		}
		if f == nil || f.Name.Name == "init" {
			left = append(left, i)
			continue
		}
		from, to := offset(f.Pos()), offset(f.End())
		name := fmt.Sprintf("%s_mutant%d", f.Name.Name, n[i])
		changed, err := rename(text[from:at]+m.New+text[at+len(m.Old):to], f.Name.Name, name)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		fmt.Fprintf(&copies, "\n//line %s:1\n%s\n", m.Name, changed)
		if !named[f] {
			named[f] = true
			edits = append(edits, nameArgs(f, offset)...)
		}
		open := offset(f.Body.Lbrace) + 1
		edits = append(edits, edit{open, open, fmt.Sprintf(" if %s == %d { %s };", chosen, n[i], call(f, name))})
	}
	return apply(text, edits) + copies.String(), left, nil
}

// rename is the text of a function with another name.
func rename(text, old, name string) (string, error) {
	const head = "package p;"
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", head+text, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	if len(file.Decls) == 1 {
		if f, ok := file.Decls[0].(*ast.FuncDecl); ok && f.Name.Name == old {
			at := fset.Position(f.Name.Pos()).Offset - len(head)
			return text[:at] + name + text[at+len(old):], nil
		}
	}
	return "", fmt.Errorf("the change makes another declaration of func %s", old)
}

// fields are the function's receiver, if it has one, and its parameters.
func fields(f *ast.FuncDecl) []*ast.Field {
	if f.Recv == nil {
		return f.Type.Params.List
	}
	return slices.Concat(f.Recv.List, f.Type.Params.List)
}

// nameArgs gives names to what has none of the function's receiver and parameters.
func nameArgs(f *ast.FuncDecl, offset func(token.Pos) int) (edits []edit) {
	n := 0
	for _, x := range fields(f) {
		if len(x.Names) == 0 {
			at := offset(x.Type.Pos())
			edits = append(edits, edit{at, at, argName(n) + " "})
			n++
		}
		for _, id := range x.Names {
			if id.Name == "_" {
				edits = append(edits, edit{offset(id.Pos()), offset(id.End()), argName(n)})
			}
			n++
		}
	}
	return edits
}

func argName(n int) string { return fmt.Sprintf("mutantArg%d", n) }

// call is the statement that calls the function's copy in its place.
func call(f *ast.FuncDecl, name string) string {
	var args []string
	for _, x := range fields(f) {
		dots := ""
		if _, ok := x.Type.(*ast.Ellipsis); ok {
			dots = "..."
		}
		if len(x.Names) == 0 {
			args = append(args, argName(len(args))+dots)
		}
		for _, id := range x.Names {
			arg := id.Name
			if arg == "_" {
				arg = argName(len(args))
			}
			args = append(args, arg+dots)
		}
	}
	if f.Recv != nil {
		name, args = args[0]+"."+name, args[1:]
	}
	if f.Type.TypeParams != nil {
		var types []string
		for _, x := range f.Type.TypeParams.List {
			for _, id := range x.Names {
				types = append(types, id.Name)
			}
		}
		name += "[" + strings.Join(types, ", ") + "]"
	}
	name += "(" + strings.Join(args, ", ") + ")"
	if f.Type.Results == nil {
		return name + "; return"
	}
	return "return " + name
}

// apply makes the edits, none of which overlap.
func apply(text string, edits []edit) string {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.at - b.at })
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(text[at:e.at] + e.text)
		at = e.end
	}
	b.WriteString(text[at:])
	return b.String()
}

// choice is the text of the file that a woven package gets besides: which mutant
// runs.
func choice(pkg string) string {
	return fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar %s, _ = strconv.Atoi(os.Getenv(%q))\n",
		filepath.Base(pkg), chosen, variable)
}
