package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/hop"
)

// Load is what endpoints offer together: bits a second, by intervals.
//
// It is closed: endpoints send nothing while their board asks them to pause (PFC, IEEE 802.1Qbb). A pause has a limit
// (hop.PauseLimit): what is dropped behind it comes again when something else has left.
// All that they would have sent comes later by as much.
type Load struct {
	Interval time.Duration
	Rate     []float64
}

// Mean and Peak are of all intervals.
func (l *Load) Mean() float64 {
	sum := 0.0
	for _, r := range l.Rate {
		sum += r
	}
	return sum / float64(len(l.Rate))
}

// Peak is the greatest rate.
func (l *Load) Peak() float64 {
	peak := 0.0
	for _, r := range l.Rate {
		peak = math.Max(peak, r)
	}
	return peak
}

// Static provides so many regions, of a capacity in bits a second, all the time.
func (l *Load) Static(capacity float64, regions int) Outcome {
	have, took := capacity*float64(regions), 0.0
	for _, r := range l.Rate {
		took += math.Max(1, r/have)
	}
	took /= float64(len(l.Rate))
	return Outcome{Slowdown: took - 1, Regions: float64(regions) * took}
}

// Instant provides in every interval what it needs.
func (l *Load) Instant(capacity float64) Outcome {
	sum := 0.0
	for _, r := range l.Rate {
		sum += math.Ceil(r / capacity * (1 - 1e-9))
	}
	return Outcome{Regions: sum / float64(len(l.Rate))}
}

// ScaledConfig is a board, or a pool of two, whose regions follow a load.
type ScaledConfig struct {
	Regions  int     // of each board
	Capacity float64 // of a region, bits a second
	// Tasks is how many the load goes through, one after the other, each in regions of its own; 0: one.
	Tasks    int
	Topology Topology
	// Store is the packet store, in bytes; 0: the prototype's.
	Store int
	// Piece is how long a region works on the pieces in which the load is played; 0: 100 µs. Rates are
	// made smaller so that a piece is one frame: a region's monitors, PR and the store have the same times.
	Piece time.Duration
	// Victims is how many percent of descheduled chains stay where they are.
	Victims int
	// Others want a region for the part Taken of each Turn, in which they send as much as it can do. Their function
	// runs in no region when they have not sent for a while, and is launched by what they send.
	Taken float64
	Turn  time.Duration
	// Background is what others send through the load's own tasks, bits a second, once it has run for Lead. What it
	// took before does not count.
	Background float64
	Lead       time.Duration
	// Marked is of endpoints that the board does not ask to pause: it marks what they send. nil: they pause.
	Marked *DCTCP
	Seed   uint64
}

// Outcome is what a load took.
type Outcome struct {
	// Slowdown is by how much longer the load took: 0 is not at all.
	Slowdown float64
	// Regions is their time over the load's own length: the mean number that is paid for. Of a
	// region that others use as well it is the load's part of the work.
	Regions float64
	// Most is how many regions have been paid for at once.
	Most int
	// Away is the part of the load that the second board has done.
	Away float64
}

const (
	pieceBytes = 1000
	// loadEpoch is how often the board divides and measures here: often enough for its monitors, of 5 ms.
	loadEpoch = 200 * time.Microsecond
	// othersIdle is after which time without packets the others' function is descheduled.
	othersIdle = 5 * time.Millisecond
	// paidEvery is how often it is looked at whose a region is.
	paidEvery = 10 * time.Millisecond
	// meeting is how long a pool has before the load: until all have heard of each other, and a switch has its
	// DAGs launched.
	meeting = 500 * time.Millisecond
	// loadFlows is how many flows a load has.
	loadFlows = 64
	firstFlow = 1024 // source port of the first one
	// fewest is how many pieces a packet store holds at least for each region. A board asks for a pause when who sends has more than
	// half of what is left, a third of the store: two pieces for each region, or it is idle between them.
	fewest = 6
)

// Kinds of events of a load.
const (
	loadSend uint32 = iota
	loadOthers
	loadBackground
	loadPaid
	loadPause // a frame that asks for a pause is at endpoints: who, << 16, and its quanta
	loadGoOn  // a pause may have ended
	loadHeard // a sender hears of a packet: flow, << 2, it was marked, << 1, it was lost
)

