package clio

import (
	"cmp"
	"errors"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
)

// DeviceConfig describes a device.
type DeviceConfig struct {
	// Me is the device's address; its port is clio.Port.
	Me   clio.End
	Pool *packet.Pool
	// Reliable: the device itself speaks go-back-N.
	Reliable bool
	GBN      gbn.Config
	// HashBits and Memory (bytes) are parameters of the store; 0: 14, and 256 MiB.
	HashBits, Memory int
	// Senders is the number of sessions for which the device remembers what it has executed; 0: 4096. To make
	// room for another session it forgets one that has written nothing for Remember, which must be longer
	// than a repetition may take to arrive; 0: 1 s. If there is no such session, it refuses writes of other
	// sessions with Busy.
	Senders  int
	Remember clock.Duration
}

// DeviceStats are the totals of a device.
type DeviceStats struct {
	Requests, Repeated, Refused uint64
	NoRoom                      uint64 // refused requests for which Senders left no room
	Bad                         uint64 // frames that are not meant for the store
}

// sender is a client's session as the device remembers it.
type sender struct {
	ip   [4]byte
	port uint16
}

// window records which of a session's last 64 requests were executed, and with which status.
type window struct {
	sender
	last   uint16
	seen   uint64 // bit i: last-i was executed
	status [64]clio.Status
	used   clock.Time
}

// Device is the key/value store of Clio's board. It is a host.Endpoint.
type Device struct {
	cfg     DeviceConfig
	store   *Store
	server  *gbn.Server // nil: not Reliable
	windows []window
	of      map[sender]int32 // index of a session's window
	used    flow.Ages        // windows, by the time used
	out     queue
	f       clio.Frame
	stats   DeviceStats
}

// NewDevice makes a device without keys.
func NewDevice(c DeviceConfig) (*Device, error) {
	if c.Pool == nil || c.Pool.SlotSize() < packet.Headroom+clio.MaxPacket {
		return nil, errors.New("clio: a device needs a pool whose slots have room for headroom and 1536 bytes")
	}
	c.HashBits = cmp.Or(c.HashBits, 14)
	c.Memory = cmp.Or(c.Memory, 256<<20)
	c.Senders = cmp.Or(c.Senders, 4096)
	c.Remember = cmp.Or(c.Remember, time.Second)
	if c.Senders < 1 || c.Senders > 1<<20 || c.Remember < 0 {
		return nil, errors.New("clio: want 1 to 1048576 senders, and a time for which they are remembered")
	}
	if c.HashBits < 1 || c.HashBits > 24 || c.Memory < chunk {
		return nil, errors.New("clio: want 1 to 24 hash bits, and 1 MiB of memory or more")
	}
	d := &Device{cfg: c, store: NewStore(c.HashBits, c.Memory), of: make(map[sender]int32), used: flow.NewAges(c.Senders)}
	d.out.pool = c.Pool
	if c.Reliable {
		s, err := gbn.NewServer(c.GBN)
		if err != nil {
			return nil, err
		}
		d.server = s
	}
	return d, nil
}

// Store returns the device's store.
func (d *Device) Store() *Store { return d.store }

// Stats returns the totals so far.
func (d *Device) Stats() DeviceStats { return d.stats }

// GBN returns what the device's transport has done; zeros if it has none.
func (d *Device) GBN() gbn.Stats {
	if d.server == nil {
		return gbn.Stats{}
	}
	return d.server.Stats()
}

// Input implements host.Endpoint.
func (d *Device) Input(now clock.Time, b *packet.Buf) {
	if !mine(b, &d.cfg.Me) {
		d.stats.Bad++
		b.Put()
		return
	}
	if d.server != nil {
		switch v := d.server.FromNet(now, b, &d.out); {
		case v == gbn.Delivered || v == gbn.Unreliable:
		case v.Replies():
			d.out.Send(b)
			return
		default:
			d.stats.Bad++
			b.Put()
			return
		}
	}
	if !d.serve(now, b) {
		d.stats.Bad++
		b.Put()
		return
	}
	if d.server != nil {
		switch v := d.server.ToNet(now, b, &d.out); v {
		case gbn.Sent:
			return
		case gbn.Unreliable:
		default:
			b.Put()
			return
		}
	}
	d.out.Send(b)
}

// mine reports whether a frame is addressed to this machine's MAC address. Others may arrive, because bridges
// flood.
func mine(b *packet.Buf, me *clio.End) bool {
	p := b.Bytes()
	return len(p) >= 6 && [6]byte(p) == me.MAC
}

