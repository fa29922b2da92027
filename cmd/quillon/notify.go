package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifier tells the service manager how the process is; see sd_notify(3). Without one it does nothing.
type notifier struct {
	fd int
	to *unix.SockaddrUnix
	// watchdog is within how long the manager wants to hear that all is well; 0: it does not.
	watchdog time.Duration
}

// newNotifier reads what the manager put into the environment.
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
	n.fd, n.to = fd, &unix.SockaddrUnix{Name: name} // @ is the abstract namespace
	pid := env("WATCHDOG_PID")
	us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64)
	if err == nil && us > 0 && us <= int64(24*time.Hour/time.Microsecond) && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(us) * time.Microsecond
	}
	return n
}

// there reports that there is a manager.
func (n *notifier) there() bool { return n.fd >= 0 }

// say tells the manager, if it listens: a datagram that it has no room for is lost.
func (n *notifier) say(what string) {
	if n.there() {
		_ = unix.Sendto(n.fd, []byte(what), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, n.to)
	}
}

func (n *notifier) close() {
	if n.there() {
		_ = unix.Close(n.fd)
		n.fd = -1
	}
}
