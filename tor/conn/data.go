package conn

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

const (
	// enough is the number of matching responses that pair a row, and of contradicting
	// responses that undo the pairing.
	enough = 3
	// maxCandidates is the largest number of half-open rows between two addresses. It is bounded
	// because a response is compared with all of them.
	maxCandidates = 256
	leastMTU      = 256
	// outlived is how long after a DisconnectRequest responses may arrive that the server sent before it.
	outlived   = clock.Duration(1e9)
	maxMessage = 1 << 31 // bytes (IBTA 9.7.2)
)

// saw notes the MAC addresses and the UDP source port of a frame that the end sent.
func (e *End) saw(b []byte, f *hdr.Frame) {
	e.L2 = [12]byte(b[:12])
	e.Port = portOf(b, f)
}

// portOf returns a frame's UDP source port; 0 for RoCE v1.
func portOf(b []byte, f *hdr.Frame) uint16 {
	if f.L4 == 0 {
		return 0
	}
	return f.UDPOf(b).SrcPort()
}

// mayBe reports whether the source MAC address of frame b is the one that e was
// learnt with, or e has none yet.
func (e *End) mayBe(b []byte) bool {
	return e.L2 == [12]byte{} || e.SrcMAC() == [6]byte(b[6:12])
}

// Request takes a request of a reliable connection: frame b with headers f, between ends.
// The slot is NoSlot except for the events Known, Opened, Waiting, Replaced, Unpaired,
// NowPaired, IsClosing and Reverse.
func (t *Table) Request(now clock.Time, ends *Ends, b []byte, f *hdr.Frame) (Slot, Event) {
	if f.Op.Transport() != hdr.RC || !f.Op.Has(hdr.IsRequest) {
		return NoSlot, Foreign
	}
	if f.Plain {
		if s := t.Easily(now, ends, b, f.Op.Info().Flags, 0, t.Ahead(ends, b)); s >= 0 {
			return s, Known
		}
	}
	qpn := f.BTHOf(b).DestQP()
	k, r := t.row(ends.Dst, qpn)
	if r == nil {
		return t.newRequest(now, ends.Src, ends.Dst, qpn, b, f, Opened)
	}
	s := k.slot()
	if k.client() {
		if r.Server.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Server.mayBe(b) {
			return t.stranger(now, s, ends, qpn, b, f)
		}
		r.Server.saw(b, f)
		return s, r.reverse(now)
	}
	if r.Client.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Client.mayBe(b) {
		return t.stranger(now, s, ends, qpn, b, f)
	}
	r.Client.saw(b, f)
	if r.easy == hard {
		return t.watchRequest(now, s, b, f)
	}
	r.LastSeen = now
	return s, Known
}

// Response takes a response of a reliable connection: frame b with headers f, between ends.
// The slot is NoSlot except for the events Known, NowPaired, Unpaired, IsClosing, Reverse,
// and Unmatched if the row is known but the response answers no request of its client.
func (t *Table) Response(now clock.Time, ends *Ends, b []byte, f *hdr.Frame) (Slot, Event) {
	if f.Op.Transport() != hdr.RC || !f.Op.Has(hdr.IsResponse) {
		return NoSlot, Foreign
	}
	if f.Plain {
		if s := t.Easily(now, ends, b, f.Op.Info().Flags, 0, t.Ahead(ends, b)); s >= 0 {
			return s, Known
		}
	}
	qpn := f.BTHOf(b).DestQP()
	k, r := t.row(ends.Dst, qpn)
	if r == nil {
		return t.infer(now, ends, qpn, b, f)
	}
	s := k.slot()
	if !k.client() {
		switch {
		case r.Client.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Client.mayBe(b):
			return NoSlot, Spoofed
		case r.State == HalfOpen: // a connection with requests in both directions looks like two rows at first
			return t.infer(now, ends, qpn, b, f)
		}
		r.Client.saw(b, f)
		return s, r.reverse(now)
	}
	if r.Server.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Server.mayBe(b) {
		return NoSlot, Spoofed
	}
	r.Server.saw(b, f)
	if r.easy == hard || r.MTU == 0 && f.Op.Any(hdr.IsFirst|hdr.IsMiddle) {
		return t.watchResponse(now, s, b, f)
	}
	r.LastSeen = now
	return s, Known
}

