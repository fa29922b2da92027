package graph

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// The ring against a queue: what is put comes out, in order and whole, and
// what has no room is counted.
func TestRing(t *testing.T) {
	pool, err := packet.NewPool(1, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(512)
		var model []record
		used, dropped := 0, uint64(0)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "get") {
				x, ok := r.get()
				if ok != (len(model) > 0) {
					t.Fatalf("get: %v with %d records", ok, len(model))
				}
				if !ok {
					continue
				}
				want := model[0]
				model = model[1:]
				used -= ringHeader + len(want.data)
				if !bytes.Equal(x.data, want.data) || x.at != want.at || x.seq != want.seq || x.node != want.node || x.port != want.port ||
					x.queue != want.queue || x.reasonApp != want.reasonApp || x.reason != want.reason || x.verdict != want.verdict {
					t.Fatalf("got %+v, want %+v", x, want)
				}
				continue
			}
			want := record{
				node: rapid.Uint16().Draw(t, "node"), port: 2, queue: 3, reasonApp: 4, reason: 5,
				verdict: packet.Punted, at: clock.Time(rapid.Int64().Draw(t, "at")), seq: 6,
				data: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "frame"),
			}
			b := pool.Get()
			b.SetBytes(want.data)
			b.Port, b.Queue, b.ReasonApp, b.Reason, b.Verdict, b.Seq = 2, 3, 4, 5, packet.Punted, 6
			ok := r.put(b, want.at, want.node)
			b.Put()
			if fits := used+ringHeader+len(want.data) <= 512; ok != fits {
				t.Fatalf("put of %d bytes with %d used: %v", len(want.data), used, ok)
			}
			if !ok {
				dropped++
				continue
			}
			model = append(model, want)
			used += ringHeader + len(want.data)
		}
		if r.dropped.Load() != dropped {
			t.Fatalf("dropped %d, want %d", r.dropped.Load(), dropped)
		}
	})
}
