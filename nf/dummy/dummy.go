// Package dummy is a function that passes frames unchanged, and spends a settable time on each or accesses
// memory. It is for experiments with what is around it.
package dummy

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/memory"
	"github.com/quillon/quillon/nf/packet"
)

// maxTouch is the largest number of bytes that is accessed for a frame.
const maxTouch = 4096

const (
	reasonWaited graph.Reason = iota
	reasonFull
	reasonRefused
	reasonFault
	reasonStopped
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonWaited:  {Name: "waited", Help: "its page of memory had to come, forwarded"},
	reasonFull:    {Name: "hold-full", Help: "dropped: as many frames wait for pages of memory as may (hold=)"},
	reasonRefused: {Name: "no-memory", Help: "dropped: nobody has room for its page of memory"},
	reasonFault:   {Name: "fault", Help: "dropped: its access to memory was a fault"},
	reasonStopped: {Name: "stopped", Help: "it waited for a page of memory when the function was stopped, forwarded"},
}

const (
	ctrTouched counter.ID = iota
	ctrHeld
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrTouched: {Name: "touched", Help: "frames whose memory was read and written"},
	ctrHeld:    {Name: "held", Help: "frames that wait for pages now"},
}

// Kind returns the declaration of the network function "dummy".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "dummy",
		Summary: "passes frames from a to b and from b to a, untouched, and takes a while, or memory",
		Doc: `The worker is busy for cost= a frame, by its clock, and does nothing else
meanwhile. Where time stands still while a breath lasts, as in replay and in
simulations, it costs nothing.

With touch= each frame has so many bytes of its flow read from memory= bytes, 1 added to each,
and written back. As a task of a board with memory (quillon nf describe snic), and with memory: of
its own, that is where they are: frames whose page is at another board wait for it.

  quillon run --inline eth1,eth2 --nf dummy,cost=500ns`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects: func(args graph.Args) effect.Effects {
			waits := touches(args) // for memory
			return effect.Effects{Drops: waits, Answers: waits, State: waits}
		},
		Memory: touches,
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			d := dummy{settings: s, clk: env.Clock}
			if err != nil || s.touch == 0 {
				return &d, err
			}
			return &touching{dummy: d, waits: make([]waiting, 0, s.hold)}, nil
		},
	}
}

// touches reports whether a dummy with these arguments accesses memory.
func touches(args graph.Args) bool { return args["touch"] != "" && args["touch"] != "0" }

type settings struct {
	cost   time.Duration `arg:"cost" range:"0..1ms" help:"time that a frame takes, at most 1ms; can be changed while running"`
	touch  int           `arg:"touch" unit:"1024" range:"0..4096" help:"bytes of memory that a frame accesses: a power of two, at most 4k"`
	memory int           `arg:"memory" unit:"1024" range:"1..2^34" help:"bytes of memory that are accessed, those of a flow always the same; whole ones of touch="`
	hold   int           `arg:"hold" range:"0..2^14" help:"frames that wait for pages of memory, at most"`
	stray  int           `arg:"stray" range:"0..2^30" help:"access memory outside of what is reserved with every so many frames, as a test of what comes of it; 0: never"`
	hang   int           `arg:"hang" range:"0..2^30" help:"never come back from this frame, counted from 1, as a test of what comes of it; 0: never"`
}

var arguments = arg.Declare("dummy", settings{memory: 64 << 10, hold: 64})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	switch {
	case s.touch&(s.touch-1) != 0:
		r.Failf("touch=%d: want a power of two", s.touch)
	case s.touch > 0 && s.memory%s.touch != 0:
		r.Failf("memory=%d: want a multiple of touch=, %d", s.memory, s.touch)
	}
	return s, r.Err()
}

type dummy struct {
	settings
	clk  clock.Clock
	seen int // frames, while hang is set
}

// touching is a dummy with touch=.
type touching struct {
	dummy
	own     []byte       // memory, from the first access on; nil: it is in space
	space   memory.Space // nil: it is given none
	waits   []waiting
	frames  int
	scratch [maxTouch]byte
}

// waiting is a frame that waits for a page.
type waiting struct {
	x  *packet.Buf
	va uint64
	in int
}

// UseMemory implements memory.User.
func (d *touching) UseMemory(s memory.Space) error {
	if int64(d.memory) > s.Size() {
		return fmt.Errorf("dummy: memory=%d: it is given %d bytes (memory: of the task)", d.memory, s.Size())
	}
	if d.touch > s.PageBytes() {
		return fmt.Errorf("dummy: touch=%d: its pages have %d bytes", d.touch, s.PageBytes())
	}
	d.space = s
	return s.Reserve(0, int64(d.memory), memory.Read|memory.Write)
}

