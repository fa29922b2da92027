package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/vxlan"
)

// Kinds of events of a board's cores.
const (
	coreBreath uint32 = iota // a core looks for frames; arg: the core
	coreTurn                 // a core comes to a shard, or its breath is over
	coreSource               // the source goes on
)

// CoresConfig is a run of a board with several workers, each on a core of its own.
type CoresConfig struct {
	Costs CoreCosts
	Cores int
	// Tasks are those of all DAGs: TasksNothing, TasksState or TasksChain.
	Tasks string
	// Apart: there is one region a core, and each core's DAGs have tasks of their own. So frames run at their DAG's home alone, and are
	// handed over by all other cores that they come in by. Otherwise all DAGs have the same tasks, and frames run where they come in.
	Apart bool
	// Flows are drawn at random for each packet, all alike or by Zipf's law with that exponent; flow i is of tenant i mod CoreTenants. The
	// network card chooses the core of each by a hash.
	Flows int
	Zipf  float64
	// Dealt: flows come as in quillon bench two-board, whatever Flows says: 128 of each tenant, as many to each core, in full batches for the cores in turn.
	Dealt bool
	// Warmup is not counted; Measure is.
	Warmup, Measure time.Duration
	Seed            uint64
	Progress        func(done float64)
}

// The tasks of CoresConfig.
const (
	TasksNothing = "nothing"
	TasksState   = "firewall -> NAPT"
	TasksChain   = "firewall -> NAPT -> VXLAN"
)

// CoreTenants is how many tenants there are, each with a DAG.
const CoreTenants = 16

const (
	coreFlows  = 128  // of a tenant, where flows are dealt
	corePrime  = 7919 // by which ports of a tenant are apart
	coreHost   = 128  // of a host: more would not be let in by a firewall that nobody answers
	coreBytes  = 60   // of a frame, as in the benchmarks
	coreQueue  = 1024 // frames in a queue of the network card, and in that of the port by which frames leave
	coreWindow = 512  // frames under way to a home, so that no ring between two workers overflows
	coreGbit   = 100  // of each port
	corePool   = 2048 // buffers of a worker
)

// CoresRun is what a run measured.
type CoresRun struct {
	Left   uint64 // packets, while they were counted
	Handed uint64 // of those that came in meanwhile, to other cores
	Mpps   float64
	// Parts of the time of all cores: of their own work, waiting for lines of the cache that another core wrote last, waiting for shards that another core has, waiting for
	// the port, and with nothing to do.
	Work, Lines, Turns, Port, Idle float64
	// Busiest is the part of its time in which the core that has most to do is not idle.
	Busiest float64
	// Ingress is how much of the time the port by which frames come in was busy.
	Ingress float64
	// Of all packets of the run: that came in, did not come out, and came out behind a later one of their flow.
	Sent, Lost, Disordered uint64
}

// cores is a board on several cores, and what is around it.
type cores struct {
	*node
	c       CoresConfig
	k       kernel
	id      uint32
	core    []core
	at      *core // whose code runs
	turns   []shardTurn
	tasks   []*coreTask
	stateOf map[string]int // the first of the shards of a task, in turns
	shards  int
	flows   []coreFlow
	rng     *rand.Rand
	sums    []float64 // of the flows' probabilities
	dealt   int       // packets that were dealt
	window  int       // of a tenant; 0: none
	under   [CoreTenants]int
	from    Time // the source's next packet is ready
	waiting int  // the flow of a packet that has no room; -1: none
	planned bool // the source's next event
	over    bool // it has ended
	wire    Time // of a frame
	egress  Time // when the port has sent all
	counted Time
	end     Time
	came    uint64 // packets that came out
	arrived uint64 // packets while they were counted
	run     CoresRun
	spoil   func(*packet.Batch) // of tests: does something to frames on their way into a task
}

// coreFlow is a flow. The core is where its frames come in.
type coreFlow struct {
	frame  []byte
	tenant int
	core   int
	shard  int // of the firewall: by a hash, as there
	port   int
	sent   uint64
	left   uint64
}

