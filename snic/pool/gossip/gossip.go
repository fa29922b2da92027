// Package gossip is the live body of snic/pool. Boards find each other, and notice each other's failure, by
// gossip (SWIM, by hashicorp/memberlist). They exchange the pool's messages over the same sockets: short
// messages by UDP, long ones by TCP. While a long message is under way, its sender tells the receiver that it
// lives. All messages are encrypted and authenticated with a secret that the boards share. Without a secret,
// a Pool listens on the loopback interface only.
//
// An eavesdropper can record messages and send them again. A message of a Node or a Pager is taken once, and
// only by the incarnation of a board that it was sent to (see seals); messages that are not taken are counted
// (Drops). Recorded messages of memberlist can come again, and say of an incarnation that it is there, or is
// gone. memberlist takes such news if it is newer than what it knows; it asks a board that is not there, and
// finds it dead within seconds. Nothing depends on this meanwhile: a board is a peer only after the pool has
// had a message of it, and is lost when no message comes for Node.Dead.
//
// A board's name in the gossip is its number and its incarnation, so that a board that starts again is never
// taken for its earlier incarnation.
//
// Of two live boards with the same number, the later one is silent, and hears nothing, until one of them is
// gone. The gossip does not tell a second board from one that was started again, until the other board
// answers. So a board that starts waits for this answer, and then begins. No clock decides which board is the
// later one: a board that starts has no rank in the gossip until it knows who is there, and then takes a rank
// behind all those with its number. Only where two boards meet that began apart, for example when two pools
// become one, the later one is the one that was started later by their clocks.
package gossip

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

const (
	// poolLabel begins each message. Messages of another version have another label, and are ignored.
	poolLabel = "quillon-pool-3"

	period   = 100 * time.Millisecond
	dead     = 10 * period
	short    = 1200 // bytes of the longest message that goes by UDP
	farewell = 300 * time.Millisecond
	slowest  = 3 // time that a connection to a peer may take, in units of Config.Node.Dead
	// memberlist adds its news of members to our messages, too, and counts each of them as one transmission,
	// whichever member it goes to. So that all members hear of the news, it is sent rumours times the
	// logarithm of their number, and two members compare all that they know once in exchange.
	rumours  = 32
	exchange = 5 * time.Second
)

// Config describes a Pool.
type Config struct {
	// Node describes the board. If Inc is 0, it is the time. If Period is 0, it is 100 ms; if Dead is 0, it
	// is ten times Period, and at least 1 s.
	Node   pool.Config
	Listen string   // address and port; "": 127.0.0.1 and a free port
	Join   []string // addresses and ports of boards; those that are not in the pool are asked again and again
	Secret []byte   // 16, 24 or 32 bytes; nil: loopback interface only
	Clock  clock.Clock
	// Twin is called when another live board with the same number is found at addr, and when it is gone.
	// first says that this board comes before the other one, and so is the one in the pool.
	Twin func(addr string, there, first bool)
	// Alone is called with the reason when no board of Join answers at the start, and with nil when one does
	// later. Until then the board is a pool of its own.
	Alone func(err error)
	// On is called with each event, one at a time. It may use the Node. It must not call the Pool, and must
	// not wait.
	On func(n *pool.Node, now clock.Time, e pool.Event)
	// Page, if not nil, is called with each message of a pool.Pager that comes, one at a time, like On. It
	// owns the bytes.
	Page func(n *pool.Node, now clock.Time, message []byte)
}

// Pool is a Node with its sockets.
type Pool struct {
	Config
	list *memberlist.Memberlist
	addr string        // this board's address
	open chan struct{} // closed when list and addr are set
	done chan struct{}
	wake chan struct{}
	all  sync.WaitGroup

	mu      sync.Mutex // guards node and the fields below up to closed
	node    *pool.Node
	members map[name]*member
	twins   map[uint64]*twin // other boards with this number, by incarnation
	top     uint64           // greatest incarnation of this board that peers have heard of
	rank    uint64           // of the boards with this number, the one with the lowest rank is in the pool; 0: this board has no rank yet
	replies numbers          // of replies to other boards with this number
	closed  bool

	sealMu sync.Mutex
	seals  seals
}

