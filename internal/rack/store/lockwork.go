package store

import (
	"errors"
	"fmt"

	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Locks and counters.

var locksKind = Kind{
	Name: "locks", Summary: "locks and counters on shared words, without a data structure",
	Works: works(),
	CheckSpec: func(s *Spec) error {
		if s.Keys > 1<<16 {
			return fmt.Errorf("keys %d: want 1 to %d words", s.Keys, 1<<16)
		}
		if s.Value != 0 {
			return fmt.Errorf("value %d: locks have no values", s.Value)
		}
		return nil
	},
	Memory:      func(s Spec) int64 { l := locksLayout(s); return l.Memory() },
	EachSession: true, New: newLocks, Client: locksClient,
}

func works() (names []string) {
	for _, w := range locks.Works() {
		names = append(names, w.String())
	}
	return names
}

// Bytes of what a lock protects, and of a session's own memory.
const (
	lockBlock   = 64
	lockScratch = 4096
)

type locksStore struct {
	memory *locks.Memory
	grant  locks.Grant
	work   locks.Work
	given  int // sessions
}

func workOf(s Spec) locks.Work {
	for _, w := range locks.Works() {
		if w.String() == s.Work {
			return w
		}
	}
	return locks.Spin
}

func locksLayout(s Spec) locks.Layout {
	l := locks.Layout{Words: s.Keys, Block: lockBlock, Sessions: s.Sessions}
	if workOf(s) == locks.Open {
		l.Scratch = lockScratch
	}
	return l
}

func newLocks(s Spec) (Store, error) {
	m, err := locks.NewMemory(locksLayout(s))
	return &locksStore{memory: m, work: workOf(s)}, err
}

func (t *locksStore) Serve(pd *rnic.PD) (err error) {
	t.grant, err = t.memory.Serve(pd)
	return err
}

// locksAnnounced is what a client is told when it connects.
type locksAnnounced struct {
	Words, Block, Scratch, Sessions, First uint32
	Work, Life                             uint8
	Shared, Blocks, Private                region
}

func (t *locksStore) Join(sessions int) ([]byte, error) {
	l, g := &t.memory.Layout, &t.grant
	if t.given+sessions > l.Sessions {
		return nil, fmt.Errorf("locks: no room for %d sessions: %d of %d are given: start the memory node with more (--most-sessions)", sessions, t.given, l.Sessions)
	}
	first := t.given
	t.given += sessions
	return pack(locksAnnounced{uint32(l.Words), uint32(l.Block), uint32(l.Scratch), uint32(l.Sessions), uint32(first), uint8(t.work), 0,
		g.Words, g.Blocks, g.Scratch}), nil
}

// Again gives the sessions another life number. They take locks that they held before from themselves.
func (t *locksStore) Again(announced []byte, _ int) ([]byte, error) {
	var a locksAnnounced
	if err := unpack(announced, &a); err != nil {
		return nil, err
	}
	if a.Life++; a.Life == 0 {
		return nil, errors.New("locks: clients' sessions have no life left: start the memory node anew")
	}
	return pack(a), nil
}

func (t *locksStore) Shared() []Span { return []Span{{t.grant.Words.VA, uint64(8 * t.memory.Words)}} }

func (t *locksStore) Walk(died bool) (Contents, error) {
	held := Contents{}
	for _, a := range t.memory.Addrs() {
		w := t.memory.Word(a)
		held[a] = w
		if w != 0 && !died && (t.work == locks.Spin || t.work == locks.Table) {
			return nil, fmt.Errorf("lock word %#x is still held as %#x", a, w)
		}
	}
	return held, nil
}

type locksLibrary struct{ *locks.Client }

func (l locksLibrary) Idle() bool { return l.Quiet() }

func (l locksLibrary) Facts() []Fact {
	s := l.Stats()
	return []Fact{{"operations", s.Done}, {"requests", s.Requests}, {"cas-failed", s.Failed}, {"gave-up", s.GaveUp}, {"connections-broken", s.Broken}}
}

func locksClient(c ClientSpec) (Library, error) {
	var a locksAnnounced
	if err := unpack(c.Announced, &a); err != nil {
		return nil, err
	}
	grant := locks.Grant{Words: a.Shared, Blocks: a.Blocks, Scratch: a.Private}
	x, err := locks.New(locks.Config{
		Layout: locks.Layout{Words: int(a.Words), Block: int(a.Block), Scratch: int(a.Scratch), Sessions: int(a.Sessions)},
		Work:   locks.Work(a.Work), First: int(a.First), Life: int(a.Life), Own: c.Sessions, Ops: 1 << 62, Seed: c.Seed, CQ: c.CQ, ReleaseByCAS: true,
		WordLog: &c.Log.Words, LockLog: &c.Log.Locks,
		Dial: func(now clock.Time, session int) (*rnic.QP, locks.Grant, error) {
			qp, err := c.Dial(now, session-int(a.First))
			return qp, grant, err
		},
		Dead: func(session, life int) bool {
			i := session - int(a.First)
			return i >= 0 && i < c.Sessions && life < int(a.Life)
		},
		More: func(now clock.Time, session int) bool {
			_, ok := c.Next(now, session-int(a.First))
			return ok
		},
		Finished: func(now clock.Time, session int, start clock.Time, failed int) {
			c.Done(now, &Done{Session: session - int(a.First), Start: start, Write: true, First: failed == 0})
		},
	})
	return locksLibrary{x}, err
}
