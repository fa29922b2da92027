package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Chain describes a chain to a Node.
type Chain struct {
	Area      int
	Bitstream int64 // bytes
	Stateful  bool
	Hand      bool // its state goes to the peer, too: Pause, then Node.Hand, before Redirect
}

// Config describes a Node.
type Config struct {
	Board    int // its number
	Topology Topology
	Inc      uint64         // incarnation: not 0, greater than that of any start before; the time will do
	Period   clock.Duration // between messages to a peer; 0: 1 ms
	Dead     clock.Duration // without a word, after which a peer is lost; 0: 5 periods
	Rate     uint64         // bits a second, of the link that bitstreams take; 0: 100 Gbit/s
	Chains   []Chain        // by number
	Host     Host           // nil: the switch, which runs nothing
}

// Lease identifies a chain that this board runs for a peer: the owner, its incarnation and the ID of its ask.
type Lease struct {
	Owner int
	Inc   uint64
	ID    uint32
}

// Host is the board that a Node calls to run chains for peers. Its methods must not call the Node.
type Host interface {
	// Reserve keeps a region for the chain, or a share of a region that runs it. It returns false if
	// there is none.
	Reserve(now clock.Time, l Lease, chain int, rate float64) bool
	// Load says that the bitstream has arrived. The board must call Node.Ready or Node.Failed later.
	Load(now clock.Time, l Lease, chain int)
	// Restore gives the chain, which is ready, the state that it had at its owner. The board must call
	// Node.Restored or Node.Failed later.
	Restore(now clock.Time, l Lease, state []byte)
	// Save stops the chain. The board must call Node.Saved, Node.Kept or Node.Failed later.
	Save(now clock.Time, l Lease)
	// Release ends the lease, in whatever state it is.
	Release(now clock.Time, l Lease)
}

// Kind of an Event.
type Kind uint8

const (
	Redirect   Kind = iota // Want's packets go to Peer from now on; they do again, if Reason is TooMuch: it cannot come home
	Unredirect             // they no longer do; with State, if not nil, it is to go on: a copy of what it knew at Peer, which is lost
	NoPeer                 // Want is refused, and ends; Reason
	Return                 // launch Want here, then call Local, or Stay
	Pause                  // Want's packets are to wait; call Hand if they did not go to a peer so far
	Resume                 // Want runs here with State, or anew if that is Lost (then State, if not nil, is a copy of before); what waited goes first
	PeerUp                 // Peer was heard of
	PeerLost               // Peer is gone, and the pages it had
)

func (k Kind) String() string {
	return [...]string{"redirect", "unredirect", "no peer", "return", "pause", "resume", "peer up", "peer lost"}[k]
}

// Event tells the body what has happened, or what it must do.
type Event struct {
	Kind   Kind
	Want   int
	Peer   int
	Reason Reason
	State  []byte
	Lost   bool
}

// Reason says why a want is refused.
type Reason uint8

const (
	Alone    Reason = iota // no peer is known
	Stranger               // peers have another deployment
	NoRegion               // none has a free region that is large enough, or bandwidth left
	Declined               // all that might have had room refused
	TooMuch                // its state is more than MaxState
)

func (r Reason) String() string {
	return [...]string{"no peer is known", "no peer has the same deployment", "no peer has a region or bandwidth for it", "all peers with room refused", fmt.Sprintf("its state is more than %d MB", MaxState>>20)}[r]
}

// stage of a want.
type stage uint8

const (
	asked   stage = iota
	sending       // the bitstream
	loading
	handing   // ready at the peer; paused, its state is on the way there
	running   // at the peer, redirected
	returning // and is launched here
	moving    // paused, its state is on the way
)

type want struct {
	id, chain int
	rate      float64
	stage     stage
	peer      int
	ask       uint32
	since     uint64     // number of the first message that has it
	deadline  clock.Time // of an answer; of the bitstream
	handed    bool       // state is what it knew here
	stuck     bool       // the peer cannot give it back: its state is too much
	state     []byte
	sentAt    clock.Time // when the state was in a message, last; 0: never
	copied    uint32     // the newest copy of the peer's, of this ask
	copy      []byte     // what the chain knew there then
	tried     []uint64   // by peer: its incarnation when it refused, or did not answer
}

type lease struct {
	Lease
	chain  int
	status Status
	state  []byte
	sentAt clock.Time // when state or copy was in a message, last; 0: never
	stuck  bool       // what it knows was too much to be moved
	copied uint32     // number of the newest copy
	copy   []byte     // what it knew then; nil: the owner has it
	phase  Phase
}

