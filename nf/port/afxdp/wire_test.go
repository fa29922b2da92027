package afxdp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// childEnv makes the test binary a middlebox that marks what it forwards;
// keep or remove is what it does with the wire at its end. See TestKillBound for
// others.
const childEnv = "QUILLON_TEST_WIRE"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// markAt is a byte of the payload that the middlebox sets.
const markAt = 60

// child forwards between dutA and dutB until its input ends.
func child() error {
	runtime.LockOSThread()
	how := os.Getenv(childEnv)
	if step, n, ok := strings.Cut(how, "/"); ok {
		return killed(step, n)
	}
	cfg := PairConfig{A: "dutA", B: "dutB", Keep: how == "keep"}
	switch how {
	case childBinds, childGuards, childGoesOn, childNarrows:
		cfg.Filter, cfg.Keep = &boundFilter, true
	}
	w, err := OpenPair(cfg)
	if err != nil {
		return err
	}
	if err := boundChild(how, w); err != nil {
		return err
	}
	p := startPump(w.A, w.B, func(x *packet.Buf) { x.Bytes()[markAt] = 1 })
	if w.Info().Resumed {
		fmt.Println("resumed")
	} else {
		fmt.Println("ready")
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := w.Detach(); err != nil {
		return err
	}
	close(p.stop)
	if err := <-p.done; err != nil {
		return err
	}
	return w.Close()
}

// killed is the child that is killed after a step of opening and closing that it
// takes for the n-th time, of a pair; or while it has one interface open.
func killed(step, n string) error {
	times := 0
	die := func(what string) {
		if what != step {
			return
		}
		if times++; fmt.Sprint(times) == n {
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	if step == "alone" {
		_, err := Open(Config{Interface: "dutA"})
		die(step)
		return err
	}
	w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{afterStep: die}})
	if err != nil {
		return err
	}
	return w.Close()
}

// TestKilledHalfway: a process that is killed while the settings are changed, and no
// program has on record what to put back, leaves that to Detach, or to the next one.
func TestKilledHalfway(t *testing.T) {
	for _, how := range []string{"changed/1", "changed/2", "taken off/1", "taken off/2", "alone/1"} {
		t.Run(how, func(t *testing.T) {
			bed := newBed(t, 1500, 1)
			was := settings(t, bed)
			records := func() []string {
				const loopback = 1
				file, err := offload.RecordFile(loopback)
				if err != nil {
					t.Fatal(err)
				}
				all, _ := filepath.Glob(file[:strings.LastIndex(file, "-1-")] + "-*")
				return all
			}
			for _, undo := range []func() error{
				func() error { return Detach("dutA", "dutB") },
				func() error {
					w, err := OpenPair(PairConfig{A: "dutA", B: "dutB"})
					if err != nil {
						return err
					}
					if r := records(); len(r) > 0 {
						t.Errorf("the program has it, and so has %s", r)
					}
					return w.Close()
				},
				func() error {
					fail := func() (err error) {
						if _, e := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{Ring: 1 << 16, Frames: 1 << 40}}); e == nil {
							err = errors.New("there is no end of memory")
						}
						return err
					}
					return errors.Join(fail(), Detach("dutA", "dutB"), fail())
				},
			} {
				c := exec.Command("/proc/self/exe")
				c.Env = append(os.Environ(), childEnv+"="+how)
				if out, err := c.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
					t.Fatalf("%v: %s", err, out)
				}
				if settings(t, bed) == was || len(records()) == 0 {
					t.Error("nothing was left behind")
				}
				if err := undo(); err != nil {
					t.Error(err)
				}
				if now := settings(t, bed); now != was {
					t.Errorf("was\n%s\nis\n%s", was, now)
				}
				if r := records(); len(r) > 0 {
					t.Errorf("%s are left", r)
				}
			}
		})
	}
}

