package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/nf/clock"
)

// diffJSON is the difference between a device and its intent, as --json prints it.
type diffJSON struct {
	Device  string       `json:"device"`
	Load    string       `json:"load,omitempty"` // why the program is loaded first
	Changes []changeJSON `json:"changes"`
	Batches []int        `json:"batches,omitempty"` // how many changes each has
	Same    int          `json:"same"`
	Unread  []unreadJSON `json:"unread,omitempty"`

	summary string
	texts   []string
}

type changeJSON struct {
	Change string      `json:"change"` // insert, modify, delete
	Entity entityJSON  `json:"entity"`
	Old    *entityJSON `json:"old,omitempty"`
}

type unreadJSON struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

func diffOf(d *ctl.Diff, limits *ctl.Limits) diffJSON {
	out := diffJSON{Device: d.Device.Name, Load: d.Load, Same: d.Same, summary: d.Summary(), Changes: []changeJSON{}}
	for _, c := range d.Changes {
		x := changeJSON{Change: strings.ToLower(c.Type.String()), Entity: entityOf(d.Device.Info, c.Entity)}
		if c.Old != nil {
			old := entityOf(d.Device.Info, c.Old)
			x.Old = &old
		}
		out.Changes = append(out.Changes, x)
		out.texts = append(out.texts, c.Text(d.Device.Info))
	}
	for _, u := range d.Unread {
		out.Unread = append(out.Unread, unreadJSON{u.What, u.Why.Error()})
	}
	if limits != nil {
		for _, b := range d.Plan(*limits) {
			out.Batches = append(out.Batches, len(b.Changes))
		}
	}
	return out
}

func diffText(w io.Writer, all []diffJSON) {
	for _, d := range all {
		fmt.Fprintf(w, "%s: %s\n", d.Device, d.summary)
		if d.Load != "" {
			fmt.Fprintf(w, "  ! load the program: %s\n", d.Load)
		}
		for _, u := range d.Unread {
			fmt.Fprintf(w, "  ! the device does not show %s: they are written anyway\n", u.What)
		}
		next, batch := 0, 0
		for i, t := range d.texts {
			if i == next && len(d.Batches) > 0 {
				next += d.Batches[batch]
				batch++
				fmt.Fprintf(w, "  request %d of %d:\n", batch, len(d.Batches))
			}
			fmt.Fprintf(w, "  %s\n", t)
		}
	}
}

func newCtlDiffCmd() *cobra.Command {
	var f oneIntent
	cmd := &cobra.Command{
		Use:   "diff INTENT.yaml",
		Short: "Compare devices with an intent",
		Long: `Compares what devices hold with an intent: what would be inserted (+), modified (~)
and deleted (-). Takes no part in the arbitration, and changes nothing.

Exit status: 0 no difference, 1 there are some, 2 a device cannot be asked.`,
		Example: "  quillon ctl diff switches.yaml\n  quillon ctl diff switches.yaml --device s1 --json",
		Args:    exactly("INTENT.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.read(args[0])
			if err != nil {
				return err
			}
			all, err := each(cmd.Context(), &f, in, true, func(s *ctl.Session, d *ctl.Device) (diffJSON, error) {
				x, err := s.Compare(cmd.Context(), d, ctl.LeaveValues)
				if err != nil {
					return diffJSON{}, err
				}
				return diffOf(x, nil), nil
			})
			if e := show(cmd, list(all), func(w io.Writer) { diffText(w, all) }); err != nil || e != nil {
				return errors.Join(err, e)
			}
			n := 0
			for _, d := range all {
				if d.Load != "" || len(d.Changes) > 0 {
					n++
				}
			}
			if n > 0 {
				return failed{fmt.Errorf("%d of %d devices differ", n, len(all))}
			}
			return nil
		},
	}
	f.add(cmd, false)
	return cmd
}

