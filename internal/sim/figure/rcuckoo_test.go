package figure

import (
	"bytes"
	"context"
	"testing"
)

// The figures of RCuckoo's hash, of the spans of its search and of the bytes of an insertion have enough points
// within the tolerance. Other misses of a figure are shown in its table, and are no error here.
func TestRCuckoo(t *testing.T) {
	for _, c := range []struct {
		id    string
		least int // points that must be within the tolerance
	}{{"3.4", 70}, {"3.6", 78}, {"3.14", 6}, {"3.15", 6}} {
		if testing.Short() && c.least > 9 {
			continue // takes seconds
		}
		fs, err := Find(c.id)
		if err != nil {
			t.Fatal(err)
		}
		r, err := fs[0].Run(context.Background(), Params{Seed: 5, Quick: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Points.Within < c.least || r.Points.Explained > 0 {
			var b bytes.Buffer
			if err := r.WriteTable(&b); err != nil {
				t.Fatal(err)
			}
			t.Errorf("%d points within, at least %d wanted:\n%s", r.Points.Within, c.least, &b)
		}
	}
	for _, f := range rcuckoos() {
		if len(f.reasons) > 0 {
			t.Errorf("%s has reasons: name the experiments", f.ID)
		}
		if _, err := f.jobs(mustLoad(t, f.data), Params{}); err != nil {
			t.Errorf("%s: %v", f.ID, err)
		}
	}
}

func mustLoad(t *testing.T, name string) *Published {
	p, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
