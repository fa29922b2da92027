package swordbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"reflect"
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
// tells the clients of the connections on record that they are gone.
//
//	 0 magic | 8 status | 12 connections on record | 16 time of the stop
//	24 length of the state | 32 CRC-32C of it | 36 layout of the state
//	64 records of 64 bytes: client, server (16 each) | their QPNs (4 each) | MTU | 0
//	   state: nodes, each: address (16) | length (4) | conn.Table's, with flows
const (
	memMagic    = 0x31786F62_77736C71 // "qlswbox1", little-endian
	memHead     = 64
	recordLen   = 64
	statusNone  = 0
	statusRuns  = 1
	statusStops = 2
	// keepState is how old a state may be: the longest that a client repeats
	// its requests, generously.
	keepState = time.Minute
	// keepGone is how long clients of lost connections are told so.
	keepGone = time.Minute
)

// memory is the memory that outlives the process; the zero value is none.
type memory struct {
	b       []byte
	records int   // room for so many
	refs    []ref // by record
}

// ref is a flow of a node.
type ref struct {
	n *node
	i int32
}

// memorySize is the room for the records and the state of so many connections.
func memorySize(cfg *settings) int {
	const row = 512 // of conn.Table, and lengths
	return memHead + 4*cfg.conns*recordLen + 2*cfg.conns*(row+sizeofFlow+cfg.window*sizeofOp)
}

func (s *shared) remember(env graph.Env) error {
	if env.Memory == nil || s.mem.b != nil {
		return nil
	}
	b, err := env.Memory(memorySize(&s.cfg))
	if err != nil {
		return err
	}
	s.mem = memory{b: b, records: 4 * s.cfg.conns}
	return nil
}

// recover finds out what a process before this one left.
func (s *Box) recover(now clock.Time) {
	m := &s.mem
	if m.b == nil {
		return
	}
	status, count := uint32(statusNone), 0
	if le.Uint64(m.b) == memMagic {
		status, count = le.Uint32(m.b[8:]), min(int(le.Uint32(m.b[12:])), m.records)
	}
	var left []record
	for k := range count {
		left = append(left, m.at(k))
	}
	var err error
	switch status {
	case statusStops:
		err = s.restore(now)
	case statusRuns:
		err = errKilled
	}
	// From here on the memory is this process's.
	clear(m.b[:memHead])
	le.PutUint32(m.b[8:], statusRuns)
	le.PutUint64(m.b, memMagic)
	m.refs = make([]ref, 0, m.records)
	if err != nil {
		s.why = err.Error()
		for _, r := range left {
			s.bereave(now, r)
		}
		return
	}
	for _, n := range *s.nodes.Load() {
		for i := range n.flows {
			if f := &n.flows[i]; f.synced {
				s.c.Count(ctrRestored, 1)
				if f.record != 0 {
					s.journal(n, int32(i))
				}
			}
		}
	}
}

var errKilled = errors.New("the process before this one did not stop cleanly")

// record is a connection whose ends count differently.
type record struct {
	client, server conn.Addr
	cqpn, sqpn     uint32
}

func (m *memory) at(k int) (r record) {
	b := m.b[memHead+k*recordLen:]
	r.client, r.server = conn.AddrOf([16]byte(b)), conn.AddrOf([16]byte(b[16:]))
	r.cqpn, r.sqpn = le.Uint32(b[32:]), le.Uint32(b[36:])
	return r
}

// journal puts flow i of node n on record. Callers that own n may be several.
func (s *Box) journal(n *node, i int32) {
	m := &s.mem
	k := len(m.refs)
	if m.b == nil || k == m.records {
		return
	}
	r := n.conns.Row(conn.Slot(i))
	b := m.b[memHead+k*recordLen:]
	c, v := r.Client.Addr.As16(), r.Server.Addr.As16()
	copy(b, c[:])
	copy(b[16:], v[:])
	le.PutUint32(b[32:], r.Client.QPN)
	le.PutUint32(b[36:], r.Server.QPN)
	m.refs = append(m.refs, ref{n, i})
	n.flows[i].record = int32(k) + 1
	le.PutUint32(m.b[12:], uint32(k+1))
}

