package live

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// boards is two boards in processes of their own, on a segment; the first is on the
// cable between two hosts.
//
//	10.0.0.2 c ── a0 [ board 0 ] a1 ── d 10.0.0.3
//	                 pa ── pb [ board 1 ]
type boards struct {
	t            testing.TB
	box          *topo.Space
	dir          string
	host         *topo.Space // of the client
	client, echo *net.UDPConn
	process      [2]*demo.Process

	mu      sync.Mutex
	sources map[string]string // where texts came from that were echoed
}

const deployment = `
          regions: {count: %d, area: 1}
          tasks:
            quiet: {kind: wire, area: 1}
            calm: {kind: wire, area: 1}
            fw: {kind: firewall, args: {default: allow}, area: 1}
          tenants: {alice: {}, bob: {}}
          dags:
            - {uid: 7, tenant: alice, run: quiet}
            - {uid: 6, tenant: alice, run: calm}
            - {uid: 8, tenant: bob, run: fw}
          rules:
            - {match: "src:10.0.0.99", dag: 7}
            - {match: "src:10.0.0.98", dag: 6}
            - {match: "proto:17+src:10.0.0.2", dag: 8}
`

// translated has the datagrams of 10.0.0.2 come from 10.0.0.77, and lets nobody else begin.
const translated = `
          regions: {count: %d, area: 2}
          tasks:
            quiet: {kind: wire, area: 2}
            calm: {kind: wire, area: 2}
            fw: {kind: firewall, args: {rules: "allow+in:a"}, area: 1}
            nat: {kind: napt, args: {public: 10.0.0.77}, area: 1}
          tenants: {alice: {}, bob: {}}
          dags:
            - {uid: 7, tenant: alice, run: quiet}
            - {uid: 6, tenant: alice, run: calm}
            - {uid: 8, tenant: bob, run: fw -> nat}
          rules:
            - {match: "src:10.0.0.99", dag: 7}
            - {match: "src:10.0.0.98", dag: 6}
            - {match: "proto:17+src:10.0.0.2", dag: 8}
            - {match: "src:10.0.0.77", dag: 8}
`

func raiseBoards(t testing.TB, deployment string) *boards {
	t.Helper()
	return raiseBoardsOf(t, deployment, 1)
}

