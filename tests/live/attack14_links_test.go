package live

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// at runs a command at the host on the wire's second interface.
func (r *rack) at(args ...string) {
	r.t.Helper()
	if err := r.top.Nodes[1].Space.Do(func() error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
}

// Whoever has the other end of a veth (root of a container) sets its link down and up as fast as it can. That is said, and the log of the machine does not grow by it without bound.
func TestAttack14LinkFlaps(t *testing.T) {
	r := cabled(t)
	r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", "wire"})
	r.running()
	before := len(r.box.Log())
	r.at("sh", "-c", "for i in $(seq 1000); do echo link set "+topo.Interface+" down; echo link set "+topo.Interface+" up; done | ip -batch -")
	r.until("a link to be told of", func() bool { return strings.Contains(r.box.Log()[before:], "the link is ") })
	time.Sleep(time.Second) // in which more could be told
	if n := strings.Count(r.box.Log()[before:], "the link is "); n > 20 {
		t.Errorf("%d lines, %d bytes", n, len(r.box.Log())-before)
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}

// Many links come and go on the machine, whose containers start and stop, while the process gets no processor for a moment. What the kernel could not tell it then it does not hear, and what comes later it does.
func TestAttack14LinksMissed(t *testing.T) {
	r := cabled(t)
	r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", "wire"})
	r.running()
	if err := r.box.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.must("sh", "-c", "for i in $(seq 200); do echo link add many$i type veth peer name more$i; echo link set many$i up; echo link del many$i; done | ip -batch -")
	if err := r.box.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	before := len(r.box.Log())
	r.at("ip", "link", "set", topo.Interface, "down")
	r.until("the link's end to be told of", func() bool { return strings.Contains(r.box.Log()[before:], "the link is down") })
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
