package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
)

// encodeLine writes v as one line of JSON.
func encodeLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

func newCtlWatchCmd() *cobra.Command {
	var f oneDevice
	var count int
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch [digests|packets|idle|counters]...",
		Short: "Show what a device tells: digests, packets, idle entries; and counters as they grow",
		Long: `Shows what a device tells its controller, a line each: digests (the device is asked
for them, and each list is acknowledged), packets to the controller, entries that
were idle for their time; without arguments all three. Counters are read every
--every, and those that changed are shown.

A device tells its primary controller only: for all but counters, watch becomes it,
and one that runs stands back until watch ends. Watch ends with status 2 when another
controller becomes primary, or the connection is lost.`,
		Example: `  quillon ctl watch
  quillon ctl watch digests -n 10 --json
  quillon ctl watch counters --every 5s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, a := range args {
				if !slices.Contains([]string{"digests", "packets", "idle", "counters"}, a) {
					return fmt.Errorf("%q: want digests, packets, idle or counters", a)
				}
			}
			if err := some("every", every); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			if len(args) == 0 {
				args = []string{"digests", "packets", "idle"}
			}
			w := watcher{cmd: cmd, kinds: args, left: count}
			if slices.Contains(args, "counters") {
				if len(args) > 1 {
					return errors.New("counters are watched alone: they leave the primary controller alone, too")
				}
				return w.counters(ctx, &f, every)
			}
			return w.events(ctx, &f)
		},
	}
	f.add(cmd, true)
	cmd.Flags().IntVarP(&count, "count", "n", 0, "end after this many lines (default: never)")
	cmd.Flags().DurationVar(&every, "every", time.Second, "read counters this often")
	return cmd
}

// watcher prints events or counters, up to a number of lines.
type watcher struct {
	cmd   *cobra.Command
	kinds []string
	left  int // lines that may still be printed; 0: no limit
}

// print prints one line; done reports that it was the last one wanted.
func (w *watcher) print(v any, text string) (done bool, err error) {
	if err := showLine(w.cmd, v, text); err != nil {
		return true, err
	}
	if w.left > 0 {
		w.left--
		return w.left == 0, nil
	}
	return false, nil
}

func (w *watcher) wants(kind string) bool {
	return kind == "error" || slices.ContainsFunc(w.kinds, func(k string) bool { return strings.HasPrefix(k, kind) })
}

func (w *watcher) events(ctx context.Context, f *oneDevice) error {
	messages := make(chan *p4v1.StreamMessageResponse, 1024)
	lost, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	notify := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	s, err := f.open(ctx, false, func(o *ctl.Options) {
		o.Changed = func(ctl.Status) { notify(changed) }
		o.Event = func(m *p4v1.StreamMessageResponse) {
			select {
			case messages <- m:
			default:
				notify(lost)
			}
		}
	})
	if err != nil {
		return err
	}
	defer s.Close()
	losses := s.Status().Losses
	deposed := fmt.Errorf("%s: not primary any more: the device tells another controller now", s.Target)
	info, err := f.info(ctx, s)
	if err != nil {
		return err
	}
	if w.wants("digest") {
		err := s.Subscribe(ctx, info.Digests, &p4v1.DigestEntry_Config{MaxTimeoutNs: int64(100 * time.Millisecond), MaxListSize: 100, AckTimeoutNs: int64(time.Second)})
		if errors.Is(err, ctl.ErrNotPrimary) {
			return deposed
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(w.cmd.ErrOrStderr(), "quillon: %s: watching\n", s.Target)
	for {
		select {
		case m := <-messages:
			if d := m.GetDigest(); d != nil {
				if err := s.Acknowledge(d); err != nil {
					return err
				}
			}
			for _, e := range ctl.Events(info, m) {
				if !w.wants(e.Kind) {
					continue
				}
				if done, err := w.print(e, e.Text); done || err != nil {
					return err
				}
			}
		case <-changed:
			// Until the session is up again events are lost, and a restarted device has lost its
			// subscriptions.
			switch st := s.Status(); {
			case st.Losses != losses:
				return fmt.Errorf("%s: the connection was lost", s.Target)
			case st.State != ctl.Primary:
				return deposed
			}
		case <-lost:
			fmt.Fprintln(w.cmd.ErrOrStderr(), "quillon: the device tells more than can be printed: some is lost")
		case <-ctx.Done():
			return nil
		}
	}
}

// counts is one line about a counter that has changed.
type counts struct {
	Text    string  `json:"text"`
	Packets int64   `json:"packets"`
	Bytes   int64   `json:"bytes"`
	Rate    float64 `json:"packets_per_second"`
}

func (w *watcher) counters(ctx context.Context, f *oneDevice, every time.Duration) error {
	s, err := f.open(ctx, true, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	info, err := f.info(ctx, s)
	if err != nil {
		return err
	}
	all, err := ctl.Queries(info, "counters")
	if err != nil && len(info.DirectCounters) == 0 {
		return err
	}
	for _, d := range info.DirectCounters {
		more, err := ctl.Queries(info, d.Table.Name)
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	last := map[string]int64{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		_, err := s.Ask(ctx, info, all, false, func(e *p4v1.Entity) error {
			d := e.GetCounterEntry().GetData()
			if t := e.GetTableEntry(); t != nil {
				d = t.CounterData
			}
			if d == nil {
				return nil
			}
			k := p4info.Key(e)
			was, known := last[k]
			last[k] = d.PacketCount
			if known && was == d.PacketCount {
				return nil
			}
			c := counts{Text: ctl.Text(info, e), Packets: d.PacketCount, Bytes: d.ByteCount}
			if !first {
				c.Rate = float64(d.PacketCount-was) / every.Seconds()
				c.Text += fmt.Sprintf(" (%.0f packets/s)", c.Rate)
			}
			done, err := w.print(c, c.Text)
			if done && err == nil {
				err = errEnough
			}
			return err
		})
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
