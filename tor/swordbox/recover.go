package swordbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

const (
	// keepState is how old the state that another process left may be: longer than clients repeat their
	// requests.
	keepState = time.Minute
	// keepGone is how long clients of lost connections are told of the loss when they send.
	keepGone = time.Minute
)

// aliveAt returns the time, by this process's clock, at which the process before it was alive last.
func (m *memory) aliveAt() clock.Time {
	return clock.Time(le.Uint64(m.b[24:])).Add(m.epoch.Since(clock.EpochIn(m.b[epochAt:])))
}

// unfit returns why this process cannot go on with the connections on record; nil: it can, or there are none.
func (s *shared) unfit(now clock.Time) error {
	m := &s.mem
	if left(m.b) == 0 {
		return nil
	}
	switch alive := m.aliveAt(); {
	case m.reboot:
		return errReboot
	case s.cfg.mode == End:
		return errEnded
	case !understood(le.Uint32(m.b[8:])):
		return errLayout
	case now < alive:
		return errors.New("it is of the time before the machine was started")
	case now.Sub(alive) > keepState:
		return fmt.Errorf("it is of %v ago, the limit is %v", now.Sub(alive).Round(time.Second), keepState)
	}
	return nil
}

// postpones reports, once, whether inherit has to wait for the first breath: it will end what is on record, and the start may
// still fail, so that the version which wrote it goes on. Until then all of it is bound.
func (s *shared) postpones(c *graph.Ctx, now clock.Time) bool {
	if s.postponed || s.mem.b == nil || s.unfit(now) == nil {
		return false
	}
	s.postponed = true
	was, _ := s.inheritedEnds()
	return c.Rebind(was, was[:min(len(was), port.MaxBound)]) == nil
}

// inherit takes over what a process before this one left.
func (s *Box) inherit(now clock.Time) {
	m := &s.mem
	if m.b == nil {
		return
	}
	was, _ := s.inheritedEnds()
	s.leftServers = serversIn(m.b)
	m.behind = m.epoch.Since(clock.EpochIn(m.b[epochAt:]))
	g := geometryIn(m.b)
	if [memHead]byte(m.b) != [memHead]byte{} {
		s.mem.barred = min(m.aliveAt().Add(time.Duration(tick)), now).Add(s.cfg.settle)
	}
	if m.reboot {
		m.barred = now.Add(s.cfg.settle)
	}
	err := s.unfit(now)
	if len(was) == 0 && g == (geometry{}) && s.mem.barred != 0 {
		err = errSave
	}
	if g != m.geometry {
		m.fit(g)
	}
	m.begin()
	m.alive(now)
	var bound []port.QueuePair
	for p := range m.places { // damage of one server's records ends no connection of another server
		if why := s.recover(now, p, err); why != nil {
			s.why = why.Error()
		}
	}
	if err != nil {
		s.why = err.Error()
	}
	for _, n := range *s.nodes.Load() {
		for i := range n.flows {
			if f := &n.flows[i]; f.bound {
				r := identityOf(&n.rows[i])
				ends := r.ends()
				bound = append(bound, ends[:]...)
				if !f.gone {
					s.c.Count(ctrRestored, 1)
				}
			}
		}
	}
	s.rejournal()
	m.bound.Store(int32(len(bound) / 2))
	if !m.ties.begin(s.c, was, bound) {
		s.c.Count(ctrUnbound, 1)
	}
}

// begin writes the head of the memory, as this process's from now on.
func (m *memory) begin() {
	le.PutUint32(m.b[8:], layout())
	le.PutUint32(m.b[12:], uint32(m.conns))
	le.PutUint32(m.b[16:], uint32(m.window))
	le.PutUint32(m.b[20:], uint32(m.places))
	m.epoch.Put(m.b[epochAt:])
	le.PutUint64(m.b, memMagic)
}

