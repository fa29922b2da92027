package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// Grant is what a Conn has acquired by one Acquire.
type Grant struct {
	// Token is higher than the tokens of all earlier grants of the words. Memory servers may refuse lower ones.
	Token   uint64
	request uint32
	conn    *Conn
}

// Holds reports whether the client's lease still lasts. It does not know whether the grant was released.
func (g *Grant) Holds() bool {
	c := g.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clk.Now() < c.client.Until()
}

// Conn is a client with a socket. Its methods may be called by any goroutine.
type Conn struct {
	clk  clock.Clock // it goes on while the machine is suspended: leases do
	sock *net.UDPConn
	bell chan struct{} // something is to be sent
	done chan struct{} // closed with the socket

	mu     sync.Mutex
	client *Client
	asks   map[uint32]chan Event
	lost   error
}

// ErrClosed is the error of a Conn that was closed.
var ErrClosed = errors.New("arbiter: the client is closed")

// Error is the error of a request that the arbiter denied, or of a client that was lost.
type Error struct{ Event }

func (e *Error) Error() string {
	if e.Kind == Lost {
		return "arbiter: the client is taken for dead: " + e.Result.String()
	}
	if e.Result == message.Held {
		return fmt.Sprintf("arbiter: denied: word %d is held by %v for another %v", e.Word, netip.AddrFrom4(e.Holder), e.Wait)
	}
	return "arbiter: denied: " + e.Result.String()
}

// Dial makes a client of an arbiter. A zero Incarnation becomes the current time, and a nil Nonce the system's
// random numbers. A zero Number becomes a random one; then nobody can recognize the client's next life, and where
// the client is shut out, an operator has to let it in again.
func Dial(arbiter netip.AddrPort, cfg Config) (*Conn, error) {
	sock, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(arbiter))
	if err != nil {
		return nil, err
	}
	c := &Conn{clk: clock.NewBoot(), sock: sock, bell: make(chan struct{}, 1), done: make(chan struct{}), asks: map[uint32]chan Event{}}
	if cfg.Incarnation == 0 {
		cfg.Incarnation = uint64(c.clk.Now())
	}
	if cfg.Nonce == nil {
		cfg.Nonce = func() uint64 {
			var b [8]byte
			_, _ = rand.Read(b[:]) // it does not fail
			return binary.BigEndian.Uint64(b[:])
		}
	}
	if cfg.Number == 0 {
		cfg.Number = uint32(cfg.Nonce())
	}
	c.client = New(cfg)
	go c.receive()
	go c.send()
	return c, nil
}

// Close closes the client. What it holds becomes free when its lease ends; release it before.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.lost == nil {
		c.lost = ErrClosed
	}
	c.mu.Unlock()
	return c.sock.Close()
}

// receive handles datagrams from the arbiter until the socket is closed.
func (c *Conn) receive() {
	defer close(c.done)
	b := make([]byte, 2048)
	for {
		n, err := c.sock.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // ICMP errors: nobody listens yet
		}
		c.mu.Lock()
		c.client.Receive(c.clk.Now(), b[:n])
		c.events()
		c.mu.Unlock()
		c.ring()
	}
}

// events gives the client's events to the goroutines that wait for them. The caller has c.mu.
func (c *Conn) events() {
	for {
		e, ok := c.client.Poll()
		if !ok {
			return
		}
		if e.Kind == Lost {
			c.lost = &Error{e}
			for id, ask := range c.asks {
				ask <- e
				delete(c.asks, id)
			}
			continue
		}
		if ask := c.asks[e.Request]; ask != nil {
			ask <- e
			delete(c.asks, e.Request)
		}
	}
}

func (c *Conn) ring() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

// send sends datagrams when they are due, until the socket is closed.
func (c *Conn) send() {
	t := time.NewTimer(0)
	b := make([]byte, 0, message.Len+message.Most*message.WordLen)
	for {
		c.mu.Lock()
		now := c.clk.Now()
		for p := c.client.Next(now, b); p != nil; p = c.client.Next(now, b) {
			_, _ = c.sock.Write(p) // a loss: it is sent again
		}
		at := c.client.Deadline()
		c.mu.Unlock()
		t.Reset(min(at.Sub(now), time.Hour))
		select {
		case <-t.C:
		case <-c.bell:
		case <-c.done:
			return
		}
	}
}

// ask calls begin, which begins a request, and waits for the outcome of that. If ctx ends first, ask releases the
// request.
func (c *Conn) ask(ctx context.Context, begin func(now clock.Time) (uint32, bool)) (Event, error) {
	c.mu.Lock()
	if c.lost != nil {
		defer c.mu.Unlock()
		return Event{}, c.lost
	}
	id, ok := begin(c.clk.Now())
	if !ok {
		c.mu.Unlock()
		return Event{}, errors.New("arbiter: too many requests at once, or words, or it is released already")
	}
	ask := make(chan Event, 1)
	c.asks[id] = ask
	c.mu.Unlock()
	c.ring()
	select {
	case e := <-ask:
		if e.Kind == Denied || e.Kind == Lost {
			return e, &Error{e}
		}
		return e, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.asks, id)
		c.client.Release(c.clk.Now(), id) // it is given up, or given back
		c.mu.Unlock()
		c.ring()
		return Event{}, ctx.Err()
	case <-c.done:
		return Event{}, ErrClosed
	}
}

// Acquire acquires all words or none. If another client is in the way, the request waits in line for wait. When
// ctx ends first, the request is given up. A denial is an *Error.
func (c *Conn) Acquire(ctx context.Context, wait time.Duration, words ...message.Word) (*Grant, error) {
	e, err := c.ask(ctx, func(now clock.Time) (uint32, bool) { return c.client.Acquire(now, wait, words...) })
	if err != nil {
		return nil, err
	}
	return &Grant{Token: e.Token, request: e.Request, conn: c}, nil
}

// Release gives back the words of g, and waits for the arbiter's answer.
func (c *Conn) Release(ctx context.Context, g *Grant) error {
	_, err := c.ask(ctx, func(now clock.Time) (uint32, bool) { return g.request, c.client.Release(now, g.request) })
	return err
}
