package sim

import (
	"errors"
	"math"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// DCTCP is how endpoints of a load send that react to marks (RFC 8257, RFC 3168): each flow has a window of packets, and makes it smaller by
// the part of them that came with a mark. The load's pieces are their packets then; there is no lossless port.
type DCTCP struct {
	Flows int
	RTT   time.Duration // from a board to the receiver, and from there by the sender to the board
}

// Constants of DCTCP.
const (
	dctcpGain  = 1. / 16 // g, RFC 8257, section 4.1
	dctcpFirst = 10      // packets of the first window, RFC 6928
	dctcpLeast = 2       // packets of the least window after a reduction, RFC 5681
)

// sender is a flow's sender.
type sender struct {
	window   float64 // packets
	slow     bool    // in slow start
	alpha    float64 // estimated part of packets that are marked
	out      int     // packets under way
	answered int     // packets, since the beginning
	until    int     // so many are when this window of packets ends
	marked   int     // of its window
	of       int
	cut      bool // for a loss in this window
}

// check says what is wrong with it.
func (d *DCTCP) check() error {
	if d.Flows < 1 || d.Flows > loadFlows || d.RTT <= 0 {
		return errors.New("senders that react to marks have 1 to 64 flows, and an RTT")
	}
	return nil
}

// senders are as many as it has flows. Their first estimate is 1 (RFC 8257, section 4.2).
func (d *DCTCP) senders() []sender {
	s := make([]sender, d.Flows)
	for i := range s {
		s[i] = sender{window: dctcpFirst, slow: true, alpha: 1, until: dctcpFirst}
	}
	return s
}

// may reports whether a packet may go.
func (s *sender) may() bool { return s.out < int(s.window) }

// send is a packet that goes.
func (s *sender) send() { s.out++ }

// answer is what becomes of the packet that was sent first of those under way: it arrived, with a mark or without, or was dropped.
func (s *sender) answer(marked, lost bool) {
	s.out--
	s.answered++
	s.of++
	switch {
	case lost:
		if !s.cut {
			s.cut = true
			s.reduce(1. / 2)
		}
	case marked:
		s.marked++
		s.slow = false
	case s.slow:
		s.window++
	default:
		s.window += 1 / s.window
	}
	if s.answered < s.until {
		return
	}
	s.alpha += dctcpGain * (float64(s.marked)/float64(s.of) - s.alpha)
	if s.marked > 0 && !s.cut {
		s.reduce(s.alpha / 2)
	}
	s.until, s.marked, s.of, s.cut = s.answered+max(s.out, int(s.window)), 0, 0, false
}

// reduce makes the window smaller by a part of it.
func (s *sender) reduce(by float64) {
	s.slow = false
	s.window = math.Max(dctcpLeast, s.window*(1-by))
}

// isMarked reports whether a packet came with a mark.
func isMarked(x *packet.Buf) bool { return hdr.IPv4(x.Bytes()[14:]).TOS()&3 == hdr.CE }
