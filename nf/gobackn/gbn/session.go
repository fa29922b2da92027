package gbn

import (
	"cmp"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

// Config has the parameters of the protocol. A zero means the default, which is the number in the field's comment.
type Config struct {
	Window   int           // frames on their way, a session and direction; 128, a power of two
	Backlog  int           // frames that wait for the window; 128
	AckEvery int           // frames; 100
	AckDelay time.Duration // 100 us
	Timeout  time.Duration // 4 ms
	Tries    int           // timeouts in a row until a session is given up; 64
	Sessions int           // of a Server, at most 1023; 1023
	PerPeer  int           // of these, of a peer's address; a half, rounded up
	Idle     time.Duration // after which a session may make room for another; 5 min
	MTU      int           // of IP datagrams towards the network; 1500
	Hold     int           // frames that a Server keeps, of all sessions; 4096
	// Devices are the IPv4 addresses of the devices that a Server serves; if there are none, it serves all.
	Devices [][4]byte
	// Workers is the number of workers that use a Server in turns; 1.
	Workers int
}

func (c Config) withDefaults() (Config, error) {
	for _, d := range []struct {
		v   *int
		def int
	}{{&c.Window, 128}, {&c.Backlog, 128}, {&c.AckEvery, 100}, {&c.Tries, 64}, {&c.Sessions, clio.Sessions - 1}, {&c.MTU, 1500}, {&c.Hold, 4096}, {&c.Workers, 1}} {
		*d.v = cmp.Or(*d.v, d.def)
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.AckDelay, 100 * time.Microsecond}, {&c.Timeout, 4 * time.Millisecond}, {&c.Idle, 5 * time.Minute}} {
		*d.v = cmp.Or(*d.v, d.def)
	}
	c.PerPeer = cmp.Or(c.PerPeer, (c.Sessions+1)/2)
	switch {
	case c.Window < 1 || c.Window > 1<<14 || c.Window&(c.Window-1) != 0:
		return c, fmt.Errorf("gbn: a window of %d frames: want a power of two up to %d", c.Window, 1<<14)
	case c.Backlog < 1 || c.Backlog > 1<<14:
		return c, fmt.Errorf("gbn: a backlog of %d frames: want 1 to %d", c.Backlog, 1<<14)
	case c.AckEvery < 1 || c.AckEvery > c.Window:
		return c, fmt.Errorf("gbn: an ACK every %d frames: want 1 to the window, %d", c.AckEvery, c.Window)
	case c.AckDelay < 0 || c.AckDelay >= c.Timeout:
		return c, fmt.Errorf("gbn: an ACK delay of %v: want less than the timeout, %v", c.AckDelay, c.Timeout)
	case c.Tries < 1 || c.Sessions < 1 || c.Sessions >= clio.Sessions || c.Hold < 1 || c.Idle <= 0 || c.PerPeer < 1:
		return c, fmt.Errorf("gbn: want tries, an idle time, frames to hold, and 1 to %d sessions", clio.Sessions-1)
	case c.MTU < 128 || c.MTU > 9216:
		return c, fmt.Errorf("gbn: an MTU of %d: want 128 to 9216", c.MTU)
	}
	return c, nil
}

// Out is where a session's frames go. It belongs to the worker that calls ToNet, FromNet or Tick. A frame must be
// given back by the worker that it came from.
type Out interface {
	// Get returns an empty frame, or nil if none is free. Discard gives back a frame from Get that was not sent.
	Get() *packet.Buf
	Discard(*packet.Buf)
	// Send sends a frame to the network.
	Send(*packet.Buf)
	// Drop gives back a frame that came by ToNet and is not sent.
	Drop(*packet.Buf, Verdict)
	// Worker returns the worker's number, from 0.
	Worker() int
	// Return has another worker give back a frame of its own: with made, a frame from Get, by Discard; otherwise
	// by Drop.
	Return(b *packet.Buf, worker int, made bool, v Verdict)
	// Sent reports whether all frames that a worker was told to deliver at that time have left the worker.
	Sent(worker int, at clock.Time) bool
}

// One implements the methods of an Out about workers, for users with one worker.
type One struct{}

func (One) Worker() int { return 0 }
func (One) Return(*packet.Buf, int, bool, Verdict) {
	panic("gbn: a frame of another worker, where there is one")
}
func (One) Sent(worker int, at clock.Time) bool { return true }

