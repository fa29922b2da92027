package dpdk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// TestPorts runs graphs between two devices of DPDK, which are ends of veths, in a namespace and a process of their own.
func TestPorts(t *testing.T) {
	if os.Getenv("QUILLON_DPDK_INSIDE") == "" {
		if exec.Command("unshare", "-n", "true").Run() != nil {
			t.Skip("needs root to make network namespaces")
		}
		cmd := exec.Command("unshare", "-n", os.Args[0], "-test.run", "^TestPorts$", "-test.v", "-test.timeout", "120s")
		cmd.Env = append(os.Environ(), "QUILLON_DPDK_INSIDE=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	a, b := veth(t, "a"), veth(t, "b")
	err := Init("--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "64", "--log-level", "4", "--lcores", "0",
		"--vdev", "net_af_packet0,iface=a1", "--vdev", "net_af_packet1,iface=b1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Device: "nosuch"}); err == nil {
		t.Error("a device that is not there is opened")
	}
	if _, err := Open(Config{Device: "net_af_packet0", Frames: 10}); err == nil {
		t.Error("10 frames are enough")
	}
	for _, shared := range []bool{false, true} { // one pool for both ports
		t.Run(fmt.Sprint("wire ", shared), func(t *testing.T) { through(t, a, b, wire, 1, shared) })
		t.Run(fmt.Sprint("twice ", shared), func(t *testing.T) { through(t, a, b, twice, 2, shared) })
		t.Run(fmt.Sprint("hold ", shared), func(t *testing.T) { through(t, a, b, hold, 1, shared) }) // a third of the pool is held for a while
	}
}

// veth makes a veth NAME0 - NAME1 and returns a socket on NAME0.
func veth(t *testing.T, name string) int {
	t.Helper()
	l := netlink.NewVeth(netlink.NewLinkAttrs())
	l.Name, l.PeerName = name+"0", name+"1"
	err := netlink.LinkAdd(l)
	for _, n := range []string{"0", "1"} {
		x, e := netlink.LinkByName(name + n)
		if err = errors.Join(err, e); err == nil {
			err = netlink.LinkSetUp(x)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	x, err := netlink.LinkByName(name + "0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptInt(s, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
		unix.Bind(s, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: x.Attrs().Index})) // all protocols, as on the wire
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kind(name string, a graph.App) graph.Kind {
	return graph.Kind{Name: name, In: []string{"a", "b"}, Out: []string{"a", "b"}, New: func(graph.Env, graph.Args) (graph.App, error) { return a, nil }}
}

type app func(c *graph.Ctx, in int, x *packet.Buf)

func (a app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		a(c, in, x)
	}
}

var (
	wire  = kind("wire", app(func(c *graph.Ctx, in int, x *packet.Buf) { c.Emit(1-in, x) }))
	twice = kind("twice", app(func(c *graph.Ctx, in int, x *packet.Buf) {
		if y := c.Copy(x); y != nil {
			copy(y.Bytes(), x.Bytes())
			c.Emit(1-in, y)
		}
		c.Emit(1-in, x)
	}))
	hold = kind("hold", &holder{})
)

// holder keeps up to 900 frames, and then lets all go.
type holder struct{ held []*packet.Buf }

func (h *holder) Held() int            { return len(h.held) }
func (h *holder) Stop(c *graph.Ctx)    { h.release(c) }
func (h *holder) release(c *graph.Ctx) { c.EmitAll(1, h.held); h.held = h.held[:0] }
func (h *holder) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if in == 1 {
			c.Emit(0, x)
			continue
		}
		if h.held = append(h.held, x); len(h.held) == 300 {
			h.release(c)
		}
	}
}

// through sends frames of all sizes from a to b, and back: all arrive, in their order, each so many times on the way there.
func through(t *testing.T, a, b int, k graph.Kind, times int, shared bool) {
	const frames, flight = 6000, 60
	var ports [2]*Port
	for i := range ports {
		c := Config{Device: fmt.Sprintf("net_af_packet%d", i), Frames: 1024, Index: uint16(i)}
		if shared {
			c.With = ports[0]
		}
		p, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = p
	}
	spec, err := graph.ParseSpec([]byte("ports: {pa: {kind: dpdk}, pb: {kind: dpdk}}\napps: {x: {kind: " + k.Name + "}}\nlinks: [pa.out -> x.a, x.b -> pb.in, pb.out -> x.b, x.a -> pa.in]"))
	if err != nil {
		t.Fatal(err)
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{k}, Clock: clock.NewWall(), Ports: map[string][]port.Port{"pa": {ports[0]}, "pb": {ports[1]}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- inst.Run(ctx) }()
	rnd := rand.New(rand.NewPCG(1, uint64(times)))
	in := make([]byte, 4096)
	want := func(s int, f []byte) {
		t.Helper()
		n, err := unix.Read(s, in)
		for errors.Is(err, unix.EINTR) { // a signal of Go's
			n, err = unix.Read(s, in)
		}
		if err != nil || !bytes.Equal(in[:n], f) {
			t.Fatalf("%d bytes (%v), want %d: %x, want %x", n, err, len(f), in[:min(n, 40)], f[:min(len(f), 40)])
		}
	}
	for _, s := range []int{a, b} { // what the graph before let go of at its end
		for {
			if n, _, err := unix.Recvfrom(s, in, unix.MSG_DONTWAIT); n <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	var way [2][][]byte // frames in flight
	for n := range frames {
		f := make([]byte, 60+rnd.IntN(1455))
		for i := range f {
			f[i] = byte(rnd.Uint32())
		}
		f[0] &^= 1
		f[12], f[13] = 0x88, 0xb5 // for experiments
		binary.BigEndian.PutUint32(f[14:], uint32(n))
		d := rnd.IntN(2)
		if k.Name == "hold" {
			d = 0
		}
		if _, err := unix.Write([2]int{a, b}[d], f); err != nil {
			t.Fatal(err)
		}
		m := 1
		if d == 0 || k.Name == "twice" {
			m = times
		}
		for range m {
			way[d] = append(way[d], f)
		}
		for d := range way {
			for len(way[d]) > flight*times && k.Name != "hold" || len(way[d]) == 300 {
				want([2]int{b, a}[d], way[d][0])
				way[d] = slices.Delete(way[d], 0, 1)
			}
		}
	}
	for d := range way {
		if k.Name == "hold" && d == 0 {
			continue // they are held
		}
		for _, f := range way[d] {
			want([2]int{b, a}[d], f)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	for _, p := range inst.Ports() {
		if s := p.Queues[0]; s.RxDropped != 0 || s.TxDropped != 0 {
			t.Errorf("%s: %+v", p.Name, s)
		}
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
}
