package graph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Config has the parts and settings of an Instance.
type Config struct {
	Spec  *Spec
	Kinds []Kind
	// Ports are the opened ports of the Spec, by name, one port.Port a queue.
	// There are as many workers as the port with the fewest queues has. Worker i
	// sends to queue i of every port, and receives from it and from queues i+n,
	// i+2n and so on, where n is the number of workers.
	Ports map[string][]port.Port
	// OpenPort opens a port that a Plan adds; nil: ports stay as they are.
	OpenPort func(name string, s PortSpec) ([]port.Port, error)
	// ClosedPort, if not nil, is called after the queues of a port were closed, because a Plan removed the port, or
	// because the port was opened for a Plan that failed.
	ClosedPort func(queues []port.Port)
	// Clock is the clock of live workers, and measures what apps cost. With Step and
	// Push the caller gives the time, and Clock may be nil: then apps are not measured.
	Clock clock.Clock
	// Memory returns the memory of an app that outlives the process; see Env.Memory and
	// Kind.Soft. If Memory is nil, apps have no such memory.
	Memory func(app string, size int) ([]byte, error)
	// Journal opens the journal of an app that outlives the machine's boot; see Env.Journal. If it is nil, apps have none.
	Journal func(app string, slots int, arrange journal.Arrange) (journal.Journal, error)
	// Seed is the seed of Ctx.Rand and of Env.Seed.
	Seed uint64
	// Spin is how long an idle worker looks for frames before it sleeps;
	// 0 means 20 µs, negative not at all.
	Spin clock.Duration
	// Poll keeps live workers from sleeping: each of them uses a whole processor.
	Poll bool
	// Nice is the nice value of the threads of live workers. Below 0 they run before other
	// threads, such as those that serve controllers. It needs CAP_SYS_NICE or RLIMIT_NICE;
	// without, it is ignored. 0: unchanged.
	Nice int
	// Realtime is a priority in SCHED_FIFO for these threads instead, from 1 on. It needs
	// CAP_SYS_NICE or RLIMIT_RTPRIO. 0: none.
	Realtime int
	// CPUs are the processors that live workers are pinned to: worker n to
	// CPUs[n % len(CPUs)]. Empty: none is.
	CPUs []int
	// OnDrop, if not nil, is called with every dropped frame, on the worker's goroutine, just before
	// the frame goes back to its pool. Verdict and reason are set. Of the Instance it may
	// call ReasonOf alone.
	OnDrop func(b *packet.Buf)
	// Ahead, if not nil, makes the engine that runs flows that apps have decided ahead of the graph (package offload).
	// flows is the number of flows that the engine must have room for. Ahead is called only if some app decides flows.
	Ahead func(ports map[string][]port.Port, flows int) (offload.Engine, error)
}

// Instance is a running graph. The caller drives it live with Run, or at times of its own choice
// with Step and Push: the breath is the same. All other methods may be called from any goroutine at
// any time; a worker's state is read and changed only between two of its breaths.
//
// The parts of an Instance are taps (taps, traces, punted frames), plans (changes of the graph) and tables (the
// tables of apps). All of them use current, which has the running graph. Instance itself starts, drives and ends
// the graph, and counts.
type Instance struct {
	current
	taps
	plans
	tables
	notes []string
	stop  atomic.Bool
}

// leading has the state of running decided flows ahead of the graph (package offload).
type leading struct {
	aheadOf  atomic.Pointer[ahead] // that of worker 0; nil: no worker has one
	aheadWhy atomic.Pointer[string]
	led      bool
	links    atomic.Pointer[map[string]bool] // by port; see SetLinks
	ledBy    *map[string]bool                // the links that it went by
	ported   sync.Map                        // what the kernel has run for open ports: *ported by name
}

// current has the workers and the graph that they run. Only plans replaces the graph.
type current struct {
	cfg     Config
	workers []*worker
	// known is read without mu: workers ask for reasons while a change that
	// holds mu waits for them.
	known atomic.Pointer[directory]

	// mu guards the fields below and those of taps that name it, and serialises changes.
	mu     sync.RWMutex
	closed bool
	spec   *Spec
	graphs []*layout // by worker: the same as the workers have, or will have
	ports  map[string][]port.Port
}

