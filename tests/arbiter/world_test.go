// Package arbiter plays clients that lock words at an arbiter, die, freeze, come back, and write late, over a network that loses, repeats and
// reorders, beside a host that lies, with an arbiter that is killed and stops, all in virtual time. A model that knows only what crossed the
// wire says what may happen.
package arbiter

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/arbiter"
	"github.com/quillon/quillon/nf/arbiter/client"
	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/fence"
)

const (
	hosts    = 4
	words    = 6
	lease    = 40 * time.Millisecond
	settle   = 5 * time.Millisecond
	maxWait  = 400 * time.Millisecond
	liar     = 66
	arbiterN = 9 // the last byte of its address, which is a server's
)

// servers are those of the memory, by their last byte; word i lies at server i%2.
var servers = [2]byte{9, 8}

func addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

func wordOf(i int, exclusive bool, qpn uint32) message.Word {
	return message.Word{Space: 0x0A000000 | uint32(servers[i%2]), Addr: uint64(0x1000 + 8*i), QPN: qpn, Exclusive: exclusive}
}

// rules are what a world is like.
type rules struct {
	fenced  bool
	adverse bool // the network loses, repeats and reorders
	lose    bool // a restart may lose the state
}

// step is one thing that happens to a world from outside.
type step struct {
	at   time.Duration
	do   byte
	host int
	n    uint64 // chooses
}

// What steps do.
const (
	doAcquire = iota
	doFreeze  // a host stops: what it sends comes later
	doStand   // so does its clock
	doDie     // a client dies, and its next incarnation comes
	doKill    // the arbiter is killed
	doStop    // the arbiter stands still
	doShut    // the operator shuts a host out, and lets it in
	doLie
	doRelease // before it has written
	numDo
)

// event is something at a time.
type event struct {
	at clock.Time
	do func()
}

// grant is what the arbiter has granted, as seen on the wire.
type grant struct {
	host  int
	life  uint64
	words []message.Word
}

// hostState is a client's machine.
type hostState struct {
	n      int
	life   uint64 // incarnation
	c      *client.Client
	frozen clock.Time // until then it does nothing
	lag    time.Duration
	lagged bool // its clock stood: it may believe what is over
	asked  map[uint32][]message.Word
	held   map[uint32]uint64 // request: token
	writes map[uint32]int    // not answered yet
	denied map[uint32]message.Result
	wakes  clock.Time
	qpn    uint32
}

// world is a run.
type world struct {
	rules
	r        *rand.Rand
	now      clock.Time
	q        []event // by time, those of one time in the order in which they were planned
	inst     *graph.Instance
	pool     *packet.Pool
	mem      map[string][]byte
	down     bool
	stopped  clock.Time
	backlog  []func()
	ends     [2]*end
	host     [hosts]*hostState
	asked    map[[3]uint64][]message.Word // by host, incarnation, request
	tokens   map[uint64]grant
	newest   map[uint64]uint64    // by word: the last token granted
	landing  map[[2]uint64]func() // by token and word: a WRITE under way; nil: it has landed
	last     uint64
	calm     bool       // no more faults
	idle     bool       // who is granted something does nothing with it
	operator string     // argument fence= of the fence
	args     graph.Args // of the arbiter
	err      error
	stats    map[string]int
	order    []int // of hosts, in which they were granted all words
}

func (w *world) failf(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("%v: %s", time.Duration(w.now), fmt.Sprintf(format, args...))
	}
}

func (w *world) after(d time.Duration, do func()) {
	at := w.now.Add(d)
	i, _ := slices.BinarySearchFunc(w.q, at+1, func(e event, t clock.Time) int { return cmp.Compare(e.at, t) })
	w.q = slices.Insert(w.q, i, event{at, do})
}

// end is a port of the graph.
type end struct {
	w     *world
	side  int
	stats port.Stats
}

