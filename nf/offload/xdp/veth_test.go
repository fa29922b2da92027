package xdp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/balance"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/police"
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

// onVeths are functions between two interfaces, at one of which a client sends a frame all the time.
type onVeths struct {
	*testing.T
	r      *blast.Range
	x      *open.Running
	answer []byte
}

// newVeths starts a graph behind the interfaces.
func newVeths(t *testing.T, s *graph.Spec, f, answer []byte, kinds ...graph.Kind) *onVeths {
	r, err := blast.New([]blast.Frame{{Bytes: f}, {Bytes: f}}, 0)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.Burst = 1 << 18
	v := &onVeths{T: t, r: r, answer: answer}
	if err := r.Near.Do(func() (err error) {
		v.x, err = open.Start(graph.Config{Spec: s, Kinds: kinds}, open.Config{Clock: clock.NewWall()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, r.Near.Do(v.x.Stop)); err != nil {
			t.Error(err)
		}
	})
	return v
}

func (v *onVeths) look() graph.AheadReport {
	v.Helper()
	a, err := v.x.Graph.Ahead()
	if err != nil {
		v.Fatal(err)
	}
	return a
}

func (v *onVeths) wait(what string, ok func() bool) {
	v.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	v.Fatalf("10 s later: %s: %+v", what, v.look())
}

// runs reports whether the flow, which is answered, crosses in the kernel.
func (v *onVeths) runs() bool {
	if err := v.r.Answer([][]byte{v.answer}); err != nil {
		v.Fatal(err)
	}
	n, arrived := v.look().Finished, v.r.Arrived()
	time.Sleep(50 * time.Millisecond)
	return v.look().Finished > n+1000 && v.r.Arrived() > arrived+1000
}

// stands reports whether nothing crosses in the kernel.
func (v *onVeths) stands() bool {
	n := v.look().Finished
	time.Sleep(50 * time.Millisecond)
	return v.look().Finished == n
}

func (v *onVeths) set(app string, args graph.Args) {
	v.Helper()
	if _, err := v.x.Graph.Set(app, args); err != nil {
		v.Fatal(err)
	}
}

func onVeth(t *testing.T, pair bool) {
	client, router, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 8}
	f := datagram(client, router, "10.0.0.2", "203.0.113.1", 5000, 53)
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps: map[string]graph.AppSpec{"firewall": {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "offload": "on"}},
			"napt": {Kind: "napt", Args: graph.Args{"public": "198.51.100.1", "mac": "02:00:00:00:00:01", "offload": "on"}}},
		Links: []string{"pa.out -> firewall.a", "firewall.b -> napt.a", "napt.b -> pb.in", "pb.out -> napt.b", "napt.a -> firewall.b", "firewall.a -> pa.in"},
	}
	if pair {
		s.Ports["pa"].Args["pair"], s.Ports["pb"].Args["pair"] = "pb", "pa"
	}
	v := newVeths(t, s, f, datagram(server, router, "203.0.113.1", "198.51.100.1", 53, 5000), *firewall.Kind(), *napt.Kind())
	v.wait("no frame arrives", func() bool { return v.r.Arrived() > 100 })
	if a := v.look(); a.Entries > 0 || a.Finished > 0 {
		t.Errorf("nobody has answered yet: %+v", a)
	}
	v.wait("the flow does not cross in the kernel", v.runs)

	tap, err := v.x.Graph.Tap("napt.b")
	if err != nil {
		t.Fatal(err)
	}
	v.wait("frames cross beside a tap", v.stands)
	tap.Close()
	v.wait("the flow does not cross in the kernel behind a tap", v.runs)

	v.set("firewall", graph.Args{"rules": "deny"})
	if !v.stands() {
		t.Error("frames cross that the rules deny")
	}
	v.set("firewall", graph.Args{"rules": "allow+in:a"})
	v.wait("the flow does not cross again", v.runs)
	v.set("firewall", graph.Args{"offload": "off"})
	if !v.stands() {
		t.Error("frames cross though the firewall has offload=off")
	}
}

// TestVethBalance: so do connections that have a backend, until it goes.
func TestVethBalance(t *testing.T) {
	client, router, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 8}
	const first, second = "10.9.0.1@02:00:00:00:00:08", "10.9.0.2@02:00:00:00:00:07"
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps:  map[string]graph.AppSpec{"balance": {Kind: "balance", Args: graph.Args{"vip": "203.0.113.1", "port": "53", "backends": first, "mac": "02:00:00:00:00:01", "offload": "on"}}},
		Links: []string{"pa.out -> balance.a", "balance.b -> pb.in", "pb.out -> balance.b", "balance.a -> pa.in"},
	}
	v := newVeths(t, s, datagram(client, router, "10.0.0.2", "203.0.113.1", 5000, 53), datagram(server, client, "10.9.0.1", "10.0.0.2", 53, 5000), *balance.Kind())
	v.wait("the flow does not cross in the kernel", v.runs)
	v.set("balance", graph.Args{"backends": first + "/drain+" + second})
	v.wait("a connection of a backend that is drained does not cross any more", v.runs)
	v.set("balance", graph.Args{"backends": first + "/down+" + second})
	if !v.stands() {
		t.Error("frames cross to a backend that is down")
	}
	v.answer = datagram([6]byte{2, 0, 0, 0, 0, 7}, client, "10.9.0.2", "10.0.0.2", 53, 5000)
	v.wait("the flow does not cross to the other backend", v.runs)
}

// TestVethPolice: frames that are too many are dropped in the kernel, and about as many pass as may.
func TestVethPolice(t *testing.T) {
	client, router, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 8}
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps:  map[string]graph.AppSpec{"police": {Kind: "police", Args: graph.Args{"cir": "5kpps", "cbs": "100", "pbs": "100", "on": "a", "yellow": "dscp:AF12", "offload": "on"}}},
		Links: []string{"pa.out -> police.a", "police.b -> pb.in", "pb.out -> police.b", "police.a -> pa.in"},
	}
	v := newVeths(t, s, datagram(client, router, "10.0.0.2", "203.0.113.1", 5000, 53), datagram(server, client, "203.0.113.1", "10.0.0.2", 53, 5000), *police.Kind())
	began := time.Now()
	many := func() bool { // more than may pass are run in front
		_ = v.r.Answer([][]byte{v.answer})
		n := v.look().Finished
		time.Sleep(100 * time.Millisecond)
		return v.look().Finished > n+5000
	}
	v.wait("the flow does not cross in the kernel", many)
	at := time.Now() // the time is that between two looks, and what lies between a look and the clock
	n := v.r.Arrived()
	v.wait("the flow does not cross in the kernel any more", many)
	last := v.r.Arrived()
	took := time.Since(at)
	const more = 100 + 100 + 1024 // what both buckets have, and a ring
	if got := float64(last - n); got > took.Seconds()*5000+more || last == n {
		t.Errorf("%v frames arrive in %v, %v behind the start", got, took, at.Sub(began))
	}
}
