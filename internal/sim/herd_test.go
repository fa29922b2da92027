package sim

import (
	"context"
	"strings"
	"testing"
	"time"
)

func herdRan(t *testing.T, c HerdConfig) HerdMeasured {
	t.Helper()
	m, err := Herd(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.Errors > 0 || m.Ops == 0 || m.Again > 0 {
		t.Fatalf("%+v", m)
	}
	return m
}

// Equal seeds give equal runs. A core does as much as it has time for, and two do twice as much.
func TestHerd(t *testing.T) {
	c := HerdConfig{Keys: 1000, StoreLoad: StoreLoad{Clients: 64, Writes: 0.05, Seed: 3}}
	a, b := herdRan(t, c), herdRan(t, c)
	if a.Ops != b.Ops || a.Events != b.Events || a.Stats != b.Stats || a.Mean != b.Mean {
		t.Errorf("%+v\n%+v", a, b)
	}
	if most := 1e9 / float64(HerdRequest); a.OpsPerSecond < most*0.97 || a.OpsPerSecond > most*1.01 {
		t.Errorf("%v operations a second, at most %v", a.OpsPerSecond, most)
	}
	c.Cores = 2
	if m := herdRan(t, c); m.OpsPerSecond < 1.8*a.OpsPerSecond {
		t.Errorf("two cores: %v, one %v", m.OpsPerSecond, a.OpsPerSecond)
	}
	// One client waits for its own request alone.
	c = HerdConfig{Keys: 1000, StoreLoad: StoreLoad{Clients: 1}}
	fast := herdRan(t, c)
	c.Request = time.Microsecond
	if d := herdRan(t, c).Mean - fast.Mean; d < 0.82 || d > 0.88 {
		t.Errorf("a request that takes 851 ns longer is answered %v us later", d)
	}
}

func TestHerdRefuses(t *testing.T) {
	for _, c := range []HerdConfig{{StoreLoad: StoreLoad{Clients: -1}}, {StoreLoad: StoreLoad{Box: "mux"}}, {Keys: -1}, {Cores: 300}, {Value: 1025}, {Request: -1}} {
		if _, err := Herd(context.Background(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