// serve turns a request into its answer. It returns false if the frame is not a request.
func (d *Device) serve(now clock.Time, b *packet.Buf) bool {
	p, f := b.Bytes(), &d.f
	if clio.Parse(p, false, f) != clio.Message || !f.Sound(p) {
		return false
	}
	h := clio.Lego(p[f.Lego:])
	op, dst, src := h.Opcode(), f.Dst(p), f.Src(p)
	if !op.OfKeys() || op.IsAnswer() || dst.IP != d.cfg.Me.IP || dst.Port != clio.Port {
		return false
	}
	d.stats.Requests++
	q := clio.Request(p[f.Op:])
	key, size := q.Key(), q.KeySize()
	var value []byte
	var status clio.Status
	if op == clio.Read {
		value, status = d.store.Read(key, size)
	} else {
		w := d.window(now, sender{src.IP, src.Port}, h.ID())
		fresh, old := false, false
		if w != nil {
			fresh, old = w.note(h.ID())
		}
		switch {
		case w == nil:
			d.stats.NoRoom++
			status = clio.Busy
		case old: // the session does not wait for it any more
			status = clio.Unknown
		case !fresh:
			d.stats.Repeated++
			status = w.status[h.ID()%64]
		default:
			switch op {
			case clio.Create:
				status = d.store.Create(key, size, p[f.Data:f.Stop])
			case clio.Update:
				status = d.store.Update(key, size, p[f.Data:f.Stop])
			case clio.Delete:
				status = d.store.Delete(key, size)
			}
			w.status[h.ID()%64] = status
		}
	}
	if status != clio.OK {
		d.stats.Refused++
	}
	answer(b, f, status, value)
	return true
}

// answer turns a request into its answer, with this status and value.
func answer(b *packet.Buf, f *clio.Frame, status clio.Status, value []byte) {
	if n := f.AnswerEnd(len(value)); n > b.Len() {
		b.Append(n - b.Len())
	} else {
		b.TrimBack(b.Len() - n)
	}
	f.Answer(b.Bytes(), status, value)
}

// window returns a session's window. If the session is new, id is its first request. nil: there is no room
// for another session.
func (d *Device) window(now clock.Time, s sender, id uint16) *window {
	i, known := d.of[s]
	if known {
		d.used.Renew(i)
	} else {
		if i = int32(len(d.windows)); len(d.windows) < d.cfg.Senders {
			d.windows = append(d.windows, window{})
		} else {
			i = d.used.Oldest()
			if now.Sub(d.windows[i].used) < d.cfg.Remember {
				return nil
			}
			delete(d.of, d.windows[i].sender)
			d.used.Remove(i)
		}
		d.windows[i] = window{sender: s, last: id - 1}
		d.of[s] = i
		d.used.Add(i)
	}
	w := &d.windows[i]
	w.used = now
	return w
}

// note records request id as seen. It reports whether the request is fresh, or too old to know.
func (w *window) note(id uint16) (fresh, old bool) {
	d := int16(id - w.last)
	switch {
	case d > 0:
		w.seen = w.seen<<min(d, 64) | 1
		w.last = id
		return true, false
	case d <= -64:
		return false, true
	}
	bit := uint64(1) << -d
	fresh = w.seen&bit == 0
	w.seen |= bit
	return fresh, false
}

// Output implements host.Endpoint.
func (d *Device) Output(_ clock.Time, out *packet.Batch) { d.out.drain(out) }

// Deadline implements host.Endpoint.
func (d *Device) Deadline() clock.Time {
	if d.out.len() > 0 {
		return 0
	}
	if d.server == nil {
		return clock.Never
	}
	return d.server.Deadline()
}

// Tick implements host.Endpoint.
func (d *Device) Tick(now clock.Time) {
	if d.server != nil {
		d.server.Tick(now, &d.out)
	}
}

// Close returns all frames to the pool.
func (d *Device) Close() {
	if d.server != nil {
		d.server.Stop(&d.out)
	}
	d.out.close()
}

// queue holds frames that are to be sent. It is a gbn.Out.
type queue struct {
	gbn.One
	pool *packet.Pool
	q    []*packet.Buf
	head int
}

func (o *queue) len() int                          { return len(o.q) - o.head }
func (o *queue) Get() *packet.Buf                  { return o.pool.Get() }
func (o *queue) Discard(b *packet.Buf)             { b.Put() }
func (o *queue) Drop(b *packet.Buf, _ gbn.Verdict) { b.Put() }
func (o *queue) Send(b *packet.Buf)                { o.q = append(o.q, b) }

func (o *queue) drain(out *packet.Batch) {
	o.head += out.Append(o.q[o.head:])
	if o.head == len(o.q) {
		o.q, o.head = o.q[:0], 0
	}
}

func (o *queue) close() {
	for _, b := range o.q[o.head:] {
		b.Put()
	}
	o.q, o.head = o.q[:0], 0
}
