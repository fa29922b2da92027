package stf

import (
	"bufio"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/value"
)

// Op says what a statement does.
type Op uint8

// The operations. Command is one of bmv2's commands; Statement.Command is its name.
const (
	Add Op = iota
	SetDefault
	RemoveAll
	Packet
	Expect
	NoPacket
	CheckCounter
	CheckRegister
	Wait
	Command
)

// Number is a number as the file has it.
type Number struct {
	Value *big.Int
	// Mask has the bits that digits other than * stand for.
	Mask *big.Int
	// Bits is the number of bits that the digits stand for; 0: the number is decimal.
	Bits int
	// Wild says that one of the digits is *. Lead is the number of bits that the digits before the first *
	// stand for.
	Wild bool
	Lead int
}

// Value is the value of a key's field.
type Value struct {
	Number
	Prefix int      // -1: none was given
	With   *big.Int // the mask of VALUE&&&MASK; nil: none
	High   *big.Int // of LOW..HIGH; nil: no range
}

// Field is a field of a key.
type Field struct {
	Name  string
	Value Value
}

// Arg is an argument of an action.
type Arg struct {
	Name  string
	Value *big.Int
}

// Check is a condition on a counter or a register.
type Check struct {
	Entry string // label of the entry; "": Index
	Index int
	Bytes bool // of a counter, not packets
	Cond  string
	Value *big.Int
}

// Rate is a token bucket: tokens a microsecond, and the highest number of tokens.
type Rate struct {
	PerMicrosecond float64
	Burst          uint64
}

// Statement is one line of a file.
type Statement struct {
	Line     int
	Op       Op
	Name     string // of the table, counter, register or meter
	Priority int32
	Key      []Field
	Action   string
	Args     []Arg
	Label    string // of the entry
	Port     uint32
	// Data is a frame in hexadecimal digits. In an Expect, * stands for any digit.
	Data    string
	Exact   bool // the frame has no more than Data
	Check   Check
	Command string
	Numbers []*big.Int
	Rates   []Rate
}

// maxLine is the longest line, in bytes. It is longer than a jumbo frame in hexadecimal with spaces.
const maxLine = 1 << 20

// Parse reads a file. An error names the line.
func Parse(r io.Reader) ([]Statement, error) {
	var all []Statement
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	n := 0
	for sc.Scan() {
		n++
		line, _, _ := strings.Cut(sc.Text(), "#")
		l := &lexer{rest: line}
		word := strings.ToLower(l.word())
		if word == "" {
			if l.space(); l.rest != "" {
				return nil, fmt.Errorf("line %d: %q is no statement", n, strings.TrimSpace(line))
			}
			continue
		}
		s, err := statement(word, l)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n, word, err)
		}
		s.Line = n
		all = append(all, s)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return all, nil
}

func statement(word string, l *lexer) (s Statement, err error) {
	switch word {
	case "add":
		s.Op = Add
		err = l.add(&s)
	case "setdefault":
		s.Op = SetDefault
		if s.Name, err = l.name(); err == nil {
			s.Action, s.Args, err = l.action()
		}
	case "remove":
		s.Op = RemoveAll
		if strings.ToLower(l.word()) != "all" {
			err = fmt.Errorf("want: remove all")
		}
	case "packet":
		s.Op = Packet
		err = l.frame(&s, false)
	case "expect":
		s.Op = Expect
		err = l.frame(&s, true)
	case "no_packet":
		s.Op = NoPacket
	case "wait":
		s.Op = Wait
	case "check_counter":
		s.Op = CheckCounter
		err = l.check(&s)
	case "check_register":
		s.Op = CheckRegister
		err = l.check(&s)
	default:
		s.Op, s.Command = Command, word
		err = l.command(&s)
	}
	if err != nil {
		return s, err
	}
	if l.space(); l.rest != "" {
		return s, fmt.Errorf("what is %q?", l.rest)
	}
	return s, nil
}

// lexer splits a line into tokens.
type lexer struct{ rest string }

func (l *lexer) space() { l.rest = strings.TrimLeft(l.rest, " \t\r") }

// take takes the longest prefix of bytes that ok accepts.
func (l *lexer) take(ok func(c byte) bool) string {
	i := 0
	for i < len(l.rest) && ok(l.rest[i]) {
		i++
	}
	s := l.rest[:i]
	l.rest = l.rest[i:]
	return s
}

func letter(c byte) bool { return c == '_' || c == '$' || 'a' <= c|0x20 && c|0x20 <= 'z' }
func digit(c byte) bool  { return '0' <= c && c <= '9' }

// word reads an identifier, or returns "" if there is none.
func (l *lexer) word() string {
	if l.space(); l.rest == "" || !letter(l.rest[0]) {
		return ""
	}
	return l.take(func(c byte) bool { return letter(c) || digit(c) })
}

