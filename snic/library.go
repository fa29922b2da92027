package snic

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/match"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/mat"
)

// library is the network functions that may be tasks. Of those that declare their effects a board knows what they do.
type library struct {
	kinds map[string]graph.Kind

	// The deployments that were read last, the newest first. A change has each read several
	// times, also by workers, which have no time for that: one with 10,000 tenants takes
	// seconds.
	sync.Mutex
	lately [4]struct {
		text string
		*dag.Deployment
		rules *mat.Index
	}
}

func newLibrary(kinds []graph.Kind) *library {
	l := &library{kinds: map[string]graph.Kind{}}
	for _, k := range kinds {
		l.kinds[k.Name] = k
	}
	return l
}

// usesMemory reports whether a function with these arguments keeps anything in memory that
// it is given (nf/memory). One of which nothing is known may.
func (l *library) usesMemory(kind string, args map[string]string) bool {
	k, known := l.kinds[kind]
	return !known || k.Effects == nil || k.Memory != nil && k.Memory(args)
}

// deployment reads and checks a deployment, which nobody changes.
func (l *library) deployment(text string) (*dag.Deployment, error) {
	l.Lock()
	for _, r := range l.lately {
		if r.Deployment != nil && r.text == text {
			l.Unlock()
			return r.Deployment, nil
		}
	}
	l.Unlock()
	s, err := dag.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	d, err := l.check(s, nil)
	if err != nil {
		return nil, err
	}
	x := allRules(d)
	l.Lock()
	defer l.Unlock()
	copy(l.lately[1:], l.lately[:])
	l.lately[0].text, l.lately[0].Deployment, l.lately[0].rules = text, d, x
	return d, nil
}

// rules are those of a deployment that was read lately, or of another one. Their DAGs are the deployment's.
func (l *library) rules(d *dag.Deployment) *mat.Index {
	l.Lock()
	for _, r := range l.lately {
		if r.Deployment == d {
			l.Unlock()
			return r.rules
		}
	}
	l.Unlock()
	return allRules(d)
}

// allRules are the user's rules, then the service paths of all DAGs, then a rule that other service paths belong to nobody.
func allRules(d *dag.Deployment) *mat.Index {
	all := slices.Clone(d.Rules)
	path := func(text string, road mat.Road, n int) {
		m, err := match.Parse(text)
		if err != nil {
			panic(err) // of our own making
		}
		all = append(all, mat.Rule{Priority: math.MinInt32, In: mat.Any, Match: m, Road: road, DAG: n})
	}
	for i, g := range d.DAGs {
		if g.UID < 1<<24 {
			path(fmt.Sprintf("nsh:%d", g.UID), mat.Tasks, i)
		}
	}
	path("type:0x894f", mat.Refuse, 0)
	return mat.NewIndex(all)
}

// names are those of fields, as a deployment has them.
func names(f effect.Field) []string { return strings.Split(f.String(), ",") }

// check says of tasks what a deployment does not, as their functions declare it, and
// checks it.
func (l *library) check(s *dag.Spec, kind func(kind string, args map[string]string) error) (*dag.Deployment, error) {
	c := *s
	c.Tasks = maps.Clone(s.Tasks)
	for name, t := range c.Tasks {
		k, known := l.kinds[t.Kind]
		if args, arg, item, err := k.WriteEntries(t.Args); err != nil {
			return nil, s.Errorf([]any{"tasks", name, "args", arg, item}, "task %s: %v", name, err)
		} else if args != nil {
			t.Args = args
			c.Tasks[name] = t
		}
		if len(t.Reads) > 0 || len(t.Writes) > 0 || t.Drops || t.Answers || t.State {
			continue
		}
		e := effect.Unknown
		if known && k.Effects != nil {
			e = k.Effects(t.Args)
		}
		t.Reads, t.Writes = names(e.Reads), names(e.Writes)
		t.Drops, t.Answers, t.State = e.Drops, e.Answers, e.State
		c.Tasks[name] = t
	}
	return c.Check(dag.Known{Kind: kind})
}

// Check checks a deployment as a board does that knows these functions. kind returns an error for a
// network function with wrong arguments; if kind is nil, all arguments are accepted.
func Check(s *dag.Spec, functions []graph.Kind, kind func(kind string, args map[string]string) error) (*dag.Deployment, error) {
	return newLibrary(functions).check(s, kind)
}
