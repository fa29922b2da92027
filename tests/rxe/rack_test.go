package rxe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/initramfs"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/port"
)

// rack is a server and its clients on bridges, with a place for a middlebox.
type rack struct {
	space   *topo.Space
	folder  string
	quillon string
	guests  []*guest        // the server, then the clients
	serves  map[string]bool // what the server's kernel exports already
	spoilt  bool            // programs or connections of an earlier case may be left
	struck  bool            // faults happen now
}

// side is one side of the middlebox: a bridge, and the cable to its place. When
// faults are to happen, that ends in another bridge, and what joins outer[0]
// and inner[0] lies between the two: settings of the cable are left alone.
type side struct {
	bridge, near, place string
	detour              string // the other bridge
	outer, inner        [2]string
}

var sides = [2]side{
	{"br0", "c0", "c1", "br2", [2]string{"c2", "c3"}, [2]string{"c4", "c5"}},
	{"br1", "s0", "s1", "br3", [2]string{"s2", "s3"}, [2]string{"s4", "s5"}},
}

// serverTap is the server's own cable: what passes there no middlebox and no fault has touched since the server sent it.
const serverTap = "tap0"

// plain is the bridge in the middlebox's place in its absence.
const plain = "plain"

// newRack boots a server and some clients, of an image with all programs or with
// few. It stands until it is taken down, or a test ends: this one, or another that
// it is a part of.
func newRack(t, until *testing.T, clients, mtu int, all bool) *rack {
	t.Helper()
	space, err := topo.NewSpace(true)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	r := &rack{space: space, quillon: built + "/quillon", serves: map[string]bool{}}
	until.Cleanup(r.takeDown)
	im := build(t, all)
	if _, err := initramfs.Run("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-ldflags=-s -w", "-o", r.quillon, "../../cmd/quillon"); err != nil {
		t.Fatal(err)
	}
	// The name of a Unix socket is short.
	if r.folder, err = os.MkdirTemp("", "rxe"); err != nil {
		t.Fatal(err)
	}
	if err := r.space.Do(func() error { return wire(clients, mtu) }); err != nil {
		t.Fatal(err)
	}
	for i := range clients + 1 {
		g, err := boot(r.space, im, r.folder, i, clients+1, mtu)
		if err != nil {
			t.Fatal(err)
		}
		r.guests = append(r.guests, g)
	}
	for _, g := range r.guests {
		if err := g.ready(); err != nil {
			t.Fatal(err)
		}
	}
	// From here on the server's queue pairs do not have the clients' numbers.
	r.contend(t, "own -q 1 -n 1")
	return r
}

// waited is how long the guests were ready to run and had no processor, all together.
func (r *rack) waited() (sum time.Duration) {
	for _, g := range r.guests {
		sum += g.waited()
	}
	return sum
}

// takeDown ends all guests and what is between them.
func (r *rack) takeDown() {
	if r.space == nil {
		return
	}
	for _, g := range r.guests {
		g.stop()
	}
	r.space.Close()
	r.space = nil
	os.RemoveAll(r.folder)
}

// lost reports whether a guest is of no use any more.
func (r *rack) lost() bool {
	return r.spoilt || slices.ContainsFunc(r.guests, func(g *guest) bool { return g.lost.Load() })
}

