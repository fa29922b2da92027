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
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/httpd"
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

// Listen serves the counters of an instance, and of a server unless it is nil, at /metrics of an address (see httpd.Listen).
func Listen(addr string, anyone bool, inst *graph.Instance, stats *p4rt.Stats) (*httpd.Server, error) {
	all := prometheus.NewRegistry()
	all.MustRegister(collector{inst, stats}, collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	return httpd.Listen("metrics", addr, anyone, mux)
}