// New makes an Instance of the graph without running it. Errors of the Spec are *SpecError.
func New(cfg Config) (*Instance, error) {
	if cfg.Spec == nil {
		return nil, errors.New("graph: no spec")
	}
	if err := cfg.Spec.Validate(cfg.Kinds, nil); err != nil {
		return nil, err
	}
	i := &Instance{current: current{cfg: cfg, spec: &Spec{}, ports: map[string][]port.Port{}}}
	i.taps = taps{current: &i.current, looked: make(chan struct{}, 1)}
	i.plans = plans{current: &i.current, taps: &i.taps, joined: map[*node]*worker{}}
	i.tables = tables{&i.current, &i.plans}
	i.known.Store(&directory{})
	workers := 0
	for _, name := range slices.Sorted(maps.Keys(cfg.Spec.Ports)) {
		n := len(cfg.Ports[name])
		if n == 0 {
			return nil, fmt.Errorf("graph: port %s of the spec was not opened", name)
		}
		if workers == 0 || n < workers {
			workers = n
		}
		i.ports[name] = cfg.Ports[name]
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Ports)) {
		if _, ok := cfg.Spec.Ports[name]; !ok {
			return nil, fmt.Errorf("graph: port %s was opened and is not in the spec", name)
		}
	}
	workers = max(workers, 1)
	spin := cfg.Spin
	spin = cmp.Or(spin, 20_000)
	for n := range workers {
		w := &worker{mover: mover{index: n, clk: cfg.Clock, tick: clock.Never}, spinNs: spin, poll: cfg.Poll}
		if cfg.Clock != nil {
			_, manual := cfg.Clock.(*clock.Manual)
			w.timed = !manual
		}
		w.ctx = Ctx{rand: rand.New(rand.NewPCG(cfg.Seed, uint64(n))), mover: &w.mover, onDrop: cfg.OnDrop}
		w.tracer, w.traced, w.bell = newTracer(&i.traced), i.looked, newBell()
		i.workers = append(i.workers, w)
		i.graphs = append(i.graphs, &layout{})
		w.graph = i.graphs[n]
	}
	for _, w := range i.workers {
		w.all = i.workers
	}
	for _, name := range slices.Sorted(maps.Keys(i.ports)) {
		if n := len(i.ports[name]); n > workers {
			i.notes = append(i.notes, fmt.Sprintf("port %s has %d queues for %d workers, which receive from several of them in turn", name, n, workers))
		}
	}
	built, known, err := i.build(cfg.Spec, i.ports, nil)
	if err != nil {
		return nil, err
	}
	if err := i.adopt(cfg.Spec.Clone(), i.ports, built, known, func() error { return nil }); err != nil {
		return nil, err
	}
	// The ports were opened with the filter of Wants; the apps that were made since may want
	// more.
	if err := errors.Join(i.tellPorts(), i.join()); err != nil {
		i.leave()
		return nil, err
	}
	return i, nil
}

// Lead lets flows that apps have decided run ahead of the graph from here on, if Config.Ahead can do so. Call it
// when the ports receive.
func (i *Instance) Lead() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.led = true
	i.lead()
}

// Notes returns remarks for the user about how the graph was laid out.
func (i *Instance) Notes() []string { return slices.Clone(i.notes) }

// Kinds returns the kinds that Specs of the instance may name.
func (i *current) Kinds() []Kind { return i.cfg.Kinds }

// Workers returns the number of workers.
func (i *current) Workers() int { return len(i.workers) }

// directory numbers all apps and ports, also those that were removed. It is replaced,
// never changed.
type directory struct {
	names []string
	kinds []*Kind // the kind of the latest app of that name
}

// clone returns a copy that the caller may change.
func (d *directory) clone() *directory {
	return &directory{slices.Clone(d.names), slices.Clone(d.kinds)}
}

