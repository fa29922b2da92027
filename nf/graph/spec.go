package graph

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/yaml"
)

// Spec describes a graph: ports, apps and the links between them. It is a
// passive value; in a file it is YAML:
//
//	ports:
//	  a: {kind: afxdp, args: {dev: eth1}}
//	  b: {kind: afxdp, args: {dev: eth2}}
//	apps:
//	  steer: {kind: clover-steer, args: {mode: read-write}}
//	links:
//	  - a.out -> steer.a
//	  - steer.b -> b.in
//	  - b.out -> steer.b
//	  - steer.a -> a.in
//
// A port's "out" yields the frames that it received; frames that go to its
// "in" are sent. Ports and apps share one space of names.
type Spec struct {
	Ports map[string]PortSpec `yaml:"ports,omitempty" json:"ports,omitempty"`
	Apps  map[string]AppSpec  `yaml:"apps,omitempty" json:"apps,omitempty"`
	Links []string            `yaml:"links,omitempty" json:"links,omitempty"`

	source []byte // what ParseSpec read: errors point into it
}

// PortSpec says how a port is opened.
type PortSpec struct {
	Kind string `yaml:"kind" json:"kind"`
	Args Args   `yaml:"args,omitempty" json:"args,omitempty"`
	// Cable is an app between the port and everything that is linked to the port, for example {kind: hop}. The
	// app's side b is linked to the port, its side a to the graph. The neighbour at the other end of the cable has
	// such an app as well. ParseSpec replaces Cable by an app NAME-cable and its links.
	Cable *AppSpec `yaml:"cable,omitempty" json:"cable,omitempty"`
}

// Peer returns the name of the port to which frames that no app wants cross in the kernel. It returns "" if
// the port has no such peer, or if these frames go to the kernel's stack.
func (p PortSpec) Peer() string {
	if p.Args["fallback"] == "pass" {
		return ""
	}
	return p.Args["pair"]
}

// AppSpec gives the kind and the arguments of an app.
type AppSpec struct {
	Kind string `yaml:"kind" json:"kind"`
	Args Args   `yaml:"args,omitempty" json:"args,omitempty"`
}

// PortKind documents a sort of port for Validate. A program that opens ports declares
// the kinds that it knows.
type PortKind struct {
	Name    string  `json:"name"`
	Summary string  `json:"summary"`
	Params  []Param `json:"params"`
}

// SpecError describes a fault of a Spec. Error returns one line. Excerpt is the place
// in the source with the lines around it, or empty if the Spec was not parsed.
type SpecError yaml.Error

func (e *SpecError) Error() string {
	if e.Line == 0 {
		return "spec: " + e.Msg
	}
	return "spec:" + (*yaml.Error)(e).Error()
}

// ParseSpec reads YAML. Unknown and repeated fields are errors; all errors are
// *SpecError.
func ParseSpec(src []byte) (*Spec, error) {
	s := &Spec{source: slices.Clone(src)}
	if err := yaml.Unmarshal(src, s); err != nil {
		return nil, (*SpecError)(err)
	}
	if err := s.writeCables(); err != nil {
		return nil, err
	}
	return s, nil
}

// writeCables replaces each port's Cable by an app between the port and the apps that are linked to it.
func (s *Spec) writeCables() error {
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		p := s.Ports[name]
		if p.Cable == nil {
			continue
		}
		app := name + "-cable"
		if _, taken := s.Apps[app]; taken {
			return s.errAt(path("ports", name, "cable"), "%s is the name of another app", app)
		}
		if s.Apps == nil {
			s.Apps = map[string]AppSpec{}
		}
		s.Apps[app], p.Cable = *p.Cable, nil
		s.Ports[name] = p
		for i, l := range s.Links {
			e, err := parseEdge(l)
			if err != nil {
				return s.errAt(path("links", i), "%v", err)
			}
			switch {
			case e.from == name:
				e.from, e.out = app, "a"
			case e.to == name:
				e.to, e.in = app, "a"
			default:
				continue
			}
			s.Links[i] = e.String()
		}
		s.Links = append(s.Links, name+".out -> "+app+".b", app+".b -> "+name+".in")
	}
	return nil
}

// Marshal writes the Spec as YAML that ParseSpec reads back to an equal Spec.
func (s *Spec) Marshal() ([]byte, error) { return yaml.Marshal(s) }

