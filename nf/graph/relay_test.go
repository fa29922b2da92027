package graph_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/poll"
)

// relayed sends each frame on to the workers that it names, one after the other, and out
// from the last. A frame is: from which worker, its number there (8 bytes), how many
// workers, and which.
type relayed struct {
	held []*packet.Buf
	keep int // that many frames, for a breath
}

func relayKind() graph.Kind {
	return graph.Kind{
		Name: "relayed", In: []string{"in"}, Out: []string{"out"},
		Params:  []graph.Param{{Name: "keep", Default: "0"}, {Name: "new"}},
		Reasons: []counter.Def{{Name: "full", Help: "no room on the way to another worker"}},
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			a := &relayed{}
			if args["keep"] != "" {
				if _, err := fmt.Sscan(args["keep"], &a.keep); err != nil {
					return nil, err
				}
			}
			return a, nil
		},
	}
}

const relayHead = 1 + 8 + 1

func (a *relayed) Push(c *graph.Ctx, _ int, b *packet.Batch) { a.send(c, b) }

func (a *relayed) Hooks() graph.Hooks { return graph.Hooks{Taken: a.taken} }

func (a *relayed) taken(c *graph.Ctx, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if x.Tag != 7 || x.Seq != uint64(x.Bytes()[0])+1 || x.Verdict != packet.Rewritten || !x.Counted {
			panic(fmt.Sprintf("a frame was taken with %+v", x.Meta))
		}
	}
	a.send(c, b)
}

func (a *relayed) send(c *graph.Ctx, b *packet.Batch) {
	for _, x := range b.Bufs() {
		p := x.Bytes()
		n := p[relayHead-1]
		switch {
		case n > 0:
			p[relayHead-1]--
			x.Tag, x.Seq, x.Verdict = 7, uint64(p[0])+1, packet.Rewritten
			if !c.Hand(int(p[relayHead+int(n)-1]), x) {
				c.Drop(x, 0)
			}
		case len(a.held) < a.keep:
			a.held = append(a.held, x)
			c.Wake(c.Now() + 1)
		default:
			c.Emit(0, x)
		}
	}
}

func (a *relayed) Tick(c *graph.Ctx) clock.Time {
	a.Stop(c)
	return clock.Never
}

func (a *relayed) Held() int { return len(a.held) }

func (a *relayed) Stop(c *graph.Ctx) {
	for _, x := range a.held {
		c.Emit(0, x)
	}
	a.held = a.held[:0]
}

// relayFrame is a frame of a worker with a number, as long as it says, that goes by others.
func relayFrame(p []byte, from int, number uint64, by ...byte) []byte {
	p[0] = byte(from)
	binary.BigEndian.PutUint64(p[1:], number)
	p[relayHead-1] = byte(len(by))
	for i, w := range by {
		p[relayHead+len(by)-1-i] = w
	}
	return p
}

// source is a queue that yields frames of its worker, and checks what it is given: of
// frames that came from one worker straight to this one the order is kept.
type source struct {
	pool    *packet.Pool
	worker  int
	workers int
	rand    *rand.Rand
	left    int
	next    uint64
	got     int
	last    map[int]uint64
	wrong   atomic.Pointer[string]
}

func (s *source) Name() string                                     { return fmt.Sprint("s:", s.worker) }
func (s *source) Pool() *packet.Pool                               { return s.pool }
func (s *source) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (s *source) Stats() port.Stats                                { return port.Stats{} }
func (s *source) Close() error                                     { return nil }

func (s *source) Rx(b *packet.Batch) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for s.left > 0 && n < 16 && s.rand.IntN(8) > 0 {
		x := s.pool.Get()
		if x == nil {
			break
		}
		var frame [1500]byte
		size := 64 + s.rand.IntN(2)*s.rand.IntN(1400)
		// Mostly to one other; some are at home, some go on.
		by := []byte{byte(s.rand.IntN(s.workers))}
		switch s.rand.IntN(8) {
		case 0:
			by = nil
		case 1:
			by = append(by, byte(s.rand.IntN(s.workers)), byte(s.rand.IntN(s.workers)))
		}
		s.next++
		number := s.next
		if len(by) != 1 {
			number = 0 // in no order
		}
		x.SetBytes(relayFrame(frame[:size], s.worker, number, by...))
		b.Add(x)
		s.left--
		n++
	}
	return n, nil
}

