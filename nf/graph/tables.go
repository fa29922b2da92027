package graph

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/nf/track"
)

// scanPlaces is how many places of a table are looked at between two breaths:
// some 10 µs.
const scanPlaces = 256

// tables reads and writes what apps have in tables. A table that is a setting changes by a Plan.
type tables struct {
	*current
	*plans
}

// AppTables are the tables that a running app has.
type AppTables struct {
	App, Kind string
	Control   string
	Tables    []table.Decl
}

// Tables are the tables of all apps, by the apps' names.
func (i *tables) Tables() []AppTables {
	i.mu.RLock()
	kinds := map[string]*Kind{}
	for name, a := range i.spec.Apps {
		kinds[name] = findKind(i.cfg.Kinds, a.Kind)
	}
	i.mu.RUnlock()
	var out []AppTables
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		if tables := i.declared(name, k); len(tables) > 0 {
			out = append(out, AppTables{name, k.Name, k.Control, tables})
		}
	}
	return out
}

// declared are the tables that an app of kind k has at the moment.
func (i *tables) declared(app string, k *Kind) []table.Decl {
	if k.Declared == nil {
		return k.Tables
	}
	var tables []table.Decl
	_ = i.visit(app, 0, func(_ *Ctx, a App) error { // one that has gone has none
		tables = k.Declared(a)
		return nil
	})
	return tables
}

// decl is the declaration of an app's table, its index, and the app's
// arguments.
func (i *tables) decl(app, name string) (*table.Decl, int, Args, error) {
	i.mu.RLock()
	a, ok := i.spec.Apps[app]
	args, k := maps.Clone(a.Args), findKind(i.cfg.Kinds, a.Kind)
	var apps []string
	if !ok {
		apps = slices.Sorted(maps.Keys(i.spec.Apps))
	}
	i.mu.RUnlock()
	if !ok {
		return nil, 0, nil, table.Errorf(table.Invalid, "no app is named %q%s", app, Suggest(app, apps))
	}
	tables := i.declared(app, k)
	var names []string
	for n := range tables {
		if tables[n].Name == name {
			return &tables[n], n, args, nil
		}
		names = append(names, tables[n].Name)
	}
	if names == nil {
		return nil, 0, nil, table.Errorf(table.Invalid, "app %s (%s) has no tables", app, a.Kind)
	}
	return nil, 0, nil, table.Errorf(table.Invalid, "app %s has no table %q%s", app, name, Suggest(name, names))
}

// TableDefault is the default action of an app's table; nil when it has none.
func (i *tables) TableDefault(app, name string) (*table.Call, error) {
	d, _, args, err := i.decl(app, name)
	switch {
	case err != nil || d.Default == nil:
		return nil, err
	case d.Setting == nil:
		return d.Default, nil // of an app that declares what it has now
	}
	c := d.Setting.Of(args).Default
	return &c, nil
}

