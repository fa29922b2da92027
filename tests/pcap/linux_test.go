package pcap_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/replay"
)

var record = flag.String("record", "", "keep what Linux sends, the inputs of the cases with Linux at the other end, in this `folder`")

// linuxHost is one of the two hosts, and the namespace that it lives in.
type linuxHost struct {
	netnstest.Host
	link netlink.Link // to the box
}

// linuxBed is a plain host, a host that is the other end of a tunnel, and the box between them.
type linuxBed struct {
	*testing.T
	plain, far linuxHost
	inst       *graph.Instance
	rx         [2]recorder
	stop       func() // once: the graph has ended
}

// recorder is a port whose received frames are kept.
type recorder struct {
	port.Port
	in []pcap.Packet
}

// mostRecorded bounds a capture.
const mostRecorded = 80

func (r *recorder) Rx(b *packet.Batch) (int, error) {
	before := b.Len()
	n, err := r.Port.Rx(b)
	for _, x := range b.Bufs()[before:] {
		if len(r.in) < mostRecorded {
			r.in = append(r.in, pcap.Packet{Time: clock.Time(time.Now().UnixNano()), Data: bytes.Clone(x.Bytes()), OrigLen: uint32(x.Len())})
		}
	}
	return n, err
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newLinuxBed makes the hosts and their links, with netlink of these families; the test's
// thread is in the box.
func newLinuxBed(t *testing.T, families ...int) *linuxBed {
	t.Helper()
	mk := func() linuxHost {
		h := netnstest.NewHost(t, families...)
		// Nothing of its own accord: captures hold what the test sends.
		for _, s := range []string{"ipv6/conf/default/accept_dad", "ipv6/conf/default/router_solicitations", "ipv6/conf/default/autoconf"} {
			check(t, os.WriteFile("/proc/sys/net/"+s, []byte("0"), 0))
		}
		lo, err := h.LinkByName("lo")
		check(t, err)
		check(t, h.LinkSetUp(lo))
		return linuxHost{h, nil}
	}
	b := &linuxBed{T: t, plain: mk(), far: mk()}
	box := mk()
	for i, h := range []*linuxHost{&b.plain, &b.far} {
		h.link = box.Connect(t, []string{"pa", "pb"}[i], h.Host, "eth0", net.HardwareAddr{2, 0, 0, 0, 0, byte(0xA1 + i)})
	}
	box.Enter(t)
	return b
}

// neighbour tells a host another one's MAC address.
func (b *linuxBed) neighbour(h linuxHost, ip string, of linuxHost) {
	b.Helper()
	check(b, h.NeighSet(&netlink.Neigh{LinkIndex: h.link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(ip), HardwareAddr: of.link.Attrs().HardwareAddr}))
}

// start runs the function of a case between the two.
func (b *linuxBed) start(dir string) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "case.yaml"))
	check(b, err)
	var c goldenCase
	check(b, yaml.UnmarshalWithOptions(text, &c, yaml.Strict()))
	spec, err := replay.Chain(registry.Kinds(), c.files(b.T).Replace(c.NF[0]))
	check(b, err)
	ports := map[string][]port.Port{}
	for i, n := range []string{"pa", "pb"} {
		p, err := afpacket.Open(afpacket.Config{Interface: n, Index: uint16(i + 1)})
		check(b, err)
		b.rx[i].Port = p
		ports[[]string{"a", "b"}[i]] = []port.Port{&b.rx[i]}
	}
	b.inst, err = graph.New(graph.Config{Spec: spec, Kinds: registry.Kinds(), Ports: ports, Clock: clock.NewWall()})
	check(b, err)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	ran := make(chan error, 1)
	go func() { ran <- b.inst.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		stop()
		if err := errors.Join(<-ran, b.inst.Conservation(), b.inst.Close()); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(b.stop)
}

