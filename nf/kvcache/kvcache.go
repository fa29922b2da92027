package kvcache

import (
	"cmp"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/memory"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/turn"
)

// maxValue is the length in bytes of the longest value that a frame holds.
const maxValue = 1436

const (
	reasonOther graph.Reason = iota
	reasonFragment
	reasonMalformed
	reasonDamaged
	reasonHit
	reasonMiss
	reasonWrite
	reasonAnswer
	reasonSettling
	reasonNoRoom
	reasonAway
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonOther:     {Name: "not-keys", Help: "not of Clio's key/value store: passed"},
	reasonFragment:  {Name: "fragment", Help: "an IP fragment from or to Clio's port: passed"},
	reasonMalformed: {Name: "malformed", Help: "to or from Clio's port, and a length contradicts another: passed"},
	reasonDamaged:   {Name: "damaged", Help: "of the key/value store, and a checksum is wrong: dropped"},
	reasonHit:       {Name: "hit", Help: "a read, turned into its answer"},
	reasonMiss:      {Name: "miss", Help: "a read of what is not known: passed"},
	reasonWrite:     {Name: "write", Help: "a write: passed, its key is not valid any more"},
	reasonAnswer:    {Name: "answer", Help: "a device's answer: passed"},
	reasonSettling:  {Name: "settling", Help: "a request while nothing may be learnt (settle=): passed"},
	reasonNoRoom:    {Name: "no-room", Help: "a read of a value for which its buffer has no room: passed"},
	reasonAway:      {Name: "away", Help: "a read of a pair whose page of memory is elsewhere: passed, and the page asked for"},
}

const (
	ctrEntries counter.ID = iota
	ctrBytes
	ctrPending
	ctrFilled
	ctrWritten
	ctrSpoiled
	ctrEvicted
	ctrExpired
	ctrForgot
	ctrUnkept
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrEntries: {Name: "entries", Help: "pairs known now, with those that wait for an answer"},
	ctrBytes:   {Name: "bytes", Help: "of their values"},
	ctrPending: {Name: "pending", Help: "requests that are followed now"},
	ctrFilled:  {Name: "filled", Help: "pairs learnt from the answers of reads"},
	ctrWritten: {Name: "written", Help: "pairs learnt from the answers of writes"},
	ctrSpoiled: {Name: "spoiled", Help: "answers of which nothing could be learnt: another write, a repetition, or refused"},
	ctrEvicted: {Name: "evicted", Help: "pairs that made room for others"},
	ctrExpired: {Name: "expired", Help: "requests without an answer for settle="},
	ctrUnkept:  {Name: "unkept", Help: "pairs that were not learnt: their page of memory was elsewhere, or there was none"},
	ctrForgot:  {Name: "forgot-all", Help: "times that all was forgotten: frames went past unseen, or pending= was too small"},
}

