package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
	"github.com/quillon/quillon/nf/table"
)

// kindDoc is a Kind's declaration as nf describe --json prints it.
type kindDoc struct {
	Name     string        `json:"name"`
	Summary  string        `json:"summary"`
	Doc      string        `json:"doc"`
	In       []string      `json:"in"`
	Out      []string      `json:"out"`
	Params   []graph.Param `json:"params"`
	Counters []counter.Def `json:"counters"`
	Reasons  []counter.Def `json:"reasons"`
	Tables   []table.Decl  `json:"tables"`
}

func docOf(k graph.Kind) kindDoc {
	return kindDoc{k.Name, k.Summary, k.Doc, list(k.In), list(k.Out), list(k.Params), list(k.Counters), list(k.Reasons), list(k.Tables)}
}

// list copies s; the result is never nil, so that JSON has [] instead of null.
func list[T any](s []T) []T { return append([]T{}, s...) }

func newNFCmd() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the network functions",
		Example: "  quillon nf list",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []kindDoc
			for _, k := range kinds() {
				all = append(all, docOf(k))
			}
			return show(cmd, all, func(w io.Writer) {
				for _, k := range all {
					fmt.Fprintf(w, "%s\t%s\n", k.Name, k.Summary)
				}
			})
		},
	}
	describe := &cobra.Command{
		Use:               "describe KIND",
		Short:             "Show a network function's parameters, tables, counters and reasons",
		Example:           "  quillon nf describe clover-steer",
		Args:              exactly("KIND"),
		ValidArgsFunction: completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := kindByName(args[0])
			if err != nil {
				return err
			}
			return show(cmd, docOf(k), func(w io.Writer) { describeKind(w, k) })
		},
	}
	return group("nf", "What network functions there are", "  quillon nf list\n  quillon nf describe clover-steer", list, describe)
}

func newPortCmd() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the kinds of ports",
		Example: "  quillon port list",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, open.Kinds(), func(w io.Writer) {
				for _, k := range open.Kinds() {
					fmt.Fprintf(w, "%s\t%s\n", k.Name, k.Summary)
				}
			})
		},
	}
	describe := &cobra.Command{
		Use:     "describe KIND",
		Short:   "Show the arguments of a kind of port",
		Example: "  quillon port describe afxdp",
		Args:    exactly("KIND"),
		ValidArgsFunction: completion(func() (names []string) {
			for _, k := range open.Kinds() {
				names = append(names, k.Name+"\t"+k.Summary)
			}
			return names
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			var known []string
			for _, k := range open.Kinds() {
				if k.Name == args[0] {
					return show(cmd, k, func(w io.Writer) {
						fmt.Fprintf(w, "%s - %s\n", k.Name, k.Summary)
						describeParams(w, k.Params)
					})
				}
				known = append(known, k.Name)
			}
			return fmt.Errorf("no kind of port is called %q; there are: %s", args[0], strings.Join(known, ", "))
		},
	}
	return group("port", "What ports a spec may have", "  quillon port list\n  quillon port describe afxdp", list, describe)
}

func describeParams(w io.Writer, params []graph.Param) {
	if len(params) == 0 {
		return
	}
	fmt.Fprint(w, "\nParameters:\n")
	for _, p := range params {
		help := p.Help
		if p.Default != "" {
			help += " (default " + p.Default + ")"
		}
		fmt.Fprintf(w, "  %s\t%s\n", p.Name, help)
	}
}

// gates returns the names of inputs or outputs, with runs of numbers shortened to "first to last".
func gates(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		end := i + 1
		for n, err := strconv.Atoi(names[i]); err == nil && end < len(names) && names[end] == strconv.Itoa(n+end-i); end++ {
		}
		if end-i > 2 {
			out = append(out, names[i]+" to "+names[end-1])
		} else {
			out = append(out, names[i:end]...)
		}
		i = end
	}
	return strings.Join(out, " ")
}

func describeKind(w io.Writer, k graph.Kind) {
	fmt.Fprintf(w, "%s - %s\n", k.Name, k.Summary)
	if k.Doc != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(k.Doc))
	}
	fmt.Fprintf(w, "\nInputs:  %s\nOutputs: %s\n", gates(k.In), gates(k.Out))
	describeParams(w, k.Params)
	describeTables(w, k.Tables)
	for _, s := range []struct {
		title string
		defs  []counter.Def
	}{{"Counters", k.Counters}, {"Reasons", k.Reasons}} {
		if len(s.defs) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", s.title)
		for _, d := range s.defs {
			fmt.Fprintf(w, "  %s\t%s\n", d.Name, d.Help)
		}
	}
}

// mayText says which changes clients may make to a table.
func mayText(o table.Ops) string {
	if o == 0 {
		return "read only"
	}
	return "to change: " + o.String()
}

// describeTables prints the tables of a kind, as P4Runtime and quillon table show them.
func describeTables(w io.Writer, tables []table.Decl) {
	if len(tables) == 0 {
		return
	}
	fmt.Fprint(w, "\nTables (quillon help table):\n")
	line := func(name string, f table.Field, match string) {
		size := fmt.Sprintf("%d bits", f.Bits)
		if f.Form == table.Words {
			size = "text"
		}
		fmt.Fprintf(w, "    %s\t%s%s: %s\n", name, match, size, f.Help)
	}
	for _, d := range tables {
		if four, ok := strings.CutSuffix(d.Name, "_ipv6"); ok {
			fmt.Fprintf(w, "  %s\tas %s, with addresses of IPv6\n", d.Name, four)
			continue
		}
		fmt.Fprintf(w, "  %s\t%s; %s\n", d.Name, d.Help, mayText(d.May))
		for _, k := range d.Keys {
			line(k.Name, k, k.Match.String()+", ")
		}
		for _, a := range d.Actions {
			fmt.Fprintf(w, "    -> %s\t%s\n", a.Name, a.Help)
			for _, p := range a.Params {
				line("   "+p.Name, p, "")
			}
		}
	}
}

func kindByName(name string) (graph.Kind, error) {
	var known []string
	for _, k := range kinds() {
		if k.Name == name {
			return k, nil
		}
		known = append(known, k.Name)
	}
	return graph.Kind{}, fmt.Errorf("no network function is called %q%s", name, graph.Suggest(name, known))
}

func completeKinds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var c []string
	for _, k := range kinds() {
		c = append(c, k.Name+"\t"+k.Summary)
	}
	return c, cobra.ShellCompDirectiveNoFileComp
}
