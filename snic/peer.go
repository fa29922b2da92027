package snic

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/mat"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/region"
	"github.com/quillon/quillon/snic/sched"
)

// Between boards of a pool a frame is in front of an Ethernet header and a network service
// header without metadata (RFC 8300): the path is the UID of its DAG, and the
// index 0x20, with bit 4 set in an answer, and in bits 3 to 0 the port of the first
// board by which it is to leave. An even one means that it goes back.
const (
	siPool   = 0x20
	siAnswer = 0x10
	outerLen = hdr.EthernetLen + hdr.NSHLen
)

// MaxPeers is the largest number of boards in a pool: a way has 6 bits for a peer.
const MaxPeers = 63

// asideFor is the time after which a DAG that no peer takes is offered again.
const asideFor = 100 * time.Millisecond

// stayFor is how long a DAG whose state is too large is not offered.
const stayFor = 10 * time.Second

// underway is how long frames may be on the way to a peer. A DAG that comes home waits so
// long before the peer is told to stop, and the peer waits so long after the last frame before
// it stops.
const underway = time.Millisecond

// echo is how long answers of a peer are taken for a DAG that was there.
const echo = time.Second

// patience is how long a peer's DAG may take to drain before its state is taken all
// the same.
const patience = 500 * time.Millisecond

// fullEvery is how often a board tells its pool its whole state; events it tells at once.
const fullEvery = 5 * time.Millisecond

// mostOffered is the most DAGs that a board offers to run.
const mostOffered = 1024

// limbo is a chain that is in no region: whose packets are to wait go there.
const limbo = maxChains

// nearby is what the board does together with others: with boards of a pool, and, in fellows, with other workers of the board. It
// implements helpers.
type nearby struct {
	fellows
	memory *onboard // nil: there is none
	pool   *pooled  // nil: it is in none
}

// pooled is a board's side of the pool.
type pooled struct {
	port    int
	mtu     int
	number  int
	mac     [6]byte
	peers   [MaxPeers]peer
	byMAC   map[[6]byte]int
	byUID   map[uint32]int
	usable  int
	joined  bool          // a Peering is there
	busy    []int         // DAGs on their way to a peer or back, by index in the deployment
	full    clock.Time    // when the whole state was told last
	states  [2]boardState // what it tells, in turns: the pool goes by the one while the other is written
	last    int           // which of them was told last
	freed   clock.Time    // when the pool was told that a region is free
	copies  clock.Time    // when to look for guests of which a copy is due
	hash    uint64
	chains  []pool.Chain // by index of the DAG in the deployment
	stays   []string     // why the DAG does not go to a peer; "": it may
	titles  []string     // the DAG's name for people
	orders  []order
	say     []notice
	make    []*renewal   // of tasks
	homes   []int        // of DAGs, by index in the deployment: the worker that says what becomes of one; nil: there is one
	handed  packet.Batch // frames by the pool's port that other workers have handed over
	saving  bool         // the state of a DAG is being saved
	pieceAt clock.Time   // when the next piece is saved
	sent, answered, served,
	failed uint64
}

// peer is another board.
type peer struct {
	up     bool
	usable bool // the peer has the same deployment
	mac    [6]byte
	view   pool.Peer
}

// wish is what a DAG of this board wants of the pool.
type wish struct {
	wanted bool       // a peer is looked for, or has been found
	alone  clock.Time // the DAG is not offered again before
	stuck  bool       // its state is too large to go to a peer, or to come home
}

// hosting is what a DAG does here for peers.
type hosting struct {
	guests  []guest
	foreign uint64     // packets of peers
	heard   clock.Time // when the last of these packets came
	stale   bool       // state from guests must be removed, once no packet is inside
	ended   clock.Time // when the last guest ended
}

// guest is a peer's DAG that runs here.
type guest struct {
	lease       pool.Lease
	ready       bool
	saving      bool
	since       clock.Time
	gone        bool       // its state is on the way home
	copied      clock.Time // when its board was sent a copy of its state last
	packetsThen uint64     // foreign packets at that time
	copying     bool       // a copy of its state is being made for its board
	out         *outgoing
}

// order is one thing that the pool tells the board.
type order struct {
	kind       orderKind
	deployment uint64
	event      pool.Event
	lease      pool.Lease
	chain      int
	state      []byte
	in         *incoming // what it brings, once that is read
	board      int
	peer       peer
	mac        [6]byte
}

type orderKind uint8

const (
	anEvent orderKind = iota
	toLoad
	toRestore
	toSave
	toRelease
	toRemember // what a copy says that a DAG of this board knew
	aPeer
	itself
)

// notice is one thing that the board tells the pool.
type notice struct {
	kind       noticeKind
	id         int // DAG, by index in the deployment; of frees: the worker whose region it is
	rate       float64
	lease      pool.Lease
	out        *outgoing
	state      []byte // the same in one, made beside the worker
	area       int
	deployment uint64 // while it waits for other workers
}

type noticeKind uint8

const (
	wants noticeKind = iota
	hands
	comes
	remains
	frees
	isReady
	isRestored
	hasFailed
	hasSaved
	hasCopied
	isKept
	sees
)

// serves reports whether a DAG runs for a peer.
func (h *hosting) serves(peer int) bool {
	for i := range h.guests {
		if g := &h.guests[i]; g.lease.Owner == peer && g.ready && !g.gone {
			return true
		}
	}
	return false
}

// speaks reports whether this worker decides about a DAG in the pool, as the DAG's home. All frames to a peer and back go through the
// home, so that a flow keeps its order.
func (cat *catalog) speaks(s *service) bool { return cat.house == nil || s.lodge.home == cat.worker }

// mayGo reports whether the home, or there the pool, is to be asked when there is no room for a DAG.
func (nb *nearby) mayGo(now clock.Time, n int) bool {
	return !nb.cat.speaks(&nb.cat.services[n]) || nb.mayTravel(now, n)
}

// mayTravel reports whether the pool is to be asked for a peer for a DAG.
func (nb *nearby) mayTravel(now clock.Time, n int) bool {
	s := &nb.cat.services[n]
	if nb.pool == nil || !nb.cat.speaks(s) || nb.pool.usable == 0 || s.wish.wanted || len(s.hosted.guests) > 0 || now < s.wish.alone {
		return false
	}
	i := slices.Index(nb.cat.dagOf, n)
	return i >= 0 && nb.pool.stays[i] == ""
}

