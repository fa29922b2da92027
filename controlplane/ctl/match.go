package ctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
	"github.com/quillon/quillon/nf/yaml"
)

func readMatch(fields []p4info.Field, n *yaml.Node) ([]*p4v1.FieldMatch, error) {
	var out []*p4v1.FieldMatch
	for i, k := range n.Keys {
		f, err := p4info.FieldByName(fields, "field", k.Text)
		if err != nil {
			return nil, err
		}
		v := n.List[i]
		if v.Kind != yaml.Scalar {
			return nil, v.Errorf("field %s: want a value, there is %s", f.Name, v.Kind)
		}
		m, err := parseMatch(f, v.Text)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		if m != nil {
			if slices.ContainsFunc(out, func(x *p4v1.FieldMatch) bool { return x.FieldId == m.FieldId }) {
				return nil, fmt.Errorf("field %s is there twice", f.Name)
			}
			out = append(out, m)
		}
	}
	return out, nil
}

// parseMatch reads what a field must be: VALUE, VALUE/LENGTH (a prefix, also as a
// mask), VALUE&&&MASK, LOW..HIGH; "*" matches any value.
func parseMatch(f *p4info.Field, s string) (*p4v1.FieldMatch, error) {
	if s == "*" && f.Match != p4configv1.MatchField_EXACT {
		return nil, nil
	}
	var v, more []byte
	var length int
	var err error
	switch f.Match {
	case p4configv1.MatchField_EXACT, p4configv1.MatchField_OPTIONAL:
		v, err = p4info.ParseValue(f.Type, s)
	case p4configv1.MatchField_LPM:
		v, length, err = parsePrefix(f.Type, s)
	case p4configv1.MatchField_TERNARY:
		v, more, err = parseMasked(f.Type, s)
	case p4configv1.MatchField_RANGE:
		v, more, err = parseRange(f.Type, s)
		if err == nil && value.IsZero(v) && value.Compare(more, value.Ones(f.Type.Bits)) == 0 {
			return nil, nil
		}
	default:
		err = fmt.Errorf("a match of type %v is not supported", f.Match)
	}
	if err != nil {
		return nil, err
	}
	return f.Matching(v, more, length), nil
}

// parseRange reads LOW..HIGH; a VALUE alone is both.
func parseRange(t p4info.Type, s string) (low, high []byte, err error) {
	from, to, isRange := strings.Cut(s, "..")
	if !isRange {
		to = from
	}
	if low, err = p4info.ParseValue(t, from); err == nil {
		high, err = p4info.ParseValue(t, to)
	}
	if err == nil && value.Compare(low, high) > 0 {
		err = fmt.Errorf("%s: the range ends before it begins", s)
	}
	return low, high, err
}

// parsePrefix reads VALUE/LENGTH; a VALUE alone is one of full length.
func parsePrefix(t p4info.Type, s string) (v []byte, length int, err error) {
	number, tail, has := strings.Cut(s, "/")
	length = t.Bits
	if has {
		if length, err = strconv.Atoi(tail); err != nil || length < 0 || length > t.Bits {
			return nil, 0, fmt.Errorf("%s: want a prefix of 0 to %d bits", s, t.Bits)
		}
	}
	if v, err = p4info.ParseValue(t, number); err != nil {
		return nil, 0, err
	}
	if mask := value.Prefix(length, t.Bits); !value.Within(v, mask) {
		return nil, 0, fmt.Errorf("%s has bits behind its prefix: want %s/%d", s, p4info.FormatValue("ip", t, value.And(v, mask)), length)
	}
	return v, length, nil
}

// parseMasked reads VALUE&&&MASK, a prefix, or a VALUE that must be equal; a nil
// mask matches any value.
func parseMasked(t p4info.Type, s string) (v, mask []byte, err error) {
	val, tail, has := strings.Cut(s, "&&&")
	if !has {
		v, length, err := parsePrefix(t, s)
		if err != nil || length == 0 {
			return nil, nil, err
		}
		return v, value.Prefix(length, t.Bits), nil
	}
	if v, err = p4info.ParseValue(t, strings.TrimSpace(val)); err != nil {
		return nil, nil, err
	}
	if mask, err = p4info.ParseValue(t, strings.TrimSpace(tail)); err != nil {
		return nil, nil, fmt.Errorf("mask: %w", err)
	}
	if value.IsZero(mask) && value.IsZero(v) {
		return nil, nil, nil
	}
	if !value.Within(v, mask) {
		return nil, nil, fmt.Errorf("%s has bits that its mask leaves out", s)
	}
	return v, mask, nil
}
