package gossip

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// An eavesdropper can record encrypted messages and send them again. So each message begins, within the
// authenticated part, with its sender, its receiver, and a number. All is big-endian:
//
//	0 sealMagic, sealVersion, stream, 0 | 4 number of the sender (16 bits) | 6 and of the receiver
//	8 incarnation of the sender | 16 of the receiver | 24 number of the message (64 bits each)
//
// The incarnations are those of the names in the gossip. A receiver takes only messages for its own
// incarnation, so it takes nothing that was recorded before it started. Of each incarnation of a sender it
// takes each number once, so a sender that starts again begins anew. The numbers of a stream grow. They begin
// with the time, because a sender may forget what it sent to a peer that was away. A late message is taken if
// its number is among the newest 64 (RFC 4303, 3.4.3). UDP and TCP have streams of their own, because their
// messages overtake each other.
const (
	sealMagic   = 'Q'
	sealVersion = 1
	sealLen     = 32
)

// stream is a sequence of messages to a peer.
type stream uint8

const (
	streamShort stream = iota // states of Nodes that go by UDP
	streamLong                // states of Nodes that go by TCP
	streamAlive               // name of the sending board, while a long message of it is under way
	streamPage                // messages of Pagers
	streamAsk                 // question to another board with the same number, whether it lives
	streamReply               // reply to such a question
	numStreams
)

// numbers holds the number of the newest message to a peer, by stream. Only one goroutine uses each of them.
type numbers [numStreams]uint64

// from sets all numbers to the time.
func (n *numbers) from(now uint64) {
	for i := range n {
		n[i] = now
	}
}

// seal returns the message behind its header.
func (n *numbers) seal(s stream, from, to name, message []byte) []byte {
	n[s]++
	b := make([]byte, 0, sealLen+len(message))
	b = append(b, sealMagic, sealVersion, byte(s), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(from.number))
	b = binary.BigEndian.AppendUint16(b, uint16(to.number))
	for _, v := range []uint64{from.inc, to.inc, n[s]} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return append(b, message...)
}

// Drops holds the numbers of messages that had the right secret and were not taken, by reason.
type Drops struct {
	Replayed    uint64 `json:"replayed"`    // taken before
	Stale       uint64 `json:"stale"`       // too old to tell whether they were taken
	Misdirected uint64 `json:"misdirected"` // for another board, or for this one before it started
	Malformed   uint64 `json:"malformed"`   // of another version, or damaged
}

func (d Drops) String() string {
	return fmt.Sprintf("%d replayed, %d stale, %d misdirected, %d malformed", d.Replayed, d.Stale, d.Misdirected, d.Malformed)
}

// window says which numbers were taken: bit i of bits is that of number top-i.
type window struct{ top, bits uint64 }

// take reports whether number seq is taken for the first time. If not, it counts the reason in d.
func (w *window) take(seq uint64, d *Drops) bool {
	switch behind := w.top - seq; {
	case seq > w.top:
		if ahead := seq - w.top; ahead < 64 {
			w.bits = w.bits<<ahead | 1
		} else {
			w.bits = 1
		}
		w.top = seq
		return true
	case behind >= 64:
		d.Stale++
	case w.bits&(1<<behind) != 0:
		d.Replayed++
	default:
		w.bits |= 1 << behind
		return true
	}
	return false
}

// remembered is the largest number of incarnations of a sender that are known at a time.
const remembered = 64

// sender is what is known of the messages of boards with one number.
type sender struct {
	taken map[uint64]*[numStreams]window // by incarnation
	floor uint64                         // greatest incarnation that was forgotten: no message of this one or an older one is taken any more
}

// seals checks messages that come in.
type seals struct {
	own   name
	from  map[int]*sender
	drops Drops
}

func newSeals(own name) seals { return seals{own: own, from: map[int]*sender{}} }

// open returns message b without its header, if it is taken, or nil.
func (s *seals) open(b []byte) (message []byte, from name, of stream) {
	if len(b) < sealLen || b[0] != sealMagic || b[1] != sealVersion || b[2] >= byte(numStreams) || b[3] != 0 {
		s.drops.Malformed++
		return nil, from, 0
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[8+8*i:]) }
	from = name{int(binary.BigEndian.Uint16(b[4:])), field(0)}
	of = stream(b[2])
	twins := of == streamAsk || of == streamReply
	if to := (name{int(binary.BigEndian.Uint16(b[6:])), field(1)}); to != s.own || from == s.own || twins != (from.number == s.own.number) {
		s.drops.Misdirected++
		return nil, from, 0
	}
	w := s.windows(from)
	if w == nil {
		s.drops.Stale++
		return nil, from, 0
	}
	if !w[of].take(field(2), &s.drops) {
		return nil, from, 0
	}
	return b[sealLen:], from, of
}

// windows returns the windows of a sender, or nil if the sender was forgotten.
func (s *seals) windows(from name) *[numStreams]window {
	b := s.from[from.number]
	if b == nil {
		b = &sender{taken: map[uint64]*[numStreams]window{}}
		s.from[from.number] = b
	}
	w := b.taken[from.inc]
	if w != nil || from.inc <= b.floor {
		return w
	}
	if len(b.taken) == remembered {
		b.floor = slices.Min(slices.Collect(maps.Keys(b.taken)))
		delete(b.taken, b.floor)
		if from.inc <= b.floor {
			return nil
		}
	}
	w = &[numStreams]window{}
	b.taken[from.inc] = w
	return w
}