type peer struct {
	alive     bool
	inc, seen uint64 // newest message of it
	heard     clock.Time
	excused   clock.Duration // of the silence since then: see Away
	info      Info
	seq       uint64 // of our last message to it
	next      clock.Time
	sending   int        // messages to it that take a while
	out       clock.Time // when the last of them was
	lent      int        // pages taken of it since it last told
	dropped   clock.Time // when a frame became its own again, last
}

// Peer is what this board knows of a peer.
type Peer struct {
	Alive bool
	Heard clock.Time
	Hops  int
	Info  Info // of that time
}

// Node is a board's part of the pool. It has many methods, because each event of the board (a DAG wants a region, a
// state is saved, a page is lent) is one of them, and the same message tells the peers of all events.
type Node struct {
	Config
	info   Info
	peers  []peer
	wants  []*want // in order of number
	leases []*lease
	events []Event
	ask    uint32
	most   int        // bytes of states in a message
	link   clock.Time // when it has sent the bitstreams before
	out    State
}

// New makes a Node that knows no peers, or returns an error for a bad Config.
func New(now clock.Time, c Config) (*Node, error) {
	c.Period = cmp.Or(c.Period, time.Millisecond)
	c.Dead = cmp.Or(c.Dead, 5*c.Period)
	c.Rate = cmp.Or(c.Rate, 100e9)
	switch n := c.Topology.nodes(); {
	case c.Topology.boards < 1 || n > MaxBoards:
		return nil, fmt.Errorf("pool: %d boards: want 1 to %d", c.Topology.boards, MaxBoards-1)
	case c.Board < 0 || c.Board >= n:
		return nil, fmt.Errorf("pool: board %d: there are %d", c.Board, n)
	case c.Inc == 0:
		return nil, fmt.Errorf("pool: incarnation 0: want the time of the start, or a number that grows with each")
	case c.Period < 0 || c.Dead < 2*c.Period:
		return nil, fmt.Errorf("pool: a peer is lost after %v without a word: want two periods (%v) or more", c.Dead, 2*c.Period)
	case c.Rate < 1e6:
		return nil, fmt.Errorf("pool: link of %d bits a second: want 1 Mbit/s or more", c.Rate)
	case c.Host == nil && c.Board != c.Topology.Switch():
		return nil, fmt.Errorf("pool: board %d has no host", c.Board)
	}
	if err := checkChains(c.Chains); err != nil {
		return nil, err
	}
	n := &Node{Config: c, peers: make([]peer, c.Topology.nodes()), most: MaxState}
	for i := range n.peers {
		n.peers[i].next = now
	}
	return n, nil
}

func checkChains(chains []Chain) error {
	for i, ch := range chains {
		if ch.Area < 0 || ch.Bitstream < 0 || ch.Bitstream > maxBytes {
			return fmt.Errorf("pool: chain %d: area %d, bitstream of %d bytes", i, ch.Area, ch.Bitstream)
		}
	}
	return nil
}

// Tell sets what peers are told of this board, except Deployment and Leaving. It copies the slices of i.
func (n *Node) Tell(now clock.Time, i Info) {
	if i.Pages != n.info.Pages || i.Addr != n.info.Addr || !slices.Equal(i.Regions, n.info.Regions) || !slices.Equal(i.Chains, n.info.Chains) {
		n.soon(now)
	}
	was := n.info
	n.info = i
	n.info.Deployment, n.info.Leaving = was.Deployment, was.Leaving
	n.info.Regions, n.info.Chains = append(was.Regions[:0], i.Regions...), append(was.Chains[:0], i.Chains...)
}

// Leave tells all peers that this board will stop. The board takes no more chains; chains that it has
// not begun to run fail; owners take all other chains home with their state, or elsewhere. Left reports
// when no chain of a peer is left.
func (n *Node) Leave(now clock.Time) {
	n.info.Leaving = true
	for _, e := range n.leases {
		e.stuck = false // its board tries once more
		if e.status == Granted || e.status == Loading || e.status == Ready && n.Chains[e.chain].Hand {
			n.release(now, e)
			e.status = Failed
		}
	}
	n.soon(now)
}

// Left reports whether the board leaves and no peer's chain is left on it.
func (n *Node) Left() bool { return n.info.Leaving && len(n.Guests()) == 0 }

// Guest is a peer's chain on this board.
type Guest struct {
	Lease
	Chain int
	Stuck bool // what it knows was too much to be moved: it stays until its board ends it, or this one goes
}

// Guests returns the peers' chains that are on this board or on their way to it.
func (n *Node) Guests() (all []Guest) {
	for _, e := range n.leases {
		if e.status != Refused && e.status != Failed {
			all = append(all, Guest{e.Lease, e.chain, e.stuck})
		}
	}
	return all
}

