package bench

import (
	"testing"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// TestLapsHaveNoSeam plays the mix in laps through clover-steer: to it they are
// clients that go on. No frame is out of turn or comes again, and about as many
// are steered in each lap.
func TestLapsHaveNoSeam(t *testing.T) {
	m, err := recordMix(0)
	if err != nil {
		t.Fatal(err)
	}
	frames, _, err := m.laps()
	if err != nil {
		t.Fatal(err)
	}
	if len(frames) < mixFrames*99/100 {
		t.Errorf("%d frames of %d are left", len(frames), mixFrames)
	}
	pool, err := packet.NewPool(4*packet.MaxBatch, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := graph.New(graph.Config{
		Spec: Between("clover-steer", steerArgs()), Kinds: registry.Kinds(),
		Ports: map[string][]port.Port{"pa": {&drain{name: "pa", pool: pool}}, "pb": {&drain{name: "pb", pool: pool}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	var batch packet.Batch
	first, before := uint64(0), uint64(0)
	for lap := range 4 {
		for i, fr := range frames {
			x := pool.Get()
			x.SetBytes(fr.Bytes)
			var f hdr.Frame
			b := x.Bytes()
			hdr.Parse(b, &f)
			f.BTHOf(b).SetPSN(f.BTHOf(b).PSN() + uint32(lap)*fr.Step)
			hdr.SetICRC(b, &f)
			if batch.Add(x); batch.Full() || i == len(frames)-1 {
				if err := inst.Push("pa", clock.Time(1+lap), &batch); err != nil {
					t.Fatal(err)
				}
				batch.Reset()
			}
		}
		steered := uint64(0)
		for _, c := range inst.Counters() {
			switch c.Name {
			case "steered-cas", "steered-read":
				steered += c.Value
			case "psn-gap", "repeated", "window-full", "bad-icrc":
				if c.Value != 0 {
					t.Errorf("lap %d: %s %d", lap, c.Name, c.Value)
				}
			}
		}
		if lap == 0 {
			first = steered
		}
		if n := steered - before; n < first*3/4 || n == 0 {
			t.Errorf("lap %d: %d steered, %d in the first", lap, n, first)
		}
		before = steered
	}
}
