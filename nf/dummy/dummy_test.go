package dummy

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/memory"
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

// part is memory of one page at a time.
type part struct {
	data    []byte
	page    int
	is      int
	outcome memory.Outcome // of access to another page
	asked   int
}

func (s *part) Size() int64                              { return int64(len(s.data)) }
func (s *part) PageBytes() int                           { return s.page }
func (s *part) Reserve(uint64, int64, memory.Perm) error { return nil }
func (s *part) Read(va uint64, p []byte) (int, memory.Outcome) {
	if va >= uint64(len(s.data)) {
		return 0, memory.Fault
	}
	if s.asked = int(va) / s.page; s.asked != s.is {
		return 0, s.outcome
	}
	return copy(p, s.data[va:]), memory.OK
}
func (s *part) Write(va uint64, p []byte) (int, memory.Outcome) {
	if int(va)/s.page != s.is {
		return 0, s.outcome
	}
	return copy(s.data[va:], p), memory.OK
}

// Frames wait for their pages, so many at most, and go in the order of their flow;
// nothing is touched twice.
func TestTouch(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"touch": "8", "memory": "32", "hold": "3"})
	s := &part{data: make([]byte, 32), page: 16, outcome: memory.Wait}
	if err := x.App().(memory.User).UseMemory(s); err != nil {
		t.Fatal(err)
	}
	frame := func(n int) []byte { return make([]byte, n) } // no IP: the length tells the address
	if got := x.Push("a", frame(20), frame(21)).Out["b"]; len(got) != 2 {
		t.Fatal(got)
	}
	got := x.Push("a", frame(22), frame(20), frame(26), frame(23), frame(27))
	if len(got.Out["b"]) != 1 || len(got.Dropped) != 1 || got.Dropped[0].Reason != "hold-full" || x.Counter("held") != 3 || s.asked != 1 {
		t.Fatal(got)
	}
	s.is = 1
	got = x.Push("a", frame(30))
	if out := got.Out["b"]; len(out) != 4 || len(out[0].Bytes) != 22 || len(out[1].Bytes) != 26 || len(out[3].Bytes) != 30 || out[0].Reason != "waited" || out[3].Reason != "" {
		t.Fatal(got)
	}
	if want := []byte{2, 1, 3, 1}; s.data[0] != want[0] || s.data[8] != want[1] || s.data[16] != want[2] || s.data[31] != want[3] || x.Counter("touched") != 7 {
		t.Errorf("%v", s.data)
	}
	// A page that came has those go on that wait for it.
	x.Push("b", frame(20))
	s.is = 0
	app := x.App().(*touching)
	if err := x.Inst.Visit(graphtest.App, 0, func(graph.App) {}); err != nil || app.Held() != 1 {
		t.Fatal(err, app.Held())
	}
	if got := x.Push("b", frame(20)).Out["a"]; len(got) != 2 {
		t.Error(got)
	}
	for want, o := range map[string]memory.Outcome{"no-memory": memory.Refused, "fault": memory.Fault} {
		s.outcome = o
		if got := x.Push("a", frame(22)).Dropped; len(got) != 1 || got[0].Reason != want {
			t.Error(want, got)
		}
	}
}

func TestTouchAlone(t *testing.T) {
	args := graph.Args{"touch": "64", "stray": "3"}
	x := graphtest.New(t, *Kind(), args)
	got := x.Push("a", []byte{1}, []byte{1}, []byte{1}, []byte{1})
	if len(got.Out["b"]) != 3 || len(got.Dropped) != 1 || got.Dropped[0].Reason != "fault" || x.App().(*touching).own[64] != 3 {
		t.Error(got)
	}
	if err := x.Set(graph.Args{"touch": "64", "stray": "3", "cost": "1us"}); err != nil || x.App().(*touching).own[64] != 3 {
		t.Error("a change of cost= starts it anew", err)
	}
	for _, bad := range []graph.Args{{"touch": "3"}, {"touch": "8k"}, {"touch": "8", "memory": "9"}, {"memory": "0"}, {"stray": "-1"}, {"hold": "x"}} {
		if x.Set(bad) == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	app := x.App().(*touching)
	for _, s := range []*part{{data: make([]byte, 4096), page: 4096}, {data: make([]byte, 1<<16), page: 16}} {
		if app.UseMemory(s) == nil {
			t.Errorf("%d bytes in pages of %d are enough", len(s.data), s.page)
		}
	}
	args["stray"] = "0"
	if n := graphtest.Allocs(t, *Kind(), args, "a", []byte{1, 2, 3}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Both directions of a flow have the same memory; flows differ also by their ports.
func TestAddress(t *testing.T) {
	d := &touching{dummy: dummy{settings: settings{touch: 1, memory: 1 << 20}}}
	frame := func(src, dst, sport, dport byte) []byte {
		p := make([]byte, 42)
		p[12], p[13], p[14], p[17], p[22], p[23] = 8, 0, 0x45, 28, 64, hdr.ProtoUDP
		p[29], p[33], p[35], p[37], p[39] = src, dst, sport, dport, 8
		return p
	}
	a := d.address(frame(1, 2, 3, 4))
	if b := d.address(frame(2, 1, 4, 3)); a != b {
		t.Errorf("%d forward, %d back", a, b)
	}
	for _, p := range [][]byte{frame(1, 2, 4, 3), frame(1, 2, 3, 5), frame(3, 2, 3, 4)} {
		if d.address(p) == a {
			t.Errorf("another flow has the same memory: %x", p)
		}
	}
}

// One that is given memory does not take Go's as well.
func TestMemoryOnce(t *testing.T) {
	args := graph.Args{"touch": "64", "memory": "16M"}
	var apps []graph.App
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		app, err := Kind().New(graph.Env{}, args)
		if err != nil {
			t.Fatal(err)
		}
		apps = append(apps, app)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d instances that have seen no frame took %d bytes", len(apps), n)
	}
}