// diverge notes that both ends of flow i's connection will count differently.
func (s *Box) diverge(i int32) {
	if s.mem.b == nil || s.n.flows[i].record != 0 {
		return
	}
	s.mu.Lock()
	s.journal(s.n, i)
	s.mu.Unlock()
}

// strike takes flow i off the record.
func (s *Box) strike(i int32) {
	f := &s.n.flows[i]
	if f.record == 0 {
		return
	}
	s.mu.Lock()
	m := &s.mem
	k, last := int(f.record)-1, len(m.refs)-1
	copy(m.b[memHead+k*recordLen:][:recordLen], m.b[memHead+last*recordLen:][:recordLen])
	m.refs[k] = m.refs[last]
	m.refs[k].n.flows[m.refs[k].i].record = int32(k) + 1
	m.refs = m.refs[:last]
	le.PutUint32(m.b[12:], uint32(last))
	f.record = 0
	s.mu.Unlock()
}

// bereave makes a flow of a connection that was lost with a process before
// this one: its client is told when it asks.
func (s *Box) bereave(now clock.Time, r record) {
	n, err := s.meetLocked(r.server)
	if err != nil {
		return
	}
	slot, err := n.conns.AddStatic(now, conn.StaticConn{Client: r.client.Netip(), Server: r.server.Netip(), ClientQPN: r.cqpn, ServerQPN: r.sqpn})
	if err != nil {
		return
	}
	n.flows[slot] = flow{synced: true, gone: true, lost: now.Add(keepGone), lane: none, cur: none, oldest: none, newest: none, span: min(n.window, narrow)}
	s.journal(n, int32(slot))
	s.c.Count(ctrLost, 1)
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
	s.spare, s.to = x, none
	s.refuse(i, psn)
	fl.down = header{}
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonReset)
	}
	s.c.Count(ctrResets, 1)
}

// layout tells versions of the saved structures apart.
func layout(cfg *settings) uint32 {
	h := fnv.New32a()
	for _, t := range []reflect.Type{reflect.TypeFor[op](), reflect.TypeFor[flow]()} {
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprint(h, f.Name, f.Type, f.Offset, f.Type.Size())
		}
	}
	fmt.Fprint(h, cfg.conns, cfg.window)
	return h.Sum32()
}

