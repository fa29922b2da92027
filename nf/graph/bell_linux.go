package graph

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// bell wakes a worker that sleeps. It is among what the worker waits for, a port that
// nothing is asked of but its file, an eventfd; there is one while Run runs.
type bell struct {
	port.Port
	asleep atomic.Bool
	mu     sync.Mutex // of fd: who rings last may do so when nobody sleeps any more
	fd     int        // -1: none
}

func newBell() *bell { return &bell{fd: -1} }

// open makes the eventfd. Without one the worker sleeps as long as it means to.
func (b *bell) open() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		b.fd = fd
	}
}

func (b *bell) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
	}
	b.fd = -1
}

// FD implements poll.File.
func (b *bell) FD() int { return b.fd }

var one = [8]byte{7: 1}

// ring wakes the worker if it sleeps, or is about to.
func (b *bell) ring() {
	if b.asleep.Load() && b.asleep.CompareAndSwap(true, false) {
		b.mu.Lock()
		_, _ = unix.Write(b.fd, one[:]) // any number but 0
		b.mu.Unlock()
	}
}

// awake is what the worker says when it has slept.
func (b *bell) awake() {
	b.asleep.Store(false)
	var n [8]byte
	_, _ = unix.Read(b.fd, n[:]) // or it was not rung
}

// wait sleeps for d, or until somebody rings.
func (b *bell) wait(ctx context.Context, d clock.Duration) {
	if b.fd < 0 {
		time.Sleep(d)
		return
	}
	fds := [1]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(d))
	_, _ = unix.Ppoll(fds[:], &ts, nil) // an interrupted sleep is short
}
