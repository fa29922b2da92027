package p4rt

import (
	"bytes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Read implements the RPC. Writes go on between two messages of an answer.
func (s *Server) Read(r *p4v1.ReadRequest, g p4v1.P4Runtime_ReadServer) error {
	s.stats.Reads.Add(1)
	k := callOf(g.Context())
	k.within(0)
	send := func(m *p4v1.ReadResponse) error {
		k.within(stalled)
		defer k.within(0)
		return g.Send(m)
	}
	if err := callerOf(g.Context()).inRole(r.GetRole()); err != nil {
		return err
	}
	d, err := s.device(r.GetDeviceId())
	if err != nil {
		return err
	}
	var scope *scope
	if name := r.GetRole(); name != "" {
		d.mu.Lock()
		role := d.roles[name]
		if role != nil {
			scope = role.scope
		}
		d.mu.Unlock()
		if role == nil {
			return status.Errorf(codes.NotFound, "device %d knows no role %q: no controller has claimed it", d.id, name)
		}
	}
	d.writing.RLock()
	held := true // a panic of Send must not unlock twice
	defer func() {
		if held {
			d.writing.RUnlock()
		}
	}()
	p := d.current()
	if p == nil {
		return status.Errorf(codes.FailedPrecondition, "device %d has no pipeline: set one first", d.id)
	}
	size := 0
	answer := &p4v1.ReadResponse{}
	var ended error // no more can be sent
	flush := func() error {
		s.stats.EntitiesRead.Add(uint64(len(answer.Entities)))
		held = false
		d.writing.RUnlock()
		err := send(answer)
		d.writing.RLock()
		held = true
		answer, size = &p4v1.ReadResponse{Entities: answer.Entities[:0]}, 0
		if err == nil && d.current() != p {
			err = status.Error(codes.Aborted, "the pipeline was replaced while it was read")
		}
		ended = err
		return err
	}
	errs := make([]error, len(r.GetEntities()))
	for n, q := range r.GetEntities() {
		if errs[n] = p.Info().Query(q); errs[n] != nil {
			continue
		}
		errs[n] = d.read(p, q, func(e *p4v1.Entity) error {
			if !scope.allows(p.Info(), e) {
				return nil
			}
			n := proto.Size(e)
			if len(answer.Entities) > 0 && size+n > maxAnswer {
				if err := flush(); err != nil {
					return err
				}
			}
			answer.Entities = append(answer.Entities, e)
			size += n + 4
			return nil
		})
		if ended != nil {
			return ended
		}
	}
	if len(answer.Entities) > 0 {
		s.stats.EntitiesRead.Add(uint64(len(answer.Entities)))
		held = false
		d.writing.RUnlock()
		err := send(answer)
		d.writing.RLock()
		held = true
		if err != nil {
			return err
		}
	}
	_, err = report("requests", errs)
	return err
}

// read answers one query, which has been checked.
func (d *device) read(p Pipeline, q *p4v1.Entity, yield func(*p4v1.Entity) error) error {
	i := p.Info()
	switch x := q.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		if x.TableEntry.GetTableId() != 0 {
			return readTable(p, x.TableEntry, yield)
		}
		for _, t := range i.Tables {
			e := proto.CloneOf(x.TableEntry)
			e.TableId = t.ID
			if !t.IdleTimeout {
				e.TimeSinceLastHit = nil
			}
			if err := readTable(p, e, yield); err != nil {
				return err
			}
		}
		return nil
	case *p4v1.Entity_DirectCounterEntry:
		return d.readDirect(p, x.DirectCounterEntry.GetTableEntry(), func(t *p4info.Table) bool { return t.Counter != nil }, func(e *p4v1.TableEntry) {
			e.CounterData = &p4v1.CounterData{}
		}, func(key, e *p4v1.TableEntry) *p4v1.Entity {
			return &p4v1.Entity{Entity: &p4v1.Entity_DirectCounterEntry{DirectCounterEntry: &p4v1.DirectCounterEntry{TableEntry: key, Data: e.GetCounterData()}}}
		}, yield)
	case *p4v1.Entity_DirectMeterEntry:
		return d.readDirect(p, x.DirectMeterEntry.GetTableEntry(), func(t *p4info.Table) bool { return t.Meter != nil }, func(e *p4v1.TableEntry) {
			e.MeterConfig = &p4v1.MeterConfig{}
		}, func(key, e *p4v1.TableEntry) *p4v1.Entity {
			return &p4v1.Entity{Entity: &p4v1.Entity_DirectMeterEntry{DirectMeterEntry: &p4v1.DirectMeterEntry{TableEntry: key, Config: e.GetMeterConfig()}}}
		}, yield)
	case *p4v1.Entity_ActionProfileMember:
		return each(i.Profiles, x.ActionProfileMember.GetActionProfileId(), func(o *p4info.Profile) error {
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{
				ActionProfileId: o.ID, MemberId: x.ActionProfileMember.GetMemberId()}}}, yield)
		})
	case *p4v1.Entity_ActionProfileGroup:
		return each(i.Profiles, x.ActionProfileGroup.GetActionProfileId(), func(o *p4info.Profile) error {
			if !o.Selector {
				return nil
			}
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: &p4v1.ActionProfileGroup{
				ActionProfileId: o.ID, GroupId: x.ActionProfileGroup.GetGroupId()}}}, yield)
		})
	case *p4v1.Entity_CounterEntry:
		return each(i.Counters, x.CounterEntry.GetCounterId(), func(o *p4info.Array) error {
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: o.ID, Index: x.CounterEntry.GetIndex()}}}, yield)
		})
	case *p4v1.Entity_MeterEntry:
		return each(i.Meters, x.MeterEntry.GetMeterId(), func(o *p4info.Array) error {
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: o.ID, Index: x.MeterEntry.GetIndex()}}}, yield)
		})
	case *p4v1.Entity_RegisterEntry:
		return each(i.Registers, x.RegisterEntry.GetRegisterId(), func(o *p4info.Array) error {
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: o.ID, Index: x.RegisterEntry.GetIndex()}}}, yield)
		})
	case *p4v1.Entity_ValueSetEntry:
		return each(i.ValueSets, x.ValueSetEntry.GetValueSetId(), func(o *p4info.ValueSet) error {
			return p.Read(&p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: &p4v1.ValueSetEntry{ValueSetId: o.ID}}}, yield)
		})
	case *p4v1.Entity_DigestEntry:
		configs := d.digestConfigs()
		return each(i.Digests, x.DigestEntry.GetDigestId(), func(o *p4info.Digest) error {
			if configs[o.ID] == nil {
				return nil
			}
			return yield(&p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: o.ID, Config: configs[o.ID]}}})
		})
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return p.Read(q, yield)
	case *p4v1.Entity_ExternEntry:
		return nil
	}
	return refusal(codes.InvalidArgument, "the request has no entity")
}

