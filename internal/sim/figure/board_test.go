package figure

import (
	"context"
	"testing"
)

// rerun runs a figure and compares it.
func rerun(t *testing.T, id string, seed uint64) *Result {
	t.Helper()
	fs, err := Find(id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := fs[0].Run(context.Background(), Params{Seed: seed}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBoards(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to half a minute")
	}
	for _, id := range []string{"5.7", "5.9", "5.11", "5.19"} {
		rerun(t, id, 1)
	}
	rerun(t, "5.7", 2) // in the others only the gaps between packets are random
	// In each phase each user gets the published throughput within 3.5 Gb/s.
	r := rerun(t, "5.20", 1)
	for _, c := range r.Panels[0].Curves {
		for _, p := range c.Points {
			if d := *p.Ours - *p.Published; d > 3.5 || d < -3.5 {
				t.Errorf("%s, %s: %v Gb/s, published %v", c.Name, p.Name, *p.Ours, *p.Published)
			}
		}
	}
	rerun(t, "5.20-timeline", 1)
}

// Schemes are in the published order for every number of tasks.
func TestBoardSchemes(t *testing.T) {
	for _, c := range []struct {
		id    string
		order []string
	}{
		{"5.14", []string{namePanic, nameHalf, nameSingle}},
		{"5.15", []string{namePanic, nameHalfParallel, nameParallel}},
	} {
		r := rerun(t, c.id, 1)
		for n := 2; n <= 7; n++ {
			for i, name := range c.order[1:] {
				slow, fast := r.find(0, c.order[i], n), r.find(0, name, n)
				if *slow.Ours < *fast.Ours || *slow.Published < *fast.Published {
					t.Errorf("%s, %d tasks: %s takes %v, %s %v", c.id, n, c.order[i], *slow.Ours, name, *fast.Ours)
				}
			}
		}
	}
}

// TestSNICCores: the figure of a board over cores has all points of its curves.
func TestSNICCores(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of processor time")
	}
	f, err := Find("snic-cores")
	if err != nil {
		t.Fatal(err)
	}
	was, err := f[0].Run(t.Context(), Params{Seed: 1, Quick: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, curves := range []int{6, 6, 5, 5, 8} {
		if n := len(was.Panels[i].Curves); n != curves {
			t.Errorf("panel %d has %d curves, not %d", i, n, curves)
		}
		for _, c := range was.Panels[i].Curves {
			for _, p := range c.Points {
				if p.Ours == nil || len(c.Points) != len(coreCounts(true)) {
					t.Errorf("panel %d, %s: %d points, one of %v", i, c.Name, len(c.Points), p.Ours)
				}
			}
		}
	}
}
