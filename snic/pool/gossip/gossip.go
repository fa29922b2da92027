// Package gossip is the live body of snic/pool: boards find each other and notice
// each other's failure by gossip (SWIM, by hashicorp/memberlist), and exchange the
// pool's messages over the same sockets, by UDP when they are short, by TCP
// otherwise; while a long one is on its way others hear that its sender lives. All that is
// sent is encrypted and authenticated with a secret that the boards share; without one a Pool listens on the loopback interface only.
//
// An eavesdropper can record messages, and send them again. Those of Nodes and Pagers are taken once, and only by the incarnation of a
// board that they were for (see seals); what is not taken is counted (Drops). Those of memberlist can come again, and
// say of an incarnation that it was there, or had gone: memberlist takes what is news, and a board that is not there is
// asked and found dead, within seconds. Nothing depends on it meanwhile: a peer is one that a message was heard of, and
// is lost when none comes for Node.Dead.
//
// A board's name in the gossip is its number and its incarnation, so that one that
// starts anew is never taken for what it was.
//
// Of two boards that live and have the same number, the one that came later
// says and hears nothing until one of them is gone. It is not
// told from one that is started again until the other answers: a board that starts waits for
// that, and then begins. No clock decides that: who comes has no rank in the gossip until it knows who is there, and takes one
// behind all of those. Only where two meet that have begun apart, as when two
// pools become one, that one is later which was started later by their clocks.
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
	// poolLabel is in front of all messages: of what speaks another version nothing is heard.
	poolLabel = "quillon-pool-3"

	period   = 100 * time.Millisecond
	dead     = 10 * period
	short    = 1200 // bytes that are sent by UDP
	farewell = 300 * time.Millisecond
	slowest  = 3 // Config.Node.Dead, that a connection to a peer may take
	// What memberlist has to say of members goes with our messages, too, and counts as told then,
	// whoever they are for: all are to hear of it by so many, or when two compare what they know.
	rumours  = 32
	exchange = 5 * time.Second
)

// Config describes a Pool.
type Config struct {
	// Node is the board's. Its Inc may be 0: the time is taken; its Period is 100 ms
	// and its Dead ten of these, if not given.
	Node   pool.Config
	Listen string   // address and port; "": 127.0.0.1 and any port
	Join   []string // addresses and ports of boards: whoever of them is not in the pool is asked again and again
	Secret []byte   // 16, 24 or 32 bytes
	Clock  clock.Clock
	// Twin is called when a board of the same number is found at addr, and when it is gone;
	// first tells which of the two was started first, and so is the one in the pool.
	Twin func(addr string, there, first bool)
	// Alone is called when nobody of Join answers at the start, with the reason, and with nil once somebody
	// does. Until then the board is a pool of its own.
	Alone func(err error)
	// On is called with each event, one at a time. It may use the Node, and must not
	// call the Pool or wait.
	On func(n *pool.Node, now clock.Time, e pool.Event)
	// Page, if not nil, is called with each message of a pool.Pager that comes, one at a time, as On is. The bytes are its own.
	Page func(n *pool.Node, now clock.Time, message []byte)
}

// Pool is a Node with its sockets.
type Pool struct {
	Config
	list *memberlist.Memberlist
	addr string        // own
	open chan struct{} // closed when these are set
	done chan struct{}
	wake chan struct{}
	all  sync.WaitGroup

	mu      sync.Mutex // the Node and what follows
	node    *pool.Node
	members map[name]*member
	twins   map[uint64]*twin // by incarnation
	top     uint64           // greatest incarnation that peers have heard of
	rank    uint64           // the lowest of those that have a number is in the pool; 0: it has none yet
	replies numbers          // to all that ask
	closed  bool

	sealMu sync.Mutex
	seals  seals
}

// name is what the gossip calls a board.
type name struct {
	number int
	inc    uint64
}

func (n name) String() string { return fmt.Sprintf("%d/%d", n.number, n.inc) }

// member is a peer, and the newest message to it.
type member struct {
	node *memberlist.Node
	mail chan []byte // holds one
	long bool        // one is on its way, or in mail, that takes a while: the Node knows
	page chan []byte // messages of Pagers, pageQueue at most
	id   name
	// heard: it has sent a message of our own. The gossip alone may have its word from a recording.
	heard bool
	numbers
}

// pageQueue is how many messages of Pagers wait for a peer.
const pageQueue = 4

// Start opens the sockets, and joins the boards that are there. Others are asked again until Close: after a
// power cut boards start in any order, and a network that was cut may be so for long.
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
		p.rank = c.Node.Inc // there is nobody
	}
	m := memberlist.DefaultLANConfig()
	m.Name = name{c.Node.Board, c.Node.Inc}.String()
	m.Label = poolLabel
	m.ProbeInterval, m.ProbeTimeout = c.Node.Dead/2, c.Node.Dead/4
	m.TCPTimeout = slowest * c.Node.Dead // 16 MB take 1.3 s at 100 Mbit/s
	m.GossipInterval = min(c.Node.Period, m.GossipInterval)
	m.RetransmitMult, m.PushPullInterval = rumours, exchange
	m.EnableCompression = false // states are long, and wait for it
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
	p.addr = p.list.LocalNode().Address() // memberlist goes on writing to its nodes
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