// wire makes taps, bridges and the place between them, in the calling thread's
// namespace.
func wire(clients, mtu int) error {
	attrs := func(name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Name: name, MTU: mtu, TxQLen: 1000, NumTxQueues: 1, NumRxQueues: 1}
	}
	add := func(l netlink.Link, bridge string) error {
		err := netlink.LinkAdd(l)
		if err == nil && bridge != "" {
			err = join(l.Attrs().Name, bridge)
		}
		if err == nil {
			err = up(l.Attrs().Name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
		return nil
	}
	veth := func(name, peer string) netlink.Link {
		return &netlink.Veth{LinkAttrs: attrs(name), PeerName: peer, PeerMTU: uint32(mtu), PeerNumTxQueues: 1, PeerNumRxQueues: 1}
	}
	var errs []error
	for _, br := range []string{"br0", "br1", "br2", "br3", plain} {
		errs = append(errs, add(&netlink.Bridge{LinkAttrs: attrs(br)}, ""))
	}
	for _, s := range sides {
		errs = append(errs, add(veth(s.near, s.place), s.bridge), up(s.place))
		for bridge, ends := range map[string][2]string{"": s.outer, s.detour: s.inner} {
			errs = append(errs, add(veth(ends[0], ends[1]), ""), join(ends[1], bridge), up(ends[1]))
		}
	}
	for i := range clients + 1 {
		tap := &netlink.Tuntap{LinkAttrs: attrs(fmt.Sprintf("tap%d", i)), Mode: netlink.TUNTAP_MODE_TAP}
		errs = append(errs, add(tap, map[bool]string{true: "br0", false: "br1"}[i > 0]))
		if l, err := netlink.LinkByName(tap.Name); err == nil {
			errs = append(errs, netlink.LinkSetMTU(l, mtu))
		}
	}
	return errors.Join(append(errs, bridged())...)
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// join makes a link a port of a bridge; of none when that is "".
func join(name, bridge string) error {
	l, err := netlink.LinkByName(name)
	if err != nil || bridge == "" {
		return errors.Join(err, netlink.LinkSetNoMaster(l))
	}
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(l, br)
}

// startTime is how long an instance may take to start, and to stop.
const startTime = 10 * time.Second

// outage takes the plain bridge out of the middlebox's place for a while.
func (r *rack) outage(t *testing.T, length time.Duration) {
	t.Helper()
	err := r.space.Do(unbridged)
	time.Sleep(length)
	if err := errors.Join(err, r.space.Do(bridged)); err != nil {
		t.Fatal(err)
	}
}

// bridged puts the plain bridge into the middlebox's place, and unbridged takes it away.
func bridged() error {
	return errors.Join(join(sides[0].place, plain), join(sides[1].place, plain))
}

func unbridged() error {
	return errors.Join(join(sides[0].place, ""), join(sides[1].place, ""))
}

// middlebox is a running instance between clients and server.
type middlebox struct {
	r       *rack
	name    string
	control string   // socket
	args    []string // of quillon run
	process *exec.Cmd
	log     bytes.Buffer
	ended   chan error
}

// insert puts a chain of network functions into its place, under a name of its
// own; arguments are those of quillon run.
func (r *rack) insert(t *testing.T, name string, args ...string) *middlebox {
	t.Helper()
	m := &middlebox{r: r, name: name, control: r.folder + "/control", ended: make(chan error, 1)}
	m.args = append([]string{"run", "--inline", sides[0].place + "," + sides[1].place, "--name", name, "--control", m.control}, args...)
	m.start(t)
	return m
}

// start starts the instance and waits until it is up. The plain bridge carries all frames until then: none is missing.
func (m *middlebox) start(t *testing.T) {
	t.Helper()
	process := exec.Command(m.r.quillon, m.args...)
	process.Stdout, process.Stderr = &m.log, &m.log
	process.Env = append(os.Environ(), "STATE_DIRECTORY="+m.r.folder)
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.r.space.Do(process.Start); err != nil {
		t.Fatal(err)
	}
	m.process = process
	go func() { m.ended <- process.Wait() }()
	for deadline := time.Now().Add(startTime); ; {
		if _, err := m.counters(); err == nil {
			if err := m.r.space.Do(unbridged); err != nil {
				t.Fatal(err)
			}
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("quillon is not up: %v\n%s", err, m.log.String())
		}
		select {
		case err := <-m.ended:
			t.Fatalf("quillon has ended: %v\n%s", err, m.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// crash kills the instance, and starts it again after a while.
func (m *middlebox) crash(t *testing.T, absent time.Duration) {
	t.Helper()
	m.check(t)
	if err := m.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-m.ended
	time.Sleep(absent)
	m.start(t)
}

// counters are those of the instance that are not 0, as "node group name".
func (m *middlebox) counters() (map[string]uint64, error) {
	var out []byte
	err := m.r.space.Do(func() (err error) {
		out, err = initramfs.Run(m.r.quillon, "show", "counters", "--json", "--control", m.control)
		return err
	})
	if err != nil {
		return nil, err
	}
	var shown []struct {
		Node, Group, Name string
		Value             uint64
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for _, c := range shown {
		if c.Value != 0 {
			all[c.Node+" "+c.Group+" "+c.Name] = c.Value
		}
	}
	return all, nil
}

// remove ends the middlebox and puts the plain bridge into its place. Programs of guests end without a word: their
// connections hold the wire, of which the next middlebox, with another state, knows nothing.
func (m *middlebox) remove(t *testing.T) {
	t.Helper()
	if err := m.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case err := <-m.ended:
		if err != nil {
			t.Errorf("quillon: %v\n%s", err, m.log.String())
		}
	case <-time.After(startTime):
		_ = m.process.Process.Kill()
		t.Errorf("quillon does not stop\n%s", m.log.String())
	}
	err := m.r.space.Do(func() error {
		_, err := initramfs.Run(m.r.quillon, "detach", sides[0].place, sides[1].place)
		if left := os.Remove("/run/quillon/" + m.name + ".state"); !errors.Is(left, fs.ErrNotExist) { // 50 MB each, in a /run of the space's own
			err = errors.Join(err, left)
		}
		return errors.Join(err, bridged())
	})
	if err != nil {
		t.Error(err)
	}
}

// capture keeps what passes both sides of the middlebox until end is called, when it was asked
// for: in files of the test's name, and what more there is to it.
func (r *rack) capture(t *testing.T, more ...string) (end func()) {
	t.Helper()
	var all []func()
	end = func() {
		for _, f := range all {
			f()
		}
	}
	if *captures == "" {
		return end
	}
	name := *captures + "/" + strings.Join(append([]string{strings.ReplaceAll(t.Name(), "/", ".")}, more...), ".")
	for side, link := range map[string]string{"clients": sides[0].near, "server": sides[1].near} {
		cmd := exec.Command("tcpdump", "-Z", "root", "--immediate-mode", "-U", "-i", link, "-w", name+"."+side+".pcap", "udp port 4791")
		diag, err := cmd.StderrPipe()
		if err == nil {
			err = r.space.Do(cmd.Start)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = diag.Read(make([]byte, 1)) // it listens
		all = append(all, func() {
			_ = cmd.Process.Signal(syscall.SIGINT)
			_, _ = io.Copy(io.Discard, diag)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	return end
}