// tally counts the frames that are kept, in all and by worker.
type tally struct {
	n  int
	by []int
}

func (t *tally) add(worker, n int) {
	t.n += n
	t.by[worker] += n
}

// Verdict says what became of a frame, and what the caller must do with it (Passes, Replies, Drops).
type Verdict uint8

const (
	// Passed: not for this transport; the caller forwards it untouched.
	PassedOther Verdict = iota
	PassedFragment
	PassedMalformed
	// Delivered: the caller forwards it, without its go-back-N header; Unreliable:
	// of session 0.
	Delivered
	Unreliable
	// Sent: it went to the network, or waits for that; the transport has it.
	Sent
	// Opened, Closed, Refused, Crowded, Behind, Ahead: it was turned into its answer, which
	// the caller sends to where it came from.
	Opened
	Closed
	Refused
	Crowded
	Behind
	Ahead
	// Taken: an ACK or a NACK that was heeded; the caller drops it and the
	// following, which are of no more use.
	TakenACK
	TakenNACK
	Stale     // an ACK or a NACK of what is not on its way
	AheadMore // ahead, and there was a NACK already
	NoSession
	Damaged // a checksum is wrong
	Malformed
	TooBig
	Full   // too many frames wait, or are held
	GaveUp // its session was given up, or closed
	// Elsewhere: the frame came to another worker than the one before it in its session, which may not have sent
	// that yet, so that the order would be lost. Moved: the frame waited, and a copy of it in another worker's
	// buffer was sent.
	Elsewhere
	Moved
	NumVerdicts
)

// Passes, Replies and Drops report whether the caller forwards the frame untouched, sends it back as the answer,
// or drops it. If all are false, the transport has the frame (Sent), or the caller forwards it to the other side
// (Delivered, Unreliable).
func (v Verdict) Passes() bool  { return v <= PassedMalformed }
func (v Verdict) Replies() bool { return v >= Opened && v <= Ahead }
func (v Verdict) Drops() bool   { return v >= TakenACK }

// Stats are totals since the beginning.
type Stats struct {
	Retransmitted, Timeouts, NACKs, ACKs uint64
	GivenUp                              uint64 // sessions
}

// maxHeaders is the largest length in bytes of the headers in front of a go-back-N header: Ethernet, two VLAN
// tags, IP with options, UDP.
const maxHeaders = 14 + 8 + 60 + 8

// kept is a frame, and the worker whose buffer it is in.
type kept struct {
	b      *packet.Buf
	worker int
}

// waiting is a frame that waits for the window.
type waiting struct {
	kept
	summed bool
}

// Session is one end of a session. Its methods are called by one goroutine at a time.
type Session struct {
	cfg   *Config
	stats *Stats
	held  *tally // frames that are kept, of all sessions that share it
	open  bool

	local, peer uint16 // numbers of the session at both ends
	// The headers of a frame to the peer, of which ACKs are made.
	headers  [maxHeaders]byte
	headLen  int
	layout   clio.Frame
	summed   bool
	opened   clock.Time
	lastUsed clock.Time // opened: it has carried nothing

	// Sender: una is the oldest number that is not acknowledged, and next is the number of the next new frame.
	una, next uint32
	air       []kept // copies of una..next-1
	wait      []waiting
	head, n   int // of wait
	due       clock.Time
	tries     int
	asked     bool // a NACK of una-1 was heeded

	// Receiver.
	expect  uint32
	unacked int // delivered since the last ACK
	ackDue  clock.Time
	nacked  bool
}

func (s *Session) init(c *Config, st *Stats, held *tally) {
	s.cfg, s.stats, s.held = c, st, held
	s.air, s.wait = make([]kept, c.Window), make([]waiting, c.Backlog)
	s.due, s.ackDue = clock.Never, clock.Never
}

// NewSession returns a session without a Server, which is closed.
func NewSession(c Config) (*Session, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Session{}
	s.init(&c, &Stats{}, &tally{by: make([]int, c.Workers)})
	return s, nil
}

// Stats returns the totals of the session or, in a Server, of all its sessions.
func (s *Session) Stats() Stats { return *s.stats }

