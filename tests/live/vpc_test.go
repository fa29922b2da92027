package live

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/rack/vpc"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic"
)

// secret is in all that hosts say to each other.
const secret = "nobody on the wire may read this. "

// guest is another tenant's Ethernet type (IEEE 802, for experiments). Its frames are
// not protected.
const guest = 0x88B5

// cloud is both sites, with a board before each in a process of its own.
type cloud struct {
	*testing.T
	*vpc.Net
	dir    string
	boards [2]*demo.Process
	echoed [2]chan netip.AddrPort // who opened connections to a site's server
	heard  [2]chan string         // datagrams that came to a site's server
	ends   []io.Closer
	wait   sync.WaitGroup
}

// must ends the test on an error.
func (c *cloud) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// raiseCloud starts everything, with servers at both sites.
func raiseCloud(t *testing.T) *cloud {
	t.Helper()
	n, err := vpc.New(true)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	c := &cloud{T: t, Net: n, dir: t.TempDir()}
	c.must(err)
	t.Cleanup(n.Close)
	t.Cleanup(c.down)
	c.must(os.WriteFile(c.file("keys"), []byte(vpc.Keys()), 0o600))
	for i := range n.Sites {
		c.serve(i)
		c.start(i)
	}
	return c
}

func (c *cloud) file(name string) string { return filepath.Join(c.dir, name) }

// deployment is what a board of one region runs: the chain for all, and a task of a
// guest, for which the region must be given up.
func (c *cloud) deployment(site int, more ...string) string {
	s := &c.Sites[site]
	text := "regions: {count: 1, area: 3}\ntasks:\n  pass: {kind: dummy}\n"
	for name, task := range s.Tasks(c.file("keys"), append(s.Rules(), more...)) {
		text += fmt.Sprintf("  %s: %s\n", name, task)
	}
	return text + fmt.Sprintf(`tenants: {cloud: {}, guest: {}}
dags:
  - {uid: 1, tenant: cloud, run: fw -> nat -> aes}
  - {uid: 2, tenant: guest, run: pass}
rules:
  - {match: "type:%#x", dag: 2, priority: 1}
  - {match: all, dag: 1}
`, guest)
}

// start starts a site's board and waits until it runs.
func (c *cloud) start(site int) {
	c.Helper()
	s := &c.Sites[site]
	spec := fmt.Sprintf(`ports:
  hosts: {kind: afxdp, args: {dev: %s, pair: wire}}
  wire: {kind: afxdp, args: {dev: %s, pair: hosts}}
apps:
  nic:
    kind: snic
    args:
      deployment: |
        %s
links: [hosts.out -> nic.p0, nic.p1 -> wire.in, wire.out -> nic.p1, nic.p0 -> hosts.in]
`, s.Inline[0], s.Inline[1], strings.ReplaceAll(strings.TrimSpace(c.deployment(site)), "\n", "\n        "))
	c.must(os.WriteFile(c.file(s.Name+".yaml"), []byte(spec), 0o600))
	p, err := demo.StartProcess(c.Boards, demo.Command{Path: quillon, Args: []string{"quillon", "run", c.file(s.Name + ".yaml")}})
	c.must(err)
	c.boards[site] = p
	c.until("board "+s.Name+" to run", func() bool {
		select {
		case <-p.Done():
			c.Fatal(p.Err())
		default:
		}
		return strings.Contains(p.Log(), "running as ")
	})
}

// until waits for something.
func (c *cloud) until(what string, f func() bool) {
	c.Helper()
	late := time.NewTimer(60 * time.Second)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-late.C:
			c.Fatalf("waited too long for %s", what)
		}
	}
}

