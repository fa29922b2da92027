package clover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/rnic"
)

// Machine is one node of the rack with its port and its addresses.
type Machine struct {
	Name string
	Port port.Port
	MAC  [6]byte
	IP   netip.Addr
	// NIC, if not nil, is the machine's NIC, which other programs use, too. The NIC's maker breathes it. Port
	// is then not used.
	NIC *rnic.NIC
	// Pool is where the NIC takes frames from; nil: a pool of its own.
	Pool *packet.Pool
}

// Rack is the machines of a store. All of them reach each other by MAC address; no address resolution is
// needed.
type Rack struct {
	Compute  []Machine // at least one
	Memory   []Machine // at least one
	Metadata Machine
}

// Config describes a store and its workload. A field that is zero takes the default that its comment gives.
type Config struct {
	// Keys are the keys, the most popular first; nil = 1..1024.
	Keys []uint64
	// Slab is the size of an entry, with header and key; 0 = 128.
	Slab int
	// Entries is how many entries of that size a memory node holds; 0 = 2^20.
	Entries int
	// Classes are the classes of entries of a memory node, if it has more than one. Then Entries is not used,
	// and Slab must be the slab of one of them.
	Classes []Class
	// Sessions is how many client threads a compute node has; 0 = 8.
	Sessions int
	// QPs is how many queue pairs the sessions share towards each memory node; 0 = one for each session.
	// Clover's default is 8, SwordBox's 32.
	QPs int
	// EagerShortcuts reads a key's shortcut beside the first entry of a read, as Clover's own client does: a
	// read without conflict then takes two READs. The default reads the shortcut only when the entry turns
	// out to be stale.
	EagerShortcuts bool
	// Search is how clients find tails. SearchLibrary includes EagerShortcuts.
	Search Search
	// Direct says that nothing in the network leads CASes: a write that follows shortcuts need not look for
	// successors of its own entry.
	Direct bool
	// Nap is how long a background thread of SearchLibrary sleeps when it has found nothing to do; 0 =
	// DefaultNap.
	Nap time.Duration
	// Work is the time that the library's own work takes in a model. Live runs leave it 0: the work takes its
	// real time.
	Work Work
	// Warm gives every client the first entry and the shortcut of every key in its cache, as if it had read
	// all keys before.
	Warm bool
	// Mix and Theta describe the workload; see ycsb.Config. Their zero values mean reads only, and all keys
	// alike.
	Mix   ycsb.Mix
	Theta float64
	Seed  uint64
	// Profile is the profile of all NICs.
	Profile rnic.Profile
	// LinkMTU is the Ethernet MTU; 0 = 1500.
	LinkMTU int
	// Conn is how connections are made; the zero value is rnic.DefaultConn with Clover's first PSN, 3185.
	// Addresses, QPNs and PSNs are filled in.
	Conn rnic.Conn
	// CM: the machines' connection managers make and end the connections over the wire. They choose the first
	// PSNs.
	CM bool
	// Metadata is the metadata server's setting.
	Metadata MetadataConfig
}

// FirstPSN is the first PSN of Clover's connections.
const FirstPSN = 3185

// Connection is a connected pair of queue pairs.
type Connection struct {
	Client, Server       netip.Addr
	ClientQPN, ServerQPN uint32
	// Memory tells that the server is a memory node.
	Memory bool
}

// Cluster is a store with its clients: endpoints on the machines of a Rack.
//
// A program must breathe it: Run does this, live, with a goroutine for each machine; or hand Workers to
// host.Spin or host.Sim. Meanwhile any goroutine may call Connected, Start, StopSoon, Stopped, Begin, Live, Err,
// End and Ended, and a Window's functions. All other functions may be called only from the goroutine that
// breathes, or at rest.
//
//	c, err := clover.New(cfg, rack)
//	go c.Run(ctx, clk)
//	c.Start(clover.Load{})
//	… warm up …
//	w := c.Begin()
//	… Live …
//	w.EndSoon()
//	… until w.Ended() …
//	m := w.Measured()          // since Begin; the load goes on
//	c.StopSoon()
//	… until c.Stopped() …      // every operation has ended, all acknowledged
//	cancel()                   // Run returns
//	verdict := c.Integrity()
type Cluster struct {
	cfg     Config
	compute []*loader
	memory  []*Memory
	meta    *Metadata
	nodes   []*host.Node
	conns   []Connection
	addrs   []netip.Addr // of the memory nodes
	cms     managed
	ledger  ledger
	afar    bool   // some machines are in other processes
	store   uint64 // of a store in several processes: the memory node's number
	run     atomic.Pointer[run]
	win     atomic.Pointer[window]
}

