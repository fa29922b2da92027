package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/clock"
)

func newCtlCmd() *cobra.Command {
	g := group("ctl", "Drive switches by P4Runtime", "  quillon ctl apply switches.yaml\n  quillon ctl read ipv4_lpm --grpc-addr unix:/run/quillon/p4rt/switch.sock",
		newCtlApplyCmd(),
		newCtlDiffCmd(),
		newCtlDumpCmd(),
		newCtlForgetCmd(),
		newCtlHistoryCmd(),
		newCtlLearnCmd(),
		newCtlPlanCmd(),
		newCtlReadCmd(),
		newCtlRestoreCmd(),
		newCtlRouteCmd(),
		newCtlRunCmd(),
		newCtlSetPipelineCmd(),
		newCtlStatusCmd(),
		newCtlWatchCmd(),
		newCtlWriteCmd(),
	)
	g.Long = `Drives switches that speak P4Runtime: bmv2's simple_switch_grpc, quillon's own
server, any number at once.

Commands with INTENT.yaml are about the devices in it:

  devices:
    s1:
      address: unix:/run/quillon/p4rt/switch.sock
      device_id: 1
      p4info: ipv4_router.p4info.txtpb
      config: ipv4_router.json
      multicast:
        - {group: 7, ports: [1, 2, 3]}
      entries:
        - {table: ipv4_lpm, match: {hdr.ipv4.dst: 10.0.0.0/8}, action: set_next_hop, params: {next_hop: 1}}
        - {table: vlan_member, default: true, action: refuse_member}

with, besides, leave (tables that somebody else writes), clone_sessions, digests,
value_sets, meters, members and groups of action profiles, registers and counters.
Values are numbers, addresses, VALUE/LENGTH, VALUE&&&MASK, LOW..HIGH and "*". The
others are about one device: --grpc-addr and --device-id.

The controller with the highest election id is primary, and only it writes. Ids
are made from the time: who starts last is primary, and the one before says so and
waits; those that etcd elects (ctl run --store) are above all of these. Commands that
only read take no part in that.

An address is unix:PATH, a quillon's Unix socket, or host:port. Plain text goes only
to this machine, unless --insecure says otherwise; --ca and its siblings speak TLS.`
	return g
}

// ctlFlags are the flags of all commands that talk to devices.
type ctlFlags struct {
	ctl.Transport
	election string
	timeout  time.Duration
}

func (f *ctlFlags) add(cmd *cobra.Command, writes bool) {
	fs := cmd.Flags()
	fs.StringVar(&f.CA, "ca", "", "TLS: `file` of certificates that the device's must come from")
	fs.StringVar(&f.Cert, "cert", "", "TLS: `file` with our own certificate")
	fs.StringVar(&f.Key, "key", "", "TLS: `file` with its key")
	fs.StringVar(&f.ServerName, "server-name", "", "TLS: the `name` in the device's certificate (default: the host of its address)")
	fs.BoolVar(&f.TLS, "tls", false, "TLS, with the system's certificates")
	fs.BoolVar(&f.Insecure, "insecure", false, "plain text to other machines, too")
	fs.DurationVar(&f.Ping, "ping", 0, "ask an idle device for a sign of life this often (default: never; bmv2 hangs up)")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long a device may take to answer")
	if writes {
		fs.StringVar(&f.election, "election-id", "", "`HIGH,LOW` (default: from the time)")
	}
}

// some refuses a duration that is not above 0.
func some(flag string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("--%s %v: want a time above 0", flag, d)
	}
	return nil
}

// options returns the options of a session.
func (f *ctlFlags) options(observe bool) (ctl.Options, error) {
	o := ctl.Options{Clock: clock.NewWall(), Patience: f.timeout, Observe: observe}
	err := some("timeout", f.timeout)
	if err == nil && f.Ping != 0 {
		err = some("ping", f.Ping)
	}
	if err == nil && f.election != "" {
		o.Election, err = ctl.ParseElectionID(f.election)
	}
	return o, err
}

// oneDevice are the flags of commands about one device.
type oneDevice struct {
	ctlFlags
	address string
	id      uint64
	role    string
	p4info  string
	guessed bool // no address was given, and no instance runs here
}

