package xdp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// How the kernel's tables follow the Switch's, so that a frame sees an entry either before a change or after
// it:
//
//   - With exact keys an entry is a record. It is written while nothing leads to it, and one store makes it
//     visible (cuckoo). The same is true of tables with one LPM field and no other (strides).
//   - In other tables with an LPM field an entry is one element of the kernel's trie, with its action and
//     all its data. The kernel replaces an element as a whole, and does not reuse its memory before all
//     programs have ended that may see it.
//   - With ternary keys an entry is a record, too. It is written before one store puts its mask in use. When
//     no entry has a mask any more, one store takes the mask out of use. The place of the mask is written
//     again after a grace period, when all programs have ended that may look at it. Of entries with the same
//     mask and masked key only the winner is in the map.
//   - Entries refer to members and groups of an action profile by numbers (profile.go). A member is a record, and a
//     group a block; one store replaces either. A number that nothing refers to any more is given to another one
//     after a grace period.
//   - A default entry is written to the place that is not in use, a grace period after that was in use; one
//     store changes places. A frame that finds another place behind its look-up than before it goes to the engine.
//   - When a table gets its first entry, one store makes frames look into the table after the entry is
//     written.
//   - With ranges an entry is a record, too, which slots of bit vectors refer to (vectors.go).
//   - Where a frame looks at several places for an entry (under several masks, or at several vectors), a generation tells it that
//     entries came, went or changed meanwhile: else it might see the second of two changes and not the first. Then it goes to the engine.
//     With masks the generation grows in front of each change, so that it grows between any two.
//   - If an entry cannot be written (the map is full, or there are too many masks or ranges), one store stops the table, and frames that come to it go to the engine
//     (stopped.go).

// tableMaps holds the kernel's maps of a table.
type tableMaps struct {
	kind     sort
	skip     bool     // the program does not look at it
	cuckoo   *cuckoo  // of a table that is direct
	strides  *strides // of one that is stepped
	vectors  *vectorTable
	entries  *ebpf.Map
	masks    *shared
	meters   *shared // the entries' direct meters, by row, and the default entry's
	hits     *shared
	place    int              // of the default entry, in bytes
	turned   bool             // the default entry was written since the last grace period
	used     [maxMasks]int    // entries of each mask
	mask     [maxMasks]string // as bytes
	places   *rest            // of masks
	sameness map[string][]ranked
	rows     []uint8 // rowThere and rowMissing
	n        int     // rows that are there
	out      out
}

// What a table's maps have of a row.
const (
	rowThere   = 1 << iota // an entry
	rowMissing             // not what the Switch has
)

// ranked is an entry among those with the same mask and masked key.
type ranked struct {
	rank  uint64
	value []byte
}

// addTable makes the maps of a table.
func (x *Executor) addTable(i, place int, seed uint64) (err error) {
	t := &x.tree.Tables[i]
	m := &tableMaps{place: place}
	x.tables = append(x.tables, m)
	x.addNumbers(i)
	kind, why := sortOf(t)
	if m.kind = kind; why != "" {
		m.skip = true
		return nil
	}
	switch kind {
	case direct:
		m.cuckoo, err = x.newCuckoo(t, t.KeyWords, seed)
	case stepped:
		shape, _ := stridesOf(t)
		m.strides = newStrides(shape, x.graces)
		if m.strides.nodes, err = x.newShared("p4_nodes", shape.size()); err == nil {
			m.strides.records, err = x.newShared("p4_records", 8*shape.words*shape.records)
		}
	case trie:
		_, all := trieBits(t)
		m.entries, err = x.newMap(ebpf.MapSpec{Name: "p4_entries", Type: ebpf.LPMTrie, KeySize: uint32(4 + all/8), ValueSize: uint32(entrySize(t)),
			MaxEntries: uint32(max(1, t.Size)), Flags: unix.BPF_F_NO_PREALLOC})
	case tuples:
		m.sameness, m.places = map[string][]ranked{}, x.graces.rest(maxMasks)
		if m.masks, err = x.newShared("p4_masks", masksSize(t)); err == nil {
			m.cuckoo, err = x.newCuckoo(t, t.KeyWords+1, seed)
		}
	case ranged:
		m.vectors, err = x.addVectors(t)
	}
	if err != nil {
		return err
	}
	if n := numbersOf(t, x.outlives); t.Timeout && n <= maxDirect/8 {
		if m.hits, err = x.newShared("p4_hits", 8*n); err != nil {
			return err
		}
	}
	if t.Meter >= 0 {
		if n := meterSize(&x.tree.Meters[t.Meter], t.Size+1); n > 0 {
			if m.meters, err = x.newShared("p4_meters", n); err != nil {
				return err
			}
		}
	}
	return nil
}

// looks returns where frames look for an entry of a table.
func looks(x *Executor, table int) uint64 {
	return *x.defaults.word(x.tables[table].place / 8) &^ tablePlace
}

