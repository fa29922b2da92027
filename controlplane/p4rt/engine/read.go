package engine

import (
	"cmp"
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
		return nil // a name that was never written has no entries
	}
	yield := func(e *p4v1.Entity) error { return give(p.binding.out(e)) }
	switch x := p4info.Of(q); x.Kind {
	case p4info.KindEntry:
		return p.readEntries(x.Entry, yield)
	case p4info.KindMember:
		return p.readMembers(&x, yield)
	case p4info.KindGroup, p4info.KindMulticast, p4info.KindClone:
		return p.readKept(&x, yield)
	case p4info.KindValueSet:
		return p.readValueSet(x.Object, yield)
	case p4info.KindCounter:
		return readCells(p, &x, (*p4.Switch).Count, func(e *p4info.Entity, c p4.Count) { e.Count = counterData(c) }, yield)
	case p4info.KindMeter:
		return readCells(p, &x, (*p4.Switch).Meter, func(e *p4info.Entity, r []p4.Rate) { e.Rates = meterConfig(r) }, yield)
	case p4info.KindRegister:
		a := p.info.Register(x.Object)
		return readCells(p, &x, (*p4.Switch).Register, func(e *p4info.Entity, v []byte) { e.Data = registerData(a, v) }, yield)
	}
	return refuse(codes.Unimplemented, "the device has no such entities")
}

// readKept yields the entity with the id of q, or for id 0 all entities of the object, in the order of their
// ids. A kept entity is never changed, only replaced.
func (p *pipeline) readKept(q *p4info.Entity, yield func(*p4v1.Entity) error) error {
	var list []*p4info.Entity
	err := p.visit(func(*p4.Switch) bool {
		for id, x := range p.kept[place{q.Kind, q.Object}] {
			if q.ID == 0 || q.ID == id {
				list = append(list, x)
			}
		}
		return false
	})
	slices.SortFunc(list, func(a, b *p4info.Entity) int { return cmp.Compare(a.ID, b.ID) })
	for _, x := range list {
		if err == nil {
			err = yield(x.Message())
		}
	}
	return err
}

// readCells yields one element of an array, or all, a slice at a time.
func readCells[V any](p *pipeline, q *p4info.Entity, get func(*p4.Switch, string, int) (V, error), put func(*p4info.Entity, V), yield func(*p4v1.Entity) error) error {
	a := p.info.Array(q.Object)
	at, end := 0, int(a.Size)
	if q.Index != nil {
		at = int(q.Index.GetIndex())
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
				if v, failed = get(sw, a.Name, at); failed != nil {
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
				x := p4info.Entity{Kind: q.Kind, Object: a.ID, Index: &p4v1.Index{Index: int64(first + n)}}
				put(&x, v)
				err = yield(x.Message())
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) readMembers(q *p4info.Entity, yield func(*p4v1.Entity) error) error {
	pr := p.info.Profile(q.Object)
	if len(pr.Tables) == 0 {
		return nil
	}
	t := p.binding.tables[pr.Tables[0].ID]
	var ids []uint32
	if q.ID != 0 {
		ids = []uint32{q.ID}
	} else if err := p.visit(func(sw *p4.Switch) bool { ids, _ = sw.Members(pr.Name); return false }); err != nil {
		return err
	}
	for len(ids) > 0 {
		var list []*p4v1.Entity
		err := p.visit(func(sw *p4.Switch) bool {
			if a, err := sw.Member(pr.Name, ids[0]); err == nil && ids[0] < firstHidden {
				list = append(list, p4info.Entity{Kind: q.Kind, Object: pr.ID, ID: ids[0], Action: t.describe(a)}.Message())
			}
			ids = ids[1:]
			return len(ids) > 0 && len(list) < 1024
		})
		for _, m := range list {
			if err == nil {
				err = yield(m)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) readValueSet(id uint32, yield func(*p4v1.Entity) error) error {
	var list []*p4v1.ValueSetMember
	if err := p.visit(func(*p4.Switch) bool { list = p.values[id]; return false }); err != nil {
		return err
	}
	return yield(p4info.Entity{Kind: p4info.KindValueSet, Object: id, Values: list}.Message())
}
