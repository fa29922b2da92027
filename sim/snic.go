package sim

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/fair"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// SNIC is the model of a SuperNIC board: what its parts take. What they do is not
// in it: the state machines of snic run.
type SNIC struct {
	// Cycle is of the data path.
	Cycle time.Duration
	// Beat is how many bytes the data path behind a port moves in a cycle. Each
	// packet takes one more, for its descriptor.
	Beat int
	// Path is the latency of the board, PHY to PHY, Core that of what lies
	// between the MACs, with one pass through the scheduler and no task.
	Path, Core time.Duration
	// Scheduler is a pass through the scheduler, in cycles: from when a packet and
	// its credits are there until it is in the region. Sync is the
	// synchronisation buffer.
	Scheduler, Sync int
	// Ports are so many of GbitPerSecond each.
	Ports         int
	GbitPerSecond float64
	// Store is the packet store in bytes, Packets how many can be inside.
	Store, Packets int
	// Epoch is EPOCH_LEN.
	Epoch time.Duration
}

// HTG9200 is the prototype's board (Shan, UCSD thesis 2022, chapter 5). What its
// text does not have is named.
func HTG9200() SNIC {
	return SNIC{
		Cycle: 4, // 250 MHz
		// Not in the text: 128 Gb/s a port at 250 MHz (data_snic_scalability.tab in the
		// thesis' repository). A descriptor is attached to each packet.
		Beat: 64,
		Path: 1300, Core: 196, Scheduler: 16,
		Sync:  4, // a comment in the thesis' source
		Ports: 9, GbitPerSecond: 100,
		Store:   3_943_100, // 9.17 % of 43 MB (table 5.1)
		Packets: 4096,      // not in the text; more than 64 bytes each fill at 1.3 µs
		Epoch:   20 * time.Microsecond,
	}
}

// Rate is what a source sends from a time on.
type Rate struct {
	From time.Duration
	Gbit float64 // a second, of packets without what surrounds them on the wire
}

// Source is packets of a DAG, of one flow. One comes in each interval, when in it
// is drawn: sources that a tenant has at different rates must not fall into step
// with its limit.
type Source struct {
	DAG dag.DAGID
	// In and Out are ports.
	In, Out int
	Bytes   int // of a packet, without what surrounds it on the wire
	// Rates are by time. Without any, packets come as fast as the board takes them,
	// from a generator behind the MAC of In, and are counted in front of that of
	// Out.
	Rates []Rate
}

// SNICConfig is a run of a board.
type SNICConfig struct {
	SNIC       SNIC
	Deployment *dag.Deployment
	// Loaded are the chains that are in regions when the run begins.
	Loaded [][]dag.TaskID
	// Branches is how many tasks may run in parallel; 0: as many as can.
	Branches int
	// Panic returns packets to the scheduler after each task.
	Panic bool
	// Fair limits tenants, each epoch.
	Fair bool
	// Monitor is MONITOR_PERIOD; 0: nothing is scaled.
	Monitor time.Duration
	Sources []Source
	// Measure is how long the run is, and Warmup how long nothing is counted
	// before.
	Warmup, Measure time.Duration
	// Window is the resolution of the timeline; 0: there is none.
	Window time.Duration
	Seed   uint64
	// Progress is told from 0 to 1.
	Progress func(done float64)
}

// SourceRun is what became of a source's packets while they were counted.
type SourceRun struct {
	Sent, Refused, Left uint64 // packets; refused at the door
	Bytes               uint64 // of those that left
	// Core is the mean time in the core, of packets that left, CoreMost the longest.
	// Path is the mean from port to port, with the wait for the port.
	Core, CoreMost, Path time.Duration
}

// SNICEvent is a change of what is in the regions. At is since the beginning.
type SNICEvent struct {
	At     time.Duration
	What   string
	Region int
	Tasks  []dag.TaskID
}

// SNICRun is what a run measured.
type SNICRun struct {
	Sources []SourceRun
	// Tasks has the bytes of each source that each task handled in each window,
	// [source][task][window], the first window beginning with the run.
	Tasks  [][][]int64
	Events []SNICEvent
	Books  sched.Books
}

