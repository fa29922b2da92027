package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// here is the value of --server for a memory node in the client's process.
const here = "mem"

// rackClientFlags are the flags of rack STORE client.
type rackClientFlags struct {
	portEnd
	name             string
	kind             *store.Kind // nil: Clover
	spec             memorySpec  // of the memory node in this process, for --server mem
	server, workload string
	zipf             float64
	deletes, ranges  float64
	sessions, ops    int
	keys, value      int
	words            int
	work             string
	seconds          float64
	patience         float64
	alone            bool
	seed             uint64
}

// rackClient is the result of a client's run.
type rackClient struct {
	Store    string       `json:"store"`
	Work     string       `json:"work"`
	Sessions int          `json:"sessions"`
	Seconds  float64      `json:"seconds"`
	Ops      uint64       `json:"ops"`
	OpsPerS  float64      `json:"ops_per_s"`
	FirstTry float64      `json:"first_try"` // share of the operations, 0 to 1
	Read     *clioLatency `json:"read,omitempty"`
	Write    *clioLatency `json:"write,omitempty"`
	Errors   uint64       `json:"errors"`
	Unknown  uint64       `json:"unknown"` // operations whose connection broke: they may have happened or not
	Lost     uint64       `json:"frames_lost"`
	Facts    []store.Fact `json:"counts"`
	// Verdict is the result of the check of all operations, with --alone or a memory node in this process.
	Verdict *store.Verdict `json:"integrity,omitempty"`
}

