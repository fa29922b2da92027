package main

import "testing"

// TestInterleave: what a box receives of two mixes comes by time, each mix's
// frames in their order.
func TestInterleave(t *testing.T) {
	x := &mix{bytes: []byte("abbd"), frames: 3, batches: []mixBatch{{"pa", 1, []int{1, 3}}, {"pb", 5, []int{4}}}}
	y := &mix{bytes: []byte("CCCE"), frames: 2, batches: []mixBatch{{"pb", 2, []int{3}}, {"pa", 9, []int{4}}}}
	z := interleave(x, y)
	got := ""
	for _, f := range z.list() {
		got += string(f) + " "
	}
	if want := "a bb CCC d E "; got != want || z.frames != 5 {
		t.Errorf("%d frames: %q, want %q", z.frames, got, want)
	}
	for i, want := range []mixBatch{{port: "pa", at: 1}, {port: "pb", at: 2}, {port: "pb", at: 5}, {port: "pa", at: 9}} {
		if b := z.batches[i]; b.port != want.port || b.at != want.at {
			t.Errorf("batch %d: on %s at %d, want %s at %d", i, b.port, b.at, want.port, want.at)
		}
	}
}

// TestTwoWorkers: each of two workers with a server of its own treats the load
// as one worker alone does: what goes in comes out.
func TestTwoWorkers(t *testing.T) {
	c, err := twoWorkers("swordbox", swordboxArgs(), recordLocks)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	counted := map[string]int{}
	for name, r := range map[string]run{"two": c.work, "one": c.pass} {
		timed, err := r()
		if err != nil {
			t.Fatal(err)
		}
		if counted[name], err = timed(); err != nil {
			t.Fatal(err)
		}
	}
	// The first quarter of the batches is left out, which is not the same frames of
	// the two loads one by one and of both by time.
	if d := counted["two"] - counted["one"]; max(d, -d) > mixFrames/100 || counted["two"] < mixFrames {
		t.Errorf("two workers played %d frames, one %d", counted["two"], counted["one"])
	}
}