// ask runs a command about a board.
func (c *cloud) ask(site int, args ...string) string {
	c.Helper()
	var out []byte
	c.must(c.Boards.Do(func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		out, err = exec.CommandContext(ctx, quillon, append(args, "--name", c.Sites[site].Name)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("quillon %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	}))
	return string(out)
}

// counter is a count of a site's board.
func (c *cloud) counter(site int, node, name string) (n uint64) {
	c.Helper()
	var all []struct {
		Node  string
		Name  string
		Value uint64
	}
	text := c.ask(site, "show", "counters", "--json")
	c.must(json.Unmarshal([]byte(text), &all))
	for _, x := range all {
		if strings.HasSuffix(x.Node, node) && x.Name == name {
			n += x.Value
		}
	}
	return n
}

// view is what a board says of itself.
func (c *cloud) view(site int) snic.View {
	c.Helper()
	var v []snic.View
	text := c.ask(site, "report", "nic", "--json")
	c.must(json.Unmarshal([]byte(text), &v))
	return v[0]
}

// serve echoes what comes to a site's server, on both ports.
func (c *cloud) serve(site int) {
	c.Helper()
	s := &c.Sites[site]
	c.echoed[site], c.heard[site] = make(chan netip.AddrPort, 64), make(chan string, 1024)
	for _, p := range []uint16{vpc.Service, vpc.Forbidden} {
		at := netip.AddrPortFrom(s.Server, p)
		var l *net.TCPListener
		var u *net.UDPConn
		c.must(s.Hosts.Do(func() (err error) {
			if l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at)); err != nil {
				return err
			}
			u, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		}))
		c.ends = append(c.ends, l, u)
		c.wait.Go(func() {
			for {
				k, err := l.AcceptTCP()
				if err != nil {
					return
				}
				c.echoed[site] <- k.RemoteAddr().(*net.TCPAddr).AddrPort()
				c.wait.Go(func() {
					defer k.Close()
					_, _ = io.Copy(k, k)
				})
			}
		})
		c.wait.Go(func() {
			b := make([]byte, 2048)
			for {
				n, from, err := u.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				c.heard[site] <- fmt.Sprintf("%v %s", from.Addr(), b[:n])
				_, _ = u.WriteToUDPAddrPort(b[:n], from)
			}
		})
	}
}

// dial opens a connection from a site's client to an address of the other.
func (c *cloud) dial(site int, network string, to netip.Addr, port uint16, patience time.Duration) (k net.Conn, err error) {
	err = c.Sites[site].Hosts.Do(func() error {
		k, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), patience)
		return err
	})
	return k, err
}

// open opens a TCP connection that is there to the end.
func (c *cloud) open(site int) net.Conn {
	c.Helper()
	k, err := c.dial(site, "tcp4", c.Sites[1-site].Server, vpc.Service, 10*time.Second)
	c.must(err)
	c.Cleanup(func() { k.Close() })
	if from := (<-c.echoed[1-site]).Addr(); from != c.Sites[site].Shared {
		c.Errorf("site %s's client is seen as %v, not %v", c.Sites[site].Name, from, c.Sites[site].Shared)
	}
	return k
}

// exchange sends n bytes and gets them back, both at once.
func exchange(k net.Conn, n int) error {
	said := bytes.Repeat([]byte(secret), n/len(secret)+1)[:n]
	sent := make(chan error, 1)
	go func() {
		_, err := k.Write(said)
		sent <- err
	}()
	got := make([]byte, n)
	if _, err := io.ReadFull(k, got); err != nil {
		k.Close()
		return errors.Join(err, <-sent)
	}
	if !bytes.Equal(got, said) {
		return errors.New("what came back is not what was sent")
	}
	return <-sent
}

// ping sends a datagram until it comes back.
func (c *cloud) ping(site int) {
	c.Helper()
	k, err := c.dial(site, "udp4", c.Sites[1-site].Server, vpc.Service, time.Second)
	c.must(err)
	defer k.Close()
	b := make([]byte, 2048)
	for range 100 {
		_, err := k.Write([]byte(secret))
		c.must(err)
		c.must(k.SetReadDeadline(soon(100 * time.Millisecond)))
		if n, err := k.Read(b); err == nil && string(b[:n]) == secret {
			return
		}
	}
	c.Fatalf("site %s: no datagram came back", c.Sites[site].Name)
}

// closed reports that a port of an address cannot be reached from a site, by TCP or UDP.
func (c *cloud) closed(site int, to netip.Addr, port uint16) {
	c.Helper()
	if k, err := c.dial(site, "tcp4", to, port, 300*time.Millisecond); err == nil {
		k.Close()
		c.Errorf("%v:%d can be reached from site %s", to, port, c.Sites[site].Name)
	} else if !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
		c.Errorf("%v:%d answers site %s: %v", to, port, c.Sites[site].Name, err)
	}
	k, err := c.dial(site, "udp4", to, port, time.Second)
	c.must(err)
	defer k.Close()
	_, err = k.Write([]byte(secret))
	c.must(err)
	c.must(k.SetReadDeadline(soon(100 * time.Millisecond)))
	if _, err := k.Read(make([]byte, 2048)); err == nil {
		c.Errorf("%v:%d answers datagrams of site %s", to, port, c.Sites[site].Name)
	}
}

// socket is a packet socket on a link of a namespace.
func (c *cloud) socket(s *topo.Space, link string) int {
	c.Helper()
	var fd int
	c.must(s.Do(func() (err error) {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: l.Attrs().Index}))
	}))
	return fd
}

// eavesdropper reads all that is on the wire.
type eavesdropper struct {
	fd        int
	stop      chan struct{}
	ended     sync.WaitGroup
	protected atomic.Int64
	guests    atomic.Int64
	mu        sync.Mutex
	clear     []string // what was not protected, or could be read
	last      []byte   // of site a's
}

