package ctl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/quillon/quillon/nf/value"
)

// node is a value of a YAML file with its place. Scalars are kept as they are
// written: 00:00:00:00:00:10 and 010 mean what their field makes of them.
type node struct {
	file string
	line int
	kind nodeKind
	text string // of a scalar
	list []*node
	keys []*node // of a map, in order; list has the values
}

type nodeKind uint8

const (
	null nodeKind = iota
	scalar
	sequence
	mapping
)

func (k nodeKind) String() string { return [...]string{"nothing", "a value", "a list", "a map"}[k] }

// fault is something wrong in a file. Error is one line.
type fault struct {
	file string
	line int
	err  error
}

func (f *fault) Error() string { return fmt.Sprintf("%s:%d: %v", f.file, f.line, f.err) }
func (f *fault) Unwrap() error { return f.err }

func (n *node) errorf(format string, args ...any) error {
	return &fault{n.file, n.line, fmt.Errorf(format, args...)}
}

// wrap puts n's place, and where in words, before err, unless it has a place.
func (n *node) wrap(where string, err error) error {
	var f *fault
	if err == nil || errors.As(err, &f) {
		return err
	}
	if where != "" {
		err = fmt.Errorf("%s: %w", where, err)
	}
	return &fault{n.file, n.line, err}
}

// Bounds on a file: aliases may be used, but not to blow it up.
const (
	maxNodes = 10_000_000
	maxDepth = 64
)

// parseYAML reads a file of one document.
func parseYAML(file string, src []byte) (root *node, err error) {
	defer func() { // the parser panics on some broken input
		if p := recover(); p != nil {
			root, err = nil, fmt.Errorf("%s: not YAML: %v", file, p)
		}
	}()
	f, err := parser.ParseBytes(src, 0)
	if err != nil {
		return nil, yamlError(file, err)
	}
	c := converter{file: file, anchors: map[string]*node{}}
	root = &node{file: file, line: 1}
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if root.kind != null {
			return nil, &fault{file, line(d.Body), errors.New("a second document: want one")}
		}
		if root, err = c.convert(d.Body, 0); err != nil {
			return nil, err
		}
	}
	return root, nil
}

// yamlError makes the parser's drawing of an error one line.
func yamlError(file string, err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	if pos, msg, ok := strings.Cut(first, "] "); ok && strings.HasPrefix(pos, "[") {
		at, _, _ := strings.Cut(pos[1:], ":")
		if n, e := strconv.Atoi(at); e == nil {
			return &fault{file, n, errors.New(msg)}
		}
	}
	return fmt.Errorf("%s: %s", file, first)
}

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

type converter struct {
	file    string
	anchors map[string]*node
	nodes   int
}

func (c *converter) convert(a ast.Node, depth int) (*node, error) {
	n := &node{file: c.file, line: line(a)}
	if c.nodes++; c.nodes > maxNodes {
		return nil, n.errorf("the file has more than %d values", maxNodes)
	}
	if depth > maxDepth {
		return nil, n.errorf("more than %d levels", maxDepth)
	}
	switch a := a.(type) {
	case *ast.NullNode:
	case *ast.MappingNode:
		n.kind = mapping
		for _, v := range a.Values {
			if err := c.pair(n, v, depth); err != nil {
				return nil, err
			}
		}
		if len(n.keys) > 0 {
			n.line = n.keys[0].line
		}
	case *ast.MappingValueNode:
		n.kind = mapping
		if err := c.pair(n, a, depth); err != nil {
			return nil, err
		}
		n.line = n.keys[0].line
	case *ast.SequenceNode:
		n.kind = sequence
		for _, v := range a.Values {
			x, err := c.convert(v, depth+1)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, x)
		}
	case *ast.AnchorNode:
		x, err := c.convert(a.Value, depth+1)
		if err != nil {
			return nil, err
		}
		c.anchors[a.Name.GetToken().Value] = x
		return x, nil
	case *ast.AliasNode:
		x := c.anchors[a.Value.GetToken().Value]
		if x == nil {
			return nil, n.errorf("there is no anchor &%s above", a.Value.GetToken().Value)
		}
		if c.nodes += x.size(); c.nodes > maxNodes {
			return nil, n.errorf("the file has more than %d values", maxNodes)
		}
		return x, nil
	case *ast.TagNode:
		return nil, n.errorf("tags as %s are not understood", a.Start.Value)
	case *ast.LiteralNode:
		n.kind, n.text = scalar, a.Value.Value
	case ast.ScalarNode:
		n.kind, n.text = scalar, a.GetToken().Value
	default:
		return nil, n.errorf("%s is not understood here", a.Type())
	}
	return n, nil
}

