package xdp

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port"
)

func frameOf(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// indexOf is an interface's.
func indexOf(t testing.TB, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}

// between attaches what program makes to the first of two interfaces on veth, has a frame sent into it without end, and calls f with a function that counts what
// arrives behind the second.
func between(t testing.TB, frame []byte, program func(from, to int) *ebpf.Program, f func(arrived func() uint64)) {
	t.Helper()
	requireKernel(t)
	r, err := blast.New([]blast.Frame{{Bytes: frame}, {Bytes: frame}}, 0)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Burst = 1 << 20
	var l link.Link
	var p *ebpf.Program
	err = r.Near.Do(func() (err error) {
		from := indexOf(t, blast.A)
		p = program(from, indexOf(t, blast.B))
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: from, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	f(r.Arrived)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// loaded is a program in the kernel, between two interfaces that are its ports 1 and 2.
func loaded(t testing.TB, name, entries string, from, to int) *Executor {
	t.Helper()
	prog, tree, err := p4.LoadTree(read(t, "../../../p4src/"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := stf.Parse(strings.NewReader(entries))
	if err == nil {
		err = stf.Configure(sw, all)
	}
	if err != nil {
		t.Fatal(err)
	}
	x, err := New(tree, sw.Config(), Options{From: []Source{{from, 1}}, To: map[uint32]Target{1: {from, 1518}, 2: {to, 1518}}})
	if err != nil {
		t.Fatal(err)
	}
	x.Begin(sw, 0)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestVeth: frames go through a program between two interfaces, as long as an entry leads there.
func TestVeth(t *testing.T) {
	var x *Executor
	between(t, frameOf(t, bridgeFrame), func(from, to int) *ebpf.Program {
		x = loaded(t, "l2_bridge", bridgeEntries, from, to)
		return x.Program()
	}, func(arrived func() uint64) {
		wait := func(what string, ok func() bool) {
			t.Helper()
			for range 500 {
				if ok() {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Fatalf("5 s later: %s", what)
		}
		wait("no frames arrive", func() bool { return arrived() > 1000 })
		// An entry that adds a tag: the frame gets longer.
		_, err := x.sw.Insert("bridge_egress.vlan_egress", p4.Entry{Key: []p4.Match{{Value: []byte{2}}, {Value: []byte{1}}, {}},
			Action: p4.Action{Name: "bridge_egress.tag"}})
		if err != nil {
			t.Fatal(err)
		}
		from := arrived()
		wait("no frames arrive with a tag", func() bool { return arrived() > from+1000 })
		h, err := x.sw.Find("bridge_ingress.dmac", []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 2}}}, 0)
		if err == nil {
			err = x.sw.Delete("bridge_ingress.dmac", h)
		}
		if err != nil {
			t.Fatal(err)
		}
		wait("the entry is gone, and frames still arrive", func() bool {
			from := arrived()
			time.Sleep(50 * time.Millisecond)
			return arrived() == from
		})
	})
	all, err := x.Outcomes()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		switch {
		case o.Name == "forwarded" || o.Name == "no-replica": // it is flooded, to a group that is not there
			if o.Frames < 1000 {
				t.Errorf("%s: %d frames", o.Name, o.Frames)
			}
		case o.Frames > 0:
			t.Errorf("%s: %d frames", o.Name, o.Frames)
		}
	}
}

// vethBenchmark reports millions of frames a second.
func vethBenchmark(b *testing.B, frame string, program func(from, to int) *ebpf.Program) {
	between(b, frameOf(b, frame), program, func(arrived func() uint64) {
		time.Sleep(200 * time.Millisecond)
		most := 0.0
		for b.Loop() {
			from, since := arrived(), time.Now()
			time.Sleep(300 * time.Millisecond)
			most = max(most, float64(arrived()-from)/float64(time.Since(since).Microseconds()))
		}
		b.ReportMetric(most, "Mpps")
	})
}

func BenchmarkVethBridge(b *testing.B) {
	vethBenchmark(b, bridgeFrame, func(from, to int) *ebpf.Program { return loaded(b, "l2_bridge", bridgeEntries, from, to).Program() })
}

func BenchmarkVethRouter(b *testing.B) {
	vethBenchmark(b, routerFrame, func(from, to int) *ebpf.Program {
		return loaded(b, "ipv4_router", routerEntries, from, to).Program()
	})
}

// BenchmarkVethRedirect is what a program does that only sends frames on.
func BenchmarkVethRedirect(b *testing.B) {
	vethBenchmark(b, bridgeFrame, func(_, to int) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close() })
		return p
	})
}
