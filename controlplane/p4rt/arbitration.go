package p4rt

import (
	"fmt"
	"slices"
	"sync"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// role is a role of a device, with the streams of the controllers that have claimed it.
type role struct {
	name    string
	config  *anypb.Any // role configuration of the last primary
	scope   *scope     // from config; nil: everything is allowed
	highest *p4v1.Uint128
	primary *stream // nil: none
	streams map[*stream]struct{}
}

// stream is the StreamChannel of one controller, for one device and role.
type stream struct {
	dev      *device
	role     *role
	election *p4v1.Uint128 // nil: the controller does not want to be primary
	call     *call
	caller   *caller
	strays   int // messages that came before the first claim

	mu     sync.Mutex
	queue  []*p4v1.StreamMessageResponse
	size   int // of the queue, in bytes
	room   int // for the queue, in bytes
	wake   chan struct{}
	closed bool
}

// send queues a message. It reports false if the message is lost because too many wait. An arbitration
// update is never lost: it replaces older ones in the queue.
func (st *stream) send(m *p4v1.StreamMessageResponse) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return false
	}
	n := proto.Size(m)
	if len(st.queue) >= maxNotes || st.size+n > st.room || st.size+n > queueForSure && st.peerQueue(0)+n > maxPeerQueue {
		if m.GetArbitration() == nil {
			return false
		}
		before := st.size
		st.queue = slices.DeleteFunc(st.queue, func(old *p4v1.StreamMessageResponse) bool {
			if old.GetArbitration() == nil {
				return false
			}
			st.size -= proto.Size(old)
			return true
		})
		st.peerQueue(st.size - before)
	}
	st.queue, st.size = append(st.queue, m), st.size+n
	st.peerQueue(n)
	select {
	case st.wake <- struct{}{}:
	default:
	}
	return true
}

// next removes the first message from the queue and returns it, or nil if the queue is empty.
func (st *stream) next() *p4v1.StreamMessageResponse {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.queue) == 0 {
		st.queue = nil // frees its memory
		return nil
	}
	m := st.queue[0]
	st.queue[0] = nil
	st.queue = st.queue[1:]
	n := proto.Size(m)
	st.size -= n
	st.peerQueue(-n)
	return m
}

// peerQueue adds n to the number of bytes that wait for all streams of the stream's peer, and returns the sum.
func (st *stream) peerQueue(n int) int {
	if p := st.peer(); p != nil {
		return int(p.queued.Add(int64(n)))
	}
	return 0
}

// peer returns the account of the stream's peer, or nil if the connection did not come through Listen.
func (st *stream) peer() *peerAccount {
	if st.call == nil || st.call.c == nil {
		return nil
	}
	return st.call.c.peer
}

// discard empties the queue and closes it.
func (st *stream) discard() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.peerQueue(-st.size)
	st.closed, st.queue, st.size = true, nil, 0
}

// isClosed reports whether the stream has ended, or is ending.
func (st *stream) isClosed() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.closed
}

// become makes a stream the primary of a role; with nil the role has no primary. The caller holds d.mu.
func (r *role) become(st *stream) {
	for _, x := range []*stream{r.primary, st} {
		if x == nil || r.primary == st {
			continue
		}
		step, room := int32(-1), queueForSure
		if x == st {
			step, room = 1, maxQueue
		}
		x.mu.Lock()
		x.room = room
		x.mu.Unlock()
		if x.call != nil && x.call.c != nil {
			x.call.c.primaries.Add(step)
			x.call.c.hadPrimary.Store(true)
		}
	}
	r.primary = st
}

// less reports a < b for election ids; nil is below all.
func less(a, b *p4v1.Uint128) bool {
	switch {
	case b == nil:
		return false
	case a == nil:
		return true
	case a.GetHigh() != b.GetHigh():
		return a.GetHigh() < b.GetHigh()
	}
	return a.GetLow() < b.GetLow()
}

func same(a, b *p4v1.Uint128) bool { return !less(a, b) && !less(b, a) }

// StreamChannel implements the RPC.
func (s *Server) StreamChannel(g p4v1.P4Runtime_StreamChannelServer) error {
	k := callOf(g.Context())
	st := &stream{call: k, caller: callerOf(g.Context()), room: queueForSure, wake: make(chan struct{}, 1)}
	// The handler waits for neither goroutine, so that it can also end the stream of a client that
	// sends nothing or does not read. Both goroutines end with the stream.
	in := make(chan *p4v1.StreamMessageRequest)
	go func() {
		defer close(in)
		for {
			m, err := g.Recv()
			if err != nil {
				return // the client has closed the stream
			}
			select {
			case in <- m:
			case <-g.Context().Done():
				return
			}
		}
	}()
	go func() {
		for {
			for m := st.next(); m != nil; m = st.next() {
				if g.Send(m) != nil {
					return
				}
			}
			select {
			case <-st.wake:
			case <-g.Context().Done():
				return
			}
		}
	}()
	s.stats.Streams.Add(1)
	defer s.stats.Streams.Add(-1)
	defer func() {
		if st.dev != nil {
			st.dev.leave(st)
		}
		st.discard()
	}()
	for {
		select {
		case <-k.ended():
			return k.why
		case m, ok := <-in:
			if !ok {
				return nil
			}
			if err := s.receive(st, m); err != nil {
				return err
			}
		}
	}
}

