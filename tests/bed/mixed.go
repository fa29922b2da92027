package bed

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
)

// Mixed is several applications at once, whose memory one NIC serves: Clover's
// store, Sherman's tree, and locks and counters of every sort that is given. Each
// has clients of its own. Those of the store are guests: g0 is its metadata server.
type Mixed struct {
	Store Store
	Tree  Tree
	Locks []Trial
	// Overlap registers all words at the same addresses, under different R_Keys.
	Overlap  bool
	MTU      int // 0 = 256
	Sessions int // of a client; 0 = 2
	Profile  rnic.Profile
	Box      *Box
	Faults   fault.Mix // Links nil: all of the bed
}

// Store is a load on Clover's store. The zero value of a field takes the default
// that is given with it.
type Store struct {
	Clients  int // 0 = 2
	Sessions int // of a client; 0 = 3
	Ops      int // of a session; 0 = 40
	Keys     int // 0 = 3
	Slab     int // size of an entry; 0 = 128
	Search   clover.Search
}

// MixedResult is what a run came to.
type MixedResult struct {
	Outcome
	Store    clover.ClientStats
	Verdict  clover.Integrity
	Keys     *history.Log[history.Register, uint64] // of the store
	Tree     *TreeResult
	Locks    []*Result
	Words    map[string]uint32 // R_Keys of the words, by whose they are
	Counters []graph.Count     // of the box, at the end
}

// LocksVA is where the words of Mixed.Locks[i] are, unless they overlap.
func LocksVA(i int) uint64 { return uint64(i+1) << 36 }

func (m Mixed) defaults() Mixed {
	or(&m.MTU, 256)
	or(&m.Sessions, 2)
	or(&m.Store.Clients, 2)
	or(&m.Store.Sessions, 3)
	or(&m.Store.Ops, 40)
	or(&m.Store.Keys, 3)
	m.Tree.Sessions, m.Tree.MTU = m.Sessions, m.MTU
	m.Tree = m.Tree.defaults()
	clients := m.Tree.Clients
	all := append([]Trial(nil), m.Locks...)
	for i := range all {
		all[i].Sessions, all[i].MTU = m.Sessions, m.MTU
		all[i] = all[i].defaults()
		clients += all[i].Clients
	}
	m.Locks = all
	if m.Faults.Links == nil {
		m.Faults.Links = links(nil, clients)
		for i := range m.Store.Clients + 1 {
			m.Faults.Links = append(m.Faults.Links, fmt.Sprintf("g%d", i))
		}
	}
	return m
}

// Run does all loads under a schedule and checks each as if it were alone.
func (m Mixed) Run(seed uint64, s fault.Schedule) (*MixedResult, error) {
	m = m.defaults()
	tree, err := m.Tree.load(seed, 0)
	if err != nil {
		return nil, err
	}
	res := &MixedResult{Tree: tree.res, Words: map[string]uint32{}, Keys: new(history.Log[history.Register, uint64])}
	loads, clients := []load{tree}, m.Tree.Clients
	var locks []*locksLoad
	for i, t := range m.Locks {
		va := LocksVA(i)
		if m.Overlap {
			va = 0
		}
		l, err := t.load(seed, clients, va)
		if err != nil {
			return nil, err
		}
		clients += t.Clients
		locks, loads, res.Locks = append(locks, l), append(loads, l), append(res.Locks, l.res)
	}
	b, err := New(Config{
		Clients: clients, Guests: m.Store.Clients + 1, Sessions: m.Sessions, MTU: m.MTU, Profile: m.Profile, Box: m.Box, Schedule: s, Seed: seed,
		Serve: func(pd *rnic.PD) error {
			err := tree.serve(pd)
			for _, l := range locks {
				err = errors.Join(err, l.serve(pd))
				res.Words[l.Work.String()] = l.grant.Words.RKey
			}
			res.Words["tree"] = tree.grant.Locks.RKey
			return err
		},
		App: func(b *Bed, c *Client) (host.App, error) {
			for i := len(locks) - 1; i >= 0; i-- {
				if c.Number >= locks[i].first {
					return locks[i].app(b, c)
				}
			}
			return tree.app(b, c)
		},
	})
	if err != nil {
		return nil, err
	}
	store, err := m.Store.load(b, seed, res)
	if err != nil {
		return nil, err
	}
	loads = append(loads, store)
	err = drive(b, loads...)
	res.Took, res.Struck = b.Clock.Now().Sub(b.start), b.Struck()
	res.Counters = b.Instance().Counters()
	ran := err
	for _, l := range loads {
		if e := l.check(b, ran); e != ran {
			err = errors.Join(err, e)
		}
	}
	return res, errors.Join(err, b.Close())
}

