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
// of them, and counts in the same place. Of a program whose maps another version of this package has laid out nothing is shared.

// layoutVersion changes when what a map holds means something else.
var layoutVersion = 5 // tests change it

// markName is the name of the map that says which P4 program it is.
const markName = "p4_mark"

// mark has two numbers: one that is the same for programs that can share maps of counts and registers, and whose entries lie in the
// same form in their maps, and one that is the same for programs of the same source, whatever version of this package has made them.
// Neither depends on the ports, nor on the port that drops frames.
type mark [2 * sha256.Size]byte

func markOf(p *ir.Program, s *settings, c *compiled, source []byte) mark {
	b := fmt.Appendln(source[:len(source):len(source)], layoutVersion, s.Processors, outcomeNames, c.reasons, p.Registers)
	for i := range p.Tables { // another version may keep a table in another way
		t := &p.Tables[i]
		kind, _ := sortOf(t)
		b = fmt.Appendln(b, kind, t.KeyWords, entrySize(t), numbersOf(t, true))
	}
	for _, u := range usesOf(p) {
		b = fmt.Appendln(b, u.of.ValueSet, u.shape)
	}
	all, from := sha256.Sum256(b), sha256.Sum256(source)
	return mark(slices.Concat(all[:], from[:]))
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
	// The numbers of the entries, by table. nil: an entry's number is its row.
	byTable []*numbers
}

// numbers hands out the numbers of a table's entries in the kernel. An entry's number is given to another one after a grace period, so
// that no frame counts for an entry that it has not met. An entry that goes on has its former number, so that both
// programs count it in one place. Then there are twice as many as rows, because the program before has some until it ends. The row
// number behind the last one is the default entry's.
type numbers struct {
	rest *rest
	size uint32
	of   []uint32 // by row: 1 + the number; 0: it has none
	next uint32   // those below may have counted
	held []uint32 // of entries that are no more, but in the program before
	// inherited are the numbers that the program before has. They are nobody else's until it ends.
	inherited map[uint32]bool
}

// numbersOf is the number of places for the counts and hits of a table's entries.
func numbersOf(t *ir.Table, outlives bool) int {
	switch {
	case outlives && t.Counters:
		return 2*max(1, t.Size) + 1
	case t.Counters:
		return max(1, t.Size) + min(t.Size, 1024) + begins + 1
	}
	return t.Size + 1
}

// heritage is what a program of a process that was killed has left to an Executor.
type heritage struct {
	maps map[string]*ebpf.Map // the caller's; valid during New
	// foreign: another version of this package has made the maps. There is nothing else then.
	foreign bool
	// By table:
	rows     []map[string]uint32 // the numbers of the entries, by nameOf
	full     []bool
	defaults [][]byte
	groups   []int  // multicast groups that have replicas
	members  []bool // value sets that have members
}

// inherit looks at the maps of a program. It returns nil if they are not those of a program of the same source.
func inherit(p *ir.Program, m mark, maps []*ebpf.Map) *heritage {
	h := &heritage{maps: map[string]*ebpf.Map{}}
	for _, x := range maps {
		if i, err := x.Info(); err == nil {
			h.maps[i.Name] = x
		}
	}
	switch is := h.value(markName, -1); {
	case is == nil || len(is.mem) != len(m) || !bytes.Equal(is.mem[sha256.Size:], m[sha256.Size:]):
		return nil
	case !bytes.Equal(is.mem, m[:]):
		return &heritage{foreign: true, rows: make([]map[string]uint32, len(p.Tables))}
	}
	defaults := h.value("p4_defaults", -1)
	if groups := h.value("p4_multicast", -1); groups != nil {
		for n := range len(groups.mem) / 4 {
			if *groups.half(n) != 0 {
				h.groups = append(h.groups, n)
			}
		}
	}
	uses := usesOf(p)
	for n := range p.ValueSets {
		mem := h.value("p4_values", n)
		h.members = append(h.members, mem != nil && slices.ContainsFunc(uses, func(u use) bool { return u.of.ValueSet == n+1 && u.fits && hasMembers(mem, u.shape) }))
	}
	at, _ := placeDefaults(p)
	for i := range p.Tables {
		t := &p.Tables[i]
		var def []byte
		if defaults != nil {
			def = currentDefault(defaults, at[i], t, h.actions)
		}
		rows := map[string]uint32{}
		if t.Counters {
			h.readRows(i, t, rows)
		}
		h.rows, h.defaults, h.full = append(h.rows, rows), append(h.defaults, def), append(h.full, defaults != nil && *defaults.word(at[i] / 8)&^tablePlace != tableEmpty)
	}
	return h
}

// kept are the names of maps that an Executor shares with the program before.
var kept = []string{"p4_counts", "p4_register", "p4_turn"}

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

