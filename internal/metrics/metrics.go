// Package metrics shows the counters of a running graph, and those of a
// P4Runtime server in front of it, to Prometheus; and has rules and a dashboard for them.
//
//	quillon_frames_total{counter="in",name="rack7",node="sw"} 12
//	quillon_reasons_total{name="rack7",node="sw",reason="no-port"} 0
//	quillon_app_value{counter="digests",name="rack7",node="sw"} 3
//	quillon_p4runtime_updates_total{name="rack7"} 1000
//
// Beside them are the Go collector's own.
package metrics

import (
	"compress/gzip"
	_ "embed"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/httpd"
	"github.com/quillon/quillon/internal/version"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic"
)

// Rules are Prometheus' recording and alerting rules.
//
//go:embed quillon.rules.yml
var Rules []byte

// dashboard is dashboard.json, compressed: gzip -9nc dashboard.json > dashboard.json.gz
//
//go:embed dashboard.json.gz
var dashboard string

// Dashboard returns Grafana's, as JSON.
func Dashboard() []byte {
	z, err := gzip.NewReader(strings.NewReader(dashboard))
	if err == nil {
		var b []byte
		if b, err = io.ReadAll(z); err == nil {
			return b
		}
	}
	panic(err) // it is part of the program
}

// Config says what is shown.
type Config struct {
	Address  string // host:port, or unix:PATH
	Anyone   bool   // others may reach the address
	Name     string // of the instance, a label of all
	Started  clock.Time
	Instance *graph.Instance
	Server   *p4rt.Stats // nil: there is no server
}

// Listen serves /metrics.
func Listen(c Config) (*httpd.Server, error) {
	all := prometheus.NewRegistry()
	prometheus.WrapRegistererWith(prometheus.Labels{"name": c.Name}, all).MustRegister(collector{c})
	all.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	return httpd.Listen("metrics", c.Address, c.Anyone, mux)
}

// collector reads the counters when Prometheus asks: the packet path does not
// know of it.
type collector struct{ Config }

// maxTenants are as many tenants and DAGs of a board as have series: each costs Prometheus memory.
const maxTenants = 1000

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("quillon_"+name, help, labels, nil)
}

// groups are those of graph.Count. An app's own may be counters or gauges.
var groups = map[string]struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}{
	"frames":  {desc("frames_total", "Frames of an app or a port: in, out, generated, dropped, punted.", "node", "counter"), prometheus.CounterValue},
	"reason":  {desc("reasons_total", "Frames that were dropped or marked, by reason.", "node", "reason"), prometheus.CounterValue},
	"counter": {desc("app_value", "An app's own counter or gauge.", "node", "counter"), prometheus.UntypedValue},
}

var (
	info    = desc("info", "1, for the version of the program.", "version", "workers")
	started = desc("start_time_seconds", "When the instance started, in seconds since 1970.")
	// ports are the totals of ports, over all their queues.
	ports = desc("port_frames_total", "Frames at a port: rx and tx; rx_dropped, tx_dropped; and those that no app saw: "+
		"bypassed (nobody wants them), missed (wanted, and crossed in the kernel), shut_out (wanted, and dropped there); too_long are those of the bypassed and the missed that the other interface's MTU is too short for: dropped.", "port", "counter")
	bytes = desc("port_bytes_total", "Bytes of the frames that a port received (rx) and sent (tx).", "port", "counter")
	// workers are the times of workers' threads.
	workers = desc("worker_seconds_total", "Times of a worker's thread: ran, and waited (ready to run, and not scheduled).", "worker", "counter")

	timed        = desc("app_timed_frames_total", "Frames of an app whose time was measured, and of which app_timed_seconds_total is the time.", "node")
	timedSeconds = desc("app_timed_seconds_total", "Time that an app took for the frames of app_timed_frames_total.", "node")
	stay         = desc("stay_seconds", "How long frames stayed with the worker that took them from a port, until it had given frames to ports; not for how long apps held them.")
	held         = desc("app_held_frames", "Frames that an app keeps.", "node")
	links        = desc("link_frames_total", "Frames on a link: crossed, and dropped as it was full.", "link", "counter")
	depth        = desc("link_depth_frames", "Frames that wait on a link.", "link")

	boardBusy    = desc("board_busy_ratio", "Part of its time that a worker needs for what comes to a SuperNIC; more than 1: there is too much.", "node", "worker")
	boardInside  = desc("board_inside_frames", "Frames in the regions of a SuperNIC, or on their way there.", "node", "worker")
	boardStored  = desc("board_stored_bytes", "Bytes in the packet store of a SuperNIC.", "node", "worker")
	boardWaiting = desc("board_waiting_chains", "Chains of a SuperNIC that wait for a region.", "node", "worker")
	tenantShare  = desc("tenant_share_ratio", "Dominant share of a tenant: of the resource of which it has most.", "node", "worker", "tenant")
	tenantGrant  = desc("tenant_grant_ratio", "Part of what a tenant asked for that it got.", "node", "worker", "tenant")
	dagFrames    = desc("dag_frames_total", "Frames of a DAG: taken in, and throttled.", "node", "worker", "dag", "tenant", "counter")
)

