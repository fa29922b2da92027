package firewall

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
)

var be = binary.BigEndian

// Flags of TCP (RFC 9293 3.1). The firewall ignores all other flags.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	_
	flagACK
	theFlags = flagFIN | flagSYN | flagRST | flagACK
)

// side is what one end of a TCP connection has sent (van Rooij, Real Stateful TCP Packet Filtering in IP Filter,
// 2000). It holds sequence numbers, which wrap.
type side struct {
	end   uint32 // behind the last byte, SYN or FIN that it has sent
	max   uint32 // behind the last byte that the other end has made room for
	win   uint32 // the largest window that it has offered
	ack   uint32 // the last acknowledgement that it has sent
	scale uint8  // of the windows that it offers
	has   uint8
}

// Bits of side.has: what one end of a TCP connection has sent.
const (
	hasSent   = 1 << iota // something: its numbers are known
	hasScale              // offered window scaling (RFC 7323 2)
	hasAck                // acknowledged
	hasFIN                // ended its stream
	hasFINAck             // acknowledged the end of the other's
)

func after(a, b uint32) bool  { return int32(a-b) > 0 }
func before(a, b uint32) bool { return int32(a-b) < 0 }

// segment holds the fields of a TCP segment that the firewall uses.
type segment struct {
	seq, end, ack uint32
	win           uint32 // as it stands there
	flags         uint8
	scale         uint8 // of a SYN's option
	hasScale      bool
	cut           bool // in fragments: it ends behind end
}

// parseSegment reads a TCP segment. l4 goes to the end of the datagram, and has the whole header.
func parseSegment(l4 []byte) (s segment) {
	h := hdr.TCP(l4)
	n := h.HeaderLen()
	s = segment{seq: h.Seq(), ack: h.Ack(), win: uint32(h.Window()), flags: h.Flags() & theFlags}
	s.end = s.seq + uint32(len(l4)-n)
	if s.flags&flagSYN != 0 {
		s.end++
		s.scale, s.hasScale = windowScale(l4[hdr.TCPLen:n])
	}
	if s.flags&flagFIN != 0 {
		s.end++
	}
	return s
}

// windowScale finds the Window Scale option (RFC 7323 2.2) among TCP options o.
func windowScale(o []byte) (shift uint8, ok bool) {
	for len(o) > 0 && o[0] != 0 {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return 0, false
		}
		if o[0] == 3 && o[1] == 3 {
			return min(o[2], 14), true
		}
		o = o[o[1]:]
	}
	return 0, false
}

// possible reports whether a TCP may send the segment's flags together.
func (s *segment) possible() bool {
	switch s.flags {
	case flagSYN, flagSYN | flagACK, flagRST, flagRST | flagACK, flagACK, flagFIN | flagACK:
		return true
	}
	return false
}

// ackWindow is the smallest distance, in bytes, that an acknowledgement may be behind without being dropped.
const ackWindow = 66000

// fits reports whether y can take a segment that x has sent: it begins within the room that y has offered, does
// not end before what y may still have in its window, and acknowledges neither what y has not sent nor what y has
// sent long ago. If the connection has moved, both ends may have advanced by a window meanwhile.
func fits(x, y *side, s *segment, moved bool) bool {
	room, sent := x.max, y.end
	if moved {
		room, sent = x.max+y.win, y.max+x.win
	}
	switch {
	case x.has&hasSent == 0 || y.has&hasSent == 0:
		return true // one of them has not been heard
	case after(s.seq, room) || before(s.end, x.end-y.win):
		return false
	case s.flags&flagACK == 0:
		return true
	}
	return !after(s.ack, sent) && !before(s.ack, y.end-max(x.win, ackWindow))
}

