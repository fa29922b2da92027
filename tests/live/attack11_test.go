package live

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// An interface that moves to another network namespace while it is of a pair is an interface there: what its peer sends comes to the
// kernel, as without a box. That it had a program, and settings, is the box's affair.
func TestAttack11MovedInterfaceHears(t *testing.T) {
	r := cabled(t)
	top := r.top
	ip := func(args ...string) string {
		t.Helper()
		var out []byte
		err := top.Switch.Do(func() (err error) {
			out, err = exec.Command("ip", args...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	ip("link", "add", "lone0", "type", "veth", "peer", "name", "lone1")
	ip("link", "set", "lone0", "up")
	ip("link", "set", "lone1", "up")
	r.exec([]string{quillon, "run", "--inline", "lone0," + top.Inline[1], "--nf", "wire"})
	r.running()
	pid := r.container()
	ip("link", "set", "lone0", "netns", pid)
	there := func(args ...string) string {
		out, _ := exec.Command("nsenter", append([]string{"-t", pid, "-n"}, args...)...).CombinedOutput()
		return string(out)
	}
	there("ip", "addr", "add", "192.0.2.9/24", "dev", "lone0")
	there("ip", "link", "set", "lone0", "up")
	select {
	case <-r.box.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it runs without its interface")
	}
	ip("addr", "add", "192.0.2.1/24", "dev", "lone1")
	var out []byte
	_ = top.Switch.Do(func() error { // until one is answered
		out, _ = exec.Command("ping", "-c", "1", "-w", "10", "192.0.2.9").CombinedOutput()
		return nil
	})
	if !bytes.Contains(out, []byte("bytes from 192.0.2.9")) {
		t.Errorf("lone0 hears nothing in its new namespace; middlebox: %s\n%s\n%s", r.box.Log(), there("ip", "-d", "link", "show", "lone0"), out)
	}
}

// inlineLinks are the inline interfaces as ip(8) shows them, without what changes by itself.
func inlineLinks(t *testing.T, top *topo.Topology) string {
	t.Helper()
	all := ""
	for _, dev := range top.Inline {
		_ = top.Switch.Do(func() error {
			out, _ := exec.Command("ip", "-o", "link", "show", "dev", dev).Output()
			flags, _, _ := strings.Cut(string(out), " qdisc")
			off, _ := exec.Command("ethtool", "-k", dev).Output()
			all += flags + "\n" + string(off)
			return nil
		})
	}
	return all
}

// A start for which there are too few file descriptors leaves interfaces as they were, or what is left is put back by detach.
func TestAttack11FewDescriptors(t *testing.T) {
	r := cabled(t)
	top := r.top
	inline := top.Inline[0] + "," + top.Inline[1]
	was := inlineLinks(t, top)
	few := []int{14, 16, 22}
	if os.Getenv("QUILLON_WILD") != "" {
		few = nil
		for n := range 31 {
			few = append(few, 10+n)
		}
	}
	for _, n := range few {
		r.exec([]string{"/bin/sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s run --inline %s --nf wire", n, quillon, inline)})
		if r.begins() {
			if err := r.box.Stop(); err != nil {
				t.Error(err)
			}
		}
		r.ask("detach", top.Inline[0], top.Inline[1])
		if now := inlineLinks(t, top); now != was {
			before, after := strings.Split(was, "\n"), strings.Split(now, "\n")
			for i := range after {
				if i >= len(before) || before[i] != after[i] {
					t.Errorf("with %d descriptors: %s: left %q", n, r.box.Log(), after[i])
				}
			}
			return
		}
	}
}

// Somebody takes the XDP program of one interface away (ip link set dev eth1 xdp off, or a program of theirs). From then on that
// interface's frames go to the kernel's stack, and nothing crosses. The instance does not go on as if all were well: it attaches
// anew, ends, or says what happened.
func TestAttack11ProgramTakenAway(t *testing.T) {
	r := cabled(t)
	top := r.top
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "firewall,rules=allow+in:a"})
	r.running()
	before := r.box.Log()
	if err := top.Switch.Do(func() error {
		return exec.Command("ip", "link", "set", "dev", top.Inline[0], "xdp", "off").Run()
	}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		select {
		case <-r.box.Done():
			return
		default:
		}
		if strings.Contains(r.box.Log()[len(before):], top.Inline[0]) || strings.Count(attached(t, top), ",") == 1 {
			return
		}
	}
	t.Errorf("it runs, and says nothing for 20 s; attached are %q; list: %s", attached(t, top), r.ask("list"))
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}

// The machine's clock is set while a process runs: by NTP's first step after the boot (a machine without a battery, a guest whose host's clock is in local time), by date(1), or when
// a guest is put back to a snapshot. That process goes on in its own time. The next one, a moment later, reads a time that is far before or behind what the state says. No
// client sees anything of it: how old the state is has nothing to do with what the clock on the wall shows.
//
// A test does not set the clock of the machine. It sets what the state says about when the process was there last, which is the same to the next one.
func TestAttack11ClockSet(t *testing.T) {
	for name, step := range map[string]time.Duration{"back": time.Hour, "on": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			c := loads()["counters/rxe"]
			c.state = filepath.Join(t.TempDir(), "state")
			r := raise(t, c)
			r.replaces(200)
			r.recorded(6)
			if err := r.box.Stop(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(c.state)
			if err != nil {
				t.Fatal(err)
			}
			alive := int64(binary.LittleEndian.Uint64(b[4096+24:]))
			if ago := time.Now().UnixNano() - alive; ago < 0 || ago > int64(10*time.Second) {
				t.Fatalf("the state says %d, which is %d ns ago: this test does not know its form any more", alive, ago)
			}
			binary.LittleEndian.PutUint64(b[4096+24:], uint64(alive+int64(step)))
			// Of the same process, at the same moment: its clock's zero was as much later or earlier, on the scale of all processes since the machine's start.
			zero := b[4096+32+16:]
			binary.LittleEndian.PutUint64(zero, binary.LittleEndian.Uint64(zero)-uint64(step))
			if err := os.WriteFile(c.state, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r.start()
			r.running()
			r.replaces(200)
			r.finish()
			if n, log := r.broken.Load(), r.box.Log(); n != 0 {
				t.Errorf("%d connections broke; middlebox: %s", n, log)
			}
		})
	}
}

// What a start says cannot be written: the disk that its output goes to is full. It runs all the same, as it does where that is standard error. Otherwise nothing crosses a firewall, and no frame of connections that
// an earlier process has changed, from a crash on until somebody makes room.
func TestAttack11OutputIsFull(t *testing.T) {
	for _, to := range []string{"2>/dev/full", ">/dev/full"} {
		t.Run(to, func(t *testing.T) {
			r := cabled(t)
			run := quillon + " run --inline " + r.top.Inline[0] + "," + r.top.Inline[1] + " --nf firewall,rules=allow+in:a"
			r.exec([]string{"/bin/sh", "-c", "exec " + run + " " + to})
			select {
			case <-r.box.Done():
				t.Errorf("it has ended: %s", r.box.Log())
				return
			case <-time.After(4 * time.Second):
			}
			if err := r.box.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process is gone, and its wire carries the frames. The next start fails, late: what it is to listen at is not there, or an argument is wrong. The wire is what that start found, and goes on.
func TestAttack11FailedStartKeepsWire(t *testing.T) {
	r := cabled(t)
	inline := r.top.Inline[0] + "," + r.top.Inline[1]
	for _, how := range []string{"killed", "kept"} {
		for name, args := range map[string][]string{
			"in use":     {"--ui", "127.0.0.1:9377", "--metrics", "127.0.0.1:9377"},
			"in use too": {"--p4runtime", "127.0.0.1:9377", "--metrics", "127.0.0.1:9377", "--insecure"},
			"arguments":  {"--p4runtime", "127.0.0.1:9559", "--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"},
			"cpu, early": {"--cpu", "4095"},
		} {
			t.Run(how+", "+name, func(t *testing.T) {
				r := &rack{t: t, top: r.top, clk: r.clk}
				run := []string{quillon, "run", "--inline", inline, "--nf", "wire", "--keep"}
				r.exec(run)
				r.running()
				if how == "killed" {
					r.kill()
				} else if err := r.box.Stop(); err != nil {
					t.Fatal(err)
				}
				before := attached(t, r.top)
				if !strings.Contains(before, ",") {
					t.Fatalf("no wire is left: %q", before)
				}
				r.exec(append(run[:len(run)-1:len(run)-1], args...))
				select {
				case <-r.box.Done():
				case <-time.After(10 * time.Second):
					log := r.box.Log()
					r.kill()
					r.ask("detach", r.top.Inline[0], r.top.Inline[1])
					t.Fatal("it runs: ", log)
				}
				if now := attached(t, r.top); now != before {
					t.Errorf("the wire was %q, and is %q after: %s", before, now, r.box.Log())
				}
				r.ask("detach", r.top.Inline[0], r.top.Inline[1])
			})
		}
	}
}
