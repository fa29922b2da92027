package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quillon/quillon/internal/sim/plan"
	"github.com/quillon/quillon/internal/sim/traffic"
	"github.com/quillon/quillon/nf/clock"
)

// generator has the flags of --generate facebook.
type generator struct {
	traffic.Facebook
	name        string
	duration    time.Duration
	calm, burst float64 // Gb/s
}

const planLong = `Says how many sNICs, regions and gigabits a second a rack needs when its
endpoints' network tasks are consolidated on sNICs (SuperNIC), what that saves,
and what latency it costs. The load is yours, or generated.

A trace is a capture (pcap, pcapng), whose endpoints are source addresses, or
CSV: a line is

  time,endpoint,bytes[,rack]

with time in seconds, ascending, and the bytes that the endpoint sent since its
line before. A header, empty lines and lines that begin with # are skipped. The
file is read three times, whatever its size, in little memory.

What is needed is the peak of the sum of a rack's endpoints, or a percentile, by
intervals, with headroom on top. (With a percentile, endpoints that burst less
often than it sees count as idle; their sum does not.) The shorter the interval,
the higher the peaks; without --interval it is 10 ms (how fast regions follow
the load), or the trace's own step where that is longer. An endpoint spikes in
an interval in which its load is above its mean by --spike standard deviations.

Prices default to the source's (without a currency); costs are those of its
model, with the peaks and the sharing of this load. Running is counted as the
source does: only regions that are accessed. The busiest part of the load (--play)
is played by the live board in virtual time, whose regions follow it by monitors
(5 ms) and reconfigurations (5 ms): how many that takes, and by how much it slows
the load. Endpoints wait while a board is full (PFC), and a board behind endpoints
that wait sees no more load than it can do: it may have fewer regions running than
the load would fill. The rate of a region (--region) is that of your chains; the
source has none.

Exit status: 0 done, 2 wrong use.`

