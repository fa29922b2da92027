package pcap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// maxSlotFrame is the longest frame that NewPool makes room for: no IP packet
// is longer, but a capture behind segmentation offload may hold a few bytes
// more.
const maxSlotFrame = 64<<10 + 64

// NewPool makes a pool for the frames of a capture with these interfaces:
// room for the longest snap length (at most 64 KiB), headroom, and a tail for
// apps that make frames longer.
func NewPool(ifaces []Interface, slots int) (*packet.Pool, error) {
	const tail = 128
	n := 2048
	for _, i := range ifaces {
		if i.SnapLen == 0 {
			n = maxSlotFrame
		}
		n = max(n, int(min(i.SnapLen, maxSlotFrame)))
	}
	if len(ifaces) == 0 {
		n = maxSlotFrame
	}
	return packet.NewPool(slots, (packet.Headroom+n+tail+63)&^63, nil)
}

// Slots moves packets between a capture and the Bufs of a pool. It remembers,
// by slot, what a Buf has no field for: the timestamp as stored and the length
// on the wire.
type Slots struct {
	pool *packet.Pool
	from []origin
}

type origin struct {
	seq             uint64
	stamp           uint64
	capLen, origLen uint32
}

// ErrTooLong is returned by Load for a frame that fits no slot.
var ErrTooLong = errors.New("frame longer than a slot")

// ErrNoSlot is returned by Load when all slots are in use.
var ErrNoSlot = errors.New("no free slot")

// NewSlots starts with nothing remembered.
func NewSlots(pool *packet.Pool) *Slots {
	return &Slots{pool: pool, from: make([]origin, pool.Slots())}
}

// Load copies p into a Buf of the pool: RxTime is the capture's time, Seq the
// packet's number, Port the interface.
func (s *Slots) Load(p *Packet) (*packet.Buf, error) {
	b := s.pool.Get()
	if b == nil {
		return nil, ErrNoSlot
	}
	if !b.SetBytes(p.Data) {
		b.Put()
		return nil, ErrTooLong
	}
	b.RxTime, b.Seq, b.Port = int64(p.Time), p.Number, uint16(p.Interface)
	s.from[b.Slot()] = origin{p.Number, p.Stamp, uint32(len(p.Data)), p.OrigLen}
	return b, nil
}

// Store fills p from b, which p.Data then points into. A frame that Load
// brought keeps its timestamp, and the bytes that its capture had cut off stay
// counted in OrigLen. Interface and Comments are left alone.
func (s *Slots) Store(b *packet.Buf, p *Packet) {
	p.Number, p.Time, p.Stamp = b.Seq, clock.Time(b.RxTime), 0
	p.Data = b.Bytes()
	p.OrigLen = uint32(len(p.Data))
	if b.Pool() != s.pool || b.Seq == 0 {
		return
	}
	if o := &s.from[b.Slot()]; o.seq == b.Seq {
		p.Stamp = o.stamp
		if o.origLen >= o.capLen || o.capLen == p.OrigLen {
			p.OrigLen += o.origLen - o.capLen
		}
	}
}

// Config says what a Port reads and writes; Reader or Writer may be nil.
type Config struct {
	Name   string
	Pool   *packet.Pool
	Reader *Reader
	Writer *Writer
	// Interface of a pcapng Writer that sent frames belong to.
	Interface int
	// Clock stamps sent frames that have no time of their own.
	Clock clock.Clock
	// Close is called by Port.Close, after the Writer was flushed; may be nil.
	Close func() error
}

// Port is a capture as a port: it receives what the Reader delivers, as fast
// as it is asked, and its Tx goes to the Writer.
type Port struct {
	c      Config
	slots  *Slots
	in     Packet
	out    Packet
	held   bool // in was read, and found no slot
	same   bool // Reader and Writer count time alike
	err    error
	closed bool

	rxPackets, rxBytes, rxDropped atomic.Uint64
	txPackets, txBytes, txDropped atomic.Uint64
}

// NewPort opens a port. Close does not close the files of Reader and Writer
// unless Config.Close does.
func NewPort(c Config) (*Port, error) {
	if c.Pool == nil || c.Clock == nil {
		return nil, errors.New("pcap: a port needs a pool and a clock")
	}
	p := &Port{c: c, slots: NewSlots(c.Pool)}
	if c.Reader != nil && c.Writer != nil {
		p.same = SameTime(c.Reader, c.Writer)
	}
	return p, nil
}

// SameTime reports whether timestamps of r may be stored in w untouched: both
// are classic with the same unit.
func SameTime(r *Reader, w *Writer) bool {
	return r.h.Format == Classic && w.h.Format == Classic && r.h.Nano == w.h.Nano
}

// Name implements port.Port.
func (p *Port) Name() string { return p.c.Name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.c.Pool }

// Rx implements port.Port. Frames that fit no slot are counted in RxDropped.
// Damage of the file is returned when everything before it was delivered.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.closed {
		return 0, port.ErrClosed
	}
	if p.c.Reader == nil {
		return 0, io.EOF
	}
	got, bytes := 0, uint64(0)
	for !b.Full() && p.err == nil {
		if !p.held {
			if p.err = p.c.Reader.Next(&p.in); p.err != nil {
				break
			}
		}
		x, err := p.slots.Load(&p.in)
		p.held = err == ErrNoSlot
		if p.held {
			break
		}
		if err != nil {
			p.rxDropped.Add(1)
			continue
		}
		b.Add(x)
		got++
		bytes += uint64(x.Len())
	}
	p.rxPackets.Add(uint64(got))
	p.rxBytes.Add(bytes)
	if got == 0 {
		return 0, p.err
	}
	return got, nil
}

// Tx implements port.Port. A port without Writer drops and counts.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	if p.closed {
		return 0, port.ErrClosed
	}
	n, sent, bytes := b.Len(), uint64(0), uint64(0)
	var err error
	for _, x := range b.Bufs() {
		if err == nil && p.c.Writer != nil {
			p.slots.Store(x, &p.out)
			p.out.Interface = p.c.Interface
			if !p.same {
				p.out.Stamp = 0
			}
			if x.RxTime == 0 && x.Seq == 0 {
				p.out.Time = p.c.Clock.Now()
			}
			if err = p.c.Writer.Write(&p.out); err == nil {
				sent++
				bytes += uint64(x.Len())
			}
		}
		x.Put()
	}
	b.Reset()
	p.txPackets.Add(sent)
	p.txBytes.Add(bytes)
	p.txDropped.Add(uint64(n) - sent)
	if err != nil {
		return n, fmt.Errorf("%s: %w", p.c.Name, err)
	}
	return n, nil
}

// Wait implements port.Port: a file never has to be waited for.
func (p *Port) Wait(ctx context.Context, d clock.Duration) error { return ctx.Err() }

// Stats implements port.Port.
func (p *Port) Stats() port.Stats {
	return port.Stats{
		RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), RxDropped: p.rxDropped.Load(),
		TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load(), TxDropped: p.txDropped.Load(),
	}
}

// Close implements port.Port.
func (p *Port) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	if p.c.Writer != nil {
		err = p.c.Writer.Flush()
	}
	if p.c.Close != nil {
		err = errors.Join(err, p.c.Close())
	}
	return err
}

var _ port.Port = (*Port)(nil)
