package live

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// A chain of two boxes with a veth between them, the first with AF_XDP and the second with packet sockets. What a bare cable carries gets through both, or the second start is refused.
func TestAttack14MixedChain(t *testing.T) {
	r := cabled(t)
	for n, a := range []string{"192.0.2.1/24", "192.0.2.2/24"} {
		if err := r.top.Nodes[n].Space.Do(func() error { return exec.Command("ip", "addr", "add", a, "dev", topo.Interface).Run() }); err != nil {
			t.Fatal(err)
		}
	}
	r.must("ip", "link", "add", "mid0", "type", "veth", "peer", "name", "mid1")
	r.must("ip", "link", "set", "mid0", "up")
	r.must("ip", "link", "set", "mid1", "up")
	r.exec([]string{quillon, "run", "--name", "mixed0", "--inline", r.top.Inline[0] + ",mid0", "--nf", "wire"})
	r.running()
	one := r.box
	r.exec([]string{quillon, "run", "--name", "mixed1", "--port", "afpacket", "--inline", "mid1," + r.top.Inline[1], "--nf", "wire"})
	select {
	case <-r.box.Done():
		return // it is refused
	case <-time.After(3 * time.Second):
	}
	var out []byte
	if err := r.top.Nodes[0].Space.Do(func() (err error) {
		out, err = exec.Command("ping", "-c", "200", "-i", "0.02", "-W", "1", "-q", "192.0.2.2").CombinedOutput()
		return err
	}); err != nil {
		t.Errorf("ping: %v: %s", err, out)
	} else if !strings.Contains(string(out), " 0% packet loss") {
		t.Errorf("frames are lost: %s\n%s\n%s", out, one.Log(), r.box.Log())
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
	if err := one.Stop(); err != nil {
		t.Error(err)
	}
}
