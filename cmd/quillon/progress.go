package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/quillon/quillon/nf/clock"
)

// quiet is the least time between two lines about one step, where a line cannot overwrite the one before.
const quiet = 2 * time.Second

// progress shows what a long run is doing: on a terminal in one line that is overwritten, elsewhere in lines,
// but fewer of them.
type progress struct {
	w        io.Writer
	terminal bool
	step     string
	at       clock.Time
	open     bool // the terminal shows a line that done removes
}

// newProgress prints to the command's standard error.
func newProgress(cmd *cobra.Command) *progress {
	w := cmd.ErrOrStderr()
	return &progress{w: w, terminal: w == os.Stderr && term.IsTerminal(int(os.Stderr.Fd()))}
}

// show prints a line about a step. Where lines are not overwritten, it prints at most one line in quiet about
// the same step.
func (p *progress) show(now clock.Time, step, line string) {
	if p.terminal {
		// Wrapping is off, because wrapped lines would stay on a narrow terminal. The rest of the line behind
		// the text is cleared.
		fmt.Fprintf(p.w, "\r\x1b[?7l%s\x1b[K\x1b[?7h", line)
		p.open = true
		return
	}
	if step == p.step && now.Sub(p.at) < quiet {
		return
	}
	p.step, p.at = step, now
	fmt.Fprintln(p.w, line)
}

// done removes the line from the terminal.
func (p *progress) done() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
