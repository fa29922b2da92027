package demo

import (
	"fmt"
	"image/color"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/chart"
	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	wire "github.com/quillon/quillon/nf/hdr/clio"
)

// ClioConfig describes a run of the case of disaggregated memory. It is part of the result.
type ClioConfig struct {
	Workloads []string `json:"workloads"` // of A, B, C and W
	Variants  []string `json:"variants"`  // of ClioVariants
	Clients   int      `json:"clients"`   // hosts
	Threads   int      `json:"threads"`   // on each host
	Depth     int      `json:"depth"`     // operations that a thread has under way
	Seconds   float64  `json:"seconds"`   // measured of each workload
	Warmup    float64  `json:"warmup_seconds"`
	Keys      int      `json:"keys"`
	Value     int      `json:"value_bytes"`
	Zipf      float64  `json:"zipf"`
	Copies    int      `json:"copies"`        // devices to which a write is copied, in variants that copy
	Cache     int      `json:"cache_entries"` // of the board's cache
	Seed      uint64   `json:"seed"`
}

// DefaultClio returns the published case: one host with 8 threads, 100,000 keys of 1 KB. The cache has as
// many entries as the published board's memory has room for (sim.ClioConfig).
func DefaultClio() ClioConfig {
	return ClioConfig{Workloads: []string{"A", "B", "C"}, Variants: ClioVariants(), Clients: 1, Threads: 8, Depth: 1,
		Seconds: 2, Warmup: 0.5, Keys: 100_000, Value: 1024, Zipf: ycsb.DefaultTheta, Copies: 2, Cache: 38_144, Seed: 1}
}

// mostClioOps limits the operations of a workload, and so the memory of the history that is checked: about
// 170 bytes for each operation of all workloads of a variant.
const mostClioOps = 500_000

// clioGBN are parameters of the transport, so patient that a process that waits for a processor is not given
// up.
var clioGBN = gbn.Config{Timeout: 20 * time.Millisecond, Tries: 500}

// clioVariant describes what is between clients and devices.
type clioVariant struct {
	name      string
	what      string
	published string   // series of figures 5.16 to 5.18
	tasks     []string // the board's, beginning on the devices' side; nil: there is no board
	copies    clio.Replication
	one       bool // copies go to one device only
	hop       bool
	shade     color.NRGBA
}

var clioVariants = []clioVariant{
	{name: "plain", shade: chart.Off, what: "devices with their own go-back-N, no board", published: "Clio"},
	{name: "gobackn", shade: chart.Write, what: "go-back-N on the board", published: "Clio-sNIC", tasks: []string{"gobackn"}},
	{name: "cache", shade: chart.ReadWrite, what: "and a cache on the board", published: "Clio-sNIC-cache", tasks: []string{"kvcache", "gobackn"}},
	{name: "plain-copies", shade: color.NRGBA{0x5D, 0x67, 0x73, 0xFF}, what: "no board, the client writes to each device", published: "Clio-R", copies: clio.ByClient},
	{name: "copy-1", shade: color.NRGBA{0xB9, 0xD7, 0xEF, 0xFF}, what: "go-back-N and replication on the board, to one device", tasks: []string{"replicate", "gobackn"},
		copies: clio.ByNetwork, one: true},
	{name: "copies", shade: color.NRGBA{0x1F, 0x4E, 0x79, 0xFF}, what: "go-back-N and replication on the board", published: "Clio-sNIC-R", tasks: []string{"replicate", "gobackn"},
		copies: clio.ByNetwork},
	{name: "hop", shade: color.NRGBA{0xE0, 0x9F, 0x3E, 0xFF}, what: "go-back-N on the board, the last hop made reliable", tasks: []string{"gobackn"}, hop: true},
	{name: "all", shade: color.NRGBA{0x9E, 0x2A, 0x2B, 0xFF}, what: "go-back-N, cache and replication on the board", tasks: []string{"replicate", "kvcache", "gobackn"},
		copies: clio.ByNetwork},
}

