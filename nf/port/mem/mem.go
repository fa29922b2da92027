// Package mem is a wire in memory: two ports, each receiving what the other
// sends. Both ends belong to one goroutine (a simulation, a test, the demo
// without root); nothing is concurrent.
package mem

import (
	"context"
	"io"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Port is one end of a wire.
type Port struct {
	name   string
	pool   *packet.Pool
	clk    clock.Clock
	peer   *Port
	q      []*packet.Buf // frames on their way to this end: ring
	head   int
	n      int
	stats  port.Stats
	closed bool
}

// NewWire joins two ports. depth is the number of frames that a direction
// holds; a frame that finds it full stays with the sender. Frames cross
// without a copy when both ends share pool.
func NewWire(nameA, nameB string, pool *packet.Pool, depth int, clk clock.Clock) (*Port, *Port) {
	a := &Port{name: nameA, pool: pool, clk: clk, q: make([]*packet.Buf, depth)}
	b := &Port{name: nameB, pool: pool, clk: clk, q: make([]*packet.Buf, depth)}
	a.peer, b.peer = b, a
	return a, b
}

// Name implements port.Port.
func (p *Port) Name() string { return p.name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.pool }

// Pending is the number of frames that wait to be received.
func (p *Port) Pending() int { return p.n }

// Rx implements port.Port. After the peer's Close the rest arrives, then io.EOF.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.closed {
		return 0, port.ErrClosed
	}
	got := 0
	now := int64(p.clk.Now())
	for p.n > 0 && !b.Full() {
		x := p.q[p.head]
		p.q[p.head] = nil
		p.head++
		if p.head == len(p.q) {
			p.head = 0
		}
		p.n--
		x.RxTime = now
		b.Add(x)
		got++
		p.stats.RxPackets++
		p.stats.RxBytes += uint64(x.Len())
	}
	if got == 0 && p.peer.closed {
		return 0, io.EOF
	}
	return got, nil
}

// Tx implements port.Port.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	if p.closed || p.peer.closed {
		return 0, port.ErrClosed
	}
	to := p.peer
	sent := 0
	for _, x := range b.Bufs() {
		if to.n == len(to.q) {
			break
		}
		if x.Pool() != to.pool {
			y := to.pool.Get()
			if y == nil {
				break
			}
			size := x.Len()
			fits := y.SetBytes(x.Bytes())
			x.Put()
			sent++
			if !fits {
				y.Put()
				p.stats.TxDropped++
				continue
			}
			p.stats.TxPackets++
			p.stats.TxBytes += uint64(size)
			to.push(y)
			continue
		}
		p.stats.TxPackets++
		p.stats.TxBytes += uint64(x.Len())
		x.Meta = packet.Meta{}
		to.push(x)
		sent++
	}
	b.Shift(sent)
	return sent, nil
}

func (p *Port) push(x *packet.Buf) {
	i := p.head + p.n
	if i >= len(p.q) {
		i -= len(p.q)
	}
	p.q[i] = x
	p.n++
}

// Wait implements port.Port: an in-memory wire never has to wait.
func (p *Port) Wait(ctx context.Context, d clock.Duration) error { return ctx.Err() }

// Stats implements port.Port.
func (p *Port) Stats() port.Stats { return p.stats }

// Close implements port.Port: frames that wait at this end are given back.
func (p *Port) Close() error {
	for p.n > 0 {
		p.q[p.head].Put()
		p.q[p.head] = nil
		p.head = (p.head + 1) % len(p.q)
		p.n--
	}
	p.closed = true
	return nil
}

var _ port.Port = (*Port)(nil)
