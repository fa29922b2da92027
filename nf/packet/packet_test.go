package packet

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// The frame of a Buf against a model: whatever is asked for, the frame stays in
// its slot, and what does not fit changes nothing.
func TestFrame(t *testing.T) {
	pool, err := NewPool(3, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		b, neighbour := pool.Get(), pool.Get()
		defer func() { b.Put(); neighbour.Put() }()
		canary := bytes.Repeat([]byte{0xEE}, 512)
		neighbour.SetBytes(canary)
		var want []byte
		front := Headroom // free bytes in front
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			n := rapid.OneOf(rapid.IntRange(0, 520), rapid.SampledFrom([]int{-1, math.MinInt, math.MaxInt, 1 << 32, 1<<32 + 1})).Draw(t, "n")
			small := n >= 0 && n <= 512
			ok, fits := false, false
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0:
				if !small && n != 513 {
					continue
				}
				fits = n <= 512
				if ok = b.SetBytes(make([]byte, n)); ok {
					want = make([]byte, n)
					if front = Headroom; front+n > 512 {
						front = 0
					}
				}
			case 1:
				fits = small && n <= front
				var p []byte
				if p, ok = b.Prepend(n); ok && fits {
					clear(p[:n])
					want, front = append(make([]byte, n), want...), front-n
				}
			case 2:
				fits = small && front+len(want)+n <= 512
				var p []byte
				if p, ok = b.Append(n); ok && fits {
					for i := range p[len(want):] {
						p[len(want)+i] = 7
					}
					want = append(want, bytes.Repeat([]byte{7}, n)...)
				}
			case 3:
				fits = small && n <= len(want)
				if ok = b.TrimBack(n); ok && fits {
					want = want[:len(want)-n]
				}
			}
			if ok != fits {
				t.Fatalf("%d: %v", n, ok)
			}
			if !bytes.Equal(b.Bytes(), want) || b.Len() != len(want) || cap(b.Bytes()) != len(want) {
				t.Fatalf("%x, want %x", b.Bytes(), want)
			}
		}
		if !bytes.Equal(neighbour.Bytes(), canary) {
			t.Fatal("the next slot was written to")
		}
	})
}

func TestSetFrameOutside(t *testing.T) {
	pool, _ := NewPool(1, 64, nil)
	b := pool.Get()
	for _, c := range [][2]int{{-1, 1}, {0, 65}, {64, 1}, {65, 0}, {1, math.MaxInt}, {math.MaxInt, 1}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v was accepted", c)
				}
			}()
			b.SetFrame(c[0], c[1])
		}()
	}
}

func TestPool(t *testing.T) {
	for _, c := range []struct{ slots, size, mem int }{{0, 64, 0}, {1, 63, 0}, {4, 64, 255}} {
		if _, err := NewPool(c.slots, c.size, make([]byte, c.mem)); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	p, err := NewPool(2, 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := p.Get(), p.Get()
	if a.Slot() == b.Slot() || p.Get() != nil || p.InUse() != 2 || p.At(a.Slot()) != a {
		t.Error("two slots")
	}
	a.Trace, a.Verdict, a.Counted = 1, Dropped, true
	a.Put()
	if c := p.Get(); c != a || c.Meta != (Meta{}) || c.Len() != 0 {
		t.Errorf("%+v", c)
	}
	a.Put()
	defer func() {
		if recover() == nil {
			t.Error("put twice")
		}
	}()
	a.Put()
}

func TestBatch(t *testing.T) {
	p, _ := NewPool(2*MaxBatch, 64, nil)
	var b Batch
	var all []*Buf
	for p.Free() > 0 {
		all = append(all, p.Get())
	}
	if n := b.Append(all); n != MaxBatch || !b.Full() || b.Room() != 0 || b.Add(all[0]) {
		t.Error(n, b.Len())
	}
	b.Shift(3)
	if b.Len() != MaxBatch-3 || b.At(0) != all[3] || b.Bufs()[b.Len()-1] != all[MaxBatch-1] {
		t.Error("the first are not gone")
	}
	b.PutAll()
	if b.Len() != 0 || p.Free() != MaxBatch-3 {
		t.Error(b.Len(), p.Free())
	}
}

func TestVerdictText(t *testing.T) {
	for v := Forwarded; v <= Generated; v++ {
		p, err := json.Marshal(v)
		var got Verdict
		if err != nil || json.Unmarshal(p, &got) != nil || got != v {
			t.Errorf("%v: %s %v", v, p, err)
		}
	}
	if json.Unmarshal([]byte(`"lost"`), new(Verdict)) == nil {
		t.Error("an unknown verdict was read")
	}
}

// What is read and written of a pool with each frame lies on no line of the processor's cache that another's does: each worker
// has a pool of its own, which are made one after the other.
func TestLines(t *testing.T) {
	owner := map[uintptr]*Pool{}
	for range 64 {
		p, err := NewPool(4, 64, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []unsafe.Pointer{unsafe.Pointer(&p.slotSize), unsafe.Pointer(&p.free), unsafe.Add(unsafe.Pointer(&p.free), 8)} {
			l := uintptr(at) / 64
			if o := owner[l]; o != nil && o != p {
				t.Fatal("two pools have a line in common")
			}
			owner[l] = p
		}
	}
}
