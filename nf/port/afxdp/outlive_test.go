package afxdp

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/port"
)

// TestOutliveFails: a change that fails because another program is there for a moment leaves the interface with the program that it had,
// and the next change succeeds.
func TestOutliveFails(t *testing.T) {
	newBed(t, 1500, 1)
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Skip(err)
	}
	defer other.Close()
	index, fails := 0, false
	v, err := Open(Config{Interface: "dutA", Options: Options{afterStep: func(what string) {
		var err error
		switch {
		case !fails:
		case what == "alone":
			err = xsk.Swap(index, other, nil, xsk.Native)
		case what == "back":
			err = xsk.Swap(index, nil, other, xsk.Native)
		}
		if err != nil {
			t.Error(err)
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	p := v.Ports[0]
	l, err := netlink.LinkByName("dutA")
	if err != nil {
		t.Fatal(err)
	}
	index = l.Attrs().Index
	is := func(when, want string) {
		t.Helper()
		a, err := xsk.AttachedTo(index)
		if err != nil || a == nil || a.Name != want {
			t.Errorf("%s: %+v %v, want %s", when, a, err, want)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	me := new(int)
	for _, on := range []bool{true, false} {
		was := map[bool]string{true: xsk.PortProgram, false: xsk.ShutProgram}[on]
		is("at first", was)
		fails = true
		if err := p.Outlive(me, on); err == nil {
			t.Errorf("%v: no error", on)
		}
		fails = false
		is("after it failed", was)
		if err := p.SetFilter(port.Filter{All: true}); err != nil {
			t.Error(err)
		}
		if err := p.Outlive(me, on); err != nil {
			t.Errorf("%v, the second time: %v", on, err)
		}
	}
	is("at last", xsk.PortProgram)
}
