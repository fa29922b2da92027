package xdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/track"
	"github.com/quillon/quillon/nf/vxlan"
)

// loopback is the interface that the kernel's test runs receive at.
const loopback = 1

// tested is a Kernel whose frames come from test runs.
type tested struct {
	*Kernel
	t       testing.TB
	mu      sync.Mutex // of test runs: the interface is that of one port
	watched bool
	at      atomic.Int64 // what time it is, when the program is told
}

// tick is that of the kernel's coarse clock.
const tick = clock.Time(4 * time.Millisecond)

// Clock implements offload.Kernel.
func (e *tested) Clock() int64 {
	if e.told != nil {
		return e.at.Load()
	}
	return e.Kernel.Clock()
}

// tell tells what time it is.
func (x *box) tell(at clock.Time) {
	if x.e != nil {
		x.e.at.Store(int64(at))
		atomic.StoreInt64(&x.e.told[0], int64(at-at%tick))
		atomic.StoreInt64(&x.e.told[1], int64(at))
	}
}

func (e *tested) Port(name string) (int, int) {
	if n := slices.Index([]string{"pa", "pb"}, name); n >= 0 {
		return n, 1514
	}
	return -1, 0
}
func (e *tested) Watched() bool  { return e.watched }
func (e *tested) Left() []string { return nil }

// run runs a frame that came in at a port; false: it is the graph's.
func (e *tested) run(port int, frame []byte) (out []byte, ran bool) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Turn(port, loopback, true)
	opt := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	before := slices.Clone(frame)
	code, err := e.prog.Run(opt)
	if err != nil {
		e.t.Fatal(err)
	}
	switch code {
	case xdpRedirect:
		return opt.DataOut, true
	case xdpDrop: // there is no other program
		if !bytes.Equal(opt.DataOut, before) {
			e.t.Fatalf("a frame that is not run is changed:\n%x\n%x", before, opt.DataOut)
		}
		return nil, false
	}
	e.t.Fatalf("code %d", code)
	return nil, false
}

// queue is a port that yields nothing and keeps what is sent to it.
type queue struct {
	name string
	pool *packet.Pool
	sent [][]byte
}

func (q *queue) Name() string                                     { return q.name }
func (q *queue) Pool() *packet.Pool                               { return q.pool }
func (q *queue) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (q *queue) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (q *queue) Stats() port.Stats                                { return port.Stats{} }
func (q *queue) Close() error                                     { return nil }
func (q *queue) Tx(b *packet.Batch) (int, error) {
	for _, y := range b.Bufs() {
		q.sent = append(q.sent, slices.Clone(y.Bytes()))
	}
	n := b.Len()
	b.PutAll()
	return n, nil
}

// box is a graph, and what runs flows in front of it.
type box struct {
	t      testing.TB
	inst   *graph.Instance
	queues [][2]*queue // by worker
	ports  [2]*queue   // of the first one
	e      *tested     // nil: nothing does
	ran    int
}

// spec is a chain of apps between pa and pb.
func spec(apps []string, args map[string]graph.Args) *graph.Spec {
	s := &graph.Spec{Ports: map[string]graph.PortSpec{"pa": {Kind: "test"}, "pb": {Kind: "test"}}, Apps: map[string]graph.AppSpec{}}
	a, b := "pa.out", "pa.in"
	for _, name := range apps {
		on := graph.Args{"offload": "on"}
		maps.Copy(on, args[name])
		s.Apps[name] = graph.AppSpec{Kind: strings.TrimRight(name, "0123456789"), Args: on}
		s.Links = append(s.Links, a+" -> "+name+".a", name+".a -> "+b)
		a, b = name+".b", name+".b"
	}
	s.Links = append(s.Links, a+" -> pb.in", "pb.out -> "+b)
	return s
}

func newBox(t testing.TB, s *graph.Spec, entries int) *box { return newBoxOf(t, s, 1, entries, false) }

