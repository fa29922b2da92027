package nffgo

import (
	"fmt"
	"unsafe"

	"github.com/intel-go/nff-go/flow"
	nff "github.com/intel-go/nff-go/packet"

	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Reasons of an App.
const (
	reasonRefused = iota
	reasonTooLong
)

// App is a network function whose work a handler of nff-go does: frames that come in at a leave at b, and the other way
// round; those of which the handler says false are dropped, as with flow.SetHandlerDrop. A handler may change a packet and its
// length. It gets no context, and is called by all workers of a graph, each in a goroutine of its own.
//
// The packets are mbufs: flow.SystemInit and flow.SystemInitPortsAndMemory (or SystemStart) come before the graph is made.
func App(name, summary string, handler flow.SeparateFunction) graph.Kind {
	return graph.Kind{
		Name: name, Summary: summary, In: []string{"a", "b"}, Out: []string{"a", "b"},
		Reasons: []counter.Def{
			reasonRefused: {Name: "refused", Help: "dropped: the handler said so"},
			reasonTooLong: {Name: "too-long", Help: "dropped: longer than an mbuf, or made longer than a buffer"},
		},
		New: func(graph.Env, graph.Args) (graph.App, error) {
			p, err := nff.NewPacket()
			if err != nil {
				return nil, fmt.Errorf("nffgo: an mbuf for %s: %w", name, err)
			}
			return &app{handler: handler, p: p, home: unsafe.Pointer(p.Ether)}, nil
		},
	}
}

// app has one mbuf: a handler may not keep it. It stays when the app is gone, as nff-go takes none back.
type app struct {
	handler flow.SeparateFunction
	p       *nff.Packet
	home    unsafe.Pointer // where the mbuf's frames begin
}

func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if !set(a.p, x.Bytes()) {
			c.Drop(x, reasonTooLong)
			continue
		}
		goes := a.handler(a.p, nil)
		switch {
		case !goes:
			c.Drop(x, reasonRefused)
		case !x.SetBytes(a.p.GetRawPacketBytes()):
			c.Drop(x, reasonTooLong)
		default:
			c.Emit(1-in, x)
		}
		a.rewind()
	}
}

// rewind has the mbuf begin where it did, after a handler that put bytes in front or took some away.
func (a *app) rewind() {
	switch d := uintptr(unsafe.Pointer(a.p.Ether)) - uintptr(a.home); {
	case int(d) > 0:
		a.p.EncapsulateHead(0, uint(d))
	case int(d) < 0:
		if n := a.p.GetPacketSegmentLen(); n < uint(-d) {
			a.p.EncapsulateTail(n, uint(-d)-n)
		}
		a.p.DecapsulateHead(0, uint(-d))
	}
	a.p.L3, a.p.L4, a.p.Data = nil, nil, nil
}