// Kinds of events of a board.
const (
	snicSend   uint32 = iota // of a source: a packet is at the port
	snicEnter                // it is in the core
	snicArrive               // it is at the scheduler
	snicTask                 // it is at a task
	snicLeave                // it has left it
	snicBack                 // it is back at the scheduler
	snicEpoch
	snicRegion
)

type board struct {
	c       SNICConfig
	k       kernel
	id      uint32
	sched   *sched.Scheduler
	fabric  *region.Fabric
	fair    *fair.Sharer
	chains  []dag.Chain
	regions []placed
	running []int // instances of each task
	bound   Time  // fabric's event that is planned
	sources []source
	packets []inside
	runs    []onRun // of packet p: the branches from p*sched.MaxBranches on
	ports   []Time  // when each port's data path is idle
	wires   []Time  // when each port has sent all
	issued  Time    // the scheduler's last decision
	last    int     // of which packet
	start   Time
	counted Time
	core    Time // to the scheduler, and from it to the MAC
	out     *SNICRun
	err     error
}

// placed is a region that runs.
type placed struct {
	chain int // -1: none
	free  []Time
	seq   uint32
	stops bool
}

type source struct {
	Source
	tenant   int
	tasks    []dag.TaskID
	interval Time
	slot     Time // where the interval of the next packet begins
	step     int
	held     int  // packets that wait for room on the board
	stalled  bool // and the generator, for them
	offered  int64
	sum      Time
	path     Time
	rng      *rand.Rand
}

type inside struct {
	source  int
	entered Time
	pending int  // runs under way
	many    bool // of several branches
}

type onRun struct {
	region int
	task   int
	mask   uint16
}

// RunSNIC runs a board.
func RunSNIC(ctx context.Context, c SNICConfig) (*SNICRun, error) {
	b, err := newBoard(c)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	end := b.counted + From(c.Measure)
	for n := 0; b.k.next() <= end && b.err == nil; n++ {
		if n%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if c.Progress != nil {
				c.Progress(float64(b.k.now-b.start) / float64(end-b.start))
			}
		}
		b.k.step()
	}
	if err := errors.Join(b.err, b.sched.Check(), b.fabric.Check()); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	for i := range b.sources {
		if r := &b.out.Sources[i]; r.Left > 0 {
			r.Core = (b.sources[i].sum / Time(r.Left)).Duration()
			r.Path = (b.sources[i].path / Time(r.Left)).Duration()
		}
	}
	b.out.Books = b.sched.Books()
	return b.out, nil
}

func newBoard(c SNICConfig) (*board, error) {
	d := c.Deployment
	if d == nil || len(c.Sources) == 0 || c.Measure <= 0 || c.Warmup < 0 {
		return nil, errors.New("a run of a board has a deployment, sources and a time to measure")
	}
	b := &board{
		c: c, last: -1, ports: make([]Time, c.SNIC.Ports), wires: make([]Time, c.SNIC.Ports), regions: make([]placed, d.Regions.Count),
		running: make([]int, len(d.Tasks)), bound: never,
		packets: make([]inside, c.SNIC.Packets), runs: make([]onRun, c.SNIC.Packets*sched.MaxBranches),
		core: (From(c.SNIC.Core) - Time(c.SNIC.Scheduler)*From(c.SNIC.Cycle)) / 2,
		out:  &SNICRun{Sources: make([]SourceRun, len(c.Sources))},
	}
	b.id = b.k.add(b)
	if err := b.load(); err != nil {
		return nil, err
	}
	epoch := From(c.SNIC.Epoch)
	b.start = (b.k.now + epoch - 1) / epoch * epoch
	b.k.now = b.start
	b.counted = b.start + From(c.Warmup)
	var err error
	if c.Fair {
		b.fair, err = fair.New(b.k.now.Clock(), fair.Config{Tenants: len(d.Tenants), Resources: len(d.Tasks) + 2*c.SNIC.Ports, Epoch: c.SNIC.Epoch})
		if err != nil {
			return nil, err
		}
		for i, t := range d.Tenants {
			if err := b.fair.SetWeight(i, t.Weight); err != nil {
				return nil, err
			}
		}
		for p := range 2 * c.SNIC.Ports {
			if err := b.fair.SetCapacity(len(d.Tasks)+p, c.SNIC.GbitPerSecond*1e9/8); err != nil {
				return nil, err
			}
		}
	}
	for i, s := range c.Sources {
		switch {
		case s.Bytes < 1 || s.Bytes > 9216:
			return nil, fmt.Errorf("source %d: packets of %d bytes: want 1 to 9216", i, s.Bytes)
		case min(s.In, s.Out) < 0 || max(s.In, s.Out) >= c.SNIC.Ports:
			return nil, fmt.Errorf("source %d: from port %d to port %d: there are %d", i, s.In, s.Out, c.SNIC.Ports)
		case s.DAG < 0 || int(s.DAG) >= len(d.DAGs):
			return nil, fmt.Errorf("source %d: DAG %d: there are %d", i, s.DAG, len(d.DAGs))
		}
		g := &d.DAGs[s.DAG]
		x := source{Source: s, tenant: int(g.Tenant), tasks: g.Tasks, rng: rand.New(rand.NewPCG(c.Seed, uint64(i)))}
		b.sources = append(b.sources, x)
		// Sources are not in step.
		at := b.start + Time(i)*From(c.SNIC.Cycle)*7
		if len(s.Rates) == 0 {
			b.k.plan(at, b.id, snicEnter, uint64(i), nil)
		} else {
			b.k.plan(at, b.id, snicSend, uint64(i), nil)
		}
		var rows [][]int64
		if c.Window > 0 {
			rows = make([][]int64, len(d.Tasks))
			for t := range rows {
				rows[t] = make([]int64, 1+(c.Warmup+c.Measure)/c.Window)
			}
		}
		b.out.Tasks = append(b.out.Tasks, rows)
	}
	if err := b.place(); err != nil {
		return nil, err
	}
	b.k.plan(b.start+epoch, b.id, snicEpoch, 0, nil)
	return b, nil
}