// note updates sides x and y by a segment that x has sent to y.
func note(x, y *side, s *segment, moved bool) {
	win := s.win
	if s.flags&flagSYN != 0 {
		if first := x.has&hasSent == 0; first || s.flags&flagACK != 0 || y.has&hasSent == 0 {
			x.has = x.has&^hasScale | hasSent
			x.end, x.scale = s.end, 0
			if s.hasScale {
				x.has |= hasScale
				x.scale = s.scale
			}
			x.win = max(win, 1)
			if first || y.has&hasSent == 0 || after(s.end, x.max) {
				x.max = s.end
				// With data in its SYN, y is sent data before it has acknowledged x's SYN (RFC 7413 4.2.2).
				if room := s.seq + 1 + y.win; y.has&hasSent != 0 && after(room, x.max) {
					x.max = room
				}
			}
		}
		if y.has&hasSent != 0 && (x.has&hasScale == 0 || y.has&hasScale == 0) {
			x.scale, y.scale = 0, 0 // both must offer it
		}
	} else {
		win <<= x.scale
		if x.has&hasSent == 0 {
			x.end, x.max = s.end, s.end
		}
		x.has |= hasSent
	}
	if after(s.end, x.end) {
		x.end = s.end
	}
	x.win = max(x.win, win)
	if s.flags&flagACK != 0 {
		if x.has&hasAck == 0 || after(s.ack, x.ack) {
			x.ack = s.ack
		}
		x.has |= hasAck
		if y.has&hasSent == 0 {
			y.end, y.max = s.ack, s.ack
		} else if moved && after(s.ack, y.end) {
			y.end = s.ack // it was sent where the connection was before
		}
		if room := s.ack + max(win, 1); after(room, y.max) {
			y.max = room
		}
		if y.has&hasFIN != 0 && !before(s.ack, y.end) {
			x.has |= hasFINAck
		}
	}
	if s.flags&flagFIN != 0 {
		x.has |= hasFIN
	}
}

// tcp returns what becomes of a segment that comes in at port in, and updates the connection by it.
func (c *conn) tcp(in int, s *segment, strict bool) verdict {
	x, y := &c.side[in], &c.side[1-in]
	fromOpener := in == int(c.opener)
	strict = strict && c.flags&unchecked == 0
	moved := c.flags&(movedA|movedB) != 0
	switch {
	case s.flags&flagRST != 0:
		return c.reset(fromOpener, x, y, s, strict)
	case s.flags == flagSYN:
		switch {
		case c.state == tcpSyn && fromOpener:
			if s.seq+1 != x.end && s.end != x.end { // another try, with other numbers
				*x, *y = side{}, side{}
			}
			note(x, y, s, moved)
			return verdict{true, reasonKnown}
		case c.state == tcpSyn: // both open at once (RFC 9293 3.5)
			note(x, y, s, moved)
			c.state = tcpSynAck
			return verdict{true, reasonKnown}
		case c.state == tcpReset || c.state == tcpTimeWait:
			return verdict{false, reasonNew}
		}
		// The other end answers with an acknowledgement; an opener that has started anew answers that with a RST
		// (RFC 5961 4). If the other end has lost the connection, too, it answers with a SYN (begun).
		if fromOpener {
			c.asks(s)
		}
		return verdict{true, reasonKnown}
	case s.flags == flagSYN|flagACK:
		switch {
		case c.state == tcpSyn && !fromOpener:
			if strict && (after(s.ack, y.end) || before(s.ack, y.end) && y.end-s.ack > ackWindow) {
				return verdict{false, reasonWindow}
			}
			note(x, y, s, moved)
			c.state = tcpSynAck
			return verdict{true, reasonKnown}
		case c.state == tcpSyn && strict:
			return verdict{false, reasonWindow}
		case c.state == tcpSynAck:
			if strict && !fits(x, y, s, moved) {
				if c.begun(fromOpener, x, y, s) {
					return verdict{true, reasonKnown}
				}
				if fromOpener || y.has&hasAck != 0 || s.ack != y.end {
					return verdict{false, reasonWindow}
				}
				*x = side{} // only this one knows the opener's number
			}
			note(x, y, s, moved)
			return verdict{true, reasonKnown}
		}
		if (!strict || !fits(x, y, s, moved)) && !c.begun(fromOpener, x, y, s) && strict {
			return verdict{false, reasonWindow}
		}
		return verdict{true, reasonKnown}
	}
	// ACK, FIN and ACK.
	if c.state == tcpSyn {
		if strict && (fromOpener || s.seq != s.end) {
			return verdict{false, reasonWindow}
		}
		if !strict {
			note(x, y, s, moved)
			if !fromOpener {
				c.state = tcpSynAck
			}
		}
		// The sender still has this connection from an earlier time, and says so; the opener will answer with a
		// RST.
		return verdict{true, reasonKnown}
	}
	if strict && !fits(x, y, s, moved) {
		return verdict{false, reasonWindow}
	}
	if c.state == tcpReset {
		return verdict{true, reasonKnown}
	}
	c.flags &^= again
	note(x, y, s, moved)
	if s.cut {
		c.flags |= unchecked
	}
	if c.state == tcpSynAck && fromOpener && y.has&hasSent != 0 && !before(s.ack, y.end) {
		c.state = tcpOpen
	}
	if c.state >= tcpOpen && (x.has|y.has)&hasFIN != 0 {
		c.state = tcpClosing
		if x.has&y.has&(hasFIN|hasFINAck) == hasFIN|hasFINAck {
			c.state = tcpTimeWait
		}
	}
	return verdict{true, reasonKnown}
}

