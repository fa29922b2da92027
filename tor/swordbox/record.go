package swordbox

import (
	"math/bits"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// record is what is remembered of the connections to a server: of each its flow, and a
// ring of its client's operations. An operation that the server has not answered is
// also in the list of what some connection carries. What links them are numbers, since
// they lie in memory that outlives the process.
type record struct {
	arrays
	window uint32 // places for a flow's operations: a power of two
	shift  uint8  // its logarithm
}

func newRecord(a arrays, window int) record {
	return record{arrays: a, window: uint32(window), shift: uint8(bits.TrailingZeros(uint(window)))}
}

// index is the number of flow f, and place that of operation o: what is stored of
// them in memory that outlives the process.
func (r *record) index(f *flow) int32 {
	return int32((uintptr(unsafe.Pointer(f)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.flows)))) / unsafe.Sizeof(*f))
}

func (r *record) place(o *op) int32 {
	return int32((uintptr(unsafe.Pointer(o)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.ops)))) / unsafe.Sizeof(*o))
}

// op is operation number k (as flow.head counts) of flow f.
func (r *record) op(f *flow, k uint32) *op {
	return &r.ops[r.index(f)<<(r.shift&31)+int32(k&(f.span-1))]
}

// get is the operation in place at, and flow the flow with number i; nil when that is none.
func (r *record) get(at int32) *op {
	if at == none {
		return nil
	}
	return &r.ops[at]
}

func (r *record) flow(i int32) *flow {
	if i == none {
		return nil
	}
	return &r.flows[i]
}

// oldest is the operation at the front of those that connection c carries, and
// behind the one behind o; nil when there is none.
func (r *record) oldest(c *flow) *op { return r.get(c.oldest) }

func (r *record) behind(o *op) *op { return r.get(o.next) }

// beside is what few operations need of o.
func (r *record) beside(o *op) *more { return &r.more[r.place(o)] }

// flowOf is the flow whose client sent o, and carrier the one whose connection
// carries it.
func (r *record) flowOf(o *op) *flow { return &r.flows[r.place(o)>>(r.shift&31)] }

func (r *record) carrier(o *op) *flow { return &r.flows[o.lane] }

