package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/controlplane/ctl/store/file"
	"github.com/quillon/quillon/nf/clock"
)

func newCtlRunCmd() *cobra.Command {
	var k keeper
	cmd := &cobra.Command{
		Use:   "run INTENT.yaml | --store URL",
		Short: "Keep devices at an intent",
		Long: `Keeps devices at an intent until it is stopped: whenever this controller becomes
primary for one (so after a restart of either side), when the file changed (SIGHUP
reads it again), every --every, and after a failure, it compares and applies. What
happens is printed, a line each; with --json, a JSON value each.

How it stands is in a state file, which quillon ctl status shows, by default after
the intent's name in quillon/ctl in $XDG_STATE_HOME (else ~/.local/state). The file
belongs to one controller at a time.

With --store the intent is in etcd, where quillon ctl apply --store puts it, and the
state, too, for controllers on several machines: one leads, the others stand by. A new
revision is applied as soon as it is stored. When the leader is stopped another leads
at once; when it dies or hangs, 1.0 to 1.5 s later. Its election id is above those that
are made from the time, and below the next leader's, so that devices refuse what a
former leader writes. When etcd is away devices keep what they have, and nothing is
written until it is back.`,
		Example: `  quillon ctl run switches.yaml
  quillon ctl run switches.yaml --every 10s --state /var/lib/quillon/ctl.json
  quillon ctl run --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/net1 \
    --store-ca ca.pem --store-cert ctl.pem --store-key ctl.key --store-login login`,
		Args: k.store.intent,
		RunE: func(cmd *cobra.Command, args []string) error { return k.keep(cmd, strings.Join(args, ""), nil) },
	}
	k.add(cmd)
	k.store.add(cmd)
	return cmd
}

// keeper holds the flags of commands that keep devices at an intent.
type keeper struct {
	oneIntent
	opt   ctl.ControllerOptions
	state string
	store storeFlags
	logs  logFlags
	log   *slog.Logger
}

func (k *keeper) add(cmd *cobra.Command) {
	k.oneIntent.add(cmd, true)
	addLimits(cmd, &k.opt.Limits)
	k.logs.add(cmd)
	cmd.Flags().DurationVar(&k.opt.Every, "every", time.Minute, "compare a device this often")
	cmd.Flags().IntVar(&k.opt.Workers, "workers", 16, "devices that are compared at once")
	cmd.Flags().StringVar(&k.state, "state", "", "the state `file` (default: by the intent's name in quillon/ctl in $XDG_STATE_HOME)")
}

// statePath returns the default state file of an intent.
func statePath(intent string) (string, error) {
	dir, err := ctl.RecordDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, strings.TrimSuffix(filepath.Base(intent), filepath.Ext(intent))+".json"), nil
}

// saveWithin is the longest time until a new status is saved.
const saveWithin = 100 * time.Millisecond

// keep runs a controller until SIGINT or SIGTERM. with, if not nil, is called with each intent before it is
// used, to read other files.
func (k *keeper) keep(cmd *cobra.Command, file string, with func(*ctl.Intent) error) error {
	if err := some("every", k.opt.Every); err != nil {
		return err
	}
	var err error
	if k.log, err = k.logs.logger(cmd.ErrOrStderr(), cmp.Or(k.store.url, file)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	s, err := k.open(ctx, file, hup)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.Close()
	l := leader{k: k, cmd: cmd, with: with, revisions: s.Watch(ctx), now: clock.NewWall()}
	for {
		t, err := s.Lead(ctx)
		if ctx.Err() != nil {
			if err == nil {
				t.End()
			}
			return nil
		}
		if err == nil {
			err = l.lead(ctx, t)
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// open opens the store: etcd with --store, else files of this machine. again delivers orders to read the
// intent again.
func (k *keeper) open(ctx context.Context, intent string, again <-chan os.Signal) (store.Store, error) {
	if k.store.url == "" {
		state := k.state
		if state == "" {
			var err error
			if state, err = statePath(intent); err != nil {
				return nil, err
			}
		}
		return &file.Store{Intent: intent, State: state, Again: again, Clock: clock.NewWall()}, nil
	}
	if intent != "" || k.state != "" || k.election != "" {
		return nil, errors.New("with --store the intent, the state and the election id are the store's: quillon ctl apply INTENT.yaml --store stores an intent")
	}
	host, _ := os.Hostname()
	return k.store.open(ctx, &k.ctlFlags, fmt.Sprintf("%s, process %d", host, os.Getpid()), func(line string) {
		k.log.Warn(line)
	})
}

// leader keeps devices at an intent while it leads.
type leader struct {
	k         *keeper
	cmd       *cobra.Command
	with      func(*ctl.Intent) error
	revisions <-chan store.Revision
	now       clock.Clock

	latest  store.Revision // the latest usable revision; Number 0: there is none
	problem string         // why a newer revision cannot be used

	// These are set anew in each term.
	opt     ctl.ControllerOptions
	c       *ctl.Controller // nil: there is no usable intent yet
	running sync.WaitGroup
}

// lead keeps devices at the intent while the term lasts.
func (l *leader) lead(ctx context.Context, t store.Term) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		if l.c != nil {
			l.c.Close()
		}
		l.running.Wait()
		l.c = nil
		t.End()
	}()
	l.opt = l.k.opt
	if l.opt.Session, err = l.k.options(false); err != nil {
		return err
	}
	t.Join(&l.opt.Session)
	// One goroutine prints the news, in the order in which they arrived.
	news := newNews()
	l.opt.Changed = news.add
	save := func() error {
		r := ctl.Record{At: l.now.Now(), Election: l.opt.Session.Election, Revision: l.latest.Number, Problem: l.problem}
		if l.c != nil {
			r.Intent, r.Devices = l.latest.Intent.File, l.c.Status()
		}
		return t.Save(r)
	}
	select { // a revision that arrived while another controller led replaces the one that is known
	case r := <-l.revisions:
		if err := l.take(ctx, r); err != nil {
			return err
		}
	default:
	}
	if problem := l.problem; l.c == nil && l.latest.Number > 0 {
		if err := l.take(ctx, l.latest); err != nil {
			return err
		}
		l.problem = problem
	}
	if err := save(); err != nil {
		return err
	}
	last := map[string]string{}
	var saving <-chan time.Time // fires when the status is to be saved; nil: it is saved
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
				if err := showLine(l.cmd, s, line); err != nil {
					return err
				}
			}
		case <-saving:
			saving = nil
			if err := save(); err != nil {
				return err
			}
		case r := <-l.revisions:
			if err := l.take(ctx, r); err != nil {
				return err
			}
			if err := save(); err != nil {
				return err
			}
		case <-t.Over():
			l.k.log.Warn("the lease in etcd is over: nothing is written until it is this controller's again")
			return nil
		case <-ctx.Done():
			return save()
		}
	}
}

