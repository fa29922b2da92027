// Package ctltest is a P4Runtime server in memory, for tests of controllers.
//
//	server := ctltest.New(1)                        // of device 1
//	address, stop := server.Start(t, "127.0.0.1:0", nil)
//	server.Tell(1, message)                         // to its primary: a digest, a packet
//	server.Restart(1)                               // the device has nothing any more
package ctltest

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
)

// Server is a P4Runtime server in memory, with any number of devices, each a map of entities. It does
// arbitration, writes and reads as the specification says, and has no packets. A test can make it fail. The
// mutex guards all fields, and the devices.
type Server struct {
	p4v1.UnimplementedP4RuntimeServer

	sync.Mutex
	Devices map[uint64]*Device

	// Refuse is called before each update, and returns an error to refuse it; a nil Refuse refuses none.
	Refuse func(u *p4v1.Update) *p4v1.Error
	// Hidden are the kinds that cannot be read, each as the first byte of its keys (p4info.Key).
	Hidden string
	// Writes counts Write requests. Most is the number of updates in the largest one.
	Writes, Most int
	// Done, if it is not nil, is called after each Write that did some updates, with their number, while the
	// mutex is locked.
	Done func(r *p4v1.WriteRequest, updates int)
	// Sent are the messages that controllers have sent on their streams, except for arbitration.
	Sent []*p4v1.StreamMessageRequest

	infos *infoCache
}

// infoCache holds programs by cookie. Any number of servers may share it.
type infoCache struct {
	mu    sync.Mutex
	known map[uint64]*p4info.Info
}

func (c *infoCache) get(p *p4v1.ForwardingPipelineConfig) (*p4info.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cookie := p.GetCookie().GetCookie()
	if i := c.known[cookie]; i != nil {
		return i, nil
	}
	i, err := p4info.New(p.GetP4Info())
	if err == nil && cookie != 0 { // 0: it has none
		c.known[cookie] = i
	}
	return i, err
}

// Device is the state of a device of a Server.
type Device struct {
	Info     *p4info.Info // of its program; nil: it has none
	Pipeline *p4v1.ForwardingPipelineConfig
	Entities map[string]*p4v1.Entity // by their keys

	streams []*stream
}

type stream struct {
	p4v1.P4Runtime_StreamChannelServer
	election election
	role     string
	primary  bool
	kill     chan error
}

// election is an election id: the high and the low half.
type election [2]uint64

func electionOf(u *p4v1.Uint128) election { return election{u.GetHigh(), u.GetLow()} }

func (e election) less(o election) bool { return slices.Compare(e[:], o[:]) < 0 }

// New returns a server with devices that have no programs.
func New(ids ...uint64) *Server {
	return (&Server{infos: &infoCache{known: map[uint64]*p4info.Info{}}}).Like(ids...)
}

// Like returns another server, with devices that have no programs. Both servers share the programs that they
// have read, so that a thousand servers read a program once.
func (f *Server) Like(ids ...uint64) *Server {
	o := &Server{Devices: map[uint64]*Device{}, infos: f.infos}
	for _, id := range ids {
		o.Devices[id] = &Device{Entities: map[string]*p4v1.Entity{}}
	}
	return o
}

