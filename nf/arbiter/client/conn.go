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

// Grant is what an Acquire of a Conn has got.
type Grant struct {
	// Token is above those of all earlier grants of the words: who keeps the memory may refuse lower ones.
	Token   uint64
	request uint32
	conn    *Conn
}

// Holds reports whether the lease lasts still.
func (g *Grant) Holds() bool {
	c := g.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clk.Now() < c.client.Until()
}

// Conn is a client with a socket. Its methods may be called by any goroutine.
type Conn struct {
	clk  *clock.Wall
	sock *net.UDPConn
	bell chan struct{} // something is to be sent
	done chan struct{} // closed with the socket

	mu     sync.Mutex
	client *Client
	asks   map[uint32]chan Event
	lost   error
}

// ErrClosed is what a Conn says that was closed.
var ErrClosed = errors.New("arbiter: the client is closed")

// Error is what an arbiter says instead of OK.
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

// Dial makes a client of an arbiter. Without an incarnation it gets the time as one, and without a nonce what the system has. Without a number it
// gets any: then nobody knows its next life for one, and where it is shut out an operator has to lift that.
func Dial(arbiter netip.AddrPort, cfg Config) (*Conn, error) {
	sock, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(arbiter))
	if err != nil {
		return nil, err
	}
	c := &Conn{clk: clock.NewWall(), sock: sock, bell: make(chan struct{}, 1), done: make(chan struct{}), asks: map[uint32]chan Event{}}
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

// Close ends the client. What it holds ends with its lease: release it before.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.lost == nil {
		c.lost = ErrClosed
	}
	c.mu.Unlock()
	return c.sock.Close()
}

// receive takes what the arbiter says, until the socket is closed.
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

// events gives events to those who wait for them.
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

// send sends what is due, until the socket is closed.
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

// ask has begin begin a request, and waits for its outcome.
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

// Acquire gets all words or none. Where somebody bars it, it stands in line for wait. When ctx ends first the request is given up.
func (c *Conn) Acquire(ctx context.Context, wait time.Duration, words ...message.Word) (*Grant, error) {
	e, err := c.ask(ctx, func(now clock.Time) (uint32, bool) { return c.client.Acquire(now, wait, words...) })
	if err != nil {
		return nil, err
	}
	return &Grant{Token: e.Token, request: e.Request, conn: c}, nil
}

// Release gives back what was got.
func (c *Conn) Release(ctx context.Context, g *Grant) error {
	_, err := c.ask(ctx, func(now clock.Time) (uint32, bool) { return g.request, c.client.Release(now, g.request) })
	return err
}