// loaded is a load under way.
type loaded struct {
	rack
	id      uint32
	c       ScaledConfig
	l       *Load
	piece   float64 // bits of the load
	start   Time
	at      float64       // of the load, in intervals
	before  float64       // of it, not counted
	late    Time          // for how long endpoints have waited
	since   Time          // they wait; never: they do not
	senders []sender      // that react to marks
	turn    int           // the sender that goes first
	again   int           // packets that were lost, and come again
	lossy   bool          // one was lost, and nothing has left since
	obey    [2]hop.Obeyer // the load's endpoints, and others
	store   int           // pieces that a board's packet store holds
	window  int           // pieces that may be inside at once; a pool's boards ask nobody to pause for what is at another board
	inside  int
	ends    bool
	sent    uint16
	frames  [2][]byte
	worked  [2]worked
	most    int
}

// worked is what a board has done.
type worked struct {
	pieces [2]float64 // of the load, of others through its tasks
	paid   float64    // regions of the load's tasks, in ns
	before []float64  // of each region
}

// Scaled runs a load on boards.
func (l *Load) Scaled(ctx context.Context, c ScaledConfig) (Outcome, error) {
	c.Piece = cmp.Or(c.Piece, 100*time.Microsecond)
	c.Store = cmp.Or(c.Store, HTG9200().Store)
	c.Tasks = max(c.Tasks, 1)
	if l.Interval <= 0 || len(l.Rate) == 0 || c.Regions < 1 || c.Capacity <= 0 {
		return Outcome{}, errors.New("sim: a load on a board has intervals, regions and their capacity")
	}
	r := &loaded{c: c, l: l, piece: c.Capacity * c.Piece.Seconds(), since: never}
	if c.Marked != nil {
		if err := c.Marked.check(); err != nil {
			return Outcome{}, fmt.Errorf("sim: %w", err)
		}
		r.senders = c.Marked.senders()
	}
	r.id = r.k.add(r)
	n := HTG9200()
	for i := range r.obey {
		r.obey[i] = hop.Obeyer{Rate: uint64(n.GbitPerSecond * 1e9), Limit: hop.PauseLimit}
	}
	r.store = min(max(int(float64(c.Store)*8/r.piece), fewest*c.Regions), n.Packets)
	if r.window = r.store; c.Topology == Single || c.Marked != nil {
		r.window = math.MaxInt
	}
	if err := r.prepare(); err != nil {
		return Outcome{}, fmt.Errorf("sim: %w", err)
	}
	r.start = r.k.now
	r.measure()
	r.next()
	if c.Taken > 0 {
		r.k.plan(r.start, r.id, loadOthers, 0, nil)
	}
	if c.Lead > 0 {
		r.k.plan(r.start+From(c.Lead), r.id, loadBackground, 0, nil)
	}
	r.k.plan(r.start+From(paidEvery), r.id, loadPaid, 0, nil)
	for n := 0; !r.ends && r.failed() == nil; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return Outcome{}, ctx.Err()
		}
		r.k.step()
	}
	r.count()
	if err := r.close(); err != nil {
		return Outcome{}, fmt.Errorf("sim: %w", err)
	}
	length := (float64(len(l.Rate)) - r.before) * float64(From(l.Interval))
	o := Outcome{Slowdown: float64(r.late) / length, Most: r.most}
	for i := range r.worked {
		w := &r.worked[i]
		if all := w.pieces[0] + w.pieces[1]; all > 0 {
			o.Regions += w.paid * w.pieces[0] / all / (length / float64(Nanosecond))
		}
	}
	o.Away = r.worked[1].pieces[0] / max(r.worked[0].pieces[0]+r.worked[1].pieces[0], 1)
	return o, nil
}

// measure begins to count.
func (r *loaded) measure() {
	r.count()
	r.start, r.late, r.before, r.most = r.start+r.late, 0, r.at, 0
	for i := range r.worked {
		w := &r.worked[i]
		w.pieces, w.paid = [2]float64{}, 0
	}
}

// othersTask is the task of those who want a region of their own.
const othersTask = "other"

