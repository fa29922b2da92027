package swordbox

import (
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/tor/index"
)

// word is an aligned word of eight bytes that atomics go to, as the server
// will have it when all that was sent is executed. Values are numbers: in
// memory they lie in the server's byte order, which is little-endian. It is as
// long as a line of the processor's cache.
type word struct {
	va    uint64 // unaligned: nothing is here
	value uint64
	// belief is the number of the belief that the word has this value, as
	// words.beliefs counts; 0: the value is not known. With a probe, which has the
	// same meaning, it is the newest belief of any word when that was sent. See
	// words.believes.
	belief  uint64
	checked clock.Time // when an atomic was last sent as one
	rkey    uint32
	lane    int32 // connection on which its operations are in order
	// flight is the number of open ops on that connection that change it, and
	// nothing else; loose that of others that change it, and nothing else: while
	// there are any, nothing is known.
	flight, loose int32
	probe         int32 // op whose answer will tell the value; none
	atomics       int32 // open ops on that connection that go as atomics: WRITEs behind them may be executed before them
	writes        int32 // open ops that were atomics and go as WRITEs: what others do meanwhile they undo
	used          bool  // since the hand of the clock came by
	executed      bool  // the server has executed an operation on it
	vouched       bool  // settings.vouches for it
	queued        bool  // requests wait for it: unrest.first
}

// unrest says how long a word cannot be known; it lies beside word. While the
// word is known there is none.
type unrest struct {
	gen    uint64     // of the free operations that may change it
	barred clock.Time // until then strangers' requests may be under way
	// loosened is when the first of the open operations came that are not in
	// order with the word's others (word.loose), or the last one of these left.
	loosened clock.Time
	first    int32 // client that waits for it longest (waits); 0: none
}

// grace tells when operations are done that were open at some time, however
// many they are (RCU's grace periods: McKenney and Slingwine, 1998). Counted are
// the free operations: those that change memory and are not counted by one word.
// Each is of the generation that was the newest when it began; the newest and
// the one before may have open ones.
type grace struct {
	gen    uint64   // the newest
	open   [2]int32 // of the even and of the odd one
	wanted uint64   // the newest that somebody waits for
}

// enter counts an operation; leave must be given what it returns.
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

// now is the generation of the youngest operation that is open.
func (g *grace) now() uint64 {
	gen := g.gen
	g.wanted = gen
	g.turn()
	return gen
}

// turn begins a generation when somebody waits for the newest, and the one
// before is done.
func (g *grace) turn() {
	if g.wanted == g.gen && g.open[(g.gen-1)&1] == 0 {
		g.gen++
	}
}

// over reports whether all operations up to that generation are done.
func (g *grace) over(gen uint64) bool {
	return gen+1 < g.gen || gen+1 == g.gen && g.open[gen&1] == 0
}

// lineShift is the logarithm of a line of the processor's cache.
const lineShift = 6

// Memory is in blocks of 64 parts; the parts of the smallest are words, those of
// a larger one are blocks.
const (
	levels     = 3
	blockShift = 6 // logarithm of the parts of a block
	topShift   = 3 + levels*blockShift
	// mostWords and mostBlocks are how many words, and largest blocks, are looked
	// at for one operation. When it touches more, all words are doubted at once.
	mostWords, mostBlocks = 64, 64
)

// block says which parts of a block have words.
type block struct {
	key   uint64 // number of the block of its size, and size; free: see words.freeB
	parts uint64
}

// words is what is known of a server's memory: values of words, by address, and what
// under way may change them. Each open operation that changes memory is counted here,
// from join on until leave: as one of a word, in order with the word's others (flight)
// or not (loose), or as a free one (joinFree, grace). touch says what nobody follows. A
// value that believes vouches for is what the server will have when all that was sent
// is executed.
//
// Words know connections by number, and operations by place.
type words struct {
	w     []word
	u     []unrest // beside w
	n     int      // of w in use
	found int32    // last
	hand  int      // of the clock that finds words out of use
	born  int32    // places that something has, or had; the others are as they were made
	spare []int32  // of these, those that nothing has
	ix    index.Index
	b     []block
	// freeB is the first block that is free; none is when it is len(b). Behind free block k
	// comes block k+1+key, modulo 2^64: all are in order as long as nothing was written.
	freeB uint64
	bx    index.Index
	seed  uint64           // keys the hashes of both
	hits  [mostWords]int32 // of over

	beliefs uint64 // numbers given to beliefs (word.belief)
	shaken  uint64 // those up to this one are none any more
	free    grace
	unrest  unrest     // of all words
	writes  int32      // open ops that go as WRITEs of what was known
	unknown clock.Time // until then requests that are not on record may be under way
}

// newWords makes the table. It writes nothing of it: memory that is not used yet takes
// no time at a start, and no room.
func newWords(n int) words {
	t := words{free: grace{gen: 1}, w: make([]word, n), u: make([]unrest, n), spare: make([]int32, 0, n), ix: index.New(n), b: make([]block, levels*n), bx: index.New(levels * n)}
	t.w[0].va = nowhere // find looks there
	return t
}

// nowhere is no word's address.
const nowhere = ^uint64(0)

func hash(v uint64) uint32 { return uint32(index.Mix(v)) }

// wordHash is the hash, keyed so that no client can choose words that collide, of the word at va, which is aligned. Those of words that share a
// line of memory follow each other, so that they share one of the index.
func (t *words) wordHash(va uint64) uint32 {
	return hash(va>>lineShift^t.seed)&^7 | uint32(va>>3)&7
}

