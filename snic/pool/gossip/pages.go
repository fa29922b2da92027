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

// Pages sends messages of a Pager. It is for those who use the Node, while they do.
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

// Send implements pool.Carrier. A board that has the number, but another incarnation, leaves the message alone.
func (c carrier) Send(to int, message []byte) {
	for n, m := range c.members {
		if n.number == to {
			select {
			case m.page <- message:
			default: // it is repeated
			}
		}
	}
}
