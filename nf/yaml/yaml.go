// Package yaml reads what is kept in YAML: strictly, within bounds, and so that an
// error points at its place.
//
//	if err := yaml.Unmarshal(src, &spec); err != nil { ... }      // of the YAML
//	return yaml.At(src, []any{"apps", "fw", "kind"}, "...")       // of what it says
//	root, err := yaml.Tree("intent.yaml", src)                    // values as they are written, with their lines
//
// A source is one document. It has a size, a depth and a number of values at most, those that aliases
// stand for among them: nothing that a few lines say takes long, or much memory.
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

// Limits of a source.
const (
	maxSource = 16 << 20
	maxNodes  = 1 << 20 // aliases followed
	maxDepth  = 32      // of brackets, or of dashes in a row
	// An excerpt of a longer one is not made: the YAML library takes quadratic time for it.
	maxExcerpt = 64 << 10
)

// Error is something wrong in a source. Excerpt is the place with the lines around
// it, empty when it is not known, or the source is long.
type Error struct {
	File         string // "" when unknown
	Line, Column int    // from 1; 0 when unknown
	Msg          string
	Excerpt      string
	err          error // whose text Msg is; nil: of none
}

// Error is one line.
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

// place sets line and column to where a token is.
func (e *Error) place(t *token.Token) *Error {
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

// On is an error about a value that was parsed.
func On(n ast.Node, msg string) *Error { return (&Error{Msg: msg}).place(n.GetToken()) }

// Marshal writes v.
func Marshal(v any) ([]byte, error) { return yaml.Marshal(v) }

// Unmarshal reads src into v. Unknown and repeated fields are errors, and what
// checks have against it as it is written.
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

// bounds are on a source: its bytes, and its values, aliases followed.
type bounds struct{ source, nodes int }

// read parses src within bounds, and does with it what do does.
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
	var y yaml.Error
	if errors.As(err, &y) {
		wrong.Msg = message(y)
		wrong.place(y.GetToken())
		wrong.Excerpt = yaml.FormatErrorWithToken(wrong.Msg, y.GetToken(), false, true)
	}
	wrong.Msg, _, _ = strings.Cut(wrong.Msg, "\n")
	wrong.Msg = oneLine(wrong.Msg)
	return wrong
}

// body is what the document of a file says; nil: nothing.
func body(f *ast.File) ast.Node {
	for _, d := range f.Docs {
		if d.Body != nil && d.Body.Type() != ast.DirectiveType {
			return d.Body
		}
	}
	return nil
}

// message is what the YAML library says, without Go's types.
func message(err yaml.Error) string {
	var to reflect.Type
	switch err := err.(type) {
	case *yaml.TypeError:
		to = err.DstType
	case *yaml.OverflowError:
		to = err.DstType
	default:
		return err.GetMessage()
	}
	return written(err.GetToken()) + ": want " + wanted(to)
}

// written is what begins with a token.
func written(t *token.Token) string {
	const most = 40 // bytes of a value
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

// wanted is what values of a type are in YAML.
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

// oneLine is text without control characters.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// At is an error at a place of a source, such as "apps", "fw", "kind" or "links", 3.
// It is without a place when the source, which may be nil, has none.
func At(src []byte, place []any, msg string) *Error {
	e := &Error{Msg: oneLine(msg)}
	if src == nil {
		return e
	}
	b := (&yaml.PathBuilder{}).Root()
	for _, step := range place {
		switch step := step.(type) {
		case string:
			b = b.Child(step)
		case int:
			b = b.Index(uint(step))
		}
	}
	p := b.Build()
	_ = unpanicked(func() error {
		f, err := parser.ParseBytes(src, 0)
		if err != nil {
			return err
		}
		n, err := p.FilterFile(f)
		if err != nil || n == nil {
			return err
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

// shallow refuses what is nested so deeply that the YAML library takes quadratic
// time for it.
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

// single refuses a second document: the first alone would be read, and the YAML
// library takes quadratic time for many.
func single(tokens token.Tokens) *Error {
	directive := 0 // the line of one
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

// bounded refuses aliases that stand for more than anybody writes.
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

// count is of the nodes below one, those of aliases among them.
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

// unpanicked is f's error. The YAML library panics on some input, such as a tag
// where a sequence should be.
func unpanicked(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("this YAML cannot be read")
		}
	}()
	return f()
}
