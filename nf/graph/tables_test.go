package graph_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

// pantry has a setting, its argument jars, and shelves that each worker has for
// itself: numbers that no other worker has.
type pantry struct {
	args    graph.Args
	rows    []uint64
	changes int
	longest int // places looked at in one call
}

const pantryPlaces = 5000

func (p *pantry) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

func (p *pantry) Reconfigure(args graph.Args) error {
	if strings.Contains(args["jars"], "13") {
		return errors.New("jars: 13 breaks")
	}
	p.args, p.changes = args, p.changes+1
	return nil
}

func (p *pantry) Takes(args graph.Args) bool { return args["size"] == p.args["size"] }

func (p *pantry) Hooks() graph.Hooks { return graph.Hooks{Scan: p.scan, Remove: p.remove} }

func (p *pantry) scan(_ *graph.Ctx, t, from, n int, yield func(*table.Entry)) int {
	p.longest = max(p.longest, n)
	end := min(from+n, len(p.rows))
	for _, r := range p.rows[from:end] {
		if r != 0 {
			yield(&table.Entry{Key: []table.Cond{{V: table.Uint(r)}}, Call: table.Call{Params: []table.Value{table.Uint(uint64(t))}}})
		}
	}
	if end == len(p.rows) {
		return -1
	}
	return end
}

func (p *pantry) remove(_ *graph.Ctx, _ int, key []table.Cond) error {
	i := slices.Index(p.rows, key[0].V.Lo)
	if i < 0 {
		return table.Errorf(table.Missing, "there is no %d", key[0].V.Lo)
	}
	if p.rows[i]%1000 == 7 {
		return table.Errorf(table.Busy, "%d is in use", p.rows[i])
	}
	p.rows[i] = 0
	return nil
}

func pantryKind() graph.Kind {
	of := func(args table.Args) (r table.Rows) {
		r.Default.Action = 1
		for s := range strings.SplitSeq(args["jars"], "+") {
			switch n, err := strconv.ParseUint(s, 10, 64); {
			case err == nil:
				r.Entries = append(r.Entries, table.Entry{Key: []table.Cond{{V: table.Uint(n)}}})
			case s == "open":
				r.Default.Action = 0
			}
		}
		return r
	}
	set := func(_ table.Args, r table.Rows) (table.Args, error) {
		out := []string{"closed"}
		if r.Default.Action == 0 {
			out[0] = "open"
		}
		for _, e := range r.Entries {
			if e.Key[0].V == table.Uint(99) {
				return nil, table.Errorf(table.Invalid, "table jars: there is no 99th jar")
			}
			out = append(out, fmt.Sprint(e.Key[0].V.Lo))
		}
		return table.Args{"jars": strings.Join(out, "+")}, nil
	}
	key := []table.Field{{Name: "n", Bits: 32}}
	return graph.Kind{
		Name: "pantry", In: []string{"in"}, Out: []string{"out"}, Params: []graph.Param{{Name: "jars"}, {Name: "size"}}, Control: "pantry_ingress",
		Tables: []table.Decl{
			{Name: "jars", Keys: key, Actions: []table.Action{{Name: "open"}, {Name: "closed"}}, Size: 8, Default: &table.Call{Action: 1},
				May: table.Insert | table.Modify | table.Delete | table.Default, Setting: &table.Setting{Of: of, Set: set}},
			{Name: "shelves", Keys: key, Actions: []table.Action{{Name: "of", Params: []table.Field{{Name: "table", Bits: 8}}}}, May: table.Delete, Sharded: true},
			{Name: "first", Keys: key, Actions: []table.Action{{Name: "of", Params: []table.Field{{Name: "table", Bits: 8}}}}},
		},
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			p := &pantry{args: args, rows: make([]uint64, pantryPlaces)}
			for i := range p.rows {
				if i%2 == 0 {
					p.rows[i] = uint64(1000*i + env.Worker + 1)
				}
			}
			return p, nil
		},
	}
}