// actions returns copies of the memory of an action profile.
func (h *heritage) actions(profile int) *profileMaps {
	return &profileMaps{members: h.value("p4_members", profile), records: h.value("p4_actions", profile), groups: h.value("p4_groups", profile), blocks: h.value("p4_blocks", profile)}
}

// currentDefault returns a table's default entry, as it is in the kernel. In the place of a member or a group of an action
// profile, whose number says nothing to another program, it has the actions of the members.
func currentDefault(defaults *shared, place int, t *ir.Table, of func(profile int) *profileMaps) []byte {
	n := entrySize(t)
	from := place + 8 + int(*defaults.word(place / 8)&tablePlace)*n
	def := slices.Clone(defaults.mem[from : from+n])
	runs := binary.NativeEndian.Uint32(def[entryAct:])
	if runs < isGroup || t.Profile == nil {
		return def
	}
	m, s := of(t.Profile.Index), profileShapeOf(t.Profile)
	member := func(b []byte, number uint32) []byte {
		if r := led(m.members, number, s.members); r > 0 && m.records != nil {
			b = append(b, m.records.mem[8*s.words*int(r-1):][:8*s.words]...)
		}
		return b
	}
	if runs >= isMember {
		return member([]byte("member"), runs-isMember)
	}
	b := []byte("group")
	if r := led(m.groups, runs-isGroup, s.groups); r > 0 && m.blocks != nil {
		block := m.blocks.mem[blockSize*int(r-1):][:blockSize]
		for i := range min(maxShares, binary.NativeEndian.Uint32(block)) {
			b = member(b, binary.NativeEndian.Uint32(block[4*(1+i):]))
		}
	}
	return b
}

// led returns 1 + what the word of a number leads to; 0: nothing.
func led(words *shared, number uint32, numbers int) uint32 {
	if words == nil || int(number) >= numbers {
		return 0
	}
	if r := *words.half(int(number)); int(r) <= numbers {
		return r
	}
	return 0
}

// readRows notes the number of each entry of a table that has counts.
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
	shape, _ := shapeOf(t, t.KeyWords)
	apart := shape.words
	var masks *shared
	switch kind {
	case tuples:
		masks = h.value("p4_masks", i)
		words++
		shape, _ = shapeOf(t, t.KeyWords+1)
		apart = shape.words
	case stepped:
		words++ // the mask
		shape, _ := stridesOf(t)
		apart = shape.words
	case ranged:
		words, _ = vectorRecord(t)
		apart = words
	}
	note := func(n uint32) {
		if n == 0 || 8*apart*int(n) > len(records.mem) {
			return
		}
		r := records.words()[(int(n)-1)*apart:][:words]
		name, entry := r[:len(r)-entrySize(t)/8], r[len(r)-entrySize(t)/8:]
		if kind == tuples {
			if masks == nil {
				return
			}
			at := 1 + int(name[0]%maxMasks)*t.KeyWords
			name = append(append(slices.Clone(masks.words()[at:at+t.KeyWords]), name[1:]...), entry[1]>>32)
		}
		if kind == ranged {
			name = append(slices.Clone(name), entry[1]>>32)
		}
		rows[string(native(nil, name...))] = binary.NativeEndian.Uint32(native(nil, entry[0]))
	}
	if slots := h.value("p4_slots", i); slots != nil && records != nil {
		for i := range len(slots.mem) / 4 {
			note(*slots.half(i) & (1<<recordBits - 1))
		}
	}
	if mem := h.value("p4_vectors", i); mem != nil && records != nil {
		shape, _ := vectorsOf(t)
		half := halfOf(*mem.word(generationAt))
		for n := range shape.size() {
			if inUse(mem, &shape, half, n) {
				note(uint32(*mem.word(shape.numbers(half) + n)))
			}
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
		return string(native(nil, append(slices.Concat(r.Mask, r.Key), rankOf(r, row)>>32)...))
	case ranged:
		return string(native(nil, append(slices.Concat(r.Key, r.Mask), rankOf(r, row)>>32)...))
	}
	return string(native(nil, r.Key...))
}

// addNumbers makes the numbers of a table's entries.
func (x *Executor) addNumbers(table int) {
	t := &x.tree.Tables[table]
	if !t.Counters {
		x.byTable = append(x.byTable, nil)
		return
	}
	n := &numbers{rest: x.graces.rest(numbersOf(t, x.outlives)), size: uint32(t.Size), of: make([]uint32, max(1, t.Size))}
	x.byTable = append(x.byTable, n)
	if x.old == nil {
		return
	}
	n.next = n.rest.most
	n.inherited = map[uint32]bool{}
	for _, k := range x.old.rows[table] {
		n.inherited[k] = true
	}
	for k := n.rest.most; k > 0; k-- {
		if !n.inherited[k-1] {
			n.rest.free = append(n.rest.free, k-1)
		}
	}
	n.rest.used = n.rest.most
}

