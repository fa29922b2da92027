package p4

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// programFile writes a program where the app finds it.
func programFile(t testing.TB, s *source) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "program.json")
	if err := os.WriteFile(name, s.json(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// portSource sends by h.dst, the number of a port, multicasts to the group
// h.kind, clones when h.src is c and drops when it is d. It puts the input in
// front.
func portSource() *source {
	s := wired(arr{assign(std("egress_spec"), fld("h", "dst")), assign(std("mcast_grp"), fld("h", "kind")),
		prim("_jump_if_zero", wrap(exp("==", fld("h", "src"), hexs("0x63"))), hexs("0x4")),
		prim("clone_ingress_pkt_to_egress", hexs("0x1"), hexs("0x1")),
		prim("_jump_if_zero", wrap(exp("==", fld("h", "src"), hexs("0x64"))), hexs("0x6")),
		prim("mark_to_drop", hdrv("standard_metadata"))}, arr{prim("add_header", hdrv("x")), assign(fld("x", "port"), std("ingress_port"))})
	s.header("x", false, arr{"port", 16})
	s.deparse = arr{"x", "h"}
	return s
}

func TestApp(t *testing.T) {
	s := portSource()
	x := graphtest.New(t, *Kind(), graph.Args{"program": programFile(t, s), "cpu": "200"})
	sw := x.App().(*App).Switch()
	if err := sw.SetMulticast(9, []Replica{{Port: 3}, {Port: 300}, {Port: 512 + 99}}); err != nil {
		t.Fatal(err)
	}
	if err := sw.SetSession(1, Session{Replicas: []Replica{{Port: 6, Backups: []Replica{{Port: 5}}}}}); err != nil {
		t.Fatal(err)
	}
	x.App().(*App).SetLinks(map[uint32]bool{6: true})
	one := func(r graphtest.Result, out, want string) {
		t.Helper()
		if len(r.Out[out]) != 1 || string(r.Out[out][0].Bytes) != want {
			t.Errorf("output %s: %q, want %q", out, r.Out[out], want)
		}
	}
	r := x.Push("7", []byte("\x02a\x00rest"))
	one(r, "2", "\x00\x07\x02a\x00rest")
	if f := r.Out["2"][0]; f.Verdict != packet.Rewritten || f.Reason != "processed" {
		t.Errorf("%v %s", f.Verdict, f.Reason)
	}
	r = x.Push("7", []byte("\x02a\x09rest"))
	one(r, "3", "\x00\x07\x02a\x09rest")
	one(r, "300", "\x00\x07\x02a\x09rest")
	if len(r.Dropped) != 1 || r.Dropped[0].Reason != "no-port" {
		t.Errorf("to port 611: %+v", r.Dropped)
	}
	r = x.Push("7", []byte("\x02c\x00rest"))
	one(r, "5", "\x00\x00\x02c\x00rest")
	one(r, "2", "\x00\x07\x02c\x00rest")
	r = x.Push("7", []byte("\xc8a\x00rest"))
	if len(r.Punted) != 1 || string(r.Punted[0].Bytes) != "\x00\x07\xc8a\x00rest" || r.Punted[0].Reason != "packet-in" {
		t.Errorf("to the controller: %+v", r.Punted)
	}
	one(x.Push("cpu", []byte("\x02a\x00")), "2", "\x00\xc8\x02a\x00")
	r = x.Push("0", []byte("\x02d\x00rest"))
	if len(r.Dropped) != 1 || r.Dropped[0].Reason != "ingress-drop" {
		t.Errorf("dropped: %+v", r.Dropped)
	}
	if n := x.Counter("copies"); n != 3 {
		t.Errorf("%d copies", n)
	}
	rep := x.App().(graph.Reporter).Report().(Report)
	if rep.Dropped["ingress-drop"] != 1 {
		t.Errorf("%+v", rep)
	}
	trace := ""
	for _, p := range x.Inst.Trace() {
		trace += p.String()
	}
	if !strings.Contains(trace, "\n  app        +0s       state start\n") || !strings.Contains(trace, "9 bytes leave on port 2") {
		t.Errorf("trace: %s", trace)
	}
}

func TestAppRefuses(t *testing.T) {
	good := programFile(t, wired(nil, nil))
	bad := programFile(t, wired(arr{prim("fly")}, nil))
	for want, args := range map[string]graph.Args{
		"program=: open /nowhere":                 {"program": "/nowhere"},
		"action in, primitive fly: unknown":       {"program": bad},
		"cpu=x: want a number":                    {"program": good, "cpu": "x"},
		"passes=-1: want a number":                {"program": good, "passes": "-1"},
		"drop-port=70000: want a number from 0 t": {"program": good, "drop-port": "70000"},
	} {
		if _, err := newApp(graph.Env{Workers: 1}, args, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	if _, err := newApp(graph.Env{Workers: 2}, graph.Args{"program": good}, nil); err == nil {
		t.Error("two workers")
	}
}

// TestAppChangesProgram begins without a program, gets one, keeps it when the
// next is broken, and loses all state with another.
func TestAppChangesProgram(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{})
	app := x.App().(*App)
	if r := x.Push("1", []byte("\x02a\x00")); len(r.Dropped) != 1 || r.Dropped[0].Reason != "no-program" {
		t.Errorf("without a program: %+v", r)
	}
	if r := app.Report().(Report); len(r.Tables) != 0 {
		t.Errorf("without a program: %+v", r)
	}
	if err := app.Load(portSource().json()); err != nil {
		t.Fatal(err)
	}
	if err := app.Switch().SetMulticast(9, []Replica{{Port: 3}}); err != nil {
		t.Fatal(err)
	}
	if err := app.Load([]byte("{")); err == nil {
		t.Error("a broken program is taken")
	}
	if r := x.Push("1", []byte("\x02a\x09")); len(r.Out["3"]) != 1 {
		t.Errorf("after a broken program: %+v", r)
	}
	if err := app.Load(portSource().json()); err != nil {
		t.Fatal(err)
	}
	if r := x.Push("1", []byte("\x02a\x09")); len(r.Dropped) != 1 || r.Dropped[0].Reason != "no-replica" {
		t.Errorf("the group outlived its program: %+v", r)
	}
	trace := fmt.Sprint(x.Inst.Trace())
	for _, want := range []string{"a step of a program that was replaced", "to multicast group 9", "dropped: no-replica"} {
		if !strings.Contains(trace, want) {
			t.Errorf("trace without %q: %s", want, trace)
		}
	}
}

func TestAppAllocatesNothing(t *testing.T) {
	args := graph.Args{"program": programFile(t, portSource())}
	if n := graphtest.Allocs(t, *Kind(), args, "1", []byte("\x02a\x00rest"), []byte("\x02d\x00rest"), []byte("a")); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAppTracesEntries shows keys, entries and arguments in a running graph's
// trace.
func TestAppTracesEntries(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"program": "../../p4src/l2_bridge.json"})
	sw := x.App().(*App).Switch()
	key := []Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 9}}}
	forward := Action{"bridge_ingress.forward", [][]byte{{2}}}
	h, err := sw.Insert("bridge_ingress.dmac", Entry{Key: key, Action: forward})
	if err != nil {
		t.Fatal(err)
	}
	if err := sw.SetMulticast(1, []Replica{{Port: 1}, {Port: 2}}); err != nil {
		t.Fatal(err)
	}
	x.Push("1", []byte("\x02\x00\x00\x00\x00\x09\x02\x00\x00\x00\x00\x01\x88\xb5hit"))
	if err := sw.Delete("bridge_ingress.dmac", h); err != nil {
		t.Fatal(err)
	}
	x.Push("1", []byte("\x02\x00\x00\x00\x00\x08\x02\x00\x00\x00\x00\x01\x88\xb5miss"))
	trace := fmt.Sprint(x.Inst.Trace())
	for _, want := range []string{
		"table bridge_ingress.dmac hits entry 0: meta.vid = 0x1; hdr.ethernet.dst = 0x20000000009; the entry is gone\n",
		"action bridge_ingress.forward(port=0x2)\n",
		"table bridge_ingress.dmac misses: meta.vid = 0x1; hdr.ethernet.dst = 0x20000000008\n",
		"replicated to port 2 as copy 2\n",
		"copy 1: dropped: egress-drop\n",
		"copy 2: 18 bytes leave on port 2\n",
	} {
		if !strings.Contains(trace, want) {
			t.Errorf("without %q: %s", want, trace)
		}
	}
}

