package bed

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/sherman"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
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
	Fill  float64
	Mix   ycsb.Mix // zero: A
	Theta float64
	// Deletes is the share of writes that take a key away, Ranges that of reads that are of some keys in a row.
	Deletes, Ranges float64
	MTU             int // 0 = 256: pages come in four packets
	Profile         rnic.Profile
	Box             *Box
	Faults          fault.Mix
}

// TreeResult is what a run came to.
type TreeResult struct {
	sherman.Stats
	Outcome
	Keys  *history.Log[history.Register, uint64]
	Words *history.Log[history.Word, uint64]
}

func (t Tree) defaults() Tree {
	or(&t.Clients, 3)
	or(&t.Sessions, 3)
	or(&t.Ops, 12)
	or(&t.Keys, 60)
	or(&t.MTU, 256)
	t.Fill = cmp.Or(t.Fill, 1)
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
	l, err := t.load(seed, 0)
	if err != nil {
		return nil, err
	}
	return l.res, l.res.run(Config{Clients: t.Clients, Sessions: t.Sessions, MTU: t.MTU, Profile: t.Profile, Box: t.Box, Schedule: s, Seed: seed}, l)
}

// treeLoad is a Tree's part of a bed: clients from the one with number first on.
type treeLoad struct {
	Tree
	seed    uint64
	first   int
	layout  sherman.Layout
	tree    *sherman.Tree
	grant   sherman.Grant
	keys    []uint64 // loaded and missing ones, in random order
	clients []*sherman.Client
	left    int // operations
	err     error
	res     *TreeResult
}

// load makes the tree.
func (t Tree) load(seed uint64, first int) (*treeLoad, error) {
	l := &treeLoad{
		Tree: t, seed: seed, first: first, left: t.Clients * t.Sessions * t.Ops,
		layout: sherman.Layout{Nodes: 1, RootAt: 64, Size: uint64(t.Keys/20+t.Clients*64+8) * sherman.PageSize},
		res:    &TreeResult{Keys: new(history.Log[history.Register, uint64]), Words: new(history.Log[history.Word, uint64])},
	}
	loaded := make([]uint64, t.Keys)
	for i := range loaded {
		loaded[i] = uint64(i+1) * 2
	}
	l.keys = ycsb.Sequential(1, 2*t.Keys)
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(l.keys), func(i, k int) { l.keys[i], l.keys[k] = l.keys[k], l.keys[i] })
	var err error
	// Loaded values are below all others.
	l.tree, err = sherman.NewTree(l.layout, loaded, func(k uint64) uint64 { return k }, t.Fill)
	return l, err
}

func (l *treeLoad) serve(pd *rnic.PD) (err error) {
	l.grant, err = l.tree.Node(0).Serve(pd)
	return err
}

func (l *treeLoad) app(b *Bed, c *Client) (host.App, error) {
	chunk, err := l.tree.Chunk(0, 64)
	if err != nil {
		return nil, err
	}
	first := (c.Number - l.first) * l.Sessions // session of the load's
	gens := make([]*ycsb.Generator, l.Sessions)
	ops, ids := make([]int, l.Sessions), make([][]int, l.Sessions)
	rng := rand.New(rand.NewPCG(l.seed, uint64(first)<<8|2))
	for i := range gens {
		if gens[i], err = ycsb.New(ycsb.Config{Mix: l.Mix, Theta: l.Theta, Keys: l.keys, Seed: l.seed}, uint64(first+i)); err != nil {
			return nil, err
		}
	}
	x, err := sherman.NewClient(sherman.Config{
		Layout: l.layout, Client: c.Number, Sessions: l.Sessions, Chunk: chunk, CQ: c.CQ, WordLog: l.res.Words,
		Dial: func(_ clock.Time, session, _ int) (*rnic.QP, sherman.Grant, error) {
			qp, err := b.Dial(c, c.Number*l.Sessions+session)
			return qp, l.grant, err
		},
		Next: func(now clock.Time, session int) (sherman.Op, bool) {
			if ops[session] == l.Ops {
				return sherman.Op{}, false
			}
			ops[session]++
			y := gens[session].Next()
			op := sherman.Op{Key: y.Key}
			switch {
			case y.Write && rng.Float64() < l.Deletes:
				op.Kind = sherman.Delete
			case y.Write:
				op.Kind, op.Value = sherman.Write, uint64(first+session+1)<<32|uint64(ops[session])
			case rng.Float64() < l.Ranges:
				op.Kind, op.To = sherman.Range, min(op.Key+uint64(rng.IntN(2*l.Keys)), uint64(2*l.Keys))
			}
			ids[session] = l.call(ids[session][:0], first+session, now, op)
			return op, true
		},
		Done: func(r *sherman.Result) {
			l.left--
			if r.Err != nil {
				l.err = errors.Join(l.err, fmt.Errorf("client %d, session %d, key %d: %w", c.Number, r.Session, r.Key, r.Err))
				return
			}
			l.told(ids[r.Session], r)
		},
	})
	l.clients = append(l.clients, x)
	return x, err
}

// call notes that a client is about to ask for op. A range is a read of each of its keys: all together are no
// snapshot, but each key is as it was at one moment.
func (l *treeLoad) call(ids []int, client int, now clock.Time, op sherman.Op) []int {
	if op.Kind != sherman.Range {
		return append(ids, l.res.Keys.Call(client, now, history.Register{Key: op.Key, Write: op.Writes(), Value: op.Value}))
	}
	for k := op.Key; k <= op.To; k++ {
		ids = append(ids, l.res.Keys.Call(client, now, history.Register{Key: k}))
	}
	return ids
}

// told notes what the client was told.
func (l *treeLoad) told(ids []int, r *sherman.Result) {
	if r.Kind != sherman.Range {
		l.res.Keys.Return(ids[0], r.End, r.Value)
		return
	}
	found := map[uint64]uint64{}
	last := uint64(0)
	for _, p := range r.Pairs {
		if p.Key <= last || p.Key < r.Key || p.Key > r.To {
			l.err = errors.Join(l.err, fmt.Errorf("a range from %d to %d has key %d behind %d", r.Key, r.To, p.Key, last))
		}
		last, found[p.Key] = p.Key, p.Value
	}
	for i, id := range ids {
		l.res.Keys.Return(id, r.End, found[r.Key+uint64(i)])
	}
}

func (l *treeLoad) wrong() error   { return l.err }
func (l *treeLoad) done(*Bed) bool { return l.left == 0 }

func (l *treeLoad) check(b *Bed, err error) error {
	for _, c := range l.clients {
		l.res.Add(c.Stats())
	}
	if err == nil {
		var values map[uint64]uint64
		values, err = l.tree.Check()
		now, reader := b.Clock.Now(), l.Clients*l.Sessions
		for _, k := range l.keys {
			l.res.Keys.Return(l.res.Keys.Call(reader, now, history.Register{Key: k}), now, values[k])
		}
	}
	return errors.Join(err, history.Check(treeKeys(), l.res.Keys, 0), history.Check(words(b.cfg.Seed), l.res.Words, 0))
}

// treeKeys is the model of a tree into which every second key was loaded.
func treeKeys() history.Model[history.Register, uint64] {
	return history.Registers(func(k uint64) uint64 { return k * (1 - k&1) })
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
	return attempt(tb, "tree", seed, t.Faults, t.Run, func(res *TreeResult, err error) {
		show(tb, treeKeys(), res.Keys, err)
		show(tb, words(seed), res.Words, err)
	})
}
