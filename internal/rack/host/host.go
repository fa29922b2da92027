package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Endpoint is a state machine that speaks frames; rnic.NIC is one.
type Endpoint interface {
	// Input takes a received frame; the endpoint owns b afterwards.
	Input(now clock.Time, b *packet.Buf)
	// Output appends frames to out until out is full or no frame is due.
	Output(now clock.Time, out *packet.Batch)
	// Deadline returns the time at which Tick or Output has work without input.
	Deadline() clock.Time
	Tick(now clock.Time)
}

// App uses an endpoint: it polls completions and posts work.
type App interface {
	// Step does all work that can be done and reports whether there was any.
	Step(now clock.Time) bool
	// Deadline returns the time at which Step has work without a completion.
	Deadline() clock.Time
}

// Worker is something that breathes: a Node, a Bridge, a graph's worker.
type Worker interface {
	// Breath moves the frames that can be moved without waiting, and returns a number above 0 if it did anything.
	Breath(now clock.Time) (moved int, err error)
	// Deadline returns the time at which Breath has work without input.
	Deadline() clock.Time
}

// Node is an endpoint with its port and its application; App may be nil.
type Node struct {
	port port.Port
	ep   Endpoint
	app  App
	rx   packet.Batch
	tx   packet.Batch
}

// NewNode joins a port, an endpoint and an application.
func NewNode(p port.Port, ep Endpoint, app App) *Node { return &Node{port: p, ep: ep, app: app} }

// Port returns the node's port.
func (n *Node) Port() port.Port { return n.port }

// burst is the largest number of batches that a breath sends. It is small, so that the next
// breath looks at input soon.
const burst = 4

// Breath implements Worker.
func (n *Node) Breath(now clock.Time) (int, error) {
	n.rx.Reset()
	moved, err := n.port.Rx(&n.rx)
	for _, b := range n.rx.Bufs() {
		n.ep.Input(now, b)
	}
	n.rx.Reset()
	if err != nil {
		return moved, err
	}
	if n.ep.Deadline() <= now {
		n.ep.Tick(now)
	}
	if n.app != nil && n.app.Step(now) {
		moved++
	}
	for range burst {
		n.ep.Output(now, &n.tx)
		if n.tx.Len() == 0 {
			break
		}
		sent, err := n.port.Tx(&n.tx)
		moved += sent
		if err != nil {
			n.tx.PutAll()
			return moved, err
		}
		if n.tx.Len() > 0 {
			break
		}
	}
	return moved, nil
}

// Deadline implements Worker.
func (n *Node) Deadline() clock.Time {
	d := n.ep.Deadline()
	if n.app != nil {
		d = min(d, n.app.Deadline())
	}
	return d
}

// Held returns the number of frames that wait for room in the port.
func (n *Node) Held() int { return n.tx.Len() }

// longestWait bounds each wait, so that an App soon notices what other goroutines ask of it (a
// phase that starts or stops).
const longestWait = 2 * time.Millisecond

// Run calls n.Breath until ctx is done or the port is closed (it returns nil then), or the port fails.
func (n *Node) Run(ctx context.Context, clk clock.Clock) error {
	for ctx.Err() == nil {
		now := clk.Now()
		moved, err := n.Breath(now)
		if err != nil {
			return end(n.port.Name(), err)
		}
		if moved > 0 {
			continue
		}
		d := longestWait
		if at := n.Deadline(); at != clock.Never {
			d = min(d, at.Sub(now))
		}
		if d <= 0 {
			continue
		}
		if err := n.port.Wait(ctx, d); err != nil && ctx.Err() == nil {
			return end(n.port.Name(), err)
		}
	}
	return nil
}

