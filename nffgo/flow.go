package nffgo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/intel-go/nff-go/flow"
	nff "github.com/intel-go/nff-go/packet"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// burst is the most packets that nff-go gives a vector function.
const burst = 32

// queued is the most frames that left the graph and wait for a packet of nff-go's to go in.
const queued = 1024

// Config of a Graph.
type Config struct {
	// Graph: of the Spec's ports only names are used, and Ports is left empty: frames come from flows. It has one worker.
	Graph graph.Config
	// Ports are the names of the Spec's ports, in the order of the flows that leave the Graph (at most 254).
	Ports []string
	// Frames is how many frames the graph may have inside; 0: 4,096.
	Frames int
}

// Graph is a quillon graph that runs in flows of nff-go. Clones of a flow function, and functions of several flows, take turns
// in it. Frames leave in the packets of those that came: a frame that the graph made, or held, waits for the next packet, of
// any flow of the graph, whose own frame does not leave; see Ticks.
type Graph struct {
	inst  *graph.Instance
	names []string
	clock clock.Clock
	pool  *packet.Pool

	mu    sync.Mutex
	batch packet.Batch
	out   []left // oldest first
	stats Stats
	err   error
}

// left is a frame that left the graph, at port number port.
type left struct {
	b    *packet.Buf
	port uint8
}

// Stats are a Graph's totals.
type Stats struct {
	Received, Sent uint64 // frames into the graph, and from it into packets
	// NoRoom frames were dropped as the graph had Config.Frames inside, or as too many waited for packets.
	NoRoom uint64
	// TooLong frames were dropped as they are of several mbufs, or longer than a buffer of the graph's, or than an mbuf.
	TooLong uint64
	Waiting int // frames that wait for a packet
}

// New builds a graph. Its time is the wall clock.
func New(c Config) (*Graph, error) {
	c.Frames = cmp.Or(c.Frames, 4096)
	if len(c.Ports) == 0 || len(c.Ports) >= none {
		return nil, fmt.Errorf("nffgo: %d ports: want 1 to %d", len(c.Ports), none-1)
	}
	if len(c.Graph.Ports) != 0 {
		return nil, errors.New("nffgo: ports of the graph are open: its frames come from flows")
	}
	pool, err := packet.NewPool(c.Frames+queued+packet.MaxBatch, 2048, nil)
	if err != nil {
		return nil, err
	}
	if c.Graph.Clock == nil {
		c.Graph.Clock = clock.NewWall()
	}
	g := &Graph{names: c.Ports, clock: c.Graph.Clock, pool: pool, out: make([]left, 0, queued)}
	c.Graph.Ports = map[string][]port.Port{}
	for i, name := range c.Ports {
		c.Graph.Ports[name] = []port.Port{&exit{g: g, name: name, number: uint8(i)}}
	}
	if g.inst, err = graph.New(c.Graph); err != nil {
		return nil, err
	}
	return g, nil
}

// none is the flow of packets that nothing leaves in: the one behind those of ports.
const none = 255

// Between sets up flows in which the graph runs between ports of DPDK: what port numbers[i] receives comes in at
// Config.Ports[i], and what leaves there is sent by it. Call it between flow.SystemInit and flow.SystemStart.
func (g *Graph) Between(numbers ...uint16) error {
	if len(numbers) != len(g.names) {
		return fmt.Errorf("nffgo: %d ports for a graph with %d", len(numbers), len(g.names))
	}
	leave := make([][]*flow.Flow, len(numbers))
	for i, n := range numbers {
		in, err := flow.SetReceiver(n)
		if err != nil {
			return err
		}
		all, err := flow.SetVectorSplitter(in, g.Splitter(g.names[i]), g.Flows(), nil)
		if err != nil {
			return err
		}
		for k := range leave {
			leave[k] = append(leave[k], all[k])
		}
		if err := flow.SetStopper(all[len(leave)]); err != nil {
			return err
		}
	}
	for k, n := range numbers {
		all, err := flow.SetMerger(leave[k]...)
		if err != nil {
			return err
		}
		if err := flow.SetSender(all, n); err != nil {
			return err
		}
	}
	return nil
}

