package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quillon/quillon/internal/garbage"
	"github.com/quillon/quillon/nf/offload/xdp"
	"github.com/quillon/quillon/nf/port/open"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/bridge"
	"github.com/quillon/quillon/internal/state"
	"github.com/quillon/quillon/internal/ui"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// runFlags are the flags of run, and of bridge insert --run.
type runFlags struct {
	inline   string
	nfs      []string
	port     string
	xdp      string
	copying  string
	keep     bool
	ring     int
	queues   int
	cpu      string
	priority string
	latency  string
	name     string
	control  string
	state    string
	journal  string
	dryRun   bool
	p4rt     p4rtFlags
	pool     poolFlags
	root     rootFlags
	watchdog time.Duration
	logs     logFlags
	verbose  bool
	orders   *orders // nil: run calls takeOrders
	held     bool    // some frames do not cross once the process has ended
}

// orders are signals taken as orders, from before the first change of an interface until after the last one,
// so that a signal does not end the process half-way. Orders to stop and orders to reload have channels of
// their own, so that neither replaces the other.
type orders struct{ stop, reload chan os.Signal }

// takeOrders turns SIGINT, SIGTERM and SIGHUP into orders. It also ignores SIGPIPE: a closed pipe is then
// only an error of writing.
func takeOrders() *orders {
	o := &orders{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(o.stop, unix.SIGINT, unix.SIGTERM)
	signal.Notify(o.reload, unix.SIGHUP)
	signal.Ignore(unix.SIGPIPE)
	return o
}

// release restores the default effects of the signals.
func (o *orders) release() {
	signal.Stop(o.stop)
	signal.Stop(o.reload)
	signal.Reset(unix.SIGPIPE)
}

// bound is what run --json prints when the instance is ready.
type bound struct {
	Name    string       `json:"name"`
	Control string       `json:"control"`
	Bound   []afxdp.Info `json:"bound"`
	Notes   []string     `json:"notes,omitempty"`
	State   string       `json:"state,omitempty"`
	Served  *served      `json:"served,omitempty"`

	Privileges *privileges `json:"privileges"`
	Priority   string      `json:"priority"`
	Latency    string      `json:"latency,omitempty"`
	Spec       *graph.Spec `json:"spec"`
}

const runLong = `Runs a graph of network functions: that of SPEC.yaml, or with --inline the chain of the
--nf flags as a bump in the wire between two interfaces.

quillon run prints what it has bound: driver, native or generic XDP, zero-copy or copy,
queues, and with --verbose the settings that it has changed. SIGTERM and SIGINT stop
cleanly and undo everything, except the wire of a splice ("quillon help bridge insert")
and the wire of connections that are handed over (below). SIGHUP reads SPEC.yaml again
and applies what changed under traffic. When the process dies or stalls, frames of an
inline pair cross in the kernel until it is back; "quillon detach" takes such a wire
away.

An app that changes what both ends of a connection count (swordbox) keeps a state file.
Before it changes the first frame of a connection, the file has all that is known of the
connection. The next process with the same file takes these connections over, after a
crash as after a clean stop. When it cannot (another version of the program, a minute
has passed) it tells the clients, by an RDMA error, that the connections are gone. The
file belongs to one process at a time, and is /run/quillon/NAME.state unless --state
names another one. It is written for each operation, so it should be in memory (tmpfs).
While no process is there, frames of these connections do not cross; so the wire of an
inline pair stays at a clean stop, too, as long as there are any. All of the file's room
is reserved before it is used, and only its owner may read it. State that an app can do
without (clover-steer: requests that it would send again after a crash) is in a second
file beside it, with the app's name.

A reboot of the machine loses the state. So a journal on a disk,
/var/lib/quillon/NAME.journal unless --journal names another one, has the names of these
connections before their first changed frame. After a reboot their frames do not cross,
and their clients get an RDMA error. There is no journal with --journal none, with
--state none, and for users other than root without --journal. Then WRITEs of such a
connection may be acknowledged after a reboot and never be executed: end the connections
before a reboot.

With --state none a restart loses the state, too: frames of these connections do not
cross any more, and the next process does not start, because it would let requests be
acknowledged that are never executed. End the connections at their clients, and then run
"quillon detach". The same holds when the file was removed, or when another function is
to run there.

At a clean stop clover-steer waits up to 0.6 s for the server's answers to what it has
sent. While there is no answer, other atomics to the same words do not cross, for a
minute at most. All else crosses as it would without quillon.

With --p4runtime controllers may drive the graph. Its apps of kind p4 are devices from 1
on, in the order of their names; the tables of all other apps together are one more
device. A program NAME.json has its P4Info beside it, in NAME.p4info.txtpb, or a
controller gives both. Controllers come by a Unix socket beside the control socket,
p4rt/NAME.sock, which only root and the user of the process can open, and where they may
do everything. With --p4runtime HOST they also come by TCP, each with a certificate of
--tls-client-ca, and with the roles that --p4-client gives it. With --insecure everybody
who reaches the address may be a controller, in plain text or by TLS: on 127.0.0.1 every
local user. "quillon ctl forget" makes a device forget who was primary.

The name of an instance belongs to one process. Before it touches an interface, the
process takes the socket of that name, and a file beside it that only its owner can
open. If another process has them and does not answer, the start waits for 5 s, and then
names that process.

The process obeys SIGTERM and SIGINT at every moment, and then ends within 20 s. A start
that takes longer than a minute ends, too. If a worker is stuck in an app, the process
ends as by a crash, at most 10 s after the signal, as soon as the worker's thread has
computed or slept for 2 s without a breath. The wire stays then, so that frames that may
cross do; the app is named, and the status is 1. --watchdog does the same without a
signal. A busy machine or a debugger does not make a worker stuck: only the time counts
in which its thread computes or sleeps.

A service manager that sets NOTIFY_SOCKET hears when the workers run (READY=1) and when
they end (STOPPING=1), and with WATCHDOG_USEC, as long as no worker is stuck,
WATCHDOG=1. For systemd: Type=notify, WatchdogSec=10, Restart=on-failure.

Once everything is open, the process gives up all capabilities but net_admin, net_raw,
bpf and perfmon. It needs these to change and to take away what it attached, and to open
ports of a spec that is applied later. It keeps sys_admin if the other end of a veth is
in another network namespace, and sys_nice if the limits of --priority could not be
raised. quillon run prints which capabilities are left, and why; so does "quillon show
process". With --user the process then becomes another user, who must be able to read
what is read later: the spec at SIGHUP, certificates, keys. The state file and the
sockets stay root's, and the sockets' files are left behind at the end.

--priority says how the process's threads compete with other processes. high gives them
nice values (workers -20, all others -10). realtime is SCHED_FIFO (2 and 1): a worker
that always has something to do leaves the others on its processor 5 % of the time.
normal changes nothing. high takes root, CAP_SYS_NICE or ulimit -e 40, and realtime
takes ulimit -r 2; without these the priority stays normal, and quillon run says so.
Nice values count within a session or a control group: "setsid quillon run" sets the
nice value of its session, too, and a service has CPUWeight=. If a worker gets no
processor for 60 ms, its frames cross unseen; those of a closed function wait for 1 s
and are then dropped.

A worker sleeps while no frame comes, and so does its processor. To wake one takes tens
of microseconds on a virtual machine, or where processors sleep deeply. With --latency
low all idle processors of the machine stay awake, by /dev/cpu_dma_latency. That takes
no time from other programs, but it costs electricity, and in a virtual machine it keeps
the host's processors busy. It takes root, and ends with the process. With --latency
poll workers never sleep, and each takes all of a processor: for machines with
processors to spare. Other programs on a worker's processor delay frames.

With --pool the board of the graph helps other boards, and they help it: a DAG for which
a board has no room runs on another board that has the same deployment. Frames go there
and come back by pool-port=, on a segment that all boards of the pool are at. Without
--pool-secret boards hear each other only on the loopback interface; the file of the
secret must have mode 600. A message is accepted once, and only by the process that it
is for: one that was recorded and comes again is counted (quillon show process). A board
that is stopped first has the others take home what it runs for them, with its state.
That takes some milliseconds, and at most 3 s (a second signal ends the wait).`

func newRunCmd() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [SPEC.yaml]",
		Short: "Run network functions on interfaces",
		Long:  runLong,
		Example: `  quillon run --inline eth1,eth2 --nf clover-steer,servers=192.0.2.1,keys=1024
  quillon run middlebox.yaml --name rack7
  quillon run --inline eth1,eth2 --nf swordbox --state /run/rack7.state
  quillon run --inline eth1,eth2 --nf swordbox --user nobody --watchdog 5s
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
				return errors.Join(dryRun(cmd, spec), present(spec))
			}
			return f.run(cmd, spec, file)
		},
	}
	cmd.Flags().StringVar(&f.inline, "inline", "", "the two `interfaces`, as in eth1,eth2; the first faces the clients")
	addNFFlag(cmd, &f.nfs)
	f.add(cmd)
	cmd.Flags().StringVar(&f.journal, "journal", "", "`file` on a disk that names connections which must not cross as they are after a reboot; or none (default: by name in /var/lib/quillon for root, unless --state none)")
	cmd.Flags().StringVar(&f.state, "state", "", "`file` that hands connections over to the next process, however this one ends; or none (default: by name, when an app keeps a state)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and look whether the interfaces are there")
	f.root.add(cmd)
	f.p4rt.add(cmd)
	f.pool.add(cmd)
	return cmd
}

// add declares the flags about the running process.
func (f *runFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.port, "port", open.AFXDP, "with --inline: the `kind` of the ports, afxdp or afpacket")
	cmd.Flags().StringVar(&f.xdp, "xdp", "auto", "with --inline: auto, native or generic XDP")
	_ = cmd.RegisterFlagCompletionFunc("port", completion(func() []string { return []string{open.AFXDP, open.AFPacket} }))
	_ = cmd.RegisterFlagCompletionFunc("xdp", completion(func() []string { return []string{"auto", "native", "generic"} }))
	cmd.Flags().StringVar(&f.copying, "copy", "auto", "with --inline: auto copies frames where the driver has no zero-copy, always also where it has, never refuses to")
	_ = cmd.RegisterFlagCompletionFunc("copy", completion(func() []string { return []string{"auto", "always", "never"} }))
	cmd.Flags().BoolVar(&f.keep, "keep", false, "leave the wire of pairs in the kernel at a clean stop, as for an upgrade; a splice of quillon bridge always is")
	cmd.Flags().IntVar(&f.ring, "ring", 0, "with --inline: `entries` of a ring: frames that may come while a worker is busy (default "+strconv.Itoa(afxdp.DefaultRing)+")")
	cmd.Flags().IntVar(&f.queues, "queues", 0, "with --inline: `queues` to open, each with a worker of its own (default all)")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "say which settings were changed and which privileges are left, too")
	cmd.Flags().StringVar(&f.cpu, "cpu", "", "with --inline: pin the workers to these `processors`, as 2,3 or 4-7: that of queue 0 to the first, and so on (default: to none)")
	cmd.Flags().StringVar(&f.priority, "priority", priorities[0].what, "how threads go before those of other processes: high, realtime or normal")
	_ = cmd.RegisterFlagCompletionFunc("priority", completion(priorityNames))
	cmd.Flags().StringVar(&f.latency, "latency", latencies[0], "low: the machine's processors stay awake while they have nothing to do, so that a frame that comes alone does not wait until one has woken; poll: workers never sleep")
	_ = cmd.RegisterFlagCompletionFunc("latency", completion(latencyNames))
	cmd.Flags().StringVar(&f.name, "name", "", "the instance's name (default: after the interfaces or the file)")
	cmd.Flags().StringVar(&f.control, "control", "", "control `socket` (default: by name, see quillon help show)")
	f.logs.add(cmd)
	cmd.Flags().DurationVar(&f.watchdog, "watchdog", 10*time.Second, "end the process, as by a crash, when a worker has computed or slept for so long without a breath; 0: never")
}

// spec returns the Spec that the arguments describe.
func (f *runFlags) spec(file string) (*graph.Spec, error) {
	switch {
	case file == "" && f.inline == "":
		return nil, errors.New("nothing to run: give a SPEC.yaml, or --inline eth1,eth2 --nf KIND")
	case file != "" && (f.inline != "" || len(f.nfs) > 0):
		return nil, fmt.Errorf("%s and --inline or --nf exclude each other: "+
			"two interfaces, and a function and its arguments, are one word with commas, as in --nf KIND,arg=value", file)
	case file != "" && (f.port != open.AFXDP || f.xdp != "auto" || f.copying != "auto" || f.ring != 0 || f.queues != 0 || f.cpu != ""):
		return nil, fmt.Errorf("%s: --port, --xdp, --copy, --ring, --queues and --cpu are for --inline: give them to the ports of the spec", file)
	case file != "":
		return f.read(file)
	}
	more := graph.Args{}
	switch f.port {
	case open.AFXDP:
		if f.xdp != "auto" {
			more["xdp"] = f.xdp
		}
		if f.copying != "auto" {
			more["copy"] = f.copying
		}
		if f.keep {
			more["keep"] = "true"
		}
		if f.ring != 0 {
			more["ring"] = strconv.Itoa(f.ring)
		}
		if f.queues != 0 {
			more["queues"] = strconv.Itoa(f.queues)
		}
		if f.cpu != "" {
			more["cpu"] = f.cpu
		}
	case open.AFPacket:
		if f.xdp != "auto" || f.copying != "auto" || f.keep || f.ring != 0 || f.queues != 0 || f.cpu != "" {
			return nil, errors.New("--xdp, --copy, --keep, --ring, --queues and --cpu are for --port afxdp")
		}
	default:
		return nil, fmt.Errorf("--port %s: want afxdp or afpacket", f.port)
	}
	s, err := inlineSpec(f.inline, f.nfs, f.port, more)
	if err == nil {
		err = open.NoLoop(s.Ports["a"].Args["dev"], s.Ports["b"].Args["dev"])
	}
	return s, err
}

// read reads a spec. With --keep, pairs that do not set keep= get keep=true.
func (f *runFlags) read(file string) (*graph.Spec, error) {
	s, err := readSpec(file, open.Kinds())
	if err != nil || !f.keep {
		return s, err
	}
	for name, p := range s.Ports {
		if p.Kind == open.AFXDP && p.Args["pair"] != "" && p.Args["keep"] == "" {
			p.Args = maps.Clone(p.Args)
			p.Args["keep"] = "true"
			s.Ports[name] = p
		}
	}
	return s, nil
}

// present returns an error if an interface or a processor that spec needs is missing.
func present(spec *graph.Spec) error {
	_, err := cpusOf(spec)
	return cmp.Or(err, open.Check(spec))
}

// dryRun prints the plan that makes what a spec says.
func dryRun(cmd *cobra.Command, spec *graph.Spec) error {
	plan, err := graph.Diff(nil, spec)
	if err != nil {
		return err
	}
	return show(cmd, plan, func(w io.Writer) { fmt.Fprint(w, plan) })
}

// instanceName returns the name of the instance: --name, or else a name from the file or the interfaces.
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

// journals returns the journals of the instance's apps, or nil if they keep none.
func (f *runFlags) journals(instance string) *state.Journals {
	path := f.journal
	if path == "" && f.state != state.None && os.Geteuid() == 0 {
		path = filepath.Join(journalDir(), filepath.Base(instance)+".journal")
	}
	if path == "" || path == state.None {
		return nil
	}
	return state.NewJournals(path, f.journal == "")
}

// journalDir returns the directory of journals that --journal does not name. It must be on a disk. STATE_DIRECTORY is what
// systemd.exec(5) gives a unit with StateDirectory=.
func journalDir() string {
	first, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	return cmp.Or(first, "/var/lib/quillon")
}

// stateFile returns the file in which apps of the instance keep what must survive the process.
func (f *runFlags) stateFile(instance string) *state.File {
	switch f.state {
	case state.None:
		return state.New("", false)
	case "":
		return state.New(strings.TrimSuffix(admin.Path(filepath.Base(instance)), ".sock")+".state", true)
	}
	return state.New(f.state, false)
}

// checkSocket refuses an instance name that cannot be a file name.
func (f *runFlags) checkSocket(name string) error {
	if f.control == "" && !isName(name) || !isPlain(name) {
		return fmt.Errorf("an instance cannot be named %q: want a file name without control characters; give one with --name", name)
	}
	return nil
}

// isName reports whether an instance can have this name: its socket is a file with that name.
func isName(name string) bool {
	return !strings.ContainsRune(name, '/') && !strings.HasPrefix(name, ".") && isPlain(name)
}

// isPlain reports whether a name is one line wherever it is printed: in logs, lists and labels of metrics.
func isPlain(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// running is an instance, from the beginning of its start to its end.
type running struct {
	*runFlags
	cmd        *cobra.Command
	log        *slog.Logger
	spec       *graph.Spec
	file       string
	name       string
	clk        clock.Clock
	orders     *orders
	life       *life
	manager    *notifier
	collect    func()
	privileges *privileges
	workers    *priority
	cpus       []int  // processors to which workers are pinned; none: they are not pinned
	namespace  string // the network namespace of its interfaces

	troubles atomic.Pointer[[]string] // from the lookout; nil: it has not looked yet
	begun    clock.Time

	priorityNote string
	latencyNote  string   // "": --latency was not given
	awake        *os.File // while this file is open, processors stay awake

	control *admin.Server
	filter  port.Filter // the filter with which the ports were opened
	ports   *open.Ports
	state   *state.File
	journal *state.Journals // nil: apps keep none
	inst    *graph.Instance
	served  *served
	unserve func() error
	joined  *joined
	worked  bool // the workers have run
}

// errStop is the error of a start that was ended by an order to stop.
var errStop = errors.New("told to stop")

// run opens the ports and runs the graph until a signal or an error.
func (f *runFlags) run(cmd *cobra.Command, spec *graph.Spec, file string) error {
	r := &running{runFlags: f, cmd: cmd, spec: spec, file: file, name: f.instanceName(file), clk: clock.NewWall(), orders: f.orders}
	r.begun = r.clk.Now()
	if err := cmp.Or(f.checkSocket(r.name), f.pool.check(spec), f.root.check(spec), f.checkWatchdog(), checkLatency(f.latency)); err != nil {
		return err
	}
	var err error
	if r.log, err = f.logs.logger(cmd.ErrOrStderr(), r.name); err != nil {
		return err
	}
	if r.workers, err = choosePriority(f.priority); err != nil {
		return err
	}
	if r.cpus, err = cpusOf(spec); err != nil {
		return err
	}
	r.collect = garbage.None()
	defer r.collect()
	if r.orders == nil {
		r.orders = takeOrders()
		defer r.orders.release()
	}
	r.manager = newNotifier(os.Getenv)
	defer r.manager.close()
	r.life = begin(r.orders, r.log)
	defer r.life.done()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"taking the place of the instance", r.claim}, {"taking the priority", r.prioritize}, {"opening the ports", r.openPorts},
		{"building the graph", r.build}, {"attaching the ports", r.attach},
		{"opening what serves controllers", r.serve}, {"giving up privileges", r.drop}, {"saying what runs", r.show},
	} {
		r.life.at(step.what)
		err := step.do()
		if err == nil && r.life.ordered() {
			err = errStop
		}
		if err != nil {
			return r.finish(err)
		}
	}
	return r.work()
}

// claim opens the control socket before anything is changed, so that the second of two instances with one
// name changes nothing. Requests wait until the instance runs.
func (r *running) claim() (err error) {
	if r.namespace, err = bridge.Namespace(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.cmd.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-r.life.stopping:
			cancel(errStop)
		case <-ctx.Done():
		}
	}()
	r.control, err = admin.Listen(ctx, admin.Config{
		Name: r.name, Path: r.runFlags.control,
		Stop:     r.life.end,
		PortInfo: func() any { return r.ports.BoundTo(r.inst.Ports()) },
		Process:  func() any { return r.process() },
	})
	return err
}

// prioritize sets the priority of the threads before frames can wait for them, and does what --latency asks
// for.
func (r *running) prioritize() error {
	r.priorityNote, r.workers = r.workers.take()
	r.quicken()
	return nil
}

func (r *running) openPorts() (err error) {
	if r.filter, err = graph.Wants(r.spec, kinds()); err != nil {
		return err
	}
	r.ports, err = open.Prepare(r.spec, open.Config{Filter: r.filter, Clock: r.clk, Splice: spliceOf})
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("%w; ip link shows what there is", err)
	}
	return asRoot(err)
}

// asRoot adds advice to an error if this process lacks permissions that root usually has.
func asRoot(err error) error {
	switch {
	case !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "as root"):
		return err
	case os.Geteuid() != 0:
		return fmt.Errorf("%w: run it as root", err)
	}
	return fmt.Errorf("%w: this root lacks capabilities, give it CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF", err)
}

func (r *running) build() (err error) {
	r.state = r.stateFile(r.name)
	var journal func(string, int, journal.Arrange) (journal.Journal, error)
	if r.journal = r.journals(r.name); r.journal != nil {
		journal = r.journal.Open
	}
	r.inst, err = graph.New(graph.Config{
		Spec: r.spec, Kinds: kinds(), Ports: r.ports.Queues(), Clock: r.clk,
		// Flow tables are hashed with the seed, so senders must not know it.
		Seed: rand.Uint64(),
		Poll: r.latency == latencies[2],
		Nice: int(r.workers.workers.Nice), Realtime: int(r.workers.workers.Priority), CPUs: r.cpus,
		OpenPort: func(name string, p graph.PortSpec) ([]port.Port, error) {
			if p.Args["pair"] != "" {
				return nil, fmt.Errorf("port %s is one of a pair: stop, and run the new spec", name)
			}
			if c := p.Args["cpu"]; c != "" {
				if cpus, err := processors(c); err != nil || !slices.Equal(cpus, r.cpus) {
					return nil, fmt.Errorf("port %s: cpu=%s: workers are pinned when they start: stop, and run the new spec", name, c)
				}
			}
			return r.ports.Add(name, p)
		},
		ClosedPort: r.ports.Closed,
		Memory:     r.state.Memory,
		Journal:    journal,
		Ahead:      xdp.Open,
	})
	if err != nil {
		r.inst = nil
		return specError(r.file, err)
	}
	if err := r.checkPoll(); err != nil {
		return err
	}
	r.life.inst.Store(r.inst)
	if r.state.Path() == r.runFlags.state && r.runFlags.state != "" && len(r.state.Kept()) == 0 {
		return fmt.Errorf("--state %s: no app of the graph keeps a state", r.runFlags.state)
	}
	return nil
}

// attach directs frames to this process. Before that, the apps have taken over the state of an earlier
// process: a frame of a connection that only they can translate must not cross before they have bound the
// connection.
func (r *running) attach() error {
	if err := r.ports.Orphaned(r.inst); err != nil {
		return err
	}
	if err := r.inst.Begin(r.clk.Now()); err != nil {
		return err
	}
	if err := r.ports.Attach(); err != nil {
		return asRoot(err)
	}
	r.inst.Lead()
	return nil
}

// serve opens the addresses for controllers, for the page and for other boards.
func (r *running) serve() error {
	served, closeAll, err := r.p4rt.listen(r.inst, r.name, r.control.Path(), r.clk, r.log)
	if err != nil {
		return err
	}
	r.served = served
	if r.p4rt.ui != "" {
		page, err := ui.Listen(ui.Config{Address: r.p4rt.ui, Anyone: r.p4rt.insecure, Change: r.p4rt.uiChange, Dial: r.control.Client, Clock: r.clk})
		if err != nil {
			return errors.Join(err, closeAll())
		}
		served.UI = page.URL()
		controllers := closeAll
		closeAll = func() error { return errors.Join(page.Close(), controllers()) }
	}
	r.joined, err = r.pool.start(r.inst, r.spec, r.clk, r.log)
	r.unserve = func() error { return errors.Join(r.joined.close(), closeAll()) }
	return err
}

func (r *running) drop() (err error) {
	if r.privileges, err = r.root.drop(r.spec, r.workers.limited()); err == nil {
		r.p4rt.unreadable(r.log)
		r.control.Serve(r.inst)
	}
	return err
}

// show prints what the instance runs: ports, addresses, notes, state files, privileges and priority.
func (r *running) show() error {
	info := bound{Name: r.name, Control: r.control.Path(), Bound: r.ports.Bound(), Notes: r.inst.Notes(), Privileges: r.privileges, Priority: r.priorityNote, Latency: r.latencyNote, Spec: r.spec}
	info.Notes = append(info.Notes, specNotes(r.inst.Spec())...)
	if len(r.state.Kept()) > 0 {
		info.State = r.state.Kept()[0].Path()
	}
	if len(r.served.Devices) > 0 || r.served.Metrics != "" || r.served.UI != "" {
		info.Served = r.served
	}
	if r.state.App() != "" && r.state.Path() == "" {
		r.log.Warn(fmt.Sprintf("--state none: when this process ends, end the connections of %s's clients before the next one starts", r.state.App()), "app", r.state.App())
	}
	err := show(r.cmd, info, func(w io.Writer) {
		for _, i := range info.Bound {
			if r.verbose {
				fmt.Fprint(w, i)
			} else {
				fmt.Fprint(w, i.Brief())
			}
		}
		for _, n := range info.Notes {
			fmt.Fprintln(w, n)
		}
		for _, s := range r.state.Kept() {
			if s.Path() != "" {
				fmt.Fprintf(w, "%s keeps its state in %s\n", s.App(), s.Path())
			}
		}
		r.served.print(w)
		if r.verbose {
			r.privileges.print(w)
		} else {
			r.privileges.brief(w)
		}
		fmt.Fprintf(w, "priority: %s\n", r.priorityNote)
		if r.latencyNote != "" {
			fmt.Fprintf(w, "latency: %s\n", r.latencyNote)
		}
		fmt.Fprintf(w, "running as %s, control socket %s\n", r.name, r.control.Path())
	})
	if err != nil { // the disk may be full, which does not matter to frames
		r.log.Warn(fmt.Sprintf("what runs cannot be said: %v", err))
	}
	return nil
}

// work runs the workers, and carries out orders until the instance ends.
func (r *running) work() error {
	ctx, cancel := context.WithCancel(r.cmd.Context())
	defer cancel()
	done := make(chan error, 1)
	r.worked = true
	go func() { done <- r.inst.Run(ctx) }()
	started := r.collect
	if len(r.served.Devices) > 0 {
		started = func() {} // listen has called garbage.Less
	}
	warned(r.log, r.inst)
	if r.state.App() != "" && r.state.Path() != "" {
		go func() {
			inherited(ctx, r.log, r.inst, r.state.App())
			started()
		}()
	} else {
		started()
	}
	go r.watch(ctx)
	go lookOut(ctx, r.life.stopping, r.log, r.inst, r.ports, r.clk, func(all []string) { r.troubles.Store(&all) })
	breathed := make(chan struct{})
	go r.stopping(breathed)
	r.life.runs()
	r.manager.send("READY=1")
	for {
		r.life.at("waiting for orders")
		select {
		case <-r.orders.reload:
			r.life.at("reading " + r.file + " again")
			r.reload()
		case <-r.life.stopping:
			return r.stop(cancel, breathed, done)
		case err := <-done:
			if err == nil {
				return r.finish(nil)
			}
			// A worker failed. XDP programs and wires stay attached: when the process has ended, its sockets
			// are closed, and frames cross in the kernel.
			_ = r.control.Hangup()
			free, e := r.ports.Free()
			err = errors.Join(err, e)
			if len(free) > 0 && e == nil {
				return fmt.Errorf("%w; %s, the other one of the pair, is free; one that was moved to another network namespace has its program and settings until quillon detach there", err, strings.Join(free, ", "))
			}
			return fmt.Errorf("%w%s", err, leftWires(r.spec, err))
		}
	}
}

// stopping waits for the order to stop, and then for a breath of every worker. If a worker is stuck, the
// process ends with its XDP programs attached, so that frames cross that may cross without it.
func (r *running) stopping(breathed chan<- struct{}) {
	select {
	case <-r.life.stopping:
	case <-r.life.over:
		return
	}
	r.manager.send("STOPPING=1")
	if err := r.inst.Breathe(breathLimit, breathWithin); err != nil {
		r.life.crash(err.Error() + leftWires(r.spec, err))
	}
	close(breathed)
}

// stop ends a graph that runs.
func (r *running) stop(cancel func(), breathed <-chan struct{}, done <-chan error) error {
	r.life.at("waiting for a breath of all workers")
	<-breathed
	r.life.at("leaving the pool")
	lost := r.joined.leave(r.orders.stop)
	// Ports stop taking frames before workers stop: frames for a stopped worker would wait in its queues.
	r.life.at("detaching the ports")
	r.quiesce()
	err := r.ports.Detach()
	cancel()
	r.life.at("waiting for the end of all workers")
	return r.finish(errors.Join(lost, err, <-done))
}

// finish undoes what the start has done, and returns err and its own errors; errStop is no error.
func (r *running) finish(err error) error {
	if errors.Is(err, errStop) {
		err = nil
	}
	r.life.end() // from here on the time limit of a stop holds, whatever the reason
	r.life.at("closing what is open")
	errs := []error{err}
	if r.unserve != nil {
		errs = append(errs, r.unserve())
	}
	if r.control != nil {
		errs = append(errs, r.control.Hangup())
	}
	if r.inst != nil {
		if err != nil && !r.worked && r.ports != nil {
			r.ports.Revert()
		}
		errs = append(errs, r.inst.Close())
	}
	if r.ports != nil {
		if err != nil && !r.worked {
			errs = append(errs, r.ports.Undo())
		} else {
			errs = append(errs, r.ports.Close())
		}
		r.printHeld()
	}
	if r.journal != nil {
		errs = append(errs, r.journal.Close())
	}
	if r.state != nil {
		errs = append(errs, r.state.Close())
	}
	if r.control != nil { // last: the next instance then finds everything free
		errs = append(errs, r.control.Close())
	}
	return errors.Join(errs...)
}

// quietLimit is how long a process that ends waits for answers to requests for guarded words. It is the time
// for which clover-steer, by its default repair=, makes other clients' atomics wait.
const quietLimit = 600 * time.Millisecond

// quiesce stops apps from sending requests for guarded words, and waits for the answers to those under way.
func (r *running) quiesce() {
	if !r.ports.Guarded() {
		return
	}
	for app := range r.inst.Spec().Apps {
		for w := range r.inst.Workers() {
			_ = r.inst.Visit(app, w, func(a graph.App) {
				if a, ok := a.(interface{ End() }); ok {
					a.End()
				}
			})
		}
	}
	for since := r.clk.Now(); r.ports.Guarded() && r.clk.Now().Sub(since) < quietLimit; {
		time.Sleep(time.Millisecond)
	}
}

// printHeld prints which frames do not cross once the process has ended.
func (r *running) printHeld() {
	for _, p := range r.ports.Held() {
		r.held = true
		app := cmp.Or(r.state.App(), "this process")
		switch {
		case p.QueuePairs && r.state.Path() != "":
			r.log.Warn(fmt.Sprintf("connections that cannot do without %s are handed over: until the next process runs, frames to these do not cross between %s and %s, and all others do; to end that: %s", app, p.A, p.B, p.Free), "app", app)
		case p.QueuePairs:
			r.log.Warn(fmt.Sprintf("--state none: connections that cannot do without %s are lost: frames to these do not cross between %s and %s; end them at their clients, and then: %s", app, p.A, p.B, p.Free), "app", app)
		default:
			r.log.Warn(fmt.Sprintf("appends that %s sent have no answer yet: for a minute, or until the next process runs, other atomics to their words do not cross between %s and %s, and all else does; to end that: %s", app, p.A, p.B, p.Free), "app", app)
		}
	}
}

// leftWires describes what a failed worker leaves of the inline pairs of spec.
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

// warned logs the warnings in the reports of apps.
func warned(log *slog.Logger, inst *graph.Instance) {
	for _, app := range slices.Sorted(maps.Keys(inst.Spec().Apps)) {
		r, err := inst.Report(app)
		if err != nil || len(r) == 0 {
			continue
		}
		if x, ok := r[0].(interface{ Warns() string }); ok && x.Warns() != "" {
			log.Warn(fmt.Sprintf("%s: %s", app, x.Warns()), "app", app)
		}
	}
}

// takenOver is the report of an app that keeps a state. why says why the app took nothing over when it
// started; it is empty if there was nothing, or all was taken over. known is true after the app's first
// breath.
type takenOver interface {
	Inherited() (why string, known bool)
}

// inherited logs what an app took over from the process before this one. The app's counters "taken-over" and
// "lost" count the connections.
func inherited(ctx context.Context, log *slog.Logger, inst *graph.Instance, app string) {
	for ctx.Err() == nil {
		r, err := inst.Report(app)
		if err != nil {
			return // the app was taken out, or has no report
		}
		h, ok := r[0].(takenOver)
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
			log.Error(fmt.Sprintf("%s: %s: %d connections are lost, their clients are told", app, why, n["lost"]), "app", app, "lost", n["lost"])
		case n["taken-over"] > 0:
			log.Info(fmt.Sprintf("%s: %d connections taken over", app, n["taken-over"]), "app", app, "taken_over", n["taken-over"])
		}
		return
	}
}

// reload reads the Spec's file again and applies it. It logs errors. After an error the old graph goes on, but after
// graph.ErrPort the new one runs.
func (r *running) reload() {
	inst, file := r.inst, r.file
	if file == "" {
		r.log.Warn("SIGHUP: there is no spec file to read again")
		return
	}
	spec, err := r.read(file)
	if err == nil {
		var plan graph.Plan
		if plan, err = inst.Plan(spec); err == nil {
			if err = inst.Apply(plan); err == nil {
				r.log.Info("SIGHUP: "+strings.ReplaceAll(plan.String(), "\n", "; "), "file", file)
				return
			}
		}
	}
	if errors.Is(err, graph.ErrPort) {
		r.log.Error(fmt.Sprintf("SIGHUP: %v", oneLine(err)), "file", file)
		return
	}
	r.log.Error(fmt.Sprintf("SIGHUP: nothing changed: %v", oneLine(err)), "file", file)
}

func newDetachCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "detach INTERFACE...",
		Short: "Take away what a dead or kept instance left on interfaces",
		Long: `Takes the XDP programs of an inline pair off and puts the interfaces' settings
back, also where an instance was killed while it started or stopped. After that no
frame crosses between the two, unless something else carries it. If one of the two
interfaces is gone, the other one is freed. An interface that was moved to another
network namespace keeps its program: free it there. Interfaces that were no pair are
freed the same way, one or many: those with a P4 program that goes on, or drops all
frames, without its process (fail=headless and closed), and those whose settings are
not as they were.

Journals of ended instances stay (run --journal). quillon detach lists those that
name anything.`,
		Example: "  quillon detach eth1 eth2\n  ip netns exec NAME quillon detach eth1",
		Args:    atLeast("INTERFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := open.Present(args...)
			if err != nil {
				return err
			}
			a := found[0]
			twice := len(found)
			var once []string
			for _, dev := range found {
				if !slices.Contains(once, dev) {
					once = append(once, dev)
				}
			}
			if found = once; len(found) == twice { // an interface that is named twice is freed alone
				err = afxdp.Whole(found...)
			}
			if err != nil {
				return err
			}
			text := strings.Join(found, " and ") + " are free"
			switch {
			case len(found) == 1 && len(args) == 2 && args[0] != args[1]:
				text = a + " is free, and the other one is gone"
			case len(found) == 1:
				text = a + " is free"
			}
			if err := unused(found...); err != nil {
				return err
			}
			for i, b := range found {
				for _, a := range found[:max(1, i)] {
					switch s, err := bridge.Of(a, b); {
					case err != nil:
						return err
					case s != nil:
						return fmt.Errorf("%s and %s are a splice: quillon bridge remove puts %[2]s back into %[3]s", s.Inner, s.Port, s.Bridge)
					}
				}
			}
			defer undisturbed(cmd, "taking the wire away")()
			if err := afxdp.Detach(found...); err != nil {
				return asRoot(err)
			}
			return show(cmd, args, func(w io.Writer) {
				fmt.Fprintln(w, text)
				for _, line := range state.Idle(journalDir()) {
					fmt.Fprintln(w, line)
				}
			})
		},
	}
}
