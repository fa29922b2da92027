package p4info

import (
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/nf/value"
)

// ErrorType is the name of P4's type error. Controllers see the names of errors as values, as they see the
// values of translated types.
const ErrorType = "error"

// shape is the structure of a digest's message: parts, or a single value.
type shape struct {
	spec  *configv1.P4DataTypeSpec // without new types
	parts []*shape
	names []string // of an enum, by number
}

// Bounds of a message: the depth of nested parts, and the number of parts. They are needed because nested types
// make many parts out of a short P4Info.
const (
	maxShape = 16
	maxParts = 4096
)

// shapeOf returns the shape of a type, and appends its values to fields. It returns nil if no message can carry
// the type. room is the number of parts that may still be added.
func (i builder) shapeOf(name string, spec *configv1.P4DataTypeSpec, fields *[]Field, depth int, room *int) *shape {
	if *room--; *room < 0 {
		return nil
	}
	add := func(s *shape, t Type) *shape {
		*fields = append(*fields, Field{ID: uint32(len(*fields) + 1), Name: name, Type: t})
		return s
	}
	if n := spec.GetNewType().GetName(); n != "" && depth < maxShape {
		nt := i.Proto.GetTypeInfo().GetNewTypes()[n]
		if nt.GetTranslatedType() == nil {
			return i.shapeOf(name, nt.GetOriginalType(), fields, depth+1, room)
		}
		t, err := i.typeOf(name, 0, spec.GetNewType())
		if err != nil {
			return nil
		}
		bits := &configv1.P4BitstringLikeTypeSpec{TypeSpec: &configv1.P4BitstringLikeTypeSpec_Bit{Bit: &configv1.P4BitTypeSpec{Bitwidth: int32(t.Bits)}}}
		return add(&shape{spec: &configv1.P4DataTypeSpec{TypeSpec: &configv1.P4DataTypeSpec_Bitstring{Bitstring: bits}}}, t)
	}
	s := &shape{spec: spec}
	types := i.Proto.GetTypeInfo()
	switch t := spec.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Bitstring:
		if n := int(t.Bitstring.GetBit().GetBitwidth() + t.Bitstring.GetInt().GetBitwidth()); n > 0 {
			return add(s, Type{Bits: n})
		}
	case *configv1.P4DataTypeSpec_Bool:
		return add(s, Type{Bits: 1})
	case *configv1.P4DataTypeSpec_SerializableEnum:
		if n, ok := i.width(spec); ok {
			return add(s, Type{Bits: n})
		}
	case *configv1.P4DataTypeSpec_Enum:
		for _, m := range types.GetEnums()[t.Enum.GetName()].GetMembers() {
			s.names = append(s.names, m.GetName())
		}
		return add(s, Type{0, t.Enum.GetName()})
	case *configv1.P4DataTypeSpec_Error:
		return add(s, Type{0, ErrorType})
	}
	var parts []*configv1.P4DataTypeSpec
	var names []string
	switch t := spec.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Struct:
		for _, m := range types.GetStructs()[t.Struct.GetName()].GetMembers() {
			parts, names = append(parts, m.GetTypeSpec()), append(names, m.GetName())
		}
	case *configv1.P4DataTypeSpec_Header:
		for _, m := range types.GetHeaders()[t.Header.GetName()].GetMembers() {
			parts = append(parts, &configv1.P4DataTypeSpec{TypeSpec: &configv1.P4DataTypeSpec_Bitstring{Bitstring: m.GetTypeSpec()}})
			names = append(names, m.GetName())
		}
	case *configv1.P4DataTypeSpec_Tuple:
		parts, names = t.Tuple.GetMembers(), make([]string, len(t.Tuple.GetMembers()))
	default:
		return nil
	}
	if depth == maxShape {
		return nil
	}
	s.parts = []*shape{} // also of an empty struct
	for n, m := range parts {
		full := names[n]
		if name != "" && full != "" {
			full = name + "." + full
		}
		p := i.shapeOf(full, m, fields, depth+1, room)
		if p == nil {
			return nil
		}
		s.parts = append(s.parts, p)
	}
	return s
}

