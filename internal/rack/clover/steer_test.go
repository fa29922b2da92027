package clover

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// steerer redirects CASes, and READs of entries, to the entry that it believes is the tail. It believes this
// as soon as the CAS that would make the entry the tail passes. It keeps only the rules that Client demands
// of a middlebox: it loses CASes after it has believed them, forgets everything at times, and translates
// answers. When lazy, it leaves alone the requests whose answers it would have to translate.
type steerer struct {
	rng    *rand.Rand
	slab   int
	reads  bool
	lazy   bool
	drop   float64 // share of CASes and of their answers that it drops
	forget float64 // share of packets after which it forgets all tails
	layout func() Layout
	node   [4]byte // address of the memory node

	tails                    map[uint64]Pointer // by key
	keyOf                    map[uint64]Pointer // by address: the entry written there
	keys                     map[uint64]uint64  // by address: its key
	roads                    map[[2]uint32]road // by destination QPN and PSN
	tried                    map[Pointer]bool   // entries whose first CAS passed
	back                     map[uint32]uint32  // client's QPN -> server's
	steered, dropped, reread int
}

// road is how a request was changed.
type road struct {
	va             uint64
	compare, swap  uint64
	asked, got     uint64 // CAS: compare values
	read           bool
	askedV, gotV   uint8
	translateReply bool
}

func newSteerer(seed uint64, slab int) *steerer {
	return &steerer{rng: rand.New(rand.NewPCG(seed, 9)), slab: slab, tails: map[uint64]Pointer{},
		keyOf: map[uint64]Pointer{}, keys: map[uint64]uint64{}, roads: map[[2]uint32]road{}, tried: map[Pointer]bool{}, back: map[uint32]uint32{}}
}

// bind tells the box the connections to its memory node, as a connection manager would tell them.
func (s *steerer) bind(cl *Cluster, node int) {
	s.layout, s.node = cl.Layout, cl.MemoryAddr(node).As4()
	for _, c := range cl.Connections() {
		if c.Memory && c.Server == cl.MemoryAddr(node) {
			s.back[uint32(c.Client.As4()[3])<<24|c.ClientQPN] = c.ServerQPN
		}
	}
}

func (s *steerer) pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf)) {
	var f hdr.Frame
	x := b.Bytes()
	if hdr.Parse(x, &f) != hdr.IsRoCE || f.Net != hdr.NetIPv4 {
		emit(b)
		return
	}
	if s.forget > 0 && s.rng.Float64() < s.forget {
		clear(s.tails)
	}
	if up && [4]byte(x[f.L3+16:]) != s.node {
		// The bridge sent this frame to all ports.
	} else if up {
		if !s.request(x, &f) {
			s.dropped++
			b.Put()
			return
		}
	} else if !s.answer(x, &f) {
		s.dropped++
		b.Put()
		return
	}
	emit(b)
}

func (s *steerer) request(x []byte, f *hdr.Frame) bool {
	h := f.BTHOf(x)
	at := [2]uint32{h.DestQP(), h.PSN()}
	switch f.Op {
	case hdr.WriteOnly:
		if r := f.RETHOf(x); int(r.DMALength()) == s.slab {
			p := f.PayloadOf(x)
			key := u64(p, wire.KeyAt)
			s.keyOf[r.VA()], s.keys[r.VA()] = pointerAt(p, 0), key
		}
	case hdr.CompareSwap:
		a := f.AtomicETHOf(x)
		ro, known := s.roads[at]
		if !known {
			ro = road{va: a.VA(), compare: a.Compare(), swap: a.Swap()}
			own := Pointer(a.Swap()).Next()
			var key uint64
			ok := false
			if _, va := s.layout().Entry(own.LH()); s.keyOf[va] == wire.Fresh(own.Version()) {
				key, ok = s.keys[va]
			}
			if ok && !s.tried[own] {
				s.tried[own] = true
				if t := s.tails[key]; t != 0 && (!s.lazy || uint64(wire.Fresh(t.Version())) == ro.compare) {
					_, va := s.layout().Entry(t.LH())
					if va != ro.va {
						s.steered++
					}
					ro.va, ro.asked, ro.got = va, ro.compare, uint64(wire.Fresh(t.Version()))
					ro.compare, ro.swap = ro.got, uint64(wire.Linked(t.Version(), own))
					ro.translateReply = true
				}
				s.tails[key] = own
			}
			s.roads[at] = ro
		}
		a.SetVA(ro.va)
		a.SetCompare(ro.compare)
		a.SetSwap(ro.swap)
		hdr.SetICRC(x, f)
		// The box believes this CAS; now the CAS can be lost.
		return s.rng.Float64() >= s.drop
	case hdr.ReadRequest:
		r := f.RETHOf(x)
		if !s.reads || int(r.DMALength()) != s.slab {
			break
		}
		ro, known := s.roads[at]
		if !known {
			ro = road{va: r.VA(), read: true}
			key, ok := s.keys[r.VA()]
			if t := s.tails[key]; ok && t != 0 {
				_, va := s.layout().Entry(t.LH())
				ro.askedV, ro.gotV = s.keyOf[r.VA()].Version(), t.Version()
				if va != ro.va && (!s.lazy || ro.askedV == ro.gotV) {
					s.reread++
					ro.va, ro.translateReply = va, true
				}
			}
			s.roads[at] = ro
		}
		r.SetVA(ro.va)
		hdr.SetICRC(x, f)
	}
	return true
}

