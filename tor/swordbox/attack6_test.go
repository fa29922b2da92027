package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// The answer to a's READ was lost, and a repeats it while b's atomic is under way over a's connection. The server does not find the region any more, and refuses the repetition under
// its old PSN (NAK remote access error; rxe: read_reply, rxe_recheck_mr): its queue pair is in the error state. a has that NAK, as on a wire, and b, which did nothing wrong, has its atomic
// executed over another connection or is asked for it again.
func TestAttack6RepeatedReadRefused(t *testing.T) {
	for _, isWrite := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind a WRITE %v", isWrite), func(t *testing.T) { repeatedReadRefused(t, isWrite) })
	}
}

func repeatedReadRefused(t *testing.T, isWrite bool) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7008, 1)
	p, sp := a.psn, a.spsn
	a.reads()
	if isWrite { // PSN sp+1 of a's connection
		one(t, b.write(0x7008, 2).Out["b"])
	} else {
		one(t, b.cas(0x7008, 1, 2).Out["b"])
	}
	again := a.made(hdr.ReadRequest, p, reth(lowest, testRKey, 8), nil)
	refused := sp
	got := one(t, r.Push("a", again).Out["b"])
	var f hdr.Frame
	hdr.Parse(got, &f)
	if refused = f.BTHOf(got).PSN(); refused != sp && refused != sp+2 {
		t.Fatal(text(got))
	}
	told := func(fs [][]byte, c *party) (syn hdr.Syndrome, yes bool) {
		for _, x := range fs {
			var f hdr.Frame
			if hdr.Parse(x, &f) == hdr.IsRoCE && f.Op == hdr.Acknowledge && f.BTHOf(x).DestQP() == c.cqpn && !f.AETHOf(x).Syndrome().ACK() {
				return f.AETHOf(x).Syndrome(), true
			}
		}
		return 0, false
	}
	var out [][]byte
	for _, x := range r.Push("b", a.response(hdr.Acknowledge, refused, aeth(hdr.SynNAKRemoteAccess, a.smsn), nil)).Out["a"] {
		out = append(out, x.Bytes)
	}
	if syn, ok := told(out, a); !ok || syn != hdr.SynNAKRemoteAccess {
		t.Logf("the server refused the READ under PSN %d (sent first under %d), and its client is told nothing", refused, sp)
	}
	if n := r.Counter("connections-failed"); n != 1 {
		t.Errorf("connections-failed: %d: the server's queue pair is in the error state, and others' atomics go on waiting for it", n)
	}
	for range 200 { // the server answers b's own connection, and not a's any more
		r.Clock.Advance(2 * time.Millisecond)
		for _, x := range r.Advance(0).Out["a"] {
			out = append(out, x.Bytes)
		}
		for _, x := range r.Push("a", b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7008, testRKey, 2, 1), nil)).Out["a"] {
			out = append(out, x.Bytes)
		}
		for _, x := range r.Push("b", b.response(hdr.Acknowledge, b.spsn-1, aeth(hdr.SynACK, b.smsn), nil)).Out["a"] {
			out = append(out, x.Bytes)
		}
	}
	if syn, ok := told(out, b); ok && syn == hdr.SynNAKRemoteOperation {
		t.Error("b's atomic ended with a REMOTE OPERATIONAL ERROR")
	}
}

// The server is asked to answer a READ again under its old PSN, and does. Then the client's READs and WRITEs
// use all PSNs once (four READs of 2^22 PSNs each: one gigabyte at a path MTU of 256), and its next READ has
// the PSN of the first one. The answer under that PSN belongs to the new READ.
func TestAttack6ReplayComesRound(t *testing.T) {
	r := newRig(t, graph.Args{"mode": "mux"})
	a := r.join()
	p, sp := a.psn, a.spsn
	a.reads()
	one(t, a.request(hdr.SendOnly, nil, make([]byte, 8)).Out["b"])
	again := a.made(hdr.ReadRequest, p, reth(lowest, testRKey, 8), nil)
	one(t, r.Push("a", again).Out["b"])
	one(t, r.Push("b", a.response(hdr.ReadRespOnly, sp, aeth(hdr.SynACK, a.smsn), little(7))).Out["a"])
	one(t, a.ack().Out["a"])
	n := (*r.box().nodes.Load())[0]
	fl := func() *flow {
		for i := range n.flows {
			if n.flows[i].synced {
				return &n.flows[i]
			}
		}
		return nil
	}()
	read := func(k uint32) { // of k PSNs: all packets of its answer but the last came
		t.Helper()
		one(t, r.Push("a", a.made(hdr.ReadRequest, a.psn, reth(lowest, testRKey, k*256), nil)).Out["b"])
		o := n.oldest(fl)
		o.got = k - 1
		a.psn, a.spsn, a.smsn = psnAdd(a.psn, k), psnAdd(a.spsn, k), a.smsn+1
		code := hdr.ReadRespLast
		if k == 1 {
			code = hdr.ReadRespOnly
		}
		one(t, r.Push("b", a.response(code, psnAdd(a.spsn, hdr.PSNMask), aeth(hdr.SynACK, a.smsn), make([]byte, 256))).Out["a"])
		if fl.open != 0 {
			t.Fatalf("a READ of %d packets was answered, and is open", k)
		}
	}
	left := (1 << 24) - (a.psn-p)&hdr.PSNMask
	for left > 0 {
		k := min(left, 1<<22)
		read(k)
		left -= k
	}
	if a.psn != p {
		t.Fatal(a.psn, p)
	}
	one(t, a.read(lowest, 8).Out["b"])
	one(t, a.answer(hdr.ReadRespOnly, nil, little(9)).Out["a"])
	if fl.open != 0 || fl.oldest != none {
		t.Errorf("a READ was answered, and %d are open: its answer was taken for another one's, of 2^24 PSNs ago", fl.open)
	}
	one(t, a.write(lowest+64, 1).Out["b"])
	if got := a.ack().Out["a"]; len(got) == 0 {
		t.Error("the WRITE behind it was acknowledged by the server, and its client is told nothing")
	}
}
