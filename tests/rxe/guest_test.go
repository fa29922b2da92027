package rxe

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// Limits of a guest, in emulation on a busy machine.
const (
	bootTime = 120 * time.Second
	jobTime  = 30 * time.Second
	playTime = 3 * time.Minute  // of a program that may be disturbed
	quiet    = 20 * time.Second // while one runs and no guest receives anything: it hangs
)

// guest is one running machine. Its methods may be called from any goroutine.
type guest struct {
	name, ip4, ip6 string
	console        string // file
	line           net.Conn
	process        *exec.Cmd

	up   <-chan Reply // the first one
	lost atomic.Bool  // it does not answer any more

	mu      sync.Mutex
	last    int
	waiting map[int]chan<- Reply // nil: the line has ended
}

// boot starts a guest on a tap of space, without waiting for it; folder takes
// its console and socket.
func boot(space *topo.Space, im image, folder string, i, guests, mtu int) (*guest, error) {
	memory, tagged := "256", 0
	if im.all {
		memory, tagged = "640", 1
	}
	g := &guest{
		name:    fmt.Sprintf("g%d", i),
		ip4:     IP4(i),
		ip6:     IP6(i),
		waiting: map[int]chan<- Reply{},
	}
	g.console = folder + "/" + g.name + ".console"
	socket := folder + "/" + g.name + ".agent"
	listen, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	defer listen.Close()
	// sndbuf=0: a tap without room drops the frame; by default the guest's queue waits for it.
	// maxcpus=2: for a machine that never has a second processor QEMU before 8.2 leaves the guest's
	// memory barriers out, while its own thread reads the queues: a wake-up is lost now and then,
	// and then the guest's queue stands still for ever.
	g.process = exec.Command("qemu-system-x86_64", "-name", g.name,
		"-accel", "tcg,thread=multi", "-m", memory, "-smp", "1,maxcpus=2",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", im.kernel, "-initrd", im.initramfs,
		"-serial", "file:"+g.console,
		"-chardev", "socket,id=agent,path="+socket, "-serial", "chardev:agent",
		"-netdev", fmt.Sprintf("tap,id=net,ifname=tap%d,script=no,downscript=no,vnet_hdr=off,sndbuf=0", i),
		"-device", "virtio-net-pci,netdev=net,romfile=,mac="+MAC(i),
		"-append", strings.Join([]string{
			"console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check nokaslr mitigations=off clocksource=acpi_pm",
			fmt.Sprintf("guest=%d guests=%d mtu=%d tagged=%d", i, guests, mtu, tagged),
		}, " "))
	g.process.Stdout, g.process.Stderr = os.Stderr, os.Stderr
	g.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := space.Do(g.process.Start); err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	if err := listen.(*net.UnixListener).SetDeadline(time.Now().Add(bootTime)); err != nil {
		return nil, err
	}
	if g.line, err = listen.Accept(); err != nil {
		g.stop()
		return nil, fmt.Errorf("%s: qemu does not connect: %w", g.name, err)
	}
	up := make(chan Reply, 1)
	g.up, g.waiting[0] = up, up
	go g.read()
	return g, nil
}

// ready waits until the guest is up.
func (g *guest) ready() error {
	_, err := g.await(g.up, bootTime)
	return err
}

// stop ends the guest.
func (g *guest) stop() {
	_ = g.process.Process.Kill()
	_ = g.process.Wait()
	if g.line != nil {
		_ = g.line.Close()
	}
}

// waited is how long threads of the guest were ready to run and had no processor.
func (g *guest) waited() (sum time.Duration) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", g.process.Process.Pid))
	for _, path := range paths {
		text, _ := os.ReadFile(path) // "": the thread has ended
		var ran, waited int64
		if _, err := fmt.Sscan(string(text), &ran, &waited); err == nil {
			sum += time.Duration(waited)
		}
	}
	return sum
}

// pause stops the guest's processor for a while; its clock goes on.
func (g *guest) pause(t *testing.T, length time.Duration) {
	t.Helper()
	err := g.process.Process.Signal(syscall.SIGSTOP)
	time.Sleep(length)
	if err := errors.Join(err, g.process.Process.Signal(syscall.SIGCONT)); err != nil {
		t.Fatal(err)
	}
}