// Clone returns a deep copy.
func (s *Spec) Clone() *Spec {
	c := &Spec{
		Ports:  maps.Clone(s.Ports),
		Apps:   maps.Clone(s.Apps),
		Links:  slices.Clone(s.Links),
		source: s.source,
	}
	for k, v := range c.Ports {
		v.Args = maps.Clone(v.Args)
		c.Ports[k] = v
	}
	for k, v := range c.Apps {
		v.Args = maps.Clone(v.Args)
		c.Apps[k] = v
	}
	return c
}

// edge is a parsed link.
type edge struct{ from, out, to, in string }

func (e edge) String() string { return e.from + "." + e.out + " -> " + e.to + "." + e.in }

func parseEdge(s string) (edge, error) {
	l, r, ok := strings.Cut(s, "->")
	var e edge
	var ok1, ok2 bool
	e.from, e.out, ok1 = strings.Cut(strings.TrimSpace(l), ".")
	e.to, e.in, ok2 = strings.Cut(strings.TrimSpace(r), ".")
	if !ok || !ok1 || !ok2 || !ValidName(e.from) || !ValidName(e.out) || !ValidName(e.to) || !ValidName(e.in) {
		return edge{}, fmt.Errorf("link %q is not of the form \"NAME.OUT -> NAME.IN\"", s)
	}
	return e, nil
}

// edges returns the parsed Links, in the order of their text.
func (s *Spec) edges() ([]edge, error) {
	es := make([]edge, 0, len(s.Links))
	for i, l := range s.Links {
		e, err := parseEdge(l)
		if err != nil {
			return nil, s.errAt(path("links", i), "%v", err)
		}
		es = append(es, e)
	}
	slices.SortFunc(es, func(a, b edge) int { return strings.Compare(a.String(), b.String()) })
	return es, nil
}

// ValidName reports whether s may name a port, an app or an end of one: 1 to 64 letters, digits, _ and -, and the
// first is no -.
func ValidName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case i > 0 && c == '-':
		default:
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// path returns the path of a value in the YAML document.
func path(steps ...any) []any { return steps }

// errAt returns a SpecError that points at a place in the source, if the Spec has a source.
func (s *Spec) errAt(place []any, format string, args ...any) *SpecError {
	return (*SpecError)(yaml.At(s.source, place, fmt.Sprintf(format, args...)))
}

// Validate checks that the Spec can be built: kinds and arguments exist, links join existing ends, every output has
// at most one link, and no frame can go round from app to app, except between two apps that are linked both ways.
// If portKinds is nil, the kinds and arguments of ports are not checked. Validate also changes arguments that are
// lists of entries into the arguments' own form.
func (s *Spec) Validate(kinds []Kind, portKinds []PortKind) error {
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		p := s.Ports[name]
		at := path("ports", name)
		if !ValidName(name) {
			return s.errAt(at, "port name %q: use letters, digits, '_' and '-'", name)
		}
		if _, ok := s.Apps[name]; ok {
			return s.errAt(at, "%q names a port and an app: rename one", name)
		}
		if portKinds == nil {
			continue
		}
		i := slices.IndexFunc(portKinds, func(k PortKind) bool { return k.Name == p.Kind })
		if i < 0 {
			var known []string
			for _, k := range portKinds {
				known = append(known, k.Name)
			}
			return s.errAt(path("ports", name, "kind"), "port %s: %s", name, unknownKind(p.Kind, known))
		}
		if err := s.checkArgs("ports", "port", name, p.Args, portKinds[i].Params); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Apps)) {
		a := s.Apps[name]
		if !ValidName(name) {
			return s.errAt(path("apps", name), "app name %q: use letters, digits, '_' and '-'", name)
		}
		k := findKind(kinds, a.Kind)
		if k == nil {
			var known []string
			for _, k := range kinds {
				known = append(known, k.Name)
			}
			return s.errAt(path("apps", name, "kind"), "app %s: %s", name, unknownKind(a.Kind, known))
		}
		if args, arg, item, err := k.WriteEntries(a.Args); err != nil {
			return s.errAt(path("apps", name, "args", arg, item), "app %s: %v", name, err)
		} else if args != nil {
			a.Args = args
			s.Apps[name] = a
		}
		if err := s.checkArgs("apps", "app", name, a.Args, k.Params); err != nil {
			return err
		}
	}
	used := map[string]string{}
	for i, text := range s.Links {
		at := path("links", i)
		e, err := parseEdge(text)
		if err != nil {
			return s.errAt(at, "%v", err)
		}
		outs, err := s.ends(kinds, e.from, true)
		if err != nil {
			return s.errAt(at, "link %q: %v", e, err)
		}
		if !slices.Contains(outs, e.out) {
			return s.errAt(at, "link %q: %s has no output %q%s", e, e.from, e.out, Suggest(e.out, outs))
		}
		ins, err := s.ends(kinds, e.to, false)
		if err != nil {
			return s.errAt(at, "link %q: %v", e, err)
		}
		if !slices.Contains(ins, e.in) {
			return s.errAt(at, "link %q: %s has no input %q%s", e, e.to, e.in, Suggest(e.in, ins))
		}
		if _, ok := s.Apps[e.from]; ok && e.from == e.to {
			return s.errAt(at, "link %q leads from an app to itself: a circle must pass through a port", e)
		}
		from := e.from + "." + e.out
		if first, ok := used[from]; ok {
			return s.errAt(at, "link %q: %s is linked already, by %q; use a tee to copy", e, from, first)
		}
		used[from] = e.String()
	}
	if _, err := s.order(); err != nil {
		return err
	}
	return nil
}

