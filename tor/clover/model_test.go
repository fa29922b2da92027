package clover

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// frameOf builds a RoCEv2 frame with right checksums.
type frameOf struct {
	src, dst netip.Addr
	sport    uint16
	op       hdr.Opcode
	qpn, psn uint32
	ext      []byte // extended headers
	payload  []byte
	ackReq   bool
}

func (f frameOf) bytes() []byte {
	v6 := f.src.Is6()
	l3 := 20
	if v6 {
		l3 = 40
	}
	n := 14 + l3 + 8 + hdr.BTHLen + len(f.ext) + len(f.payload) + hdr.ICRCLen
	b := make([]byte, n)
	et := uint16(hdr.EtherIPv4)
	if v6 {
		et = hdr.EtherIPv6
	}
	copy(b, []byte{0x52, 0x54, 0, 0x77, 0, 1, 0x52, 0x54, 0, 0x77, 0, 2, byte(et >> 8), byte(et)})
	if v6 {
		hdr.IPv6(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 54), NextHeader: 17, HopLimit: 64, Src: f.src, Dst: f.dst})
	} else {
		hdr.IPv4(b[14:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(n - 14), DF: true, TTL: 64, Protocol: 17, Src: f.src, Dst: f.dst})
	}
	u := b[14+l3:]
	binary.BigEndian.PutUint16(u, f.sport)
	binary.BigEndian.PutUint16(u[2:], hdr.RoCEv2Port)
	binary.BigEndian.PutUint16(u[4:], uint16(n-14-l3))
	hdr.BTH(u[8:]).Encode(&hdr.BTHFields{OpCode: f.op, PKey: 0xFFFF, DestQP: f.qpn, PSN: f.psn, Ack: f.ackReq})
	copy(u[20:], f.ext)
	copy(u[20+len(f.ext):], f.payload)
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

const (
	entrySize = wire.MinSlab
	memBase   = 0x557a46b78000
	memRKey   = 0x57251
	startPSN  = 0xFFFF80 // wraps soon
)

// cell is an entry in the model's memory.
type cell struct {
	head wire.Pointer
	key  uint64
	id   uint64 // of the write; 0 = none
}

// model is a memory node with its clients, and a network that may lose
// frames, in which every step is chosen at random.
type model struct {
	t                testing.TB
	rng              *rand.Rand
	box              *graphtest.Test
	loss             float64
	v6               bool
	mem              []cell // by handle
	free             []uint32
	next             uint32
	first            map[uint64]uint32   // key -> handle of the chain's first entry
	done             map[uint64][]uint64 // key -> ids recycled out of the chain
	acked            map[uint64][]uint64
	clients          []*client
	qps              []*serverQP
	toSrv            [][]byte // in flight behind the box
	ids              uint64
	record           func(in string, frame []byte)
	pick             func() uint64 // the next operation's key
	firstTry, writes int
	// strict: an acknowledged entry can be reached at once, not only in the end.
	strict bool
	memory []byte // that outlives the app, as does the ports' guard
	// away: there is no app. Frames cross, but for those that the guard stops.
	away  bool
	waits int // frames that were stopped
	// retries is how often a client repeats a request before its queue pair
	// fails; 0: for ever.
	retries int
}

type serverQP struct {
	epsn    uint32
	naked   bool
	msn     uint32
	atomics map[uint32]uint64
}

type pointer struct {
	lh  uint32
	ver uint8
}

// client is one closed-loop Clover client on a queue pair of its own.
type client struct {
	n       int
	psn     uint32
	cache   map[uint64]pointer
	state   uint8 // idle, writing, linking, reading
	key     uint64
	entry   pointer
	target  pointer
	id      uint64
	request []byte // unanswered
	toBox   [][]byte
	toCli   [][]byte
	tried   int
	wait    int
	again   int // repetitions of the request
	dead    bool
}

const (
	idle uint8 = iota
	writing
	linking
	reading
)

func va(lh uint32) uint64 { return memBase + uint64(lh)*entrySize }

