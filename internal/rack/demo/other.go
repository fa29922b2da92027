package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/swordbox"
)

// cloverName is the store whose clients are steered. All others are those of rack/store; a swordbox keeps
// their shared words.
const cloverName = "clover"

// Stores returns the names of all stores.
func Stores() []string { return append([]string{cloverName}, store.Names()...) }

// About describes a store in a line.
func About(name string) string {
	if k, err := store.Named(name); err == nil {
		return k.Summary
	}
	return "a key/value store of chains of entries (Tsai, Shan and Zhang, USENIX ATC 2020)"
}

// Ordered reports whether a store has its keys in order, so that ranges can be read, and keys can be deleted.
func Ordered(name string) bool {
	k, err := store.Named(name)
	return err == nil && k.Ordered
}

// Works returns what sessions of a store can do; none: they read and write keys.
func Works(name string) []string {
	if k, err := store.Named(name); err == nil {
		return k.Works
	}
	return nil
}

// boxModes are the phases of a swordbox.
var boxModes = []string{"off", "mux", "replace"}

// modes returns the phases of a run.
func (c *Config) modes() []string {
	if c.Store == cloverName {
		return cloverModes[:]
	}
	return boxModes
}

// kind returns the store of a run that is not Clover, and what its memory node holds.
func (c *Config) kind() (*store.Kind, store.Spec, error) {
	s := store.Spec{Keys: c.Keys, Value: c.Value, Work: c.Work, Clients: len(boxModes) * c.Nodes, Sessions: len(boxModes) * c.Nodes * c.Clients}
	k, err := store.Named(c.Store)
	if err == nil {
		err = k.Check(&s)
	}
	return k, s, err
}

// checkOther is Check for a store that is not Clover.
func (c *Config) checkOther() error {
	if !slices.Contains(Stores(), c.Store) {
		return fmt.Errorf("store %q is none of %s", c.Store, strings.Join(Stores(), ", "))
	}
	_, s, err := c.kind()
	c.Value, c.Work = s.Value, s.Work
	return err
}

// titleOther is title for a store that is not Clover.
func (c *Config) titleOther() string {
	if c.Work != "" {
		return fmt.Sprintf("%s, %s on %s words, %d x %d clients", c.Store, c.Work, thousands(float64(c.Keys)), c.Nodes, c.Clients)
	}
	return fmt.Sprintf("%s, YCSB %s (%g %% writes), %s keys of %d B, Zipf %g, %d x %d clients",
		c.Store, c.Workload, 100*mixes[c.Workload].Writes, thousands(float64(c.Keys)), c.Value, c.Zipf, c.Nodes, c.Clients)
}

// mostKept is the most operations that a run records to check them at the end.
const mostKept = 500_000

// fleet implements stage for a store that is not Clover.
type fleet struct {
	*store.Fleet
	clk     clock.Clock
	kind    *store.Kind
	server  *store.Server
	workers []host.Worker
	since   clock.Time
}

// newOther makes a store and its clients on the nodes' ports, and returns the middlebox for them.
func newOther(clk clock.Clock, c *Config, nodes []topo.Node, open func(n *topo.Node) (port.Port, error)) (stage, *boxed, error) {
	k, spec, err := c.kind()
	if err != nil {
		return nil, nil, err
	}
	f := &fleet{clk: clk, kind: k, Fleet: store.NewFleet(k, store.Work{Mix: mixes[c.Workload], Theta: c.Zipf, Deletes: c.Deletes, Ranges: c.Ranges, Seed: c.Seed, Keep: true})}
	var memory *topo.Node
	for i := range nodes {
		if nodes[i].Role == topo.Memory {
			memory = &nodes[i]
		}
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Role == topo.Metadata {
			continue
		}
		p, err := open(n)
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		nic, err := rnic.New(rnic.Config{MAC: n.Addr.MAC, IP: n.Addr.IP, Profile: rnic.ConnectX, LinkMTU: c.MTU, Pool: p.Pool(), FirstQPN: uint32(0x100*(i+1) + 0x11), Seed: c.Seed + uint64(i)})
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		var app host.App
		if n == memory {
			f.server, err = store.NewServer(k, spec, nic, c.Seed)
			app = f.server
		} else {
			app, err = f.Add(nic, memory.Addr.IP, memory.Addr.MAC, c.Clients, uint64(i)+1)
		}
		if err != nil {
			return nil, nil, err
		}
		f.workers = append(f.workers, host.NewNode(p, nic, app))
	}
	var track []string
	for _, s := range f.server.Store().Shared() {
		track = append(track, fmt.Sprintf("%x+%x", s.VA, s.Len))
	}
	box := &boxed{app: "swordbox", kind: swordbox.Kind(), args: graph.Args{
		"mode": "off", "servers": memory.Addr.IP.String(), "track": strings.Join(track, ":"), "infer": "off", "discover": "0", "writable": "assume"}}
	return f, box, nil
}

// Workers implements stage.
func (f *fleet) Workers() []host.Worker { return f.workers }

// Live implements Clients.
func (f *fleet) Live() Ops {
	m := f.Fleet.Live()
	return Ops{Done: m.Ops, FirstTry: m.First, Failed: m.Errors + m.Unknown, Spent: f.Spent()}
}

// Begin implements Clients.
func (f *fleet) Begin() {
	f.Fleet.Begin()
	f.since = f.clk.Now()
}

// Measured implements Clients.
func (f *fleet) Measured(context.Context) (Measured, error) {
	m := f.Fleet.Measured()
	return Measured{
		Ops:     Ops{Done: m.Ops, FirstTry: m.First, Failed: m.Errors + m.Unknown},
		Elapsed: time.Duration(f.clk.Now().Sub(f.since)), Read: latency(m.Read), Write: latency(m.Write),
	}, nil
}

// Allow implements Budget.
func (f *fleet) Allow(share float64) { f.Fleet.Allow(max(1, int(share*mostKept))) }

// Walking implements stage.
func (f *fleet) Walking() string { return "checking what clients were told" }

// Verdict implements stage.
func (f *fleet) Verdict() Integrity {
	v := f.Judge(f.server.Store())
	return Integrity{Keys: uint64(v.Keys), AckedWrites: v.Written, Lost: uint64(v.Lost), Checked: uint64(v.Checked), Wrong: v.Wrong, Words: len(f.kind.Works) > 0}
}

// other is String for a store that is not Clover.
func (i Integrity) other() string {
	what := "keys"
	if i.Words {
		what = "words"
	}
	walked := fmt.Sprintf("%s %s walked, %s acknowledged writes", thousands(float64(i.Keys)), what, thousands(float64(i.AckedWrites)))
	if i.OK() {
		return fmt.Sprintf("integrity: OK: %s, none lost; %s operations are linearizable", walked, thousands(float64(i.Checked)))
	}
	s := fmt.Sprintf("integrity: FAILED: %s, %s lost", walked, thousands(float64(i.Lost)))
	if i.Wrong != "" {
		s += "; " + i.Wrong
	}
	return s
}
