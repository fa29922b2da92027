// Command rivals measures quillon beside other people's programs, on the same frames and in turns: the P4 engine beside
// bmv2's simple_switch, two boards of a virtual private cloud beside Open vSwitch. README.md says how.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/bench"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line. An error is printed as one line, and its exit status is 2.
func execute(args []string, stdout, stderr io.Writer) int {
	err := run(args, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	}
	fmt.Fprintln(stderr, "rivals: "+strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	return 2
}

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("p4 or vpc is missing: rivals p4 -h, rivals vpc -h")
	}
	f := flag.NewFlagSet("rivals "+args[0], flag.ContinueOnError)
	f.SetOutput(io.Discard)
	asJSON := f.Bool("json", false, "print JSON")
	var measure func() (any, func(w io.Writer), error)
	switch args[0] {
	case "p4":
		measure = p4Command(f, stderr)
	case "vpc":
		measure = vpcCommand(f, stderr)
	default:
		return fmt.Errorf("unknown command %q: want p4 or vpc", args[0])
	}
	if err := f.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stderr)
			f.Usage()
		}
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	v, text, err := measure()
	if err != nil {
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	text(w)
	return w.Flush()
}

func p4Command(f *flag.FlagSet, progress io.Writer) func() (any, func(w io.Writer), error) {
	rival := f.String("against", "simple_switch", "the switch to compare with, or a path to one; its command line NAME_CLI is used, too")
	rounds := f.Int("rounds", 11, "rounds to take the median of")
	routes := f.Int("routes", 10_000, "routes of ipv4_router")
	return func() (any, func(w io.Writer), error) {
		if *rounds < 1 || *routes < 1 || *routes > bench.MaxRoutes {
			return nil, nil, fmt.Errorf("-rounds %d -routes %d: want 1 or more, and 1 to %d", *rounds, *routes, bench.MaxRoutes)
		}
		all, err := duels(progress, *rival, *rounds, *routes)
		return all, func(w io.Writer) { table(w, all) }, err
	}
}

func vpcCommand(f *flag.FlagSet, progress io.Writer) func() (any, func(w io.Writer), error) {
	rounds := f.Int("rounds", 5, "rounds to take the median of")
	picture := f.String("plot", "", "draw the figures to `PREFIX`.png and .svg")
	ports := f.String("ovs-ports", "afxdp", "Open vSwitch's ports: afxdp or system")
	return func() (any, func(w io.Writer), error) {
		if *rounds < 1 {
			return nil, nil, fmt.Errorf("-rounds %d: want 1 or more", *rounds)
		}
		if *ports != "afxdp" && *ports != "system" {
			return nil, nil, fmt.Errorf("-ovs-ports %s: want afxdp or system", *ports)
		}
		if os.Geteuid() != 0 {
			return nil, nil, errors.New("namespaces and AF_XDP are needed: run it as root")
		}
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		r, err := measureVPC(ctx, progress, *rounds, *ports)
		if err == nil && *picture != "" {
			if err = r.save(*picture); err == nil {
				fmt.Fprintf(progress, "%s.png and %s.svg are drawn\n", *picture, *picture)
			}
		}
		if err != nil {
			return nil, nil, err
		}
		return r, r.text, nil
	}
}
