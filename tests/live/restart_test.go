package live

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/topo"
)

// A restart after a kill goes on with the XDP program that is there, and one after a clean
// stop attaches its own. Logged is how long each takes from exec until the process says that
// it runs, and how long the stop; in turns where QUILLON_PROGRAMS names several builds
// (PATH:PATH). Load between the machines there is none; see TestHandOver and TestKilled.
func TestRestart(t *testing.T) {
	kinds := []string{"wire", "clover-steer", "swordbox"}
	type row struct{ killed, stopped, stop laps }
	took := map[string]*row{}
	top, err := topo.New(topo.Config{Compute: 1})
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = top.Close() })
	r := &rack{t: t, top: top, clk: clock.NewWall()}
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