// Deploy sets the chains, and id, by which boards know that they have the same chains. All wants and
// leases end without an event: the body begins anew.
func (n *Node) Deploy(now clock.Time, id uint64, chains []Chain) error {
	if err := checkChains(chains); err != nil {
		return err
	}
	for _, e := range n.leases {
		n.release(now, e)
	}
	n.leases, n.wants = nil, nil
	n.events = slices.DeleteFunc(n.events, func(e Event) bool { return e.Kind < PeerUp })
	n.Chains, n.info.Deployment = slices.Clone(chains), id
	n.soon(now)
	return nil
}

// Deployment returns the id of the last Deploy.
func (n *Node) Deployment() uint64 { return n.info.Deployment }

// View returns what this board knows of a peer.
func (n *Node) View(board int) Peer {
	p := &n.peers[board]
	return Peer{p.alive, p.heard, n.Topology.Hops(n.Board, board), p.info}
}

// Events returns the events since the last call. The slice is valid until the next call.
func (n *Node) Events() []Event {
	e := n.events
	n.events = n.events[len(n.events):]
	return e
}

func (n *Node) emit(e Event) { n.events = append(n.events, e) }

// soon makes the next messages to all peers due at once.
func (n *Node) soon(now clock.Time) {
	for i := range n.peers {
		n.peers[i].next = min(n.peers[i].next, now)
	}
}

// Want asks for a chain to run at a peer, except the boards in but. The event Redirect or NoPeer follows. A switch's
// wants of the same chain go to different boards.
func (n *Node) Want(now clock.Time, id, chain int, rate float64, but ...int) error {
	switch {
	case chain < 0 || chain >= len(n.Chains):
		return fmt.Errorf("pool: chain %d: there are %d", chain, len(n.Chains))
	case !number(rate):
		return fmt.Errorf("pool: chain %d: rate %g", chain, rate)
	case len(n.wants) >= maxList:
		return fmt.Errorf("pool: want %d: there are %d, as many as a message holds", id, len(n.wants))
	}
	at, found := n.find(id)
	if found {
		return fmt.Errorf("pool: want %d is there", id)
	}
	w := &want{id: id, chain: chain, rate: rate, peer: -1, tried: make([]uint64, len(n.peers))}
	for _, i := range but {
		if i >= 0 && i < len(n.peers) {
			w.tried[i] = n.peers[i].inc
		}
	}
	n.wants = slices.Insert(n.wants, at, w)
	n.place(now, w)
	return nil
}

func (n *Node) find(id int) (int, bool) {
	return slices.BinarySearchFunc(n.wants, id, func(w *want, id int) int { return cmp.Compare(w.id, id) })
}

// Unwant ends a want without an event, and drops its events that the body has not taken. It reports
// whether there was such a want.
func (n *Node) Unwant(now clock.Time, id int) bool {
	at, ok := n.find(id)
	if !ok {
		return false
	}
	n.end(now, n.wants[at])
	n.events = slices.DeleteFunc(n.events, func(e Event) bool { return e.Kind < PeerUp && e.Want == id })
	return true
}

// end forgets a want.
func (n *Node) end(now clock.Time, w *want) {
	n.drop(now, w)
	n.wants = slices.DeleteFunc(n.wants, func(e *want) bool { return e == w })
}

// drop takes a want's ask back.
func (n *Node) drop(now clock.Time, w *want) {
	if w.peer >= 0 {
		n.peers[w.peer].next = min(n.peers[w.peer].next, now)
		w.peer, w.ask = -1, 0
	}
}

// Traffic sets the present rate of a want's packets, in bits a second.
func (n *Node) Traffic(id int, rate float64) {
	if at, ok := n.find(id); ok && number(rate) {
		n.wants[at].rate = rate
	}
}

// Where returns the peer that runs a want's chain, or -1.
func (n *Node) Where(id int) int {
	if at, ok := n.find(id); ok && n.wants[at].stage >= running {
		return n.wants[at].peer
	}
	return -1
}

