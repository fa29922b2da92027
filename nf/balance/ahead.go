package balance

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// IPv4 connections that have a place are decided (package offload): their frames get the same addresses as long
// as the connection has this place and this backend. Each worker has places of its own, so that nothing is
// decided in a graph of several workers.

// decide adds a Part to the draft of frame x, which belongs to the connection in b.place.
func (b *balance) decide(c *graph.Ctx, in int, x *packet.Buf) {
	if ref := uint32(b.place); b.offload && b.place >= 0 && b.conns.At(b.place).Key.net == hdr.NetIPv4 && b.Decides(ref) {
		c.Decide(x, offload.Part{Owner: b, Ref: ref, In: in, State: b.State(ref)})
	}
}

// lead takes over what runs flows in front of the graph. What was there before has ended.
func (b *balance) lead(c *graph.Ctx) {
	if t := c.Ahead(); t != nil {
		b.conns.ahead = t
	}
}

// Decides implements offload.Owner: not while the connection is to move, or its backend's next segment is awaited.
func (b *balance) Decides(ref uint32) bool {
	if !b.conns.Has(int(ref)) {
		return false
	}
	c := &b.conns.At(int(ref)).Val
	return c.life&awaited == 0 && !b.moves(c.backend)
}

// State implements offload.Stater: which connection it is, and its backend.
func (b *balance) State(ref uint32) uint64 {
	p := b.conns.At(int(ref))
	return hdr.Fold(p.Key.hash(), uint64(p.Val.backend))
}

// Flows implements offload.Owner.
func (b *balance) Flows(ref uint32) *offload.Flows { return &b.conns.At(int(ref)).Val.flows }

// Used implements offload.Owner.
func (b *balance) Used(ref uint32, u *offload.Usage) {
	c := &b.conns.At(int(ref)).Val
	c.seen = max(c.seen, u.Newest())
}

// moves reports whether connections of a backend go to others when their clients send.
func (b *balance) moves(who uint16) bool { return b.ondown == moveDown && !b.alive(who) }

// recall takes frames of connections that are to move back from the kernel, some places at a time: as many as a breath has time for.
func (b *balance) recall() {
	const places, withdrawn = 4096, 256
	end, left := min(b.recalled+places, b.conns.Places()), withdrawn
	for i := b.conns.NextBefore(b.recalled, end); i >= 0; i = b.conns.NextBefore(i+1, end) {
		if b.moves(b.conns.At(i).Val.backend) && b.conns.withdraw(i) {
			if left--; left == 0 {
				end = i + 1
			}
		}
	}
	if b.recalled = end; end == b.conns.Places() {
		b.recalls = false
	}
}

// withdraw takes frames of the connection in place i back from the kernel, and returns false if the kernel has none.
func (t *conns) withdraw(i int) bool {
	f := &t.At(i).Val.flows
	if !f.Any() {
		return false
	}
	t.ahead.Withdraw(f)
	return true
}

// since is when the connection in place i had its last frame. The kernel is asked when it seems to be idle.
func (t *conns) since(o offload.Owner, i int, now clock.Time, idle clock.Duration) clock.Time {
	c := &t.At(i).Val
	if now.Sub(c.seen) > idle && c.flows.Any() {
		t.ahead.Ask(o, uint32(i), &c.flows)
	}
	return c.seen
}

// decides is graph.Kind.Decides.
func decides(args graph.Args) int {
	if s, err := parse(args); err == nil && s.offload && s.vip[0].IsValid() {
		return s.conns
	}
	return 0
}
