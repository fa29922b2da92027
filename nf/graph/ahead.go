package graph

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// This file learns the decisions of apps about flows. Some frames of each received batch get a draft. Each app that a
// drafted frame passes may add its part to the draft (Ctx.Decide). When the frame leaves at a port and all apps on its
// way have added their parts, the draft is offered to the table of entries (package offload).

const (
	// anyDrafts and atOnce are the numbers of drafts, in a breath and in a batch, that are open to any frame. The other
	// drafts up to maxDrafts are for frames that the table wants (Table.Wanted).
	anyDrafts = 8
	atOnce    = 4
	maxDrafts = 40 // at most 1<<draftBits
	draftBits = 6
	maxHops   = 6
	// longestDraft is the length in bytes of the longest frame that gets a draft: the draft has a copy of the frame.
	longestDraft = 2048
	// aheadEvery is the time between two looks at entries. A look covers a hundredth of the entries, from 64 to
	// maxLook.
	aheadEvery  = clock.Duration(10e6)
	aheadLooks  = 100
	maxLook     = 4096
	aheadCounts = 5 // looks between two readings of the counters
)

// draft is a frame on its way through the apps.
type draft struct {
	frame  offload.Frame
	before []byte
	port   *portNode
	hops   [maxHops]hop
	n      int
	parts  []offload.Part
	out    bool // an app has not decided
}

// hop is an app that a frame has passed, with the link on which the frame left the app.
type hop struct {
	node   *node
	link   *link
	reason uint16 // plus 1, that the app has marked it with
}

// way is the path of a frame through the graph, from a port to a port or to an app that drops the frame.
type way struct {
	from, to *portNode
	first    *link
	n        int
	hops     [maxHops]hop
	longer   int  // a frame when it leaves
	drops    bool // it ends in the last app
}

// ahead is one worker's state of decided flows. All workers share one table. Each worker has path numbers of its own.
type ahead struct {
	table  *offload.Table
	engine offload.Engine
	worker int
	all    int // workers
	places map[*portNode]place
	drafts [maxDrafts]draft
	n      int
	any    int // of them, for any frames
	breath uint32
	turn   int // where the next batch is begun
	next   clock.Time
	looks  int
	ways   []way
	wayOf  map[way]uint16
	sums   []offload.Counts // of all ways that there ever were
	base   []offload.Counts
	ported *sync.Map
}

// ported counts the frames and bytes that the kernel has run for a port. The port itself does not count them.
type ported struct{ rx, rxBytes, tx, txBytes atomic.Uint64 }

func (p *ported) stats() port.Stats {
	return port.Stats{RxPackets: p.rx.Load(), RxBytes: p.rxBytes.Load(), TxPackets: p.tx.Load(), TxBytes: p.txBytes.Load()}
}

func (a *ahead) portedOf(p *portNode) *ported {
	x, ok := a.ported.Load(p.name)
	if !ok {
		x, _ = a.ported.LoadOrStore(p.name, new(ported))
	}
	return x.(*ported)
}

type place struct{ number, longest int }

// newAhead returns the state of each worker, with one table for all.
func newAhead(e offload.Engine, workers int, ported *sync.Map) []*ahead {
	t := offload.NewTable(e)
	if workers > 1 {
		t.Share()
	}
	all := make([]*ahead, workers)
	for n := range all {
		a := &ahead{ported: ported, table: t, engine: e, worker: n, all: workers, places: map[*portNode]place{}, wayOf: map[way]uint16{},
			sums: make([]offload.Counts, offload.MaxPaths), base: make([]offload.Counts, offload.MaxPaths)}
		for i := range a.drafts {
			a.drafts[i].before = make([]byte, 0, longestDraft)
			a.drafts[i].parts = make([]offload.Part, 0, maxHops)
		}
		all[n] = a
	}
	return all
}

// number returns the path number of the worker's way with that index. No other worker uses the number.
func (a *ahead) number(way int) int { return way*a.all + a.worker }

// know takes over those ports of a layout that the engine has and whose links are not known to be down.
func (a *ahead) know(g *layout, links *map[string]bool) {
	clear(a.places)
	for _, p := range g.ports {
		if links != nil {
			if up, known := (*links)[p.name]; known && !up {
				continue
			}
		}
		if n, longest := a.engine.Port(p.name); n >= 0 {
			a.places[p] = place{n, longest}
		}
	}
}

