// Package wire is the network function of the last hop (snic/hop): the end of a reliable link between a cable
// and the network behind it.
//
//	a: frames as they are  ◄─►  numbered, checked, repeated when lost  :b
//
// The other end of the cable has one as well. When the buffer of unacknowledged frames is full, frames wait
// in a queue. When more than half of the queue is full, the app asks the neighbour behind a to pause, by PFC.
// When the neighbour asks for a pause, frames for it wait, and the other end of the cable is asked to pause
// in turn. A frame from a is lost only if it is longer than frames may be, if the neighbour goes on sending
// although it was asked to pause, or if it came by the queue of another worker, faster than the link's worker
// takes it.
//
// A link has one order of frames. The queues of a port have no order among each other. So one worker has the
// link, and sends all frames that leave. Frames of other queues are handed to this worker (graph.Ctx.Hand),
// and keep the order of their queue.
//
// A frame that came in goes out in the same Buf. A frame that is sent again, or that belongs to the link
// itself, is generated.
package wire

import (
	"math"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic/hop"
)

// Reasons. Those from reasonEvents on are in the order of hop's events.
const (
	reasonTooLong graph.Reason = iota
	reasonFull
	reasonGaveUp
	reasonCrowded
	reasonEvents
	numReasons = reasonEvents + graph.Reason(hop.Other) + 1
)

var reasons = [numReasons]counter.Def{
	reasonTooLong:                              {Name: "length", Help: "longer than frame=, than a buffer, or no frame at all: dropped"},
	reasonFull:                                 {Name: "queue-full", Help: "came though the sender was asked to pause (queue=): dropped"},
	reasonGaveUp:                               {Name: "gave-up", Help: "not acknowledged or not sent when the app was taken away: dropped"},
	reasonCrowded:                              {Name: "hand-over-full", Help: "came by another queue than the link's worker has, faster than that takes it: dropped; of b, it comes again"},
	reasonEvents + graph.Reason(hop.Took):      {Name: "link", Help: "an acknowledgement or greeting of the other end"},
	reasonEvents + graph.Reason(hop.Deliver):   {Name: "delivered", Help: "unwrapped, and passed"},
	reasonEvents + graph.Reason(hop.Damaged):   {Name: "damaged", Help: "the CRC is wrong: comes again"},
	reasonEvents + graph.Reason(hop.Duplicate): {Name: "duplicate", Help: "was there before"},
	reasonEvents + graph.Reason(hop.Gap):       {Name: "gap", Help: "one before it is missing: comes again"},
	reasonEvents + graph.Reason(hop.Overrun):   {Name: "overrun", Help: "no room, though the other end was asked to pause: comes again"},
	reasonEvents + graph.Reason(hop.Foreign):   {Name: "foreign", Help: "of an epoch that does not count: before a restart, or not yet greeted"},
	reasonEvents + graph.Reason(hop.Pause):     {Name: "pause", Help: "a pause that the neighbour asks for, or its end"},
	reasonEvents + graph.Reason(hop.Other):     {Name: "not-hop", Help: "on b, and no frame of the last hop: dropped"},
}

const (
	ctrUp counter.ID = iota
	ctrUnacked
	ctrQueued
	ctrSent
	ctrResent
	ctrPauses
	ctrPaused
	ctrPausesA
	ctrTimeouts
	ctrRestarts
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrUp:       {Name: "up", Help: "1: both ends know of each other"},
	ctrUnacked:  {Name: "unacked-bytes", Help: "bytes that the other end has not acknowledged"},
	ctrQueued:   {Name: "queued", Help: "frames that wait for room, or for the end of a pause"},
	ctrSent:     {Name: "sent", Help: "frames sent to b for the first time"},
	ctrResent:   {Name: "resent", Help: "frames sent again"},
	ctrPauses:   {Name: "pauses-asked", Help: "pauses that the other end was asked for"},
	ctrPaused:   {Name: "pauses-obeyed", Help: "pauses that the other end asked for"},
	ctrPausesA:  {Name: "pauses-asked-a", Help: "pauses that the neighbour behind a was asked for"},
	ctrTimeouts: {Name: "timeouts", Help: "frames that were not acknowledged in time"},
	ctrRestarts: {Name: "restarts", Help: "starts of the other end that followed another"},
}