func (m *model) addrOf(n int) netip.Addr {
	if m.v6 {
		return netip.AddrFrom16([16]byte{0xfd, 0x77, 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 77, 0, byte(n)})
}

const server = 1

func (m *model) send(c *client, op hdr.Opcode, ext, payload []byte) {
	c.request = frameOf{src: m.addrOf(2 + c.n%3), dst: m.addrOf(server), sport: uint16(0xC000 + c.n), op: op,
		qpn: uint32(0x100 + c.n), psn: c.psn, ext: ext, payload: payload, ackReq: true}.bytes()
	c.toBox = append(c.toBox, c.request)
	c.wait = 0
}

func (m *model) newEntry() pointer {
	if n := len(m.free); n > 0 && m.rng.IntN(4) > 0 {
		lh := m.free[0]
		m.free = m.free[1:]
		return pointer{lh, m.mem[lh].head.Version()} // the recycler stored the next version
	}
	lh := m.next
	m.next++
	m.mem = append(m.mem, cell{})
	return pointer{lh, 1}
}

// begin starts an operation of an idle client.
func (m *model) begin(c *client, write bool) {
	c.key = m.pick()
	if _, ok := c.cache[c.key]; !ok {
		c.cache[c.key] = m.ask(c.key)
	}
	if !write {
		c.state = reading
		m.read(c)
		return
	}
	m.ids++
	m.writes++
	c.id, c.tried = m.ids, 0
	c.entry = m.newEntry()
	c.state = writing
	p := make([]byte, entrySize)
	binary.LittleEndian.PutUint64(p, uint64(wire.Fresh(c.entry.ver)))
	binary.LittleEndian.PutUint64(p[8:], c.key)
	binary.LittleEndian.PutUint64(p[16:], c.id)
	m.send(c, hdr.WriteOnly, reth(va(c.entry.lh), memRKey, entrySize), p)
}

func (m *model) read(c *client) {
	c.target = c.cache[c.key]
	m.send(c, hdr.ReadRequest, reth(va(c.target.lh), memRKey, entrySize), nil)
}

func (m *model) link(c *client) {
	c.state = linking
	c.tried++
	swap := wire.Pointer(c.entry.lh)<<28 | wire.Pointer(c.entry.ver)<<19 | wire.Fresh(c.target.ver)
	m.send(c, hdr.CompareSwap, atomicETH(va(c.target.lh), memRKey, uint64(swap), uint64(wire.Fresh(c.target.ver))), nil)
}

// ask is the metadata server: the first entry of the chain.
func (m *model) ask(key uint64) pointer {
	lh := m.first[key]
	return pointer{lh, m.mem[lh].head.Version()}
}

// walk follows a chain from p; own: it passed through the client's own entry.
func (m *model) walk(c *client, p pointer) (tail pointer, own bool) {
	if m.mem[p.lh].head.Version() != p.ver {
		p = m.ask(c.key)
	}
	for n := 0; ; n++ {
		if n > len(m.mem) {
			m.t.Fatalf("key %d: the chain is a ring", c.key)
		}
		own = own || p == c.entry && c.state == linking
		h := m.mem[p.lh].head
		if h.LH() == 0 {
			return p, own
		}
		p = pointer{h.LH(), h.NextVersion()}
	}
}

// answer takes a frame that reached client c.
func (m *model) answer(c *client, b []byte) {
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
		m.t.Fatalf("client got a broken frame: %v", why)
	}
	psn := f.BTHOf(b).PSN()
	if c.request == nil || psn != c.psn {
		return
	}
	if f.Op == hdr.Acknowledge && f.AETHOf(b).Syndrome().NAK() {
		c.toBox = append(c.toBox, c.request)
		return
	}
	switch {
	case c.state == writing && f.Op == hdr.Acknowledge:
		c.done()
		c.target = c.cache[c.key]
		m.link(c)
	case c.state == linking && f.Op == hdr.AtomicAck:
		c.done()
		ok := f.AtomicAckETHOf(b).Original() == uint64(wire.Fresh(c.target.ver))
		if ok && c.tried == 1 {
			m.firstTry++
		}
		if !ok {
			t, own := m.walk(c, c.target)
			if !own {
				c.target = t
				m.link(c)
				return
			}
		}
		m.acked[c.key] = append(m.acked[c.key], c.id)
		if m.strict && !m.reachable(c.key, c.id) {
			m.t.Fatalf("key %d: write %d is acknowledged and cannot be reached", c.key, c.id)
		}
		c.cache[c.key] = c.entry
		c.state = idle
	case c.state == reading && f.Op == hdr.ReadRespOnly:
		c.done()
		p := f.PayloadOf(b)
		h := wire.Pointer(binary.LittleEndian.Uint64(p))
		if h.Version() != c.target.ver {
			c.cache[c.key] = m.ask(c.key)
			m.read(c)
			return
		}
		if got := binary.LittleEndian.Uint64(p[8:]); got != c.key {
			m.t.Fatalf("asked for key %d, got key %d with the version that was expected", c.key, got)
		}
		if h.LH() != 0 {
			c.cache[c.key], _ = m.walk(c, c.target)
		}
		c.state = idle
	}
}