func end(name string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, port.ErrClosed) {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Spin calls Breath of several workers in turn on this goroutine until ctx is done.
// If the port of a worker was closed, Spin ends without an error.
func Spin(ctx context.Context, clk clock.Clock, workers ...Worker) error {
	idle := 0
	for ctx.Err() == nil {
		moved, err := breathe(clk.Now(), workers)
		if err != nil {
			return end("rack", err)
		}
		if moved > 0 {
			idle = 0
			continue
		}
		if idle++; idle < 64 {
			runtime.Gosched()
			continue
		}
		d := longestWait
		if at := earliest(workers); at != clock.Never {
			d = min(d, at.Sub(clk.Now()))
		}
		if d > 0 {
			time.Sleep(d)
		}
	}
	return nil
}

// Watched calls run with a worker that it is to run beside its own. The worker calls look each millisecond, until
// ctx is done or look returns an error, which ends the context of run. Watched returns the error of run, and that
// of look or the cause of ctx's end.
func Watched(ctx context.Context, look func(now clock.Time) error, run func(ctx context.Context, watch Worker) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := run(ctx, &watch{look: look, stop: stop})
	return errors.Join(err, context.Cause(ctx))
}

// watch is the worker of Watched.
type watch struct {
	look func(now clock.Time) error
	stop context.CancelCauseFunc
	next clock.Time
}

// Breath implements Worker.
func (w *watch) Breath(now clock.Time) (int, error) {
	if now >= w.next {
		if err := w.look(now); err != nil {
			w.stop(err)
		}
		w.next = now.Add(time.Millisecond)
	}
	return 0, nil
}

// Deadline implements Worker.
func (w *watch) Deadline() clock.Time { return w.next }

// idleSpins is the number of idle rounds that SpinOn makes before it waits.
const idleSpins = 16

// SpinOn does what Spin does, for workers whose ports are files of the kernel: while there is nothing to do, it
// waits for a frame of any of ports. It locks its goroutine to a thread.
func SpinOn(ctx context.Context, clk clock.Clock, ports []port.Port, workers ...Worker) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	wait := func(d clock.Duration) error { return ports[0].Wait(ctx, d) }
	if len(ports) > 1 {
		all, ok := ports[0].(port.MultiWaiter)
		if !ok {
			return fmt.Errorf("%s cannot wait for several ports", ports[0].Name())
		}
		wait = func(d clock.Duration) error {
			_, err := all.WaitAny(ctx, ports[1:], d)
			return err
		}
	}
	idle := 0
	for ctx.Err() == nil {
		now := clk.Now()
		moved, err := breathe(now, workers)
		if err != nil {
			return end("rack", err)
		}
		if moved > 0 {
			idle = 0
			continue
		}
		if idle++; idle < idleSpins {
			continue
		}
		d := longestWait
		if at := earliest(workers); at != clock.Never {
			d = min(d, at.Sub(now))
		}
		if d <= 0 {
			continue
		}
		if err := wait(d); err != nil && ctx.Err() == nil {
			return end("rack", err)
		}
	}
	return nil
}

func breathe(now clock.Time, workers []Worker) (int, error) {
	moved := 0
	for _, w := range workers {
		n, err := w.Breath(now)
		moved += n
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

func earliest(workers []Worker) clock.Time {
	at := clock.Never
	for _, w := range workers {
		at = min(at, w.Deadline())
	}
	return at
}

// ErrStuck is returned by Sim.Run when nothing will ever happen again.
var ErrStuck = errors.New("nothing moves and no deadline is set")

// ErrLate is returned by Sim.Run when its time is over.
var ErrLate = errors.New("virtual time is over")

// Sim runs workers in virtual time.
type Sim struct {
	Clock *clock.Manual
	// Hop is the time by which the clock advances after every round of breaths; 0 means 1 us.
	Hop     clock.Duration
	Workers []Worker
}

// Run calls Breath of all workers until done returns true, and returns nil then. It returns ErrLate after
// limit of virtual time, and ErrStuck if no worker moved anything and none has a deadline.
func (s *Sim) Run(done func() bool, limit clock.Duration) error {
	hop := s.Hop
	hop = cmp.Or(hop, time.Microsecond)
	last := s.Clock.Now().Add(limit)
	for !done() {
		now := s.Clock.Now()
		if now > last {
			return ErrLate
		}
		moved, err := breathe(now, s.Workers)
		if err != nil {
			return err
		}
		next := now.Add(hop)
		if moved == 0 {
			at := earliest(s.Workers)
			if at == clock.Never {
				if done() {
					return nil
				}
				return ErrStuck
			}
			next = max(next, at)
		}
		s.Clock.Set(next)
	}
	return nil
}
