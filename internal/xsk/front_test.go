package xsk

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// TestFront: a program in front has each frame first, as long as somebody has the map that it is in, and no longer.
func TestFront(t *testing.T) {
	root(t)
	fronts, err := NewFrontMap()
	if err != nil {
		t.Fatal(err)
	}
	mine := part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true}, Cross: Pass}, 1)
	mine.Front = fronts
	p := program(t, mine)
	const aborted = 0
	front, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, aborted), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	is := func() uint32 {
		t.Helper()
		act, _, err := p.Prog.Test(make([]byte, 64))
		if err != nil {
			t.Fatal(err)
		}
		return act
	}
	if act := is(); act != xdpPass {
		t.Errorf("action %d without a program in front", act)
	}
	if err := fronts.Put(uint32(0), uint32(front.FD())); err != nil {
		t.Fatal(err)
	}
	if act := is(); act != aborted {
		t.Errorf("action %d with one", act)
	}
	if err := fronts.Close(); err != nil { // as the kernel does for a process that is killed
		t.Fatal(err)
	}
	for range 200 {
		if is() == xdpPass {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the program in front is still there when nobody has the map")
}
