package xdp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Bit vectors find the entry of a key with ranges. The key is divided into bytes. For each value of each byte there is a
// vector, which has a bit for each slot: 1 if the entry in the slot allows the value. The entries that match a key are the
// intersection of one vector for each byte and of a vector that says which slots are in use. Slots are in the order of the
// entries' ranks, so that the first bit of the intersection is the winner.
//
// A range is no product of sets of bytes, but few products together are a range: 3 for a range of 16 bits. Each of these pieces
// has a slot.
//
// The first word of the memory is the generation. The vector of slots in use and the slots' records are there twice: bit 1 of the
// generation says which half is in use. A change is written to the other half. Then one store lets the generation grow, and with it frames
// see the whole change; a process that is killed leaves its entries as they were before or after a change. A frame reads the generation
// before and after its look-up. If the two differ, the frame goes to the engine. So the half that is not in use, and the vectors of slots
// that are not, may be written at any time, without a grace period. While the generation is odd, all frames go to the engine.
type vectors struct {
	vectorsShape
	mem    *shared
	store  func(word int, v uint64) // what frames see is changed by this alone
	used   []*piece                 // in the order of ranks, and so of slots
	slots  []*piece                 // by slot
	latest *piece                   // that was put last
}

// piece is what is in a slot. An entry may have several pieces, with the same rank.
type piece struct {
	rank   uint64
	record uint32
	slot   int
	allows []allowed // by byte of the key
}

// allowed are values of a byte: those from low to high which have the bits want under mask.
type allowed struct{ mask, want, low, high uint8 }

func (a allowed) has(v int) bool {
	return uint8(v)&a.mask == a.want && uint8(v) >= a.low && uint8(v) <= a.high
}

// keyByte is a byte of a key: the bits of a word from bit shift on.
type keyByte struct{ word, shift, bits int }

// vectorsShape says where all is in the memory of bit vectors.
type vectorsShape struct {
	bytes []keyByte
	words int // of a vector: a power of two
	front int // words of others behind the generation
}

// Bounds of bit vectors.
const (
	maxVectorSlots = 2048
	maxVectorWork  = 1024 // words of vectors that a frame may look at
	maxPieces      = 64   // of an entry
	generationAt   = 0    // word
	halvesAt       = 8    // word of the two halves
)

func (s *vectorsShape) size() int            { return 64 * s.words }                       // slots
func (s *vectorsShape) half() int            { return s.words + s.size() }                 // words of a half
func (s *vectorsShape) live(half int) int    { return halvesAt + s.front + half*s.half() } // word of the vector of slots in use
func (s *vectorsShape) numbers(half int) int { return s.live(half) + s.words }             // word of the slots' records
func (s *vectorsShape) vector(n, v int) int  { return s.live(2) + s.words*(256*n+v) }      // word of a vector
func (s *vectorsShape) lowestAt() int        { return s.vector(len(s.bytes), 0) }          // word of the table of lowest
func (s *vectorsShape) memory() int          { return 8*s.lowestAt() + len(lowestBits()) } // bytes

// vectorBytes returns the bytes of a number of so many bits from word at of a key on, the most significant first.
func vectorBytes(at, bits int) (all []keyByte) {
	for low := (bits - 1) / 8 * 8; low >= 0; low -= 8 {
		all = append(all, keyByte{at + low/64, low % 64, min(8, bits-low)})
	}
	return all
}

// vectorsOf returns the shape for the entries of a table; ok is false if they would take too long to look at.
func vectorsOf(t *ir.Table) (s vectorsShape, ok bool) {
	for i := range t.Keys {
		s.bytes = append(s.bytes, vectorBytes(t.Keys[i].At, t.Keys[i].Bits)...)
	}
	return s.sized(2 * t.Size)
}

// sized sets the number of slots.
func (s vectorsShape) sized(slots int) (vectorsShape, bool) {
	s.words = 1 << bits.Len(uint(max(1, min(slots, maxVectorSlots))-1)/64)
	for s.words > 1 && s.words*len(s.bytes) > maxVectorWork {
		s.words /= 2
	}
	return s, s.words*len(s.bytes) <= maxVectorWork
}

// lowestBits is a table that says which bit of a word is the lowest one: the word with that bit alone, times deBruijn, has the place in
// the table in its highest 6 bits.
func lowestBits() []byte {
	b := make([]byte, 64)
	for i := range 64 {
		b[uint64(deBruijn)<<i>>58] = byte(i)
	}
	return b
}

