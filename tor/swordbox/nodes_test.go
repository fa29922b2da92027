package swordbox

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

func (r *rig) report() Report { return r.App().(graph.Reporter).Report().(Report) }

// TestMadeUpServers: destinations that never answer take no memory and no place, and stop no frame to real
// servers.
func TestMadeUpServers(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	var before, after runtime.MemStats
	spare := r.report().Memory.Spare
	real := r.server
	x := r.party(50)
	frames := [][]byte{}
	for k := range 200 {
		r.server = netip.AddrFrom4([4]byte{10, 9, 1, byte(k)})
		frames = append(frames, x.made(hdr.WriteOnly, uint32(k), reth(va+8, testRKey, 64), make([]byte, 64)), x.connectRequest())
	}
	r.server = real
	runtime.ReadMemStats(&before)
	for _, f := range frames {
		one(t, r.Push("a", f).Out["b"])
	}
	runtime.ReadMemStats(&after)
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 4<<20 { // what the test itself does with frames
		t.Errorf("%d bytes for 400 frames", grew)
	}
	if m := r.report(); len(m.Servers) != 1 || m.Memory.Spare != spare || spare == 0 || r.Counter("twins") != 0 {
		t.Errorf("%d servers, %d bytes to come of %d, %d twins", len(m.Servers), m.Memory.Spare, spare, r.Counter("twins"))
	}
	if got := opcode(t, one(t, b.cas(va, 1, 2).Out["b"])); got != hdr.WriteOnly {
		t.Errorf("a CAS went as %v", got)
	}
	one(t, a.ack().Out["a"])
	// A real one is found as soon as it answers, with what the connection manager
	// said before.
	r.Clock.Advance(2 * time.Second)
	r.server = netip.MustParseAddr("10.9.2.1")
	r.serverMAC[5] = 9
	c := r.client().connect()
	if m := r.report(); len(m.Servers) != 2 || m.Servers[1].Conns != 1 || m.Servers[1].Connections[0].From != "cm" {
		t.Errorf("%+v", m.Servers)
	}
	_ = c
}

// TestServersPart: a server without a connection makes room for another one, and is no longer the twin of any
// server.
func TestServersPart(t *testing.T) {
	r := newRig(t, graph.Args{"discover": "2", "idle": "1s"})
	serve := func(k byte) (first bool) {
		r.server = netip.AddrFrom4([4]byte{10, 9, 3, k})
		c := r.party(60 + int(k)).connect()
		known := len(r.report().Servers)
		one(t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
		one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
		return known == 1
	}
	serve(1)
	serve(2)
	if m := r.report(); len(m.Servers) != 2 || !m.Servers[0].Twin || !m.Servers[1].Twin || m.Memory.Spare != 0 {
		t.Fatalf("%d servers", len(m.Servers))
	}
	serve(3)
	if r.Counter("servers-full") == 0 || len(r.report().Servers) != 2 {
		t.Errorf("a third server: %d", len(r.report().Servers))
	}
	for k := range 4 {
		for range 100 {
			r.Advance(50 * time.Millisecond)
			if len(r.report().Servers) == 0 {
				break
			}
		}
		r.box().making.Wait()
		if m := r.report(); len(m.Servers) != 0 || m.Memory.Spare == 0 {
			t.Fatalf("%d servers are left, %d bytes to come", len(m.Servers), m.Memory.Spare)
		}
		if !serve(byte(10 + k)) {
			t.Fatal("there is no place for the next server")
		}
		if m := r.report(); m.Servers[0].Twin {
			t.Error("a twin of what is not there")
		}
	}
}

// TestTwinParts: a server is a twin for as long as the other one is there.
func TestTwinParts(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "1s", "static": "10.9.3.16/0x100-10.9.3.1/0x200"})
	for k := range byte(2) {
		r.server = netip.AddrFrom4([4]byte{10, 9, 3, 1 + k})
		c := r.party(60 + int(k)).connect()
		one(t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
		one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
	}
	if m := r.report(); len(m.Servers) != 2 || !m.Servers[0].Twin {
		t.Fatalf("%+v", m.Servers)
	}
	for range 100 {
		r.Advance(50 * time.Millisecond)
	}
	r.box().making.Wait()
	if m := r.report(); len(m.Servers) != 1 || m.Servers[0].Twin {
		t.Errorf("%+v", m.Servers)
	}
}

