package firewall

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/quillon/quillon/nf/classify"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/table"
)

// maxRules is the largest number of rules of a family.
const maxRules = 16384

// Fields of a rule, in the order of a table's key.
const (
	fieldIn = iota
	fieldSrc
	fieldDst
	fieldProto
	fieldSport
	fieldDport
	numFields
)

// Actions of a rule.
const (
	allow = iota
	deny
	limit
)

// maxRate is the largest rate (connections a second) and the largest burst (connections at once) of a rule.
const maxRate = 1_000_000

// decl declares the table of a family's rules; bits is the length of its addresses.
func decl(bits int) table.Decl {
	d := table.Decl{
		Name: "acl", Help: "rules for IPv4 (rules=)",
		Keys: []table.Field{
			fieldIn:    {Name: "in", Bits: 1, Match: table.Optional, Help: "the port that a connection is opened from: 0 is a, 1 is b"},
			fieldSrc:   {Name: "src", Bits: bits, Match: table.Ternary, Form: table.IP, Help: "address of who opens it: a prefix"},
			fieldDst:   {Name: "dst", Bits: bits, Match: table.Ternary, Form: table.IP, Help: "address of the other end: a prefix"},
			fieldProto: {Name: "proto", Bits: 8, Match: table.Optional, Help: "protocol above IP"},
			fieldSport: {Name: "sport", Bits: 16, Match: table.Range, Help: "source port, of TCP and UDP only"},
			fieldDport: {Name: "dport", Bits: 16, Match: table.Range, Help: "destination port, of TCP and UDP only"},
		},
		Actions: []table.Action{
			allow: {Name: "allow", Scope: table.EntryOnly, Help: "the connection is opened, and its answers pass"},
			deny:  {Name: "deny", Scope: table.EntryOnly, Help: "dropped"},
			limit: {Name: "limit", Scope: table.EntryOnly, Help: "as allow, for so many connections a second, and dropped beyond", Params: []table.Field{
				{Name: "rate", Bits: 20, Help: "connections a second"},
				{Name: "burst", Bits: 20, Help: "connections at once"},
			}},
		},
		Size: maxRules, May: table.Insert | table.Modify | table.Delete,
	}
	arg := "rules"
	if bits == 128 {
		d.Name, d.Help, arg = "acl_ipv6", "rules for IPv6 (rules6=)", "rules6"
	}
	keys := d.Keys
	icmp := uint64(1)
	if bits == 128 {
		icmp = 58
	}
	keys[fieldIn].Names = map[string]uint64{"a": 0, "b": 1}
	keys[fieldProto].Names = map[string]uint64{"icmp": icmp, "tcp": 6, "udp": 17}
	d.Setting = &table.Setting{
		Arg: arg,
		Of: func(args table.Args) (r table.Rows) {
			r.Entries, _ = parseRules(args[arg], keys)
			return r
		},
		Set: func(_ table.Args, r table.Rows) (table.Args, error) {
			v := formatRules(r.Entries, keys)
			if _, err := parseRules(v, keys); err != nil {
				return nil, table.Errorf(table.Invalid, "table %s: %v", d.Name, err)
			}
			return table.Args{arg: v}, nil
		},
	}
	return d
}

// place identifies a rule of a family: two rules never have the same conditions and priority.
type place struct {
	key  [numFields]table.Cond
	prio int32
}

func placeOf(e *table.Entry) place { return place{[numFields]table.Cond(e.Key), e.Priority} }

// parseRules reads rules that are separated by ; or a new line. A rule is an action and, each with + in front,
// any of in, src, dst, proto, sport, dport and prio, with a colon and a value:
// allow+in:a+proto:tcp+dport:80-90+prio:7. A rule without prio comes before the rules behind it. With rate, and
// optionally burst, allow becomes the action limit.
func parseRules(v string, keys []table.Field) (all []table.Entry, err error) {
	if v == "" || v == "none" {
		return nil, nil
	}
	texts := strings.FieldsFunc(v, func(r rune) bool { return r == ';' || r == '\n' })
	texts = slices.DeleteFunc(texts, func(s string) bool { return strings.TrimSpace(s) == "" })
	if len(texts) > maxRules {
		return nil, fmt.Errorf("at most %d rules", maxRules)
	}
	taken := map[place]bool{}
	for i, text := range texts {
		e, err := parseRule(strings.TrimSpace(text), keys)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		if e.Priority == 0 {
			e.Priority = int32(len(texts)-i) * 10
		}
		p := placeOf(&e)
		if taken[p] {
			return nil, fmt.Errorf("%q: there is another with the same conditions and priority", text)
		}
		taken[p] = true
		all = append(all, e)
	}
	return all, nil
}

