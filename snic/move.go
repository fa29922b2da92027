package snic

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/pool"
)

// The state of a DAG's tasks is saved while frames of other DAGs go on: so many records at a time, which take
// some microseconds, and at intervals. The DAG's packets wait meanwhile, as far as the
// packet store has room for them. State that arrives is read beside the worker, and put in place in a moment.
const (
	pieceRecords = 128
	pieceEvery   = 24 * time.Microsecond
)

// outgoing is the state of a DAG's tasks on its way out: for each task that can be saved, its index in the
// DAG, the length, and the state.
type outgoing struct {
	apps []graph.App // of all tasks; once one of them is replaced, saving begins again
	at   int         // the task whose turn it is
	next func(n int) (more bool, err error)
	head []byte // number and length of what the task knows
	from chunks // the state as it was before the task whose turn it is
	out  chunks
}

const headLen = 1 + 4

// chunks are bytes, as they were written.
type chunks struct {
	all  [][]byte
	size int
}

const chunkLen = 1 << 15

// Write implements io.Writer. Once there is more than a peer would take, the rest is not kept, and only the size grows.
func (c *chunks) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && c.size <= pool.MaxState; {
		last := len(c.all) - 1
		if last < 0 || len(c.all[last]) == cap(c.all[last]) {
			c.all = append(c.all, make([]byte, 0, chunkLen))
			last++
		}
		to := c.all[last]
		n := min(cap(to)-len(to), len(rest))
		c.all[last] = append(to, rest[:n]...)
		c.size += n
		rest = rest[n:]
	}
	return len(p), nil
}

// bytes are all of them, in one.
func (c *chunks) bytes() []byte { return slices.Concat(c.all...) }

// apps are those of a DAG's tasks.
func (cat *catalog) apps(s *service) []graph.App {
	out := make([]graph.App, len(s.tasks))
	for i, t := range s.tasks {
		out[i] = cat.tasks[t].app
	}
	return out
}

// same reports whether a DAG's tasks still run in these apps.
func (cat *catalog) same(s *service, apps []graph.App) bool {
	return slices.EqualFunc(s.tasks, apps, func(t int, a graph.App) bool { return cat.tasks[t].app == a })
}

// saveSome continues to save the state of a DAG's tasks, about n records, and reports whether it is done.
// If one of the tasks has been started anew, saving begins again.
func (nb *nearby) saveSome(s *service, o *outgoing, n int) bool {
	if o.apps == nil || !nb.cat.same(s, o.apps) {
		*o = outgoing{apps: nb.cat.apps(s)}
	}
	for o.next == nil {
		if o.at == len(s.tasks) {
			return true
		}
		v, ok := o.apps[o.at].(graph.Saver)
		if !ok || !nb.cat.tasks[s.tasks[o.at]].State {
			o.at++
			continue
		}
		o.from = chunks{slices.Clone(o.out.all), o.out.size}
		o.head = make([]byte, headLen)
		o.head[0] = byte(o.at)
		o.out.all = append(o.out.all, o.head)
		o.out.size += headLen
		if m, ok := v.(graph.Mover); ok {
			if !nb.cat.tasks[s.tasks[o.at]].try(func() { o.next = m.Saving(&o.out) }) {
				return false
			}
		} else {
			o.next = func(int) (bool, error) { return false, v.Save(&o.out) }
		}
	}
	var more bool
	var err error
	if t := &nb.cat.tasks[s.tasks[o.at]]; !t.try(func() { more, err = o.next(n) }) {
		return false // it begins again, without the task
	}
	if err != nil {
		nb.pool.failed++
		o.out = o.from
	} else if more && o.out.size <= pool.MaxState {
		return false
	} else {
		binary.BigEndian.PutUint32(o.head[1:], uint32(o.out.size-o.from.size-headLen)) // memory takes it
	}
	o.next, o.from = nil, chunks{}
	o.at++
	if o.out.size > pool.MaxState {
		o.at = len(s.tasks)
	}
	return o.at == len(s.tasks)
}

// piece calls saveSome if it is time, and reports whether the state is complete.
func (nb *nearby) piece(now clock.Time, s *service, o **outgoing) bool {
	p := nb.pool
	if now >= p.pieceAt {
		p.pieceAt = now.Add(pieceEvery)
		if *o == nil {
			*o = &outgoing{}
		}
		if nb.saveSome(s, *o, pieceRecords) {
			return true
		}
	}
	p.saving = true
	return false
}

// incoming is state for the tasks of a DAG.
type incoming struct {
	apps  []graph.App // of all tasks
	parts []part
	bad   bool
}

// part is the state for one task.
type part struct {
	state []byte
	task  int
	saver graph.Saver                    // takes the state at once
	read  func() (put func(), err error) // of a graph.Mover; nil: saver takes it
	put   func()
}

