package replicate

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/turn"
)

const (
	reasonOther graph.Reason = iota
	reasonFragment
	reasonMalformed
	reasonPlain
	reasonCopied
	reasonJoined
	reasonRepeated
	reasonLate
	reasonDamaged
	reasonBusy
	reasonMoved
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonOther:     {Name: "not-keys", Help: "not of Clio's key/value store: passed"},
	reasonFragment:  {Name: "fragment", Help: "an IP fragment from or to Clio's port: passed"},
	reasonMalformed: {Name: "malformed", Help: "to or from Clio's port, and a length contradicts another: passed"},
	reasonPlain:     {Name: "plain", Help: "a read, or a write that asks for no copies, or an answer to one: passed"},
	reasonCopied:    {Name: "copied", Help: "a write that was sent to the devices"},
	reasonJoined:    {Name: "joined", Help: "a device's answer to a copied write: taken out"},
	reasonRepeated:  {Name: "repeated", Help: "a client repeats a write that is under way: dropped"},
	reasonLate:      {Name: "late", Help: "a device's answer to a copied write that nobody waits for: dropped"},
	reasonDamaged:   {Name: "damaged", Help: "of the key/value store, and a checksum is wrong: dropped"},
	reasonBusy:      {Name: "busy", Help: "a write turned into the answer Busy: the primary is down, or there is no place (pending=) or buffer"},
	reasonMoved:     {Name: "moved", Help: "a write that was held, and that another worker went on with a copy of: dropped"},
}

const (
	ctrPending counter.ID = iota
	ctrWaiting
	ctrAnswered
	ctrDegraded
	ctrUnknown
	ctrDiverged
	ctrRetransmitted
	ctrDown
	ctrLost
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrPending:       {Name: "pending", Help: "writes under way now, with those that wait"},
	ctrWaiting:       {Name: "waiting", Help: "writes that wait now for another of their key"},
	ctrAnswered:      {Name: "answered", Help: "copied writes that were answered"},
	ctrDegraded:      {Name: "degraded", Help: "of those, with fewer copies than there are devices"},
	ctrUnknown:       {Name: "unknown", Help: "of those, with Unknown: the primary died, or could not be joined by another"},
	ctrDiverged:      {Name: "diverged", Help: "of those, answered differently by devices: copies may differ"},
	ctrRetransmitted: {Name: "retransmitted", Help: "copies that were sent again"},
	ctrDown:          {Name: "down", Help: "devices that are down now"},
	ctrLost:          {Name: "unanswered", Help: "of those answered, whose client was not told for want of a buffer: it asks again"},
}