// numberOf returns the number of an entry in the kernel, which is given one if it is new.
func (x *Executor) numberOf(table int, row uint32, t *ir.Table, r *ir.Row) (k uint32, err error) {
	n := x.byTable[table]
	if n == nil {
		return row, nil
	}
	if int(row) >= len(n.of) {
		n.of = append(n.of, make([]uint32, int(row)+1-len(n.of))...)
	}
	if n.of[row] > 0 {
		return n.of[row] - 1, nil
	}
	there := false
	if x.old != nil {
		name := nameOf(t, r, row)
		if k, there = x.old.rows[table][name]; there {
			delete(x.old.rows[table], name) // one that is added again is another entry
		}
	}
	if !there {
		if k, err = n.rest.take(); err == nil && k == n.size { // the default entry's
			k, err = n.rest.take()
		}
		if err != nil {
			return 0, err
		}
		if k < n.next {
			x.counts.reset(x.counts.direct[table], int(k))
		}
		n.next = max(n.next, k+1)
	}
	n.of[row] = k + 1
	return k, nil
}

// settle ends the heritage: the program before runs no frames any more.
func (x *heir) settle() {
	if x.old == nil {
		return
	}
	for table, n := range x.byTable {
		if n == nil {
			continue
		}
		for _, k := range x.old.rows[table] {
			n.rest.leave(k)
		}
		for _, k := range n.held {
			n.rest.leave(k)
		}
		n.held, n.inherited = nil, nil
	}
	x.old = nil
}

// leaveNumber takes back the number of an entry that is no more.
func (x *Executor) leaveNumber(table int, row uint32) {
	n := x.byTable[table]
	switch {
	case n == nil || int(row) >= len(n.of) || n.of[row] == 0:
		return
	case n.inherited[n.of[row]-1]:
		n.held = append(n.held, n.of[row]-1)
	default:
		n.rest.leave(n.of[row] - 1)
	}
	n.of[row] = 0
}

// cell returns the place of the counts and the hits of an entry; row -1 is the default entry's. It is false if there is none.
func (x *Executor) cell(table, row int) (at int, there bool) {
	size := x.tree.Tables[table].Size
	switch n := x.byTable[table]; {
	case row < 0:
		return size, true
	case n == nil:
		return row, row < size
	case row >= len(n.of):
		return 0, false
	default:
		return int(n.of[row]) - 1, n.of[row] > 0
	}
}

// Inherits reports whether the Executor goes on with what another process's program has left (Options.Left).
func (x *heir) Inherits() bool { return x.old != nil && !x.old.foreign }

// lacks reports whether a table, a multicast group or a value set of x is empty that is not in the program before, or a default entry is
// another one. What a foreign program has is not known: then x lacks something as long as it has a table without entries.
func (h *heritage) lacks(x *Executor) bool {
	if h.foreign {
		return anyEmpty(x)
	}
	for n, s := range x.vsets {
		if h.members[n] && s.empty {
			return true
		}
	}
	if x.groups != nil && slices.ContainsFunc(h.groups, func(n int) bool { return *x.groups.half(n) == 0 }) {
		return true
	}
	for i, t := range x.tables {
		switch {
		case t.skip:
		case h.full[i] && looks(x, i) == tableEmpty:
			return true
		case h.defaults[i] != nil && !bytes.Equal(h.defaults[i], currentDefault(x.defaults, t.place, &x.tree.Tables[i], func(profile int) *profileMaps { return x.profiles.profiles[profile] })):
			return true
		}
	}
	return false
}

// anyEmpty reports whether a table has no entries.
func anyEmpty(x *Executor) bool {
	for i, t := range x.tables {
		if !t.skip && t.kind != keyless && looks(x, i) == tableEmpty {
			return true
		}
	}
	return false
}

// hasOwn reports whether a table has entries that are not the program's own, or no table is empty.
func hasOwn(x *Executor) bool {
	for i, t := range x.sw.Program().Tables() {
		if m := x.tables[i]; !t.Const && !m.skip && m.kind != keyless && looks(x, i) != tableEmpty {
			return true
		}
	}
	return !anyEmpty(x)
}

// disown makes x end without the counts that it shares with the program before, which goes on.
func (h *heritage) disown(x *Executor) {
	x.counts.others = true
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
	g.row("seen-given")
	g.countOutcome(1, "seen-given")
	g.label("seen-given")
	g.toOwn()
	// There is no process any more.
	g.row("unseen")
	g.countOutcome(-1, "unseen")
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
	g.row("headless")
	g.countOutcome(1, "headless")
	g.label("headless")
	g.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Return())
}
