package live

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
)

// A start that fails late leaves what the process before it has left: not only the wire, but the connections on record, too. The next start, which does not fail,
// goes on with all of them, and no client is told anything.
func TestAttack13FailedStartKeepsConnections(t *testing.T) {
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			c := loads()["counters/rxe"]
			c.state = filepath.Join(t.TempDir(), "state")
			r := raise(t, c)
			r.replaces(200)
			r.recorded(6)
			if how == "killed" {
				r.kill()
			} else if err := r.box.Stop(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", "swordbox,mode=replace,replace=learnt,writable=assume", "--state", c.state,
					"--ui", "127.0.0.1:9377", "--metrics", "127.0.0.1:9377"})
				select {
				case <-r.box.Done():
				case <-time.After(10 * time.Second):
					t.Fatal("it runs: ", r.box.Log())
				}
				t.Log(r.box.Log())
			}
			r.start()
			r.running()
			r.says("6 connections taken over")
			r.replaces(200)
			r.finish()
			if n, log := r.broken.Load(), r.box.Log(); n != 0 {
				t.Errorf("%d connections broke; middlebox: %s", n, log)
			}
		})
	}
}

// A process that is stopped for seconds and goes on (a guest that is suspended, a debugger) is a network that is slow: who may ask again without end loses nothing.
func TestAttack13StoppedForSeconds(t *testing.T) {
	for _, load := range []string{"counters/rxe", "locks/rxe"} {
		t.Run(load, func(t *testing.T) {
			c := loads()[load]
			c.state = filepath.Join(t.TempDir(), "state")
			r := raise(t, c)
			for range 3 {
				r.replaces(200)
				if err := r.box.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				r.wait(4 * time.Second)
				if err := r.box.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			r.replaces(200)
			r.finish()
			if n, log := r.broken.Load(), r.box.Log(); n != 0 {
				t.Errorf("%d connections broke; middlebox: %s", n, log)
			}
		})
	}
}

// Somebody replaces the XDP program of one interface by another one, by force (ip -force link set dev eth1 xdp obj ...). From then on no frame comes to the apps: a firewall filters nothing.
// The instance says so, as it does when the program is taken off.
func TestAttack13ProgramReplaced(t *testing.T) {
	r := cabled(t)
	top := r.top
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "firewall,rules=allow+in:a"})
	r.running()
	before, was := r.box.Log(), attached(t, top)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "others", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	if err := top.Switch.Do(func() error {
		l, err := netlink.LinkByName(top.Inline[0])
		if err != nil {
			return err
		}
		if err = netlink.LinkSetXdpFdWithFlags(l, prog.FD(), 1<<2); err != nil { // XDP_FLAGS_DRV_MODE
			err = netlink.LinkSetXdpFdWithFlags(l, prog.FD(), 1<<1)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if now := attached(t, top); now == was {
		t.Fatalf("the program was not replaced: %q", now)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		select {
		case <-r.box.Done():
			return
		default:
		}
		if strings.Contains(r.box.Log()[len(before):], top.Inline[0]) {
			return
		}
	}
	t.Errorf("it runs, and says nothing for 20 s; attached are %q, were %q; list: %s", attached(t, top), was, r.ask("list"))
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("after the stop: %q; %s", attached(t, top), r.box.Log())
}

// A process that others' connections cannot do without is killed. The next start is given another state than that process had, one of an earlier run (another --name, or --state), in which nothing is
// of these connections. It is refused, as a start without a state is: else frames cross of connections whose ends count differently, which the server takes for repetitions, and acknowledges.
func TestAttack13StateOfAnotherRun(t *testing.T) {
	dir := t.TempDir()
	earlier := filepath.Join(dir, "earlier")
	c := loads()["counters/rxe"]
	c.state = filepath.Join(dir, "state")
	was := cabled(t)
	was.cfg.state = earlier
	was.start()
	was.running()
	if err := was.box.Stop(); err != nil {
		t.Fatal(err)
	}
	r := raise(t, c)
	r.replaces(200)
	r.recorded(6)
	r.kill()
	r.wait(20 * time.Millisecond) // what was on its way
	crossed := r.seen.requests.Load()
	r.cfg.state = earlier
	r.start()
	select {
	case <-r.box.Done():
		t.Logf("it is refused: %s", r.box.Log())
	case <-time.After(3 * time.Second):
		r.t.Errorf("it runs; %d requests came to the server, %d of them with PSNs of their clients; middlebox: %s\n%s", r.seen.requests.Load()-crossed, r.seen.strays.Load(), r.box.Log(), r.ask("list"))
		if err := r.box.Stop(); err != nil {
			t.Error(err)
		}
	}
	r.cfg.state = c.state
	r.start()
	r.running()
	r.says("6 connections taken over")
	r.replaces(200)
	r.finish()
	if n, log := r.broken.Load(), r.box.Log(); n != 0 {
		t.Errorf("%d connections broke; middlebox: %s", n, log)
	}
}

// The state of a killed process is lost, and its journal, too. The next start is refused, and so is every one after it (systemd starts it again and again): that the first has made a new state, in which nothing is, changes nothing.
// Where the journal is there, the start runs: the connections that it names are lost, and none of their requests crosses.
func TestAttack13StateLostTwice(t *testing.T) {
	for _, journal := range []string{"lost", "kept"} {
		t.Run("journal "+journal, func(t *testing.T) {
			c := loads()["counters/rxe"]
			c.state = filepath.Join(t.TempDir(), "state")
			r := raise(t, c)
			r.replaces(200)
			r.recorded(6)
			r.kill()
			gone := []string{c.state}
			if journal == "lost" {
				names, err := filepath.Glob(filepath.Join(os.Getenv("STATE_DIRECTORY"), "*.journal*"))
				if err != nil || len(names) == 0 {
					t.Fatal("no journal: ", err)
				}
				gone = append(gone, names...)
			}
			for _, name := range gone {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
			r.wait(20 * time.Millisecond) // what was on its way
			strays := r.seen.strays.Load()
			if journal == "kept" {
				r.start()
				r.running()
				r.says("6 connections are lost")
				r.wait(time.Second)
				if n := r.seen.strays.Load() - strays; n != 0 {
					t.Errorf("%d requests came to the server with PSNs of their clients: %s", n, r.box.Log())
				}
				return
			}
			for n := range 3 {
				r.start()
				select {
				case <-r.box.Done():
					t.Logf("start %d is refused: %s", n, r.box.Log())
				case <-time.After(3 * time.Second):
					t.Fatalf("start %d runs; %d requests came to the server with PSNs of their clients; middlebox: %s", n, r.seen.strays.Load()-strays, r.box.Log())
				}
			}
		})
	}
}

// A fence in front of swordbox, killed: the kernel holds frames to the queue pairs that its entries name. The next start fails late, as what it is to listen at is in use. The kernel holds these frames as before: a client that was declared dead
// does not come through because a start failed.
func TestAttack13FailedStartKeepsFence(t *testing.T) {
	r := cabled(t)
	top := r.top
	state := filepath.Join(t.TempDir(), "state")
	ownJournals(t)
	run := []string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "fence", "--nf", "swordbox,servers=10.0.0.9", "--state", state}
	r.exec(run)
	r.running()
	if out := r.ask("table", "insert", "fence.fence", "hdr.ipv4.src=10.0.0.1", "hdr.ipv4.dst=10.0.0.9", "hdr.bth.dst_qp=0x11", "hdr.reth.rkey=0", "shut"); strings.Contains(out, "quillon:") {
		t.Fatal(out)
	}
	time.Sleep(500 * time.Millisecond)
	r.kill()
	held := func() bool {
		t.Helper()
		r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
		return !r.begins() && strings.Contains(r.box.Log(), "1 queue pairs behind")
	}
	if !held() {
		t.Fatal("nothing is held after the kill: ", r.box.Log())
	}
	r.exec(append(run, "--ui", "127.0.0.1:9377", "--metrics", "127.0.0.1:9377"))
	select {
	case <-r.box.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("it runs: ", r.box.Log())
	}
	why := r.box.Log()
	if !held() {
		t.Errorf("after a start that failed (%s) nothing is held", strings.TrimSpace(why))
	}
}

// The next process has the interfaces the wrong way round, by mistake, and the state of the one before: it takes the connections over, and sees its clients' requests come from the servers' side. It cannot translate them there. They do not cross as they are,
// as they do not while no process is there; the process after it, which has them the right way, goes on.
func TestAttack13InterfacesReversed(t *testing.T) {
	c := loads()["counters/rxe"]
	c.state = filepath.Join(t.TempDir(), "state")
	r := raise(t, c)
	r.replaces(200)
	r.recorded(6)
	r.kill()
	r.wait(20 * time.Millisecond) // what was on its way
	was := r.seen.requests.Load()
	r.exec([]string{quillon, "run", "--inline", r.top.Inline[1] + "," + r.top.Inline[0], "--nf", "swordbox,mode=replace,replace=learnt,writable=assume", "--state", c.state})
	select {
	case <-r.box.Done():
	case <-time.After(2 * time.Second):
		if err := r.box.Stop(); err != nil {
			t.Error(err)
		}
	}
	if n := r.seen.strays.Load(); n != 0 {
		t.Errorf("%d requests came to the server, %d of them with PSNs of their clients; middlebox: %s", r.seen.requests.Load()-was, n, r.box.Log())
	}
	r.start()
	r.running()
	r.says("6 connections taken over")
	r.replaces(200)
	r.finish()
	if n, log := r.broken.Load(), r.box.Log(); n != 0 {
		t.Errorf("%d connections broke; middlebox: %s", n, log)
	}
}

// A process that is stopped for a while (a debugger, a guest that is suspended) is there: detach leaves its interfaces to it, as it does where the instance answers, and says so. It goes on when the process does.
func TestAttack13DetachOfStopped(t *testing.T) {
	r := cabled(t)
	top := r.top
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "firewall,rules=allow+in:a"})
	r.running()
	before := attached(t, top)
	if err := r.box.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	var out []byte
	err := top.Switch.Do(func() (err error) {
		out, err = exec.Command(quillon, "detach", top.Inline[0], top.Inline[1]).CombinedOutput()
		return err
	})
	if now := attached(t, top); now != before || err == nil {
		t.Errorf("after %v detach says %q (%v), and attached are %q; the process that is there had attached %q", time.Since(at), out, err, now, before)
	}
	if err := r.box.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}

