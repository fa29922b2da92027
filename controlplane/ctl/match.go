package ctl

import (
	"fmt"
	"slices"

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

// matches maps P4Runtime's match types to those of package value.
var matches = map[p4configv1.MatchField_MatchType]value.Match{
	p4configv1.MatchField_EXACT: value.Exact, p4configv1.MatchField_LPM: value.LPM, p4configv1.MatchField_TERNARY: value.Ternary,
	p4configv1.MatchField_RANGE: value.Range, p4configv1.MatchField_OPTIONAL: value.Optional,
}

// parseMatch parses the condition of a field, as value.ParseCond does; nil: the field may have any value.
func parseMatch(f *p4info.Field, s string) (*p4v1.FieldMatch, error) {
	how, ok := matches[f.Match]
	if !ok {
		return nil, fmt.Errorf("a match of type %v is not supported", f.Match)
	}
	c, err := value.ParseCond(how, f.Type.Bits, s, func(s string) ([]byte, error) { return p4info.ParseValue(f.Type, s) })
	if err != nil || c.Any {
		return nil, err
	}
	return f.Matching(c.V, c.M, f.Type.Bits-value.TrailingZeros(c.M)), nil
}
