package swordbox

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/resident"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// The words of a range are those that were put in and not taken out, however
// far apart they are.
func TestWordTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const places = 40
		table := newWords(places)
		address := rapid.Custom(func(t *rapid.T) uint64 {
			base := rapid.SampledFrom([]uint64{0, 0x1000, 0x8000, 1 << 21, 1<<21 - 64, 1 << 32, 1<<64 - 4096}).Draw(t, "base")
			return base + 8*rapid.Uint64Range(0, 511).Draw(t, "word")
		})
		model := map[uint64]bool{}
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			va := address.Draw(t, "va")
			if i := table.find(va); (i != none) != model[va] {
				t.Fatalf("%#x is found: %v", va, i != none)
			} else if i == none {
				if got := table.add(va, 1); (got == none) != (len(model) == places) {
					t.Fatalf("%d words, and one is added: %d", len(model), got)
				} else if got != none {
					model[va] = true
				}
			} else if rapid.Bool().Draw(t, "removed") {
				table.remove(i)
				delete(model, va)
			}
			from := address.Draw(t, "from") + rapid.Uint64Range(0, 7).Draw(t, "odd")
			n := rapid.SampledFrom([]uint32{0, 1, 8, 9, 500, 4096, 1 << 20, 3 << 20, 1 << 31}).Draw(t, "length")
			want := []uint64{}
			for va := range model {
				if last := from + uint64(n) - 1; n != 0 && va+7 >= from && (last < from || va <= last) {
					want = append(want, va)
				}
			}
			list, ok := table.over(from, n)
			if !ok {
				if n < (mostBlocks-1)<<topShift {
					t.Fatalf("%d words, and a range of %d bytes is too much", len(model), n)
				}
				continue
			}
			got := []uint64{}
			for _, i := range list {
				got = append(got, table.w[i].va)
			}
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Fatalf("%d bytes from %#x: %x, want %x", n, from, got, want)
			}
		}
	})
}

// A generation is over when all that was open when it was asked for is done,
// whatever begins meanwhile.
func TestGrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := grace{gen: 1}
		type wait struct {
			gen  uint64
			open map[int]bool
		}
		open, waits := map[int]bool{}, []wait{} // number: odd
		for k := range rapid.IntRange(0, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				open[k] = g.enter()
			case 1:
				if len(open) > 0 {
					i := rapid.SampledFrom(slices.Sorted(maps.Keys(open))).Draw(t, "done")
					g.leave(open[i])
					delete(open, i)
					for _, w := range waits {
						delete(w.open, i)
					}
				}
			case 2:
				w := wait{g.now(), map[int]bool{}}
				for i := range open {
					w.open[i] = true
				}
				waits = append(waits, w)
			}
			for _, w := range waits {
				if len(w.open) > 0 && g.over(w.gen) {
					t.Fatalf("over, and %v are open", w.open)
				}
			}
		}
		// Those that begin later do not hold them up for ever.
		for range 3 {
			for i, odd := range open {
				open[i] = g.enter()
				g.leave(odd)
			}
		}
		for _, w := range waits {
			if !g.over(w.gen) {
				t.Fatalf("generation %d of %d is not over", w.gen, g.gen)
			}
		}
	})
}

// A word in use keeps its place; one out of use loses it.
func TestEvict(t *testing.T) {
	w := newWords(8)
	for k := range uint64(8) {
		w.w[w.add(8*k, 1)].flight = 1
	}
	for range 10 {
		w.evict(0)
	}
	if w.n != 8 {
		t.Fatalf("%d words are left of 8 that have operations under way", w.n)
	}
	w.w[w.find(24)].flight = 0
	for range 2 {
		w.evict(0)
	}
	if w.n != 7 || w.find(24) != none || w.add(24, 1) == none {
		t.Fatalf("%d words are left of 7", w.n)
	}
}

// TestAgain: a READ is about the word of its address, whatever has the place of the one
// that it was about when it came.
func TestAgain(t *testing.T) {
	w := newWords(2)
	o := op{kind: kRead, va: 24, len: 8}
	if at := w.again(&o, w.of(&o)); at != none {
		t.Errorf("word %d, and there is none", at)
	}
	at := w.add(24, 1)
	if got := w.again(&o, w.of(&o)); got != at {
		t.Errorf("word %d, want %d", got, at)
	}
	w.remove(at)
	if other := w.add(64, 1); other != at {
		t.Fatalf("another word got place %d, not %d", other, at)
	}
	if got := w.again(&o, at); got != none {
		t.Errorf("word %d, and there is none", got)
	}
	if got, want := w.again(&o, none), w.add(24, 1); got != none || w.again(&o, at) != want || w.again(&o, 1<<20) != want {
		t.Errorf("word %d at first; then not %d", got, want)
	}
}

