package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	wire "github.com/quillon/quillon/nf/hdr/clio"
)

// clientFlags are the flags of clio client.
type clientFlags struct {
	portEnd
	devices                         []string
	copies, workload                string
	plain, load, alone              bool
	threads, depth, keys, value, op int
	zipf, seconds, patience         float64
	seed                            uint64
	stream                          uint16
}

// clioLatency are latencies, in µs, of operations that succeeded.
type clioLatency struct {
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
}

// clioClient is the result of a client's run.
type clioClient struct {
	Loaded    int         `json:"loaded"` // keys
	LoadS     float64     `json:"load_seconds"`
	Seconds   float64     `json:"seconds"`
	Ops       uint64      `json:"ops"`
	OpsPerS   float64     `json:"ops_per_s"`
	Gbit      float64     `json:"gbit_per_s"` // payload: only values count
	All       clioLatency `json:"latency"`
	Read      clioLatency `json:"read"`
	Write     clioLatency `json:"write"`
	SentAgain uint64      `json:"retransmitted"`
	Unknown   uint64      `json:"unknown"` // operations that got no answer
	Failed    uint64      `json:"failed"`  // operations that the device refused
	Corrupt   uint64      `json:"corrupt"` // reads of values that no client wrote
	Lost      uint64      `json:"frames_lost"`
	Checked   int         `json:"checked,omitempty"` // operations that --alone checked
	Wrong     string      `json:"wrong,omitempty"`
}

// mostAlone is the most operations that --alone records, about 170 bytes each.
const mostAlone = 2_000_000

func newClioClientCmd() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Run YCSB on Clio memory devices",
		Long: `Reads and updates keys of a Clio device (quillon clio device, or a real one with
Clio's key/value store) from a port, by YCSB's mixes: A (50 % writes), B (5 %), C (0 %),
W (100 %), or a share of writes such as 0.2. --load creates the keys first, over the
wire. Several devices: --copies client writes to one after the other, --copies network
leaves that to a board (quillon nf describe replicate); reads go to the first.

Each value that is read must be one that was written for its key. With --alone and
--load all that was told is kept (about 170 bytes an operation, at most 2,000,000 of
them) and checked: one order of all operations must explain every answer. A wrong
answer, an operation without one, and a device that is silent for --patience make the
exit status 1.`,
		Example: "  sudo quillon clio client --port eth2 --me 10.0.0.1 --device 10.0.0.9@02:00:0a:00:00:09 --load\n" +
			"  sudo quillon clio client --port eth2 --me 10.0.0.1 --device 10.0.0.9@02:00:0a:00:00:09 --workload B --seconds 10 --json",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().SortFlags = false
	f.add(cmd)
	cmd.Flags().StringArrayVar(&f.devices, "device", nil, "a device's `IP@MAC`; again for others; needed")
	cmd.Flags().StringVar(&f.copies, "copies", "", "who copies writes to several devices: `client` or network")
	cmd.Flags().BoolVar(&f.plain, "plain", false, "without go-back-N: what is not answered is asked again")
	cmd.Flags().StringVar(&f.workload, "workload", "A", "YCSB `mix`: A, B, C, W, or the share of writes")
	cmd.Flags().BoolVar(&f.load, "load", false, "create the keys first; those that are there get the same value")
	cmd.Flags().IntVar(&f.keys, "keys", 100_000, "keys in the store: 1, 2, 3 ...")
	cmd.Flags().IntVar(&f.value, "value", 1024, "bytes of a value")
	cmd.Flags().Float64Var(&f.zipf, "zipf", ycsb.DefaultTheta, "skew of the keys; 0 = all alike")
	cmd.Flags().IntVar(&f.threads, "threads", 8, "sessions, each with operations of its own")
	cmd.Flags().IntVar(&f.depth, "depth", 1, "operations that a thread has under way")
	cmd.Flags().Float64Var(&f.seconds, "seconds", 5, "of the workload; 0: until --ops are done, or interrupted")
	cmd.Flags().IntVar(&f.op, "ops", 0, "operations of the workload; 0: as many as there is time for")
	cmd.Flags().BoolVar(&f.alone, "alone", false, "no other client writes: check what was told as a whole; with --load")
	cmd.Flags().Float64Var(&f.patience, "patience", 5, "seconds without the end of any operation, until the device counts as dead")
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "of the workload")
	cmd.Flags().Uint16Var(&f.stream, "stream", 1, "number of this client among those that write the same keys")
	return cmd
}