func parseRule(text string, keys []table.Field) (e table.Entry, err error) {
	e.Key = make([]table.Cond, len(keys))
	for i := range e.Key {
		e.Key[i].Any = true
	}
	action, terms, more := strings.Cut(text, "+")
	switch action {
	case "allow":
	case "deny":
		e.Action = deny
	default:
		return e, fmt.Errorf("want allow or deny first, not %q", action)
	}
	seen := map[string]bool{}
	var rate, burst uint64
	for more {
		var term string
		term, terms, more = strings.Cut(terms, "+")
		name, value, _ := strings.Cut(term, ":")
		if seen[name] {
			return e, fmt.Errorf("%s is there twice", name)
		}
		seen[name] = true
		switch name {
		case "prio":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 {
				return e, fmt.Errorf("prio:%s: want a number above 0", value)
			}
			e.Priority = int32(n)
			continue
		case "rate", "burst":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil || n < 1 || n > maxRate {
				return e, fmt.Errorf("%s:%s: want a number of connections from 1 to %d", name, value, maxRate)
			}
			if name == "rate" {
				rate = n
			} else {
				burst = n
			}
			continue
		}
		i := slices.IndexFunc(keys, func(f table.Field) bool { return f.Name == name })
		if i < 0 {
			return e, fmt.Errorf("%q is none of in, src, dst, proto, sport, dport, prio, rate and burst, with a colon and a value", name)
		}
		f := &keys[i]
		if e.Key[i], err = f.ParseCond(value); err != nil {
			return e, err
		}
		if c := e.Key[i]; f.Match == table.Ternary && c.M.PrefixLen(f.Bits) < 0 {
			return e, fmt.Errorf("%s: want an address or a prefix", term)
		}
	}
	switch {
	case rate == 0 && burst == 0:
	case rate == 0:
		return e, fmt.Errorf("burst: without rate")
	case e.Action == deny:
		return e, fmt.Errorf("rate: a rule that denies has none")
	default:
		e.Action, e.Params = limit, []table.Value{table.Uint(rate), table.Uint(cmp.Or(burst, rate))}
	}
	return e, nil
}

// formatRules writes rules in the form that parseRules reads.
func formatRules(all []table.Entry, keys []table.Field) string {
	if len(all) == 0 {
		return "none"
	}
	var b strings.Builder
	for n := range all {
		e := &all[n]
		if n > 0 {
			b.WriteByte(';')
		}
		b.WriteString([]string{allow: "allow", deny: "deny", limit: "allow"}[e.Action])
		for i := range keys {
			c, f := e.Key[i], &keys[i]
			if c.Any {
				continue
			}
			text := f.Value(c.V)
			switch {
			case f.Match == table.Ternary && c.M.PrefixLen(f.Bits) < 0:
				text = f.Cond(c)
			case f.Match == table.Ternary && c.M.PrefixLen(f.Bits) < f.Bits:
				text += "/" + strconv.Itoa(c.M.PrefixLen(f.Bits))
			case f.Match == table.Range && c.M != c.V:
				text += "-" + f.Value(c.M)
			}
			fmt.Fprintf(&b, "+%s:%s", f.Name, text)
		}
		if e.Action == limit {
			fmt.Fprintf(&b, "+rate:%d+burst:%d", e.Params[0].Lo, e.Params[1].Lo)
		}
		fmt.Fprintf(&b, "+prio:%d", e.Priority)
	}
	return b.String()
}

// acl finds the first rule, by priority, that a packet meets. The set numbers the rules by their index in sorted
// order.
type acl struct {
	set     *classify.Set
	long    bool // addresses have two words
	actions []uint8
	meters  []*meter      // nil: the rule has none
	places  map[place]int // of the sorted rules
}

