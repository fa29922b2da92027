package arbiter

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// A host in another VLAN takes the address of a client that holds a lock. It hears what is sent to that address in its VLAN, but is another
// client: it neither ends the first one nor takes its places.
func TestAnotherVLAN(t *testing.T) {
	x := begun(t, with())
	one := x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	in := func(vlan uint16, m message.Message, session uint64) message.Message {
		t.Helper()
		m.Session = session
		all := answers(t, x.Push("a", datagram(t, 1, 1000, &m, vlan)))
		if len(all) == 0 {
			t.Fatal("no answer")
		}
		return all[0]
	}
	late := acquire(1, 0, excl(1))
	late.Incarnation = 9
	offer := in(20, message.Message{Op: message.Hello, Incarnation: 9}, 0)
	if offer.Session == answers(t, x.Push("a", datagram(t, 1, 1000, &message.Message{Op: message.Hello, Incarnation: 9})))[0].Session {
		t.Error("what is offered in one VLAN is good in another one")
	}
	x.want(in(20, late, offer.Session), message.Held)
	for n := range message.Clients + 1 {
		m := message.Message{Op: message.Hello, Incarnation: 1, Client: uint32(100 + n)}
		s := in(20, m, 0).Session
		m.Op, m.Request, m.Lease = message.Renew, 1, 500
		in(20, m, s)
	}
	x.want(x.ask(1, message.Message{Op: message.Renew, Request: 2, Lease: 500}), message.OK)
	x.Advance(100 * time.Millisecond)
	if again := x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK); again.Token != one.Token || x.Counter("died") != 0 {
		t.Errorf("its lock is %d, was %d; %d clients died", again.Token, one.Token, x.Counter("died"))
	}
	m := message.Message{Op: message.Hello, Incarnation: 1, Client: 1}
	m.Session = answers(t, x.Push("a", datagram(t, 1, 1000, &m)))[0].Session
	m.Op, m.Request, m.Lease = message.Renew, 1, 500
	if got := answers(t, x.Push("a", datagram(t, 1, 1000, &m)))[0]; got.Result != message.OK {
		t.Errorf("another client of the host is answered %v: a host in another VLAN has its places", got.Result)
	}
}