// arrive takes apart what saveSome has written, for the tasks that a DAG has now.
func (nb *nearby) arrive(s *service, state []byte) *incoming {
	in := &incoming{apps: nb.cat.apps(s)}
	for len(state) > 0 {
		if len(state) < headLen || int(state[0]) >= len(s.tasks) || uint64(binary.BigEndian.Uint32(state[1:])) > uint64(len(state)-headLen) {
			in.bad = true
			return in
		}
		n := headLen + int(binary.BigEndian.Uint32(state[1:]))
		p := part{state: state[headLen:n], task: s.tasks[state[0]]}
		var ok bool
		if p.saver, ok = in.apps[state[0]].(graph.Saver); !ok {
			in.bad = true
			return in
		}
		if m, ok := p.saver.(graph.Mover); ok {
			var read func(io.Reader) (func(), error)
			if !nb.cat.tasks[p.task].try(func() { read = m.Loading() }) {
				in.bad = true
				return in
			}
			p.read = func() (put func(), err error) {
				defer graph.Rescue(&err)
				return read(bytes.NewReader(p.state))
			}
		}
		in.parts = append(in.parts, p)
		state = state[n:]
	}
	return in
}

// read reads the parts that can be read beside the worker.
func (in *incoming) read() {
	for i := range in.parts {
		if p := &in.parts[i]; p.read != nil && !in.bad {
			var err error
			p.put, err = p.read()
			in.bad = in.bad || err != nil
		}
	}
}

// restore gives the tasks of a DAG the state that saveSome has written; it uses in if that was read for the
// present tasks. It reports false when a task refuses its part; then the tasks whose state is read beside the
// worker have their old state.
func (nb *nearby) restore(s *service, state []byte, in *incoming) bool {
	if in == nil || !nb.cat.same(s, in.apps) {
		in = nb.arrive(s, state)
		in.read()
	}
	for i := range in.parts {
		if p := &in.parts[i]; p.read == nil && !in.bad {
			nb.cat.tasks[p.task].try(func() { in.bad = p.saver.Load(bytes.NewReader(p.state)) != nil })
		}
	}
	if in.bad {
		return false
	}
	for i := range in.parts {
		if p := &in.parts[i]; p.put != nil {
			nb.cat.tasks[p.task].try(p.put)
		}
	}
	return true
}

// brings is the state that an order brings for the tasks of a DAG; nil: none.
func (o *order) brings() []byte {
	switch {
	case o.kind == toRestore || o.kind == toRemember:
		return o.state
	case o.kind == anEvent && o.event.Kind == pool.Resume:
		return o.event.State
	}
	return nil
}

// upTo is the number of orders before the first one whose state must be read first.
func upTo(orders []order) int {
	if i := slices.IndexFunc(orders, func(o order) bool { return o.in == nil && len(o.brings()) > 0 }); i >= 0 {
		return i
	}
	return len(orders)
}

// open takes apart the state that an order brings; nil: it is for the tasks of another worker.
func (nb *nearby) open(o *order) *incoming {
	n := o.chain
	if o.kind != toRestore {
		n = o.event.Want
	}
	if o.deployment != nb.pool.hash || n < 0 || n >= len(nb.cat.dagOf) {
		return &incoming{} // it is not for these tasks
	}
	s := &nb.cat.services[nb.cat.dagOf[n]]
	if !nb.cat.speaks(s) {
		return nil
	}
	return nb.arrive(s, o.brings())
}

// renewal is a new instance of a task, without state. It is made beside the worker, because a large table takes
// milliseconds.
type renewal struct {
	of    *pooled // whose worker takes it
	in    *graph.Inside
	new   func() (graph.App, error)
	take  func(graph.App)
	app   graph.App
	err   error
	ready bool // it is made, or err says why not
}

// renewed reports whether a new instance is ready for a task that must forget its state; if not, it has one made.
func (nb *nearby) renewed(n int) bool {
	t := &nb.cat.tasks[n]
	if _, much := t.app.(graph.Mover); !much || !t.lent || t.in == nil || t.halted {
		return true
	}
	if t.fresh == nil || t.fresh.in != t.in {
		t.fresh = &renewal{of: nb.pool, in: t.in}
		t.fresh.new, t.fresh.take = t.in.Apart()
		nb.pool.make = append(nb.pool.make, t.fresh)
	}
	return t.fresh.ready
}

// anewOf is a new instance for a task: the renewal that was made for the task, if there is one.
func (nb *nearby) anewOf(t *task) (graph.App, error) {
	r := t.fresh
	t.fresh = nil
	if r == nil || r.in != t.in || !r.ready || r.err != nil {
		return t.in.Anew()
	}
	r.take(r.app)
	return r.app, nil
}