// leave makes the frames of a DAG for which there is no region wait, and sends the DAG to another worker or a peer.
func (nb *nearby) leave(n int) {
	if nb.cat.speaks(&nb.cat.services[n]) {
		nb.ask(n, true)
	} else {
		nb.leaveFor(n)
	}
}

// signpost tells other workers whether a DAG is abroad.
func (nb *nearby) signpost(n int) {
	if nb.cat.house != nil {
		s := &nb.cat.services[n]
		nb.cat.house.abroad[n].Store(s.UID != 0 && (s.wish.wanted || s.elsewhere()))
	}
}

// load is how many bytes a second come for a DAG here, including frames that other workers hand over.
func (s *service) load() float64 { return s.rate + s.lodge.rate }

// own reports whether a DAG here has had frames of the board itself, not only of peers.
func (s *service) own() bool { return s.packets+s.lodge.frames > s.hosted.foreign }

// regionFreed notes that a region is free.
func (nb *nearby) regionFreed() {
	if nb.pool != nil {
		nb.pool.freed = 0 // the pool is told at once
	}
	nb.freed = nb.cat.house != nil
}

// ask makes the pool look for a peer; with pause the DAG's frames wait meanwhile.
func (nb *nearby) ask(n int, pause bool) {
	s := &nb.cat.services[n]
	s.wish.wanted = true
	nb.pool.say = append(nb.pool.say, notice{kind: wants, id: slices.Index(nb.cat.dagOf, n), rate: s.load() * 8})
	if pause {
		s.where.hold()
		nb.placing.hold(n)
	}
	nb.signpost(n)
}

// route sets the way of all packets of a DAG, there and back.
func (pl *placement) route(n int, r sched.Route) {
	s := &pl.cat.services[n]
	s.aside = nil
	var ids []int
	var all []sched.Route
	for _, at := range append(s.others(), 0) {
		for i := range 2 {
			r.Back = i > 0
			ids, all = append(ids, at+2*n+i), append(all, r)
		}
	}
	if err := pl.runner.sched.SetRoutes(ids, all); err != nil {
		panic(fmt.Sprintf("snic: a route of the pool: %v", err))
	}
}

// hold puts packets of a DAG on which no task has run on a route on which they wait, as its whereabouts say.
func (pl *placement) hold(n int) {
	s := &pl.cat.services[n]
	s.bulk, s.width, s.missing = false, 0, false
	pl.route(n, sched.Route{Stages: [][][]sched.Visit{{{{Chain: limbo, Mask: 1}}}}})
}

// send sends packets of a DAG to a peer from now on, first those that wait.
func (nb *nearby) send(now clock.Time, n, to int) {
	s := &nb.cat.services[n]
	visits := s.visits
	s.where.depart(now, peerAt(to))
	s.bulk, s.width, s.missing, s.visits = false, 0, false, nil
	nb.placing.route(n, sched.Route{})
	nb.placing.abandon(now, visits)
}

// local makes packets of a DAG run here again, first those that wait. The pool no longer looks for a peer.
func (nb *nearby) local(now clock.Time, n int) {
	nb.cat.services[n].wish.wanted = false
	nb.placing.settleHere(now, n)
}

// settleHere makes packets of a DAG run here, first those that wait.
func (pl *placement) settleHere(now clock.Time, n int) {
	s := &pl.cat.services[n]
	visits := s.visits
	s.where.settle(now)
	if visits != nil {
		pl.follow(n, visits)
		pl.lacking = pl.lacking || s.missing && pl.runner.waits[n] > 0 // its region was freed meanwhile
		return
	}
	pl.plan(now, n, pl.runner.waits[n] == 0)
}

// abandon deschedules the chains of visits that no DAG here goes through.
func (pl *placement) abandon(now clock.Time, visits []sched.Visit) {
	for _, v := range visits {
		used := false
		for n := range pl.cat.services {
			used = used || pl.cat.uses(n, v.Chain)
		}
		if used || !pl.cat.chains[v.Chain].known {
			continue
		}
		for _, r := range slices.Clone(pl.cat.chains[v.Chain].running) {
			pl.fabric.Release(now, r)
		}
	}
}

// emit sends a frame out: by a port, or back to the peer that it came from.
func (gt *gates) emit(c *graph.Ctx, w way, x *packet.Buf) {
	if w.out < ports {
		gt.depart(c, int(w.out), x)
		return
	}
	uid := uint32(0)
	if w.dag >= 0 {
		uid = gt.cat.services[w.dag].UID
	}
	gt.pool.served++
	gt.toPeer(c, int(w.out>>4)-1, uid, siPool|siAnswer|uint8(w.out&(ports-1)), x)
}

// request sends a frame to the peer that its DAG is at.
func (gt *gates) request(c *graph.Ctx, s *service, w way, x *packet.Buf) {
	if w.out >= ports {
		c.Drop(x, reasonTwice)
		return
	}
	gt.pool.sent++
	gt.toPeer(c, s.where.to.peer(), s.UID, siPool|uint8(w.out), x)
}

func (gt *gates) toPeer(c *graph.Ctx, to int, uid uint32, si uint8, x *packet.Buf) {
	p := &gt.pool.peers[to]
	if !p.up {
		c.Drop(x, reasonNoPeer)
		return
	}
	if x.Len()+outerLen > gt.pool.mtu+hdr.EthernetLen {
		c.Drop(x, reasonPoolMTU)
		return
	}
	h, ok := x.Prepend(outerLen)
	if !ok {
		c.Drop(x, reasonPoolMTU)
		return
	}
	copy(h, p.mac[:])
	copy(h[6:], gt.pool.mac[:])
	binary.BigEndian.PutUint16(h[12:], hdr.EtherNSH)
	hdr.NSH(h[hdr.EthernetLen:]).Encode(&hdr.NSHFields{TTL: 63, NextProtocol: hdr.NSHNextEthernet, SPI: uid, SI: si})
	gt.depart(c, gt.pool.port, x)
}