// mixOf returns the workload that --workload names.
func mixOf(workload string) (ycsb.Mix, error) {
	if share, err := strconv.ParseFloat(workload, 64); err == nil && share >= 0 && share <= 1 {
		return ycsb.Mix{Name: workload, Writes: share}, nil
	}
	m, err := ycsb.MixNamed(workload)
	if err != nil {
		err = fmt.Errorf("--workload %q: want A (50 %% writes), B (5 %%), C (0 %%), W (100 %%), or the share of writes from 0 to 1", workload)
	}
	return m, err
}

// bounds are the least and the greatest allowed value of a flag.
type bounds struct {
	flag        string
	v, min, max float64
}

// within returns an error about the first value that is outside its bounds.
func within(all ...bounds) error {
	for _, b := range all {
		if !(b.v >= b.min && b.v <= b.max) {
			return fmt.Errorf("--%s must be from %v to %v, not %v", b.flag, b.min, b.max, b.v)
		}
	}
	return nil
}

// check refuses wrong flags, and returns the devices and which side copies writes.
func (f *clientFlags) check() (ends []wire.End, how clio.Replication, err error) {
	if err := within(bounds{"threads", float64(f.threads), 1, 500}, bounds{"depth", float64(f.depth), 1, 32}, bounds{"keys", float64(f.keys), 1, 1 << 24},
		bounds{"value", float64(f.value), clio.MinValue, clio.MaxValue}, bounds{"zipf", f.zipf, 0, 10}, bounds{"seconds", f.seconds, 0, 1e6},
		bounds{"ops", float64(f.op), 0, 1e12}, bounds{"patience", f.patience, 0.1, 3600}); err != nil {
		return nil, 0, err
	}
	if f.alone && !f.load {
		return nil, 0, errors.New("--alone needs --load: what keys hold at the beginning must be known")
	}
	for i, text := range f.devices {
		e, _, err := endAddr("device", text, false)
		if err != nil {
			return nil, 0, err
		}
		for k, o := range ends {
			if o.IP == e.IP || o.MAC == e.MAC {
				return nil, 0, fmt.Errorf("--device %s and --device %s have an address in common", f.devices[k], f.devices[i])
			}
		}
		ends = append(ends, e)
	}
	switch {
	case len(ends) == 0:
		return nil, 0, errors.New("no device given: add --device IP@MAC, as quillon clio device prints it")
	case f.copies == "client":
		how = clio.ByClient
	case f.copies == "network":
		how = clio.ByNetwork
	case f.copies != "":
		return nil, 0, fmt.Errorf("--copies %s: want client or network", f.copies)
	case len(ends) > 1:
		return nil, 0, errors.New("several devices: say who copies writes, --copies client or --copies network")
	}
	return ends, how, nil
}

func (f *clientFlags) run(cmd *cobra.Command) (err error) {
	mix, err := mixOf(f.workload)
	if err != nil {
		return err
	}
	devices, how, err := f.check()
	if err != nil {
		return err
	}
	clk := clock.NewWall()
	if err := f.begin(clk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.opened.Close()) }()
	// Sessions must not reuse UDP ports of an earlier client, because a device remembers its sessions.
	f.end.Port = uint16(2048 + os.Getpid()*512%(1<<16-4096))
	c, err := clio.NewClient(clio.ClientConfig{Me: f.end, Devices: devices, Pool: f.pool(), Sessions: f.threads, Depth: f.depth,
		Replication: how, Reliable: !f.plain, GBN: gbn.Config{Tries: 1 + int(f.patience*250)}, Timeout: 20 * time.Millisecond, Patience: time.Duration(f.patience * float64(time.Second)),
		PID: uint16(os.Getpid())})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, done := interrupted(cmd.Context())
	defer done()
	x := &clientRun{f: f, clk: clk, c: c, line: newProgress(cmd)}
	err = x.all(ctx, mix)
	x.line.done()
	if err != nil {
		return err
	}
	return errors.Join(show(cmd, x.r, x.r.text), x.r.verdict())
}

