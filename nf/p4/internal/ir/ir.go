// Package ir describes a loaded P4 program as a tree. It is for executors other than the engine of package p4,
// which turns programs into closures that no other code can inspect. Each part means what the engine does for
// it.
package ir

// Program is a program. All that it points to belongs to it, and is never changed.
type Program struct {
	// Architecture is the name of an architecture that has no tree: then there is nothing else. "" is v1model.
	Architecture string
	Headers      []*Header // and metadata
	// Parser says that the program has a parser. Without one the whole frame is payload.
	Parser bool
	Start  int // state; -1: accept
	States []State
	// Numbers of the core library's errors.
	NoError, TooShort, InvalidArgument uint32
	OutOfBounds                        uint32 // of a header stack
	HeaderTooShort                     uint32 // for a field of variable length
	Verify, Update                     []Checksum
	Nodes                              []Node
	Ingress, Egress                    int // nodes; -1: none
	Tables                             []Table
	Profiles                           []*Profile
	Actions                            []Action
	Deparser                           bool
	Deparse                            []*Header // in the order in which they leave
	DeparseOps                         int       // primitives of the deparser
	Counters                           []Array
	Meters                             []Meters
	Registers                          []Registers
	ValueSets                          []string // their names
	Hashes                             []Hash
	Std                                Standard
}

// Registers is an array of registers. A cell has Words words, the least significant first.
type Registers struct {
	Name              string
	Size, Bits, Words int
	Place
}

// Place says where the cells of an array are: in the memory Group, the first cell at word At, and each cell
// Stride words after the one before it.
type Place struct{ Group, At, Stride int }

// MaxGroup is the longest memory that arrays share, in words.
const MaxGroup = 8 << 20

// PlaceRegisters sets the places of arrays. Arrays with equally many cells have their cells side by side, in
// rows, because programs often use several arrays with the same index, and a row is in one or two cache lines.
// It returns the lengths of the groups, in words.
func PlaceRegisters(arrays []Registers) (lengths []int) {
	last := map[int]int{} // by number of cells
	var strides []int
	for i := range arrays {
		r := &arrays[i]
		g, there := last[r.Size]
		if !there || (strides[g]+r.Words)*r.Size > MaxGroup {
			g = len(strides)
			strides = append(strides, 0)
			last[r.Size] = g
		}
		r.Place = Place{Group: g, At: strides[g]}
		strides[g] += r.Words
	}
	lengths = make([]int, len(strides))
	for i := range arrays {
		r := &arrays[i]
		r.Stride = strides[r.Group]
		lengths[r.Group] = r.Size * r.Stride
	}
	return lengths
}

// Hash is a calculation. Algorithm is the name in the JSON.
type Hash struct {
	Name, Algorithm string
	Payload         bool
	Inputs          []Input
}

// Standard holds the fields that the architecture reads and writes; nil: the program does not have the field.
type Standard struct {
	IngressPort, PacketLength, InstanceType, EgressSpec, EgressPort *Field
	ParserError, ChecksumError                                      *Field
	IngressTime, EgressTime, Group, Rid, Priority                   *Field
	EnqTime, EnqDepth, DeqTime, DeqDepth, Qid                       *Field
}

// Header is a header, or metadata, which is always valid.
type Header struct {
	Name   string
	Index  int
	Meta   bool
	Bits   int // without a varbit
	Varbit bool
	Fields []*Field
	Type   int       // equal for headers of one type
	Others []*Header // of its union
}

// Field is a field of a header.
type Field struct {
	Name     string
	Header   *Header
	Bits     int
	BitOff   int // in the header, from its first bit on the wire
	Signed   bool
	Saturate bool
	Varbit   bool
}

// Op is the operation of an expression, as in package p4.
type Op uint8

// The operations, in the order in which package p4 has them.
const (
	Const Op = iota
	FieldOf
	Member
	Last
	Local
	Scratch
	Register
	Add
	Sub
	Mul
	Div
	Mod
	Shl
	Shr
	And
	Or
	Xor
	Neg
	SignCast
	SatCast
	UsatCast
	If
	ToData
	LastIndex
	StackCount

	True
	False
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	EqBool
	NeBool
	EqHeader
	NeHeader
	EqUnion
	NeUnion
	AndAlso
	OrElse
	Not
	Valid
	ValidUnion
	ToBool

	HeaderOf
	Stack
	Union
	UnionStack
	Elem
	UnionElem
	UnionHeader
)

// Sort is the type of an expression's value, as in package p4.
type Sort uint8

