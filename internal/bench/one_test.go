package bench

import (
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// TestByClient: each half has every frame of its clients, in their order.
func TestByClient(t *testing.T) {
	m, err := recordClover(0, 2, 4096, steerArgs())
	if err != nil {
		t.Fatal(err)
	}
	halves := m.byClient()
	var lists [2][][]byte
	for i, h := range halves {
		lists[i] = h.list()
		if len(lists[i]) != h.frames || h.frames < m.frames/4 {
			t.Errorf("half %d has %d frames, and counts %d of %d", i, len(lists[i]), h.frames, m.frames)
		}
	}
	n := 0
	for _, x := range m.batches {
		for range x.ends {
			b := m.list()[n]
			i := clientOf(x.port, b).As4()[3] & 1
			if len(lists[i]) == 0 || string(lists[i][0]) != string(b) {
				t.Fatalf("frame %d is not where it was in its half", n)
			}
			lists[i] = lists[i][1:]
			n++
		}
		if n > 200 {
			break
		}
	}
}

// TestTenants: the clients of two protection domains come to their ends on one worker
// and on two, and the app does for them what it is there for.
func TestTenants(t *testing.T) {
	args := swordboxArgs()
	args["conns"] = "512"
	for _, kind := range []string{"wire", "swordbox"} {
		for workers := 1; workers <= 2; workers++ {
			r := &rivals{kind: kind, args: map[string]graph.Args{"swordbox": args}[kind], workers: workers, race: &race{clk: clock.NewWall()}}
			timed, err := r.prepare()
			if err != nil {
				t.Fatal(err)
			}
			n, err := timed()
			if err != nil || n == 0 {
				t.Fatalf("%s, %d workers: %d frames: %v", kind, workers, n, err)
			}
			all := uint64(n + tenantWarm)
			count := map[string]uint64{}
			for _, c := range r.inst.Counters() {
				count[c.Name] += c.Value
			}
			if kind == "swordbox" && (count["moved"] < all/4 || count["replaced"] < all/8) {
				t.Errorf("%d workers: %d requests were moved, %d atomics replaced", workers, count["moved"], count["replaced"])
			}
		}
	}
}
