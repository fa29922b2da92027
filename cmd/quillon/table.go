package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/table"
)

func newTableCmd() *cobra.Command {
	cmd := group("table", "Show and change the tables of a running instance",
		"  quillon table list\n  quillon table show clover-steer.tails\n  quillon table insert clover-steer.steered_keys key=10..20 priority=5 leave",
		newTableListCmd(), newTableShowCmd(),
		newTableChangeCmd("insert", "Add an entry to a table", "  quillon table insert swordbox.tracked va=0x7f0000000000..0x7f0000ffffff track"),
		newTableChangeCmd("modify", "Change the action of an entry", "  quillon table modify clover-steer.steered_keys key=10..20 priority=5 steer"),
		newTableChangeCmd("delete", "Take an entry out of a table", "  quillon table delete clover-steer.steered_keys key=10..20 priority=5"),
		newTableChangeCmd("default", "Change a table's default action; without ACTION, back to what the app begins with",
			"  quillon table default clover-steer.mode set_mode writes=1 reads=0 ahead=1\n  quillon table default swordbox.guard drop"))
	cmd.Long = `Shows and changes the tables of a running instance: those that P4Runtime has
(quillon run --p4runtime), under the same names. Some stand for arguments of
their app, so that changing them is what quillon set does; the others show what
the app knows. quillon nf describe says what tables an app has. Those of a P4 program
are shown, and changed by its controllers alone (quillon ctl).

Of a field's name the last part is enough where only one has it: key for
meta.key. Values are numbers (decimal, or with 0x), addresses, and by the field's
kind of match 10.0.0.0/8, 10.0.0.0&&&255.0.0.0, 10..20, or * for everything. A text
is taken as it is, and shown in quotes where it must be; left out it is empty. The
priority of an entry is 1 unless priority= says otherwise; the highest counts.`
	return cmd
}

// tableName splits APP.TABLE.
func tableName(s string) (app, name string, err error) {
	app, name, ok := strings.Cut(s, ".")
	if !ok || app == "" || name == "" {
		return "", "", fmt.Errorf("%q is not of the form APP.TABLE; quillon table list shows what there is", s)
	}
	return app, name, nil
}

func newTableListCmd() *cobra.Command {
	return asking(&cobra.Command{
		Use: "list [APP]", Short: "List the tables", Args: optional(0, "APP"),
		Example: "  quillon table list\n  quillon table list swordbox --json",
	}, func(c *admin.Client, args []string) ([]admin.Table, error) {
		all, err := c.Tables()
		if err != nil || len(args) == 0 {
			return list(all), err
		}
		some := slices.DeleteFunc(slices.Clone(all), func(t admin.Table) bool { return t.App != args[0] })
		if len(some) == 0 {
			return nil, fmt.Errorf("no app named %q has tables; quillon show graph lists the apps", args[0])
		}
		return some, nil
	}, func(w io.Writer, v []admin.Table) {
		for _, t := range v {
			fmt.Fprintf(w, "%s.%s\t%s\t%s\n", t.App, t.Name, mayText(t.May), t.Help)
		}
	})
}

func newTableChangeCmd(what, short, example string) *cobra.Command {
	use := what + " APP.TABLE KEY=VALUE... [priority=N] ACTION [PARAM=VALUE...]"
	switch what {
	case "delete":
		use = "delete APP.TABLE KEY=VALUE... [priority=N]"
	case "default":
		use = "default APP.TABLE [ACTION [PARAM=VALUE...]]"
	}
	return asking(&cobra.Command{Use: use, Short: short, Example: example, Args: atLeast("APP.TABLE")},
		func(c *admin.Client, args []string) (struct{}, error) {
			app, name, err := tableName(args[0])
			if err != nil {
				return struct{}{}, err
			}
			e, err := table.TextOf(args[1:])
			if err != nil {
				return struct{}{}, err
			}
			return struct{}{}, c.Change(app, name, what, e)
		}, func(io.Writer, struct{}) {})
}

