package engine

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/value"
)

const (
	// maxName is the longest name that a controller may give a value, in bytes.
	maxName = 255
	// maxNames is the highest number of names in a translation to which the device gives values that it chooses
	// itself.
	maxNames = 1 << 16
)

// names translates between the controllers' values and the program's. Types with the same URI share it.
//
// The type's annotation @p4runtime_translation_mappings({{SDN, VALUE}, ...}) has fixed pairs. A string that is
// not in it gets a value when it is first written: the lowest free one above 0, because 0 is the value of a
// field that was never set. If no value is free, names that no entry has lose their values. "#7" means value 7
// while that value has no name; the value gets no name while an entry has it. Numbers stand for themselves; if
// there are mappings, only the mapped numbers are valid.
type names struct {
	uri   string
	bits  int  // the smallest width of the program's fields
	words bool // controllers have strings
	// closed says that only the fixed values exist, as for errors.
	closed bool
	fixed  int // the number of mappings; if it is above 0, numbers have no other values

	mu    sync.Mutex // the worker never locks it
	to    map[string]uint64
	from  map[uint64]string
	mine  map[string]uint64 // names with values that the device chose: the last write that used them
	turn  uint64            // the number of the present write
	hint  uint64            // all lower values are taken
	sweep func(used func(uint64)) error
}

// slot is a field or a parameter whose values are translated.
type slot struct {
	*names
	sdn, dev int // widths; sdn is 0 for strings
}

// identity reports whether numbers stand for themselves.
func (s *slot) identity() bool { return !s.words && s.fixed == 0 }

// translations reads the translations of a P4Info, by URI.
func translations(i *p4info.Info) (map[string]*names, error) {
	all := map[string]*names{}
	for name, t := range i.Proto.GetTypeInfo().GetNewTypes() {
		tr := t.GetTranslatedType()
		if tr == nil {
			continue
		}
		_, words := tr.GetSdnType().(*configv1.P4NewTypeTranslation_SdnString_)
		n := all[tr.GetUri()]
		if n == nil {
			n = &names{uri: tr.GetUri(), words: words, bits: 64, to: map[string]uint64{}, from: map[uint64]string{}, mine: map[string]uint64{}, hint: 1}
			all[tr.GetUri()] = n
		}
		if n.words != words {
			return nil, refuse(codes.InvalidArgument, "type %s: its translation %q is one of strings for one type and of numbers for another", name, tr.GetUri())
		}
		for _, a := range t.GetAnnotations() {
			if err := n.mappings(a); err != nil {
				return nil, refuse(codes.InvalidArgument, "type %s: %v", name, err)
			}
		}
	}
	return all, nil
}

// errorNames returns the translation between the program's errors and their names.
func errorNames(errors map[string]uint32) *names {
	n := &names{uri: p4info.ErrorType, words: true, closed: true, fixed: len(errors), bits: 64, to: map[string]uint64{}, from: map[uint64]string{}, mine: map[string]uint64{}}
	for name, v := range errors {
		n.to[name], n.from[uint64(v)] = uint64(v), name
	}
	return n
}

// mappings reads an annotation of a type.
func (n *names) mappings(a string) error {
	const is = "@p4runtime_translation_mappings("
	text, ok := strings.CutPrefix(strings.TrimSpace(a), is)
	if !ok {
		return nil
	}
	bad := func(why string) error { return fmt.Errorf("%s...): %s: want {{\"eth1\", 1}, {\"eth2\", 2}}", is, why) }
	p := scanner{text}
	if !p.eat("{") {
		return bad("no list")
	}
	for !p.eat("}") {
		var sdn string
		if !p.eat("{") {
			return bad("no pair")
		}
		if n.words {
			if sdn, ok = p.quoted(); !ok {
				return bad("no string")
			}
		} else {
			v, ok := p.number()
			if !ok {
				return bad("no number")
			}
			sdn = string(value.Bytes(v))
		}
		if !p.eat(",") {
			return bad("no pair")
		}
		v, ok := p.number()
		if !ok || !p.eat("}") {
			return bad("no value")
		}
		if old, there := n.to[sdn]; there && old != v {
			return fmt.Errorf("%q has two values, %d and %d", sdn, old, v)
		}
		if old, there := n.from[v]; there && old != sdn {
			return fmt.Errorf("value %d has two names, %q and %q", v, old, sdn)
		}
		if len(sdn) > maxName || len(n.to) > maxNames {
			return fmt.Errorf("%d names, or one of %d bytes", len(n.to), len(sdn))
		}
		n.to[sdn], n.from[v] = v, sdn
		n.fixed = len(n.to)
		if !p.eat(",") && !strings.HasPrefix(p.rest(), "}") {
			return bad("no list")
		}
	}
	return nil
}

