package xdp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// datagram is a UDP frame.
func datagram(src, dst [6]byte, from, to string, sport, dport uint16) []byte {
	b := make([]byte, 64)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: dst, Src: src, EtherType: hdr.EtherIPv4})
	ip := hdr.IPv4(b[hdr.EthernetLen:])
	ip.Encode(&hdr.IPv4Fields{TTL: 64, Protocol: hdr.ProtoUDP, Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to)})
	ip.SetTotalLen(uint16(len(ip)))
	ip.UpdateChecksum()
	hdr.UDP(ip[hdr.IPv4Len:]).Encode(&hdr.UDPFields{SrcPort: sport, DstPort: dport})
	hdr.UDP(ip[hdr.IPv4Len:]).SetLen(uint16(len(ip) - hdr.IPv4Len))
	return b
}

// TestVeth: between two interfaces, each alone or a pair, a flow crosses in the kernel once it was answered; not while there is a tap, nor when the firewall forbids it.
func TestVeth(t *testing.T) {
	for _, pair := range []bool{false, true} {
		t.Run(fmt.Sprintf("pair=%v", pair), func(t *testing.T) { onVeth(t, pair) })
	}
}

func onVeth(t *testing.T, pair bool) {
	client, router, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 8}
	f := datagram(client, router, "10.0.0.2", "203.0.113.1", 5000, 53)
	r, err := blast.New([]blast.Frame{{Bytes: f}, {Bytes: f}}, 0)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Burst = 1 << 18
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps: map[string]graph.AppSpec{"firewall": {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "offload": "on"}},
			"napt": {Kind: "napt", Args: graph.Args{"public": "198.51.100.1", "mac": "02:00:00:00:00:01", "offload": "on"}}},
		Links: []string{"pa.out -> firewall.a", "firewall.b -> napt.a", "napt.b -> pb.in", "pb.out -> napt.b", "napt.a -> firewall.b", "firewall.a -> pa.in"},
	}
	if pair {
		s.Ports["pa"].Args["pair"], s.Ports["pb"].Args["pair"] = "pb", "pa"
	}
	var x *open.Running
	if err := r.Near.Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: s, Kinds: []graph.Kind{*firewall.Kind(), *napt.Kind()}}, open.Config{Clock: clock.NewWall()})
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
	look := func() graph.AheadReport {
		t.Helper()
		a, err := x.Graph.Ahead()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for range 500 {
			if ok() {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("10 s later: %s: %+v", what, look())
	}
	answer := datagram(server, router, "203.0.113.1", "198.51.100.1", 53, 5000)
	wait("no frame arrives", func() bool { return r.Arrived() > 100 })
	if a := look(); a.Entries > 0 || a.Finished > 0 {
		t.Errorf("nobody has answered yet: %+v", a)
	}
	runs := func() bool {
		if err := r.Answer([][]byte{answer}); err != nil {
			t.Fatal(err)
		}
		n, arrived := look().Finished, r.Arrived()
		time.Sleep(50 * time.Millisecond)
		return look().Finished > n+1000 && r.Arrived() > arrived+1000
	}
	wait("the flow does not cross in the kernel", runs)

	tap, err := x.Graph.Tap("napt.b")
	if err != nil {
		t.Fatal(err)
	}
	stands := func() bool {
		n := look().Finished
		time.Sleep(50 * time.Millisecond)
		return look().Finished == n
	}
	wait("frames cross beside a tap", stands)
	tap.Close()
	wait("the flow does not cross in the kernel behind a tap", runs)

	if _, err := x.Graph.Set("firewall", graph.Args{"rules": "deny"}); err != nil {
		t.Fatal(err)
	}
	if !stands() {
		t.Error("frames cross that the rules deny")
	}
	if _, err := x.Graph.Set("firewall", graph.Args{"rules": "allow+in:a"}); err != nil {
		t.Fatal(err)
	}
	wait("the flow does not cross again", runs)
	if _, err := x.Graph.Set("firewall", graph.Args{"offload": "off"}); err != nil {
		t.Fatal(err)
	}
	if !stands() {
		t.Error("frames cross though the firewall has offload=off")
	}
}
