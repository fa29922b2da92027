package p4

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// The JSON of p4c's bmv2 back end, as far as Load reads it. A member is a pointer if it may be absent or null
// and must not be taken for 0 in that case. All objects of the program have a jsonObject.

type jsonProgram struct {
	Meta struct {
		Version []float64
	} `json:"__meta__"`
	HeaderTypes  []jsonHeaderType `json:"header_types"`
	Headers      []jsonHeader
	HeaderStacks []jsonHeader `json:"header_stacks"`
	UnionTypes   []struct {
		Name    string
		Headers []jsonValue // [member, header type]
	} `json:"header_union_types"`
	Unions         []jsonHeader      `json:"header_unions"`
	UnionStacks    []jsonHeader      `json:"header_union_stacks"`
	FieldAliases   []jsonValue       `json:"field_aliases"` // [name, [header, field]]
	Errors         []jsonValue       // [name, number]
	CounterArrays  []jsonArray       `json:"counter_arrays"`
	MeterArrays    []jsonArray       `json:"meter_arrays"`
	RegisterArrays []jsonArray       `json:"register_arrays"`
	Externs        []jsonExtern      `json:"extern_instances"`
	Calculations   []jsonCalculation `json:"calculations"`
	ValueSets      []struct {
		Name string
		Bits *float64 `json:"compressed_bitwidth"`
	} `json:"parse_vsets"`
	FieldLists []jsonList `json:"field_lists"`
	LearnLists []jsonList `json:"learn_lists"`
	Actions    []struct {
		jsonObject
		Params []struct {
			Name     string
			Bitwidth *float64
		} `json:"runtime_data"`
		Primitives []jsonOp
	}
	Parsers   []jsonParser
	Deparsers []jsonDeparser
	Pipelines []struct {
		Name         string
		Init         *string `json:"init_table"`
		Tables       []jsonTable
		Profiles     []jsonProfile `json:"action_profiles"`
		Conditionals []struct {
			jsonObject
			Expression jsonValue
			True       *string `json:"true_next"`
			False      *string `json:"false_next"`
		}
		ActionCalls []struct {
			Name   string
			Action *float64 `json:"action_id"`
			Next   *string  `json:"next_node"`
		} `json:"action_calls"`
	}
	Checksums []struct {
		Name, Calculation string
		Target            fieldName
		If                jsonValue `json:"if_cond"`
		Verify, Update    *bool
	}
}

type jsonObject struct {
	Name   string
	ID     *float64
	Source jsonSource `json:"source_info"`
}

// jsonSource is a piece of the program's source text, and its place.
type jsonSource struct {
	Filename string
	Line     *float64
	Text     string `json:"source_fragment"`
}

// line returns file:line, or "" if they are not known.
func (s jsonSource) line() string {
	if s.Filename == "" || s.Line == nil {
		return ""
	}
	return fmt.Sprintf("%s:%.0f", path.Base(s.Filename), *s.Line)
}

type jsonHeaderType struct {
	Name      string
	Fields    []jsonValue // [name, bits or "*", signed, saturating]
	MaxLength *float64    `json:"max_length"`
	LengthExp jsonValue   `json:"length_exp"`
}

// jsonHeader is a header, a stack, a union or a stack of unions.
type jsonHeader struct {
	jsonObject
	Type      string `json:"header_type"`
	UnionType string `json:"union_type"`
	Metadata  bool
	Headers   []*float64 `json:"header_ids"`
	Unions    []*float64 `json:"header_union_ids"`
}

// jsonArray is an array of counters, meters or registers.
type jsonArray struct {
	jsonObject
	Size, Bitwidth *float64
	Direct         bool      `json:"is_direct"`
	Type           string    // of meters: what they count
	RateCount      *float64  `json:"rate_count"`
	ResultTarget   jsonValue `json:"result_target"`
}

// jsonCalculation is a calculation, or the hash of an action selector.
type jsonCalculation struct {
	Name, Algo string
	Input      []struct {
		Type     string
		Value    jsonValue
		Bitwidth *float64
	}
}

type jsonList struct {
	jsonObject
	Elements []jsonValue
}

// jsonOp is a primitive, or an operation of a parser.
type jsonOp struct {
	Op         string
	Parameters []jsonValue
	Source     jsonSource `json:"source_info"`
}

type jsonParser struct {
	Name   string
	Init   *string     `json:"init_state"`
	States []jsonState `json:"parse_states"`
}

type jsonDeparser struct {
	Name       string
	Order      []string
	Primitives []jsonOp
}

// jsonExtern is an instance of one of PSA's externs, with the arguments of its constructor.
type jsonExtern struct {
	jsonObject
	Type       string
	Attributes []struct {
		Name  string
		Value jsonValue
	} `json:"attribute_values"`
}

type jsonState struct {
	Name        string
	Ops         []jsonOp    `json:"parser_ops"`
	Key         []jsonValue `json:"transition_key"`
	Transitions []struct {
		Type, Value string
		Mask        *string
		Next        *string `json:"next_state"`
	}
}

