package dag

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/match"
	"github.com/quillon/quillon/snic/mat"
)

const board = `regions: {count: 3, area: 2}
tasks:
  nt1: {kind: dummy, reads: [ports], writes: [ports], throughput: 10Gbit, latency: 64ns}
  nt2: {kind: dummy, reads: [ports, ip-addresses], writes: [ip-addresses], throughput: 10Gbit}
  nt3:
    kind: aead
    args: {mode: encrypt, key: 7}
    reads: [payload]
    writes: [payload]
    state: true
    memory: 4M
    throughput: 7Gbit
    latency: 1.3us
    remote: false
    credits: 4
    bitstream: 1M
  nt4: {kind: dummy, reads: [all], writes: [payload], drops: true, endpoint: true, area: 2}
tenants:
  user1: {}
  user2: {weight: 2}
dags:
  - {uid: 7, tenant: user1, run: nt1 -> nt2 -> nt3 -> nt4}
  - {uid: 1000000, tenant: user2, run: nt2 -> nt4}
rules:
  - {match: "src:10.0.0.0/8+dport:80", dag: 7}
  - {match: "in:2", priority: 5, dag: 1000000}
  - {match: "proto:1", road: control}
`

func kinds(kind string, args map[string]string) error {
	if kind != "dummy" && kind != "aead" {
		return fmt.Errorf("unknown kind %q", kind)
	}
	return nil
}

func TestDeployment(t *testing.T) {
	d, err := ParseDeployment([]byte(board), Known{Kind: kinds})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := match.Parse("src:10.0.0.0/8+dport:80")
	if err != nil {
		t.Fatal(err)
	}
	icmp, err := match.Parse("proto:1")
	if err != nil {
		t.Fatal(err)
	}
	want := &Deployment{
		Regions: Regions{3, 2, 4_000_000},
		Tasks: []Task{
			{Name: "nt1", Kind: "dummy", Effects: effect.Effects{Reads: effect.Ports, Writes: effect.Ports}, Throughput: 10e9, Latency: 64,
				Area: 1, Credits: 8, Remote: true},
			{Name: "nt2", Kind: "dummy", Effects: effect.Effects{Reads: effect.Ports | effect.IPAddresses, Writes: effect.IPAddresses}, Throughput: 10e9,
				Area: 1, Credits: 8, Remote: true},
			{Name: "nt3", Kind: "aead", Args: map[string]string{"mode": "encrypt", "key": "7"},
				Effects: effect.Effects{Reads: effect.Payload, Writes: effect.Payload, State: true}, Memory: 4 << 20, Throughput: 7e9, Latency: 1300,
				Area: 1, Bitstream: 1 << 20, Credits: 4},
			{Name: "nt4", Kind: "dummy", Effects: effect.Effects{Reads: effect.Bytes, Writes: effect.Payload, Drops: true},
				Area: 2, Credits: 8, Remote: true, Endpoint: true},
		},
		Tenants: []Tenant{{"user1", 1}, {"user2", 2}},
		DAGs: []DAG{
			{7, 0, []TaskID{0, 1, 2, 3}, [][2]TaskID{{0, 1}, {1, 2}, {2, 3}}},
			{1000000, 1, []TaskID{1, 3}, [][2]TaskID{{1, 3}}},
		},
		Rules: []mat.Rule{
			{In: mat.Any, Match: tcp, Road: mat.Tasks, DAG: 0},
			{Priority: 5, In: 2, Road: mat.Tasks, DAG: 1},
			{In: mat.Any, Match: icmp, Road: mat.Control},
		},
		rank: []int{0, 1, 2, 3},
	}
	if diff := cmp.Diff(want, d, exact...); diff != "" {
		t.Error(diff)
	}
	if got := show(d, d.Stages(0, 0)); got != "nt1>nt2|nt3 ; nt4" {
		t.Error(got)
	}
	if id, ok := d.Task("nt3"); id != 2 || !ok {
		t.Error(id, ok)
	}
	if _, ok := d.Task("nt"); ok {
		t.Error("there is no nt")
	}
	if id, ok := d.Tenant("user2"); id != 1 || !ok {
		t.Error(id, ok)
	}
	if got := d.Text(0); got != "nt1 -> nt2 -> nt3 -> nt4" {
		t.Error(got)
	}
	if got := d.Names(3, 0); got != "nt4 -> nt1" {
		t.Error(got)
	}
	if !d.Tasks[2].NeedsPayload() || d.Tasks[1].NeedsPayload() {
		t.Error("nt3 needs the payload, and nt2 does not")
	}
	if grows := (&Task{Effects: effect.Effects{Writes: effect.Encap | effect.Length}}); !grows.NeedsPayload() {
		t.Error("who adds bytes moves the payload")
	}
}

