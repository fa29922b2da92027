package xdp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// A program that outlives its process goes on with the entries that it had. The frames that the engine should have
// find the map of the interfaces' own programs empty, because the kernel empties it with the last process that has it
// open: the program drops them and counts them (HeadlessDropped). The next Executor of the same P4 program shares the
// maps of counts and registers, and has tables of its own. While both programs are loaded, each frame is run by one
// of them, and counts in the same place.

// layoutVersion changes when what a map holds means something else.
const layoutVersion = 1

// markName is the name of the map that says which P4 program it is.
const markName = "p4_mark"

type mark [sha256.Size]byte

// markOf returns a number that is the same for programs that can share maps of counts and registers, and whose entries
// lie in the same form in their maps.
func markOf(p *ir.Program, s *settings, c *compiled, source []byte) mark {
	return sha256.Sum256(fmt.Appendln(source[:len(source):len(source)], layoutVersion, s.DropPort, s.Queues, outcomeNames, c.reasons, p.Registers))
}

// sign binds the mark to a program.
func (m mark) sign(prog *ebpf.Program) error {
	is, err := ebpf.NewMap(&ebpf.MapSpec{Name: markName, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(m)), MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("make the map %s: %w", markName, err)
	}
	if err = is.Put(uint32(0), m[:]); err == nil {
		err = prog.BindMap(is)
	}
	return errors.Join(err, is.Close())
}

// heir is what an Executor has of another process's program.
type heir struct {
	old *heritage // nil: nothing
	// By table, the rows of the entries that count on, and their rows in the program before. Row -1 is the default entry.
	bases []map[int]int
}

// heritage is what a program of a process that was killed has left to an Executor.
type heritage struct {
	maps map[string]*ebpf.Map // the caller's; valid during New
	// By table:
	rows     []map[string]uint32 // of the entries' counts, by nameOf
	counts   []*ebpf.Map         // nil: there are none
	full     []bool
	defaults [][]byte
	groups   []int // multicast groups that have replicas
}

// inherit looks at the maps of a program. It returns nil if they are not those of the same program.
func inherit(p *ir.Program, m mark, maps []*ebpf.Map) *heritage {
	h := &heritage{maps: map[string]*ebpf.Map{}}
	for _, x := range maps {
		if i, err := x.Info(); err == nil {
			h.maps[i.Name] = x
		}
	}
	if is := h.value(markName, -1); is == nil || !bytes.Equal(is.mem, m[:]) {
		return nil
	}
	going, defaults := h.value("p4_going", -1), h.value("p4_defaults", -1)
	if groups := h.value("p4_multicast", -1); groups != nil {
		for n := range len(groups.mem) / 4 {
			if *groups.half(n) != 0 {
				h.groups = append(h.groups, n)
			}
		}
	}
	at, _ := placeDefaults(p)
	for i := range p.Tables {
		t := &p.Tables[i]
		var def []byte
		if defaults != nil {
			def = currentDefault(defaults, at[i], t)
		}
		rows := map[string]uint32{}
		if t.Counters {
			h.readRows(i, t, rows)
		}
		h.rows, h.defaults, h.full = append(h.rows, rows), append(h.defaults, def), append(h.full, going != nil && *going.word(i) != tableEmpty)
	}
	return h
}

// kept are the names of maps that an Executor shares with the program before.
var kept = []string{"p4_counter", "p4_register", "p4_turn", "p4_outcomes"}

// take returns a descriptor of the map with this name if it is one that is kept, and else nil.
func (h *heritage) take(name string) (*ebpf.Map, error) {
	if h == nil || h.maps[name] == nil || !slices.Contains(kept, strings.TrimRight(name, "0123456789")) {
		return nil, nil
	}
	return h.maps[name].Clone()
}

// numbered returns the name of a map of an object; a negative number means none.
func numbered(name string, object int) string {
	if object < 0 {
		return name
	}
	return fmt.Sprintf("%s%d", name, object)
}

