package figure

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
)

// FUSEE's curves are run in each figure that has them. In 2.11 and 3.11 the rate of 64 clients is the published
// one within 25 %.
func TestFUSEE(t *testing.T) {
	for _, id := range []string{"2.10", "2.11", "2.12", "2.13", "3.9", "3.10", "3.11"} {
		fs, err := Find(id)
		if err != nil {
			t.Fatal(err)
		}
		p := mustLoad(t, fs[0].data)
		jobs, err := fs[0].jobs(p, Params{Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, j := range jobs {
			if !strings.HasPrefix(j.name, nameFUSEE+",") {
				continue
			}
			n++
			if j.name != nameFUSEE+", 64" || id != "2.11" && id != "3.11" {
				continue
			}
			vs, err := j.run(context.Background(), func(float64) {})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range p.Quantities[0].Series {
				for _, c := range s.Points {
					if s.Name == nameFUSEE && c.x == 64 && math.Abs(vs[0].Y/c.y-1) > 0.25 {
						t.Errorf("%s, 64 clients: %v, published %v", id, vs[0].Y, c.y)
					}
				}
			}
		}
		if n != 6 {
			t.Errorf("%s: %d runs of FUSEE", id, n)
		}
	}
	// A number of threads counts for each of the hosts: 4 on 3 hosts are 12.
	fs, err := Find("2.10")
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := fs[0].jobs(mustLoad(t, "2.10"), Params{Threads: []int{4}, Hosts: 3})
	if err != nil || !strings.HasSuffix(jobs[len(jobs)-1].name, "FUSEE, 12") {
		t.Errorf("%v, %v", jobs[len(jobs)-1].name, err)
	}
}

// In 3.13 a read has one post, as its key was inserted by the same client, and an insertion two. Without the client's time for a post the
// insertion is outside the tolerance, and without the cache the read is.
func TestFUSEEsLatency(t *testing.T) {
	fs, err := Find("3.13")
	if err != nil {
		t.Fatal(err)
	}
	p := mustLoad(t, fs[0].data)
	for cause, want := range map[string][2]bool{"": {true, true}, causeLone: {false, false}, causeUncached: {false, true}} {
		jobs, err := fs[0].jobs(p, Params{Seed: 1, Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(jobs, func(j job) bool { return j.name == nameFUSEE })
		if i < 0 {
			t.Fatal("no job for FUSEE")
		}
		vs, err := jobs[i].run(context.Background(), func(float64) {})
		if err != nil || len(vs) != 4 {
			t.Fatal(vs, err)
		}
		for i, name := range []string{"fusee read", "fusee insert"} {
			y, ok := p.at(name, 10)
			if got := math.Abs(vs[i].Y/y-1) <= usual.Point; !ok || vs[i].Series != name || got != want[i] {
				t.Errorf("%q, %s: %v us, published %v", cause, name, vs[i].Y, y)
			}
		}
	}
}

// 8 clients of a host have 16 of 24 cores, 16 have the first and the last 8 of 32 processors on the same cores, and 32 have no processors left.
func TestFUSEEsCores(t *testing.T) {
	for _, x := range []struct {
		k, n int
		want float64
	}{{0, 1, 1}, {7, 8, 1}, {0, 16, 2 / bothDo}, {3, 16, 2 / bothDo}, {4, 16, 1}, {11, 16, 1}, {12, 16, 2 / bothDo}, {5, 24, 2 / bothDo}, {0, 32, 2 / bothDo * 4 / 3}} {
		if got := fuseeSlower(x.k, x.n); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("client %d of %d: %v, not %v", x.k, x.n, got, x.want)
		}
	}
}
