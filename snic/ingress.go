package snic

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/mat"
)

// ingress finds the DAG and the tenant of each frame, and decides whether the frame is let in.
type ingress struct {
	*settings
	cat     *catalog
	stock   *stock
	split   *shares
	gates   *gates
	runner  *runner
	placing *placement

	lobby   lobby
	mat     *mat.Table
	asked   [packet.MaxBatch]asked // frames of a batch
	rules   []mat.Rule
	groups  []group
	groupOf [2 * maxDAGs]int8 // by route: index into groups + 1
	part    []int64           // bytes of a group, by region
	touched []int32           // regions that have some
}

// group is packets of a batch that go the same way.
type group struct {
	way    way
	from   int   // worker + 1 that handed it over; 0: none
	weight uint8 // how many frames one of these stands for, as in lodge
	bytes  int
	flows  [packet.MaxBatch]uint64
	batch  packet.Batch
}

// asked is a frame whose flow is looked up.
type asked struct {
	mat.Ask
	whole bool // the headers are complete
}

// collect adds a frame to those of a batch that go the same way, of which there
// are n groups, and returns how many groups it made.
func (ig *ingress) collect(c *graph.Ctx, n, dag int, back bool, out uint16, flow uint64, x *packet.Buf) int {
	route := 2 * dag
	if back {
		route++
	}
	made := 0
	// Frames of one route that leave by different pairs of ports are different groups.
	g := int(ig.groupOf[route]) - 1
	if g < 0 {
		d := &ig.cat.services[dag]
		if !d.listed {
			ig.placing.list(c, int32(dag))
		}
		if d.away {
			d.came(1, x.Len())
			c.Mark(x, packet.Forwarded, reasonEndpoint)
			ig.gates.emit(c, way{int32(dag), back, out, d.term}, x)
			return 0
		}
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
	k.bytes += x.Len()
	return made
}

// came counts packets that came to a DAG, before any is refused.
func (d *service) came(packets, bytes int) {
	d.arrived += int64(bytes)
	d.packets += uint64(packets)
	d.bytes += uint64(bytes)
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
		ig.cat.services[g.way.dag].came(g.batch.Len(), g.bytes)
	}
	ig.weigh(c.Now(), n)
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
	if d.where.to < 0 {
		d.lodge.offered += int64(g.bytes)
	} else if d.where.to == 0 {
		ig.offer(d, g)
	}
	if ig.gates.pauses != nil {
		ig.gates.strain(c, in, d.tenant)
	}
	queues := ig.queues(c.Now(), d)
	if queues && ig.trim(c, d, g) == 0 {
		return
	}
	if ig.split.fair != nil && !ig.split.fair.Ingress(c.Now(), d.tenant, g.bytes) {
		d.throttled += uint64(g.batch.Len())
		for _, x := range g.batch.Bufs() {
			c.Drop(x, reasonThrottled)
		}
		return
	}
	if ig.split.fair != nil && (ig.split.fair.Press(c.Now(), d.tenant) || queues && ig.stock.much(d.tenant, 2)) {
		ig.press(c, g)
	}
	if d.where.to < 0 {
		d.lodge.let += int64(g.bytes)
	}
	if queues {
		ig.queue(c, in, d, g)
	} else {
		ig.letIn(c, in, g, false)
	}
}

// offer notes the load of a group's flows, if flows are measured one by one, before any frame is refused.
func (ig *ingress) offer(d *service, g *group) {
	if d.aside != nil {
		ig.count(d.aside, g)
	}
	if d.byFlow {
		ig.want(d, g)
	}
}

// letIn sends a group that was admitted into its DAG. in is the port by which it came, -1: a port of another worker. measured: what the
// group uses has been counted already.
func (ig *ingress) letIn(c *graph.Ctx, in int, g *group, measured bool) {
	d := &ig.cat.services[g.way.dag]
	if d.where.to == 0 {
		ig.split.spent.tasks += d.cost * float64(g.batch.Len())
	}
	ig.split.spent.let += g.batch.Len()
	measured = measured || ig.split.fair == nil
	if d.where.goes() && ig.runner.waits[g.way.dag] == 0 {
		if !measured {
			ig.split.measure(d, in, g)
		}
		for _, x := range g.batch.Bufs() {
			if d.where.to < 0 {
				ig.gates.hand(c, d, g.way, x, false)
			} else {
				ig.gates.request(c, d, g.way, x)
			}
		}
		return
	}
	if d.missing {
		ig.runner.runConvoy(c) // before regions change
	}
	if d.missing && !ig.placing.find(c, int(g.way.dag)) {
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
	if !measured {
		ig.split.measure(d, in, g)
	}
	ig.runner.accept(c, g, d)
}

// deployRules fills the match-action table.
func (ig *ingress) deployRules() {
	ig.mat.Use(ig.library.rules(ig.deployment))
	ig.rules = append(ig.rules[:0], ig.mat.Rules()...)
	for i := range ig.rules {
		if r := &ig.rules[i]; r.Road == mat.Tasks {
			r.DAG = ig.cat.dagOf[r.DAG]
		}
	}
}
