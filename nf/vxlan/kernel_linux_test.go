package vxlan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/mtu/mtutest"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

// TestKernel is a tunnel whose other end is Linux: a byte stream there and back,
// over IPv4, and over IPv6 with checksums. The host's MTU is not lowered, and the other
// end's TCP takes segments that do not fit: the host learns from ICMP how long its packets
// may be. Linux finds this end's MAC address by asking.
func TestKernel(t *testing.T) {
	for _, c := range []struct {
		name string
		six  bool
	}{{"IPv4", false}, {"IPv6", true}} {
		t.Run(c.name, func(t *testing.T) {
			host, peer, box := netnstest.NewHost(t), netnstest.NewHost(t), netnstest.NewHost(t)
			mtu := 1450
			outerLocal, outerPeer, bits := "10.0.0.1", "10.0.0.2", "/24"
			if c.six {
				mtu, outerLocal, outerPeer, bits = 1430, "2001:db8::1", "2001:db8::2", "/64"
			}
			plainLink, tunnelLink := box.Connect(t, "pa", host, "eth0", nil), box.Connect(t, "pb", peer, "eth0", nil)
			host.Address(t, plainLink, "192.168.7.1/24", "fd00:7::1/64")
			peer.Address(t, tunnelLink, outerPeer+bits)
			la := netlink.NewLinkAttrs()
			la.Name = "vx0"
			err := peer.LinkAdd(&netlink.Vxlan{LinkAttrs: la, VxlanId: 5000, VtepDevIndex: tunnelLink.Attrs().Index,
				SrcAddr: net.ParseIP(outerPeer), Group: net.ParseIP(outerLocal), Port: 4789, UDPCSum: true})
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("this kernel has no VXLAN: its end of the tunnel is not tried")
			}
			check(t, err)
			vx, err := peer.LinkByName("vx0")
			check(t, err)
			check(t, peer.LinkSetMTU(vx, mtu))
			check(t, peer.LinkSetUp(vx))
			peer.Address(t, vx, "192.168.7.2/24", "fd00:7::2/64")
			check(t, peer.RouteReplace(&netlink.Route{LinkIndex: vx.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: net.IP{192, 168, 7, 2},
				Dst: &net.IPNet{IP: net.IP{192, 168, 7, 0}, Mask: net.CIDRMask(24, 32)}, AdvMSS: 1460}))

			box.Enter(t)
			ports := map[string][]port.Port{}
			for i, n := range []string{"pa", "pb"} {
				p, err := afpacket.Open(afpacket.Config{Interface: n, Index: uint16(i + 1)})
				check(t, err)
				ports[n] = []port.Port{p}
			}
			a := args(c.six, false, "remote-mac", tunnelLink.Attrs().HardwareAddr.String(), "others", "drop")
			inst, err := graph.New(graph.Config{
				Spec: &graph.Spec{
					Ports: map[string]graph.PortSpec{"pa": {Kind: "afpacket"}, "pb": {Kind: "afpacket"}},
					Apps:  map[string]graph.AppSpec{"vx": {Kind: "vxlan", Args: a}},
					Links: []string{"pa.out -> vx.a", "vx.b -> pb.in", "pb.out -> vx.b", "vx.a -> pa.in"},
				},
				Kinds: []graph.Kind{*Kind()}, Ports: ports, Clock: clock.NewWall(),
			})
			check(t, err)
			ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
			ran := make(chan error, 1)
			go func() { ran <- inst.Run(ctx) }()
			t.Cleanup(func() {
				stop()
				if err := errors.Join(<-ran, inst.Conservation(), inst.Close()); err != nil {
					t.Error(err)
				}
				if t.Failed() {
					for _, c := range inst.Counters() {
						if c.Value != 0 {
							t.Log(c.Node, c.Name, c.Value)
						}
					}
				}
			})

			peer.Enter(t)
			listen, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IP{192, 168, 7, 2}, Port: 7})
			check(t, err)
			defer listen.Close()
			go func() { // an echo
				x, err := listen.Accept()
				if err == nil {
					_, _ = io.Copy(x, x)
					_ = x.Close()
				}
			}()
			host.Enter(t)
			c, err := new(net.Dialer).DialContext(ctx, "tcp4", "192.168.7.2:7")
			check(t, err)
			x := c.(*net.TCPConn)
			defer x.Close()
			defer context.AfterFunc(ctx, func() { _ = x.Close() })()
			want := make([]byte, 1<<20)
			for i := range want {
				want[i] = byte(i * (i >> 8))
			}
			go func() {
				_, _ = x.Write(want)
				_ = x.CloseWrite()
			}()
			got, err := io.ReadAll(x)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d of %d bytes came back, %v", len(got), len(want), err)
			}
			if n := counted(inst, "told-too-big"); n == 0 {
				t.Error("no segment was too long: the test shows nothing of MTUs")
			}
			for _, to := range []string{"192.168.7.2", "fd00:7::2"} {
				if got := mtutest.PathMTU(t, to, 1500); got != mtu {
					t.Errorf("the path to %s takes %d bytes, Linux learns; want %d", to, got, mtu)
				}
			}
			if n := counted(inst, "resolved"); n == 0 {
				t.Error("nobody asked for this end's MAC address")
			}
		})
	}
}

func counted(inst *graph.Instance, name string) (n uint64) {
	for _, c := range inst.Counters() {
		if c.Name == name {
			n += c.Value
		}
	}
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