// number returns the index of an app or port name, which stays the same for the life of the instance.
func (d *directory) number(name string, k *Kind) uint16 {
	n := slices.Index(d.names, name)
	if n < 0 {
		n = len(d.names)
		d.names, d.kinds = append(d.names, name), append(d.kinds, k)
	}
	d.kinds[n] = k
	return uint16(n)
}

// name returns the name of the app or port with that index.
func (i *current) name(index uint16) string { return i.known.Load().names[index] }

// together checks the apps of each kind by Kind.Together.
func (s *Spec) together(kinds []Kind, workers int) error {
	for _, k := range kinds {
		if k.Together == nil {
			continue
		}
		apps := map[string]Args{}
		for name, a := range s.Apps {
			if a.Kind == k.Name {
				apps[name] = a.Args
			}
		}
		if err := k.Together(apps, workers); err != nil {
			return s.errAt(path("apps"), "%v", err)
		}
	}
	return nil
}

// build lays out spec for every worker, and numbers new apps and ports. It takes over the apps and
// ports of the running graph unless they are in fresh. It does not change the running graph.
func (i *plans) build(spec *Spec, ports map[string][]port.Port, fresh map[string]bool) ([]*layout, *directory, error) {
	edges, err := spec.edges()
	if err != nil {
		return nil, nil, err
	}
	order, err := spec.order()
	if err != nil {
		return nil, nil, err
	}
	if err := spec.together(i.cfg.Kinds, len(i.workers)); err != nil {
		return nil, nil, err
	}
	known := i.known.Load().clone()
	appNames := slices.Sorted(maps.Keys(spec.Apps))
	portNames := slices.Sorted(maps.Keys(spec.Ports))
	shares := map[string]*share{}
	for _, n := range appNames {
		shares[n] = &share{}
	}
	var graphs []*layout
	apps, err := i.make(spec, appNames, fresh, shares)
	if err != nil {
		return nil, nil, err
	}
	relays := map[string]*relay{}
	for name, app := range apps[0] {
		relays[name] = newRelay(app, len(i.workers))
	}
	for w := range i.workers {
		old := i.graphs[w]
		g := &layout{}
		nodes := map[string]*node{}
		// Indices follow the sorted names, the layout the order of the links.
		for _, name := range appNames {
			if app := apps[w][name]; app != nil {
				kind := findKind(i.cfg.Kinds, spec.Apps[name].Kind)
				nodes[name] = newNode(name, known.number(name, kind), kind, app)
				nodes[name].relay, nodes[name].share = relays[name], shares[name]
			} else {
				nodes[name] = old.node(name)
			}
		}
		for _, name := range order {
			n := nodes[name]
			g.nodes = append(g.nodes, n)
			if n.relay != nil {
				g.relays = append(g.relays, n)
			}
			apps, err := i.insides(spec, name, n, w, apps[w][name] != nil, known, shares)
			if err != nil {
				return nil, nil, err
			}
			if n.hooks.Inside != nil {
				g.outers = append(g.outers, outer{n, apps})
			}
			for _, in := range apps {
				g.nodes = append(g.nodes, in.node)
			}
		}
		g.all = slices.Clone(g.nodes)
		for _, name := range portNames {
			p := old.port(name)
			if p == nil || fresh[name] {
				var queues []port.Port
				for q := w; q < len(ports[name]); q += len(i.workers) {
					queues = append(queues, ports[name][q])
				}
				p = newPortNode(name, known.number(name, portKind()), queues)
			}
			g.ports = append(g.ports, p)
			g.all = append(g.all, &p.node)
			nodes[name] = &p.node
		}
		g.connect(old, nodes, edges, order)
		graphs = append(graphs, g)
	}
	return graphs, known, nil
}

