package snic

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/sched"
	"github.com/quillon/quillon/snic/vmem"
)

// Reasons: why a frame went the way it did.
const (
	reasonSwitched graph.Reason = iota
	reasonShort
	reasonControl
	reasonNobody
	reasonOffPath
	reasonBadNSH
	reasonThrottled
	reasonEndpoint
	reasonNoRegion
	reasonStoreFull
	reasonNoDescriptor
	reasonOverQuota
	reasonGone
	reasonLoop
	reasonStopped
	reasonAnswered
	reasonNoPeer
	reasonUnserved
	reasonUnasked
	reasonTwice
	reasonBadPeer
	reasonPoolMTU
	reasonFaulted
	reasonNoCopy
	reasonPressed
	reasonPause
	reasonPaused
	reasonCrowded
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonSwitched:     {Name: "switched", Help: "plain switching: no rule sends it to tasks, forwarded"},
	reasonShort:        {Name: "short", Help: "too short for its Ethernet header or VLAN tags, forwarded"},
	reasonControl:      {Name: "control", Help: "to the control core"},
	reasonNobody:       {Name: "nobody", Help: "dropped: a service path of nobody, or a rule says so"},
	reasonOffPath:      {Name: "off-path", Help: "came by a service path, and its header was taken off"},
	reasonBadNSH:       {Name: "bad-nsh", Help: "dropped: the service header is malformed, or what follows it"},
	reasonThrottled:    {Name: "throttled", Help: "dropped: its tenant has had its share of this epoch"},
	reasonEndpoint:     {Name: "endpoint", Help: "no room for its tasks: the endpoint does their work, forwarded"},
	reasonNoRegion:     {Name: "no-region", Help: "dropped: no room for its tasks"},
	reasonStoreFull:    {Name: "store-full", Help: "dropped: the packet store is full (store=)"},
	reasonNoDescriptor: {Name: "no-descriptor", Help: "dropped: as many packets wait as may (packets=)"},
	reasonOverQuota:    {Name: "over-quota", Help: "dropped: its tenant has as much of the packet store as it leaves to all others"},
	reasonGone:         {Name: "gone", Help: "dropped: its DAG, or a task that it waited for, was taken away"},
	reasonLoop:         {Name: "loop", Help: "dropped: tasks throw it at each other"},
	reasonStopped:      {Name: "stopped", Help: "dropped: it waited when the board was stopped"},
	reasonAnswered:     {Name: "from-peer", Help: "a peer has run its tasks, forwarded"},
	reasonNoPeer:       {Name: "no-peer", Help: "dropped: to a peer that is gone"},
	reasonUnserved:     {Name: "unserved", Help: "dropped: from a peer, of a DAG that does not run here for it"},
	reasonUnasked:      {Name: "unasked", Help: "dropped: from a peer, back from a DAG that was not there"},
	reasonTwice:        {Name: "twice", Help: "dropped: from a peer, and would go to another one"},
	reasonBadPeer:      {Name: "bad-peer", Help: "dropped: by the pool's port, and not of a board of the pool"},
	reasonPoolMTU:      {Name: "pool-mtu", Help: "dropped: with 22 bytes more it is too long for the pool's port (pool-mtu=)"},
	reasonFaulted:      {Name: "task-faulted", Help: "dropped: a task that it is to go through was stopped by a fault of its memory, or because it panicked (quillon snic tasks)"},
	reasonPressed:      {Name: "ecn-ce", Help: "its tenant has nearly had its share: marked with congestion experienced (RFC 3168), and sent on"},
	reasonPause:        {Name: "pause", Help: "dropped: it asks a lossless port for a pause, or for its end"},
	reasonPaused:       {Name: "paused-full", Help: "dropped: as many frames wait for the end of a pause as may, at a lossless port"},
	reasonCrowded:      {Name: "hand-over-full", Help: "dropped: its tasks run in another worker, which takes frames more slowly than they come"},
	reasonNoCopy:       {Name: "no-copy", Help: "dropped: no frames for copies of it, on which its tasks were to run side by side"},
}

// refusals are the scheduler's reasons.
var refusals = [...]graph.Reason{
	sched.UnknownRoute: reasonGone,
	sched.BadPacket:    reasonGone,
	sched.NoDescriptor: reasonNoDescriptor,
	sched.StoreFull:    reasonStoreFull,
	sched.ByTask:       reasonGone,
	sched.Gone:         reasonGone,
}