// Unlinked returns the outputs of a valid Spec that have no link, as in "steer.b": frames for these outputs are
// dropped. It leaves out the outputs of apps whose input of the same name has no link either, because that side of
// the app is not used, and the outputs of ports that only send. It includes ports without any link.
func (s *Spec) Unlinked(kinds []Kind) (outs []string) {
	from, to := map[string]bool{}, map[string]bool{}
	es, _ := s.edges()
	for _, e := range es {
		from[e.from+"."+e.out], to[e.to+"."+e.in] = true, true
	}
	for _, name := range slices.Sorted(maps.Keys(s.Apps)) {
		ins, _ := s.ends(kinds, name, false)
		all, _ := s.ends(kinds, name, true)
		for _, out := range all {
			end := name + "." + out
			if !from[end] && (to[end] || !slices.Contains(ins, out)) {
				outs = append(outs, end)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		if !from[name+".out"] && !to[name+".in"] {
			outs = append(outs, name+".out")
		}
	}
	return outs
}

// Notes returns the remarks of Kind.Note and Kind.Before about the apps of a valid Spec, each after the app's name.
func (s *Spec) Notes(kinds []Kind) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Apps)) {
		k := findKind(kinds, s.Apps[name].Kind)
		if k != nil && k.Note != nil {
			if n := k.Note(s.Apps[name].Args); n != "" {
				all = append(all, name+": "+n)
			}
		}
		if k != nil && len(k.Before) > 0 {
			if at := s.ahead(kinds, name, k); at != "" {
				all = append(all, fmt.Sprintf("%s: it stands behind %s, which changes what it goes by, and misses frames: put it in front of %s", name, at, at))
			}
		}
	}
	return all
}

// ahead returns an app of a kind in k.Before whose last output leads to the first input of the app with that name, which is of kind k; ""
// if there is none. A frame leaves an app by another output than the one that is called like the input by which it came.
func (s *Spec) ahead(kinds []Kind, name string, k *Kind) string {
	es, _ := s.edges()
	seen := map[edge]bool{}
	var from func(app, in string) string
	from = func(app, in string) string {
		for _, e := range es {
			if e.to != app || e.in != in || seen[e] {
				continue
			}
			seen[e] = true
			of := findKind(kinds, s.Apps[e.from].Kind)
			if of == nil { // a port
				continue
			}
			if slices.Contains(k.Before, of.Name) && e.out == of.Out[len(of.Out)-1] {
				return e.from
			}
			for _, i := range of.In {
				if i != e.out {
					if at := from(e.from, i); at != "" {
						return at
					}
				}
			}
		}
		return ""
	}
	return from(name, k.In[0])
}

func (s *Spec) checkArgs(section, what, name string, args Args, params []Param) error {
	for _, arg := range slices.Sorted(maps.Keys(args)) {
		if !slices.ContainsFunc(params, func(p Param) bool { return p.Name == arg }) {
			var known []string
			for _, p := range params {
				known = append(known, p.Name)
			}
			return s.errAt(path(section, name, "args", arg), "%s %s: unknown argument %q%s", what, name, arg, Suggest(arg, known))
		}
	}
	return nil
}

// ends returns the names of the outputs (if out is true) or inputs of a port or app.
func (s *Spec) ends(kinds []Kind, name string, out bool) ([]string, error) {
	if _, ok := s.Ports[name]; ok {
		if out {
			return []string{"out"}, nil
		}
		return []string{"in"}, nil
	}
	if a, ok := s.Apps[name]; ok {
		k := findKind(kinds, a.Kind)
		if out {
			return k.Out, nil
		}
		return k.In, nil
	}
	known := slices.Sorted(maps.Keys(s.Ports))
	known = append(known, slices.Sorted(maps.Keys(s.Apps))...)
	return nil, fmt.Errorf("no port or app is named %q%s", name, Suggest(name, known))
}