// The sorts.
const (
	Data Sort = iota
	Bool
	OfHeader
	OfOther // stacks and unions
)

// Expr is an expression. The value v of an expression of sort Data is known to be in 0 <= v < 2^Bits, or in
// -2^Bits <= v < 2^Bits if Neg is set.
type Expr struct {
	Op     Op
	Sort   Sort
	Neg    bool
	Bits   int
	Kids   [3]*Expr
	Const  []uint64     // of a Const: two's complement, least significant word first
	Header *Header      // of HeaderOf and FieldOf
	Field  *Field       // of FieldOf; nil: the header's validity
	At     int          // of Local: word of the action's data; of casts: the width
	Stack  *HeaderStack // of Stack
}

// HeaderStack is a header stack. Next is a field of metadata that counts the headers which the parser has extracted or
// the program has pushed. Where a frame chooses an element, the tree has an If for each element.
type HeaderStack struct {
	Name  string
	Elems []*Header
	Next  *Field
}

// Fits reports whether one word holds every value of e: as an unsigned number, or as a signed one if e.Neg is
// set.
func (e *Expr) Fits() bool { return e.Bits <= 63 || !e.Neg && e.Bits == 64 }

// Word returns the value of a constant that fits into a word; ok is false for other expressions.
func (e *Expr) Word() (uint64, bool) {
	if e.Op == Const && e.Fits() {
		return e.Const[0], true
	}
	return 0, false
}

// Arg is a parameter of a primitive or of an operation of the parser: an expression, or the name or number of an object.
type Arg struct {
	Expr   *Expr
	Name   string
	Object int  // counter, meter, register or hash, by its place in the program; -1: none
	Look   bool // a lookahead of Bits bits, Off bits from where the parser is
	Off    int
	Bits   int
	Number uint64 // of "shift": bytes
}

// Call is a primitive of an action, or an operation of the parser. Name is its name in the JSON.
type Call struct {
	Name   string
	Args   []Arg
	Header *Header      // of "extract": what is extracted; nil: an element of a stack
	Stack  *HeaderStack // of "extract": its next element is extracted; nil: it is none of a stack of headers
}

// Action is an action. Its parameters are the data words of an entry.
type Action struct {
	Name  string
	Words int
	Code  []Call
}

// State is a state of the parser.
type State struct {
	Name  string
	Ops   []Call
	Parts []KeyPart
	Cases []Case
	Next  int // when no case is it; -1: accept
}

// KeyPart is a part of a transition key: a field, the validity of a header (Valid), or a lookahead. Unknown
// says that it is none of these.
type KeyPart struct {
	Field *Field
	Valid *Header
	Look  bool
	Off   int
	Bits  int
	At    int // word of Value and Mask
	// Last is a stack of whose last header the part is a field. Each has the field of each element.
	Last    *HeaderStack
	Each    []*Field
	Unknown bool
}

// Case is a transition of a parser state. A transition on a value set has no Value, and its Mask, unless it is nil, is one of the key
// whose parts lie side by side, as members have them.
type Case struct {
	Value, Mask []uint64
	Next        int
	// ValueSet is 1 + the number of a value set, or 0. Use counts the transitions of all states on value sets.
	ValueSet, Use int
}

// SetMember is a member of a value set: the value of a key whose parts lie side by side, and the bits that are compared.
type SetMember struct {
	Value, Mask []uint64
	Ranges      []SetRange
}

// SetRange says that the Bits bits of a key in front of the last Shift bits are a number from Low to High.
type SetRange struct {
	Shift, Bits int
	Low, High   []uint64
}

// Checksum is a field that is verified or updated.
type Checksum struct {
	Name  string
	Field *Field
	When  *Expr // nil: always
	// Sum says that the algorithm is csum16. Payload says that the payload is covered, too.
	Sum, Payload bool
	Inputs       []Input
}

// Input is a field, a header with all its fields, or a constant.
type Input struct {
	Field  *Field
	Header *Header
	Value  []uint64
	Bits   int
}

// NodeKind is a kind of node.
type NodeKind uint8

// The kinds of nodes.
const (
	TableNode NodeKind = iota
	TestNode
	ActionNode
)

// Node is a table, a condition or an action of a pipeline.
type Node struct {
	Kind    NodeKind
	Name    string
	Table   int
	Test    *Expr
	Action  int
	Data    []uint64 // of Action
	Yes, No int      // next; behind an action Yes
}

// Match says how a key is compared, as in package p4.
type Match uint8

