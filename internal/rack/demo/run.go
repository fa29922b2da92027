package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Box is the middlebox as a run sees it, wherever it runs. Its methods may be
// called from any goroutine.
type Box interface {
	// SetMode switches the mode: off, and for Clover write or read-write, for other stores mux or replace.
	SetMode(mode string) error
	// Totals returns the counts since the box was started.
	Totals() (Totals, error)
}

// Totals are the counts of a Box, of both sides together.
type Totals struct {
	Packets uint64 // RoCE frames that it saw
	Bytes   uint64 // their bytes
	Steered uint64 // those of the packets that were sent to another address than they asked for
	Missed  uint64 // packets that crossed although the box wanted them
	// Operations that went over another client's connection, and atomics that went as WRITEs.
	Moved, Replaced uint64
}

// Clients are the load, as a run sees it. Its methods may be called from any goroutine.
type Clients interface {
	// Live returns the operations since the clients were started.
	Live() Ops
	// Begin begins a new measurement, while operations go on; Measured returns what was measured since then.
	Begin()
	Measured(ctx context.Context) (Measured, error)
}

// Ops are counts of operations.
type Ops struct {
	Done     uint64
	FirstTry uint64 // those done without a retry
	Failed   uint64 // those that ended with an error
	Spent    bool   // no more operations may begin: see Budget
}

// Measured is what the clients measured in a phase.
type Measured struct {
	Ops
	Elapsed     time.Duration
	Read, Write Latency
}

// Budget is implemented by Clients that record answers, for which they have limited room.
type Budget interface {
	// Allow sets the share of all operations, 0 to 1, that may have begun from now on.
	Allow(share float64)
}

// Comer is implemented by Clients that connect again for each phase, because the middlebox knows only
// connections that were made while it was to follow them.
type Comer interface {
	joiner
	// Renew makes new connections after all have ended.
	Renew()
}

// Latency has percentiles of the time of operations.
type Latency struct{ P50, P99, P999 Micros }

// Run runs and measures the phases. It calls show several times a second.
func Run(ctx context.Context, clk clock.Clock, c Config, clients Clients, box Box, show func(clock.Time, Progress)) ([]Phase, error) {
	r := runner{clk: clk, clients: clients, show: show}
	warmup, measure := seconds(c.Warmup), seconds(c.Seconds)
	modes := c.modes()
	r.end = clk.Now().Add(time.Duration(len(modes)) * (warmup + measure))
	allow := func(parts float64) {
		if b, ok := clients.(Budget); ok {
			b.Allow(parts / float64(len(modes)))
		}
	}
	var phases []Phase
	for i, mode := range modes {
		allow(float64(i) + c.Warmup/(c.Warmup+c.Seconds))
		if err := r.turn(ctx, i, mode, box); err != nil {
			return nil, err
		}
		if err := r.watch(ctx, mode, "warm-up", warmup, 0); err != nil {
			return nil, err
		}
		before, err := box.Totals()
		if err != nil {
			return nil, fmt.Errorf("the middlebox does not tell its counters: %w", err)
		}
		allow(float64(i) + 1)
		clients.Begin()
		if err := r.watch(ctx, mode, "measuring", measure, leastOps); err != nil {
			return nil, err
		}
		after, err := box.Totals()
		if err != nil {
			return nil, fmt.Errorf("the middlebox does not tell its counters: %w", err)
		}
		m, err := clients.Measured(ctx)
		if err != nil {
			return nil, err
		}
		p, err := phase(mode, m, before, after)
		if err != nil {
			return nil, err
		}
		phases = append(phases, p)
	}
	return phases, nil
}

// turn begins the i-th phase.
func (r *runner) turn(ctx context.Context, i int, mode string, box Box) error {
	set := func() error {
		if err := box.SetMode(mode); err != nil {
			return fmt.Errorf("the middlebox does not switch to %s: %w", mode, err)
		}
		return nil
	}
	c, ok := r.clients.(Comer)
	if !ok || i == 0 {
		return set()
	}
	ctx, done := context.WithTimeoutCause(ctx, stuck, errors.New("connections do not end, or are not made anew"))
	defer done()
	if err := leave(ctx, c); err != nil {
		return err
	}
	if err := set(); err != nil {
		return err
	}
	c.Renew()
	if err := await(ctx, c.Err, c.Connected); err != nil {
		return err
	}
	c.Start()
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// phase makes a Phase of what clients and box measured.
func phase(name string, m Measured, before, after Totals) (Phase, error) {
	if m.Done == 0 || m.Elapsed <= 0 {
		return Phase{}, fmt.Errorf("phase %s: no operation finished in %s", name, m.Elapsed)
	}
	if after.Packets < before.Packets {
		return Phase{}, fmt.Errorf("phase %s: the middlebox was restarted", name)
	}
	ops := float64(m.Done)
	return Phase{
		Name: name, Seconds: m.Elapsed.Seconds(), Ops: m.Done, Errors: m.Failed,
		OpsPerS: ops / m.Elapsed.Seconds(), FirstTry: float64(m.FirstTry) / ops,
		PacketsPerOp: float64(after.Packets-before.Packets) / ops,
		BytesPerOp:   float64(after.Bytes-before.Bytes) / ops,
		ReadP50:      m.Read.P50, ReadP99: m.Read.P99, ReadP999: m.Read.P999,
		WriteP50: m.Write.P50, WriteP99: m.Write.P99, WriteP999: m.Write.P999,
		Steered: after.Steered - before.Steered, Missed: after.Missed - before.Missed,
		Moved: after.Moved - before.Moved, Replaced: after.Replaced - before.Replaced,
	}, nil
}

const (
	// interval is the interval at which the progress is shown.
	interval = 250 * time.Millisecond
	// stuck is the time after which a run is given up if no operation ends.
	stuck = 10 * time.Second
	// leastOps is the least number of operations of a phase: the phase lasts longer on a machine that is too
	// busy for them.
	leastOps = 1000
)

type runner struct {
	clk     clock.Clock
	clients Clients
	show    func(clock.Time, Progress)
	end     clock.Time
}

// watch waits for the time d and for at least least operations, and shows what the clients do meanwhile.
func (r *runner) watch(ctx context.Context, mode, step string, d time.Duration, least uint64) error {
	now := r.clk.Now()
	until := now.Add(d)
	at, last := now, r.clients.Live()
	enough := last.Done + least
	moved := now
	for !last.Spent && (now < until || last.Done < enough) {
		d := interval
		if now < until {
			d = min(d, until.Sub(now))
		}
		if err := pause(ctx, d); err != nil {
			return err
		}
		now = r.clk.Now()
		live := r.clients.Live()
		done, first := live.Done-last.Done, live.FirstTry-last.FirstTry
		if done > 0 {
			moved = now
		} else if now.Sub(moved) > stuck {
			return fmt.Errorf("%s: no operation finished for %s: the wire or the middlebox does not forward", titles[mode], stuck)
		}
		p := Progress{Phase: mode, Step: step, Left: max(0, r.end.Sub(now))}
		if dt := now.Sub(at).Seconds(); done > 0 && dt > 0 {
			p.OpsPerS, p.FirstTry = float64(done)/dt, float64(first)/float64(done)
		}
		r.show(now, p)
		at, last = now, live
	}
	return nil
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
