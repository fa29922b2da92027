package graph_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// stamp adds a tag byte to each frame, can be reconfigured, counts, and is
// flushed.
type stamp struct {
	tag         byte
	seen        int
	flushed     int
	seenAtFlush int
}

func (a *stamp) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		a.seen++
		p, ok := x.Append(1)
		if !ok {
			c.Drop(x, stampLong)
			continue
		}
		p[len(p)-1] = a.tag
		c.Trace(x, 7, uint64(a.tag))
		c.Mark(x, packet.Rewritten, stampStamped)
		c.Count(0, 1)
		c.Emit(0, x)
	}
}

const (
	stampLong graph.Reason = iota
	stampStamped
)

func (*stamp) Takes(graph.Args) bool { return true }
func (a *stamp) Reconfigure(args graph.Args) error {
	if args["tag"] == "!" {
		panic("asked to")
	}
	t, err := tag(args)
	if err == nil {
		a.tag = t
	}
	return err
}

func (a *stamp) Flush(*graph.Ctx) { a.flushed, a.seenAtFlush = a.flushed+1, a.seen }
func (a *stamp) Report() any      { return map[string]int{"seen": a.seen} }
func describeStamp(_ graph.App, _ uint16, args [4]uint64) string {
	return fmt.Sprintf("stamp %c", rune(args[0]))
}
func (a *stamp) Wants() port.Filter {
	return port.Filter{RoCE: true, Hosts: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, a.tag})}}
}

func tag(args graph.Args) (byte, error) {
	switch s := args["tag"]; len(s) {
	case 0:
		return '-', nil
	case 1:
		return s[0], nil
	default:
		return 0, fmt.Errorf("tag %q must be one character", s)
	}
}

// fixed is stamp without Reconfigure.
type fixed struct{ s stamp }

func (a *fixed) Push(c *graph.Ctx, in int, b *packet.Batch) { a.s.Push(c, in, b) }

// hold keeps up to 4 frames.
type hold struct{ q []*packet.Buf }

func (a *hold) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if len(a.q) == 4 {
			c.Emit(0, a.q[0])
			a.q = append(a.q[:0], a.q[1:]...)
		}
		a.q = append(a.q, x)
	}
}
func (a *hold) Held() int { return len(a.q) }
func (a *hold) Stop(c *graph.Ctx) {
	for _, x := range a.q {
		c.Emit(0, x)
	}
	a.q = nil
}

// hoard keeps everything, and gives up nothing.
type hoard struct{ n int }

func (a *hoard) Push(_ *graph.Ctx, _ int, b *packet.Batch) { a.n += b.Len() }
func (a *hoard) Held() int                                 { return a.n }
func (a *hoard) Stop(*graph.Ctx)                           {}

// twin sends each frame twice, the second in a buffer from the pool itself.
type twin struct{}

func (twin) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		y := x.Pool().Get()
		y.SetBytes(x.Bytes())
		c.Emit(0, x)
		c.Emit(0, y)
	}
}

// beat makes a frame every 3 ms.
type beat struct{}

func (beat) Push(*graph.Ctx, int, *packet.Batch) {}
func (beat) Tick(c *graph.Ctx) clock.Time {
	if x := c.Get(); x != nil {
		c.Emit(0, x)
	}
	return c.Now().Add(3 * time.Millisecond)
}

// fork sends by the first byte: even left, odd right, 'p' punted, '!' panics,
// '?' forgets the frame.
type fork struct{}

func (fork) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		switch p := x.Bytes(); {
		case p[0] == 'p':
			c.Punt(x, 0)
		case p[0] == '!':
			panic("asked to")
		case p[0] == '?':
		default:
			c.Emit(int(p[0]&1), x)
		}
	}
}

// delay keeps a batch for 5 µs.
type delay struct {
	q  []*packet.Buf
	at clock.Time
}

func (a *delay) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	a.q, a.at = append(a.q, b.Bufs()...), c.Now().Add(5*time.Microsecond)
	c.Wake(a.at)
}

func (a *delay) Tick(c *graph.Ctx) clock.Time {
	if len(a.q) > 0 && a.at <= c.Now() {
		for _, x := range a.q {
			c.Emit(0, x)
		}
		a.q = nil
	}
	if len(a.q) > 0 {
		return a.at
	}
	return clock.Never
}

func (a *delay) Held() int { return len(a.q) }
func (a *delay) Stop(c *graph.Ctx) {
	for _, x := range a.q {
		c.Emit(0, x)
	}
	a.q = nil
}

