package bench

import (
	"io"
	"testing"
)

// TestP4: every frame is forwarded, nothing is allocated, and a million
// entries stay within 200 MiB.
func TestP4(t *testing.T) {
	r, err := P4(io.Discard, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Programs) != 2 {
		t.Errorf("%+v", r)
	}
	for _, p := range r.Programs {
		if p.Work.Allocs > 0.01 || p.Work.Mpps <= 0 || p.LoadMs.Median <= 0 {
			t.Errorf("%+v", p)
		}
	}
	if r.ExactMiB < 8 || r.ExactMiB > 200 {
		t.Errorf("%.0f MiB", r.ExactMiB)
	}
}