func addLimits(cmd *cobra.Command, l *ctl.Limits) {
	cmd.Flags().IntVar(&l.Updates, "batch", 1000, "updates in one request, at most")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if l.Updates < 1 {
			return fmt.Errorf("--batch %d: want a number from 1", l.Updates)
		}
		return nil
	}
}

func newCtlPlanCmd() *cobra.Command {
	var f oneIntent
	var l ctl.Limits
	cmd := &cobra.Command{
		Use:   "plan INTENT.yaml",
		Short: "Show how apply would bring devices to an intent",
		Long: `Shows the requests that apply would send, in their order: what others refer to
comes first and goes last. Takes no part in the arbitration, and changes nothing.`,
		Example: "  quillon ctl plan switches.yaml\n  quillon ctl plan switches.yaml --batch 100",
		Args:    exactly("INTENT.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.read(args[0])
			if err != nil {
				return err
			}
			return showPlan(cmd, &f, in, l, ctl.LeaveValues)
		},
	}
	f.add(cmd, false)
	addLimits(cmd, &l)
	return cmd
}

func showPlan(cmd *cobra.Command, f *oneIntent, in *ctl.Intent, l ctl.Limits, v ctl.Values) error {
	all, err := each(cmd.Context(), f, in, true, func(s *ctl.Session, d *ctl.Device) (diffJSON, error) {
		x, err := s.Compare(cmd.Context(), d, v)
		if err != nil {
			return diffJSON{}, err
		}
		return diffOf(x, &l), nil
	})
	return errors.Join(err, show(cmd, list(all), func(w io.Writer) { diffText(w, all) }))
}

// outcomeJSON is what apply did to a device.
type outcomeJSON struct {
	Device string       `json:"device"`
	Loaded bool         `json:"loaded"`
	Done   int          `json:"done"`
	Failed []failedJSON `json:"failed,omitempty"`
}

type failedJSON struct {
	Change  string     `json:"change"`
	Entity  entityJSON `json:"entity"`
	Code    string     `json:"code"`
	Message string     `json:"message"`

	text string
}

// applyTo brings devices to an intent, and prints the outcome.
func applyTo(cmd *cobra.Command, f *oneIntent, in *ctl.Intent, l ctl.Limits, v ctl.Values) error {
	all, err := each(cmd.Context(), f, in, false, func(s *ctl.Session, d *ctl.Device) (outcomeJSON, error) {
		out := outcomeJSON{Device: d.Name}
		x, err := s.Compare(cmd.Context(), d, v)
		if err != nil {
			return out, err
		}
		o, err := s.Apply(cmd.Context(), x, l)
		if err != nil {
			return out, err
		}
		out.Loaded, out.Done = o.Loaded, o.Done
		for _, u := range o.Failed {
			out.Failed = append(out.Failed, failedJSON{
				strings.ToLower(u.Update.Type.String()), entityOf(d.Info, u.Update.Entity), u.Code.String(), u.Message, u.Text(d.Info),
			})
		}
		return out, nil
	})
	e := show(cmd, list(all), func(w io.Writer) {
		for _, o := range all {
			loaded := ""
			if o.Loaded {
				loaded = "program loaded, "
			}
			fmt.Fprintf(w, "%s: %s%d updates done", o.Device, loaded, o.Done)
			if len(o.Failed) > 0 {
				fmt.Fprintf(w, ", %d failed", len(o.Failed))
			}
			fmt.Fprintln(w)
			for _, u := range o.Failed {
				fmt.Fprintf(w, "  %s\n", u.text)
			}
		}
	})
	if err != nil || e != nil {
		return errors.Join(err, e)
	}
	n := 0
	for _, o := range all {
		n += len(o.Failed)
	}
	if n > 0 {
		return failed{fmt.Errorf("%d updates failed", n)}
	}
	return nil
}

