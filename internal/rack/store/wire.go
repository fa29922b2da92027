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

// service is the port that is asked for: that of rack/clover, one higher.
const service = 7472

// magic begins what both sides tell each other, with a version.
const magic = 0x51524B01

// hello is the private data of a ConnectRequest: 56 bytes travel.
type hello struct {
	Magic   uint32
	Store   [12]byte
	Client  uint64 // a number of the client's own, so that its sessions are known to be one's
	Session uint16
	Of      uint16 // sessions
}

// head is how a ConnectReply begins; what the Store announces follows.
type head struct {
	Magic  uint32
	Server uint64 // another one after each start: what the one before held is gone
	Number uint32 // of the client
	Keys   uint32
	Value  uint32
	Len    uint16 // of what follows
}

const headLen = 26

// asking is how many connections a client asks for at a time, and resources how many READs
// and atomics a queue pair has under way at once.
const (
	asking    = 4
	resources = 16
)

// Lease is how long a client may be quiet. A memory node ends connections over which nothing has come for so long, and gives
// the place of a client that has none, and whose last words are as old, to the next one that comes when there is no
// other. So a client of which nothing is to be done sends an empty WRITE over each connection every beat.
const (
	Lease = 30 * time.Second
	beat  = Lease / 6
)

// farewell is what a memory node says with the end of a connection when it ends itself.
const farewell = "it ends"

const access = rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic

// params are those of both sides: 4.096 us * 2^14 (67 ms) until a request is sent again, 7 times.
func params(nic *rnic.NIC) cm.Params {
	return cm.Params{PathMTU: min(1024, nic.MaxPathMTU()), LocalACKTimeout: 14, RetryCount: 7, RNRRetryCount: 7, Resources: resources, Depth: resources, LocalPort: service}
}

// agent is a connection manager that waits 4.096 us * 2^15 (0.13 s) for an answer, 8 times.
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
	vacant  int // of members
	come    int // clients, and their numbers
	lookAt  clock.Time
	ending  bool
	stats   ServerStats
	wcs     [16]rnic.WC
}

// member is a client that has come, and its place.
type member struct {
	client    uint64
	number    int
	of        int
	place     int
	seen      clock.Time // when something came last
	room      int        // sessions that its place has room for
	announced []byte
	sessions  map[uint16]*cm.ID // that are connected
	// used: a request came over a connection, so that the place cannot be another's. Who is not connected and has
	// not used it leaves it vacant.
	used, vacant bool
}

// conn is a connection.
type conn struct {
	qp       *rnic.QP
	member   *member
	session  uint16
	requests uint64     // when it was looked at last
	seen     clock.Time // when something had come
}

// ServerStats are a server's totals.
type ServerStats struct {
	Clients     int    `json:"clients"`     // that have come, but for those that left and had asked for nothing
	Connections int    `json:"connections"` // now
	Accepted    uint64 `json:"accepted"`
	Refused     uint64 `json:"refused"`
	Aged        uint64 `json:"aged"`              // places that were given to another client, as theirs had been quiet for a Lease
	Refusal     string `json:"refusal,omitempty"` // the last reason
}

// NewServer serves a checked Spec's store on a NIC. epoch is another number for each server.
func NewServer(k *Kind, spec Spec, nic *rnic.NIC, epoch uint64) (*Server, error) {
	st, err := k.New(spec)
	if err != nil {
		return nil, err
	}
	return Serve(k, spec, st, nic, epoch)
}

// Serve is NewServer of a store that is there.
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

// Store is the memory.
func (s *Server) Store() Store { return s.store }

// Stats are the totals so far.
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
		did = true // of queue pairs that failed
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
					reason = cm.ReasonStale // it comes again when the other has ended
				}
				_ = e.ID.Reject(reason, []byte(err.Error()))
			}
		case cm.Disconnected, cm.Rejected, cm.Unreachable:
			s.gone(now, e.ID)
		}
	}
}

// errEnds: the memory node says goodbye.
var errEnds = errors.New("the memory node ends")

