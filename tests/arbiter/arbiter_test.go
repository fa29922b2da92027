package arbiter

import (
	"os"
	"strconv"
	"testing"
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
