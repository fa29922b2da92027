package store

import (
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// stranger asks a memory node for connections with messages of its own.
type stranger struct {
	t     testing.TB
	l     *lab
	nic   *rnic.NIC
	agent *cm.Agent
	peer  cm.Peer
}

func newStranger(t testing.TB, l *lab, n byte) *stranger {
	s := &stranger{t: t, l: l, nic: l.nic(n)}
	var err error
	if s.agent, err = agent(s.nic, uint64(n)); err != nil {
		t.Fatal(err)
	}
	ip, mac := addr(memoryNode)
	s.peer = cm.Peer{IP: ip, MAC: mac, Port: service}
	l.plug(n, s.nic, s)
	return s
}

func (s *stranger) Step(now clock.Time) bool { return s.agent.Step(now) }
func (s *stranger) Deadline() clock.Time     { return s.agent.Deadline() }

// asks asks for a connection, and returns the memory node's answer.
func (s *stranger) asks(private []byte) cm.Event {
	s.t.Helper()
	qp, err := s.nic.CreateQP(rnic.QPInit{PD: s.nic.AllocPD(), SendCQ: s.nic.CreateCQ(4), RecvCQ: s.nic.CreateCQ(4)})
	if err != nil {
		s.t.Fatal(err)
	}
	p := params(s.nic)
	p.QP, p.PrivateData = qp, private
	id, err := s.agent.Dial(s.l.clk.Now(), s.peer, p)
	if err != nil {
		s.t.Fatal(err)
	}
	var e cm.Event // events of earlier connections can come first
	if err := s.l.sim.Run(func() bool { e, _ = s.agent.Poll(); return e.ID == id }, time.Minute); err != nil {
		s.t.Fatal(err)
	}
	return e
}

func (s *stranger) parts(e cm.Event) {
	s.t.Helper()
	if err := e.ID.Disconnect(s.l.clk.Now()); err != nil {
		s.t.Fatal(err)
	}
	if err := s.l.sim.Run(func() bool { _, ok := s.agent.Poll(); return ok }, time.Minute); err != nil {
		s.t.Fatal(err)
	}
}

func helloOf(k *Kind, client uint64, session, of uint16) []byte {
	h := hello{Magic: magic, Client: client, Session: session, Of: of}
	copy(h.Store[:], k.Name)
	return pack(h)
}

// TestStranger: a request that is no client's is refused, and takes no client's place. Clients that connect
// and leave without a request take no place either.
func TestStranger(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			k := kindOf(t, name)
			spec.Clients = 2
			l := newLab(t, k, spec, 7)
			s := newStranger(t, l, 66)
			f := l.fleet(k, Work{Mix: ycsb.A, Seed: 1}, 2, 4)
			// The bridge is there: now the stranger asks before the clients do.
			clients := l.sim.Workers[2:4]
			l.sim.Workers = append(append([]host.Worker{}, l.sim.Workers[:2]...), l.sim.Workers[4:]...)
			old := pack(hello{Magic: magic + 1})
			for i, private := range [][]byte{nil, {1}, old, old[:3], helloOf(kindOf(t, "locks"), 100, 0, 0), helloOf(k, 101, 0, 0), helloOf(k, 102, 4, 4), helloOf(k, 103, 9, 4),
				helloOf(k, 104, 0, 0xFFFF), helloOf(k, 105, 0, 60_000), helloOf(k, 106, 0xFFFF, 0xFFFF)} {
				if e := s.asks(private); e.Kind != cm.Rejected || e.Reason != cm.ReasonConsumer || len(strings.TrimRight(string(e.PrivateData), "\x00")) < 20 {
					t.Errorf("%d: %v, reason %d: %q", i, e.Kind, e.Reason, e.PrivateData)
				}
			}
			if n := l.server.Stats().Clients; n != 0 {
				t.Errorf("%d clients have come", n)
			}
			for i := range uint64(10) {
				e := s.asks(helloOf(k, 1000+i, 0, 4))
				if e.Kind != cm.Established {
					t.Fatalf("%d: %v: %q", i, e.Kind, e.PrivateData)
				}
				s.parts(e)
			}
			l.sim.Workers = append(l.sim.Workers, clients...)
			f.Allow(100)
			if err := l.until(f, f.Connected); err != nil {
				t.Fatal(err)
			}
			f.Start()
			if err := l.until(f, func() bool { return f.Spent() && f.Idle() }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestOnePlace: a client that asks again and again for one session's connection has one connection, and the
// memory node no more queue pairs.
func TestOnePlace(t *testing.T) {
	k := kindOf(t, "rcuckoo")
	l := newLab(t, k, specs["rcuckoo"], 7)
	s := newStranger(t, l, 66)
	l.fleet(k, Work{}, 0, 1)
	made := 0
	for range 20 {
		if e := s.asks(helloOf(k, 1, 0, 1)); e.Kind == cm.Established {
			made++
		}
	}
	if n := l.server.Stats().Connections; n > 1 || made == 0 {
		t.Errorf("%d connections of one session, of %d made", n, made)
	}
}

// TestTooMany: a client that is refused because it wants too many sessions takes nothing from later clients.
func TestTooMany(t *testing.T) {
	for _, name := range []string{"fusee", "locks"} {
		k := kindOf(t, name)
		l := newLab(t, k, Spec{Keys: 4, Sessions: 20}, 7)
		s := newStranger(t, l, 66)
		l.fleet(k, Work{}, 0, 1)
		for i, of := range []uint16{21, 16, 5, 4} {
			e, want := s.asks(helloOf(k, uint64(i)+1, 0, of)), cm.Established
			if of%2 == 1 {
				want = cm.Rejected
			}
			if e.Kind != want {
				t.Errorf("%s: %d sessions: %v, want %v: %q", name, of, e.Kind, want, e.PrivateData)
			}
		}
	}
}

// FuzzHello: the memory node answers any request, and what it gives is bounded.
func FuzzHello(f *testing.F) {
	k := kindOf(f, "locks")
	f.Add(helloOf(k, 1, 0, 1), helloOf(k, 1, 1, 2))
	f.Add(helloOf(k, 1, 1, 2), helloOf(k, 1, 1, 2))
	f.Add([]byte{1}, helloOf(k, 2, 0, 0xFFFF))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		l := newLab(t, k, Spec{Keys: 1, Clients: 2, Sessions: 8}, 7)
		s := newStranger(t, l, 66)
		l.fleet(k, Work{}, 0, 1)
		for range 2 {
			for _, b := range [][]byte{first, second} {
				if e := s.asks(b); e.Kind != cm.Established && e.Kind != cm.Rejected {
					t.Fatalf("%+v", e)
				}
			}
		}
		if v, given := l.server.Stats(), l.server.store.(*locksStore).given; v.Clients > 2 || v.Connections > 2 || given > 8 || len(l.server.conns) != v.Connections {
			t.Fatalf("%+v, %d sessions", v, given)
		}
	})
}