// begin starts a breath: old drafts end. Every aheadEvery, worker 0 looks at entries, and now and then counts are
// collected.
func (a *ahead) begin(now clock.Time) {
	a.n, a.any = 0, 0
	a.breath++
	a.table.Breath(now)
	if now < a.next {
		return
	}
	a.next = now.Add(aheadEvery)
	if a.looks++; a.looks%aheadCounts == 0 {
		a.collect()
	}
	if a.worker != 0 {
		return
	}
	a.table.Now(now)
	a.table.Look(max(64, min(maxLook, a.table.Used()/aheadLooks)))
}

// draft gives drafts to some frames of batch b, which port p has received.
func (a *ahead) draft(p *portNode, b *packet.Batch) {
	where, ok := a.places[p]
	if !ok || a.engine.Watched() {
		return
	}
	bufs, any := b.Bufs(), min(a.any+atOnce, anyDrafts)
	first := min(len(bufs), 2*atOnce)
	looks := first
	if a.table.Wanting() {
		looks = len(bufs)
	}
	for i := 0; i < looks && a.n < maxDrafts; i++ {
		x := bufs[(a.turn+i)%len(bufs)]
		d := &a.drafts[a.n]
		if x.Len() > longestDraft || !a.table.Parse(x.Bytes(), where.number, &d.frame) {
			continue
		}
		if !a.table.Wanted(&d.frame.Key) {
			if i >= first || a.any == any {
				continue
			}
			a.any++
		}
		d.before = append(d.before[:0], x.Bytes()...)
		d.port, d.n, d.parts, d.out = p, 0, d.parts[:0], false
		a.n++
		x.Draft = a.breath<<draftBits | uint32(a.n-1)
		if x.Draft == 0 {
			x.Draft, a.n = 0, a.n-1
		}
	}
	a.turn += first
}

// of returns the draft of frame x, or nil if the frame has no draft of this breath.
func (a *ahead) of(x *packet.Buf) *draft {
	if i := int(x.Draft & (1<<draftBits - 1)); a != nil && x.Draft>>draftBits == a.breath&(1<<(32-draftBits)-1) && i < a.n {
		return &a.drafts[i]
	}
	return nil
}

// pass notes in the draft of frame x that app n has emitted the frame on link l.
func (a *ahead) pass(n *node, l *link, x *packet.Buf) {
	d := a.of(x)
	if d == nil {
		return
	}
	if d.n == maxHops || len(d.parts) != d.n+1 {
		d.out = true
		return
	}
	h := hop{node: n, link: l}
	if x.ReasonApp == n.index+1 {
		h.reason = x.Reason + 1
	}
	d.hops[d.n] = h
	d.n++
}

// leaves offers the drafts of the frames q, which are about to be sent on port p, to the table.
func (a *ahead) leaves(p *portNode, q []*packet.Buf) {
	for _, x := range q {
		if x.Draft == 0 {
			continue
		}
		d := a.of(x)
		x.Draft = 0
		if d == nil || d.n == 0 {
			continue
		}
		to, ok := a.places[p]
		switch {
		case d.out || len(d.parts) != d.n:
			a.table.Count(offload.Partial)
		case !ok:
			a.table.Count(offload.NoProgram)
		default:
			way, ok := a.way(d, p, x.Len()-len(d.before))
			if !ok {
				a.table.Count(offload.TooMany)
				continue
			}
			a.table.Offer(&offload.Decision{Before: d.before, In: d.frame, After: x.Bytes(), Out: to.number, Longest: to.longest, Parts: d.parts, Path: way})
		}
	}
}

// way returns the number of the path that draft d has taken, or false if all numbers are used. longer is the
// number of bytes by which the frame has grown on the way.
func (a *ahead) way(d *draft, to *portNode, longer int) (uint16, bool) {
	w := way{from: d.port, to: to, first: d.port.out[0], n: d.n, longer: longer}
	copy(w.hops[:], d.hops[:d.n])
	all := [3]way{w}
	at := slices.IndexFunc(d.parts, func(p offload.Part) bool { return p.Meter.Number != 0 })
	k := 1
	if at >= 0 { // behind the way of frames that are as they were come those of marked and of dropped ones
		m := &d.parts[at].Meter
		w.hops[at].reason = 0
		all = [3]way{w, w, w}
		all[1].hops[at].reason = m.Marked + 1
		drops := &all[2]
		drops.n, drops.drops, drops.hops[at].reason = at+1, true, m.Dropped+1
		k = len(all)
	}
	n, ok := a.wayOf[w]
	if !ok {
		n = uint16(a.number(len(a.ways)))
		if a.number(len(a.ways)+k-1) >= offload.MaxPaths {
			return 0, false
		}
		a.ways = append(a.ways, all[:k]...)
		a.wayOf[w] = n
	}
	return n, true
}

