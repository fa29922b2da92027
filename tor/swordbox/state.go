package swordbox

import (
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"reflect"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// What outlives the process. A connection whose ends count differently is of
// no use without this app: what one end takes for a repetition the other means
// as new. So all such connections are on record from before the first frame
// that makes them so; and at a clean stop, all that is known of them. The next
// process goes on from that, or, when it is not there, too old or damaged,
// tells the clients of the connections on record that they are gone. The list
// is never empty in between.
//
//	 0 magic | 8 status | 12 connections on record | 16 last sign of life
//	24 length of the state | 32 CRC-32C of it | 36 layout of the state
//	40 where the state begins | 48 conns= | 52 window=
//	64 records of 64 bytes: client, server (16 each) | their QPNs (4 each) |
//	   VLAN (2) | 1: RoCE v1 | 0 | PSN of the client's oldest request without an
//	   answer, and 2^31 (4) | 0
//	   state: nodes, each: address (16) | VLAN (2) | length of the rest (4) | time from
//	   which all that passes is on record (8) | reaches | conn.Table's, with flows
const (
	memMagic    = 0x31786F62_77736C71 // "qlswbox1", little-endian
	memHead     = 64
	recordLen   = 64
	statusRuns  = 1
	statusStops = 2
	// keepState is how old a state may be: the longest that a client repeats
	// its requests, generously.
	keepState = time.Minute
	// keepGone is how long clients of lost connections are told so, again.
	keepGone = time.Minute
)

// memory is the list of connections whose ends count differently, in memory
// that outlives the process.
type memory struct {
	b    []byte // nil: nothing outlives it
	refs []ref  // by record
}

// ref is a flow of a node.
type ref struct {
	n *node
	i int32
}

// stateAt is where the state begins: behind a record for each connection that
// can be known.
func stateAt(cfg *settings) int { return memHead + maxNodes*cfg.conns*recordLen }

// memorySize is the room for the records and the state of so many connections.
func memorySize(cfg *settings) int {
	const row = 512 // of conn.Table, and lengths
	return stateAt(cfg) + maxNodes*(row+len(keys{}.k)*int(unsafe.Sizeof(reach{}))) + 2*cfg.conns*(row+sizeofFlow+cfg.window*(sizeofOp+sizeofMore))
}

// remember gets the memory that outlives the process. What it holds is looked at
// later: an app that this one takes the place of may still be writing there.
func (s *shared) remember(env graph.Env) error {
	if env.Memory == nil || s.mem.b != nil {
		return nil
	}
	b, err := env.Memory(memorySize(&s.cfg))
	if err != nil {
		return err
	}
	// There must be room for all records before the first one.
	if err := stored(func() {
		for k := 0; k < stateAt(&s.cfg); k += 4096 {
			atomic.OrUint32((*uint32)(unsafe.Pointer(&b[k])), 0)
		}
	}); err != nil {
		return err
	}
	if left(b) > 0 {
		if err := s.smaller(b); err != nil {
			return err
		}
	}
	s.mem.b = b
	return nil
}

// smaller is an error when not all that is left in b need fit.
func (s *shared) smaller(b []byte) error {
	if conns, window := le.Uint32(b[48:]), le.Uint32(b[52:]); s.cfg.conns < int(conns) || s.cfg.window < int(window) {
		return fmt.Errorf("conns=%d, window=%d: %d connections are left of conns=%d, window=%d: give no less, or end them first (mode=end)",
			s.cfg.conns, s.cfg.window, left(b), conns, window)
	}
	return nil
}

// left is the number of connections on record in b.
func left(b []byte) int {
	if le.Uint64(b) != memMagic {
		return 0
	}
	return int(le.Uint32(b[12:]))
}

// stored runs f, which writes to memory that may be a file's: an error when
// that has no room.
func stored(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			if e, ok := v.(interface {
				error
				Addr() uintptr
			}); !ok || e.Addr() == 0 {
				panic(v)
			}
			err = errors.New("no room for the state where it is to be kept")
		}
	}()
	f()
	return nil
}