// fit moves the contents of the memory from the places of geometry old to those of this process's geometry,
// which has room for all that is bound. If the process ends during the move, which takes some milliseconds,
// no process starts with this memory (errFormat).
func (m *memory) fit(old geometry) {
	type left struct {
		p, i   int
		record []byte
		arrays
	}
	var all []left
	was := memory{geometry: old, b: m.b}
	for p := range min(old.places, m.places) {
		for i := range min(old.conns, m.conns) {
			b := recordIn(m.b, old, p, i)
			if b[boundAt] == 0 {
				continue
			}
			x := left{p: p, i: i, record: slices.Clone(b)}
			if old.window <= m.window && old.at(p+1) <= len(m.b) {
				a := was.of(p)
				x.arrays = arrays{slices.Clone(a.rows[i : i+1]), slices.Clone(a.flows[i : i+1]),
					slices.Clone(a.ops[i*old.window:][:old.window]), slices.Clone(a.more[i*old.window:][:old.window])}
			}
			all = append(all, x)
		}
	}
	le.PutUint64(m.b, memMoving)
	clear(m.b[memHead:])
	for _, x := range all {
		a := m.of(x.p)
		copy(a.rows[x.i:], x.rows)
		copy(a.flows[x.i:], x.flows)
		copy(a.ops[x.i*m.window:], x.ops)
		copy(a.more[x.i*m.window:], x.more)
		copy(recordIn(m.b, m.geometry, x.p, x.i), x.record)
	}
}

// recover makes a node of the records of place p. The node's connections go on. If why says that they cannot,
// their clients are told when they send. recover returns why they cannot go on, or nil.
func (s *Box) recover(now clock.Time, p int, why error) error {
	var n *node
	for i := range s.mem.conns {
		b := recordIn(s.mem.b, s.mem.geometry, p, i)
		if b[boundAt] == 0 {
			continue
		}
		var r identity
		r.read(b)
		if n == nil {
			n = s.settleIn(now, p, r.server)
		}
		if n == nil || !slices.Contains(n.addrs, r.server) {
			setBound(b, false) // servers= now joins two servers, or the record is damaged
			why = errSave
		}
	}
	if n == nil {
		return why
	}
	s.own(n)
	defer s.release()
	n.follows.Store(true)
	if why == nil {
		why = n.ledger.adopt(now)
	}
	if why == nil {
		for i := range n.flows {
			if f := &n.flows[i]; f.synced && !n.endsAt(f, nameOf(f, &n.rows[i]), now) {
				why = errNICs
			}
		}
	}
	if why == nil {
		why = s.rebuild(n, now)
	}
	if why != nil { // all or none: their operations go over each other's connections
		for i := range n.flows {
			n.conns.Remove(conn.Slot(i))
			n.flows[i] = noFlow
		}
		n.removed = n.removed[:0]
		clear(n.ops)
		for i := range n.flows {
			if b := recordIn(s.mem.b, s.mem.geometry, p, i); b[boundAt] != 0 && !n.ledger.bereave(now, &n.flows[i], b) {
				setBound(b, false) // the table of connections does not take these queue pairs
			}
		}
	}
	return why
}

// settleIn returns a node for server address a in place p. It returns nil if the server has another place, or
// no node can be made.
func (s *Box) settleIn(now clock.Time, p int, a conn.Addr) *node {
	at := slices.IndexFunc(s.places, func(n *node) bool { return n.number == p })
	if at < 0 {
		n, err := newNode(p, &s.mem, &s.cfg, s.workers)
		if err != nil {
			return nil
		}
		at = len(s.places)
		s.places = append(s.places, n)
	}
	s.places[at], s.places[len(s.places)-1] = s.places[len(s.places)-1], s.places[at]
	n, err := s.meetLocked(now, a)
	if err != nil || n.number != p {
		return nil
	}
	return n
}

// adopt adds the connections on record to the table of connections.
func (l *ledger) adopt(now clock.Time) error {
	r := l.r
	for i := range r.flows {
		b := l.recordOf(&r.flows[i])
		if b[boundAt] == 0 {
			r.flows[i] = noFlow
			continue
		}
		var id identity
		id.read(b)
		if identityOf(&r.rows[i]) != id {
			return errSave
		}
		if err := r.conns.Adopt(now, conn.Slot(i), &r.rows[i]); err != nil {
			return err
		}
		if !r.flows[i].sane(r.window) {
			return errSave
		}
	}
	return nil
}

// sane reports whether f's numbers are in the ranges that a flow's may have. window is window=.
func (f *flow) sane(window uint32) bool {
	if f.span == 0 || f.span > window || f.span&(f.span-1) != 0 || f.tail-f.first > f.span || f.head-f.first > f.tail-f.first {
		return false
	}
	for _, psn := range []uint32{f.admitted, f.acked, f.start, f.gate} {
		if psn > hdr.PSNMask {
			return false
		}
	}
	return f.up.sane() && f.down.sane() && f.mtu <= 4096 && f.mtuLow <= 4096 && (f.gone || f.synced)
}

