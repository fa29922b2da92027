package live

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inside runs a program where the middlebox is, for half a minute at most; what it printed.
func (r *rack) inside(args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = r.top.Switch.Do(func() error {
		var text []byte
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // a middlebox ends in order
		text, err = c.CombinedOutput()
		out = string(text)
		return nil
	})
	return out, err
}

// must is inside, of what has to succeed.
func (r *rack) must(args ...string) string {
	r.t.Helper()
	out, err := r.inside(args...)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// bridged is a rack whose second inline interface is a port of the bridge br9.
func bridged(t *testing.T) (r *rack, one, two string) {
	r = cabled(t)
	one, two = r.top.Inline[0], r.top.Inline[1]
	r.must("ip", "link", "add", "br9", "type", "bridge")
	r.must("ip", "link", "set", "br9", "up")
	r.must("ip", "link", "set", two, "master", "br9")
	return r, one, two
}

// A splice that is refused, as an instance has the port, or has left a wire there, leaves the wire as it is.
func TestSpliceOfWire(t *testing.T) {
	for _, kind := range []string{"afxdp", "afpacket", "killed"} {
		r, one, two := bridged(t)
		port := kind
		if kind == "killed" {
			port = "afxdp"
		}
		r.exec([]string{quillon, "run", "--inline", one + "," + two, "--port", port, "--nf", "wire"})
		r.running()
		if kind == "killed" {
			r.kill()
		}
		before := attached(t, r.top)
		for _, more := range [][]string{nil, {"--run", "--nf", "wire", "--name", "second"}} {
			out, err := r.inside(append([]string{quillon, "bridge", "insert", "br9", two, "--state", t.TempDir()}, more...)...)
			if err == nil || strings.Count(out, "\n") != 1 {
				t.Errorf("%s: quillon bridge insert %v: %v: %s", kind, more, err, out)
			}
			if now := attached(t, r.top); now != before {
				t.Errorf("%s: %q is attached; before %v it was %q", kind, now, more, before)
			}
			if out := r.must("ip", "link", "show", two); !strings.Contains(out, "master br9") {
				t.Errorf("%s: out of its bridge: %s", kind, out)
			}
		}
		if kind != "killed" {
			r.kill()
		}
		r.must(quillon, "detach", one, two)
	}
}

// A pair whose process was killed loses one interface; the other one is spliced, and the splice taken away: then it is as it was
// before the pair.
func TestSpliceAfterKilled(t *testing.T) {
	r, one, two := bridged(t)
	how := func() string {
		flags, _, _ := strings.Cut(r.must("ip", "link", "show", two), "mtu")
		return flags + r.must("ethtool", "-k", two)
	}
	was := how()
	r.exec([]string{quillon, "run", "--inline", one + "," + two, "--nf", "wire"})
	r.running()
	if how() == was {
		t.Error("nothing was changed, so that nothing is to be put back")
	}
	r.kill()
	r.must("ip", "link", "del", one)
	dir := t.TempDir()
	r.must(quillon, "bridge", "insert", "br9", two, "--state", dir)
	r.must(quillon, "bridge", "remove", "br9", two, "--state", dir)
	now := strings.Split(how(), "\n")
	for i, line := range strings.Split(was, "\n") {
		if now[i] != line {
			t.Errorf("was %q, is %q", line, now[i])
		}
	}
}
