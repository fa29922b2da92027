package sim

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
)

func fuseeRan(t *testing.T, c FuseeConfig) FuseeMeasured {
	t.Helper()
	m, err := Fusee(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.Errors > 0 || m.Ops == 0 || m.Full {
		t.Fatalf("%+v", m)
	}
	return m
}

// Equal seeds give equal runs. A read takes two READs' time, an update and a blind
// insertion as many messages as the authors' code sends.
func TestFusee(t *testing.T) {
	c := FuseeConfig{Keys: 2000, Kind: fusee.Update, Library: fusee.Config{Cache: -1, Blind: true}, StoreLoad: StoreLoad{Clients: 4, Hosts: 2, Writes: 0.5, Seed: 3}}
	a, b := fuseeRan(t, c), fuseeRan(t, c)
	if a.Ops != b.Ops || a.Events != b.Events || a.Stats != b.Stats {
		t.Errorf("%+v\n%+v", a, b)
	}
	v, err := Verbs(context.Background(), VerbsConfig{QPs: 4, Hosts: 2, Op: 5, Size: 128})
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(a.Read.P50/(2*v.P50Micros)-1) > 0.1 {
		t.Errorf("a read takes %v us, a READ %v", a.Read.P50, v.P50Micros)
	}
	// 2 READs of buckets and one of the object; a WRITE, the same, a CAS, and a WRITE of the state.
	if a.ReadMessages < 3 || a.ReadMessages > 3.3 || a.WriteMessages < 6 || a.WriteMessages > 6.5 {
		t.Errorf("%+v", a)
	}
	c.Kind = fusee.Insert
	if m := fuseeRan(t, c); m.WriteMessages < 4 || m.WriteMessages > 4.5 {
		t.Errorf("%+v", m)
	}
	c.Kind, c.Library.Cache = fusee.Update, 0
	if m := fuseeRan(t, c); m.Stats.Hits == 0 {
		t.Errorf("%+v", m)
	}
	c.Store = fusee.Layout{Nodes: 3, Replicas: 3}
	c.Zipf = 0.99
	m := fuseeRan(t, c)
	t.Logf("%+v", m)
	if m.Stats.Rules[0] == 0 || m.Stats.Lost == 0 {
		t.Errorf("%+v", m)
	}
}

func TestFuseeRefuses(t *testing.T) {
	for _, c := range []FuseeConfig{{StoreLoad: StoreLoad{Clients: -1}}, {StoreLoad: StoreLoad{Box: "x"}}, {StoreLoad: StoreLoad{Hosts: 2000, Clients: 3000}}, {Keys: -1}, {Keys: 1 << 23}, {Value: 1 << 20}, {StoreLoad: StoreLoad{Writes: 2}}, {StoreLoad: StoreLoad{Measure: -1}}, {Kind: fusee.Recover}, {Store: fusee.Layout{Nodes: 2}, StoreLoad: StoreLoad{Box: "mux"}}, {Store: fusee.Layout{Groups: 3}}} {
		if _, err := Fusee(context.Background(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// CASes on shared connections, and as WRITEs: the box may not change what clients do.
func TestFuseeBox(t *testing.T) {
	c := FuseeConfig{Keys: 500, Kind: fusee.Update, Library: fusee.Config{Cache: -1, FailAfter: 10 * time.Millisecond}, StoreLoad: StoreLoad{Clients: 16, Hosts: 4, Writes: 0.5, Zipf: 0.99}}
	plain := fuseeRan(t, c)
	for _, box := range []string{"mux", "replace"} {
		c.Box = box
		m := fuseeRan(t, c)
		t.Logf("%s: %.3g/s, without a box %.3g/s", box, m.OpsPerSecond, plain.OpsPerSecond)
		if m.Stats.Broken > 0 || m.Moved == 0 || (m.Replaced > 0) != (box == "replace") || m.OpsPerSecond < plain.OpsPerSecond/4 {
			t.Errorf("%s: %+v", box, m)
		}
	}
}

// A client's coroutines share its queue pair. Each looks for its completion after a nap: a read of two posts takes two
// naps, for which the thread is late when it has slept. An update that marks the old object beside its CAS, whether it
// wins or not, has a message more than one that has lost.
func TestFuseeCoroutines(t *testing.T) {
	c := FuseeConfig{Keys: 2000, Kind: fusee.Update, Coroutines: 2, Library: fusee.Config{Cache: -1, Blind: true}, StoreLoad: StoreLoad{Clients: 4, Hosts: 2, Writes: 0.5, Seed: 3}}
	c.Library.Fibers = fusee.Fibers{Nap: 10 * time.Microsecond, Late: 50 * time.Microsecond, Post: time.Microsecond}
	a, b := fuseeRan(t, c), fuseeRan(t, c)
	if a.Ops != b.Ops || a.Events != b.Events || a.Stats != b.Stats {
		t.Errorf("%+v\n%+v", a, b)
	}
	if a.Read.P50 < 120 || a.Read.P50 > 125 {
		t.Errorf("a read takes %v us", a.Read.P50)
	}
	c.Library.Fibers.Late = 0
	if m := fuseeRan(t, c); m.Read.P50 < 20 || m.Read.P50 > 25 {
		t.Errorf("without being late, a read takes %v us", m.Read.P50)
	}
	c = FuseeConfig{Keys: 2, Kind: fusee.Update, Library: c.Library, StoreLoad: StoreLoad{Clients: 16, Writes: 1, Seed: 3}}
	c.Library.Fibers = fusee.Fibers{}
	lazy := fuseeRan(t, c)
	c.Library.Eager = true
	eager := fuseeRan(t, c)
	if lazy.Stats.Lost == 0 || eager.WriteMessages < 5.98 || eager.WriteMessages < lazy.WriteMessages+0.1 {
		t.Errorf("%v of %v updates lost, %.2f messages each; %.2f when all mark the old object", lazy.Stats.Lost, lazy.Ops, lazy.WriteMessages, eager.WriteMessages)
	}
	c.Clients, c.Coroutines = 256, 129
	if _, err := Fusee(context.Background(), c); err == nil {
		t.Error("33,024 operations under way are not refused")
	}
}

// Clients with the public code's cache read a key that they have used in one post, if it does not change, and in two otherwise. An update
// saves a post, too. What they did before the window decides what the cache has.
func TestFuseeWide(t *testing.T) {
	c := FuseeConfig{Keys: 2000, Kind: fusee.Update, Library: fusee.Config{Cache: 1 << 16, Wide: true, Blind: true, Eager: true}, StoreLoad: StoreLoad{Clients: 4, Hosts: 2, Zipf: 0.99, Seed: 3}}
	posts := func(change func(*FuseeConfig)) float64 {
		c := c
		change(&c)
		m := fuseeRan(t, c)
		return float64(m.Stats.RoundTrips) / float64(m.Stats.Done[fusee.Read]+m.Stats.Done[fusee.Update])
	}
	for _, x := range []struct {
		name        string
		least, most float64
		change      func(*FuseeConfig)
	}{
		{"all was read before", 1, 1.01, func(c *FuseeConfig) { c.Past, c.Trace = 1e6, 1 }},
		{"nothing was read before", 1.2, 1.8, func(*FuseeConfig) {}},
		{"some was read before", 1.05, 1.5, func(c *FuseeConfig) { c.Past = 2000 }},
		{"no cache", 2, 2.05, func(c *FuseeConfig) { c.Library.Cache, c.Library.Wide = -1, false }},
		{"keys change", 1.9, 2.1, func(c *FuseeConfig) { c.Past, c.Trace, c.Writes = 1e6, 1, 0.05 }},
		{"own updates count as changes", 2.7, 3.05, func(c *FuseeConfig) { c.Clients, c.Writes = 1, 1 }},
	} {
		if p := posts(x.change); p < x.least || p > x.most {
			t.Errorf("%s: %.3f posts an operation", x.name, p)
		}
	}
}
