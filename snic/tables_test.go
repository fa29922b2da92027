package snic

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/snic/dag"
)

// all is a task of which a deployment says all there is to say.
const all = `  all: {kind: mark, args: {letter: "{\"a\": <b> 'c'}\n #x"}, reads: [ip-addresses, ports], writes: [length], drops: true, answers: true, state: true, memory: 4M,
    throughput: 40Gbit, latency: 64ns, area: 2, bitstream: 1M, credits: 9, remote: false, endpoint: true, fault: pass, restart: 3}
`

// What a table shows, written back, changes nothing; and reads back as shown.
func TestTablesRoundTrip(t *testing.T) {
	args := table.Args{"deployment": three + `
  - {match: "in:3+vlan:7+type:0x800+proto:17+src:10.0.0.0/8+dst:10.1.0.0/16+sport:1-9+dport:80", priority: 4, dag: 7}
  - {match: "src:fd00::/8+dst:fd00::1+vni:7", dag: 8}
  - {match: "qpn:0x10+nsh:3", road: switch, priority: 9}
  - {match: "all", road: switch}
`}
	args["deployment"] = strings.Replace(args["deployment"], "- {uid: 8,", "- {uid: 9, tenant: alice, run: a -> b; a -> c}\n  - {uid: 8,", 1)
	args["deployment"] = strings.Replace(args["deployment"], "tasks:\n", "tasks:\n"+all, 1)
	l := newLibrary(declared())
	was, err := l.deployment(args["deployment"])
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
		now, err := l.deployment(out["deployment"])
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		if diff := cmp.Diff(was, now, cmp.AllowUnexported(dag.Deployment{}), cmpopts.IgnoreFields(dag.Deployment{}, "chains"), cmp.Comparer(func(a, b fmt.Stringer) bool { return a.String() == b.String() })); diff != "" {
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
	named := func(s string) []table.Cond { return []table.Cond{{V: table.String(s)}} }
	text := func(v ...string) (c table.Call) {
		for _, s := range v {
			c.Params = append(c.Params, table.String(s))
		}
		return c
	}
	write := func(name string, op table.Ops, e table.Entry) error {
		return x.Inst.WriteTables([]graph.TableChange{{App: graphtest.App, Change: table.Change{Table: name, Op: op, Entry: e}}}, false)[0]
	}
	rule := func(src uint64, priority int32, call table.Call) table.Entry {
		k := make([]table.Cond, len(terms))
		for i := range k {
			k[i].Any = true
		}
		k[4] = table.Cond{V: table.Uint(src), M: table.Prefix(32, 32)}
		return table.Entry{Key: k, Priority: priority, Call: call}
	}
	in := func(port uint64) table.Entry {
		e := rule(0, 3, table.Call{Action: actSwitch})
		e.Key[0], e.Key[4] = table.Cond{V: table.Uint(port)}, table.Cond{Any: true}
		return e
	}
	to := func(uid uint64) table.Call {
		return table.Call{Action: actDAG, Params: []table.Value{table.Uint(uid)}}
	}
	for i, c := range []struct {
		table string
		op    table.Ops
		entry table.Entry
		want  string // of the error; "": none
	}{
		{"tenants", table.Insert, table.Entry{Key: named("carol"), Call: text("2.5")}, ""},
		{"tenants", table.Insert, table.Entry{Key: named("d e"), Call: text("1")}, "tenant name"},
		{"tenants", table.Insert, table.Entry{Key: named("dave"), Call: text("0")}, "weight"},
		{"tenants", table.Insert, table.Entry{Key: named("dave"), Call: text("1.0")}, "in as few digits"},
		{"tenants", table.Insert, table.Entry{Key: named("dave"), Call: text("much")}, "want a number"},
		{"tasks", table.Insert, table.Entry{Key: named("d"), Call: text("mark", `{"letter":"d"}`, `{"area":"1","drops":"true"}`)}, ""},
		{"tasks", table.Insert, table.Entry{Key: named("d"), Call: text("mark", "", "")}, "has entry task=d already"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mork", "", "")}, `unknown kind "mork"`},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("", "", "")}, "kind is missing"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("snic", `{"deployment":"regions: {count: 1, area: 1}"}`, "")}, "e:"},
		{"tasks", table.Insert, table.Entry{Key: named("e f"), Call: text("mark", `{"letter":"e"}`, "")}, "task name"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"lettre":"e"}`, "")}, `no argument "lettre"`},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `letter=e`, "")}, "want a JSON object"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter": "e"}`, "")}, `without spaces: {"letter":"e"}`},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e","a":"b"}`, "")}, "want it with sorted names"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"area":"4"}`)}, "never fits"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("ma\xffrk", "", "")}, "cannot be kept"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"area":"03"}`)}, "want a number"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"drops":"false"}`)}, "want true"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"latency":"long"}`)}, "want a time"},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"kind":"x"}`)}, `a task has no "kind"`},
		{"tasks", table.Insert, table.Entry{Key: named("e"), Call: text("mark", `{"letter":"e"}`, `{"reads":"nonsense"}`)}, "reads"},
		{"dags", table.Insert, table.Entry{Key: key(5), Call: text("carol", "c -> d -> a")}, ""},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: text("dave", "c")}, `unknown tenant "dave"`},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: text("carol", "c -> x")}, `unknown task "x"`},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: text("carol", "")}, "no task is named"},
		{"dags", table.Insert, table.Entry{Key: key(6), Call: text("carol", "c -> c")}, "round"},
		{"dags", table.Insert, table.Entry{Key: key(0), Call: text("carol", "c")}, "from 1 on"},
		{"rules", table.Insert, rule(0x0a000009, 3, to(5)), ""},
		{"rules", table.Insert, rule(0x0a000008, 3, to(6)), "there is no DAG 6"},
		{"rules", table.Insert, rule(0x0a000008, 3, to(0)), "from 1 on"},
		{"rules", table.Insert, in(15), ""},
		{"rules", table.Insert, in(16), "in:16+all: want a port of the board, 0 to 15"},
		{"tasks", table.Delete, table.Entry{Key: named("d")}, `DAG 5: unknown task "d"`},
		{"tasks", table.Delete, table.Entry{Key: named("e")}, "no entry task=e"},
		{"tenants", table.Delete, table.Entry{Key: named("carol")}, `DAG 5: unknown tenant "carol"`},
		{"dags", table.Delete, table.Entry{Key: key(5)}, "there is no DAG 5"},
		{"tenants", table.Modify, table.Entry{Key: named("bob"), Call: text("0.5")}, ""},
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
	if r := x.Push("p0", frame(9, "-")); tail(r.Out["p1"]) != "-cda" {
		t.Errorf("%v", tail(r.Out["p1"]))
	}
	if err := write("tasks", table.Modify, table.Entry{Key: named("d"), Call: text("mark", `{"letter":"D"}`, "")}); err != nil {
		t.Error(err)
	}
	x.Advance(10 * time.Millisecond)
	if r := x.Push("p0", frame(9, "-")); tail(r.Out["p1"]) != "-cDa" {
		t.Errorf("a task that was modified: %v", tail(r.Out["p1"]))
	}
	if err := write("rules", table.Delete, rule(0x0a000009, 3, table.Call{})); err != nil {
		t.Error(err)
	}
	if err := write("dags", table.Delete, table.Entry{Key: key(5)}); err != nil {
		t.Error(err)
	}
	if err := write("tenants", table.Delete, table.Entry{Key: named("carol")}); err != nil {
		t.Error(err)
	}
	if err := write("tasks", table.Delete, table.Entry{Key: named("d")}); err != nil {
		t.Error(err)
	}
	if r := x.Push("p0", frame(9, "-"), frame(1, "-")); tail(r.Out["p1"]) != "- -abc" {
		t.Errorf("%v", tail(r.Out["p1"]))
	}
	if s := x.App().(*board).deployment; len(s.DAGs) != 2 || s.Tenants[1].Weight != 0.5 {
		t.Errorf("%v", s.Tenants)
	}
}

