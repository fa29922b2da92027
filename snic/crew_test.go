package snic

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// crew is a board of several workers in virtual time: ports p0 to p3, and p14, a queue a worker.
type crew struct {
	t     testing.TB
	inst  *graph.Instance
	now   clock.Time
	pools []*packet.Pool
	ends  [5][]*end // by port and worker
	got   graphtest.Result
}

// end is a queue of a port: it yields nothing, or what rx gives, and keeps what is sent to it.
type end struct {
	tap
	rx   func(*packet.Batch)
	x    *crew
	port int
	sent [][]byte
	mute bool // what is sent is not kept
}

func (p *end) Rx(b *packet.Batch) (int, error) {
	if p.rx != nil {
		p.rx(b)
	}
	return b.Len(), nil
}
func (p *end) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (p *end) Tx(b *packet.Batch) (int, error) {
	if p.mute {
		n := b.Len()
		b.PutAll()
		return n, nil
	}
	for _, x := range b.Bufs() {
		f := p.x.frame(x)
		p.sent = append(p.sent, f.Bytes)
		name := crewPorts[p.port]
		p.x.got.Out[name] = append(p.x.got.Out[name], f)
	}
	n := b.Len()
	b.PutAll()
	return n, nil
}

// crewPorts are the board's ports.
var crewPorts = [...]string{"p0", "p1", "p2", "p3", "p14"}

func newCrew(t testing.TB, kinds []graph.Kind, workers int, args graph.Args) *crew {
	t.Helper()
	x := &crew{t: t, now: graphtest.Start}
	cfg := graph.Config{Kinds: kinds, Ports: map[string][]port.Port{}, Seed: 1, Spec: &graph.Spec{
		Ports: map[string]graph.PortSpec{},
		Apps:  map[string]graph.AppSpec{"nic": {Kind: "snic", Args: args}},
	}}
	x.got.Out = map[string][]graphtest.Frame{}
	cfg.OnDrop = func(b *packet.Buf) { x.got.Dropped = append(x.got.Dropped, x.frame(b)) }
	for i := range x.ends {
		name := fmt.Sprintf("x%d", i)
		cfg.Spec.Ports[name] = graph.PortSpec{Kind: "test"}
		cfg.Spec.Links = append(cfg.Spec.Links, fmt.Sprintf("%s.out -> nic.%s", name, crewPorts[i]), fmt.Sprintf("nic.%s -> %s.in", crewPorts[i], name))
	}
	for range workers {
		pool, err := packet.NewPool(graphtest.Slots, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		x.pools = append(x.pools, pool)
		for i := range x.ends {
			name := fmt.Sprintf("x%d", i)
			q := &end{tap: tap{pool: pool}, x: x, port: i}
			x.ends[i] = append(x.ends[i], q)
			cfg.Ports[name] = append(cfg.Ports[name], q)
		}
	}
	var err error
	if x.inst, err = graph.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.close)
	return x
}

// push gives a worker frames that came by port 0 or 1.
func (x *crew) push(worker, port int, frames ...[]byte) {
	x.t.Helper()
	for len(frames) > 0 {
		var b packet.Batch
		n := min(len(frames), packet.MaxBatch)
		for _, f := range frames[:n] {
			y := x.pools[worker].Get()
			if y == nil || !y.SetBytes(f) || !b.Add(y) {
				x.t.Fatal("no room for a frame")
			}
		}
		frames = frames[n:]
		if err := x.inst.PushTo(worker, fmt.Sprintf("x%d", port), x.now, &b); err != nil {
			x.t.Fatal(err)
		}
	}
}

// advance lets time pass, with the timers that are due.
func (x *crew) advance(d time.Duration) {
	x.t.Helper()
	end := x.now.Add(d)
	for {
		x.now = max(x.now, min(x.inst.NextTick(), end))
		if _, err := x.inst.Step(x.now); err != nil {
			x.t.Fatal(err)
		}
		if x.now >= end {
			return
		}
	}
}

func (x *crew) frame(b *packet.Buf) graphtest.Frame {
	f := graphtest.Frame{Bytes: slices.Clone(b.Bytes()), Verdict: b.Verdict}
	_, f.Reason = x.inst.ReasonOf(&b.Meta)
	return f
}

// Push has frames come in by a port: those of a flow and direction by one worker.
func (x *crew) Push(in string, frames ...[]byte) graphtest.Result {
	x.t.Helper()
	port := slices.Index(crewPorts[:], in)
	by := make([][][]byte, len(x.pools))
	for _, all := range frames {
		f := all
		if in == "p14" {
			f = all[outerLen:]
		}
		w := (int(f[29]) + int(f[35]) + int(f[28]) + int(f[33])*port) % len(by)
		by[w] = append(by[w], all)
	}
	for w, fs := range by {
		x.push(w, port, fs...)
	}
	return x.Result()
}

// Advance is advance, and what came of it.
func (x *crew) Advance(d time.Duration) graphtest.Result {
	x.t.Helper()
	x.advance(d)
	return x.Result()
}

