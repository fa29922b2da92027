package swordbox

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// frame is a frame to make.
type frame struct {
	srcMAC, dstMAC [6]byte
	src, dst       netip.Addr
	sport          uint16
	sum            uint16 // UDP checksum
	op             hdr.Opcode
	pkey           uint16
	qpn, psn       uint32
	ext, payload   []byte
	ack            bool
	tags           []uint16 // VIDs, the outermost first
	v1             bool
	hops           uint8 // 0: 64
}

// bytes is the frame, with right lengths and checksums.
func (f frame) bytes() []byte {
	l3, et := hdr.IPv4Len, uint16(hdr.EtherIPv4)
	if f.src.Is6() {
		l3, et = hdr.IPv6Len, hdr.EtherIPv6
	}
	udp := hdr.UDPLen
	if f.v1 {
		l3, udp, et = hdr.IPv6Len, 0, hdr.EtherRoCEv1
	}
	pad := -len(f.payload) & 3
	n := 14 + l3 + udp + hdr.BTHLen + len(f.ext) + len(f.payload) + pad + hdr.ICRCLen
	b := make([]byte, n)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: f.dstMAC, Src: f.srcMAC, EtherType: et})
	switch {
	case f.v1:
		hdr.GRH(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 54), NextHeader: hdr.ProtoBTH, HopLimit: 64, Src: f.src, Dst: f.dst})
	case f.src.Is6():
		hdr.IPv6(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 54), NextHeader: hdr.ProtoUDP, HopLimit: 64, Src: f.src, Dst: f.dst})
	default:
		hdr.IPv4(b[14:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(n - 14), DF: true, TTL: cmp.Or(f.hops, 64), Protocol: hdr.ProtoUDP, Src: f.src, Dst: f.dst})
	}
	u := b[14+l3:]
	if !f.v1 {
		hdr.UDP(u).Encode(&hdr.UDPFields{SrcPort: f.sport, DstPort: hdr.RoCEv2Port, Len: uint16(n - 14 - l3)})
		hdr.UDP(u).SetChecksum(f.sum)
	}
	u = u[udp:]
	hdr.BTH(u).Encode(&hdr.BTHFields{OpCode: f.op, PKey: f.pkey, DestQP: f.qpn, PSN: f.psn & hdr.PSNMask, Ack: f.ack, Pad: pad})
	copy(u[hdr.BTHLen:], f.ext)
	copy(u[hdr.BTHLen+len(f.ext):], f.payload)
	for _, id := range slices.Backward(f.tags) {
		b = slices.Insert(b, 12, 0x81, 0, byte(id>>8), byte(id))
	}
	var p hdr.Frame
	if why := hdr.Parse(b, &p); why != hdr.IsRoCE {
		panic(why.String())
	}
	hdr.SetICRC(b, &p)
	return b
}

func reth(va uint64, rkey, n uint32) []byte {
	h := hdr.RETH(make([]byte, hdr.RETHLen))
	h.SetVA(va)
	h.SetRKey(rkey)
	h.SetDMALength(n)
	return h
}

func atomicETH(va uint64, rkey uint32, swap, compare uint64) []byte {
	h := hdr.AtomicETH(make([]byte, hdr.AtomicETHLen))
	h.SetVA(va)
	h.SetRKey(rkey)
	h.SetSwap(swap)
	h.SetCompare(compare)
	return h
}

func maskedETH(va uint64, rkey uint32, swap, compare, swapMask, compareMask uint64) []byte {
	h := hdr.MaskedAtomicETH(make([]byte, hdr.MaskedAtomicETHLen))
	h.SetVA(va)
	h.SetRKey(rkey)
	h.SetSwap(swap)
	h.SetCompare(compare)
	h.SetSwapMask(swapMask)
	h.SetCompareMask(compareMask)
	return h
}

func aeth(s hdr.Syndrome, msn uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(s)<<24|msn&0xFFFFFF)
}

