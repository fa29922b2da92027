package snic

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// A worker is away from its ports while tasks run. What comes meanwhile waits in the ports' rings, and what finds no room there is lost,
// whoever sent it. So tasks run for a bounded time, then the worker looks at all that came. What it has no time for waits in the lobby,
// by tenant: who has had least of the time is served next (start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996), and who
// has another dominant resource counts as much heavier (dominant resource fair queueing, Ghodsi et al., SIGCOMM 2012).

const (
	// atWork is for how long tasks run before the worker looks at its ports again, in ns. A ring of 1,024 frames lasts so long at 20 million a
	// second. It looks until nothing waits there, but no longer than looking times as long as tasks ran, or might have: so a flood
	// leaves a quarter of the time to tasks, at least.
	atWork  = 50_000
	looking = 3
	// leastSeen is how many frames the worker looks at, at least, before tasks run again while more waits. Among them are batches in whose
	// breath nothing else is done: so what looking takes is measured again, however wrong it was.
	leastSeen = 4 * packet.MaxBatch
	// worth is how many times as long as looking at frames it takes at least to have them go on where tenants queue.
	worth = 2
	// hides is from when on the frames of a batch may hide others that come: while tasks run on them, in ns, the ring overflows, and of a
	// tenant that begins to send nothing may be seen for long. So the worker looks although nobody else is known to be there: for atWork at
	// most, and then tasks run for lone times as long as that took.
	hides = 4 * atWork
	lone  = 32
	// atOnce is for how long tasks run on frames of a tenant before another one's turn, in ns.
	atOnce = 20_000
	// unknown is what a frame counts for whose cost is not known, in ns.
	unknown = 10_000
)

// lobby is frames that were let in and wait for the worker's time.
type lobby struct {
	slots  []waiting
	free   int32   // the first that is not used, -1: none
	queues []queue // by number of the tenant
	turns  []int32 // a heap of the tenants that have frames here, by what they were served: the least first
	frames int
	time   float64 // what the tenant of the latest turn had been served before it
	more   bool    // a full batch came: more frames wait at the port
	much   bool    // the frames that came together are more than can run at once
	hides  bool    // they take so long that frames of others may be hidden
	seen   int     // frames that were looked at since tasks ran
	ran    float64 // ns that tasks ran the last time
}

// waiting is a frame, and what is known of it.
type waiting struct {
	buf    *packet.Buf
	flow   uint64
	way    way
	cost   float32 // ns of tasks
	next   int32
	in     int8 // as in letIn
	from   int8
	weight uint8
}

// queue is frames of a tenant, in their order.
type queue struct {
	head, tail int32
	n          int
	served     float64 // ns of the worker's time that the tenant got, divided by its weight; at least lobby.time when its first frame came
}

// init makes room for so many frames.
func (lb *lobby) init(frames int) {
	lb.slots = make([]waiting, frames)
	for i := range lb.slots {
		lb.slots[i].next = int32(i) - 1
	}
	lb.free = int32(frames) - 1
}

// deploy makes room for so many tenants.
func (lb *lobby) deploy(tenants int) {
	for len(lb.queues) < tenants {
		lb.queues = append(lb.queues, queue{})
	}
	if cap(lb.turns) < tenants {
		lb.turns = append(make([]int32, 0, cap(lb.queues)), lb.turns...)
	}
}

// look notes that frames have come.
func (lb *lobby) look(frames *packet.Batch) {
	lb.more = lb.more || frames.Full()
	lb.seen += frames.Len()
}

// push adds a frame to those of a tenant.
func (lb *lobby) push(tenant int, w waiting) {
	i := lb.free
	lb.free = lb.slots[i].next
	w.next = -1
	lb.slots[i] = w
	q := &lb.queues[tenant]
	if q.n == 0 {
		q.head = i
		q.served = max(q.served, lb.time)
		lb.turns = append(lb.turns, int32(tenant))
		lb.rise(len(lb.turns) - 1)
	} else {
		lb.slots[q.tail].next = i
	}
	q.tail = i
	q.n++
	lb.frames++
}

// pop takes the first frame of a tenant.
func (lb *lobby) pop(tenant int32) waiting {
	q := &lb.queues[tenant]
	i := q.head
	w := lb.slots[i]
	q.head = w.next
	q.n--
	lb.slots[i] = waiting{next: lb.free}
	lb.free = i
	lb.frames--
	return w
}

// settle puts the first tenant where it belongs, after it was served.
func (lb *lobby) settle() {
	if t := lb.turns; lb.queues[t[0]].n == 0 {
		n := len(t) - 1
		t[0] = t[n]
		lb.turns = t[:n]
	}
	lb.sink()
}

func (lb *lobby) served(i int) float64 { return lb.queues[lb.turns[i]].served }

