package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quillon/quillon/internal/sim/figure"
	"github.com/quillon/quillon/nf/clock"
)

func newSimCmd() *cobra.Command {
	var par figure.Params
	var zipf float64
	var list bool
	var check simCheck
	out := "."
	cmd := &cobra.Command{
		Use:   "sim FIGURE...",
		Short: "Rerun published figures in the rack simulator",
		Long: `Reruns published figures in virtual time: the same network functions and the
same endpoints as live, on modelled links, switches and NICs. Prints every point
and every ratio beside the published one, and writes FIGURE.json, FIGURE.svg and
FIGURE.png. The same seed gives the same numbers.

The rack's constants come from figures 1.1, 1.2, 2.1, 2.2 and 2.3 alone. The
loads of SuperNIC and its prices were fitted to 5.2, 5.3, 5.8 and 5.12. All other
figures are predictions, but for what table, list and picture call input. A
point should be within 25 % and a ratio within 20 %, both within 15 % in figures
of SuperNIC's board. What is not was missed, unless an experiment shows the cause:
--cause switches it, and the points move into the tolerance. A ratio of two points
that are both outside theirs is not held.

With other parameters than the published ones a figure is run and drawn by itself,
and compared only with curves of your own (--against). FIGURE may be all.

Exit status: 0 done; 1 with --check when something was missed; 2 wrong use. A miss
stays one in table and picture, whether it is known (--known) or not.`,
		Example: `  quillon sim --list
  quillon sim 2.12 2.13 --out figures
  quillon sim 1.1 2.1 2.9 2.10 --quick --check
  quillon sim 2.12 --zipf 1.5 --steered-keys 8
  quillon sim 5.2 5.3 --trace rack.csv`,
		ValidArgsFunction: completion(func() (names []string) {
			for _, f := range figure.All() {
				names = append(names, f.ID+"\t"+f.Caption())
			}
			return append(names, "all\tall of them")
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				if len(args) > 0 {
					return fmt.Errorf("--list takes no figures; %s", cmd.UseLine())
				}
				return listFigures(cmd)
			}
			if len(args) == 0 {
				return fmt.Errorf("FIGURE is missing: %s; --list has them", cmd.UseLine())
			}
			figures := figure.All()
			if len(args) != 1 || args[0] != "all" {
				var err error
				if figures, err = figure.Find(args...); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("zipf") {
				par.Zipf = &zipf
			}
			refuseZeros(cmd.Flags(), &par)
			if err := par.Check(); err != nil {
				return fmt.Errorf("--%w", err)
			}
			if err := check.load(); err != nil {
				return err
			}
			if err := os.MkdirAll(out, 0o777); err != nil {
				return err
			}
			if err := canWriteTo(out); err != nil {
				return fmt.Errorf("--out %w", err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer signal.Stop(signals)
			go func() {
				if s, ok := <-signals; ok {
					cancel(failed{fmt.Errorf("stopped by signal: %s", s)})
				}
			}()
			defer close(signals)
			return runSim(ctx, cmd, figures, par, out, check)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&list, "list", false, "list the figures")
	f.StringVar(&out, "out", out, "write FIGURE.json, .svg and .png to `DIR`")
	check.add(f)
	addParams(f, &par, &zipf)
	return cmd
}

// refuseZeros makes -1 of a number that was given as 0, since Params take 0 for the published number. Check then refuses it.
func refuseZeros(f *pflag.FlagSet, par *figure.Params) {
	for name, n := range map[string]*int{"keys": &par.Keys, "object-size": &par.ObjectSize, "steered-keys": &par.SteeredKeys, "hosts": &par.Hosts} {
		if f.Changed(name) && *n == 0 {
			*n = -1
		}
	}
}

// addParams adds the flags that say how figures are rerun.
func addParams(f *pflag.FlagSet, par *figure.Params, zipf *float64) {
	f.Uint64Var(&par.Seed, "seed", 1, "of everything random")
	f.BoolVar(&par.Quick, "quick", false, "fewer points, shorter runs (too short for the tails of 2.14 and 2.15)")
	f.IntVar(&par.Keys, "keys", 0, "keys in the store")
	f.Float64Var(zipf, "zipf", 0, "skew of the keys; 0 = all alike")
	f.IntVar(&par.ObjectSize, "object-size", 0, "bytes of an entry: a power of two")
	f.IntVar(&par.SteeredKeys, "steered-keys", 0, "steer only the `N` most popular keys")
	f.StringVar(&par.Search, "search", "", "how Clover's clients find tails: library, as published (default), or headers, as quillon's own do")
	f.IntVar(&par.Hosts, "hosts", 0, "client hosts")
	f.IntSliceVar(&par.Threads, "threads", nil, "client threads on each host, such as 1,8,56")
	f.StringVar(&par.NIC, "nic", "", "NIC parameters that differ from ConnectX-5's: a JSON `FILE`")
	f.StringVar(&par.Against, "against", "", "compare with curves of your own in the place of the published ones: a CSV `FILE` of x, y, series")
	f.StringVar(&par.Cause, "cause", "", "switch a `CAUSE` of deviations that the figure's reasons name")
	f.StringVar(&par.Trace, "trace", "", "load of 5.2 and 5.3: a capture or CSV `FILE`, as quillon plan reads it")
}

func (c *simCheck) add(f *pflag.FlagSet) {
	f.BoolVar(&c.on, "check", false, "exit status 1 when something was missed")
	f.StringVar(&c.known, "known", "", "with --check: what a CSV `FILE` of --record has does not count, if it is missed as far as there (5 %)")
	f.StringVar(&c.record, "record", "", "write what was missed to a CSV `FILE`: figure, panel, series, x, ours over published")
}

// figureInfo is a line of the list of figures.
type figureInfo struct {
	Figure      string `json:"figure"`
	Caption     string `json:"caption"`
	Document    string `json:"document"`
	Calibration bool   `json:"calibration,omitempty"`
	// Fitted are the curves to which constants were fitted, if they are not all curves of the figure.
	Fitted []string `json:"fitted,omitempty"`
	// Whole: all of the figure is input to the models, whether constants come from it or not.
	Whole bool `json:"no_prediction,omitempty"`
	// Own: the figure is an experiment of quillon; nothing was published, so nothing is compared.
	Own bool `json:"experiment,omitempty"`
	// Inputs are points that are input to the models, not predicted.
	Inputs []string `json:"inputs,omitempty"`
}

func listFigures(cmd *cobra.Command) error {
	var infos []figureInfo
	for _, f := range figure.All() {
		infos = append(infos, figureInfo{f.ID, f.Caption(), f.Document(), f.Calibration, f.Fitted, f.NoPrediction(), f.Own(), f.Inputs()})
	}
	return show(cmd, infos, func(w io.Writer) {
		for _, i := range infos {
			use := "prediction"
			switch {
			case i.Own:
				use = "experiment"
			case i.Whole:
				use = "input"
			case len(i.Inputs) > 0:
				use = "in part input"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", i.Figure, use, i.Caption)
			for _, in := range i.Inputs {
				fmt.Fprintf(w, "\t\t  input: %s\n", in)
			}
		}
	})
}

func runSim(ctx context.Context, cmd *cobra.Command, figures []*figure.Figure, par figure.Params, out string, check simCheck) error {
	clk := clock.NewWall()
	line := newProgress(cmd)
	defer line.done()
	var results []*figure.Result
	for _, f := range figures {
		start := clk.Now()
		r, err := f.Run(ctx, par, func(p figure.Progress) {
			now := clk.Now()
			line.show(now, p.Figure, progressBar(p, now.Sub(start)))
		})
		if err != nil {
			return err
		}
		line.done()
		results = append(results, r)
		prefix := filepath.Join(out, f.ID)
		if err := saveJSON(prefix+".json", r); err != nil {
			return err
		}
		if err := r.Save(prefix); err != nil {
			return err
		}
		asJSON, _ := cmd.Flags().GetBool("json")
		if asJSON {
			continue
		}
		if err := r.WriteTable(cmd.OutOrStdout()); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "figure: %s.png, .svg; numbers: %s.json; %s\n\n", prefix, prefix, clk.Now().Sub(start).Round(time.Second/10))
	}
	if err := show(cmd, results, func(w io.Writer) {
		if len(results) > 1 {
			for _, r := range results {
				fmt.Fprintln(w, r.Summary())
			}
		}
	}); err != nil {
		return err
	}
	return check.run(cmd, results)
}

// simCheck says what is done about misses: points and ratios too far from the published ones.
type simCheck struct {
	on            bool
	known, record string
	list          []figure.Miss // the misses in the file known
}

// load reads the file of --known. It refuses a file for --record that cannot be written before figures run, which can take minutes.
func (c *simCheck) load() error {
	if c.record != "" {
		i, err := os.Stat(c.record)
		switch {
		case err != nil:
			_, err = os.Stat(filepath.Dir(c.record))
		case i.IsDir():
			err = fmt.Errorf("%s is a directory: name a file", c.record)
		}
		if err != nil {
			return fmt.Errorf("--record %w", err)
		}
	}
	if c.known == "" {
		return nil
	}
	if !c.on {
		return errors.New("--known is for --check")
	}
	f, err := os.Open(c.known)
	if err != nil {
		return fmt.Errorf("--known %w", err)
	}
	defer f.Close()
	if c.list, err = figure.ReadMisses(f); err != nil {
		return fmt.Errorf("--known %s: %w", c.known, err)
	}
	return nil
}

// run records the misses for --record, and with --check returns an error if there are any, or any that are
// not known.
func (c *simCheck) run(cmd *cobra.Command, results []*figure.Result) error {
	var missed []figure.Miss
	for _, r := range results {
		missed = append(missed, r.Misses()...)
	}
	if c.record != "" {
		f, err := os.Create(c.record)
		if err != nil {
			return fmt.Errorf("--record %w", err)
		}
		if err := errors.Join(figure.WriteMisses(f, missed), f.Close()); err != nil {
			return fmt.Errorf("--record %w", err)
		}
	}
	if !c.on || len(missed) == 0 {
		return nil
	}
	if c.known == "" {
		return failed{fmt.Errorf("%d points and ratios were missed", len(missed))}
	}
	unknown, gone := figure.Unknown(results, c.list)
	fmt.Fprintf(cmd.ErrOrStderr(), "%d points and ratios were missed; %d of them are not as known; %d known ones are not missed any more\n", len(missed), len(unknown), len(gone))
	if len(unknown) > 0 {
		m := unknown[0]
		return failed{fmt.Errorf("%d were missed that are not known, or not so far: the first is %s, %s %s %s, %v times the published value", len(unknown), m.Figure, m.Panel, m.Series, m.X, m.Ratio)}
	}
	return nil
}

// barWidth is the length of the progress bar, in characters.
const barWidth = 24

// progressBar returns a bar, the share that is done, the time that is left at the speed so far, and the part
// that runs.
func progressBar(p figure.Progress, spent time.Duration) string {
	full := int(p.Done*barWidth + 0.5)
	bar := strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full)
	left := "?"
	if p.Done > 0.02 {
		left = fmt.Sprintf("%.0f s", (spent.Seconds()/p.Done)*(1-p.Done))
	}
	return fmt.Sprintf("%-9s [%s] %3.0f %%  %s left  %s", p.Figure, bar, 100*p.Done, left, p.Step)
}

func saveJSON(name string, r *figure.Result) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := r.WriteJSON(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