// Plain does what Request or Response does, for a frame that changes nothing but its own row: a
// request from the client of a paired connection, or a response to it. It also accepts, with NoSlot, a
// response to an unknown queue pair that no half-open row can have asked for (Unasked). For any
// other frame ok is false and nothing changes; s is then the row that holds the destination's
// queue pair, or NoSlot. With an owner other than 0, Plain accepts only rows of this owner (Give).
// Different owners may then call Plain concurrently, if nobody calls anything else meanwhile.
func (t *Table) Plain(now clock.Time, ends *Ends, b []byte, f *hdr.Frame, owner uint16) (s Slot, ok bool) {
	fl := f.Op.Info().Flags
	k, r := t.row(ends.Dst, f.BTHOf(b).DestQP())
	if r == nil {
		return NoSlot, fl&hdr.IsResponse != 0 && t.Unasked(ends)
	}
	_, from := r.ends(k.client())
	if owner != 0 && r.Owner != owner || k.client() == (fl&hdr.IsRequest != 0) || from.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !from.mayBe(b) ||
		r.easy == hard || r.MTU == 0 && fl&hdr.IsResponse != 0 && fl&(hdr.IsFirst|hdr.IsMiddle) != 0 {
		return k.slot(), false
	}
	from.saw(b, f)
	r.LastSeen = now
	return k.slot(), true
}

// Unasked reports whether there is no half-open row that a response between ends may answer. A response
// to an unknown queue pair is then Plain.
func (t *Table) Unasked(ends *Ends) bool {
	return len(t.quiet[guesses]) == 0 || t.bucket(ends.Dst, ends.Src).head == 0
}

// Give makes owner the owner of the row in slot s (see Plain).
func (t *Table) Give(s Slot, owner uint16) {
	if r := &t.rows[s]; r.Owner != owner {
		r.Owner = owner
	}
}

func (r *Row) reverse(now clock.Time) Event {
	if r.State == Closing {
		return IsClosing
	}
	r.LastSeen = now
	return Reverse
}

// newRequest makes a half-open row for the requests from src to (dst, qpn), and returns it with event
// e. The row waits if another row holds the queue pair.
func (t *Table) newRequest(now clock.Time, src, dst Addr, qpn uint32, b []byte, f *hdr.Frame, e Event) (Slot, Event) {
	if !t.cfg.Infer || qpn < 2 {
		return NoSlot, Foreign
	}
	l, s := t.bucket(src, dst), NoSlot
	if l.n < maxCandidates && t.halfOpen(now, Inferred, src) {
		s = t.alloc(now, Inferred)
	}
	if s == NoSlot {
		t.unlisted(now, l, src, dst, portOf(b, f))
		return NoSlot, Full
	}
	r := &t.rows[s]
	r.Net = f.Net
	r.Client.Addr, r.Server.Addr, r.Server.QPN = src, dst, qpn
	r.Client.saw(b, f)
	if k := t.find(dst, qpn); k != noRef {
		o := &t.rows[k.slot()]
		o.rival, r.waits = s+1, true
		t.rewatch(o)
	} else {
		t.putQP(s, false)
	}
	t.list(s)
	t.place(s)
	t.restart(r, now, b, f)
	return s, e
}