var exact = cmp.Options{cmp.AllowUnexported(Deployment{}), cmpopts.IgnoreFields(Deployment{}, "chains"), cmp.Comparer(func(a, b match.Match) bool { return a.String() == b.String() })}

func TestSpecErrors(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"run: nt2 -> nt4", "run: nt2 -> nt5", `deployment:23:40: DAG 1000000: unknown task "nt5" (known: nt1, nt2, nt3, nt4)`},
		{"run: nt2 -> nt4", "run: nt2 -> nt4 -> nt1 -> nt4 -> nt3", `deployment:23:40: DAG 1000000 goes round in a circle: nt4 -> nt1 -> nt4`},
		{"run: nt2 -> nt4", "run: nt2 -> nt2", `DAG 1000000 goes round in a circle: nt2 -> nt2`},
		{"run: nt2 -> nt4", "run: nt2 -> ", `deployment:23:40: DAG 1000000: "" is no name of a task: want a -> b -> c; a -> d`},
		{"run: nt2 -> nt4", "run: ''", `deployment:23:40: DAG 1000000: no task is named: want a -> b -> c; a -> d`},
		{"run: nt2 -> nt4", "rum: nt2 -> nt4", `deployment:23:35: unknown field "rum"`},
		{", run: nt2 -> nt4", "", `DAG 1000000: no task is named`},
		{"uid: 1000000", "uid: 7", `deployment:23:11: DAG 7 is there twice`},
		{"uid: 1000000", "uid: 0", `deployment:23:6: a DAG needs a uid, from 1 on`},
		{"uid: 1000000", "uid: 1.5", `deployment:23:11: uid 1.5: want a whole number`},
		{"uid: 1000000", "uid: -5", `deployment:23:11: -5: want a whole number from 0 to 4294967295`},
		{"uid: 1000000", "uid: 4294967296", `deployment:23:11: 4294967296: want a whole number from 0 to 4294967295`},
		{"tenant: user2", "tenant: user3", `deployment:23:28: DAG 1000000: unknown tenant "user3" (known: user1, user2)`},
		{"{weight: 2}", "{weight: 0}", `deployment:20:19: tenant user2: weight 0: want 1/1024 to 1024`},
		{"{weight: 2}", "{weight: -1}", `tenant user2: weight -1: want`},
		{"{weight: 2}", "{weight: .nan}", `tenant user2: weight NaN: want`},
		{"{weight: 2}", "{weight: .inf}", `tenant user2: weight +Inf: want`},
		{"{weight: 2}", "{weight: 1e-9}", `tenant user2: weight 1e-09: want`},
		{"area: 2}\ntenants", "area: 3}\ntenants", `deployment:17:90: task nt4: area 3 never fits: a region has 2`},
		{"area: 2}\ntenants", "area: 0}\ntenants", `task nt4: area 0: want 1 to 1048576`},
		{"area: 2}\ntenants", "area: 1.5}\ntenants", `deployment:17:90: area 1.5: want a whole number`},
		{"area: 2}\ntasks", "area: -2}\ntasks", `deployment:1:27: regions: area -2: want 1 to 1048576`},
		{"area: 2}\ntasks", "area: 2000000}\ntasks", `regions: area 2000000: want 1 to 1048576`},
		{"count: 3", "count: 0", `deployment:1:18: regions: count 0: want 1 to 1024`},
		{"count: 3", "count: 3, bitstream: 2G", `deployment:1:32: regions: bitstream 2G: want bytes such as 9000, 64k, 2M or 1G`},
		{"regions: {count: 3, area: 2}\n", "", `deployment: regions: count 0: want 1 to 1024`},
		{"kind: aead", "kind: aed", `deployment:6:11: task nt3: unknown kind "aed"`},
		{"kind: aead", "kinds: aead", `deployment:6:5: unknown field "kinds"`},
		{"    kind: aead\n", "", `task nt3: kind is missing`},
		{"reads: [payload]", "reads: [payloads]", `deployment:8:12: task nt3: reads: no field is named "payloads" (known: all, ethernet,`},
		{"writes: [payload]\n", "writes: payload\n", `deployment:9:13: string was used where sequence is expected`},
		{"memory: 4M", "memory: 4MB", `deployment:11:13: task nt3: memory 4MB: want bytes such as 9000, 64k, 2M or 1G`},
		{"memory: 4M", "memory: 99999999999999999999G", `task nt3: memory 99999999999999999999G: want bytes`},
		{"memory: 4M", "memory: 9999999G", `task nt3: memory 9999999G: at most 1099511627776`},
		{"throughput: 7Gbit", "throughput: 7G", `deployment:12:17: task nt3: throughput 7G: want a rate from 1bit`},
		{"throughput: 7Gbit", "throughput: 70000Gbit", `task nt3: throughput 70000Gbit: want a rate from 1bit to 10Tbit, such as 10Mbit`},
		{"throughput: 7Gbit", "throughput: NaNGbit", `task nt3: throughput NaNGbit: want a rate`},
		{"latency: 1.3us", "latency: 2s", `deployment:13:14: task nt3: latency 2s: want a time such as 64ns or 1.3us, at most 1s`},
		{"latency: 1.3us", "latency: -1ns", `task nt3: latency -1ns: want`},
		{"credits: 4", "fault: skip", `deployment:15:12: task nt3: fault skip: want drop or pass`},
		{"credits: 4", "restart: -1", `deployment:15:14: task nt3: restart -1: want 0 to`},
		{"credits: 4", "restart: 1.5", `restart 1.5: want a whole number`},
		{"credits: 4", "credits: 0", `deployment:15:14: task nt3: credits 0: want 1 to 32768`},
		{"credits: 4", "credits: &c 4.5", `credits 4.5: want a whole number`},
		{"bitstream: 1M", "bitstream: -1", `task nt3: bitstream -1: want bytes`},
		{"bitstream: 1M", "bitstream: 0", `task nt3: bitstream 0: want bytes`},
		{"  nt3:\n", "  nt 3:\n", `deployment:6:5: task name "nt 3": use letters, digits, '_' and '-', at most 64`},
		{"  nt3:\n", "  nt2:\n", `deployment:5:3: `},
		{"  user1: {}", "  -user1: {}", `tenant name "-user1": use letters`},
		{`"in:2"`, `"in:x"`, `deployment:26:13: rule 2: in:x: want one port, a number of 16 bits`},
		{`"proto:1"`, `""`, `deployment:27:6: rule 3: match is missing (all: every frame)`},
		{"dag: 1000000", "dag: 8", `deployment:26:39: rule 2: there is no DAG 8`},
		{"dag: 1000000", "dag: 7, road: switch", `deployment:26:6: rule 2: want dag: UID or road: switch, control or refuse, one of both`},
		{"road: control", "road: back", `deployment:27:30: rule 3: road "back": want switch, control or refuse`},
		{"priority: 5", "priority: 5000000000", `rule 2: priority 5000000000: want`},
		{"{count: 3", "{count: 3]", `deployment:1:`},
	} {
		src := strings.Replace(board, c.old, c.new, 1)
		if src == board {
			t.Fatalf("%q is not in the text", c.old)
		}
		_, err := ParseDeployment([]byte(src), Known{Kind: kinds})
		var e *SpecError
		if !errors.As(err, &e) || !strings.Contains(e.Error(), c.want) || strings.Contains(e.Error(), "\n") {
			t.Errorf("%s:\n got %v\nwant %s", c.new, err, c.want)
			continue
		}
		if e.Line > 0 && !strings.Contains(e.Excerpt, ">") && !strings.Contains(e.Msg, "whole number") {
			t.Errorf("%s: no excerpt: %q", c.new, e.Excerpt)
		}
	}
}

