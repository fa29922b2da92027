package offload

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// hidden returns a network namespace, and a function after which neither a process is in it nor a file is of it: a socket keeps it.
func hidden(t *testing.T) (ns netns.NsHandle, hide func()) {
	t.Helper()
	made, end, ended := make(chan error), make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		before, err := netns.Get()
		if err != nil {
			made <- err
			return
		}
		defer before.Close()
		if ns, err = netns.New(); err == nil {
			defer netns.Set(before) // Go keeps a process's first thread when its goroutine ends: it would stay in the namespace
			var fd int
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
				t.Cleanup(func() { _ = unix.Close(fd) })
			}
		}
		made <- err
		<-end
	}()
	if err := <-made; err != nil {
		t.Skipf("network namespaces cannot be made: %v", err)
	}
	return ns, func() {
		close(end)
		<-ended
		_ = ns.Close()
	}
}

// TestHiddenPeer: the other end of a veth is moved to a network namespace that cannot be found. It is looked for less and less often, since a search
// goes through all processes and threads of the machine, but always to put settings back, and at once when it has moved on.
func TestHiddenPeer(t *testing.T) {
	_, near := inNamespace(t)
	far, hide := hidden(t)
	clk := clock.NewManual(clock.Time(time.Hour))
	var i *Interface
	near(func() (err error) {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		if i, err = Open(l); err != nil {
			return err
		}
		b, err := netlink.LinkByName("b")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(b, int(far))
	})
	defer i.Close()
	hide()
	i.clk = clk
	for n := 0; ; n++ { // until the thread has left the namespace
		_, _, err := i.Plan(true)
		if errors.Is(err, errHidden) {
			break
		}
		if n == 500 {
			t.Fatalf("Plan: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	first := i.lost.row
	for range 4 * 3600 { // four looks a second, for an hour
		clk.Set(clk.Now().Add(250 * time.Millisecond))
		if _, _, err := i.Plan(true); !errors.Is(err, errHidden) {
			t.Fatalf("Plan: %v", err)
		}
	}
	if n := i.lost.row - first; n < 100 || n > 130 {
		t.Errorf("it was searched for %d times in an hour, want about one in 30 s", n)
	}
	before := i.lost.row
	if err := i.Restore(0, 1); !errors.Is(err, errHidden) || i.lost.row != before+1 {
		t.Errorf("Restore did not search: %v", err)
	}
	near(func() error { // a veth takes its place whose other end is here: no pause
		l, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(l); err != nil {
			return err
		}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a", Index: l.Attrs().Index}, PeerName: "b"}); err != nil {
			return err
		}
		_, _, err = i.Plan(true)
		return err
	})
	if i.lost.err != nil {
		t.Errorf("its other end was found, and still: %v", i.lost.err)
	}
}