// scanner reads an annotation's text.
type scanner struct{ text string }

func (p *scanner) rest() string {
	p.text = strings.TrimLeft(p.text, " \t\n")
	return p.text
}

func (p *scanner) eat(s string) bool {
	rest, ok := strings.CutPrefix(p.rest(), s)
	if ok {
		p.text = rest
	}
	return ok
}

func (p *scanner) quoted() (string, bool) {
	q, err := strconv.QuotedPrefix(p.rest())
	if err != nil || q[0] != '"' {
		return "", false
	}
	p.text = p.text[len(q):]
	s, err := strconv.Unquote(q)
	return s, err == nil
}

func (p *scanner) number() (uint64, bool) {
	t := p.rest()
	end := strings.IndexAny(t, " \t\n,}")
	if end < 0 {
		return 0, false
	}
	v, _, err := value.Parse(t[:end])
	p.text = t[end:]
	return value.Uint64(v), err == nil && value.BitLen(v) <= 64
}

// fits checks that the values of all mappings fit into bits, the width in the program.
func (n *names) fits(bits int) error {
	n.bits = min(n.bits, bits)
	for sdn, v := range n.to {
		if value.BitLen(value.Bytes(v)) > n.bits {
			return refuse(codes.InvalidArgument, "translation %q: %q is %d, there are %d bits", n.uri, sdn, v, n.bits)
		}
	}
	return nil
}

