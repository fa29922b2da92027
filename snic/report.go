package snic

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// View describes the present state of a board, as Report shows it for a worker.
type View struct {
	Regions []RegionView `json:"regions"`
	Tasks   []TaskView   `json:"tasks"`
	DAGs    []DAGView    `json:"dags"`
	Tenants []TenantView `json:"tenants"`
	Events  []EventView  `json:"events"` // of regions, the latest last
	Board   BoardView    `json:"board"`
	Pool    *PoolView    `json:"pool,omitempty"`
}

// PoolView describes a board's part in its pool.
type PoolView struct {
	Board    int        `json:"board"`
	Sent     uint64     `json:"sent"`     // frames to peers
	Answered uint64     `json:"answered"` // frames back from them
	Served   uint64     `json:"served"`   // frames given back to peers
	Failed   uint64     `json:"failed"`   // states of tasks that could not be moved
	Peers    []PeerView `json:"peers"`
	Away     []AwayView `json:"away"`
	Guests   []AwayView `json:"guests"`
	Stays    []AwayView `json:"stays"`
}

// PeerView describes another board, as its last message told.
type PeerView struct {
	Board   int     `json:"board"`
	Same    bool    `json:"same"`    // it has the same deployment; others are not used
	Leaving bool    `json:"leaving"` // it stops: others are taken away from there
	Address string  `json:"address"`
	Free    int     `json:"free_regions"`
	DAGs    int     `json:"dags"` // that it runs and would run for others
	Load    float64 `json:"load_bit_per_s"`
}

// AwayView describes a DAG of this board at a peer, a DAG of a peer on this board, or a DAG that is
// not given to peers.
type AwayView struct {
	UID   uint32 `json:"uid"`
	Run   string `json:"run"`
	Peer  int    `json:"peer"` // -1: none yet
	State string `json:"state"`
	// Copied is how long ago a copy of what the tasks of a peer's DAG know was made for its board
	// (pool-copy=); 0: none was.
	Copied float64 `json:"copied_s,omitempty"`
}

// RegionView describes a region.
type RegionView struct {
	Region   int          `json:"region"`
	State    string       `json:"state"`
	Chain    string       `json:"chain,omitempty"`
	Cause    string       `json:"cause,omitempty"` // of the launch
	SinceSec float64      `json:"since_s"`         // how long it is in that state
	Load     float64      `json:"load"`            // of its busiest task, 1 = all that it can
	Inside   int          `json:"inside_packets"`
	Waiting  int          `json:"waiting_packets"` // for a credit
	Credits  []CreditView `json:"credits,omitempty"`
	// Accessed, Running, Loading and Stopping are shares of the board's time.
	Accessed float64 `json:"accessed"`
	Running  float64 `json:"running"`
	Loading  float64 `json:"loading"`
	Stopping float64 `json:"stopping"`
}

// CreditView describes the credits of a task in a region.
type CreditView struct {
	Task string `json:"task"`
	Free int    `json:"free"`
	Of   int    `json:"of"`
}

// TaskView describes a network task.
type TaskView struct {
	Task       string  `json:"task"`
	Kind       string  `json:"kind"`
	Throughput int64   `json:"throughput_bit_per_s,omitempty"` // of an instance; 0: not limited
	Instances  int     `json:"instances"`
	Load       float64 `json:"load_instances"` // 0 where there is no limit
	// Fullest is the load of its fullest instance. OneFlow is what one flow alone brings where that is more than an
	// instance can do, so that more instances do not help; 0: there is no such flow.
	Fullest float64 `json:"fullest_instance"`
	OneFlow float64 `json:"one_flow_instances,omitempty"`
	Cost    float64 `json:"ns_per_packet,omitempty"` // of a worker; 0: not measured
	// Fault is what stopped it; "": nothing.
	Fault  string      `json:"fault,omitempty"`
	Memory *TaskMemory `json:"memory,omitempty"` // none: it has no memory of the board
}

