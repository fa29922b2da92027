package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/hop"
	"github.com/quillon/quillon/snic/hop/end"
)

// hopTimeout is the time that an acknowledgement of the last hop may take here, where either end may have to
// wait for a processor.
const hopTimeout = 20 * time.Millisecond

// ClioShow is called with what a run does: step changes when the run does something else, line has numbers.
type ClioShow func(now clock.Time, step, line string)

// ClioInNamespaces runs the case of disaggregated memory in network namespaces: endpoints in this process,
// and the board (quillon run) in another one. Without privileges, or without AF_XDP, the error wraps
// port.ErrNotSupported. However the run ends, nothing is left behind.
func ClioInNamespaces(ctx context.Context, clk clock.Clock, c ClioConfig, quillon Command, show ClioShow) (*ClioResult, error) {
	return runClio(ctx, clk, c, show, func(v *clioVariant) (*clioPlace, error) { return clioInNamespaces(ctx, clk, &c, v, quillon) })
}

// ClioInMemory runs the case in this process, on wires in memory; kinds are those of the board's apps.
func ClioInMemory(ctx context.Context, clk clock.Clock, c ClioConfig, kinds []graph.Kind, show ClioShow) (*ClioResult, error) {
	return runClio(ctx, clk, c, show, func(v *clioVariant) (*clioPlace, error) { return clioInMemory(clk, &c, v, kinds) })
}

