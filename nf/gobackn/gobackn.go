// Package gobackn is Clio's go-back-N transport as a function in the network, for devices without a transport. It
// handles many sessions, of many clients and devices.
//
//	clients ══ network, frames with go-back-N headers ══ gobackn ── last hop, plain frames ── devices
//
// It terminates the transport: it acknowledges what clients send, gives that to the device in order and once, and
// keeps the device's answers until the client has acknowledged them. It answers requests to open and close
// sessions itself. The last hop must not lose frames, because nobody would send them again. Package gbn describes
// the protocol, its source, and what was chosen here.
//
// Workers share the sessions, and take turns at them for a batch (nf/turn).
package gobackn

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/turn"
)

// Reasons are gbn's verdicts, by number.
var reasons = [gbn.NumVerdicts]counter.Def{
	gbn.PassedOther:     {Name: "not-clio", Help: "not Clio's, or not of a device that is served (serve=): passed"},
	gbn.PassedFragment:  {Name: "fragment", Help: "an IP fragment from or to Clio's port: passed"},
	gbn.PassedMalformed: {Name: "malformed-answer", Help: "from a device, and a length contradicts another: passed"},
	gbn.Delivered:       {Name: "delivered", Help: "came in its turn: given to the device"},
	gbn.Unreliable:      {Name: "unreliable", Help: "of session 0, or of no session: passed with its header taken away, or added"},
	gbn.Sent:            {Name: "sent", Help: "from a device, numbered, sent or waiting for the window"},
	gbn.Opened:          {Name: "opened", Help: "a request to open a session was granted"},
	gbn.Closed:          {Name: "closed", Help: "a request to close a session was answered"},
	gbn.Refused:         {Name: "refused", Help: "a request to open a session was refused: all are in use (sessions=)"},
	gbn.Crowded:         {Name: "refused-client", Help: "a request to open a session was refused: its sender's address has too many (per-client=)"},
	gbn.Behind:          {Name: "behind", Help: "came before: answered by an ACK"},
	gbn.Ahead:           {Name: "ahead", Help: "came before its turn: answered by a NACK"},
	gbn.TakenACK:        {Name: "ack", Help: "an ACK, heeded: taken out"},
	gbn.TakenNACK:       {Name: "nack", Help: "a NACK, heeded: taken out"},
	gbn.Stale:           {Name: "stale-ack", Help: "an ACK or a NACK of what is not on its way: dropped"},
	gbn.AheadMore:       {Name: "ahead-more", Help: "came before its turn, after a NACK: dropped"},
	gbn.NoSession:       {Name: "no-session", Help: "of a session that is not open, or not the sender's: dropped"},
	gbn.Damaged:         {Name: "damaged", Help: "a checksum is wrong: dropped"},
	gbn.Malformed:       {Name: "malformed", Help: "to Clio's port, and a length or the type is wrong: dropped"},
	gbn.TooBig:          {Name: "too-big", Help: "from a device, and longer than mtu= with the header, or the buffer has no room for that: dropped"},
	gbn.Full:            {Name: "full", Help: "from a device, and too many frames wait (backlog=) or are kept (hold=): dropped, and nobody sends it again"},
	gbn.Elsewhere:       {Name: "elsewhere", Help: "came by another worker than the one before it of its session, which may not have sent that yet: dropped, and comes again"},
	gbn.Moved:           {Name: "moved", Help: "from a device, waited, and another worker sent a copy of it: dropped"},
	gbn.GaveUp:          {Name: "gave-up", Help: "waited in a session that was closed, or given up (tries=): dropped"},
}

const (
	ctrSessions counter.ID = iota
	ctrKept
	ctrRetransmitted
	ctrTimeouts
	ctrGivenUp
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrSessions:      {Name: "sessions", Help: "sessions open now"},
	ctrKept:          {Name: "kept", Help: "frames kept now, because they wait or might have to be sent again"},
	ctrRetransmitted: {Name: "retransmitted", Help: "frames sent again"},
	ctrTimeouts:      {Name: "timeouts", Help: "times that a session waited for an ACK in vain"},
	ctrGivenUp:       {Name: "given-up", Help: "sessions given up (tries=)"},
}

