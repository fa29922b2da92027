package gbn

import (
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

// key names a session for frames without a go-back-N header.
type key struct {
	peer, local [4]byte
	vlans       uint32 // of both tags
	port        uint16 // the peer's
}

// row is a session of a server.
type row struct {
	Session
	key    key
	opener uint32 // pid and request number
	// by is the worker that delivered the newest frame, at that time.
	by int
	at clock.Time
}

// Server is the end that sessions are opened to. It may stand for several
// devices: a session's number is unique among all of them.
type Server struct {
	cfg   Config
	rows  []row // by number; 0 is not used
	by    map[key]uint16
	free  []uint16
	stats Stats
	held  tally
	next  clock.Time // no later than any session's deadline
	used  int        // rows from here on were never used
	seen  Seen
}

// Seen is what See found of a frame.
type Seen struct {
	f    clio.Frame
	kind clio.Kind
	v    Verdict
	ok   bool // it is one of a device that is served, and whole; else v says what it is
}

// Asks reports whether what becomes of the frame is the Server's to say; if not, Verdict says it.
func (x *Seen) Asks() bool       { return x.ok }
func (x *Seen) Verdict() Verdict { return x.v }

// NewServer makes one without sessions.
func NewServer(c Config) (*Server, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: c, rows: make([]row, c.Sessions+1), by: make(map[key]uint16, c.Sessions), free: make([]uint16, 0, c.Sessions), held: tally{by: make([]int, c.Workers)}, next: clock.Never, used: 1}
	for i := 1; i <= c.Sessions; i++ {
		s.free = append(s.free, uint16(i))
		s.rows[i].init(&s.cfg, &s.stats, &s.held)
	}
	return s, nil
}

// Stats are the totals so far.
func (s *Server) Stats() Stats { return s.stats }

// Held is how many frames are kept, and HeldBy how many of a worker's.
func (s *Server) Held() int             { return s.held.n }
func (s *Server) HeldBy(worker int) int { return s.held.by[worker] }

// Open is how many sessions are open.
func (s *Server) Open() int { return s.cfg.Sessions - len(s.free) }

// See finds the headers of a frame, from the network or a device, and whether its checksums are right. It uses
// nothing of the Server that changes: a worker calls it outside of its turn.
func (s *Server) See(p []byte, fromNet bool, x *Seen) {
	x.kind = clio.Parse(p, fromNet, &x.f)
	x.ok = false
	switch x.kind {
	case clio.NotClio:
		x.v = PassedOther
		return
	case clio.Fragment:
		x.v = PassedFragment
		return
	case clio.Malformed:
		x.v = PassedMalformed
		if fromNet {
			x.v = Malformed
		}
		return
	}
	if len(s.cfg.Devices) > 0 {
		device := x.f.Src(p)
		if fromNet {
			device = x.f.Dst(p)
		}
		if !slices.Contains(s.cfg.Devices, device.IP) {
			x.v = PassedOther
			return
		}
	}
	x.v, x.ok = Damaged, x.f.Sound(p)
}

// FromNet takes a frame from the network.
func (s *Server) FromNet(now clock.Time, b *packet.Buf, out Out) Verdict {
	s.See(b.Bytes(), true, &s.seen)
	v := s.FromNetSeen(now, b, &s.seen, out)
	s.Unwrap(b, &s.seen, v)
	return v
}

