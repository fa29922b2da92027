package store

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// service is the port of memory nodes: one above that of rack/clover.
const service = 7472

// magic begins the private data of both sides; it includes a version.
const magic = 0x51524B01

// hello is the private data of a ConnectRequest, which carries 56 bytes.
type hello struct {
	Magic   uint32
	Store   [12]byte
	Client  uint64 // a number of the client's own, by which the server knows which sessions belong together
	Session uint16
	Of      uint16 // number of the client's sessions
}

// head begins the private data of a ConnectReply; the Store's announcement follows.
type head struct {
	Magic  uint32
	Server uint64 // differs after each start: what a server before it held is gone
	Number uint32 // the client's number
	Keys   uint32
	Value  uint32
	Len    uint16 // bytes of the announcement
}

const headLen = 26

// asking is the number of connections that a client asks for at the same time; resources is the number of
// READs and atomics that a queue pair may have under way.
const (
	asking    = 4
	resources = 16
)

// Lease is how long a client may be silent. A memory node ends connections over which nothing has arrived for
// a Lease. If there is no free place for a new client, it gives away a place that has had no connection for a
// Lease. So a client that has nothing to do sends an empty WRITE over each connection every beat.
const (
	Lease = 30 * time.Second
	beat  = Lease / 6
)

// farewell is the text with which a memory node ends connections when it ends itself.
const farewell = "it ends"

const access = rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic

// params returns the parameters of both sides: a request that is not answered is repeated after 4.096 us *
// 2^14 (67 ms), 7 times.
func params(nic *rnic.NIC) cm.Params {
	return cm.Params{PathMTU: min(1024, nic.MaxPathMTU()), LocalACKTimeout: 14, RetryCount: 7, RNRRetryCount: 7, Resources: resources, Depth: resources, LocalPort: service}
}

// agent makes a connection manager that waits 4.096 us * 2^15 (0.13 s) for an answer, 8 times.
func agent(nic *rnic.NIC, seed uint64) (*cm.Agent, error) {
	return cm.New(nic, cm.Config{ResponseTimeout: 15, Retries: 7, Seed: seed})
}

// Server is a memory node. It implements host.App.
type Server struct {
	kind    *Kind
	spec    Spec
	store   Store
	nic     *rnic.NIC
	pd      *rnic.PD
	cq      *rnic.CQ
	agent   *cm.Agent
	epoch   uint64
	conns   map[*cm.ID]*conn
	members map[uint64]*member
	vacant  int // number of members that are vacant
	come    int // number of clients that have come, and number of the newest one
	lookAt  clock.Time
	ending  bool
	stats   ServerStats
	wcs     [16]rnic.WC
}

// member is a client and its place.
type member struct {
	client    uint64
	number    int
	of        int
	place     int
	seen      clock.Time // when the client came, or one of its connections last ended
	room      int        // most sessions that the place allows
	announced []byte
	sessions  map[uint16]*cm.ID // connections by session
	// used: a request arrived over a connection, so the place cannot simply be another client's. A client
	// without connections that has not used its place leaves it vacant.
	used, vacant bool
}

// conn is a connection of a client.
type conn struct {
	qp       *rnic.QP
	member   *member
	session  uint16
	requests uint64     // requests that had arrived at the last look
	seen     clock.Time // time of the last look that found new requests
}

// ServerStats are the totals of a server.
type ServerStats struct {
	Clients     int    `json:"clients"`     // clients with a place, without those that left and had sent no request
	Connections int    `json:"connections"` // connections at present
	Accepted    uint64 `json:"accepted"`
	Refused     uint64 `json:"refused"`
	Aged        uint64 `json:"aged"`              // places that were given to another client, because their clients had been silent for a Lease
	Refusal     string `json:"refusal,omitempty"` // the last reason
}

// NewServer makes the store of a checked Spec and serves it on a NIC. epoch differs from server to server.
func NewServer(k *Kind, spec Spec, nic *rnic.NIC, epoch uint64) (*Server, error) {
	st, err := k.New(spec)
	if err != nil {
		return nil, err
	}
	return Serve(k, spec, st, nic, epoch)
}

// Serve is NewServer for a store that exists.
func Serve(k *Kind, spec Spec, st Store, nic *rnic.NIC, epoch uint64) (*Server, error) {
	var err error
	s := &Server{kind: k, spec: spec, store: st, nic: nic, pd: nic.AllocPD(), cq: nic.CreateCQ(64), epoch: epoch, conns: map[*cm.ID]*conn{}, members: map[uint64]*member{}}
	if err := st.Serve(s.pd); err != nil {
		return nil, err
	}
	if s.agent, err = agent(nic, epoch); err != nil {
		return nil, err
	}
	s.agent.Listen(service)
	return s, nil
}