// is skips a mark if it comes next, and reports whether it did.
func (l *lexer) is(mark string) bool {
	l.space()
	rest, ok := strings.CutPrefix(l.rest, mark)
	l.rest = rest
	return ok
}

// name reads a qualified name: identifiers, which may be quoted, with dots and [n].
func (l *lexer) name() (string, error) {
	var b strings.Builder
	for {
		if l.is(`"`) {
			q, rest, ok := strings.Cut(l.rest, `"`)
			if !ok || q == "" {
				return "", fmt.Errorf("a quoted name without an end")
			}
			b.WriteString(q)
			l.rest = rest
		} else if w := l.word(); w != "" {
			b.WriteString(w)
		} else {
			return "", fmt.Errorf("want a name at %q", l.rest)
		}
		if strings.HasPrefix(l.rest, "[") {
			l.rest = l.rest[1:]
			n := l.take(digit)
			if n == "" || !l.is("]") {
				return "", fmt.Errorf("want an index in [] at %q", l.rest)
			}
			b.WriteString("[" + n + "]")
		}
		if !strings.HasPrefix(l.rest, ".") || strings.HasPrefix(l.rest, "..") {
			return b.String(), nil
		}
		l.rest = l.rest[1:]
		b.WriteByte('.')
	}
}

// number reads a number. Digits after the prefix of a base may be *.
func (l *lexer) number() (Number, error) {
	l.space()
	at := l.rest
	bits, prefix := 0, ""
	if len(at) > 2 && at[0] == '0' {
		bits = map[byte]int{'x': 4, 'o': 3, 'b': 1}[at[1]|0x20]
	}
	if bits != 0 {
		prefix, l.rest = at[:2], at[2:]
	}
	text := l.take(func(c byte) bool {
		return digit(c) || bits != 0 && c == '*' || bits == 4 && 'a' <= c|0x20 && c|0x20 <= 'f'
	})
	n := Number{Bits: bits * len(text), Lead: bits * len(text), Mask: new(big.Int)}
	one := big.NewInt(1<<bits - 1)
	if bits != 0 {
		for i := range len(text) {
			n.Mask.Lsh(n.Mask, uint(bits))
			if text[i] != '*' {
				n.Mask.Or(n.Mask, one)
			} else if !n.Wild {
				n.Wild, n.Lead = true, bits*i
			}
		}
	}
	v, _, err := value.Parse(prefix + strings.ReplaceAll(text, "*", "0"))
	if err != nil {
		return n, fmt.Errorf("want a number at %q", at)
	}
	n.Value = new(big.Int).SetBytes(v)
	return n, nil
}

// plain reads a number without *.
func (l *lexer) plain() (*big.Int, error) {
	n, err := l.number()
	if err == nil && n.Wild {
		err = fmt.Errorf("* in a number that must be known")
	}
	return n.Value, err
}

// index reads a number from 0 to 2^31-1.
func (l *lexer) index() (int, error) {
	v, err := l.plain()
	if err != nil {
		return 0, err
	}
	if v.BitLen() > 31 {
		return 0, fmt.Errorf("%v is too large", v)
	}
	return int(v.Int64()), nil
}

func (l *lexer) value() (v Value, err error) {
	v.Prefix = -1
	if v.Number, err = l.number(); err != nil {
		return v, err
	}
	switch {
	case l.is("/"):
		v.Prefix, err = l.index()
	case l.is("&&&"):
		v.With, err = l.plain()
	case l.is(".."):
		v.High, err = l.plain()
	default:
		return v, nil
	}
	if err == nil && v.Wild {
		err = fmt.Errorf("* together with a prefix, mask or range")
	}
	return v, err
}

func (l *lexer) add(s *Statement) (err error) {
	if s.Name, err = l.name(); err != nil {
		return err
	}
	if l.space(); l.rest != "" && digit(l.rest[0]) {
		n, err := l.index()
		if err != nil {
			return fmt.Errorf("priority: %w", err)
		}
		s.Priority = int32(n)
	}
	for {
		before := l.rest
		name, err := l.name()
		if err != nil {
			return err
		}
		if !l.is(":") {
			l.rest = before
			break
		}
		v, err := l.value()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.Key = append(s.Key, Field{name, v})
	}
	if s.Action, s.Args, err = l.action(); err != nil {
		return err
	}
	if l.is("=") {
		if s.Label = l.word(); s.Label == "" {
			return fmt.Errorf("want a label behind =")
		}
	}
	return nil
}

func (l *lexer) action() (name string, args []Arg, err error) {
	if name, err = l.name(); err != nil {
		return "", nil, err
	}
	if !l.is("(") {
		return "", nil, fmt.Errorf("want (arguments) behind action %s", name)
	}
	if l.is(")") {
		return name, nil, nil
	}
	for {
		arg, err := l.name()
		if err != nil {
			return "", nil, err
		}
		if !l.is(":") {
			return "", nil, fmt.Errorf("want a value behind %s:", arg)
		}
		v, err := l.plain()
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", arg, err)
		}
		args = append(args, Arg{arg, v})
		if l.is(")") {
			return name, args, nil
		}
		if !l.is(",") {
			return "", nil, fmt.Errorf("want , or ) at %q", l.rest)
		}
	}
}