func (c *client) done() {
	c.request, c.again = nil, 0
	c.psn = (c.psn + 1) & hdr.PSNMask
}

// serve takes a frame that reached the memory node and returns its answer.
func (m *model) serve(b []byte) []byte {
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
		m.t.Fatalf("server got a broken frame: %v", why)
	}
	bth := f.BTHOf(b)
	n := int(bth.DestQP() - 0x100)
	q := m.qps[n]
	psn := bth.PSN()
	r := frameOf{src: m.addrOf(server), dst: m.addrOf(2 + n%3), sport: uint16(0xC000 + n), qpn: uint32(0x500 + n), psn: psn}
	aeth := hdr.AETH(make([]byte, hdr.AETHLen))
	d := hdr.PSNDiff(psn, q.epsn)
	if d > 0 {
		if q.naked {
			return nil
		}
		q.naked = true
		aeth.SetSyndrome(hdr.SynNAKSequence)
		aeth.SetMSN(q.msn)
		r.op, r.psn, r.ext = hdr.Acknowledge, q.epsn, aeth
		return r.bytes()
	}
	again := d < 0
	if !again {
		q.naked = false
		q.epsn = (q.epsn + 1) & hdr.PSNMask
		q.msn++
	}
	aeth.SetMSN(q.msn)
	at := func(va uint64) *cell {
		lh := (va - memBase) / entrySize
		if va < memBase || (va-memBase)%entrySize != 0 || lh >= uint64(len(m.mem)) {
			m.t.Fatalf("request for 0x%x, outside of the memory", va)
		}
		return &m.mem[lh]
	}
	switch f.Op {
	case hdr.WriteOnly:
		if !again {
			p := f.PayloadOf(b)
			*at(f.RETHOf(b).VA()) = cell{wire.Pointer(binary.LittleEndian.Uint64(p)), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])}
		}
		r.op, r.ext = hdr.Acknowledge, aeth
	case hdr.CompareSwap:
		if !again {
			a := f.AtomicETHOf(b)
			x := at(a.VA())
			q.atomics[psn] = uint64(x.head)
			if uint64(x.head) == a.Compare() {
				x.head = wire.Pointer(a.Swap())
				if x.key != m.mem[x.head.LH()].key {
					m.t.Fatalf("an entry of key %d was linked behind one of key %d", m.mem[x.head.LH()].key, x.key)
				}
			}
		}
		orig, ok := q.atomics[psn]
		if !ok {
			return nil
		}
		ack := hdr.AtomicAckETH(make([]byte, 8))
		ack.SetOriginal(orig)
		r.op, r.ext = hdr.AtomicAck, append(aeth, ack...)
	case hdr.ReadRequest:
		x := at(f.RETHOf(b).VA())
		p := make([]byte, entrySize)
		binary.LittleEndian.PutUint64(p, uint64(x.head))
		binary.LittleEndian.PutUint64(p[8:], x.key)
		binary.LittleEndian.PutUint64(p[16:], x.id)
		r.op, r.ext, r.payload = hdr.ReadRespOnly, aeth, p
	default:
		m.t.Fatalf("server got %v", f.Op)
	}
	return r.bytes()
}

// recycle gives the first entry of a chain back, with the next version.
func (m *model) recycle(key uint64) {
	lh := m.first[key]
	x := &m.mem[lh]
	if x.head.LH() == 0 || x.head.Version() >= 250 {
		return
	}
	if x.id != 0 {
		m.done[key] = append(m.done[key], x.id)
	}
	m.first[key] = x.head.LH()
	*x = cell{head: wire.Fresh(x.head.Version() + 1), key: ^uint64(0)}
	m.free = append(m.free, lh)
}

