// Package table declares the tables of apps. One declaration (Decl)
// serves P4Runtime, the command line and the documentation.
//
// A table is of one of two sorts. A setting stands for arguments of the app: its
// entries are read from the arguments, and a change of the table changes the arguments. So there
// is one place for the app's configuration. Any other table shows
// state of the app, such as connections or words of memory.
package table

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/value"
)

// Match says how a field of a key is compared.
type Match uint8

const (
	Exact    = Match(value.Exact)
	LPM      = Match(value.LPM)
	Ternary  = Match(value.Ternary)
	Range    = Match(value.Range)
	Optional = Match(value.Optional)
)

// Form says how people write a value. A field of form Words has 0 Bits, and its value is a text of
// at most MaxWords bytes. A key field of form Words is Exact or Optional.
type Form uint8

const (
	Decimal = Form(value.Decimal)
	Hex     = Form(value.Hex)
	IP      = Form(value.IP)
	MAC     = Form(value.MAC)
	Words   = Form(value.Words)
)

// MaxWords is the largest length of a text in bytes.
const MaxWords = 1 << 20

var formNames = []string{"decimal", "hex", "ip", "mac", "words"}
var scopeNames = []string{"anywhere", "entry", "default"}

func (m Match) String() string                { return value.Match(m).String() }
func (m Match) MarshalText() ([]byte, error)  { return []byte(m.String()), nil }
func (f Form) MarshalText() ([]byte, error)   { return []byte(formNames[f]), nil }
func (s Scope) MarshalText() ([]byte, error)  { return []byte(scopeNames[s]), nil }
func (m *Match) UnmarshalText(b []byte) error { return named(m, value.Matches, b) }
func (f *Form) UnmarshalText(b []byte) error  { return named(f, formNames, b) }
func (s *Scope) UnmarshalText(b []byte) error { return named(s, scopeNames, b) }

func named[T ~uint8](v *T, names []string, b []byte) error {
	n := slices.Index(names, string(b))
	if n < 0 {
		return fmt.Errorf("%q is none of %s", b, list(names))
	}
	*v = T(n)
	return nil
}

// Field is a field of a key, or a parameter of an action.
type Field struct {
	Name  string `json:"name"`
	Bits  int    `json:"bits"`            // at most 128; 0: a text
	Match Match  `json:"match,omitempty"` // of a key's
	Form  Form   `json:"form"`
	Help  string `json:"help,omitempty"`
	// Names are words for numbers, for people: a text has the word, and Parse accepts the word and the number.
	Names map[string]uint64 `json:"-"`
}

// takes returns why v cannot be a value of the field, or "" if it can.
func (f *Field) takes(v Value) string {
	switch {
	case f.Form != Words && !v.Fits(f.Bits):
		return fmt.Sprintf("does not fit in %d bits", f.Bits)
	case f.Form == Words && (v.Hi != 0 || v.Lo != 0):
		return "is no text"
	case f.Form == Words && len(v.Str()) > MaxWords:
		return fmt.Sprintf("is longer than %d bytes", MaxWords)
	}
	return ""
}

// Bytes returns v in the form of P4Runtime: a number as Value.Bytes, a text as its bytes.
func (f *Field) Bytes(v Value) []byte {
	if f.Form == Words {
		return []byte(v.Str())
	}
	return v.Bytes()
}

// FromBytes reads a value in the form that Bytes writes. It returns false if a number is empty or has more than 128
// bits.
func (f *Field) FromBytes(b []byte) (Value, bool) {
	if f.Form == Words {
		return String(string(b)), true
	}
	return FromBytes(b)
}

// Scope says whether an action may be used in entries, as the default action, or both.
type Scope uint8

const (
	Anywhere    Scope = iota
	EntryOnly         // not as a table's default
	DefaultOnly       // not in an entry
)

// Action declares an action of entries. Actions with the same name in several tables of
// an app are the same action.
type Action struct {
	Name   string  `json:"name"`
	Params []Field `json:"params,omitempty"`
	Scope  Scope   `json:"scope"`
	Help   string  `json:"help,omitempty"`
	// Refers are the key fields, as TABLE.FIELD of the same app, of other entries to which entries with this
	// action refer. Controllers insert the other entries before the referring ones, and delete them after these.
	Refers []string `json:"refers,omitempty"`
}

// Ops is a set of operations that change a table.
type Ops uint8

const (
	Insert Ops = 1 << iota
	Modify
	Delete
	Default // of the default action
)

var opNames = []string{"insert", "modify", "delete", "default"}

// Names returns the names of the operations in o.
func (o Ops) Names() []string {
	var n []string
	for i, s := range opNames {
		if o&(1<<i) != 0 {
			n = append(n, s)
		}
	}
	return n
}

func (o Ops) String() string { return list(o.Names()) }

// MarshalJSON writes o as a list of names.
func (o Ops) MarshalJSON() ([]byte, error) { return json.Marshal(append([]string{}, o.Names()...)) }