func (e *end) Name() string                                     { return "" }
func (e *end) Pool() *packet.Pool                               { return e.w.pool }
func (e *end) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (e *end) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (e *end) Stats() port.Stats                                { return e.stats }
func (e *end) Close() error                                     { return nil }
func (e *end) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		e.stats.TxPackets++
		e.stats.TxBytes += uint64(x.Len())
		f := slices.Clone(x.Bytes())
		x.Put()
		if e.side == 0 {
			e.w.answered(f)
		} else {
			e.w.passed(f)
		}
	}
	b.Shift(n)
	return n, nil
}

// start starts the functions, with what they find in memory.
func (w *world) start() {
	args := graph.Args{"addr": addr(arbiterN).String(), "max-lease": lease.String(), "settle": settle.String(), "max-wait": maxWait.String(), "clients": "12", "locks": "64", "each": "40", "waiting": "12"}
	s := &graph.Spec{Ports: map[string]graph.PortSpec{"pa": {Kind: "test"}, "pb": {Kind: "test"}}, Apps: map[string]graph.AppSpec{"arbiter": {Kind: "arbiter", Args: args}},
		Links: []string{"pa.out -> arbiter.a", "arbiter.a -> pa.in"}}
	if w.fenced {
		args["fence"] = "fence"
		s.Apps["fence"] = graph.AppSpec{Kind: "fence", Args: graph.Args{"settle": settle.String(), "fence": w.operator}}
		s.Links = append(s.Links, "arbiter.b -> fence.a", "fence.a -> arbiter.b", "fence.b -> pb.in", "pb.out -> fence.b")
	} else {
		s.Links = append(s.Links, "arbiter.b -> pb.in", "pb.out -> arbiter.b")
	}
	w.args, w.ends = args, [2]*end{{w: w, side: 0}, {w: w, side: 1}}
	var err error
	w.inst, err = graph.New(graph.Config{Spec: s, Kinds: kinds, Ports: map[string][]port.Port{"pa": {w.ends[0]}, "pb": {w.ends[1]}}, Seed: w.r.Uint64(),
		Memory: func(app string, size int) ([]byte, error) {
			if len(w.mem[app]) < size {
				w.mem[app] = append(w.mem[app], make([]byte, size-len(w.mem[app]))...)
			}
			return w.mem[app][:size], nil
		}})
	if err != nil {
		panic(err)
	}
}

var kinds = []graph.Kind{*arbiter.Kind(), *fence.Kind()}

// come has a frame come to the box from the clients' side.
func (w *world) come(f []byte) {
	if w.down {
		return // what crosses meanwhile in the kernel names no queue pair of anybody's
	}
	if w.stopped > w.now {
		w.backlog = append(w.backlog, func() { w.come(f) })
		return
	}
	x := w.pool.Get()
	if x == nil || !x.SetBytes(f) {
		panic("no buffer")
	}
	var b packet.Batch
	b.Add(x)
	if err := w.inst.Push("pa", w.now, &b); err != nil {
		panic(err)
	}
	w.timer()
}

// timer has the graph's timers run in time.
func (w *world) timer() {
	if at := w.inst.NextTick(); at != clock.Never {
		inst := w.inst
		w.after(max(0, at.Sub(w.now)), func() {
			if w.inst != inst || w.down || w.stopped > w.now || inst.NextTick() > w.now {
				return
			}
			if _, err := inst.Step(w.now); err != nil {
				panic(err)
			}
			w.timer()
		})
	}
}

// header puts Ethernet, IPv4 and UDP headers around a payload.
func header(src, dst byte, sport, dport uint16, payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, hdr.EthernetLen+hdr.IPv4Len+hdr.UDPLen, 42+len(payload))
	copy(b, []byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 8, 0, 0x45, 0})
	be.PutUint16(b[16:], uint16(28+len(payload)))
	b[20], b[22], b[23] = 0x40, 64, hdr.ProtoUDP
	copy(b[26:], []byte{10, 0, 0, src, 10, 0, 0, dst})
	be.PutUint16(b[24:], hdr.Checksum(b[14:34], 0))
	be.PutUint16(b[34:], sport)
	be.PutUint16(b[36:], dport)
	be.PutUint16(b[38:], uint16(8+len(payload)))
	return append(b, payload...)
}

