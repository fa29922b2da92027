// Package yaml reads YAML strictly and within bounds. Its errors point at their place in the source.
//
//	if err := yaml.Unmarshal(src, &spec); err != nil { ... }      // errors in the YAML
//	return yaml.At(src, []any{"apps", "fw", "kind"}, "...")       // errors in what it says
//	root, err := yaml.Tree("intent.yaml", src)                    // values as they are written, with their lines
//
// A source is one document. Its size, its depth and the number of its values are bounded; the values that
// aliases stand for count, too. So no short source takes much time or memory.
package yaml

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a source. Of these, Tree has others for size and number of values (treeBounds).
const (
	maxSource = 16 << 20
	maxNodes  = 1 << 20 // number of values, with aliases followed
	maxDepth  = 32      // of brackets, or of dashes, question marks, tags and anchors in a row
	// At makes no excerpt of a source longer than maxExcerpt, because the YAML library takes quadratic time
	// for it.
	maxExcerpt = 64 << 10
)

// Error is an error in a source. Excerpt shows the place with the lines around it. It is empty if the place
// is not known, or if the source is long.
type Error struct {
	File         string // "": not known
	Line, Column int    // from 1; 0: not known
	Msg          string
	Excerpt      string
	err          error // the error whose text is Msg; nil: there is none
}

// Error returns place and message in one line.
func (e *Error) Error() string {
	var at strings.Builder
	if e.File != "" {
		at.WriteString(e.File + ":")
	}
	for _, n := range [...]int{e.Line, e.Column} {
		if n != 0 {
			fmt.Fprintf(&at, "%d:", n)
		}
	}
	if at.Len() == 0 {
		return e.Msg
	}
	return at.String() + " " + e.Msg
}

func (e *Error) Unwrap() error { return e.err }

// place sets line and column to those of a token.
func (e *Error) place(t *token.Token) *Error {
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

// On returns an error about a parsed value.
func On(n ast.Node, msg string) *Error { return (&Error{Msg: msg}).place(n.GetToken()) }

// Marshal returns v as YAML.
func Marshal(v any) ([]byte, error) { return yaml.Marshal(v) }

// Unmarshal reads src into v. Unknown and repeated fields are errors. checks look at the parsed source first,
// and return an error or nil.
func Unmarshal(src []byte, v any, checks ...func(*ast.File) *Error) *Error {
	return read(src, bounds{maxSource, maxNodes}, func(f *ast.File) (*Error, error) {
		for _, check := range checks {
			if wrong := check(f); wrong != nil {
				return wrong, nil
			}
		}
		if n := body(f); n != nil {
			return nil, yaml.NodeToValue(n, v, yaml.Strict())
		}
		return nil, nil
	})
}

// bounds of a source: its size in bytes, and the number of its values, with aliases followed.
type bounds struct{ source, nodes int }

// read parses src within bounds, and calls do with the result.
func read(src []byte, b bounds, do func(*ast.File) (*Error, error)) *Error {
	if len(src) > b.source {
		return &Error{Msg: fmt.Sprintf("%d bytes of YAML, at most %d are read", len(src), b.source)}
	}
	var wrong *Error
	err := unpanicked(func() error {
		tokens := lexer.Tokenize(string(src))
		if wrong = shallow(tokens); wrong == nil {
			wrong = single(tokens)
		}
		if wrong != nil {
			return nil
		}
		f, err := parser.Parse(tokens, 0)
		if err != nil {
			return err
		}
		if wrong = bounded(f, b.nodes); wrong == nil {
			wrong, err = do(f)
		}
		return err
	})
	if err == nil {
		return wrong
	}
	wrong = &Error{Msg: err.Error()}
	if y, ok := errors.AsType[yaml.Error](err); ok {
		wrong.Msg = message(y)
		wrong.place(y.GetToken())
		wrong.Excerpt = yaml.FormatErrorWithToken(wrong.Msg, y.GetToken(), false, true)
	}
	wrong.Msg, _, _ = strings.Cut(wrong.Msg, "\n")
	wrong.Msg = oneLine(wrong.Msg)
	return wrong
}

// body returns the content of a file's document, or nil if it has none.
func body(f *ast.File) ast.Node {
	for _, d := range f.Docs {
		if d.Body != nil && d.Body.Type() != ast.DirectiveType {
			return d.Body
		}
	}
	return nil
}

// message returns the message of an error of the YAML library, without types of Go.
func message(err yaml.Error) string {
	var to reflect.Type
	switch err := err.(type) {
	case *yaml.TypeError:
		to = err.DstType
	case *yaml.OverflowError:
		to = err.DstType
	default:
		if strings.HasPrefix(err.GetMessage(), "found character '\t'") {
			return "a tab: YAML is indented by spaces"
		}
		return err.GetMessage()
	}
	return written(err.GetToken()) + ": want " + wanted(to)
}

// written describes the value that begins with a token.
func written(t *token.Token) string {
	const most = 40 // bytes that are shown of a value
	switch t.Type {
	case token.MappingStartType, token.MappingValueType:
		return "a mapping"
	case token.SequenceStartType, token.SequenceEntryType:
		return "a list"
	case token.LiteralType, token.FoldedType:
		return "a text of several lines"
	}
	value := oneLine(t.Value)
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "..."
	}
	if value == "" {
		return "an empty text"
	}
	return value
}