// Kind returns the declaration of the network function "replicate".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "replicate",
		Summary: "copies writes of Clio's key/value store to K devices, and joins their answers",
		Doc: `One port faces Clio's devices (devices=), the other clients, or kvcache or gobackn.
A write with the replicate flag to the address of the first of replicas= is sent to
all of them; its client gets one answer, when all have answered. Of each key one
write is under way at a time. All else passes: reads go to the first device.

A device that does not answer gets the write again, and is down when that does not
help: then writes are answered with the copies that there are (degraded), or, when
it is the first, with Unknown and Busy. Setting revive= brings all up.

Frames have no go-back-N headers. UDP checksums and VLAN tags stay.

    quillon run --inline eth1,eth2 --nf replicate,replicas=192.168.1.10@02:00:00:00:00:10+192.168.1.11@02:00:00:00:00:11
    quillon set replicate revive=1
    quillon replay --nf replicate,replicas=192.168.1.10@02:00:00:00:00:10 --in a=devices.pcap,b=clients.pcap -o out.pcap

Devices behind eth1, clients behind eth2. All workers know the same writes.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects:  graph.Always(effect.Unknown),
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			a := &app{worker: env.Worker, workers: max(1, env.Workers)}
			mk := func() any {
				return &state{turn: turn.Shared{Alone: a.workers == 1}, settings: s, ops: newOps(s.pending), up: 1<<len(s.replicas) - 1, shelf: hold.New[struct{}](s.pending, a.workers)}
			}
			if a.workers == 1 {
				a.state = mk().(*state)
			} else {
				a.state = env.Share(mk).(*state)
			}
			return a, nil
		},
	}
}

type settings struct {
	replicas replicas      `arg:"replicas" need:"such as 192.168.1.10@02:00:00:00:00:10+192.168.1.11@02:00:00:00:00:11" help:"IP@MAC of the devices, joined by +, at most 8; the first is the primary; needed"`
	devices  int           `arg:"devices" words:"a b" help:"the port that faces the devices: a or b"`
	timeout  time.Duration `arg:"timeout" range:"1ns.." help:"a device that has not answered for so long gets the write again"`
	tries    int           `arg:"tries" range:"1..2^31-1" help:"how often, until it is down"`
	pending  int           `arg:"pending" range:"1..2^20" help:"writes under way and waiting"`
	revive   int           `arg:"revive" help:"another number than before says that all devices hold the same: none is down any more"`
	tick     time.Duration `arg:"tick" range:"1us.." help:"how exactly the timeout is kept"`
}

var arguments = arg.Declare("replicate", settings{timeout: time.Millisecond, tries: 16, pending: 1024, tick: 100 * time.Microsecond})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	return s, r.Err()
}

type replicas []clio.End

// UnmarshalText reads IP@MAC+IP@MAC.
func (e *replicas) UnmarshalText(text []byte) (err error) {
	*e, err = parseReplicas(string(text))
	return err
}

func parseReplicas(v string) (all []clio.End, err error) {
	for x := range arg.Items(v, "+") {
		ip, mac, ok := strings.Cut(x, "@")
		a, err := arg.ParseAddr(ip)
		m, merr := arg.ParseMAC(mac)
		if !ok || err != nil || !a.Is4() || merr != nil {
			return nil, fmt.Errorf("%q: want IP@MAC, with an IPv4 address", x)
		}
		e := clio.End{MAC: m, IP: a.As4(), Port: clio.Port}
		if slices.ContainsFunc(all, func(o clio.End) bool { return o.IP == e.IP }) {
			return nil, fmt.Errorf("%s is there twice", a)
		}
		all = append(all, e)
	}
	if len(all) > 8 {
		return nil, fmt.Errorf("want at most 8 devices")
	}
	return all, nil
}

// state is what the instances of all workers share. Only a worker that has the turn may use it.
type state struct {
	turn turn.Shared
	settings
	ops   ops
	shelf hold.Shelf[struct{}] // of writes
	up    uint8                // bit i: replica i is not down
	shown [numCounters]int
}

// app is the instance of one worker.
type app struct {
	*state
	worker, workers int
	batch           [packet.MaxBatch]looked
}

// looked is what look has found out about a frame, and what decide has decided.
type looked struct {
	f      clio.Frame
	asks   bool // for other writes of its key, or for what waits for it: it takes the worker's turn
	reason graph.Reason
	op     clio.Opcode
	status clio.Status
	from   int // replica
	req    request
	key    key
	copies bool
}

// Wants implements graph.Wanter: no frame of Clio may cross without the app, because a write would then be on the
// first device only.
func (a *app) Wants() port.Filter { return port.Filter{UDP: []uint16{clio.Port}, Closed: true} }

// Takes implements graph.Reconfigurer.
func (a *app) Takes(args graph.Args) bool {
	s, err := parse(args)
	return err == nil && slices.Equal(s.replicas, a.replicas) && s.devices == a.devices && s.pending == a.pending
}

// Reconfigure implements graph.Reconfigurer. If revive= has another number, all devices are up again.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	a.turn.Take()
	defer a.turn.Give()
	if s.revive != a.revive {
		a.up = 1<<len(s.replicas) - 1
	}
	a.timeout, a.tick, a.tries, a.revive = s.timeout, s.tick, s.tries, s.revive
	return nil
}

// Held implements graph.Holder.
func (a *app) Held() int {
	a.turn.Take()
	defer a.turn.Give()
	return a.shelf.Held(a.worker)
}

// Push implements graph.App. With several workers, frames are parsed before the worker's turn.
func (a *app) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	if a.workers == 1 {
		l := &a.batch[0]
		for _, x := range batch.Bufs() {
			a.look(l, in, x.Bytes())
			if l.asks {
				l.reason = a.decide(c, l, in, x)
			}
			a.end(c, l, in, x)
		}
		a.gauge(c)
		c.Wake(a.wants(c.Now()))
		return
	}
	asks := false
	for i, x := range batch.Bufs() {
		a.look(&a.batch[i], in, x.Bytes())
		asks = asks || a.batch[i].asks
	}
	if asks {
		a.turn.Take()
		a.shelf.Return(c, a.worker, reasonMoved)
		for i, x := range batch.Bufs() {
			if l := &a.batch[i]; l.asks {
				l.reason = a.decide(c, l, in, x)
			}
		}
		a.gauge(c)
		at := a.wants(c.Now())
		a.turn.Give()
		c.Wake(at)
	}
	for i, x := range batch.Bufs() {
		a.end(c, &a.batch[i], in, x)
	}
}

// end emits, drops or answers a frame that is not held.
func (a *app) end(c *graph.Ctx, l *looked, in int, x *packet.Buf) {
	switch l.reason {
	case reasonCopied:
	case reasonJoined, reasonRepeated, reasonLate, reasonDamaged:
		c.Drop(x, l.reason)
	case reasonBusy:
		a.reply(c, x, clio.Busy)
	default:
		c.Mark(x, x.Verdict, l.reason)
		c.Emit(1-in, x)
	}
}

// unread are the reasons of frames that are no messages of the key/value store.
var unread = [clio.Message]graph.Reason{clio.Other: reasonOther, clio.Fragment: reasonFragment, clio.Malformed: reasonMalformed}

// look finds out what a frame is; it does not use the shared state.
func (a *app) look(l *looked, in int, p []byte) {
	f := &l.f
	l.asks = false
	if k := clio.ParseKeys(p, in == a.devices, f); k != clio.Message {
		l.reason = unread[k]
		return
	}
	h := clio.Lego(p[f.Lego:])
	src, dst := f.Src(p), f.Dst(p)
	l.op, l.copies = h.Opcode(), h.Replicate()
	l.reason = reasonPlain
	if in == a.devices {
		l.from = slices.IndexFunc(a.replicas, func(e clio.End) bool { return e.IP == src.IP })
		if l.from < 0 {
			return
		}
		l.status = h.Status()
		l.req = request{dst.IP, dst.Port, h.ID(), f.VLANs()}
	} else {
		if !l.op.Writes() || !l.copies || dst.IP != a.replicas[0].IP {
			return
		}
		q := clio.Request(p[f.Op:])
		l.req, l.key = request{src.IP, src.Port, h.ID(), f.VLANs()}, key{q.Key(), f.VLANs(), q.KeySize()}
	}
	if !f.Sound(p) {
		l.reason = reasonDamaged
		return
	}
	l.asks = true
}

// decide returns what becomes of a device's answer, or of a write that asks for copies. The worker has the turn.
func (a *app) decide(c *graph.Ctx, l *looked, in int, x *packet.Buf) graph.Reason {
	i := a.ops.find(&l.req)
	if in == a.devices {
		if i == none || a.ops.rows[i].code != l.op.Request() {
			if l.copies {
				return reasonLate
			}
			return reasonPlain
		}
		a.joined(c, i, l.from, l.status)
		return reasonJoined
	}
	if i != none {
		return reasonRepeated
	}
	if a.up&1 == 0 {
		return reasonBusy
	}
	i = a.ops.add(&l.req, l.key, l.op)
	if i == none {
		return reasonBusy
	}
	if first := a.ops.active(i); first != none {
		a.ops.wait(first, i)
		a.shelf.Put(&a.ops.rows[i].b, x, a.worker, struct{}{}) // there is a place for each write
		return reasonCopied
	}
	if !a.launch(c, i, x) {
		a.ops.remove(i)
		return reasonBusy
	}
	return reasonCopied
}

// launch sends a write to all devices that are up, or returns false if there is no buffer for the copy that must
// be kept.
func (a *app) launch(c *graph.Ctx, i int32, x *packet.Buf) bool {
	k := c.Get()
	if k == nil {
		return false
	}
	if !k.SetBytes(x.Bytes()) {
		c.Discard(k)
		return false
	}
	o := &a.ops.rows[i]
	a.shelf.Put(&o.b, k, a.worker, struct{}{})
	o.running, o.waiting, o.asked, o.tries = true, a.up, a.up, 0
	o.due = c.Now().Add(a.timeout)
	a.ops.start(i)
	for d := len(a.replicas) - 1; d > 0; d-- {
		if a.up&(1<<d) != 0 {
			a.copy(c, k, d)
		}
	}
	c.Mark(x, packet.Rewritten, reasonCopied)
	a.send(c, x, 0)
	return true
}

// copy sends a copy of write k to a device.
func (a *app) copy(c *graph.Ctx, k *packet.Buf, device int) {
	x := c.Get()
	if x == nil {
		return // it is sent again after the timeout
	}
	if !x.SetBytes(k.Bytes()) {
		c.Discard(x)
		return
	}
	a.send(c, x, device)
}

func (a *app) send(c *graph.Ctx, x *packet.Buf, device int) {
	p := x.Bytes()
	if device > 0 {
		var f clio.Frame
		clio.Parse(p, false, &f)
		summed := f.Summed(p)
		f.SetDst(p, a.replicas[device])
		x.TrimBack(len(p) - f.Stop)
		f.Seal(x.Bytes(), f.Stop, summed)
	}
	c.Emit(a.devices, x)
}

// joined notes the answer of a device to write i.
func (a *app) joined(c *graph.Ctx, i int32, from int, s clio.Status) {
	o := &a.ops.rows[i]
	if !o.running || o.waiting&(1<<from) == 0 {
		return
	}
	o.waiting &^= 1 << from
	switch {
	case from == 0:
		o.status = s
	case s != clio.OK:
		o.others = s
	default:
		o.agreed = true
	}
	if o.waiting == 0 {
		a.finish(c, i)
	}
}

// finish answers a write whose devices have all answered or are down, and begins the next write of its key.
func (a *app) finish(c *graph.Ctx, i int32) {
	o := &a.ops.rows[i]
	s := o.status
	switch {
	case s == clio.OK && o.others == clio.Unknown: // of a repetition that came too late
		s = clio.Unknown
	case s == clio.OK && o.others != clio.OK: // written, and not everywhere
		c.Count(ctrDiverged, 1)
		s = clio.Unknown
	case s != clio.OK && s != clio.Unknown && o.agreed:
		c.Count(ctrDiverged, 1)
	}
	c.Count(ctrAnswered, 1)
	if s == clio.Unknown {
		c.Count(ctrUnknown, 1)
	}
	if o.asked != 1<<len(a.replicas)-1 {
		c.Count(ctrDegraded, 1)
	}
	next, last := o.next, o.last
	a.ops.finish(i)
	a.answer(c, i, s)
	if next == none {
		return
	}
	if next != last {
		a.ops.rows[next].last = last
	}
	if a.up&1 == 0 {
		a.refuse(c, next)
		return
	}
	n := &a.ops.rows[next]
	x := a.shelf.Mine(c, &n.b, a.worker)
	if x == nil {
		a.refuse(c, next)
		return
	}
	a.shelf.Remove(&n.b)
	if !a.launch(c, next, x) {
		a.shelf.Put(&n.b, x, a.worker, struct{}{})
		a.refuse(c, next)
	}
}

// answer sends the answer to write i, and removes it.
func (a *app) answer(c *graph.Ctx, i int32, s clio.Status) {
	b, _ := a.shelf.Take(c, &a.ops.rows[i].b, a.worker)
	a.ops.remove(i)
	if b == nil {
		c.Count(ctrLost, 1)
		return
	}
	a.reply(c, b, s)
}

// refuse answers a write that waits, and those behind it, with Busy.
func (a *app) refuse(c *graph.Ctx, i int32) {
	for i != none {
		next := a.ops.rows[i].next
		a.answer(c, i, clio.Busy)
		i = next
	}
}

// reply turns a write into its answer.
func (a *app) reply(c *graph.Ctx, b *packet.Buf, s clio.Status) {
	var f clio.Frame
	clio.Parse(b.Bytes(), false, &f)
	b.TrimBack(b.Len() - f.AnswerEnd(0))
	f.Answer(b.Bytes(), s, nil)
	if b.Verdict != packet.Generated {
		c.Mark(b, packet.Rewritten, reasonBusy)
	}
	c.Emit(1-a.devices, b)
}

// Tick implements graph.Ticker.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	a.turn.Take()
	defer a.turn.Give()
	a.shelf.Return(c, a.worker, reasonMoved)
	for i := a.ops.order.Oldest(); i != none && a.ops.rows[i].due <= c.Now(); i = a.ops.order.Oldest() {
		o := &a.ops.rows[i]
		if o.tries++; o.tries > a.tries {
			a.bury(c, o.waiting)
			continue
		}
		for d := range a.replicas {
			if o.waiting&(1<<d) != 0 {
				c.Count(ctrRetransmitted, 1)
				a.copy(c, a.shelf.Frame(o.b.First()), d)
			}
		}
		o.due = c.Now().Add(a.timeout)
		a.ops.order.Renew(i)
	}
	a.gauge(c)
	return a.wants(c.Now())
}

// wants returns when Tick is due: not for each timeout separately, so that one Tick handles several. A worker
// with frames on the shelf also checks whether other workers have returned them.
func (a *app) wants(now clock.Time) clock.Time {
	at := clock.Never
	if a.workers > 1 && a.shelf.Held(a.worker) > 0 {
		at = now.Add(a.tick)
	}
	if i := a.ops.order.Oldest(); i != none {
		at = min(at, max(a.ops.rows[i].due, now.Add(a.tick)))
	}
	return at
}

// bury declares devices down: no write waits for their answers.
func (a *app) bury(c *graph.Ctx, dead uint8) {
	a.up &^= dead
	for i := range a.ops.rows {
		o := &a.ops.rows[i]
		if !o.running || o.waiting&dead == 0 {
			continue
		}
		if o.waiting&dead&1 != 0 {
			o.status = clio.Unknown
		}
		o.waiting &^= dead
		o.asked &^= dead
		if o.waiting == 0 {
			a.finish(c, int32(i))
		}
	}
}

// Stop implements graph.Holder: writes under way are answered Unknown, and writes that wait Busy.
func (a *app) Stop(c *graph.Ctx) {
	a.turn.Take()
	defer a.turn.Give()
	for i := a.ops.order.Oldest(); i != none; i = a.ops.order.Oldest() {
		next := a.ops.rows[i].next
		a.ops.finish(i)
		a.answer(c, i, clio.Unknown)
		a.refuse(c, next)
	}
	a.shelf.Return(c, a.worker, reasonMoved)
	a.gauge(c)
}

// gauge adds to the counters what has changed since the last call by any worker. The sum over all workers is the
// state.
func (a *app) gauge(c *graph.Ctx) {
	down := len(a.replicas) - bits.OnesCount8(a.up)
	for id, n := range [...]int{ctrPending: a.ops.used, ctrWaiting: a.ops.used - a.ops.running, ctrDown: down} {
		if id := counter.ID(id); n != a.shown[id] {
			c.Count(id, uint64(n-a.shown[id]))
			a.shown[id] = n
		}
	}
}

// Report implements graph.Reporter.
func (a *app) Report() any {
	type row struct {
		Device string `json:"device"`
		State  string `json:"state"`
	}
	a.turn.Take()
	defer a.turn.Give()
	rows := make([]row, len(a.replicas))
	for d, e := range a.replicas {
		rows[d] = row{netip.AddrFrom4(e.IP).String(), "up"}
		if a.up&(1<<d) == 0 {
			rows[d].State = "down"
		}
	}
	return rows
}
