package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// answer is what an arbiter says to a datagram.
func answer(b []byte, change func(*message.Message)) []byte {
	var m message.Message
	if !m.Parse(b) {
		panic("no message")
	}
	m.Answer, m.Result, m.N = true, message.OK, 0
	if m.Op == message.Hello {
		m.Session = 99
	}
	if change != nil {
		change(&m)
	}
	return m.Append(nil)
}

// A client says hello, asks for a word, is granted it, and gives it back.
func Example() {
	c := New(Config{Incarnation: 1, Lease: time.Second, Nonce: func() uint64 { return 42 }})
	now := clock.Time(1_000_000_000)
	id, _ := c.Acquire(now, 0, message.Word{Addr: 0x1000, Exclusive: true})
	c.Receive(now, answer(c.Next(now, nil), nil)) // of the hello
	c.Receive(now, answer(c.Next(now, nil), func(m *message.Message) { m.Token, m.Handle, m.Lease = 7, 3, 900 }))
	e, _ := c.Poll()
	fmt.Println(e.Kind == Granted, e.Request == id, e.Token, c.Until().Sub(now))
	c.Release(now, id)
	c.Receive(now, answer(c.Next(now, nil), nil))
	e, _ = c.Poll()
	fmt.Println(e.Kind == Released)
	// Output:
	// true true 7 900ms
	// true
}

// TestLease: a lease is counted from when the attempt that was answered was sent, and what is not the arbiter's answer counts nothing.
func TestLease(t *testing.T) {
	c := New(Config{Incarnation: 1, Lease: time.Second, Retry: 10 * time.Millisecond, Nonce: func() uint64 { return 42 }})
	at := func(ms int) clock.Time { return clock.Time(1e9).Add(time.Duration(ms) * time.Millisecond) }
	c.Acquire(at(0), 0, message.Word{Addr: 1})
	hello := c.Next(at(0), nil)
	c.Receive(at(1), answer(hello, func(m *message.Message) { m.Token = 41 })) // another nonce
	if c.Next(at(2), nil) != nil {
		t.Error("a hello was believed that had another nonce")
	}
	c.Receive(at(3), answer(hello, nil))
	first := c.Next(at(4), nil)
	if c.Next(at(13), nil) != nil || c.Next(at(14), nil) == nil || c.Next(at(33), nil) != nil || c.Next(at(34), nil) == nil {
		t.Error("it is not sent again after 10 and 20 ms")
	}
	for _, wrong := range []func(m *message.Message){
		func(m *message.Message) { m.Session++ }, func(m *message.Message) { m.Incarnation++ }, func(m *message.Message) { m.Request++ }, func(m *message.Message) { m.Attempt += 5 },
		func(m *message.Message) { m.Op = message.Renew }, func(m *message.Message) { m.Client++ }, func(m *message.Message) { m.Answer = false },
	} {
		c.Receive(at(40), answer(first, func(m *message.Message) { m.Lease = 500; wrong(m) }))
	}
	if _, ok := c.Poll(); ok || c.Until() != 0 {
		t.Errorf("until %v", c.Until())
	}
	c.Receive(at(50), answer(first, func(m *message.Message) { m.Lease, m.Token = 500, 9 }))
	if c.Until() != at(504) {
		t.Errorf("until %v, want %v", c.Until(), at(504))
	}
	c.Poll()
	// The lease is renewed in time, and a loss of the session ends all.
	renew := c.Next(c.Deadline(), nil)
	var m message.Message
	if !m.Parse(renew) || m.Op != message.Renew {
		t.Fatalf("%x", renew)
	}
	c.Receive(at(400), answer(renew, func(m *message.Message) { m.Result = message.NoSession }))
	if e, ok := c.Poll(); !ok || e.Kind != Lost || c.Deadline() != clock.Never {
		t.Errorf("%+v", e)
	}
	if _, ok := c.Acquire(at(401), 0, message.Word{}); ok {
		t.Error("a lost client asks")
	}
}

// TestSlots: as many requests are under way as there are places, and one that is given up makes room.
func TestSlots(t *testing.T) {
	c := New(Config{Nonce: func() uint64 { return 1 }})
	var ids []uint32
	for id, ok := c.Acquire(0, time.Second, message.Word{}); ok; id, ok = c.Acquire(0, time.Second, message.Word{}) {
		ids = append(ids, id)
	}
	if len(ids) != message.Slots {
		t.Fatalf("%d requests", len(ids))
	}
	if !c.Release(0, ids[5]) || c.Release(0, ids[5]) {
		t.Error("a request cannot be given up once")
	}
	if r := &c.open[ids[5]%message.Slots]; r.op != message.Release || r.id <= ids[15] || r.handle != ids[5] {
		t.Errorf("%+v", r)
	}
}