// toDevice returns the program's value for a controller's value. With alloc it gives a value to a string that
// has none.
func (s *slot) toDevice(v []byte, alloc bool) ([]byte, error) {
	if s.identity() {
		if n := value.BitLen(v); n > s.dev {
			return nil, refuse(codes.OutOfRange, "value 0x%s needs %d bits, the device has %d for it", hex.EncodeToString(v), n, s.dev)
		}
		return v, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(v)
	if x, ok := s.to[key]; ok {
		if _, mine := s.mine[key]; mine {
			s.mine[key] = s.turn
		}
		return value.Bytes(x), nil
	}
	if !s.words {
		return nil, refuse(codes.InvalidArgument, "translation %q: 0x%s stands for no value of the device", s.uri, hex.EncodeToString(v))
	}
	if digits, ok := strings.CutPrefix(key, "#"); ok {
		x, err := strconv.ParseUint(digits, 10, 64)
		switch {
		case err != nil || strconv.FormatUint(x, 10) != digits:
			return nil, refuse(codes.InvalidArgument, "%q: names that begin with # are numbers of values without a name", key)
		case value.BitLen(value.Bytes(x)) > s.dev:
			return nil, refuse(codes.OutOfRange, "%q needs more than the %d bits that the device has for it", key, s.dev)
		case s.from[x] != "" || s.has(x):
			return nil, refuse(codes.InvalidArgument, "%q is named %q", key, s.from[x])
		case !alloc || s.closed:
			return value.Bytes(x), nil
		}
		if len(s.mine) >= maxNames {
			if err := s.forget(); err != nil {
				return nil, err
			}
			if len(s.mine) >= maxNames {
				return nil, s.full()
			}
		}
		s.give(key, x)
		return value.Bytes(x), nil
	}
	switch {
	case s.closed:
		return nil, refuse(codes.InvalidArgument, "the program has no error %q", key[:min(len(key), maxName)])
	case len(v) > maxName:
		return nil, refuse(codes.OutOfRange, "a name of %d bytes: at most %d", len(v), maxName)
	case !alloc:
		return nil, refuse(codes.NotFound, "nothing is named %q", key)
	}
	x, err := s.choose()
	if err != nil {
		return nil, err
	}
	s.give(key, x)
	return value.Bytes(x), nil
}

// give makes a name stand for a value.
func (n *names) give(name string, v uint64) {
	n.to[name], n.from[v], n.mine[name] = v, name, n.turn
}

func (n *names) has(v uint64) bool { _, ok := n.from[v]; return ok }

// choose returns a free value.
func (n *names) choose() (uint64, error) {
	for tries := range 2 {
		if len(n.mine) < maxNames {
			for v := n.hint; value.BitLen(value.Bytes(v)) <= n.bits && v != 0; v++ {
				if !n.has(v) {
					n.hint = v + 1
					return v, nil
				}
			}
		}
		if tries > 0 {
			break
		}
		if err := n.forget(); err != nil {
			return 0, err
		}
	}
	return 0, n.full()
}

func (n *names) full() error {
	return refuse(codes.ResourceExhausted, "translation %q: all %d values of the device have a name that is in use", n.uri, len(n.from))
}

// forget removes the names that no entry has, and that the present write has not used.
func (n *names) forget() error {
	used := map[uint64]bool{}
	if err := n.sweep(func(v uint64) { used[v] = true }); err != nil {
		return err
	}
	n.hint = 1
	for name, turn := range n.mine {
		if v := n.to[name]; turn != n.turn && !used[v] {
			delete(n.mine, name)
			delete(n.to, name)
			delete(n.from, v)
		}
	}
	return nil
}

// toSDN returns the controllers' value for a value of the program.
func (s *slot) toSDN(v []byte) []byte {
	if s.identity() || value.BitLen(v) > 64 {
		return value.Canonical(v)
	}
	x := value.Uint64(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, ok := s.from[x]; ok {
		return []byte(name)
	}
	if s.words {
		return []byte("#" + strconv.FormatUint(x, 10))
	}
	return value.Canonical(v)
}

// whole returns an error if is is false, because a translated value can only be matched as a whole.
func (s *slot) whole(is bool) error {
	if is {
		return nil
	}
	return refuse(codes.Unimplemented, "translation %q: of values that are translated one is matched, or all", s.uri)
}

// matchIn translates a match to the program's values.
func (s *slot) matchIn(m *p4v1.FieldMatch, alloc bool) (err error) {
	c := p4info.CondOf(m)
	switch c.Match {
	case configv1.MatchField_LPM:
		n := int(*c.Prefix)
		if !s.identity() {
			if err := s.whole(n == s.sdn); err != nil {
				return err
			}
		}
		if n -= s.sdn - s.dev; n <= 0 { // the program has only the last bits
			return refuse(codes.OutOfRange, "a prefix of length %d matches everything: the device has %d bits", *c.Prefix, s.dev)
		}
		*c.Prefix = int32(n)
	case configv1.MatchField_TERNARY:
		full := isOnes(*c.More, s.sdn)
		if !s.identity() {
			if err := s.whole(full); err != nil {
				return err
			}
		}
		switch {
		case full:
			*c.More = value.Ones(s.dev)
		case value.BitLen(*c.More) > s.dev || isOnes(*c.More, s.dev):
			return refuse(codes.OutOfRange, "mask 0x%x: the device has %d bits: want the full mask, or one of fewer bits", *c.More, s.dev)
		}
	case configv1.MatchField_RANGE:
		if !s.identity() {
			if err := s.whole(string(*c.Value) == string(*c.More)); err != nil {
				return err
			}
		}
		if *c.Value, err = s.toDevice(*c.Value, alloc); err == nil {
			*c.More, err = s.toDevice(*c.More, alloc)
		}
		return err
	}
	*c.Value, err = s.toDevice(*c.Value, alloc)
	return err
}

// matchOut translates a match to the controllers' values.
func (s *slot) matchOut(m *p4v1.FieldMatch) {
	c, whole := p4info.CondOf(m), true
	switch c.Match {
	case configv1.MatchField_LPM:
		whole = int(*c.Prefix) == s.dev
		*c.Prefix += int32(s.sdn - s.dev)
	case configv1.MatchField_TERNARY:
		if whole = isOnes(*c.More, s.dev); whole {
			*c.More = value.Ones(s.sdn)
		}
	case configv1.MatchField_RANGE:
		whole = string(*c.Value) == string(*c.More)
	}
	if !whole && !s.identity() {
		return
	}
	*c.Value = s.toSDN(*c.Value)
	if c.Match == configv1.MatchField_RANGE {
		*c.More = s.toSDN(*c.More)
	}
}

func slotKey(object, field uint32) uint64 { return uint64(object)<<32 | uint64(field) }

// each calls key and param for each value of an entity that is translated, in keys and in parameters.
func (b *binding) each(e *p4v1.Entity, key func(*slot, *p4v1.FieldMatch) error, param func(*slot, *p4v1.Action_Param) error) error {
	action := func(a *p4v1.Action) error {
		for _, x := range a.GetParams() {
			if s := b.params[slotKey(a.GetActionId(), x.GetParamId())]; s != nil {
				if err := param(s, x); err != nil {
					return err
				}
			}
		}
		return nil
	}
	x := p4info.Of(e)
	for _, m := range x.Entry.GetMatch() {
		if s := b.fields[slotKey(x.Object, m.GetFieldId())]; s != nil {
			if err := key(s, m); err != nil {
				return err
			}
		}
	}
	for _, a := range x.Entry.GetAction().GetActionProfileActionSet().GetActionProfileActions() {
		if err := action(a.GetAction()); err != nil {
			return err
		}
	}
	if err := action(x.Entry.GetAction().GetAction()); err != nil {
		return err
	}
	for _, v := range x.Values {
		for _, m := range v.GetMatch() {
			if s := b.fields[slotKey(x.Object, m.GetFieldId())]; s != nil {
				if err := key(s, m); err != nil {
					return err
				}
			}
		}
	}
	return action(x.Action)
}

// in returns an entity with the program's values.
func (b *binding) in(e *p4v1.Entity, alloc bool) (*p4v1.Entity, error) {
	if len(b.fields)+len(b.params) == 0 {
		return e, nil
	}
	e = proto.CloneOf(e)
	return e, b.each(e, func(s *slot, m *p4v1.FieldMatch) error { return s.matchIn(m, alloc) }, func(s *slot, x *p4v1.Action_Param) (err error) {
		x.Value, err = s.toDevice(x.GetValue(), alloc)
		return err
	})
}

// out returns an entity with the controllers' values.
func (b *binding) out(e *p4v1.Entity) *p4v1.Entity {
	if len(b.fields)+len(b.params) == 0 {
		return e
	}
	e = proto.CloneOf(e) // parts of e are kept, and must not change
	_ = b.each(e, func(s *slot, m *p4v1.FieldMatch) error { s.matchOut(m); return nil }, func(s *slot, x *p4v1.Action_Param) error {
		x.Value = s.toSDN(x.GetValue())
		return nil
	})
	return e
}

// newTurn begins a write. Names that the write uses are not forgotten before the next write.
func (b *binding) newTurn() {
	for _, n := range b.names {
		n.mu.Lock()
		n.turn++
		n.mu.Unlock()
	}
}

// header returns the slots of the fields of a packet's header (nil for fields that are not translated), and the
// header with the program's widths.
func (b *binding) header(h *p4info.Header, prog *p4.Program) (*p4info.Header, []*slot, error) {
	if h == nil {
		return nil, nil, nil
	}
	translated := false
	for _, f := range h.Fields {
		translated = translated || b.named(f.Type) != nil
	}
	slots := make([]*slot, len(h.Fields))
	if !translated {
		return h, slots, nil
	}
	// The fields are all that tells which of the program's headers it is.
	var widths []int
	for _, fields := range prog.Headers() {
		if len(fields) != len(h.Fields) {
			continue
		}
		var w []int
		for n, f := range fields {
			x := &h.Fields[n]
			if f.Name != x.Name || b.named(x.Type) == nil && f.Bits != x.Type.Bits {
				break
			}
			w = append(w, f.Bits)
		}
		switch {
		case len(w) != len(fields):
		case widths == nil:
			widths = w
		case fmt.Sprint(w) != fmt.Sprint(widths):
			return nil, nil, refuse(codes.InvalidArgument, "P4Info and program differ: header %s may be one of two in the program, of different widths", h.Name)
		}
	}
	if widths == nil {
		return nil, nil, refuse(codes.InvalidArgument, "P4Info and program differ: no header of the program has the fields of %s", h.Name)
	}
	for n := range h.Fields {
		var err error
		if slots[n], err = b.slot("header "+h.Name+", metadata "+h.Fields[n].Name, h.Fields[n].Type, widths[n]); err != nil {
			return nil, nil, err
		}
	}
	return h.With(widths), slots, nil
}

// named returns the translation of a type, or nil if the type has none.
func (b *binding) named(t p4info.Type) *names {
	if t.Named == "" {
		return nil
	}
	if t.Named == p4info.ErrorType && t.Bits == 0 {
		return b.names[p4info.ErrorType]
	}
	tr := b.info.Translation(t.Named)
	if tr == nil {
		return nil
	}
	return b.names[tr.GetUri()]
}

// slot returns the slot of a field of type t that has dev bits in the program, or nil if its values are not
// translated.
func (b *binding) slot(where string, t p4info.Type, dev int) (*slot, error) {
	n := b.named(t)
	if n == nil {
		return nil, nil
	}
	s := &slot{n, t.Bits, dev}
	if s.identity() {
		return s, nil
	}
	if dev > 64 {
		return nil, refuse(codes.Unimplemented, "%s: values of %d bits cannot be translated: at most 64 can", where, dev)
	}
	return s, n.fits(dev)
}

// used calls f with each value of a translation that an entry or a member has.
func (p *pipeline) used(n *names, f func(uint64)) error {
	note := func(s *slot, v []byte) {
		if s != nil && s.names == n && len(v) <= 8 {
			f(value.Uint64(v))
		}
	}
	action := func(a p4.Action) {
		for i, s := range p.binding.byName[a.Name] {
			if i < len(a.Args) {
				note(s, value.Canonical(a.Args[i]))
			}
		}
	}
	for _, t := range p.binding.tables {
		from, more := p4.Handle(0), !t.gone
		for more {
			count := 0
			err := p.visit(func(sw *p4.Switch) bool {
				if d, there, err := sw.Default(t.name); err == nil && there && from == 0 {
					action(d.Action)
				}
				at := 0
				from, more, _ = sw.EntriesFrom(t.name, from, func(_ p4.Handle, e p4.Entry) bool {
					for i, m := range e.Key {
						if s := p.binding.fields[slotKey(t.info.ID, t.keys[i].field.ID)]; s != nil && !m.Any {
							note(s, value.Canonical(m.Value))
						}
					}
					action(e.Action)
					at++
					return at < 8
				})
				count++
				return more && count < 64
			})
			if err != nil {
				return err
			}
		}
	}
	err := p.visit(func(*p4.Switch) bool {
		for id, list := range p.values {
			for _, v := range list {
				for _, m := range v.GetMatch() {
					note(p.binding.fields[slotKey(id, m.GetFieldId())], *p4info.CondOf(m).Value)
				}
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	for _, pr := range p.info.Profiles {
		err := p.visit(func(sw *p4.Switch) bool {
			ids, _ := sw.Members(pr.Name)
			for _, id := range ids {
				if a, err := sw.Member(pr.Name, id); err == nil {
					action(a)
				}
			}
			return false
		})
		if err != nil {
			return err
		}
	}
	return nil
}
