package graph

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/port"
)

// ErrStale is returned by Apply when the graph has changed since the Plan was
// made.
var ErrStale = errors.New("the graph has changed since the plan was made: plan again")

// ErrPort is wrapped by errors of Apply after the change of the graph: a removed port
// could not be closed, or a port's filter could not be set. Setting the
// filter is tried again with the next Plan.
var ErrPort = errors.New("the change was made, but a port failed")

// plans changes what runs. After a change it sets the filters of the ports to what the apps want.
type plans struct {
	*current
	*taps
	joined map[*node]*worker
	leading
}

// Plan returns the checked changes from the running graph to spec, as Diff does. The details say which
// apps start anew because they cannot be reconfigured.
func (i *plans) Plan(spec *Spec) (Plan, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.plan(spec)
}

func (i *plans) plan(spec *Spec) (Plan, error) {
	if err := spec.Validate(i.cfg.Kinds, nil); err != nil {
		return Plan{}, err
	}
	p, err := Diff(i.spec, spec)
	if err != nil {
		return Plan{}, err
	}
	if err := i.keep(p); err != nil {
		return Plan{}, err
	}
	for n, a := range p.Actions {
		switch a.Op {
		case OpReconfigure:
			if !i.takes(a.Name, spec) {
				p.Actions[n].Detail += "; starts anew: " + i.spec.Apps[a.Name].Kind + " cannot take this change while it runs"
			}
		case OpOpenPort:
			if i.cfg.OpenPort == nil {
				return Plan{}, fmt.Errorf("graph: port %s cannot be added or changed while running: stop, and run the new spec", a.Name)
			}
		}
	}
	return p, nil
}

// takes reports whether the named app can take its arguments of spec while it runs;
// otherwise the app starts anew.
func (i *plans) takes(name string, spec *Spec) bool {
	a, ok := i.graphs[0].node(name).app.(Reconfigurer)
	return ok && a.Takes(maps.Clone(spec.Apps[name].Args))
}

// keep returns an error if p removes an app that traffic depends on (Hooks.Keeps), or
// changes how frames come to that app or get past it.
func (i *plans) keep(p Plan) error {
	removed := map[string]bool{} // by app: whether an app of the name takes its place
	for _, a := range p.Actions {
		switch a.Op {
		case OpStop:
			removed[a.Name] = false
		case OpReconfigure:
			if !i.takes(a.Name, p.new) {
				removed[a.Name] = true
			}
		}
	}
	for _, n := range i.graphs[0].nodes {
		if n.hooks.Keeps == nil {
			continue
		}
		succeeded, goes := removed[n.name]
		moves, err := moved(p.old, p.new, n.name)
		switch {
		case err != nil:
			return err
		case goes && !succeeded || moves:
			err = n.hooks.Keeps(false)
		case goes:
			err = n.hooks.Keeps(true)
		}
		if err != nil {
			return fmt.Errorf("app %s cannot go or move now: %w", n.name, err)
		}
	}
	return nil
}

// moved reports whether the ports around an app differ between old and new, or
// whether frames get past the app in new that do not get past it in old.
func moved(old, new *Spec, app string) (bool, error) {
	near, past, err := around(old, app)
	if err != nil {
		return false, err
	}
	now, more, err := around(new, app)
	if err != nil || !maps.Equal(near, now) {
		return true, err
	}
	for way := range more {
		if !past[way] {
			return true, nil
		}
	}
	return false, nil
}

// around are the ports whose frames come to an app's inputs and those that its
// outputs lead to, and the ways between these that do not lead through it.
func around(s *Spec, app string) (near, past map[string]bool, err error) {
	edges, err := s.edges()
	if err != nil {
		return nil, nil, err
	}
	// leads reports whether frames from node a come to node b, other than
	// through the app. Frames that a port sends do not come back.
	leads := func(a, b string) bool {
		seen := map[string]bool{a: true}
		for queue := []string{a}; len(queue) > 0; queue = queue[1:] {
			if queue[0] == b {
				return true
			}
			if _, isPort := s.Ports[queue[0]]; isPort && len(seen) > 1 {
				continue
			}
			for _, e := range edges {
				if e.from == queue[0] && e.to != app && !seen[e.to] {
					seen[e.to] = true
					queue = append(queue, e.to)
				}
			}
		}
		return false
	}
	near, past = map[string]bool{}, map[string]bool{}
	var in, out []string
	for name, p := range s.Ports {
		for _, e := range edges {
			if e.to == app && e.from != app && leads(name, e.from) {
				near[name+" "+describe(p.Kind, p.Args)+" -> "+e.in] = true
				in = append(in, name)
			}
			_, sent := s.Ports[e.to]
			if e.from == app && e.to != app && (e.to == name || !sent && leads(e.to, name)) {
				near[e.out+" -> "+name+" "+describe(p.Kind, p.Args)] = true
				out = append(out, name)
			}
		}
	}
	for _, a := range in {
		for _, b := range out {
			if a != b && leads(a, b) {
				past[a+" -> "+b] = true
			}
		}
	}
	return near, past, nil
}