// clientRun is a client's run.
type clientRun struct {
	f     *clientFlags
	clk   clock.Clock
	c     *clio.Client
	stage clio.Stage
	line  *progress
	r     clioClient
}

// wait is a step of a client's run.
type wait struct {
	step     string // the name of the step
	why      string // the message when count has not changed for patience seconds; has a %v for them
	patience float64
	flags    string // the flags that say which peer the step waits for, and how long
	count    func() uint64
	err      func() error // an error of the clients; nil: they report none
	done     func(now clock.Time) bool
}

// until drives clients until the step is done, the clients report an error, or count has not changed for
// patience seconds.
func (w wait) until(ctx context.Context, clk clock.Clock, line *progress, drive func(ctx context.Context, look func(now clock.Time) error) error) error {
	begun := clk.Now()
	last, moved, shown, at := w.count(), begun, begun, w.count()
	err := drive(ctx, func(now clock.Time) error {
		n := w.count()
		if n != last {
			last, moved = n, now
		}
		if w.err != nil {
			if err := w.err(); err != nil {
				return failed{err}
			}
		}
		switch {
		case w.done(now):
			return errEnough
		case now.Sub(moved).Seconds() > w.patience:
			return failed{fmt.Errorf("%s: %s (%s)", w.step, fmt.Sprintf(w.why, w.patience), w.flags)}
		}
		if d := now.Sub(shown); d >= quiet/8 {
			line.show(now, w.step, fmt.Sprintf("%s: %d done, %.0f a second", w.step, n, float64(n-at)/d.Seconds()))
			shown, at = now, n
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// until runs the client until done is true, or until no operation has ended for --patience seconds.
func (x *clientRun) until(ctx context.Context, step string, count func() uint64, done func(now clock.Time) bool) error {
	w := wait{step: step, why: "no operation has ended for %v s: the device, or the way to it, is dead", patience: x.f.patience, flags: "--device, --patience", count: count, done: done}
	return w.until(ctx, x.clk, x.line, func(ctx context.Context, look func(now clock.Time) error) error {
		return x.f.portEnd.run(ctx, x.clk, x.c, &x.stage, look)
	})
}

// all loads the keys, runs the workload, waits for the last answers, and checks what --alone recorded.
func (x *clientRun) all(ctx context.Context, mix ycsb.Mix) error {
	f, keys := x.f, ycsb.Sequential(1, x.f.keys)
	if f.load {
		l, err := clio.NewFiller(x.c, keys, f.value)
		if err != nil {
			return err
		}
		x.stage.App = l
		begun := x.clk.Now()
		if err := x.until(ctx, "loading", func() uint64 { return uint64(l.Filled() + l.Failed()) }, func(clock.Time) bool { return l.Idle() }); err != nil {
			return err
		}
		x.r.Loaded, x.r.LoadS = l.Filled(), x.clk.Now().Sub(begun).Seconds()
		if l.Failed() > 0 {
			return failed{fmt.Errorf("%d of %d keys could not be created: the device has no room (quillon clio device --keys)", l.Failed(), len(keys))}
		}
	}
	var log *history.Log[history.Register, uint64]
	most := f.op
	if f.alone {
		log = &history.Log[history.Register, uint64]{}
		if most == 0 || most > mostAlone {
			most = mostAlone
		}
	}
	meter := clio.NewMeter(f.value)
	l, err := clio.NewLoad(clio.LoadConfig{Client: x.c, YCSB: ycsb.Config{Mix: mix, Theta: f.zipf, Keys: keys, Seed: f.seed},
		Stream: uint64(f.stream), ValueSize: f.value, Ops: most, Log: log, Done: meter.Add})
	if err != nil {
		return err
	}
	x.stage.App = l
	count := func() uint64 { s := l.Stats(); return s.Reads + s.Writes + s.Unknown + s.Failed }
	begun := x.clk.Now()
	over := begun.Add(time.Duration(f.seconds * float64(time.Second)))
	err = x.until(ctx, "YCSB "+mix.Name, count, func(now clock.Time) bool { return l.Idle() || f.seconds > 0 && now >= over })
	x.r.Seconds = x.clk.Now().Sub(begun).Seconds()
	if err != nil && ctx.Err() == nil {
		return err
	}
	l.Stop() // also after an interrupt: the result so far is printed
	if err := x.until(context.WithoutCancel(ctx), "the last answers", count, func(clock.Time) bool { return l.Idle() }); err != nil {
		return err
	}
	x.measured(l, meter)
	if log != nil {
		x.r.Checked = len(log.Ops())
		if err := history.Check(history.Registers(nil), log, 0); err != nil {
			x.r.Wrong = err.Error()
		}
	}
	return nil
}

func (x *clientRun) measured(l *clio.Load, m *clio.Meter) {
	r, s := &x.r, l.Stats()
	r.Ops = m.Ops()
	r.OpsPerS = float64(r.Ops) / r.Seconds
	r.Gbit = m.Gbit(time.Duration(r.Seconds * float64(time.Second)))
	r.Unknown, r.Failed, r.Corrupt = s.Unknown, s.Failed, s.Corrupt
	r.SentAgain, r.Lost = x.c.GBN().Retransmitted+x.c.Stats().Repeated, x.f.lost()
	r.All, r.Read, r.Write = latencyOf(m.All()), latencyOf(m.Read), latencyOf(m.Write)
}

// latencyOf summarizes a histogram of nanoseconds in µs; an empty one gives zeros.
func latencyOf(h *hdrhistogram.Histogram) clioLatency {
	if h.TotalCount() == 0 {
		return clioLatency{}
	}
	us := func(ns float64) float64 { return math.Round(ns/10) / 100 }
	return clioLatency{us(h.Mean()), us(float64(h.ValueAtQuantile(50))), us(float64(h.ValueAtQuantile(99)))}
}

func (r *clioClient) text(w io.Writer) {
	if r.Loaded > 0 {
		fmt.Fprintf(w, "%d keys created in %.1f s\n", r.Loaded, r.LoadS)
	}
	fmt.Fprintf(w, "%.0f operations a second, %.3f Gbit/s of values, in %.1f s\n", r.OpsPerS, r.Gbit, r.Seconds)
	fmt.Fprintln(w, "\tmean us\tp50\tp99")
	for _, l := range []struct {
		name string
		clioLatency
	}{{"all", r.All}, {"reads", r.Read}, {"writes", r.Write}} {
		if l.Mean > 0 {
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\n", l.name, l.Mean, l.P50, l.P99)
		}
	}
	fmt.Fprintf(w, "%d frames sent again, %d lost; %d operations without an answer, %d refused, %d reads of what nobody wrote\n",
		r.SentAgain, r.Lost, r.Unknown, r.Failed, r.Corrupt)
	if r.Checked > 0 && r.Wrong == "" {
		fmt.Fprintf(w, "%d operations are linearizable\n", r.Checked)
	}
}

// verdict returns an error if a check failed.
func (r *clioClient) verdict() error {
	switch {
	case r.Wrong != "":
		return failed{errors.New(r.Wrong)}
	case r.Corrupt > 0:
		return failed{fmt.Errorf("%d reads had values that nobody wrote", r.Corrupt)}
	case r.Failed > 0:
		return failed{fmt.Errorf("%d operations were refused: are the keys there? (--load, --keys)", r.Failed)}
	case r.Unknown > 0:
		return failed{fmt.Errorf("%d operations had no answer", r.Unknown)}
	case r.Ops == 0:
		return failed{errors.New("no operation was done")}
	}
	return nil
}

// endText returns an address in the form that --device takes.
func endText(e wire.End) string {
	return netip.AddrFrom4(e.IP).String() + "@" + net.HardwareAddr(e.MAC[:]).String()
}
