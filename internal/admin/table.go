package admin

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

// tableBatch is the largest number of entries in one answer.
const tableBatch = 256

// decl returns the declaration of the app's table called name.
func decl(inst *graph.Instance, app, name string) (*table.Decl, error) {
	var names []string
	for _, a := range inst.Tables() {
		for n := range a.Tables {
			if a.App == app && a.Tables[n].Name == name {
				return &a.Tables[n], nil
			}
			names = append(names, a.App+"."+a.Tables[n].Name)
		}
	}
	if names == nil {
		return nil, fmt.Errorf("no app has tables")
	}
	return nil, fmt.Errorf("there is no table %s.%s; quillon table list shows what there is", app, name)
}

// table answers with the entries of a table. It returns an error if the client is gone.
func (s *Server) table(out *json.Encoder, req request) error {
	inst, err := s.instance()
	if err != nil {
		return out.Encode(failure(err))
	}
	d, err := decl(inst, req.App, req.Table)
	if err != nil {
		return out.Encode(failure(err))
	}
	r := rows{Entries: []table.Text{}}
	c, err := inst.TableDefault(req.App, req.Table)
	if err != nil {
		return out.Encode(failure(err))
	}
	if c != nil {
		t := d.DefaultText(*c)
		r.Default = &t
	}
	var gone error
	err = inst.ReadTable(req.App, req.Table, func(e *table.Entry) error {
		if len(r.Entries) == tableBatch {
			r.More = true
			if gone = out.Encode(success(r)); gone != nil {
				return gone
			}
			r = rows{Entries: r.Entries[:0]}
		}
		r.Entries = append(r.Entries, d.Text(e))
		return nil
	})
	switch {
	case gone != nil:
		return gone
	case err != nil:
		return out.Encode(failure(err))
	}
	return out.Encode(success(r))
}

var changes = []string{"insert", "modify", "delete", "default"}

// writeTable makes the change of a table that the request describes.
func writeTable(inst *graph.Instance, req request) error {
	d, err := decl(inst, req.App, req.Table)
	if err != nil {
		return err
	}
	n := slices.Index(changes, req.Change)
	if n < 0 {
		return fmt.Errorf("%q is no change of a table: want one of %v", req.Change, changes)
	}
	c := graph.TableChange{App: req.App, Change: table.Change{Table: req.Table, Op: 1 << n}}
	t := req.Entry
	t.Default = c.Op == table.Default
	switch {
	case c.Op == table.Default && t.Action == "" && d.Default != nil:
		c.Reset = true
	case c.Op != table.Delete && t.Action == "":
		return fmt.Errorf("table %s: the action is missing", req.Table)
	case c.Op == table.Delete && t.Action != "":
		return fmt.Errorf("table %s: an entry is deleted by its key alone", req.Table)
	}
	if t.Priority == 0 && d.Prioritized() && !t.Default {
		t.Priority = 1
	}
	if c.Entry, err = d.Parse(t); err != nil {
		return err
	}
	return inst.WriteTables([]graph.TableChange{c}, false)[0]
}
