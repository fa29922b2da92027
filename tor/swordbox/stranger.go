package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// A stranger's request is one that the box does not follow: its connection's numbering is not known, or its
// transport or opcode is one that the box does not handle. The request passes unchanged, and makes the words
// unknown that it may change: those of the memory that it names, or all words of the server.

// scope is the memory that a request may change.
type scope struct {
	va  uint64
	len uint32 // 0: none
	all bool   // any memory: the request does not tell which
}

var everything = scope{all: true}

// longWrite is a stranger's WRITE of several packets. Only its first packet names the memory. A later packet
// belongs to it if it has the same sender and queue pair, and comes within the time for which a request may
// be under way.
type longWrite struct {
	src    [2]uint64 // sender's address
	va     uint64
	qpn    uint32
	len    uint32
	psn    uint32
	until  clock.Time
	done   bool // its last packet came
	doubly bool // another WRITE began before it was done: it is not known to which one a packet belongs
}

type longWrites [256]longWrite

// scopeOf returns the memory that request b, with headers f, may change. until is when the request can no
// longer be under way.
func (l *longWrites) scopeOf(now, until clock.Time, b []byte, f *hdr.Frame) (m scope) {
	c := hdr.ChangeOf(b, f)
	info := (f.Op & 0x1F).Info() // the operations of all transports have the same numbers
	switch {
	case c.Reach == hdr.ReachAny:
		return everything
	case c.Reach == hdr.ReachRange:
		m = scope{va: c.VA, len: c.Len}
	case c.Reach == hdr.ReachRC && info.Flags&hdr.IsAtomic != 0:
		return scope{va: be.Uint64(b[f.BTH+hdr.BTHLen:]), len: 8}
	case c.Reach == hdr.ReachRC && info.Ext&hdr.HasRETH != 0 && (info.Flags&hdr.IsWrite != 0 || f.Op == hdr.AtomicWrite):
		m = scope{va: f.RETHOf(b).VA(), len: f.RETHOf(b).DMALength()}
	case c.Reach == hdr.ReachMore || c.Reach == hdr.ReachRC && info.Flags&hdr.IsWrite != 0:
		return l.of(now, until, b, f, info.Flags&hdr.IsLast != 0)
	}
	if m.len != 0 && info.Flags&hdr.IsFirst != 0 {
		l.begin(now, until, m, b, f)
	}
	return m
}

// place returns where a WRITE from b's sender to b's queue pair is noted, and what it is found by.
func (l *longWrites) place(b []byte, f *hdr.Frame) (w *longWrite, src [2]uint64, qpn uint32) {
	qpn = f.BTHOf(b).DestQP()
	if f.Net == hdr.NetIPv4 {
		src[0] = uint64(be.Uint32(b[f.L3+12:]))
	} else {
		src = [2]uint64{be.Uint64(b[f.L3+8:]), be.Uint64(b[f.L3+16:])}
	}
	return &l[uint8(hash(src[0]^src[1]<<1^uint64(qpn)<<32))], src, qpn
}

func (l *longWrites) begin(now, until clock.Time, m scope, b []byte, f *hdr.Frame) {
	w, src, qpn := l.place(b, f)
	x := longWrite{src: src, qpn: qpn, len: m.len, va: m.va, psn: f.BTHOf(b).PSN(), until: until}
	if w.src == src && w.qpn == qpn && now < w.until {
		if again := w.va == x.va && w.len == x.len && w.psn == x.psn; again {
			w.until = until
			return
		}
		x.doubly = w.doubly || !w.done
	}
	*w = x
}

func (l *longWrites) of(now, until clock.Time, b []byte, f *hdr.Frame, last bool) scope {
	w, src, qpn := l.place(b, f)
	if w.src != src || w.qpn != qpn || now >= w.until || w.doubly {
		return everything
	}
	w.until, w.done = until, w.done || last
	return scope{va: w.va, len: w.len}
}

