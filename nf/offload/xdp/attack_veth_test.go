package xdp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// TestAttackOffloadLinkDown: frames to an interface that is down are counted as dropped, by the kernel's flows as by the functions.
func TestAttackOffloadLinkDown(t *testing.T) {
	for _, offload := range []string{"off", "on"} {
		t.Run(offload, func(t *testing.T) { onLinkDown(t, offload) })
	}
}

func onLinkDown(t *testing.T, offload string) {
	client, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 8}
	f := datagram(client, server, "10.0.0.2", "203.0.113.1", 5000, 53)
	r, err := blast.New([]blast.Frame{{Bytes: f}, {Bytes: f}}, 1000)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps:  map[string]graph.AppSpec{"firewall": {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "offload": offload}}},
		Links: []string{"pa.out -> firewall.a", "firewall.b -> pb.in", "pb.out -> firewall.b", "firewall.a -> pa.in"},
	}
	var x *open.Running
	if err := r.Near.Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: s, Kinds: []graph.Kind{*firewall.Kind()}}, open.Config{Clock: clock.NewWall()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-done, r.Near.Do(x.Stop)); err != nil {
			t.Error(err)
		}
	}()
	answer := datagram(server, client, "203.0.113.1", "10.0.0.2", 53, 5000)
	for n := 0; ; n++ {
		if err := r.Answer([][]byte{answer}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		a, err := x.Graph.Ahead()
		if err != nil || n > 200 {
			t.Fatal(a, err)
		}
		if offload == "off" && n > 5 || a.Finished > 0 {
			break
		}
	}
	in := func() (graph, driver uint64) {
		for _, c := range x.Graph.Counters() {
			if c.Node == "pa" && c.Name == "in" {
				graph = c.Value
			}
		}
		return graph, x.Graph.Ports()[0].Queues[0].RxPackets
	}
	g0, d0 := in()
	time.Sleep(500 * time.Millisecond)
	g1, d1 := in()
	t.Logf("in 500 ms %d frames came in at pa, as the graph counts, and %d as the port does", g1-g0, d1-d0)
	if d1-d0 < (g1-g0)/2 {
		t.Error("the port's own counters leave out what the kernel has run")
	}
	if err := r.Near.Do(func() error {
		l, err := netlink.LinkByName(blast.B)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	}); err != nil {
		t.Fatal(err)
	}
	x.Graph.SetLinks(map[string]bool{"pa": true, "pb": false})
	if err := x.Graph.LeadLinks(); err != nil {
		t.Fatal(err)
	}
	count := func() (dropped uint64) {
		for _, p := range x.Graph.Ports() {
			if p.Name == "pb" {
				dropped += p.Queues[0].TxDropped
			}
		}
		return dropped
	}
	before := count()
	for n := 0; count()-before < 100; n++ { // frames that were lost are given up after a while (blast.Range.Run)
		if n == 100 {
			a, _ := x.Graph.Ahead()
			t.Fatalf("%d frames are counted as dropped: %+v", count()-before, a)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