// take takes a revision. If a revision cannot be used, the intent stays as it was. That is an error only if
// there is no intent yet and the store is not etcd, because then no other revision comes by itself.
func (l *leader) take(ctx context.Context, r store.Revision) error {
	err := r.Err
	if err == nil {
		err = l.k.choose(r.Intent)
	}
	if err == nil && l.with != nil {
		err = l.with(r.Intent)
	}
	if err == nil {
		if l.c != nil {
			err = l.c.Set(r.Intent)
		} else if c, e := ctl.NewController(&ctl.Dialer{Transport: l.k.Transport}, r.Intent, l.opt); e != nil {
			err = e
		} else {
			l.c = c
			l.running.Go(func() { c.Run(ctx) })
		}
	}
	switch {
	case err == nil:
		l.latest, l.problem = r, ""
		return nil
	case l.k.store.url != "":
		l.problem = fmt.Sprintf("revision %d: %v", r.Number, oneLine(err))
		l.k.log.Error("the intent stays what it was: "+l.problem, "revision", r.Number)
		return nil
	case l.c == nil:
		return err
	}
	l.k.log.Error("the intent stays what it was: " + oneLine(err).Error())
	return nil
}

// news are statuses that wait to be printed, only the latest one of each device.
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

// deviceLine describes a device's status in one line.
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

// showLine prints one value of a stream as a line: text, or JSON with --json.
func showLine(cmd *cobra.Command, v any, text string) error {
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		return encodeLine(cmd.OutOrStdout(), v)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.ReplaceAll(text, "\t", "  "))
	return err
}

func newCtlStatusCmd() *cobra.Command {
	var f oneDevice
	var st storeFlags
	var state string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how controllers and their devices stand",
		Long: `Shows what running controllers (quillon ctl run), and those that ran, last knew of
their devices: from the state files in quillon/ctl in $XDG_STATE_HOME (else
~/.local/state), from --state, or from --store, where it shows who leads, too. With
--grpc-addr or --device-id it asks a device itself.

Exit status: 0 all devices are at their intents, 1 some are not.`,
		Example: "  quillon ctl status\n  quillon ctl status --state /var/lib/quillon/ctl.json --json\n  quillon ctl status --device-id 1\n  quillon ctl status --store etcd://127.0.0.1:2379/net1",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("grpc-addr") || cmd.Flags().Changed("device-id") {
				return f.ask(cmd)
			}
			if st.url != "" {
				return st.status(cmd, &f.ctlFlags)
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
				return failed{fmt.Errorf("not known to be at their intents: %s", count(other, "device"))}
			}
			return nil
		},
	}
	f.add(cmd, false)
	st.add(cmd)
	cmd.Flags().StringVar(&state, "state", "", "the state `file` of one controller")
	return cmd
}

func statusText(w io.Writer, all []ctl.Record) {
	for _, r := range all {
		running := fmt.Sprintf("runs (process %d)", r.PID)
		if !r.Running {
			running = "does not run; this is what it last knew, at " + dateTime(r.At)
		}
		fmt.Fprintf(w, "%s: %s, election id %s\n", r.Intent, running, r.Election)
		for _, d := range r.Devices {
			fmt.Fprintf(w, "  %s\n", deviceLine(d))
		}
	}
}
