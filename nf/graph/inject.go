package graph

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrNoBuffer is returned by Inject when the worker's pool is empty: try again.
var ErrNoBuffer = errors.New("no buffer is free")

// Inject pushes a copy of a frame into an input of an app, as if the app had
// made it: it is counted as generated there. When Inject returns, the app
// has dealt with it.
func (i *Instance) Inject(app, input string, worker int, frame []byte) error {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if worker < 0 || worker >= len(i.workers) {
		return fmt.Errorf("there is no worker %d: they are 0 to %d", worker, len(i.workers)-1)
	}
	n := i.graphs[worker].node(app)
	if n == nil || n.app == nil {
		return fmt.Errorf("no app is named %q%s", app, Suggest(app, slices.Sorted(maps.Keys(i.spec.Apps))))
	}
	if n.inside != nil {
		return fmt.Errorf("app %s is inside another one: give the frame to that", app)
	}
	in := slices.Index(n.kind.In, input)
	if in < 0 {
		return fmt.Errorf("app %s has no input %q", app, input)
	}
	w := i.workers[worker]
	err := errors.New("the worker has stopped")
	w.do(func() {
		if w.err == nil {
			err = w.generate(n, in, frame)
		}
	})
	return err
}

// generate has an app push a frame that came from outside.
func (w *mover) generate(n *node, in int, frame []byte) error {
	c, b := &w.ctx, &w.batch
	if w.timed {
		c.now = max(c.now, w.clk.Now())
	}
	c.node = n
	defer func() { c.node = nil }()
	x := c.Get()
	if x == nil {
		return ErrNoBuffer
	}
	if !x.SetBytes(frame) {
		c.Discard(x)
		return fmt.Errorf("a frame of %d bytes is longer than a buffer", len(frame))
	}
	b.Reset()
	b.Add(x)
	n.stats.Add(statCalls, 1)
	n.app.Push(c, in, b)
	b.Reset()
	w.drain()
	return nil
}
