package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// vethRound is how long a round on veth lasts.
const vethRound = 200 * time.Millisecond

// MixWindow keeps the recorded mix free of losses: three quarters of a ring.
// Less would measure how long a frame takes, not how many pass.
const MixWindow = 768

// vethBenchmarks run over AF_XDP between two veth pairs.
func vethBenchmarks() []Benchmark {
	bs := []Benchmark{{"veth-steer", "clover-steer on a recorded Clover mix over AF_XDP on veth, in laps in which all connections go on", func(clk clock.Clock) (*contest, error) {
		m, err := recordMix(0)
		if err != nil {
			return nil, fmt.Errorf("record the mix: %w", err)
		}
		frames, _, err := m.laps()
		if err != nil {
			return nil, fmt.Errorf("the mix in laps: %w", err)
		}
		return onVeth(clk, frames, MixWindow)
	}}}
	for _, n := range []int{64, 1024} {
		bs = append(bs, Benchmark{fmt.Sprintf("veth-kernel-%d", n), fmt.Sprintf("frames of %d bytes that no app wants, crossing in the kernel on veth", n), func(clk clock.Clock) (*contest, error) {
			return onVeth(clk, []blast.Frame{{Bytes: strangerFrame(n)}}, 0)
		}})
	}
	return bs
}

// list is the mix, frame by frame.
func (m *mix) list() (frames [][]byte) {
	from := 0
	for _, b := range m.batches {
		for _, end := range b.ends {
			frames = append(frames, m.bytes[from:end])
			from = end
		}
	}
	return frames
}

// strangerFrame is a frame of n bytes that is not RoCE: an Ethernet type for
// experiments (IEEE 802).
func strangerFrame(n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5})
	return f
}

// vethRange is a generator between two veth pairs, and the instance that runs there in this round.
type vethRange struct {
	r       *blast.Range
	clk     clock.Clock
	ctx     context.Context
	cancel  context.CancelFunc
	sending chan error
	frames  []blast.Frame
	x       *open.Running
	kernel  *KernelFigures // of what the kernel ran; nil: not looked at
}

// newVethRange makes the veth pairs, and begins to send the frames.
func newVethRange(clk clock.Clock, frames []blast.Frame, window int) (*vethRange, error) {
	r, err := blast.New(frames, window)
	if err != nil {
		return nil, err
	}
	v := &vethRange{r: r, clk: clk, sending: make(chan error, 1), frames: frames}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	go func() { v.sending <- r.Run(v.ctx) }()
	return v, nil
}

// begin ends the instance that runs, and starts another one.
func (v *vethRange) begin(g graph.Config, o open.Config) error {
	if err := v.stop(); err != nil {
		return err
	}
	g.Kinds, o.Clock = registry.Kinds(), v.clk
	return v.r.Near.Do(func() (err error) {
		v.x, err = open.Start(g, o)
		return err
	})
}

func (v *vethRange) stop() error {
	if v.x == nil {
		return nil
	}
	x := v.x
	v.x = nil
	return v.r.Near.Do(x.Stop)
}

// timed counts what arrives in a round.
func (v *vethRange) timed() (int, error) {
	from := v.r.Arrived()
	select {
	case <-v.x.Ended():
		return 0, v.x.Err()
	case err := <-v.sending:
		v.sending <- err
		return 0, fmt.Errorf("the generator stopped: %w", err)
	case <-time.After(vethRound):
	}
	// A machine that is busy otherwise may need longer.
	v.r.Settle(v.ctx, 100, 10*vethRound)
	return int(v.r.Arrived() - from), nil
}

func (v *vethRange) close() {
	_ = v.stop()
	v.cancel()
	<-v.sending
	v.r.Close()
}

// contest is one of two runs on the range.
func (v *vethRange) contest(work, pass Run) *contest {
	total := 0
	for _, f := range v.frames {
		total += len(f.Bytes)
	}
	return &contest{bytes: float64(total) / float64(len(v.frames)), work: work, pass: pass, close: v.close,
		after: func(r *Result) { r.Kernel = v.kernel }}
}

// onVeth runs frames through an instance that is changed between clover-steer
// and wire under traffic: what clover-steer does not want crosses in the
// kernel, and this wire wants everything.
func onVeth(clk clock.Clock, frames []blast.Frame, window int) (*contest, error) {
	v, err := newVethRange(clk, frames, window)
	if err != nil {
		return nil, err
	}
	spec := func(kind string, args graph.Args) *graph.Spec {
		s := Between(kind, args)
		s.Ports["pa"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.A, "pair": "pb"}}
		s.Ports["pb"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.B, "pair": "pa"}}
		return s
	}
	pass, work := spec("wire", graph.Args{"see": "all"}), spec("clover-steer", steerArgs())
	if err := v.begin(graph.Config{Spec: pass}, open.Config{Filter: port.Filter{All: true}}); err != nil {
		v.close()
		return nil, err
	}
	change := func(s *graph.Spec) error {
		plan, err := v.x.Graph.Plan(s)
		if err != nil {
			return err
		}
		return v.x.Graph.Apply(plan)
	}
	with := func(s, other *graph.Spec) Run {
		return func() (func() (int, error), error) {
			// An app that is new has met everybody after a lap. The generator
			// repeats nothing: what waits for a frame that the kernel lost would wait
			// for ever, and the app begins anew.
			for try := 1; ; try++ {
				if err := change(s); err != nil {
					return nil, err
				}
				if v.r.Settle(v.ctx, max(100, len(frames)), 3*time.Second) {
					return v.timed, nil
				}
				if try == 5 {
					return nil, errors.New("too few frames arrive")
				}
				if err := change(other); err != nil {
					return nil, err
				}
			}
		}
	}
	return v.contest(with(work, pass), with(pass, work)), nil
}