// The kinds of matches.
const (
	Exact Match = iota
	LPM
	Ternary
	Range
	ValidHeader
)

// Key is a field of a table's key. Its value begins at word At of a row's key.
type Key struct {
	Match Match
	Bits  int
	Words int
	At    int
	Field *Field
	Valid *Header // the field counts as 0 while this header is invalid; with no Field: the validity itself
	Mask  []uint64
	// Unknown says that it is a field of a stack element which the packet chooses: it has no Field.
	Unknown bool
}

// Table is a table.
type Table struct {
	Name      string
	Kind      Match // of the table: which entry wins
	Keys      []Key
	KeyWords  int
	DataWords int
	Size      int
	Actions   []int // with those that members of Profile may have
	Next      []int // node behind an action, by its number in the program
	Hit, Miss int   // nodes, when Branches
	Branches  bool
	BaseMiss  int
	Profile   *Profile // nil: its entries have actions of their own
	Meter     int      // in Meters: the direct one; -1: none
	Counters  bool
	Timeout   bool
	// ConstDefault says that the default entry is Initial with InitData and never changes. Initial -1 means no
	// action.
	ConstDefault bool
	Initial      int
	InitData     []uint64
}

// Profile is an action profile. Its members, and the entries of its tables, have DataWords words of
// action data. Size 0 means that
// there may be any number of them.
type Profile struct {
	Name            string
	Index           int
	Size, DataWords int
	Hash            *Hash // chooses among the members of a group; nil: there are no groups
}

// Share is a member of a group, by its place, that gets Weight of all shares of the frames.
type Share struct {
	Member uint32
	Weight uint64
}

// Replica is a copy of a frame: the port to which it goes, and its egress_rid.
type Replica struct {
	Port uint32
	Rid  uint16
}

// Array is an array of counters.
type Array struct {
	Name string
	Size int
}

// Meters is an array of meters of Rates rates that count Bytes or packets. A direct one has size 0: its cells belong to the
// entries of a table, and its colors go to Target.
type Meters struct {
	Name        string
	Size, Rates int
	Bytes       bool
	Target      *Field
}

// Row is an entry of a table.
type Row struct {
	Key, Mask []uint64
	Prefix    int
	Order     int32 // the lowest wins
	Action    int   // -1: a member or a group of an action profile, or none
	Data      []uint64
	// Member and Group are places in the table's action profile, from 1 on; 0: none.
	Member, Group uint32
}

// Count is the value of a counter.
type Count struct{ Packets, Bytes uint64 }

// Follower is told every change of a Switch's tables and arrays, right after it, by the goroutine that made the
// change. It is also asked for the counts of the other executor. Tables, counters and meters are named by their
// index in the program.
type Follower interface {
	Put(table int, row uint32, r Row) // inserted, or changed: its action or data
	Delete(table int, row uint32, r Row)
	Default(table int, r Row)
	// Member is told of a member of an action profile, by its place, that is new or has changed, and Group of a
	// group with the members that get frames. action -1 and there false mean that it is gone. Members are told
	// before groups that have them, and both before entries.
	Member(profile int, at uint32, action int, data []uint64)
	Group(profile int, at uint32, there bool, live []Share)
	// ValueSet is told of all members of a value set.
	ValueSet(set int, members []SetMember)
	// Multicast is told of the replicas of a multicast group that serve now; without any the group is gone.
	Multicast(group uint32, to []Replica)
	// Meters returns the memory in which both executors have the cells of an array of meters, EntryMeters the memory for those of a
	// table's entries, by row, and of its default entry, behind all others; nil: only the Switch has them. Owner is what the Switch
	// stores in MeterLock. Metered is told that rates were set.
	Meters(meter int) []uint64
	EntryMeters(table int) []uint64
	Owner() uint64
	Metered()
	// Count and EntryCount return what the other executor has counted beside the Switch. Row -1 means the
	// default entry. After a Reset they count from 0.
	Count(counter, cell int) Count
	ResetCount(counter, cell int)
	EntryCount(table, row int) Count
	ResetEntryCount(table, row int)
	// Hit reports whether the other executor has hit an entry since the last call of Hit for it.
	Hit(table int, row uint32) bool
	// Registers returns the memory in which both executors have the cells of a group of register arrays; nil:
	// only the Switch has them. The cells may be read and written only between Lock and Unlock. filled says that the
	// values in the memory hold, and not those of the Switch.
	Registers(group int) (cells []uint64, filled bool)
	Lock()
	Unlock()
}
