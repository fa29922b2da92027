package graph

import (
	"bytes"
	"runtime"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// The ring against a queue: what is put comes out when it was published, in order and
// whole, what has no room is refused, and room comes back when it was given back.
func TestRing(t *testing.T) {
	pool, err := packet.NewPool(1, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	type frame struct {
		entry
		data []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(8, 512)
		var all []frame // put
		var visible, read, freed int
		size := func(from, to int) (n int) {
			for _, f := range all[from:to] {
				n += len(f.data)
			}
			return n
		}
		dropped := uint64(0)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				e := r.next()
				if (e != nil) != (read < visible) {
					t.Fatalf("next: %v with %d of %d read", e, read, visible)
				}
				if e == nil {
					continue
				}
				want := all[read]
				got := make([]byte, e.n)
				if *e != want.entry {
					t.Fatalf("got %+v, want %+v", *e, want.entry)
				}
				if r.read(e, got); !bytes.Equal(got, want.data) {
					t.Fatalf("got %x, want %x", got, want.data)
				}
				read++
			case 1:
				r.free()
				freed = read
			case 2:
				r.publish()
				visible = len(all)
			default:
				x := frame{data: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "frame")}
				x.node, x.at = rapid.Uint16().Draw(t, "node"), clock.Time(rapid.Int64().Draw(t, "at"))
				x.n = uint32(len(x.data))
				b := pool.Get()
				b.SetBytes(x.data)
				b.Port, b.Queue, b.ReasonApp, b.Reason, b.Verdict, b.Seq, b.Tag = 2, 3, 4, 5, packet.Punted, 6, 7
				x.Meta = b.Meta
				fits := len(all)-freed < 8 && size(freed, len(all))+len(x.data) <= 512
				var ok bool
				if rapid.Bool().Draw(t, "at once") {
					if ok = r.add(b, x.at, x.node); !ok {
						dropped++
					} else {
						visible = len(all) + 1
					}
				} else {
					ok = r.stage(b, x.at, x.node)
				}
				b.Put()
				if ok != fits {
					t.Fatalf("put of %d bytes: %v", len(x.data), ok)
				}
				if ok {
					all = append(all, x)
				}
			}
			if r.waiting() != visible-freed {
				t.Fatalf("%d are waiting, want %d", r.waiting(), visible-freed)
			}
		}
		if r.dropped.Load() != dropped {
			t.Fatalf("dropped %d, want %d", r.dropped.Load(), dropped)
		}
	})
}

// What a worker writes for each batch lies on no line of the processor's cache that another worker uses: their nodes
// and links are made one after the other.
func TestLines(t *testing.T) {
	owner := map[uintptr]int{}
	var kept []any // on the heap
	kind := &Kind{Name: "k", In: []string{"in"}, Out: []string{"out"}}
	for w := range 64 {
		n, l := newNode("n", 0, kind, nil), newLink(edge{})
		kept = append(kept, n, l)
		for _, at := range []unsafe.Pointer{unsafe.Pointer(&n.name), unsafe.Pointer(&n.calls), unsafe.Pointer(&n.stats),
			unsafe.Pointer(&l.edge), unsafe.Pointer(&l.q), unsafe.Pointer(&l.tapped), unsafe.Pointer(&l.stats)} {
			l := uintptr(at) / line
			if o, ok := owner[l]; ok && o != w {
				t.Fatal("two workers have a line in common")
			}
			owner[l] = w
		}
	}
	runtime.KeepAlive(kept)
}
