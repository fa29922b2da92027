package admin_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

const spec = `ports:
  a: {kind: mem}
  b: {kind: mem}
apps:
  gate: {kind: gate, args: {open: "yes"}}
links:
  - a.out -> gate.in
  - gate.out -> b.in
`

// gate passes frames, or punts them while it is shut.
type gate struct{ shut bool }

func (g *gate) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if g.shut {
			c.Punt(x, 0)
			continue
		}
		c.Emit(0, x)
	}
}

func (*gate) Takes(graph.Args) bool { return true }
func (g *gate) Reconfigure(args graph.Args) error {
	switch args["open"] {
	case "yes", "":
		g.shut = false
	case "no":
		g.shut = true
	default:
		return errors.New("open is yes or no")
	}
	return nil
}

func (g *gate) Report() any { return map[string]bool{"shut": g.shut} }

func kinds() []graph.Kind {
	return append(graph.Builtin(), graph.Kind{
		Name: "gate", In: []string{"in"}, Out: []string{"out"},
		Params:  []graph.Param{{Name: "open"}},
		Reasons: []counter.Def{{Name: "shut"}},
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			g := &gate{}
			return g, g.Reconfigure(args)
		},
	})
}

type bench struct {
	t       *testing.T
	pool    *packet.Pool
	far     *mem.Port
	out     *mem.Port
	inst    *graph.Instance
	srv     *admin.Server
	now     clock.Time
	stopped atomic.Int32
}