func (f *oneDevice) add(cmd *cobra.Command, writes bool) {
	f.ctlFlags.add(cmd, writes)
	fs := cmd.Flags()
	fs.StringVar(&f.address, "grpc-addr", "", "the device's `address`, host:port or unix:PATH (default: the socket of the one instance that serves P4Runtime here, else "+usualAddress+")")
	fs.Uint64Var(&f.id, "device-id", 1, "its `id`")
	fs.StringVar(&f.role, "role", "", "the `role` in which it is written (default: the one that may write everything)")
	fs.StringVar(&f.p4info, "p4info", "", "its P4Info, a `file` (default: what the device says)")
}

// usualAddress is the address at which switches other than quillon serve P4Runtime.
const usualAddress = "127.0.0.1:9559"

// find sets the address if none was given: the socket of the instance that runs here, or usualAddress.
func (f *oneDevice) find() error {
	if f.address != "" {
		return nil
	}
	var found []string
	socks, _ := filepath.Glob(p4rt.SocketPath(admin.Path("*")))
	for _, s := range socks {
		if c, err := net.Dial("unix", s); err == nil {
			c.Close()
			found = append(found, p4rt.SocketPrefix+s)
		}
	}
	switch len(found) {
	case 0:
		f.address, f.guessed = usualAddress, true
	case 1:
		f.address = found[0]
	default:
		return fmt.Errorf("several instances serve P4Runtime: choose one with --grpc-addr: %s", strings.Join(found, ", "))
	}
	return nil
}

// open connects to the device; an observer takes no part in the arbitration. callbacks, if not
// nil, sets the session's callbacks.
func (f *oneDevice) open(ctx context.Context, observe bool, callbacks func(*ctl.Options)) (*ctl.Session, error) {
	o, err := f.options(observe)
	if err != nil {
		return nil, err
	}
	if err := f.find(); err != nil {
		return nil, err
	}
	if callbacks != nil {
		callbacks(&o)
	}
	s, err := openReady(ctx, &ctl.Dialer{Transport: f.Transport}, ctl.Target{Address: f.address, DeviceID: f.id, Role: f.role}, o)
	if err != nil && f.guessed {
		err = fmt.Errorf("%w; no --grpc-addr was given, and no instance that this user "+
			"reaches serves P4Runtime here (quillon run --p4runtime unix does, for root)", err)
	}
	return s, err
}