// side is one end of a connection that is to be made.
type side struct {
	m   *Machine
	nic *rnic.NIC
	pd  *rnic.PD
	cq  *rnic.CQ
}

// New builds a store on the rack's machines and writes the first entries of its keys.
func New(c Config, r Rack) (*Cluster, error) {
	if err := c.defaults(r); err != nil {
		return nil, err
	}
	cl := &Cluster{cfg: c, cms: managed{of: map[*rnic.NIC]*manager{}}}
	nic := func(m *Machine, n int) (x *rnic.NIC, err error) {
		if x = m.NIC; x == nil {
			if x, err = rnic.New(rnic.Config{MAC: m.MAC, IP: m.IP, Profile: c.Profile, LinkMTU: c.LinkMTU, Pool: m.Pool, Seed: c.Seed<<16 + uint64(n)}); err != nil {
				return nil, fmt.Errorf("%s: %w", m.Name, err)
			}
		}
		return x, cl.manage(m, x)
	}
	var memory []side
	var layout Layout
	entries := 0
	for _, k := range c.Classes {
		entries += k.Entries
	}
	slots := (len(c.Keys) + len(r.Memory) - 1) / len(r.Memory)
	for i := range r.Memory {
		n, err := nic(&r.Memory[i], i)
		if err != nil {
			return nil, err
		}
		m, err := NewMemory(n, MemoryConfig{
			Index: i, FirstLH: uint32(1 + i*entries), Classes: c.Classes,
			FirstSlot: uint32(FirstShortcut + i*slots), Slots: slots,
		})
		if err != nil {
			return nil, err
		}
		cl.memory = append(cl.memory, m)
		cl.addrs = append(cl.addrs, r.Memory[i].IP)
		layout = append(layout, m.Layout()...)
		memory = append(memory, side{&r.Memory[i], n, m.pd, m.cq})
		if r.Memory[i].NIC == nil {
			cl.nodes = append(cl.nodes, host.NewNode(r.Memory[i].Port, n, cl.front(n, nil)))
		}
	}
	n, err := nic(&r.Metadata, len(r.Memory))
	if err != nil {
		return nil, err
	}
	if cl.meta, err = NewMetadata(n, layout, c.Metadata); err != nil {
		return nil, err
	}
	cl.meta.ledger = &cl.ledger
	server := side{&r.Metadata, n, cl.meta.pd, cl.meta.cq}
	cl.nodes = append(cl.nodes, host.NewNode(r.Metadata.Port, n, cl.front(n, cl.meta)))
	for i := range memory {
		q, err := cl.connect(server, memory[i], walkers)
		if err != nil {
			return nil, err
		}
		cl.meta.memory = append(cl.meta.memory, q)
	}
	if err := cl.load(); err != nil {
		return nil, err
	}
	for i := range r.Compute {
		n, err := nic(&r.Compute[i], len(r.Memory)+1+i)
		if err != nil {
			return nil, err
		}
		ld, err := cl.client(i, &r.Compute[i], n, memory, server)
		if err != nil {
			return nil, err
		}
		cl.compute = append(cl.compute, ld)
		cl.nodes = append(cl.nodes, host.NewNode(r.Compute[i].Port, n, cl.front(n, ld)))
	}
	return cl, nil
}

