package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// FuseeConfig describes a run of FUSEE on a rack: client hosts and memory nodes. Zero
// values take the defaults given with them.
type FuseeConfig struct {
	// Store is the store; no Blocks: as many as the run needs. Its subtables have room for the
	// keys when Groups is 0.
	Store fusee.Layout
	// Keys are there at first; 0 = 100,000. Value is the size of values; 0 = 64.
	Keys, Value int
	StoreLoad
	// Kind is what operations that write do, or reads where that is Read.
	Kind fusee.Kind
	// Coroutines is how many operations a client has under way, by one queue pair; 0 = 1.
	Coroutines int
	// Library is how the clients work: Cache, MissRate, Wide, Blind, Fibers and FailAfter matter.
	Library fusee.Config
	// Past is how many operations each Wide client does in the whole run, of which the window shows a part. When a client first asks for
	// a key, its cache has the key as at a random moment of that run; 0: the cache is empty at first. After Trace operations a
	// client repeats those that it did; 0 = it never does.
	Past, Trace int
	// Slower is by how much longer the thread of the k-th of n clients on a host works for a post (Library.Fibers); nil: all work as long.
	Slower func(k, n int) float64
}

// FuseeMeasured is what the clients did in the window.
type FuseeMeasured struct {
	StoreMeasured
	Stats fusee.Stats `json:"stats"`
}

func (c *FuseeConfig) defaults() error {
	c.Keys = cmp.Or(c.Keys, 100_000)
	c.Value = cmp.Or(c.Value, 64)
	c.Coroutines = cmp.Or(c.Coroutines, 1)
	c.Store.Nodes = cmp.Or(c.Store.Nodes, 1)
	c.Store.Subtables = cmp.Or(c.Store.Subtables, 32)
	c.Store.Unit = cmp.Or(c.Store.Unit, 256)
	if c.Store.Block == 0 {
		c.Store.Block = 64 << 10
		if c.Coroutines > 1 { // each has blocks of its own
			c.Store.Block = 16 * c.Store.Unit
		}
	}
	if err := c.StoreLoad.defaults("FUSEE"); err != nil {
		return err
	}
	switch {
	case c.Keys < 1 || c.Keys > 1<<22 || c.Value < 1 || c.Value > 8192:
		return errors.New("sim: a simulated store of FUSEE has 1 to 2^22 keys, with values of 1 to 8192 bytes")
	case c.Coroutines < 1 || c.Clients*c.Coroutines > 1<<15:
		return errors.New("sim: clients of FUSEE have 1 to 32768 operations under way in all")
	case c.Box != "" && c.Store.Nodes != 1:
		return errors.New("sim: a box is in front of one memory node: a store with a box has no other")
	case c.Past < 0 || c.Trace < 0:
		return errors.New("sim: clients of FUSEE have done no operations or some before, and repeat them after some")
	case c.Kind > fusee.Delete:
		return errors.New("sim: clients read, insert, update or delete")
	}
	c.sizes()
	return nil
}

// fuseeMost is more than clients of one memory node ever did a second.
const fuseeMost = 2e7

// sizes gives the store room for the keys, two thirds full, and blocks for what the run writes.
func (c *FuseeConfig) sizes() {
	written := int(fuseeMost*(c.Warmup+c.Measure).Seconds()*c.Writes) + 1
	slots := c.Keys
	if c.Kind == fusee.Insert {
		slots += written
	}
	if c.Store.Groups == 0 {
		c.Store.Groups = max(2, (slots*3/2/(21*c.Store.Subtables)+2)&^1)
	}
	if c.Store.Blocks == 0 {
		object := (c.Value + 64 + c.Store.Unit - 1) / c.Store.Unit * c.Store.Unit
		c.Store.Blocks = ((c.Keys+written)/(c.Store.Block/object)+2*c.Clients*c.Coroutines)/c.Store.Nodes + 2
	}
}

// fuseeRun is a run's store and clients.
type fuseeRun struct {
	storeRun
	*FuseeConfig
	m      FuseeMeasured
	store  fusee.Cluster
	grants []fusee.Grant
	next   uint64 // key that is inserted next
	all    []*fusee.Client
	zetan  float64 // sum of the keys' popularities
	value  []byte
	turn   uint64
}

