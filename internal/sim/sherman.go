package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/sherman"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// ShermanConfig describes a run of Sherman on a rack: client hosts, each of which is one
// client whose sessions share cache and locks, and memory nodes with a tree. Zero
// values take the defaults given with them.
type ShermanConfig struct {
	// Nodes is how many memory nodes the tree lies on; 0 = 1.
	Nodes int
	// Keys are there at first; 0 = 2^20. They are scattered: popular ones are not neighbours.
	Keys int
	StoreLoad
	// Insert: operations that write insert a key that is new, and do not change one that is there.
	Insert bool
	// Flat: the clients of a host take locks each for itself.
	Flat bool
}

// ShermanMeasured is what the clients did in the window.
type ShermanMeasured struct {
	StoreMeasured
	Stats sherman.Stats `json:"stats"`
}

func (c *ShermanConfig) defaults() error {
	c.Nodes = cmp.Or(c.Nodes, 1)
	c.Keys = cmp.Or(c.Keys, 1<<20)
	if err := c.StoreLoad.defaults("Sherman"); err != nil {
		return err
	}
	switch {
	case c.Nodes < 1 || c.Nodes > 64:
		return errors.New("sim: a simulated tree of Sherman lies on 1 to 64 memory nodes")
	case c.Keys < 1 || c.Keys > 1<<22:
		return errors.New("sim: a simulated tree of Sherman has 1 to 2^22 keys")
	case c.Box != "" && c.Nodes != 1:
		return errors.New("sim: a box is in front of one memory node: a tree with a box lies on no other")
	}
	return nil
}

// shermanMost is more than clients of a tree ever insert a second.
const shermanMost = 2e7

// pages is how many pages a host needs: those that its clients split off. Clients that split a page leave half of it
// empty; a page that another has split meanwhile is split no more.
func (c *ShermanConfig) pages() int {
	const few = 16
	if !c.Insert {
		return few
	}
	written := shermanMost * (c.Warmup + c.Measure).Seconds() * c.Writes
	return int(written)/(sherman.Entries/2)*5/4/c.Hosts + few
}

// shermanRun is a run's tree and clients.
type shermanRun struct {
	storeRun
	*ShermanConfig
	m      ShermanMeasured
	layout sherman.Layout
	tree   *sherman.Tree
	grants []sherman.Grant
	keys   []uint64 // in the order of their popularity
	all    []*sherman.Client
	turn   uint64
	rng    *rand.Rand // of keys that are new
}

// Sherman measures a run of Sherman: the state machines of rack/sherman on the modelled
// rack.
func Sherman(ctx context.Context, c ShermanConfig) (ShermanMeasured, error) {
	if err := c.defaults(); err != nil {
		return ShermanMeasured{}, err
	}
	r := &shermanRun{ShermanConfig: &c, rng: rand.New(rand.NewPCG(c.Seed, 0x5EED))}
	r.storeRun = newStoreRun(&c.StoreLoad, &r.m.StoreMeasured)
	err := r.fill()
	if err == nil {
		err = r.run(ctx, r.attach, nil)
	}
	for _, c := range r.all {
		r.m.Stats.Add(c.Stats())
	}
	return r.m, err
}

// shermanApart is the distance of keys that are there at first: what lies between is new when it is inserted.
const shermanApart = 1 << 20

// fill makes the tree.
func (r *shermanRun) fill() (err error) {
	pages := r.Keys*10/8/sherman.Entries*11/10/r.Nodes + 64 + r.pages()*r.Hosts
	r.layout = sherman.Layout{Nodes: r.Nodes, RootAt: 64, Size: uint64(pages) * sherman.PageSize}
	r.keys = make([]uint64, r.Keys)
	for i := range r.keys {
		r.keys[i] = uint64(i+1) * shermanApart
	}
	if r.tree, err = sherman.NewTree(r.layout, r.keys, func(k uint64) uint64 { return k }, 0); err != nil {
		return err
	}
	rand.New(rand.NewPCG(r.Seed, 1)).Shuffle(len(r.keys), func(i, k int) { r.keys[i], r.keys[k] = r.keys[k], r.keys[i] })
	return nil
}

// attach puts the memory nodes and the hosts on the rack.
func (r *shermanRun) attach(w *World) error {
	r.grants = make([]sherman.Grant, r.Nodes)
	for i := range r.grants {
		m, err := r.node(w, fmt.Sprintf("memory%d", i), r.Seed+uint64(i)<<32, func(pd *rnic.PD) (err error) {
			r.grants[i], err = r.tree.Node(i).Serve(pd)
			return err
		})
		if err != nil {
			return err
		}
		m.DeviceMemory(r.grants[i].Locks.VA, sherman.LockTable)
	}
	return r.hosts(w, r.keys, 64, r.client)
}

// client makes the client of a host, which knows the inner pages, as after a warm-up.
func (r *shermanRun) client(h *storeHost) (host.App, error) {
	chunk, err := r.tree.Chunk(h.number%r.Nodes, r.pages())
	if err != nil {
		return nil, err
	}
	client, err := sherman.NewClient(sherman.Config{
		Layout: r.layout, Client: h.number, Flat: r.Flat, Sessions: h.clients, Chunk: chunk, CQ: h.cq,
		Dial: func(_ clock.Time, session, node int) (*rnic.QP, sherman.Grant, error) {
			q, err := h.dial(session, node)
			return q, r.grants[node], err
		},
		Next: func(_ clock.Time, session int) (sherman.Op, bool) {
			if r.m.Full {
				return sherman.Op{}, false
			}
			return r.op(h.gens[session].Next()), true
		},
		Done: r.done,
	})
	if err != nil {
		return nil, err
	}
	if err := client.Warm(r.tree); err != nil {
		return nil, err
	}
	r.all = append(r.all, client)
	return client, nil
}

// op makes an operation of what the workload has.
func (r *shermanRun) op(o ycsb.Op) sherman.Op {
	if !o.Write {
		return sherman.Op{Key: o.Key}
	}
	r.turn++ // another value each time
	op := sherman.Op{Kind: sherman.Write, Key: o.Key, Value: r.turn}
	if r.Insert {
		op.Key = r.rng.Uint64N(uint64(r.Keys)*shermanApart) + 1
	}
	return op
}

// done counts an operation.
func (r *shermanRun) done(o *sherman.Result) {
	switch {
	case errors.Is(o.Err, sherman.ErrFull):
		r.m.Full = true
		return
	case o.Err != nil || o.Kind == sherman.Search && !o.Found:
		r.m.Errors++
		return
	}
	r.did(o.Writes(), o.Start, o.End, o.Cost)
}
