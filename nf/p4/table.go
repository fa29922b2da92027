package p4

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/nf/classify"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// keyDef is a field of a table's key. Its value begins at word at of a row's key.
type keyDef struct {
	kind     MatchKind
	bits     int
	words    int
	at       int
	slot     int
	validity int // slot of the header's validity: if that is 0, the field counts as 0; -1: always valid
	mask     []uint64
	// where returns the place of a field of a stack element whose index the packet determines, and the
	// element's validity. If where is nil, slot has the field.
	where func(k *packetState) (valid bool, v []uint64)
}

// tableDef is the definition of a table.
type tableDef struct {
	TableInfo
	index    int
	keys     []keyDef
	kw       int       // number of words of a key
	dw       int       // largest number of words of an entry's action data
	kind     MatchKind // of the whole table: which of several entries wins
	actions  []*action
	next     []int // by index of the action: the next node
	hit      int   // next node after a hit, if branches
	miss     int
	branches bool    // the next node depends on hit or miss, not on the action
	baseMiss int     // next node if no action runs
	profile  int     // index in Program.profiles; -1: none
	meter    int     // index in Program.meters; -1: none
	initial  *action // default entry; nil: none
	initData []uint64
	// constAction is the only action that the default entry may have; nil: it may have any.
	constAction *action
	preset      []presetEntry
}

// presetEntry is an entry of the program itself.
type presetEntry struct {
	parsedKey
	priority int32
	act      *action
	data     []uint64
}

// Match is the condition of one field of an entry's key. Byte strings are big-endian, and leading zeros do not
// matter.
type Match struct {
	// Value is the value, or the lowest value of a Range. Empty stands for 0.
	Value []byte
	// Mask has the bits that a Ternary compares; nil: all bits, unless Any is set. For a Range it is the
	// highest value.
	Mask []byte
	// Prefix is the length of an LPM's prefix in bits.
	Prefix int
	// Any says that every value matches. It must not be set for Exact and Valid.
	Any bool
}

// Action is an action with its arguments, which are big-endian.
type Action struct {
	Name string
	Args [][]byte
}

// Entry is an entry of a table. In a table with an action profile, Member or Group is set instead of Action.
type Entry struct {
	Key []Match
	// Priority decides between entries that match: the lowest number wins, as in bmv2; in P4Runtime the highest
	// wins. It must be 0 in tables whose entries need no priority.
	Priority int32
	Action   Action
	Member   uint32
	Group    uint32
	// Timeout is how long the entry may go without a hit before ExpiredFrom reports it; 0: for ever.
	Timeout clock.Duration
}

// Handle identifies an entry of a table until the entry is deleted.
type Handle uint32

// DefaultEntry stands for the default entry of a table, for its direct counter and its direct meter.
const DefaultEntry Handle = math.MaxUint32

// Count is the value of a counter.
type Count struct{ Packets, Bytes uint64 }

// row is an entry without its key and data.
type row struct {
	act    int32 // index in Program.actions; -1: a member or a group
	prio   int32
	prefix int16
	live   bool
	member uint32
	group  uint32
}

// use says when an entry was hit last, how long it may go without a hit, and when ExpiredFrom reported it last.
type use struct {
	hit, told clock.Time
	timeout   clock.Duration
}

// table is a table with its entries.
type table struct {
	def   *tableDef
	fixed bool // its entries are the program's, and cannot be changed
	size  int  // largest number of entries
	m     matcher
	n     int
	rows  []row
	set   *classify.Set // nil: keys has the keys, and there are no masks
	keys  []uint64
	data  []uint64
	count []Count
	meter []uint64 // cells, by row
	uses  []use
	free  []uint32
	probe []uint64 // key of the packet at hand

	act     *action // default entry; nil: none
	actData []uint64
	member  uint32
	group   uint32
	// Direct counter and meter of the default entry. Misses are counted, and metered if the meter has rates.
	defCount Count
	defMeter ir.Meter
}

func (t *table) key(e uint32) []uint64 {
	if t.set != nil {
		return t.set.Key(e)
	}
	w := t.def.kw
	return t.keys[int(e)*w : int(e)*w+w]
}

