package replicate

import (
	"fmt"
	"math"
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
	"github.com/quillon/quillon/nf/packet"
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
}

// Kind declares replicate.
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

Devices behind eth1, clients behind eth2. It needs one worker.`,
		In:  []string{"a", "b"},
		Out: []string{"a", "b"},
		Params: []graph.Param{
			{Name: "replicas", Help: "IP@MAC of the devices, joined by +, at most 8; the first is the primary; needed"},
			{Name: "devices", Default: "a", Help: "the port that faces the devices: a or b"},
			{Name: "timeout", Default: "1ms", Help: "a device that has not answered for so long gets the write again"},
			{Name: "tries", Default: "16", Help: "how often, until it is down"},
			{Name: "pending", Default: "1024", Help: "writes under way and waiting"},
			{Name: "revive", Default: "0", Help: "another number than before says that all devices hold the same: none is down any more"},
			{Name: "tick", Default: "100us", Help: "how exactly the timeout is kept"},
		},
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects:  graph.Always(effect.Unknown),
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			if env.Workers > 1 {
				return nil, fmt.Errorf("replicate: writes belong to one worker, there are %d: run with one", env.Workers)
			}
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			return &app{settings: s, ops: newOps(s.pending), up: 1<<len(s.replicas) - 1}, nil
		},
	}
}

type settings struct {
	replicas []clio.End
	devices  int
	timeout  time.Duration
	tries    int
	pending  int
	tick     time.Duration
	revive   int
}

func parse(args graph.Args) (settings, error) {
	s := settings{timeout: time.Millisecond, tries: 16, pending: 1024, tick: 100 * time.Microsecond}
	r := arg.Read("replicate", args)
	arg.Value(r, "replicas", &s.replicas, parseReplicas)
	arg.Choice(r, "devices", &s.devices, "a", "b")
	r.Duration("timeout", &s.timeout, 1, arg.Longest)
	r.Duration("tick", &s.tick, time.Microsecond, arg.Longest)
	arg.Number(r, "tries", &s.tries, 1, math.MaxInt32)
	arg.Number(r, "pending", &s.pending, 1, 1<<20)
	arg.Number(r, "revive", &s.revive, math.MinInt, math.MaxInt)
	r.Need("replicas", "such as 192.168.1.10@02:00:00:00:00:10+192.168.1.11@02:00:00:00:00:11")
	return s, r.Err()
}

func parseReplicas(v string) (all []clio.End, err error) {
	for x := range strings.SplitSeq(v, "+") {
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

// app is one instance.
type app struct {
	settings
	ops ops
	up  uint8 // bit i: replica i is not down
	f   clio.Frame
}

// Takes implements graph.Picky.
func (a *app) Takes(args graph.Args) bool {
	s, err := parse(args)
	return err == nil && slices.Equal(s.replicas, a.replicas) && s.devices == a.devices && s.pending == a.pending
}

// Reconfigure implements graph.Reconfigurer: with another number revive all devices
// are up again.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	if s.revive != a.revive {
		a.up = 1<<len(s.replicas) - 1
	}
	a.settings = s
	return nil
}

// Held implements graph.Holder.
func (a *app) Held() int { return a.ops.used }

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	for _, x := range batch.Bufs() {
		switch r := a.one(c, in, x); r {
		case reasonCopied:
		case reasonJoined, reasonRepeated, reasonLate, reasonDamaged:
			c.Drop(x, r)
		case reasonBusy:
			a.reply(c, x, clio.Busy)
		default:
			c.Mark(x, x.Verdict, r)
			c.Emit(1-in, x)
		}
	}
	c.Wake(a.wants(c.Now()))
	a.gauge(c)
}

func (a *app) one(c *graph.Ctx, in int, x *packet.Buf) graph.Reason {
	p, f := x.Bytes(), &a.f
	switch clio.ParseKeys(p, in == a.devices, f) {
	case clio.Fragment:
		return reasonFragment
	case clio.Malformed:
		return reasonMalformed
	case clio.Message:
	default:
		return reasonOther
	}
	h := clio.Lego(p[f.Lego:])
	src, dst, op := f.Src(p), f.Dst(p), h.Opcode()
	if in == a.devices {
		from := slices.IndexFunc(a.replicas, func(e clio.End) bool { return e.IP == src.IP })
		if from < 0 {
			return reasonPlain
		}
		if !f.Sound(p) {
			return reasonDamaged
		}
		i := a.ops.find(&request{dst.IP, dst.Port, h.ID(), f.VLANs()})
		if i == none || a.ops.rows[i].code != op.Request() {
			if h.Replicate() {
				return reasonLate
			}
			return reasonPlain
		}
		a.joined(c, i, from, h.Status())
		return reasonJoined
	}
	if !op.Writes() || !h.Replicate() || dst.IP != a.replicas[0].IP {
		return reasonPlain
	}
	if !f.Sound(p) {
		return reasonDamaged
	}
	req := request{src.IP, src.Port, h.ID(), f.VLANs()}
	if a.ops.find(&req) != none {
		return reasonRepeated
	}
	if a.up&1 == 0 {
		return reasonBusy
	}
	q := clio.Request(p[f.Op:])
	i := a.ops.add(&req, key{q.Key(), f.VLANs(), q.KeySize()}, op)
	if i == none {
		return reasonBusy
	}
	if first := a.ops.active(i); first != none {
		a.ops.wait(first, i)
		a.ops.rows[i].b = x
		return reasonCopied
	}
	if !a.launch(c, i, x) {
		a.ops.remove(i)
		return reasonBusy
	}
	return reasonCopied
}

// launch sends a write to all devices that are up; false: there is no buffer for
// the copy that is kept.
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
	o.b, o.running, o.waiting, o.asked, o.tries = k, true, a.up, a.up, 0
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

// copy sends a copy of a write to a device.
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

// joined takes note of a device's answer.
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

// finish answers a write for which nobody is waited for any more, and begins the
// next of its key.
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
	b, next, last := o.b, o.next, o.last
	a.ops.finish(i)
	a.ops.remove(i)
	a.reply(c, b, s)
	if next == none {
		return
	}
	if next != last {
		a.ops.rows[next].last = last
	}
	x := a.ops.rows[next].b
	if a.up&1 == 0 || !a.launch(c, next, x) {
		a.refuse(c, next)
	}
}

// refuse answers a write that waits, and those behind it, with Busy.
func (a *app) refuse(c *graph.Ctx, i int32) {
	for i != none {
		b, next := a.ops.rows[i].b, a.ops.rows[i].next
		a.ops.remove(i)
		a.reply(c, b, clio.Busy)
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
	for i := a.ops.order.Oldest(); i != none && a.ops.rows[i].due <= c.Now(); i = a.ops.order.Oldest() {
		o := &a.ops.rows[i]
		if o.tries++; o.tries > a.tries {
			a.bury(c, o.waiting)
			continue
		}
		for d := range a.replicas {
			if o.waiting&(1<<d) != 0 {
				c.Count(ctrRetransmitted, 1)
				a.copy(c, o.b, d)
			}
		}
		o.due = c.Now().Add(a.timeout)
		a.ops.order.Renew(i)
	}
	a.gauge(c)
	return a.wants(c.Now())
}

// wants is when Tick has work: several timeouts may be looked at in one.
func (a *app) wants(now clock.Time) clock.Time {
	i := a.ops.order.Oldest()
	if i == none {
		return clock.Never
	}
	return max(a.ops.rows[i].due, now.Add(a.tick))
}

// bury declares devices down: nobody waits for them any more.
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

// Stop implements graph.Stopper: what is under way is answered Unknown, what waits
// Busy.
func (a *app) Stop(c *graph.Ctx) {
	for i := a.ops.order.Oldest(); i != none; i = a.ops.order.Oldest() {
		b, next := a.ops.rows[i].b, a.ops.rows[i].next
		a.ops.finish(i)
		a.ops.remove(i)
		a.reply(c, b, clio.Unknown)
		a.refuse(c, next)
	}
	a.gauge(c)
}

func (a *app) gauge(c *graph.Ctx) {
	c.Set(ctrPending, uint64(a.ops.used))
	c.Set(ctrWaiting, uint64(a.ops.used-a.ops.running))
	down := 0
	for d := range a.replicas {
		if a.up&(1<<d) == 0 {
			down++
		}
	}
	c.Set(ctrDown, uint64(down))
}

// Report implements graph.Reporter.
func (a *app) Report() any {
	type row struct {
		Device string `json:"device"`
		State  string `json:"state"`
	}
	rows := make([]row, len(a.replicas))
	for d, e := range a.replicas {
		rows[d] = row{netip.AddrFrom4(e.IP).String(), "up"}
		if a.up&(1<<d) == 0 {
			rows[d].State = "down"
		}
	}
	return rows
}