// FromNetSeen is FromNet of a frame that was seen, but for Unwrap.
func (s *Server) FromNetSeen(now clock.Time, b *packet.Buf, x *Seen, out Out) Verdict {
	if !x.ok {
		return x.v
	}
	p, f := b.Bytes(), &x.f
	g := clio.GBN(p[f.GBN:])
	if g.Dst() == 0 {
		if x.kind == clio.Control {
			return NoSession
		}
		if x.kind == clio.Message && clio.Lego(p[f.Lego:]).Opcode().OfSessions() && !clio.Lego(p[f.Lego:]).Opcode().IsAnswer() {
			return s.manage(now, b, f, out)
		}
		return Unreliable
	}
	if int(g.Dst()) >= len(s.rows) {
		return NoSession
	}
	r := &s.rows[g.Dst()]
	if !r.open || r.peer != g.Src() || r.key != keyOf(p, f) {
		return NoSession
	}
	var v Verdict
	switch g.Type() {
	case clio.ACK, clio.NACK:
		v = r.Ack(now, g.Seq(), g.Type() == clio.NACK, out)
	default:
		me := out.Worker()
		if g.Seq() == r.expect && r.by != me && !out.Sent(r.by, r.at) {
			return Elsewhere
		}
		v = r.Data(now, g.Seq(), out)
		switch v {
		case Delivered:
			r.by, r.at = me, now
		case Ahead:
			Reply(b, f, clio.NACK, r.Last(), r.local, r.peer)
		case Behind:
			Reply(b, f, clio.ACK, r.Last(), r.local, r.peer)
		}
	}
	s.next = min(s.next, r.Deadline())
	return v
}

// keyOf is that of a frame from a peer.
func keyOf(p []byte, f *clio.Frame) key {
	src, dst := f.Src(p), f.Dst(p)
	return key{src.IP, dst.IP, f.VLANs(), src.Port}
}

// Unwrap takes the go-back-N header of a frame away that FromNetSeen says is for the other side; outside of the worker's
// turn, too.
func (*Server) Unwrap(b *packet.Buf, x *Seen, v Verdict) {
	if v != Delivered && v != Unreliable {
		return
	}
	p, f := b.Bytes(), &x.f
	summed := f.Summed(p)
	f.Unwrap(p)
	b.SetFrame(int(b.Off())+clio.GBNLen, f.Stop) // and without padding
	f.Seal(b.Bytes(), f.Stop, summed)
}

// Reply turns a frame into an ACK or a NACK to where it came from.
func Reply(b *packet.Buf, f *clio.Frame, typ uint8, seq uint32, local, peer uint16) {
	p := b.Bytes()
	summed := f.Summed(p)
	f.Swap(p)
	clio.GBN(p[f.GBN:]).Encode(typ, seq, local, peer)
	n := f.GBN + clio.GBNLen
	b.TrimBack(b.Len() - n)
	f.Seal(b.Bytes(), n, summed)
}

// manage answers a request to open or close a session.
func (s *Server) manage(now clock.Time, b *packet.Buf, f *clio.Frame, out Out) Verdict {
	p := b.Bytes()
	h, k := clio.Lego(p[f.Lego:]), keyOf(p, f)
	asked := clio.Session(p[f.Op:])
	i, known := s.by[k]
	v := Opened
	var answer uint32
	if h.Opcode() == clio.CloseSession {
		v = Closed
		if known && uint32(i) == asked {
			s.end(i, out)
		}
	} else {
		opener := uint32(h.PID())<<16 | uint32(h.ID())
		if known && (s.rows[i].opener != opener || uint32(s.rows[i].peer) != asked) {
			s.end(i, out)
			known = false
		}
		if !known && asked > 0 && asked < clio.Sessions {
			i, v = s.take(now, &k, out)
			known = v == Opened
		} else if !known {
			v = Refused
		}
		if known {
			answer = uint32(i)
		} else {
			h.SetStatus(clio.Busy)
		}
		if r := &s.rows[i]; known && !r.open {
			summed := f.Summed(p)
			f.Swap(p)
			r.Open(now, i, uint16(asked), p, f)
			r.key, r.opener, r.summed = k, opener, summed
			r.by, r.at = out.Worker(), 0 // it has delivered nothing
			s.by[k] = i
			s.used = max(s.used, int(i)+1)
			f.Swap(p)
		}
	}
	f.Swap(p)
	h.SetOpcode(h.Opcode().Answer())
	clio.SetSession(p[f.Op:], answer)
	clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
	b.TrimBack(b.Len() - f.Stop)
	f.Seal(b.Bytes(), f.Stop, f.Summed(p))
	return v
}

