package p4

import (
	"os"
	"testing"
	"time"
)

// TestWalk: a walk that pauses sees every entry that stays, once.
func TestWalk(t *testing.T) {
	sw := bridge(t)
	const n = 100
	for i := range n {
		if _, err := sw.Insert("bridge_ingress.dmac", dmac(i)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[Handle]int{}
	from, more := Handle(0), true
	for step := 0; more; step++ {
		k := 0
		var err error
		from, more, err = sw.EntriesFrom("bridge_ingress.dmac", from, func(h Handle, _ Entry) bool {
			seen[h]++
			k++
			return k < 7
		})
		if err != nil || k > 7 {
			t.Fatal(k, err)
		}
		if step == 3 { // an entry that was seen goes, one that was not goes
			for _, h := range []Handle{0, 90} {
				if err := sw.Delete("bridge_ingress.dmac", h); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(seen) != n-1 {
		t.Errorf("saw %d entries", len(seen))
	}
	for h, k := range seen {
		if k != 1 {
			t.Errorf("entry %d %d times", h, k)
		}
	}
	if _, _, err := sw.EntriesFrom("nothing", 0, nil); err == nil {
		t.Error("a table that is not there")
	}
}

// TestExpiredFrom: an entry is named once for each timeout that passes, however
// the table is cut into pieces.
func TestExpiredFrom(t *testing.T) {
	sw := bridge(t)
	sw.Advance(1000)
	for i := range 10 {
		e := smac(i)
		if i%2 == 0 {
			e.Timeout = time.Second
		}
		if _, err := sw.Insert("bridge_ingress.smac", e); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (n int) {
		from, more := Handle(0), true
		for more {
			var err error
			from, more, err = sw.ExpiredFrom("bridge_ingress.smac", from, 3, func(Handle, Entry) { n++ })
			if err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d expired at once", n)
	}
	sw.Advance(1000 + 1e9)
	if n := count(); n != 5 {
		t.Errorf("%d expired after a second", n)
	}
	sw.Advance(1000) // time does not go back
	if n := count(); n != 0 {
		t.Errorf("%d expired again at once", n)
	}
	sw.Advance(1000 + 2e9)
	if n := count(); n != 5 {
		t.Errorf("%d expired after another second", n)
	}
}

func bridge(t *testing.T) *Switch {
	t.Helper()
	src, err := os.ReadFile("../../p4src/l2_bridge.json")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	sw, err := NewSwitch(prog, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return sw
}

func dmac(i int) Entry {
	return Entry{Key: []Match{{Value: []byte{1}}, {Value: []byte{byte(i >> 8), byte(i)}}},
		Action: Action{Name: "bridge_ingress.forward", Args: [][]byte{{1}}}}
}

func smac(i int) Entry {
	e := dmac(i)
	e.Action.Name = "bridge_ingress.known"
	return e
}