// Apply carries out a Plan under traffic: all workers change at the same time, between two
// breaths. Apps that the Plan does not name keep their state, their counters and the
// frames that they hold. After an error nothing has changed, unless it wraps
// ErrPort: then the Plan was carried out.
func (i *plans) Apply(p Plan) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return errors.New("graph: the instance is closed")
	}
	if p.new == nil || !sameSpec(p.old, i.spec) {
		return ErrStale
	}
	// A Plan by Diff has not been checked against what runs.
	p, err := i.plan(p.new)
	if err != nil {
		return err
	}
	fresh := map[string]bool{}
	ports := maps.Clone(i.ports)
	var opened, closing [][]port.Port
	giveUp := func(err error) error {
		return errors.Join(err, i.closePorts(opened))
	}
	var changes []string
	for _, a := range p.Actions {
		switch a.Op {
		case OpClosePort:
			closing = append(closing, i.ports[a.Name])
			delete(ports, a.Name)
		case OpOpenPort:
			fresh[a.Name] = true
			qs, err := i.cfg.OpenPort(a.Name, p.new.Ports[a.Name])
			if err != nil {
				return giveUp(fmt.Errorf("port %s: %w", a.Name, err))
			}
			opened = append(opened, qs)
			if len(qs) < len(i.workers) {
				return giveUp(fmt.Errorf("port %s has %d queues for %d workers", a.Name, len(qs), len(i.workers)))
			}
			ports[a.Name] = qs
		case OpStart:
			fresh[a.Name] = true
		case OpReconfigure:
			if i.takes(a.Name, p.new) {
				changes = append(changes, a.Name)
			} else {
				fresh[a.Name] = true
			}
		}
	}
	graphs, known, err := i.build(p.new, ports, fresh)
	if err != nil {
		return giveUp(err)
	}
	defer i.lead()
	// No frame is run by what the apps have decided with their old arguments.
	if err := i.halt(i.aheadPorts(&p)); err != nil {
		return giveUp(err)
	}
	if err := i.reconfigure(changes, i.spec, p.new); err != nil {
		return giveUp(err)
	}
	if err := i.adopt(p.new, ports, graphs, known, func() error { return i.keep(p) }); err != nil {
		return giveUp(errors.Join(err, i.reconfigure(changes, p.new, i.spec)))
	}
	if len(opened) > 0 {
		i.filter = nil // new ports were opened with an older filter
	}
	for _, a := range p.Actions {
		if a.Op == OpClosePort {
			i.ported.Delete(a.Name)
		}
	}
	if err := errors.Join(i.closePorts(closing), i.tellPorts(), i.join()); err != nil {
		return fmt.Errorf("%w: %w", ErrPort, err)
	}
	return nil
}

// closePorts closes ports that the graph does not have any more.
func (i *plans) closePorts(ports [][]port.Port) error {
	var errs []error
	for _, qs := range ports {
		for _, q := range qs {
			errs = append(errs, q.Close())
		}
		if i.cfg.ClosedPort != nil {
			i.cfg.ClosedPort(qs)
		}
	}
	return errors.Join(errs...)
}

