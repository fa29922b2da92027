package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
)

// Bounds of what a process waits for.
const (
	startLimit = time.Minute      // until it runs
	stopLimit  = 20 * time.Second // from the order to stop until it has ended
	// At a stop a worker is stuck when its thread has computed or slept for so long without a breath, or has
	// not answered within the other: much more than a breath takes on a machine that is busy.
	breathLimit  = 2 * time.Second
	breathWithin = 8 * time.Second
	lastWord     = time.Second // to say why it ends, where nobody may read
)

// life is the process of an instance between its start and its end: an order to stop is heard at every
// moment, and what takes too long ends the process as a crash does.
type life struct {
	orders *orders
	log    io.Writer
	exit   func(code int)
	told   chan struct{} // closed by the first order to stop
	once   sync.Once
	over   chan struct{}
	doing  atomic.Pointer[string]
	inst   atomic.Pointer[graph.Instance]
	start  *time.Timer
	stop   atomic.Pointer[time.Timer]
}

// begin takes the first order to stop from orders; a second one is left there, for who can hurry.
func begin(orders *orders, log io.Writer) *life {
	l := &life{orders: orders, log: log, exit: os.Exit, told: make(chan struct{}), over: make(chan struct{})}
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

// undisturbed has a change of interfaces done to its end, also when there is an order to stop, but not for
// longer than a start or a stop may take; until done.
func undisturbed(cmd *cobra.Command, what string) (done func()) {
	o := takeOrders()
	l := begin(o, cmd.ErrOrStderr())
	l.at(what)
	return func() {
		l.done()
		o.release()
	}
}

// at says what is being done, for who asks why it takes so long.
func (l *life) at(what string) { l.doing.Store(&what) }

// end is the order to stop.
func (l *life) end() {
	l.once.Do(func() {
		l.start.Stop()
		l.stop.Store(time.AfterFunc(stopLimit, func() { l.late(stopLimit) }))
		close(l.told)
	})
}

// ordered reports that there was an order to stop.
func (l *life) ordered() bool {
	select {
	case <-l.told:
		return true
	default:
	}
	select {
	case <-l.told:
	case <-l.orders.stop:
		l.end()
	default:
		return false
	}
	return true
}

// runs ends the start.
func (l *life) runs() { l.start.Stop() }

// done ends all bounds.
func (l *life) done() {
	l.start.Stop()
	if t := l.stop.Load(); t != nil {
		t.Stop()
	}
	close(l.over)
}

// late ends the process because of what it has waited for.
func (l *life) late(limit time.Duration) {
	why := fmt.Sprintf("%s has taken more than %v", *l.doing.Load(), limit)
	if inst := l.inst.Load(); inst != nil {
		if apps := inst.Running(); len(apps) > 0 {
			why += ", with workers in " + strings.Join(apps, ", ")
		}
	}
	l.crash(why)
}

// crash ends the process at once, and leaves everything as it is: what closes the sockets of a process that
// has died closes them here.
func (l *life) crash(why string) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(l.log, "quillon: %s: the process ends, as by a crash\n", why)
	}()
	select {
	case <-said:
	case <-time.After(lastWord):
	}
	l.exit(exitFailed)
}