// unused is after which time a session that has carried nothing since it was opened
// may make room for another.
const unused = time.Second

// take is the number of a session that is not used, for a peer (Opened). Where
// there is none, or the peer has all that it may have, the one of all, or of the
// peer, that was idle for the longest makes room.
func (s *Server) take(now clock.Time, k *key, out Out) (uint16, Verdict) {
	var oldest, own int // idle ones; 0: none
	n := 0
	for i := 1; i < s.used; i++ {
		r := &s.rows[i]
		if !r.open {
			continue
		}
		its := r.key.peer == k.peer && r.key.vlans == k.vlans
		if its {
			n++
		}
		if idle := now.Sub(r.lastUsed); idle < s.cfg.Idle && (r.lastUsed != r.opened || idle < unused) {
			continue
		}
		if oldest == 0 || r.lastUsed < s.rows[oldest].lastUsed {
			oldest = i
		}
		if its && (own == 0 || r.lastUsed < s.rows[own].lastUsed) {
			own = i
		}
	}
	switch crowded := n >= s.cfg.PerPeer; {
	case crowded && own == 0:
		return 0, Crowded
	case crowded:
		s.end(uint16(own), out)
	case len(s.free) == 0 && oldest == 0:
		return 0, Refused
	case len(s.free) == 0:
		s.end(uint16(oldest), out)
	}
	// The one that was free for the longest: what is still on its way to it from
	// its last use finds nobody.
	i := s.free[0]
	s.free = s.free[:copy(s.free, s.free[1:])]
	return i, Opened
}

// end frees a session.
func (s *Server) end(i uint16, out Out) {
	r := &s.rows[i]
	if r.open {
		r.Close(out)
	}
	delete(s.by, r.key)
	s.free = append(s.free, i)
}

// ToNet takes a frame without a go-back-N header that goes to the network. With
// Sent the transport has it; Unreliable: it has a header of session 0, and the
// caller sends it.
func (s *Server) ToNet(now clock.Time, b *packet.Buf, out Out) Verdict {
	s.See(b.Bytes(), false, &s.seen)
	return s.ToNetSeen(now, b, &s.seen, out)
}

// ToNetSeen is ToNet of a frame that was seen.
func (s *Server) ToNetSeen(now clock.Time, b *packet.Buf, x *Seen, out Out) Verdict {
	p, f := b.Bytes(), &x.f
	if !x.ok {
		return x.v
	}
	if f.Stop-f.L3+clio.GBNLen > s.cfg.MTU {
		return TooBig
	}
	src, dst := f.Src(p), f.Dst(p)
	i, known := s.by[key{dst.IP, src.IP, f.VLANs(), dst.Port}]
	b.TrimBack(b.Len() - f.Stop)
	summed := f.Summed(p)
	p, ok := b.Prepend(clio.GBNLen)
	if !ok {
		return TooBig
	}
	f.Wrap(p)
	if !known {
		clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
		f.Seal(p, f.Stop, summed)
		return Unreliable
	}
	f.Seal(p, f.Stop, false) // the checksum is made when it goes
	r := &s.rows[i]
	v := r.Send(now, b, f, summed, out)
	s.next = min(s.next, r.Deadline())
	return v
}

// Deadline is when Tick has work, or earlier.
func (s *Server) Deadline() clock.Time { return s.next }

// Tick does what is due.
func (s *Server) Tick(now clock.Time, out Out) {
	if now < s.next {
		return
	}
	s.next = clock.Never
	for i := 1; i < s.used; i++ {
		r := &s.rows[i]
		if !r.open {
			continue
		}
		if r.Deadline() <= now {
			r.Tick(now, out)
			if !r.open {
				s.end(uint16(i), out)
				continue
			}
		}
		s.next = min(s.next, r.Deadline())
	}
}

// Stop gives back all that is held.
func (s *Server) Stop(out Out) {
	for i := 1; i < s.used; i++ {
		if s.rows[i].open {
			s.end(uint16(i), out)
		}
	}
	s.next = clock.Never
}
