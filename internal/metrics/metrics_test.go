package metrics_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/metrics"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// counting is a port that has counted something.
type counting struct{ port.Port }

func (counting) Stats() port.Stats { return port.Stats{Bypassed: 22, Missed: 3, ShutOut: 7} }

// running is an instance of one app and one port.
func running(t *testing.T) *graph.Instance {
	spec, err := graph.ParseSpec([]byte("ports: {a: {kind: mem}}\napps: {s: {kind: sink}}\nlinks: [a.out -> s.in]\n"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(4, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire, other := mem.NewWire("a", "b", pool, 1, clock.NewWall())
	t.Cleanup(func() { other.Close() })
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: graph.Builtin(), Ports: map[string][]port.Port{"a": {counting{wire}}}, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inst.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return inst
}

// TestBounded: whoever reaches the address has a few connections at a time, which end when they ask for nothing,
// or do not take what they asked for: descriptors and memory are the process's.
func TestBounded(t *testing.T) {
	t.Parallel()
	s, err := metrics.Listen(metrics.Config{Address: "127.0.0.1:0", Name: "box", Instance: running(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const most, ask = 64, "GET /else HTTP/1.1\r\nHost: a\r\n\r\n"
	answered := func(c net.Conn) bool {
		if _, err := io.WriteString(c, ask); err != nil {
			return false
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && r.StatusCode == http.StatusNotFound
	}
	var open []net.Conn
	for range 4 * most {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if answered(c) {
			open = append(open, c)
		}
	}
	if len(open) != most {
		t.Errorf("%d connections were served, want %d", len(open), most)
	}
	// One asks for more than fits on its way, and takes nothing.
	slow := open[0]
	_ = slow.SetWriteDeadline(time.Now().Add(time.Second))
	for range 1 << 12 {
		if _, err := io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			break
		}
	}
	for i, c := range open[1:] {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Fatalf("connection %d, which says nothing: %v", i+1, err)
		}
	}
	for left := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err := slow.Write([]byte("GET")); errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			break
		}
		_ = slow.SetWriteDeadline(time.Now().Add(time.Second))
		if time.Now().After(left) {
			t.Fatal("the connection whose client takes nothing is open")
		}
	}
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !answered(c) {
		t.Error("nobody is served when all have gone")
	}
}

func TestMetrics(t *testing.T) {
	inst := running(t)
	times := []string{"quillon_worker_seconds_total{counter=\"ran\",name=\"box\",worker=\"0\"} ", "quillon_worker_seconds_total{counter=\"waited\",name=\"box\",worker=\"0\"} "}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		times = nil // this kernel does not count them
	}
	for len(times) > 0 && len(inst.Times()) == 0 {
		runtime.Gosched() // until the worker runs
	}
	stats := p4rt.New(p4rt.Config{}).Stats()
	stats.Updates.Add(1_000_000_000)
	stats.Streams.Add(2)
	s, err := metrics.Listen(metrics.Config{Address: "127.0.0.1:0", Name: "box", Instance: inst, Server: stats})
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
		"quillon_frames_total{counter=\"in\",name=\"box\",node=\"s\"} 0\n", "quillon_reasons_total{name=\"box\",node=\"s\",reason=\"sunk\"} 0\n",
		"quillon_port_frames_total{counter=\"missed\",name=\"box\",port=\"a\"} 3\n", "quillon_port_frames_total{counter=\"shut_out\",name=\"box\",port=\"a\"} 7\n", "quillon_port_frames_total{counter=\"bypassed\",name=\"box\",port=\"a\"} 22\n",
		"quillon_p4runtime_updates_total{name=\"box\"} 1e+09\n", "quillon_stay_seconds_bucket{name=\"box\",le=\"1.024e-06\"} 0\n", "quillon_stay_seconds_count{name=\"box\"} 0\n", "# TYPE quillon_p4runtime_streams gauge\nquillon_p4runtime_streams{name=\"box\"} 2\n",
	) {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%q is missing", want)
		}
	}
	if r, err := http.Get("http://" + s.Addr().String() + "/else"); err != nil || r.StatusCode != http.StatusNotFound {
		t.Error(r, err)
	}
	// Headers of a request are held until all are there.
	ask, err := http.NewRequest(http.MethodGet, "http://"+s.Addr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("X", strings.Repeat("x", 64<<10))
	if r, err := http.DefaultClient.Do(ask); err == nil && r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a request with headers of 64 KB: %v", r.Status)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{"0.0.0.0:0", ":0", "127.0.0.1"} {
		if s, err := metrics.Listen(metrics.Config{Address: addr, Instance: inst, Server: stats}); err == nil {
			s.Close()
			t.Errorf("%s was taken", addr)
		}
	}
}