// rows is a table, as table show prints it.
type rows struct {
	Table   string       `json:"table"`
	Default *table.Text  `json:"default,omitempty"`
	Entries []table.Text `json:"entries"`
	// More: there are more entries than --max.
	More bool `json:"more,omitempty"`
	decl *table.Decl
}

func newTableShowCmd() *cobra.Command {
	var most int
	cmd := asking(&cobra.Command{
		Use: "show APP.TABLE [KEY=VALUE...]", Short: "Show a table's default action and its entries",
		Long: `Shows a table's default action and its entries, or of these the ones with the
given values in their keys.`,
		Example: "  quillon table show swordbox.words --max 100\n  quillon table show clover-steer.tails key=5",
		Args:    atLeast("APP.TABLE"),
	}, func(c *admin.Client, args []string) (rows, error) {
		r := rows{Table: args[0], Entries: []table.Text{}}
		app, name, err := tableName(args[0])
		if err != nil {
			return r, err
		}
		want, err := table.TextOf(args[1:])
		if err != nil {
			return r, err
		}
		all, err := c.Tables()
		if err != nil {
			return r, err
		}
		at := slices.IndexFunc(all, func(t admin.Table) bool { return t.App == app && t.Name == name })
		if at < 0 {
			return r, fmt.Errorf("there is no table %s; quillon table list shows what there is", args[0])
		}
		r.decl = &all[at].Decl
		// The instance's own notation of the values is what entries are compared with.
		e, err := all[at].Parse(table.Text{Match: want.Match})
		if err != nil {
			return r, err
		}
		want.Match = all[at].Text(&e).Match
		err = c.Table(app, name, func(t table.Text) error {
			switch {
			case t.Default:
				r.Default = &t
				return nil
			case want.Action != "" && t.Action != want.Action || want.Priority != 0 && t.Priority != want.Priority:
				return nil
			}
			for k, v := range want.Match {
				if t.Match[k] != v {
					return nil
				}
			}
			if most > 0 && len(r.Entries) == most {
				r.More = true
				return errEnough
			}
			r.Entries = append(r.Entries, t)
			return nil
		})
		if errors.Is(err, errEnough) {
			err = nil
		}
		return r, err
	}, func(w io.Writer, r rows) {
		if r.Default != nil {
			fmt.Fprintf(w, "default: %s\n", callText(r.decl, *r.Default))
		}
		if r.Default == nil && len(r.Entries) == 0 {
			fmt.Fprintln(w, "no entries")
		}
		for _, e := range r.Entries {
			key := pairs(r.decl.Keys, e.Match)
			if e.Priority != 0 {
				key = append(key, fmt.Sprintf("priority=%d", e.Priority))
			}
			fmt.Fprintf(w, "%s\t%s", strings.Join(key, " "), callText(r.decl, e))
			if e.Counts != nil {
				fmt.Fprintf(w, "\t%d packets\t%d bytes", e.Counts.Packets, e.Counts.Bytes)
			}
			fmt.Fprintln(w)
		}
		if r.More {
			fmt.Fprintln(w, "…")
		}
	})
	cmd.Flags().IntVar(&most, "max", 0, "show no more than so many entries (default all)")
	return cmd
}

// pairs returns NAME=VALUE for each of fields that has a value.
func pairs(fields []table.Field, values map[string]string) (out []string) {
	for _, f := range fields {
		if v, ok := values[f.Name]; ok {
			if f.Form == table.Words && strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' || r == '\'' }) {
				v = strconv.Quote(v)
			}
			out = append(out, f.Name+"="+v)
		}
	}
	return out
}

// callText returns an action in the form in which users type it.
func callText(d *table.Decl, t table.Text) string {
	out := []string{t.Action}
	if n := d.Action(t.Action); n >= 0 {
		out = append(out, pairs(d.Actions[n].Params, t.Params)...)
	}
	return strings.Join(out, " ")
}
