package offload

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// TestHiddenPeer: the other end of a veth is moved to a network namespace that cannot be found. It is looked for less and less often, since a search
// goes through all processes and threads of the machine, but always to put settings back, and at once when it has moved on.
func TestHiddenPeer(t *testing.T) {
	near, here := space(t)
	defer here.Close()
	far, file := space(t)
	in(t, far, func() error { // a socket keeps the namespace
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return err
	})
	clk := clock.NewManual(clock.Time(time.Hour))
	var i *Interface
	in(t, near, func() (err error) {
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
		return netlink.LinkSetNsFd(b, int(file))
	})
	defer i.Close()
	far.Close() // neither a process is in it now, nor a file is of it
	_ = file.Close()
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
	in(t, near, func() error { // a veth takes its place whose other end is here: no pause
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

// TestNoDescriptors: a search for a network namespace that lacks file descriptors says so.
func TestNoDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	search := func(limit uint64) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
		}()
		ns, _, _, err := findNamespace(1 << 30)
		if err == nil {
			ns.Close()
		}
		return err
	}
	if err := search(was.Cur); !errors.Is(err, errHidden) || errors.Is(err, unix.EMFILE) {
		t.Errorf("with descriptors: %v", err)
	}
	if err := search(3); !errors.Is(err, errHidden) || !errors.Is(err, unix.EMFILE) {
		t.Errorf("without: %v", err)
	}
}
