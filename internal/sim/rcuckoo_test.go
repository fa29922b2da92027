package sim

import (
	"context"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/rcuckoo"
)

func TestDbgRC(t *testing.T) {
	base := RCuckooConfig{Table: rcuckoo.Layout{Form: rcuckoo.Code, Hashing: rcuckoo.HashCode}, Fill: 0.9, Zipf: 0.99, Items: 90_000_000, Library: rcuckoo.Config{Blind: true}}
	run := func(name string, c RCuckooConfig) {
		t0 := time.Now()
		m, err := RCuckoo(context.Background(), c)
		t.Logf("%s: %.2f Mops %v err %v; %+v", name, m.OpsPerSecond/1e6, time.Since(t0), err, m)
	}
	for _, n := range []int{10, 80, 320} {
		c := base
		c.Clients = n
		run("C", c)
		c.Writes, c.Kind = 0.05, rcuckoo.Update
		run("B", c)
		c.Writes = 0.5
		run("A", c)
	}
	for _, f := range []float64{0.1, 0.9} {
		c := base
		c.Clients, c.Fill, c.Writes, c.Kind = 320, f, 1, rcuckoo.Insert
		run("W", c)
		c.Clients = 8
		run("W8", c)
	}
}
