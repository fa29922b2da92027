// Package end puts an endpoint of a rack behind the last hop (snic/hop): the endpoint's frames
// cross the cable to its board numbered, checked, and repeated when they are lost.
//
//	endpoint ◄─► End ◄─ cable ─► hop of the board (snic/hop/wire)
//
// An End is an endpoint itself: frames and a time go in, frames and a deadline come out.
package end

import (
	"errors"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/hop"
)

// Endpoint is an endpoint, as in internal/rack/host.
type Endpoint interface {
	Input(now clock.Time, b *packet.Buf)
	Output(now clock.Time, out *packet.Batch)
	Deadline() clock.Time
	Tick(now clock.Time)
}

// End is an endpoint and its link.
type End struct {
	ep      Endpoint
	link    *hop.Link
	pool    *packet.Pool
	out     packet.Batch // frames of the endpoint that wait for room in the link's buffer
	now     clock.Time
	dropped uint64
}

// New puts ep behind a link. Slots of the pool have room for headroom and a frame of the link.
func New(ep Endpoint, link *hop.Link, pool *packet.Pool) (*End, error) {
	if pool == nil || pool.SlotSize() < packet.Headroom+link.Frame+hop.Overhead {
		return nil, errors.New("hop: an end needs a pool whose slots have room for headroom and its frames")
	}
	return &End{ep: ep, link: link, pool: pool}, nil
}

// Stats returns the link's counters, and Dropped the number of frames that were too long for the link.
func (e *End) Stats() hop.Stats { return e.link.Stats() }
func (e *End) Dropped() uint64  { return e.dropped }

// Input implements host.Endpoint.
func (e *End) Input(now clock.Time, b *packet.Buf) {
	e.now = now
	f, ev := e.link.Input(now, b.Bytes())
	if ev != hop.Deliver {
		b.Put()
		return
	}
	b.SetFrame(int(b.Off())+hop.Overhead, len(f))
	e.link.Consumed(len(f))
	e.ep.Input(now, b)
}

// Output implements host.Endpoint.
func (e *End) Output(now clock.Time, out *packet.Batch) {
	e.now = now
	if e.out.Len() == 0 {
		e.ep.Output(now, &e.out)
	}
	sent := 0
	for _, b := range e.out.Bufs() {
		if !e.link.Fits(b.Len()) {
			e.dropped++
		} else if !e.link.Send(b.Bytes()) {
			break
		}
		b.Put()
		sent++
	}
	e.out.Shift(sent)
	for !out.Full() && e.link.Pending(now) != hop.Nothing {
		b := e.pool.Get()
		if b == nil {
			return
		}
		b.SetFrame(packet.Headroom, e.link.Frame+hop.Overhead)
		b.SetFrame(packet.Headroom, e.link.Poll(now, b.Bytes()))
		out.Add(b)
	}
}

// Deadline implements host.Endpoint.
func (e *End) Deadline() clock.Time {
	at := e.link.Next(e.now)
	if e.out.Len() > 0 { // they wait for acknowledgements, which come as frames
		return at
	}
	return min(at, e.ep.Deadline())
}

// Tick implements host.Endpoint.
func (e *End) Tick(now clock.Time) {
	e.now = now
	if e.ep.Deadline() <= now {
		e.ep.Tick(now)
	}
}

// Close gives the waiting frames back to their pool.
func (e *End) Close() { e.out.PutAll() }