func newModel(t testing.TB, seed uint64, clients, keys int, loss float64, v6 bool, args graph.Args) *model {
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 7)), loss: loss, v6: v6, next: 1, mem: make([]cell, 1),
		first: map[uint64]uint32{}, done: map[uint64][]uint64{}, acked: map[uint64][]uint64{}}
	m.box = graphtest.NewKept(t, *Kind(), args, graphtest.Start, &m.memory)
	m.pick = func() uint64 {
		if m.rng.IntN(2) == 0 {
			return 0 // hot
		}
		return uint64(m.rng.IntN(keys))
	}
	for k := range keys {
		m.mem = append(m.mem, cell{head: wire.Fresh(1), key: uint64(k)})
		m.first[uint64(k)] = m.next
		m.next++
	}
	for n := range clients {
		m.clients = append(m.clients, &client{n: n, psn: startPSN, cache: map[uint64]pointer{}})
		m.qps = append(m.qps, &serverQP{epsn: startPSN, atomics: map[uint32]uint64{}})
	}
	return m
}

// shift takes the first frame of a queue; nil when it is lost.
func (m *model) shift(q *[][]byte) []byte {
	b := (*q)[0]
	*q = (*q)[1:]
	if m.rng.Float64() < m.loss {
		return nil
	}
	return b
}

// through sends a frame through the app.
func (m *model) through(in string, b []byte) {
	if m.record != nil {
		m.record(in, b)
	}
	if m.away {
		m.cross(in, b)
		return
	}
	r := m.box.Push(in, b)
	for _, x := range r.Out["b"] {
		m.toSrv = append(m.toSrv, x.Bytes)
	}
	for _, x := range r.Out["a"] {
		m.toClient(x.Bytes)
	}
}

func (m *model) toClient(b []byte) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	c := m.clients[f.BTHOf(b).DestQP()-0x500]
	c.toCli = append(c.toCli, b)
}

// cross does with a frame what the kernel does while no process is there.
func (m *model) cross(in string, b []byte) {
	var f hdr.Frame
	hdr.Parse(b, &f)
	switch {
	case in == "b":
		m.toClient(b)
	case m.box.Guard != nil && m.box.Guard.Stops(m.addrOf(server), b[f.BTH:]):
		m.waits++
	default:
		m.toSrv = append(m.toSrv, b)
	}
}

// restart replaces the app by one that knows only the record. The frames that wait on either side of it go
// on.
func (m *model) restart(args graph.Args) {
	guard := m.box.Guard
	m.box = graphtest.NewKept(m.t, *Kind(), args, m.box.Clock.Now(), &m.memory)
	m.box.Guard = guard
}

// step lets one thing happen. stop: no new operations.
func (m *model) step(stop bool) {
	c := m.clients[m.rng.IntN(len(m.clients))]
	m.box.Clock.Advance(2000)
	if c.dead {
		c.toBox, c.toCli = nil, nil
	}
	switch m.rng.IntN(6) {
	case 0:
		if c.state == idle && !stop && !c.dead {
			m.begin(c, m.rng.IntN(2) == 0)
		}
	case 1:
		if len(c.toBox) > 0 {
			if b := m.shift(&c.toBox); b != nil {
				m.through("a", b)
			}
		}
	case 2, 3:
		if len(m.toSrv) > 0 {
			if b := m.shift(&m.toSrv); b != nil {
				if r := m.serve(b); r != nil && m.rng.Float64() >= m.loss {
					m.through("b", r)
				}
			}
		}
	case 4:
		if len(c.toCli) > 0 {
			if b := m.shift(&c.toCli); b != nil {
				m.answer(c, b)
			}
		}
	case 5:
		if c.request != nil && !c.dead {
			if c.wait++; c.wait > 40 && len(c.toBox) == 0 { // time-out: go back
				c.toBox = append(c.toBox, c.request)
				c.wait = 0
				c.again++
				c.dead = m.retries > 0 && c.again > m.retries
			}
		}
		if m.rng.IntN(8) == 0 {
			m.recycle(uint64(m.rng.IntN(len(m.first))))
		}
	}
}

// reachable reports whether write id is in the chain of its key, or was.
func (m *model) reachable(key, id uint64) bool {
	n := 0
	for lh := m.first[key]; lh != 0; lh = m.mem[lh].head.LH() {
		if m.mem[lh].id == id {
			return true
		}
		if n++; n > len(m.mem) {
			m.t.Fatalf("key %d: the chain is a ring", key)
		}
	}
	return slices.Contains(m.done[key], id)
}

