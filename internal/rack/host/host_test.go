package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// talker answers every frame with the same frame, addresses exchanged. When its timer is due, it sends a
// first frame.
type talker struct {
	pool     *packet.Pool
	due      clock.Time
	every    clock.Duration
	left     int
	out      []*packet.Buf
	got      int
	answer   bool
	dst, src byte
}

func (e *talker) Input(now clock.Time, b *packet.Buf) {
	e.got++
	if e.answer {
		x := b.Bytes()
		for i := range 6 {
			x[i], x[6+i] = x[6+i], x[i]
		}
		e.out = append(e.out, b)
		return
	}
	b.Put()
}

func (e *talker) Output(now clock.Time, out *packet.Batch) {
	for len(e.out) > 0 && out.Add(e.out[0]) {
		e.out = e.out[:copy(e.out, e.out[1:])]
	}
}

func (e *talker) Deadline() clock.Time { return e.due }

func (e *talker) Tick(now clock.Time) {
	if e.left == 0 {
		e.due = clock.Never
		return
	}
	e.left--
	e.due = now.Add(e.every)
	if b := e.pool.Get(); b != nil {
		f := make([]byte, 60)
		f[5], f[11] = e.dst, e.src
		b.SetBytes(f)
		e.out = append(e.out, b)
	}
}

type counterApp struct {
	steps int
	due   clock.Time
}

func (a *counterApp) Step(now clock.Time) bool {
	a.steps++
	if now >= a.due {
		a.due = clock.Never
		return true
	}
	return false
}

func (a *counterApp) Deadline() clock.Time { return a.due }

