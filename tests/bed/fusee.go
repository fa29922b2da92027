package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Fusee is a load on FUSEE's store, and what may go wrong meanwhile. All memory nodes are
// the bed's server: each has memory, and queue pairs, of its own. A last client, which never
// dies, recovers all who have died when the others are through, and then changes every key.
// The zero value of a field takes the default that is given with it.
type Fusee struct {
	Clients  int // 0 = 3
	Sessions int // of a client; 0 = 2
	Ops      int // of a session; 0 = 16
	Keys     int // half of them are there at first; 0 = 24
	// Layout is the store's; zero: 3 nodes, 3 replicas, a single small subtable.
	Layout fusee.Layout
	// Kinds are how often operations of each kind are drawn; zero: 3, 4, 3, 2.
	Kinds     [4]int
	Cache     int // of a session, in keys; 0 = 1024
	Value     int // size of values; 0 = 8
	FailAfter time.Duration
	// Vanish: a node does not answer any more after so many operations; 0: none vanishes.
	// There is a master.
	Vanish, Node int
	// Cut, if not nil, is told every request that changes something, by its number in the
	// run and what it is for, and says whether the session dies there for good.
	Cut     func(n int, p fusee.Phase) bool
	MTU     int // 0 = 256
	Profile rnic.Profile
	Box     *Box
	Faults  fault.Mix
}

// FuseeResult is what a run came to.
type FuseeResult struct {
	fusee.Stats
	Took    time.Duration
	Struck  int
	Asked   int // how often Cut was asked
	Died    int // sessions that were cut
	Unknown int // operations whose outcome nobody was told
	Out     int // nodes that were taken out
	Keys    *history.Log[FuseeOp, uint64]
}

// FuseeOp is an operation in the history; the answer is the value that was there before,
// 0 for none, someValue where the client is not told which.
type FuseeOp struct {
	Key   uint64
	Kind  fusee.Kind
	Value uint64
}

const someValue = 1<<64 - 1

func fuseeKeys() history.Model[FuseeOp, uint64] {
	return history.Model[FuseeOp, uint64]{
		Name:   "key",
		Object: func(o FuseeOp) uint64 { return o.Key },
		Init:   func(k uint64) uint64 { return k * (1 - k&1) },
		Step: func(v uint64, o FuseeOp, out uint64, told bool) (uint64, bool) {
			if told && out == someValue {
				return o.Value, v != 0 // a deletion's is 0
			}
			ok := !told || out == v
			switch {
			case o.Kind == fusee.Insert && v == 0, o.Kind == fusee.Update && v != 0:
				return o.Value, ok
			case o.Kind == fusee.Delete:
				return 0, ok
			}
			return v, ok
		},
		Needs: func(_ FuseeOp, out uint64) (uint64, bool) { return out, out == someValue },
		Makes: func(o FuseeOp) (uint64, bool) { return o.Value, true },
		Inert: func(o FuseeOp) bool { return o.Kind == fusee.Read },
		Describe: func(o FuseeOp, out uint64, told bool) string {
			s := fmt.Sprintf("%v %#x", o.Kind, o.Value)
			if told {
				return fmt.Sprintf("%s, was %#x", s, out)
			}
			return s + ", outcome unknown"
		},
		State: func(v uint64) string { return fmt.Sprintf("%#x", v) },
	}
}

func (t Fusee) defaults() Fusee {
	or(&t.Clients, 3)
	or(&t.Sessions, 2)
	or(&t.Ops, 16)
	or(&t.Keys, 24)
	or(&t.MTU, 256)
	or(&t.Value, 8)
	if t.Layout == (fusee.Layout{}) {
		t.Layout = fusee.Layout{Nodes: 3, Replicas: 3}
	}
	or(&t.Layout.Nodes, 1)
	or(&t.Layout.Replicas, 1)
	or(&t.Layout.Subtables, 1)
	or(&t.Layout.Groups, 2)
	or(&t.Layout.Unit, 64)
	or(&t.Layout.Block, 1024)
	or(&t.Layout.Blocks, 64)
	if t.Kinds == ([4]int{}) {
		t.Kinds = [4]int{3, 4, 3, 2}
	}
	if t.FailAfter == 0 {
		t.FailAfter = 20 * time.Millisecond
	}
	t.Faults.Links = links(t.Faults.Links, t.Clients)
	return t
}

