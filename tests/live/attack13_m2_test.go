package live

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

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
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !strings.Contains(x.box.Log(), "running as"); time.Sleep(10 * time.Millisecond) {
				select {
				case <-x.box.Done():
					end = time.Now()
				default:
				}
			}
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

// One interface has more receive queues than the other one. What the rules of a firewall allow gets through whichever queue it comes in on, as through a bridge, or the start is refused.
func TestAttack13UnequalQueues(t *testing.T) {
	r := cabled(t)
	hosts := make([]string, 2) // process IDs, for nsenter
	for i := range hosts {
		c := exec.Command("unshare", "-n", "sleep", "120")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		hosts[i] = strconv.Itoa(c.Process.Pid)
	}
	time.Sleep(300 * time.Millisecond) // until they have their namespaces
	host := func(i int, args ...string) error {
		return exec.Command("nsenter", append([]string{"-t", hosts[i], "-n"}, args...)...).Run()
	}
	for i, queues := range []string{"2", "1"} {
		dev, peer, addr := "lone"+strconv.Itoa(i), "host"+strconv.Itoa(i), "192.0.2."+strconv.Itoa(i+1)+"/24"
		r.must("ip", "link", "add", dev, "numtxqueues", queues, "numrxqueues", queues, "type", "veth", "peer", "name", peer, "numtxqueues", queues, "numrxqueues", queues)
		r.must("ip", "link", "set", peer, "netns", hosts[i])
		r.must("ip", "link", "set", dev, "up")
		for _, args := range [][]string{{"ip", "link", "set", peer, "up"}, {"ip", "addr", "add", addr, "dev", peer}} {
			if err := host(i, args...); err != nil {
				t.Fatal(args, err)
			}
		}
	}
	const flows = 12
	for k := range flows {
		if err := host(0, "ip", "addr", "add", "192.0.2."+strconv.Itoa(101+k)+"/24", "dev", "host0"); err != nil {
			t.Fatal(err)
		}
	}
	through := func() (n int) {
		for k := range flows {
			if host(0, "ping", "-I", "192.0.2."+strconv.Itoa(101+k), "-c", "1", "-W", "1", "192.0.2.2") == nil {
				n++
			}
		}
		return n
	}
	r.must("ip", "link", "add", "brq", "type", "bridge")
	r.must("ip", "link", "set", "brq", "up")
	r.must("ip", "link", "set", "lone0", "master", "brq")
	r.must("ip", "link", "set", "lone1", "master", "brq")
	time.Sleep(time.Second)
	if n := through(); n != flows {
		t.Fatalf("%d of %d flows through a bridge", n, flows)
	}
	r.must("ip", "link", "del", "brq")
	r.exec([]string{quillon, "run", "--inline", "lone0,lone1", "--nf", "firewall,rules=allow+in:a"})
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !strings.Contains(r.box.Log(), "running as"); time.Sleep(10 * time.Millisecond) {
		select {
		case <-r.box.Done():
			return // it is refused
		default:
		}
	}
	if n := through(); n != flows {
		t.Errorf("%d of %d flows get through; it says: %s", n, flows, r.box.Log())
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