func (lb *lobby) rise(i int) {
	for t := lb.turns; i > 0 && lb.served(i) < lb.served((i-1)/2); i = (i - 1) / 2 {
		t[i], t[(i-1)/2] = t[(i-1)/2], t[i]
	}
}

func (lb *lobby) sink() {
	t := lb.turns
	for i := 0; ; {
		k := 2*i + 1
		if k+1 < len(t) && lb.served(k+1) < lb.served(k) {
			k++
		}
		if k >= len(t) || lb.served(i) <= lb.served(k) {
			return
		}
		t[i], t[k] = t[k], t[i]
		i = k
	}
}

// counts is the time, in ns, that a frame of a DAG is counted for until it has run.
func (ig *ingress) counts(d *service) float64 {
	if d.cost == 0 {
		return unknown
	}
	cost := d.cost
	if d.unsure {
		cost = min(cost, unknown)
	}
	return cost + ig.split.spent.onward
}

// weigh finds whether n groups are more than can run at once: they take longer than atWork, or, while more waits at the port, longer than all else
// that they take, or worth times as long as looking at them with the way out. Of what takes less than that, nobody has much more time when another's
// is refused, which takes time as well.
func (ig *ingress) weigh(now clock.Time, n int) {
	takes, looks, ways, besides := 0., 0., 0., 0.
	s := &ig.split.spent
	for i := range ig.groups[:n] {
		g := &ig.groups[i]
		d := &ig.cat.services[g.way.dag]
		ig.meet(now, d)
		n := float64(g.batch.Len())
		takes, looks, ways, besides = takes+d.cost*n, looks+s.look*n, ways+s.onward*n, besides+s.overhead*n
	}
	ig.lobby.much = takes > atWork || ig.lobby.more && (takes > besides || takes+ways > worth*looks)
	ig.lobby.hides = takes > hides
}

// meet notes whose frames came. If the tenant is another one than the last time, several tenants are present.
func (ig *ingress) meet(now clock.Time, d *service) {
	if s := &ig.split.spent; d.where.to == 0 && s.last != d.tenant+1 {
		if s.last > 0 {
			s.several = now.Add(togetherFor)
		}
		s.last = d.tenant + 1
	}
}

// queues reports whether frames of a DAG that come now wait for their tenant's turn: because others of the tenant wait already, or because
// there is not time for all. A tenant that is alone need not wait, unless its frames may hide those of others: a ring that overflows then
// loses only its own frames.
func (ig *ingress) queues(now clock.Time, d *service) bool {
	lb, s := &ig.lobby, &ig.split.spent
	switch {
	case lb.frames > 0 && lb.queues[d.tenant].n > 0:
		return true
	case s.clock == nil || ig.split.fair == nil || d.where.to != 0 || d.missing:
		return false
	}
	return lb.frames > 0 || lb.much && now < s.several || lb.hides
}

// trim drops the frames of a group for which the lobby has no room, and returns how many there are left. A tenant has no more
// there than it leaves to others, of the packet store and of the port's buffers, and no more work than slack= is long, but for a batch.
func (ig *ingress) trim(c *graph.Ctx, d *service, g *group) int {
	lb, st := &ig.lobby, ig.stock
	waits, k := int(lb.queues[d.tenant].n), st.kept[d.tenant]
	packets, bytes, cost := st.packets-st.inside, st.bytes-st.stored, ig.counts(d)
	n, refused := 0, 0
	for i, x := range g.batch.Bufs() {
		size := int64(x.Len())
		pool := x.Pool()
		if int(k.packets) >= packets || k.bytes+size > bytes || int(k.packets) >= pool.Free()-pool.Slots()/8 ||
			waits+n >= packet.MaxBatch && k.work >= float64(ig.slack) {
			refused += int(size)
			d.throttled++
			c.Drop(x, reasonThrottled)
			continue
		}
		k.packets, k.bytes, packets, bytes = k.packets+1, k.bytes+size, packets-1, bytes-size
		k.work += cost
		g.batch.Bufs()[n], g.flows[n] = x, g.flows[i]
		n++
	}
	if refused > 0 {
		g.bytes -= refused
		bufs := g.batch.Bufs()[:n]
		g.batch.Reset()
		g.batch.Append(bufs)
		ig.split.fair.Refuse(c.Now(), d.tenant, refused)
	}
	return n
}

// queue puts a group, for which there is room, into the lobby.
func (ig *ingress) queue(c *graph.Ctx, in int, d *service, g *group) {
	if ig.split.fair != nil {
		ig.split.measure(d, in, g)
	}
	k, cost := &ig.stock.kept[d.tenant], float32(ig.counts(d))
	for i, x := range g.batch.Bufs() {
		ig.lobby.push(d.tenant, waiting{buf: x, flow: g.flows[i], way: g.way, cost: cost, in: int8(in), from: int8(g.from), weight: g.weight})
		ig.stock.inside++
		ig.stock.stored += int64(x.Len())
		k.packets++
		k.bytes += int64(x.Len())
		k.work += float64(cost)
	}
	if g.from > 0 {
		d.lodge.guests[g.from-1].inside += int32(g.batch.Len())
	}
	c.Wake(c.Now())
}