// stranger takes a request for a queue pair of row s that the peer did not send.
// If the row was inferred and is quiet, the number may belong to another connection.
// That connection gets a row that waits. The waiting row takes the number over when the
// server's answers have proven it, unless the first connection was heard again.
func (t *Table) stranger(now clock.Time, s Slot, ends *Ends, qpn uint32, b []byte, f *hdr.Frame) (Slot, Event) {
	r, src, dst := &t.rows[s], ends.Src, ends.Dst
	guess := r.Learnt == Inferred && now.Sub(r.LastSeen) >= t.cfg.Reuse
	expired := guess && r.State == HalfOpen || t.expired(s, now)
	if !t.cfg.Infer || !guess && !expired {
		return NoSlot, Spoofed
	}
	if w := r.rival - 1; r.rival != 0 {
		n := &t.rows[w]
		switch mine := n.Client.Addr == src && n.Net == f.Net && (!t.cfg.GuardMAC || n.Client.mayBe(b)); {
		case n.Learnt == Inferred && mine && !expired:
			n.Client.saw(b, f)
			return t.watchRequest(now, w, b, f)
		case n.Learnt != Inferred || !mine && now.Sub(n.LastSeen) < t.cfg.Reuse:
			return NoSlot, Spoofed
		}
		t.unclaim(r)
	}
	if expired {
		t.Remove(s)
		return t.newRequest(now, src, dst, qpn, b, f, Replaced)
	}
	return t.newRequest(now, src, dst, qpn, b, f, Opened)
}

// unclaim removes the inferred row that waits for a queue pair of r, if there is
// one.
func (t *Table) unclaim(r *Row) {
	if w := r.rival - 1; r.rival != 0 && t.rows[w].Learnt == Inferred {
		t.Remove(w)
	}
}

// proven reports whether waiting row s, whose requests the server answers, may
// take over its queue pair. If so, proven removes the row that held the queue pair.
func (t *Table) proven(now clock.Time, s Slot) bool {
	k := t.find(t.rows[s].Server.Addr, t.rows[s].Server.QPN)
	if k == noRef {
		return false
	}
	o := &t.rows[k.slot()]
	if o.Learnt != Inferred || now.Sub(o.LastSeen) < t.cfg.Reuse || o.pinned && (t.cfg.LetGo == nil || !t.cfg.LetGo(k.slot())) {
		return false
	}
	t.Remove(k.slot())
	return true
}

// psns returns the largest number of PSNs that a request may take.
func (r *Row) psns(b []byte, f *hdr.Frame) uint32 {
	if !f.Op.Has(hdr.IsRead) {
		return 1
	}
	mtu := uint32(r.MTU)
	if mtu == 0 {
		mtu = leastMTU
	}
	n := f.RETHOf(b).DMALength()
	if n == 0 || n > maxMessage {
		return 1 // empty, or one that the server refuses
	}
	return min((n-1)/mtu+1, maxWindow)
}

// Takes reports whether the server may execute request b of its client, with headers f. partition: the
// request is in the server's partition (IBTA 10.9.3: at least one of both ends is a full member), or that is
// not known. address: the request goes to the MAC address that the server's answers come from. A request with
// another MAC address may reach the server, too, if a router changes the address.
func (r *Row) Takes(b []byte, f *hdr.Frame) (partition, address bool) {
	k := f.BTHOf(b).PKey()
	return (k^r.PKey)&0x7FFF == 0 && (k|r.PKey)&0x8000 != 0 || r.PKey == 0, [6]byte(b[:6]) == r.Server.SrcMAC()
}

// doubt forgets the candidate, and what was counted for it.
func (r *Row) doubt() { r.candidate, r.matches, r.asks = 0, 0, 0 }

// note learns P_Key and path MTU from a response: all packets of a READ's answer but the last fill the
// path MTU. note does not use requests, because anybody can forge a request with other values.
func (t *store) note(r *Row, b []byte, f *hdr.Frame) {
	if r.PKey == 0 {
		r.PKey = f.BTHOf(b).PKey()
		t.rewatch(r)
	}
	if r.MTU == 0 && f.Op.Any(hdr.IsFirst|hdr.IsMiddle) {
		switch n := len(f.PayloadOf(b)); n {
		case 256, 512, 1024, 2048, 4096:
			r.MTU = uint16(n)
		}
	}
}

