package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	Took   time.Duration
	Struck int
	Asked  int // how often Cut was asked
	Died   int // sessions that were cut
	Keys   *history.Log[CuckooOp, uint64]
}

// CuckooOp is an operation in the history; the answer is the value that was there before,
// 0 for none.
type CuckooOp struct {
	Key   uint64
	Kind  rcuckoo.Kind
	Value uint64
}

// cuckooKeys is the model of a table.
func cuckooKeys(initial func(uint64) uint64, blind bool) history.Model[CuckooOp, uint64] {
	next := func(v uint64, o CuckooOp) uint64 {
		switch {
		case o.Kind == rcuckoo.Insert && v == 0, o.Kind == rcuckoo.Update && v != 0:
			return o.Value
		case o.Kind == rcuckoo.Delete:
			return 0
		}
		return v
	}
	return history.Model[CuckooOp, uint64]{
		Name:   "key",
		Object: func(o CuckooOp) uint64 { return o.Key },
		Init:   initial,
		Step: func(v uint64, o CuckooOp, out uint64, told bool) (uint64, bool) {
			return next(v, o), !told || blind && o.Kind != rcuckoo.Read || out == v
		},
		Needs: func(o CuckooOp, out uint64) (uint64, bool) { return out, blind && o.Kind != rcuckoo.Read },
		Makes: func(o CuckooOp) (uint64, bool) { return o.Value, true },
		Inert: func(o CuckooOp) bool { return o.Kind == rcuckoo.Read },
		Describe: func(o CuckooOp, out uint64, told bool) string {
			s := fmt.Sprintf("%v %#x", o.Kind, o.Value)
			if told {
				return fmt.Sprintf("%s, was %#x", s, out)
			}
			return s + ", outcome unknown"
		},
		State: func(v uint64) string { return fmt.Sprintf("%#x", v) },
	}
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
	if t.FailAfter == 0 {
		t.FailAfter = 20 * time.Millisecond
	}
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
	b, err := New(Config{
		Clients: t.Clients + 1, Sessions: t.Sessions, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed,
		Serve: l.serve, App: l.app,
	})
	if err != nil {
		return nil, err
	}
	err = drive(b, l)
	l.res.Took, l.res.Struck = b.Clock.Now().Sub(b.start), b.Struck()
	err = l.check(b, err)
	return l.res, errors.Join(err, b.Close())
}

// cuckooLoad is a Cuckoo's part of a bed.
type cuckooLoad struct {
	Cuckoo
	seed   uint64
	table  *rcuckoo.Table
	grant  rcuckoo.Grant
	all    []*rcuckoo.Client // of all lives
	lives  []*cuckooLife     // by client, that of now
	swept  int               // keys that the last client has changed
	sweeps bool
	b      *Bed
	err    error
	res    *CuckooResult
}

// cuckooLife is one life of a client.
type cuckooLife struct {
	ops  []int // by session: that it has begun
	dead []bool
	busy []bool
}

