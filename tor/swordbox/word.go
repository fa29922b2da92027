package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/tor/index"
)

// word is an aligned word of eight bytes that atomics go to, as the server
// will have it when all that was sent is executed. Values are numbers: in
// memory they lie in the server's byte order, which is little-endian.
type word struct {
	va    uint64
	value uint64
	rkey  uint32
	lane  int32 // connection on which its operations are in order
	// flight is the number of open ops on that connection that change it,
	// loose that of others that may: while there are any, nothing is known.
	flight, loose int32
	probe         int32 // op whose answer is awaited; none
	last          int32 // op that changed it last
	valid         bool
	atomics       int16      // open ops on that connection that go as atomics: WRITEs behind them may be executed before them
	writes        int32      // open ops that were atomics and go as WRITEs: what others do meanwhile they undo
	barred        clock.Time // until then strangers' requests may be under way
	loosened      clock.Time // when the first of the loose ones came
	checked       clock.Time // when an atomic was last sent as one
}

const pageShift, lineShift = 12, 6

// page says which lines (64 bytes) of a page (4 KiB) have words.
type page struct {
	nr, lines uint64
}

// wordTable holds words by address.
type wordTable struct {
	w     []word
	n     int
	found int32 // last
	ix    index.Index
	pages []page
	np    int
	px    index.Index
	order []uint64 // numbers of pages, ascending
}

func newWordTable(n int) wordTable {
	return wordTable{w: make([]word, n), ix: index.New(n), pages: make([]page, n), px: index.New(n), order: make([]uint64, 0, n)}
}

func hash(v uint64) uint32 { return uint32(index.Mix(v)) }

// find is the word at va, which is aligned; none if it is not tracked.
func (t *wordTable) find(va uint64) int32 {
	if t.w[t.found].va == va && t.n != 0 {
		return t.found // one operation asks several times
	}
	h := hash(va)
	for p := t.ix.Start(h); t.ix.E[p] != 0; p = t.ix.Next(p) {
		if i, ok := t.ix.Slot(p, h); ok && t.w[i].va == va {
			t.found = i
			return i
		}
	}
	return none
}

func (t *wordTable) page(nr uint64) *page {
	h := hash(nr)
	for p := t.px.Start(h); t.px.E[p] != 0; p = t.px.Next(p) {
		if i, ok := t.px.Slot(p, h); ok && t.pages[i].nr == nr {
			return &t.pages[i]
		}
	}
	return nil
}

// add makes a word; none when there is no room.
func (t *wordTable) add(va uint64, rkey uint32) int32 {
	if t.n == len(t.w) {
		return none
	}
	i := int32(t.n)
	t.n++
	t.w[i] = word{va: va, rkey: rkey, lane: none, probe: none, last: none}
	t.ix.Put(hash(va), i)
	nr := va >> pageShift
	p := t.page(nr)
	if p == nil {
		t.pages[t.np] = page{nr: nr}
		p = &t.pages[t.np]
		t.px.Put(hash(nr), int32(t.np))
		k, _ := slices.BinarySearch(t.order, nr)
		t.order = slices.Insert(t.order, k, nr)
		t.np++
	}
	p.lines |= 1 << (va >> lineShift & 63)
	return i
}

// next is the first word at or behind va and before end; none when there is
// none. Its cost is that of the pages and of the lines with words.
func (t *wordTable) next(va, end uint64) int32 {
	va &^= 7
	for va < end {
		p := t.page(va >> pageShift)
		if p == nil {
			k, _ := slices.BinarySearch(t.order, va>>pageShift)
			if k == len(t.order) {
				return none
			}
			va = t.order[k] << pageShift
			continue
		}
		line := va >> lineShift & 63
		if p.lines>>line&1 == 0 {
			n := (va>>lineShift + 1) << lineShift
			if n < va {
				return none
			}
			va = n
			continue
		}
		if i := t.find(va); i != none {
			return i
		}
		if va+8 < va {
			return none
		}
		va += 8
	}
	return none
}

// touches reports whether [va, va+n) overlaps a word.
func (t *wordTable) touches(va uint64, n uint32) bool {
	return t.n != 0 && n != 0 && t.next(va, va+uint64(n)) != none
}

func (t *wordTable) bytes() int {
	return len(t.w)*sizeofWord + len(t.pages)*24 + t.ix.Bytes() + t.px.Bytes()
}

// after is what an atomic leaves in a word that holds v.
func after(k kind, v, operand, compare, compareMask, swapMask uint64) uint64 {
	switch k {
	case kFAA:
		return v + operand
	case kCAS, kMaskedCAS:
		if (v^compare)&compareMask == 0 {
			return v&^swapMask | operand&swapMask
		}
	}
	return v
}
