package ctl

import (
	"errors"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/nf/clock"
)

const born = clock.Time(1_795_000_000e9)

// elected are the options of a leader whose key was created at a store's revision.
func elected(rev int64, held func() error) Options {
	o := options()
	o.Election, o.Held = ElectionOf(born, rev), held
	return o
}

func always() error { return nil }

// TestElectionOf: later leaders come first, and all of them before those that take their ids from the time, or from people.
func TestElectionOf(t *testing.T) {
	order := []ElectionID{{0, 1}, ElectionAt(born), ElectionAt(clock.Never), ElectionOf(born, 1), ElectionOf(born, 1).next(), ElectionOf(born, 2), ElectionOf(born, 1<<47), ElectionOf(born+1e9, 1), {1 << 63, 1}}
	for i, e := range order[1:] {
		if !order[i].Less(e) {
			t.Errorf("%v is not below %v", order[i], e)
		}
	}
	if e := ElectionOf(born, 7); !e.sameTerm(e.next()) || e.sameTerm(ElectionOf(born, 8)) || e.sameTerm(ElectionOf(born+1e9, 7)) {
		t.Error("terms are not told apart")
	}
}

// TestNothingIsWrittenWithoutALease: what a session sends is asked for first.
func TestNothingIsWrittenWithoutALease(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	var over atomic.Bool
	gone := errors.New("the lease is over")
	d := mustIntent(t, at, "ipv4_router", routerEntities)
	s := open(t, &Dialer{}, at, 1, elected(7, func() error {
		if over.Load() {
			return gone
		}
		return nil
	}))
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	write := func() error {
		return s.Write(within(t), p4v1.WriteRequest_CONTINUE_ON_ERROR, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: d.Entities[0]})
	}
	if err := s.Load(within(t), d.Pipeline); err != nil {
		t.Fatal(err)
	}
	over.Store(true)
	for what, err := range map[string]error{
		"a write": write(), "a program": s.Load(within(t), d.Pipeline), "a packet": s.Send(&p4v1.StreamMessageRequest{}),
	} {
		if !errors.Is(err, gone) || !errors.Is(err, ErrNotPrimary) {
			t.Errorf("%s after the lease: %v", what, err)
		}
	}
	if f.Writes != 0 {
		t.Errorf("%d writes came", f.Writes)
	}
}

// TestFormerLeaderIsFenced: one that was stopped between its look at the lease and its write, and knows nothing of the next leader, is
// refused by the device; and it does not come back when that one leaves.
func TestFormerLeaderIsFenced(t *testing.T) {
	at := ctltest.Engine(t)
	var da, db Dialer
	a := open(t, &da, at, 1, elected(7, always))
	if err := a.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	b := open(t, &db, at, 1, elected(8, always))
	if err := b.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		c, _, err := a.client(false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write(within(t), &p4v1.WriteRequest{DeviceId: 1, ElectionId: ElectionOf(born, 7).proto()})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("the former leader's write: %v", err)
		}
	}
	refused()
	b.Close()
	until(t, a, "told that nobody is primary", func(s Status) bool { return s.State == Backup && s.Leader == ElectionID{} })
	refused()
	// One that is elected by the time may take the place meanwhile, and has it only until the next leader comes.
	c := open(t, &Dialer{}, at, 1, options())
	until(t, c, "primary", isState(Primary))
	if st := a.Status(); st.Election != ElectionOf(born, 7) {
		t.Errorf("the former leader has claimed %v", st.Election)
	}
	refused()
	next := open(t, &Dialer{}, at, 1, elected(9, always))
	until(t, next, "primary", isState(Primary))
	until(t, c, "backup", isState(Backup))
}

// TestLeaderKeepsItsPlace: while its stream is lost another controller takes the place, with the next id; the leader has it back.
func TestLeaderKeepsItsPlace(t *testing.T) {
	at := ctltest.Engine(t)
	var d Dialer
	a := open(t, &d, at, 1, elected(7, always))
	if err := a.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	c := open(t, &Dialer{}, at, 1, options())
	until(t, c, "backup", isState(Backup))
	a.Close()
	until(t, c, "primary", isState(Primary))
	if e := c.Status().Election; !e.sameTerm(ElectionOf(born, 7)) {
		t.Fatalf("the other one has claimed %v: this test is about nothing", e)
	}
	again := open(t, &Dialer{}, at, 1, elected(7, always))
	until(t, again, "primary", isState(Primary))
	until(t, c, "backup", isState(Backup))
}