// check walks every chain: acknowledged writes must be in it, or have been.
func (m *model) check() {
	m.t.Helper()
	for key, ids := range m.acked {
		in := map[uint64]bool{}
		for _, id := range m.done[key] {
			in[id] = true
		}
		n := 0
		for lh := m.first[key]; lh != 0; lh = m.mem[lh].head.LH() {
			x := m.mem[lh]
			if x.key != key {
				m.t.Fatalf("key %d: an entry of key %d is in the chain", key, x.key)
			}
			in[x.id] = true
			if n++; n > len(m.mem) {
				m.t.Fatalf("key %d: the chain is a ring", key)
			}
		}
		for _, id := range ids {
			if !in[id] {
				m.t.Fatalf("key %d: acknowledged write %d is lost", key, id)
			}
		}
	}
}

// round lets every client send, the server answer, and every client read its
// answer: frames of one direction come together, as under load.
func (m *model) round() {
	m.box.Clock.Advance(20000)
	for _, c := range m.clients {
		if c.state == idle {
			m.begin(c, m.rng.IntN(2) == 0)
		}
	}
	for _, c := range m.clients {
		for _, b := range c.toBox {
			m.through("a", b)
		}
		c.toBox = nil
	}
	reqs := m.toSrv
	m.toSrv = nil
	for _, b := range reqs {
		if r := m.serve(b); r != nil {
			m.through("b", r)
		}
	}
	for _, c := range m.clients {
		for _, b := range c.toCli {
			m.answer(c, b)
		}
		c.toCli = nil
	}
}

func (m *model) run(steps int) {
	for range steps {
		m.step(false)
	}
	for n := 0; ; n++ { // let the operations under way end
		busy := false
		for _, c := range m.clients {
			busy = busy || c.state != idle && !c.dead
		}
		if !busy {
			break
		}
		if n > 400*steps {
			m.t.Fatal("clients do not come to an end")
		}
		m.step(true)
	}
	m.check()
}

// TestLateAnswer: the answer to a CAS was lost, the entry that it linked was
// recycled and written again, and then the server repeated the answer.
func TestLateAnswer(t *testing.T) {
	m := newModel(t, 1087, 18, 8, 0.1, true, graph.Args{"settle": "0", "keys": "16", "addrs": "8", "repair": "1ms", "recycled": "adjust"})
	m.run(8000)
}

// TestNothingIsLost runs clients against a memory through the app, with every
// interleaving, loss and recycling that chance offers: each acknowledged write
// is in its chain, no chain mixes keys or closes, no read returns another key.
func TestNothingIsLost(t *testing.T) {
	steps := 12000
	if testing.Short() {
		steps = 6000
	}
	for _, mode := range []string{"off", "write", "read-write"} {
		for _, loss := range []float64{0, 0.02, 0.2} {
			for _, hot := range []string{"0", "2"} {
				for _, addrs := range []string{"8", "16", "4096"} {
					for seed := uint64(0); seed < 5; seed++ {
						name := fmt.Sprintf("%s/loss=%v/hot=%s/addrs=%s/%d", mode, loss, hot, addrs, seed)
						t.Run(name, func(t *testing.T) {
							args := graph.Args{"mode": mode, "settle": "0", "hot": hot, "keys": "16", "addrs": addrs, "repair": "1ms", "recycled": []string{"adjust", "pass"}[seed%2]}
							m := newModel(t, seed, 2+int(seed)*5, 6, loss, seed%2 == 1, args)
							m.strict = true
							m.run(steps)
							cas, rd := m.box.Counter("steered-cas"), m.box.Counter("steered-read")
							if mode == "off" && cas+rd > 0 || mode == "write" && rd > 0 {
								t.Errorf("mode %s steered %d CAS and %d reads", mode, cas, rd)
							}
							if mode == "read-write" && loss == 0 && hot == "0" && addrs == "4096" && seed > 0 && (cas == 0 || rd == 0) {
								t.Errorf("nothing was steered: %d CAS, %d reads", cas, rd)
							}
						})
					}
				}
			}
		}
	}
}

// TestFirstTry: with everything steered, nearly all writes succeed at once.
func TestFirstTry(t *testing.T) {
	rate := func(mode string) float64 {
		m := newModel(t, 11, 12, 4, 0, false, graph.Args{"mode": mode, "settle": "0", "recycled": "adjust"})
		m.run(60000)
		return float64(m.firstTry) / float64(m.writes)
	}
	off, on := rate("off"), rate("read-write")
	t.Logf("first try: %.3f without steering, %.3f with", off, on)
	if on < 0.95 || off > 0.8 {
		t.Errorf("first try: %.3f without steering, %.3f with", off, on)
	}
}

