package xdp

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/open"
)

// childVar has the arguments of the app that a child of these tests runs.
const childVar = "QUILLON_HEADLESS_CHILD"

// status is what a child answers.
type status struct {
	Err     string
	Running Running
	Rx      uint64 // frames of port 1, by the program's counter
	Hits    uint64 // of the entry that forwards
	Switch  uint64 // frames that headless-dropped of the app has
}

// child runs a graph in the network namespace of file descriptor 3. It does what lines of its input say.
func child(text string) error {
	var args graph.Args
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := netns.Set(netns.NsHandle(3)); err != nil {
		return err
	}
	if args["drop"] == "yes" { // all threads are to be in the namespace, since to enter one takes rights
		if err := os.Setenv(childVar, strings.Replace(text, `"yes"`, `"now"`, 1)); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	out := json.NewEncoder(os.Stdout)
	spec := siteSpec("xdp")
	withPorts(spec, args["ports"])
	if args["layout"] != "" {
		layoutVersion = 1 << 30
	}
	delete(args, "ports")
	delete(args, "layout")
	drop := args["drop"]
	delete(args, "drop")
	spec.Apps["sw"] = graph.AppSpec{Kind: "p4", Args: args}
	x, err := open.Start(graph.Config{Spec: spec, Kinds: []graph.Kind{*Kind()}}, open.Config{Clock: clock.NewWall()})
	if err != nil {
		return out.Encode(status{Err: err.Error()})
	}
	if drop != "" {
		if err := dropRights(); err != nil {
			return err
		}
	}
	if err := out.Encode(status{}); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var s status
		what, rest, _ := strings.Cut(in.Text(), " ")
		if what == "stop" {
			if err := x.Stop(); err != nil {
				s.Err = err.Error()
			}
			return out.Encode(s)
		}
		if what == "set" {
			var args graph.Args
			if err := json.Unmarshal([]byte(rest), &args); err != nil {
				return err
			}
			if _, err := x.Graph.Set("sw", args); err != nil {
				s.Err = err.Error()
			}
			if err := out.Encode(s); err != nil {
				return err
			}
			continue
		}
		err := x.Graph.Visit("sw", 0, func(a graph.App) {
			if what == "load" {
				src, err := os.ReadFile(rest)
				if err == nil {
					err = a.(*p4.App).Load(src)
				}
				if err != nil {
					s.Err = err.Error()
				}
				return
			}
			sw := a.(*p4.App).Switch()
			if what == "entries" {
				all, err := stf.Parse(strings.NewReader(strings.ReplaceAll(rest, ";", "\n")))
				if err == nil {
					err = stf.Configure(sw, all)
				}
				if err != nil {
					s.Err = err.Error()
				}
				return
			}
			s.Running = a.(*p4.App).Report().(p4.Report).Kernel.(Running)
			if sw == nil {
				return
			}
			c, _ := sw.Count("bridge_ingress.port_rx", 1)
			s.Rx = c.Packets
			if h, err := sw.Find("bridge_ingress.dmac", []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 2}}}, 0); err == nil {
				c, _ = sw.EntryCount("bridge_ingress.dmac", h)
				s.Hits = c.Packets
			}
		})
		if err != nil {
			s.Err = err.Error()
		}
		for _, c := range x.Graph.Counters() {
			if c.Name == "headless-dropped" {
				s.Switch = c.Value
			}
		}
		if err := out.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

// house is two interfaces on veth, with a socket at the far end of each.
type house struct {
	*testing.T
	near     *topo.Space
	far      [2]*topo.Space
	ns       *os.File
	out, in  int // sockets
	to       unix.SockaddrLinklayer
	mu       sync.Mutex
	got      map[uint64]int
	sent     atomic.Uint64
	features [2]map[string]ethtool.Feature
}