// frame reads a port and the digits of a frame. In an expect the digits may be missing, may be *, and may end
// with $.
func (l *lexer) frame(s *Statement, expect bool) error {
	l.space()
	port, err := strconv.ParseUint(l.take(digit), 10, 32)
	if err != nil {
		return fmt.Errorf("want a port")
	}
	s.Port = uint32(port)
	var b strings.Builder
	for _, c := range []byte(l.rest) {
		switch {
		case c == ' ' || c == '\t' || c == '\r':
		case s.Exact:
			return fmt.Errorf("data behind $")
		case digit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' || expect && c == '*':
			b.WriteByte(c)
		case expect && c == '$':
			s.Exact = true
		default:
			return fmt.Errorf("%q is no digit of a frame", c)
		}
	}
	l.rest = ""
	s.Data = strings.ToLower(b.String())
	switch {
	case !expect && s.Data == "":
		return fmt.Errorf("want a frame")
	case !expect && len(s.Data)%2 != 0:
		return fmt.Errorf("%d digits are no whole number of bytes", len(s.Data))
	}
	return nil
}

func (l *lexer) check(s *Statement) (err error) {
	c := &s.Check
	if s.Name, err = l.name(); err != nil {
		return err
	}
	if !l.is("(") {
		return fmt.Errorf("want (index) behind %s", s.Name)
	}
	if c.Entry = l.word(); c.Entry == "" {
		if c.Index, err = l.index(); err != nil {
			return err
		}
	}
	if !l.is(")") {
		return fmt.Errorf("want ) at %q", l.rest)
	}
	if s.Op == CheckCounter {
		switch w := strings.ToLower(l.word()); w {
		case "bytes":
			c.Bytes = true
		case "packets":
		case "":
			c.Cond, c.Value = "==", new(big.Int)
			return nil
		default:
			return fmt.Errorf("want packets or bytes, not %s", w)
		}
	}
	for _, cond := range []string{"==", "!=", "<=", ">=", "<", ">"} {
		if l.is(cond) {
			c.Cond = cond
			c.Value, err = l.plain()
			return err
		}
	}
	return fmt.Errorf("want ==, !=, <, <=, > or >= at %q", l.rest)
}

// commands are bmv2's commands: whether a name comes first, how many numbers follow at least and at most (-1:
// any number), and whether rates come last.
var commands = [...]struct {
	word     string
	name     bool
	min, max int
	rates    bool
}{
	{"mirroring_add", false, 2, 2, false},
	{"mirroring_add_mc", false, 2, 2, false},
	{"mirroring_delete", false, 1, 1, false},
	{"mirroring_get", false, 1, 1, false},
	{"mc_mgrp_create", false, 1, 1, false},
	{"mc_node_create", false, 1, -1, false},
	{"mc_node_update", false, 1, -1, false},
	{"mc_node_associate", false, 2, 2, false},
	{"counter_read", true, 1, 1, false},
	{"counter_write", true, 3, 3, false},
	{"register_read", true, 1, 1, false},
	{"register_write", true, 2, 2, false},
	{"register_reset", true, 0, 0, false},
	{"meter_get_rates", true, 1, 1, false},
	{"meter_set_rates", true, 1, 1, true},
	{"meter_array_set_rates", true, 0, 0, true},
}

func (l *lexer) command(s *Statement) (err error) {
	for _, c := range commands {
		if c.word != s.Command {
			continue
		}
		if c.name {
			if s.Name, err = l.name(); err != nil {
				return err
			}
		}
		for l.space(); l.rest != "" && len(s.Numbers) != c.max; l.space() {
			n, err := l.plain()
			if err != nil {
				return err
			}
			s.Numbers = append(s.Numbers, n)
		}
		if len(s.Numbers) < c.min {
			return fmt.Errorf("want %d numbers", c.min)
		}
		for l.space(); c.rates && l.rest != ""; l.space() {
			if err := l.rate(s); err != nil {
				return err
			}
		}
		if c.rates && len(s.Rates) == 0 {
			return fmt.Errorf("want RATE:BURST")
		}
		return nil
	}
	return fmt.Errorf("no such statement")
}

func (l *lexer) rate(s *Statement) error {
	f, err := strconv.ParseFloat(l.take(func(c byte) bool { return digit(c) || c == '.' }), 64)
	if err != nil || !l.is(":") {
		return fmt.Errorf("want RATE:BURST at %q", l.rest)
	}
	burst, err := l.plain()
	if err != nil {
		return err
	}
	if !burst.IsUint64() {
		return fmt.Errorf("burst %v is too large", burst)
	}
	s.Rates = append(s.Rates, Rate{f, burst.Uint64()})
	return nil
}