// Errors of a Spec that was made, not read, name the field.
func TestErrorsWithoutText(t *testing.T) {
	s := &Spec{
		Regions: RegionsSpec{Count: 1, Area: 1},
		Tasks:   map[string]TaskSpec{"a": {Kind: "x"}},
		Tenants: map[string]TenantSpec{"u": {}},
		DAGs:    []DAGSpec{{UID: 1, Tenant: "u", Run: "a\n-> b"}},
	}
	_, err := s.Check(Known{})
	if err == nil || err.Error() != `deployment: DAG 1: "" is no name of a task: want a -> b -> c; a -> d` {
		t.Error(err)
	}
	s.DAGs[0].Run = "a"
	if _, err := s.Check(Known{}); err != nil {
		t.Error(err)
	}
	for i := range 65 {
		s.Tasks[fmt.Sprint("t", i)] = TaskSpec{Kind: "x"}
		s.DAGs[0].Run += fmt.Sprint(" -> t", i)
	}
	if _, err := s.Check(Known{}); err == nil || err.Error() != "deployment: DAG 1: more than 64 tasks" {
		t.Error(err)
	}
	s.DAGs[0].Run = "t1 -> nosuch"
	if _, err := s.Check(Known{}); err == nil || err.Error() != `deployment: DAG 1: unknown task "nosuch" (66 are known)` {
		t.Error(err)
	}
	if err := s.Errorf([]any{"tasks", "a"}, "two\nlines"); err.Error() != "deployment: two lines" {
		t.Error(err)
	}
}

