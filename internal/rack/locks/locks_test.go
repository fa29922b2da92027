package locks

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

var layout = Layout{Words: 2, Block: 32, Scratch: 512, Sessions: 1}

// near is a client whose requests the test itself answers. Its queue pair is connected to no other.
type near struct {
	t    *testing.T
	c    *Client
	dial error
}

func newNear(t *testing.T, change func(*Config)) *near {
	t.Helper()
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	x := &near{t: t}
	pd, cq := nic.AllocPD(), nic.CreateCQ(64)
	c := Config{
		Layout: layout, Own: 1, Ops: 1, CQ: cq,
		WordLog: new(history.Log[history.Word, uint64]), LockLog: new(history.Log[history.Lock, struct{}]),
		Dial: func(clock.Time, int) (*rnic.QP, Grant, error) {
			if x.dial != nil {
				return nil, Grant{}, x.dial
			}
			qp, err := nic.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq})
			if err != nil {
				t.Fatal(err)
			}
			k := rnic.DefaultConn()
			k.RemoteIP = netip.AddrFrom4([4]byte{10, 0, 0, 2})
			return qp, Grant{}, qp.Connect(k)
		},
	}
	change(&c)
	if x.c, err = New(c); err != nil {
		t.Fatal(err)
	}
	return x
}

// answer completes the oldest request with a value for its buffer.
func (x *near) answer(now clock.Time, fill func(buf []byte)) {
	s := x.c.sessions[0]
	fill(s.reqs[0].buf)
	s.complete(now, &rnic.WC{Status: rnic.Success})
}

func word(v uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b, v) }
}

func TestRefuses(t *testing.T) {
	for _, l := range []Layout{{}, {Words: 1, Block: 8, Sessions: 1}, {Words: 1, Block: 20, Sessions: 1}, {Words: 1, Block: 16}} {
		if _, err := NewMemory(l); err == nil {
			t.Errorf("%+v: no error", l)
		}
	}
	good := newNear(t, func(*Config) {}).c.cfg
	for i, change := range []func(*Config){
		func(c *Config) { c.CQ = nil }, func(c *Config) { c.Dial = nil }, func(c *Config) { c.WordLog = nil }, func(c *Config) { c.LockLog = nil },
		func(c *Config) { c.Own = 2 }, func(c *Config) { c.Own = 0 }, func(c *Config) { c.First = -1 }, func(c *Config) { c.Work = numWorks }, func(c *Config) { c.Ops = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("change %d: no error", i)
		}
	}
}

func TestDialsAgain(t *testing.T) {
	x := newNear(t, func(*Config) {})
	x.dial = rnic.ErrState
	x.c.Step(1000)
	at := clock.Time(1000).Add(redialAfter)
	if x.c.Deadline() != at || x.c.Done() {
		t.Errorf("dials at %d", x.c.Deadline())
	}
	x.dial = nil
	if x.c.Step(at - 1); x.c.sessions[0].qp != nil {
		t.Error("too early")
	}
	if x.c.Step(at); x.c.sessions[0].qp == nil || x.c.Deadline() != clock.Never {
		t.Error("did not dial")
	}
}

