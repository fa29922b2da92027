package sim

import (
	"math/rand/v2"
	"net/netip"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Kinds of events of a machine.
const (
	kindArrive uint32 = iota // a frame's last bit is in
	kindReady                // the NIC wants to execute it
	kindNext                 // a queue pair's next request may execute
	kindExec                 // it executes: the endpoint gets it
	kindSend                 // a frame goes to the cable
	kindWake                 // the endpoint has work
)

// times is NIC in virtual time.
type times struct {
	send, receive, respond, complete            Time
	message, qpMessage                          Time
	hostRead, hostAtomic, deviceAccess          Time
	hostOccupancy, deviceOccupancy, deviceWrite Time
	hostUpdate, deviceUpdate                    Time
	atomicInterval                              Time
	slotMask                                    uint64
	stall                                       [16]float64 // shares, added up
	sameRead                                    Time
	verb                                        Time
	contexts                                    int
	contextMiss                                 Time
	holdAnswers                                 bool
	threads                                     int
	quantum                                     Time
}

func (n *NIC) inTime() times {
	t := times{
		send: From(n.Send), receive: From(n.Receive), respond: From(n.Respond), complete: From(n.Complete),
		message: From(n.Message), qpMessage: From(n.QPMessage),
		hostRead: From(n.HostRead), hostAtomic: From(n.HostAtomic), deviceAccess: From(n.DeviceAccess),
		hostOccupancy: From(n.HostOccupancy), deviceOccupancy: From(n.DeviceOccupancy), deviceWrite: From(n.DeviceWrite), hostUpdate: From(n.HostUpdate), deviceUpdate: From(n.DeviceUpdate),
		atomicInterval: From(n.AtomicInterval), slotMask: 1<<n.SlotBits - 1,
		sameRead: From(n.SameRead), verb: From(n.Verb), contexts: n.Contexts, contextMiss: From(n.ContextMiss), holdAnswers: n.HoldAnswers, threads: n.Threads, quantum: From(n.Quantum),
	}
	sum := 0.0
	for i, x := range n.Stall {
		sum += x
		t.stall[i] = sum
	}
	return t
}

// Machine is a host with a NIC, on a port of the switch.
type Machine struct {
	Name string
	MAC  [6]byte
	IP   netip.Addr

	w        *World
	id       uint32
	index    int
	nic      times
	port     Port
	worker   host.Worker
	alive    bool
	guarded  bool
	apart    bool // its frames are not counted
	up, down link
	rng      *rand.Rand

	rxFree     Time // the NIC takes its next message
	atomicFree Time // the atomic unit takes its next
	slots      []slot
	reads      []slot
	in         []flow   // by our queue pair: requests and answers that come
	out        [][]flow // by peer and its queue pair: those that go
	threads    int      // that flows of requests are bound to
	contexts   []uint32 // queue pairs whose contexts are in the NIC
	device     []span
	wakeAt     Time
	deviceOp   bool // the request that executes is on device memory
	held       Time // for which the answer of the request that executes is held up
	atomic     atomic
	frame      hdr.Frame
	stats      MachineStats
}

// MachineStats are a machine's totals.
type MachineStats struct {
	Executed [4]uint64 // requests by class: SEND, WRITE, READ, atomic
	Stalled  uint64
	Fetched  uint64 // contexts of queue pairs
	Waited   uint64 // atomics that found their slot taken
	Lost     uint64 // frames that came while the machine was down
}

// reads is how many addresses that were read last are remembered.
const reads = 1 << 12

// slot is what the atomic unit serialises.
type slot struct {
	free     Time
	occupied Time   // by the last atomic
	va       uint64 // of it
}

// atomic is the one that executes.
type atomic struct {
	slot    *slot // nil: none
	compare uint64
	adds    bool // it changes the word whatever it is
}

// flow is the order that a queue pair keeps.
type flow struct {
	taken  Time // requests that come: when the NIC took the last one
	ready  Time // when the last one may execute
	next   Time // when the next message may
	sent   Time // answers that go: when the last one does
	wait   fifo // requests that come, in order
	cached bool // the NIC has its context

	threads []poster // that post to it
	poster  int      // the one that posted last
	posted  Time
}

// poster is a thread that posts to a queue pair.
type poster struct {
	busy Time // until its last post is done
	turn int  // its number, from 1; 0: it always runs
}

// turn chooses who posts next: the next thread that is not busy with a post of
// its own (one that waits for a processor is), or who is not for the shortest
// time.
func (q *flow) turn(now Time) {
	n := len(q.threads)
	switch n {
	case 0:
		q.threads = append(q.threads, poster{})
		return
	case 1:
		return
	}
	best := -1
	for k := 1; k <= n; k++ {
		i := (q.poster + k) % n
		if best < 0 || q.threads[i].busy < q.threads[best].busy {
			best = i
		}
		if q.threads[best].busy <= now {
			break
		}
	}
	q.poster = best
}

// waiting is a request that waits for its queue pair.
type waiting struct {
	arg uint64
	buf *packet.Buf
}

// fifo is a ring that grows.
type fifo struct {
	ring    []waiting
	head, n int
}

func (f *fifo) push(x waiting) {
	if f.n == len(f.ring) {
		r := make([]waiting, max(8, 2*f.n))
		k := copy(r, f.ring[f.head:])
		copy(r[k:], f.ring[:f.head])
		f.ring, f.head = r, 0
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = x
	f.n++
}

func (f *fifo) front() *waiting { return &f.ring[f.head] }

func (f *fifo) pop() waiting {
	x := f.ring[f.head]
	f.ring[f.head] = waiting{}
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	return x
}

type span struct{ from, to uint64 }

// Port is the machine's port.
func (m *Machine) Port() port.Port { return &m.port }

// Drive makes wk the machine's endpoint: it breathes through Port.
func (m *Machine) Drive(wk host.Worker) {
	m.worker = wk
	m.wake(m.w.k.now)
}

// DeviceMemory tells that n addresses from va on are memory of the NIC.
func (m *Machine) DeviceMemory(va uint64, n int) {
	m.device = append(m.device, span{va, va + uint64(n)})
}

// Bind says which threads of the machine, numbered from 0, post requests to a
// peer's queue pair. One thread takes turns with the machine's others. Several
// that share the queue pair always run: requests leave it in order, so that one
// without a processor would keep the others'.
func (m *Machine) Bind(peer *Machine, qpn uint32, threads ...int) {
	q := m.flowOut(peer.index, qpn)
	q.threads = make([]poster, len(threads))
	for _, t := range threads {
		m.threads = max(m.threads, t+1)
	}
	if len(threads) == 1 {
		q.threads[0].turn = threads[0] + 1
	}
}

// Links are the totals of the cable.
func (m *Machine) Links() (up, down LinkStats) { return m.up.stats, m.down.stats }

// Stats are the totals of the NIC.
func (m *Machine) Stats() MachineStats { return m.stats }

func (m *Machine) wake(t Time) {
	if t < m.wakeAt {
		m.wakeAt = t
		m.w.k.plan(t, m.id, kindWake, 0, nil)
	}
}

func (m *Machine) fire(kind uint32, arg uint64, b *packet.Buf) {
	if !m.alive {
		if b != nil {
			m.stats.Lost++
			b.Put()
		}
		return
	}
	switch kind {
	case kindArrive:
		m.arrive(b)
	case kindReady:
		m.ready(arg, b)
	case kindNext:
		m.following(uint32(arg >> 40))
	case kindExec:
		m.execute(arg, b)
	case kindSend:
		m.w.carry(&m.up, m.w.k.now, m.w.swID, 0, uint64(m.index), b)
	case kindWake:
		if m.wakeAt <= m.w.k.now {
			m.wakeAt = never
			m.breathe()
		}
	}
}

// A request under way in the NIC, in an event's argument:
//
//	63..40 queue pair | 39..24 offset of the BTH | 7..0 opcode
func pack(qpn uint32, f *hdr.Frame) uint64 {
	return uint64(qpn&0xFFFFFF)<<40 | uint64(f.BTH)<<24 | uint64(f.Op)
}

func (m *Machine) flowIn(qpn uint32) *flow {
	i := int(qpn & 0xFFFF)
	for i >= len(m.in) {
		m.in = append(m.in, make([]flow, 64)...)
	}
	return &m.in[i]
}

func (m *Machine) flowOut(peer int, qpn uint32) *flow {
	for peer >= len(m.out) {
		m.out = append(m.out, nil)
	}
	i := int(qpn & 0xFFFF)
	for i >= len(m.out[peer]) {
		m.out[peer] = append(m.out[peer], make([]flow, 64)...)
	}
	return &m.out[peer][i]
}

// arrive takes a frame from the cable.
func (m *Machine) arrive(b *packet.Buf) {
	n, now := &m.nic, m.w.k.now
	m.rxFree = max(m.rxFree, now) + n.message
	p := b.Bytes()
	if hdr.Parse(p, &m.frame) != hdr.IsRoCE {
		m.w.k.plan(m.rxFree+n.receive+n.complete, m.id, kindExec, 0, b)
		return
	}
	f := &m.frame
	qpn := f.BTHOf(p).DestQP()
	if f.Op.Has(hdr.IsResponse) {
		m.w.k.plan(m.rxFree+n.complete, m.id, kindExec, pack(qpn, f), b)
		return
	}
	q := m.flowIn(qpn)
	q.taken = max(q.taken+n.qpMessage, m.rxFree)
	t := q.taken + n.receive
	if !n.holdAnswers {
		t += m.stall() + m.context(q, qpn)
	}
	t = max(t, q.ready)
	q.ready = t
	m.w.k.plan(t, m.id, kindReady, pack(qpn, f), b)
}

// context is how long a request waits for its queue pair's context, which
// takes the place of another one in the NIC.
func (m *Machine) context(q *flow, qpn uint32) Time {
	if q.cached || m.nic.contexts == 0 {
		return 0
	}
	q.cached = true
	if len(m.contexts) < m.nic.contexts {
		m.contexts = append(m.contexts, qpn)
		return 0
	}
	m.stats.Fetched++
	x := &m.contexts[m.rng.IntN(len(m.contexts))]
	m.flowIn(*x).cached = false
	*x = qpn
	return m.nic.contextMiss
}

// stall is how long a request is held up.
func (m *Machine) stall() Time {
	c := &m.nic.stall
	if c[len(c)-1] == 0 {
		return 0
	}
	x := m.rng.Float64()
	if x >= c[len(c)-1] {
		return 0
	}
	m.stats.Stalled++
	i := 0
	for x >= c[i] {
		i++
	}
	return Time(i)*Microsecond + Time(m.rng.Int64N(int64(Microsecond)))
}

// ready queues a request behind those of its queue pair, or executes it.
func (m *Machine) ready(arg uint64, b *packet.Buf) {
	q := m.flowIn(uint32(arg >> 40))
	if q.wait.n > 0 || q.next > m.w.k.now {
		q.wait.push(waiting{arg, b})
		if q.wait.n == 1 {
			m.w.k.plan(q.next, m.id, kindNext, arg, nil)
		}
		return
	}
	m.issue(q, arg, b)
}

// following executes the oldest request that waits for its queue pair.
func (m *Machine) following(qpn uint32) {
	q := m.flowIn(qpn)
	if q.wait.n == 0 { // the machine was down meanwhile
		return
	}
	x := q.wait.pop()
	m.issue(q, x.arg, x.buf)
	if q.wait.n > 0 {
		m.w.k.plan(q.next, m.id, kindNext, q.wait.front().arg, nil)
	}
}

// issue executes a request, the first of its queue pair, as soon as the memory
// lets it. The queue pair's next has to wait until then.
func (m *Machine) issue(q *flow, arg uint64, b *packet.Buf) {
	n, now := &m.nic, m.w.k.now
	op, t := hdr.Opcode(arg), now
	if op == hdr.ReadRequest || op.Has(hdr.IsAtomic) || op.Has(hdr.IsWrite) && op.Any(hdr.IsFirst|hdr.IsOnly) {
		// RETH and AtomicETH begin with the address.
		va := hdr.RETH(b.Bytes()[arg>>24&0xFFFF+hdr.BTHLen:]).VA()
		s := &m.slots[va&n.slotMask]
		dev := m.onDevice(va)
		switch {
		case op.Has(hdr.IsAtomic):
			if s.free > t {
				m.stats.Waited++
			}
			s.va, s.occupied = va, n.deviceOccupancy
			if !dev {
				t = max(t, m.atomicFree)
				m.atomicFree = t + n.atomicInterval
				s.occupied = n.hostOccupancy
			}
			t = max(t, s.free)
			s.free = t + s.occupied
		case dev && op.Has(hdr.IsWrite):
			t = max(t, s.free)
			s.free, s.va = t+n.deviceWrite, va
		case s.va == va && s.free > t:
			// It waits for the atomic under way, not for those that queue.
			t += (s.free - t) % max(s.occupied, 1)
		}
		if op == hdr.ReadRequest && !dev {
			r := &m.reads[va>>3&(reads-1)]
			if r.va == va {
				t = max(t, r.free)
			}
			r.va, r.free = va, t+n.sameRead
		}
	}
	q.next = t + n.message
	if t > now {
		m.w.k.plan(t, m.id, kindExec, arg, b)
		return
	}
	m.execute(arg, b)
}

func (m *Machine) onDevice(va uint64) bool {
	for _, s := range m.device {
		if va >= s.from && va < s.to {
			return true
		}
	}
	return false
}

// execute gives a frame to the endpoint.
func (m *Machine) execute(arg uint64, b *packet.Buf) {
	if arg != 0 {
		op := hdr.Opcode(arg)
		m.deviceOp, m.atomic.slot, m.held = false, nil, 0
		if m.nic.holdAnswers && !op.Has(hdr.IsResponse) {
			qpn := uint32(arg >> 40)
			m.held = m.stall() + m.context(m.flowIn(qpn), qpn)
		}
		switch {
		case op.Has(hdr.IsResponse):
		case op.Has(hdr.IsAtomic) || op == hdr.ReadRequest:
			m.deviceOp = len(m.device) > 0 && m.onDevice(hdr.RETH(b.Bytes()[arg>>24&0xFFFF+hdr.BTHLen:]).VA())
			c := 2
			if op.Has(hdr.IsAtomic) {
				c = 3
				h := hdr.AtomicETH(b.Bytes()[arg>>24&0xFFFF+hdr.BTHLen:])
				m.atomic = atomic{slot: &m.slots[h.VA()&m.nic.slotMask], adds: op != hdr.CompareSwap}
				if !m.atomic.adds {
					m.atomic.compare = h.Compare()
				}
			}
			m.stats.Executed[c]++
		case op.Has(hdr.IsWrite):
			m.stats.Executed[1]++
		default:
			m.stats.Executed[0]++
		}
	}
	m.port.in = b
	m.breathe()
	m.held = 0
	if m.port.in != nil { // nobody is at home
		m.port.in.Put()
		m.port.in = nil
		m.stats.Lost++
	}
}

// breathe lets the endpoint run.
func (m *Machine) breathe() {
	if m.worker == nil {
		return
	}
	now := m.w.k.now.Clock()
	if _, err := m.worker.Breath(now); err != nil {
		m.w.fail(err)
		return
	}
	if d := m.worker.Deadline(); d != clock.Never {
		// A timer that is due now runs in the next nanosecond.
		m.wake(fromClock(max(d, now+1)))
	}
}

// transmit takes a frame from the endpoint.
func (m *Machine) transmit(b *packet.Buf) {
	n, w := &m.nic, m.w
	now := w.k.now
	p := b.Bytes()
	t := now + n.respond
	if hdr.Parse(p, &m.frame) == hdr.IsRoCE {
		peer := 0
		if to := w.machineOf(p); to != nil {
			peer = to.index
		}
		op := m.frame.Op
		q := m.flowOut(peer, m.frame.BTHOf(p).DestQP())
		if op == hdr.AtomicAck && m.atomic.slot != nil {
			m.changed(m.frame.AtomicAckETHOf(p).Original())
		}
		if op.Has(hdr.IsResponse) {
			switch {
			case !op.Has(hdr.IsReadResp) && op != hdr.AtomicAck:
			case m.deviceOp:
				t += n.deviceAccess
			case op == hdr.AtomicAck:
				t += n.hostAtomic
			default:
				t += n.hostRead
			}
			t = max(t+m.held, q.sent)
			q.sent = t
		} else {
			if now > q.posted {
				q.turn(now)
			}
			c := &q.threads[q.poster]
			c.busy = max(now, c.busy) + n.verb
			q.posted = now
			if n.threads > 0 && m.threads > n.threads && c.turn > 0 {
				c.busy = n.turn(c.turn-1, m.threads, c.busy)
			}
			t = max(c.busy+n.send, q.next)
			q.next = t + n.qpMessage
		}
	}
	m.w.k.plan(t, m.id, kindSend, 0, b)
}

// changed makes others wait longer when the atomic that executes has changed its word.
func (m *Machine) changed(original uint64) {
	a := &m.atomic
	if a.adds || original == a.compare {
		if m.deviceOp {
			a.slot.free += m.nic.deviceUpdate
		} else {
			a.slot.free += m.nic.hostUpdate
		}
	}
	a.slot = nil
}

// turn is when thread i of n, of which fewer run at once, runs at t or next.
func (x *times) turn(i, n int, t Time) Time {
	slice := int64(t / x.quantum)
	for {
		first := int(slice * int64(x.threads) % int64(n))
		if (i-first+n)%n < x.threads {
			return max(t, Time(slice)*x.quantum)
		}
		slice++
	}
}