// collect adds the frames that the kernel has run to the counters of apps, links and ports.
func (a *ahead) collect() {
	if len(a.ways) == 0 {
		return
	}
	sums := a.sums[:a.number(len(a.ways)-1)+1]
	if a.engine.Paths(sums) != nil {
		return
	}
	for k := range a.ways {
		i := a.number(k)
		n := sums[i].Packets - a.base[i].Packets
		if n == 0 {
			continue
		}
		bytes := sums[i].Bytes - a.base[i].Bytes
		a.base[i] = sums[i]
		w := &a.ways[k]
		in := a.portedOf(w.from)
		in.rx.Add(n)
		in.rxBytes.Add(bytes)
		w.from.stats.Add(statIn, n)
		w.first.stats.Add(linkPackets, n)
		for k, h := range w.hops[:w.n] {
			h.node.stats.Add(statIn, n)
			if h.reason > 0 {
				h.node.reasons.Add(counter.ID(h.reason-1), n)
			}
			if w.drops && k == w.n-1 {
				h.node.stats.Add(statDropped, n)
				break
			}
			h.node.stats.Add(statOut, n)
			h.link.stats.Add(linkPackets, n)
		}
		if !w.drops {
			out := a.portedOf(w.to)
			out.tx.Add(n)
			out.txBytes.Add(bytes + n*uint64(w.longer))
			w.to.stats.Add(statOut, n)
		}
	}
}

// forget collects the last counts of all paths, and forgets the paths. The kernel must not be running any entry.
func (a *ahead) forget() {
	a.collect()
	a.ways = a.ways[:0]
	clear(a.wayOf)
}

// Decide tells the graph the app's decision about frame b, which the app emits next, for all frames like it (package
// offload). Decide does nothing unless b is drafted (Drafted).
func (c *Ctx) Decide(b *packet.Buf, p offload.Part) {
	d := c.mover.ahead.of(b)
	if d == nil || len(d.parts) != d.n || len(d.parts) == cap(d.parts) {
		return
	}
	if p.Longest > 0 {
		p.Longest -= b.Len() - len(d.before)
	}
	d.parts = append(d.parts, p)
}

// Drafted reports whether the graph asks for the app's decision about frame b (Decide).
func (c *Ctx) Drafted(b *packet.Buf) bool { return b.Draft != 0 }

// Ahead returns the table of the flows that the kernel runs, or nil if the kernel runs no flows.
func (c *Ctx) Ahead() *offload.Table {
	if c.mover.ahead == nil {
		return nil
	}
	return c.mover.ahead.table
}

// maxFlows is the largest number of flows that the kernel gets room for.
const maxFlows = 1 << 20

// decides returns the largest number of flows that an app of the graph may decide, at most maxFlows.
func (i *plans) decides() (flows int) {
	for _, a := range i.spec.Apps {
		if k := findKind(i.cfg.Kinds, a.Kind); k != nil && k.Decides != nil {
			flows = max(flows, k.Decides(maps.Clone(a.Args)))
		}
	}
	return min(flows, maxFlows)
}

// lead lets decided flows run ahead of the graph, if the ports allow that, until halt is called. It is called after
// each change of the graph.
func (i *plans) lead() {
	if !i.led {
		return
	}
	i.ledBy = i.links.Load()
	if a := i.aheadOf.Load(); a != nil {
		for _, w := range i.workers {
			w.do(func() { w.ahead.know(w.graph, i.ledBy) })
		}
		i.workers[0].do(a.table.Go)
		return
	}
	why, flows := "", i.decides()
	switch {
	case i.cfg.Ahead == nil:
		why = "ports here have no program in front of them"
	case flows == 0:
		why = "no app of the graph decides flows"
	}
	if why == "" {
		e, err := i.cfg.Ahead(i.ports, flows)
		if err == nil {
			all := newAhead(e, len(i.workers), &i.ported)
			for n, w := range i.workers {
				w.do(func() { all[n].know(w.graph, i.ledBy); w.ahead = all[n] })
			}
			i.aheadOf.Store(all[0])
			i.filter = nil // the program has to know whether somebody watches
			_ = i.tellPorts()
		} else {
			why = err.Error()
		}
	}
	i.aheadWhy.Store(&why)
}