func openReady(ctx context.Context, d *ctl.Dialer, t ctl.Target, o ctl.Options) (*ctl.Session, error) {
	s, err := ctl.Open(d, t, o)
	if err != nil {
		return nil, err
	}
	if err := s.Ready(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// info returns the P4Info: of the file of --p4info, or else of the device's pipeline.
func (f *oneDevice) info(ctx context.Context, s *ctl.Session) (*p4info.Info, error) {
	if f.p4info != "" {
		m, err := ctl.ReadP4Info(f.p4info)
		if err != nil {
			return nil, err
		}
		return p4info.New(m)
	}
	p, err := s.GetPipeline(ctx, p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE)
	if err != nil {
		return nil, err
	}
	if p.Info == nil {
		return nil, ctl.ErrNoPipeline
	}
	return p4info.New(p.Info)
}

// oneIntent are the flags of commands about an intent.
type oneIntent struct {
	ctlFlags
	only []string
}

func (f *oneIntent) add(cmd *cobra.Command, writes bool) {
	f.ctlFlags.add(cmd, writes)
	cmd.Flags().StringArrayVar(&f.only, "device", nil, "only the device of this `name`; may be repeated")
}

func (f *oneIntent) read(file string) (*ctl.Intent, error) {
	in, err := ctl.ReadIntent(file)
	if err == nil {
		err = f.choose(in)
	}
	return in, err
}

// choose removes all devices from the intent but those of --device.
func (f *oneIntent) choose(in *ctl.Intent) error {
	if len(f.only) == 0 {
		return nil
	}
	for _, name := range f.only {
		if !slices.ContainsFunc(in.Devices, func(d *ctl.Device) bool { return d.Name == name }) {
			return fmt.Errorf("%s has no device %s", in.File, name)
		}
	}
	in.Devices = slices.DeleteFunc(in.Devices, func(d *ctl.Device) bool { return !slices.Contains(f.only, d.Name) })
	return nil
}

// each connects to the devices of an intent, to 16 at the same time, and calls do for each. It returns the
// results of those that had no error, in the order of the intent, and the errors, joined.
func each[V any](ctx context.Context, f *oneIntent, in *ctl.Intent, observe bool, do func(*ctl.Session, *ctl.Device) (V, error)) ([]V, error) {
	o, err := f.options(observe)
	if err != nil {
		return nil, err
	}
	dialer := &ctl.Dialer{Transport: f.Transport}
	type result struct {
		v   V
		err error
	}
	results := make([]chan result, len(in.Devices))
	room := make(chan struct{}, 16)
	for i, d := range in.Devices {
		results[i] = make(chan result, 1)
		go func() {
			room <- struct{}{}
			defer func() { <-room }()
			var r result
			s, err := openReady(ctx, dialer, d.Target, o)
			if err == nil {
				r.v, err = do(s, d)
				s.Close()
			}
			r.err = err
			results[i] <- r
		}()
	}
	var all []V
	var errs []error
	for i := range results {
		r := <-results[i]
		if r.err != nil {
			errs = append(errs, r.err)
			continue
		}
		all = append(all, r.v)
	}
	return all, errors.Join(errs...)
}

// entityJSON is an entity as --json prints it.
type entityJSON struct {
	Kind string `json:"kind"` // the list of an intent that the entity belongs to
	Line string `json:"line"` // as an intent writes it
	Text string `json:"text"`
}

func entityOf(info *p4info.Info, e *p4v1.Entity) entityJSON {
	kind, line := ctl.Line(info, e)
	return entityJSON{kind, line, ctl.Text(info, e)}
}

func newCtlSetPipelineCmd() *cobra.Command {
	var f oneDevice
	var action string
	actions := map[string]p4v1.SetForwardingPipelineConfigRequest_Action{
		"verify":               p4v1.SetForwardingPipelineConfigRequest_VERIFY,
		"verify-and-save":      p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE,
		"verify-and-commit":    p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		"commit":               p4v1.SetForwardingPipelineConfigRequest_COMMIT,
		"reconcile-and-commit": p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT,
	}
	cmd := &cobra.Command{
		Use:   "set-pipeline [P4INFO CONFIG]",
		Short: "Load a program into a device",
		Long: `Loads a program: its P4Info and what the device runs, for bmv2 and quillon the
JSON of p4c-bm2-ss or p4c-bm2-psa. What the device held is gone, unless --action says
otherwise: verify, verify-and-save, verify-and-commit, commit (of what was saved: no
files), reconcile-and-commit (keeps the entries that still fit).`,
		Example: `  quillon ctl set-pipeline ipv4_router.p4info.txtpb ipv4_router.json
  quillon ctl set-pipeline --action verify x.p4info.txtpb x.json --grpc-addr 10.0.0.1:9559 --ca ca.pem`,
		Args: optional(0, "P4INFO", "CONFIG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, ok := actions[action]
			if !ok {
				return fmt.Errorf("--action %s is not known; see %s --help", action, cmd.CommandPath())
			}
			var p *ctl.Pipeline
			switch {
			case action == "commit" && len(args) > 0:
				return errors.New("--action commit takes what was saved: no files")
			case action != "commit":
				if err := exactly("P4INFO", "CONFIG")(cmd, args); err != nil {
					return err
				}
				m, err := ctl.ReadP4Info(args[0])
				if err != nil {
					return err
				}
				if _, err := p4info.New(m); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				config, err := os.ReadFile(args[1])
				if err != nil {
					return err
				}
				p = ctl.NewPipeline(m, config)
			}
			s, err := f.open(cmd.Context(), false, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			if a == p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT {
				err = s.Load(cmd.Context(), p)
			} else {
				err = s.SetPipeline(cmd.Context(), a, p)
			}
			if err != nil {
				return err
			}
			out := struct {
				Action string `json:"action"`
				Cookie uint64 `json:"cookie"`
			}{Action: action}
			if p != nil {
				out.Cookie = p.Cookie
			}
			return show(cmd, out, func(w io.Writer) { fmt.Fprintf(w, "%s: done, cookie 0x%x\n", action, out.Cookie) })
		},
	}
	f.add(cmd, true)
	cmd.Flags().StringVar(&action, "action", "verify-and-commit", "what to do with it")
	return cmd
}

func newCtlReadCmd() *cobra.Command {
	var f oneDevice
	var zero bool
	cmd := &cobra.Command{
		Use:   "read [NAME [INDEX]]",
		Short: "Read what a device holds",
		Long: `Reads what a device holds: all of it, or what NAME names: a table, counter, meter,
register, action profile, digest, value set (its name, alias, or the end of its
name), or a kind: entries, counters, meters, registers, members, groups, multicast,
clone_sessions, digests, value_sets. INDEX is of a counter, meter or register.

Takes no part in the arbitration: the primary controller stays it.`,
		Example: `  quillon ctl read ipv4_lpm
  quillon ctl read counters
  quillon ctl read port_rx 1 --json
  quillon ctl read --grpc-addr 127.0.0.1:50051 --device-id 0`,
		Args: optional(0, "NAME", "INDEX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.open(cmd.Context(), true, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			info, err := f.info(cmd.Context(), s)
			if err != nil {
				return err
			}
			ask, err := ctl.Queries(info, args...)
			if err != nil {
				return err
			}
			var out []entityJSON
			unread, err := s.Ask(cmd.Context(), info, ask, zero, func(e *p4v1.Entity) error {
				out = append(out, entityOf(info, e))
				return nil
			})
			if err != nil {
				return err
			}
			for _, u := range unread {
				if len(args) > 0 && len(out) == 0 {
					return fmt.Errorf("the device does not show %s: %w", u.What, u.Why)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "quillon: the device does not show %s: %v\n", u.What, u.Why)
			}
			if len(out) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), nothingRead(args, !zero && slices.ContainsFunc(ask, ctl.Query.Cells)))
			}
			return show(cmd, list(out), func(w io.Writer) {
				for _, e := range out {
					fmt.Fprintln(w, e.Text)
				}
			})
		},
	}
	f.add(cmd, false)
	cmd.Flags().BoolVar(&zero, "zero", false, "show counters, meters and registers that are zero or not set, too")
	return cmd
}