func kinds() []graph.Kind {
	params := []graph.Param{{Name: "tag", Default: "-", Help: "one character"}}
	reasons := []counter.Def{stampLong: {Name: "too-long"}, stampStamped: {Name: "stamped"}}
	counters := []counter.Def{{Name: "stamps"}}
	return append(graph.Builtin(),
		graph.Kind{Name: "stamp", In: []string{"in", "alt"}, Out: []string{"out"}, Params: params, Reasons: reasons, Counters: counters, Describe: describeStamp,
			New: func(_ graph.Env, args graph.Args) (graph.App, error) {
				t, err := tag(args)
				return &stamp{tag: t}, err
			}},
		graph.Kind{Name: "fixed", In: []string{"in", "alt"}, Out: []string{"out"}, Params: params, Reasons: reasons, Counters: counters, Describe: describeStamp,
			New: func(_ graph.Env, args graph.Args) (graph.App, error) {
				t, err := tag(args)
				return &fixed{stamp{tag: t}}, err
			}},
		graph.Kind{Name: "hold", In: []string{"in"}, Out: []string{"out"},
			New: func(graph.Env, graph.Args) (graph.App, error) { return &hold{q: make([]*packet.Buf, 0, 4)}, nil }},
		graph.Kind{Name: "hoard", In: []string{"in"}, New: func(graph.Env, graph.Args) (graph.App, error) { return &hoard{}, nil }},
		graph.Kind{Name: "twin", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) { return twin{}, nil }},
		graph.Kind{Name: "beat", Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) { return beat{}, nil }},
		graph.Kind{Name: "fork", In: []string{"in"}, Out: []string{"left", "right"}, Reasons: []counter.Def{{Name: "asked"}},
			New: func(graph.Env, graph.Args) (graph.App, error) { return fork{}, nil }},
		graph.Kind{Name: "delay", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) { return &delay{}, nil }},
		nestKind(),
	)
}

// bench joins named ports to the test by in-memory wires of one pool.
type bench struct {
	t     testing.TB
	clk   *clock.Manual
	pool  *packet.Pool
	far   map[string]*mem.Port
	ports map[string][]port.Port
	inst  *graph.Instance
}

func newBench(t testing.TB, spec *graph.Spec, depth int) *bench {
	t.Helper()
	return newBenchOf(t, spec, depth, kinds())
}

// newBenchOf is newBench with apps of those kinds.
func newBenchOf(t testing.TB, spec *graph.Spec, depth int, kinds []graph.Kind) *bench {
	t.Helper()
	pool, err := packet.NewPool(4096, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := &bench{t: t, clk: clock.NewManual(1e9), pool: pool, far: map[string]*mem.Port{}, ports: map[string][]port.Port{}}
	for n := range spec.Ports {
		near, far := mem.NewWire(n, n+"-far", pool, depth, x.clk)
		x.far[n], x.ports[n] = far, []port.Port{near}
	}
	x.inst, err = graph.New(graph.Config{Spec: spec, Kinds: kinds, Ports: x.ports, Clock: x.clk})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.conserve()
		if t.Failed() {
			t.Log(x.inst.Counters())
		}
	})
	return x
}

func (x *bench) conserve() {
	x.t.Helper()
	if err := x.inst.Conservation(); err != nil {
		x.t.Error(err)
	}
}

// send puts frames on the wire to a port.
func (x *bench) send(name string, frames ...string) {
	x.t.Helper()
	for _, f := range frames {
		var b packet.Batch
		p := x.pool.Get()
		p.SetBytes([]byte(f))
		b.Add(p)
		if n, err := x.far[name].Tx(&b); n != 1 || err != nil {
			x.t.Fatalf("send on %s: %d, %v", name, n, err)
		}
	}
}

func (x *bench) step() {
	x.t.Helper()
	x.clk.Advance(time.Microsecond)
	if _, err := x.inst.Step(x.clk.Now()); err != nil {
		x.t.Fatal(err)
	}
}

// recv takes what a port has sent.
func (x *bench) recv(name string) []string {
	x.t.Helper()
	var out []string
	for {
		var b packet.Batch
		n, err := x.far[name].Rx(&b)
		if err != nil && !errors.Is(err, io.EOF) {
			x.t.Fatal(err)
		}
		if n == 0 {
			return out
		}
		for _, p := range b.Bufs() {
			out = append(out, string(p.Bytes()))
		}
		b.PutAll()
	}
}

func (x *bench) count(node, name string) uint64 {
	x.t.Helper()
	for _, c := range x.inst.Counters() {
		if c.Node == node && c.Name == name {
			return c.Value
		}
	}
	x.t.Fatalf("no counter %s.%s", node, name)
	return 0
}

// spring is a port that yields frames without end, of its own pool, until it
// is told to dry up; what it sends goes back to the pool. One worker uses it.
type spring struct {
	name     string
	pool     *packet.Pool
	left     int
	missed   uint64
	missEach uint64 // added to missed by every Rx
	stats    port.Stats
}

func newSpring(t testing.TB, name string, frames int) *spring {
	t.Helper()
	pool, err := packet.NewPool(1024, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &spring{name: name, pool: pool, left: frames}
}

func (s *spring) Name() string       { return s.name }
func (s *spring) Pool() *packet.Pool { return s.pool }
func (s *spring) Rx(b *packet.Batch) (int, error) {
	n := 0
	s.missed += s.missEach
	for s.left > 0 && !b.Full() {
		x := s.pool.Get()
		if x == nil {
			break
		}
		x.SetBytes([]byte{byte(s.left), 'x'})
		b.Add(x)
		s.left--
		n++
	}
	if s.left == 0 {
		return n, io.EOF
	}
	return n, nil
}
func (s *spring) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	b.PutAll()
	return n, nil
}
func (s *spring) Wait(ctx context.Context, d clock.Duration) error { return ctx.Err() }
func (s *spring) Stats() port.Stats                                { return s.stats }
func (s *spring) Close() error                                     { return nil }
func (s *spring) Missed() uint64                                   { return s.missed }
