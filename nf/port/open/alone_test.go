package open

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// childEnv has the spec that the test's program opens as another process, until its input ends.
const childEnv = "QUILLON_OPEN"

func TestMain(m *testing.M) {
	src := os.Getenv(childEnv)
	if src == "" {
		os.Exit(m.Run())
	}
	err := holds(src)
	if err != nil {
		fmt.Println("refused:", err)
		os.Exit(1)
	}
}

func holds(src string) error {
	spec, err := graph.ParseSpec([]byte(src))
	if err != nil {
		return err
	}
	ports, err := Open(spec, Config{Filter: port.Filter{All: true}, Clock: clock.NewWall()})
	if err != nil {
		return err
	}
	// As nobody, who may not make or remove a file in /run.
	for _, e := range []syscall.Errno{rawSyscall(unix.SYS_SETGID), rawSyscall(unix.SYS_SETUID)} {
		if e != 0 {
			return e
		}
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return ports.Close()
}

func rawSyscall(trap uintptr) syscall.Errno {
	_, _, e := syscall.AllThreadsSyscall(trap, 65534, 0, 0)
	return e
}

// other is another process that opens a spec.
type other struct {
	cmd  *exec.Cmd
	in   io.Closer
	says chan string // its first line
}

func begin(t *testing.T, src string) *other {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childEnv+"="+src)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil { // in this thread's namespace
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	o := &other{c, in, make(chan string, 1)}
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		o.says <- strings.TrimSpace(line)
	}()
	return o
}

// end has it close its ports.
func (o *other) end() error {
	_ = o.in.Close()
	return o.cmd.Wait()
}

// inRun is what lies in /run. Other programs of the machine leave records of settings there meanwhile, whose names have the cookie of their own
// network namespace, and the directory of their sockets: these are left out.
func inRun(t *testing.T) (names []string) {
	t.Helper()
	own, err := offload.RecordFile(1)
	if err != nil {
		t.Fatal(err)
	}
	own = filepath.Base(own)
	own = own[:strings.LastIndex(own, "-1-")+1]
	all, err := os.ReadDir("/run")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		n := e.Name()
		if n == "quillon" || strings.HasPrefix(n, "quillon-settings-") && !strings.HasPrefix(n, own) {
			continue
		}
		names = append(names, n)
	}
	return names
}

// A process that is nobody cannot put offloads back.
const (
	packets = "ports: {x: {kind: afpacket, args: {dev: va, offloads: leave}}, y: {kind: afpacket, args: {dev: vb, offloads: leave}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"
	onePort = "ports: {t: {kind: tap, args: {dev: tap7}}, x: {kind: afpacket, args: {dev: vb}}}\nlinks: [x.out -> t.in, t.out -> x.in]\n"
	xdpPair = "ports: {x: {kind: afxdp, args: {dev: va, pair: y}}, y: {kind: afxdp, args: {dev: vb, pair: x}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"
	xdpOne  = "ports: {t: {kind: tap, args: {dev: tap8}}, x: {kind: afxdp, args: {dev: va}}}\nlinks: [x.out -> t.in, t.out -> x.in]\n"
	refusal = "has packet sockets of another instance: stop that instance first (quillon list)"
)

// An instance that forwards with packet sockets has its interfaces for itself, also once it is nobody's; one that was killed has
// none any more, and nothing of a claim is left in /run.
func TestAlone(t *testing.T) {
	inVeth(t)
	before := inRun(t)
	open := func(endpoint bool) (*Ports, error) {
		spec, err := graph.ParseSpec([]byte(packets))
		if err != nil {
			t.Fatal(err)
		}
		return Open(spec, Config{Filter: port.Filter{All: true}, Clock: clock.NewWall(), Endpoint: endpoint})
	}
	first := begin(t, packets)
	if says := <-first.says; says != "open" {
		t.Fatal(says)
	}
	var beside []*other
	for _, src := range []string{packets, onePort, xdpPair, xdpOne} {
		beside = append(beside, begin(t, src))
	}
	for _, o := range beside {
		if says := <-o.says; !strings.HasSuffix(says, refusal) {
			t.Errorf("beside the first one %q has %q", o.cmd.Env[len(o.cmd.Env)-1], says)
		}
	}
	ports, err := open(true)
	if err != nil {
		t.Error("an endpoint, which forwards nothing:", err)
	} else if err := ports.Close(); err != nil {
		t.Error(err)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Who starts it again does not wait for the one before to be gone.
	if ports, err = open(false); err != nil {
		t.Fatal("after it was killed:", err)
	}
	late := begin(t, packets)
	if says := <-late.says; !strings.HasSuffix(says, refusal) {
		t.Errorf("beside the next one: %q", says)
	}
	if err := ports.Close(); err != nil {
		t.Error(err)
	}
	last := begin(t, packets)
	if says := <-last.says; says != "open" {
		t.Error("after it was closed:", says)
	}
	if err := last.end(); err != nil {
		t.Error(err)
	}
	left := slices.DeleteFunc(inRun(t), func(n string) bool { return slices.Contains(before, n) || !strings.Contains(n, "quillon") })
	if len(left) > 0 {
		t.Error("left in /run:", left)
	}
}

// Of several that start at once one has the interfaces.
func TestAloneAtOnce(t *testing.T) {
	inVeth(t)
	var all []*other
	for range 4 {
		all = append(all, begin(t, packets))
	}
	open := 0
	for _, o := range all {
		switch says := <-o.says; {
		case says == "open":
			open++
		case !strings.HasSuffix(says, refusal):
			t.Error(says)
		}
	}
	if open != 1 {
		t.Errorf("%d have the interfaces", open)
	}
}

// Of one with AF_XDP and one with packet sockets that start at once one has the interfaces.
func TestKindsAtOnce(t *testing.T) {
	for n := range 8 {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			inVeth(t)
			open := 0
			for _, o := range []*other{begin(t, xdpPair), begin(t, packets)} {
				switch says := <-o.says; {
				case says == "open":
					open++
				case !strings.HasSuffix(says, refusal) && !strings.Contains(says, "has a program of another instance") && !strings.Contains(says, "another process is opening it"):
					t.Error(says)
				}
			}
			if open != 1 {
				t.Errorf("%d have the interfaces", open)
			}
		})
	}
}