// UnmarshalJSON reads a list of names.
func (o *Ops) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*o = 0
	for _, n := range names {
		i := slices.Index(opNames, n)
		if i < 0 {
			return fmt.Errorf("%q is none of %s", n, list(opNames))
		}
		*o |= 1 << i
	}
	return nil
}

// Decl declares a table, under the name that it has in the app's P4 twin.
type Decl struct {
	Name    string   `json:"name"`
	Help    string   `json:"help"`
	Keys    []Field  `json:"keys,omitempty"`
	Actions []Action `json:"actions"`
	// Default is the default action of an app without arguments; nil: none.
	Default *Call `json:"default,omitempty"`
	// Size is the largest number of entries; 0: arguments of the app limit it.
	Size int `json:"size,omitempty"`
	// May are the changes that clients may make.
	May Ops `json:"may"`
	// Setting is set if the table stands for arguments. It is nil if the table shows state of the app.
	Setting *Setting `json:"-"`
	// Sharded says that each worker has entries of its own. Otherwise all workers have
	// the same entries.
	Sharded bool `json:"sharded,omitempty"`
}

// Action returns the index of the action of that name, or -1 if the table has none.
func (d *Decl) Action(name string) int {
	return slices.IndexFunc(d.Actions, func(a Action) bool { return a.Name == name })
}

// HasKey reports whether the table has a key field of that name, or one whose name ends with a dot and that name.
func (d *Decl) HasKey(name string) bool { return len(fieldsCalled(d.Keys, name)) > 0 }

// Called returns the indices of those of n items that name stands for: the first item with that full name; or, if there
// is none, all items with that alias, or whose full name ends with a dot and name.
func Called(n int, name string, names func(i int) (full, alias string)) (found []int) {
	for i := range n {
		full, alias := names(i)
		if full == name {
			return []int{i}
		}
		if alias == name || strings.HasSuffix(full, "."+name) {
			found = append(found, i)
		}
	}
	return found
}

func fieldsCalled(fields []Field, name string) []int {
	return Called(len(fields), name, func(i int) (full, alias string) { return fields[i].Name, fields[i].Name })
}

// Prioritized reports whether entries need a priority.
func (d *Decl) Prioritized() bool {
	return slices.ContainsFunc(d.Keys, func(k Field) bool { return k.Match == Ternary || k.Match == Range || k.Match == Optional })
}

// Call is an action with its arguments.
type Call struct {
	Action int     `json:"action"` // index into Decl.Actions
	Params []Value `json:"params,omitempty"`
}

// Equal reports whether c and o are the same action with the same arguments.
func (c Call) Equal(o Call) bool { return c.Action == o.Action && slices.Equal(c.Params, o.Params) }

// Cond is a condition on a key field. An exact or optional field must equal V. An LPM or ternary field
// must equal V under the mask M. A range field must be from V to M, both included. Any value meets
// a Cond with Any set, whose V and M are zero; an exact field cannot have it.
type Cond struct {
	V, M Value
	Any  bool
}

// Entry is an entry of a table. Its key and priority identify it.
type Entry struct {
	Key      []Cond
	Priority int32 // the higher one counts; 0 where no field needs it
	Call
	Counts *Counts // what it has done, where the app counts that and is asked for it; of changes it is nil
}

// Counts are packets, and their bytes.
type Counts struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Same reports whether e and o have the same key and priority.
func (e *Entry) Same(o *Entry) bool { return e.Priority == o.Priority && slices.Equal(e.Key, o.Key) }

// Clone returns a copy that shares nothing with e.
func (e *Entry) Clone() *Entry {
	c := &Entry{slices.Clone(e.Key), e.Priority, Call{e.Action, slices.Clone(e.Params)}, nil}
	if e.Counts != nil {
		n := *e.Counts
		c.Counts = &n
	}
	return c
}

// Change is one change of a table.
type Change struct {
	Table string
	Op    Ops // one of them; Default changes the default action
	Entry
	// Reset, with Default, restores the declared default action. Keep, with Modify, leaves
	// the entry as it is, and fails if the table does not have it.
	Reset, Keep bool
}

// Args are an app's arguments.
type Args = map[string]string

// Rows are the entries of a setting, and its default action (with Decl.Default).
type Rows struct {
	Default Call
	Entries []Entry
}

// Setting turns arguments into entries and back. Of and Set are pure functions.
type Setting struct {
	// Arg is the argument that has all entries of the table, or "" if no single argument has them all.
	Arg string
	// Of returns the entries that valid arguments stand for.
	Of func(args Args) Rows
	// Set returns those arguments that must change in args so that the table has the entries rows.
	// An error says which entry is not possible, or why. The same entry fails also without the others.
	Set func(args Args, rows Rows) (Args, error)
}

// Code says what sort of error a change met.
type Code uint8

