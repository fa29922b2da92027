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
	// FD returns the file's descriptor, or -1 if the port is closed.
	FD() int
}

// Idler is a File that has work to do while nothing is received.
type Idler interface {
	// Idle does the work that is due, and returns the time after which more may be due.
	Idle() (clock.Duration, error)
}

// Limiter is a File that leaves frames in the kernel while it has no memory for them. The
// kernel reports its file as readable all that time; Wait therefore leaves the file out.
type Limiter interface {
	// CanReceive reports whether the port has memory for a frame.
	CanReceive() bool
}

// Holder is a File that may take frames from the kernel before Rx delivers them. While it has
// such frames, Wait returns at once.
type Holder interface {
	// Holding reports whether the port has such frames.
	Holding() bool
}

const (
	// most is the largest number of files in one wait.
	most = 17
	// maxWait is the longest time for which Wait does not notice that its context is done.
	maxWait = 50 * clock.Duration(1e6)
)

// Set has the memory that Wait needs. It serves one Wait at a time.
type Set struct{ fds [most]unix.PollFd }

// Wait blocks until a frame may be waiting on one of the files, d has passed
// by clk, or ctx is done. It reports false, without having waited, if one of
// others is no File or there are 17 of them or more. If own is closed, the error is
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
