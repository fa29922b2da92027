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

// twin is another board that the gossip knows by the number of this one: an earlier incarnation of this
// board, or another live board. The gossip cannot tell which, because anyone can record and answer its pings.
// So the pool asks a twin by a message of its own, and the reply is valid for this incarnation only.
type twin struct {
	node    *memberlist.Node
	id      name
	rank    uint64
	known   bool // it is known whether the twin lives
	lives   bool
	first   bool          // this board comes before it
	asked   chan struct{} // closed when the twin was asked once
	asking  uint64        // number of the newest question; an attacker on the path may hold back replies for later
	replied chan struct{} // holds one reply, to the newest question
	gone    chan struct{}
	numbers
}

// unanswered is the number of questions in a row without a reply after which a twin counts as gone.
const unanswered = 3

func newTwin(n *memberlist.Node, id name, rank uint64, now clock.Time) *twin {
	t := &twin{node: n, id: id, rank: rank, asked: make(chan struct{}), replied: make(chan struct{}, 1), gone: make(chan struct{})}
	t.from(uint64(now))
	return t
}

// known returns all twins.
func (p *Pool) known() []*twin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.twins))
}

// begin takes a rank behind those of all live boards with this number.
func (p *Pool) begin() {
	p.mu.Lock()
	p.rank = p.Config.Node.Inc
	for _, t := range p.twins {
		if t.lives {
			p.rank = max(p.rank, t.rank+1)
		}
	}
	p.mu.Unlock()
	_ = p.list.UpdateNode(time.Millisecond) // it goes on telling other members after this time
}

// before reports whether this board comes before the twin.
func (p *Pool) before(t *twin) bool {
	switch {
	case p.rank == 0:
		return false
	case t.rank == 0:
		return true
	}
	return cmp.Or(cmp.Compare(p.rank, t.rank), cmp.Compare(p.Config.Node.Inc, t.id.inc)) < 0
}

// silent reports whether another live board with this number comes before this one.
func (p *Pool) silent() bool {
	for _, t := range p.twins {
		if t.lives && !p.before(t) {
			return true
		}
	}
	return false
}

// ask asks a twin again and again whether it lives, as long as the gossip knows it.
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
		return false // no other board can be at this address
	}
	p.mu.Lock()
	t.asking++
	select {
	case <-t.replied: // it came too late, for the question before
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

// reply tells a twin that this board lives. ask is the twin's question: its number, in 8 bytes, and the
// twin's address.
func (p *Pool) reply(to name, ask []byte) {
	select {
	case <-p.open:
	default:
		return // the twin will ask again
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

// replied handles the reply of a twin, which is the number of the question.
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

// found notes whether a twin lives. Of two live boards with the same number the later one is silent.
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

// lost notes that a twin that lived is gone.
func (p *Pool) lost(t *twin) {
	if p.Twin != nil {
		p.Twin(t.node.Address(), false, t.first)
	}
	p.kick()
}

// judge acts on a live twin: it decides which of both boards comes first.
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

// certain reports whether it is known of each twin whether it lives.
func (p *Pool) certain() bool {
	for _, t := range p.twins {
		if !t.known {
			return false
		}
	}
	return true
}
