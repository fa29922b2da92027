package xdp

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// TestHeadlessChain: each of many processes is killed at another moment of its start, its writes and its taking over, and the last one has
// all counts; no frame is lost or comes twice.
func TestHeadlessChain(t *testing.T) {
	h := newHouse(t)
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless"} }
	first := h.run(args())
	first.entries()
	first.forwards()
	end := make(chan struct{})
	flowing := make(chan struct{})
	go func() {
		defer close(flowing)
		for {
			select {
			case <-end:
				return
			default:
				<-h.flow(100)
			}
		}
	}()
	first.kill()
	for round := range 8 {
		b, failed := h.start(args(), nil)
		if failed != "" {
			t.Fatalf("round %d: %s", round, failed)
		}
		b.entries()
		wait := time.Duration(rand.IntN(900)) * time.Millisecond
		if round%3 == 0 {
			h.until("it does not take over", func() bool { return b.say("report").Running.Runs })
			wait = 10 * time.Millisecond
		}
		time.Sleep(wait)
		b.kill()
	}
	last := h.run(args())
	last.entries()
	h.until("it does not take over", func() bool { return last.say("report").Running.Runs })
	close(end)
	<-flowing
	h.all("after the last")
	n, twice := h.arrived()
	s := last.say("report")
	t.Logf("%d frames arrived, %d twice; counter %d, entry %d", n, twice, s.Rx, s.Hits)
	if uint64(n) != h.sent.Load() || twice > 0 || s.Rx != uint64(n) || s.Hits != uint64(n) {
		t.Errorf("of %d frames %d arrived, %d twice; the counter has %d, the entry %d", h.sent.Load(), n, twice, s.Rx, s.Hits)
	}
	last.stop()
	h.clean("after a stop")
}

// TestHeritageNumbers: an entry that is deleted while both programs are there and added again counts from 0, whatever the program
// before counts, and numbers are used again.
func TestHeritageNumbers(t *testing.T) {
	requireKernel(t)
	source := read(t, "../../../p4src/l2_bridge.json")
	configure := func(s *survivor, entries string) {
		t.Helper()
		all, err := stf.Parse(strings.NewReader(entries))
		if err == nil {
			err = stf.Configure(s.sw, all)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const table = "bridge_ingress.dmac"
	_, entry, _ := strings.Cut(bridgeEntries, "\n")
	key := []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 2}}}
	find := func(s *survivor) p4.Handle {
		t.Helper()
		h, err := s.sw.Find(table, key, 0)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	count := func(s *survivor, want uint64, when string) {
		t.Helper()
		if c, err := s.sw.EntryCount(table, find(s)); err != nil || c.Packets != want {
			t.Errorf("%s: the entry has %d packets, want %d: %v", when, c.Packets, want, err)
		}
	}
	run := func(s *survivor, frames int) {
		t.Helper()
		if _, err := s.x.prog.Run(&ebpf.RunOptions{Data: frameOf(t, bridgeFrame), Repeat: uint32(frames)}); err != nil {
			t.Fatal(err)
		}
	}
	a := newSurvivor(t, source, nil)
	configure(a, bridgeEntries)
	run(a, 5)
	count(a, 5, "at first")
	b := newSurvivor(t, source, a)
	configure(b, bridgeEntries)
	run(b, 2)
	count(b, 7, "with a successor")
	old := find(b)
	if err := b.sw.Delete(table, old); err != nil {
		t.Fatal(err)
	}
	configure(b, entry)
	run(a, 4)
	count(b, 0, "added again")
	run(b, 3)
	count(b, 3, "added again")
	c := newSurvivor(t, source, b)
	configure(c, bridgeEntries)
	count(c, 3, "with a second successor")
	c.x.settle()
	for range 5000 {
		if err := c.sw.Delete(table, find(c)); err != nil {
			t.Fatal(err)
		}
		configure(c, entry)
	}
	if s := c.x.Stopped(); len(s) > 0 {
		t.Error(s)
	}
	run(c, 6)
	count(c, 6, "after 5000 others")
}
