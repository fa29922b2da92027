package bed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
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
	Wide      bool
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
	Outcome
	Asked   int // how often Cut was asked
	Died    int // sessions that were cut
	Unknown int // operations whose outcome nobody was told
	Out     int // nodes that were taken out
	Keys    *history.Log[KeyOp, uint64]
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
	t.FailAfter = cmp.Or(t.FailAfter, 20*time.Millisecond)
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
	return l.res, l.res.run(Config{Clients: t.Clients + 1 + l.masters(), Sessions: t.Sessions * t.Layout.Nodes, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed}, l)
}

// fuseeLoad is a Fusee's part of a bed.
type fuseeLoad struct {
	keyLoad
	Fusee
	store  fusee.Cluster
	grants []fusee.Grant
	all    []*fusee.Client // of all lives
	ended  []*keyLife      // lives that ended
	master *fusee.Master
	begun  int
	down   bool // the node has vanished
	dead   []uint16
	found  bool // the dead are known
	res    *FuseeResult
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
	res := &FuseeResult{Keys: new(history.Log[KeyOp, uint64])}
	l := &fuseeLoad{Fusee: t, res: res, keyLoad: keyLoad{seed: seed, clients: t.Clients, sessions: t.Sessions, ops: t.Ops, keys: t.Keys, size: t.Value, kinds: t.Kinds,
		lives: make([]*keyLife, t.Clients+1), log: res.Keys}}
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
	x := &fuseePlayer{keyLife: l.live(b, c), l: l}
	cfg := fusee.Config{
		Layout: l.Layout, Sessions: l.Sessions, ID: l.idOf(x.keyLife), CQ: c.CQ, FailAfter: l.FailAfter, Cache: l.Cache, Wide: l.Wide,
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

// idOf is the number of a life's first session.
func (l *fuseeLoad) idOf(x *keyLife) uint16 {
	return uint16(1 + (x.life*(l.Clients+1)+x.c.Number)*l.Sessions)
}

// fuseePlayer is what a client does in one life.
type fuseePlayer struct {
	*keyLife
	l       *fuseeLoad
	sweeper int // session of the last client that recovers, and changes all keys
}

func (x *fuseePlayer) op(now clock.Time, session int, key uint64, k KeyKind) fusee.Op {
	x.l.begun++
	if x.l.begun == x.l.Vanish {
		x.l.vanish()
	}
	return fusee.Op{Kind: fusee.Kind(k), Key: keyBytes(key), Value: x.begin(now, session, key, k)}
}

func (x *fuseePlayer) next(now clock.Time, session int) (fusee.Op, bool) {
	l := x.l
	if x.c.Number == l.Clients {
		return x.sweep(now, session)
	}
	key, k, ok := x.draw(session)
	if !ok {
		return fusee.Op{}, false
	}
	return x.op(now, session, key, k), true
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
				if life.dead[i] || life.life < l.b.machines[life.c.Number].restarts || l.b.Down(life.c.Number) {
					l.dead = append(l.dead, l.idOf(life)+uint16(i))
				}
			}
		}
	}
	if session != x.sweeper || x.busy[session] {
		return fusee.Op{}, false
	}
	if len(l.dead) > 0 {
		id := l.dead[0]
		l.dead = l.dead[1:]
		x.busy[session] = true
		return fusee.Op{Kind: fusee.Recover, Dead: id}, true
	}
	if l.swept == l.Keys {
		return fusee.Op{}, false
	}
	l.swept++
	return x.op(now, session, uint64(l.swept), keyUpdate), true
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
		x.dead[session] = true
	}
	return true
}

func (x *fuseePlayer) done(r *fusee.Result) {
	l := x.l
	x.busy[r.Session] = false
	if r.Kind == fusee.Recover {
		switch {
		case errors.Is(r.Err, fusee.ErrDied): // the next one recovers him, too
			l.dead = append([]uint16{r.Dead, l.idOf(x.keyLife) + uint16(r.Session)}, l.dead...)
			x.dead[r.Session] = true
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
		l.log.Return(x.ids[r.Session], r.End, someValue)
	case r.Err == nil:
		l.log.Return(x.ids[r.Session], r.End, l.number(r.Got))
	case errors.Is(r.Err, fusee.ErrFull), errors.Is(r.Err, fusee.ErrNoMemory):
		l.log.Forget(x.ids[r.Session])
	case errors.Is(r.Err, fusee.ErrUnknown):
		l.res.Unknown++
	case !errors.Is(r.Err, fusee.ErrDied):
		l.err = errors.Join(l.err, fmt.Errorf("client %d, session %d, %v %x: %w", x.c.Number, r.Session, r.Kind, r.Key, r.Err))
	}
}

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
		l.close(b.Clock.Now(), func(k uint64) []byte { return values[string(keyBytes(k))] })
	}
	return errors.Join(err, l.err, history.Check(keyOps(half, false), l.res.Keys, 0))
}

// Try is Trial.Try with FUSEE's store.
func (t Fusee) Try(tb testing.TB, seed uint64) (_ *FuseeResult, ok bool) {
	tb.Helper()
	t = t.defaults()
	res, err := attempt(tb, "fusee", seed, t.Faults, t.Run, func(res *FuseeResult, err error) { show(tb, keyOps(half, false), res.Keys, err) })
	return res, err == nil
}
