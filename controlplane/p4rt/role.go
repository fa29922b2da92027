package p4rt

import (
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Role says what the controllers of a role may do.
type Role struct {
	// Objects are names or aliases of the tables, action profiles, counters, meters, registers, value sets and
	// digests that the role may write. A direct counter or meter belongs to its table.
	Objects []string
	// Replication allows multicast groups and clone sessions.
	Replication bool
	// PacketIn and PacketOut allow packets from the device and to it.
	PacketIn, PacketOut bool
	// Pipeline allows setting the pipeline.
	Pipeline bool
}

// scope is what the controllers of a role may do; a nil scope allows everything.
type scope struct {
	Role
	names map[string]bool
	ids   map[uint32]bool
}

func (r Role) scope() *scope {
	s := &scope{Role: r, names: map[string]bool{}}
	for _, n := range r.Objects {
		s.names[n] = true
	}
	return s
}

// scopeOf reads a role's configuration: a P4Info with the objects that the role may write. A header packet_in
// or packet_out in it allows packets from or to the device; platform properties allow multicast groups and
// clone sessions.
func scopeOf(config *anypb.Any) (*scope, error) {
	if config == nil {
		return nil, nil
	}
	p := &configv1.P4Info{}
	if err := config.UnmarshalTo(p); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the role's config is no p4.config.v1.P4Info with the objects that the role may write: %v", err)
	}
	s := &scope{ids: map[uint32]bool{}}
	s.Replication = p.GetPkgInfo().GetPlatformProperties() != nil
	// Every list of the message is of objects with a preamble.
	p.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		for n := 0; f.IsList() && f.Message() != nil && n < v.List().Len(); n++ {
			if x, ok := v.List().Get(n).Message().Interface().(interface{ GetPreamble() *configv1.Preamble }); ok {
				s.ids[x.GetPreamble().GetId()] = true
			}
		}
		return true
	})
	for _, x := range p.GetControllerPacketMetadata() {
		switch x.GetPreamble().GetName() {
		case "packet_in":
			s.PacketIn = true
		case "packet_out":
			s.PacketOut = true
		}
	}
	return s, nil
}

func (s *scope) has(o *p4info.Object) bool {
	return o != nil && (s.ids[o.ID] || s.names[o.Name] || s.names[o.Alias])
}

// allows reports whether the role may write an entity.
func (s *scope) allows(i *p4info.Info, e *p4v1.Entity) bool {
	if s == nil {
		return true
	}
	x := p4info.Of(e)
	switch t := i.Table(x.Object); {
	case x.Kind == p4info.KindMulticast || x.Kind == p4info.KindClone || x.Kind == p4info.KindReplication:
		return s.Replication
	case x.Kind == p4info.KindDirectCounter && t != nil && t.Counter != nil && s.has(&t.Counter.Object):
		return true
	case x.Kind == p4info.KindDirectMeter && t != nil && t.Meter != nil && s.has(&t.Meter.Object):
		return true
	}
	return s.has(i.Object(x.Kind, x.Object))
}

func (s *scope) allowsDigest(i *p4info.Info, id uint32) bool {
	return s == nil || s.has(i.Object(p4info.KindDigest, id))
}

func (s *scope) packetIn() bool  { return s == nil || s.PacketIn }
func (s *scope) packetOut() bool { return s == nil || s.PacketOut }
func (s *scope) pipeline() bool  { return s == nil || s.Pipeline }