// sane reports whether h is unknown, or frames can be made with it.
func (h *header) sane() bool {
	if !h.known() {
		return true
	}
	l3 := hdr.IPv6Len
	if h.net == hdr.NetIPv4 {
		l3 = hdr.IPv4Len
	}
	l4 := 0
	if h.l4 != 0 {
		l4 = hdr.UDPLen
	}
	return h.len() <= len(h.b) && h.l3 >= hdr.EthernetLen && int(h.bth) == int(h.l3)+l3+l4 && (h.l4 == 0 || int(h.l4) == int(h.l3)+l3) && h.net <= hdr.NetGRH
}

// heal makes lengths and checksum of h valid again; the process may have ended between the stores to them.
func (h *header) heal() {
	if h.known() && h.net == hdr.NetIPv4 {
		hdr.IPv4(h.b[h.l3:][:hdr.IPv4Len]).SetTotalLen(0) // no frame has this length, so front computes lengths and checksum anew
	} else if h.known() {
		hdr.IPv6(h.b[h.l3:]).SetPayloadLen(0)
	}
}

// rebuild makes a node's flows and operations fit for this process, from what the other process left. That
// process may have ended between any two stores. So rebuild uses no value that may have been about to change:
// it makes lists, counts and each connection's next PSN anew from the operations. An operation's fields were
// complete before flow.tail counted it. A frame that was handled and did not leave is lost, and is repaired
// like any lost frame. Held frames are lost, too. Rights and words are learnt again.
func (s *Box) rebuild(n *node, now clock.Time) error {
	lanes := make([][]*op, len(n.flows))
	for i := range n.flows {
		if f := &n.flows[i]; f.synced {
			n.reset(f, now)
			f.began = min(f.began.Add(s.mem.behind), now)
		}
	}
	for at := range n.ops {
		o := &n.ops[at]
		if o.state > sUnsent || o.kind > kOdd {
			return errSave
		}
		if !n.restart(o) {
			if o.npsn != 0 { // unused pages are not written to
				o.npsn = 0 // no flow has the operation: its place is free
			}
			continue
		}
		if o.state == sOpen {
			lanes[o.lane] = append(lanes[o.lane], o)
		}
	}
	for l := range lanes {
		if c := &n.flows[l]; c.synced {
			n.relink(c, lanes[l], now)
		}
	}
	n.words.unrest = unrest{gen: n.words.free.now(), barred: n.words.unknown}
	n.words.vouch(&s.cfg)
	for l := range lanes {
		f := &n.flows[l]
		if !f.synced {
			continue
		}
		s.carriers.advance(f)
		switch {
		case f.dead && f.oldest != none:
			s.carriers.bequest(f)
		case f.writes > 0:
			f.inDoubt = true
		}
		f.gated = f.gated && !psnLess(f.gate, f.next)
		n.due(f)
	}
	s.clients.settle()
	return nil
}

// reset makes flow f anew from those of its fields that outlive the process.
func (r *record) reset(f *flow, now clock.Time) {
	g := flow{
		synced: true, trusted: f.trusted, young: f.young, onward: f.onward, start: f.start, bound: true, told: f.told, lost: f.lost, mtu: f.mtu, mtuLow: f.mtuLow,
		client: client{
			gone: f.gone, failed: f.failed, misshapen: f.misshapen, syn: f.syn, admitted: f.admitted, first: f.first, head: f.head, tail: f.tail, span: f.span,
			base: f.base, down: f.down, ended: f.ended, verdict: f.verdict, past: f.past, pastAt: f.pastAt, answerer: none, lane: none, cur: none,
		},
		carrier: carrier{dead: f.dead, counted: f.trusted, gated: f.gated && !f.dead, gate: f.gate, acked: f.acked, deep: f.deep, peak: f.deep, trip: max(0, f.trip), up: f.up, oldest: none, newest: none},
	}
	if f.lost != 0 {
		g.lost = now.Add(keepGone)
	}
	if f.msn&newestMSN != 0 {
		g.msn = f.msn
	}
	if g.tail != g.first && !g.gone {
		g.proceed(f, r)
	}
	if g.arrived = g.admitted; f.lost != 0 { // clients send again the requests that waited
		g.seen, g.arrived, g.heard = f.seen, f.arrived, now
	}
	g.up.heal()
	g.down.heal()
	g.shape = g.up.shape
	*f = g
}

