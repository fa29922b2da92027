package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/nf/clock"
)

// State is the state of a session.
type State uint8

const (
	Connecting State = iota // there is no stream; the session tries to open one
	Backup                  // another controller is primary: nothing is written
	Primary
	Observing // there is a connection, and no part in the arbitration: nothing is written
	Closed
)

var stateNames = [...]string{"connecting", "backup", "primary", "observing", "closed"}

func (s State) String() string { return stateNames[s] }

// MarshalText returns the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a state's name.
func (s *State) UnmarshalText(b []byte) error {
	for i, n := range stateNames {
		if n == string(b) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("no state is called %q", b)
}

// Target identifies a device, and the role that a session has there.
type Target struct {
	Name     string // for people; empty: ADDRESS/ID
	Address  string
	DeviceID uint64
	Role     string // empty: the default role, which may write everything
}

func (t Target) String() string {
	if t.Name != "" {
		return t.Name
	}
	return fmt.Sprintf("%s/%d", t.Address, t.DeviceID)
}

// Options are the options of a session.
type Options struct {
	Clock    clock.Clock // for the election id and Status.Since
	Election ElectionID  // zero: by the clock
	Backoff  Backoff
	// Observe says that the session takes no part in the arbitration, so that the primary does not change. Such
	// a session cannot write, and gets no events.
	Observe bool
	// Patience is how long the device may take to answer the arbitration or a Write; 0: 10 s. It may take ten
	// times as long to load a program, and between two messages of the answer to a Read.
	Patience time.Duration
	// Changed is called with each new status, Event with each other message of the device: digests, packets,
	// idle entries, errors. The session's goroutine calls both, never at the same time; they must not block.
	Changed func(Status)
	Event   func(*p4v1.StreamMessageResponse)
	// Held is set for a controller that a store has elected, else it is nil. It is called before each write,
	// and returns an error if this controller is not the leader any more. Such a session claims only the ids of
	// its leader (ElectionOf), so that it never replaces the next leader.
	Held func() error
}

// Backoff says how long a session waits after each loss of its stream.
type Backoff struct {
	First, Most time.Duration // zero: 200 ms, 30 s
}

// delay returns how long to wait after the nth failure in a row, counted from 0. The wait doubles with each
// failure, and is shortened by a random part, so that sessions that were lost together do not reconnect
// together.
func (b Backoff) delay(n int, random func() float64) time.Duration {
	first, most := b.First, b.Most
	if first <= 0 {
		first = 200 * time.Millisecond
	}
	if most <= 0 {
		most = 30 * time.Second
	}
	d := first
	for ; n > 0 && d < most; n-- {
		d *= 2
	}
	d = min(d, most)
	return d - time.Duration(random()*float64(d)/2)
}

// Status is the status of a session, for people.
type Status struct {
	Device   string     `json:"device"`
	Address  string     `json:"address"`
	DeviceID uint64     `json:"device_id"`
	Role     string     `json:"role,omitempty"`
	State    State      `json:"state"`
	Since    clock.Time `json:"since"`    // of State, ns since the epoch
	Election ElectionID `json:"election"` // ours
	Leader   ElectionID `json:"leader"`   // the primary's, zero when there is none
	Losses   int        `json:"losses"`   // streams that ended, and attempts that failed
	Err      string     `json:"error,omitempty"`
}

// Session is a stream to one device. Its goroutine opens a new stream when the stream ends. Any goroutine may
// call the methods.
type Session struct {
	Target Target

	dialer *Dialer
	opt    Options
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	status  Status
	err     error // of the last attempt
	conn    *conn
	stream  p4v1.P4Runtime_StreamChannelClient
	changed chan struct{} // closed at the next change of status

	send sync.Mutex // of stream
}

// Open starts a session. Close ends it.
func Open(d *Dialer, t Target, o Options) (*Session, error) {
	if err := d.Check(t.Address); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	if o.Election == (ElectionID{}) {
		o.Election = ElectionAt(o.Clock.Now())
	}
	if o.Patience <= 0 {
		o.Patience = 10 * time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Session{
		Target: t, dialer: d, opt: o, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		status: Status{Device: t.String(), Address: t.Address, DeviceID: t.DeviceID, Role: t.Role, Since: o.Clock.Now(), Election: o.Election},
	}
	go s.run(ctx)
	return s, nil
}

// Close ends the session. The device then elects another primary.
func (s *Session) Close() {
	s.cancel()
	<-s.done
}

// Status returns the present status.
func (s *Session) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Ready waits until the session is primary. It fails with ErrNotPrimary if another controller is primary, and
// with the error of the connection if an attempt to connect fails. It goes on waiting while the device has no
// primary.
func (s *Session) Ready(ctx context.Context) error { return s.wait(ctx, true) }

// Await waits until the session is primary, also through failed connections and while another controller is
// primary.
func (s *Session) Await(ctx context.Context) error { return s.wait(ctx, false) }

func (s *Session) wait(ctx context.Context, once bool) error {
	for {
		s.mu.Lock()
		st, err, changed := s.status, s.err, s.changed
		s.mu.Unlock()
		switch {
		case st.State == Primary || st.State == Observing:
			return nil
		case st.State == Closed:
			return fmt.Errorf("%s: the session was closed", s.Target)
		case once && st.State == Backup && st.Leader != (ElectionID{}):
			return fmt.Errorf("%s: %w", s.Target, notPrimary(st))
		case once && err != nil:
			return fmt.Errorf("%s: %w", s.Target, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", s.Target, ctx.Err())
		}
	}
}

func notPrimary(st Status) error {
	if st.State == Observing {
		return fmt.Errorf("%w: the session only observes", ErrNotPrimary)
	}
	if st.Leader == (ElectionID{}) {
		return fmt.Errorf("%w: no controller is", ErrNotPrimary)
	}
	hint := ""
	if st.Election.High < 1<<62 { // a store elects the others
		hint = "; --election-id gives this one another"
	}
	return fmt.Errorf("%w: election id %v is, this is %v%s", ErrNotPrimary, st.Leader, st.Election, hint)
}

// run opens a stream again and again until ctx ends.
func (s *Session) run(ctx context.Context) {
	defer close(s.done)
	defer s.set(nil, func(st *Status) { st.State = Closed })
	for failures := 0; ; {
		answered, err := s.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			failures = 0
		}
		s.set(err, func(st *Status) {
			st.State, st.Leader, st.Err = Connecting, ElectionID{}, err.Error()
			st.Losses++
		})
		select {
		case <-time.After(s.opt.Backoff.delay(failures, rand.Float64)):
		case <-ctx.Done():
			return
		}
		failures++
	}
}

// set changes the status, and wakes all goroutines that wait for a change.
func (s *Session) set(err error, change func(*Status)) {
	s.mu.Lock()
	before := s.status
	change(&s.status)
	if s.status.State != before.State {
		s.status.Since = s.opt.Clock.Now()
	}
	s.err = err
	now := s.status
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if s.opt.Changed != nil {
		s.opt.Changed(now)
	}
}

// attempt opens a stream and handles its messages until it ends. answered says that the device has answered the
// arbitration.
func (s *Session) attempt(ctx context.Context) (answered bool, err error) {
	c, err := s.dialer.get(s.Target.Address)
	if err != nil {
		return false, err
	}
	broken := false
	defer func() { s.dialer.put(c, broken) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := fmt.Errorf("no answer to the arbitration within %v", s.opt.Patience)
	timer := time.AfterFunc(s.opt.Patience, func() { cancel(late) })
	defer timer.Stop()

	if s.opt.Observe {
		answered, err = s.observe(ctx, c, timer)
		if cause := context.Cause(ctx); cause == late {
			err = late
		}
		s.mu.Lock()
		s.conn = nil
		s.mu.Unlock()
		broken = true
		return answered, err
	}
	stream, err := p4v1.NewP4RuntimeClient(c).StreamChannel(ctx)
	if err == nil {
		err = s.claim(stream)
	}
	var vacant *time.Timer // runs while there is no primary
	defer func() {
		if vacant != nil {
			vacant.Stop()
		}
	}()
	for err == nil {
		var m *p4v1.StreamMessageResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if a := m.GetArbitration(); a != nil {
			timer.Stop()
			answered = true
			s.arbitrated(c, stream, a)
			if vacant != nil {
				vacant.Stop()
			}
			if s.mayClaim(a) {
				vacant = time.AfterFunc(s.opt.Backoff.delay(0, rand.Float64), func() { s.succeed(stream, electionOf(a.ElectionId)) })
			}
		} else if s.opt.Event != nil {
			s.opt.Event(m)
		}
	}
	s.mu.Lock()
	s.conn, s.stream = nil, nil
	s.mu.Unlock()
	if cause := context.Cause(ctx); cause == late {
		broken = true
		return answered, late
	}
	if err == io.EOF {
		return answered, errors.New("the device ended the stream")
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.AlreadyExists:
		// Another stream has this election id: perhaps an old one of this session, whose end the
		// device has not noticed.
		s.mu.Lock()
		s.status.Election = s.status.Election.next()
		s.mu.Unlock()
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		broken = true
	}
	return answered, s.dialer.hint(requestError(err))
}

// claim sends the session's election id.
func (s *Session) claim(stream p4v1.P4Runtime_StreamChannelClient) error {
	m := &p4v1.MasterArbitrationUpdate{DeviceId: s.Target.DeviceID, ElectionId: s.Status().Election.proto()}
	if s.Target.Role != "" {
		m.Role = &p4v1.Role{Name: s.Target.Role}
	}
	s.send.Lock()
	defer s.send.Unlock()
	err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}})
	if err == io.EOF { // Recv returns the reason
		return nil
	}
	return err
}