// stranger passes request b in buffer x, which the box does not follow, for reason r. The words that it may
// change are unknown for settle=, because it is not known when, and in which order, the server executes it.
// While a WRITE in the place of an atomic is under way to one of them, the request waits, because that WRITE
// would undo its change.
func (s *wire) stranger(x *packet.Buf, b []byte, r graph.Reason) {
	n := s.n
	s.c.Mark(x, packet.Forwarded, r)
	if n.disturb(b, &s.f) || !n.strangers.Empty() {
		n.detain(x)
		return
	}
	s.emit(toServers, x)
}

// detain holds a stranger's request until the words that it may change are free.
func (n *node) detain(x *packet.Buf) {
	if 2*n.strangers.Len() >= n.shelf.Cap()-n.shelf.Len() && !n.strangers.Empty() { // as in shelf.mayHold; the sender of the dropped request repeats it if it still wants it
		if old, _ := n.shelf.Take(n.c, &n.strangers, n.worker); old != nil {
			n.c.Drop(old, reasonHoldFull)
		}
	}
	if n.shelf.Put(&n.strangers, x, n.worker, struct{}{}) == 0 {
		n.c.Drop(x, reasonHoldFull)
	}
}

// admitStrangers sends on waiting requests of strangers, at most mostResumed.
func (s *wire) admitStrangers() {
	for q, k := &s.n.strangers, 0; k < mostResumed && !q.Empty(); k++ {
		x := s.n.shelf.Mine(s.c, q, s.n.worker)
		if x == nil {
			return
		}
		if hdr.Parse(x.Bytes(), &s.g); s.n.disturb(x.Bytes(), &s.g) {
			return
		}
		s.n.shelf.Remove(q)
		s.emit(toServers, x)
	}
}

// disturb notes that request b, with headers f, which the box does not follow, may change memory or
// invalidate an R_Key within settle=. It returns true if b must wait.
func (n *node) disturb(b []byte, f *hdr.Frame) (wait bool) {
	until := n.c.Now().Add(n.cfg.settle)
	m := n.longs.scopeOf(n.c.Now(), until, b, f)
	switch {
	case f.Why == hdr.IsRoCE && f.Op.Info().Ext&hdr.HasIETH != 0:
		n.each(func(x *nic) { wait = !x.keys.invalidate(f.IETHOf(b).RKey(), until) || wait })
		return wait
	case m.all:
		n.words.unknown = until
		return n.words.touchAll(0, until)
	case m.len != 0:
		n.words.unknown = until
		wait, _ = n.words.touch(m.va, m.len, none, 0, until)
	}
	return wait
}

// aside passes a frame that belongs to no followed connection of any node: its transport or opcode is not
// followed, its address is no known server's, or its headers are not understood. A client's frame may be a
// request that changes memory of the servers that it may reach. These are the server with its address, in any
// VLAN; or else those with its destination MAC address; or else, if its address cannot be read, all servers.
func (s *Box) aside(in int, x *packet.Buf, b []byte, r graph.Reason) {
	f := &s.f
	nodes := *s.nodes.Load()
	if in != toClients || len(nodes) == 0 || !mayChange(b, f) {
		if f.Why == hdr.IsRoCE {
			s.pass(in, x)
		} else {
			s.mark(in, x, r)
		}
		return
	}
	a, mac := conn.Target(b, f), macOf(b)
	named, near := false, false
	for _, n := range nodes {
		named = named || n.named(a)
		near = near || n.isAt(mac)
	}
	wait := (*node)(nil)
	for _, n := range nodes {
		if hit := n.named(a) || !named && (n.isAt(mac) || !near && a == conn.Addr{}); !hit {
			continue
		}
		if s.own(n); n.gone {
			continue
		}
		if (n.disturb(b, f) || !n.strangers.Empty()) && wait == nil {
			wait = n
		}
	}
	if wait == nil {
		s.mark(in, x, r)
		return
	}
	s.own(wait)
	s.c.Mark(x, packet.Forwarded, r)
	s.n.detain(x)
}

