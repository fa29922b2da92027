package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/rack/rnic"
)

func newRackCloverCmd() *cobra.Command {
	return group("clover", "Start endpoints of Clover: chains of entries, and a metadata server that grants them",
		"  sudo quillon rack clover memory --port eth1 --me 10.0.0.9\n"+
			"  sudo quillon rack clover metadata --port eth2 --me 10.0.0.8 --server 10.0.0.9@02:00:0a:00:00:09\n"+
			"  sudo quillon rack clover client --port eth3 --me 10.0.0.1 --server 10.0.0.9@02:00:0a:00:00:09 --metadata 10.0.0.8@02:00:0a:00:00:08",
		newCloverMemoryCmd(), newCloverMetadataCmd(), newCloverClientCmd())
}

// cloverFlags are the flags of rack clover memory and of rack clover metadata.
type cloverFlags struct {
	portEnd
	entries, slab, keys int
	server              string
	gc                  float64
	seconds             float64
	patience            float64
}

// cloverPart is the result of a memory node's or a metadata server's run.
type cloverPart struct {
	Role    string  `json:"role"`
	Address string  `json:"address"`
	Port    string  `json:"port"`
	Seconds float64 `json:"seconds"`
	clover.PartStats
	Requests uint64 `json:"requests"`    // that arrived at the NIC
	Lost     uint64 `json:"frames_lost"` // because there was no room
	Keys     int    `json:"keys,omitempty"`
	Granted  uint64 `json:"granted,omitempty"`  // entries
	Recycled uint64 `json:"recycled,omitempty"` // entries
	Broken   uint64 `json:"broken_walks"`       // walks of the metadata server along chains that broke the format
}

func newCloverMemoryCmd() *cobra.Command {
	var f cloverFlags
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Be a memory node of Clover on a port",
		Long: `Has memory for entries (versions of values) and for shortcuts (where a key's newest one
was, lately), which clients and the metadata server read and write over the network by
RDMA (RoCEv2), on a port until interrupted. One metadata server (quillon rack clover
metadata) fills it; after that has ended, start both anew.

The interface is the memory node's alone: its kernel must not have the address.`,
		Example: "  sudo quillon rack clover memory --port eth1 --me 10.0.0.9\n  sudo quillon rack clover memory --port tap:m0 --me 10.0.0.9 --entries 1000 --keys 100",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := store.CheckClover(f.entries, f.slab, f.keys); err != nil {
				return fmt.Errorf("--%w", err)
			}
			return f.run(cmd, "memory", "--server", func(nic *rnic.NIC, clk clock.Clock) (*clover.Part, error) {
				return clover.NewMemoryPart(nic, clover.MemoryConfig{Classes: []clover.Class{{Slab: f.slab, Entries: f.entries}}, Slots: f.keys}, uint64(clk.Now()))
			})
		},
	}
	f.portEnd.add(cmd)
	c := cmd.Flags()
	c.SortFlags = false
	c.IntVar(&f.entries, "entries", 1<<17, "entries that there are")
	c.IntVar(&f.slab, "entry", 128, "bytes of an entry: a power of two")
	c.IntVar(&f.keys, "keys", 10_000, "keys that there are shortcuts for")
	c.Float64Var(&f.seconds, "seconds", 0, "end after so many; 0: when interrupted")
	return cmd
}

