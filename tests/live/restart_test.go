package live

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// A restart after a kill goes on with the XDP program that is there, and one after a clean
// stop attaches its own. Logged is how long each takes from exec until the process says that
// it runs, and how long the stop; in turns where QUILLON_PROGRAMS names several builds
// (PATH:PATH). Load between the machines there is none; see TestHandOver and TestKilled.
func TestRestart(t *testing.T) {
	kinds := []string{"wire", "clover-steer", "swordbox"}
	type row struct{ killed, stopped, stop laps }
	took := map[string]*row{}
	r := cabled(t)
	top := r.top
	dir := t.TempDir()
	for round := range 1 + rounds() {
		for _, kind := range kinds {
			for i, program := range programs {
				name := kind + " of " + program
				if took[name] == nil {
					took[name] = &row{}
				}
				in := took[name]
				args := []string{program, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", kind}
				if kind != "wire" {
					args = append(args, "--state", filepath.Join(dir, kind+string(rune('a'+i))))
				}
				at := r.exec(args)
				r.running()
				if round > 0 { // the first has no state yet, and its pages are to be read
					in.stopped = append(in.stopped, r.clk.Now().Sub(at))
				}
				before := attached(t, top)
				r.kill()
				at = r.exec(args)
				r.running()
				if round > 0 {
					in.killed = append(in.killed, r.clk.Now().Sub(at))
				}
				if now := attached(t, top); len(programs) == 1 && now != before {
					t.Errorf("%s: after a kill the programs are %q, were %q", kind, now, before)
				}
				at = r.clk.Now()
				if err := r.box.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				<-r.box.Done()
				if round > 0 {
					in.stop = append(in.stop, r.clk.Now().Sub(at))
				}
				if now := attached(t, top); now != "" {
					t.Errorf("%s: after a stop %q is attached", kind, now)
				}
			}
		}
	}
	for _, kind := range kinds {
		for _, program := range programs {
			in := took[kind+" of "+program]
			t.Logf("%s of %s: runs after a kill %v; after a stop %v; the stop %v", kind, filepath.Base(program), in.killed, in.stopped, in.stop)
		}
	}
}

// attached are the XDP programs of the inline interfaces, as ip(8) lists them.
func attached(t *testing.T, top *topo.Topology) string {
	t.Helper()
	var ids []string
	for _, dev := range top.Inline {
		var out []byte
		if err := top.Switch.Do(func() (err error) {
			out, err = exec.Command("ip", "-d", "link", "show", "dev", dev).Output()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if _, id, ok := bytes.Cut(out, []byte("prog/xdp ")); ok {
			ids = append(ids, strings.Join(strings.Fields(string(id))[:2], " "))
		}
	}
	return strings.Join(ids, ", ")
}

// cabled is a rack of one compute node with nobody in it.
func cabled(t *testing.T) *rack {
	t.Helper()
	ownJournals(t)
	top, err := topo.New(topo.Config{Compute: 1})
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = top.Close() })
	return &rack{t: t, top: top, clk: clock.NewWall()}
}

// Of a pair one interface of which goes while it runs, the other one is as it was, and the process says so.
func TestInterfaceGone(t *testing.T) {
	r := cabled(t)
	top := r.top
	promisc := func() (n int) {
		if err := top.Switch.Do(func() error {
			l, err := netlink.LinkByName(top.Inline[1])
			if err == nil {
				n = l.Attrs().Promisc
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	was := promisc()
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	if promisc() == was {
		t.Error("nothing was changed, so that nothing is to be put back")
	}
	if err := top.Switch.Do(func() error {
		l, err := netlink.LinkByName(top.Inline[0])
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.box.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it runs without its interface")
	}
	if log := r.box.Log(); !strings.Contains(log, "interface m1 is gone: port closed; n0, the other one of the pair, is free") {
		t.Errorf("middlebox: %s", log)
	}
	var out []byte
	_ = top.Switch.Do(func() error {
		out, _ = exec.Command("ip", "-d", "link", "show", "dev", top.Inline[1]).Output()
		return nil
	})
	if bytes.Contains(out, []byte("prog/xdp")) || promisc() != was {
		t.Errorf("%s was left as %s", top.Inline[1], out)
	}
}

// A start that cannot have what it needs says in one line what to do, and leaves nothing behind.
func TestCannotStart(t *testing.T) {
	r := cabled(t)
	top := r.top
	before := []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"}
	for _, c := range []struct {
		name   string
		do     func() error
		before []string
		want   string
	}{
		{"without capabilities", func() error { return nil }, before, "this root lacks capabilities, give it CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"},
		{"full", func() error {
			err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "size=4k")
			return errors.Join(err, os.WriteFile("/run/full", make([]byte, 4096), 0o600))
		}, nil, "have /run/quillon be writable and have room, or name a socket elsewhere with --control"},
		{"read-only", func() error { return unix.Mount("", "/run", "", unix.MS_REMOUNT|unix.MS_RDONLY, "") }, nil,
			"have /run/quillon be writable and have room, or name a socket elsewhere with --control"},
	} {
		if len(c.before) > 0 {
			var err error
			if c.before[0], err = exec.LookPath(c.before[0]); err != nil {
				t.Fatal(err)
			}
		}
		if err := top.Switch.Do(c.do); err != nil {
			t.Fatal(c.name, err)
		}
		r.exec(append(c.before, quillon, "run", "--inline", top.Inline[0]+","+top.Inline[1], "--nf", "wire"))
		select {
		case <-r.box.Done():
		case <-time.After(20 * time.Second):
			t.Fatal(c.name, ": it runs")
		}
		if log := r.box.Log(); !strings.HasSuffix(log, c.want+"\n") || strings.Count(log, "\n") != 1 {
			t.Errorf("%s: %s", c.name, log)
		}
		if now := attached(t, top); now != "" {
			t.Errorf("%s: %q is attached", c.name, now)
		}
		left := []string{}
		_ = top.Switch.Do(func() error {
			left, _ = filepath.Glob("/run/quillon/*")
			return nil
		})
		if len(left) > 0 {
			t.Errorf("%s: it left %q", c.name, left)
		}
	}
}