// asks notes the opener's SYN s, which comes after the handshake has begun.
func (c *conn) asks(s *segment) {
	c.flags |= again
	c.syn, c.win, c.scale = s.end, uint16(s.win), noScale
	if s.hasScale {
		c.scale = s.scale
	}
}

// answers reports whether s answers the SYN that the opener has sent last, after the handshake began. The other end
// does so only if it does not know the connection any more: else it has sent an acknowledgement, which ends the flag again.
func (c *conn) answers(fromOpener bool, s *segment) bool {
	return !fromOpener && c.flags&again != 0 && s.flags&flagACK != 0 && s.ack == c.syn
}

// begun takes the numbers of a connection from the opener's last SYN and from s, a SYN of the other end x, and
// reports whether s answers that SYN: both ends have lost the connection and begin it anew. y is the opener.
func (c *conn) begun(fromOpener bool, x, y *side, s *segment) bool {
	if !c.answers(fromOpener, s) {
		return false
	}
	syn := segment{seq: c.syn - 1, end: c.syn, win: uint32(c.win), flags: flagSYN, scale: c.scale, hasScale: c.scale != noScale}
	*x, *y = side{}, side{}
	note(y, x, &syn, false)
	note(x, y, s, false)
	c.flags &^= again | movedA | movedB | unchecked
	c.state = min(c.state, tcpOpen) // a connection that was closing is open
	return true
}

// reset returns what becomes of a RST. It ends the connection only if the receiver will certainly accept the RST;
// to other RSTs the receiver answers with a challenge ACK (RFC 5961 3).
func (c *conn) reset(fromOpener bool, x, y *side, s *segment, strict bool) verdict {
	switch {
	case c.state == tcpSyn && fromOpener:
		if !strict || s.seq == x.end {
			c.state = tcpReset
		}
		return verdict{true, reasonKnown}
	case c.state == tcpSyn: // refused
		if strict && (s.flags&flagACK == 0 || s.ack != y.end) {
			return verdict{false, reasonWindow}
		}
		c.state = tcpReset
		return verdict{true, reasonKnown}
	}
	if c.answers(fromOpener, s) { // refused
		c.state = tcpReset
		return verdict{true, reasonKnown}
	}
	// The acknowledgement of a RST is not checked: it may be missing, or of any age.
	if strict && x.has&hasSent != 0 && y.has&hasSent != 0 && (after(s.seq, x.max) || before(s.seq, x.end-y.win-1)) {
		return verdict{false, reasonWindow}
	}
	if !strict || x.has&hasSent == 0 || !after(s.seq, x.end) && (y.has&hasAck == 0 || !before(s.seq, y.ack)) {
		c.state = tcpReset
	}
	return verdict{true, reasonKnown}
}

// sent reports whether a segment with number seq, which an ICMP error quotes, may have come from port from: a segment of the
// connection, or the opener's last SYN.
func (c *conn) sent(from int, seq uint32) bool {
	x, y := &c.side[from], &c.side[1-from]
	return x.has&hasSent == 0 || !after(seq, x.end) && !before(seq, x.end-max(y.win, ackWindow)) || from == int(c.opener) && c.flags&again != 0 && seq == c.syn-1
}
