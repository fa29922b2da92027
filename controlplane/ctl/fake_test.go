package ctl

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
)

// fake is a server with any number of devices, each a map of entities: what
// P4Runtime says of arbitration, writes and reads, and no packets. It fails as it
// is told to.
type fake struct {
	p4v1.UnimplementedP4RuntimeServer

	mu      sync.Mutex
	devices map[uint64]*fakeDevice
	infos   *infoCache

	// refuse is asked before each update; nil: none is refused.
	refuse func(u *p4v1.Update) *p4v1.Error
	// style is how failed updates are told.
	style func(updates int, errs []*p4v1.Error) error
	// hidden are kinds that cannot be read, by the first byte of their Keys.
	hidden string
	// writes counts Write requests, most is the largest one's updates.
	writes, most int
	sent         []*p4v1.StreamMessageRequest
}

// infoCache has programs by cookie, for any number of fakes.
type infoCache struct {
	mu    sync.Mutex
	known map[uint64]*p4info.Info
}

func (c *infoCache) get(p *p4v1.ForwardingPipelineConfig) (*p4info.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.known[p.GetCookie().GetCookie()]; i != nil {
		return i, nil
	}
	i, err := p4info.New(p.GetP4Info())
	if err == nil {
		c.known[p.GetCookie().GetCookie()] = i
	}
	return i, err
}

type fakeDevice struct {
	info     *p4info.Info
	pipeline *p4v1.ForwardingPipelineConfig
	entities map[string]*p4v1.Entity
	streams  []*fakeStream
}

type fakeStream struct {
	p4v1.P4Runtime_StreamChannelServer
	election ElectionID
	role     string
	primary  bool
	kill     chan error
}

func newFake(ids ...uint64) *fake {
	f := &fake{devices: map[uint64]*fakeDevice{}, infos: &infoCache{known: map[uint64]*p4info.Info{}}, style: bmv2Style}
	for _, id := range ids {
		f.devices[id] = &fakeDevice{entities: map[string]*p4v1.Entity{}}
	}
	return f
}

// start serves on an address of this machine until stop or the end of the test.
func (f *fake) start(t testing.TB, address string, creds credentials.TransportCredentials) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var opts []grpc.ServerOption
	if creds != nil {
		opts = append(opts, grpc.Creds(creds))
	}
	s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(64<<20), grpc.SharedWriteBuffer(true))...)
	p4v1.RegisterP4RuntimeServer(s, f)
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func bmv2Style(_ int, errs []*p4v1.Error) error {
	st := &rpcstatus.Status{Code: int32(codes.Unknown)}
	for _, e := range errs {
		a, _ := anypb.New(e)
		st.Details = append(st.Details, a)
	}
	return status.FromProto(st).Err()
}

func (f *fake) device(id uint64) (*fakeDevice, error) {
	d := f.devices[id]
	if d == nil {
		return nil, status.Errorf(codes.NotFound, "there is no device %d", id)
	}
	return d, nil
}

// restart makes a device forget everything, and ends its streams.
func (f *fake) restart(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[id]
	for _, s := range d.streams {
		s.kill <- status.Error(codes.Unavailable, "restart")
	}
	d.pipeline, d.info, d.entities = nil, nil, map[string]*p4v1.Entity{}
}

func (f *fake) StreamChannel(stream p4v1.P4Runtime_StreamChannelServer) error {
	s := &fakeStream{P4Runtime_StreamChannelServer: stream, kill: make(chan error, 1)}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	a := m.GetArbitration()
	f.mu.Lock()
	d, err := f.device(a.GetDeviceId())
	if err == nil {
		s.election, s.role = electionOf(a.ElectionId), a.GetRole().GetName()
		for _, o := range d.streams {
			if o.election == s.election && o.role == s.role {
				err = status.Error(codes.InvalidArgument, "the election id is used")
			}
		}
	}
	if err != nil {
		f.mu.Unlock()
		return err
	}
	d.streams = append(d.streams, s)
	d.elect(a.DeviceId)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		d.streams = slices.DeleteFunc(d.streams, func(x *fakeStream) bool { return x == s })
		d.elect(a.DeviceId)
	}()
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			f.mu.Lock()
			f.sent = append(f.sent, m)
			f.mu.Unlock()
		}
	}()
	select {
	case err := <-s.kill:
		return err
	case err := <-ended:
		if err == io.EOF {
			return nil
		}
		return err
	}
}

