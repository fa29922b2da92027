package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/controlplane/admin"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// runFlags are the flags of run, and of bridge insert --run.
type runFlags struct {
	inline  string
	nfs     []string
	port    string
	xdp     string
	copying string
	keep    bool
	name    string
	control string
	state   string
	dryRun  bool
	p4rt    p4rtFlags
	pool    poolFlags
	orders  *orders // nil: those from run on
}

// orders are what signals ask for, from the first change of an interface to the
// last: in between a process that ends leaves things half done. Neither is lost
// behind the other.
type orders struct{ stop, reload chan os.Signal }

// takeOrders has signals be orders. A reader of our output that has gone is an
// error of writing, and does not end the process either.
func takeOrders() *orders {
	o := &orders{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(o.stop, unix.SIGINT, unix.SIGTERM)
	signal.Notify(o.reload, unix.SIGHUP)
	signal.Ignore(unix.SIGPIPE)
	return o
}

// release has signals do again what they usually do.
func (o *orders) release() {
	signal.Stop(o.stop)
	signal.Stop(o.reload)
	signal.Reset(unix.SIGPIPE)
}

// bound is what run --json prints once it runs.
type bound struct {
	Name    string       `json:"name"`
	Control string       `json:"control"`
	Bound   []afxdp.Info `json:"bound"`
	Notes   []string     `json:"notes,omitempty"`
	State   string       `json:"state,omitempty"`
	Served  *served      `json:"served,omitempty"`
	Spec    *graph.Spec  `json:"spec"`
}

func newRunCmd() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [SPEC.yaml]",
		Short: "Run network functions on interfaces",
		Long: `Runs a graph of network functions: that of SPEC.yaml, or with --inline the chain
of the --nf flags as a bump in the wire between two interfaces.

What was bound is printed: driver, native or generic XDP, zero-copy or copy,
queues, and the settings that were changed. SIGTERM and SIGINT stop cleanly and
undo everything; SIGHUP reads SPEC.yaml again and applies what changed under
traffic. When the process dies or stalls, frames of an inline pair cross in the
kernel until it is back; "quillon detach" takes such a wire away.

An app that changes what both ends of a connection count (swordbox) keeps a
state: from before the first such frame the file names those connections, and
at a clean stop all that is known of them. The next process with the same file
takes them over. After a crash it tells their clients, by an RDMA error, that
they are gone, and the clients connect again. The file belongs to one process at
a time, and is /run/quillon/NAME.state unless --state says otherwise; frames
that such an app wants do not cross while no process is there.

With --state none all this is lost: clients of shared connections that do not
connect again before the next process starts may wait for answers for ever, or
have requests acknowledged that were never executed.

With --p4runtime controllers may drive the graph: its apps of kind p4 are devices
from 1 on, in the order of their names, and the tables of all other apps are one
more. A program NAME.json has its P4Info beside it, in NAME.p4info.txtpb, or a
controller gives both. They come by a Unix socket beside the control socket, in
p4rt/NAME.sock, which is root's and its user's alone and where they may do all; and,
with --p4runtime HOST, by TCP: each with a certificate of --tls-client-ca, and with
the roles that --p4-client gives it. --insecure lets whoever reaches the address
be a controller, in plain text or by TLS: on 127.0.0.1 that is every local user.
"quillon ctl forget" has a device forget who was primary.

With --pool the board of the graph helps others and is helped: a DAG for which
it has no room runs on a board that has the same deployment. Frames go there and
come back by pool-port=, on a segment that all boards of the pool are at.
Without --pool-secret the boards hear of each other on the loopback interface
alone. A board that is stopped first has the others take home what it runs for
them, with its state: that takes some milliseconds, and at most 3 s (a second
signal ends the wait).`,
		Example: `  quillon run --inline eth1,eth2 --nf clover-steer,mode=read-write,keys=1024
  quillon run middlebox.yaml --name rack7
  quillon run --inline eth1,eth2 --nf swordbox --state /var/lib/quillon/rack7
  quillon run middlebox.yaml --dry-run
  quillon run router.yaml --p4runtime unix --metrics 127.0.0.1:9100
  quillon run nic.yaml --pool 192.0.2.1:7946 --pool-board 1 --join 192.0.2.2:7946 --pool-secret pool.key`,
		Args: optional(0, "SPEC.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := strings.Join(args, "")
			spec, err := f.spec(file)
			if err != nil {
				return err
			}
			if f.dryRun {
				return dryRun(cmd, nil, spec)
			}
			return f.run(cmd, spec, file)
		},
	}
	cmd.Flags().StringVar(&f.inline, "inline", "", "the two `interfaces`, as in eth1,eth2; the first faces the clients")
	addNFFlag(cmd, &f.nfs)
	f.add(cmd)
	cmd.Flags().StringVar(&f.state, "state", "", "`file` that hands connections over to the next process, and tells it after a crash which are lost; or none (default: by name, when an app keeps a state)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be done")
	f.p4rt.add(cmd)
	f.pool.add(cmd)
	return cmd
}

