package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// inNamespace moves the test's thread to a network namespace of its own, with a
// veth that is up.
func inNamespace(t *testing.T, a, b string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces, veth")
	}
	runtime.LockOSThread() // not unlocked: the thread and its namespace end with the test
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	la := netlink.NewLinkAttrs()
	la.Name = a
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: b}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{a, b} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
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
	inNamespace(t, "va", "vb")
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
	ports, err := open(parse(without), port.Filter{All: true}, clk)
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	inst, err := graph.New(graph.Config{
		Spec: parse(without), Kinds: kinds(), Ports: ports.ports, Clock: clk,
		OpenPort: func(name string, p graph.PortSpec) ([]port.Port, error) {
			return ports.add(name, p, port.Filter{All: true}, clk)
		},
		ClosedPort: ports.closed,
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
	before, open := resident(t), files()
	for range 8 {
		apply(with)
		if n := len(ports.bound()); n != 1 {
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
	if n := files(); n > open {
		t.Errorf("%d files are open, %d were", n, open)
	}
	if n := len(ports.open); n != 1 || len(ports.bound()) != 0 {
		t.Errorf("%d ports are open, %v", n, ports.bound())
	}
	cancel()
	if err := errors.Join(<-done, inst.Close()); err != nil {
		t.Error(err)
	}
}

// TestCopyArgument: what --copy and copy say reaches the port, or is refused.
func TestCopyArgument(t *testing.T) {
	for word, want := range map[string]afxdp.Copying{"auto": afxdp.CopyAuto, "always": afxdp.CopyAlways, "never": afxdp.CopyNever} {
		f := runFlags{inline: "eth1,eth2", nfs: []string{"wire"}, port: kindAFXDP, xdp: "auto", copying: word}
		spec, err := f.spec("")
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range spec.Ports {
			if x, err := readPort(name, xdpArguments, p.Args); err != nil || x.options(port.Filter{}, nil).Copy != want {
				t.Errorf("--copy %s: %v, %v", word, x.copying, err)
			}
		}
	}
	if _, err := readPort("x", xdpArguments, graph.Args{"dev": "eth1", "copy": "force"}); err == nil || err.Error() != "port x: copy=force: want auto, always or never" {
		t.Error(err)
	}
	f := runFlags{inline: "eth1,eth2", nfs: []string{"wire"}, port: kindAFPacket, xdp: "auto", copying: "never"}
	if _, err := f.spec(""); err == nil {
		t.Error("packet sockets have no zero-copy")
	}
}