// prepare makes the boards.
func (r *loaded) prepare() error {
	n := HTG9200()
	rate := int64(pieceBytes * 8 / r.c.Piece.Seconds())
	text := strings.Builder{}
	text.WriteString("tasks:\n")
	run := ""
	for i := range r.c.Tasks {
		fmt.Fprintf(&text, "  own%d: {kind: dummy, reads: [payload], writes: [payload], throughput: %dbit}\n", i, rate)
		run += fmt.Sprintf(" -> own%d", i)
	}
	run = strings.TrimPrefix(run, " -> ")
	fmt.Fprintf(&text, "  %s: {kind: dummy, throughput: %dbit}\ntenants: {own: {}, others: {}}\ndags: [{uid: 1, tenant: own, run: %s}", othersTask, rate, run)
	args := graph.Args{
		"fair": "off", "epoch": loadEpoch.String(), "flows": "1024", "victims": strconv.Itoa(r.c.Victims), "packets": strconv.Itoa(n.Packets),
		"port-rate": fmt.Sprint(int64(n.GbitPerSecond * 1e9)),
	}
	entrance := graph.Args{"lossless": "p0:0+p2:0", "store": strconv.Itoa(r.store * pieceBytes)}
	if r.senders != nil {
		args["fair"] = "on" // who has a share is marked, before packets are dropped, by what is measured in the board's own epochs
		delete(args, "epoch")
		delete(entrance, "lossless")
	}
	if r.c.Taken > 0 {
		run, args["idle"] = othersTask, othersIdle.String()
	}
	if r.c.Taken > 0 || r.c.Background > 0 {
		fmt.Fprintf(&text, ", {uid: 2, tenant: others, run: %s}", run)
	}
	text.WriteString("]\nrules: [{match: \"src:10.0.0.0\", dag: 1}")
	if r.c.Taken > 0 || r.c.Background > 0 {
		text.WriteString(", {match: \"src:10.0.0.1\", dag: 2}")
	}
	text.WriteString("]\n")
	err := r.build(&rackConfig{
		SNIC: n, topology: r.c.Topology, deployment: text.String(), regions: [2]int{r.c.Regions, r.c.Regions}, args: args, frames: frames{r.store + n.Packets + 1024, pieceBytes + 64}, entrance: entrance, seed: r.c.Seed,
		// A piece takes as long on a cable as the bits that it stands for.
		perByte: Time(r.piece / n.GbitPerSecond * float64(Nanosecond) / pieceBytes),
		around: func(i int) *body {
			return &body{send: r.left, drop: r.lost, meter: func(app graph.App, task string) graph.App {
				if i >= len(r.worked) || task != "own0" {
					return app
				}
				return &tallied{app, &r.worked[i]}
			}}
		},
	})
	if err != nil {
		return err
	}
	r.frames = [2][]byte{frameOf(0, pieceBytes), frameOf(1, pieceBytes)}
	if r.senders != nil {
		h := hdr.IPv4(r.frames[0][hdr.EthernetLen:])
		h.SetTOS(hdr.ECT0)
		h.UpdateChecksum()
	}
	switch {
	case r.c.Topology != Single:
		if err := r.begin(From(meeting) / 2); err != nil || r.c.Topology == Intermediate {
			return err
		}
		r.put(0) // its switch has what is used launched
		return r.begin(From(meeting))
	case r.c.Taken > 0: // who is not used is in no region
		return nil
	}
	return r.entry.load()
}

// put has a piece come in.
func (r *loaded) put(who int) {
	if who == 0 {
		r.inside++
	}
	r.sent++
	f := r.frames[who]
	flow := r.sent % loadFlows
	if who == 0 && r.senders != nil {
		flow = uint16(r.turn)
		r.senders[r.turn].send()
	}
	binary.BigEndian.PutUint16(f[34:], firstFlow+flow)
	port := portIn
	if who > 0 {
		port = portOthers
	}
	r.entry.receive(port, f)
}

// putOther has a piece of others come in, unless they are to pause: then they do not send it.
func (r *loaded) putOther() {
	if fromClock(r.obey[1].Until()) <= r.k.now {
		r.put(1)
	}
}

// next plans the next piece: when the load has brought so many bits.
func (r *loaded) next() {
	left := r.piece
	for left > 0 {
		i := int(r.at)
		if i >= len(r.l.Rate) {
			break
		}
		part := float64(i+1) - r.at
		bits := part * r.l.Rate[i] * r.l.Interval.Seconds()
		if bits > left {
			part *= left / bits
			r.at, left = r.at+part, 0
			break
		}
		r.at, left = float64(i+1), left-bits
	}
	r.k.plan(r.start+r.late+Time(r.at*float64(From(r.l.Interval))), r.id, loadSend, 0, nil)
}