// add declares the flags about the running process.
func (f *runFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.port, "port", kindAFXDP, "with --inline: the `kind` of the ports, afxdp or afpacket")
	cmd.Flags().StringVar(&f.xdp, "xdp", "auto", "with --inline: auto, native or generic XDP")
	_ = cmd.RegisterFlagCompletionFunc("port", completion(func() []string { return []string{kindAFXDP, kindAFPacket} }))
	_ = cmd.RegisterFlagCompletionFunc("xdp", completion(func() []string { return []string{"auto", "native", "generic"} }))
	cmd.Flags().StringVar(&f.copying, "copy", "auto", "with --inline: auto copies frames where the driver has no zero-copy, always also where it has, never refuses to")
	_ = cmd.RegisterFlagCompletionFunc("copy", completion(func() []string { return []string{"auto", "always", "never"} }))
	cmd.Flags().BoolVar(&f.keep, "keep", false, "with --inline: leave the wire in the kernel at a clean stop, as for an upgrade")
	cmd.Flags().StringVar(&f.name, "name", "", "the instance's name (default: after the interfaces or the file)")
	cmd.Flags().StringVar(&f.control, "control", "", "control `socket` (default: by name, see quillon help show)")
}

// spec is what the arguments ask for.
func (f *runFlags) spec(file string) (*graph.Spec, error) {
	switch {
	case file == "" && f.inline == "":
		return nil, errors.New("nothing to run: give a SPEC.yaml, or --inline eth1,eth2 --nf KIND")
	case file != "" && (f.inline != "" || len(f.nfs) > 0):
		return nil, fmt.Errorf("%s and --inline or --nf exclude each other", file)
	case file != "":
		return readSpec(file, portKinds())
	}
	more := graph.Args{}
	switch f.port {
	case kindAFXDP:
		if f.xdp != "auto" {
			more["xdp"] = f.xdp
		}
		if f.copying != "auto" {
			more["copy"] = f.copying
		}
		if f.keep {
			more["keep"] = "true"
		}
	case kindAFPacket:
		if f.xdp != "auto" || f.copying != "auto" || f.keep {
			return nil, errors.New("--xdp, --copy and --keep are for --port afxdp")
		}
	default:
		return nil, fmt.Errorf("--port %s: want afxdp or afpacket", f.port)
	}
	return inlineSpec(f.inline, f.nfs, f.port, more)
}

// dryRun prints the way from one Spec to another.
func dryRun(cmd *cobra.Command, old, new *graph.Spec) error {
	plan, err := graph.Diff(old, new)
	if err != nil {
		return err
	}
	return show(cmd, plan, func(w io.Writer) { fmt.Fprint(w, plan) })
}

// instanceName is how the instance is called when --name does not say.
func (f *runFlags) instanceName(file string) string {
	switch {
	case f.name != "":
		return f.name
	case file != "":
		base := file[strings.LastIndexByte(file, '/')+1:]
		return strings.TrimSuffix(strings.TrimSuffix(base, ".yaml"), ".yml")
	}
	return strings.ReplaceAll(f.inline, ",", "-")
}

// stateFile is where apps of the instance keep what outlives it.
func (f *runFlags) stateFile(instance string) *stateFile {
	switch f.state {
	case noState:
		return &stateFile{}
	case "":
		return &stateFile{path: defaultState(filepath.Base(instance)), mkdir: true}
	}
	return &stateFile{path: f.state}
}

// checkSocket refuses a control socket that would leave directories behind.
func (f *runFlags) checkSocket(name string) error {
	if f.control == "" {
		if strings.ContainsRune(name, '/') || strings.HasPrefix(name, ".") {
			return fmt.Errorf("an instance cannot be named %q: want a file name; give one with --name", name)
		}
		return nil
	}
	dir := filepath.Dir(f.control)
	if at, err := os.Stat(dir); err != nil {
		return fmt.Errorf("control socket: %w: make the directory first", err)
	} else if !at.IsDir() {
		return fmt.Errorf("control socket: %s is not a directory", dir)
	}
	return nil
}

