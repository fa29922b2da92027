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

// quiet is the least time between two lines of one step, which differ only in their numbers, where lines
// cannot overwrite each other.
const quiet = 2 * time.Second

// progress shows what a long run is doing: on a terminal one line that is
// overwritten, else lines, fewer of them.
type progress struct {
	w        io.Writer
	terminal bool
	step     string
	at       clock.Time
	open     bool // a line stands on the terminal
}

// newProgress prints to the command's standard error.
func newProgress(cmd *cobra.Command) *progress {
	w := cmd.ErrOrStderr()
	return &progress{w: w, terminal: w == os.Stderr && term.IsTerminal(int(os.Stderr.Fd()))}
}

// show prints a line about a step, if one is due.
func (p *progress) show(now clock.Time, step, line string) {
	if p.terminal {
		// Without wrapping, which would leave lines behind on a narrow
		// terminal; cleared to the end of the line behind the text.
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
