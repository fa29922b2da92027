package swordbox

import (
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/tor/index"
)

// word is an aligned word of eight bytes that atomics go to, as the server will have it when all operations
// that were sent are executed. Values are numbers; in the server's memory they are little-endian. A word
// fills one line of the processor's cache.
type word struct {
	va    uint64 // not aligned (nowhere): the place is free
	value uint64
	// belief is the number of the belief that the word has this value, as words.beliefs counts; 0: the value
	// is not known. While a probe is under way, belief is the number of the newest belief of any word at the
	// time when the probe was sent. See words.believes.
	belief  uint64
	checked clock.Time // when an atomic was last sent as an atomic
	rkey    uint32
	lane    int32 // connection over which its operations are in order
	// flight is the number of open operations over that connection that change the word and nothing else;
	// loose is the number of other open operations that change the word and nothing else. While loose is not
	// 0, the value is not known.
	flight, loose int32
	probe         int32 // operation whose answer will tell the value; none
	atomics       int32 // open operations over that connection that go as atomics: the server may execute later WRITEs before them
	writes        int32 // open atomics that go as WRITEs: they undo changes that others make meanwhile
	used          bool  // since the hand of the clock algorithm last passed
	executed      bool  // the server has executed an operation on it
	vouched       bool  // settings.vouches for it
	queued        bool  // requests wait for the word: see unrest.first
}

// unrest says how long a word's value cannot become known. It lies beside the word. While the value is known,
// it says nothing.
type unrest struct {
	gen    uint64     // generation (grace) of the newest free operation that may change the word
	barred clock.Time // until then requests of strangers may be under way
	// loosened is when word.loose last became 1, or last fell.
	loosened clock.Time
	first    int32 // the client that waits for the word longest, as in waits; 0: none
}

// grace tells when all operations that were open at some time are done, however many there are (RCU's grace
// periods: McKenney and Slingwine, 1998). It counts the free operations: those that change memory and that no
// single word counts. Each belongs to the generation that was the newest when it began. Only the newest
// generation and the one before it have open operations.
type grace struct {
	gen    uint64   // the newest generation
	open   [2]int32 // open operations of the even and of the odd one of the last two generations
	wanted uint64   // the newest generation whose end is waited for
}

// enter counts an operation. Its result must be given to leave.
func (g *grace) enter() (odd bool) {
	g.open[g.gen&1]++
	return g.gen&1 != 0
}

func (g *grace) leave(odd bool) {
	k := 0
	if odd {
		k = 1
	}
	g.open[k]--
	g.turn()
}

// now returns the newest generation, and asks for its end: over of this generation then means that all
// operations that are open now are done.
func (g *grace) now() uint64 {
	gen := g.gen
	g.wanted = gen
	g.turn()
	return gen
}

// turn begins a new generation if the end of the newest is waited for, and all operations of the one before
// are done.
func (g *grace) turn() {
	if g.wanted == g.gen && g.open[(g.gen-1)&1] == 0 {
		g.gen++
	}
}

// over reports whether all operations up to generation gen are done.
func (g *grace) over(gen uint64) bool {
	return gen+1 < g.gen || gen+1 == g.gen && g.open[gen&1] == 0
}

// lineShift is the base-2 logarithm of the length of a cache line in bytes.
const lineShift = 6

// Memory is divided into blocks of 64 parts each. The parts of the smallest blocks are words, and those of a
// larger block are blocks of the next smaller size.
const (
	levels     = 3
	blockShift = 6 // base-2 logarithm of the number of parts of a block
	topShift   = 3 + levels*blockShift
	// mostWords and mostBlocks are the numbers of words, and of largest blocks, that are looked at for one
	// operation. An operation that touches more makes all words unknown.
	mostWords, mostBlocks = 64, 64
)

// block says which parts of a block contain words.
type block struct {
	key   uint64 // number of the block among those of its size, and its size (see blockOf); of a free block: see words.freeB
	parts uint64
}