// inherit takes over what a process before this one left.
func (s *Box) inherit(now clock.Time) {
	m := &s.mem
	if m.b == nil {
		return
	}
	count := min(int(le.Uint32(m.b[12:])), cap(m.refs))
	alive := clock.Time(le.Uint64(m.b[16:]))
	var err error
	switch status := le.Uint32(m.b[8:]); {
	case [memHead]byte(m.b) == [memHead]byte{}: // nobody was there
	case le.Uint64(m.b) != memMagic, status != statusRuns && status != statusStops:
		err = errSave
	case status == statusRuns:
		err = errKilled
	case s.cfg.mode == End:
		err = errEnded
	case count > 0 || s.cfg.mode.moves() && s.smaller(m.b) == nil:
		err = s.restore(now, count)
	}
	if err != nil {
		// All or nothing: some clients would go on, and some not.
		s.nodes.Store(&[]*node{})
		clear(m.refs[:count])
		s.barred = min(alive.Add(time.Duration(tick)), now).Add(s.cfg.settle)
		s.why = err.Error()
	}
	// The memory is this process's now. The records stay where they are: after
	// another crash the next process finds them.
	m.refs = m.refs[:count]
	le.PutUint32(m.b[12:], uint32(count))
	le.PutUint32(m.b[8:], statusRuns)
	le.PutUint64(m.b[16:], uint64(now))
	le.PutUint32(m.b[48:], uint32(s.cfg.conns))
	le.PutUint32(m.b[52:], uint32(s.cfg.window))
	le.PutUint64(m.b, memMagic)
	for _, n := range *s.nodes.Load() {
		for i := range n.flows {
			if f := &n.flows[i]; f.synced && !f.gone {
				s.c.Count(ctrRestored, 1)
			}
		}
	}
	for k := 0; k < len(m.refs); {
		if m.refs[k].n == nil && !s.bereave(now, k) {
			m.cut(k) // its queue pairs are another connection's by now
			continue
		}
		k++
	}
}

var (
	errKilled = errors.New("the process before this one did not stop cleanly")
	errEnded  = errors.New("mode=end")
	errSave   = errors.New("the saved state is damaged")
)

// record is a connection whose ends count differently.
type record struct {
	client, server conn.Addr
	cqpn, sqpn     uint32
	v1             bool
}

func recordOf(r *conn.Row) record {
	return record{client: r.Client.Addr, server: r.Server.Addr, cqpn: r.Client.QPN, sqpn: r.Server.QPN, v1: r.Net == hdr.NetGRH}
}

func (m *memory) at(k int) (r record) {
	b := m.b[memHead+k*recordLen:]
	vlan := le.Uint16(b[40:])
	r.client, r.server, r.v1 = conn.AddrOf([16]byte(b)).In(vlan), conn.AddrOf([16]byte(b[16:])).In(vlan), b[42] != 0
	r.cqpn, r.sqpn = le.Uint32(b[32:]), le.Uint32(b[36:])
	return r
}

// add puts flow i of node n on record.
func (m *memory) add(n *node, i int32) {
	k := len(m.refs)
	m.refs = append(m.refs, ref{n, i})
	n.flows[i].record = int32(k) + 1
	if m.b == nil {
		return
	}
	r := recordOf(n.conns.Row(conn.Slot(i)))
	b := m.b[memHead+k*recordLen:]
	c, v := r.client.As16(), r.server.As16()
	copy(b, c[:])
	copy(b[16:], v[:])
	le.PutUint32(b[32:], r.cqpn)
	le.PutUint32(b[36:], r.sqpn)
	le.PutUint16(b[40:], r.server.VLAN())
	b[42] = 0
	if r.v1 {
		b[42] = 1
	}
	le.PutUint32(m.b[12:], uint32(k+1))
}

// cut takes record k off; the last one takes its place.
func (m *memory) cut(k int) {
	last := len(m.refs) - 1
	if m.refs[k] = m.refs[last]; k != last && m.refs[k].n != nil {
		m.refs[k].n.flows[m.refs[k].i].record = int32(k) + 1
	}
	m.refs = m.refs[:last]
	if m.b != nil {
		copy(m.b[memHead+k*recordLen:][:recordLen], m.b[memHead+last*recordLen:])
		le.PutUint32(m.b[12:], uint32(last))
	}
}

// knownPSN says in a record that the PSN beside it is known.
const knownPSN = 1 << 31

