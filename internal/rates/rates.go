// Package rates looks at a running instance, and tells what has changed from one moment to another a second.
package rates

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
)

// Sight is what an instance shows at one moment.
type Sight struct {
	At       clock.Time
	Graph    admin.Graph
	Counters []graph.Count
	Runtime  graph.Runtime
	Ports    admin.Ports
	Boards   []Board
}

// Board is a SuperNIC in one worker.
type Board struct {
	App    string `json:"app"`
	Worker int    `json:"worker"`
	snic.View
}

// Look asks an instance.
func Look(c *admin.Client, clk clock.Clock) (s Sight, err error) {
	s.Graph, err = c.Graph()
	if err == nil {
		s.Counters, err = c.Counters()
	}
	if err == nil {
		s.Runtime, err = c.Runtime()
	}
	if err == nil {
		s.Ports, err = c.Ports()
	}
	if err == nil {
		s.Boards, err = boards(c, s.Graph.Spec)
	}
	s.At = clk.Now()
	return s, err
}

// boards are the boards of an instance.
func boards(c *admin.Client, spec *graph.Spec) ([]Board, error) {
	var out []Board
	for _, name := range slices.Sorted(maps.Keys(spec.Apps)) {
		if spec.Apps[name].Kind != "snic" {
			continue
		}
		views, err := Boards(c, name)
		if err != nil {
			return nil, err
		}
		for i, v := range views {
			out = append(out, Board{name, i, v})
		}
	}
	return out, nil
}

// View is rates over an interval.
type View struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Ports   []Port  `json:"ports"`
	Apps    []App   `json:"apps"`
	Links   []Link  `json:"links"`
	Stay    Stay    `json:"stay"`
	// Growing counters and reasons, the fastest first.
	Growing []Growth `json:"growing"`
	// Boards are the boards at the end of the interval.
	Boards []Board `json:"boards,omitempty"`
}

// Port is what a port receives and sends.
type Port struct {
	Port     string  `json:"port"`
	RxPps    float64 `json:"rx_pps"`
	RxBps    float64 `json:"rx_bit_per_s"`
	TxPps    float64 `json:"tx_pps"`
	TxBps    float64 `json:"tx_bit_per_s"`
	DropPps  float64 `json:"dropped_pps"`
	Bypassed float64 `json:"bypassed_pps"`
	Missed   float64 `json:"missed_pps"`
}

// App is what an app costs.
type App struct {
	App         string  `json:"app"`
	Pps         float64 `json:"pps"`
	Batch       float64 `json:"packets_per_call"`
	NsPerPacket float64 `json:"ns_per_packet"`
	Held        int     `json:"held"` // frames that it keeps, at the end
}

// Link is what a link carries.
type Link struct {
	Link    string  `json:"link"`
	Pps     float64 `json:"pps"`
	DropPps float64 `json:"dropped_pps"`
	Depth   uint64  `json:"depth"` // frames that wait on it, at the end
}

// Stay is how long frames stayed with the worker that took them from a port, where they were not held: half of them, 99 in a hundred,
// and all, to a quarter more (graph.Stay). 0 where no frame came.
type Stay struct {
	P50 clock.Duration `json:"p50_ns"`
	P99 clock.Duration `json:"p99_ns"`
	Max clock.Duration `json:"max_ns"`
}

// Growth is that of a counter or reason.
type Growth struct {
	App       string  `json:"app"`
	Group     string  `json:"group"`
	Name      string  `json:"name"`
	Drops     bool    `json:"drops,omitempty"` // frames that it counts were dropped
	PerSecond float64 `json:"per_second"`
	Total     uint64  `json:"total"`
}