const doc = `Frames from port p0 leave by p1, those from p1 by p0, and so with p2 and p3 and
all others. On the way a rule may send them through a tenant's tasks: in the
order of its DAG when they come in by an even port, back through it when they
come in by an odd one. Rules are written for the way forward.

  apps:
    nic:
      kind: snic
      args:
        deployment: |
          regions: {count: 4, area: 2}
          tasks:
            fw:  {kind: firewall, args: {default: allow}}
            nat: {kind: napt, args: {public: 203.0.113.1}}
          tenants: {alice: {weight: 2}}
          dags: [{uid: 7, tenant: alice, run: fw -> nat}]
          rules: [{match: "src:10.0.0.0/8", dag: 7}, {match: "dst:203.0.113.1", dag: 7}]

Tasks are any functions of quillon with ports a and b: a is where frames come
from on the way forward. What a task reads and writes, whether it drops or keeps
state, is known for those that come with quillon (quillon nf) and need be told
only for others. A task with throughput= or latency= takes the time that it would on such
a board; independent ones of a DAG (quillon snic check) take theirs at the same time, each
on a copy of the frame, and what they write is merged (parallel=). Frames that come in with a network service header go to the DAG whose UID is
their service path; the header is taken off.

All of it but the regions can be set up by P4Runtime, or with quillon table: tables
tasks, tenants, dags and rules are the deployment's parts. A board begins with
deployment: "regions: {count: 4, area: 2}" then. What a request of P4Runtime changes comes
into force at once; the order of its updates does not matter. When not all of them
can be, and the request does not ask for all or none, they are made in parts, in their
order. Rules of the same priority that meet are in the order in which they came.

With memory= the board has memory for tasks that declare how much they want
(memory: 64M) and can use it: kvcache, dummy. Each has an address space of
its own, of its tenant (of none, if several tenants use it). A page is taken at its first access. An access outside of what is
reserved stops that task alone: its packets are dropped, or with fault: pass go
on without it, until quillon snic restart. Tenants share the memory as they share
the rest, by weight: it is one of the resources of which a tenant's dominant share is made, so who has much
of it gets less of a port or task that is full. What is more than there is goes to boards of the pool that have some.
What others cannot use is not taken: memory: of a firewall counts for nothing.

A task whose code panics ends alone, too: the frames that it had are dropped (panicked), those that
are to go through it afterwards as well (task-faulted), or go on without it (fault: pass), and all else
goes on. quillon snic tasks shows what it was, and quillon snic restart starts the task again. An endless loop, a stack or a
heap without bounds, and what Go calls fatal end the process; so does, with several workers, a panic of a task
whose instances share what they know.

With pool-port= and quillon run --pool, boards that have the same deployment run
DAGs for each other: see the flags there, and quillon snic pool. A board that is
stopped gives them back with their state; one with more than 16 MB of it stays until the
end: run says so, and its exit status is 1.`

// Kind returns the kind snic, whose tasks may be any of the functions. It knows from graph.Kind.Effects
// what these do to packets.
func Kind(functions ...graph.Kind) *graph.Kind {
	l := newLibrary(functions)
	k := &graph.Kind{
		Name:     "snic",
		Summary:  "a SuperNIC: tenants' network tasks in chains, scheduled, launched, scaled and shared fairly",
		Doc:      doc,
		Params:   arguments.Params(),
		Reasons:  reasons[:],
		Describe: describe,
		Counters: pauseCounters[:],
		Tables:   tables(),
		Inside: func(args graph.Args) ([]graph.InsideSpec, error) {
			s, err := l.parseArgs(args)
			if err != nil {
				return nil, err
			}
			var out []graph.InsideSpec
			for _, t := range s.deployment.Tasks {
				out = append(out, graph.InsideSpec{Name: t.Name, AppSpec: graph.AppSpec{Kind: t.Kind, Args: t.Args}, Alone: s.travels(&t)})
			}
			return out, nil
		},
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := l.parseArgs(args)
			if err != nil {
				return nil, err
			}
			if env.Workers > maxWorkers {
				return nil, fmt.Errorf("%d workers: at most %d", env.Workers, maxWorkers)
			}
			b, err := newBoard(s.of(env.Worker, env.Workers))
			if err == nil {
				b.split.spent.clock = env.Clock
				b.join(env)
			}
			return b, err
		},
		Together: func(apps map[string]graph.Args, workers int) error {
			if len(apps) < 2 {
				return nil
			}
			all := int64(0)
			for _, args := range apps {
				m, _ := arg.ParseScaled(args["memory"], 1024, 0, 1<<40) // New reports an error
				all += m
			}
			return machineFits(fmt.Sprintf("memory= of the boards %s together is %d", strings.Join(slices.Sorted(maps.Keys(apps)), ", "), all), all, workers)
		},
	}
	for p := range ports {
		k.In = append(k.In, fmt.Sprintf("p%d", p))
	}
	k.Out = k.In
	return k
}

