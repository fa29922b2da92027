package offload

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Meter is two token buckets, as in package police, in memory that process and program share. Who has taken
// it (Take) may read and write all fields.
type Meter struct {
	taken uint32
	Flags uint32
	At    int64  // of the kernel: until then the buckets are filled
	C, P  uint64 // tokens: committed; peak or excess, in parts of 1e9
	// CIR and PIR are what the buckets get in a nanosecond, RoomC and RoomP what they hold at most, all in
	// the unit of C and P.
	CIR, PIR, RoomC, RoomP uint64
	// Counts are the frames of each colour, and their IP bytes, that the program has run since the owner last
	// took them.
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

// Colours is the number of a meter's colours: green, yellow and red.
const Colours = 3

// Values of Meter.Acts. A value below ActDrop is the DSCP that frames of the colour get.
const (
	ActDrop = 0xFE
	ActPass = 0xFF
)

// MaxMeters is one more than the number of meters that there may be, because number 0 is none.
const MaxMeters = 1 << 16

// Take waits until nobody else has the Meter. The program has it for less than a microsecond a frame.
func (m *Meter) Take() {
	for n := 1; !atomic.CompareAndSwapUint32(&m.taken, 0, 1); n++ {
		if n%1024 == 0 {
			runtime.Gosched()
		}
	}
}

// Give gives back the Meter that Take has taken.
func (m *Meter) Give() { atomic.StoreUint32(&m.taken, 0) }

// Metered says which Meter measures the frames of a direction, and what the function did with the decided
// frame.
type Metered struct {
	Number          uint16 // 0: by none
	Gen             uint32
	Size            int  // of the frame's IP datagram, where the function is
	Mark            bool // it got DSCP
	DSCP            uint8
	Marked, Dropped uint16 // the function's reasons
}

// Meterer is an Owner that has borrowed Meters from a Table (Lend).
type Meterer interface {
	Owner
	// Back tells the owner that no entry uses the Meter, and that the Table takes it back. Its counts are
	// in m.
	Back(number uint16, m *Meter)
}

// lent is what a Table knows of a Meter that it may have lent.
type lent struct {
	o    Meterer // nil: none has it
	refs int32   // directions of entries
	gen  uint32
	at   clock.Time // when it was lent
}

// meters are the Meters of a Table. Only graphs with one worker use them.
type meters struct {
	mem  []Meter
	lent []lent
	free []uint16
	used int // numbers that were ever used
	hand int
}

// Lend lends a Meter to o, after init has set its fields, and returns its number and generation. Number 0
// means that no Meter is available: the graph has several workers, the Table is paused, or all Meters are
// lent.
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

// Meter returns the lent Meter of that number.
func (t *Table) Meter(number uint16) *Meter { return &t.meters.mem[number] }

// Return takes back a Meter that its function does not need. Entries that use it may remain; from the time
// that Return returns, their frames come up.
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

// refer adds n to the number of directions that use a Meter. At 0 the Meter goes back.
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

// lookMeters looks at up to n Meters, and takes back those that no entry has used within two seconds of the
// loan, because the flow's other direction did not come.
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

// End takes all Meters back, because the kernel's memory is about to go. The Table must have no entries.
func (t *Table) End() {
	for i := range t.meters.lent {
		if t.meters.lent[i].o != nil {
			t.meters.back(uint16(i))
		}
	}
}

// KernelTime converts the graph's time to ns of the kernel's clock, and GraphTime converts back.
func (t *Table) KernelTime(at clock.Time) int64    { return int64(at) - t.ahead.Load() }
func (t *Table) GraphTime(kernel int64) clock.Time { return t.time(uint64(kernel)) }

// holds reports whether a decision's Meter is still lent as it was when the frame was decided.
func (t *Table) holds(m *Metered) bool {
	return m.Number == 0 || t.meters.lent[m.Number].o != nil && t.meters.lent[m.Number].gen == m.Gen
}

// metered returns the Meter among the parts, and the flags that say what functions know of a frame that the
// Meter drops: functions before the meter have seen it, functions behind it have not. ok is false if parts
// have two Meters.
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

// marked returns frame b, whose parts are at f, with the DSCP that the meter gave it, in a copy if that
// changes it. It returns false if the function has metered another size than the program would.
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

// SetTOS sets the TOS or traffic class of an IP header, and adapts the checksum of IPv4.
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

// MeterBits is the binary logarithm of a Meter's size in bytes.
const MeterBits = 7

var _ [1 << MeterBits]byte = [unsafe.Sizeof(Meter{})]byte{}