// travel brings a frame to where it goes, as the network is.
func (w *world) travel(bad bool, do func()) {
	d := time.Duration(20+w.r.IntN(60)) * time.Microsecond
	if bad && w.adverse && !w.calm {
		switch w.r.IntN(12) {
		case 0:
			return
		case 1:
			w.after(d+time.Duration(w.r.IntN(30))*time.Millisecond, do) // twice
		case 2:
			d += time.Duration(w.r.IntN(30)) * time.Millisecond
		}
	}
	w.after(d, do)
}

// sends has a host send a datagram to the arbiter.
func (w *world) sends(h *hostState, p []byte) {
	var m message.Message
	if m.Parse(p) && m.Op == message.Acquire {
		w.asked[[3]uint64{uint64(h.n), m.Incarnation, uint64(m.Request)}] = slices.Clone(m.Words[:m.N])
	}
	f := header(byte(h.n+1), arbiterN, uint16(1000+h.life%64), message.Port, p)
	w.travel(true, func() { w.come(f) })
}

// answered sees an answer of the arbiter's leave.
func (w *world) answered(f []byte) {
	var m message.Message
	n := int(f[33])
	if !m.Parse(f[42:]) || !m.Answer || hdr.Checksum(f[34:], hdr.PseudoSum(addr(arbiterN), addr(byte(n)), hdr.ProtoUDP, len(f)-34)) != 0 {
		w.failf("% x is no answer", f)
		return
	}
	if n == liar {
		w.lie(&m)
		return
	}
	h := w.host[n-1]
	if m.Op == message.Acquire && m.Result == message.OK {
		w.granted(h, &m)
	}
	if binary.BigEndian.Uint16(f[36:]) != uint16(1000+h.life%64) {
		return // of a former incarnation's socket
	}
	p := f[42:]
	w.travel(true, func() { w.receive(h, p) })
}

// granted notes what was granted.
func (w *world) granted(h *hostState, m *message.Message) {
	was, ok := w.tokens[m.Token]
	if ok {
		if was.host != h.n || was.life != m.Incarnation {
			w.failf("token %d was host %d's, and is granted to host %d", m.Token, was.host, h.n)
		}
		return
	}
	all := w.asked[[3]uint64{uint64(h.n), m.Incarnation, uint64(m.Request)}]
	if all == nil {
		w.failf("host %d did not ask for request %d", h.n, m.Request)
	}
	if m.Incarnation == h.life && h.denied[m.Request] != 0 {
		w.failf("host %d: request %d was denied, and is granted", h.n, m.Request)
	}
	if m.Token <= w.last {
		w.failf("token %d after %d", m.Token, w.last)
	}
	w.last = m.Token
	w.tokens[m.Token] = grant{h.n, m.Incarnation, all}
	for _, x := range all {
		w.newest[x.Addr] = m.Token
	}
	w.stats["granted"]++
	if len(all) == words {
		w.order = append(w.order, h.n)
	}
}

// clock is a host's.
func (w *world) clock(h *hostState) clock.Time { return w.now.Add(-h.lag) }

func (w *world) receive(h *hostState, p []byte) {
	if h.frozen > w.now {
		w.after(h.frozen.Sub(w.now), func() { w.receive(h, p) })
		return
	}
	h.c.Receive(w.clock(h), p)
	w.hear(h)
	w.drive(h)
}

// hear takes what a client's machine says.
func (w *world) hear(h *hostState) {
	for e, ok := h.c.Poll(); ok; e, ok = h.c.Poll() {
		switch e.Kind {
		case client.Granted:
			if h.denied[e.Request] != 0 {
				w.failf("host %d: request %d is denied and granted", h.n, e.Request)
			}
			h.held[e.Request] = e.Token
			w.believe(h, e.Request)
			if !w.idle {
				w.work(h, e.Request)
			}
		case client.Denied:
			h.denied[e.Request] = e.Result
			w.stats["denied "+e.Result.String()]++
		case client.Released:
			delete(h.held, e.Request)
			h.denied[e.Request] = message.TimedOut // from now on it is not granted
			w.stats["released"]++
		case client.Lost:
			w.stats["lost"]++
			w.renewed(h)
		}
	}
}