// Run does the load under a schedule and checks everything: the store at rest, and the
// histories of all keys with what the store says at the end, and the box's books.
func (t Fusee) Run(seed uint64, s fault.Schedule) (*FuseeResult, error) {
	t = t.defaults()
	l, err := t.load(seed)
	if err != nil {
		return nil, err
	}
	b, err := New(Config{
		Clients: t.Clients + 1 + l.masters(), Sessions: t.Sessions * t.Layout.Nodes, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed,
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

// fuseeLoad is a Fusee's part of a bed.
type fuseeLoad struct {
	Fusee
	seed   uint64
	store  fusee.Cluster
	grants []fusee.Grant
	all    []*fusee.Client // of all lives
	lives  []*fuseeLife    // by client, that of now
	ended  []*fuseeLife    // lives that ended
	master *fusee.Master
	begun  int
	down   bool // the node has vanished
	swept  int  // keys that the last client has changed
	dead   []uint16
	found  bool // the dead are known
	b      *Bed
	err    error
	res    *FuseeResult
}

// fuseeLife is one life of a client.
type fuseeLife struct {
	client, life int
	id           uint16
	ops          []int // by session: that it has begun
	dead         []bool
	busy         []bool
}

func (l *fuseeLoad) masters() int {
	if l.Vanish > 0 {
		return 1
	}
	return 0
}

// filler is the owner of what is there at first.
const filler = 1<<16 - 1

func (t Fusee) load(seed uint64) (*fuseeLoad, error) {
	l := &fuseeLoad{Fusee: t, seed: seed, lives: make([]*fuseeLife, t.Clients+1), res: &FuseeResult{Keys: new(history.Log[FuseeOp, uint64])}}
	var err error
	if l.store, err = fusee.NewCluster(t.Layout); err != nil {
		return nil, err
	}
	l.grants = make([]fusee.Grant, t.Layout.Nodes)
	f := l.store.Filler(filler)
	for k := uint64(2); k <= uint64(t.Keys); k += 2 {
		if err := f.Insert(keyBytes(k), l.value(k)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func keyBytes(k uint64) []byte { return binary.LittleEndian.AppendUint64(nil, k) }

func (l *fuseeLoad) serve(pd *rnic.PD) (err error) {
	for i, m := range l.store {
		if m == nil {
			continue
		}
		if l.grants[i], err = m.ServeAt(pd, uint64(i)<<44); err != nil {
			return err
		}
	}
	return nil
}

// value is the bytes of a value with a number.
func (l *fuseeLoad) value(n uint64) []byte {
	b := make([]byte, l.Value)
	binary.LittleEndian.PutUint64(b, n)
	for i := 8; i < len(b); i++ {
		b[i] = byte(n) ^ byte(i)
	}
	return b
}

// number is value's inverse.
func (l *fuseeLoad) number(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	n := binary.LittleEndian.Uint64(b)
	if !slices.Equal(b, l.value(n)) {
		l.err = errors.Join(l.err, fmt.Errorf("value % x is not one that was written", b))
	}
	return n
}

// dial connects a client's i-th place to a node.
func (l *fuseeLoad) dial(c *Client, place, node int) (*rnic.QP, fusee.Grant, error) {
	if l.down && node == l.Node {
		return nil, fusee.Grant{}, errDown
	}
	qp, err := l.b.Dial(c, (c.Number*l.Sessions+place)*l.Layout.Nodes+node)
	return qp, l.grants[node], err
}

// vanish makes the node answer no more.
func (l *fuseeLoad) vanish() {
	l.down = true
	l.store[l.Node] = nil
	for i := range l.b.conns {
		if e := &l.b.conns[i]; e.server != nil && i%l.Layout.Nodes == l.Node {
			e.server.Destroy()
		}
	}
}

func (l *fuseeLoad) app(b *Bed, c *Client) (host.App, error) {
	l.b = b
	if c.Number > l.Clients {
		var err error
		l.master, err = fusee.NewMaster(fusee.MasterConfig{
			Layout: l.Layout, CQ: c.CQ, FailAfter: l.FailAfter / 2, Lease: time.Millisecond, Margin: l.FailAfter / 2,
			Dial: func(_ clock.Time, node int) (*rnic.QP, fusee.Grant, error) { return l.dial(c, 0, node) },
		})
		return l.master, err
	}
	if old := l.lives[c.Number]; old != nil {
		l.ended = append(l.ended, old)
	}
	id := uint16(1 + (c.Life*(l.Clients+1)+c.Number)*l.Sessions)
	life := &fuseeLife{client: c.Number, life: c.Life, id: id, ops: make([]int, l.Sessions), dead: make([]bool, l.Sessions), busy: make([]bool, l.Sessions)}
	l.lives[c.Number] = life
	x := &fuseePlayer{l: l, c: c, life: life, rng: rand.New(rand.NewPCG(l.seed, uint64(c.Number<<8|c.Life))), ids: make([]int, l.Sessions), numbers: make([]int, l.Sessions)}
	for i := range x.numbers {
		x.numbers[i] = l.res.Keys.NewClient()
	}
	cfg := fusee.Config{
		Layout: l.Layout, Sessions: l.Sessions, ID: id, CQ: c.CQ, FailAfter: l.FailAfter, Cache: l.Cache,
		Dial: func(_ clock.Time, session, node int) (*rnic.QP, fusee.Grant, error) { return l.dial(c, session, node) },
		Alloc: func(_ clock.Time, owner uint16, region, units int) (int, error) {
			return l.store.Alloc(owner, region, units)
		},
		Next: x.next, Done: x.done, Cut: x.cut,
	}
	if l.Vanish > 0 {
		cfg.View = func(now clock.Time) fusee.View {
			if l.master == nil { // its machine starts last
				return fusee.View{Alive: 1<<l.Layout.Nodes - 1, Until: now + 1}
			}
			return l.master.View(now)
		}
		cfg.Suspect = func(now clock.Time, node int) { l.master.Suspect(now, node) }
	}
	client, err := fusee.NewClient(cfg)
	l.all = append(l.all, client)
	return client, err
}

// fuseePlayer is what a client does in one life.
type fuseePlayer struct {
	l            *fuseeLoad
	c            *Client
	life         *fuseeLife
	rng          *rand.Rand
	ids, numbers []int
	sweeper      int // session of the last client that recovers, and changes all keys
}

func (x *fuseePlayer) begin(now clock.Time, session int, key uint64, k fusee.Kind) fusee.Op {
	l := x.l
	x.life.ops[session]++
	l.begun++
	if l.begun == l.Vanish {
		l.vanish()
	}
	// Numbers up to Keys are those of the loaded values.
	v := uint64(x.c.Number+1)<<24 | uint64(x.c.Life)<<20 | uint64(session)<<16 | uint64(x.life.ops[session])
	h := FuseeOp{Key: key, Kind: k, Value: v}
	if k == fusee.Read || k == fusee.Delete {
		h.Value = 0
	}
	x.ids[session], x.life.busy[session] = l.res.Keys.Call(x.numbers[session], now, h), true
	return fusee.Op{Kind: k, Key: keyBytes(key), Value: l.value(v)}
}

func (x *fuseePlayer) next(now clock.Time, session int) (fusee.Op, bool) {
	l := x.l
	if x.c.Number == l.Clients {
		return x.sweep(now, session)
	}
	if x.life.ops[session] == l.Ops || x.life.dead[session] {
		return fusee.Op{}, false
	}
	n, k := x.rng.IntN(l.Kinds[0]+l.Kinds[1]+l.Kinds[2]+l.Kinds[3]), fusee.Read
	for ; n >= l.Kinds[k]; k++ {
		n -= l.Kinds[k]
	}
	return x.begin(now, session, 1+x.rng.Uint64N(uint64(l.Keys)), k), true
}

// sweep recovers the dead, and changes all keys.
func (x *fuseePlayer) sweep(now clock.Time, session int) (fusee.Op, bool) {
	l := x.l
	if !l.through() {
		return fusee.Op{}, false
	}
	if !l.found {
		l.found = true
		for _, life := range append(slices.Clone(l.ended), l.lives[:l.Clients]...) {
			for i := range l.Sessions {
				if life.dead[i] || life.life < l.b.machines[life.client].restarts || l.b.Down(life.client) {
					l.dead = append(l.dead, life.id+uint16(i))
				}
			}
		}
	}
	if session != x.sweeper || x.life.busy[session] {
		return fusee.Op{}, false
	}
	if len(l.dead) > 0 {
		id := l.dead[0]
		l.dead = l.dead[1:]
		x.life.busy[session] = true
		return fusee.Op{Kind: fusee.Recover, Dead: id}, true
	}
	if l.swept == l.Keys {
		return fusee.Op{}, false
	}
	l.swept++
	return x.begin(now, session, uint64(l.swept), fusee.Update), true
}

func (x *fuseePlayer) cut(_ clock.Time, session int, p fusee.Phase, _ int) bool {
	l := x.l
	if x.c.Number == l.Clients && p != fusee.Repairing {
		return false
	}
	l.res.Asked++
	if l.Cut == nil || !l.Cut(l.res.Asked, p) {
		return false
	}
	l.res.Died++
	if x.c.Number < l.Clients {
		x.life.dead[session] = true
	}
	return true
}

func (x *fuseePlayer) done(r *fusee.Result) {
	l := x.l
	x.life.busy[r.Session] = false
	if r.Kind == fusee.Recover {
		switch {
		case errors.Is(r.Err, fusee.ErrDied): // the next one recovers him, too
			l.dead = append([]uint16{r.Dead, x.life.id + uint16(r.Session)}, l.dead...)
			x.life.dead[r.Session] = true
			if x.sweeper++; x.sweeper == l.Sessions {
				l.err = errors.Join(l.err, errors.New("all who recover have died"))
			}
		case r.Err != nil:
			l.err = errors.Join(l.err, fmt.Errorf("recovering %d: %w", r.Dead, r.Err))
		}
		return
	}
	switch {
	case r.Err == nil && r.Found && (r.Kind == fusee.Update || r.Kind == fusee.Delete):
		l.res.Keys.Return(x.ids[r.Session], r.End, someValue)
	case r.Err == nil:
		l.res.Keys.Return(x.ids[r.Session], r.End, l.number(r.Got))
	case errors.Is(r.Err, fusee.ErrFull), errors.Is(r.Err, fusee.ErrNoMemory):
		l.res.Keys.Forget(x.ids[r.Session])
	case errors.Is(r.Err, fusee.ErrUnknown):
		l.res.Unknown++
	case !errors.Is(r.Err, fusee.ErrDied):
		l.err = errors.Join(l.err, fmt.Errorf("client %d, session %d, %v %x: %w", x.c.Number, r.Session, r.Kind, r.Key, r.Err))
	}
}

// through reports whether all clients but the last have nothing left to do.
func (l *fuseeLoad) through() bool {
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

func (l *fuseeLoad) wrong() error { return l.err }

func (l *fuseeLoad) done(*Bed) bool {
	return l.through() && l.found && len(l.dead) == 0 && l.swept == l.Keys && !slices.Contains(l.lives[l.Clients].busy, true)
}

func (l *fuseeLoad) check(b *Bed, err error) error {
	for _, c := range l.all {
		l.res.Add(c.Stats())
		err = errors.Join(err, c.Err())
	}
	if l.master != nil {
		l.res.Out = l.master.Taken()
		err = errors.Join(err, l.master.Err())
	}
	if err == nil {
		var values map[string][]byte
		values, err = l.store.Check()
		now, reader := b.Clock.Now(), l.res.Keys.NewClient()
		for k := uint64(1); k <= uint64(l.Keys); k++ {
			l.res.Keys.Return(l.res.Keys.Call(reader, now, FuseeOp{Key: k}), now, l.number(values[string(keyBytes(k))]))
		}
	}
	return errors.Join(err, l.err, history.Check(fuseeKeys(), l.res.Keys, 0))
}

// Try is Trial.Try with FUSEE's store.
func (t Fusee) Try(tb testing.TB, seed uint64) (_ *FuseeResult, ok bool) {
	tb.Helper()
	t = t.defaults()
	res, few, err := attempt(seed, t.Faults, t.Run)
	if failed(tb, "fusee", seed, few, err) && res != nil {
		show(tb, fuseeKeys(), res.Keys, err)
	}
	return res, err == nil
}