// settings are the arguments, and what follows from them.
type settings struct {
	_        struct{}      `arg:"deployment" own:"true" need:"see quillon nf describe snic" help:"YAML: regions, tasks, tenants, dags, rules"`
	shares   bool          `arg:"fair" words:"off on" help:"hold tenants to their shares when something is scarce, memory too: on or off"`
	epoch    time.Duration `arg:"epoch" range:"5us..1s" help:"EPOCH_LEN: how often shares are divided"`
	monitor  time.Duration `arg:"monitor" range:"100us..1m" help:"MONITOR_PERIOD: how long a task is overloaded, or one instance too many, before it is scaled; no less than it takes to load a region"`
	idle     time.Duration `arg:"idle" range:"0..1h" default:"0" help:"how long without packets until the last instance of a task is descheduled; 0: never"`
	victims  int           `arg:"victims" range:"0..100" help:"how many percent of the chains that are descheduled stay in their regions until these are needed"`
	rate     int64         `arg:"pr-rate" unit:"1000" range:"1e3..1e12" help:"bytes a second into the configuration port, which loads a region"`
	portRate int64         `arg:"port-rate" unit:"1000" range:"1e3..1e13" help:"bits a second of each port, which tenants share"`
	burst    int           `arg:"burst" unit:"1024" range:"1..2^30" help:"bytes that a tenant may always send in one go"`
	slack    time.Duration `arg:"slack" range:"0..1s" help:"for how long what nobody used may be used later: as long as frames may come in one clump, since a worker was away"`
	_        struct{}      `arg:"parallel" own:"true" default:"auto" help:"run independent tasks on copies, side by side: auto (where that takes less time: two branches of a stage or more have a task with throughput= or latency=), on, off, or on with at most so many branches: 2 to 8"`
	panics   bool          `arg:"scheduler" words:"chain panic" help:"what a packet gets credits for: chain (all that is left of its chain, where it is free) or panic (one task, and then the next, as with PANIC; to compare with)"`
	pass     time.Duration `arg:"pass" range:"0..1s" default:"0" help:"a model of a board: how long a packet takes through the scheduler, each time; 64ns on the source's. 0: as long as it takes here"`
	decide   time.Duration `arg:"decide" range:"0..1s" default:"0" help:"a model of a board: the least time between two decisions of the scheduler; 4ns on the source's"`
	sync     time.Duration `arg:"sync" range:"0..1s" default:"0" help:"a model of a board: how long a copy takes through the synchronisation buffer; 16ns on the source's"`
	store    int64         `arg:"store" unit:"1024" range:"2^11..2^40" help:"packet store: bytes of packets that wait; with several workers each has its part of it"`
	packets  int           `arg:"packets" unit:"1024" range:"64..2^20" default:"4096" help:"packets that wait or are in tasks, at most; with several workers each has its part, 64 or more"`
	_        struct{}      `arg:"pool-port" own:"true" help:"port to the boards of the pool (quillon run --pool), as in p14; the other one of its pair is not used"`
	poolMTU  int           `arg:"pool-mtu" unit:"1024" range:"576..2^16" help:"of that port: 22 more than that of the others lets all frames through"`
	poolCopy time.Duration `arg:"pool-copy" range:"0..1h" default:"0" help:"how often a board of the pool gets a copy of what its DAG's tasks know here, if frames came since, made beside the frames: so much is lost, and what that takes, if this board dies; 0: all that they have learnt here"`
	_        struct{}      `arg:"lossless" own:"true" help:"priorities of ports that PFC (IEEE 802.1Qbb) keeps from losing frames, as in p0:3+p1:3: a tenant that has nearly had its share, or its part of the packet store, makes the port pause its sender; pauses that are asked for at the port hold frames of the priority that leave by it. A frame's priority is that of its VLAN tag, and 0 without one. A pause lasts 100 ms at most"`
	ahead    bool          `arg:"pre-launch" words:"off on" help:"launch what is deployed where regions are free: on, or off (when frames come, or a board or a switch asks for it: best where boards are attached to a switch, which decides)"`
	memory   int64         `arg:"memory" unit:"1024" range:"0..2^40" help:"bytes of memory on the board, for tasks that declare memory:; 0: they have Go's. Of each worker, where there are several. All boards of an instance together have no more than the machine, which gives it as it is used"`
	page     int64         `arg:"page" unit:"1024" range:"4096..2^24" help:"bytes of its pages: a power of two, 4k to 16M; the same on all boards of a pool"`
	promise  int64         `arg:"memory-promise" unit:"1024" range:"0..2^40" help:"bytes that tasks may declare beyond what there is room for, here and at boards of the pool that are known: they may be refused when they are used"`
	flows    int           `arg:"flows" unit:"1024" range:"4..2^26" default:"131072" help:"flows whose rule is remembered"`

	library    *library
	deployment *dag.Deployment
	lossless   [ports]int8 // the priority that is not to lose frames, of each port; -1: none
	parallel   uint8
	branches   int // of a stage, at most
	poolPort   int // -1: none
	regions    int
	workers    int // that the board has
}