func newHouse(t *testing.T) *house {
	requireKernel(t)
	h := &house{T: t, got: map[uint64]int{}}
	for _, s := range []**topo.Space{&h.near, &h.far[0], &h.far[1]} {
		var err error
		if *s, err = topo.NewSpace(false); err != nil {
			t.Skip(err)
		}
		t.Cleanup((*s).Close)
	}
	do := func(s *topo.Space, f func() error) {
		t.Helper()
		if err := s.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(h.near, func() (err error) {
		h.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	t.Cleanup(func() { _ = h.ns.Close() })
	for i, name := range []string{blast.A, blast.B} {
		peer := strings.Replace(name, "1", "0", 1)
		var far *os.File
		do(h.far[i], func() (err error) {
			far, err = os.Open("/proc/thread-self/ns/net")
			return err
		})
		do(h.near, func() error {
			la := netlink.NewLinkAttrs()
			la.Name = name
			return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: peer, PeerNamespace: netlink.NsFd(far.Fd())}), topo.LinkUp(name))
		})
		do(h.far[i], func() error {
			if err := topo.LinkUp(peer); err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0003<<8)
			if err != nil {
				return err
			}
			at := unix.SockaddrLinklayer{Protocol: 0x0003 << 8, Ifindex: indexOf(t, peer)}
			if i == 0 {
				h.out, h.to = fd, at
			} else {
				h.in = fd
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
			}
			return errors.Join(unix.Bind(fd, &at), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
		})
		_ = far.Close()
	}
	h.features = h.settings()
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		b := make([]byte, 2048)
		for {
			select {
			case <-end:
				return
			default:
			}
			n, from, err := unix.Recvfrom(h.in, b, 0)
			if l, ok := from.(*unix.SockaddrLinklayer); err != nil || ok && l.Pkttype == unix.PACKET_OUTGOING || n != 60 || b[5] != 2 {
				continue
			}
			h.mu.Lock()
			h.got[binary.BigEndian.Uint64(b[52:])]++
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		close(end)
		done.Wait()
		_, _ = unix.Close(h.in), unix.Close(h.out)
	})
	return h
}

// settings are the features of the far ends.
func (h *house) settings() [2]map[string]ethtool.Feature {
	h.Helper()
	return [2]map[string]ethtool.Feature{h.settingsOf(0, "a0"), h.settingsOf(1, "b0")}
}

// settingsOf are the features of an interface at a far end.
func (h *house) settingsOf(far int, name string) (all map[string]ethtool.Feature) {
	h.Helper()
	err := h.far[far].Do(func() error {
		tool, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer tool.Close()
		all, err = tool.Features(name)
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	return all
}

// send sends a numbered frame that the bridge forwards to port 2, or, for digest, one from a station that it does not know, of
// which it tells its controller.
func (h *house) send(digest bool) {
	b := frameOf(h, bridgeFrame)
	if digest {
		b[11] ^= 9
	} else {
		binary.BigEndian.PutUint64(b[52:], h.sent.Add(1))
	}
	if err := unix.Sendto(h.out, b, 0, &h.to); err != nil {
		h.Error(err)
	}
}

// flow sends frames, 2,000 a second, until each has been sent.
func (h *house) flow(frames int) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		since := time.Now()
		for n := 0; n < frames; {
			for ; n < frames && time.Since(since) > time.Duration(n)*500*time.Microsecond; n++ {
				h.send(false)
			}
			time.Sleep(500 * time.Microsecond)
		}
	}()
	return done
}

// arrived returns how many of the numbers have arrived, and how many more than once.
func (h *house) arrived() (n, twice int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.got {
		if k > 1 {
			twice++
		}
	}
	return len(h.got), twice
}

func (h *house) until(what string, ok func() bool) {
	h.Helper()
	for range 1500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n, twice := h.arrived()
	h.Fatalf("15 s later: %s; of %d frames %d have arrived, %d more than once", what, h.sent.Load(), n, twice)
}

