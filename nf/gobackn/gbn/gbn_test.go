package gbn

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

var device = clio.End{MAC: [6]byte{2, 0, 0, 0, 0, 99}, IP: [4]byte{192, 168, 0, 99}, Port: clio.Port}

func peerEnd(i int) clio.End {
	return clio.End{MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, IP: [4]byte{192, 168, 0, byte(i)}, Port: uint16(8000 + i)}
}

// faults are shares of frames.
type faults struct{ drop, double, damage, late float64 }

// inFlight is a frame under way; to < 0: to the server.
type inFlight struct {
	at    clock.Time
	seq   int
	to    int
	bytes []byte
}

// net is a server, its peers, and what lies between them.
type net struct {
	pool    *packet.Pool
	rng     *rand.Rand
	faults  faults
	now     clock.Time
	flight  []inFlight
	n       int
	server  *Server
	peers   []*Session
	sent    [2][]uint64 // by peer: from it, to it
	got     [2][][]uint64
	dropped map[Verdict]int
	seen    map[Verdict]int
	dry     bool // no end has a buffer
}

// side is the Out of one end.
type side struct {
	One
	*net
	peer int // whose frames these are; -1: the server's
}

func (s side) Get() *packet.Buf {
	if s.dry {
		return nil
	}
	return s.pool.Get()
}

func (s side) Discard(b *packet.Buf) { b.Put() }
func (s side) Drop(b *packet.Buf, v Verdict) {
	s.dropped[v]++
	b.Put()
}

func (s side) Send(b *packet.Buf) {
	p := slices.Clone(b.Bytes())
	b.Put()
	to := -1
	if s.peer < 0 {
		to = int(p[33]) // last byte of the destination address
	}
	at := s.now + 1000
	add := func(p []byte) {
		t := at
		if s.rng.Float64() < s.faults.late {
			t += clock.Time(s.rng.Int64N(int64(300 * time.Microsecond)))
		}
		s.n++
		s.flight = append(s.flight, inFlight{t, s.n, to, p})
	}
	if s.rng.Float64() < s.faults.drop {
		return
	}
	if s.rng.Float64() < s.faults.double {
		add(slices.Clone(p))
	}
	if s.rng.Float64() < s.faults.damage {
		p[14+s.rng.IntN(len(p)-14)] ^= 1 << s.rng.IntN(8)
	}
	add(p)
}