// find is the word at va, which is aligned; none if it is not tracked.
func (t *words) find(va uint64) int32 {
	if t.w[t.found].va == va {
		return t.found // one operation asks several times
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

// shift is the logarithm of the length of a part of a block of that level.
func shift(level uint) uint { return 3 + level*blockShift }

// blockOf is the number of va's block of a level, as block.key has it.
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

// add makes a word; none when there is no room.
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

// remove forgets word i, which no open operation has.
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

// mostUsed is how many words are looked at to find one that is out of use.
const mostUsed = 16

// evict forgets a word that is out of use, if one of the next is.
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

// over is a list of the words that [va, va+n) overlaps, good until the next
// call; false when there may be too many to be looked at.
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

// next is the first word from va, which is aligned, to last; none when there is
// none.
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

// believes reports whether the value of v is known. Then nothing that is not in
// order with its operations is under way.
func (t *words) believes(v *word) bool { return v.belief > t.shaken && v.probe == none }

// awaits reports whether an answer that is under way will tell the value of v.
func (t *words) awaits(v *word) bool { return v.probe != none && v.belief >= t.shaken }

// believe notes that v has that value. The caller knows that v is settled.
func (t *words) believe(v *word, value uint64) {
	v.value = value
	if !t.believes(v) {
		t.beliefs++
		v.belief = t.beliefs
	}
}

// settled reports whether all is done that may change word w and is not in
// order with its operations, but for what the word itself counts.
func (t *words) settled(w int32, now clock.Time) bool {
	u := &t.u[w]
	return t.free.over(max(u.gen, t.unrest.gen)) && now >= max(u.barred, t.unrest.barred)
}

// doubt notes that word v may change at any time: its value is not known any
// more, nor what the operations that are under way to it find.
func (v *word) doubt() { v.belief, v.probe = 0, none }

// doubtAll doubts all words at once.
func (t *words) doubtAll() {
	t.beliefs++
	t.shaken = t.beliefs
}

// vouch notes which words the operator vouches for. What was believed of one before says nothing: others
// may have written there.
func (t *words) vouch(cfg *settings) {
	for i := range t.w[:t.born] {
		w := &t.w[i]
		was := w.vouched
		if w.vouched = w.va != nowhere && cfg.vouches(w.va); w.vouched && !was {
			w.doubt()
		}
	}
}

// touch doubts the words in [va, va+ln), which an operation that is not theirs
// may change, and reports whether it must wait: while WRITEs that take the place
// of atomics are open to one of these words, over another connection than l. The
// words are not settled before until, and before the operations up to gen are
// done; any: there are such words.
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

// touchAll is touch for all words.
func (t *words) touchAll(gen uint64, until clock.Time) (wait bool) {
	t.doubtAll()
	t.unrest.gen, t.unrest.barred = max(t.unrest.gen, gen), max(t.unrest.barred, until)
	return t.writes > 0
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

// of is the word that o is all about; none if it is not tracked.
func (t *words) of(o *op) int32 {
	if t.w[t.found].va == o.va && o.len == 8 { // one operation asks several times
		return t.found
	}
	if o.len == 0 || o.wide() {
		return none
	}
	return t.find(o.va &^ 7)
}

// again is the word of o, which was about word w when it came.
func (t *words) again(o *op, w int32) int32 {
	if uint(w) < uint(len(t.w)) && t.w[w].va == o.va {
		return w
	}
	return t.of(o)
}

// track makes a word; none when there is no room. Open operations that may change it
// are not in order with what comes, and neither is what passed before the numbering of
// its connection was known, which is not on record. vouched: see word.
func (t *words) track(va uint64, rkey uint32, vouched bool) int32 {
	w := t.add(va, rkey)
	if w != none {
		t.u[w] = unrest{gen: t.free.now(), barred: t.unknown}
		t.w[w].vouched = vouched
	}
	return w
}

// admit tracks the word of o, which the server has executed, though there may be no
// room: a word that is out of use is forgotten. False when there is none. Before, as
// operations that the server may refuse come, words take only room that nobody has.
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

// mistrust notes that the word of o is not what it should have been: nothing is
// believed of it until then.
func (t *words) mistrust(o *op, until clock.Time) {
	if w := t.of(o); w != none {
		t.w[w].doubt()
		t.u[w].barred = until
	}
}

// join counts o among the operations of word w: in order with the others, over the
// carrier with that number, or not; then the word's value is not known until it left.
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

// joinFree counts o, which changes memory that is not one word's: what it touches is
// not known until it left.
func (t *words) joinFree(o *op) {
	if t.free.enter() {
		o.flags |= fOdd
	}
}

// leave takes o, in place at, which is not open any more, out of the counts of its word.
// done: the server has executed it. m is what is beside o, if it is a probe. True when its answer tells
// the word's value.
func (t *words) leave(o *op, at int32, m *more, done bool, now clock.Time) (filled bool) {
	if o.is(fReplaced) {
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

// left notes that op o has left word w, for which it was open. done: the server
// has executed it.
func (t *words) left(w int32, o *op, done bool) {
	v := &t.w[w]
	switch {
	case done:
		v.executed = true
		if o.rkey != v.rkey && o.kind.atomic() && v.flight == 0 {
			// The region has a new R_Key, or the memory another region.
			v.rkey = o.rkey
			v.doubt()
		}
	case v.executed || v.flight|v.loose != 0 || v.queued:
		v.doubt()
	default:
		t.remove(w) // it was refused
	}
}