// Between is the rates from one sight to the next.
func Between(a, b Sight) View {
	v := View{Name: b.Graph.Name, Seconds: b.At.Sub(a.At).Seconds(), Ports: []Port{}, Apps: []App{}, Links: []Link{}, Growing: []Growth{}, Boards: b.Boards}
	per := func(before, after uint64) float64 { return float64(after-before) / v.Seconds }
	old := map[string]graph.PortInfo{}
	for _, p := range a.Ports.Ports {
		old[p.Name] = p
	}
	for _, p := range b.Ports.Ports {
		r := Port{Port: p.Name}
		was := old[p.Name]
		if len(was.Queues) != len(p.Queues) {
			continue // the port was opened during the interval
		}
		for q, y := range p.Queues {
			x := was.Queues[q]
			r.RxPps += per(x.RxPackets, y.RxPackets)
			r.RxBps += 8 * per(x.RxBytes, y.RxBytes)
			r.TxPps += per(x.TxPackets, y.TxPackets)
			r.TxBps += 8 * per(x.TxBytes, y.TxBytes)
			r.DropPps += per(x.RxDropped+x.TxDropped+x.ShutOut+x.TooLong, y.RxDropped+y.TxDropped+y.ShutOut+y.TooLong)
			r.Bypassed += per(x.Bypassed, y.Bypassed)
			r.Missed += per(x.Missed, y.Missed)
		}
		v.Ports = append(v.Ports, r)
	}
	nodes := map[string]graph.NodeRuntime{}
	for _, n := range a.Runtime.Nodes {
		nodes[n.Node] = n
	}
	isPort := map[string]bool{}
	for _, p := range b.Ports.Ports {
		isPort[p.Name] = true
	}
	for _, n := range b.Runtime.Nodes {
		was, ok := nodes[n.Node]
		if isPort[n.Node] || !ok || n.Packets < was.Packets {
			continue
		}
		r := App{App: n.Node, Pps: per(was.Packets, n.Packets), Held: n.Held}
		// What packets cost in the interval, where some of them were timed.
		switch timed := n.Timed - was.Timed; {
		case n.Packets == was.Packets:
		case timed > 0 && n.Timed >= was.Timed:
			r.NsPerPacket = max(0, n.NsPer*float64(n.Timed)-was.NsPer*float64(was.Timed)) / float64(timed)
		default:
			r.NsPerPacket = n.NsPer
		}
		if calls := n.Calls - was.Calls; calls > 0 {
			r.Batch = float64(n.Packets-was.Packets) / float64(calls)
		}
		v.Apps = append(v.Apps, r)
	}
	links := map[string]graph.LinkRuntime{}
	for _, l := range a.Runtime.Links {
		links[l.Link] = l
	}
	for _, l := range b.Runtime.Links {
		if was, ok := links[l.Link]; ok && l.Packets >= was.Packets && l.Drops >= was.Drops {
			v.Links = append(v.Links, Link{l.Link, per(was.Packets, l.Packets), per(was.Drops, l.Drops), l.Depth})
		}
	}
	grown := graph.StaysSince(a.Runtime.Stays, b.Runtime.Stays)
	v.Stay = Stay{graph.StayOf(grown, 0.5), graph.StayOf(grown, 0.99), graph.StayOf(grown, 1)}
	type key struct{ node, group, name string }
	counts := map[key]uint64{}
	for _, c := range a.Counters {
		counts[key{c.Node, c.Group, c.Name}] = c.Value
	}
	for _, c := range b.Counters {
		was, ok := counts[key{c.Node, c.Group, c.Name}]
		if c.Group == "frames" || !ok || c.Value <= was {
			continue
		}
		v.Growing = append(v.Growing, Growth{c.Node, c.Group, c.Name, c.Group == "reason" && strings.HasPrefix(c.Help, "dropped"), per(was, c.Value), c.Value})
	}
	sort.SliceStable(v.Growing, func(i, j int) bool { return v.Growing[i].PerSecond > v.Growing[j].PerSecond })
	return v
}

// Boards are the views of app, which is a SuperNIC: one a worker.
func Boards(c *admin.Client, app string) ([]snic.View, error) {
	raw, err := c.Report(app)
	if err != nil {
		return nil, err
	}
	out := make([]snic.View, len(raw))
	for i, r := range raw {
		if err := json.Unmarshal(r, &out[i]); err != nil {
			return nil, fmt.Errorf("app %s: %w", app, err)
		}
	}
	return out, nil
}
