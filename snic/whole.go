package snic

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/fair"
)

// A board has a part in each worker, which divides its own time and packet store. Ports and tasks belong
// to the whole board: worker 0 divides them, from the demands of all parts.

// exchangeEvery is how often parts tell the demands of their tenants. A line of the processor's cache takes up to
// 0.2 µs from one worker to another, and an exchange moves about ten lines.
const exchangeEvery = 100 * time.Microsecond

// endless is the capacity, in the division of the whole, of what each part divides alone.
const endless = 1e18

// house is what the parts of a board share.
type house struct {
	used   atomic.Uint32 // ports, as scarce.used
	rows   []row
	asks   []leaveAsk // of each worker to each
	tides  []tide     // of workers
	crying []atomic.Bool
	cries  atomic.Uint32 // how often one of them began to
	// abroad: a DAG is at a peer, on its way there or back, or a peer is being looked for. The DAG's home alone writes it.
	abroad []atomic.Bool
}

// ask is the question of one worker to another.
func (h *house) ask(from, to int) *leaveAsk { return &h.asks[from*len(h.rows)+to] }

// row has the messages between worker 0 and another worker.
type row struct {
	asked slot[demands]
	bound slot[bounds]
}

// slot is a message from one worker to another. The two own its value in turns.
type slot[T any] struct {
	full atomic.Bool
	v    T
	_    [64]byte // the next one is on another line
}

// tag identifies the deployment and the ports of a message. A message with another tag is ignored.
type tag struct {
	gen, used uint32
}

// demands is the message of a part to worker 0.
type demands struct {
	tag
	fair.Demands
	instances []int32 // of the task that a resource is
	at        clock.Time
}

// bounds is the message of worker 0 to a part: what its tenants get.
type bounds struct {
	tag
	tenants   []int32
	rates     []float64 // bytes a ns
	by        []int32   // the resource of which they get less than they asked for; -1: they get all
	left      []float64 // units a ns of each flow
	instances []int32   // of the whole board
}

// whole is a part's knowledge of the whole board.
type whole struct {
	gen       uint32            // deployments
	at        clock.Time        // of the next exchange
	bounded   []int32           // tenants
	busy      bool              // other workers have something to divide
	instances [maxNumbers]int32 // of each task on the whole board, as far as is known

	// Worker 0 alone:
	sharer *fair.Sharer
	latest []demands // the latest of each worker
	own    bounds
}

// of returns the settings of one worker's part of a board.
func (s settings) of(worker, workers int) settings {
	s.workers = max(workers, 1)
	s.regions = (s.regions + s.workers - 1 - worker) / s.workers
	s.store /= int64(s.workers)
	s.packets = max(s.packets/s.workers, min(s.packets, 64))
	return s
}

// parse reads arguments, of which this worker has its part.
func (b *board) parse(args graph.Args) (settings, error) {
	s, err := b.library.parseArgs(args)
	return s.of(b.cat.worker, b.workers), err
}

// join makes a board a part of that of all workers.
func (b *board) join(env graph.Env) {
	b.cat.worker = env.Worker
	if n := b.workers; n > 1 {
		b.cat.house = env.Share(func() any {
			return &house{rows: make([]row, n), asks: make([]leaveAsk, n*n), tides: make([]tide, n), crying: make([]atomic.Bool, maxDAGs), abroad: make([]atomic.Bool, maxDAGs)}
		}).(*house)
	}
}

// use adds to the ports that frames come in by, and returns all of them.
func (h *house) use(ports uint32) uint32 { return h.used.Or(ports) | ports }

// partBurst is what a tenant may send in one go here: its part of burst=, but no less than a batch of full frames, if
// burst= is more.
func (sh *shares) partBurst() int {
	return max(sh.burst/sh.workers, min(sh.burst, packet.MaxBatch*1518))
}

// deployWhole sets up what is divided for all workers.
func (sh *shares) deployWhole(now clock.Time) (err error) {
	w := &sh.whole
	w.bounded, w.busy = w.bounded[:0], false
	if sh.cat.worker > 0 {
		return nil
	}
	s := &sh.scarce
	w.latest = make([]demands, sh.workers)
	cfg := fair.Config{Tenants: max(len(sh.cat.tenants), 1), Resources: s.flows(), Epoch: max(sh.epoch, exchangeEvery)}
	w.sharer, err = fair.New(now, cfg)
	if err != nil {
		return err
	}
	set := func(r int16, capacity float64) {
		if r >= 0 && err == nil {
			err = w.sharer.SetCapacity(int(r), capacity)
		}
	}
	set(resStore, endless)
	set(s.processor, endless)
	for p := range ports {
		set(s.ingress[p], float64(sh.portRate)/8)
		set(s.egress[p], float64(sh.portRate)/8)
	}
	return err
}