// ReadTable calls f with each entry of an app's table. f must not keep the entry; an error
// of f ends ReadTable. The workers go on between slices of a large table: an entry
// that is added or deleted meanwhile may be missing or not.
func (i *tables) ReadTable(app, name string, f func(*table.Entry) error) error {
	d, t, args, err := i.decl(app, name)
	if err != nil {
		return err
	}
	if d.Setting != nil {
		all := d.Setting.Of(args).Entries
		for first := 0; first < len(all); first += trackPlaces {
			some := all[first:min(first+trackPlaces, len(all))]
			if err := i.counted(app, t, some); err != nil {
				return err
			}
			for n := range some {
				if err := f(&some[n]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	workers := 1
	if d.Sharded {
		workers = len(i.workers)
	}
	var found []table.Entry
	for w := range workers {
		for from := 0; from >= 0; {
			found = found[:0]
			err := i.visit(app, w, func(c *Ctx, a App) error {
				scan, k := c.node.hooks.Scan, c.node.kind
				tables := k.Tables
				if k.Declared != nil {
					tables = k.Declared(a)
				}
				if scan == nil || t >= len(tables) || tables[t].Name != name {
					return table.Errorf(table.Missing, "app %s has no table %s any more", app, name)
				}
				from = scan(c, t, from, scanPlaces, func(e *table.Entry) {
					// Entries of the slice before give their memory.
					n := len(found)
					if n == cap(found) {
						found = append(found, *e.Clone())
						return
					}
					found = found[:n+1]
					x := &found[n]
					x.Key, x.Params = append(x.Key[:0], e.Key...), append(x.Params[:0], e.Params...)
					x.Priority, x.Action, x.Counts = e.Priority, e.Action, nil
					if e.Counts != nil {
						counts := *e.Counts
						x.Counts = &counts
					}
				})
				return nil
			})
			if err != nil {
				return err
			}
			for n := range found {
				if err := f(&found[n]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// counted adds to entries of an app's table what they have done in all workers, if the app counts that.
func (i *tables) counted(app string, t int, some []table.Entry) error {
	for w := range i.workers {
		err := i.visit(app, w, func(c *Ctx, _ App) error {
			for n := 0; n < len(some) && c.node.hooks.Counted != nil; n++ {
				if some[n].Counts == nil {
					some[n].Counts = new(table.Counts)
				}
				c.node.hooks.Counted(t, &some[n], some[n].Counts)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// visit is Visit with the worker's Ctx.
func (i *tables) visit(app string, worker int, f func(*Ctx, App) error) error {
	err := errPanicked // stays if the app panics
	if e := i.Visit(app, worker, func(a App) { err = f(&i.workers[worker].ctx, a) }); e != nil {
		return table.Errorf(table.Missing, "%v", e)
	}
	return err
}

// errAborted is the error of changes that failed only because another one of the same request
// failed.
var errAborted = &table.Error{Code: table.Aborted, Msg: "not made: another change of the same request failed"}

// TableChange is a change of an app's table.
type TableChange struct {
	App string
	table.Change
}

// WriteTables makes changes in their order, and returns an error for each. Consecutive
// changes of settings are one change of the graph. With together all are made or none; then all
// tables must be settings.
func (i *tables) WriteTables(changes []TableChange, together bool) []error {
	return i.WriteTablesIf(changes, together, nil)
}

// WriteTablesIf is WriteTables that first calls allow with the Spec before and after each change of
// settings. If allow returns an error, the change is not made.
func (i *tables) WriteTablesIf(changes []TableChange, together bool, allow func(was, now *Spec) error) []error {
	errs := make([]error, len(changes))
	settings := make([]bool, len(changes))
	for n := range changes {
		c := &changes[n]
		d, _, _, err := i.decl(c.App, c.Table)
		if err == nil {
			settings[n] = d.Setting != nil
			err = ofApp(c.App, d.Check(&c.Change))
		}
		if err == nil && together && !settings[n] {
			err = table.Errorf(table.Unable, "app %s: table %s is no setting: it cannot be changed together with others", c.App, c.Table)
		}
		errs[n] = err
	}
	if together {
		if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
			return aborted(errs)
		}
		return i.configure(changes, true, allow)
	}
	for n := 0; n < len(changes); {
		if errs[n] != nil {
			n++
			continue
		}
		if !settings[n] {
			errs[n] = i.remove(&changes[n])
			n++
			continue
		}
		end := n + 1
		for end < len(changes) && errs[end] == nil && settings[end] {
			end++
		}
		copy(errs[n:end], i.configure(changes[n:end], false, allow))
		n = end
	}
	return errs
}

// ofApp puts an app's name into an error.
func ofApp(app string, err error) error {
	var e *table.Error
	if !errors.As(err, &e) {
		return err
	}
	return &table.Error{Code: e.Code, Msg: "app " + app + ": " + e.Msg}
}

func aborted(errs []error) []error {
	for n := range errs {
		if errs[n] == nil {
			errs[n] = errAborted
		}
	}
	return errs
}

// remove deletes an entry that the app itself has, in all workers that have it.
func (i *tables) remove(c *TableChange) error {
	d, t, _, err := i.decl(c.App, c.Table)
	if err != nil {
		return err
	}
	workers := 1
	if d.Sharded {
		workers = len(i.workers)
	}
	var missing error
	done := false
	for w := range workers {
		err := i.visit(c.App, w, func(x *Ctx, _ App) error {
			if x.node.hooks.Remove == nil {
				return table.Errorf(table.Missing, "app %s has no table %s any more", c.App, c.Table)
			}
			return ofApp(c.App, x.node.hooks.Remove(x, t, c.Key))
		})
		var e *table.Error
		switch {
		case err == nil:
			done = true
		case errors.As(err, &e) && e.Code == table.Missing:
			missing = err
		default:
			return err
		}
	}
	if done {
		return nil
	}
	return missing
}

// stales is how often changes are tried again when the graph has changed meanwhile.
const stales = 100

// configure makes changes of settings, which were checked, to the apps'
// arguments.
func (i *tables) configure(changes []TableChange, together bool, allow func(was, now *Spec) error) []error {
	for range stales {
		errs, stale := i.tryConfigure(changes, together, allow)
		if !stale {
			return errs
		}
	}
	errs := make([]error, len(changes))
	for n := range errs {
		errs[n] = table.Errorf(table.Aborted, "app %s: its arguments are changed by others all the time: try again", changes[n].App)
	}
	return errs
}

// setting is a table that changes.
type setting struct {
	app  string
	d    *table.Decl
	rows table.Rows
}

func (i *tables) tryConfigure(changes []TableChange, together bool, allow func(was, now *Spec) error) (errs []error, stale bool) {
	old := i.Spec()
	spec := old.Clone()
	errs = make([]error, len(changes))
	var all []*setting
	failed := false
	for n := range changes {
		c := &changes[n]
		at := slices.IndexFunc(all, func(s *setting) bool { return s.app == c.App && s.d.Name == c.Table })
		if at < 0 {
			a, ok := spec.Apps[c.App]
			var d *table.Decl
			if ok {
				tables := findKind(i.cfg.Kinds, a.Kind).Tables
				if k := slices.IndexFunc(tables, func(d table.Decl) bool { return d.Name == c.Table }); k >= 0 {
					d = &tables[k]
				}
			}
			if d == nil {
				errs[n] = table.Errorf(table.Missing, "app %s has no table %s any more", c.App, c.Table)
				failed = true
				continue
			}
			at = len(all)
			all = append(all, &setting{c.App, d, d.Setting.Of(maps.Clone(a.Args))})
		}
		d, rows := all[at].d, &all[at].rows
		err := meant(d, &c.Change)
		if err == nil {
			err = d.Do(rows, &c.Change)
		} else if e := d.Do(&table.Rows{Default: rows.Default, Entries: slices.Clone(rows.Entries)}, &c.Change); e != nil {
			err = e
		}
		errs[n] = ofApp(c.App, err)
		failed = failed || errs[n] != nil
	}
	if failed && together {
		return aborted(errs), false
	}
	var err error
	for _, s := range all {
		a := spec.Apps[s.app]
		args := maps.Clone(a.Args)
		if args == nil {
			args = Args{}
		}
		var more Args
		if more, err = s.d.Setting.Set(maps.Clone(args), s.rows); err != nil {
			err = ofApp(s.app, err)
			break
		}
		maps.Copy(args, more)
		a.Args = args
		spec.Apps[s.app] = a
	}
	spec.source = nil
	if err == nil && allow != nil {
		err = allow(old, spec)
	}
	if err == nil {
		err = i.move(old, spec)
	}
	switch {
	case err == nil:
		return errs, false
	case errors.Is(err, ErrStale):
		return nil, true
	case len(changes) == 1 || together:
		var e *table.Error
		if !errors.As(err, &e) {
			err = &table.Error{Code: table.Busy, Msg: oneLine(err)}
		}
		for n := range errs {
			if errs[n] == nil {
				errs[n] = err
			}
		}
		return errs, false
	}
	// The change that failed is found by halving the list, so that the others are still made together.
	half := len(changes) / 2
	copy(errs, i.configure(changes[:half], false, allow))
	copy(errs[half:], i.configure(changes[half:], false, allow))
	return errs, false
}

// FileArg is an argument that names a file (Param.File), of an app or, as OUTER/NAME,
// of one inside another.
type FileArg struct{ App, Kind, Arg, Value string }

// FileArgs are those of a Spec. Apps inside one whose arguments are wrong have none.
func (i *tables) FileArgs(s *Spec) []FileArg {
	var out []FileArg
	of := func(name string, a AppSpec) {
		k := findKind(i.cfg.Kinds, a.Kind)
		if k == nil {
			return
		}
		for _, p := range k.Params {
			if v, ok := a.Args[p.Name]; ok && p.File {
				out = append(out, FileArg{name, a.Kind, p.Name, v})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Apps)) {
		a := s.Apps[name]
		of(name, a)
		if k := findKind(i.cfg.Kinds, a.Kind); k != nil && k.Inside != nil {
			inside, err := k.Inside(maps.Clone(a.Args))
			if err != nil {
				continue
			}
			for _, in := range inside {
				of(name+"/"+in.Name, in.AppSpec)
			}
		}
	}
	return out
}

// meant returns an error if a change is wrong for the app whatever other entries the table
// has.
func meant(d *table.Decl, c *table.Change) error {
	var alone table.Rows
	if d.Default != nil {
		alone.Default = *d.Default
	}
	switch {
	case c.Op == table.Delete || c.Keep || c.Reset:
		return nil
	case c.Op == table.Default:
		alone.Default = c.Call
	default:
		alone.Entries = []table.Entry{c.Entry}
	}
	_, err := d.Setting.Set(nil, alone)
	return err
}

// move carries out the Plan from old to spec. That a port's filter could not be set is no error: the next Plan
// tries again.
func (i *tables) move(old, spec *Spec) error {
	if sameSpec(old, spec) {
		return nil
	}
	p, err := i.Plan(spec)
	if err != nil {
		return err
	}
	if !sameSpec(p.old, old) {
		return ErrStale
	}
	if err := i.Apply(p); err != nil && !errors.Is(err, ErrPort) {
		return err
	}
	return nil
}

func oneLine(err error) string {
	if bad, ok := errors.AsType[*SpecError](err); ok {
		return bad.Msg
	}
	return fmt.Sprint(err)
}

// trackPlaces is how many connections, or counts of entries, are looked at between two breaths: some microseconds.
const trackPlaces = 64

// Connections calls f with the connections that an app remembers and has keeps; f may keep its argument. An error of f ends
// it. The workers go on between slices: a connection that comes or goes meanwhile may be missing.
func (i *tables) Connections(app string, has func(*track.Connection) bool, f func(*track.Connection) error) error {
	var found []track.Connection
	for w := range i.workers {
		for from := 0; from >= 0; {
			found = found[:0]
			tracks := true
			err := i.visit(app, w, func(c *Ctx, _ App) error {
				show := c.node.hooks.Connections
				if tracks = show != nil; !tracks {
					return nil
				}
				from = show(c, from, trackPlaces, func(x *track.Connection) {
					if x.App = app; has(x) {
						found = append(found, *x)
					}
				})
				return nil
			})
			if err == nil && !tracks {
				err = table.Errorf(table.Missing, "app %s remembers no connections", app)
			}
			if err != nil {
				return err
			}
			for n := range found {
				if err := f(&found[n]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