// mayClaim reports whether the session may claim with an id above the highest one: if the device has no
// primary, or, for a session with Held that is not primary, if the highest id is one of its own leader's ids.
func (s *Session) mayClaim(a *p4v1.MasterArbitrationUpdate) bool {
	highest, own := electionOf(a.ElectionId), s.Status().Election
	if s.opt.Held != nil {
		return codes.Code(a.Status.GetCode()) != codes.OK && own.sameTerm(highest)
	}
	return codes.Code(a.Status.GetCode()) == codes.NotFound
}

// succeed claims to become primary after the primary has left. By the specification the next primary needs an
// election id that is not below the highest one so far.
func (s *Session) succeed(stream p4v1.P4Runtime_StreamChannelClient, highest ElectionID) {
	s.mu.Lock()
	if s.stream != stream || s.status.State != Backup || s.opt.Held == nil && s.status.Leader != (ElectionID{}) {
		s.mu.Unlock()
		return
	}
	e := ElectionAt(s.opt.Clock.Now()) // another one for each session
	if s.opt.Held != nil {
		e = highest.next()
	} else if !highest.Less(e) {
		if e = highest.next(); e.Less(highest) {
			e = highest // 2^128-1: whoever had it has left
		}
	}
	s.status.Election = e
	s.mu.Unlock()
	_ = s.claim(stream) // Recv returns a failure
}

