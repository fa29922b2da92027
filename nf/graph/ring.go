package graph

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// ring carries copies of frames from one worker to one reader without a lock:
// records of a header and the frame, one after the other in a circle of bytes.
// head and tail only grow; the writer owns tail, the reader head.
type ring struct {
	buf     []byte // length a power of two
	head    atomic.Uint64
	_       [56]byte // the writer's and the reader's words on lines of their own
	tail    atomic.Uint64
	dropped atomic.Uint64
}

// ringHeader is: length, node, port, queue, reason app, reason, verdict, time,
// sequence number.
const ringHeader = 4 + 5*2 + 2 + 8 + 8

// ringSize holds about 700 full Ethernet frames.
const ringSize = 1 << 20

func newRing(size int) *ring { return &ring{buf: make([]byte, size)} }

// put copies b; false, and counted, when there is no room.
func (r *ring) put(b *packet.Buf, now clock.Time, node uint16) bool {
	frame := b.Bytes()
	tail := r.tail.Load()
	if uint64(len(r.buf))-(tail-r.head.Load()) < uint64(ringHeader+len(frame)) {
		r.dropped.Add(1)
		return false
	}
	var h [ringHeader]byte
	binary.LittleEndian.PutUint32(h[0:], uint32(len(frame)))
	binary.LittleEndian.PutUint16(h[4:], node)
	binary.LittleEndian.PutUint16(h[6:], b.Port)
	binary.LittleEndian.PutUint16(h[8:], b.Queue)
	binary.LittleEndian.PutUint16(h[10:], b.ReasonApp)
	binary.LittleEndian.PutUint16(h[12:], b.Reason)
	h[14] = byte(b.Verdict)
	binary.LittleEndian.PutUint64(h[16:], uint64(now))
	binary.LittleEndian.PutUint64(h[24:], b.Seq)
	r.copyIn(tail, h[:])
	r.copyIn(tail+ringHeader, frame)
	r.tail.Store(tail + ringHeader + uint64(len(frame)))
	return true
}

func (r *ring) copyIn(at uint64, p []byte) {
	i := at & uint64(len(r.buf)-1)
	n := copy(r.buf[i:], p)
	copy(r.buf, p[n:])
}

func (r *ring) copyOut(p []byte, at uint64) {
	i := at & uint64(len(r.buf)-1)
	n := copy(p, r.buf[i:])
	copy(p[n:], r.buf)
}

// record is a ring's frame as it was written.
type record struct {
	node, port, queue, reasonApp, reason uint16
	verdict                              packet.Verdict
	at                                   clock.Time
	seq                                  uint64
	data                                 []byte
}

// get takes the oldest record.
func (r *ring) get() (record, bool) {
	head := r.head.Load()
	if head == r.tail.Load() {
		return record{}, false
	}
	var h [ringHeader]byte
	r.copyOut(h[:], head)
	x := record{
		node:      binary.LittleEndian.Uint16(h[4:]),
		port:      binary.LittleEndian.Uint16(h[6:]),
		queue:     binary.LittleEndian.Uint16(h[8:]),
		reasonApp: binary.LittleEndian.Uint16(h[10:]),
		reason:    binary.LittleEndian.Uint16(h[12:]),
		verdict:   packet.Verdict(h[14]),
		at:        clock.Time(binary.LittleEndian.Uint64(h[16:])),
		seq:       binary.LittleEndian.Uint64(h[24:]),
		data:      make([]byte, binary.LittleEndian.Uint32(h[0:])),
	}
	r.copyOut(x.data, head+ringHeader)
	r.head.Store(head + ringHeader + uint64(len(x.data)))
	return x, true
}