// Broken is how many queue pairs of the tree's and of the locks' clients failed.
func (r *MixedResult) Broken() uint64 {
	n := r.Tree.Broken
	for _, l := range r.Locks {
		n += l.Broken
	}
	return n + r.Store.Errors
}

// Try is Trial.Try with everything at once.
func (m Mixed) Try(tb testing.TB, seed uint64) (_ *MixedResult, ok bool) {
	tb.Helper()
	m = m.defaults()
	res, err := attempt(tb, "mixed", seed, m.Faults, m.Run, func(res *MixedResult, err error) {
		show(tb, history.Registers(nil), res.Keys, err)
		show(tb, treeKeys(), res.Tree.Keys, err)
		show(tb, words(seed), res.Tree.Words, err)
		for _, l := range res.Locks {
			show(tb, words(seed), l.Words, err)
			show(tb, history.Locks(), l.Locks, err)
		}
	})
	return res, err == nil
}

// storeLoad is a Store's part of a bed.
type storeLoad struct {
	Store
	cl   *clover.Cluster
	dead []bool // of the clients
	res  *MixedResult
}

// load starts the store; its entries lie in the memory of the bed's server.
func (s Store) load(b *Bed, seed uint64, res *MixedResult) (*storeLoad, error) {
	guest := func(i int) clover.Machine {
		at, mac, ip := b.Guest(i)
		return clover.Machine{Name: fmt.Sprintf("g%d", i), Port: at, MAC: mac, IP: ip, Pool: b.Pool}
	}
	rack := clover.Rack{
		Memory:   []clover.Machine{{Name: "s0", MAC: b.server.mac, IP: b.server.ip, NIC: b.Server()}},
		Metadata: guest(0),
	}
	for i := range s.Clients {
		rack.Compute = append(rack.Compute, guest(1+i))
	}
	conn := b.cfg.Conn
	conn.SQPSN = clover.FirstPSN
	cl, err := clover.New(clover.Config{
		Keys: ycsb.Sequential(1, s.Keys), Entries: 4096, Slab: s.Slab, Sessions: s.Sessions, Search: s.Search, Nap: 20 * time.Microsecond, Mix: ycsb.A, Seed: seed,
		Profile: b.cfg.Profile, LinkMTU: b.cfg.MTU + 80, Conn: conn,
	}, rack)
	if err != nil {
		return nil, err
	}
	for i, w := range cl.Workers() {
		b.Attach(i, w.(*host.Node))
	}
	cl.Start(clover.Load{MaxOps: s.Ops, Log: res.Keys})
	return &storeLoad{Store: s, cl: cl, dead: make([]bool, s.Clients), res: res}, nil
}

// wrong: a queue pair that fails ends its session, which is no wrong answer; see
// MixedResult.Broken.
func (l *storeLoad) wrong() error { return nil }

func (l *storeLoad) done(b *Bed) bool {
	for i := range l.dead {
		if !l.dead[i] && b.Down(b.cfg.Clients+1+i) {
			l.dead[i] = true
			l.cl.Abandon(i)
		}
	}
	return l.cl.Stopped()
}

func (l *storeLoad) check(b *Bed, err error) error {
	l.res.Store, l.res.Verdict = l.cl.ClientStats(), l.cl.Integrity()
	if v := l.res.Verdict; err == nil && !v.OK() {
		err = fmt.Errorf("store: %+v", v)
	}
	return errors.Join(err, history.Check(history.Registers(nil), l.res.Keys, 0))
}