// observe checks that the device answers, and waits until the connection ends.
func (s *Session) observe(ctx context.Context, c *conn, timer *time.Timer) (answered bool, err error) {
	_, err = p4v1.NewP4RuntimeClient(c).GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{
		DeviceId: s.Target.DeviceID, ResponseType: p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY,
	})
	switch status.Code(err) {
	case codes.OK, codes.FailedPrecondition, codes.Unimplemented:
	default:
		return false, s.dialer.hint(requestError(err))
	}
	timer.Stop()
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	s.set(nil, func(st *Status) { st.State, st.Err = Observing, "" })
	// gRPC reports the state of a connection that has answered as ready only a moment later.
	for at, ready := c.GetState(), false; at == connectivity.Ready || at == connectivity.Connecting && !ready; at = c.GetState() {
		ready = at == connectivity.Ready
		if !c.WaitForStateChange(ctx, at) {
			break
		}
	}
	return true, errors.New("the connection was lost")
}

// arbitrated handles an arbitration update, which says who is primary.
func (s *Session) arbitrated(c *conn, stream p4v1.P4Runtime_StreamChannelClient, a *p4v1.MasterArbitrationUpdate) {
	s.mu.Lock()
	s.conn, s.stream = c, stream
	s.mu.Unlock()
	s.set(nil, func(st *Status) {
		st.Leader, st.Err = electionOf(a.ElectionId), ""
		if codes.Code(a.Status.GetCode()) == codes.NotFound {
			st.Leader = ElectionID{}
		}
		if st.State = Primary; codes.Code(a.Status.GetCode()) != codes.OK {
			st.State = Backup
			st.Err = notPrimary(*st).Error()
			if highest := electionOf(a.ElectionId); s.opt.Held != nil && st.Leader == (ElectionID{}) && !st.Election.sameTerm(highest) {
				st.Err = fmt.Sprintf("%v: election id %v was there before, which is above this leader's; if nobody else leads: quillon ctl forget", ErrNotPrimary, highest)
			}
		}
	})
}