func (c *Config) defaults(r Rack) error {
	if len(r.Compute) == 0 || len(r.Memory) == 0 {
		return errors.New("clover: a rack needs at least one compute node and one memory node")
	}
	if c.Keys == nil {
		c.Keys = ycsb.Sequential(1, 1024)
	}
	c.Slab, c.Entries, c.Sessions = cmp.Or(c.Slab, wire.MinSlab), cmp.Or(c.Entries, 1<<20), cmp.Or(c.Sessions, 8)
	if c.Classes == nil {
		c.Classes = []Class{{c.Slab, c.Entries}}
	}
	c.QPs, c.LinkMTU, c.Nap = cmp.Or(c.QPs, c.Sessions), cmp.Or(c.LinkMTU, 1500), cmp.Or(c.Nap, DefaultNap)
	if c.Conn == (rnic.Conn{}) {
		c.Conn = rnic.DefaultConn()
		c.Conn.SQPSN = FirstPSN
	}
	c.Metadata.MaxClients = cmp.Or(c.Metadata.MaxClients, max(4096, len(r.Compute)*(c.Sessions+spaceChannels+1+collectors)))
	switch {
	case int(c.Search) >= len(searches) || c.Nap < 0 || min(c.Work.Read, c.Work.Write, c.Work.Round, c.Work.Between) < 0:
		return errors.New("clover: no such search, or a nap or work of negative length")
	case !wire.ValidSlab(c.Slab):
		return fmt.Errorf("clover: %d is no slab size: choose 128 << 0..8", c.Slab)
	case c.Sessions < 1 || c.Sessions > 1<<16 || c.QPs < 1:
		return errors.New("clover: a compute node needs 1 to 65536 sessions, and queue pairs for them")
	}
	home, all := 0, 0
	for _, k := range c.Classes {
		if !wire.ValidSlab(k.Slab) || k.Entries < 1 || k.Entries > 1<<31 {
			return fmt.Errorf("clover: %d entries of %d bytes: slabs are 128 << 0..8 bytes, and a class has 1 to 2^31", k.Entries, k.Slab)
		}
		all += k.Entries
		if k.Slab == c.Slab {
			home += k.Entries
		}
	}
	if all*len(r.Memory) >= 1<<32-1 {
		return fmt.Errorf("clover: %d entries on each of %d memory nodes are more than there are handles", all, len(r.Memory))
	}
	if len(c.Keys) == 0 || len(c.Keys) > home*len(r.Memory) {
		return fmt.Errorf("clover: %d keys do not fit into %d entries of %d bytes", len(c.Keys), home*len(r.Memory), c.Slab)
	}
	return nil
}

// connect makes a connected pair of queue pairs to a memory node b and returns the queue pair of a, which has at
// most depth requests under way.
func (cl *Cluster) connect(a, b side, depth int) (*rnic.QP, error) {
	qa, _, err := cl.pair(a, b, true, depth)
	return qa, err
}

// replyDepth is how many replies a connection of the metadata server holds. The last reply may still be
// unacknowledged when the next request arrives.
const replyDepth = 4

func (cl *Cluster) pair(a, b side, memory bool, depth int) (qa, qb *rnic.QP, err error) {
	const access = rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic
	make := func(s side, depth int) (*rnic.QP, error) {
		return s.nic.CreateQP(rnic.QPInit{PD: s.pd, Type: rnic.TypeRC, SendCQ: s.cq, RecvCQ: s.cq, Access: access, MaxSend: depth, MaxRecv: 4})
	}
	if qa, err = make(a, depth); err != nil {
		return nil, nil, err
	}
	if b.nic == nil { // of another process
		role := uint32(afarClient)
		if cl.meta != nil {
			role = afarMetadata
		}
		cl.order(a.nic, order{qp: qa, to: b.m, hello: pack(afarHello{afarMagic, role, cl.store})})
		return qa, nil, nil
	}
	if qb, err = make(b, replyDepth); err != nil {
		return nil, nil, err
	}
	join := func(q *rnic.QP, to side, dest uint32) error {
		c := cl.cfg.Conn
		c.RemoteMAC, c.RemoteIP, c.DestQPN = to.m.MAC, to.m.IP, dest
		c.RQPSN = c.SQPSN
		return q.Connect(c)
	}
	if cl.cfg.CM {
		cl.cms.of[b.nic].wanted[cl.cms.number] = qb
		cl.order(a.nic, order{qp: qa, to: b.m, hello: pack(cl.cms.number)})
	} else if err = join(qa, b, qb.QPN); err != nil {
		return nil, nil, fmt.Errorf("%s to %s: %w", a.m.Name, b.m.Name, err)
	} else if err = join(qb, a, qa.QPN); err != nil {
		return nil, nil, fmt.Errorf("%s to %s: %w", b.m.Name, a.m.Name, err)
	}
	cl.conns = append(cl.conns, Connection{Client: a.m.IP, Server: b.m.IP, ClientQPN: qa.QPN, ServerQPN: qb.QPN, Memory: memory})
	return qa, qb, nil
}