// place asks the best peer that was not asked yet, or refuses.
func (n *Node) place(now clock.Time, w *want) {
	best, reason := -1, Alone
	var key [4]float64
	for i := range n.peers {
		p := &n.peers[i]
		if i == n.Board || !p.alive || p.info.Leaving || n.info.Leaving || i == n.Topology.Switch() {
			continue
		}
		if p.info.Deployment != n.info.Deployment {
			reason = max(reason, Stranger)
			continue
		}
		reason = max(reason, NoRegion)
		class := n.room(p, w)
		if class < 0 {
			continue
		}
		if w.tried[i] == p.inc || n.twice(w, i) {
			reason = Declined
			continue
		}
		k := [4]float64{class, float64(n.Topology.Hops(n.Board, i)), p.info.Load, float64(i)}
		if best < 0 || slices.Compare(k[:], key[:]) < 0 {
			best, key = i, k
		}
	}
	if best < 0 {
		n.emit(Event{Kind: NoPeer, Want: w.id, Peer: -1, Reason: reason})
		n.end(now, w)
		return
	}
	n.ask++
	p := &n.peers[best]
	w.peer, w.ask, w.stage = best, n.ask, asked
	w.handed, w.stuck, w.state, w.sentAt = false, false, nil, 0
	w.copied, w.copy = 0, nil
	w.since = p.seq + 1
	w.deadline = now.Add(n.Dead)
	p.next = min(p.next, now)
}

// twice reports whether another want of this switch, of the same chain, is at a board or asks it.
func (n *Node) twice(w *want, board int) bool {
	return n.Board == n.Topology.Switch() && slices.ContainsFunc(n.wants, func(o *want) bool { return o != w && o.chain == w.chain && o.peer == board })
}

// room is 0 when a peer runs a want's chain and has bandwidth left, 1 when it has
// a region for it, and -1 otherwise.
func (n *Node) room(p *peer, w *want) float64 {
	for _, c := range p.info.Chains {
		if c.Chain == w.chain && !c.Closed && c.Left > 0 && c.Left >= w.rate {
			return 0
		}
	}
	for _, area := range p.info.Regions {
		if area >= n.Chains[w.chain].Area {
			return 1
		}
	}
	return -1
}

// Freed reports that a region of so much area is free on this board, and no chain waits for it. It returns
// whether a want will return.
func (n *Node) Freed(area int) bool { return n.FreedFor(area, nil) }

// FreedFor is Freed for a region that only some wants may have: those for whose id may returns true. If may
// is nil, all wants may have it.
func (n *Node) FreedFor(area int, may func(id int) bool) bool {
	var best *want
	for _, w := range n.wants {
		if w.stage == running && !w.stuck && (may == nil || may(w.id)) && n.Chains[w.chain].Area <= area && (best == nil || w.rate > best.rate) {
			best = w
		}
	}
	if best == nil || n.Host == nil {
		return false
	}
	best.stage = returning
	n.emit(Event{Kind: Return, Want: best.id, Peer: best.peer})
	return true
}

// Fetch brings the state of a want's chain here from its peer, though the chain does not run here: Pause,
// Unredirect and Resume follow, and the want ends; or Redirect, if the state is too large. A switch moves a
// chain from one board to another in this way. Fetch reports whether the chain is at a peer.
func (n *Node) Fetch(now clock.Time, id int) bool {
	at, ok := n.find(id)
	if !ok || n.wants[at].stage != running {
		return false
	}
	n.bring(now, n.wants[at])
	return true
}

// Local reports that the chain of a want that returns runs on this board, too. It returns false if the want
// does not return.
func (n *Node) Local(now clock.Time, id int) bool {
	at, ok := n.find(id)
	if !ok || n.wants[at].stage != returning {
		return false
	}
	n.bring(now, n.wants[at])
	return true
}

// bring makes a want's packets run here, from now on or when its state has come.
func (n *Node) bring(now clock.Time, w *want) {
	stateful := n.Chains[w.chain].Stateful
	switch {
	case w.peer < 0: // lost meanwhile
		n.emit(Event{Kind: Resume, Want: w.id, Peer: -1, Lost: stateful})
		n.end(now, w)
	case !stateful:
		n.emit(Event{Kind: Unredirect, Want: w.id, Peer: w.peer})
		n.emit(Event{Kind: Resume, Want: w.id, Peer: w.peer})
		n.end(now, w)
	default:
		n.emit(Event{Kind: Pause, Want: w.id, Peer: w.peer})
		n.emit(Event{Kind: Unredirect, Want: w.id, Peer: w.peer})
		w.stage = moving
		n.peers[w.peer].next = min(n.peers[w.peer].next, now)
	}
}

// Hand gives the state that a want's chain has here, after Pause; its packets wait until
// Redirect, Unredirect, Resume or NoPeer follows. False: the state was not asked for.
func (n *Node) Hand(now clock.Time, id int, state []byte) bool {
	at, ok := n.find(id)
	if !ok || n.wants[at].stage != handing || n.wants[at].handed {
		return false
	}
	w := n.wants[at]
	if len(state) > n.most {
		n.emit(Event{Kind: NoPeer, Want: w.id, Peer: -1, Reason: TooMuch})
		n.end(now, w)
		return true
	}
	w.handed, w.state, w.sentAt = true, state, 0
	n.peers[w.peer].next = min(n.peers[w.peer].next, now)
	return true
}