// Kind returns the declaration of the network function "kvcache".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "kvcache",
		Summary: "answers reads of Clio's key/value devices from a cache, never stale",
		Doc: `One port faces Clio's devices (devices=), the other clients, or gobackn. Reads of
known keys are answered here; all else passes. A write is passed on and its key is
valid again when the device has answered it. Answers have a UDP checksum when
the request has one; VLAN tags stay, the TTL is the request's.

All frames between clients and devices must come through it, once, without
go-back-N headers. Repetitions, losses and changes of order are taken care of.
All else passes, IPv6 and fragments, too.

    quillon run --inline eth1,eth2 --nf kvcache,policy=lru,entries=4096
    quillon run --inline eth1,eth2 --nf kvcache --nf gobackn
    quillon replay --nf kvcache --in a=devices.pcap,b=clients.pcap -o out.pcap

Devices behind eth1, clients behind eth2. All workers know the same pairs.

As a task of a board with memory (quillon nf describe snic), and with memory: of its
own, values are there: as many pairs as have room, and no more than entries=. While the
page of a pair is at another board a read of it passes; the next one may hit.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects:  graph.Always(effect.Unknown),
		Memory:   func(graph.Args) bool { return true },
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			a := &app{workers: max(1, env.Workers)}
			if a.workers == 1 {
				a.state = newState(s, true)
			} else {
				a.state = env.Share(func() any { return newState(s, false) }).(*state)
				a.values = make([][maxValue]byte, packet.MaxBatch)
			}
			return a, nil
		},
	}
}

type settings struct {
	devices  int           `arg:"devices" words:"a b" help:"the port that faces the devices: a or b"`
	lru      bool          `arg:"policy" words:"fifo lru" help:"which pair makes room: fifo, the one that came first, or lru, the one unused for the longest; can be changed while running"`
	entries  int           `arg:"entries" range:"1..2^22" help:"pairs at most"`
	value    int           `arg:"value" range:"1..1436" help:"longest value that is kept, in bytes, at most 1436; memory is taken for entries= of them"`
	bytes    int           `arg:"bytes" range:"1..2^33" default:"entries * value" help:"of values at most"`
	pending  int           `arg:"pending" range:"1..2^20" help:"requests followed at a time"`
	sessions int           `arg:"sessions" range:"1..2^20" help:"sessions whose numbers are remembered"`
	settle   time.Duration `arg:"settle" range:"1ns.." help:"longer than any request lives, on its way to here and from here to a device; see timeout= and tries= of replicate"`
}

var arguments = arg.Declare("kvcache", settings{entries: 4096, value: 1024, pending: 4096, sessions: 4096, settle: 100 * time.Millisecond})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	s.bytes = cmp.Or(s.bytes, s.entries*s.value)
	if s.bytes < s.value {
		r.Failf("bytes=%d: want room for a value, %d", s.bytes, s.value)
	}
	return s, r.Err()
}

// state is what the instances of all workers share. Only a worker that has the turn may use it. Of the settings
// only the policy changes.
type state struct {
	turn turn.Shared
	settings
	cache   cache
	pending pendings
	senders senders
	quiet   clock.Time // nothing is learnt before; 0: not begun
	shown   [ctrPending + 1]int
	evicted uint64 // counted
}

func newState(s settings, alone bool) *state {
	return &state{turn: turn.Shared{Alone: alone}, settings: s, cache: newCache(s.entries, s.value, s.bytes, nil), pending: newPendings(s.pending), senders: newSenders(s.sessions)}
}

// app is the instance of one worker.
type app struct {
	*state
	workers int
	batch   [packet.MaxBatch]looked
	values  [][maxValue]byte // of hits in a batch, where workers share the cache
	scratch [maxValue]byte
}

// looked is what look has found out about a frame, and what decide has decided.
type looked struct {
	f      clio.Frame
	asks   bool // of the cache: it takes the worker's turn
	reason graph.Reason
	op     clio.Opcode
	status clio.Status
	key    key
	req    request
	value  []byte // of a hit
}

// UseMemory implements memory.User. Memory belongs to one worker, which then gets all frames; the app stops
// sharing a state with other workers.
func (a *app) UseMemory(s memory.Space) error {
	if a.workers > 1 {
		a.workers, a.state, a.values = 1, newState(a.settings, true), nil
	}
	n := int(min(int64(a.entries), s.Size()/int64(a.value)))
	if n == 0 {
		return fmt.Errorf("kvcache: memory of %d bytes has no room for a value, %d", s.Size(), a.value)
	}
	if err := s.Reserve(0, int64(n)*int64(a.value), memory.Read|memory.Write); err != nil {
		return err
	}
	a.cache = newCache(n, a.value, a.bytes, s)
	return nil
}

// GrowMemory implements memory.Grower: pairs stay, and there is room for more of them.
func (a *app) GrowMemory() {
	s, value := a.cache.space, int64(a.value)
	n, page := min(int64(a.entries), s.Size()/value), int64(s.PageBytes())
	has := (int64(len(a.cache.entries))*value + page - 1) / page * page
	if more := n*value - has; more > 0 && s.Reserve(uint64(has), more, memory.Read|memory.Write) != nil {
		return // nobody has room for it
	}
	a.cache.grow(int(n))
}

// Takes implements graph.Reconfigurer.
func (a *app) Takes(args graph.Args) bool {
	s, err := parse(args)
	a.turn.Take()
	defer a.turn.Give()
	s.lru = a.lru
	return err == nil && s == a.settings
}

// Reconfigure implements graph.Reconfigurer.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	a.turn.Take()
	defer a.turn.Give()
	a.lru = s.lru
	return nil
}

// Flush implements graph.Flusher.
func (a *app) Flush(c *graph.Ctx) {
	a.turn.Take()
	defer a.turn.Give()
	clear(a.senders.rows)
	a.forget(c)
}

// Wants implements graph.Wanter. Frames may cross without the app: it then forgets everything (Flush).
func (a *app) Wants() port.Filter { return port.Filter{UDP: []uint16{clio.Port}} }

// forget empties the cache, and has nothing learnt for a while, because writes that are not known may be under
// way.
func (a *app) forget(c *graph.Ctx) {
	c.Count(ctrForgot, 1)
	a.cache.clear()
	a.pending.clear()
	a.quiet = c.Now().Add(a.settle)
}

// begin, in the first breath, has nothing learnt until all that was under way before has arrived.
func (a *app) begin(c *graph.Ctx) {
	if a.quiet == 0 {
		a.quiet = c.Now().Add(a.settle)
	}
}

// Push implements graph.App. Workers that share the cache verify checksums before their turn, and write answers
// after it.
func (a *app) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	if a.workers == 1 {
		a.begin(c)
		l := &a.batch[0]
		for _, x := range batch.Bufs() {
			a.look(l, in, x.Bytes())
			if l.asks {
				a.decide(c, l, in, x, nil)
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
		a.begin(c)
		for i, x := range batch.Bufs() {
			if l := &a.batch[i]; l.asks {
				a.decide(c, l, in, x, &a.values[i])
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
	if !f.Sound(p) {
		l.reason = reasonDamaged
		return
	}
	l.asks = true
	h := clio.Lego(p[f.Lego:])
	src, dst := f.Src(p), f.Dst(p)
	l.op = h.Opcode()
	if in == a.devices {
		l.op, l.status = l.op.Request(), h.Status()
		l.req = request{src.IP, dst.IP, f.VLANs(), dst.Port, h.ID()}
		return
	}
	q := clio.Request(p[f.Op:])
	l.key = key{q.Key(), dst.IP, f.VLANs(), q.KeySize()}
	l.req = request{dst.IP, src.IP, f.VLANs(), src.Port, h.ID()}
}

// decide decides what becomes of a frame that asks for the shared state; the worker has the turn. With keep, the
// value of a hit is copied there, because it may change after the turn.
func (a *app) decide(c *graph.Ctx, l *looked, in int, x *packet.Buf, keep *[maxValue]byte) {
	p, f := x.Bytes(), &l.f
	if in == a.devices {
		a.answer(c, &l.req, l.op, l.status, p[f.Data:f.Stop])
		l.reason = reasonAnswer
		return
	}
	fresh := a.senders.fresh(c.Now(), &l.req, a.settle)
	switch {
	case c.Now() < a.quiet:
		if l.op != clio.Read { // it may be under way for longer than that
			a.write(c, &l.key, &l.req, l.op, nil, false)
		}
		l.reason = reasonSettling
	case l.op == clio.Read:
		if l.reason = a.read(c, x, l, fresh); l.reason == reasonHit && keep != nil {
			l.value = keep[:copy(keep[:], l.value)]
		}
	default:
		a.write(c, &l.key, &l.req, l.op, p[f.Data:f.Stop], fresh)
		l.reason = reasonWrite
	}
}

// end sends a frame on, drops it, or answers it.
func (a *app) end(c *graph.Ctx, l *looked, in int, x *packet.Buf) {
	out, v := 1-in, x.Verdict
	switch l.reason {
	case reasonDamaged:
		c.Drop(x, l.reason)
		return
	case reasonHit:
		l.f.Answer(x.Bytes(), clio.OK, l.value)
		out, v = in, packet.Rewritten
	}
	c.Mark(x, v, l.reason)
	c.Emit(out, x)
}

// read looks a key up. For a hit it sets l.value, and makes the frame as long as the answer; otherwise it returns
// why there is none, and notes a fresh request, so that the answer fills the cache.
func (a *app) read(c *graph.Ctx, x *packet.Buf, l *looked, fresh bool) graph.Reason {
	k := &l.key
	hash := k.hash()
	if i := a.cache.find(k, hash); i != none && a.cache.entries[i].valid {
		if a.cache.space == nil {
			l.value = a.cache.value(i)
		} else {
			l.value = a.scratch[:a.cache.entries[i].n]
			if _, o := a.cache.space.Read(a.cache.at(i), l.value); o != memory.OK {
				return reasonAway
			}
		}
		if n := l.f.AnswerEnd(len(l.value)); n <= x.Len() {
			x.TrimBack(x.Len() - n)
		} else if _, ok := x.Append(n - x.Len()); !ok {
			return reasonNoRoom
		}
		if a.lru {
			a.cache.order.Renew(i)
		}
		return reasonHit
	}
	if !fresh {
		return reasonMiss
	}
	for i := a.chain(hash); i != none; i = a.pending.rows[i].nextKey {
		if w := &a.pending.rows[i]; w.key == *k && w.code.Writes() {
			return reasonMiss
		}
	}
	a.pending.add(c.Now(), &l.req, k, hash, clio.Read) // without a place nothing is learnt
	return reasonMiss
}

// chain returns the first row, or none, of the requests under way whose keys have such a hash.
func (a *app) chain(hash uint64) int32 {
	return a.pending.byKey[hash&uint64(len(a.pending.byKey)-1)]
}

func (a *app) write(c *graph.Ctx, k *key, req *request, op clio.Opcode, value []byte, fresh bool) {
	hash := k.hash()
	if i := a.cache.find(k, hash); i != none {
		a.cache.remove(i)
	}
	learn, me := fresh && op != clio.Delete && len(value) <= a.value, none
	for i := a.chain(hash); i != none; i = a.pending.rows[i].nextKey {
		x := &a.pending.rows[i]
		if x.key != *k {
			continue
		}
		x.spoiled = true
		learn = learn && !x.code.Writes()
		if x.req == *req && x.code.Writes() {
			me = i
		}
	}
	if me != none {
		a.pending.refresh(c.Now(), me)
		return
	}
	if me = a.pending.add(c.Now(), req, k, hash, op); me == none {
		if !a.pending.yield() {
			a.forget(c)
			return
		}
		me = a.pending.add(c.Now(), req, k, hash, op)
	}
	a.pending.rows[me].spoiled = !learn
	if !learn {
		return
	}
	if i := a.cache.add(k, hash, value); i != none {
		a.cache.entries[i].writer = me
	} else {
		c.Count(ctrUnkept, 1)
	}
}

// answer updates the cache by a device's answer.
func (a *app) answer(c *graph.Ctx, req *request, op clio.Opcode, status clio.Status, value []byte) {
	i := a.pending.find(req)
	if i == none {
		return
	}
	x := &a.pending.rows[i]
	if x.code != op {
		return
	}
	if status >= clio.Busy && op.Writes() {
		a.abandon(i)
		x.spoiled = true
		return // it goes with time
	}
	learn := status == clio.OK && !x.spoiled
	if op == clio.Read {
		if learn && len(value) <= a.value && a.cache.find(&x.key, x.hash) == none {
			if e := a.cache.add(&x.key, x.hash, value); e != none {
				a.cache.entries[e].valid = true
				c.Count(ctrFilled, 1)
			} else {
				c.Count(ctrUnkept, 1)
			}
		} else if !learn {
			c.Count(ctrSpoiled, 1)
		}
		a.pending.remove(i)
		return
	}
	e := a.cache.find(&x.key, x.hash)
	if learn && e != none && a.cache.entries[e].writer == i {
		a.cache.entries[e].valid, a.cache.entries[e].writer = true, none
		c.Count(ctrWritten, 1)
	} else {
		c.Count(ctrSpoiled, 1)
		a.abandon(i)
	}
	a.pending.remove(i)
}

// abandon forgets the value that a pending write has put aside.
func (a *app) abandon(i int32) {
	x := &a.pending.rows[i]
	if e := a.cache.find(&x.key, x.hash); e != none && a.cache.entries[e].writer == i {
		a.cache.remove(e)
	}
}

// Tick implements graph.Ticker.
func (a *app) Tick(c *graph.Ctx) clock.Time {
	a.turn.Take()
	defer a.turn.Give()
	a.begin(c)
	for i := a.pending.order.Oldest(); i != none && c.Now().Sub(a.pending.rows[i].since) >= a.settle; i = a.pending.order.Oldest() {
		c.Count(ctrExpired, 1)
		a.abandon(i)
		a.pending.remove(i)
	}
	a.gauge(c)
	return a.wants(c.Now())
}

// wants returns when Tick is due: not for each request separately, so that one Tick handles several.
func (a *app) wants(now clock.Time) clock.Time {
	i := a.pending.order.Oldest()
	if i == none {
		return clock.Never
	}
	return max(a.pending.rows[i].since.Add(a.settle), now.Add(max(a.settle/8, time.Microsecond)))
}

// gauge adds to the counters what has changed since the last call by any worker. The sum over all workers is the
// state.
func (a *app) gauge(c *graph.Ctx) {
	for id, n := range [...]int{ctrEntries: a.cache.used, ctrBytes: a.cache.bytes, ctrPending: a.pending.used} {
		if n != a.shown[id] {
			c.Count(counter.ID(id), uint64(n-a.shown[id]))
			a.shown[id] = n
		}
	}
	if a.cache.evicted != a.evicted {
		c.Count(ctrEvicted, a.cache.evicted-a.evicted)
		a.evicted = a.cache.evicted
	}
}
