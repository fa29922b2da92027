package value

import (
	"fmt"
	"strconv"
	"strings"
)

// Match is how the values of a field are compared.
type Match uint8

const (
	Exact Match = iota
	LPM
	Ternary
	Range
	Optional // as Exact, and may be left out
)

// Matches are their names.
var Matches = []string{"exact", "lpm", "ternary", "range", "optional"}

func (m Match) String() string { return Matches[m] }

// Cond is what a value must be: V; of LPM and Ternary, V in those bits that M has; of Range, from V to M. Numbers are in
// canonical form. What every value meets is Any, without numbers.
type Cond struct {
	V, M []byte
	Any  bool
}

// ParseCond reads a condition on a field of so many bits: VALUE, VALUE/LENGTH (a prefix, also for a mask), VALUE&&&MASK,
// LOW..HIGH or LOW-HIGH, and * for all values. parse reads a VALUE. A field of 0 bits is a text, and so is its condition.
func ParseCond(m Match, width int, s string, parse func(string) ([]byte, error)) (c Cond, err error) {
	if s == "*" && m != Exact {
		return Cond{Any: true}, nil
	}
	first, second, sep := s, "", ""
	if width > 0 {
		first, second, sep = cut(m, s, parse)
	}
	if c.V, err = parse(first); err != nil {
		return c, err
	}
	switch {
	case sep == "" && m == Range:
		c.M = c.V
	case sep == "" && (m == LPM || m == Ternary):
		c.M = Ones(width)
	case sep == "":
	case sep == "&&&" && m == Ternary, sep == ".." && m == Range, sep == "-":
		if c.M, err = parse(second); err != nil {
			return c, err
		}
	case sep == "/" && (m == Ternary || m == LPM):
		n, err := strconv.Atoi(second)
		if err != nil || n < 0 || n > width {
			return c, fmt.Errorf("want a prefix length from 0 to %d", width)
		}
		if c.M = Prefix(n, width); !Within(c.V, c.M) {
			return c, fmt.Errorf("%s has bits behind its prefix: want %s/%d", s, Format(FormOf("ip", width), width, And(c.V, c.M)), n)
		}
	default:
		return c, fmt.Errorf("it is compared for %s, without %s", m, sep)
	}
	switch {
	case m == Range && Compare(c.V, c.M) > 0:
		return c, fmt.Errorf("%s: the range ends before it begins", s)
	case m == Ternary && !Within(c.V, c.M):
		return c, fmt.Errorf("%s has bits that its mask leaves out", s)
	}
	if m == Range && IsZero(c.V) && Compare(c.M, Ones(width)) == 0 || (m == LPM || m == Ternary) && IsZero(c.M) {
		return Cond{Any: true}, nil
	}
	return c, nil
}

// cut takes a condition of two parts apart. A value of its own, as a MAC address, may have what separates LOW and HIGH.
func cut(m Match, s string, parse func(string) ([]byte, error)) (first, second, sep string) {
	for _, sep := range []string{"&&&", "..", "/"} {
		if first, second, ok := strings.Cut(s, sep); ok {
			return strings.TrimSpace(first), strings.TrimSpace(second), sep
		}
	}
	if first, second, ok := strings.Cut(s, "-"); ok && m == Range && first != "" {
		if _, err := parse(s); err != nil {
			return first, second, "-"
		}
	}
	return s, "", ""
}
