package xdp_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/xdp"
	"github.com/quillon/quillon/nf/port"
)

// BenchmarkFloor runs the loads of quillon bench between two veth pairs, through the P4 program, and through the two programs that have least to do: one that drops all
// frames, and one that redirects them. ns/run is the least mean of a window by the kernel's run-time statistics, and Mpps the most frames of a window. What a program
// takes beyond the one that redirects is its own.
func BenchmarkFloor(b *testing.B) {
	for _, of := range []struct {
		name string
		load func() (*bench.Load, error)
	}{{"Bridge", bench.BridgeLoad}, {"Router", func() (*bench.Load, error) { return bench.RouterLoad(10_000) }}, {"Steer", bench.SteerLoad}} {
		for _, program := range []string{"Drops", "Redirects", "P4"} {
			b.Run(of.name+"/"+program, func(b *testing.B) {
				if os.Geteuid() != 0 {
					b.Skip("it needs root, to load programs")
				}
				l, err := of.load()
				if err != nil {
					b.Fatal(err)
				}
				floor(b, l, program)
			})
		}
	}
}

// floor runs a load through a program.
func floor(b *testing.B, l *bench.Load, program string) {
	r, err := blast.New(l.Laps, 0)
	if errors.Is(err, port.ErrNotSupported) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	r.Burst = 1 << 20
	var p *ebpf.Program
	err = r.Near.Do(func() error {
		from, err := netlink.LinkByName(blast.A)
		if err != nil {
			return err
		}
		to, err := netlink.LinkByName(blast.B)
		if err != nil {
			return err
		}
		p = programOf(b, l, program, from.Attrs().Index, to.Attrs().Index)
		at, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: from.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			b.Cleanup(func() { _ = at.Close() })
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	time.Sleep(200 * time.Millisecond)
	most, least := 0.0, 0.0
	for b.Loop() {
		from, since := r.Arrived(), time.Now()
		time.Sleep(20 * time.Millisecond)
		most = max(most, float64(r.Arrived()-from)/float64(time.Since(since).Microseconds()))
		if ns := programTime(b, p); least == 0 || ns > 0 && ns < least {
			least = ns
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	if most > 0 {
		b.ReportMetric(most, "Mpps")
	}
	b.ReportMetric(least, "ns/run")
	b.ReportMetric(0, "ns/op")
}

// programTime is the time that a program takes for a frame, by the kernel's statistics over a window, in ns.
func programTime(b *testing.B, p *ebpf.Program) float64 {
	on, err := ebpf.EnableStats(0) // BPF_STATS_RUN_TIME
	if err != nil {
		b.Fatal(err)
	}
	defer on.Close()
	from, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	to, err := p.Stats()
	if err != nil || to.RunCount == from.RunCount {
		return 0
	}
	return float64(to.Runtime-from.Runtime) / float64(to.RunCount-from.RunCount)
}

// programOf makes one of the programs, between two interfaces that are the ports 1 and 2.
func programOf(b *testing.B, l *bench.Load, program string, from, to int) *ebpf.Program {
	code := asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()} // XDP_DROP
	switch program {
	case "P4":
		return loadedP4(b, l, from, to).Program()
	case "Redirects":
		code = asm.Instructions{asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()}
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: code})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// loadedP4 is a load's program with its entries in the kernel.
func loadedP4(b *testing.B, l *bench.Load, from, to int) *xdp.Executor {
	src, err := l.Source()
	if err != nil {
		b.Fatal(err)
	}
	prog, tree, err := p4.LoadTree(src)
	if err != nil {
		b.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		b.Fatal(err)
	}
	x, err := xdp.New(tree, sw.Config(), xdp.Options{From: []xdp.Source{{Index: from, Port: 1}}, To: map[uint32]xdp.Target{1: {Index: from, Longest: 1 << 16}, 2: {Index: to, Longest: 1 << 16}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = x.Close() })
	x.Begin(sw, 0)
	for _, e := range l.Entries {
		if _, err := sw.Insert(e.Table, e.Entry); err != nil {
			b.Fatal(err)
		}
	}
	return x
}
