package host

import (
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
	// Input takes b.
	Input(now clock.Time, b *packet.Buf)
	// Output appends frames until out is full or none are due.
	Output(now clock.Time, out *packet.Batch)
	// Deadline is when Tick or Output has work without input.
	Deadline() clock.Time
	Tick(now clock.Time)
}

// App uses an endpoint: it polls completions and posts work.
type App interface {
	// Step does what can be done now and reports whether that was anything.
	Step(now clock.Time) bool
	// Deadline is when Step has work without a completion.
	Deadline() clock.Time
}

// Worker is something that breathes: a Node, a Bridge, a graph's worker.
type Worker interface {
	// Breath moves what can be moved without waiting and reports how much.
	Breath(now clock.Time) (moved int, err error)
	// Deadline is when Breath has work without input.
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

// Port is the node's port.
func (n *Node) Port() port.Port { return n.port }

// burst is the most batches that a breath sends, so that input is looked at
// again soon.
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

// Held is the number of frames that wait for room in the port.
func (n *Node) Held() int { return n.tx.Len() }

// longestWait bounds a wait, so that what other goroutines ask of an App (a
// phase that starts or stops) is noticed.
const longestWait = 2 * time.Millisecond

// Run breathes n until ctx is done (nil) or its port fails or is closed.
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

// Spin breathes several workers in turns on this goroutine until ctx is done.
// A worker whose port was closed ends the run without an error.
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

// idleSpins is how many idle rounds SpinOn makes before it sleeps.
const idleSpins = 16

// SpinOn is Spin, of workers whose ports the kernel has: while there is nothing to do it waits for
// frames of any of them. It keeps its thread.
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

// Sim breathes workers in virtual time.
type Sim struct {
	Clock *clock.Manual
	// Hop is how far the clock moves with every round of breaths; 0 = 1 us.
	Hop     clock.Duration
	Workers []Worker
}

// Run breathes until done says so; nil then. It fails after limit of virtual
// time with ErrLate, and with ErrStuck when no worker moves or wants to.
func (s *Sim) Run(done func() bool, limit clock.Duration) error {
	hop := s.Hop
	if hop == 0 {
		hop = time.Microsecond
	}
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