// Result is what came out, and was dropped, since the last call.
func (x *crew) Result() graphtest.Result {
	r := x.got
	x.got = graphtest.Result{Out: map[string][]graphtest.Frame{}}
	for _, port := range x.ends {
		for _, q := range port {
			q.sent = nil
		}
	}
	return r
}

func (x *crew) Set(args graph.Args) error {
	_, err := x.inst.Set("nic", args)
	return err
}

// between is how many frames are on their way from one worker to another, in no buffer.
func (x *crew) between() int { return int(x.counter("handed") - x.counter("taken")) }

func (x *crew) Books() (*graph.Instance, int, int) {
	used := 0
	for _, p := range x.pools {
		used += p.InUse()
	}
	return x.inst, used, graphtest.Slots
}

// took is what each worker sent by a port since the last call, in its order.
func (x *crew) took(port int) (frames [][]byte) {
	for _, q := range x.ends[port] {
		frames = append(frames, q.sent...)
		q.sent = nil
	}
	return frames
}

// counter is that of all workers and apps.
func (x *crew) counter(name string) (n uint64) {
	for _, c := range x.inst.Counters() {
		if c.Name == name {
			n += c.Value
		}
	}
	return n
}

func (x *crew) board(worker int) *board { return x.inst.App("nic", worker).(*board) }

func (x *crew) boards() (all []*board) {
	for w := range x.pools {
		all = append(all, x.board(w))
	}
	return all
}

func (x *crew) close() {
	if err := x.inst.Conservation(); err != nil {
		x.t.Error(err)
	}
	if err := x.inst.Close(); err != nil {
		x.t.Error(err)
	}
	for w, pool := range x.pools {
		if n := pool.InUse(); n != 0 {
			x.t.Errorf("worker %d: %d buffers are still in use", w, n)
		}
	}
}

// flood has each source send frames of 1,000 bytes into a worker, mbit of each, and returns what came out of
// each, in Mb/s of the latter half.
func (x *crew) flood(d time.Duration, sources map[byte][]float64) map[byte]float64 {
	const size = 1000
	long := make([]byte, size-payload)
	for i := range long {
		long[i] = '.'
	}
	type stream struct {
		frame  []byte
		worker int
		gap    time.Duration
		next   clock.Time
	}
	var all []stream
	for src, rates := range sources {
		for w, mbit := range rates {
			if mbit > 0 {
				all = append(all, stream{frameLong(src, "00000000-"+string(long[9:])), w, time.Duration(size * 8 * 1000 / mbit), x.now})
			}
		}
	}
	got := map[byte]float64{}
	begin, end := x.now, x.now.Add(d)
	for x.now < end {
		next := clock.Never
		for i := range all {
			if s := &all[i]; s.next <= x.now {
				x.push(s.worker, 0, s.frame)
				s.next = s.next.Add(s.gap)
			}
			next = min(next, all[i].next)
		}
		x.advance(max(0, next.Sub(x.now)))
		for _, f := range x.took(1) {
			if x.now > begin.Add(d/2) {
				got[f[29]] += size * 8 / 1e6 / (d / 2).Seconds()
			}
		}
	}
	return got
}

// What a tenant gets of a task is of the whole board, whatever worker its frames come in by, and so is what the task can do.
func TestLimitsOfAllWorkers(t *testing.T) {
	const text = `
regions: {count: 1, area: 1}
tasks: {a: {kind: quick, args: {letter: a}, throughput: 1Gbit, credits: 64}}
tenants: {u: {weight: 3}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`
	for _, c := range []struct {
		workers int
		u, v    []float64 // Mb/s into each worker
		parts   [2]float64
	}{
		{1, []float64{3000}, []float64{3000}, [2]float64{.75, .25}},
		{2, []float64{3000}, []float64{0, 3000}, [2]float64{.75, .25}},
		{2, []float64{1500, 1500}, []float64{0, 3000}, [2]float64{.75, .25}},
		{2, []float64{200, 100}, []float64{0, 3000}, [2]float64{.3, .7}},
		{4, []float64{2000, 0, 2000}, []float64{0, 2000, 0, 2000}, [2]float64{.75, .25}},
	} {
		t.Run(fmt.Sprint(c.workers, c.u, c.v), func(t *testing.T) {
			x := newCrew(t, scripts(), c.workers, graph.Args{"deployment": text, "burst": "16k", "slack": "1ms", "idle": "0"})
			x.advance(20 * time.Millisecond)
			x.flood(20*time.Millisecond, map[byte][]float64{1: c.u, 2: c.v})
			got := x.flood(40*time.Millisecond, map[byte][]float64{1: c.u, 2: c.v})
			instances := 0.
			for w := range c.workers {
				instances = max(instances, float64(x.board(w).cat.instances(0)))
			}
			t.Logf("%.1f and %.1f Mb/s; %v instances; %d throttled", got[1], got[2], instances, x.counter("throttled"))
			for i, part := range c.parts {
				if v := got[byte(i+1)] / 1000; math.Abs(v-part) > .05 {
					t.Errorf("tenant %d has %.3f of a task, not %.3f", i, v, part)
				}
			}
		})
	}
}
