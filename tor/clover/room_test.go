package clover

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// steers reports whether a new append of qpn is sent to the key's tail.
func (r *rig) steers(qpn, psn, lh uint32, tail uint64) bool {
	r.t.Helper()
	r.wrote(qpn, psn, lh)
	at := r.target(r.casAt(qpn, psn+1, lh, old))
	r.linked(qpn, psn+1)
	return at == tail
}

// Requests to servers that do not exist, whatever their source, take no place that others need.
func TestMadeUpServers(t *testing.T) {
	r := newRig(t, graph.Args{"conns": "64"})
	server := r.server
	r.as("10.77.0.66", func() {
		for i := range 200 {
			r.server = netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)})
			for n := range uint32(4) {
				r.readAt(uint32(0x100+i), 100+n, 0x10000)
			}
			r.Clock.Advance(100 * time.Millisecond)
		}
	})
	r.server = server
	if n := r.App().(graph.Reporter).Report().(Report).Servers; n != 0 {
		t.Errorf("%d servers are known that never answered", n)
	}
	for i := range uint32(2) {
		r.warm(0x10+0x10*i, 100, entryAt(0x9100+16*i), 0x9100+16*i)
	}
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	if !r.steers(0x20, 108, 0x9002, entryAt(0x9001)) {
		t.Error("not steered any more")
	}
}

// Servers that answered, and are not used any more, make room for others.
func TestManyServers(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "8s", "keys": "256", "addrs": "1024"})
	for i := range 2*maxServers + 5 {
		r.server = netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)})
		r.warm(0x10, 100, entryAt(0x9100), 0x9100)
		r.append(0x10, 108, old, entryAt(0x9000), 0x9000, key)
		if i >= maxServers {
			r.Advance(20 * time.Second)
			r.pair(0x10, 200)
			r.Advance(2 * time.Second)
		}
	}
	r.pair(0x10, 300)
	for i := range uint32(4) {
		r.append(0x10, 306+2*i, 0x10000, entryAt(0x9100+i), 0x9100+i, 1000+uint64(i))
	}
	r.append(0x10, 314, old, entryAt(0x9001), 0x9001, key)
	if !r.steers(0x10, 316, 0x9002, entryAt(0x9001)) {
		t.Errorf("the newest server is not steered: %+v", r.App().(graph.Reporter).Report())
	}
}

// Regions that are not used any more make room for others: steering goes on
// after any number of new R_Keys at the old addresses.
func TestManyRegions(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "8s"})
	psn := uint32(200)
	r.pair(0x10, psn-6)
	for i := range 3 * maxRegions {
		r.rkey = uint32(100 + i)
		r.wrote(0x10, psn, 0x9000)
		psn++
		if i%16 == 0 {
			r.Advance(time.Second)
		}
	}
	r.rkey = 7
	for i := range uint32(4) {
		r.append(0x10, psn, 0x10000, entryAt(0x9100+i), 0x9100+i, 1000+uint64(i))
		psn += 2
	}
	r.append(0x10, psn, old, entryAt(0x9001), 0x9001, key)
	if !r.steers(0x10, psn+2, 0x9002, entryAt(0x9001)) {
		t.Errorf("not steered under the newest R_Key: %+v", r.App().(graph.Reporter).Report())
	}
}

// A WRITE that the server refuses does not make its R_Key known.
func TestRefusedRegions(t *testing.T) {
	r := crew(t, graph.Args{})
	for i := range uint32(maxRegions + 1) {
		p := make([]byte, r.size)
		wireEntry(p, key)
		r.to(0x10, 108+i, hdr.WriteOnly, reth(entryAt(0x9000+i), 5000+i, r.size), p)
	}
	if n := r.App().(graph.Reporter).Report().(Report).Regions; n != 1 {
		t.Errorf("%d regions are known, want the one that takes WRITEs", n)
	}
}