// Fusee measures a run of FUSEE: the state machines of rack/fusee on the modelled rack.
func Fusee(ctx context.Context, c FuseeConfig) (FuseeMeasured, error) {
	if err := c.defaults(); err != nil {
		return FuseeMeasured{}, err
	}
	r := &fuseeRun{FuseeConfig: &c, value: make([]byte, max(c.Value, 8))}
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

func fuseeKey(k uint64) []byte { return binary.LittleEndian.AppendUint64(nil, k) }

// fill makes the store.
func (r *fuseeRun) fill() (err error) {
	if r.store, err = fusee.NewCluster(r.Store); err != nil {
		return err
	}
	r.Store = r.store[0].Layout
	f := r.store.Filler(1<<16 - 1)
	for k := 1; k <= r.Keys; k++ {
		if err := f.Insert(fuseeKey(uint64(k)), r.value[:r.Value]); err != nil {
			return fmt.Errorf("sim: filling the store: %w", err)
		}
	}
	r.next = uint64(r.Keys) + 1
	for k := range r.Keys {
		r.zetan += math.Pow(float64(k+1), -r.Zipf)
	}
	return nil
}

// attach puts the memory nodes and the hosts on the rack.
func (r *fuseeRun) attach(w *World) error {
	r.grants = make([]fusee.Grant, len(r.store))
	for i, mem := range r.store {
		if _, err := r.node(w, fmt.Sprintf("memory%d", i), r.Seed+uint64(i)<<32, func(pd *rnic.PD) (err error) {
			r.grants[i], err = mem.Serve(pd)
			return err
		}); err != nil {
			return err
		}
	}
	r.apart = true
	return r.hosts(w, ycsb.Sequential(1, r.Keys), max(256, 16*r.Coroutines), r.client)
}

// apps are the clients of a host.
type apps []host.App

func (a apps) Step(now clock.Time) bool {
	did := false
	for _, x := range a {
		did = x.Step(now) || did
	}
	return did
}

func (a apps) Deadline() clock.Time {
	at := clock.Never
	for _, x := range a {
		at = min(at, x.Deadline())
	}
	return at
}

// client makes the clients of a host.
func (r *fuseeRun) client(h *storeHost) (host.App, error) {
	var all apps
	for k := range h.clients {
		x, err := r.thread(h, k)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// thread makes the k-th client of a host.
func (r *fuseeRun) thread(h *storeHost, k int) (host.App, error) {
	c := r.Library
	c.Layout, c.Sessions, c.ID, c.CQ = r.Store, r.Coroutines, uint16(1+(h.first+k)*r.Coroutines), h.cqs[k]
	if r.Slower != nil {
		c.Fibers.Post = time.Duration(float64(c.Fibers.Post) * r.Slower(k, h.clients))
	}
	left := r.Coroutines * len(r.store) // that have not dialled
	c.Dial = func(_ clock.Time, _, node int) (*rnic.QP, fusee.Grant, error) {
		q := h.qps[k][node]
		if left--; left < 0 {
			return nil, fusee.Grant{}, errors.New("sim: the queue pair failed")
		}
		return q, r.grants[node], nil
	}
	c.Alloc = func(_ clock.Time, owner uint16, region, units int) (int, error) {
		return r.store.Alloc(owner, region, units)
	}
	var client *fusee.Client
	past := pastOf(r, uint64(h.first+k))
	c.Next = func(now clock.Time, _ int) (fusee.Op, bool) {
		if r.m.Full {
			return fusee.Op{}, false
		}
		o := h.gens[k].Next()
		past.recall(client, now, o)
		return r.op(o), true
	}
	c.Done = r.done
	client, err := fusee.NewClient(c)
	r.all = append(r.all, client)
	return client, err
}

// past is what a client has done before the window.
type past struct {
	*fuseeRun
	seen map[uint64]bool // keys that the client has asked for in the window
	rng  *rand.Rand
}

func pastOf(r *fuseeRun, client uint64) *past {
	return &past{fuseeRun: r, seen: map[uint64]bool{}, rng: rand.New(rand.NewPCG(r.Seed, client|1<<32))}
}

// recall gives the client's cache what it knows about a key that the client asks for the first time in the window. The client has used the key as
// often as the key's popularity says. Between two uses clients update the key as often as their number and the share of writes say.
func (p *past) recall(client *fusee.Client, now clock.Time, o ycsb.Op) {
	if p.Past == 0 || p.seen[o.Key] {
		return
	}
	p.seen[o.Key] = true
	done := p.rng.Float64() * float64(p.Past)
	share := math.Pow(float64(o.Rank+1), -p.Zipf) / p.zetan
	uses := 0
	if trace := float64(p.Trace); trace > 0 && done > trace { // the key is in the trace
		uses = min(int(done/trace)*max(p.poisson(trace*share), 1), mostUses)
		done = math.Mod(done, trace)
	}
	uses += p.poisson(done * share)
	at, ok := p.store.Place(fuseeKey(o.Key))
	if uses == 0 || !ok {
		return
	}
	writes := p.Writes
	if p.Kind == fusee.Insert { // of other keys
		writes = 0
	}
	others := writes * float64(p.Clients-1)
	changed := func() bool { return p.rng.Float64() < others/(1+others) }
	misses := 0
	for range uses - 1 { // the first one is no miss
		if p.rng.Float64() < writes || changed() {
			misses++
		}
	}
	if changed() {
		at = at.Stale()
	}
	client.Remember(now, fuseeKey(o.Key), at, uses, misses)
}

// poisson draws a number with this mean; of a large one it takes the mean, and counts up to mostUses.
func (p *past) poisson(mean float64) int {
	if mean > 30 {
		return min(int(mean), mostUses)
	}
	n, limit := 0, math.Exp(-mean)
	for x := p.rng.Float64(); x > limit; x *= p.rng.Float64() {
		n++
	}
	return n
}

// mostUses are enough for a key's share of misses.
const mostUses = 200

// op makes an operation of what the workload has.
func (r *fuseeRun) op(o ycsb.Op) fusee.Op {
	if !o.Write {
		return fusee.Op{Kind: fusee.Read, Key: fuseeKey(o.Key)}
	}
	r.turn++ // another value each time
	binary.LittleEndian.PutUint64(r.value, r.turn)
	op := fusee.Op{Kind: r.Kind, Key: fuseeKey(o.Key), Value: r.value[:r.Value]}
	if r.Kind == fusee.Insert {
		op.Key = fuseeKey(r.next)
		r.next++
	}
	return op
}

// done counts an operation.
func (r *fuseeRun) done(o *fusee.Result) {
	switch {
	case errors.Is(o.Err, fusee.ErrFull) || errors.Is(o.Err, fusee.ErrNoMemory):
		r.m.Full = true
		return
	case o.Err != nil || r.Kind != fusee.Delete && o.Found == (o.Kind == fusee.Insert):
		r.m.Errors++
		return
	}
	r.did(o.Kind != fusee.Read, o.Start, o.End, o.Cost)
}