func (t *table) entryData(e uint32) []uint64 {
	w := t.def.dw
	return t.data[int(e)*w : int(e)*w+w]
}

func newTable(d *tableDef) *table {
	t := &table{def: d, fixed: d.Const, size: d.Size, probe: make([]uint64, d.kw)}
	single := len(d.keys) == 1 && d.keys[0].bits <= 128
	switch {
	case d.kind == Exact:
		t.m = &exactMatcher{}
	case d.kind == LPM && single:
		t.m = &lpmMatcher{bits: d.keys[0].bits}
	default:
		m := newSetMatcher(d)
		t.m, t.set = m, m.Set
	}
	t.act, t.actData = d.initial, d.initData
	return t
}

// lookup returns the entry that the packet hits, or none.
func (t *table) lookup(k *packetState) uint32 {
	if t.n == 0 {
		return none
	}
	t.readKey(k)
	return t.m.find(t, t.probe)
}

// readKey reads the key from the packet into probe.
func (t *table) readKey(k *packetState) {
	key := t.probe
	for i := range t.def.keys {
		d := &t.def.keys[i]
		switch {
		case d.validity >= 0 && k.v[d.validity] == 0:
			clear(key[d.at : d.at+d.words])
		case d.where != nil:
			if valid, v := d.where(k); valid {
				copy(key[d.at:d.at+d.words], v)
			} else {
				clear(key[d.at : d.at+d.words])
			}
		case d.words == 1:
			key[d.at] = k.v[d.slot]
		default:
			copy(key[d.at:d.at+d.words], k.v[d.slot:])
		}
		for j, m := range d.mask {
			key[d.at+j] &= m
		}
	}
}

// alloc returns a free row.
func (t *table) alloc() uint32 {
	if n := len(t.free); n > 0 {
		e := t.free[n-1]
		t.free = t.free[:n-1]
		return e
	}
	e := uint32(len(t.rows))
	d := t.def
	room := cap(t.rows)
	if int(e) == room { // seldom: all entries are copied
		room = max(64, min(16*room, t.size))
	}
	t.rows = longer(t.rows, 1, room)
	t.data = longer(t.data, d.dw, room)
	if t.set != nil {
		t.set.Room(room)
	} else {
		t.keys = longer(t.keys, d.kw, room)
	}
	if d.Counters {
		t.count = longer(t.count, 1, room)
	}
	if d.Meters {
		t.meter = longer(t.meter, len(t.defMeter), room)
	}
	if d.Timeout {
		t.uses = longer(t.uses, 1, room)
	}
	return e
}

// longer extends list by n elements, those of one entry. If it has to allocate memory, it allocates enough for
// the given number of entries.
func longer[T any](list []T, n, entries int) []T {
	if len(list)+n > cap(list) {
		list = append(make([]T, 0, max(len(list)+n, n*entries)), list...)
	}
	return list[:len(list)+n]
}

// parsedKey is an entry's key that was checked, as words.
type parsedKey struct {
	key, mask []uint64
	prefix    int
	order     int32
}

// number stores big-endian bytes as words. It returns false if the number is wider than width bits.
func number(dst []uint64, b []byte, width int) bool {
	clear(dst)
	for len(b) > 0 && b[0] == 0 {
		b = b[1:]
	}
	if len(b) > 8*len(dst) {
		return false
	}
	for i, x := range b {
		at := len(b) - 1 - i
		dst[at/8] |= uint64(x) << uint(at%8*8)
	}
	return wWithin(dst, width)
}

// bigEndian returns a number as bytes, as many as width bits need.
func bigEndian(v []uint64, width int) []byte {
	b := make([]byte, (width+7)/8)
	for i := range b {
		at := len(b) - 1 - i
		b[i] = byte(v[at/8] >> uint(at%8*8))
	}
	return b
}

