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

// TestDigestsOfTheProgramBefore: what a program told before it was replaced is not
// taken for what the next one tells, whose digests may be others and longer.
func TestDigestsOfTheProgramBefore(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	w.primary()
	w.program("l2_bridge")
	w.server.Close()
	events, on := make(chan p4rt.Event, 16), make(chan struct{})
	stop, err := w.dev.Listen(func(e p4rt.Event) {
		events <- e
		<-on
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	w.send(0, ether(9, 10), ether(9, 11))
	if e := <-events; e.Digest == nil {
		t.Fatal(e)
	}
	info, json := programFiles(t, "l2_bridge")
	p, err := w.dev.Build(info, json)
	if err == nil {
		err = w.dev.Commit(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	close(on)
	if e := <-events; e.Digest != nil || e.DigestsLost != 1 {
		t.Errorf("the program before told %v", e)
	}
}