// fromPeer takes a frame from the pool's port. Answers leave at once; of requests
// it returns the DAG, -1 when there is none left, and the way out.
func (nb *nearby) fromPeer(c *graph.Ctx, x *packet.Buf) (n int, out uint16) {
	p := x.Bytes()
	if len(p) < outerLen+hdr.EthernetLen || [6]byte(p[:6]) != nb.pool.mac || binary.BigEndian.Uint16(p[12:]) != hdr.EtherNSH {
		c.Drop(x, reasonBadPeer)
		return -1, 0
	}
	h := hdr.NSH(p[hdr.EthernetLen:])
	from, ok := nb.pool.byMAC[[6]byte(p[6:12])]
	if !ok || from < 0 || h.Version() != 0 || h.OAM() || h.HeaderLen() != hdr.NSHLen || h.NextProtocol() != hdr.NSHNextEthernet || h.SI()&^(siAnswer|(ports-1)) != siPool {
		c.Drop(x, reasonBadPeer)
		return -1, 0
	}
	uid, si := h.SPI(), h.SI()
	port := int(si & (ports - 1))
	if port == nb.pool.port {
		c.Drop(x, reasonTwice)
		return -1, 0
	}
	x.SetFrame(int(x.Off())+outerLen, len(p)-outerLen)
	n, ok = nb.pool.byUID[uid]
	if si&siAnswer != 0 {
		if !ok || !nb.cat.services[n].where.answers(c.Now(), from) {
			c.Drop(x, reasonUnasked)
			return -1, 0
		}
		nb.pool.answered++
		c.Mark(x, packet.Rewritten, reasonAnswered)
		nb.gates.depart(c, port, x)
		return -1, 0
	}
	if !ok || !nb.cat.services[n].hosted.serves(from) {
		c.Drop(x, reasonUnserved)
		return -1, 0
	}
	if nb.cat.services[n].where.to > 0 {
		c.Drop(x, reasonTwice)
		return -1, 0
	}
	nb.cat.services[n].hosted.foreign++
	nb.cat.services[n].hosted.heard = c.Now()
	return n, uint16(from+1)<<4 | uint16(port)
}

// flow is the hash of a frame.
func flow(x *packet.Buf) uint64 {
	var l hdr.Layers
	if !hdr.Walk(x.Bytes(), &l) {
		return 0
	}
	return mat.Hash(x.Bytes(), &l)
}

// joinPool takes up a deployment: it finds the DAGs that may go to peers. Agreements with
// peers about another deployment end.
func (nb *nearby) joinPool(c *graph.Ctx) {
	d := nb.deployment
	if id := d.Number(); id != nb.pool.hash {
		nb.pool.hash = id
		nb.pool.say, nb.pool.busy, nb.pool.full = nil, nil, 0
		for i := range nb.cat.services {
			s := &nb.cat.services[i]
			if !nb.cat.speaks(s) {
				continue
			}
			if s.elsewhere() || s.wish.wanted || s.hosted.guests != nil {
				s.where.settle(nb.cat.seen)
				s.wish, s.hosted = wish{}, hosting{foreign: s.hosted.foreign}
				s.visits = nil
			}
			if s.UID != 0 && s.own() {
				nb.cat.mine(s)
			}
			nb.signpost(i)
		}
		for n := range nb.cat.tasks {
			nb.forget(c, n)
		}
	}
	nb.pool.byUID = map[uint32]int{}
	users := make([]int, len(nb.cat.tasks))
	for _, n := range nb.cat.dagOf {
		nb.pool.byUID[nb.cat.services[n].UID] = n
		for _, t := range nb.cat.services[n].tasks {
			users[t]++
		}
	}
	nb.pool.chains, nb.pool.stays, nb.pool.titles, nb.pool.homes = nil, nil, nil, nil
	for i, x := range d.DAGs {
		s := &nb.cat.services[nb.cat.dagOf[i]]
		if nb.cat.house != nil {
			nb.pool.homes = append(nb.pool.homes, s.lodge.home)
		}
		ch := pool.Chain{Area: math.MaxInt32, Bitstream: d.Regions.Bitstream, Stateful: true, Hand: true}
		why := ""
		if visits := s.best; visits != nil {
			ch.Area = 0
			for _, v := range visits {
				ch.Area = max(ch.Area, nb.cat.chains[v.Chain].Area)
			}
		}
		if x.UID >= 1<<24 {
			why = "its UID is no service path: want less than 16777216"
		}
		for _, t := range s.tasks {
			switch x := &nb.cat.tasks[t]; {
			case !x.Remote:
				why = x.Name + " is not remote"
			case x.State && users[t] > 1:
				why = x.Name + " has state, and is of another DAG, too"
			case x.State && !tells(x.app):
				why = x.Name + " has state that cannot be told"
			}
		}
		nb.pool.chains, nb.pool.stays = append(nb.pool.chains, ch), append(nb.pool.stays, why)
		nb.pool.titles = append(nb.pool.titles, fmt.Sprintf("DAG %d (%s)", s.UID, nb.cat.names(s.tasks)))
	}
}

// tells reports whether the state of a task can be saved.
func tells(app graph.App) bool {
	_, ok := app.(graph.Saver)
	return ok
}

// runs reports whether all chains that a DAG goes through are in regions.
func (cat *catalog) runs(s *service) bool {
	return s.visits != nil && !slices.ContainsFunc(s.visits, func(v sched.Visit) bool { return len(cat.chains[v.Chain].running) == 0 })
}

// hopes reports whether all chains that a DAG goes through are in regions, or will be.
func (cat *catalog) hopes(s *service) bool {
	return s.visits != nil && !slices.ContainsFunc(s.visits, func(v sched.Visit) bool { ch := &cat.chains[v.Chain]; return len(ch.running) == 0 && !ch.asked })
}

// peering carries out the orders of the pool, and tells the pool the results.
func (nb *nearby) peering(c *graph.Ctx) {
	p := nb.pool
	now := c.Now()
	for _, o := range p.orders {
		switch {
		case o.kind == itself:
			p.number, p.mac = o.board, o.mac
		case o.kind == aPeer:
			p.meet(o.board, o.peer)
		case o.deployment != p.hash || !nb.concerns(&o):
		case o.kind == toRemember:
			if n := o.event.Want; n >= 0 && n < len(nb.cat.dagOf) && !nb.restore(&nb.cat.services[nb.cat.dagOf[n]], o.state, o.in) {
				p.failed++
			}
		case o.kind == anEvent:
			p.busy = appendNew(p.busy, o.event.Want, len(nb.cat.dagOf))
			nb.poolEvent(now, o.event, o.in)
		default:
			p.busy = appendNew(p.busy, o.chain, len(nb.cat.dagOf))
			nb.poolGuest(c, o)
		}
	}
	p.saving = false
	if nb.poolCopy > 0 && now >= p.copies {
		nb.copyOne(now)
	}
	if len(p.orders) == 0 && len(p.busy) == 0 {
		return
	}
	clear(p.orders)
	p.orders = p.orders[:0]
	nb.placing.events(c) // what was launched may run
	busy := p.busy[:0]
	for _, i := range p.busy {
		n := nb.cat.dagOf[i]
		s := &nb.cat.services[n]
		nb.clean(c, n)
		nb.progress(now, i)
		nb.serve(now, n)
		s.hosted.guests = slices.DeleteFunc(s.hosted.guests, func(g guest) bool { return g.gone && !g.ready })
		if s.hosted.stale || s.where.phase == handing || s.where.coming() || slices.ContainsFunc(s.hosted.guests, func(g guest) bool { return !g.ready || (g.saving || g.copying) && !g.gone }) {
			busy = append(busy, i)
		}
	}
	p.busy = busy
}

