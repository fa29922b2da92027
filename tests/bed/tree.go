package bed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/history"
	"github.com/quillon/quillon/rack/history/fault"
	"github.com/quillon/quillon/rack/host"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/rack/sherman"
	"github.com/quillon/quillon/rack/ycsb"
)

// Tree is a load on Sherman's tree, and what may go wrong meanwhile. Clients do
// not die: they would take their locks along. The zero value of a field takes the
// default that is given with it.
type Tree struct {
	Clients  int // 0 = 3
	Sessions int // of a client; 0 = 3
	Ops      int // of a session; 0 = 12
	Keys     int // that are loaded, every second one; as many are missing; 0 = 60
	// Fill is how full the pages are at first; 0 = all: the next insertion splits.
	Fill    float64
	Mix     ycsb.Mix // zero: A
	Theta   float64
	MTU     int // 0 = 256: pages come in four packets
	Profile rnic.Profile
	Box     *Box
	Faults  fault.Mix
}

// TreeResult is what a run came to.
type TreeResult struct {
	sherman.Stats
	Took   time.Duration
	Struck int
	Keys   *history.Log[history.Register, uint64]
	Words  *history.Log[history.Word, uint64]
}

func (t Tree) defaults() Tree {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&t.Clients, 3)
	or(&t.Sessions, 3)
	or(&t.Ops, 12)
	or(&t.Keys, 60)
	or(&t.MTU, 256)
	if t.Fill == 0 {
		t.Fill = 1
	}
	if t.Mix.Name == "" {
		t.Mix = ycsb.A
	}
	t.Faults.Links = links(t.Faults.Links, t.Clients)
	return t
}

// Run does the load under a schedule and checks everything: the tree's shape, the
// locks, the histories of all keys with what the tree says at the end, that of the
// lock words, and the box's books.
func (t Tree) Run(seed uint64, s fault.Schedule) (*TreeResult, error) {
	t = t.defaults()
	layout := sherman.Layout{Nodes: 1, RootAt: 64, Size: uint64(t.Keys/20+t.Clients*64+8) * sherman.PageSize}
	loaded := make([]uint64, t.Keys)
	for i := range loaded {
		loaded[i] = uint64(i+1) * 2
	}
	// Loaded values are below all others.
	tree, err := sherman.NewTree(layout, loaded, func(k uint64) uint64 { return k }, t.Fill)
	if err != nil {
		return nil, err
	}
	res := &TreeResult{Keys: new(history.Log[history.Register, uint64]), Words: new(history.Log[history.Word, uint64])}
	keys := ycsb.Sequential(1, 2*t.Keys)
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(keys), func(i, k int) { keys[i], keys[k] = keys[k], keys[i] })
	var grant sherman.Grant
	var wrong error
	left := t.Clients * t.Sessions * t.Ops
	var clients []*sherman.Client
	b, err := New(Config{
		Clients: t.Clients, Sessions: t.Sessions, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed,
		Serve: func(pd *rnic.PD) (err error) {
			grant, err = tree.Node(0).Serve(pd)
			return err
		},
		App: func(b *Bed, c *Client) (host.App, error) {
			chunk, err := tree.Chunk(0, 64)
			if err != nil {
				return nil, err
			}
			gens := make([]*ycsb.Generator, t.Sessions)
			ops, ids := make([]int, t.Sessions), make([]int, t.Sessions)
			for i := range gens {
				if gens[i], err = ycsb.New(ycsb.Config{Mix: t.Mix, Theta: t.Theta, Keys: keys, Seed: seed}, uint64(c.Number*t.Sessions+i)); err != nil {
					return nil, err
				}
			}
			x, err := sherman.NewClient(sherman.Config{
				Layout: layout, Client: c.Number, Sessions: t.Sessions, Chunk: chunk, CQ: c.CQ, WordLog: res.Words,
				Dial: func(_ clock.Time, session, _ int) (*rnic.QP, sherman.Grant, error) {
					qp, err := b.Dial(c, c.Number*t.Sessions+session)
					return qp, grant, err
				},
				Next: func(now clock.Time, session int) (sherman.Op, bool) {
					if ops[session] == t.Ops {
						return sherman.Op{}, false
					}
					ops[session]++
					me := c.Number*t.Sessions + session
					y := gens[session].Next()
					op := sherman.Op{Key: y.Key, Write: y.Write}
					if op.Write {
						op.Value = uint64(me+1)<<32 | uint64(ops[session])
					}
					ids[session] = res.Keys.Call(me, now, history.Register{Key: op.Key, Write: op.Write, Value: op.Value})
					return op, true
				},
				Done: func(r *sherman.Result) {
					left--
					if r.Err != nil {
						wrong = errors.Join(wrong, fmt.Errorf("client %d, session %d, key %d: %w", c.Number, r.Session, r.Key, r.Err))
						return
					}
					res.Keys.Return(ids[r.Session], r.End, r.Value)
				},
			})
			clients = append(clients, x)
			return x, err
		},
	})
	if err != nil {
		return nil, err
	}
	err = b.Run(func() bool { return wrong != nil || left == 0 && !b.More() }, longest)
	if err = errors.Join(err, wrong); err == nil {
		err = b.Settle(time.Millisecond)
	}
	res.Took, res.Struck = b.Clock.Now().Sub(b.start), b.Struck()
	for _, c := range clients {
		res.add(c.Stats())
	}
	if err == nil {
		var values map[uint64]uint64
		values, err = tree.Check()
		now, reader := b.Clock.Now(), t.Clients*t.Sessions
		for _, k := range keys {
			res.Keys.Return(res.Keys.Call(reader, now, history.Register{Key: k}), now, values[k])
		}
	}
	return res, errors.Join(err, history.Check(treeKeys(), res.Keys, 0), history.Check(history.Words(nil), res.Words, 0), b.Close())
}

// treeKeys is the model of a tree into which every second key was loaded.
func treeKeys() history.Model[history.Register, uint64] {
	return history.Registers(func(k uint64) uint64 { return k * (1 - k&1) })
}

func (r *TreeResult) add(s sherman.Stats) {
	r.Searches += s.Searches
	r.Writes += s.Writes
	r.LockFailed += s.LockFailed
	r.HandedOver += s.HandedOver
	r.Splits += s.Splits
	r.NewRoots += s.NewRoots
	r.Torn += s.Torn
	r.Siblings += s.Siblings
	r.Broken += s.Broken
}

// Try is Trial.Try with a tree.
func (t Tree) Try(tb testing.TB, seed uint64) (_ *TreeResult, ok bool) {
	tb.Helper()
	r, err := t.try(tb, seed)
	return r, err == nil
}

func (t Tree) try(tb testing.TB, seed uint64) (*TreeResult, error) {
	tb.Helper()
	t = t.defaults()
	res, few, err := attempt(seed, t.Faults, t.Run)
	if tell(tb, "tree", seed, few, err) && res != nil {
		show(tb, treeKeys(), res.Keys, err)
		show(tb, history.Words(nil), res.Words, err)
	}
	return res, err
}