// little is a number as it lies in the server's memory.
func little(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// party is a client with one connection. psn is the next one of its requests,
// spsn the next one that its queue pair at the server expects, smsn how many
// messages that has counted.
type party struct {
	r          *rig
	n          int
	mac        [6]byte
	ip         netip.Addr
	sport      uint16 // of its requests
	back       uint16 // of the server's answers
	cqpn, sqpn uint32
	pkey       uint16
	psn, spsn  uint32
	smsn, msn  uint32
	// What its connection manager says of its patience: the code of its timeout, 0 without end, and
	// how often it asks again.
	timeout, retries uint8
	isUsed           bool // see use
}

// rig speaks for clients and server.
type rig struct {
	*graphtest.Test
	t         testing.TB
	serverMAC [6]byte
	server    netip.Addr
	mtu       int
	resources uint8
	start     uint32 // first PSN of all requests
	reached   uint32 // how often reach was called
	clients   []*party
	tape      *[]taped // what went in, when not nil
	args      graph.Args
	tags      []uint16 // of all frames
	v1        bool
	hops      uint8 // of the server's answers over IPv4; 0: 64
}

// taped is a frame that went in.
type taped struct {
	in string
	at clock.Time
	b  []byte
}

// Push gives the box frames, one microsecond after the frames before.
func (r *rig) Push(in string, frames ...[]byte) graphtest.Result {
	r.t.Helper()
	r.Clock.Advance(time.Microsecond)
	if r.tape != nil {
		for _, b := range frames {
			*r.tape = append(*r.tape, taped{in, r.Clock.Now(), bytes.Clone(b)})
		}
	}
	return r.Test.Push(in, frames...)
}

const testRKey = 0x1234

func newRig(t testing.TB, args graph.Args) *rig {
	t.Helper()
	return rigOf(t, args, netip.MustParseAddr("10.9.0.1"))
}

func rigOf(t testing.TB, args graph.Args, server netip.Addr) *rig {
	t.Helper()
	a := graph.Args{"replace": "learnt", "settle": "100us", "giveup": "50ms", "alive": "1s", "verify": "1h", "conns": "8", "window": "16", "words": "18", "hold": "32"}
	maps.Copy(a, args)
	return &rig{Test: graphtest.New(t, *Kind(), a), t: t, serverMAC: [6]byte{2, 9, 0, 0, 0, 1}, server: server, mtu: 256, resources: 4, start: 1000, args: a}
}

// client is a new client, of which nothing is known.
func (r *rig) client() *party {
	c := r.party(len(r.clients))
	r.clients = append(r.clients, c)
	return c
}

// lowest and highest are the first and the last word of the server's memory
// that the box has seen reached when the first client joins.
const lowest, highest = 0x1000, 0x3FFF8

// reacher is the number of reach's client.
const reacher = 99

// reach has a client that leaves again reach both ends of the server's memory in
// every way, over its own connection: what others do there may move from now on.
func (r *rig) reach() {
	r.t.Helper()
	c := r.party(reacher).connect()
	r.reached++
	c.warm()
	for _, va := range []uint64{lowest, highest} {
		one(r.t, c.write(va, 0).Out["b"])
		one(r.t, c.ack().Out["a"])
		one(r.t, c.read(va, 8).Out["b"])
		one(r.t, c.answer(hdr.ReadRespOnly, nil, little(0)).Out["a"])
		one(r.t, c.request(hdr.MaskedFetchAdd, maskedETH(va, testRKey, 0, 0, 0, 0), nil).Out["b"])
		one(r.t, c.atomicAck(0).Out["a"])
	}
	one(r.t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
	one(r.t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
}

func (r *rig) party(n int) *party {
	ip := r.server.As16()
	ip[14] += byte(n >> 7)
	ip[15] = byte(0x10 + n&0x7F)
	c := &party{r: r, n: n, mac: [6]byte{2, 1, 0, 0, 0, byte(n)}, ip: netip.AddrFrom16(ip).Unmap(), sport: uint16(0xC000 + n), back: uint16(0xD000 + n),
		cqpn: uint32(0x100 + n), sqpn: uint32(0x200 + n), pkey: uint16(0x8001 + n), psn: r.start + uint32(n)*0x1000, msn: 0}
	c.psn &= hdr.PSNMask
	c.spsn = c.psn
	return c
}

// cm is a datagram of the connection manager about c's connection.
func (c *party) cm(toServer bool, f hdr.CMFields) []byte {
	f.TransactionID = uint64(c.n) + 1
	f.LocalCommID, f.RemoteCommID = uint32(0xA0+c.n), uint32(0xB0+c.n)
	if f.AttributeID == hdr.ConnectRequest {
		f.RemoteCommID = 0
	}
	x := frame{tags: c.r.tags, v1: c.r.v1, srcMAC: c.mac, dstMAC: c.r.serverMAC, src: c.ip, dst: c.r.server}
	if !toServer {
		f.LocalCommID, f.RemoteCommID = f.RemoteCommID, f.LocalCommID
		x = frame{tags: c.r.tags, v1: c.r.v1, srcMAC: c.r.serverMAC, dstMAC: c.mac, src: c.r.server, dst: c.ip}
	}
	x.sport, x.op, x.pkey, x.qpn = 0xC001, hdr.UDSendOnly, 0xFFFF, 1
	x.ext = make([]byte, hdr.DETHLen)
	hdr.DETH(x.ext).SetQKey(hdr.GSIQKey)
	hdr.DETH(x.ext).SetSrcQP(1)
	x.payload = make([]byte, hdr.MADLen)
	hdr.CM(x.payload).Encode(&f)
	return x.bytes()
}

func (c *party) connectRequest() []byte {
	first := uint32(7)
	if c.n == reacher {
		first += c.r.reached // each of its connections has another one
	}
	return c.cm(true, hdr.CMFields{AttributeID: hdr.ConnectRequest, PKey: c.pkey, PathMTU: c.r.mtu, LocalGID: c.ip, RemoteGID: c.r.server, LocalQPN: c.cqpn,
		StartingPSN: first, ResponderResources: c.r.resources, InitiatorDepth: c.r.resources, LocalACKTimeout: c.timeout, RetryCount: c.retries})
}

// connect connects c by the connection manager's datagrams.
func (c *party) connect() *party {
	c.r.t.Helper()
	one(c.r.t, c.r.Push("a", c.connectRequest()).Out["b"])
	one(c.r.t, c.r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: c.sqpn, StartingPSN: c.psn, ResponderResources: c.r.resources, InitiatorDepth: c.r.resources})).Out["a"])
	one(c.r.t, c.r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.ReadyToUse})).Out["b"])
	return c
}