// concerns reports whether an order, which all workers of a board get, is for this one.
func (nb *nearby) concerns(o *order) bool {
	i := o.chain
	if o.kind == anEvent || o.kind == toRemember {
		i = o.event.Want
	}
	return nb.cat.house == nil || i >= 0 && i < len(nb.cat.dagOf) && nb.cat.speaks(&nb.cat.services[nb.cat.dagOf[i]])
}

// progress continues the way of DAG i of the deployment to a peer or back, and tells the pool.
func (nb *nearby) progress(now clock.Time, i int) {
	p, n := nb.pool, nb.cat.dagOf[i]
	s := &nb.cat.services[n]
	w := &s.where
	switch {
	case w.phase == handing && !nb.runner.begun(n) && nb.piece(now, s, &w.out):
		p.say = append(p.say, notice{kind: hands, id: i, out: w.out})
		w.hold()
	case !w.coming():
	case nb.cat.runs(s) && w.phase == returning:
		w.arrive(now)
		nb.placing.hold(n)
	case nb.cat.runs(s) && (w.phase == launching || now >= w.since.Add(underway)):
		w.hold()
		p.say = append(p.say, notice{kind: comes, id: i})
	case !nb.cat.hopes(s):
		s.visits = nil
		if w.phase == arriving {
			nb.send(now, n, w.to.peer())
		} else {
			w.stay()
		}
		p.say = append(p.say, notice{kind: remains, id: i})
	}
}

// meet notes what is known of a board of the pool.
func (p *pooled) meet(n int, is peer) {
	was := p.peers[n]
	p.peers[n] = is
	if was.up == is.up && was.usable == is.usable && was.mac == is.mac {
		return // it has told what there is of it
	}
	p.usable = 0
	p.byMAC = map[[6]byte]int{p.mac: -1}
	for i := range p.peers {
		if q := &p.peers[i]; q.up {
			if _, two := p.byMAC[q.mac]; two {
				p.byMAC[q.mac] = -1 // nobody knows whose frames these are
			} else {
				p.byMAC[q.mac] = i
			}
			if q.usable {
				p.usable++
			}
		}
	}
}

// serve does what the guests of a DAG need, and tells the pool the results.
func (nb *nearby) serve(now clock.Time, n int) {
	p, s := nb.pool, &nb.cat.services[n]
	for k := range s.hosted.guests {
		g := &s.hosted.guests[k]
		switch {
		case !g.ready && nb.cat.runs(s):
			g.ready = true
			p.say = append(p.say, notice{kind: isReady, lease: g.lease})
		case !g.ready && !nb.cat.hopes(s):
			p.say = append(p.say, notice{kind: hasFailed, lease: g.lease})
			g.gone = true
		case g.saving && !g.gone && (nb.runner.waits[n] == 0 && now >= max(g.since, s.hosted.heard).Add(underway) || now >= g.since.Add(patience)):
			if !nb.piece(now, s, &g.out) {
				break
			}
			if g.out.out.size > pool.MaxState {
				g.saving = false
				p.failed++
				p.say = append(p.say, notice{kind: isKept, lease: g.lease})
			} else {
				g.gone = true
				p.say = append(p.say, notice{kind: hasSaved, lease: g.lease, out: g.out})
			}
			g.out = nil
		case g.saving:
			g.out = nil // packets have come meanwhile
		case g.copying && nb.piece(now, s, &g.out):
			if g.out.out.size <= pool.MaxState {
				p.say = append(p.say, notice{kind: hasCopied, lease: g.lease, out: g.out})
			} else {
				p.failed++
			}
			g.copying, g.out = false, nil
		}
	}
}

// copyOne begins a copy of the state of one guest for which a copy is due, for the guest's board.
func (nb *nearby) copyOne(now clock.Time) {
	p := nb.pool
	p.copies = now.Add(nb.poolCopy)
	done := false
	for i, n := range nb.cat.dagOf {
		s := &nb.cat.services[n]
		for k := range s.hosted.guests {
			g := &s.hosted.guests[k]
			if done = done || g.copying; g.copying || !g.ready || g.saving || g.gone || g.packetsThen == s.hosted.foreign || !nb.cat.knows(s) {
				continue // there is nothing, or nothing new
			}
			if at := max(g.copied, g.since).Add(nb.poolCopy); now < at || done {
				p.copies = min(p.copies, max(at, now.Add(underway)))
				continue
			}
			done = true
			g.copied, g.packetsThen, g.copying, g.out = now, s.hosted.foreign, true, nil
			p.busy = appendNew(p.busy, i, len(nb.cat.dagOf))
		}
	}
}

// knows reports whether a task of a DAG has state.
func (cat *catalog) knows(s *service) bool {
	return slices.ContainsFunc(s.tasks, func(n int) bool { return cat.tasks[n].State })
}

// appendNew adds a DAG to a list, if there is one of that index and it is not in it.
func appendNew(list []int, i, n int) []int {
	if i < 0 || i >= n || slices.Contains(list, i) {
		return list
	}
	return append(list, i)
}

