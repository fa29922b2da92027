package graph

import (
	"context"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Stuck describes a worker that takes no breath any more, although its thread has
// had the time: the thread has computed, or slept, for a whole limit.
type Stuck struct {
	Worker    int
	App, Kind string // whose code the worker runs; "-" and "framework": no app's
	Doing     string // what it has done instead
	For       clock.Duration
}

func (e *Stuck) Error() string {
	return fmt.Sprintf("worker %d is stuck in app %s (%s): it %s for %v", e.Worker, e.App, e.Kind, e.Doing, e.For)
}

// The ways in which a worker is stuck, as Stuck.Doing has them.
const (
	computes = "has computed without a breath"
	sleeps   = "has slept without a breath"
	silent   = "has made no breath"
)

// thread is what the kernel reports about a worker's thread.
type thread struct {
	cpu     clock.Duration // processor time since the thread began
	asleep  bool           // the thread waits for something other than a processor
	stopped bool           // a debugger has stopped the thread
}

// WorkerTimes has the times of a live worker's thread since the thread began.
type WorkerTimes struct {
	Worker int            `json:"worker"`
	Thread int            `json:"thread"`    // its number in the kernel
	Ran    clock.Duration `json:"ran_ns"`    // on a processor
	Waited clock.Duration `json:"waited_ns"` // for a processor: ready to run, and not scheduled
}

// Times returns the times of the live workers, as far as the kernel counts them.
func (i *Instance) Times() (all []WorkerTimes) {
	for _, w := range i.workers {
		id := int(w.thread.Load())
		if ran, waited, ok := timesOf(id); ok && id != 0 {
			all = append(all, WorkerTimes{w.index, id, ran, waited})
		}
	}
	return all
}

// vigil watches the workers of an instance. It counts looks, not time: a process that was
// stopped, or that got no processor, has not looked meanwhile.
type vigil struct {
	every clock.Duration // between two looks
	limit clock.Duration
	read  func(tid int) (thread, bool)
	of    []watched
}

// watched is a worker with what its vigil remembers of it.
type watched struct {
	*worker
	answer <-chan struct{} // is closed when the worker is between two breaths; nil: it was not asked
	since  clock.Duration  // the thread's processor time when the worker was asked
	last   clock.Duration  // the thread's processor time at the last look
	asleep clock.Duration  // how long the thread has slept, counted in looks
}

func (i *Instance) vigil(every, limit clock.Duration) *vigil {
	v := &vigil{every: every, limit: limit, read: readThread}
	for _, w := range i.workers {
		v.of = append(v.of, watched{worker: w})
	}
	return v
}

// look looks at every worker once. waits is how many have not answered yet; stuck is one of
// them that is stuck, nil: none.
func (v *vigil) look() (waits int, stuck *Stuck) {
	for n := range v.of {
		w := &v.of[n]
		if !w.pending() {
			continue
		}
		waits++
		t, ok := v.read(int(w.thread.Load()))
		switch {
		case !ok: // the thread and the worker have ended
			continue
		case w.since < 0:
			w.since, w.last, w.asleep = t.cpu, t.cpu, 0
			continue
		case t.stopped || t.cpu != w.last || !t.asleep:
			w.asleep = 0
		default:
			w.asleep += v.every
		}
		w.last = t.cpu
		doing, long := computes, t.cpu-w.since
		if w.asleep >= v.limit {
			doing, long = sleeps, w.asleep
		}
		if long >= v.limit && stuck == nil {
			stuck = v.guilty(w.worker, doing, long)
		}
	}
	return waits, stuck
}

// pending asks a worker to answer between two breaths, unless it was asked before, and reports whether it has not
// answered yet.
func (w *watched) pending() bool {
	if w.answer == nil {
		w.answer, w.since = w.knock(), -1
	}
	select {
	case <-w.answer:
		w.answer = nil
		return false
	default:
		return true
	}
}

// guilty describes as stuck either w, or the worker for which w waits: during a change of the graph all
// workers wait, between two breaths, for the last worker, which may be stuck in an app.
func (v *vigil) guilty(w *worker, doing string, long clock.Duration) *Stuck {
	if w.running() == nil {
		for n := range v.of {
			if o := &v.of[n]; o.answer != nil && o.running() != nil {
				return o.stuck(silent, long)
			}
		}
	}
	return w.stuck(doing, long)
}

func (w *worker) stuck(doing string, long clock.Duration) *Stuck {
	s := &Stuck{w.index, "-", "framework", doing, long}
	if n := w.running(); n != nil {
		s.App, s.Kind = n.name, n.kind.Name
	}
	return s
}

// running is the app whose code the worker runs, as another goroutine sees it: of a worker that is
// stuck it does not change. The packet path writes it without a lock, so the race detector
// must ignore it.
//
//go:norace
//go:noinline
func (w *worker) running() *node { return w.ctx.node }

// knock asks the worker to close the channel between two breaths.
func (w *worker) knock() <-chan struct{} {
	l := &letter{fn: func(clock.Duration) bool { return false }, done: make(chan struct{})}
	w.mailMu.Lock()
	defer w.mailMu.Unlock()
	if !w.live {
		close(l.done)
		return l.done
	}
	w.mail = append(w.mail, l)
	w.mailed.Store(true)
	return l.done
}

// watchEvery is the longest time between two looks of Watch.
const watchEvery = 250 * time.Millisecond

// Watch returns the first worker that is stuck: since the worker was asked for a breath, its thread has
// computed, or slept, for limit. A thread that gets no processor does neither. Watch returns nil when
// ctx is done. It calls beat after every look that found no worker stuck.
func (i *Instance) Watch(ctx context.Context, limit clock.Duration, beat func()) *Stuck {
	v := i.vigil(min(watchEvery, limit/4), limit)
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, s := v.look(); s != nil {
			return s
		}
		beat()
	}
}

// breatheEvery is the time between two looks of Breathe.
const breatheEvery = 5 * time.Millisecond

// Breathe waits until every worker was between two breaths, or has ended. The error names a worker that is stuck, as
// with Watch, or that did not answer within the limit.
func (i *Instance) Breathe(limit, within clock.Duration) error {
	v := i.vigil(breatheEvery, limit)
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	late := time.After(within)
	_, stuck := v.look() // asks all of them
	for n := range v.of {
		for w := &v.of[n]; stuck == nil && w.pending(); {
			select {
			case <-w.answer:
			case <-tick.C:
				_, stuck = v.look()
			case <-late:
				return v.guilty(w.worker, silent, within)
			}
		}
	}
	if stuck != nil {
		return stuck
	}
	return nil
}

// Running names the apps whose code workers run at the moment, as far as can be told from outside.
func (i *Instance) Running() (apps []string) {
	for _, w := range i.workers {
		if n := w.running(); n != nil {
			apps = append(apps, n.name)
		}
	}
	return apps
}
