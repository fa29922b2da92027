package p4rt

import (
	"context"
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quillon/quillon/controlplane/p4info"
)

// SetForwardingPipelineConfig implements the RPC.
func (s *Server) SetForwardingPipelineConfig(ctx context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*p4v1.SetForwardingPipelineConfigResponse, error) {
	d, err := s.device(r.GetDeviceId())
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	if _, err := d.primary(who, r.GetRole(), r.GetElectionId()); err != nil {
		return nil, err // before it waits for its turn
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	scope, err := d.primary(who, r.GetRole(), r.GetElectionId())
	if err != nil {
		return nil, err
	}
	if !scope.pipeline() {
		return nil, status.Errorf(codes.PermissionDenied, "role %q may not set the pipeline", r.GetRole())
	}
	if err := d.setPipeline(r.GetAction(), r.GetConfig()); err != nil {
		return nil, statusOf(err).Err()
	}
	return &p4v1.SetForwardingPipelineConfigResponse{}, nil
}

func (d *device) setPipeline(action p4v1.SetForwardingPipelineConfigRequest_Action, c *p4v1.ForwardingPipelineConfig) error {
	switch action {
	case p4v1.SetForwardingPipelineConfigRequest_COMMIT:
		if c != nil {
			return refusal(codes.InvalidArgument, "COMMIT takes no config: it realises the saved one")
		}
		if d.saved == nil {
			return refusal(codes.NotFound, "nothing was saved: VERIFY_AND_SAVE comes first")
		}
		return d.commit(d.saved, d.savedCookie, d.savedDigests)
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY,
		p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE,
		p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
	default:
		return refusal(codes.InvalidArgument, fmt.Sprintf("action %v", action))
	}
	if c.GetP4Info() == nil {
		return refusal(codes.InvalidArgument, "the config is missing: a P4Info and the device's program")
	}
	info, err := p4info.New(c.GetP4Info())
	if err != nil {
		return err
	}
	p, err := d.dev.Build(info, c.GetP4DeviceConfig())
	if err != nil {
		return err
	}
	switch action {
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY:
		return nil
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE:
		d.saved, d.savedCookie, d.savedDigests = p, c.GetCookie(), map[uint32]*p4v1.DigestEntry_Config{}
		return nil
	case p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
		digests := map[uint32]*p4v1.DigestEntry_Config{}
		if old := d.dev.Pipeline(); old != nil {
			if old != p {
				if err := carry(old, p); err != nil {
					return err
				}
			}
			for id, c := range d.digestConfigs() {
				if info.Digest(id) == nil {
					return refusal(codes.InvalidArgument, fmt.Sprintf("the state cannot be kept: digest %s is gone", old.Info().Digest(id).Name))
				}
				digests[id] = c
			}
		}
		return d.commit(p, c.GetCookie(), digests)
	}
	return d.commit(p, c.GetCookie(), nil)
}

// commit makes p the running pipeline, with these digests. The caller holds d.writing.
func (d *device) commit(p Pipeline, cookie *p4v1.ForwardingPipelineConfig_Cookie, digests map[uint32]*p4v1.DigestEntry_Config) error {
	if err := d.dev.Commit(p); err != nil {
		return err
	}
	d.saved, d.savedCookie, d.savedDigests = nil, nil, nil
	d.cookie = cookie
	d.setDigests(nil)
	d.setDigests(digests)
	d.s.stats.Pipelines.Add(1)
	return nil
}

// carryBatch is the number of entities that carry writes in one batch.
const carryBatch = 1024

// carry writes the entities of one pipeline into another. Entries, members, groups, replication entries and
// value sets must fit; the error names the first that does not. carry skips meters, counters and registers that
// do not fit into the new program.
func carry(old, new Pipeline) error {
	var batch []*p4v1.Update
	strict := true
	flush := func() error {
		for n, err := range new.Write(batch, p4v1.WriteRequest_CONTINUE_ON_ERROR) {
			if err != nil && strict {
				return refusal(codes.InvalidArgument, "the state cannot be kept: "+old.Info().Text(batch[n].GetEntity())+": "+statusOf(err).Message())
			}
		}
		batch = batch[:0]
		return nil
	}
	put := func(op p4v1.Update_Type) func(*p4v1.Entity) error {
		return func(e *p4v1.Entity) error {
			if t := e.GetTableEntry(); t != nil {
				if t.GetIsConst() {
					return nil
				}
				t.TimeSinceLastHit = nil
			}
			u := &p4v1.Update{Type: op, Entity: e}
			if err := new.Info().Update(u); err != nil {
				if !strict {
					return nil
				}
				return refusal(codes.InvalidArgument, "the state cannot be kept: "+old.Info().Text(e)+": "+err.Error())
			}
			if batch = append(batch, u); len(batch) < carryBatch {
				return nil
			}
			return flush()
		}
	}
	i := old.Info()
	read := func(q *p4v1.Entity, op p4v1.Update_Type) error {
		if err := old.Read(q, put(op)); err != nil {
			return err
		}
		return flush()
	}
	// all reads everything of a kind.
	all := func(k p4info.Kind, op p4v1.Update_Type) error {
		for _, o := range i.Objects(k) {
			if k == p4info.KindGroup && !i.Profile(o.ID).Selector {
				continue
			}
			if err := read(p4info.Entity{Kind: k, Object: o.ID}.Message(), op); err != nil {
				return err
			}
		}
		return nil
	}
	for _, k := range []p4info.Kind{p4info.KindMember, p4info.KindGroup} {
		if err := all(k, p4v1.Update_INSERT); err != nil {
			return err
		}
	}
	for _, o := range i.Tables {
		if !o.Const && len(o.Fields) > 0 {
			q := &p4v1.TableEntry{TableId: o.ID}
			if o.Counter != nil {
				q.CounterData = &p4v1.CounterData{}
			}
			if o.Meter != nil {
				q.MeterConfig = &p4v1.MeterConfig{}
			}
			// The program's initial entries may be there already.
			if err := clearTable(new, o.ID); err != nil {
				return err
			}
			if err := read(p4info.EntryOf(q), p4v1.Update_INSERT); err != nil {
				return err
			}
		}
		if o.ConstDefault == nil && o.Profile == nil {
			if err := read(p4info.EntryOf(&p4v1.TableEntry{TableId: o.ID, IsDefaultAction: true}), p4v1.Update_MODIFY); err != nil {
				return err
			}
		}
	}
	for _, k := range []p4info.Kind{p4info.KindMulticast, p4info.KindClone} {
		if err := read(p4info.Entity{Kind: k}.Message(), p4v1.Update_INSERT); err != nil {
			return err
		}
	}
	if err := all(p4info.KindValueSet, p4v1.Update_MODIFY); err != nil {
		return err
	}
	strict = false
	for _, k := range []p4info.Kind{p4info.KindMeter, p4info.KindCounter, p4info.KindRegister} {
		if err := all(k, p4v1.Update_MODIFY); err != nil {
			return err
		}
	}
	return nil
}

// clearTable deletes the initial entries of a table that controllers may change.
func clearTable(p Pipeline, table uint32) error {
	t := p.Info().Table(table)
	if t == nil || t.Const {
		return nil
	}
	var gone []*p4v1.Update
	err := p.Read(p4info.EntryOf(&p4v1.TableEntry{TableId: table}), func(e *p4v1.Entity) error {
		if !e.GetTableEntry().GetIsConst() {
			gone = append(gone, &p4v1.Update{Type: p4v1.Update_DELETE, Entity: e})
		}
		return nil
	})
	if err == nil {
		p.Write(gone, p4v1.WriteRequest_CONTINUE_ON_ERROR)
	}
	return err
}

// GetForwardingPipelineConfig implements the RPC.
func (s *Server) GetForwardingPipelineConfig(_ context.Context, r *p4v1.GetForwardingPipelineConfigRequest) (*p4v1.GetForwardingPipelineConfigResponse, error) {
	d, err := s.device(r.GetDeviceId())
	if err != nil {
		return nil, err
	}
	d.writing.RLock()
	defer d.writing.RUnlock()
	p := d.dev.Pipeline()
	if p == nil {
		return &p4v1.GetForwardingPipelineConfigResponse{}, nil
	}
	c := &p4v1.ForwardingPipelineConfig{Cookie: d.cookie}
	switch r.GetResponseType() {
	case p4v1.GetForwardingPipelineConfigRequest_ALL:
		c.P4Info, c.P4DeviceConfig = p.Info().Proto, p.Config()
	case p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY:
	case p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE:
		c.P4Info = p.Info().Proto
	case p4v1.GetForwardingPipelineConfigRequest_DEVICE_CONFIG_AND_COOKIE:
		c.P4DeviceConfig = p.Config()
	default:
		return nil, status.Errorf(codes.InvalidArgument, "response type %d", r.GetResponseType())
	}
	return &p4v1.GetForwardingPipelineConfigResponse{Config: c}, nil
}
