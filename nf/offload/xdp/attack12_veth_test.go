package xdp_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// TestAttack12Lost: what happens to an interface or its other end under traffic costs a flow in the kernel no frames that the functions would have sent, once
// that was noticed.
func TestAttack12Lost(t *testing.T) {
	for name, x := range map[string]struct {
		length int
		change func(near, far *topo.Space) error
	}{
		"the other end loses GRO": {64, func(near, far *topo.Space) error {
			return far.Do(func() error {
				e, err := ethtool.Open()
				if err != nil {
					return err
				}
				defer e.Close()
				return e.Change("b0", map[string]bool{"rx-gro": false})
			})
		}},
		"MTU lowered": {1400, func(near, far *topo.Space) error {
			return near.Do(func() error {
				l, err := netlink.LinkByName("vb")
				if err != nil {
					return err
				}
				return netlink.LinkSetMTU(l, 1000)
			})
		}},
	} {
		for _, offload := range []string{"off", "on"} {
			t.Run(name+" "+offload, func(t *testing.T) { lost12(t, offload, x.length, x.change) })
		}
	}
}

func lost12(t *testing.T, offload string, length int, change func(near, far *topo.Space) error) {
	var spaces [3]*topo.Space // the middle, and both ends
	for i := range spaces {
		s, err := topo.NewSpace(false)
		if errors.Is(err, port.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		spaces[i] = s
	}
	near := spaces[0]
	if err := errors.Join(topo.Veth(near, "va", spaces[1], "a0"), topo.Veth(near, "vb", spaces[2], "b0")); err != nil {
		t.Fatal(err)
	}
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": "va"}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": "vb"}}},
		Apps:  map[string]graph.AppSpec{"firewall": {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "offload": offload}}},
		Links: []string{"pa.out -> firewall.a", "firewall.b -> pb.in", "pb.out -> firewall.b", "firewall.a -> pa.in"},
	}
	var x *open.Running
	if err := near.Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: s, Kinds: []graph.Kind{*firewall.Kind()}}, open.Config{Clock: clock.NewWall()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := near.Do(x.Stop); err != nil {
			t.Error(err)
		}
	}()
	var fds [2]int
	for i, dev := range []string{"a0", "b0"} {
		if err := spaces[i+1].Do(func() (err error) {
			if fds[i], err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(binary.NativeEndian.Uint16([]byte{0, 3}))); err != nil {
				return err
			}
			l, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			return unix.Bind(fds[i], &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, 3}), Ifindex: l.Attrs().Index})
		}); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[i])
	}
	client, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 8}
	frames := [2][]byte{datagram(client, server, "10.0.0.2", "203.0.113.1", 5000, 53), datagram(server, client, "203.0.113.1", "10.0.0.2", 53, 5000)}
	frames[0] = append(frames[0], make([]byte, length-64)...) // padding
	send := func(i int) {
		if _, err := unix.Write(fds[i], frames[i]); err != nil {
			t.Fatal(err)
		}
	}
	arrived := func() (n int) {
		var b [2048]byte
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			k, from, err := unix.Recvfrom(fds[1], b[:], 0)
			if err != nil {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			if f, ok := from.(*unix.SockaddrLinklayer); ok && f.Pkttype != unix.PACKET_OUTGOING && k == length {
				n++
			}
		}
		return n
	}
	for n := range 100 {
		send(0)
		time.Sleep(20 * time.Millisecond)
		send(1)
		time.Sleep(20 * time.Millisecond)
		if a, err := x.Graph.Ahead(); err != nil || a.Finished > 2 || offload == "off" && n > 4 {
			break
		}
	}
	arrived()
	if err := change(near, spaces[2]); err != nil {
		t.Fatal(err)
	}
	for n := 0; offload == "on"; n++ {
		if a, err := x.Graph.Ahead(); err != nil || n == 1000 {
			t.Fatalf("nothing is noticed: %v", err)
		} else if len(a.LeftOut) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for range 50 {
		send(0)
		time.Sleep(time.Millisecond)
	}
	if n := arrived(); n < 50 {
		var drops uint64
		for _, p := range x.Graph.Ports() {
			drops += p.Queues[0].TxDropped
		}
		t.Errorf("%d of 50 frames arrive, %d are counted as dropped", n, drops)
	}
}
