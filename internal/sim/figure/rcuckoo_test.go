package figure

import (
	"bytes"
	"context"
	"slices"
	"strings"
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

// Each cause that a figure of RCuckoo offers changes what is measured. 3.17 and 3.18 are left out: they fill tables, which takes a minute.
func TestCuckooCauses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, f := range rcuckoos() {
		if f.ID == "3.17" || f.ID == "3.18" {
			continue
		}
		t.Run(f.ID, func(t *testing.T) {
			without := map[string][]Value{} // by job
			for _, cause := range f.causes {
				if !slices.Contains(fuseeCauses, cause) && !moves(t, f, cause, without) {
					t.Errorf("no value differs with --cause %s", cause)
				}
			}
		})
	}
}

// moves reports whether a quick run of one of the figure's first and last jobs has another value with a cause than without it.
func moves(t *testing.T, f *Figure, cause string, without map[string][]Value) bool {
	t.Helper()
	run := func(cause string, i int) (string, []Value) {
		jobs, err := f.jobs(mustLoad(t, f.data), Params{Seed: 1, Quick: true, Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		jobs = slices.DeleteFunc(jobs, func(j job) bool { return strings.HasPrefix(j.name, nameFUSEE) })
		j := jobs[(i+len(jobs))%len(jobs)]
		vs, err := j.run(context.Background(), func(float64) {})
		if err != nil {
			t.Fatalf("%s, %s: %v", f.ID, j.name, err)
		}
		return j.name, vs
	}
	for _, i := range []int{0, -1} {
		name, with := run(cause, i)
		if without[name] == nil {
			_, without[name] = run("", i)
		}
		if !slices.Equal(with, without[name]) {
			return true
		}
	}
	return false
}

func mustLoad(t *testing.T, name string) *Published {
	p, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
