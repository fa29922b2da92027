// Package client asks an arbiter (nf/arbiter) for locks.
//
// A Client is a state machine: datagrams and a time go in, datagrams and a next deadline come out. A Conn drives one over a socket:
//
//	c, err := client.Dial(netip.MustParseAddrPort("10.0.0.9:7474"), client.Config{})
//	g, err := c.Acquire(ctx, time.Second, message.Word{Space: 0x0A000009, Addr: 0x1000, Exclusive: true})
//	... write under the lock, while g.Holds(), and give g.Token to whoever refuses older ones
//	err = c.Release(ctx, g)
//
// A client holds its words until its lease ends by its own clock. The lease is counted from when a request was
// sent, so that it ends before the arbiter's count of it does. A client that holds words sends requests just to
// renew the lease.
package client

import (
	"cmp"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// Config says who a client is, and how it asks.
type Config struct {
	// Number identifies the client among those of its address.
	Number uint32
	// Incarnation identifies this life of the client. It must be higher than all earlier ones of the same number
	// and address. It says that these have ended and that nothing that they began can be sent any more, as their
	// queue pairs are gone.
	Incarnation uint64
	// Lease is the length of the lease that the client asks for; 0 means 10 s.
	Lease time.Duration
	// Retry is the time after which an unanswered request is sent again; 0 means 50 ms. It doubles with each
	// repetition, up to 8 times as long.
	Retry time.Duration
	// Nonce returns a number that nobody can guess. It is called for each Hello.
	Nonce func() uint64
}

// Kind is the kind of an Event.
type Kind uint8

// Kinds.
const (
	Granted  Kind = iota // the words of a request are held
	Denied               // they are not, for Result
	Released             // what a request has held is given back, or the request is given up
	Lost                 // the client is taken for dead, for Result: all that it held ends with its lease, and a new Client with a higher incarnation must be made
)

// Event is the outcome of a request, or the loss of the client.
type Event struct {
	Kind    Kind
	Request uint32
	Result  message.Result
	Token   uint64
	// If Result is message.Held: Holder has the word with index Word in the request, and its lease lasts for
	// Wait.
	Holder [4]byte
	Word   int
	Wait   time.Duration
}

// sends is the number of a request's attempts whose times are remembered.
const sends = 8

// request is a request under way.
type request struct {
	id      uint32
	op      message.Op
	of      uint32 // of a Release: the Acquire's number
	token   uint64
	handle  uint32
	wait    uint32
	n       int
	words   [message.Most]message.Word
	attempt uint16
	sent    [sends]clock.Time // by attempt
	retry   time.Duration
	due     clock.Time
	waits   bool // it is in line
}

// grant is a request whose words the client holds.
type grant struct {
	request uint32
	token   uint64
	handle  uint32
}

// Client is the state machine of a client. Only one goroutine at a time may call its methods.
type Client struct {
	cfg     Config
	session uint64
	hello   request
	open    [message.Slots]request // by number modulo Slots; op 0: none
	next    uint32
	grants  []grant
	events  []Event
	until   clock.Time // the lease ends
	renewed clock.Time // the request that renewed it last was sent
	lost    bool
	m       message.Message
}

// New returns a client without a session. cfg.Nonce must be set.
func New(cfg Config) *Client {
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Retry = cmp.Or(cfg.Retry, 50*time.Millisecond)
	return &Client{cfg: cfg, next: 1}
}

// Until returns when the client's lease ends by its own clock. Before that, nobody else has what the client
// holds.
func (c *Client) Until() clock.Time { return c.until }

// Acquire asks for all words or none. If another client is in the way, the request waits in line for wait.
// Acquire returns the request's number, which events have, or false if there are too many words, or too many
// requests under way.
func (c *Client) Acquire(now clock.Time, wait time.Duration, words ...message.Word) (id uint32, ok bool) {
	if len(words) > message.Most {
		return 0, false
	}
	r := c.begin(now, message.Acquire)
	if r == nil {
		return 0, false
	}
	r.wait, r.n = uint32(wait/time.Millisecond), copy(r.words[:], words)
	return r.id, true
}

// Release gives back what request id was granted, or gives the request up. It returns false if the request is not
// known, or if too many requests are under way.
func (c *Client) Release(now clock.Time, id uint32) bool {
	token, handle := uint64(0), id
	if i := c.granted(id); i >= 0 {
		token, handle = c.grants[i].token, c.grants[i].handle
	} else if o := &c.open[id%message.Slots]; o.op == message.Acquire && o.id == id {
		o.op = 0 // whose slot is used
		for c.next%message.Slots != id%message.Slots {
			c.next++
		}
	} else {
		return false
	}
	r := c.begin(now, message.Release)
	if r == nil {
		return false
	}
	r.token, r.handle, r.of = token, handle, id
	return true
}

func (c *Client) granted(id uint32) int {
	return slices.IndexFunc(c.grants, func(g grant) bool { return g.request == id })
}

// begin returns a place for a new request, or nil if all are in use, or if the client is lost.
func (c *Client) begin(now clock.Time, op message.Op) *request {
	for range message.Slots {
		if c.next == 0 { // which is no request's number
			c.next = message.Slots
		}
		r := &c.open[c.next%message.Slots]
		c.next++
		if r.op == 0 && !c.lost {
			*r = request{id: c.next - 1, op: op, due: now, retry: c.cfg.Retry}
			return r
		}
	}
	return nil
}

// Poll removes and returns the next event, or returns false if there is none.
func (c *Client) Poll() (e Event, ok bool) {
	if len(c.events) == 0 {
		return e, false
	}
	e = c.events[0]
	c.events = append(c.events[:0], c.events[1:]...)
	return e, true
}

// renewAt returns when a Renew must be sent, because no other request renews the lease.
func (c *Client) renewAt() clock.Time {
	if len(c.grants) == 0 || c.lost {
		return clock.Never
	}
	for i := range c.open {
		if c.open[i].op != 0 {
			return clock.Never // it renews it
		}
	}
	return c.renewed.Add(c.cfg.Lease / 3)
}

// Deadline returns the time when Next has something to send.
func (c *Client) Deadline() clock.Time {
	at := c.renewAt()
	if c.lost {
		return at
	}
	if c.session == 0 {
		for i := range c.open {
			if c.open[i].op != 0 {
				return c.hello.due
			}
		}
		return clock.Never
	}
	for i := range c.open {
		if c.open[i].op != 0 {
			at = min(at, c.open[i].due)
		}
	}
	return at
}

// Next appends the next datagram that is due to b, or returns nil if there is none. It is called until it returns
// nil.
func (c *Client) Next(now clock.Time, b []byte) []byte {
	if c.Deadline() > now {
		return nil
	}
	if c.renewAt() <= now {
		c.begin(now, message.Renew)
	}
	if c.session == 0 {
		if c.hello.op == 0 {
			c.hello = request{op: message.Hello, token: c.cfg.Nonce(), retry: c.cfg.Retry}
		}
		return c.send(now, &c.hello, b)
	}
	for i := range c.open {
		if r := &c.open[i]; r.op != 0 && r.due <= now {
			return c.send(now, r, b)
		}
	}
	return nil
}

// send appends a datagram with request r to b, and sets when r is due again.
func (c *Client) send(now clock.Time, r *request, b []byte) []byte {
	r.attempt++
	r.sent[r.attempt%sends] = now
	r.due = now.Add(r.retry)
	r.retry = min(2*r.retry, 8*c.cfg.Retry)
	if r.waits {
		r.due = now.Add(c.cfg.Lease / 3)
	}
	m := &c.m
	m.Op, m.Answer, m.Request, m.Client, m.Attempt, m.Result = r.op, false, r.id, c.cfg.Number, r.attempt, 0
	m.Incarnation, m.Session, m.Token, m.Handle, m.Wait, m.N = c.cfg.Incarnation, c.session, r.token, r.handle, r.wait, r.n
	m.Lease, m.Holder = uint32(c.cfg.Lease/time.Millisecond), [4]byte{}
	copy(m.Words[:], r.words[:r.n])
	return m.Append(b)
}

// Receive handles a datagram that came from the arbiter. It ignores all others.
func (c *Client) Receive(now clock.Time, b []byte) {
	m := &c.m
	if !m.Parse(b) || !m.Answer || m.Incarnation != c.cfg.Incarnation || m.Client != c.cfg.Number || c.lost {
		return
	}
	if m.Op == message.Hello {
		if c.session != 0 || c.hello.op == 0 || m.Token != c.hello.token || m.Session == 0 {
			return
		}
		if m.Result != message.OK {
			c.lose(m.Result)
			return
		}
		c.session, c.hello = m.Session, request{}
		for i := range c.open {
			c.open[i].due = now
		}
		return
	}
	if m.Session != c.session {
		return
	}
	r := &c.open[m.Request%message.Slots]
	if r.op != m.Op || r.id != m.Request || int16(r.attempt-m.Attempt) < 0 {
		return
	}
	switch m.Result {
	case message.Lost, message.Stale:
		c.lose(m.Result)
		return
	case message.NoSession:
		if len(c.grants) > 0 {
			c.lose(m.Result)
			return
		}
		c.session = 0
		return
	case message.Settling, message.Waiting:
		if r.waits = m.Result == message.Waiting; r.waits {
			c.renew(r, m)
		}
		r.due, r.retry = now.Add(c.cfg.Lease/3), c.cfg.Retry
		if !r.waits {
			r.due = now.Add(min(max(time.Duration(m.Wait)*time.Millisecond, time.Millisecond), c.cfg.Lease/3))
		}
		return
	}
	c.renew(r, m)
	c.done(r, m)
}

// renew prolongs the lease by an answer. The lease counts from when the answered attempt of r was sent.
func (c *Client) renew(r *request, m *message.Message) {
	if r.attempt-m.Attempt >= sends || m.Lease == 0 {
		return
	}
	sent := r.sent[m.Attempt%sends]
	c.until = max(c.until, sent.Add(time.Duration(m.Lease)*time.Millisecond))
	c.renewed = max(c.renewed, sent)
}

// done ends a request by its answer m.
func (c *Client) done(r *request, m *message.Message) {
	op, of := r.op, r.of
	r.op = 0
	e := Event{Request: m.Request, Result: m.Result, Token: m.Token}
	switch op {
	case message.Renew:
		return
	case message.Release:
		if i := c.granted(of); i >= 0 {
			c.grants = append(c.grants[:i], c.grants[i+1:]...)
		}
		e.Kind, e.Request = Released, of
	case message.Acquire:
		if e.Kind = Denied; m.Result == message.OK {
			e.Kind = Granted
			c.grants = append(c.grants, grant{m.Request, m.Token, m.Handle})
		}
		if m.Result == message.Held {
			e.Holder, e.Word, e.Wait = m.Holder, m.N, time.Duration(m.Wait)*time.Millisecond
		}
	}
	c.events = append(c.events, e)
}

// lose ends the client: it has lost all grants, and sends no more.
func (c *Client) lose(why message.Result) {
	c.lost = true
	c.grants = nil
	c.events = append(c.events, Event{Kind: Lost, Result: why})
}
