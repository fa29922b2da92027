package live

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
)

// Somebody turns the offloads of a veth's other end on again while the wire runs (tuned, a network plugin, the user of that container): its frames leave without checksums, which its peer would fill in on a bare cable.
// TCP goes on, as it does there, or the instance says within a few seconds what is wrong.
func TestAttack13OffloadsBack(t *testing.T) {
	r := cabled(t)
	top := r.top
	for n, a := range []string{"192.0.2.1/24", "192.0.2.2/24"} {
		if err := top.Nodes[n].Space.Do(func() error { return exec.Command("ip", "addr", "add", a, "dev", topo.Interface).Run() }); err != nil {
			t.Fatal(err)
		}
	}
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	var l net.Listener
	if err := top.Nodes[0].Space.Do(func() (err error) { l, err = net.Listen("tcp4", "192.0.2.1:7000"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	send := func() error {
		var c net.Conn
		if err := top.Nodes[1].Space.Do(func() (err error) { c, err = net.DialTimeout("tcp4", "192.0.2.1:7000", 5*time.Second); return err }); err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(8 * time.Second))
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, err := c.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	if err := send(); err != nil {
		t.Fatal("before: ", err)
	}
	before := len(r.box.Log())
	if err := top.Nodes[1].Space.Do(func() error { // its cable is the second interface's
		return exec.Command("ethtool", "-K", topo.Interface, "tx", "on", "tso", "on", "gso", "on").Run()
	}); err != nil {
		t.Fatal(err)
	}
	said := func() bool {
		log := r.box.Log()[before:]
		return strings.Contains(log, top.Inline[1]) || strings.Contains(log, topo.Interface)
	}
	time.Sleep(3 * time.Second)
	err := send()
	for end := time.Now().Add(20 * time.Second); err != nil && !said() && time.Now().Before(end); err = send() {
	}
	if err != nil && !said() {
		t.Errorf("nothing gets through any more: %v; it says: %q; list: %s", err, r.box.Log()[before:], r.ask("list"))
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}

// After a crash detach undoes all that the instance changed, also of one with packet sockets.
func TestAttack13PacketSocketsKilled(t *testing.T) {
	r := cabled(t)
	top := r.top
	was := inlineLinks(t, top)
	r.exec([]string{quillon, "run", "--port", "afpacket", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	if inlineLinks(t, top) == was {
		t.Skip("nothing was changed")
	}
	r.kill()
	out := r.ask("detach", top.Inline[0], top.Inline[1])
	for i, now := range strings.Split(inlineLinks(t, top), "\n") {
		if before := strings.Split(was, "\n")[i]; now != before {
			t.Errorf("it was %q, and is %q; detach said %q", before, now, out)
		}
	}
}

// Somebody takes both programs off, which the instance says, and then its process dies. Detach puts back what it had changed, as after any crash.
func TestAttack13ProgramsOffAndKilled(t *testing.T) {
	r := cabled(t)
	top := r.top
	was := inlineLinks(t, top)
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	for _, dev := range top.Inline {
		if err := top.Switch.Do(func() error { return exec.Command("ip", "link", "set", "dev", dev, "xdp", "off").Run() }); err != nil {
			t.Fatal(err)
		}
	}
	r.says("its XDP program was taken away")
	time.Sleep(time.Second)
	r.kill()
	out := r.ask("detach", top.Inline[0], top.Inline[1])
	for i, now := range strings.Split(inlineLinks(t, top), "\n") {
		if before := strings.Split(was, "\n")[i]; now != before {
			t.Errorf("it was %q, and is %q; detach said %q", before, now, out)
		}
	}
}

// A container may have a clock of its own (time_namespaces(7): one that was restored from a checkpoint, on another machine). The program in the kernel has the machine's. A worker that takes its frames is
// taken for alive all the same.
func TestAttack13TimeNamespace(t *testing.T) {
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip(err)
	}
	r := cabled(t)
	top := r.top
	ip := func(n int, args ...string) (string, error) {
		var out []byte
		err := top.Nodes[n].Space.Do(func() (err error) {
			out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
			return err
		})
		return string(out), err
	}
	for n, a := range []string{"192.0.2.1/24", "192.0.2.2/24"} {
		if out, err := ip(n, "ip", "addr", "add", a, "dev", topo.Interface); err != nil {
			t.Fatal(out, err)
		}
	}
	for _, offset := range []string{"0", "-100", "7200"} {
		r.exec([]string{"unshare", "-T", "--monotonic=" + offset, "--fork", "--kill-child", quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "firewall,rules=allow+in:a;allow+in:b"})
		r.running()
		if out, err := ip(0, "ping", "-c", "3", "-i", "0.2", "-W", "1", "192.0.2.2"); err != nil {
			t.Errorf("with a clock that is %s s ahead: %s; list: %s", offset, out, r.ask("list"))
		}
		r.ask("stop")
		<-r.box.Done()
	}
}