var arguments = arg.Declare("", settings{
	shares: true, ahead: true, epoch: 20 * time.Microsecond, slack: 5 * time.Millisecond, monitor: 5 * time.Millisecond, rate: 800e6, portRate: 100e9,
	burst: 256 << 10, store: 16 << 20, packets: 4096, flows: 1 << 17, poolPort: -1, poolMTU: 1500, page: vmem.PageBytes, branches: maxLanes, victims: 100,
})

// setParallel reads parallel=.
func (s *settings) setParallel(v string) error {
	if i := slices.Index(parallels[:], v); i >= 0 {
		s.parallel = uint8(i)
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 2 || n > maxLanes {
		return fmt.Errorf("want auto, on, off, or 2 to %d branches", maxLanes)
	}
	s.parallel, s.branches = parallelOn, n
	return nil
}

func (l *library) parseArgs(args graph.Args) (settings, error) {
	var wrong error
	s, r := arguments.Read(args)
	s.library = l
	r.Func("deployment", func(v string) error { s.deployment, wrong = l.deployment(v); return wrong })
	if wrong != nil {
		return s, wrong // says so itself
	}
	for i := range s.lossless {
		s.lossless[i] = -1
	}
	r.Func("lossless", func(v string) (err error) { s.lossless, err = parseLossless(v); return err })
	r.Func("parallel", s.setParallel)
	r.Func("pool-port", func(v string) (err error) {
		digits, ok := strings.CutPrefix(v, "p")
		if s.poolPort, err = strconv.Atoi(digits); err != nil || !ok || s.poolPort < 0 || s.poolPort >= ports {
			return fmt.Errorf("want a port, p0 to p%d", ports-1)
		}
		return nil
	})
	if s.poolCopy > 0 && s.poolCopy < fullEvery {
		r.Failf("pool-copy=%v: want 0, or %v or more", s.poolCopy, fullEvery)
	}
	if s.page&(s.page-1) != 0 {
		r.Failf("page=%d: want a power of two", s.page)
	} else if s.memory%s.page != 0 {
		r.Failf("memory=%d: want whole pages of %d bytes (page=)", s.memory, s.page)
	}
	if err := r.Err(); err != nil {
		return s, err
	}
	s.regions = s.deployment.Regions.Count
	return s, s.checkDeployment()
}

// checkDeployment says what of the deployment does not fit a board with these settings.
func (s *settings) checkDeployment() error {
	for _, r := range s.deployment.Rules {
		if r.Priority < 0 {
			return fmt.Errorf("deployment: rule %s: priority %d: want 0 or more", r.Match, r.Priority)
		}
		if r.In >= ports {
			return fmt.Errorf("deployment: rule in:%d+%s: want a port of the board, 0 to %d", r.In, r.Match, ports-1)
		}
	}
	if n := len(s.deployment.Tasks); n > maxTasks {
		return fmt.Errorf("deployment: %d tasks: at most %d", n, maxTasks)
	}
	if n := len(s.deployment.DAGs); n > maxDAGs {
		return fmt.Errorf("deployment: %d DAGs: at most %d", n, maxDAGs)
	}
	if n := len(s.deployment.Tenants); n > maxTenants {
		return fmt.Errorf("deployment: %d tenants: at most %d", n, maxTenants)
	}
	chains, err := s.deployment.Chains(0)
	if err != nil {
		return err
	}
	longest := s.deployment.Regions.Bitstream
	for i := range chains {
		longest = max(longest, chains[i].Bitstream)
	}
	if load := time.Duration(math.Ceil(float64(longest) * 1e9 / float64(s.rate))); s.monitor < load {
		return fmt.Errorf("monitor=%v: loading a region takes %v, and scaling faster than that would only reload (pr-rate=, bitstream)", s.monitor, load)
	}
	return nil
}