func runClio(ctx context.Context, clk clock.Clock, c ClioConfig, show ClioShow, place func(*clioVariant) (*clioPlace, error)) (*ClioResult, error) {
	r := &ClioResult{Setting: here(), Config: c}
	for i, name := range c.Variants {
		v := variantNamed(name)
		x := &clioRun{clk: clk, c: &c, v: v, show: show, head: fmt.Sprintf("%d of %d, %s", i+1, len(c.Variants), name)}
		show(clk.Now(), x.head, x.head+": building the rack")
		err := ctx.Err()
		if err != nil {
			return nil, context.Cause(ctx)
		}
		if x.place, err = place(v); err != nil {
			return nil, err
		}
		r.Wire = x.place.kind
		out, err := x.run(ctx)
		if err := errors.Join(err, x.place.close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.Variants = append(r.Variants, *out)
	}
	return r, nil
}

// clioRun is the run of a variant.
type clioRun struct {
	clk     clock.Clock
	c       *ClioConfig
	v       *clioVariant
	show    ClioShow
	head    string
	place   *clioPlace
	keys    []uint64
	devices []*clio.Device
	ends    []*end.End // of the last hop, at the devices
	clients []*clio.Client
	stages  []*clio.Stage
	workers []host.Worker
	log     history.Log[history.Register, uint64]
}

// build makes the endpoints.
func (x *clioRun) build() error {
	x.keys = ycsb.Sequential(1, x.c.Keys)
	bits, memory := clio.RoomFor(x.c.Keys, x.c.Value)
	first := clio.ClientConfig{Sessions: x.c.Threads, Depth: x.c.Depth, Reliable: true, Replication: x.v.copies, Patience: stuck, GBN: clioGBN}
	for _, m := range x.place.devices {
		me := m.end
		me.Port = wirePort
		d, err := clio.NewDevice(clio.DeviceConfig{Me: me, Pool: m.port.Pool(), Reliable: x.v.tasks == nil, GBN: clioGBN, HashBits: bits, Memory: memory})
		if err != nil {
			return err
		}
		var ep host.Endpoint = d
		if x.v.hop {
			l, err := hop.New(hop.Config{Epoch: max(1, uint64(x.clk.Now())), MAC: me.MAC, Rate: 10e9, Delay: time.Microsecond, Timeout: hopTimeout})
			if err != nil {
				return err
			}
			e, err := end.New(d, l, m.port.Pool())
			if err != nil {
				return err
			}
			x.ends, ep = append(x.ends, e), e
		}
		x.devices, first.Devices = append(x.devices, d), append(first.Devices, me)
		x.workers = append(x.workers, host.NewNode(m.port, ep, nil))
	}
	for i, m := range x.place.clients {
		cfg := first
		cfg.Me, cfg.Pool, cfg.PID = m.end, m.port.Pool(), uint16(i+1)
		cfg.Me.Port = 8000
		cl, err := clio.NewClient(cfg)
		if err != nil {
			return err
		}
		s := &clio.Stage{}
		x.clients, x.stages = append(x.clients, cl), append(x.stages, s)
		x.workers = append(x.workers, host.NewNode(m.port, cl, s))
	}
	x.workers = append(x.workers, x.place.workers...)
	return nil
}

var errPartOver = errors.New("this part is over")

// until runs all workers until done returns true. count is the number that is shown; if it does not grow for
// the time stuck, until gives up.
func (x *clioRun) until(ctx context.Context, step string, count func() int, done func(now clock.Time) bool) error {
	begun := x.clk.Now()
	last, moved, shown, at := count(), begun, begun, count()
	err := host.Watched(ctx, func(now clock.Time) error {
		if done(now) {
			return errPartOver
		}
		n := count()
		if n != last {
			last, moved = n, now
		}
		if now.Sub(moved) > stuck {
			return fmt.Errorf("%s: no operation has ended for %v: a device, the board or the wire does not answer", step, stuck)
		}
		if d := now.Sub(shown); d >= interval {
			x.show(now, x.head+step, fmt.Sprintf("%s: %-14s %9s done %9s op/s", x.head, step, thousands(float64(n)), thousands(float64(n-at)/d.Seconds())))
			shown, at = now, n
		}
		return nil
	}, func(ctx context.Context, watch host.Worker) error {
		return x.place.breathe(ctx, append(x.workers, watch))
	})
	if errors.Is(err, errPartOver) {
		return nil
	}
	return cmp.Or(err, errors.New("the wires were closed"))
}

// run runs all workloads of a variant, and checks the result.
func (x *clioRun) run(ctx context.Context) (*ClioVariantResult, error) {
	if err := x.build(); err != nil {
		return nil, err
	}
	defer func() {
		for _, c := range x.clients {
			c.Close()
		}
		for _, d := range x.devices {
			d.Close()
		}
		for _, e := range x.ends {
			e.Close()
		}
	}()
	out := &ClioVariantResult{Name: x.v.name, What: x.v.what, Published: x.v.published, Devices: len(x.devices)}
	if err := x.fill(ctx, out); err != nil {
		return nil, err
	}
	for i, w := range x.c.Workloads {
		row, err := x.workload(ctx, i, w)
		if err != nil {
			return nil, err
		}
		out.Rows = append(out.Rows, *row)
	}
	x.show(x.clk.Now(), x.head+"checking", x.head+": checking what clients were told")
	out.Checked = len(x.log.Ops())
	if err := history.Check(history.Registers(nil), &x.log, 0); err != nil {
		out.Wrong = err.Error()
	}
	x.compare(out)
	return out, nil
}

// fill creates all keys over the network.
func (x *clioRun) fill(ctx context.Context, out *ClioVariantResult) error {
	var all []*clio.Filler
	for i, c := range x.clients {
		n := len(x.clients)
		f, err := clio.NewFiller(c, x.keys[i*len(x.keys)/n:(i+1)*len(x.keys)/n], x.c.Value)
		if err != nil {
			return err
		}
		all, x.stages[i].App = append(all, f), f
	}
	sum := func(of func(*clio.Filler) int) (n int) {
		for _, f := range all {
			n += of(f)
		}
		return n
	}
	begun := x.clk.Now()
	err := x.until(ctx, "loading", func() int { return sum((*clio.Filler).Filled) + sum((*clio.Filler).Failed) }, func(clock.Time) bool {
		return !slices.ContainsFunc(all, func(f *clio.Filler) bool { return !f.Idle() })
	})
	out.LoadSeconds = x.clk.Now().Sub(begun).Seconds()
	if n := sum((*clio.Filler).Failed); err == nil && n > 0 {
		err = fmt.Errorf("%d of %d keys could not be created", n, len(x.keys))
	}
	return err
}

// workload runs one workload.
func (x *clioRun) workload(ctx context.Context, number int, name string) (*ClioRow, error) {
	mix, err := ycsb.MixNamed(name)
	if err != nil {
		return nil, err
	}
	meter, on := clio.NewMeter(x.c.Value), false
	var loads []*clio.Load
	for i, c := range x.clients {
		l, err := clio.NewLoad(clio.LoadConfig{Client: c, YCSB: ycsb.Config{Mix: mix, Theta: x.c.Zipf, Keys: x.keys, Seed: x.c.Seed},
			Stream: uint64(number*len(x.clients) + i + 1), ValueSize: x.c.Value, Ops: mostClioOps / len(x.clients), Log: &x.log,
			Done: func(d clio.Done) {
				if on {
					meter.Add(d)
				}
			}})
		if err != nil {
			return nil, err
		}
		loads, x.stages[i].App = append(loads, l), l
	}
	ended := func() (t clio.LoadStats) {
		for _, l := range loads {
			s := l.Stats()
			t.Reads, t.Writes = t.Reads+s.Reads, t.Writes+s.Writes
			t.Unknown, t.Failed, t.Corrupt = t.Unknown+s.Unknown, t.Failed+s.Failed, t.Corrupt+s.Corrupt
		}
		return t
	}
	count := func() int { t := ended(); return int(t.Reads + t.Writes + t.Unknown + t.Failed) }
	idle := func(clock.Time) bool {
		return !slices.ContainsFunc(loads, func(l *clio.Load) bool { return !l.Idle() })
	}
	until := x.clk.Now().Add(seconds(x.c.Warmup))
	if err := x.until(ctx, "YCSB "+name, count, func(now clock.Time) bool { return now >= until || idle(now) }); err != nil {
		return nil, err
	}
	before, err := x.totals()
	if err != nil {
		return nil, err
	}
	begun := x.clk.Now()
	on, until = true, begun.Add(seconds(x.c.Seconds))
	if err := x.until(ctx, "YCSB "+name, count, func(now clock.Time) bool { return now >= until || idle(now) }); err != nil {
		return nil, err
	}
	on = false
	row := &ClioRow{Workload: name, Seconds: x.clk.Now().Sub(begun).Seconds()}
	for _, l := range loads {
		l.Stop()
	}
	if err := x.until(ctx, "YCSB "+name, count, idle); err != nil {
		return nil, err
	}
	after, err := x.totals()
	if err != nil {
		return nil, err
	}
	t := ended()
	row.Unknown, row.Failed, row.Corrupt = t.Unknown, t.Failed, t.Corrupt
	if meter.Ops() == 0 {
		return nil, fmt.Errorf("YCSB %s: no operation finished in %.1f s", name, row.Seconds)
	}
	row.measured(x.v, meter, after.minus(before))
	return row, nil
}

// clioTotals are counts since the start.
type clioTotals struct{ hits, misses, again, lost uint64 }

func (t clioTotals) minus(o clioTotals) clioTotals {
	return clioTotals{t.hits - o.hits, t.misses - o.misses, t.again - o.again, t.lost - o.lost}
}

// clioLost are the board's reasons for frames that are lost although an endpoint needed them.
var clioLost = map[string]string{
	"gobackn":   "full gave-up no-session damaged malformed too-big",
	"nic":       "throttled store-full no-descriptor over-quota no-region endpoint",
	"hop":       "queue-full gave-up length",
	"replicate": "damaged busy",
	"kvcache":   "damaged",
}

// totals returns the counts of the endpoints and the board.
func (x *clioRun) totals() (t clioTotals, err error) {
	for _, c := range x.clients {
		t.again += c.GBN().Retransmitted + c.Stats().Repeated
	}
	for _, d := range x.devices {
		t.again += d.GBN().Retransmitted
	}
	for _, e := range x.ends {
		t.again += e.Stats().Resent
		t.lost += e.Dropped()
	}
	for _, m := range append(x.place.clients, x.place.devices...) {
		s := m.port.Stats()
		t.lost += s.RxDropped + s.TxDropped
	}
	if x.place.counts == nil {
		return t, nil
	}
	counts, ports, err := x.place.counts()
	for _, c := range counts {
		app := c.Node[strings.LastIndexByte(c.Node, '/')+1:]
		switch app + "." + c.Name {
		case "kvcache.hit":
			t.hits += c.Value
		case "kvcache.miss":
			t.misses += c.Value
		case "gobackn.retransmitted", "replicate.retransmitted", "hop.resent":
			t.again += c.Value
		}
		if c.Group == "reason" && strings.Contains(" "+clioLost[app]+" ", " "+c.Name+" ") {
			t.lost += c.Value
		}
	}
	for _, p := range ports {
		for _, q := range p.Queues {
			t.lost += q.RxDropped + q.TxDropped + q.Missed + q.ShutOut
		}
	}
	return t, err
}

// compare checks that all devices hold equal values, and that clients wrote these.
func (x *clioRun) compare(out *ClioVariantResult) {
	for _, k := range x.keys {
		v, st := x.devices[0].Store().Read(k, 8)
		if _, sound := clio.NumberOf(v, k); st != 0 || !sound {
			out.Damaged++
		}
		for _, d := range x.devices[1:] {
			if w, _ := d.Store().Read(k, 8); !bytes.Equal(v, w) {
				out.Different++
			}
		}
	}
}
