package clio

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/nf/replicate"
	"github.com/quillon/quillon/snic"
)

// stage is a function of the chain.
type stage struct {
	kind string
	args graph.Args
}

// setup is a rack.
type setup struct {
	chain     []stage // from the devices' side on
	reliable  bool    // clients speak go-back-N
	inside    bool    // devices do
	devices   int
	copies    clio.Replication
	lossyLast bool // faults behind the chain, too
	depth     int
	mix       ycsb.Mix
	deaths    []int   // devices that die, half-way
	restarts  int     // of the chain
	board     string  // what the board's regions and tasks say, in which the chain runs as a DAG; "": it runs by itself
	all       *events // instead of YCSB: all operations, recorded there
	workers   int     // of the chain; 0: one
	steering  string  // of them
}

// app is what a client runs.
type app interface {
	host.App
	Idle() bool
	Stats() clio.LoadStats
}

const replicas = "192.168.1.0@02:00:00:00:01:00+192.168.1.1@02:00:00:00:01:01"

var (
	transport = stage{"gobackn", graph.Args{"window": "16", "ack-every": "8", "timeout": "300us", "ack-delay": "50us", "tick": "10us"}}
	cache     = stage{"kvcache", graph.Args{"entries": "3", "value": "100", "settle": "700us"}}
	lru       = stage{"kvcache", graph.Args{"entries": "3", "value": "100", "settle": "700us", "policy": "lru"}}
	// A write may wait behind others of its key, and for a device that dies.
	patient = stage{"kvcache", graph.Args{"entries": "3", "value": "100", "settle": "8ms", "policy": "lru"}}
	copier  = stage{"replicate", graph.Args{"replicas": replicas, "timeout": "300us", "tries": "12", "tick": "20us"}}
)

// window is the transport with another window.
func window(frames string) stage {
	s := stage{transport.kind, maps.Clone(transport.args)}
	s.args["window"], s.args["ack-every"] = frames, "1"
	return s
}

// box runs the chain between two ports.
type box struct {
	a, b  port.Port
	inst  *graph.Instance
	chain []stage
	board string

	workers  int
	steering string
	crew     *crew // nil: there is one worker
}

type lent struct{ port.Port }

func (lent) Close() error { return nil }

// deployment is the chain as a DAG of a board.
func (x *box) deployment() string {
	of, per, _ := strings.Cut(x.board, ";")
	text := "regions: {" + of + "}\ntasks:\n"
	var run []string
	for _, st := range x.chain {
		var args []string
		for k, v := range st.args {
			args = append(args, fmt.Sprintf("%s: %q", k, v))
		}
		slices.Sort(args)
		text += fmt.Sprintf("  %s: {kind: %s, args: {%s}%s}\n", st.kind, st.kind, strings.Join(args, ", "), per)
		run = append(run, st.kind)
	}
	return text + "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: " + strings.Join(run, " -> ") + "}]\nrules: [{match: all, dag: 1}]\n"
}

func (x *box) start(seed uint64) error {
	s := &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}}, Apps: map[string]graph.AppSpec{}}
	up, down := "a.out", "a.in"
	chain := x.chain
	if x.board != "" {
		chain = nil
		s.Apps["board"] = graph.AppSpec{Kind: "snic", Args: graph.Args{"deployment": x.deployment()}}
		s.Links = append(s.Links, "a.out -> board.p0", "board.p0 -> a.in")
		up, down = "board.p1", "board.p1"
	}
	for _, st := range chain {
		s.Apps[st.kind] = graph.AppSpec{Kind: st.kind, Args: st.args}
		s.Links = append(s.Links, up+" -> "+st.kind+".a", st.kind+".a -> "+down)
		up, down = st.kind+".b", st.kind+".b"
	}
	s.Links = append(s.Links, up+" -> b.in", "b.out -> "+down)
	ports := map[string][]port.Port{"a": {lent{x.a}}, "b": {lent{x.b}}}
	var err error
	if x.workers > 1 {
		if x.crew, err = newCrew(x.workers, x.steering, x.a, x.b, seed); err != nil {
			return err
		}
		ports = x.crew.queues()
	}
	functions := []graph.Kind{*gobackn.Kind(), *kvcache.Kind(), *replicate.Kind()}
	x.inst, err = graph.New(graph.Config{Spec: s, Kinds: append(functions, *snic.Kind(functions...)), Ports: ports, Seed: seed})
	return err
}

