package engine_test

import (
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
)

// TestLost: what nobody can be told is counted.
func TestLost(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("l2_bridge")
	waitFor := func(what string, ok func() bool) {
		t.Helper()
		for range 5000 {
			if ok() {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatal(what)
	}
	st := w.server.Stats()
	w.send(0, ether(9, 10)) // nobody asked for digests
	waitFor("the digest was not counted", func() bool { return st.DigestsLost.Load() == 1 })
	w.do(op("INSERT", digest))
	c.cancel() // nobody is there to hear
	waitFor("the controller is still there", func() bool { return st.Streams.Load() == 0 })
	w.send(0, ether(9, 10), ether(9, 11))
	waitFor("the digests were not counted", func() bool { return st.DigestsLost.Load() == 3 })
	// They come again for the next controller.
	c = w.primary()
	w.send(0, ether(9, 10), ether(9, 11))
	if l := c.next().GetDigest(); len(l.GetData()) != 2 {
		t.Error(l)
	}
	w.program("ipv4_router")
	w.do(op("INSERT", isRouter), op("INSERT", `table_entry { table_id: 36085846 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } action { action { action_id: 17185962 } } }`))
	c.cancel()
	waitFor("the controller is still there", func() bool { return st.Streams.Load() == 0 })
	w.send(0, ipv4("10.1.2.3", 64))
	waitFor("the packet was not counted", func() bool { return st.PacketInsLost.Load() == 1 })
}
