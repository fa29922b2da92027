package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/port/open"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
)

// TestLife: the process takes the first order to stop itself, and leaves the second to code that can hurry. A
// step that takes too long ends the process and is named, even where the log is not read.
func TestLife(t *testing.T) {
	o := &orders{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	r, w := io.Pipe() // the log is not read
	defer r.Close()
	l := begin(o, forPeople(w))
	code := make(chan int, 1)
	l.exit = func(c int) { code <- c }
	if l.ordered() {
		t.Error("nobody has told it to stop")
	}
	o.stop <- unix.SIGTERM
	<-l.stopping
	l.end() // an order by the socket changes nothing
	if !l.ordered() {
		t.Error("it was told to stop")
	}
	o.stop <- unix.SIGTERM
	select {
	case <-o.stop:
	case <-time.After(60 * time.Second):
		t.Error("the second order is lost")
	}
	l.at("opening the ports")
	go l.late(3 * time.Second)
	select {
	case c := <-code:
		if c != exitFailed {
			t.Errorf("it ends with status %d", c)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("it waits for who does not read")
	}
	l.done()

	var said strings.Builder
	l = begin(o, forPeople(&said))
	l.exit = func(c int) { code <- c }
	l.at("opening the ports")
	l.late(3 * time.Second)
	<-code
	if got := said.String(); got != "quillon: opening the ports has taken more than 3s: the process ends, as by a crash\n" {
		t.Error(got)
	}
	l.done()
}

// TestNotifier: the process tells a service manager over its socket, wherever the socket is, and does not
// wait for a manager that does not read.
func TestNotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for _, name := range []string{path, "@quillon-test-" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())} {
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		n := newNotifier(func(key string) string {
			return map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": fmt.Sprint(os.Getpid())}[key]
		})
		n.send("READY=1")
		p := make([]byte, 64)
		k, err := conn.Read(p)
		if err != nil || string(p[:k]) != "READY=1" || !n.there() || n.watchdog != 1500*time.Millisecond {
			t.Errorf("%q, %v; watchdog %v", p[:k], err, n.watchdog)
		}
		for range 10_000 { // more than the socket holds
			n.send("WATCHDOG=1")
		}
		n.close()
		_ = conn.Close()
	}
	for _, env := range []map[string]string{nil, {"NOTIFY_SOCKET": "vsock:2:1"}, {"WATCHDOG_USEC": "5"}} {
		n := newNotifier(func(key string) string { return env[key] })
		n.send("READY=1")
		if n.there() || n.watchdog != 0 {
			t.Errorf("%v: there is no manager", env)
		}
		n.close()
	}
	for _, w := range []map[string]string{{"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "99999999999999999"}, {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}} {
		w["NOTIFY_SOCKET"] = path
		n := newNotifier(func(key string) string { return w[key] })
		n.send("READY=1") // the socket has no reader any more
		if n.watchdog != 0 {
			t.Errorf("%v: %v", w, n.watchdog)
		}
		n.close()
	}
}

// TestWatchLimit: the process ends itself before the service manager would end it.
func TestWatchLimit(t *testing.T) {
	for _, c := range []struct{ flag, manager, want time.Duration }{
		{10 * time.Second, 0, 10 * time.Second}, {0, 0, 0}, {0, 6 * time.Second, 3 * time.Second},
		{10 * time.Second, 6 * time.Second, 3 * time.Second}, {10 * time.Second, time.Minute, 10 * time.Second},
	} {
		r := &running{runFlags: &runFlags{watchdog: c.flag}, manager: &notifier{fd: -1, watchdog: c.manager}}
		if got := r.watchLimit(); got != c.want {
			t.Errorf("--watchdog %v and a manager's %v: %v", c.flag, c.manager, got)
		}
	}
}

// TestCapNames: each name is at the number that the kernel gives it.
func TestCapNames(t *testing.T) {
	for name, n := range map[string]int{"chown": unix.CAP_CHOWN, "net_admin": unix.CAP_NET_ADMIN, "net_raw": unix.CAP_NET_RAW,
		"sys_module": unix.CAP_SYS_MODULE, "sys_ptrace": unix.CAP_SYS_PTRACE, "sys_admin": unix.CAP_SYS_ADMIN, "sys_nice": unix.CAP_SYS_NICE,
		"sys_resource": unix.CAP_SYS_RESOURCE, "audit_read": unix.CAP_AUDIT_READ, "perfmon": unix.CAP_PERFMON, "bpf": unix.CAP_BPF,
		"checkpoint_restore": unix.CAP_CHECKPOINT_RESTORE} {
		if got := namesOf(1 << n); !slices.Equal(got, []string{name}) {
			t.Errorf("%d is %v, not %s", n, got, name)
		}
	}
	if got := namesOf(1 << 63); !slices.Equal(got, []string{"63"}) {
		t.Error(got)
	}
}

// TestRootFlags: flags that cannot work are refused before the process changes anything.
func TestRootFlags(t *testing.T) {
	alone := graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": "eth0"}}
	left := graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": "eth0", "offloads": "leave"}}
	pair := graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": "eth0", "pair": "b"}}
	for _, c := range []struct {
		f    rootFlags
		p    graph.PortSpec
		want string // "": the flags are accepted
	}{
		{rootFlags{}, alone, ""}, {rootFlags{keep: true}, alone, ""}, {rootFlags{user: "nobody"}, pair, ""}, {rootFlags{user: "nobody"}, left, ""},
		{rootFlags{user: "nobody"}, alone, "on record in a file of root"}, {rootFlags{user: "root"}, pair, "it is root"},
		{rootFlags{user: "0"}, pair, "it is root"}, {rootFlags{user: "no such one"}, pair, "there is no such user"},
		{rootFlags{user: "nobody", keep: true}, pair, "exclude each other"},
	} {
		err := c.f.check(&graph.Spec{Ports: map[string]graph.PortSpec{"a": c.p}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.f, err)
		}
	}
	if err := errors.Join((&runFlags{watchdog: time.Second}).checkWatchdog(), (&runFlags{}).checkWatchdog()); err != nil {
		t.Error(err)
	}
	for _, d := range []time.Duration{-time.Second, time.Millisecond} {
		if (&runFlags{watchdog: d}).checkWatchdog() == nil {
			t.Errorf("--watchdog %v is taken", d)
		}
	}
}
