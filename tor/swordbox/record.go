package swordbox

import (
	"math/bits"
	"unsafe"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// record is what is remembered of the connections to a server: of each what tor/conn knows
// (row), its flow, and a ring of its client's operations. An operation that the server has not answered is
// also in the list of what some connection carries. What links them are numbers, since
// they lie in memory that outlives the process.
type record struct {
	arrays
	window uint32 // places for a flow's operations: a power of two
	shift  uint8  // its logarithm
	conns  *conn.Table
	known  []*flow // the length of a READ is known by now that requests of theirs have waited for (clientSide.wait)
}

func newRecord(a arrays, window int) record {
	return record{arrays: a, window: uint32(window), shift: uint8(bits.TrailingZeros(uint(window))), known: make([]*flow, 0, len(a.flows))}
}

// perFlow is the inverse, modulo 2^32, of the length of a flow in lines of the cache,
// which is odd (see TestLines): to divide by it what it divides is to multiply so.
const perFlow = 0xF0F0F0F1

// index is the number of flow f, and place that of operation o: what is stored of
// them in memory that outlives the process.
func (r *record) index(f *flow) int32 {
	bytes := uintptr(unsafe.Pointer(f)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.flows)))
	return int32(uint32(bytes/64) * perFlow)
}

func (r *record) place(o *op) int32 {
	return int32((uintptr(unsafe.Pointer(o)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.ops)))) / unsafe.Sizeof(*o))
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

// flowOf is the flow whose client sent o, and carrier the one whose connection
// carries it.
func (r *record) flowOf(o *op) *flow { return r.ownerOf(r.place(o)) }

// ownerOf is the flow whose client sent the operation in place at.
func (r *record) ownerOf(at int32) *flow { return &r.flows[at>>(r.shift&31)] }

func (r *record) carrier(o *op) *flow { return &r.flows[o.lane] }

// beside is what few operations need of o. It is not part of its callers, whose instructions
// are to fit the processor's first cache.
//
//go:noinline
func (r *record) beside(o *op) *more { return &r.more[r.place(o)] }

// slot is what tor/conn calls flow f.
func (r *record) slot(f *flow) conn.Slot { return conn.Slot(r.index(f)) }

// row is what tor/conn knows of flow f.
func (r *record) row(f *flow) *conn.Row { return r.conns.Row(r.slot(f)) }

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

// invalidates notes that SEND o has the server invalidate an R_Key. False when it must wait.
func (n *order) invalidates(o *op, rkey uint32) bool {
	o.prior, o.rkey = o.prior|invalidates, rkey
	return n.keys.invalidate(rkey, n.c.Now().Add(n.cfg.settle))
}

// foretell notes what atomic o, which goes as one, must find in its word v.
//
//go:noinline
func (r *record) foretell(o *op, v *word) {
	m := r.beside(o)
	m.want, m.belief = v.value, uint32(v.belief)
	o.flags |= fForetold
}

// failed notes that the client of op o must see NAK syn about its packet.
func (r *record) failed(o *op, syn hdr.Syndrome, packet uint32) {
	o.state = sFailed
	r.beside(o).setNAK(syn, packet)
	if !o.is(fOrphan) {
		r.flowOf(o).failed = true
	}
}