// reconfigure gives apps their new arguments, in every worker or in none.
func (i *plans) reconfigure(names []string, old, new *Spec) error {
	type change struct {
		w    *worker
		app  Reconfigurer
		node *node
		name string
	}
	var done []change
	give := func(c change, spec *Spec) (err error) {
		err = errPanicked // stays if the app panics
		c.w.do(func() {
			c.w.ctx.node = c.node
			err = c.app.Reconfigure(maps.Clone(spec.Apps[c.name].Args))
			c.w.ctx.node = nil
		})
		return err
	}
	for _, name := range names {
		for n, w := range i.workers {
			nd := i.graphs[n].node(name)
			c := change{w, nd.app.(Reconfigurer), nd, name}
			if err := give(c, new); err != nil {
				for _, d := range slices.Backward(done) {
					if back := give(d, old); back != nil {
						err = errors.Join(err, fmt.Errorf("and going back failed: %w", back))
					}
				}
				return new.errAt(path("apps", name), "app %s: %v", name, err)
			}
			done = append(done, c)
		}
	}
	return nil
}

var errPanicked = errors.New("it panicked, and the instance stops")

// Set changes the given arguments of a running app, and keeps its other arguments. It applies the
// Plan for this change, and returns it.
func (i *plans) Set(app string, args Args) (Plan, error) {
	spec := i.Spec()
	a, ok := spec.Apps[app]
	if !ok {
		return Plan{}, fmt.Errorf("no app is named %q%s", app, Suggest(app, slices.Sorted(maps.Keys(spec.Apps))))
	}
	a.Args = maps.Clone(a.Args)
	if a.Args == nil {
		a.Args = Args{}
	}
	maps.Copy(a.Args, args)
	spec.Apps[app] = a
	spec.source = nil
	p, err := i.Plan(spec)
	if err != nil {
		return Plan{}, err
	}
	return p, i.Apply(p)
}

func sameSpec(a, b *Spec) bool {
	norm := func(s *Spec) Spec {
		c := Spec{Ports: map[string]PortSpec{}, Apps: map[string]AppSpec{}, Links: slices.Sorted(slices.Values(s.Links))}
		for k, v := range s.Ports {
			if len(v.Args) == 0 {
				v.Args = nil
			}
			c.Ports[k] = v
		}
		for k, v := range s.Apps {
			if len(v.Args) == 0 {
				v.Args = nil
			}
			c.Apps[k] = v
		}
		return c
	}
	return reflect.DeepEqual(norm(a), norm(b))
}

// Wants returns the union of the filters of all apps of spec. Ports are opened with this
// filter. Wants makes each app once, asks it, and throws it away.
func Wants(spec *Spec, kinds []Kind) (port.Filter, error) {
	if err := spec.Validate(kinds, nil); err != nil {
		return port.Filter{}, err
	}
	var f port.Filter
	var guards []string
	straight := spec.straight(kinds)
	for _, name := range slices.Sorted(maps.Keys(spec.Apps)) {
		kind := findKind(kinds, spec.Apps[name].Kind)
		app, err := kind.New(Env{Name: name, Workers: 1, Share: (&share{}).get, Asked: true}, maps.Clone(spec.Apps[name].Args))
		if err != nil {
			return port.Filter{}, spec.errAt(path("apps", name), "app %s: %v", name, err)
		}
		f = union(f, appWants(app, straight))
		if appWants(app, straight).Guarded {
			guards = append(guards, name)
		}
		if kind.Inside == nil {
			continue
		}
		inside, err := kind.Inside(maps.Clone(spec.Apps[name].Args))
		if err != nil {
			return port.Filter{}, spec.errAt(path("apps", name), "app %s: %v", name, err)
		}
		for _, s := range inside {
			// Errors in an app inside are reported when the instance is made.
			if k := findKind(kinds, s.Kind); k != nil {
				if app, err := k.New(Env{Name: name + "/" + s.Name, Workers: 1, Share: (&share{}).get, Asked: true}, maps.Clone(s.Args)); err == nil {
					in := appWants(app, straight)
					f.Closed, f.Bound, f.Guarded, f.Waits = f.Closed || in.Closed, f.Bound || in.Bound, f.Guarded || in.Guarded, f.Waits || in.Waits
					if in.Guarded {
						guards = append(guards, name+"/"+s.Name)
					}
				}
			}
		}
	}
	return f, oneGuards(guards)
}

// oneGuards returns an error if several apps guard words of servers' memory, because each app sets the guards
// of all ports to the words that it knows (port.Guard), which would free the words of the other apps.
func oneGuards(apps []string) error {
	if len(apps) < 2 {
		return nil
	}
	last := len(apps) - 1
	return fmt.Errorf("apps %s and %s all guard words of servers' memory, and one app of a graph may: run the others in instances of their own",
		strings.Join(apps[:last], ", "), apps[last])
}

