package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/bridge"
	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/open"
)

// target says which running instance a command addresses.
type target struct{ name, control string }

func (t *target) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.name, "name", "", "the instance's name (default: the only one that runs)")
	cmd.Flags().StringVar(&t.control, "control", "", "the instance's control `socket`")
	_ = cmd.RegisterFlagCompletionFunc("name", completion(func() []string { return slices.Sorted(maps.Keys(instances())) }))
}

// dial connects to the instance.
func (t *target) dial() (*admin.Client, error) {
	switch {
	case t.control != "":
		return admin.Dial(t.control)
	case t.name != "" && !isName(t.name):
		return nil, fmt.Errorf("--name %q: want the name of an instance; its socket is named with --control", t.name)
	case t.name != "":
		return admin.Dial(admin.Path(t.name))
	}
	found := instances()
	names := slices.Sorted(maps.Keys(found))
	switch len(names) {
	case 0:
		if os.Geteuid() != 0 {
			return nil, errors.New("no instance runs that is this user's own: root's are reached by root, " +
				"others start with quillon run, or have a socket that --control names")
		}
		return nil, errors.New("no instance runs: start one with quillon run, or name its socket with --control")
	case 1:
		return found[names[0]], nil
	}
	for _, c := range found {
		c.Close()
	}
	return nil, fmt.Errorf("several instances run: choose one with --name: %s", strings.Join(names, ", "))
}

// instances returns clients of all instances that answer on a socket in the usual directory, by the
// instances' names. The caller closes the clients. It removes sockets of dead instances.
func instances() map[string]*admin.Client {
	found := map[string]*admin.Client{}
	socks, _ := filepath.Glob(admin.Path("*"))
	for _, s := range socks {
		c, err := admin.Dial(s)
		if err != nil {
			_ = admin.Sweep(s, p4rt.SocketPath(s)) // other users' sockets stay
			continue
		}
		found[strings.TrimSuffix(filepath.Base(s), ".sock")] = c
	}
	return found
}

// unused is an error when an instance of this network namespace runs on one of the interfaces, or when a process has
// sockets there: an instance that is stopped, or stuck, answers nobody.
func unused(devs ...string) error {
	here, err := bridge.Namespace()
	if err != nil {
		return err
	}
	var silent []string
	for name, c := range instances() {
		x := ask(name, c)
		switch {
		case x.Namespace != "" && x.Namespace != here:
			continue
		case x.State == "silent":
			silent = append(silent, fmt.Sprintf("; instance %s (process %d) does not answer", name, x.PID))
			if own.Stopped(x.PID) {
				silent = append(silent, fmt.Sprintf(", as it is stopped by a signal or a debugger: kill -CONT %d has it go on", x.PID))
			}
		}
		for _, dev := range x.Interfaces {
			if slices.Contains(devs, dev) {
				err = fmt.Errorf("instance %s runs on %s: quillon stop --name %s first", name, dev, name)
			}
		}
	}
	if err != nil {
		return err
	}
	there, err := open.Present(devs...)
	if errors.As(err, new(open.NoInterface)) {
		return nil
	}
	for _, dev := range there {
		if err == nil {
			err = errors.Join(afxdp.Unserved(dev), afpacket.Unclaimed(dev, false))
		}
	}
	if err != nil {
		err = fmt.Errorf("%w%s", err, strings.Join(silent, ""))
	}
	return err
}

// bypassNote says where to look for frames that pass in the kernel.
const bypassNote = "frames that no app wants cross in the kernel: bypassed, in quillon show ports"

// asking makes a command that sends a request to an instance and prints the answer.
func asking[V any](cmd *cobra.Command, ask func(c *admin.Client, args []string) (V, error), text func(w io.Writer, v V)) *cobra.Command {
	var t target
	t.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := t.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		c.Tell = func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), "quillon: "+s) }
		v, err := ask(c, args)
		if err != nil {
			return aboutSpec("", err)
		}
		return show(cmd, v, func(w io.Writer) { text(w, v) })
	}
	return cmd
}