// una is the PSN of the oldest request of record k's client that had no answer,
// with knownPSN.
func (m *memory) una(k int) uint32 { return le.Uint32(m.b[memHead+k*recordLen+unaAt:]) }

// unaAt is where a record has that PSN.
const unaAt = 44

// note puts on record which of the requests of flow i is the oldest without an
// answer: the client of a connection that is lost must not take a NAK for the
// acknowledgement of what was before it.
func (s *Box) note(i int32) {
	if s.workers > 1 { // a record's place may change
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if f := &s.n.flows[i]; f.record != 0 && s.mem.b != nil {
		le.PutUint32(s.mem.b[memHead+int(f.record-1)*recordLen+unaAt:], s.n.una(i)|knownPSN)
	}
}

// diverge notes that both ends of flow i's connection will count differently.
func (s *Box) diverge(i int32) {
	if s.n.flows[i].record != 0 {
		return
	}
	s.mu.Lock()
	s.mem.add(s.n, i)
	s.mu.Unlock()
	s.note(i)
}

// strike takes flow i off the record.
func (s *Box) strike(i int32) {
	f := &s.n.flows[i]
	if f.record == 0 {
		return
	}
	s.mu.Lock()
	s.mem.cut(int(f.record) - 1)
	s.mu.Unlock()
	f.record = 0
}

// recorded is how many connections are on record.
func (s *shared) recorded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.b != nil && !s.begun.Load() {
		return left(s.mem.b)
	}
	return len(s.mem.refs)
}

// Keeps implements graph.Keeper.
func (s *Box) Keeps(succeeded bool) error {
	n := s.recorded()
	switch {
	case n == 0 || succeeded && s.mem.b != nil:
		return nil
	case succeeded:
		return fmt.Errorf("%d connections cannot do without it, and it has no state to hand them over with", n)
	}
	return fmt.Errorf("%d connections cannot do without it: set mode=off and wait until their clients have closed them (its counter recorded), or mode=end and wait %v", n, keepGone)
}

// bereave makes a flow of record k, a connection that was lost with a process
// before this one: its client is told when it asks. False when it cannot be: its
// queue pairs are not its own any more.
func (s *Box) bereave(now clock.Time, k int) bool {
	r := s.mem.at(k)
	n, err := s.meetLocked(now, r.server)
	if err != nil {
		return false
	}
	for _, e := range []struct {
		addr conn.Addr
		qpn  uint32
	}{{r.client, r.cqpn}, {r.server, r.sqpn}} {
		if i, _ := n.conns.Find(e.addr, e.qpn); i != conn.NoSlot && n.flows[i].synced {
			return false
		}
	}
	slot, err := n.conns.AddStatic(now, conn.StaticConn{Client: r.client.Netip(), Server: r.server.Netip(), ClientQPN: r.cqpn, ServerQPN: r.sqpn, VLAN: r.server.VLAN(), V1: r.v1})
	n.removed = n.removed[:0] // none that was followed
	if err != nil {
		return false
	}
	n.flows[slot] = flow{synced: true, gone: true, ended: s.mem.una(k), lost: now.Add(keepGone), answerer: none, lane: none, cur: none, oldest: none, newest: none, span: min(n.window, narrow),
		record: int32(k) + 1}
	s.mem.refs[k] = ref{n, int32(slot)}
	s.c.Count(ctrLost, 1)
	return true
}

// tell answers a request, x, of a connection that is lost with the NAK that
// ends its client's queue pair. The frame itself becomes the answer.
func (s *Box) tell(i int32, x *packet.Buf, b []byte) {
	f := &s.f
	var h header
	if !h.learn(b, f) {
		s.c.Drop(x, reasonReset)
		return
	}
	psn := f.BTHOf(b).PSN()
	var mac [6]byte
	copy(mac[:], h.b[:6])
	copy(h.b[:6], h.b[6:12])
	copy(h.b[6:12], mac[:])
	ip, n := h.b[h.l3+12:], 4
	if h.net != hdr.NetIPv4 {
		ip, n = h.b[h.l3+8:], 16
	}
	for k := range n {
		ip[k], ip[n+k] = ip[n+k], ip[k]
	}
	q := s.n.conns.Row(conn.Slot(i)).Client.QPN
	be.PutUint32(h.b[h.bth+4:], q)
	fl := &s.n.flows[i]
	fl.down = h
	fl.told, fl.lost = true, s.c.Now().Add(keepGone)
	s.spare, s.to = x, none
	if fl.ended&knownPSN == 0 {
		fl.ended = psn
	}
	fl.ended &= hdr.PSNMask
	s.refuse(i)
	fl.down = header{}
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonReset)
	}
	s.c.Count(ctrResets, 1)
}

