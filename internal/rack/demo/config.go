package demo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quillon/quillon/internal/rack/clover"
)

// Config describes a run. It is part of the result.
type Config struct {
	Store    string  `json:"store"`    // one of Stores
	Workload string  `json:"workload"` // A, B, C or W: 50, 5, 0, 100 % writes
	Clients  int     `json:"clients"`  // on each compute node
	Nodes    int     `json:"nodes"`    // compute nodes
	Seconds  float64 `json:"seconds"`  // measured in each phase
	Warmup   float64 `json:"warmup_seconds"`
	Keys     int     `json:"keys"`
	Entry    int     `json:"entry_bytes"`      // slab size: header and value
	Zipf     float64 `json:"zipf"`             // 0 = uniform
	Search   string  `json:"search,omitempty"` // of clover.SearchNamed; "" = headers
	Seed     uint64  `json:"seed"`
	MTU      int     `json:"mtu"`
	IPv6     bool    `json:"ipv6"`
	CM       bool    `json:"cm"` // connections are made over the wire, by connection managers
	// For stores other than Clover: the bytes of a value, 0 = the store's own; and what sessions do in stores
	// whose sessions do not read and write keys.
	Value int    `json:"value_bytes,omitempty"`
	Work  string `json:"work,omitempty"`
	// For stores with keys in order: the share of writes that delete a key, and the share of reads that read
	// a range of keys.
	Deletes float64 `json:"deletes,omitempty"`
	Ranges  float64 `json:"ranges,omitempty"`
}

// Default returns the run that the documentation shows.
func Default() Config {
	return Config{Store: cloverName, Workload: "A", Clients: 8, Nodes: 3, Seconds: 5, Warmup: 1, Keys: 1024, Entry: 128, Zipf: 0.99, Seed: 1, MTU: 1500, CM: true}
}

// Check refuses a configuration that cannot run; the error says what to change.
func (c *Config) Check() error {
	if len(c.Workload) != 1 || !strings.Contains("ABCW", c.Workload) {
		return fmt.Errorf("workload %q is none of A (50 %% writes), B (5 %%), C (0 %%), W (100 %%)", c.Workload)
	}
	for _, n := range []struct {
		name     string
		v        float64
		min, max float64
	}{
		{"clients", float64(c.Clients), 1, 256},
		{"nodes", float64(c.Nodes), 1, 64},
		{"seconds", c.Seconds, 0.1, 86400},
		{"warmup", c.Warmup, 0, 3600},
		{"keys", float64(c.Keys), 1, 1 << 20},
		{"entry", float64(c.Entry), 128, 1024},
		{"zipf", c.Zipf, 0, 0.999},
		{"deletes", c.Deletes, 0, 1},
		{"ranges", c.Ranges, 0, 1},
		{"mtu", float64(c.MTU), 1280, 9000},
	} {
		if !(n.v >= n.min && n.v <= n.max) {
			return fmt.Errorf("%s must be from %s to %s, not %s", n.name, plain(n.min), plain(n.max), plain(n.v))
		}
	}
	if c.Store != cloverName {
		return c.checkOther()
	}
	if _, err := c.search(); err != nil {
		return err
	}
	if c.Entry&(c.Entry-1) != 0 {
		return fmt.Errorf("entry must be a power of two, not %d: Clover's slabs are", c.Entry)
	}
	return nil
}

// search returns how Clover's clients find tails.
func (c *Config) search() (clover.Search, error) {
	if c.Search == "" {
		return clover.SearchHeaders, nil
	}
	return clover.SearchNamed(c.Search)
}

// title describes the run in a line.
func (c *Config) title() string {
	if c.Store != cloverName {
		return c.titleOther()
	}
	writes := map[string]string{"A": "50 %", "B": "5 %", "C": "0 %", "W": "100 %"}[c.Workload]
	return fmt.Sprintf("Clover, YCSB %s (%s writes), %s keys of %d B, Zipf %g, %d x %d clients",
		c.Workload, writes, thousands(float64(c.Keys)), c.Entry, c.Zipf, c.Nodes, c.Clients)
}

// plain formats x without an exponent.
func plain(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