// raiseBoardsOf has ports of so many queues: as many workers has a board, each with a region, or three. Of two workers each is the home of a DAG that
// nobody sends to, so that the first board has no region for another one.
func raiseBoardsOf(t testing.TB, deployment string, queues int) *boards {
	t.Helper()
	b := &boards{t: t, dir: t.TempDir(), sources: map[string]string{}}
	must := func(err error) {
		t.Helper()
		if errors.Is(err, port.ErrNotSupported) || errors.Is(err, syscall.EPERM) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	space := func(mounts bool) *topo.Space {
		s, err := topo.NewSpace(mounts)
		must(err)
		t.Cleanup(s.Close)
		return s
	}
	b.box = space(true)
	hosts := []*topo.Space{space(false), space(false)}
	must(topo.VethOf(queues, b.box, "pa", b.box, "pb"))
	must(b.box.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, name := range []string{"pa", "pb"} {
			// Frames of full length and 22 bytes.
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMTU(l, 1522); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(lo)
	}))
	for i, s := range hosts {
		must(topo.VethOf(queues, b.box, fmt.Sprint("a", i), s, "eth"))
		must(s.Do(func() error {
			l, err := netlink.LinkByName("eth")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(fmt.Sprintf("10.0.0.%d/24", 2+i))
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, a)
		}))
	}
	// Nobody answers for the addresses that 10.0.0.2 is translated to.
	var mac net.HardwareAddr
	must(hosts[0].Do(func() error {
		l, err := netlink.LinkByName("eth")
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	}))
	must(hosts[1].Do(func() error {
		l, err := netlink.LinkByName("eth")
		for last := byte(77); err == nil && last < 80; last++ {
			err = netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 0, 0, last), HardwareAddr: mac})
		}
		return err
	}))
	b.host, b.client = hosts[0], b.dial(hosts[0])
	must(hosts[1].Do(func() (err error) {
		b.echo, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 0, 0, 3), Port: 9})
		return err
	}))
	t.Cleanup(func() { b.echo.Close() })
	// What waited for a DAG to come home comes in one clump, and is to find room: the kernel's default
	// has some 200 datagrams.
	raw, err := b.echo.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := b.echo.ReadFromUDP(buf)
			if err != nil {
				return
			}
			b.mu.Lock()
			b.sources[string(buf[:n])] = from.String()
			b.mu.Unlock()
			_, _ = b.echo.WriteToUDP(buf[:n], from)
		}
	}()
	must(os.WriteFile(filepath.Join(b.dir, "a.yaml"), []byte(`ports:
  a0: {kind: afxdp, args: {dev: a0}}
  a1: {kind: afxdp, args: {dev: a1}}
  seg: {kind: afxdp, args: {dev: pa}}
apps:
  nic:
    kind: snic
    args:
      pool-port: p14
      pool-mtu: 1522
      deployment: |`+fmt.Sprintf(deployment, queues)+`
links: [a0.out -> nic.p0, nic.p0 -> a0.in, a1.out -> nic.p1, nic.p1 -> a1.in, seg.out -> nic.p14, nic.p14 -> seg.in]
`), 0o600))
	must(os.WriteFile(filepath.Join(b.dir, "b.yaml"), []byte(`ports:
  seg: {kind: afxdp, args: {dev: pb}}
apps:
  nic:
    kind: snic
    args:
      pool-port: p14
      pool-mtu: 1522
      deployment: |`+fmt.Sprintf(deployment, 3*queues)+`
links: [seg.out -> nic.p14, nic.p14 -> seg.in]
`), 0o600))
	must(os.WriteFile(filepath.Join(b.dir, "key"), []byte(strings.Repeat("0f", 16)+"\n"), 0o600))
	return b
}

// dial is a socket of a host to the one that echoes.
func (b *boards) dial(s *topo.Space) (c *net.UDPConn) {
	b.t.Helper()
	if err := s.Do(func() (err error) {
		c, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 3), Port: 9})
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// start runs a board.
func (b *boards) start(i int) { b.startAs(i, i) }

// startAs runs a board with a number.
func (b *boards) startAs(i, number int) {
	b.t.Helper()
	args := []string{"quillon", "run", filepath.Join(b.dir, string("ab"[i])+".yaml"), "--pool", fmt.Sprintf("127.0.0.1:%d", 7946+i), "--pool-board", fmt.Sprint(number), "--pool-secret", filepath.Join(b.dir, "key")}
	if i > 0 {
		args = append(args, "--join", "127.0.0.1:7946")
	}
	p, err := demo.StartProcess(b.box, demo.Command{Path: quillon, Args: args})
	if err != nil {
		b.t.Fatal(err)
	}
	b.process[i] = p
	b.t.Cleanup(func() { _ = p.Stop() })
	b.until("board to run", func() bool {
		select {
		case <-p.Done():
			b.t.Fatalf("board %d: %v", i, p.Err())
		default:
		}
		return strings.Contains(p.Log(), "running as ")
	})
}