// holds reports whether a host believes that it holds what a request has got.
func (w *world) holds(h *hostState, id uint32) bool {
	return h.held[id] != 0 && w.clock(h) < h.c.Until()
}

// believe checks that nobody else believes to hold what a host holds.
func (w *world) believe(h *hostState, id uint32) {
	if h.lagged || !w.holds(h, id) {
		return
	}
	for _, o := range w.host {
		if o == h || o.lagged {
			continue
		}
		for other := range o.held {
			if !w.holds(o, other) {
				continue
			}
			for _, x := range h.asked[id] {
				for _, y := range o.asked[other] {
					if x.Addr == y.Addr && (x.Exclusive || y.Exclusive) {
						w.failf("hosts %d and %d both hold %#x", h.n, o.n, x.Addr)
					}
				}
			}
		}
	}
}

// work has a host write the words that it holds alone, and then release them. What it has looked at may be over when the frame leaves.
func (w *world) work(h *hostState, id uint32) {
	life := h.life
	w.after(time.Duration(w.r.IntN(8))*time.Millisecond, func() {
		if h.life != life || h.held[id] == 0 {
			return
		}
		if h.frozen > w.now {
			w.after(h.frozen.Sub(w.now), func() { w.work(h, id) })
			return
		}
		if !w.holds(h, id) {
			w.release(h, id) // it knows that it is too late
			return
		}
		w.believe(h, id)
		token := h.held[id]
		for _, x := range h.asked[id] {
			if x.Exclusive {
				h.writes[id]++
				w.write(h, x, token, func() {
					if h.life == life {
						if h.writes[id]--; h.writes[id] == 0 {
							w.release(h, id)
						}
					}
				})
			}
		}
		if h.writes[id] == 0 {
			w.release(h, id)
		}
	})
}

func (w *world) release(h *hostState, id uint32) {
	life := h.life
	if h.c.Release(w.clock(h), id) {
		delete(h.held, id)
		w.drive(h)
	} else if h.held[id] != 0 { // all of its places are in use
		w.after(time.Millisecond, func() {
			if h.life == life {
				w.release(h, id)
			}
		})
	}
}

// write sends a WRITE; done is called when it has landed.
func (w *world) write(h *hostState, x message.Word, token uint64, done func()) {
	be := binary.BigEndian
	p := []byte{0x0A, 0, 0xFF, 0xFF}
	p = be.AppendUint32(p, x.QPN)
	p = be.AppendUint32(p, 0)
	p = be.AppendUint64(p, x.Addr)
	p = be.AppendUint32(p, 0x1234)
	p = be.AppendUint32(p, 8)
	p = be.AppendUint64(p, token)
	p = append(p, 0, 0, 0, 0)
	f := header(byte(h.n+1), byte(x.Space), 0xC000, 4791, p)
	key, life := [2]uint64{token, x.Addr}, h.life
	w.landing[key] = done
	var leave func()
	leave = func() {
		switch {
		case h.life != life || w.landing[key] == nil: // its queue pair is gone, or the server has answered
		case h.frozen > w.now:
			w.after(h.frozen.Sub(w.now), leave)
		default:
			w.come(f)
			w.after(15*time.Millisecond, leave)
		}
	}
	d := 10 * time.Microsecond
	if !w.calm && w.r.IntN(6) == 0 {
		d = time.Duration(w.r.IntN(150)) * time.Millisecond // in its card, or its client was stopped just now
	}
	w.after(d, leave)
}

// passed sees a frame leave towards the servers.
func (w *world) passed(f []byte) {
	if binary.BigEndian.Uint16(f[36:]) != 4791 {
		return
	}
	w.after(time.Duration(w.r.Int64N(int64(settle))), func() {
		at, token := binary.BigEndian.Uint64(f[54:]), binary.BigEndian.Uint64(f[70:])
		done := w.landing[[2]uint64{token, at}]
		if done == nil {
			return // twice
		}
		w.landing[[2]uint64{token, at}] = nil
		if w.newest[at] != token {
			if w.stats["harm"]++; w.fenced {
				w.failf("a write of host %d under token %d lands in %#x, which was granted again under %d", w.tokens[token].host, token, at, w.newest[at])
			}
		}
		w.stats["landed"]++
		done()
	})
}

