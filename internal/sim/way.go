package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Way is how long a packet takes from an endpoint's NIC, through the boards of a topology, into the rack's switch.
type Way struct {
	// There and back to the board that the endpoint is at, as boards of a pool do it.
	Took time.Duration
	// Out is until it could leave by the board that has done its work.
	Out time.Duration
}

// wayed is a packet under way.
type wayed struct {
	rack
	id         uint32
	n          SNIC
	frame      []byte
	sent, done Time // of a packet, by its task
	took, out  Time // of all
	count      int
}

const (
	wayPackets  = 64
	wayInterval = 20 * Microsecond // they do not meet
)

// Unloaded sends packets of a size through the boards of a topology, one at a time. Where the board at the endpoint
// has a peer its only region is taken, so that the packets' work is done by the peer.
func (n SNIC) Unloaded(ctx context.Context, t Topology, bytes int) (Way, error) {
	w := &wayed{n: n, frame: frameOf(1, bytes)}
	w.id = w.k.add(w)
	c := SNICConfig{SNIC: n, Monitor: 5 * time.Millisecond}
	regions := [2]int{1, 2}
	if t != Intermediate && t != Ring {
		regions[0] = 2
	}
	err := w.build(&rackConfig{
		SNIC: n, topology: t, regions: regions, deployment: `
tasks: {other: {kind: dummy}, nt: {kind: dummy}}
tenants: {user: {}}
dags: [{uid: 1, tenant: user, run: other}, {uid: 2, tenant: user, run: nt}]
rules: [{match: "src:10.0.0.0", dag: 1}, {match: "src:10.0.0.1", dag: 2}]
`, args: c.args(""), frames: frames{256 + n.Packets, bytes + 64}, perByte: Time(8e3 / n.GbitPerSecond),
		around: func(int) *body { return &body{send: w.left, drop: func(*packet.Buf) {}, meter: w.meter} },
	})
	if err == nil {
		err = w.begin(From(meeting) / 2)
	}
	if err != nil {
		return Way{}, fmt.Errorf("sim: %w", err)
	}
	w.entry.receive(portIn, w.frame) // it has the way made
	if err := w.begin(From(meeting)); err != nil {
		return Way{}, fmt.Errorf("sim: %w", err)
	}
	w.took, w.out, w.count = 0, 0, 0
	for range wayPackets {
		w.sent = w.k.now
		// The endpoint has a PHY and a MAC of its own; its switch has its times behind the port.
		in := From(n.Path-n.Core)/2 + w.wire()
		if t != SwitchAttached {
			in += n.half()
		}
		w.k.plan(w.sent+in, w.id, 0, 0, nil)
		for end := w.sent + wayInterval; w.k.next() <= end; {
			w.k.step()
		}
		w.k.now = w.sent + wayInterval
		if err := ctx.Err(); err != nil {
			return Way{}, err
		}
	}
	if err := w.close(); err != nil {
		return Way{}, fmt.Errorf("sim: %w", err)
	}
	if w.count != wayPackets {
		return Way{}, errors.New("sim: packets are lost on the way")
	}
	return Way{(w.took / wayPackets).Duration(), (w.out / wayPackets).Duration()}, nil
}

// wire is how long a packet takes on a cable.
func (w *wayed) wire() Time {
	return Time(float64(len(w.frame)+wireOverhead)*8e3/w.n.GbitPerSecond) + From(Rack100G().Propagation)
}

// fire implements actor: the packet is at the first node.
func (w *wayed) fire(uint32, uint64, *packet.Buf) { w.entry.receive(portIn, w.frame) }

// left is a packet that leaves the last node.
func (w *wayed) left(int, *packet.Buf) {
	took := w.k.now - w.sent
	if w.entry == w.boards[0] { // its cable goes to the switch
		took += w.n.half() + w.wire()
	}
	w.count++
	w.took += took
	w.out += w.done + w.n.half() + w.wire() - w.sent
}

// meter notes when a task has had a packet.
func (w *wayed) meter(app graph.App, _ string) graph.App { return &noted{app, w} }

type noted struct {
	graph.App
	w *wayed
}

func (n *noted) Push(c *graph.Ctx, in int, b *packet.Batch) {
	n.w.done = n.w.k.now
	n.App.Push(c, in, b)
}