// words holds what is known of a server's memory: the values of words by address, and the operations under
// way that may change them. Each open operation that changes memory is counted here, from join to leave: at
// one word, in order with the word's other operations (flight) or not (loose), or as a free operation
// (joinFree, grace). touch takes note of operations that are not counted. If believes is true of a word, its
// value is the one that the server will have when all operations that were sent are executed.
//
// words refers to connections by number, and to operations by place.
type words struct {
	w     []word
	u     []unrest // beside w
	n     int      // number of words in use
	found int32    // the word that find returned last
	hand  int      // hand of the clock algorithm that finds words out of use
	born  int32    // number of places that were ever used; the others are as newWords made them
	spare []int32  // free places among those that were ever used
	ix    index.Index
	b     []block
	// freeB is the first free block; it is len(b) if there is none. Behind the free block k comes the free
	// block k+1+key (modulo 2^64). So zeroed memory is a list of all blocks in order.
	freeB uint64
	bx    index.Index
	seed  uint64           // key of the hashes of ix and bx
	hits  [mostWords]int32 // result of over

	beliefs uint64 // number of the newest belief (word.belief)
	shaken  uint64 // beliefs up to this number are void
	free    grace
	unrest  unrest     // of all words
	writes  int32      // open operations that go as WRITEs in the place of atomics
	unknown clock.Time // until then requests that are not on record may be under way
}

// newWords makes an empty table for n words. It writes only to the first word, so that memory that is never
// used takes no time at the start and no room.
func newWords(n int) words {
	t := words{free: grace{gen: 1}, w: make([]word, n), u: make([]unrest, n), spare: make([]int32, 0, n), ix: index.New(n), b: make([]block, levels*n), bx: index.New(levels * n)}
	t.w[0].va = nowhere // find looks at this word even if it is free
	return t
}

// nowhere is the address of no word.
const nowhere = ^uint64(0)

func hash(v uint64) uint32 { return uint32(index.Mix(v)) }

// wordHash returns the hash of the word at the aligned address va. It has a key, so that no client can choose
// words that collide. The hashes of words of one cache line follow each other, so that their entries share a
// cache line of the index.
func (t *words) wordHash(va uint64) uint32 {
	return hash(va>>lineShift^t.seed)&^7 | uint32(va>>3)&7
}

// find returns the word at the aligned address va, or none if it is not tracked.
func (t *words) find(va uint64) int32 {
	if t.w[t.found].va == va {
		return t.found // asked several times for each operation
	}
	h := t.wordHash(va)
	for p := t.ix.Start(h); t.ix.E[p] != 0; p = t.ix.Next(p) {
		if i, ok := t.ix.Slot(p, h); ok && t.w[i].va == va {
			t.found = i
			return i
		}
	}
	return none
}

// shift returns the base-2 logarithm of the length in bytes of a part of a block of that level.
func shift(level uint) uint { return 3 + level*blockShift }

// blockOf returns the key (block.key) of the block of that level that contains va.
func blockOf(va uint64, level uint) uint64 { return va>>shift(level+1)<<2 | uint64(level) }

func (t *words) block(key uint64) int32 {
	h := hash(key ^ t.seed)
	for p := t.bx.Start(h); t.bx.E[p] != 0; p = t.bx.Next(p) {
		if i, ok := t.bx.Slot(p, h); ok && t.b[i].key == key {
			return i
		}
	}
	return none
}

// add makes a word. It returns none if there is no room.
func (t *words) add(va uint64, rkey uint32) int32 {
	if t.n == len(t.w) {
		return none
	}
	i := t.born
	if n := len(t.spare) - 1; n >= 0 {
		i, t.spare = t.spare[n], t.spare[:n]
	} else {
		t.born++
	}
	t.n++
	t.w[i] = word{va: va, rkey: rkey, lane: none, probe: none, used: true}
	t.u[i] = unrest{}
	t.ix.Put(t.wordHash(va), i)
	for level := range uint(levels) {
		key := blockOf(va, level)
		k := t.block(key)
		if k == none {
			k = int32(t.freeB)
			t.freeB += 1 + t.b[k].key
			t.b[k] = block{key: key}
			t.bx.Put(hash(key^t.seed), k)
		}
		t.b[k].parts |= 1 << (va >> shift(level) & 63)
	}
	return i
}

// remove forgets word i, which no open operation may be counted at.
func (t *words) remove(i int32) {
	va := t.w[i].va
	t.ix.Del(t.wordHash(va), i)
	for level := range uint(levels) {
		key := blockOf(va, level)
		k := t.block(key)
		if t.b[k].parts &^= 1 << (va >> shift(level) & 63); t.b[k].parts != 0 {
			break
		}
		t.bx.Del(hash(key^t.seed), k)
		t.b[k].key, t.freeB = t.freeB-uint64(k)-1, uint64(k)
	}
	t.w[i].va = nowhere
	t.spare = append(t.spare, i)
	t.n--
}

// mostUsed is the number of words that are looked at to find one that is out of use.
const mostUsed = 16

