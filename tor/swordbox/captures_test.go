package swordbox

import (
	"bytes"
	"encoding/binary"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
)

var update = flag.Bool("update", false, "write the inputs of the golden captures anew")

// TestCaptures: the inputs of the golden captures tests/pcap/swordbox-* are what
// these scenes say; go test ./tor/swordbox -run TestCaptures -update writes them.
func TestCaptures(t *testing.T) {
	for name, x := range map[string]struct {
		server string
		args   graph.Args
		scene  func(t *testing.T, r *rig)
	}{
		"multiplex":      {"10.9.0.1", graph.Args{"mode": "mux", "track": "20000+1000"}, multiplexScene},
		"multiplex-ipv6": {"fd00::9:1", graph.Args{"mode": "mux", "track": "20000+1000"}, multiplexScene},
		"replace":        {"10.9.0.1", graph.Args{"track": "20000+1000"}, replaceScene},
		"failures":       {"10.9.0.1", graph.Args{"track": "20000+1000"}, failureScene},
		"guard":          {"10.9.0.1", graph.Args{"guard": "drop", "bad": "drop"}, guardScene},
	} {
		t.Run(name, func(t *testing.T) {
			var tape []taped
			r := rigOf(t, x.args, netip.MustParseAddr(x.server))
			r.tape = &tape
			x.scene(t, r)
			dir := filepath.Join("..", "..", "tests", "pcap", "swordbox-"+name)
			for side, file := range map[string]string{"a": "clients.pcap", "b": "server.pcap"} {
				got := capture(t, tape, side)
				path := filepath.Join(dir, file)
				if *update {
					if err := os.MkdirAll(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s is not what the scene says", path)
				}
			}
		})
	}
}

// capture is a capture file of the frames that went in on one side.
func capture(t *testing.T, tape []taped, side string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcap.NewWriter(&b, pcap.NewHeader(pcap.Classic))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tape {
		if x.in == side {
			if err := w.Write(&pcap.Packet{Time: x.at, Data: x.b, OrigLen: uint32(len(x.b))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// blocks is n bytes that tell where they belong.
func blocks(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i/8) ^ byte(i)<<5
	}
	return b
}

// multiplexScene: every sort of operation over a shared connection, and
// acknowledgements for several clients.
func multiplexScene(t *testing.T, r *rig) {
	const va, long = 0x7000, 0x20000
	a, b, c := r.join(), r.join(), r.join()
	for _, x := range []struct {
		op     hdr.Opcode
		eth    []byte
		answer uint64
	}{
		{hdr.CompareSwap, atomicETH(va, testRKey, 2, 1), 1},
		{hdr.FetchAdd, atomicETH(va, testRKey, 5, 0), 2},
		{hdr.MaskedCompSwap, maskedETH(va, testRKey, 0x10, 0, 0xF0, 0xF0), 7},
		{hdr.MaskedFetchAdd, maskedETH(va, testRKey, 1, 0, 1, 0), 0x17},
	} {
		one(t, b.request(x.op, x.eth, nil).Out["b"])
		one(t, a.atomicAck(x.answer).Out["a"])
	}
	one(t, c.write(va, 9).Out["b"])
	one(t, a.cas(va, 9, 10).Out["b"])
	one(t, b.write(va, 11).Out["b"])
	a.ack()
	a.atomicAck(9)
	a.ack()
	one(t, b.read(va, 8).Out["b"])
	a.answer(hdr.ReadRespOnly, nil, little(11))
	// A READ of three packets and a WRITE of three.
	one(t, c.read(long, 600).Out["b"])
	d := blocks(600)
	a.answer(hdr.ReadRespFirst, nil, d[:256])
	r.Push("b", a.response(hdr.ReadRespMiddle, a.spsn, nil, d[256:512]))
	a.spsn++
	a.smsn--
	a.answer(hdr.ReadRespLast, nil, d[512:])
	c.request(hdr.WriteFirst, reth(long, testRKey, 600), d[:256])
	one(t, b.write(va, 12).Out["b"])
	a.ack()
	c.request(hdr.WriteMiddle, nil, d[256:512])
	if n := len(c.request(hdr.WriteLast, nil, d[512:]).Out["b"]); n != 3 {
		t.Fatalf("%d packets of the WRITE went on", n)
	}
	a.spsn += 2
	one(t, a.ack().Out["a"])
	// One acknowledgement for all.
	for i := range uint64(3) {
		one(t, a.write(va, i).Out["b"])
		one(t, b.write(va, i).Out["b"])
		one(t, c.write(va, i).Out["b"])
	}
	a.spsn += 8
	a.smsn += 8
	if n := len(a.ack().Out["a"]); n != 3 {
		t.Fatalf("%d acknowledgements", n)
	}
}

// replaceScene: atomics that become WRITEs, and what makes a value known and
// unknown.
func replaceScene(t *testing.T, r *rig) {
	const va, long = 0x7000, 0x20000
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	for _, x := range []struct {
		who *party
		op  hdr.Opcode
		eth []byte
	}{
		{b, hdr.CompareSwap, atomicETH(va, testRKey, 0x1122334455667788, 1)},
		{c, hdr.CompareSwap, atomicETH(va, testRKey, 5, 1)}, // fails
		{a, hdr.FetchAdd, atomicETH(va, testRKey, 0x10, 0)},
		{b, hdr.FetchAdd, atomicETH(va, testRKey, 0, 0)},
		{c, hdr.MaskedCompSwap, maskedETH(va, testRKey, 0x00, 0x88, 0xFF, 0x0F)},
		{b, hdr.MaskedCompSwap, maskedETH(va, testRKey, 0xFF, 0x01, 0xFF, 0xFF)}, // fails
	} {
		one(t, x.who.request(x.op, x.eth, nil).Out["b"])
		one(t, a.ack().Out["a"])
	}
	// A repetition: the answer is on record.
	one(t, r.Push("a", b.made(hdr.MaskedCompSwap, b.psn-1, maskedETH(va, testRKey, 0xFF, 0x01, 0xFF, 0xFF), nil)).Out["a"])
	// Several under way, one acknowledgement.
	one(t, c.write(va, 7).Out["b"])
	one(t, b.cas(va, 7, 8).Out["b"])
	one(t, a.cas(va, 7, 9).Out["b"])
	a.spsn += 2
	a.smsn += 2
	a.ack()
	// A long WRITE over a word: the next atomic tells the value that the WRITE left there.
	b.learn(a, long+8, 3)
	d := blocks(300)
	one(t, c.request(hdr.WriteOnly, reth(long, testRKey, 64), d[:64]).Out["b"])
	a.ack()
	b.learn(a, long+8, binary.LittleEndian.Uint64(d[8:]))
	one(t, b.cas(long+8, binary.LittleEndian.Uint64(d[8:]), 1).Out["b"])
	a.ack()
	// A stranger writes: the next atomic goes unchanged, and no value is known for a while.
	x := r.client()
	x.write(va, 20)
	one(t, b.cas(va, 8, 9).Out["b"])
	one(t, a.atomicAck(20).Out["a"])
	r.Clock.Advance(time.Millisecond)
	one(t, b.cas(va, 20, 21).Out["b"])
	one(t, a.atomicAck(20).Out["a"])
	one(t, c.cas(va, 21, 22).Out["b"])
	one(t, a.ack().Out["a"])
}

// failureScene: lost requests are sent again, and a refused request ends the connection of its owner.
func failureScene(t *testing.T, r *rig) {
	const va, long, far = 0x7000, 0x20000, 0x30000
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	// The server misses three of a shared connection: all are sent again here.
	s := a.spsn
	one(t, b.cas(va, 1, 2).Out["b"])
	one(t, c.request(hdr.WriteOnly, reth(long, testRKey, 64), blocks(64)).Out["b"])
	one(t, b.cas(va, 2, 3).Out["b"])
	if n := len(a.nak(s, hdr.SynNAKSequence).Out["b"]); n != 3 {
		t.Fatalf("%d requests were sent again", n)
	}
	a.spsn += 2
	a.smsn += 2
	if n := len(a.ack().Out["a"]); n != 3 {
		t.Fatalf("%d answers", n)
	}
	// Two that are on their client's own connection: it is asked for them.
	q := c.psn
	s = c.spsn
	for k := range uint32(2) {
		one(t, c.request(hdr.WriteOnly, reth(far+64*uint64(k), testRKey, 64), blocks(64)).Out["b"])
	}
	one(t, c.nak(s, hdr.SynNAKSequence).Out["a"])
	r.Clock.Advance(time.Millisecond)
	for k := range uint32(2) {
		one(t, r.Push("a", c.made(hdr.WriteOnly, q+k, reth(far+64*uint64(k), testRKey, 64), blocks(64))).Out["b"])
		one(t, c.ack().Out["a"])
	}
	// A client's request is lost on its way here.
	b.psn++
	one(t, b.write(va, 5).Out["a"])
	r.Clock.Advance(time.Millisecond)
	b.psn -= 2
	one(t, b.write(va, 4).Out["b"])
	one(t, b.write(va, 5).Out["b"])
	one(t, a.ack().Out["a"])
	one(t, a.ack().Out["a"])
	// The receiver is not ready: no operation of another client is behind the SEND.
	p := a.psn
	one(t, a.request(hdr.SendOnly, nil, blocks(16)).Out["b"])
	one(t, c.write(va, 6).Out["b"])
	one(t, c.ack().Out["a"])
	one(t, a.nak(a.spsn, hdr.SynRNR|5).Out["a"])
	r.Clock.Advance(time.Millisecond)
	one(t, r.Push("a", a.made(hdr.SendOnly, p, nil, blocks(16))).Out["b"])
	one(t, a.ack().Out["a"])
	// A late refusal is ignored. A refusal that counts makes a send again, and is final for b.
	none0(t, c.nak(c.spsn-3, hdr.SynNAKSequence).Out["a"])
	p = a.psn
	one(t, b.cas(va, 6, 7).Out["b"])
	one(t, a.cas(va, 7, 8).Out["b"])
	if n := len(c.nak(c.spsn, hdr.SynNAKRemoteAccess).Out["a"]); n != 2 {
		t.Fatalf("%d were told", n)
	}
	one(t, b.cas(va, 6, 7).Out["a"])
	r.Clock.Advance(time.Millisecond)
	one(t, r.Push("a", a.made(hdr.CompareSwap, p, atomicETH(va, testRKey, 8, 7), nil)).Out["b"])
	one(t, a.atomicAck(6).Out["a"])
}

// guardScene: frames that no correct sender sends.
func guardScene(t *testing.T, r *rig) {
	const va = 0x7000
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	one(t, b.write(va, 5).Out["b"]) // under way
	evil := func(p []byte, f *hdr.Frame) { f.IPv4Of(p)[15] = 0x77 }
	push := func(in string, b []byte) { r.Push(in, b) }
	push("a", change(b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66)), evil))
	push("a", change(a.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: a.sqpn}), evil))
	push("b", a.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
	push("b", a.response(hdr.Acknowledge, a.spsn+5, aeth(hdr.SynACK, 9), nil))
	push("b", a.response(hdr.AtomicAck, a.spsn+5, binary.BigEndian.AppendUint64(aeth(hdr.SynACK, 9), 66), nil))
	push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil))
	push("a", b.made(hdr.WriteOnly, b.psn+9, reth(va, testRKey, 8), little(66)))
	push("a", b.made(hdr.ReadRequest, b.psn-1, reth(va, testRKey, 8), nil))
	broken := b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66))
	broken[len(broken)-1] ^= 1
	push("a", broken)
	broken = b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66))
	broken[24]++
	push("a", broken)
	push("a", b.made(hdr.WriteOnly, b.psn, reth(va, testRKey, 8), little(66))[:60])
	// Correct frames go on. b is asked for what it seemed to have lost.
	if n := len(a.ack().Out["a"]); n != 2 {
		t.Fatalf("%d answers", n)
	}
	one(t, b.write(va, 6).Out["b"])
	one(t, a.ack().Out["a"])
}