func (s *source) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		p := x.Bytes()
		from, number := int(p[0]), binary.BigEndian.Uint64(p[1:])
		if x.Pool() != s.pool || from >= s.workers || number != 0 && number <= s.last[from] {
			text := fmt.Sprintf("worker %d sends number %d of worker %d after %d (of its pool: %v)", s.worker, number, from, s.last[from], x.Pool() == s.pool)
			s.wrong.CompareAndSwap(nil, &text)
		}
		s.last[from] = max(s.last[from], number)
		s.got++
		x.Put()
	}
	b.Shift(n)
	return n, nil
}

func relaySpec(new string) *graph.Spec {
	return &graph.Spec{
		Ports: map[string]graph.PortSpec{"s": {Kind: "test"}},
		Apps:  map[string]graph.AppSpec{"r": {Kind: "relayed", Args: graph.Args{"new": new}}},
		Links: []string{"s.out -> r.in", "r.out -> s.in"},
	}
}

// relays is an instance of so many workers, whose queues yield so many frames each.
func relays(t testing.TB, workers, frames, slots int, seed uint64) (*graph.Instance, []*source) {
	t.Helper()
	var all []*source
	ports := map[string][]port.Port{}
	for w := range workers {
		pool, err := packet.NewPool(slots, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &source{pool: pool, worker: w, workers: workers, rand: rand.New(rand.NewPCG(seed, uint64(w))), left: frames, last: map[int]uint64{}}
		all = append(all, s)
		ports["s"] = append(ports["s"], s)
	}
	inst, err := graph.New(graph.Config{Spec: relaySpec("0"), Kinds: []graph.Kind{relayKind()}, Ports: ports, Clock: clock.NewWall(), Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return inst, all
}

// counted are the app's counters by name.
func counted(inst *graph.Instance, node string) map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range inst.Counters() {
		if c.Node == node {
			out[c.Name] += c.Value
		}
	}
	return out
}

// closed checks an instance that has ended: nothing is lost, doubled, overtaken or kept.
func closed(t *testing.T, inst *graph.Instance, all []*source) {
	t.Helper()
	for range 2 { // with what was left, and without
		if err := inst.Conservation(); err != nil {
			t.Error(err)
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := inst.Held(); n != 0 {
		t.Errorf("%d are held after the end", n)
	}
	var in, out, dropped uint64
	for _, c := range inst.Counters() {
		switch {
		case c.Node == "s" && c.Group == "frames" && c.Name == "in":
			in = c.Value
		case c.Node == "s" && c.Group == "frames" && c.Name == "out":
			out = c.Value
		case c.Group == "frames" && c.Name == "dropped":
			dropped += c.Value
		}
	}
	got := 0
	for _, s := range all {
		got += s.got
		if s.pool.InUse() != 0 {
			t.Errorf("worker %d: %d buffers are still in use", s.worker, s.pool.InUse())
		}
		if x := s.wrong.Load(); x != nil {
			t.Error(*x)
		}
	}
	if int(out) != got {
		t.Errorf("%d received, %d transmitted, and %d came", in, out, got)
	}
	n := counted(inst, "r")
	if n["handed"] != n["taken"] {
		t.Errorf("%d were handed over, %d taken", n["handed"], n["taken"])
	}
}

// Workers that run to the end of their ports hand each other frames: all come out, in
// the order of each worker that handed them over.
func TestHandLive(t *testing.T) {
	for _, workers := range []int{2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			inst, all := relays(t, workers, 20_000, 512, uint64(workers))
			if err := inst.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := counted(inst, "r")
			if n["handed"] < 1000 || n["handed"] != n["taken"] {
				t.Errorf("%d were handed over, %d taken", n["handed"], n["taken"])
			}
			if inst.Held() != 0 {
				t.Errorf("%d are held at the end", inst.Held())
			}
			closed(t, inst, all)
		})
	}
}

// So they do while they are stopped and started again, and the app is replaced.
func TestHandChanges(t *testing.T) {
	inst, all := relays(t, 3, 1<<30, 256, 5)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- inst.Run(ctx) }()
		for range rnd.IntN(4) {
			p, err := inst.Plan(relaySpec(fmt.Sprint(rnd.IntN(3))))
			if err == nil {
				err = inst.Apply(p)
			}
			if err != nil {
				t.Error(err)
			}
			if err := inst.Conservation(); err != nil {
				t.Error(err)
			}
		}
		if i%2 == 0 {
			// Some work at least: the instance may not have begun.
			for n := counted(inst, "s")["in"]; counted(inst, "s")["in"] == n; {
				time.Sleep(time.Millisecond)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := inst.Conservation(); err != nil {
			t.Error(err)
		}
	}
	closed(t, inst, all)
}

// Driven by somebody else, with few buffers and full rings, the same holds, step by step.
func TestHandSteps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		workers := rapid.IntRange(2, 4).Draw(rt, "workers")
		slots := rapid.SampledFrom([]int{20, 64, 2000}).Draw(rt, "slots")
		inst, all := relays(t, workers, 1<<30, slots, rapid.Uint64().Draw(rt, "seed"))
		now := clock.Time(0)
		new := 0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now += 1000
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				new++
				p, err := inst.Plan(relaySpec(fmt.Sprint(new)))
				if err == nil {
					err = inst.Apply(p)
				}
				if err != nil {
					rt.Fatal(err)
				}
			case 1, 2, 3:
				// One worker alone, again and again: the rings to the others fill.
				w := rapid.IntRange(0, workers-1).Draw(rt, "worker")
				for range rapid.IntRange(1, 80).Draw(rt, "times") {
					var b packet.Batch
					if _, err := all[w].Rx(&b); err != nil {
						rt.Fatal(err)
					}
					if err := inst.PushTo(w, "s", now, &b); err != nil {
						rt.Fatal(err)
					}
				}
			default:
				if _, err := inst.Step(now); err != nil {
					rt.Fatal(err)
				}
			}
			if err := inst.Conservation(); err != nil {
				rt.Fatal(err)
			}
			n := counted(inst, "r")
			if waiting := n["handed"] - n["taken"]; new == 0 && int(waiting) != inst.Held() {
				rt.Fatalf("%d are held, and %d handed over and not taken", inst.Held(), waiting)
			}
			if tick := inst.NextTick(); inst.Held() > 0 && tick == clock.Never {
				rt.Fatalf("%d are held, and nobody is to breathe", inst.Held())
			}
		}
		closed(t, inst, all)
	})
}