// drive sends what a host has to send, and has it do so in time.
func (w *world) drive(h *hostState) {
	if h.frozen > w.now {
		w.wake(h, h.frozen)
		return
	}
	for p := h.c.Next(w.clock(h), nil); p != nil; p = h.c.Next(w.clock(h), nil) {
		w.sends(h, p)
	}
	if at := h.c.Deadline(); at != clock.Never {
		w.wake(h, at.Add(h.lag))
	}
}

func (w *world) wake(h *hostState, at clock.Time) {
	if h.wakes > w.now && h.wakes <= at {
		return
	}
	h.wakes = max(at, w.now+1)
	at = h.wakes
	w.after(at.Sub(w.now), func() {
		if h.wakes == at {
			h.wakes = 0
			w.drive(h)
		}
	})
}

// renewed has a host begin another life.
func (w *world) renewed(h *hostState) {
	n := h.n
	life := h.life + 1
	*h = hostState{n: n, life: life, lag: h.lag, frozen: h.frozen, asked: map[uint32][]message.Word{}, held: map[uint32]uint64{}, writes: map[uint32]int{}, denied: map[uint32]message.Result{}, qpn: uint32(n+1)<<8 | uint32(life)}
	if life%3 == 0 {
		h.qpn = 0 // it does not say by which it writes: the whole host is shut out from a server
	}
	h.c = client.New(client.Config{Incarnation: life, Lease: lease, Retry: 2 * time.Millisecond, Nonce: w.r.Uint64})
}

// acquire has a host ask for words.
func (w *world) acquire(h *hostState, n uint64) {
	r := rand.New(rand.NewPCG(n, 1))
	var all []message.Word
	for _, i := range r.Perm(words)[:1+r.IntN(4)] {
		all = append(all, wordOf(i, r.IntN(3) > 0, h.qpn))
	}
	wait := time.Duration(0)
	if r.IntN(2) == 0 {
		wait = time.Duration(r.IntN(60)) * time.Millisecond
	}
	w.asks(h, wait, all)
}

func (w *world) asks(h *hostState, wait time.Duration, all []message.Word) (uint32, bool) {
	id, ok := h.c.Acquire(w.clock(h), wait, all...)
	if ok {
		h.asked[id] = all
		w.drive(h)
	}
	return id, ok
}

// check compares the arbiter's table with what the wire has shown: each grant is there whole or not at all, and nobody shares what
// is one's alone.
func (w *world) check() {
	if w.down {
		return
	}
	by := map[uint64]int{}
	alone, holders := map[uint64]bool{}, map[uint64]int{}
	if err := w.inst.ReadTable("arbiter", "locks", func(e *table.Entry) error {
		at, token := e.Key[1].V.Lo, e.Key[2].V.Lo
		by[token]++
		holders[at]++
		alone[at] = alone[at] || e.Params[2].Lo != 0
		return nil
	}); err != nil {
		w.failf("%v", err)
	}
	for at, n := range holders {
		if n > 1 && alone[at] {
			w.failf("%#x has %d holders, and one holds it alone", at, n)
		}
	}
	for token, n := range by {
		if g, ok := w.tokens[token]; ok && n != len(g.words) {
			w.failf("of the grant %d of %d words %d are held", token, len(g.words), n)
		}
	}
}