// run opens the ports and runs the graph until a signal or an error.
func (f *runFlags) run(cmd *cobra.Command, spec *graph.Spec, file string) (err error) {
	name := f.instanceName(file)
	if err := f.checkSocket(name); err != nil {
		return err
	}
	if err := f.pool.check(spec); err != nil {
		return err
	}
	collect := collectNone()
	defer collect()
	clk := clock.NewWall()
	filter, err := graph.Wants(spec, kinds())
	if err != nil {
		return err
	}
	orders := f.orders
	if orders == nil {
		orders = takeOrders()
		defer orders.release()
	}
	ports, err := open(spec, filter, clk)
	switch {
	case errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 && !strings.Contains(err.Error(), "as root"):
		return fmt.Errorf("%w: run it as root", err)
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return fmt.Errorf("%w; ip link shows what there is", err)
	case err != nil:
		return err
	}
	cfg := graph.Config{
		Spec: spec, Kinds: kinds(), Ports: ports.ports, Clock: clk,
		// Tables of flows are hashed with it: nobody outside is to know it.
		Seed: rand.Uint64(),
		OpenPort: func(name string, p graph.PortSpec) ([]port.Port, error) {
			if p.Args["pair"] != "" {
				return nil, fmt.Errorf("port %s is one of a pair: stop, and run the new spec", name)
			}
			return ports.add(name, p, filter, clk)
		},
		ClosedPort: ports.closed,
	}
	state := f.stateFile(name)
	cfg.Memory = state.memory
	if f.p4rt.addr != "" {
		cfg.Nice = workerNice
	}
	inst, err := graph.New(cfg)
	if err == nil && state.path == f.state && f.state != "" && len(state.kept()) == 0 {
		err = errors.Join(fmt.Errorf("--state %s: no app of the graph keeps a state", f.state), inst.Close())
	}
	if err != nil {
		return errors.Join(specError(file, err), ports.Close(), state.Close())
	}
	var control *admin.Server
	var unserve func() error
	stop := make(chan struct{})
	finish := func(err error) error {
		var errs []error
		if unserve != nil {
			errs = append(errs, unserve())
		}
		if control != nil {
			errs = append(errs, control.Close())
		}
		return errors.Join(append([]error{err}, append(errs, inst.Close(), ports.Close(), state.Close())...)...)
	}
	control, err = admin.Listen(admin.Config{
		Name: name, Path: f.control, Instance: inst,
		Stop:     sync.OnceFunc(func() { close(stop) }),
		PortInfo: func() any { return ports.boundTo(inst.Ports()) },
	})
	if err != nil {
		return finish(err)
	}
	served, closeAll, err := f.p4rt.listen(inst, control.Path(), clk, cmd.ErrOrStderr())
	if err != nil {
		return finish(err)
	}
	joined, err := f.pool.start(inst, spec, clk, cmd.ErrOrStderr())
	unserve = func() error { return errors.Join(joined.close(), closeAll()) }
	if err != nil {
		return finish(err)
	}
	kept := uint64(keptCaps)
	if cfg.Nice < 0 {
		kept |= niceCap
	}
	if err := dropCaps(kept); errors.Is(err, unix.ENOTSUP) {
		fmt.Fprintln(cmd.ErrOrStderr(), "quillon: all capabilities are kept: this binary was built with cgo; build it with CGO_ENABLED=0")
	} else if err != nil {
		return finish(err)
	}
	info := bound{Name: name, Control: control.Path(), Bound: ports.bound(), Notes: inst.Notes(), Spec: spec}
	if len(state.kept()) > 0 {
		info.State = state.path
	}
	if len(served.Devices) > 0 || served.Metrics != "" {
		info.Served = served
	}
	if state.asked && state.path == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "quillon: --state none: when this process ends, end the connections of %s's clients before the next one starts\n", state.app)
	}
	err = show(cmd, info, func(w io.Writer) {
		ports.print(w)
		for _, n := range info.Notes {
			fmt.Fprintln(w, n)
		}
		for _, s := range state.kept() {
			if s.path != "" {
				fmt.Fprintf(w, "%s keeps its state in %s\n", s.app, s.path)
			}
		}
		served.print(w)
		fmt.Fprintf(w, "running as %s, control socket %s\n", name, control.Path())
	})
	if err != nil {
		return finish(err)
	}

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- inst.Run(ctx) }()
	started := collect
	if len(served.Devices) > 0 {
		started = func() {} // collectLess has a say by now
	}
	if info.State != "" && state.asked {
		go func() {
			inherited(ctx, cmd.ErrOrStderr(), inst, state.app)
			started()
		}()
	} else {
		started()
	}
	for {
		select {
		case <-orders.reload:
			reload(cmd.ErrOrStderr(), inst, file)
			continue
		case <-orders.stop:
		case <-stop:
		case err := <-done:
			if err == nil {
				return finish(nil)
			}
			// A worker failed. The programs stay, and so does the wire: what
			// is closed by the end of the process is enough for the frames to
			// cross in the kernel.
			_ = control.Close()
			return fmt.Errorf("%w%s", err, leftWires(spec, err))
		}
		lost := joined.leave(orders.stop)
		// The frames first, then the workers: a program that waits for a
		// worker that has stopped would hold them up.
		err := ports.Detach()
		cancel()
		return finish(errors.Join(lost, err, <-done))
	}
}