// poolEvent does what is to be done about a DAG of this board.
func (nb *nearby) poolEvent(now clock.Time, e pool.Event, in *incoming) {
	if e.Kind >= pool.PeerUp || e.Want < 0 || e.Want >= len(nb.cat.dagOf) {
		return
	}
	n := nb.cat.dagOf[e.Want]
	s := &nb.cat.services[n]
	defer nb.signpost(n)
	switch e.Kind {
	case pool.Redirect:
		s.wish.stuck = e.Reason == pool.TooMuch
		nb.send(now, n, e.Peer)
	case pool.Unredirect:
		s.where.lose(now)
		nb.placing.hold(n)
	case pool.NoPeer:
		s.wish.alone = now.Add(asideFor)
		if s.wish.stuck = e.Reason == pool.TooMuch; s.wish.stuck {
			nb.pool.failed++
			s.wish.alone = now.Add(stayFor)
		}
		if s.elsewhere() {
			s.visits = nil
			nb.local(now, n)
		}
		s.wish.wanted = false
	case pool.Return:
		if s.where.comeBack() {
			nb.home(now, n)
		} else {
			nb.pool.say = append(nb.pool.say, notice{kind: remains, id: e.Want})
		}
	case pool.Pause:
		s.where.hand()
		nb.placing.hold(n)
	case pool.Resume:
		if len(e.State) > 0 && !nb.restore(s, e.State, in) {
			nb.pool.failed++
		}
		nb.local(now, n)
	}
}

// home launches a DAG that is at a peer.
func (nb *nearby) home(now clock.Time, n int) {
	s := &nb.cat.services[n]
	s.visits = nil
	if nb.cat.toilHere(s)+nb.placing.toil.load > region.Under {
		return // the worker has no time for it
	}
	for _, n := range s.tasks {
		t := &nb.cat.tasks[n]
		running, _ := nb.placing.fabric.Task(n)
		// Its rate is known for certain after two measurements.
		if t.Throughput > 0 && (s.load()*8 > float64(t.Throughput)*float64(max(running, 1)) || now < s.where.left.Add(2*rateEvery)) {
			return // it is more than it could do here
		}
	}
	visits := slices.Clone(s.best)
	if visits != nil && nb.placing.launch(now, visits, region.Demand{Pre: true, NoPeer: true}) == region.ShareRunning {
		s.visits = visits
	}
}

// poolGuest does what is to be done about a peer's DAG.
func (nb *nearby) poolGuest(c *graph.Ctx, o order) {
	now := c.Now()
	if o.chain < 0 || o.chain >= len(nb.cat.dagOf) {
		return
	}
	n := nb.cat.dagOf[o.chain]
	s := &nb.cat.services[n]
	at := slices.IndexFunc(s.hosted.guests, func(g guest) bool { return g.lease == o.lease })
	switch {
	case o.kind == toLoad && at < 0 && (!nb.clean(c, n) || nb.closed(o.chain)):
		nb.pool.say = append(nb.pool.say, notice{kind: hasFailed, lease: o.lease}) // since it was promised
	case o.kind == toLoad && at < 0:
		s.hosted.guests = append(s.hosted.guests, guest{lease: o.lease, since: now})
		for _, t := range s.tasks {
			nb.cat.tasks[t].lent = nb.cat.tasks[t].State
		}
		if nb.cat.hopes(s) && !s.refused || s.elsewhere() {
			return
		}
		visits := slices.Clone(s.best)
		if visits != nil && nb.placing.launch(now, visits, region.Demand{NoPeer: true, NoEndpoint: true, NoSwitch: true}) == region.ShareRunning {
			s.refused, s.away = false, false
			nb.placing.follow(n, visits)
		}
	case at < 0:
	case o.kind == toRestore:
		k := isRestored
		if !nb.restore(s, o.state, o.in) {
			nb.pool.failed++
			k = hasFailed
			nb.endGuest(now, n, at)
		}
		nb.pool.say = append(nb.pool.say, notice{kind: k, lease: o.lease})
	case o.kind == toSave:
		g := &s.hosted.guests[at]
		g.saving, g.since, g.copying, g.out = true, now, false, nil
	case o.kind == toRelease:
		nb.endGuest(now, n, at)
	}
}

// endGuest ends what a DAG is for a peer. If it is nobody else's its regions are given up, and what its tasks
// know.
func (nb *nearby) endGuest(now clock.Time, n, at int) {
	s := &nb.cat.services[n]
	s.hosted.guests = slices.Delete(s.hosted.guests, at, at+1)
	if len(s.hosted.guests) == 0 && !s.own() && !s.elsewhere() {
		visits := s.visits
		nb.placing.unroute(n)
		s.missing = true
		nb.placing.abandon(now, visits)
		s.hosted.stale, s.hosted.ended = true, now
	}
}

// clean makes the tasks of a DAG forget the state of guests that have ended, once no packets of these guests
// are inside. It reports false if that is still to be done.
func (nb *nearby) clean(c *graph.Ctx, n int) bool {
	s := &nb.cat.services[n]
	switch {
	case !s.hosted.stale:
		return true
	case s.own(): // frames of its own have come: nobody can tell apart whose it is
		nb.cat.mine(s)
	case nb.runner.waits[n] > 0 && c.Now() < s.hosted.ended.Add(patience):
		return false
	}
	ready := true
	for _, t := range s.tasks {
		ready = nb.renewed(t) && ready
	}
	if !ready {
		return false
	}
	s.hosted.stale = false
	for _, t := range s.tasks {
		nb.forget(c, t)
	}
	return true
}

// mine makes the state of a DAG's tasks the board's own: it is kept when guests end.
func (cat *catalog) mine(s *service) {
	for _, t := range s.tasks {
		cat.tasks[t].lent, cat.tasks[t].fresh = false, nil
	}
}

// forget starts task n anew if its state is of a peer's DAG.
func (nb *nearby) forget(c *graph.Ctx, n int) {
	t := &nb.cat.tasks[n]
	if !t.lent || t.in == nil || t.halted {
		return
	}
	t.lent = false
	app, err := nb.anewOf(t)
	if err != nil {
		nb.pool.failed++
		return
	}
	was := t.app
	t.vacate()
	t.become(t.in, app)
	nb.memory.furnish(n, &t.Task)
	t.in.Remove(c, was)
	t.fell()
	nb.runner.sweep(c, t, t.in)
}