// Describe implements prometheus.Collector: what there is changes with the graph.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// sink takes metrics.
type sink chan<- prometheus.Metric

func (s sink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// leastBucket and mostBucket are the bounds of a stay's buckets, in powers of 2 of nanoseconds: 1 us and 268 ms. Each is four
// times the one before.
const leastBucket, mostBucket = 10, 28

func (s sink) stays(run graph.Runtime) {
	buckets, all := map[float64]uint64{}, uint64(0)
	for p := leastBucket; p <= mostBucket; p += 2 {
		buckets[float64(uint64(1)<<p)/1e9] = 0
	}
	for _, x := range run.Stays {
		all += x.Frames
		for p := leastBucket; p <= mostBucket; p += 2 {
			if x.UpTo <= 1<<p {
				buckets[float64(uint64(1)<<p)/1e9] += x.Frames
			}
		}
	}
	s <- prometheus.MustNewConstHistogram(stay, all, run.Stayed.Seconds(), buckets)
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	to := sink(ch)
	inst := c.Instance
	to.gauge(info, 1, version.This().Version, strconv.Itoa(inst.Workers()))
	to.gauge(started, float64(c.Started)/1e9)
	// A reason of an app may have the name of one that all apps have, as "stopped" of a SuperNIC: they are one series.
	sums := map[[3]string]uint64{}
	for _, x := range inst.Counters() {
		sums[[3]string{x.Group, x.Node, x.Name}] += x.Value
	}
	for k, v := range sums {
		if g, ok := groups[k[0]]; ok {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, float64(v), k[1], k[2])
		}
	}
	c.ports(to)
	for _, w := range inst.Times() {
		n := strconv.Itoa(w.Worker)
		to.counter(workers, w.Ran.Seconds(), n, "ran")
		to.counter(workers, w.Waited.Seconds(), n, "waited")
	}
	run := inst.Runtime()
	for _, n := range run.Nodes {
		to.counter(timed, float64(n.Timed), n.Node)
		to.counter(timedSeconds, n.NsPer*float64(n.Timed)/1e9, n.Node)
		to.gauge(held, float64(n.Held), n.Node)
	}
	for _, l := range run.Links {
		to.counter(links, float64(l.Packets), l.Link, "crossed")
		to.counter(links, float64(l.Drops), l.Link, "dropped")
		to.gauge(depth, float64(l.Depth), l.Link)
	}
	to.stays(run)
	c.boards(to)
	if c.Server == nil {
		return
	}
	c.Server.Each(func(name, help string, gauge bool, v float64) {
		kind := prometheus.CounterValue
		if gauge {
			kind = prometheus.GaugeValue
		}
		to <- prometheus.MustNewConstMetric(desc("p4runtime_"+name, help), kind, v)
	})
}

func (c collector) ports(to sink) {
	for _, p := range c.Instance.Ports() {
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
			to.counter(ports, float64(x.n), p.Name, x.name)
		}
		to.counter(bytes, float64(all.RxBytes), p.Name, "rx")
		to.counter(bytes, float64(all.TxBytes), p.Name, "tx")
	}
}

// boards shows SuperNICs.
func (c collector) boards(to sink) {
	for node, app := range c.Instance.Spec().Apps {
		if app.Kind != "snic" {
			continue
		}
		views, err := c.Instance.Report(node)
		if err != nil {
			continue // it has just been taken out
		}
		for i, x := range views {
			v, ok := x.(snic.View)
			if !ok {
				continue
			}
			w := strconv.Itoa(i)
			to.gauge(boardBusy, v.Board.Busy, node, w)
			to.gauge(boardInside, float64(v.Board.Inside), node, w)
			to.gauge(boardStored, float64(v.Board.Stored), node, w)
			to.gauge(boardWaiting, float64(v.Board.Waiting), node, w)
			for _, t := range v.Tenants[:min(len(v.Tenants), maxTenants)] {
				to.gauge(tenantShare, t.Share, node, w, t.Tenant)
				to.gauge(tenantGrant, t.Grant, node, w, t.Tenant)
			}
			for _, d := range v.DAGs[:min(len(v.DAGs), maxTenants)] {
				uid := strconv.FormatUint(uint64(d.UID), 10)
				to.counter(dagFrames, float64(d.Packets), node, w, uid, d.Tenant, "taken")
				to.counter(dagFrames, float64(d.Throttled), node, w, uid, d.Tenant, "throttled")
			}
		}
	}
}
