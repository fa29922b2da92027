package host

import (
	"errors"
	"io"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Bridge is a learning Ethernet bridge between ports of one goroutine: the rack's switch if the rack lives in
// one process. It forwards by destination address, floods frames to unknown and group addresses, and drops
// frames that find no room.
type Bridge struct {
	ports []port.Port
	out   []packet.Batch
	where map[[6]byte]int
	fixed map[[6]byte]bool
	rx    packet.Batch
	// Dropped counts frames that found no room, or whose destination is on the port that they came from.
	// Flooded counts frames that went to all other ports.
	Dropped, Flooded uint64
}

// maxAddrs is the size of the address table. Frames to an address that found no room there are flooded.
const maxAddrs = 4096

// NewBridge joins ports.
func NewBridge(ports ...port.Port) *Bridge {
	return &Bridge{ports: ports, out: make([]packet.Batch, len(ports)), where: make(map[[6]byte]int), fixed: make(map[[6]byte]bool)}
}

// Fix ties an address to a port. Frames from other ports with this source address do not change that, as with
// port security on a switch.
func (g *Bridge) Fix(mac [6]byte, port int) { g.where[mac], g.fixed[mac] = port, true }

// Breath implements Worker. It skips ports that were closed.
func (g *Bridge) Breath(now clock.Time) (int, error) {
	moved := 0
	for in, p := range g.ports {
		g.rx.Reset()
		n, err := p.Rx(&g.rx)
		moved += n
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, port.ErrClosed) {
			g.rx.PutAll()
			return moved, err
		}
		for _, b := range g.rx.Bufs() {
			g.forward(in, b)
		}
		g.rx.Reset()
	}
	for i := range g.ports {
		if err := g.send(i); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

func (g *Bridge) forward(in int, b *packet.Buf) {
	f := b.Bytes()
	if len(f) < 14 {
		g.Dropped++
		b.Put()
		return
	}
	dst, src := [6]byte(f), [6]byte(f[6:])
	if src[0]&1 == 0 {
		if at, ok := g.where[src]; (!ok && len(g.where) < maxAddrs) || (ok && at != in && !g.fixed[src]) {
			g.where[src] = in
		}
	}
	if to, ok := g.where[dst]; ok && dst[0]&1 == 0 {
		if to == in {
			g.Dropped++
			b.Put()
			return
		}
		g.put(to, b)
		return
	}
	g.Flooded++
	for to := range g.ports {
		if to == in {
			continue
		}
		c := g.ports[to].Pool().Get()
		if c == nil {
			g.Dropped++
			continue
		}
		if !c.SetBytes(f) {
			g.Dropped++
			c.Put()
			continue
		}
		g.put(to, c)
	}
	b.Put()
}

func (g *Bridge) put(to int, b *packet.Buf) {
	if g.out[to].Full() {
		_ = g.send(to)
	}
	if !g.out[to].Add(b) {
		g.Dropped++
		b.Put()
	}
}

func (g *Bridge) send(i int) error {
	if g.out[i].Len() == 0 {
		return nil
	}
	_, err := g.ports[i].Tx(&g.out[i])
	if errors.Is(err, port.ErrClosed) {
		g.Dropped += uint64(g.out[i].Len())
		g.out[i].PutAll()
		return nil
	}
	return err
}

// Deadline implements Worker. A bridge needs no timer: frames that wait for room are sent in a later breath.
func (g *Bridge) Deadline() clock.Time { return clock.Never }

// Held returns the number of frames that wait for room.
func (g *Bridge) Held() int {
	n := 0
	for i := range g.out {
		n += g.out[i].Len()
	}
	return n
}
