package police

import (
	"cmp"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// Reasons of shape.
const (
	shapeOther graph.Reason = iota
	shapeFull
	shapeTooLong
	numShapeReasons
)

var shapeReasons = [numShapeReasons]counter.Def{
	shapeOther:   {Name: "not-shaped", Help: "received on a port that is not shaped (on=): passed"},
	shapeFull:    {Name: "queue-full", Help: "as many frames or bytes wait as may (queue=, queue-bytes=): dropped"},
	shapeTooLong: {Name: "over-burst", Help: "longer than the burst, so that its tokens could never be there: dropped"},
}

// Counters of shape.
const (
	ctrWaited counter.ID = iota
	ctrQueued
	ctrQueuedBytes
	numShapeCounters
)

var shapeCounters = [numShapeCounters]counter.Def{
	ctrWaited:      {Name: "waited", Help: "frames that had to wait"},
	ctrQueued:      {Name: "queued", Help: "frames that wait now"},
	ctrQueuedBytes: {Name: "queued-bytes", Help: "bytes that wait now"},
}

// release is the largest number of frames that go at once to one output. A link holds four times as many, and
// frames may be released twice in a breath, by Tick and by Push.
const release = 2 * packet.MaxBatch

// ShapeKind returns the declaration of the network function "shape".
func ShapeKind() *graph.Kind {
	return &graph.Kind{
		Name:    "shape",
		Summary: "lets frames wait until a token bucket has tokens for them",
		Doc: `Each shaped direction has a token bucket and a queue; frames leave in the order
in which they came, untouched, of whatever protocol. A frame for which there is
no room in the queue is dropped. When the app is taken away, what waits is sent.

A frame leaves when its tokens have come, or as soon as the worker is awake after
that; the tokens that come meanwhile are kept, as many as the burst has room for, so
the rate is reached as long as the burst is larger than what comes in that time.

  quillon run --inline eth1,eth2 --nf shape,rate=100Mbit,on=a`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   shapeArguments.Params(),
		Counters: shapeCounters[:],
		Reasons:  shapeReasons[:],
		Effects:  graph.Always(effect.Effects{Reads: effect.Length, Drops: true, Answers: true, State: true}),
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			s, err := parseShape(args)
			if err != nil {
				return nil, err
			}
			p := &shaper{shaping: s}
			for i := range p.q {
				p.q[i].ring = make([]*packet.Buf, s.queue)
			}
			return p, nil
		},
	}
}

type shaping struct {
	rate    `arg:"rate" need:"such as rate=10Mbit" help:"as 10Mbit, 1.5Gbit (of frames without FCS) or 100kpps; needed"`
	burst   uint64 `arg:"burst" unit:"1024" range:"1..2^30" default:"10 ms of the rate, at least 16k or 64 packets" help:"room for tokens in bytes, or packets, as 9000, 64k or 2M"`
	queue   int    `arg:"queue" range:"1..2^16" help:"frames that wait at most, a direction; another number starts the app anew"`
	bytes   uint64 `arg:"queue-bytes" unit:"1024" range:"1..2^30" help:"bytes that wait at most, a direction"`
	on      inputs `arg:"on" words:"a b both" help:"the port whose received frames are shaped: a, b or both"`
	failing `arg:"fail" words:"open wait closed" help:"frames while the worker gets no processor, or has died: open (they cross as they are after 60 ms), wait (they wait for it for 1 s, and then cross), closed (they wait, and are dropped then)"`
	room    uint64 // of burst, in parts of tokens
}

var shapeArguments = arg.Declare("shape", shaping{queue: 256, bytes: 1 << 20, on: both})

func parseShape(args graph.Args) (shaping, error) {
	s, r := shapeArguments.Read(args)
	s.burst = cmp.Or(s.burst, s.rate.burst(10))
	s.room = s.rate.room(s.burst)
	return s, r.Err()
}

// fifo is one direction: the frames that wait, of which the oldest is at head, and the tokens.
type fifo struct {
	ring    []*packet.Buf
	head, n int
	bytes   uint64
	at      clock.Time
	tokens  uint64
}

type shaper struct {
	shaping
	q     [2]fifo
	begun bool
}

