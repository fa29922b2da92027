package demo

import (
	"context"
	"errors"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// small is a run that is over soon; its warm-up is longer than the time for
// which the steering app only learns.
func small() Config {
	c := Default()
	c.Warmup, c.Seconds, c.Keys = 0.7, 0.3, 256
	return c
}

// check holds r to what steering promises at half writes. Rates are left out:
// they are the machine's.
func check(t *testing.T, r *Result) {
	t.Helper()
	off, write, both := r.Phases[0], r.Phases[1], r.Phases[2]
	if off.Steered != 0 || write.Steered == 0 || both.Steered <= write.Steered/2 {
		t.Errorf("steered %d, %d, %d packets", off.Steered, write.Steered, both.Steered)
	}
	if !(write.FirstTry > off.FirstTry+0.1 && both.FirstTry > write.FirstTry+0.1) {
		t.Errorf("first try %.3f, %.3f, %.3f", off.FirstTry, write.FirstTry, both.FirstTry)
	}
	if !(write.PacketsPerOp < off.PacketsPerOp && both.PacketsPerOp < write.PacketsPerOp) {
		t.Errorf("packets per operation %.2f, %.2f, %.2f", off.PacketsPerOp, write.PacketsPerOp, both.PacketsPerOp)
	}
	for _, p := range r.Phases {
		if p.Errors != 0 || p.BytesPerOp < 74*p.PacketsPerOp/2 || !(p.ReadP99 >= p.ReadP50) || !(p.WriteP99 >= p.WriteP50) {
			t.Errorf("%+v", p)
		}
	}
	if !r.Integrity.OK() || r.Integrity.Keys != uint64(r.Config.Keys) || r.Integrity.AckedWrites == 0 {
		t.Error(r.Integrity)
	}
}

func TestInMemory(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		c := small()
		c.IPv6 = ipv6
		r, err := InMemory(t.Context(), clock.NewWall(), c, func(clock.Time, Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		check(t, r)
	}
}

func TestInMemoryStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	_, err := InMemory(ctx, clock.NewWall(), small(), func(clock.Time, Progress) { cancel(stop) })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}