func newCtlApplyCmd() *cobra.Command {
	var f oneIntent
	var l ctl.Limits
	var dry bool
	cmd := &cobra.Command{
		Use:   "apply INTENT.yaml",
		Short: "Bring devices to an intent, once",
		Long: `Compares devices with an intent and makes them what it says: loads the program
where the device has none or another, then inserts, modifies and deletes. A second
apply finds nothing to do. Updates that fail are told with the device's reason, and
do not stop the others.

Exit status: 0 done, 1 updates failed, 2 the intent is wrong, or a device does not
answer or has another primary.`,
		Example: "  quillon ctl apply switches.yaml --dry-run\n  quillon ctl apply switches.yaml --device s1",
		Args:    exactly("INTENT.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.read(args[0])
			if err != nil {
				return err
			}
			if dry {
				return showPlan(cmd, &f, in, l, ctl.LeaveValues)
			}
			return applyTo(cmd, &f, in, l, ctl.LeaveValues)
		},
	}
	f.add(cmd, true)
	addLimits(cmd, &l)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the plan only")
	return cmd
}

func newCtlRestoreCmd() *cobra.Command {
	var f oneIntent
	var l ctl.Limits
	var dry bool
	var address string
	var id uint64
	cmd := &cobra.Command{
		Use:   "restore FILE.yaml",
		Short: "Make a device hold what was dumped",
		Long: `As apply, and registers and counters are written, too. With --grpc-addr or
--device-id another device than the one that was dumped gets it.`,
		Example: "  quillon ctl restore s1.yaml\n  quillon ctl restore s1.yaml --grpc-addr unix:/run/quillon/p4rt/spare.sock",
		Args:    exactly("FILE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.read(args[0])
			if err != nil {
				return err
			}
			if address != "" || id != 0 {
				if len(in.Devices) != 1 {
					return fmt.Errorf("%s has %d devices: choose one with --device", args[0], len(in.Devices))
				}
				if address != "" {
					in.Devices[0].Address = address
				}
				if id != 0 {
					in.Devices[0].DeviceID = id
				}
			}
			if dry {
				return showPlan(cmd, &f, in, l, ctl.CompareValues)
			}
			return applyTo(cmd, &f, in, l, ctl.CompareValues)
		},
	}
	f.add(cmd, true)
	addLimits(cmd, &l)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the plan only")
	cmd.Flags().StringVar(&address, "grpc-addr", "", "another device's `address`")
	cmd.Flags().Uint64Var(&id, "device-id", 0, "another device's `id`")
	return cmd
}

func newCtlRunCmd() *cobra.Command {
	var k keeper
	cmd := &cobra.Command{
		Use:   "run INTENT.yaml",
		Short: "Keep devices at an intent",
		Long: `Keeps devices at an intent until it is stopped: whenever this controller becomes
primary for one (so after a restart of either side), when the file changed (SIGHUP
reads it again), every --every, and after a failure, it compares and applies. What
happens is printed, a line each; with --json, a JSON value each.

How it stands is in a state file, which quillon ctl status shows, by default after
the intent's name in quillon/ctl in $XDG_STATE_HOME (else ~/.local/state). The file
belongs to one controller at a time.`,
		Example: "  quillon ctl run switches.yaml\n  quillon ctl run switches.yaml --every 10s --state /var/lib/quillon/ctl.json",
		Args:    exactly("INTENT.yaml"),
		RunE:    func(cmd *cobra.Command, args []string) error { return k.keep(cmd, args[0], nil) },
	}
	k.add(cmd)
	return cmd
}

// keeper are the flags of commands that keep devices at an intent.
type keeper struct {
	oneIntent
	opt   ctl.ControllerOptions
	state string
}

func (k *keeper) add(cmd *cobra.Command) {
	k.oneIntent.add(cmd, true)
	addLimits(cmd, &k.opt.Limits)
	cmd.Flags().DurationVar(&k.opt.Every, "every", time.Minute, "compare a device this often")
	cmd.Flags().IntVar(&k.opt.Workers, "workers", 16, "devices that are compared at once")
	cmd.Flags().StringVar(&k.state, "state", "", "the state `file` (default: by the intent's name in quillon/ctl in $XDG_STATE_HOME)")
}

