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

// Memory for servers is there from the start: for those of servers=, and for as
// many more as discover= says. Such a server gets a place when it has answered
// somebody who asked it; made-up destinations get none. It loses the place when it has had no
// connection for idle=, and new memory for the next one is made beside the data
// path.

// reserve makes the memory of servers to come, as far as it is not there.
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
			return // its settings are wrong: whoever comes to need it is told
		}
		s.places = append(s.places, n)
	}
}

// strangers are the servers of static= that servers= does not name.
func (s *settings) strangers() map[conn.Addr]bool {
	seen := map[conn.Addr]bool{}
	for _, text := range s.static {
		if c, err := conn.ParseStatic(text); err == nil && !s.listed(conn.AddrFrom(c.Server)) {
			seen[conn.AddrFrom(c.Server).In(c.VLAN)] = true
		}
	}
	return seen
}

// listed reports whether servers= names a, in whatever VLAN.
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

// meet is the node of server a, which takes a place when it is new. Lists of nodes
// are replaced, never changed: others may be reading.
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

// part takes its place from node n, which is this worker's and idle.
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

// empty has nothing be left of another process, or another server.
func (n *node) empty() {
	for i := range n.flows {
		n.flows[i] = noFlow
	}
}

// idle reports whether nothing is under way at node n.
func (n *node) idle() bool {
	return n.conns.Len() == 0 && n.shelf.Idle() && n.words.writes == 0 && n.words.free.open == [2]int32{}
}

// asked are addresses that requests went to, and that have not answered. There are
// few places, and an address may have one of some: when all of these are taken, lately, it is
// noted another time.
type asked struct {
	at   [64]askedPlace
	seed uint64 // so that nobody chooses addresses that share a place
}

type askedPlace struct {
	// turn: a worker is there. Others do not wait: one that has lost its processor there
	// keeps nobody but the server of this place from being found meanwhile.
	turn atomic.Bool
	addr conn.Addr
	when clock.Time
	n    int       // length of b
	b    [384]byte // the connection manager's request, if it was one
}

// lately is how long an address keeps its place, and answerable how long its
// answer is awaited.
const (
	lately     = time.Second
	answerable = 10 * time.Second
)

// askedWays is how many places an address may have.
const askedWays = 4

func (l *asked) place(a conn.Addr) uint32 {
	v := a.As16()
	return hash(l.seed^be.Uint64(v[:])^be.Uint64(v[8:])<<1^uint64(a.VLAN())<<48) % uint32(len(l.at))
}

// find is the place that fits, of those that a may have, for this worker alone until it clears
// turn; nil when there is none.
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

// ask notes that request b went to address a, which is no node's.
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

// admitServer is the node of a, which is new and has answered; nil when nobody
// asked it, or there is no place.
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

// node is the node of server a; nil when there is none.
func (s *Box) node(a conn.Addr) *node {
	for _, n := range *s.nodes.Load() {
		if slices.Contains(n.addrs, a) {
			return n
		}
	}
	return nil
}

// locate notes another MAC that an answer of node n came from, as requests to it go there.
// Where a server has several addresses, what is known of its words from one is not
// so from another: nothing is replaced then.
func (s *Box) locate(n *node, mac uint64) {
	n.macs[n.nextAt%len(n.macs)].Store(mac)
	n.nextAt++
	s.pair()
}

// isAt reports whether node n's answers come from that MAC; meets whether they come from one that m's come from, too.
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

// pair finds nodes with the same MAC.
func (s *Box) pair() {
	n := s.n
	nodes := *s.nodes.Load()
	for _, m := range nodes {
		s.own(m)
		twin := false
		for _, k := range nodes {
			twin = twin || k != m && k.meets(m) && (!s.fixed || m.named(k.addrs[0].In(0)))
		}
		if m.twin.Load() && !twin {
			m.words.doubtAll() // the other one's clients may have written there
		}
		if m.twins = twin; m.twin.Swap(twin) != twin && twin {
			s.c.Count(ctrTwins, 1)
		}
	}
	if n != nil {
		s.own(n)
	}
}

// hasNamesake reports whether node n, whose server has not been heard and which has no connection, has the address of another node, in another VLAN: both may
// be one server, and what n's clients ask it may change what the other one's do.
func (s *Box) hasNamesake(n *node) bool {
	return n.conns.Len() == 0 && slices.ContainsFunc(*s.nodes.Load(), func(m *node) bool { return m != n && m.named(n.addrs[0].In(0)) })
}

// awaitsTwin reports whether atomics of another node under this one's MAC are
// under way as WRITEs, from the time when nobody knew.
func (s *Box) awaitsTwin() bool {
	n := s.n
	n.twins = false
	busy := false
	for _, m := range *s.nodes.Load() {
		if m != n && m.meets(n) {
			s.own(m)
			busy = busy || m.words.writes > 0
		}
	}
	s.own(n)
	n.twins = busy
	return busy
}

// may reports whether a server's address may get a node.
func (s *settings) may(a conn.Addr) bool {
	return s.mode.moves() && (len(s.servers) == 0 || s.listed(a))
}