// deBruijn is a sequence in which all groups of 6 bits differ.
const deBruijn = 0x03f79d71b4cb0a89

func newVectors(shape vectorsShape, mem *shared) *vectors {
	v := &vectors{vectorsShape: shape, mem: mem, store: mem.store, slots: make([]*piece, shape.size())}
	copy(mem.mem[8*shape.lowestAt():], lowestBits())
	return v
}

// grow has frames notice that something changes.
func (v *vectors) grow(by uint64) { v.store(generationAt, *v.mem.word(generationAt)+by) }

// nextGeneration has frames notice a change that one store makes.
func nextGeneration(mem *shared, word int) { atomic.AddUint64(mem.word(word), 2) }

// halfOf returns which half is in use.
func halfOf(generation uint64) int { return int(generation >> 1 & 1) }

// change stores words of a half, by their distance from its beginning. Frames see all or none.
func (v *vectors) change(words map[int]uint64) {
	was := halfOf(*v.mem.word(generationAt))
	for _, half := range []int{1 - was, was} {
		for w, x := range words {
			v.store(v.live(half)+w, x)
		}
		if half != was {
			v.grow(2)
		}
	}
}

// inUse reports whether a slot is in use.
func inUse(mem *shared, s *vectorsShape, half, slot int) bool {
	return *mem.word(s.live(half) + slot/64)>>(slot%64)&1 != 0
}

// show puts slots in use, and hides others.
func (v *vectors) show(in, out []*piece) {
	live := v.live(halfOf(*v.mem.word(generationAt)))
	now := map[int]uint64{}
	word := func(p *piece) int {
		w := p.slot / 64
		if _, there := now[w]; !there {
			now[w] = *v.mem.word(live + w)
		}
		return w
	}
	for _, p := range out {
		now[word(p)] &^= 1 << (p.slot % 64)
	}
	for _, p := range in {
		now[word(p)] |= 1 << (p.slot % 64)
	}
	v.change(now)
}

// write writes the vectors of a slot that is not in use.
func (v *vectors) write(p *piece) {
	bit := uint64(1) << (p.slot % 64)
	for n, a := range p.allows {
		for b := range 1 << v.bytes[n].bits {
			w := v.vector(n, b) + p.slot/64
			now := *v.mem.word(w) &^ bit
			if a.has(b) {
				now |= bit
			}
			if now != *v.mem.word(w) {
				v.store(w, now)
			}
		}
	}
	for half := range 2 {
		v.store(v.numbers(half)+p.slot, uint64(p.record)+1)
	}
}

// ofRank returns the place of the first piece of a rank among all pieces, and how many it has.
func (v *vectors) ofRank(rank uint64) (i, n int) {
	i, _ = slices.BinarySearchFunc(v.used, rank, func(p *piece, rank uint64) int { return cmp.Compare(p.rank, rank) })
	for i+n < len(v.used) && v.used[i+n].rank == rank {
		n++
	}
	return i, n
}

// put adds an entry, or has an entry of the same rank refer to another record, and returns the former one.
func (v *vectors) put(rank uint64, pieces [][]allowed, record uint32) (old uint32, had bool, err error) {
	i, n := v.ofRank(rank)
	if n > 0 {
		old = v.used[i].record
		now := map[int]uint64{}
		for _, p := range v.used[i : i+n] {
			p.record = record
			now[v.words+p.slot] = uint64(record) + 1
		}
		v.change(now)
		return old, true, nil
	}
	if len(v.used)+len(pieces) > v.size() {
		return 0, false, fmt.Errorf("the pieces of its entries' ranges are more than %d", v.size())
	}
	var all []*piece
	for k, slot := 0, v.room(i, len(pieces)); k < len(pieces); k++ {
		p := &piece{rank, record, slot + k, pieces[k]}
		v.slots[p.slot] = p
		v.write(p)
		all = append(all, p)
	}
	v.used = slices.Insert(v.used, i, all...)
	v.latest = all[0]
	v.show(all, nil)
	return 0, false, nil
}

// delete takes an entry out and returns its record.
func (v *vectors) delete(rank uint64) (record uint32, err error) {
	i, n := v.ofRank(rank)
	if n == 0 {
		return 0, errors.New("it is not there")
	}
	gone := v.used[i : i+n]
	record = gone[0].record
	v.show(nil, gone)
	for _, p := range gone {
		v.slots[p.slot] = nil
	}
	v.used = slices.Delete(v.used, i, i+n)
	return record, nil
}