// receive handles a message of a controller. If it returns an error, the stream ends with it.
func (s *Server) receive(st *stream, m *p4v1.StreamMessageRequest) error {
	if st.dev == nil && m.GetArbitration() == nil {
		if st.strays++; st.strays > maxStrays {
			s.stats.StreamsRefused.Add(1)
			return grpcstatus.Errorf(codes.FailedPrecondition, "%d messages, and none claims a role: send a MasterArbitrationUpdate first", st.strays)
		}
	}
	switch x := m.GetUpdate().(type) {
	case *p4v1.StreamMessageRequest_Arbitration:
		if err := s.arbitrate(st, x.Arbitration); err != nil {
			s.stats.ArbitrationErrors.Add(1)
			return err
		}
	case *p4v1.StreamMessageRequest_Packet:
		s.packetOut(st, x.Packet)
	case *p4v1.StreamMessageRequest_DigestAck:
		s.digestAck(st, x.DigestAck)
	default:
		st.send(streamError(codes.Unimplemented, "unknown message", &p4v1.StreamError{Details: &p4v1.StreamError_Other{Other: &p4v1.StreamOtherError{}}}))
	}
	return nil
}

func streamError(c codes.Code, text string, e *p4v1.StreamError) *p4v1.StreamMessageResponse {
	e.CanonicalCode, e.Message = int32(c), text
	return &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Error{Error: e}}
}

// arbitrate handles a controller's claim. If it returns an error, the stream ends with it.
func (s *Server) arbitrate(st *stream, m *p4v1.MasterArbitrationUpdate) error {
	d := st.dev
	name := m.GetRole().GetName()
	if m.GetRole().GetId() != 0 && name == "" { //nolint:staticcheck // to say what has become of it
		return grpcstatus.Error(codes.InvalidArgument, "a role has a name, since version 1.4 of P4Runtime, and no id")
	}
	if d == nil {
		var err error
		if d, err = s.device(m.GetDeviceId()); err != nil {
			return err
		}
	} else {
		if m.GetDeviceId() != d.id {
			return grpcstatus.Errorf(codes.FailedPrecondition, "the stream is for device %d: open another for device %d", d.id, m.GetDeviceId())
		}
		if name != st.role.name {
			return grpcstatus.Errorf(codes.FailedPrecondition, "the stream is for role %q: open another for role %q", st.role.name, name)
		}
	}
	if err := st.caller.mayClaim(name, m.GetElectionId()); err != nil {
		return err
	}
	scope, err := s.scopeOf(name, m.GetRole().GetConfig())
	if err != nil {
		return err
	}

	// One claim at a time; writes wait only while the primary changes.
	d.arbitration.Lock()
	defer d.arbitration.Unlock()
	d.mu.Lock()
	if d.closed || st.isClosed() {
		d.mu.Unlock()
		return grpcstatus.Error(codes.Unavailable, "the server is closing, or has ended the stream")
	}
	r := d.roles[name]
	if r == nil {
		if len(d.roles) > maxRoles {
			d.mu.Unlock()
			return grpcstatus.Errorf(codes.ResourceExhausted, "device %d remembers %d roles: role %q would be one too many", d.id, maxRoles, name)
		}
		r = &role{name: name, scope: scope, streams: map[*stream]struct{}{}}
		d.roles[name] = r
	}
	if e := m.GetElectionId(); e != nil {
		for other := range r.streams {
			if other != st && other.election != nil && same(other.election, e) {
				d.mu.Unlock()
				return grpcstatus.Errorf(codes.InvalidArgument, "election id %d.%d is another controller's of role %q", e.GetHigh(), e.GetLow(), name)
			}
		}
	}
	if st.dev == nil {
		if len(r.streams) >= s.cfg.MaxStreams && !r.makeRoom(st) {
			d.mu.Unlock()
			return grpcstatus.Errorf(codes.ResourceExhausted, "%d controllers of role %q are connected to device %d, and no more may be", s.cfg.MaxStreams, name, d.id)
		}
		r.streams[st] = struct{}{}
		st.dev, st.role = d, r
		st.call.claimed()
	}
	st.election = proto.CloneOf(m.GetElectionId())
	was := r.primary
	if st.election == nil || less(st.election, r.highest) {
		if was == st {
			r.become(nil)
			d.tellAll(r)
		} else {
			st.send(d.advice(r, st))
		}
		d.mu.Unlock()
		return nil
	}
	// From now on no update of the primary before is accepted. A write that is under way
	// ends first.
	r.become(nil)
	r.highest = st.election
	r.config, r.scope = m.GetRole().GetConfig(), scope
	next := *r
	next.primary = st
	for other := range r.streams {
		if other != st {
			other.send(d.advice(&next, other))
		}
	}
	d.mu.Unlock()

	d.writing.Lock()
	d.mu.Lock()
	if _, live := r.streams[st]; live {
		r.become(st)
		st.send(d.advice(r, st))
	} else {
		d.tellAll(r)
	}
	d.mu.Unlock()
	d.writing.Unlock()
	return nil
}