// until waits for f, for a minute at most.
func (b *boards) until(what string, f func() bool) {
	b.t.Helper()
	for clk, at := clock.NewWall(), clock.NewWall().Now(); clk.Now() < at.Add(60*time.Second); {
		if f() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	b.t.Fatalf("no %s: %s\n%s\n%s", what, b.show(0), b.counters(0), b.process[0].Log())
}

// show is what a board says of its pool.
func (b *boards) show(i int) string {
	var out []byte
	err := b.box.Do(func() (err error) {
		out, err = exec.Command(quillon, "snic", "pool", "--name", string("ab"[i])).CombinedOutput()
		return err
	})
	return fmt.Sprintf("%s %v", out, err)
}

// ping sends a datagram and reports whether it comes back, in half a second.
func (b *boards) ping(text string) bool { return b.answered(text, 500*time.Millisecond) }

// pings is ping for what must not be lost: on a busy machine an answer is late.
func (b *boards) pings(text string) bool { return b.answered(text, 10*time.Second) }

func (b *boards) answered(text string, within time.Duration) bool {
	if _, err := b.client.Write([]byte(text)); err != nil {
		return false
	}
	buf := make([]byte, 2048)
	for {
		if err := b.client.SetReadDeadline(time.Now().Add(within)); err != nil {
			return false
		}
		n, err := b.client.Read(buf)
		if err != nil {
			return false
		}
		if string(buf[:n]) == text {
			return true
		}
	}
}

// A board that has no region for a DAG has it run at another one, there and back. When that
// is killed it takes little with it, and the board goes on by itself; when it is there
// again nothing is wrong.
func TestPool(t *testing.T) { withWorkers(t, poolPasses) }

// withWorkers runs a test with boards of one worker and of two.
func withWorkers(t *testing.T, f func(t *testing.T, workers int)) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) { f(t, workers) })
	}
}

func poolPasses(t *testing.T, workers int) {
	b := raiseBoardsOf(t, deployment, workers)
	b.start(0)
	b.start(1)
	b.until("peer", func() bool { return strings.Contains(b.show(0), "the same") && strings.Contains(b.show(1), "the same") })
	b.until("way there and back", func() bool { return b.ping("first") })
	b.until("frame at the peer", func() bool { return strings.Contains(b.show(0), "DAG 8 (fw): at board 1: there") })
	var there, here []time.Duration
	clk := clock.NewWall()
	for i := range 100 {
		at := clk.Now()
		if text := fmt.Sprint("ping ", i); !b.pings(text) {
			t.Fatalf("%q did not come back: %s", text, b.show(0))
		}
		there = append(there, clk.Now().Sub(at))
	}
	if !b.pings(strings.Repeat("x", 1500-28)) {
		t.Errorf("a frame of full length did not come back: %s", b.show(0))
	}
	if out := b.show(0); strings.Contains(out, " 0 back") {
		t.Errorf("none came back from the peer: %s", out)
	}
	if out := b.show(1); !strings.Contains(out, "DAG 8 (fw) of board 0: runs here") {
		t.Errorf("the peer: %s", out)
	}
	if err := b.process[1].Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.process[1].Done()
	at := clk.Now()
	b.until("board that goes on", func() bool { return b.ping("alone") })
	away := clk.Now().Sub(at)
	for i := range 100 {
		at := clk.Now()
		if text := fmt.Sprint("alone ", i); !b.pings(text) {
			t.Fatalf("%q did not come back: %s", text, b.show(0))
		}
		here = append(here, clk.Now().Sub(at))
	}
	slices.Sort(there)
	slices.Sort(here)
	t.Logf("median round trip by the peer %v, without it %v; after its death none for %v", there[50], here[50], away)
	if out := b.process[0].Log(); !strings.Contains(out, "board 1: peer lost") {
		t.Errorf("the board says: %s", out)
	}
	b.start(1)
	b.until("peer again", func() bool { return strings.Contains(b.show(0), "the same") })
	if !b.pings("together") {
		t.Error("nothing comes back when the peer is there again")
	}
}

// A board that is stopped gives back what it runs for others, under traffic: no datagram is lost, and
// connections are what they were.
func TestPoolLeaves(t *testing.T) { withWorkers(t, poolLeaves) }

