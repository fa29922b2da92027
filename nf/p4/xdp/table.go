package xdp

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// An entry in the kernel's maps, in words of the machine's order: its number (heritage.go) and what it runs, 32 bits each, its rank, whose
// lower half is the entry's row in the Switch (rankOf), and the action's data. It runs an action, 1 + its number, or a member or a group of an action profile (profile.go). The entry with the lowest rank wins. A default entry is one, too.
const (
	entryNo   = 0
	entryAct  = 4
	entryRank = 8
	entryData = 16
)

// entrySize is the length of an entry of a table.
func entrySize(t *ir.Table) int { return entryData + 8*t.DataWords }

// A word for each table says which of two places has the default entry, 0 or 1, and from bit 1 on where frames look for an entry. It is one word, so that a
// frame sees both as they were at one time.
const (
	tablePlace   = 1      // a bit
	tableEmpty   = 0      // not at all: there is none
	tableFull    = 1 << 1 // in its maps
	tableStopped = 1 << 2 // not in the kernel: the maps may lack something
)

// maxMasks is the highest number of different masks in the kernel for a table with ternary keys. It is small
// because each mask costs a look-up.
const maxMasks = 8

// A table of masks in the kernel: a word whose bits say which masks are in use, the masks, and the generation (vectors.go).
func masksSize(t *ir.Table) int { return 8 * (2 + maxMasks*t.KeyWords) }

func masksGeneration(t *ir.Table) int { return 1 + maxMasks*t.KeyWords }

// sort says which kind of map holds the entries of a table.
type sort uint8

const (
	keyless sort = iota
	direct       // a cuckoo
	stepped      // strides
	trie         // the kernel's, of other tables with an LPM field
	tuples       // a cuckoo of masked keys
	ranged       // bit vectors, of tables with ranges
)

// sortOf returns the kind of map for a table, or the reason why the table cannot be translated.
func sortOf(t *ir.Table) (sort, string) {
	lpm := 0
	for _, k := range t.Keys {
		if k.Field != nil && k.Field.Varbit {
			return 0, "its key has a field of variable length"
		}
		if k.Unknown {
			return 0, "its key has a field of a header stack's element"
		}
		if k.Match == ir.LPM {
			lpm = k.Bits
		}
	}
	words := t.KeyWords + 2
	switch {
	case t.Profile != nil && !fitsProfile(t.Profile):
		return 0, fmt.Sprintf("its action profile may have %d members", t.Profile.Size)
	case words > maxKeyWords:
		return 0, fmt.Sprintf("its key has %d words, more than %d", t.KeyWords, maxKeyWords-2)
	case t.DataWords > maxDataWords:
		return 0, fmt.Sprintf("its actions have %d words of parameters, more than %d", t.DataWords, maxDataWords)
	case t.Size > maxEntries || t.Counters && t.Size > maxCounters:
		return 0, fmt.Sprintf("it may have %d entries", t.Size)
	case len(t.Keys) == 0:
		return keyless, ""
	case t.Kind == ir.Exact:
		if _, ok := shapeOf(t, t.KeyWords); ok {
			return direct, ""
		}
		return 0, fmt.Sprintf("it may have %d entries", t.Size)
	case t.Kind == ir.LPM && fitsStrides(t):
		return stepped, ""
	case t.Kind == ir.LPM && lpm > 64 && lpm != 128:
		return 0, fmt.Sprintf("it has an LPM field of %d bits, which is more than 64 and not 128", lpm)
	case t.Kind == ir.LPM && t.Size > 0:
		return trie, ""
	}
	if slices.ContainsFunc(t.Keys, func(k ir.Key) bool { return k.Match == ir.Range }) {
		if _, ok := vectorsOf(t); !ok {
			return 0, fmt.Sprintf("its key with ranges has %d bits", keyBits(t))
		}
		if words, records := vectorRecord(t); 8*words*records <= maxMemory {
			return ranged, ""
		}
	} else if _, ok := shapeOf(t, t.KeyWords+1); ok {
		return tuples, ""
	}
	return 0, fmt.Sprintf("it may have %d entries", t.Size)
}