// look sets where frames look for an entry of a table.
func look(x *Executor, table int, where uint64) {
	at := x.tables[table].place / 8
	x.defaults.store(at, *x.defaults.word(at)&tablePlace|where)
}

// Stopped returns, by table, why not all of its entries are in the kernel.
func (x *Executor) Stopped() map[string]string { return x.why }

// value returns an entry in the form that the program reads.
func value(dataWords int, row, runs uint32, rank uint64, data []uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, row)
	b = binary.NativeEndian.AppendUint32(b, runs)
	b = native(b, rank)
	for i := range dataWords {
		w := uint64(0)
		if i < len(data) {
			w = data[i]
		}
		b = native(b, w)
	}
	return b
}

// rankOf returns a number that orders entries as the engine does: the lowest wins.
func rankOf(r *ir.Row, row uint32) uint64 { return uint64(uint32(r.Order)^1<<31)<<32 | uint64(row) }

// trieKey returns the key of a row in the kernel's trie.
func trieKey(t *ir.Table, r *ir.Row) []byte {
	front, _ := trieBits(t)
	b := binary.NativeEndian.AppendUint32(nil, uint32(front+r.Prefix))
	for _, last := range []bool{false, true} {
		for _, k := range t.Keys {
			if (k.Match == ir.LPM) != last {
				continue
			}
			for w := k.Words - 1; w >= 0; w-- {
				v := r.Key[k.At+w]
				if last && k.Bits < 64 {
					v <<= uint(64 - k.Bits)
				}
				b = binary.BigEndian.AppendUint64(b, v)
			}
		}
	}
	return b
}

// Put implements ir.Follower.
func (x *Executor) Put(table int, row uint32, r ir.Row) {
	m := x.tables[table]
	x.changes++
	if m.skip {
		return
	}
	if int(row) >= len(m.rows) {
		m.rows = append(m.rows, make([]uint8, int(row)+1-len(m.rows))...)
	}
	if err := x.putRow(table, row, &r); err != nil {
		m.miss(row)
		x.stop(table, err)
		return
	}
	m.found(row)
	if m.n == 1 && looks(x, table) == tableEmpty {
		look(x, table, tableFull)
	}
}

// putRow puts an entry into the kernel, or leaves there what was.
func (x *Executor) putRow(table int, row uint32, r *ir.Row) error {
	m, t := x.tables[table], &x.tree.Tables[table]
	size := max(1, t.Size)
	byRow := t.Meter >= 0 || t.Timeout && x.byTable[table] == nil              // its memory has a place for each row
	if m.rows[row]&rowThere == 0 && m.n >= size || byRow && int(row) >= size { // a controller may have it hold more
		return fmt.Errorf("it has more entries than the %d that the program says", t.Size)
	}
	rank := rankOf(r, row)
	number, err := x.numberOf(table, row, t, r)
	if err != nil {
		return err
	}
	runs, err := x.runs(t, r)
	v := value(t.DataWords, number, runs, rank, r.Data)
	switch {
	case err != nil:
	case m.kind == direct:
		err = m.cuckoo.put(r.Key, nativeWords(v))
	case m.kind == stepped:
		err = m.strides.put(prefixOf(t, r), nativeWords(v))
	case m.kind == trie:
		err = m.entries.Put(trieKey(t, r), v)
	case m.kind == tuples:
		err = m.putTuple(t, r, rank, v)
	case m.kind == ranged:
		err = m.vectors.putRow(t, r, rank, nativeWords(v))
	}
	if err != nil {
		return fmt.Errorf("an entry cannot be put into the kernel: %w", err)
	}
	return nil
}

// Delete implements ir.Follower.
func (x *Executor) Delete(table int, row uint32, r ir.Row) {
	m, t := x.tables[table], &x.tree.Tables[table]
	x.changes++
	if m.skip || int(row) >= len(m.rows) {
		return
	}
	there := m.gone(row)
	if there && m.n == 0 && looks(x, table) == tableFull {
		look(x, table, tableEmpty)
	}
	var err error
	switch {
	case !there:
	case m.kind == direct:
		err = m.cuckoo.delete(r.Key)
	case m.kind == stepped:
		err = m.strides.delete(prefixOf(t, &r))
	case m.kind == trie:
		err = m.entries.Delete(trieKey(t, &r))
	case m.kind == tuples:
		err = m.deleteTuple(t, &r, rankOf(&r, row))
	case m.kind == ranged:
		err = m.vectors.deleteRow(rankOf(&r, row))
	}
	if err != nil {
		x.end(table, fmt.Errorf("an entry cannot be taken out of the kernel: %w", err))
	}
	x.Hit(table, row)
	x.leaveNumber(table, row)
}