func poolLeaves(t *testing.T, workers int) {
	b := raiseBoardsOf(t, translated, workers)
	b.start(0)
	b.start(1)
	b.until("peer", func() bool { return strings.Contains(b.show(0), "the same") && strings.Contains(b.show(1), "the same") })
	b.until("way there and back", func() bool { return b.ping("first") })
	b.until("frame at the peer", func() bool { return strings.Contains(b.show(0), "DAG 8 (fw -> nat): at board 1: there") })
	const (
		connections = 32
		each        = 100
		gap         = 15 * time.Millisecond // 2100 datagrams a second
	)
	name := func(i, n int) string { return fmt.Sprintf("connection %d datagram %d", i, n) }
	conns := make([]*net.UDPConn, connections)
	var all sync.WaitGroup
	var mu sync.Mutex
	lost, back, longest := 0, 0, time.Duration(0)
	clk := clock.NewWall()
	for i := range conns {
		conns[i] = b.dial(b.host)
		all.Go(func() {
			tick := time.NewTicker(gap)
			defer tick.Stop()
			for n := range each {
				if _, err := conns[i].Write([]byte(name(i, n))); err != nil {
					t.Error(err)
				}
				<-tick.C
			}
		})
		all.Go(func() {
			buf := make([]byte, 2048)
			last := clk.Now()
			for n := range each {
				if err := conns[i].SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
					t.Error(err)
				}
				k, err := conns[i].Read(buf)
				mu.Lock()
				longest = max(longest, clk.Now().Sub(last))
				last = clk.Now()
				if err != nil {
					lost += each - n
				} else if back++; string(buf[:k]) != name(i, n) {
					t.Errorf("%q, want %q", buf[:k], name(i, n))
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	b.until("traffic", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return back >= connections*each/4
	})
	b.until("DAG at the peer", func() bool { return strings.Contains(b.show(1), "DAG 8 (fw -> nat) of board 0: runs here") })
	at := clk.Now()
	if err := b.process[1].Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-b.process[1].Done()
	took := clk.Now().Sub(at)
	all.Wait()
	if out := b.show(0); strings.Contains(out, "at board") || strings.Contains(out, " 0 back") {
		t.Errorf("after the peer has left: %s", out)
	}
	if out := b.process[1].Log(); strings.Contains(out, "lost") {
		t.Errorf("the peer: %s", out)
	}
	t.Logf("it stops within %v; %d of %d datagrams are lost; none for %v at most, with one every %v", took, lost, connections*each, longest, gap)
	if lost > 0 {
		t.Errorf("%d datagrams are lost: %s", lost, b.counters(0))
	}
	if strings.Contains(b.counters(0), "handed") != (workers > 1) {
		t.Errorf("with %d workers: %s", workers, b.counters(0))
	}
	// The other end may speak first on those connections, and on no others.
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, c := range conns {
		from := b.sources[name(i, 0)]
		if !strings.HasPrefix(from, "10.0.0.77:") || b.sources[name(i, each-1)] != from {
			t.Errorf("connection %d came from %s, and from %s", i, from, b.sources[name(i, each-1)])
			continue
		}
		a, err := net.ResolveUDPAddr("udp4", from)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.echo.WriteToUDP([]byte(from), a); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2048)
		if err := c.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != from {
			t.Errorf("connection %d: %q, %v", i, buf[:n], err)
		}
	}
}

// counters are those of a board that are not 0.
func (b *boards) counters(i int) string {
	var out []byte
	err := b.box.Do(func() (err error) {
		out, err = exec.Command(quillon, "show", "counters", "--name", string("ab"[i])).CombinedOutput()
		return err
	})
	return fmt.Sprintf("%s %v", out, err)
}

// Two boards of one number say so, both, and the second is in the pool when the first has gone.
func TestPoolTwins(t *testing.T) {
	b := raiseBoards(t, deployment)
	b.startAs(0, 3)
	b.startAs(1, 3)
	says := func(i int, what string) {
		t.Helper()
		b.until("word of board "+what, func() bool { return strings.Contains(b.process[i].Log(), "quillon: pool: "+what) })
	}
	says(0, "there is another board 3, at 127.0.0.1:7947, which was started later: it takes no part")
	says(1, "there is another board 3, at 127.0.0.1:7946, which was started first: this one takes no part")
	if err := b.process[0].Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-b.process[0].Done()
	says(1, "the other board 3, at 127.0.0.1:7946, is gone")
}