// client returns a client for the connection and the session's election id, or an error if there is no
// connection, or if write is set and the session is not primary.
func (s *Session) client(write bool) (p4v1.P4RuntimeClient, ElectionID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		if s.err != nil {
			return nil, ElectionID{}, fmt.Errorf("%s: %w: %w", s.Target, ErrNotConnected, s.err)
		}
		return nil, ElectionID{}, fmt.Errorf("%s: %w", s.Target, ErrNotConnected)
	}
	if write && s.status.State != Primary {
		return nil, ElectionID{}, fmt.Errorf("%s: %w", s.Target, notPrimary(s.status))
	}
	if write && s.opt.Held != nil {
		if err := s.opt.Held(); err != nil {
			return nil, ElectionID{}, fmt.Errorf("%s: %w: %w", s.Target, ErrNotPrimary, err)
		}
	}
	return p4v1.NewP4RuntimeClient(s.conn), s.status.Election, nil
}

// Write sends updates in one request. If some of them failed, the error is a *WriteError; other errors may wrap
// ErrNotPrimary or ErrNotConnected.
func (s *Session) Write(ctx context.Context, atomicity p4v1.WriteRequest_Atomicity, updates ...*p4v1.Update) error {
	c, election, err := s.client(true)
	if err != nil {
		return err
	}
	ctx, cancel := atMost(ctx, max(s.opt.Patience, time.Duration(len(updates))*10*time.Millisecond))
	defer cancel()
	_, err = c.Write(ctx, &p4v1.WriteRequest{
		DeviceId: s.Target.DeviceID, Role: s.Target.Role, ElectionId: election.proto(), Updates: updates, Atomicity: atomicity,
	})
	return writeError(inTime(ctx, err), updates)
}

// late is the cause of a call's cancellation when the device did not answer in time.
type late time.Duration

func (l late) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(l)) }

// atMost returns a context for a call that may take at most d. It does not use a deadline of gRPC, because the
// device would get that deadline, too, and its own error could arrive first.
func atMost(ctx context.Context, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(d, func() { cancel(late(d)) })
	return ctx, func() { t.Stop(); cancel(nil) }
}

// inTime returns the error of a call, or the cause if the call was cancelled because it took too long.
func inTime(ctx context.Context, err error) error {
	if l, ok := context.Cause(ctx).(late); ok && err != nil {
		return l
	}
	return err
}

// long is how long the device may take to load a program.
func (s *Session) long() time.Duration { return 10 * s.opt.Patience }