const (
	Invalid Code = iota + 1 // it cannot be
	Exists                  // it is there already
	Missing                 // it is not there
	Full                    // there is no room
	Denied                  // clients may not
	Busy                    // not in the state that the app is in
	Aborted                 // because of another change
	Unable                  // not possible here
)

// Error says why a change was refused.
type Error struct {
	Code Code
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// Errorf makes an Error.
func Errorf(c Code, format string, args ...any) error { return &Error{c, fmt.Sprintf(format, args...)} }

// Check returns an error if clients may not make this sort of change, or if the entry does not
// fit the table's declaration.
func (d *Decl) Check(c *Change) error {
	if d.May&c.Op == 0 {
		if d.May == 0 {
			return Errorf(Denied, "table %s can be read only", d.Name)
		}
		return Errorf(Denied, "table %s: no %s: it takes %v", d.Name, c.Op.Names()[0], d.May)
	}
	if c.Op != Default {
		if err := d.checkKey(&c.Entry); err != nil {
			return err
		}
	}
	if c.Op == Delete || c.Reset || c.Keep {
		return nil
	}
	if c.Action < 0 || c.Action >= len(d.Actions) {
		return Errorf(Invalid, "table %s has no action %d", d.Name, c.Action)
	}
	a := &d.Actions[c.Action]
	switch {
	case c.Op == Default && a.Scope == EntryOnly:
		return Errorf(Invalid, "table %s: action %s is for entries only", d.Name, a.Name)
	case c.Op != Default && a.Scope == DefaultOnly:
		return Errorf(Invalid, "table %s: action %s is for the default only", d.Name, a.Name)
	case len(c.Params) != len(a.Params):
		return Errorf(Invalid, "table %s: action %s takes %d parameters, not %d", d.Name, a.Name, len(a.Params), len(c.Params))
	}
	for i, p := range a.Params {
		if why := p.takes(c.Params[i]); why != "" {
			return Errorf(Invalid, "table %s: action %s: %s %s", d.Name, a.Name, p.Name, why)
		}
	}
	return nil
}

func (d *Decl) checkKey(e *Entry) error {
	if len(d.Keys) == 0 {
		return Errorf(Invalid, "table %s has no entries, only a default action", d.Name)
	}
	if len(e.Key) != len(d.Keys) {
		return Errorf(Invalid, "table %s has a key of %d fields, not %d", d.Name, len(d.Keys), len(e.Key))
	}
	for i, k := range d.Keys {
		c := e.Key[i]
		bad := func(why string) error { return Errorf(Invalid, "table %s: %s %s", d.Name, k.Name, why) }
		switch {
		case c.Any && k.Match == Exact:
			return bad("is missing")
		case c.Any && c != Cond{Any: true}:
			return bad("is given, and is not")
		case k.takes(c.V) != "":
			return bad(k.takes(c.V))
		case !c.M.Fits(k.Bits):
			return bad(fmt.Sprintf("does not fit in %d bits", k.Bits))
		case c.Any:
		case (k.Match == LPM || k.Match == Ternary) && c.V.AndNot(c.M) != Value{}:
			return bad("has bits that its mask has not")
		case k.Match == LPM && c.M.PrefixLen(k.Bits) < 0:
			return bad("is no prefix")
		case k.Match == Range && c.M.Less(c.V):
			return bad("ends before it begins")
		}
	}
	switch {
	case d.Prioritized() && e.Priority <= 0:
		return Errorf(Invalid, "table %s: its entries need a priority above 0", d.Name)
	case !d.Prioritized() && e.Priority != 0:
		return Errorf(Invalid, "table %s: its entries have no priority", d.Name)
	}
	return nil
}

func list(s []string) string {
	if len(s) == 0 {
		return "nothing"
	}
	out := s[0]
	for i, x := range s[1:] {
		if i == len(s)-2 {
			out += " and " + x
		} else {
			out += ", " + x
		}
	}
	return out
}

// Do makes change c to r. Check must have accepted c.
func (d *Decl) Do(r *Rows, c *Change) error {
	if c.Op == Default {
		r.Default = c.Clone().Call
		if c.Reset {
			r.Default = *d.Default
		}
		return nil
	}
	at := slices.IndexFunc(r.Entries, func(e Entry) bool { return e.Same(&c.Entry) })
	switch {
	case c.Op == Insert && at >= 0:
		return Errorf(Exists, "table %s has %s already", d.Name, d.KeyText(&c.Entry))
	case c.Op != Insert && at < 0:
		return Errorf(Missing, "table %s has no %s", d.Name, d.KeyText(&c.Entry))
	case c.Op == Insert && d.Size > 0 && len(r.Entries) >= d.Size:
		return Errorf(Full, "table %s has its %d entries", d.Name, d.Size)
	}
	switch c.Op {
	case Insert:
		r.Entries = append(r.Entries, *c.Clone())
	case Modify:
		if !c.Keep {
			r.Entries[at].Call = c.Clone().Call
		}
	case Delete:
		r.Entries = slices.Delete(r.Entries, at, at+1)
	}
	return nil
}
