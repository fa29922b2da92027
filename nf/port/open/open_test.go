package open

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// inVeth moves the test's thread to a network namespace of its own, with a veth between va and vb.
func inVeth(t *testing.T) {
	t.Helper()
	netnstest.Enter(t)
	netnstest.Veth(t, "va", "vb")
}

// resident is how much memory of its own this process has, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, rss int
	if _, err := fmt.Sscan(string(b), &size, &rss); err != nil {
		t.Fatal(err)
	}
	return rss * os.Getpagesize()
}

// TestReloads: ports that plans open and close leave nothing behind, neither
// memory nor files, while the graph runs.
func TestReloads(t *testing.T) {
	inVeth(t)
	parse := func(src string) *graph.Spec {
		spec, err := graph.ParseSpec([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	const without = "ports: {t: {kind: tap, args: {dev: tap0}}}\n"
	const with = "ports: {t: {kind: tap, args: {dev: tap0}}, x: {kind: afxdp, args: {dev: va, frames: 16384}}, y: {kind: afpacket, args: {dev: vb}}}\n" +
		"links: [x.out -> t.in, t.out -> x.in, y.out -> y.in]\n"
	const each = 16384 * 2048 // bytes of x

	clk := clock.NewWall()
	ports, err := Open(parse(without), Config{Filter: port.Filter{All: true}, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	inst, err := graph.New(graph.Config{
		Spec: parse(without), Kinds: graph.Builtin(), Ports: ports.Queues(), Clock: clk,
		OpenPort:   ports.Add,
		ClosedPort: ports.Closed,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inst.Run(ctx) }()
	apply := func(src string) {
		t.Helper()
		p, err := inst.Plan(parse(src))
		if err == nil {
			err = inst.Apply(p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files := func() int {
		fs, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fs)
	}

	apply(with)
	apply(without)
	before, opened := resident(t), files()
	for range 8 {
		apply(with)
		if n := len(ports.Bound()); n != 1 {
			t.Fatalf("%d are bound", n)
		}
		if n := resident(t) - before; n > 2*each {
			t.Fatalf("%d bytes more than before are resident", n)
		}
		apply(without)
	}
	for try := 0; resident(t) > before-each/2; try++ {
		if try == 500 {
			t.Fatalf("%d bytes are resident, %d were with the memory of one port", resident(t), before)
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if n := files(); n > opened {
		t.Errorf("%d files are open, %d were", n, opened)
	}
	if n := len(ports.open); n != 1 || len(ports.Bound()) != 0 {
		t.Errorf("%d ports are open, %v", n, ports.Bound())
	}
	cancel()
	if err := errors.Join(<-done, inst.Close()); err != nil {
		t.Error(err)
	}
}

// TestCopyArgument: each word of copy reaches the port, others are refused.
func TestCopyArgument(t *testing.T) {
	for word, want := range map[string]afxdp.Copying{"auto": afxdp.CopyAuto, "always": afxdp.CopyAlways, "never": afxdp.CopyNever} {
		if x, err := readPort("x", xdpArguments, graph.Args{"dev": "eth1", "copy": word}); err != nil || x.options(port.Filter{}, nil).Copy != want {
			t.Errorf("copy=%s: %v, %v", word, x.copying, err)
		}
	}
	if _, err := readPort("x", xdpArguments, graph.Args{"dev": "eth1", "copy": "force"}); err == nil || err.Error() != "port x: copy=force: want auto, always or never" {
		t.Error(err)
	}
}

// TestPortsRefuse: what is wrong with ports is said before any is opened.
func TestPortsRefuse(t *testing.T) {
	pair := func(more graph.Args) *graph.Spec {
		a, b := graph.Args{"dev": "none0", "pair": "b"}, graph.Args{"dev": "none1", "pair": "a"}
		for k, v := range more {
			a[k] = v
			b[k] = v
		}
		return &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: AFXDP, Args: a}, "b": {Kind: AFXDP, Args: b}}}
	}
	lonely := pair(nil)
	delete(lonely.Ports, "b")
	uneven := pair(nil)
	uneven.Ports["b"].Args["ring"] = "512"
	for _, c := range []struct {
		spec *graph.Spec
		want string
	}{
		{pair(graph.Args{"xdp": "fast"}), "port a: xdp=fast: want auto, native or generic"},
		{pair(graph.Args{"ring": "x"}), "port a: ring=x: want a number"},
		{pair(graph.Args{"queues": "-1"}), "port a: queues=-1: want a number"},
		{pair(graph.Args{"fallback": "wall"}), "port a: fallback=wall: want redirect or pass"},
		{pair(graph.Args{"keep": "maybe"}), "port a: keep=maybe: want false or true"},
		{pair(graph.Args{"stale": "soon"}), "port a: stale=soon: want a duration"},
		{pair(graph.Args{"offloads": "some"}), "port a: offloads=some: want set or leave"},
		{pair(graph.Args{"dev": ""}), "port a: dev= is missing"},
		{pair(nil), `interface "none0"`},
		{lonely, `port a: its pair "b" must be an afxdp port`},
		{uneven, "ports a and b are a pair"},
	} {
		o, err := Open(c.spec, Config{Filter: port.Filter{All: true}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if err == nil {
			o.Close()
		}
	}
}

// Ports of a kind that a program adds itself have that program's arguments.
func TestOwnKinds(t *testing.T) {
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: "ring"}, "b": {Kind: "ring"}, "c": {Kind: "file", Args: graph.Args{"dev": "eth1"}}, "d": {Kind: AFXDP, Args: graph.Args{"dev": "eth1"}}}}
	if err := Valid(spec); err != nil {
		t.Error(err)
	}
}

// TestStart: what is wrong is said before anything is opened; a graph whose interface goes away ends by itself, and is stopped as
// any other.
func TestStart(t *testing.T) {
	parse := func(src string) *graph.Spec {
		spec, err := graph.ParseSpec([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	const wire = "apps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in]\n"
	cfg := Config{Clock: clock.NewWall()}
	for src, want := range map[string]string{
		"ports: {a: {kind: afxdp, args: {dev: none0, ring: x}}, b: {kind: tap, args: {dev: t0}}}\n" + wire:               "want a number",
		"ports: {a: {kind: mem}, b: {kind: mem}}\n" + wire:                                                               `kind "mem"`,
		"ports: {a: {kind: afxdp, args: {dev: none0, pair: b}}, b: {kind: afxdp, args: {dev: none1, pair: a}}}\n" + wire: `none0`,
	} {
		if _, err := Start(graph.Config{Spec: parse(src), Kinds: graph.Builtin()}, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	inVeth(t)
	r, err := Start(graph.Config{Spec: parse("ports: {a: {kind: afxdp, args: {dev: va}}, b: {kind: tap, args: {dev: tap0}}}\n" + wire), Kinds: graph.Builtin()}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil || len(r.Ports.Bound()) != 1 {
		t.Errorf("%v, %v", err, r.Ports.Bound())
	}
	l, err := netlink.LinkByName("va")
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the graph goes on without its interface")
	}
	if err := r.Err(); !errors.Is(err, port.ErrClosed) {
		t.Error(err)
	}
	if err := r.Stop(); !errors.Is(err, port.ErrClosed) {
		t.Error(err)
	}
	if _, err := netlink.LinkByName("tap0"); !errors.As(err, new(netlink.LinkNotFoundError)) {
		t.Errorf("tap0 is left: %v", err)
	}
}
