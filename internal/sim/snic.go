package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/region"
)

// SNIC is the model of a SuperNIC board: the times of its parts. Their work is not
// modelled: the same app runs as live.
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
	UID uint32 // of the DAG
	// Port is where they come in, an even one; they leave by the next one.
	Port  int
	Bytes int // of a packet, without what surrounds it on the wire
	// Rates are by time. Without any, packets come as fast as the board takes them,
	// from a generator behind the MAC, and are counted in front of that of the other
	// port.
	Rates []Rate
}

// SNICConfig is a run of a board.
type SNICConfig struct {
	SNIC SNIC
	// Deployment is what the board is told, without rules.
	Deployment string
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
	Sent, Refused, Left uint64 // packets; refused by the board
	Bytes               uint64 // of those that left
	// Core is the mean time in the core, of packets that left, CoreMost the longest.
	// Path is the mean from port to port, with the wait for the port.
	Core, CoreMost, Path time.Duration
}

// SNICEvent is a change of what is in the regions. At is since the beginning.
type SNICEvent struct {
	At   time.Duration
	Kind region.Kind
	Text string
}

// SNICRun is what a run measured.
type SNICRun struct {
	Sources []SourceRun
	// Tasks has the bytes of each source that each task handled in each window,
	// [source][task's name][window], the first window beginning with the run.
	Tasks  []map[string][]int64
	Events []SNICEvent
	// View is the board in the end.
	View snic.View
}

// Kinds of events of a board.
const (
	snicSend uint32 = iota // of a source: a packet is at the port
	snicPush               // it is at the parser
)

// board is a run of a board, with what is around it.
type board struct {
	*node
	c       SNICConfig
	d       *dag.Deployment
	k       kernel
	id      uint32
	sources []source
	metered map[string]*metered // tasks, by name
	ports   []Time              // when each port's data path is idle
	wires   []Time              // when each port has sent all
	start   Time
	counted Time
	half    Time // of the core: to the scheduler, and from it to the MAC
	inside  int
	run     *SNICRun
}

type source struct {
	Source
	frame    []byte
	interval Time
	slot     Time // where the interval of the next packet begins
	step     int
	stalled  bool // the generator, for packets that are inside
	sum      Time
	path     Time
	rng      *rand.Rand
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
	if err := errors.Join(b.err, b.inst.Conservation()); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	for i := range b.sources {
		if r := &b.run.Sources[i]; r.Left > 0 {
			r.Core = (b.sources[i].sum / Time(r.Left)).Duration()
			r.Path = (b.sources[i].path / Time(r.Left)).Duration()
		}
	}
	b.run.View = b.view()
	for _, e := range b.run.View.Events {
		if at := fromClock(e.Event.At) - b.start; at > 0 {
			b.run.Events = append(b.run.Events, SNICEvent{at.Duration(), e.Event.Kind, e.Text})
		}
	}
	return b.run, b.inst.Close()
}

func newBoard(c SNICConfig) (*board, error) {
	if len(c.Sources) == 0 || c.Measure <= 0 || c.Warmup < 0 {
		return nil, errors.New("a run of a board has sources and a time to measure")
	}
	spec, err := dag.Parse([]byte(c.Deployment))
	if err != nil {
		return nil, err
	}
	b := &board{
		c: c, metered: map[string]*metered{}, ports: make([]Time, c.SNIC.Ports), wires: make([]Time, c.SNIC.Ports),
		half: (From(c.SNIC.Core) - Time(c.SNIC.Scheduler)*From(c.SNIC.Cycle)) / 2,
		run:  &SNICRun{Sources: make([]SourceRun, len(c.Sources))},
	}
	if b.d, err = snic.Check(spec, []graph.Kind{*dummy.Kind()}, nil); err != nil {
		return nil, err
	}
	longest := 0
	for i, s := range c.Sources {
		switch {
		case s.Bytes < 64 || s.Bytes > 9216:
			return nil, fmt.Errorf("source %d: packets of %d bytes: want 64 to 9216", i, s.Bytes)
		case s.Port < 0 || s.Port&1 != 0 || s.Port+1 >= c.SNIC.Ports:
			return nil, fmt.Errorf("source %d: port %d: want an even one of %d", i, s.Port, c.SNIC.Ports)
		case !slices.ContainsFunc(b.d.DAGs, func(d dag.DAG) bool { return d.UID == s.UID }):
			return nil, fmt.Errorf("source %d: DAG %d: there is none", i, s.UID)
		case len(c.Sources) > 250:
			return nil, errors.New("at most 250 sources")
		}
		longest = max(longest, s.Bytes)
		b.sources = append(b.sources, source{Source: s, frame: frameOf(i, s.Bytes), rng: rand.New(rand.NewPCG(c.Seed, uint64(i)))})
	}
	b.id = b.k.add(b)
	text := strings.Builder{}
	text.WriteString(c.Deployment)
	text.WriteString("\nrules:\n")
	for i, s := range c.Sources {
		fmt.Fprintf(&text, "  - {match: \"src:10.0.0.%d\", dag: %d}\n", i, s.UID)
	}
	// The board makes no copies of frames while an eighth of the pool or less is free: that is to hold as many packets as there may be.
	frames := frames{c.SNIC.Packets*8 + 1024, longest}
	meter := func(app graph.App, task string) graph.App {
		b.metered[task] = &metered{app, b, task}
		return b.metered[task]
	}
	// One worker: the source's board has one scheduler, and a run here is of that.
	b.node, err = newNode(&b.k, boardApp, c.args(text.String()), pairs(c.SNIC.Ports), 1, frames, c.Seed, &body{send: b.left, drop: b.dropped, meter: meter})
	if err != nil {
		return nil, err
	}
	if err := b.load(); err != nil {
		return nil, err
	}
	epoch := From(c.SNIC.Epoch)
	b.start = (b.k.now + epoch - 1) / epoch * epoch
	b.counted = b.start + From(c.Warmup)
	for i, s := range b.sources {
		// Sources are not in step.
		b.k.plan(b.start+Time(i)*From(c.SNIC.Cycle)*7, b.id, snicSend, uint64(i), nil)
		rows := map[string][]int64{}
		if c.Window > 0 {
			g := b.d.DAGs[slices.IndexFunc(b.d.DAGs, func(d dag.DAG) bool { return d.UID == s.UID })]
			for _, t := range g.Tasks {
				rows[b.d.Tasks[t].Name] = make([]int64, 1+(c.Warmup+c.Measure)/c.Window)
			}
		}
		b.run.Tasks = append(b.run.Tasks, rows)
	}
	return b, nil
}

