package herd

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Errors of operations.
var (
	ErrFull = errors.New("herd: the server has no room for another key")
	ErrBad  = errors.New("herd: the server takes this for no request: a value too long or empty, or another layout")
	// ErrLost means that it is not known whether the operation happened. Its session does no more operations,
	// because its slot may be in use.
	ErrLost = errors.New("herd: no answer, however often was asked")
)

// Op is an operation.
type Op struct {
	Kind
	Key   uint64
	Value []byte // of a Put; used in place until the operation ends
}

// Result is the result of an operation, valid until the callback returns.
type Result struct {
	Session int
	Op
	Found      bool   // the key exists, or existed until its Delete
	Got        []byte // the value, for a Get
	Err        error
	Start, End clock.Time
	Asked      int // how often the request was written
}

// Config describes a client.
type Config struct {
	Layout // of the server
	Region onesided.Region
	// First is the number of the client's first session, N the number of its sessions.
	First, N int
	// CQ receives the completions of all queue pairs of the client.
	CQ *rnic.CQ
	// Again is the time after which a request without an answer is written again; 0 = 1 ms. After Most
	// repetitions (0 = 100) the operation ends with ErrLost.
	Again time.Duration
	Most  int
	// Next returns a session's next operation; false: there is none at present.
	Next func(now clock.Time, session int) (Op, bool)
	// Done is called at the end of every operation.
	Done func(*Result)
}

// Stats are the totals of a client.
type Stats struct{ Ops, Again, Late uint64 }

// Client is the client library of one machine. It implements host.App.
type Client struct {
	cfg      Config
	sessions []session
	of       map[uint32]int // session by its UD queue pair
	stats    Stats
	wcs      [64]rnic.WC
}

// session is a client thread.
type session struct {
	uc, ud *rnic.QP
	busy   bool
	number uint32
	askAt  clock.Time
	res    Result
	req    []byte // the request under way, as it is written
	bufs   [answers][]byte
}

// answers is the number of datagrams for which a session has room, late ones included.
const answers = 4

// grh is the room in front of a datagram, in bytes.
const grh = 40

// NewClient makes a client; its sessions work when they have connections.
func NewClient(c Config) (*Client, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.CQ == nil || c.Next == nil || c.Done == nil || c.N < 1 || c.First < 0 || c.First+c.N > c.Sessions || c.Again < 0 || c.Most < 0 {
		return nil, fmt.Errorf("herd: a client of sessions %d to %d of %d needs these, a completion queue, and work", c.First, c.First+c.N-1, c.Sessions)
	}
	c.Again = cmp.Or(c.Again, time.Millisecond)
	c.Most = cmp.Or(c.Most, 100)
	return &Client{cfg: c, sessions: make([]session, c.N), of: map[uint32]int{}}, nil
}

// Connect gives the i-th session its connected UC queue pair, and a UD queue pair.
func (c *Client) Connect(i int, uc, ud *rnic.QP) error {
	s := &c.sessions[i]
	s.uc, s.ud, s.req = uc, ud, make([]byte, c.cfg.Value+tailLen)
	c.of[ud.QPN] = i
	for k := range s.bufs {
		s.bufs[k] = make([]byte, grh+c.cfg.Value)
		if err := ud.PostRecv(&rnic.RecvWR{ID: uint64(k), Buf: s.bufs[k]}); err != nil {
			return err
		}
	}
	return nil
}

// Datagrams makes a UD queue pair for answers.
func Datagrams(pd *rnic.PD, nic *rnic.NIC, cq *rnic.CQ) (*rnic.QP, error) {
	q, err := nic.CreateQP(rnic.QPInit{PD: pd, Type: rnic.TypeUD, SendCQ: cq, RecvCQ: cq, QKey: qkey, MaxSend: 1, MaxRecv: answers})
	if err != nil {
		return nil, err
	}
	return q, q.Connect(rnic.Conn{})
}

// Requests makes a UC queue pair for requests.
func Requests(pd *rnic.PD, nic *rnic.NIC, cq *rnic.CQ) (*rnic.QP, error) {
	return nic.CreateQP(rnic.QPInit{PD: pd, Type: rnic.TypeUC, SendCQ: cq, RecvCQ: cq, MaxSend: 16, MaxRecv: 1})
}