// TestRefused: a word of an atomic that the server refuses takes no place.
func TestRefused(t *testing.T) {
	r := newRig(t, nil)
	r.join()
	words := r.report().Servers[0].Words
	for k := range uint64(30) {
		x := r.party(60 + int(k)).connect()
		x.warm()
		one(t, x.cas(0x50000+8*k, 0, 0).Out["b"])
		one(t, x.nak(x.spsn, hdr.SynNAKRemoteAccess).Out["a"])
		one(t, r.Push("a", x.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: x.sqpn})).Out["b"])
		one(t, r.Push("b", x.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
	}
	if got := r.report().Servers[0].Words; got != words {
		t.Errorf("%d words, %d before", got, words)
	}
}

// TestNewKey: memory that is registered anew, under another R_Key, is replaced on
// again, at address 0, too.
func TestNewKey(t *testing.T) {
	for _, va := range []uint64{0, 0x7008} {
		r := newRig(t, graph.Args{"writable": "assume"})
		b := r.join()
		for key := uint32(testRKey); key < testRKey+3; key++ {
			as := hdr.Opcode(0)
			for k := uint64(0); k < 5; k++ {
				as = opcode(t, one(t, b.request(hdr.FetchAdd, atomicETH(va, key, 1, 0), nil).Out["b"]))
				if b.msn++; as == hdr.FetchAdd {
					one(t, b.atomicAck(k).Out["a"])
				} else {
					one(t, b.ack().Out["a"])
				}
			}
			if as != hdr.WriteOnly {
				t.Errorf("%#x under R_Key %#x: the last atomic went as %v", va, key, as)
			}
		}
	}
}

// crowded is a box that has as many words, and operations under way.
func crowded(b *testing.B, words, open int) (*player, *rig, *party) {
	var tape []taped
	r := newRig(b, graph.Args{"conns": "514", "window": "1024", "words": "70000", "hold": "1024", "track": "10000+10000", "idle": "1h", "alive": "1h", "giveup": "1h"})
	r.tape = &tape
	l := r.join()
	p := newPlayer(b, r.args)
	play := func() { p.play(tape); tape = tape[:0] }
	for left := open; left > 0; {
		c := r.join()
		play()
		for range min(left, 1024) {
			p.play([]taped{{"a", r.Clock.Now(), c.made(hdr.WriteOnly, c.psn, reth(0x10000, testRKey, 8), little(1))}})
			c.psn++
			left--
		}
	}
	play()
	n := (*p.inst.App("nf", 0).(*Box).nodes.Load())[0]
	for k := range uint64(words) {
		n.words.add(1<<40+k<<12, testRKey)
	}
	return p, r, l
}

// BenchmarkWork shows that no frame costs more for what else there is: a stranger
// writes as much as a message can, and words come to be tracked.
func BenchmarkWork(b *testing.B) {
	for _, words := range []int{1 << 10, 1 << 16} {
		b.Run(fmt.Sprintf("stranger/words=%d", words), func(b *testing.B) {
			p, r, _ := crowded(b, words, 0)
			x := r.client()
			x.ip = netip.MustParseAddr("10.9.0.200")
			f := []taped{{"a", r.Clock.Now(), x.made(hdr.WriteOnly, 1, reth(1<<40, testRKey, 1<<31), nil)}}
			b.ReportAllocs()
			for b.Loop() {
				p.play(f)
			}
		})
	}
	for _, open := range []int{1 << 10, 1 << 16, 1 << 19} {
		b.Run(fmt.Sprintf("new-word/open=%d", open), func(b *testing.B) {
			p, _, _ := crowded(b, 0, open)
			s := p.inst.App("nf", 0).(*Box)
			s.n = (*s.nodes.Load())[0]
			b.ReportAllocs()
			for b.Loop() {
				s.n.words.remove(s.n.words.track(highest, testRKey, false))
			}
			s.n = nil
		})
	}
}

// untouched is what TestTablesUntouched has made. Where something was before Go writes zeros, and
// so the same test once more must not get that memory.
var untouched []graph.App

// Tables that nothing is in yet were not written: a start takes no time for them, and they
// take no room.
func TestTablesUntouched(t *testing.T) {
	var b graph.App
	grew, err := resident.Grows(func() {
		var err error
		if b, err = newApp(graph.Env{Name: "swordbox", Workers: 1, Share: func(f func() any) any { return f() }}, graph.Args{"words": "262144"}); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Skip(err)
	}
	untouched = append(untouched, b)
	all := 0
	for _, n := range b.(*Box).places {
		all += n.words.bytes()
	}
	if all < 100<<20 || grew > all/4 {
		t.Errorf("%d bytes of tables of words, and %d more are resident", all, grew)
	}
}