// putTuple adds an entry first, and after it the mask that leads to it.
func (m *tableMaps) putTuple(t *ir.Table, r *ir.Row, rank uint64, v []byte) error {
	n, err := m.placeMask(t, r.Mask)
	if err != nil {
		return err
	}
	k := string(native(native(nil, uint64(n)), r.Key...))
	list := m.sameness[k]
	i, there := slices.BinarySearchFunc(list, rank, func(a ranked, rank uint64) int { return cmp.Compare(a.rank, rank) })
	if i == 0 { // else frames see nothing of it
		nextGeneration(m.masks, masksGeneration(t))
		if err := m.cuckoo.put(nativeWords([]byte(k)), nativeWords(v)); err != nil {
			if m.used[n] == 0 {
				m.places.back(uint32(n))
			}
			return err
		}
	}
	if there {
		list[i].value = v
	} else {
		list = slices.Insert(list, i, ranked{rank, v})
		m.sameness[k] = list
		m.used[n]++
	}
	m.masks.store(0, *m.masks.word(0)|1<<n)
	return nil
}

// placeMask returns the place of a mask. A new mask is not in use yet.
func (m *tableMaps) placeMask(t *ir.Table, mask []uint64) (int, error) {
	want, used := string(native(nil, mask...)), 0
	for n := range maxMasks {
		if m.used[n] > 0 && m.mask[n] == want {
			return n, nil
		}
		used += min(1, m.used[n])
	}
	if used == maxMasks {
		return 0, fmt.Errorf("the entries have more than %d different masks", maxMasks)
	}
	free, err := m.places.take()
	if err != nil {
		return 0, err
	}
	m.mask[free] = want
	for w, v := range mask {
		m.masks.store(1+int(free)*t.KeyWords+w, v)
	}
	return int(free), nil
}

func (m *tableMaps) deleteTuple(t *ir.Table, r *ir.Row, rank uint64) error {
	want := string(native(nil, r.Mask...))
	for n := range maxMasks {
		if m.used[n] == 0 || m.mask[n] != want {
			continue
		}
		k := string(native(native(nil, uint64(n)), r.Key...))
		list := m.sameness[k]
		i := slices.IndexFunc(list, func(a ranked) bool { return a.rank == rank })
		if i < 0 {
			break
		}
		if i == 0 {
			nextGeneration(m.masks, masksGeneration(t))
		}
		list = slices.Delete(list, i, i+1)
		if m.sameness[k] = list; len(list) == 0 {
			delete(m.sameness, k)
		}
		if m.used[n]--; m.used[n] == 0 {
			m.masks.store(0, *m.masks.word(0)&^(1<<n))
			m.places.leave(uint32(n))
		}
		switch {
		case len(list) == 0:
			return m.cuckoo.delete(nativeWords([]byte(k)))
		case i == 0:
			return m.cuckoo.put(nativeWords([]byte(k)), nativeWords(list[0].value))
		}
		return nil
	}
	return fmt.Errorf("it is not there")
}

// pass waits until all programs have ended that run at the time of the call. The kernel waits for them when a
// map of maps is written.
func (x *Executor) pass() error {
	if err := x.outer.Put(uint32(0), x.inner); err != nil {
		return fmt.Errorf("wait for the programs that run: %w", err)
	}
	return nil
}

// passed is called when all programs have ended that may have looked at something that is not in use at that
// time.
func (x *Executor) passed() {
	for _, m := range x.tables {
		m.turned = false
		if m.strides != nil {
			m.strides.stale = 0
		}
	}
}

// Default implements ir.Follower.
func (x *Executor) Default(table int, r ir.Row) {
	m, t := x.tables[table], &x.tree.Tables[table]
	x.changes++
	if m.skip {
		return
	}
	runs, err := x.runs(t, &r)
	if err == nil && m.turned {
		err = x.graces.now()
	}
	if err != nil {
		x.end(table, err)
		return
	}
	m.turned = true
	at := m.place / 8
	word := *x.defaults.word(at)
	next := word&tablePlace ^ tablePlace
	b := value(t.DataWords, ^uint32(0), runs, 0, r.Data)
	for i := 0; i < len(b); i += 8 {
		x.defaults.store(at+1+int(next)*entrySize(t)/8+i/8, binary.NativeEndian.Uint64(b[i:]))
	}
	x.defaults.store(at, word&^tablePlace|next)
}

// Count implements ir.Follower.
func (x *Executor) Count(counter, cell int) ir.Count {
	return x.counts.sum(x.counts.counters[counter], cell)
}

// ResetCount implements ir.Follower.
func (x *Executor) ResetCount(counter, cell int) { x.counts.reset(x.counts.counters[counter], cell) }

// EntryCount implements ir.Follower.
func (x *Executor) EntryCount(table, row int) (c ir.Count) {
	if at, there := x.cell(table, row); there {
		c = x.counts.sum(x.counts.direct[table], at)
	}
	return c
}

// ResetEntryCount implements ir.Follower.
func (x *Executor) ResetEntryCount(table, row int) {
	if at, there := x.cell(table, row); there {
		x.counts.reset(x.counts.direct[table], at)
	}
}

// Hit implements ir.Follower.
func (x *Executor) Hit(table int, row uint32) bool {
	m := x.tables[table].hits
	at, there := x.cell(table, int(row))
	return m != nil && there && 8*at < len(m.mem) && atomic.SwapUint64(m.word(at), 0) != 0
}
