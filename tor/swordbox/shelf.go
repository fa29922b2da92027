package swordbox

import (
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
)

// shelf holds frames: requests that wait, answers to READs that are ahead of others, and packets
// that may have to be sent again here. Their queues are with what they are of (flow.stall,
// flow.late, op.held). mayHold says whether one more may be held, so that neither a connection nor
// a client takes all room. keep, retain, take and unkeep count an operation's frames; whoever
// changes another queue calls tally behind it.
type shelf struct {
	hold.Shelf[struct{}]
	of    []holding  // beside the flows
	hosts [256]int32 // frames that are held of clients, by hash of their address
	r     *record
	by    *owner
	seed  uint64 // so that nobody chooses whose frames are counted with whose
}

// holding is how many frames are held of a flow.
type holding struct {
	kept    int32 // of its operations: answers to READs, and copies
	tallied int32 // of its client, as counted in shelf.hosts[host]
	host    uint8
}

// last is the held frame that is number k of those of flow fl that wait; nil
// when there are not so many.
func (h *shelf) last(fl *flow, k int32) *packet.Buf {
	if fl.stall.Len() < int(k) {
		return nil
	}
	at := fl.stall.First()
	for ; k > 1; k-- {
		at = h.Next(at)
	}
	return h.Frame(at)
}

// copyOf is a copy of x to hold; nil when there is no room or no buffer.
func (h *shelf) copyOf(x *packet.Buf) *packet.Buf {
	if !h.Room(1) {
		return nil
	}
	return hold.Copy(h.by.c, x)
}

// retain holds a packet of o until it is answered.
func (h *shelf) retain(o *op, x *packet.Buf) {
	if !o.is(fKept) {
		o.flags |= fKept
		o.out = 0
	}
	h.keep(o, x)
}

// keep holds packet x of o, a frame of that worker's; false when there is no room.
func (h *shelf) keep(o *op, x *packet.Buf) bool {
	q, fl := o.held(), h.r.flowOf(o)
	if o.kind == kRead && !h.mayHold(fl) || h.Put(&q, x, h.by.worker, struct{}{}) == 0 {
		return false
	}
	o.hold(q)
	h.of[h.r.index(fl)].kept++
	h.tally(fl)
	return true
}

// take takes the first packet that is held of o, an operation of flow fl, off the shelf; nil
// when it cannot.
func (h *shelf) take(fl *flow, o *op) *packet.Buf {
	q := o.held()
	x, _ := h.Take(h.by.c, &q, h.by.worker)
	h.of[h.r.index(fl)].kept--
	h.tally(fl)
	o.hold(q)
	return x
}

// unkeep drops the packets that are held of o.
func (h *shelf) unkeep(o *op) {
	if o.holds() {
		q, all := o.held(), h.Len()
		h.Drop(h.by.c, &q, h.by.worker, reasonAbsorbed)
		o.out = 0
		h.of[h.r.index(h.r.flowOf(o))].kept -= int32(all - h.Len())
		h.tally(h.r.flowOf(o))
	}
	o.flags &^= fKept
}

// roomy reports whether a quarter of the room for frames is free: then frames may wait for
// better times. Five clients that hold all they may leave more.
func (h *shelf) roomy() bool { return h.Cap() != 0 && h.Room(h.Cap()/4) }

// longest is how many packets an operation has at most that goes over another's
// connection: it is held until it is complete, or has others wait for its answer. A
// client may wait for an acknowledgement after 128 packets (RXE_MAX_UNACKED_PSNS).
func (h *shelf) longest() uint32 { return min(uint32(h.Cap())/4, 64) }

// mayHold reports whether one more frame of flow f may be held: while f has less than half of
// what is free, and its client may, too. So k connections that have frames held without end
// leave two parts in k+2 of all room to the others (Choudhury and Hahne, dynamic queue length
// thresholds, 1998).
func (h *shelf) mayHold(f *flow) bool {
	return 2*(f.stall.Len()+f.early.Len()+int(h.of[h.r.index(f)].kept)) < h.Cap()-h.Len() && h.clientMayHold(f)
}

// clientMayHold reports whether one more frame of flow f's client may be held: while all
// connections from its address have less than twice what is free. So a third of all room is
// left to others, however many they are.
func (h *shelf) clientMayHold(f *flow) bool {
	return int(h.hosts[h.host(f)]) < 2*(h.Cap()-h.Len())
}

// host is where frames of f's client are counted: few clients share a count, and with it
// the bound.
func (h *shelf) host(f *flow) uint8 {
	if w := &h.of[h.r.index(f)]; w.tallied != 0 {
		return w.host
	}
	a := h.r.row(f).Client.Addr.As16()
	return uint8(hash((be.Uint64(a[:]) ^ be.Uint64(a[8:])<<1) ^ h.seed))
}

// tally counts anew how many frames are held of f's client. What is left of a connection
// that is gone stays its client's.
func (h *shelf) tally(f *flow) {
	w := &h.of[h.r.index(f)]
	held := int32(f.stall.Len()+f.late.Len()+f.early.Len()) + w.kept
	if held != w.tallied {
		w.host = h.host(f)
		h.hosts[w.host] += held - w.tallied
		w.tallied = held
	}
}