const (
	burst = 2 * packet.MaxBatch // largest number of frames to one output in a call
	retry = 10 * time.Microsecond
	tick  = 100 * time.Microsecond // how late a timer may run out when no frames come
)

// Kind declares hop.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "hop",
		Summary: "makes the cable at b reliable: frames arrive once and in order at the hop at its other end",
		Doc: `Frames of a go to b under EtherType 0x88B5 with a number and a CRC, 34 bytes
longer, and stay in a buffer of 64 KB until the other end acknowledges them. PFC
(IEEE 802.1Qbb) keeps either end from sending what the other has no room for.
The cable's MTU must be 34 bytes more than that of what is behind a.

A link has one order of frames, so one worker has it: the first, by whose queues all
frames leave. Others hand theirs to it. So one queue is enough, and best.

  quillon run --inline eth1,eth2 --nf hop,rate=25Gbit,delay=500ns`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Alone:    true,
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			p, err := build(args)
			if err != nil {
				return nil, err
			}
			if env.Worker != owner {
				return side{}, nil
			}
			return p, nil
		},
	}
}

// owner is the worker that has the link.
const owner = 0

// side is the app in a worker that does not have the link.
type side struct{}

// Wants implements graph.Wanter: nothing crosses as it is.
func (side) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// Push implements graph.App.
func (side) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		x.Tag = uint64(in)
		if !c.Hand(owner, x) {
			c.Drop(x, reasonCrowded)
		}
	}
}

// Hooks implements graph.Hooked.
func (x side) Hooks() graph.Hooks { return graph.Hooks{Taken: x.Taken} }

// Taken implements graph.Hooks. Workers hand frames only to the owner, so there are none.
func (side) Taken(c *graph.Ctx, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Drop(x, reasonCrowded)
	}
}

// fifo is a ring of Bufs.
type fifo struct {
	ring    []*packet.Buf
	head, n int
}

func (q *fifo) push(x *packet.Buf) bool {
	if q.n == len(q.ring) {
		return false
	}
	q.ring[(q.head+q.n)%len(q.ring)] = x
	q.n++
	return true
}

func (q *fifo) pop() *packet.Buf {
	x := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return x
}

type app struct {
	link    *hop.Link
	begun   bool
	room    int  // largest size in bytes of a frame to b
	waiting fifo // from a, until the buffer has room
	taken   fifo // from a, in the buffer, not sent yet
	out     fifo // to a, until the end of its pause

	until    clock.Time // end of a's pause, until which out waits
	pausing  bool       // the neighbour behind a was asked to pause
	again    clock.Time
	quantum  clock.Duration // length of the longest pause
	pausesA  uint64
	noBuffer bool
}

type settings struct {
	rate    uint64        `arg:"rate" unit:"bit" range:"1e6..1e13" help:"of the cable, as 1Gbit or 25Gbit: what a pause is counted in"`
	delay   time.Duration `arg:"delay" range:"0..1s" help:"of the cable and the ports, one way: the room above XOFF follows from it"`
	frame   int           `arg:"frame" range:"60..9600" help:"longest frame carried, in bytes without FCS"`
	timeout time.Duration `arg:"timeout" range:"1ns..1m" help:"how long an acknowledgement may take before all is sent again"`
	queue   int           `arg:"queue" range:"2..2^16" help:"frames of a that wait at most"`
	class   int           `arg:"class" range:"0..7" help:"class of PFC, 0 to 7"`
	mac     [6]byte       `arg:"mac" help:"source of frames of the link itself"`
}

var arguments = arg.Declare("hop", settings{
	rate: 100e9, delay: time.Microsecond, frame: 1518, timeout: time.Millisecond, queue: 256, class: 3, mac: [6]byte{2, 0, 0, 0, 0x88, 0xB5},
})