func (x *box) Breath(now clock.Time) (int, error) {
	if x.crew != nil {
		return x.crew.breath(x.inst, now)
	}
	return x.inst.Step(now)
}

func (x *box) Deadline() clock.Time { return x.inst.NextTick() }

func (x *box) stop() error {
	err := errors.Join(x.inst.Conservation(), x.inst.Close(), x.inst.Conservation())
	if x.crew != nil {
		err = errors.Join(err, x.crew.send(), x.crew.left())
	}
	return err
}

// mortal is a device that can die.
type mortal struct {
	*host.Node
	dead bool
	port port.Port
	rx   packet.Batch
}

func (m *mortal) Breath(now clock.Time) (int, error) {
	if !m.dead {
		return m.Node.Breath(now)
	}
	n, err := m.port.Rx(&m.rx)
	m.rx.PutAll()
	return n, err
}

func (m *mortal) Deadline() clock.Time {
	if m.dead {
		return clock.Never
	}
	return m.Node.Deadline()
}

// result is what a run left.
type result struct {
	stats    clio.LoadStats
	counters map[string]uint64
}

const clients, sessions, keys, size, opsPerClient = 3, 2, 4, 64, 1500

// run runs a rack under a schedule and checks what it can.
func run(s setup, schedule fault.Schedule, seed uint64) (*result, error) {
	pool, err := packet.NewPool(4096, 2048, nil)
	if err != nil {
		return nil, err
	}
	clk := clock.NewManual(clock.Time(time.Second))
	sim := &host.Sim{Clock: clk, Hop: 4 * time.Microsecond}
	log := &history.Log[history.Register, uint64]{}
	all := ycsb.Sequential(1, keys)
	g := gbn.Config{Window: 16, AckEvery: 8, Timeout: 300 * time.Microsecond, AckDelay: 50 * time.Microsecond}
	link := func() (*mem.Port, *mem.Port) { return mem.NewWire("x", "y", pool, 512, clk) }
	var front, back []port.Port
	var ends []wire.End
	var devices []*clio.Device
	var machines []*mortal
	for i := range s.devices {
		me := wire.End{MAC: [6]byte{2, 0, 0, 0, 1, byte(i)}, IP: [4]byte{192, 168, 1, byte(i)}, Port: wire.Port}
		d, err := clio.NewDevice(clio.DeviceConfig{Me: me, Pool: pool, Reliable: s.inside, GBN: g, HashBits: 3, Memory: 1 << 20})
		if err != nil {
			return nil, err
		}
		if s.all == nil {
			if err := clio.Fill(d, all, size); err != nil {
				return nil, err
			}
		}
		ends, devices = append(ends, me), append(devices, d)
		a, b := link()
		x, y := link()
		name := fmt.Sprintf("s%d", i)
		if !s.lossyLast {
			name = "sound"
		}
		m := &mortal{Node: host.NewNode(a, d, nil), port: a}
		machines = append(machines, m)
		sim.Workers = append(sim.Workers, m, fault.NewWire(name, x, b, schedule))
		back = append(back, y)
	}
	var loads []app
	var cs []*clio.Client
	for i := range clients {
		me := wire.End{MAC: [6]byte{2, 0, 0, 0, 2, byte(i)}, IP: [4]byte{192, 168, 2, byte(i)}, Port: 8000}
		c, err := clio.NewClient(clio.ClientConfig{Me: me, Devices: ends, Pool: pool, Sessions: sessions, Depth: max(s.depth, 1), Reliable: s.reliable,
			GBN: g, Replication: s.copies, Timeout: 300 * time.Microsecond, Patience: 100 * time.Millisecond, Checksum: true, PID: uint16(i)})
		if err != nil {
			return nil, err
		}
		var l app
		l, err = clio.NewLoad(clio.LoadConfig{Client: c, YCSB: ycsb.Config{Mix: s.mix, Theta: 0.99, Keys: all, Seed: seed}, Stream: uint64(i), ValueSize: size, Ops: opsPerClient, Log: log})
		if err != nil {
			return nil, err
		}
		if s.all != nil {
			l = &everything{c: c, number: uint64(i+1) << 32, rng: rand.New(rand.NewPCG(seed, uint64(i))), left: 300, open: map[[2]int]int{}, log: s.all}
		}
		cs, loads = append(cs, c), append(loads, l)
		a, b := link()
		x, y := link()
		sim.Workers = append(sim.Workers, host.NewNode(a, c, l), fault.NewWire(fmt.Sprintf("c%d", i), b, x, schedule))
		front = append(front, y)
	}
	var bx *box
	if len(s.chain) > 0 {
		a, b := link()
		c, d := link()
		bx = &box{a: b, b: c, chain: s.chain, board: s.board, workers: s.workers, steering: s.steering}
		if err := bx.start(seed); err != nil {
			return nil, err
		}
		sim.Workers = append(sim.Workers, bx, host.NewBridge(append(back, a)...), host.NewBridge(append(front, d)...))
	} else {
		sim.Workers = append(sim.Workers, host.NewBridge(append(back, front...)...))
	}
	idle := func() bool {
		for _, l := range loads {
			if !l.Idle() {
				return false
			}
		}
		return true
	}
	done := func() (n uint64) {
		for _, l := range loads {
			t := l.Stats()
			n += t.Reads + t.Writes + t.Unknown + t.Failed
		}
		return n
	}
	r := &result{counters: map[string]uint64{}}
	count := func() {
		if bx != nil {
			for _, c := range bx.inst.Counters() {
				r.counters[strings.TrimPrefix(c.Node, "board/")+"."+c.Name] += c.Value
			}
		}
	}
	total := uint64(clients * opsPerClient)
	for k := range s.restarts {
		at := total * uint64(k+1) / uint64(s.restarts+1)
		if err := sim.Run(func() bool { return done() >= at }, 20*time.Second); err != nil {
			return nil, err
		}
		count()
		if err := bx.stop(); err != nil {
			return nil, err
		}
		if err := bx.start(seed + uint64(k)); err != nil {
			return nil, err
		}
	}
	if len(s.deaths) > 0 {
		if err := sim.Run(func() bool { return done() >= total/2 }, 20*time.Second); err != nil {
			return nil, err
		}
		for _, d := range s.deaths {
			machines[d].dead = true
		}
	}
	if err := sim.Run(idle, 60*time.Second); err != nil {
		return nil, fmt.Errorf("%w: %d of %d done; %+v", err, done(), total, cs[0].Stats())
	}
	// Late frames and acknowledgements come to rest.
	end := clk.Now().Add(20 * time.Millisecond)
	if err := sim.Run(func() bool { return clk.Now() >= end }, time.Second); err != nil && !errors.Is(err, host.ErrStuck) {
		return nil, err
	}
	for _, l := range loads {
		t := l.Stats()
		r.stats.Reads += t.Reads
		r.stats.Writes += t.Writes
		r.stats.Unknown += t.Unknown
		r.stats.Failed += t.Failed
		r.stats.Corrupt += t.Corrupt
	}
	count()
	if bx != nil {
		if err := bx.stop(); err != nil {
			return nil, err
		}
	}
	if err := history.Check(history.Registers(nil), log, 0); err != nil {
		return r, err
	}
	if len(s.deaths)+s.restarts == 0 && s.copies == clio.ByNetwork {
		for _, k := range all {
			v, _ := devices[0].Store().Read(k, 8)
			for _, d := range devices[1:] {
				if w, _ := d.Store().Read(k, 8); !bytes.Equal(v, w) {
					return r, fmt.Errorf("key %d: copies differ", k)
				}
			}
		}
	}
	for _, c := range cs {
		c.Close()
	}
	return r, nil
}