// load makes regions and scheduler, and loads the first chains, which takes until
// now.
func (b *board) load() error {
	c, d := &b.c, b.c.Deployment
	var err error
	if b.chains, err = d.Chains(0); err != nil {
		return err
	}
	for _, tasks := range c.Loaded {
		if b.chain(tasks) < 0 {
			b.chains = append(b.chains, d.ChainOf(tasks...))
		}
	}
	cfg := region.Default(d.Regions.Count, d.Regions.Area)
	if cfg.Monitor = c.Monitor; c.Monitor == 0 {
		cfg.Monitor = time.Second // long enough for any bitstream
	}
	if b.fabric, err = region.New(0, cfg); err != nil {
		return err
	}
	for i, t := range d.Tasks {
		if err := b.fabric.SetTask(i, float64(t.Throughput)); err != nil {
			return err
		}
	}
	for i, ch := range b.chains {
		tasks := make([]int, len(ch.Tasks))
		for k, t := range ch.Tasks {
			tasks[k] = int(t)
		}
		if err := b.fabric.Add(i, region.Chain{Area: ch.Area, Bitstream: ch.Bitstream, Tasks: tasks, Save: ch.State}); err != nil {
			return err
		}
	}
	b.sched, err = sched.New(sched.Config{
		Packets: c.SNIC.Packets, Store: c.SNIC.Store, Regions: d.Regions.Count, Chains: len(b.chains), Routes: len(d.DAGs),
		Tenants: len(d.Tenants), Branches: sched.MaxBranches, Panic: c.Panic, Seed: c.Seed,
	})
	if err != nil {
		return err
	}
	for i := range b.regions {
		b.regions[i].chain = -1
	}
	for _, tasks := range c.Loaded {
		if d := b.fabric.Launch(b.k.now.Clock(), region.Demand{Chain: b.chain(tasks), Pre: true}); d.Choice != region.LoadFree {
			return fmt.Errorf("no region for %s: %v, %v", b.c.Deployment.Names(tasks...), d.Choice, d.Reason)
		}
		if err := b.events(); err != nil {
			return err
		}
	}
	for b.fabric.Next() != clock.Never && slices.ContainsFunc(b.regions, func(p placed) bool { return p.chain < 0 }) {
		b.k.now = fromClock(b.fabric.Next())
		b.fabric.Advance(b.k.now.Clock())
		if err := b.events(); err != nil {
			return err
		}
	}
	b.out.Events = nil
	return nil
}