// ClioVariants returns the names of all variants.
func ClioVariants() (names []string) {
	for _, v := range clioVariants {
		names = append(names, v.name)
	}
	return names
}

// ClioVariant describes a variant.
func ClioVariant(name string) string { return variantNamed(name).what }

func variantNamed(name string) *clioVariant {
	i := slices.IndexFunc(clioVariants, func(v clioVariant) bool { return v.name == name })
	if i < 0 {
		return nil
	}
	return &clioVariants[i]
}

// devices returns the number of devices of the variant.
func (v *clioVariant) devices(c *ClioConfig) int {
	if v.copies == clio.Single || v.one {
		return 1
	}
	return c.Copies
}

// board returns the deployment of the board, whose port p0 faces the devices.
func (v *clioVariant) board(c *ClioConfig, devices []wire.End) string {
	args := map[string]string{
		"gobackn": fmt.Sprintf(", args: {timeout: %v, tries: %q}", clioGBN.Timeout, fmt.Sprint(clioGBN.Tries)),
		"kvcache": fmt.Sprintf(", args: {entries: %q, value: %q, settle: 1500ms}", fmt.Sprint(c.Cache), fmt.Sprint(c.Value)),
	}
	var to []string
	for _, d := range devices {
		to = append(to, netip.AddrFrom4(d.IP).String()+"@"+net.HardwareAddr(d.MAC[:]).String())
	}
	args["replicate"] = fmt.Sprintf(", args: {replicas: %q, timeout: 20ms, tries: \"40\"}", strings.Join(to, "+"))
	text := "regions: {count: 1, area: 3}\ntasks:\n"
	for _, t := range v.tasks {
		text += fmt.Sprintf("  %s: {kind: %s%s}\n", t, t, args[t])
	}
	return text + "tenants: {clio: {}}\ndags: [{uid: 1, tenant: clio, run: " + strings.Join(v.tasks, " -> ") + "}]\nrules: [{match: all, dag: 1}]\n"
}

// Check refuses a configuration that cannot run; the error says what to change.
func (c *ClioConfig) Check() error {
	if len(c.Workloads) == 0 || len(c.Variants) == 0 {
		return fmt.Errorf("workload and variant: want one or more of each")
	}
	for i, w := range c.Workloads {
		m, err := ycsb.MixNamed(w)
		if err != nil || slices.Contains(c.Workloads[:i], m.Name) {
			return fmt.Errorf("workload %q is none of A (50 %% writes), B (5 %%), C (0 %%), W (100 %%), or is there twice", w)
		}
		c.Workloads[i] = m.Name
	}
	for i, v := range c.Variants {
		if variantNamed(v) == nil || slices.Contains(c.Variants[:i], v) {
			return fmt.Errorf("variant %q is none of %s, or is there twice", v, strings.Join(ClioVariants(), ", "))
		}
	}
	for _, n := range []struct {
		name     string
		v        float64
		min, max float64
	}{
		{"clients", float64(c.Clients), 1, 16},
		{"threads", float64(c.Threads), 1, 60},
		{"depth", float64(c.Depth), 1, 32},
		{"seconds", c.Seconds, 0.1, 60},
		{"warmup", c.Warmup, 0, 60},
		{"keys", float64(c.Keys), 1, 1 << 20},
		{"value", float64(c.Value), clio.MinValue, clio.MaxValue},
		{"zipf", c.Zipf, 0, 10},
		{"copies", float64(c.Copies), 2, 8},
		{"cache", float64(c.Cache), 1, 1 << 22},
	} {
		if !(n.v >= n.min && n.v <= n.max) {
			return fmt.Errorf("%s must be from %s to %s, not %s", n.name, plain(n.min), plain(n.max), plain(n.v))
		}
	}
	return nil
}

// title describes the run in a line.
func (c *ClioConfig) title() string {
	return fmt.Sprintf("Clio's key/value store, %s keys of %s B, Zipf %g, %d x %d threads, %d under way each",
		thousands(float64(c.Keys)), thousands(float64(c.Value)), c.Zipf, c.Clients, c.Threads, c.Depth)
}