// core is a worker's processor.
type core struct {
	n      int
	queue  []uint32 // flows of frames that wait; head is the first
	head   int
	busy   bool
	wakes  Time // when it looks again, if it is not busy
	steps  []coreStep
	next   int
	out    []coreOut
	flows  int // that run here
	groups map[[2]int]bool
	waited bool // for the shard that it has come to
	own    int  // frames that came in and run here, in this breath
	came   int  // that came in
	taken  int
	spent  [coreParts]Time // while it was counted
}

// What a core's time is for.
const (
	coreWork = iota
	coreLines
	coreWaits
	corePort
	coreParts
)

// coreStep is work, and then a turn at a shard.
type coreStep struct {
	work, held Time
	shard      int
}

// coreOut is a frame that leaves when the breath is over.
type coreOut struct {
	flow uint32
	seq  uint64
	size int
}

// shardTurn is a shard of a task's state.
type shardTurn struct {
	free Time
	last int // the core that had it last; -1: none
}

// RunCores runs a board on several cores. The source sends as fast as frames are taken from the network card's queues, in a fixed order: when a
// queue is full it waits, as it would for a pause of the port. So nothing is lost, and the core that has most to do tells how much comes through.
//
// The board is the one that runs live, with its workers, rings, regions and tasks. The time that a breath takes is modelled (CoreCosts): its code runs
// at the beginning of the breath, and what leaves does so at the end. Only what is handed to another core is there up to a breath too early.
func RunCores(ctx context.Context, c CoresConfig) (*CoresRun, error) {
	x, err := newCores(c)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return x.play(ctx)
}

// play is the run.
func (x *cores) play(ctx context.Context) (*CoresRun, error) {
	c := &x.c
	begun := x.k.now
	for n := 0; x.err == nil && x.k.next() < never; n++ {
		if x.k.next() > x.end && !x.over {
			x.over = true // what is inside comes out
		}
		if x.over && x.empty() || x.k.next() > x.end+20*Millisecond {
			break
		}
		if n%65536 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if c.Progress != nil {
				c.Progress(float64(x.k.now-begun) / float64(x.end-begun))
			}
		}
		x.k.step()
	}
	if err := errors.Join(x.err, x.inst.Conservation()); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	r := &x.run
	for i := range x.flows {
		f := &x.flows[i]
		r.Sent += f.sent
		r.Lost += f.sent
	}
	r.Lost -= x.came
	span := float64(x.end - x.counted)
	for i := range x.core {
		sum := Time(0)
		for k, part := range [coreParts]*float64{&r.Work, &r.Lines, &r.Turns, &r.Port} {
			*part += float64(x.core[i].spent[k]) / span / float64(c.Cores)
			sum += x.core[i].spent[k]
		}
		r.Busiest = max(r.Busiest, float64(sum)/span)
	}
	r.Idle = max(0, 1-r.Work-r.Lines-r.Turns-r.Port)
	r.Mpps = float64(r.Left) / (span / float64(Microsecond))
	r.Ingress = float64(x.arrived) * float64(x.wire) / span
	return r, x.inst.Close()
}

// coreTasks are what a DAG of these tasks runs, set i of several.
func coreTasks(tasks string, i int) (decl, run string, kinds []graph.Kind) {
	if tasks == TasksNothing {
		for _, k := range graph.Builtin() {
			if k.Name == "wire" {
				kinds = append(kinds, k)
			}
		}
		return fmt.Sprintf("  t%d: {kind: wire}\n", i), fmt.Sprintf("t%d", i), kinds
	}
	decl = fmt.Sprintf("  fw%d: {kind: firewall, args: {rules: \"allow+in:a\"}}\n  nat%[1]d: {kind: napt, args: {public: 198.51.100.1}}\n", i)
	run = fmt.Sprintf("fw%d -> nat%[1]d", i)
	kinds = []graph.Kind{*firewall.Kind(), *napt.Kind()}
	if tasks == TasksChain {
		decl += fmt.Sprintf("  vx%d: {kind: vxlan, args: {vni: \"42\", local: 192.0.2.1, local-mac: \"02:00:00:00:00:01\", remote: 192.0.2.2, remote-mac: \"02:00:00:00:00:02\"}}\n", i)
		run += fmt.Sprintf(" -> vx%d", i)
		kinds = append(kinds, *vxlan.Kind())
	}
	return decl, run, kinds
}