// join asks those of Join that are not in the pool, all at once. It returns nil when one of them answers, or
// none is missing.
func (p *Pool) join() error {
	missing := slices.DeleteFunc(slices.Clone(p.Config.Join), p.member)
	if len(missing) == 0 {
		return nil
	}
	answers := make(chan error, len(missing))
	for _, addr := range missing {
		// It ends in its own time, also after Close.
		go func() {
			a, err := net.ResolveTCPAddr("tcp", addr)
			if err == nil && !p.member(a.String()) {
				_, err = p.list.Join([]string{a.String()})
			}
			answers <- err
		}()
	}
	late := time.After((slowest + 1) * p.Config.Node.Dead)
	err := errors.New("no answer in time") // of a name server, say
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

// member reports that a member, or this board, is at addr.
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

// boardAt reports that a member's address is ip.
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

// rejoin asks whoever is missing, until Close.
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

// oneLine makes one line of memberlist's errors.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// Addr is where others can join.
func (p *Pool) Addr() string { return p.addr }

// Do has f use the Node. It must not wait, nor call the Pool.
func (p *Pool) Do(f func(n *pool.Node, now clock.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.node, p.Clock.Now())
	p.tell()
	p.kick()
}

// tell hands events out.
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

// kick has run look at the Node.
func (p *Pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run does what is due.
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

// post has a message sent to all that have the number of its receiver. What chains know may be long, and
// // is encoded once: while a long message is on its way, the Node makes no other for who is to have it.
func (p *Pool) post(s *pool.State) {
	if p.silent() {
		return
	}
	var bytes []byte
	for _, m := range p.receivers(s) {
		if bytes == nil {
			var err error
			// What it holds is a few numbers and the board's bytes: it can be encoded.
			if bytes, err = s.Encode(); err != nil {
				return
			}
		}
		select {
		case <-m.mail: // older: it says no more than this one
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
		p.node.Sent(p.Clock.Now(), s.To, false) // to nobody
	}
}

// receivers are the members that a message goes to. What chains know goes to those alone that were heard, if there are any:
// nobody is to wait for one that may have gone.
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

// sent tells the Node that a long message to a member is out, or lost.
func (p *Pool) sent(number int, m *member, ok bool) {
	if m.long {
		m.long = false
		p.node.Sent(p.Clock.Now(), number, ok)
		p.kick()
	}
}

// deliver sends the newest message to a member, one at a time.
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

// long sends a message that takes a while, and tells meanwhile that this board lives. It reports whether
// it was sent.
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

// seal has a message to a member say who sends it, and its number.
func (p *Pool) seal(s stream, m *member, message []byte) []byte {
	return m.seal(s, p.seals.own, m.id, message)
}

// unseal is a message that was not taken before; nil: it is not taken.
func (p *Pool) unseal(b []byte) (message []byte, from name, of stream) {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	return p.seals.open(b)
}

// malformed counts a message that says what no board would.
func (p *Pool) malformed() {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	p.seals.drops.Malformed++
}

// Drops are the messages that were not taken.
func (p *Pool) Drops() Drops {
	p.sealMu.Lock()
	defer p.sealMu.Unlock()
	return p.seals.drops
}

// Close leaves the pool, so that others need not find out, and closes the sockets.
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
		_ = p.list.Leave(farewell) // who did not hear it finds out
	}
	close(p.done)
	err := p.list.Shutdown()
	p.all.Wait()
	return err
}

// parseName reads a name: number and incarnation.
func parseName(text string) (n name, ok bool) {
	a, b, ok := strings.Cut(text, "/")
	number, err := strconv.Atoi(a)
	inc, err2 := strconv.ParseUint(b, 10, 64)
	return name{number, inc}, ok && err == nil && err2 == nil && number >= 0 && number < pool.MaxBoards
}

// events are of memberlist's failure detector.
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
	// Memberlist goes on writing to the one it has.
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
			p.sent(id.number, m, false) // it may have started again: nobody waits for who was there before
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

// NotifyLeave implements memberlist.EventDelegate: it left, or failed.
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
			return // it was started again, or there are two: who says nothing is lost in time
		}
	}
	p.node.Lost(p.Clock.Now(), id.number)
	p.tell()
	p.kick()
}

// NotifyUpdate implements memberlist.EventDelegate: it has a rank.
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

// readRank reads what NodeMeta has written.
func readRank(meta []byte) uint64 {
	if len(meta) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(meta)
}

// NodeMeta implements memberlist.Delegate: it is the rank of this board.
func (d delegate) NodeMeta(int) []byte {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.rank == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, d.p.rank)
}

// hears has a member be one that was heard of itself.
func (p *Pool) hears(from name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[from]; m != nil {
		m.heard = true
	}
}

// delegate takes messages.
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
		// Peers take this one for one that was here before it.
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
