package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

func newClioCmd() *cobra.Command {
	return group("clio", "Start Clio's memory devices and clients, and the case of disaggregated memory",
		"  sudo quillon clio demo", newClioDemoCmd(), newClioDeviceCmd(), newClioClientCmd())
}

// interrupted returns a context that ends at SIGINT, SIGTERM or SIGHUP; the context's cause names the signal.
func interrupted(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		if s, ok := <-signals; ok {
			cancel(failed{fmt.Errorf("stopped by signal: %s", s)})
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

func newClioDemoCmd() *cobra.Command {
	c := demo.DefaultClio()
	var p playing
	var variants strings.Builder
	for _, name := range demo.ClioVariants() {
		fmt.Fprintf(&variants, "  %-13s %s\n", name, demo.ClioVariant(name))
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a key/value store on devices behind a SuperNIC, in network namespaces",
		Long: `Clio's devices are memory on the network: they keep keys and values, and answer
requests in single Ethernet frames. There is no RDMA, and no server. Devices bring a
go-back-N transport of their own, or leave it to a board (a SuperNIC) on their cable,
which can cache and copy for them, too. This runs YCSB on a rack of each kind:

` + variants.String() + `
The rack is made of network namespaces and Linux bridges: endpoints in this process,
the board, quillon run, in another. Keys are created over the wire first. A workload
ends early after 500,000 operations: all that clients were told is kept, about 170
bytes an operation of a variant, and checked at the end: one order of all operations
must explain every answer, values must be what was written, and copies alike. What is
wrong makes the exit status 1. Devices take about 1.1 KB for each key of 1 KB.

Without root everything runs in this process, on wires in memory. However it ends, no
namespace, link or process is left behind.`,
		Example: "  sudo quillon clio demo\n  sudo quillon clio demo --variant gobackn,cache --workload B --seconds 5\n" +
			"  quillon clio demo --mem --keys 1000 --json clio.json --plot clio",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd, c.Check, func(ctx context.Context) error { return runClioDemo(ctx, cmd, c, p) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&c.Workloads, "workload", c.Workloads, "YCSB `mixes`: A (50 % writes), B (5 %), C (0 %), W (100 %)")
	f.StringSliceVar(&c.Variants, "variant", c.Variants, "`racks` to run, as above")
	f.Float64Var(&c.Seconds, "seconds", c.Seconds, "measured of each workload, in each rack")
	f.Float64Var(&c.Warmup, "warmup", c.Warmup, "seconds before that")
	f.IntVar(&c.Clients, "clients", c.Clients, "hosts with clients")
	f.IntVar(&c.Threads, "threads", c.Threads, "of each client")
	f.IntVar(&c.Depth, "depth", c.Depth, "operations that a thread has under way")
	f.IntVar(&c.Keys, "keys", c.Keys, "keys in the store")
	f.IntVar(&c.Value, "value", c.Value, "bytes of a value")
	f.Float64Var(&c.Zipf, "zipf", c.Zipf, "skew of the keys; 0 = all alike")
	f.IntVar(&c.Copies, "copies", c.Copies, "devices, where writes are copied")
	f.IntVar(&c.Cache, "cache", c.Cache, "pairs in the board's cache")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of the workload")
	p.add(f)
	_ = cmd.RegisterFlagCompletionFunc("variant", completion(demo.ClioVariants))
	return cmd
}

func runClioDemo(ctx context.Context, cmd *cobra.Command, c demo.ClioConfig, p playing) error {
	clk := clock.NewWall()
	line := newProgress(cmd)
	r, err := play(cmd, line, p, func() (*demo.ClioResult, error) {
		return demo.ClioInNamespaces(ctx, clk, c, demo.Command{Path: "/proc/self/exe", Args: os.Args[:1]}, line.show)
	}, func() (*demo.ClioResult, error) {
		return demo.ClioInMemory(ctx, clk, c, kinds(), line.show)
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return failed{err}
	case !r.OK():
		return failed{errors.New("an answer, a value or a copy is not what it must be")}
	}
	return nil
}

// portEnd is an endpoint with its own IPv4 address on a port of this machine.
type portEnd struct {
	port, me string
	end      wire.End
	opened   *open.Ports
	queues   []port.Port
}

func (e *portEnd) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&e.port, "port", "", "the `port`: an interface (AF_XDP), afpacket:INTERFACE or tap:NAME; needed")
	cmd.Flags().StringVar(&e.me, "me", "", "own `IP[@MAC]`; without a MAC address that of the interface, or for a tap one made of the IP; needed")
}

// endAddr reads IP@MAC. With bare the MAC address may be missing; mac reports whether it was given.
func endAddr(flag, text string, bare bool) (end wire.End, mac bool, err error) {
	ip, m, mac := strings.Cut(text, "@")
	a, err := netip.ParseAddr(ip)
	if err != nil || !a.Is4() || !a.IsGlobalUnicast() || !mac && !bare {
		return end, mac, fmt.Errorf("--%s %q: want an IPv4 address and a MAC address, as in 10.0.0.9@02:00:0a:00:00:09", flag, text)
	}
	end.IP, end.Port = a.As4(), wire.Port
	if mac {
		if end.MAC, err = arg.ParseMAC(m); err != nil {
			return end, mac, fmt.Errorf("--%s %s: %w", flag, text, err)
		}
		if end.MAC[0]&1 != 0 {
			return end, mac, fmt.Errorf("--%s %s: the MAC address is one of a group", flag, text)
		}
	}
	return end, mac, nil
}

// begin opens the port.
func (e *portEnd) begin(clk clock.Clock) error {
	if e.port == "" {
		return errors.New("no port given: add --port eth1, --port afpacket:eth1 or --port tap:NAME")
	}
	if e.me == "" {
		return errors.New("no address given: add --me IP, one that no other machine has, nor this one's kernel")
	}
	var known bool
	var err error
	if e.end, known, err = endAddr("me", e.me, true); err != nil {
		return err
	}
	kind, dev, ok := strings.Cut(e.port, ":")
	if !ok {
		kind, dev = open.AFXDP, e.port
	}
	if dev == "" || kind != open.AFXDP && kind != open.AFPacket && kind != open.TAP {
		return fmt.Errorf("--port %s: want an interface, afpacket:INTERFACE or tap:NAME", e.port)
	}
	if kind != open.TAP {
		if _, err := open.Present(dev); err != nil {
			return fmt.Errorf("--port %s: %w", e.port, err)
		}
	}
	if err := kernels(dev, e.end.IP); err != nil {
		return fmt.Errorf("--me %s: %w", e.me, err)
	}
	if !known {
		e.end.MAC = [6]byte{2, 0, e.end.IP[0], e.end.IP[1], e.end.IP[2], e.end.IP[3]}
		if kind != open.TAP {
			i, err := net.InterfaceByName(dev)
			if err != nil || len(i.HardwareAddr) != 6 {
				return fmt.Errorf("--me %s: %s has no MAC address: add one, as in %s@02:00:0a:00:00:09", e.me, dev, e.me)
			}
			e.end.MAC = [6]byte(i.HardwareAddr)
		}
	}
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{"p": {Kind: kind, Args: graph.Args{"dev": dev}}}}
	if e.opened, err = open.Open(spec, open.Config{Filter: port.Filter{All: true}, Clock: clk, Endpoint: true}); err != nil {
		return err
	}
	e.queues = e.opened.Queues()["p"]
	if err := e.probe(clk); err != nil {
		return errors.Join(err, e.opened.Close())
	}
	return nil
}

// probe returns an error if another machine has the endpoint's address.
func (e *portEnd) probe(clk clock.Clock) error {
	now := clk.Now()
	p := host.NewProbe(netip.AddrFrom4(e.end.IP), e.end.MAC, e.pool(), now, uint64(now)^uint64(os.Getpid())<<16)
	err := e.run(context.Background(), clk, p, nil, func(now clock.Time) error {
		over, err := p.Over(now)
		if err == nil && over {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return fmt.Errorf("--me %s: %w", e.me, err)
}

// kernels returns an error if the kernel has this address on the interface: then kernel and endpoint would
// both answer.
func kernels(dev string, ip [4]byte) error {
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return nil // a tap that is not made yet
	}
	all, _ := i.Addrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip[:]) {
			return fmt.Errorf("the kernel has that address on %s: take another one, or: ip address del %v dev %[1]s", dev, n)
		}
	}
	return nil
}

// mtu returns the MTU of the interface in bytes, 1500 if it cannot be read.
func (e *portEnd) mtu() int {
	_, dev, _ := strings.Cut(":"+e.port, ":")
	if i := strings.LastIndexByte(dev, ':'); i >= 0 {
		dev = dev[i+1:]
	}
	if i, err := net.InterfaceByName(dev); err == nil {
		return i.MTU
	}
	return 1500
}

// pool is the pool of the endpoint's frames.
func (e *portEnd) pool() *packet.Pool { return e.queues[0].Pool() }

// lost returns how many frames were lost because there was no room for them.
func (e *portEnd) lost() (n uint64) {
	for _, q := range e.queues {
		s := q.Stats()
		n += s.RxDropped + s.TxDropped
	}
	return n
}

// run drives an endpoint on the port until ctx is done. It calls look each millisecond; an error of look ends
// run, which returns that error.
func (e *portEnd) run(ctx context.Context, clk clock.Clock, ep host.Endpoint, app host.App, look func(now clock.Time) error) error {
	var workers []host.Worker
	for i, q := range e.queues {
		a := app
		if i > 0 {
			a = nil
		}
		workers = append(workers, host.NewNode(q, ep, a))
	}
	return host.Watched(ctx, look, func(ctx context.Context, watch host.Worker) error {
		err := host.SpinOn(ctx, clk, e.queues, append(workers, watch)...)
		if err == nil && ctx.Err() == nil {
			return fmt.Errorf("--port %s: the interface is gone", e.port)
		}
		return err
	})
}

// serve calls run until ctx (from interrupted) is done, or for the given seconds (0: no limit); neither is an
// error. It returns for how long it ran, in seconds. While count grows, serve prints what show returns for
// it; if show returns "", nothing is printed. look may be nil; its errors end serve.
func (e *portEnd) serve(ctx context.Context, cmd *cobra.Command, clk clock.Clock, ep host.Endpoint, app host.App, seconds float64, count func() uint64,
	show func(n uint64, perSecond float64) string, look func(line *progress, now clock.Time) error) (float64, error) {
	line := newProgress(cmd)
	begun := clk.Now()
	shown, at := begun, uint64(0)
	err := e.run(ctx, clk, ep, app, func(now clock.Time) error {
		if look != nil {
			if err := look(line, now); err != nil {
				return err
			}
		}
		n := count()
		if dt := now.Sub(shown); n != at && dt >= quiet {
			if text := show(n, float64(n-at)/dt.Seconds()); text != "" {
				line.show(now, "", text)
				shown, at = now, n
			}
		}
		if seconds > 0 && now.Sub(begun).Seconds() >= seconds {
			line.done()
			return errEnough
		}
		return nil
	})
	took := clk.Now().Sub(begun).Seconds()
	if stopped := new(failed); errors.Is(err, errEnough) || ctx.Err() != nil && errors.As(context.Cause(ctx), stopped) {
		err = nil
	}
	return took, err
}