// deployment is that of the benchmarks, but that there is a region for each core.
func (c *CoresConfig) deployment() (text string, kinds []graph.Kind) {
	var d strings.Builder
	sets, regions := 1, max(4, c.Cores)
	if c.Apart {
		sets, regions = c.Cores, c.Cores
	}
	fmt.Fprintf(&d, "regions: {count: %d, area: 4}\ntasks:\n", regions)
	var runs []string
	for i := range sets {
		decl, run, k := coreTasks(c.Tasks, i)
		d.WriteString(decl)
		runs, kinds = append(runs, run), k
	}
	d.WriteString("tenants:\n")
	for i := range CoreTenants {
		fmt.Fprintf(&d, "  u%d: {}\n", i)
	}
	d.WriteString("dags:\n")
	for i := range CoreTenants {
		fmt.Fprintf(&d, "  - {uid: %d, tenant: u%d, run: %s}\n", i+1, i, runs[i%sets])
	}
	d.WriteString("rules:\n")
	for i := range CoreTenants {
		fmt.Fprintf(&d, "  - {match: 'src:10.%d.0.0/16', dag: %d}\n", i+1, i+1)
	}
	return d.String(), kinds
}

func newCores(c CoresConfig) (*cores, error) {
	switch {
	case c.Cores < 1 || c.Cores > CoreTenants:
		return nil, fmt.Errorf("%d cores: want 1 to %d", c.Cores, CoreTenants)
	case !c.Dealt && (c.Flows < 1 || c.Flows > 1<<16), c.Measure <= 0, c.Warmup < 0, c.Zipf < 0:
		return nil, errors.New("a board on several cores has 1 to 65536 flows, and a time to measure")
	case !slices.Contains([]string{TasksNothing, TasksState, TasksChain}, c.Tasks):
		return nil, fmt.Errorf("tasks %q: there are none", c.Tasks)
	}
	x := &cores{c: c, stateOf: map[string]int{}, rng: rand.New(rand.NewPCG(c.Seed, 1)), waiting: -1, wire: frameTime(coreBytes), shards: 1 << bits.Len(uint(c.Cores-1))}
	if c.Apart {
		x.window = coreWindow * c.Cores / CoreTenants
	}
	x.core = make([]core, c.Cores)
	for i := range x.core {
		x.core[i] = core{n: i, wakes: never, groups: map[[2]int]bool{}}
	}
	x.id = x.k.add(x)
	text, kinds := c.deployment()
	var err error
	x.node, err = newNode(&x.k, boardApp, graph.Args{"deployment": text, "pr-rate": "1000G", "port-rate": "10000G"}, pairs(2), c.Cores, frames{corePool, 256}, c.Seed,
		&body{send: x.leaves, drop: func(*packet.Buf) {}, meter: x.meter, kinds: kinds, rx: x.receives})
	if err != nil {
		return nil, err
	}
	if err := x.load(); err != nil {
		return nil, err
	}
	x.tickAt = never // from now on each worker is stepped by itself
	x.makeFlows()
	x.counted = x.k.now + From(c.Warmup)
	x.end = x.counted + From(c.Measure)
	x.from = x.k.now
	x.goOn()
	for i := range x.core {
		x.wake(&x.core[i], x.k.now)
	}
	return x, nil
}

// frameTime is how long a frame keeps a port busy.
func frameTime(size int) Time { return Time(float64(size+4+wireOverhead) * 8e3 / coreGbit) }

