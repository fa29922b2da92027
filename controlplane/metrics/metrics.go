// Package metrics shows the counters of a running graph, and those of a
// P4Runtime server in front of it, in Prometheus's text format (version 0.0.4).
//
//	quillon_frames_total{node="sw",counter="in"} 12
//	quillon_reasons_total{node="sw",reason="no-port"} 0
//	quillon_app_counter{node="sw",counter="digests"} 3
//	quillon_p4runtime_updates_total 1000
package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/graph"
)

// Write writes the counters of an instance, of a server and of the process;
// either of the first two may be nil. The packet path does not know of it.
func Write(to io.Writer, inst *graph.Instance, stats *p4rt.Stats) error {
	w := bufio.NewWriter(to)
	head := func(name, kind, help string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	if inst != nil {
		all := inst.Counters()
		for _, g := range []struct{ group, name, label, kind, help string }{
			{"frames", "quillon_frames_total", "counter", "counter", "Frames of an app or a port: in, out, generated, dropped, punted."},
			{"reason", "quillon_reasons_total", "reason", "counter", "Frames that were dropped or marked, by reason."},
			{"counter", "quillon_app_counter", "counter", "untyped", "An app's own counter or gauge."},
		} {
			head(g.name, g.kind, g.help)
			for _, c := range all {
				if c.Group == g.group {
					fmt.Fprintf(w, "%s{node=\"%s\",%s=\"%s\"} %d\n", g.name, escape(c.Node), g.label, escape(c.Name), c.Value)
				}
			}
		}
	}
	if stats != nil {
		stats.Each(func(name, help string, gauge bool, v float64) {
			name = "quillon_p4runtime_" + name
			kind := "counter"
			if gauge {
				kind = "gauge"
			}
			head(name, kind, help)
			fmt.Fprintf(w, "%s %s\n", name, strconv.FormatFloat(v, 'f', -1, 64))
		})
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	head("quillon_heap_bytes", "gauge", "Memory of live objects and of those not yet collected.")
	fmt.Fprintf(w, "quillon_heap_bytes %d\n", m.HeapAlloc)
	head("quillon_goroutines", "gauge", "Goroutines.")
	fmt.Fprintf(w, "quillon_goroutines %d\n", runtime.NumGoroutine())
	return w.Flush()
}

// escape makes a string the value of a label.
func escape(s string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) }

// Server answers at /metrics.
type Server struct {
	ln  net.Listener
	srv *http.Server
	end chan error
}

// Listen serves Write's text by HTTP. An address that others can reach must be
// asked for by anyone.
func Listen(addr string, anyone bool, inst *graph.Instance, stats *p4rt.Stats) (*Server, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: address %s: want host:port", addr)
	}
	if ip := net.ParseIP(host); !anyone && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("metrics: address %s can be reached by others, in plain text: take one of the loopback interface, or ask for insecure", addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = Write(w, inst, stats)
	})
	s := &Server{ln: ln, srv: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, end: make(chan error, 1)}
	go func() { s.end <- s.srv.Serve(ln) }()
	return s, nil
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