// message is a frame, plain, with a number.
func message(src, dst clio.End, op clio.Opcode, v uint64, reliable bool) ([]byte, clio.Frame) {
	n := clio.LegoLen + clio.RequestLen
	if reliable {
		n += clio.GBNLen
	}
	b := make([]byte, clio.HeadersLen+n)
	clio.Headers(b, &src, &dst, n)
	f := clio.Plain(reliable)
	if reliable {
		clio.GBN(b[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
	}
	clio.Lego(b[f.Lego:]).Encode(&clio.Fields{ID: uint16(v), Opcode: op, Size: uint16(len(b) - f.Lego)})
	clio.Request(b[f.Op:]).Encode(v, 8, 0)
	f.Seal(b, len(b), true)
	return b, f
}

func newNet(t testing.TB, c Config, peers int, seed uint64, fl faults) *net {
	return newNetOf(t, 8192, c, peers, seed, fl)
}

// newNetOf is newNet with a pool of so many frames.
func newNetOf(t testing.TB, frames int, c Config, peers int, seed uint64, fl faults) *net {
	pool, err := packet.NewPool(frames, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := &net{pool: pool, rng: rand.New(rand.NewPCG(seed, 1)), faults: fl, now: 1_000_000, dropped: map[Verdict]int{}, seen: map[Verdict]int{}}
	if x.server, err = NewServer(c); err != nil {
		t.Fatal(err)
	}
	for range peers {
		s, err := NewSession(c)
		if err != nil {
			t.Fatal(err)
		}
		x.peers = append(x.peers, s)
	}
	for d := range 2 {
		x.sent[d] = make([]uint64, peers)
		x.got[d] = make([][]uint64, peers)
	}
	return x
}

// open sends one request to open a session.
func (x *net) open(i int) {
	src := peerEnd(i)
	n := clio.GBNLen + clio.LegoLen + clio.SessionLen
	b := x.pool.Get()
	p, _ := b.Append(clio.HeadersLen + n)
	clio.Headers(p, &src, &device, n)
	f := clio.Plain(true)
	clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
	clio.Lego(p[f.Lego:]).Encode(&clio.Fields{PID: 7, ID: uint16(i), Opcode: clio.OpenSession, Size: clio.LegoLen + clio.SessionLen})
	clio.SetSession(p[f.Op:], uint32(100+i))
	f.Seal(p, len(p), true)
	side{net: x, peer: i}.Send(b)
}

// say has peer i send its next number, or the server one to it.
func (x *net) say(i int, toPeer bool) Verdict {
	b := x.pool.Get()
	if toPeer {
		p, _ := message(device, peerEnd(i), clio.Update, x.sent[1][i]+1, false)
		b.SetBytes(p)
		v := x.server.ToNet(x.now, b, side{net: x, peer: -1})
		if v == Sent {
			x.sent[1][i]++
		} else {
			b.Put()
		}
		return v
	}
	p, f := message(peerEnd(i), device, clio.Update, x.sent[0][i]+1, true)
	b.SetBytes(p)
	v := x.peers[i].Send(x.now, b, &f, true, side{net: x, peer: i})
	if v == Sent {
		x.sent[0][i]++
	} else {
		b.Put()
	}
	return v
}

// arrive gives the next frame under way to its end.
func (x *net) arrive(t interface{ Fatalf(string, ...any) }) {
	m := 0
	for i, f := range x.flight {
		if g := x.flight[m]; f.at < g.at || f.at == g.at && f.seq < g.seq {
			m = i
		}
	}
	fl := x.flight[m]
	x.flight = slices.Delete(x.flight, m, m+1)
	x.now = max(x.now, fl.at)
	b := x.pool.Get()
	b.SetBytes(fl.bytes)
	if fl.to < 0 {
		v := x.server.FromNet(x.now, b, side{net: x, peer: -1})
		x.seen[v]++
		switch {
		case v == Delivered:
			var f clio.Frame
			if clio.Parse(b.Bytes(), false, &f) != clio.Message || !f.Sound(b.Bytes()) {
				t.Fatalf("delivered %x", b.Bytes())
			}
			i := int(f.Src(b.Bytes()).Port) - 8000
			x.got[0][i] = append(x.got[0][i], clio.Request(b.Bytes()[f.Op:]).Key())
			b.Put()
		case v.Replies():
			side{net: x, peer: -1}.Send(b)
		default:
			b.Put()
		}
		return
	}
	var f clio.Frame
	p := b.Bytes()
	k := clio.Parse(p, true, &f)
	if fl.to >= len(x.peers) || k != clio.Control && k != clio.Message || !f.Sound(p) {
		b.Put()
		return
	}
	s, g := x.peers[fl.to], clio.GBN(p[f.GBN:])
	out := side{net: x, peer: fl.to}
	if k == clio.Message && clio.Lego(p[f.Lego:]).Opcode() == clio.OpenSession.Answer() {
		if !s.IsOpen() && clio.Lego(p[f.Lego:]).Status() == clio.OK {
			local := uint16(100 + fl.to)
			peer := uint16(clio.Session(p[f.Op:]))
			f.Swap(p)
			s.Open(x.now, local, peer, p, &f)
		}
		b.Put()
		return
	}
	if !s.IsOpen() || g.Src() != s.peer || g.Dst() != s.local {
		b.Put()
		return
	}
	if k == clio.Control {
		s.Ack(x.now, g.Seq(), g.Type() == clio.NACK, out)
		b.Put()
		return
	}
	switch v := s.Data(x.now, g.Seq(), out); v {
	case Delivered:
		x.got[1][fl.to] = append(x.got[1][fl.to], clio.Request(p[f.Op:]).Key())
		b.Put()
	case Ahead, Behind:
		typ := clio.ACK
		if v == Ahead {
			typ = clio.NACK
		}
		Reply(b, &f, typ, s.Last(), s.local, s.peer)
		out.Send(b)
	default:
		b.Put()
	}
}

// run goes on until nothing is under way and nothing is due, or for so many
// events.
func (x *net) run(t interface{ Fatalf(string, ...any) }, events int) bool {
	for ; events > 0; events-- {
		at := x.server.Deadline()
		for _, p := range x.peers {
			at = min(at, p.Deadline())
		}
		first := clock.Never
		for _, f := range x.flight {
			first = min(first, f.at)
		}
		if first == clock.Never && at == clock.Never {
			return true
		}
		if first <= at {
			x.arrive(t)
			continue
		}
		x.now = max(x.now, at)
		x.server.Tick(x.now, side{net: x, peer: -1})
		for i, p := range x.peers {
			p.Tick(x.now, side{net: x, peer: i})
		}
	}
	return false
}

// check compares what was sent with what arrived.
func (x *net) check() error {
	for d := range 2 {
		for i := range x.peers {
			if n := uint64(len(x.got[d][i])); n != x.sent[d][i] {
				return fmt.Errorf("direction %d, peer %d: %d sent, %d delivered", d, i, x.sent[d][i], n)
			}
			for k, v := range x.got[d][i] {
				if v != uint64(k+1) {
					return fmt.Errorf("direction %d, peer %d: delivery %d is number %d", d, i, k+1, v)
				}
			}
		}
	}
	return nil
}

// Whatever the network does, all that was sent is delivered once and in order,
// in both directions of all sessions, and no buffer is lost.
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := func(name string) float64 { return float64(rapid.IntRange(0, 30).Draw(t, name)) / 100 }
		fl := faults{share("drop"), share("double"), share("damage"), share("late")}
		c := Config{Window: 1 << rapid.IntRange(0, 5).Draw(t, "window"), Backlog: 64, Tries: 1000, Hold: 4096}
		c.AckEvery = rapid.IntRange(1, c.Window).Draw(t, "every")
		peers := rapid.IntRange(1, 3).Draw(t, "peers")
		x := newNet(&testing.T{}, c, peers, rapid.Uint64().Draw(t, "seed"), fl)
		for i := range x.peers {
			for !x.peers[i].IsOpen() {
				x.open(i)
				x.run(t, 1<<20)
			}
			// Numbers wrap.
			if back := uint32(rapid.IntRange(0, 40).Draw(t, "wrap")); back > 0 {
				r := &x.server.rows[x.peers[i].peer]
				for _, s := range []*Session{x.peers[i], &r.Session} {
					s.una, s.next, s.expect = -back, -back, -back
				}
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "bursts") {
			i := rapid.IntRange(0, peers-1).Draw(t, "peer")
			toPeer := rapid.Bool().Draw(t, "to peer")
			for range rapid.IntRange(1, 20).Draw(t, "length") {
				if v := x.say(i, toPeer); v != Sent && v != Full {
					t.Fatalf("verdict %d", v)
				}
			}
			x.run(t, rapid.IntRange(0, 50).Draw(t, "events"))
		}
		if !x.run(t, 1<<22) {
			t.Fatalf("does not come to rest")
		}
		if err := x.check(); err != nil {
			t.Fatal(err)
		}
		if n := x.server.Held(); n != 0 || x.pool.InUse() != 0 {
			t.Fatalf("%d held, %d buffers in use", n, x.pool.InUse())
		}
	})
}

// The numbers of the source: one NACK a gap, an ACK every 100 frames, one for
// what came before.
func TestPolicy(t *testing.T) {
	x := newNet(t, Config{}, 1, 1, faults{})
	x.open(0)
	x.run(t, 100)
	s := &x.server.rows[x.peers[0].peer].Session
	out := side{net: x, peer: -1}
	for q := uint32(1); q < 100; q++ {
		if v := s.Data(x.now, q, out); v != Delivered || len(x.flight) != 0 {
			t.Fatalf("frame %d: verdict %d, %d answers", q, v, len(x.flight))
		}
	}
	if s.Data(x.now, 100, out); len(x.flight) != 1 {
		t.Errorf("%d ACKs after 100 frames", len(x.flight))
	}
	for _, c := range []struct {
		seq  uint32
		want Verdict
	}{{103, Ahead}, {104, AheadMore}, {103, AheadMore}, {101, Delivered}, {103, Ahead}, {102, Delivered}, {102, Behind}, {1, Behind}} {
		if v := s.Data(x.now, c.seq, out); v != c.want {
			t.Errorf("frame %d: verdict %d, want %d", c.seq, v, c.want)
		}
	}
	if s.Last() != 102 {
		t.Errorf("last is %d", s.Last())
	}
	for _, seq := range []uint32{5, 0xFFFFFFFF, 1 << 31} {
		if v := s.Ack(x.now, seq, false, out); v != Stale {
			t.Errorf("ACK %d of nothing: verdict %d", seq, v)
		}
	}
}

func TestGivesUp(t *testing.T) {
	x := newNet(t, Config{Tries: 3, Window: 4, AckEvery: 1}, 1, 1, faults{})
	x.open(0)
	x.run(t, 100)
	x.faults.drop = 1
	for range 6 {
		x.say(0, true)
	}
	if x.server.Held() != 6 {
		t.Fatalf("%d held", x.server.Held())
	}
	if !x.run(t, 1000) || x.server.Held() != 0 || x.server.Open() != 0 || x.dropped[GaveUp] != 2 || x.pool.InUse() != 0 {
		t.Errorf("%d held, %d open, dropped %v, %d in use", x.server.Held(), x.server.Open(), x.dropped, x.pool.InUse())
	}
	if st := x.server.Stats(); st.Timeouts != 4 || st.GivenUp != 1 || st.Retransmitted != 12 {
		t.Errorf("%+v", st)
	}
}

// A session that gets on is not given up, however many timeouts it has in all.
func TestGetsOn(t *testing.T) {
	x := newNet(t, Config{Tries: 3, Window: 4, AckEvery: 1}, 1, 1, faults{})
	x.open(0)
	x.run(t, 100)
	x.faults.drop = 1
	s := &x.server.rows[x.peers[0].peer].Session
	x.say(0, true)
	for i := range uint32(10) {
		x.say(0, true) // so that one is always on its way
		x.now = s.Deadline()
		x.server.Tick(x.now, side{net: x, peer: -1})
		if v := s.Ack(x.now, clio.FirstSeq+i, false, side{net: x, peer: -1}); v != TakenACK {
			t.Fatalf("after %d timeouts: verdict %d", x.server.Stats().Timeouts, v)
		}
	}
	if st := x.server.Stats(); st.Timeouts != 10 || st.GivenUp != 0 {
		t.Errorf("%+v", st)
	}
}

// A frame for whose copy there is no buffer waits, and so does what comes behind it.
func TestNoBuffer(t *testing.T) {
	for _, toPeer := range []bool{false, true} {
		x := newNet(t, Config{}, 1, 1, faults{})
		x.open(0)
		x.run(t, 100)
		x.dry = true
		x.say(0, toPeer)
		x.dry = false
		x.say(0, toPeer)
		if len(x.flight) != 0 || !x.run(t, 1000) {
			t.Errorf("%d on their way", len(x.flight))
		}
		if err := x.check(); err != nil {
			t.Error(err)
		}
	}
}

// A repeated request opens nothing anew; another one of the same port does. When
// all are taken, the idle make room, and otherwise it is refused.
func TestOpen(t *testing.T) {
	x := newNet(t, Config{Sessions: 2, Idle: time.Second}, 4, 1, faults{})
	for range 3 {
		x.open(0)
		x.run(t, 100)
	}
	if x.server.Open() != 1 || x.peers[0].peer != 1 {
		t.Errorf("%d open, number %d", x.server.Open(), x.peers[0].peer)
	}
	x.say(0, false)
	x.run(t, 100)
	x.server.rows[1].opener = 1 // of another life
	x.open(0)
	x.run(t, 100)
	if x.server.Open() != 1 || x.server.rows[1].open || !x.server.rows[2].open {
		t.Errorf("%d open", x.server.Open())
	}
	x.open(1)
	x.run(t, 100)
	x.open(2)
	x.run(t, 100)
	if x.peers[2].IsOpen() || x.seen[Refused] != 1 {
		t.Error("one too many")
	}
	x.now = x.now.Add(2 * time.Second)
	x.open(2)
	x.run(t, 100)
	if !x.peers[2].IsOpen() || x.server.Open() != 2 {
		t.Error("the idle do not make room")
	}
}

// An address has no more sessions than it may have, and those of others make no room
// for them; what was opened and never used makes room after a second, what was used
// after Idle.
func TestPerPeer(t *testing.T) {
	s, err := NewServer(Config{Sessions: 6, Idle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	x := newNet(t, Config{}, 0, 1, faults{})
	x.server = s
	// open is a request of an address and port; it is the session's number.
	open := func(peer, port int) (uint32, Verdict) {
		n := clio.GBNLen + clio.LegoLen + clio.SessionLen
		b := x.pool.Get()
		defer b.Put()
		p, _ := b.Append(clio.HeadersLen + n)
		src := peerEnd(peer)
		src.Port = uint16(port)
		clio.Headers(p, &src, &device, n)
		f := clio.Plain(true)
		clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
		clio.Lego(p[f.Lego:]).Encode(&clio.Fields{PID: 7, ID: 1, Opcode: clio.OpenSession, Size: clio.LegoLen + clio.SessionLen})
		clio.SetSession(p[f.Op:], 100)
		f.Seal(p, len(p), true)
		v := s.FromNet(x.now, b, side{net: x, peer: -1})
		return clio.Session(b.Bytes()[f.Op:]), v
	}
	want := func(peer, port int, v Verdict) uint32 {
		t.Helper()
		n, got := open(peer, port)
		if got != v || (n > 0) != (v == Opened) {
			t.Fatalf("port %d of %d: verdict %d, number %d", port, peer, got, n)
		}
		return n
	}
	first := want(1, 1, Opened)
	x.now++
	want(1, 2, Opened)
	want(1, 3, Opened)
	want(1, 4, Crowded)
	want(1, 3, Opened) // again
	x.now++
	want(2, 1, Opened)
	want(2, 2, Opened)
	want(3, 1, Opened)
	want(3, 2, Refused)
	// What was used stays.
	s.rows[first].Data(x.now, clio.FirstSeq, side{net: x, peer: -1})
	x.now = x.now.Add(time.Second - 10)
	want(1, 4, Crowded)
	want(3, 2, Refused)
	x.now = x.now.Add(time.Second)
	want(1, 4, Opened)
	if !s.rows[first].open || s.Open() != 6 {
		t.Fatal("the one that was used made room")
	}
	if _, there := s.by[key{peer: peerEnd(1).IP, local: device.IP, port: 2}]; there {
		t.Error("not the oldest of its own made room")
	}
	for port := range 2 {
		want(3, 2+port, Opened) // in place of the unused ones of others
	}
	for i := range s.rows {
		s.rows[i].lastUsed = max(s.rows[i].lastUsed, x.now)
		if s.rows[i].open {
			s.rows[i].opened = 0
		}
	}
	x.now = x.now.Add(2 * time.Second)
	want(4, 1, Refused)
	x.now = x.now.Add(time.Minute)
	want(4, 1, Opened)
}

// A frame to nobody, or of somebody else, changes nothing.
func TestStrangers(t *testing.T) {
	x := newNet(t, Config{}, 2, 1, faults{})
	x.open(0)
	x.run(t, 100)
	for name, alter := range map[string]func([]byte, *clio.Frame){
		"number":  func(p []byte, f *clio.Frame) { clio.GBN(p[f.GBN:]).Encode(clio.DATA, 1, 100, 2) },
		"source":  func(p []byte, f *clio.Frame) { clio.GBN(p[f.GBN:]).Encode(clio.DATA, 1, 101, 1) },
		"port":    func(p []byte, f *clio.Frame) { clio.GBN(p[f.GBN:]).Encode(clio.DATA, 1, 100, 1); p[35]++ },
		"address": func(p []byte, f *clio.Frame) { clio.GBN(p[f.GBN:]).Encode(clio.DATA, 1, 100, 1); p[29]++ },
		"high":    func(p []byte, f *clio.Frame) { clio.GBN(p[f.GBN:]).Encode(clio.DATA, 1, 100, 1023) },
	} {
		p, f := message(peerEnd(0), device, clio.Update, 1, true)
		alter(p, &f)
		f.Seal(p, len(p), true)
		b := x.pool.Get()
		b.SetBytes(p)
		want := NoSession
		if v := x.server.FromNet(x.now, b, side{net: x, peer: -1}); v != want {
			t.Errorf("%s: verdict %d", name, v)
		}
		b.Put()
	}
}

func TestAllocs(t *testing.T) {
	x := newNet(t, Config{}, 1, 1, faults{})
	x.open(0)
	x.run(t, 100)
	out := &quiet{pool: x.pool}
	plain, _ := message(device, peerEnd(0), clio.Update, 1, false)
	data, f := message(peerEnd(0), device, clio.Update, 1, true)
	ack := slices.Clone(data[:clio.HeadersLen+clio.GBNLen])
	fa := clio.Plain(true)
	seq := uint32(0)
	if n := testing.AllocsPerRun(1000, func() {
		seq++
		b := x.pool.Get()
		b.SetBytes(plain)
		if v := x.server.ToNet(x.now, b, out); v != Sent {
			t.Fatal(v)
		}
		b = x.pool.Get()
		clio.GBN(data[f.GBN:]).Encode(clio.DATA, seq, 100, 1)
		f.Seal(data, len(data), true)
		b.SetBytes(data)
		if v := x.server.FromNet(x.now, b, out); v != Delivered {
			t.Fatal(v)
		}
		b.Put()
		b = x.pool.Get()
		clio.GBN(ack[fa.GBN:]).Encode(clio.ACK, seq, 100, 1)
		fa.Seal(ack, len(ack), true)
		b.SetBytes(ack)
		if v := x.server.FromNet(x.now, b, out); v != TakenACK {
			t.Fatal(v)
		}
		b.Put()
		x.server.Tick(x.now, out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

type quiet struct {
	One
	pool *packet.Pool
}

func (q *quiet) Get() *packet.Buf              { return q.pool.Get() }
func (q *quiet) Discard(b *packet.Buf)         { b.Put() }
func (q *quiet) Send(b *packet.Buf)            { b.Put() }
func (q *quiet) Drop(b *packet.Buf, _ Verdict) { b.Put() }

func FuzzServer(f *testing.F) {
	p, _ := message(peerEnd(0), device, clio.Update, 1, true)
	f.Add(p, true)
	p, _ = message(device, peerEnd(0), clio.Update, 1, false)
	f.Add(p, false)
	f.Fuzz(func(t *testing.T, p []byte, fromNet bool) {
		x := newNetOf(t, 64, Config{Sessions: 4}, 1, 1, faults{})
		x.open(0)
		x.run(t, 100)
		p = slices.Clone(p[:min(len(p), 400)])
		// Most would fail at the checksums.
		var fr clio.Frame
		if k := clio.Parse(p, fromNet, &fr); k >= clio.Control {
			p = p[:fr.Stop]
			fr.Seal(p, fr.Stop, binary.LittleEndian.Uint16(p)&1 == 0)
		}
		b := x.pool.Get()
		b.SetBytes(p)
		var v Verdict
		if fromNet {
			v = x.server.FromNet(x.now, b, side{net: x, peer: -1})
		} else {
			v = x.server.ToNet(x.now, b, side{net: x, peer: -1})
		}
		if v != Sent {
			q := b.Bytes()
			if k := clio.Parse(q, !fromNet || v.Replies(), &fr); (v == Delivered || v == Unreliable || v.Replies()) && !v.Passes() {
				if v == Delivered || v == Unreliable && fromNet {
					k = clio.Parse(q, false, &fr)
				}
				if k < clio.Control || !fr.Sound(q) {
					t.Fatalf("verdict %d left %x", v, q)
				}
			}
			b.Put()
		}
		x.server.Stop(side{net: x, peer: -1})
		if x.server.Held() != 0 || x.pool.InUse() != 0 {
			t.Fatalf("%d held, %d in use", x.server.Held(), x.pool.InUse())
		}
	})
}

func BenchmarkDeliver(b *testing.B) {
	x := newNet(b, Config{}, 1, 1, faults{})
	x.open(0)
	x.run(b, 100)
	out := &quiet{pool: x.pool}
	data, f := message(peerEnd(0), device, clio.Update, 1, true)
	seq := uint32(0)
	for b.Loop() {
		seq++
		clio.GBN(data[f.GBN:]).Encode(clio.DATA, seq, 100, 1)
		f.Seal(data, len(data), false)
		buf := x.pool.Get()
		buf.SetBytes(data)
		if v := x.server.FromNet(x.now, buf, out); v != Delivered {
			b.Fatal(v)
		}
		buf.Put()
	}
}

// A NACK that the network doubles does not have a window sent again for each copy.
func TestDoubledNACK(t *testing.T) {
	x := newNet(t, Config{Window: 16, AckEvery: 16}, 1, 1, faults{})
	x.open(0)
	x.run(t, 100)
	s, out := &x.server.rows[x.peers[0].peer].Session, side{net: x, peer: -1}
	for range 8 {
		x.say(0, true)
	}
	for i, c := range []struct {
		seq  uint32
		want Verdict
		sent uint64
	}{{0, TakenNACK, 8}, {0, Stale, 8}, {0, Stale, 8}, {2, TakenNACK, 14}, {2, Stale, 14}, {1, Stale, 14}, {5, TakenNACK, 17}} {
		if v := s.Ack(x.now, c.seq, true, out); v != c.want || x.server.Stats().Retransmitted != c.sent {
			t.Errorf("%d: NACK of %d: verdict %d, %d sent again", i, c.seq, v, x.server.Stats().Retransmitted)
		}
	}
	if s.Ack(x.now, 8, false, out); s.Held() != 0 {
		t.Errorf("%d held", s.Held())
	}
}
