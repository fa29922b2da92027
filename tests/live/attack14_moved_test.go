package live

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The other end of a veth comes into a container's namespace when the wire runs already, as network plugins do it. Its offloads that somebody turns on there are turned off as before the move, or the instance says that it cannot;
// and when the instance stops the settings are what they were before it, or it says which are not.
func TestAttack14PeerMoved(t *testing.T) {
	r := cabled(t)
	container := r.container()
	r.must("ip", "link", "add", "box0", "type", "veth", "peer", "name", "con0")
	r.must("ip", "link", "set", "box0", "up")
	r.must("ip", "link", "set", "con0", "up")
	within := func(args ...string) string {
		out, err := exec.Command("nsenter", append([]string{"-t", container, "-n"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	was := r.must("ethtool", "-k", "con0")
	r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + ",box0", "--nf", "wire"})
	r.running()
	before := len(r.box.Log())
	r.must("ip", "link", "set", "con0", "netns", container)
	within("ip", "link", "set", "con0", "up")
	time.Sleep(time.Second)
	runs := within("ethtool", "-k", "con0")
	within("ethtool", "-K", "con0", "tx", "on", "tso", "on", "gso", "on")
	time.Sleep(time.Second)
	r.until("the offloads to be turned off again, or to be told of", func() bool {
		log := r.box.Log()[before:]
		return strings.Contains(log, "con0") || strings.Contains(log, "box0") || within("ethtool", "-k", "con0") == runs
	})
	before = len(r.box.Log())
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
	if now, log := within("ethtool", "-k", "con0"), r.box.Log()[before:]; now != was && !strings.Contains(log, "con0") && !strings.Contains(log, "box0") {
		t.Errorf("after the stop the settings are not what they were, and nothing is said: %q\n%s", log, differ(was, now))
	}
}

// differ returns the lines of b that a has otherwise.
func differ(a, b string) string {
	var all []string
	was := strings.Split(a, "\n")
	for i, line := range strings.Split(b, "\n") {
		if i < len(was) && was[i] != line {
			all = append(all, was[i]+" -> "+line)
		}
	}
	return strings.Join(all, "\n")
}