// fire implements actor.
func (r *loaded) fire(kind uint32, arg uint64, _ *packet.Buf) {
	switch kind {
	case loadSend:
		switch {
		case r.at >= float64(len(r.l.Rate)) && r.again == 0:
			r.ends = true
		case r.waits():
			r.since = r.k.now
		case r.again > 0:
			r.again--
			r.put(0)
			r.k.plan(r.k.now, r.id, loadSend, 0, nil)
		default:
			r.put(0)
			r.next()
		}
	case loadOthers:
		turn := From(r.c.Turn)
		into := (r.k.now - r.start) % turn
		if taken := Time(r.c.Taken * float64(turn)); into >= taken {
			r.k.plan(r.k.now+turn-into, r.id, loadOthers, 0, nil)
			return
		}
		r.putOther()
		r.k.plan(r.k.now+From(r.c.Piece), r.id, loadOthers, 0, nil)
	case loadBackground:
		if r.before == 0 {
			r.measure()
		}
		if r.c.Background <= 0 {
			return
		}
		r.putOther()
		r.k.plan(r.k.now+Time(r.piece/r.c.Background*float64(Second)), r.id, loadBackground, 0, nil)
	case loadPause:
		r.obey[arg>>16].Hear(r.k.now.Clock(), uint16(arg))
		r.goOn()
	case loadHeard:
		s := &r.senders[arg>>2]
		if s.answer(arg&2 != 0, arg&1 != 0); arg&1 != 0 {
			r.again++
		}
		r.goOn()
	case loadGoOn:
		r.lossy = false
		r.goOn()
	case loadPaid:
		r.count()
		r.k.plan(r.k.now+From(paidEvery), r.id, loadPaid, 0, nil)
	}
}

// waits reports whether the endpoints are not to send now. An endpoint that waits for the end of a pause looks again then.
func (r *loaded) waits() bool {
	if r.senders != nil {
		for range r.senders {
			r.turn = (r.turn + 1) % len(r.senders)
			if r.senders[r.turn].may() {
				return false
			}
		}
		return true
	}
	until := fromClock(r.obey[0].Until())
	if until > r.k.now {
		r.k.plan(until, r.id, loadGoOn, 0, nil)
	}
	return until > r.k.now || r.inside >= r.window || r.lossy
}

// goOn has endpoints that waited send again, if they may.
func (r *loaded) goOn() {
	if r.since == never || r.waits() {
		return
	}
	r.late += r.k.now - r.since
	r.since = never
	r.k.plan(r.k.now, r.id, loadSend, 0, nil)
}

// left is a frame that the entry sends: a piece that is done, or one by which the board asks endpoints to pause.
func (r *loaded) left(port int, x *packet.Buf) {
	if q, ok := hop.DecodePause(x.Bytes(), 0); ok {
		n := HTG9200()
		r.k.plan(r.k.now+n.half()+From(Rack100G().Propagation), r.id, loadPause, uint64(port/portOthers)<<16|uint64(q), nil)
		return
	}
	if sourceOf(x) > 0 {
		return
	}
	r.inside--
	r.lossy = false
	if r.senders != nil {
		r.hear(x, isMarked(x), false)
		return
	}
	r.goOn()
}

// hear lets a sender know that its packet has arrived or was dropped.
func (r *loaded) hear(x *packet.Buf, marked, lost bool) {
	arg := uint64(binary.BigEndian.Uint16(x.Bytes()[34:])-firstFlow) << 2
	if marked {
		arg |= 2
	}
	if lost {
		arg |= 1
	}
	r.k.plan(r.k.now+From(r.c.Marked.RTT), r.id, loadHeard, arg, nil)
}

// lost is a piece that a board has dropped.
func (r *loaded) lost(x *packet.Buf) {
	switch {
	case sourceOf(x) > 0:
	case r.senders != nil:
		r.inside--
		r.hear(x, false, true)
	default:
		r.inside--
		r.again++
		if r.lossy = true; r.inside == 0 {
			r.k.plan(r.k.now+From(r.c.Piece), r.id, loadGoOn, 0, nil)
		}
	}
}

// count adds what regions have cost since the last time, those that have the load's tasks.
func (r *loaded) count() {
	now, used := float64(r.k.now/Nanosecond), 0
	for b := range r.boards {
		w, v := &r.worked[b], r.boards[b].view()
		w.before = append(w.before, make([]float64, len(v.Regions)-len(w.before))...)
		for i, x := range v.Regions {
			paid := (x.Accessed + x.Loading + x.Stopping) * now
			if d := paid - w.before[i]; x.Chain != othersTask && d > 0 {
				w.paid += d
				used++
			}
			w.before[i] = paid
		}
	}
	r.most = max(r.most, used)
}

// tallied is a task whose pieces are counted.
type tallied struct {
	graph.App
	w *worked
}

func (a *tallied) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		a.w.pieces[min(sourceOf(x), 1)]++
	}
	a.App.Push(c, in, b)
}
