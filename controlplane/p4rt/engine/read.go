package engine

import (
	"maps"
	"slices"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/p4"
)

// Read implements p4rt.Pipeline.
func (p *pipeline) Read(q *p4v1.Entity, give func(*p4v1.Entity) error) error {
	q, err := p.binding.in(q, false)
	if err != nil {
		return nil // of what has no such name there is nothing
	}
	yield := func(e *p4v1.Entity) error { return give(p.binding.out(e)) }
	switch x := q.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return p.readEntries(x.TableEntry, yield)
	case *p4v1.Entity_ActionProfileMember:
		return p.readMembers(x.ActionProfileMember, yield)
	case *p4v1.Entity_ActionProfileGroup:
		pr := p.info.Profile(x.ActionProfileGroup.GetActionProfileId())
		return readMap(p, x.ActionProfileGroup.GetGroupId(), func() map[uint32]*p4v1.ActionProfileGroup {
			m := map[uint32]*p4v1.ActionProfileGroup{}
			for k, g := range p.groups {
				if uint32(k>>32) == pr.ID {
					m[uint32(k)] = g
				}
			}
			return m
		}, func(g *p4v1.ActionProfileGroup) error {
			return yield(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g}})
		})
	case *p4v1.Entity_CounterEntry:
		a := p.info.Counter(x.CounterEntry.GetCounterId())
		return readCells(p, a, x.CounterEntry.GetIndex(), func(sw *p4.Switch, n int) (p4.Count, error) { return sw.Count(a.Name, n) },
			func(i *p4v1.Index, c p4.Count) error {
				return yield(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: a.ID, Index: i, Data: counterData(c)}}})
			})
	case *p4v1.Entity_MeterEntry:
		a := p.info.Meter(x.MeterEntry.GetMeterId())
		return readCells(p, a, x.MeterEntry.GetIndex(), func(sw *p4.Switch, n int) ([]p4.Rate, error) { return sw.Meter(a.Name, n) },
			func(i *p4v1.Index, r []p4.Rate) error {
				return yield(&p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: a.ID, Index: i, Config: meterConfig(r)}}})
			})
	case *p4v1.Entity_RegisterEntry:
		a := p.info.Register(x.RegisterEntry.GetRegisterId())
		return readCells(p, a, x.RegisterEntry.GetIndex(), func(sw *p4.Switch, n int) ([]byte, error) { return sw.Register(a.Name, n) },
			func(i *p4v1.Index, v []byte) error {
				return yield(&p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: a.ID, Index: i, Data: registerData(a, v)}}})
			})
	case *p4v1.Entity_PacketReplicationEngineEntry:
		switch y := x.PacketReplicationEngineEntry.GetType().(type) {
		case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
			return readMap(p, y.MulticastGroupEntry.GetMulticastGroupId(), func() map[uint32]*p4v1.MulticastGroupEntry { return p.mcast }, func(g *p4v1.MulticastGroupEntry) error {
				return yield(&p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
					Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g}}}})
			})
		case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
			return readMap(p, y.CloneSessionEntry.GetSessionId(), func() map[uint32]*p4v1.CloneSessionEntry { return p.clones }, func(s *p4v1.CloneSessionEntry) error {
				return yield(&p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
					Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: s}}}})
			})
		}
	case *p4v1.Entity_ValueSetEntry:
		return p.readValueSet(x.ValueSetEntry.GetValueSetId(), yield)
	}
	return refuse(codes.Unimplemented, "the device has no such entities")
}

// readMap yields the message of an id, or all in their order when it is 0. A
// message in the map never changes, it is replaced.
func readMap[V any](p *pipeline, id uint32, m func() map[uint32]*V, yield func(*V) error) error {
	var list []*V
	err := p.visit(func(*p4.Switch) bool {
		all := m()
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if id == 0 || k == id {
				list = append(list, all[k])
			}
		}
		return false
	})
	for _, v := range list {
		if err == nil {
			err = yield(v)
		}
	}
	return err
}

// readCells yields one element of an array, or all, a slice at a time.
func readCells[V any](p *pipeline, a *p4info.Array, x *p4v1.Index, get func(*p4.Switch, int) (V, error), yield func(*p4v1.Index, V) error) error {
	at, end := 0, int(a.Size)
	if x != nil {
		at = int(x.GetIndex())
		end = at + 1
	}
	var list []V
	for at < end {
		list = list[:0]
		first := at
		var failed error
		err := p.visit(func(sw *p4.Switch) bool {
			for range cellsAtOnce {
				if at == end {
					return false
				}
				var v V
				if v, failed = get(sw, at); failed != nil {
					return false
				}
				list = append(list, v)
				at++
			}
			return len(list) < 4096
		})
		if err == nil {
			err = codeOf(failed)
		}
		for n, v := range list {
			if err == nil {
				err = yield(&p4v1.Index{Index: int64(first + n)}, v)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) readMembers(q *p4v1.ActionProfileMember, yield func(*p4v1.Entity) error) error {
	pr := p.info.Profile(q.GetActionProfileId())
	if len(pr.Tables) == 0 {
		return nil
	}
	t := p.binding.tables[pr.Tables[0].ID]
	var ids []uint32
	if id := q.GetMemberId(); id != 0 {
		ids = []uint32{id}
	} else if err := p.visit(func(sw *p4.Switch) bool { ids, _ = sw.Members(pr.Name); return false }); err != nil {
		return err
	}
	for len(ids) > 0 {
		var list []*p4v1.ActionProfileMember
		err := p.visit(func(sw *p4.Switch) bool {
			if a, err := sw.Member(pr.Name, ids[0]); err == nil && ids[0] < firstHidden {
				list = append(list, &p4v1.ActionProfileMember{ActionProfileId: pr.ID, MemberId: ids[0], Action: t.describe(a)})
			}
			ids = ids[1:]
			return len(ids) > 0 && len(list) < 1024
		})
		for _, m := range list {
			if err == nil {
				err = yield(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m}})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) readValueSet(id uint32, yield func(*p4v1.Entity) error) error {
	v := p.info.ValueSet(id)
	var members [][]byte
	err := p.visit(func(sw *p4.Switch) bool { members, _ = sw.ValueSet(v.Name); return false })
	if err != nil {
		return err
	}
	e := &p4v1.ValueSetEntry{ValueSetId: id}
	for _, b := range members {
		m := &p4v1.ValueSetMember{}
		left := p.binding.valueSets[id]
		for _, f := range v.Fields {
			left -= f.Type.Bits
			m.Match = append(m.Match, &p4v1.FieldMatch{FieldId: f.ID, FieldMatchType: &p4v1.FieldMatch_Exact_{
				Exact: &p4v1.FieldMatch_Exact{Value: bitsOf(b, left, f.Type.Bits)}}})
		}
		e.Members = append(e.Members, m)
	}
	return yield(&p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: e}})
}
