package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// A tenant is the clients of one protection domain of a server, and the server's
// queue pairs and words that they use: a load for one worker. They answer without
// a loss, some frames in each round. Tenants share nothing but the server's
// address. Each queue pair counts on one word after the other by READ and
// compare-and-swap, one operation at a time.
type tenant struct {
	inst    *graph.Instance
	worker  int
	pool    *packet.Pool
	now     clock.Time
	pace    *pace // nil: it waits for nobody
	index   int   // in pace
	qps     []tenantQP
	words   []uint64
	base    uint64 // address of words
	rkey    uint32
	first   uint32          // number of its first queue pair
	batches [2]packet.Batch // for the two ports
	out     packet.Batch
	arrived [2][]parcel // at its clients, and at the server's queue pairs
	err     error

	// What another worker sent to it.
	mu      sync.Mutex
	foreign [2][]parcel
	some    atomic.Bool
	_       [2048]byte // as spaced
}

// parcel is a frame on its way.
type parcel struct {
	n int
	b [128]byte
}

// tenantQP is a connected pair of queue pairs.
type tenantQP struct {
	read, cas, readResp, atomicAck, ack stencil
	psn, epsn, msn                      uint32 // of the client's next request; what the server expects, and has answered
	word                                int
	seen                                uint64
	early                               []parcel // came to the server before their turn
}

// The load: so many queue pairs a tenant, on hosts of 16 each, frames that are
// answered in a round, words, and frames until the app has met them.
const (
	tenantQPs   = 48
	tenantBatch = 32
	tenantWords = 256
	tenantBase  = 0x7f0000000000
	tenantWarm  = mixFrames / 2
	tenantBytes = 75 // mean length of READs, compare-and-swaps, and their answers
	clientQPN   = 0x100
	serverQPN   = 0x1000
)

// stencil is a frame of which only a few fields change.
type stencil struct {
	bytes []byte
	f     hdr.Frame
}

// newStencil is a frame with n bytes behind its BTH.
func newStencil(src, dst netip.Addr, port uint16, op hdr.Opcode, qpn uint32, n int) (s stencil, err error) {
	const l3, l4, bth = hdr.EthernetLen, hdr.EthernetLen + 20, hdr.EthernetLen + 20 + hdr.UDPLen
	b := make([]byte, bth+hdr.BTHLen+n+hdr.ICRCLen)
	mac := func(a netip.Addr) [6]byte { return [6]byte{2, 0x77, 0, 0, 0, a.As4()[3]} }
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: mac(dst), Src: mac(src), EtherType: hdr.EtherIPv4})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(len(b) - l3), DF: true, TTL: 64, Protocol: 17, Src: src, Dst: dst})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: port, DstPort: hdr.RoCEv2Port, Len: uint16(len(b) - l4)})
	hdr.BTH(b[bth:]).Encode(&hdr.BTHFields{OpCode: op, Ack: true, PKey: 0xFFFF, DestQP: qpn})
	s.bytes = b
	if why := hdr.Parse(b, &s.f); why != hdr.IsRoCE {
		return s, fmt.Errorf("a frame of the benchmark does not parse: %v", why)
	}
	return s, nil
}

// spaced is an array of n with 2 KiB around it: the processor fetches what lies next to what it reads, too,
// and the other tenant's is not to be there.
func spaced[T any](n int) []T {
	var t T
	space := (2048 + int(unsafe.Sizeof(t)) - 1) / int(unsafe.Sizeof(t))
	return make([]T, n+2*space)[space:][:n:n]
}