// Open begins the session with its numbers at both ends. like is a frame to the peer, with a go-back-N header at
// f.GBN; its headers are copied for ACKs.
func (s *Session) Open(now clock.Time, local, peer uint16, like []byte, f *clio.Frame) {
	s.open, s.local, s.peer = true, local, peer
	s.headLen = copy(s.headers[:], like[:f.GBN])
	s.layout, s.summed = *f, f.Summed(like)
	s.una, s.next, s.expect = clio.FirstSeq, clio.FirstSeq, clio.FirstSeq
	s.due, s.ackDue, s.opened, s.lastUsed = clock.Never, clock.Never, now, now
	s.tries, s.asked, s.unacked, s.nacked = 0, false, 0, false
}

// IsOpen reports whether the session was opened, and not closed or given up.
func (s *Session) IsOpen() bool { return s.open }

// Is reports whether these are the numbers of the session at both ends.
func (s *Session) Is(local, peer uint16) bool { return s.local == local && s.peer == peer }

// Close ends the session and gives back all frames that it keeps.
func (s *Session) Close(out Out) {
	s.open = false
	for ; s.una != s.next; s.una++ {
		s.release(out)
	}
	for ; s.n > 0; s.n-- {
		x := s.wait[s.head].kept
		s.wait[s.head] = waiting{}
		s.head = (s.head + 1) % len(s.wait)
		s.held.add(x.worker, -1)
		if x.worker == out.Worker() {
			out.Drop(x.b, GaveUp)
		} else {
			out.Return(x.b, x.worker, false, GaveUp)
		}
	}
	s.due, s.ackDue = clock.Never, clock.Never
}

// release gives back the copy of the oldest frame on its way.
func (s *Session) release(out Out) {
	i := int(s.una) & (len(s.air) - 1)
	x := s.air[i]
	s.air[i] = kept{}
	s.held.add(x.worker, -1)
	if x.worker == out.Worker() {
		out.Discard(x.b)
	} else {
		out.Return(x.b, x.worker, true, Moved)
	}
}

// Send takes a frame with room for a go-back-N header, whose lengths are right and whose layout is f. summed says
// whether the frame gets a UDP checksum. Send returns Sent, or Full: then the caller keeps the frame.
func (s *Session) Send(now clock.Time, b *packet.Buf, f *clio.Frame, summed bool, out Out) Verdict {
	s.lastUsed = now
	p := b.Bytes()
	// A place for it, and one for a copy of it.
	if s.n == 0 && s.next-s.una < uint32(len(s.air)) && s.held.n < s.cfg.Hold {
		if s.launch(now, b, f, summed, out) {
			return Sent
		}
	}
	if s.n == len(s.wait) || s.held.n >= s.cfg.Hold {
		return Full
	}
	clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, s.local, s.peer)
	s.wait[(s.head+s.n)%len(s.wait)] = waiting{kept{b, out.Worker()}, summed}
	s.n++
	s.held.add(out.Worker(), 1)
	if s.due == clock.Never {
		s.due = now.Add(s.cfg.AckDelay) // a buffer was missing: look again
	}
	return Sent
}

// launch numbers a frame and sends it, or returns false if there is no buffer for the copy that must be kept.
func (s *Session) launch(now clock.Time, b *packet.Buf, f *clio.Frame, summed bool, out Out) bool {
	c := out.Get()
	if c == nil {
		return false
	}
	p := b.Bytes()
	clio.GBN(p[f.GBN:]).Encode(clio.DATA, s.next, s.local, s.peer)
	f.Seal(p, f.Stop, summed)
	if !c.SetBytes(p) {
		out.Discard(c)
		return false
	}
	s.air[int(s.next)&(len(s.air)-1)] = kept{c, out.Worker()}
	s.held.add(out.Worker(), 1)
	if s.una == s.next {
		s.due, s.tries = now.Add(s.cfg.Timeout), 0
	}
	s.next++
	out.Send(b)
	return true
}

// pump launches frames that wait, as far as the window allows.
func (s *Session) pump(now clock.Time, out Out) {
	for s.n > 0 && s.next-s.una < uint32(len(s.air)) {
		w := s.wait[s.head]
		var f clio.Frame
		if k := clio.Parse(w.b.Bytes(), true, &f); k != clio.Message && k != clio.Other {
			panic("gbn: a frame changed while it waited")
		}
		b := w.b
		if w.worker != out.Worker() {
			if b = out.Get(); b == nil {
				return
			}
			if !b.SetBytes(w.b.Bytes()) {
				out.Discard(b)
				return
			}
		}
		if !s.launch(now, b, &f, w.summed, out) {
			if b != w.b {
				out.Discard(b)
			}
			return
		}
		s.wait[s.head] = waiting{}
		s.head = (s.head + 1) % len(s.wait)
		s.n--
		s.held.add(w.worker, -1)
		if b != w.b {
			out.Return(w.b, w.worker, false, Moved)
		}
	}
}