// join is a client that is connected, trusted, and known to be of the domain of
// testRKey: its server has answered a READ.
func (r *rig) join() *party {
	r.t.Helper()
	if len(r.clients) == 0 {
		r.reach()
	}
	return r.client().connect().proven()
}

// proven has the server execute READs, a WRITE and an atomic over c's own
// connection: it has all rights. To tests it counts as one message. The first READ shows that answers count.
func (c *party) proven() *party {
	c.r.t.Helper()
	c.smsn -= 3
	c.msn++
	c.reads()
	c.reads()
	c.writes()
	c.adds()
	return c
}

func (c *party) reads() {
	c.r.t.Helper()
	one(c.r.t, c.read(lowest, 8).Out["b"])
	one(c.r.t, c.answer(hdr.ReadRespOnly, nil, little(0)).Out["a"])
}

func (c *party) writes() {
	c.r.t.Helper()
	one(c.r.t, c.write(lowest+8, 0).Out["b"])
	one(c.r.t, c.ack().Out["a"])
}

func (c *party) adds() {
	c.r.t.Helper()
	one(c.r.t, c.request(hdr.MaskedFetchAdd, maskedETH(lowest, testRKey, 0, 0, 0, 0), nil).Out["b"])
	one(c.r.t, c.atomicAck(0).Out["a"])
}