// statePath is the state file of an intent.
func statePath(intent string) (string, error) {
	dir, err := ctl.RecordDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, strings.TrimSuffix(filepath.Base(intent), filepath.Ext(intent))+".json"), nil
}

// saveWithin is the longest time until a new status is in the state file.
const saveWithin = 100 * time.Millisecond

// keep runs a controller until a signal ends it. with, if not nil, is called with each intent that is read,
// before it is used, to read other files.
func (k *keeper) keep(cmd *cobra.Command, file string, with func(*ctl.Intent) error) error {
	read := func() (*ctl.Intent, error) {
		in, err := k.read(file)
		if err == nil && with != nil {
			err = with(in)
		}
		return in, err
	}
	if err := some("every", k.opt.Every); err != nil {
		return err
	}
	in, err := read()
	if err != nil {
		return err
	}
	state := k.state
	if state == "" {
		if state, err = statePath(file); err != nil {
			return err
		}
	}
	record, err := ctl.KeepRecord(state)
	if err != nil {
		return err
	}
	defer record.Close()
	o := k.opt
	if o.Session, err = k.options(false); err != nil {
		return err
	}
	now := clock.NewWall()
	if k.election == "" {
		o.Session.Election = record.Election(now.Now())
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)

	// One goroutine prints the news, in the order in which they come.
	news := newNews()
	o.Changed = news.add
	c, err := ctl.NewController(&ctl.Dialer{Transport: k.Transport}, in, o)
	if err != nil {
		return err
	}
	save := func() error {
		return record.Save(ctl.Record{Intent: file, At: now.Now(), Election: o.Session.Election, Devices: c.Status()})
	}
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer func() { c.Close(); running.Wait() }()
	if err := save(); err != nil {
		stop()
		return err
	}
	last := map[string]string{}
	var saving <-chan time.Time // when to save; nil: everything is saved
	for {
		select {
		case <-news.more:
			for _, s := range news.take() {
				line := deviceLine(s)
				if last[s.Device] == line {
					continue
				}
				last[s.Device] = line
				if saving == nil {
					saving = time.After(saveWithin)
				}
				if err := showLine(cmd, s, line); err != nil {
					return err
				}
			}
		case <-saving:
			saving = nil
			if err := save(); err != nil {
				return err
			}
		case <-hup:
			next, err := read()
			if err == nil {
				err = c.Set(next)
			}
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "quillon: the intent stays what it was: %v\n", oneLine(err))
			}
		case <-ctx.Done():
			return save()
		}
	}
}

// news are statuses that wait to be printed, the latest of each device.
type news struct {
	mu   sync.Mutex
	list []ctl.DeviceStatus
	more chan struct{}
}

func newNews() *news { return &news{more: make(chan struct{}, 1)} }

func (n *news) add(s ctl.DeviceStatus) {
	n.mu.Lock()
	n.list = append(n.list, s)
	n.mu.Unlock()
	select {
	case n.more <- struct{}{}:
	default:
	}
}

func (n *news) take() []ctl.DeviceStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.list
	n.list = nil
	return l
}

// deviceLine is a device's status in one line.
func deviceLine(s ctl.DeviceStatus) string {
	line := fmt.Sprintf("%s\t%s", s.Device, s.State)
	switch {
	case s.State == ctl.Connecting && s.Err == "":
	case s.State != ctl.Primary:
		line += ": " + s.Err
	case s.Problem != "":
		line += ", not at the intent: " + s.Problem
	case s.Aligned:
		line += fmt.Sprintf(", at the intent (%d entities, %d updates done, program loaded %d times)", s.Entities, s.Writes, s.Loads)
	default:
		line += ", to be compared"
	}
	return line
}

// showLine prints one of a stream of values: a line, or JSON of one line.
func showLine(cmd *cobra.Command, v any, text string) error {
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		return encodeLine(cmd.OutOrStdout(), v)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.ReplaceAll(text, "\t", "  "))
	return err
}

