package bed

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/rcuckoo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Cuckoo is a load on RCuckoo's table, and what may go wrong meanwhile. A last client,
// which never dies, changes every key when the others are through: so it finds, and
// repairs, what the dead have left. The zero value of a field takes the default that is
// given with it.
type Cuckoo struct {
	Clients  int // 0 = 3
	Sessions int // of a client; 0 = 2
	Ops      int // of a session; 0 = 16
	Keys     int // half of them are there at first; 0 = 100
	// Layout is the table's; no Rows: 8, so that it is rather full.
	Layout rcuckoo.Layout
	// Kinds are how often operations of each kind are drawn; zero: 3, 4, 3, 1.
	Kinds  [4]int
	Search rcuckoo.Search
	Cache  int // of a session, in bytes; 0 = 64 KiB
	Torn   bool
	// Value is the size of values in extents; 0: they lie in entries. Keys are read and
	// updated only, then.
	Value     int
	FailAfter time.Duration // 0 = 20 ms, more than a queue pair needs to fail
	// Cut, if not nil, is told every request that changes something, by its number in the
	// run and what it is for, and says whether the session dies there for good.
	Cut     func(n int, p rcuckoo.Phase) bool
	MTU     int // 0 = 256
	Profile rnic.Profile
	Box     *Box
	Faults  fault.Mix
}

// CuckooResult is what a run came to.
type CuckooResult struct {
	rcuckoo.Stats
	Outcome
	Asked int // how often Cut was asked
	Died  int // sessions that were cut
	Keys  *history.Log[KeyOp, uint64]
}

func (t Cuckoo) defaults() Cuckoo {
	or(&t.Clients, 3)
	or(&t.Sessions, 2)
	or(&t.Ops, 16)
	or(&t.Keys, 100)
	or(&t.MTU, 256)
	or(&t.Layout.Rows, 8)
	or(&t.Layout.RowsPerLock, 2)
	or(&t.Layout.Locks, 64)
	or(&t.Layout.Regions, 2)
	if t.Kinds == ([4]int{}) {
		t.Kinds = [4]int{3, 4, 3, 1}
	}
	if t.Value > 0 {
		t.Kinds, t.Layout.Wide, t.Layout.Extents = [4]int{1, 0, 1, 0}, true, 1<<20
	}
	t.FailAfter = cmp.Or(t.FailAfter, 20*time.Millisecond)
	t.Faults.Links = links(t.Faults.Links, t.Clients)
	return t
}

// Run does the load under a schedule and checks everything: the table at rest, with no
// lock held, the histories of all keys with what the table says at the end, and the box's
// books.
func (t Cuckoo) Run(seed uint64, s fault.Schedule) (*CuckooResult, error) {
	t = t.defaults()
	l, err := t.load(seed)
	if err != nil {
		return nil, err
	}
	return l.res, l.res.run(Config{Clients: t.Clients + 1, Sessions: t.Sessions, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed}, l)
}

// cuckooLoad is a Cuckoo's part of a bed.
type cuckooLoad struct {
	keyLoad
	Cuckoo
	table *rcuckoo.Table
	grant rcuckoo.Grant
	all   []*rcuckoo.Client // of all lives
	res   *CuckooResult
}

