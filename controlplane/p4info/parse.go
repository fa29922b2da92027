package p4info

import (
	"bytes"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// Decode reads a P4Info file in protobuf's text format, in JSON, or in the binary format.
func Decode(src []byte) (*configv1.P4Info, error) {
	p := &configv1.P4Info{}
	text := prototext.Unmarshal(src, p)
	if text == nil {
		return p, nil
	}
	if bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) {
		return p, protojson.Unmarshal(src, p)
	}
	if proto.Unmarshal(src, p) == nil && len(p.ProtoReflect().GetUnknown()) == 0 {
		return p, nil
	}
	return nil, text
}

// Parse reads a P4Info file with Decode, and calls New.
func Parse(src []byte) (*Info, error) {
	p, err := Decode(src)
	if err != nil {
		return nil, invalid("P4Info: %v", err)
	}
	return New(p)
}
