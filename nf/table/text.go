package table

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/value"
)

// Text is an entry, or a default action, in words.
type Text struct {
	Default  bool              `json:"default,omitempty"`
	Match    map[string]string `json:"match,omitempty"` // fields that match everything are left out
	Priority int32             `json:"priority,omitempty"`
	Action   string            `json:"action,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
	Counts   *Counts           `json:"counts,omitempty"`
}

// TextOf reads an entry of words: KEY=VALUE... [priority=N] [ACTION [PARAM=VALUE...]].
func TextOf(words []string) (Text, error) {
	t := Text{}
	for _, a := range words {
		k, v, ok := strings.Cut(a, "=")
		into := &t.Match
		switch {
		case !ok && t.Action != "":
			return t, fmt.Errorf("%q is not of the form PARAM=VALUE", a)
		case !ok:
			t.Action = a
			continue
		case t.Action != "" && k != "": // a text may be empty
			into = &t.Params
		case k == "" || v == "":
			return t, fmt.Errorf("%q is not of the form KEY=VALUE", a)
		case k == "priority":
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 {
				return t, fmt.Errorf("priority=%s: want a number from 1", v)
			}
			t.Priority = int32(n)
			continue
		}
		if *into == nil {
			*into = map[string]string{}
		}
		if _, twice := (*into)[k]; twice {
			return t, fmt.Errorf("%s is given twice", k)
		}
		(*into)[k] = v
	}
	return t, nil
}

// Value is v in the field's form.
func (f *Field) Value(v Value) string {
	if f.Form == Words {
		return v.Str()
	}
	for name, n := range f.Names {
		if v == Uint(n) {
			return name
		}
	}
	return value.Format(value.Form(f.Form), f.Bits, v.Bytes())
}

// Parse reads a value, as value.Parse does. A text is taken as it is.
func (f *Field) Parse(s string) (Value, error) {
	if f.Form == Words {
		if len(s) > MaxWords {
			return Value{}, Errorf(Invalid, "%s is longer than %d bytes", f.Name, MaxWords)
		}
		return String(s), nil
	}
	if n, ok := f.Names[s]; ok {
		return Uint(n), nil
	}
	b, err := value.ParseBits(s, f.Bits)
	if err != nil {
		want := "a number"
		switch {
		case f.Form == IP && f.Bits == 32:
			want = "an IPv4 address or a number"
		case f.Form == IP && f.Bits == 128:
			want = "an IPv6 address or a number"
		case f.Form == MAC:
			want = "a MAC address or a number"
		}
		if len(f.Names) > 0 {
			want = strings.Join(slices.Sorted(maps.Keys(f.Names)), ", ") + ", or " + want
		}
		return Value{}, Errorf(Invalid, "%s=%s: want %s of %d bit%s", f.Name, s, want, f.Bits, "s"[:min(1, f.Bits-1)])
	}
	v, _ := FromBytes(b)
	return v, nil
}

// Cond is c in words; "" when everything meets it.
func (f *Field) Cond(c Cond) string {
	if c.Any {
		return ""
	}
	switch f.Match {
	case LPM:
		return fmt.Sprintf("%s/%d", f.Value(c.V), c.M.PrefixLen(f.Bits))
	case Ternary:
		return f.Value(c.V) + "&&&" + f.Value(c.M)
	case Range:
		return f.Value(c.V) + ".." + f.Value(c.M)
	}
	return f.Value(c.V)
}

// ParseCond reads what Cond writes, and all else that value.ParseCond does.
func (f *Field) ParseCond(s string) (Cond, error) {
	c, err := value.ParseCond(value.Match(f.Match), f.Bits, s, func(s string) ([]byte, error) {
		v, err := f.Parse(s)
		return f.Bytes(v), err
	})
	var own *Error
	switch {
	case errors.As(err, &own):
		return Cond{}, err
	case err != nil:
		return Cond{}, Errorf(Invalid, "%s=%s: %v", f.Name, s, err)
	case c.Any:
		return Cond{Any: true}, nil
	}
	out := Cond{}
	out.V, _ = f.FromBytes(c.V)
	if c.M != nil {
		out.M, _ = f.FromBytes(c.M)
	}
	return out, nil
}

// Text is an entry in words.
func (d *Decl) Text(e *Entry) Text {
	t := d.call(e.Call)
	t.Priority, t.Match, t.Counts = e.Priority, map[string]string{}, e.Counts
	for i := range d.Keys {
		if !e.Key[i].Any {
			t.Match[d.Keys[i].Name] = d.Keys[i].Cond(e.Key[i])
		}
	}
	return t
}

// DefaultText is a default action in words.
func (d *Decl) DefaultText(c Call) Text {
	t := d.call(c)
	t.Default = true
	return t
}

func (d *Decl) call(c Call) Text {
	if c.Action < 0 || c.Action >= len(d.Actions) {
		return Text{}
	}
	a := &d.Actions[c.Action]
	t := Text{Action: a.Name}
	for i := range a.Params {
		if t.Params == nil {
			t.Params = map[string]string{}
		}
		t.Params[a.Params[i].Name] = a.Params[i].Value(c.Params[i])
	}
	return t
}

// KeyText is where an entry is found, in words.
func (d *Decl) KeyText(e *Entry) string {
	var out []string
	for i := range d.Keys {
		if i < len(e.Key) && !e.Key[i].Any {
			out = append(out, d.Keys[i].Name+"="+d.Keys[i].Cond(e.Key[i]))
		}
	}
	if e.Priority != 0 {
		out = append(out, fmt.Sprintf("priority=%d", e.Priority))
	}
	if len(out) == 0 {
		return "entry for everything"
	}
	return "entry " + strings.Join(out, " ")
}

// Parse reads an entry, or a default action; of names the last parts are enough
// where only one has them. A text that is left out is empty. Without an action it is
// the place of an entry, as for Delete.
func (d *Decl) Parse(t Text) (Entry, error) {
	e := Entry{Priority: t.Priority, Call: Call{Action: -1}}
	if t.Default && (len(t.Match) > 0 || t.Priority != 0) {
		return e, Errorf(Invalid, "table %s: the default action has neither key nor priority", d.Name)
	}
	if !t.Default {
		match, err := full(t.Match, d.Keys)
		if err != nil {
			return e, Errorf(Invalid, "table %s has no key field %v", d.Name, err)
		}
		for i := range d.Keys {
			k := &d.Keys[i]
			s, ok := match[k.Name]
			c := Cond{Any: true}
			if ok {
				var err error
				if c, err = k.ParseCond(s); err != nil {
					return e, Errorf(Invalid, "table %s: %v", d.Name, err)
				}
			}
			e.Key = append(e.Key, c)
		}
	}
	if t.Action == "" {
		if len(t.Params) > 0 {
			return e, Errorf(Invalid, "table %s: parameters without an action", d.Name)
		}
		return e, nil
	}
	if e.Action = d.Action(t.Action); e.Action < 0 {
		var names []string
		for _, a := range d.Actions {
			names = append(names, a.Name)
		}
		return e, Errorf(Invalid, "table %s has no action %s; it has %s", d.Name, t.Action, list(names))
	}
	a := &d.Actions[e.Action]
	params, err := full(t.Params, a.Params)
	if err != nil {
		return e, Errorf(Invalid, "table %s: action %s has no parameter %v", d.Name, a.Name, err)
	}
	for i := range a.Params {
		p := &a.Params[i]
		s, ok := params[p.Name]
		if !ok && p.Form != Words {
			return e, Errorf(Invalid, "table %s: action %s: %s is missing", d.Name, a.Name, p.Name)
		}
		v, err := p.Parse(s)
		if err != nil {
			return e, Errorf(Invalid, "table %s: action %s: %v", d.Name, a.Name, err)
		}
		e.Params = append(e.Params, v)
	}
	return e, nil
}

// full gives values the full names of their fields, of which the last parts are
// enough where only one field has them.
func full(values map[string]string, fields []Field) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		found, wrong := fieldsCalled(fields, name), ""
		if len(found) == 1 {
			f := fields[found[0]].Name
			if _, twice := out[f]; !twice {
				out[f] = values[name]
				continue
			}
			wrong = " a second time"
		} else if len(found) > 1 {
			wrong = " alone"
		}
		return nil, fmt.Errorf("%s%s; it has %s", name, wrong, list(fieldNames(fields)))
	}
	return out, nil
}

func fieldNames(f []Field) []string {
	var n []string
	for _, x := range f {
		n = append(n, x.Name)
	}
	return n
}
