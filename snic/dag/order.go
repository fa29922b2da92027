package dag

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/graph"
)

// MaxTasks is the largest number of tasks that a DAG may name.
const MaxTasks = 64

// Order is a DAG with the names of its tasks. Its text consists of sequences of tasks:
//
//	fw -> nat -> aes; fw -> count
//
// A name that comes again is the same task. Statements are separated by semicolons or line ends;
// a statement may be a single name. Tasks are in the order in which they are first named; Edges
// are sorted and without duplicates.
type Order struct {
	Tasks []string
	Edges [][2]int // indices of Tasks: first one, then the other
}

// ParseOrder reads the text of a DAG. It does not check for cycles.
func ParseOrder(s string) (Order, error) {
	var o Order
	index := map[string]int{}
	for _, statement := range strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == '\n' }) {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		last := -1
		for _, name := range strings.Split(statement, "->") {
			name = strings.TrimSpace(name)
			if !graph.ValidName(name) {
				return Order{}, fmt.Errorf("%q is no name of a task: want a -> b -> c; a -> d", clip(name))
			}
			i, ok := index[name]
			if !ok {
				if i = len(o.Tasks); i == MaxTasks {
					return Order{}, fmt.Errorf("more than %d tasks", MaxTasks)
				}
				index[name] = i
				o.Tasks = append(o.Tasks, name)
			}
			if last >= 0 {
				o.Edges = append(o.Edges, [2]int{last, i})
			}
			last = i
		}
	}
	if len(o.Tasks) == 0 {
		return Order{}, errors.New("no task is named: want a -> b -> c; a -> d")
	}
	slices.SortFunc(o.Edges, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	o.Edges = slices.Compact(o.Edges)
	return o, nil
}

// String returns a text that ParseOrder reads back to an equal Order.
func (o Order) String() string {
	var b strings.Builder
	edges := slices.Clone(o.Edges)
	named := 0 // tasks before it are named
	// step takes the edge that goes on from a task, so that tasks are named in
	// their order; new ones first.
	step := func(from int) (to int, ok bool) {
		at := -1
		for i, e := range edges {
			if e[0] == from && (e[1] == named || e[1] < named && at < 0) {
				at = i
			}
		}
		if at < 0 {
			return 0, false
		}
		to = edges[at][1]
		edges = slices.Delete(edges, at, at+1)
		return to, true
	}
	for named < len(o.Tasks) || len(edges) > 0 {
		from := slices.IndexFunc(edges, func(e [2]int) bool { return e[0] < named && e[1] <= named })
		at := named
		if from >= 0 {
			at = edges[from][0]
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		for first := true; ; first = false {
			if !first {
				to, ok := step(at)
				if !ok {
					break
				}
				b.WriteString(" -> ")
				at = to
			}
			b.WriteString(o.Tasks[at])
			named = max(named, at+1)
		}
	}
	return b.String()
}

// circle returns the names of the tasks of a cycle, with the first task again at the end, or nil
// if the DAG has no cycle.
func (o Order) circle() []string {
	const (
		fresh = iota
		open
		done
	)
	state := make([]uint8, len(o.Tasks))
	var path []int
	var visit func(i int) []string
	visit = func(i int) []string {
		state[i] = open
		path = append(path, i)
		for _, e := range o.Edges {
			if e[0] != i {
				continue
			}
			switch state[e[1]] {
			case open:
				var names []string
				for _, j := range append(path[slices.Index(path, e[1]):], e[1]) {
					names = append(names, o.Tasks[j])
				}
				return names
			case fresh:
				if c := visit(e[1]); c != nil {
					return c
				}
			}
		}
		state[i] = done
		path = path[:len(path)-1]
		return nil
	}
	for i := range o.Tasks {
		if state[i] == fresh {
			if c := visit(i); c != nil {
				return c
			}
		}
	}
	return nil
}
