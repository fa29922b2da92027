package demo

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// rig is a Box and Clients whose numbers grow with every question. In each mode a question adds 1000
// operations more than in the mode before.
type rig struct {
	mode    atomic.Int64
	asked   []string
	live    atomic.Uint64
	totals  Totals
	idle    bool
	refuse  error
	restart bool
}

func (r *rig) SetMode(mode string) error {
	r.asked = append(r.asked, mode)
	r.mode.Add(1)
	return r.refuse
}

func (r *rig) Totals() (Totals, error) {
	t := r.totals
	r.totals = Totals{Packets: t.Packets + 3000, Bytes: t.Bytes + 300000, Steered: t.Steered + 7, Missed: t.Missed + 1}
	if r.restart {
		r.totals = Totals{}
	}
	return t, nil
}

func (r *rig) Live() Ops {
	if r.idle {
		return Ops{}
	}
	n := r.live.Add(1000 * uint64(r.mode.Load()))
	return Ops{Done: n, FirstTry: n / 2}
}

func (r *rig) Begin() {}

func (r *rig) Measured(context.Context) (Measured, error) {
	if r.idle {
		return Measured{Elapsed: time.Second}, nil
	}
	return Measured{
		Ops: Ops{Done: 1000, FirstTry: 900, Failed: 1}, Elapsed: 2 * time.Second,
		Read: Latency{1, 2, 3}, Write: Latency{4, 5, 6},
	}, nil
}

// leap is a clock that leaps forward at every look.
type leap struct{ now clock.Time }

func (l *leap) Now() clock.Time {
	l.now = l.now.Add(stuck / 2)
	return l.now
}

func short() Config {
	c := Default()
	c.Warmup, c.Seconds = 0.001, 0.002
	return c
}

func TestRun(t *testing.T) {
	r := &rig{}
	var shown []Progress
	phases, err := Run(t.Context(), clock.NewWall(), short(), r, r, func(_ clock.Time, p Progress) { shown = append(shown, p) })
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.asked, " "); got != "off write read-write" {
		t.Errorf("modes %q", got)
	}
	for i, p := range phases {
		want := Phase{
			Name: cloverModes[i], Seconds: 2, Ops: 1000, Errors: 1, OpsPerS: 500, FirstTry: 0.9, PacketsPerOp: 3, BytesPerOp: 300,
			ReadP50: 1, ReadP99: 2, ReadP999: 3, WriteP50: 4, WriteP99: 5, WriteP999: 6, Steered: 7, Missed: 1,
		}
		if p != want {
			t.Errorf("got  %+v\nwant %+v", p, want)
		}
	}
	if len(shown) < 6 {
		t.Fatalf("progress was shown %d times", len(shown))
	}
	for _, p := range shown {
		if p.OpsPerS <= 0 || p.FirstTry != 0.5 {
			t.Errorf("progress %+v", p)
		}
	}
}

func TestRunStops(t *testing.T) {
	none := func(clock.Time, Progress) {}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	cancel(stop)
	if _, err := Run(ctx, clock.NewWall(), Default(), &rig{}, &rig{}, none); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v", err)
	}
	for want, r := range map[string]*rig{
		"does not forward": {idle: true},
		"does not switch":  {refuse: errors.New("no")},
		"was restarted":    {restart: true, totals: Totals{Packets: 9}},
	} {
		if _, err := Run(t.Context(), &leap{}, short(), r, r, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
