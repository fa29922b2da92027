package p4rt

import (
	"bytes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Read implements the RPC. Writes may come between two messages of an answer.
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
	var ended error // of Send: no more can be sent
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
	_, err = report("requests", errs, room(g.Context()))
	return err
}

// read answers one query that was checked before.
func (d *device) read(p Pipeline, q *p4v1.Entity, yield func(*p4v1.Entity) error) error {
	x := p4info.Of(q)
	switch x.Kind {
	case p4info.KindMulticast, p4info.KindClone:
		return p.Read(q, yield)
	case p4info.KindExtern:
		return nil
	case p4info.KindDirectCounter, p4info.KindDirectMeter:
		return d.readDirect(p, &x, yield)
	}
	for _, o := range p.Info().Objects(x.Kind) {
		if x.Object != 0 && x.Object != o.ID {
			continue
		}
		one := p4info.Entity{Kind: x.Kind, Object: o.ID, ID: x.ID, Index: x.Index}
		var err error
		switch x.Kind {
		case p4info.KindEntry:
			e := proto.CloneOf(x.Entry)
			e.TableId = o.ID
			if !p.Info().Table(o.ID).IdleTimeout {
				e.TimeSinceLastHit = nil
			}
			err = readTable(p, e, yield)
		case p4info.KindDigest:
			if one.Digest = d.currentDigests()[o.ID]; one.Digest != nil {
				err = yield(one.Message())
			}
		case p4info.KindGroup:
			if p.Info().Profile(o.ID).Selector {
				err = p.Read(one.Message(), yield)
			}
		default:
			err = p.Read(one.Message(), yield)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTable yields the entries of one table that match a query.
func readTable(p Pipeline, q *p4v1.TableEntry, yield func(*p4v1.Entity) error) error {
	t := p.Info().Table(q.GetTableId())
	var key string
	one := len(q.GetMatch()) > 0
	if one {
		key = p4info.Key(p4info.EntryOf(&p4v1.TableEntry{TableId: t.ID, Match: q.GetMatch()}))
	}
	return p.Read(p4info.EntryOf(q), func(x *p4v1.Entity) error {
		e := x.GetTableEntry()
		if one && key != p4info.Key(p4info.EntryOf(&p4v1.TableEntry{TableId: t.ID, Match: e.GetMatch()})) {
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

// readDirect reads direct counters or meters through the table entries that they belong to.
func (d *device) readDirect(p Pipeline, x *p4info.Entity, yield func(*p4v1.Entity) error) error {
	found, q := false, x.Entry
	for _, t := range p.Info().Tables {
		counter := x.Kind == p4info.KindDirectCounter
		if q.GetTableId() != 0 && t.ID != q.GetTableId() || counter && t.Counter == nil || !counter && t.Meter == nil {
			continue
		}
		ask := &p4v1.TableEntry{TableId: t.ID, Match: q.GetMatch(), Priority: q.GetPriority(), IsDefaultAction: q.GetIsDefaultAction()}
		if counter {
			ask.CounterData = &p4v1.CounterData{}
		} else {
			ask.MeterConfig = &p4v1.MeterConfig{}
		}
		err := readTable(p, ask, func(y *p4v1.Entity) error {
			found = true
			e := y.GetTableEntry()
			one := p4info.Entity{Kind: x.Kind, Entry: &p4v1.TableEntry{
				TableId: e.GetTableId(), Match: e.GetMatch(), Priority: e.GetPriority(), IsDefaultAction: e.GetIsDefaultAction()}}
			if counter {
				one.Count = e.GetCounterData()
			} else {
				one.Rates = e.GetMeterConfig()
			}
			return yield(one.Message())
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