// prefixMask sets the highest n of width bits.
func prefixMask(dst []uint64, n, width int) {
	for i := range dst {
		dst[i] = mask64(max(0, min(64, width-64*i))) &^ mask64(max(0, min(64, width-n-64*i)))
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func parseKey(d *tableDef, match []Match, priority int32) (parsedKey, error) {
	if len(match) != len(d.keys) {
		return parsedKey{}, invalid("table %s: %d match fields, its key has %d", d.Name, len(match), len(d.keys))
	}
	if !d.Priority && priority != 0 {
		return parsedKey{}, invalid("table %s: priority %d, its entries have none", d.Name, priority)
	}
	p := parsedKey{key: make([]uint64, d.kw), mask: make([]uint64, d.kw), order: priority}
	for i, kd := range d.keys {
		m := match[i]
		name := d.Keys[i].Name
		v, mask := p.key[kd.at:kd.at+kd.words], p.mask[kd.at:kd.at+kd.words]
		if !number(v, m.Value, kd.bits) {
			return p, invalid("table %s, field %s: value %x is wider than %d bits", d.Name, name, m.Value, kd.bits)
		}
		prefixMask(mask, kd.bits, kd.bits)
		switch kd.kind {
		case Exact, Valid:
			if m.Any || m.Mask != nil || m.Prefix != 0 {
				return p, invalid("table %s, field %s: an exact match takes a value only", d.Name, name)
			}
		case LPM:
			n := m.Prefix
			if m.Any {
				n = 0
			}
			if n < 0 || n > kd.bits || m.Mask != nil {
				return p, invalid("table %s, field %s: prefix length %d, the field has %d bits", d.Name, name, n, kd.bits)
			}
			prefixMask(mask, n, kd.bits)
			p.prefix = n
		case Ternary:
			switch {
			case m.Prefix != 0:
				return p, invalid("table %s, field %s: a ternary match takes a mask, not a prefix", d.Name, name)
			case m.Any:
				clear(mask)
			case m.Mask != nil:
				if !number(mask, m.Mask, kd.bits) {
					return p, invalid("table %s, field %s: mask %x is wider than %d bits", d.Name, name, m.Mask, kd.bits)
				}
			}
		case Range:
			if m.Any {
				clear(v)
				break // mask is the highest value
			}
			if m.Prefix != 0 || !number(mask, m.Mask, kd.bits) || wCmp(v, mask) > 0 {
				return p, invalid("table %s, field %s: range %x to %x, the field has %d bits", d.Name, name, m.Value, m.Mask, kd.bits)
			}
		}
		if kd.kind != Range {
			for j, m := range kd.mask {
				mask[j] &= m
			}
			for j := range v {
				v[j] &= mask[j]
			}
		}
	}
	if d.kind == LPM {
		p.order = int32(maxBits - p.prefix)
	}
	return p, nil
}

// same returns the entry with a key and a priority, or none.
func (t *table) same(p parsedKey) uint32 {
	switch m := t.m.(type) {
	case *exactMatcher:
		return m.find(t, p.key)
	case *lpmMatcher:
		return m.exact(p)
	case setMatcher:
		return m.Exact(p.key, p.mask, p.order)
	}
	return none
}

// action finds an action of the table by name and checks its arguments.
func (d *tableDef) action(a Action, data []uint64) (*action, error) {
	return findAction("table "+d.Name, d.actions, a, data)
}

func findAction(where string, list []*action, a Action, data []uint64) (*action, error) {
	i := slices.IndexFunc(list, func(x *action) bool { return x.Name == a.Name })
	if i < 0 {
		return nil, fmt.Errorf("%s: action %s: %w; there are: %s", where, a.Name, ErrNotFound, actionNames(list))
	}
	act := list[i]
	if len(a.Args) != len(act.params) {
		return nil, invalid("%s: action %s takes %d arguments, not %d", where, act.Name, len(act.params), len(a.Args))
	}
	for j, p := range act.params {
		if !number(data[p.at:p.at+words(p.bits)], a.Args[j], p.bits) {
			return nil, invalid("%s: action %s, argument %s: %x is wider than %d bits", where, act.Name, act.Params[j].Name, a.Args[j], p.bits)
		}
	}
	return act, nil
}

func actionNames(list []*action) string {
	s := ""
	for i, a := range list {
		if i > 0 {
			s += ", "
		}
		s += a.Name
	}
	return s
}

// exact returns the route with exactly this prefix, or none.
func (m *lpmMatcher) exact(p parsedKey) uint32 {
	if e, ok := m.routes.Get(netip.PrefixFrom(m.addr(p.key), p.prefix)); ok {
		return e
	}
	return none
}