// Takes implements graph.Reconfigurer.
func (d *dummy) Takes(args graph.Args) bool {
	s, err := parse(args)
	s.cost = d.cost
	return err != nil || s == d.settings
}

// Reconfigure implements graph.Reconfigurer.
func (d *dummy) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err == nil {
		d.cost = s.cost
	}
	return err
}

// Push implements graph.App.
func (d *dummy) Push(c *graph.Ctx, in int, b *packet.Batch) {
	d.work(b.Len())
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

// work waits, busily, for the time that n frames cost.
func (d *dummy) work(n int) {
	if d.hang > 0 {
		for d.seen += n; d.seen >= d.hang; {
		}
	}
	if d.clk != nil && d.cost > 0 {
		// A batch leaves the app as a whole, so that one wait for all frames has the same effect.
		for end := d.clk.Now().Add(d.cost * time.Duration(n)); d.clk.Now() < end; {
		}
	}
}

// Push implements graph.App.
func (d *touching) Push(c *graph.Ctx, in int, b *packet.Batch) {
	d.work(b.Len())
	d.again(c) // those of a flow keep their order
	for _, x := range b.Bufs() {
		va := d.address(x.Bytes())
		if d.frames++; d.stray > 0 && d.frames%d.stray == 0 {
			va = 1 << 62
		}
		d.one(c, waiting{x, va, in}, false)
	}
	c.Set(ctrHeld, uint64(len(d.waits)))
}

// one sends or drops a frame after its access, or has it wait. It returns false if a frame that has waited must
// still wait.
func (d *touching) one(c *graph.Ctx, w waiting, waited bool) bool {
	switch o := d.access(w.va); {
	case o == memory.OK:
		c.Count(ctrTouched, 1)
		if waited {
			c.Mark(w.x, packet.Forwarded, reasonWaited)
		}
		c.Emit(1-w.in, w.x)
	case o == memory.Wait && waited:
		return false
	case o == memory.Wait && len(d.waits) < d.hold:
		d.waits = append(d.waits, w)
	case o == memory.Wait:
		c.Drop(w.x, reasonFull)
	case o == memory.Refused:
		c.Drop(w.x, reasonRefused)
	default:
		c.Drop(w.x, reasonFault)
	}
	return true
}

// address returns the address of the memory of a frame's flow. It is the same in both directions.
func (d *touching) address(p []byte) uint64 {
	var l hdr.Layers
	h := uint64(len(p))
	if hdr.Walk(p, &l) && l.Family() != 0 {
		var k flow.Key
		k.Addrs(p, &l)
		k.SrcPort, k.DstPort = l.PortsOf(p)
		a, b := k, k.Reversed()
		h = a.Hash(1) ^ b.Hash(1)
	}
	return h % uint64(d.memory/d.touch) * uint64(d.touch)
}

// access adds 1 to each of the touch= bytes at an address.
func (d *touching) access(va uint64) memory.Outcome {
	p := d.scratch[:d.touch]
	if d.space == nil {
		if d.own == nil {
			d.own = make([]byte, d.memory) // not before it is known that nobody gives it some
		}
		if va >= uint64(len(d.own)) {
			return memory.Fault
		}
		p = d.own[va:][:d.touch]
	} else if _, o := d.space.Read(va, p); o != memory.OK {
		return o
	}
	for i := range p {
		p[i]++
	}
	if d.space == nil {
		return memory.OK
	}
	// The bytes are in one page, which was there for the read.
	_, o := d.space.Write(va, p)
	return o
}

// again tries the accesses of waiting frames again, in the order of the frames.
func (d *touching) again(c *graph.Ctx) {
	if len(d.waits) == 0 {
		return
	}
	n := 0
	for _, w := range d.waits {
		if !d.one(c, w, true) {
			d.waits[n] = w
			n++
		}
	}
	clear(d.waits[n:])
	d.waits = d.waits[:n]
	c.Set(ctrHeld, uint64(n))
}

// Tick implements graph.Ticker. It runs when a page has come.
func (d *touching) Tick(c *graph.Ctx) clock.Time {
	d.again(c)
	return clock.Never
}

// Held implements graph.Holder.
func (d *touching) Held() int { return len(d.waits) }

// Stop implements graph.Holder.
func (d *touching) Stop(c *graph.Ctx) {
	for _, w := range d.waits {
		c.Mark(w.x, packet.Forwarded, reasonStopped)
		c.Emit(1-w.in, w.x)
	}
	d.waits = d.waits[:0]
	c.Set(ctrHeld, 0)
}