// client makes the client library and the workload of a compute node.
func (cl *Cluster) client(index int, m *Machine, nic *rnic.NIC, memory []side, server side) (*loader, error) {
	cfg := &cl.cfg
	ld := &loader{cl: cl, tally: newTally(), value: make([]byte, cfg.Slab-ValueAt)}
	c := &Client{pd: nic.AllocPD(), index: uint32(index), mtu: cfg.Conn.PathMTU, eager: cfg.EagerShortcuts || cfg.Search == SearchLibrary, search: cfg.Search, direct: cfg.Direct, work: cfg.Work, done: ld.done,
		keys: make(map[uint64]*keyState, len(cfg.Keys)), spare: make([]keyState, len(cfg.Keys))}
	ld.c = c
	for _, key := range cfg.Keys {
		k := c.look(key)
		if cfg.Warm {
			m := cl.meta.keys[key]
			k.tail, k.slot = m.head, m.slot
		}
	}
	c.cq = nic.CreateCQ(8*cfg.Sessions + 256)
	me := side{m, nic, c.pd, c.cq}
	c.bg.nap = cfg.Nap
	if cfg.Search == SearchLibrary {
		c.bg.threads = make([]collector, collectors)
	}
	channels := cfg.Sessions + spaceChannels + 1 + len(c.bg.threads)
	mr, err := c.pd.RegMR(make([]byte, channels*MsgLen), replyBase, rnic.LocalWrite|rnic.RemoteWrite)
	if err != nil {
		return nil, err
	}
	open := func(r *rpc, n int) error {
		qp, sqp, err := cl.pair(me, server, false, replyDepth)
		if err != nil {
			return err
		}
		*r = rpc{qp: qp, reply: mr.Mem[n*MsgLen:][:MsgLen], addr: mr.VA + uint64(n*MsgLen), rkey: mr.RKey}
		if sqp == nil {
			return nil
		}
		return cl.meta.accept(sqp)
	}
	// Queue pairs are numbered in the order in which they are made: those of the sessions come first.
	shared := make([][]*rnic.QP, min(cfg.QPs, cfg.Sessions))
	// A session has an entry, its header and a shortcut under way at most.
	depth := 3 * ((cfg.Sessions + len(shared) - 1) / len(shared))
	for i := range shared {
		for _, to := range memory {
			q, err := cl.connect(me, to, depth)
			if err != nil {
				return nil, err
			}
			shared[i] = append(shared[i], q)
		}
	}
	for _, to := range memory {
		q, err := cl.connect(me, to, shortcutRound)
		if err != nil {
			return nil, err
		}
		c.bg.memory = append(c.bg.memory, q)
	}
	if err := cl.collectors(c, me, memory, func(i int, r *rpc) error { return open(r, cfg.Sessions+spaceChannels+1+i) }); err != nil {
		return nil, err
	}
	for i := range cfg.Sessions {
		s := &Session{c: c, index: i, id: uint64(i) << 8, memory: shared[i%len(shared)]}
		if err := open(&s.rpc, i); err != nil {
			return nil, err
		}
		c.sessions = append(c.sessions, s)
		number := uint32(index*cfg.Sessions + i + 1)
		if cl.afar {
			number = uint32(index*mostAfar + i + 1)
		}
		gen, err := ycsb.New(ycsb.Config{Mix: cfg.Mix, Theta: cfg.Theta, Keys: cfg.Keys, Seed: cfg.Seed}, uint64(number))
		if err != nil {
			return nil, err
		}
		ld.sessions = append(ld.sessions, loadSession{s: s, gen: gen, number: number, journal: &journal{}})
	}
	for i := range c.bg.space {
		if err := open(&c.bg.space[i].rpc, cfg.Sessions+i); err != nil {
			return nil, err
		}
	}
	return ld, open(&c.bg.gc, cfg.Sessions+spaceChannels)
}

// collectors makes the background threads of a client with SearchLibrary.
func (cl *Cluster) collectors(c *Client, me side, memory []side, open func(i int, r *rpc) error) error {
	for i := range c.bg.threads {
		g := &c.bg.threads[i]
		// Threads do not look for work at the same moments.
		g.idle = clock.Time(uint64(int(c.index)*collectors+i) * golden % uint64(cl.cfg.Nap))
		for _, to := range memory {
			q, err := cl.connect(me, to, GCMax)
			if err != nil {
				return err
			}
			g.memory = append(g.memory, q)
		}
		if err := open(i, &g.rpc); err != nil {
			return err
		}
	}
	return nil
}

// replyBase is the address of a client's reply buffers.
const replyBase = 0x550000000000