// wanted describes the values of a type as YAML has them.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "a mapping"
}

// oneLine returns text with spaces in place of control characters.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// At returns an error at a place of a source, such as "apps", "fw", "kind" or "links", 3. If the source does not
// have this place, the error is at the nearest one around it; if there is none, or no source, it has no place.
func At(src []byte, place []any, msg string) *Error {
	e := &Error{Msg: oneLine(msg)}
	if src == nil {
		return e
	}
	_ = unpanicked(func() error {
		f, err := parser.ParseBytes(src, 0)
		if err != nil {
			return err
		}
		var p *yaml.Path
		var n ast.Node
		for ; n == nil && len(place) > 0; place = place[:len(place)-1] {
			p = path(place)
			n, _ = p.FilterFile(f)
		}
		if n == nil {
			return nil
		}
		if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
			n = m.Values[0].Key
		}
		e.place(n.GetToken())
		if len(src) > maxExcerpt {
			return nil
		}
		x, err := p.AnnotateSource(src, false)
		if err == nil {
			e.Excerpt = string(x)
		}
		return err
	})
	return e
}

// path returns the library's form of a place.
func path(place []any) *yaml.Path {
	b := (&yaml.PathBuilder{}).Root()
	for _, step := range place {
		switch step := step.(type) {
		case string:
			b = b.Child(step)
		case int:
			b = b.Index(uint(step))
		}
	}
	return b.Build()
}

// shallow returns an error if the source is nested so deeply that the YAML library takes quadratic time for
// it.
func shallow(tokens token.Tokens) *Error {
	depth, row := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		switch t.Type {
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			row++
		default:
			row = 0
		}
		if depth > maxDepth || row > maxDepth {
			return (&Error{Msg: fmt.Sprintf("nested more than %d deep", maxDepth)}).place(t)
		}
	}
	return nil
}

// single returns an error if there is a second document, because only the first one would be read, and
// because the YAML library takes quadratic time for many documents.
func single(tokens token.Tokens) *Error {
	directive := 0 // line of a directive
	begun, ended := false, false
	for _, t := range tokens {
		switch {
		case t.Type == token.CommentType || t.Position.Line == directive:
		case t.Type == token.DirectiveType:
			directive = t.Position.Line
		case ended && t.Type != token.DocumentEndType || begun && t.Type == token.DocumentHeaderType:
			return (&Error{Msg: "another document begins: one is read"}).place(t)
		default:
			begun, ended = true, t.Type == token.DocumentEndType
		}
	}
	return nil
}

// bounded returns an error if the source has more than most values, with aliases followed.
func bounded(f *ast.File, most int) *Error {
	c := &count{most: most, anchors: map[string]int{}}
	for _, d := range f.Docs {
		if d.Body != nil {
			ast.Walk(c, d.Body)
		}
	}
	if c.n > most {
		return &Error{Msg: fmt.Sprintf("more than %d values, aliases followed", most)}
	}
	return nil
}

// count counts the nodes below one, with aliases followed.
type count struct {
	n, most int
	anchors map[string]int
}

func (c *count) Visit(n ast.Node) ast.Visitor {
	switch x := n.(type) {
	case *ast.AnchorNode:
		below := &count{most: c.most, anchors: c.anchors}
		ast.Walk(below, x.Value)
		c.anchors[x.Name.String()] = below.n
		c.add(below.n)
		return nil
	case *ast.AliasNode:
		c.add(1 + c.anchors[x.Value.String()])
		return nil
	}
	c.add(1)
	return c
}

func (c *count) add(n int) { c.n = min(c.n+n, c.most+1) }

// unpanicked returns f's error, or an error if f panics. The YAML library panics on some input, such as a tag
// in the place of a sequence.
func unpanicked(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("this YAML cannot be read")
		}
	}()
	return f()
}