// aboutSpec adds the file's name to an instance's error about a place in a spec. Empty file: the spec came
// from no file, and only the message stays.
func aboutSpec(file string, err error) error {
	var refused *admin.Error
	if !errors.As(err, &refused) {
		return err
	}
	text, ok := strings.CutPrefix(refused.Msg, "spec:")
	switch {
	case !ok:
		return err
	case file == "":
		return errors.New(strings.TrimPrefix(text, " "))
	}
	return errors.New(file + ":" + text)
}

func newShowCmd() *cobra.Command {
	var dot, zero bool
	g := asking(&cobra.Command{
		Use: "graph", Short: "Show ports, apps and links", Args: exactly(),
		Example: "  quillon show graph\n  quillon show graph --dot | dot -Tsvg >graph.svg",
	}, func(c *admin.Client, _ []string) (admin.Graph, error) { return c.Graph() },
		func(w io.Writer, v admin.Graph) {
			if dot {
				fmt.Fprint(w, v.Dot)
				return
			}
			graphText(w, v)
		})
	g.Flags().BoolVar(&dot, "dot", false, "print it for Graphviz")
	counters := asking(&cobra.Command{
		Use: "counters [APP]", Short: "Show counters and reasons", Args: optional(0, "APP"),
		Example: "  quillon show counters\n  quillon show counters clover-steer --zero",
	}, func(c *admin.Client, args []string) ([]graph.Count, error) {
		all, err := c.Counters()
		if err != nil || len(args) == 0 {
			return all, err
		}
		var some []graph.Count
		for _, x := range all {
			if x.Node == args[0] {
				some = append(some, x)
			}
		}
		if some == nil {
			return nil, fmt.Errorf("no app or port is named %q; quillon show graph lists them", args[0])
		}
		return some, nil
	}, func(w io.Writer, v []graph.Count) {
		some := false
		for _, x := range v {
			if x.Value != 0 || zero {
				some = true
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", x.Node, x.Group, x.Name, x.Value, x.Help)
			}
		}
		if !some {
			fmt.Fprintf(w, "all are zero; %s\n", bypassNote)
		}
	})
	counters.Flags().BoolVar(&zero, "zero", false, "show those that are zero, too")
	runtime := asking(&cobra.Command{
		Use: "runtime", Short: "Show what each app costs, and the links", Args: exactly(),
		Long: `Shows what each app costs, and the links, since they are there. Some packets are
timed, and ns/packet is of these: --json says of how many (timed_packets).
quillon top shows the same of an interval.`,
		Example: "  quillon show runtime",
	}, func(c *admin.Client, _ []string) (graph.Runtime, error) { return c.Runtime() }, runtimeText)
	ports := asking(&cobra.Command{
		Use: "ports", Short: "Show the ports, what they are bound to, and their totals", Args: exactly(),
		Example: "  quillon show ports --json",
	}, func(c *admin.Client, _ []string) (admin.Ports, error) { return c.Ports() }, portsText)
	flows := asking(&cobra.Command{
		Use: "flows", Short: "Show the flows that cross in the kernel, as functions have decided them", Args: exactly(),
		Long: `Shows how many flows functions have decided, so that the kernel runs their frames in
both directions, and what part of all frames it has run; then what has become of the
others there, and what came of decisions: what is undecided has met a function that
decides nothing, of one-direction the other direction has not been seen within a second.
quillon conntrack marks these connections with [OFFLOAD].`,
		Example: "  quillon show flows\n  quillon show flows --json",
	}, func(c *admin.Client, _ []string) (graph.AheadReport, error) { return c.Flows() }, flowsText)
	show := group("show", "Show a running instance", "  quillon show ports\n  quillon show counters --name rack7", g, counters, flows, runtime, ports, newShowProcessCmd())
	show.Long = `Shows a running instance. An instance listens on a Unix socket: for root
/run/quillon/NAME.sock, else in quillon below $XDG_RUNTIME_DIR, or in
quillon-UID below the directory for temporary files. Where only one runs it is
found; --name chooses one of several, --control names a socket at another place.`
	return show
}

