package sim

import (
	"context"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
)

// Loads of stores run with 10,000 clients on seven hosts.
func TestManyClients(t *testing.T) {
	many := StoreLoad{Hosts: 7, Clients: 10_000, Writes: 0.05, Zipf: 0.9, Seed: 1, Warmup: 50 * time.Microsecond, Measure: 100 * time.Microsecond}
	for _, x := range []struct {
		store string
		run   func() (StoreMeasured, error)
	}{
		{"FUSEE", func() (StoreMeasured, error) {
			m, err := Fusee(context.Background(), FuseeConfig{Keys: 2000, Kind: fusee.Update, Library: fusee.Config{Cache: -1, Blind: true}, StoreLoad: many})
			return m.StoreMeasured, err
		}},
		{"RCuckoo", func() (StoreMeasured, error) {
			m, err := RCuckoo(context.Background(), RCuckooConfig{Table: rcuckoo.Layout{Rows: 1 << 12, Form: rcuckoo.Code, Hashing: rcuckoo.HashCode}, Fill: 0.5, Kind: rcuckoo.Update, StoreLoad: many})
			return m.StoreMeasured, err
		}},
		{"Sherman", func() (StoreMeasured, error) {
			m, err := Sherman(context.Background(), ShermanConfig{Keys: 2000, StoreLoad: many})
			return m.StoreMeasured, err
		}},
	} {
		m, err := x.run()
		if err == nil {
			err = m.Check()
		}
		if err != nil {
			t.Errorf("%s: %v", x.store, err)
		}
	}
}

// No two clients draw the same operations, however many a host has.
func TestStreamsDiffer(t *testing.T) {
	for _, clients := range []int{320, 7000, 10_000} {
		r := storeRun{load: &StoreLoad{Hosts: 7, Clients: clients}, nodes: make([]*memoryNode, 1)}
		seen := map[uint64]bool{}
		for i := range 7 {
			h := &storeHost{number: i}
			for k := range (clients + 6 - i) / 7 {
				seen[r.stream(h, k)] = true
			}
		}
		if len(seen) != clients {
			t.Errorf("%d clients draw %d different sequences of operations", clients, len(seen))
		}
	}
}
