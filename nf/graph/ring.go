package graph

import (
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// ring carries copies of frames from one worker to one reader without a lock: their
// bytes, one frame after the other in a circle, and an entry for each. The counts of
// frames and bytes only grow; the writer owns what it has put, the reader what it has
// taken. The writer makes any number of frames visible with one store (publish), the
// reader gives back the room of any number with one (free).
type ring struct {
	entries []entry // length a power of two, as that of buf
	buf     []byte
	dropped atomic.Uint64

	_     [64]byte // the words of either side on lines of their own
	put   atomic.Uint64
	in    uint64 // frames and bytes in the ring since it was made, with those that are not yet visible
	bytes uint64
	most  uint64 // of what is in them, what the reader had taken when the writer looked last
	freed uint64

	_     [64]byte
	taken atomic.Uint64 // frames, and bytes, that the reader is done with
	gone  atomic.Uint64
	out   uint64 // frames and bytes that it has read
	from  uint64
	seen  uint64 // frames that were there when it looked last

	_ [64]byte
}

// entry is what is known of a frame beside its bytes.
type entry struct {
	packet.Meta
	at   clock.Time
	n    uint32
	node uint16
}

// tapBytes holds about 700 full Ethernet frames, tapFrames as many of 64 bytes as take their time.
const tapBytes, tapFrames = 1 << 20, 1 << 12

// newRing is a ring for so many frames and bytes, each a power of two.
func newRing(frames, bytes int) *ring {
	return &ring{entries: make([]entry, frames), buf: make([]byte, bytes)}
}

// stage copies b, which the reader sees when publish was called; false when there is no room.
func (r *ring) stage(b *packet.Buf, now clock.Time, node uint16) bool {
	frame := b.Bytes()
	n := uint64(len(frame))
	if r.in-r.most == uint64(len(r.entries)) || r.bytes+n-r.freed > uint64(len(r.buf)) {
		r.most, r.freed = r.taken.Load(), r.gone.Load()
		if r.in-r.most == uint64(len(r.entries)) || r.bytes+n-r.freed > uint64(len(r.buf)) {
			return false
		}
	}
	r.entries[r.in&uint64(len(r.entries)-1)] = entry{Meta: b.Meta, at: now, n: uint32(n), node: node}
	i := r.bytes & uint64(len(r.buf)-1)
	k := copy(r.buf[i:], frame)
	copy(r.buf, frame[k:])
	r.in++
	r.bytes += n
	return true
}

// publish has the reader see what was staged.
func (r *ring) publish() { r.put.Store(r.in) }

// add stages and publishes a frame; false, and counted, when there is no room.
func (r *ring) add(b *packet.Buf, now clock.Time, node uint16) bool {
	if !r.stage(b, now, node) {
		r.dropped.Add(1)
		return false
	}
	r.publish()
	return true
}

// waiting is how many frames the reader sees and has not given back. Anybody may ask.
func (r *ring) waiting() int {
	taken := r.taken.Load() // first: never more than there are
	return int(r.put.Load() - taken)
}

// next is the oldest frame that was not read; nil: there is none.
func (r *ring) next() *entry {
	if r.out == r.seen {
		if r.seen = r.put.Load(); r.out == r.seen {
			return nil
		}
	}
	return &r.entries[r.out&uint64(len(r.entries)-1)]
}

// read copies the bytes of frame e, which next has returned, to p, which is as long; the next one is next
// then. Their room is taken until free.
func (r *ring) read(e *entry, p []byte) {
	i := r.from & uint64(len(r.buf)-1)
	k := copy(p, r.buf[i:])
	copy(p[k:], r.buf)
	r.skip(e)
}

// skip is read without the bytes.
func (r *ring) skip(e *entry) {
	r.from += uint64(e.n)
	r.out++
}

// free gives back the room of what was read.
func (r *ring) free() {
	r.gone.Store(r.from)
	r.taken.Store(r.out)
}
