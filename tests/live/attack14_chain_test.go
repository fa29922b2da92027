package live

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Two instances with a veth between them, a chain of two boxes: each has one end. They do not change each other's settings for ever, and when both have stopped the settings are what they were.
func TestAttack14Chain(t *testing.T) {
	for order, firstFirst := range map[string]bool{"last first": false, "first first": true} {
		t.Run(order, func(t *testing.T) { attack14Chain(t, firstFirst) })
	}
}

// attack14Chain stops the instance that began first before the other one, or after it.
func attack14Chain(t *testing.T, firstFirst bool) {
	r := cabled(t)
	r.must("ip", "link", "add", "mid0", "type", "veth", "peer", "name", "mid1")
	r.must("ip", "link", "set", "mid0", "up")
	r.must("ip", "link", "set", "mid1", "up")
	was := r.must("ethtool", "-k", "mid0") + r.must("ethtool", "-k", "mid1")
	r.exec([]string{quillon, "run", "--name", "chain0", "--inline", r.top.Inline[0] + ",mid0", "--nf", "wire"})
	r.running()
	one := r.box
	r.exec([]string{quillon, "run", "--name", "chain1", "--inline", "mid1," + r.top.Inline[1], "--nf", "wire"})
	r.running()
	time.Sleep(6 * time.Second)
	n := strings.Count(one.Log(), "somebody changed settings") + strings.Count(r.box.Log(), "somebody changed settings")
	if n > 4 {
		t.Errorf("nobody but the two changes settings, and they say %d times in 6 s that somebody did: %s", n, one.Log())
	}
	stops := []interface{ Stop() error }{r.box, one}
	if firstFirst {
		slices.Reverse(stops)
	}
	for _, x := range stops {
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	}
	if now := r.must("ethtool", "-k", "mid0") + r.must("ethtool", "-k", "mid1"); now != was {
		t.Errorf("after both have stopped: %s", differ(was, now))
	}
}

// A newcomer gives the two ends of one veth as the pair. A frame would go round it for ever: that is refused. If it is not, the two ports do not change each other's settings for ever.
func TestAttack14BothEnds(t *testing.T) {
	r := cabled(t)
	r.must("ip", "link", "add", "end0", "type", "veth", "peer", "name", "end1")
	r.must("ip", "link", "set", "end0", "up")
	r.must("ip", "link", "set", "end1", "up")
	r.exec([]string{quillon, "run", "--inline", "end0,end1", "--nf", "wire"})
	if !r.begins() {
		return // it is refused
	}
	packets := func() string { return strings.TrimSpace(r.must("cat", "/sys/class/net/end0/statistics/rx_packets")) }
	r.must("ip", "addr", "add", "192.0.2.1/24", "dev", "end0")
	_, _ = r.inside("ping", "-c", "1", "-W", "1", "192.0.2.2") // nobody has it: a broadcast of ARP's
	before := packets()
	time.Sleep(time.Second)
	t.Errorf("it runs; frames a second ago %s, now %s; settings changed back %d times", before, packets(), strings.Count(r.box.Log(), "somebody changed settings"))
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