// TestTwinWas: what a client under another address of a server wrote there is not undone when that address
// has had no connection for long, and the server counts as one again.
func TestTwinWas(t *testing.T) {
	const va = 0x7008
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	r := newRig(t, graph.Args{"idle": "1s"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	r.server = other
	c := r.client().connect()
	c.warm()
	c.proven()
	one(t, c.cas(va, 1, 7).Out["b"])
	one(t, c.atomicAck(1).Out["a"])
	one(t, r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
	one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
	r.server = first
	for range 100 {
		r.Advance(50 * time.Millisecond)
		for _, x := range []*party{a, b} {
			one(t, x.read(lowest, 8).Out["b"]) // over the connection of a
			one(t, a.answer(hdr.ReadRespOnly, nil, little(0)).Out["a"])
			x.msn++
		}
	}
	if m := r.report(); len(m.Servers) != 1 || m.Servers[0].Twin {
		t.Fatalf("%+v", m.Servers)
	}
	psn := b.psn
	same(t, b.cas(va, 7, 8).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 8, 7), nil))
	b.msn++
	same(t, a.atomicAck(7).Out["a"], b.atomicAckTo(psn, b.msn, 7))
	psn = b.psn
	same(t, b.cas(va, 8, 9).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(9)))
	b.msn++
	same(t, a.ack().Out["a"], b.atomicAckTo(psn, b.msn, 8))
}

// TestTwinsOfManyMACs: the answers of a server come from several MAC addresses, as with a bond or two
// routers. Two addresses whose answers had a MAC address in common may be one server from then on, whichever
// MAC address each answered from last. Requests wait for that once, not after each answer.
func TestTwinsOfManyMACs(t *testing.T) {
	const va = 0x7008
	first, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	r := newRig(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	one(t, b.cas(va, 1, 2).Out["b"]) // as a WRITE, on its way
	r.server = other
	c := r.client().connect()
	dropped(t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil), "twin")
	c.psn--
	r.server = first
	one(t, a.ack().Out["a"])
	b.msn++
	from := func(mac byte, answer func()) { // requests go to one of them all the time
		r.serverMAC[5] = mac
		answer()
		r.serverMAC[5] = 1
	}
	for k := range byte(20) {
		r.server = other
		one(t, c.request(hdr.WriteOnly, reth(0, 0, 0), nil).Out["b"])
		from(1+k%3, func() { one(t, c.ack().Out["a"]) })
		c.msn++
		r.server = first
		for range 3 {
			if got := opcode(t, one(t, b.cas(va, 2, 2).Out["b"])); got != hdr.CompareSwap {
				t.Fatalf("with answer %d an atomic goes as %v", k, got)
			}
			from(1+(k+1)%3, func() { one(t, a.atomicAck(2).Out["a"]) })
			b.msn++
		}
	}
	if n := r.Counter("twins"); n != 2 {
		t.Errorf("twins were found %d times", n)
	}
}

// BenchmarkMadeUp is the first frame to another made-up server.
func BenchmarkMadeUp(b *testing.B) {
	p, r, _ := crowded(b, 0, 0)
	x := r.party(50)
	frames := make([][]taped, 256)
	for k := range frames {
		r.server = netip.AddrFrom4([4]byte{10, 9, 1, byte(k)})
		frames[k] = []taped{{"a", r.Clock.Now(), x.made(hdr.WriteOnly, 1, reth(1<<40, testRKey, 1<<31), nil)}}
	}
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		p.play(frames[k%len(frames)])
	}
}

// TestFoundBesideAnother: a worker that has lost its processor while it noted a server, or
// met it, keeps no other server from being found.
func TestFoundBesideAnother(t *testing.T) {
	r := newRig(t, nil)
	r.join()
	server := (*r.box().nodes.Load())[0].addrs[0]
	r = newRig(t, nil)
	for i := range r.box().asked.at {
		if uint32(i) != r.box().asked.place(server) {
			r.box().asked.at[i].turn.Store(true)
		}
	}
	r.join()
	if n := len(*r.box().nodes.Load()); n != 1 {
		t.Errorf("%d servers are known, want 1", n)
	}
}

// Servers that are noted under one hash are found at once, as others are.
func TestFoundAtOnce(t *testing.T) {
	const many = 3
	r := newRig(t, nil)
	var servers []netip.Addr
	for k := uint16(1); len(servers) < many; k++ {
		a := netip.AddrFrom4([4]byte{10, 9, byte(k >> 8), byte(k)})
		if r.box().asked.place(conn.AddrFrom(a)) == 5 {
			servers = append(servers, a)
		}
	}
	of := func(k int) *party {
		r.server = servers[k]
		return r.party(60 + k)
	}
	for k := range servers {
		one(t, r.Push("a", of(k).connectRequest()).Out["b"])
	}
	for k := range servers {
		c := of(k)
		one(t, r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: c.sqpn, StartingPSN: c.psn, ResponderResources: 4, InitiatorDepth: 4})).Out["a"])
	}
	for k, n := range *r.box().nodes.Load() {
		if n.conns.Len() != 1 {
			t.Errorf("server %d: %d connections are known", k, n.conns.Len())
		}
	}
	if n := len(*r.box().nodes.Load()); n != many {
		t.Errorf("%d servers are known, want %d", n, many)
	}
}
