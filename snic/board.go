package snic

import (
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/mat"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// Sizes of a board. What is deployed may come and go; numbers are used again.
const (
	ports      = 16
	maxDAGs    = 1 << 14
	maxTenants = 10_000
	maxTasks   = 64                    // deployed at a time
	maxNumbers = 128                   // of tasks, with those whose chains still stop
	maxChains  = 2 * dag.DefaultChains // bitstreams known at a time: those of a deployment before may still be there
	laneBits   = 3
	maxLanes   = 1 << laneBits // branches of a stage
	inLine     = 2 * maxDAGs   // from here on routes that have no stage of several branches
)

// task is a network task that is deployed.
type task struct {
	dag.Task
	in   *graph.Inside
	app  graph.App
	next clock.Time // of its timer
	// modelled: it takes a time on the board that is not that of its code here.
	modelled bool
	// holds: it may keep packets.
	holds bool
	// quiet: it makes no packets of its own, as its function says, too.
	quiet bool
	// looks: it does no more to packets than look at them, or drop them, and does so at once. Then it needs no copy where
	// others run beside it: what these write it does not look at.
	looks bool
	// halted: a fault has stopped it; app is nil as soon as it has given up what it held.
	halted  bool
	fault   string
	lent    bool // what it knows may be of a peer's DAG
	fresh   *renewal
	oneFlow oneFlow // a flow that is too much for an instance
	untimed int     // packets since one was timed
	space   *space  // of the board's memory; nil: it has none
	// way is that of the last packet that came to it: what it makes by itself goes
	// the same.
	way way
}

// way is where a packet goes: through a DAG, forward or back, and out by a port.
type way struct {
	dag  int32
	back bool
	out  uint16 // port; from ports on: a port of a peer, of number out/16-1
	term uint16 // of the number of the DAG
}

// chain is a bitstream.
type chain struct {
	dag.Chain
	tasks   []int   // numbers
	running []int   // regions that have it and take packets
	known   bool    // to the fabric
	rests   bool    // it is gone, but packets may be on their way to it
	ends    bool    // it is no longer deployed
	asked   bool    // a launch is under way, or waits
	load    []int64 // of each task by the DAGs that go through it, in ns of an instance
}

// service is a DAG that is deployed.
type service struct {
	dag.DAG
	tenant   int
	tasks    []int         // in one of the orders that are right
	stages   [][][]int     // the same in stages of branches that may run side by side
	visits   []sched.Visit // the plan: forward; nil: none
	best     []sched.Visit // the fewest, whatever is in the regions; nil: there are none
	bulk     bool          // packets run to the end at once
	width    int           // the most branches of a stage, side by side; 0: one after the other
	copies   int           // as many copies as such a packet may need at a time
	twin     bool          // it has routes in line, too
	missing  bool          // a chain of the plan is in no region
	refused  bool          // it cannot be launched
	away     bool          // endpoints do the work
	again    clock.Time    // when to ask again, after it was refused
	arrived  int64         // bytes in this epoch, before any was refused
	rate     float64       // bytes a second, of late
	counted  uint64        // bytes when it was measured
	recent   float64       // bytes of about the last monitor period
	recentAt clock.Time
	stay     float64 // ns that a packet is in the packet store, of late
	listed   bool    // in board.active
	term     uint16  // DAGs that have had the number; it wraps
	abroad   abroad
	lodge    lodge
	spread   sched.Spread
	costs    []float64 // ns of a worker that a packet takes in each task; 0: not yet known
	cost     float64   // together
	byFlow   bool      // what its flows bring is measured one by one
	perByte  []float32 // ns of an instance that a byte takes, of each visit; 0: no limit
	packets, bytes,
	throttled uint64
}

// inside is a packet on the full road.
type inside struct {
	way      way
	begun    bool  // a task has had it
	lost     bool  // a task has not let it go on: it ends
	failed   bool  // there were no copies for it
	lent     bool  // a task has what is original
	promised uint8 // copies that it may still need
	stage    uint8
	branches uint8       // it runs in, side by side
	original *packet.Buf // its frame meanwhile; nil: a task has ended it
	since    clock.Time  // it is in the packet store
	size     int32
	tenant   int32
	from     int8 // worker + 1 that handed it over; 0: none
}

// lane is a packet in a branch: the frame, or a copy of its headers. That of branch i of packet p is
// p<<laneBits + i.
type lane struct {
	buf    *packet.Buf
	region int32
	mask   uint16 // tasks of the chain there that it is still to run through
	at     int8   // the task of the chain that it is in, or was last; -1: none
	lent   bool   // the task has the frame
	branch        // of several
}

// take makes a lane that of a frame, which is nowhere yet. Each field is set by itself: a whole lane would be made elsewhere
// and copied from there, which has to wait for it.
func (l *lane) take(x *packet.Buf) {
	l.buf, l.region, l.mask, l.at, l.lent = x, -1, 0, -1, false
}

// catalog is what is deployed, by number, and what follows from that alone: it decides nothing, and touches no frame.
type catalog struct {
	*settings
	tasks    []task
	chains   []chain
	services []service
	tenants  []string // "": none
	numbers  numbering
	taskOf   []int // numbers of the deployment's tasks
	dagOf    []int // and of its DAGs
	worker   int
	house    *house     // what the boards of all workers share; nil: there is one
	placed   []int32    // of each region, the chain that runs or drains there; -1: none
	seen     clock.Time // the last breath
}

// runner is packets inside, and how they go through tasks: at once, or one by one as the scheduler says, on lanes side by side.
type runner struct {
	*settings
	cat   *catalog
	stock *stock
	split *shares
	gates *gates

	sched    *sched.Scheduler
	packets  []inside
	lanes    []lane         // of packets, maxLanes of each
	held     int            // frames and copies of them that the board has
	backs    [maxDAGs]int32 // packets inside that go back, by service
	waits    [maxDAGs]int32 // packets inside, by service
	wait     []delay        // of each task in each region, when it is modelled
	passes   delay          // lanes on their way through the scheduler, where that is modelled
	syncs    delay          // lanes on their way through the synchronisation buffer, likewise
	decided  int            // packet of the scheduler's last decision
	modelled []int32        // of wait, those with packets
	copied   uint64         // packets, once for each stage in which they ran side by side
	promised int            // copies to packets
	inLine   uint64         // packets that could not, because frames were scarce
	lost     func(tag uint64)
	one      [1]*packet.Buf
	work     ring           // lanes that go on; first come, first served, so that flows keep their order
	batches  []packet.Batch // by depth
	depth    int
	convoy   convoy
}

// helpers are those that DAGs may run at: other workers, or boards of the pool.
type helpers interface {
	mayGo(now clock.Time, n int) bool // they may be asked for a region for a DAG
	leave(n int)                      // it waits, and goes to one of them
	relieve(now clock.Time, task int) // there is too much of a task here, and no region left for it
	regionFreed()
}

// placement is which chains are in which regions, and through which of them a DAG goes.
type placement struct {
	*settings
	cat    *catalog
	stock  *stock
	split  *shares
	gates  *gates
	runner *runner

	fabric   *region.Fabric
	stops    []uint32 // of each region, what it waits for to be told Stopped; 0: nothing
	log      []region.Event
	relief   relief
	moved    uint64     // buckets of flows, from one instance to another
	singles  uint64     // times that one flow was too much for an instance
	lacking  bool       // a service with packets may be without a region
	active   []int32    // services with packets in this epoch
	quiet    bool       // nobody was there when it began
	epochAt  clock.Time // when the epoch ends
	sampleAt clock.Time // when tasks are looked at
	sampled  clock.Time // when they were
	rateAt   clock.Time // when rates were measured
	near     helpers
}

// ingress is whose a frame is, and whether it is let in.
type ingress struct {
	*settings
	cat    *catalog
	split  *shares
	gates  *gates
	runner *runner
	place  *placement

	mat     *mat.Table
	asked   [packet.MaxBatch]asked // frames of a batch
	rules   []mat.Rule
	groups  []group
	groupOf [2 * maxDAGs]int8 // index into groups + 1
	part    []int64           // bytes of a group, by region
	touched []int32           // regions that have some
}

// nearby is the board's part in what several do: workers of one board, and boards of a pool. It implements helpers.
type nearby struct {
	*settings
	cat    *catalog
	split  *shares
	gates  *gates
	runner *runner
	place  *placement
	memory *onboard // nil: there is none
	pool   *pooled  // nil: it is in none

	heard  uint32  // house.cries
	went   uint64  // DAGs, to their homes for want of a region
	came   uint64  // and from there
	moving []int32 // DAGs that go from one worker to another
	freed  bool    // a region may be free for what runs in another worker
}

// board is one sNIC: its owners, and what happens in which order.
type board struct {
	settings
	cat     catalog
	stock   stock
	split   shares
	gates   gates
	runner  runner
	place   placement
	ingress ingress
	near    nearby
	fixed   settings // what it was made with
	next    settings // from Reconfigure, until Inside

	memory *onboard // nil: there is none

	renew bool // a deployment is to be put in force

}

// stock is the books of the packet store.
type stock struct {
	packets int    // that it has room for
	bytes   int64  // and how much
	kept    []kept // by number of the tenant
	inside  int    // packets
	stored  int64  // bytes
}

// kept is what a tenant has in the packet store.
type kept struct {
	packets int32
	bytes   int64
}

// full reports that a tenant may store no packet of so many bytes: it would have more than it leaves to all others.
func (s *stock) full(k *kept, bytes int) bool {
	return int(k.packets) >= s.packets-s.inside || k.bytes+int64(bytes) > s.bytes-s.stored
}

// much reports whether a tenant has more than 1/part of the room that it may have.
func (s *stock) much(tenant, part int) bool {
	k := &s.kept[tenant]
	return part*int(k.packets) > s.packets-s.inside || int64(part)*k.bytes > s.bytes-s.stored
}

// group is packets of a batch that go the same way.
type group struct {
	way    way
	from   int   // worker + 1 that handed it over; 0: none
	weight uint8 // what a frame stands for, as in lodge
	bytes  int
	flow   uint64 // of the first
	flows  [packet.MaxBatch]uint64
	batch  packet.Batch
}

// asked is a frame whose flow is looked for.
type asked struct {
	mat.Ask
	whole bool // its headers are
}

// delay is the packets that a modelled task has, or another modelled part of the board, in the order in which
// they leave it.
type delay struct {
	task int32      // its number; of a region's delays, as long as something is placed there
	busy clock.Time // until then it works on those before
	rest float64    // and for this part of a ns
	q    []delayed
	head int
}

type delayed struct {
	lane int32
	at   clock.Time
}

func (d *delay) push(l int32, at clock.Time) {
	if d.head > 0 && d.head == len(d.q) {
		d.q, d.head = d.q[:0], 0
	} else if len(d.q) == cap(d.q) && d.head > 0 {
		d.q = d.q[:copy(d.q, d.q[d.head:])]
		d.head = 0
	}
	d.q = append(d.q, delayed{l, at})
}

// pop is the next one, when its time has come.
func (d *delay) pop(now clock.Time) (lane int32, ok bool) {
	if d.head == len(d.q) || d.q[d.head].at > now {
		return 0, false
	}
	d.head++
	return d.q[d.head-1].lane, true
}

// next is when the next one leaves.
func (d *delay) next() clock.Time {
	if d.head == len(d.q) {
		return clock.Never
	}
	return d.q[d.head].at
}

// ring is a queue of bounded size.
type ring struct {
	e     []int32 // as many as a power of two
	at, n int
}

func newRing(n int) ring {
	size := 1
	for size < n {
		size *= 2
	}
	return ring{e: make([]int32, size)}
}

func (r *ring) push(v int32) {
	r.e[(r.at+r.n)&(len(r.e)-1)] = v
	r.n++
}

func (r *ring) pop() int32 {
	v := r.e[r.at]
	r.at = (r.at + 1) & (len(r.e) - 1)
	r.n--
	return v
}

func newBoard(s settings) (*board, error) {
	s.workers = max(s.workers, 1)
	b := &board{settings: s, fixed: s, next: s}
	regions := max(s.regions, 1)
	b.cat = catalog{settings: &b.settings, placed: slices.Repeat([]int32{-1}, regions)}
	b.stock = stock{packets: s.packets, bytes: s.store}
	b.gates = gates{cat: &b.cat, stock: &b.stock, split: &b.split, pauses: newLossless(s.lossless, s.portRate), marked: make([]int32, 0, 64)}
	if s.poolPort >= 0 {
		b.gates.pool = &pooled{port: s.poolPort, mtu: s.poolMTU}
	}
	b.runner.init(&b.settings, &b.cat, &b.stock, &b.split, &b.gates)
	b.place = placement{
		settings: &b.settings, cat: &b.cat, stock: &b.stock, split: &b.split, gates: &b.gates, runner: &b.runner, near: &b.near,
		log:   make([]region.Event, 0, 256),
		stops: make([]uint32, regions),
	}
	b.ingress = ingress{
		settings: &b.settings, cat: &b.cat, split: &b.split, gates: &b.gates, runner: &b.runner, place: &b.place,
		mat:     mat.New(s.flows),
		groups:  make([]group, packet.MaxBatch),
		part:    make([]int64, regions),
		touched: make([]int32, 0, packet.MaxBatch),
	}
	var err error
	if b.memory, err = newOnboard(&s); err != nil {
		return nil, err
	}
	if b.memory != nil {
		b.memory.cat = &b.cat
	}
	b.split = shares{settings: &b.settings, fixed: &b.fixed, cat: &b.cat, memory: b.memory}
	b.near = nearby{
		settings: &b.settings, cat: &b.cat, split: &b.split, gates: &b.gates, runner: &b.runner, place: &b.place,
		memory: b.memory, pool: b.gates.pool,
	}
	if b.runner.sched, err = newScheduler(s, 0); err != nil {
		return nil, err
	}
	b.place.fabric = b.place.newFabric(0, s)
	return b, b.memory.fits(s.deployment)
}

// init makes a runner of a board's size, without a scheduler.
func (rn *runner) init(s *settings, cat *catalog, stock *stock, split *shares, gates *gates) {
	*rn = runner{
		settings: s, cat: cat, stock: stock, split: split, gates: gates,
		packets: make([]inside, s.packets),
		lanes:   make([]lane, s.packets<<laneBits),
		wait:    make([]delay, max(s.regions, 1)*sched.MaxTasks),
		work:    newRing(s.packets << laneBits),
		batches: make([]packet.Batch, 2*maxDepth),
		convoy:  convoy{taken: make([]taken, 0, packet.MaxBatch)},
	}
	rn.lost = func(tag uint64) {
		if tag-1 < uint64(len(rn.lanes)) && rn.lanes[tag-1].lent {
			rn.forsake(int32(tag - 1))
		}
	}
}

// newScheduler is the scheduler of a board, empty.
func newScheduler(s settings, seed uint64) (*sched.Scheduler, error) {
	return sched.New(sched.Config{Packets: s.packets, Store: int(s.store), Regions: max(s.regions, 1), Chains: maxChains + 1,
		Routes: 2 * inLine, Tenants: maxTenants, Branches: maxLanes, Panic: s.panics, Seed: seed})
}

// newFabric is the regions of a board, free.
func (pl *placement) newFabric(now clock.Time, s settings) *region.Fabric {
	cfg := region.Default(max(s.regions, 1), s.deployment.Regions.Area)
	cfg.Bitstream = s.deployment.Regions.Bitstream
	cfg.Rate = s.rate
	cfg.Monitor = s.monitor
	cfg.Patience = 0 // who keeps packets for long is waited for
	cfg.Idle, cfg.Keep = s.idle, float64(s.victims)/100
	cfg.Helps, cfg.Spares = pl.helps, pl.spares
	f, err := region.New(now, cfg)
	if err != nil {
		panic(fmt.Sprintf("snic: regions that were checked: %v", err))
	}
	if s.regions == 0 {
		f.Fail(now, 0) // other workers have all
	}
	return f
}

// Inside brings the tasks of a deployment; the next Tick puts the rest in force,
// because time stands still here.
func (b *board) Inside(c *graph.Ctx, apps []*graph.Inside) {
	b.settings = b.next
	b.cat.numbers.take(b.deployment)
	b.renew = true
	c.Wake(c.Now())
	if err := b.deployTasks(c, apps); err != nil {
		panic(fmt.Sprintf("snic: tasks that were checked: %v", err))
	}
	for i := range b.cat.tasks {
		if t := &b.cat.tasks[i]; t.in != nil {
			k := t.in.Kind
			t.looks = t.Writes == 0 && !t.Answers && !t.holds
			t.quiet = !t.Answers && !t.holds && k.Effects != nil && !k.Effects(t.in.Args).Answers
		}
	}
}

// Push takes frames in: parser, match-action table, admission, and on to the
// scheduler.
func (b *board) Push(c *graph.Ctx, in int, frames *packet.Batch) {
	if b.split.scarce.used&(1<<in) == 0 {
		b.split.use(c.Now(), in)
	}
	if b.split.spent.clock != nil {
		b.split.breathe(c.Now(), frames.Len())
	}
	n := 0
	forward := in&1 == 0
	out := in ^ 1
	if b.near.pool != nil && in|1 == b.near.pool.port|1 {
		b.pushPeers(c, in, frames)
		return
	}
	for i, x := range frames.Bufs() {
		q, p := &b.ingress.asked[i], x.Bytes()
		if q.whole = hdr.Walk(p, &q.Layers); q.whole {
			b.ingress.mat.Ahead(&q.Ask, p, uint16(in))
		}
	}
	for i := range frames.Len() {
		if q := &b.ingress.asked[i]; q.whole {
			b.ingress.mat.Near(&q.Ask)
		}
	}
	for i, x := range frames.Bufs() {
		if b.gates.pauses != nil && b.gates.hear(c, in, x) {
			continue
		}
		q, p := &b.ingress.asked[i], x.Bytes()
		if !q.whole {
			c.Mark(x, packet.Forwarded, reasonShort)
			b.gates.depart(c, out, x)
			continue
		}
		f := b.ingress.mat.Find(&q.Ask, p, uint16(in), forward)
		if f.Rule < 0 {
			c.Mark(x, packet.Forwarded, reasonSwitched)
			b.gates.depart(c, out, x)
			continue
		}
		r := &b.ingress.rules[f.Rule]
		switch r.Road {
		case mat.Switch:
			c.Mark(x, packet.Forwarded, reasonSwitched)
			b.gates.depart(c, out, x)
			continue
		case mat.Control:
			c.Punt(x, reasonControl)
			continue
		case mat.Refuse:
			c.Drop(x, reasonNobody)
			continue
		}
		if l := &q.Layers; l.EtherType == hdr.EtherNSH {
			if r := leavePath(x, l); r != reasonOffPath {
				c.Drop(x, r)
				continue
			}
			c.Mark(x, packet.Rewritten, reasonOffPath)
			f.Hash = 0
			if hdr.Walk(x.Bytes(), l) {
				f.Hash = mat.Hash(x.Bytes(), l)
			}
		}
		n += b.ingress.collect(c, n, r.DAG, !forward, uint16(out), f.Hash, x)
	}
	b.ingress.dispatch(c, in, n)
}

// collect adds a frame to those of a batch that go the same way, of which there
// are n groups, and returns how many groups it made.
func (ig *ingress) collect(c *graph.Ctx, n, dag int, back bool, out uint16, flow uint64, x *packet.Buf) int {
	d := &ig.cat.services[dag]
	size := x.Len()
	if !d.listed {
		ig.place.list(c, int32(dag))
	}
	d.arrived += int64(size)
	d.packets++
	d.bytes += uint64(size)
	if d.away {
		c.Mark(x, packet.Forwarded, reasonEndpoint)
		ig.gates.emit(c, way{int32(dag), back, out, d.term}, x)
		return 0
	}
	route := 2 * dag
	if back {
		route++
	}
	made := 0
	// Of one route, those of another pair of ports are a group of their own.
	g := int(ig.groupOf[route]) - 1
	if g < 0 {
		g, made = n, 1
		ig.groupOf[route] = int8(g + 1)
		ig.groups[g].way = way{int32(dag), back, out, d.term}
		ig.groups[g].from, ig.groups[g].weight = 0, stands
		ig.groups[g].bytes = 0
		ig.groups[g].batch.Reset()
	}
	k := &ig.groups[g]
	k.flows[k.batch.Len()] = flow
	k.batch.Add(x)
	k.bytes += size
	return made
}

// list notes that a DAG has packets in this epoch.
func (pl *placement) list(c *graph.Ctx, dag int32) {
	d := &pl.cat.services[dag]
	if d.listed {
		return
	}
	d.listed = true
	if pl.quiet { // the epoch is long
		pl.quiet = false
		pl.epochAt = min(pl.epochAt, c.Now().Add(pl.epoch))
		c.Wake(pl.epochAt)
	}
	pl.active = append(pl.active, dag)
}

// dispatch admits the n groups that were collected.
func (ig *ingress) dispatch(c *graph.Ctx, in, n int) {
	if n == 0 {
		return
	}
	for i := range ig.groups[:n] {
		g := &ig.groups[i]
		ig.groupOf[2*g.way.dag] = 0
		ig.groupOf[2*g.way.dag+1] = 0
	}
	ig.runner.convoy.open = true
	for i := range ig.groups[:n] {
		ig.admit(c, in, &ig.groups[i])
	}
	ig.runner.convoy.open = false
	ig.runner.runConvoy(c)
	ig.runner.pump(c)
}

// admit sends a group into its DAG.
func (ig *ingress) admit(c *graph.Ctx, in int, g *group) {
	d := &ig.cat.services[g.way.dag]
	if d.lodge.at > 0 {
		d.lodge.offered += int64(g.bytes)
	} else if d.byFlow && d.abroad.peer == 0 {
		ig.want(d, g)
	}
	if ig.gates.pauses != nil {
		ig.gates.strain(c, in, d.tenant)
	}
	if ig.split.fair != nil && !ig.split.fair.Ingress(c.Now(), d.tenant, g.bytes) {
		d.throttled += uint64(g.batch.Len())
		for _, x := range g.batch.Bufs() {
			c.Drop(x, reasonThrottled)
		}
		return
	}
	if ig.split.fair != nil && ig.split.fair.Press(c.Now(), d.tenant) {
		ig.press(c, g)
	}
	if d.lodge.at > 0 {
		d.lodge.let += int64(g.bytes)
	}
	ig.letIn(c, in, g)
}

// letIn sends a group that was let in into its DAG; in is the port that it came by, -1: another worker's.
func (ig *ingress) letIn(c *graph.Ctx, in int, g *group) {
	d := &ig.cat.services[g.way.dag]
	lodges := d.lodge.at > 0
	if (lodges || d.abroad.peer > 0) && !d.abroad.paused && ig.runner.waits[g.way.dag] == 0 {
		if ig.split.fair != nil {
			ig.split.measure(d, in, g)
		}
		for _, x := range g.batch.Bufs() {
			if lodges {
				ig.gates.hand(c, d, g.way, x)
			} else {
				ig.gates.request(c, d, g.way, x)
			}
		}
		return
	}
	if d.missing {
		ig.runner.runConvoy(c) // before regions change
	}
	if d.missing && !ig.place.find(c, int(g.way.dag)) {
		// Nobody will serve them.
		r := reasonNoRegion
		if d.away {
			r = reasonEndpoint
		}
		for _, x := range g.batch.Bufs() {
			if d.away {
				c.Mark(x, packet.Forwarded, r)
				ig.gates.emit(c, g.way, x)
			} else {
				c.Drop(x, r)
			}
		}
		return
	}
	if ig.split.fair != nil {
		ig.split.measure(d, in, g)
	}
	ig.runner.accept(c, g, d)
}

// accept takes a group of packets in: they run at once, or go to the packet store and the scheduler.
func (rn *runner) accept(c *graph.Ctx, g *group, d *service) {
	bufs := g.batch.Bufs()
	at := 0
	if d.bulk && !(g.way.back && rn.backs[g.way.dag] > 0) {
		at = rn.rush(c, g, d)
	}
	route := 2 * int(g.way.dag)
	if g.way.back {
		route++
	}
	var k *kept
	if at < len(bufs) {
		k = &rn.stock.kept[d.tenant]
	}
	for i := at; i < len(bufs); i++ {
		x := bufs[i]
		// No tenant has more of the packet store than it leaves to all others: so one that
		// floods, or waits for a region, does not fill it (the dynamic thresholds of Choudhury
		// and Hahne, 1998).
		if rn.split.fair != nil && rn.stock.full(k, x.Len()) {
			c.Drop(x, reasonOverQuota)
			continue
		}
		way := route
		copies := 0
		if d.width > 0 && d.copies > 0 {
			if copies = d.copies; !rn.canCopy(x, copies) {
				copies, way = 0, way+inLine
			}
		}
		id, r := rn.sched.Arrive(way, x.Len(), g.flows[i], d.tenant)
		if r != sched.None {
			c.Drop(x, refusals[r])
			continue
		}
		rn.promised += copies
		p := &rn.packets[id]
		p.begun, p.lost, p.failed, p.lent = false, false, false, false
		p.way, p.promised, p.since, p.size, p.tenant, p.from = g.way, uint8(copies), c.Now(), int32(x.Len()), int32(d.tenant), int8(g.from)
		p.original, p.stage, p.branches = nil, 0, 0
		if g.from > 0 {
			d.lodge.guests[g.from-1].inside++
		}
		first := id << laneBits
		rn.lanes[first].take(x)
		rn.stock.inside++
		rn.stock.stored += int64(x.Len())
		k.packets++
		k.bytes += int64(x.Len())
		rn.held++
		rn.waits[g.way.dag]++
		if g.way.back {
			rn.backs[g.way.dag]++
		}
		x.Tag = uint64(first) + 1
	}
}

// rush takes packets of a group through their DAG at once, while there are credits
// for the whole of it and nobody waits, and returns how many.
func (rn *runner) rush(c *graph.Ctx, g *group, d *service) int {
	route := 2 * int(g.way.dag)
	bufs := g.batch.Bufs()
	at := 0
	for at < len(bufs) {
		n, bytes := len(bufs)-at, g.bytes
		if d.spread == sched.PerFlow && len(rn.cat.chains[d.visits[0].Chain].running) > 1 {
			first := rn.sched.Choose(route, g.flows[at])
			for n = 1; at+n < len(bufs) && rn.sched.Choose(route, g.flows[at+n]) == first; n++ {
			}
			bytes = 0
			for _, x := range bufs[at : at+n] {
				bytes += x.Len()
			}
		}
		r, mask, k := rn.sched.Take(route, g.flows[at], n, bytes)
		if k == 0 {
			if rn.convoy.batch.Len() > 0 {
				rn.runConvoy(c) // and gives back credits
				continue
			}
			return at
		}
		rn.gather(c, d, g.way, bufs[at:at+k])
		rn.convoy.taken = append(rn.convoy.taken, taken{r, mask, k})
		if at += k; !rn.convoy.open || k < n {
			rn.runConvoy(c)
		}
	}
	return at
}

// convoy is packets that have been taken to run at once, and are still to run: of DAGs that have the same tasks, so that they can
// be one batch. All that are dispatched together go in the same direction, and out by the same port.
type convoy struct {
	open  bool // more may come
	alone bool // a task is to be timed
	d     *service
	way   way
	batch packet.Batch
	taken []taken
}

// taken is what the scheduler has given credits.
type taken struct {
	region int
	mask   uint16
	n      int
}

// gather has packets run with those that were taken before them. They, and what tasks answer or make on the way, go the way of
// the first of them. The ways of all differ in the number of the DAG alone, by which nothing is told apart any more, but for
// frames that go back to a peer: these say which DAG they are of, and each DAG's run by themselves.
func (rn *runner) gather(c *graph.Ctx, d *service, w way, frames []*packet.Buf) {
	k := &rn.convoy
	if n := k.batch.Len(); n > 0 {
		if !k.alone && w.out < ports && k.batch.Room() >= len(frames) && slices.Equal(k.d.tasks, d.tasks) && rn.unmeasured(d, n+len(frames)) {
			k.batch.Append(frames)
			return
		}
		rn.runConvoy(c)
	}
	k.d, k.way, k.alone = d, w, !rn.unmeasured(d, len(frames))
	k.batch.Append(frames)
}

// unmeasured reports whether n packets may run through the tasks of a DAG together with those of others: none of the tasks is to be
// timed then, which is done with packets of one DAG.
func (rn *runner) unmeasured(d *service, n int) bool {
	if rn.split.spent.clock == nil {
		return true
	}
	for i, t := range d.tasks {
		if rn.cat.tasks[t].untimed+n >= timedEvery || d.costs[i] == 0 {
			return false
		}
	}
	return true
}

// runConvoy runs what was gathered.
func (rn *runner) runConvoy(c *graph.Ctx) {
	k := &rn.convoy
	if k.batch.Len() == 0 {
		return
	}
	rn.run(c, k.d, k.d.start(k.way.back), k.way, k.batch.Bufs())
	k.batch.Reset()
	for _, t := range k.taken {
		rn.sched.Give(t.region, t.mask, t.n, 0)
	}
	k.taken = k.taken[:0]
}