// reversed reports whether frame b is to a queue pair of a bound connection and came in where its sender is not: here it
// cannot be translated.
//
//go:noinline
func (s *Box) reversed(in int, b []byte) bool {
	is, at := s.f.Op.Info().Flags, s.ends.Dst
	if in == toClients {
		at = s.ends.Src
	}
	n := s.node(at)
	if n == nil || is&hdr.IsRequest != 0 != (in == toServers) {
		return false
	}
	if s.own(n); n.gone {
		return false
	}
	slot, client := n.conns.Find(s.ends.Dst, s.f.BTHOf(b).DestQP())
	f := n.flow(int32(slot))
	return f != nil && f.bound && client == (in == toClients)
}

// hidden handles frame b, x, from a client, if the server may take it for the next request of a connection that is followed, though it is not RoCE as it must be:
// the PSN would be the server's, and nobody's here, so that what comes next may be executed before. Where both ends count alike the
// following ends, and the frame passes; else its PSN is none of the server's, and it is dropped. True when it was disposed of.
func (s *Box) hidden(x *packet.Buf, b []byte) bool {
	qpn, ok := conn.Hidden(b, &s.f)
	if !ok {
		return false
	}
	a := conn.Target(b, &s.f)
	for _, n := range *s.nodes.Load() {
		for _, to := range n.addrs {
			if to.In(0) != a {
				continue
			}
			if qpn == 0 {
				s.c.Drop(x, graph.Reason(s.f.Why))
				return true
			}
			s.own(n)
			slot, client := n.conns.Find(to, qpn)
			switch fl := n.flow(int32(slot)); {
			case client || fl == nil || !fl.synced:
			case fl.bound:
				s.c.Drop(x, graph.Reason(s.f.Why))
				return true
			default:
				f := s.f
				s.forget(fl)
				s.f = f
			}
		}
	}
	return false
}

// mayChange reports whether frame b, with headers f, may be a request that changes memory, whether it names
// the memory or not. SENDs are excepted: they write only to buffers that the server's application posted.
func mayChange(b []byte, f *hdr.Frame) bool {
	switch hdr.ChangeOf(b, f).Reach {
	case hdr.ReachNone, hdr.ReachSend:
		return false
	case hdr.ReachRC:
		return f.Op.Info().Flags&hdr.IsRequest != 0
	}
	return true
}

// named reports whether the server has address a, which is in no VLAN, in any VLAN.
func (n *node) named(a conn.Addr) bool {
	for _, x := range n.addrs {
		if x.In(0) == a {
			return true
		}
	}
	return false
}

// macOf returns the destination MAC address of frame b, fromOf its source MAC address.
func macOf(b []byte) uint64  { return be.Uint64(b) >> 16 }
func fromOf(b []byte) uint64 { return be.Uint64(b[6:14:14]) >> 16 }

// askStrangers asks the server whether it is there, by a duplicate of a request of long ago. It asks on the
// connection of the newest waiting request of strangers. A PSN just before this request's would not do: an
// earlier request may not have reached the server, or may wait here, too. The server would then execute the
// question in its place, and the client would take the answer to the question for the answer to that request.
// The answer to a duplicate of long ago says only what was executed.
func (s *wire) askStrangers() {
	n := s.n
	if n.strangers.Empty() {
		return
	}
	b := n.shelf.Frame(n.strangers.Last()).Bytes()
	if hdr.Parse(b, &s.g) != hdr.IsRoCE || s.g.Op.Transport() != hdr.RC {
		return
	}
	var h header
	if h.learn(b, &s.g) {
		s.emptyWrite(&h, psnAdd(s.g.BTHOf(b).PSN(), -mostUnacked&hdr.PSNMask))
	}
}
