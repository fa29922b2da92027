package topo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// build makes a rack, or skips the test where the kernel does not allow one.
func build(t *testing.T, c Config) *Topology {
	t.Helper()
	top, err := New(c)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { top.Close() })
	return top
}

// namespaces returns the network namespaces (netns) of this process's threads.
func namespaces(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var ns []string
	for _, p := range tasks {
		if l, err := os.Readlink(p); err == nil && !slices.Contains(ns, l) {
			ns = append(ns, l)
		}
	}
	return ns
}

// eventually waits for a change that the kernel makes in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen within a minute: %s", what)
		}
		syscall.Select(0, nil, nil, nil, &syscall.Timeval{Usec: 2000})
	}
}

// raw opens a packet socket on the interface, in the calling thread's namespace.
func raw(name string) (fd int, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	const all = 0x0300 // ETH_P_ALL, big-endian
	if err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
}

func TestFramesFindTheirNode(t *testing.T) {
	for _, c := range []Config{{}, {Compute: 1, MTU: 4200}, {Compute: 5, MTU: 9000, IPv6: true}} {
		top := build(t, c)
		fds := map[string]int{}
		for _, n := range top.Nodes {
			if err := n.Space.Do(func() (err error) { fds[n.Name], err = raw(Interface); return err }); err != nil {
				t.Fatal(n.Name, err)
			}
		}
		var inline int
		if err := top.Switch.Do(func() (err error) { inline, err = raw(top.Inline[0]); return err }); err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, top.MTU+14)
		for _, to := range top.Nodes {
			copy(frame, to.Addr.MAC[:])
			copy(frame[6:], top.Nodes[0].Addr.MAC[:])
			frame[12], frame[13] = 0x89, 0x15
			copy(frame[14:], to.Name)
			if to.Name == top.Nodes[0].Name {
				continue
			}
			if _, err := unix.Write(fds[top.Nodes[0].Name], frame); err != nil {
				t.Fatal(err)
			}
			// The memory node's cable is open: frames to this node come only to the inline place.
			fd := fds[to.Name]
			if to.Role == Memory {
				fd = inline
			}
			got := make([]byte, 16384)
			n, err := unix.Read(fd, got)
			if err != nil {
				t.Fatalf("%s: %v", to.Name, err)
			}
			if string(got[:n]) != string(frame) {
				t.Errorf("%s got % x of %d bytes, want % x", to.Name, got[:20], n, frame[:20])
			}
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		unix.Close(inline)
		if err := top.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	// Threads of racks that other tests closed end in their own time.
	eventually(t, "one namespace", func() bool { return len(namespaces(t)) == 1 })
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	top := build(t, Config{})
	if got, want := len(namespaces(t)), 1+len(top.Nodes)+1; got != want {
		t.Errorf("%d namespaces while the rack stands, want %d", got, want)
	}
	if err := top.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all namespaces gone", func() bool { return len(namespaces(t)) == 1 })
	after, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != len(links) {
		t.Errorf("%d links after Close, %d before", len(after), len(links))
	}
	if err := top.Switch.Do(func() error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("Do after Close: %v", err)
	}
}

func TestPinsStayInside(t *testing.T) {
	top := build(t, Config{Compute: 1})
	err := top.Switch.Do(func() error { return os.Mkdir("/sys/fs/bpf/quillon-topo-test", 0o700) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/bpf/quillon-topo-test"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("seen outside of the rack: %v", err)
	}
	if err := top.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []Config{{Compute: -1}, {Compute: 65}, {MTU: 100}, {MTU: 9001}} {
		if top, err := New(c); err == nil {
			top.Close()
			t.Errorf("%+v: accepted", c)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: more than a line: %q", c, err)
		}
	}
}

// Without privileges nothing is made, and the error says that root is needed.
func TestUnprivileged(t *testing.T) {
	var denied error
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread ends with its goroutine, so no other goroutine runs without root.
		runtime.LockOSThread()
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETUID, 65534, 0, 0); e != 0 {
			denied = fmt.Errorf("this needs root to give up: %w", e)
			return
		}
		denied = (&Space{}).enter(true)
	}()
	<-done
	if !errors.Is(denied, port.ErrNotSupported) || !strings.Contains(denied.Error(), "root") {
		t.Errorf("got %v", denied)
	}
}