func raw[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// save leaves all that is known of the connections in the memory. Nothing is
// held any more.
func (s *Box) save(now clock.Time) {
	m := &s.mem
	if m.b == nil || !s.begun.Load() {
		return
	}
	var out []byte
	for _, n := range *s.nodes.Load() {
		for i := range n.flows {
			n.rest(int32(i))
		}
		a := n.addr.As16()
		out = append(out, a[:]...)
		at := len(out)
		out = append(out, 0, 0, 0, 0)
		out = n.conns.AppendState(out, now, func(b []byte, slot conn.Slot) []byte {
			f := &n.flows[slot]
			if !f.synced || f.gone {
				return b
			}
			b = binary.LittleEndian.AppendUint32(b, uint32(slot))
			b = append(b, raw(f)...)
			b = append(b, raw(&n.ops[n.probeOf(int32(slot))])...)
			for k := f.first; k != f.tail; k++ {
				o, _ := n.op(int32(slot), k)
				b = append(b, raw(o)...)
			}
			return b
		})
		le.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	from := memHead + m.records*recordLen
	if len(out) > len(m.b)-from {
		return // then clients are told that their connections are gone
	}
	copy(m.b[from:], out)
	le.PutUint64(m.b[16:], uint64(now))
	le.PutUint64(m.b[24:], uint64(len(out)))
	le.PutUint32(m.b[32:], crc32.Checksum(out, castagnoli))
	le.PutUint32(m.b[36:], layout(&s.cfg))
	le.PutUint32(m.b[8:], statusStops)
}

// rest makes flow i fit for another process: what was held is gone.
func (n *node) rest(i int32) {
	f := &n.flows[i]
	f.arrived = f.admitted // what waited will be sent again
	f.stall, f.late = fifo{}, fifo{}
	f.gapNAK, f.toldGap, f.vague, f.isReady, f.waits = false, false, false, false, false
	for k := f.first; f.synced && k != f.tail; k++ {
		o, _ := n.op(i, k)
		o.word = none
		o.flags &^= fLoose | fOrdered | fProbe
		if o.held[0] != none {
			o.held = [2]int32{none, none}
			if o.state == sDone && int32(k-f.head) >= 0 {
				o.state, o.got = sUnsent, 0 // its answer was held
				f.unsent++
				o.flags |= fPrompt
				o.ask = 0
			}
		}
	}
}

var errSave = errors.New("the saved state is damaged")

// restore takes over what the process before this one left.
func (s *Box) restore(now clock.Time) error {
	m := &s.mem
	n := le.Uint64(m.b[24:])
	from := memHead + m.records*recordLen
	switch {
	case le.Uint32(m.b[36:]) != layout(&s.cfg):
		return errors.New("the saved state is of another version of this program, or of other arguments")
	case n > uint64(len(m.b)-from), crc32.Checksum(m.b[from:from+int(n)], castagnoli) != le.Uint32(m.b[32:]):
		return errSave
	}
	b := m.b[from : from+int(n)]
	for len(b) > 0 {
		if len(b) < 20 || uint64(le.Uint32(b[16:])) > uint64(len(b)-20) {
			return errSave
		}
		size := 20 + int(le.Uint32(b[16:]))
		x, err := s.meetLocked(conn.AddrOf([16]byte(b)))
		if err != nil {
			return err
		}
		if err := x.restore(b[20:size], now); err != nil {
			// All or nothing: some clients would go on, and some not.
			s.nodes.Store(&[]*node{})
			return err
		}
		for i := range x.flows {
			if f := &x.flows[i]; f.synced && f.trusted && !f.dead {
				s.shareOf(x, int32(i))
			}
		}
		b = b[size:]
	}
	return nil
}

// restore fills the node from what save left. Flows may have other numbers
// now.
func (n *node) restore(b []byte, now clock.Time) error {
	to := map[int32]int32{none: none}
	err := n.conns.Restore(b, now, keepState, func(slot conn.Slot, data []byte) error {
		if len(data) == 0 {
			return nil
		}
		if len(data) < 4+sizeofFlow+sizeofOp {
			return errSave
		}
		i := int32(slot)
		to[int32(le.Uint32(data))] = i
		f := &n.flows[i]
		copy(raw(f), data[4:])
		copy(raw(&n.ops[n.probeOf(i)]), data[4+sizeofFlow:])
		data = data[4+sizeofFlow+sizeofOp:]
		if f.span == 0 || f.span > n.window || f.span&(f.span-1) != 0 || len(data) != int(f.tail-f.first)*sizeofOp || f.tail-f.first > f.span {
			return errSave
		}
		for k := f.first; k != f.tail; k++ {
			o, _ := n.op(i, k)
			copy(raw(o), data)
			data = data[sizeofOp:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	w := int32(n.window)
	// move is the place of an operation whose flow has another number now.
	bad := false
	move := func(at *int32) {
		if *at == none {
			return
		}
		i, k := *at/w, *at%w
		probe := int(i) >= len(n.flows)
		if probe {
			i = *at - n.probeOf(0)
		}
		j, ok := to[i]
		if !ok || *at < 0 {
			bad = true
			return
		}
		if *at = j*w + k; probe {
			*at = n.probeOf(j)
		}
	}
	lane := func(l *int32) {
		j, ok := to[*l]
		if !ok {
			bad = true
			return
		}
		*l = j
	}
	fix := func(o *op) {
		if o.state != sOpen {
			o.next, o.lane = none, none
			return
		}
		move(&o.next)
		lane(&o.lane)
	}
	for _, i := range to {
		if i == none {
			continue
		}
		f := &n.flows[i]
		move(&f.oldest)
		move(&f.newest)
		move(&f.cur)
		if f.open == 0 {
			f.lane = none
		} else {
			lane(&f.lane)
		}
		for k := f.first; k != f.tail; k++ {
			o, _ := n.op(i, k)
			fix(o)
		}
		if f.probing {
			fix(&n.ops[n.probeOf(i)])
		}
		f.heard = 0
		n.due(i)
	}
	if bad {
		return errSave
	}
	n.unknown = now.Add(time.Second)
	return nil
}