// elect tells all streams of all roles who is primary.
func (d *fakeDevice) elect(id uint64) {
	for _, s := range d.streams {
		best := s.election
		for _, o := range d.streams {
			if o.role == s.role && best.Less(o.election) {
				best = o.election
			}
		}
		s.primary = best == s.election
		st := &rpcstatus.Status{Code: int32(codes.OK)}
		if !s.primary {
			st.Code = int32(codes.AlreadyExists)
		}
		s.Send(&p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{
			DeviceId: id, ElectionId: best.proto(), Status: st,
		}}})
	}
}

// tell sends a message to the primary of a device.
func (f *fake) tell(id uint64, m *p4v1.StreamMessageResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.devices[id].streams {
		if s.primary {
			s.Send(m)
		}
	}
}

func (d *fakeDevice) primary(e *p4v1.Uint128, role string) error {
	for _, s := range d.streams {
		if s.election == electionOf(e) && s.role == role && s.primary {
			return nil
		}
	}
	return status.Error(codes.PermissionDenied, "Not primary")
}

func (f *fake) SetForwardingPipelineConfig(_ context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*p4v1.SetForwardingPipelineConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return nil, err
	}
	if err := d.primary(r.ElectionId, r.Role); err != nil {
		return nil, err
	}
	info, err := f.infos.get(r.Config)
	if err != nil {
		return nil, err
	}
	if r.Action == p4v1.SetForwardingPipelineConfigRequest_VERIFY {
		return &p4v1.SetForwardingPipelineConfigResponse{}, nil
	}
	r.Config.P4Info = info.Proto // one for all devices
	d.pipeline, d.info, d.entities = r.Config, info, map[string]*p4v1.Entity{}
	return &p4v1.SetForwardingPipelineConfigResponse{}, nil
}

func (f *fake) GetForwardingPipelineConfig(_ context.Context, r *p4v1.GetForwardingPipelineConfigRequest) (*p4v1.GetForwardingPipelineConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return nil, err
	}
	if d.pipeline == nil {
		return nil, status.Error(codes.FailedPrecondition, "No forwarding pipeline config set for this device")
	}
	c := &p4v1.ForwardingPipelineConfig{Cookie: d.pipeline.Cookie}
	if r.ResponseType != p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY {
		c = d.pipeline
	}
	return &p4v1.GetForwardingPipelineConfigResponse{Config: c}, nil
}

func (f *fake) Capabilities(context.Context, *p4v1.CapabilitiesRequest) (*p4v1.CapabilitiesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &p4v1.CapabilitiesResponse{P4RuntimeApiVersion: "1.5.0"}, nil
}

func (f *fake) Write(_ context.Context, r *p4v1.WriteRequest) (*p4v1.WriteResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return nil, err
	}
	if err := d.primary(r.ElectionId, r.Role); err != nil {
		return nil, err
	}
	if d.info == nil {
		return nil, status.Error(codes.FailedPrecondition, "no program")
	}
	f.writes++
	f.most = max(f.most, len(r.Updates))
	errs, failed := make([]*p4v1.Error, len(r.Updates)), false
	for i, u := range r.Updates {
		errs[i] = &p4v1.Error{}
		if e := f.update(d, u); e != nil {
			errs[i], failed = e, true
		}
	}
	if failed {
		return nil, f.style(len(r.Updates), errs)
	}
	return &p4v1.WriteResponse{}, nil
}

func wrong(c codes.Code, format string, args ...any) *p4v1.Error {
	return &p4v1.Error{CanonicalCode: int32(c), Message: fmt.Sprintf(format, args...), Space: "fake"}
}

func (f *fake) update(d *fakeDevice, u *p4v1.Update) *p4v1.Error {
	if f.refuse != nil {
		if e := f.refuse(u); e != nil {
			return e
		}
	}
	if err := d.info.Update(u); err != nil {
		return wrong(status.Code(err), "%v", err)
	}
	key := p4info.Key(u.Entity)
	old := d.entities[key]
	if u.Type == p4v1.Update_DELETE {
		if old == nil {
			return wrong(codes.NotFound, "nothing to delete")
		}
		for _, e := range d.entities {
			for _, need := range profileReferences(d.info, e) {
				if need.key == key {
					return wrong(codes.FailedPrecondition, "%s needs it", d.info.Text(e))
				}
			}
		}
		delete(d.entities, key)
		return nil
	}
	for _, need := range profileReferences(d.info, u.Entity) {
		if d.entities[need.key] == nil {
			return wrong(codes.NotFound, "there is no %s", need.text)
		}
	}
	if p := profileOf(d.info, u.Entity); p != nil {
		set := u.Entity.GetTableEntry().GetAction().GetActionProfileActionSet() != nil
		for _, e := range d.entities {
			if profileOf(d.info, e) == p && (e.GetTableEntry().GetAction().GetActionProfileActionSet() != nil) != set {
				return wrong(codes.InvalidArgument, "members and sets of actions in one profile")
			}
		}
	}
	if t := u.Entity.GetTableEntry(); t != nil && !t.IsDefaultAction && u.Type == p4v1.Update_INSERT {
		n := int64(0)
		for _, e := range d.entities {
			if x := e.GetTableEntry(); x != nil && x.TableId == t.TableId && !x.IsDefaultAction {
				n++
			}
		}
		if n >= d.info.Table(t.TableId).Size {
			return wrong(codes.ResourceExhausted, "the table is full")
		}
	}
	switch {
	case u.Type == p4v1.Update_INSERT && old != nil:
		return wrong(codes.AlreadyExists, "it is there")
	case u.Type == p4v1.Update_MODIFY && old == nil && update(u.Entity).Type == p4v1.Update_INSERT:
		return wrong(codes.NotFound, "nothing to modify")
	}
	if t := u.Entity.GetTableEntry(); t != nil && t.IsDefaultAction && t.Action == nil {
		delete(d.entities, key)
		return nil
	}
	d.entities[key] = proto.Clone(u.Entity).(*p4v1.Entity)
	return nil
}

