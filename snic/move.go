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

// What the tasks of a DAG know is saved while others' frames go on: so many records at a time, which take
// some microseconds, and not more often than that. The DAG's packets wait meanwhile, as far as the
// packet store has room for them. What comes is read beside the worker, and put in place in a moment.
const (
	pieceRecords = 128
	pieceEvery   = 24 * time.Microsecond
)

// outgoing is what the tasks of a DAG know, on its way out: of each that can say, its number among them,
// the length, and that.
type outgoing struct {
	apps []graph.App // of all tasks: as long as they are these, it is right
	at   int         // the task whose turn it is
	next func(n int) (more bool, err error)
	head []byte // number and length of what the task knows
	from chunks // what there was before
	out  chunks
}

const headLen = 1 + 4

// chunks are bytes, as they were written.
type chunks struct {
	all  [][]byte
	size int
}

const chunkLen = 1 << 15

// Write implements io.Writer. What is more than a peer would take is not kept, beyond that it is more.
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

// same reports whether a DAG's tasks are still run by these.
func (cat *catalog) same(s *service, apps []graph.App) bool {
	return slices.EqualFunc(s.tasks, apps, func(t int, a graph.App) bool { return cat.tasks[t].app == a })
}

// saveSome goes on with saving what the tasks of a DAG know, n records or so, and reports that it is done.
// If one of them has been started anew, it begins again.
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

// piece gives one to what is on its way out, when it is time, and reports that it is done.
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

// save is what the tasks of a DAG know.
func (nb *nearby) save(s *service) []byte {
	o := &outgoing{}
	for !nb.saveSome(s, o, 1<<10) {
	}
	return o.out.bytes()
}

// incoming is what the tasks of a DAG are to know.
type incoming struct {
	apps  []graph.App // of all tasks
	parts []part
	bad   bool
}

// part is what one of them is.
type part struct {
	state []byte
	task  int
	saver graph.Saver                    // that takes it at once
	read  func() (put func(), err error) // nil: it does
	put   func()
}

// arrive takes what saveSome has made apart, for the tasks of a DAG as they are now.
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

// read reads what can be read beside the worker.
func (in *incoming) read() {
	for i := range in.parts {
		if p := &in.parts[i]; p.read != nil && !in.bad {
			var err error
			p.put, err = p.read()
			in.bad = in.bad || err != nil
		}
	}
}

// restore gives the tasks of a DAG what saveSome has told: in, if that was read for the tasks that
// there are. It reports false when one would not have it; then those that are read beside the worker
// have what they had.
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

// brings is what an order brings for the tasks of a DAG; nil: nothing.
func (o *order) brings() []byte {
	switch {
	case o.kind == toRestore || o.kind == toRemember:
		return o.state
	case o.kind == anEvent && o.event.Kind == pool.Resume:
		return o.event.State
	}
	return nil
}

// upTo is how many orders there are before one whose state is to be read first.
func upTo(orders []order) int {
	if i := slices.IndexFunc(orders, func(o order) bool { return o.in == nil && len(o.brings()) > 0 }); i >= 0 {
		return i
	}
	return len(orders)
}

// open takes apart what an order brings; nil: it is for the tasks of another worker.
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

// renewal is an instance of a task that knows nothing, which is made beside the worker: a table of many places
// takes milliseconds.
type renewal struct {
	of    *pooled // whose worker takes it
	in    *graph.Inside
	new   func() (graph.App, error)
	take  func(graph.App)
	app   graph.App
	err   error
	ready bool // it is made, or err says why not
}

// renewed reports that a task that is to forget what it knows can at once; if not, that is seen to.
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

// anewOf is a new instance for a task, the one that was made for it if there is one.
func (nb *nearby) anewOf(t *task) (graph.App, error) {
	r := t.fresh
	t.fresh = nil
	if r == nil || r.in != t.in || !r.ready || r.err != nil {
		return t.in.Anew()
	}
	r.take(r.app)
	return r.app, nil
}
