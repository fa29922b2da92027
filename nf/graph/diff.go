package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Op is what an Action does.
type Op string

// The operations, in the order in which a Plan lists them.
const (
	OpUnlink      Op = "unlink"
	OpStop        Op = "stop"
	OpClosePort   Op = "close-port"
	OpOpenPort    Op = "open-port"
	OpStart       Op = "start"
	OpReconfigure Op = "reconfigure"
	OpLink        Op = "link"
)

// Action is one step of a Plan.
type Action struct {
	Op     Op     `json:"op"`
	Name   string `json:"name"`             // app, port, or link
	Detail string `json:"detail,omitempty"` // kind and arguments, or what changes
}

func (a Action) String() string {
	if a.Detail == "" {
		return string(a.Op) + " " + a.Name
	}
	return string(a.Op) + " " + a.Name + ": " + a.Detail
}

// Plan is the way from one Spec to another. What it does not name stays as it
// is, with its state.
type Plan struct {
	Actions  []Action `json:"actions"`
	old, new *Spec
}

// Empty reports whether nothing changes.
func (p Plan) Empty() bool { return len(p.Actions) == 0 }

// String is one line an action.
func (p Plan) String() string {
	if p.Empty() {
		return "nothing to do\n"
	}
	var b strings.Builder
	for _, a := range p.Actions {
		b.WriteString(a.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Diff is the Plan that leads from old to new; a nil old is the empty graph.
// Equal Specs give an empty Plan, and the same Specs always the same Plan.
func Diff(old, new *Spec) (Plan, error) {
	if old == nil {
		old = &Spec{}
	}
	p := Plan{old: old.Clone(), new: new.Clone()}
	oldEdges, err := old.edges()
	if err != nil {
		return Plan{}, err
	}
	newEdges, err := new.edges()
	if err != nil {
		return Plan{}, err
	}
	add := func(op Op, name, detail string) {
		p.Actions = append(p.Actions, Action{op, name, detail})
	}
	// What is made anew takes its links with it.
	fresh := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(old.Apps)) {
		if a, ok := new.Apps[n]; !ok || a.Kind != old.Apps[n].Kind {
			fresh[n] = true
		}
	}
	for n := range new.Apps {
		if _, ok := old.Apps[n]; !ok {
			fresh[n] = true
		}
	}
	samePort := func(a, b PortSpec) bool { return a.Kind == b.Kind && maps.Equal(a.Args, b.Args) }
	for n := range old.Ports {
		if q, ok := new.Ports[n]; !ok || !samePort(q, old.Ports[n]) {
			fresh[n] = true
		}
	}
	for n := range new.Ports {
		if _, ok := old.Ports[n]; !ok {
			fresh[n] = true
		}
	}
	stays := func(e edge, other []edge) bool {
		return slices.Contains(other, e) && !fresh[e.from] && !fresh[e.to]
	}
	for _, e := range oldEdges {
		if !stays(e, newEdges) {
			add(OpUnlink, e.String(), "")
		}
	}
	for _, n := range slices.Sorted(maps.Keys(old.Apps)) {
		if fresh[n] {
			add(OpStop, n, old.Apps[n].Kind)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(old.Ports)) {
		if fresh[n] {
			add(OpClosePort, n, old.Ports[n].Kind)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(new.Ports)) {
		if fresh[n] {
			add(OpOpenPort, n, describe(new.Ports[n].Kind, new.Ports[n].Args))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(new.Apps)) {
		if fresh[n] {
			add(OpStart, n, describe(new.Apps[n].Kind, new.Apps[n].Args))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(new.Apps)) {
		if !fresh[n] && !maps.Equal(old.Apps[n].Args, new.Apps[n].Args) {
			add(OpReconfigure, n, diffArgs(old.Apps[n].Args, new.Apps[n].Args))
		}
	}
	for _, e := range newEdges {
		if !stays(e, oldEdges) {
			add(OpLink, e.String(), "")
		}
	}
	return p, nil
}

// describe is "kind,arg=value,...", the form of the command line.
func describe(kind string, args Args) string {
	for _, k := range slices.Sorted(maps.Keys(args)) {
		kind += "," + k + "=" + args[k]
	}
	return kind
}

func diffArgs(old, new Args) string {
	all := maps.Clone(old)
	if all == nil {
		all = Args{}
	}
	maps.Copy(all, new)
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		a, hadOld := old[k]
		b, hasNew := new[k]
		switch {
		case !hadOld:
			parts = append(parts, k+"="+b)
		case !hasNew:
			parts = append(parts, k+" back to its default")
		case a != b:
			parts = append(parts, fmt.Sprintf("%s=%s (was %s)", k, b, a))
		}
	}
	return strings.Join(parts, ", ")
}
