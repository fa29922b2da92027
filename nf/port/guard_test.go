package port_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/port"
)

var words = port.Words(netip.MustParseAddr("10.0.0.1"))

// crowd are n words of one set.
func crowd(n int) (all []port.Word) {
	for va := uint64(0); len(all) < n; va += 8 {
		if w := port.WordAt(words, va); w>>53 == port.WordAt(words, 0)>>53 {
			all = append(all, w)
		}
	}
	return all
}

func TestGuard(t *testing.T) {
	g := port.NewGuard(nil)
	swap := func(lh uint64) uint64 { return lh<<28 | 1<<19 }
	w, other := port.WordAt(words, 0x1000), port.WordAt(words, 0x1008)
	holds := func(what string, w port.Word, lh uint64, want bool) {
		t.Helper()
		if g.Holds(w, swap(lh)) != want {
			t.Errorf("%s: held is %v", what, !want)
		}
	}
	holds("empty", w, 1, false)
	g.Put(w, w.Place(swap(1)))
	holds("who is to be linked", w, 1, false)
	if g.Holds(w, swap(1)|5<<11) {
		t.Error("who is to be linked, with another version of the word: held")
	}
	holds("another one", w, 2, true)
	holds("another word", other, 2, false)
	holds("another server's", port.WordAt(port.Words(netip.MustParseAddr("10.0.0.2")), 0x1000), 2, false)
	if port.Words(netip.MustParseAddr("::ffff:10.0.0.1")) != words {
		t.Error("a mapped address is another one")
	}
	g.Put(w, w.Place(swap(3)))
	holds("one of two", w, 1, false)
	holds("the other one of two", w, 3, false)
	holds("none of two", w, 2, true)
	g.Take(w, w.Place(swap(1)))
	holds("gone", w, 1, true)
	g.Take(w, w.Place(swap(3)))
	holds("both gone", w, 2, false)

	// A full set takes no more, and what is in it stays.
	all := crowd(9)
	for _, w := range all[:8] {
		if !g.Room(w) {
			t.Fatal("no room")
		}
		g.Put(w, w.Place(swap(7)))
	}
	if g.Room(all[8]) {
		t.Error("room in a full set")
	}
	g.Put(all[8], all[8].Place(swap(7)))
	holds("the ninth", all[8], 1, false)
	for _, w := range all[:8] {
		holds("of a full set", w, 1, true)
	}

	// The same words in another order, one gone, one new, one twice.
	next := port.NewGuard(nil)
	for _, w := range []port.Word{all[8], all[3], all[2], all[2], all[7], other} {
		next.Put(w, w.Place(swap(7)))
	}
	g.Replace(next)
	for i, w := range append(all, other) {
		holds(fmt.Sprint("replaced ", i), w, 1, i == 2 || i == 3 || i >= 7)
	}
	g.Take(all[2], all[2].Place(swap(7)))
	holds("once more", all[2], 1, true)
	g.Take(all[2], all[2].Place(swap(7)))
	holds("taken twice", all[2], 1, false)
	more := port.NewGuard(nil)
	more.Put(all[0], all[0].Place(swap(7)))
	*more.Seen() = 5
	g.Add(more)
	g.Add(g)
	holds("added", all[0], 1, true)
	holds("added to", all[3], 1, true)
	if *g.Seen() != 5 {
		t.Errorf("seen at %d", *g.Seen())
	}
	g.Replace(port.NewGuard(nil))
	for _, w := range append(all, other) {
		holds("nothing", w, 1, false)
	}
}

// TestGuardInMemory: who finds a guard in memory knows which of its places are taken, as does
// who replaces it or adds to it.
func TestGuardInMemory(t *testing.T) {
	all := crowd(9)
	fill := func(g *port.Guard) {
		for _, w := range all[:8] {
			g.Put(w, w.Place(1<<28))
		}
	}
	mem := make([]uint64, port.GuardLen)
	first := port.NewGuard(mem)
	fill(first)
	replaced, addedTo := port.NewGuard(nil), port.NewGuard(nil)
	replaced.Replace(first)
	addedTo.Add(first)
	for name, g := range map[string]*port.Guard{"found": port.NewGuard(mem), "replaced": replaced, "added to": addedTo} {
		if g.Room(all[8]) {
			t.Errorf("%s: room in a full set", name)
		}
		g.Put(all[8], all[8].Place(1<<28))
		for _, w := range all[:8] {
			if !g.Holds(w, 2<<28) {
				t.Errorf("%s: a word lost its place to one for which there was none", name)
			}
		}
		if g.Take(all[2], all[2].Place(1<<28)); !g.Room(all[8]) {
			t.Errorf("%s: no room where a place was given back", name)
		}
	}
}

// TestGuardStays: what stays in Replace is there at any moment of it.
func TestGuardStays(t *testing.T) {
	all := crowd(8)
	mem := make([]uint64, port.GuardLen)
	g := port.NewGuard(mem)
	stays := all[3]
	a, b := port.NewGuard(nil), port.NewGuard(nil)
	for i := range all {
		a.Put(all[i], all[i].Place(1<<28))
	}
	for _, w := range []port.Word{stays, all[7], all[0]} { // in other places
		b.Put(w, w.Place(1<<28))
	}
	g.Replace(a)
	at := 0
	for i, v := range mem {
		if v == stays.Place(1<<28) {
			at = i
		}
	}
	for range 3 {
		g.Replace(b)
		g.Replace(a)
		if mem[at] != stays.Place(1<<28) {
			t.Fatal("it has another place: it was in none between")
		}
	}
}

// BenchmarkGuard is what a compare-and-swap that is put on record, and later taken off,
// costs more for its guard: each goes to another word.
func BenchmarkGuard(b *testing.B) {
	g := port.NewGuard(nil)
	const open = 64
	var kept [open]struct {
		w port.Word
		v uint64
	}
	n := uint64(0)
	for b.Loop() {
		k := &kept[n%open]
		g.Take(k.w, k.v)
		if k.w = port.WordAt(words, n*128); g.Room(k.w) {
			k.v = k.w.Place(n << 28)
			g.Put(k.w, k.v)
		}
		n++
	}
}