func flowsText(w io.Writer, v graph.AheadReport) {
	if !v.Runs {
		fmt.Fprintf(w, "no flow crosses in the kernel: %s\n", v.Why)
		return
	}
	fmt.Fprintf(w, "%d flows of at most %d cross in the kernel, %d have ended\n", v.Entries, v.Room, v.Ended)
	fmt.Fprintf(w, "%d frames crossed there, %d came to the functions: %.1f %%\n", v.Finished, v.Given, 100*v.Share)
	if v.Watched {
		fmt.Fprintln(w, "while a tap or a trace is there all come to the functions")
	}
	for _, of := range []struct {
		what string
		n    map[string]uint64
	}{{"frame", v.Outcomes}, {"decision", v.Decisions}} {
		for _, name := range slices.Sorted(maps.Keys(of.n)) {
			if of.n[name] > 0 {
				fmt.Fprintf(w, "%s\t%s\t%d\n", of.what, name, of.n[name])
			}
		}
	}
	for _, x := range v.LeftOut {
		fmt.Fprintln(w, x)
	}
}

func graphText(w io.Writer, v admin.Graph) {
	workers := "workers"
	if v.Workers == 1 {
		workers = "worker"
	}
	fmt.Fprintf(w, "%s, %d %s\n", v.Name, v.Workers, workers)
	text, err := v.Spec.Marshal()
	if err != nil {
		text = []byte(err.Error())
	}
	fmt.Fprintf(w, "%s", text)
	for _, n := range v.Notes {
		fmt.Fprintln(w, n)
	}
}

func runtimeText(w io.Writer, r graph.Runtime) {
	fmt.Fprintln(w, "node\tkind\tcalls\tpackets\tpackets/call\tns/packet\theld")
	for _, n := range r.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1f\t%.1f\t%d\n", n.Node, n.Kind, n.Calls, n.Packets, n.Batch, n.NsPer, n.Held)
	}
	fmt.Fprintln(w, "\nlink\tpackets\tdrops\tdepth")
	for _, l := range r.Links {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", l.Link, l.Packets, l.Drops, l.Depth)
	}
}

func portsText(w io.Writer, p admin.Ports) {
	fmt.Fprintln(w, "port\tqueue\trx packets\trx bytes\ttx packets\ttx bytes\trx dropped\ttx dropped\tbypassed\tmissed\tshut out\ttoo long")
	for _, x := range p.Ports {
		name := x.Args["dev"]
		if x.Link == "down" {
			name += ", no link"
		}
		for q, s := range x.Queues {
			fmt.Fprintf(w, "%s (%s)\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", x.Name, name, q,
				s.RxPackets, s.RxBytes, s.TxPackets, s.TxBytes, s.RxDropped, s.TxDropped, s.Bypassed, s.Missed, s.ShutOut, s.TooLong)
		}
	}
	var infos []afxdp.Info
	if json.Unmarshal(p.Info, &infos) == nil {
		for _, i := range infos {
			fmt.Fprintf(w, "\n%s", i)
		}
	}
}

func newTraceCmd() *cobra.Command {
	type added struct {
		Port   string `json:"port"`
		N      int    `json:"n"`
		Reason string `json:"reason,omitempty"`
	}
	add := asking(&cobra.Command{
		Use: "add PORT N [reason=REASON]", Short: "Trace the next N frames received on PORT",
		Long: `Traces the next N frames received on PORT; with reason=REASON the next N that end
with it, by a drop or as marked ("bad-icrc", "clover-steer.bad-icrc"). What was traced
before is forgotten, unless frames are still waited for.

Frames that no app wants come to the process until N of them are traced, and cross in
the kernel again then; with a REASON they stay there, as no app drops or marks them.`,
		Example: "  quillon trace add a 20\n  quillon trace add a 5 reason=bad-icrc",
		Args:    optional(2, "PORT", "N", "reason=REASON"),
	}, func(c *admin.Client, args []string) (added, error) {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 || n > graph.MaxTrace {
			return added{}, fmt.Errorf("N is %q: want a number from 1 to %d; quillon tap copies any number", args[1], graph.MaxTrace)
		}
		a := added{Port: args[0], N: n}
		if len(args) == 3 {
			var ok bool
			if a.Reason, ok = strings.CutPrefix(args[2], "reason="); !ok {
				return added{}, fmt.Errorf("unexpected argument %q: want reason=REASON", args[2])
			}
		}
		return a, c.AddTrace(a.Port, a.N, a.Reason)
	}, func(w io.Writer, a added) {
		what := ""
		if a.Reason != "" {
			what = " that end with " + a.Reason
		}
		fmt.Fprintf(w, "the next %d frames received on %s%s are traced; quillon trace show\n", a.N, a.Port, what)
	})
	showTrace := asking(&cobra.Command{
		Use: "show", Short: "Show what happened to the traced frames", Args: exactly(),
		Example: "  quillon trace show",
	}, func(c *admin.Client, _ []string) ([]graph.Traced, error) {
		v, err := c.Trace()
		return list(v), err
	},
		func(w io.Writer, v []graph.Traced) {
			if len(v) == 0 {
				fmt.Fprintln(w, "nothing was traced")
			}
			for _, t := range v {
				fmt.Fprint(w, t)
			}
		})
	clearTrace := asking(&cobra.Command{
		Use: "clear", Short: "End tracing and forget what was traced", Args: exactly(),
		Example: "  quillon trace clear",
	}, func(c *admin.Client, _ []string) (struct{}, error) { return struct{}{}, c.ClearTrace() },
		func(io.Writer, struct{}) {})
	return group("trace", "Trace single frames through a running instance", "  quillon trace add a 20 && quillon trace show", add, showTrace, clearTrace)
}