// enter puts a group that came from another worker into the lobby, or lets it in at once.
func (ig *ingress) enter(c *graph.Ctx, in int, d *service, g *group) {
	ig.meet(c.Now(), d)
	switch {
	case !ig.queues(c.Now(), d):
		ig.letIn(c, in, g, false)
	case ig.trim(c, d, g) > 0:
		ig.queue(c, in, d, g)
	}
}

// serve runs tasks on frames of the lobby for some time.
func (ig *ingress) serve(c *graph.Ctx) {
	lb, s := &ig.lobby, &ig.split.spent
	more := lb.more
	lb.more = false
	if lb.frames == 0 {
		return
	}
	now := c.Now()
	c.Wake(now)
	// By frames, not by the clock: a worker that has lost the processor meanwhile has so much more to look at.
	looked, most, work := s.look*float64(lb.seen), looking*max(atWork, lb.ran), float64(atWork)
	if now >= s.several {
		most, work = atWork, max(atWork, lone*min(looked, atWork))
	}
	if more && (looked < most || lb.seen < leastSeen) {
		return
	}
	lb.seen, lb.ran, s.ran = 0, 0, now
	if s.clock != nil {
		ig.split.begin(now)
	}
	for lb.frames > 0 && lb.ran < work && !ig.gates.crowded {
		lb.ran += ig.turn(c, work-lb.ran)
	}
	s.full = more || lb.frames > 0
}

// turn serves the tenant that was served least, and returns the ns that this took.
func (ig *ingress) turn(c *graph.Ctx, left float64) float64 {
	lb, s := &ig.lobby, &ig.split.spent
	tenant := lb.turns[0]
	q := &lb.queues[tenant]
	lb.time = max(lb.time, q.served)
	g := &ig.groups[0]
	g.batch.Reset()
	in, took := 0, 0. // by what frames counted for
	// What it takes besides tasks is less for each frame of a full batch, and no reason to have a smaller one.
	for left = min(left, atOnce); q.n > 0 && !g.batch.Full() && took-s.onward*float64(g.batch.Len()) < left; {
		w := &lb.slots[q.head]
		if n := g.batch.Len(); n == 0 {
			g.way, g.from, g.weight, g.bytes, in = w.way, int(w.from), w.weight, 0, int(w.in)
		} else if w.way != g.way || int(w.from) != g.from || w.weight != g.weight || int(w.in) != in {
			break
		}
		x := lb.pop(tenant)
		g.flows[g.batch.Len()] = x.flow
		g.batch.Add(x.buf)
		g.bytes += x.buf.Len()
		took += float64(x.cost)
	}
	ig.release(int(tenant), g, took)
	d := &ig.cat.services[g.way.dag]
	if d.UID == 0 || d.term != g.way.term {
		for _, x := range g.batch.Bufs() {
			c.Drop(x, reasonGone)
		}
		took = 0
	} else {
		s.tenant, s.beyond, s.counted = int(tenant)+1, 0, 0
		if d.cost > 0 {
			s.counted = took / (d.cost + s.onward) / float64(g.batch.Len())
		} else if s.clock != nil {
			took = 0 // it is not known, and so measured
		}
		ig.letIn(c, in, g, true)
		ig.runner.pump(c)
		took = max(0, took+s.beyond)
		s.tenant = 0
	}
	weight := 1.
	if ig.split.fair != nil {
		weight = ig.split.fair.Weight(int(tenant)) * ig.split.fair.Part(int(tenant), int(ig.split.scarce.processor))
	}
	q.served += took / weight
	lb.settle()
	return took
}

// release takes a group out of the packet store's books.
func (ig *ingress) release(tenant int, g *group, work float64) {
	k := &ig.stock.kept[tenant]
	k.work = max(0, k.work-work)
	n := g.batch.Len()
	ig.stock.inside -= n
	ig.stock.stored -= int64(g.bytes)
	k.packets -= int32(n)
	k.bytes -= int64(g.bytes)
	if d := &ig.cat.services[g.way.dag]; g.from > 0 && d.UID != 0 && d.term == g.way.term {
		d.lodge.guests[g.from-1].inside -= int32(n)
	}
}

// stop drops what waits.
func (ig *ingress) stop(c *graph.Ctx) {
	for lb := &ig.lobby; lb.frames > 0; lb.settle() {
		tenant := lb.turns[0]
		k := &ig.stock.kept[tenant]
		for k.work = 0; lb.queues[tenant].n > 0; {
			x := lb.pop(tenant).buf
			ig.stock.inside--
			ig.stock.stored -= int64(x.Len())
			k.packets--
			k.bytes -= int64(x.Len())
			c.Drop(x, reasonStopped)
		}
	}
}
