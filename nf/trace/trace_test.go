package trace

import "testing"

func TestRing(t *testing.T) {
	r := NewRing(4)
	for size := range 11 {
		got := r.Snapshot([]Record{{Packet: 99}})[1:]
		if len(got) != min(size, 4) {
			t.Fatalf("%d records of %d", len(got), size)
		}
		for i, x := range got {
			if int(x.Packet) != size-len(got)+i {
				t.Fatalf("%+v after %d", got, size)
			}
		}
		r.Add(Record{Packet: uint32(size)})
	}
	if n := testing.AllocsPerRun(100, func() { r.Add(Record{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r.Clear()
	if got := r.Snapshot(nil); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
