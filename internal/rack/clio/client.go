package clio

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

// Replication says how a write reaches all devices.
type Replication uint8

const (
	// Single: it does not; all operations are on the first device.
	Single Replication = iota
	// ByClient: the client sends a write to each device, one after the other, as a
	// program does with Clio's library, whose calls return with the answer.
	ByClient
	// ByNetwork: a write has the replicate flag, and is sent to the first device's address; a function on the
	// way (nf/replicate) copies it.
	ByNetwork
)

// ClientConfig describes a client.
type ClientConfig struct {
	// Me is the client's address; session i has UDP port Me.Port + i.
	Me      clio.End
	Devices []clio.End // reads go to the first
	Pool    *packet.Pool
	// Sessions is the number of the client's threads, each with up to Depth operations under way; 0: 1 and 1.
	Sessions, Depth int
	Replication     Replication
	// Reliable: the client speaks go-back-N with the parameters GBN. Otherwise it repeats a request after
	// Timeout (0: 1 ms) without an answer, up to Tries (0: 64) times.
	Reliable bool
	GBN      gbn.Config
	Timeout  time.Duration
	Tries    int
	// Patience is the time after which a reliable client gives an operation up; 0: 1 s.
	Patience time.Duration
	// Checksum: frames have UDP checksums. Clio's own frames have none.
	Checksum bool
	PID      uint16 // differs between the lives of a client
}

// Op is an operation. Start copies Value.
type Op struct {
	Code  clio.Opcode
	Key   uint64
	Value []byte
}

// Done is an operation that has ended. Status Unknown: it is not known whether the operation was executed.
// Busy: it was not executed; only reliable clients get this status. Value is the result of a read, valid
// until the next call of Next.
type Done struct {
	Session  int
	ID       uint16
	Code     clio.Opcode
	Key      uint64
	Status   clio.Status
	Value    []byte
	Called   clock.Time
	Returned clock.Time
}

// ClientStats are the totals of a client.
type ClientStats struct {
	Ops, Repeated, Unknown uint64
	Strange                uint64 // frames that answer no request of the client
}

// pending is an operation that is under way.
type pending struct {
	active  bool
	id      uint16
	code    clio.Opcode
	key     uint64
	device  int // the device that has not answered yet; earlier ones have
	devices int
	status  clio.Status
	called  clock.Time
	due     clock.Time
	tries   int
	frames  []*packet.Buf // requests by device, kept to be repeated
}

// link is a session's connection to a device.
type link struct {
	ses   *gbn.Session // nil: not reliable
	retry clock.Time   // when to ask again to open the session
	asked uint16       // number of the request to open the session
	used  bool         // the session was opened by that request
}

type session struct {
	port  uint16
	next  uint16 // request number
	ops   []pending
	links []link
	busy  int
}

// ended is a Done and the frame that holds its value.
type ended struct {
	Done
	b *packet.Buf
}

// Client is a host.Endpoint. Start gives it operations.
type Client struct {
	cfg      ClientConfig
	sessions []session
	out      queue
	done     []ended
	head     int
	last     *packet.Buf
	opens    uint16
	f        clio.Frame
	stats    ClientStats
}

// span is how far the numbers of a session's requests under way may be apart: a device remembers as many
// requests.
const span = 64

