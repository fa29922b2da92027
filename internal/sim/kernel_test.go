package sim

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/packet"
)

// recorder notes what happens to it, and plans more.
type recorder struct {
	k    *kernel
	id   uint32
	args []uint64
	at   []Time
	then map[uint64]Time // plans the event arg+1000 so much later
}

func (r *recorder) fire(_ uint32, arg uint64, _ *packet.Buf) {
	r.args = append(r.args, arg)
	r.at = append(r.at, r.k.now)
	if d, ok := r.then[arg]; ok {
		r.k.plan(r.k.now+d, r.id, 0, arg+1000, nil)
	}
}

// Events happen by time, and in the order of their planning at equal times.
func TestKernelOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &kernel{}
		r := &recorder{k: k, then: map[uint64]Time{}}
		r.id = k.add(r)
		type planned struct {
			at  Time
			seq int
			arg uint64
		}
		var want []planned
		n := rapid.IntRange(0, 300).Draw(t, "events")
		for i := range n {
			at := Time(rapid.Int64Range(0, 40).Draw(t, "at"))
			k.plan(at, r.id, 0, uint64(i), nil)
			want = append(want, planned{at, i, uint64(i)})
		}
		slices.SortFunc(want, func(a, b planned) int {
			if a.at != b.at {
				return int(a.at - b.at)
			}
			return a.seq - b.seq
		})
		for k.next() != never {
			k.step()
		}
		if len(r.args) != n {
			t.Fatalf("%d of %d events happened", len(r.args), n)
		}
		for i, w := range want {
			if r.args[i] != w.arg || r.at[i] != w.at {
				t.Fatalf("event %d: %d at %d, want %d at %d", i, r.args[i], r.at[i], w.arg, w.at)
			}
		}
	})
}

func TestKernelPlansFromEvents(t *testing.T) {
	k := &kernel{}
	r := &recorder{k: k, then: map[uint64]Time{1: 5, 2: 0, 3: -9}}
	r.id = k.add(r)
	for i := uint64(3); i > 0; i-- {
		k.plan(Time(i), r.id, 0, i, nil)
	}
	for k.next() != never {
		k.step()
	}
	// What is planned for the past happens now.
	if want := []uint64{1, 2, 1002, 3, 1003, 1001}; !slices.Equal(r.args, want) {
		t.Errorf("%v, want %v", r.args, want)
	}
	if want := []Time{1, 2, 2, 3, 3, 6}; !slices.Equal(r.at, want) {
		t.Errorf("%v, want %v", r.at, want)
	}
}

type idle struct{ k *kernel }

func (x idle) fire(kind uint32, _ uint64, _ *packet.Buf) {
	x.k.plan(x.k.now+Time(kind*977%1009), 0, kind, 0, nil)
}

func TestKernelAllocatesNothing(t *testing.T) {
	k := &kernel{}
	k.add(idle{k})
	for i := range uint32(1000) {
		k.plan(Time(i), 0, i, 0, nil)
	}
	for range 10_000 {
		k.step()
	}
	if n := testing.AllocsPerRun(1000, k.step); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

func BenchmarkKernel(b *testing.B) {
	k := &kernel{}
	k.add(idle{k})
	for i := range uint32(1000) {
		k.plan(Time(i), 0, i, 0, nil)
	}
	for b.Loop() {
		k.step()
	}
}
