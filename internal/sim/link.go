package sim

import (
	"math/rand/v2"
	"time"

	"github.com/quillon/quillon/nf/packet"
)

// wireOverhead is the number of bytes that a frame takes on the wire beyond its own: preamble
// and start delimiter (8), FCS (4) and the gap to the next frame (12).
const wireOverhead = 24

// fcsLen is the part of wireOverhead that a switch counts: the FCS.
const fcsLen = 4

// Faults are the shares of a link's frames, 0 to 1, that suffer each fault. Each is drawn
// separately from the link's seeded source.
type Faults struct {
	Drop, Duplicate, Corrupt float64
	// Reorder is the share of frames that are delayed, by a time drawn evenly from 0 to Late.
	Reorder float64
	Late    time.Duration
}

// LinkStats are the totals of one direction of a cable.
type LinkStats struct {
	Frames, Bytes                           uint64 // sent, with FCS
	Overflow                                uint64 // found the queue full
	Dropped, Duplicated, Corrupted, Delayed uint64
}

// link is one direction of a cable with the queue in front of it.
type link struct {
	perByte Time
	delay   Time
	bound   Time // the longest wait in the queue
	free    Time // when the transmitter is idle
	stats   LinkStats
	faults  Faults
	faulty  bool
	rng     *rand.Rand
}

// send puts a frame on the wire at t, or later when the frames before it are sent, and
// returns the time at which its last bit arrives. If ok is false, the queue was full and the frame is dropped.
func (l *link) send(t Time, b *packet.Buf) (arrives Time, ok bool) {
	start := max(t, l.free)
	if start-t > l.bound {
		l.stats.Overflow++
		b.Put()
		return 0, false
	}
	size := b.Len()
	l.stats.Frames++
	l.stats.Bytes += uint64(size + fcsLen)
	l.free = start + Time(size+wireOverhead)*l.perByte
	return l.free + l.delay, true
}

// carry sends a frame over l to an actor, with the link's faults.
func (w *World) carry(l *link, t Time, to, kind uint32, arg uint64, b *packet.Buf) {
	at, ok := l.send(t, b)
	if !ok {
		return
	}
	if !l.faulty {
		w.k.plan(at, to, kind, arg, b)
		return
	}
	f := &l.faults
	if l.rng.Float64() < f.Drop {
		l.stats.Dropped++
		b.Put()
		return
	}
	if l.rng.Float64() < f.Corrupt {
		l.stats.Corrupted++
		p := b.Bytes()
		bit := l.rng.IntN(8 * len(p))
		p[bit/8] ^= 1 << (bit % 8)
	}
	if l.rng.Float64() < f.Duplicate {
		if c := b.Pool().Get(); c != nil {
			if c.SetBytes(b.Bytes()) {
				l.stats.Duplicated++
				w.k.plan(at+Time(l.rng.Int64N(int64(From(f.Late))+1)), to, kind, arg, c)
			} else {
				c.Put()
			}
		}
	}
	if l.rng.Float64() < f.Reorder {
		l.stats.Delayed++
		at += Time(l.rng.Int64N(int64(From(f.Late)) + 1))
	}
	w.k.plan(at, to, kind, arg, b)
}
