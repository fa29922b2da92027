package graph

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// bell wakes a worker that sleeps. It is one of the ports for which the worker waits, of which
// only the file, an eventfd, is used. It is open while Run runs.
type bell struct {
	port.Port
	asleep atomic.Bool
	mu     sync.Mutex // guards fd: somebody may ring while the worker ends
	fd     int        // -1: none
}

func newBell() *bell { return &bell{fd: -1} }

// open makes the eventfd. Without one nothing wakes the worker early.
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

// awake notes that the worker has slept. The worker calls it.
func (b *bell) awake() {
	b.asleep.Store(false)
	var n [8]byte
	_, _ = unix.Read(b.fd, n[:]) // fails if nobody rang
}

// wait sleeps for d, or until somebody rings.
func (b *bell) wait(d clock.Duration) {
	if b.fd < 0 {
		time.Sleep(d)
		return
	}
	fds := [1]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(d))
	_, _ = unix.Ppoll(fds[:], &ts, nil) // an interrupted sleep is short
}