// Stay reports that a want cannot return at present. If its peer leaves, its packets and its state come
// back nevertheless. Stay returns false if the want does not return.
func (n *Node) Stay(now clock.Time, id int) bool {
	at, ok := n.find(id)
	if !ok || n.wants[at].stage != returning {
		return false
	}
	switch w := n.wants[at]; {
	case w.peer < 0:
		w.stage = running
		n.place(now, w)
	case n.peers[w.peer].info.Leaving:
		n.bring(now, w)
	default:
		w.stage = running
	}
	return true
}

// Memory chooses a peer for a page: the nearest that has free ones, then the one
// with most. It reports false when nobody has.
func (n *Node) Memory() (board int, ok bool) {
	best := -1
	var key [3]int
	for i := range n.peers {
		p := &n.peers[i]
		free := p.info.Pages - p.lent
		if i == n.Board || !n.keeps(p) || free <= 0 {
			continue
		}
		k := [3]int{n.Topology.Hops(n.Board, i), -free, i}
		if best < 0 || slices.Compare(k[:], key[:]) < 0 {
			best, key = i, k
		}
	}
	if best >= 0 {
		n.peers[best].lent++
	}
	return best, best >= 0
}

// keeps reports whether a peer may keep pages.
func (n *Node) keeps(p *peer) bool { return p.alive && !p.info.Leaving && p.info.Page == n.info.Page }

// Dropped takes note that a frame of a peer is its own again: it can keep another page. The peer may not know
// that yet when it tells next.
func (n *Node) Dropped(now clock.Time, board int) {
	n.peers[board].lent--
	n.peers[board].dropped = now
}

// Full takes note that a peer had no room for a page: it is not asked again before it tells of some.
func (n *Node) Full(board int) { n.peers[board].lent = n.peers[board].info.Pages }

// Pages returns how many free pages peers have, as far as this board knows.
func (n *Node) Pages() (free int) {
	for i := range n.peers {
		if p := &n.peers[i]; i != n.Board && n.keeps(p) {
			free += max(0, p.info.Pages-p.lent)
		}
	}
	return free
}

// lease finds a lease.
func (n *Node) lease(l Lease) *lease {
	for _, e := range n.leases {
		if e.Lease == l {
			return e
		}
	}
	return nil
}

// answer sets the status of a lease, if it had one of the statuses from.
func (n *Node) answer(now clock.Time, l Lease, to Status, from ...Status) bool {
	e := n.lease(l)
	if e == nil || !slices.Contains(from, e.status) {
		return false
	}
	e.status = to
	p := &n.peers[l.Owner]
	p.next = min(p.next, now)
	return true
}

// Ready reports that a lease's chain takes packets. It returns false if the lease has ended or is not loading.
func (n *Node) Ready(now clock.Time, l Lease) bool { return n.answer(now, l, Ready, Loading) }

// Restored tells that a lease's chain has the state of Restore.
func (n *Node) Restored(now clock.Time, l Lease) bool { return n.answer(now, l, Serving, Ready) }

// Failed tells that a lease's region was taken away; it is released.
func (n *Node) Failed(now clock.Time, l Lease) bool {
	return n.answer(now, l, Failed, Granted, Loading, Ready, Serving)
}

// Saved tells that a lease's chain has stopped, and gives its state, of at most MaxState bytes. A chain with more
// state must go on: then the body calls Kept.
func (n *Node) Saved(now clock.Time, l Lease, state []byte) bool {
	if !n.answer(now, l, Saved, Ready, Serving) {
		return false
	}
	e := n.lease(l)
	e.state, e.sentAt, e.copy = state, 0, nil
	return true
}

// Copied gives a copy of the state of a lease's chain, which goes on: its owner uses the copy if this board is
// lost. A copy of more than MaxState bytes is not taken.
func (n *Node) Copied(now clock.Time, l Lease, state []byte) bool {
	e := n.lease(l)
	if len(state) > n.most || !n.answer(now, l, Serving, Serving) && !n.answer(now, l, Ready, Ready) {
		return false
	}
	e.copied++
	e.copy, e.sentAt = state, 0
	return true
}

// Sending tells that a message to a peer takes a while: until Sent no other is made for it.
func (n *Node) Sending(board int) { n.peers[board].sending++ }

