package graph

import (
	"slices"

	"github.com/quillon/quillon/nf/port"
)

// join tells apps with a Join what they are linked to, and those that are not in the graph any more to leave.
func (i *plans) join() error {
	edges, err := i.spec.edges()
	if err != nil {
		return err
	}
	type joiner struct {
		w     *worker
		n     *node
		fresh bool
	}
	var all []joiner
	left := i.joined
	i.joined = map[*node]*worker{}
	for k, w := range i.workers {
		for _, n := range i.graphs[k].nodes {
			if n.hooks.Join == nil {
				continue
			}
			all = append(all, joiner{w, n, left[n] == nil})
			i.joined[n] = w
			delete(left, n)
		}
	}
	for n, w := range left {
		w.do(n.hooks.Leave)
		if n.hooks.Left != nil {
			defer w.do(n.hooks.Left)
		}
	}
	for _, x := range all {
		j := i.linked(x.n, edges)
		x.w.do(func() { err = x.n.hooks.Join(j, x.fresh) })
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

// leave has all apps leave that have joined.
func (i *plans) leave() {
	for n, w := range i.joined {
		w.do(n.hooks.Leave)
		if n.hooks.Left != nil {
			w.do(n.hooks.Left)
		}
	}
	clear(i.joined)
}
