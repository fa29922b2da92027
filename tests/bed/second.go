package bed

import (
	"math/rand/v2"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/conn"
)

// Second says whether the server's machine has a second NIC. That one has an address of its own, and gives its queue pairs
// and regions the numbers and R_Keys that the first one gives: each NIC counts for itself.
type Second uint8

const (
	NoSecond Second = iota
	OneMAC          // both NICs have one MAC address
	TwoMACs
	numSeconds
)

// twin is the server's machine as its second NIC has it.
func (b *Bed) twin() *machine {
	m := *b.server
	m.name, m.ip = "s1", m.ip.Next()
	if b.cfg.Second == TwoMACs {
		m.mac[5]++
	}
	return &m
}

// both makes the second NIC, and returns what stands for it and for the first one.
func (b *Bed) both(first host.Endpoint) (host.Endpoint, error) {
	m := b.twin()
	var err error
	if b.second, err = b.nicOf(m, 255); err != nil {
		return nil, err
	}
	return &nics{first, b.wrapped(m, b.second), conn.AddrFrom(m.ip)}, nil
}

// nics are two NICs at one port. Each gets what has its address.
type nics struct {
	first, second host.Endpoint
	at            conn.Addr // of the second
}

// Input implements host.Endpoint.
func (n *nics) Input(now clock.Time, x *packet.Buf) {
	var f hdr.Frame
	b := x.Bytes()
	if hdr.Parse(b, &f); f.Net != 0 && conn.Target(b, &f) == n.at {
		n.second.Input(now, x)
		return
	}
	n.first.Input(now, x)
}

// Output implements host.Endpoint.
func (n *nics) Output(now clock.Time, out *packet.Batch) {
	n.first.Output(now, out)
	n.second.Output(now, out)
}

// Deadline implements host.Endpoint.
func (n *nics) Deadline() clock.Time { return min(n.first.Deadline(), n.second.Deadline()) }

// Tick implements host.Endpoint.
func (n *nics) Tick(now clock.Time) {
	n.first.Tick(now)
	n.second.Tick(now)
}

// Second is the server's second NIC, or nil.
func (b *Bed) Second() *rnic.NIC { return b.second }

// second gives the server's machine a second NIC.
func (w *World) second(rng *rand.Rand, l Limits) {
	w.Second = OneMAC + Second(rng.IntN(int(numSeconds-OneMAC)))
	w.Joined = l.Joins && w.Second == TwoMACs && rng.IntN(2) == 0
	w.Domains = max(w.Domains, 2)
	for i := range w.Queues {
		w.Queues[i].Domain = rng.IntN(w.Domains)
	}
	w.CE = 0 // marks are counted by queue pairs' numbers
}

// divide gives each of the server's NICs memory of its own.
func (w *World) divide() {
	for i := range w.Regions {
		r := &w.Regions[i]
		r.Memory = 2*r.Memory + w.nic(r.Domain)
	}
	w.Memories *= 2
}

// alone takes out of w what tells queue pairs apart by their numbers alone.
func (w *World) alone() {
	if w.Second == NoSecond {
		return
	}
	for i := range w.Queues {
		w.Queues[i].Lost = [2][]int{}
	}
}
