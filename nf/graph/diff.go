package graph

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
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

// Plan lists the changes from one Spec to another. Apps, ports and links that the Plan does not name keep
// their state.
type Plan struct {
	Actions  []Action `json:"actions"`
	old, new *Spec
}

// Empty reports whether nothing changes.
func (p Plan) Empty() bool { return len(p.Actions) == 0 }

// String returns one line for each action.
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

// Diff returns the Plan from old to new. If old is nil, it stands for the empty graph.
// Equal Specs give an empty Plan, and the same Specs always give the same Plan.
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
	// An app or port that is made anew takes its links with it.
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
			add(OpOpenPort, n, inWords(new.Ports[n].Kind, new.Ports[n].Args))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(new.Apps)) {
		if fresh[n] {
			add(OpStart, n, inWords(new.Apps[n].Kind, new.Apps[n].Args))
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

// inWords returns what describe returns, on one line for people, even if values have several lines.
func inWords(kind string, args Args) string {
	for _, k := range slices.Sorted(maps.Keys(args)) {
		kind += "," + k + "=" + flat(args[k])
	}
	return kind
}

// flat is a value on one line: the number of its lines if it has several, quotes around it if it has characters that do
// not print.
func flat(v string) string {
	v = strings.TrimSuffix(v, "\n")
	switch n := strings.Count(v, "\n") + 1; {
	case n > 1:
		return fmt.Sprintf("(%d lines)", n)
	case strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return strconv.Quote(v)
	}
	return v
}

// shownLines is how many of the lines that differ a plan shows.
const shownLines = 8

// changed describes how a value has changed. Of values with several lines it shows only the lines that differ.
func changed(was, is string) string {
	if !strings.Contains(strings.TrimSuffix(was, "\n")+strings.TrimSuffix(is, "\n"), "\n") {
		return fmt.Sprintf("%s (was %s)", flat(is), flat(was))
	}
	have := map[string]int{}
	for l := range strings.Lines(was) {
		have[strings.TrimSpace(l)]++
	}
	var differ []string
	for l := range strings.Lines(is) {
		if l = strings.TrimSpace(l); have[l] > 0 {
			have[l]--
		} else {
			differ = append(differ, fmt.Sprintf("+ %q", l))
		}
	}
	for l := range strings.Lines(was) {
		if l = strings.TrimSpace(l); have[l] > 0 {
			have[l]--
			differ = append(differ, fmt.Sprintf("- %q", l))
		}
	}
	what := "lines in another order or indented otherwise"
	if n := len(differ); n > 0 {
		what = strings.Join(differ[:min(n, shownLines)], ", ")
		if n > shownLines {
			what += fmt.Sprintf(", and %d more", n-shownLines)
		}
	}
	return fmt.Sprintf("%s (was %s: %s)", flat(is), flat(was), what)
}

// describe returns "kind,arg=value,...", the form of the command line.
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
			parts = append(parts, k+"="+flat(b))
		case !hasNew:
			parts = append(parts, k+" back to its default")
		case a != b:
			parts = append(parts, k+"="+changed(a, b))
		}
	}
	return strings.Join(parts, ", ")
}
