package live

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A process on AF_PACKET ports starts where a wire of a process that was killed is still in the kernel: XDP comes first, and it sees nothing. A firewall lets all through. It must not say that it runs.
func TestAttack9PacketPortsBehindWire(t *testing.T) {
	r := cabled(t)
	top := r.top
	inline := top.Inline[0] + "," + top.Inline[1]
	r.exec([]string{quillon, "run", "--inline", inline, "--nf", "wire"})
	r.running()
	r.kill()
	left := attached(t, top)
	if left == "" {
		t.Fatal("a process that was killed leaves no wire")
	}
	r.exec([]string{quillon, "run", "--inline", inline, "--port", "afpacket", "--nf", "firewall,rules=allow+in:a"})
	select {
	case <-r.box.Done():
		return // refused, which is right
	case <-time.After(3 * time.Second):
	}
	if now := attached(t, top); now != "" {
		t.Errorf("the firewall runs on AF_PACKET ports behind %q, which lets all frames across: %s", now, r.box.Log())
	}
	r.kill()
}

// Of a pair whose process was killed one interface becomes one of another pair. The other one's wire leads all frames that come there out of the first one, past the function that runs now.
func TestAttack9OtherPartner(t *testing.T) {
	r := cabled(t)
	top := r.top
	if err := top.Switch.Do(func() error {
		for _, c := range [][]string{{"link", "add", "other0", "type", "veth", "peer", "name", "other1"}, {"link", "set", "other0", "up"}, {"link", "set", "other1", "up"}} {
			if err := exec.Command("ip", c...).Run(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + "," + top.Inline[1], "--nf", "wire"})
	r.running()
	r.kill()
	before := attached(t, top)
	r.exec([]string{quillon, "run", "--inline", top.Inline[0] + ",other0", "--nf", "firewall,rules=allow+in:a"})
	select {
	case <-r.box.Done():
		return // refused, which is right
	case <-time.After(3 * time.Second):
	}
	if now := attached(t, top); strings.Contains(now, ",") {
		t.Errorf("before: %q, now: %q: %s has the old wire still, which leads to %s", before, now, top.Inline[1], top.Inline[0])
	}
	r.kill()
}