// A holder that reads back another mark than its own ends with an error.
func TestSectionFindsOthers(t *testing.T) {
	for _, c := range []struct {
		name, why  string
		look, back func(mark uint64, b []byte)
	}{
		{"alone", "", func(uint64, []byte) {}, mark},
		{"somebody is at it", "as if somebody", func(_ uint64, b []byte) { b[0] = 1 }, mark},
		{"somebody at the head", "somebody else", func(uint64, []byte) {}, func(m uint64, b []byte) { mark(m, b); b[2]++ }},
		{"somebody at the tail", "somebody else", func(uint64, []byte) {}, func(m uint64, b []byte) { mark(m, b); b[31]++ }},
		{"somebody at both", "somebody else", func(uint64, []byte) {}, func(m uint64, b []byte) { mark(m+1, b) }},
	} {
		x := newNear(t, func(*Config) {})
		x.c.Step(1)
		s := x.c.sessions[0]
		owner := s.work.(*spin).x.owner
		if session, life := OwnerOf(owner); session != 0 || life != 0 {
			t.Fatalf("mark of session %d, life %d", session, life)
		}
		x.answer(2, word(0))
		x.answer(3, func(b []byte) { c.look(owner, b) })
		x.answer(4, func([]byte) {})
		x.answer(5, func([]byte) {})
		x.answer(6, func(b []byte) { c.back(owner, b) })
		x.answer(7, word(0))
		if err := x.c.Err(); (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !x.c.Done() || x.c.Stats().Done != 1 {
			t.Errorf("%s: %+v", c.name, x.c.Stats())
		}
	}
}

func mark(m uint64, b []byte) {
	binary.LittleEndian.PutUint64(b, m)
	binary.LittleEndian.PutUint64(b[len(b)-8:], m)
}

// A session that lost its queue pair finds out whether it has the lock.
func TestRecovers(t *testing.T) {
	broken := func(x *near, now clock.Time) {
		x.c.sessions[0].complete(now, &rnic.WC{Status: rnic.RetryExceededError})
		x.c.Step(now)
		if p := x.c.sessions[0].reqs; len(p) != 1 || p[0].step != spinAsk {
			x.t.Fatalf("%+v", p)
		}
	}
	for _, c := range []struct {
		name  string
		steps int  // steps that are answered before the queue pair breaks
		mine  bool // the lock names the session then
		next  int  // the step that follows
		wrong bool
	}{
		{"taken", 0, true, sectionEnter, false},
		{"not taken", 0, false, spinTake, false},
		{"held", 2, true, sectionEnter, false},
		{"held by another", 2, false, -1, true},
		{"not released", 5, true, spinRelease, false},
		{"released", 5, false, -1, false},
	} {
		x := newNear(t, func(*Config) {})
		x.c.Step(1)
		s := x.c.sessions[0]
		owner := s.work.(*spin).x.owner
		for i := range c.steps {
			x.answer(2, func(b []byte) {
				if i == 4 {
					mark(owner, b)
				}
			})
		}
		broken(x, 3)
		holder := uint64(0)
		if c.mine {
			holder = owner
		}
		x.answer(4, word(holder))
		next := -1
		if len(s.reqs) > 0 {
			next = s.reqs[0].step
		}
		if next != c.next || (x.c.Err() != nil) != c.wrong || x.c.Stats().Broken != 1 {
			t.Errorf("%s: goes on with step %d; %v", c.name, next, x.c.Err())
		}
	}
}

// A session takes a lock from a dead session, and from no other.
func TestSteals(t *testing.T) {
	const other = 1<<40 | 3<<32 | 9
	for _, dead := range []bool{false, true} {
		x := newNear(t, func(c *Config) {
			c.Dead = func(session, life int) bool { return dead && session == 0 && life == 3 }
		})
		x.c.Step(1)
		s := x.c.sessions[0]
		x.answer(2, word(other))
		if got := s.reqs[0].word.Compare == other; got != dead {
			t.Errorf("dead %v: expects %#x", dead, s.reqs[0].word.Compare)
		}
		x.answer(3, word(s.reqs[0].word.Compare))
		if n := x.c.Stats().Stolen; (n == 1) != dead {
			t.Errorf("dead %v: %d stolen", dead, n)
		}
	}
	x := newNear(t, func(*Config) {})
	x.c.Step(1)
	x.answer(2, word(77<<40))
	if err := x.c.Err(); err == nil || !strings.Contains(err.Error(), "nobody's mark") {
		t.Error(err)
	}
}

func TestGivesUp(t *testing.T) {
	x := newNear(t, func(c *Config) { c.Tries = 3 })
	x.c.Step(1)
	for range 3 {
		x.answer(2, word(1<<40))
	}
	if s := x.c.Stats(); !x.c.Done() || s.GaveUp != 1 || s.Failed != 3 || s.Done != 0 {
		t.Errorf("%+v", s)
	}
}
