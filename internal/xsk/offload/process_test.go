package offload

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The network namespace of a veth's other end has no file. When the processes in it have ended, it ends, and with it the veth: the
// process here does not keep it, as long as one of the two is looked at from time to time. Another process that is there is found.
func TestFarNamespaceEnds(t *testing.T) {
	near, here := space(t)
	defer here.Close()
	begin := func(flags uintptr, name string, args ...string) *exec.Cmd {
		c := exec.Command(name, args...)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if err := c.Start(); err != nil {
			t.Skip(err)
		}
		return c
	}
	end := func(c *exec.Cmd) {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	first := begin(unix.CLONE_NEWNET, "sleep", "100")
	defer end(first)
	var second *exec.Cmd
	var i *Interface
	in(t, near, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b", PeerNamespace: netlink.NsPid(first.Process.Pid)}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("a")
		if err == nil {
			i, err = Open(l)
		}
		return err
	})
	defer i.Close()
	if i.away != nil || i.peer == nil || i.peer.by == nil {
		t.Fatalf("not found in a process's namespace: %v", i.away)
	}
	there, err := netns.GetFromPid(first.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := Within(there, func() error { second = begin(0, "sleep", "100"); return nil }); err != nil {
		t.Fatal(err)
	}
	defer end(second)
	_ = there.Close()
	end(first)
	if _, _, err := i.Plan(true); err != nil || i.peer == nil || i.peer.by == nil || i.peer.by.hasEnded() {
		t.Fatalf("not found in the namespace of the other process: %v", err)
	}
	end(second)
	for n := 0; ; n++ {
		if _, _, err := i.Plan(true); errors.Is(err, unix.ENODEV) {
			return
		} else if n == 100 {
			t.Fatalf("the veth is still there: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