// layout tells versions of the saved structures apart.
func layout() uint32 {
	h := fnv.New32a()
	for _, t := range []reflect.Type{reflect.TypeFor[op](), reflect.TypeFor[more](), reflect.TypeFor[flow](), reflect.TypeFor[reach]()} {
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprint(h, f.Name, f.Type, f.Offset, f.Type.Size())
		}
	}
	return h.Sum32()
}

func raw[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// save leaves all that is known of the connections in the memory. Nothing is
// held any more. When there is no room the next process takes it for a crash.
func (s *Box) save(now clock.Time) {
	m := &s.mem
	if m.b == nil || !s.begun.Load() {
		return
	}
	out := le.AppendUint32(nil, uint32(s.cfg.conns))
	out = le.AppendUint32(out, uint32(s.cfg.window))
	for _, n := range *s.nodes.Load() {
		for i := range n.flows {
			n.rest(int32(i))
		}
		a := n.addrs[0].As16()
		out = le.AppendUint16(append(out, a[:]...), n.addrs[0].VLAN())
		at := len(out)
		out = append(out, 0, 0, 0, 0)
		out = le.AppendUint64(out, uint64(n.unknown))
		for k := range n.keys.k {
			out = append(out, raw(&n.keys.k[k].reach)...)
		}
		out = n.appendHomeless(out)
		out = n.conns.AppendState(out, now, func(b []byte, slot conn.Slot) []byte {
			f := &n.flows[slot]
			if !f.synced || f.lost != 0 {
				return b
			}
			b = le.AppendUint32(b, uint32(slot))
			b = append(b, raw(f)...)
			for k := f.first; k != f.tail; k++ {
				o, at := n.op(int32(slot), k)
				b = append(append(b, raw(o)...), raw(&n.more[at])...)
			}
			return b
		})
		le.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	from := stateAt(&s.cfg)
	if len(out) > len(m.b)-from {
		return
	}
	_ = stored(func() {
		copy(m.b[from:], out)
		le.PutUint64(m.b[16:], uint64(now))
		le.PutUint64(m.b[24:], uint64(len(out)))
		le.PutUint32(m.b[32:], crc32.Checksum(out, castagnoli))
		le.PutUint32(m.b[36:], layout())
		le.PutUint64(m.b[40:], uint64(from))
		le.PutUint32(m.b[8:], statusStops)
	})
}

// appendHomeless appends the open operations of flows that are gone: how many
// (4), and each one's place.
func (n *node) appendHomeless(out []byte) []byte {
	from, count := len(out), uint32(0)
	out = le.AppendUint32(out, 0)
	for l := range n.flows {
		if !n.flows[l].synced {
			continue
		}
		for at := n.flows[l].oldest; at != none; at = n.ops[at].next {
			i := n.flowOf(at)
			f, p := &n.flows[i], uint32(at)%n.window
			if f.synced && f.lost == 0 && p < f.span && (p-f.first)&(f.span-1) < f.tail-f.first {
				continue
			}
			o := n.ops[at]
			o.word = none
			o.flags &^= fLoose | fOdd | fProbe
			out = append(append(le.AppendUint32(out, uint32(at)), raw(&o)...), raw(&n.more[at])...)
			count++
		}
	}
	le.PutUint32(out[from:], count)
	return out
}

// rest makes flow i fit for another process: what was held is gone.
func (n *node) rest(i int32) {
	f := &n.flows[i]
	f.arrived = f.admitted // what waited will be sent again
	f.stall = fifo{}
	f.gapNAK, f.toldGap, f.vague, f.isReady, f.waits = false, false, false, false, false
	for k := f.first; f.synced && k != f.tail; k++ {
		o, at := n.op(i, k)
		o.word = none
		o.flags &^= fLoose | fOdd | fProbe
		if o.is(fKept) { // its packets are held no more
			o.setHeld(none, none)
			o.flags = o.flags&^fKept | fUnkept
			n.flows[o.lane].unkept++
		}
		if o.holds() {
			o.setHeld(none, none)
			if o.is(fEarly) {
				o.got = 0
				o.flags &^= fEarly
			}
			if o.state == sDone && int32(k-f.head) >= 0 {
				o.state, o.got = sUnsent, 0 // its answer was held
				f.unsent++
				n.prompt(at, 0, hdr.SynNAKSequence)
			}
		}
	}
}

// restore takes over what the process before this one left, count connections
// on record and all others.
func (s *Box) restore(now clock.Time, count int) error {
	m := &s.mem
	n, from := le.Uint64(m.b[24:]), le.Uint64(m.b[40:])
	switch {
	case le.Uint32(m.b[36:]) != layout():
		return errors.New("the saved state is of another version of this program")
	case from > uint64(len(m.b)), n > uint64(len(m.b))-from, n < 8, crc32.Checksum(m.b[from:from+n], castagnoli) != le.Uint32(m.b[32:]):
		return errSave
	}
	b := m.b[from : from+n]
	old := geometry{int32(le.Uint32(b)), int32(le.Uint32(b[4:]))}
	for b = b[8:]; len(b) > 0; {
		if len(b) < 22 || uint64(le.Uint32(b[18:])) > uint64(len(b)-22) {
			return errSave
		}
		size := 22 + int(le.Uint32(b[18:]))
		x, err := s.meetLocked(now, conn.AddrOf([16]byte(b)).In(le.Uint16(b[16:])))
		if err != nil {
			return err
		}
		if err := x.restore(b[22:size], now, old); err != nil {
			return err
		}
		x.unknown = min(x.unknown, now.Add(s.cfg.settle))
		x.unrest.barred = x.unknown
		x.vouch(&s.cfg)
		for i := range x.flows {
			f := &x.flows[i]
			if f.synced && x.conns.Row(conn.Slot(i)).State == conn.Paired {
			}
			if f.record == 0 {
				continue
			}
			k := int(f.record) - 1
			if k < 0 || k >= count || m.refs[:count][k].n != nil || m.at(k) != recordOf(x.conns.Row(conn.Slot(i))) {
				return errSave
			}
			m.refs[:count][k] = ref{x, int32(i)}
		}
		b = b[size:]
	}
	return nil
}

// homeless is the length of an operation whose flow is gone.
var homeless = 4 + sizeofOp + sizeofMore

// geometry is what says where a node's ops are.
type geometry struct{ conns, window int32 }

// place is the flow of op at, and which of its places it has.
func (g geometry) place(at int32) (i, k int32) { return at / g.window, at % g.window }

// restore fills the node from what save left. Flows may have other numbers
// now.
func (n *node) restore(b []byte, now clock.Time, old geometry) error {
	if len(b) < 8+len(n.keys.k)*len(raw(&n.keys.k[0].reach)) || old.conns <= 0 || old.window <= 0 {
		return errSave
	}
	n.unknown = clock.Time(le.Uint64(b))
	b = b[8:]
	for i := range n.keys.k {
		x := &n.keys.k[i].reach
		b = b[copy(raw(x), b):]
		n.serial = max(n.serial, x.serial)
	}
	if len(b) < 4 || uint64(le.Uint32(b))*uint64(homeless) > uint64(len(b)-4) {
		return errSave
	}
	orphans := b[4 : 4+int(le.Uint32(b))*homeless]
	b = b[4+len(orphans):]
	to := map[int32]int32{none: none}
	err := n.conns.Restore(b, now, keepState, func(slot conn.Slot, data []byte) error {
		if len(data) == 0 {
			return nil
		}
		if len(data) < 4+sizeofFlow {
			return errSave
		}
		i := int32(slot)
		to[int32(le.Uint32(data))] = i
		f := &n.flows[i]
		copy(raw(f), data[4:])
		data = data[4+sizeofFlow:]
		if f.span == 0 || f.span > n.window || f.span&(f.span-1) != 0 || len(data) != int(f.tail-f.first)*(sizeofOp+sizeofMore) || f.tail-f.first > f.span {
			return errSave
		}
		for k := f.first; k != f.tail; k++ {
			o, at := n.op(i, k)
			copy(raw(o), data)
			copy(raw(&n.more[at]), data[sizeofOp:])
			data = data[sizeofOp+sizeofMore:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	r := renumbering{n: n, old: old, flows: to, homes: map[int32]int32{}}
	if !r.house(orphans) || !r.apply() {
		return errSave
	}
	n.unrest.gen = n.free.now()
	return nil
}

// renumbering gives what was restored the places that it has now.
type renumbering struct {
	n     *node
	old   geometry
	flows map[int32]int32 // numbers of flows, by those before; of none: none
	homes map[int32]int32 // places of operations whose flows are gone, likewise
	bad   bool            // something has no place
}

// house gives operations whose flows are gone places that no flow has; false when
// there are not so many.
func (r *renumbering) house(orphans []byte) bool {
	n, free := r.n, int32(len(r.n.ops))
	for ; len(orphans) > 0; orphans = orphans[homeless:] {
		for free--; free >= 0 && n.flows[n.flowOf(free)].synced; {
			free--
		}
		if free < 0 {
			return false
		}
		r.homes[int32(le.Uint32(orphans))] = free
		copy(raw(&n.ops[free]), orphans[4:])
		copy(raw(&n.more[free]), orphans[4+sizeofOp:])
	}
	return true
}

// move is for the place of an operation.
func (r *renumbering) move(at *int32) {
	if *at == none {
		return
	}
	if home, ok := r.homes[*at]; ok {
		*at = home
		return
	}
	i, k := r.old.place(*at)
	j, ok := r.flows[i]
	if !ok || *at < 0 || k >= int32(r.n.window) {
		r.bad = true
		return
	}
	*at = j*int32(r.n.window) + k
}

// lane is for the number of a flow.
func (r *renumbering) lane(l *int32) {
	j, ok := r.flows[*l]
	if !ok {
		r.bad = true
		return
	}
	*l = j
}

func (r *renumbering) op(o *op) {
	if o.state != sOpen {
		o.next, o.lane = none, none
		return
	}
	if o.is(fGuest) {
		r.n.guest(o, 1)
	}
	r.move(&o.next)
	r.lane(&o.lane)
	if !r.bad {
		r.bad = !r.n.rejoin(o)
	}
}

func (r *renumbering) flow(i int32) {
	n := r.n
	f := &n.flows[i]
	r.move(&f.oldest)
	r.move(&f.newest)
	r.move(&f.cur)
	if f.open == 0 {
		f.lane = none
	} else {
		r.lane(&f.lane)
	}
	for k := f.first; k != f.tail; k++ {
		o, _ := n.op(i, k)
		r.op(o)
	}
	lent := f.isLent
	f.heard, f.lends, f.isLent, f.asked, f.timed, f.answerer, f.marked = 0, 0, false, 0, false, none, marked{}
	for k := range f.grants {
		if x := n.keys.find(f.grants[k].rkey); lent && x != nil && f.granted(x) && len(x.lanes) < cap(x.lanes) {
			x.lanes = append(x.lanes, i)
			f.lends++
			n.lent(i)
		}
	}
	n.due(i)
}

// apply is false when something has no place.
func (r *renumbering) apply() bool {
	n := r.n
	for _, at := range r.homes {
		if o := &n.ops[at]; o.state == sOpen {
			r.op(o)
		}
	}
	for _, i := range r.flows {
		if i != none {
			r.flow(i)
		}
	}
	for _, at := range r.homes {
		if o := &n.ops[at]; !r.bad && o.state == sOpen && o.lane != none {
			n.orphan(o)
		}
	}
	return !r.bad
}

// rejoin counts open operation o, which another process sent; false when it
// cannot be. The word of a WRITE that takes an atomic's place is tracked from
// the start.
func (n *node) rejoin(o *op) bool {
	if !o.modifies() {
		return true
	}
	if !o.is(fReplaced) {
		if n.free.enter() {
			o.flags |= fOdd
		}
		return true
	}
	w := n.words.find(o.va)
	if w == none {
		w = n.words.add(o.va, o.rkey)
	}
	if w == none {
		return false
	}
	v := &n.words.w[w]
	if v.flight > 0 && v.lane != o.lane {
		return false
	}
	o.word, v.lane = w, o.lane
	v.flight++
	v.writes++
	n.writes++
	return true
}