// Sent tells that such a message is out, or lost.
func (n *Node) Sent(now clock.Time, board int, ok bool) {
	p := &n.peers[board]
	p.sending--
	p.out = now
	if ok {
		p.next = min(p.next, now)
		return
	}
	for _, w := range n.wants {
		if w.peer == board {
			w.sentAt = 0
		}
	}
	for _, e := range n.leases {
		if e.Owner == board {
			e.sentAt = 0
		}
	}
}

// Kept tells that a lease's chain goes on, because its state is too large to be moved.
func (n *Node) Kept(now clock.Time, l Lease) bool {
	if !n.answer(now, l, Kept, Ready, Serving) {
		return false
	}
	n.lease(l).stuck = true
	return true
}

// Lost makes a peer lost; the body calls it when its failure detector says so.
func (n *Node) Lost(now clock.Time, board int) {
	if board < 0 || board >= len(n.peers) || !n.peers[board].alive {
		return
	}
	n.peers[board].alive = false
	n.emit(Event{Kind: PeerLost, Peer: board})
	n.forget(now, board)
}

// Renew makes the board begin again, with an incarnation that is greater than all earlier
// ones of its number: all peers are lost until they are heard of again.
func (n *Node) Renew(now clock.Time, inc uint64) {
	for i := range n.peers {
		n.Lost(now, i)
	}
	n.Inc = max(n.Inc, inc)
	n.soon(now)
}

// forget ends all that was agreed on with a peer.
func (n *Node) forget(now clock.Time, board int) {
	n.leases = slices.DeleteFunc(n.leases, func(e *lease) bool {
		if e.Owner == board {
			n.release(now, e)
		}
		return e.Owner == board
	})
	for _, w := range slices.Clone(n.wants) {
		if w.peer == board {
			n.replace(now, w)
		}
	}
}

// release gives up what a lease has.
func (n *Node) release(now clock.Time, e *lease) {
	if e.status != Refused && e.status != Failed {
		n.Host.Release(now, e.Lease)
	}
}

// replace places a want anew whose peer does not have it any more.
func (n *Node) replace(now clock.Time, w *want) {
	was, at, copy := w.stage, w.peer, w.copy
	w.copy = nil
	n.drop(now, w)
	switch was {
	case running, returning:
		n.emit(Event{Kind: Unredirect, Want: w.id, Peer: at, State: copy})
		if was == returning {
			return // it is launched here; Local or Stay follows
		}
	case moving:
		n.emit(Event{Kind: Resume, Want: w.id, Peer: at, State: copy, Lost: true})
		n.end(now, w)
		return
	}
	n.place(now, w)
}

// Heard tells that a peer lives, and is that incarnation, while a message of it is on the way.
func (n *Node) Heard(now clock.Time, board int, inc uint64) {
	if board >= 0 && board < len(n.peers) && n.peers[board].alive && n.peers[board].inc == inc {
		n.peers[board].heard, n.peers[board].excused = now, 0
	}
}

// excuses is how much of a peer's silence may be our own doing, in terms of Config.Dead.
const excuses = 4

// Away tells that the node was not looked at for so long after Next, because the machine had no time for it. So the
// silence of peers in that time means nothing. A peer that is dead is lost at most excuses times Dead later.
func (n *Node) Away(d clock.Duration) {
	for i := range n.peers {
		if p := &n.peers[i]; p.alive {
			d := min(d, excuses*n.Dead-p.excused)
			p.excused += d
			p.heard = p.heard.Add(d)
		}
	}
}

// Input takes a message. It reports whether the message was new, or had a state that was awaited.
func (n *Node) Input(now clock.Time, s *State) bool {
	if s.check() != nil || s.To != n.Board || s.From >= len(n.peers) {
		return false
	}
	p := &n.peers[s.From]
	if s.Inc == p.inc && s.Seq <= p.seen && p.alive {
		return n.late(now, s)
	}
	if s.Inc < p.inc || s.Inc == p.inc && s.Seq <= p.seen {
		return false
	}
	again := s.Inc != p.inc && p.alive
	if again {
		n.emit(Event{Kind: PeerLost, Peer: s.From}) // it has nothing of what it had
	}
	if again || !p.alive {
		n.emit(Event{Kind: PeerUp, Peer: s.From})
	}
	if p.lent > 0 || now >= p.dropped.Add(2*n.Period) {
		p.lent = 0
	}
	if s.Info.Leaving && !p.info.Leaving {
		for _, w := range n.wants {
			w.stuck = w.stuck && w.peer != s.From // by now it may be less
		}
	}
	p.alive, p.inc, p.seen, p.heard, p.excused = true, s.Inc, s.Seq, now, 0
	p.info = s.Info.clone()
	if again || p.info.Deployment != n.info.Deployment {
		n.forget(now, s.From)
	}
	n.serve(now, s)
	n.learn(now, s)
	if s.Info.Leaving {
		n.fetch(now, s.From)
	}
	return true
}

