package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

func newP4Cmd() *cobra.Command {
	return group("p4", "Run P4 programs", "  quillon p4 stf ipv4_router.json routes.stf", newSTFCmd(), newP4TraceCmd(), newP4OffloadCmd())
}

// stfResult is the result of one STF file.
type stfResult struct {
	Test string `json:"test"`
	stf.Result
}

func newSTFCmd() *cobra.Command {
	var trace bool
	cmd := &cobra.Command{
		Use:   "stf PROG.json TEST.stf...",
		Short: "Run tests of the Simple Test Framework on a compiled P4 program",
		Long: `Runs files of the P4 community's Simple Test Framework (add, setdefault, packet,
expect, ...) on a program that p4c compiled for bmv2 (v1model or PSA), each
on a new switch: in memory and in virtual time, without bmv2.

Exit status: 0 all came out as expected, 1 something did not, 2 a file cannot be
read or a statement cannot be done.`,
		Example: `  quillon p4 stf ipv4_router.json routes.stf
  quillon p4 stf --trace ipv4_router.json routes.stf`,
		Args: atLeast("PROG.json", "TEST.stf"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prog, err := loadP4(args[0])
			if err != nil {
				return err
			}
			var c p4.Config
			if trace {
				c.Trace = func(e p4.Event) { fmt.Fprintln(cmd.ErrOrStderr(), prog.Describe(e)) }
			}
			results, failures := make([]stfResult, 0, len(args)-1), 0
			for _, name := range args[1:] {
				r, err := runSTF(prog, name, c)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				results = append(results, stfResult{name, r})
				failures += len(r.Failures)
			}
			if err := show(cmd, results, func(w io.Writer) { stfText(w, results) }); err != nil {
				return err
			}
			if failures > 0 {
				return failed{fmt.Errorf("%d failures", failures)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&trace, "trace", false, "print every step of every packet on the standard error output")
	return cmd
}

func loadP4(name string) (*p4.Program, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	prog, err := p4.Load(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return prog, nil
}

func runSTF(prog *p4.Program, name string, c p4.Config) (stf.Result, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return stf.Result{}, err
	}
	statements, err := stf.Parse(bytes.NewReader(b))
	if err != nil {
		return stf.Result{}, err
	}
	return stf.Run(prog, statements, c)
}

func stfText(w io.Writer, results []stfResult) {
	for _, r := range results {
		verdict := "ok"
		if len(r.Failures) > 0 {
			verdict = "FAIL"
		}
		fmt.Fprintf(w, "%s %s: %d packets, %d checks\n", verdict, r.Test, r.Packets, r.Checks)
		for _, f := range r.Failures {
			fmt.Fprintf(w, "  %v\n", f)
		}
	}
}
