package offload

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Meter is two token buckets as package police has them, in memory that the program has, too: who has taken it may read and write the rest.
type Meter struct {
	taken uint32
	Flags uint32
	At    int64  // of the kernel: until then the buckets are filled
	C, P  uint64 // tokens: committed; peak or excess, in parts of 1e9
	// What a nanosecond brings, and what the buckets hold.
	CIR, PIR, RoomC, RoomP uint64
	// Counts are frames and their IP bytes, by colour, that the program has run since they were taken.
	Counts [Colours]Counts
	Acts   [Colours]uint8
	_      [13]byte
}

// Flags of a Meter.
const (
	MeterSingle  = 1 << iota // one rate (RFC 2697): what does not fit into the first bucket fills the other one
	MeterPackets             // tokens are packets
	MeterAware               // frames never get a better colour than their DSCP says
	MeterGone                // frames come up
)

// Colours are how many colours a meter has: green, yellow and red.
const Colours = 3

// What is done to frames of a colour: a number below is the DSCP that they get.
const (
	ActDrop = 0xFE
	ActPass = 0xFF
)

// MaxMeters is one more than there may be. A Metered with number 0 has none.
const MaxMeters = 1 << 16

// Take waits for a Meter. A frame has it for less than a microsecond.
func (m *Meter) Take() {
	for n := 1; !atomic.CompareAndSwapUint32(&m.taken, 0, 1); n++ {
		if n%1024 == 0 {
			runtime.Gosched()
		}
	}
}

// Give ends what Take has begun.
func (m *Meter) Give() { atomic.StoreUint32(&m.taken, 0) }

// Metered says by which Meter the frames of a direction go, and what the function did with the frame that was decided.
type Metered struct {
	Number          uint16 // 0: by none
	Gen             uint32
	Size            int  // of the frame's IP datagram, where the function is
	Mark            bool // it got DSCP
	DSCP            uint8
	Marked, Dropped uint16 // the function's reasons
}

// Meterer is an Owner that has lent Meters.
type Meterer interface {
	Owner
	// Back gives a Meter back, which nothing goes by any more.
	Back(number uint16, m *Meter)
}

// lent is a Meter that a function has.
type lent struct {
	o    Meterer // nil: none has it
	refs int32   // directions of entries
	gen  uint32
	at   clock.Time // when it was lent
}

// meters are those of a Table, which one worker has.
type meters struct {
	mem  []Meter
	lent []lent
	free []uint16
	used int // numbers that were ever used
	hand int
}

// Lend gives a function a Meter that is what init makes it; number 0: there is none.
func (t *Table) Lend(o Meterer, init func(m *Meter)) (number uint16, gen uint32) {
	ms := &t.meters
	switch n := len(ms.free); {
	case t.shared || t.paused:
		return 0, 0
	case n > 0:
		number, ms.free = ms.free[n-1], ms.free[:n-1]
	case ms.used+1 >= len(ms.mem):
		return 0, 0
	default:
		ms.used++
		number = uint16(ms.used)
	}
	if ms.lent == nil {
		ms.lent = make([]lent, len(ms.mem))
	}
	x, m := &ms.lent[number], &ms.mem[number]
	x.o, x.at, x.gen = o, t.Time(), x.gen+1
	m.Take()
	*m = Meter{taken: 1}
	init(m)
	m.Give()
	return number, x.gen
}

// Meter is one that is lent.
func (t *Table) Meter(number uint16) *Meter { return &t.meters.mem[number] }

// Return takes a Meter whose function has no use for it any more: frames that go by it come up when it returns.
func (t *Table) Return(number uint16) {
	x, m := &t.meters.lent[number], t.Meter(number)
	m.Take()
	m.Flags |= MeterGone
	m.Give()
	x.o = nil
	if x.gen++; x.refs == 0 {
		t.meters.free = append(t.meters.free, number)
	}
}

// refer counts directions that go by a Meter, one more or less. The last one gives it back.
func (ms *meters) refer(number uint16, n int32) {
	if number == 0 {
		return
	}
	x := &ms.lent[number]
	if x.refs += n; x.refs == 0 {
		ms.back(number)
	}
}

func (ms *meters) back(number uint16) {
	x := &ms.lent[number]
	if o := x.o; o != nil {
		x.o = nil
		x.gen++
		o.Back(number, &ms.mem[number])
	}
	ms.free = append(ms.free, number)
}

// lookMeters gives some Meters back that nothing has gone by since they were lent: the flow's other direction has not come.
func (t *Table) lookMeters(n int) {
	ms := &t.meters
	for ; n > 0 && ms.used > 0; n-- {
		if ms.hand++; ms.hand > ms.used {
			ms.hand = 0
			return
		}
		if x := &ms.lent[ms.hand]; x.o != nil && x.refs == 0 && t.Time().Sub(x.at) > 2*pairTime {
			ms.back(uint16(ms.hand))
		}
	}
}

// End gives all Meters back: the kernel's memory goes. There are no entries any more.
func (t *Table) End() {
	for i := range t.meters.lent {
		if t.meters.lent[i].o != nil {
			t.meters.back(uint16(i))
		}
	}
}

// KernelTime is the kernel's time of one of the graph, and GraphTime the graph's of one of the kernel.
func (t *Table) KernelTime(at clock.Time) int64    { return int64(at) - t.ahead.Load() }
func (t *Table) GraphTime(kernel int64) clock.Time { return t.time(uint64(kernel)) }

// holds reports whether a decision's Meter is still what it was.
func (t *Table) holds(m *Metered) bool {
	return m.Number == 0 || t.meters.lent[m.Number].o != nil && t.meters.lent[m.Number].gen == m.Gen
}

// metered is the Meter that a decision's frames go by, and what a frame that it drops is to functions: those before have seen it, those behind have not. It is false
// where there are two.
func metered(parts []Part) (m Metered, ops uint8, ok bool) {
	at, before, behind := -1, false, false
	for i := range parts {
		if parts[i].Meter.Number != 0 {
			if at >= 0 {
				return m, 0, false
			}
			at, m = i, parts[i].Meter
		}
	}
	for i := range parts {
		if parts[i].Owner != nil {
			before, behind = before || i < at, behind || i > at && at >= 0
		}
	}
	if before {
		ops = OpDropNotes
	}
	if before && behind {
		ops = OpDropUp
	}
	return m, ops, true
}

// marked is a frame whose parts are at f, with another DSCP; false: the function has not metered the datagram that the program does.
func (m *Metered) marked(b []byte, f *Frame) ([]byte, bool) {
	size := 0
	if ip := b[f.L3:]; f.six() {
		size = hdr.IPv6Len + int(be.Uint16(ip[4:]))
	} else {
		size = int(be.Uint16(ip[2:]))
	}
	if size != m.Size || !m.Mark {
		return b, size == m.Size
	}
	b = append([]byte(nil), b...)
	SetTOS(b[f.L3:], m.DSCP<<2|tosOf(b[f.L3:])&3)
	return b, true
}

// SetTOS writes TOS or traffic class of an IP header, and adapts IPv4's checksum.
func SetTOS(ip []byte, tos uint8) {
	if ip[0]>>4 == 6 {
		hdr.IPv6(ip).SetTrafficClass(tos)
		return
	}
	h := hdr.IPv4(ip)
	was := be.Uint16(h)
	h.SetTOS(tos)
	h.SetChecksum(hdr.PatchChecksum(h.Checksum(), was, be.Uint16(h)))
}

// MeterBits is the length of a Meter: 1<<MeterBits.
const MeterBits = 7

var _ [1 << MeterBits]byte = [unsafe.Sizeof(Meter{})]byte{}
