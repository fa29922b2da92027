package gbn

import (
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

// key identifies the session of a frame without a go-back-N header.
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
	// by is the worker that delivered the session's newest frame, and at is when it did.
	by int
	at clock.Time
}

// Server is the end that sessions are opened to. It may serve several devices: the number of a session is unique
// among all of them. Workers must take turns at its methods, except See and Unwrap.
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

// Seen is what See found out about a frame.
type Seen struct {
	f    clio.Frame
	kind clio.Kind
	v    Verdict
	ok   bool // it is one of a device that is served, and whole; else v says what it is
}

// Asks reports whether the Server must decide what becomes of the frame. If not, Verdict returns that.
func (x *Seen) Asks() bool       { return x.ok }
func (x *Seen) Verdict() Verdict { return x.v }

// NewServer returns a Server without sessions, or an error if c has values that are not allowed.
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

// Stats returns the totals of all sessions.
func (s *Server) Stats() Stats { return s.stats }

// Held returns how many frames are kept, and HeldBy how many of them are in a worker's buffers.
func (s *Server) Held() int             { return s.held.n }
func (s *Server) HeldBy(worker int) int { return s.held.by[worker] }

// Open returns how many sessions are open.
func (s *Server) Open() int { return s.cfg.Sessions - len(s.free) }

// See fills x with what frame p is: its headers, and whether its checksums are right. fromNet says that it came
// from the network, and not from a device. See uses nothing of the Server that changes, so that a worker needs no
// turn for it.
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

// FromNet handles a frame that came from the network, and returns what the caller must do with it.
func (s *Server) FromNet(now clock.Time, b *packet.Buf, out Out) Verdict {
	s.See(b.Bytes(), true, &s.seen)
	v := s.FromNetSeen(now, b, &s.seen, out)
	s.Unwrap(b, &s.seen, v)
	return v
}

// FromNetSeen is FromNet without See and Unwrap, which the worker calls before and after its turn.
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

// keyOf returns the key of a frame from a peer.
func keyOf(p []byte, f *clio.Frame) key {
	src, dst := f.Src(p), f.Dst(p)
	return key{src.IP, dst.IP, f.VLANs(), src.Port}
}

// Unwrap removes the go-back-N header of a frame if v, which FromNetSeen returned, is Delivered or Unreliable. A
// worker needs no turn for it.
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

// Reply turns a frame into an ACK or a NACK (typ) of number seq, to the sender of the frame.
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

// unused is the time after which a session that has carried no frame since it was opened may make room for
// another one.
const unused = time.Second

// take returns the number of a session for a peer, with Opened. If no session is free, or the peer has as many as
// it may have, the session ends that was idle for longest, of all or of the peer. If none was idle for long
// enough, take returns Refused or Crowded.
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
	// The session that was free for longest is used: frames of its last use that are still on their way find it
	// closed as long as possible.
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

// ToNet handles a frame of a device, without a go-back-N header, that goes to the network. With Sent the
// transport has the frame; with Unreliable it has got a header of session 0, and the caller sends it.
func (s *Server) ToNet(now clock.Time, b *packet.Buf, out Out) Verdict {
	s.See(b.Bytes(), false, &s.seen)
	return s.ToNetSeen(now, b, &s.seen, out)
}

// ToNetSeen is ToNet without See, which the worker calls before its turn.
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

// Deadline returns the time when Tick must be called; it may be too early.
func (s *Server) Deadline() clock.Time { return s.next }

// Tick calls Tick of all sessions whose deadline has come.
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

// Stop closes all sessions, and gives back all frames that they keep.
func (s *Server) Stop(out Out) {
	for i := 1; i < s.used; i++ {
		if s.rows[i].open {
			s.end(uint16(i), out)
		}
	}
	s.next = clock.Never
}