func (t Cuckoo) load(seed uint64) (*cuckooLoad, error) {
	l := &cuckooLoad{Cuckoo: t, seed: seed, lives: make([]*cuckooLife, t.Clients+1), res: &CuckooResult{Keys: new(history.Log[CuckooOp, uint64])}}
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

// value is the bytes of a value with a number, of the size that the load has.
func (l *cuckooLoad) value(n uint64) []byte {
	size := l.Value
	if size == 0 {
		size = 4
		if l.Layout.Wide {
			size = 8
		}
	}
	b := make([]byte, max(size, 8))
	binary.LittleEndian.PutUint64(b, n)
	for i := 8; i < len(b); i++ {
		b[i] = byte(n) ^ byte(i)
	}
	return b[:size]
}

// number is value's inverse.
func (l *cuckooLoad) number(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	n := binary.LittleEndian.Uint64(w[:])
	if len(b) > 0 && !slices.Equal(b, l.value(n)) {
		l.err = errors.Join(l.err, fmt.Errorf("value % x is not one that was written", b))
	}
	return n
}

func (l *cuckooLoad) app(b *Bed, c *Client) (host.App, error) {
	l.b = b
	life := &cuckooLife{make([]int, l.Sessions), make([]bool, l.Sessions), make([]bool, l.Sessions)}
	l.lives[c.Number] = life
	rng := rand.New(rand.NewPCG(l.seed, uint64(c.Number<<8|c.Life)))
	ids, kinds := make([]int, l.Sessions), make([]rcuckoo.Kind, l.Sessions)
	numbers := make([]int, l.Sessions)
	for i := range numbers {
		numbers[i] = l.res.Keys.NewClient()
	}
	begin := func(now clock.Time, session int, key uint64, k rcuckoo.Kind) rcuckoo.Op {
		life.ops[session]++
		// Numbers below Keys are those of the loaded values.
		v := uint64(c.Number+1)<<24 | uint64(c.Life)<<20 | uint64(session)<<16 | uint64(life.ops[session])
		h := CuckooOp{Key: key, Kind: k, Value: v}
		if k == rcuckoo.Read || k == rcuckoo.Delete {
			h.Value = 0
		}
		ids[session], kinds[session], life.busy[session] = l.res.Keys.Call(numbers[session], now, h), k, true
		return rcuckoo.Op{Kind: k, Key: key, Value: l.value(v)}
	}
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
				return begin(now, session, uint64(l.swept), rcuckoo.Update), true
			}
			if life.ops[session] == l.Ops || life.dead[session] {
				return rcuckoo.Op{}, false
			}
			n, k := rng.IntN(l.Kinds[0]+l.Kinds[1]+l.Kinds[2]+l.Kinds[3]), rcuckoo.Read
			for ; n >= l.Kinds[k]; k++ {
				n -= l.Kinds[k]
			}
			return begin(now, session, 1+rng.Uint64N(uint64(l.Keys)), k), true
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
				l.res.Keys.Return(ids[r.Session], r.End, l.number(r.Got))
			case errors.Is(r.Err, rcuckoo.ErrFull):
				l.res.Keys.Forget(ids[r.Session])
			case !errors.Is(r.Err, rcuckoo.ErrUnknown) && !errors.Is(r.Err, rcuckoo.ErrDied):
				l.err = errors.Join(l.err, fmt.Errorf("client %d, session %d, %v %d: %w", c.Number, r.Session, kinds[r.Session], r.Key, r.Err))
			}
		},
	})
	l.all = append(l.all, x)
	return x, err
}

// through reports whether all clients but the last have nothing left to do.
func (l *cuckooLoad) through() bool {
	if l.b.More() {
		return false
	}
	for i, x := range l.lives[:l.Clients] {
		if l.b.Down(i) {
			continue
		}
		for s := range x.ops {
			if x.busy[s] || x.ops[s] < l.Ops && !x.dead[s] {
				return false
			}
		}
	}
	return true
}

func (l *cuckooLoad) wrong() error { return l.err }

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
		now, reader := b.Clock.Now(), l.res.Keys.NewClient()
		for k := 1; k <= l.Keys; k++ {
			l.res.Keys.Return(l.res.Keys.Call(reader, now, CuckooOp{Key: uint64(k)}), now, l.number(values[uint32(k)]))
		}
	}
	if err == nil && l.res.Robbed > 0 {
		err = fmt.Errorf("%d locks or leases of the living were taken away", l.res.Robbed)
	}
	return errors.Join(err, l.err, history.Check(l.model(), l.res.Keys, 0))
}

func (l *cuckooLoad) deaths() (n int) {
	for i := range l.Clients {
		n += l.b.Deaths(i)
	}
	return n
}

func (l *cuckooLoad) model() history.Model[CuckooOp, uint64] {
	if l.Value > 0 {
		return cuckooKeys(func(k uint64) uint64 { return k }, true)
	}
	return cuckooKeys(func(k uint64) uint64 { return k * (1 - k&1) }, false)
}

// Try is Trial.Try with RCuckoo's table.
func (t Cuckoo) Try(tb testing.TB, seed uint64) (_ *CuckooResult, ok bool) {
	tb.Helper()
	t = t.defaults()
	res, few, err := attempt(seed, t.Faults, t.Run)
	if failed(tb, "cuckoo", seed, few, err) && res != nil {
		l := &cuckooLoad{Cuckoo: t}
		show(tb, l.model(), res.Keys, err)
	}
	return res, err == nil
}