func newSetCmd() *cobra.Command {
	return asking(&cobra.Command{
		Use: "set APP KEY=VALUE...", Short: "Change arguments of a running app",
		Example: "  quillon set clover-steer mode=write",
		Args:    atLeast("APP", "KEY=VALUE"),
	}, func(c *admin.Client, args []string) (admin.Plan, error) {
		set := graph.Args{}
		for _, a := range args[1:] {
			k, v, ok := strings.Cut(a, "=")
			if !ok || k == "" {
				return admin.Plan{}, fmt.Errorf("%q is not of the form key=value", a)
			}
			set[k] = v
		}
		return c.Set(args[0], set)
	}, planText)
}

func planText(w io.Writer, p admin.Plan) { fmt.Fprint(w, p.Text) }

func newApplyCmd() *cobra.Command {
	var dry bool
	cmd := asking(&cobra.Command{
		Use: "apply SPEC.yaml", Short: "Make a running instance what a spec says, under traffic",
		Long: `Plans the way from what runs to SPEC.yaml, prints it, and carries it out between
two breaths of the workers. What does not change keeps its state.`,
		Example: "  quillon apply middlebox.yaml --dry-run\n  quillon apply middlebox.yaml",
		Args:    exactly("SPEC.yaml"),
	}, func(c *admin.Client, args []string) (admin.Plan, error) {
		if _, err := readSpec(args[0], open.Kinds()); err != nil {
			return admin.Plan{}, err
		}
		text, err := os.ReadFile(args[0])
		if err != nil {
			return admin.Plan{}, err
		}
		dir, err := filepath.Abs(filepath.Dir(args[0]))
		if err != nil {
			return admin.Plan{}, err
		}
		p, err := c.Apply(text, dir, dry)
		return p, aboutSpec(args[0], err)
	}, planText)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the plan only")
	return cmd
}

func newReportCmd() *cobra.Command {
	return asking(&cobra.Command{
		Use: "report APP", Short: "Show an app's own state, a value a worker",
		Example: "  quillon report clover-steer",
		Args:    exactly("APP"),
	}, func(c *admin.Client, args []string) ([]json.RawMessage, error) { return c.Report(args[0]) },
		func(w io.Writer, v []json.RawMessage) {
			for _, x := range v {
				var any any
				if json.Unmarshal(x, &any) == nil {
					x, _ = json.MarshalIndent(any, "", "  ")
				}
				fmt.Fprintf(w, "%s\n", x)
			}
		})
}

func newStopCmd() *cobra.Command {
	return asking(&cobra.Command{
		Use: "stop", Short: "Stop a running instance cleanly", Args: exactly(),
		Long: `Stops a running instance cleanly, and waits until its process has ended: its
interfaces, its addresses and its state are free then for the next one. It says what
it waits for when that takes long, and for no longer than 50 s.`,
		Example: "  quillon stop --name rack7",
	}, func(c *admin.Client, _ []string) (struct{}, error) { return struct{}{}, c.Stop() },
		func(io.Writer, struct{}) {})
}
