package live

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// Whoever has the other end of a veth (root of a container) turns its offloads on again and again. They are turned off each time, and the log of the machine does not grow by that without bound.
func TestAttack14OffloadsFlapped(t *testing.T) {
	r := cabled(t)
	top := r.top
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	before := len(r.box.Log())
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := top.Nodes[1].Space.Do(func() error { return exec.Command("ethtool", "-K", topo.Interface, "tx", "on").Run() }); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(r.box.Log()[before:], "somebody changed settings"); n == 0 || n > 5 {
		t.Errorf("%d lines in 10 s, %d bytes", n, len(r.box.Log())-before)
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}

// The file system of /run has become full, and somebody turns the offloads of a veth's other end on again. They are turned off all the same, as frames without checksums are lost else; and what could not be
// written is told once, and not twice a second.
func TestAttack14OffloadsAndFullDisk(t *testing.T) {
	r := cabled(t)
	top := r.top
	dir := t.TempDir()
	// The shell fills /run when it finds the file "fill", and says so by the file "full".
	const script = `mount -t tmpfs -o size=64k none /run || exit 1; { while [ ! -e "$0/fill" ]; do sleep 0.1; done
		for i in $(seq 200); do echo x >/run/full$i || break; done 2>/dev/null; touch "$0/full"; } & exec "$@"`
	r.exec([]string{"unshare", "-m", "sh", "-c", script, dir,
		quillon, "run", "--control", dir + "/q.sock", "--state", "none", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	for end := time.Now().Add(10 * time.Second); !strings.Contains(r.box.Log(), "running as"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not start: ", r.box.Log())
		}
	}
	if err := os.WriteFile(dir+"/fill", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(dir + "/full"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("/run is not full")
		}
	}
	offloads := func() string {
		var out []byte
		if err := top.Nodes[1].Space.Do(func() (err error) {
			out, err = exec.Command("ethtool", "-k", topo.Interface).Output()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	was, before := offloads(), len(r.box.Log())
	if err := top.Nodes[1].Space.Do(func() error { return exec.Command("ethtool", "-K", topo.Interface, "tx", "on").Run() }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	log := r.box.Log()[before:]
	if offloads() != was {
		t.Error("the offloads are as somebody has set them")
	}
	if n := strings.Count(log, "no space left"); n > 2 {
		t.Errorf("%d lines in 5 s: %s", n, log)
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