// Store returns the memory node's side of the store.
func (s *Server) Store() Store { return s.store }

// Stats returns the totals so far.
func (s *Server) Stats() ServerStats {
	v := s.stats
	v.Clients, v.Connections = len(s.members)-s.vacant, len(s.conns)
	return v
}

// Step implements host.App.
func (s *Server) Step(now clock.Time) bool {
	did := s.agent.Step(now)
	if now >= s.lookAt {
		s.look(now)
	}
	for s.cq.Poll(s.wcs[:]) > 0 {
		did = true // completions of queue pairs that failed
	}
	for {
		e, ok := s.agent.Poll()
		if !ok {
			return did
		}
		did = true
		switch e.Kind {
		case cm.Requested:
			err := errEnds
			if !s.ending {
				err = s.requested(now, e)
			}
			if err != nil {
				s.stats.Refused++
				s.stats.Refusal = err.Error()
				reason := cm.ReasonConsumer
				if errors.Is(err, errTwice) {
					reason = cm.ReasonStale // the session asks again when its other connection has ended
				}
				_ = e.ID.Reject(reason, []byte(err.Error()))
			}
		case cm.Disconnected, cm.Rejected, cm.Unreachable:
			s.gone(now, e.ID)
		}
	}
}

// errEnds is the answer to clients that come while the memory node ends.
var errEnds = errors.New("the memory node ends")

// End ends all connections; Ended reports when the clients have answered, or do not answer.
func (s *Server) End(now clock.Time) {
	s.ending = true
	for id := range s.conns {
		_ = id.Leave(now, []byte(farewell)) // an error means that the connection has ended
	}
}

// Ended reports whether no connection is left.
func (s *Server) Ended() bool { return len(s.conns) == 0 }

// look ends connections that have been silent for a Lease.
func (s *Server) look(now clock.Time) {
	s.lookAt = now.Add(beat)
	for id, c := range s.conns {
		if n := c.qp.Stats().RxRequests; n != c.requests {
			c.requests, c.seen = n, now
		}
		if now.Sub(c.seen) > Lease {
			_ = id.Disconnect(now) // an error means that the connection is being ended
		}
	}
}

// gone removes a connection that has ended.
func (s *Server) gone(now clock.Time, id *cm.ID) {
	c := s.conns[id]
	if c == nil {
		return
	}
	m := c.member
	m.used = m.used || c.qp.Stats().RxRequests > 0
	m.seen = now
	c.qp.Destroy()
	delete(s.conns, id)
	delete(m.sessions, c.session)
	if len(m.sessions) == 0 && !m.used {
		m.vacant = true
		s.vacant++
	}
}

// place returns a client's place: the client's own, a new one, one that another client left and did not use,
// or one that has aged.
func (s *Server) place(now clock.Time, h *hello) (*member, error) {
	of := int(h.Of)
	if m := s.members[h.Client]; m != nil {
		return m, nil
	}
	if s.come == mostNumber {
		return nil, errors.New("too many clients have come: start the memory node anew")
	}
	m, err := s.free(of)
	if m == nil {
		if m = s.first(of, func(x *member) bool { return x.vacant }); m == nil {
			if m = s.first(of, func(x *member) bool { return len(x.sessions) == 0 && now.Sub(x.seen) > Lease }); m == nil {
				return nil, err
			}
			if m.announced, err = s.store.Again(m.announced, of); err != nil {
				return nil, err
			}
			m.used = false
			s.stats.Aged++
		}
		delete(s.members, m.client)
	}
	s.come++
	m.client, m.of, m.number, m.seen = h.Client, of, s.come, now
	s.members[h.Client] = m
	return m, nil
}

// mostNumber is the largest number of a client, which is a part of values and of locks.
const mostNumber = 1<<18 - 1

// free returns a place that no client has had.
func (s *Server) free(of int) (*member, error) {
	if len(s.members) == s.spec.Clients {
		return nil, fmt.Errorf("there is room for %d clients, and so many have come: start the memory node with more (--clients), or wait %v, if some have gone", s.spec.Clients, Lease)
	}
	a, err := s.store.Join(of)
	if err == nil && len(a) > MaxAnnounced {
		err = fmt.Errorf("%s announces %d bytes, of %d at most", s.kind.Name, len(a), MaxAnnounced)
	}
	if err != nil {
		return nil, err
	}
	m := &member{place: len(s.members), room: mostSessions, announced: a, sessions: map[uint16]*cm.ID{}}
	if s.kind.EachSession {
		m.room = of
	}
	return m, nil
}

// first returns the first place, with room for so many sessions, for which so is true; nil: there is none.
func (s *Server) first(of int, so func(*member) bool) (m *member) {
	for _, x := range s.members {
		if x.room >= of && so(x) && (m == nil || x.place < m.place) {
			m = x
		}
	}
	return m
}

