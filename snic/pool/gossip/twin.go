package gossip

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quillon/quillon/nf/clock"
)

// twin is another board that the gossip knows by the number of this one: one that was here before,
// or one that lives. Which of the two it is, the gossip does not say: its pings can be recorded and answered by
// anyone. So a twin is asked by a message of our own, and its reply is for this incarnation alone.
type twin struct {
	node    *memberlist.Node
	id      name
	rank    uint64
	known   bool // whether it lives
	lives   bool
	first   bool          // this board comes before it
	asked   chan struct{} // closed when it was asked once
	asking  uint64        // number of the question that it was asked last: who is on the way may hold replies back for later
	replied chan struct{} // holds one, to that question
	gone    chan struct{}
	numbers
}

// unanswered is how many questions in a row a twin that lives may leave without a reply.
const unanswered = 3

func newTwin(n *memberlist.Node, id name, rank uint64, now clock.Time) *twin {
	t := &twin{node: n, id: id, rank: rank, asked: make(chan struct{}), replied: make(chan struct{}, 1), gone: make(chan struct{})}
	t.from(uint64(now))
	return t
}

// known are the twins that there are.
func (p *Pool) known() []*twin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.twins))
}

// begin takes a rank behind those of all that are there with the number.
func (p *Pool) begin() {
	p.mu.Lock()
	p.rank = p.Config.Node.Inc
	for _, t := range p.twins {
		if t.lives {
			p.rank = max(p.rank, t.rank+1)
		}
	}
	p.mu.Unlock()
	_ = p.list.UpdateNode(time.Millisecond) // it goes on telling others
}

// before reports that this board comes before another of its number.
func (p *Pool) before(t *twin) bool {
	switch {
	case p.rank == 0:
		return false
	case t.rank == 0:
		return true
	}
	return cmp.Or(cmp.Compare(p.rank, t.rank), cmp.Compare(p.Config.Node.Inc, t.id.inc)) < 0
}

// silent reports that a board of this number was there first.
func (p *Pool) silent() bool {
	for _, t := range p.twins {
		if t.lives && !p.before(t) {
			return true
		}
	}
	return false
}

// ask finds out whether a twin lives, again and again as long as the gossip knows it.
func (p *Pool) ask(t *twin) {
	defer p.all.Done()
	<-p.open
	again := time.NewTicker(p.Config.Node.Dead)
	defer again.Stop()
	silent := 0
	for first := true; ; first = false {
		if p.question(t) {
			silent = 0
			p.found(t, true)
		} else if silent++; silent >= unanswered {
			p.found(t, false)
		}
		if first {
			close(t.asked)
		}
		select {
		case <-p.done:
			return
		case <-t.gone:
			return
		case <-again.C:
		}
	}
}

// question asks a twin once, and reports whether it replies.
func (p *Pool) question(t *twin) bool {
	if t.node.Address() == p.addr {
		return false // nobody else can be there
	}
	p.mu.Lock()
	t.asking++
	select {
	case <-t.replied: // too late for the question before
	default:
	}
	text := append(binary.BigEndian.AppendUint64(nil, t.asking), p.addr...)
	p.mu.Unlock()
	_ = p.list.SendBestEffort(t.node, t.seal(streamAsk, p.seals.own, t.id, text))
	late := time.NewTimer(p.Config.Node.Dead / 4)
	defer late.Stop()
	select {
	case <-t.replied:
		return true
	case <-late.C:
	case <-t.gone:
	case <-p.done:
	}
	return false
}

// reply tells a twin that this board lives. It asks with the number of its question, in 8 bytes, and its address.
func (p *Pool) reply(to name, ask []byte) {
	select {
	case <-p.open:
	default:
		return // it asks again
	}
	if len(ask) < 8 {
		p.malformed()
		return
	}
	number, addr := ask[:8], string(ask[8:])
	if _, err := net.ResolveUDPAddr("udp", addr); err != nil {
		p.malformed()
		return
	}
	p.mu.Lock()
	closed := p.closed
	message := p.replies.seal(streamReply, p.seals.own, to, number)
	p.mu.Unlock()
	if !closed {
		_ = p.list.SendToAddress(memberlist.Address{Addr: addr, Name: to.String()}, message)
	}
}

// replied takes the reply of a twin: the number of the question.
func (p *Pool) replied(from name, number []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.twins[from.inc]
	if t == nil || len(number) != 8 || binary.BigEndian.Uint64(number) != t.asking {
		return
	}
	select {
	case t.replied <- struct{}{}:
	default:
	}
}

// found says that another process with the same number lives, or does so no more. Of two that live the one that
// started later is silent.
func (p *Pool) found(t *twin, lives bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.twins[t.id.inc] != t {
		return
	}
	t.known = true
	if t.lives == lives {
		return
	}
	t.lives = lives
	if lives {
		p.judge(t)
		return
	}
	p.lost(t)
}

// lost says that a twin that lived is there no more.
func (p *Pool) lost(t *twin) {
	if p.Twin != nil {
		p.Twin(t.node.Address(), false, t.first)
	}
	p.kick()
}

// judge says what comes of it that a twin lives.
func (p *Pool) judge(t *twin) {
	t.first = p.before(t)
	if p.silent() {
		p.node.Renew(p.Clock.Now(), 0)
		p.tell()
	}
	if p.Twin != nil {
		p.Twin(t.node.Address(), true, t.first)
	}
	p.kick()
}

// certain reports that of all others of the number it is known whether they live.
func (p *Pool) certain() bool {
	for _, t := range p.twins {
		if !t.known {
			return false
		}
	}
	return true
}
