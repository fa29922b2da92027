package onesided

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// looker is a session whose posts always succeed at once. It notes when it posts.
type looker struct {
	Session
	at    []clock.Time
	posts int
	most  int // posts
	done  int // calls of Done
}

func (l *looker) post(now clock.Time) {
	l.at, l.posts = append(l.at, now), l.posts+1
	l.ended = true
}

func (l *looker) Next(now clock.Time) bool {
	if l.posts >= l.most {
		return false
	}
	l.Busy = true
	l.post(now)
	return true
}

func (l *looker) Wake(clock.Time) {}

func (l *looker) Done(now clock.Time) {
	l.done++
	if l.posts%2 == 1 {
		l.post(now)
		return
	}
	l.Busy = false
}

func (l *looker) Lost(clock.Time, int) {}

// A thread works for one session at a time. It is woken late only when all its sessions sleep: with one or three
// sessions of 3 us of work, and not with six, of which one always has slept for 10 us.
func TestFibers(t *testing.T) {
	const us = time.Microsecond
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		sessions int
		period   time.Duration // between two posts of a session
	}{{1, 63 * us}, {3, 63 * us}, {6, 18 * us}} {
		l := &Loop[*looker]{CQ: nic.CreateCQ(1), Fibers: &Fibers{Nap: 10 * us, Late: 50 * us, Work: func(int) time.Duration { return 3 * us }}}
		for i := range x.sessions {
			l.Sessions = append(l.Sessions, &looker{Session: NewSession(i, 1, 1), most: 4})
		}
		now := clock.Time(0)
		for n := 0; l.Sessions[0].posts < 4 && n < 1000; n++ {
			l.Step(now)
			if at := l.Deadline(); at <= now || at == clock.Never {
				t.Fatalf("%d sessions: the next work is at %v after %v", x.sessions, at, now)
			}
			now = l.Deadline()
		}
		for _, s := range l.Sessions {
			for i := 1; i < len(s.at); i++ {
				if d := s.at[i].Sub(s.at[i-1]); d != x.period {
					t.Errorf("%d sessions, number %d: %v between posts %d and %d, not %v", x.sessions, s.Index, d, i-1, i, x.period)
				}
			}
		}
	}
}

// testLoop makes a loop of fibers with 3 us of work, whose sessions have so many posts.
func testLoop(t *testing.T, most ...int) *Loop[*looker] {
	t.Helper()
	const us = time.Microsecond
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	l := &Loop[*looker]{CQ: nic.CreateCQ(1), Fibers: &Fibers{Nap: 10 * us, Late: 50 * us, Work: func(int) time.Duration { return 3 * us }}}
	for i, n := range most {
		l.Sessions = append(l.Sessions, &looker{Session: NewSession(i, 1, 1), most: n})
	}
	return l
}

// The success of a post that was lost before the session looked is not that of the post in its place.
func TestFibersLost(t *testing.T) {
	for _, again := range []func(s *Session){(*Session).Drop, func(s *Session) { s.Post(nil) }} {
		l := testLoop(t, 4)
		s := l.Sessions[0]
		l.Step(0)
		l.Step(l.Deadline())
		if s.posts != 1 || !s.ended {
			t.Fatalf("%+v", s)
		}
		again(&s.Session)
		for range 10 {
			l.Step(l.Deadline())
		}
		if s.done != 0 {
			t.Errorf("Done was called %d times for a post without an answer", s.done)
		}
	}
}

// A session without operations costs the thread work once, when it is first asked.
func TestFibersIdle(t *testing.T) {
	l := testLoop(t, 4, 0)
	work := [2]int{}
	l.Fibers.Work = func(i int) time.Duration {
		work[i]++
		return 3 * time.Microsecond
	}
	for range 100 {
		l.Step(l.Deadline())
	}
	if work != [2]int{5, 1} || l.Sessions[0].posts != 4 {
		t.Errorf("the thread worked %v times for two sessions, of which one had %d posts, and the other none", work, l.Sessions[0].posts)
	}
}