func build(args graph.Args) (*app, error) {
	s, r := arguments.Read(args)
	if err := r.Err(); err != nil {
		return nil, err
	}
	c := hop.Config{Epoch: 1, Rate: s.rate, Delay: s.delay, Frame: s.frame, Timeout: s.timeout, Class: s.class, MAC: s.mac}
	l, err := hop.New(c)
	if err != nil {
		return nil, err
	}
	const shortest = 14
	p := &app{link: l, room: c.Frame + hop.Overhead, again: clock.Never}
	p.waiting.ring = make([]*packet.Buf, s.queue)
	p.taken.ring = make([]*packet.Buf, hop.Buffer/shortest+1)
	p.out.ring = make([]*packet.Buf, l.Queue/shortest+1)
	p.quantum = time.Duration(math.MaxUint16 * 512 * uint64(time.Second) / c.Rate)
	return p, nil
}

// Wants implements graph.Wanter: nothing crosses as it is.
func (p *app) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// Held implements graph.Holder.
func (p *app) Held() int { return p.waiting.n + p.taken.n + p.out.n }

// Report implements graph.Reporter.
func (p *app) Report() any {
	return struct {
		Up    bool      `json:"up"`
		Epoch uint64    `json:"epoch"`
		Stats hop.Stats `json:"stats"`
	}{p.link.Up(), p.link.Epoch, p.link.Stats()}
}

// begin takes the time of the first breath as the epoch.
func (p *app) begin(now clock.Time) {
	if !p.begun {
		p.begun = true
		p.link.Epoch = max(1, uint64(now))
	}
}

// Push implements graph.App.
func (p *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	p.begin(c.Now())
	if in == 0 {
		p.release(c)
		for _, x := range b.Bufs() {
			p.take(c, x)
		}
	} else {
		for _, x := range b.Bufs() {
			p.receive(c, x)
		}
	}
	p.pump(c)
}

// Hooks implements graph.Hooked.
func (p *app) Hooks() graph.Hooks { return graph.Hooks{Taken: p.Taken} }

// Taken implements graph.Hooks: it handles frames of other workers' queues.
func (p *app) Taken(c *graph.Ctx, b *packet.Batch) {
	p.begin(c.Now())
	p.release(c)
	for _, x := range b.Bufs() {
		in := x.Tag
		x.Tag = 0
		if in == 0 {
			p.take(c, x)
		} else {
			p.receive(c, x)
		}
	}
	p.pump(c)
}

// take handles a frame from a.
func (p *app) take(c *graph.Ctx, x *packet.Buf) {
	if q, ok := hop.DecodePause(x.Bytes(), p.link.Class); ok {
		p.until = c.Now().Add(p.quantum * time.Duration(q) / math.MaxUint16)
		c.Drop(x, reasonEvents+graph.Reason(hop.Pause))
		return
	}
	switch {
	case !p.link.Fits(x.Len()) || len(x.Mem()) < p.room:
		c.Drop(x, reasonTooLong)
	case p.waiting.n == 0 && p.link.Send(x.Bytes()):
		p.taken.push(x) // taken has room for as many frames as the buffer
	case !p.waiting.push(x):
		c.Drop(x, reasonFull)
	}
}

// receive handles a frame from b.
func (p *app) receive(c *graph.Ctx, x *packet.Buf) {
	f, ev := p.link.Input(c.Now(), x.Bytes())
	if ev != hop.Deliver {
		c.Drop(x, reasonEvents+graph.Reason(ev))
		return
	}
	x.SetFrame(int(x.Off())+hop.Overhead, len(f))
	if p.out.n == 0 && c.Now() >= p.until {
		p.link.Consumed(len(f))
		c.Mark(x, packet.Rewritten, reasonEvents+graph.Reason(hop.Deliver))
		c.Emit(0, x)
		return
	}
	p.out.push(x) // out has room for all frames that the link delivers before Consumed
}

