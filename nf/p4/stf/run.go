package stf

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
)

// Failure is an expectation of the file that was not met.
type Failure struct {
	Line int    `json:"line"` // of the statement; 0: no statement expected the frame
	Text string `json:"text"`
}

// String returns the failure with its line.
func (f Failure) String() string {
	if f.Line == 0 {
		return f.Text
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.Text)
}

// Result is the result of running a file.
type Result struct {
	Packets  int       `json:"packets"`  // sent
	Checks   int       `json:"checks"`   // expect, no_packet, check_counter, check_register
	Failures []Failure `json:"failures"` // none: passed
}

// Run runs the statements on a new switch with the program. It returns an error if a statement cannot be
// carried out, for example because of an unknown table or a value that is too wide.
func Run(prog *p4.Program, statements []Statement, c p4.Config) (Result, error) {
	r, err := newRun(prog, c)
	if err != nil {
		return Result{}, err
	}
	for i := range statements {
		if err := r.do(&statements[i]); err != nil {
			return r.Result, fmt.Errorf("line %d: %w", statements[i].Line, err)
		}
	}
	r.compare()
	return r.Result, nil
}

// port holds the frames that left by a port, and those that were expected there.
type port struct {
	out  [][]byte
	want []*Statement
}

// label is an entry to which the file gave a name.
type label struct {
	table  string
	handle p4.Handle
}

// node is a node of a multicast group: a rid and its ports.
type node struct {
	rid   uint16
	ports []uint32
}

type run struct {
	Result
	prog   *p4.Program
	sw     *p4.Switch
	now    clock.Time
	ports  map[uint32]*port
	last   int // frames that left after the last packet
	labels map[string]label
	nodes  []node
	groups map[uint32][]int
}

func newRun(prog *p4.Program, c p4.Config) (*run, error) {
	sw, err := p4.NewSwitch(prog, c)
	if err != nil {
		return nil, err
	}
	return &run{prog: prog, sw: sw, now: c.Start, ports: map[uint32]*port{}, labels: map[string]label{}}, nil
}

func (r *run) port(n uint32) *port {
	p := r.ports[n]
	if p == nil {
		p = &port{}
		r.ports[n] = p
	}
	return p
}

func (r *run) fail(line int, format string, args ...any) {
	r.Failures = append(r.Failures, Failure{line, fmt.Sprintf(format, args...)})
}

func (r *run) do(s *Statement) error {
	switch s.Op {
	case Add:
		return r.add(s)
	case SetDefault:
		t, err := r.table(s.Name)
		if err != nil {
			return err
		}
		a, err := action(t, s)
		if err != nil {
			return err
		}
		return r.sw.SetDefault(t.Name, p4.Entry{Action: a})
	case RemoveAll:
		return r.removeAll()
	case Packet:
		frame, err := hex.DecodeString(s.Data)
		if err != nil {
			return err
		}
		r.Packets++
		r.now = r.now.Add(time.Microsecond)
		r.last = 0
		r.sw.Process(r.now, s.Port, frame, func(n uint32, frame []byte) {
			r.last++
			p := r.port(n)
			p.out = append(p.out, slices.Clone(frame))
		})
	case Expect:
		r.Checks++
		p := r.port(s.Port)
		p.want = append(p.want, s)
	case NoPacket:
		r.Checks++
		if r.last != 0 {
			r.fail(s.Line, "want no frame of the last packet, got %d", r.last)
		}
	case Wait:
		r.now = r.now.Add(time.Second)
	case CheckCounter:
		return r.checkCounter(s)
	case CheckRegister:
		return r.checkRegister(s)
	case Command:
		return r.command(s)
	}
	return nil
}

// resolve returns the name in names that is name, or ends with it.
func resolve(what, name string, names []string) (string, error) {
	if slices.Contains(names, name) {
		return name, nil
	}
	for _, end := range []string{"." + name, name} {
		var found []string
		for _, n := range names {
			if strings.HasSuffix(n, end) && !slices.Contains(found, n) {
				found = append(found, n)
			}
		}
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return "", fmt.Errorf("%s %s: the program has %s", what, name, strings.Join(found, " and "))
		}
	}
	return "", fmt.Errorf("the program has no %s %s", what, name)
}

// find returns the element of all whose name is name, or ends with it.
func find[T any](what, name string, all []T, nameOf func(T) string) (found T, err error) {
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = nameOf(x)
	}
	full, err := resolve(what, name, names)
	if err == nil {
		found = all[slices.Index(names, full)]
	}
	return found, err
}