// pair adds a key and its value to a map.
func (c *converter) pair(n *node, v *ast.MappingValueNode, depth int) error {
	k := &node{file: c.file, line: line(v.Key), kind: scalar, text: v.Key.GetToken().Value}
	if _, merge := v.Key.(*ast.MergeKeyNode); merge {
		return k.errorf("<< is not understood; *NAME for a whole value is")
	}
	if slices.ContainsFunc(n.keys, func(x *node) bool { return x.text == k.text }) {
		return k.errorf("%s is there twice", k.text)
	}
	x, err := c.convert(v.Value, depth+1)
	if err != nil {
		return err
	}
	n.keys, n.list = append(n.keys, k), append(n.list, x)
	return nil
}

// size is the number of values in n.
func (n *node) size() int {
	total := 1
	for _, x := range n.list {
		if total += x.size(); total > maxNodes {
			break
		}
	}
	return total
}

func (n *node) want(k nodeKind, what string) error {
	if n.kind != k {
		return n.errorf("%s: want %s, there is %s", what, k, n.kind)
	}
	return nil
}

// fields calls the function of each key that is there; unknown ones are errors.
// A function gets the value.
func (n *node) fields(what string, known map[string]func(*node) error) error {
	if err := n.want(mapping, what); err != nil {
		return err
	}
	for i, k := range n.keys {
		f := known[k.text]
		if f == nil {
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			return k.errorf("%s: %s is not known; there are: %s", what, k.text, strings.Join(names, ", "))
		}
		if err := f(n.list[i]); err != nil {
			return n.list[i].wrap(what+": "+k.text, err)
		}
	}
	return nil
}

// The functions for fields. They fill in what p points to.

func textInto(p *string) func(*node) error {
	return func(n *node) error {
		if n.kind != scalar {
			return fmt.Errorf("want a value, there is %s", n.kind)
		}
		*p = n.text
		return nil
	}
}

func intInto[T ~int32 | ~uint32 | ~int64 | ~uint64](p *T) func(*node) error {
	return func(n *node) error {
		if n.kind != scalar {
			return fmt.Errorf("want a number, there is %s", n.kind)
		}
		v, _, err := value.Parse(n.text)
		if err != nil {
			return err
		}
		x := value.Uint64(v)
		if value.BitLen(v) > 64 || uint64(T(x)) != x || T(x) < 0 {
			return fmt.Errorf("%s is too large", n.text)
		}
		*p = T(x)
		return nil
	}
}

func boolInto(p *bool) func(*node) error {
	return func(n *node) error {
		if n.kind != scalar || n.text != "true" && n.text != "false" {
			return errors.New("want true or false")
		}
		*p = n.text == "true"
		return nil
	}
}

// nanosInto reads a duration, as in 500ms.
func nanosInto(p *int64) func(*node) error {
	return func(n *node) error {
		d, err := time.ParseDuration(n.text)
		if n.kind != scalar || err != nil || d < 0 {
			return errors.New("want a duration, as in 500ms or 30s")
		}
		*p = int64(d)
		return nil
	}
}

// eachInto calls f for each value of a list.
func eachInto(f func(*node) error) func(*node) error {
	return func(n *node) error {
		if n.kind == null {
			return nil
		}
		if n.kind != sequence {
			return fmt.Errorf("want a list, there is %s", n.kind)
		}
		for _, x := range n.list {
			if err := f(x); err != nil {
				return err
			}
		}
		return nil
	}
}
