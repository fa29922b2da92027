package graph

import (
	"slices"

	"github.com/quillon/quillon/nf/port"
)

// join tells Joiners what they are linked to, and those that are not in the graph any more to leave.
func (i *plans) join() error {
	edges, err := i.spec.edges()
	if err != nil {
		return err
	}
	type joiner struct {
		app Joiner
		w   *worker
		n   *node
	}
	var all []joiner
	left := i.joined
	i.joined = map[Joiner]*worker{}
	var fresh []bool
	for k, w := range i.workers {
		for _, n := range i.graphs[k].nodes {
			app, ok := n.app.(Joiner)
			if !ok || n.inside != nil {
				continue
			}
			all, fresh = append(all, joiner{app, w, n}), append(fresh, left[app] == nil)
			i.joined[app] = w
			delete(left, app)
		}
	}
	for app, w := range left {
		w.do(app.Leave)
	}
	for k, x := range all {
		j := i.linked(x.n, edges)
		x.w.do(func() { err = x.app.Join(j, fresh[k]) })
		if err != nil {
			return i.spec.errAt(path("apps", x.n.name), "app %s: %v", x.n.name, err)
		}
	}
	return nil
}

// linked are the ports that a node is linked to.
func (i *plans) linked(n *node, edges []edge) Joined {
	j := Joined{From: map[int][]port.Port{}, To: map[int][]port.Port{}}
	for _, e := range edges {
		if queues := i.ports[e.from]; queues != nil && e.to == n.name {
			in := slices.Index(n.kind.In, e.in)
			j.From[in] = append(j.From[in], queues...)
		}
		if queues := i.ports[e.to]; queues != nil && e.from == n.name {
			out := slices.Index(n.kind.Out, e.out)
			j.To[out] = append(j.To[out], queues...)
		}
	}
	return j
}

// leave has all Joiners leave.
func (i *plans) leave() {
	for app, w := range i.joined {
		w.do(app.Leave)
	}
	clear(i.joined)
}