// leftWires tells what a worker that failed leaves of the inline pairs of spec.
func leftWires(spec *graph.Spec, err error) string {
	for _, p := range spec.Ports {
		switch {
		case p.Args["pair"] == "":
		case errors.Is(err, port.ErrClosed):
			return "; quillon detach frees the other interface of an inline pair"
		default:
			return "; frames of inline pairs go on crossing in the kernel until quillon runs there again, or quillon detach"
		}
	}
	return ""
}

// heir is a report of an app that keeps a state: why it took nothing over when
// it started, if there was anything. Not known before its first breath.
type heir interface {
	Inherited() (why string, known bool)
}

// inherited prints what the app took over from the process before this one.
// Its counters "taken-over" and "lost" tell how many connections.
func inherited(ctx context.Context, w io.Writer, inst *graph.Instance, app string) {
	for ctx.Err() == nil {
		r, err := inst.Report(app)
		if err != nil {
			return // it was taken out, or shows nothing
		}
		h, ok := r[0].(heir)
		if !ok {
			return
		}
		why, known := h.Inherited()
		if !known {
			continue
		}
		n := map[string]uint64{}
		for _, c := range inst.Counters() {
			if c.Node == app {
				n[c.Name] += c.Value
			}
		}
		switch {
		case why != "":
			fmt.Fprintf(w, "quillon: %s: %s: %d connections are lost, their clients are told\n", app, why, n["lost"])
		case n["taken-over"] > 0:
			fmt.Fprintf(w, "quillon: %s: %d connections taken over\n", app, n["taken-over"])
		}
		return
	}
}

// reload applies the Spec's file anew. What is wrong with it is said, and the
// old graph goes on.
func reload(w io.Writer, inst *graph.Instance, file string) {
	if file == "" {
		fmt.Fprintln(w, "quillon: SIGHUP: there is no spec file to read again")
		return
	}
	spec, err := readSpec(file, portKinds())
	if err == nil {
		var plan graph.Plan
		if plan, err = inst.Plan(spec); err == nil {
			if err = inst.Apply(plan); err == nil {
				fmt.Fprintf(w, "quillon: SIGHUP: %s", strings.ReplaceAll(plan.String(), "\n", "; "))
				fmt.Fprintln(w)
				return
			}
		}
	}
	if errors.Is(err, graph.ErrPort) {
		fmt.Fprintf(w, "quillon: SIGHUP: %v\n", oneLine(err))
		return
	}
	fmt.Fprintf(w, "quillon: SIGHUP: nothing changed: %v\n", oneLine(err))
}

func newDetachCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "detach INTERFACE INTERFACE",
		Short: "Take away the wire that a dead or kept instance left",
		Long: `Takes the XDP programs of an inline pair off and puts the interfaces' settings
back, also where an instance was killed while it started or stopped. Frames cross
between the two no more, unless something else carries them. Where one of the two
is gone, the other one is freed. One that was moved to another network namespace
keeps its program: free it there, named twice. So is an interface alone whose
instance was killed.`,
		Example: "  quillon detach eth1 eth2\n  ip netns exec NAME quillon detach eth1 eth1",
		Args:    exactly("INTERFACE", "INTERFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := there(args...)
			if err != nil {
				return err
			}
			a, b := found[0], found[len(found)-1]
			said := fmt.Sprintf("%s and %s are free", a, b)
			switch {
			case args[0] == args[1]:
				said = a + " is free"
			case len(found) == 1:
				said = a + " is free, and the other one is gone"
			}
			if err := unused(a, b); err != nil {
				return err
			}
			defer takeOrders().release() // nothing is left half done
			if err := afxdp.Detach(a, b); err != nil {
				return err
			}
			return show(cmd, args, func(w io.Writer) { fmt.Fprintln(w, said) })
		},
	}
}