// An interface belongs to one instance at a time: of one with AF_XDP and one with packet sockets that start at the same moment one runs at most, and when it has ended all is as it was.
func TestAttack13BothKindsAtOnce(t *testing.T) {
	r := cabled(t)
	top := r.top
	was := inlineLinks(t, top)
	for range 6 {
		var boxes []*rack
		for _, kind := range []string{"afxdp", "afpacket"} {
			x := &rack{t: t, top: top, clk: r.clk}
			x.exec([]string{quillon, "run", "--name", kind, "--port", kind, "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
			boxes = append(boxes, x)
		}
		run := 0
		for _, x := range boxes {
			x.begins()
		}
		for _, x := range boxes {
			select {
			case <-x.box.Done():
				continue
			default:
			}
			if strings.Contains(x.box.Log(), "running as") {
				run++
			}
			if err := x.box.Stop(); err != nil {
				t.Error(err)
			}
		}
		if run > 1 {
			t.Errorf("%d instances run", run)
		}
		if now := inlineLinks(t, top); now != was {
			t.Error("the interfaces are not as they were")
		}
		if t.Failed() {
			return
		}
	}
}

// An upgrade whose first start fails late, and the version before is started again: the new version does not understand the state, and has told nobody yet when it fails. The old one goes on with its connections, as OPERATIONS.md says
// of a version that the state is of. That a state is of another version is a number in it, which this test changes and puts back.
func TestAttack13FailedUpgrade(t *testing.T) {
	c := loads()["counters/rxe"]
	c.state = filepath.Join(t.TempDir(), "state")
	r := raise(t, c)
	r.replaces(200)
	r.recorded(6)
	if err := r.box.Stop(); err != nil {
		t.Fatal(err)
	}
	const version = 4096 + 8
	set := func(b byte) (was byte) {
		t.Helper()
		f, err := os.OpenFile(c.state, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var is [1]byte
		if _, err := f.ReadAt(is[:], version); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{b}, version); err != nil {
			t.Fatal(err)
		}
		return is[0]
	}
	ours := set(0)
	set(ours ^ 1)
	r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", "swordbox,mode=replace,replace=learnt,writable=assume", "--state", c.state,
		"--ui", "127.0.0.1:9377", "--metrics", "127.0.0.1:9377"})
	select {
	case <-r.box.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("it runs: ", r.box.Log())
	}
	t.Log(r.box.Log())
	set(ours) // as the version that wrote it finds it
	r.start()
	r.running()
	r.replaces(200)
	r.finish()
	if n, log := r.broken.Load(), r.box.Log(); n != 0 {
		t.Errorf("%d connections broke; middlebox: %s", n, log)
	}
}
