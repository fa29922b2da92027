// Command quillon runs network functions on packets in flight.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
)

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1 // a check failed: captures differ, a write was lost, a board that stopped had other boards' state
	exitUsage  = 2 // wrong use, or the environment lacks something
)

// failed is the error of a check that ran and failed.
type failed struct{ error }

func (f failed) ExitCode() int { return exitFailed }
func (f failed) Unwrap() error { return f.error }

func main() {
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line. An error is printed as one line; its exit
// status is its ExitCode(), or 2 when it has none.
func execute(args []string, stdout, stderr io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return exitDone
	}
	if msg := oneLine(err).Error(); msg != "" {
		fmt.Fprintln(stderr, "quillon: "+msg)
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitUsage
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "quillon",
		Short: "Network functions inline on a Linux bridge",
		Long: `Quillon runs network functions on packets where they already pass: inline
between two interfaces over AF_XDP, on a capture file, or in memory.

Exit status: 0 done, 1 a check failed, 2 wrong use or environment.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		Args:              known,
	}
	which := root.Flags().Bool("version", false, "say which build this is")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *which {
			return showVersion(cmd)
		}
		return cmd.Help()
	}
	root.PersistentFlags().Bool("json", false, "print JSON")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := cmd.ValidateArgs(cmd.Flags().Args()); unknown != nil && cmd.HasSubCommands() {
			return unknown // the flag may be one of the command that was meant
		}
		return fmt.Errorf("%w; see %s --help", flagError(err), cmd.CommandPath())
	})
	root.AddCommand(
		newApplyCmd(),
		newBenchCmd(),
		newBridgeCmd(),
		newCheckCmd(),
		newClioCmd(),
		newCtlCmd(),
		newDemoCmd(),
		newRackCmd(),
		newDetachCmd(),
		newDoctorCmd(),
		newListCmd(),
		newLockCmd(),
		newManCmd(),
		newP4Cmd(),
		newPcapCmd(),
		newPlanCmd(),
		newPortCmd(),
		newReplayCmd(),
		newReportCmd(),
		newRunCmd(),
		newSetCmd(),
		newShowCmd(),
		newSimCmd(),
		newSNICCmd(),
		newStopCmd(),
		newTableCmd(),
		newTapCmd(),
		newTopCmd(),
		newUICmd(),
		newMetricsCmd(),
		newConntrackCmd(),
		newTraceCmd(),
		newNFCmd(),
	)
	root.SetHelpCommand(newHelpCmd())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = known, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// flagError returns an error about a flag's value that says what is wanted, instead of which function refused
// the value.
func flagError(err error) error {
	cause := errors.Unwrap(err)
	if _, ok := err.(interface{ GetValue() string }); !ok || cause == nil {
		return err
	}
	want := ""
	var number *strconv.NumError
	switch {
	case strings.HasPrefix(cause.Error(), "time: "):
		want = "a time with its unit, such as 500ms or 5m"
	case !errors.As(err, &number):
		return err
	case errors.Is(err, strconv.ErrRange):
		want = "a smaller number"
	case number.Func == "ParseBool":
		want = "true or false"
	case number.Func == "ParseFloat":
		want = "a number"
	case number.Func == "ParseUint":
		want = "a whole number from 0"
	default:
		want = "a whole number"
	}
	return fmt.Errorf("%swant %s", strings.TrimSuffix(err.Error(), cause.Error()), want)
}

// newHelpCmd is cobra's help command, but refuses unknown names.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Show the help of a command",
		Example: "  quillon help bridge insert",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = known(about, rest)
			}
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// show prints v as JSON with --json, else what text writes. Columns are separated by tabs.
func show(cmd *cobra.Command, v any, text func(w io.Writer)) error {
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// exactly wants one argument for each name; the error names the first one that is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return optional(len(names), names...)
}

// optional wants arguments for the first least names, and takes arguments for the others.
func optional(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return fmt.Errorf("unexpected argument %q: %s", args[len(names)], cmd.UseLine())
		}
		return atLeast(names[:least]...)(cmd, args)
	}
}

// atLeast wants one argument for each name, and takes more.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine())
		}
		return nil
	}
}

// known refuses arguments of a command that only has subcommands.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	hint := ""
	if near := graph.Near(args[0], names); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return fmt.Errorf("unknown command %q%s; see %s --help", args[0], hint, cmd.CommandPath())
}

// completion offers names to the shell. A name may be followed by a tab and its help.
func completion(names func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		offered := slices.DeleteFunc(names(), func(n string) bool { return !strings.HasPrefix(n, begun) })
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// oneLine turns joined errors into one line.
func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return fmt.Errorf("%s", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}

// group is a command that only has subcommands.
func group(use, short, example string, sub ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use,
		Short:   short,
		Example: example,
		Args:    known,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sub...)
	return cmd
}
