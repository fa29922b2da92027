package conn

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// CM takes a datagram of the connection manager, in either direction. It returns the slot
// of the connection concerned; NoSlot for Removed, Full, Spoofed,
// Forged, Ended, Stray and Foreign. NowPaired comes with the ConnectReply. But if other rows
// still hold the queue pairs, it comes with the client's ReadyToUse or its
// first request, which then remove these rows.
func (t *Table) CM(now clock.Time, ends *Ends, b []byte, f *hdr.Frame) (Slot, Event) {
	src, dst := ends.Src, ends.Dst
	m, ok := f.CMOf(b)
	if !ok {
		return NoSlot, Foreign
	}
	switch m.AttributeID() {
	case hdr.ConnectRequest:
		return t.connectRequest(now, src, dst, m, b, f)
	case hdr.ConnectReply, hdr.MsgRcptAck, hdr.ConnectReject, hdr.ReadyToUse, hdr.DisconnectRequest, hdr.DisconnectReply:
	default:
		return NoSlot, Foreign
	}
	// The receiver's name for the connection finds it.
	k := t.findID(dst, m.RemoteCommID())
	if k == noRef && m.RemoteCommID() == 0 && m.AttributeID() == hdr.ConnectReject {
		// A side that gives up before it was answered does not know the other's communication ID.
		if k = t.findID(src, m.LocalCommID()); k != noRef {
			k ^= 1
		}
	}
	if k == noRef {
		return NoSlot, t.about(now, src, dst, m)
	}
	s := k.slot()
	r := &t.rows[s]
	to, from := r.ends(k.client())
	if from.Addr != src || to.Addr != dst || r.Net != f.Net || t.cfg.GuardMAC && !from.mayBe(b) {
		return NoSlot, Spoofed
	}
	toClient := k.client()
	if m.AttributeID() == hdr.ConnectReply {
		if !toClient || m.TransactionID() != r.tid {
			return NoSlot, Forged
		}
		return t.connectReply(now, s, m, b)
	}
	// All others are sent by an end that has been named, or that has not
	// answered yet.
	if from.hasComm && m.LocalCommID() != from.CommID && (m.AttributeID() != hdr.ConnectReject || m.LocalCommID() != 0 || !toClient) {
		return NoSlot, Forged
	}
	switch m.AttributeID() {
	case hdr.MsgRcptAck:
		if r.State != HalfOpen {
			return s, Known
		}
		r.LastSeen = now
		return s, Waiting
	case hdr.ConnectReject:
		if r.ready || r.State == Closing {
			return NoSlot, Forged
		}
		t.keep(r, now.Add(t.cfg.TimeWait))
		t.Remove(s)
		return NoSlot, Removed
	case hdr.ReadyToUse:
		if toClient || !r.Server.hasComm {
			return NoSlot, Forged
		}
		if r.waits && t.lives(s) {
			return s, Waiting
		}
		from.L2 = [12]byte(b[:12])
		r.LastSeen = now
		if r.waits {
			t.commit(now, s)
			return s, NowPaired
		}
		r.ready = true
		t.rewatch(r)
		if r.State == Closing {
			return s, IsClosing
		}
		return s, Known
	case hdr.DisconnectRequest:
		if r.State == HalfOpen || m.RemoteQPN() != to.QPN {
			return NoSlot, Forged
		}
		if r.endAsked(toClient); r.State != Closing {
			r.State, r.LastSeen = Closing, now
			t.useful(s)
			t.rewatch(r)
		}
		return s, IsClosing
	case hdr.DisconnectReply:
		if !r.wasAsked(toClient) {
			return NoSlot, Forged
		}
		t.Remove(s)
		return NoSlot, Removed
	}
	return NoSlot, Foreign
}

func (t *Table) connectRequest(now clock.Time, src, dst Addr, m hdr.CM, b []byte, f *hdr.Frame) (Slot, Event) {
	if m.TransportService() != hdr.RC {
		return NoSlot, Foreign
	}
	if AddrFrom(m.PrimaryLocalGID()).In(src.VLAN()) != src || AddrFrom(m.PrimaryRemoteGID()).In(dst.VLAN()) != dst || m.LocalQPN() < 2 {
		return NoSlot, Forged
	}
	if k := t.findID(src, m.LocalCommID()); k != noRef {
		r := &t.rows[k.slot()]
		if !k.client() || r.Server.Addr != dst || r.Client.QPN != m.LocalQPN() || r.tid != m.TransactionID() {
			return NoSlot, Forged // another connection has this communication ID
		}
		if r.State != HalfOpen {
			return k.slot(), Known
		}
		r.LastSeen = now
		return k.slot(), Waiting
	}
	if t.late(now, src, dst, m) {
		return NoSlot, Ended
	}
	s := NoSlot
	if t.halfOpen(now, Managed, src) {
		s = t.alloc(now, Managed)
	}
	if s == NoSlot {
		return NoSlot, Full
	}
	r := &t.rows[s]
	r.Net, r.MTU, r.tid = f.Net, uint16(m.PathMTU()), m.TransactionID()
	r.AckTimeout, r.Retries = m.LocalACKTimeout()+1, m.RetryCount()
	r.Client = End{Addr: src, QPN: m.LocalQPN(), L2: [12]byte(b[:12]), Resources: m.ResponderResources(), Depth: m.InitiatorDepth()}
	r.Server = End{Addr: dst, StartPSN: m.StartingPSN(), HasPSN: true}
	t.putID(s, true, m.LocalCommID())
	t.place(s)
	return s, Opened
}

