package p4

import (
	"fmt"
	"math/big"
	"strings"
)

// BMv2Add returns the line for bmv2's simple_switch_CLI that adds an entry to a table without an action
// profile.
func BMv2Add(t TableInfo, e Entry) string {
	var line strings.Builder
	fmt.Fprintf(&line, "table_add %s %s", t.Name, e.Action.Name)
	for i, m := range e.Key {
		v, mask := new(big.Int).SetBytes(m.Value), new(big.Int).SetBytes(m.Mask)
		if t.Keys[i].Match == Range && m.Any || t.Keys[i].Match == Ternary && m.Mask == nil && !m.Any {
			mask.Sub(mask.Lsh(big.NewInt(1), uint(t.Keys[i].Bits)), big.NewInt(1))
		}
		switch t.Keys[i].Match {
		case Exact, Valid:
			fmt.Fprintf(&line, " %#x", v)
		case LPM:
			fmt.Fprintf(&line, " %#x/%d", v, m.Prefix)
		case Ternary:
			fmt.Fprintf(&line, " %#x&&&%#x", v, mask)
		case Range:
			fmt.Fprintf(&line, " %#x->%#x", v, mask)
		}
	}
	line.WriteString(" =>")
	line.WriteString(BMv2Args(e.Action))
	if t.Priority {
		fmt.Fprintf(&line, " %d", e.Priority)
	}
	return line.String()
}

// BMv2Args returns the arguments of an action as simple_switch_CLI takes them, each with a space before it.
func BMv2Args(a Action) string {
	var args strings.Builder
	for _, v := range a.Args {
		fmt.Fprintf(&args, " %#x", new(big.Int).SetBytes(v))
	}
	return args.String()
}