// converse sends what a capture is to hold from the plain host to an address of the far one, and back: UDP datagrams
// of many lengths, a byte stream, a port that is closed. All of it arrives as it was sent.
func (b *linuxBed) converse(to string, lengths ...int) {
	b.Helper()
	b.far.Enter(b)
	udp, err := net.ListenPacket("udp", net.JoinHostPort(to, "7"))
	check(b, err)
	defer udp.Close()
	tcp, err := net.Listen("tcp", net.JoinHostPort(to, "7"))
	check(b, err)
	defer tcp.Close()
	go func() { // echoes
		p := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFrom(p)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(p[:n], from)
		}
	}()
	go func() {
		if x, err := tcp.Accept(); err == nil {
			_, _ = io.Copy(x, x)
			_ = x.Close()
		}
	}()
	b.plain.Enter(b)
	deadline := time.Now().Add(45 * time.Second)
	x, err := net.Dial("udp", net.JoinHostPort(to, "7"))
	check(b, err)
	defer x.Close()
	check(b, x.SetDeadline(deadline))
	for _, n := range lengths {
		want, got := filling(n), make([]byte, 2048)
		_, err := x.Write(want)
		check(b, err)
		if n, err := x.Read(got); err != nil || !bytes.Equal(got[:n], want) {
			b.Fatalf("%d bytes to %s come back as %d: %v", len(want), to, n, err)
		}
	}
	c, err := net.Dial("tcp", net.JoinHostPort(to, "7"))
	check(b, err)
	defer c.Close()
	check(b, c.SetDeadline(deadline))
	want := filling(6000)
	_, err = c.Write(want)
	check(b, err)
	check(b, c.(*net.TCPConn).CloseWrite())
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		b.Fatalf("%d bytes of a stream to %s come back as %d: %v", len(want), to, len(got), err)
	}
	closed, err := net.Dial("udp", net.JoinHostPort(to, "99"))
	check(b, err)
	defer closed.Close()
	check(b, closed.SetDeadline(deadline))
	for err = nil; !errors.Is(err, unix.ECONNREFUSED); {
		if _, err = closed.Write([]byte("anybody?")); err == nil {
			_, err = closed.Read(make([]byte, 1))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			b.Fatalf("no ICMP error of %s arrives: %v", to, err)
		}
	}
}

// counted is a counter of the function's, once the graph has ended.
func (b *linuxBed) counted(name string) (n uint64) {
	for _, c := range b.inst.Counters() {
		if c.Name == name {
			n += c.Value
		}
	}
	return n
}

// end compares counters with what must not have happened, and writes what was recorded.
func (b *linuxBed) end(dir string, never ...string) {
	b.Helper()
	b.stop()
	for _, name := range never {
		if n := b.counted(name); n != 0 {
			b.Errorf("%d frames: %s", n, name)
		}
	}
	if *record == "" || b.Failed() {
		return
	}
	for i, name := range []string{"a.pcap", "b.pcap"} {
		s := scene{T: b.T}
		s.in[0] = b.rx[i].in
		check(b, os.MkdirAll(filepath.Join(*record, dir), 0o755))
		check(b, os.WriteFile(filepath.Join(*record, dir, name), s.capture(0), 0o644))
	}
}

// none skips where the kernel has not what the other end is made of.
func none(t testing.TB, what string, err error) {
	t.Helper()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		t.Skipf("this kernel has no %s: %v", what, err)
	}
	check(t, err)
}

// TestLinuxVXLAN: the other end of a tunnel is Linux, which takes what comes out of here, and whose frames are the
// inputs of vxlan-linux and vxlan-linux-ipv6.
func TestLinuxVXLAN(t *testing.T) {
	for dir, x := range map[string]struct {
		local, remote, bits string
		mtu                 int
	}{"vxlan-linux": {"10.0.0.1", "10.0.0.2", "/24", 1450}, "vxlan-linux-ipv6": {"2001:db8::1", "2001:db8::2", "/64", 1430}} {
		t.Run(dir, func(t *testing.T) {
			b := newLinuxBed(t)
			b.far.Address(b, b.far.link, x.remote+x.bits)
			la := netlink.NewLinkAttrs()
			la.Name, la.HardwareAddr, la.MTU = "vx0", net.HardwareAddr{2, 0, 0, 0, 0, 0xC1}, x.mtu
			none(t, "VXLAN", b.far.LinkAdd(&netlink.Vxlan{LinkAttrs: la, VxlanId: 5000, VtepDevIndex: b.far.link.Attrs().Index, Learning: true,
				SrcAddr: net.ParseIP(x.remote), Group: net.ParseIP(x.local), Port: 4789, UDPCSum: true}))
			vx, err := b.far.LinkByName("vx0")
			check(t, err)
			check(t, b.far.LinkSetUp(vx))
			check(t, b.plain.LinkSetMTU(b.plain.link, x.mtu))
			b.plain.Address(b, b.plain.link, "192.168.7.1/24", "fd00:7::1/64")
			b.far.Address(b, vx, "192.168.7.2/24", "fd00:7::2/64")
			b.start(dir)
			b.converse("192.168.7.2", 0, 1, 700, x.mtu-28, 2000)
			b.converse("fd00:7::2", 0, 1, 700, x.mtu-48)
			b.end(dir, "bad-ip-checksum", "bad-udp-checksum", "bad-length", "too-big", "other-peer")
		})
	}
}