// value returns a copy of the memory of one of the program's maps; nil: there is none.
func (h *heritage) value(name string, table int) *shared {
	var b []byte
	if m := h.maps[numbered(name, table)]; m == nil || m.Lookup(uint32(0), &b) != nil {
		return nil
	}
	return &shared{mem: b}
}

// currentDefault returns a table's default entry, as it is in the kernel.
func currentDefault(defaults *shared, place int, t *ir.Table) []byte {
	n := entrySize(t)
	from := place + 8 + int(*defaults.word(place / 8)&1)*n
	return slices.Clone(defaults.mem[from : from+n])
}

// readRows notes the row of each entry of a table that has counts.
func (h *heritage) readRows(i int, t *ir.Table, rows map[string]uint32) {
	kind, _ := sortOf(t)
	if kind == trie {
		var k, v []byte
		if entries := h.maps[numbered("p4_entries", i)]; entries != nil {
			for all := entries.Iterate(); all.Next(&k, &v); {
				rows[string(k)] = binary.NativeEndian.Uint32(v)
			}
		}
		return
	}
	records := h.value("p4_records", i)
	words := t.KeyWords + entrySize(t)/8 // of a record; the row is in the first word behind the key
	mask := 0
	switch kind {
	case tuples:
		words, mask = words+1, t.KeyWords
	case stepped:
		words++ // the mask
	}
	note := func(n uint32) {
		if n == 0 || 8*words*int(n) > len(records.mem) {
			return
		}
		r := records.words()[(int(n)-1)*words : int(n)*words]
		name, entry := r[:len(r)-entrySize(t)/8], r[len(r)-entrySize(t)/8:]
		if kind == tuples {
			masks := h.value("p4_masks", i)
			at := 1 + int(name[0]%maxMasks)*mask
			name = append(append(slices.Clone(masks.words()[at:at+mask]), name[1:]...), entry[1]>>32)
		}
		rows[string(native(nil, name...))] = binary.NativeEndian.Uint32(native(nil, entry[0]))
	}
	if slots := h.value("p4_slots", i); slots != nil && records != nil {
		for i := range len(slots.mem) / 4 {
			note(*slots.half(i) & (1<<recordBits - 1))
		}
	}
	if nodes := h.value("p4_nodes", i); nodes != nil && records != nil {
		(&strides{nodes: nodes, root: int(*nodes.word(0)) % places}).each(note)
	}
}

// each calls f with 1 + the number of each record to which a word leads; it may call f several times with one.
func (s *strides) each(f func(record uint32)) {
	var look func(word, steps int)
	look = func(word, steps int) {
		f(uint32(*s.nodes.word(word)))
		if r, alone := s.loner(word); alone {
			f(r + 1)
		}
		b, there := s.block(word)
		for i := 0; there && steps > 0 && i < 1<<nextBits && 8*blockWord(b, i) < len(s.nodes.mem); i++ {
			look(blockWord(b, i), steps-1)
		}
	}
	for i := range 1 << firstBits {
		look(s.rootWord(s.root, i), 64/nextBits)
	}
}

// nameOf returns what an entry is known by in a heritage.
func nameOf(t *ir.Table, r *ir.Row, row uint32) string {
	switch kind, _ := sortOf(t); kind {
	case stepped:
		p := prefixOf(t, r)
		return string(native(nil, p.Key, cut(^uint64(0), p.Len)))
	case trie:
		return string(trieKey(t, r))
	case tuples:
		mask, key, err := tuple(t, r)
		if err != nil {
			return ""
		}
		return string(native(nil, append(append(mask, key...), rankOf(r, row)>>32)...))
	}
	return string(native(nil, r.Key...))
}

// keepCounts opens the counts of the entries of the program before.
func (x *Executor) keepCounts() error {
	for i := range x.tree.Tables {
		x.bases = append(x.bases, map[int]int{-1: -1})
		if x.old == nil {
			continue
		}
		m := x.old.maps[numbered("p4_direct", i)]
		if m != nil {
			var err error
			if m, err = m.Clone(); err != nil {
				return fmt.Errorf("counts of the program before: %w", err)
			}
			x.all = append(x.all, mapCloser{m})
		}
		x.old.counts = append(x.old.counts, m)
	}
	return nil
}