// DAGView describes a DAG.
type DAGView struct {
	UID    uint32 `json:"uid"`
	Tenant string `json:"tenant"`
	Run    string `json:"run"`
	// Stages are how it runs now: one after the other, each of branches side by side.
	Stages  [][]string `json:"stages"`
	Through []string   `json:"through"` // chains, tasks that it skips in parentheses
	// Aside is through which other chains some of its flows go, as those have too much, and AsidePart which
	// part of the bytes that is.
	Aside     []string `json:"aside,omitempty"`
	AsidePart float64  `json:"aside_part,omitempty"`
	State     string   `json:"state"` // ready, waiting for a region, at the endpoint, stopped by a fault of a task, or refused
	Packets   uint64   `json:"packets"`
	Bytes     uint64   `json:"bytes"`
	Throttled uint64   `json:"throttled"`
	Rate      float64  `json:"offered_bit_per_s"` // of the last 100 ms
}

// TenantView describes a tenant. Share and Grant are means over the last 100 ms. Limit and Bottleneck are of the last
// epoch, and set only if the tenant got less than it asked for.
type TenantView struct {
	Tenant     string        `json:"tenant"`
	Weight     float64       `json:"weight"`
	Share      float64       `json:"share"`                     // dominant
	Grant      float64       `json:"grant"`                     // of what it asked for
	Limit      float64       `json:"limit_bit_per_s,omitempty"` // without what is free
	Bottleneck string        `json:"bottleneck,omitempty"`      // what keeps it from more
	Inside     int           `json:"inside_packets"`
	Stored     int           `json:"stored_bytes"`     // of them
	Memory     *TenantMemory `json:"memory,omitempty"` // none: its tasks have no memory of the board
}

// EventView describes an event of a region.
type EventView struct {
	AgoSec float64      `json:"ago_s"`
	Text   string       `json:"text"`
	Event  region.Event `json:"-"`
}

// RegionTotals holds sums over the regions of a board.
type RegionTotals struct {
	Inside    int    `json:"inside_packets"`
	Stored    int    `json:"stored_bytes"` // in the packet store
	Store     int64  `json:"store_bytes"`  // its size
	Copied    uint64 `json:"copied"`       // times that a packet ran in branches side by side
	InLine    uint64 `json:"in_line"`      // packets that did not, because the port's pool was short of frames
	Loaded    uint64 `json:"loaded"`       // regions, by partial reconfiguration
	Revived   uint64 `json:"revived"`      // without
	Switched  uint64 `json:"switched"`     // regions stopped for another chain
	ScaledOut uint64 `json:"scaled_out"`
	ScaledIn  uint64 `json:"scaled_in"`
	Moved     uint64 `json:"moved_flows"`    // groups of flows, from a full instance to another
	OneFlow   uint64 `json:"one_flow_times"` // times that one flow alone became too much for an instance
	// Busy is which part of its time the worker needs for what comes, a mean over about a monitor period: more
	// than 1 where there is too much. 0 where it is not measured what tasks cost, as in replay.
	Busy float64 `json:"worker_busy"`
}

// BoardView describes a board as a whole.
type BoardView struct {
	RegionTotals
	Bulk      uint64       `json:"bulk"` // packets that ran through at once
	Full      uint64       `json:"full"` // packets that were scheduled one by one
	FlowHits  uint64       `json:"flow_hits"`
	FlowScans uint64       `json:"flow_scans"` // packets whose rule had to be looked for
	EpochUs   float64      `json:"epoch_us"`
	MonitorMs float64      `json:"monitor_ms"`
	Waiting   int          `json:"chains_waiting"` // for a region
	Memory    *BoardMemory `json:"memory,omitempty"`
}

// Report returns the board's View, or a graph.Gradual that makes it piece by piece if there are many DAGs and
// tenants.
func (b *board) Report() any {
	r := reporting{b: b, dags: []DAGView{}, tenants: []TenantView{}, number: map[string]int{},
		numbers: len(b.cat.tenants), services: len(b.cat.services), deployed: b.deployment.Tenants}
	if r.services+len(r.deployed) <= viewsAtOnce {
		for r.look(viewsAtOnce) {
		}
		return r.value()
	}
	return &graph.Gradual{Look: r.look, Value: r.value}
}