// name is a board's name in the gossip.
type name struct {
	number int
	inc    uint64
}

func (n name) String() string { return fmt.Sprintf("%d/%d", n.number, n.inc) }

// member is a peer, with the messages that wait for it.
type member struct {
	node *memberlist.Node
	mail chan []byte // the newest message; holds one
	long bool        // a long message is in mail or under way, and the Node knows of it
	page chan []byte // messages of Pagers, at most pageQueue
	id   name
	// heard says that a message of the pool came from the member. The gossip alone may know the member from a
	// recording.
	heard bool
	numbers
}

// pageQueue is the largest number of messages of Pagers that wait for a peer.
const pageQueue = 4

// Start opens the sockets, and joins the boards of Join that answer. The others are asked again until Close,
// because after a power cut boards start in any order, and a network may be divided for long.
func Start(c Config) (*Pool, error) {
	if c.Clock == nil {
		c.Clock = clock.NewWall()
	}
	c.Node.Inc = cmp.Or(c.Node.Inc, uint64(c.Clock.Now()))
	c.Node.Period = cmp.Or(c.Node.Period, period)
	c.Node.Dead = cmp.Or(c.Node.Dead, max(dead, 10*c.Node.Period))
	host, port, err := net.SplitHostPort(cmp.Or(c.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("gossip: listen on %s: %w", c.Listen, err)
	}
	ip := net.ParseIP(host)
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case ip == nil || err != nil:
		return nil, fmt.Errorf("gossip: listen on %s: want an IP address and a port, such as 192.0.2.1:7946", c.Listen)
	case len(c.Secret) == 0 && !ip.IsLoopback():
		return nil, fmt.Errorf("gossip: listen on %s: without a secret only on the loopback interface", c.Listen)
	case len(c.Secret) != 0 && len(c.Secret) != 16 && len(c.Secret) != 24 && len(c.Secret) != 32:
		return nil, fmt.Errorf("gossip: secret of %d bytes: want 16, 24 or 32", len(c.Secret))
	}
	for _, j := range c.Join {
		if host, _, err := net.SplitHostPort(j); err != nil || host == "" {
			return nil, fmt.Errorf("gossip: join %s: want an address and a port, such as 192.0.2.1:7946", j)
		}
	}
	p := &Pool{Config: c, open: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1), members: map[name]*member{}, twins: map[uint64]*twin{}, seals: newSeals(name{c.Node.Board, c.Node.Inc})}
	if p.node, err = pool.New(c.Clock.Now(), c.Node); err != nil {
		return nil, err
	}
	p.replies.from(uint64(c.Clock.Now()))
	if len(c.Join) == 0 {
		p.rank = c.Node.Inc // no other board is asked
	}
	m := memberlist.DefaultLANConfig()
	m.Name = name{c.Node.Board, c.Node.Inc}.String()
	m.Label = poolLabel
	m.ProbeInterval, m.ProbeTimeout = c.Node.Dead/2, c.Node.Dead/4
	m.TCPTimeout = slowest * c.Node.Dead // 16 MB take 1.3 s at 100 Mbit/s
	m.GossipInterval = min(c.Node.Period, m.GossipInterval)
	m.RetransmitMult, m.PushPullInterval = rumours, exchange
	m.EnableCompression = false // states are long, and compressing them would take time
	m.LogOutput = io.Discard
	if len(c.Secret) > 0 {
		m.SecretKey = c.Secret
	}
	m.Delegate, m.Events = delegate{p}, events{p}
	t, err := listen(ip, int(number), m.Label, c.Clock, p.boardAt)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	m.Transport, m.BindAddr, m.BindPort, m.AdvertisePort = t, host, t.port(), t.port()
	if p.list, err = memberlist.Create(m); err != nil {
		_ = t.Shutdown()
		return nil, fmt.Errorf("gossip: %w", oneLine(err))
	}
	p.addr = p.list.LocalNode().Address() // memberlist goes on writing to its nodes, so the address is copied
	close(p.open)
	alone := p.join()
	for _, t := range p.known() {
		<-t.asked
	}
	if len(c.Join) > 0 {
		p.begin()
		if alone != nil && c.Alone != nil {
			c.Alone(alone)
		}
		p.all.Add(1)
		go p.rejoin(alone != nil)
	}
	p.all.Add(1)
	go p.run()
	return p, nil
}