// A board that begins empty is set up by its tables in one go, in any order of the
// changes, and what the tables show makes another one like it.
func TestTablesAlone(t *testing.T) {
	x := setup(t, "regions: {count: 2, area: 3}")
	if r := x.Push("p0", frame(1, "-")); tail(r.Out["p1"]) != "-" {
		t.Errorf("a board without anything: %v", tail(r.Out["p1"]))
	}
	var changes []graph.TableChange
	for _, d := range tables() { // rules first: what they lead to comes behind
		for _, e := range d.Setting.Of(table.Args{"deployment": three}).Entries {
			changes = append(changes, graph.TableChange{App: graphtest.App, Change: table.Change{Table: d.Name, Op: table.Insert, Entry: e}})
		}
	}
	bad := changes[len(changes)-1]
	bad.Entry = table.Entry{Key: []table.Cond{{V: table.String("x y")}}, Call: bad.Call}
	for _, err := range x.Inst.WriteTables(append(slices.Clip(changes), bad), true) {
		if err == nil {
			t.Error("a part of it was done")
		}
	}
	for i, err := range x.Inst.WriteTables(changes, true) {
		if err != nil {
			t.Errorf("%s: %v", changes[i].Table, err)
		}
	}
	x.Advance(10 * time.Millisecond)
	if r := x.Push("p0", frame(1, "-")); tail(r.Out["p1"]) != "-abc" {
		t.Errorf("%v", tail(r.Out["p1"]))
	}
	want, _ := newLibrary(declared()).deployment(three)
	if diff := cmp.Diff(want, x.App().(*board).deployment, cmp.AllowUnexported(dag.Deployment{}), cmpopts.IgnoreFields(dag.Deployment{}, "chains"), cmp.Comparer(func(a, b fmt.Stringer) bool { return a.String() == b.String() })); diff != "" {
		t.Error(diff)
	}
}