func genSpec(t *rapid.T) *Spec {
	s := &Spec{
		Regions: RegionsSpec{Count: rapid.IntRange(1, 9).Draw(t, "regions"), Area: rapid.IntRange(1, 4).Draw(t, "area")},
		Tasks:   map[string]TaskSpec{}, Tenants: map[string]TenantSpec{},
	}
	text := func(what string, of ...string) string { return rapid.SampledFrom(append(of, "")).Draw(t, what) }
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "count", "args", "c-d", "0x10", "1e3", "yes", "null", "5", "_"}), 1, 6).Draw(t, "names")
	for _, n := range names {
		x := TaskSpec{
			Kind: "dummy", Memory: text("memory", "1G", "4096"), Throughput: text("throughput", "1.5Gbit", "7bit"),
			Latency: text("latency", "64ns", "1ms"), Bitstream: text("bitstream", "1M"),
			Fault: text("fault", "drop", "pass"), Restart: rapid.IntRange(0, 2).Draw(t, "restart"),
			Drops: rapid.Bool().Draw(t, "drops"), Endpoint: rapid.Bool().Draw(t, "endpoint"),
		}
		if rapid.Bool().Draw(t, "more") {
			x.Args = map[string]string{"k: v": "1.5", "b": "x, y\n# z"}
			x.Reads = []string{"all", "length"}
			x.Writes = []string{"ports"}
			one := 1
			x.Area, x.Credits, x.Remote = &one, &one, &x.Drops
		}
		s.Tasks[n] = x
	}
	weight := rapid.Float64Range(1./1024, 1024).Draw(t, "weight")
	s.Tenants["t"] = TenantSpec{Weight: &weight}
	s.Tenants["true"] = TenantSpec{}
	for i := range rapid.IntRange(0, 3).Draw(t, "dags") {
		s.DAGs = append(s.DAGs, DAGSpec{UID: uint32(i + 1), Tenant: text("tenant", "t", "true"), Run: text("run", "a -> count", names[0], "a; c-d -> _")})
		if rapid.Bool().Draw(t, "rule") {
			s.Rules = append(s.Rules, RuleSpec{Match: text("match", "all", "in:3+dport:80-90"), Priority: i, DAG: uint32(i + 1)})
		}
	}
	return s
}