// warm has an empty WRITE answered.
func (c *party) warm() {
	c.r.t.Helper()
	one(c.r.t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil).Out["b"])
	c.spsn++
	c.smsn++
	c.msn++
	one(c.r.t, c.r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil)).Out["a"])
}

// made is a request of c, as c sends it: with PSN psn.
func (c *party) made(op hdr.Opcode, psn uint32, ext, payload []byte) []byte {
	return frame{tags: c.r.tags, v1: c.r.v1, srcMAC: c.mac, dstMAC: c.r.serverMAC, src: c.ip, dst: c.r.server, sport: c.sport, op: op, pkey: c.pkey, qpn: c.sqpn, psn: psn,
		ext: ext, payload: payload, ack: op.Any(hdr.IsLast | hdr.IsOnly)}.bytes()
}

// moved is what the server must see of such a request on the connection of l.
func (c *party) moved(l *party, op hdr.Opcode, psn uint32, ext, payload []byte) []byte {
	return frame{tags: l.r.tags, v1: l.r.v1, srcMAC: l.mac, dstMAC: l.r.serverMAC, src: l.ip, dst: l.r.server, sport: l.sport, op: op, pkey: l.pkey, qpn: l.sqpn, psn: psn,
		ext: ext, payload: payload, ack: op.Any(hdr.IsLast | hdr.IsOnly)}.bytes()
}

// question asks the server whether c's end is there: a repetition of a request of long ago.
func (c *party) question() []byte {
	return c.moved(c, hdr.WriteOnly, (c.spsn-1-longSince)&hdr.PSNMask, reth(0, 0, 0), nil)
}

// response is an answer of the server on the connection of c, as the server
// sends it.
func (c *party) response(op hdr.Opcode, psn uint32, ext, payload []byte) []byte {
	return frame{tags: c.r.tags, v1: c.r.v1, srcMAC: c.r.serverMAC, dstMAC: c.mac, src: c.r.server, dst: c.ip, sport: c.back, op: op, pkey: c.pkey, qpn: c.cqpn, psn: psn,
		ext: ext, payload: payload, hops: c.r.hops}.bytes()
}

// request sends the next request of c.
func (c *party) request(op hdr.Opcode, ext, payload []byte) graphtest.Result {
	c.r.t.Helper()
	b := c.made(op, c.psn, ext, payload)
	c.psn++
	return c.r.Push("a", b)
}

func (c *party) write(va, v uint64) graphtest.Result {
	c.r.t.Helper()
	return c.request(hdr.WriteOnly, reth(va, testRKey, 8), little(v))
}

func (c *party) cas(va, compare, swap uint64) graphtest.Result {
	c.r.t.Helper()
	return c.request(hdr.CompareSwap, atomicETH(va, testRKey, swap, compare), nil)
}

func (c *party) read(va uint64, n uint32) graphtest.Result {
	c.r.t.Helper()
	r := c.request(hdr.ReadRequest, reth(va, testRKey, n), nil)
	if k := (n + uint32(c.r.mtu) - 1) / uint32(c.r.mtu); k > 1 {
		c.psn += k - 1
	}
	return r
}

// answer sends the server's answer to the oldest request that is not answered
// on the connection of c.
func (c *party) answer(op hdr.Opcode, ext, payload []byte) graphtest.Result {
	c.r.t.Helper()
	psn := c.spsn
	c.spsn++
	c.smsn++
	return c.r.Push("b", c.response(op, psn, append(aeth(hdr.SynACK, c.smsn), ext...), payload))
}

func (c *party) ack() graphtest.Result { c.r.t.Helper(); return c.answer(hdr.Acknowledge, nil, nil) }