// evict forgets a word that is out of use, if one of the next mostUsed is.
func (t *words) evict(now clock.Time) {
	for range mostUsed {
		i := t.hand
		if t.hand++; t.hand == len(t.w) {
			t.hand = 0
		}
		w := &t.w[i]
		if w.va == nowhere || w.flight|w.loose != 0 || w.queued || now < t.u[i].barred {
			continue
		}
		if !w.used {
			t.remove(int32(i))
			return
		}
		w.used = false
	}
}

// over returns the words that overlap [va, va+n), valid until the next call. It returns false if there may be
// too many.
func (t *words) over(va uint64, n uint32) ([]int32, bool) {
	if t.n == 0 || n == 0 {
		return nil, true
	}
	last := va + uint64(n) - 1
	if last < va {
		last = nowhere
	}
	if last>>topShift-va>>topShift >= mostBlocks {
		return nil, false
	}
	k := 0
	for {
		w := t.next(va&^7, last)
		if w == none {
			return t.hits[:k], true
		}
		if k == mostWords {
			return nil, false
		}
		t.hits[k] = w
		k++
		if va = t.w[w].va + 8; va == 0 || va > last {
			return t.hits[:k], true
		}
	}
}

// next returns the first word between the aligned address va and last, or none.
func (t *words) next(va, last uint64) int32 {
	for level := uint(levels) - 1; va <= last; {
		parts := uint64(0)
		if k := t.block(blockOf(va, level)); k != none {
			parts = t.b[k].parts >> (va >> shift(level) & 63)
		}
		if parts == 0 { // go on behind the block
			if va = (va>>shift(level+1) + 1) << shift(level+1); va == 0 {
				return none
			}
			level = levels - 1
			continue
		}
		if skip := uint(bits.TrailingZeros64(parts)); skip != 0 {
			if va = (va>>shift(level) + uint64(skip)) << shift(level); va > last {
				return none
			}
		}
		if level == 0 {
			return t.find(va)
		}
		level--
	}
	return none
}

func (t *words) bytes() int {
	return len(t.w)*(sizeofWord+sizeofUnrest+4) + len(t.b)*16 + t.ix.Bytes() + t.bx.Bytes()
}

// believes reports whether the value of v is known. If it is, all operations under way that may change v are
// in order.
func (t *words) believes(v *word) bool { return v.belief > t.shaken && v.probe == none }

// awaits reports whether the answer to an operation under way will tell the value of v.
func (t *words) awaits(v *word) bool { return v.probe != none && v.belief >= t.shaken }

// believe notes that v has this value. The caller must know that v is settled.
func (t *words) believe(v *word, value uint64) {
	v.value = value
	if !t.believes(v) {
		t.beliefs++
		v.belief = t.beliefs
	}
}

// settled reports whether no operation is under way that may change word w, apart from those that the word
// itself counts.
func (t *words) settled(w int32, now clock.Time) bool {
	u := &t.u[w]
	return t.free.over(max(u.gen, t.unrest.gen)) && now >= max(u.barred, t.unrest.barred)
}

// doubt notes that word v may change at any time: its value becomes unknown, and the outcome of the
// operations under way, too.
func (v *word) doubt() { v.belief, v.probe = 0, none }

// doubtAll makes the values of all words unknown.
func (t *words) doubtAll() {
	t.beliefs++
	t.shaken = t.beliefs
}

// vouch notes which words the operator vouches for. A word that becomes one of them loses its believed value,
// because others may have written to it before.
func (t *words) vouch(cfg *settings) {
	for i := range t.w[:t.born] {
		w := &t.w[i]
		was := w.vouched
		if w.vouched = w.va != nowhere && cfg.vouches(w.va); w.vouched && !was {
			w.doubt()
		}
	}
}

// touch makes the words in [va, va+ln) unknown. An operation that is not counted at them may change them.
// They are not settled before until, nor before the free operations up to generation gen are done. wait says
// that the operation must wait: to one of these words a WRITE in the place of an atomic is under way over
// another connection than lane. any says that there is such a word.
func (t *words) touch(va uint64, ln uint32, lane int32, gen uint64, until clock.Time) (wait, any bool) {
	list, ok := t.over(va, ln)
	if !ok {
		return t.touchAll(gen, until), true
	}
	for _, w := range list {
		v, u := &t.w[w], &t.u[w]
		v.doubt()
		u.gen, u.barred = max(u.gen, gen), max(u.barred, until)
		wait = wait || v.writes > 0 && v.lane != lane
	}
	return wait, len(list) != 0
}

