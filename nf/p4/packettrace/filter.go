package packettrace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Filter reports whether a trace is wanted.
type Filter func(Trace) bool

// ParseFilter parses a filter. "drop" and "drop=REASON" want packets of which a copy was dropped, "table=NAME"
// packets that were looked up in a table (NAME may be the end of the table's name after a dot), and "port=N"
// packets that came in or left on a port.
func ParseFilter(s string) (Filter, error) {
	what, value, has := strings.Cut(s, "=")
	var want func(Step) bool
	switch {
	case what == "drop":
		want = func(s Step) bool { return s.Kind == Drop && (!has || s.Name == value) }
	case what == "table" && value != "":
		want = func(s Step) bool {
			return (s.Kind == Table || s.Kind == Action) && (s.Name == value || strings.HasSuffix(s.Name, "."+value))
		}
	case what == "port":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("port=%s: want a number", value)
		}
		want = func(s Step) bool { return (s.Kind == Received || s.Kind == Transmit) && s.Port == uint32(n) }
	default:
		return nil, fmt.Errorf("%q: want drop, drop=REASON, table=NAME or port=N", s)
	}
	return func(t Trace) bool {
		return slices.ContainsFunc(t.Copies, func(c Copy) bool { return slices.ContainsFunc(c.Steps, want) })
	}, nil
}