// find is the operation of flow fl that PSN psn belongs to; none if it is not on
// record.
func (r *record) find(fl *flow, psn uint32) (o *op, k uint32) {
	lo, hi := fl.first, fl.tail // the last one that begins at or before psn
	for lo != hi {
		m := lo + (hi-lo)/2
		if o := r.op(fl, m); psnLess(psn, o.cpsn) {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == fl.first {
		return nil, 0
	}
	if o = r.op(fl, lo-1); hdr.PSNDiff(psn, o.cpsn) >= int32(o.npsn) {
		return nil, 0
	}
	return o, lo - 1
}

// unsentBefore reports whether an operation of flow fl before number k waits to
// be sent by its client again.
func (r *record) unsentBefore(fl *flow, k uint32) bool {
	for j := fl.head; j != k; j++ {
		if o := r.op(fl, j); o.state == sUnsent {
			return true
		}
	}
	return false
}

// handedOver reports whether the client of connection c will send again what the
// server misses: all that c carries is its own, and it still waits for it.
func (r *record) handedOver(c *flow) bool {
	o := &r.ops[c.oldest]
	return c.guests == 0 && !o.is(fAgain|fOrphan)
}

// grow makes room to remember twice as many operations of flow fl, when none of
// them is open: false while that is not so, or when there is no room.
func (r *record) grow(fl *flow) bool {
	if fl.span == r.window || fl.open > 0 || fl.rereads > 0 || fl.head != fl.tail {
		return false
	}
	all := r.ops[r.index(fl)<<(r.shift&31):][:r.window:r.window]
	old := all[:fl.span]
	for k := range old {
		if old[k].is(fOrphan) && old[k].state == sOpen {
			return false
		}
	}
	// The newer half of the places of the wider ring is behind the older: what
	// belongs there is copied, and stays where it was until the ring is wider.
	for k := fl.first; k != fl.tail; k++ {
		if to := k & (2*fl.span - 1); to != k&(fl.span-1) {
			all[to] = old[k&(fl.span-1)]
		}
	}
	fl.span *= 2
	return true
}

// fade forgets the oldest requests of flow fl, which were answered, when the newest are
// far beyond.
func (r *record) fade(fl *flow) {
	for fl.first != fl.head {
		o := r.op(fl, fl.first)
		if (fl.admitted-o.cpsn)&hdr.PSNMask <= mostUnacked || o.state == sOpen {
			return
		}
		fl.outlive(o)
		fl.first++
	}
}

// carries is the operation that connection x carries under PSN psn; nil if there
// is none, or too many are ahead of it.
func (r *record) carries(x *flow, psn uint32) *op {
	o := r.oldest(x)
	for range mostAhead {
		if o == nil || psnLess(psn, psnAdd(o.spsn, o.npsn)) {
			return o
		}
		o = r.behind(o)
	}
	return nil
}

// part is the PSN of the last packet of o, which is not done, that the server has
// acknowledged, as its client numbers; false when there is none.
func (r *record) part(o *op) (psn uint32, ok bool) {
	if o.state != sOpen || o.kind != kWrite && o.kind != kSend || r.oldest(r.carrier(o)) != o {
		return 0, false
	}
	d := hdr.PSNDiff(r.carrier(o).acked, o.spsn)
	return psnAdd(o.cpsn, uint32(d)), d >= 0 && d < int32(o.npsn)
}

// una is the PSN of the oldest request of flow f that its client has no answer to
// (IBTA: oldest unacknowledged PSN).
func (r *record) una(f *flow) uint32 {
	if f.head == f.tail {
		return f.admitted
	}
	o := r.op(f, f.head)
	if o.state == sFailed {
		return psnAdd(o.cpsn, r.beside(o).nak)
	}
	return o.cpsn
}

// foretell notes what atomic o, which goes as one, must find in its word v.
func (r *record) foretell(o *op, v *word) {
	m := r.beside(o)
	m.want, m.belief = v.value, uint32(v.belief)
	o.flags |= fForetold
}

// classifyAtomic makes of the atomic in b, with headers f, operation o.
func (r *record) classifyAtomic(o *op, b []byte, f *hdr.Frame) {
	h := f.BTH + hdr.BTHLen
	a := hdr.AtomicETH(b[h : h+hdr.AtomicETHLen])
	o.va, o.rkey, o.len, o.out, o.prior = a.VA(), a.RKey(), 8, a.Swap(), a.Compare()
	o.kind = kindOf(f.Op)
	if f.Op.Info().Ext&hdr.HasAtomicETH == 0 {
		m, more := f.MaskedAtomicETHOf(b), r.beside(o)
		more.compareMask, more.swapMask = m.CompareMask(), m.SwapMask()
	}
}

// orphan marks o: nobody waits for it.
func (r *record) orphan(o *op) { o.flags |= fOrphan }

// slot is what tor/conn calls flow f, and row what it knows of it.
func (r *record) slot(f *flow) conn.Slot { return conn.Slot(r.index(f)) }

// link puts op o at the end of what connection x carries.
func (r *record) link(x *flow, o *op, now clock.Time) {
	at := r.place(o)
	o.next = none
	if x.oldest == none {
		x.oldest, x.loaded, x.timed = at, now, true
		x.silent, x.tries = 0, 0
	} else {
		r.ops[x.newest].next = at
	}
	x.newest = at
}

// unlink takes o, which is the oldest, off its connection.
func (r *record) unlink(o *op) {
	x := &r.flows[o.lane]
	x.oldest = o.next
	if x.oldest == none {
		x.newest = none
	}
	x.silent = 0
}

// settleLength notes that the READ of unknown length that flow fl sent last
// takes k packets.
func (r *record) settleLength(fl *flow, k uint32) {
	o := &r.ops[fl.newest]
	fl.unsure = false
	o.npsn = k
	fl.next = psnAdd(o.spsn, k)
	fl.arrived = psnAdd(o.cpsn, k)
	fl.admitted = fl.arrived
	if k == 1 {
		fl.mtuLow = max(fl.mtuLow, o.len)
	}
}
