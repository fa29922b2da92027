package swordbox

import (
	"cmp"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

// maxNodes is the largest number of servers.
const maxNodes = 16

// toClients and toServers are the app's outputs to the clients and to the servers, and its inputs from them (see
// frame).
const (
	toClients = 0
	toServers = 1
)

// shared is the state that the instances of all workers share.
type shared struct {
	cfg         settings
	mu          sync.Mutex // held while a node is added
	nodes       atomic.Pointer[[]*node]
	places      []*node        // places for new servers; guarded by mu
	making      sync.WaitGroup // goroutines that make places
	asked       asked
	mem         memory
	begun       atomic.Bool
	postponed   bool         // see postpones; worker 0's
	leftServers []netip.Addr // see inherited; guarded by mu
	failed      error
	why         string // why nothing was taken over; empty if it was, or if nothing was there
	stops       int    // number of workers that stopped
}

// node is a memory server: its addresses, the lock by which one worker owns it (turn), and the state of its operations,
// words and connections (order). A worker owns the node while it handles frames from or to the server.
type node struct {
	turn    atomic.Bool
	_       [63]byte         // so that workers that wait for turn read a cache line of its own
	number  int              // number of its place in the memory that outlives the process
	addrs   []conn.Addr      // the server's addresses
	kept    bool             // static= names it
	gone    bool             // not to be used any more: the place is another server's, or free
	twins   bool             // requests wait until no twin has WRITEs in the place of atomics under way
	follows atomic.Bool      // the box follows a connection to it, or did
	busy    clock.Time       // when it last had a connection
	macs    [4]atomic.Uint64 // MAC addresses that its answers come from: several behind a bond or routers; 0: none
	nextAt  int              // index in macs for the next new address
	order
	removed   []*flow    // flows of removed rows; they are cleared after the table's call has returned
	strangers hold.Queue // requests that wait, of connections that the box does not follow
	longs     longWrites
	inspected int // number of connections that the round has inspected; -1: all
}

// owner is the worker that owns a node. Parts of the node take the time from its context, and count and drop frames
// by it.
type owner struct {
	c      *graph.Ctx
	cfg    *settings
	worker int
}

// Box is the app. Each worker has one instance, and only this worker calls it.
type Box struct {
	*shared
	worker, workers int
	fixed           bool
	cfg             settings   // the worker's own: the settings may change
	restatic        bool       // static= has changed
	due             clock.Time // when this worker inspects connections next; 0: it never did
	round           inspection

	requests, responses, bytes uint64
	still                      bool // no operations move (Mode.moves)

	wire
	clients  clientSide
	carriers carrierSide
	batch    [packet.MaxBatch]parsed // used where workers share nodes
}

// parsed is the result of inspect for one frame.
type parsed struct {
	f    hdr.Frame
	ends conn.Ends
	as   as
}

// as is the way in which a frame is handled.
type as uint8

const (
	asServed   as = iota // a request or response of a reliable connection, a datagram about one, or a CNP
	asIs                 // passes unchanged
	asOther              // not RoCE
	asStranger           // RoCE that the box does not follow
	asBadChecksum
	asBadICRC
)

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	cfg, err := parseArgs(args)
	if err != nil {
		return nil, err
	}
	s := env.Share(func() any {
		s := &shared{cfg: cfg}
		s.cfg.seed, s.asked.seed = env.Seed, env.Seed
		s.mem.geometry = cfg.geometry()
		s.mem.ties.of = make(map[port.QueuePair]tie, min(2*s.mem.places*s.mem.conns, port.MaxBound))
		s.nodes.Store(&[]*node{})
		if s.failed = s.remember(env); s.failed == nil && !env.Asked {
			s.reserve(env.Workers)
		}
		return s
	}).(*shared)
	if s.failed != nil {
		return nil, s.failed
	}
	b := &Box{shared: s, cfg: cfg, worker: env.Worker, workers: env.Workers, fixed: len(cfg.servers) > 0}
	b.wire.cfg = &b.cfg
	b.clients, b.carriers = clientSide{&b.wire, &b.carriers}, carrierSide{&b.wire, &b.clients}
	if b.workers > 1 {
		b.post = &post{}
	}
	for _, text := range cfg.static {
		if _, err := conn.ParseStatic(text); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// newNode makes the node of the server in place number place of memory m. Its flows are those that the memory holds.
func newNode(place int, m *memory, cfg *settings, workers int) (*node, error) {
	n := &node{number: place, removed: make([]*flow, 0, cfg.conns)}
	n.order.init(place, m, cfg, workers)
	var err error
	n.conns, err = conn.New(conn.Config{Rows: cfg.conns, Seed: cfg.seed, Infer: cfg.infer, Settle: cmp.Or(cfg.pair, conn.AtOnce), Idle: cfg.idle, LetGo: n.letGo, OnRemove: func(s conn.Slot) {
		if len(n.removed) < cap(n.removed) {
			n.removed = append(n.removed, &n.flows[s])
		}
	}})
	return n, err
}

// letGo reports whether the quiet flow in slot s may be forgotten. A flow whose two ends count differently is kept
// while the server's end may be there, and is marked quiet, so that the server is asked.
func (n *node) letGo(s conn.Slot) bool {
	f := &n.flows[s]
	switch {
	case !f.synced:
		return true
	case f.oldest != none && !n.hasLapsed(f) || f.gated || f.lost != 0 && !f.told:
		return false
	case f.dead && f.bound && !f.gone: // its client goes on over other clients' connections
		return n.conns.Len() > len(n.flows)*3/4
	case f.gone || f.dead || !f.bound:
		return true
	}
	f.quiet = true
	return false
}

// begin makes the nodes and connections that the last process left, and those of the arguments. It is called before the
// first frame is handled; later calls do nothing.
func (s *Box) begin(now clock.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun.Load() {
		return
	}
	defer s.begun.Store(true)
	s.inherit(now)
	s.reserve(s.workers)
	for _, n := range s.places {
		n.empty()
	}
	if !s.cfg.mode.moves() {
		return
	}
	for _, a := range s.cfg.servers {
		if n, err := s.meetLocked(now, conn.AddrFrom(a[0])); err == nil {
			n.kept = true
		}
	}
	for _, text := range s.cfg.static {
		r, _ := conn.ParseStatic(text)
		if n, err := s.meetLocked(now, conn.AddrFrom(r.Server).In(r.VLAN)); err == nil {
			n.kept = true
			n.follows.Store(true)
			if _, err := n.conns.AddStatic(now, r); err != nil {
				s.c.Count(ctrStaticRefused, 1)
			}
		}
	}
}

// Wants implements graph.Wanter. Frames of connections whose two ends count differently must not cross in the kernel,
// whether servers= names their servers or not. Without the memory it is unknown whether there are such connections, so
// Wants assumes that there are.
func (s *Box) Wants() port.Filter {
	f := port.Filter{RoCE: true, Hosts: slices.Concat(s.cfg.servers...), Bound: s.cfg.mode.moves() || s.mem.b == nil || s.recorded() > 0}
	if len(f.Hosts) != 0 {
		for a := range s.cfg.strangers() {
			f.Hosts = append(f.Hosts, a.Netip())
		}
		f.Hosts = append(f.Hosts, s.inherited()...)
	}
	return f
}

// turnSpins is the number of times that a worker that waits for a node looks before it yields its processor. That takes
// longer than an uninterrupted batch of the owner.
const turnSpins = 1 << 14

// own takes node n for this worker, and waits until its owner has released it. release gives the node back.
func (s *Box) own(n *node) {
	if s.n == n {
		return
	}
	s.release()
	if s.workers > 1 {
		for i := 1; n.turn.Load() || !n.turn.CompareAndSwap(false, true); i++ {
			if i%turnSpins == 0 {
				runtime.Gosched()
			}
		}
	}
	s.n = n
	n.owner = owner{s.c, &s.cfg, s.worker}
	n.shelf.Return(s.c, s.worker, reasonAbsorbed)
}

func (s *Box) release() {
	if s.n != nil && s.workers > 1 {
		s.n.turn.Store(false)
	}
	s.n = nil
	if s.post != nil {
		s.dispatch()
	}
}

// Push implements graph.App.
func (s *Box) Push(c *graph.Ctx, in int, b *packet.Batch) {
	s.c = c
	if !s.begun.Load() {
		s.begin(c.Now())
	}
	s.requests, s.responses, s.bytes, s.still = 0, 0, 0, !s.cfg.mode.moves()
	if s.workers == 1 {
		for _, x := range b.Bufs() {
			s.congested = false
			b := x.Bytes()
			s.frame(in, x, b, s.inspect(b, &s.f, &s.ends))
		}
	} else {
		s.pushShared(in, b)
	}
	s.release()
	c.Count(ctrRequests, s.requests)
	c.Count(ctrResponses, s.responses)
	c.Count(ctrBytes, s.bytes)
	s.c = nil
}

// pushShared does the work of Push where workers share nodes. It inspects all frames before it owns a node.
//
//go:noinline
func (s *Box) pushShared(in int, b *packet.Batch) {
	for i, x := range b.Bufs() {
		p := &s.batch[i]
		p.as = s.inspect(x.Bytes(), &p.f, &p.ends)
	}
	for i, x := range b.Bufs() {
		p := &s.batch[i]
		s.congested, s.f, s.ends = false, p.f, p.ends
		s.frame(in, x, x.Bytes(), p.as)
	}
}

// inspect parses and checks frame b into f and ends, and returns how it is to be handled. It needs no node.
func (s *Box) inspect(b []byte, f *hdr.Frame, ends *conn.Ends) as {
	flaw, idle := hdr.NoFlaw, s.still && len(*s.nodes.Load()) == 0
	if idle {
		hdr.Parse(b, f)
	} else {
		flaw = hdr.Examine(b, f)
	}
	if f.Why != hdr.IsRoCE {
		return asOther
	}
	if f.Op.Has(hdr.IsRequest) {
		s.requests++
	} else {
		s.responses++
	}
	s.bytes += uint64(len(b))
	if idle {
		return asIs
	}
	if f.Op.Transport() != hdr.RC && f.Op != hdr.CNP {
		if _, ok := f.CMOf(b); !ok {
			return asStranger
		}
	}
	if flaw != hdr.NoFlaw {
		if flaw == hdr.BadChecksum {
			return asBadChecksum
		}
		return asBadICRC
	}
	if f.Plain && ends.OfPlain(b) || !f.Plain && ends.Of(b, f) {
		return asServed
	}
	return asStranger
}

// frame handles frame x from input in, with the bytes b, after inspect. It disposes of x.
func (s *Box) frame(in int, x *packet.Buf, b []byte, as as) {
	if as != asServed {
		s.unserved(in, x, b, as)
		return
	}
	f := &s.f
	fl := f.Op.Info().Flags
	isCM := f.Op.Transport() != hdr.RC && f.Op != hdr.CNP // inspect passes no other frames on
	a := &s.ends.Src                                      // the server's address
	if in == toClients {
		a = &s.ends.Dst
	}
	n := s.n
	if n == nil || n.addrs[0] != *a {
		if n = s.serverOf(in, b, a, isCM); n == nil {
			if s.mem.bound.Load() != 0 && s.reversed(in, b) {
				s.c.Drop(x, reasonSide)
				return
			}
			s.aside(in, x, b, reasonStranger) // it may be the address of a known server, but in another VLAN
			return
		}
		s.own(n)
	}
	if in == toClients && n.macs[0].Load() == 0 && !isCM && s.hasNamesake(n) {
		s.aside(in, x, b, reasonStranger)
		return
	}
	if in == toServers {
		if mac := fromOf(b); n.macs[0].Load() != mac && !n.isAt(mac) {
			s.locate(n, mac)
		}
	} else if n.twins && s.awaitsTwin() && !isCM {
		s.c.Drop(x, reasonTwin)
		return
	}
	if n.gone { // perhaps since just now: looking at other nodes gives this one's turn away
		s.aside(in, x, b, reasonStranger)
		return
	}
	switch {
	case isCM:
		s.managed(in, x, b)
	case f.Op == hdr.CNP:
		if !s.congestion(in, x, b) {
			s.pass(in, x)
		}
		return
	case in == toClients && fl&hdr.IsRequest != 0:
		s.clients.request(x, b)
	case in == toServers && fl&hdr.IsResponse != 0:
		s.carriers.response(x, b)
	default: // a server's request, or the answer to one
		if s.mem.bound.Load() != 0 && s.reversed(in, b) {
			s.c.Drop(x, reasonSide)
		} else {
			s.pass(in, x)
		}
		return
	}
	if len(n.ready) != 0 || len(n.removed) != 0 || len(n.waits.all) != 0 || !n.strangers.Empty() {
		s.clients.settle()
	}
}

// serverOf returns the node of the server with address a that frame b is from or to, or nil if there is none. An answer
// of a server that a client has asked makes a new node. isCM says that b is a message of the connection manager.
func (s *Box) serverOf(in int, b []byte, a *conn.Addr, isCM bool) *node {
	is := s.f.Op.Info().Flags
	cm, _ := s.f.CMOf(b)
	n := s.node(*a)
	switch {
	case n != nil:
	case in == toServers && (is&hdr.IsResponse != 0 || isCM):
		return s.admitServer(*a)
	case in == toClients && is&hdr.IsRequest != 0 && (!isCM || cm.AttributeID() == hdr.ConnectRequest):
		s.ask(*a, b, isCM)
	}
	return n
}

// unserved handles frame x, which inspect has not found to be asServed, and disposes of x.
func (s *Box) unserved(in int, x *packet.Buf, b []byte, as as) {
	switch as {
	case asIs:
		s.pass(in, x)
	case asOther:
		if why := s.f.Why; s.cfg.dropBad && (why == hdr.Truncated || why == hdr.BadLength || why == hdr.BadIP) {
			s.c.Drop(x, graph.Reason(why))
			return
		}
		if in != toClients || !s.hidden(x, b) {
			s.aside(in, x, b, graph.Reason(s.f.Why))
		}
	case asStranger:
		s.aside(in, x, b, reasonStranger)
	case asBadChecksum:
		s.bad(in, x, reasonBadChecksum, s.cfg.dropBad)
	case asBadICRC:
		s.bad(in, x, reasonBadICRC, s.cfg.dropBad)
	}
}

// Held implements graph.Holder.
func (s *Box) Held() int {
	h := 0
	for _, n := range *s.nodes.Load() {
		h += n.shelf.Held(s.worker)
	}
	return h
}

// Stop implements graph.Holder. It drops the held frames, which their senders will repeat.
func (s *Box) Stop(c *graph.Ctx) {
	s.c = c
	for _, n := range *s.nodes.Load() {
		s.own(n)
		n.shelf.Drop(s.c, &n.strangers, s.worker, reasonAbsorbed)
		for i := range n.flows {
			f := &n.flows[i]
			n.dismiss(f, reasonAbsorbed)
			for k := f.first; k != f.tail; k++ {
				s.n.shelf.unkeep(n.op(f, k)) // rebuild sees by the operation that it was kept
			}
		}
	}
	s.release()
	s.c = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stops++; s.stops == s.workers && s.begun.Load() {
		s.mem.alive(c.Now())
	}
}

var _ graph.App = (*Box)(nil)