// room returns the first of n free slots in front of the piece with place i.
func (v *vectors) room(i, n int) int {
	before, behind := -1, v.size()
	if i > 0 {
		before = v.used[i-1].slot
	}
	if i < len(v.used) {
		behind = v.used[i].slot
	}
	switch free := behind - before - 1; {
	case free < n:
		v.spread(i, n)
		return v.room(i, n)
	case i > 0 && v.latest != nil && v.used[i-1].rank == v.latest.rank: // entries come in the order of their ranks
		return before + 1
	case i < len(v.used) && v.latest != nil && v.used[i].rank == v.latest.rank: // or in the opposite order
		return behind - n
	default:
		return before + 1 + (free-n)/2
	}
}

// spread moves pieces so that there are n free slots in front of the piece with place i. It moves those near by: the larger the
// region that it looks at, the more free slots must be in the region, so that the next entries find room. Half of the region's other
// free slots are in front of the piece, too, and the rest between all pieces. The order of pieces stays the same at any time.
func (v *vectors) spread(i, n int) {
	middle := v.size()
	if i < len(v.used) {
		middle = v.used[i].slot
	}
	place := func(slot int) int {
		k, _ := slices.BinarySearchFunc(v.used, slot, func(p *piece, slot int) int { return cmp.Compare(p.slot, slot) })
		return k
	}
	low, high, from, to, free := 0, 0, 0, 0, 0
	for half := 8; ; half *= 2 {
		low, high = max(0, middle-half), min(v.size(), middle+half)
		from, to = place(low), place(high)
		free = high - low - (to - from) - n
		if free >= 0 && (free >= (to-from)*half/(4*v.size()) || high-low == v.size()) {
			break
		}
	}
	target := func(k int) int {
		at := low + k - from + (k-from)*(free-free/2)/(to-from)
		if k >= i {
			at += n + free/2
		}
		return at
	}
	for k := to - 1; k >= from; k-- {
		if at := target(k); at > v.used[k].slot {
			v.move(k, at)
		}
	}
	for k := from; k < to; k++ {
		if at := target(k); at < v.used[k].slot {
			v.move(k, at)
		}
	}
}

// move moves a piece to a free slot. No other piece is between the two slots.
func (v *vectors) move(k, to int) {
	from := v.used[k]
	p := &piece{from.rank, from.record, to, from.allows}
	v.write(p)
	v.show([]*piece{p}, []*piece{from})
	v.slots[from.slot], v.slots[to], v.used[k] = nil, p, p
	if v.latest == from {
		v.latest = p
	}
}

// piecesOf returns the pieces of an entry.
func piecesOf(t *ir.Table, r *ir.Row) ([][]allowed, error) {
	all := [][]allowed{nil}
	for i := range t.Keys {
		k := &t.Keys[i]
		if all = times(all, piecesOfField(vectorBytes(k.At, k.Bits), r.Key, r.Mask, k.Match == ir.Range)); len(all) > maxPieces {
			return nil, fmt.Errorf("an entry's ranges have more than %d pieces", maxPieces)
		}
	}
	return all, nil
}

// piecesOfField returns the pieces of a field: of a value and a mask, or of a range, whose highest value is mask. A range without numbers has none.
func piecesOfField(bytes []keyByte, value, mask []uint64, isRange bool) [][]allowed {
	var low, high []uint8
	for _, b := range bytes {
		low, high = append(low, uint8(value[b.word]>>b.shift)), append(high, uint8(mask[b.word]>>b.shift))
	}
	switch {
	case isRange && slices.Compare(low, high) > 0:
		return nil
	case isRange:
		return piecesOfRange(low, high)
	}
	var one []allowed
	for i := range low {
		one = append(one, allowed{high[i], low[i] & high[i], 0, 255})
	}
	return [][]allowed{one}
}

// times returns a piece for each pair of pieces of two fields.
func times(a, b [][]allowed) (all [][]allowed) {
	for _, x := range a {
		for _, y := range b {
			all = append(all, slices.Concat(x, y))
		}
	}
	return all
}

