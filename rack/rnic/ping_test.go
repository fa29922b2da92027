package rnic

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/tap"
)

// TestPing: the kernel finds and pings a NIC on the other side of a TAP device.
func TestPing(t *testing.T) {
	for _, c := range []struct {
		host, nic string
	}{{"10.9.0.1/24", "10.9.0.2"}, {"fd09::1/64", "fd09::2"}} {
		t.Run(c.nic, func(t *testing.T) {
			netnstest.Enter(t)
			p, err := tap.Open(tap.Config{Device: "ping0", MTU: 1500})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			dev, err := netlink.LinkByName("ping0")
			if err != nil {
				t.Fatal(err)
			}
			addr, err := netlink.ParseAddr(c.host)
			if err != nil {
				t.Fatal(err)
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(dev, addr); err != nil {
				t.Fatal(err)
			}
			if err := netlink.LinkSetUp(dev); err != nil {
				t.Fatal(err)
			}
			n, err := New(Config{MAC: macB, IP: netip.MustParseAddr(c.nic), Pool: p.Pool()})
			if err != nil {
				t.Fatal(err)
			}

			ip := net.ParseIP(c.nic)
			family, proto := unix.AF_INET, unix.IPPROTO_ICMP
			var to unix.Sockaddr
			request, reply, skip := byte(8), byte(0), 20
			if ip4 := ip.To4(); ip4 != nil {
				to = &unix.SockaddrInet4{Addr: [4]byte(ip4)}
			} else {
				family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
				to = &unix.SockaddrInet6{Addr: [16]byte(ip)}
				request, reply, skip = 128, 129, 0
			}
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			echo := append([]byte{request, 0, 0, 0, 0x12, 0x34, 0, 1}, "are you there?"...)
			if family == unix.AF_INET { // the kernel fills in ICMPv6's
				binary.BigEndian.PutUint16(echo[2:], ^sum16(echo, 0))
			}
			if err := unix.Sendto(fd, echo, 0, to); err != nil {
				t.Fatal(err)
			}
			clk := clock.NewWall()
			var b packet.Batch
			buf := make([]byte, 2048)
			for end := clk.Now().Add(60 * time.Second); ; {
				if clk.Now() > end {
					t.Fatalf("no echo reply: %+v", n.Stats())
				}
				if _, err := p.Rx(&b); err != nil {
					t.Fatal(err)
				}
				for _, x := range b.Bufs() {
					n.Input(clk.Now(), x)
				}
				b.Reset()
				n.Output(clk.Now(), &b)
				if _, err := p.Tx(&b); err != nil {
					t.Fatal(err)
				}
				b.PutAll()
				k, _, err := unix.Recvfrom(fd, buf, 0)
				if err == nil && k == skip+len(echo) && buf[skip] == reply {
					if string(buf[skip+8:k]) != "are you there?" {
						t.Errorf("echo brought %q", buf[skip+8:k])
					}
					return
				}
				if err := p.Wait(context.Background(), 10*time.Millisecond); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