// makeFlows makes the flows: UDP datagrams of their tenants from ports of their own.
func (x *cores) makeFlows() {
	n := x.c.Flows
	if x.c.Dealt {
		n = CoreTenants * coreFlows
	}
	sum := 0.
	for i := range n {
		tenant, port := i%CoreTenants, 1024+i/CoreTenants
		if !x.c.Dealt {
			// As hosts choose ports: all over the range. Each comes once, as the factor is prime.
			port = 1024 + (i/CoreTenants*corePrime+i%CoreTenants*997+int(x.c.Seed%4096)*13)%(1<<16-1024)
		}
		f := coreFlow{frame: coreFrame(tenant, i/CoreTenants/coreHost, port), tenant: tenant, port: port}
		binary.BigEndian.PutUint32(f.frame[42:], uint32(i))
		f.core = x.worker(f.frame)
		if x.c.Dealt {
			f.core = i / CoreTenants / (coreFlows / max(2, x.c.Cores)) % x.c.Cores
		}
		h := uint32(i)*2654435761 ^ uint32(x.c.Seed)*40503
		f.shard = int(h>>16) & (x.shards - 1)
		x.flows = append(x.flows, f)
		if x.c.Apart {
			x.core[tenant%x.c.Cores].flows++
		} else {
			x.core[f.core].flows++
		}
		sum += math.Pow(float64(i+1), -x.c.Zipf)
		x.sums = append(x.sums, sum)
	}
	for _, t := range x.tasks {
		for i := range x.core {
			t.frame = append(t.frame, t.cost.frame(x.core[i].flows))
		}
	}
}

// coreFrame is a datagram of a tenant's host, without a checksum.
func coreFrame(tenant, host, port int) []byte {
	const l3, l4 = 14, 14 + 20
	b := make([]byte, coreBytes)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2, 0, 0, 0, 0, 2}, Src: [6]byte{2, 0, 0, 0, 0, 1}, EtherType: hdr.EtherIPv4})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TotalLen: coreBytes - l3, DF: true, TTL: 64, Protocol: hdr.ProtoUDP,
		Src: netip.AddrFrom4([4]byte{10, byte(tenant + 1), byte(host), 1}), Dst: netip.AddrFrom4([4]byte{203, 0, 113, 7})})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: uint16(port), DstPort: 80, Len: coreBytes - l4})
	return b
}

// named is the flow of a frame and its number there. They are at the frame's end, whatever tasks have put in front.
func named(x *packet.Buf) (flow uint32, seq uint64) {
	b := x.Bytes()
	b = b[len(b)-(coreBytes-42):]
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
}

// draw is the flow of the next packet.
func (x *cores) draw() int {
	n := len(x.flows)
	if !x.c.Dealt {
		u := x.rng.Float64() * x.sums[n-1]
		i, _ := slices.BinarySearch(x.sums, u)
		return min(i, n-1)
	}
	// A batch of each core in turn; where there is one core, of two halves of its flows.
	k, parts := x.dealt, max(2, x.c.Cores)
	x.dealt++
	part, each := k/packet.MaxBatch%parts, coreFlows/parts
	k = k/packet.MaxBatch/parts*packet.MaxBatch + k%packet.MaxBatch
	return (part*each+k/CoreTenants%each)*CoreTenants + k%CoreTenants
}

// goOn has the source send what it can until now.
func (x *cores) goOn() {
	for !x.over {
		if x.waiting < 0 {
			x.waiting = x.draw()
		}
		f := &x.flows[x.waiting]
		c := &x.core[f.core]
		if len(c.queue)-c.head >= coreQueue || x.window > 0 && x.under[f.tenant] >= x.window {
			x.from = max(x.from, x.k.now)
			return // until frames leave
		}
		if x.from > x.k.now {
			break
		}
		if c.head > coreQueue {
			c.queue, c.head = append(c.queue[:0], c.queue[c.head:]...), 0
		}
		c.queue = append(c.queue, uint32(x.waiting))
		x.under[f.tenant]++
		if x.from >= x.counted && x.from < x.end {
			x.arrived++
		}
		if !c.busy {
			x.wake(c, x.k.now)
		}
		x.from += x.wire
		x.waiting = -1
	}
	if !x.over && !x.planned && slices.ContainsFunc(x.core, func(c core) bool { return !c.busy }) {
		x.planned = true
		x.k.plan(x.from, x.id, coreSource, 0, nil)
	}
}

