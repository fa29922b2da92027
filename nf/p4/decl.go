package p4

import (
	"encoding/hex"
	"math"
	"strconv"

	"github.com/quillon/quillon/nf/graph"
	apptable "github.com/quillon/quillon/nf/table"
	values "github.com/quillon/quillon/nf/value"
)

// The tables of a program as people see them without P4Runtime: entries, default entries and direct counters,
// all read-only. A value of more than 128 bits is shown as text. An entry that uses a member or a group of an
// action profile is shown with an action of this name.
const (
	memberAction = "member"
	groupAction  = "group"
)

// declare makes the declarations of the tables that the program's author wrote.
func declare(p *Program) (all []apptable.Decl) {
	for _, t := range p.Tables() {
		if t.Hidden {
			continue
		}
		d := apptable.Decl{Name: t.Name, Help: "table of the program", Size: t.Size}
		if t.Const {
			d.Help = "table of the program, whose entries stay"
		}
		for _, k := range t.Keys {
			d.Keys = append(d.Keys, shownField(k.Name, k.Bits, k.Match))
		}
		for _, a := range t.Actions {
			x := apptable.Action{Name: a.Name}
			for _, f := range a.Params {
				x.Params = append(x.Params, shownField(f.Name, f.Bits, Exact))
			}
			d.Actions = append(d.Actions, x)
		}
		if t.Profile != "" {
			id := []apptable.Field{{Name: "id", Bits: 32}}
			d.Actions = append(d.Actions, apptable.Action{Name: memberAction, Params: id}, apptable.Action{Name: groupAction, Params: id})
		}
		all = append(all, d)
	}
	return all
}

// most is the highest number of bits of an apptable.Value.
const most = 128

func shownField(name string, bits int, k MatchKind) apptable.Field {
	if bits > most {
		return apptable.Field{Name: name, Form: apptable.Words}
	}
	f := apptable.Field{Name: name, Bits: bits, Form: apptable.Form(values.FormOf(name, bits))}
	switch k {
	case LPM:
		f.Match = apptable.LPM
	case Ternary:
		f.Match = apptable.Ternary
	case Range:
		f.Match = apptable.Range
	}
	return f
}

// shownValue returns a big-endian number as the value of a field.
func shownValue(f *apptable.Field, b []byte) apptable.Value {
	if f.Form == apptable.Words {
		return apptable.String("0x" + hex.EncodeToString(b))
	}
	v, _ := apptable.FromBytes(b)
	return v
}

// shownCond returns the condition of a field of an entry's key.
func shownCond(f *apptable.Field, k MatchKind, m Match) apptable.Cond {
	c := apptable.Cond{V: shownValue(f, m.Value)}
	if f.Form == apptable.Words {
		more := ""
		switch k {
		case LPM:
			more = "/" + strconv.Itoa(m.Prefix)
		case Ternary:
			more = "&&&" + shownValue(f, m.Mask).Str()
		case Range:
			more = ".." + shownValue(f, m.Mask).Str()
		}
		c.V = apptable.String(c.V.Str() + more)
		return c
	}
	switch k {
	case LPM:
		c.M = apptable.Prefix(m.Prefix, f.Bits)
	case Ternary, Range:
		c.M = shownValue(f, m.Mask)
	}
	if (k == LPM || k == Ternary) && c.M == (apptable.Value{}) || k == Range && c.V == (apptable.Value{}) && c.M == apptable.Ones(f.Bits) {
		return apptable.Cond{Any: true}
	}
	return c
}

// shownCall returns the action of an entry, or of a default entry. Its Action is -1 if there is no such action,
// which never happens with entries of a Switch.
func shownCall(d *apptable.Decl, e *Entry) (c apptable.Call) {
	id := uint64(e.Member)
	name := memberAction
	switch {
	case e.Action.Name != "":
		name = e.Action.Name
	case e.Group != 0:
		name, id = groupAction, uint64(e.Group)
	}
	if c.Action = d.Action(name); c.Action < 0 {
		return c
	}
	if e.Action.Name == "" {
		c.Params = []apptable.Value{apptable.Uint(id)}
		return c
	}
	for i, b := range e.Action.Args {
		c.Params = append(c.Params, shownValue(&d.Actions[c.Action].Params[i], b))
	}
	return c
}

// declared implements graph.Kind's Declared.
func declared(app graph.App) []apptable.Decl {
	a := app.(*App)
	if a.sw == nil {
		return nil
	}
	all := append([]apptable.Decl{}, a.decls...)
	for i := range all {
		if e, there, err := a.sw.Default(all[i].Name); err == nil && there {
			c := shownCall(&all[i], &e)
			all[i].Default = &c
		}
	}
	return all
}

// scan yields the rows of table t of the program, beginning with row from.
func (a *App) scan(_ *graph.Ctx, t, from, n int, yield func(*apptable.Entry)) (next int) {
	if a.sw == nil || t >= len(a.decls) {
		return -1
	}
	d := &a.decls[t]
	x, err := a.sw.table(d.Name)
	if err != nil {
		return -1
	}
	// P4Runtime's priorities are shown: the higher one wins.
	top := int32(math.MaxInt32)
	if len(x.def.preset) > 0 {
		top = 1
		for _, e := range x.def.preset {
			top = max(top, 1+e.priority)
		}
	}
	end := min(from+n, len(x.rows))
	for i := from; i < end; i++ {
		if !x.rows[i].live {
			continue
		}
		e := a.sw.describe(x, uint32(i))
		out := apptable.Entry{Call: shownCall(d, &e)}
		for k := range e.Key {
			out.Key = append(out.Key, shownCond(&d.Keys[k], x.def.keys[k].kind, e.Key[k]))
		}
		if x.def.Priority {
			out.Priority = top - e.Priority
		}
		if x.def.Counters {
			n := a.sw.both(x, i, x.count[i])
			out.Counts = &apptable.Counts{Packets: n.Packets, Bytes: n.Bytes}
		}
		yield(&out)
	}
	if end >= len(x.rows) {
		return -1
	}
	return end
}