// make makes, for each worker, the apps that the worker does not have or that are in fresh.
func (i *plans) make(spec *Spec, names []string, fresh map[string]bool, shares map[string]*share) ([]map[string]App, error) {
	apps := make([]map[string]App, len(i.workers))
	for w := range i.workers {
		apps[w] = map[string]App{}
		for _, name := range names {
			if i.graphs[w].node(name) != nil && !fresh[name] {
				continue
			}
			kind := findKind(i.cfg.Kinds, spec.Apps[name].Kind)
			env := Env{Name: name, Worker: w, Workers: len(i.workers), Seed: i.cfg.Seed, Share: shares[name].get}
			if i.workers[w].timed {
				env.Clock = i.cfg.Clock
			}
			if i.cfg.Memory != nil {
				env.Memory = func(size int) ([]byte, error) { return i.cfg.Memory(kind.kept(name), size) }
			}
			if i.cfg.Journal != nil {
				env.Journal = func(slots int, arrange journal.Arrange) (journal.Journal, error) {
					return i.cfg.Journal(kind.kept(name), slots, arrange)
				}
			}
			app, err := kind.New(env, maps.Clone(spec.Apps[name].Args))
			if err != nil {
				return nil, spec.errAt(path("apps", name), "app %s: %v", name, err)
			}
			apps[w][name] = app
		}
	}
	return apps, nil
}

// connect links the nodes of a worker. It reuses the links of the old layout whose ends stay the same.
func (g *layout) connect(old *layout, nodes map[string]*node, edges []edge, order []string) {
	outs, ins := map[string][]*link{}, map[string][]*link{}
	for _, n := range g.all {
		if n.inside != nil {
			outs[n.name] = n.out // its own, which the outer app empties
			continue
		}
		outs[n.name] = make([]*link, len(n.kind.Out))
	}
	for _, e := range edges {
		l := old.link(e)
		if l == nil || l.fromNode != nodes[e.from] || (l.to != nil && l.to != nodes[e.to]) || (l.toPort != nil && &l.toPort.node != nodes[e.to]) {
			l = newLink(e)
			l.fromNode = nodes[e.from]
			if p := g.port(e.to); p != nil {
				l.toPort = p
			} else {
				l.to = nodes[e.to]
				l.in = slices.Index(l.to.kind.In, e.in)
			}
		}
		outs[e.from][slices.Index(nodes[e.from].kind.Out, e.out)] = l
		ins[e.to] = append(ins[e.to], l)
		g.links = append(g.links, l)
		if at := slices.Index(order, e.to); at >= 0 && at < slices.Index(order, e.from) {
			g.back = true
		}
	}
	for _, n := range g.all {
		g.outs = append(g.outs, outs[n.name])
		g.ins = append(g.ins, ins[n.name])
	}
}

func (l *layout) link(e edge) *link {
	for _, k := range l.links {
		if k.edge == e {
			return k
		}
	}
	return nil
}

// share has the value that Env.Share returns to all instances of one app.
type share struct {
	mu sync.Mutex
	v  atomic.Pointer[any] // nil: it was not made
}

func (s *share) get(make func() any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.v.Load() == nil {
		v := make()
		s.v.Store(&v)
	}
	return *s.v.Load()
}

// adopt hands the layouts to the workers, while all of them are between two breaths. It changes nothing if
// may returns an error (an app must not be removed, Hooks.Keeps), or if several apps guard words.
func (i *plans) adopt(spec *Spec, ports map[string][]port.Port, graphs []*layout, known *directory, may func() error) error {
	var err error
	i.together(0, func() {
		if err = errors.Join(may(), oneGuards(graphs[0].guards())); err != nil {
			return
		}
		i.known.Store(known)
		for n, w := range i.workers {
			func() {
				defer w.recover()
				w.waits = nil // removed ports must not be kept alive
				w.adopt(graphs[n])
			}()
		}
	})
	if err == nil {
		i.spec, i.ports, i.graphs = spec, ports, graphs
	}
	return err
}

// together runs fn while the workers from number n on are all between two
// breaths.
func (i *current) together(n int, fn func()) {
	if n == len(i.workers) {
		fn()
		return
	}
	i.workers[n].do(func() { i.together(n+1, fn) })
}

// Spec returns a copy of the running Spec.
func (i *current) Spec() *Spec {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.spec.Clone()
}