// join asks the boards of Join that are not in the pool, all at once. It returns nil if one of them answers,
// or if none is missing.
func (p *Pool) join() error {
	missing := slices.DeleteFunc(slices.Clone(p.Config.Join), p.member)
	if len(missing) == 0 {
		return nil
	}
	answers := make(chan error, len(missing))
	for _, addr := range missing {
		// The goroutine ends by itself, even after Close.
		go func() {
			a, err := net.ResolveTCPAddr("tcp", addr)
			if err == nil && !p.member(a.String()) {
				_, err = p.list.Join([]string{a.String()})
			}
			answers <- err
		}()
	}
	late := time.After((slowest + 1) * p.Config.Node.Dead)
	err := errors.New("no answer in time") // for example of a name server
	found := false
	for range missing {
		select {
		case e := <-answers:
			if e == nil {
				found = true
			} else {
				err = e
			}
			continue
		case <-late:
		case <-p.done:
		}
		break
	}
	if found {
		return nil
	}
	return fmt.Errorf("gossip: nobody of %s answers: %w", strings.Join(missing, ", "), oneLine(err))
}

// member reports whether a member, or this board, has address addr.
func (p *Pool) member(addr string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if m.node.Address() == addr {
			return true
		}
	}
	for _, t := range p.twins {
		if t.node.Address() == addr {
			return true
		}
	}
	return addr == p.addr
}

// boardAt reports whether a member has the address ip.
func (p *Pool) boardAt(ip net.IP) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if m.node.Addr.Equal(ip) {
			return true
		}
	}
	return false
}

// rejoin asks the missing boards of Join again and again, until Close.
func (p *Pool) rejoin(alone bool) {
	defer p.all.Done()
	again := time.NewTicker(p.Config.Node.Dead)
	defer again.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-again.C:
		}
		_ = p.join()
		if alone && p.list.NumMembers() > 1 {
			alone = false
			if p.Alone != nil {
				p.Alone(nil)
			}
		}
	}
}

// oneLine puts an error of memberlist into one line.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// Addr returns the address at which other boards can join.
func (p *Pool) Addr() string { return p.addr }

// Do calls f, which may use the Node. f must not wait, and must not call the Pool.
func (p *Pool) Do(f func(n *pool.Node, now clock.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.node, p.Clock.Now())
	p.tell()
	p.kick()
}

// tell calls On with the Node's events.
func (p *Pool) tell() {
	for {
		events := p.node.Events()
		if len(events) == 0 {
			return
		}
		for _, e := range events {
			if p.On != nil {
				p.On(p.node, p.Clock.Now(), e)
			}
		}
	}
}

