package p4

import (
	"errors"
	"maps"
	"slices"
)

// Program is a loaded P4 program. It never changes, and any number of switches may share it.
type Program struct {
	tables    []*tableDef
	actions   []*action
	nodes     []node
	ingress   int // first node of ingress; noNode: none
	egress    int
	parser    *parser // nil: the packet is all payload
	deparsers [numBlocks]*deparser
	headers   []*header
	owner     []*header // by word of a packet's state: the header whose base it is; nil elsewhere
	slots     int       // number of words of a packet's state
	reset     []slotValue
	tmp       int // number of scratch words that expressions use
	arch      architecture
	std       standard // v1model's; of PSA only the fields that replication uses
	registers []*registerDef
	groups    []int // by group: number of words of the memory that registers share
	counters  []*arrayDef
	meters    []*meterDef
	profiles  []*profileDef
	vsets     []*valueSetDef
	digests   []*digestDef
	lists     [][]copyRange // field lists by id
	verify    []*checksum
	update    []*checksum
	calcs     []*calculation
	logs      []*logMessage
	errors    map[string]uint32
	src       []byte // the JSON
}

// MatchKind says how a field of a key is compared.
type MatchKind uint8

// The kinds of matches. p4c writes optional as ternary.
const (
	Exact MatchKind = iota
	LPM
	Ternary
	Range
	Valid // validity of a header: 1 or 0
)

var matchNames = [...]string{"exact", "lpm", "ternary", "range", "valid"}

// String returns the name of the match kind in P4.
func (k MatchKind) String() string {
	if int(k) < len(matchNames) {
		return matchNames[k]
	}
	return "unknown"
}

// FieldInfo is a named value of some width: an action's parameter, or a field
// of a digest.
type FieldInfo struct {
	Name string
	Bits int
}

// KeyInfo is a field of a table's key.
type KeyInfo struct {
	Name  string
	Match MatchKind
	Bits  int
}

// ActionInfo describes an action. ID is the id in the JSON; two actions may have the same name.
type ActionInfo struct {
	Name   string
	ID     int
	Params []FieldInfo
}

// TableInfo describes a table. Actions are those that its entries may have.
type TableInfo struct {
	Name         string
	ID           int
	Keys         []KeyInfo
	Actions      []ActionInfo
	Size         int
	Const        bool // its entries are the program's, and cannot be changed
	ConstDefault bool // its default entry is the program's, and cannot be changed
	Counters     bool // entries have counters
	Meters       bool // entries have meters
	Timeout      bool // entries may have a Timeout
	Profile      string
	Selector     bool // entries may name groups
	// Priority says that an entry needs a priority, because the key has a field that is neither Exact, LPM nor
	// Valid.
	Priority bool
	// Hidden says that the compiler has made the table; it has no key and one action.
	Hidden bool
}

// ArrayInfo describes an array of counters, meters or registers.
type ArrayInfo struct {
	Name string
	ID   int
	Size int
	Bits int  // of a register: its width
	Byte bool // of a meter: it counts bytes, not packets
}

// ProfileInfo describes an action profile. Actions are those of the tables that use it, one of each name.
type ProfileInfo struct {
	Name     string
	ID       int
	Size     int
	Selector bool
	Actions  []ActionInfo
}

// DigestInfo is a list of fields that the program sends to the controller.
type DigestInfo struct {
	Name   string
	ID     int
	Fields []FieldInfo
}

// The kinds of errors of a Switch, for errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrFull     = errors.New("full")
	ErrConst    = errors.New("may not be changed")
	ErrInUse    = errors.New("in use")
	ErrInvalid  = errors.New("invalid")
)

// infos returns the descriptions of a list's elements.
func infos[T, I any](list []T, of func(T) I) []I {
	all := make([]I, len(list))
	for i, x := range list {
		all[i] = of(x)
	}
	return all
}

// Tables returns the program's tables, in the order of the JSON.
func (p *Program) Tables() []TableInfo {
	return infos(p.tables, func(t *tableDef) TableInfo { return t.TableInfo })
}

// Table returns the table with a name.
func (p *Program) Table(name string) (TableInfo, bool) {
	i := slices.IndexFunc(p.tables, func(t *tableDef) bool { return t.Name == name })
	if i < 0 {
		return TableInfo{}, false
	}
	return p.tables[i].TableInfo, true
}

// Actions returns the program's actions, in the order of the JSON.
func (p *Program) Actions() []ActionInfo {
	return infos(p.actions, func(a *action) ActionInfo { return a.ActionInfo })
}

// Counters returns the arrays of indirect counters.
func (p *Program) Counters() []ArrayInfo {
	return infos(p.counters, func(c *arrayDef) ArrayInfo { return c.ArrayInfo })
}

// Meters returns the arrays of indirect meters.
func (p *Program) Meters() []ArrayInfo {
	var all []ArrayInfo
	for _, m := range p.meters {
		if !m.direct {
			all = append(all, m.ArrayInfo)
		}
	}
	return all
}

// Registers returns the arrays of registers.
func (p *Program) Registers() []ArrayInfo {
	return infos(p.registers, func(r *registerDef) ArrayInfo { return r.ArrayInfo })
}

// Profiles returns the action profiles.
func (p *Program) Profiles() []ProfileInfo {
	return infos(p.profiles, func(d *profileDef) ProfileInfo { return d.ProfileInfo })
}

// ValueSetInfo describes a parser's value set. Bits is the width of a member, Parts are the widths of its
// fields. Parts is nil if no state of the parser uses the set.
type ValueSetInfo struct {
	Name  string
	Bits  int
	Parts []int
}

// ValueSets returns the parser's value sets.
func (p *Program) ValueSets() []ValueSetInfo {
	return infos(p.vsets, func(v *valueSetDef) ValueSetInfo { return ValueSetInfo{v.name, v.bits, v.parts} })
}

// Errors returns the program's numbers of errors, by name.
func (p *Program) Errors() map[string]uint32 { return maps.Clone(p.errors) }

// Digests returns the digests that the program may send to the controller.
func (p *Program) Digests() []DigestInfo {
	return infos(p.digests, func(d *digestDef) DigestInfo { return d.DigestInfo })
}

// Headers returns the fields of each header, without varbits, by the header's name.
func (p *Program) Headers() map[string][]FieldInfo {
	out := map[string][]FieldInfo{}
	for _, h := range p.headers {
		var fields []FieldInfo
		for _, f := range h.typ.fields {
			if !f.varbit {
				fields = append(fields, FieldInfo{f.name, f.bits})
			}
		}
		out[h.name] = fields
	}
	return out
}

// Source returns the JSON that the program was loaded from. The caller must not change it.
func (p *Program) Source() []byte { return p.src }
