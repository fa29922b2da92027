package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
)

// diffJSON is the difference between a device and its intent, as --json prints it.
type diffJSON struct {
	Device  string       `json:"device"`
	Load    string       `json:"load,omitempty"` // why the program is loaded first; empty: it stays
	Changes []changeJSON `json:"changes"`
	Batches []int        `json:"batches,omitempty"` // the number of changes of each batch
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

// applyTo brings devices to an intent, and prints what was done.
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
	var st storeFlags
	var dry bool
	var onto, old int64
	cmd := &cobra.Command{
		Use:   "apply INTENT.yaml",
		Short: "Bring devices to an intent, once",
		Long: `Compares devices with an intent and makes them what it says: loads the program
where the device has none or another, then inserts, modifies and deletes. A second
apply finds nothing to do. Updates that fail are told with the device's reason, and
do not stop the others.

With --store it talks to no device: it stores the intent, and the files that it names,
in etcd as a new revision, which the controllers that run there apply at once. --onto N
refuses that if somebody else stored a revision after N; --revision N, in the place of
INTENT.yaml, goes back to an older one.

Exit status: 0 done, 1 updates failed or N is not the newest revision, 2 the intent is
wrong, or a device does not answer or has another primary.`,
		Example: `  quillon ctl apply switches.yaml --dry-run
  quillon ctl apply switches.yaml --device s1
  quillon ctl apply switches.yaml --store etcd://127.0.0.1:2379/net1 --onto 6
  quillon ctl apply --store etcd://127.0.0.1:2379/net1 --revision 5`,
		Args: func(cmd *cobra.Command, args []string) error {
			if old > 0 && st.url != "" {
				return exactly()(cmd, args)
			}
			return exactly("INTENT.yaml")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("onto") && onto < 0 {
				return fmt.Errorf("--onto %d: want the number of a revision, or 0", onto)
			}
			if cmd.Flags().Changed("revision") && old < 1 {
				return fmt.Errorf("--revision %d: want the number of a revision, from 1", old)
			}
			if st.url != "" {
				if dry || len(f.only) > 0 {
					return errors.New("--store stores all of an intent: leave out --dry-run and --device")
				}
				return st.put(cmd, &f.ctlFlags, strings.Join(args, ""), onto, old)
			}
			if onto >= 0 || old > 0 {
				return errors.New("--onto and --revision are of --store")
			}
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
	st.add(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the plan only")
	cmd.Flags().Int64Var(&onto, "onto", -1, "store it if this `revision` is the newest (0: there is none)")
	cmd.Flags().Int64Var(&old, "revision", 0, "store this older `revision` again")
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
