package snic

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/snic/dag"
)

// What a table shows, written back, changes nothing; and reads back as shown.
func TestTablesRoundTrip(t *testing.T) {
	args := table.Args{"deployment": three + `
  - {match: "in:3+vlan:7+type:0x800+proto:17+src:10.0.0.0/8+dst:10.1.0.0/16+sport:1-9+dport:80", priority: 4, dag: 7}
  - {match: "src:fd00::/8+dst:fd00::1+vni:7", dag: 8}
  - {match: "qpn:0x10+nsh:3", road: switch, priority: 9}
  - {match: "all", road: switch}
`}
	args["deployment"] = strings.Replace(args["deployment"], "- {uid: 8,", "- {uid: 9, tenant: alice, run: a -> b; a -> c}\n  - {uid: 8,", 1)
	was, err := deployment(args["deployment"])
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tables() {
		rows := d.Setting.Of(args)
		if len(rows.Entries) == 0 {
			t.Errorf("%s: nothing is shown", d.Name)
		}
		for i := range rows.Entries {
			if err := d.Check(&table.Change{Table: d.Name, Op: table.Insert, Entry: rows.Entries[i]}); err != nil {
				t.Errorf("%s: what is shown cannot be: %v", d.Name, err)
			}
			// People's words say the same.
			e, err := d.Parse(d.Text(&rows.Entries[i]))
			if err != nil || cmp.Diff(e, rows.Entries[i]) != "" {
				t.Errorf("%s: %v, %s", d.Name, err, cmp.Diff(e, rows.Entries[i]))
			}
		}
		out, err := d.Setting.Set(args, rows)
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		now, err := deployment(out["deployment"])
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		if diff := cmp.Diff(was, now, cmp.AllowUnexported(dag.Deployment{}), cmp.Comparer(func(a, b fmt.Stringer) bool { return a.String() == b.String() })); diff != "" {
			t.Errorf("%s: %s", d.Name, diff)
		}
		if diff := cmp.Diff(rows, d.Setting.Of(out)); diff != "" {
			t.Errorf("%s: %s", d.Name, diff)
		}
	}
}

// Tables are written on a running board, and what is wrong is refused.
func TestTablesLive(t *testing.T) {
	x := setup(t, three)
	x.Advance(10 * time.Millisecond)
	key := func(v ...uint64) (out []table.Cond) {
		for _, n := range v {
			out = append(out, table.Cond{V: table.Uint(n)})
		}
		return out
	}
	values := func(v ...uint64) (out []table.Value) {
		for _, n := range v {
			out = append(out, table.Uint(n))
		}
		return out
	}
	id := func(s string) uint64 { return uint64(NameID(s)) }
	write := func(name string, op table.Ops, e table.Entry) error {
		return x.Inst.WriteTables([]graph.TableChange{{App: graphtest.App, Change: table.Change{Table: name, Op: op, Entry: e}}}, false)[0]
	}
	rule := func(src uint64, priority int32, act int, params ...uint64) table.Entry {
		k := make([]table.Cond, len(terms))
		for i := range k {
			k[i].Any = true
		}
		k[4] = table.Cond{V: table.Uint(src), M: table.Prefix(32, 32)}
		return table.Entry{Key: k, Priority: priority, Call: table.Call{Action: act, Params: values(params...)}}
	}
	pad := func(v ...uint64) []table.Value { return values(append(v, make([]uint64, 1+steps-len(v))...)...) }
	for i, c := range []struct {
		table string
		op    table.Ops
		entry table.Entry
		want  string // of the error; "": none
	}{
		{"tenants", table.Insert, table.Entry{Key: key(42), Call: table.Call{Params: values(2500)}}, ""},
		{"tenants", table.Insert, table.Entry{Key: key(1 << 31), Call: table.Call{Params: values(1)}}, "below 2^31"},
		{"tenants", table.Insert, table.Entry{Key: key(43), Call: table.Call{Params: values(0)}}, "weight"},
		{"dags", table.Insert, table.Entry{Key: key(5), Call: table.Call{Params: pad(42, id("c"), id("a"))}}, ""},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: table.Call{Params: pad(41, id("c"))}}, "no tenant has the number 41"},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: table.Call{Params: pad(42, 0, id("c"))}}, "behind the last one"},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: table.Call{Params: pad(42, 77)}}, "no task has the number 77"},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: table.Call{Params: pad(42)}}, "it has no task"},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: table.Call{Params: pad(42, id("c"), id("c"))}}, "round"},
		{"rules", table.Insert, rule(0x0a000009, 3, actDAG, 5), ""},
		{"rules", table.Insert, rule(0x0a000008, 3, actDAG, 6), "no DAG has uid 6"},
		{"tenants", table.Delete, table.Entry{Key: key(42)}, "DAG 5 is 42's"},
		{"dags", table.Delete, table.Entry{Key: key(5)}, "a rule leads to DAG 5"},
		{"tenants", table.Modify, table.Entry{Key: key(id("bob")), Call: table.Call{Params: values(500)}}, ""},
	} {
		err := write(c.table, c.op, c.entry)
		var e *table.Error
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%d: %v", i, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &e)):
			t.Errorf("%d: %v, want %q", i, err, c.want)
		}
	}
	x.Advance(10 * time.Millisecond)
	if r := x.Push("p0", frame(9, "-")); tail(r.Out["p1"]) != "-ca" {
		t.Errorf("%v", tail(r.Out["p1"]))
	}
	if err := write("rules", table.Delete, rule(0x0a000009, 3, 0)); err != nil {
		t.Error(err)
	}
	if err := write("dags", table.Delete, table.Entry{Key: key(5)}); err != nil {
		t.Error(err)
	}
	if err := write("tenants", table.Delete, table.Entry{Key: key(42)}); err != nil {
		t.Error(err)
	}
	if r := x.Push("p0", frame(9, "-"), frame(1, "-")); tail(r.Out["p1"]) != "- -abc" {
		t.Errorf("%v", tail(r.Out["p1"]))
	}
	if s := x.App().(*board).deployment; len(s.DAGs) != 2 || s.Tenants[1].Weight != 0.5 {
		t.Errorf("%v", s.Tenants)
	}
}