func (t *Table) connectReply(now clock.Time, s Slot, m hdr.CM, b []byte) (Slot, Event) {
	r := &t.rows[s]
	if r.Server.hasComm {
		// Again, because ReadyToUse was lost; anything else is not the server's.
		if r.Server.CommID != m.LocalCommID() || r.Server.QPN != m.LocalQPN() || r.Client.StartPSN != m.StartingPSN() {
			return NoSlot, Forged
		}
		if r.State == HalfOpen {
			r.LastSeen = now
			return s, Waiting
		}
		return s, Known
	}
	if m.LocalQPN() < 2 {
		return NoSlot, Forged
	}
	if t.findID(r.Server.Addr, m.LocalCommID()) != noRef {
		return NoSlot, Forged // another connection has this communication ID
	}
	if t.cfg.GuardMAC {
		for _, e := range []End{r.Client, {Addr: r.Server.Addr, QPN: m.LocalQPN(), L2: [12]byte(b[:12])}} {
			if k := t.find(e.Addr, e.QPN); k != noRef {
				if o, _ := t.rows[k.slot()].ends(k.client()); !o.mayBe(e.L2[:]) {
					return NoSlot, Spoofed
				}
			}
		}
	}
	// A client sends requests only after a ConnectReply. So if it has begun, an earlier ConnectReply passed
	// unseen, and requests may have passed unseen, too.
	begun := false
	if k := t.find(r.Server.Addr, m.LocalQPN()); k != noRef {
		begun = t.rows[k.slot()].LastSeen >= r.LastSeen
	}
	r.LastSeen = now
	r.Server.QPN, r.Server.L2 = m.LocalQPN(), [12]byte(b[:12])
	r.Server.Resources, r.Server.Depth = m.ResponderResources(), m.InitiatorDepth()
	r.Client.StartPSN, r.Client.HasPSN = m.StartingPSN(), !begun
	t.putID(s, false, m.LocalCommID())
	for _, client := range []bool{false, true} {
		e, _ := r.ends(client)
		if k := t.find(e.Addr, e.QPN); k != noRef {
			if o := &t.rows[k.slot()]; o.Learnt != Inferred || o.State != HalfOpen {
				t.unclaim(o)
				o.rival, r.waits = s+1, true
				t.rewatch(o)
			}
		}
	}
	if r.waits {
		return s, Waiting
	}
	t.take(s)
	return s, NowPaired
}

// lives reports whether the client's queue pair that waiting row s names is alive in another connection:
// that connection was heard since the ConnectReply, or it is pinned and its owner keeps it. Then somebody
// else may have forged the handshake: Linux counts communication IDs under a constant mask, so whoever has
// a connection with the same host can guess them. Frames of the new connection then pass as those of the
// other. For a queue pair on the server's side, the server itself says to which connection it belongs.
func (t *Table) lives(s Slot) bool {
	r := &t.rows[s]
	k := t.find(r.Client.Addr, r.Client.QPN)
	if k == noRef {
		return false
	}
	o := &t.rows[k.slot()]
	if o.State == Paired && o.LastSeen >= r.LastSeen {
		return true
	}
	return keeps(t, s)
}

// keeps reports whether the row that holds the client's queue pair of waiting row s is kept by its owner,
// while the server did not itself give its own queue pair of that row to the new connection. If so, keeps
// marks that row as Contested.
func keeps(t *Table, s Slot) bool {
	r := &t.rows[s]
	k, own := t.find(r.Client.Addr, r.Client.QPN), t.find(r.Server.Addr, r.Server.QPN)
	if k == noRef || own != noRef && own.slot() == k.slot() || t.mayGo(k.slot()) {
		return false
	}
	t.rows[k.slot()].Contested = true
	return true
}

// endAsked notes that an end sent a DisconnectRequest to the client (or to the server). wasAsked reports
// whether the receiver of a DisconnectReply, the client (or the server), had sent a DisconnectRequest.
func (r *Row) endAsked(toClient bool) { r.enders |= ender(!toClient) }

func (r *Row) wasAsked(toClient bool) bool { return r.enders&ender(toClient) != 0 }

func ender(client bool) uint8 {
	if client {
		return 1
	}
	return 2
}

// commit pairs row s, whose client has confirmed the handshake.
func (t *Table) commit(now clock.Time, s Slot) {
	t.take(s)
	r := &t.rows[s]
	r.ready, r.LastSeen = true, now
}

// take pairs row s and gives it its queue pairs; it removes the rows that held them.
func (t *Table) take(s Slot) {
	r := &t.rows[s]
	r.waits = false
	for _, client := range []bool{false, true} {
		e, _ := r.ends(client)
		for k := t.find(e.Addr, e.QPN); k != noRef; k = t.find(e.Addr, e.QPN) {
			if o := &t.rows[k.slot()]; o.Learnt == Managed && o.State == Paired {
				t.keep(o, o.LastSeen.Add(t.cfg.TimeWait))
			}
			t.Remove(k.slot())
		}
	}
	r.State = Paired
	t.putQP(s, false)
	t.putQP(s, true)
	t.place(s)
	t.rewatch(r)
}