// Instance is the running graph, for its counters and tables. Its methods may be called at any time, but for those that run
// it (Run, Step, Push).
func (g *Graph) Instance() *graph.Instance { return g.inst }

// Stats are what they are at this moment.
func (g *Graph) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.stats
	s.Waiting = len(g.out)
	return s
}

// Err is why the graph ended (an app panicked); nil: it has not. Then all packets are dropped.
func (g *Graph) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Close ends the graph. Call it after flow.SystemStop.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.out {
		x.b.Put()
	}
	g.out = g.out[:0]
	return g.inst.Close()
}

// Splitter is for flow.SetVectorSplitter with the flows Flows(): it takes packets as received on the named port. Packets of flow n
// left the graph at port n of Config.Ports; those of the last flow carry nothing, and are for flow.SetStopper.
func (g *Graph) Splitter(name string) flow.VectorSplitFunction {
	return func(pkts []*nff.Packet, mask *[burst]bool, flows *[burst]uint8, _ flow.UserContext) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if name != "" {
			for i, p := range pkts {
				if mask[i] {
					g.take(p)
				}
			}
		}
		g.push(name)
		g.leave(pkts, mask, flows)
	}
}

// Flows is how many flows a Splitter makes.
func (g *Graph) Flows() uint { return uint(len(g.names)) + 1 }

// Ticks is a Splitter for packets that are not received, but made, such as those of flow.SetFastGenerator at a low rate: they
// give the graph its time while nothing comes, and packets for frames that left it by themselves.
func (g *Graph) Ticks() flow.VectorSplitFunction { return g.Splitter("") }

// take copies a packet into the batch at hand.
func (g *Graph) take(p *nff.Packet) {
	b := g.pool.Get()
	switch {
	case b == nil:
		g.stats.NoRoom++
	case p.Next != nil || !b.SetBytes(p.GetRawPacketBytes()):
		g.stats.TooLong++
		b.Put()
	default:
		g.batch.Add(b)
		g.stats.Received++
	}
}

// push has the graph breathe with the batch at hand.
func (g *Graph) push(name string) {
	if g.err != nil {
		g.batch.PutAll()
		return
	}
	now := g.clock.Now()
	if name == "" {
		_, g.err = g.inst.Step(now)
	} else {
		g.err = g.inst.PushTo(0, name, now, &g.batch)
	}
}

// leave puts what has left the graph into packets, in its order.
func (g *Graph) leave(pkts []*nff.Packet, mask *[burst]bool, flows *[burst]uint8) {
	n := 0
	for i, p := range pkts {
		if !mask[i] {
			continue
		}
		flows[i] = uint8(len(g.names))
		for n < len(g.out) && flows[i] == uint8(len(g.names)) {
			x := g.out[n]
			n++
			if set(p, x.b.Bytes()) {
				flows[i] = x.port
				g.stats.Sent++
			} else {
				g.stats.TooLong++
			}
			x.b.Put()
		}
	}
	g.out = g.out[:copy(g.out, g.out[n:])]
}

// set makes a packet of one mbuf, wherever it begins there, have these bytes; false: it has no room for them.
func set(p *nff.Packet, data []byte) bool {
	was, is := p.GetPacketSegmentLen(), uint(len(data))
	if is > was && !p.EncapsulateTail(was, is-was) || is < was && !p.DecapsulateTail(was, was-is) {
		return false
	}
	copy(p.GetRawPacketBytes(), data)
	return true
}

// exit is a port of the graph, through which frames only leave.
type exit struct {
	g      *Graph
	name   string
	number uint8
}

func (e *exit) Name() string                                     { return e.name }
func (e *exit) Pool() *packet.Pool                               { return e.g.pool }
func (e *exit) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (e *exit) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (e *exit) Stats() port.Stats                                { return port.Stats{} }
func (e *exit) Close() error                                     { return nil }

// Tx is called in a breath, whose caller has g.mu.
func (e *exit) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		if len(e.g.out) == queued {
			e.g.stats.NoRoom++
			x.Put()
			continue
		}
		e.g.out = append(e.g.out, left{x, e.number})
	}
	b.Reset()
	return n, nil
}
