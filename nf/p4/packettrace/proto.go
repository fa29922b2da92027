package packettrace

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// schema is what is read of bmv2's PacketTrace, as a FileDescriptorProto. A file has one PacketTrace behind the other, so that input and root are repeated.
// The numbers of fields are ours: neither form of the message has them.
const schema = `name: "packet_trace.proto" syntax: "proto3"
message_type { name: "PacketTraces"
  field { name: "input" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".Input" }
  field { name: "root" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".TraceTree" } }
message_type { name: "Input"
  field { name: "packet_id" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT64 }
  field { name: "ingress_port" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 } }
message_type { name: "TraceTree"
  field { name: "events" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".TraceEvent" }
  field { name: "transmit" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Transmit" }
  field { name: "drop" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Drop" } }
message_type { name: "TraceEvent"
  field { name: "pipeline_stage" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".PipelineStage" } }
message_type { name: "PipelineStage"
  field { name: "stage_name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "stage_kind" number: 2 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".StageKind" }
  field { name: "direction" number: 3 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".Direction" } }
message_type { name: "Transmit"
  field { name: "egress_port" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT32 }
  field { name: "packet_size" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 } }
message_type { name: "Drop" }
enum_type { name: "StageKind" value { name: "KIND_0" number: 0 } value { name: "PARSER" number: 1 } value { name: "CONTROL" number: 2 } value { name: "DEPARSER" number: 3 } }
enum_type { name: "Direction" value { name: "DIRECTION_0" number: 0 } value { name: "ENTER" number: 1 } value { name: "EXIT" number: 2 } }`

// What the enums of a stage say.
const (
	kindParser   = 1
	kindDeparser = 3
	exit         = 2
)

var packetTraces = sync.OnceValue(func() protoreflect.MessageDescriptor {
	var file descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(schema), &file); err != nil {
		panic(err)
	}
	f, err := protodesc.NewFile(&file, nil)
	if err != nil {
		panic(err)
	}
	return f.Messages().ByName("PacketTraces")
})

// maxDepth is how deep messages in text may be nested, as prototext has no bound of its own for what it leaves out.
const maxDepth = 1000

// startsText finds the beginning of a PacketTrace in text.
var startsText = regexp.MustCompile(`^(\s|#.*\n)*(input|root)\s*[{<:]`)

// readText reads PacketTraces in protobuf's text format. Fields that the schema does not have are left out.
func readText(r io.Reader) ([]Trace, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	depth := 0
	for _, c := range b {
		switch c {
		case '{', '<':
			depth++
		case '}', '>':
			depth--
		}
		if depth > maxDepth {
			return nil, errors.New("nested too deep")
		}
	}
	m := dynamicpb.NewMessage(packetTraces())
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(strings.ToValidUTF8(string(b), "\uFFFD")), m); err != nil {
		return nil, inOneLine(err)
	}
	return stages(part{m}), nil
}

// readStages reads a PacketTrace in protobuf's JSON, of which input and root are parts; nil: it has none.
func readStages(input, root []byte) ([]Trace, error) {
	m := dynamicpb.NewMessage(packetTraces())
	text := fmt.Sprintf(`{"input": [%s], "root": [%s]}`, input, root)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), m); err != nil {
		return nil, inOneLine(err)
	}
	return stages(part{m}), nil
}

func inOneLine(err error) error {
	return fmt.Errorf("%s", strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, err.Error()))
}

// part is a message of the schema.
type part struct{ protoreflect.Message }

func (m part) field(name string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(protoreflect.Name(name))
}

func (m part) has(name string) bool      { return m.Has(m.field(name)) }
func (m part) sub(name string) part      { return part{m.Get(m.field(name)).Message()} }
func (m part) number(name string) uint64 { return m.Get(m.field(name)).Uint() }
func (m part) kind(name string) int      { return int(m.Get(m.field(name)).Enum()) }
func (m part) list(name string) (all []part) {
	l := m.Get(m.field(name)).List()
	for i := range l.Len() {
		all = append(all, part{l.Get(i).Message()})
	}
	return all
}

// stages are the traces of PacketTraces.
func stages(m part) []Trace {
	inputs, roots := m.list("input"), m.list("root")
	all := make([]Trace, max(len(inputs), len(roots)))
	for i := range all {
		all[i].Origin = BMv2Stages
		if i < len(inputs) {
			all[i].Packet = inputs[i].number("packet_id")
			all[i].Add(0, Step{Kind: Received, Port: uint32(inputs[i].number("ingress_port"))})
		}
		if i < len(roots) {
			all[i].tree(roots[i])
		}
	}
	return all
}

// tree adds the steps of a TraceTree.
func (t *Trace) tree(m part) {
	for _, e := range m.list("events") {
		s := e.sub("pipeline_stage")
		switch {
		case !e.has("pipeline_stage"):
			t.Add(0, Step{Kind: Note, Name: "an event that is not of a stage"})
		case s.kind("direction") == exit: // a stage's end is where the next one begins
		case s.kind("stage_kind") == kindParser:
			t.Add(0, Step{Kind: Stage, Name: "parser"})
		case s.kind("stage_kind") == kindDeparser:
			t.Add(0, Step{Kind: Stage, Name: "deparser"})
		default:
			t.Add(0, Step{Kind: Stage, Name: s.Get(s.field("stage_name")).String()})
		}
	}
	if m.has("transmit") {
		x := m.sub("transmit")
		t.Add(0, Step{Kind: Transmit, Port: uint32(x.number("egress_port")), Length: int(x.number("packet_size"))})
	}
	if m.has("drop") {
		t.Add(0, Step{Kind: Drop})
	}
}
