package aead

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/mtu/mtutest"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

// TestKernel: two hosts, whose MTU is the 1500 bytes that the path takes of what is protected, and between them both
// ends of ESP. TCP gets its bytes across, and Linux learns how long a packet may be; with mss=auto no segment is too long.
func TestKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces, veth, packet sockets")
	}
	for name, more := range map[string][]string{"transport": nil, "tunnel": tunnel(), "mss": {"mss", "auto"}} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // not unlocked: the thread and its namespace end with the test
			mk := func() (netns.NsHandle, *netlink.Handle) {
				ns, err := netns.New()
				check(t, err)
				t.Cleanup(func() { _ = ns.Close() })
				h, err := netlink.NewHandleAt(ns)
				check(t, err)
				t.Cleanup(h.Close)
				return ns, h
			}
			box, links := mk()
			var hosts [2]netns.NsHandle
			ports := map[string][]port.Port{}
			for i, name := range []string{"pa", "pb"} {
				ns, h := mk()
				hosts[i] = ns
				la := netlink.NewLinkAttrs()
				la.Name = name
				v := &netlink.Veth{LinkAttrs: la, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}
				check(t, links.LinkAdd(v))
				check(t, links.LinkSetUp(v))
				far, err := h.LinkByName("eth0")
				check(t, err)
				check(t, h.LinkSetUp(far))
				for _, a := range []string{[]string{"10.0.1.1/16", "10.0.2.1/16"}[i], []string{"2001:db8:1::1/32", "2001:db8:2::1/32"}[i]} {
					x, err := netlink.ParseAddr(a)
					check(t, err)
					if x.IP.To4() == nil {
						x.Flags = unix.IFA_F_NODAD
					}
					check(t, h.AddrAdd(far, x))
				}
				check(t, netns.Set(box))
				p, err := afpacket.Open(afpacket.Config{Interface: name, Index: uint16(i + 1)})
				check(t, err)
				ports[name] = []port.Port{p}
			}
			near, far := ends(t, more...)
			inst, err := graph.New(graph.Config{
				Spec: &graph.Spec{
					Ports: map[string]graph.PortSpec{"pa": {Kind: "afpacket"}, "pb": {Kind: "afpacket"}},
					Apps:  map[string]graph.AppSpec{"near": {Kind: "aead", Args: near}, "far": {Kind: "aead", Args: far}},
					Links: []string{"pa.out -> near.a", "near.b -> far.b", "far.a -> pb.in", "pb.out -> far.a", "far.b -> near.b", "near.a -> pa.in"},
				},
				Kinds: []graph.Kind{*Kind()}, Ports: ports, Clock: clock.NewWall(),
			})
			check(t, err)
			ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
			ran := make(chan error, 1)
			go func() { ran <- inst.Run(ctx) }()
			counted := func(name string) (n uint64) {
				for _, c := range inst.Counters() {
					if c.Name == name {
						n += c.Value
					}
				}
				return n
			}
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

			check(t, netns.Set(hosts[1]))
			listen, err := net.Listen("tcp4", "10.0.2.1:7")
			check(t, err)
			defer listen.Close()
			go func() { // an echo
				x, err := listen.Accept()
				if err == nil {
					_, _ = io.Copy(x, x)
					_ = x.Close()
				}
			}()
			check(t, netns.Set(hosts[0]))
			c, err := new(net.Dialer).DialContext(ctx, "tcp4", "10.0.2.1:7")
			check(t, err)
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			want := make([]byte, 1<<20)
			for i := range want {
				want[i] = byte(i * (i >> 8))
			}
			go func() {
				_, _ = c.Write(want)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d of %d bytes came back, %v", len(got), len(want), err)
			}
			lowered := near["mss"] == "auto"
			if n := counted("too-big"); lowered != (n == 0) || counted("protected") < 1000 {
				t.Errorf("%d segments were too long, %d packets were protected", n, counted("protected"))
			}
			for _, to := range []string{"10.0.2.1", "2001:db8:2::1"} {
				want := 1466
				if near["mode"] == "tunnel" {
					want = 1446
				}
				if got := mtutest.PathMTU(t, to, 1500); got != want {
					t.Errorf("the path to %s takes %d bytes, Linux learns; want %d", to, got, want)
				}
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