// Run starts the workers, each on a thread of its own, and returns when ctx is
// done (nil), every port is at its end (nil), or a worker failed. The ports
// stay open.
func (i *Instance) Run(ctx context.Context) error {
	if i.cfg.Clock == nil {
		return errors.New("graph: Run needs a clock")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	i.stop.Store(false)
	for _, w := range i.workers {
		w.atEnd.Store(false)
		w.bell.open()
		defer w.bell.close()
	}
	defer context.AfterFunc(ctx, func() {
		i.stop.Store(true)
		for _, w := range i.workers {
			w.bell.ring()
		}
	})()
	var wg sync.WaitGroup
	errs := make([]error, len(i.workers))
	for n, w := range i.workers {
		w.mailMu.Lock()
		w.live = true
		w.mailMu.Unlock()
		wg.Go(func() {
			if errs[n] = w.run(ctx, &i.stop, &i.cfg); errs[n] != nil {
				cancel()
			}
		})
	}
	looking := make(chan struct{})
	go func() {
		defer close(looking)
		i.lookWhile(ctx)
	}()
	wg.Wait()
	cancel()
	<-looking
	return errors.Join(errs...)
}

// lookWhile narrows the ports' filter when traces end, until ctx is done.
func (i *taps) lookWhile(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.looked:
			i.mu.Lock()
			i.look()
			i.mu.Unlock()
		}
	}
}