// viewsAtOnce is how many DAGs and tenants a board may have whose View is made in one go.
const viewsAtOnce = 256

// reporting is a View in the making: tenants are numbered, then DAGs and tenants are looked at.
type reporting struct {
	b        *board
	at       int
	numbers  int // of tenants, and
	services int // DAGs there were at the beginning: those that came since are left out
	number   map[string]int
	deployed []dag.Tenant
	dags     []DAGView
	tenants  []TenantView
}

// look looks at n DAGs, tenants or numbers of these, and reports whether there are more.
func (r *reporting) look(n int) (more bool) {
	cat := &r.b.cat
	for ; n > 0; n-- {
		switch i := r.at; {
		case i < r.numbers:
			if name := cat.tenants[i]; name != "" {
				r.number[name] = i
			}
		case i < r.numbers+r.services:
			if s := &cat.services[i-r.numbers]; s.UID != 0 {
				r.dags = append(r.dags, r.b.dagView(s))
			}
		case i < r.numbers+r.services+len(r.deployed):
			t := &r.deployed[i-r.numbers-r.services]
			if n, ok := r.number[t.Name]; ok && cat.tenants[n] == t.Name { // else it is not yet in force, or no more
				r.tenants = append(r.tenants, r.b.tenantView(t, n))
			}
		default:
			return false
		}
		r.at++
	}
	return true
}

// value returns the View, with those parts that are made in one go.
func (r *reporting) value() any {
	b := r.b
	v := View{Regions: b.regionViews(), Tasks: b.taskViews(), DAGs: r.dags, Tenants: r.tenants, Events: []EventView{}, Board: b.boardView()}
	for _, e := range b.placing.log {
		v.Events = append(v.Events, EventView{seconds(b.cat.seen.Sub(e.At)), b.cat.tell(e), e})
	}
	if b.near.pool != nil {
		v.Pool = b.poolView()
	}
	return v
}

func (b *board) regionViews() []RegionView {
	out := []RegionView{}
	for r := range b.regions {
		f, in, times := b.placing.fabric.Region(r), b.runner.sched.Instance(r), b.placing.fabric.Times(r)
		x := RegionView{Region: r*b.workers + b.cat.worker, State: f.State.String(), SinceSec: seconds(b.cat.seen.Sub(f.Since)), Inside: in.Inside, Waiting: in.Waiting, Load: f.Load}
		if f.Chain >= 0 {
			ch := &b.cat.chains[f.Chain]
			x.Chain = b.cat.names(ch.tasks)
			if f.State != region.Victim {
				x.Cause = f.Cause.String()
			}
			if in.Chain == f.Chain {
				for i, t := range ch.tasks {
					s := b.runner.sched.Task(r, i)
					x.Credits = append(x.Credits, CreditView{b.cat.tasks[t].Name, s.Free, s.Credits})
				}
			}
		}
		var all clock.Duration
		for _, d := range times.In {
			all += d
		}
		if all > 0 {
			part := func(d clock.Duration) float64 { return float64(d) / float64(all) }
			x.Accessed, x.Running, x.Loading, x.Stopping = part(times.Accessed), part(times.In[region.Running]), part(times.In[region.Loading]), part(times.In[region.Stopping])
		}
		out = append(out, x)
	}
	return out
}

func (b *board) taskViews() []TaskView {
	out := []TaskView{}
	for n := range b.cat.tasks {
		t := &b.cat.tasks[n]
		if t.in == nil {
			continue
		}
		running, load := b.placing.fabric.Task(n)
		x := TaskView{Task: t.Name, Kind: t.Kind, Throughput: t.Throughput, Instances: running, Load: load, Fullest: b.placing.fullest(n), Cost: b.cat.costOf(n), OneFlow: b.cat.single(t), Fault: t.fault}
		if t.space != nil {
			x.Memory = b.memory.task(n, t.Memory)
		}
		out = append(out, x)
	}
	return out
}