// Keys that are not used any more make room for others.
func TestManyKeys(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "8s", "keys": "16", "addrs": "64"})
	r.warm(0x10, 100, entryAt(0x9100), 0x9100)
	psn := uint32(108)
	for k := range uint64(100) {
		r.write(0x10, psn, entryAt(0x9200+uint32(k)), 7000+k, 1)
		psn++
	}
	s := r.App().(*Steer)
	if s.keys.len() != 16 || s.keys.find(0, key) != noSlot {
		t.Fatalf("%d keys are tracked, want 16 of others", s.keys.len())
	}
	for range 12 {
		r.Advance(time.Second)
		r.pair(0x10, psn)
		psn += 6
	}
	r.append(0x10, psn, old, entryAt(0x9001), 0x9001, key)
	if !r.steers(0x10, psn+2, 0x9002, entryAt(0x9001)) {
		t.Errorf("a key that is used has no place: %+v", r.App().(graph.Reporter).Report())
	}
}

// A key in use keeps its place, however many others want one.
func TestKeysInUse(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "8s", "keys": "2", "addrs": "64"})
	r.pair(0x10, 94)
	for i := range uint32(4) {
		r.append(0x10, 100+2*i, 0x10000, entryAt(0x9100+i), 0x9100+i, 1000)
	}
	r.append(0x10, 108, old, entryAt(0x9001), 0x9001, key)
	psn := uint32(110)
	for i := range uint64(20) {
		r.write(0x10, psn, entryAt(0x9300+uint32(i)), 7000+i, 1)
		r.readAt(0x10, psn+1, entryAt(0x9001))
		r.from(0x10, psn+1, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
		psn += 2
		r.Advance(time.Second)
	}
	if !r.known() {
		t.Error("its place is another's")
	}
}

// A place that is given up and used again inherits nothing.
func TestGivenUp(t *testing.T) {
	r := crew(t, graph.Args{"keys": "16"})
	s := r.App().(*Steer)
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	k := s.keys.find(0, key)
	if err := r.Set(graph.Args{"only": "6+7"}); err != nil {
		t.Fatal(err)
	}
	for _, psn := range []uint32{110, 130} { // before the addresses were looked at, and after
		for i := range uint64(14) {
			r.write(0x10, psn+uint32(i), entryAt(0x9040+uint32(i)), 6+i%2, 1)
		}
		for i := range s.keys.s {
			if x := &s.keys.s[i]; x.used && x.key == 6 && int32(i) == k && s.lookup(0, entryAt(0x9001)) != noSlot {
				t.Fatal("key 6 has an address of another one")
			}
		}
		if n := s.keys.len() + len(s.keys.free) + len(s.gone.keys); n != 16 {
			t.Fatalf("%d slots are used, free or given up, want 16", n)
		}
		r.Advance(100 * time.Millisecond)
		r.Set(graph.Args{"only": "all"})
	}
	if len(s.keys.free) != 16-s.keys.len() {
		t.Errorf("%d slots are free beside %d keys", len(s.keys.free), s.keys.len())
	}
	for range 16 - s.keys.len() {
		s.insert(0, uint64(9000+s.keys.len()))
	}
	if e := &s.addrs.e[s.addrs.set(0, entryAt(0x9001))]; s.lookup(0, entryAt(0x9001)) != noSlot {
		t.Errorf("an address is another key's: %+v", e)
	}
}

// Only keys that are chosen take places.
func TestNotChosen(t *testing.T) {
	r := newRig(t, graph.Args{"only": "5"})
	r.warm(0x10, 100, entryAt(0x9100), 0x9100)
	if n := r.App().(*Steer).keys.len(); n != 0 {
		t.Errorf("%d keys are tracked that nobody chose", n)
	}
}