func newPool(t testing.TB) *packet.Pool {
	p, err := packet.NewPool(512, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSim(t *testing.T) {
	clk, pool := clock.NewManual(0), newPool(t)
	a, b := mem.NewWire("a", "b", pool, 8, clk)
	x := &talker{pool: pool, due: 10, every: time.Millisecond, left: 100, dst: 2, src: 1}
	y := &talker{pool: pool, due: clock.Never, answer: true}
	app := &counterApp{due: clock.Time(time.Second)}
	s := Sim{Clock: clk, Workers: []Worker{NewNode(a, x, app), NewNode(b, y, nil)}}
	if err := s.Run(func() bool { return x.got == 100 }, time.Second); err != nil {
		t.Fatal(err)
	}
	if now := clk.Now(); now < clock.Time(99*time.Millisecond) || now > clock.Time(101*time.Millisecond) {
		t.Errorf("100 talks took until %v", now)
	}
	if y.got != 100 || pool.InUse() != 0 {
		t.Errorf("%d frames arrived, %d are left", y.got, pool.InUse())
	}
	if app.steps > 1000 {
		t.Errorf("%d breaths for 100 talks: the clock does not leap", app.steps)
	}
	// The application's deadline is kept, and then nothing can happen.
	if err := s.Run(func() bool { return false }, time.Hour); !errors.Is(err, ErrStuck) || app.due != clock.Never {
		t.Errorf("%v, application due %v", err, app.due)
	}
	x.left, x.due = 1<<30, 0
	if err := s.Run(func() bool { return false }, time.Millisecond); !errors.Is(err, ErrLate) {
		t.Errorf("%v", err)
	}
}

// When a wire is full, the node keeps the frames. No frame is lost.
func TestBackPressure(t *testing.T) {
	clk, pool := clock.NewManual(0), newPool(t)
	a, b := mem.NewWire("a", "b", pool, 4, clk)
	x := &talker{pool: pool, due: clock.Never}
	n := NewNode(a, x, nil)
	for i := range 100 {
		f := pool.Get()
		f.SetBytes([]byte{byte(i), 19: 0})
		x.out = append(x.out, f)
	}
	var got []byte
	for range 100 {
		if _, err := n.Breath(0); err != nil {
			t.Fatal(err)
		}
		var rx packet.Batch
		_, _ = b.Rx(&rx)
		for _, f := range rx.Bufs() {
			got = append(got, f.Bytes()[0])
		}
		rx.PutAll()
	}
	for i := range got {
		if got[i] != byte(i) {
			t.Fatalf("frame %d is %d", i, got[i])
		}
	}
	if len(got) != 100 || n.Held() != 0 || pool.InUse() != 0 {
		t.Errorf("%d of 100 arrived, %d held, %d in use", len(got), n.Held(), pool.InUse())
	}
}

func TestBridge(t *testing.T) {
	clk, pool := clock.NewManual(0), newPool(t)
	var near []*mem.Port
	var far []port.Port
	for range 3 {
		a, b := mem.NewWire("near", "far", pool, 16, clk)
		near, far = append(near, a), append(far, b)
	}
	g := NewBridge(far...)
	send := func(from int, dst, src byte) []int {
		t.Helper()
		f := pool.Get()
		f.SetBytes([]byte{5: dst, 11: src, 59: 0})
		var b packet.Batch
		b.Add(f)
		if _, err := near[from].Tx(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Breath(0); err != nil {
			t.Fatal(err)
		}
		var to []int
		for i, p := range near {
			var rx packet.Batch
			_, _ = p.Rx(&rx)
			for _, f := range rx.Bufs() {
				if x := f.Bytes(); x[5] != dst || x[11] != src || len(x) != 60 {
					t.Errorf("port %d got %x", i, x)
				}
				to = append(to, i)
			}
			rx.PutAll()
		}
		return to
	}
	is := func(got []int, want ...int) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("went to %v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("went to %v, want %v", got, want)
			}
		}
	}
	is(send(0, 2, 1), 1, 2) // unknown address: to all
	is(send(1, 1, 2), 0)    // learnt
	is(send(0, 2, 1), 1)
	is(send(2, 2, 1), 1) // 1 has moved
	is(send(1, 1, 2), 2)
	is(send(1, 2, 9)) // back where it came from
	if g.Dropped != 1 || g.Flooded != 1 || pool.InUse() != 0 {
		t.Errorf("dropped %d, flooded %d, in use %d", g.Dropped, g.Flooded, pool.InUse())
	}
	_ = near[2].Close()
	is(send(1, 1, 2))
	short := pool.Get()
	short.SetBytes([]byte{1, 2, 3})
	var b packet.Batch
	b.Add(short)
	_, _ = near[0].Tx(&b)
	if _, err := g.Breath(0); err != nil || pool.InUse() != g.Held() {
		t.Errorf("%v, in use %d, held %d", err, pool.InUse(), g.Held())
	}
}

// failing is a port that fails.
type failing struct {
	port.Port
	err error
}

func (f failing) Name() string                               { return "p" }
func (f failing) Rx(*packet.Batch) (int, error)              { return 0, f.err }
func (f failing) Tx(b *packet.Batch) (int, error)            { return 0, f.err }
func (f failing) Wait(context.Context, clock.Duration) error { return f.err }

func TestRunEnds(t *testing.T) {
	clk := clock.NewManual(0)
	boom := errors.New("boom")
	for _, c := range []struct {
		err, want error
	}{{io.EOF, nil}, {port.ErrClosed, nil}, {boom, boom}} {
		n := NewNode(failing{err: c.err}, &talker{due: clock.Never}, nil)
		if err := n.Run(context.Background(), clk); !errors.Is(err, c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
		if err := Spin(context.Background(), clk, n); !errors.Is(err, c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := NewNode(failing{}, &talker{due: clock.Never}, nil).Run(ctx, clk); err != nil {
		t.Error(err)
	}
}

// Spin runs two nodes on one goroutine, under the wall clock.
func TestSpin(t *testing.T) {
	clk, pool := clock.NewWall(), newPool(t)
	a, b := mem.NewWire("a", "b", pool, 8, clk)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	x := &talker{pool: pool, due: 0, every: 10 * time.Microsecond, left: 200, dst: 2, src: 1}
	y := &talker{pool: pool, due: clock.Never, answer: true}
	stop := &stopper{done: func() bool { return x.got == 200 }, cancel: cancel}
	if err := Spin(ctx, clk, NewNode(a, x, nil), NewNode(b, y, nil), stop); err != nil {
		t.Fatal(err)
	}
	if x.got != 200 {
		t.Errorf("%d of 200 answers", x.got)
	}
}

type stopper struct {
	done   func() bool
	cancel func()
}

func (s *stopper) Breath(clock.Time) (int, error) {
	if s.done() {
		s.cancel()
	}
	return 0, nil
}
func (s *stopper) Deadline() clock.Time { return clock.Never }

func TestNothingIsAllocated(t *testing.T) {
	clk, pool := clock.NewManual(0), newPool(t)
	a, b := mem.NewWire("a", "b", pool, 8, clk)
	c, d := mem.NewWire("c", "d", pool, 8, clk)
	x := &talker{pool: pool, due: clock.Never, answer: true, out: make([]*packet.Buf, 0, 8)}
	n, g := NewNode(a, x, nil), NewBridge(b, c)
	frame := bytes.Repeat([]byte{0}, 60)
	frame[5], frame[11] = 1, 2
	var batch packet.Batch
	breath := func() {
		f := pool.Get()
		f.SetBytes(frame)
		batch.Reset()
		batch.Add(f)
		_, _ = d.Tx(&batch)
		_, _ = g.Breath(0)
		_, _ = n.Breath(0)
		_, _ = g.Breath(0)
		batch.Reset()
		if k, _ := d.Rx(&batch); k != 1 {
			t.Fatal("no answer")
		}
		batch.PutAll()
	}
	if k := testing.AllocsPerRun(100, breath); k != 0 {
		t.Errorf("%v allocations a breath", k)
	}
}