func newCloverMetadataCmd() *cobra.Command {
	var f cloverFlags
	cmd := &cobra.Command{
		Use:   "metadata",
		Short: "Be the metadata server of Clover on a port",
		Long: `Makes keys 1 to --keys in a memory node (quillon rack clover memory), over the wire, and
serves clients then: it grants entries, knows where keys' chains begin, and recycles
what is superseded, which it finds by READs of its own. Clients are told
--metadata IP@MAC, which is printed when the keys are there.`,
		Example: "  sudo quillon rack clover metadata --port eth2 --me 10.0.0.8 --server 10.0.0.9@02:00:0a:00:00:09\n" +
			"  sudo quillon rack clover metadata --port eth2 --me 10.0.0.8 --server 10.0.0.9@02:00:0a:00:00:09 --keys 1000 --gc 1 --json",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := store.CheckClover(1<<24, f.slab, f.keys); err != nil {
				return fmt.Errorf("--%w", err)
			}
			if !(f.gc > 0 && f.gc <= 1) || !(f.patience >= 0.1 && f.patience <= 3600) {
				return fmt.Errorf("--gc %v, --patience %v: want above 0 to 1, and 0.1 to 3600", f.gc, f.patience)
			}
			memory, err := f.peer("server", f.server)
			if err != nil {
				return err
			}
			return f.run(cmd, "metadata", "--metadata", func(nic *rnic.NIC, _ clock.Clock) (*clover.Part, error) {
				return clover.NewMetadataPart(nic, clover.MetadataConfig{GCBelow: f.gc}, f.keys, f.slab, netip.AddrFrom4(memory.IP), memory.MAC)
			})
		},
	}
	f.portEnd.add(cmd)
	c := cmd.Flags()
	c.SortFlags = false
	c.StringVar(&f.server, "server", "", "the memory node, as it prints itself: `IP@MAC`; needed")
	c.IntVar(&f.keys, "keys", 10_000, "keys to make")
	c.IntVar(&f.slab, "entry", 128, "bytes of an entry, as the memory node has them")
	c.Float64Var(&f.gc, "gc", 0.5, "recycle while fewer than this share of entries is free")
	c.Float64Var(&f.patience, "patience", 10, "seconds to wait for the memory node")
	c.Float64Var(&f.seconds, "seconds", 0, "end after so many; 0: when interrupted")
	return cmd
}

// peer reads the address of another machine from a flag.
func (e *portEnd) peer(flag, text string) (wire.End, error) {
	if text == "" {
		return wire.End{}, fmt.Errorf("no --%s given: want IP@MAC, as the other machine prints it", flag)
	}
	end, _, err := endAddr(flag, text, false)
	return end, err
}

// run runs a memory node or a metadata server on its port.
func (f *cloverFlags) run(cmd *cobra.Command, role, flag string, make func(*rnic.NIC, clock.Clock) (*clover.Part, error)) (err error) {
	if !(f.seconds >= 0 && f.seconds <= 1e6) {
		return fmt.Errorf("--seconds %v: want 0 (no limit) or more", f.seconds)
	}
	clk := clock.NewWall()
	if err := f.begin(clk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.opened.Close()) }()
	nic, err := f.soft(clk)
	if err != nil {
		return fmt.Errorf("--port %s: %w", f.port, err)
	}
	p, err := make(nic, clk)
	if err != nil {
		return err
	}
	ctx, done := interrupted(cmd.Context())
	defer done()
	took, err := f.serve(ctx, cmd, clk, nic, p, f.seconds, func() uint64 { return nic.Stats().RxRequests }, func(n uint64, perSecond float64) string {
		if !p.Ready() {
			return ""
		}
		return fmt.Sprintf("%d requests, %.0f a second, %d connections", n, perSecond, p.Stats().Connections)
	}, f.look(cmd, role, flag, p, clk.Now()))
	if err != nil {
		return err
	}
	s := p.MetadataStats()
	r := cloverPart{Role: role, Address: endText(f.end), Port: f.port, Seconds: round3(took), PartStats: p.Stats(),
		Requests: nic.Stats().RxRequests, Lost: f.lost(), Keys: p.Filled(), Granted: s.Granted, Recycled: s.Recycled, Broken: s.Broken}
	if err := show(cmd, r, r.text); err != nil {
		return err
	}
	if r.Broken > 0 {
		return failed{fmt.Errorf("%d walks along chains met what cannot be", r.Broken)}
	}
	return nil
}

func (r *cloverPart) text(w io.Writer) {
	fmt.Fprintf(w, "%d connections accepted, %d refused, %d requests in %.1f s; %d frames lost\n", r.Accepted, r.Refused, r.Requests, r.Seconds, r.Lost)
	if r.Role == "metadata" {
		fmt.Fprintf(w, "%d keys made, %d entries granted, %d recycled, %d broken walks\n", r.Keys, r.Granted, r.Recycled, r.Broken)
	}
}