// accept makes the server listen on a queue pair.
func (m *Metadata) accept(q *rnic.QP) error {
	at := len(m.conns)
	if n := len(m.free); n > 0 {
		at, m.free = m.free[n-1], m.free[:n-1]
	} else if at == m.cfg.MaxClients {
		return fmt.Errorf("clover: the metadata server serves at most %d connections", m.cfg.MaxClients)
	} else {
		m.conns = append(m.conns, nil)
	}
	c := &serverConn{qp: q}
	for i := range c.recv {
		c.recv[i], c.reply[i] = make([]byte, LargeMsgLen), make([]byte, MsgLen)
		id := idRecv | uint64(at)<<8 | uint64(i)
		if err := q.PostRecv(&rnic.RecvWR{ID: id, Buf: c.recv[i]}); err != nil {
			return err
		}
	}
	m.conns[at] = c
	return nil
}

// release frees the place of a queue pair that has ended.
func (m *Metadata) release(q *rnic.QP) {
	for i, c := range m.conns {
		if c != nil && c.qp == q {
			m.conns[i], m.free = nil, append(m.free, i)
		}
	}
}

// load writes a first entry of every key into the memory nodes.
func (cl *Cluster) load() error {
	m := cl.meta
	for _, key := range cl.cfg.Keys {
		p, slot, err := m.firstOf(cl.cfg.Slab, key)
		if err != nil {
			return err
		}
		s, _ := m.layout.Entry(p.LH())
		e := cl.memory[s.Node].entry(p.LH())
		put64(e, 0, uint64(wire.Fresh(wire.MinVersion)))
		put64(e, wire.KeyAt, key)
		put64(e, ValueAt, 0)
		ss, sva := m.layout.Shortcut(slot)
		put64(cl.memory[ss.Node].at(ss, sva, 8), 0, uint64(p))
	}
	return nil
}

// firstOf makes a key with its first entry, in the memory of a node that has room for it.
func (m *Metadata) firstOf(slab int, key uint64) (Pointer, uint32, error) {
	if m.keys[key] != nil {
		return 0, 0, fmt.Errorf("clover: key %#x is given twice", key)
	}
	k := m.class(slab)
	r := &k.fresh[k.turn]
	for r.next == r.end {
		k.turn = (k.turn + 1) % len(k.fresh)
		r = &k.fresh[k.turn]
	}
	k.turn = (k.turn + 1) % len(k.fresh)
	p := wire.Ref(r.next, wire.MinVersion)
	r.next++
	k.free--
	return p, m.create(key, p).slot, nil
}

// Workers returns the machines: the memory nodes (without those whose NIC other programs use), the metadata
// server, the compute nodes.
func (cl *Cluster) Workers() []host.Worker {
	w := make([]host.Worker, len(cl.nodes))
	for i, n := range cl.nodes {
		w[i] = n
	}
	return w
}

// Connections returns all connected queue pairs. These are what a connection manager would tell.
func (cl *Cluster) Connections() []Connection { return cl.conns }

// MemoryAddr is the address of a memory node.
func (cl *Cluster) MemoryAddr(node int) netip.Addr { return cl.addrs[node] }

// MemoryPD is the protection domain of a memory node's regions.
func (cl *Cluster) MemoryPD(node int) *rnic.PD { return cl.memory[node].pd }

// Layout is where the entries and shortcuts are.
func (cl *Cluster) Layout() Layout { return cl.meta.layout }

