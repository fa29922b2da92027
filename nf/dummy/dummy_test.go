package dummy

import (
	"bytes"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// steps is a clock that goes on by 10 ns at each reading.
type steps struct{ now clock.Time }

func (s *steps) Now() clock.Time { s.now += 10; return s.now }

func TestCost(t *testing.T) {
	clk := &steps{}
	pool, err := packet.NewPool(16, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := mem.NewWire("a", "b", pool, 16, clk)
	defer a.Close()
	defer b.Close()
	inst, err := graph.New(graph.Config{Clock: clk, Kinds: []graph.Kind{*Kind()}, Ports: map[string][]port.Port{"p": {b}},
		Spec: &graph.Spec{Ports: map[string]graph.PortSpec{"p": {Kind: "mem"}}, Apps: map[string]graph.AppSpec{"d": {Kind: "dummy", Args: graph.Args{"cost": "500ns"}}},
			Links: []string{"p.out -> d.a", "d.b -> p.in"}}})
	if err != nil {
		t.Fatal(err)
	}
	var batch packet.Batch
	for range 4 {
		x := pool.Get()
		x.SetBytes([]byte{1})
		batch.Add(x)
	}
	before := clk.now
	if err := inst.Push("p", 0, &batch); err != nil {
		t.Fatal(err)
	}
	if d := clk.now.Sub(before); d < 4*500 || d > 4*500+100 {
		t.Errorf("4 frames of 500 ns take %v", d)
	}
}

func TestUntouched(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"cost": "1ms"})
	for in, out := range map[string]string{"a": "b", "b": "a"} {
		if got := x.Push(in, []byte{1, 2, 3}).Out[out]; len(got) != 1 || !bytes.Equal(got[0].Bytes, []byte{1, 2, 3}) || got[0].Reason != "" {
			t.Errorf("%v", got)
		}
	}
	if err := x.Set(graph.Args{"cost": "7us"}); err != nil || x.App().(*dummy).cost != 7*time.Microsecond {
		t.Error(err)
	}
	for _, v := range []string{"-1ns", "2ms", "5", ""} {
		if err := x.Set(graph.Args{"cost": v}); err == nil {
			t.Errorf("cost=%s is taken", v)
		}
	}
	if n := graphtest.Allocs(t, *Kind(), nil, "a", []byte{1, 2, 3}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