// chain is the number of a chain; -1 when there is none.
func (b *board) chain(tasks []dag.TaskID) int {
	return slices.IndexFunc(b.chains, func(c dag.Chain) bool { return slices.Equal(c.Tasks, tasks) })
}

// events does what the regions ask for.
func (b *board) events() error {
	changed := false
	for events := b.fabric.Events(); len(events) > 0; events = b.fabric.Events() {
		for _, e := range events {
			if err := b.event(e); err != nil {
				return err
			}
			changed = changed || e.Kind == region.Run || e.Kind == region.Stop
		}
	}
	if changed && b.start > 0 {
		if err := b.place(); err != nil {
			return err
		}
	}
	if next := b.fabric.Next(); next != clock.Never && fromClock(next) != b.bound && b.start > 0 {
		b.bound = fromClock(next)
		b.k.plan(b.bound, b.id, snicRegion, 0, nil)
	}
	return nil
}

func (b *board) event(e region.Event) error {
	switch e.Kind {
	case region.Run:
		if err := b.run(e.Region, e.Chain); err != nil {
			return err
		}
	case region.Stop:
		b.regions[e.Region].stops, b.regions[e.Region].seq = true, e.Seq
		if err := b.sched.Pause(e.Region); err != nil {
			return err
		}
		if err := b.drained(e.Region); err != nil {
			return err
		}
	case region.Load, region.ScaleOut, region.ScaleIn, region.Overload, region.Evict:
	default:
		return nil
	}
	x := SNICEvent{At: (b.k.now - b.start).Duration(), What: e.Kind.String(), Region: e.Region}
	if e.Chain >= 0 {
		x.Tasks = b.chains[e.Chain].Tasks
	}
	b.out.Events = append(b.out.Events, x)
	return nil
}

func (b *board) run(r, chain int) error {
	tasks := b.chains[chain].Tasks
	credits := make([]int, len(tasks))
	for i, t := range tasks {
		credits[i] = b.c.Deployment.Tasks[t].Credits
		b.running[t]++
	}
	b.regions[r] = placed{chain: chain, free: make([]Time, len(tasks))}
	return b.sched.Place(r, chain, credits)
}

// drained lets a region go that stops, once it is empty.
func (b *board) drained(r int) error {
	p := &b.regions[r]
	if !p.stops || !b.sched.Drained(r) {
		return nil
	}
	if err := b.sched.Remove(r); err != nil {
		return err
	}
	for _, t := range b.chains[p.chain].Tasks {
		b.running[t]--
	}
	seq := p.seq
	*p = placed{chain: -1}
	b.fabric.Stopped(b.k.now.Clock(), r, seq)
	return nil
}

// place makes routes through what runs, and says what there is to divide.
func (b *board) place() error {
	d := b.c.Deployment
	var candidates []dag.Candidate
	for r, p := range b.regions {
		if p.chain >= 0 && !p.stops {
			load := b.fabric.Region(r).Load
			candidates = append(candidates, dag.Candidate{Chain: dag.ChainID(p.chain), Tasks: b.chains[p.chain].Tasks, Cost: int64(load * 1e6)})
		}
	}
	for i := range d.DAGs {
		var route sched.Route
		route.Spread = sched.RoundRobin
		for _, stage := range d.Stages(dag.DAGID(i), b.c.Branches) {
			var branches [][]sched.Visit
			for _, branch := range stage {
				visits, uncovered := dag.Cover(branch, candidates)
				if len(uncovered) > 0 {
					return fmt.Errorf("no region runs %s", d.Names(uncovered...))
				}
				var v []sched.Visit
				for _, x := range visits {
					v = append(v, sched.Visit{Chain: int(x.Chain), Mask: uint16(x.Mask)})
				}
				branches = append(branches, v)
			}
			route.Stages = append(route.Stages, branches)
		}
		if err := b.sched.SetRoute(i, route); err != nil {
			return err
		}
	}
	if b.fair == nil {
		return nil
	}
	for t, n := range b.running {
		capacity := float64(d.Tasks[t].Throughput) / 8 * float64(n)
		if d.Tasks[t].Throughput == 0 && n > 0 {
			capacity = 1e15
		}
		if err := b.fair.SetCapacity(t, capacity); err != nil {
			return err
		}
	}
	return nil
}