// Message returns a digest message with the values of the digest's fields. Numbers are big-endian, an int<W> is
// W bits in two's complement, values of translated types are as controllers see them, and errors are names.
func (d *Digest) Message(values [][]byte) *p4v1.P4Data {
	return d.shape.message(&values)
}

func (s *shape) message(values *[][]byte) *p4v1.P4Data {
	var parts []*p4v1.P4Data
	for _, p := range s.parts {
		parts = append(parts, p.message(values))
	}
	switch s.spec.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Struct:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Struct{Struct: &p4v1.P4StructLike{Members: parts}}}
	case *configv1.P4DataTypeSpec_Tuple:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Tuple{Tuple: &p4v1.P4StructLike{Members: parts}}}
	case *configv1.P4DataTypeSpec_Header:
		h := &p4v1.P4Header{IsValid: true}
		for _, x := range parts {
			h.Bitstrings = append(h.Bitstrings, x.GetBitstring())
		}
		return &p4v1.P4Data{Data: &p4v1.P4Data_Header{Header: h}}
	}
	v := (*values)[0]
	*values = (*values)[1:]
	switch t := s.spec.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Bool:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bool{Bool: !value.IsZero(v)}}
	case *configv1.P4DataTypeSpec_SerializableEnum:
		return &p4v1.P4Data{Data: &p4v1.P4Data_EnumValue{EnumValue: value.Canonical(v)}}
	case *configv1.P4DataTypeSpec_Error:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Error{Error: string(v)}}
	case *configv1.P4DataTypeSpec_Enum:
		if n := value.Uint64(v); value.BitLen(v) <= 32 && n < uint64(len(s.names)) {
			return &p4v1.P4Data{Data: &p4v1.P4Data_Enum{Enum: s.names[n]}}
		}
		return &p4v1.P4Data{Data: &p4v1.P4Data_Enum{}} // a number that has no name
	case *configv1.P4DataTypeSpec_Bitstring:
		if w := int(t.Bitstring.GetInt().GetBitwidth()); w > 0 {
			v = value.Signed(v, w)
		}
	}
	return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}}
}

// Values returns the values of the digest's fields in a message, in order; a name is its text. It returns nil
// if the message has another shape.
func (d *Digest) Values(data *p4v1.P4Data) [][]byte {
	if d.shape == nil {
		return nil
	}
	var out [][]byte
	if !d.shape.values(data, &out) || len(out) != len(d.Fields) {
		return nil
	}
	return out
}

// values appends the values of data to out, and reports whether data has the shape. A number of any type may be
// a bitstring, because bmv2 sends numbers like that.
func (s *shape) values(data *p4v1.P4Data, out *[][]byte) bool {
	var parts []*p4v1.P4Data
	var v []byte
	switch x := data.GetData().(type) {
	case *p4v1.P4Data_Struct:
		parts = x.Struct.GetMembers()
	case *p4v1.P4Data_Tuple:
		parts = x.Tuple.GetMembers()
	case *p4v1.P4Data_Header:
		for _, b := range x.Header.GetBitstrings() {
			parts = append(parts, &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: b}})
		}
	case *p4v1.P4Data_Bitstring:
		v = x.Bitstring
	case *p4v1.P4Data_EnumValue:
		v = x.EnumValue
	case *p4v1.P4Data_Enum:
		v = append([]byte{}, x.Enum...)
	case *p4v1.P4Data_Error:
		v = append([]byte{}, x.Error...)
	case *p4v1.P4Data_Bool:
		if v = []byte{0}; x.Bool {
			v = []byte{1}
		}
	}
	if len(s.parts) != len(parts) || s.parts == nil && v == nil {
		return false
	}
	if s.parts == nil {
		*out = append(*out, v)
	}
	for n, p := range s.parts {
		if !p.values(parts[n], out) {
			return false
		}
	}
	return true
}