// args are those of the app.
func (c *SNICConfig) args(deployment string) graph.Args {
	n, onOff := &c.SNIC, map[bool]string{false: "off", true: "on"}
	a := graph.Args{
		"deployment": deployment, "fair": onOff[c.Fair], "parallel": "on", "scheduler": "chain",
		"epoch": n.Epoch.String(), "monitor": settle.String(),
		"store": strconv.Itoa(n.Store), "packets": strconv.Itoa(n.Packets), "flows": "1024",
		"port-rate": fmt.Sprint(int64(n.GbitPerSecond * 1e9)), "burst": "3036", "slack": "0",
		"pass":   (time.Duration(n.Scheduler) * n.Cycle).String(),
		"decide": n.Cycle.String(), "sync": (time.Duration(n.Sync) * n.Cycle).String(),
	}
	if c.Monitor > 0 {
		a["monitor"] = c.Monitor.String()
	}
	if c.Panic {
		a["scheduler"] = "panic"
	}
	switch {
	case c.Branches == 1:
		a["parallel"] = "off"
	case c.Branches > 1:
		a["parallel"] = strconv.Itoa(c.Branches)
	}
	return a
}

// fire implements actor.
func (b *board) fire(kind uint32, arg uint64, _ *packet.Buf) {
	switch kind {
	case snicSend:
		b.send(int(arg))
	case snicPush:
		b.push(int(arg))
	}
}

// send is a packet at a port, and plans the next.
func (b *board) send(i int) {
	s := &b.sources[i]
	if len(s.Rates) == 0 {
		// The generator's next packet is behind this one on the data path.
		if s.stalled = b.inside >= b.c.SNIC.Packets/2; s.stalled {
			return
		}
		b.inside++
		b.k.plan(b.k.now+b.half, b.id, snicPush, uint64(i), nil)
		b.k.plan(b.k.now+b.beats(s.Bytes), b.id, snicSend, uint64(i), nil)
		return
	}
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
		port := &b.ports[s.Port]
		at := max(From(b.k.now.Duration()+1)+(From(b.c.SNIC.Path)-From(b.c.SNIC.Core))/2, *port)
		*port = at + b.beats(s.Bytes)
		b.inside++
		b.k.plan(at+b.half, b.id, snicPush, uint64(i), nil)
	}
	if next < never {
		b.k.plan(next, b.id, snicSend, uint64(i), nil)
	}
}

// beats is how long a packet keeps the data path busy.
func (b *board) beats(bytes int) Time {
	return Time((bytes+b.c.SNIC.Beat-1)/b.c.SNIC.Beat+1) * From(b.c.SNIC.Cycle)
}

// push gives the board a packet.
func (b *board) push(i int) {
	s := &b.sources[i]
	if b.k.now >= b.counted {
		b.run.Sources[i].Sent++
	}
	b.receive(s.Port, s.frame)
}

// dropped is a packet that the board does not send on.
func (b *board) dropped(x *packet.Buf) {
	if i := sourceOf(x); b.k.now >= b.counted {
		b.run.Sources[i].Refused++
	}
	b.gone()
}

// gone is a packet less on the board.
func (b *board) gone() {
	b.inside--
	for k := range b.sources {
		if s := &b.sources[k]; s.stalled {
			s.stalled = false
			b.k.plan(b.k.now, b.id, snicSend, uint64(k), nil)
		}
	}
}

// left is a packet that the board sends by a port.
func (b *board) left(p int, x *packet.Buf) {
	i := sourceOf(x)
	s := &b.sources[i]
	done, entered := b.k.now+b.half, fromClock(clock.Time(x.RxTime))-b.half
	sent := done
	if len(s.Rates) > 0 {
		sent = max(done, b.wires[p])
		b.wires[p] = sent + Time(float64(x.Len()+wireOverhead)*8e3/b.c.SNIC.GbitPerSecond)
	}
	if b.k.now >= b.counted {
		o, took := &b.run.Sources[i], done-entered
		o.Left++
		o.Bytes += uint64(x.Len())
		s.sum += took
		s.path += sent - entered + From(b.c.SNIC.Path) - From(b.c.SNIC.Core)
		o.CoreMost = max(o.CoreMost, took.Duration())
	}
	b.gone()
}

// metered is a task whose bytes are counted, by source and window.
type metered struct {
	graph.App
	b    *board
	task string
}

func (m *metered) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if w := m.b.c.Window; w > 0 {
		at := int((fromClock(c.Now()) - m.b.start) / From(w))
		for _, x := range b.Bufs() {
			if row := m.b.run.Tasks[sourceOf(x)][m.task]; at >= 0 && at < len(row) {
				row[at] += int64(x.Len())
			}
		}
	}
	m.App.Push(c, in, b)
}
