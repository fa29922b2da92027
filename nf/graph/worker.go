package graph

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// maxSleep bounds a worker's sleep, so that ports are looked at, and orders from outside
// are done.
const maxSleep = 10_000_000 // ns

// shortSleep is what a sleep costs at the least, with the timer's slack: for a timer
// that is due before, the worker stays awake.
const shortSleep = 50_000 // ns

// pollLook is how often a worker that never sleeps calls its ports' poll.Idler, which other workers call before they
// sleep.
const pollLook = 1_000_000 // ns

// While a worker has frames, orders from outside (Work) get one slice of its time after another, in all one part in
// workShare. No frame waits for longer than a slice. Slices are longer when no frame has moved for workIdle.
const (
	workSlice     = 8_000     // ns
	workIdleSlice = 100_000   // ns
	workIdle      = 1_000_000 // ns
	workShare     = 5
)

// worker is a thread, or a stand-in for one, that runs the breaths of its mover. It sleeps while there is nothing to do, and between
// two breaths it carries out orders from outside. A goroutine that holds mu may use all fields, those of the mover too; see do.
type worker struct {
	mover
	spinNs clock.Duration
	poll   bool        // the worker never sleeps
	waits  []port.Port // reused by wait
	bell   *bell
	stays  stays

	// mu makes Step and do exclude each other. A running worker holds it for
	// its whole run and looks at mailed between breaths.
	mu     sync.Mutex
	mailMu sync.Mutex
	mail   []*letter
	mailed atomic.Bool
	live   bool         // guarded by mailMu: the worker reads its mail
	thread atomic.Int32 // of the run: the number of its thread

	// Of the run:
	works   []*letter  // begun and not done, in turns
	workDue clock.Time // not before, while there are frames
}

// letter is an order: fn is called, with a slice of time, again and again while it
// returns true. An order that is not long is called once.
type letter struct {
	fn   func(clock.Duration) bool
	long bool
	done chan struct{}
}

// do runs fn while the worker is between two breaths, and returns when it is
// done. The worker never waits for the caller.
func (w *worker) do(fn func()) {
	w.post(letter{fn: func(clock.Duration) bool {
		fn()
		return false
	}})
}

// post has the worker carry out an order, and returns when the order is done.
func (w *worker) post(l letter) {
	w.mailMu.Lock()
	if w.live {
		l.done = make(chan struct{})
		w.mail = append(w.mail, &l)
		w.mailed.Store(true)
		w.mailMu.Unlock()
		w.bell.ring()
		<-l.done
		return
	}
	// mu is locked before mailMu is unlocked: a run that begins in between would keep mu.
	w.mu.Lock()
	w.mailMu.Unlock()
	defer w.mu.Unlock()
	for w.begin(&l, workIdleSlice) {
	}
}

// begin gives an order a slice, and reports whether it needs more.
func (w *worker) begin(l *letter, slice clock.Duration) (more bool) {
	defer w.recover()
	return l.fn(slice)
}

// readMail carries out the orders of others.
func (w *worker) readMail(last bool) {
	w.mailMu.Lock()
	mail := w.mail
	w.mail = nil
	w.mailed.Store(false)
	if last {
		w.live = false
	}
	w.mailMu.Unlock()
	for _, l := range mail {
		if l.long {
			w.works = append(w.works, l)
			continue
		}
		for w.begin(l, workIdleSlice) {
		}
		close(l.done)
	}
	for last && len(w.works) > 0 {
		w.turn(workIdleSlice)
	}
}

// turn gives a slice to the order whose turn it is, and reports whether the order is done.
func (w *worker) turn(slice clock.Duration) (done bool) {
	l := w.works[0]
	w.works = append(w.works[:0], w.works[1:]...)
	if w.begin(l, slice) {
		w.works = append(w.works, l)
		return false
	}
	close(l.done)
	return true
}

// share gives orders from outside their share of the time, and reports whether one of
// them is done; moved is when a frame moved last.
func (w *worker) share(now, moved clock.Time) (done bool) {
	if now.Sub(moved) > workIdle {
		return w.turn(workIdleSlice)
	}
	if now < w.workDue {
		return false
	}
	start := w.clk.Now()
	done = w.turn(workSlice)
	end := w.clk.Now()
	w.workDue = end.Add((workShare - 1) * end.Sub(start))
	return done
}

