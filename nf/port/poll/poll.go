// Package poll waits for ports that are files of the kernel, sockets and
// devices, alone or several at once.
package poll

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// File is a port whose frames come in on a file.
type File interface {
	port.Port
	// FD is the file; -1 when the port is closed.
	FD() int
}

// Idler is a File with work that is due while nothing is received.
type Idler interface {
	// Idle does it, and says how soon there may be more.
	Idle() (clock.Duration, error)
}

// Limiter is a File that cannot always receive: it leaves frames in the kernel
// while it has no memory for them. Its file can be read all that time, and is
// not waited for.
type Limiter interface {
	// CanReceive reports that there is memory for a frame.
	CanReceive() bool
}

// Holder is a File that takes frames from the kernel before they are asked for: then
// there is nothing to wait for.
type Holder interface {
	// Holding reports that there are such frames.
	Holding() bool
}

const (
	// most is how many files are waited for at once.
	most = 17
	// maxWait is how long a context's end may stay unnoticed.
	maxWait = 50 * clock.Duration(1e6)
)

// Set is the memory for one wait at a time.
type Set struct{ fds [most]unix.PollFd }

// Wait blocks until a frame may be waiting on one of the files, d has passed
// by clk, or ctx is done. It reports false, and has not waited, when one of
// others is no File or there are too many. An own that is closed is
// port.ErrClosed.
func (s *Set) Wait(ctx context.Context, clk clock.Clock, d clock.Duration, own File, others []port.Port) (bool, error) {
	if len(others) >= most || slices.ContainsFunc(others, isNoFile) {
		return false, nil
	}
	end := clk.Now().Add(d)
	for {
		if err := ctx.Err(); err != nil {
			return true, err
		}
		if own.FD() < 0 {
			return true, port.ErrClosed
		}
		if holding(own) || slices.ContainsFunc(others, holding) {
			return true, nil
		}
		next, err := idle(own)
		s.fds[0] = pollFd(own)
		for i, o := range others {
			soon, e := idle(o)
			if err == nil {
				err = e
			}
			next = min(next, soon)
			s.fds[i+1] = pollFd(o.(File))
		}
		if err != nil {
			return true, err
		}
		left := end.Sub(clk.Now())
		if left <= 0 {
			return true, nil
		}
		ts := unix.NsecToTimespec(int64(min(left, next)))
		n, err := unix.Ppoll(s.fds[:len(others)+1], &ts, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return true, err
		}
		if n > 0 {
			return true, nil
		}
	}
}

func pollFd(f File) unix.PollFd {
	fd := f.FD()
	if l, ok := f.(Limiter); ok && !l.CanReceive() {
		fd = -1 // none: without events, what befell the file would still wake
	}
	return unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
}

func holding(p port.Port) bool {
	h, ok := p.(Holder)
	return ok && h.Holding()
}

func isNoFile(p port.Port) bool {
	_, ok := p.(File)
	return !ok
}

func idle(p port.Port) (clock.Duration, error) {
	if i, ok := p.(Idler); ok {
		d, err := i.Idle()
		return min(d, maxWait), err
	}
	return maxWait, nil
}