func (f *fake) Read(r *p4v1.ReadRequest, s p4v1.P4Runtime_ReadServer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return err
	}
	if d.info == nil {
		return status.Error(codes.FailedPrecondition, "no program")
	}
	for _, q := range r.Entities {
		if err := d.info.Query(q); err != nil {
			return err
		}
		kind := p4info.Key(q)[:1]
		if len(f.hidden) > 0 && slices.Contains([]byte(f.hidden), kind[0]) {
			return status.Errorf(codes.Unimplemented, "no reads\nof this kind")
		}
		m := &p4v1.ReadResponse{}
		for key, e := range d.entities {
			if key[:1] == kind && fits(q, e) {
				m.Entities = append(m.Entities, proto.Clone(e).(*p4v1.Entity))
			}
		}
		if t := q.GetTableEntry(); t != nil && t.IsDefaultAction && len(m.Entities) == 0 {
			if a := d.info.Table(t.TableId).InitialDefault(); a != nil {
				m.Entities = append(m.Entities, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{
					TableId: t.TableId, IsDefaultAction: true, Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}},
				}}})
			}
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func fits(q, e *p4v1.Entity) bool {
	switch x := q.Entity.(type) {
	case *p4v1.Entity_TableEntry:
		t := e.GetTableEntry()
		return (x.TableEntry.TableId == 0 || x.TableEntry.TableId == t.TableId) && x.TableEntry.IsDefaultAction == t.IsDefaultAction &&
			(len(x.TableEntry.Match) == 0 || p4info.Key(q) == p4info.Key(e))
	case *p4v1.Entity_ActionProfileMember:
		return x.ActionProfileMember.ActionProfileId == 0 || x.ActionProfileMember.ActionProfileId == e.GetActionProfileMember().ActionProfileId
	case *p4v1.Entity_ActionProfileGroup:
		return x.ActionProfileGroup.ActionProfileId == 0 || x.ActionProfileGroup.ActionProfileId == e.GetActionProfileGroup().ActionProfileId
	case *p4v1.Entity_MeterEntry:
		return x.MeterEntry.MeterId == 0 || x.MeterEntry.MeterId == e.GetMeterEntry().MeterId
	case *p4v1.Entity_CounterEntry:
		return x.CounterEntry.CounterId == 0 || x.CounterEntry.CounterId == e.GetCounterEntry().CounterId
	case *p4v1.Entity_RegisterEntry:
		return x.RegisterEntry.RegisterId == 0 || x.RegisterEntry.RegisterId == e.GetRegisterEntry().RegisterId
	case *p4v1.Entity_DigestEntry:
		return x.DigestEntry.DigestId == 0 || x.DigestEntry.DigestId == e.GetDigestEntry().DigestId
	}
	return true
}

// The tests' sessions are quick to give up and to come back.

func options() Options {
	return Options{Clock: clock.NewWall(), Backoff: Backoff{First: time.Millisecond, Most: 20 * time.Millisecond}}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, d *Dialer, address string, id uint64, o Options) *Session {
	t.Helper()
	s, err := Open(d, Target{Address: address, DeviceID: id}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// until waits for a session's status.
func until(t testing.TB, s *Session, what string, ok func(Status) bool) Status {
	t.Helper()
	ctx := within(t)
	for {
		s.mu.Lock()
		st, changed := s.status, s.changed
		s.mu.Unlock()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never %s: %+v", what, st)
		}
	}
}

// eventually waits until ok, which it tries every millisecond.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.After(60 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}
