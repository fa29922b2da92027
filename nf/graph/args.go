package graph

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/table"
)

// Args are an app's arguments, as written in a Spec: strings by name. In YAML a value may be a list of texts, which has a line for
// each of them here, or a list of entries of the table that the argument stands for:
//
//	servers: [10.0.0.1, 10.0.0.2]
//	rules:
//	  - {action: allow, in: a, dst: 10.0.0.5, dport: 80-90}
//
// Spec.Validate writes entries in the argument's own form.
type Args map[string]string

// entriesOf begins an argument that is a list of entries: a line of JSON for each of them.
const entriesOf = "\x1e"

// UnmarshalYAML reads arguments.
func (a *Args) UnmarshalYAML(read func(any) error) error {
	var all map[string]argument
	if err := read(&all); err != nil {
		return err
	}
	*a = make(Args, len(all))
	for name, v := range all {
		(*a)[name] = string(v)
	}
	return nil
}

type argument string

// UnmarshalYAML takes a text, a list of texts, or a list of entries.
func (v *argument) UnmarshalYAML(read func(any) error) error {
	wrong := read((*string)(v))
	if wrong == nil {
		return nil
	}
	var entries []map[string]string
	if read(&entries) == nil && len(entries) > 0 {
		lines := make([]string, len(entries))
		for i, e := range entries {
			b, err := json.Marshal(e)
			if err != nil {
				return err
			}
			lines[i] = string(b)
		}
		*v = argument(entriesOf + strings.Join(lines, "\n"))
		return nil
	}
	var texts []string
	if read(&texts) != nil {
		return wrong
	}
	if len(texts) == 0 {
		texts = []string{"none"}
	}
	if i := slices.IndexFunc(texts, func(s string) bool { return strings.Contains(s, "\n") }); i >= 0 {
		return fmt.Errorf("item %d of a list has several lines", i+1)
	}
	*v = argument(strings.Join(texts, "\n"))
	return nil
}

// WriteEntries returns args with each list of entries written in the argument's own form; nil: there is no such list. An error
// comes with the name of the argument, and the number of the item, from 0.
func (k *Kind) WriteEntries(args Args) (_ Args, name string, item int, _ error) {
	lists := map[string][]string{}
	for n, v := range args {
		if lines, ok := strings.CutPrefix(v, entriesOf); ok {
			lists[n] = strings.Split(lines, "\n")
		}
	}
	if len(lists) == 0 {
		return nil, "", 0, nil
	}
	args = maps.Clone(args)
	for n := range lists {
		delete(args, n)
	}
	for _, n := range slices.Sorted(maps.Keys(lists)) {
		if item, err := k.writeList(args, n, lists[n]); err != nil {
			return nil, n, item, err
		}
	}
	return args, "", 0, nil
}

// writeList adds argument name to args, from entries of the tables that the argument stands for. If entries need priorities and have
// none, earlier entries get higher ones.
func (k *Kind) writeList(args Args, name string, lines []string) (item int, _ error) {
	var tables []*table.Decl
	for i := range k.Tables {
		if s := k.Tables[i].Setting; s != nil && s.Arg == name {
			tables = append(tables, &k.Tables[i])
		}
	}
	if len(tables) == 0 {
		return 0, fmt.Errorf("%s= is no table: want a text, or a list of texts", name)
	}
	rows := make([][]table.Entry, len(tables))
	for i, line := range lines {
		var fields map[string]string
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return i, err
		}
		var first error
		found := slices.IndexFunc(tables, func(d *table.Decl) bool {
			e, err := entryOf(d, fields, int32(len(lines)-i)*10)
			if err != nil {
				if first == nil {
					first = err
				}
				return false
			}
			t := slices.Index(tables, d)
			rows[t] = append(rows[t], e)
			return true
		})
		if found < 0 {
			return i, first
		}
	}
	for t, d := range tables {
		if len(rows[t]) == 0 {
			continue
		}
		more, err := d.Setting.Set(maps.Clone(args), table.Rows{Default: d.Setting.Of(maps.Clone(args)).Default, Entries: rows[t]})
		if err != nil {
			return 0, err
		}
		maps.Copy(args, more)
	}
	return 0, nil
}

// entryOf is an entry that is written as a mapping: the fields of its key, action, parameters, priority. An action may be left out where there is only one.
func entryOf(d *table.Decl, fields map[string]string, priority int32) (table.Entry, error) {
	t := table.Text{Match: map[string]string{}, Params: map[string]string{}, Action: d.Actions[0].Name}
	if len(d.Actions) > 1 {
		t.Action = fields["action"]
		if t.Action == "" {
			return table.Entry{}, fmt.Errorf("table %s: action: is missing", d.Name)
		}
	}
	if d.Prioritized() {
		t.Priority = priority
	}
	for name, v := range fields {
		switch {
		case name == "action":
			t.Action = v
		case name == "priority":
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 {
				return table.Entry{}, fmt.Errorf("table %s: priority: %s: want a number above 0", d.Name, v)
			}
			t.Priority = int32(n)
		case d.HasKey(name):
			t.Match[name] = v
		case slices.ContainsFunc(d.Actions, func(a table.Action) bool {
			return slices.ContainsFunc(a.Params, func(p table.Field) bool { return p.Name == name })
		}):
			t.Params[name] = v
		default:
			return table.Entry{}, fmt.Errorf("table %s has no field %s; it has %s", d.Name, name, fieldsOf(d))
		}
	}
	return d.Parse(t)
}

// fieldsOf names what may be in an entry.
func fieldsOf(d *table.Decl) string {
	var all []string
	for _, k := range d.Keys {
		all = append(all, k.Name[strings.LastIndexByte(k.Name, '.')+1:])
	}
	for _, a := range d.Actions {
		for _, p := range a.Params {
			if !slices.Contains(all, p.Name) {
				all = append(all, p.Name)
			}
		}
	}
	if d.Prioritized() {
		all = append(all, "priority")
	}
	return strings.Join(all, ", ") + " and action"
}
