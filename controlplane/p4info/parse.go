package p4info

import (
	"bytes"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// Parse reads a P4Info file: protobuf's text form, its JSON, or its binary form.
func Parse(src []byte) (*Info, error) {
	p := &configv1.P4Info{}
	text := prototext.Unmarshal(src, p)
	if text == nil {
		return New(p)
	}
	if bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) {
		if err := protojson.Unmarshal(src, p); err != nil {
			return nil, invalid("P4Info: %v", err)
		}
		return New(p)
	}
	if bytes.IndexByte(src, 0) >= 0 && proto.Unmarshal(src, p) == nil {
		return New(p)
	}
	return nil, invalid("P4Info: %v", text)
}
