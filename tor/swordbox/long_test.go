package swordbox

import (
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
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

// The box remembers requests back over less than half of all PSNs, so that a request that a client repeats is
// found.
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

// A READ takes as many PSNs as its answer has packets, up to half of all PSNs. All packets of the answer,
// from the first to the last, go to its client, and so do repetitions from its middle on. The requests before
// it and behind it stay as they were.
func TestVastRead(t *testing.T) {
	for _, length := range []uint32{20 << 20, 1 << 30, 1 << 31} {
		for _, alike := range []bool{false, true} { // both ends count alike
			t.Run(fmt.Sprint(length, alike), func(t *testing.T) { testVastRead(t, length, alike) })
		}
	}
}

func testVastRead(t *testing.T, length uint32, alike bool) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a := r.join()
	if !alike { // another one's operation goes over its connection
		b := r.join()
		one(t, b.write(lowest, 3).Out["b"])
		one(t, a.ack().Out["a"])
	}
	for range 3 {
		one(t, a.write(lowest, 7).Out["b"])
		one(t, a.ack().Out["a"])
	}
	n := (*r.box().nodes.Load())[0]
	slot, _ := n.conns.Find(conn.AddrFrom(a.ip), a.cqpn)
	fl := &n.flows[slot]
	for k := fl.first; k != fl.tail; k++ { // as if long READs had come behind them
		n.op(fl, k).cpsn = psnAdd(n.op(fl, k).cpsn, -(3<<20)&hdr.PSNMask)
	}
	first, packets := a.psn, length/256
	request := one(t, a.read(lowest, length).Out["b"])
	at := a.spsn
	if moved := at != first; moved == alike {
		t.Fatalf("the ends count alike: %v", !moved)
	}
	same(t, []graphtest.Frame{{Bytes: request}}, a.made(hdr.ReadRequest, at, reth(lowest, testRKey, length), nil))
	o := n.oldest(fl)
	op := hdr.ReadRespFirst
	for _, k := range []uint32{0, 1, packets / 3, packets / 2, packets - 70000, packets - 2, packets - 1} {
		var ext []byte
		if k == packets-1 {
			op = hdr.ReadRespLast
		}
		if op != hdr.ReadRespMiddle {
			ext = aeth(hdr.SynACK, a.smsn+1)
		}
		o.got = k // as if all before it had come
		out := one(t, r.Push("b", a.response(op, psnAdd(at, k), ext, make([]byte, 256))).Out["a"])
		var f hdr.Frame
		if hdr.Parse(out, &f); f.BTHOf(out).PSN() != psnAdd(first, k) {
			t.Fatalf("packet %d came as %s", k, text(out))
		}
		if op = hdr.ReadRespMiddle; k == packets-1 {
			break
		}
		// Its client asks again, from the next packet on.
		left := reth(lowest+uint64(k+1)*256, testRKey, length-(k+1)*256)
		same(t, r.Push("a", a.made(hdr.ReadRequest, psnAdd(first, k+1), left, nil)).Out["b"], a.made(hdr.ReadRequest, psnAdd(at, k+1), left, nil))
		if k == 1 && alike { // a request behind it makes the box forget what is long before it anyway
			if out := a.write(lowest, 8).Out["b"]; (len(out) == 0) != (packets > mostUnacked) {
				t.Errorf("behind %d PSNs %d requests are sent on", packets, len(out))
			}
		}
	}
	a.spsn, a.smsn = psnAdd(at, packets), a.smsn+1
	if alike {
		one(t, a.ack().Out["a"])
	}
	left := reth(lowest+256, testRKey, length-256)
	if n := len(r.Push("a", a.made(hdr.ReadRequest, psnAdd(first, 1), left, nil)).Out["b"]); n != 1 {
		t.Errorf("a repetition of a READ that was answered is sent on as %d", n)
	}
}