// fire implements actor.
func (b *board) fire(kind uint32, arg uint64, _ *packet.Buf) {
	switch kind {
	case snicSend:
		b.send(int(arg))
	case snicEnter:
		b.enter(int(arg))
	case snicArrive:
		b.arrive(int(arg))
	case snicTask:
		b.task(int(arg>>8), int(arg&0xff))
	case snicLeave:
		b.leave(int(arg>>8), int(arg&0xff))
	case snicBack:
		b.back(int(arg>>8), int(arg&0xff))
	case snicEpoch:
		b.epoch()
	case snicRegion:
		b.bound = never
		b.fabric.Advance(b.k.now.Clock())
		b.note(b.events())
		b.drain()
	}
}

func (b *board) note(err error) {
	if b.err == nil {
		b.err = err
	}
}

// send is a packet at a port, and plans the next.
func (b *board) send(i int) {
	s := &b.sources[i]
	for s.step < len(s.Rates) && b.start+From(s.Rates[s.step].From) <= b.k.now {
		s.interval, s.slot = 0, b.k.now
		if g := s.Rates[s.step].Gbit; g >= 1e-6 { // less is nothing
			s.interval = Time(float64(s.Bytes) * 8 / g * float64(Nanosecond))
		}
		s.step++
	}
	next := never
	if s.step < len(s.Rates) {
		next = b.start + From(s.Rates[s.step].From)
	}
	if s.interval > 0 {
		s.slot += s.interval
		next = min(next, s.slot+Time(s.rng.Int64N(int64(s.interval))))
		port := &b.ports[s.In]
		at := max(b.k.now+(From(b.c.SNIC.Path)-From(b.c.SNIC.Core))/2, *port)
		*port = at + b.beats(s.Bytes)
		b.k.plan(at, b.id, snicEnter, uint64(i), nil)
	}
	if next < never {
		b.k.plan(next, b.id, snicSend, uint64(i), nil)
	}
}

// beats is how long a packet keeps the data path busy.
func (b *board) beats(bytes int) Time {
	return Time((bytes+b.c.SNIC.Beat-1)/b.c.SNIC.Beat+1) * From(b.c.SNIC.Cycle)
}

// enter is a packet at the parser.
func (b *board) enter(i int) {
	s := &b.sources[i]
	if len(s.Rates) == 0 {
		// The generator's next packet is behind this one on the data path.
		if s.stalled = s.held > 0; s.stalled {
			return
		}
		b.k.plan(b.k.now+b.beats(s.Bytes), b.id, snicEnter, uint64(i), nil)
	}
	s.offered += int64(s.Bytes)
	if b.k.now >= b.counted {
		b.out.Sources[i].Sent++
	}
	if b.fair != nil {
		if !b.fair.Ingress(b.k.now.Clock(), s.tenant, s.Bytes) {
			if b.k.now >= b.counted {
				b.out.Sources[i].Refused++
			}
			return
		}
		for _, t := range s.tasks {
			b.fair.Measure(s.tenant, int(t), int64(s.Bytes))
		}
		b.fair.Measure(s.tenant, len(b.running)+s.In, int64(s.Bytes+wireOverhead))
		b.fair.Measure(s.tenant, len(b.running)+b.c.SNIC.Ports+s.Out, int64(s.Bytes+wireOverhead))
	}
	b.k.plan(b.k.now+b.core, b.id, snicArrive, uint64(i), nil)
}

// arrive is a packet at the scheduler.
func (b *board) arrive(i int) {
	s := &b.sources[i]
	p, why := b.sched.Arrive(int(s.DAG), s.Bytes, uint64(i), s.tenant)
	if why != sched.None {
		switch {
		case len(s.Rates) == 0:
			s.held++
		case b.k.now >= b.counted:
			b.out.Sources[i].Refused++
		}
		return
	}
	b.packets[p] = inside{source: i, entered: b.k.now - b.core}
	b.drain()
}

