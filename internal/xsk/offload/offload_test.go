package offload

import (
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"
)

// inNamespace returns a network namespace without a file, and a function that has others run in it. The namespace ends with the test.
func inNamespace(t *testing.T) (ns netns.NsHandle, do func(f func() error)) {
	t.Helper()
	made := make(chan error)
	work, done := make(chan func() error), make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		var err error
		ns, err = netns.New()
		made <- err
		for f := range work {
			done <- f()
		}
	}()
	if err := <-made; err != nil {
		t.Skipf("network namespaces cannot be made: %v", err)
	}
	t.Cleanup(func() {
		close(work)
		_ = ns.Close()
	})
	return ns, func(f func() error) {
		t.Helper()
		work <- f
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// TestProgramGoes: the other end of a veth, in a namespace without a file, gets GRO when it has no program of its own any more.
func TestProgramGoes(t *testing.T) {
	_, near := inNamespace(t)
	there, far := inNamespace(t)
	near(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b", PeerNamespace: netlink.NsFd(there)}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	set := func(prog int) {
		far(func() error {
			l, err := netlink.LinkByName("b")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			return netlink.LinkSetXdpFdWithFlags(l, prog, nl.XDP_FLAGS_DRV_MODE)
		})
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, Flags: unix.BPF_F_XDP_HAS_FRAGS})
	if err != nil {
		t.Skipf("programs of the kernel cannot be loaded: %v", err)
	}
	defer prog.Close()
	set(prog.FD())
	var i *Interface
	near(func() error {
		l, err := netlink.LinkByName("a")
		if err == nil {
			i, err = Open(l)
		}
		return err
	})
	defer i.Close()
	if i.away != nil {
		t.Fatal(i.away)
	}
	gro := func() (on bool) {
		far(func() error {
			tool, err := ethtool.Open()
			if err != nil {
				return err
			}
			defer tool.Close()
			all, err := tool.Features("b")
			on = all["rx-gro"].Active
			return err
		})
		return on
	}
	for _, fd := range []int{prog.FD(), -1, prog.FD(), -1} {
		set(fd)
		_, _, changed, err := i.Set(true)
		if err != nil {
			t.Fatal(err)
		}
		if fd < 0 && !gro() {
			t.Errorf("without a program the other end does no GRO, and loses frames; changed: %v", changed)
		}
	}
}
