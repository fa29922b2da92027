package figure

import (
	"context"
	"strings"
	"testing"
)

// Sherman's and HERD's curves are run in each figure that has them, with one value for each published point.
func TestShermanAndHERD(t *testing.T) {
	for id, c := range map[string]struct {
		name string
		want int
	}{"3.9": {nameSherman, 8}, "3.10": {nameSherman, 8}, "3.11": {nameSherman, 8}, "3.13": {nameSherman, 1}, "4.10": {nameHERD, 5}, "4.11": {nameHERD, 5}, "5.16": {nameHERD, 3}, "5.17": {nameHERD, 3}} {
		fs, err := Find(id)
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := fs[0].jobs(mustLoad(t, fs[0].data), Params{Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, j := range jobs {
			if strings.HasPrefix(j.name, c.name) {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d runs of %s", id, n, c.name)
		}
	}
}

// 8 clients of Sherman read at most 25 % faster than published. With locks that each client takes for itself the
// throughput collapses, as published; with locks that are handed over it does not.
func TestShermanCollapse(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	p := mustLoad(t, "3.11")
	at := func(writes float64, cause, client string) float64 {
		jobs, err := shermanClients(writes)(p, Params{Seed: 5, Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.name == nameSherman+", "+client {
				vs, err := j.run(context.Background(), func(float64) {})
				if err != nil {
					t.Fatal(err)
				}
				return vs[0].Y
			}
		}
		t.Fatalf("no run with %s clients", client)
		return 0
	}
	if y, ok := mustLoad(t, "3.9").at(nameSherman, 8); !ok || at(0, "", "8")/y > 1.25 {
		t.Errorf("8 clients: published %v", y)
	}
	few, many := at(0.5, causeFlat, "64"), at(0.5, causeFlat, "320")
	shared := at(0.5, "", "320")
	if many > few/3 || shared < 3*many {
		t.Errorf("each for itself %v with 64 clients and %v with 320, handed over %v", few, many, shared)
	}
}

// The experiment that no paper has compares nothing, and says so. It takes the parameters.
func TestShermanBoxed(t *testing.T) {
	fs, err := Find("sherman-box")
	if err != nil {
		t.Fatal(err)
	}
	if f := fs[0]; !f.Own() || f.NoPrediction() {
		t.Error("sherman-box is not marked as an experiment")
	}
	zipf := 1.2
	r, err := fs[0].Run(context.Background(), Params{Seed: 1, Quick: true, Threads: []int{2}, Hosts: 3, Keys: 5000, Zipf: &zipf}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err = fs[0].Run(context.Background(), Params{Seed: 1, Quick: true, Threads: []int{1}}, nil); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Summary(), "an experiment that no paper has") || !r.OK() || len(r.Misses()) != 0 {
		t.Errorf("%s", r.Summary())
	}
	for i, p := range r.Panels {
		if len(p.Curves) != 6 || len(p.Curves[0].Points) != 1 || p.Curves[0].Points[0].X != 8 {
			t.Errorf("panel %d: %+v", i, p)
		}
	}
	for _, f := range All() {
		if f.Own() != (f.ID == "sherman-box") {
			t.Errorf("%s: an experiment: %v", f.ID, f.Own())
		}
	}
}