// TestRestart kills the app again and again, makes it forget, or lets requests pass around it: correctness
// never depends on the app's knowledge.
func TestRestart(t *testing.T) {
	steered := uint64(0)
	for seed := range uint64(9) {
		args := graph.Args{"settle": "2ms", "keys": "16", "repair": "1ms", "mode": "read-write", "addrs": []string{"8", "4096"}[seed%2]}
		off := maps.Clone(args)
		off["mode"] = "off"
		m := newModel(t, seed, 2+int(seed)*2, 1+int(seed), []float64{0.01, 0.1, 0.2}[seed/3], seed%2 == 1, args)
		for range 8 {
			for range 2500 {
				m.step(false)
			}
			steered += m.box.Counter("steered-cas")
			switch seed % 3 {
			case 0:
				m.restart(args)
			case 1:
				m.box.App().(graph.Flusher).Flush(nil)
			case 2:
				if err := m.box.Set(off); err != nil {
					t.Fatal(err)
				}
				for range 1500 {
					m.step(false)
				}
				if err := m.box.Set(args); err != nil {
					t.Fatal(err)
				}
			}
		}
		m.run(2500)
	}
	if steered == 0 {
		t.Error("nothing was steered")
	}
}

// TestDeaths lets clients die in each state, and the app with them or alone: no acknowledged write is lost.
// Where clients are never sent behind an entry that is not linked (ahead=0), or the app lives, each entry can
// be reached from the time that its client gets the answer. Otherwise it can be reached when the next app is
// there, while others go on appending to the same key until then.
func TestDeaths(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 3
	}
	for _, c := range []struct {
		name    string
		clients int // number of clients that die
		boxes   int // deaths of the app
		ahead   string
		recycle string
		away    int // steps without an app
	}{
		{"clients", 8, 0, "16384", "adjust", 0},
		{"box", 0, 6, "0", "pass", 0},
		{"box and clients", 6, 6, "0", "pass", 0},
		{"box and clients, behind others", 6, 6, "16384", "pass", 4000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var steered, held, repaired, aw uint64
			waits, died := 0, 0
			for seed := range seeds * uint64(1+c.away/1000) {
				args := graph.Args{"settle": "0", "keys": "16", "repair": "1ms", "addrs": "4096", "ahead": c.ahead, "recycled": c.recycle}
				m := newModel(t, seed, 12, 1, []float64{0.02, 0.1, 0.2}[seed%3], seed%2 == 1, args)
				m.strict, m.retries = c.away == 0, 40
				note := func() {
					steered += m.box.Counter("steered-cas")
					held += m.box.Counter("answer-held")
					repaired += m.box.Counter("repaired")
				}
				deaths := max(c.clients, c.boxes)
				for i := range deaths {
					for range 30000 {
						m.step(false)
					}
					died++
					if i < c.clients {
						m.die(c.boxes > 0)
					}
					if i < c.boxes {
						note()
						m.away = true
						for range c.away {
							m.step(false)
						}
						m.away = false
						m.restart(args)
					}
				}
				m.run(3000)
				note()
				waits += m.waits
				aw += m.box.Counter("awaits")
			}
			t.Logf("AW %d", aw)
			t.Logf("%d steered, %d answers came again while held, %d CASes repaired, %d deaths, %d atomics waited without an app", steered, held, repaired, died, waits)
			if steered == 0 || repaired == 0 || c.ahead != "0" && held == 0 || c.away > 0 && waits == 0 {
				t.Error("nothing happened")
			}
		})
	}
}

// die ends a client that has sent a CAS which is not answered, if there is one,
// and loses what it has on the way; else the first that is alive.
func (m *model) die(withBox bool) {
	var x *client
	for _, c := range m.clients {
		if !c.dead && (x == nil || c.state == linking && x.state != linking) {
			x = c
		}
	}
	x.dead = true
	kept := m.toSrv[:0]
	for _, b := range m.toSrv {
		var f hdr.Frame
		hdr.Parse(b, &f)
		if f.BTHOf(b).DestQP() != uint32(0x100+x.n) || !withBox && m.rng.IntN(2) == 0 {
			kept = append(kept, b)
		}
	}
	m.toSrv = kept
}
