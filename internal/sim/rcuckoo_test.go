package sim

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/rcuckoo"
)

func cuckoo(t *testing.T, c RCuckooConfig) RCuckooMeasured {
	t.Helper()
	m, err := RCuckoo(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.Errors > 0 || m.Ops == 0 {
		t.Fatalf("%+v", m)
	}
	return m
}

// Equal seeds give equal runs; a read takes a READ's time, and an insertion into an empty
// table two round trips, 4 messages, and as many bytes as frames of these have.
func TestRCuckoo(t *testing.T) {
	c := RCuckooConfig{Table: rcuckoo.Layout{Rows: 1 << 12, Form: rcuckoo.Code, Hashing: rcuckoo.HashCode}, Fill: 0.05, Kind: rcuckoo.Insert, Library: rcuckoo.Config{Blind: true}, StoreLoad: StoreLoad{Clients: 4, Hosts: 2, Writes: 0.5, Seed: 3}}
	a, b := cuckoo(t, c), cuckoo(t, c)
	if a.Ops != b.Ops || a.Events != b.Events || a.Stats != b.Stats {
		t.Errorf("%+v\n%+v", a, b)
	}
	v, err := Verbs(context.Background(), VerbsConfig{QPs: 4, Hosts: 2, Op: 5, Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(a.Read.P50/v.P50Micros-1) > 0.1 {
		t.Errorf("a read takes %v us, a READ %v", a.Read.P50, v.P50Micros)
	}
	// 102+70, 74+62+1024, 74+62+8, 102+70
	if a.RoundTrips.P50 != 2 || a.WriteMessages < 4 || a.WriteMessages > 4.05 || a.WriteBytes < 1648 || a.WriteBytes > 1690 {
		t.Errorf("%+v", a)
	}
	c.Library.Fence = true
	if f := cuckoo(t, c); f.Write.P50 < a.Write.P50+1.5 {
		t.Errorf("an insertion takes %v us without a fence, %v with", a.Write.P50, f.Write.P50)
	}
}

// A client's own time is a part of its reads, updates and insertions.
func TestRCuckooWork(t *testing.T) {
	for _, kind := range []rcuckoo.Kind{rcuckoo.Update, rcuckoo.Insert} {
		c := RCuckooConfig{Table: rcuckoo.Layout{Rows: 1 << 12, Form: rcuckoo.Code}, Fill: 0.1, Kind: kind, Library: rcuckoo.Config{Blind: true}, StoreLoad: StoreLoad{Clients: 2, Hosts: 2, Writes: 0.5, Seed: 3}}
		idle := cuckoo(t, c)
		c.Library.Work = rcuckoo.Work{Read: 2 * time.Microsecond, Update: 5 * time.Microsecond, Insert: 3 * time.Microsecond, Held: time.Microsecond}
		busy := cuckoo(t, c)
		want := 3.0
		if kind == rcuckoo.Update {
			want = 5
		}
		if r, w := busy.Read.P50-idle.Read.P50, busy.Write.P50-idle.Write.P50; math.Abs(r-2) > 0.1 || math.Abs(w-want) > 0.1 {
			t.Errorf("%v: reads take %.2f us longer, and writes %.2f", kind, r, w)
		}
	}
}

// What a client does while it holds a lock keeps others out: of clients that update one row the rate falls by that time.
func TestRCuckooWorkHeld(t *testing.T) {
	c := RCuckooConfig{Table: rcuckoo.Layout{Rows: 64, Form: rcuckoo.Code}, Fill: 0.002, Kind: rcuckoo.Update, StoreLoad: StoreLoad{Clients: 2, Hosts: 2, Writes: 1, Seed: 3}}
	c.Library.Work = rcuckoo.Work{Update: 10 * time.Microsecond}
	early := cuckoo(t, c)
	c.Library.Work.Held = 9 * time.Microsecond
	held := cuckoo(t, c)
	// Two clients that wait 10 us first hardly meet; with 9 us of it under the lock they take turns.
	if period := 2e6 / held.OpsPerSecond; period < 2*9 {
		t.Errorf("an update takes %.1f us, and %.1f when others may not hold the lock meanwhile", 2e6/early.OpsPerSecond, period)
	}
	if held.OpsPerSecond > 0.9*early.OpsPerSecond {
		t.Errorf("%.3g/s with the time under the lock, %.3g/s with it before", held.OpsPerSecond, early.OpsPerSecond)
	}
}

// Clients fail, and others repair: the table goes on.
func TestRCuckooFailures(t *testing.T) {
	for _, form := range []rcuckoo.Form{rcuckoo.Paper, rcuckoo.Code} {
		c := RCuckooConfig{Table: rcuckoo.Layout{Rows: 1 << 10, Form: form}, Fill: 0.6, Kind: rcuckoo.Update, Failures: 5000, Library: rcuckoo.Config{FailAfter: time.Millisecond, Torn: true}, StoreLoad: StoreLoad{Clients: 16, Hosts: 4, Writes: 0.5, Zipf: 0.9, Measure: 6 * time.Millisecond}}
		m := cuckoo(t, c)
		if m.Failed < 20 || m.Stats.Repaired < 10 || m.Stats.Robbed > 0 {
			t.Errorf("%v: %d failed, %+v", form, m.Failed, m.Stats)
		}
		c.Failures = 0
		if calm := cuckoo(t, c); calm.OpsPerSecond < m.OpsPerSecond || calm.Stats.Repaired > 0 || calm.Stats.TookOver > 0 {
			t.Errorf("%v: %.3g/s with failures, %.3g/s without, %+v", form, m.OpsPerSecond, calm.OpsPerSecond, calm.Stats)
		}
		if form == rcuckoo.Paper && m.Stats.Torn == 0 {
			t.Errorf("no row was seen torn: %+v", m)
		}
	}
}

// A table that becomes full ends the run, and values in extents are what was written.
func TestRCuckooFullAndExtents(t *testing.T) {
	m := cuckoo(t, RCuckooConfig{Table: rcuckoo.Layout{Rows: 64}, Kind: rcuckoo.Insert, Until: 1000, StoreLoad: StoreLoad{Clients: 8, Writes: 1}})
	if !m.Full || m.Filled < 0.8 {
		t.Errorf("%+v", m)
	}
	m = cuckoo(t, RCuckooConfig{Table: rcuckoo.Layout{Rows: 256}, Fill: 0.5, Value: 500, Kind: rcuckoo.Update, StoreLoad: StoreLoad{Clients: 8, Writes: 0.5}})
	if m.ReadMessages < 2 || m.Writes == 0 {
		t.Errorf("%+v", m)
	}
}

func TestRCuckooRefuses(t *testing.T) {
	for _, c := range []RCuckooConfig{{StoreLoad: StoreLoad{Clients: -1}}, {StoreLoad: StoreLoad{Box: "x"}}, {StoreLoad: StoreLoad{Hosts: 2000, Clients: 3000}}, {Fill: 2}, {StoreLoad: StoreLoad{Writes: -1}}, {Failures: -1}, {StoreLoad: StoreLoad{Measure: -1}}, {Table: rcuckoo.Layout{Rows: 1 << 25}}, {Table: rcuckoo.Layout{Rows: 3}}} {
		if _, err := RCuckoo(context.Background(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Masked CASes on shared connections, and as WRITEs: the box may not change what clients do.
func TestRCuckooBox(t *testing.T) {
	c := RCuckooConfig{Table: rcuckoo.Layout{Rows: 1 << 10}, Fill: 0.6, Kind: rcuckoo.Update, StoreLoad: StoreLoad{Clients: 16, Hosts: 4, Writes: 0.5, Zipf: 0.9}}
	plain := cuckoo(t, c)
	for _, box := range []string{"mux", "replace"} {
		c.Box = box
		m := cuckoo(t, c)
		t.Logf("%s: %.3g/s, without a box %.3g/s", box, m.OpsPerSecond, plain.OpsPerSecond)
		if m.Stats.Robbed > 0 || m.Stats.Broken > 0 || m.Moved == 0 || (m.Replaced > 0) != (box == "replace") || m.OpsPerSecond < plain.OpsPerSecond/4 {
			t.Errorf("%s: %+v", box, m)
		}
	}
}
