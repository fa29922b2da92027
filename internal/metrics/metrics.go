// Package metrics shows the counters of a running graph, and those of a
// P4Runtime server in front of it, to Prometheus.
//
//	quillon_frames_total{counter="in",node="sw"} 12
//	quillon_reasons_total{node="sw",reason="no-port"} 0
//	quillon_app_counter{counter="digests",node="sw"} 3
//	quillon_p4runtime_updates_total 1000
//
// Beside them are the Go collector's own.
package metrics

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// collector reads the counters when Prometheus asks: the packet path does not
// know of it.
type collector struct {
	inst  *graph.Instance
	stats *p4rt.Stats // nil: there is no server
}

// groups are those of graph.Count. An app's own may be counters or gauges.
var groups = map[string]struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}{
	"frames":  {prometheus.NewDesc("quillon_frames_total", "Frames of an app or a port: in, out, generated, dropped, punted.", []string{"node", "counter"}, nil), prometheus.CounterValue},
	"reason":  {prometheus.NewDesc("quillon_reasons_total", "Frames that were dropped or marked, by reason.", []string{"node", "reason"}, nil), prometheus.CounterValue},
	"counter": {prometheus.NewDesc("quillon_app_counter", "An app's own counter or gauge.", []string{"node", "counter"}, nil), prometheus.UntypedValue},
}

// ports are the totals of ports, over all their queues.
var ports = prometheus.NewDesc("quillon_port_frames_total", "Frames at a port: rx and tx; rx_dropped, tx_dropped; and those that no app saw: "+
	"bypassed (nobody wants them), missed (wanted, and crossed in the kernel), shut_out (wanted, and dropped there); too_long are those of the bypassed and the missed that the other interface's MTU is too short for: dropped.", []string{"port", "counter"}, nil)

// workers are the times of workers' threads.
var workers = prometheus.NewDesc("quillon_worker_seconds_total", "Times of a worker's thread: ran, and waited (ready to run, and not scheduled).", []string{"worker", "counter"}, nil)

// Describe implements prometheus.Collector: what there is changes with the graph.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for _, x := range c.inst.Counters() {
		if g, ok := groups[x.Group]; ok {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, float64(x.Value), x.Node, x.Name)
		}
	}
	for _, p := range c.inst.Ports() {
		var all port.Stats
		for _, q := range p.Queues {
			all.Add(q)
		}
		for _, x := range []struct {
			name string
			n    uint64
		}{
			{"rx", all.RxPackets}, {"tx", all.TxPackets}, {"rx_dropped", all.RxDropped}, {"tx_dropped", all.TxDropped},
			{"bypassed", all.Bypassed}, {"missed", all.Missed}, {"shut_out", all.ShutOut}, {"too_long", all.TooLong},
		} {
			to <- prometheus.MustNewConstMetric(ports, prometheus.CounterValue, float64(x.n), p.Name, x.name)
		}
	}
	for _, w := range c.inst.Times() {
		n := strconv.Itoa(w.Worker)
		to <- prometheus.MustNewConstMetric(workers, prometheus.CounterValue, w.Ran.Seconds(), n, "ran")
		to <- prometheus.MustNewConstMetric(workers, prometheus.CounterValue, w.Waited.Seconds(), n, "waited")
	}
	if c.stats == nil {
		return
	}
	c.stats.Each(func(name, help string, gauge bool, v float64) {
		kind := prometheus.CounterValue
		if gauge {
			kind = prometheus.GaugeValue
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("quillon_p4runtime_"+name, help, nil, nil), kind, v)
	})
}

// Server answers at /metrics.
type Server struct {
	ln  net.Listener
	srv *http.Server
	end chan error
}

// Listen serves the counters of an instance, and of a server unless it is nil, by
// HTTP. An address that others can reach must be asked for by anyone.
func Listen(addr string, anyone bool, inst *graph.Instance, stats *p4rt.Stats) (*Server, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: address %s: want host:port", addr)
	}
	if ip := net.ParseIP(host); !anyone && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("metrics: address %s can be reached by others, in plain text: take one of the loopback interface, or ask for it with --insecure", addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	all := prometheus.NewRegistry()
	all.MustRegister(collector{inst, stats}, collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	s := &Server{ln: ln, srv: &http.Server{Handler: mux, ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: maxHeaders}, end: make(chan error, 1)}
	go func() { s.end <- s.srv.Serve(&few{Listener: ln}) }()
	return s, nil
}

// All clients together have maxConns connections at a time. A connection ends when it asks nothing, or does not take its answer,
// for so long.
const (
	maxConns   = 64
	maxHeaders = 8 << 10 // bytes of a request
	patience   = 5 * time.Second
)

// few is a listener that hangs up on whoever comes while maxConns are there.
type few struct {
	net.Listener
	open atomic.Int32
}

func (l *few) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= maxConns {
			return &counted{Conn: c, of: l}, nil
		}
		l.open.Add(-1)
		_ = c.Close()
	}
}

// counted is one of these connections.
type counted struct {
	net.Conn
	of   *few
	gone sync.Once
}

func (c *counted) Close() error {
	c.gone.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// Addr is where the metrics are.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close hangs up.
func (s *Server) Close() error {
	err := s.srv.Close()
	if e := <-s.end; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
