package swordbox

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// Memory for servers is allocated at the start: for the servers of servers=, and for as many more
// as discover= says. A server of the latter sort gets a place when it has answered a request;
// made-up destinations get none. It loses the place when it has had no connection for idle=, and
// another goroutine makes the node for the next server.

// reserve makes nodes for the places that have none, for servers to come.
func (s *shared) reserve(workers int) {
	if !s.cfg.mode.moves() {
		return
	}
	taken := map[int]bool{}
	for _, n := range slices.Concat(s.places, *s.nodes.Load()) {
		taken[n.number] = true
	}
	for p := s.mem.places - 1; p >= 0; p-- {
		if taken[p] {
			continue
		}
		n, err := newNode(p, &s.mem, &s.cfg, workers)
		if err != nil {
			return // its settings are wrong: the error is returned when a server needs the place
		}
		s.places = append(s.places, n)
	}
}

// strangers returns the servers of static= that servers= does not name.
func (s *settings) strangers() map[conn.Addr]bool {
	seen := map[conn.Addr]bool{}
	for _, text := range s.static {
		if c, err := conn.ParseStatic(text); err == nil && !s.listed(conn.AddrFrom(c.Server)) {
			seen[conn.AddrFrom(c.Server).In(c.VLAN)] = true
		}
	}
	return seen
}

// listed reports whether servers= names address a; the VLAN does not matter.
func (s *settings) listed(a conn.Addr) bool {
	for _, one := range s.servers {
		for _, b := range one {
			if conn.AddrFrom(b) == a.In(0) {
				return true
			}
		}
	}
	return false
}

// meet returns the node of server a. A new server takes a place; without a free place meet returns an error. It
// replaces the list of nodes and never changes one, because other workers may be reading it.
func (s *shared) meet(now clock.Time, a conn.Addr) (*node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meetLocked(now, a)
}

func (s *shared) meetLocked(now clock.Time, a conn.Addr) (*node, error) {
	old := *s.nodes.Load()
	for _, n := range old {
		if slices.Contains(n.addrs, a) {
			return n, nil
		}
	}
	if len(s.places) == 0 {
		return nil, fmt.Errorf("swordbox: there is no place for server %v: give more with discover=, up to %d, or name the servers with servers=", a, maxNodes)
	}
	n := s.places[len(s.places)-1]
	s.places = s.places[:len(s.places)-1]
	n.addrs = []conn.Addr{a}
	for _, one := range s.cfg.servers {
		if slices.Contains(one, a.Netip()) {
			n.addrs = nil
			for _, b := range one {
				n.addrs = append(n.addrs, conn.AddrFrom(b).In(a.VLAN()))
			}
		}
	}
	n.words.unknown, n.busy = s.mem.barred, now
	list := append(append(make([]*node, 0, len(old)+1), old...), n)
	s.nodes.Store(&list)
	return n, nil
}

// part removes node n, which this worker owns and which is idle, and makes a new node for its place.
func (s *Box) part(n *node) {
	n.gone = true
	s.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*s.nodes.Load()), func(m *node) bool { return m == n })
	s.nodes.Store(&list)
	s.mu.Unlock()
	s.release()
	s.pair()
	s.making.Go(func() {
		m, err := newNode(n.number, &s.mem, &s.shared.cfg, s.workers)
		if err != nil {
			return
		}
		m.empty()
		s.mu.Lock()
		s.places = append(s.places, m)
		s.mu.Unlock()
	})
}

// empty clears the flows that another process or another server left.
func (n *node) empty() {
	for i := range n.flows {
		n.flows[i] = noFlow
	}
}

// idle reports whether node n has no connections, no held frames and no operations under way.
func (n *node) idle() bool {
	return n.conns.Len() == 0 && n.shelf.Idle() && n.words.writes == 0 && n.words.free.open == [2]int32{}
}

// asked holds addresses to which requests went, and which have not answered. Each address may have one of askedWays
// places. If all of these were taken lately, the address is not noted; a later request may be.
type asked struct {
	at   [64]askedPlace
	seed uint64 // key of the hash, so that nobody can choose addresses that share a place
}

type askedPlace struct {
	// turn: a worker is in this place. Other workers do not wait for it, so if the worker loses its processor
	// meanwhile, only the server of this place is not found.
	turn atomic.Bool
	addr conn.Addr
	when clock.Time
	n    int       // length of b
	b    [384]byte // the request of the connection manager, if the request was one
}

// lately is the time for which no other address may take an address's place, and answerable the time for which its
// answer is awaited.
const (
	lately     = time.Second
	answerable = 10 * time.Second
)

// askedWays is the number of places in which an address may be noted.
const askedWays = 4

func (l *asked) place(a conn.Addr) uint32 {
	v := a.As16()
	return hash(l.seed^be.Uint64(v[:])^be.Uint64(v[8:])<<1^uint64(a.VLAN())<<48) % uint32(len(l.at))
}

// find returns the first of the places of address a for which fits is true, or nil. The caller owns the place until it
// clears turn. find skips places that other workers own.
func (l *asked) find(a conn.Addr, fits func(e *askedPlace) bool) *askedPlace {
	for k := range uint32(askedWays) {
		e := &l.at[(l.place(a)+k)%uint32(len(l.at))]
		if e.turn.CompareAndSwap(false, true) {
			if fits(e) {
				return e
			}
			e.turn.Store(false)
		}
	}
	return nil
}