// kick makes run look at the Node.
func (p *Pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run does the Node's work when it is due.
func (p *Pool) run() {
	defer p.all.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := clock.Never
	for {
		select {
		case <-p.done:
			return
		case <-p.wake:
		case <-timer.C:
		}
		p.mu.Lock()
		now := p.Clock.Now()
		if now > next {
			p.node.Away(now.Sub(next))
		}
		p.node.Advance(now)
		p.tell()
		for s := p.node.Poll(now); s != nil; s = p.node.Poll(now) {
			p.post(s)
		}
		next = max(p.node.Next(), now)
		p.mu.Unlock()
		timer.Reset(max(next.Sub(now), 0))
	}
}

// post sends a message to all members with the number of its receiver. A message with the state of chains may
// be long, and is encoded once: while a long message is under way, the Node makes no other for the same
// receiver.
func (p *Pool) post(s *pool.State) {
	if p.silent() {
		return
	}
	var bytes []byte
	for _, m := range p.receivers(s) {
		if bytes == nil {
			var err error
			// A State is a few numbers and the board's bytes, which can always be encoded.
			if bytes, err = s.Encode(); err != nil {
				return
			}
		}
		select {
		case <-m.mail: // an older message, which says no more than this one
		default:
		}
		if len(bytes) > short {
			m.long = true
			p.node.Sending(s.To)
		}
		m.mail <- bytes
	}
	if bytes == nil && s.Holds() {
		p.node.Sending(s.To)
		p.node.Sent(p.Clock.Now(), s.To, false) // there is no receiver
	}
}

// receivers returns the members that a message goes to. If a message holds the state of chains, and some of
// the members were heard, it goes only to these, so that the sender does not wait for a member that may be
// gone.
func (p *Pool) receivers(s *pool.State) (all []*member) {
	var heard []*member
	for n, m := range p.members {
		if n.number == s.To {
			all = append(all, m)
			if m.heard {
				heard = append(heard, m)
			}
		}
	}
	if s.Holds() && len(heard) > 0 {
		return heard
	}
	return all
}

// sent tells the Node that a long message to a member was sent (ok), or is lost.
func (p *Pool) sent(number int, m *member, ok bool) {
	if m.long {
		m.long = false
		p.node.Sent(p.Clock.Now(), number, ok)
		p.kick()
	}
}

// deliver sends the newest messages to a member, one at a time.
func (p *Pool) deliver(number int, m *member) {
	defer p.all.Done()
	<-p.open
	for {
		select {
		case <-p.done:
			return
		case bytes, ok := <-m.mail:
			if !ok {
				return
			}
			// Errors are losses, which the pool expects.
			if len(bytes) <= short {
				_ = p.list.SendBestEffort(m.node, p.seal(streamShort, m, bytes))
			} else {
				ok := p.long(m, bytes)
				p.mu.Lock()
				p.sent(number, m, ok)
				p.mu.Unlock()
			}
		}
	}
}

// long sends a long message, and meanwhile tells its receiver that this board lives. It reports whether the
// message was sent.
func (p *Pool) long(m *member, message []byte) bool {
	done := make(chan error, 1)
	sealed := p.seal(streamLong, m, message)
	go func() { done <- p.list.SendReliable(m.node, sealed) }()
	tick := time.NewTicker(p.Config.Node.Period)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err == nil
		case <-tick.C:
			p.mu.Lock()
			text := name{p.Config.Node.Board, p.node.Inc}.String()
			p.mu.Unlock()
			_ = p.list.SendBestEffort(m.node, p.seal(streamAlive, m, []byte(text)))
		}
	}
}

// seal returns a message to a member with a header that names sender and receiver, and has the message's
// number.
func (p *Pool) seal(s stream, m *member, message []byte) []byte {
	return m.seal(s, p.seals.own, m.id, message)
}

// unseal returns a message without its header, or nil if it must not be taken, for example because it was
// taken before.
func (p *Pool) unseal(b []byte) (message []byte, from name, of stream) {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	return p.seals.open(b)
}

// malformed counts a message that no board would send.
func (p *Pool) malformed() {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	p.seals.drops.Malformed++
}

// Drops returns the numbers of messages that were not taken.
func (p *Pool) Drops() Drops {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	return p.seals.drops
}

// Close leaves the pool, so that other boards need not find out, and closes the sockets.
func (p *Pool) Close() error { return p.close(true) }

func (p *Pool) close(leave bool) error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return nil
	}
	if leave {
		_ = p.list.Leave(farewell) // a board that does not hear it finds out
	}
	close(p.done)
	err := p.list.Shutdown()
	p.all.Wait()
	return err
}

// parseName parses a name: number and incarnation.
func parseName(text string) (n name, ok bool) {
	a, b, ok := strings.Cut(text, "/")
	number, err := strconv.Atoi(a)
	inc, err2 := strconv.ParseUint(b, 10, 64)
	return name{number, inc}, ok && err == nil && err2 == nil && number >= 0 && number < pool.MaxBoards
}

// events handles events of memberlist's failure detector.
type events struct{ p *Pool }