// With hot=, the keys with the most WRITEs are steered, whichever came first.
func TestHot(t *testing.T) {
	r := newRig(t, graph.Args{"hot": "2", "addrs": "256"})
	r.pair(0x10, 94)
	psn := uint32(100)
	write := func(key uint64, n int) {
		for range n {
			r.write(0x10, psn, entryAt(0x9000+psn&63), key, 1)
			psn++
		}
	}
	tracked := func() (keys [3]bool) {
		for k := range keys {
			keys[k] = r.App().(*Steer).keys.find(0, uint64(k+1)) != noSlot
		}
		return keys
	}
	round := func(one, two, three int) [3]bool {
		for range 20 {
			write(1, one)
			write(2, two)
			write(3, three)
			r.Advance(100 * time.Millisecond)
		}
		return tracked()
	}
	if got := round(8, 8, 8); got != [3]bool{true, true, false} {
		t.Errorf("who was first: %v", got)
	}
	if got := round(8, 1, 16); got != [3]bool{true, false, true} {
		t.Errorf("who is written most: %v", got)
	}
}

// Slab classes that are not used any more make room for others.
func TestManyBases(t *testing.T) {
	s := newState(settings{keys: 1, addrs: 4, conns: 1, hold: 1}, 1)
	for i := range uint64(2 * maxBases) {
		for range 2 * trustedBase {
			s.taught(base{va: 0x1000 * i, size: 128, region: uint16(i)})
		}
	}
	one, two := base{va: 0x1000, size: 128, region: 900}, base{va: 0x1000, size: 128, region: 901}
	for range 2 * trustedBase {
		s.taught(one)
		s.taught(two)
	}
	if !s.trusted(&one) || !s.trusted(&two) {
		t.Error("the newest classes are not learnt")
	}
}

// cm is a datagram of the connection manager's.
func (r *rig) cm(in string, from, to netip.Addr, f hdr.CMFields) {
	ext := hdr.DETH(make([]byte, hdr.DETHLen))
	ext.SetQKey(hdr.GSIQKey)
	ext.SetSrcQP(1)
	m := hdr.CM(make([]byte, hdr.MADLen))
	f.TransactionID = 1
	m.Encode(&f)
	r.Push(in, frameOf{src: from, dst: to, sport: 0xC001, op: hdr.UDSendOnly, qpn: 1, psn: 1, ext: ext, payload: m}.bytes())
}

// request asks for a connection from the client's queue pair qpn, and reply, which
// comes by an input, gives it one to the server's.
func (r *rig) request(qpn uint32) {
	r.cm("a", r.client, r.server, hdr.CMFields{AttributeID: hdr.ConnectRequest, LocalCommID: 11, LocalQPN: qpn, StartingPSN: 900,
		PathMTU: 1024, PKey: 0xFFFF, LocalGID: r.client, RemoteGID: r.server, ResponderResources: 16, InitiatorDepth: 16})
}

func (r *rig) reply(in string, qpn uint32) {
	r.cm(in, r.server, r.client, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalCommID: 22, RemoteCommID: 11, LocalQPN: qpn, StartingPSN: 600})
}

// A connection that the connection manager announced is steered when its answers count, which is from the
// second one on. A ConnectReply counts only from the servers' side.
func TestConnectionManager(t *testing.T) {
	for _, side := range []string{"b", "a"} {
		r := crew(t, graph.Args{})
		r.wrote(0x10, 108, 0x9001)
		r.link(0x10, 109, 0x9001, old)
		r.linked(0x10, 109)
		r.request(0x1050)
		r.reply(side, 0x50)
		r.readAt(0x50, 600, 0x10000)
		r.from(0x50, 600, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
		r.prove(0x50, 601)
		if got := r.steers(0x50, 602, 0x9002, entryAt(0x9001)); got != (side == "b") {
			t.Errorf("a reply from side %s: steered %v", side, got)
		}
	}
}

// What a frame or a tick costs does not depend on how many appends are open.
func BenchmarkSize(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 16, 1 << 19} {
		r, frames := opened(b, size)
		b.Run(fmt.Sprintf("frame/%d", size), func(b *testing.B) {
			for i := range b.N {
				r.load(frames[i%len(frames)])
			}
		})
		b.Run(fmt.Sprintf("tick/%d", size), func(b *testing.B) {
			for range b.N {
				r.tick()
			}
		})
	}
}

