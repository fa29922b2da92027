package aead

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/mtu/mtutest"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

// TestKernel: two hosts, whose MTU is the 1500 bytes that the path takes of what is protected, and between them both
// ends of ESP. TCP gets its bytes across, and Linux learns how long a packet may be; with mss=auto no segment is too long.
func TestKernel(t *testing.T) {
	for name, more := range map[string][]string{"transport": nil, "tunnel": tunnel(), "mss": {"mss", "auto"}} {
		t.Run(name, func(t *testing.T) {
			box := netnstest.NewHost(t)
			var hosts [2]netnstest.Host
			ports := map[string][]port.Port{}
			for i, name := range []string{"pa", "pb"} {
				hosts[i] = netnstest.NewHost(t)
				far := box.Connect(t, name, hosts[i], "eth0", nil)
				hosts[i].Address(t, far, fmt.Sprintf("10.0.%d.1/16", i+1), fmt.Sprintf("2001:db8:%d::1/32", i+1))
				box.Enter(t)
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

			hosts[1].Enter(t)
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
			hosts[0].Enter(t)
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
