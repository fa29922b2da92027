package xdp

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// TestAttack12Late: a frame that comes when the flow is forgotten is not run, also within a tick of the kernel's clock.
func TestAttack12Late(t *testing.T) {
	w := told12(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "udp-idle": "1s"}})
	w.at = 3_600_000_000_000 - 3_600_000_000_000%4_000_000
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 8 {
		w.at = w.at.Add(8 * time.Millisecond)
		w.send(c, n%2, nil)
	}
	w.at = w.at.Add(10 * time.Millisecond) // in the middle of a tick
	w.send(c, 0, nil)
	w.at = w.at.Add(time.Second + time.Millisecond)
	w.send(c, 1, nil) // from outside, 1 ms late
}

// TestAttack12Kept: a stranger who sends eleven frames a second with a flow's addresses and ports, and another MAC address (or an option, or any number), does
// not keep the flow out of the kernel.
func TestAttack12Kept(t *testing.T) {
	w := told12(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	c := newTCP12(w)
	c.open()
	for n := range 20 {
		w.at = w.at.Add(10 * time.Millisecond)
		c.data(n%2, 10)
	}
	if w.fast.ran == 0 {
		t.Fatal("nothing is run in front")
	}
	ran, sent := w.fast.ran, 0
	for n := range 2000 { // 4 s
		if n%45 == 0 { // each 90 ms: a blind stranger's segment, far out of the window, which the firewall drops
			c.push(1, c.frame(1, c.next[1]+1<<30, c.next[0], 0x10, 0, nil))
		}
		w.at = w.at.Add(2 * time.Millisecond)
		c.data(n%2, 10)
		sent++
	}
	if n := w.fast.ran - ran; n < sent/2 {
		t.Errorf("of %d frames of the flow %d are run in front", sent, n)
	}
}
