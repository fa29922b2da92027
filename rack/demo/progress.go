package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Progress is what a run is doing.
type Progress struct {
	Phase    string // off, write or read-write; "" before and after
	Step     string // what is done in the phase: warm-up, measuring, ...
	OpsPerS  float64
	FirstTry float64
	Left     time.Duration // of the whole run, as planned
}

func (p Progress) String() string {
	head := p.Step
	if p.Phase != "" {
		head = titles[p.Phase] + ", " + p.Step
	}
	if p.OpsPerS == 0 {
		return head
	}
	return fmt.Sprintf("%-34s %10s op/s  first try %6.2f %%  %3.0f s left",
		head, thousands(p.OpsPerS), 100*p.FirstTry, p.Left.Round(time.Second).Seconds())
}

// quiet is how long lines that differ only in their numbers are held back
// where they cannot overwrite each other.
const quiet = 2 * time.Second

// Printer shows the progress: on a terminal one line that is overwritten, else
// lines, fewer of them.
type Printer struct {
	w        io.Writer
	terminal bool
	last     Progress
	at       clock.Time
	open     bool // a line stands on the terminal
}

// NewPrinter prints to w.
func NewPrinter(w io.Writer, terminal bool) *Printer { return &Printer{w: w, terminal: terminal} }

// Show prints p, when it is due.
func (r *Printer) Show(now clock.Time, p Progress) {
	if r.terminal {
		// Without wrapping, which would leave lines behind on a narrow
		// terminal; cleared to the end of the line behind the text.
		fmt.Fprintf(r.w, "\r\x1b[?7l%s\x1b[K\x1b[?7h", p)
		r.open = true
		return
	}
	if p.Phase == r.last.Phase && p.Step == r.last.Step && now.Sub(r.at) < quiet {
		return
	}
	r.last, r.at = p, now
	fmt.Fprintln(r.w, p)
}

// Done removes the line from the terminal.
func (r *Printer) Done() {
	if r.open {
		fmt.Fprint(r.w, "\r\x1b[K")
		r.open = false
	}
}
