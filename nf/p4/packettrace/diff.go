package packettrace

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is the first step that differs between two traces.
type Difference struct {
	Packet int    `json:"packet"`           // position in both, from 0
	Copy   int    `json:"copy"`             // number
	A      *Step  `json:"a"`                // nil: A has no more
	B      *Step  `json:"b"`                // nil: B has no more
	Before []Step `json:"before,omitempty"` // steps of A that both have, the last three
}

// Comparison is the result of Diff.
type Comparison struct {
	Packets    int         `json:"packets"` // compared
	Steps      int         `json:"steps"`   // found the same
	Difference *Difference `json:"difference"`
}

// has reports whether traces of an origin contain steps of kind k.
func (o Origin) has(k Kind) bool {
	switch k {
	case Note:
		return false
	case Digest:
		return o == Quillon
	case Received, Stage, Transmit, Drop:
		return true
	case Condition:
		return o != BMv2Debug && o != BMv2Stages
	}
	return o != BMv2Stages
}

// Diff compares two traces of the same packets: the first packet of a with the first of b, and so on, and each
// copy with the copy of the same number. It compares only steps that both sources record, and neither handles
// nor priorities, because these depend on how entries were added. The reasons of drops, digests, groups and
// sessions are compared only between two traces of the engine, because traces of bmv2 do not contain them.
func Diff(a, b []Trace) Comparison {
	var c Comparison
	for i := range max(len(a), len(b)) {
		var x, y Trace
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if i >= len(a) {
			x.Origin = y.Origin
		} else if i >= len(b) {
			y.Origin = x.Origin
		}
		var numbers []int
		for _, t := range []Trace{x, y} {
			for _, k := range t.Copies {
				numbers = append(numbers, k.Number)
			}
		}
		slices.Sort(numbers)
		for _, n := range slices.Compact(numbers) {
			if c.compare(i, n, &x, &y) {
				return c
			}
		}
		c.Packets++
	}
	return c
}

// compare compares one copy. It returns true if there is a difference.
func (c *Comparison) compare(packet, number int, a, b *Trace) bool {
	both := func(k Kind) bool { return a.Origin.has(k) && b.Origin.has(k) }
	x, y := a.steps(number, both), b.steps(number, both)
	know := knowledge{
		places: a.Origin != BMv2Debug && b.Origin != BMv2Debug,
		all:    a.Origin == Quillon && b.Origin == Quillon,
	}
	for i := range max(len(x), len(y)) {
		if i < len(x) && i < len(y) && x[i].same(&y[i], know) {
			c.Steps++
			continue
		}
		d := &Difference{Packet: packet, Copy: number, Before: x[max(0, min(i, len(x))-3):min(i, len(x))]}
		if i < len(x) {
			d.A = &x[i]
		}
		if i < len(y) {
			d.B = &y[i]
		}
		c.Difference = d
		return true
	}
	return false
}

// steps returns the steps of a copy that are compared.
func (t *Trace) steps(number int, count func(Kind) bool) []Step {
	for _, c := range t.Copies {
		if c.Number == number {
			return slices.DeleteFunc(slices.Clone(c.Steps), func(s Step) bool { return !count(s.Kind) })
		}
	}
	return nil
}

// knowledge says which parts of steps both sides record: places in the frame, and everything that a switch of
// nf/p4 records.
type knowledge struct{ places, all bool }

// same reports whether two steps agree in what both sources record.
func (s *Step) same(o *Step, know knowledge) bool {
	if s.Kind != o.Kind || s.Port != o.Port || s.Holds != o.Holds || know.places && s.At != o.At ||
		know.all && (s.Name != o.Name || s.Number != o.Number || s.Copy != o.Copy) {
		return false
	}
	switch s.Kind {
	case Drop, Clone, Multicast, Replica, Resubmit, Recirculate:
		return true
	case Received:
		return s.Length == o.Length || s.Length == 0 || o.Length == 0
	case Action: // its Name is of a table, which only one side has
		return s.Action == o.Action && sameArgs(s.Args, o.Args)
	case Table:
		return s.Name == o.Name && s.Action == o.Action && sameArgs(s.Args, o.Args) && sameKey(s.Key, o.Key)
	}
	return s.Name == o.Name && s.Length == o.Length
}

// sameArgs compares arguments. They count as the same if one source records none.
func sameArgs(a, b []Field) bool {
	if a == nil || b == nil {
		return true
	}
	return slices.EqualFunc(a, b, func(x, y Field) bool { return x.Value == y.Value })
}

// sameKey compares the fields of keys in the order of their names, because bmv2 has another order.
func sameKey(a, b []Field) bool {
	if len(a) != len(b) {
		return false
	}
	order := func(x, y Field) int {
		if c := strings.Compare(x.Name, y.Name); c != 0 {
			return c
		}
		return strings.Compare(x.Value, y.Value)
	}
	a, b = slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order)
	return slices.EqualFunc(a, b, func(x, y Field) bool {
		return x.Name == y.Name && x.Value == y.Value && free(x.Match) == free(y.Match)
	})
}

// free zeroes the bits of an entry's match that do not matter, because bmv2 keeps them as they were written.
func free(match string) string {
	for _, sep := range []string{"/", "&&&"} {
		if i := strings.Index(match, sep); i >= 0 {
			return match[i:]
		}
	}
	return match
}

// Text returns the comparison for people. a and b are names for the two traces.
func (c Comparison) Text(a, b string) string {
	d := c.Difference
	if d == nil {
		return fmt.Sprintf("%d packets, %d steps, no difference\n", c.Packets, c.Steps)
	}
	var w strings.Builder
	fmt.Fprintf(&w, "packet %d", d.Packet)
	if d.Copy != 0 {
		fmt.Fprintf(&w, ", copy %d", d.Copy)
	}
	w.WriteString("\n")
	for _, s := range d.Before {
		fmt.Fprintf(&w, "    %v\n", s)
	}
	side := func(name string, s *Step) {
		text := "no more steps"
		if s != nil {
			text = s.String()
		}
		fmt.Fprintf(&w, "  %s: %s\n", name, text)
	}
	side(a, d.A)
	side(b, d.B)
	return w.String()
}