// loaded is an app with so many steered CASes that are not answered, of as many
// keys, and frames that are the worst for it.
type loaded struct {
	*lap
	app *Steer
}

func (l *loaded) load(b []byte) {
	x := l.pool.Get()
	x.SetBytes(b)
	l.in.Add(x)
	l.side = "a"
	l.flush()
}

func (l *loaded) tick() {
	l.now += clock.Time(tickEvery)
	l.flush()
}

// filler is an app that is filled before its first batch.
type filler struct {
	*Steer
	fill func()
}

func (f *filler) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if f.fill != nil {
		f.begin(c)
		f.fill()
		f.fill = nil
	}
	f.Steer.Push(c, in, b)
}

func opened(b *testing.B, n int) (*loaded, [][]byte) {
	kind, rows := *Kind(), n/window
	app := &filler{}
	kind.New = func(e graph.Env, a graph.Args) (graph.App, error) {
		x, err := newApp(e, a)
		app.Steer = x.(*Steer)
		return app, err
	}
	l := newLap(b, kind, graph.Args{"settle": "0", "keys": fmt.Sprint(n), "addrs": fmt.Sprint(8 * n), "conns": fmt.Sprint(rows), "repair": "1h"}, kept)
	client, server := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1")
	app.fill = func() {
		s := app.Steer
		for i := range rows {
			at, err := s.conns.AddStatic(l.now, conn.StaticConn{Client: client, Server: server, ClientQPN: uint32(0x100000 + i), ServerQPN: uint32(0x10 + i)})
			if err != nil {
				b.Fatal(err)
			}
			s.event(int32(at), conn.NowPaired)
			row := &s.rows[at]
			row.epsn, row.acked = window, hdr.PSNMask
			for n := range uint32(window) {
				s.openAppend(int32(at), n, uint64(i*window)+uint64(n))
			}
		}
		if s.open[0].n != n {
			b.Fatalf("%d appends are open, want %d", s.open[0].n, n)
		}
	}
	l.play([]string{"a"}, [][]byte{frameOf{src: client, dst: server, op: hdr.SendOnly, qpn: 2, psn: 1}.bytes()})
	var frames [][]byte
	for i := range 64 {
		q := uint32(0x10 + i*rows/64)
		f := frameOf{src: client, dst: server, sport: 1, op: hdr.WriteOnly, qpn: q, psn: 5}
		switch i % 4 {
		case 0: // all of the memory
			f.ext, f.payload = reth(0x1000, 7, 1<<31), make([]byte, 256)
		case 1: // a retransmission of something else
			f.op, f.ext = hdr.CompareSwap, atomicETH(entryAt(0x9000+uint32(i)), 7, 1, 0)
		case 2: // ahead of its turn, from another client
			f.src, f.op, f.ext = client.Next(), hdr.ReadRequest, reth(entryAt(0x9000), 7, 128)
		case 3:
			f.qpn, f.ext, f.payload = 5, reth(entryAt(0x9000)-64, 7, 128), make([]byte, 128)
		}
		frames = append(frames, f.bytes())
	}
	return &loaded{l, app.Steer}, frames
}

// openAppend has a steered CAS of a key, on connection i, wait for its answer.
func (s *Steer) openAppend(i int32, psn uint32, key uint64) {
	sid := s.rows[i].sid
	at := s.keyOf(sid, key)
	k := &s.keys.s[at]
	va := entryAt(0x9000 + uint32(key))
	slot := s.remember(s.ctx, s.addrs.set(uint16(sid), va), sid, va, packEntry(at, 1, s.admit(sid, 7), 0))
	k.sent++
	k.tail = slot
	rec := s.newOp(i, psn)
	rec.kind, rec.steered, rec.key, rec.slot, rec.entry, rec.n, rec.epoch = opCAS, true, at, slot, va, k.sent, k.epoch
	s.enlist(rec, s.place(i), s.ctx.Now())
}
