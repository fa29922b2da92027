package sim

import (
	"context"
	"fmt"
	"testing"

	"github.com/quillon/quillon/internal/rack/ycsb"
)

// Orderings of figures 5.16 to 5.18, on fewer keys. With half of the operations writes
// a cache makes up for the way through the sNIC, and not always for more.
func TestClioComparison(t *testing.T) {
	rows, err := clioComparison(context.Background(), ClioConfig{Keys: 5000, Ops: 20_000, CacheEntries: 1000})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]map[[2]int]clioRow{}
	for _, r := range rows {
		if by[r.Mix] == nil {
			by[r.Mix] = map[[2]int]clioRow{}
		}
		by[r.Mix][[2]int{int(r.Stack), r.Replicas}] = r
		if r.Errors+r.Corrupt+r.Retransmitted > 0 || r.Ops != 20_000 {
			t.Errorf("%s %v %d: %+v", r.Mix, r.Stack, r.Replicas, r.ClioMeasured)
		}
	}
	for mix, r := range by {
		plain, offload, cache := r[[2]int{0, 1}], r[[2]int{1, 1}], r[[2]int{2, 1}]
		if !(plain.Mean < offload.Mean && cache.Mean < offload.Mean && (cache.Mean < plain.Mean || mix == "A")) {
			t.Errorf("%s: latencies %.2f, %.2f, %.2f", mix, plain.Mean, offload.Mean, cache.Mean)
		}
		if !(cache.Gbit > offload.Gbit && (cache.Gbit > plain.Gbit || mix == "A")) {
			t.Errorf("%s: throughputs %.2f, %.2f, %.2f", mix, plain.Gbit, offload.Gbit, cache.Gbit)
		}
		if mix == "C" {
			continue
		}
		plain2, offload2 := r[[2]int{0, 2}], r[[2]int{1, 2}]
		if byClient, bySNIC := plain2.Mean/plain.Mean, offload2.Mean/offload.Mean; !(bySNIC < byClient) {
			t.Errorf("%s: copies by the client cost %.2f, by the sNIC %.2f", mix, byClient, bySNIC)
		}
	}
}

// Equal seeds give equal runs; losses cost time, and nothing else.
func TestClioLoss(t *testing.T) {
	c := ClioConfig{Stack: ClioCache, Replicas: 2, Mix: ycsb.A, Keys: 500, Ops: 3000, Clients: 2, CacheEntries: 50, LRU: true, Loss: 0.01, Seed: 3}
	a, err := Clio(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Clio(context.Background(), c)
	if err != nil || *a != *b {
		t.Errorf("%v: %+v, %+v", err, a, b)
	}
	c.Warm, c.Loss = 9000, 0
	if b, err = Clio(context.Background(), c); err != nil || b.Ops != 3000 || b.Hits < 0.25 || b.Hits > 1 || b.Mean >= a.Mean {
		t.Errorf("%v: warm: %+v, cold: %+v", err, b, a)
	}
	if a.Errors+a.Corrupt > 0 || a.Ops != 3000 || a.Retransmitted == 0 {
		t.Errorf("%+v", a)
	}
}

func TestClioRefuses(t *testing.T) {
	for _, c := range []ClioConfig{{Stack: 9}, {Replicas: 9}, {Value: 2000}, {Loss: 0.7}, {Keys: -1}, {Threads: 2000}} {
		if _, err := Clio(context.Background(), c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// clioRow is a run of a comparison.
type clioRow struct {
	Mix      string
	Stack    ClioStack
	Replicas int
	*ClioMeasured
}

// clioComparison runs YCSB A, B and C with each of: Clio, its transport on an sNIC, a
// cache there, too, and the first two with writes to two devices (A and B). c gives the
// rest.
func clioComparison(ctx context.Context, c ClioConfig) ([]clioRow, error) {
	var rows []clioRow
	for _, mix := range []ycsb.Mix{ycsb.A, ycsb.B, ycsb.C} {
		for _, x := range []struct {
			stack    ClioStack
			replicas int
		}{{ClioPlain, 1}, {ClioOffload, 1}, {ClioCache, 1}, {ClioPlain, 2}, {ClioOffload, 2}, {ClioCache, 2}} {
			if mix == ycsb.C && x.replicas > 1 {
				continue
			}
			one := c
			one.Mix, one.Stack, one.Replicas = mix, x.stack, x.replicas
			m, err := Clio(ctx, one)
			if err != nil {
				return rows, fmt.Errorf("YCSB %s, %v, %d replicas: %w", mix.Name, x.stack, x.replicas, err)
			}
			rows = append(rows, clioRow{mix.Name, x.stack, x.replicas, m})
		}
	}
	return rows, nil
}
