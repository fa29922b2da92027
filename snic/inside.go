package snic

import (
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/sched"
)

// inside is a packet on the full road.
type inside struct {
	way      way
	begun    bool  // a task has had the packet
	lost     bool  // a task did not let it go on: the packet ends
	failed   bool  // there were no copies for it
	lent     bool  // a task has the frame original
	promised uint8 // copies that it may still need
	stage    uint8
	branches uint8 // how many branches it runs in side by side
	changed  bool  // a task has marked one of these, or one is on a copy
	from     int8  // worker + 1 that handed it over; 0: none
	size     int32
	tenant   int32
	original *packet.Buf // its frame while it runs in branches; nil: a task has ended the frame
	since    clock.Time  // it is in the packet store
	was      remark      // the mark that original had after the last task
	_        [8]byte     // each is one line of the processor's cache
}

// lane is a packet in a branch: the frame, or a copy of its headers. That of branch i of packet p is
// p<<laneBits + i.
type lane struct {
	buf    *packet.Buf
	region int16
	mask   uint16 // tasks of the chain there that it is still to run through
	at     int8   // the task of the chain that it is in, or was last; -1: none
	lent   bool   // the task has the frame
	kept   bool   // and keeps it: the lane has no credits
}

// cargo is the packets inside the board, each in one lane or, where it runs in several branches side by side, in a lane for each.
type cargo struct {
	cat      *catalog
	packets  []inside
	lanes    []lane   // of packets, maxLanes of each
	branches []branch // of each lane of a packet that is changed
	held     int      // frames and copies of them that the board has
	copied   uint64   // packets, once for each stage in which they ran side by side
	promised int      // copies to packets
	inLine   uint64   // packets that could not run side by side, because frames were scarce
}

// stock counts what is in the packet store.
type stock struct {
	packets int   // for how many packets the store has room
	bytes   int64 // for how many bytes
	set     *settings
	kept    []kept // by number of the tenant
	inside  int    // packets in the store
	stored  int64  // bytes in the store
}

// kept is what a tenant has in the packet store.
type kept struct {
	packets int32
	bytes   int64
	work    float64 // ns of a worker that its frames in the lobby will take
}

// delay is the packets that a modelled task, or another modelled part of the board, has, in the order in which
// they leave.
type delay struct {
	task int32      // its number; of a region's delays, as long as something is placed there
	busy clock.Time // until then the part works on earlier packets
	rest float64    // the fraction of a ns by which busy is too early
	q    []delayed
	head int
}

type delayed struct {
	lane int32
	at   clock.Time
}

// ring is a queue of bounded size.
type ring struct {
	e     []int32 // as many as a power of two
	at, n int
}

// convoy is packets that will run through their tasks at once, as one batch. Their DAGs have the same tasks. Packets that are
// dispatched together go in the same direction, and leave by the same port.
type convoy struct {
	open  bool // more packets may join
	alone bool // no packets of other DAGs may join, because a task is to be timed
	d     *service
	way   way
	batch packet.Batch
	taken []taken
}

// taken says for which tasks the scheduler has given credits.
type taken struct {
	region int
	mask   uint16
	n      int
}

// take gives the lane a frame that has not run yet. Each field is set by itself: the compiler would build a whole lane elsewhere
// and copy it, and the copy would have to wait.
func (l *lane) take(x *packet.Buf) {
	l.buf, l.region, l.mask, l.at, l.lent, l.kept = x, -1, 0, -1, false, false
}

// begin is take for a frame that is in the first task of run r.
func (l *lane) begin(x *packet.Buf, r *sched.Run) {
	l.buf, l.region, l.mask, l.at, l.lent, l.kept = x, int16(r.Region), r.Mask&(r.Mask-1), int8(bits.TrailingZeros16(r.Mask)), false, false
}

// full reports whether a packet of so many bytes is too much for a tenant: the tenant would have more of the store than it leaves free.
func (s *stock) full(k *kept, bytes int) bool {
	return int(k.packets) >= s.packets-s.inside || k.bytes+int64(bytes) > s.bytes-s.stored
}

// much reports whether a tenant uses more than 1/part of the room that it may use, or of the work that may wait for it.
func (s *stock) much(tenant, part int) bool {
	k := &s.kept[tenant]
	return part*int(k.packets) > s.packets-s.inside || int64(part)*k.bytes > s.bytes-s.stored || float64(part)*k.work > float64(s.set.slack)
}

func (d *delay) push(l int32, at clock.Time) {
	d.room(1)
	d.q = append(d.q, delayed{l, at})
}

// room moves what is in q to its front if otherwise n more would not fit.
func (d *delay) room(n int) {
	if d.head > 0 && d.head == len(d.q) {
		d.q, d.head = d.q[:0], 0
	} else if len(d.q)+n > cap(d.q) && d.head > 0 {
		d.q = d.q[:copy(d.q, d.q[d.head:])]
		d.head = 0
	}
}

// pop returns the next packet, if its time has come.
func (d *delay) pop(now clock.Time) (lane int32, ok bool) {
	if d.head == len(d.q) || d.q[d.head].at > now {
		return 0, false
	}
	d.head++
	return d.q[d.head-1].lane, true
}

// next is when the next packet leaves.
func (d *delay) next() clock.Time {
	if d.head == len(d.q) {
		return clock.Never
	}
	return d.q[d.head].at
}

func newRing(n int) ring {
	size := 1
	for size < n {
		size *= 2
	}
	return ring{e: make([]int32, size)}
}

func (r *ring) push(v int32) {
	r.e[(r.at+r.n)&(len(r.e)-1)] = v
	r.n++
}

func (r *ring) pop() int32 {
	v := r.e[r.at]
	r.at = (r.at + 1) & (len(r.e) - 1)
	if r.n--; r.n == 0 {
		r.at = 0 // what is in use stays in the cache
	}
	return v
}