func (r *run) table(name string) (p4.TableInfo, error) {
	return find("table", name, r.prog.Tables(), func(t p4.TableInfo) string { return t.Name })
}

func action(t p4.TableInfo, s *Statement) (p4.Action, error) {
	about, err := find("action", s.Action, t.Actions, func(a p4.ActionInfo) string { return a.Name })
	if err != nil {
		return p4.Action{}, fmt.Errorf("table %s: %w", t.Name, err)
	}
	a := p4.Action{Name: about.Name, Args: make([][]byte, len(about.Params))}
	for _, arg := range s.Args {
		i := slices.IndexFunc(about.Params, func(p p4.FieldInfo) bool { return p.Name == arg.Name })
		if i < 0 {
			return a, fmt.Errorf("action %s has no parameter %s", a.Name, arg.Name)
		}
		if a.Args[i] != nil {
			return a, fmt.Errorf("action %s: parameter %s has two values", a.Name, arg.Name)
		}
		a.Args[i] = append([]byte{}, arg.Value.Bytes()...)
	}
	for i, p := range about.Params {
		if a.Args[i] == nil {
			return a, fmt.Errorf("action %s: parameter %s has no value", a.Name, p.Name)
		}
	}
	return a, nil
}

// keyField finds a field of a key by a name in one of the forms that files use.
func keyField(t p4.TableInfo, name string) (int, error) {
	if base, rest, ok := strings.Cut(name, "$"); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
		n := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
		if n < 0 {
			n = len(rest)
		}
		name = base + "[" + rest[:n] + "]" + rest[n:]
	}
	names := make([]string, len(t.Keys))
	for i, k := range t.Keys {
		names[i] = k.Name
	}
	var err error
	for _, n := range []string{name, name + "$", name + ".$valid$", strings.TrimSuffix(name, "valid") + "$valid$"} {
		var full string
		if full, err = resolve("field", n, names); err == nil {
			return slices.Index(names, full), nil
		}
	}
	return 0, fmt.Errorf("table %s has no field %s, or several", t.Name, name)
}

func (r *run) add(s *Statement) error {
	t, e, err := r.entry(s)
	if err != nil {
		return err
	}
	h, err := r.sw.Insert(t.Name, e)
	if err == nil && s.Label != "" {
		r.labels[s.Label] = label{t.Name, h}
	}
	return err
}

// entry returns the entry of an add statement, and its table.
func (r *run) entry(s *Statement) (p4.TableInfo, p4.Entry, error) {
	t, err := r.table(s.Name)
	if err != nil {
		return t, p4.Entry{}, err
	}
	e := p4.Entry{Key: make([]p4.Match, len(t.Keys))}
	for i, k := range t.Keys {
		e.Key[i].Any = k.Match != p4.Exact && k.Match != p4.Valid
	}
	given := make([]bool, len(t.Keys))
	for _, f := range s.Key {
		i, err := keyField(t, f.Name)
		if err != nil {
			return t, e, err
		}
		if given[i] {
			return t, e, fmt.Errorf("table %s, field %s has two values", t.Name, f.Name)
		}
		given[i] = true
		if e.Key[i], err = match(t.Keys[i], f.Value); err != nil {
			return t, e, fmt.Errorf("table %s, field %s: %w", t.Name, f.Name, err)
		}
	}
	if t.Priority {
		e.Priority = math.MaxInt32 - s.Priority
	}
	e.Action, err = action(t, s)
	return t, e, err
}

func match(k p4.KeyInfo, v Value) (p4.Match, error) {
	m := p4.Match{Value: v.Value.Bytes()}
	switch k.Match {
	case p4.Exact, p4.Valid:
		if v.Wild || v.Prefix >= 0 || v.With != nil || v.High != nil {
			return m, fmt.Errorf("an exact match takes a number")
		}
	case p4.LPM:
		switch {
		case v.With != nil || v.High != nil:
			return m, fmt.Errorf("a longest prefix match takes a number or a prefix")
		case v.Prefix >= 0:
			m.Prefix = v.Prefix
		case v.Bits == 0:
			m.Prefix = k.Bits
		default:
			m.Prefix = min(v.Lead+k.Bits-min(v.Bits, k.Bits), k.Bits)
			if v.Bits > k.Bits {
				m.Prefix = max(v.Lead-(v.Bits-k.Bits), 0)
			}
		}
	case p4.Ternary:
		all := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(k.Bits)), big.NewInt(1))
		mask := all
		switch {
		case v.Prefix >= 0 || v.High != nil:
			return m, fmt.Errorf("a ternary match takes a number or a mask")
		case v.With != nil:
			mask = v.With
		case v.Bits != 0:
			mask = new(big.Int).And(v.Mask, all)
		}
		m.Mask = append([]byte{}, mask.Bytes()...)
	case p4.Range:
		high := v.High
		switch {
		case v.Prefix >= 0 || v.With != nil || v.Wild:
			return m, fmt.Errorf("a range match takes a number or LOW..HIGH")
		case high == nil:
			high = v.Value
		}
		m.Mask = append([]byte{}, high.Bytes()...)
	}
	return m, nil
}