// errTwice is the error if a session asks for a connection and has one.
var errTwice = errors.New("the session is connected already")

// Deadline implements host.App.
func (s *Server) Deadline() clock.Time {
	if len(s.conns) == 0 {
		return s.agent.Deadline()
	}
	return min(s.agent.Deadline(), s.lookAt)
}

// requested answers a ConnectRequest. An error is the text with which the request is to be rejected.
func (s *Server) requested(now clock.Time, e cm.Event) error {
	var h hello
	if err := unpack(e.PrivateData, &h); err != nil || h.Magic != magic {
		return errors.New("this server speaks another version of quillon rack")
	}
	if name := string(bytes.TrimRight(h.Store[:], "\x00")); name != s.kind.Name {
		return fmt.Errorf("this server's store is %s, not %s", s.kind.Name, name)
	}
	if h.Session >= h.Of || h.Of > mostSessions {
		return fmt.Errorf("session %d of %d: want one of 1 to %d sessions", h.Session, h.Of, mostSessions)
	}
	m, err := s.place(now, &h)
	if err != nil {
		return err
	}
	if m.of != int(h.Of) {
		return fmt.Errorf("session %d of %d: the client came with %d", h.Session, h.Of, m.of)
	}
	if id := m.sessions[h.Session]; id != nil {
		_ = id.Disconnect(now) // an error means that the connection is being ended
		return errTwice
	}
	qp, err := s.nic.CreateQP(rnic.QPInit{PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq, Access: access, MaxSend: 1, MaxRecv: 1})
	if err != nil {
		return err
	}
	p := params(s.nic)
	p.QP = qp
	p.PrivateData = append(pack(head{magic, s.epoch, uint32(m.number), uint32(s.spec.Keys), uint32(s.spec.Value), uint16(len(m.announced))}), m.announced...)
	if err := e.ID.Accept(now, p); err != nil {
		qp.Destroy()
		return err
	}
	s.conns[e.ID], m.sessions[h.Session] = &conn{qp: qp, member: m, session: h.Session, seen: now}, e.ID
	if m.vacant {
		m.vacant = false
		s.vacant--
	}
	s.stats.Accepted++
	return nil
}

// errLater means that there is no connection yet.
var errLater = errors.New("not connected yet")

// dialer makes the connections of a client's sessions.
type dialer struct {
	nic      *rnic.NIC
	pd       *rnic.PD
	cq       *rnic.CQ
	agent    *cm.Agent
	peer     cm.Peer
	hello    hello
	sessions []session
	asked    int
	up       int
	head     head
	told     []byte // what the server's first answer announced; nil: there is no answer yet
	fits     bool   // the client can work with the announcement
	ending   bool
	err      error
	beatAt   clock.Time
	shutting map[onesided.Dead]*shutting
}

// session has the connection of a session.
type session struct {
	id    *cm.ID
	qp    *rnic.QP
	state connState
	acks  uint64 // responses that had arrived at the last beat
}

type connState uint8

const (
	apart  connState = iota
	asked            // for a connection
	ready            // connected, and not used yet
	used             // used by the client library
	lost             // ended, which the client library does not know
	parted           // being ended by this side
)

func newDialer(k *Kind, nic *rnic.NIC, peer netip.Addr, mac [6]byte, sessions int, nonce uint64) (*dialer, error) {
	a, err := agent(nic, nonce)
	if err != nil {
		return nil, err
	}
	d := &dialer{nic: nic, pd: nic.AllocPD(), cq: nic.CreateCQ(max(1024, 64*sessions)), agent: a, peer: cm.Peer{IP: peer, MAC: mac, Port: service},
		hello: hello{Magic: magic, Client: nonce, Of: uint16(sessions)}, sessions: make([]session, sessions),
		shutting: map[onesided.Dead]*shutting{}}
	copy(d.hello.Store[:], k.Name)
	return d, nil
}

// connect asks for a session's connection.
func (d *dialer) connect(now clock.Time, i int) {
	s := &d.sessions[i]
	qp, err := d.nic.CreateQP(rnic.QPInit{PD: d.pd, SendCQ: d.cq, RecvCQ: d.cq, Access: access})
	if err != nil {
		d.fail(err)
		return
	}
	d.hello.Session = uint16(i)
	p := params(d.nic)
	p.QP, p.PrivateData = qp, pack(d.hello)
	id, err := d.agent.Dial(now, d.peer, p)
	if err != nil {
		d.fail(err)
		return
	}
	*s = session{id: id, qp: qp, state: asked}
	d.asked++
}

