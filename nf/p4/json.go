package p4

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"strings"
)

// The JSON of p4c's bmv2 back end, as far as Load reads it. What may be absent and
// must not be taken for 0, or may be null, is a pointer.

type jsonProgram struct {
	Meta struct {
		Version []float64
	} `json:"__meta__"`
	HeaderTypes    []jsonHeaderType `json:"header_types"`
	Headers        []jsonInstance
	HeaderStacks   []jsonInstance    `json:"header_stacks"`
	UnionTypes     []jsonUnionType   `json:"header_union_types"`
	Unions         []jsonInstance    `json:"header_unions"`
	UnionStacks    []jsonInstance    `json:"header_union_stacks"`
	FieldAliases   []*jsonValue      `json:"field_aliases"` // [name, [header, field]]
	Errors         []*jsonValue      // [name, number]
	CounterArrays  []jsonArray       `json:"counter_arrays"`
	MeterArrays    []jsonArray       `json:"meter_arrays"`
	RegisterArrays []jsonArray       `json:"register_arrays"`
	Calculations   []jsonCalculation `json:"calculations"`
	ValueSets      []jsonValueSet    `json:"parse_vsets"`
	FieldLists     []jsonList        `json:"field_lists"`
	LearnLists     []jsonList        `json:"learn_lists"`
	Actions        []jsonAction      `json:"actions"`
	Parsers        []jsonParser      `json:"parsers"`
	Deparsers      []jsonDeparser    `json:"deparsers"`
	Pipelines      []jsonPipeline    `json:"pipelines"`
	Checksums      []jsonChecksum    `json:"checksums"`
}

type jsonHeaderType struct {
	Name      string
	Fields    []*jsonValue // [name, bits or "*", signed, saturating]
	MaxLength *float64     `json:"max_length"`
	LengthExp *jsonValue   `json:"length_exp"`
}

// jsonInstance is a header, a stack, a union or a stack of unions.
type jsonInstance struct {
	Name       string
	ID         *float64
	HeaderType string `json:"header_type"`
	UnionType  string `json:"union_type"`
	Metadata   bool
	HeaderIDs  []*float64 `json:"header_ids"`
	UnionIDs   []*float64 `json:"header_union_ids"`
}

type jsonUnionType struct {
	Name    string
	Headers []*jsonValue // [member, header type]
}

// jsonArray is an array of counters, meters or registers.
type jsonArray struct {
	Name         string
	ID, Size     *float64
	Direct       bool       `json:"is_direct"`
	Type         string     // of meters: what they count
	RateCount    *float64   `json:"rate_count"`
	ResultTarget *jsonValue `json:"result_target"`
	Bitwidth     *float64
}

// jsonCalculation is a hash, or a selector's.
type jsonCalculation struct {
	Name, Algo string
	Input      []struct {
		Type     string
		Value    *jsonValue
		Bitwidth *float64
	}
}

type jsonValueSet struct {
	Name string
	Bits *float64 `json:"compressed_bitwidth"`
}

type jsonList struct {
	Name     string
	ID       *float64
	Elements []*jsonValue
}

type jsonAction struct {
	Name        string
	ID          *float64
	RuntimeData []struct {
		Name     string
		Bitwidth *float64
	} `json:"runtime_data"`
	Primitives []jsonOp
}

// jsonOp is a primitive, or an operation of a parser.
type jsonOp struct {
	Op         string
	Parameters []*jsonValue
	Source     jsonSource `json:"source_info"`
}

// jsonSource is a piece of the program's text, and where it is.
type jsonSource struct {
	Filename string
	Line     *float64
	Text     string `json:"source_fragment"`
}

// line is the file and the line; empty when they are not known.
func (s jsonSource) line() string {
	if s.Filename == "" || s.Line == nil {
		return ""
	}
	return fmt.Sprintf("%s:%.0f", path.Base(s.Filename), *s.Line)
}

type jsonParser struct {
	Init   *string     `json:"init_state"`
	States []jsonState `json:"parse_states"`
}

type jsonState struct {
	Name        string
	Ops         []jsonOp     `json:"parser_ops"`
	Key         []*jsonValue `json:"transition_key"`
	Transitions []struct {
		Type, Value string
		Mask        *string
		Next        *string `json:"next_state"`
	}
}

type jsonDeparser struct {
	Order      []string
	Primitives []jsonOp
}

type jsonPipeline struct {
	Name         string
	Init         *string `json:"init_table"`
	Tables       []jsonTable
	Profiles     []jsonProfile     `json:"action_profiles"`
	Conditionals []jsonConditional `json:"conditionals"`
	ActionCalls  []jsonActionCall  `json:"action_calls"`
}

type jsonProfile struct {
	Name     string
	ID       *float64
	MaxSize  *float64 `json:"max_size"`
	Selector *jsonCalculation
}

type jsonConditional struct {
	Name       string
	Expression *jsonValue
	True       *string    `json:"true_next"`
	False      *string    `json:"false_next"`
	Source     jsonSource `json:"source_info"`
}

type jsonActionCall struct {
	Name   string
	Action *float64 `json:"action_id"`
	Next   *string  `json:"next_node"`
}

type jsonTable struct {
	Name         string
	ID           *float64
	Match        string `json:"match_type"`
	Key          []jsonKey
	Type         string
	Profile      string `json:"action_profile"`
	OldProfile   string `json:"act_prof_name"` // of old compilers, with the selector
	Selector     *jsonCalculation
	MaxSize      *float64 `json:"max_size"`
	Counters     bool     `json:"with_counters"`
	Timeout      bool     `json:"support_timeout"`
	DirectMeters *string  `json:"direct_meters"`
	Actions      []string
	ActionIDs    []*float64         `json:"action_ids"`
	Next         map[string]*string `json:"next_tables"`
	BaseNext     *string            `json:"base_default_next"`
	Default      *jsonDefault       `json:"default_entry"`
	Entries      []jsonEntry
}