// Start serves on an address of this machine until stop is called or the test ends.
func (f *Server) Start(t testing.TB, address string, creds credentials.TransportCredentials) (at string, stop func()) {
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

// WriteStatus returns the status of a Write with an error for each update, in the form that bmv2 and the
// specification use.
func WriteStatus(errs []*p4v1.Error) error {
	st := &rpcstatus.Status{Code: int32(codes.Unknown)}
	for _, e := range errs {
		a, _ := anypb.New(e)
		st.Details = append(st.Details, a)
	}
	return status.FromProto(st).Err()
}

func (f *Server) device(id uint64) (*Device, error) {
	d := f.Devices[id]
	if d == nil {
		return nil, status.Errorf(codes.NotFound, "there is no device %d", id)
	}
	return d, nil
}

// Restart makes a device lose all its state, and ends its streams.
func (f *Server) Restart(id uint64) {
	f.Lock()
	defer f.Unlock()
	d := f.Devices[id]
	for _, s := range d.streams {
		select {
		case s.kill <- status.Error(codes.Unavailable, "restart"):
		default: // it is being ended
		}
	}
	d.Pipeline, d.Info, d.Entities = nil, nil, map[string]*p4v1.Entity{}
}

func (f *Server) StreamChannel(c p4v1.P4Runtime_StreamChannelServer) error {
	s := &stream{P4Runtime_StreamChannelServer: c, kill: make(chan error, 1)}
	m, err := c.Recv()
	if err != nil {
		return err
	}
	a := m.GetArbitration()
	f.Lock()
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
		f.Unlock()
		return err
	}
	d.streams = append(d.streams, s)
	d.elect(a.DeviceId)
	f.Unlock()
	defer func() {
		f.Lock()
		defer f.Unlock()
		d.streams = slices.DeleteFunc(d.streams, func(x *stream) bool { return x == s })
		d.elect(a.DeviceId)
	}()
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := c.Recv()
			if err != nil {
				ended <- err
				return
			}
			f.Lock()
			f.Sent = append(f.Sent, m)
			f.Unlock()
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

// elect tells all streams of all roles which one is primary.
func (d *Device) elect(id uint64) {
	for _, s := range d.streams {
		best := s.election
		for _, o := range d.streams {
			if o.role == s.role && best.less(o.election) {
				best = o.election
			}
		}
		s.primary = best == s.election
		st := &rpcstatus.Status{Code: int32(codes.OK)}
		if !s.primary {
			st.Code = int32(codes.AlreadyExists)
		}
		s.Send(&p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{
			DeviceId: id, ElectionId: &p4v1.Uint128{High: best[0], Low: best[1]}, Status: st,
		}}})
	}
}

// Tell sends a message to the primary of a device.
func (f *Server) Tell(id uint64, m *p4v1.StreamMessageResponse) {
	f.Lock()
	defer f.Unlock()
	for _, s := range f.Devices[id].streams {
		if s.primary {
			s.Send(m)
		}
	}
}

// primary returns the device of a request, or an error if the sender of the request is not primary.
func (f *Server) primary(r interface {
	GetDeviceId() uint64
	GetElectionId() *p4v1.Uint128
	GetRole() string
}) (*Device, error) {
	d, err := f.device(r.GetDeviceId())
	if err != nil {
		return nil, err
	}
	for _, s := range d.streams {
		if s.election == electionOf(r.GetElectionId()) && s.role == r.GetRole() && s.primary {
			return d, nil
		}
	}
	return nil, status.Error(codes.PermissionDenied, "Not primary")
}

func (f *Server) SetForwardingPipelineConfig(_ context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*p4v1.SetForwardingPipelineConfigResponse, error) {
	f.Lock()
	defer f.Unlock()
	d, err := f.primary(r)
	if err != nil {
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
	d.Pipeline, d.Info, d.Entities = r.Config, info, map[string]*p4v1.Entity{}
	return &p4v1.SetForwardingPipelineConfigResponse{}, nil
}

func (f *Server) GetForwardingPipelineConfig(_ context.Context, r *p4v1.GetForwardingPipelineConfigRequest) (*p4v1.GetForwardingPipelineConfigResponse, error) {
	f.Lock()
	defer f.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return nil, err
	}
	if d.Pipeline == nil {
		return nil, status.Error(codes.FailedPrecondition, "No forwarding pipeline config set for this device")
	}
	c := &p4v1.ForwardingPipelineConfig{Cookie: d.Pipeline.Cookie}
	if r.ResponseType != p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY {
		c = d.Pipeline
	}
	return &p4v1.GetForwardingPipelineConfigResponse{Config: c}, nil
}

func (f *Server) Capabilities(context.Context, *p4v1.CapabilitiesRequest) (*p4v1.CapabilitiesResponse, error) {
	f.Lock()
	defer f.Unlock()
	return &p4v1.CapabilitiesResponse{P4RuntimeApiVersion: "1.5.0"}, nil
}

func (f *Server) Write(_ context.Context, r *p4v1.WriteRequest) (*p4v1.WriteResponse, error) {
	f.Lock()
	defer f.Unlock()
	d, err := f.primary(r)
	if err != nil {
		return nil, err
	}
	if d.Info == nil {
		return nil, status.Error(codes.FailedPrecondition, "no program")
	}
	f.Writes++
	f.Most = max(f.Most, len(r.Updates))
	errs, failed := make([]*p4v1.Error, len(r.Updates)), 0
	for i, u := range r.Updates {
		errs[i] = &p4v1.Error{}
		var e *p4v1.Error
		if f.Refuse != nil {
			e = f.Refuse(u)
		}
		if e == nil {
			e = d.Update(u)
		}
		if e != nil {
			errs[i] = e
			failed++
		}
	}
	if f.Done != nil {
		f.Done(r, len(r.Updates)-failed)
	}
	if failed > 0 {
		return nil, WriteStatus(errs)
	}
	return &p4v1.WriteResponse{}, nil
}