// nothingRead says that nothing was read, which is no error. zeros: cells that are zero were left out.
func nothingRead(names []string, zeros bool) string {
	in := "the device"
	if len(names) > 0 {
		in = strings.Join(names, " ")
	}
	if zeros {
		return fmt.Sprintf("quillon: no entries in %s; --zero shows counters, meters and registers that are zero or not set", in)
	}
	return "quillon: no entries in " + in
}

func newCtlWriteCmd() *cobra.Command {
	var f oneDevice
	var priority int
	var byDefault bool
	cmd := &cobra.Command{
		Use:   "write insert|modify|delete TABLE [FIELD=VALUE...] [ACTION [PARAM=VALUE...]] | ENTITY",
		Short: "Write one entry of a device",
		Long: `Writes one entry of a table, or any one entity in the form that an intent's lists
have. Everything is checked against P4Info before anything is sent. To delete, the
key is enough.

Becomes the primary controller for the moment: one that runs stands back, and comes
back.`,
		Example: `  quillon ctl write insert ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 set_next_hop next_hop=1
  quillon ctl write delete ipv4_lpm hdr.ipv4.dst=10.0.0.0/8
  quillon ctl write modify vlan_member --default refuse_member
  quillon ctl write insert '{group: 1, ports: [1, 2, 3]}'
  quillon ctl write modify '{register: tail_known, index: 5, value: 0}'`,
		Args: atLeast("insert, modify or delete", "TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, ok := map[string]p4v1.Update_Type{"insert": p4v1.Update_INSERT, "modify": p4v1.Update_MODIFY, "delete": p4v1.Update_DELETE}[args[0]]
			if !ok {
				return fmt.Errorf("%q: want insert, modify or delete", args[0])
			}
			text := args[1]
			if !strings.HasPrefix(strings.TrimSpace(text), "{") {
				var err error
				if text, err = entryArgs(args[1:], priority, byDefault); err != nil {
					return err
				}
			} else if len(args) > 2 || priority != 0 || byDefault {
				return errors.New("an entity in braces is all there is to say")
			}
			s, err := f.open(cmd.Context(), false, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			info, err := f.info(cmd.Context(), s)
			if err != nil {
				return err
			}
			e, err := ctl.ParseEntity(info, op, text)
			if err != nil {
				return err
			}
			u := &p4v1.Update{Type: op, Entity: e}
			if err := s.Write(cmd.Context(), p4v1.WriteRequest_CONTINUE_ON_ERROR, u); err != nil {
				return decoded(info, err)
			}
			return show(cmd, entityOf(info, e), func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", args[0], info.Text(e)) })
		},
	}
	f.add(cmd, true)
	cmd.Flags().IntVar(&priority, "priority", 0, "the entry's priority, where the key has ternary, range or optional fields; the highest wins")
	cmd.Flags().BoolVar(&byDefault, "default", false, "the table's default action")
	return cmd
}

// entryArgs returns the text of an entity from the arguments TABLE [FIELD=VALUE...] [ACTION
// [PARAM=VALUE...]].
func entryArgs(args []string, priority int, byDefault bool) (string, error) {
	var pairs [2][][2]string // [0]: of the key, [1]: of the action
	action := ""
	for _, a := range args[1:] {
		k, v, ok := strings.Cut(a, "=")
		switch {
		case ok && action == "":
			pairs[0] = append(pairs[0], [2]string{k, v})
		case ok:
			pairs[1] = append(pairs[1], [2]string{k, v})
		case action == "":
			action = a
		default:
			return "", fmt.Errorf("%q: the action is %s already; want PARAM=VALUE", a, action)
		}
	}
	return ctl.EntryText(args[0], pairs[0], priority, byDefault, action, pairs[1]), nil
}

// decoded turns the error of a Write into one that describes the failed updates, ten of them at most.
func decoded(info *p4info.Info, err error) error {
	var w *ctl.WriteError
	if !errors.As(err, &w) {
		return err
	}
	var errs []error
	for i, u := range w.Failed {
		if i == 10 {
			errs = append(errs, fmt.Errorf("and %d more", len(w.Failed)-i))
			break
		}
		errs = append(errs, errors.New(u.Text(info)))
	}
	return failed{errors.Join(errs...)}
}

func newCtlDumpCmd() *cobra.Command {
	var f oneDevice
	cmd := &cobra.Command{
		Use:   "dump FILE.yaml",
		Short: "Save all that a device holds as an intent",
		Long: `Writes all that a device holds to FILE.yaml, as an intent: entries, groups,
sessions, meters, counters, registers. The program goes to FILE.p4info.txtpb and
FILE.config beside it. What the device does not show is named in comments.

Takes no part in the arbitration: the primary controller stays it.`,
		Example: `  quillon ctl dump s1.yaml && quillon ctl restore s1.yaml
  quillon ctl dump s1.yaml --grpc-addr 127.0.0.1:50051`,
		Args: exactly("FILE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.open(cmd.Context(), true, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			stem := strings.TrimSuffix(args[0], filepath.Ext(args[0]))
			n, err := s.Save(cmd.Context(), args[0], stem+".p4info.txtpb", stem+".config")
			if err != nil {
				return err
			}
			return show(cmd, map[string]any{"file": args[0], "entities": n}, func(w io.Writer) {
				fmt.Fprintf(w, "%d entities in %s\n", n, args[0])
			})
		},
	}
	f.add(cmd, false)
	return cmd
}

func newCtlForgetCmd() *cobra.Command {
	var f oneDevice
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Have a device forget who was primary",
		Long: `Ends the streams of all controllers of a role, and has the device forget the highest
election id: by the specification no lower one is primary before the device starts
again, so that whoever claimed 2^128-1 keeps all others out for good. What the device
holds stays. Controllers that are still there may claim again at once.

It takes the Unix socket of a quillon. There, and nowhere else, election ids from
2^127 on may be claimed, too: who has the socket can always be primary, with
--election-id 0x8000000000000000,1, and others after a forget again.`,
		Example: "  quillon ctl forget\n  quillon ctl forget --role acl --grpc-addr unix:/run/quillon/p4rt/switch.sock",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(true)
			if err == nil {
				err = f.find()
			}
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.Patience)
			defer cancel()
			t := ctl.Target{Address: f.address, DeviceID: f.id, Role: f.role}
			if err := (&ctl.Dialer{Transport: f.Transport}).Forget(ctx, t); err != nil {
				return err
			}
			return show(cmd, map[string]any{"device": t.String(), "role": t.Role}, func(w io.Writer) {
				fmt.Fprintf(w, "%s: any election id will do now\n", t)
			})
		},
	}
	f.add(cmd, false)
	_ = cmd.Flags().MarkHidden("p4info")
	return cmd
}