// arbiterAt answers datagrams on the loopback as f changes its answers; none where f is false.
func arbiterAt(t *testing.T, f func(m *message.Message) bool) (at netip.AddrPort) {
	s, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := s.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			said := true
			a := answer(b[:n], func(m *message.Message) {
				m.Lease = 200
				if m.Op != message.Hello {
					said = f(m)
				}
			})
			if said {
				_, _ = s.WriteToUDPAddrPort(a, from)
			}
		}
	}()
	return netip.MustParseAddrPort(s.LocalAddr().String())
}

// TestConn: losses are made good, refusals are errors, what is waited for too long is given up, and a lost client says so.
func TestConn(t *testing.T) {
	var mu sync.Mutex
	var seen []message.Message
	at := arbiterAt(t, func(m *message.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, *m)
		switch {
		case m.Wait == 1000:
			m.Result = message.Waiting
		case m.Wait == 2000:
			m.Result, m.Holder, m.Wait = message.Held, [4]byte{10, 0, 0, 1}, 5
		case m.Wait == 3000:
			m.Result = message.Lost
		default:
			m.Token, m.Handle = 5, 1
		}
		return m.Attempt > 1 // the first one is lost
	})
	c, err := Dial(at, Config{Lease: 200 * time.Millisecond, Retry: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	g, err := c.Acquire(ctx, 0, message.Word{Addr: 1})
	if err != nil || g.Token != 5 || !g.Holds() {
		t.Fatalf("%+v %v", g, err)
	}
	var refused *Error
	if _, err := c.Acquire(ctx, 2*time.Second, message.Word{}); !errors.As(err, &refused) || refused.Result != message.Held || err.Error() != "arbiter: denied: word 0 is held by 10.0.0.1 for another 5ms" {
		t.Error(err)
	}
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	if _, err := c.Acquire(short, time.Second, message.Word{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := c.Release(ctx, g); err != nil {
		t.Error(err)
	}
	if err := c.Release(ctx, g); err == nil {
		t.Error("released twice")
	}
	mu.Lock()
	given := false
	for _, m := range seen {
		given = given || m.Op == message.Release && m.Token == 0
	}
	mu.Unlock()
	if !given {
		t.Error("what was waited for too long is not given up")
	}
	if _, err := c.Acquire(ctx, 3*time.Second, message.Word{}); !errors.As(err, &refused) || refused.Kind != Lost {
		t.Error(err)
	}
	if _, err := c.Acquire(ctx, 0, message.Word{}); !errors.As(err, &refused) {
		t.Error(err)
	}
	c.Close()
}

// FuzzReceive: whatever comes, the client goes on.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("QA"))
	m := message.Message{Op: message.Acquire, Answer: true, Request: 1, Session: 99, Incarnation: 1}
	f.Add(m.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := New(Config{Incarnation: 1, Nonce: func() uint64 { return 42 }})
		c.Acquire(1, 0, message.Word{})
		c.Receive(1, answer(c.Next(1, nil), nil))
		c.Next(1, nil)
		c.Receive(2, b)
		for _, ok := c.Poll(); ok; _, ok = c.Poll() {
		}
		c.Next(c.Deadline(), nil)
	})
}

// TestNumbersComeAround: behind the last request number, 0 is left out, and each request goes on in its slot.
func TestNumbersComeAround(t *testing.T) {
	c := New(Config{Incarnation: 1, Lease: time.Second, Nonce: func() uint64 { return 42 }})
	c.next = 1<<32 - 20
	c.Acquire(0, 0, message.Word{})
	c.Receive(0, answer(c.Next(0, nil), nil)) // of the hello
	last := [message.Slots]uint32{}
	for range 60 {
		b := c.Next(0, nil)
		var m message.Message
		m.Parse(b)
		if at := m.Request % message.Slots; m.Request == 0 || last[at] != 0 && int32(m.Request-last[at]) <= 0 {
			t.Fatalf("request %d behind %d", m.Request, last[at])
		} else {
			last[at] = m.Request
		}
		c.Receive(0, answer(b, func(m *message.Message) { m.Result = message.Held }))
		c.Poll()
		if _, ok := c.Acquire(0, 0, message.Word{}); !ok {
			t.Fatal("no place for a request")
		}
	}
}
