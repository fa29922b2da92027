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