func (s *steerer) answer(x []byte, f *hdr.Frame) bool {
	h := f.BTHOf(x)
	ip := uint32(x[f.L3+19])
	qpn, ok := s.back[ip<<24|h.DestQP()]
	if !ok {
		return true
	}
	ro := s.roads[[2]uint32{qpn, h.PSN()}]
	switch {
	case f.Op == hdr.AtomicAck:
		if ro.translateReply {
			switch a := f.AtomicAckETHOf(x); a.Original() {
			case ro.got:
				a.SetOriginal(ro.asked)
			case ro.asked:
				// The CAS failed at an entry whose version is the one that the client expects at its own
				// entry.
				a.SetOriginal(0)
			}
			hdr.SetICRC(x, f)
		}
		return s.rng.Float64() >= s.drop
	case f.Op == hdr.ReadRespOnly && ro.read && ro.translateReply && int(f.End-f.Payload) == s.slab:
		p := f.PayloadOf(x)
		if w := pointerAt(p, 0); w.Version() == ro.gotV && ro.gotV != ro.askedV {
			put64(p, 0, uint64(w)&^uint64(wire.Fresh(0xFF))|uint64(wire.Fresh(ro.askedV)))
			hdr.SetICRC(x, f)
		}
	}
	return true
}

func TestSteering(t *testing.T) {
	for _, c := range []struct {
		name         string
		reads, lazy  bool
		drop, forget float64
		entries      int // few, so that entries are recycled
		keys         int
		theta        float64
		memory       int
	}{
		{name: "write"},
		{name: "write-read", reads: true},
		{name: "losses", reads: true, drop: 0.05},
		{name: "forgets", reads: true, drop: 0.02, forget: 0.01},
		{name: "recycling", reads: true, drop: 0.02, forget: 0.005, entries: 700},
		{name: "lazy-recycling", reads: true, lazy: true, drop: 0.02, forget: 0.005, entries: 700},
		{name: "cold-recycling", reads: true, drop: 0.02, forget: 0.002, entries: 380, keys: 80, theta: 0.3},
		{name: "cold-lazy-recycling", reads: true, lazy: true, drop: 0.02, forget: 0.002, entries: 380, keys: 80, theta: 0.3},
		{name: "two-memory-nodes", reads: true, drop: 0.02, forget: 0.001, memory: 2},
		{name: "two-memory-nodes-recycling", reads: true, drop: 0.02, forget: 0.001, memory: 2, entries: 200, keys: 80, theta: 0.3},
	} {
		for i := range uint64(4) {
			seed, search := i%2, Search(i/2)
			t.Run(fmt.Sprintf("%s-%d-%s", c.name, seed, search), func(t *testing.T) {
				memory := max(c.memory, 1)
				var boxes []*steerer
				var asBox []box
				for i := range memory {
					x := newSteerer(seed+uint64(i)*100, 128)
					x.reads, x.lazy, x.drop, x.forget = c.reads, c.lazy, c.drop, c.forget
					boxes, asBox = append(boxes, x), append(asBox, x)
				}
				x := boxes[0]
				cfg := hot(ycsb.A)
				cfg.Seed, cfg.Search, cfg.Nap = seed, search, 20*time.Microsecond
				cfg.Keys = ycsb.Sequential(0, 16)
				if c.keys > 0 {
					cfg.Keys, cfg.Theta = ycsb.Sequential(0, c.keys), c.theta
				}
				if c.entries > 0 {
					cfg.Entries, cfg.Metadata.GCBelow = c.entries+200*int(search), 1 // each thread keeps up to 16 entries
				}
				r := newRig(t, cfg, 3, memory, asBox...)
				for i, x := range boxes {
					x.bind(r.cl, i)
				}
				m := r.run(300, time.Hour)
				r.sound(int(m.Writes))
				st := r.cl.ClientStats()
				if x.steered == 0 || c.reads && x.reread == 0 || c.drop > 0 && x.dropped == 0 {
					t.Errorf("steered %d CASes and %d READs, dropped %d", x.steered, x.reread, x.dropped)
				}
				if c.name == "write" && st.CASFailed > st.Writes/20 {
					t.Errorf("%d of %d CASes failed although they were steered", st.CASFailed, st.Writes)
				}
				if c.entries > 0 && r.cl.meta.Stats().Recycled == 0 {
					t.Error("nothing was recycled")
				}
				t.Logf("box: steered %d reread %d dropped %d; %+v; %+v", x.steered, x.reread, x.dropped, st, r.cl.meta.Stats())
			})
		}
	}
}