// TestPutBackFails: what cannot be put back stays on record, so that Detach can try again.
func TestPutBackFails(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	set := func(files uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: limit.Max}); err != nil {
			t.Error(err)
		}
	}
	defer set(limit.Cur)
	times := 0
	w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{afterStep: func(what string) {
		if what == "taken off" {
			if times++; times == 2 {
				set(0) // no socket can be opened to tell the kernel
			}
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Close()
	set(limit.Cur)
	if now := settings(t, bed); err == nil || now == was || containsXDP(now) {
		t.Errorf("%v, was\n%s\nis\n%s", err, was, now)
	}
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

// TestNoRecord: where no record can be written, all else is as it is elsewhere.
func TestNoRecord(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	// The thread ends with the test, and what it sees of the file system too.
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", offload.RecordDir, "tmpfs", unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	w, err := OpenPair(PairConfig{A: "dutA", B: "dutB"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

// TestNoRoomForRecord: a wire is taken away, by the process that ends and by Detach, also when the file system is full.
func TestNoRoomForRecord(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", offload.RecordDir, "tmpfs", 0, "size=64k")); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{false, true} {
		w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(offload.RecordDir+"/full", make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if now := settings(t, bed); containsXDP(now) != keep {
			t.Errorf("the wire is there: %v", !keep)
		}
		if err := Detach("dutA", "dutB"); err != nil {
			t.Error(err)
		}
		if now := settings(t, bed); now != was {
			t.Errorf("was\n%s\nis\n%s", was, now)
		}
		if err := os.Remove(offload.RecordDir + "/full"); err != nil {
			t.Fatal(err)
		}
	}
}

type middlebox struct {
	cmd *exec.Cmd
	in  interface{ Close() error }
}

func startChild(t *testing.T, how, wantLine string) *middlebox {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childEnv+"="+how)
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
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != wantLine+"\n" {
		t.Fatalf("the middlebox said %q, not %q (%v)", line, wantLine, err)
	}
	return &middlebox{c, in}
}

// flow sends numbered frames from A to B all the time, and watches what
// arrives. An outage is a run of frames that were lost: from when the first of
// them was sent until the first that arrived was. How late the receiver gets
// the processor does not matter for it, nor for how long the sender does not:
// of the time between two frames no more than asleep counts.
type flow struct {
	stop        atomic.Bool
	done        chan struct{}
	sent        atomic.Uint64
	got, marked atomic.Uint64
	outage      atomic.Int64 // longest, ns: see startFlow
	behind      atomic.Uint64
	at          []atomic.Int64 // when each frame was sent
}

// asleep is a pause between two frames that is the sender's own.
const asleep = 5 * time.Millisecond

func startFlow(bed *bed) *flow {
	f := &flow{done: make(chan struct{}, 2), at: make([]atomic.Int64, 1<<20)}
	go func() {
		defer func() { f.done <- struct{}{} }()
		frame := roce(100, 0, false, 0)
		for n := uint32(1); !f.stop.Load(); n++ {
			binary.BigEndian.PutUint32(frame[42:], n)
			f.at[int(n)%len(f.at)].Store(time.Now().UnixNano())
			if bed.a.send(frame) == nil {
				f.sent.Add(1)
			}
			if n%4 == 0 {
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil)
			}
		}
	}()
	go func() {
		defer func() { f.done <- struct{}{} }()
		newest := uint32(0)
		for !f.stop.Load() {
			got := bed.b.recv(10 * time.Millisecond)
			if got == nil {
				continue
			}
			f.got.Add(1)
			if got[markAt] == 1 {
				f.marked.Add(1)
			}
			n := binary.BigEndian.Uint32(got[42:])
			if n <= newest {
				f.behind.Add(1)
				continue
			}
			if n > newest+1 && newest > 0 {
				d := int64(0)
				for i := int(newest + 1); i < int(n); i++ {
					d += min(f.at[(i+1)%len(f.at)].Load()-f.at[i%len(f.at)].Load(), int64(asleep))
				}
				f.outage.Store(max(f.outage.Load(), d))
			}
			newest = n
		}
	}()
	return f
}

// until waits for counter c to grow by n.
func (f *flow) until(t *testing.T, what string, c *atomic.Uint64, n uint64) {
	t.Helper()
	from := c.Load()
	for end := time.Now().Add(60 * time.Second); c.Load() < from+n; {
		if time.Now().After(end) {
			t.Fatalf("%s: %d of %d frames in 20 s (sent %d, got %d, marked %d)", what, c.Load()-from, n, f.sent.Load(), f.got.Load(), f.marked.Load())
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 200_000}, nil)
	}
}

// untilUnmarked waits until n frames arrive in a row unmarked.
func (f *flow) untilUnmarked(t *testing.T, what string) {
	t.Helper()
	for range 1000 {
		m := f.marked.Load()
		f.until(t, what, &f.got, 20)
		if f.marked.Load() == m {
			return
		}
	}
	t.Fatalf("%s: the middlebox goes on", what)
}

func (f *flow) halt() { f.stop.Store(true); <-f.done; <-f.done }

// longest is the longest outage since the last call.
func (f *flow) longest() time.Duration { return time.Duration(f.outage.Swap(0)) }

// TestKill kills, stops and replaces the middlebox under load.
func TestKill(t *testing.T) {
	bed := newBed(t, 1500, 1)
	m := startChild(t, "remove", "ready")
	f := startFlow(bed)
	defer f.halt()
	f.until(t, "steered", &f.marked, 1000)
	f.longest()

	within := func(what string) {
		t.Helper()
		d := f.longest()
		t.Logf("%s: longest outage %v", what, d.Round(time.Microsecond))
		if d > 100*time.Millisecond {
			t.Errorf("%s: outage of %v, longer than 100 ms", what, d)
		}
	}
	_ = m.cmd.Process.Kill()
	f.untilUnmarked(t, "killed")
	within("killed")
	_ = m.cmd.Wait()

	m = startChild(t, "remove", "resumed")
	f.until(t, "steered again", &f.marked, 1000)
	within("restarted")

	_ = m.cmd.Process.Signal(unix.SIGSTOP)
	f.untilUnmarked(t, "stopped")
	within("stopped")
	f.until(t, "stopped", &f.got, 200)
	behind := f.behind.Load()
	_ = m.cmd.Process.Signal(unix.SIGCONT)
	f.until(t, "continued", &f.marked, 1000)
	within("continued")
	if late := f.behind.Load() - behind; late > packet.MaxBatch {
		t.Errorf("%d frames came behind later ones", late)
	}

	// An upgrade: the old one goes in order and leaves the wire.
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m = startChild(t, "keep", "resumed")
	f.until(t, "steered before the upgrade", &f.marked, 1000)
	f.longest()
	_ = m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		t.Fatal("the middlebox did not end well: ", err)
	}
	f.untilUnmarked(t, "between")
	m = startChild(t, "remove", "resumed")
	f.until(t, "steered after the upgrade", &f.marked, 1000)
	within("upgraded")

	// A clean end leaves nothing.
	_ = m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		t.Fatal("the middlebox did not end well: ", err)
	}
	if s := settings(t, bed); containsXDP(s) {
		t.Error("a program is still attached:\n", s)
	}
}