var setups = map[string]setup{
	"plain":                 {reliable: true, inside: true, devices: 1, lossyLast: true, depth: 3},
	"gobackn":               {chain: []stage{transport}, reliable: true, devices: 1, depth: 3},
	"gobackn, window 4":     {chain: []stage{window("4")}, reliable: true, devices: 1, depth: 3},
	"gobackn, window 2":     {chain: []stage{window("2")}, reliable: true, devices: 1, depth: 3},
	"gobackn, window 1":     {chain: []stage{window("1")}, reliable: true, devices: 1, depth: 3},
	"gobackn+cache":         {chain: []stage{cache, transport}, reliable: true, devices: 1, depth: 3},
	"gobackn+copies":        {chain: []stage{copier, transport}, reliable: true, devices: 2, copies: clio.ByNetwork, depth: 3},
	"gobackn+cache+copies":  {chain: []stage{copier, patient, transport}, reliable: true, devices: 2, copies: clio.ByNetwork, depth: 2},
	"cache, lossy":          {chain: []stage{cache}, devices: 1, lossyLast: true},
	"cache, lossy, deep":    {chain: []stage{lru}, devices: 1, lossyLast: true, depth: 8},
	"copies, lossy":         {chain: []stage{copier}, devices: 2, copies: clio.ByNetwork, lossyLast: true, depth: 3},
	"cache+copies, lossy":   {chain: []stage{copier, patient}, devices: 2, copies: clio.ByNetwork, lossyLast: true, depth: 2},
	"cache, restarted":      {chain: []stage{cache}, devices: 1, lossyLast: true, restarts: 4},
	"gobackn, restarted":    {chain: []stage{transport}, reliable: true, devices: 1, depth: 2, restarts: 2},
	"all, restarted":        {chain: []stage{copier, patient, transport}, reliable: true, devices: 2, copies: clio.ByNetwork, restarts: 2},
	"a secondary dies":      {chain: []stage{copier, transport}, reliable: true, devices: 2, copies: clio.ByNetwork, deaths: []int{1}},
	"the primary dies":      {chain: []stage{copier, patient}, devices: 2, copies: clio.ByNetwork, deaths: []int{0}},
	"the client's own copy": {reliable: true, inside: true, devices: 2, lossyLast: true, copies: clio.Single},
}