func newCtlStatusCmd() *cobra.Command {
	var f oneDevice
	var state string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how controllers and their devices stand",
		Long: `Shows what running controllers (quillon ctl run), and those that ran, last knew of
their devices: from the state files in quillon/ctl in $XDG_STATE_HOME (else
~/.local/state), or from --state. With --grpc-addr or --device-id it asks
a device itself.

Exit status: 0 all devices are at their intents, 1 some are not.`,
		Example: "  quillon ctl status\n  quillon ctl status --state /var/lib/quillon/ctl.json --json\n  quillon ctl status --device-id 1",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("grpc-addr") || cmd.Flags().Changed("device-id") {
				return f.ask(cmd)
			}
			files := []string{state}
			if state == "" {
				dir, err := ctl.RecordDir()
				if err != nil {
					return err
				}
				files, _ = filepath.Glob(filepath.Join(dir, "*.json"))
				if len(files) == 0 {
					return fmt.Errorf("no controller left its state in %s: start one with quillon ctl run", dir)
				}
			}
			var all []ctl.Record
			other := 0
			for _, file := range files {
				r, err := ctl.ReadRecord(file)
				if err != nil {
					return err
				}
				for _, d := range r.Devices {
					if !r.Running || !d.Aligned {
						other++
					}
				}
				all = append(all, r)
			}
			if err := show(cmd, all, func(w io.Writer) { statusText(w, all) }); err != nil {
				return err
			}
			if other > 0 {
				return failed{fmt.Errorf("%d devices are not known to be at their intents", other)}
			}
			return nil
		},
	}
	f.add(cmd, false)
	cmd.Flags().StringVar(&state, "state", "", "the state `file` of one controller")
	return cmd
}

func statusText(w io.Writer, all []ctl.Record) {
	for _, r := range all {
		running := fmt.Sprintf("runs (process %d)", r.PID)
		if !r.Running {
			running = "does not run; this is what it last knew, at " + time.Unix(0, int64(r.At)).Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s: %s, election id %s\n", r.Intent, running, r.Election)
		for _, d := range r.Devices {
			fmt.Fprintf(w, "  %s\n", deviceLine(d))
		}
	}
}

// deviceJSON describes a device, as --json prints it.
type deviceJSON struct {
	Address  string         `json:"address"`
	DeviceID uint64         `json:"device_id"`
	Version  string         `json:"p4runtime"`
	Cookie   uint64         `json:"cookie"`
	Tables   int            `json:"tables"`
	Entities map[string]int `json:"entities"`
}

// ask asks a device for its version, its program, and how many entities it holds.
func (f *oneDevice) ask(cmd *cobra.Command) error {
	s, err := f.open(cmd.Context(), true, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	out := deviceJSON{Address: f.address, DeviceID: f.id, Entities: map[string]int{}}
	if out.Version, err = s.Version(cmd.Context()); err != nil {
		out.Version = "unknown"
	}
	p, err := s.GetPipeline(cmd.Context(), p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE)
	if err != nil {
		return err
	}
	out.Cookie = p.Cookie
	info, err := f.info(cmd.Context(), s)
	if err != nil {
		return err
	}
	out.Tables = len(info.Tables)
	ask, err := ctl.Queries(info)
	if err != nil {
		return err
	}
	_, err = s.Ask(cmd.Context(), info, ask, false, func(e *p4v1.Entity) error {
		kind, _ := ctl.Line(info, e)
		out.Entities[kind]++
		return nil
	})
	if err != nil {
		return err
	}
	return show(cmd, out, func(w io.Writer) {
		fmt.Fprintf(w, "%s, device %d: P4Runtime %s, cookie 0x%x, %d tables\n", out.Address, out.DeviceID, out.Version, out.Cookie, out.Tables)
		for _, kind := range ctl.Sections() {
			if n := out.Entities[kind]; n > 0 {
				fmt.Fprintf(w, "  %d\t%s\n", n, kind)
			}
		}
	})
}
