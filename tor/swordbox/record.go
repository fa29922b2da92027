package swordbox

import (
	"math/bits"
	"unsafe"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// record holds the connections to a server: for each its row in tor/conn, its flow, and a ring of its client's
// operations. An operation that the server has not answered is also in the list of the connection that carries it.
// Flows and operations are linked by index, because they lie in memory that outlives the process.
type record struct {
	arrays
	window uint32 // places for a flow's operations, a power of two
	shift  uint8  // base-2 logarithm of window
	conns  *conn.Table
	known  []*flow // flows whose READ of unknown length has a known length now: requests waited for it (clientSide.wait)
}

func newRecord(a arrays, window int) record {
	return record{arrays: a, window: uint32(window), shift: uint8(bits.TrailingZeros(uint(window))), known: make([]*flow, 0, len(a.flows))}
}

// perFlow is the inverse, modulo 2^32, of the size of a flow in cache lines, which is odd (see TestLines). A product
// with perFlow replaces the division of a multiple of this size.
const perFlow = 0xF0F0F0F1

// index returns the index of flow f in flows, and place that of operation o in ops. The memory that outlives the
// process stores these instead of pointers.
func (r *record) index(f *flow) int32 {
	bytes := uintptr(unsafe.Pointer(f)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.flows)))
	return int32(uint32(bytes/64) * perFlow)
}

func (r *record) place(o *op) int32 {
	return int32((uintptr(unsafe.Pointer(o)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.ops)))) / unsafe.Sizeof(*o))
}

// get returns the operation in place at, and flow the flow with index i. Both return nil for none.
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

// flowOf returns the flow whose client sent o, and carrier the flow that carries o.
func (r *record) flowOf(o *op) *flow { return r.ownerOf(r.place(o)) }

// ownerOf returns the flow whose client sent the operation in place at.
func (r *record) ownerOf(at int32) *flow { return &r.flows[at>>(r.shift&31)] }

func (r *record) carrier(o *op) *flow { return &r.flows[o.lane] }

// beside returns the fields of o that few operations need. It is not inlined, so that its callers fit the processor's
// first cache.
//
//go:noinline
func (r *record) beside(o *op) *more { return &r.more[r.place(o)] }

// slot returns the slot of flow f in tor/conn.
func (r *record) slot(f *flow) conn.Slot { return conn.Slot(r.index(f)) }

// row returns the row of flow f in tor/conn.
func (r *record) row(f *flow) *conn.Row { return r.conns.Row(r.slot(f)) }

// classifyAtomic fills operation o from the atomic in b, with headers f.
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

// invalidates notes that SEND o makes the server invalidate R_Key rkey. It returns false if o must wait.
func (n *order) invalidates(o *op, rkey uint32) bool {
	o.prior, o.rkey = o.prior|invalidates, rkey
	return n.nicOf(n.flowOf(o)).keys.invalidate(rkey, n.c.Now().Add(n.cfg.settle))
}

// foretell notes the value that atomic o, which goes as an atomic, must find in its word v.
//
//go:noinline
func (r *record) foretell(o *op, v *word) {
	m := r.beside(o)
	m.want, m.belief = v.value, uint32(v.belief)
	o.flags |= fForetold
}

// failed notes that the client of operation o must get a NAK with syndrome syn about o's packet number packet.
func (r *record) failed(o *op, syn hdr.Syndrome, packet uint32) {
	o.state = sFailed
	r.beside(o).setNAK(syn, packet)
	if !o.is(fOrphan) {
		r.flowOf(o).failed = true
	}
}