// look returns a function that prints when clients may connect, and returns an error if that takes longer
// than --patience without a new key.
func (f *cloverFlags) look(cmd *cobra.Command, role, flag string, p *clover.Part, begun clock.Time) func(*progress, clock.Time) error {
	shown, ready, filled, moved := begun, false, 0, begun
	return func(line *progress, now clock.Time) error {
		if err := p.Err(); err != nil {
			return failed{err}
		}
		if n := p.Filled(); n != filled {
			filled, moved = n, now
		}
		switch {
		case !ready && p.Ready():
			ready = true
			line.done()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is the %s of clover on %s; others take %s %[1]s\n", endText(f.end), role, f.port, flag)
		case !ready && now.Sub(moved).Seconds() > f.patience:
			return failed{fmt.Errorf("the memory node does not answer for %v s (--server, --patience)", f.patience)}
		case !ready && now.Sub(shown) >= quiet/8:
			line.show(now, "keys", fmt.Sprintf("making keys: %d of %d", filled, f.keys))
			shown = now
		}
		return nil
	}
}

func newCloverClientCmd() *cobra.Command {
	f := rackClientFlags{name: "clover"}
	var metadata, search string
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Run a client of Clover on a port",
		Long: `Reads and writes keys by YCSB's mixes: A (50 % writes), B (5 %), C (0 %), W (100 %), or a
share of writes such as 0.2. Entries lie in a memory node (--server), and are granted by
the metadata server (--metadata). With --alone (no other client works meanwhile, or has
before) what sessions were told is kept, and one order of all operations must explain
it; what is wrong makes the exit status 1. All waits are bounded by --patience.`,
		Example: "  sudo quillon rack clover client --port eth3 --me 10.0.0.1 --server 10.0.0.9@02:00:0a:00:00:09 --metadata 10.0.0.8@02:00:0a:00:00:08\n" +
			"  sudo quillon rack clover client --port eth3 --me 10.0.0.1 --server 10.0.0.9@02:00:0a:00:00:09 --metadata 10.0.0.8@02:00:0a:00:00:08 --workload B --zipf 0 --json",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.clover(cmd, metadata, search) },
	}
	f.portEnd.add(cmd)
	c := cmd.Flags()
	c.SortFlags = false
	c.StringVar(&f.server, "server", "", "the memory node, as it prints itself: `IP@MAC`; needed")
	c.StringVar(&metadata, "metadata", "", "the metadata server, as it prints itself: `IP@MAC`; needed")
	c.StringVar(&f.workload, "workload", "A", "YCSB `mix`: A, B, C, W, or the share of writes")
	c.Float64Var(&f.zipf, "zipf", ycsb.DefaultTheta, "skew of the keys; 0 = all alike")
	c.IntVar(&f.keys, "keys", 0, "keys to use; 0: all that the store has")
	c.IntVar(&f.value, "entry", 0, "bytes of an entry, which must be the store's; 0: as it has")
	c.StringVar(&search, "search", "headers", "how tails are found: headers, or library, as Clover's own did")
	c.IntVar(&f.sessions, "sessions", 8, "sessions, each with a queue pair to the memory node and one to the metadata server")
	c.Float64Var(&f.seconds, "seconds", 5, "time to work; 0: until --ops are done, or interrupted")
	c.IntVar(&f.ops, "ops", 0, "operations to do at most, about; 0: no limit")
	c.BoolVar(&f.alone, "alone", false, "check everything, as nobody else works on the store")
	c.Float64Var(&f.patience, "patience", 10, "seconds to wait for the others, and for operations")
	c.Uint64Var(&f.seed, "seed", 1, "of the workload")
	return cmd
}

// clover runs a client of Clover.
func (f *rackClientFlags) clover(cmd *cobra.Command, metadata, search string) error {
	mix, err := f.mix()
	if err != nil {
		return err
	}
	memory, err := f.check()
	if err != nil {
		return err
	}
	meta, err := f.peer("metadata", metadata)
	if err != nil {
		return err
	}
	how, err := clover.SearchNamed(search)
	if err != nil {
		return fmt.Errorf("--search: %w", err)
	}
	machine := func(e wire.End) clover.Machine {
		return clover.Machine{Name: endText(e), MAC: e.MAC, IP: netip.AddrFrom4(e.IP)}
	}
	x := &rackRun{f: f, clk: clock.NewWall(), line: newProgress(cmd)}
	if err := x.onPort(memory, func(nic *rnic.NIC) (host.App, error) {
		p, err := clover.NewClientPart(nic, clover.Config{Sessions: f.sessions, Mix: mix, Theta: f.zipf, Seed: f.seed, Search: how}, f.keys, f.value, machine(meta), machine(memory))
		if err != nil {
			return nil, err
		}
		x.fleet = store.NewClover(p, f.sessions, f.alone)
		return p, nil
	}); err != nil {
		return err
	}
	return x.runs(cmd)
}