// NotifyJoin implements memberlist.EventDelegate.
func (e events) NotifyJoin(n *memberlist.Node) {
	p := e.p
	id, ok := parseName(n.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || p.closed || p.members[id] != nil || p.twins[id.inc] != nil && id.number == p.Config.Node.Board {
		return
	}
	// memberlist goes on writing to its own node.
	copied, rank := *n, readRank(n.Meta)
	copied.Addr, copied.Meta = slices.Clone(n.Addr), nil
	n = &copied
	switch own := (name{p.Config.Node.Board, p.Config.Node.Inc}); {
	case id == own:
		return
	case id.number == own.number:
		t := newTwin(n, id, rank, p.Clock.Now())
		p.twins[id.inc] = t
		p.all.Add(1)
		go p.ask(t)
		return
	}
	for other, m := range p.members {
		if other.number == id.number {
			p.sent(id.number, m, false) // the board may have started again: nothing waits for its earlier incarnation
		}
	}
	m := &member{node: n, mail: make(chan []byte, 1), page: make(chan []byte, pageQueue), id: id}
	m.from(uint64(p.Clock.Now()))
	p.members[id] = m
	p.all.Add(2)
	go p.deliver(id.number, m)
	go p.carry(m)
	p.kick()
}

// NotifyLeave implements memberlist.EventDelegate: a board left, or failed.
func (e events) NotifyLeave(n *memberlist.Node) {
	p := e.p
	id, ok := parseName(n.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || p.closed {
		return
	}
	if t := p.twins[id.inc]; t != nil && id.number == p.Config.Node.Board {
		delete(p.twins, id.inc)
		close(t.gone)
		if t.lives {
			p.lost(t)
		}
		return
	}
	m := p.members[id]
	if m == nil {
		return
	}
	p.sent(id.number, m, false)
	close(m.mail)
	close(m.page)
	delete(p.members, id)
	for other := range p.members {
		if other.number == id.number {
			return // the board was started again, or there are two; one that is silent is lost in time
		}
	}
	p.node.Lost(p.Clock.Now(), id.number)
	p.tell()
	p.kick()
}

// NotifyUpdate implements memberlist.EventDelegate: a board has got its rank.
func (e events) NotifyUpdate(n *memberlist.Node) {
	p := e.p
	id, ok := parseName(n.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.twins[id.inc]
	if !ok || p.closed || t == nil || id.number != p.Config.Node.Board {
		return
	}
	t.rank = readRank(n.Meta)
	if t.lives && t.first != p.before(t) {
		p.judge(t)
	}
}

// readRank parses the result of NodeMeta.
func readRank(meta []byte) uint64 {
	if len(meta) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(meta)
}

// NodeMeta implements memberlist.Delegate. It returns this board's rank.
func (d delegate) NodeMeta(int) []byte {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.rank == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, d.p.rank)
}

// hears notes that a message came from a member itself.
func (p *Pool) hears(from name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[from]; m != nil {
		m.heard = true
	}
}

// delegate handles messages.
type delegate struct{ p *Pool }

// NotifyMsg implements memberlist.Delegate.
func (d delegate) NotifyMsg(bytes []byte) {
	p := d.p
	bytes, from, of := p.unseal(bytes)
	if bytes == nil {
		return
	}
	p.hears(from)
	switch {
	case of == streamAlive:
		if n, ok := parseName(string(bytes)); ok {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.node.Heard(p.Clock.Now(), n.number, n.inc)
		}
		return
	case of == streamAsk:
		p.reply(from, bytes)
		return
	case of == streamReply:
		p.replied(from, bytes)
		return
	case of == streamPage:
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed && !p.silent() && p.Page != nil {
			p.Page(p.node, p.Clock.Now(), slices.Clone(bytes))
		}
		return
	}
	s, err := pool.Decode(bytes)
	if err != nil || s.From != from.number {
		p.malformed()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if s.To == p.Config.Node.Board {
		p.top = max(p.top, s.SeenInc)
	}
	if p.silent() {
		return
	}
	if p.top > p.node.Inc && p.certain() {
		// Peers know a later incarnation of this board, which was here before.
		p.node.Renew(p.Clock.Now(), p.top+1)
	}
	p.node.Input(p.Clock.Now(), s)
	p.tell()
	p.kick()
}

// The rest of memberlist.Delegate is not used.

func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}
