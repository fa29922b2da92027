package clock

import (
	"math"
	"testing"
	"time"
)

// A deadline never comes before what it is counted from.
func TestAdd(t *testing.T) {
	for _, c := range []struct {
		t    Time
		d    Duration
		want Time
	}{
		{5, 3, 8}, {5, -3, 2}, {-5, 3, -2}, {0, 0, 0}, {Never, 0, Never}, {Never, 5, Never}, {Never, -5, Never},
		{Never - 1, 0, Never - 1}, {Never - 1, 1, Never}, {Never - 1, 2, Never}, {Never - 1, -1, Never - 2},
		{1, math.MaxInt64, Never}, {0, math.MaxInt64, Never}, {-1, math.MaxInt64, Never - 1},
		{Time(1.8e18), 250 * 365 * 24 * time.Hour, Never}, {math.MinInt64, 1, math.MinInt64 + 1},
	} {
		if got := c.t.Add(c.d); got != c.want {
			t.Errorf("%d + %d is %d, want %d", c.t, c.d, got, c.want)
		}
	}
}

var sink Time

func BenchmarkAdd(b *testing.B) {
	t := Time(1)
	for b.Loop() {
		for range 64 {
			t = t.Add(3)
		}
	}
	sink = t
}
