package swordbox

import (
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
)

// shelf holds frames: requests that wait, answers to READs that came before an earlier answer, and packets that the
// box may have to send again. Their queues lie in flows and operations (flow.stall, flow.late, flow.early, op.held).
// mayHold says whether one more frame may be held, so that neither a connection nor a client takes all room. keep,
// retain, take and unkeep count an operation's frames; code that changes another queue calls tally afterwards.
type shelf struct {
	hold.Shelf[struct{}]
	of    []holding  // beside the flows
	hosts [256]int32 // number of held frames of clients, by hash of their address
	r     *record
	by    *owner
	seed  uint64 // key of the hash, so that nobody can choose addresses that are counted together
}

// holding counts the frames that are held of one flow.
type holding struct {
	kept    int32 // held frames of its operations: answers to READs, and copies of requests
	tallied int32 // held frames that are counted in shelf.hosts[host]
	host    uint8
}

// last returns the k-th waiting request of flow fl, counted from 1, or nil if fewer wait.
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

// copyOf returns a copy of x to hold, or nil if there is no room or no buffer.
func (h *shelf) copyOf(x *packet.Buf) *packet.Buf {
	if !h.Room(1) {
		return nil
	}
	return hold.Copy(h.by.c, x)
}

// retain holds packet x of o until o is answered, so that the box can send x again (fKept).
func (h *shelf) retain(o *op, x *packet.Buf) {
	if !o.is(fKept) {
		o.flags |= fKept
		o.out = 0
	}
	h.keep(o, x)
}

// keep holds packet x, a frame of the node's worker, for operation o. It returns false if there is no room.
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

// take removes the first held packet of o, an operation of flow fl, from the shelf and returns it, or nil if it gets no
// buffer to copy another worker's frame.
func (h *shelf) take(fl *flow, o *op) *packet.Buf {
	q := o.held()
	x, _ := h.Take(h.by.c, &q, h.by.worker)
	h.of[h.r.index(fl)].kept--
	h.tally(fl)
	o.hold(q)
	return x
}

// unkeep drops the held packets of o and clears fKept.
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

// roomy reports whether a quarter of the room for frames is free. While it is, frames may wait where waiting is
// optional. Five connections that hold all frames that they may hold leave more than a quarter free.
func (h *shelf) roomy() bool { return h.Cap() != 0 && h.Room(h.Cap()/4) }

// longest returns the largest number of packets of an operation that goes over another client's connection. Such an
// operation is held until it is complete, or lets others wait for its answer. A client may wait for an
// acknowledgement after 128 packets (RXE_MAX_UNACKED_PSNS).
func (h *shelf) longest() uint32 { return min(uint32(h.Cap())/4, 64) }

// mayHold reports whether one more frame of flow f may be held: f's held frames are fewer than half of the free
// room, and clientMayHold is true. So k connections that hold frames without end leave 2/(k+2) of all room to other
// connections (Choudhury and Hahne, dynamic queue length thresholds, 1998).
func (h *shelf) mayHold(f *flow) bool {
	return 2*(f.stall.Len()+f.early.Len()+int(h.of[h.r.index(f)].kept)) < h.Cap()-h.Len() && h.clientMayHold(f)
}

// clientMayHold reports whether one more frame of flow f's client may be held: the held frames of all connections from
// the client's address are fewer than twice the free room. So one address leaves a third of all room to
// other clients, however many connections it has.
func (h *shelf) clientMayHold(f *flow) bool {
	return int(h.hosts[h.host(f)]) < 2*(h.Cap()-h.Len())
}

// host returns the index in hosts of the count of f's client. Clients whose addresses have the same hash share a count,
// and with it the bound.
func (h *shelf) host(f *flow) uint8 {
	if w := &h.of[h.r.index(f)]; w.tallied != 0 {
		return w.host
	}
	a := h.r.row(f).Client.Addr.As16()
	return uint8(hash((be.Uint64(a[:]) ^ be.Uint64(a[8:])<<1) ^ h.seed))
}

// tally updates the count of f's client in hosts after a queue of f has changed. Frames that remain of a connection
// that is gone stay in its client's count.
func (h *shelf) tally(f *flow) {
	w := &h.of[h.r.index(f)]
	held := int32(f.stall.Len()+f.late.Len()+f.early.Len()) + w.kept
	if held != w.tallied {
		w.host = h.host(f)
		h.hosts[w.host] += held - w.tallied
		w.tallied = held
	}
}