// tellPool makes the state that the board tells the pool.
func (nb *nearby) tellPool() *boardState {
	p := nb.pool
	was := &p.states[p.last]
	p.last = 1 - p.last
	t := &p.states[p.last]
	t.deployment, t.chains, t.titles, t.homes = p.hash, p.chains, p.titles, p.homes
	t.say = append(t.say[:0], p.say...)
	clear(p.say)
	p.say = p.say[:0]
	t.open = len(t.say) > 0 || len(p.busy) > 0
	t.fresh, p.joined = !p.joined, true
	t.whole = p.full == 0 || nb.cat.seen >= p.full.Add(fullEvery) || t.fresh
	regions, chains := t.info.Regions[:0], t.info.Chains[:0]
	if !t.whole {
		t.info, t.opened, t.open = was.info, was.opened, t.open || was.opened
		t.info.Regions, t.info.Chains = append(regions, was.info.Regions...), append(chains, was.info.Chains...)
		t.closed = append(t.closed[:0], was.closed...)
		return t
	}
	p.full = nb.cat.seen
	t.info = pool.Info{Regions: regions, Chains: chains}
	t.closed = slices.Grow(t.closed[:0], len(nb.cat.dagOf))[:len(nb.cat.dagOf)]
	sent := false
	for r := range nb.placing.fabric.Regions() {
		if v := nb.placing.fabric.Region(r); v.State == region.Free || v.State == region.Victim {
			t.info.Regions = append(t.info.Regions, v.Area)
		}
	}
	for i, n := range nb.cat.dagOf {
		s := &nb.cat.services[n]
		if s.where.to >= 0 { // else it counts where it goes
			t.info.Load += s.load() * 8
		}
		t.closed[i] = !nb.cat.speaks(s) || nb.closed(i)
		if !nb.cat.speaks(s) {
			continue
		}
		sent = sent || s.where.to > 0 && !s.where.coming()
		if s.wish.wanted {
			t.say = append(t.say, notice{kind: sees, id: i, rate: s.load() * 8})
		}
		t.open = t.open || s.wish.wanted && s.where.to == 0 || s.where.underWay() || slices.ContainsFunc(s.hosted.guests, func(g guest) bool { return !g.ready || g.saving })
		if (!t.closed[i] || len(s.hosted.guests) > 0) && len(t.info.Chains) < mostOffered && nb.cat.hopes(s) {
			left := math.MaxFloat64
			for _, v := range s.visits {
				left = min(left, nb.placing.fabric.Left(v.Chain))
			}
			// A power of two, so that what is told changes seldom.
			t.info.Chains = append(t.info.Chains, pool.Hosted{Chain: i, Left: math.Exp2(math.Floor(math.Log2(max(left, 1)))), Closed: t.closed[i], Stay: stayed(s.stay)})
		}
	}
	if sent && nb.placing.fabric.Free() > 0 && nb.placing.fabric.Waiting() == 0 && nb.cat.seen >= p.freed.Add(asideFor) {
		p.freed = nb.cat.seen
		t.say = append(t.say, notice{kind: frees, id: nb.cat.worker, area: nb.placing.fabric.Free()})
	}
	t.opened = t.open
	return t
}

// stayed is a time in ns, as others are told: a power of two, so that it changes seldom.
func stayed(ns float64) int64 {
	if ns < 1 {
		return 0
	}
	return int64(math.Exp2(math.Ceil(math.Log2(min(ns, 1e12)))))
}

// closed reports whether a DAG must not run here for another peer.
func (nb *nearby) closed(i int) bool {
	s := &nb.cat.services[nb.cat.dagOf[i]]
	h := &s.hosted
	return s.elsewhere() || s.wish.wanted || nb.placing.busy() || h.stale || nb.pool.stays[i] != "" || nb.cat.knows(s) && (s.own() || len(h.guests) > 0)
}

// boardState is all that a board tells the pool.
type boardState struct {
	deployment uint64
	chains     []pool.Chain
	titles     []string
	homes      []int // as pooled.homes
	ends       []int // where the regions of each worker end in info.Regions; nil: there is one worker
	info       pool.Info
	closed     []bool // DAGs that it would not run for a peer
	say        []notice
	whole      bool // all of it is new; else parts are as they were told before
	open       bool // something is under way
	opened     bool // something was under way when the whole state was told
	fresh      bool // the board has not been asked before
}

// Peering joins a board, which is an app in its workers, with its part of the pool, a pool.Node
// elsewhere. It is the Node's Host and takes its events. Only callers that may use the Node may
// call its methods.
type Peering struct {
	number   int
	mac      [6]byte
	now      *boardState
	orders   []order
	left     []order // they wait for a state that has been read meanwhile
	spare    []order // memory for them
	met      bool
	addr     string // addrOf, as text
	addrOf   [6]byte
	peers    [MaxPeers]peer
	promised map[pool.Lease]int // area
	chains   map[pool.Lease]int
	all      [2]boardState // what several workers tell together, in turns
	last     int           // of all
	unsent   []notice      // what some have said while others had another deployment
	anew     bool          // or that they were not asked before
	pages    pages
	talk     talk
}

// talk is what is said in one exchange.
type talk struct {
	orders, later []order
	trade         pageTrade
	parts         []*boardState // of each worker
	state         *boardState   // all of it
	err           error
	busy          bool
	// The parts of it, made once.
	ask, tellNode func(n *pool.Node, now clock.Time)
	workers       int // of the board
	visit         func(a graph.App)
	// Instances of tasks, to be made beside the worker, and made.
	make, made []*renewal
}

// NewPeering makes the Peering of a board with a number in the pool. mac is the address
// of its pool port.
func NewPeering(number int, mac [6]byte) *Peering {
	p := &Peering{number: number, mac: mac, now: &boardState{}, promised: map[pool.Lease]int{}, chains: map[pool.Lease]int{},
		pages: pages{Pager: pool.NewPager(number, MaxPeers, 0)}}
	x := &p.talk
	x.ask = func(n *pool.Node, now clock.Time) {
		p.meet(n)
		x.orders, p.orders, p.spare = p.orders, p.spare[:0], nil
		x.trade = p.pages.offer(n)
	}
	x.visit = func(a graph.App) {
		b, ok := a.(*board)
		if !ok || b.near.pool == nil || b.near.pool.chains == nil {
			return
		}
		b.near.pool.orders = append(b.near.pool.orders, x.orders...)
		for _, r := range x.made {
			if r.of == b.near.pool {
				r.ready = true
			}
		}
		x.make, b.near.pool.make = append(x.make, b.near.pool.make...), nil
		if len(x.later) > 0 && x.later[0].in == nil {
			x.later[0].in = b.near.open(&x.later[0])
		}
		t := b.near.tellPool()
		x.parts = append(x.parts, t)
		x.workers = b.workers
		if b.cat.worker > 0 {
			b.memory.heed(x.trade.room)
			return
		}
		x.trade.fresh = t.fresh
		b.trade(&x.trade)
		if t.whole { // else it is what was told last
			t.info.Pages, t.info.Page = x.trade.free, x.trade.size
		}
	}
	x.tellNode = func(n *pool.Node, now clock.Time) {
		if x.state = p.together(); x.state != nil {
			x.err = errors.Join(x.err, p.tellNode(n, now, x.state))
		}
		x.busy = p.pages.take(n, now, &x.trade)
	}
	return p
}