// TestAppTracesArguments shows three arguments; more are dots.
func TestAppTracesArguments(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{})
	app := x.App().(*App)
	sw, frames := routerSwitch(t, 1)
	app.Use(sw)
	x.Push("1", frames[0])
	trace := fmt.Sprint(x.Inst.Trace())
	if !regexp.MustCompile(`action router_ingress.forward\(dst=0x200000001\d\d, src=0x200000002\d\d, port=0x\d\)\n`).MatchString(trace) {
		t.Error(trace)
	}
	if got := app.sw.prog.Describe(Event{Kind: EventAction, Object: 0}); got != "action "+app.sw.prog.actions[0].Name+"()" {
		t.Error(got)
	}
	i := slices.IndexFunc(app.sw.prog.actions, func(a *action) bool { return a.Name == "router_ingress.forward" })
	if got := app.sw.prog.Describe(Event{Kind: EventAction, Object: i}); got != "action router_ingress.forward(...)" {
		t.Error(got)
	}
}

// Ports without a link stay known to the app when it gets another program.
func TestLinksOutliveAProgram(t *testing.T) {
	a := &App{}
	a.SetLinks(map[uint32]bool{3: true})
	for range 2 {
		sw := newSource().load(t, Config{})
		sw.SetLink(9, false)
		a.Use(sw)
		if len(sw.down) != 1 || !sw.down[3] {
			t.Errorf("down: %v", sw.down)
		}
	}
	a.SetLinks(nil)
	if len(a.sw.down) != 0 {
		t.Errorf("down: %v", a.sw.down)
	}
}
