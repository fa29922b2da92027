package demo

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// small is a short run. Its warm-up is longer than the time in which the steering app only learns.
func small() Config {
	c := Default()
	c.Warmup, c.Seconds, c.Keys = 0.7, 0.3, 256
	return c
}

// holds checks the results that do not depend on the machine.
func holds(t *testing.T, r *Result) {
	t.Helper()
	for _, p := range r.Phases {
		if p.Errors != 0 || p.Ops < leastOps || p.BytesPerOp < 60*p.PacketsPerOp || !(p.ReadP99 >= p.ReadP50) || !(p.WriteP99 >= p.WriteP50) {
			t.Errorf("%+v", p)
		}
	}
	if n := r.Phases[0].Steered; n != 0 {
		t.Errorf("%d packets were steered in pass-through", n)
	}
	if !r.Integrity.OK() || r.Integrity.Keys != uint64(r.Config.Keys) || r.Integrity.AckedWrites == 0 {
		t.Error(r.Integrity)
	}
}

// gains is an error if steering did not gain enough at half writes. Rates are not checked: they depend on the
// machine.
func gains(r *Result) error {
	off, write, both := r.Phases[0], r.Phases[1], r.Phases[2]
	switch {
	case write.Steered == 0 || both.Steered == 0:
		return fmt.Errorf("steered %d and %d packets", write.Steered, both.Steered)
	case !(write.FirstTry > off.FirstTry+0.1 && both.FirstTry > write.FirstTry+0.1):
		return fmt.Errorf("first try %.3f, %.3f, %.3f", off.FirstTry, write.FirstTry, both.FirstTry)
	case !(write.PacketsPerOp < off.PacketsPerOp && both.PacketsPerOp < write.PacketsPerOp):
		return fmt.Errorf("packets per operation %.2f, %.2f, %.2f", off.PacketsPerOp, write.PacketsPerOp, both.PacketsPerOp)
	}
	return nil
}

func TestInMemory(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		c := small()
		c.IPv6, c.CM = ipv6, !ipv6 // connections by configuration, or by the connection managers
		r, err := InMemory(t.Context(), clock.NewWall(), c, func(clock.Time, Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		holds(t, r)
		if err := gains(r); err != nil {
			t.Error(err)
		}
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
