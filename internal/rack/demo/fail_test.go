package demo

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// within is how soon operations must go on after the middlebox is gone.
const within = 100 * time.Millisecond

// load is a rack under load.
type load struct {
	*rack
	t     *testing.T
	clk   clock.Clock
	ended chan error
	stop  context.CancelFunc
	away  time.Duration // the longest time without a middlebox
	cut   uint64        // answers that the middlebox kept, since their entries stand behind one that will never be linked
}

func underLoad(t *testing.T) *load {
	t.Helper()
	c := small()
	l := &load{t: t, clk: clock.NewWall(), ended: make(chan error, 1)}
	var err error
	box := command()
	box.Env = append(box.Env, state+"="+filepath.Join(t.TempDir(), "state"))
	l.rack, err = raise(t.Context(), l.clk, &c, box)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.rack.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stop = stop
	go func() { l.ended <- l.cables.breathe(ctx, l.clk, l.cluster.Workers()) }()
	t.Cleanup(stop)
	l.cluster.Start(clover.Load{})
	return l
}

// steers waits until the middlebox has steered n more packets.
func (l *load) steers(n uint64) {
	l.t.Helper()
	if err := l.box.SetMode("read-write"); err != nil {
		l.t.Fatal(err)
	}
	first, err := l.box.Totals()
	if err != nil {
		l.t.Fatal(err)
	}
	for start := l.clk.Now(); ; {
		now, err := l.box.Totals()
		if err != nil {
			l.t.Fatal(err)
		}
		if now.Steered >= first.Steered+n {
			return
		}
		if l.clk.Now().Sub(start) > 10*time.Second {
			l.t.Fatalf("the middlebox does not steer: %+v, then %+v", first, now)
		}
		l.wait(2 * time.Millisecond)
	}
}

// cuts is how many answers this middlebox process has kept from clients.
func (l *load) cuts() (n uint64) {
	l.t.Helper()
	err := l.box.ask(func(c *admin.Client) error {
		counts, err := c.Counters()
		for _, k := range counts {
			if k.Node == steer && k.Group == "reason" && k.Name == "chain-cut" {
				n += k.Value
			}
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *load) wait(d time.Duration) {
	if err := pause(l.t.Context(), d); err != nil {
		l.t.Fatal(err)
	}
}

// gap is the longest time without an operation during d.
func (l *load) gap(d time.Duration) (longest time.Duration) {
	start := l.clk.Now()
	at, done := start, l.cluster.Live().Ops
	for {
		l.wait(time.Millisecond)
		now := l.clk.Now()
		longest = max(longest, now.Sub(at))
		if n := l.cluster.Live().Ops; n != done {
			at, done = now, n
		}
		if now.Sub(start) > d {
			return longest
		}
	}
}

// more waits until more than n operations have ended, and returns their number.
func (l *load) more(n uint64) uint64 {
	l.t.Helper()
	for start := l.clk.Now(); ; l.wait(time.Millisecond) {
		if ops := l.cluster.Live().Ops; ops > n {
			return ops
		}
		if l.clk.Now().Sub(start) > 10*time.Second {
			l.t.Fatal("no operation without a middlebox")
		}
	}
}

// finish ends the load and checks the store's promises.
func (l *load) finish() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 60*time.Second)
	defer cancel()
	l.cluster.StopSoon()
	if err := await(ctx, func() error { return nil }, l.cluster.Stopped); err != nil {
		l.t.Fatalf("operations do not end: %v", err)
	}
	l.stop()
	if err := <-l.ended; err != nil {
		l.t.Error(err)
	}
	switch n := l.cluster.Live().Errors; {
	case n != 0 && l.away >= patience:
		l.t.Logf("%d operations failed, in %s without a middlebox: %v", n, l.away, l.cluster.Err())
	case n != 0 && n <= l.cut:
		// The client must not believe such an answer: an operation that fails is better than a lost one.
		l.t.Logf("%d operations failed, and %d answers were kept from their clients: %v", n, l.cut, l.cluster.Err())
	case n != 0:
		l.t.Errorf("%d operations failed, in %s without a middlebox: %v", n, l.away, l.cluster.Err())
	}
	if v := l.cluster.Integrity(); !v.OK() || v.AckedWrites == 0 {
		l.t.Errorf("%+v", v)
	}
}

// patience is how long the middlebox can be away before an operation may fail. A client asks for a word eight
// times, 4.096 us * 2^14 apart. A word that the middlebox guarded when it died is closed to other clients
// until it is back (docs/SECURITY.md). One of the eight times can be before its death, since frames waited
// for it, and one before it knows the word again.
const patience = 6 * 4096 * time.Nanosecond << 14

// outage is how long the middlebox is away, in addition to the time of its start. It is longer than an
// operation may wait, and much shorter than patience.
const outage = 150 * time.Millisecond

// tries is how often a fault is tried, since other work on the machine can pause the endpoints, too.
const tries = 3

// Packets keep flowing when the middlebox is killed or stopped, and it steers again when it is back. For a
// client this is only a pause.
func TestFailToWire(t *testing.T) {
	l := underLoad(t)
	signal := func(sig syscall.Signal) error {
		p, _ := l.box.process()
		return p.Signal(sig)
	}
	for _, fault := range []struct {
		name string
		sig  syscall.Signal
		back func() error
	}{
		{"killed", syscall.SIGKILL, func() error {
			p, _ := l.box.process()
			<-p.Done()
			return l.box.start(t.Context())
		}},
		{"stopped", syscall.SIGSTOP, func() error { return signal(syscall.SIGCONT) }},
		{"killed, restarted at once", syscall.SIGKILL, func() error { return l.box.start(t.Context()) }},
	} {
		for try := 1; ; try++ {
			l.steers(100)
			// A busy machine also pauses without a fault.
			noise := l.gap(300 * time.Millisecond)
			l.cut += l.cuts()
			before, since := l.cluster.Live().Ops, l.clk.Now()
			if err := signal(fault.sig); err != nil {
				t.Fatal(err)
			}
			gap := l.gap(outage)
			ops := l.more(before) - before
			t.Logf("%s: longest pause %s (before: %s), %d operations without a middlebox", fault.name, gap, noise, ops)
			if err := fault.back(); err != nil {
				t.Fatal(err)
			}
			l.away = max(l.away, time.Duration(l.clk.Now().Sub(since)))
			if gap <= within+noise {
				break
			}
			if try == tries {
				t.Errorf("%s: no operation for %s; want %s at most, and %s that the machine pauses anyway", fault.name, gap, within, noise)
				break
			}
		}
	}
	l.steers(100)
	l.cut += l.cuts()
	l.finish()
}