// Read yields the entities that match the queries, in the order in which they arrive.
func (s *Session) Read(ctx context.Context, yield func(*p4v1.Entity) error, queries ...*p4v1.Entity) error {
	c, _, err := s.client(false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(s.long(), func() { cancel(late(s.long())) })
	defer timer.Stop()
	r, err := c.Read(ctx, &p4v1.ReadRequest{DeviceId: s.Target.DeviceID, Role: s.Target.Role, Entities: queries})
	if err != nil {
		return requestError(err)
	}
	for {
		timer.Reset(s.long())
		m, err := r.Recv()
		timer.Stop()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return readError(inTime(ctx, err))
		}
		for _, e := range m.Entities {
			if err := yield(e); err != nil {
				return err
			}
		}
	}
}

// Pipeline is a program that a device can load.
type Pipeline struct {
	Info   *p4configv1.P4Info
	Config []byte // what the device runs: bmv2's JSON
	Cookie uint64
}

// SetPipeline loads a program. The device loses the entities of the old program, unless action keeps them.
func (s *Session) SetPipeline(ctx context.Context, action p4v1.SetForwardingPipelineConfigRequest_Action, p *Pipeline) error {
	c, election, err := s.client(true)
	if err != nil {
		return err
	}
	r := &p4v1.SetForwardingPipelineConfigRequest{DeviceId: s.Target.DeviceID, Role: s.Target.Role, ElectionId: election.proto(), Action: action}
	if p != nil {
		r.Config = &p4v1.ForwardingPipelineConfig{P4Info: p.Info, P4DeviceConfig: p.Config, Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: p.Cookie}}
	}
	ctx, cancel := atMost(ctx, s.long())
	defer cancel()
	_, err = c.SetForwardingPipelineConfig(ctx, r)
	return requestError(inTime(ctx, err))
}

// GetPipeline returns the device's program, or the parts that what selects.
func (s *Session) GetPipeline(ctx context.Context, what p4v1.GetForwardingPipelineConfigRequest_ResponseType) (*Pipeline, error) {
	c, _, err := s.client(false)
	if err != nil {
		return nil, err
	}
	ctx, cancel := atMost(ctx, s.long())
	defer cancel()
	r, err := c.GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{DeviceId: s.Target.DeviceID, ResponseType: what})
	err = inTime(ctx, err)
	if status.Code(err) == codes.FailedPrecondition {
		return nil, fmt.Errorf("%s: %w", s.Target, ErrNoPipeline)
	}
	if err != nil {
		return nil, requestError(err)
	}
	return &Pipeline{Info: r.GetConfig().GetP4Info(), Config: r.GetConfig().GetP4DeviceConfig(), Cookie: r.GetConfig().GetCookie().GetCookie()}, nil
}

// Version returns the version of P4Runtime that the device implements.
func (s *Session) Version(ctx context.Context) (string, error) {
	c, _, err := s.client(false)
	if err != nil {
		return "", err
	}
	ctx, cancel := atMost(ctx, s.opt.Patience)
	defer cancel()
	r, err := c.Capabilities(ctx, &p4v1.CapabilitiesRequest{})
	return r.GetP4RuntimeApiVersion(), requestError(inTime(ctx, err))
}

// Send sends a packet, or the acknowledgement of a digest list. Only the primary may send.
func (s *Session) Send(m *p4v1.StreamMessageRequest) error {
	s.mu.Lock()
	stream, st := s.stream, s.status
	s.mu.Unlock()
	if stream == nil {
		return fmt.Errorf("%s: %w", s.Target, ErrNotConnected)
	}
	if st.State != Primary {
		return fmt.Errorf("%s: %w", s.Target, notPrimary(st))
	}
	if s.opt.Held != nil {
		if err := s.opt.Held(); err != nil {
			return fmt.Errorf("%s: %w: %w", s.Target, ErrNotPrimary, err)
		}
	}
	s.send.Lock()
	defer s.send.Unlock()
	if err := stream.Send(m); err != nil {
		return fmt.Errorf("%s: %w", s.Target, ErrNotConnected)
	}
	return nil
}

// Acknowledge tells the device that a digest list has arrived.
func (s *Session) Acknowledge(l *p4v1.DigestList) error {
	return s.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_DigestAck{
		DigestAck: &p4v1.DigestListAck{DigestId: l.DigestId, ListId: l.ListId},
	}})
}
