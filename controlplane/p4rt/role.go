package p4rt

import (
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Role says what a role may do.
type Role struct {
	// Objects are the names, or aliases, of the tables, action profiles,
	// counters, meters, registers, value sets and digests that the role may
	// write; a direct counter or meter comes with its table.
	Objects []string
	// Replication: multicast groups and clone sessions.
	Replication bool
	// PacketIn and PacketOut: packets from and to the device.
	PacketIn, PacketOut bool
	// Pipeline: the role may set the pipeline.
	Pipeline bool
}

// scope is what the controllers of a role may do; nil: everything.
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

// scopeOf reads a role's configuration: a P4Info with the objects that the role
// may write. With a header packet_in or packet_out it takes part in packets
// from or to the device, with platform properties in multicast and clones.
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
	add := func(pre *configv1.Preamble) { s.ids[pre.GetId()] = true }
	for _, x := range p.GetTables() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetActionProfiles() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetCounters() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetDirectCounters() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetMeters() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetDirectMeters() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetRegisters() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetValueSets() {
		add(x.GetPreamble())
	}
	for _, x := range p.GetDigests() {
		add(x.GetPreamble())
	}
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

// allows reports whether an entity is in the scope.
func (s *scope) allows(i *p4info.Info, e *p4v1.Entity) bool {
	if s == nil {
		return true
	}
	table := func(id uint32) bool {
		t := i.Table(id)
		return t != nil && s.has(&t.Object)
	}
	direct := func(id uint32, of func(*p4info.Table) *p4info.Direct) bool {
		t := i.Table(id)
		if t == nil {
			return false
		}
		d := of(t)
		return s.has(&t.Object) || d != nil && s.has(&d.Object)
	}
	array := func(a *p4info.Array) bool { return a != nil && s.has(&a.Object) }
	profile := func(id uint32) bool {
		p := i.Profile(id)
		return p != nil && s.has(&p.Object)
	}
	switch x := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return table(x.TableEntry.GetTableId())
	case *p4v1.Entity_DirectCounterEntry:
		return direct(x.DirectCounterEntry.GetTableEntry().GetTableId(), func(t *p4info.Table) *p4info.Direct { return t.Counter })
	case *p4v1.Entity_DirectMeterEntry:
		return direct(x.DirectMeterEntry.GetTableEntry().GetTableId(), func(t *p4info.Table) *p4info.Direct { return t.Meter })
	case *p4v1.Entity_ActionProfileMember:
		return profile(x.ActionProfileMember.GetActionProfileId())
	case *p4v1.Entity_ActionProfileGroup:
		return profile(x.ActionProfileGroup.GetActionProfileId())
	case *p4v1.Entity_CounterEntry:
		return array(i.Counter(x.CounterEntry.GetCounterId()))
	case *p4v1.Entity_MeterEntry:
		return array(i.Meter(x.MeterEntry.GetMeterId()))
	case *p4v1.Entity_RegisterEntry:
		return array(i.Register(x.RegisterEntry.GetRegisterId()))
	case *p4v1.Entity_ValueSetEntry:
		v := i.ValueSet(x.ValueSetEntry.GetValueSetId())
		return v != nil && s.has(&v.Object)
	case *p4v1.Entity_DigestEntry:
		return s.allowsDigest(i, x.DigestEntry.GetDigestId())
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return s.Replication
	}
	return false
}

func (s *scope) allowsDigest(i *p4info.Info, id uint32) bool {
	if s == nil {
		return true
	}
	d := i.Digest(id)
	return d != nil && s.has(&d.Object)
}

func (s *scope) packetIn() bool  { return s == nil || s.PacketIn }
func (s *scope) packetOut() bool { return s == nil || s.PacketOut }
func (s *scope) pipeline() bool  { return s == nil || s.Pipeline }