// Bounds of tables and counters in the kernel. Counters are per processor.
const (
	maxKeyWords  = 24
	maxDataWords = 64
	maxEntries   = 1 << 24
	maxCounters  = 1 << 18
)

func keyBits(t *ir.Table) (n int) {
	for i := range t.Keys {
		n += t.Keys[i].Bits
	}
	return n
}

// key leaves word w of the packet's key in R1.
func (g *pipes) key(k *ir.Key, w int) {
	if k.Field == nil {
		g.readValid(k.Valid, asm.R1)
	} else {
		skip := g.fresh()
		if k.Valid != nil {
			g.readValid(k.Valid, asm.R1)
			g.whenImm(asm.JEq, asm.R1, 0, skip)
		}
		g.readField(k.Field, w, asm.R1)
		g.label(skip)
	}
	if w < len(k.Mask) && k.Mask[w] != ones(min(64, k.Bits-64*w)) {
		g.imm(asm.R0, k.Mask[w])
		g.with(asm.And, asm.R1, asm.R0)
	}
}

// table translates a table: its look-up, its actions and what follows them.
func (g *pipes) table(n int, t *ir.Table) {
	kind, why := sortOf(t)
	if why != "" {
		unsupported("%s", why)
	}
	own := func(s string) string { return fmt.Sprintf("%s-table%d-%s", g.in, n, s) }
	miss := own("miss")
	none := miss // of the look-up
	counter := -1
	if t.Counters {
		counter = g.mark()
		g.marked = append(g.marked, marked{counter, g.maps.places.direct[n], numbersOf(t, g.opt.Outlives)})
	}
	if kind != keyless || !t.ConstDefault {
		stopped, going := g.fresh(), g.fresh()
		g.add(asm.LoadMapValue(asm.R1, g.maps.defaults, uint32(g.maps.defaultAt[n])))
		g.load(asm.R1, asm.R1, 0, asm.DWord)
		g.put(atDefault, asm.R1)
		g.whenImm(asm.JSet, asm.R1, tableStopped, stopped)
		g.whenImm(asm.JSet, asm.R1, tableFull, going)
		g.jump(miss)
		g.label(stopped)
		g.pass(whyStopped)
		g.label(going)
		if !t.ConstDefault {
			none = own("none")
		}
	}
	if kind == keyless {
		g.label(miss)
	} else {
		switch kind {
		case direct:
			g.lookCuckoo(n, t, none)
		case stepped:
			g.lookStrides(n, t, none)
		case trie:
			g.lookTrie(n, t, none)
		case ranged:
			g.lookVectors(n, t, none)
		default:
			g.lookTuples(n, t, none)
		}
		g.found(n, t, counter)
		g.entryMeter(n, t)
		g.set(atMissed, 0)
		g.get32(asm.R1, rEntry, entryAct)
		next := func(a int) int {
			if t.Branches {
				return t.Hit
			}
			return t.Next[a]
		}
		after := t.BaseMiss
		if t.Branches {
			after = t.Hit
		}
		g.choose(t, after)
		g.actions(t, own("hit"), next)
		if none != miss {
			g.label(none)
			g.unchanged(n, miss)
		}
		g.label(miss)
		g.set(atMissed, 1)
	}
	g.missed(n, t, counter, own)
}

// unchanged goes on at miss if the table's word is still what it was when the frame began to look for an entry. Else the frame goes to the engine: it might see a
// change of the default entry, and not the change of an entry before it. A frame meets at most one change of the place, because a grace period is between two.
func (g *pipes) unchanged(n int, miss string) {
	g.add(asm.LoadMapValue(asm.R2, g.maps.defaults, uint32(g.maps.defaultAt[n])))
	g.load(asm.R2, asm.R2, 0, asm.DWord)
	g.get(asm.R1, atDefault)
	g.compareRegs(asm.JEq, asm.R1, asm.R2, miss)
	g.pass(whyChanging)
}