// scopeOf returns what a role may do: by Config.Roles if that is set, else by the role configuration that the
// controller sent.
func (s *Server) scopeOf(name string, config *anypb.Any) (*scope, error) {
	own, err := scopeOf(config)
	if err != nil || s.cfg.Roles == nil {
		return own, err
	}
	r, ok := s.cfg.Roles[name]
	switch {
	case ok && config != nil:
		return nil, grpcstatus.Errorf(codes.InvalidArgument, "what role %q may do was given to the server: leave the role's config out", name)
	case ok:
		return r.scope(), nil
	case name == "":
		return own, nil
	}
	return nil, grpcstatus.Errorf(codes.InvalidArgument, "there is no role %q", name)
}

// makeRoom ends a stream when a role has as many streams as it may have: one that is not
// primary, of the peer with the most streams, if that peer has more than the peer of the new stream.
func (r *role) makeRoom(st *stream) bool {
	has := map[*peerAccount]int{}
	for x := range r.streams {
		has[x.peer()]++
	}
	var out *stream
	for x := range r.streams {
		if x != r.primary && (out == nil || has[x.peer()] > has[out.peer()]) {
			out = x
		}
	}
	if out == nil || has[out.peer()] <= has[st.peer()]+1 {
		return false
	}
	r.turnOut(out, grpcstatus.Errorf(codes.ResourceExhausted, "another client's controller took the place: of %d in %s most were yours", len(r.streams), roleText(r.name)))
	return true
}

// turnOut ends a stream with an error. The caller holds d.mu.
func (r *role) turnOut(st *stream, err error) {
	delete(r.streams, st)
	st.discard()
	st.call.stop(err)
}

// leave removes a controller whose stream has ended.
func (d *device) leave(st *stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st.discard()
	r := st.role
	if st.call != nil && st.call.c != nil {
		st.call.c.claims.Add(-1)
	}
	delete(r.streams, st)
	if len(r.streams) == 0 && r.highest == nil && r.name != "" && d.roles[r.name] == r {
		delete(d.roles, r.name) // it has no state
	}
	if r.primary == st {
		r.become(nil)
		d.tellAll(r)
	}
}

// tellAll sends an arbitration update to all controllers of a role.
func (d *device) tellAll(r *role) {
	for st := range r.streams {
		st.send(d.advice(r, st))
	}
}

// advice returns the arbitration update about a role for one of its controllers.
func (d *device) advice(r *role, to *stream) *p4v1.StreamMessageResponse {
	m := &p4v1.MasterArbitrationUpdate{DeviceId: d.id, ElectionId: r.highest, Status: &status.Status{}}
	if r.name != "" || r.config != nil {
		m.Role = &p4v1.Role{Name: r.name, Config: r.config}
	}
	switch r.primary {
	case to:
		m.Status.Message = "primary"
	case nil:
		m.Status.Code, m.Status.Message = int32(codes.NotFound), "backup; there is no primary, which"+atLeast(r.highest)
	default:
		m.Status.Code, m.Status.Message = int32(codes.AlreadyExists), "backup"
	}
	return &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: m}}
}

// atLeast says which election ids a claim needs if e is the highest election id so far.
func atLeast(e *p4v1.Uint128) string {
	return fmt.Sprintf(" takes an election id of %d.%d or more%s", e.GetHigh(), e.GetLow(), timely(e))
}

// timely explains, for a controller with a small election id, an election id that was made from the time.
func timely(e *p4v1.Uint128) string {
	if h := e.GetHigh(); h < 1<<30 || h >= 1<<62 { // seconds since 1970, and the ids of leaders of a store
		return ""
	}
	return " (quillon ctl makes them from the time, unless its --election-id says another; quillon ctl forget has a device forget them)"
}

// primary checks that a request comes from the primary of a role, and returns what the role may do. Because
// election ids are no secret, the client of the request must also be the one that claimed the role with the id.
func (d *device) primary(c *caller, name string, e *p4v1.Uint128) (*scope, error) {
	if err := c.mayWrite(name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.roles[name]
	if r == nil {
		return nil, grpcstatus.Errorf(codes.NotFound, "device %d knows no role %q: no controller has claimed it", d.id, name)
	}
	switch {
	case r.primary == nil:
		claim := "claim it on a stream first"
		if r.highest != nil {
			claim += ", which" + atLeast(r.highest)
		}
		return nil, grpcstatus.Errorf(codes.PermissionDenied, "role %q of device %d has no primary: %s", name, d.id, claim)
	case e == nil || !same(e, r.primary.election):
		p := r.primary.election
		return nil, grpcstatus.Errorf(codes.PermissionDenied, "not primary: election id %d.%d, the primary's is %d.%d%s", e.GetHigh(), e.GetLow(), p.GetHigh(), p.GetLow(), timely(p))
	case c.key() != r.primary.caller.key():
		return nil, grpcstatus.Errorf(codes.PermissionDenied, "not primary: the election id is another client's")
	}
	return r.scope, nil
}