func (c *cloud) eavesdrop() *eavesdropper {
	e := &eavesdropper{fd: c.socket(c.Wire, c.Tap[0]), stop: make(chan struct{})}
	a := c.Sites[0].Tunnel.As4()
	e.ended.Go(func() {
		b := make([]byte, 4096)
		for {
			select {
			case <-e.stop:
				return
			default:
			}
			n, _, err := unix.Recvfrom(e.fd, b, 0)
			if err != nil || n < 34 {
				continue
			}
			f := b[:n]
			t, tunnelled := binary.BigEndian.Uint16(f[12:]), f[23] == unix.IPPROTO_ESP && bytes.Equal(f[26:29], a[:3]) && bytes.Equal(f[30:33], a[:3])
			switch {
			case t == guest:
				e.guests.Add(1)
			case t == 0x0800 && tunnelled && !bytes.Contains(f, []byte(secret[:8])):
				e.protected.Add(1)
				if bytes.Equal(f[26:30], a[:]) {
					e.mu.Lock()
					e.last = bytes.Clone(f)
					e.mu.Unlock()
				}
			default:
				e.mu.Lock()
				e.clear = append(e.clear, fmt.Sprintf("%x", f[:min(n, 64)]))
				e.mu.Unlock()
			}
		}
	})
	return e
}

func (e *eavesdropper) close() {
	close(e.stop)
	e.ended.Wait()
	unix.Close(e.fd)
}

// datagram is a UDP datagram in the clear, to a site's server.
func (c *cloud) datagram(from netip.Addr, site int, payload string) []byte {
	s := &c.Sites[site]
	b := append(s.MAC[:len(s.MAC):len(s.MAC)], 2, 0x56, 0, 0, 0, 9, 8, 0)
	src, dst := from.As4(), s.Server.As4()
	ip := []byte{0x45, 0, 0, byte(28 + len(payload)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, src[:]...), dst[:]...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, 999)
	b = binary.BigEndian.AppendUint16(b, vpc.Service)
	b = append(b, 0, byte(8+len(payload)), 0, 0)
	return append(b, payload...)
}

// down stops what runs.
func (c *cloud) down() {
	for i, p := range c.boards {
		if p == nil {
			continue
		}
		select {
		case <-p.Done():
		default:
			if err := p.Stop(); err != nil {
				c.Error(err)
			}
		}
		if c.Failed() {
			c.Logf("board %s: %s", c.Sites[i].Name, p.Log())
		}
	}
	for _, e := range c.ends {
		e.Close()
	}
}

func soon(d time.Duration) time.Time { return time.Now().Add(d) }