// late takes the states of chains from a message that newer, shorter ones have overtaken. The asks that the states
// belong to may be over, but never begin again. late reports whether any state was still awaited.
func (n *Node) late(now clock.Time, s *State) (news bool) {
	for _, a := range s.Asks {
		l := Lease{s.From, s.Inc, a.ID}
		if e := n.lease(l); a.Phase == Handed && e != nil && e.status == Ready && e.phase < Handed {
			e.phase, news = Handed, true
			n.Host.Restore(now, l, a.State)
		}
	}
	if s.SeenInc != n.Inc {
		return news
	}
	for _, w := range slices.Clone(n.wants) {
		i := slices.IndexFunc(s.Answers, func(a Answer) bool { return a.ID == w.ask })
		if w.peer == s.From && i >= 0 && n.given(now, w, &s.Answers[i]) {
			news = true
		}
	}
	return news
}

// given takes the state that a want's chain had at its peer. It reports false if no state is awaited, or none
// is there.
func (n *Node) given(now clock.Time, w *want, a *Answer) bool {
	switch {
	case a.Copy > w.copied && (w.stage == running || w.stage == returning):
		w.copied, w.copy = a.Copy, slices.Clone(a.State)
		n.peers[w.peer].next = min(n.peers[w.peer].next, now)
	case a.Status == Saved && w.stage == moving:
		n.emit(Event{Kind: Resume, Want: w.id, Peer: w.peer, State: slices.Clone(a.State)})
		n.end(now, w)
	default:
		return false
	}
	return true
}

// serve does what a peer asks.
func (n *Node) serve(now clock.Time, s *State) {
	p := &n.peers[s.From]
	n.leases = slices.DeleteFunc(n.leases, func(e *lease) bool {
		if e.Owner != s.From || slices.ContainsFunc(s.Asks, func(a Ask) bool { return a.ID == e.ID }) {
			return false
		}
		n.release(now, e)
		p.next = min(p.next, now)
		return true
	})
	for _, a := range s.Asks {
		l := Lease{s.From, s.Inc, a.ID}
		e := n.lease(l)
		if e == nil {
			e = &lease{Lease: l, chain: a.Chain}
			if n.Host != nil && !n.info.Leaving && s.Info.Deployment == n.info.Deployment && a.Phase == Reserving && a.Chain < len(n.Chains) && n.Host.Reserve(now, l, a.Chain, a.Rate) {
				e.status = Granted
			}
			n.leases = append(n.leases, e)
			p.next = min(p.next, now)
		}
		if a.Copy == e.copied {
			e.copy = nil
		}
		if e.status == Kept && a.Phase < Moving {
			e.status, e.phase = Serving, a.Phase // the owner knows
		}
		if a.Phase <= e.phase {
			continue
		}
		e.phase = a.Phase
		switch {
		case a.Phase == Loaded && e.status == Granted:
			e.status = Loading
			n.Host.Load(now, l, e.chain)
		case a.Phase == Handed && e.status == Ready:
			n.Host.Restore(now, l, a.State)
		case a.Phase == Moving && (e.status == Ready || e.status == Serving):
			n.Host.Save(now, l)
		}
	}
}

// learn takes a peer's answers.
func (n *Node) learn(now clock.Time, s *State) {
	if s.SeenInc != n.Inc {
		return // what it answers was asked by the one before us
	}
	for _, w := range slices.Clone(n.wants) {
		if w.peer != s.From {
			continue
		}
		i := slices.IndexFunc(s.Answers, func(a Answer) bool { return a.ID == w.ask })
		if i < 0 {
			if s.Seen >= w.since {
				w.tried[w.peer] = s.Inc
				n.replace(now, w) // it had it, and has it no more
			}
			continue
		}
		switch a := s.Answers[i]; {
		case a.Status == Refused || a.Status == Failed:
			w.tried[w.peer] = s.Inc
			n.replace(now, w)
		case n.given(now, w, &a):
		case a.Status == Granted && w.stage == asked:
			w.stage = sending
			n.link = max(n.link, now).Add(transfer(n.Chains[w.chain].Bitstream, n.Rate))
			w.deadline = n.link
		case a.Status == Ready && w.stage == loading && n.Chains[w.chain].Hand:
			w.stage = handing
			n.emit(Event{Kind: Pause, Want: w.id, Peer: w.peer})
		case a.Status == Ready && w.stage == loading, a.Status == Serving && w.stage == handing:
			w.stage = running
			w.state = nil
			clear(w.tried)
			n.emit(Event{Kind: Redirect, Want: w.id, Peer: w.peer})
		case a.Status == Kept && w.stage == moving:
			w.stage, w.stuck = running, true
			n.emit(Event{Kind: Redirect, Want: w.id, Peer: w.peer, Reason: TooMuch})
		}
	}
}

