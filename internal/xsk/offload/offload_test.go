package offload

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/port"
)

// space returns a network namespace without a name, and a file of it, which is the caller's.
func space(t *testing.T) (s *topo.Space, ns netns.NsHandle) {
	t.Helper()
	s, err := topo.NewSpace(false)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	in(t, s, func() error {
		ns, err = netns.Get()
		return err
	})
	return s, ns
}

// in runs f in a namespace.
func in(t *testing.T, s *topo.Space, f func() error) {
	t.Helper()
	if err := s.Do(f); err != nil {
		t.Fatal(err)
	}
}

// TestProgramGoes: the other end of a veth, in a namespace without a file, gets GRO when it has no program of its own any more.
func TestProgramGoes(t *testing.T) {
	near, here := space(t)
	far, there := space(t)
	defer here.Close()
	defer there.Close()
	in(t, near, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b", PeerNamespace: netlink.NsFd(int(there))}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	set := func(prog int) {
		in(t, far, func() error {
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
	in(t, near, func() error {
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
		in(t, far, func() error {
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