// On takes an event of the Node.
func (p *Peering) On(n *pool.Node, now clock.Time, e pool.Event) {
	switch e.Kind {
	case pool.PeerLost:
		p.pages.Lost(now, e.Peer)
	case pool.PeerUp:
		p.pages.Met(now, e.Peer)
	}
	o := order{kind: anEvent, deployment: n.Deployment(), event: e}
	if e.Kind == pool.Unredirect && e.State != nil {
		// From now on no more frames go there. The DAG goes on when its state has been read.
		o.event.State = nil
		p.orders = append(p.orders, o, order{kind: toRemember, deployment: o.deployment, event: o.event, state: e.State})
		return
	}
	p.orders = append(p.orders, o)
}

func (p *Peering) host(k orderKind, l pool.Lease, state []byte) {
	p.orders = append(p.orders, order{kind: k, deployment: p.now.deployment, lease: l, chain: p.chains[l], state: state})
}

// Reserve implements pool.Host. It promises regions that the board had a short time ago;
// if the board no longer has them when it must load, the lease fails.
func (p *Peering) Reserve(_ clock.Time, l pool.Lease, chain int, rate float64) bool {
	t := p.now
	if chain >= len(t.closed) || t.closed[chain] {
		return false
	}
	p.chains[l] = chain
	for _, h := range t.info.Chains {
		if h.Chain == chain && h.Left >= rate {
			return true
		}
	}
	need, room := t.chains[chain].Area, 0
	for _, a := range t.regions(t.home(chain)) {
		if a >= need {
			room++
		}
	}
	for other := range p.promised {
		if t.home(p.chains[other]) == t.home(chain) {
			room--
		}
	}
	if room <= 0 {
		delete(p.chains, l)
		return false
	}
	p.promised[l] = need
	return true
}

// Load implements pool.Host.
func (p *Peering) Load(_ clock.Time, l pool.Lease, _ int) { p.host(toLoad, l, nil) }

// Restore implements pool.Host.
func (p *Peering) Restore(_ clock.Time, l pool.Lease, state []byte) {
	p.host(toRestore, l, slices.Clone(state))
}

// Save implements pool.Host.
func (p *Peering) Save(_ clock.Time, l pool.Lease) { p.host(toSave, l, nil) }

// Release implements pool.Host.
func (p *Peering) Release(_ clock.Time, l pool.Lease) {
	p.host(toRelease, l, nil)
	delete(p.promised, l)
	delete(p.chains, l)
}

// Exchange carries news between the board and the Node. do calls its argument with the Node; visit calls its argument with the
// app of each worker, in their order, between two breaths of that worker. Exchange reports whether something is under way, so that
// it should be called again soon.
func (p *Peering) Exchange(do func(func(n *pool.Node, now clock.Time)), visit func(func(graph.App)) error) (bool, error) {
	x := &p.talk
	do(x.ask)
	memory := x.orders[:0]
	if len(p.left) > 0 {
		x.orders = append(p.left, x.orders...)
		p.left = nil
	}
	ready := upTo(x.orders)
	x.orders, x.later = x.orders[:ready], x.orders[ready:]
	x.parts, x.make, x.err, x.busy = x.parts[:0], x.make[:0], nil, false
	x.err = visit(x.visit)
	n := len(x.orders) + len(x.later)
	if x.err != nil || len(x.parts) == 0 {
		p.met = false // it may be another one
		p.pages.left = x.trade.events
		return false, x.err
	}
	open := false
	for _, t := range x.parts {
		open = open || t.open
		for i := range t.say {
			if s := &t.say[i]; s.out != nil {
				s.state = s.out.out.bytes()
			}
		}
	}
	do(x.tellNode)
	open = open || x.state == nil
	for _, t := range x.parts {
		clear(t.say)
	}
	n += len(x.make)
	for _, r := range x.make {
		r.app, r.err = r.new()
	}
	x.made, x.make = x.make, x.made[:0]
	if len(x.later) > 0 {
		if x.later[0].in == nil {
			x.later[0].in = &incoming{} // its worker does not know of it
		}
		x.later[0].in.read()
		p.left = slices.Clone(x.later)
	}
	clear(memory[:cap(memory)])
	p.spare, x.orders, x.later, x.trade = memory, nil, nil, pageTrade{}
	return open || x.busy || n > 0, x.err
}

// together joins the states of all workers of a board; nil: not all of them have put the same deployment in force yet. Notices are kept
// until they have.
func (p *Peering) together() *boardState {
	x := &p.talk
	first := x.parts[0]
	if x.workers == 1 {
		return first
	}
	same := len(x.parts) == x.workers
	for _, t := range x.parts {
		same = same && t.deployment == first.deployment
	}
	p.unsent = slices.DeleteFunc(p.unsent, func(s notice) bool { return s.deployment != first.deployment })
	for _, t := range x.parts {
		p.anew = p.anew || t.fresh
		for _, s := range t.say {
			s.deployment = t.deployment
			p.unsent = append(p.unsent, s)
		}
	}
	if !same {
		return nil
	}
	p.last = 1 - p.last
	t := &p.all[p.last]
	t.deployment, t.chains, t.titles, t.homes = first.deployment, first.chains, first.titles, first.homes
	regions, chains := t.info.Regions[:0], t.info.Chains[:0]
	t.info = first.info
	t.info.Regions, t.info.Chains, t.info.Load = regions, chains, 0
	t.ends, t.closed = t.ends[:0], t.closed[:0]
	t.fresh, p.anew = p.anew, false
	for _, of := range x.parts {
		t.info.Regions, t.info.Chains = append(t.info.Regions, of.info.Regions...), append(t.info.Chains, of.info.Chains...)
		t.info.Load += of.info.Load
		t.ends = append(t.ends, len(t.info.Regions))
	}
	for i := range first.closed {
		t.closed = append(t.closed, x.parts[t.home(i)].closed[i])
	}
	t.say, p.unsent = append(t.say[:0], p.unsent...), p.unsent[:0]
	return t
}

// regions are the areas of a worker's free regions.
func (t *boardState) regions(worker int) []int {
	if t.ends == nil {
		return t.info.Regions
	}
	from := 0
	if worker > 0 {
		from = t.ends[worker-1]
	}
	return t.info.Regions[from:t.ends[worker]]
}