func (b *board) dagView(s *service) DAGView {
	x := DAGView{UID: s.UID, Tenant: b.cat.tenants[s.tenant], Run: b.cat.names(s.tasks), Packets: s.packets, Bytes: s.bytes, Throttled: s.throttled,
		Through: []string{}, State: "ready", Rate: s.rate * 8}
	switch {
	case slices.ContainsFunc(s.tasks, func(t int) bool { return b.cat.tasks[t].halted && !b.cat.tasks[t].Pass }):
		x.State = "stopped"
	case s.where.to > 0:
		x.State = fmt.Sprintf("at peer %d", s.where.to.peer())
	case s.where.waits():
		x.State = "moving"
	case s.where.to < 0:
		x.State = fmt.Sprintf("at worker %d", s.where.to.worker())
	case s.away:
		x.State = "endpoint"
	case s.refused:
		x.State = "refused"
	case s.missing || s.visits == nil || slices.ContainsFunc(s.visits, func(v sched.Visit) bool { return len(b.cat.chains[v.Chain].running) == 0 }):
		x.State = "waiting"
	}
	x.Stages = b.cat.stagesText(s)
	for _, w := range s.visits {
		x.Through = append(x.Through, b.cat.through(w))
	}
	if a := s.aside; a != nil && a.part > 0 {
		x.AsidePart = a.part
		for _, w := range a.visits {
			x.Aside = append(x.Aside, b.cat.through(w))
		}
	}
	return x
}

func (b *board) tenantView(t *dag.Tenant, n int) TenantView {
	x := TenantView{Tenant: t.Name, Weight: t.Weight, Grant: 1}
	x.Inside, x.Stored = b.runner.sched.Tenant(n)
	if b.split.fair != nil {
		x.Share, x.Grant = b.split.obtained[n].share, b.split.obtained[n].grant
		if b.split.fair.Grant(n) < 1 {
			x.Limit, x.Bottleneck = b.split.fair.Limit(n)*8, b.split.resource(b.split.fair.Bottleneck(n))
		}
	}
	if b.memory != nil {
		if o := slices.Index(b.memory.owners[1:], t.Name) + 1; o > 0 {
			x.Memory = b.memory.tenant(o)
		}
	}
	return x
}

func (b *board) boardView() BoardView {
	books, stats := b.runner.sched.Books(), b.placing.fabric.Stats()
	v := BoardView{
		RegionTotals: RegionTotals{
			Inside: books.Inside, Stored: books.Stored, Store: b.store, Copied: b.runner.copied, InLine: b.runner.inLine,
			Revived: stats.Revived, Switched: stats.Switched, ScaledOut: stats.ScaledOut, ScaledIn: stats.ScaledIn,
			Moved: b.placing.moved, OneFlow: b.placing.singles, Busy: b.placing.toil.load,
		},
		Bulk: books.Bulk, Full: books.Arrived - books.Bulk, FlowHits: b.ingress.mat.Hits, FlowScans: b.ingress.mat.Misses,
		EpochUs: float64(b.epoch) / 1e3, MonitorMs: float64(b.monitor) / 1e6, Waiting: b.placing.fabric.Waiting(),
	}
	for _, n := range stats.PRs {
		v.Loaded += n
	}
	if b.memory != nil {
		v.Memory = b.memory.view(&b.fixed)
	}
	return v
}