// perform does a step.
func (w *world) perform(s *step) {
	h := w.host[s.host]
	long := time.Duration(s.n%120) * time.Millisecond
	switch s.do {
	case doAcquire:
		if h.frozen <= w.now {
			w.acquire(h, s.n)
		}
	case doFreeze, doStand:
		h.frozen = w.now.Add(long)
		if s.do == doStand {
			h.lag += long
			h.lagged = true
		}
		w.drive(h)
	case doDie:
		w.renewed(h)
	case doKill:
		w.down = true
		if s.n%3 == 0 && w.lose && !w.fenced {
			w.mem = map[string][]byte{}
			w.stats["state lost"]++
		}
		w.after(long/4, func() {
			if w.down = false; w.inst != nil {
				w.start()
				w.timer()
			}
		})
	case doStop:
		w.stopped = w.now.Add(long)
		w.after(long, func() {
			if w.stopped <= w.now {
				b := w.backlog
				w.backlog = nil
				for _, f := range b {
					f()
				}
				w.timer()
			}
		})
	case doShut:
		h.lagged = h.lagged || w.fenced
		w.shut(byte(s.host+1), long)
	case doLie:
		w.lies(s.n)
	case doRelease:
		for _, id := range slices.Sorted(maps.Keys(h.asked)) {
			if h.denied[id] == 0 && h.writes[id] == 0 && h.frozen <= w.now && h.c.Release(w.clock(h), id) {
				delete(h.held, id)
				w.drive(h)
				break
			}
		}
	}
}

// shut has the operator shut a host out of a server for a while.
func (w *world) shut(n byte, long time.Duration) {
	if !w.fenced || w.down {
		return
	}
	var set func(string)
	set = func(v string) {
		if w.down {
			w.after(time.Millisecond, func() { set(v) })
			return
		}
		w.operator = v
		if _, err := w.inst.Set("fence", graph.Args{"fence": v, "settle": settle.String()}); err != nil {
			w.failf("%v", err)
		}
		w.timer()
	}
	set(addr(n).String() + "-" + addr(servers[n%2]).String())
	w.after(long, func() { set("none") })
}

// lies has a host send what is not its own: requests under others' addresses with sessions that it makes up, and what it may send itself.
func (w *world) lies(n uint64) {
	r := rand.New(rand.NewPCG(n, 2))
	for range 1 + r.IntN(4) {
		victim := w.host[r.IntN(hosts)]
		m := message.Message{Op: message.Op(1 + r.IntN(4)), Request: uint32(r.IntN(40)), Incarnation: victim.life + uint64(r.IntN(3)), Session: r.Uint64(), Lease: 1 + r.Uint32N(1000), Handle: uint32(r.IntN(64)), Token: w.last - uint64(r.IntN(3)), Wait: r.Uint32N(100)}
		src, sport := byte(victim.n+1), uint16(1000+victim.life%64)
		if r.IntN(4) == 0 { // its own
			src, sport, m.Client = liar, uint16(r.IntN(3))+1, uint32(r.IntN(4))
			m.Op = message.Hello
		}
		if m.Op == message.Acquire {
			m.N = 1 + r.IntN(words)
			for i := range m.N {
				m.Words[i] = wordOf(i, true, 0)
			}
		}
		p := m.Append(nil)
		if r.IntN(8) == 0 {
			p[r.IntN(len(p))] ^= 1 << r.IntN(8)
			p = p[:len(p)-r.IntN(2)]
		}
		f := header(src, arbiterN, sport, message.Port, p)
		w.after(time.Duration(r.IntN(2000))*time.Microsecond, func() { w.come(f) })
	}
}

// lie has the lying host use a session of its own: for words of nobody's, and for requests that make no sense.
func (w *world) lie(m *message.Message) {
	if m.Op != message.Hello || w.calm {
		return
	}
	w.stats["lies"]++
	m.Answer, m.Op, m.Request, m.Lease, m.N = false, message.Op(2+w.r.IntN(3)), uint32(w.r.IntN(20)), 20, w.r.IntN(3)
	m.Token, m.Handle = w.last, uint32(w.r.IntN(64))
	for i := range m.N {
		m.Words[i] = message.Word{Space: 0x0A000008, Addr: uint64(0x9000 + 8*w.r.IntN(4)), Exclusive: true}
	}
	f := header(liar, arbiterN, 1+uint16(m.Client)%3, message.Port, m.Append(nil))
	w.after(100*time.Microsecond, func() { w.come(f) })
}