// read hands replies to those who wait for them.
func (g *guest) read() {
	in := bufio.NewReader(g.line)
	for {
		text, err := in.ReadBytes('\n')
		var r Reply
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		g.mu.Lock()
		if err != nil {
			for _, w := range g.waiting {
				close(w)
			}
			g.waiting = nil
			g.mu.Unlock()
			return
		}
		if w := g.waiting[r.ID]; w != nil {
			delete(g.waiting, r.ID)
			w <- r
		}
		g.mu.Unlock()
	}
}

// ask sends a request and returns its number; the reply comes on the channel, which is closed when
// the guest has gone.
func (g *guest) ask(q Request) (<-chan Reply, int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil || g.lost.Load() {
		return nil, 0, fmt.Errorf("%s is gone; %s", g.name, g.log())
	}
	g.last++
	q.ID = g.last
	answer := make(chan Reply, 1)
	g.waiting[q.ID] = answer
	text, err := json.Marshal(q)
	if err != nil {
		return nil, 0, err
	}
	_, err = g.line.Write(append(text, '\n'))
	return answer, q.ID, err
}

// await waits for a reply.
func (g *guest) await(answer <-chan Reply, limit time.Duration) (Reply, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r, ok := <-answer:
		if !ok {
			g.lost.Store(true)
			return r, fmt.Errorf("%s is gone; %s", g.name, g.log())
		}
		return r, nil
	case <-timer.C:
		g.lost.Store(true)
		return Reply{}, fmt.Errorf("%s does not answer within %v; %s", g.name, limit, g.log())
	}
}

// log is what the guest's console shows.
func (g *guest) log() string {
	text, _ := os.ReadFile(g.console)
	return fmt.Sprintf("its console:\n%s", text)
}

// job is a program that runs in a guest.
type job struct {
	g      *guest
	id     int
	answer <-chan Reply
	reply  *Reply // once it has ended
}

// start starts a program.
func (g *guest) start(t *testing.T, argv ...string) *job {
	t.Helper()
	return g.startFor(t, jobTime, argv...)
}

// startFor starts a program that is killed after a time.
func (g *guest) startFor(t *testing.T, limit time.Duration, argv ...string) *job {
	t.Helper()
	answer, id, err := g.ask(Request{Argv: argv, Seconds: int(limit / time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	return &job{g: g, id: id, answer: answer}
}

// run runs a program that must succeed, and returns its output.
func (g *guest) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, exit := g.start(t, argv...).wait(t)
	if exit != 0 {
		t.Fatalf("%s: %s: exit status %d: %s", g.name, strings.Join(argv, " "), exit, out)
	}
	return out
}

// wait returns the program's output and exit status.
func (j *job) wait(t *testing.T) (string, int) {
	t.Helper()
	if j.reply == nil {
		r, err := j.g.await(j.answer, 2*jobTime)
		if err != nil {
			t.Fatal(err)
		}
		j.reply = &r
	}
	return j.reply.Output, j.reply.Exit
}

// over reports whether the program has ended.
func (j *job) over(t *testing.T) bool {
	t.Helper()
	if j.reply == nil {
		select {
		case r, ok := <-j.answer:
			if !ok {
				j.g.lost.Store(true)
				t.Fatalf("%s is gone; %s", j.g.name, j.g.log())
			}
			j.reply = &r
		default:
		}
	}
	return j.reply != nil
}

// kill ends the program.
func (j *job) kill(t *testing.T) {
	t.Helper()
	answer, _, err := j.g.ask(Request{Kill: j.id})
	if err == nil {
		_, err = j.g.await(answer, jobTime)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.wait(t)
}

// abandon ends the program if that is possible, and reports whether it was. A
// guest whose kernel keeps it is of no use any more.
func (j *job) abandon(t *testing.T) bool {
	t.Helper()
	if _, _, err := j.g.ask(Request{Kill: j.id}); err != nil {
		t.Error(err)
		return false
	}
	for deadline := time.Now().Add(jobTime); !j.over(t); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			j.g.lost.Store(true)
			return false
		}
	}
	return true
}

// files reads files of text of a guest.
func (g *guest) files(t *testing.T, pattern string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, b := range g.fetch(t, pattern) {
		all[name] = strings.TrimSpace(string(b))
	}
	return all
}

// fetch reads any files of a guest.
func (g *guest) fetch(t *testing.T, pattern string) map[string][]byte {
	t.Helper()
	answer, _, err := g.ask(Request{Read: pattern})
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.await(answer, jobTime)
	if err != nil {
		t.Fatal(err)
	}
	return r.Files
}
