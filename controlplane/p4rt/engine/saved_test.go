package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
)

// TestDigestsOfTheSaved: digests written after VERIFY_AND_SAVE are the saved program's. The running program sends
// what it was told to before, and the saved program's digests are sent once it runs.
func TestDigestsOfTheSaved(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("l2_bridge")
	w.do(op("INSERT", digest))
	info, json := programFiles(t, "l2_bridge")
	if err := w.set(save, info, json); err != nil {
		t.Fatal(err)
	}
	w.texts("digest_entry { }") // nothing was written to the saved program
	single := strings.Replace(digest, "max_list_size: 2", "max_list_size: 1", 1)
	if single == digest {
		t.Fatal(digest)
	}
	w.do(op("INSERT", single))
	w.send(0, ether(9, 10), ether(9, 11)) // through the running program: one list of two
	if l := c.next().GetDigest(); len(l.GetData()) != 2 {
		t.Errorf("the running program's list: %v", l)
	}
	if err := w.set(realise, nil, nil); err != nil {
		t.Fatal(err)
	}
	w.texts("digest_entry { }", "digest learn_t lists of 1, 1000000 ns, acknowledged in 5000000000 ns")
	w.send(0, ether(9, 12))
	if l := c.next().GetDigest(); len(l.GetData()) != 1 {
		t.Errorf("the list of the program that was saved: %v", l)
	}
	c.none()
}

// TestIdleSinceTheHit: a notification is no hit. The time since the last hit goes on, and the next notification
// comes after another timeout.
func TestIdleSinceTheHit(t *testing.T) {
	w := newWorld(t, p4rt.Config{})
	c := w.primary()
	w.program("l2_bridge")
	w.do(op("INSERT", smac), op("INSERT", dmac))
	w.send(1, ether(11, 10)) // the entry of smac has a timeout of 1 s
	for n := range 2 {
		w.clk.advance(1500 * time.Millisecond)
		w.send(2, ether(12, 13)) // of another station: it tells the time
		if idle := c.next().GetIdleTimeoutNotification(); len(idle.GetTableEntry()) != 1 {
			t.Fatalf("notification %d: %v", n+1, idle)
		}
	}
	w.clk.advance(500 * time.Millisecond)
	w.send(2, ether(12, 13))
	x := w.read(`table_entry { table_id: 42577946 time_since_last_hit { } }`)[0].GetTableEntry()
	if got := time.Duration(x.GetTimeSinceLastHit().GetElapsedNs()); got != 3500*time.Millisecond {
		t.Errorf("%v since the last hit, want 3.5s", got)
	}
}