func newBench(t *testing.T) *bench {
	t.Helper()
	x := &bench{t: t, now: 1}
	x.pool, _ = packet.NewPool(256, 512, nil)
	clk := clock.NewManual(1)
	a, far := mem.NewWire("a", "a-far", x.pool, 64, clk)
	b, out := mem.NewWire("b", "b-far", x.pool, 64, clk)
	x.far, x.out = far, out
	s, err := graph.ParseSpec([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	x.inst, err = graph.New(graph.Config{Spec: s, Kinds: kinds(), Ports: map[string][]port.Port{"a": {a}, "b": {b}}})
	if err != nil {
		t.Fatal(err)
	}
	x.srv, err = admin.Listen(t.Context(), admin.Config{
		Name: "test", Path: filepath.Join(t.TempDir(), "test.sock"), Instance: x.inst,
		Stop:     func() { x.stopped.Add(1) },
		PortInfo: func() any { return []string{"bound"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.srv.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(x.srv.Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
		if err := x.inst.Conservation(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *bench) dial() *admin.Client {
	x.t.Helper()
	c, err := admin.Dial(x.srv.Path())
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	return c
}

func (x *bench) send(frames ...string) {
	x.t.Helper()
	var b packet.Batch
	for _, f := range frames {
		p := x.pool.Get()
		p.SetBytes([]byte(f))
		b.Add(p)
	}
	if _, err := x.far.Tx(&b); err != nil {
		x.t.Fatal(err)
	}
	x.now++
	if _, err := x.inst.Step(x.now); err != nil {
		x.t.Fatal(err)
	}
}

func TestShow(t *testing.T) {
	x := newBench(t)
	c := x.dial()
	if fi, err := os.Stat(x.srv.Path()); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if err := c.AddTrace("a", 1, ""); err != nil {
		t.Fatal(err)
	}
	x.send("1", "2")
	g, err := c.Graph()
	if err != nil || g.Name != "test" || g.Workers != 1 || g.Spec.Apps["gate"].Args["open"] != "yes" || !strings.Contains(g.Dot, `"gate" -> "b" [taillabel="out", headlabel="in"]`) {
		t.Errorf("%+v %v", g, err)
	}
	counts, err := c.Counters()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, k := range counts {
		found = found || k.Node == "gate" && k.Group == "frames" && k.Name == "out" && k.Value == 2
	}
	if !found {
		t.Errorf("%+v", counts)
	}
	r, err := c.Runtime()
	if err != nil || len(r.Nodes) != 3 || len(r.Links) != 2 || r.Links[0].Packets != 2 {
		t.Errorf("%+v %v", r, err)
	}
	p, err := c.Ports()
	if err != nil || len(p.Ports) != 2 || p.Ports[0].Queues[0].RxPackets != 2 || string(p.Info) != `["bound"]` {
		t.Errorf("%+v %v", p, err)
	}
	tr, err := c.Trace()
	if err != nil || len(tr) != 1 || tr[0].Lines[len(tr[0].Lines)-1].Text != "transmitted forwarded" {
		t.Errorf("%+v %v", tr, err)
	}
	if err := c.ClearTrace(); err != nil {
		t.Error(err)
	}
	if tr, err := c.Trace(); err != nil || len(tr) != 0 {
		t.Errorf("%v %v", tr, err)
	}
	rep, err := c.Report("gate")
	if err != nil || len(rep) != 1 || string(rep[0]) != `{"shut":false}` {
		t.Errorf("%s %v", rep, err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := c.Graph(); err != nil || x.stopped.Load() != 1 {
		t.Errorf("stopped %d times, %v", x.stopped.Load(), err)
	}
}

func TestChange(t *testing.T) {
	x := newBench(t)
	c := x.dial()
	p, err := c.Set("gate", graph.Args{"open": "no"})
	if err != nil || p.Text != "reconfigure gate: open=no (was yes)\n" {
		t.Errorf("%+v %v", p, err)
	}
	x.send("1")
	if x.out.Pending() != 0 {
		t.Error("the gate is open")
	}
	// What an app refuses when it is made is refused by a dry run, too.
	if _, err := c.Apply([]byte(strings.Replace(spec, "\"yes\"", "ajar", 1)), "", true); err == nil || !strings.Contains(err.Error(), "open is yes or no") {
		t.Error(err)
	}
	next := strings.Replace(spec, "gate, args: {open: \"yes\"}", "wire", 1)
	next = strings.ReplaceAll(strings.ReplaceAll(next, "gate.in", "gate.a"), "gate.out", "gate.b")
	for _, dry := range []bool{true, false} {
		p, err := c.Apply([]byte(next), "", dry)
		if err != nil || !strings.Contains(p.Text, "stop gate: gate\nstart gate: wire\n") || len(p.Actions) != 6 {
			t.Errorf("%+v %v", p, err)
		}
	}
	if p, err := c.Apply([]byte(next), "", false); err != nil || len(p.Actions) != 0 {
		t.Errorf("applied twice: %+v %v", p, err)
	}
	x.send("2")
	if x.out.Pending() != 1 {
		t.Error("the wire does not carry")
	}
	for _, bad := range []struct {
		err     error
		excerpt string
	}{{do(c.Set("gate", nil)), ""}, {do(c.Set("gat", graph.Args{"a": "b"})), ""}, {do(c.Report("gate")), ""}, {c.AddTrace("z", 1, ""), ""}, {do(c.Apply([]byte("apps: {x: {kind: wier}}\n"), "", true)), "wier"}} {
		var e *admin.Error
		if !errors.As(bad.err, &e) || e.Msg == "" || strings.Contains(e.Msg, "\n") || !strings.Contains(e.Excerpt, bad.excerpt) {
			t.Errorf("%#v", bad.err)
		}
	}
}

func do[T any](_ T, err error) error { return err }

func TestStreams(t *testing.T) {
	x := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var got []string
	first := x.dial()
	err := first.Tap(ctx, "gate.out", func() {
		if err := x.dial().Tap(ctx, "gate.out", nil, nil); err == nil || err.Error() != "gate.out is tapped already" {
			t.Errorf("%v", err)
		}
		x.send("1", "2")
		x.send("3")
	}, func(f admin.Captured) error {
		if f.Node != "gate" || f.Verdict != packet.Forwarded || f.Dropped != 0 {
			t.Errorf("%+v", f)
		}
		if got = append(got, string(f.Data)); len(got) == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || strings.Join(got, "") != "123" {
		t.Errorf("%q %v", got, err)
	}
	c := x.dial()
	if _, err := c.Set("gate", graph.Args{"open": "no"}); err != nil {
		t.Fatal(err)
	}
	err = c.Punts(ctx, func() { x.send("p") }, func(f admin.Captured) error {
		if string(f.Data) != "p" || f.Verdict != packet.Punted || f.App != "gate" || f.Reason != "shut" {
			t.Errorf("%+v", f)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
	// A client that hangs up frees the tap; the end of the server ends a tap.
	first.Close()
	for ctx.Err() == nil {
		ended := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			ended <- x.dial().Tap(ctx, "gate.out", func() { close(begun) }, func(admin.Captured) error { return nil })
		}()
		select {
		case <-begun:
			if err := x.srv.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the server has gone: %v", err)
			}
			return
		case <-ended: // not yet free
		}
	}
	t.Error("the tap was not freed")
}

func TestBadRequests(t *testing.T) {
	x := newBench(t)
	conn, err := net.Dial("unix", x.srv.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, c := range []struct{ send, want string }{
		{"hello\n", "the request is not JSON"},
		{`{"v":9,"op":"graph"}` + "\n", "speaks version 1 of the protocol, not 9"},
		{`{"v":1,"op":"fly"}` + "\n", `unknown operation \"fly\"`},
		{strings.Repeat("x", 2<<20) + "\n", "the request is longer than 1048576 bytes"},
	} {
		go func() { _, _ = io.WriteString(conn, c.send) }()
		line, err := in.ReadString('\n')
		if err != nil || !strings.Contains(line, c.want) {
			t.Errorf("%.40q: %q %v", c.send, line, err)
		}
	}
}

// What the server would not read is not sent: the refusal would be lost.
func TestHugeRequest(t *testing.T) {
	x := newBench(t)
	c := x.dial()
	_, err := c.Apply([]byte(strings.Repeat("# nothing\n", 200_000)), "", true)
	if err == nil || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
		t.Errorf("%v", err)
	}
	if _, err := c.Graph(); err != nil {
		t.Errorf("and afterwards: %v", err)
	}
}

// Of instances that start at once in the place of a dead one, one is there
// afterwards.
func TestStartAtOnce(t *testing.T) {
	x := newBench(t)
	for n := range 30 {
		path := filepath.Join(t.TempDir(), "x.sock")
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		ln.Close()
		var up atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if s, err := admin.Listen(t.Context(), admin.Config{Path: path, Instance: x.inst}); err == nil {
					up.Add(1)
					t.Cleanup(func() { s.Close() })
				}
			})
		}
		wg.Wait()
		if up.Load() != 1 {
			t.Fatalf("round %d: %d listen", n, up.Load())
		}
	}
}

func TestSocket(t *testing.T) {
	x := newBench(t)
	if _, err := admin.Listen(t.Context(), admin.Config{Path: x.srv.Path(), Instance: x.inst}); err == nil || !strings.Contains(err.Error(), " answers on ") {
		t.Errorf("%v", err)
	}
	// A socket left behind by a dead process is replaced.
	stale := filepath.Join(t.TempDir(), "stale.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	if _, err := admin.Dial(stale); err == nil || !strings.Contains(err.Error(), "no instance answers on") {
		t.Errorf("%v", err)
	}
	s, err := admin.Listen(t.Context(), admin.Config{Path: stale, Instance: x.inst})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// What is no socket is left alone.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Listen(t.Context(), admin.Config{Path: file, Instance: x.inst}); err == nil {
		t.Error("listens on a file")
	}
	if p, err := os.ReadFile(file); err != nil || string(p) != "precious" {
		t.Errorf("%q %v", p, err)
	}
}