// proceed finds how far the newest request of flow g had come. f has g's fields as the other process left
// them.
func (g *flow) proceed(f *flow, r *record) {
	o := &r.ops[r.index(f)<<(r.shift&31)+int32((g.tail-1)&(g.span-1))]
	sent := hdr.PSNDiff(g.admitted, o.cpsn)
	switch {
	case sent <= 0: // none of its packets left
		g.tail--
		if int32(g.head-g.tail) > 0 {
			g.head = g.tail
		}
	case r.get(f.cur) == o && o.state == sOpen: // more of its packets are to come
		g.cur, g.began = f.cur, f.began
		if g.part = f.part; o.kind == kWrite {
			g.rest = o.len - min(o.len, uint32(sent)*f.part)
		}
	case uint32(sent) < o.npsn: // its last packet did not leave
		g.admitted = psnAdd(o.cpsn, o.npsn)
	}
	g.unsure = f.unsure && o.kind == kRead && o.state == sOpen && g.cur == none
}

// restart makes operation o fit for this process. It returns false if no flow and no connection has o.
func (r *record) restart(o *op) bool {
	f := r.flowOf(o)
	at := uint32(r.place(o)) % r.window
	k := at - f.first // number of operations before o
	mine := f.synced && at < f.span
	if mine {
		k &= f.span - 1
	}
	mine = mine && k < f.tail-f.first
	if !mine && (o.state != sOpen || !o.is(fOrphan)) || o.npsn == 0 || o.npsn > hdr.PSNMask {
		return false
	}
	if o.word, o.next = none, none; o.flags&fReleased == fReleased {
		o.word = lapsed
	}
	kept := o.is(fKept) || o.kind == kRead && o.out != 0
	o.flags &= fReplaced | fAckReq | fRight | fBare | fOwn | fPrompt | fOrphan | fEarly | fAgain
	if kept {
		o.out = 0 // its held frames are lost
	}
	released := mine && int32(f.first+k-f.head) < 0
	if o.state == sOpen && (o.lane < 0 || int(o.lane) >= len(r.flows) || !r.carrier(o).synced || released && o.kind != kRead) {
		if o.state = sUnsent; released {
			o.state = sDone
		}
	}
	if o.kind == kRead && o.state == sOpen && (kept || o.is(fEarly)) {
		o.got = 0
		o.flags &^= fEarly
	}
	if o.kind == kRead && o.state == sDone && !released {
		o.state, o.got = sUnsent, 0 // its client has not seen the whole answer
		r.beside(o).setNAK(hdr.SynNAKSequence, 0)
		o.flags |= fPrompt
	}
	switch {
	case o.state == sOpen && o.is(fOrphan):
	case o.state == sOpen:
		if o.flags &^= fAgain; released {
			o.flags |= fAgain
			f.rereads++
		}
		if f.open++; o.is(fBare) {
			f.bare++
		}
	case o.state == sUnsent && !released:
		f.unsent++
	}
	return true
}

// relink makes the list of what connection c carries, and what is counted from it, anew. list has the
// operations.
func (n *order) relink(c *flow, list []*op, now clock.Time) {
	// A READ that is done again may begin in the middle: o.got says where the server was asked to begin.
	begins := func(o *op) int32 { return hdr.PSNDiff(psnAdd(o.spsn, o.got), c.acked) }
	slices.SortFunc(list, func(a, b *op) int { return cmp.Compare(begins(a), begins(b)) })
	c.next = psnAdd(c.acked, 1)
	for _, o := range list {
		at, f := n.place(o), n.flowOf(o)
		if c.newest == none {
			c.oldest, c.loaded = at, now
		} else {
			n.ops[c.newest].next = at
		}
		c.newest = at
		c.next = psnAdd(o.spsn, o.npsn)
		if f.cur == at && f == c {
			c.next = psnAdd(o.spsn, uint32(hdr.PSNDiff(f.admitted, o.cpsn)))
		}
		if f != c {
			o.flags |= fGuest
			n.nicOf(c).keys.inherit(o, now)
			n.lends.add(n.index(c))
		}
		if !o.makeable() && o.word != lapsed {
			o.flags |= fUnkept
		}
		c.count(o, 1)
		if !o.is(fOrphan) {
			f.mixed = f.mixed || f.lane != none && f.lane != o.lane
			f.lane = o.lane
		}
		if o.word != lapsed {
			n.rejoin(o)
		}
		if o.modifies() && o.word == none && !o.is(fBare|fOrphan) {
			o.flags |= fBare // the word of the operations that its client must send before it is not known
			f.bare++
		}
		if o.is(fReplaced) && o.word != lapsed {
			n.words.writes++
		}
	}
	// The server may have executed more behind a READ whose answer was lost: the question of the other
	// process (see inquire).
	if after := psnAdd(c.acked, 1); psnLess(c.next, after) {
		c.next = after
	}
}