// watchRequest does what Request does, for a row that needs more than a look-up.
func (t *Table) watchRequest(now clock.Time, s Slot, b []byte, f *hdr.Frame) (Slot, Event) {
	r := &t.rows[s]
	psn := f.BTHOf(b).PSN()
	if w := r.rival - 1; r.rival != 0 {
		if t.successor(r) && !r.near(psn, t.cfg.Window) {
			return t.watchRequest(now, w, b, f)
		}
		// The first packet of the connection that takes over confirms it as
		// ReadyToUse does (IBTA 12.9.6), if the old one has been silent since
		// the ConnectReply.
		n := &t.rows[w]
		if t.unclaim(r); r.rival != 0 && n.Client.Addr == r.Client.Addr && n.Server.Addr == r.Server.Addr && n.Server.QPN == r.Server.QPN && psn == n.Client.StartPSN && r.LastSeen < n.LastSeen && !keeps(t, w) {
			t.commit(now, w)
			t.rows[w].Client.saw(b, f)
			return w, NowPaired
		}
	}
	if r.State == Closing {
		return s, IsClosing // LastSeen stays the time at which the row began to close
	}
	if r.Learnt == Inferred && !r.pinned {
		switch ok := t.number(r, now, psn, b, f); {
		case !ok && r.State == HalfOpen:
			t.restart(r, now, b, f)
		case !ok && r.rival == 0:
			// The client's queue pair starts anew, or belongs to another connection by now, or the request is
			// forged: the server's answers will tell.
			if n, e := t.newRequest(now, r.Client.Addr, r.Server.Addr, r.Server.QPN, b, f, Waiting); e == Waiting {
				return n, e
			}
			return s, Known
		case r.wild != 0 && r.State == Paired:
			return s, Known // the request may be forged, so it changes nothing yet
		}
	}
	r.LastSeen = now
	if r.State == HalfOpen {
		return s, Waiting
	}
	return s, Known
}

// successor reports whether the row that waits for a queue pair of r has requests of
// the same client, numbered anew.
func (t *store) successor(r *Row) bool {
	if r.rival == 0 {
		return false
	}
	n := &t.rows[r.rival-1]
	return n.Learnt == Inferred && n.Client.Addr == r.Client.Addr && n.Net == r.Net
}

// fits reports whether PSN p may answer a request of r.
func (r *Row) fits(p uint32) bool {
	return hdr.PSNDiff(p, r.low) >= 0 && hdr.PSNDiff(r.next, p) > 0
}

// watchResponse does what Response does, for a row that needs more than a look-up.
func (t *Table) watchResponse(now clock.Time, s Slot, b []byte, f *hdr.Frame) (Slot, Event) {
	r := &t.rows[s]
	t.note(r, b, f)
	if r.State == Closing {
		if now.Sub(r.LastSeen) < outlived {
			return s, IsClosing
		}
		r.State, r.LastSeen = Paired, now // its server never got the DisconnectRequest
		t.rewatch(r)
	}
	t.useful(s)
	if r.Learnt == Managed && !r.ready {
		r.ready = true // the client's confirmation was lost
		t.rewatch(r)
	}
	if r.Learnt != Inferred || r.pinned {
		r.LastSeen = now
		return s, Known
	}
	p := f.BTHOf(b).PSN()
	if d := hdr.PSNDiff(r.next, p); d > 0 && uint32(d) <= t.cfg.Window+uint32(hdr.PSNDiff(r.next, r.sent)) {
		r.misses, r.LastSeen = 0, now
		return s, Known
	}
	// The queue pair may belong to another connection by now.
	if found, n, _ := t.fit(r.Server.Addr, r.Client.Addr, r.Client.QPN, b, f); n == 1 && t.successor(r) && found == r.rival-1 {
		w := &t.rows[found]
		if w.support(r.Client.QPN, p); w.matches == enough {
			r.sent, r.next, r.low, r.old, r.mark, r.markAt = w.sent, w.next, w.low, w.old, w.mark, w.markAt
			r.misses, r.LastSeen = 0, now
			t.unclaim(r)
		}
		return s, Known
	}
	if r.misses++; r.misses < enough {
		return s, Unmatched
	}
	t.unpair(s)
	return s, Unpaired
}