// Two sites of one tenant, each behind firewall -> NAPT -> AES on a board of its own:
// what may pass does, through redeployments and context switches; the rest
// does not; the wire can be listened to by anyone.
func TestVirtualPrivateCloud(t *testing.T) {
	c := raiseCloud(t)
	ear := c.eavesdrop()
	defer ear.close()
	const some = 2 << 20
	var open [2]net.Conn
	for i := range c.Sites {
		c.ping(i)
		open[i] = c.open(i)
	}
	// all exchanges data on all connections at once.
	all := func(n int) {
		t.Helper()
		errs := make(chan error, len(open))
		for _, k := range open {
			go func() {
				_ = k.SetDeadline(soon(60 * time.Second))
				errs <- exchange(k, n)
			}()
		}
		for range open {
			c.must(<-errs)
		}
	}
	all(some)

	for i := range c.Sites {
		there := &c.Sites[1-i]
		c.closed(i, there.Server, vpc.Forbidden)
		c.closed(i, there.Shared, vpc.Service)
		c.closed(i, there.Client, vpc.Service)
		if c.counter(i, "fw", "denied-by-default") == 0 {
			t.Errorf("board %s: the firewall denied nothing", c.Sites[i].Name)
		}
	}

	// Whoever is on the wire is not believed: what is in the clear, and what was heard.
	c.ping(0)
	for len(c.heard[1]) > 0 {
		<-c.heard[1]
	}
	var heard []byte
	c.until("the wire to be heard", func() bool {
		ear.mu.Lock()
		defer ear.mu.Unlock()
		heard = ear.last
		return heard != nil
	})
	tap := c.socket(c.Wire, c.Tap[1])
	replays := c.counter(1, "aes", "replay")
	for _, f := range [][]byte{c.datagram(c.Sites[0].Shared, 1, "made up"), c.datagram(netip.MustParseAddr("192.0.2.99"), 1, "made up"), heard} {
		_, err := unix.Write(tap, f)
		c.must(err)
	}
	unix.Close(tap)
	c.until("a replay to be noticed", func() bool { return c.counter(1, "aes", "replay") > replays })
	if n := c.counter(1, "aes", "unprotected"); n != 1 {
		t.Errorf("%d frames in the clear from protected addresses were noticed, not 1", n)
	}
	if n := len(c.heard[1]); n != 0 {
		t.Errorf("the server got %q from the wire", <-c.heard[1])
	}

	// A rule more, while data flows.
	stop := make(chan struct{})
	flowed := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				flowed <- nil
				return
			default:
			}
			_ = open[0].SetDeadline(soon(60 * time.Second))
			if err := exchange(open[0], 64<<10); err != nil {
				flowed <- err
				return
			}
		}
	}()
	more := [2]string{fmt.Sprintf("allow+in:a+proto:tcp+dport:%d", vpc.Forbidden), fmt.Sprintf("allow+in:b+proto:tcp+dport:%d", vpc.Forbidden)}
	for i := range c.Sites {
		c.must(os.WriteFile(c.file("tasks.yaml"), []byte(c.deployment(i, more[i])), 0o600))
		if said := c.ask(i, "snic", "deploy", c.file("tasks.yaml")); !strings.Contains(said, "task fw changed") {
			t.Errorf("a deployment was answered: %s", said)
		}
	}
	k, err := c.dial(0, "tcp4", c.Sites[1].Server, vpc.Forbidden, 5*time.Second)
	c.must(err)
	c.must(k.SetDeadline(soon(60 * time.Second)))
	c.must(exchange(k, 1000))
	k.Close()
	c.closed(1, c.Sites[0].Server, vpc.Forbidden)
	close(stop)
	c.must(<-flowed)
	all(some)

	// A guest wants the only region of both boards, again and again.
	before := [2]snic.View{c.view(0), c.view(1)}
	from, to := c.socket(c.Sites[0].Hosts, vpc.Interface), c.socket(c.Sites[1].Hosts, vpc.Interface)
	var arrived atomic.Int64
	quit := make(chan struct{})
	var guests sync.WaitGroup
	guests.Go(func() {
		f := append(append(c.Sites[1].MAC[:], c.Sites[0].MAC[:]...), guest>>8, guest&0xFF)
		f = append(f, make([]byte, 50)...)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				_, _ = unix.Write(from, f)
			}
		}
	})
	guests.Go(func() {
		b := make([]byte, 2048)
		for {
			select {
			case <-quit:
				return
			default:
			}
			if n, _, err := unix.Recvfrom(to, b, 0); err == nil && n > 14 && binary.BigEndian.Uint16(b[12:]) == guest {
				arrived.Add(1)
			}
		}
	})
	for range 100 {
		all(20_000)
		if arrived.Load() > 20 && c.view(1).Board.Switched > before[1].Board.Switched+10 {
			break
		}
	}
	close(quit)
	guests.Wait()
	unix.Close(from)
	unix.Close(to)
	for i := range c.Sites {
		if n := c.view(i).Board.Switched - before[i].Board.Switched; n < 4 {
			t.Errorf("board %s: %d context switches: too few to see anything", c.Sites[i].Name, n)
		} else {
			t.Logf("board %s: %d context switches", c.Sites[i].Name, n)
		}
	}
	if arrived.Load() == 0 {
		t.Error("nothing of the guest arrived")
	}
	all(some)

	// A board that dies lets nothing through, in the clear least of all. The next one
	// knows no connections, but the numbers up to which the other end believes no packet.
	c.must(c.boards[0].Signal(syscall.SIGKILL))
	<-c.boards[0].Done()
	for len(c.heard[1]) > 0 {
		<-c.heard[1]
	}
	c.closed(0, c.Sites[1].Server, vpc.Service)
	if n := len(c.heard[1]); n != 0 {
		t.Errorf("without a board the server got %q", <-c.heard[1])
	}
	c.start(0)
	c.ping(0)
	for i, k := range open {
		k.Close()
		open[i] = c.open(i)
	}
	all(some)

	// What was sent was not read on the way.
	ear.mu.Lock()
	if len(ear.clear) > 0 {
		t.Errorf("%d frames could be read on the wire, such as %s", len(ear.clear), ear.clear[0])
	}
	ear.mu.Unlock()
	t.Logf("%d protected frames on the wire, %d of the guest", ear.protected.Load(), ear.guests.Load())
	if ear.protected.Load() < 4*some/vpc.HostMTU {
		t.Error("too few frames were heard on the wire")
	}

	// At the end it is as it was.
	for i := range c.Sites {
		c.must(c.boards[i].Stop())
	}
	c.must(c.Boards.Do(func() error {
		for _, s := range c.Sites {
			for _, name := range s.Inline {
				l, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				if x := l.Attrs().Xdp; x != nil && x.Attached {
					t.Errorf("%s has an XDP program still", name)
				}
			}
		}
		left, err := os.ReadDir("/sys/fs/bpf")
		for _, f := range left {
			if !strings.HasSuffix(f.Name(), ".debug") { // the kernel's own
				t.Errorf("%s is left", f.Name())
			}
		}
		return err
	}))
}