// home is the worker that decides about a DAG, by the DAG's index in the deployment.
func (t *boardState) home(i int) int {
	if t.homes == nil {
		return 0
	}
	return t.homes[i]
}

// Remains describes what the board has of peers, which is lost with this board. stuck says that none of it can move.
func (p *Peering) Remains(n *pool.Node) (what []string, stuck bool) {
	stuck = p.Keeps() == 0
	for _, g := range n.Guests() {
		text := fmt.Sprintf("a DAG of board %d", g.Owner)
		if g.Chain < len(p.now.titles) {
			text = fmt.Sprintf("%s of board %d", p.now.titles[g.Chain], g.Owner)
		}
		if g.Stuck {
			text += ", " + pool.TooMuch.String()
		}
		what, stuck = append(what, text), stuck && g.Stuck
	}
	if k := p.Keeps(); k > 0 {
		what = append(what, fmt.Sprintf("%d pages of memory", k))
	}
	return what, stuck
}

// meet tells the board of its peers.
func (p *Peering) meet(n *pool.Node) {
	if !p.met {
		p.met = true
		p.peers = [MaxPeers]peer{}
		p.orders = append(p.orders, order{kind: itself, board: p.number, mac: p.mac})
	}
	for i := range p.peers {
		if i == p.number || i >= MaxPeers {
			continue
		}
		q := &p.peers[i]
		v := n.View(i)
		now := peer{usable: v.Info.Deployment == p.now.deployment, view: v}
		if v.Alive == q.view.Alive && v.Heard == q.view.Heard && now.usable == q.usable {
			continue
		}
		mac, err := hex.DecodeString(v.Info.Addr)
		now.up = v.Alive && err == nil && len(mac) == 6
		copy(now.mac[:], mac)
		if now.up != q.up || v.Heard != q.view.Heard || now.usable != q.usable {
			*q = now
			p.orders = append(p.orders, order{kind: aPeer, board: i, peer: now})
		}
	}
}

// tellNode tells the Node the state of the board.
func (p *Peering) tellNode(n *pool.Node, now clock.Time, t *boardState) error {
	if t.fresh {
		p.met = false // another one may have been told
	}
	if t.fresh || t.deployment != n.Deployment() {
		if err := n.Deploy(now, t.deployment, t.chains); err != nil {
			return err
		}
		clear(p.promised)
		clear(p.chains)
	}
	p.now = t
	if p.addr == "" || p.addrOf != p.mac {
		p.addr, p.addrOf = hex.EncodeToString(p.mac[:]), p.mac
	}
	t.info.Addr = p.addr
	n.Tell(now, t.info)
	var errs error
	for _, s := range t.say {
		switch s.kind {
		case wants:
			errs = errors.Join(errs, n.Want(now, s.id, s.id, s.rate))
		case hands:
			n.Hand(now, s.id, s.state)
		case comes:
			n.Local(now, s.id)
		case remains:
			n.Stay(now, s.id)
		case frees:
			n.FreedFor(s.area, func(id int) bool { return t.home(id) == s.id })
		case isReady:
			delete(p.promised, s.lease)
			n.Ready(now, s.lease)
		case isRestored:
			n.Restored(now, s.lease)
		case hasFailed:
			delete(p.promised, s.lease)
			delete(p.chains, s.lease)
			n.Failed(now, s.lease)
		case isKept:
			n.Kept(now, s.lease)
		case hasCopied:
			n.Copied(now, s.lease, s.state)
		case hasSaved:
			n.Saved(now, s.lease, s.state)
		case sees:
			n.Traffic(s.id, s.rate)
		}
	}
	return errs
}

// pushPeers takes in what comes by the pool's port, or the one opposite. Frames of DAGs of other homes go there.
func (b *board) pushPeers(c *graph.Ctx, in int, frames *packet.Batch) {
	if in != b.near.pool.port {
		for _, x := range frames.Bufs() {
			c.Drop(x, reasonBadPeer)
		}
		return
	}
	if b.cat.house != nil {
		bufs, n := frames.Bufs(), 0
		for _, x := range bufs {
			if s := b.near.whose(x); s != nil && !b.cat.speaks(s) {
				b.gates.pass(c, s.lodge.home, s.tenant, x)
				continue
			}
			bufs[n] = x
			n++
		}
		frames.Reset()
		frames.Append(bufs[:n])
	}
	b.takePeers(c, frames)
}

// whose is the DAG that a peer's frame names; nil: there is none here, or the frame is of no peer.
func (nb *nearby) whose(x *packet.Buf) *service {
	p := x.Bytes()
	if len(p) < outerLen || [6]byte(p[:6]) != nb.pool.mac || binary.BigEndian.Uint16(p[12:]) != hdr.EtherNSH {
		return nil
	}
	if from, ok := nb.pool.byMAC[[6]byte(p[6:12])]; !ok || from < 0 {
		return nil
	}
	if n, ok := nb.pool.byUID[hdr.NSH(p[hdr.EthernetLen:]).SPI()]; ok {
		return &nb.cat.services[n]
	}
	return nil
}

// takePeers takes frames of peers in.
func (b *board) takePeers(c *graph.Ctx, frames *packet.Batch) {
	in := b.near.pool.port
	if b.split.scarce.used&(1<<in) == 0 {
		b.split.use(c.Now(), in)
	}
	n := 0
	var first uint16
	for _, x := range frames.Bufs() {
		dag, out := b.near.fromPeer(c, x)
		if dag < 0 {
			continue
		}
		if out != first && n > 0 {
			b.ingress.dispatch(c, in, n) // a group has one way out
			n = 0
		}
		first = out
		n += b.ingress.collect(c, n, dag, out&1 == 0, out, flow(x), x)
	}
	b.ingress.dispatch(c, in, n)
}

// relieve asks workers that hand over frames of DAGs to run these DAGs themselves. If no worker helps, the DAG without which most load
// would be gone goes to a peer, one at a time.
func (nb *nearby) relieve(now clock.Time, relief func(n int) float64) {
	best, most := -1, 0.
	for n := range nb.cat.services {
		s := &nb.cat.services[n]
		if nb.pool != nil && s.wish.wanted && s.where.to == 0 {
			return
		}
		r := relief(n)
		if r > 0 && nb.cat.house != nil && nb.cry(n) {
			continue
		}
		if r > most && nb.mayTravel(now, n) {
			best, most = n, r
		}
	}
	if best >= 0 {
		nb.ask(best, false)
	}
}