// atomicAck answers an atomic.
func (c *party) atomicAck(original uint64) graphtest.Result {
	c.r.t.Helper()
	return c.answer(hdr.AtomicAck, binary.BigEndian.AppendUint64(nil, original), nil)
}

// nak is a negative answer on the connection of c.
func (c *party) nak(psn uint32, s hdr.Syndrome) graphtest.Result {
	c.r.t.Helper()
	return c.r.Push("b", c.response(hdr.Acknowledge, psn, aeth(s, c.smsn), nil))
}

// learn makes the word at va known, with value v, by a CAS of c over its
// shared connection l.
func (c *party) learn(l *party, va, v uint64) {
	c.r.t.Helper()
	one(c.r.t, c.cas(va, v+1, v+1).Out["b"])
	one(c.r.t, l.atomicAck(v).Out["a"])
	c.msn++
}

// one is the only frame of a list.
func one(t testing.TB, fs []graphtest.Frame) []byte {
	t.Helper()
	if len(fs) != 1 {
		t.Fatalf("%d frames came out, want 1%s", len(fs), show(fs))
	}
	return fs[0].Bytes
}

func none0(t testing.TB, fs []graphtest.Frame) {
	t.Helper()
	if len(fs) != 0 {
		t.Fatalf("%d frames came out, want none%s", len(fs), show(fs))
	}
}

func show(fs []graphtest.Frame) (s string) {
	for _, f := range fs {
		s += "\n\t" + text(f.Bytes) + " " + f.Reason
	}
	return s
}

// text tells what a frame says.
func text(b []byte) string {
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE {
		return why.String()
	}
	s := fmt.Sprintf("%v qpn %#x psn %d", f.Op, f.BTHOf(b).DestQP(), f.BTHOf(b).PSN())
	ext := f.Op.Info().Ext
	if ext&hdr.HasRETH != 0 {
		s += fmt.Sprintf(" va %#x len %d", f.RETHOf(b).VA(), f.RETHOf(b).DMALength())
	}
	if ext&hdr.HasAETH != 0 {
		s += fmt.Sprintf(" syndrome %#x msn %d", uint8(f.AETHOf(b).Syndrome()), f.AETHOf(b).MSN())
	}
	if ext&hdr.HasAtomicAckETH != 0 {
		s += fmt.Sprintf(" original %#x", f.AtomicAckETHOf(b).Original())
	}
	if ext&hdr.HasAtomicETH != 0 {
		h := f.AtomicETHOf(b)
		s += fmt.Sprintf(" va %#x swap %#x compare %#x", h.VA(), h.Swap(), h.Compare())
	}
	if hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
		s += " WRONG ICRC"
	}
	if f.Net == hdr.NetIPv4 && !f.IPv4Of(b).ChecksumOK() {
		s += " WRONG IP CHECKSUM"
	}
	return s
}

// same requires frames to be the ones wanted, byte for byte and in order.
func same(t testing.TB, got []graphtest.Frame, want ...[]byte) {
	t.Helper()
	if len(got) != len(want) {
		var w []graphtest.Frame
		for _, b := range want {
			w = append(w, graphtest.Frame{Bytes: b})
		}
		t.Fatalf("%d frames, want %d; got%s\nwant%s", len(got), len(want), show(got), show(w))
	}
	for i := range want {
		if !bytes.Equal(got[i].Bytes, want[i]) {
			t.Fatalf("frame %d\n got %s\n     %x\nwant %s\n     %x", i+1, text(got[i].Bytes), got[i].Bytes, text(want[i]), want[i])
		}
	}
}

// dropped requires that one frame was dropped, for a reason.
func dropped(t testing.TB, r graphtest.Result, reason string) {
	t.Helper()
	for _, f := range r.Dropped {
		if f.Reason == reason {
			return
		}
	}
	t.Fatalf("nothing was dropped as %s%s%s", reason, show(r.Dropped), show(append(r.Out["a"], r.Out["b"]...)))
}