// End says goodbye to all clients; Ended tells when they know, or do not answer.
func (s *Server) End(now clock.Time) {
	s.ending = true
	for id := range s.conns {
		_ = id.Leave(now, []byte(farewell)) // or it has ended
	}
}

// Ended reports whether no connection is left.
func (s *Server) Ended() bool { return len(s.conns) == 0 }

// look ends connections that have been quiet for a Lease.
func (s *Server) look(now clock.Time) {
	s.lookAt = now.Add(beat)
	for id, c := range s.conns {
		if n := c.qp.Stats().RxRequests; n != c.requests {
			c.requests, c.seen = n, now
		}
		if now.Sub(c.seen) > Lease {
			_ = id.Disconnect(now) // or that is under way
		}
	}
}

// gone forgets a connection that has ended.
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

// place gives a client its place: its own, one that another has left and not used, a new one, or one that has aged.
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

// mostNumber is the greatest number of a client: it is a part of values and of locks.
const mostNumber = 1<<18 - 1

// free is a place that nobody has had.
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

// first is the first member that is so, with room for so many sessions; nil: none is.
func (s *Server) first(of int, so func(*member) bool) (m *member) {
	for _, x := range s.members {
		if x.room >= of && so(x) && (m == nil || x.place < m.place) {
			m = x
		}
	}
	return m
}

// errTwice: a session asks for a connection, and has one.
var errTwice = errors.New("the session is connected already")

// Deadline implements host.App.
func (s *Server) Deadline() clock.Time {
	if len(s.conns) == 0 {
		return s.agent.Deadline()
	}
	return min(s.agent.Deadline(), s.lookAt)
}

// requested answers a ConnectRequest; an error: it is to be rejected, with that text.
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
		_ = id.Disconnect(now) // or that is under way
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

// errLater: the connection is not there yet.
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
	told     []byte // what the first answer announced; nil: there is none yet
	fits     bool   // what it announced is what the client wants
	ending   bool
	err      error
	beatAt   clock.Time
	shutting map[onesided.Dead]*shutting
}

// session is a connection of a session.
type session struct {
	id    *cm.ID
	qp    *rnic.QP
	state connState
	acks  uint64 // that had come when it was looked at last
}

type connState uint8

const (
	apart  connState = iota
	asked            // for a connection
	ready            // connected, and nobody uses it yet
	used             // by the client library
	lost             // it has ended, and the client library does not know
	parted           // an end is asked for
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

// step takes what has happened to connections, and asks for those that are missing.
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
		// The first alone, until it is known that the server has what is wanted.
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

// beat says something over the connections that have been quiet.
func (d *dialer) beat(now clock.Time) {
	d.beatAt = now.Add(beat)
	for i := range d.sessions {
		s := &d.sessions[i]
		if s.state != ready && s.state != used {
			continue
		}
		n := s.qp.Stats().RxResponses
		if n == s.acks {
			// Nobody waits for its end; should it fail, the queue pair has.
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
		case e.Reason == cm.ReasonStale: // the server has forgotten another one, of a client before
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
			s.state = lost // what is posted now completes as failed
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

// answered takes what a server said.
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

// dial is what client libraries call: it gives a session its next connection, and ends the one before.
func (d *dialer) dial(now clock.Time, i int) (*rnic.QP, error) {
	s := &d.sessions[i]
	switch s.state {
	case ready:
		s.state = used
		return s.qp, nil
	case used:
		// Nothing of the connection before may come later.
		s.state = parted
		if s.id.Disconnect(now) != nil {
			s.qp.Destroy() // it has ended, and the event is on its way
		}
	case lost:
		s.forget()
	}
	return nil, errLater
}

// end asks for the end of all connections.
func (d *dialer) end(now clock.Time) {
	d.ending = true
	for i := range d.sessions {
		if s := &d.sessions[i]; s.state == ready || s.state == used {
			s.state = parted
			_ = s.id.Disconnect(now) // or it has ended
		} else if s.state == lost {
			s.forget()
		}
	}
}

// ended reports whether there are none.
func (d *dialer) ended() bool {
	return !slices.ContainsFunc(d.sessions, func(s session) bool { return s.state != apart })
}
