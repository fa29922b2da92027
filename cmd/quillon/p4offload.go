package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/xdp"
)

func newP4OffloadCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "offload PROG.json",
		Short: "Show which parts of a P4 program run in the kernel",
		Long: `Translates a program that p4c compiled for bmv2's v1model to one for XDP, and prints
for each parser state, condition, table, action and checksum that frames come to
whether the kernel runs it, or why frames that come there go to the engine: these the
engine runs from the start. Parts behind one at which all frames go to the engine are
not listed.

Programs for PSA run on the engine alone.

The kernel is not asked, and nothing is loaded. An app of kind p4 runs a program so with
exec=xdp, or exec=auto; "quillon report APP" says which share of its frames the kernel
finished, and for which reasons others went to the engine.`,
		Example: `  quillon p4 offload l2_bridge.json
  quillon p4 offload --json ipv4_router.json`,
		Args: exactly("PROG.json"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			_, tree, err := p4.LoadTree(b)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			r := xdp.Analyse(tree, p4.Config{})
			return show(cmd, r, func(w io.Writer) { offloadText(w, r) })
		},
	}
}

func offloadText(w io.Writer, r xdp.Report) {
	if !r.Kernel {
		fmt.Fprintf(w, "the engine runs all of it: %s\n", r.Why)
		return
	}
	n := 0
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "part\tname\truns in")
	for _, p := range r.Parts {
		where := "kernel"
		if len(p.Engine) > 0 {
			where = "engine: " + strings.Join(p.Engine, "; ")
			n++
		}
		if len(p.When) > 0 {
			where += ", engine when " + strings.Join(p.When, "; ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Kind, p.Name, where)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\n%d of %d parts run in the kernel, in %d instructions (%v). The engine also has frames of which this is true:\n", len(r.Parts)-n, len(r.Parts), r.Instructions, r.Stages)
	for _, why := range r.Any {
		fmt.Fprintf(w, "  %s\n", why)
	}
}