// NewClient makes a client.
func NewClient(c ClientConfig) (*Client, error) {
	c.Sessions, c.Depth, c.Tries = cmp.Or(c.Sessions, 1), cmp.Or(c.Depth, 1), cmp.Or(c.Tries, 64)
	c.Timeout = cmp.Or(c.Timeout, time.Millisecond)
	c.Patience = cmp.Or(c.Patience, time.Second)
	switch {
	case c.Pool == nil || c.Pool.SlotSize() < packet.Headroom+clio.MaxPacket:
		return nil, errors.New("clio: a client needs a pool whose slots have room for headroom and 1536 bytes")
	case len(c.Devices) < 1 || len(c.Devices) > 8:
		return nil, errors.New("clio: a client needs 1 to 8 devices")
	case c.Sessions < 1 || c.Sessions*len(c.Devices) >= clio.Sessions || c.Depth < 1 || c.Depth > 32:
		return nil, fmt.Errorf("clio: want fewer than %d sessions, of all devices, of depth 1 to 32", clio.Sessions)
	case int(c.Me.Port)+c.Sessions > 1<<16 || c.Me.Port <= clio.Port && int(c.Me.Port)+c.Sessions > clio.Port:
		return nil, fmt.Errorf("clio: sessions have the UDP ports from %d on: want a first one above %d", c.Me.Port, clio.Port)
	}
	x := &Client{cfg: c, sessions: make([]session, c.Sessions)}
	x.out.pool = c.Pool
	for i := range x.sessions {
		s := &x.sessions[i]
		s.port, s.ops, s.links = c.Me.Port+uint16(i), make([]pending, c.Depth), make([]link, len(c.Devices))
		for k := range s.ops {
			s.ops[k].frames = make([]*packet.Buf, len(c.Devices))
			s.ops[k].due = clock.Never
		}
		for k := range s.links {
			if !c.Reliable {
				continue
			}
			var err error
			if s.links[k].ses, err = gbn.NewSession(c.GBN); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

// Stats returns the totals so far.
func (c *Client) Stats() ClientStats { return c.stats }

// GBN returns the sums of what the sessions' transport has done.
func (c *Client) GBN() (t gbn.Stats) {
	for i := range c.sessions {
		for _, l := range c.sessions[i].links {
			if l.ses != nil {
				s := l.ses.Stats()
				t.Retransmitted += s.Retransmitted
				t.Timeouts += s.Timeouts
				t.ACKs += s.ACKs
				t.NACKs += s.NACKs
				t.GivenUp += s.GivenUp
			}
		}
	}
	return t
}

// Sessions returns the number of sessions.
func (c *Client) Sessions() int { return len(c.sessions) }

// Ready reports whether session i can take an operation now.
func (c *Client) Ready(i int) bool {
	s := &c.sessions[i]
	if s.busy == len(s.ops) {
		return false
	}
	for k := range s.ops {
		if s.ops[k].active && s.next+1-s.ops[k].id >= span {
			return false
		}
	}
	for k := range s.links {
		if l := &s.links[k]; l.ses != nil && c.uses(k) && !l.ses.IsOpen() {
			return false
		}
	}
	return true
}

// uses reports whether operations go to device k.
func (c *Client) uses(k int) bool { return k == 0 || c.cfg.Replication == ByClient }

// ErrBusy means that the session is not Ready, or that there is no free buffer.
var ErrBusy = errors.New("clio: the session cannot take an operation now")

// ErrTooLong means that the value is longer than MaxValue.
var ErrTooLong = fmt.Errorf("clio: a value is longer than %d bytes, and a request is one frame", MaxValue)

// Start begins an operation on session i and returns its number.
func (c *Client) Start(now clock.Time, i int, op Op) (uint16, error) {
	if len(op.Value) > MaxValue {
		return 0, ErrTooLong
	}
	if !c.Ready(i) {
		return 0, ErrBusy
	}
	s := &c.sessions[i]
	var o *pending
	for k := range s.ops {
		if !s.ops[k].active {
			o = &s.ops[k]
		}
	}
	id := s.next + 1
	devices := 1
	if op.Code.Writes() && c.cfg.Replication == ByClient {
		devices = len(c.cfg.Devices)
	}
	for k := range devices {
		b := c.request(s, k, id, &op)
		if b == nil {
			for j := range k {
				o.frames[j].Put()
				o.frames[j] = nil
			}
			return 0, ErrBusy
		}
		o.frames[k] = b
	}
	s.next = id
	s.busy++
	*o = pending{active: true, id: id, code: op.Code, key: op.Key, devices: devices, called: now, frames: o.frames}
	c.stats.Ops++
	c.send(now, s, o)
	return id, nil
}

// send sends an operation's request to the device o.device.
func (c *Client) send(now clock.Time, s *session, o *pending) {
	b := o.frames[o.device]
	if !c.cfg.Reliable {
		o.due = now.Add(c.cfg.Timeout)
		c.copy(b)
		return
	}
	o.due = now.Add(c.cfg.Patience)
	o.frames[o.device] = nil
	f := clio.Plain(true)
	f.Stop = b.Len()
	if v := s.links[o.device].ses.Send(now, b, &f, c.cfg.Checksum, &c.out); v != gbn.Sent {
		b.Put() // the operation ends when Patience is over
	}
}

// request makes the frame of a request; nil: there is no free buffer.
func (c *Client) request(s *session, device int, id uint16, op *Op) *packet.Buf {
	f := clio.Plain(c.cfg.Reliable)
	b := c.cfg.Pool.Get()
	if b == nil {
		return nil
	}
	size := 0
	if op.Code == clio.Create || op.Code == clio.Update {
		size = len(op.Value)
	}
	n := f.Op + clio.RequestLen + size
	p, _ := b.Append(n)
	src := c.cfg.Me
	src.Port = s.port
	dst := c.cfg.Devices[device]
	dst.Port = clio.Port
	clio.Headers(p, &src, &dst, n-clio.HeadersLen)
	if c.cfg.Reliable {
		clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
	}
	clio.Lego(p[f.Lego:]).Encode(&clio.Fields{PID: c.cfg.PID, ID: id, Opcode: op.Code, Size: uint16(n - f.Lego),
		Replicate: c.cfg.Replication == ByNetwork && op.Code.Writes()})
	clio.Request(p[f.Op:]).Encode(op.Key, clio.MaxKey, uint16(size))
	copy(p[f.Op+clio.RequestLen:], op.Value[:size])
	f.Seal(p, n, c.cfg.Checksum && !c.cfg.Reliable) // with go-back-N the transport writes the checksum
	return b
}

// copy sends a copy of a frame. Without a free buffer it sends nothing.
func (c *Client) copy(b *packet.Buf) {
	if x := c.cfg.Pool.Get(); x != nil {
		x.SetBytes(b.Bytes())
		c.out.Send(x)
	}
}

// Next returns an operation that has ended; false: there is none.
func (c *Client) Next() (Done, bool) {
	if c.last != nil {
		c.last.Put()
		c.last = nil
	}
	if c.head == len(c.done) {
		c.done, c.head = c.done[:0], 0
		return Done{}, false
	}
	e := c.done[c.head]
	c.done[c.head] = ended{}
	c.head++
	c.last = e.b
	return e.Done, true
}

// end records that an operation has ended; b holds its value, or is nil.
func (c *Client) end(now clock.Time, i int, o *pending, value []byte, b *packet.Buf) {
	for k, x := range o.frames {
		if x != nil {
			x.Put()
			o.frames[k] = nil
		}
	}
	if o.status == clio.Unknown {
		c.stats.Unknown++
	}
	c.done = append(c.done, ended{Done{i, o.id, o.code, o.key, o.status, value, o.called, now}, b})
	o.active, o.due = false, clock.Never
	c.sessions[i].busy--
}

// Input implements host.Endpoint.
func (c *Client) Input(now clock.Time, b *packet.Buf) {
	if !mine(b, &c.cfg.Me) || !c.input(now, b) {
		c.stats.Strange++
		b.Put()
	}
}

// input handles a frame. If it returns false, the frame still belongs to the caller, and was of no use.
func (c *Client) input(now clock.Time, b *packet.Buf) bool {
	p, f := b.Bytes(), &c.f
	k := clio.Parse(p, c.cfg.Reliable, f)
	if k != clio.Message && k != clio.Control || !f.Sound(p) {
		return false
	}
	src, dst := f.Src(p), f.Dst(p)
	i := int(dst.Port) - int(c.cfg.Me.Port)
	if dst.IP != c.cfg.Me.IP || i < 0 || i >= len(c.sessions) || src.Port != clio.Port {
		return false
	}
	s, device := &c.sessions[i], -1
	for k := range c.cfg.Devices {
		if c.cfg.Devices[k].IP == src.IP {
			device = k
		}
	}
	if device < 0 {
		return false
	}
	if !c.cfg.Reliable {
		return c.answer(now, i, device, b)
	}
	l, g := &s.links[device], clio.GBN(p[f.GBN:])
	if g.Dst() == 0 {
		return k == clio.Message && c.opened(now, i, device, b)
	}
	if !l.ses.IsOpen() || !l.ses.Is(g.Dst(), g.Src()) {
		return false
	}
	if k == clio.Control {
		l.ses.Ack(now, g.Seq(), g.Type() == clio.NACK, &c.out)
		b.Put()
		return true
	}
	switch v := l.ses.Data(now, g.Seq(), &c.out); v {
	case gbn.Delivered:
		return c.answer(now, i, device, b)
	case gbn.Ahead, gbn.Behind:
		typ := clio.ACK
		if v == gbn.Ahead {
			typ = clio.NACK
		}
		gbn.Reply(b, f, typ, l.ses.Last(), g.Dst(), g.Src())
		c.out.Send(b)
		return true
	}
	return false
}

// opened handles the answer to a request to open a session.
func (c *Client) opened(now clock.Time, i, device int, b *packet.Buf) bool {
	p, f, l := b.Bytes(), &c.f, &c.sessions[i].links[device]
	h := clio.Lego(p[f.Lego:])
	peer := clio.Session(p[f.Op:])
	if h.Opcode() != clio.OpenSession.Answer() || h.ID() != l.asked || h.Status() != clio.OK || l.ses.IsOpen() || peer == 0 || peer >= clio.Sessions {
		return false
	}
	f.Swap(p)
	l.ses.Open(now, c.local(i, device), uint16(peer), p, f)
	l.used = true
	b.Put()
	return true
}

// local returns the client's number of a session with a device.
func (c *Client) local(i, device int) uint16 { return uint16(1 + i*len(c.cfg.Devices) + device) }

// answer handles an answer of the store.
func (c *Client) answer(now clock.Time, i, device int, b *packet.Buf) bool {
	p, f, s := b.Bytes(), &c.f, &c.sessions[i]
	h := clio.Lego(p[f.Lego:])
	for k := range s.ops {
		o := &s.ops[k]
		if !o.active || o.id != h.ID() || o.device != device || h.Opcode() != o.code.Answer() {
			continue
		}
		if h.Status() == clio.Busy && !c.cfg.Reliable {
			// The operation goes on, because another copy of the request may have been executed.
			b.Put()
			return true
		}
		o.device++
		if x := o.frames[device]; x != nil {
			x.Put()
			o.frames[device] = nil
		}
		if st := h.Status(); st > o.status {
			o.status = st
		}
		switch {
		case o.device < o.devices:
			b.Put()
			c.send(now, s, o)
		case o.code == clio.Read && o.status == clio.OK:
			c.end(now, i, o, p[f.Data:f.Stop], b)
		default:
			c.end(now, i, o, nil, nil)
			b.Put()
		}
		return true
	}
	return false
}

// Tick implements host.Endpoint.
func (c *Client) Tick(now clock.Time) {
	for i := range c.sessions {
		s := &c.sessions[i]
		for k := range s.links {
			l := &s.links[k]
			if l.ses == nil || !c.uses(k) {
				continue
			}
			l.ses.Tick(now, &c.out)
			if !l.ses.IsOpen() && l.retry <= now {
				c.open(now, i, k)
			}
		}
		for k := range s.ops {
			o := &s.ops[k]
			if !o.active || o.due > now {
				continue
			}
			if o.tries++; c.cfg.Reliable || o.tries > c.cfg.Tries {
				o.status = clio.Unknown
				c.end(now, i, o, nil, nil)
				continue
			}
			c.stats.Repeated++
			c.send(now, s, o)
		}
	}
}

// open sends a request to open a session.
func (c *Client) open(now clock.Time, i, device int) {
	l := &c.sessions[i].links[device]
	if l.asked == 0 || l.used {
		c.opens++
		l.asked, l.used = c.opens, false
	}
	l.retry = now.Add(c.cfg.Timeout)
	b := c.cfg.Pool.Get()
	if b == nil {
		return
	}
	f := clio.Plain(true)
	n := f.Op + clio.SessionLen
	p, _ := b.Append(n)
	src, dst := c.cfg.Me, c.cfg.Devices[device]
	src.Port, dst.Port = c.sessions[i].port, clio.Port
	clio.Headers(p, &src, &dst, n-clio.HeadersLen)
	clio.GBN(p[f.GBN:]).Encode(clio.DATA, 0, 0, 0)
	clio.Lego(p[f.Lego:]).Encode(&clio.Fields{PID: c.cfg.PID, ID: l.asked, Opcode: clio.OpenSession, Size: clio.LegoLen + clio.SessionLen})
	clio.SetSession(p[f.Op:], uint32(c.local(i, device)))
	f.Seal(p, n, c.cfg.Checksum)
	c.out.Send(b)
}

// Output implements host.Endpoint.
func (c *Client) Output(_ clock.Time, out *packet.Batch) { c.out.drain(out) }

// Deadline implements host.Endpoint.
func (c *Client) Deadline() clock.Time {
	if c.out.len() > 0 {
		return 0
	}
	at := clock.Never
	for i := range c.sessions {
		s := &c.sessions[i]
		for k := range s.links {
			l := &s.links[k]
			if l.ses == nil || !c.uses(k) {
				continue
			}
			if l.ses.IsOpen() {
				at = min(at, l.ses.Deadline())
			} else {
				at = min(at, l.retry)
			}
		}
		if s.busy > 0 {
			for k := range s.ops {
				at = min(at, s.ops[k].due)
			}
		}
	}
	return at
}

// Close returns all frames to the pool.
func (c *Client) Close() {
	for {
		if _, ok := c.Next(); !ok {
			break
		}
	}
	for i := range c.sessions {
		s := &c.sessions[i]
		for k := range s.links {
			if s.links[k].ses != nil {
				s.links[k].ses.Close(&c.out)
			}
		}
		for k := range s.ops {
			for d, x := range s.ops[k].frames {
				if x != nil {
					x.Put()
					s.ops[k].frames[d] = nil
				}
			}
		}
	}
	c.out.close()
}