// TestResumesWithoutFront: who goes on with a wire has none of the program that another process had in front of it, even when somebody still has that one's map.
func TestResumesWithoutFront(t *testing.T) {
	newBed(t, 1500, 1)
	all := PairConfig{Keep: true, Options: Options{Filter: &port.Filter{All: true}, Stale: patient}}
	w := open(t, all)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	held, err := w.a.fronts.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := held.Put(uint32(0), uint32(prog.FD())); err != nil {
		t.Fatal(err)
	}
	all.Keep = false
	w = open(t, all)
	var id uint32
	if err := held.Lookup(uint32(0), &id); !w.a.resumed || !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("resumed: %v; program %d is in front: %v", w.a.resumed, id, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestResumesNothing: a wire that wants nothing is gone on with, and can be told to want something.
func TestResumesNothing(t *testing.T) {
	bed := newBed(t, 1500, 1)
	nothing := PairConfig{Keep: true, Options: Options{Filter: &port.Filter{}, Stale: patient}}
	w := open(t, nothing)
	crossed(t, bed.a, bed.b, roce(100, 0, false, 1))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	nothing.Keep = false
	w = open(t, nothing)
	if !w.a.resumed || !w.b.resumed {
		t.Error("the program was replaced")
	}
	p := startPump(w.A, w.B, nil)
	defer func() { p.halt(t) }()
	crossed(t, bed.a, bed.b, roce(100, 0, false, 2))
	if s := w.A[0].Stats(); s.Bypassed != 1 || s.RxPackets != 0 {
		t.Errorf("%+v", s)
	}
	for _, f := range []port.Filter{{Watched: true}, {All: true}} {
		for _, x := range []*Port{w.A[0], w.B[0]} {
			if err := x.SetFilter(f); err != nil {
				t.Fatal(err)
			}
		}
		was := w.A[0].Stats().RxPackets
		crossed(t, bed.a, bed.b, roce(100, 0, false, 3))
		if s := w.A[0].Stats(); s.RxPackets != was+1 {
			t.Errorf("%+v: %+v", f, s)
		}
	}
}

func containsXDP(s string) bool { return strings.Contains(s, "xdp=true") }

// beat has a heartbeat be in the state of an interface's program, for all queues.
func beat(name string, at uint64) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	x, err := xsk.AttachedTo(l.Attrs().Index)
	if err != nil {
		return err
	}
	s, err := x.State()
	if err == nil {
		for q := range s.Queues() {
			atomic.StoreUint64(s.Heartbeat(q), at)
		}
		err = s.Close()
	}
	return errors.Join(err, x.Close())
}

// The next process goes on with the program that it would attach itself, and counts from
// zero; another one that it needs takes the place of what is there. What fails leaves all
// as it was.
func TestResumed(t *testing.T) {
	bed := newBed(t, 1500, 2)
	was := settings(t, bed)
	attached := func() (ids [2]uint32) {
		for i, name := range []string{"dutA", "dutB"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if x := l.Attrs().Xdp; x != nil {
				ids[i] = x.ProgId
			}
		}
		return ids
	}
	filter := func(host string) *port.Filter {
		return &port.Filter{RoCE: true, Bound: true, Guarded: true, Hosts: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr(host)}}
	}
	usual := PairConfig{A: "dutA", B: "dutB", Keep: true, Options: Options{Filter: filter("10.0.0.2"), Stale: patient}}
	var ids [2]uint32
	run := func(cfg PairConfig, same bool) {
		t.Helper()
		w, err := OpenPair(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if now := attached(); now[0] != now[1] || (now == ids) != same {
			t.Errorf("the programs are %v, were %v", now, ids)
		} else {
			ids = now
		}
		unwanted := append(make([]byte, 12), 0x81, 0, 0, 1, 8, 0, 0x45, 0)
		wanted := roce(100, 0, true, 1) // to fd00::1
		for range 2 {
			crossed(t, bed.a, bed.b, unwanted)
			crossed(t, bed.a, bed.b, wanted)
		}
		sum := func() (s port.Stats) {
			for _, p := range w.A {
				x := p.Stats()
				s.Bypassed, s.Missed, s.RxPackets = s.Bypassed+x.Bypassed, s.Missed+x.Missed, s.RxPackets+x.RxPackets
			}
			return s
		}
		if s, n := sum(), w.A[0].Missed()+w.A[1].Missed(); s.Bypassed != 2 || s.Missed != 2 || n != 2 || s.RxPackets != 0 {
			t.Errorf("before the worker: %+v, missed %d", s, n)
		}
		p := startPump(w.A, w.B, nil)
		crossed(t, bed.a, bed.b, wanted)
		if s := sum(); s.Bypassed != 2 || s.Missed != 2 || s.RxPackets != 1 {
			t.Errorf("with the worker: %+v", s)
		}
		p.halt(t)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	run(usual, false)
	// One that is killed leaves a heartbeat that is fresh for a while.
	var err error
	for _, name := range []string{"dutA", "dutB"} {
		err = errors.Join(err, beat(name, uint64(clock.Kernel())))
	}
	if err != nil {
		t.Fatal(err)
	}
	run(usual, true)
	failing := usual
	failing.Frames = 1 << 40
	if _, err := OpenPair(failing); err == nil || attached() != ids {
		t.Errorf("%v, and the programs are %v, were %v", err, attached(), ids)
	}
	run(usual, true)
	other := usual
	other.Filter = filter("10.0.0.3")
	run(other, false)
	other.Stale = 2 * patient
	run(other, false)
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

// TestTwoAtOnce: who opens a pair while another process does so waits, then finds the queues taken, and leaves all settings as the
// first one needs them.
func TestTwoAtOnce(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	w := open(t, PairConfig{})
	want := settings(t, bed)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	others, _ := filepath.Glob(offload.RecordDir + "/quillon-settings-*.opening") // of processes elsewhere, and of those that were killed
	second, reached := make(chan error), make(chan bool)
	var once, twice sync.Once
	start := func(what string) {
		if what != "changed" {
			return
		}
		once.Do(func() { // of one interface the settings are changed
			go func() {
				second <- offload.Within(bed.near, func() error {
					w, err := OpenPair(PairConfig{A: "dutB", B: "dutA", Options: Options{
						Filter: &port.Filter{All: true}, afterStep: func(string) { twice.Do(func() { close(reached) }) }}})
					if err == nil {
						err = errors.Join(errors.New("it has the queues, too"), w.Close())
					}
					return err
				})
			}()
			select {
			case <-reached:
				t.Error("a second one has changed settings while the first one did")
			case <-time.After(200 * time.Millisecond):
			}
		})
	}
	w = open(t, PairConfig{Options: Options{afterStep: start}})
	if err := <-second; err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("the second one: %v", err)
	}
	if now := settings(t, bed); now != want {
		t.Errorf("with one pair open\n%s\nand now\n%s", want, now)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
	left, _ := filepath.Glob(offload.RecordDir + "/quillon-settings-*.opening")
	if left = slices.DeleteFunc(left, func(s string) bool { return slices.Contains(others, s) }); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