func (t Cuckoo) load(seed uint64) (*cuckooLoad, error) {
	res := &CuckooResult{Keys: new(history.Log[KeyOp, uint64])}
	size := cmp.Or(t.Value, (&t.Layout).InlineSize())
	l := &cuckooLoad{Cuckoo: t, res: res, keyLoad: keyLoad{seed: seed, clients: t.Clients, sessions: t.Sessions, ops: t.Ops, keys: t.Keys, size: size, kinds: t.Kinds,
		lives: make([]*keyLife, t.Clients+1), log: res.Keys}}
	var err error
	if l.table, err = rcuckoo.NewTable(t.Layout); err != nil {
		return nil, err
	}
	if t.Value > 0 {
		if _, err = l.table.FillExtents(1, t.Keys, t.Value, func(k uint32) []byte { return l.value(uint64(k)) }); err != nil {
			return nil, err
		}
	} else {
		for k := 2; k <= t.Keys; k += 2 {
			if _, err = l.table.Insert(uint32(k), l.value(uint64(k))); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

func (l *cuckooLoad) serve(pd *rnic.PD) (err error) {
	l.grant, err = l.table.Serve(pd)
	return err
}

func (l *cuckooLoad) app(b *Bed, c *Client) (host.App, error) {
	life := l.live(b, c)
	chunk := rcuckoo.Chunk{}
	if l.Value > 0 { // of a life before, somebody may read
		var err error
		if chunk, err = l.table.Chunk(1 << 13); err != nil {
			return nil, err
		}
	}
	x, err := rcuckoo.NewClient(rcuckoo.Config{
		Layout: l.Layout, Sessions: l.Sessions, CQ: c.CQ, Chunk: chunk, Search: l.Search, Torn: l.Torn, FailAfter: l.FailAfter, Seed: l.seed,
		Cache: l.Cache, Tries: 100, Outside: l.Value > 0,
		Dial: func(_ clock.Time, session int) (*rnic.QP, rcuckoo.Grant, error) {
			qp, err := b.Dial(c, c.Number*l.Sessions+session)
			return qp, l.grant, err
		},
		Next: func(now clock.Time, session int) (rcuckoo.Op, bool) {
			if c.Number == l.Clients {
				if session > 0 || !l.through() || l.swept == l.Keys {
					return rcuckoo.Op{}, false
				}
				l.swept++
				return rcuckoo.Op{Kind: rcuckoo.Update, Key: uint64(l.swept), Value: life.begin(now, session, uint64(l.swept), keyUpdate)}, true
			}
			key, k, ok := life.draw(session)
			if !ok {
				return rcuckoo.Op{}, false
			}
			return rcuckoo.Op{Kind: rcuckoo.Kind(k), Key: key, Value: life.begin(now, session, key, k)}, true
		},
		Cut: func(_ clock.Time, session int, p rcuckoo.Phase, _ int) bool {
			l.res.Asked++
			if l.Cut == nil || c.Number == l.Clients || !l.Cut(l.res.Asked, p) {
				return false
			}
			life.dead[session] = true
			l.res.Died++
			return true
		},
		Done: func(r *rcuckoo.Result) {
			life.busy[r.Session] = false
			switch {
			case r.Err == nil:
				l.log.Return(life.ids[r.Session], r.End, l.number(r.Got))
			case errors.Is(r.Err, rcuckoo.ErrFull):
				l.log.Forget(life.ids[r.Session])
			case !errors.Is(r.Err, rcuckoo.ErrUnknown) && !errors.Is(r.Err, rcuckoo.ErrDied):
				l.err = errors.Join(l.err, fmt.Errorf("client %d, session %d, %v %d: %w", c.Number, r.Session, life.kinds[r.Session], r.Key, r.Err))
			}
		},
	})
	l.all = append(l.all, x)
	return x, err
}

func (l *cuckooLoad) done(*Bed) bool {
	return l.through() && l.swept == l.Keys && !l.lives[l.Clients].busy[0]
}

func (l *cuckooLoad) check(b *Bed, err error) error {
	for _, c := range l.all {
		l.res.Add(c.Stats())
		err = errors.Join(err, c.Err())
	}
	if err == nil {
		var values map[uint32][]byte
		// Locks that no key needs may be held by the dead.
		values, err = l.table.Check(l.res.Died > 0 || l.deaths() > 0 || l.res.Broken > 0)
		l.close(b.Clock.Now(), func(k uint64) []byte { return values[uint32(k)] })
	}
	if err == nil && l.res.Robbed > 0 {
		err = fmt.Errorf("%d locks or leases of the living were taken away", l.res.Robbed)
	}
	return errors.Join(err, l.err, history.Check(l.Cuckoo.model(), l.res.Keys, 0))
}

func (l *cuckooLoad) deaths() (n int) {
	for i := range l.Clients {
		n += l.b.Deaths(i)
	}
	return n
}

func (t *Cuckoo) model() history.Model[KeyOp, uint64] {
	if t.Value > 0 {
		return keyOps(func(k uint64) uint64 { return k }, true)
	}
	return keyOps(half, false)
}

// Try is Trial.Try with RCuckoo's table.
func (t Cuckoo) Try(tb testing.TB, seed uint64) (_ *CuckooResult, ok bool) {
	tb.Helper()
	t = t.defaults()
	res, err := attempt(tb, "cuckoo", seed, t.Faults, t.Run, func(res *CuckooResult, err error) { show(tb, t.model(), res.Keys, err) })
	return res, err == nil
}
