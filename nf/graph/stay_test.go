package graph

import (
	"math"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// TestStaySteps: each stay is in the step whose bounds it has, and none is a quarter longer than it was.
func TestStaySteps(t *testing.T) {
	last := clock.Duration(0)
	for step := range staySteps {
		top := stayUpTo(step)
		if top <= last {
			t.Fatalf("step %d ends at %v, the one before at %v", step, top, last)
		}
		for _, d := range []clock.Duration{last + 1, last + (top-last)/2, top} {
			if got := stayStep(d); got != step && d > 1<<leastStay {
				t.Errorf("%v is in step %d, want %d", d, got, step)
			}
		}
		if step > 0 && step < staySteps-1 && float64(top) > 1.26*float64(last) {
			t.Errorf("step %d is from %v to %v", step, last, top)
		}
		last = top
	}
	if last != math.MaxInt64 {
		t.Errorf("the last step ends at %v", last)
	}
	for _, d := range []clock.Duration{-1, 0, 1, 1 << leastStay} {
		if got := stayStep(d); got != 0 {
			t.Errorf("%v is in step %d, want 0", d, got)
		}
	}
}

// TestStays: shares are of what was added since an earlier look.
func TestStays(t *testing.T) {
	w := &worker{}
	w.stays.add(time.Second, 5)
	before, sum := staysOf([]*worker{w})
	if StayOf(before, 0.5) < time.Second || sum != 5*time.Second {
		t.Errorf("%v, together %v", before, sum)
	}
	for d := clock.Duration(1); d <= 100; d++ {
		w.stays.add(d*time.Microsecond, 1)
	}
	after, _ := staysOf([]*worker{w})
	grown := StaysSince(before, after)
	for share, want := range map[float64]clock.Duration{0.5: 50 * time.Microsecond, 0.99: 99 * time.Microsecond, 1: 100 * time.Microsecond} {
		if got := StayOf(grown, share); got < want || float64(got) > 1.26*float64(want) {
			t.Errorf("%v of the frames stayed %v, want %v to a quarter more", share, got, want)
		}
	}
	if got := StayOf(nil, 0.5); got != 0 {
		t.Errorf("of no frames half stayed %v", got)
	}
}
