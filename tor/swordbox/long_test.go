package swordbox

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A connection that carries others' operations, while its own client is quiet,
// does so for more than half of all PSNs.
func TestQuietOwner(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
	fl := &n.flows[slot]
	msn := uint32(1)
	for _, ago := range []uint32{1 << 22, 1<<23 - 20, 1<<23 + 20} {
		fl.start = psnAdd(fl.next, -ago&hdr.PSNMask)
		psn := b.psn
		eth := atomicETH(0x7000, testRKey, 5, 4)
		same(t, b.request(hdr.CompareSwap, eth, nil).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, eth, nil))
		msn++
		same(t, a.atomicAck(4).Out["a"], b.atomicAckTo(psn, msn, 4))
	}
}

// What is remembered of requests goes back by less than half of all PSNs: what
// a client repeats is found.
func TestLongPast(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a := r.join()
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
	fl := &n.flows[slot]
	for range 10 {
		one(t, a.write(lowest, 7).Out["b"])
		one(t, a.ack().Out["a"])
	}
	for k := fl.first; k != fl.tail; k++ { // as if long READs had come behind them
		o := n.op(fl, k)
		o.cpsn = psnAdd(o.cpsn, -(3<<22)&hdr.PSNMask)
	}
	b := one(t, a.write(lowest, 8).Out["b"])
	same(t, r.Push("a", b).Out["b"], b)
}
