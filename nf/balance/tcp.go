package balance

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A client's SYN from the port of a connection that balance remembers begins a new connection, or somebody made it up. The new
// connection is to go to a backend that gets new ones. So the backend that the old connection has is asked, by the SYN itself:
// where it has the connection it answers with a challenge ACK (RFC 5961 4), which a client that has started anew answers with a
// RST. Where it has none it begins a new one, or is silent. Nobody but the backend, and a client that hears the backend, can say
// that the old connection is over.

// life is what is known of the life of a TCP connection.
type life uint8

const (
	inQuestion     life = 1 << iota // a SYN that may begin a new connection went to the backend, which has not answered that it has the old one
	clientFinished                  // the client has sent a FIN, whose sequence number ends before conn.fin
	finished                        // the backend has sent a FIN
	over                            // the backend has the connection no more

	awaited = inQuestion | finished // the backend's next segment says what becomes of the connection: the kernel must not run it
)

// again is how long a connection has been silent when a SYN of its client begins a new one from the same port. An earlier
// SYN may be the same one, doubled by the network: a TCP repeats a SYN after 1 s or more (RFC 6298 2.1). Such a repetition
// may go to another backend, because the connection has not begun.
const again = 500 * time.Millisecond

// fresh takes note of client's segment l4. It returns true if the segment begins a new connection in the place of another
// one, whose backend gets no new connections.
func (b *balance) fresh(l4 []byte, c *conn, now clock.Time) bool {
	t := hdr.TCP(l4)
	switch t.Flags() & (hdr.TCPSyn | hdr.TCPAck | hdr.TCPRst | hdr.TCPFin) {
	case hdr.TCPAck:
	case hdr.TCPSyn:
		if b.backends[c.backend].state == up && b.alive(c.backend) {
			c.life = 0
			return false
		}
		if now.Sub(b.conns.since(b, b.place, now, again)) <= again {
			return false
		}
		if c.life&(inQuestion|over) != 0 {
			return true
		}
		c.life |= inQuestion
		b.conns.withdraw(b.place)
	case hdr.TCPRst, hdr.TCPRst | hdr.TCPAck:
		if t.Seq() == c.ack { // RFC 5961 3
			c.life |= over
		}
	case hdr.TCPFin | hdr.TCPAck:
		c.fin, c.life = t.Seq()+uint32(max(len(l4)-t.HeaderLen(), 0))+1, c.life|clientFinished
	}
	return false
}

// answers takes note of a backend's segment l4 of the connection in b.place. It returns false if the segment must not reach the
// client: it begins a new connection at a backend that gets none.
func (b *balance) answers(l4 []byte) bool {
	c, t := &b.conns.At(b.place).Val, hdr.TCP(l4)
	switch flags := t.Flags(); {
	case flags&hdr.TCPRst != 0:
		c.life |= over
	case flags&(hdr.TCPSyn|hdr.TCPAck) == hdr.TCPSyn|hdr.TCPAck:
		if c.life&inQuestion != 0 && t.Ack() != c.ack { // with the same number it answers a SYN that it has answered before
			c.life |= over
			return false
		}
		c.life = 0
	default:
		if c.life &^= inQuestion; flags&hdr.TCPFin != 0 {
			c.life |= finished
			b.conns.withdraw(b.place)
		}
	}
	if c.ack = t.Ack(); c.life&(finished|clientFinished) == finished|clientFinished && c.ack == c.fin {
		c.life |= over
	}
	return true
}
