package graph

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/trace"
)

// Count is one counter of one app or port, summed over the workers, after
// their last breath.
type Count struct {
	Node string `json:"node"`
	// Group is "frames" for the framework's counts of frames, "reason" for
	// drop reasons and marks, "counter" for the app's own.
	Group string `json:"group"`
	Name  string `json:"name"`
	Value uint64 `json:"value"`
	Help  string `json:"help,omitempty"`
}

// Counters returns all counters, in the order of the nodes' names, then by group, then as declared.
func (i *Instance) Counters() []Count {
	i.mu.RLock()
	defer i.mu.RUnlock()
	var out []Count
	for at, first := range i.graphs[0].all {
		add := func(group string, set func(n *node) *counter.Set, ids int) {
			for id, d := range set(first).Defs()[:ids] {
				c := Count{Node: first.name, Group: group, Name: d.Name, Help: d.Help}
				for _, g := range i.graphs {
					c.Value += set(g.all[at]).Load(counter.ID(id))
				}
				out = append(out, c)
			}
		}
		add("frames", func(n *node) *counter.Set { return n.stats }, int(statTaken)+1)
		add("reason", func(n *node) *counter.Set { return n.reasons }, len(first.reasons.Defs()))
		add("counter", func(n *node) *counter.Set { return n.counters }, len(first.counters.Defs()))
	}
	slices.SortStableFunc(out, func(a, b Count) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// NodeRuntime has the calls, the frames and the measured cost of an app or port, summed over the workers.
type NodeRuntime struct {
	Node    string  `json:"node"`
	Kind    string  `json:"kind"`
	Calls   uint64  `json:"calls"`
	Packets uint64  `json:"packets"`
	Batch   float64 `json:"batch"` // frames a call
	NsPer   float64 `json:"ns_per_packet"`
	Timed   uint64  `json:"timed_packets"` // packets from which NsPer is measured
	Held    int     `json:"held"`
}

// LinkRuntime has the traffic of a link, summed over the workers.
type LinkRuntime struct {
	Link    string `json:"link"`
	Packets uint64 `json:"packets"`
	Drops   uint64 `json:"drops"`
	Depth   uint64 `json:"depth"`
}

// Runtime has the cost of apps, the traffic of links, and the stays of frames.
type Runtime struct {
	Workers int            `json:"workers"`
	Nodes   []NodeRuntime  `json:"nodes"`
	Links   []LinkRuntime  `json:"links"`
	Stays   []Stay         `json:"stays,omitempty"` // since the start
	Stayed  clock.Duration `json:"stayed_ns"`       // of all frames together
	Notes   []string       `json:"notes,omitempty"`
}

// Runtime returns the state of apps and links after the last breath.
func (i *Instance) Runtime() Runtime {
	i.mu.RLock()
	defer i.mu.RUnlock()
	r := Runtime{Workers: len(i.workers), Notes: i.Notes()}
	r.Stays, r.Stayed = staysOf(i.workers)
	held := make([]int, len(i.graphs[0].all))
	for n, w := range i.workers {
		w.do(func() {
			for at, nd := range i.graphs[n].nodes {
				held[at] += nd.held() + nd.handedTo(n)
			}
		})
	}
	for at, first := range i.graphs[0].all {
		nr := NodeRuntime{Node: first.name, Kind: first.kind.Name, Held: held[at]}
		var packets, ns uint64
		for _, g := range i.graphs {
			s := g.all[at].stats
			nr.Calls += s.Load(statCalls)
			nr.Packets += s.Load(statIn)
			packets += s.Load(statSampledPackets)
			ns += s.Load(statSampledNanos)
		}
		if nr.Calls > 0 {
			nr.Batch = float64(nr.Packets) / float64(nr.Calls)
		}
		nr.Timed = packets
		if packets > 0 {
			nr.NsPer = float64(ns) / float64(packets)
		}
		r.Nodes = append(r.Nodes, nr)
	}
	for at, first := range i.graphs[0].links {
		lr := LinkRuntime{Link: first.String()}
		for _, g := range i.graphs {
			s := g.links[at].stats
			lr.Packets += s.Load(linkPackets)
			lr.Drops += s.Load(linkDrops)
			lr.Depth += s.Load(linkDepth)
		}
		r.Links = append(r.Links, lr)
	}
	return r
}

// PortInfo has the statistics of each queue of a port.
type PortInfo struct {
	Name   string       `json:"name"`
	Kind   string       `json:"kind"`
	Args   Args         `json:"args,omitempty"`
	Link   string       `json:"link,omitempty"` // up or down; empty: not known
	Queues []port.Stats `json:"queues"`
}

// SetLinks tells the instance which ports' links are up (true) or down (false), for Ports and LeadLinks. The caller
// must not change up afterwards.
func (i *Instance) SetLinks(up map[string]bool) { i.links.Store(&up) }

// Ports returns the statistics of all ports, in the order of their names. Queue 0 also counts the frames that the
// kernel has run for the port.
func (i *Instance) Ports() []PortInfo {
	i.mu.RLock()
	defer i.mu.RUnlock()
	var out []PortInfo
	for _, name := range slices.Sorted(maps.Keys(i.ports)) {
		s := i.spec.Ports[name]
		p := PortInfo{Name: name, Kind: s.Kind, Args: maps.Clone(s.Args)}
		if m := i.links.Load(); m != nil {
			if up, known := (*m)[name]; known {
				p.Link = map[bool]string{true: "up", false: "down"}[up]
			}
		}
		for _, q := range i.ports[name] {
			p.Queues = append(p.Queues, q.Stats())
		}
		if x, ok := i.ported.Load(name); ok {
			p.Queues[0].Add(x.(*ported).stats())
		}
		out = append(out, p)
	}
	return out
}

// Keep has a port change settings of its interface again that somebody else has set otherwise, and returns these
// (port.Keeper). Of a port that there is not, or that changes none, it returns nil.
func (i *Instance) Keep(name string) (changed []string, err error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, q := range i.ports[name] {
		if k, ok := q.(port.Keeper); ok {
			return k.Keep()
		}
	}
	return nil, nil
}

// Visit calls f with the named app of one worker, between two breaths of the worker.
// The worker waits for f, which must be short and must not keep the app.
func (i *current) Visit(app string, worker int, f func(App)) error {
	return i.post(app, worker, func(a App, _ clock.Duration) bool {
		f(a)
		return false
	}, false)
}

// Work does what Visit does, for longer work: it calls f between breaths, again and again while f
// returns true. f gets the time that a call should take: a few microseconds while the worker has
// frames. All calls of Work together get a fifth of the time of a worker with frames, and take turns.
func (i *current) Work(app string, worker int, f func(App, clock.Duration) bool) error {
	return i.post(app, worker, f, true)
}

func (i *current) post(app string, at int, f func(App, clock.Duration) bool, long bool) error {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if at < 0 || at >= len(i.workers) {
		return fmt.Errorf("there is no worker %d: they are 0 to %d", at, len(i.workers)-1)
	}
	nd := i.graphs[at].node(app)
	if nd == nil || nd.app == nil {
		return fmt.Errorf("no app is named %q%s", app, Suggest(app, slices.Sorted(maps.Keys(i.spec.Apps))))
	}
	w := i.workers[at]
	w.post(letter{long: long, fn: func(slice clock.Duration) (more bool) {
		w.ctx.node = nd
		more = f(nd.app, slice)
		w.ctx.node = nil
		return more
	}})
	return nil
}

// Report returns the reports of an app, one value for each worker. It returns an error if the app
// is no Reporter.
func (i *Instance) Report(app string) ([]any, error) {
	var out []any
	for n := range i.workers {
		var kind string
		var v any
		err := i.Work(app, n, func(a App, _ clock.Duration) (more bool) {
			g, begun := v.(*Gradual)
			if r, ok := a.(Reporter); !ok {
				kind = i.workers[n].ctx.node.kind.Name
				return false
			} else if !begun {
				v = r.Report()
				_, begun = v.(*Gradual)
				return begun
			}
			if more = g.Look(lookPlaces); !more {
				v = g.Value()
			}
			return more
		})
		out = append(out, v)
		if err != nil {
			return nil, err
		}
		if kind != "" {
			return nil, fmt.Errorf("app %s: %s has nothing to report", app, kind)
		}
	}
	return out, nil
}

// App returns the named app of a worker, or nil. It is for tests only, because the caller must own the worker.
func (i *current) App(name string, worker int) App {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if n := i.graphs[worker].node(name); n != nil {
		return n.app
	}
	return nil
}

// ReasonOf returns the names of the app and of the reason in a frame's Meta, or empty strings
// if no app gave a reason.
func (i *current) ReasonOf(m *packet.Meta) (app, reason string) {
	return i.reason(m.ReasonApp, m.Reason)
}

// reason returns the names for the numbers in a Meta. app is the app's index + 1.
func (i *current) reason(app, r uint16) (string, string) {
	d := i.known.Load()
	if app == 0 || int(app) > len(d.names) {
		return "", ""
	}
	name, k := d.names[app-1], d.kinds[app-1]
	switch own := len(k.Reasons); {
	case int(r) < own:
		return name, k.Reasons[r].Name
	case int(r)-own < numFrameworkReasons:
		return name, frameworkReasons[int(r)-own].Name
	}
	return name, fmt.Sprintf("reason-%d", r)
}

// Dot draws a Spec for Graphviz.
func Dot(s *Spec) string {
	var b strings.Builder
	b.WriteString("digraph quillon {\n\trankdir=LR\n")
	for _, n := range slices.Sorted(maps.Keys(s.Ports)) {
		fmt.Fprintf(&b, "\t%q [shape=box, style=rounded, label=%q]\n", n, n+"\n"+s.Ports[n].Kind)
	}
	for _, n := range slices.Sorted(maps.Keys(s.Apps)) {
		fmt.Fprintf(&b, "\t%q [shape=box, label=%q]\n", n, n+"\n"+s.Apps[n].Kind)
	}
	es, err := s.edges()
	if err != nil {
		es = nil
	}
	for _, e := range es {
		fmt.Fprintf(&b, "\t%q -> %q [taillabel=%q, headlabel=%q]\n", e.from, e.to, e.out, e.in)
	}
	b.WriteString("}\n")
	return b.String()
}

// AddTrace traces the next n frames that a port receives. With a reason ("bad-icrc" or
// "steer.bad-icrc") it traces the next n frames that are dropped or marked with this reason. Only the
// reason of the last call counts. AddTrace deletes earlier traces, unless an earlier call still
// waits for frames. While a call without a reason waits for frames, the ports also take up
// frames that no app wants.
func (i *taps) AddTrace(portName string, n int, reason string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if n <= 0 {
		return errors.New("trace: the number of frames must be positive")
	}
	if _, ok := i.ports[portName]; !ok {
		return fmt.Errorf("no port is named %q%s", portName, Suggest(portName, slices.Sorted(maps.Keys(i.ports))))
	}
	job := &traceJob{}
	job.left.Store(int64(n))
	if reason != "" {
		var known []string
		for _, nd := range i.graphs[0].all {
			for r, d := range nd.reasons.Defs() {
				known = append(known, d.Name)
				if d.Name == reason || nd.name+"."+d.Name == reason {
					job.want = append(job.want, reasonKey{nd.index + 1, uint16(r)})
				}
			}
		}
		if job.want == nil {
			slices.Sort(known)
			return fmt.Errorf("no app has a reason %q%s", reason, Suggest(reason, slices.Compact(known)))
		}
	}
	for _, w := range i.workers {
		w.do(func() {
			if !slices.ContainsFunc(w.graph.ports, func(p *portNode) bool { return p.mark != nil && p.mark.left.Load() > 0 }) {
				w.tracer.ring.Clear()
			}
			w.graph.port(portName).mark = job
			w.tracer.want, w.tracer.left = job.want, &job.left
			w.ctx.tracer = w.tracer
		})
	}
	if err := i.tellPorts(); err != nil {
		return fmt.Errorf("frames that no app wants are not traced: %w", err)
	}
	return nil
}

// ClearTrace ends tracing and deletes all traces.
func (i *taps) ClearTrace() {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer i.look()
	for _, w := range i.workers {
		w.do(func() {
			for _, p := range w.graph.ports {
				p.mark = nil
			}
			w.ctx.tracer = nil
			w.tracer.open, w.tracer.stage, w.tracer.old = 0, w.tracer.stage[:0], i.traced.Load()
			w.tracer.ring.Clear()
		})
	}
}

// TraceLine is one event of a traced frame.
type TraceLine struct {
	At   clock.Time `json:"at"`
	Node string     `json:"node"`
	Text string     `json:"text"`
}

// Traced has the events of one traced frame.
type Traced struct {
	Packet uint32      `json:"packet"`
	Lines  []TraceLine `json:"lines"`
}

func (t Traced) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "packet %d", t.Packet)
	if len(t.Lines) > 0 {
		fmt.Fprintf(&b, ", %s", time.Unix(0, int64(t.Lines[0].At)).UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	b.WriteByte('\n')
	nodes, times := 10, 8
	for _, l := range t.Lines {
		nodes = max(nodes, utf8.RuneCountInString(l.Node))
		times = max(times, utf8.RuneCountInString(l.At.Sub(t.Lines[0].At).String()))
	}
	for _, l := range t.Lines {
		fmt.Fprintf(&b, "  %-*s +%-*s %s\n", nodes, l.Node, times, l.At.Sub(t.Lines[0].At), l.Text)
	}
	return b.String()
}

// Trace returns the traces so far, in the order of their packet numbers.
func (i *taps) Trace() []Traced {
	i.mu.RLock()
	defer i.mu.RUnlock()
	byID := map[uint32]*Traced{}
	for _, w := range i.workers {
		w.do(func() {
			for _, r := range w.tracer.ring.Snapshot(nil) {
				t := byID[r.Packet]
				if t == nil {
					t = &Traced{Packet: r.Packet}
					byID[r.Packet] = t
				}
				t.Lines = append(t.Lines, TraceLine{clock.Time(r.At), i.name(r.App), i.traceText(w, r)})
			}
		})
	}
	var out []Traced
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, *byID[id])
	}
	return out
}

// traceText formats a record. It must run on the worker, between breaths.
func (i *taps) traceText(w *worker, r trace.Record) string {
	end := func(what string) string {
		app, reason := i.reason(uint16(r.Args[0]), uint16(r.Args[1]))
		if reason == "" {
			return what
		}
		return what + ": " + app + "." + reason
	}
	kind := i.known.Load().kinds[r.App]
	gate := func(names []string) string {
		if int(r.Args[0]) < len(names) {
			return names[r.Args[0]]
		}
		return fmt.Sprint(r.Args[0])
	}
	switch r.Kind {
	case TraceRx:
		return fmt.Sprintf("received, %d bytes", r.Args[0])
	case TraceIn:
		return "in " + gate(kind.In)
	case TraceOut:
		return "out " + gate(kind.Out)
	case TraceTx:
		return end("transmitted " + packet.Verdict(r.Args[2]).String())
	case TraceDrop:
		return end("dropped")
	case TraceHand:
		return fmt.Sprintf("handed to worker %d", r.Args[1])
	case TracePunt:
		return end("punted")
	}
	return w.graph.node(i.name(r.App)).describe(r.Kind, r.Args)
}