// programs are the names of the programs at both interfaces.
func (h *house) programs() (names []string) {
	h.Helper()
	if err := h.near.Do(func() error {
		for _, name := range []string{blast.A, blast.B} {
			a, err := xsk.AttachedTo(indexOf(h, name))
			if err != nil {
				return err
			}
			if a != nil {
				names = append(names, a.Name)
			}
			if err := a.Close(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		h.Fatal(err)
	}
	return names
}

// box is a child.
type box struct {
	*house
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// start starts a child; an error of its start is returned.
func (h *house) start(args graph.Args, attr *syscall.SysProcAttr) (*box, string) {
	h.Helper()
	if args["program"] = orElse(args["program"], bridge); args["program"] == noProgram {
		delete(args, "program")
	}
	text, err := json.Marshal(args)
	if err != nil {
		h.Fatal(err)
	}
	b := &box{house: h, cmd: exec.Command("/proc/self/exe")}
	b.cmd.Env, b.cmd.ExtraFiles, b.cmd.Stderr, b.cmd.SysProcAttr = append(os.Environ(), childVar+"="+string(text)), []*os.File{h.ns}, os.Stderr, attr
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		h.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(b.kill)
	b.out = json.NewDecoder(out)
	var s status
	if err := b.out.Decode(&s); err != nil {
		h.Fatal("a child has not started: ", err)
	}
	return b, s.Err
}

// noProgram starts a child without a program.
const noProgram = "-"

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (h *house) run(args graph.Args) *box {
	h.Helper()
	b, failed := h.start(args, nil)
	if failed != "" {
		h.Fatal(failed)
	}
	return b
}

func (b *box) say(what string) (s status) {
	b.Helper()
	if _, err := fmt.Fprintln(b.in, what); err != nil {
		b.Fatal(err)
	}
	if err := b.out.Decode(&s); err != nil {
		b.Fatal(err)
	}
	if s.Err != "" {
		b.Fatal(s.Err)
	}
	return s
}

func (b *box) entries() { b.say("entries " + strings.ReplaceAll(bridgeEntries, "\n", ";")) }

func (b *box) kill() {
	if b.cmd.ProcessState == nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	}
}

func (b *box) stop() {
	b.Helper()
	b.say("stop")
	_ = b.in.Close()
	if err := b.cmd.Wait(); err != nil {
		b.Error(err)
	}
}

// forwards waits until the kernel runs frames by the child's program, and sends some.
func (b *box) forwards() {
	b.Helper()
	b.until("the program does not run", func() bool { return b.say("report").Running.Runs })
	for range 10 {
		b.send(false)
	}
	b.all("at first")
}

// all waits until all numbers have arrived.
func (h *house) all(when string) {
	h.Helper()
	h.until(when+": frames are lost", func() bool { n, _ := h.arrived(); return n == int(h.sent.Load()) })
}

// clean checks that nothing is left at the interfaces.
func (h *house) clean(when string) {
	h.Helper()
	if names := h.programs(); len(names) > 0 {
		h.Errorf("%s: programs %v are attached", when, names)
	}
	for i, now := range h.settings() {
		for name, f := range now {
			if f != h.features[i][name] {
				h.Errorf("%s: interface %d has %s %+v, and had %+v", when, i, name, f, h.features[i][name])
			}
		}
	}
	if err := h.near.Do(func() error {
		for _, name := range []string{blast.A, blast.B} {
			left, err := filepath.Glob(fmt.Sprintf("/run/quillon-settings-*-%d-*", indexOf(h, name)))
			if err != nil || len(left) > 0 && slices.ContainsFunc(left, h.mine) {
				h.Errorf("%s: %v %v", when, left, err)
			}
		}
		return nil
	}); err != nil {
		h.Fatal(err)
	}
}

// mine reports whether a record of settings is of this namespace. It is called there.
func (h *house) mine(file string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err == nil && strings.Contains(file, fmt.Sprintf("-%d-", cookie))
}

func outcome(s status, name string) uint64 {
	for _, o := range s.Running.Outcomes {
		if o.Name == name {
			return o.Frames
		}
	}
	return 0
}

// TestHeadless: a program goes on when its process was killed, and the next process takes it over, with the counts that go on, without a frame that is lost.
func TestHeadless(t *testing.T) {
	h := newHouse(t)
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless"} }
	first := h.run(args())
	first.entries()
	first.forwards()
	if names := h.programs(); !slices.Equal(names, []string{afxdp.StayProgram, afxdp.StayProgram}) {
		t.Fatalf("programs %v", names)
	}
	const frames = 20000
	done := h.flow(frames - 10)
	h.until("no frames", func() bool { return h.sent.Load() > 2000 })
	first.kill()
	at := h.sent.Load()
	h.until("frames end with the process", func() bool { n, _ := h.arrived(); return uint64(n) > at+2000 })
	for range 100 {
		h.send(true)
	}
	second := h.run(args())
	s := second.say("report")
	if !s.Running.Headless || s.Running.Runs || !strings.Contains(s.Running.Why, "goes on") {
		t.Errorf("before it has entries: %+v", s.Running)
	}
	at = h.sent.Load()
	h.until("frames end when the next process starts", func() bool { n, _ := h.arrived(); return uint64(n) > at+2000 })
	if s := second.say("report"); s.Running.Runs {
		t.Error("without entries it takes over")
	}
	second.entries()
	h.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	took := h.sent.Load()
	select {
	case <-done:
		t.Error("the flow ended before the program was taken over")
	default:
	}
	<-done
	n, twice := 0, 0
	for range 300 {
		if n, twice = h.arrived(); n == frames {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s = second.say("report")
	t.Logf("%d of %d frames arrived, %d of them twice; the second process had them from about %d on; %d headless-dropped", n, frames, twice, took, outcome(s, "headless-dropped"))
	if n != frames || twice != 0 {
		t.Errorf("%d of %d frames arrived, %d twice", n, frames, twice)
	}
	if s.Rx != frames || s.Hits != frames {
		t.Errorf("the counter has %d frames, the entry %d, want %d", s.Rx, s.Hits, frames)
	}
	if outcome(s, "headless-dropped") != 100 {
		t.Errorf("%d frames are headless-dropped, want 100", outcome(s, "headless-dropped"))
	}
	h.until("the app does not count what was dropped", func() bool { return second.say("report").Switch == 100 })
	second.send(true) // the engine has them again
	h.until("frames for the engine do not come", func() bool { return second.say("report").Running.Given > 0 })
	second.stop()
	h.clean("after a stop")
}

// TestHeadlessClosed: without its process the interfaces of a closed app drop all frames, until the next one is there.
func TestHeadlessClosed(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp", "fail": "closed"})
	first.entries()
	first.forwards()
	first.kill()
	h.until("the sockets stay", func() bool { return slices.Equal(h.programs(), []string{xsk.ShutProgram, xsk.ShutProgram}) })
	up, err := h.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(up)
	// The kernel takes the program of a dead process from the interface's own one in a work queue, some moments after the death.
	h.until("the program of the dead process still runs", func() bool {
		was, _ := h.arrived()
		h.send(false)
		time.Sleep(100 * time.Millisecond)
		now, _ := h.arrived()
		return now == was
	})
	n, _ := h.arrived()
	for range 50 {
		h.send(false)
	}
	time.Sleep(200 * time.Millisecond)
	if now, _ := h.arrived(); now != n {
		t.Errorf("%d frames were forwarded without the process", now-n)
	}
	if n := drain(up); n > 0 {
		t.Errorf("the kernel's stack has %d frames", n)
	}
	h.sent.Store(uint64(n))
	second := h.run(graph.Args{"exec": "xdp", "fail": "closed"})
	second.entries()
	second.until("the program does not run", func() bool { return second.say("report").Running.Runs })
	h.send(false)
	h.until("nothing is forwarded", func() bool { now, _ := h.arrived(); return now == n+1 })
	second.stop()
	h.clean("after a stop")
}

// TestHeadlessOpen: without fail= a process that dies leaves the interfaces to the kernel's stack.
func TestHeadlessOpen(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp"})
	first.entries()
	first.forwards()
	first.kill()
	h.until("programs stay", func() bool { return len(h.programs()) == 0 })
	up, err := h.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(up)
	for range 50 {
		h.send(false)
	}
	n := 0
	h.until("the kernel's stack does not have all frames", func() bool { n += drain(up); return n >= 50 })
	if n != 50 {
		t.Errorf("the kernel's stack has %d frames, want 50", n)
	}
	if err := h.detach(); err != nil {
		t.Error(err)
	}
	h.clean("after detach")
}

// TestHeadlessLoaded: a process that gets its program later, as from a controller, says that the one of the killed process goes on, and takes it over.
func TestHeadlessLoaded(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	first.entries()
	first.forwards()
	first.kill()
	second := h.run(graph.Args{"exec": "xdp", "fail": "headless", "program": noProgram})
	if s := second.say("report"); !s.Running.Headless || s.Running.Why != whyHeadless || s.Running.Runs {
		t.Errorf("without a program: %+v", s.Running)
	}
	for range 50 {
		h.send(false)
	}
	h.all("without a program")
	second.say("load " + bridge)
	second.entries()
	second.forwards()
	if s := second.say("report"); s.Running.Headless || s.Rx != h.sent.Load() {
		t.Errorf("%d frames are counted, want %d: %+v", s.Rx, h.sent.Load(), s.Running)
	}
	second.stop()
	h.clean("after a stop")
}

// TestHeadlessOther: a program that is another one is replaced when the next one is ready, and so is one whose ports have no app that goes on with it.
func TestHeadlessOther(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	first.entries()
	first.forwards()
	first.kill()
	other := h.run(graph.Args{"exec": "xdp", "fail": "headless", "program": "../../../p4src/ipv4_router.json"})
	if s := other.say("report"); !s.Running.Runs || s.Running.Headless || s.Running.Finished > 0 {
		t.Errorf("with another program: %+v", s.Running)
	}
	if _, failed := h.start(graph.Args{"exec": "xdp", "fail": "headless"}, nil); !strings.Contains(failed, "is in use by another process") {
		t.Errorf("a second instance: %q", failed)
	}
	if names := h.programs(); !slices.Equal(names, []string{afxdp.StayProgram, afxdp.StayProgram}) {
		t.Errorf("after the second instance was refused: %v", names)
	}
	other.kill()
	third := h.run(graph.Args{"exec": "engine"})
	if names := h.programs(); !slices.Equal(names, []string{xsk.PortProgram, xsk.PortProgram}) {
		t.Errorf("with exec=engine: %v", names)
	}
	third.stop()
	h.clean("after a stop")
}

// TestHeadlessFailedStart: a start that fails leaves what a killed process has left as it was, and detach takes it away.
func TestHeadlessFailedStart(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	first.entries()
	first.forwards()
	first.kill()
	program := filepath.Join(t.TempDir(), "skips.json")
	if err := os.WriteFile(program, nothingRuns(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, failed := h.start(graph.Args{"exec": "xdp", "fail": "headless", "program": program}, nil); !strings.Contains(failed, "no frame can come to its end") {
		t.Errorf("a program that the kernel cannot run: %q", failed)
	}
	for range 50 {
		h.send(false)
	}
	h.all("after a start that failed")
	if err := h.detach(); err != nil {
		t.Error(err)
	}
	h.clean("after detach")
}

// TestHeadlessNoFileSystem: nothing of it needs the file system of bpf.
func TestHeadlessNoFileSystem(t *testing.T) {
	h := newHouse(t)
	// A mount namespace of its own, which goes with the process; the machine of these tests may have none mounted at all.
	first, failed := h.start(graph.Args{"exec": "xdp", "fail": "headless"}, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
	if failed != "" {
		t.Fatal(failed)
	}
	first.entries()
	first.forwards()
	first.kill()
	for range 50 {
		h.send(false)
	}
	h.all("after the process was killed")
	second := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	second.entries()
	h.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	second.stop()
	h.clean("after a stop")
}

// TestHeadlessSet: fail= changes while frames come.
func TestHeadlessSet(t *testing.T) {
	h := newHouse(t)
	b := h.run(graph.Args{"exec": "xdp"})
	b.entries()
	b.forwards()
	for _, of := range []struct{ exec, fail, program string }{{"xdp", "headless", afxdp.StayProgram}, {"auto", "headless", afxdp.StayProgram}, {"auto", "closed", xsk.ShutProgram},
		{"xdp", "headless", afxdp.StayProgram}, {"xdp", "open", ProgramName}} {
		before, _ := h.arrived()
		from := h.sent.Load()
		done := h.flow(1000)
		time.Sleep(100 * time.Millisecond)
		b.say(fmt.Sprintf("set {%q: %q, %q: %q}", "exec", of.exec, "fail", of.fail))
		h.until(of.fail+": the program does not run", func() bool { return b.say("report").Running.Runs })
		<-done
		time.Sleep(50 * time.Millisecond)
		after, twice := h.arrived()
		t.Logf("exec=%s fail=%s: %d of %d frames arrived, %d twice", of.exec, of.fail, after-before, h.sent.Load()-from, twice)
		if names := h.programs(); !slices.Equal(names, []string{of.program, of.program}) {
			t.Errorf("exec=%s fail=%s: programs %v", of.exec, of.fail, names)
		}
		n, _ := h.arrived()
		h.send(false)
		h.until("no frame arrives", func() bool { now, _ := h.arrived(); return now == n+1 })
	}
	b.stop()
	h.clean("after a stop")
}

// detach does what quillon detach does.
func (h *house) detach() error {
	return h.near.Do(func() error { return afxdp.Detach(blast.A, blast.B) })
}

// listen returns a socket that gets what comes to the kernel's stack from the first interface.
func (h *house) listen() (fd int, err error) {
	err = h.near.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0x0003<<8); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0003 << 8, Ifindex: indexOf(h, blast.A)})
	})
	return fd, err
}

// drain counts the bridge's frames that a socket has.
func drain(fd int) (n int) {
	b := make([]byte, 2048)
	for {
		k, err := unix.Read(fd, b)
		if err != nil {
			return n
		}
		if k == 60 && b[5] == 2 {
			n++
		}
	}
}