// Ack handles an ACK or a NACK of all frames up to seq. It returns TakenACK, TakenNACK or Stale.
func (s *Session) Ack(now clock.Time, seq uint32, nack bool, out Out) Verdict {
	n := seq + 1 - s.una
	if n > s.next-s.una || n == 0 && nack && s.asked {
		return Stale // of a gap there is one NACK: another is a double of it
	}
	s.lastUsed = now
	for range n {
		s.release(out)
		s.una++
	}
	if n > 0 {
		s.tries, s.asked = 0, false
		s.due = now.Add(s.cfg.Timeout)
	}
	v := TakenACK
	if nack {
		v, s.asked = TakenNACK, true
		s.again(now, out)
	}
	s.pump(now, out)
	if s.una == s.next && s.n == 0 {
		s.due = clock.Never
	}
	return v
}

// again sends all unacknowledged frames again.
func (s *Session) again(now clock.Time, out Out) {
	for q := s.una; q != s.next; q++ {
		c := out.Get()
		if c == nil {
			break
		}
		if !c.SetBytes(s.air[int(q)&(len(s.air)-1)].b.Bytes()) {
			out.Discard(c)
			break
		}
		s.stats.Retransmitted++
		out.Send(c)
	}
	s.due = now.Add(s.cfg.Timeout)
}

// Data returns what becomes of a received frame with number seq: Delivered, AheadMore, Ahead or Behind. The
// caller answers Ahead with a NACK, and Behind with an ACK, of number Last.
func (s *Session) Data(now clock.Time, seq uint32, out Out) Verdict {
	s.lastUsed = now
	switch d := int32(seq - s.expect); {
	case d > 0 && s.nacked:
		return AheadMore
	case d > 0:
		s.nacked = true
		s.stats.NACKs++
		return Ahead
	case d < 0:
		s.unacked, s.ackDue = 0, clock.Never
		s.stats.ACKs++
		return Behind
	}
	s.expect++
	s.nacked = false
	if s.unacked++; s.unacked >= s.cfg.AckEvery {
		s.acknowledge(now, out)
	} else if s.ackDue == clock.Never {
		s.ackDue = now.Add(s.cfg.AckDelay)
	}
	return Delivered
}

// Last returns the number of the last frame that came in order.
func (s *Session) Last() uint32 { return s.expect - 1 }

// acknowledge sends an ACK, or tries again later if there is no buffer for it.
func (s *Session) acknowledge(now clock.Time, out Out) {
	b := out.Get()
	if b == nil {
		s.ackDue = now.Add(s.cfg.AckDelay)
		return
	}
	n := s.headLen + clio.GBNLen
	p, ok := b.Append(n)
	if !ok {
		out.Discard(b)
		s.ackDue = clock.Never
		return
	}
	copy(p, s.headers[:s.headLen])
	f := s.layout
	clio.GBN(p[f.GBN:]).Encode(clio.ACK, s.Last(), s.local, s.peer)
	f.Seal(p, n, s.summed)
	s.unacked, s.ackDue = 0, clock.Never
	s.stats.ACKs++
	out.Send(b)
}

// Tick sends acknowledgements and repetitions that are due. It may give the session up.
func (s *Session) Tick(now clock.Time, out Out) {
	if !s.open {
		return
	}
	if s.ackDue <= now {
		s.acknowledge(now, out)
	}
	if s.due > now {
		return
	}
	if s.una == s.next {
		s.due = clock.Never
		s.pump(now, out)
		if s.n > 0 && s.due == clock.Never {
			s.due = now.Add(s.cfg.AckDelay)
		}
		return
	}
	s.stats.Timeouts++
	if s.tries++; s.tries > s.cfg.Tries {
		s.stats.GivenUp++
		s.Close(out)
		return
	}
	s.again(now, out)
}

// Deadline returns the time when Tick must be called.
func (s *Session) Deadline() clock.Time { return min(s.due, s.ackDue) }

// Held returns how many frames the session keeps.
func (s *Session) Held() int { return int(s.next-s.una) + s.n }