// halt stops the kernel from running frames ahead of the graph, until lead is called. With ports set, because ports
// change or the instance ends, halt also removes all entries and closes the engine.
func (i *plans) halt(ports bool) error {
	w := i.workers[0]
	a := i.aheadOf.Load()
	if a == nil {
		return nil
	}
	w.do(a.table.Pause)
	all := func(some func(from uint32, n int) uint32) {
		at := uint32(0)
		w.post(letter{long: true, fn: func(clock.Duration) bool {
			at = some(at, 16) // a slice's, about
			return at != 0
		}})
	}
	all(a.table.Settle)
	if ports {
		all(a.table.Clear)
		w.do(a.table.End)
		i.aheadOf.Store(nil)
		for _, w := range i.workers { // so nobody who asks a worker finds an engine that is closed
			w.do(func() {
				w.ahead.collect()
				w.ahead = nil
			})
		}
		return a.engine.Close()
	}
	for _, w := range i.workers {
		w.do(func() { w.ahead.forget() })
	}
	return nil
}

// aheadPorts reports whether a plan opens or closes ports, or changes the number of flows that apps may decide.
func (i *plans) aheadPorts(p *Plan) bool {
	next := plans{current: &current{cfg: i.cfg, spec: p.new}}
	return next.decides() != i.decides() || slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Op == OpOpenPort || a.Op == OpClosePort })
}

// LeadLinks stops the kernel from running decided flows of ports whose links are down (SetLinks), so that the ports
// count the frames that are lost there. It waits for the workers.
func (i *Instance) LeadLinks() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if up := i.links.Load(); i.aheadOf.Load() == nil || up == nil || i.ledBy != nil && maps.Equal(*i.ledBy, *up) {
		return nil
	}
	defer i.lead()
	return i.halt(false)
}

// AheadReport describes the decided flows that the kernel runs.
type AheadReport struct {
	Runs bool   `json:"runs"`
	Why  string `json:"why,omitempty"` // it does not
	// Entries is the number of entries of flows (each direction of a flow has an entry), Room the largest number of
	// entries, and Ended the number of entries that have ended.
	Entries int    `json:"entries"`
	Room    int    `json:"room"`
	Ended   uint64 `json:"ended"`
	Watched bool   `json:"watched,omitempty"`
	// Finished is the number of frames that the kernel has run, Given the number of frames that it gave to the graph.
	// Share is Finished divided by the sum of both.
	Finished uint64  `json:"finished"`
	Given    uint64  `json:"given"`
	Share    float64 `json:"share"`
	// Outcomes counts frames in the kernel by outcome, and Decisions counts decisions by what became of them.
	Outcomes  map[string]uint64 `json:"outcomes,omitempty"`
	Decisions map[string]uint64 `json:"decisions,omitempty"`
	LeftOut   []string          `json:"left_out,omitempty"`
}

// Ahead reports on the decided flows that the kernel runs.
func (i *Instance) Ahead() (r AheadReport, err error) {
	a := i.aheadOf.Load()
	if a == nil {
		if why := i.aheadWhy.Load(); why != nil {
			r.Why = *why
		}
		return r, nil
	}
	for _, w := range i.workers[1:] {
		w.do(func() {
			if w.ahead != nil {
				w.ahead.collect()
			}
		})
	}
	w := i.workers[0]
	w.do(func() {
		if w.ahead != a {
			return // it has just ended
		}
		a.collect()
		r.Entries, r.Room, r.Ended, r.Decisions = a.table.Len(), a.table.Room(), a.table.Ended(), a.table.Outcomes()
		r.Runs, r.Watched, r.LeftOut = true, a.engine.Watched(), a.engine.Left()
		r.Outcomes, err = a.engine.Outcomes()
	})
	if err != nil {
		return r, err
	}
	for name, n := range r.Outcomes {
		if name == offload.Finished {
			r.Finished = n
		} else {
			r.Given += n
		}
	}
	if n := r.Finished + r.Given; n > 0 {
		r.Share = float64(r.Finished) / float64(n)
	}
	return r, nil
}