// TestLinuxESP: the other end is Linux' IPsec, which takes what comes out of here, and whose packets are the inputs
// of aead-linux and aead-linux-tunnel.
func TestLinuxESP(t *testing.T) {
	for dir, mode := range map[string]netlink.Mode{"aead-linux": netlink.XFRM_MODE_TRANSPORT, "aead-linux-tunnel": netlink.XFRM_MODE_TUNNEL} {
		t.Run(dir, func(t *testing.T) {
			b := newLinuxBed(t, unix.NETLINK_XFRM)
			near, far := "10.0.1.1", "10.0.2.1"
			b.plain.Address(b, b.plain.link, near+"/16", "2001:db8:1::1/32")
			b.far.Address(b, b.far.link, far+"/16", "2001:db8:2::1/32")
			pairs := [][2]string{{near, far}, {"2001:db8:1::1", "2001:db8:2::1"}}
			outer := func(i int) string { return pairs[0][i] }
			if mode == netlink.XFRM_MODE_TUNNEL {
				b.far.Address(b, b.far.link, "192.0.2.2/24")
				b.neighbour(b.far, "192.0.2.1", b.plain)
				outer = func(i int) string { return []string{"192.0.2.1", "192.0.2.2"}[i] }
			}
			if mode == netlink.XFRM_MODE_TUNNEL {
				pairs = pairs[:1]
			}
			for n, p := range pairs {
				if mode == netlink.XFRM_MODE_TRANSPORT {
					outer = func(i int) string { return p[i] }
				}
				for way, key := range []string{keyOut, keyIn} { // towards Linux, and back
					k, err := hex.DecodeString(key)
					check(t, err)
					src, dst := outer(way), outer(1-way)
					spi := []int{0x100, 0x200}[way]
					if n > 0 {
						spi += 1
						k[0] ^= 0x80
					}
					none(t, "ESP with AES-GCM", b.far.XfrmStateAdd(&netlink.XfrmState{Src: net.ParseIP(src), Dst: net.ParseIP(dst), Proto: netlink.XFRM_PROTO_ESP,
						Mode: mode, Spi: spi, ReplayWindow: 32, Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: k, ICVLen: 128}}))
				}
			}
			for n, p := range pairs {
				for way, dir := range []netlink.Dir{netlink.XFRM_DIR_IN, netlink.XFRM_DIR_OUT} {
					host := func(i int) *net.IPNet {
						ip := net.ParseIP(p[i])
						bits := 128
						if v := ip.To4(); v != nil {
							ip, bits = v, 32
						}
						return &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}
					}
					if mode == netlink.XFRM_MODE_TRANSPORT {
						outer = func(i int) string { return p[i] }
					}
					spi := 0
					if dir == netlink.XFRM_DIR_OUT {
						spi = 0x200
						if n > 0 && mode == netlink.XFRM_MODE_TRANSPORT {
							spi = 0x201
						}
					}
					check(t, b.far.XfrmPolicyAdd(&netlink.XfrmPolicy{Src: host(way), Dst: host(1 - way), Dir: dir, Tmpls: []netlink.XfrmPolicyTmpl{{
						Src: net.ParseIP(outer(way)), Dst: net.ParseIP(outer(1 - way)), Proto: netlink.XFRM_PROTO_ESP, Mode: mode, Spi: spi}}}))
				}
			}
			for _, p := range pairs { // Linux would protect neighbour discovery between the two, which passes here in the clear
				b.neighbour(b.plain, p[1], b.far)
				b.neighbour(b.far, p[0], b.plain)
			}
			b.start(dir)
			room := map[netlink.Mode]int{netlink.XFRM_MODE_TRANSPORT: 1466, netlink.XFRM_MODE_TUNNEL: 1446}[mode]
			b.converse(far, 0, 1, 2, 3, 700, room-28)
			if len(pairs) > 1 { // Linux' SAs between IPv4 addresses take no IPv6 in their tunnels
				b.converse("2001:db8:2::1", 0, 1, 700, room-48)
			}
			b.end(dir, "replay", "forged", "bad-esp", "bad-padding", "unprotected", "malformed")
			if n := b.counted("opened"); n < 15 {
				t.Errorf("%d packets were opened", n)
			}
			if bad := xfrmErrors(t, b.far); bad != "" {
				t.Errorf("Linux complains: %s", bad)
			}
		})
	}
}

// xfrmErrors are Linux' counters of packets that IPsec did not take.
func xfrmErrors(t testing.TB, h linuxHost) string {
	t.Helper()
	h.Enter(t)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/net/xfrm_stat", os.Getpid(), unix.Gettid()))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	check(t, err)
	var bad []string
	for _, l := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if w := strings.Fields(l); len(w) == 2 && w[1] != "0" && !slices.Contains([]string{"XfrmAcquireError", "XfrmOutNoStates"}, w[0]) {
			bad = append(bad, strings.Join(w, " "))
		}
	}
	return strings.Join(bad, ", ")
}
