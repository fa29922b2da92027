package afxdp

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// newFront makes a Front that gives all frames to the interface's own program.
func newFront(t *testing.T) *Front {
	t.Helper()
	own, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: FrontProgram, Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R2, own.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnTailCall.Call(), asm.Mov.Imm(asm.R0, 1), asm.Return(), // XDP_DROP
	}, Flags: unix.BPF_F_XDP_HAS_FRAGS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	return &Front{Program: prog, Own: func(p *ebpf.Program) error { return own.Put(uint32(0), uint32(p.FD())) }, Watch: func(bool) {}}
}

// TestQueuesBehindFront: somebody gives an interface alone more receive queues while a program stands in front of its own. Frames of the
// new queues do not go to the kernel's stack past a closed function; they are dropped and counted, as long as the interface outlives the process, too.
func TestQueuesBehindFront(t *testing.T) {
	for name, outlives := range map[string]bool{"link": false, "outlives": true} {
		t.Run(name, func(t *testing.T) { queuesBehindFront(t, outlives) })
	}
}

func queuesBehindFront(t *testing.T, outlives bool) {
	bed := newBed(t, 1500, 4)
	channels := func(n string) {
		t.Helper()
		for _, x := range []struct {
			dev string
			ns  func(func() error) error
		}{{"dutA", func(f func() error) error { return f() }}, {"farA", func(f func() error) error { return offload.Within(bed.farA, f) }}} {
			if err := x.ns(func() error { return exec.Command("ethtool", "-L", x.dev, "rx", n, "tx", n).Run() }); err != nil {
				t.Skip("ethtool -L: ", err)
			}
		}
	}
	channels("1")
	v, err := Open(Config{Interface: "dutA", Options: Options{Filter: &port.Filter{All: true, Closed: true}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	p := v.Ports[0]
	f := newFront(t)
	if outlives {
		if err := p.Outlive(t, true); err != nil {
			t.Fatal(err)
		}
		f.Stays = true
	}
	if err := p.SetFront(f); err != nil {
		t.Fatal(err)
	}
	channels("4")
	if _, err := p.Keep(); !errors.Is(err, port.ErrOutgrown) {
		t.Errorf("Keep: %v", err)
	}
	stack := newRaw(t, bed.near, "dutA") // what goes to the kernel's stack
	const frames = 40                    // each of another flow; a flow has one queue
	before := p.Stats().ShutOut
	for i := range uint32(frames) {
		if err := bed.a.send(roce(100, 0, false, i)); err != nil {
			t.Fatal(err)
		}
	}
	if got := stack.recv(300 * time.Millisecond); got != nil {
		t.Errorf("the kernel's stack got frame %d past the closed function", binary.BigEndian.Uint32(got[42:]))
	}
	var b packet.Batch
	for {
		b.PutAll()
		if n, err := p.Rx(&b); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			break
		}
	}
	if taken, shut := p.Stats().RxPackets, p.Stats().ShutOut-before; taken == 0 || shut == 0 || taken+shut != frames {
		t.Errorf("of %d frames %d were taken and %d were counted as shut out", frames, taken, shut)
	}
	l, err := netlink.LinkByName("dutA")
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Program.Info()
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := info.ID(); l.Attrs().Xdp == nil || l.Attrs().Xdp.ProgId != uint32(id) {
		t.Errorf("the Front is not in front any more: %+v", l.Attrs().Xdp)
	}
}