// Whatever a client sends, a table shows it again as it was, or it is refused.
func FuzzTables(f *testing.F) {
	f.Add("fw", "firewall", `{"default":"allow","rules":"a\\nb"}`, `{"area":"2","reads":"ip-addresses,ports"}`, "alice", "0.5", "fw -> fw2; x")
	f.Add("a: b", "- x", `{"":"\\u0000"}`, `{"remote":"false"}`, "~", "1e3", "a\n->\tb")
	f.Add("#", "\r\n", `{"a":"'\"&*!|>%@"}`, `{"memory":"null"}`, "1", "NaN", "- a")
	f.Add("\u2028", "\x85", "", `{"credits":"-1"}`, "\x7f", "1", "a;;")
	f.Fuzz(func(t *testing.T, task, kind, args, more, tenant, weight, run string) {
		if len(task)+len(kind)+len(args)+len(more)+len(tenant)+len(weight)+len(run) > 1<<12 {
			return
		}
		for _, d := range tables() {
			e := table.Entry{Key: []table.Cond{{V: table.String(task)}}}
			switch d.Name {
			case "tasks":
				e.Params = []table.Value{table.String(kind), table.String(args), table.String(more)}
			case "tenants":
				e.Key[0].V, e.Params = table.String(tenant), []table.Value{table.String(weight)}
			case "dags":
				e.Key[0].V, e.Params = table.Uint(7), []table.Value{table.String(tenant), table.String(run)}
			default:
				continue
			}
			out, err := d.Setting.Set(table.Args{"deployment": three}, table.Rows{Entries: []table.Entry{e}})
			if err != nil {
				continue
			}
			if diff := cmp.Diff(table.Rows{Entries: []table.Entry{e}}, d.Setting.Of(out)); diff != "" {
				t.Errorf("%s: %s", d.Name, diff)
			}
		}
	})
}

// Of rules with the same match and priority the first counts, however they are written.
func TestTablesFirstRuleCounts(t *testing.T) {
	rows := rulesOf(table.Args{"deployment": `
regions: {count: 1, area: 1}
tasks: {m: {kind: dummy}}
tenants: {a: {}}
dags: [{uid: 1, tenant: a, run: m}]
rules:
  - {match: "sport:5+src:10.0.0.0/8", dag: 1}
  - {match: "src:10.0.0.0/8+sport:5-5", road: refuse}
  - {match: "sport:5+src:10.0.0.0/8", road: control, priority: 1}
  - {match: "sport:5+src:10.0.0.0/9", road: control}
`})
	var got []string
	for _, e := range rows.Entries {
		m, err := matchOf(e.Key)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(m, " ", e.Priority, " ", e.Action))
	}
	if want := "[src:10.0.0.0/8+sport:5 1 1 src:10.0.0.0/8+sport:5 2 2 src:10.0.0.0/9+sport:5 1 2]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