// Step takes one breath of every worker at time now, and returns how many
// frames were received, sent, or made by a timer. After an error (an app
// panicked, a port failed) the instance is dead and returns it again.
func (i *Instance) Step(now clock.Time) (int, error) {
	moved := 0
	for _, w := range i.workers {
		w.mu.Lock()
		n, err := w.step(now)
		w.mu.Unlock()
		moved += n
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// StepOne takes one breath of worker n alone at time now. Its results are those of Step.
func (i *Instance) StepOne(n int, now clock.Time) (int, error) {
	w := i.workers[n]
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.step(now)
}

// Bound returns the queue pairs that the last process has bound, as the apps know it from its memory (Hooks.Bound); more
// says that it may have bound others, too. It is called before Begin.
func (i *Instance) Bound() (known []port.QueuePair, more bool) {
	for _, n := range i.workers[0].graph.nodes {
		bound := n.hooks.Bound
		if n.inside != nil {
			bound = n.inside.hooks().Bound
		}
		if bound != nil {
			some, others := bound()
			known, more = append(known, some...), more || others
		}
	}
	return known, more
}

// Begin runs the timers that are due at time now, and receives no frames. Called before the first breath,
// it runs all timers: apps take over the memory of the last process (Env.Memory), and bind or guard
// what must not cross, before ports steer frames to the graph.
func (i *Instance) Begin(now clock.Time) error {
	for _, w := range i.workers {
		w.mu.Lock()
		err := w.runDue(now)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *mover) runDue(now clock.Time) (err error) {
	if w.err != nil {
		return w.err
	}
	defer func() { err = w.err }()
	defer w.recover()
	w.ctx.now = now
	if w.tick <= now {
		w.runTicks(now)
	}
	w.drain()
	return nil
}

// Push takes one breath of worker 0 at time now. The worker gets the frames of b as if queue 0 of the
// named port had received them, and receives nothing from the ports. Timers that are due run
// first. Push empties b.
func (i *Instance) Push(name string, now clock.Time, b *packet.Batch) error {
	return i.PushTo(0, name, now, b)
}

// PushTo does what Push does, with worker n. PushTo may be called for several workers at the same time, each
// from a goroutine of its own.
func (i *Instance) PushTo(n int, name string, now clock.Time, b *packet.Batch) error {
	w := i.workers[n]
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.graph.port(name)
	if p == nil {
		return fmt.Errorf("graph: no port is named %q", name)
	}
	return w.inject(p, now, b)
}

func (w *mover) inject(p *portNode, now clock.Time, b *packet.Batch) (err error) {
	if w.err != nil {
		return w.err
	}
	defer func() { err = w.err }()
	defer w.recover()
	c := &w.ctx
	c.now = now
	if w.ahead != nil {
		w.ahead.begin(now)
	}
	if w.tick <= now {
		w.runTicks(now)
	}
	w.take()
	w.received(p, b)
	w.drain()
	return nil
}

// NextTick returns the time at which the next timer of any worker is due, or clock.Never if there is none.
func (i *Instance) NextTick() clock.Time {
	t := clock.Never
	for _, w := range i.workers {
		t = min(t, w.nextTick())
	}
	return t
}

// NextTickOf returns the time at which the next timer of worker n is due. While frames wait that other workers have
// handed to it, the time is at most a microsecond after its last breath.
func (i *Instance) NextTickOf(n int) clock.Time { return i.workers[n].nextTick() }

// nextTick returns relayTick of w.tick. While nobody runs the worker, as in replay and
// simulation, nextTick allocates nothing.
func (w *worker) nextTick() clock.Time {
	w.mailMu.Lock()
	if w.live {
		w.mailMu.Unlock()
		t := clock.Never
		w.do(func() { t = w.relayTick(w.tick) })
		return t
	}
	w.mu.Lock() // before mailMu goes, as in do
	w.mailMu.Unlock()
	defer w.mu.Unlock()
	return w.relayTick(w.tick)
}

// Close removes the apps and closes the ports. The apps give up the frames that they hold; the frames
// that wait on links are dropped and counted as stopped. Close may be called only after Run has returned.
func (i *Instance) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	stopped := i.halt(true)
	i.leave()
	for _, w := range i.workers {
		w.do(func() {
			defer w.recover()
			for _, n := range w.graph.nodes {
				if w.err == nil {
					w.stopApp(n)
				} else {
					w.endRelay(n)
				}
			}
			for _, l := range w.graph.links {
				w.clear(l)
			}
			w.commit()
		})
	}
	var all []port.Port
	for _, name := range slices.Sorted(maps.Keys(i.ports)) {
		all = append(all, i.ports[name]...)
	}
	return errors.Join(stopped, closeAll(all))
}

// closeAll closes all ports at the same time, because closing a port may have to wait for all processors (RCU).
func closeAll(ports []port.Port) error {
	errs := make([]error, len(ports))
	var wg sync.WaitGroup
	for n, p := range ports {
		wg.Go(func() { errs[n] = p.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Conservation checks the counts of frames between breaths: for the instance, that received + generated =
// transmitted + dropped + punted + held, and for every app, that as many frames went in as came out. The error
// names an app that lost or doubled a frame. Frames that were handed to another worker and are not taken yet count
// as held.
func (i *Instance) Conservation() error {
	var sum books
	var wrong []string
	for _, w := range i.workers {
		w.do(func() {
			b := w.sums()
			sum.received += b.received
			sum.generated += b.generated
			sum.transmitted += b.transmitted
			sum.dropped += b.dropped
			sum.punted += b.punted
			sum.held += b.held
			sum.handed += b.handed
			sum.taken += b.taken
			for _, n := range w.graph.nodes {
				s := n.stats
				in := s.Live(statIn) + s.Live(statGenerated) + s.Live(statTaken)
				out := s.Live(statOut) + s.Live(statDropped) + s.Live(statPunted) + s.Live(statHanded) + uint64(n.held())
				if in != out {
					wrong = append(wrong, fmt.Sprintf("app %s: in+generated %d, out+dropped+punted+held %d", n.name, in, out))
				}
			}
		})
	}
	left := sum.received + sum.generated
	right := sum.transmitted + sum.dropped + sum.punted + sum.held + sum.handed - sum.taken
	if left != right {
		wrong = append([]string{fmt.Sprintf("received %d + generated %d is not transmitted %d + dropped %d + punted %d + held %d",
			sum.received, sum.generated, sum.transmitted, sum.dropped, sum.punted, sum.held+sum.handed-sum.taken)}, wrong...)
		return errors.New("graph: " + strings.Join(wrong, "; "))
	}
	if len(wrong) > 0 {
		return errors.New("graph: " + strings.Join(wrong, "; "))
	}
	return nil
}

// Held returns the number of frames inside the graph, between breaths.
func (i *Instance) Held() int {
	n := 0
	for _, w := range i.workers {
		w.do(func() { n += int(w.sums().held) + w.handedOver() })
	}
	return n
}
