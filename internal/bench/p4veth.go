package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/xdp"
	"github.com/quillon/quillon/nf/port/open"
)

// KernelFigures are those of a P4 program in the kernel.
type KernelFigures struct {
	// Share is the part of the frames that came to their end in the kernel.
	Share float64 `json:"share"`
	// NsPerRun is the program's time a frame by the kernel's run-time statistics, their own part included; 0: they cannot be had.
	NsPerRun float64 `json:"ns_per_run"`
}

// p4VethBenchmarks run P4 programs in the kernel between two veth pairs.
func p4VethBenchmarks() []Benchmark {
	of := func(name, about string, window int, load func() (*Load, error)) Benchmark {
		about += "; in the place of pass-through: by the engine, over AF_XDP"
		return Benchmark{name, about, func(clk clock.Clock) (*contest, error) {
			l, err := load()
			if err != nil {
				return nil, err
			}
			return l.onVeth(clk, window)
		}}
	}
	return []Benchmark{
		of("veth-p4-bridge", "l2_bridge in the kernel on veth: known stations, frames of 64 bytes", 0, BridgeLoad),
		of("veth-p4-router", "ipv4_router in the kernel on veth: 10,000 routes, frames of 64 bytes", 0, func() (*Load, error) { return RouterLoad(10_000) }),
		of("veth-p4-steer", "swordbox_steer in the kernel on veth, as far as it can be: a recorded Clover mix, in laps", MixWindow, SteerLoad),
	}
}

// stations are those of BridgeLoad on either side.
const stations = 512

// BridgeLoad is l2_bridge with stations that it knows, and a frame from each on port 1 to one on port 2.
func BridgeLoad() (*Load, error) {
	l := &Load{Program: "l2_bridge", about: "bridges frames of 64 bytes between known stations"}
	if err := l.load(); err != nil {
		return nil, err
	}
	mac := func(side byte, n int) []byte { return []byte{2, side, 0, 0, byte(n >> 8), byte(n)} }
	for n := range stations {
		for side := byte(1); side <= 2; side++ {
			key := []p4.Match{{Value: []byte{1}}, {Value: mac(side, n)}}
			l.add("bridge_ingress.smac", p4.Entry{Key: key, Action: p4.Action{Name: "bridge_ingress.known", Args: [][]byte{{side}}}})
			l.add("bridge_ingress.dmac", p4.Entry{Key: key, Action: p4.Action{Name: "bridge_ingress.forward", Args: [][]byte{{side}}}})
		}
		f := make([]byte, 64)
		copy(f, mac(2, (n*7+3)%stations))
		copy(f[6:], mac(1, n))
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		l.Laps = append(l.Laps, blast.Frame{Bytes: f})
	}
	return l, nil
}

// vethP4 is a range on which instances with a load take turns.
type vethP4 struct {
	*Load
	*vethRange
}

// onVeth runs the load's frames through instances whose app is run by the kernel, and by the engine.
func (l *Load) onVeth(clk clock.Clock, window int) (*contest, error) {
	r, err := newVethRange(clk, l.Laps, window)
	if err != nil {
		return nil, err
	}
	v := &vethP4{l, r}
	of := func(exec string) Run {
		return func() (func() (int, error), error) { return v.round(exec) }
	}
	return v.vethRange.contest(of(p4.ExecXDP), of(p4.ExecEngine)), nil
}

// round begins an instance, and has it timed when it has met all frames.
func (v *vethP4) round(exec string) (func() (int, error), error) {
	spec := P4Spec()
	spec.Ports["pa"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}
	spec.Ports["pb"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}
	spec.Apps["nf"] = graph.AppSpec{Kind: "p4", Args: graph.Args{"exec": exec}}
	if err := v.begin(graph.Config{Spec: spec, Nice: -20}, open.Config{}); err != nil {
		return nil, err
	}
	if err := v.Install(v.x.Graph); err != nil {
		return nil, err
	}
	if exec == p4.ExecXDP {
		if err := v.untilRuns(); err != nil {
			return nil, err
		}
	}
	if !v.r.Settle(v.ctx, max(1000, 2*len(v.Laps)), 20*time.Second) {
		return nil, errors.New("too few frames arrive")
	}
	if exec == p4.ExecXDP {
		if err := v.look(); err != nil {
			return nil, err
		}
	}
	return v.timed, nil
}

// shown is what the app shows of the kernel.
func (v *vethP4) shown() (r xdp.Running, err error) {
	e := v.x.Graph.Visit("nf", 0, func(a graph.App) {
		r, _ = a.(*p4.App).Report().(p4.Report).Kernel.(xdp.Running)
	})
	return r, e
}

func (v *vethP4) untilRuns() error {
	for range 1000 {
		r, err := v.shown()
		if err != nil || r.Runs {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	r, err := v.shown()
	return errors.Join(err, fmt.Errorf("the kernel runs nothing: %s", r.Why))
}

// look finds the share of the kernel and the time of its program.
func (v *vethP4) look() error {
	return v.share(func() (finished, given uint64, err error) {
		r, err := v.shown()
		return r.Finished, r.Given, err
	})
}

// share takes what the kernel has finished and given up by its counts, and its program's time, beside what is timed: statistics take
// time themselves. Of times it keeps the least.
func (v *vethRange) share(counts func() (finished, given uint64, err error)) error {
	finished, given, err := counts()
	if err != nil {
		return err
	}
	ns, err := v.programTime(vethRound)
	if err != nil {
		return err
	}
	finishedNow, givenNow, err := counts()
	if err != nil {
		return err
	}
	k := &KernelFigures{NsPerRun: ns}
	if n := finishedNow - finished + givenNow - given; n > 0 {
		k.Share = float64(finishedNow-finished) / float64(n)
	}
	if v.kernel != nil && (v.kernel.NsPerRun < ns || ns == 0) && v.kernel.NsPerRun > 0 {
		k.NsPerRun = v.kernel.NsPerRun
	}
	v.kernel = k
	return nil
}

// programTime is the time of the first interface's program a frame, in ns, over some time.
func (v *vethRange) programTime(d time.Duration) (ns float64, err error) {
	err = v.r.Near.Do(func() error {
		l, err := netlink.LinkByName(blast.A)
		if err != nil {
			return err
		}
		a, err := xsk.AttachedTo(l.Attrs().Index)
		if err != nil || a == nil {
			return errors.Join(err, errors.New("no program is attached"))
		}
		defer a.Close()
		on, err := ebpf.EnableStats(0) // BPF_STATS_RUN_TIME
		if err != nil {
			return err
		}
		defer on.Close()
		from, err := a.Prog.Stats()
		if err != nil {
			return err
		}
		time.Sleep(d)
		v.r.Settle(v.ctx, 1000, 20*d) // on a busy machine nothing may have passed
		to, err := a.Prog.Stats()
		if err == nil && to.RunCount > from.RunCount {
			ns = float64(to.Runtime-from.Runtime) / float64(to.RunCount-from.RunCount)
		}
		return err
	})
	return ns, err
}