type jsonProfile struct {
	jsonObject
	MaxSize  *float64 `json:"max_size"`
	Selector *jsonCalculation
}

type jsonTable struct {
	jsonProfile
	Match        string `json:"match_type"`
	Key          []jsonKey
	Type         string
	Profile      string  `json:"action_profile"`
	OldProfile   string  `json:"act_prof_name"` // of old compilers, with the selector
	Counters     bool    `json:"with_counters"`
	Timeout      bool    `json:"support_timeout"`
	DirectMeters *string `json:"direct_meters"`
	Actions      []string
	ActionIDs    []*float64         `json:"action_ids"`
	Next         map[string]*string `json:"next_tables"`
	BaseNext     *string            `json:"base_default_next"`
	Default      *struct {
		jsonCall
		Const      bool `json:"action_const"`
		EntryConst bool `json:"action_entry_const"`
	} `json:"default_entry"`
	Entries []jsonEntry
}

type jsonKey struct {
	Match  string `json:"match_type"`
	Name   string
	Target jsonValue // [header, field]; of a validity the header alone, too
	Mask   *string
}

// jsonCall is an action with its arguments.
type jsonCall struct {
	Action *float64 `json:"action_id"`
	Data   []string `json:"action_data"`
}

type jsonEntry struct {
	Match []struct {
		Type             string    `json:"match_type"`
		Key              jsonValue // a number, or of a validity a bool
		Prefix           *float64  `json:"prefix_length"`
		Mask, Start, End string
	} `json:"match_key"`
	Priority *float64
	Call     jsonCall `json:"action_entry"`
}

// jsonValue is JSON of any kind, for places where the format allows several kinds: an operand with a type and a
// value, an operation with an op and its operands, a list, a text, a number or a bool. json is nil for null and
// for an absent value. The parts of an operand and of an operation are never nil.
type jsonValue struct {
	json                     any
	typ, op                  string
	value, left, right, cond *jsonValue
	list                     []*jsonValue
	text                     string
	number                   *float64
	truth                    bool
}

// UnmarshalJSON reads a value with everything in it at once. If each part had an UnmarshalJSON of its own, the
// innermost part would be read as often as there are levels.
func (v *jsonValue) UnmarshalJSON(b []byte) error {
	err := json.Unmarshal(b, &v.json)
	*v = *valueOf(v.json)
	return err
}

func valueOf(x any) *jsonValue {
	v := &jsonValue{json: x}
	switch x := x.(type) {
	case string:
		v.text = x
	case float64:
		v.number = &x
	case bool:
		v.truth = x
	case []any:
		for _, e := range x {
			v.list = append(v.list, valueOf(e))
		}
	case map[string]any:
		v.typ, _ = x["type"].(string)
		v.op, _ = x["op"].(string)
		v.value, v.left, v.right, v.cond = valueOf(x["value"]), valueOf(x["left"]), valueOf(x["right"]), valueOf(x["cond"])
	}
	return v
}

// at returns element i of a list, or an empty value if there is none.
func (v *jsonValue) at(i int) *jsonValue {
	if i >= len(v.list) {
		return &jsonValue{}
	}
	return v.list[i]
}

// inner returns the value of an operand, or an empty value if there is none.
func (v *jsonValue) inner() *jsonValue {
	if v.value == nil {
		return &jsonValue{}
	}
	return v.value
}

// MarshalJSON returns v as it was read.
func (v *jsonValue) MarshalJSON() ([]byte, error) { return json.Marshal(v.json) }

// short returns JSON for an error, cut to 40 bytes.
func short(v any) string {
	b, _ := json.Marshal(v)
	if len(b) > 40 {
		b = append(b[:40], "..."...)
	}
	return string(b)
}

// decode reads a program's JSON. An error says where a value has the wrong kind.
func decode(src []byte) (*jsonProgram, error) {
	p := &jsonProgram{}
	err := json.Unmarshal(src, p)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return p, nil
	case !errors.As(err, &wrong):
		return nil, fmt.Errorf("p4: not the JSON that p4c makes of a program: %w", err)
	case wrong.Field == "":
		return nil, errors.New("p4: the JSON is no object: want the output of p4c-bm2-ss or p4c-bm2-psa")
	}
	kind := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "bool", reflect.Float64: "number",
		reflect.Slice: "array", reflect.Array: "array", reflect.Struct: "object", reflect.Map: "object"}[wrong.Type.Kind()]
	line := 1 + bytes.Count(src[:min(wrong.Offset, int64(len(src)))], []byte("\n"))
	place := slices.DeleteFunc(strings.Split(strings.ToLower(wrong.Field), "."), func(s string) bool { return strings.HasPrefix(s, "json") })
	return nil, fmt.Errorf("p4: line %d, byte %d: %s: a JSON %s where a JSON %s belongs",
		line, wrong.Offset, strings.Map(printed, strings.Join(place, ".")), wrong.Value, kind)
}
