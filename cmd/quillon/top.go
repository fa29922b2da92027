package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/quillon/quillon/internal/rates"
	"github.com/quillon/quillon/nf/clock"
)

func newTopCmd() *cobra.Command {
	var t target
	var once bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running instance: rates, reasons, ns/packet",
		Long: `Shows the rates of ports and apps, what the apps cost, how long frames stay, and
which counters and reasons grow, anew every interval, until q is pressed. Without
a terminal, or with --once, one interval is measured and printed.

A frame's stay is from the moment at which a worker looks at its ports until it has
given to ports what it took there. What the kernel does before and after is not in it,
nor for how long an app holds a frame (a shaper, say).`,
		Example: "  quillon top\n  quillon top --once --every 5s --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 10*time.Millisecond {
				return fmt.Errorf("--every %v: want at least 10ms", every)
			}
			c, err := t.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			asJSON, _ := cmd.Flags().GetBool("json")
			screen, isFile := cmd.OutOrStdout().(*os.File)
			live := !once && !asJSON && isFile && term.IsTerminal(int(screen.Fd()))
			if live && term.IsTerminal(int(os.Stdin.Fd())) {
				back, err := quitKey(os.Stdin, stop)
				if err != nil {
					return err
				}
				defer back()
			}
			clk := clock.NewWall()
			before, err := rates.Look(c, clk)
			if err != nil {
				return err
			}
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
				after, err := rates.Look(c, clk)
				if err != nil {
					return err
				}
				v := rates.Between(before, after)
				if !live {
					return show(cmd, v, func(w io.Writer) { topText(w, v) })
				}
				drawTop(screen, v)
				before = after
			}
		},
	}
	t.add(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "measure one interval, print it and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "the `interval`")
	return cmd
}

func topText(w io.Writer, v rates.View) {
	fmt.Fprintf(w, "%s, over %.1f s\n\n", v.Name, v.Seconds)
	fmt.Fprintln(w, "port\trx/s\trx bit/s\ttx/s\ttx bit/s\tdropped/s\tbypassed/s\tmissed/s")
	for _, p := range v.Ports {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Port, short(p.RxPps), short(p.RxBps), short(p.TxPps), short(p.TxBps), short(p.DropPps), short(p.Bypassed), short(p.Missed))
	}
	fmt.Fprintln(w, "\napp\tpackets/s\tpackets/call\tns/packet")
	for _, a := range v.Apps {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\n", a.App, short(a.Pps), a.Batch, a.NsPerPacket)
	}
	if v.Stay.Max > 0 {
		fmt.Fprintf(w, "\nframes stay %v (half of them), %v (99 %%), %v (all)\n", v.Stay.P50, v.Stay.P99, v.Stay.Max)
	}
	for _, b := range v.Boards {
		fmt.Fprintf(w, "\n%s, worker %d: %d packets inside, %sB stored, %.0f %% busy\n", b.App, b.Worker, b.Board.Inside, short(float64(b.Board.Stored)), 100*b.Board.Busy)
		regionsText(w, b.Regions)
		fmt.Fprintln(w)
		tenantsText(w, b.Tenants)
	}
	fmt.Fprintln(w, "\ncounter or reason\t/s\ttotal")
	for _, g := range v.Growing {
		fmt.Fprintf(w, "%s.%s\t%s\t%d\n", g.App, g.Name, short(g.PerSecond), g.Total)
	}
}

// quitKey calls quit when q is pressed. Until back is called, the terminal passes on each key at once and
// does not show it. Keys for signals work as usual.
func quitKey(tty *os.File, quit func()) (back func(), err error) {
	fd := int(tty.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &now); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	// The goroutine ends with the process. Nothing else reads the terminal.
	go func() {
		key := make([]byte, 1)
		for {
			if n, err := tty.Read(key); n == 0 || err != nil {
				return
			}
			if key[0] == 'q' || key[0] == 'Q' {
				quit()
				return
			}
		}
	}()
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, nil
}

// drawTop redraws the terminal. It cuts the text to the lines and columns of the terminal.
func drawTop(screen *os.File, v rates.View) {
	cols, rows, err := term.GetSize(int(screen.Fd()))
	if err != nil || cols < 1 || rows < 3 {
		cols, rows = 80, 24
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	topText(w, v)
	_ = w.Flush()
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	if len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	// A line that wraps would push the others down.
	for i, l := range lines {
		lines[i] = columns(l, cols)
	}
	// Home, each line cleared to its end, then the rest of the screen.
	fmt.Fprintf(screen, "\x1b[H%s\x1b[K\n\x1b[J", strings.Join(lines, "\x1b[K\n"))
}

// columns returns the beginning of a line that fits into n columns of a terminal: most characters take one
// column, those of East Asian scripts two, and marks on others none.
func columns(s string, n int) string {
	for i, r := range s {
		w := 1
		switch k := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
			w = 0
		case k == width.EastAsianWide || k == width.EastAsianFullwidth:
			w = 2
		}
		if n -= w; n < 0 {
			return s[:i]
		}
	}
	return s
}

// short formats a rate with three digits and a unit prefix.
func short(x float64) string {
	for _, u := range []struct {
		f float64
		s string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if x >= u.f {
			return fmt.Sprintf("%.3g%s", x/u.f, u.s)
		}
	}
	return fmt.Sprintf("%.3g", x)
}
