package snic

import (
	"maps"
	"strings"
	"sync"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
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
	l.Lock()
	defer l.Unlock()
	copy(l.lately[1:], l.lately[:])
	l.lately[0].text, l.lately[0].Deployment = text, d
	return d, nil
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

// Check reads what a deployment says, as a board does that knows these functions. kind says what
// is wrong with a network function and its arguments; nil: nothing is.
func Check(s *dag.Spec, functions []graph.Kind, kind func(kind string, args map[string]string) error) (*dag.Deployment, error) {
	return newLibrary(functions).check(s, kind)
}