// piecesOfRange returns the pieces of a range of a number whose bytes are given, the most significant first. No two have a number in
// common.
func piecesOfRange(low, high []uint8) [][]allowed {
	if len(low) == 0 {
		return [][]allowed{nil}
	}
	from, to, rest := int(low[0]), int(high[0]), len(low)-1
	least, most := slices.Repeat([]uint8{0}, rest), slices.Repeat([]uint8{255}, rest)
	first := func(low, high int) [][]allowed { return [][]allowed{{{0, 0, uint8(low), uint8(high)}}} }
	if from == to {
		return times(first(from, to), piecesOfRange(low[1:], high[1:]))
	}
	var all [][]allowed
	if !slices.Equal(low[1:], least) {
		all = times(first(from, from), piecesOfRange(low[1:], most))
		from++
	}
	if !slices.Equal(high[1:], most) {
		all = append(all, times(first(to, to), piecesOfRange(least, high[1:]))...)
		to--
	}
	if from <= to {
		any := first(from, to)
		for range rest {
			any[0] = append(any[0], allowed{0, 0, 0, 255})
		}
		all = append(all, any...)
	}
	return all
}

// vectorTable is a table whose entries bit vectors find. A record is a key, the masks or the highest values of ranges, and the entry.
type vectorTable struct {
	*vectors
	records *shared
	recs    *rest
}

// vectorRecord returns the number of words of a record, and how many records there are.
func vectorRecord(t *ir.Table) (words, records int) {
	return 2*t.KeyWords + entrySize(t)/8, max(1, t.Size) + spare(t.Size)
}

func (x *Executor) addVectors(t *ir.Table) (v *vectorTable, err error) {
	shape, _ := vectorsOf(t)
	words, records := vectorRecord(t)
	v = &vectorTable{recs: x.graces.rest(records)}
	mem, err := x.newShared("p4_vectors", shape.memory())
	if err == nil {
		v.vectors = newVectors(shape, mem)
		v.records, err = x.newShared("p4_records", 8*words*records)
	}
	return v, err
}

func (v *vectorTable) putRow(t *ir.Table, r *ir.Row, rank uint64, value []uint64) error {
	pieces, err := piecesOf(t, r)
	if err != nil {
		return err
	}
	n, err := v.recs.take()
	if err != nil {
		return err
	}
	words, _ := vectorRecord(t)
	for w, x := range slices.Concat(r.Key, r.Mask, value) {
		v.records.store(int(n)*words+w, x)
	}
	old, had, err := v.put(rank, pieces, n)
	switch {
	case err != nil:
		v.recs.back(n)
	case had:
		v.recs.leave(old)
	}
	return err
}

func (v *vectorTable) deleteRow(rank uint64) error {
	n, err := v.delete(rank)
	if err == nil {
		v.recs.leave(n)
	}
	return err
}

// byteAt is where a byte of a key is whose words are at an offset of the stack.
func byteAt(at int, b keyByte) int {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // the most significant byte is the first
		return at + 8*b.word + 7 - b.shift/8
	}
	return at + 8*b.word + b.shift/8
}

// whyChanging is why a frame goes to the engine that has met a change of entries.
const whyChanging = "its entries change while the frame looks at them"

// readGeneration reads the generation of a map, and jumps to changing if it is odd. It changes R1 and R4.
func readGeneration(g *emitter, fd, word, to int, changing string) {
	g.add(asm.LoadMapValue(asm.R4, fd, uint32(8*word)))
	g.load(asm.R1, asm.R4, 0, asm.DWord)
	g.add(asm.JSet.Imm(asm.R1, 1, changing))
	g.keep(asm.RFP, to, asm.R1, asm.DWord)
}

// checkGeneration jumps to changing if the generation has grown. It changes R3 and R4.
func checkGeneration(g *emitter, fd, word, at int, changing string) {
	g.add(asm.LoadMapValue(asm.R3, fd, uint32(8*word)))
	g.load(asm.R3, asm.R3, 0, asm.DWord)
	g.load(asm.R4, asm.RFP, at, asm.DWord)
	g.compareRegs(asm.JNE, asm.R3, asm.R4, changing)
}

// exitEvery is behind how many bytes a search leaves a word of vectors in which it has found no slot. With 4, the verifier of Linux 6.18 comes to
// the end of its million of instructions at two tables with ranges of 128 bits, and not at three.
const exitEvery = 8

// searchesVectors reports whether a program has bit vectors.
func searchesVectors(p *ir.Program) bool {
	return len(usesOf(p)) > 0 || slices.ContainsFunc(p.Tables, func(t ir.Table) bool {
		kind, why := sortOf(&t)
		return kind == ranged && why == ""
	})
}