// guards returns the names of the apps of a layout that guard words.
func (l *layout) guards() (names []string) {
	for _, n := range l.nodes {
		if appWants(n.app, false).Guarded {
			names = append(names, n.name)
		}
	}
	return names
}

// Wants returns the union of the filters of the running apps, taps and traces.
func (i *taps) Wants() port.Filter {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.wants()
}

func (i *taps) wants() port.Filter {
	var f port.Filter
	straight, watched, ahead, marked := i.spec.straight(i.cfg.Kinds), false, false, false
	for n, w := range i.workers {
		w.do(func() {
			for _, nd := range i.graphs[n].nodes {
				f = union(f, appWants(nd.app, straight))
				ahead = ahead || nd.hooks.Ahead != nil && nd.hooks.Ahead()
			}
			ahead = ahead || w.ahead != nil
			watched, marked = watched || w.graph.watched(), marked || w.graph.marked(false)
		})
	}
	// A frame that would take another way in the graph than in the kernel is not taken up for a tap.
	f.Watched = watched && straight && !f.All || ahead && (watched || marked)
	return f
}

// appWants returns the filter of an app in a graph that is straight, or not (Spec.straight).
func appWants(a App, straight bool) port.Filter {
	switch w := a.(type) {
	case wire:
		return port.Filter{All: w.all || !straight}
	case Wanter:
		return w.Wants()
	}
	return port.Filter{All: true}
}

// watched reports whether a tap, or a trace without a reason, waits for any frame that passes. A trace
// with a reason waits only for frames that apps want.
func (l *layout) watched() bool {
	return slices.ContainsFunc(l.links, func(k *link) bool { return k.tap != nil }) || l.marked(true)
}

// marked reports whether a trace waits for frames; any: one without a reason.
func (l *layout) marked(any bool) bool {
	return slices.ContainsFunc(l.ports, func(p *portNode) bool {
		return p.mark != nil && (!any || p.mark.want == nil) && p.mark.left.Load() > 0
	})
}

// straight reports whether the graph leads the frames of each port to the port to which they cross
// in the kernel when no app wants them. An app that does not want a frame passes it from its one side to the other.
func (s *Spec) straight(kinds []Kind) bool {
	edges, err := s.edges()
	if err != nil {
		return false
	}
	leads := func(p string) bool {
		at, out := p, "out"
		for range len(edges) {
			n := slices.IndexFunc(edges, func(e edge) bool { return e.from == at && e.out == out })
			if n < 0 {
				return false
			}
			at = edges[n].to
			if _, is := s.Ports[at]; is {
				return at == s.Ports[p].Peer()
			}
			k := findKind(kinds, s.Apps[at].Kind)
			if k == nil || len(k.In) != 2 || len(k.Out) != 2 {
				return false
			}
			out = k.Out[1-slices.Index(k.In, edges[n].in)]
		}
		return false
	}
	for p := range s.Ports {
		if !leads(p) {
			return false
		}
	}
	return len(s.Ports) > 0
}

// union returns a filter that wants the frames of both filters.
func union(a, b port.Filter) port.Filter {
	f := port.Filter{All: a.All || b.All, Closed: a.Closed || b.Closed, Bound: a.Bound || b.Bound, Guarded: a.Guarded || b.Guarded, Waits: a.Waits || b.Waits}
	if f.All {
		return f
	}
	f.RoCE = a.RoCE || b.RoCE
	if any := a.RoCE && len(a.Hosts) == 0 || b.RoCE && len(b.Hosts) == 0; !any {
		f.Hosts = merged(a.Hosts, b.Hosts)
	}
	f.UDP = merged(a.UDP, b.UDP)
	return f
}

// merged returns a with the elements of b that are not in a.
func merged[T comparable](a, b []T) []T {
	all := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	return all
}

// tellPorts sets the filter of the ports, unless all of them have it. It is called after each change of
// what apps, taps and traces want.
func (i *taps) tellPorts() error {
	f := i.wants()
	if i.filter != nil && reflect.DeepEqual(f, *i.filter) {
		return nil
	}
	i.filter = nil
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(i.ports)) {
		for _, q := range i.ports[name] {
			if s, ok := q.(port.FilterSetter); ok {
				errs = append(errs, s.SetFilter(f))
			}
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		i.filter = &f
	}
	return err
}