// missed translates what a table does after a miss.
func (g *pipes) missed(n int, t *ir.Table, counter int, own func(string) string) {
	if t.Counters {
		g.add(storeImm(rState, int16(counter), int64(t.Size)+1, asm.DWord))
	}
	g.missMeter(n, t)
	none := t.BaseMiss
	if t.Branches {
		none = t.Miss
	}
	next := func(a int) int {
		if t.Branches {
			return t.Miss
		}
		return t.Next[a]
	}
	if t.ConstDefault {
		if t.Initial < 0 {
			g.toNode(none)
			return
		}
		g.action(t.Initial, argument{data: t.InitData}, next(t.Initial))
		return
	}
	g.add(asm.LoadMapValue(rEntry, g.maps.defaults, uint32(g.maps.defaultAt[n]+8)))
	g.get(asm.R1, atDefault)
	g.calc(asm.And, asm.R1, tablePlace)
	g.calc(asm.Mul, asm.R1, entrySize(t))
	g.with(asm.Add, rEntry, asm.R1)
	g.get32(asm.R1, rEntry, entryAct)
	g.whenImm(asm.JEq, asm.R1, 0, g.nodeLabel(none))
	g.choose(t, none)
	g.actions(t, own("miss"), next)
}

// actions translates the actions of a table. R1 is 1 + the number of the action that runs, rEntry its entry.
func (g *pipes) actions(t *ir.Table, own string, next func(action int) int) {
	label := func(a int) string { return fmt.Sprintf("%s-%d", own, a) }
	seen := map[int]bool{}
	for _, a := range t.Actions {
		if !seen[a] {
			seen[a] = true
			g.whenImm(asm.JEq, asm.R1, a+1, label(a))
		}
	}
	g.pass(whyForeign)
	for _, a := range t.Actions {
		if seen[a] {
			seen[a] = false
			g.label(label(a))
			g.action(a, argument{entry: true}, next(a))
		}
	}
}

// found notes that rEntry was hit, for its counter and its timeout.
func (g *pipes) found(n int, t *ir.Table, counter int) {
	if !t.Counters && !t.Timeout {
		return
	}
	g.get32(asm.R1, rEntry, entryNo)
	if t.Counters {
		g.with(asm.Mov, asm.R2, asm.R1)
		g.calc(asm.Add, asm.R2, 1)
		g.put(counter, asm.R2)
	}
	if t.Timeout {
		places := numbersOf(t, g.opt.Outlives)
		if places > maxDirect/8 {
			unsupported("%d entries with timeouts", t.Size)
		}
		skip := g.fresh()
		g.whenImm(asm.JGE, asm.R1, places, skip)
		g.cell(g.maps.hits[n], asm.R1)
		g.add(storeImm(asm.R2, 0, 1, asm.DWord))
		g.label(skip)
	}
}

// maxDirect is the longest value, in bytes, of a map whose memory the program addresses itself.
const maxDirect = 1 << 22

// lookUp leaves the map's value for the key at offset at of the stack in R0, or jumps to miss.
func (g *emitter) lookUp(fd, at int, miss string) {
	g.add(asm.LoadMapPtr(asm.R1, fd))
	g.with(asm.Mov, asm.R2, asm.RFP)
	g.calc(asm.Add, asm.R2, at)
	g.add(asm.FnMapLookupElem.Call())
	g.whenImm(asm.JEq, asm.R0, 0, miss)
}

// keyAt returns the offset on the stack of a key of so many words.
func keyAt(words int) int { return loopAt - 8*words }

// trieBits returns the number of bits of a trie's key before the LPM field, and of the whole key.
func trieBits(t *ir.Table) (front, all int) {
	for _, k := range t.Keys {
		all += 64 * k.Words
		if k.Match != ir.LPM {
			front += 64 * k.Words
		}
	}
	return front, all
}