// newBoxOf makes a box of so many workers. With told what runs flows is told what time it is.
func newBoxOf(t testing.TB, s *graph.Spec, workers, entries int, told bool) *box {
	t.Helper()
	x := &box{t: t}
	cfg := graph.Config{Spec: s, Kinds: []graph.Kind{*firewall.Kind(), *napt.Kind(), *vxlan.Kind()}, Ports: map[string][]port.Port{}, Seed: 1}
	pool, err := packet.NewPool(512, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	x.queues = make([][2]*queue, workers)
	for n := range x.queues {
		if n > 0 {
			if pool, err = packet.NewPool(512, 2048, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i, name := range []string{"pa", "pb"} {
			x.queues[n][i] = &queue{name: name, pool: pool}
			cfg.Ports[name] = append(cfg.Ports[name], x.queues[n][i])
		}
	}
	x.ports = x.queues[0]
	if entries > 0 {
		cfg.Ahead = func(map[string][]port.Port, int) (offload.Engine, error) {
			k, err := newKernel(entries, told)
			if err != nil {
				return nil, err
			}
			x.e = &tested{Kernel: k, t: t}
			return x.e, errors.Join(k.SetPort(0, loopback), k.SetPort(1, loopback))
		}
	}
	if x.inst, err = graph.New(cfg); err != nil {
		t.Fatal(err)
	}
	x.inst.Lead()
	t.Cleanup(func() {
		if err := errors.Join(x.inst.Conservation(), x.inst.Close()); err != nil {
			t.Error(err)
		}
	})
	return x
}

// now is the kernel's time.
func now() clock.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return clock.Time(ts.Nano())
}

// frame gives the box a frame at a time, and returns what leaves: by port.
func (x *box) frame(at clock.Time, port int, f []byte) (out [2][][]byte) {
	x.t.Helper()
	if x.e != nil {
		if y, ran := x.e.run(port, f); ran {
			x.ran++
			out[1-port] = [][]byte{y}
			return out
		}
	}
	return x.give(x.steer(f), at, port, f)
}

// steer is the worker that gets a frame: as an interface with several queues has it, by a hash that both directions need not have in common.
func (x *box) steer(f []byte) int {
	return int(crc32.ChecksumIEEE(f[min(26, len(f)):min(38, len(f))])) % len(x.queues)
}

// give gives a worker a frame.
func (x *box) give(worker int, at clock.Time, port int, f []byte) [2][][]byte {
	x.t.Helper()
	q := &x.queues[worker]
	q[0].sent, q[1].sent = nil, nil
	var b packet.Batch
	y := q[port].pool.Get()
	if y == nil || !y.SetBytes(f) || !b.Add(y) {
		x.t.Fatal("no room for a frame")
	}
	if err := x.inst.PushTo(worker, q[port].name, at, &b); err != nil {
		x.t.Fatal(err)
	}
	return [2][][]byte{q[0].sent, q[1].sent}
}

// breathe gives each worker a breath without frames.
func (x *box) breathe(at clock.Time) {
	x.t.Helper()
	for n := range x.queues {
		x.breatheAt(n, at)
	}
}

func (x *box) breatheAt(worker int, at clock.Time) {
	x.t.Helper()
	if err := x.inst.PushTo(worker, "pa", at, new(packet.Batch)); err != nil {
		x.t.Fatal(err)
	}
}

// state is what the box knows, and has counted.
func (x *box) state(at clock.Time) (conns []track.Connection, counts map[string]uint64) {
	x.t.Helper()
	x.breathe(at)
	r, err := x.inst.Ahead() // counts what the kernel has run
	if err != nil {
		x.t.Fatal(err)
	}
	if x.e != nil && r.Outcomes[outcomeNames[broken]] > 0 {
		x.t.Fatalf("%v", r.Outcomes)
	}
	for name := range x.inst.Spec().Apps {
		_ = x.inst.Connections(name, func(*track.Connection) bool { return true }, func(c *track.Connection) error {
			conns = append(conns, *c)
			return nil
		}) // an error: it remembers none
	}
	slices.SortFunc(conns, func(a, b track.Connection) int { return strings.Compare(id(&a), id(&b)) })
	x.breathe(at) // commits what was counted
	counts = map[string]uint64{}
	for _, c := range x.inst.Counters() {
		counts[c.Node+" "+c.Group+" "+c.Name] = c.Value
	}
	for _, l := range x.inst.Runtime().Links {
		counts["link "+l.Link] = l.Packets
	}
	return conns, counts
}

func id(c *track.Connection) string {
	x := *c
	x.Left, x.Offload = 0, false
	return fmt.Sprint(x)
}