// Kind returns the declaration of the network function "gobackn".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "gobackn",
		Summary: "ends Clio's go-back-N transport for devices that have none",
		Doc: `One port faces the network, where Clio's frames (UDP port 1234, IPv4) have
go-back-N headers, the other (devices=) plain devices. Frames of a session go to
the device once and in order, whatever the network loses, doubles or reorders;
answers are kept until they are acknowledged, and sent again. Sessions are opened
and closed by Clio's own requests, which are answered here. VLAN tags and UDP
checksums stay: a frame that has a checksum is checked. ECN, DSCP and TTL stay.

The last hop to the devices must be lossless. The longest value that fits is MTU
1500 less 64 bytes of a write request. All else passes, IPv6 and fragments, too.

    quillon run --inline eth1,eth2 --nf gobackn
    quillon replay --nf gobackn --in a=devices.pcap,b=clients.pcap -o out.pcap

Device behind eth1, network behind eth2. All workers know the same sessions. What one
client sends in a session comes by one worker, as NICs steer it; where it changes to
another, a frame that might overtake the one before it is dropped, and comes again.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects:  graph.Always(effect.Unknown),
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			return newApp(env, args)
		},
	}
}

// Wants implements graph.Wanter: no frame of Clio may cross without the app. A device's answer comes once, and a
// client cannot use it without its header.
func (a *app) Wants() port.Filter { return port.Filter{UDP: []uint16{clio.Port}, Closed: true} }

type settings struct {
	devices  int           `arg:"devices" words:"a b" help:"the port that faces the devices: a or b"`
	serve    []host        `arg:"serve" keep:"all" help:"addresses of devices, joined by +; frames of others pass. Needed where a switch floods frames to here"`
	window   int           `arg:"window" range:"1..2^31-1" help:"frames on their way to a client, a session: a power of two"`
	backlog  int           `arg:"backlog" range:"1..2^31-1" help:"frames that wait for the window, a session"`
	ackEvery int           `arg:"ack-every" range:"1..2^31-1" default:"100" help:"frames that one ACK is for; no more than the client's window"`
	ackDelay time.Duration `arg:"ack-delay" range:"1ns.." help:"an ACK waits so long for more frames"`
	timeout  time.Duration `arg:"timeout" range:"1ns.." help:"without an ACK for so long, frames are sent again"`
	tries    int           `arg:"tries" range:"1..2^31-1" help:"timeouts in a row until a session is given up"`
	sessions int           `arg:"sessions" range:"1..2^31-1" help:"sessions that can be open"`
	perPeer  int           `arg:"per-client" range:"1..2^31-1" default:"a half of sessions" help:"of these, of a client's address"`
	idle     time.Duration `arg:"idle" range:"1ns.." help:"a session without frames for so long makes room for another, when there is none; one that never had a frame does after a second"`
	hold     int           `arg:"hold" range:"1..2^31-1" help:"frames kept, of all sessions"`
	mtu      int           `arg:"mtu" range:"1..2^31-1" help:"longest IP datagram to the network"`
	tick     time.Duration `arg:"tick" range:"1us..10ms" help:"how exactly delays and timeouts are kept"`
}

var arguments = arg.Declare("gobackn", settings{
	window: 128, backlog: 128, ackDelay: 100 * time.Microsecond, timeout: 4 * time.Millisecond, tries: 64, sessions: clio.Sessions - 1,
	idle: 5 * time.Minute, hold: 4096, mtu: 1500, tick: 50 * time.Microsecond,
})

// host is the address of a device.
type host [4]byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *host) UnmarshalText(text []byte) error {
	ip, err := arg.ParseAddr(string(text))
	if err != nil || !ip.Is4() {
		return errors.New("want an IPv4 address")
	}
	*h = ip.As4()
	return nil
}

func newApp(env graph.Env, args graph.Args) (*app, error) {
	s, r := arguments.Read(args)
	if err := r.Err(); err != nil {
		return nil, err
	}
	a := &app{devices: s.devices, tick: s.tick, worker: env.Worker, workers: max(1, env.Workers)}
	c := gbn.Config{
		Workers: a.workers, Window: s.window, Backlog: s.backlog, AckEvery: s.ackEvery, AckDelay: s.ackDelay, Timeout: s.timeout, Tries: s.tries,
		Sessions: s.sessions, PerPeer: s.perPeer, Idle: s.idle, Hold: s.hold, MTU: s.mtu,
	}
	for _, h := range s.serve {
		c.Devices = append(c.Devices, h)
	}
	c.AckEvery = cmp.Or(c.AckEvery, min(100, c.Window))
	server, err := gbn.NewServer(c)
	if err != nil {
		return nil, fmt.Errorf("gobackn: %w", err)
	}
	mk := func() any {
		st := &state{turn: turn.Shared{Alone: a.workers == 1}, server: server, breath: make([]clock.Time, a.workers), back: make([][]returned, a.workers)}
		for w := range st.back {
			if a.workers > 1 {
				st.back[w] = make([]returned, 0, mostBack)
			}
		}
		return st
	}
	if a.workers == 1 {
		a.state = mk().(*state)
	} else {
		a.state = env.Share(mk).(*state)
	}
	return a, nil
}

// state is what the instances of all workers share. Only a worker that has the turn may use it.
type state struct {
	turn   turn.Shared
	server *gbn.Server
	breath []clock.Time // that each worker is in
	back   [][]returned // frames that each has to give back
	shown  [ctrKept + 1]int
	stats  gbn.Stats // counted so far
}

// mostBack is the number of frames for a worker to give back that fit without an allocation.
const mostBack = 4096

// returned is a frame that its worker must give back: by Discard (made), or by Drop with verdict v.
type returned struct {
	b    *packet.Buf
	made bool
	v    gbn.Verdict
}

// app is the instance of one worker. It implements gbn.Out; c is the Ctx of the current breath.
type app struct {
	*state
	devices         int
	tick            time.Duration
	worker, workers int
	c               *graph.Ctx
	batch           [packet.MaxBatch]gbn.Seen
	verdicts        [packet.MaxBatch]gbn.Verdict
}

// Get implements gbn.Out.
func (a *app) Get() *packet.Buf { return a.c.Get() }

// Discard implements gbn.Out.
func (a *app) Discard(b *packet.Buf) { a.c.Discard(b) }

// Send implements gbn.Out.
func (a *app) Send(b *packet.Buf) {
	if b.Verdict != packet.Generated {
		a.c.Mark(b, packet.Rewritten, graph.Reason(gbn.Sent))
	}
	a.c.Emit(1-a.devices, b)
}

// Drop implements gbn.Out.
func (a *app) Drop(b *packet.Buf, v gbn.Verdict) { a.c.Drop(b, graph.Reason(v)) }

// Worker implements gbn.Out.
func (a *app) Worker() int { return a.worker }

// Return implements gbn.Out.
func (a *app) Return(b *packet.Buf, worker int, made bool, v gbn.Verdict) {
	a.back[worker] = append(a.back[worker], returned{b, made, v})
}

// Sent implements gbn.Out. The frames that a worker emits in a breath have left it when its next breath begins.
func (a *app) Sent(worker int, at clock.Time) bool { return a.breath[worker] > at }

// begin runs at the start of a worker's turn: it gives back the frames that other workers have returned.
func (a *app) begin(c *graph.Ctx) {
	a.c = c
	if a.workers == 1 {
		return
	}
	a.breath[a.worker] = c.Now()
	for i, r := range a.back[a.worker] {
		if r.made {
			c.Discard(r.b)
		} else {
			c.Drop(r.b, graph.Reason(r.v))
		}
		a.back[a.worker][i] = returned{}
	}
	a.back[a.worker] = a.back[a.worker][:0]
}

// Push implements graph.App. With several workers, checksums are verified before the worker's turn, and those of
// frames to devices are computed after it.
func (a *app) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	if a.workers == 1 {
		a.begin(c)
		x, v := &a.batch[0], &a.verdicts[0]
		for _, b := range batch.Bufs() {
			a.server.See(b.Bytes(), in != a.devices, x)
			*v = a.decide(c, in, b, x)
			a.end(c, in, b, x, *v)
		}
		a.gauge(c)
		c.Wake(a.wants(c.Now()))
		return
	}
	asks := false
	for i, b := range batch.Bufs() {
		x := &a.batch[i]
		a.server.See(b.Bytes(), in != a.devices, x)
		asks = asks || x.Asks()
	}
	if asks {
		a.turn.Take()
		a.begin(c)
		for i, b := range batch.Bufs() {
			a.verdicts[i] = a.decide(c, in, b, &a.batch[i])
		}
		a.gauge(c)
		c.Wake(a.wants(c.Now()))
		a.turn.Give()
	} else {
		for i := range batch.Bufs() {
			a.verdicts[i] = a.batch[i].Verdict()
		}
	}
	for i, b := range batch.Bufs() {
		if a.verdicts[i] == gbn.Delivered {
			c.Wake(c.Now().Add(a.tick)) // then it has left: others may go on with its session
		}
		a.end(c, in, b, &a.batch[i], a.verdicts[i])
	}
}

// decide returns what becomes of a frame that was seen.
func (a *app) decide(c *graph.Ctx, in int, b *packet.Buf, x *gbn.Seen) gbn.Verdict {
	if in == a.devices {
		return a.server.ToNetSeen(c.Now(), b, x, a)
	}
	return a.server.FromNetSeen(c.Now(), b, x, a)
}

// end emits or drops a frame that the transport has not taken.
func (a *app) end(c *graph.Ctx, in int, b *packet.Buf, x *gbn.Seen, v gbn.Verdict) {
	out := 1 - in
	switch {
	case v == gbn.Sent:
		return
	case v.Drops():
		c.Drop(b, graph.Reason(v))
		return
	case v.Passes():
		c.Mark(b, b.Verdict, graph.Reason(v))
	default:
		if v.Replies() {
			out = in
		} else if in != a.devices {
			a.server.Unwrap(b, x, v)
		}
		c.Mark(b, packet.Rewritten, graph.Reason(v))
	}
	c.Emit(out, b)
}

// wants returns when Tick is due: not for each deadline separately, so that one Tick handles several. A worker
// whose frames are kept also checks whether other workers have returned them.
func (a *app) wants(now clock.Time) clock.Time {
	at := a.server.Deadline()
	if a.workers > 1 && a.heldHere() > 0 {
		at = min(at, now)
	}
	if at == clock.Never {
		return at
	}
	return max(at, now.Add(a.tick))
}

// Tick implements graph.Ticker.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	a.turn.Take()
	defer a.turn.Give()
	a.begin(c)
	a.server.Tick(c.Now(), a)
	a.gauge(c)
	return a.wants(c.Now())
}

// Held implements graph.Holder.
func (a *app) Held() int {
	a.turn.Take()
	defer a.turn.Give()
	return a.heldHere()
}

// heldHere returns how many of this worker's frames are kept, or wait to be given back.
func (a *app) heldHere() int { return a.server.HeldBy(a.worker) + len(a.back[a.worker]) }

// Stop implements graph.Holder: it closes all sessions, and drops the frames that wait.
func (a *app) Stop(c *graph.Ctx) {
	a.turn.Take()
	defer a.turn.Give()
	a.begin(c)
	a.server.Stop(a)
	a.begin(c)
	a.gauge(c)
}

// gauge adds to the counters what has changed since the last call by any worker. The sum over all workers is the
// state.
func (a *app) gauge(c *graph.Ctx) {
	for id, n := range [...]int{ctrSessions: a.server.Open(), ctrKept: a.server.Held()} {
		if n != a.shown[id] {
			c.Count(counter.ID(id), uint64(n-a.shown[id]))
			a.shown[id] = n
		}
	}
	if s := a.server.Stats(); s != a.stats {
		c.Count(ctrRetransmitted, s.Retransmitted-a.stats.Retransmitted)
		c.Count(ctrTimeouts, s.Timeouts-a.stats.Timeouts)
		c.Count(ctrGivenUp, s.GivenUp-a.stats.GivenUp)
		a.stats = s
	}
}