// lookTrie looks up a key in the kernel's trie. The key is a length, the exact fields and the LPM field, each
// in words in network byte order; the LPM field is aligned to the left.
func (g *pipes) lookTrie(n int, t *ir.Table, miss string) {
	_, all := trieBits(t)
	at := keyAt(all / 64)
	g.add(storeImm(asm.RFP, int16(at-4), int64(all), asm.Word))
	to := at
	for _, last := range []bool{false, true} {
		for i := range t.Keys {
			k := &t.Keys[i]
			if (k.Match == ir.LPM) != last {
				continue
			}
			for w := k.Words - 1; w >= 0; w-- {
				g.key(k, w)
				if last && k.Bits < 64 {
					g.calc(asm.LSh, asm.R1, 64-k.Bits)
				}
				g.swap(asm.R1, 64)
				g.keep(asm.RFP, to, asm.R1, asm.DWord)
				to += 8
			}
		}
	}
	g.lookUp(g.maps.tables[n], at-4, miss)
	g.with(asm.Mov, rEntry, asm.R0)
}

// rCandidate is an entry that may win. Nothing else uses the register in pipelines.
const rCandidate = asm.R9

// lookTuples looks up the key under each mask that is in use. The stack holds the number of the mask with the
// masked key, the key, and the lowest rank so far.
func (g *pipes) lookTuples(n int, t *ir.Table, miss string) {
	kw := t.KeyWords
	probe := keyAt(kw)
	masked := probe - 8*(kw+1)
	rank, generation := masked-8, masked-16
	if -generation > stackSize {
		unsupported("its key has %d words", kw)
	}
	for i := range t.Keys {
		k := &t.Keys[i]
		for w := range k.Words {
			g.key(k, w)
			g.keep(asm.RFP, probe+8*(k.At+w), asm.R1, asm.DWord)
		}
	}
	s, _ := shapeOf(t, kw+1)
	changing, out := g.fresh(), g.fresh()
	readGeneration(g.emitter, g.maps.masks[n], masksGeneration(t), generation, changing)
	g.calc(asm.Mov, rEntry, 0)
	g.add(storeImm(asm.RFP, int16(rank), -1, asm.DWord))
	for m := range maxMasks {
		next := g.fresh()
		g.address(asm.R4, g.maps.masks[n])
		g.load(asm.R1, asm.R4, 0, asm.DWord)
		g.calc(asm.And, asm.R1, 1<<m)
		g.whenImm(asm.JEq, asm.R1, 0, next)
		g.imm(asm.R2, g.opt.Seed)
		g.imm(asm.R3, multiplier)
		g.calc(asm.Mov, asm.R1, m)
		g.keep(asm.RFP, masked, asm.R1, asm.DWord)
		g.mix()
		for w := range kw {
			g.load(asm.R1, asm.R4, 8*(1+m*kw+w), asm.DWord)
			g.load(asm.R0, asm.RFP, probe+8*w, asm.DWord)
			g.with(asm.And, asm.R1, asm.R0)
			g.keep(asm.RFP, masked+8*(1+w), asm.R1, asm.DWord)
			g.mix()
		}
		g.probe(n, s, masked, rCandidate, next)
		g.load(asm.R1, rCandidate, entryRank, asm.DWord)
		g.load(asm.R2, asm.RFP, rank, asm.DWord)
		g.compareRegs(asm.JGE, asm.R1, asm.R2, next)
		g.keep(asm.RFP, rank, asm.R1, asm.DWord)
		g.with(asm.Mov, rEntry, rCandidate)
		g.label(next)
	}
	checkGeneration(g.emitter, g.maps.masks[n], masksGeneration(t), generation, changing)
	g.whenImm(asm.JEq, rEntry, 0, miss)
	g.jump(out)
	g.label(changing)
	g.pass(whyChanging)
	g.label(out)
}