// again checks that what a Spec is written as is the same Spec.
func again(t interface{ Fatalf(string, ...any) }, s *Spec) {
	y, err := s.Marshal()
	if err != nil {
		t.Fatalf("%v", err)
	}
	back, err := Parse(y)
	if err != nil {
		t.Fatalf("%v\n%s", err, y)
	}
	if d := cmp.Diff(s, back, cmpopts.IgnoreUnexported(Spec{}), cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s\n%s", d, y)
	}
	d1, err1 := s.Check(Known{})
	d2, err2 := back.Check(Known{})
	if (err1 == nil) != (err2 == nil) {
		t.Fatalf("%v, but when read again %v", err1, err2)
	}
	if d := cmp.Diff(d1, d2, append(exact, cmpopts.EquateEmpty())...); d != "" {
		t.Fatalf("%s", d)
	}
	if err1 != nil {
		return
	}
	// A DAG's text says all of it.
	for i := range d1.DAGs {
		back.DAGs[i].Run = d1.Text(DAGID(i))
	}
	d3, err := back.Check(Known{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if d := cmp.Diff(d1, d3, append(exact, cmpopts.EquateEmpty())...); d != "" {
		t.Fatalf("%s", d)
	}
}

func TestSpecRoundTrip(t *testing.T) {
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		s := genSpec(t)
		again(t, s)
		if _, err := s.Check(Known{}); err == nil {
			good++
		}
	})
	if good == 0 {
		t.Error("no Spec was good")
	}
}

// What can be read is written so that it can be read again; what is good has
// stages and chains, or too many; errors are one line.
func FuzzParse(f *testing.F) {
	f.Add([]byte(board))
	f.Add([]byte("regions: {count: 1, area: 1}\ntasks: {a: &x {kind: k}, b: *x}\ntenants: {t: {}}\ndags: [{uid: 1, tenant: t, run: a -> b -> a}]\n"))
	f.Add([]byte("regions: {count: 1, area: 9}\ntasks: {a: {kind: k, area: 1e400}}\n"))
	f.Add([]byte("tasks: !!x\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		oneLine := func(err error) {
			var e *SpecError
			if !errors.As(err, &e) || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("%T %q", err, err)
			}
		}
		s, err := Parse(src)
		if err != nil {
			oneLine(err)
			return
		}
		d, err := s.Check(Known{})
		if err != nil {
			oneLine(err)
			return
		}
		again(t, s)
		for i := range d.DAGs {
			n := 0
			for _, st := range d.Stages(DAGID(i), 2) {
				for _, b := range st {
					n += len(b)
				}
			}
			if n != len(d.DAGs[i].Tasks) {
				t.Errorf("%d tasks of %v", n, d.DAGs[i])
			}
		}
		if _, err := d.Chains(100); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%q", err)
		}
	})
}

// Ten thousand tenants with a DAG each are checked, cut into stages and chained
// in moments.
func BenchmarkManyTenants(b *testing.B) {
	var y strings.Builder
	y.WriteString("regions: {count: 8, area: 3}\ntasks:\n")
	for i := range 16 {
		fmt.Fprintf(&y, "  nt%d: {kind: dummy, reads: [ports], writes: [%s]}\n", i, []string{"ports", "vlan", "payload"}[i%3])
	}
	y.WriteString("tenants:\n")
	for i := range 10000 {
		fmt.Fprintf(&y, "  u%d: {}\n", i)
	}
	y.WriteString("dags:\n")
	for i := range 10000 {
		fmt.Fprintf(&y, "  - {uid: %d, tenant: u%d, run: nt%d -> nt%d -> nt%d -> nt%d}\n", i+1, i, i%4, 4+i/4%4, 8+i/16%4, 12+i/64%4)
	}
	s, err := Parse([]byte(y.String()))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		d, err := s.Check(Known{})
		if err != nil {
			b.Fatal(err)
		}
		for i := range d.DAGs {
			d.Stages(DAGID(i), 0)
		}
		if _, err := d.Chains(0); err != nil {
			b.Fatal(err)
		}
	}
}

// What would take long to read is refused at once (nf/yaml).
func TestBounds(t *testing.T) {
	if _, err := Parse([]byte("tasks: " + strings.Repeat("[", 1<<17))); err == nil || err.Error() != "deployment:1:40: nested more than 32 deep" {
		t.Error(err)
	}
	// What aliases are for goes on.
	src := "regions: {count: 1, area: 1}\ntasks:\n  a: &x {kind: k, args: {a: b}}\n  b: *x\n  c: {<<: *x, drops: true}\n"
	if d, err := ParseDeployment([]byte(src), Known{}); err != nil || len(d.Tasks) != 3 || d.Tasks[1].Args["a"] != "b" || !d.Tasks[2].Drops {
		t.Errorf("%v, %+v", err, d)
	}
}