type jsonKey struct {
	Match  string `json:"match_type"`
	Name   string
	Target *jsonValue // [header, field]; of a validity the header alone, too
	Mask   *string
}

// jsonCall is an action with its arguments.
type jsonCall struct {
	Action *float64 `json:"action_id"`
	Data   []string `json:"action_data"`
}

type jsonDefault struct {
	jsonCall
	Const      bool `json:"action_const"`
	EntryConst bool `json:"action_entry_const"`
}

type jsonEntry struct {
	Match []struct {
		Type   string     `json:"match_type"`
		Key    *jsonValue // a number, or of a validity a bool
		Prefix *float64   `json:"prefix_length"`
		Mask   string
		Start  string
		End    string
	} `json:"match_key"`
	Priority *float64
	Call     jsonCall `json:"action_entry"`
}

type jsonChecksum struct {
	Name, Calculation string
	Target            fieldName
	If                *jsonValue `json:"if_cond"`
	Verify, Update    *bool
}

// jsonValue is JSON of any kind, where the format allows several: an operand with a
// type and a value, an operation with an op and what it works on, a list, a text,
// a number, a bool. Null, and what is not there, is nil.
type jsonValue struct {
	json                     []byte
	typ, op                  string
	value, left, right, cond *jsonValue
	list                     []*jsonValue
	text                     string
	number                   *float64
	truth                    bool
}

// UnmarshalJSON reads a value with all that is in it. It reads it once: with an
// UnmarshalJSON for each of the values inside, deep ones would be read again on each
// level.
func (v *jsonValue) UnmarshalJSON(b []byte) error {
	b = bytes.Clone(b)
	read, err := readValue(json.NewDecoder(bytes.NewReader(b)), b)
	if err == nil && read != nil {
		*v = *read
	}
	return err
}

func readValue(d *json.Decoder, src []byte) (*jsonValue, error) {
	start := d.InputOffset()
	t, err := d.Token()
	if t == nil || err != nil {
		return nil, err
	}
	v := &jsonValue{}
	switch t := t.(type) {
	case string:
		v.text = t
	case float64:
		v.number = &t
	case bool:
		v.truth = t
	case json.Delim:
		for d.More() && err == nil {
			err = v.readPart(d, src, t == '[')
		}
		if err == nil {
			_, err = d.Token() // the end
		}
	}
	v.json = bytes.TrimLeft(src[start:d.InputOffset()], " \t\r\n,:")
	return v, err
}

// readPart reads an element of a list, or a member of an object.
func (v *jsonValue) readPart(d *json.Decoder, src []byte, list bool) error {
	var key json.Token
	var err error
	if !list {
		if key, err = d.Token(); err != nil {
			return err
		}
	}
	x, err := readValue(d, src)
	switch key {
	case nil:
		v.list = append(v.list, x)
	case "type":
		v.typ = x.string()
	case "op":
		v.op = x.string()
	case "value":
		v.value = x
	case "left":
		v.left = x
	case "right":
		v.right = x
	case "cond":
		v.cond = x
	}
	return err
}

// at is an element of a list; nil: there is none.
func (v *jsonValue) at(i int) *jsonValue {
	if v == nil || i >= len(v.list) {
		return nil
	}
	return v.list[i]
}

// string is a text; of another kind it is empty.
func (v *jsonValue) string() string {
	if v == nil {
		return ""
	}
	return v.text
}

// isTrue is a bool; of another kind it is false.
func (v *jsonValue) isTrue() bool { return v != nil && v.truth }

// kind and inner are the type and the value of an operand.
func (v *jsonValue) kind() string {
	if v == nil {
		return ""
	}
	return v.typ
}

func (v *jsonValue) inner() *jsonValue {
	if v == nil {
		return nil
	}
	return v.value
}

// isOperation reports whether v has an op.
func (v *jsonValue) isOperation() bool { return v != nil && v.op != "" }

// integer is a number; nil: v is of another kind.
func (v *jsonValue) integer() *float64 {
	if v == nil {
		return nil
	}
	return v.number
}

// source is v as it was read.
func (v *jsonValue) source() []byte {
	if v == nil {
		return nil
	}
	return v.json
}

// MarshalJSON is v as it was read.
func (v *jsonValue) MarshalJSON() ([]byte, error) { return v.json, nil }

// short shows JSON in an error.
func short(v any) string {
	b, _ := json.Marshal(v)
	if len(b) > 40 {
		b = append(b[:40], "..."...)
	}
	return string(b)
}

// decode reads a program's JSON. An error says at which line a value is of the wrong
// kind, and of what it is a part.
func decode(src []byte) (*jsonProgram, error) {
	p := &jsonProgram{}
	err := json.Unmarshal(src, p)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return p, nil
	case !errors.As(err, &wrong):
		return nil, fmt.Errorf("p4: no JSON: %w", err)
	case wrong.Field == "":
		return nil, errors.New("p4: the JSON is no object: want the output of p4c-bm2-ss")
	}
	kind := wrong.Type.String()
	switch wrong.Type.Kind() {
	case reflect.Struct, reflect.Map:
		kind = "object"
	case reflect.Slice, reflect.Array:
		kind = "array"
	case reflect.Float64:
		kind = "number"
	}
	before := src[:min(wrong.Offset, int64(len(src)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	return nil, errors.New("p4: " + strings.Map(printed, fmt.Sprintf("line %d, byte %d: %s: a JSON %s where a JSON %s belongs",
		line, wrong.Offset, strings.ToLower(wrong.Field), wrong.Value, kind)))
}