// run breathes until stop is set, an error occurs, or every port is at its
// end and nothing is left to send.
func (w *worker) run(ctx context.Context, stop *atomic.Bool, cfg *Config) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.readMail(true)
	restore, err := cfg.settle(w.index)
	defer restore()
	if err != nil {
		return err
	}
	w.thread.Store(int32(threadID()))
	// The scheduler would take long to come back to a locked thread.
	alone := runtime.GOMAXPROCS(0) <= len(w.all)
	busy := w.clk.Now()
	moving, looked := busy.Add(-2*workIdle), busy
	// The last breath began at took and moved so many frames; they are counted at the next look at the clock.
	took, frames := clock.Time(0), 0
	for !stop.Load() && w.err == nil {
		if w.mailed.Load() {
			if frames > 0 {
				w.stays.add(w.clk.Now().Sub(took), frames)
				frames = 0
			}
			w.readMail(false)
			if alone {
				runtime.Gosched() // the caller whose order is done may wait for this core
			}
			busy = w.clk.Now() // the caller may have another order at once
		}
		now := w.clk.Now()
		if frames > 0 {
			w.stays.add(now.Sub(took), frames)
		}
		moved, err := w.step(now)
		if err != nil {
			return err
		}
		took, frames = now, moved
		if moved > 0 {
			moving = now
		}
		if len(w.works) > 0 {
			if frames > 0 {
				w.stays.add(w.clk.Now().Sub(took), frames)
				frames = 0
			}
			if w.share(now, moving) && alone {
				runtime.Gosched()
			}
			busy = w.clk.Now()
			continue
		}
		if moved > 0 {
			busy = max(busy, now)
			continue
		}
		if w.finished() {
			return nil
		}
		if now.Sub(busy) < w.spinNs || w.poll && now.Sub(looked) < pollLook {
			continue
		}
		if w.poll {
			looked = now
			if err := w.wait(ctx, stop, 0); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		d := clock.Duration(maxSleep)
		if until := w.tick.Sub(now); w.tick != clock.Never && until < d {
			if until < shortSleep {
				continue
			}
			d = until
		}
		if w.backlog() || w.handedOver() > 0 || w.atEnd.Load() {
			d = min(d, maxSleep/100)
		}
		if d > 0 {
			if err := w.wait(ctx, stop, d); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return w.err
}

// backlog reports whether a port has not taken all frames that it was given.
func (w *worker) backlog() bool {
	for _, l := range w.graph.links {
		if len(l.q) > 0 {
			return true
		}
	}
	return false
}

// finished reports whether no frame will come any more and none waits.
func (w *worker) finished() bool {
	if !w.drained() {
		w.goesOn()
		return false
	}
	return w.allAtEnd()
}

// drained reports whether no frame will come any more from a port and none waits.
func (w *worker) drained() bool {
	if len(w.graph.ports) == 0 {
		return false
	}
	for _, p := range w.graph.ports {
		for _, eof := range p.eof {
			if !eof {
				return false
			}
		}
	}
	if w.backlog() {
		return false
	}
	for _, n := range w.graph.nodes {
		if n.held() > 0 && w.tick != clock.Never {
			return false // a timer may emit the frames that the app holds
		}
	}
	return true
}

// wait sleeps until a port may have something to do, somebody rings, or for d.
func (w *worker) wait(ctx context.Context, stop *atomic.Bool, d clock.Duration) error {
	w.bell.asleep.Store(true)
	defer w.bell.awake()
	// Orders and frames may have come before anybody could know that the worker sleeps. Without a buffer for handed
	// frames it sleeps all the same.
	if w.mailed.Load() || stop.Load() || w.handedOver() > 0 && w.pool != nil && w.pool.Free() > 0 {
		return nil
	}
	return w.sleep(ctx, d)
}

// sleep waits for the ports and the bell. Ports that cannot be waited for together are waited for in turn, briefly.
func (w *worker) sleep(ctx context.Context, d clock.Duration) error {
	w.waits = w.waits[:0]
	for _, p := range w.graph.ports {
		for i, q := range p.queues {
			if !p.eof[i] {
				w.waits = append(w.waits, q)
			}
		}
	}
	queues := len(w.waits)
	if queues == 0 {
		w.bell.wait(d)
		return nil
	}
	first := w.waits[0]
	if w.bell.fd >= 0 {
		w.waits = append(w.waits, w.bell)
	}
	if m, ok := first.(port.MultiWaiter); ok && len(w.waits) > 1 {
		if ok, err := m.WaitAny(ctx, w.waits[1:], d); ok {
			return waitErr(nil, err)
		}
	}
	if len(w.graph.relays) > 0 {
		d = min(d, maxSleep/100) // nothing can wake the worker
	}
	if queues == 1 {
		return waitErr(first, first.Wait(ctx, d))
	}
	each := min(d, maxSleep/100) / clock.Duration(queues)
	for _, q := range w.waits[:queues] {
		if err := waitErr(q, q.Wait(ctx, each)); err != nil {
			return err
		}
	}
	runtime.Gosched()
	return nil
}

// waitErr is an error of waiting for q; q is nil when the worker waited for several ports, and err names
// the port.
func waitErr(q port.Port, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if q == nil {
		return err
	}
	return fmt.Errorf("port %s: %w", q.Name(), err)
}
