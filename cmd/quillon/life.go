package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
)

// Bounds on how long a process waits.
const (
	startLimit = time.Minute      // from the start until the process runs
	stopLimit  = 20 * time.Second // from the order to stop until the process has ended
	// When the process stops, a worker counts as stuck if its thread has computed or slept for breathLimit
	// without a breath, or if the worker has not answered within breathWithin. Both are much more than a
	// breath takes on a busy machine.
	breathLimit  = 2 * time.Second
	breathWithin = 8 * time.Second
	lastWord     = time.Second // for the last log message, because the reader of the log may be stuck
)

// life is the life of an instance's process, from start to end. An order to stop is obeyed at every moment. A
// step that takes too long ends the process as a crash would.
type life struct {
	orders   *orders
	log      *slog.Logger
	exit     func(code int)
	stopping chan struct{} // closed by the first order to stop
	once     sync.Once
	over     chan struct{}
	doing    atomic.Pointer[string]
	inst     atomic.Pointer[graph.Instance]
	start    *time.Timer
	stop     atomic.Pointer[time.Timer]
}

// begin takes the first order to stop from orders. A second one stays in the channel, for steps that can be
// cut short.
func begin(orders *orders, log *slog.Logger) *life {
	l := &life{orders: orders, log: log, exit: os.Exit, stopping: make(chan struct{}), over: make(chan struct{})}
	l.at("starting")
	l.start = time.AfterFunc(startLimit, func() { l.late(startLimit) })
	go func() {
		select {
		case <-orders.stop:
			l.end()
		case <-l.over:
		}
	}()
	return l
}

// undisturbed delays orders to stop until done is called, so that a change of interfaces is completed. The
// time limits of a start and of a stop hold.
func undisturbed(cmd *cobra.Command, what string) (done func()) {
	o := takeOrders()
	l := begin(o, forPeople(cmd.ErrOrStderr()))
	l.at(what)
	return func() {
		l.done()
		o.release()
	}
}

// at notes the present step, for the message if the step takes too long.
func (l *life) at(what string) { l.doing.Store(&what) }

// end gives the order to stop, and starts the time limit of the stop.
func (l *life) end() {
	l.once.Do(func() {
		l.start.Stop()
		l.stop.Store(time.AfterFunc(stopLimit, func() { l.late(stopLimit) }))
		close(l.stopping)
	})
}

// ordered reports whether the process was ordered to stop.
func (l *life) ordered() bool {
	select {
	case <-l.stopping:
		return true
	default:
	}
	select {
	case <-l.stopping:
	case <-l.orders.stop:
		l.end()
	default:
		return false
	}
	return true
}

// runs ends the time limit of the start.
func (l *life) runs() { l.start.Stop() }

// done ends all time limits.
func (l *life) done() {
	l.start.Stop()
	if t := l.stop.Load(); t != nil {
		t.Stop()
	}
	close(l.over)
}

// late ends the process because the present step took too long.
func (l *life) late(limit time.Duration) {
	why := fmt.Sprintf("%s has taken more than %v", *l.doing.Load(), limit)
	if inst := l.inst.Load(); inst != nil {
		if apps := inst.Running(); len(apps) > 0 {
			why += ", with workers in " + strings.Join(apps, ", ")
		}
	}
	l.crash(why)
}

// crash ends the process at once and undoes nothing; the kernel closes its sockets.
func (l *life) crash(why string) {
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		l.log.Error(why + ": the process ends, as by a crash")
	}()
	select {
	case <-logged:
	case <-time.After(lastWord):
	}
	l.exit(exitFailed)
}
