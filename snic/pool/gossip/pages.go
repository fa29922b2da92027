package gossip

import "github.com/quillon/quillon/snic/pool"

// carry sends messages of Pagers to a member, one at a time.
func (p *Pool) carry(m *member) {
	defer p.all.Done()
	<-p.open
	for {
		select {
		case <-p.done:
			return
		case bytes, ok := <-m.page:
			if !ok {
				return
			}
			_ = p.list.SendReliable(m.node, p.seal(streamPage, m, bytes)) // losses are expected
		}
	}
}

// Pages returns a carrier that sends messages of a Pager. Its methods may be called only by code that uses
// the Node at that moment (Do, On, Page).
func (p *Pool) Pages() pool.Carrier { return carrier{p} }

type carrier struct{ *Pool }

// Room implements pool.Carrier.
func (c carrier) Room(to int) bool {
	for n, m := range c.members {
		if n.number == to && len(m.page) < cap(m.page) {
			return !c.silent()
		}
	}
	return false
}

// Send implements pool.Carrier. A board with this number but another incarnation does not take the message.
func (c carrier) Send(to int, message []byte) {
	for n, m := range c.members {
		if n.number == to {
			select {
			case m.page <- message:
			default: // the Pager repeats it
			}
		}
	}
}