func TestLinearizable(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for name, s := range setups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			linearizable(t, s, seeds)
		})
	}
}

// boards are those in which chains run: what their regions and each of their tasks say.
var boards = map[string]string{
	"one region":    "count: 1, area: 3",
	"a region each": "count: 3, area: 1",
	"few credits":   "count: 2, area: 2;, latency: 1us, throughput: 10Gbit, credits: 2",
	"modelled":      "count: 2, area: 2;, latency: 1us, throughput: 10Gbit, credits: 64",
}

// Chains in a board do what they do without one.
func TestLinearizableInABoard(t *testing.T) {
	for name, s := range setups {
		for which, board := range boards {
			if len(s.chain) == 0 {
				continue
			}
			s := s
			s.board = board
			t.Run(name+"/"+which, func(t *testing.T) {
				t.Parallel()
				linearizable(t, s, 2)
			})
		}
	}
}

// linearizable runs a setup under random faults, once for each seed.
func linearizable(t *testing.T, s setup, seeds uint64) {
	sum := map[string]uint64{}
	for seed := range seeds {
		s.mix = []ycsb.Mix{ycsb.A, ycsb.B}[seed%2]
		schedule := fault.Random(seed, fault.Mix{Links: []string{"c0", "c1", "c2", "s0", "s1"}, Frames: 200, Within: 4000, Late: 300 * time.Microsecond})
		r, err := run(s, schedule, seed)
		if err != nil {
			t.Fatalf("seed %d: %v\n%v", seed, err, schedule)
		}
		if r.stats.Corrupt > 0 || len(s.deaths) == 0 && (s.restarts == 0 || !s.reliable) && r.stats.Unknown+r.stats.Failed > 0 {
			t.Errorf("seed %d: %+v", seed, r.stats)
		}
		for k, v := range r.counters {
			sum[k] += v
		}
	}
	least := uint64(50) // of a seed, in the mean of all; of the few of -short some have less
	if testing.Short() {
		least = 10
	}
	for _, st := range s.chain {
		switch st.kind {
		case "gobackn":
			if sum["gobackn.delivered"] == 0 || sum["gobackn.retransmitted"] == 0 || s.depth > 1 && sum["gobackn.nack"]+sum["gobackn.ahead"] == 0 {
				t.Errorf("the transport was not tried: %v", sum)
			}
		case "kvcache":
			if sum["kvcache.hit"] < least*seeds || sum["kvcache.written"] == 0 || sum["kvcache.filled"] == 0 || sum["kvcache.spoiled"] == 0 {
				t.Errorf("the cache was not tried: %v", sum)
			}
		case "replicate":
			if sum["replicate.answered"] < 50*seeds || sum["replicate.diverged"] > 0 || (sum["replicate.degraded"] > 0) != (len(s.deaths) > 0) {
				t.Errorf("copies: %v", sum)
			}
		}
	}
}
