package hop

import (
	"cmp"
	"fmt"
	"math/bits"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Defaults and bounds.
const (
	Buffer   = 64 << 10 // size in bytes of the buffer for retransmission
	maxRoom  = 1 << 24
	longest  = 9600
	quantum  = 512 // bits
	quanta   = 0xFFFF
	maxTries = 3
	// obey is the time that a sender may take to obey a pause, in quanta: 100 Gbit/s Ethernet
	// allows 394 (IEEE 802.3 annex 31B.3.7), slower Ethernet less.
	obey = 394
)

// Config describes an end of a link.
type Config struct {
	// Epoch must not be 0, and must be greater than at all earlier starts of this end.
	Epoch uint64
	MAC   [6]byte // source of frames of this layer
	Rate  uint64  // bits a second, of both directions; 0: 100 Gbit/s
	Delay clock.Duration
	// Frame is the longest frame carried, without FCS; 0: 1518.
	Frame int
	// Buffer is the room in bytes for frames that are not acknowledged; 0: 64 KB.
	Buffer int
	// Queue is the room for frames that were received and not consumed; 0: two
	// frames and twice the Headroom.
	Queue int
	Class int // of PFC, 0 to 7
	// Timeout is the longest time that an acknowledgement may take; 0: twice the time that a full buffer and
	// the Headroom take on the cable, there and back.
	Timeout clock.Duration
}

// Headroom returns how many bytes may still arrive after an end decides to ask for a pause. rate is in
// bits a second, delay is that of the link in one direction, frame is the longest frame in bytes.
func Headroom(rate uint64, delay clock.Duration, frame int) int {
	// On the cable, there and back; the frames that are being sent here and at the other end; the pause; the
	// time to obey.
	const between = 24 // preamble, FCS and gap
	cable := bitsIn(rate, 2*delay) / 8
	return int(cable) + 2*(frame+Overhead+between) + MinFrame + between + obey*quantum/8
}

// bitsIn returns how many bits a link sends in a time, rounded up.
func bitsIn(rate uint64, d clock.Duration) uint64 {
	hi, lo := bits.Mul64(rate, uint64(d))
	if hi >= uint64(time.Second) {
		return 1 << 62
	}
	q, r := bits.Div64(hi, lo, uint64(time.Second))
	if r != 0 {
		q++
	}
	return q
}

// timeOf returns how long a link needs for n bits, rounded up to ns.
func timeOf(n, rate uint64) clock.Duration {
	hi, lo := bits.Mul64(n, uint64(time.Second))
	if hi >= rate {
		return 1 << 62
	}
	q, r := bits.Div64(hi, lo, rate)
	if r != 0 {
		q++
	}
	return clock.Duration(q)
}

// Stats holds the counters of an end. All but Unacked and Queued only grow.
type Stats struct {
	Sent, Resent, Delivered     uint64 // DATA
	Acks, Naks, Hellos          uint64 // acknowledgements, NAKs and HELLOs sent
	Pauses, Paused              uint64 // pauses asked for and received, without frames that end one
	Damaged, Duplicates, Gaps   uint64 // received, and not taken
	Overrun                     uint64 // received without room
	Foreign                     uint64 // with an epoch that does not count
	Timeouts, Restarts, Refused uint64 // Restarts: of the peer; Refused: Send had no room
	Unacked, Queued             int    // bytes
}

type entry struct {
	at, n int32 // in the memory
	skip  int32 // bytes at the end of the memory that were left unused before this entry
}

// Link is one end of the link.
type Link struct {
	Config
	xoff, xon int
	stats     Stats

	peer      uint64 // epoch; 0: not known
	synced    bool   // expected was set by a HELLO of the peer
	confirmed bool   // the peer is synced

	mem             []byte
	entries         []entry // by number modulo length, a power of two
	base, next, end uint32  // numbers: oldest not acknowledged; next to send; of the next Send
	fresh           uint32  // number of the first frame that was never sent
	used            int     // bytes of mem in use, and those left unused at its end
	write           int

	expected uint32
	naked    bool // a NAK of expected was sent

	pausedUntil clock.Time // end of the pause of our DATA
	pausing     bool       // the peer was asked to pause
	pauseNow    bool       // a pause, or the end of one, is to be sent
	pauseAgain  clock.Time

	ackNow, nakNow, helloNow bool
	helloAgain               clock.Time
	timer                    clock.Time // when frame base counts as lost
	tries                    int
}

// New makes an end, which sends a HELLO first. It returns an error for a bad Config.
func New(c Config) (*Link, error) {
	c.Rate = cmp.Or(c.Rate, 100e9)
	c.Frame = cmp.Or(c.Frame, 1518)
	c.Buffer = cmp.Or(c.Buffer, Buffer)
	switch {
	case c.Epoch == 0:
		return nil, fmt.Errorf("hop: epoch 0: want the time of the start, or a number that grows with each")
	case c.Rate < 1e6 || c.Rate > 1e13:
		return nil, fmt.Errorf("hop: rate of %d bits a second: want 1 Mbit/s to 10 Tbit/s", c.Rate)
	case c.Delay < 0 || c.Delay > time.Second:
		return nil, fmt.Errorf("hop: delay %v: want 0 to 1s", c.Delay)
	case c.Frame < MinFrame || c.Frame > longest:
		return nil, fmt.Errorf("hop: frames of %d bytes: want %d to %d", c.Frame, MinFrame, longest)
	case c.Buffer < 2*c.Frame || c.Buffer > Buffer:
		return nil, fmt.Errorf("hop: buffer of %d bytes: want two frames (%d) to %d", c.Buffer, 2*c.Frame, Buffer)
	case c.Class < 0 || c.Class > 7:
		return nil, fmt.Errorf("hop: class %d: want 0 to 7", c.Class)
	case c.Timeout < 0 || c.Timeout > time.Minute:
		return nil, fmt.Errorf("hop: timeout %v: want up to 1m", c.Timeout)
	}
	room := Headroom(c.Rate, c.Delay, c.Frame)
	c.Queue = cmp.Or(c.Queue, 2*c.Frame+2*room)
	if c.Queue < 2*c.Frame+room || c.Queue > maxRoom {
		return nil, fmt.Errorf("hop: queue of %d bytes: want %d (the headroom and two frames) to %d", c.Queue, 2*c.Frame+room, maxRoom)
	}
	c.Timeout = cmp.Or(c.Timeout, 2*(2*c.Delay+timeOf(uint64(16*(c.Buffer+room)), c.Rate)))
	l := &Link{Config: c, xoff: c.Queue - room, helloNow: true, helloAgain: clock.Never, timer: clock.Never, pauseAgain: clock.Never}
	l.xon = l.xoff / 2
	l.mem = make([]byte, c.Buffer)
	l.entries = make([]entry, 1<<bits.Len(uint(c.Buffer/MinFrame)))
	return l, nil
}

// Up reports whether both ends know of each other.
func (l *Link) Up() bool { return l.synced && l.confirmed }

// Stats returns the present counters.
func (l *Link) Stats() Stats {
	s := l.stats
	s.Unacked = l.used
	return s
}

// Fits reports whether a frame of so many bytes can ever be sent.
func (l *Link) Fits(n int) bool { return n >= addresses+2 && n <= l.Frame }

// Send copies a frame, which Poll will send. It returns false, and takes nothing, if the buffer has no
// room or if Fits is false for the frame.
func (l *Link) Send(frame []byte) bool {
	n := len(frame)
	if !l.Fits(n) {
		return false
	}
	at, skip := l.write, 0
	if at+n > len(l.mem) {
		at, skip = 0, len(l.mem)-at
	}
	if l.used+skip+n > len(l.mem) || l.end-l.base == uint32(len(l.entries)) {
		l.stats.Refused++
		return false
	}
	copy(l.mem[at:], frame)
	*l.entry(l.end) = entry{int32(at), int32(n), int32(skip)}
	l.end++
	l.write = at + n
	l.used += skip + n
	return true
}

func (l *Link) entry(seq uint32) *entry { return &l.entries[seq&uint32(len(l.entries)-1)] }

// before reports whether number a comes before b; numbers wrap around.
func before(a, b uint32) bool { return int32(a-b) < 0 }

// Event says what became of a frame that Input took.
type Event uint8

const (
	Took      Event = iota // a frame of this layer
	Deliver                // a frame was unwrapped
	Damaged                // CRC wrong
	Duplicate              // was delivered before
	Gap                    // one before it is missing
	Overrun                // no room
	Foreign                // of an epoch that does not count
	Pause                  // flow control
	Other                  // no frame of the last hop
)

func (e Event) String() string {
	return [...]string{"took", "deliver", "damaged", "duplicate", "gap", "overrun", "foreign", "pause", "other"}[e]
}

// Input takes a frame from the cable. If the event is Deliver, it returns the frame that was sent at
// the other end, as a part of p, which it changes.
func (l *Link) Input(now clock.Time, p []byte) ([]byte, Event) {
	if len(p) < addresses+2 {
		return nil, Other
	}
	switch be.Uint16(p[12:]) {
	case EtherType:
	case Control:
		if q, ok := DecodePause(p, l.Class); ok {
			l.pausedUntil = now.Add(timeOf(uint64(q)*quantum, l.Rate))
			if q > 0 {
				l.stats.Paused++
			} else if l.timer != clock.Never {
				l.timer = now.Add(l.Timeout) // the time of a pause does not count as a missing acknowledgement
			}
		}
		return nil, Pause
	default:
		return nil, Other
	}
	h, ok := decode(p)
	if !ok {
		l.stats.Damaged++
		l.miss()
		return nil, Damaged
	}
	if !l.known(now, h) {
		l.stats.Foreign++
		return nil, Foreign
	}
	if h.kind == hello {
		return nil, Took
	}
	l.confirmed = true
	l.helloAgain = clock.Never
	l.acked(now, h.ack)
	switch {
	case h.kind == nak:
		if h.ack == l.base {
			l.rewind()
		}
		return nil, Took
	case h.kind == ack:
		return nil, Took
	case !l.synced || h.seq != l.expected:
		if l.synced && before(h.seq, l.expected) {
			l.ackNow = true
			l.stats.Duplicates++
			return nil, Duplicate
		}
		l.miss()
		l.stats.Gaps++
		return nil, Gap
	}
	n := addresses + h.length
	if l.stats.Queued+n > l.Queue {
		l.stats.Overrun++
		l.pauseNow = true
		return nil, Overrun
	}
	l.expected++
	l.naked, l.nakNow, l.ackNow = false, false, true
	l.stats.Delivered++
	l.stats.Queued += n
	if !l.pausing && l.stats.Queued > l.xoff {
		l.pausing, l.pauseNow = true, true
	}
	at := headerLen - addresses
	copy(p[at:], p[:addresses])
	return p[at : at+n], Deliver
}

// known compares the epochs of a frame with those of the link, and updates them. It reports whether the
// frame counts.
func (l *Link) known(now clock.Time, h header) bool {
	if h.epoch > l.peer {
		if h.kind != hello {
			l.helloNow = true
			return false
		}
		// The peer has started again. Frames that it had not acknowledged are sent again.
		if l.peer != 0 {
			l.stats.Restarts++
		}
		l.peer = h.epoch
		l.pausedUntil = 0
		l.begin()
		l.helloNow = true
	}
	switch {
	case h.epoch < l.peer || h.peer != l.Epoch:
		if h.kind == hello {
			// The peer knows a greater epoch of ours: our clock went back. The next number may be one that it knows of a later start, if the HELLO
			// was long on its way. It would take this end for that start, and so the time is added, which is not the same at two starts.
			if above := h.peer + 1 + uint64(now)&0xFFFFFFFF; h.peer > l.Epoch && h.epoch == l.peer && above > h.peer {
				l.Epoch = above
				l.begin()
			}
			l.helloNow = true
		}
		return h.kind == hello && h.epoch == l.peer
	case h.kind == hello:
		if !l.synced {
			l.synced, l.expected = true, h.seq
		}
		l.ackNow = true // the peer may not know that this end is synced
	}
	return true
}

// begin forgets what both ends agreed on. Frames that were not acknowledged will be sent again.
func (l *Link) begin() {
	l.synced, l.confirmed = false, false
	l.ackNow, l.nakNow, l.naked = false, false, false
	l.tries = 0
	l.rewind()
}

// miss asks for the expected frame by a NAK, once.
func (l *Link) miss() {
	if l.synced && !l.naked {
		l.naked, l.nakNow = true, true
	}
}

// acked frees the frames before number to, which the peer has received.
func (l *Link) acked(now clock.Time, to uint32) {
	if !before(l.base, to) || before(l.fresh, to) {
		return
	}
	for ; l.base != to; l.base++ {
		e := l.entry(l.base)
		l.used -= int(e.n + e.skip)
	}
	if before(l.next, l.base) {
		l.next = l.base
	}
	if l.base == l.end {
		l.write = 0
	}
	l.tries = 0
	l.timer = clock.Never
	if l.base != l.next {
		l.timer = now.Add(l.Timeout)
	}
}

// rewind goes back to the oldest frame that is not acknowledged.
func (l *Link) rewind() {
	l.next = l.base
	l.timer = clock.Never
}

// Consumed reports that the caller has consumed n of the bytes that were delivered.
func (l *Link) Consumed(n int) {
	l.stats.Queued = max(0, l.stats.Queued-n)
	if l.pausing && l.stats.Queued <= l.xon {
		l.pausing, l.pauseNow = false, true
	}
}

// What says which sort of frame Poll makes next.
type What uint8

const (
	Nothing What = iota
	Own          // of this layer
	Again        // a frame that was sent before
	First        // a frame that was never sent
)

// Pending returns which sort of frame Poll would make.
func (l *Link) Pending(now clock.Time) What {
	l.expire(now)
	switch {
	case l.pauseNow, l.helloNow:
		return Own
	case l.Up() && l.next != l.end && now >= l.pausedUntil:
		if l.nakNow {
			return Own
		}
		if l.next == l.fresh {
			return First
		}
		return Again
	case l.synced && (l.ackNow || l.nakNow):
		return Own
	}
	return Nothing
}

// expire handles timers that have run out: of acknowledgements, HELLO and pauses.
func (l *Link) expire(now clock.Time) {
	if now >= l.timer && now >= l.pausedUntil {
		if now < l.pausedUntil.Add(l.Timeout) {
			l.timer = l.pausedUntil.Add(l.Timeout)
		} else {
			l.stats.Timeouts++
			l.tries = min(l.tries+1, maxTries)
			l.rewind()
		}
	}
	if now >= l.helloAgain {
		l.helloNow, l.helloAgain = true, clock.Never
	}
	if l.pausing && now >= l.pauseAgain {
		l.pauseNow, l.pauseAgain = true, clock.Never
	}
}

// Next returns the time when Poll will have a frame if no other method is called before: 0 for at once,
// or clock.Never.
func (l *Link) Next(now clock.Time) clock.Time {
	if l.Pending(now) != Nothing {
		return 0
	}
	at := l.helloAgain
	if l.pausing {
		at = min(at, l.pauseAgain)
	}
	if l.timer != clock.Never {
		at = min(at, max(l.timer, l.pausedUntil))
	}
	if l.Up() && l.next != l.end {
		at = min(at, l.pausedUntil)
	}
	return at
}

// Poll writes the next frame to send to p, and returns its length, or 0 if there is none at present. p
// must have room for Frame + Overhead bytes.
func (l *Link) Poll(now clock.Time, p []byte) int {
	what := l.Pending(now)
	h := header{epoch: l.Epoch, peer: l.peer, seq: l.next, ack: l.expected}
	switch {
	case what == Nothing:
		return 0
	case what == Own && l.pauseNow:
		l.pauseNow = false
		q := uint16(0)
		if l.pausing || l.stats.Queued > l.xoff {
			q = quanta
			l.pausing = true
			l.stats.Pauses++
			l.pauseAgain = now.Add(timeOf(quanta/2*quantum, l.Rate))
		}
		EncodePause(p, l.MAC, l.Class, q)
		return MinFrame
	case what == Own:
		switch {
		case l.helloNow:
			h.kind, h.seq = hello, l.base
			l.helloNow = false
			if !l.confirmed {
				l.helloAgain = now.Add(l.Timeout)
			}
			l.stats.Hellos++
		case l.nakNow:
			h.kind = nak
			l.nakNow, l.ackNow = false, false
			l.stats.Naks++
		default:
			h.kind = ack
			l.ackNow = false
			l.stats.Acks++
		}
		clear(p[:MinFrame])
		copy(p, []byte{1, 0x80, 0xC2, 0, 0, 0xE})
		copy(p[6:], l.MAC[:])
		encode(p, h)
		return MinFrame
	}
	e := l.entry(l.next)
	frame := l.mem[e.at : e.at+e.n]
	copy(p, frame[:addresses])
	copy(p[headerLen:], frame[addresses:])
	h.length = len(frame) - addresses
	l.ackNow = false
	encode(p, h)
	if what == First {
		l.fresh++
		l.stats.Sent++
	} else {
		l.stats.Resent++
	}
	l.next++
	if l.timer == clock.Never {
		l.timer = now.Add(l.Timeout << l.tries)
	}
	n := headerLen + h.length
	if n < MinFrame {
		clear(p[n:MinFrame])
		n = MinFrame
	}
	return n
}