// touchAll is touch for all words. wait says that any WRITE in the place of an atomic is under way, over
// whichever connection.
func (t *words) touchAll(gen uint64, until clock.Time) (wait bool) {
	t.doubtAll()
	t.unrest.gen, t.unrest.barred = max(t.unrest.gen, gen), max(t.unrest.barred, until)
	return t.writes > 0
}

// after returns the value that an atomic leaves in a word that holds v.
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

// of returns the word that o accesses, if o accesses no other memory, or none if that word is not tracked.
func (t *words) of(o *op) int32 {
	if t.w[t.found].va == o.va && o.len == 8 && o.va != nowhere { // asked several times for each operation
		return t.found
	}
	if o.len == 0 || o.wide() {
		return none
	}
	return t.find(o.va &^ 7)
}

// again returns the word of o; w was its word when o came.
func (t *words) again(o *op, w int32) int32 {
	if uint(w) < uint(len(t.w)) && t.w[w].va == o.va {
		return w
	}
	return t.of(o)
}

// track makes a word. It returns none if there is no room. Open operations that may change the word are not
// in order with later ones. Neither are requests that passed before the numbering of their connection was
// known, which are not on record. vouched: see word.
func (t *words) track(va uint64, rkey uint32, vouched bool) int32 {
	w := t.add(va, rkey)
	if w != none {
		t.u[w] = unrest{gen: t.free.now(), barred: t.unknown}
		t.w[w].vouched = vouched
	}
	return w
}

// admit tracks the word of o, which the server has executed. If there is no room, it forgets a word that is
// out of use. It returns false if it finds none. Words of operations that the server may still refuse only
// get free places (track).
func (t *words) admit(o *op, now clock.Time, vouched bool) bool {
	if t.n == len(t.w) {
		t.evict(now)
	}
	w := t.track(o.va, o.rkey, vouched)
	if w != none {
		t.w[w].executed = true
	}
	return w != none
}

// mistrust notes that the word of o did not have the value that it should have had. The box believes no value
// of it until then.
func (t *words) mistrust(o *op, until clock.Time) {
	if w := t.of(o); w != none {
		t.w[w].doubt()
		t.u[w].barred = max(t.u[w].barred, until)
	}
}

// join counts o at word w: in order with its other operations, which go over connection lane, or not in
// order. In the second case the word's value is unknown until o leaves.
func (t *words) join(o *op, w, lane int32, ordered bool, now clock.Time) {
	v := &t.w[w]
	if o.word = w; ordered {
		v.lane = lane
		v.flight++
		return
	}
	if v.loose++; v.loose == 1 {
		t.u[w].loosened = now
	}
	v.doubt()
	o.flags |= fLoose
}

// joinFree counts o as a free operation: it changes memory, but not only one tracked word. The caller makes
// the words that o touches unknown.
func (t *words) joinFree(o *op) {
	if t.free.enter() {
		o.flags |= fOdd
	}
}

// leave takes o, at place at, which is not open any more, out of the counts of its word. done says that the
// server executed o. m has the other fields of o if o is a probe. leave returns true if the answer to o has
// told the word's value.
func (t *words) leave(o *op, at int32, m *more, done bool, now clock.Time) (filled bool) {
	if o.is(fReplaced) && o.word != lapsed {
		t.writes--
	}
	if o.word < 0 {
		if o.word == none && o.modifies() {
			t.free.leave(o.is(fOdd))
		}
		return false
	}
	v := &t.w[o.word]
	if o.is(fReplaced) {
		v.writes--
	}
	if o.is(fLoose) {
		v.loose--
		t.u[o.word].loosened = now
	} else {
		v.flight--
		if o.asAtomic() {
			v.atomics--
		}
	}
	if o.is(fProbe) && v.probe == at {
		filled = done && t.awaits(v)
		if v.doubt(); filled {
			t.believe(v, after(o.kind, o.prior, o.out, m.want, m.compareMask, m.swapMask))
			v.checked = now
		}
	}
	t.left(o.word, o, done)
	o.word = none
	return filled
}

// left notes that operation o, which was open, has left word w. done says that the server executed o.
func (t *words) left(w int32, o *op, done bool) {
	v := &t.w[w]
	switch {
	case done:
		v.executed = true
		if o.rkey != v.rkey && o.kind.atomic() && v.flight == 0 {
			// The memory region has a new R_Key, or the memory belongs to another region.
			v.rkey = o.rkey
			v.doubt()
		}
	case v.executed || v.flight|v.loose != 0 || v.queued:
		v.doubt()
	default:
		t.remove(w) // it was refused
	}
}
