package offload

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// process is another process, by a descriptor that keeps neither the process nor its namespaces. After quillon has given up its
// capabilities it can enter no namespace by that descriptor (setns wants the right to trace the process), and finds none in /proc. So
// its sockets in the namespace have to stay open as long as the process lives.
type process struct{ fd int }

// processOf returns the process with a number, in decimal digits, or nil if its end cannot be watched. A nil process never ends.
func processOf(number string) *process {
	n, err := strconv.Atoi(number)
	if err != nil || n == unix.Getpid() {
		return nil
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return nil
	}
	return &process{fd}
}

// hasEnded reports whether the process has ended.
func (p *process) hasEnded() bool {
	if p == nil {
		return false
	}
	at := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(at, 0)
	return err == nil && n == 1
}

func (p *process) close() {
	if p != nil {
		_ = unix.Close(p.fd)
	}
}