// wake has an idle core look at a time, if it does not do so before.
func (x *cores) wake(c *core, at Time) {
	if !c.busy && at < c.wakes {
		c.wakes = at
		x.k.plan(at, x.id, coreBreath, uint64(c.n), nil)
	}
}

// fire implements actor.
func (x *cores) fire(kind uint32, arg uint64, _ *packet.Buf) {
	switch kind {
	case coreSource:
		x.planned = false
		x.goOn()
	case coreBreath:
		if c := &x.core[arg]; !c.busy && c.wakes <= x.k.now {
			x.breathe(c)
		}
	case coreTurn:
		x.step(&x.core[arg])
	}
}

// breathe runs a breath's code, and plans what it takes.
func (x *cores) breathe(c *core) {
	x.goOn()
	c.busy, c.wakes = true, never
	c.steps, c.out, c.next = append(c.steps[:0], coreStep{shard: -1}), c.out[:0], 0
	c.own, c.came, c.taken = 0, 0, 0
	clear(c.groups)
	x.at = c
	_, err := x.inst.StepOne(c.n, x.k.now.Clock())
	x.note(err)
	x.at = nil
	handed := c.came - c.own
	m := &x.c.Costs
	first := &c.steps[0]
	first.work += m.breath(x.c.Cores) + Time(len(c.groups))*m.Group + Time(c.own)*m.Frame + Time(handed)*m.Hand + Time(c.taken)*m.Take
	lines := Time(handed)*m.HandLines + Time(c.taken)*m.TakeLines
	x.goOn()
	x.spend(c, coreLines, lines)
	x.spend(c, coreWork, first.work)
	x.k.plan(x.k.now+first.work+lines, x.id, coreTurn, uint64(c.n), nil)
	if handed == 0 {
		return
	}
	if x.counts() {
		x.run.Handed += uint64(handed)
	}
	for i := range x.core {
		x.wake(&x.core[i], fromClock(x.inst.NextTickOf(i)))
	}
}

// counts reports whether what happens is counted.
func (x *cores) counts() bool { return x.k.now >= x.counted && x.k.now < x.end }

// spend notes what a core's time is for.
func (x *cores) spend(c *core, what int, d Time) {
	if x.counts() {
		c.spent[what] += d
	}
}

// step goes on with a breath: the core has come to the shard of a step, or to the end.
func (x *cores) step(c *core) {
	if c.next == len(c.steps) {
		x.ends(c)
		return
	}
	took := Time(0)
	if s := &c.steps[c.next]; s.shard >= 0 {
		t := &x.turns[s.shard]
		if t.free > x.k.now {
			// The line with the turn comes when it was given up; whoever has the line may take the next turn before.
			wait := t.free - x.k.now + x.c.Costs.Line
			x.spend(c, coreWaits, wait)
			x.k.plan(x.k.now+wait, x.id, coreTurn, uint64(c.n), nil)
			c.waited = true
			return
		}
		if t.last >= 0 && t.last != c.n && !c.waited {
			x.spend(c, coreLines, x.c.Costs.Line)
			took = x.c.Costs.Line
		}
		c.waited = false
		x.spend(c, coreWork, s.held)
		took += s.held
		t.free, t.last = x.k.now+took, c.n
	}
	if c.next++; c.next < len(c.steps) {
		work := c.steps[c.next].work
		x.spend(c, coreWork, work)
		took += work
	}
	x.k.plan(x.k.now+took, x.id, coreTurn, uint64(c.n), nil)
}

// ends is the end of a breath.
func (x *cores) ends(c *core) {
	for _, o := range c.out {
		f := &x.flows[o.flow]
		if o.seq <= f.left {
			x.run.Disordered++
		}
		f.left = max(f.left, o.seq)
		x.under[f.tenant]--
		x.came++
		x.egress = max(x.egress, x.k.now) + frameTime(o.size)
		if x.counts() {
			x.run.Left++
		}
	}
	c.out = c.out[:0]
	// The port has room for so many frames.
	if late := x.egress - coreQueue*x.wire - x.k.now; late > 0 {
		x.spend(c, corePort, late)
		x.k.plan(x.k.now+late, x.id, coreTurn, uint64(c.n), nil)
		return
	}
	c.busy = false
	x.goOn()
	next := fromClock(x.inst.NextTickOf(c.n))
	if len(c.queue) > c.head {
		next = x.k.now
	}
	x.wake(c, max(next, x.k.now))
}