func newPlanCmd() *cobra.Command {
	var file, by, picture string
	o := plan.Defaults()
	headroom := 100 * o.Headroom
	g := generator{burst: 10, calm: -1, duration: time.Minute}
	g.Racks, g.Endpoints, g.Share, g.Length, g.Seed = 1, 40, 0.0106, 50*time.Millisecond, 1
	cmd := &cobra.Command{
		Use:   "plan --trace FILE",
		Short: "What a rack needs whose network tasks move to shared sNICs",
		Long:  planLong,
		Example: `  quillon plan --trace rack.csv
  quillon plan --trace uplink.pcap --by mac --interval 1ms --percentile 99.9
  quillon plan --generate facebook --endpoints 40 --correlation 0.2 --plot rack
  quillon plan --trace rack.csv --price-nic 900 --price-region-hour 0.12 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: a trace is given by --trace", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Headroom = headroom / 100
			if err := o.Check(); err != nil {
				return err
			}
			if cmd.Flags().Changed("interval") && o.Interval == 0 {
				return errors.New("the interval must be more than 0")
			}
			if picture != "" {
				if err := canWrite(picture + ".png"); err != nil {
					return err
				}
			}
			show := newReading(cmd)
			defer show.line.done()
			src, title, err := source(cmd, file, by, &g, &o, show)
			if err != nil {
				return err
			}
			p, err := plan.Make(cmd.Context(), src, o, show.begin)
			if err != nil {
				return err
			}
			show.line.done()
			if picture != "" {
				if err := p.Save(picture, title); err != nil {
					return err
				}
			}
			return printPlan(cmd, p, &o, title, picture)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&file, "trace", "", "the load: a capture or CSV `FILE`")
	f.StringVar(&by, "by", "ip", "endpoints of a capture: source addresses, ip or mac")
	f.StringVar(&g.name, "generate", "", "generate the load: facebook (key/value servers with bursts)")
	f.DurationVar(&o.Interval, "interval", 0, "measure by intervals of this length (default 10ms or the trace's step)")
	f.Float64Var(&o.Percentile, "percentile", o.Percentile, "of the intervals' loads, taken for the peak")
	f.Float64Var(&headroom, "headroom", headroom, "percent of the peak that are provisioned in addition")
	f.Float64Var(&o.Deviations, "spike", o.Deviations, "standard deviations above an endpoint's mean that make a spike")
	f.Float64Var(&o.Region, "region", o.Region, "Gb/s that a region's chain handles")
	f.IntVar(&o.Chains, "chains", o.Chains, "chains that each packet passes, in regions of their own")
	f.Float64Var(&o.Board, "snic", o.Board, "Gb/s that an sNIC handles")
	f.IntVar(&o.Ports, "ports", o.Ports, "endpoints that are joined to an sNIC of a middle layer")
	addPrices(f, &o)
	f.DurationVar(&o.Play, "play", o.Play, "so much of the load is played on boards, its busiest part, all racks together; 0: none")
	f.StringVar(&picture, "plot", "", "draw the load to `PREFIX`.png and .svg")
	g.add(f)
	return cmd
}

func addPrices(f *pflag.FlagSet, o *plan.Options) {
	f.Float64Var(&o.Prices.Port, "price-port", o.Prices.Port, "of a port of the switch")
	f.Float64Var(&o.Prices.NIC, "price-nic", o.Prices.NIC, "of a SmartNIC")
	f.Float64Var(&o.Prices.SmallNIC, "price-small-nic", o.Prices.SmallNIC, "of a NIC with physical and link layers alone")
	f.Float64Var(&o.Prices.Cable, "price-cable", o.Prices.Cable, "of a cable to the switch")
	f.Float64Var(&o.Prices.ShortCable, "price-short-cable", o.Prices.ShortCable, "of a cable to an sNIC")
	f.Float64Var(&o.Prices.Tasks, "task-share", o.Prices.Tasks, "of a SmartNIC's price, in its network tasks")
	f.Float64Var(&o.Running.RegionHour, "price-region-hour", o.Running.RegionHour, "of a region that is accessed")
	f.Float64Var(&o.Running.Watts, "region-watts", o.Running.Watts, "that a region draws while it is accessed")
	f.Float64Var(&o.Running.KWh, "price-kwh", o.Running.KWh, "of energy")
}

func (g *generator) add(f *pflag.FlagSet) {
	f.IntVar(&g.Racks, "racks", g.Racks, "generate: racks")
	f.IntVar(&g.Endpoints, "endpoints", g.Endpoints, "generate: endpoints of a rack")
	f.DurationVar(&g.duration, "duration", g.duration, "generate: so long a load")
	f.Float64Var(&g.calm, "calm", g.calm, "generate: Gb/s of an endpoint outside bursts, as published")
	f.Lookup("calm").DefValue = "0.1" // rounded: the default is the published value
	f.Float64Var(&g.burst, "burst", g.burst, "generate: Gb/s of a burst")
	f.Float64Var(&g.Share, "burst-share", g.Share, "generate: part of the time that an endpoint bursts")
	f.DurationVar(&g.Length, "burst-length", g.Length, "generate: mean of a burst")
	f.Float64Var(&g.Correlation, "correlation", g.Correlation, "generate: part of the bursts that a rack's endpoints have together; negative: by turns")
	f.Uint64Var(&g.Seed, "seed", g.Seed, "generate: of everything random")
}

// source returns the load that the flags name, and its title.
func source(cmd *cobra.Command, file, by string, g *generator, o *plan.Options, show *reading) (traffic.Source, string, error) {
	switch {
	case file != "" && g.name != "":
		return nil, "", errors.New("--trace and --generate exclude each other")
	case file == "" && g.name == "":
		return nil, "", fmt.Errorf("--trace FILE or --generate facebook is missing; see %s --help", cmd.CommandPath())
	case g.name != "":
		return g.source(cmd, o)
	}
	for _, name := range []string{"racks", "endpoints", "duration", "calm", "burst", "burst-share", "burst-length", "correlation", "seed"} {
		if cmd.Flags().Changed(name) {
			return nil, "", fmt.Errorf("--%s belongs to --generate", name)
		}
	}
	who, ok := map[string]traffic.By{"ip": traffic.ByIP, "mac": traffic.ByMAC}[by]
	if !ok {
		return nil, "", fmt.Errorf("--by must be ip or mac, not %q", by)
	}
	src, err := traffic.File(file, who, show.progress)
	return src, file, err
}

func (g *generator) source(cmd *cobra.Command, o *plan.Options) (traffic.Source, string, error) {
	if g.name != "facebook" {
		return nil, "", fmt.Errorf("no generator %q; there is facebook", g.name)
	}
	if cmd.Flags().Changed("by") {
		return nil, "", errors.New("--by belongs to --trace")
	}
	if cmd.Flags().Changed("calm") && g.calm < 0 {
		return nil, "", errors.New("--calm must not be negative")
	}
	o.Interval = cmp.Or(o.Interval, plan.React)
	g.Interval = o.Interval
	g.Calm, g.Line = g.calm*1e9/8, g.burst*1e9/8
	if g.Racks < 1 {
		return nil, "", errors.New("racks must be from 1 to 65536")
	}
	if g.duration < g.Interval {
		return nil, "", fmt.Errorf("--duration %v is shorter than the interval, %v", g.duration, g.Interval)
	}
	g.Intervals = int(g.duration / g.Interval)
	src, err := g.Source()
	return src, fmt.Sprintf("facebook, generated: %d × %d endpoints, seed %d", g.Racks, g.Endpoints, g.Seed), err
}

// reading shows how far a file is read, if reading takes long.
type reading struct {
	line  *progress
	clk   *clock.Wall
	start clock.Time
	pass  string
}

func newReading(cmd *cobra.Command) *reading {
	clk := clock.NewWall()
	return &reading{line: newProgress(cmd), clk: clk, start: clk.Now()}
}

func (r *reading) begin(pass string) { r.pass = pass }

func (r *reading) progress(read, size int64) {
	if now := r.clk.Now(); now.Sub(r.start) > time.Second {
		r.line.show(now, r.pass, fmt.Sprintf("%s: %3.0f %% of %.0f MB", r.pass, 100*float64(read)/float64(size), float64(size)/1e6))
	}
}

// listed is the most racks that are printed one by one.
const listed = 20

func printPlan(cmd *cobra.Command, p *plan.Plan, o *plan.Options, title, picture string) error {
	return show(cmd, p, func(w io.Writer) {
		step := ""
		if p.Step {
			step = ", the trace's own step"
		}
		fmt.Fprintf(w, "load\t%s\n", title)
		fmt.Fprintf(w, "\t%s in %s, %s in intervals of %s%s\n", count(p.Endpoints, "endpoint"), count(len(p.Racks), "rack"),
			seconds(p.Duration), seconds(p.Interval), step)
		if p.Late > 0 {
			fmt.Fprintf(w, "\t%d events came late, and count in the interval in which they came\n", p.Late)
		}
		peak := "peak"
		if p.Percentile < 100 {
			peak = fmt.Sprintf("%v-th percentile", p.Percentile)
		}
		fmt.Fprintf(w, "mean\t%.3g Gb/s\n", p.Mean)
		fmt.Fprintf(w, "%s\t%.3g Gb/s, each endpoint for itself (sum)\n", peak, p.Peaks.Endpoints)
		fmt.Fprintf(w, "\t%.3g Gb/s, each rack (sum): %.1f %% of that\n", p.Peaks.Racks, 100*p.Peaks.Racks/p.Peaks.Endpoints)
		if len(p.Racks) > 1 {
			fmt.Fprintf(w, "\t%.3g Gb/s, all together: %.1f %%\n", p.Peaks.All, 100*p.Peaks.All/p.Peaks.Endpoints)
		}
		for _, c := range p.Coarser {
			fmt.Fprintf(w, "\tby %s: %.3g Gb/s for themselves, %.3g each rack\n", seconds(c.Interval), c.Endpoints, c.Racks)
		}
		two, more := 0.0, 0.0
		for n, s := range p.Together {
			switch {
			case n >= 4:
				more += s
			case n == 1 || n == 2:
				two += s
			}
		}
		fmt.Fprintf(w, "spikes\t%.1f %% of the time none, %.1f %% one or two endpoints together, %.1f %% four or more\n\n",
			100*p.Together[0], 100*two, 100*more)

		fmt.Fprintf(w, "needed, with %.0f %% headroom, %.3g Gb/s a region\n", 100*p.Headroom, o.Region)
		fmt.Fprintf(w, "rack\tendpoints\tGb/s\tregions\tsNICs, middle layer\tsNICs, switch-attached\n")
		row := func(name string, r *plan.Rack) {
			fmt.Fprintf(w, "%s\t%d\t%.3g\t%d\t%d with %s\t%d with %s\n", name, r.Endpoints, r.Gbps, r.Regions,
				r.Middle, count(r.MiddleRegions, "region"), r.Switch, count(r.SwitchRegions, "region"))
		}
		for i := range p.Racks[:min(len(p.Racks), listed)] {
			r := &p.Racks[i]
			name := r.Name
			name = cmp.Or(name, "-")
			row(name, r)
		}
		if n := len(p.Racks) - listed; n > 0 {
			fmt.Fprintf(w, "(%d more)\n", n)
		}
		if len(p.Racks) > 1 {
			row("all", &p.Need)
		}

		fmt.Fprintf(w, "\nto buy\teach endpoint\tall\tsaves\n")
		for _, c := range p.CapEx {
			fmt.Fprintf(w, "%s\t%.2f\t%.0f\t%.1f %%\n", c.Design, c.PerEndpoint, c.All, 100*c.Saves)
		}
		fmt.Fprintf(w, "\nto run\tregion-hours\tcost\tsaves\n")
		for _, c := range p.OpEx {
			fmt.Fprintf(w, "%s\t%.3g\t%.3g\t%.1f %%\n", c.Scheme, c.RegionHours, c.Cost, 100*c.Saves)
		}
		if v := p.Played; v != nil {
			fmt.Fprintf(w, "(boards played the busiest %s of %s: it took %.2g %% longer at most, and up to %d of %s at once)\n",
				seconds(v.Seconds), count(v.Racks, "rack"), 100*v.Slowdown, v.Busy, count(v.Regions, "region"))
		}
		if len(p.Latency) > 0 {
			fmt.Fprintf(w, "\nlatency of 1 KB, unloaded\n")
		}
		for _, l := range p.Latency {
			fmt.Fprintf(w, "%s\t%.2f µs\n", l.Path, l.Micros)
		}
		if picture != "" {
			fmt.Fprintf(w, "\nfigure\t%s.png, .svg\n", picture)
		}
	})
}

// count writes a number with its unit, in the plural if needed.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// seconds formats a time in seconds.
func seconds(s float64) string { return time.Duration(s * 1e9).Round(time.Microsecond).String() }