// goOn has a new entry count on from the same entry of the program before.
func (x *heir) goOn(table int, row uint32, t *ir.Table, r *ir.Row) {
	if x.old == nil || x.old.counts[table] == nil {
		return
	}
	name := nameOf(t, r, row)
	if was, ok := x.old.rows[table][name]; ok {
		x.bases[table][int(row)] = int(was)
		delete(x.old.rows[table], name) // one that is added again is another entry
	}
}

// before returns what the program before has counted for an entry of a table with so many.
func (x *heir) before(table, row, size int) (c ir.Count) {
	if x.old == nil || x.old.counts[table] == nil {
		return c
	}
	was, ok := x.bases[table][row]
	switch {
	case !ok:
		return c
	case was < 0:
		was = size
	}
	return sum(x.old.counts[table], was)
}

// fresh has an entry not count on.
func (x *heir) fresh(table, row int) {
	delete(x.bases[table], row)
}

// Inherits reports whether the Executor goes on with what another process's program has left (Options.Left).
func (x *heir) Inherits() bool { return x.old != nil }

// lacks reports whether a table or a multicast group of x is empty that is not in the program before, or a default entry is
// another one.
func (h *heritage) lacks(x *Executor) bool {
	if x.groups != nil && slices.ContainsFunc(h.groups, func(n int) bool { return *x.groups.half(n) == 0 }) {
		return true
	}
	for i, t := range x.tables {
		switch {
		case t.skip:
		case h.full[i] && *x.going.word(i) == tableEmpty:
			return true
		case h.defaults[i] != nil && !bytes.Equal(h.defaults[i], currentDefault(x.defaults, t.place, &x.tree.Tables[i])):
			return true
		}
	}
	return false
}

// disown makes x end without the counts that it shares with the program before, which goes on.
func (h *heritage) disown(x *Executor) {
	clear(x.counters)
	for _, t := range x.tables {
		t.counts = nil
	}
	clear(h.counts)
}

// free frees the registers if a process that was killed had them: neither a program nor nobody.
func free(turn *shared) {
	for {
		v := *turn.word(0)
		if v <= 1 || turn.cas(0, v, 0) {
			return
		}
	}
}

// watched writes what is done with frames of an interface that somebody watches: the engine has them, as long as there is one.
func (g *gen) watched() {
	g.add(asm.JSet.Imm(asm.R1, inSeen, "seen"))
	off := g.fresh()
	g.jump(off)
	g.label("seen")
	n := reasonOf(g.emitter, whyOff)
	g.add(storeImm(rState, atOutcome, int64(firstReason+n), asm.DWord))
	g.countOutcome("seen-given")
	g.label("seen-given")
	g.toOwn()
	// There is no process any more.
	g.add(asm.LoadMem(asm.R1, rState, atOutcome, asm.DWord))
	g.cellOf(g.maps.outcomes, "unseen")
	g.plus(0, -1)
	g.label("unseen")
	g.add(asm.LoadMem(asm.R1, rState, atIn, asm.DWord))
	g.jump("on")
	g.label(off)
}

// headless writes what is done with a frame that the engine should have, when there is no process any more.
func (g *gen) headless() {
	if g.next.registers { // the process may have had them when it was killed
		g.add(asm.LoadMapValue(asm.R5, g.maps.turn, 0), asm.Mov.Imm(asm.R0, int32(g.opt.Owner)), asm.Mov.Imm(asm.R1, 0), atomicOf(asm.CmpXchg, asm.R5, asm.R1))
	}
	g.freeOwner()
	g.add(storeImm(rState, atOutcome, HeadlessDropped, asm.DWord))
	g.countOutcome("headless")
	g.label("headless")
	g.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Return())
}
