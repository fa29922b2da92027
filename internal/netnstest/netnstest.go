// Package netnstest gives tests network namespaces of their own, and veths in them and between them.
package netnstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Enter makes a network namespace and moves the test's thread into it, for the rest of the test. A test may call it several times: the
// thread is in the namespace that was made last. Without root the test is skipped.
//
// The thread is not unlocked, so no other goroutine runs on it. Go keeps a process's first thread when the goroutine on it ends, so the
// thread goes back at the end of the test, after all clean-ups that the test added later: without that the namespace would stay.
func Enter(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	check(t, err)
	ns, err := netns.New()
	if err != nil {
		_ = before.Close()
		t.Fatal("network namespace: ", err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		_, _ = before.Close(), ns.Close()
	})
	return ns
}

// Quiet turns off IPv6 in the thread's namespace: the kernel sends no frames of its own then.
func Quiet(t testing.TB) {
	t.Helper()
	for _, s := range []string{"default", "all"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+s+"/disable_ipv6", []byte("1"), 0); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// Veth makes a veth with the ends a and b in the thread's namespace. Both are up.
func Veth(t testing.TB, a, b string) {
	t.Helper()
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes(a), PeerName: b}))
	for _, name := range []string{a, b} {
		l, err := netlink.LinkByName(name)
		check(t, err)
		check(t, netlink.LinkSetUp(l))
	}
}

// Host is a network namespace and netlink in it.
type Host struct {
	netns.NsHandle
	*netlink.Handle
}

// NewHost enters a namespace of a new host. Netlink is that of links, addresses and routes, and of these families: without one of them the test is skipped.
func NewHost(t testing.TB, families ...int) Host {
	t.Helper()
	ns := Enter(t)
	h, err := netlink.NewHandleAt(ns, append(families, unix.NETLINK_ROUTE)...)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("this kernel has no netlink of all of the families %v: %v", families, err)
	}
	check(t, err)
	t.Cleanup(h.Close)
	return Host{ns, h}
}

// Enter moves the test's thread to the host's namespace.
func (h Host) Enter(t testing.TB) {
	t.Helper()
	check(t, netns.Set(h.NsHandle))
}

// Connect makes a veth between h, where its end has the name near, and another host, where it has the name far and, unless it is nil, this
// MAC address. Both ends are up. It returns the far end.
func (h Host) Connect(t testing.TB, near string, other Host, far string, mac net.HardwareAddr) netlink.Link {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: attributes(near), PeerName: far, PeerNamespace: netlink.NsFd(int(other.NsHandle)), PeerHardwareAddr: mac}
	check(t, h.LinkAdd(v))
	check(t, h.LinkSetUp(v))
	l, err := other.LinkByName(far)
	check(t, err)
	check(t, other.LinkSetUp(l))
	return l
}

// Address gives an interface addresses with prefix lengths. IPv6's are not probed for duplicates first.
func (h Host) Address(t testing.TB, l netlink.Link, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		x, err := netlink.ParseAddr(a)
		check(t, err)
		if x.IP.To4() == nil {
			x.Flags = unix.IFA_F_NODAD
		}
		check(t, h.AddrAdd(l, x))
	}
}

// attributes are those of a new interface.
func attributes(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("a network namespace of the test: %w", err))
	}
}