// Takes implements graph.Reconfigurer.
func (p *shaper) Takes(args graph.Args) bool {
	s, err := parseShape(args)
	return err == nil && s.queue == p.queue && s.packets == p.packets
}

// Reconfigure implements graph.Reconfigurer. Frames that wait leave at the new rate, or at once if their
// direction is not shaped any more.
func (p *shaper) Reconfigure(args graph.Args) error {
	s, err := parseShape(args)
	if err != nil {
		return err
	}
	p.shaping = s
	for i := range p.q {
		p.q[i].tokens = min(p.q[i].tokens, s.room)
	}
	return nil
}

// Held implements graph.Holder.
func (p *shaper) Held() int { return p.q[0].n + p.q[1].n }

// Push implements graph.App.
func (p *shaper) Push(c *graph.Ctx, in int, b *packet.Batch) {
	p.begin(c)
	q := &p.q[in]
	p.drain(c, in, release)
	for _, x := range b.Bufs() {
		size := uint64(x.Len())
		switch {
		case !p.on.has(in) && q.n == 0:
			c.Mark(x, x.Verdict, shapeOther)
			c.Emit(1-in, x)
		case p.on.has(in) && p.cost(x.Len()) > p.room:
			c.Drop(x, shapeTooLong)
		case q.n == 0 && q.tokens >= p.cost(x.Len()):
			q.tokens -= p.cost(x.Len())
			c.Emit(1-in, x)
		case q.n == len(q.ring) || q.bytes+size > p.bytes:
			c.Drop(x, shapeFull)
		default:
			q.ring[(q.head+q.n)%len(q.ring)] = x
			q.n++
			q.bytes += size
			c.Count(ctrWaited, 1)
		}
	}
	if q.n > 0 {
		c.Wake(p.next(c, in))
	}
	p.gauge(c)
}

// next returns when the oldest frame that waits in a direction may leave.
func (p *shaper) next(c *graph.Ctx, in int) clock.Time {
	q := &p.q[in]
	need := p.price(q)
	if !p.on.has(in) || need <= q.tokens {
		return c.Now()
	}
	return c.Now().Add(p.until(need - q.tokens))
}

// begin fills the buckets at the first breath.
func (p *shaper) begin(c *graph.Ctx) {
	if p.begun {
		return
	}
	p.begun = true
	for i := range p.q {
		p.q[i].at, p.q[i].tokens = c.Now(), p.room
	}
}

// Tick implements graph.Ticker.
func (p *shaper) Tick(c *graph.Ctx) clock.Time {
	p.begin(c)
	next := clock.Never
	for in := range p.q {
		p.drain(c, in, release)
		if p.q[in].n > 0 {
			next = min(next, p.next(c, in))
		}
	}
	p.gauge(c)
	return next
}

// Stop implements graph.Holder.
func (p *shaper) Stop(c *graph.Ctx) {
	for in := range p.q {
		for p.q[in].n > 0 {
			p.pop(c, in)
		}
	}
	p.gauge(c)
}

// drain sends up to most frames, as far as there are tokens for them.
func (p *shaper) drain(c *graph.Ctx, in, most int) {
	q := &p.q[in]
	if now := c.Now(); now > q.at {
		fill(&q.tokens, p.room, p.earned(now.Sub(q.at)))
		q.at = now
	}
	for ; q.n > 0 && most > 0; most-- {
		if p.on.has(in) {
			cost := p.price(q)
			if q.tokens < cost {
				return
			}
			q.tokens -= cost
		}
		p.pop(c, in)
	}
}

// price returns what the oldest frame of q costs. If the burst has become smaller since the frame began to wait,
// the frame costs at most all that the bucket holds.
func (p *shaper) price(q *fifo) uint64 {
	return min(p.cost(q.ring[q.head].Len()), p.room)
}

func (p *shaper) pop(c *graph.Ctx, in int) {
	q := &p.q[in]
	x := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	q.bytes -= uint64(x.Len())
	c.Emit(1-in, x)
}

func (p *shaper) gauge(c *graph.Ctx) {
	c.Set(ctrQueued, uint64(p.Held()))
	c.Set(ctrQueuedBytes, p.q[0].bytes+p.q[1].bytes)
}