// rejoin counts the open operation o, which another process sent. The word of a WRITE in the place of an
// atomic is tracked from the start, so that other clients' requests to it wait.
func (n *order) rejoin(o *op) {
	if !o.modifies() {
		return
	}
	w := none
	if o.is(fReplaced) {
		if w = n.words.find(o.va); w == none {
			w = n.words.add(o.va, o.rkey)
		}
	}
	if w == none || n.words.w[w].flight > 0 && n.words.w[w].lane != o.lane {
		n.words.joinFree(o)
		return
	}
	n.words.join(o, w, o.lane, true, 0)
	n.words.w[w].writes++
}

// bereave makes flow f from record b of a connection that was lost with another process. Its client is told
// when it sends. bereave returns false if f's queue pairs cannot be added to the table of connections.
func (l *ledger) bereave(now clock.Time, f *flow, b []byte) bool {
	var r identity
	r.read(b)
	row := conn.Row{Client: conn.End{Addr: r.client, QPN: r.cqpn}, Server: conn.End{Addr: r.server, QPN: r.sqpn}, Learnt: conn.Static, Net: hdr.NetIPv6}
	switch {
	case r.v1:
		row.Net = hdr.NetGRH
	case r.client.Is4():
		row.Net = hdr.NetIPv4
	}
	if l.r.conns.Adopt(now, l.r.slot(f), &row) != nil {
		return false
	}
	l.r.rows[l.r.index(f)] = row
	*f = noFlow
	f.synced, f.gone, f.bound, f.span = true, true, true, min(l.r.window, narrow)
	f.ended, f.lost = le.Uint32(b[unaAt:]), now.Add(keepGone)
	l.by.c.Count(ctrLost, 1)
	return true
}

// tell answers request b in buffer x, of the lost connection fl, with the NAK that ends its client's queue
// pair. The frame itself becomes the answer.
func (s *clientSide) tell(fl *flow, x *packet.Buf, b []byte) {
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
	q := s.n.row(fl).Client.QPN
	be.PutUint32(h.b[h.bth+4:], q)
	was := fl.down
	fl.down = h
	fl.told, fl.lost = true, s.c.Now().Add(keepGone)
	s.spare, s.to = x, nil
	if fl.ended&knownPSN == 0 {
		fl.ended = psn | knownPSN
	}
	s.refuse(fl)
	fl.down = was
	if s.spare != nil {
		s.spare = nil
		s.c.Drop(x, reasonReset)
	}
	s.c.Count(ctrResets, 1)
}

// answersLost handles response x, with the bytes b, to the client of the lost connection fl. While answers to requests of before may
// be under way, they must not reach the client. Later a response is for another connection that has the client's queue pair now.
func answersLost(s *carrierSide, fl *flow, x *packet.Buf, b []byte) {
	if s.f.Op == hdr.Acknowledge && s.n.ledger.byJournal(fl) && (fl.owed != 0 || fl.heardAgain(s.c.Now(), s.f.BTHOf(b).PSN())) {
		if fl.owed != 0 {
			hearLost(s, fl, b)
		}
		s.c.Drop(x, reasonAbsorbed)
		return
	}
	if s.c.Now() > fl.lost || s.n.row(fl).Contested {
		s.mark(toServers, x, reasonStranger)
		return
	}
	s.c.Drop(x, reasonReset)
}

// endsLost removes the lost connection that datagram b of the connection manager ends, if b is a server's request to
// disconnect. The record of a lost connection has no communication IDs, so a request of the client's side, which anybody can
// make up, removes nothing.
func (s *wire) endsLost(b []byte) {
	m, _ := s.f.CMOf(b)
	if m.AttributeID() != hdr.DisconnectRequest {
		return
	}
	n := s.n
	slot, client := n.conns.Find(s.ends.Dst, m.RemoteQPN())
	if fl := n.flow(int32(slot)); client && fl != nil && fl.lost != 0 && n.row(fl).Server.Addr == s.ends.Src {
		n.conns.Remove(slot)
	}
}
