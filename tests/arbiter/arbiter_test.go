package arbiter

import (
	"maps"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// seeds is how many schedules a run plays: ARBITER_SEEDS, or some.
func seeds(t *testing.T) uint64 {
	n := uint64(1000)
	if s, err := strconv.Atoi(os.Getenv("ARBITER_SEEDS")); err == nil {
		n = uint64(s)
	}
	return n
}

// TestSchedules: nobody shares what is one's alone, a grant is whole, tokens rise, whoever stands in line gets its turn in order, a request
// is done once, what is denied stays so, nobody lies with success, and with a fence no late write lands.
func TestSchedules(t *testing.T) {
	sum := map[string]int{}
	for seed := range seeds(t) {
		k, s := script(seed)
		w := play(seed, k, s)
		for name, n := range w.stats {
			sum[name] += n
			if name == "harm" {
				sum["harm without a fence"] += n
			}
		}
		if w.err != nil {
			few := shrink(seed, k, s)
			t.Fatalf("seed %d, %+v: %v\nof %d steps these are needed: %+v\n%v", seed, k, w.err, len(s), few, play(seed, k, few).err)
		}
	}
	t.Logf("%v", sum)
	for _, name := range []string{"granted", "released", "landed", "lost", "lies", "denied held", "denied timed out", "denied shut out", "harm", "state lost"} {
		if sum[name] == 0 {
			t.Errorf("no %s: this shows little", name)
		}
	}
}

// TestShutOut: what a host holds that the operator shuts out is another's when it has settled, though the host renews its lease; let in
// again, it is taken for dead, and its next incarnation is not.
func TestShutOut(t *testing.T) {
	w := begin(2, rules{fenced: true})
	w.start()
	w.timer()
	w.run(w.now.Add(lease+2*settle), nil)
	w.calm = true
	holds := func(h *hostState, wait time.Duration) uint32 {
		id, _ := h.c.Acquire(w.now, wait, wordOf(1, true, h.qpn))
		h.asked[id] = []message.Word{wordOf(1, true, h.qpn)}
		w.drive(h)
		return id
	}
	a, b := w.host[0], w.host[1]
	w.idle = true // who is granted something only holds it
	first := holds(a, 0)
	w.run(w.now.Add(5*time.Millisecond), nil)
	second := holds(b, maxWait)
	w.run(w.now.Add(2*lease), nil)
	if a.held[first] == 0 || b.held[second] != 0 {
		t.Fatalf("%v %v %v", a.held, b.held, w.err)
	}
	life := a.life
	w.shut(1, 10*settle)
	a.lagged = true
	w.run(w.now.Add(settle+20*time.Millisecond), nil)
	if b.held[second] == 0 || a.life == life {
		t.Errorf("after it has settled host 0 is in life %d of %d, and host 1 holds %v", a.life, life, b.held)
	}
	w.run(w.now.Add(20*settle), nil)
	w.release(b, second)
	w.run(w.now.Add(5*time.Millisecond), nil)
	third := holds(a, maxWait)
	w.run(w.now.Add(100*time.Millisecond), nil)
	if a.held[third] == 0 || w.err != nil {
		t.Errorf("it is not let in again: %v, %v", a.denied, w.err)
	}
}

// TestFenceTakenAway: the arbiter is told to shut nobody out any more while a client is shut out. The client's next incarnation is let in
// again, and holds locks.
func TestFenceTakenAway(t *testing.T) {
	w := begin(2, rules{fenced: true})
	w.start()
	w.timer()
	w.run(w.now.Add(lease+2*settle), nil)
	w.calm, w.idle = true, true
	a := w.host[0]
	w.asks(a, 0, []message.Word{wordOf(1, true, a.qpn)})
	w.run(w.now.Add(5*time.Millisecond), nil)
	if len(a.held) != 1 {
		t.Fatalf("%v %v", a.denied, w.err)
	}
	life := a.life
	a.frozen = w.now.Add(3 * lease)
	w.drive(a)
	w.run(w.now.Add(2*lease), nil)
	args := maps.Clone(w.args)
	args["fence"] = "none"
	if _, err := w.inst.Set("arbiter", args); err != nil {
		t.Fatal(err)
	}
	w.timer()
	w.run(w.now.Add(2*lease), nil)
	if w.asks(a, maxWait, []message.Word{wordOf(1, true, a.qpn)}); a.life == life {
		t.Fatal("the host did not notice that it was shut out")
	}
	w.run(w.now.Add(100*time.Millisecond), nil)
	if len(a.held) != 1 || w.err != nil {
		t.Errorf("it holds %v: %v, %v", a.held, a.denied, w.err)
	}
}