// each calls f for the object of an id, or for all when it is 0.
func each[T interface{ ObjectID() uint32 }](list []T, id uint32, f func(T) error) error {
	for _, o := range list {
		if id == 0 || o.ObjectID() == id {
			if err := f(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// readTable yields the entries of one table that a query asks for.
func readTable(p Pipeline, q *p4v1.TableEntry, yield func(*p4v1.Entity) error) error {
	t := p.Info().Table(q.GetTableId())
	var key string
	one := len(q.GetMatch()) > 0
	if one {
		key = p4info.Key(entity(&p4v1.TableEntry{TableId: t.ID, Match: q.GetMatch()}))
	}
	return p.Read(entity(q), func(x *p4v1.Entity) error {
		e := x.GetTableEntry()
		if one && key != p4info.Key(entity(&p4v1.TableEntry{TableId: t.ID, Match: e.GetMatch()})) {
			return nil
		}
		if id := q.GetAction().GetAction().GetActionId(); id != 0 && e.GetAction().GetAction().GetActionId() != id ||
			q.GetPriority() != 0 && e.GetPriority() != q.GetPriority() ||
			q.GetControllerMetadata() != 0 && e.GetControllerMetadata() != q.GetControllerMetadata() || //nolint:staticcheck // clients use it
			len(q.GetMetadata()) > 0 && !bytes.Equal(e.GetMetadata(), q.GetMetadata()) {
			return nil
		}
		if t.Const && !e.GetIsDefaultAction() || e.GetIsDefaultAction() && (t.ConstDefault != nil || t.Profile != nil) {
			e.IsConst = true
		}
		return yield(x)
	})
}

func entity(e *p4v1.TableEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}
}

// readDirect reads direct resources with their entries.
func (d *device) readDirect(p Pipeline, q *p4v1.TableEntry, has func(*p4info.Table) bool, ask func(*p4v1.TableEntry), with func(key, e *p4v1.TableEntry) *p4v1.Entity, yield func(*p4v1.Entity) error) error {
	found := false
	for _, t := range p.Info().Tables {
		if q.GetTableId() != 0 && t.ID != q.GetTableId() || !has(t) {
			continue
		}
		ask0 := &p4v1.TableEntry{TableId: t.ID, Match: q.GetMatch(), Priority: q.GetPriority(), IsDefaultAction: q.GetIsDefaultAction()}
		ask(ask0)
		err := readTable(p, ask0, func(x *p4v1.Entity) error {
			found = true
			e := x.GetTableEntry()
			key := &p4v1.TableEntry{TableId: e.GetTableId(), Match: e.GetMatch(), Priority: e.GetPriority(), IsDefaultAction: e.GetIsDefaultAction()}
			return yield(with(key, e))
		})
		if err != nil {
			return err
		}
	}
	if !found && len(q.GetMatch()) > 0 {
		return refusal(codes.NotFound, "there is no such entry")
	}
	return nil
}