// release sends frames that waited for the end of a's pause.
func (p *app) release(c *graph.Ctx) {
	for n := burst; p.out.n > 0 && n > 0 && c.Now() >= p.until; n-- {
		x := p.out.pop()
		p.link.Consumed(x.Len())
		c.Mark(x, packet.Rewritten, reasonEvents+graph.Reason(hop.Deliver))
		c.Emit(0, x)
	}
}

// Tick implements graph.Ticker.
func (p *app) Tick(c *graph.Ctx) clock.Time {
	p.begin(c.Now())
	p.release(c)
	p.pump(c)
	at := p.link.Next(c.Now())
	if p.out.n > 0 {
		at = min(at, p.until)
	}
	if p.pausing {
		at = min(at, p.again)
	}
	if p.noBuffer {
		return max(at, c.Now().Add(retry))
	}
	// Until the next tick frames may come, and set timers.
	return max(c.Now()+1, min(at, c.Now().Add(min(tick, p.quantum/4, p.link.Timeout))))
}

// pump sends frames to b, as many as may be sent, and gives waiting frames to the link.
func (p *app) pump(c *graph.Ctx) {
	now := c.Now()
	p.noBuffer = false
	for n := burst; n > 0; n-- {
		for p.waiting.n > 0 && p.link.Send(p.waiting.ring[p.waiting.head].Bytes()) {
			p.taken.push(p.waiting.pop())
		}
		var x *packet.Buf
		switch p.link.Pending(now) {
		case hop.Nothing:
			p.ask(c)
			return
		case hop.First:
			x = p.taken.pop()
			x.Verdict = packet.Rewritten
		default:
			if x = c.Get(); x != nil && len(x.Mem()) < p.room {
				c.Discard(x)
				x = nil
			}
		}
		if x == nil {
			p.noBuffer = true
			break
		}
		off := min(packet.Headroom, len(x.Mem())-p.room)
		x.SetFrame(off, p.room)
		x.SetFrame(off, p.link.Poll(now, x.Bytes()))
		c.Emit(1, x)
	}
	p.ask(c)
}

// ask asks the neighbour behind a to pause, or to go on, and sets the counters.
func (p *app) ask(c *graph.Ctx) {
	now := c.Now()
	was := p.pausing
	switch {
	case p.waiting.n > len(p.waiting.ring)/2:
		p.pausing = true
	case p.waiting.n <= len(p.waiting.ring)/4:
		p.pausing = false
	}
	if p.pausing != was || p.pausing && now >= p.again {
		if x := c.Get(); x != nil && len(x.Mem()) >= hop.MinFrame {
			q := uint16(0)
			if p.pausing {
				q = math.MaxUint16
				p.pausesA++
			}
			x.SetFrame(0, hop.MinFrame)
			hop.EncodePause(x.Bytes(), p.link.MAC, p.link.Class, q)
			c.Emit(0, x)
			p.again = now.Add(p.quantum / 2)
		} else if x != nil {
			c.Discard(x)
		} else {
			p.pausing = was
			p.again = now.Add(retry)
		}
	}
	s := p.link.Stats()
	up := uint64(0)
	if p.link.Up() {
		up = 1
	}
	c.Set(ctrUp, up)
	c.Set(ctrUnacked, uint64(s.Unacked))
	c.Set(ctrQueued, uint64(p.waiting.n+p.out.n))
	c.Set(ctrSent, s.Sent)
	c.Set(ctrResent, s.Resent)
	c.Set(ctrPauses, s.Pauses)
	c.Set(ctrPaused, s.Paused)
	c.Set(ctrPausesA, p.pausesA)
	c.Set(ctrTimeouts, s.Timeouts)
	c.Set(ctrRestarts, s.Restarts)
}

// Stop implements graph.Holder. It sends the frames that were delivered, and drops all others.
func (p *app) Stop(c *graph.Ctx) {
	for p.out.n > 0 {
		c.Emit(0, p.out.pop())
	}
	for p.taken.n > 0 {
		c.Drop(p.taken.pop(), reasonGaveUp)
	}
	for p.waiting.n > 0 {
		c.Drop(p.waiting.pop(), reasonGaveUp)
	}
}
