package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifier sends the state of the process to the service manager, as sd_notify(3) does. Without a manager it
// does nothing.
type notifier struct {
	fd int
	to *unix.SockaddrUnix
	// watchdog is the longest time between two WATCHDOG=1 messages; 0: the manager wants none.
	watchdog time.Duration
}

// newNotifier reads the manager's environment variables NOTIFY_SOCKET, WATCHDOG_PID and WATCHDOG_USEC.
func newNotifier(env func(string) string) *notifier {
	n := &notifier{fd: -1}
	name := env("NOTIFY_SOCKET")
	if name == "" || name[0] != '/' && name[0] != '@' {
		return n
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return n
	}
	n.fd, n.to = fd, &unix.SockaddrUnix{Name: name} // @ marks the abstract namespace
	pid := env("WATCHDOG_PID")
	us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64)
	if err == nil && us > 0 && us <= int64(24*time.Hour/time.Microsecond) && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(us) * time.Microsecond
	}
	return n
}

// there reports whether there is a manager.
func (n *notifier) there() bool { return n.fd >= 0 }

// send sends a message to the manager, if there is one. A datagram for which the manager has no room is lost.
func (n *notifier) send(message string) {
	if n.there() {
		_ = unix.Sendto(n.fd, []byte(message), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, n.to)
	}
}

func (n *notifier) close() {
	if n.there() {
		_ = unix.Close(n.fd)
		n.fd = -1
	}
}