// Run breathes every machine on a goroutine of its own until ctx is done or one machine fails.
func (cl *Cluster) Run(ctx context.Context, clk clock.Clock) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	errs := make([]error, len(cl.nodes))
	for i, n := range cl.nodes {
		wg.Go(func() {
			if errs[i] = n.Run(ctx, clk); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Start makes the sessions work. An earlier load must have stopped.
func (cl *Cluster) Start(l Load) {
	cl.run.Store(&run{Load: l, signal: newSignal(len(cl.compute))})
}

// StopSoon stops the load: no new operation begins.
func (cl *Cluster) StopSoon() {
	if r := cl.run.Load(); r != nil {
		r.stop.Store(true)
	}
}

// Stopped reports whether the load has ended: after StopSoon, Load.MaxOps or Load.Sweep, when every operation
// has ended and nothing is under way.
func (cl *Cluster) Stopped() bool {
	r := cl.run.Load()
	return r == nil || r.answered()
}

// Abandon says that a compute node has died: its sessions are no longer waited for, and their writes under
// way count as failed. The goroutine that breathes the cluster calls it, while no measurement is under way.
func (cl *Cluster) Abandon(compute int) {
	l := cl.compute[compute]
	for i := range l.sessions {
		if s := &l.sessions[i]; s.open && s.op.Write {
			s.journal.fail(s.seq)
		}
	}
	if r := cl.run.Load(); r != nil && (l.running || l.run != r) {
		l.run, l.running = r, false
		r.answer()
	}
}

// Err is the first error of a connection, an operation or a client; nil: none.
func (cl *Cluster) Err() error {
	if e := cl.cms.failure.Load(); e != nil {
		return *e
	}
	for _, n := range cl.compute {
		if e := n.failure.Load(); e != nil {
			return *e
		}
	}
	return nil
}

// Live counts the operations since the cluster was made. Ops are those without an error.
type Live struct{ Ops, FirstTry, Errors uint64 }

// Live may be called at any time from any goroutine.
func (cl *Cluster) Live() Live {
	var v Live
	for _, n := range cl.compute {
		v.Ops += n.live[0].Load()
		v.FirstTry += n.live[1].Load()
		v.Errors += n.live[2].Load()
	}
	return v
}

// Window is a measurement.
type Window struct {
	cl *Cluster
	w  *window
}

// Begin starts a new measurement while the load goes on. An earlier window must have ended.
func (cl *Cluster) Begin() Window {
	w := &window{newSignal(len(cl.compute))}
	cl.win.Store(w)
	return Window{cl, w}
}

// EndSoon ends the measurement at the nodes' next breath.
func (w Window) EndSoon() { w.w.stop.Store(true) }

// Ended reports whether every node has ended the measurement.
func (w Window) Ended() bool { return w.w.answered() }

// Measured is what the sessions of all compute nodes did in a window.
type Measured struct {
	Ops, Writes, Errors uint64
	// FirstTry operations needed neither a second entry, nor a second CAS, nor the metadata server.
	FirstTry, FirstTryReads, FirstTryWrites uint64
	// RoundTrips is how many requests operations waited for, one after another.
	RoundTrips uint64
	// Elapsed is the mean of the nodes' windows.
	Elapsed time.Duration
	// Read and Write are latencies in nanoseconds.
	Read, Write *hdrhistogram.Histogram
}

// Measured adds up a window that has ended.
func (w Window) Measured() *Measured {
	m := &Measured{Read: hdrhistogram.New(1, longestLatency, 3), Write: hdrhistogram.New(1, longestLatency, 3)}
	for _, n := range w.cl.compute {
		t := &n.tally
		m.Ops += t.ops
		m.Writes += t.writes
		m.Errors += t.errors
		m.FirstTry += t.firstTry
		m.FirstTryReads += t.firstReads
		m.FirstTryWrites += t.firstWrites
		m.RoundTrips += t.roundTrips
		m.Elapsed += t.to.Sub(t.from) / time.Duration(len(w.cl.compute))
		m.Read.Merge(t.read)
		m.Write.Merge(t.write)
	}
	return m
}

// Integrity walks every chain and compares it with the results that the writers got. The cluster must be at
// rest: stopped, and not breathed.
func (cl *Cluster) Integrity() Integrity {
	var journals []*journal
	for _, n := range cl.compute {
		for i := range n.sessions {
			journals = append(journals, n.sessions[i].journal)
		}
	}
	return audit(cl.meta, cl.memory, journals)
}

// ClientStats are the totals of all compute nodes, at rest.
func (cl *Cluster) ClientStats() ClientStats {
	var v ClientStats
	for _, n := range cl.compute {
		s := n.c.Stats()
		v.add(&s)
	}
	return v
}

func (v *ClientStats) add(s *ClientStats) {
	v.Reads += s.Reads
	v.Writes += s.Writes
	v.FirstTry += s.FirstTry
	v.Errors += s.Errors
	v.RoundTrips += s.RoundTrips
	v.Hops += s.Hops
	v.HeaderReads += s.HeaderReads
	v.CASFailed += s.CASFailed
	v.FoundOwn += s.FoundOwn
	v.Stale += s.Stale
	v.Queries += s.Queries
	v.Grants += s.Grants
	v.ShortcutWrites += s.ShortcutWrites
	v.GCRecord += s.GCRecord
}