// order returns the apps in topological order along the links. Apps without an order between
// them, and apps that are linked both ways, are ordered by name.
func (s *Spec) order() ([]string, error) {
	es, err := s.edges()
	if err != nil {
		return nil, err
	}
	// Apps that are linked both ways are one group, called after its first.
	group := map[string]string{}
	for n := range s.Apps {
		group[n] = n
	}
	for _, e := range es {
		if _, ok := s.Apps[e.from]; !ok || e.from >= e.to || !linked(es, e.to, e.from) {
			continue
		}
		x, y := group[e.from], group[e.to]
		for n, g := range group {
			if g == x || g == y {
				group[n] = min(x, y)
			}
		}
	}
	// between reports an edge between two groups of apps.
	between := func(e edge) bool {
		x, y := group[e.from], group[e.to]
		return x != "" && y != "" && x != y
	}
	members, before := map[string][]string{}, map[string]int{}
	for _, n := range slices.Sorted(maps.Keys(s.Apps)) {
		members[group[n]] = append(members[group[n]], n)
	}
	for _, e := range es {
		if between(e) {
			before[group[e.to]]++
		}
	}
	var ready, done []string
	for _, g := range slices.Sorted(maps.Keys(members)) {
		if before[g] == 0 {
			ready = append(ready, g)
		}
	}
	for len(ready) > 0 {
		g := ready[0]
		ready = ready[1:]
		done = append(done, members[g]...)
		for _, e := range es {
			to := group[e.to]
			if !between(e) || group[e.from] != g {
				continue
			}
			if before[to]--; before[to] == 0 {
				i, _ := slices.BinarySearch(ready, to)
				ready = slices.Insert(ready, i, to)
			}
		}
	}
	if len(done) < len(s.Apps) {
		for i, text := range s.Links {
			e, _ := parseEdge(text)
			if between(e) && before[group[e.from]] > 0 && before[group[e.to]] > 0 {
				return nil, s.errAt(path("links", i), "link %q closes a circle of apps: a circle must pass through a port", e)
			}
		}
	}
	return done, nil
}

// linked reports whether an edge leads from node from to node to.
func linked(es []edge, from, to string) bool {
	return slices.ContainsFunc(es, func(e edge) bool { return e.from == from && e.to == to })
}

func findKind(kinds []Kind, name string) *Kind {
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i]
		}
	}
	return nil
}

// Beside makes relative names of files in arguments (Param.File) absolute, relative to dir, the directory of the Spec's
// file. Arguments of apps inside others do not change.
func (s *Spec) Beside(kinds []Kind, dir string) {
	for name, a := range s.Apps {
		k := findKind(kinds, a.Kind)
		if k == nil {
			continue
		}
		for _, p := range k.Params {
			v := a.Args[p.Name]
			if !p.File || v == "" || filepath.IsAbs(v) {
				continue
			}
			a.Args = maps.Clone(a.Args)
			a.Args[p.Name] = filepath.Join(dir, v)
			s.Apps[name] = a
		}
	}
}

// kept returns the name by which Config.Memory knows an app of the kind.
func (k *Kind) kept(app string) string {
	if k.Soft {
		return app + "/record"
	}
	return app
}

// Near returns the known name that is nearest to a wrong name, or "" if none is near.
func Near(wrong string, known []string) (at string) {
	best := len(wrong)/2 + 1
	if len(wrong) > 64 {
		return "" // not a typing error
	}
	for _, k := range known {
		if d := distance(strings.ToLower(wrong), strings.ToLower(k)); d < best {
			best, at = d, k
		}
	}
	return at
}

// Suggest returns a hint at the known name that is nearest to a wrong name, or at
// all known names if none is near.
func Suggest(wrong string, known []string) string {
	if len(known) == 0 {
		return " (there are none)"
	}
	if at := Near(wrong, known); at != "" {
		return fmt.Sprintf(" (did you mean %q?)", at)
	}
	return fmt.Sprintf(" (known: %s)", strings.Join(known, ", "))
}

// unknownKind is an error about the kind of a port or an app.
func unknownKind(kind string, known []string) string {
	if kind == "" {
		return "kind: is missing: " + strings.Join(known, ", ")
	}
	return fmt.Sprintf("unknown kind %q%s", kind, Suggest(kind, known))
}

// distance returns how many bytes must be inserted, removed or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			d := diag
			if a[i-1] != b[j-1] {
				d++
			}
			diag = row[j]
			row[j] = min(d, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
