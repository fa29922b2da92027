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

	_     [64]byte // keeps the words of the two sides on different cache lines
	put   atomic.Uint64
	in    uint64 // frames and bytes that were put in since the ring was made, also those that are not yet visible
	bytes uint64
	most  uint64 // frames (and bytes) that the reader had taken when the writer looked last
	freed uint64

	_     [64]byte
	taken atomic.Uint64 // frames and bytes whose room the reader has given back
	gone  atomic.Uint64
	out   uint64 // frames and bytes that the reader has read
	from  uint64
	seen  uint64 // frames that were visible when the reader looked last

	_ [64]byte
}

// entry has the data of a frame other than its bytes.
type entry struct {
	packet.Meta
	at   clock.Time
	n    uint32
	node uint16
}

// tapBytes holds about 700 full Ethernet frames, tapFrames as many of 64 bytes as take their time.
const tapBytes, tapFrames = 1 << 20, 1 << 12

// newRing returns a ring with room for that many frames and bytes, each a power of two.
func newRing(frames, bytes int) *ring {
	return &ring{entries: make([]entry, frames), buf: make([]byte, bytes)}
}

// stage copies b into the ring; the reader sees it after publish. False: there is no room.
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

// publish makes the staged frames visible to the reader.
func (r *ring) publish() { r.put.Store(r.in) }

// add stages and publishes a frame. False: there is no room; the frame is counted as lost.
func (r *ring) add(b *packet.Buf, now clock.Time, node uint16) bool {
	if !r.stage(b, now, node) {
		r.dropped.Add(1)
		return false
	}
	r.publish()
	return true
}

// waiting returns the number of visible frames that the reader has not given back. Any goroutine may call it.
func (r *ring) waiting() int {
	taken := r.taken.Load() // before put, so that the difference is never negative
	return int(r.put.Load() - taken)
}

// next returns the oldest frame that was not read, or nil if all visible frames were read.
func (r *ring) next() *entry {
	if r.out == r.seen {
		if r.seen = r.put.Load(); r.out == r.seen {
			return nil
		}
	}
	return &r.entries[r.out&uint64(len(r.entries)-1)]
}

// read copies the bytes of frame e, which next has returned, to p, which has e's length, and moves on to the next
// frame. The room of e stays taken until free.
func (r *ring) read(e *entry, p []byte) {
	i := r.from & uint64(len(r.buf)-1)
	k := copy(p, r.buf[i:])
	copy(p[k:], r.buf)
	r.skip(e)
}

// skip does what read does, without copying.
func (r *ring) skip(e *entry) {
	r.from += uint64(e.n)
	r.out++
}

// free gives back the room of the frames that were read.
func (r *ring) free() {
	r.gone.Store(r.from)
	r.taken.Store(r.out)
}