// Stats returns the totals so far.
func (c *Client) Stats() Stats { return c.stats }

// Idle reports whether no operation is under way.
func (c *Client) Idle() bool {
	for i := range c.sessions {
		if c.sessions[i].busy {
			return false
		}
	}
	return true
}

// Deadline implements host.App.
func (c *Client) Deadline() clock.Time {
	d := clock.Never
	for i := range c.sessions {
		if s := &c.sessions[i]; s.busy {
			d = min(d, s.askAt)
		}
	}
	return d
}

// Step implements host.App.
func (c *Client) Step(now clock.Time) bool {
	did := false
	for n := c.cfg.CQ.Poll(c.wcs[:]); n > 0; n = c.cfg.CQ.Poll(c.wcs[:]) {
		did = true
		for i := range c.wcs[:n] {
			c.answered(now, &c.wcs[i])
		}
	}
	for i := range c.sessions {
		s := &c.sessions[i]
		if s.uc == nil {
			continue
		}
		if s.busy && now >= s.askAt {
			did = true
			if s.res.Asked > c.cfg.Most {
				s.uc = nil
				c.end(now, i, false, ErrLost)
				continue
			} else {
				c.stats.Again++
				c.ask(now, s)
			}
		}
		for !s.busy {
			op, ok := c.cfg.Next(now, i)
			if !ok {
				break
			}
			did = true
			c.begin(now, i, op)
		}
	}
	return did
}

// begin writes an operation's request.
func (c *Client) begin(now clock.Time, i int, op Op) {
	s := &c.sessions[i]
	if s.res.Asked > 1 {
		s.req = make([]byte, c.cfg.Value+tailLen) // the earlier request may still be under way
	}
	s.busy, s.res = true, Result{Session: i, Op: op, Start: now}
	if len(op.Value) > c.cfg.Value || op.Kind > Delete || (op.Kind == Put) != (len(op.Value) > 0) {
		c.end(now, i, false, ErrBad)
		return
	}
	if s.number = (s.number + 1) & numberMask; s.number == 0 {
		s.number = 1
	}
	s.req = append(s.req[:0], op.Value...)
	s.req = le.AppendUint64(s.req, op.Key)
	s.req = le.AppendUint16(s.req, uint16(op.Kind))
	s.req = le.AppendUint16(s.req, uint16(len(op.Value)))
	s.req = le.AppendUint32(s.req, s.number)
	c.ask(now, s)
}

// ask writes the request, at first or again.
func (c *Client) ask(now clock.Time, s *session) {
	s.res.Asked++
	s.askAt = now.Add(c.cfg.Again)
	end := c.cfg.end(c.cfg.coreOf(s.res.Key), c.cfg.First+s.res.Session)
	// If the queue has no room, the request is written again later.
	_ = s.uc.PostSend(&rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{s.req}, RemoteAddr: c.cfg.Region.VA + uint64(end-len(s.req)), RKey: c.cfg.Region.RKey})
}

// answered handles a datagram.
func (c *Client) answered(now clock.Time, w *rnic.WC) {
	i, ok := c.of[w.QPN]
	if !ok || w.Op != rnic.OpRecvImm || w.Status != rnic.Success {
		return
	}
	s, buf := &c.sessions[i], c.sessions[i].bufs[w.ID]
	if s.busy && w.Imm&numberMask == s.number {
		s.res.Got = buf[grh:w.ByteLen]
		st := min(status(w.Imm>>24), bad)
		c.end(now, i, st == found, [...]error{found: nil, absent: nil, full: ErrFull, bad: ErrBad}[st])
	} else {
		c.stats.Late++
	}
	_ = s.ud.PostRecv(&rnic.RecvWR{ID: w.ID, Buf: buf})
}

// end ends an operation.
func (c *Client) end(now clock.Time, i int, there bool, err error) {
	s := &c.sessions[i]
	s.busy = false
	s.res.Found, s.res.Err, s.res.End = there, err, now
	c.stats.Ops++
	c.cfg.Done(&s.res)
}
