package p4info_test

import (
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quillon/quillon/controlplane/p4info"
)

// fill sets all fields of a message, and of those in it; of each of its oneofs the field at index choice.
func fill(m protoreflect.Message, choice, depth int) {
	fields := m.Descriptor().Fields()
	for n := range fields.Len() {
		f := fields.Get(n)
		if o := f.ContainingOneof(); o != nil && o.Fields().Get(min(choice, o.Fields().Len()-1)) != f {
			continue
		}
		set := func(v protoreflect.Value) { m.Set(f, v) }
		if f.IsList() {
			list := m.Mutable(f).List()
			if f.Message() != nil && depth < 6 {
				fill(list.AppendMutable().Message(), choice, depth+1)
			}
			continue
		}
		switch f.Kind() {
		case protoreflect.MessageKind:
			if depth < 6 {
				fill(m.Mutable(f).Message(), choice, depth+1)
			}
		case protoreflect.BytesKind:
			set(protoreflect.ValueOfBytes([]byte{byte(n + 1)}))
		case protoreflect.StringKind:
			set(protoreflect.ValueOfString("x"))
		case protoreflect.BoolKind:
			set(protoreflect.ValueOfBool(true))
		case protoreflect.EnumKind:
			set(protoreflect.ValueOfEnum(1))
		case protoreflect.Uint32Kind:
			set(protoreflect.ValueOfUint32(uint32(n + 1)))
		case protoreflect.Int32Kind:
			set(protoreflect.ValueOfInt32(int32(n + 1)))
		case protoreflect.Uint64Kind:
			set(protoreflect.ValueOfUint64(uint64(n + 1)))
		case protoreflect.Int64Kind:
			set(protoreflect.ValueOfInt64(int64(n + 1)))
		}
	}
}

// TestApart: every entity that P4Runtime's messages can be, with all of their fields, is the same after it was taken
// apart and put together.
func TestApart(t *testing.T) {
	oneof := (&p4v1.Entity{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	kinds := map[p4info.Kind]bool{}
	first := map[byte]p4info.Kind{} // of the keys
	for choice := range oneof.Len() {
		for inner := range 2 { // multicast groups and clone sessions
			e := &p4v1.Entity{}
			fill(e.ProtoReflect().Mutable(oneof.Get(choice)).Message(), inner, 0)
			x := p4info.Of(e)
			if again := x.Message(); !proto.Equal(e, again) {
				t.Errorf("%v became %v", e, again)
			}
			key := p4info.Key(e)
			if x.Kind == p4info.KindNone || key == "" {
				t.Fatalf("%v: kind %v, key %q", e, x.Kind, key)
			}
			if other := first[key[0]]; other != p4info.KindNone && other != x.Kind {
				t.Errorf("the keys of a %v and a %v begin alike", x.Kind, other)
			}
			first[key[0]], kinds[x.Kind] = x.Kind, true
		}
	}
	if len(kinds) != oneof.Len()+1 {
		t.Errorf("there are %d kinds for %d messages", len(kinds), oneof.Len())
	}
	none := &p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{}}}
	if x := p4info.Of(none); x.Kind != p4info.KindReplication || !proto.Equal(x.Message(), none) || p4info.Key(none) != "" {
		t.Errorf("%v: %v", none, x.Kind)
	}
	if x := p4info.Of(nil); x.Kind != p4info.KindNone || !proto.Equal(x.Message(), &p4v1.Entity{}) {
		t.Errorf("no entity: %v", x.Kind)
	}
}