func newRackClientCmd(k *store.Kind) *cobra.Command {
	f := rackClientFlags{name: k.Name, kind: k}
	what := `Reads and writes keys of a memory node (quillon rack ` + k.Name + ` memory) by RDMA, in
one of the mixes of the benchmark YCSB: A (50 % writes), B (5 %), C (0 %), W (100 %), or a
share of writes such as 0.2.`
	if len(k.Works) > 0 {
		what = `Takes locks and counts on words of a memory node (quillon rack ` + k.Name + ` memory),
which says what is to be done (--work there).`
	}
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Run a client of " + k.Name + " on a port",
		Long: what + ` A session has one
operation under way, over a connection of its own (a queue pair of RDMA). --server mem
has a memory node in this process, on a wire in memory: that needs no root, and no port.

With --alone (no other client works meanwhile, or has before) what the sessions were told
is kept, and at the end one order of all operations must explain it; with --server mem
the memory is looked at, too. What is wrong makes the exit status 1, and so does an
operation that failed. All waits are bounded by --patience.`,
		Example: fmt.Sprintf("  sudo quillon rack %s client --port eth2 --me 10.0.0.1 --server 10.0.0.9@02:00:0a:00:00:09 --seconds 5\n  quillon rack %[1]s client --server mem --seconds 1 --json", k.Name),
		Args:    exactly(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.portEnd.add(cmd)
	c := cmd.Flags()
	c.SortFlags = false
	c.StringVar(&f.server, "server", "", "the memory node, as it prints itself: `IP@MAC`, or mem; needed")
	if len(k.Works) == 0 {
		c.StringVar(&f.workload, "workload", "A", "YCSB `mix`: A, B, C, W, or the share of writes")
		c.Float64Var(&f.zipf, "zipf", ycsb.DefaultTheta, "how much some keys are asked for more often than others (Zipf's exponent); 0: all alike")
		c.IntVar(&f.keys, "keys", 0, "keys to use; 0: all that the memory node has (of mem 10,000)")
		c.IntVar(&f.value, "value", 0, "bytes of a value, which must be the memory node's; 0: as it has")
	} else {
		c.IntVar(&f.words, "words", 8, "of a memory node in this process: words")
		c.StringVar(&f.work, "work", k.Works[0], "of a memory node in this process: what is done")
	}
	if k.Ordered {
		c.Float64Var(&f.deletes, "deletes", 0, "share of the writes that delete a key")
		c.Float64Var(&f.ranges, "ranges", 0, "share of the reads that are of up to 16 keys in a row")
	}
	c.IntVar(&f.sessions, "sessions", 8, "sessions, each with a connection of its own")
	c.Float64Var(&f.seconds, "seconds", 5, "time to work; 0: until --ops are done, or interrupted")
	c.IntVar(&f.ops, "ops", 0, "operations to do at most; 0: no limit")
	c.BoolVar(&f.alone, "alone", false, "check everything, as nobody else works on the memory node")
	c.Float64Var(&f.patience, "patience", 10, "seconds to wait for a memory node, and for operations")
	c.Uint64Var(&f.seed, "seed", 1, "number that the random choice of keys begins with")
	return cmd
}

// mix returns the workload.
func (f *rackClientFlags) mix() (ycsb.Mix, error) {
	if f.kind != nil && len(f.kind.Works) > 0 {
		return ycsb.Mix{}, nil
	}
	return mixOf(f.workload)
}

// check refuses wrong flags, and returns the address of the memory node.
func (f *rackClientFlags) check() (server wire.End, err error) {
	if err := within(bounds{"sessions", float64(f.sessions), 1, 1024}, bounds{"keys", float64(f.keys), 0, 1 << 24}, bounds{"value", float64(f.value), 0, 1 << 20},
		bounds{"zipf", f.zipf, 0, 10}, bounds{"deletes", f.deletes, 0, 1}, bounds{"ranges", f.ranges, 0, 1},
		bounds{"seconds", f.seconds, 0, 1e6}, bounds{"ops", float64(f.ops), 0, 1e12}, bounds{"patience", f.patience, 0.1, 3600}); err != nil {
		return server, err
	}
	switch f.server {
	case "":
		return server, errors.New("no memory node given: add --server IP@MAC, as quillon rack " + f.name + " memory prints it" + f.orMem())
	case here:
		if f.kind == nil {
			break
		}
		if f.port != "" || f.me != "" {
			return server, errors.New("--server mem is in this process, and has no --port and no --me")
		}
		f.alone = true
		f.spec = memorySpec{store.Spec{Keys: f.keys, Value: f.value, Clients: 1, Sessions: f.sessions}}
		f.spec.Keys = cmp.Or(f.spec.Keys, 10_000)
		if len(f.kind.Works) > 0 {
			f.spec.Keys, f.spec.Work = f.words, f.work
		}
		return server, f.spec.check(f.kind)
	}
	server, _, err = endAddr("server", f.server, false)
	return server, err
}

func (f *rackClientFlags) orMem() string {
	if f.kind == nil {
		return ""
	}
	return ", or --server mem"
}

func (f *rackClientFlags) run(cmd *cobra.Command) (err error) {
	mix, err := f.mix()
	if err != nil {
		return err
	}
	server, err := f.check()
	if err != nil {
		return err
	}
	x := &rackRun{f: f, clk: clock.NewWall(), line: newProgress(cmd)}
	fleet := store.NewFleet(f.kind, store.Work{Mix: mix, Theta: f.zipf, Deletes: f.deletes, Ranges: f.ranges, Keys: f.keys, Value: f.value, Seed: f.seed, Keep: f.alone})
	x.fleet = fleet
	if f.server == here {
		err = x.inMemory(fleet)
	} else {
		err = x.onPort(server, func(nic *rnic.NIC) (host.App, error) {
			return fleet.Add(nic, netip.AddrFrom4(server.IP), server.MAC, f.sessions, x.nonce())
		})
	}
	if err != nil {
		return err
	}
	return x.runs(cmd)
}

// clients are the clients of one machine, as a run drives them.
type clients interface {
	Connected() bool
	Err() error
	// Allow limits how many operations may begin; 0: no limit. It is called before Start.
	Allow(n int)
	Begin()
	Start()
	Stop()
	Spent() bool
	Idle() bool
	// Live returns counts without latencies. Measured is called once, when all sessions are idle.
	Live() store.Meter
	Measured() *store.Meter
	Facts() []store.Fact
	End()
	Ended() bool
	Judge(m store.Store) store.Verdict
}

// runs runs clients that are set up, prints the result, and returns an error if a check failed.
func (x *rackRun) runs(cmd *cobra.Command) (err error) {
	defer func() { err = errors.Join(err, x.close()) }()
	ctx, done := interrupted(cmd.Context())
	defer done()
	err = x.all(ctx)
	x.line.done()
	if err != nil {
		x.leave()
		return err
	}
	return errors.Join(show(cmd, x.r, x.r.text), x.r.verdict())
}

// rackRun is a client's run.
type rackRun struct {
	f     *rackClientFlags
	clk   clock.Clock
	fleet clients
	// drive runs the client, and the memory node if it is in this process, until ctx is done. It calls look
	// each millisecond; an error of look ends it.
	drive  func(ctx context.Context, look func(now clock.Time) error) error
	memory store.Store // in this process; nil: elsewhere
	close  func() error
	lost   func() uint64
	line   *progress
	r      rackClient
}

// nonce returns a number that other clients are unlikely to have, from the clock.
func (x *rackRun) nonce() uint64 { return uint64(x.clk.Now()) & (1<<48 - 1) }

// onPort opens the client's port and makes the client there.
func (x *rackRun) onPort(server wire.End, add func(nic *rnic.NIC) (host.App, error)) error {
	f := x.f
	if err := f.begin(x.clk); err != nil {
		return err
	}
	x.close, x.lost = f.opened.Close, f.portEnd.lost
	if f.end.IP == server.IP || f.end.MAC == server.MAC {
		return errors.Join(fmt.Errorf("--me %s and --server %s have an address in common", f.me, f.server), x.close())
	}
	nic, err := f.soft(x.clk)
	if err != nil {
		return errors.Join(fmt.Errorf("--port %s: %w", f.port, err), x.close())
	}
	c, err := add(nic)
	if err != nil {
		return errors.Join(err, x.close())
	}
	x.drive = func(ctx context.Context, look func(now clock.Time) error) error {
		return f.portEnd.run(ctx, x.clk, nic, c, look)
	}
	return nil
}

// inMemory connects the client and a memory node by a wire in memory.
func (x *rackRun) inMemory(fleet *store.Fleet) error {
	pool, err := packet.NewPool(1<<13, 2048, nil)
	if err != nil {
		return err
	}
	a, b := mem.NewWire("client", "memory", pool, 1024, x.clk)
	nic := func(n byte) (*rnic.NIC, error) {
		return rnic.New(rnic.Config{MAC: [6]byte{2, 0, 10, 0, 0, n}, IP: netip.AddrFrom4([4]byte{10, 0, 0, n}), Profile: rnic.ConnectX, Pool: pool, Seed: x.f.seed + uint64(n)})
	}
	there, err := nic(9)
	if err != nil {
		return err
	}
	s, err := store.NewServer(x.f.kind, x.f.spec.Spec, there, 1)
	if err != nil {
		return err
	}
	mine, err := nic(1)
	if err != nil {
		return err
	}
	c, err := fleet.Add(mine, there.Config().IP, there.Config().MAC, x.f.sessions, 1)
	if err != nil {
		return err
	}
	x.memory, x.close, x.lost = s.Store(), func() error { return nil }, func() uint64 { return 0 }
	x.drive = func(ctx context.Context, look func(now clock.Time) error) error {
		return host.Watched(ctx, look, func(ctx context.Context, watch host.Worker) error {
			return host.Spin(ctx, x.clk, host.NewNode(a, mine, c), host.NewNode(b, there, s), watch)
		})
	}
	return nil
}

// until runs until done is true, the clients report an error, or nothing has happened for --patience. why
// begins the message for the last case.
func (x *rackRun) until(ctx context.Context, step, why string, done func(now clock.Time) bool) error {
	w := wait{step: step, why: why + " for %v s", patience: x.f.patience, flags: "--server, --patience", err: x.fleet.Err, done: done,
		count: func() uint64 { m := x.fleet.Live(); return m.Ops + m.Errors + m.Unknown }}
	return w.until(ctx, x.clk, x.line, x.drive)
}

// leave ends connections after an error. It waits a second at most for the peers' answers.
func (x *rackRun) leave() {
	x.fleet.End()
	ctx, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	_ = x.drive(ctx, func(clock.Time) error {
		if x.fleet.Ended() {
			return errEnough
		}
		return nil
	})
}

// all connects, runs the workload, disconnects, and checks the result.
func (x *rackRun) all(ctx context.Context) error {
	f := x.f
	const dead = "no operation has ended"
	if err := x.until(ctx, "connecting", "no memory node answers", func(clock.Time) bool { return x.fleet.Connected() }); err != nil {
		return err
	}
	most := f.ops
	if f.alone && (most == 0 || most > mostAlone/4) {
		most = mostAlone / 4 // so many operations are checked in a few seconds
	}
	x.fleet.Allow(most)
	x.fleet.Begin()
	x.fleet.Start()
	begun := x.clk.Now()
	over := begun.Add(time.Duration(f.seconds * float64(time.Second)))
	err := x.until(ctx, "working", dead, func(now clock.Time) bool {
		return x.fleet.Spent() && x.fleet.Idle() || f.seconds > 0 && now >= over
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	x.fleet.Stop() // also after an interrupt: the result so far is printed
	ctx = context.WithoutCancel(ctx)
	if err := x.until(ctx, "the last answers", dead, func(clock.Time) bool { return x.fleet.Idle() }); err != nil {
		return err
	}
	x.measured(x.fleet.Measured(), x.clk.Now().Sub(begun).Seconds())
	x.fleet.End()
	if err := x.until(ctx, "disconnecting", "the memory node does not answer", func(clock.Time) bool { return x.fleet.Ended() }); err != nil {
		return err
	}
	if f.alone {
		x.line.show(x.clk.Now(), "checking", "checking what sessions were told")
		v := x.fleet.Judge(x.memory)
		x.r.Verdict = &v
	}
	return nil
}

func (x *rackRun) measured(m *store.Meter, took float64) {
	r := &x.r
	r.Store, r.Work, r.Sessions, r.Seconds = x.f.name, x.f.workload, x.f.sessions, round3(took)
	if x.f.kind != nil && len(x.f.kind.Works) > 0 {
		r.Work = x.f.work
	}
	r.Ops, r.OpsPerS, r.Errors, r.Unknown, r.Lost, r.Facts = m.Ops, math.Round(float64(m.Ops)/took), m.Errors, m.Unknown, x.lost(), x.fleet.Facts()
	if m.Ops > 0 {
		r.FirstTry = round3(float64(m.First) / float64(m.Ops))
	}
	of := func(h *hdrhistogram.Histogram) *clioLatency {
		if h.TotalCount() == 0 {
			return nil
		}
		l := latencyOf(h)
		return &l
	}
	r.Read, r.Write = of(m.Read), of(m.Write)
}

func (r *rackClient) text(w io.Writer) {
	fmt.Fprintf(w, "%s, %s: %.0f operations a second by %d sessions, in %.1f s; %.1f %% at the first try\n", r.Store, r.Work, r.OpsPerS, r.Sessions, r.Seconds, 100*r.FirstTry)
	fmt.Fprintln(w, "\tmean us\tp50\tp99")
	for _, l := range []struct {
		name string
		*clioLatency
	}{{"reads", r.Read}, {"writes", r.Write}} {
		if l.clioLatency != nil {
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\n", l.name, l.Mean, l.P50, l.P99)
		}
	}
	for _, x := range r.Facts {
		fmt.Fprintf(w, "%s\t%d\n", x.Name, x.Count)
	}
	fmt.Fprintf(w, "%d operations failed, %d of unknown outcome, %d frames lost\n", r.Errors, r.Unknown, r.Lost)
	if v := r.Verdict; v != nil && v.OK() {
		walked := ""
		if v.Keys > 0 {
			walked = fmt.Sprintf("%d keys or words walked, ", v.Keys)
		}
		fmt.Fprintf(w, "integrity: OK: %s%d acknowledged writes, none lost; %d operations are linearizable\n", walked, v.Written, v.Checked)
	} else if v != nil {
		fmt.Fprintf(w, "integrity: FAILED: %d keys lost; %s\n", v.Lost, v.Wrong)
	}
}

// verdict returns an error if a check failed.
func (r *rackClient) verdict() error {
	switch {
	case r.Verdict != nil && !r.Verdict.OK():
		return failed{errors.New("acknowledged writes were lost, or what sessions were told cannot be")}
	case r.Errors > 0:
		return failed{fmt.Errorf("%d operations failed", r.Errors)}
	case r.Ops == 0:
		return failed{errors.New("no operation was done")}
	}
	return nil
}