// Failed returns the error of an update.
func Failed(c codes.Code, format string, args ...any) *p4v1.Error {
	return &p4v1.Error{CanonicalCode: int32(c), Message: fmt.Sprintf(format, args...), Space: "ctltest"}
}

// Update does one update of a Write; it returns nil if the update succeeded. The device must have a program,
// and the server's mutex must be locked.
func (d *Device) Update(u *p4v1.Update) *p4v1.Error {
	if err := d.Info.Update(u); err != nil {
		return Failed(status.Code(err), "%v", err)
	}
	x := p4info.Of(u.Entity)
	key, always := x.Key(), x.Always()
	old := d.Entities[key]
	if u.Type == p4v1.Update_DELETE {
		if old == nil {
			return Failed(codes.NotFound, "nothing to delete")
		}
		for _, e := range d.Entities {
			for _, need := range d.Info.References(e) {
				if need.Key == key {
					return Failed(codes.FailedPrecondition, "%s needs it", d.Info.Text(e))
				}
			}
		}
		delete(d.Entities, key)
		return nil
	}
	for _, need := range d.Info.References(u.Entity) {
		if d.Entities[need.Key] == nil {
			return Failed(codes.NotFound, "there is no %s", need.Text)
		}
	}
	if p := d.Info.ProfileOf(u.Entity); p != nil {
		set := u.Entity.GetTableEntry().GetAction().GetActionProfileActionSet() != nil
		for _, e := range d.Entities {
			if d.Info.ProfileOf(e) == p && (e.GetTableEntry().GetAction().GetActionProfileActionSet() != nil) != set {
				return Failed(codes.InvalidArgument, "members and sets of actions in one profile")
			}
		}
	}
	if t := u.Entity.GetTableEntry(); t != nil && !t.IsDefaultAction && u.Type == p4v1.Update_INSERT {
		n := int64(0)
		for _, e := range d.Entities {
			if x := e.GetTableEntry(); x != nil && x.TableId == t.TableId && !x.IsDefaultAction {
				n++
			}
		}
		if n >= d.Info.Table(t.TableId).Size {
			return Failed(codes.ResourceExhausted, "the table is full")
		}
	}
	switch {
	case u.Type == p4v1.Update_INSERT && old != nil:
		return Failed(codes.AlreadyExists, "it is there")
	case u.Type == p4v1.Update_MODIFY && old == nil && !always:
		return Failed(codes.NotFound, "nothing to modify")
	}
	if t := u.Entity.GetTableEntry(); t != nil && t.IsDefaultAction && t.Action == nil {
		delete(d.Entities, key)
		return nil
	}
	d.Entities[key] = proto.Clone(u.Entity).(*p4v1.Entity)
	return nil
}

func (f *Server) Read(r *p4v1.ReadRequest, s p4v1.P4Runtime_ReadServer) error {
	f.Lock()
	defer f.Unlock()
	d, err := f.device(r.DeviceId)
	if err != nil {
		return err
	}
	if d.Info == nil {
		return status.Error(codes.FailedPrecondition, "no program")
	}
	for _, q := range r.Entities {
		if err := d.Info.Query(q); err != nil {
			return err
		}
		kind := p4info.Key(q)[:1]
		if len(f.Hidden) > 0 && slices.Contains([]byte(f.Hidden), kind[0]) {
			return status.Errorf(codes.Unimplemented, "no reads\nof this kind")
		}
		m := &p4v1.ReadResponse{}
		for key, e := range d.Entities {
			if key[:1] == kind && fits(q, e) {
				m.Entities = append(m.Entities, proto.Clone(e).(*p4v1.Entity))
			}
		}
		if t := q.GetTableEntry(); t != nil && t.IsDefaultAction && len(m.Entities) == 0 {
			if a := d.Info.Table(t.TableId).InitialDefault(); a != nil {
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

// Eventually calls ok every millisecond until it returns true, and fails the test after 60 seconds.
func Eventually(t testing.TB, what string, ok func() bool) {
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
