package metrics_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/quillon/quillon/controlplane/metrics"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// counting is a port that has counted something.
type counting struct{ port.Port }

func (counting) Stats() port.Stats { return port.Stats{Bypassed: 22, Missed: 3, ShutOut: 7} }

func TestMetrics(t *testing.T) {
	spec, err := graph.ParseSpec([]byte("ports: {a: {kind: mem}}\napps: {s: {kind: sink}}\nlinks: [a.out -> s.in]\n"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(4, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire, other := mem.NewWire("a", "b", pool, 1, clock.NewWall())
	defer other.Close()
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: graph.Builtin(), Ports: map[string][]port.Port{"a": {counting{wire}}}, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	times := []string{"quillon_worker_seconds_total{counter=\"ran\",worker=\"0\"} ", "quillon_worker_seconds_total{counter=\"waited\",worker=\"0\"} "}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		times = nil // this kernel does not count them
	}
	for len(times) > 0 && len(inst.Times()) == 0 {
		runtime.Gosched() // until the worker runs
	}
	stats := p4rt.New(p4rt.Config{}).Stats()
	stats.Updates.Add(1_000_000_000)
	stats.Streams.Add(2)
	s, err := metrics.Listen("127.0.0.1:0", false, inst, stats)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("%v %v", r, err)
	}
	for _, want := range append(times,
		"quillon_frames_total{counter=\"in\",node=\"s\"} 0\n", "quillon_reasons_total{node=\"s\",reason=\"sunk\"} 0\n",
		"quillon_port_frames_total{counter=\"missed\",port=\"a\"} 3\n", "quillon_port_frames_total{counter=\"shut_out\",port=\"a\"} 7\n", "quillon_port_frames_total{counter=\"bypassed\",port=\"a\"} 22\n",
		"quillon_p4runtime_updates_total 1e+09\n", "# TYPE quillon_p4runtime_streams gauge\nquillon_p4runtime_streams 2\n",
	) {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%q is missing", want)
		}
	}
	if r, err := http.Get("http://" + s.Addr().String() + "/else"); err != nil || r.StatusCode != http.StatusNotFound {
		t.Error(r, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{"0.0.0.0:0", ":0", "127.0.0.1"} {
		if s, err := metrics.Listen(addr, false, inst, stats); err == nil {
			s.Close()
			t.Errorf("%s was taken", addr)
		}
	}
}
