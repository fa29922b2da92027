package yaml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/quillon/quillon/nf/value"
)

// Node is a value of a source, with its place. A scalar is kept as it is written, because only its field
// tells what 00:00:00:00:00:10 or 010 means.
type Node struct {
	File string
	Line int
	Kind NodeKind
	Text string  // of a scalar
	Keys []*Node // keys of a mapping, in order
	List []*Node // values of a list or a mapping
}

// NodeKind is the kind of a Node.
type NodeKind uint8

const (
	Null NodeKind = iota
	Scalar
	Sequence
	Mapping
)

func (k NodeKind) String() string {
	return [...]string{"nothing", "a value", "a list", "a map"}[k]
}

// treeBounds are the bounds of Tree: a controller's intent may have a million entries.
var treeBounds = bounds{1 << 30, 40_000_000}

// Tree parses a source with the name file. All errors are *Error.
func Tree(file string, src []byte) (*Node, error) {
	root := &Node{File: file, Line: 1}
	err := read(src, treeBounds, func(f *ast.File) (*Error, error) {
		n := body(f)
		if n == nil {
			return nil, nil
		}
		c := converter{file: file, anchors: map[string]*Node{}}
		var wrong *Error
		root, wrong = c.convert(n)
		return wrong, nil
	})
	if err != nil {
		err.File, err.Column = file, 0
		return nil, err
	}
	return root, nil
}

type converter struct {
	file    string
	anchors map[string]*Node
}

func (c *converter) node(a ast.Node, k NodeKind) *Node {
	n := &Node{File: c.file, Kind: k}
	if t := a.GetToken(); t != nil && t.Position != nil {
		n.Line = t.Position.Line
	}
	return n
}

func (c *converter) convert(a ast.Node) (*Node, *Error) {
	switch a := a.(type) {
	case *ast.NullNode:
		return c.node(a, Null), nil
	case *ast.MappingNode:
		return c.mapping(c.node(a, Mapping), a.Values)
	case *ast.MappingValueNode:
		return c.mapping(c.node(a, Mapping), []*ast.MappingValueNode{a})
	case *ast.SequenceNode:
		n := c.node(a, Sequence)
		for _, v := range a.Values {
			x, err := c.convert(v)
			if err != nil {
				return nil, err
			}
			n.List = append(n.List, x)
		}
		return n, nil
	case *ast.AnchorNode:
		x, err := c.convert(a.Value)
		c.anchors[a.Name.GetToken().Value] = x
		return x, err
	case *ast.AliasNode:
		x := c.anchors[a.Value.GetToken().Value]
		if x == nil {
			return nil, c.node(a, Null).errorf("there is no anchor %q above", a.Value.GetToken().Value)
		}
		return x, nil
	case *ast.TagNode:
		return nil, c.node(a, Null).errorf("tags as %q are not understood", a.Start.Value)
	case *ast.LiteralNode:
		n := c.node(a, Scalar)
		n.Text = a.Value.Value
		return n, nil
	case ast.ScalarNode:
		n := c.node(a, Scalar)
		n.Text = a.GetToken().Value
		return n, nil
	}
	return nil, c.node(a, Null).errorf("%s is not understood here", a.Type())
}

// mapping adds the pairs to the mapping n.
func (c *converter) mapping(n *Node, pairs []*ast.MappingValueNode) (*Node, *Error) {
	for _, v := range pairs {
		k := c.node(v.Key, Scalar)
		k.Text = v.Key.GetToken().Value
		if _, merge := v.Key.(*ast.MergeKeyNode); merge {
			return nil, k.errorf("<< is not understood; *NAME for a whole value is")
		}
		x, err := c.convert(v.Value)
		if err != nil {
			return nil, err
		}
		n.Keys, n.List = append(n.Keys, k), append(n.List, x)
	}
	if len(n.Keys) > 0 {
		n.Line = n.Keys[0].Line
	}
	return n, nil
}

func (n *Node) errorf(format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{File: n.File, Line: n.Line, Msg: err.Error(), err: err}
}

// Errorf returns an error with the node's place.
func (n *Node) Errorf(format string, args ...any) error { return n.errorf(format, args...) }

// Wrap returns err with the node's place, and with where before its text. It returns err itself if err has a
// place already, or is nil.
func (n *Node) Wrap(where string, err error) error {
	var placed *Error
	if err == nil || errors.As(err, &placed) {
		return err
	}
	if where == "" {
		return n.Errorf("%w", err)
	}
	return n.Errorf("%s: %w", where, err)
}

// Want returns an error unless the node is of kind k. what names the node in the error.
func (n *Node) Want(k NodeKind, what string) error {
	if n.Kind != k {
		return n.Errorf("%s: want %s, there is %s", what, k, n.Kind)
	}
	return nil
}

// Fields calls, for each key of the mapping, the function in known with the key's value. A key that is not in
// known is an error.
func (n *Node) Fields(what string, known map[string]func(*Node) error) error {
	if err := n.Want(Mapping, what); err != nil {
		return err
	}
	for i, k := range n.Keys {
		f := known[k.Text]
		if f == nil {
			return k.Errorf("%s: %s is not known; there are: %s", what, k.Text, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := f(n.List[i]); err != nil {
			return n.List[i].Wrap(what+": "+k.Text, err)
		}
	}
	return nil
}

// Functions for Fields. Each stores the value in *p.

// Text reads a value as it is written.
func Text(p *string) func(*Node) error {
	return func(n *Node) error {
		if n.Kind != Scalar {
			return fmt.Errorf("want a value, there is %s", n.Kind)
		}
		*p = n.Text
		return nil
	}
}

// Int reads a number in the forms of value.Parse.
func Int[T ~int32 | ~uint32 | ~int64 | ~uint64](p *T) func(*Node) error {
	return func(n *Node) error {
		if n.Kind != Scalar {
			return fmt.Errorf("want a number, there is %s", n.Kind)
		}
		v, _, err := value.Parse(n.Text)
		if err != nil {
			return err
		}
		x := value.Uint64(v)
		if value.BitLen(v) > 64 || uint64(T(x)) != x || T(x) < 0 {
			return fmt.Errorf("%s is too large", n.Text)
		}
		*p = T(x)
		return nil
	}
}

// Bool reads true or false.
func Bool(p *bool) func(*Node) error {
	return func(n *Node) error {
		if n.Kind != Scalar || n.Text != "true" && n.Text != "false" {
			return errors.New("want true or false")
		}
		*p = n.Text == "true"
		return nil
	}
}

// Duration reads a duration such as 500ms, and stores nanoseconds.
func Duration(p *int64) func(*Node) error {
	return func(n *Node) error {
		d, err := time.ParseDuration(n.Text)
		if n.Kind != Scalar || err != nil || d < 0 {
			return errors.New("want a duration, as in 500ms or 30s")
		}
		*p = int64(d)
		return nil
	}
}

// Each calls f for each value of a list. A value of nothing is an empty list.
func Each(f func(*Node) error) func(*Node) error {
	return func(n *Node) error {
		if n.Kind == Null {
			return nil
		}
		if n.Kind != Sequence {
			return fmt.Errorf("want a list, there is %s", n.Kind)
		}
		for _, x := range n.List {
			if err := f(x); err != nil {
				return err
			}
		}
		return nil
	}
}