func (d *dialer) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// step handles what has happened to connections, and asks for those that are missing.
func (d *dialer) step(now clock.Time) bool {
	did := d.agent.Step(now)
	if now >= d.beatAt {
		d.beat(now)
	}
	for {
		e, ok := d.agent.Poll()
		if !ok {
			break
		}
		did = true
		d.event(now, e)
	}
	for i := range d.sessions {
		// Only the first session asks until it is known that the client can work with the announcement.
		if d.asked == asking || d.err != nil || d.ending || !d.fits && i > 0 {
			break
		}
		if d.sessions[i].state == apart {
			d.connect(now, i)
			did = true
		}
	}
	return did
}

// beat sends an empty WRITE over each connection over which nothing has arrived since the last beat.
func (d *dialer) beat(now clock.Time) {
	d.beatAt = now.Add(beat)
	for i := range d.sessions {
		s := &d.sessions[i]
		if s.state != ready && s.state != used {
			continue
		}
		n := s.qp.Stats().RxResponses
		if n == s.acks {
			// Nothing waits for the completion. If the WRITE fails, the queue pair fails with it.
			_ = s.qp.PostSend(&rnic.SendWR{ID: uint64(i), Op: rnic.OpWrite})
		}
		s.acks = n
	}
}

func (d *dialer) event(now clock.Time, e cm.Event) {
	var s *session
	for i := range d.sessions {
		if d.sessions[i].id == e.ID {
			s = &d.sessions[i]
		}
	}
	if s == nil {
		d.shutEvent(now, e)
		return
	}
	if s.state == asked {
		d.asked--
	}
	switch e.Kind {
	case cm.Established:
		s.state = ready
		d.up++
		if d.ending {
			s.state = parted
			_ = s.id.Disconnect(now)
			return
		}
		if err := d.answered(e.PrivateData); err != nil {
			d.fail(err)
		}
		return
	case cm.Rejected:
		switch {
		case e.Reason == cm.ReasonStale: // the server ends an earlier connection of this session first
		case e.Reason == cm.ReasonInvalidServiceID:
			d.fail(fmt.Errorf("%v is no memory node of quillon rack", d.peer.IP))
		case e.Reason == cm.ReasonConsumer:
			d.fail(fmt.Errorf("%v refuses: %s", d.peer.IP, bytes.TrimRight(e.PrivateData, "\x00")))
		default:
			d.fail(fmt.Errorf("%v refuses the connection, for reason %d of the connection manager", d.peer.IP, e.Reason))
		}
	case cm.Unreachable:
		if d.told != nil {
			d.fail(fmt.Errorf("the memory node %v has vanished: it does not answer any more", d.peer.IP))
		}
	case cm.Disconnected:
		d.up--
		if s.state == used {
			s.state = lost // what is posted from now on completes with an error
		}
		if b := bytes.TrimRight(e.PrivateData, "\x00"); len(b) > 0 && !d.ending {
			d.fail(fmt.Errorf("the memory node %v says goodbye: %s", d.peer.IP, b))
		}
	}
	if s.state != lost {
		s.forget()
	}
}

func (s *session) forget() {
	s.qp.Destroy()
	*s = session{}
}

// answered takes the private data of a server's answer.
func (d *dialer) answered(b []byte) error {
	var h head
	if err := unpack(b, &h); err != nil || h.Magic != magic || int(h.Len) > len(b)-headLen {
		return fmt.Errorf("%v speaks another version of quillon rack", d.peer.IP)
	}
	switch {
	case d.told == nil:
		d.head, d.told = h, bytes.Clone(b[headLen:][:h.Len])
	case d.head.Server != h.Server:
		return fmt.Errorf("the memory node %v was started anew: what it held is gone", d.peer.IP)
	case !bytes.Equal(d.told, b[headLen:][:h.Len]):
		return fmt.Errorf("the memory node %v has another geometry now", d.peer.IP)
	}
	return nil
}

// dial is called by client libraries: it gives a session its next connection, and ends the one before.
func (d *dialer) dial(now clock.Time, i int) (*rnic.QP, error) {
	s := &d.sessions[i]
	switch s.state {
	case ready:
		s.state = used
		return s.qp, nil
	case used:
		// Nothing of the earlier connection may arrive later.
		s.state = parted
		if s.id.Disconnect(now) != nil {
			s.qp.Destroy() // the connection has ended, and the event is on its way
		}
	case lost:
		s.forget()
	}
	return nil, errLater
}

// end ends all connections.
func (d *dialer) end(now clock.Time) {
	d.ending = true
	for i := range d.sessions {
		if s := &d.sessions[i]; s.state == ready || s.state == used {
			s.state = parted
			_ = s.id.Disconnect(now) // an error means that the connection has ended
		} else if s.state == lost {
			s.forget()
		}
	}
}

// ended reports whether no connection is left.
func (d *dialer) ended() bool {
	return !slices.ContainsFunc(d.sessions, func(s session) bool { return s.state != apart })
}