// exchange tells the other workers the demands here, and takes up what the tenants here get.
func (sh *shares) exchange(now clock.Time) {
	if sh.cat.house == nil || now < sh.whole.at {
		return
	}
	sh.whole.at = now.Add(max(sh.epoch, exchangeEvery))
	if used := sh.cat.house.used.Load(); used != sh.scarce.used {
		sh.scarce.used = used
		_ = sh.deployShares(now) // as use does
	}
	if sh.cat.worker == 0 {
		sh.divide(now)
		return
	}
	row := &sh.cat.house.rows[sh.cat.worker]
	if row.bound.full.Load() {
		sh.heedBounds(now, &row.bound.v)
		row.bound.full.Store(false)
	}
	if !row.asked.full.Load() {
		sh.demand(now, &row.asked.v)
		row.asked.full.Store(true)
	}
}

// tag is that of this worker's messages.
func (sh *shares) tag() tag { return tag{sh.whole.gen, sh.scarce.used} }

// demand writes the demands here.
func (sh *shares) demand(now clock.Time, d *demands) {
	d.tag, d.at = sh.tag(), now
	sh.fair.Demands(now, &d.Demands)
	d.instances = d.instances[:0]
	for range sh.scarce.flows() {
		d.instances = append(d.instances, 0)
	}
	for _, n := range sh.cat.taskOf {
		if r := sh.scarce.tasks[n]; r >= 0 {
			d.instances[r] = int32(sh.cat.instances(n))
		}
	}
}

// divide divides the whole board, and tells the other parts what their tenants get.
func (sh *shares) divide(now clock.Time) {
	w, flows := &sh.whole, sh.scarce.flows()
	w.busy = false
	w.own.instances = append(w.own.instances[:0], make([]int32, flows)...)
	for i := range w.latest {
		d := &w.latest[i]
		if m := &sh.cat.house.rows[i].asked; i == 0 {
			sh.demand(now, d)
		} else if m.full.Load() {
			*d, m.v = m.v, *d
			m.full.Store(false)
			d.at = now
			w.busy = w.busy || len(d.Tenants) > 0
		}
		if d.tag != sh.tag() || now.Sub(d.at) > sh.monitor {
			d.Tenants, d.instances = d.Tenants[:0], d.instances[:0] // of before, or of a worker that is away
		}
		for k, u := range d.Tenants {
			w.sharer.Ask(now, int(u), d.Bytes[k], d.Rows[k*flows:])
		}
		for r, n := range d.instances {
			w.own.instances[r] += n
		}
	}
	for _, n := range sh.cat.taskOf {
		if r := sh.scarce.tasks[n]; r >= 0 {
			_ = w.sharer.SetCapacity(int(r), float64(sh.cat.tasks[n].Throughput)/8*float64(w.own.instances[r]))
		}
	}
	_ = w.sharer.Epoch(now) // capacities and weights are checked; limits stay on error
	for i := range w.latest {
		if i == 0 {
			sh.bind(&w.own, &w.latest[0])
			sh.heedBounds(now, &w.own)
		} else if m := &sh.cat.house.rows[i].bound; !m.full.Load() {
			m.v.instances = append(m.v.instances[:0], w.own.instances...)
			sh.bind(&m.v, &w.latest[i])
			m.full.Store(true)
		}
	}
}

// bind writes the bounds of a part.
func (sh *shares) bind(x *bounds, d *demands) {
	s := sh.whole.sharer
	x.tag, x.tenants, x.rates, x.by, x.left = sh.tag(), x.tenants[:0], x.rates[:0], x.by[:0], x.left[:0]
	for k, u := range d.Tenants {
		g, by := s.Grant(int(u)), int32(-1)
		if g < 1 {
			by = int32(s.Bottleneck(int(u)))
		}
		x.tenants, x.rates, x.by = append(x.tenants, u), append(x.rates, g*d.Bytes[k]), append(x.by, by)
	}
	for r := range sh.scarce.flows() {
		x.left = append(x.left, s.Free(r)/1e9/float64(sh.workers))
	}
}

// heedBounds limits the tenants here to their bounds.
func (sh *shares) heedBounds(now clock.Time, x *bounds) {
	if x.tag != sh.tag() {
		return
	}
	w := &sh.whole
	for _, u := range w.bounded {
		sh.fair.Unbound(now, int(u))
	}
	w.bounded = append(w.bounded[:0], x.tenants...)
	for k, u := range x.tenants {
		most := x.rates[k]
		if x.by[k] < 0 {
			most = math.Inf(1)
		}
		sh.fair.Bound(now, int(u), x.rates[k], most, int(x.by[k]))
	}
	for r, v := range x.left {
		if r != resStore && r != int(sh.scarce.processor) {
			sh.fair.Leave(r, v)
		}
	}
	for _, n := range sh.cat.taskOf {
		if r := sh.scarce.tasks[n]; r >= 0 {
			w.instances[n] = x.instances[r]
		}
	}
	sh.capacities()
}
