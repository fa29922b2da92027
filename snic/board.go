package snic

import (
	"fmt"
	"slices"

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
	laneBits   = 3                     // as many as sched needs for maxLanes: its lanes are these
	maxLanes   = 1 << laneBits         // branches of a stage
	inLine     = 2 * maxDAGs           // from here on routes that have no stage of several branches
)

// board is one sNIC: it holds the owners (doc.go), and calls them in the right order.
type board struct {
	settings
	cat     catalog
	stock   stock
	split   shares
	gates   gates
	runner  runner
	placing placement
	ingress ingress
	near    nearby
	fixed   settings // the settings that the board was made with
	next    settings // new settings, between Reconfigure and Inside

	memory *onboard // nil: there is none
	renew  bool     // a deployment is to be put in force
}

func newBoard(s settings) (*board, error) {
	s.workers = max(s.workers, 1)
	b := &board{settings: s, fixed: s, next: s}
	regions := max(s.regions, 1)
	b.cat = catalog{settings: &b.settings, placed: slices.Repeat([]int32{-1}, regions)}
	b.stock = stock{packets: s.packets, bytes: s.store, set: &b.settings}
	b.gates = gates{cat: &b.cat, stock: &b.stock, split: &b.split, pauses: newLossless(s.lossless, s.portRate), marked: make([]int32, 0, 64), lates: make([]lates, s.workers)}
	if s.poolPort >= 0 {
		b.gates.pool = &pooled{port: s.poolPort, mtu: s.poolMTU}
	}
	b.runner.init(&b.settings, &b.cat, &b.stock, &b.split, &b.gates)
	b.placing = placement{
		settings: &b.settings, cat: &b.cat, stock: &b.stock, split: &b.split, gates: &b.gates, runner: &b.runner, near: &b.near,
		log:   make([]region.Event, 0, 256),
		stops: make([]uint32, regions),
		toil:  toil{watch: region.NewWatch()},
	}
	b.ingress = ingress{
		settings: &b.settings, cat: &b.cat, stock: &b.stock, split: &b.split, gates: &b.gates, runner: &b.runner, placing: &b.placing,
		mat:     mat.New(s.flows),
		groups:  make([]group, packet.MaxBatch),
		part:    make([]int64, regions),
		touched: make([]int32, 0, packet.MaxBatch),
	}
	b.ingress.lobby.init(s.packets)
	var err error
	if b.memory, err = newOnboard(&s); err != nil {
		return nil, err
	}
	if b.memory != nil {
		b.memory.cat = &b.cat
	}
	b.split = shares{settings: &b.settings, fixed: &b.fixed, cat: &b.cat, memory: b.memory}
	b.near = nearby{
		fellows: fellows{settings: &b.settings, cat: &b.cat, whole: &b.split.whole, gates: &b.gates, runner: &b.runner, placing: &b.placing},
		memory:  b.memory, pool: b.gates.pool,
	}
	if b.runner.sched, err = b.newScheduler(s, 0); err != nil {
		return nil, err
	}
	b.placing.fabric = b.placing.newFabric(0, s)
	return b, b.memory.fits(s.deployment)
}

// newScheduler is the scheduler of a board, empty.
func (b *board) newScheduler(s settings, seed uint64) (*sched.Scheduler, error) {
	return sched.New(sched.Config{Packets: s.packets, Store: int(s.store), Regions: max(s.regions, 1), Chains: maxChains + 1,
		Routes: 2 * besides, Tenants: maxTenants, Branches: maxLanes, Panic: s.panics, Seed: seed, Instead: b.cat.instead})
}

// Hooks implements graph.Hooked.
func (b *board) Hooks() graph.Hooks { return graph.Hooks{Inside: b.Inside, Taken: b.Taken} }

// Inside receives the tasks of a deployment. The next Tick puts the rest of the
// deployment in force, because there is no time here.
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
	b.gates.crowded = false
	if b.split.scarce.used&(1<<in) == 0 {
		b.split.use(c.Now(), in)
	}
	if b.split.spent.clock != nil {
		b.split.breathe(c.Now(), frames.Len())
		b.ingress.lobby.look(frames)
	}
	n := 0
	forward := in&1 == 0
	out := in ^ 1
	if b.near.pool != nil && in|1 == b.near.pool.port|1 {
		b.pushPeers(c, in, frames)
		return
	}
	bufs, asked, m := frames.Bufs(), &b.ingress.asked, b.ingress.mat
	for i, x := range bufs {
		q, p := &asked[i], x.Bytes()
		if end, proto, ok := hdr.Usual(p); ok {
			q.whole = true
			m.Usual(&q.Ask, p, uint16(in), end, proto)
		} else if q.whole = hdr.Walk(p, &q.Layers); q.whole {
			m.Ahead(&q.Ask, p, uint16(in))
		}
	}
	for i := range bufs {
		if q := &asked[i]; q.whole {
			m.Near(&q.Ask)
		}
	}
	for i, x := range bufs {
		if b.gates.pauses != nil && b.gates.hear(c, in, x) {
			continue
		}
		q := &asked[i]
		if !q.whole {
			c.Mark(x, packet.Forwarded, reasonShort)
			b.gates.depart(c, out, x)
			continue
		}
		f, known := m.Known(&q.Ask)
		if !known {
			f = m.Find(&q.Ask, x.Bytes(), uint16(in), forward)
		}
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
	b.split.known(c.Now(), frames.Len())
	b.ingress.dispatch(c, in, n)
}