// pantries is a graph of two of them, with two workers.
func pantries(t *testing.T, depth int) *graph.Instance {
	t.Helper()
	spec := parse(t, `
ports: {a: {kind: mem}, b: {kind: mem}}
apps: {left: {kind: pantry, args: {jars: 1+2}}, right: {kind: pantry}}
links: [a.out -> left.in, left.out -> right.in, right.out -> b.in]
`)
	ports := map[string][]port.Port{}
	for _, n := range []string{"a", "b"} {
		for q := range 2 {
			ports[n] = append(ports[n], newSpring(t, fmt.Sprintf("%s:%d", n, q), depth))
		}
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{pantryKind()}, Ports: ports, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

func jar(app string, op table.Ops, n uint64) graph.TableChange {
	c := graph.TableChange{App: app, Change: table.Change{Table: "jars", Op: op}}
	if op != table.Default {
		c.Key = []table.Cond{{V: table.Uint(n)}}
	}
	return c
}

func rows(t *testing.T, inst *graph.Instance, app, name string) []uint64 {
	t.Helper()
	var out []uint64
	if err := inst.ReadTable(app, name, func(e *table.Entry) error {
		out = append(out, e.Key[0].V.Lo)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func codesOf(errs []error) (out []table.Code) {
	for _, err := range errs {
		var e *table.Error
		if errors.As(err, &e) {
			out = append(out, e.Code)
		} else {
			out = append(out, 0)
		}
	}
	return out
}

// What tables of settings say is what the arguments say, either way.
func TestSettingsAreArguments(t *testing.T) {
	inst := pantries(t, 1)
	if got := rows(t, inst, "left", "jars"); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("jars=1+2 are the entries %v", got)
	}
	errs := inst.WriteTables([]graph.TableChange{
		jar("left", table.Insert, 3), jar("left", table.Insert, 1), jar("right", table.Insert, 9), jar("left", table.Delete, 2), jar("left", table.Delete, 5), jar("left", table.Default, 0),
	}, false)
	if got := codesOf(errs); !slices.Equal(got, []table.Code{0, table.Exists, 0, 0, table.Missing, 0}) {
		t.Errorf("%v", errs)
	}
	if got := inst.Spec().Apps; got["left"].Args["jars"] != "open+1+3" || got["right"].Args["jars"] != "closed+9" {
		t.Errorf("%v", got)
	}
	for w := range 2 {
		if p := inst.App("left", w).(*pantry); p.changes != 1 || p.args["jars"] != "open+1+3" {
			t.Errorf("worker %d: %d changes, %v", w, p.changes, p.args)
		}
	}
	if c, err := inst.TableDefault("left", "jars"); err != nil || c.Action != 0 {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := inst.Set("left", graph.Args{"jars": "7"}); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, inst, "left", "jars"); !slices.Equal(got, []uint64{7}) {
		t.Errorf("after set jars=7: %v", got)
	}
	reset := jar("left", table.Default, 0)
	reset.Reset = true
	if errs := inst.WriteTables([]graph.TableChange{reset}, false); errs[0] != nil {
		t.Error(errs)
	}
	if c, _ := inst.TableDefault("left", "jars"); c.Action != 1 {
		t.Errorf("%v", c)
	}
}

// The one that cannot be is found, and the others are made; or none is.
func TestOneBadSetting(t *testing.T) {
	inst := pantries(t, 1)
	changes := []graph.TableChange{jar("left", table.Insert, 4), jar("left", table.Insert, 13), jar("right", table.Insert, 99), jar("left", table.Insert, 5)}
	before := inst.Spec().Apps["left"].Args["jars"]
	for _, err := range inst.WriteTables(changes, true) {
		if err == nil {
			t.Error("a change was made together with one that was not")
		}
	}
	if got := inst.Spec().Apps["left"].Args["jars"]; got != before {
		t.Errorf("jars=%s", got)
	}
	if got := codesOf(inst.WriteTables([]graph.TableChange{changes[0], changes[3], changes[2], jar("right", table.Insert, 1)}, true)); !slices.Equal(got, []table.Code{table.Aborted, table.Aborted, table.Invalid, table.Aborted}) {
		t.Errorf("whose fault it was: %v", got)
	}
	errs := inst.WriteTables(changes, false)
	if got := codesOf(errs); !slices.Equal(got, []table.Code{0, table.Busy, table.Invalid, 0}) ||
		errs[1].Error() != "app left: jars: 13 breaks" || errs[2].Error() != "app right: table jars: there is no 99th jar" {
		t.Errorf("%v", errs)
	}
	if got := rows(t, inst, "left", "jars"); !slices.Equal(got, []uint64{1, 2, 4, 5}) {
		t.Errorf("%v", got)
	}
	// What is behind it is seen without it.
	if got := codesOf(inst.WriteTables([]graph.TableChange{jar("right", table.Insert, 99), jar("right", table.Insert, 99), jar("right", table.Delete, 99)}, false)); !slices.Equal(got, []table.Code{table.Invalid, table.Invalid, table.Missing}) {
		t.Errorf("%v", got)
	}
	// Together: of several apps at once.
	if errs := inst.WriteTables([]graph.TableChange{jar("left", table.Delete, 4), jar("right", table.Insert, 6)}, true); errs[0] != nil || errs[1] != nil {
		t.Error(errs)
	}
	if got := codesOf(inst.WriteTables([]graph.TableChange{jar("left", table.Delete, 5), jar("right", table.Insert, 6)}, true)); !slices.Equal(got, []table.Code{table.Aborted, table.Exists}) {
		t.Error(got)
	}
	if got := rows(t, inst, "left", "jars"); !slices.Equal(got, []uint64{1, 2, 5}) {
		t.Errorf("%v", got)
	}
}

// One change among many that cannot be made does not have each of the others made alone.
func TestSettingsFault(t *testing.T) {
	inst := pantries(t, 1)
	var changes []graph.TableChange
	for range 40 {
		changes = append(changes, jar("left", table.Modify, 1))
	}
	changes = append(changes, jar("left", table.Insert, 13), jar("left", table.Insert, 14))
	for range 22 {
		changes = append(changes, jar("left", table.Modify, 2))
	}
	times := 0
	got := codesOf(inst.WriteTablesIf(changes, false, func(_, _ *graph.Spec) error { times++; return nil }))
	want := make([]table.Code, len(changes))
	want[40] = table.Busy
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := rows(t, inst, "left", "jars"); !slices.Equal(got, []uint64{1, 2, 14}) {
		t.Errorf("what is there: %v", got)
	}
	if times > 13 {
		t.Errorf("%d changes were tried %d times", len(changes), times)
	}
}

func TestTableOfWorkers(t *testing.T) {
	inst := pantries(t, 1)
	got := rows(t, inst, "right", "shelves")
	slices.Sort(got)
	if len(got) != pantryPlaces || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("%d rows of two workers", len(got))
	}
	if got := rows(t, inst, "right", "first"); len(got) != pantryPlaces/2 {
		t.Errorf("%d rows that all workers share", len(got))
	}
	if p := inst.App("right", 0).(*pantry); p.longest > 256 {
		t.Errorf("%d places looked at between two breaths", p.longest)
	}
	shelf := func(n uint64) graph.TableChange {
		return graph.TableChange{App: "right", Change: table.Change{Table: "shelves", Op: table.Delete, Entry: table.Entry{Key: []table.Cond{{V: table.Uint(n)}}}}}
	}
	errs := inst.WriteTables([]graph.TableChange{shelf(2002), shelf(2002), shelf(4001), jar("right", table.Insert, 1)}, false)
	if got := codesOf(errs); !slices.Equal(got, []table.Code{0, table.Missing, 0, 0}) {
		t.Error(errs)
	}
	if got := rows(t, inst, "right", "shelves"); len(got) != pantryPlaces-2 {
		t.Errorf("%d rows are left", len(got))
	}
	if got := codesOf(inst.WriteTables([]graph.TableChange{shelf(6001), jar("right", table.Insert, 2)}, true)); !slices.Equal(got, []table.Code{table.Unable, table.Aborted}) {
		t.Error(got)
	}
	stop := errors.New("enough")
	n := 0
	if err := inst.ReadTable("right", "shelves", func(*table.Entry) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}

func TestTableRefusals(t *testing.T) {
	inst := pantries(t, 1)
	for want, c := range map[string]graph.TableChange{
		`no app is named "lef" (did you mean "left"?)`:        jar("lef", table.Insert, 3),
		`app left has no table "jar" (did you mean "jars"?)`:  {App: "left", Change: table.Change{Table: "jar", Op: table.Insert}},
		"app left: table first can be read only":              {App: "left", Change: table.Change{Table: "first", Op: table.Delete}},
		"app left: table shelves: no insert: it takes delete": {App: "left", Change: table.Change{Table: "shelves", Op: table.Insert}},
		"app left: table jars: n does not fit in 32 bits":     jar("left", table.Insert, 1<<32),
		"app left: table jars has entry n=1 already":          jar("left", table.Insert, 1),
		"app left: table jars has no entry n=77":              jar("left", table.Delete, 77),
	} {
		if errs := inst.WriteTables([]graph.TableChange{c}, false); errs[0] == nil || errs[0].Error() != want {
			t.Errorf("%v, want %q", errs[0], want)
		}
	}
	var full []graph.TableChange
	for n := range uint64(7) {
		full = append(full, jar("left", table.Insert, 20+n))
	}
	if got := codesOf(inst.WriteTables(full, false)); !slices.Equal(got, []table.Code{0, 0, 0, 0, 0, 0, table.Full}) {
		t.Error(got)
	}
	if err := inst.ReadTable("left", "jar", nil); err == nil {
		t.Error("a table that is not there was read")
	}
	if tables := inst.Tables(); len(tables) != 2 || tables[1].App != "right" || tables[1].Control != "pantry_ingress" || len(tables[0].Tables) != 3 {
		t.Errorf("%v", tables)
	}
}

// An app that cannot take a change starts anew, with it; one that can goes on.
func TestPicky(t *testing.T) {
	inst := pantries(t, 1)
	was := inst.App("left", 0)
	p, err := inst.Set("left", graph.Args{"jars": "3"})
	if err != nil || inst.App("left", 0) != was || strings.Contains(p.String(), "anew") {
		t.Errorf("%v, %v", p, err)
	}
	p, err = inst.Set("left", graph.Args{"size": "3"})
	if err != nil || inst.App("left", 0) == was || !strings.Contains(p.String(), "starts anew") {
		t.Errorf("%v, %v", p, err)
	}
}

// Tables are read and written while two workers run as fast as they can: for the
// race detector. No change is lost that was made at the same time as others.
func TestTablesUnderTraffic(t *testing.T) {
	inst := pantries(t, 1<<40)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for n := range 10 {
				mine := uint64(100 + w)
				errs := inst.WriteTables([]graph.TableChange{jar("left", table.Insert, mine), jar("right", table.Insert, mine)}, n%2 == 0)
				if errs[0] != nil || errs[1] != nil {
					t.Error(errs)
				}
				if !slices.Contains(rows(t, inst, "left", "jars"), mine) {
					t.Errorf("%d is not there", mine)
				}
				if errs := inst.WriteTables([]graph.TableChange{jar("left", table.Delete, mine), jar("right", table.Delete, mine)}, false); errs[0] != nil || errs[1] != nil {
					t.Error(errs)
				}
			}
		})
	}
	wg.Go(func() {
		for range 3 {
			if n := len(rows(t, inst, "left", "shelves")); n != pantryPlaces {
				t.Errorf("%d rows", n)
			}
		}
	})
	wg.Wait()
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
}