// drain does what the scheduler tells.
func (b *board) drain() {
	cycle := From(b.c.SNIC.Cycle)
	for r, ok := b.sched.Next(); ok; r, ok = b.sched.Next() {
		p := &b.packets[r.Packet]
		if p.pending == 0 {
			p.many = false
		}
		p.pending++
		p.many = p.many || r.Branch > 0
		// A decision a cycle; copies of a header go together.
		if r.Packet != b.last || b.issued < b.k.now {
			b.issued = max(b.k.now, b.issued+cycle)
			b.last = r.Packet
		}
		b.runs[r.Packet*sched.MaxBranches+r.Branch] = onRun{region: r.Region, task: bits.TrailingZeros16(r.Mask), mask: r.Mask}
		b.k.plan(b.issued+Time(b.c.SNIC.Scheduler)*cycle, b.id, snicTask, uint64(r.Packet)<<8|uint64(r.Branch), nil)
	}
	for l, ok := b.sched.Leave(); ok; l, ok = b.sched.Leave() {
		p := &b.packets[l.Packet]
		i := p.source
		s := &b.sources[i]
		done := b.k.now + b.core
		sent := done
		if len(s.Rates) > 0 {
			sent = max(done, b.wires[s.Out])
			b.wires[s.Out] = sent + Time(float64(l.Bytes+wireOverhead)*8e3/b.c.SNIC.GbitPerSecond)
		}
		if b.k.now >= b.counted {
			o, took := &b.out.Sources[i], done-p.entered
			o.Left++
			o.Bytes += uint64(l.Bytes)
			s.sum += took
			s.path += sent - p.entered + From(b.c.SNIC.Path) - From(b.c.SNIC.Core)
			o.CoreMost = max(o.CoreMost, took.Duration())
		}
		for k := range b.sources {
			s := &b.sources[k]
			if s.held > 0 {
				s.held--
				b.k.plan(b.k.now, b.id, snicArrive, uint64(k), nil)
			} else if s.stalled {
				s.stalled = false
				b.k.plan(b.k.now, b.id, snicEnter, uint64(k), nil)
			}
		}
	}
}

// task is a packet at a task: tasks are pipelines, which take a packet when
// the one before is in.
func (b *board) task(p, branch int) {
	run := &b.runs[p*sched.MaxBranches+branch]
	place := &b.regions[run.region]
	id := b.chains[place.chain].Tasks[run.task]
	t, i := &b.c.Deployment.Tasks[id], b.packets[p].source
	bytes := b.sources[i].Bytes
	free := &place.free[run.task]
	start := max(b.k.now, *free)
	if t.Throughput > 0 {
		*free = start + Time(float64(bytes)*8e12/float64(t.Throughput))
	}
	if b.c.Window > 0 {
		rows := b.out.Tasks[i][id]
		if w := int((start - b.start) / From(b.c.Window)); w < len(rows) {
			rows[w] += int64(bytes)
		}
	}
	b.k.plan(start+From(t.Latency), b.id, snicLeave, uint64(p)<<8|uint64(branch), nil)
}

func (b *board) leave(p, branch int) {
	run := &b.runs[p*sched.MaxBranches+branch]
	b.sched.Release(p, branch, run.task)
	run.mask &^= 1 << run.task
	switch {
	case run.mask != 0:
		run.task = bits.TrailingZeros16(run.mask)
		b.task(p, branch)
		b.drain()
	case b.packets[p].many:
		b.k.plan(b.k.now+Time(b.c.SNIC.Sync)*From(b.c.SNIC.Cycle), b.id, snicBack, uint64(p)<<8|uint64(branch), nil)
		b.drain()
	default:
		b.back(p, branch)
	}
}

func (b *board) back(p, branch int) {
	b.packets[p].pending--
	r := b.runs[p*sched.MaxBranches+branch].region
	b.sched.Return(p, branch, false)
	if b.regions[r].stops {
		b.note(b.drained(r))
		b.note(b.events())
	}
	b.drain()
}

// epoch ends an epoch.
func (b *board) epoch() {
	now := b.k.now.Clock()
	if b.fair != nil {
		b.note(b.fair.Epoch(now))
	}
	if b.c.Monitor > 0 {
		for i := range b.sources {
			s := &b.sources[i]
			for _, t := range s.tasks {
				b.fabric.Load(-1, int(t), s.offered)
			}
			s.offered = 0
		}
		b.fabric.Sample(now)
		b.note(b.events())
		b.drain()
	}
	b.k.plan(b.k.now+From(b.c.SNIC.Epoch), b.id, snicEpoch, 0, nil)
}
