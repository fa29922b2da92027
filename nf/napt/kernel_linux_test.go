package napt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKernel is Linux on both sides of a firewall and NAPT: streams, datagrams in
// fragments, pings, and the errors about them; and streams that go on while both
// are put in the place of others, with their state.
func TestKernel(t *testing.T) {
	inside, outside, middle := netnstest.NewHost(t), netnstest.NewHost(t), netnstest.NewHost(t)
	veth := func(near string, h netnstest.Host, addrs ...string) netlink.Link {
		l := middle.Connect(t, near, h, "eth0", nil)
		h.Address(t, l, addrs...)
		return l
	}
	route := func(h netnstest.Host, l netlink.Link, to, via string) {
		_, dst, err := net.ParseCIDR(to)
		check(t, err)
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst}
		if via == "" {
			r.Scope = netlink.SCOPE_LINK
		}
		r.Gw = net.ParseIP(via)
		check(t, h.RouteAdd(r))
	}
	// The gateway 10.0.0.1 is outside, and so is far; frames reach it as they are.
	near := veth("pa", inside, host+"/24")
	away := veth("pb", outside, "10.0.0.1/32", far+"/32")
	route(inside, near, "0.0.0.0/0", "10.0.0.1")
	route(outside, away, "198.51.100.0/24", "")

	middle.Enter(t)
	ports := map[string][]port.Port{}
	for i, n := range []string{"pa", "pb"} {
		p, err := afpacket.Open(afpacket.Config{Interface: n, Index: uint16(i + 1)})
		check(t, err)
		ports[n] = []port.Port{p}
	}
	fwArgs := graph.Args{"rules": "allow+in:a", "half-per-source": "1000"}
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"pa": {Kind: "afpacket"}, "pb": {Kind: "afpacket"}},
			Apps:  map[string]graph.AppSpec{"fw": {Kind: "firewall", Args: fwArgs}, "nat": {Kind: "napt", Args: args()}},
			Links: []string{"pa.out -> fw.a", "fw.b -> nat.a", "nat.b -> pb.in", "pb.out -> nat.b", "nat.a -> fw.b", "fw.a -> pa.in"},
		},
		Kinds: []graph.Kind{*Kind(), *firewall.Kind()}, Ports: ports, Clock: clock.NewWall(),
	})
	check(t, err)
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	var halt context.CancelFunc
	var ran chan error
	run := func() {
		var running context.Context
		running, halt = context.WithCancel(ctx)
		ran = make(chan error, 1)
		go func(ran chan error) { ran <- inst.Run(running) }(ran)
	}
	// still has the worker stand still until it runs again; frames wait.
	still := func() {
		halt()
		err := <-ran
		ran <- err
		check(t, err)
	}
	run()
	counters := func() map[string]uint64 {
		all := map[string]uint64{}
		for _, c := range inst.Counters() {
			all[c.Node+" "+c.Name] = c.Value
		}
		return all
	}
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ran, inst.Conservation(), inst.Close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for name, n := range counters() {
				if n != 0 {
					t.Log(name, n)
				}
			}
		}
	})
	closing := func(c io.Closer) {
		t.Cleanup(func() { _ = c.Close() })
		context.AfterFunc(ctx, func() { _ = c.Close() })
	}

	// Echoes of both sorts, outside.
	outside.Enter(t)
	listen, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(far), Port: 7})
	check(t, err)
	closing(listen)
	seen := make(chan string, 1000)
	go func() {
		for {
			x, err := listen.Accept()
			if err != nil {
				return
			}
			closing(x)
			seen <- x.RemoteAddr().String()
			go func() {
				_, _ = io.Copy(x, x)
				_ = x.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(far), Port: 7})
	check(t, err)
	closing(udp)
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := udp.ReadFromUDP(b)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(b[:n], from)
		}
	}()

	inside.Enter(t)
	ask := func(c net.Conn, n int) error {
		want := bytes.Repeat([]byte("quillon!"), n/8+1)[:n]
		got := make([]byte, n)
		if _, err := c.Write(want); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return errors.New("what comes back is not what was sent")
		}
		return nil
	}
	dial := func(network string, p int) net.Conn {
		t.Helper()
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err := d.Dial(network, net.JoinHostPort(far, fmt.Sprint(p)))
		check(t, err)
		closing(c)
		return c
	}
	// Streams, and who they come from.
	var conns []net.Conn
	for range 20 {
		c := dial("tcp4", 7)
		conns = append(conns, c)
		check(t, ask(c, 1000))
		_, p, _ := net.SplitHostPort(c.LocalAddr().String())
		if s, want := <-seen, net.JoinHostPort(pub, p); s != want {
			t.Errorf("the server sees %s, want %s", s, want)
		}
	}
	// Datagrams: small, in fragments, and to a port where nobody is.
	for _, n := range []int{1, 1400, 4000, 20001} {
		if err := ask(dial("udp4", 7), n); err != nil {
			t.Errorf("a datagram of %d bytes: %v", n, err)
		}
	}
	if err := ask(dial("udp4", 9), 10); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port where nobody is: %v", err)
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	if _, err := d.Dial("tcp4", far+":9"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port where nobody listens: %v", err)
	}
	// A ping.
	raw, err := net.Dial("ip4:icmp", far)
	check(t, err)
	closing(raw)
	ping := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 'h', 'i'}
	be.PutUint16(ping[2:], ^sum(ping, 0))
	_, err = raw.Write(ping)
	check(t, err)
	check(t, raw.SetReadDeadline(time.Now().Add(60*time.Second)))
	pong := make([]byte, 100)
	for n := 0; err == nil; {
		n, err = raw.Read(pong)
		p := pong[:n]
		if len(p) >= 20 && p[0]>>4 == 4 {
			p = p[20:]
		}
		if len(p) == len(ping) && p[0] == 0 && bytes.Equal(p[4:], ping[4:]) {
			break
		}
	}
	if err != nil {
		t.Errorf("ping: %v", err)
	}
	// Long streams, with windows that grow: nothing of them is taken for foreign.
	var long sync.WaitGroup
	for _, c := range conns[:3] {
		long.Add(1)
		go func() {
			defer long.Done()
			want := bytes.Repeat([]byte("0123456789"), 200_000)
			go func() { _, _ = c.Write(want) }()
			got := make([]byte, len(want))
			_ = c.SetReadDeadline(time.Now().Add(60 * time.Second))
			if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes came back, %v", n, err)
			}
		}()
	}
	long.Wait()
	all := counters()
	for _, name := range []string{"fw out-of-window", "fw no-connection", "fw unrelated", "fw denied-by-default", "nat no-session", "nat unrelated", "nat other-icmp"} {
		if all[name] != 0 {
			t.Errorf("%s: %d", name, all[name])
		}
	}
	for _, name := range []string{"fw related", "nat error-inward", "fw later-fragment", "nat later-fragment", "nat arp-answered"} {
		if all[name] == 0 {
			t.Errorf("%s: none", name)
		}
	}
	t.Logf("%d and %d segments and datagrams out and in", all["nat outward"], all["nat inward"])
	// Nobody gets in.
	outside.Enter(t)
	short := net.Dialer{Timeout: 300 * time.Millisecond}
	if c, err := short.Dial("tcp4", pub+":22"); err == nil {
		_ = c.Close()
		t.Error("somebody got in")
	}
	inside.Enter(t)

	// A long stream through each of the open connections, while firewall and NAPT
	// make room for new ones, which take their states.
	var streams sync.WaitGroup
	failed := make(chan error, len(conns))
	const size = 200_000
	for _, c := range conns {
		streams.Add(1)
		go func() {
			defer streams.Done()
			want := bytes.Repeat([]byte{1, 2, 3, 4, 5}, size/5)
			go func() {
				for b := want; len(b) > 0; b = b[size/10:] {
					_, _ = c.Write(b[:size/10])
					time.Sleep(10 * time.Millisecond)
				}
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			_ = c.SetReadDeadline(time.Now().Add(60 * time.Second))
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, want) {
				failed <- fmt.Errorf("%d of %d bytes came back, %w", len(got), size, err)
			}
		}()
	}
	move := func(name string, change graph.Args) {
		t.Helper()
		// Between saving and loading as much as a window may pass, and on a machine with more to do more would.
		still()
		defer run()
		var image bytes.Buffer
		var was graph.App
		check(t, inst.Visit(name, 0, func(a graph.App) {
			was = a
			err = a.(graph.Saver).Save(&image)
		}))
		check(t, err)
		_, err = inst.Set(name, change)
		check(t, err)
		check(t, inst.Visit(name, 0, func(a graph.App) {
			if a == was {
				err = errors.New("it is the same")
				return
			}
			err = a.(graph.Saver).Load(&image)
		}))
		check(t, err)
	}
	for i := range 5 {
		move("nat", graph.Args{"mappings": fmt.Sprint(1000 + i)})
		move("fw", graph.Args{"conns": fmt.Sprint(1000 + i)})
	}
	streams.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}