// run lets time pass until a time, or until done.
func (w *world) run(until clock.Time, done func() bool) {
	for n := 0; w.err == nil && len(w.q) > 0 && w.q[0].at <= until && (done == nil || !done()); n++ {
		e := w.q[0]
		w.q = w.q[1:]
		w.now = max(w.now, e.at)
		e.do()
		if n%64 == 0 {
			w.check()
		}
		if n > 200_000 {
			w.failf("it goes on for ever")
		}
	}
	if done == nil || !done() {
		w.now = max(w.now, until)
	}
}

// script is what happens to the world of a seed.
func script(seed uint64) (rules, []step) {
	r := rand.New(rand.NewPCG(seed, 3))
	k := rules{fenced: seed%2 == 0, adverse: r.IntN(4) > 0, lose: true}
	var s []step
	var at time.Duration
	for range 10 + r.IntN(40) {
		at += time.Duration(r.IntN(12)) * time.Millisecond
		x := step{at: at, host: r.IntN(hosts), n: r.Uint64()}
		if r.IntN(5) < 2 {
			x.do = byte(1 + r.IntN(numDo-1))
		}
		s = append(s, x)
	}
	return k, s
}

// begin is a world of these rules before anything has happened.
func begin(seed uint64, k rules) *world {
	w := &world{rules: k, r: rand.New(rand.NewPCG(seed, 4)), now: 1_800_000_000_000_000_000, mem: map[string][]byte{}, asked: map[[3]uint64][]message.Word{},
		tokens: map[uint64]grant{}, newest: map[uint64]uint64{}, landing: map[[2]uint64]func(){}, stats: map[string]int{}, operator: "none"}
	w.pool = pool
	for i := range w.host {
		w.host[i] = &hostState{n: i}
		w.renewed(w.host[i])
	}
	return w
}

// play is a world of these rules to which that happens.
func play(seed uint64, k rules, s []step) *world {
	w := begin(seed, k)
	for i := range s {
		w.after(s[i].at+lease+settle, func() { w.perform(&s[i]) })
	}
	w.start()
	w.timer()
	end := w.now.Add(lease + settle + time.Millisecond)
	if len(s) > 0 {
		end = end.Add(s[len(s)-1].at)
	}
	w.run(end, nil)
	// All faults end. Whoever then wants all words gets them in its turn, as nobody is dead, and nothing is held that nobody knows of.
	w.calm = true
	w.run(w.now.Add(400*time.Millisecond), nil)
	for i, h := range w.host { // so that later incarnations are known
		w.asks(h, 0, []message.Word{wordOf(i, true, h.qpn)})
	}
	w.run(w.now.Add(200*time.Millisecond), nil)
	w.order = nil
	var ids [hosts]uint32
	for i, h := range w.host {
		var all []message.Word
		for n := range words {
			all = append(all, wordOf(n, true, h.qpn))
		}
		var ok bool
		if ids[i], ok = w.asks(h, maxWait, all); !ok {
			w.failf("host %d cannot ask", i)
		}
		w.run(w.now.Add(time.Millisecond), nil)
	}
	w.run(w.now.Add(maxWait), func() bool { return len(w.order) == hosts })
	if !slices.Equal(w.order, []int{0, 1, 2, 3}) {
		w.failf("hosts 0 to 3 stood in line and were granted %v: %v %v %v %v", w.order, w.host[0].denied[ids[0]], w.host[1].denied[ids[1]], w.host[2].denied[ids[2]], w.host[3].denied[ids[3]])
	}
	w.run(w.now.Add(100*time.Millisecond), nil)
	w.check()
	if err := w.inst.Conservation(); err != nil {
		w.failf("%v", err)
	}
	return w
}

// pool is of all worlds.
var pool = func() *packet.Pool {
	p, err := packet.NewPool(256, 2048, nil)
	if err != nil {
		panic(err)
	}
	return p
}()

// shrink leaves out of a script what a failure does not need.
func shrink(seed uint64, k rules, s []step) []step {
	for again := true; again; {
		again = false
		for i := len(s) - 1; i >= 0; i-- {
			if fewer := slices.Delete(slices.Clone(s), i, i+1); play(seed, k, fewer).err != nil {
				s, again = fewer, true
			}
		}
	}
	return s
}