// Answers reports whether response b, between ends, may answer a half-open row. The caller asks this because
// a client's queue pair may serve a new connection while the old one is still in the table.
func (t *Table) Answers(ends *Ends, b []byte, f *hdr.Frame) bool {
	_, n, _ := t.fit(ends.Src, ends.Dst, f.BTHOf(b).DestQP(), b, f)
	return n > 0
}

// unpair forgets the client's queue pair of an inferred row, which is half-open then.
func (t *Table) unpair(s Slot) {
	r := &t.rows[s]
	t.unclaim(r)
	t.delQP(s, true)
	r.Client.QPN, r.State, r.misses = 0, HalfOpen, 0
	r.old, r.mark = r.low, r.low
	r.doubt()
	t.list(s)
	t.overhear(r)
	t.place(s)
	t.rewatch(r)
}

// infer looks for the one half-open row that a response from the server ends.Src to queue pair qpn of
// the client ends.Dst answers, and pairs the row if it is certain.
func (t *Table) infer(now clock.Time, ends *Ends, qpn uint32, b []byte, f *hdr.Frame) (Slot, Event) {
	src, dst := ends.Src, ends.Dst
	if !t.cfg.Infer || qpn < 2 {
		return NoSlot, Unmatched
	}
	l := t.bucket(dst, src)
	found, n, byPort := t.fit(src, dst, qpn, b, f)
	bit := uint64(0)
	if !t.crowded(now, l) {
		bit = t.listen(now, l, src, dst, qpn, b, f)
	} else if !byPort || t.recent(now, *t.lacking(dst, src, portOf(b, f))) {
		return NoSlot, Ambiguous
	}
	e := Waiting
	switch {
	case n == 0:
		return NoSlot, Unmatched
	case n > 1:
		e = Ambiguous
	}
	if !f.Op.Any(hdr.IsLast|hdr.IsOnly) || !answers(b, f) {
		return NoSlot, e // only the last packet of a READ's answer counts, and a refused request comes again
	}
	if n == 1 {
		t.rows[found].support(qpn, f.BTHOf(b).PSN())
	}
	if n > 1 || !t.settled(&t.rows[found]) {
		if found = t.only(now, l, src, dst, f.Net, bit); found == NoSlot {
			return NoSlot, e
		}
	}
	r := &t.rows[found]
	if k := t.find(dst, qpn); k != noRef {
		// The same connection, learnt from requests in the other direction.
		if o := &t.rows[k.slot()]; o.Learnt != Inferred || o.State != HalfOpen {
			return NoSlot, Waiting
		}
		t.Remove(k.slot())
	}
	if r.waits && !t.proven(now, found) {
		return NoSlot, Waiting
	}
	if bit != 0 {
		t.hush(l, bit, false)
	}
	t.unlist(found)
	r.Client.QPN, r.State, r.LastSeen = qpn, Paired, now
	r.Server.saw(b, f)
	t.note(r, b, f)
	t.putQP(found, true)
	t.place(found)
	return found, NowPaired
}

// support notes that a response to queue pair qpn with PSN p answers a request of r,
// and of no other.
func (r *Row) support(qpn, p uint32) {
	switch {
	case r.candidate != qpn:
		r.doubt()
		r.candidate, r.matched, r.matches = qpn, p, 1
	case hdr.PSNDiff(p, r.matched) > 0:
		r.matched = p
		r.matches = min(r.matches+1, enough)
	}
}