// ask notes that request b went to address a, which has no node. isCM says that b is a message of the connection
// manager.
func (s *Box) ask(a conn.Addr, b []byte, isCM bool) {
	if !s.cfg.may(a) {
		return
	}
	now := s.c.Now()
	e := s.asked.find(a, func(e *askedPlace) bool { return e.addr == a })
	if e == nil {
		if e = s.asked.find(a, func(e *askedPlace) bool { return e.when == 0 || now.Sub(e.when) >= lately }); e == nil {
			return
		}
		e.addr, e.n = a, 0
	}
	defer e.turn.Store(false)
	if e.when = now; isCM && len(b) <= len(e.b) {
		e.n = copy(e.b[:], b)
	}
}

// admitServer makes and returns the node of server a, which has answered and has none. It returns nil if no request
// to a is noted, or no place is free.
func (s *Box) admitServer(a conn.Addr) *node {
	if !s.cfg.may(a) {
		return nil
	}
	now := s.c.Now()
	e := s.asked.find(a, func(e *askedPlace) bool { return e.addr == a && e.when != 0 && now.Sub(e.when) <= answerable })
	if e == nil {
		return nil
	}
	defer e.turn.Store(false)
	n, err := s.meet(now, a)
	if err != nil {
		s.c.Count(ctrServerFull, 1)
		return nil
	}
	e.when = 0
	s.own(n)
	if b := e.b[:e.n]; e.n > 0 && hdr.Parse(b, &s.g) == hdr.IsRoCE {
		if ends, ok := conn.EndsOf(b, &s.g); ok {
			n.conns.CM(now, &ends, b, &s.g)
		}
	}
	return n
}

// node returns the node of server a, or nil if there is none.
func (s *shared) node(a conn.Addr) *node {
	for _, n := range *s.nodes.Load() {
		if slices.Contains(n.addrs, a) {
			return n
		}
	}
	return nil
}

// locate notes mac, from which an answer of node n came, as a MAC address of n. pair then stops the replacement of atomics
// where n and another node may be one server, whose words change unseen by either node.
func (s *Box) locate(n *node, mac uint64) {
	n.macs[n.nextAt%len(n.macs)].Store(mac)
	n.nextAt++
	s.pair()
}

// isAt reports whether answers of node n come from address mac, and meets whether answers of n and m come from one MAC.
func (n *node) isAt(mac uint64) bool {
	for i := range n.macs {
		if n.macs[i].Load() == mac && mac != 0 {
			return true
		}
	}
	return false
}

func (n *node) meets(m *node) bool {
	for i := range n.macs {
		if m.isAt(n.macs[i].Load()) {
			return true
		}
	}
	return false
}

// mayBe reports whether nodes n and m may be one server: one that has one address in two VLANs, or is reached by way of two, or,
// unless servers= names the servers (fixed), one with two addresses. In two VLANs a server's answers may come from two MAC
// addresses: its own ones, or those of routers.
func (n *node) mayBe(m *node, fixed bool) bool {
	return m.named(n.addrs[0].In(0)) || !fixed && n.meets(m)
}

// inUse reports whether the server of node n may have clients: it has answered, the box follows a connection to it, or static=
// names one. An address that servers= names may be one in a VLAN only.
func (n *node) inUse() bool { return n.macs[0].Load() != 0 || n.follows.Load() }

// pair sets or clears twin for each node, according to whether another node may be the same server.
func (s *Box) pair() {
	n := s.n
	nodes := *s.nodes.Load()
	for _, m := range nodes {
		s.own(m)
		twin := false
		for _, k := range nodes {
			twin = twin || k != m && k.inUse() && m.inUse() && k.mayBe(m, s.fixed)
		}
		if m.twin.Load() && !twin {
			m.words.doubtAll() // the other server's clients may have written to them, if both are one server
		}
		if m.twins = twin; m.twin.Swap(twin) != twin && twin {
			s.c.Count(ctrTwins, 1)
		}
	}
	if n != nil {
		s.own(n)
	}
}

// hasNamesake reports whether node n is not in use yet and another node has n's address in another VLAN. Both may be
// one server, so that requests of n's clients may change the words of the other node.
func (s *Box) hasNamesake(n *node) bool {
	return !n.inUse() && slices.ContainsFunc(*s.nodes.Load(), func(m *node) bool { return m != n && m.named(n.addrs[0].In(0)) })
}

// awaitsTwin reports whether another node that may be the same server as this one has WRITEs in the place of atomics under
// way, sent before the box knew of this one.
func (s *Box) awaitsTwin() bool {
	n := s.n
	n.twins = false
	busy := false
	for _, m := range *s.nodes.Load() {
		if m != n && m.mayBe(n, s.fixed) {
			s.own(m)
			busy = busy || m.words.writes > 0
		}
	}
	s.own(n)
	n.twins = busy
	return busy
}

// may reports whether a server with address a may get a node.
func (s *settings) may(a conn.Addr) bool {
	return s.mode.moves() && (len(s.servers) == 0 || s.listed(a))
}
