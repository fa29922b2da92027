package sim

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/rack/rnic"
)

func shermanRan(t *testing.T, c ShermanConfig) ShermanMeasured {
	t.Helper()
	m, err := Sherman(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.Errors > 0 || m.Ops == 0 || m.Full {
		t.Fatalf("%+v", m)
	}
	return m
}

// Equal seeds give equal runs. A search takes a READ of a page, and a write that changes a value a CAS, a READ and two WRITEs.
func TestSherman(t *testing.T) {
	c := ShermanConfig{Keys: 20_000, StoreLoad: StoreLoad{Clients: 4, Hosts: 2, Writes: 0.5, Seed: 3}}
	a, b := shermanRan(t, c), shermanRan(t, c)
	if a.Ops != b.Ops || a.Events != b.Events || a.Stats != b.Stats {
		t.Errorf("%+v\n%+v", a, b)
	}
	v, err := Verbs(context.Background(), VerbsConfig{QPs: 4, Hosts: 2, Op: rnic.OpRead, Size: 1024})
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(a.Read.P50/v.P50Micros-1) > 0.1 {
		t.Errorf("a search takes %v us, a READ %v", a.Read.P50, v.P50Micros)
	}
	if a.ReadMessages != 1 || a.WriteMessages < 4 || a.WriteMessages > 4.2 {
		t.Errorf("%+v", a)
	}
	c.Insert, c.Nodes, c.Keys = true, 3, 200
	if m := shermanRan(t, c); m.Stats.Splits == 0 || m.WriteMessages < 4 || m.WriteMessages > 4.5 {
		t.Errorf("%+v", m)
	}
}

// Clients of a host that share locks hand them over; each for itself they do not, and do less.
func TestShermanLocks(t *testing.T) {
	c := ShermanConfig{Keys: 20_000, StoreLoad: StoreLoad{Clients: 64, Hosts: 4, Writes: 1, Zipf: 0.99, Measure: 3 * time.Millisecond}}
	shared := shermanRan(t, c)
	c.Flat = true
	flat := shermanRan(t, c)
	t.Logf("%.3g/s shared, %.3g/s each for itself", shared.OpsPerSecond, flat.OpsPerSecond)
	if shared.Stats.HandedOver == 0 || flat.Stats.HandedOver != 0 || flat.Stats.LockFailed < 2*shared.Stats.LockFailed || flat.OpsPerSecond > shared.OpsPerSecond {
		t.Errorf("%+v\n%+v", shared.Stats, flat.Stats)
	}
}

// Locks on a shared connection, and as WRITEs: the box may not change what clients do.
func TestShermanBox(t *testing.T) {
	c := ShermanConfig{Keys: 20_000, StoreLoad: StoreLoad{Clients: 32, Hosts: 4, Writes: 1, Zipf: 0.99}}
	plain := shermanRan(t, c)
	for _, box := range []string{"mux", "replace"} {
		c.Box = box
		m := shermanRan(t, c)
		t.Logf("%s: %.3g/s, without a box %.3g/s", box, m.OpsPerSecond, plain.OpsPerSecond)
		if m.Stats.Broken > 0 || m.Moved == 0 || (m.Replaced > 0) != (box == "replace") || m.OpsPerSecond < plain.OpsPerSecond/4 {
			t.Errorf("%s: %+v", box, m)
		}
	}
}

func TestShermanRefuses(t *testing.T) {
	for _, c := range []ShermanConfig{{StoreLoad: StoreLoad{Clients: -1}}, {StoreLoad: StoreLoad{Box: "x"}}, {Keys: -1}, {Keys: 1 << 23}, {Nodes: -1}, {Nodes: 65}, {StoreLoad: StoreLoad{Writes: 2}}, {StoreLoad: StoreLoad{Measure: -1}}, {Nodes: 2, StoreLoad: StoreLoad{Box: "mux"}}} {
		if _, err := Sherman(context.Background(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