// poolView is what the board knows of its pool.
func (b *board) poolView() *PoolView {
	p := b.near.pool
	v := &PoolView{Board: p.number, Sent: p.sent, Answered: p.answered, Served: p.served, Failed: p.failed,
		Peers: []PeerView{}, Away: []AwayView{}, Guests: []AwayView{}, Stays: []AwayView{}}
	for i := range p.peers {
		if q := &p.peers[i]; q.up {
			v.Peers = append(v.Peers, PeerView{i, q.usable, q.view.Info.Leaving, net.HardwareAddr(q.mac[:]).String(), len(q.view.Info.Regions), len(q.view.Info.Chains), q.view.Info.Load})
		}
	}
	for i, n := range b.cat.dagOf {
		s := &b.cat.services[n]
		if !b.cat.speaks(s) {
			continue
		}
		x := AwayView{UID: s.UID, Run: b.cat.names(s.tasks), Peer: s.where.to.peer()}
		switch {
		case s.where.coming():
			x.State = "coming home"
		case s.where.to > 0 && s.wish.stuck:
			x.State = "there, and cannot come home: " + pool.TooMuch.String()
		case s.where.to > 0:
			x.State = "there"
		case s.where.waits():
			x.State = "moving"
		case s.wish.wanted:
			x.State = "looking for a peer"
		}
		if x.State != "" {
			v.Away = append(v.Away, x)
		}
		for _, g := range s.hosted.guests {
			x.Peer, x.State, x.Copied = g.lease.Owner, "runs", 0
			if g.copied > 0 {
				x.Copied = seconds(b.cat.seen.Sub(g.copied))
			}
			if !g.ready {
				x.State = "loading"
			} else if g.saving {
				x.State = "going home"
			}
			v.Guests = append(v.Guests, x)
		}
		x.Copied = 0
		if s.wish.stuck && s.where.to == 0 {
			x.Peer, x.State = -1, pool.TooMuch.String()
			v.Stays = append(v.Stays, x)
		}
		if i < len(p.stays) && p.stays[i] != "" {
			x.Peer, x.State = -1, p.stays[i]
			v.Stays = append(v.Stays, x)
		}
	}
	return v
}

// Add adds what another worker of the board says, which has a part in the pool of its own.
func (v *PoolView) Add(o *PoolView) {
	v.Sent, v.Answered, v.Served, v.Failed = v.Sent+o.Sent, v.Answered+o.Answered, v.Served+o.Served, v.Failed+o.Failed
	v.Away, v.Guests, v.Stays = append(v.Away, o.Away...), append(v.Guests, o.Guests...), append(v.Stays, o.Stays...)
}

func seconds(d clock.Duration) float64 { return max(0, time.Duration(d).Seconds()) }

// resource is the name of one of those that tenants share.
func (sh *shares) resource(r int) string {
	if r < 0 || r >= len(sh.scarce.names) {
		return ""
	}
	return sh.scarce.names[r]
}

// tell is an event in words.
func (cat *catalog) tell(e region.Event) string {
	s := e.Kind.String()
	if e.Region >= 0 {
		s += fmt.Sprintf(" region %d", e.Region)
	}
	if e.Task >= 0 && e.Task < len(cat.tasks) && (e.Kind == region.ScaleOut || e.Kind == region.Overload) {
		s += " for " + cat.tasks[e.Task].Name
	}
	if e.Chain >= 0 && e.Chain < len(cat.chains) && len(cat.chains[e.Chain].tasks) > 0 {
		s += ": " + cat.names(cat.chains[e.Chain].tasks)
	}
	switch e.Kind {
	case region.Load:
		s += fmt.Sprintf(" (%v, until %v later)", e.Cause, time.Duration(e.Until.Sub(e.At)))
	case region.Run:
		s += fmt.Sprintf(" (%v)", e.Cause)
	case region.Refuse, region.Overload:
		if e.Reason == region.NoReason {
			break
		}
		s += fmt.Sprintf(" (%v)", e.Reason)
	}
	return s
}

// through is a visit in words.
func (cat *catalog) through(v sched.Visit) string {
	s := ""
	for i, t := range cat.chains[v.Chain].tasks {
		name := cat.tasks[t].Name
		if v.Mask&(1<<i) == 0 {
			name = "(" + name + ")"
		}
		if i > 0 {
			s += " -> "
		}
		s += name
	}
	return s
}