// empty reports whether no frame is inside.
func (x *cores) empty() bool { return x.under == [CoreTenants]int{} }

// receives gives a worker what waits in its queue.
func (x *cores) receives(port, worker int, b *packet.Batch) (n int) {
	if port != 0 || len(x.core) == 0 || x.at == nil {
		return 0
	}
	c := x.at
	for c.head < len(c.queue) && !b.Full() {
		y := x.pools[worker].Get()
		if y == nil {
			break
		}
		f := &x.flows[c.queue[c.head]]
		c.head++
		f.sent++
		y.SetBytes(f.frame)
		binary.BigEndian.PutUint64(y.Bytes()[46:], f.sent)
		y.RxTime = int64(x.k.now.Clock())
		b.Add(y)
		c.groups[[2]int{f.tenant, -1}] = true
		n++
	}
	c.came += n
	return n
}

// leaves is a frame that a worker sends.
func (x *cores) leaves(_ int, y *packet.Buf) {
	flow, seq := named(y)
	x.at.out = append(x.at.out, coreOut{flow, seq, y.Len()})
}

// meter counts what comes to a task, and knows when its shards are taken.
func (x *cores) meter(app graph.App, task string) graph.App {
	kind := strings.TrimRight(task, "0123456789")
	t := &coreTask{App: app, x: x, cost: x.c.Costs.Tasks[kind], first: kind == "t" || kind == "fw", hashed: kind == "fw", shards: -1}
	if t.cost.State && x.shards > 1 {
		if _, ok := x.stateOf[task]; !ok {
			x.stateOf[task] = len(x.turns)
			x.turns = append(x.turns, slices.Repeat([]shardTurn{{last: -1}}, x.shards)...)
		}
		t.shards = x.stateOf[task]
	}
	x.tasks = append(x.tasks, t)
	if tick, ok := app.(graph.Ticker); ok {
		return struct {
			*coreTask
			graph.Ticker
		}{t, tick}
	}
	return t
}

// coreTask is a task in a worker.
type coreTask struct {
	graph.App
	x      *cores
	cost   TaskCost
	frame  []Time // of a frame, by core
	first  bool   // of its DAG
	hashed bool   // its shards are by a hash of the flow; otherwise by its port
	shards int    // the first of them, in turns; -1: it has none, or one
}

// Push implements graph.App.
func (t *coreTask) Push(g *graph.Ctx, in int, b *packet.Batch) {
	x := t.x
	if x.spoil != nil {
		x.spoil(b)
	}
	if c := x.at; c != nil {
		pre := t.cost.Push
		for _, y := range b.Bufs() {
			flow, _ := named(y)
			f := &x.flows[flow]
			switch {
			case !t.first:
			case f.core == c.n:
				c.own++
			default:
				c.taken++
				c.groups[[2]int{f.tenant, f.core}] = true
			}
			s := coreStep{work: pre + t.cost.Outside, held: t.frame[c.n] - t.cost.Outside, shard: -1}
			if t.cost.State && t.shards < 0 {
				s.held -= x.c.Costs.Turn
			}
			pre = 0
			switch {
			case t.shards < 0:
			case t.hashed:
				s.shard = t.shards + f.shard
			default:
				s.shard = t.shards + f.port>>1&(x.shards-1)
			}
			if s.shard < 0 { // no turn: it is work like that before
				last := &c.steps[len(c.steps)-1]
				if last.shard >= 0 {
					c.steps = append(c.steps, coreStep{shard: -1})
					last = &c.steps[len(c.steps)-1]
				}
				last.work += s.work + s.held
				continue
			}
			c.steps = append(c.steps, s)
		}
	}
	t.App.Push(g, in, b)
}