// meter limits how many connections a rule opens, for all workers together, by the generic cell rate algorithm
// (ITU-T I.371).
type meter struct {
	every clock.Duration // between two connections
	depth clock.Duration // for how many a burst has room
	next  atomic.Int64   // when the bucket will be full again, if nothing is opened until then
}

func newMeter(rate, burst uint64) *meter {
	every := clock.Duration(1_000_000_000 / rate)
	return &meter{every: every, depth: every * clock.Duration(burst)}
}

// take reports whether the rule may open another connection now, and counts it if so. Any worker may call it.
func (m *meter) take(now clock.Time) bool {
	for {
		was := m.next.Load()
		full := max(clock.Time(was), now).Add(m.every)
		if full.Sub(now) > m.depth {
			return false
		}
		if m.next.CompareAndSwap(was, int64(full)) {
			return true
		}
	}
}

// noPort stands for the port of protocols that have none, so that rules with a port do not match.
const noPort = 1 << 16

// newACL compiles rules. A rule that was in the former acl with the same limit keeps its meter; was may be nil.
func newACL(rules []table.Entry, keys []table.Field, was *acl) *acl {
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(x, y table.Entry) int { return int(y.Priority) - int(x.Priority) })
	t := &acl{actions: make([]uint8, len(rules)), meters: make([]*meter, len(rules)), places: make(map[place]int, len(rules)), long: keys[fieldSrc].Bits > 64}
	for i := range rules {
		p := placeOf(&rules[i])
		t.actions[i], t.places[p] = uint8(rules[i].Action), i
		if rules[i].Action != limit {
			continue
		}
		m := newMeter(rules[i].Params[0].Lo, rules[i].Params[1].Lo)
		if was != nil {
			if k, ok := was.places[p]; ok && was.meters[k] != nil && was.meters[k].every == m.every && was.meters[k].depth == m.depth {
				m = was.meters[k]
			}
		}
		t.meters[i] = m
	}
	t.fill(rules, keys)
	return t
}

// portBits is the number of bits of a port, with noPort.
const portBits = 17

// maxWords is the largest number of words of a key in the set.
const maxWords = numFields + 2

// fill puts the sorted rules into the set.
func (t *acl) fill(rules []table.Entry, keys []table.Field) {
	var fields []classify.Field
	for i := range keys {
		f := classify.Field{Bits: keys[i].Bits, Range: keys[i].Match == table.Range}
		if f.Range {
			f.Bits = portBits
		}
		fields = append(fields, f)
	}
	t.set = classify.New(fields)
	list := make([]classify.Entry, len(rules))
	for n := range rules {
		e := classify.Entry{Number: uint32(n), Order: int32(n)}
		for i := range keys {
			v, m := rules[n].Key[i].V, table.Ones(fields[i].Bits)
			switch c := rules[n].Key[i]; {
			case c.Any && !fields[i].Range:
				v, m = table.Value{}, table.Value{}
			case c.Any:
				v = table.Value{} // to the highest
			case fields[i].Range || keys[i].Match == table.Ternary:
				m = c.M
			}
			e.Key, e.Mask = append(e.Key, v.Lo), append(e.Mask, m.Lo)
			if fields[i].Bits > 64 {
				e.Key, e.Mask = append(e.Key, v.Hi), append(e.Mask, m.Hi)
			}
		}
		list[n] = e
	}
	t.set.Fill(list)
}

// match returns the index, in sorted order, of the first rule that the values meet, or a negative number if none
// does.
func (t *acl) match(v *[numFields]table.Value) int {
	words := [maxWords]uint64{v[fieldIn].Lo, v[fieldSrc].Lo, v[fieldDst].Lo, v[fieldProto].Lo, v[fieldSport].Lo, v[fieldDport].Lo}
	key := words[:numFields]
	if t.long {
		words = [maxWords]uint64{v[fieldIn].Lo, v[fieldSrc].Lo, v[fieldSrc].Hi, v[fieldDst].Lo, v[fieldDst].Hi, v[fieldProto].Lo, v[fieldSport].Lo, v[fieldDport].Lo}
		key = words[:]
	}
	if e := t.set.Find(key); e != classify.None {
		return int(e)
	}
	return -1
}