// fetch brings back chains from a peer that leaves, and places chains elsewhere that were to go there.
func (n *Node) fetch(now clock.Time, board int) {
	for _, w := range slices.Clone(n.wants) {
		switch {
		case w.peer != board:
		case w.stage < running:
			n.replace(now, w)
		case w.stage == running && !w.stuck:
			w.stage = returning
			n.emit(Event{Kind: Return, Want: w.id, Peer: board})
		}
	}
}

// transfer returns how long so many bytes take at rate bits a second.
func transfer(bytes int64, rate uint64) clock.Duration {
	return clock.Duration(float64(bytes) * 8 / float64(rate) * float64(time.Second))
}

// Advance does what is due.
func (n *Node) Advance(now clock.Time) {
	for i := range n.peers {
		if p := &n.peers[i]; p.alive && now >= p.heard.Add(n.Dead) {
			n.Lost(now, i)
		}
	}
	for _, w := range slices.Clone(n.wants) {
		if w.peer < 0 || now < w.deadline {
			continue
		}
		switch w.stage {
		case asked:
			w.tried[w.peer] = n.peers[w.peer].inc
			n.replace(now, w)
		case sending:
			w.stage = loading
			n.peers[w.peer].next = min(n.peers[w.peer].next, now)
		}
	}
}

// Next returns the time when Advance or Poll has something to do.
func (n *Node) Next() clock.Time {
	at := clock.Never
	for i := range n.peers {
		if i == n.Board {
			continue
		}
		p := &n.peers[i]
		if p.sending == 0 {
			at = min(at, p.next)
		}
		if p.alive {
			at = min(at, p.heard.Add(n.Dead))
		}
	}
	for _, w := range n.wants {
		if w.peer >= 0 && (w.stage == asked || w.stage == sending) {
			at = min(at, w.deadline)
		}
	}
	return at
}

// Poll returns the next message to send, or nil if none is due. The message is valid until the next
// call; its receiver must not keep it.
func (n *Node) Poll(now clock.Time) *State {
	for i := range n.peers {
		p := &n.peers[i]
		if i == n.Board || now < p.next || p.sending > 0 {
			continue
		}
		p.next = now.Add(n.Period)
		p.seq++
		s := &n.out
		*s = State{From: n.Board, To: i, Inc: n.Inc, Seq: p.seq, SeenInc: p.inc, Seen: p.seen, Info: n.info, Asks: s.Asks[:0], Answers: s.Answers[:0]}
		room := n.most // what does not fit is told when others have been taken
		fits := func(state []byte, sentAt *clock.Time) bool {
			// What is long goes once, and again if nothing has come of it.
			if len(state) > room || len(state) > shortState && *sentAt > 0 && now < max(*sentAt, p.out).Add(n.Dead) {
				return false
			}
			room -= len(state)
			*sentAt = max(now, 1)
			return true
		}
		for _, w := range n.wants {
			if w.peer != i {
				continue
			}
			phase := Reserving
			switch {
			case w.stage == moving:
				phase = Moving
			case w.handed && w.stage == handing && fits(w.state, &w.sentAt):
				phase = Handed
			case w.stage >= loading:
				phase = Loaded
			}
			a := Ask{ID: w.ask, Chain: w.chain, Rate: w.rate, Phase: phase, Copy: w.copied}
			if phase == Handed {
				a.State = w.state
			}
			s.Asks = append(s.Asks, a)
		}
		for _, e := range n.leases {
			switch {
			case e.Owner != i:
			case e.status == Saved && !fits(e.state, &e.sentAt):
				s.Answers = append(s.Answers, Answer{ID: e.ID, Status: Serving})
			case e.status != Saved && e.copy != nil && fits(e.copy, &e.sentAt):
				s.Answers = append(s.Answers, Answer{ID: e.ID, Status: e.status, Copy: e.copied, State: e.copy})
			default:
				s.Answers = append(s.Answers, Answer{ID: e.ID, Status: e.status, State: e.state})
			}
		}
		return s
	}
	return nil
}