func (r *run) removeAll() error {
	clear(r.labels)
	for _, t := range r.prog.Tables() {
		if t.Const || len(t.Keys) == 0 {
			continue
		}
		var all []p4.Handle
		if err := r.sw.Entries(t.Name, func(h p4.Handle, _ p4.Entry) bool {
			all = append(all, h)
			return true
		}); err != nil {
			return err
		}
		for _, h := range all {
			if err := r.sw.Delete(t.Name, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// array finds an array of counters, meters or registers.
func array(what, name string, all []p4.ArrayInfo) (p4.ArrayInfo, error) {
	return find(what, name, all, func(a p4.ArrayInfo) string { return a.Name })
}

func (r *run) checkCounter(s *Statement) error {
	r.Checks++
	var (
		n   p4.Count
		err error
	)
	if s.Check.Entry != "" {
		l, ok := r.labels[s.Check.Entry]
		if !ok {
			return fmt.Errorf("no entry is called %s", s.Check.Entry)
		}
		n, err = r.sw.EntryCount(l.table, l.handle)
	} else {
		var a p4.ArrayInfo
		if a, err = array("counter", s.Name, r.prog.Counters()); err == nil {
			n, err = r.sw.Count(a.Name, s.Check.Index)
		}
	}
	if err != nil {
		return err
	}
	got, unit := n.Packets, "packets"
	if s.Check.Bytes {
		got, unit = n.Bytes, "bytes"
	}
	if !holds(new(big.Int).SetUint64(got), s.Check.Cond, s.Check.Value) {
		r.fail(s.Line, "counter %s has %d %s, want %s %v", s.Name, got, unit, s.Check.Cond, s.Check.Value)
	}
	return nil
}

func (r *run) checkRegister(s *Statement) error {
	r.Checks++
	a, err := array("register", s.Name, r.prog.Registers())
	if err != nil {
		return err
	}
	b, err := r.sw.Register(a.Name, s.Check.Index)
	if err != nil {
		return err
	}
	if got := new(big.Int).SetBytes(b); !holds(got, s.Check.Cond, s.Check.Value) {
		r.fail(s.Line, "register %s(%d) is %#x, want %s %#x", s.Name, s.Check.Index, got, s.Check.Cond, s.Check.Value)
	}
	return nil
}

func holds(a *big.Int, cond string, b *big.Int) bool {
	switch c := a.Cmp(b); cond {
	case "==":
		return c == 0
	case "!=":
		return c != 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	default:
		return c >= 0
	}
}

// compare compares the frames that left by each port with the expected frames.
func (r *run) compare() {
	for _, n := range slices.Sorted(maps.Keys(r.ports)) {
		p := r.ports[n]
		for i, s := range p.want {
			if i >= len(p.out) {
				r.fail(s.Line, "port %d: no frame came, want %s", n, shown(s))
				continue
			}
			if at := differs(s, hex.EncodeToString(p.out[i])); at >= 0 {
				r.fail(s.Line, "port %d: frame %d differs at byte %d\n\tgot  %x\n\twant %s", n, i+1, at/2, p.out[i], shown(s))
			}
		}
		for i := len(p.want); i < len(p.out); i++ {
			r.fail(0, "port %d: nothing expected frame %d: %x", n, i+1, p.out[i])
		}
	}
	slices.SortStableFunc(r.Failures, func(a, b Failure) int { return a.Line - b.Line })
}

func shown(s *Statement) string {
	switch {
	case s.Data == "" && !s.Exact:
		return "any"
	case s.Exact:
		return s.Data + "$"
	}
	return s.Data
}

// differs returns the index of the first digit at which a frame differs from the expected one, or -1.
func differs(s *Statement, got string) int {
	for i := range len(s.Data) {
		if i >= len(got) || s.Data[i] != '*' && s.Data[i] != got[i] {
			return i
		}
	}
	if s.Exact && len(got) > len(s.Data) {
		return len(s.Data)
	}
	return -1
}
