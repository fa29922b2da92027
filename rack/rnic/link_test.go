package rnic

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// faults are the probabilities, in per mille, of each fault of the link.
type faults struct{ drop, dup, reorder, corrupt, badICRC int }

// link joins two NICs. Frames take latency to cross.
type link struct {
	t       testing.TB
	nic     [2]*NIC
	pool    *packet.Pool
	now     clock.Time
	latency clock.Time
	faults  faults
	rand    *rand.Rand
	flight  []inFlight
	spare   []inFlight
	tap     func(from int, frame []byte)
	lose    func(from int, frame []byte) bool
	batch   packet.Batch
}

type inFlight struct {
	at clock.Time
	to int
	b  *packet.Buf
}

var (
	macA = [6]byte{2, 0, 0, 0, 0, 1}
	macB = [6]byte{2, 0, 0, 0, 0, 2}
	ip4A = netip.MustParseAddr("10.0.0.1")
	ip4B = netip.MustParseAddr("10.0.0.2")
	ip6A = netip.MustParseAddr("fd00::1")
	ip6B = netip.MustParseAddr("fd00::2")
)

func newLink(t testing.TB, c Config, v6 bool, seed uint64) *link {
	t.Helper()
	mtu := cmp.Or(c.LinkMTU, 1500)
	slots := c.Slots
	slots = cmp.Or(slots, 1024)
	pool, err := packet.NewPool(slots, packet.Headroom+mtu+64, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{t: t, pool: pool, now: 1, latency: 1000, rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range l.nic {
		c := c
		c.Pool = pool
		c.Seed = seed + uint64(i)
		c.FirstQPN = uint32(0x100 * (i + 1))
		c.MAC, c.IP = macA, ip4A
		if i == 1 {
			c.MAC, c.IP = macB, ip4B
		}
		if v6 {
			c.IP = [2]netip.Addr{ip6A, ip6B}[i]
		}
		if l.nic[i], err = New(c); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// step lets both NICs send, then moves time on to the next event; false: there is none.
func (l *link) step() bool {
	for i, n := range l.nic {
		for {
			n.Output(l.now, &l.batch)
			k := l.batch.Len()
			for _, b := range l.batch.Bufs() {
				l.send(i, b)
			}
			l.batch.Reset()
			if k == 0 {
				break
			}
		}
	}
	next := min(l.nic[0].Deadline(), l.nic[1].Deadline())
	for _, f := range l.flight {
		next = min(next, f.at)
	}
	if next == clock.Never {
		return false
	}
	l.now = max(l.now, next)
	keep := l.spare[:0]
	arrived := l.flight
	l.flight = keep
	for _, f := range arrived {
		if f.at > l.now {
			l.flight = append(l.flight, f)
		} else {
			l.nic[f.to].Input(l.now, f.b)
		}
	}
	l.spare = arrived[:0]
	l.nic[0].Tick(l.now)
	l.nic[1].Tick(l.now)
	return true
}

func (l *link) run(max int) {
	l.t.Helper()
	for range max {
		if !l.step() {
			return
		}
	}
	l.t.Fatalf("still busy after %d steps: %+v %+v", max, l.nic[0].Stats(), l.nic[1].Stats())
}

func (l *link) chance(permille int) bool { return permille > 0 && l.rand.IntN(1000) < permille }

func (l *link) send(from int, b *packet.Buf) {
	p := b.Bytes()
	if l.tap != nil {
		l.tap(from, p)
	}
	if l.chance(l.faults.drop) || l.lose != nil && l.lose(from, p) {
		b.Put()
		return
	}
	at := l.now + l.latency
	if l.chance(l.faults.dup) {
		if c := l.pool.Get(); c != nil {
			c.SetBytes(p)
			l.flight = append(l.flight, inFlight{at + clock.Time(l.rand.IntN(20))*l.latency, 1 - from, c})
		}
	}
	if l.chance(l.faults.reorder) {
		at += clock.Time(1+l.rand.IntN(10)) * l.latency
	}
	if l.chance(l.faults.corrupt) {
		p[l.rand.IntN(len(p))] ^= byte(1 + l.rand.IntN(255))
	}
	if l.chance(l.faults.badICRC) {
		p[len(p)-1] ^= 1
	}
	l.flight = append(l.flight, inFlight{at, 1 - from, b})
}

// pair is a connected pair of queue pairs with a region on each side.
type pair struct {
	l   *link
	qp  [2]*QP
	cq  [2]*CQ
	pd  [2]*PD
	mr  [2]*MR
	mem [2][]byte
}

const (
	testVA  = 0x7F0000001000
	allFlag = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

func (l *link) pair(ty Type, c Conn, size int) *pair {
	l.t.Helper()
	p := &pair{l: l}
	for i, n := range l.nic {
		p.pd[i] = n.AllocPD()
		p.cq[i] = n.CreateCQ(4 * l.pool.Slots())
		p.mem[i] = make([]byte, size)
		var err error
		if p.mr[i], err = p.pd[i].RegMR(p.mem[i], testVA, allFlag); err != nil {
			l.t.Fatal(err)
		}
		if p.qp[i], err = n.CreateQP(QPInit{PD: p.pd[i], Type: ty, SendCQ: p.cq[i], RecvCQ: p.cq[i], Access: allFlag, QKey: 0x1234}); err != nil {
			l.t.Fatal(err)
		}
	}
	p.connect(c)
	return p
}

func (p *pair) connect(c Conn) {
	p.l.t.Helper()
	psn := [2]uint32{c.SQPSN, c.RQPSN}
	for i, q := range p.qp {
		peer := p.l.nic[1-i].Config()
		d := c
		d.RemoteMAC, d.RemoteIP, d.DestQPN = peer.MAC, peer.IP, p.qp[1-i].QPN
		d.SQPSN, d.RQPSN = psn[i], psn[1-i]
		if err := q.Connect(d); err != nil {
			p.l.t.Fatal(err)
		}
	}
}

func (p *pair) post(w *SendWR) {
	p.l.t.Helper()
	if err := p.qp[0].PostSend(w); err != nil {
		p.l.t.Fatal(err)
	}
}

// done runs the link until nothing is under way and returns the completions of a side.
func (p *pair) done(side int) []WC {
	p.l.t.Helper()
	p.l.run(1_000_000)
	w := make([]WC, p.cq[side].Len())
	p.cq[side].Poll(w)
	return w
}

// one expects exactly one completion.
func (p *pair) one(side int) WC {
	p.l.t.Helper()
	w := p.done(side)
	if len(w) != 1 {
		p.l.t.Fatalf("%d completions, want 1: %+v", len(w), w)
	}
	return w[0]
}

// conserved checks the sums of the counters and the pool's frames.
func (l *link) conserved() {
	l.t.Helper()
	if l.pool.InUse() != len(l.flight) {
		l.t.Errorf("%d frames are held, %d in flight", l.pool.InUse(), len(l.flight))
	}
	for i, n := range l.nic {
		s := n.Stats()
		in := s.RxRequests + s.RxResponses + s.RxControl + s.DropNotForUs + s.DropNotRoCE + s.DropMalformed + s.DropBadICRC +
			s.DropBadPKey + s.DropUnknownQPN + s.DropWrongPeer + s.DropBadQKey + s.DropBadState + s.DropStale + s.DropSequence +
			s.DropDuplicate + s.DropBusy + s.DropNoRecv + s.DropBadAccess + s.DropControl
		if in != s.RxFrames {
			l.t.Errorf("nic %d: %d frames in, %d accounted for: %+v", i, s.RxFrames, in, s)
		}
		if out := s.TxRequests + s.TxResponses + s.TxControl; out != s.TxFrames {
			l.t.Errorf("nic %d: %d frames out, %d accounted for: %+v", i, s.TxFrames, out, s)
		}
	}
}

// checkFrames makes the link check each frame that a NIC sends: it must parse, and its ICRC must be right.
func (l *link) checkFrames() {
	l.tap = func(from int, p []byte) {
		var f hdr.Frame
		if w := hdr.Parse(p, &f); w != hdr.IsRoCE {
			l.t.Errorf("sent a frame that is %v: %x", w, p)
		} else if hdr.ICRC(p, &f) != hdr.StoredICRC(p, &f) {
			l.t.Errorf("wrong ICRC in %x", p)
		}
	}
}