// sleeper is a queue that never has a frame, and sleeps for as long as nobody wakes it,
// however short a sleep was meant.
type sleeper struct {
	source
	fd     int
	set    poll.Set
	sleeps atomic.Bool
}

func (s *sleeper) Rx(*packet.Batch) (int, error) { return 0, nil }
func (s *sleeper) FD() int                       { return s.fd }
func (s *sleeper) WaitAny(ctx context.Context, others []port.Port, _ clock.Duration) (bool, error) {
	s.sleeps.Store(true)
	defer s.sleeps.Store(false)
	return s.set.Wait(ctx, clock.NewWall(), time.Hour, s, others)
}

// A worker that sleeps is woken by what is handed to it, by an order from outside, and at
// the end.
func TestHandWakes(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	ports := map[string][]port.Port{}
	var all []*sleeper
	for w := range 2 {
		pool, err := packet.NewPool(64, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &sleeper{source: source{pool: pool, worker: w, workers: 2, last: map[int]uint64{}}, fd: pipe[0]}
		all = append(all, s)
		ports["s"] = append(ports["s"], s)
	}
	inst, err := graph.New(graph.Config{Spec: relaySpec("0"), Kinds: []graph.Kind{relayKind()}, Ports: ports, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- inst.Run(ctx) }()
	for i := range 20 {
		// Half of the time the workers sleep, or are about to, at least.
		for i%2 == 0 && !(all[0].sleeps.Load() && all[1].sleeps.Load()) {
			time.Sleep(time.Millisecond)
		}
		if err := inst.Inject("r", "in", 0, relayFrame(make([]byte, 64), 0, uint64(i+1), 1, 0, 1)); err != nil {
			t.Fatal(err)
		}
		for counted(inst, "s")["out"] != uint64(i+1) {
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	closed(t, inst, []*source{&all[0].source, &all[1].source})
}

// round has worker 0 receive a batch of a frame, and worker 1 breathe.
func round(t testing.TB, inst *graph.Instance, all []*source, frame []byte, batch, none *packet.Batch) {
	for range packet.MaxBatch {
		x := all[0].pool.Get()
		x.SetBytes(frame)
		batch.Add(x)
	}
	if err := inst.PushTo(0, "s", 1, batch); err != nil {
		t.Fatal(err)
	}
	if err := inst.PushTo(1, "s", 1, none); err != nil {
		t.Fatal(err)
	}
}

// Nothing is allocated on the way from worker to worker.
func TestHandAllocates(t *testing.T) {
	inst, all := relays(t, 2, 0, 512, 9)
	frame := relayFrame(make([]byte, 300), 0, 0, 1, 0, 1)
	var batch, none packet.Batch
	if n := testing.AllocsPerRun(200, func() { round(t, inst, all, frame, &batch, &none) }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
	if n := counted(inst, "r"); n["taken"] < 200*packet.MaxBatch {
		t.Errorf("%d were taken", n["taken"])
	}
	closed(t, inst, all)
}

// StepOne takes a breath of one worker, and NextTickOf says when a worker has to look at what was handed to it.
func TestStepOne(t *testing.T) {
	inst, all := relays(t, 2, 0, 512, 3)
	var batch packet.Batch
	x := all[0].pool.Get()
	x.SetBytes(relayFrame(make([]byte, 64), 0, 0, 1))
	batch.Add(x)
	if err := inst.PushTo(0, "s", 1, &batch); err != nil {
		t.Fatal(err)
	}
	if a, b := inst.NextTickOf(0), inst.NextTickOf(1); a != clock.Never || b == clock.Never {
		t.Errorf("worker 0 looks again at %d, and worker 1 at %d", a, b)
	}
	for worker, taken := range []uint64{0, 1} {
		if _, err := inst.StepOne(worker, 2); err != nil {
			t.Fatal(err)
		}
		if n := counted(inst, "r"); n["taken"] != taken {
			t.Errorf("after a breath of worker %d %d frames are taken", worker, n["taken"])
		}
	}
	closed(t, inst, all)
}

// BenchmarkHand is what it costs to hand a frame over: both workers' part of it, on one
// processor, in batches of 64.
func BenchmarkHand(b *testing.B) {
	for _, size := range []int{64, 1500} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			inst, all := relays(b, 2, 0, 1024, 1)
			frame := relayFrame(make([]byte, size), 0, 0, 1)
			here := relayFrame(make([]byte, size), 0, 0)
			play := func(frame []byte, n int) time.Duration {
				var batch, none packet.Batch
				start := time.Now()
				for range n {
					round(b, inst, all, frame, &batch, &none)
				}
				return time.Since(start)
			}
			rounds := max(b.N/packet.MaxBatch, 1)
			b.ResetTimer()
			over := play(frame, rounds)
			b.StopTimer()
			alone := play(here, rounds)
			b.ReportMetric(float64(over-alone)/float64(rounds*packet.MaxBatch), "ns/handed")
		})
	}
}