// intersect looks for slots of the key at offset probe of the stack. It goes on behind the code with the slots in R2, of the word whose
// offset is in R5; without any, with R2 0. generation is where the generation is on the stack. It changes R0, R1, R3 and R4.
func (g *emitter) intersect(fd int, s *vectorsShape, probe, generation int) {
	again, next, found := g.fresh(), g.fresh(), g.fresh()
	g.imm(asm.R5, 0)
	g.label(again)
	toHalf(g, fd, s.live(0), s, asm.R4, generation)
	g.with(asm.Add, asm.R4, asm.R5)
	g.load(asm.R2, asm.R4, 0, asm.DWord)
	for n, b := range s.bytes {
		if n == 0 || n%exitEvery == 0 && !g.opt.FewExits {
			g.whenImm(asm.JEq, asm.R2, 0, next)
		}
		g.load(asm.R1, asm.RFP, byteAt(probe, b), asm.Byte)
		g.calc(asm.LSh, asm.R1, bits.TrailingZeros(uint(8*s.words)))
		g.add(asm.LoadMapValue(asm.R3, fd, uint32(8*s.vector(n, 0))))
		g.with(asm.Add, asm.R3, asm.R1)
		g.with(asm.Add, asm.R3, asm.R5)
		g.load(asm.R0, asm.R3, 0, asm.DWord)
		g.with(asm.And, asm.R2, asm.R0)
	}
	g.whenImm(asm.JNE, asm.R2, 0, found)
	g.label(next)
	g.calc(asm.Add, asm.R5, 8)
	g.whenImm(asm.JLT, asm.R5, 8*s.words, again)
	g.imm(asm.R2, 0)
	g.label(found)
}

// toHalf leaves the address of a word of the half in use in r, which is word at of the first half. It changes R0.
func toHalf(g *emitter, fd, at int, s *vectorsShape, r asm.Register, generation int) {
	g.load(asm.R0, asm.RFP, generation, asm.DWord)
	g.calc(asm.And, asm.R0, 2)
	g.calc(asm.Mul, asm.R0, 4*s.half())
	g.add(asm.LoadMapValue(r, fd, uint32(8*at)))
	g.with(asm.Add, r, asm.R0)
}

// lookVectors leaves the entry of the packet's key in rEntry; none: it jumps to miss.
func (g *pipes) lookVectors(n int, t *ir.Table, miss string) {
	probe := keyAt(t.KeyWords)
	generation := probe - 8
	s, _ := vectorsOf(t)
	words, records := vectorRecord(t)
	fd := g.maps.slots[n]
	changing, hit, out := g.fresh(), g.fresh(), g.fresh()
	for i := range t.Keys {
		k := &t.Keys[i]
		for w := range k.Words {
			g.key(k, w)
			g.keep(asm.RFP, probe+8*(k.At+w), asm.R1, asm.DWord)
		}
	}
	readGeneration(g.emitter, fd, generationAt, generation, changing)
	g.intersect(fd, &s, probe, generation)
	g.whenImm(asm.JNE, asm.R2, 0, hit)
	checkGeneration(g.emitter, fd, generationAt, generation, changing)
	g.jump(miss)
	g.label(hit)
	// The number of the lowest bit, and with it the slot.
	g.calc(asm.Mov, asm.R1, 0)
	g.with(asm.Sub, asm.R1, asm.R2)
	g.with(asm.And, asm.R1, asm.R2)
	g.imm(asm.R3, deBruijn)
	g.with(asm.Mul, asm.R1, asm.R3)
	g.calc(asm.RSh, asm.R1, 58)
	g.add(asm.LoadMapValue(asm.R3, fd, uint32(8*s.lowestAt())))
	g.with(asm.Add, asm.R3, asm.R1)
	g.load(asm.R1, asm.R3, 0, asm.Byte)
	g.calc(asm.And, asm.R1, 63)
	g.calc(asm.LSh, asm.R5, 3)
	g.with(asm.Add, asm.R1, asm.R5)
	g.calc(asm.LSh, asm.R1, 3)
	toHalf(g.emitter, fd, s.numbers(0), &s, asm.R3, generation)
	g.with(asm.Add, asm.R3, asm.R1)
	g.load(asm.R1, asm.R3, 0, asm.DWord)
	checkGeneration(g.emitter, fd, generationAt, generation, changing)
	g.whenImm(asm.JEq, asm.R1, 0, changing)
	g.calc(asm.Sub, asm.R1, 1)
	g.whenImm(asm.JGE, asm.R1, records, changing)
	g.calc(asm.Mul, asm.R1, 8*words)
	g.address(rEntry, g.maps.tables[n])
	g.with(asm.Add, rEntry, asm.R1)
	g.calc(asm.Add, rEntry, 16*t.KeyWords)
	g.jump(out)
	g.label(changing)
	g.pass(whyChanging)
	g.label(out)
}