func newTenant(n int) (*tenant, error) {
	t := &tenant{now: 1, qps: spaced[tenantQP](tenantQPs), words: spaced[uint64](tenantWords), base: tenantBase + uint64(n)<<20, rkey: 0x1111 * uint32(n+1), first: uint32(n * tenantQPs)}
	server := netip.AddrFrom4([4]byte{10, 77, 0, 101})
	for i := range t.arrived {
		t.arrived[i] = spaced[parcel](2 * tenantQPs)[:0]
	}
	for i := range t.qps {
		q := &t.qps[i]
		client := netip.AddrFrom4([4]byte{10, 77, 0, byte(11 + 3*n + i/16)})
		id := t.first + uint32(i)
		// First PSNs that are far apart: responses tell whose they are.
		q.psn, q.word = id*0x20000&hdr.PSNMask, i*7%tenantWords
		q.epsn = q.psn
		for _, x := range []struct {
			s        *stencil
			response bool
			op       hdr.Opcode
			n        int
		}{
			{&q.read, false, hdr.ReadRequest, hdr.RETHLen}, {&q.cas, false, hdr.CompareSwap, hdr.AtomicETHLen},
			{&q.readResp, true, hdr.ReadRespOnly, hdr.AETHLen + 8}, {&q.atomicAck, true, hdr.AtomicAck, hdr.AETHLen + hdr.AtomicAckETHLen},
			{&q.ack, true, hdr.Acknowledge, hdr.AETHLen},
		} {
			from, to, qpn := client, server, serverQPN+id
			if x.response {
				from, to, qpn = server, client, clientQPN+id
			}
			var err error
			if *x.s, err = newStencil(from, to, uint16(0xC000+id), x.op, qpn, x.n); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// start begins with the first operation of every queue pair.
func (t *tenant) start() {
	for i := range t.qps {
		t.ask(&t.qps[i], hdr.ReadRequest)
	}
}

// frame is a new frame, in the batch for a port.
func (t *tenant) frame(port int, s *stencil, psn uint32) []byte {
	x := t.pool.Get()
	x.SetBytes(s.bytes)
	b := x.Bytes()
	s.f.BTHOf(b).SetPSN(psn)
	if !t.batches[port].Add(x) {
		x.Put()
		t.err = fmt.Errorf("more than a batch is under way")
	}
	return b
}

// ask sends the next request of q.
func (t *tenant) ask(q *tenantQP, op hdr.Opcode) {
	va := t.base + 8*uint64(q.word)
	if op == hdr.ReadRequest {
		b := t.frame(0, &q.read, q.psn)
		h := q.read.f.RETHOf(b)
		h.SetVA(va)
		h.SetRKey(t.rkey)
		h.SetDMALength(8)
		hdr.SetICRC(b, &q.read.f)
		return
	}
	b := t.frame(0, &q.cas, q.psn)
	h := q.cas.f.AtomicETHOf(b)
	h.SetVA(va)
	h.SetRKey(t.rkey)
	h.SetCompare(q.seen)
	h.SetSwap(q.seen + 1)
	hdr.SetICRC(b, &q.cas.f)
}

// answered takes a frame that came to a client.
func (t *tenant) answered(b []byte) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	at := f.BTHOf(b).DestQP() - clientQPN - t.first
	if at >= tenantQPs {
		t.err = fmt.Errorf("a client got a frame for queue pair %#x", f.BTHOf(b).DestQP())
		return
	}
	q := &t.qps[at]
	if f.BTHOf(b).PSN() != q.psn {
		return // an acknowledgement of what was sent for another
	}
	q.psn = (q.psn + 1) & hdr.PSNMask
	switch f.Op {
	case hdr.ReadRespOnly:
		q.seen = binary.LittleEndian.Uint64(f.PayloadOf(b))
		t.ask(q, hdr.CompareSwap)
	case hdr.AtomicAck:
		if q.seen == f.AtomicAckETHOf(b).Original() {
			q.word = (q.word*5 + 3) % tenantWords // each in turn, in no order
			t.ask(q, hdr.ReadRequest)
		} else {
			q.seen = f.AtomicAckETHOf(b).Original()
			t.ask(q, hdr.CompareSwap)
		}
	default:
		t.err = fmt.Errorf("a client got %v", f.Op)
	}
}

// serve takes a frame that came to the server, and answers.
func (t *tenant) serve(b []byte) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	psn, at := f.BTHOf(b).PSN(), f.BTHOf(b).DestQP()-serverQPN-t.first
	if at >= tenantQPs {
		t.err = fmt.Errorf("the server got a frame for queue pair %#x", f.BTHOf(b).DestQP())
		return
	}
	q := &t.qps[at]
	if d := hdr.PSNDiff(psn, q.epsn); d > 0 {
		// Two workers sent on one connection.
		q.early = append(q.early, parcelOf(b))
		return
	} else if d < 0 {
		t.err = fmt.Errorf("the server got %v with PSN %#x, expected %#x", f.Op, psn, q.epsn)
		return
	}
	q.epsn = (q.epsn + 1) & hdr.PSNMask
	q.msn++
	respond := func(s *stencil, value uint64, order binary.ByteOrder) {
		r := t.frame(1, s, psn)
		s.f.AETHOf(r).SetMSN(q.msn)
		if o := int(s.f.BTH) + hdr.BTHLen + hdr.AETHLen; order != nil {
			order.PutUint64(r[o:], value)
		}
		hdr.SetICRC(r, &s.f)
	}
	word := func(va uint64) *uint64 { return &t.words[(va-t.base)/8%tenantWords] }
	switch f.Op {
	case hdr.ReadRequest:
		respond(&q.readResp, *word(f.RETHOf(b).VA()), binary.LittleEndian)
	case hdr.CompareSwap:
		h := f.AtomicETHOf(b)
		w := word(h.VA())
		was := *w
		if was == h.Compare() {
			*w = h.Swap()
		}
		respond(&q.atomicAck, was, binary.BigEndian)
	case hdr.WriteOnly:
		if p := f.PayloadOf(b); len(p) == 8 {
			*word(f.RETHOf(b).VA()) = binary.LittleEndian.Uint64(p)
		}
		respond(&q.ack, 0, nil)
	default:
		t.err = fmt.Errorf("the server got %v", f.Op)
	}
	for i := range q.early {
		p := q.early[i]
		if f.BTHOf(p.b[:]).PSN() == q.epsn {
			q.early = append(q.early[:i], q.early[i+1:]...)
			t.serve(p.b[:p.n])
			return
		}
	}
}

// parcelOf is a copy of a frame.
func parcelOf(b []byte) (p parcel) {
	p.n = copy(p.b[:], b)
	return p
}

// give takes a frame that a worker sent by a port.
func (t *tenant) give(port, worker int, b []byte) {
	if worker == t.worker {
		t.arrived[port] = append(t.arrived[port], parcelOf(b))
		return
	}
	t.mu.Lock()
	t.foreign[port] = append(t.foreign[port], parcelOf(b))
	t.mu.Unlock()
	t.some.Store(true)
}

// round lets some of what arrived be answered, and sends the answers. Those who have
// to wait make the rounds overlap.
func (t *tenant) round() (frames int, err error) {
	if t.some.Load() {
		t.some.Store(false)
		t.mu.Lock()
		for i := range t.foreign {
			t.arrived[i] = append(t.arrived[i], t.foreign[i]...)
			t.foreign[i] = t.foreign[i][:0]
		}
		t.mu.Unlock()
	}
	for i, name := range []string{"pa", "pb"} {
		t.now += 1000
		if t.pace != nil {
			t.pace.wait(t.index, t.now)
		}
		n := min(len(t.arrived[i]), tenantBatch)
		for k := range n {
			if p := &t.arrived[i][k]; i == 0 {
				t.answered(p.b[:p.n])
			} else {
				t.serve(p.b[:p.n])
			}
		}
		t.arrived[i] = t.arrived[i][:copy(t.arrived[i], t.arrived[i][n:])]
		t.out = t.batches[i]
		t.batches[i].Reset()
		if t.out.Len() == 0 {
			continue
		}
		frames += t.out.Len()
		if err := t.inst.PushTo(t.worker, name, t.now, &t.out); err != nil {
			return frames, err
		}
	}
	return frames, t.err
}

// tenantPort gives what an app sends to those whom it is for.
type tenantPort struct {
	drain
	worker int
	of     func(b []byte) *tenant
}

func (p *tenantPort) Tx(b *packet.Batch) (int, error) {
	n, port := b.Len(), 0
	if p.name == "pb" {
		port = 1
	}
	for _, x := range b.Bufs() {
		p.of(x.Bytes()).give(port, p.worker, x.Bytes())
	}
	b.PutAll()
	return n, nil
}

// tenants answer in turns, on one worker.
type tenants struct {
	all   []*tenant
	quiet int // rounds in which nothing was sent
	_     [64]byte
}

// step implements player: a round of each.
func (x *tenants) step() (frames int, err error) {
	for _, t := range x.all {
		n, err := t.round()
		if frames += n; err != nil {
			return frames, err
		}
	}
	if x.quiet++; frames > 0 {
		x.quiet = 0
	} else if x.quiet == 1<<20 {
		return 0, fmt.Errorf("all clients wait")
	}
	return frames, nil
}

// leave implements player.
func (x *tenants) leave() {
	for _, t := range x.all {
		if t.pace != nil {
			t.pace.done(t.index)
		}
	}
}

// rivals are two tenants of one app with so many workers.
type rivals struct {
	kind    string
	args    graph.Args
	workers int
	race    *race
	inst    *graph.Instance
	tenants [2]*tenant
}

// of is the tenant that a frame is for: their QPNs follow one another, at the clients
// and at the server.
func (r *rivals) of(b []byte) *tenant {
	const lowest = hdr.EthernetLen + 20 + hdr.UDPLen + 7 // byte of the QPN
	return r.tenants[int(b[lowest])/tenantQPs%2]
}

func (r *rivals) prepare() (func() (int, error), error) {
	c := graph.Config{Spec: Between(r.kind, r.args), Kinds: registry.Kinds(), Ports: map[string][]port.Port{}}
	var pools []*packet.Pool
	for w := range r.workers {
		pool, err := packet.NewPool(64*packet.MaxBatch, 2048, nil)
		if err != nil {
			return nil, err
		}
		pools = append(pools, pool)
		for _, name := range []string{"pa", "pb"} {
			c.Ports[name] = append(c.Ports[name], &tenantPort{drain{name, pool}, w, r.of})
		}
	}
	var err error
	if r.inst, err = graph.New(c); err != nil {
		return nil, err
	}
	for i := range r.tenants {
		t, err := newTenant(i)
		if err != nil {
			return nil, err
		}
		r.tenants[i] = t
		t.inst, t.worker = r.inst, i%r.workers
		t.pool = pools[t.worker]
		t.start()
	}
	all := []*tenants{{all: r.tenants[:]}}
	if r.workers > 1 {
		all = []*tenants{{all: r.tenants[:1]}, {all: r.tenants[1:]}}
	}
	// As what is timed: each worker gets its memory from its own thread.
	if err := atOnce(len(all), func(i int) error {
		for n := 0; n < tenantWarm/len(all); {
			moved, err := all[i].step()
			if n += moved; err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	p := &pace{}
	var players []player
	for i, x := range all {
		players = append(players, x)
		if r.workers > 1 {
			r.tenants[i].pace, r.tenants[i].index = p, i
		}
	}
	return func() (int, error) {
		defer r.inst.Close()
		return r.race.run(players...)
	}, nil
}
